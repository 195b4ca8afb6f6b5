package comm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weft-fabric/weft/comm/calls"
	"github.com/weft-fabric/weft/transport"
	"github.com/weft-fabric/weft/transport/wait"
)

// What went wrong, for errors.Is. Every error of a call that other ranks take part
// in is a *Failure that matches one of these; errors.As gives the ranks at fault.
// Errors of a call that is wrong in itself, such as a buffer that is too short, match
// none of them, and nothing was sent.
var (
	ErrDead     = errors.New("a rank died") // its process ended or cannot be reached
	ErrLeft     = errors.New("a rank left") // it closed the communicator
	ErrMismatch = errors.New("ranks call different things")
	ErrTimeout  = errors.New("time limit passed")   // matched by context.DeadlineExceeded, too
	ErrAborted  = errors.New("aborted")             // a rank called Abort, or its context was cancelled
	ErrClosed   = errors.New("communicator closed") // here
	ErrBroken   = errors.New("transport failed")    // otherwise
)

// Kind is why an operation failed, as a number: what Failure.Is compares.
type Kind uint8

// The kindTable of failure; each matches the error of its name.
const (
	Dead Kind = iota + 1
	Mismatch
	Timeout
	Aborted
	Closed
	Broken
	Left
)

var kindTable = [...]struct {
	name string
	err  error
}{
	Dead: {"dead rank", ErrDead}, Mismatch: {"mismatched calls", ErrMismatch}, Timeout: {"time limit", ErrTimeout}, Aborted: {"aborted", ErrAborted},
	Closed: {"closed", ErrClosed}, Broken: {"broken transport", ErrBroken}, Left: {"rank left", ErrLeft},
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
	Report   []string // which rank waits for which, since when: a line for each rank; printed by %+v
}

func (f *Failure) Error() string {
	s := fmt.Sprintf("rank %d: ", f.Rank)
	switch {
	case f.Seq != 0 && f.Call != "":
		s += fmt.Sprintf("operation %d (%s): ", f.Seq, f.Call)
	case f.Seq != 0:
		s += fmt.Sprintf("operation %d: ", f.Seq)
	}
	return s + f.Err.Error()
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

// phase is where an operation is, for those who ask why it takes long.
type phase uint8

const (
	entering  phase = iota // waits for the others to come
	summing                // waits for the sums of the others
	leaving                // waits for the others to be done with its memory
	moving                 // carries out actions of a script
	trading                // waits for pieces of the other's input and sums
	following              // waits for pieces of another's input
)

var phases = [...]string{"entry", "sums", "exit", "messages", "pieces", "input"}

// errInherit ends a wait for a rank that died between entry and exit: what it
// left undone is to be done for it.
var errInherit = errors.New("a rank died in the operation")

// stop is asked by waits of the operation under way. It is only called by its
// goroutine and by those that the operation started.
func (c *Comm) stop() error {
	if f := c.failed.Load(); f != nil {
		return f
	}
	o := &c.cur
	if f := c.heard(); f != nil && !(c.phase == leaving && f.Seq > o.call.Seq && c.used(o.call.Seq)) {
		return f // a failure after this operation does not concern it once those that it waits for entered it
	}
	if err := o.ctx.Err(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return &Failure{Kind: Aborted, Culprits: []int{c.rank}, Err: err}
	}
	if err := c.behind(); errors.Is(err, context.DeadlineExceeded) {
		return c.late()
	} else if err != nil {
		return c.ended("a call that waits for this one", err)
	}
	now := clock()
	for i, m := range c.members {
		if i == c.rank {
			continue
		}
		err := c.world.ep.Alive(m)
		closed := err == nil && c.hasClosed(i)
		if closed { // which it did after all that it had to do was done
			err = &transport.Gone{Rank: m, Left: true}
		}
		if err == nil {
			continue
		}
		if c.boards[i] != nil {
			b := c.boards[i]
			switch {
			case c.phase == entering && b.entry(o.call.Seq).flag().Load() >= o.call.Seq,
				c.phase == summing && wait.At(b.mid()).Load() >= o.call.Seq,
				c.phase == trading && b.steps().Load() >= o.trade.awaits,
				(c.phase == leaving || c.phase == moving) && b.leave().Load() >= o.call.Seq,
				c.phase == following && (i != c.followed || b.staged().Load() >= c.wanted):
				continue // it did what this phase needs of it
			case c.phase == leaving && closed && slices.Contains(c.readers, int32(i)):
			case c.phase == leaving && !closed && (!c.heirs || c.heir()):
				return errInherit
			case c.phase == leaving:
				continue // its heir will do the rest, or nobody waits for it
			}
		}
		if c.phase == moving && c.mayDo(i, err, closed, now) {
			continue
		}
		return c.gone(i, err)
	}
	if limit := o.limit.Load(); limit == 0 {
		o.limit.Store(c.until(o.ctx, now)) // the first look comes some 50 us after the call
	} else if now > limit {
		return c.late()
	}
	return nil
}

// hasClosed reports whether a rank closed the communicator, which it may long before
// its process ends.
func (c *Comm) hasClosed(rank int) bool {
	b := c.boards
	return b != nil && b[c.rank].isLetGo(rank)
}

// mayDo reports whether messages of a rank that is no longer there may suffice: it
// may have sent them all. One that left is asked about no more, as who waits for its
// messages is told so by the port; not so if it only closed this communicator. One
// that ended without leaving may have done so after the operation that was its
// last: who waits for it is told by the port and tells the others, so it is one that
// all wait for only if some rank has not come yet, and then it has died.
func (c *Comm) mayDo(i int, err error, closed bool, now int64) bool {
	var g *transport.Gone
	if !errors.As(err, &g) {
		return false
	}
	if g.Left && !closed {
		return true
	}
	if c.world.mem != nil {
		return false // its board would say so
	}
	c.cur.missed.CompareAndSwap(0, now)
	missing := now - c.cur.missed.Load()
	if closed {
		waits, _, _ := c.boards[c.rank].waiting()
		return waits != i || missing < int64(closing)
	}
	return missing < int64(ending)
}

const (
	ending  = 15 * time.Millisecond // how long messages of a rank that died suffice at most: it is to be noticed within 50 ms
	closing = time.Second           // how long those of one that closed the communicator are on their way at most
)

// behind is why the context of a call ended that waits for the one under way.
func (c *Comm) behind() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range c.queue {
		if err := o.ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// ended is the failure of a call whose context ended before anything was done for it.
// The others are told as if it had been under way: they wait for this rank in it.
func (c *Comm) ended(what string, err error) *Failure {
	f := &Failure{Kind: Aborted, Rank: c.rank, Culprits: []int{c.rank}, Err: fmt.Errorf("%s: %w", what, err)}
	if errors.Is(err, context.DeadlineExceeded) {
		f.Kind = Timeout
	}
	return f
}

// used reports whether everybody who is waited for at the end of an operation
// entered it, and so may be reading this rank's memory.
func (c *Comm) used(seq uint64) bool {
	for _, i := range c.readers {
		if c.boards[i].entry(seq).flag().Load() < seq {
			return false
		}
	}
	return true
}

// gone is the failure of an operation in which a rank died.
func (c *Comm) gone(i int, err error) *Failure {
	last := "it took part in no operation"
	if c.boards[i] == nil {
		last = "no operation of it was seen"
	}
	if call, began, ok := c.lastOf(i); ok {
		last = fmt.Sprintf("it last entered operation %d (%s)%s", call.Seq, &call, c.ago(i, began))
		if c.boards[i] == nil { // it may have gone on to others
			last = fmt.Sprintf("its last message here was of operation %d (%s)", call.Seq, &call)
		}
	}
	kind, end := Dead, fmt.Sprintf("died (%s)", err)
	var g *transport.Gone
	switch {
	case errors.As(err, &g) && g.Left:
		kind, end = Left, "closed the communicator"
	case g != nil:
		end = fmt.Sprintf("died (%s)", g.Why)
	}
	return &Failure{Kind: kind, Culprits: []int{i}, Err: &died{fmt.Sprintf("rank %d %s; %s", i, end, last), err}}
}

// died is a rank's end in words.
type died struct {
	text string
	err  error
}

func (d *died) Error() string { return d.text }
func (d *died) Unwrap() error { return d.err }

// lastOf is what a rank was last seen doing.
func (c *Comm) lastOf(i int) (calls.Call, int64, bool) {
	if b := c.boards[i]; b != nil {
		return b.called()
	}
	if c.port != nil {
		call, ok := c.port.Last(i)
		return calls.Of(call), 0, ok
	}
	return calls.Call{}, 0, false
}

func since(began int64) string {
	return time.Duration(clock() - toClock(began)).Round(100 * time.Microsecond).String()
}

// fail marks the communicator as failed, tells the others, and gives the error
// of the operation under way.
func (c *Comm) fail(err error) error { return c.failIn(err, c.cur.call) }

// failIn is fail in a given call.
func (c *Comm) failIn(err error, call calls.Call) error {
	var f *Failure
	if !errors.As(err, &f) {
		f = &Failure{Kind: Broken, Err: err}
		var m *transport.Mismatch
		var g *transport.Gone
		switch {
		case errors.As(err, &m):
			f.Kind, f.Culprits = Mismatch, sorted(m.Rank, m.Peer)
		case errors.As(err, &g):
			// A rank that said why it gives up may be gone when others come.
			if told := c.heard(); told != nil {
				f = told
			} else if i := slices.Index(c.members, g.Rank); i >= 0 {
				f = c.gone(i, err)
			}
		}
	}
	was := f
	if f.Seq == 0 { // a copy, as others may be looking at what ended this call
		own := *f
		own.Rank, own.Seq = c.rank, call.Seq
		if call.Op != 0 {
			own.Call = call.String()
		}
		f = &own
	}
	if !c.failed.CompareAndSwap(nil, f) {
		if first := c.failed.Load(); first != was {
			return first
		}
		return f
	}
	c.tell(f)
	return f
}

func sorted(list ...int) []int {
	slices.Sort(list)
	return slices.Compact(list)
}

// Abort ends what the group is doing, on every rank, from any goroutine, and what
// the communicators that were split from it are doing. They are of no use
// afterwards.
func (c *Comm) Abort(why error) {
	if why == nil {
		why = errors.New("no reason was given")
	}
	f := &Failure{Kind: Aborted, Rank: c.rank, Culprits: []int{c.rank}, Err: fmt.Errorf("aborted: %w", why)}
	if c.failed.CompareAndSwap(nil, f) {
		c.tell(f)
		c.dump(f)
	}
	c.world.mu.Lock()
	kids := slices.Clone(c.kids)
	c.world.mu.Unlock()
	for _, k := range kids {
		k.Abort(why)
	}
}

// Err is nil, or why the communicator can no longer be used.
func (c *Comm) Err() error {
	if f := c.failed.Load(); f != nil {
		return f
	}
	return nil
}

// A word from another rank about a failure, in the reader's own board: who
// wrote it plus one, kind, operation, the first culprits plus one, and some text.
const (
	wordLen      = 256
	wordSeq      = 16
	wordCulprits = 24
	maxCulprits  = 8
	wordText     = wordCulprits + 4*maxCulprits
)

// tell leaves word of a failure with every other member.
func (c *Comm) tell(f *Failure) {
	word := make([]byte, wordLen)
	le := binary.LittleEndian
	le.PutUint64(word[8:], uint64(f.Kind))
	le.PutUint64(word[wordSeq:], f.Seq)
	for i, r := range f.Culprits[:min(len(f.Culprits), maxCulprits)] {
		le.PutUint32(word[wordCulprits+4*i:], uint32(r+1))
	}
	text := f.Err.Error()
	n := copy(word[wordText+2:], text)
	le.PutUint16(word[wordText:], uint16(n))
	if c.world.mem != nil {
		for i, b := range c.boards {
			if i == c.rank || b == nil || c.world.ep.Alive(c.members[i]) != nil {
				continue
			}
			if from := atomicAt(b, atWord); from.CompareAndSwap(0, busyWord) {
				copy(b[atWord+8:], word[8:])
				from.Store(uint64(c.rank + 1))
			}
		}
		return
	}
	c.tellFar(word)
}

// busyWord stands where a word is being written.
const busyWord = 1 << 32

// tellFar is tell where boards are not seen. Who is the first to take a rank's
// word writes it; ranks that do not answer in a moment will find out themselves.
func (c *Comm) tellFar(word []byte) {
	v := &c.world.verbs
	type ask struct {
		rank int
		t    transport.Ticket
		was  *uint64
	}
	var asks []ask
	for i, m := range c.members {
		if i == c.rank || c.world.ep.Alive(m) != nil || len(c.stopped([]int{i})) > 0 {
			continue
		}
		was := new(uint64)
		if t, err := v.raw.CompareSwap(m, c.keys[i]+atWord, 0, busyWord, was); err == nil {
			asks = append(asks, ask{i, t, was})
		}
	}
	end := time.Now().Add(moment)
	var last []transport.Ticket
	for _, a := range asks {
		if v.wait(a.t, time.Until(end)) != nil || *a.was != 0 {
			continue
		}
		to, at := c.members[a.rank], c.keys[a.rank]+atWord
		v.write(to, at+8, word[8:])
		if t, err := v.raw.CompareSwap(to, at, busyWord, uint64(c.rank+1), new(uint64)); err == nil {
			last = append(last, t)
		}
	}
	for _, t := range last { // this rank may be about to end
		_ = v.wait(t, time.Until(end))
	}
}

// moment is how long a rank that failed waits for the others to take its word.
const moment = 100 * time.Millisecond

// heard is a failure that another rank left word of.
func (c *Comm) heard() *Failure {
	mine := c.boards[c.rank]
	if mine == nil {
		return nil
	}
	line := mine[atWord:][:wordLen]
	from := atomicAt(line, 0).Load()
	if from == 0 || from > uint64(len(c.members)) {
		return nil
	}
	le := binary.LittleEndian
	f := &Failure{Kind: Kind(le.Uint64(line[8:])), Rank: c.rank, Seq: le.Uint64(line[wordSeq:])}
	for i := range maxCulprits {
		if who := int(le.Uint32(line[wordCulprits+4*i:])); who > 0 && who <= len(c.members) {
			f.Culprits = append(f.Culprits, who-1)
		}
	}
	if f.Kind < Dead || f.Kind > Left {
		f.Kind = Aborted
	}
	n := min(int(le.Uint16(line[wordText:])), wordLen-wordText-2)
	f.Err = fmt.Errorf("rank %d reports: %s", from-1, string(line[wordText+2:][:n]))
	return f
}
