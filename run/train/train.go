// Package train is the reference trainer: a GPT or an MLP on the ranks of a
// communicator, in any layout of data, tensor and pipeline parallel and ZeRO.
//
//	t, err := train.New(ctx, train.Default(), c)     // c from comm.Join or comm.Local; nil: alone
//	stats, err := t.Step(ctx)                        // on every rank
//
// A step's global batch depends on seed and step alone, and every layout starts from the
// same parameters. All layouts therefore follow a single process's loss curve, up to
// rounding; a given layout has the same bits on every run.
//
// A step is
//
//	passes    forward and backward over the replica's micro-batches (package pipe's
//	          order); parameters that other replicas own are gathered before they are
//	          used, gradients are reduced bucket by bucket as they become final
//	commit    one all-reduce of loss and gradient norm over all ranks
//	update    AdamW on what the rank owns; no communication
//
// Nothing that outlives a step changes before the commit. A step that fails before the
// commit leaves parameters, moments and step number unchanged on every rank. If it fails
// in the commit itself, some ranks may have committed. The others still hold their
// reduced gradients, and Rebuild brings them forward with the committed numbers. After a
// failed step the communicator is unusable; Rebuild continues with another one.
package train

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/train/internal/data"
	"github.com/weft-fabric/weft/run/train/model"
)

// Trainer is one rank of a run. It is not for several goroutines at once.
type Trainer struct {
	cfg   Config
	plan  *plan
	text  *data.Text
	order data.Order

	world, replicas, tensors, stages group

	// Flat buffers; with ZeRO those of what is shared hold the owned part only.
	params, grads, first, second []float32
	mirror                       *mirror // of another rank; nil: none is kept

	step     int    // steps taken
	position uint64 // samples read
	blank    bool   // holds no state yet
	idle     bool   // the layout has no place for this rank: it agrees on steps, and holds nothing
	pending  bool   // gradients of the next step are complete; its commit failed
	stale    bool   // parameters that other replicas own are not up to date
	last     verdict

	// ready is what this rank was dealt in a Rebuild that failed in its very end: others
	// may have ended it well, and then go on from there.
	ready *Trainer

	env    model.Env
	wire   narrow
	tapes  []*tape
	spares [][]float32 // whole buckets of gradients (ZeRO 2 and 3)
	units  [][]float32 // gathered parameters of units (ZeRO 3)
	kept   int         // bytes of activations, at most, of a step
}

// verdict is what ranks agree on in the commit of a step.
type verdict struct {
	loss   float64 // sum over the batch's targets
	square float64 // of the gradients' norm
}

// New starts a run from its seed on the ranks of c, which all call it; c may be nil
// for a rank alone. The communicator stays the caller's.
func New(ctx context.Context, cfg Config, c *comm.Comm) (*Trainer, error) {
	cfg.wanted = cfg.Layout
	t, err := prepare(ctx, cfg, group{c: c})
	if err != nil {
		return nil, err
	}
	t.fill()
	return t, nil
}

// Begin starts the trainer's run from its seed on the ranks of c, which all call
// it, in the layout that Fit makes of the one that was asked for. What state the
// trainer had is gone.
func (t *Trainer) Begin(ctx context.Context, c *comm.Comm) error {
	cfg, world := t.cfg, group{c: c, fault: t.world.fault}
	cfg.Layout, cfg.fitted = cfg.wanted.Fit(world.size()), true
	next, err := prepare(ctx, cfg, world)
	if err != nil {
		return err
	}
	_ = t.Close() // of communicators that may be broken; nothing is lost with them
	next.fill()
	*t = *next
	return nil
}

// fill gives every parameter its first value.
func (t *Trainer) fill() {
	if t.idle {
		t.blank = false
		return
	}
	if t.cfg.Layout.Zero < 3 {
		t.plan.net.Fill(t.params, t.cfg.Seed)
	} else {
		whole := make([]float32, t.plan.net.Len)
		t.plan.net.Fill(whole, t.cfg.Seed)
		for _, s := range t.plan.owned {
			copy(t.params[s.at:][:s.n], whole[s.lo:])
		}
	}
	if t.mirror != nil {
		t.mirror.fill(t.cfg.Seed)
	}
	t.blank = false
}

// Blank is a rank that has no state yet: it gets its share in Rebuild or Restore.
func Blank(cfg Config) *Trainer {
	cfg.wanted = cfg.Layout
	return &Trainer{cfg: cfg, blank: true}
}

// prepare makes a trainer with buffers but without state. What is wrong on one rank
// alone the others hear of, too: nobody waits for a rank that has given up.
func prepare(ctx context.Context, cfg Config, world group) (*Trainer, error) {
	t := &Trainer{world: world, blank: true}
	err := t.layOut(cfg)
	if e := t.agree(ctx, err == nil); err == nil {
		err = e
	}
	if err != nil {
		return nil, err
	}
	if err := t.split(ctx); err != nil {
		t.abort(err)
		return nil, errors.Join(err, t.Close())
	}
	if t.idle {
		return t, nil
	}
	whole, part := t.plan.net.Len, t.plan.net.Len/t.plan.part
	size := func(shared bool) []float32 {
		if shared {
			return make([]float32, part)
		}
		return make([]float32, whole)
	}
	zero := t.cfg.Layout.Zero
	t.params, t.grads = size(zero >= 3), size(zero >= 2)
	t.first, t.second = size(zero >= 1), size(zero >= 1)
	if t.cfg.Mirror && t.cfg.Layout.mirrored() {
		// Every rank made the plan of its own place; that of another is as good.
		if t.mirror, err = newMirror(t.cfg, t.world.rank()); err != nil {
			t.abort(err)
			return nil, errors.Join(err, t.Close())
		}
	}
	return t, nil
}

// layOut checks the configuration and finds the rank's place in it.
func (t *Trainer) layOut(cfg Config) (err error) {
	if t.cfg, err = cfg.complete(t.world.size()); err != nil {
		return err
	}
	rank := t.world.rank()
	if t.idle = rank >= t.cfg.Layout.Ranks(); t.idle {
		rank = 0 // of which it keeps the plan, and owns nothing
	}
	if t.plan, err = newPlan(t.cfg, t.cfg.Layout, rank); err != nil {
		return err
	}
	if t.idle {
		t.plan.owned = nil
	}
	if t.text, err = data.NewText(t.cfg.Text, t.cfg.Model.Context); err != nil {
		return err
	}
	t.order = data.NewOrder(t.text.Len(), t.cfg.Seed)
	return nil
}

// digest is a number that ranks share only if they have the same configuration.
func (c Config) digest(text *data.Text) uint64 {
	h := fnv.New64a()
	c.Text, c.wanted = nil, Layout{}
	fmt.Fprintf(h, "%+v %x", c, text.Digest())
	return max(1, h.Sum64()) // 0 is that of none
}

// agree compares the configurations of all ranks; one that has none takes part with
// a digest that nobody has.
func (t *Trainer) agree(ctx context.Context, have bool) error {
	if t.world.size() == 1 {
		return nil
	}
	var mine uint64
	if have {
		mine = t.cfg.digest(t.text)
	}
	all := make([]uint64, t.world.size())
	if err := allGather(ctx, &t.world, all, []uint64{mine}); err != nil {
		return err
	}
	for r, d := range all {
		switch {
		case d == 0:
			return fmt.Errorf("train: rank %d has a configuration that it cannot run; its own error says why", r)
		case d != all[0]:
			return fmt.Errorf("train: rank %d has another configuration or text than rank 0 (%x and %x); give all ranks the same", r, d, all[0])
		}
	}
	return nil
}

// split makes the communicators of the layout's dimensions.
func (t *Trainer) split(ctx context.Context) error {
	l, s := t.cfg.Layout, t.plan.spot
	for _, v := range []struct {
		to    *group
		size  int
		color int
		key   int
	}{
		{&t.tensors, l.TP, s.replica*l.PP + s.stage, s.tensor},
		{&t.stages, l.PP, s.replica*l.TP + s.tensor, s.stage},
		{&t.replicas, l.DP, s.stage*l.TP + s.tensor, s.replica},
	} {
		if v.size == 1 {
			continue // all ranks agree on that, so none of them splits
		}
		if t.idle {
			v.color = -1
		}
		c, err := t.world.c.Split(ctx, v.color, v.key)
		if err != nil {
			return err
		}
		v.to.c = c
		v.to.fault = t.world.fault
	}
	return nil
}

// Close gives back the communicators that the trainer split off.
func (t *Trainer) Close() error {
	err := errors.Join(t.tensors.close(), t.stages.close(), t.replicas.close())
	if t.ready != nil {
		err = errors.Join(err, t.ready.Close())
		t.ready = nil
	}
	return err
}

// Spare reports whether the layout has no place for this rank. A spare rank takes
// part in every call, computes nothing and has nothing to save.
func (t *Trainer) Spare() bool { return t.idle }

// Overlap sets whether the next steps reduce gradients while backward goes on. All
// ranks set it alike; it changes when collectives run, and not their results.
func (t *Trainer) Overlap(on bool) { t.cfg.Overlap = on }

// Comms are the communicators that the trainer uses.
func (t *Trainer) Comms() []*comm.Comm {
	var list []*comm.Comm
	for _, g := range []*group{&t.world, &t.tensors, &t.stages, &t.replicas} {
		if g.c != nil {
			list = append(list, g.c)
		}
	}
	return list
}

// Place is the rank's place in the layout; -1 of each if it is spare.
func (t *Trainer) Place() (replica, stage, tensor int) {
	if t.idle {
		return -1, -1, -1
	}
	s := t.plan.spot
	return s.replica, s.stage, s.tensor
}

// Config is the run's configuration with everything filled in.
func (t *Trainer) Config() Config { return t.cfg }

// Rank is the rank's number in its communicator, and how many ranks that has.
func (t *Trainer) Rank() (rank, ranks int) { return t.world.rank(), t.world.size() }

// Taken is the number of steps taken.
func (t *Trainer) Taken() int { return t.step }

// Params is the number of parameters of the whole network, and of this rank's part of it.
func (t *Trainer) Params() (whole, own int) {
	for _, p := range t.plan.net.Params {
		own += p.Len()
	}
	return t.plan.net.Total, own
}

// Stats is one step of a rank. Times are this rank's own.
type Stats struct {
	Step   int     // from 1
	Loss   float64 // mean over the global batch's targets, in nats
	Norm   float64 // of the gradients, before clipping
	Rate   float64
	Tokens int // targets of the global batch
	// Skipped: the norm was no number (float16 on the wire overflowed, or the run
	// diverged), and parameters were left as they were.
	Skipped bool

	Micros   int // micro-batches of this replica
	Wall     time.Duration
	Forward  time.Duration // computing
	Backward time.Duration // computing
	Tensor   time.Duration // sums within units, never hidden
	Bubble   time.Duration // waiting for other stages
	Comm     time.Duration // collectives among replicas, from call to return
	Exposed  time.Duration // of these, how long this rank stood still for them
	Passes   time.Duration // all of the above: forward and backward, until gradients are complete
	Commit   time.Duration // agreeing on loss and norm: waits for the slowest rank
	Update   time.Duration
	Bytes    int // of gradients and parameters handed to collectives among replicas
}

// Hidden is the share of communication among replicas that was hidden behind computing.
func (s Stats) Hidden() float64 {
	if s.Comm == 0 {
		return 0
	}
	return 1 - min(1, float64(s.Exposed)/float64(s.Comm))
}

// Idle is the share of the passes that went by waiting for other stages, to be
// held against pipe.Bubble.
func (s Stats) Idle() float64 {
	all := s.Forward + s.Backward + s.Tensor + s.Bubble
	if all == 0 {
		return 0
	}
	return float64(s.Bubble) / float64(all)
}
