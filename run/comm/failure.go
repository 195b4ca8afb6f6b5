package comm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/run/comm/internal/blame"
	"github.com/weft-fabric/weft/run/comm/internal/board"
	"github.com/weft-fabric/weft/run/comm/internal/calls"
	"github.com/weft-fabric/weft/run/comm/internal/group"
	"github.com/weft-fabric/weft/run/comm/internal/shared"
	"github.com/weft-fabric/weft/run/transport"
)

// What went wrong, for errors.Is. Every error of a call that other ranks take part
// in is a *Failure that matches one of these; errors.As gives the ranks at fault.
// Errors of a call that is wrong in itself, such as a buffer that is too short, match
// none of them, and nothing was sent.
var (
	ErrDead     = errors.New("a rank died") // its process ended or cannot be reached
	ErrLeft     = errors.New("a rank left") // it closed the communicator
	ErrMismatch = errors.New("ranks call different things")
	ErrTimeout  = errors.New("time limit passed")                    // matched by context.DeadlineExceeded, too
	ErrAborted  = errors.New("aborted")                              // a rank called Abort, or its context was cancelled
	ErrClosed   = errors.New("communicator closed")                  // here
	ErrBroken   = errors.New("transport failed")                     // otherwise: errors.As gives a *transport.Refused where a rank does not take what another sends
	ErrExcluded = errors.New("the others went on without this rank") // Shrink: it came too late
	ErrNoQuorum = errors.New("no majority")                          // Shrink: the ranks that are left may not go on alone
)

// Kind is why an operation failed, as a number: what Failure.Is compares.
type Kind uint8

// The kinds of failure; each matches the error of its name.
const (
	Dead Kind = iota + 1
	Mismatch
	Timeout
	Aborted
	Closed
	Broken
	Left
	Excluded
	NoQuorum
)

var kindTable = [...]struct {
	name string
	err  error
}{
	Dead: {"dead rank", ErrDead}, Mismatch: {"mismatched calls", ErrMismatch}, Timeout: {"time limit", ErrTimeout},
	Aborted: {"aborted", ErrAborted},
	Closed:  {"closed", ErrClosed}, Broken: {"broken transport", ErrBroken}, Left: {"rank left", ErrLeft},
	Excluded: {"excluded", ErrExcluded}, NoQuorum: {"no majority", ErrNoQuorum},
}

func (k Kind) String() string { return kindTable[k].name }

// Failure is the error of an operation that failed. The communicator it failed
// on gives it for every later call, too.
type Failure struct {
	Kind     Kind
	Rank     int    // the rank that reports
	Culprits []int  // ranks of the communicator at fault, in order
	Seq      uint64 // the operation's number on the communicator; 0 if it was none, as Send and Recv are
	Call     string // what this rank was doing; "" if that is not known
	Err      error

	// Overwritten says that the input is lost: the call was in place, and its result may have been stored in part. That happens on
	// registered memory, on large plain buffers, and on several hosts in the last phase. Without it a failed call has left its
	// input as it was.
	Overwritten bool

	Report []string // which rank waits for which, since when: a line for each rank; printed by %+v

	parted bool // a link is lost, and whether the one at its other end lives was not known to the rank that reports
	alias  alias
}

// alias is what ranks that an error names are called in the world, where a communicator has other numbers for them.
type alias struct {
	own    string // of the rank that reports
	others string // of those at fault
}

// aliases are those of this rank and of some at fault.
func (p *peers) aliases(culprits []int) (a alias) {
	name := func(rank int) (int, bool) {
		if rank < 0 || rank >= len(p.group.Members) {
			return rank, false
		}
		all := p.inAll(rank)
		return all, all != rank
	}
	if all, differs := name(p.group.Rank); differs {
		a.own = fmt.Sprintf(" (world rank %d)", all)
	}
	for _, r := range culprits {
		if all, differs := name(r); differs && r != p.group.Rank {
			a.others += fmt.Sprintf("; rank %d is world rank %d", r, all)
		}
	}
	return a
}

// Error names the rank, the operation and the reason in one line, and says whether the buffer has to be filled again.
// %+v adds what the ranks reported.
func (f *Failure) Error() string {
	s := fmt.Sprintf("rank %d%s: ", f.Rank, f.alias.own)
	switch {
	case f.Seq != 0 && f.Call != "":
		s += fmt.Sprintf("operation %d (%s): ", f.Seq, f.Call)
	case f.Seq != 0:
		s += fmt.Sprintf("operation %d: ", f.Seq)
	}
	s += f.Err.Error() + f.alias.others
	if f.Overwritten {
		s += "; its buffer is overwritten in part: fill it again before another call"
	}
	return s
}

// overwritten is the failure of a call whose input is lost.
func overwritten(err error) error {
	f, ok := errors.AsType[*Failure](err)
	if !ok {
		return err
	}
	own := *f // what later calls on the communicator return is not about this buffer
	own.Overwritten = true
	return &own
}

// Format prints the report of the ranks under %+v.
func (f *Failure) Format(s fmt.State, verb rune) {
	_, _ = fmt.Fprint(s, f.Error())
	if verb == 'v' && s.Flag('+') && len(f.Report) > 0 {
		_, _ = fmt.Fprint(s, "\n  "+strings.Join(f.Report, "\n  "))
	}
}

// Unwrap gives the cause.
func (f *Failure) Unwrap() error { return f.Err }

// Is matches a failure with the error of its kind, and a time limit that passed,
// be it that of a context or that of the configuration, with
// context.DeadlineExceeded.
func (f *Failure) Is(target error) bool {
	return target == kindTable[f.Kind].err || f.Kind == Timeout && target == context.DeadlineExceeded
}

// reported is what another rank said of a failure.
type reported struct {
	by   int
	text string
}

func (r *reported) Error() string { return fmt.Sprintf("rank %d reports: %s", r.by, r.text) }

// notice is a failure as other ranks are told of it. What another rank reported is passed on as that rank's.
func (f *Failure) notice(from int) *board.Notice {
	n := &board.Notice{From: from, Kind: uint64(f.Kind), Seq: f.Seq, Culprits: f.Culprits, Text: f.Err.Error(), Parted: f.parted}
	if r, ok := f.Err.(*reported); ok { // and nothing was added to it
		n.From, n.Text = r.by, r.text
	}
	return n
}

// fail marks the communicator as failed, tells the others, and gives the error of the operation under way.
func (c *Comm) fail(err error) error { return c.failIn(err, c.cur.Call) }

// failOutside is fail outside of operations: of messages, and of calls that were not made.
func (c *Comm) failOutside(err error) error {
	err = c.failIn(err, calls.Call{})
	c.dump(err)
	return err
}

// failIn is fail in a given call.
func (c *Comm) failIn(err error, call calls.Call) error {
	f := c.failureOf(err)
	was := f
	if c.above == nil {
		f = c.between(f)
	}
	own := *f // a copy, as others may be looking at what ended this call
	if f.Seq == 0 {
		own.Rank, own.Seq = c.Rank(), call.Seq
		if call.Op != 0 {
			own.Call = call.String()
		}
	}
	if own.alias = c.aliases(f.Culprits); f.Seq == 0 || own.alias != f.alias {
		f = &own
	}
	if !c.failAs(f) {
		if first := c.failed.Load(); first != was {
			return first
		}
	}
	return f
}

// failAs marks the communicator as failed and tells the others, unless it had failed before. Whoever gives up an operation because it has
// failed waits until they are told (giveUp).
func (c *Comm) failAs(f *Failure) bool {
	c.telling.Lock()
	defer c.telling.Unlock()
	if !c.failed.CompareAndSwap(nil, f) {
		return false
	}
	if c.above == nil { // else that tells, in its own numbers
		c.peers.tell(f.notice(c.Rank()))
	}
	return true
}

// tellWhy returns when the others are told why this rank gives up the operation under way. That it closes the communicator it tells only
// if an operation ends by it.
func (c *Comm) tellWhy() {
	c.telling.Lock()
	defer c.telling.Unlock()
	if f := c.failed.Load(); f != nil && f.Kind == Closed && c.above == nil {
		left := &Failure{Kind: Left, Culprits: []int{c.Rank()}, Seq: c.cur.Call.Seq,
			Err: fmt.Errorf("rank %d closed the communicator while it was in this operation", c.Rank())}
		c.peers.tell(left.notice(c.Rank()))
	}
}

// between names both ends of a link that another rank lost, if the rank that it lost answers this one: then that rank is not to blame
// alone. It costs time only after a link was lost for as long as an outage may last.
func (c *Comm) between(f *Failure) *Failure {
	r, ok := f.Err.(*reported)
	if !ok || !f.parted || len(f.Culprits) != 1 || f.Culprits[0] == r.by || !c.answers(f.Culprits[0]) {
		return f
	}
	lost, own := f.Culprits[0], *f
	own.Culprits, own.parted = blame.Sorted(r.by, lost), false
	own.Err = &reported{r.by, fmt.Sprintf("rank %d lives, and the fault is between ranks %d and %d: %s", lost, r.by, lost, r.text)}
	return &own
}

// failureOf is an error as a failure.
func (c *Comm) failureOf(err error) *Failure {
	var f *Failure
	if errors.As(err, &f) {
		return f
	}
	var differs *shared.Mismatch
	if errors.As(err, &differs) {
		err = c.mismatch(differs.Rank)
	}
	var late *group.GivenUp
	if errors.As(err, &late) {
		return c.wasGivenUp(late)
	}
	f = &Failure{Kind: Broken, Err: err}
	var m *transport.Mismatch
	var g *transport.Gone
	switch {
	case errors.As(err, &m):
		f.Kind, f.Culprits = Mismatch, blame.Sorted(m.Rank, m.Peer)
	case errors.As(err, &g):
		// A rank that said why it gives up may be gone when others come.
		if told := c.heard(); told != nil {
			f = told
		} else if told := c.refusedBy(); told != nil {
			f = told
		} else if i := slices.Index(c.group.Members, g.Rank); i >= 0 {
			f = c.gone(i, err)
		}
	}
	return f
}

// wasGivenUp is the failure of an operation that another rank gave up while this one was in it. What this rank read since may be
// something else, so it has no result.
func (c *Comm) wasGivenUp(e *group.GivenUp) *Failure {
	why := "it left no reason"
	f := &Failure{Kind: Timeout, Culprits: []int{c.Rank()}}
	if told := c.heard(); told != nil {
		f.Kind, f.Culprits, why = told.Kind, told.Culprits, told.Err.Error()
	}
	f.Err = fmt.Errorf("%w in epoch %d before this rank was done with it (was it stopped for longer than the time limit?); the result is not to be used: Shrink, or Join again if the others went on: %s",
		e, c.epoch, why)
	return f
}

// ended is the failure of a call whose context ended before anything was done for it. The others are told as if it had been
// under way: they wait for this rank in it.
func (c *Comm) ended(what string, err error) *Failure {
	f := &Failure{Kind: Aborted, Rank: c.Rank(), Culprits: []int{c.Rank()}, Err: fmt.Errorf("%s: %w", what, err), alias: c.aliases(nil)}
	if errors.Is(err, context.DeadlineExceeded) {
		f.Kind = Timeout
	}
	return f
}

// Abort ends what the group is doing, on every rank, from any goroutine, and what
// the communicators that were split from it are doing. They are of no use
// afterwards.
func (c *Comm) Abort(why error) {
	if why == nil {
		why = errors.New("no reason was given")
	}
	f := &Failure{Kind: Aborted, Rank: c.Rank(), Culprits: []int{c.Rank()}, Err: fmt.Errorf("aborted: %w", why), alias: c.aliases(nil)}
	if c.failAs(f) {
		c.dump(f)
	}
	c.world.mu.Lock()
	kids := slices.Clone(c.kids)
	c.world.mu.Unlock()
	for _, k := range kids {
		k.Abort(why)
	}
}

// failWith marks a communicator as failed because the one it was split from has, and tells its members.
func (c *Comm) failWith(p *Comm) {
	if f := p.failed.Load(); f != nil && c.Size() > 1 {
		c.failAs(c.inherited(f, p))
	}
}

// inherited is a failure of the communicator that this one was split from, in the ranks of this one. A rank at fault that is not
// in it is named in the text alone.
func (c *Comm) inherited(f *Failure, p *Comm) *Failure {
	own := &Failure{Kind: f.Kind, Rank: c.Rank(),
		Err: fmt.Errorf("in the communicator that this one was split from: %w%s", f.Err, f.alias.others), alias: c.aliases(nil)}
	for _, r := range f.Culprits {
		for i := range c.group.Members {
			if c.inAll(i) == p.inAll(r) {
				own.Culprits = append(own.Culprits, i)
			}
		}
	}
	return own
}

// abortedAbove is word that a communicator was aborted which this one was split from, or nil.
func (c *Comm) abortedAbove() *Failure {
	c.world.mu.Lock()
	defer c.world.mu.Unlock()
	for p := c.parent; p != nil; p = p.parent {
		f := p.failed.Load()
		if f == nil {
			f = p.heard()
		}
		if f != nil && f.Kind == Aborted {
			return c.inherited(f, p)
		}
	}
	return nil
}

// hasFailed reports whether the communicator can no longer be used, as far as this rank has heard.
func (c *Comm) hasFailed() bool { return c.failed.Load() != nil || c.heard() != nil }

// Err is nil, or why the communicator can no longer be used.
func (c *Comm) Err() error {
	if f := c.failed.Load(); f != nil {
		return f
	}
	return nil
}

// Ended is nil, or the failure of a rank that is known to have died or left. Unlike Err it looks now, and needs no call that found out.
func (c *Comm) Ended() error {
	for i := range c.group.Members {
		if i == c.Rank() {
			continue
		}
		if err := c.group.Alive(i); err != nil {
			var g *transport.Gone
			kind, how := Dead, fmt.Sprintf("rank %d died: %v", i, err)
			if errors.As(err, &g) && g.Left {
				kind, how = Left, fmt.Sprintf("rank %d left", i)
			}
			return &Failure{Kind: kind, Rank: c.Rank(), Culprits: []int{i}, Err: &because{how, err}, alias: c.aliases([]int{i})}
		}
	}
	return nil
}

// heard is a failure that another rank left a notice of, or nil.
func (c *Comm) heard() *Failure {
	mine := c.group.Mine()
	if mine == nil {
		return nil
	}
	n, ok := mine.Notice(c.Size())
	if !ok {
		return nil
	}
	f := &Failure{Kind: Kind(n.Kind), Rank: c.Rank(), Seq: n.Seq, Culprits: n.Culprits, Err: &reported{n.From, n.Text}, parted: n.Parted,
		alias: c.aliases(n.Culprits)}
	if f.Kind < Dead || f.Kind > NoQuorum {
		f.Kind = Aborted
	}
	return f
}

// dump writes the flight recorder to the configured directory at the first failure of any communicator of the process.
func (c *Comm) dump(why error) {
	w := c.world
	if w.cfg.FlightDir == "" || !w.dumped.CompareAndSwap(false, true) {
		return
	}
	if err := c.flight.Dump(w.cfg.FlightDir, fmt.Sprintf("rank-%d", w.ep.Rank()), why); err != nil && w.cfg.Log != nil {
		w.cfg.Log.Warn("the flight recorder could not be written", "directory", w.cfg.FlightDir, "error", err)
	}
}
