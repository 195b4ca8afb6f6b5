package comm

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/weft-fabric/weft/comm/flight"
	"github.com/weft-fabric/weft/reduce"
)

// Whose turn it is to carry operations out is in the flight recorder's word. Whoever takes it from idle to running carries them
// out, and owns what is not guarded otherwise.

// queued is a call that waits for its turn.
type queued struct {
	request
	ctx    context.Context
	want   want
	factor float64
	handle *Handle
	atWait bool
}

// Option changes how a call is made: Using, Factor, AtWait.
type Option struct {
	handle *Handle
	atWait bool
	want   want
	factor float64
	scaled bool
}

// Factor is what PreMulSum multiplies this rank's input with; 1 without it.
func Factor(f float64) Option { return Option{factor: f, scaled: true} }

// AtWait lets Wait carry a started call out on the goroutine that waits, if nobody has begun it: no other has to be woken, which
// takes longer than a small operation. A call that is not waited for begins within about a millisecond. A Wait that carries the call
// out ends with it, not with its own context.
func AtWait() Option { return Option{atWait: true} }

// untilLate is how long a call waits for its caller to carry it out.
const untilLate = 100 * time.Microsecond

// offer lets whoever waits first carry out what is queued, or a goroutine after a while. The caller holds mu.
func (c *Comm) offer() {
	c.unclaimed.Store(true)
	switch {
	case !c.armed.CompareAndSwap(false, true): // it looks after this one, too
	case c.afterAll == nil:
		c.afterAll = time.AfterFunc(untilLate, func() {
			c.armed.Store(false)
			if c.claim() {
				c.work(nil)
			}
		})
	default:
		c.afterAll.Reset(untilLate)
	}
}

// claim reports whether what is queued is the caller's to carry out.
func (c *Comm) claim() bool { return c.unclaimed.Load() && c.unclaimed.CompareAndSwap(true, false) }

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
		c.letGo()
		return err
	}
	return c.run(true)
}

// doLater is do for calls with options, and for those that find others under way.
func (c *Comm) doLater(ctx context.Context, r *request, opts []Option) error {
	q := &queued{request: *r, ctx: ctx, factor: 1}
	for i := range opts {
		switch x := &opts[i]; {
		case x.handle != nil:
			q.handle = x.handle
		case x.atWait:
			q.atWait = true
		case x.scaled && r.Reduce != reduce.PreMulSum:
			return c.refuse(fmt.Errorf("%s: Factor(%v) is for PreMulSum", r.Op, x.factor))
		case x.scaled:
			q.factor = x.factor
		default:
			q.want.add(x.want)
		}
	}
	if q.handle == nil && c.flight.Take() {
		return c.doNow(ctx, r, q.want, q.factor)
	}
	own := q.handle
	if own == nil {
		q.handle = newHandle(ctx)
	}
	c.mu.Lock()
	c.queue = append(c.queue, q)
	q.handle.by.Store(c)
	switch idle := c.flight.Turn(flight.Queued) == flight.Idle; {
	case idle && q.atWait:
		c.offer()
	case idle, own != nil && !q.atWait && c.claim():
		go c.work(nil)
	}
	c.mu.Unlock()
	if own == nil {
		return q.handle.waitAsking(ctx)
	}
	return nil
}

// letGo ends the caller's turn.
func (c *Comm) letGo() {
	if c.flight.LetGo() {
		go c.work(nil)
	}
}

// own waits until what is queued is done and makes it the caller's turn.
func (c *Comm) own() {
	for !c.flight.Take() {
		c.mu.Lock()
		var last *Handle
		if n := len(c.queue); n > 0 {
			last = c.queue[n-1].handle
		}
		c.mu.Unlock()
		if last != nil {
			_ = last.wait()
		} else {
			runtime.Gosched()
		}
	}
}

// work carries out what is queued, in order, until nothing is, or the last call of interest is over: another goroutine goes on then.
// It is started by whoever takes the turn from idle or running to queued, and ends with idle.
func (c *Comm) work(last *Handle) {
	for over := false; ; {
		c.mu.Lock()
		if len(c.queue) == 0 {
			c.flight.Turn(flight.Idle)
			c.mu.Unlock()
			return
		}
		if over {
			c.mu.Unlock()
			go c.work(nil)
			return
		}
		q := c.queue[0]
		c.queue = c.queue[1:]
		c.mu.Unlock()
		err := c.start(q.ctx, &q.request, q.want, q.factor)
		if err == nil {
			err = c.run(false)
		}
		q.handle.end(err)
		over = q.handle == last
	}
}

// behind is why the context of a call ended that waits for the one under way.
func (c *Comm) behind() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, q := range c.queue {
		if err := q.ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}
