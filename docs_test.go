package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// pages are all Markdown files of the project, by path.
func pages(t *testing.T) map[string]string {
	t.Helper()
	list := map[string]string{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if strings.HasSuffix(path, ".md") {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			list[path] = string(text)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// Every link of a page leads to a file, and to a heading of it where it names one.
func TestReadmeAndDocsLinkToWhatIsThere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	notAnchor := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	all := pages(t)
	for path, text := range all {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			to, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(to, "://") {
				continue
			}
			file := path
			if to != "" {
				file = filepath.Join(filepath.Dir(path), to)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s links to %s, which is not there", path, m[1])
				continue
			}
			if anchor == "" {
				continue
			}
			found := false
			for line := range strings.Lines(all[file]) {
				if h, ok := strings.CutPrefix(strings.TrimLeft(strings.TrimSpace(line), "#"), " "); ok && strings.HasPrefix(line, "#") {
					found = found || strings.ReplaceAll(notAnchor.ReplaceAllString(strings.ToLower(h), ""), " ", "-") == anchor
				}
			}
			if !found {
				t.Errorf("%s links to %s, and %s has no such heading", path, m[1], file)
			}
		}
	}
}

// Every page of docs can be reached from the README or from a page that can be.
func TestReadmeLeadsToEveryPage(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#\s]+)`)
	all := pages(t)
	seen := map[string]bool{}
	var visit func(path string)
	visit = func(path string) {
		if seen[path] {
			return
		}
		seen[path] = true
		for _, m := range link.FindAllStringSubmatch(all[path], -1) {
			visit(filepath.Join(filepath.Dir(path), m[1]))
		}
	}
	visit("README.md")
	for path := range all {
		if !seen[path] {
			t.Errorf("no page that the README leads to links to %s", path)
		}
	}
}

// Tables lie beside the page that reads them, and each begins with the command that
// makes it.
func TestDocsTablesNameTheirCommand(t *testing.T) {
	all := pages(t)
	for path, text := range all {
		if strings.HasPrefix(path, "docs/tables/") {
			if !regexp.MustCompile(`^# .*\n\nMade by:\n\n    \S`).MatchString(text) {
				t.Errorf("%s does not begin with a title, 'Made by:' and a command", path)
			}
			if !strings.Contains(all["docs/performance.md"], "("+strings.TrimPrefix(path, "docs/")+")") {
				t.Errorf("docs/performance.md does not link to %s", path)
			}
		}
	}
	if n := strings.Count(all["docs/performance.md"], "\n"); n > 120 {
		t.Errorf("docs/performance.md has %d lines; it is one page to read, tables lie in docs/tables", n)
	}
}
