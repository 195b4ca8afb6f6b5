package algo

import (
	"fmt"
	"strings"

	"github.com/weft-fabric/weft/collective/sched"
)

// torus, 3 x 3, one of four parts:
//
//	0 ─► 1 ─► 2 ─┐     Reduce-scatter around every ring of x, then of what is
//	▲            │     left, a third, around every ring of y; all-gather y,
//	└────────────┘     then x. Another part goes x backwards, two more start
//	3 ─► 4 ─► 5 ...    with y: at any time every direction of every link of
//	6 ─► 7 ─► 8 ...    the torus has work.
//
// bcube, 8 ranks as 2 x 2 x 2, 12 as 2 x 2 x 3:
//
//	0 ◄─► 1   2 ◄─► 3 ...     The same, but along a dimension everybody sends
//	0 ◄─────► 2 ...           straight to everybody. Dimensions are the prime
//	0 ◄─────────────► 4 ...   factors of the count, the smallest first.
//
// Parts of a vector are numbered in the mixed radix of the dimensions in the
// order in which a part of the program takes them, so that what a rank keeps is
// always a run of neighbours.
//
// Jain and Sabharwal, Optimal bucket algorithms for large MPI collectives on
// torus interconnects, 2010; bcube as in gloo.
func init() {
	register(&Algorithm{
		Name: "torus", Traits: Traits{Grid: true, Torus: true, Vast: true, Long: 4}, Ops: []sched.Collective{sched.AllReduce},
		Summary:   "large messages on a torus: all links of all dimensions, both ways",
		Steps:     "2 sum(d_i - 1)",
		Sent:      "2S(n-1)/n, spread over 2 directions of every dimension",
		Reference: "Jain and Sabharwal 2010",
		Fits: func(s Spec) error {
			if s.Dims == nil {
				return nil
			}
			product := 1
			for _, d := range s.Dims {
				if d < 1 {
					return fmt.Errorf("a dimension of length %d", d)
				}
				product *= d
			}
			if product != s.Ranks {
				return fmt.Errorf("dimensions %s hold %d ranks, not %d", dims(s.Dims), product, s.Ranks)
			}
			return nil
		},
		Build: torus,
	})
	register(&Algorithm{
		Name: "bcube", Traits: Traits{Pairs: true}, Nests: true, Ops: []sched.Collective{sched.AllReduce},
		Summary:   "middle messages where the count has small factors",
		Steps:     "2 for each prime factor of n",
		Sent:      "2S(n-1)/n, to sum(f_i - 1) peers",
		Reference: "gloo",
		Build:     bcube,
	})
}

func dims(d []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(d), " ", " x "), "[]")
}

// axis is a dimension: ranks that differ only in it are stride apart.
type axis struct {
	length, stride int
}

func (a axis) coord() string { return fmt.Sprintf("r/%d%%%d", a.stride, a.length) }

// peer is the rank whose coordinate is x.
func (a axis) peer(x string) string {
	return fmt.Sprintf("r+(%s-%s)*%d", x, a.coord(), a.stride)
}

// other is a coordinate so far from the own.
func (a axis) other(d string) string { return fmt.Sprintf("(r/%d%s)%%%d", a.stride, d, a.length) }

func axesOf(lengths []int) []axis {
	var axes []axis
	stride := 1
	for _, d := range lengths {
		if d > 1 {
			axes = append(axes, axis{d, stride})
		}
		stride *= d
	}
	return axes
}

// primes factors a count, the smallest first.
func primes(n int) []int {
	var out []int
	for f := 2; n > 1; f++ {
		for n%f == 0 {
			out = append(out, f)
			n /= f
		}
	}
	return out
}

// cubic cuts a count into up to three lengths, as equal as its factors allow.
func cubic(n int) []int {
	out := []int{1, 1, 1}
	p := primes(n)
	for i := len(p) - 1; i >= 0; i-- { // the largest factor goes to the shortest length
		k := 0
		for j := range out {
			if out[j] < out[k] {
				k = j
			}
		}
		out[k] *= p[i]
	}
	return out
}

// stage is one axis of a part: the run of chunks that its ranks share starts at
// base, and each of them ends with size chunks of it.
type stage struct {
	axis
	base string
	size int
	src  string // the buffer that holds the contributions
}

func (g stage) run(buf, x string) string {
	return fmt.Sprintf("%s[%s+%s*%d +: %d]", buf, g.base, x, g.size, g.size)
}

// stages numbers n chunks from base on along the axes in their order.
func stages(base string, axes []axis) []stage {
	size := 1
	for _, a := range axes {
		size *= a.length
	}
	src := "in"
	var out []stage
	for _, a := range axes {
		size /= a.length
		out = append(out, stage{a, base, size, src})
		base, src = fmt.Sprintf("%s+%s*%d", base, a.coord(), size), "out"
	}
	return out
}

func torus(s Spec) (string, error) {
	var t text
	lengths := s.Dims
	if lengths == nil {
		lengths = cubic(s.Ranks)
	}
	axes := axesOf(lengths)
	parts := 2 * len(axes)
	t.line("chunks n*%d", s.Channels*parts)
	t.line("slots %d", orDefault(s.Slots, 2))
	for part := range s.Channels * parts {
		turned := make([]axis, len(axes))
		for i := range axes {
			turned[i] = axes[(i+part/2)%len(axes)]
		}
		ahead, behind := "+", "-"
		if part%2 == 1 {
			ahead, behind = behind, ahead
		}
		t.block(func() {
			list := stages(fmt.Sprintf("%d*n", part), turned)
			for _, g := range list {
				next, prev := g.peer(g.other(ahead+"1")), g.peer(g.other(behind+"1"))
				t.line("send %s to %s", g.run(g.src, g.other(behind+"1")), next)
				t.block(func() {
					t.line("recv-reduce-send %s from %s to %s", g.run(g.src, g.other(behind+"2"+behind+"j")), prev, next)
				}, "repeat j < %d:", g.length-2)
				t.line("recv-reduce %s -> %s from %s", g.run(g.src, g.coord()), g.run("out", g.coord()), prev)
			}
			for i := len(list) - 1; i >= 0; i-- {
				g := list[i]
				next, prev := g.peer(g.other(ahead+"1")), g.peer(g.other(behind+"1"))
				t.line("send %s to %s", g.run("out", g.coord()), next)
				t.block(func() {
					t.line("recv-copy-send -> %s from %s to %s", g.run("out", g.other(behind+"1"+behind+"j")), prev, next)
				}, "repeat j < %d:", g.length-2)
				t.line("recv -> %s from %s", g.run("out", g.other(ahead+"1")), prev)
			}
		}, "channels 1:")
	}
	return t.String(), nil
}

func bcube(s Spec) (string, error) {
	var t text
	t.line("chunks %s", times("n", s.Channels))
	t.line("slots %d", orDefault(s.Slots, 1))
	t.block(func() {
		list := stages("c*n", axesOf(primes(s.Ranks)))
		for _, g := range list {
			x, far := g.other("+k+1"), g.other("+k+2")
			t.block(func() { t.line("send %s to %s", g.run(g.src, x), g.peer(x)) }, "repeat k < %d:", g.length-1)
			own := g.run("out", g.coord())
			t.line("recv-reduce %s -> %s from %s", g.run(g.src, g.coord()), own, g.peer(g.other("+1")))
			if g.length > 2 {
				t.block(func() { t.line("recv-reduce %s -> %s from %s", own, own, g.peer(far)) }, "repeat k < %d:", g.length-2)
			}
		}
		for i := len(list) - 1; i >= 0; i-- {
			g := list[i]
			x := g.other("+k+1")
			t.block(func() { t.line("send %s to %s", g.run("out", g.coord()), g.peer(x)) }, "repeat k < %d:", g.length-1)
			t.block(func() { t.line("recv -> %s from %s", g.run("out", x), g.peer(x)) }, "repeat k < %d:", g.length-1)
		}
	}, "channels %d:", s.Channels)
	return t.String(), nil
}
