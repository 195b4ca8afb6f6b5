package main

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/launch"
)

func TestRunsOnFourRanks(t *testing.T) {
	program := filepath.Join(t.TempDir(), "allreduce")
	if out, err := bounded.Within(t, bounded.Build, "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var stdout, stderr bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), bounded.Limit)
	defer cancel()
	if _, err := launch.Run(ctx, launch.Spec{N: 4, Command: []string{program}, Stdout: &stdout, Stderr: &stderr, Prefix: true}); err != nil {
		t.Fatalf("%v: %s", err, &stderr)
	}
	for _, line := range []string{"rank 3 of 4 over shm: mean 2.5", "rank 1 is 0 of 2 in its half, whose ranks add up to 4"} {
		if !strings.Contains(stdout.String(), line) {
			t.Errorf("no line %q in\n%s", line, &stdout)
		}
	}
}
