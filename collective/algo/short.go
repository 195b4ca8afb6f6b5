package algo

import (
	"errors"
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/collective/sched"
)

//	 domain 0      domain 1      domain 2, short
//	0  1  2  3    4  5  6  7    8  9
//	│  ▲  │  ▲                  │  │     each rank of a short domain owns some slices, here two:
//	└──┼──┴──┼──────────────────┘  │     it sums them over its domain, sends each to the rank of
//	   └─────┴─────────────────────┘     a full domain that has this slice, and gets the result back
//
// A short domain has fewer ranks than the others, and so fewer NICs. In the exchange between domains it would send and receive nearly
// twice the buffer. Beside it, it sends the buffer once and receives it once, which is the least there can be. Copies attach to full
// domains in turn, so that the extra bytes are spread over these.

// short is a domain with fewer ranks than Local: the first of them, their number, and which of the short domains it is.
type short struct {
	first, ranks, index int
}

// shorts lists the short domains, which come after the full ones, and how many full ones there are.
func (s *Spec) shorts() (full int, list []short, err error) {
	local := s.domain()
	sizes := s.Short
	if rest := s.Ranks % local; sizes == nil && rest > 0 {
		sizes = []int{rest}
	}
	left := s.Ranks
	for _, n := range sizes {
		if left -= n; n < 1 || n >= local {
			return 0, nil, fmt.Errorf("a short domain of %d ranks: want 1 to %d", n, local-1)
		}
	}
	if left < local || left%local > 0 {
		return 0, nil, fmt.Errorf("%d ranks do not fill domains of %d", max(left, 0), local)
	}
	at := left
	for i, n := range sizes {
		list = append(list, short{at, n, i})
		at += n
	}
	return left / local, list, nil
}

// attached is the all-reduce of short domains beside that of full ones. A slice has m chunks.
type attached struct {
	local, full, copies, m int
	list                   []short
}

// in names a slice's chunks in a buffer.
func (a *attached) in(buf, slice string) string {
	return fmt.Sprintf("%s[(c*%d+%s)*%d +: %d]", buf, a.local, slice, a.m, a.m)
}

// home is the full domain that a copy of a short one attaches to.
func (a *attached) home(d short) string { return fmt.Sprintf("(c+%d)%%%d", d.index*a.copies, a.full) }

// turn is by how many owners slices move on with each copy, so that none has more of them than the others in all copies.
func (a *attached) turn(d short) int { return (a.local - d.ranks) % d.ranks }

// owner is the rank of a short domain that has the slice of a full domain's rank. The first slices are those of its own rail.
func (a *attached) owner(d short) string {
	seat := fmt.Sprintf("r%%%d", a.local)
	if turn := a.turn(d); turn > 0 {
		return fmt.Sprintf("%d+(%s+(%d<%s)*c*%d)%%%d", d.first, seat, d.ranks-1, seat, turn, d.ranks)
	}
	return fmt.Sprintf("%d+%s%%%d", d.first, seat, d.ranks)
}

// slice is the i-th slice that a rank of a short domain has; there may be none.
func (a *attached) slice(d short, seat string) string {
	if turn := a.turn(d); turn > 0 {
		return fmt.Sprintf("(i*%d+(%s-(0<i)*c*%d)%%%d)", d.ranks, seat, turn, d.ranks)
	}
	return fmt.Sprintf("(i*%d+%s)", d.ranks, seat)
}

// take is what full domains do once each has its sum of a slice in tmp, and give what they do once they have the result.
func (a *attached) take(t *text, tmp string) {
	for _, d := range a.list {
		t.block(func() { t.line("recv-reduce %s -> %s from %s", tmp, tmp, a.owner(d)) }, "if r/%d == %s:", a.local, a.home(d))
	}
}

func (a *attached) give(t *text) {
	for _, d := range a.list {
		t.block(func() { t.line("send %s to %s", a.in("out", fmt.Sprintf("r%%%d", a.local)), a.owner(d)) },
			"if r/%d == %s:", a.local, a.home(d))
	}
}

// mostAtOnce is how many copies the ranks of a short domain sum and send at a time: fewer do not fill their links, and with more of them
// the first results come back late.
const mostAtOnce = 4

// ranks is what the ranks of a short domain do. A copy waits for one before it to have sent at least the rows of slices that all ranks
// have, so that the first results come back while the last inputs go out.
func (a *attached) ranks(t *text, d short) {
	seat := fmt.Sprintf("(r-%d)", d.first)
	mate := func(sign string) string { return fmt.Sprintf("(%s%sj%s1)%%%d", seat, sign, sign, d.ranks) }
	mine := a.slice(d, seat)
	full, part := a.local/d.ranks, a.local%d.ranks // rows of slices, of which the last may not be there for all ranks
	here := func(slice string, body func()) { t.ifThere(part > 0, fmt.Sprintf("%s < %d", slice, a.local), body) }
	rows := func(body func()) { t.block(body, "repeat i < %d:", (a.local+d.ranks-1)/d.ranks) }
	others := func(body func()) {
		if d.ranks > 1 {
			t.block(body, "repeat j < %d:", d.ranks-1)
		}
	}
	partner := fmt.Sprintf("%s*%d+%s", a.home(d), a.local, mine)
	summed := "in"
	if d.ranks > 1 {
		summed = "out"
	}
	if atOnce := min(2*d.ranks, mostAtOnce); a.copies > atOnce {
		t.block(func() {
			t.line("wait channel c-%d done (%d<c)+%d", atOnce, 2*atOnce-1, full*(2*d.ranks-1))
		}, "if %d < c:", atOnce-1)
	}
	rows(func() {
		others(func() {
			theirs := a.slice(d, mate("+"))
			here(theirs, func() { t.line("send %s to %d+%s", a.in("in", theirs), d.first, mate("+")) })
			here(mine, func() {
				add := func(from string) {
					t.line("recv-reduce %s -> %s from %d+%s", a.in(from, mine), a.in("out", mine), d.first, mate("-"))
				}
				t.block(func() { add("in") }, "if j == 0:")
				t.block(func() { add("out") }, "else:")
			})
		})
		here(mine, func() { t.line("send %s to %s", a.in(summed, mine), partner) })
	})
	rows(func() {
		here(mine, func() { t.line("recv -> %s from %s", a.in("out", mine), partner) })
		others(func() {
			theirs := a.slice(d, mate("-"))
			here(mine, func() { t.line("send %s to %d+%s", a.in("out", mine), d.first, mate("+")) })
			here(theirs, func() { t.line("recv -> %s from %d+%s", a.in("out", theirs), d.first, mate("-")) })
		})
	})
}

// statements reads the steps of every channel from a text.
func statements(s Spec, write func(*text)) ([]sched.Stmt, error) {
	t := text{depth: 1}
	write(&t)
	p, err := sched.Parse(fmt.Sprintf("weft 1\nname part\nop %s\nranks %d\nchunks 1\nchannels %d:\n", s.Op, s.Ranks, s.Channels) + t.String())
	if err != nil {
		return nil, err
	}
	return p.Groups[0].Body, nil
}

// beside puts what short domains do beside the steps of the full ones: those up to a slice's sum in tmp, those between domains, and those
// from its result on.
func (a *attached) beside(s Spec, tmp string, sums, between, last []sched.Stmt) ([]sched.Stmt, error) {
	if len(a.list) == 0 {
		return slices.Concat(sums, between, last), nil
	}
	take, err := statements(s, func(t *text) { a.take(t, tmp) })
	if err != nil {
		return nil, err
	}
	give, err := statements(s, a.give)
	if err != nil {
		return nil, err
	}
	rest, err := statements(s, func(t *text) {
		for _, d := range a.list {
			t.block(func() { a.ranks(t, d) }, "if %d < r && r < %d:", d.first-1, d.first+d.ranks)
		}
	})
	full := slices.Concat(sums, take, between, give, last)
	return []sched.Stmt{{If: &sched.If{Cond: op(sched.Lt, name("r"), sched.N(a.full*a.local)), Then: full, Else: rest}}}, err
}

// evenly refuses short domains where blocks would be uneven.
func evenly(s Spec) error {
	full, list, err := s.shorts()
	switch {
	case err != nil:
		return err
	case len(list) > 0 && s.Op != sched.AllReduce:
		return fmt.Errorf("%d ranks in %d domains of %d and smaller ones: every domain must have the same number", s.Ranks, full, s.domain())
	case len(list) > maxShort:
		return errors.New("too many domains have fewer ranks than the others")
	}
	return nil
}

// maxShort is how many short domains a program has at most, as each has steps of its own.
const maxShort = 16
