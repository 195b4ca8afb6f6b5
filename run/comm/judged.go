package comm

import (
	"fmt"
	"time"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm/choice"
	"github.com/weft-fabric/weft/run/reduce"
)

// runJudged carries out an operation that a program was made for, and looks from time to time whether that still is worth while.
func (c *Comm) runJudged() error {
	o := &c.cur
	j, ctx, bytes, rooted := o.prepared.judge, o.ctx, o.prepared.key.bytes, o.Request.Op.Rooted()
	began := time.Now()
	if err := c.carryOut(false); err != nil || !j.Add(bytes, float64(time.Since(began))/1e3) {
		return err
	}
	// The rank that came last waited for nobody, so the least of what ranks say is what the operation took. Where only some ranks
	// wait for the data, those do that take longest.
	said, by := []float64{j.Median()}, reduce.Min
	if rooted {
		by = reduce.Max
	}
	look := request{Op: sched.AllReduce, Type: reduce.Float64, Reduce: by, Root: -1, Count: 1, In: reduce.Bytes(said), Out: reduce.Bytes(said)}
	if err := c.start(ctx, &look, want{}, 1); err != nil {
		return err
	}
	if err := c.carryOut(false); err != nil {
		return err
	}
	if j.Heard(said[0]) {
		c.library.forget(j)
		c.tellJudged(j, said[0])
	}
	return nil
}

// tellJudged says what became of a program, once for all ranks.
func (c *Comm) tellJudged(j *choice.Judge, now float64) {
	if c.Rank() != 0 || j.State() == choice.Doubted {
		return
	}
	m := j.Made()
	text := fmt.Sprintf("links have changed: the program made for %s takes %.1f times as long as when it was made", m.Op, j.Slow())
	if j.State() == choice.Dropped {
		text += fmt.Sprintf(", and the runtime's choice %.1f times as long; the choice runs from now on: make programs anew with weft algo synth --measured",
			now)
	} else {
		text += fmt.Sprintf(", but the runtime's choice is %.1f times as slow: the program stays; weft algo synth --measured may find a better one",
			now)
	}
	if c.world.cfg.Explain != nil {
		fmt.Fprintln(c.world.cfg.Explain, text)
	}
	if c.world.cfg.Log != nil {
		c.world.cfg.Log.Warn(text)
	}
}
