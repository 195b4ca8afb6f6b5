package xfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Transfer is what a request shall do.
type Transfer struct {
	Op          Op
	Local       *List // of own regions
	LocalIndex  []int // which descriptors of it; nil for all
	Remote      *List // of a peer's regions, or of own ones
	RemoteIndex []int
	Notice      []byte        // delivered to the peer once the bytes have landed; nil for none
	Timeout     time.Duration // from Post to the end; 0 for the agent's
	Class       Class
	Path        string // the path to take, or to fail; empty for the agent's choice
	Now         bool   // Post makes the copy itself where that takes no longer than having another thread do it; see isBrief
}

// Request is a transfer under way.
type Request struct {
	agent   *Agent
	peer    *Peer // nil if both sides are own
	num     uint64
	t       Transfer
	pairs   []pair
	total   int64
	route   *Route
	began   time.Time
	limit   time.Duration
	ctx     context.Context // ends with the deadline
	end     context.CancelCauseFunc
	done    chan struct{}
	lease   *hold       // of a read over streams, from its first attempt on
	slot    int         // of a write that its target copies, in the table of leases
	offered uint64      // what is in it; 0 for nothing
	bye     func()      // what the peer is told once the request is over; nil for nothing
	reads   places      // own regions that a write sends
	begun   atomic.Bool // somebody does it
	brief   bool        // it takes so little time that whoever waits for it does it

	mu    sync.Mutex
	state State
	land  *landing // where its bytes land, if that is in this process
	sess  *session // over which it was posted
	err   error
	who   string // set with the cause of end
	sent  int64  // that landed at the peer when it failed
}

// Post starts a transfer. It checks everything that can be checked here and returns at once.
func (a *Agent) Post(t Transfer) (*Request, error) {
	if t.Local == nil || t.Remote == nil || t.Local.agent != a || t.Remote.agent != a || t.Local.peer != nil {
		return nil, fmt.Errorf("post: %w: want a list of own regions and one of a peer's, both of this agent", ErrRegion)
	}
	if t.Op > Write || t.Class >= classes || len(t.Notice) > maxNotice || t.Timeout < 0 {
		return nil, fmt.Errorf("post: operation %d, class %d, notice of %d bytes, time limit %s: %w",
			t.Op, t.Class, len(t.Notice), t.Timeout, ErrLimit)
	}
	if t.Timeout == 0 {
		t.Timeout = a.cfg.Timeout
	}
	if t.Timeout > maxTimeout {
		return nil, fmt.Errorf("post: %w: time limit %s, at most %s", ErrLimit, t.Timeout, maxTimeout)
	}
	r := &Request{agent: a, peer: t.Remote.peer, t: t, began: time.Now(), limit: t.Timeout, done: make(chan struct{}), reads: places{}}
	var err error
	if r.pairs, r.total, err = pairs(t.Op, t.Local, t.LocalIndex, t.Remote, t.RemoteIndex); err != nil {
		return nil, fmt.Errorf("post: %w", err)
	}
	for _, l := range []*List{t.Local, t.Remote} {
		l.mu.Lock()
		gone := l.released
		l.mu.Unlock()
		if gone {
			return nil, fmt.Errorf("post: %w: the list was released", ErrClosed)
		}
	}
	if r.peer != nil {
		if err := r.peer.check(); err != nil {
			return nil, fmt.Errorf("post: %w", err)
		}
	}
	r.ctx, r.end = context.WithCancelCause(a.base)
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return nil, fmt.Errorf("post: agent %s: %w", a.id.Name, ErrClosed)
	}
	r.num = a.calls.Add(1)
	a.active[r.num] = r
	a.wg.Add(1)
	a.mu.Unlock()
	r.brief = r.isBrief()
	if t.Now && r.brief && !a.isCrowded() {
		r.begun.Store(true)
		r.run()
		a.wg.Done()
		if time.Since(r.began) > 10*spin {
			until := time.Now().Add(crowdedTime)
			a.crowded.Store(&until)
		}
		return r, nil
	}
	go func() {
		defer a.wg.Done()
		r.begin()
		<-r.done // whoever waits may do it
	}()
	return r, nil
}

// begin does the request, unless somebody does.
func (r *Request) begin() {
	if r.begun.CompareAndSwap(false, true) {
		r.run()
	}
}

// What is copied by whoever waits for it, in a tenth of a millisecond: memory, and memory from and to a GPU.
const (
	briefCopy   = 1 << 20
	briefGPU    = 4 << 20
	crowdedTime = 100 * time.Millisecond
)

// isBrief reports whether both sides are memory of this process, or mapped here, and few bytes move. Then a copy takes about as long as
// waking two goroutines up: 20 us for 16 MiB inside a GPU. A GPU that makes copies for others is waited for by a goroutine.
func (r *Request) isBrief() bool {
	t, want := r.agent, cmp.Or(r.t.Path, r.agent.cfg.Path, "process")
	if r.peer != nil {
		t = r.peer.inProcess()
	}
	if t == nil || want != "process" {
		return r.isMapped()
	}
	h1, d1, ok1 := r.t.Local.memory(r.agent)
	h2, d2, ok2 := r.t.Remote.memory(t)
	switch {
	case !ok1 || !ok2:
		return false
	case !d1 && !d2:
		return r.total <= briefCopy
	case h1 || h2:
		return r.total <= briefGPU
	}
	return r.total <= burstInside
}

// isMapped reports whether a read takes bytes out of another process's memory of a GPU without a word to that process, who may be
// stopped: there is a session, the list has a lease that need not be renewed, and nobody wants a notice.
func (r *Request) isMapped() bool {
	if r.peer == nil || r.t.Op != Read || r.t.Notice != nil || r.total > burstInside || cmp.Or(r.t.Path, r.agent.cfg.Path, "gpu") != "gpu" {
		return false
	}
	host, device, ok := r.t.Local.memory(r.agent)
	return ok && device && !host && r.t.Remote.stands() && r.peer.meets("unix")
}

// isCrowded reports whether a brief copy took long a moment ago: the GPU has other work, or the processor. Then nobody who
// posts waits for it.
func (a *Agent) isCrowded() bool {
	until := a.crowded.Load()
	return until != nil && time.Now().Before(*until)
}

// Number is the request's with this agent; the peer's notice has it, too.
func (r *Request) Number() uint64 { return r.num }

// Poll says how the request stands.
func (r *Request) Poll() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := Status{State: r.state, Total: r.total, Err: r.err, Landed: r.sent}
	if r.land != nil {
		s.Landed = r.land.moved.Load()
	}
	if r.state >= Landed && r.state <= Done {
		s.Landed = r.total
	}
	if r.route != nil {
		s.Path = r.route.Path
	}
	return s
}

// Wait waits until the request is over and gives its error: a *Failure, or nil.
func (r *Request) Wait(ctx context.Context) error {
	if r.brief && ctx.Err() == nil {
		r.begin()
	}
	select {
	case <-r.done:
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.err
	case <-ctx.Done():
		return fmt.Errorf("wait for %s %d: %w", r.t.Op, r.num, ctx.Err())
	}
}

// Done is closed when the request is over.
func (r *Request) Done() <-chan struct{} { return r.done }

// Cancel ends the request. When it returns without an error no byte lands any more, here or at the peer; the
// request is cancelled, or was done before. It takes a second at most. An error says that the peer did not
// confirm: bytes may land there until the deadline of the request.
func (r *Request) Cancel(ctx context.Context) error {
	r.give(ErrCancelled, r.agent.id.Name)
	select {
	case <-r.done:
	case <-ctx.Done():
		return fmt.Errorf("cancel %s %d: %w", r.t.Op, r.num, ctx.Err())
	}
	r.mu.Lock()
	s, state := r.sess, r.state
	r.mu.Unlock()
	if state == Done || r.t.Op == Read || s == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, cancelTime)
	defer cancel()
	err := r.confirm(ctx, s)
	for err != nil && s.isLost() && ctx.Err() == nil {
		next, e := s.link.get(ctx)
		if err = e; err == nil {
			s = next
			err = r.confirm(ctx, s)
		} else if Code(err) != 0 {
			break
		}
	}
	if errors.Is(err, ErrGone) || errors.Is(err, ErrStale) {
		return nil // its process is no more
	}
	if err != nil {
		return fmt.Errorf("cancel write %d: agent %s did not confirm (%w); bytes may land there until %s",
			r.num, r.peer.id.Name, err, r.began.Add(r.limit).Format(time.RFC3339))
	}
	return nil
}

// confirm has the target say that nothing lands any more.
func (r *Request) confirm(ctx context.Context, s *session) error {
	ch := s.expect(r.num)
	defer s.forget(r.num)
	if err := s.control.sendWhile(ctx, fCancel, r.num, 0, nil); err != nil {
		s.lose(err)
		return s.errLost()
	}
	for {
		select {
		case f := <-ch:
			if f.Kind == fStopped {
				return nil
			}
		case <-s.lost:
			return s.errLost()
		case <-ctx.Done():
			return fmt.Errorf("no answer in %s", cancelTime)
		}
	}
}

// give ends the request from outside.
func (r *Request) give(why error, who string) {
	r.mu.Lock()
	if r.who == "" {
		r.who = who
	}
	land := r.land
	r.mu.Unlock()
	r.end(why)
	if land != nil {
		land.close(why)
	}
}

// enter notes a state, unless the request is over.
func (r *Request) enter(s State) {
	r.mu.Lock()
	if r.state < s && !r.state.Over() {
		r.state = s
	}
	r.mu.Unlock()
}

// blamed is an error and the agent at fault.
type blamed struct {
	error
	who    string
	landed int64
}

func (b *blamed) Unwrap() error { return b.error }

// run does all of the request.
func (r *Request) run() {
	a := r.agent
	timer := time.AfterFunc(r.limit, func() {
		r.give(fmt.Errorf("%w of %s", ErrDeadline, r.limit), r.peerName())
	})
	a.gate.join(r.t.Class)
	err := r.move()
	a.gate.leave(r.t.Class)
	r.takeBack()
	r.reads.close()
	timer.Stop()
	r.mu.Lock()
	land := r.land
	r.mu.Unlock()
	if err != nil {
		// What ended it from outside is the reason, whatever it led to.
		who, sent := a.id.Name, int64(0)
		if cause := context.Cause(r.ctx); cause != nil {
			err = cause
			r.mu.Lock()
			who = r.who
			r.mu.Unlock()
		} else if b := (*blamed)(nil); errors.As(err, &b) {
			who, err, sent = b.who, b.error, b.landed
		}
		if land != nil {
			land.close(err)
		}
		f := &Failure{Request: r.num, Op: r.t.Op, From: a.id, To: r.to(), Who: who, Total: r.total, Landed: sent, Why: err}
		if land != nil {
			f.Landed = land.moved.Load()
		}
		r.mu.Lock()
		s := r.sess
		r.err, r.state, r.sent = f, Failed, sent
		if errors.Is(err, ErrCancelled) && who == a.id.Name {
			r.state = Cancelled
		}
		r.mu.Unlock()
		// The other end hears of it, if it ever heard of the request. Nobody here waits until it has.
		if s != nil {
			r.bye = func() {
				ctx, cancel := context.WithTimeout(context.Background(), cancelTime)
				defer cancel()
				if e := s.control.sendWhile(ctx, fFail, r.num, 0, failPayload(err, who)); e != nil {
					s.lose(e) // half a frame is on it
				}
			}
		}
	} else {
		r.enter(Done)
	}
	a.mu.Lock()
	delete(a.active, r.num)
	a.mu.Unlock()
	r.end(nil)
	close(r.done)
	if r.bye != nil {
		r.bye() // nobody waits for it
	}
}

func (r *Request) to() ID {
	if r.peer == nil {
		return r.agent.id
	}
	return r.peer.id
}

func (r *Request) peerName() string { return r.to().Name }

// blame says that an error is the peer's fault, unless it says whose it is.
func (r *Request) blame(err error) error {
	if b := (*blamed)(nil); err == nil || errors.As(err, &b) {
		return err
	}
	return &blamed{error: err, who: r.peerName()}
}

// move chooses the path and moves the bytes over it.
func (r *Request) move() error {
	route, err := r.choose()
	if err != nil {
		return r.blame(err)
	}
	r.mu.Lock()
	r.route = route
	r.mu.Unlock()
	switch route.Path {
	case "process":
		return r.inProcess(route.local)
	case "shm", "pull", "gpu":
		if r.t.Op == Read {
			return r.retry(route.link, r.readMapped)
		}
		return r.retry(route.link, r.writePulled)
	}
	if r.t.Op == Read {
		return r.retry(route.link, r.readStream)
	}
	return r.retry(route.link, r.writeStream)
}

// retry runs an attempt over one session after another until it ends otherwise than by a lost connection.
func (r *Request) retry(l *link, attempt func(s *session, again bool) error) error {
	for n := 0; ; n++ {
		s, err := l.get(r.ctx)
		if err != nil {
			return r.blame(err)
		}
		err = attempt(s, n > 0)
		if err == nil || !s.isLost() || !errors.Is(err, ErrLost) {
			return err
		}
		r.agent.warn("a connection was lost; what is missing goes over the next", "agent", r.peerName(), "request", r.num, "why", err)
	}
}

// source is the view of own bytes that a write sends.
func (r *Request) source() (view, error) {
	return viewOf(len(r.pairs), func(i int) Desc { return r.pairs[i].local }, func(id uint32) (*place, error) {
		return r.reads.of(id, func() (*Region, error) { return r.own(id) })
	})
}

func (r *Request) own(id uint32) (*Region, error) {
	g := r.t.Local.own[id]
	g.mu.Lock()
	gone := g.gone
	g.mu.Unlock()
	if gone {
		return nil, fmt.Errorf("region %q: %w: it was released", g.name, ErrRegion)
	}
	return g, nil
}

// destination is where a read lands.
func (r *Request) destination(sliced bool) (*landing, error) {
	if r.land != nil {
		return r.land, nil
	}
	l, err := newLanding(r.agent.base, len(r.pairs), func(i int) Desc { return r.pairs[i].local }, r.own, r.total, sliced, nil)
	if err != nil {
		return nil, err
	}
	if err := r.landsIn(l); err != nil {
		return nil, err
	}
	return l, nil
}

// landsIn notes a landing, so that the end of the request closes it.
func (r *Request) landsIn(l *landing) error {
	r.mu.Lock()
	r.land = l
	r.mu.Unlock()
	if err := r.ctx.Err(); err != nil {
		l.close(context.Cause(r.ctx))
		return err
	}
	return nil
}

func (r *Request) gateFor(n int64) error { return r.agent.gate.take(r.ctx, r.t.Class, n, false) }
