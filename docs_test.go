package main

import (
	"bytes"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
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
		if strings.HasPrefix(path, "docs/reference/tables/") {
			if !regexp.MustCompile(`^# .*\n\nMade by:\n\n    \S`).MatchString(text) {
				t.Errorf("%s does not begin with a title, 'Made by:' and a command", path)
			}
			if !strings.Contains(all["docs/reference/performance.md"], "("+strings.TrimPrefix(path, "docs/reference/")+")") {
				t.Errorf("docs/reference/performance.md does not link to %s", path)
			}
		}
	}
	if n := strings.Count(all["docs/reference/performance.md"], "\n"); n > 120 {
		t.Errorf("docs/reference/performance.md has %d lines; it is one page to read, tables lie in docs/reference/tables", n)
	}
}

var update = flag.Bool("update", false, "copy commands and outputs of README.md to README.zh-CN.md")

var (
	fenced   = regexp.MustCompile("(?s)```\n.*?```\n")
	indented = regexp.MustCompile(`(?m)^    \S.*$`)
	comment  = regexp.MustCompile(`(\s{2,}|\s+#|\s+//).*$|\s\p{Han}.*$`)
)

// The Chinese README has the same commands, in the same order, and the same outputs.
// -update copies the outputs.
func TestChineseReadmeIsInStep(t *testing.T) {
	all := pages(t)
	english, chinese := all["README.md"], all["README.zh-CN.md"]
	want, have := fenced.FindAllString(english, -1), fenced.FindAllString(chinese, -1)
	if len(want) != len(have) {
		t.Fatalf("README.md shows %d outputs, README.zh-CN.md %d", len(want), len(have))
	}
	if *update {
		k := 0
		text := fenced.ReplaceAllStringFunc(chinese, func(string) string { k++; return want[k-1] })
		if err := os.WriteFile("README.zh-CN.md", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		have, chinese = want, text
	}
	for i := range want {
		if want[i] != have[i] {
			t.Errorf("output %d differs; 'go test -run Chinese -update .' copies it. README.md:\n%s\nREADME.zh-CN.md:\n%s", i+1, want[i], have[i])
		}
	}
	commands := func(text string) (list []string) {
		for _, line := range indented.FindAllString(fenced.ReplaceAllString(text, ""), -1) {
			line = strings.TrimSpace(line)
			if c := comment.FindStringIndex(line); c != nil {
				line = line[:c[0]]
			}
			list = append(list, line)
		}
		return list
	}
	in, out := commands(english), commands(chinese)
	for i := range max(len(in), len(out)) {
		var a, b string
		if i < len(in) {
			a = in[i]
		}
		if i < len(out) {
			b = out[i]
		}
		if a != b && !strings.HasPrefix(a, b+" ") { // in English a long command may stand one blank before its text
			t.Fatalf("command %d is %q in README.md and %q in README.zh-CN.md: add it there, with its text in Chinese", i+1, a, b)
		}
	}
}

// Nothing that a user reads speaks of sources that only the authors know, nor in
// riddles: rooms for packages, doors for listeners, offices for leaders.
func TestDocsUsePlainWords(t *testing.T) {
	insider := regexp.MustCompile(`\bS[0124]\b|[Tt]he documents?\b|[Dd]ocument S|\b[Rr]ooms?\b|\boffices?\b|\bgraves?\b|\bpetitions?\b|\bso many\b|\bdecider|\b[Dd]oors?\b|\btempers?\b|\b[Ss]hy\b`)
	for path, text := range pages(t) {
		if path == "CHANGELOG.md" {
			continue
		}
		for i, line := range strings.Split(text, "\n") {
			if m := insider.FindString(line); m != "" {
				t.Errorf("%s:%d says %q: %s", path, i+1, m, line)
			}
		}
	}
}

// Comments name a number (n, bytes, ranks) instead of saying "so many".
func TestCommentsNameNumbers(t *testing.T) {
	vague := regexp.MustCompile(`\bso(?: |\n\s*// )many\b`)
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || path == "docs_test.go" || path == "app/cli/words_test.go" {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if at := vague.FindIndex(b); at != nil {
			t.Errorf("%s:%d says \"so many\": name the number", path, 1+bytes.Count(b[:at[0]], []byte("\n")))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Words that mean something special here are in the glossary, each at the beginning of a paragraph.
func TestGlossaryExplainsHouseWords(t *testing.T) {
	text, err := os.ReadFile("docs/reference/glossary.md")
	if err != nil {
		t.Fatal(err)
	}
	explained := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\*\*([^*]+)\*\*`).FindAllStringSubmatch(string(text), -1) {
		for word := range strings.SplitSeq(m[1], ", ") {
			explained[word] = true
		}
	}
	for _, word := range []string{"agent", "board", "bound", "canonical", "class", "culprit", "digest", "drift", "drill", "epoch", "factor",
		"finding", "flat", "flight recorder",
		"goodput", "heir", "incident", "lab", "layout", "lease", "lock", "mirror", "mode", "network plan", "notice", "observer", "pack",
		"program", "region", "rendezvous", "round", "script",
		"seat", "shrink", "slab", "slot", "spare", "step", "tenant", "tier", "token", "undo", "window", "witness"} {
		if !explained[word] {
			t.Errorf("docs/reference/glossary.md does not explain %q", word)
		}
	}
}

// Words that people write in docs, code blocks included, may only become fewer: lower the number when you shorten a page. Generated
// pages and tables of measurements do not count.
const (
	docWords     = 30000
	wordHeadroom = 600 // so far the count may lie below the recorded one before it must be lowered
)

// generatedPages are those that a test or a make target writes.
var generatedPages = []string{"docs/reference/commands.md", "docs/reference/http-objects.md", "docs/reference/accuracy.md",
	"docs/reference/plan-accuracy.md", "docs/reference/serve-accuracy.md"}

// countWords counts what has a letter or a digit: bars and rules of tables are no words.
func countWords(text string) int {
	n := 0
	for word := range strings.FieldsSeq(text) {
		if strings.ContainsFunc(word, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
			n++
		}
	}
	return n
}

func TestDocsOnlyBecomeShorter(t *testing.T) {
	n := 0
	shelves := map[string]int{}
	for path, text := range pages(t) {
		if !strings.HasPrefix(path, "docs/") || strings.HasPrefix(path, "docs/reference/tables/") || slices.Contains(generatedPages, path) {
			continue
		}
		words := countWords(text)
		n += words
		shelves[filepath.Dir(path)] += words
	}
	t.Logf("%d words: %v", n, shelves)
	switch {
	case n > docWords:
		t.Errorf("docs have %d words that people wrote, and at most %d are allowed: shorten a page, or put measurements into docs/reference/tables",
			n, docWords)
	case n < docWords-wordHeadroom:
		t.Errorf("docs have %d words that people wrote: well done; write %d for docWords", n, n)
	}
	if got := countWords("| `a` | two words |\n|---|---|"); got != 3 {
		t.Errorf("a table's row has %d words, want 3", got)
	}
}
