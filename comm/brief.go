package comm

import (
	"github.com/weft-fabric/weft/sched"
)

// brief is what a rank does in an operation of which every input fits into an
// entry, worked out once for all operations of one shape: what a rank gives is in
// the line that says that it came, and nothing else has to be found, waited for or
// given back. Of such operations the calls themselves are most of the time.
type brief struct {
	gives bool // others read this rank's input
	parts []part
}

// part is a part of the output: what the ranks have at a place of their inputs,
// moved or summed.
type part struct {
	lo, hi int
	srcs   []source
}

type source struct{ rank, at int }

// newBrief gives the brief form of an operation, nil if it has none.
func newBrief(c *Comm, o *op) *brief {
	f := o.ready.flat
	if f == nil || f.pushes {
		return nil
	}
	for i := range c.members {
		if o.shape.bytes(o.op, sched.In, i, len(c.members)) > inlineSize {
			return nil
		}
	}
	own := &f.ranks[c.rank]
	b := &brief{gives: len(own.exports) > 0}
	if o.op == sched.Broadcast && c.rank == o.root { // which has it where it belongs
		return b
	}
	for _, list := range [][]kernel{own.sums, own.moves} {
		for _, k := range list {
			var p part
			p.lo, p.hi = o.shape.span(o.op, sched.Out, c.rank, int(k.dsts[0].chunk))
			for _, s := range k.srcs {
				at, _ := o.shape.span(o.op, sched.In, int(s.rank), int(s.chunk))
				p.srcs = append(p.srcs, source{int(s.rank), at})
			}
			if p.lo < p.hi {
				b.parts = append(b.parts, p)
			}
		}
	}
	return b
}

func (c *Comm) runBrief(o *op) error {
	own := &o.ready.flat.ranks[c.rank]
	c.phase = entering
	if err := c.mayEnter(o); err != nil {
		return err
	}
	at := entryAt(o.call.Seq)
	line, mode := c.boards[c.rank].entryAt(at), uint64(inNowhere)
	if o.brief.gives {
		mode = inEntry
		o.inline(line[entryData:])
	}
	c.announce(o, line, mode, own.oneWay)
	for _, i := range own.reads {
		if _, err := c.hear(o, int(i)); err != nil {
			return err
		}
	}
	if len(own.reads) == len(c.members)-1 {
		c.low = o.call.Seq
	}
	find := func(s source, n int) []byte {
		if s.rank == c.rank {
			return o.in[s.at:][:n]
		}
		return c.boards[s.rank].entryAt(at)[entryData+s.at:][:n]
	}
	for k := range o.brief.parts {
		p := &o.brief.parts[k]
		dst := o.out[p.lo:p.hi]
		if len(p.srcs) == 1 {
			copy(dst, find(p.srcs[0], len(dst)))
			continue
		}
		o.srcs = o.srcs[:0]
		for _, s := range p.srcs {
			o.srcs = append(o.srcs, find(s, len(dst)))
		}
		c.apply(o, o.srcs, dst, nil)
	}
	return nil
}
