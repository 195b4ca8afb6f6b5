package doctor_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
)

// training draws a job: tensor groups of neighbours, data groups across them, a pipeline
// of messages between stages, and the whole world; rounds of operations in which every
// rank takes part in the same order, as a training program does.
func training(rng *rand.Rand) dumpJob {
	tp := 1 << rng.IntN(3)
	pp := 1 + rng.IntN(3)
	dp := 1 + rng.IntN(3)
	for tp*pp*dp < 4 {
		dp++
	}
	n := tp * pp * dp
	j := dumpJob{groups: map[string][]int{}, program: map[int][]step{}, finished: map[int]int{}, issued: map[int]int{}}
	rank := func(t, d, p int) int { return t + tp*(d+dp*p) }
	next := 1
	group := func(ranks []int) string {
		name := fmt.Sprint(next)
		next++
		j.groups[name] = ranks
		return name
	}
	for r := range n {
		j.groups["0"] = append(j.groups["0"], r)
	}
	tpOf, dpOf, ppOf := map[int]string{}, map[int]string{}, map[int]string{}
	if tp > 1 {
		for p := range pp {
			for d := range dp {
				var g []int
				for t := range tp {
					g = append(g, rank(t, d, p))
				}
				name := group(g)
				for _, r := range g {
					tpOf[r] = name
				}
			}
		}
	}
	if dp > 1 {
		for p := range pp {
			for t := range tp {
				var g []int
				for d := range dp {
					g = append(g, rank(t, d, p))
				}
				name := group(g)
				for _, r := range g {
					dpOf[r] = name
				}
			}
		}
	}
	if pp > 1 {
		for d := range dp {
			for t := range tp {
				var g []int
				for p := range pp {
					g = append(g, rank(t, d, p))
				}
				name := group(g)
				for _, r := range g {
					ppOf[r] = name
				}
			}
		}
	}
	seq := map[string]map[int]int{} // of a group, by rank
	add := func(r int, s step) {
		k := s.group
		if s.p2p {
			k += " p2p"
		}
		if seq[k] == nil {
			seq[k] = map[int]int{}
		}
		seq[k][r]++
		s.seq = seq[k][r]
		j.program[r] = append(j.program[r], s)
	}
	layers, micro, rounds := 1+rng.IntN(3), 1+rng.IntN(3), 4+rng.IntN(3)
	world := rng.IntN(2) == 0
	for range rounds {
		for m := range micro {
			for p := range pp {
				for d := range dp {
					for t := range tp {
						r := rank(t, d, p)
						if pp > 1 && p > 0 {
							add(r, step{group: ppOf[r], p2p: true, from: p - 1, to: p, size: 256 + m})
						}
						if tp > 1 {
							for range layers {
								add(r, step{group: tpOf[r], name: "all_gather", size: 64})
								add(r, step{group: tpOf[r], name: "reduce_scatter", size: 64})
							}
						}
						if pp > 1 && p < pp-1 {
							add(r, step{group: ppOf[r], p2p: true, from: p, to: p + 1, size: 256 + m})
						}
					}
				}
			}
		}
		for r := range n {
			if dp > 1 {
				add(r, step{group: dpOf[r], name: "all_reduce", size: 4096})
			}
			if world || dp == 1 {
				add(r, step{group: "0", name: "all_reduce", size: 1})
			}
		}
	}
	return j
}

// fault is what is wrong with one rank from an operation of its program on.
type fault struct {
	class string // host, gpu, dead
	at    int
}

// play runs a job until nothing moves. Ranks issue some operations ahead; each GPU works
// on one operation at a time, in order. A collective ends when the GPUs of all members
// are in it, a message when both ends are. A rank with a broken host issues no more; one
// with a broken GPU sends its part of the operation and never ends it.
func (j dumpJob) play(rng *rand.Rand, faults map[int]fault) dumpJob {
	ahead := 1 + rng.IntN(8)
	at := map[string]map[int]int{} // where an operation is in the program of a rank
	j.at = at
	keys := map[int][]string{}
	j.keys = keys
	for r := range j.program {
		nth := map[string]int{} // messages of a pair are matched by their order
		for i, s := range j.program[r] {
			k := fmt.Sprintf("%s #%d", s.group, s.seq)
			if s.p2p {
				k = fmt.Sprintf("%s %d>%d", s.group, s.from, s.to)
				nth[k]++
				k = fmt.Sprintf("%s #%d", k, nth[k])
			}
			keys[r] = append(keys[r], k)
			if at[k] == nil {
				at[k] = map[int]int{}
			}
			at[k][r] = i
		}
	}
	for moved := true; moved; {
		moved = false
		for r := range j.program {
			limit := min(len(j.program[r]), j.finished[r]+ahead)
			if f, ok := faults[r]; ok && f.class != "gpu" {
				limit = min(limit, f.at)
			}
			if j.issued[r] < limit {
				j.issued[r]++
				moved = true
			}
		}
		// What ends in this moment ends for all members at once.
		end := map[int]bool{}
		for r := range j.program {
			if j.finished[r] >= j.issued[r] {
				continue
			}
			there := true
			for m, i := range at[keys[r][j.finished[r]]] {
				there = there && j.finished[m] >= i && j.issued[m] > i
			}
			if f, ok := faults[r]; ok && f.class == "gpu" && j.finished[r] >= f.at {
				there = false
			}
			end[r] = there
		}
		for r, e := range end {
			if e {
				j.finished[r]++
				moved = true
			}
		}
	}
	return j
}

// Random jobs of training with one to three broken ranks: all of those that show are named
// and nobody else, with their own dumps and, where they died, without; a job that ends
// hangs nowhere.
func TestHangOfRandomJobs(t *testing.T) {
	seeds := uint64(40)
	if n, err := strconv.ParseUint(os.Getenv("WEFT_TEST_SEEDS"), 10, 64); err == nil {
		seeds = n
	}
	judged := 0
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 7))
		j := training(rng)
		n := len(j.program)
		class := []string{"host", "gpu", "dead"}[rng.IntN(3)]
		faults := map[int]fault{}
		// They break in the same moment, as ranks do that share a cause.
		moment := 0.3 + 0.5*rng.Float64()
		for k := 1 + rng.IntN(min(3, n/3+1)); len(faults) < k; {
			r := rng.IntN(n)
			faults[r] = fault{class, int(moment * float64(len(j.program[r])))}
		}
		healthy := training(rand.New(rand.NewPCG(seed, 7))).play(rng, nil)
		if r := judge(t, healthy, numbered, nil, nil); r.Hang != nil || len(r.Findings) > 0 {
			t.Errorf("seed %d: %d ranks end well, and it says %+v", seed, n, r.Hang)
		}
		j = j.play(rng, faults)
		// Those of which it shows: somebody waits for them, or has finished what they have not.
		var broken []int
		for r, f := range faults {
			shows := false
			for m := range n {
				i := j.finished[m]
				if m == r || i >= j.issued[m] {
					continue
				}
				// What m is in, and whether r takes part in it and is not there.
				k, ok := j.at[j.keys[m][i]][r]
				ok = ok && j.finished[r] <= k
				if class == "dead" { // without a dump it is blamed only where nobody else explains the wait
					for x, at := range j.at[j.keys[m][i]] {
						_, gone := faults[x]
						ok = ok && (gone || j.finished[x] >= at)
					}
				}
				shows = shows || ok
			}
			if class == "gpu" {
				shows = false
				for m, k := range j.at[j.keys[r][f.at]] {
					shows = shows || j.finished[m] > k
				}
			}
			if shows && j.finished[r] == f.at && (class == "gpu") == (j.issued[r] > f.at) {
				broken = append(broken, r)
			}
		}
		if len(broken) == 0 {
			continue
		}
		judged++
		slices.Sort(broken)
		skip := map[int]bool{}
		if class == "dead" {
			for _, r := range broken {
				skip[r] = true
			}
		}
		r := judge(t, j, numbered, skip, nil)
		want := map[string]string{"host": "host", "gpu": "gpu", "dead": "missing"}[class]
		if r.Hang == nil {
			t.Errorf("seed %d: %d ranks, %s %v: no hang", seed, n, class, broken)
			continue
		}
		innocent := slices.ContainsFunc(r.Hang.Culprits, func(c int) bool { _, ok := faults[c]; return !ok })
		left := slices.ContainsFunc(broken, func(b int) bool {
			// A rank without a file is a candidate only, where one with a file is to blame.
			return !slices.Contains(r.Hang.Culprits, b) && !(skip[b] && slices.Contains(r.Hang.Candidates, b))
		})
		want = map[bool]string{true: "host",
			false: want}[class == "dead" && !slices.ContainsFunc(r.Hang.Culprits, func(c int) bool { return skip[c] })]
		if innocent || left || len(broken) == len(faults) && r.Hang.Class != want {
			t.Errorf("seed %d: %d ranks, %s %v (injected %v): %+v", seed, n, class, broken, faults, r.Hang)
		}
	}
	if judged < int(seeds)*9/10 {
		t.Errorf("only %d of %d jobs had a fault that shows", judged, seeds)
	}
}
