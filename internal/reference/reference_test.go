package reference_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/internal/reference"
	"pgregory.net/rapid"
)

// shape draws an algorithm's parameters for a collective.
func shape(t *rapid.T, a *algo.Algorithm, op sched.Collective, n, root int) (algo.Spec, bool) {
	s := algo.Spec{Op: op, Ranks: n, Root: root,
		Channels: rapid.IntRange(1, 3).Draw(t, "channels"), Pieces: rapid.IntRange(0, 3).Draw(t, "pieces"),
		Local: rapid.SampledFrom([]int{0, 1, 2, 3, 4, 8}).Draw(t, "local"), Aggregate: rapid.SampledFrom([]int{0, 1, 2, 4}).Draw(t, "aggregate")}
	if rapid.Bool().Draw(t, "placed") {
		for range s.Channels {
			order := make([]sched.Rank, n)
			for i := range order {
				order[i] = sched.Rank(i)
			}
			s.Orders = append(s.Orders, rapid.Permutation(order).Draw(t, "order"))
		}
	}
	return s, a.Fits == nil || a.Fits(s) == nil
}

// Two algorithms of one collective, on any shapes and in any order of steps,
// give what the collective promises, to the last bit of integers.
func TestAlgorithmsAgree(t *testing.T) {
	for _, op := range sched.Collectives() {
		if op == sched.Barrier {
			continue
		}
		var serving []*algo.Algorithm
		for _, a := range algo.All() {
			if a.Serves(op) {
				serving = append(serving, a)
			}
		}
		t.Run(op.String(), rapid.MakeCheck(func(t *rapid.T) {
			n := rapid.IntRange(1, 20).Draw(t, "ranks")
			root := 0
			if op.Rooted() {
				root = rapid.IntRange(0, n-1).Draw(t, "root")
			}
			var programs []*sched.Program
			length := n * 12
			for range 2 {
				a := rapid.SampledFrom(serving).Draw(t, "algorithm")
				s, ok := shape(t, a, op, n, root)
				if !ok {
					continue
				}
				p, err := a.Program(s)
				if err != nil {
					t.Fatal(err)
				}
				programs = append(programs, p)
			}
			if len(programs) == 0 {
				t.Skip()
			}
			for _, p := range programs {
				length = lcm(length, p.NumChunks(sched.In))
			}
			rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
			in := make([][]int64, n)
			for r := range in {
				for range length {
					in[r] = append(in[r], rng.Int64N(1<<40))
				}
			}
			want := reference.Promised(op, root, in)
			for _, p := range programs {
				for _, pick := range []func(int) int{nil, rng.IntN} {
					got, err := reference.Run(p, in, pick)
					if err != nil {
						t.Fatalf("%v\n%s", err, p)
					}
					for r := range want {
						if want[r] != nil && !slices.Equal(got[r], want[r]) {
							t.Fatalf("rank %d of %s is wrong\n%s", r, p.Name, p)
						}
					}
				}
			}
		}))
	}
}

func lcm(a, b int) int {
	x, y := a, b
	for y > 0 {
		x, y = y, x%y
	}
	return a / x * b
}

// All ranks of an all-reduce end with the same bits, also where the order of
// addition matters.
func TestSameBitsEverywhere(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	for _, a := range algo.All() {
		if !a.Serves(sched.AllReduce) {
			continue
		}
		for _, n := range []int{2, 3, 5, 8, 12, 13} {
			p, err := a.Program(algo.Spec{Op: sched.AllReduce, Ranks: n, Channels: 2})
			if err != nil {
				continue
			}
			in := make([][]float32, n)
			for r := range in {
				for range p.NumChunks(sched.In) * 5 {
					in[r] = append(in[r], rng.Float32()*float32(uint(1)<<rng.UintN(20)))
				}
			}
			var first [][]float32
			for range 3 {
				out, err := reference.Run(p, in, rng.IntN)
				if err != nil {
					t.Fatal(a.Name, err)
				}
				if first == nil {
					first = out
				}
				for r := range out {
					if !slices.Equal(out[r], first[0]) {
						t.Fatalf("%s, %d ranks: rank %d has other bits than rank 0", a.Name, n, r)
					}
				}
			}
		}
	}
}

func TestBadInputIsNamed(t *testing.T) {
	ring, err := algo.Find("ring")
	if err != nil {
		t.Fatal(err)
	}
	p, err := ring.Program(algo.Spec{Op: sched.AllReduce, Ranks: 3})
	if err != nil {
		t.Fatal(err)
	}
	for want, in := range map[string][][]int64{
		"2 inputs for 3 ranks":                  {{1}, {2}},
		"input 0 has 2 elements":                {{1, 2}, {1, 2}, {1, 2}},
		"input 2 has 6 elements; want the same": {{1, 2, 3}, {1, 2, 3}, {1, 2, 3, 4, 5, 6}},
	} {
		if _, err := reference.Run(p, in, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
