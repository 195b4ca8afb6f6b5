package algo

import (
	"fmt"
	"math/bits"
	"strings"

	"github.com/weft-fabric/weft/collective/sched"
)

//	      0                 Offsets of 8 ranks. The block of the rank t places
//	  ┌───┼───┐             before comes from the rank 2^ctz(t) places before,
//	  4   2   1             which has it at offset t - 2^ctz(t). All trees, one
//	┌─┤   │                 a block, are this one turned, so every step is one
//	6 5   3                 message to a rank at the same distance from all.
//	│
//	7                       One block a step: 4 6 7 5 2 3 1, depth first. Four
//	                        blocks a message: {4} {2 6} {1 3 5 7}.
//
// With a blocks a message and P the next power of two, offsets P/a apart go
// together: log2 a steps place the multiples of P/a, far ones first, doubling
// the blocks a message; P/a - 1 steps place the others. Reduce-scatter runs it
// backwards, summing towards offset 0, and holds a sums for each level of the
// tree that is open. Between powers of two, offsets beyond the count are left out.
//
// Jeaugey, PAT: a new algorithm for all-gather and reduce-scatter operations at
// scale, 2025 (arXiv 2506.20252).
func init() {
	register(&Algorithm{
		Name: "pat", Traits: Traits{Vast: true}, Nests: true, Ops: []sched.Collective{sched.AllGather, sched.ReduceScatter},
		Summary:   "small to middle messages on many ranks, buffers of logarithmic size",
		Steps:     "log2 a + P/a - 1, a blocks a message, P the next power of two",
		Sent:      "S(n-1)/n",
		Reference: "arXiv 2506.20252",
		Fits: func(s Spec) error {
			if a := s.Aggregate; a < 0 || a&(a-1) != 0 || a > 1 && a > s.Ranks/2 {
				return fmt.Errorf("aggregation of %d blocks for %d ranks: want a power of two up to half the ranks", a, s.Ranks)
			}
			return nil
		},
		Build: func(s Spec) (string, error) {
			a := s.Aggregate
			if a == 0 {
				a = 1 << (bits.Len(uint(max(s.Ranks/2, 1))) - 1)
			}
			p := pat{s: s, agg: a, power: 1 << log2(s.Ranks)}
			p.apart = p.power / a
			p.levels = log2(p.apart)
			if s.Op == sched.AllGather {
				return p.gather(), nil
			}
			return p.scatter(), nil
		},
	})
}

type pat struct {
	s      Spec
	agg    int // a: blocks a message
	power  int // P
	apart  int // P/a: between the offsets of a message
	levels int // of the tree of the offsets below P/a
	t      text
}

// count gives how many of the offsets k, k+apart, ... are below n.
func count(k, apart string) string { return fmt.Sprintf("(n-1-(%s))/%s+1", k, apart) }

// block names the chunk of the rank a number of places before.
func (p *pat) block(offset string) string {
	return share("(r-("+offset+"))%n", p.s.Channels)
}

// bit names the loop variable of a level, which is the bit that an offset adds to its parent.
func bit(level int) string { return "x" + itoa(level) }

func (p *pat) gather() string {
	t := &p.t
	a := p.agg
	t.line("chunks %s", times("n", p.s.Channels))
	if a > 1 {
		t.line("scratch %d", 2*a*p.s.Channels)
	}
	t.line("slots %d", orDefault(p.s.Slots, 1))
	t.block(func() {
		t.line("copy in[c] -> out[%s]", share("r", p.s.Channels))
		for w := p.power / 2; w >= p.apart; w /= 2 {
			p.pass(itoa(w), itoa(2*w), itoa(w))
		}
		p.descend(0, nil)
	}, "channels %d:", p.s.Channels)
	return t.String()
}

// descend writes the steps of one level: x counts the bits that may be added to
// the offset so far, downwards.
func (p *pat) descend(level int, offset []string) {
	if level == p.levels {
		return
	}
	limit := itoa(p.levels)
	if level > 0 {
		limit = fmt.Sprintf("%d", p.levels-level)
		for l := range level {
			limit += "-" + bit(l)
		}
	}
	own := fmt.Sprintf("%d-%s", p.levels-level-1, bit(level))
	for l := range level {
		own += "-" + bit(l)
	}
	p.t.block(func() {
		w := "(1<<" + own + ")"
		offset := append(offset[:len(offset):len(offset)], w)
		p.t.block(func() { p.pass(strings.Join(offset, "+"), itoa(p.apart), w) }, "if %s < n:", strings.Join(offset, "+"))
		p.descend(level+1, offset)
	}, "repeat %s < %s:", bit(level), limit)
}

// pass gets the blocks at offsets k, k+apart, ... from the rank w places before
// and gives the next one those that it lacks.
func (p *pat) pass(k, apart, w string) {
	t := &p.t
	many := count(k, apart)
	if p.agg == 1 {
		t.line("send out[%s] to (r+%s)%%n", p.block("("+k+")-"+w), w)
		t.line("recv -> out[%s] from (r-%s)%%n", p.block(k), w)
		return
	}
	pack, got := fmt.Sprintf("c*%d", 2*p.agg), fmt.Sprintf("c*%d+%d", 2*p.agg, p.agg)
	t.block(func() { t.line("copy out[%s] -> tmp[%s+j]", p.block(k+"-"+w+"+j*"+apart), pack) }, "repeat j < %s:", many)
	t.line("send tmp[%s +: %s] to (r+%s)%%n", pack, many, w)
	t.line("recv -> tmp[%s +: %s] from (r-%s)%%n", got, many, w)
	t.block(func() { t.line("copy tmp[%s+j] -> out[%s]", got, p.block(k+"+j*"+apart)) }, "repeat j < %s:", many)
}

func (p *pat) scatter() string {
	t := &p.t
	a := p.agg
	region := (p.levels + 3) * a // a sums for offset 0 and for each level, and room to pack and unpack
	base := fmt.Sprintf("c*%d", region)
	pack := fmt.Sprintf("c*%d+%d", region, (p.levels+1)*a)
	got := fmt.Sprintf("c*%d+%d", region, (p.levels+2)*a)
	t.line("chunks %s", times("n", p.s.Channels))
	t.line("scratch %d", region*p.s.Channels)
	t.line("slots %d", orDefault(p.s.Slots, 1))
	t.block(func() {
		p.load("0", base)
		p.climb(1, nil, region)
		for w := 1; w < a; w *= 2 { // in units of apart
			many := count(itoa(w*p.apart), itoa(2*w*p.apart))
			t.block(func() { t.line("copy tmp[%s+%d+j*%d] -> tmp[%s+j]", base, w, 2*w, pack) }, "repeat j < %s:", many)
			t.line("send tmp[%s +: %s] to (r-%d)%%n", pack, many, w*p.apart)
			t.line("recv -> tmp[%s +: %s] from (r+%d)%%n", got, many, w*p.apart)
			t.block(func() { t.line("reduce tmp[%s+j] -> tmp[%s+j*%d]", got, base, 2*w) }, "repeat j < %s:", many)
		}
		t.line("copy tmp[%s] -> out[c]", base)
	}, "channels %d:", p.s.Channels)
	return t.String()
}

// load starts the sums at offsets k, k+apart, ... with the rank's own contributions.
func (p *pat) load(k, base string) {
	p.t.block(func() { p.t.line("copy in[%s] -> tmp[%s+j]", p.block(k+"+j*"+itoa(p.apart)), base) }, "repeat j < %s:", count(k, itoa(p.apart)))
}

// climb is descend backwards: a level's sums are finished by the levels below
// before they go to the parent's rank.
func (p *pat) climb(level int, offset []string, region int) {
	if level > p.levels {
		return
	}
	limit := itoa(p.levels)
	if level > 1 {
		limit = bit(level - 1)
	}
	p.t.block(func() {
		w := "(1<<" + bit(level) + ")"
		offset := append(offset[:len(offset):len(offset)], w)
		k := strings.Join(offset, "+")
		p.t.block(func() {
			mine := fmt.Sprintf("c*%d+%d", region, level*p.agg)
			parent := fmt.Sprintf("c*%d+%d", region, (level-1)*p.agg)
			many := count(k, itoa(p.apart))
			p.load(k, mine)
			p.climb(level+1, offset, region)
			p.t.line("send tmp[%s +: %s] to (r-%s)%%n", mine, many, w)
			p.t.line("recv-reduce tmp[%s +: %s] -> tmp[%s +: %s] from (r+%s)%%n", parent, many, parent, many, w)
		}, "if %s < n:", k)
	}, "repeat %s < %s:", bit(level), limit)
}
