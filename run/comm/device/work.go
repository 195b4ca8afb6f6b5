package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/gpu"
	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/transport/wait"
)

// Work is an operation under way. It is launched when every rank has called it and all that the GPUs have to do is queued; it is
// done when they have done it.
type Work struct {
	g        *Group
	ctx      context.Context
	call     Call
	note     uint64 // of the stream that the input comes from
	noted    bool   // whether there is one
	async    bool   // a stream may be made to wait for it
	flight   *flight
	launched chan struct{}
	done     chan struct{}
	err      error
}

// flight is an operation that is queued on the GPUs.
type flight struct {
	began time.Time
	stamp uint64 // what streams follow; 0 if there is none
	over  func() (bool, error)
}

// Wait returns the operation's error once it is over on all ranks. If ctx ends first, the operation goes on.
func (w *Work) Wait(ctx context.Context) error {
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		return fmt.Errorf("the operation is still in progress: %w", context.Cause(ctx))
	}
}

// Done is closed when the operation is over.
func (w *Work) Done() <-chan struct{} { return w.done }

// Launched is closed when the operation is queued on the GPUs of all ranks, or has failed: Block does not wait from then on. In the
// staged way that is when it is over.
func (w *Work) Launched() <-chan struct{} { return w.launched }

// Block makes a user's stream wait for the operation: what is queued on the stream from now on finds its result. It returns
// when the operation is launched, and does not wait for the GPU. If the operation fails later, the stream goes on, and the
// error is told by Wait and by later calls.
func (w *Work) Block(s gpu.Stream) error {
	<-w.launched
	select {
	case <-w.done:
		return w.err
	default:
	}
	return w.g.gpuQ.Follow(s, w.flight.stamp)
}

// worker carries out operations in the order of their calls.
type worker struct {
	g       *Group
	mu      sync.Mutex
	free    sync.Cond
	busy    bool
	pending []*Work
	flying  []*Work // queued on the GPUs, in order
	failed  error   // why no more operations are possible
	closed  error   // the same, if nothing went wrong
}

// why is why no more operations are possible. The caller holds the lock.
func (q *worker) why() error { return cmp.Or(q.failed, q.closed) }

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
	if err := q.why(); err != nil {
		defer q.mu.Unlock()
		return err
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
	q.closed = err
	return q.busy
}

// idle waits until nothing is under way.
func (q *worker) idle() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.busy || len(q.flying) > 0 {
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
	if q.busy || len(q.pending)+len(q.flying) > 0 {
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
	if err == nil && w.flight != nil {
		err = q.land(w)
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
	for q.full() {
		q.free.Wait()
	}
	w, err := q.admit(ctx, c)
	w.async = true
	if err != nil {
		w.end(err)
		return w
	}
	q.pending = append(q.pending, w)
	if !q.busy {
		q.busy = true
		go q.work()
	}
	return w
}

// full reports whether there are as many operations as there can be. The caller holds the lock.
func (q *worker) full() bool { return len(q.pending)+len(q.flying) >= gpu.Notes/2 }

// Launch makes a call and lets its Stream wait for it: what is queued there from now on finds the result. It returns when all ranks
// have made the call, and does not wait for the GPU. An error that comes later is told by the next call. It is Start and Block
// without a goroutine in between.
func (g *Group) Launch(ctx context.Context, c Call) error {
	idle := g.lines() != nil && max(c.Src.Bytes(), c.Dst.Bytes()) <= short && g.settle(*c.Stream)
	q := g.queue
	q.mu.Lock()
	if q.busy || q.full() {
		q.mu.Unlock()
		w := g.Start(ctx, c)
		if err := w.begun(ctx); err != nil {
			return err
		}
		return w.Block(*c.Stream)
	}
	q.busy = true
	from := c
	if idle {
		from.Stream = nil
	}
	w, err := q.admit(ctx, from)
	w.async = true
	q.mu.Unlock()
	if err == nil {
		err = q.run(w)
	}
	flies := err == nil && w.flight != nil
	q.mu.Lock()
	if flies {
		q.fly(w)
	}
	q.end()
	q.mu.Unlock()
	if flies {
		err = g.gpuQ.Follow(*c.Stream, w.flight.stamp)
	}
	return err
}

// short is how long memory may be whose stream is waited for a moment: more takes longer than waits on the GPU do.
const short = 256 << 10

// settle waits a moment for a stream that is about to have nothing to do, and says whether it has nothing to do now. What goes wrong
// is told by who asks next.
func (g *Group) settle(s gpu.Stream) bool {
	for began := time.Now(); time.Since(began) < moment; {
		if idle, err := g.gpuQ.Idle(s); idle || err != nil {
			return idle && err == nil
		}
	}
	return false
}

// begun waits until an operation is launched, and asks now and then whether to wait on.
func (w *Work) begun(ctx context.Context) error {
	t := time.NewTicker(50 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-w.launched:
			return nil
		case <-t.C:
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("the operation is still in progress: %w", err)
			}
		}
	}
}

// fly lets somebody watch an operation that is queued on the GPUs. The caller holds the lock.
func (q *worker) fly(w *Work) {
	q.flying = append(q.flying, w)
	if len(q.flying) == 1 {
		go q.watch()
	}
}

// admit numbers a call and notes how far its stream is, if it is not idle. The caller holds the lock.
func (q *worker) admit(ctx context.Context, c Call) (*Work, error) {
	w := &Work{g: q.g, ctx: ctx, call: c, launched: make(chan struct{}), done: make(chan struct{})}
	if err := q.why(); err != nil {
		return w, err
	}
	q.g.entries().count()
	q.g.prepare(&c)
	if c.Stream != nil {
		idle, err := q.g.gpuQ.Idle(*c.Stream)
		if err == nil && !idle {
			w.note, err = q.g.gpuQ.Note(*c.Stream)
			w.noted = true
		}
		if err != nil {
			return w, q.g.give(err)
		}
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
		_ = g.dev.Prepare(c.Src.Type, op, nil)
		op = reduce.Sum
	}
	if !g.direct.shared || g.Rank() == 0 {
		_ = g.dev.Prepare(c.Src.Type, op, reduce.Tree(g.Size()))
	}
}

// airborne reports whether operations are queued on the GPUs.
func (q *worker) airborne() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.flying) > 0
}

// end tells that an operation is over.
func (w *Work) end(err error) {
	w.err = err
	close(w.done)
	select {
	case <-w.launched:
	default:
		close(w.launched)
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
		if err := q.run(w); err != nil || w.flight == nil {
			w.end(err)
			continue
		}
		close(w.launched)
		q.mu.Lock()
		q.fly(w)
		q.mu.Unlock()
	}
}

// watch waits for operations that are queued on the GPUs, one after another.
func (q *worker) watch() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.flying) > 0 {
		w := q.flying[0]
		q.mu.Unlock()
		err := q.land(w)
		q.mu.Lock()
		q.flying = q.flying[1:]
		w.end(err)
		q.free.Broadcast()
	}
}

// land waits until the GPUs have done an operation. Nothing on the host notices when a rank dies meanwhile, so its process is
// looked at now and then. When one is gone, all that waits for it is let go.
func (q *worker) land(w *Work) error {
	const every = 20 * time.Millisecond
	g, look := q.g, w.flight.began
	err := g.until(context.Background(), func() (bool, error) {
		over, err := w.flight.over()
		if over || err != nil {
			return over, err
		}
		now := time.Now()
		if now.Sub(look) < every {
			return false, nil
		}
		look = now
		switch {
		case w.ctx.Err() != nil:
			return false, fmt.Errorf("%w: %s: %w", errBroken, w.call.Op, context.Cause(w.ctx))
		case now.Sub(w.flight.began) > g.cfg.Timeout:
			return false, fmt.Errorf("%w: %s was not done after %v: %s", errBroken, w.call.Op, g.cfg.Timeout, g.direct.missing())
		}
		return false, g.direct.dead()
	})
	if err != nil {
		q.fail(err)
		g.direct.letGo(err)
	}
	return err
}

// fail ends all operations, on all ranks.
func (q *worker) fail(err error) {
	q.mu.Lock()
	first := q.failed == nil
	if first {
		q.failed = err
	}
	q.mu.Unlock()
	if first {
		q.g.c.Abort(err)
	}
}

// run carries out one operation, or brings it to the GPUs.
func (q *worker) run(w *Work) error {
	q.mu.Lock()
	err := q.why()
	q.mu.Unlock()
	if err == nil {
		err = q.g.carryOut(w)
	}
	var lost *comm.Failure
	if errors.As(err, &lost) || errors.Is(err, gpu.ErrLost) || errors.Is(err, errBroken) {
		q.fail(err)
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
	ctx := limited{w.ctx, time.Now().Add(g.cfg.Timeout)}
	if w.noted {
		err := g.gpuQ.After(w.note)
		if err == nil && g.lines() == nil && g.Size() > 1 {
			err = g.wait(ctx, g.gpuQ)
		}
		if err != nil {
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
		return g.single(ctx, w)
	}
	if g.way == Direct {
		return g.direct.run(ctx, w, p, wrong)
	}
	return g.staged.run(ctx, w, p, wrong)
}

// limited is a context that ends at a time as well. Who waits looks at Err, on its own thread: nothing has to be started for it, and
// a context that asks its caller whether to give up can do so.
type limited struct {
	context.Context
	end time.Time
}

func (l limited) Deadline() (time.Time, bool) {
	if d, ok := l.Context.Deadline(); ok && d.Before(l.end) {
		return d, true
	}
	return l.end, true
}

func (l limited) Err() error {
	if err := l.Context.Err(); err != nil {
		return err
	}
	if time.Now().After(l.end) {
		return context.DeadlineExceeded
	}
	return nil
}

// entries are those of the group's way; nil for one rank.
func (g *Group) entries() *entries {
	switch {
	case g.direct != nil:
		return &g.direct.entries
	case g.staged != nil:
		return &g.staged.entries
	}
	return nil
}

// lines are those by which the ranks' GPUs wait for one another; nil if they do not.
func (g *Group) lines() *lines {
	if g.direct == nil {
		return nil
	}
	return g.direct.lines
}

// single is an operation of one rank.
func (g *Group) single(ctx context.Context, w *Work) error {
	c := &w.call
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
		err = g.gpuQ.Reduce(&gpu.Reduction{Type: c.Src.Type, Op: c.Reduce, Dsts: []gpu.Ptr{c.Dst.At}, Srcs: []gpu.Ptr{c.Src.At},
			Bytes: c.Src.Bytes(), Factor: c.Factor})
	case c.Src.At != c.Dst.At:
		err = g.gpuQ.Copy(c.Dst.At, c.Src.At, c.Src.Bytes())
	}
	if err != nil || !w.async {
		return errors.Join(err, g.wait(ctx, g.gpuQ))
	}
	f := &flight{began: time.Now()}
	if f.stamp, err = g.gpuQ.Stamp(); err != nil {
		return err
	}
	mark, err := g.gpuQ.Mark()
	f.over = func() (bool, error) { return g.gpuQ.Reached(mark) }
	w.flight = f
	return err
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
