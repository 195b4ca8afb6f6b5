package pipe_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/run/train/pipe"
)

func TestOrdersAsDrawn(t *testing.T) {
	for _, v := range []struct {
		k             pipe.Kind
		stage, stages int
		want          string
	}{
		{pipe.GPipe, 0, 2, "F0 F1 F2 F3 B0 B1 B2 B3"},
		{pipe.OneFOneB, 0, 2, "F0 F1 B0 F2 B1 F3 B2 B3"},
		{pipe.OneFOneB, 1, 2, "F0 B0 F1 B1 F2 B2 F3 B3"},
		{pipe.OneFOneB, 0, 4, "F0 F1 F2 F3 B0 B1 B2 B3"},
		{pipe.OneFOneB, 2, 4, "F0 F1 B0 F2 B1 F3 B2 B3"},
		{pipe.OneFOneB, 0, 1, "F0 B0 F1 B1 F2 B2 F3 B3"},
	} {
		var got []string
		for _, o := range v.k.Ops(v.stage, v.stages, 4) {
			got = append(got, o.String())
		}
		if s := strings.Join(got, " "); s != v.want {
			t.Errorf("%s stage %d of %d: %s, want %s", v.k, v.stage, v.stages, s, v.want)
		}
	}
}

// Every schedule ends, keeps no more activations than it says, takes every
// micro-batch once each way, and is idle for exactly (p-1)/(m+p-1) where stages are
// equal and transfers free. (With fewer micro-batches than stages 1F1B is GPipe.)
func TestBubbleIsItsFormula(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.SampledFrom([]pipe.Kind{pipe.GPipe, pipe.OneFOneB}).Draw(t, "kind")
		p, m := rapid.IntRange(1, 16).Draw(t, "p"), rapid.IntRange(1, 40).Draw(t, "m")
		f := rapid.Int64Range(1, 100).Draw(t, "forward")
		time, err := k.Simulate(p, m, pipe.Cost{Forward: f, Backward: 2 * f})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := time.Bubble(), pipe.Bubble(p, m); math.Abs(got-want) > 1e-12 {
			t.Fatalf("%s %d stages %d micro-batches: bubble %v, by formula %v", k, p, m, got, want)
		}
		for s := range p {
			kept, most := 0, 0
			count := map[string]int{}
			for _, o := range k.Ops(s, p, m) {
				count[o.String()]++
				if o.Backward {
					kept--
				} else if kept++; kept > most {
					most = kept
				}
			}
			if len(count) != 2*m || kept != 0 || most != k.Kept(s, p, m) {
				t.Fatalf("%s stage %d of %d: %d different passes of %d, %d kept at the end, %d at most of %d",
					k, s, p, len(count), 2*m, kept, most, k.Kept(s, p, m))
			}
		}
	})
}

func TestTransfersLengthenTheBubble(t *testing.T) {
	cost := pipe.Cost{Forward: 10, Backward: 20, Transfer: 3}
	for _, k := range []pipe.Kind{pipe.GPipe, pipe.OneFOneB} {
		time, err := k.Simulate(4, 16, cost)
		if err != nil {
			t.Fatal(err)
		}
		if time.Bubble() <= pipe.Bubble(4, 16) {
			t.Errorf("%s: bubble with transfers is %v", k, time.Bubble())
		}
	}
}

func TestUnknownSchedule(t *testing.T) {
	if err := pipe.Kind("zigzag").Check(); err == nil || !strings.Contains(err.Error(), "known: gpipe, 1f1b") {
		t.Error(err)
	}
}

func ExampleKind_Ops() {
	for s := range 2 {
		fmt.Println(pipe.OneFOneB.Ops(s, 2, 3))
	}
	// Output:
	// [F0 F1 B0 F2 B1 B2]
	// [F0 B0 F1 B1 F2 B2]
}
