package comm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weft-fabric/weft/run/comm/internal/blame"
	"github.com/weft-fabric/weft/run/comm/internal/board"
	"github.com/weft-fabric/weft/run/comm/internal/calls"
	"github.com/weft-fabric/weft/run/comm/internal/clock"
	"github.com/weft-fabric/weft/run/comm/internal/group"
	"github.com/weft-fabric/weft/run/comm/internal/shared"
	"github.com/weft-fabric/weft/run/transport"
)

// stop is asked by waits of the operation under way. It is only called by its goroutine and by those that the operation
// started.
func (c *Comm) stop() error {
	if f := c.failed.Load(); f != nil {
		return f
	}
	if f := c.toldAbove(); f != nil {
		return f
	}
	if f := c.partedAbove(); f != nil {
		return f
	}
	o, w := &c.cur, &c.group.Wait
	if f := c.heard(); f != nil && !(w.Phase == blame.Exit && f.Seq > w.Seq && c.readersEntered()) {
		return f // a failure after this operation does not concern it once its readers entered it
	}
	if f := c.abortedAbove(); f != nil {
		return f
	}
	if err := o.ctx.Err(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return &Failure{Kind: Aborted, Culprits: []int{c.Rank()}, Err: err}
	}
	if err := c.queue.behind(); errors.Is(err, context.DeadlineExceeded) {
		return c.late()
	} else if err != nil {
		return c.ended("a call that waits for this one", err)
	}
	if f := c.refusedBy(); f != nil {
		return f
	}
	now := clock.Now()
	if err := c.probe(now); err != nil {
		return err
	}
	for i := range c.group.Members {
		if i == 0 && c.allThere() {
			break
		}
		if i == c.Rank() {
			continue
		}
		if err := c.lost(i, now); err != nil {
			return err
		}
	}
	if c.above != nil {
		o = &c.above.cur // whose time it is
	}
	if limit := o.limit.Load(); limit == 0 {
		o.asked.Store(now) // some 50 us after the call
		o.limit.Store(c.until(o.ctx, now))
	} else if now > limit {
		if c.above != nil { // which finds out who is at fault
			return &Failure{Kind: Timeout, Err: ErrTimeout}
		}
		return c.late()
	}
	return nil
}

// refusedBy is word of a rank that does not take part in the operation under way, or nil.
func (c *Comm) refusedBy() *Failure {
	rank, seq := c.group.Mine().Refused()
	if seq != c.cur.Call.Seq || seq == 0 || seq == c.refusal || rank < 0 || rank >= c.Size() {
		return nil
	}
	return &Failure{Kind: Mismatch, Culprits: []int{rank},
		Err: fmt.Errorf("rank %d does not take part: its call was wrong in itself, and its error says why", rank)}
}

// lost ends a wait that needs a rank which is gone.
func (c *Comm) lost(i int, now int64) error {
	g := c.group
	err := g.Alive(i)
	closed := err == nil && c.hasClosed(i)
	if closed { // which it did after all that it had to do was done
		err = &transport.Gone{Rank: g.Members[i], Left: true}
	}
	if err == nil {
		return nil
	}
	a := blame.Absence{Phase: g.Wait.Phase, Shared: g.Memory != nil, Closed: closed, Died: true}
	var gone *transport.Gone
	if errors.As(err, &gone) && gone.Left && !closed {
		a.Died = false
	}
	switch a.Phase {
	case blame.Exit:
		a.Awaited = slices.Contains(g.Wait.Readers, int32(i))
		a.Heirs, a.Heir = g.Wait.Heirs, g.Wait.Heirs && g.Heir()
	case blame.Messages:
		waits, _, _ := g.Mine().Waiting()
		a.Awaited = waits == i
		if !a.Shared && (a.Died || closed) {
			c.cur.missed.CompareAndSwap(0, now)
			a.Missing = time.Duration(now - c.cur.missed.Load())
		}
	}
	if a.Shared {
		a.Done = g.Wait.Done(i, g.Boards[i])
	}
	switch blame.Ask(&a) {
	case blame.GoOn:
		return nil
	case blame.Inherit:
		return shared.ErrInherit
	}
	return c.gone(i, err)
}

// kindOf are those of verdicts.
var kindOf = [...]Kind{blame.Dead: Dead, blame.Left: Left, blame.Mismatch: Mismatch, blame.Timeout: Timeout, blame.Refused: Broken}

// told is the failure that a verdict tells of.
func told(v blame.Verdict, cause error) *Failure {
	f := &Failure{Kind: kindOf[v.Kind], Culprits: v.Culprits, Report: v.Report, Err: errors.New(v.Text)}
	if cause != nil {
		f.Err = &because{v.Text, cause}
	}
	return f
}

// because is an error in other words than its cause.
type because struct {
	text  string
	cause error
}

func (b *because) Error() string { return b.text }
func (b *because) Unwrap() error { return b.cause }

// gone is the failure of an operation in which a rank died or left.
func (c *Comm) gone(i int, err error) *Failure {
	s := c.scene(c.group.Boards, nil, c.lastMessage)
	s.Lost = blame.Loss{Gone: true, Rank: i, Why: err.Error()}
	var g *transport.Gone
	if errors.As(err, &g) {
		s.Lost.Why, s.Lost.Closed = g.Why, g.Left
	}
	if p, ok := errors.AsType[*transport.Parted](err); ok {
		s.Lost.Parted, s.Lost.Lives = true, p.Lives
	}
	if r, ok := errors.AsType[*transport.Refused](err); ok {
		sender, receiver := i, c.Rank()
		if r.Sender == c.world.ep.Rank() {
			sender, receiver = receiver, sender
		}
		own := transport.Refused{Sender: sender, Receiver: receiver, What: r.What} // in the ranks of the communicator
		s.Lost.Refused, s.Lost.Sender, s.Lost.Why = true, sender, own.Error()
	}
	f := told(blame.Judge(s), err)
	f.parted = s.Lost.Parted && !s.Lost.Lives
	return f
}

// late is the failure of an operation whose time limit passed.
func (c *Comm) late() *Failure {
	o := &c.cur
	boards := c.allBoards()
	s := c.scene(boards, &o.Call, c.lastMessage)
	c.lookElsewhere(s)
	s.Waited = clock.Since(o.Began).Round(time.Millisecond)
	if c.world.ep.Can().OneProcess { // where time may be virtual, ticks tell nothing
		s.Waited = time.Duration(clock.Now() - o.asked.Load()).Round(time.Millisecond)
	}
	v := blame.Judge(s)
	if v.Differs >= 0 {
		mine, _ := callOn(boards[c.Rank()], v.Seq)
		theirs, _ := callOn(boards[v.Differs], v.Seq)
		f := told(v, nil)
		f.Err = calls.Mismatch(c.Rank(), v.Differs, &mine, &theirs)
		return f
	}
	if said := c.heard(); said != nil {
		return said // another rank found out more meanwhile
	}
	return told(v, nil)
}

// lookElsewhere notes which ranks that did not enter the operation wait for this one in another communicator of both.
func (c *Comm) lookElsewhere(s *blame.Scene) {
	for _, d := range c.relatives() {
		boards, own := d.allBoards(), d.group.Mine().Entered()
		for i := range s.Ranks {
			if r := &s.Ranks[i]; r.Elsewhere == "" && i != c.Rank() && r.Answers && r.Entered < s.Call.Seq {
				r.Elsewhere = d.waits(boards, slices.Index(d.group.Members, c.group.Members[i]), own)
			}
		}
	}
}

// waits says in which operation of a communicator a rank is that comes behind one; empty if it is in none, or no member.
func (d *relative) waits(boards []board.Board, rank int, behind uint64) string {
	if rank < 0 || boards[rank] == nil {
		return ""
	}
	call, ok := d.called(rank, boards[rank], boards[rank].Entered())
	if !ok || call.Seq <= behind {
		return ""
	}
	return fmt.Sprintf("communicator %d (%s of all) in operation %d (%s)", d.id, blame.Names(d.group.Members), call.Seq, call.What)
}

// relative is another communicator, as far as it can be read while it is used or closed.
type relative struct {
	peers
	id uint32
}

// relatives are the other communicators of the process that were made of this one, or this one of them, and are not closed.
func (c *Comm) relatives() (list []relative) {
	w := c.world
	w.mu.Lock()
	defer w.mu.Unlock()
	root := c
	for root.parent != nil {
		root = root.parent
	}
	var add func(k *Comm)
	add = func(k *Comm) {
		if g := k.group; k != c && k.world == w && g.Boards != nil {
			g = &group.Group{Rank: g.Rank, Members: g.Members, Endpoint: g.Endpoint, Memory: g.Memory, Boards: slices.Clone(g.Boards)}
			list = append(list, relative{peers{world: w, group: g, keys: k.keys}, k.id})
		}
		for _, k := range k.kids {
			add(k)
		}
	}
	add(root)
	return list
}

// lateMessage is the failure of a send or receive whose time limit passed.
func (c *Comm) lateMessage(what string, peer int) *Failure {
	if c.hasClosed(peer) {
		return c.gone(peer, &transport.Gone{Rank: c.group.Members[peer], Left: true})
	}
	s := c.scene(c.allBoards(), nil, c.lastMessage)
	s.Message, s.Peer = what, peer
	f := told(blame.Judge(s), nil)
	f.Rank = c.Rank()
	return f
}

// mismatch names this rank and another that entered a different call, now or before.
func (c *Comm) mismatch(i int) error {
	now := &c.cur.Call
	m := calls.Mismatch(c.Rank(), i, now, now)
	m.Note = fmt.Sprintf("they differ in an operation more than %d before it", board.Window-1)
	for seq := now.Seq; seq > 0 && now.Seq-seq < board.Window; seq-- {
		mine := *now
		if seq != now.Seq {
			var known bool
			if mine, known = callOn(c.group.Mine(), seq); !known {
				break
			}
		}
		if theirs, known := callOn(c.group.Boards[i], seq); known && theirs.Signature() != mine.Signature() {
			m = calls.Mismatch(c.Rank(), i, &mine, &theirs)
		}
	}
	return m
}

// Ahead finds a rank that has entered an operation which this rank has not, and says which one. Anybody may ask, also while an
// operation of another communicator of these ranks is under way.
func (c *Comm) Ahead() (rank int, what string, ok bool) {
	boards := c.allBoards()
	own := c.group.Mine().Entered()
	for i, b := range boards {
		if b == nil || i == c.Rank() {
			continue
		}
		if seq := b.Entered(); seq > own {
			call, _ := c.called(i, b, seq)
			return i, call.What, true
		}
	}
	return 0, "", false
}

// lastMessage is the call of the last message that a rank sent here.
func (c *Comm) lastMessage(i int) (calls.Call, bool) {
	if c.scripts == nil {
		return calls.Call{}, false
	}
	call, ok := c.scripts.Last(i)
	return calls.Of(call), ok
}
