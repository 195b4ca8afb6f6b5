package main

import (
	"strings"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/release"
)

// A binary of a release says its version, commit and time, whatever Go knows of the checkout.
func TestReleaseSaysItsVersion(t *testing.T) {
	cmd := bounded.Within(t, bounded.Build, "go", "run", "-buildvcs=false", "-ldflags="+release.Flags("v1.2.3", "abc", "2026-11-16T00:00:00Z"),
		"./testdata/says")
	out, err := cmd.Output()
	if want := "v1.2.3 abc 2026-11-16T00:00:00Z v1.2.3"; err != nil || strings.TrimSpace(string(out)) != want {
		t.Errorf("%q, %v; want %q", out, err, want)
	}
}

// The library in a release's wheel has the stamp of its binaries.
func TestLibraryHasTheStamp(t *testing.T) {
	stamp := release.Flags("v1.2.3", "abc", "2026-11-16T00:00:00Z")
	cmd := bounded.Command(t, "make", append([]string{"-n", "-C", "../.."}, makeLibrary("libweft.so", stamp)...)...)
	out, err := cmd.Output()
	if err != nil || !strings.Contains(string(out), "-ldflags '-s -w "+stamp+"' -o libweft.so ") {
		t.Errorf("%v: %s", err, out)
	}
}
