package comm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/weft-fabric/weft/comm/calls"
	"github.com/weft-fabric/weft/comm/internal/blame"
	"github.com/weft-fabric/weft/comm/internal/board"
	"github.com/weft-fabric/weft/comm/internal/clock"
	"github.com/weft-fabric/weft/comm/internal/shared"
	"github.com/weft-fabric/weft/transport"
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
	if err := c.behind(); errors.Is(err, context.DeadlineExceeded) {
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
	return &Failure{Kind: Mismatch, Culprits: []int{rank}, Err: fmt.Errorf("rank %d does not take part: its call was wrong in itself, and its error says why", rank)}
}

// probing asks a rank far away what it does, without waiting for the answer.
type probing struct {
	mu     sync.Mutex
	next   int64       // when to ask
	rank   int         // that was asked
	board  board.Board // its answer; nil if nobody was asked
	ticket transport.Ticket
}

// A rank that waits for messages asks after a while, and from then on every while, whether the other makes the same call. Ranks
// that call different things may wait for each other without a message that would tell.
const probeAfter, probeEvery = 200 * time.Millisecond, 500 * time.Millisecond

// probe finds out whether the rank that is waited for, far away, makes another call under the number of this one.
func (c *Comm) probe(now int64) error {
	p := &c.probing
	if c.world.mem != nil || c.group.Wait.Phase != blame.Messages || !p.mu.TryLock() {
		return nil
	}
	defer p.mu.Unlock()
	o, boards := &c.cur, c.group.Boards
	if o.limit.Load() == 0 {
		p.next, p.board = now+int64(probeAfter), nil
		return nil
	}
	if p.board != nil {
		if err := c.world.verbs.look(p.ticket); err == errPending {
			return nil
		} else if err == nil {
			theirs, ok := callOn(p.board, o.Call.Seq)
			if ok && signature(&theirs) != signature(&o.Call) {
				return calls.Mismatch(c.Rank(), p.rank, &o.Call, &theirs)
			}
		}
		p.board = nil
	}
	if now < p.next || boards == nil {
		return nil
	}
	p.next = now + int64(probeEvery)
	rank, _, _ := c.group.Mine().Waiting()
	if rank < 0 || rank >= c.Size() || rank == c.Rank() {
		return nil
	}
	b := make(board.Board, board.ShortSize)
	if t, err := c.world.verbs.raw.Read(c.group.Members[rank], b, c.keys[rank]); err == nil {
		p.rank, p.board, p.ticket = rank, b, t
	}
	return nil
}

// readersEntered reports whether every rank that is waited for at the end of an operation entered it, and so may be reading this
// rank's memory.
func (c *Comm) readersEntered() bool {
	seq := c.group.Wait.Seq
	return !slices.ContainsFunc(c.group.Wait.Readers, func(i int32) bool { return c.group.Boards[i].Entry(seq).Flag().Load() < seq })
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

// hasClosed reports whether a rank closed the communicator, which it may long before its process ends.
func (c *Comm) hasClosed(rank int) bool {
	mine := c.group.Mine()
	return mine != nil && mine.IsLetGo(rank)
}

// scene collects what is known of the ranks, as their boards have it, for an operation.
func (c *Comm) scene(boards []board.Board, call *calls.Call) *blame.Scene {
	s := &blame.Scene{Rank: c.Rank(), Ranks: make([]blame.Rank, c.Size()), Shared: c.world.mem != nil, Phase: c.group.Wait.Phase}
	for i, b := range boards {
		r := &s.Ranks[i]
		r.State, r.WaitsFor, r.PairsWith = c.state(i), -1, -1
		if b == nil {
			if last, ok := c.lastMessage(i); ok {
				r.Last = c.said(i, &last, 0)
			}
			continue
		}
		r.Answers, r.Entered = true, b.Entered()
		r.WaitsFor, r.Channel, r.Step = b.Waiting()
		r.PairsWith = b.Pairing()
		r.Last, _ = c.called(i, b, r.Entered)
		r.Mine, _ = c.called(c.Rank(), boards[c.Rank()], r.Last.Seq)
		if call != nil {
			r.Here, _ = c.called(i, b, call.Seq)
			r.Done = c.group.Wait.Done(i, b) || s.Phase == blame.Exit && !slices.Contains(c.group.Wait.Readers, int32(i))
		}
	}
	if call != nil {
		s.Call = c.said(c.Rank(), call, 0)
	}
	return s
}

// called is what a rank called as an operation; false if its board does not have it any more.
func (c *Comm) called(i int, b board.Board, seq uint64) (blame.Call, bool) {
	call, ok := callOn(b, seq)
	if !ok {
		return blame.Call{}, false
	}
	return c.said(i, &call, b.Began(seq)), true
}

// callOn is what a board has of an operation.
func callOn(b board.Board, seq uint64) (call calls.Call, ok bool) {
	if seq == 0 {
		return call, false
	}
	call.Get(b.Call(seq))
	return call, call.Seq == seq
}

// said is a call in words.
func (c *Comm) said(i int, call *calls.Call, began int64) blame.Call {
	return blame.Call{Seq: call.Seq, What: call.String(), Sig: signature(call), Ago: c.ago(i, began)}
}

// lastMessage is the call of the last message that a rank sent here.
func (c *Comm) lastMessage(i int) (calls.Call, bool) {
	if c.scripts == nil {
		return calls.Call{}, false
	}
	call, ok := c.scripts.Last(i)
	return calls.Of(call), ok
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
	s := c.scene(c.group.Boards, nil)
	s.Lost = blame.Loss{Gone: true, Rank: i, Why: err.Error()}
	var g *transport.Gone
	if errors.As(err, &g) {
		s.Lost.Why, s.Lost.Closed = g.Why, g.Left
	}
	if r, ok := errors.AsType[*transport.Refused](err); ok {
		sender, receiver := i, c.Rank()
		if r.Sender == c.world.ep.Rank() {
			sender, receiver = receiver, sender
		}
		own := transport.Refused{Sender: sender, Receiver: receiver, What: r.What} // in the ranks of the communicator
		s.Lost.Refused, s.Lost.Sender, s.Lost.Why = true, sender, own.Error()
	}
	return told(blame.Judge(s), err)
}

// late is the failure of an operation whose time limit passed.
func (c *Comm) late() *Failure {
	o := &c.cur
	boards := c.allBoards()
	s := c.scene(boards, &o.Call)
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

// lateMessage is the failure of a send or receive whose time limit passed.
func (c *Comm) lateMessage(what string, peer int) *Failure {
	if c.hasClosed(peer) {
		return c.gone(peer, &transport.Gone{Rank: c.group.Members[peer], Left: true})
	}
	s := c.scene(c.allBoards(), nil)
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
		if theirs, known := callOn(c.group.Boards[i], seq); known && signature(&theirs) != signature(&mine) {
			m = calls.Mismatch(c.Rank(), i, &mine, &theirs)
		}
	}
	return m
}

// ago says how long ago a rank of the same host began something.
func (c *Comm) ago(i int, began int64) string {
	if began == 0 || !c.sameHost(i) {
		return ""
	}
	d := clock.Since(began).Round(100 * time.Microsecond).String()
	if began&clock.Loose != 0 {
		return " at most " + d + " ago"
	}
	return " " + d + " ago"
}

// sameHost reports whether a rank is on this rank's host.
func (c *Comm) sameHost(i int) bool {
	m := c.group.Members
	return c.world.hosts[m[i]] == c.world.hosts[m[c.Rank()]]
}

// answer is how long ranks have to answer a rank that asks for their boards: their processes have to get a core, no more.
const answer = 400 * time.Millisecond

// allBoards gets the boards of the members; nil for those that do not answer.
func (c *Comm) allBoards() []board.Board {
	if c.world.mem != nil {
		return c.group.Boards
	}
	list := make([]board.Board, c.Size())
	list[c.Rank()] = c.group.Mine()
	type read struct {
		i int
		t transport.Ticket
	}
	var reads []read
	for i, m := range c.group.Members {
		if i == c.Rank() || c.group.Alive(i) != nil || c.state(i).Stopped() {
			continue
		}
		b := make(board.Board, board.ShortSize)
		if t, err := c.world.verbs.raw.Read(m, b, c.keys[i]); err == nil {
			list[i] = b
			reads = append(reads, read{i, t})
		}
	}
	end := time.Now().Add(answer)
	for _, r := range reads {
		if c.world.verbs.wait(r.t, time.Until(end)) != nil {
			list[r.i] = nil
		}
	}
	return list
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

// state is the state of a rank's process as the kernel has it, 0 if it is not a process of this host.
func (c *Comm) state(i int) blame.State {
	m := c.group.Members[i]
	if !c.sameHost(i) || m >= len(c.world.pids) || c.world.pids[m] <= 0 || c.world.ep.Can().OneProcess {
		return 0
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.world.pids[m]))
	if err != nil {
		return 'X'
	}
	if at := slices.Index(b, ')'); at > 0 && at+2 < len(b) {
		return blame.State(b[at+2])
	}
	return 0
}
