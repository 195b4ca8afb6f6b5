package script

import (
	"errors"
	"sync"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm/internal/blame"
	"github.com/weft-fabric/weft/run/comm/internal/group"
	"github.com/weft-fabric/weft/run/comm/internal/op"
	"github.com/weft-fabric/weft/run/comm/internal/plan"
	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/transport"
)

// Prepared is a program ready to run on a rank.
type Prepared struct {
	Program   *sched.Program
	Script    *Script
	Message   int                    // how long its messages are at most
	Undivided int                    // with messages up to this, an operation is one part
	InPlace   func() bool            // the program is proven to run in place
	Straight  func(blocks bool) bool // chunks may be moved as they are, though they differ in length
	padding   *padding               // for the layout, nil if it is not known yet
}

// Relaid forgets what depends on the layout of an earlier operation.
func (p *Prepared) Relaid() { p.padding = nil }

// Runner is what scripts of a communicator keep from one operation to the next.
type Runner struct {
	g     *group.Group
	port  transport.Port
	swaps bool      // the port receives while it sends
	plain [4][]byte // private scratch by its use
	space space     // of the operation under way
	undo  undo
	sum   summer // of the first channel
}

// NewRunner makes the runner of a group over a port. swaps says that the port receives while it sends.
func NewRunner(g *group.Group, port transport.Port, swaps bool) *Runner {
	return &Runner{g: g, port: port, swaps: swaps}
}

// Close gives back the port.
func (r *Runner) Close() error { return r.port.Close() }

// Last is what a rank was last seen doing, by the messages it sent; false if nothing was seen of it.
func (r *Runner) Last(rank int) (transport.Call, bool) { return r.port.Last(rank) }

// Run runs an operation that all ranks may take for entered.
func (r *Runner) Run(o *op.Op, p *Prepared) error {
	o.Mode = plan.Script
	mine := r.g.Mine()
	r.g.Wait.Phase, r.g.Wait.Seq = blame.Messages, o.Call.Seq
	r.port.Begin(o.Call.Wire(), r.g.Stop)
	r.undo.in, r.undo.spans = o.In, r.undo.spans[:0]
	o.Steps.Reset(len(p.Script.channels) > 1)
	err := r.parts(o, p)
	mine.WaitsFor(-1, 0, 0)
	if err != nil {
		_ = r.port.Close() // what still comes must not go where the caller's memory is
		r.undo.restore()
		return err
	}
	if r.g.Memory != nil {
		mine.Leave().Post(o.Call.Seq)
	} else {
		mine.Leave().Set(o.Call.Seq)
	}
	if o.Reduce != 0 {
		reduce.Finish(o.Type, o.Reduce, o.Out, r.g.Size())
	}
	return nil
}

// parts runs a program on one part of the elements after another, so that no message is longer than it should be.
func (r *Runner) parts(o *op.Op, p *Prepared) error {
	c := &o.Chunks
	if o.Counts != nil || o.Op == sched.Barrier || (o.Count+c.Per-1)/c.Per*c.Size <= p.Undivided {
		return r.part(o, p, false)
	}
	whole := *c
	defer func() { o.Chunks = whole }()
	each := whole.Per * (p.Message / whole.Size)
	for from := 0; from < o.Count; from += each {
		o.Chunks = whole.Part(from, min(each, o.Count-from))
		if err := r.part(o, p, from+each < o.Count); err != nil {
			return err
		}
	}
	return nil
}

// part runs a program on a part of the elements; more says that others follow.
func (r *Runner) part(o *op.Op, p *Prepared, more bool) error {
	sp, s := r.makeSpace(o, p), p.Script
	sp.last = !more
	many := len(s.channels) > 1
	if b, ok := r.port.(transport.Bounded); ok && (many || s.slots*(s.widest*sp.stride+128) > b.Bound()) {
		b.Unbound() // it may need more under way: see slots.go
	}
	var err error
	if side, ok := r.port.(transport.Parallel); ok && many {
		side.Channels(len(s.channels))
	}
	if many {
		err = r.channels(sp, p)
	} else {
		err = r.channel(sp, s.channels[0], p.Message, &r.sum, nil)
	}
	if err == nil && sp.padded {
		sp.gatherOut(p.Program, s.out, more)
	}
	return err
}

// channels runs channels side by side, the first on the caller's goroutine.
func (r *Runner) channels(sp *space, p *Prepared) error {
	list := p.Script.channels
	done := newMarks(p.Script)
	errs := make([]error, len(list))
	var wg sync.WaitGroup
	for k := 1; k < len(list); k++ {
		wg.Go(func() {
			errs[k] = r.channel(sp, list[k], p.Message, &summer{}, done)
			done.end(errs[k])
		})
	}
	errs[0] = r.channel(sp, list[0], p.Message, &r.sum, done)
	done.end(errs[0])
	wg.Wait()
	for _, err := range errs {
		if err != nil && !errors.Is(err, errOther) {
			return err
		}
	}
	return errors.Join(errs...)
}

// errOther is why a channel stopped that waited for one that failed.
var errOther = errors.New("another channel failed")

// marks count what the channels of a script have done, for those that wait for it.
type marks struct {
	mu     sync.Mutex
	cond   sync.Cond
	done   []int64
	failed bool
	waits  bool // the script has waits for them
}

func newMarks(s *Script) *marks {
	m := &marks{done: make([]int64, len(s.channels)), waits: s.waits}
	m.cond.L = &m.mu
	return m
}

func (m *marks) mark(channel int) {
	if !m.waits {
		return
	}
	m.mu.Lock()
	m.done[channel]++
	m.mu.Unlock()
	m.cond.Broadcast()
}

func (m *marks) end(err error) {
	if err != nil {
		m.mu.Lock()
		m.failed = true
		m.mu.Unlock()
		m.cond.Broadcast()
	}
}

// wait blocks until a channel has done that many steps. If any channel fails, all waiters return errOther at once: the
// step they wait for may never come.
func (m *marks) wait(channel int, done int64) error {
	if m == nil {
		return nil // a single channel waits for nothing but itself
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.done[channel] < done {
		if m.failed {
			return errOther
		}
		m.cond.Wait()
	}
	return nil
}
