package launch_test

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/launch"
)

// The folder of a process that was killed goes with the next start; that of one that
// lives stays.
func TestFoldersOfTheDeadAreRemoved(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	cmd := bounded.Command(t, os.Args[0])
	cmd.Env = append(os.Environ(), "WEFT_TEST_RANK=folder")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	theirs := strings.TrimSpace(line)
	if err != nil || filepath.Dir(theirs) != os.TempDir() {
		t.Fatalf("%q, %v", theirs, err)
	}
	make := func() {
		t.Helper()
		dir, remove, err := launch.TempDir("test")
		if err != nil {
			t.Fatal(err)
		}
		if err := remove(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", dir, err)
		}
	}
	make()
	if _, err := os.Stat(theirs); err != nil {
		t.Errorf("the folder of a process that lives: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	make()
	if _, err := os.Stat(theirs); !os.IsNotExist(err) {
		t.Errorf("the folder of a process that was killed is left: %v", err)
	}
}

// A folder in the making is nobody's to remove, however many are made at once.
func TestFoldersMadeAtOnce(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				dir, remove, err := launch.TempDir("test")
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := os.Stat(filepath.Join(dir, ".lock")); err != nil {
					t.Errorf("the folder of a process that lives: %v", err)
				}
				if err := remove(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}
