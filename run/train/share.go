package train

import (
	"github.com/weft-fabric/weft/run/train/model"
)

// What replicas share: gradients are summed bucket by bucket, parameters gathered
// as they are needed.
//
//	ZeRO   a bucket whose gradients are final                  parameters
//	0      all-reduce, in place                                whole, updated by all alike
//	1      reduce-scatter, in place: the own share is right    whole; what others updated is gathered
//	                                                           while the next step's forward begins
//	2      reduce-scatter, added to the own shares; the        the same
//	       bucket's buffer is used again
//	3      the same, a unit at a time                          gathered before each use, one unit ahead
//
// With ZeRO 0 and 1 gradients of a replica's micro-batches add up in its buffer and
// are final in the last one's backward pass; with 2 and 3, which have no such
// buffer, every micro-batch is reduced.

// parcel is a bucket's buffer on its way.
type parcel struct {
	buf    []float32
	ticket *ticket
}

// bucketOf is the number of the bucket that a unit is in.
func (p *plan) bucketOf(unit int) int {
	for i, b := range p.buckets {
		if unit < b.to {
			return i
		}
	}
	panic("train: unit behind the last bucket")
}

// parameters of a unit, at hand.
func (r *run) parameters(unit int) ([]float32, error) {
	if r.feed != nil {
		return r.feed.get(unit)
	}
	if r.fresh != nil {
		if err := r.fresh[r.t.plan.bucketOf(unit)].wait(); err != nil {
			return nil, err
		}
	}
	s := r.t.plan.net.Spans[unit]
	return r.t.params[s.Lo:s.Hi], nil
}

// gradients of a unit, to be added to.
func (r *run) gradients(unit int) []float32 {
	t := r.t
	s := t.plan.net.Spans[unit]
	if t.cfg.Layout.Zero < 2 {
		return t.grads[s.Lo:s.Hi]
	}
	b := t.plan.buckets[t.plan.bucketOf(unit)]
	if r.filled == nil {
		r.filled = t.spare(b.Len())
	}
	return r.filled[s.Lo-b.Lo : s.Hi-b.Lo]
}

// spare is a zeroed buffer for a bucket.
func (t *Trainer) spare(n int) []float32 {
	for i, s := range t.spares {
		if cap(s) >= n {
			t.spares = append(t.spares[:i], t.spares[i+1:]...)
			s = s[:n]
			clear(s)
			return s
		}
	}
	most := 0
	for _, b := range t.plan.buckets {
		most = max(most, b.Len())
	}
	return make([]float32, n, most)
}

// final is told that backward has left a unit, and hands on its bucket when that
// is complete.
func (r *run) final(unit int, lastMicro bool) error {
	t := r.t
	b := t.plan.buckets[t.plan.bucketOf(unit)]
	if unit != b.from {
		return nil
	}
	zero := t.cfg.Layout.Zero
	if zero < 2 {
		if lastMicro && t.replicas.size() > 1 {
			r.stats.Bytes += b.Len() * t.cfg.Wire.Size()
			r.lane.do(func() error {
				return t.wire.sum(r.ctx, &t.replicas, t.cfg.Wire, t.grads[b.Lo:b.Hi], zero == 1)
			})
		}
		return nil
	}
	buf := r.filled
	r.filled = nil
	r.stats.Bytes += b.Len() * t.cfg.Wire.Size()
	tk := r.lane.do(func() error {
		if err := t.wire.sum(r.ctx, &t.replicas, t.cfg.Wire, buf, true); err != nil {
			return err
		}
		s := t.plan.share(b.Span, t.plan.spot.replica)
		own := t.grads[b.Lo/t.plan.part:][:s.Len()]
		for i, v := range buf[s.Lo-b.Lo:][:s.Len()] {
			own[i] += v
		}
		return nil
	})
	// Two buckets may be on their way; a third waits for the first.
	if p := r.busy[0]; p != nil {
		if err := p.ticket.wait(); err != nil {
			return err
		}
		t.spares = append(t.spares, p.buf)
	}
	r.busy[0], r.busy[1] = r.busy[1], &parcel{buf, tk}
	return nil
}

// flush waits for buckets on their way.
func (r *run) flush() error {
	var errs []error
	for i, p := range r.busy {
		if p != nil {
			errs = append(errs, p.ticket.wait())
			r.t.spares = append(r.t.spares, p.buf)
			r.busy[i] = nil
		}
	}
	if r.filled != nil {
		r.t.spares = append(r.t.spares, r.filled)
		r.filled = nil
	}
	if r.feed != nil {
		errs = append(errs, r.feed.end())
	}
	return first(errs)
}

// spread begins to gather the parameters that the last step updated (ZeRO 1 and 2),
// in the order in which forward uses them. What a rank owns is right, and is all
// that is sent: it may be done again after a failure.
func (r *run) spread() {
	t := r.t
	if !t.stale {
		return
	}
	for _, b := range t.plan.buckets {
		s := t.plan.share(b.Span, t.plan.spot.replica)
		r.stats.Bytes += 4 * b.Len()
		r.fresh = append(r.fresh, r.lane.do(func() error {
			return allGather(r.ctx, &t.replicas, t.params[b.Lo:b.Hi], t.params[s.Lo:s.Hi])
		}))
	}
}

// feed gathers the parameters of units in the order in which a step uses them, one
// use ahead of it (ZeRO 3).
type feed struct {
	r    *run
	uses []int // units; one that is used twice in a row is there once
	at   int   // the use whose parameters are at hand; -1: none yet
	hand []float32
	next []float32
	come *ticket // of next
}

// newFeed lists in which order a step needs the weights of the layers, so that the next ones can be gathered while one
// is computed. Two buffers do: one in use, one being filled.
func newFeed(r *run) *feed {
	t := r.t
	f := &feed{r: r, at: -1}
	n := len(t.plan.net.Units)
	for _, op := range t.cfg.Schedule.Ops(t.plan.spot.stage, t.cfg.Layout.PP, r.micros) {
		for i := range n {
			unit := i
			if op.Backward {
				unit = n - 1 - i
			}
			if k := len(f.uses); k == 0 || f.uses[k-1] != unit {
				f.uses = append(f.uses, unit)
			}
		}
	}
	if t.units == nil {
		most := 0
		for _, s := range t.plan.net.Spans {
			most = max(most, s.Len())
		}
		t.units = [][]float32{make([]float32, most), make([]float32, most)}
	}
	f.hand, f.next = t.units[0], t.units[1]
	return f
}

// get gives the parameters of the unit that is used now.
func (f *feed) get(unit int) ([]float32, error) {
	t := f.r.t
	s := t.plan.net.Spans[unit]
	if f.at >= 0 && f.uses[f.at] == unit {
		return f.hand[:s.Len()], nil
	}
	if f.come == nil {
		f.fetch(s)
	}
	if err := f.come.wait(); err != nil {
		return nil, err
	}
	f.at++
	f.come = nil
	f.hand, f.next = f.next, f.hand
	if f.at+1 < len(f.uses) && t.cfg.Overlap {
		f.fetch(t.plan.net.Spans[f.uses[f.at+1]])
	}
	return f.hand[:s.Len()], nil
}

// fetch begins to gather a unit.
func (f *feed) fetch(s model.Span) {
	t := f.r.t
	n := s.Len() / t.plan.part
	to, from := f.next[:s.Len()], t.params[s.Lo/t.plan.part:][:n]
	f.r.stats.Bytes += 4 * s.Len()
	f.come = f.r.lane.do(func() error { return allGather(f.r.ctx, &t.replicas, to, from) })
}

func (f *feed) end() error { return f.come.wait() }
