package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// Lines of Go have at most this many characters. Those that are longer hold one long text or a row of a table. Their number may only
// fall: lower it when you shorten some.
const (
	longest = 140
	longNow = 950
)

// sources is every Go file of the project.
func sources(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		text, err := os.ReadFile(path)
		files[filepath.ToSlash(path)] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestLongLines(t *testing.T) {
	long, last := 0, ""
	for path, text := range sources(t) {
		for line := range strings.Lines(text) {
			if utf8.RuneCountInString(strings.TrimRight(line, "\n")) > longest {
				long, last = long+1, path
			}
		}
	}
	if long > longNow {
		t.Errorf("%d lines have more than %d characters, %d are allowed; one is in %s", long, longest, longNow, last)
	}
	if long < longNow-50 {
		t.Errorf("%d lines have more than %d characters: lower longNow to that", long, longest)
	}
}
