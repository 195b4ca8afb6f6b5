package train

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/run/comm"
)

// LostError says that the ranks at hand do not hold the whole state: it must come
// from a checkpoint.
type LostError struct {
	Layout Layout // of the ranks that held it
	Parts  []int  // ranks of that layout nobody at hand can stand in for, in order
}

func (e *LostError) Error() string {
	var list []string
	for _, p := range e.Parts {
		list = append(list, fmt.Sprint(p))
	}
	return fmt.Sprintf("train: nobody holds the state of rank %s of %v; restore it from a checkpoint", strings.Join(list, ", "), e.Layout)
}

// ErrStateless is what Rebuild returns where no rank has any state: Begin.
var ErrStateless = errors.New("train: no rank has any state; Begin from the seed or a checkpoint")

// passport is what a rank brings to Rebuild. Whole numbers up to 2^53 are exact in
// a float64.
type passport struct {
	holds    bool
	step     int
	pending  bool
	rank     int // in the layout
	mirror   int // rank in the layout whose share it holds, too; -1: none
	layout   Layout
	bucket   int
	position uint64
	batch    int
	rate     float64
	floor    float64
	verdict  verdict // of the last step taken
}

const passportSize = 16

func (p passport) floats() []float64 {
	bit := func(b bool) float64 {
		if b {
			return 1
		}
		return 0
	}
	return []float64{bit(p.holds), float64(p.step), bit(p.pending), float64(p.rank),
		float64(p.layout.DP), float64(p.layout.TP), float64(p.layout.PP), float64(p.layout.Zero),
		float64(p.bucket), float64(p.position), float64(p.batch), p.rate, p.floor, p.verdict.loss, p.verdict.square, float64(p.mirror)}
}

func readPassport(f []float64) passport {
	return passport{holds: f[0] == 1, step: int(f[1]), pending: f[2] == 1, rank: int(f[3]),
		layout: Layout{DP: int(f[4]), TP: int(f[5]), PP: int(f[6]), Zero: int(f[7])},
		bucket: int(f[8]), position: uint64(f[9]), batch: int(f[10]), rate: f[11], floor: f[12], verdict: verdict{f[13], f[14]},
		mirror: int(f[15])}
}

// Rebuild goes on with the ranks of another communicator, at a step's boundary: it
// may have fewer ranks, more of them (Blank ones have no state yet), or the same.
// The layout is what Fit makes of the one that was asked for last, by New, Blank or
// RebuildAs, so that ranks that come back bring back stages and tensor ranks that
// could not be kept without them. All ranks of c call it. See RebuildAs.
func (t *Trainer) Rebuild(ctx context.Context, c *comm.Comm) error {
	world := group{c: c, fault: t.world.fault}
	return t.rebuild(ctx, world, t.cfg.wanted.Fit(world.size()), true)
}

// RebuildAs is Rebuild in another layout, the same on all ranks; its DP may be 0.
//
// If some of the ranks had taken a step in whose commit others failed, those take
// it now from the gradients that they hold, so that no step is lost; otherwise all
// are at the same step. Then the state is dealt out anew: every part that a
// replica of the old layout owns is broadcast by the first rank that holds it, and
// every rank keeps what the new layout gives it. If a part is held by nobody the
// error is a *LostError, and Begin and Restore on c begin again from a checkpoint.
//
// No rank gives up what it had before all have what they are dealt: they meet in a
// barrier. A rank whose barrier fails keeps both, as others may have passed theirs, and
// the next Rebuild takes whichever is whole.
//
// After an error the trainer still has the state and layout it had, and Rebuild may
// be called again with another communicator.
func (t *Trainer) RebuildAs(ctx context.Context, c *comm.Comm, l Layout) error {
	was := t.cfg.wanted
	t.cfg.wanted = l
	err := t.rebuild(ctx, group{c: c, fault: t.world.fault}, l, false)
	if err != nil {
		t.cfg.wanted = was
	}
	return err
}

// rebuild moves the training to another group of ranks and another layout: those that have a part of the state send it
// to those that need it. All ranks of the new group call it. Only on success does t change; its old communicators are
// closed then.
func (t *Trainer) rebuild(ctx context.Context, world group, l Layout, fitted bool) error {
	all, err := t.exchange(ctx, &world)
	if err != nil {
		return err
	}
	head, holders, err := t.source(all, world.rank())
	if err != nil {
		return err
	}
	cfg := t.cfg
	cfg.Layout, cfg.fitted = l, fitted
	cfg.Batch, cfg.Rate.Peak, cfg.Rate.Floor = head.batch, head.rate, head.floor
	if cfg.Elastic == ScaleRate {
		to := l
		if !fitted {
			if to, err = l.on(world.size()); err != nil {
				return err
			}
		}
		cfg = cfg.scaled(head.layout.DP, to.DP)
	}
	next, err := prepare(ctx, cfg, world)
	if err != nil {
		return err
	}
	if err := t.deal(ctx, next, head.layout, head.bucket, holders); err != nil {
		// Others may be through with it already, and would wait for this rank in their
		// next step.
		next.abort(err)
		return errors.Join(err, next.Close())
	}
	next.take(Meta{Step: head.step, Position: head.position, Batch: next.cfg.Batch, Rate: next.cfg.Rate.Peak, Floor: next.cfg.Rate.Floor})
	next.last = head.verdict
	if world.size() > 1 {
		if err := barrier(ctx, &next.world); err != nil {
			next.abort(err)
			t.ready = next
			return err
		}
	}
	_ = t.Close() // of communicators that may be broken; nothing is lost with them
	*t = *next
	return nil
}

// stepsOf are the steps that ranks hold, in order.
func stepsOf(all []passport) (steps []int) {
	for _, p := range all {
		if p.holds {
			steps = append(steps, p.step)
		}
	}
	slices.Sort(steps)
	return slices.Compact(steps)
}

// source finds the state to go on from: the latest step of which every part is held by
// some rank. Ranks in whose commit that step failed take it here. After a Rebuild that
// succeeded on some ranks only, ranks hold the step in two layouts, of which one is
// whole.
func (t *Trainer) source(all []passport, me int) (head passport, holders []holder, err error) {
	steps := stepsOf(all)
	if len(steps) == 0 {
		return head, nil, ErrStateless
	}
	for _, step := range slices.Backward(steps) {
		view := viewAt(all, step)
		for _, p := range view {
			if !p.holds {
				continue
			}
			holders, e := p.layout.holders(view, p.bucket)
			if e == nil {
				if mine := all[2*me]; mine.holds && mine.pending && mine.step == step-1 {
					t.last = p.verdict
					t.apply()
				}
				t.settle(p)
				return p, holders, nil
			}
			if err == nil {
				err = e
			}
		}
	}
	return head, nil, err
}

// viewAt is what ranks hold of a step: those in whose commit it failed take it with the
// verdict of the others.
func viewAt(all []passport, step int) []passport {
	view := slices.Clone(all)
	i := slices.IndexFunc(all, func(p passport) bool { return p.holds && p.step == step })
	for r := range view {
		p := &view[r]
		switch {
		case !p.holds || p.step == step:
		case p.pending && p.step == step-1:
			p.step, p.verdict = step, all[i].verdict
			p.position += uint64(p.batch)
		default:
			p.holds = false
		}
	}
	return view
}

// settle gives up what is not needed to go on from a state that is whole: what this
// rank was dealt last, or what it had before.
func (t *Trainer) settle(head passport) {
	is := func(t *Trainer) bool {
		return !t.blank && !t.idle && t.step == head.step && t.cfg.Layout == head.layout && t.cfg.BucketBytes == head.bucket
	}
	ready := t.ready
	switch {
	case ready == nil:
	case is(ready) && !is(t):
		t.ready = nil
		_ = t.Close()
		*t = *ready
	default:
		_ = ready.Close()
		t.ready = nil
	}
}

// scaled is the run on another number of replicas with the samples of each kept:
// the batch follows, and the learning rate with it.
func (c Config) scaled(from, to int) Config {
	each := (c.Batch + from - 1) / from
	batch := each * to
	factor := float64(batch) / float64(c.Batch)
	c.Batch = batch
	c.Rate.Peak *= factor
	c.Rate.Floor *= factor
	return c
}

// passport is what the rank brings.
func (t *Trainer) passport() passport {
	p := passport{mirror: -1}
	if t == nil || t.blank || t.idle {
		return p
	}
	p = passport{holds: true, step: t.step, pending: t.pending, rank: t.world.rank(), mirror: -1, layout: t.cfg.Layout,
		bucket:   t.cfg.BucketBytes,
		position: t.position, batch: t.cfg.Batch, rate: t.cfg.Rate.Peak, floor: t.cfg.Rate.Floor, verdict: t.last}
	if t.mirror != nil {
		p.mirror = t.mirror.of
	}
	return p
}

// exchange tells every rank of a group what the others bring: two passports each, of
// what a rank has and of what it was dealt in a Rebuild that failed in its end.
func (t *Trainer) exchange(ctx context.Context, world *group) ([]passport, error) {
	flat := make([]float64, 2*passportSize*world.size())
	if err := allGather(ctx, world, flat, append(t.passport().floats(), t.ready.passport().floats()...)); err != nil {
		return nil, err
	}
	var all []passport
	for r := range 2 * world.size() {
		all = append(all, readPassport(flat[r*passportSize:][:passportSize]))
	}
	return all, nil
}

// holder is a rank of a layout whose state is to be dealt out, and who does it.
type holder struct {
	part   int  // rank of the old layout
	root   int  // rank of the new communicator
	mirror bool // what it has of the part is a mirror's
}

// holders gives the parts of a layout and, for each, the first rank that holds it:
// without ZeRO every replica holds the same. Where none does its mirror may.
func (l Layout) holders(all []passport, bucket int) ([]holder, error) {
	same := func(a, b int) bool {
		x, y := l.spot(a), l.spot(b)
		return x.tensor == y.tensor && x.stage == y.stage && (l.Zero == 0 || x.replica == y.replica)
	}
	parts := l.Ranks()
	if l.Zero == 0 {
		parts = l.TP * l.PP // those of the first replica
	}
	var list []holder
	var lost []int
	for part := range parts {
		find := func(has func(p passport) bool) int {
			i := slices.IndexFunc(all, func(p passport) bool {
				return p.holds && p.layout == l && p.bucket == bucket && has(p)
			})
			if i < 0 {
				return -1
			}
			return i / 2 // each rank brings two
		}
		h := holder{part: part, root: find(func(p passport) bool { return same(p.rank, part) })}
		if h.root < 0 {
			h.mirror, h.root = true, find(func(p passport) bool { return p.mirror >= 0 && same(p.mirror, part) })
		}
		if h.root < 0 {
			lost = append(lost, part)
			continue
		}
		list = append(list, h)
	}
	if lost != nil {
		return nil, &LostError{Layout: l, Parts: lost}
	}
	return list, nil
}

// deal broadcasts every part of the old layout and keeps what next needs of it.
func (t *Trainer) deal(ctx context.Context, next *Trainer, old Layout, bucketBytes int, holders []holder) error {
	want := map[string][]Box{}
	for _, b := range next.all() {
		want[b.Name] = append(want[b.Name], b)
	}
	cfg := next.cfg
	cfg.BucketBytes = bucketBytes
	for _, h := range holders {
		p, err := newPlan(cfg, old, h.part)
		if err != nil {
			return err
		}
		// A trainer of the part, with buffers for what it owns only.
		total := 0
		for _, q := range p.owned {
			total += 3 * q.n
		}
		buf := make([]float32, total)
		if h.root == next.world.rank() && h.mirror {
			t.mirror.share(buf)
		} else if h.root == next.world.rank() {
			at := 0
			for i, q := range p.owned {
				mine := t.plan.owned[i]
				for _, s := range [][]float32{t.parameter(mine), t.moment(t.first, mine), t.moment(t.second, mine)} {
					at += copy(buf[at:], s[:q.n])
				}
			}
		}
		if err := broadcast(ctx, &next.world, buf, h.root); err != nil {
			return err
		}
		for _, q := range p.owned {
			par := p.net.Params[q.param]
			for _, prefix := range []string{"", firstPrefix, secondPrefix} {
				for _, b := range boxes(prefix+par.Name, par, q.lo-par.At, q.n, buf[:q.n]) {
					for _, w := range want[b.Name] {
						copyBox(w, b)
					}
				}
				buf = buf[q.n:]
			}
		}
	}
	return nil
}
