package doctor_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
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
				fmt.Fprintf(&b,
					"n%d:%d:%d [%d] NCCL INFO AllReduce: opCount %x sendbuff 0x7f8a00000000 recvbuff 0x7f8a10000000 count 16777216 datatype 7 op 0 root 0 comm 0x55d2c0%02d [nranks=8] stream 0x55f0a0\n",
					r/4, 4100+r, 4200+r, r%4, op, r)
			}
		}
	}
	return b.String()
}

// A collective's line is read in one way, whatever stands before it and however many there are: an escape sequence, which
// readers drop, makes a line take the way of all others.
func TestCallsAreReadAlike(t *testing.T) {
	heads := []string{"", "[1,3]<stderr>: ", "2026-10-02T03:14:07.118Z ", "[rank2]: ", "(Worker pid=9) ", "7: ", "pod-3: "}
	rng := rand.New(rand.NewPCG(5, 9))
	var plain, marked strings.Builder
	for i := range 400 {
		r := rng.IntN(4)
		l := heads[rng.IntN(len(heads))] + fmt.Sprintf("n%d.dc1:%d:%d [%d] NCCL INFO %s: opCount %x sendbuff 0x7f8a00000000 recvbuff 0x7f8a10000000 count %d datatype 7 op 0 root 0 comm 0x55d2c0%02d [nranks=8] stream 0x55f0a0",
			r/2, 41+r, 42+r, r%2, []string{"AllReduce", "AllGather", "Broadcast"}[rng.IntN(3)], i, rng.IntN(1000), r)
		if rng.IntN(20) == 0 {
			l += l // two processes in one line
		}
		plain.WriteString(l + "\n")
		marked.WriteString(l + "\x1b[0m\n")
	}
	var cases [2]doctor.Case
	for i, text := range []string{plain.String(), marked.String()} {
		if err := read.File(&cases[i], "job.log", "", strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
	}
	if a, b := cases[0].Lines, cases[1].Lines; len(a) < 400 || !reflect.DeepEqual(a, b) {
		t.Errorf("%d lines, %d the slow way", len(a), len(b))
		for i := range min(len(a), len(b)) {
			if !reflect.DeepEqual(a[i], b[i]) {
				t.Fatalf("%+v\n%+v", a[i], b[i])
			}
		}
	}
}

// However many lines a log has of how NCCL connects, tunes or waits, what is kept of them has a bound, and a warning behind
// them is found.
func TestInfoIsKeptInABound(t *testing.T) {
	var b strings.Builder
	b.WriteString(initDone(0, 8))
	for i := range 300_000 {
		switch i % 3 {
		case 0:
			fmt.Fprintf(&b, "n0:4100:4200 [0] NCCL INFO Channel %02d/0 : 0[0] -> 4[0] [send] via NET/IB/%d/GDRDMA\n", i%32, i%8)
		case 1:
			fmt.Fprintf(&b, "n0:4100:4200 [0] NCCL INFO AllReduce: %d Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..15}\n", i)
		default:
			fmt.Fprintf(&b, "n0:4100:4200 [0] NCCL INFO proxy.cc:1220 progress state %d\n", i)
		}
	}
	b.WriteString("\nn0:4100:4200 [0] transport/net_ib.cc:94 NCCL WARN NET/IB : mlx5_2:1 Got async event : port error\n")
	c := &doctor.Case{}
	if err := read.File(c, "job.log", "", strings.NewReader(b.String())); err != nil {
		t.Fatal(err)
	}
	if len(c.Lines) > 70_000 {
		t.Errorf("%d lines are kept", len(c.Lines))
	}
	if l := c.Lines[len(c.Lines)-1]; !l.Warn || l.Kind != "ib_async" || l.At.Line != 300_003 {
		t.Errorf("the last line is %+v", l)
	}
	for _, n := range c.Files[0].Notes {
		if n.Kind == doctor.Cut {
			t.Errorf("the file's end was read, and it says: %s", n.Text)
		}
	}
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
