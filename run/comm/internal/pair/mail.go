package pair

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/weft-fabric/weft/run/comm/internal/blame"
	"github.com/weft-fabric/weft/run/comm/internal/calls"
	"github.com/weft-fabric/weft/run/comm/internal/clock"
	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/wait"
)

// Any stands for any rank, and for any tag.
const Any = -1

// Envelope is what is known of a message before it is received.
type Envelope struct {
	From, Tag int
	Type      reduce.Type
	Bytes     int
}

// Mail is messages with tags. A message goes as an envelope and its bytes, in the order in which they were sent to a
// rank; a goroutine for each rank takes them out of a port of their own and leaves them where receives find them: the oldest
// that fits, whichever rank it is from. What is received already when it comes goes straight to its place.
type Mail struct {
	port       transport.Port
	world      MailWorld
	rank, size int

	mu     sync.Mutex
	out    []outbox    // by rank
	going  []*outgoing // whose turn it is
	came   []*letter   // that nobody wanted yet, oldest first
	wants  []*want     // receives that wait, oldest first
	looks  []chan struct{}
	held   []int // bytes of a rank's that nobody wanted yet
	room   sync.Cond
	gone   []error // why nothing more comes from a rank
	closed bool
	wg     sync.WaitGroup
}

// MailWorld is what mail asks of its communicator.
type MailWorld interface {
	World
	// Gone is the failure of a receive from a rank that is gone.
	Gone(rank int, why error) error
	// Nobody is the failure of a receive from any rank whose time limit passed.
	Nobody(what string) error
}

// heldMost is how many bytes of a rank's messages are kept that nobody wants yet; then its sends wait.
const heldMost = 16 << 20

const envelopeSize = 24

// letter is a message that came, or is coming.
type letter struct {
	Envelope
	body []byte
	done chan struct{} // closed when it is all there
	err  error
}

// want is a receive that waits.
type want struct {
	from, tag int
	t         reduce.Type
	b         []byte
	got       Envelope
	done      chan struct{}
	err       error
}

func fits(from, tag int, e *Envelope) bool {
	return (from == Any || from == e.From) && (tag == Any || tag == e.Tag)
}

// NewMail makes the mail of a rank over a port of its own.
func NewMail(w MailWorld, port transport.Port, call transport.Call, rank, size int) *Mail {
	m := &Mail{port: port, world: w, rank: rank, size: size, out: make([]outbox, size), held: make([]int, size), gone: make([]error, size)}
	m.room.L = &m.mu
	port.Begin(call, m.stop)
	for from := range size {
		if from != rank {
			m.wg.Go(func() { m.take(from) })
		}
	}
	return m
}

// Close ends all receives.
func (m *Mail) Close() error {
	m.mu.Lock()
	m.closed = true
	m.room.Broadcast()
	m.mu.Unlock()
	err := m.port.Close()
	m.wg.Wait()
	return err
}

// take takes what a rank sends.
func (m *Mail) take(from int) {
	ch := channel(from, m.rank, m.size)
	for {
		err := m.one(from, ch)
		if err == nil {
			continue
		}
		m.mu.Lock()
		m.gone[from] = err
		m.tell()
		m.mu.Unlock()
		return
	}
}

// one takes one message.
func (m *Mail) one(from, ch int) error {
	var h [envelopeSize]byte
	if err := m.port.Recv(from, calls.Typed(ch, reduce.Uint8), h[:]); err != nil {
		return err
	}
	le := binary.LittleEndian
	e := Envelope{From: from, Tag: int(int64(le.Uint64(h[:]))), Type: reduce.Type(le.Uint32(h[8:])), Bytes: int(le.Uint64(h[16:]))}
	m.mu.Lock()
	i := slices.IndexFunc(m.wants, func(w *want) bool { return fits(w.from, w.tag, &e) })
	if i >= 0 {
		w := m.wants[i]
		m.wants = slices.Delete(m.wants, i, i+1)
		m.mu.Unlock()
		defer close(w.done)
		w.got = e
		b := w.b
		if w.err = m.unlike(w.t, len(w.b), &e); w.err != nil {
			b = make([]byte, e.Bytes)
		}
		if err := m.body(from, ch, b); err != nil {
			w.err = err
			return err
		}
		return nil
	}
	for m.held[from] >= heldMost && !m.closed {
		m.room.Wait()
	}
	if m.closed {
		m.mu.Unlock()
		return transport.ErrClosed
	}
	l := &letter{Envelope: e, done: make(chan struct{})}
	m.came = append(m.came, l)
	m.held[from] += e.Bytes
	m.tell()
	m.mu.Unlock()
	l.body = make([]byte, e.Bytes)
	l.err = m.body(from, ch, l.body)
	close(l.done)
	return l.err
}

func (m *Mail) body(from, ch int, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	return m.port.Recv(from, calls.Typed(ch, reduce.Uint8), b)
}

// unlike says how a message differs from what is received.
func (m *Mail) unlike(t reduce.Type, bytes int, e *Envelope) error {
	if t == e.Type && bytes == e.Bytes {
		return nil
	}
	return fmt.Errorf("rank %d receives from rank %d with tag %d: %d %s were sent, %d %s are received",
		m.rank, e.From, e.Tag, e.Bytes/e.Type.Size(), e.Type, bytes/t.Size(), t)
}

// tell lets those look again that wait; the caller holds mu.
func (m *Mail) tell() {
	for _, c := range m.looks {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// outbox is what is to be sent to a rank, in order.
type outbox struct {
	busy  bool
	queue []*outgoing
}

// outgoing is a message that goes, or waits for those before it.
type outgoing struct {
	ctx   context.Context
	limit int64 // of the clock; 0 until somebody asks
	to    int
	e     Envelope
	b     []byte
	end   func(error)
}

// Send sends a message after those that are to be sent to the rank already. Without end it returns once b may be changed; with it,
// it returns at once and tells end.
func (m *Mail) Send(ctx context.Context, to, tag int, t reduce.Type, b []byte, end func(error)) error {
	o := &outgoing{ctx: ctx, to: to, e: Envelope{From: m.rank, Tag: tag, Type: t, Bytes: len(b)}, b: b, end: end}
	if to == m.rank {
		m.deliver(&letter{Envelope: o.e, body: slices.Clone(b), done: make(chan struct{})})
		if end != nil {
			end(nil)
		}
		return nil
	}
	box := &m.out[to]
	m.mu.Lock()
	if !box.busy {
		box.busy = true
		m.mu.Unlock()
		if end != nil {
			go m.drain(box, o)
			return nil
		}
		err := m.send(o)
		m.next(box)
		return err
	}
	var over chan error
	if end == nil {
		over = make(chan error, 1)
		o.end = func(err error) { over <- err }
	}
	box.queue = append(box.queue, o)
	m.mu.Unlock()
	if end != nil {
		return nil
	}
	tick := time.NewTicker(wait.Slice)
	defer tick.Stop()
	for {
		select {
		case err := <-over:
			return err
		case <-tick.C:
			_ = ctx.Err() // whoever sends asks it, too
		}
	}
}

// next lets what waits behind a message go.
func (m *Mail) next(box *outbox) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(box.queue) == 0 {
		box.busy = false
		return
	}
	o := box.queue[0]
	box.queue = box.queue[1:]
	go m.drain(box, o)
}

// drain sends a message and what waits behind it.
func (m *Mail) drain(box *outbox, o *outgoing) {
	for {
		o.end(m.send(o))
		m.mu.Lock()
		if len(box.queue) == 0 {
			box.busy = false
			m.mu.Unlock()
			return
		}
		o = box.queue[0]
		box.queue = box.queue[1:]
		m.mu.Unlock()
	}
}

// send sends a message whose turn it is.
func (m *Mail) send(o *outgoing) error {
	var h [envelopeSize]byte
	le := binary.LittleEndian
	le.PutUint64(h[:], uint64(int64(o.e.Tag)))
	le.PutUint32(h[8:], uint32(o.e.Type))
	le.PutUint64(h[16:], uint64(len(o.b)))
	m.mu.Lock()
	m.going = append(m.going, o)
	m.mu.Unlock()
	ch := calls.Typed(channel(m.rank, o.to, m.size), reduce.Uint8)
	err := m.port.Send(o.to, ch, h[:])
	if err == nil && len(o.b) > 0 {
		err = m.port.Send(o.to, ch, o.b)
	}
	m.mu.Lock()
	m.going = slices.DeleteFunc(m.going, func(x *outgoing) bool { return x == o })
	m.mu.Unlock()
	if err != nil {
		return m.world.Fail(m.cause(o.to, err))
	}
	return nil
}

// stop ends the waits of the port: when the communicator failed, or when the time of a message that goes is over, which is a
// failure, too.
func (m *Mail) stop() error {
	if err := m.world.Failed(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := clock.Now()
	for _, o := range m.going {
		if err := m.overdue(o, now); err != nil {
			return err
		}
		for _, w := range m.out[o.to].queue {
			if err := m.overdue(w, now); err != nil {
				return err
			}
		}
	}
	return nil
}

// overdue is the failure of a message whose context has ended or whose time limit has passed, or nil.
func (m *Mail) overdue(o *outgoing, now int64) error {
	if err := o.ctx.Err(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return m.world.Ended(fmt.Sprintf("%s rank %d, tag %d", Sending, o.to, o.e.Tag), err)
	}
	if o.limit == 0 {
		o.limit = m.world.Until(o.ctx, now)
	}
	if now > o.limit {
		return m.world.Late(Sending, o.to)
	}
	return nil
}

// cause puts the end of a rank into words.
func (m *Mail) cause(rank int, err error) error {
	if g := (*transport.Gone)(nil); errors.As(err, &g) {
		return m.world.Gone(rank, err)
	}
	return err
}

// deliver takes a message of a rank to itself.
func (m *Mail) deliver(l *letter) {
	close(l.done)
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.wants, func(w *want) bool { return fits(w.from, w.tag, &l.Envelope) })
	if i < 0 {
		m.came = append(m.came, l)
		m.held[l.From] += l.Bytes
		m.tell()
		return
	}
	w := m.wants[i]
	m.wants = slices.Delete(m.wants, i, i+1)
	w.got = l.Envelope
	if w.err = m.unlike(w.t, len(w.b), &l.Envelope); w.err == nil {
		copy(w.b, l.body)
	}
	close(w.done)
}

// Post posts a receive of the oldest message that fits. What it returns waits for the message.
func (m *Mail) Post(from, tag int, t reduce.Type, b []byte) func(ctx context.Context) (Envelope, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := m.find(from, tag); i >= 0 {
		l := m.came[i]
		m.came = slices.Delete(m.came, i, i+1)
		m.held[l.From] -= l.Bytes
		m.room.Broadcast()
		return func(context.Context) (Envelope, error) { return m.fetch(l, t, b) }
	}
	w := &want{from: from, tag: tag, t: t, b: b, done: make(chan struct{})}
	m.wants = append(m.wants, w)
	return func(ctx context.Context) (Envelope, error) { return m.receive(ctx, w) }
}

// fetch gives a receive a message that came before it.
func (m *Mail) fetch(l *letter, t reduce.Type, b []byte) (Envelope, error) {
	<-l.done // its sender is at it, or gone
	if l.err != nil {
		return l.Envelope, m.world.Fail(m.cause(l.From, l.err))
	}
	if err := m.unlike(t, len(b), &l.Envelope); err != nil {
		return l.Envelope, err
	}
	copy(b, l.body)
	return l.Envelope, nil
}

// receive waits for a message that fits a receive.
func (m *Mail) receive(ctx context.Context, w *want) (Envelope, error) {
	err := m.await(ctx, w.from, w.tag, func(look <-chan struct{}, tick <-chan time.Time) bool {
		select {
		case <-w.done:
			return true
		case <-look:
		case <-tick:
		}
		return false
	})
	if err != nil {
		m.mu.Lock()
		i := slices.Index(m.wants, w)
		if i >= 0 {
			m.wants = slices.Delete(m.wants, i, i+1)
		}
		m.mu.Unlock()
		err = m.world.Fail(err)
		if i < 0 {
			<-w.done // the message is coming: it ends as the communicator has failed
		}
		return w.got, err
	}
	if g := (*transport.Gone)(nil); errors.As(w.err, &g) {
		return w.got, m.world.Fail(m.cause(w.got.From, w.err))
	}
	return w.got, w.err
}

// Probe waits for a message that fits and leaves it where it is. Without wait it returns at once.
func (m *Mail) Probe(ctx context.Context, from, tag int, wait bool) (e Envelope, found bool, err error) {
	look := func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		i := m.find(from, tag)
		if i >= 0 {
			e, found = m.came[i].Envelope, true
		}
		return i >= 0
	}
	if look() || !wait {
		return e, found, nil
	}
	err = m.await(ctx, from, tag, func(again <-chan struct{}, tick <-chan time.Time) bool {
		if look() {
			return true
		}
		select {
		case <-again:
		case <-tick:
		}
		return look()
	})
	if err != nil {
		err = m.world.Fail(err)
	}
	return e, found, err
}

// find is the oldest message that fits; the caller holds mu.
func (m *Mail) find(from, tag int) int {
	return slices.IndexFunc(m.came, func(l *letter) bool { return fits(from, tag, &l.Envelope) })
}

// await calls ready until it is true, or until it cannot be any more.
func (m *Mail) await(ctx context.Context, from, tag int, ready func(look <-chan struct{}, tick <-chan time.Time) bool) error {
	look := make(chan struct{}, 1)
	m.mu.Lock()
	m.looks = append(m.looks, look)
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		m.looks = slices.DeleteFunc(m.looks, func(c chan struct{}) bool { return c == look })
		m.mu.Unlock()
	}()
	ticker := time.NewTicker(wait.Slice)
	defer ticker.Stop()
	limit := m.world.Until(ctx, clock.Now())
	what := "receive from any rank"
	if from != Any {
		what = Receiving
	}
	for !ready(look, ticker.C) {
		if err := m.world.Failed(); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return m.world.Ended(what, err)
		}
		if rank, err := m.missing(from); err != nil {
			return m.cause(rank, err)
		}
		now, closed := clock.Now(), m.closers(from)
		if closed >= 0 { // what it sent before may still be coming
			limit = min(limit, now+int64(blame.ClosedFor))
		}
		switch {
		case now <= limit:
		case closed >= 0:
			return m.world.Late(Receiving, closed)
		case from == Any:
			return m.world.Nobody(fmt.Sprintf("%s, tag %d", what, tag))
		default:
			return m.world.Late(what, from)
		}
	}
	return nil
}

// closers is the rank that is waited for if it closed the communicator, and of any rank the last one if all others did; -1 if not.
func (m *Mail) closers(from int) int {
	last := -1
	for r := range m.size {
		if r == m.rank || from != Any && r != from {
			continue
		}
		if !m.world.HasClosed(r) {
			return -1
		}
		last = r
	}
	return last
}

// missing is a rank that is waited for and gone, with everything it sent taken. Of any rank it is one that died, or all.
func (m *Mail) missing(from int) (rank int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if from != Any {
		return from, m.gone[from]
	}
	left := 0
	for r, err := range m.gone {
		if err == nil {
			continue
		}
		if g := (*transport.Gone)(nil); !errors.As(err, &g) || !g.Left {
			return r, err
		}
		if left++; left == m.size-1 {
			return r, err
		}
	}
	return 0, nil
}
