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

// A rank dies, the launcher leaves the others alone, and they finish without it.
func TestSurvivorsFinish(t *testing.T) {
	program := filepath.Join(t.TempDir(), "survive")
	if out, err := bounded.Within(t, bounded.Build, "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, transport := range []string{"shm", "tcp"} {
		var stdout, stderr bytes.Buffer
		var failed []int
		ctx, cancel := context.WithTimeout(t.Context(), bounded.Limit)
		defer cancel()
		res, err := launch.Run(ctx, launch.Spec{N: 4, Command: []string{program}, Stdout: &stdout, Stderr: &stderr, KeepGoing: true,
			Env: []string{"WEFT_TRANSPORT=" + transport}, Failed: func(e launch.Exit, _ int) { failed = append(failed, e.Rank) }})
		if err != nil || len(failed) != 1 || failed[0] != 1 || res.Exits[1].Signal == 0 {
			t.Fatalf("%s: %v, failed %v\n%s%s", transport, err, failed, &stdout, &stderr)
		}
		for _, line := range []string{"step 5: 4 ranks", "rank 1 died", "step 10: 3 ranks"} {
			if !strings.Contains(stdout.String(), line) {
				t.Errorf("%s: no line %q in\n%s", transport, line, &stdout)
			}
		}
	}
}
