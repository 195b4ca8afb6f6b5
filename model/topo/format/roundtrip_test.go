package format

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/topo"
)

// fixtures are files that other people's machines wrote; they lie beside the project, not in it.
const fixtures = "../../../../shared/reference/fixtures"

func fixture(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(fixtures, path))
	if err != nil {
		t.Skipf("the fixture files are not beside this checkout: %v", err)
	}
	return data
}

// again decodes, encodes and decodes, and wants the same graph.
func again(t *testing.T, dialect string, data []byte) *topo.Graph {
	t.Helper()
	d, err := Find(dialect)
	if err != nil {
		t.Fatal(err)
	}
	first, err := d.Decode("host", data)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := d.Encode(&out, first); err != nil {
		t.Fatal(err)
	}
	second, err := d.Decode("host", out.Bytes())
	if err != nil {
		t.Fatalf("own output: %v\n%s", err, out.String())
	}
	if diff := topo.Diff(first, second); len(diff) > 0 {
		t.Errorf("not the same graph again:\n%s\n%s", strings.Join(diff, "\n"), out.String())
	}
	var twice bytes.Buffer
	if err := d.Encode(&twice, second); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Bytes(), twice.Bytes()) {
		t.Errorf("the second encoding differs from the first:\n%s\n%s", out.String(), twice.String())
	}
	return first
}

var fixtureDialects = []struct{ folder, dialect string }{
	{"nccl-topo", "nccl-xml"}, {"ibnetdiscover", "ibnetdiscover"}, {"slurm", "slurm"},
}

func TestFixturesComeBackTheSame(t *testing.T) {
	for _, f := range fixtureDialects {
		files, _ := filepath.Glob(filepath.Join(fixtures, f.folder, "*"))
		if len(files) == 0 {
			t.Skipf("no files in %s", filepath.Join(fixtures, f.folder))
		}
		for _, path := range files {
			t.Run(filepath.Base(path), func(t *testing.T) {
				data, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if d, ok := Detect(data); !ok || d.Name != f.dialect {
					t.Errorf("detected as %q, want %q", d.Name, f.dialect)
				}
				again(t, f.dialect, data)
				for _, other := range Dialects() {
					if other.Decode == nil || other.Name == f.dialect || f.dialect == "ibnetdiscover" && other.Name == "ibsim" {
						continue
					}
					if _, err := other.Decode("x", data); err == nil || !strings.Contains(err.Error(), "expected") {
						t.Errorf("%s took a file of %s: %v", other.Name, f.dialect, err)
					}
				}
			})
		}
	}
}

func TestByteOrderMarkAndCarriageReturns(t *testing.T) {
	for dialect, text := range map[string]string{
		"nccl-xml":      dump,
		"nvidia-smi":    "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPIX\t0-3\nGPU1\tPIX\t X \t0-3\n",
		"ibnetdiscover": classic,
		"slurm":         "SwitchName=s0 Nodes=n[0-1]\n",
	} {
		d, err := Find(dialect)
		if err != nil {
			t.Fatal(err)
		}
		want, err := d.Decode("x", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		windows := []byte("\xef\xbb\xbf" + strings.ReplaceAll(text, "\n", "\r\n"))
		if found, ok := Detect(windows); !ok || found.Name != dialect {
			t.Errorf("%s detected as %q", dialect, found.Name)
		}
		got, err := d.Decode("x", windows)
		if err != nil {
			t.Fatalf("%s: %v", dialect, err)
		}
		if diff := topo.Diff(want, got); len(diff) > 0 {
			t.Errorf("%s: %s", dialect, strings.Join(diff, "\n"))
		}
	}
}

func TestFindNamesTheKnown(t *testing.T) {
	if _, err := Find("visio"); err == nil || !strings.Contains(err.Error(), "nccl-xml, nvidia-smi") {
		t.Errorf("got %v", err)
	}
}
