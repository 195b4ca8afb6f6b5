package cost

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/unit"
)

// TestSelectIsTheMinimum against a plain search, for random models and sizes.
func TestSelectIsTheMinimum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := AlphaBeta{rapid.Float64Range(0, 20).Draw(t, "launch"), rapid.Float64Range(.01, 50).Draw(t, "alpha"),
			rapid.Float64Range(1e-7, 1e-2).Draw(t, "beta"), rapid.Float64Range(0, 1e-3).Draw(t, "gamma"),
			rapid.Float64Range(.4, 2).Draw(t, "overlap")}
		op := rapid.SampledFrom(sched.Collectives()).Draw(t, "op")
		n := rapid.IntRange(1, 4096).Draw(t, "n")
		bytes := unit.Bytes(rapid.Int64Range(0, 1<<40).Draw(t, "bytes"))
		algos, err := Algos(op, n)
		if err != nil {
			t.Fatal(err)
		}
		s, err := Select(m, algos, bytes)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range algos {
			if v := m.Time(a.Cost(bytes)); v < s.Time {
				t.Fatalf("%s takes %s, less than %s of %s", a.Name, v, s.Time, s.Name)
			}
		}
		for i, turn := range s.Turns {
			if got := rank(m, algos, turn.From)[0].Name; got != turn.Name {
				t.Fatalf("at %s %s is cheapest, not %s", turn.From, got, turn.Name)
			}
			if i > 0 && rank(m, algos, turn.From-1)[0].Name != s.Turns[i-1].Name {
				t.Fatalf("just below %s the cheapest is not %s", turn.From, s.Turns[i-1].Name)
			}
		}
		if s.Reason == "" || s.Change == "" {
			t.Fatalf("%+v", s)
		}
	})
}

// TestTextbookCrossover: ring against recursive doubling on 8 ranks with alpha
// 10 us and 10 GB/s. 14 a + 1.75 S b = 3 a + 3 S b at S = 11 a / (1.25 b) = 880 kB.
func TestTextbookCrossover(t *testing.T) {
	algos, err := Algos(sched.AllReduce, 8)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Select(AlphaBeta{Alpha: 10, Beta: 1e-4}, []Algo{algos[0], algos[2]}, unit.MiB)
	if err != nil {
		t.Fatal(err)
	}
	if s.Name != "ring" || len(s.Turns) != 2 || math.Abs(float64(s.Turns[1].From)-880000) > 2 {
		t.Errorf("%s, turns %v", s.Name, s.Turns)
	}
	if want := fmt.Sprintf("below %s recursive-doubling is cheaper", s.Turns[1].From); s.Change != want {
		t.Errorf("%q, want %q", s.Change, want)
	}
}

func TestSelectRefuses(t *testing.T) {
	if _, err := Select(AlphaBeta{}, nil, 8); err == nil {
		t.Error("no algorithms are accepted")
	}
	if _, err := Algos(sched.AllReduce, 0); err == nil {
		t.Error("no ranks are accepted")
	}
	if _, err := Algos(sched.Collective(99), 4); err == nil {
		t.Error("an unknown collective is accepted")
	}
}
