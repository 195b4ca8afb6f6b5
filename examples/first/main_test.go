package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
)

// docs/tutorials/first-program.md shows this program and this algorithm, and what its commands
// print is what they print, but for the order in which ranks print.
func TestPageRuns(t *testing.T) {
	page, err := os.ReadFile("../../docs/tutorials/first-program.md")
	if err != nil {
		t.Fatal(err)
	}
	for file, fence := range map[string]string{"main.go": "```go\n", "doubling.weft": "```\nweft 1"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(page), strings.TrimSuffix(fence, "weft 1")+string(text)+"```\n") {
			t.Errorf("the page does not show %s as it is", file)
		}
	}
	bin := t.TempDir()
	commands := 0
	for _, m := range regexp.MustCompile("(?s)```console\n\\$ ([^\n]*)\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		line, want := m[1], m[2]
		c := bounded.Within(t, bounded.Build, "bash", "-c", strings.ReplaceAll(line, "bin/", bin+"/"))
		c.Dir = "../.."
		got, err := c.CombinedOutput()
		if err != nil && !strings.HasPrefix(want, "weft: ") {
			t.Fatalf("%s: %v\n%s", line, err, got)
		}
		if !slices.Equal(sorted(string(got)), sorted(want)) {
			t.Errorf("%s\nprints\n%s\nand the page says\n%s", line, got, want)
		}
		commands++
	}
	if _, err := os.Stat(filepath.Join(bin, "first")); err != nil || commands < 6 {
		t.Errorf("%d commands were found on the page, %v", commands, err)
	}
}

func sorted(text string) []string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	slices.Sort(lines)
	return lines
}
