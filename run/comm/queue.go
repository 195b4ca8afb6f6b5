package comm

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weft-fabric/weft/run/comm/internal/flight"
	"github.com/weft-fabric/weft/run/reduce"
)

// queued is a call that waits for its turn.
type queued struct {
	request
	ctx     context.Context
	want    want
	factor  float64
	handle  *Handle
	atWait  bool
	entered bool // by enterEarly
}

// Option changes how a call is made: Using, Factor, AtWait, CausedBy.
type Option struct {
	handle *Handle
	atWait bool
	want   want
	factor float64
	scaled bool
	cause  uint64
}

// Factor is what PreMulSum multiplies this rank's input with; 1 without it.
func Factor(f float64) Option { return Option{factor: f, scaled: true} }

// CausedBy is what led to a collective, by a number that is not 0: the operation whose callback makes it. Ranks compare it, so calls of
// equal size that callbacks start in another order on another rank fail instead of computing each other's results.
func CausedBy(operation uint64) Option { return Option{cause: operation} }

// AtWait lets Wait carry a started call out on the goroutine that waits, if nobody has begun it: no other has to be woken, which
// takes longer than a small operation. A call that is not waited for begins within about a millisecond. A Wait that carries the call
// out ends with it, not with its own context. A call of a few bytes in shared memory that is like the one before is entered when it is
// started, and is over then if the other ranks come within some 20 us.
func AtWait() Option { return Option{atWait: true} }

// untilLate is how long a call waits for its caller to carry it out.
const untilLate = 100 * time.Microsecond

// do carries out a call, now or when its turn comes.
func (c *Comm) do(ctx context.Context, r *request, opts []Option) error {
	if len(opts) > 0 || !c.flight.Take() {
		return c.doLater(ctx, r, opts)
	}
	if c.cur.again(r) && c.failed.Load() == nil && ctx.Err() == nil {
		return c.repeat(ctx, r)
	}
	return c.doNow(ctx, r, want{}, 1)
}

// doNow carries out a call; it is the caller's turn, which ends with it.
func (c *Comm) doNow(ctx context.Context, r *request, asked want, factor float64) error {
	if err := c.start(ctx, r, asked, factor); err != nil {
		c.queue.letGo()
		return err
	}
	return c.run(true)
}

// doLater is do for calls with options, and for those that find others under way.
func (c *Comm) doLater(ctx context.Context, r *request, opts []Option) error {
	q := &queued{request: *r, ctx: ctx, factor: 1}
	if err := q.set(opts); err != nil {
		return c.refuse(err)
	}
	if q.handle == nil && c.flight.Take() {
		return c.doNow(ctx, &q.request, q.want, q.factor)
	}
	own := q.handle
	if own != nil && q.atWait && c.flight.Take() {
		c.startEarly(q)
		return nil
	}
	if own == nil {
		q.handle = newHandle(ctx)
	}
	c.queue.add(q, own != nil)
	if own == nil {
		return q.handle.waitAsking(ctx)
	}
	return nil
}

// startEarly starts a call that waits to be carried out, and carries it out if that takes no longer than starting it; it is the
// caller's turn.
func (c *Comm) startEarly(q *queued) {
	entered, there, err := c.enterEarly(q)
	if entered {
		c.queue.looked(there)
	}
	if there {
		q.handle.end(c.finish(err, true))
		return
	}
	q.entered = entered
	c.queue.handBack(q)
}

// set applies the options of a call.
func (q *queued) set(opts []Option) error {
	for i := range opts {
		switch x := &opts[i]; {
		case x.handle != nil:
			q.handle = x.handle
		case x.atWait:
			q.atWait = true
		case x.scaled && q.Reduce != reduce.PreMulSum:
			return fmt.Errorf("%s: Factor(%v) is for PreMulSum", q.Op, x.factor)
		case x.scaled:
			q.factor = x.factor
		case x.cause != 0:
			q.Cause = x.cause
		default:
			q.want.add(x.want)
		}
	}
	return nil
}

// carryOutQueued carries out a call whose turn has come.
func (c *Comm) carryOutQueued(q *queued) error {
	if q.entered {
		return c.finish(nil, false)
	}
	if c.likeBefore(q) {
		c.nextLike(q.ctx, &q.request)
		return c.run(false)
	}
	if err := c.start(q.ctx, &q.request, q.want, q.factor); err != nil {
		return err
	}
	return c.run(false)
}

// likeBefore reports whether a queued call is the one before once more, and nothing keeps it from being made.
func (c *Comm) likeBefore(q *queued) bool {
	return c.cur.again(&q.request) && q.want == (want{}) && q.factor == 1 && q.Cause == 0 && c.failed.Load() == nil && q.ctx.Err() == nil
}

// queue has the calls of a communicator that wait for their turn. Whose turn it is to carry operations out is in the flight recorder's
// word. Whoever takes it from idle to running carries them out, and owns what is not guarded otherwise.
type queue struct {
	flight   *Flight
	carryOut func(*queued) error

	mu        sync.Mutex
	calls     []*queued
	unclaimed atomic.Bool // they wait for somebody to carry them out: AtWait
	armed     atomic.Bool // afterAll will look after them
	afterAll  *time.Timer // guarded by mu
	inVain    uint        // how often in a row the others were not there early; owned by whose turn it is
	skip      uint        // how many calls more do not look for them
}

// looks says whether a call that is entered early is to look for the others. Where that was in vain, ever fewer do.
func (q *queue) looks() bool {
	if q.skip > 0 {
		q.skip--
		return false
	}
	return true
}

// looked tells whether the others were there.
func (q *queue) looked(there bool) {
	switch {
	case there:
		q.inVain, q.skip = 0, 0
	case q.skip == 0:
		q.inVain = min(q.inVain+1, 6)
		q.skip = 1<<q.inVain - 2
	}
}

// handBack ends the caller's turn with a call that is left to be carried out before those that others queued meanwhile.
func (q *queue) handBack(x *queued) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.calls = slices.Insert(q.calls, 0, x)
	x.handle.by.Store(q)
	q.flight.Turn(flight.Queued)
	if len(q.calls) > 1 {
		go q.work(nil)
		return
	}
	q.offer()
}

// add queues a call, which somebody waits for or has started.
func (q *queue) add(x *queued, started bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.calls = append(q.calls, x)
	x.handle.by.Store(q)
	switch idle := q.flight.Turn(flight.Queued) == flight.Idle; {
	case idle && x.atWait:
		q.offer()
	case idle, started && !x.atWait && q.claim():
		go q.work(nil)
	}
}

// offer lets whoever waits first carry out what is queued, or a goroutine after a while. The caller holds mu.
func (q *queue) offer() {
	q.unclaimed.Store(true)
	switch {
	case !q.armed.CompareAndSwap(false, true): // it looks after this one, too
	case q.afterAll == nil:
		q.afterAll = time.AfterFunc(untilLate, func() {
			q.armed.Store(false)
			if q.claim() {
				q.work(nil)
			}
		})
	default:
		q.afterAll.Reset(untilLate)
	}
}

// claim reports whether what is queued is the caller's to carry out.
func (q *queue) claim() bool { return q.unclaimed.Load() && q.unclaimed.CompareAndSwap(true, false) }

// letGo ends the caller's turn.
func (q *queue) letGo() {
	if q.flight.LetGo() {
		go q.work(nil)
	}
}

// own waits until what is queued is done and makes it the caller's turn.
func (q *queue) own() {
	for !q.flight.Take() {
		q.mu.Lock()
		var last *Handle
		if n := len(q.calls); n > 0 {
			last = q.calls[n-1].handle
		}
		q.mu.Unlock()
		if last != nil {
			_ = last.wait()
		} else {
			runtime.Gosched()
		}
	}
}

// work carries out what is queued, in order, until nothing is, or the last call of interest is over: another goroutine goes on then.
// It is started by whoever takes the turn from idle or running to queued, and ends with idle.
func (q *queue) work(last *Handle) {
	for over := false; ; {
		q.mu.Lock()
		if len(q.calls) == 0 {
			q.flight.Turn(flight.Idle)
			q.mu.Unlock()
			return
		}
		if over {
			q.mu.Unlock()
			go q.work(nil)
			return
		}
		next := q.calls[0]
		q.calls = q.calls[1:]
		q.mu.Unlock()
		next.handle.end(q.carryOut(next))
		over = next.handle == last
	}
}

// behind is why the context of a call ended that waits for the one under way.
func (q *queue) behind() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, x := range q.calls {
		if err := x.ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}
