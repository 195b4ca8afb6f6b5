package verify

import (
	"context"
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
)

// Limits of the vector clocks, one number for each channel of every rank that is looked
// at (a thread), in every thread and every message under way.
const (
	maxThreads = 1 << 14
	maxClock   = 1 << 33 // numbers that are compared in a proof, some 5 s

	modeThreads = 1 << 10 // the same, to find out its modes
	modeClock   = 1 << 28
)

// ordered checks with happens-before what one run cannot show: that two channels of a
// rank touch the same chunk only in an order. Only ranks that share chunks between
// channels, as the root of a tree does, need a clock.
func ordered(ctx context.Context, p *sched.Program, rep *Report, sharing []sched.Rank, awaited []moment) error {
	if threads := len(sharing) * p.Channels(); threads > maxThreads || int64(threads)*rep.Actions > maxClock {
		return fmt.Errorf("%w: %d ranks of %s have channels that share chunks, %d channels in all, in %d steps; the order between them is proven up to %d channels, and channels times steps up to %d",
			ErrTooLarge, len(sharing), p.Name, threads, rep.Actions, maxThreads, maxClock)
	}
	if len(sharing) == 0 {
		return nil
	}
	return newClocks(ctx, p, false, false, sharing, awaited).run()
}

// findModes finds out in which modes a world may run the program: whether messages may
// stay in the sender's buffer until they are taken (direct), and whether in and out may
// be the same memory (in place). All channels of all ranks need a clock for it, and
// large programs go without an answer.
func findModes(ctx context.Context, p *sched.Program, rep *Report, awaited []moment) {
	world := p.Ranks + p.Switches
	most := max(p.NumChunks(sched.In), p.NumChunks(sched.Out), p.NumChunks(sched.Tmp))
	if threads := world * p.Channels(); threads > modeThreads || int64(threads)*rep.Actions > modeClock || world*most > maxChunks {
		return
	}
	rep.Direct = newClocks(ctx, p, true, false, nil, awaited).run() == nil
	alias := newWorld(ctx, p, world, true)
	if alias.run() != nil {
		return
	}
	rep.InPlace = newClocks(ctx, p, false, true, nil, awaited).run() == nil
	rep.Both = rep.InPlace && newClocks(ctx, p, true, true, nil, awaited).run() == nil
}

// clocks finds two uses of a chunk, one of them a write, that no chain of steps
// and messages puts into an order. Every channel of every rank is a thread.
type clocks struct {
	w       *world // for where chunks lie; its memory is not used
	p       *sched.Program
	direct  bool
	awaited []moment
	ranks   []sched.Rank // looked at; nil means all
	slot    []int32      // by thread: its place in a vector, -1 if its rank is not looked at
	now     []vector
	past    map[moment]vector // the clocks that Waits will ask for; nil until they are there
	last    [][4][]uses       // by rank, buffer and chunk
	spare   []vector          // of messages that were taken
	clash   [2]stamp          // the two uses that have no order
	names   [2]string         // what they are, found out by a second run
}

type vector []uint32

// moment is when a thread has done a number of actions.
type moment struct {
	thread int
	done   int64
}

type uses struct {
	write   stamp
	written bool
	reads   []stamp
}

// stamp is a moment of a thread, named by its place in vectors: its time-th
// action, counted from 1.
type stamp struct {
	thread int32
	time   uint32
}

// letter is a message: the sender's clock, and where its bytes lie if they were not copied.
type letter struct {
	clock  vector
	rank   sched.Rank
	lies   step.Chunks
	lasted bool // the bytes are still in the sender's buffer
}

// newClocks begins to follow what happens before what, with vector clocks. Only the threads of ranks have slots (nil:
// of all), which keeps vectors short where symmetry says the rest.
func newClocks(ctx context.Context, p *sched.Program, direct, alias bool, ranks []sched.Rank, awaited []moment) *clocks {
	world, channels := p.Ranks+p.Switches, p.Channels()
	n := world * channels
	c := &clocks{w: newWorld(ctx, p, world, alias), p: p, direct: direct, ranks: ranks, slot: make([]int32, n),
		now: make([]vector, n), past: make(map[moment]vector, len(awaited)), last: make([][4][]uses, world)}
	size := 0
	for t := range n {
		c.slot[t] = -1
		if _, found := slices.BinarySearch(ranks, sched.Rank(t/channels)); found || ranks == nil {
			c.slot[t] = int32(size)
			size++
		}
	}
	for i := range c.now {
		c.now[i] = make(vector, size)
	}
	for _, m := range awaited {
		c.past[m] = nil
	}
	c.awaited = awaited
	return c
}

// waits reports whether a channel of the program waits for another.
func waits(p *sched.Program) bool {
	for _, g := range p.Groups {
		if hasWait(g.Body) {
			return true
		}
	}
	return false
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

// run goes through the program. If two uses have no order it does so again, the
// same way, to say which they are.
func (c *clocks) run() error {
	err := step.Run(c.p, c.do)
	if race, ok := err.(*Violation); ok && c.names[0] == "" {
		again := newClocks(c.w.ctx, c.p, c.direct, c.w.alias, c.ranks, c.awaited)
		again.clash = c.clash
		_ = step.Run(c.p, again.do) // ends where the first did
		race.What += ": " + again.names[0] + " and " + again.names[1]
	}
	return err
}

func (v vector) join(o vector) {
	for i, t := range o {
		v[i] = max(v[i], t)
	}
}

func (c *clocks) do(r sched.Rank, a *step.Action, in letter) (letter, error) {
	if err := c.w.stopped(); err != nil {
		return letter{}, err
	}
	t := int(r)*c.p.Channels() + int(a.Channel)
	v, slot := c.now[t], c.slot[t]
	if slot >= 0 {
		v[slot]++
	}
	if a.Op.Receives() {
		v.join(in.clock)
		c.spare = append(c.spare, in.clock)
	}
	if a.Op == sched.Wait && a.Done > 0 {
		v.join(c.past[moment{int(r)*c.p.Channels() + int(a.On), a.Done}])
	}
	if slot >= 0 {
		if err := c.touch(r, a, in, v, stamp{slot, v[slot]}); err != nil {
			return in, err
		}
	}
	c.remember(moment{t, a.Step + 1}, v)
	if !a.Op.Sends() {
		return letter{}, nil
	}
	return c.letter(r, a, v), nil
}

// remember keeps a thread's clock at a moment that some rank waits for.
func (c *clocks) remember(at moment, v vector) {
	if len(c.past) == 0 {
		return
	}
	if _, ok := c.past[at]; ok {
		c.past[at] = slices.Clone(v)
	}
}

// letter is what goes along with a message: the sender's clock, and where the bytes lie if they need not be copied.
func (c *clocks) letter(r sched.Rank, a *step.Action, v vector) letter {
	out := letter{rank: r}
	if k := len(c.spare) - 1; k >= 0 {
		out.clock, c.spare = append(c.spare[k][:0], v...), c.spare[:k]
	} else {
		out.clock = append(vector(nil), v...)
	}
	switch {
	case !c.direct:
	case a.Op == sched.Send:
		out.lies, out.lasted = c.w.at(r, a.Src), true
	case a.Op.Stores():
		out.lies, out.lasted = c.w.at(r, a.Dst), true
	}
	return out
}

// touch notes which chunks an action uses.
func (c *clocks) touch(r sched.Rank, a *step.Action, in letter, v vector, me stamp) error {
	for i, s := range c.clash {
		if s == me {
			c.names[i] = fmt.Sprintf("rank %d channel %d step %d (%s)", r, a.Channel, a.Step, a)
		}
	}
	if in.lasted {
		if err := c.read(in.rank, in.lies, v, me); err != nil {
			return err
		}
	}
	if a.Op.Reads() {
		if err := c.read(r, c.w.at(r, a.Src), v, me); err != nil {
			return err
		}
	}
	if a.Op.Stores() {
		return c.write(r, c.w.at(r, a.Dst), v, me)
	}
	return nil
}

// uses gives the record of some chunks, which must lie in their buffer.
func (c *clocks) uses(r sched.Rank, ch step.Chunks) []uses {
	all := &c.last[r][ch.Buf]
	if *all == nil {
		size := c.p.NumChunks(ch.Buf)
		if ch.Buf != sched.Tmp { // in place, out may lie in the larger in
			size = max(c.p.NumChunks(sched.In), c.p.NumChunks(sched.Out))
		}
		*all = make([]uses, size)
	}
	return (*all)[ch.Index : ch.Index+ch.Count]
}

// before reports whether what a stamp says had happened at a moment.
func (v vector) before(s stamp) bool { return s.time <= v[s.thread] }

// read fails if the last write to the chunks does not happen before. Reads of one thread that follow each other are
// kept once: the last stands for all.
func (c *clocks) read(r sched.Rank, ch step.Chunks, v vector, me stamp) error {
	if ch.Buf == sched.In {
		return nil // never written
	}
	list := c.uses(r, ch)
	for i := range list {
		u := &list[i]
		if u.written && !v.before(u.write) {
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

// write fails unless every use of the chunks happens before. It stands for all of them afterwards.
func (c *clocks) write(r sched.Rank, ch step.Chunks, v vector, me stamp) error {
	list := c.uses(r, ch)
	for i := range list {
		u := &list[i]
		if u.written && !v.before(u.write) {
			return c.race(r, ch, i, u.write, me)
		}
		for _, s := range u.reads {
			if !v.before(s) {
				return c.race(r, ch, i, s, me)
			}
		}
		u.write, u.written, u.reads = me, true, u.reads[:0]
	}
	return nil
}

func (c *clocks) race(r sched.Rank, ch step.Chunks, i int, a, b stamp) error {
	c.clash = [2]stamp{a, b}
	one := step.Chunks{Buf: ch.Buf, Index: ch.Index + int64(i), Count: 1}
	return &Violation{Program: c.p.Name, Rank: r, What: fmt.Sprintf("has no order between two uses of %s", one)}
}
