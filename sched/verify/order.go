package verify

import (
	"fmt"

	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/sched/step"
)

// maxThreads bounds the vector clocks: one number per channel of every rank, in
// every message under way.
const maxThreads = 1024

// orders checks with happens-before what one run cannot show, and finds out in
// which modes a world may run the program: whether messages may stay in the
// sender's buffer until they are taken (direct), and whether in and out may be
// the same memory (in place).
func orders(p *sched.Program, rep *Report, shared bool) error {
	if (p.Ranks+p.Switches)*p.Channels() > maxThreads {
		if shared {
			return fmt.Errorf("%w: %s has channels that share chunks, and %d channels in all; the order between them is proven up to %d",
				ErrTooLarge, p.Name, (p.Ranks+p.Switches)*p.Channels(), maxThreads)
		}
		return nil
	}
	if shared {
		if err := newClocks(p, false, false).run(); err != nil {
			return err
		}
	}
	rep.Direct = newClocks(p, true, false).run() == nil
	alias := newWorld(p, p.Ranks+p.Switches, true)
	if step.Run(p, alias.do) != nil {
		return nil
	}
	for r := range p.Ranks {
		if alias.promised(sched.Rank(r)) != nil {
			return nil
		}
	}
	rep.InPlace = newClocks(p, false, true).run() == nil
	rep.Both = rep.InPlace && newClocks(p, true, true).run() == nil
	return nil
}

// clocks finds two uses of a chunk, one of them a write, that no chain of steps
// and messages puts into an order. Every channel of every rank is a thread.
type clocks struct {
	w       *world // for where chunks lie; its memory is not used
	p       *sched.Program
	direct  bool
	now     []vector
	past    [][]vector // by thread: the clock after each action, kept where there are Waits
	waits   bool
	last    map[place]*uses
	threads int
}

type vector []uint32

// place is one chunk of one rank.
type place struct {
	rank  sched.Rank
	buf   sched.Buffer
	index int64
}

type uses struct {
	write   stamp
	written bool
	reads   []stamp
}

// stamp is a moment of a thread.
type stamp struct {
	thread int
	time   uint32
	rank   sched.Rank
	act    step.Action
}

// letter is a message: the sender's clock, and where its bytes lie if they were not copied.
type letter struct {
	clock  vector
	rank   sched.Rank
	lies   step.Chunks
	lasted bool // the bytes are still in the sender's buffer
}

func newClocks(p *sched.Program, direct, alias bool) *clocks {
	n := (p.Ranks + p.Switches) * p.Channels()
	c := &clocks{w: newWorld(p, p.Ranks+p.Switches, alias), p: p, direct: direct, threads: n, now: make([]vector, n), past: make([][]vector, n), last: map[place]*uses{}}
	for i := range c.now {
		c.now[i] = make(vector, n)
	}
	for _, g := range p.Groups {
		c.waits = c.waits || hasWait(g.Body)
	}
	return c
}

func hasWait(body []sched.Stmt) bool {
	for _, s := range body {
		if s.Step != nil && s.Step.Op == sched.Wait || s.Loop != nil && hasWait(s.Loop.Body) ||
			s.If != nil && (hasWait(s.If.Then) || hasWait(s.If.Else)) {
			return true
		}
	}
	return false
}

func (c *clocks) run() error { return step.Run(c.p, c.do) }

func (v vector) join(o vector) {
	for i, t := range o {
		v[i] = max(v[i], t)
	}
}

func (c *clocks) do(r sched.Rank, a *step.Action, in letter) (letter, error) {
	t := int(r)*c.p.Channels() + int(a.Channel)
	v := c.now[t]
	v[t]++
	if a.Op.Receives() {
		v.join(in.clock)
	}
	if a.Op == sched.Wait && a.Done > 0 {
		v.join(c.past[int(r)*c.p.Channels()+int(a.On)][a.Done-1])
	}
	me := stamp{t, v[t], r, *a}
	if in.lasted {
		if err := c.read(in.rank, in.lies, me); err != nil {
			return in, err
		}
	}
	if a.Op.Reads() {
		if err := c.read(r, c.w.at(r, a.Src), me); err != nil {
			return in, err
		}
	}
	if a.Op.Stores() {
		if err := c.write(r, c.w.at(r, a.Dst), me); err != nil {
			return in, err
		}
	}
	if c.waits {
		c.past[t] = append(c.past[t], append(vector(nil), v...))
	}
	if !a.Op.Sends() {
		return letter{}, nil
	}
	out := letter{clock: append(vector(nil), v...), rank: r}
	switch {
	case !c.direct:
	case a.Op == sched.Send:
		out.lies, out.lasted = c.w.at(r, a.Src), true
	case a.Op.Stores():
		out.lies, out.lasted = c.w.at(r, a.Dst), true
	}
	return out, nil
}

func (c *clocks) uses(r sched.Rank, ch step.Chunks, i int64) *uses {
	key := place{r, ch.Buf, ch.Index + i}
	u := c.last[key]
	if u == nil {
		u = &uses{}
		c.last[key] = u
	}
	return u
}

// before reports whether what a stamp says had happened when thread t is where it is now.
func (c *clocks) before(s stamp, t int) bool { return s.time <= c.now[t][s.thread] }

func (c *clocks) read(r sched.Rank, ch step.Chunks, me stamp) error {
	if ch.Buf == sched.In {
		return nil // never written
	}
	for i := range ch.Count {
		u := c.uses(r, ch, i)
		if u.written && !c.before(u.write, me.thread) {
			return c.race(r, ch, i, u.write, me)
		}
		if k := len(u.reads) - 1; k >= 0 && u.reads[k].thread == me.thread {
			u.reads[k] = me
		} else {
			u.reads = append(u.reads, me)
		}
	}
	return nil
}

func (c *clocks) write(r sched.Rank, ch step.Chunks, me stamp) error {
	for i := range ch.Count {
		u := c.uses(r, ch, i)
		if u.written && !c.before(u.write, me.thread) {
			return c.race(r, ch, i, u.write, me)
		}
		for _, s := range u.reads {
			if !c.before(s, me.thread) {
				return c.race(r, ch, i, s, me)
			}
		}
		u.write, u.written, u.reads = me, true, u.reads[:0]
	}
	return nil
}

func (c *clocks) race(r sched.Rank, ch step.Chunks, i int64, a, b stamp) error {
	one := step.Chunks{Buf: ch.Buf, Index: ch.Index + i, Count: 1}
	return &Violation{Program: c.p.Name, Rank: r, What: fmt.Sprintf("has no order between two uses of %s: rank %d channel %d step %d (%s) and rank %d channel %d step %d (%s)",
		one, a.rank, a.act.Channel, a.act.Step, &a.act, b.rank, b.act.Channel, b.act.Step, &b.act)}
}
