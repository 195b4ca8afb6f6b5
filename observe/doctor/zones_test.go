package doctor_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// A host whose clock is in another zone is not the one that failed first. The same failure with both hosts in one zone must
// be judged alike.
func TestFirstFailureAcrossZones(t *testing.T) {
	table := func(rank int, host, at string) string {
		return fmt.Sprintf("Root Cause (first observed failure):\n[0]:\n  time      : 2026-06-03_%s\n  host      : %s\n  rank      : %d (local_rank: 0)\n  exitcode  : 3 (pid: %d)\n",
			at, host, rank, 4100+rank)
	}
	gaveUp := func(hour string, ranks ...int) string {
		var b strings.Builder
		for _, r := range ranks {
			b.WriteString(strings.ReplaceAll(timedOut(r, 14728, "ALLREDUCE", 16777216), "E1119 13:21:12", "E603 "+hour+":41:09"))
		}
		return b.String()
	}
	for _, hour := range []string{"12", "07", "18"} { // of the second host: in the same zone, behind, ahead
		files := map[string]string{
			"n0.log": initDone(0, 8) + gaveUp("12", 1, 2, 3) + table(0, "n0", "12:31:02"),
			"n1.log": initDone(4, 8) + gaveUp(hour, 4, 5, 6, 7) + table(4, "n1", hour+":41:11"),
		}
		r := diagnose(t, files)
		f := found(r, "process-died")
		if f == nil || !slices.Equal(f.Subject.Ranks, []int{0}) {
			t.Errorf("with the second host at %s h: %s", hour, r.Verdict)
		}
	}
}
