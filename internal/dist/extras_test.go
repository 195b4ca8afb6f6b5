package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
)

// What is unpacked in /usr is read by those that it is for: tar, groff and bash.
func TestSharedFilesAreRead(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "share.tar.gz")
	if err := writeShare(file, "v1.2.3", time.Date(2026, 11, 18, 0, 0, 0, 0, time.UTC)); err != nil {
		t.Fatal(err)
	}
	if out, err := bounded.Command(t, "tar", "xzf", file, "-C", dir).CombinedOutput(); err != nil {
		t.Fatalf("tar: %v: %s", err, out)
	}
	pages, err := filepath.Glob(filepath.Join(dir, "share/man/man1/*.1"))
	if err != nil || len(pages) < 50 {
		t.Fatalf("%d man pages, %v", len(pages), err)
	}
	page, err := os.ReadFile(filepath.Join(dir, "share/man/man1/weft-sim-collective.1"))
	if err != nil || !strings.Contains(string(page), "weft v1.2.3") || !strings.Contains(string(page), "--cluster") {
		t.Errorf("the page of sim collective: %v\n%.300s", err, page)
	}
	if groff, err := exec.LookPath("groff"); err != nil {
		t.Log("no groff: man pages are not formatted")
	} else if out, err := bounded.Command(t, groff,
		append([]string{"-man", "-Tascii", "-ww", "-Wbreak", "-z"}, pages...)...).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("groff: %v: %.500s", err, out)
	}
	// Bash lists what the file's function completes to: none of cobra's that needs the program, so only that it is read.
	file = filepath.Join(dir, "share/bash-completion/completions/weft")
	if out, err := bounded.Command(t, "bash", "-c", `source "$1" && complete -p weft`, "bash", file).CombinedOutput(); err != nil ||
		!strings.Contains(string(out), "weft") {
		t.Errorf("bash: %v: %s", err, out)
	}
}

// The bill of materials has the modules that go version -m reads from the same binary.
func TestSBOMIsWhatTheBinarySays(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "sbom.json")
	if err := writeSBOM(file, self, "v1.2.3", time.Now()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var bom struct {
		BomFormat, SpecVersion string
		Components             []struct{ Name, Version, PURL string }
	}
	if err := json.Unmarshal(text, &bom); err != nil || bom.BomFormat != "CycloneDX" || bom.SpecVersion != "1.5" {
		t.Fatalf("%v: %.200s", err, text)
	}
	have := map[string]bool{}
	for _, c := range bom.Components {
		have[c.Name+" "+c.Version] = c.PURL == "pkg:golang/"+c.Name+"@"+c.Version
	}
	out, err := bounded.Command(t, "go", "version", "-m", self).Output()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) >= 3 && f[0] == "dep" {
			if n++; !have[f[1]+" "+f[2]] {
				t.Errorf("%s %s is missing", f[1], f[2])
			}
		}
	}
	if n < 10 || len(bom.Components) != n+1 {
		t.Errorf("%d components for %d modules", len(bom.Components), n)
	}
}
