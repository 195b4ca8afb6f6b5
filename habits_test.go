package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/app/cli"
	"github.com/weft-fabric/weft/internal/bounded"
)

// targets reads the Makefile: what it has rules for, what it declares and what its head explains.
func targets(t *testing.T) (rules, phony, explained []string) {
	t.Helper()
	text, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if m := regexp.MustCompile(`^# make ([a-z-]+)\s`).FindStringSubmatch(line); m != nil {
			explained = append(explained, m[1])
		}
		if rest, ok := strings.CutPrefix(line, ".PHONY:"); ok {
			phony = append(phony, strings.Fields(rest)...)
		} else if m := regexp.MustCompile(`^([a-z][a-z-]*):([^=]|$)`).FindStringSubmatch(line); m != nil {
			rules = append(rules, m[1])
		}
	}
	return rules, phony, explained
}

// Every target is declared, and the Makefile's head explains those that people call.
func TestMakefileTargets(t *testing.T) {
	rules, phony, explained := targets(t)
	for _, r := range rules {
		if !slices.Contains(phony, r) {
			t.Errorf("target %q is not in .PHONY", r)
		}
	}
	for _, p := range append(phony, explained...) {
		if !slices.Contains(rules, p) {
			t.Errorf("target %q is named in the Makefile and has no rule", p)
		}
	}
	for _, want := range []string{"quick", "test", "race", "dist", "lint", "cross", "bench", "fuzz"} {
		if !slices.Contains(explained, want) {
			t.Errorf("the Makefile's head does not explain 'make %s'", want)
		}
	}
}

// Every 'make TARGET' of a page exists, and CI runs the README's test command.
func TestPagesNameTargetsThatExist(t *testing.T) {
	rules, _, _ := targets(t)
	pages, err := filepath.Glob("docs/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages, "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "README.zh-CN.md") {
		text, err := os.ReadFile(page)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("(?m)(?:^ *|`)make ([a-z][a-z-]+)").FindAllStringSubmatch(string(text), -1) {
			if !slices.Contains(rules, m[1]) {
				t.Errorf("%s says 'make %s'; the Makefile has no such target", page, m[1])
			}
		}
	}
	ci, err := os.ReadFile(".ci/run")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(ci), "exec make test\n") {
		t.Error("CI does not run 'make test', which the README names as the test command")
	}
}

// Every verb that the README shows exists. docs/reference/commands.md has all of them.
func TestReadmeNamesVerbsThatExist(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile("(?:go run \\.|`weft) ([a-z]+)(?: ([a-z]+))?").FindAllStringSubmatch(string(text), -1)
	if len(shown) < 10 {
		t.Fatalf("the README shows %d commands", len(shown))
	}
	for _, m := range shown {
		path := m[1:2]
		if m[1] == "topo" || m[1] == "algo" || m[1] == "sim" || m[1] == "ckpt" || m[1] == "xfer" {
			path = m[1:]
		}
		var out, errs bytes.Buffer
		if code := cli.Main(append(slices.Clone(path), "--help"), nil, &out, &errs); code != 0 ||
			!strings.Contains(out.String(), "weft "+strings.Join(path, " ")) {
			t.Errorf("the README shows 'weft %s'; there is no such verb", strings.Join(path, " "))
		}
	}
}

// Tests start processes by package bounded, or with a context and a limit for output that another process
// holds: a process that hangs would hang the whole run.
func TestProcessesOfTestsAreBounded(t *testing.T) {
	unbounded := map[string]string{
		"run/launch/launch_test.go": "what ranks of the tests start, which the tests end",
		"internal/bounded":          "the processes that it is tried on",
	}
	for _, pkg := range packages(t) {
		files, err := filepath.Glob(filepath.Join(pkg, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			text := string(b)
			_, allowed := unbounded[name]
			if _, ok := unbounded[pkg]; ok {
				allowed = true
			}
			switch {
			case name == "habits_test.go" || allowed:
			case regexp.MustCompile(`exec\.Command(Context)?\(`).MatchString(text) && !strings.Contains(text, "WaitDelay"):
				t.Errorf("%s starts a process without a limit; use bounded.Command, or bounded.Server for one that serves", name)
			}
		}
	}
}

// The code that CONTRIBUTING.md shows for an algorithm and for a dialect compiles where it is to stand.
func TestContributingCompiles(t *testing.T) {
	text, err := os.ReadFile("CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, m := range regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		switch code := m[1]; {
		case strings.HasPrefix(code, "package algo"):
			files["collective/algo/contributed.go"] = code
		case strings.HasPrefix(code, "package format"):
			files["model/topo/format/contributed.go"] = code
		case strings.HasPrefix(code, "{"):
			files["model/topo/format/rows.go"] = "package format\n\nvar _ = []Dialect{\n" + code + "}\n"
		}
	}
	if len(files) != 3 {
		t.Fatalf("CONTRIBUTING.md has code for %d files; want an algorithm, a dialect and its rows", len(files))
	}
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, code := range files {
		at := filepath.Join(dir, strings.ReplaceAll(name, "/", "-"))
		if err := os.WriteFile(at, []byte(code), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay.Replace[filepath.Join(here, name)] = at
	}
	list, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(at, list, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := bounded.Within(t, bounded.Build, "go", "build", "-overlay", at, "./collective/algo",
		"./model/topo/format").CombinedOutput(); err != nil {
		t.Errorf("go build: %v\n%s", err, out)
	}
}

// A test waits for an event, or with bounded.Until for what tells nobody. It sleeps where time is what it is about: a fault that
// lasts, a peer that is slow. Then the line says so. Below synctest no time passes.
func TestSleepsSayWhatFor(t *testing.T) {
	sleeps := regexp.MustCompile(`\btime\.Sleep\(`)
	for path, text := range sources(t) {
		if !strings.HasSuffix(path, "_test.go") || path == "habits_test.go" || strings.Contains(text, `"testing/synctest"`) {
			continue
		}
		n := 0
		for line := range strings.Lines(text) {
			n++
			_, what, said := strings.Cut(line, " // ")
			if sleeps.MatchString(line) && (!said || strings.HasPrefix(strings.TrimSpace(line), "for ") || strings.Contains(what, "between looks")) {
				t.Errorf("%s:%d: time.Sleep without a word about what takes this time; to wait for something use a channel or bounded.Until", path, n)
			}
		}
	}
}
