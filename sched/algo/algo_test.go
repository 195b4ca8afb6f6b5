package algo_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/sched/algo"
	"github.com/weft-fabric/weft/sched/verify"
)

// Every algorithm is proven for every collective it serves at every count up to
// 33, at every root it may have up to 9, with one channel and with two.
func TestEveryAlgorithmIsProven(t *testing.T) {
	for _, a := range algo.All() {
		for _, op := range a.Ops {
			t.Run(a.Name+"/"+op.String(), func(t *testing.T) {
				for n := 1; n <= 33; n++ {
					for root := 0; root < n && (root == 0 || op.Rooted() && n <= 9); root++ {
						for _, ch := range []int{1, 2} {
							spec := algo.Spec{Op: op, Ranks: n, Root: root, Channels: ch}
							if a.Fits != nil && a.Fits(spec) != nil {
								continue
							}
							p, err := a.Program(spec)
							if err != nil {
								t.Fatalf("n=%d root=%d: %v", n, root, err)
							}
							if _, err := verify.Program(p); err != nil {
								t.Fatalf("n=%d root=%d channels=%d: %+v\n%s", n, root, ch, err, p)
							}
							again, err := sched.Parse(p.String())
							if err != nil || again.String() != p.String() || again.Digest() != p.Digest() {
								t.Fatalf("n=%d: text does not round-trip: %v\n%s", n, err, p)
							}
						}
					}
				}
			})
		}
	}
}

// The size of a ring's program does not depend on the number of ranks.
func TestRingTextHasOneSize(t *testing.T) {
	ring, _ := algo.Find("ring")
	lines := func(n int) int {
		p, err := ring.Program(algo.Spec{Op: sched.AllReduce, Ranks: n})
		if err != nil {
			t.Fatal(err)
		}
		return len(fmt.Sprint(p))
	}
	if a, b := lines(8), lines(100000); b-a > 8 {
		t.Errorf("8 ranks: %d bytes, 100,000 ranks: %d", a, b)
	}
}

// Rotation proves what unrolling proves, and refuses what it refuses.
func TestRotationAgreesWithUnrolling(t *testing.T) {
	ring, _ := algo.Find("ring")
	for _, op := range []sched.Collective{sched.AllReduce, sched.ReduceScatter, sched.AllGather} {
		for n := 65; n <= 70; n++ {
			p, err := ring.Program(algo.Spec{Op: op, Ranks: n, Pieces: 1 + n%3, Channels: 1 + n%2})
			if err != nil {
				t.Fatal(err)
			}
			fast, err := verify.Program(p)
			if err != nil {
				t.Fatal(err)
			}
			slow, err := verify.Unrolled(p)
			if err != nil {
				t.Fatal(err)
			}
			if fast.Method != "rotation" || fast.Steps != slow.Steps || fast.MaxSent != slow.MaxSent || fast.Actions != slow.Actions {
				t.Errorf("n=%d %s: %+v against %+v", n, op, fast, slow)
			}
		}
	}
	p, err := ring.Program(algo.Spec{Op: sched.AllReduce, Ranks: 100000})
	if err != nil {
		t.Fatal(err)
	}
	rep, err := verify.Program(p)
	if err != nil || rep.Steps != 2*99999 || rep.MaxSent != 2*99999 {
		t.Fatalf("%+v, %v", rep, err)
	}
	if _, err := verify.Unrolled(p); !errors.Is(err, verify.ErrTooLarge) {
		t.Error(err)
	}
}
