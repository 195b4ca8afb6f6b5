package member_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/run/internal/member/simulation"
)

var update = flag.Bool("update", false, "rewrite transcripts and the page")

// Each file of testdata is commands, a line of dashes, and what ranks noticed.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txt"), func(t *testing.T) {
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			commands, want, ok := strings.Cut(string(b), "----\n")
			if !ok {
				t.Fatalf("%s has no line of four dashes between commands and transcript", name)
			}
			got, err := simulation.Play(commands)
			if err != nil {
				t.Fatal(err)
			}
			if got == want {
				return
			}
			if *update {
				if err := os.WriteFile(name, []byte(commands+"----\n"+got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			t.Errorf("transcript differs; go test ./run/internal/member -run Scenarios -update rewrites it, read the difference.\ngot:\n%s\nwant:\n%s",
				got, want)
		})
	}
}
