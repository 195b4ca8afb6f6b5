package device

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/weft-fabric/weft/comm"
	"github.com/weft-fabric/weft/gpu"
	"github.com/weft-fabric/weft/reduce"
	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/transport/wait"
)

// Work is an operation under way.
type Work struct {
	g      *Group
	ctx    context.Context
	call   Call
	number uint64
	note   uint64 // of the stream that the input comes from
	noted  bool   // whether there is one
	done   chan struct{}
	err    error
}

// Wait returns the operation's error once it is over on all ranks. If ctx ends first, the operation goes on.
func (w *Work) Wait(ctx context.Context) error {
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		return fmt.Errorf("the operation is still under way: %w", context.Cause(ctx))
	}
}

// Done is closed when the operation is over.
func (w *Work) Done() <-chan struct{} { return w.done }

// Block makes a user's stream wait for the operation and returns at once: what is queued on the stream from now on finds its
// result. If the operation fails, the stream goes on, and the error is told by Wait and by later calls.
func (w *Work) Block(s gpu.Stream) error {
	select {
	case <-w.done:
		return w.err
	default:
	}
	return w.g.gpuQ.Hold(s, w.number)
}

// worker carries out operations in the order of their calls.
type worker struct {
	g       *Group
	mu      sync.Mutex
	free    sync.Cond
	busy    bool
	pending []*Work
	last    uint64 // the number of the last call
	failed  error  // why no more operations are possible
}

func newWorker(g *Group) *worker {
	w := &worker{g: g}
	w.free.L = &w.mu
	return w
}

// alone runs something while no operation is under way.
func (q *worker) alone(do func() error) error {
	q.mu.Lock()
	for q.busy {
		q.free.Wait()
	}
	if q.failed != nil {
		defer q.mu.Unlock()
		return q.failed
	}
	q.busy = true
	q.mu.Unlock()
	err := do()
	q.mu.Lock()
	q.end()
	q.mu.Unlock()
	return err
}

// shut ends the worker: calls from now on fail so. It reports whether operations are under way.
func (q *worker) shut(err error) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.failed == nil {
		q.failed = err
	}
	return q.busy
}

// idle waits until nothing is under way.
func (q *worker) idle() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.busy {
		q.free.Wait()
	}
}

// end lets the next ones work. The caller holds the lock.
func (q *worker) end() {
	q.busy = false
	if len(q.pending) > 0 {
		q.busy = true
		go q.work()
	}
	q.free.Broadcast()
}

// Do carries out an operation, and returns when it is over on all ranks.
func (g *Group) Do(ctx context.Context, c Call) error {
	q := g.queue
	q.mu.Lock()
	if q.busy || len(q.pending) > 0 {
		q.mu.Unlock()
		w := g.Start(ctx, c)
		<-w.done
		return w.err
	}
	q.busy = true
	w, err := q.admit(ctx, c)
	q.mu.Unlock()
	if err == nil {
		err = q.run(w)
	}
	q.mu.Lock()
	q.end()
	q.mu.Unlock()
	return err
}

// Start begins an operation and returns at once. The memory belongs to it until it is over. Whatever goes wrong is told by Wait.
func (g *Group) Start(ctx context.Context, c Call) *Work {
	q := g.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.pending) >= gpu.Notes/2 {
		q.free.Wait()
	}
	w, err := q.admit(ctx, c)
	if err != nil {
		w.err = err
		close(w.done)
		return w
	}
	q.pending = append(q.pending, w)
	if !q.busy {
		q.busy = true
		go q.work()
	}
	return w
}

// admit numbers a call and notes how far its stream is. The caller holds the lock.
func (q *worker) admit(ctx context.Context, c Call) (*Work, error) {
	q.last++
	w := &Work{g: q.g, ctx: ctx, call: c, number: q.last, done: make(chan struct{})}
	if q.failed != nil {
		return w, q.failed
	}
	q.g.prepare(&c)
	if c.Stream != nil {
		var err error
		if w.note, err = q.g.gpuQ.Note(*c.Stream); err != nil {
			return w, q.g.give(err)
		}
		w.noted = true
	}
	return w, nil
}

// prepare makes the kernels of a call ready while no stream waits for it: doing so may wait for all streams. Errors are told
// when the call runs.
func (g *Group) prepare(c *Call) {
	if g.direct == nil || !reduces(c.Op) || reduce.Check(c.Src.Type, c.Reduce) != nil {
		return
	}
	op := c.Reduce
	if op == reduce.PreMulSum { // ranks multiply, and then add
		_ = g.dev.Prepare(c.Src.Type, op)
		op = reduce.Sum
	}
	if !g.direct.shared || g.Rank() == 0 {
		_ = g.dev.Prepare(c.Src.Type, op)
	}
}

// work carries out what is pending.
func (q *worker) work() {
	for {
		q.mu.Lock()
		if len(q.pending) == 0 {
			q.busy = false
			q.free.Broadcast()
			q.mu.Unlock()
			return
		}
		w := q.pending[0]
		q.pending = q.pending[1:]
		q.free.Broadcast()
		q.mu.Unlock()
		w.err = q.run(w)
		close(w.done)
	}
}

// run carries out one operation. Its number is released even if it fails: streams must not wait for ever.
func (q *worker) run(w *Work) error {
	q.mu.Lock()
	err := q.failed
	q.mu.Unlock()
	if err == nil {
		err = q.g.carryOut(w)
	}
	var lost *comm.Failure
	if errors.As(err, &lost) || errors.Is(err, gpu.ErrLost) || errors.Is(err, errBroken) {
		q.mu.Lock()
		if q.failed == nil {
			q.failed = err
		}
		q.mu.Unlock()
	}
	if q.g.gpuQ != nil {
		q.g.gpuQ.Release(w.number)
	}
	return err
}

// errBroken is an operation that broke off in the middle.
var errBroken = errors.New("an operation on memory of GPUs broke off")

// give ends the operation on all ranks: this one cannot take part.
func (g *Group) give(err error) error {
	g.c.Abort(err)
	return err
}

// carryOut runs an operation by the group's way.
func (g *Group) carryOut(w *Work) error {
	ctx, cancel := context.WithTimeout(w.ctx, g.cfg.Timeout)
	defer cancel()
	if w.noted {
		if err := g.until(ctx, func() (bool, error) { return g.gpuQ.Noted(w.note) }); err != nil {
			return g.give(err)
		}
	}
	wrong := w.call.complete(g.Rank(), g.Size())
	var p *planned
	if wrong == nil {
		p, wrong = g.plan(&w.call)
	}
	if g.Size() == 1 {
		if wrong != nil {
			return wrong
		}
		return g.single(ctx, &w.call)
	}
	if g.way == Direct {
		return g.direct.run(ctx, w, p, wrong)
	}
	return g.staged.run(ctx, w, p, wrong)
}

// single is an operation of one rank.
func (g *Group) single(ctx context.Context, c *Call) error {
	if c.Op == sched.Barrier || c.Dst.Count == 0 {
		return nil
	}
	for _, m := range []Memory{c.Src, c.Dst} {
		if _, err := g.dev.Segment(m.At, m.Bytes()); err != nil {
			return err
		}
	}
	var err error
	switch {
	case c.Reduce == reduce.PreMulSum:
		err = g.gpuQ.Reduce(&gpu.Reduction{Type: c.Src.Type, Op: c.Reduce, Dsts: []gpu.Ptr{c.Dst.At}, Srcs: []gpu.Ptr{c.Src.At}, Bytes: c.Src.Bytes(), Factor: c.Factor})
	case c.Src.At != c.Dst.At:
		err = g.gpuQ.Copy(c.Dst.At, c.Src.At, c.Src.Bytes())
	default:
		return nil
	}
	if err != nil {
		return err
	}
	return g.wait(ctx, g.gpuQ)
}

// wait waits until a queue has done everything.
func (g *Group) wait(ctx context.Context, q gpu.Queue) error {
	mark, err := q.Mark()
	if err != nil {
		return err
	}
	return g.until(ctx, func() (bool, error) { return q.Reached(mark) })
}

// How long a wait looks without a pause, and how long it then gives its core to others between two looks: a kernel on a small
// buffer takes 10 to 30 us, one on 256 MiB a millisecond. After that it sleeps for naps.
const (
	patience = 200 * time.Microsecond
	yielding = 5 * time.Millisecond
	nap      = 50 * time.Microsecond
)

func (g *Group) until(ctx context.Context, done func() (bool, error)) error {
	if err := until(ctx, done); err != nil {
		return fmt.Errorf("rank %d: %w", g.Rank(), err)
	}
	return nil
}

// until looks again and again.
func until(ctx context.Context, done func() (bool, error)) error {
	began := time.Time{}
	for i := 0; ; i++ {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if i%64 != 63 {
			continue
		}
		if began.IsZero() {
			began = time.Now()
		}
		runtime.Gosched()
		switch waited := time.Since(began); {
		case ctx.Err() != nil:
			return fmt.Errorf("the wait for the GPU ended: %w", context.Cause(ctx))
		case waited > yielding:
			wait.Nap(nap)
		case waited > patience:
			wait.Yield()
		}
	}
}
