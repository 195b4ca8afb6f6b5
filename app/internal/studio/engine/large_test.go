package engine

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/predict/sim"
)

// A ring's time, carried on from short ones, is that of the simulated ring.
func TestLongRingsAreEstimated(t *testing.T) {
	file := File{"hosts: {\"n[0-63]\": {kind: dgx-h100}}\nfabric: {family: rail, switch: QM9700, pod: 8}\n"}
	j := &job{e: New(Default()), ctx: t.Context(), tell: func(Progress) {}}
	for _, op := range []string{"all-reduce", "all-gather"} {
		a, err := j.read(Collective{File: file, Op: op, Bytes: 1 << 28, Algo: "ring"})
		must(t, err)
		if n := shortRing(a); n != 128 {
			t.Fatalf("two pods of 8 hosts with 8 GPUs give rings of %d ranks", n)
		}
		work, _, err := a.named("ring")
		must(t, err)
		exact, err := sim.Run(a.c.Graph, []sim.Job{work}, a.o)
		must(t, err)
		got, notes, err := j.estimated(a, "ring", work)
		must(t, err)
		if off := math.Abs(float64(got.Result.Time)/float64(exact.Time) - 1); off > .02 {
			t.Errorf("%s: estimated %v, simulated %v: %.2f%% off", op, got.Result.Time, exact.Time, 100*off)
		}
		if len(notes) != 1 || !strings.Contains(notes[0], "128 and 256 GPUs") || !a.estimate {
			t.Errorf("%s: the estimate says %q", op, notes)
		}
	}
}

// Where everybody sends to everybody on thousands of GPUs, the answer comes at once and names algorithms that finish.
func TestTooManyMessagesAreRefused(t *testing.T) {
	q := Collective{File: File{"hosts: {\"n[0-511]\": {kind: dgx-h100}}\nfabric: {family: rail, switch: QM9700, pod: 32}\n"}, Op: "all-reduce",
		Bytes: 1 << 28, Algo: "direct"}
	began := time.Now()
	err := do(t, New(Default()), "simulate", q, nil)
	if err == nil || !strings.Contains(err.Error(), "direct on 4,096 GPUs has too many messages") ||
		!strings.Contains(err.Error(), "choose hierarchical, rabenseifner") {
		t.Errorf("the answer after %v is %v", time.Since(began), err)
	}
}
