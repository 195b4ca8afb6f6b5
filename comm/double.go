package comm

import (
	"github.com/weft-fabric/weft/reduce"
	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/sched/step"
	"github.com/weft-fabric/weft/transport"
)

// Small all-reduces over messages are mostly recursive doubling, whose script is
//
//	copy in -> out
//	send out to a rank, recv-reduce out -> out from one       as often as it has to be
//
// with the whole buffer as its only chunk. Nothing but the ranks is left to look up then,
// and comm takes 0.28 us for 8 bytes and two ranks, rather than 0.45 with the loop of
// runChannel, which is for any script.

// doubles reports whether a script is of that form.
func (s *script) doubles(p *sched.Program) bool {
	in, out := step.Chunks{Buf: sched.In, Count: 1}, step.Chunks{Buf: sched.Out, Count: 1}
	if p.Op != sched.AllReduce || s.in != 1 || s.out != 1 || len(s.channels) != 1 || len(s.channels[0])%2 != 1 {
		return false
	}
	for i := range s.channels[0] {
		a := &s.channels[0][i]
		switch {
		case i == 0 && a.Op == sched.Copy && a.Src == in && a.Dst == out:
		case i%2 == 1 && a.Op == sched.Send && a.Src == out:
		case i > 0 && i%2 == 0 && a.Op == sched.RecvReduce && a.Src == out && a.Dst == out:
		default:
			return false
		}
	}
	return true
}

// double carries out such a script, on up to smallSize bytes.
func (c *Comm) double(o *op, list []action) error {
	if o.overlap {
		o.kept.copy = c.stages.scratch(useKept, len(o.in))
		o.kept.save(o.in)
	} else {
		copy(o.out, o.in)
	}
	o.step(&list[0], o.began)
	sum := &c.stages.sum
	sum.set(o)
	for i := 1; i < len(list); i += 2 {
		to, from := &list[i], &list[i+1]
		c.boards[c.rank].waitsFor(int(from.From), int(from.Channel), i+1)
		sum.begin(o.out, o.out, nil)
		err := c.swapper.Exchange(transport.Outgoing{To: int(to.To), Channel: int(to.Channel), Bytes: o.out},
			transport.Incoming{From: int(from.From), Channel: int(from.Channel), N: len(o.out), Take: sum.add, After: true}, nil)
		now := ticks()
		o.step(to, now)
		if err != nil {
			return err
		}
		o.step(from, now)
	}
	return nil
}

// mayDouble reports whether an operation may be carried out so.
func (c *Comm) mayDouble(o *op, s *script) bool {
	return s.double && c.swapper != nil && len(o.out) > 0 && len(o.out) <= smallSize && len(o.in) == len(o.out) && o.red != reduce.PreMulSum
}
