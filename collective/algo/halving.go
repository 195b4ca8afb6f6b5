package algo

import (
	"fmt"
	"strings"

	"github.com/weft-fabric/weft/collective/sched"
)

//	step   0 gives     0 keeps     of a vector in 8 parts, rank 0 of 8
//	 0     4 5 6 7     0 1 2 3     to 4, which gives it its 0 1 2 3
//	 1     2 3         0 1         to 2
//	 2     1           0           to 1; then the same way back
//
// Every step halves the part of the vector that a rank is responsible for; on
// the way back every step doubles the part that it knows. halving-doubling meets
// the farthest rank first, so that a rank ends with its own block, which makes it
// a reduce-scatter and an all-gather too. rabenseifner meets the nearest first,
// when parts are largest; its folding moves halves. swing meets r+1, r-1, r+3,
// r-5, r+11, ... (odd ranks the other way), which on a torus is about two thirds
// of the distance; after the step s its partners know disjoint parts because two
// steps in a row differ by a power of two.
//
// Thakur, Rabenseifner and Gropp 2005; Rabenseifner, Optimization of collective
// reduction operations, 2004; De Sensi et al., Swing: short-cutting rings for
// higher bandwidth allreduce, 2024. Swing's own treatment of other even counts
// is replaced by folding, which serves odd ones as well.
func init() {
	register(&Algorithm{
		Name: "halving-doubling", Nests: true, Ops: []sched.Collective{sched.AllReduce, sched.ReduceScatter, sched.AllGather},
		Summary:   "middle messages: few steps and the least bytes, on powers of two",
		Steps:     "2 log2 n, half for reduce-scatter, all-gather; 2 more between powers of two",
		Sent:      "2S(n-1)/n; folded up to 3S",
		Reference: "Thakur, Rabenseifner, Gropp 2005",
		Build:     halvingDoubling,
	})
	register(&Algorithm{
		Name: "rabenseifner", Nests: true, Ops: []sched.Collective{sched.AllReduce, sched.ReduceScatter, sched.Reduce},
		Summary:   "middle messages where near ranks are faster than far ones",
		Steps:     "2 log2 n, half for reduce-scatter; 3 more between powers of two",
		Sent:      "2S(n-1)/n, half for reduce-scatter; folded up to 3.5S",
		Reference: "Rabenseifner 2004",
		Build:     rabenseifner,
	})
	register(&Algorithm{
		Name: "swing", Traits: Traits{Torus: true}, Nests: true, Ops: []sched.Collective{sched.AllReduce},
		Summary:   "middle messages on a torus: shorter ways than halving-doubling",
		Steps:     "2 log2 n; 2 more between powers of two",
		Sent:      "2S(n-1)/n; folded up to 3S",
		Reference: "De Sensi et al. 2024",
		Build:     swing,
	})
}

// halver is a way to halve: whom a rank meets at step s, and which part it ends with.
type halver struct {
	fold
	part string // the part of 2^steps that the rank ends with
	peer string // whom it meets at step s
}

// window gives the start of the 2^(steps-1-s) parts that a rank keeps at step s,
// and of those it gives away.
func (h halver) window(size string) (keep, give string) {
	return fmt.Sprintf("%s/(%s)*(%s)", h.part, size, size), fmt.Sprintf("(%s/(%s)^1)*(%s)", h.part, size, size)
}

// scatter and gather write the two ways over the parts from base on.
func (h halver) scatter(t *text, base string) {
	size := fmt.Sprintf("1<<(%d-s)", h.steps-1)
	keep, give := h.window(size)
	t.block(func() {
		t.line("send out[%s+%s +: %s] to %s", base, give, size, h.peer)
		t.line("recv-reduce out[%s+%s +: %s] -> out[%s+%s +: %s] from %s", base, keep, size, base, keep, size, h.peer)
	}, "repeat s < %d:", h.steps)
}

func (h halver) gather(t *text, base string) {
	keep, give := h.window("1<<k")
	peer := swap(h.peer, "s", fmt.Sprintf("(%d-k)", h.steps-1))
	t.block(func() {
		t.line("send out[%s+%s +: 1<<k] to %s", base, keep, peer)
		t.line("recv -> out[%s+%s +: 1<<k] from %s", base, give, peer)
	}, "repeat k < %d:", h.steps)
}

// swap replaces a one-letter name in an expression.
func swap(expr, name, by string) string {
	var b strings.Builder
	for i := 0; i < len(expr); i++ {
		letter := func(j int) bool { return j >= 0 && j < len(expr) && expr[j] >= 'a' && expr[j] <= 'z' }
		if expr[i:i+1] == name && !letter(i-1) && !letter(i+1) {
			b.WriteString(by)
		} else {
			b.WriteByte(expr[i])
		}
	}
	return b.String()
}

// reversed is the expression of a number's lowest bits in reverse.
func reversed(v string, count int) string {
	if count == 0 {
		return "0"
	}
	var terms []string
	for i := range count {
		terms = append(terms, fmt.Sprintf("%s/%d%%2*%d", v, 1<<i, 1<<(count-1-i)))
	}
	return "(" + strings.Join(terms, "+") + ")"
}

func (h halver) allReduce(s Spec) string {
	var t text
	parts := 1 << h.steps
	base := fmt.Sprintf("c*%d", parts)
	t.line("chunks %d", s.Channels*parts)
	t.line("slots %d", orDefault(s.Slots, 1))
	t.block(func() {
		whole := fmt.Sprintf("[%s +: %d]", base, parts)
		h.around(&t, "in"+whole, "out"+whole, func() {
			h.scatter(&t, base)
			h.gather(&t, base)
		})
	}, "channels %d:", s.Channels)
	return t.String()
}

func halvingDoubling(s Spec) (string, error) {
	f := foldOf(s.Ranks)
	switch s.Op {
	case sched.ReduceScatter:
		return halvingScatter(s, f), nil
	case sched.AllGather:
		return doublingGather(s, f), nil
	}
	h := halver{fold: f, part: f.virtual, peer: f.rank(fmt.Sprintf("(%s^(1<<(%d-s)))", f.virtual, f.steps-1))}
	return h.allReduce(s), nil
}

func swing(s Spec) (string, error) {
	f := foldOf(s.Ranks)
	size := 1 << f.steps
	u := f.virtual
	// rho(s) = (1-(-2)^(s+1))/3: 1, -1, 3, -5, 11, ...
	rho := "((1-(1-(s+1)%2*2)*(2<<s))/3)"
	last := (1 - (1-f.steps%2*2)*(1<<f.steps)) / 3
	// The parts that a rank and its later partners end with are neighbours if
	// they are numbered by the reversed bits of half the even one of a last pair.
	even := fmt.Sprintf("((%s-%s%%2*(%s))%%%d)", u, u, strings.Replace(itoa(last), "-", "0-", 1), size)
	h := halver{fold: f,
		part: fmt.Sprintf("(%s*2+%s%%2)", reversed("("+even+"/2)", f.steps-1), u),
		peer: f.rank(fmt.Sprintf("((%s+(1-%s%%2*2)*%s)%%%d)", u, u, rho, size))}
	return h.allReduce(s), nil
}

// rabenseifner folds by halves, which takes half the bytes of the first fold at
// the price of a step: of a pair, each reduces one half, and the odd one hands
// its half over.
func rabenseifner(s Spec) (string, error) {
	var t text
	f := foldOf(s.Ranks)
	if s.Op == sched.ReduceScatter {
		if f.extra > 0 {
			return halvingScatter(s, f), nil // blocks of ranks that fold are neighbours only there
		}
		return nearestScatter(s, f), nil
	}
	rootAside := s.Root < 2*f.extra && s.Root%2 == 1
	parts := 1 << f.steps
	h := halver{fold: f, part: reversed(f.virtual, f.steps), peer: f.rank("(" + f.virtual + "^(1<<s))")}
	base := fmt.Sprintf("c*%d", parts)
	half := fmt.Sprintf("[%s +: %d]", base, parts/2)
	rest := fmt.Sprintf("[%s+%d +: %d]", base, parts/2, parts/2)
	whole := fmt.Sprintf("[%s +: %d]", base, parts)
	t.line("root %d", s.Root)
	t.line("chunks %d", s.Channels*parts)
	t.line("slots %d", orDefault(s.Slots, 1))
	reduce := s.Op == sched.Reduce
	core := func() {
		h.scatter(&t, base)
		if reduce {
			h.collect(&t, s.Root, base)
			return
		}
		h.gather(&t, base)
	}
	t.block(func() {
		if f.extra == 0 {
			t.line("copy in%s -> out%s", whole, whole)
			core()
			return
		}
		t.block(func() {
			t.line("send in%s to r-1", half)
			t.line("recv-reduce in%s -> out%s from r-1", rest, rest)
			t.line("send out%s to r-1", rest)
			switch {
			case !reduce:
				t.line("recv -> out%s from r-1", whole)
			case rootAside:
				t.block(func() { t.line("recv -> out%s from r-1", whole) }, "if r == %d:", s.Root)
			}
		}, "if %s:", f.aside())
		t.block(func() {
			t.block(func() {
				t.line("send in%s to r+1", rest)
				t.line("recv-reduce in%s -> out%s from r+1", half, half)
				t.line("recv -> out%s from r+1", rest)
			}, "if %s:", f.paired())
			t.block(func() { t.line("copy in%s -> out%s", whole, whole) }, "else:")
			core()
			switch {
			case !reduce:
				t.block(func() { t.line("send out%s to r+1", whole) }, "if %s:", f.paired())
			case rootAside:
				t.block(func() { t.line("send out%s to r+1", whole) }, "if r == %d:", s.Root-1)
			}
		}, "else:")
	}, "channels %d:", s.Channels)
	return t.String(), nil
}

// nearestScatter is a reduce-scatter that meets the nearest rank first. What a rank gives away is whole if blocks are numbered by
// their reversed bits.
func nearestScatter(s Spec, f fold) string {
	var t text
	t.line("chunks %s", times("n", s.Channels))
	t.line("scratch %s", times("n", s.Channels))
	t.line("slots %d", orDefault(s.Slots, 1))
	size := fmt.Sprintf("1<<(%d-s)", f.steps-1)
	keep, give := halver{fold: f, part: reversed("r", f.steps)}.window(size)
	d := spread{"tmp", "c*n+", true}
	t.block(func() {
		t.block(func() { t.line("copy in[%s] -> %s", share("b", s.Channels), d.at(reversed("b", f.steps))) }, "repeat b < n:")
		t.block(func() {
			t.line("send %s to r^(1<<s)", d.span(give, size))
			t.line("recv-reduce %s -> %s from r^(1<<s)", d.span(keep, size), d.span(keep, size))
		}, "repeat s < %d:", f.steps)
		t.line("copy %s -> out[c]", d.at(reversed("r", f.steps)))
	}, "channels %d:", s.Channels)
	return t.String()
}

// collect brings the parts to the root, or to its partner if it stood aside:
// the steps of scatter backwards, in which of every pair only the one that
// agrees with the root in all earlier steps' bits gets the other's parts.
func (h halver) collect(t *text, root int, base string) {
	if root < 2*h.extra {
		root -= root % 2
	}
	top := root - min(root/2, h.extra)
	keep, give := h.window("1<<k")
	peer := swap(h.peer, "s", fmt.Sprintf("(%d-k)", h.steps-1))
	// At step s = steps-1-k the ranks that differ from the root in no bit
	// above s still hold parts: those take them whose bit s is the root's.
	above := fmt.Sprintf("(%s^%d)", h.virtual, top)
	t.block(func() {
		bit := fmt.Sprintf("%s/(1<<(%d-k))", above, h.steps-1)
		t.block(func() {
			t.line("recv -> out[%s+%s +: 1<<k] from %s", base, give, peer)
		}, "if %s == 0:", bit)
		t.block(func() {
			t.line("send out[%s+%s +: 1<<k] to %s", base, keep, peer)
		}, "if %s == 1:", bit)
	}, "repeat k < %d:", h.steps)
}

// spread says where blocks are gathered on the way: in a buffer whose blocks are
// neighbours for every channel. With one channel and no orders that is the
// larger buffer itself; else scratch, channel by channel.
type spread struct {
	buf     string
	base    string
	scratch bool
}

func spreadOf(s Spec, buf string) spread {
	if s.Channels == 1 && s.Orders == nil {
		return spread{buf, "", false}
	}
	return spread{"tmp", "c*n+", true}
}

func (d spread) at(block string) string { return fmt.Sprintf("%s[%s%s]", d.buf, d.base, block) }

func (d spread) span(first, count string) string {
	return fmt.Sprintf("%s[%s%s +: %s]", d.buf, d.base, first, count)
}

// blocks gives the first block and the number of blocks of size virtual ranks from v on.
func (f fold) blocks(v, size string) (first, count string) {
	if f.extra == 0 {
		return v, size
	}
	first = f.rank("(" + v + ")")
	return first, fmt.Sprintf("%s-(%s)", f.rank("("+v+"+("+size+"))"), first)
}

// halvingScatter works in scratch, since out has room for one block only.
func halvingScatter(s Spec, f fold) string {
	var t text
	d := spread{"tmp", "c*n+", true}
	t.line("chunks %s", times("n", s.Channels))
	t.line("scratch %s", times("n", s.Channels))
	t.line("slots %d", orDefault(s.Slots, 1))
	size := fmt.Sprintf("1<<(%d-s)", f.steps-1)
	h := halver{fold: f, part: f.virtual}
	keep, give := h.window(size)
	keepAt, keepCount := f.blocks(keep, size)
	giveAt, giveCount := f.blocks(give, size)
	peer := f.rank(fmt.Sprintf("(%s^(%s))", f.virtual, size))
	core := func() {
		t.block(func() {
			t.line("send %s to %s", d.span(giveAt, giveCount), peer)
			t.line("recv-reduce %s -> %s from %s", d.span(keepAt, keepCount), d.span(keepAt, keepCount), peer)
		}, "repeat s < %d:", f.steps)
		t.line("copy %s -> out[c]", d.at("r"))
	}
	t.block(func() {
		if s.Channels == 1 && s.Orders == nil {
			t.line("copy in[0 +: n] -> %s", d.span("0", "n"))
		} else {
			t.block(func() { t.line("copy in[%s] -> %s", share("b", s.Channels), d.at("b")) }, "repeat b < n:")
		}
		if f.extra == 0 {
			core()
			return
		}
		all := d.span("0", "n")
		t.block(func() {
			t.line("send %s to r-1", all)
			t.line("recv -> out[c] from r-1")
		}, "if %s:", f.aside())
		t.block(func() {
			t.block(func() { t.line("recv-reduce %s -> %s from r+1", all, all) }, "if %s:", f.paired())
			core()
			t.block(func() { t.line("send %s to r+1", d.at("r+1")) }, "if %s:", f.paired())
		}, "else:")
	}, "channels %d:", s.Channels)
	return t.String()
}

func doublingGather(s Spec, f fold) string {
	var t text
	d := spreadOf(s, "out")
	t.line("chunks %s", times("n", s.Channels))
	if d.scratch {
		t.line("scratch %s", times("n", s.Channels))
	}
	t.line("slots %d", orDefault(s.Slots, 1))
	h := halver{fold: f, part: f.virtual}
	keep, give := h.window("1<<k")
	keepAt, keepCount := f.blocks(keep, "1<<k")
	giveAt, giveCount := f.blocks(give, "1<<k")
	peer := f.rank(fmt.Sprintf("(%s^(1<<k))", f.virtual))
	core := func() {
		t.block(func() {
			t.line("send %s to %s", d.span(keepAt, keepCount), peer)
			t.line("recv -> %s from %s", d.span(giveAt, giveCount), peer)
		}, "repeat k < %d:", f.steps)
	}
	t.block(func() {
		all := d.span("0", "n")
		if f.extra == 0 {
			t.line("copy in[c] -> %s", d.at("r"))
			core()
		} else {
			t.block(func() {
				t.line("send in[c] to r-1")
				t.line("recv -> %s from r-1", all)
			}, "if %s:", f.aside())
			t.block(func() {
				t.line("copy in[c] -> %s", d.at("r"))
				t.block(func() { t.line("recv -> %s from r+1", d.at("r+1")) }, "if %s:", f.paired())
				core()
				t.block(func() { t.line("send %s to r+1", all) }, "if %s:", f.paired())
			}, "else:")
		}
		if d.scratch {
			t.block(func() { t.line("copy %s -> out[%s]", d.at("b"), share("b", s.Channels)) }, "repeat b < n:")
		}
	}, "channels %d:", s.Channels)
	return t.String()
}
