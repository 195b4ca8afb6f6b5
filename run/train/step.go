package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/weft-fabric/weft/run/train/internal/data"
	"github.com/weft-fabric/weft/run/train/internal/optim"
)

// tape is what forward leaves for the backward pass of one micro-batch.
type tape struct {
	samples int
	tokens  []byte
	x       []float32   // the activation, then its gradient, at the stage's border
	keep    [][]float32 // by unit
	sent    *ticket     // of x on its way to another stage
}

// run is one step under way.
type run struct {
	t      *Trainer
	ctx    context.Context
	stats  Stats
	lo, hi int // the replica's share of the batch
	micros int
	lane   *lane // among replicas
	up     *lane // to the next stage
	down   *lane // to the stage before
	tapes  []*tape
	inner  time.Duration // of sums within the unit at hand
	live   int           // bytes of tapes in use

	feed   *feed
	fresh  []*ticket  // of buckets whose parameters are being gathered (ZeRO 1 and 2)
	filled []float32  // the bucket whose gradients are being computed (ZeRO 2 and 3)
	busy   [2]*parcel // buckets on their way (ZeRO 2 and 3)
	loss   float64
}

// Step takes one step. All ranks of the communicator call it. A context that ends
// during a step is a failure like any other: see the package's comment for what that
// leaves. To stop a run, stop calling.
func (t *Trainer) Step(ctx context.Context) (Stats, error) {
	if t.blank {
		return Stats{}, errors.New("train: a blank rank has no state; Rebuild or Restore it first")
	}
	if err := ctx.Err(); err != nil {
		return Stats{}, fmt.Errorf("train: step %d: %w", t.step+1, err)
	}
	began := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := t.begin(ctx)
	var err error
	if !t.idle {
		err = r.passes()
	}
	if err != nil {
		// Ends what the lanes are waiting for, and what the other ranks are.
		cancel()
		t.abort(err)
	}
	if e := r.end(); err == nil {
		err = e
	}
	r.stats.Passes = time.Since(began)
	if err == nil {
		err = t.reflect(ctx)
	}
	if err == nil {
		t.pending, t.stale = !t.idle, false
		err = r.commit()
	}
	if err == nil {
		r.update()
	}
	r.stats.Wall = time.Since(began)
	if err != nil {
		err = fmt.Errorf("train: step %d: %w", r.stats.Step, err)
		t.abort(err)
	}
	return r.stats, err
}

// abort tells all ranks that the step failed, whatever they are waiting for.
func (t *Trainer) abort(err error) {
	for _, g := range []*group{&t.tensors, &t.stages, &t.replicas, &t.world} {
		if g.c != nil {
			g.c.Abort(err)
		}
	}
}

func (t *Trainer) begin(ctx context.Context) *run {
	r := &run{t: t, ctx: ctx, stats: Stats{Step: t.step + 1}}
	l := t.cfg.Layout
	t.pending = false
	clear(t.grads)
	r.lo, r.hi = data.Share(t.cfg.Batch, t.plan.spot.replica, l.DP)
	most := (t.cfg.Batch + l.DP - 1) / l.DP
	r.micros = (most + t.cfg.Micro - 1) / t.cfg.Micro
	r.stats.Micros = r.micros
	r.tapes = make([]*tape, r.micros)
	if t.idle {
		r.lane = newLane(false, 0)
		return r
	}
	units := len(t.plan.net.Units)
	r.lane = newLane(t.cfg.Overlap && l.DP > 1, r.micros*(3*units+2)+8)
	if !t.cfg.Overlap && l.DP > 1 {
		r.lane.meet = func() error { return barrier(ctx, &t.replicas) }
	}
	if l.PP > 1 {
		r.up, r.down = newLane(true, r.micros), newLane(true, r.micros)
	}
	if l.Zero == 3 {
		r.feed = newFeed(r)
	}
	if l.TP > 1 {
		t.env.Sum = func(buf []float32) error {
			began := time.Now()
			err := allReduce(ctx, &t.tensors, buf)
			r.inner += time.Since(began)
			return err
		}
	}
	return r
}

// passes runs the schedule.
func (r *run) passes() error {
	t := r.t
	r.spread()
	for _, op := range t.cfg.Schedule.Ops(t.plan.spot.stage, t.cfg.Layout.PP, r.micros) {
		var err error
		if op.Backward {
			err = r.backward(op.Micro)
		} else {
			err = r.forward(op.Micro)
		}
		if err != nil {
			return fmt.Errorf("micro-batch %d: %w", op.Micro, err)
		}
	}
	return nil
}

// compute runs f and counts its time as one of a pass's, less that of sums.
func (r *run) compute(to *time.Duration, f func() error) error {
	if err := r.ctx.Err(); err != nil {
		return err // the step is lost; what is left of it is not worth computing
	}
	r.inner = 0
	began := time.Now()
	err := f()
	*to += time.Since(began) - r.inner
	r.stats.Tensor += r.inner
	return err
}

func (r *run) forward(micro int) error {
	t := r.t
	tp, err := r.load(micro)
	if err != nil {
		return err
	}
	stage, last := t.plan.spot.stage, t.cfg.Layout.PP-1
	if stage > 0 {
		if err := r.receive(tp.x, stage-1); err != nil {
			return err
		}
	}
	t.env.Loss = 0
	for i, u := range t.plan.net.Units {
		p, err := r.parameters(i)
		if err != nil {
			return err
		}
		if err := r.compute(&r.stats.Forward, func() error { return u.Forward(&t.env, p, tp.x, tp.keep[i]) }); err != nil {
			return err
		}
	}
	r.loss += t.env.Loss
	if stage < last {
		tp.sent = r.up.do(func() error { return send(r.ctx, &t.stages, tp.x, stage+1) })
	}
	return nil
}

func (r *run) backward(micro int) error {
	t := r.t
	tp := r.tapes[micro]
	r.use(tp)
	stage, last := t.plan.spot.stage, t.cfg.Layout.PP-1
	if stage < last {
		if err := tp.sent.wait(); err != nil {
			return err
		}
		if err := r.receive(tp.x, stage+1); err != nil {
			return err
		}
	}
	for i := len(t.plan.net.Units) - 1; i >= 0; i-- {
		p, err := r.parameters(i)
		if err != nil {
			return err
		}
		g := r.gradients(i)
		if err := r.compute(&r.stats.Backward, func() error {
			return t.plan.net.Units[i].Backward(&t.env, p, g, tp.x, tp.keep[i])
		}); err != nil {
			return err
		}
		if err := r.final(i, micro == r.micros-1); err != nil {
			return err
		}
	}
	if stage > 0 {
		tp.sent = r.down.do(func() error { return send(r.ctx, &t.stages, tp.x, stage-1) })
	}
	r.free(micro)
	return nil
}

// receive waits for another stage.
func (r *run) receive(buf []float32, from int) error {
	began := time.Now()
	err := recv(r.ctx, &r.t.stages, buf, from)
	r.stats.Bubble += time.Since(began)
	return err
}

// use makes a tape's samples those that units work on.
func (r *run) use(tp *tape) {
	e := &r.t.env
	e.Samples, e.Tokens = tp.samples, tp.tokens
	e.Scale = 1 / float32(r.t.cfg.Batch*r.t.cfg.Model.Targets())
}

// load gets a tape for a micro-batch, with its samples.
func (r *run) load(micro int) (*tape, error) {
	t := r.t
	from, to := data.Share(r.hi-r.lo, micro, r.micros)
	samples := to - from
	tp, err := t.tape(samples)
	if err != nil {
		return nil, err
	}
	if s := t.plan.spot.stage; s == 0 || s == t.cfg.Layout.PP-1 {
		for i := range samples {
			at := t.order.At(t.position + uint64(r.lo+from+i))
			copy(tp.tokens[i*(t.cfg.Model.Context+1):], t.text.Window(at))
		}
	}
	r.tapes[micro] = tp
	r.live += tp.bytes()
	t.kept = max(t.kept, r.live)
	r.use(tp)
	return tp, nil
}

// tape takes one of the right size from those that are free, or makes one.
func (t *Trainer) tape(samples int) (*tape, error) {
	for i, tp := range t.tapes {
		if tp.samples == samples {
			t.tapes = append(t.tapes[:i], t.tapes[i+1:]...)
			err := tp.sent.wait()
			tp.sent = nil
			return tp, err
		}
	}
	c := t.cfg.Model
	tp := &tape{samples: samples, tokens: make([]byte, samples*(c.Context+1)), x: make([]float32, c.Rows(samples)*c.Width)}
	for _, u := range t.plan.net.Units {
		tp.keep = append(tp.keep, make([]float32, u.Keep(samples)))
	}
	return tp, nil
}

func (tp *tape) bytes() int {
	n := len(tp.tokens) + 4*len(tp.x)
	for _, k := range tp.keep {
		n += 4 * len(k)
	}
	return n
}

func (r *run) free(micro int) {
	tp := r.tapes[micro]
	r.tapes[micro] = nil
	r.live -= tp.bytes()
	r.t.tapes = append(r.t.tapes, tp)
}

// end waits for everything under way; tapes of passes that were broken off are free again.
func (r *run) end() error {
	errs := []error{r.flush(), r.lane.end()}
	for _, l := range []*lane{r.up, r.down} {
		if l != nil {
			errs = append(errs, l.end())
		}
	}
	r.stats.Comm, r.stats.Exposed = r.lane.busy, r.lane.waited
	for i, tp := range r.tapes {
		if tp != nil {
			r.free(i)
		}
	}
	for _, tp := range r.t.tapes {
		tp.sent = nil
	}
	return first(errs)
}

// first is the first of several errors: the others follow from it.
func first(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// commit agrees on the step's loss and norm. What several ranks hold alike counts
// once: parameters of all tensor ranks at the first, gradients that replicas do
// not share at the first replica.
func (r *run) commit() error {
	t := r.t
	s := t.plan.spot
	began := time.Now()
	var mine [2]float64
	if !t.idle && s.tensor == 0 && s.stage == t.cfg.Layout.PP-1 {
		mine[0] = r.loss
	}
	if t.plan.part > 1 || s.replica == 0 {
		for _, q := range t.plan.owned {
			if s.tensor == 0 || !t.plan.net.Params[q.param].Copy {
				mine[1] += optim.Square(t.gradient(q))
			}
		}
	}
	err := allReduce(r.ctx, &t.world, mine[:])
	r.stats.Commit = time.Since(began)
	if err == nil {
		t.last = verdict{loss: mine[0], square: mine[1]}
	}
	return err
}

// update takes the step that was agreed on.
func (r *run) update() {
	began := time.Now()
	t := r.t
	targets := t.cfg.Batch * t.cfg.Model.Targets()
	r.stats.Loss, r.stats.Norm = t.last.loss/float64(targets), math.Sqrt(t.last.square)
	r.stats.Tokens, r.stats.Rate = targets, t.rate()
	r.stats.Skipped = !t.apply()
	r.stats.Update = time.Since(began)
}

// rate is the learning rate of the next step.
func (t *Trainer) rate() float64 { return t.cfg.Rate.At(t.step) }

// apply updates what the rank owns from complete gradients and the verdict; false:
// the norm was no number.
func (t *Trainer) apply() bool {
	norm := math.Sqrt(t.last.square)
	good := !math.IsNaN(norm) && !math.IsInf(norm, 0)
	if good {
		factor, rate := optim.Clip(norm, t.cfg.Clip), t.rate()
		for _, q := range t.plan.owned {
			t.cfg.Adam.Update(t.step+1, rate, factor, t.plan.net.Params[q.param].Decay, t.parameter(q), t.gradient(q), t.moment(t.first, q),
				t.moment(t.second, q))
		}
		if m := t.mirror; m != nil {
			m.each(func(q segment, at int) {
				t.cfg.Adam.Update(t.step+1, rate, factor, m.plan.net.Params[q.param].Decay, m.params[at:][:q.n], m.grads[at:][:q.n], m.first[at:][:q.n],
					m.second[at:][:q.n])
			})
		}
		t.stale = t.cfg.Layout.Zero == 1 || t.cfg.Layout.Zero == 2
	}
	t.step++
	t.position += uint64(t.cfg.Batch)
	t.pending = false
	return good
}

// parameter, gradient and moment are a segment's elements in their buffers.
func (t *Trainer) parameter(q segment) []float32 {
	if t.cfg.Layout.Zero == 3 {
		return t.params[q.at:][:q.n]
	}
	return t.params[q.lo:][:q.n]
}

func (t *Trainer) gradient(q segment) []float32 {
	if t.cfg.Layout.Zero >= 2 {
		return t.grads[q.at:][:q.n]
	}
	return t.grads[q.lo:][:q.n]
}

func (t *Trainer) moment(of []float32, q segment) []float32 {
	if t.cfg.Layout.Zero >= 1 {
		return of[q.at:][:q.n]
	}
	return of[q.lo:][:q.n]
}
