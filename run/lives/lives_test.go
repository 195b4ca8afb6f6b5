package lives

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
)

// TestEqualNumbersDoNotMeet: two processes that both are number 1 of their namespace, as
// ranks of two containers or hosts may be, have files of their own.
func TestEqualNumbersDoNotMeet(t *testing.T) {
	var files []string
	for range 2 {
		// The shell tells when it runs, and ends with its input.
		cmd := bounded.Command(t, "unshare", "--pid", "--fork", "--kill-child", "sh", "-c", "echo $$; cat")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Skipf("unshare: %v", err)
		}
		defer func() { in.Close(); cmd.Wait() }()
		line := make([]byte, 16)
		n, _ := out.Read(line)
		inside, err := strconv.Atoi(strings.TrimSpace(string(line[:n])))
		if err != nil || inside != 1 {
			t.Skipf("no process namespaces here: the shell is number %q", line[:n])
		}
		children, err := os.ReadFile("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/task/" + strconv.Itoa(cmd.Process.Pid) + "/children")
		if err != nil || len(strings.Fields(string(children))) != 1 {
			t.Skipf("children of %d: %q, %v", cmd.Process.Pid, children, err)
		}
		files = append(files, Live(SpaceOf("/proc", strings.Fields(string(children))[0]), inside))
	}
	if files[0] == files[1] {
		t.Errorf("both write %s", files[0])
	}
	if own := Live(Space(), 1); slices.Contains(files, own) {
		t.Errorf("number 1 of this namespace writes %s, too", own)
	}
}

func TestLaunchersLines(t *testing.T) {
	dir := t.TempDir()
	Write(dir, Record{Event: Started, Job: "j", Rank: 3, PID: 7})
	Write(dir, Record{Event: Ended, Job: "j", Rank: 3, PID: 7, Signal: 9})
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(names) != 1 {
		t.Fatal(names, err)
	}
	if space, pid, ok := Launcher(filepath.Base(names[0])); !ok || space != Space() || pid != os.Getpid() {
		t.Errorf("%s is of %q %d %v", names[0], space, pid, ok)
	}
	data, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	var got []Record
	for line := range strings.Lines(string(data)) {
		var r Record
		if err := json.Unmarshal([]byte(line), &r); err != nil || r.At == 0 {
			t.Fatalf("%q: %v", line, err)
		}
		got = append(got, r)
	}
	if len(got) != 2 || got[0].Event != Started || got[1].Signal != 9 || got[1].Rank != 3 {
		t.Errorf("got %+v", got)
	}
}
