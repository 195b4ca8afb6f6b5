package comm

import (
	"context"
	"fmt"
	"runtime"

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
}

// Option changes how a call is made: Using, Factor.
type Option struct {
	handle *Handle
	want   want
	factor float64
	scaled bool
}

// Factor is what PreMulSum multiplies this rank's input with; 1 without it.
func Factor(f float64) Option { return Option{factor: f, scaled: true} }

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
	if c.flight.Turn(flight.Queued) == flight.Idle {
		go c.work()
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
		go c.work()
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

// work carries out what is queued, in order, until nothing is. It is started by whoever takes the turn from idle or running to
// queued, and ends with idle.
func (c *Comm) work() {
	for {
		c.mu.Lock()
		if len(c.queue) == 0 {
			c.flight.Turn(flight.Idle)
			c.mu.Unlock()
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
