package doctor_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/doctor/read"
)

// calls is a log of a job of eight ranks that prints every collective. Rank 5 stops 40 before the others.
func calls(n int) string {
	var b strings.Builder
	for r := range 8 {
		b.WriteString(initDone(r, 8))
	}
	for op := range n {
		for r := range 8 {
			if r != 5 || op < n-40 {
				fmt.Fprintf(&b, "n%d:%d:%d [%d] NCCL INFO AllReduce: opCount %x sendbuff 0x7f8a00000000 recvbuff 0x7f8a10000000 count 16777216 datatype 7 op 0 root 0 comm 0x55d2c0%02d [nranks=8] stream 0x55f0a0\n", r/4, 4100+r, 4200+r, r%4, op, r)
			}
		}
	}
	return b.String()
}

// However long a log of collectives is, what is kept of it has a bound, is in order, and tells who stopped.
func TestCallsAreKeptInABound(t *testing.T) {
	kept := 0
	for _, n := range []int{200, 1000, 8000} {
		c := &doctor.Case{}
		if err := read.File(c, "job.log", "", strings.NewReader(calls(n))); err != nil {
			t.Fatal(err)
		}
		read.Finish(c)
		if !slices.IsSortedFunc(c.Lines, func(a, b doctor.Line) int { return a.At.Line - b.At.Line }) {
			t.Errorf("%d calls: lines are not in order", n)
		}
		if n > 1000 && len(c.Lines) != kept {
			t.Errorf("%d calls a rank: %d lines are kept, %d of a shorter log", n, len(c.Lines), kept)
		}
		kept = len(c.Lines)
		r := doctor.Diagnose(c, doctor.Options{})
		if r.Hang == nil || !slices.Equal(r.Hang.Culprits, []int{5}) || r.Hang.Class != "behind" {
			t.Errorf("%d calls: %s", n, r.Verdict)
		}
	}
}
