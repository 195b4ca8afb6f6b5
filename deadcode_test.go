package main

import (
	"os/exec"
	"strings"
	"testing"
)

// What no command reaches, and why it is kept. Each entry is the beginning of a
// path, or path:function.
var unreached = []struct{ what, why string }{
	// Packages that tests and pages are made with.
	{"internal/cases/", "worked figures; the test of docs/reference-cases.md computes them"},
	{"member/simulation/", "10,000 machines in virtual time; makes the figures of docs/membership.md"},
	{"transport/conform/", "what every transport is tested with"},
	{"transport/tcp/nslab/", "hosts as network namespaces, for tests"},
	{"sched/mem/", "programs on plain slices: the reference that runs are compared with"},

	// The library: Go programs call these, weft's own commands do not.
	{"comm/", "the library's API"},
	{"coord/", "the library's API"},
	{"topo/diff.go", "the library's API"},
	{"topo/project.go", "the library's API"},
	{"train/", "the library's API"},
	{"reduce/", "the library's API"},
	{"member/", "the machine's API: the simulation uses all of it"},

	// To be looked at one by one.
	{"draw/", ""}, {"launch/", ""}, {"sched/verify/", ""}, {"sim/", ""}, {"topo/catalog/", ""}, {"topo/format/", ""},
	{"tune/", ""}, {"unit/", ""}, {"up/", ""},
}

// Code that no command reaches is deleted, or named above.
func TestNoDeadCode(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 20 s")
	}
	out, err := exec.Command("go", "tool", "deadcode", "./...").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	used := make([]bool, len(unreached))
lines:
	for line := range strings.Lines(string(out)) {
		// transport/tcp/nslab/nslab.go:41:6: unreachable func: New
		place, name, ok := strings.Cut(strings.TrimSpace(line), ": unreachable func: ")
		if !ok {
			t.Fatalf("deadcode printed %q", line)
		}
		file, _, _ := strings.Cut(place, ":")
		for i, x := range unreached {
			if strings.HasPrefix(file+":"+name, x.what) {
				used[i] = true
				continue lines
			}
		}
		t.Errorf("%s: no command reaches %s; delete it, or name it in deadcode_test.go with the reason", place, name)
	}
	for i, x := range unreached {
		if !used[i] {
			t.Errorf("deadcode_test.go keeps %q, of which everything is reached; take it off the list", x.what)
		}
	}
}
