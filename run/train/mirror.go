package train

import (
	"context"

	"github.com/weft-fabric/weft/run/comm"
)

// mirror is a second copy of what another rank owns, so that nothing is lost with
// that rank: parameters, both moments, and the gradients of the step under way.
//
//	rank r    owns its share, mirrors that of r-1, and is mirrored by r+1
//
// Before the commit of a step each rank sends its reduced gradients to its mirror,
// which takes the same update on its copy once the step is agreed on: the copy
// follows bit by bit, for 4 bytes an owned parameter and step, and there is no
// moment at which it is of another step than the share itself. A copy of the state
// sent after the update would be a step behind whenever a rank died before it was
// through, and the others could not go back.
//
// Without ZeRO every replica is the mirror of the others, and none is kept. Two
// neighbours that die at once take the share with them; a checkpoint has it.
type mirror struct {
	of                           int // rank of the layout
	plan                         *plan
	params, grads, first, second []float32 // of the owned segments, one after the other
	out                          []float32 // own gradients on their way
}

// mirrored reports whether a layout holds any part once only.
func (l Layout) mirrored() bool { return l.Ranks() > 1 && (l.Zero > 0 || l.DP == 1) }

// newMirror makes one of the rank before.
func newMirror(c Config, rank int) (*mirror, error) {
	n := c.Layout.Ranks()
	m := &mirror{of: (rank + n - 1) % n}
	var err error
	if m.plan, err = newPlan(c, c.Layout, m.of); err != nil {
		return nil, err
	}
	size := m.plan.size()
	m.params, m.grads, m.first, m.second = make([]float32, size), make([]float32, size), make([]float32, size), make([]float32, size)
	return m, nil
}

// size is the number of elements that a rank owns.
func (p *plan) size() int {
	n := 0
	for _, q := range p.owned {
		n += q.n
	}
	return n
}

// each calls f for every segment with its place in the mirror's buffers.
func (m *mirror) each(f func(q segment, at int)) {
	at := 0
	for _, q := range m.plan.owned {
		f(q, at)
		at += q.n
	}
}

// fill gives every parameter its first value.
func (m *mirror) fill(seed uint64) {
	whole := make([]float32, m.plan.net.Len)
	m.plan.net.Fill(whole, seed)
	m.each(func(q segment, at int) { copy(m.params[at:][:q.n], whole[q.lo:]) })
}

// boxes are those that the mirror holds.
func (m *mirror) boxes() []Box {
	var list []Box
	m.each(func(q segment, at int) {
		p := m.plan.net.Params[q.param]
		list = append(list, boxes(p.Name, p, q.lo-p.At, q.n, m.params[at:][:q.n])...)
		list = append(list, boxes(firstPrefix+p.Name, p, q.lo-p.At, q.n, m.first[at:][:q.n])...)
		list = append(list, boxes(secondPrefix+p.Name, p, q.lo-p.At, q.n, m.second[at:][:q.n])...)
	})
	return list
}

// share is what the mirrored rank owns, as deal sends it: parameters and both
// moments of each segment in turn.
func (m *mirror) share(to []float32) {
	m.each(func(q segment, at int) {
		for _, s := range [][]float32{m.params, m.first, m.second} {
			to = to[copy(to, s[at:][:q.n]):]
		}
	})
}

// reflect sends the own gradients to the rank that mirrors this one, and takes
// those of the rank that this one mirrors.
func (t *Trainer) reflect(ctx context.Context) error {
	m := t.mirror
	if m == nil {
		return nil
	}
	m.out = m.out[:0]
	for _, q := range t.plan.owned {
		m.out = append(m.out, t.gradient(q)...)
	}
	g, n := &t.world, t.cfg.Layout.Ranks()
	return g.call("mirror", func() error {
		var sent *comm.Handle
		if len(m.out) > 0 {
			sent = comm.SendAsync(ctx, g.c, m.out, (g.rank()+1)%n)
		}
		if len(m.grads) > 0 {
			if err := comm.Recv(ctx, g.c, m.grads, m.of); err != nil {
				return err
			}
		}
		if sent != nil {
			return sent.Wait(ctx)
		}
		return nil
	})
}
