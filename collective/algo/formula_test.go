package algo_test

import (
	"flag"
	"fmt"
	"math/bits"
	"os"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
	"github.com/weft-fabric/weft/collective/verify"
)

var update = flag.Bool("update", false, "write docs/reference/tables/algorithms.md")

// report proves a shape and gives steps and the bytes of the rank that sends
// most, as a fraction of S.
func report(t *testing.T, name string, s algo.Spec) (steps int, sent float64, rep *verify.Report) {
	t.Helper()
	_, rep = prove(t, find(t, name), s)
	if rep == nil {
		t.Fatalf("%s does not fit %+v", name, s)
	}
	return rep.Steps, float64(rep.MaxSent) / float64(rep.Chunks), rep
}

func near(a, b float64) bool { return a-b < 1e-9 && b-a < 1e-9 }

func ceilLog(n int) int { return bits.Len(uint(n - 1)) }

// The formulas of steps and bytes per rank, as published for each algorithm.
func TestStepsAndBytes(t *testing.T) {
	type want struct {
		steps int
		sent  float64
	}
	for _, c := range []struct {
		name   string
		op     sched.Collective
		counts []int
		want   func(n int) want
	}{
		{"ring", sched.AllReduce, []int{2, 3, 8, 13}, func(n int) want { return want{2 * (n - 1), 2 * float64(n-1) / float64(n)} }},
		{"ring", sched.ReduceScatter, []int{2, 3, 8, 13}, func(n int) want { return want{n - 1, float64(n-1) / float64(n)} }},
		{"ring", sched.AllGather, []int{2, 3, 8, 13}, func(n int) want { return want{n - 1, float64(n-1) / float64(n)} }},
		{"bidirectional-ring", sched.AllReduce, []int{2, 3, 8, 13}, func(n int) want { return want{2 * (n - 1), 2 * float64(n-1) / float64(n)} }},
		{"recursive-doubling", sched.AllReduce, []int{2, 8, 16}, func(n int) want { return want{ceilLog(n), float64(ceilLog(n))} }},
		{"recursive-doubling", sched.AllReduce, []int{3, 7, 12},
			func(n int) want { return want{ceilLog(n) - 1 + 2, float64(ceilLog(n) - 1 + 1)} }},
		{"halving-doubling", sched.AllReduce, []int{2, 8, 16, 64},
			func(n int) want { return want{2 * ceilLog(n), 2 * float64(n-1) / float64(n)} }},
		{"halving-doubling", sched.ReduceScatter, []int{2, 8, 16}, func(n int) want { return want{ceilLog(n), float64(n-1) / float64(n)} }},
		{"halving-doubling", sched.AllGather, []int{2, 8, 16}, func(n int) want { return want{ceilLog(n), float64(n-1) / float64(n)} }},
		{"rabenseifner", sched.AllReduce, []int{2, 8, 16}, func(n int) want { return want{2 * ceilLog(n), 2 * float64(n-1) / float64(n)} }},
		{"swing", sched.AllReduce, []int{2, 8, 16, 64}, func(n int) want { return want{2 * ceilLog(n), 2 * float64(n-1) / float64(n)} }},
		{"bruck", sched.AllGather, []int{2, 3, 8, 13}, func(n int) want { return want{ceilLog(n), float64(n-1) / float64(n)} }},
		{"bruck", sched.AllToAll, []int{2, 8, 16}, func(n int) want { return want{ceilLog(n), float64(ceilLog(n)) / 2} }},
		{"pairwise", sched.AllToAll, []int{2, 3, 8, 13}, func(n int) want { return want{n - 1, float64(n-1) / float64(n)} }},
		{"pairwise-xor", sched.AllToAll, []int{2, 8, 16}, func(n int) want { return want{n - 1, float64(n-1) / float64(n)} }},
		{"pairwise-delta", sched.AllToAll, []int{2, 3, 8, 13}, func(n int) want { return want{n - 1, float64(n-1) / float64(n)} }},
		{"direct", sched.AllReduce, []int{2, 3, 8}, func(n int) want { return want{2, 2 * float64(n-1) / float64(n)} }},
		{"direct", sched.AllToAll, []int{2, 3, 8}, func(n int) want { return want{1, float64(n-1) / float64(n)} }},
		{"one-shot", sched.AllReduce, []int{2, 3, 8}, func(n int) want { return want{1, float64(n - 1)} }},
		{"rank-order", sched.AllReduce, []int{2, 3, 8}, func(n int) want { return want{2, 2 * float64(n-1) / float64(n)} }},
		{"rank-order", sched.ReduceScatter, []int{2, 3, 8}, func(n int) want { return want{1, float64(n-1) / float64(n)} }},
		{"rank-order", sched.Reduce, []int{2, 3, 8}, func(int) want { return want{1, 1} }},
		{"binomial", sched.Scatter, []int{2, 4, 16}, func(n int) want { return want{ceilLog(n), float64(n-1) / float64(n)} }},
		{"binomial", sched.Broadcast, []int{2, 3, 16}, func(n int) want { return want{ceilLog(n), float64(ceilLog(n))} }},
		{"double-binary-tree", sched.Broadcast, []int{3, 4, 5, 16, 33, 64}, func(n int) want { return want{ceilLog(n), 1} }},
		{"dissemination", sched.Barrier, []int{2, 3, 16, 33}, func(n int) want { return want{ceilLog(n), float64(ceilLog(n))} }},
		{"nvls", sched.AllReduce, []int{3, 8}, func(n int) want { return want{4, float64(n)} }}, // the switch sends most
		{"sharp", sched.AllReduce, []int{3, 8}, func(n int) want { return want{2, float64(n)} }},
	} {
		for _, n := range c.counts {
			steps, sent, _ := report(t, c.name, algo.Spec{Op: c.op, Ranks: n, Pieces: 1})
			// Between powers of two the longest chain may miss a step that some rank still has to take.
			if w := c.want(n); steps > w.steps || n&(n-1) == 0 && steps != w.steps || !near(sent, w.sent) {
				t.Errorf("%s %s, %d ranks: %d steps and %.4f S, want %d and %.4f", c.name, c.op, n, steps, sent, w.steps, w.sent)
			}
		}
	}
}

// Binary trees are ceil(log2 n) deep and the two of a pair share the load: no
// rank sends more than 2S.
func TestTreesDepthAndLoad(t *testing.T) {
	for n := 2; n <= 64; n++ {
		for _, name := range []string{"tree", "double-binary-tree"} {
			steps, sent, _ := report(t, name, algo.Spec{Op: sched.AllReduce, Ranks: n, Pieces: 1})
			if steps > 2*ceilLog(n) || steps < 2*(ceilLog(n)-1) {
				t.Errorf("%s, %d ranks: %d steps, want 2 ceil(log2 n) = %d", name, n, steps, 2*ceilLog(n))
			}
			if name == "double-binary-tree" && sent > 2 {
				t.Errorf("%s, %d ranks: a rank sends %.2f S", name, n, sent)
			}
		}
	}
}

// No rank sends more than the list says: trees 3S, leaders 4S, folded algorithms
// 3S or 3.5S.
func TestMostBytes(t *testing.T) {
	for n := 2; n <= 40; n++ {
		for _, c := range []struct {
			name  string
			local int
			most  float64
		}{{"tree", 0, 3}, {"double-binary-tree", 0, 2}, {"colltree", 4, 4}, {"halving-doubling", 0, 3}, {"rabenseifner", 0, 3.5},
			{"swing", 0, 3}} {
			s := algo.Spec{Op: sched.AllReduce, Ranks: n, Local: c.local, Pieces: 1}
			if whole := find(t, c.name).Fits; whole != nil && whole(s) != nil {
				continue
			}
			if _, sent, _ := report(t, c.name, s); sent > c.most {
				t.Errorf("%s, %d ranks: a rank sends %.3f S, more than %.1f", c.name, n, sent, c.most)
			}
		}
	}
}

const algorithmsHead = `# Algorithms

Made by:

    go test ./collective/algo -run PageLists -update

S is the size of the larger buffer, n the number of ranks. Steps are those of one piece; pipelined algorithms cut the
data into pieces and keep several in flight. Tests compare steps and bytes with proofs.
[Programs](../programs.md) explains the language.

| algorithm | collectives | steps | a rank sends | best for |
|---|---|---|---|---|
`

// The table of algorithms is what 'weft algo list' shows.
func TestPageListsEveryAlgorithm(t *testing.T) {
	const file = "../../docs/reference/tables/algorithms.md"
	var want strings.Builder
	want.WriteString(algorithmsHead)
	for _, a := range algo.All() {
		var ops []string
		for _, op := range a.Ops {
			ops = append(ops, op.String())
		}
		fmt.Fprintf(&want, "| `%s` | %s | %s | %s | %s |\n", a.Name, strings.Join(ops, ", "), a.Steps, a.Sent, a.Summary)
	}
	if *update {
		if err := os.WriteFile(file, []byte(want.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if page, err := os.ReadFile(file); err != nil || string(page) != want.String() {
		t.Errorf("%s is not what package algo has (%v); go test ./collective/algo -run PageLists -update writes it", file, err)
	}
}

// PAT: log2 a + P/a - 1 steps, S(n-1)/n bytes; reduce-scatter is its reverse.
func TestPATStepsAndBytes(t *testing.T) {
	for n := 2; n <= 33; n++ {
		power := 1 << ceilLog(n)
		for a := 1; a <= max(n/2, 1); a *= 2 {
			for _, op := range []sched.Collective{sched.AllGather, sched.ReduceScatter} {
				steps, sent, _ := report(t, "pat", algo.Spec{Op: op, Ranks: n, Aggregate: a})
				most := bits.Len(uint(a)) - 1 + power/a - 1
				// Offsets beyond the count are left out, and so are their steps.
				if steps > most || power == n && steps != most || !near(sent, float64(n-1)/float64(n)) {
					t.Errorf("%s, %d ranks, %d a message: %d steps and %.3f S, want %d and %.3f", op, n, a, steps, sent, most, float64(n-1)/float64(n))
				}
			}
		}
	}
}

// PAT for 8 ranks: one block a step goes 4 6 7 5 2 3 1, four blocks {4} {2 6} {1 3 5 7}.
func TestPATOrder(t *testing.T) {
	for a, want := range map[int]string{1: "4 2 1 1 2 1 1", 4: "4 2 1"} {
		p, err := find(t, "pat").Program(algo.Spec{Op: sched.AllGather, Ranks: 8, Aggregate: a})
		if err != nil {
			t.Fatal(err)
		}
		// The distance of each step is the lowest bit of its offsets.
		var got string
		for _, s := range sends(t, p, 0) {
			got += fmt.Sprint(s) + " "
		}
		if got != want+" " {
			t.Errorf("%d blocks a message: distances %s, want %s", a, got, want)
		}
	}
}

// NCCL's order of peers for 16 ranks.
func TestDeltaOrder(t *testing.T) {
	p, err := find(t, "pairwise-delta").Program(algo.Spec{Op: sched.AllToAll, Ranks: 16})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(sends(t, p, 0)), "[1 3 6 10 15 5 12 4 13 7 2 14 11 9 8]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// Swing's partners are 1, 1, 3, 5, 11, 21 away, by turns ahead and behind.
func TestSwingDistances(t *testing.T) {
	p, err := find(t, "swing").Program(algo.Spec{Op: sched.AllReduce, Ranks: 64})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(sends(t, p, 0)[:6]), "[1 63 3 59 11 43]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// Hierarchical, ring in ring: 2(ppn-1) + 2(N-1) steps; inside a host 2S(ppn-1)/ppn,
// between hosts 2S(N-1)/(N ppn) on each rail; half of all for its two halves.
func TestHierarchicalStepsAndBytes(t *testing.T) {
	const hosts, local = 4, 8
	for op, times := range map[sched.Collective]float64{sched.AllReduce: 2, sched.ReduceScatter: 1, sched.AllGather: 1} {
		steps, _, rep := report(t, "hierarchical", algo.Spec{Op: op, Ranks: hosts * local, Local: local})
		if float64(steps) != times*(local-1+hosts-1) {
			t.Errorf("%s: %d steps", op, steps)
		}
		var inside, between float64
		for l, chunks := range rep.Links {
			if l.From != 0 {
				continue
			}
			if l.To < local {
				inside += float64(chunks) / float64(rep.Chunks)
			} else {
				between += float64(chunks) / float64(rep.Chunks)
			}
		}
		if !near(inside, times*(local-1)/local) || !near(between, times*(hosts-1)/hosts/local) {
			t.Errorf("%s: %.4f S inside, %.4f S between", op, inside, between)
		}
	}
}

// A torus takes 2 sum(d-1) steps and 2S(n-1)/n bytes, in equal shares over all
// links of dimensions of one length.
func TestTorusStepsAndBytes(t *testing.T) {
	for _, dims := range [][]int{{4, 4}, {3, 3, 3}, {2, 3, 4}, {5}, {1, 6}} {
		n, sum := 1, 0
		for _, d := range dims {
			n *= d
			sum += d - 1
		}
		steps, sent, rep := report(t, "torus", algo.Spec{Op: sched.AllReduce, Ranks: n, Dims: dims})
		if steps != 2*sum || !near(sent, 2*float64(n-1)/float64(n)) {
			t.Errorf("%v: %d steps, %.4f S", dims, steps, sent)
		}
		if len(dims) == 3 && dims[0] == 3 && dims[2] == 3 {
			for l, c := range rep.Links {
				if c*6 != rep.Sent[l.From] {
					t.Errorf("%v: %d to %d carries %d of %d chunks, not a sixth", dims, l.From, l.To, c, rep.Sent[l.From])
				}
			}
		}
	}
}

// bcube: 2 steps a factor, sum(f-1) peers.
func TestBcubeStepsAndPeers(t *testing.T) {
	for n, want := range map[int][2]int{8: {6, 3}, 12: {6, 4}, 7: {2, 6}, 30: {6, 7}} {
		steps, sent, rep := report(t, "bcube", algo.Spec{Op: sched.AllReduce, Ranks: n})
		if steps != want[0] || rep.Peers != want[1] || !near(sent, 2*float64(n-1)/float64(n)) {
			t.Errorf("%d ranks: %d steps, %d peers, %.4f S", n, steps, rep.Peers, sent)
		}
	}
}

// What ranks send where switches compute: S to a SHARP switch, S + S/n through
// an NVSwitch, S up and S down a chain of CollNet, S/H of it to the network.
func TestBytesWithSwitches(t *testing.T) {
	const n, local = 16, 4
	rank := func(name string, r int, local int) (inside, net float64, steps int) {
		_, rep := prove(t, find(t, name), algo.Spec{Op: sched.AllReduce, Ranks: n, Local: local, Pieces: 1})
		for l, c := range rep.Links {
			if int(l.From) == r {
				if l.To >= n {
					net += float64(c) / float64(rep.Chunks)
				} else {
					inside += float64(c) / float64(rep.Chunks)
				}
			}
		}
		return inside, net, rep.Steps
	}
	for _, c := range []struct {
		name        string
		local       int
		inside, net float64
		steps       int
	}{
		{"sharp", 0, 0, 1, 2},
		{"sharp", local, 0, 1, 4},
		{"nvls", 0, 0, 1 + 1.0/n, 4},
		{"collnet-chain", local, 1, 1, 2*(local-1) + 2},
		{"collnet-direct", local, 2.0 * (local - 1) / local, 1.0 / local, 4},
		{"nvls-tree", local, 1.0 / local, 1 + 1.0/local, 4 + 2*2},
	} {
		inside, net, steps := rank(c.name, 0, c.local)
		if !near(inside, c.inside) || !near(net, c.net) || steps != c.steps {
			t.Errorf("%s in domains of %d: rank 0 sends %.4f S to ranks and %.4f S to switches in %d steps; want %.4f, %.4f, %d",
				c.name, c.local, inside, net, steps, c.inside, c.net, c.steps)
		}
	}
}

// sends lists to whom a rank sends, in order.
func sends(t *testing.T, p *sched.Program, rank sched.Rank) []sched.Rank {
	t.Helper()
	var list []sched.Rank
	err := step.Run(p, func(r sched.Rank, a *step.Action, m struct{}) (struct{}, error) {
		if r == rank && a.Op.Sends() {
			list = append(list, a.To)
		}
		return m, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}
