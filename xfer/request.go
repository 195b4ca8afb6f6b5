package xfer

import (
	"context"
	"errors"
	"fmt"
	"sync"
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
}

// Request is a transfer under way.
type Request struct {
	agent *Agent
	peer  *Peer // nil if both sides are own
	num   uint64
	t     Transfer
	pairs []pair
	total int64
	route *Route
	began time.Time
	limit time.Duration
	ctx   context.Context // ends with the deadline
	end   context.CancelCauseFunc
	done  chan struct{}
	lease *hold // of a read over streams, from its first attempt on

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
		return nil, fmt.Errorf("post: operation %d, class %d, notice of %d bytes, time limit %s: %w", t.Op, t.Class, len(t.Notice), t.Timeout, ErrLimit)
	}
	if t.Timeout == 0 {
		t.Timeout = a.cfg.Timeout
	}
	r := &Request{agent: a, peer: t.Remote.peer, t: t, began: time.Now(), limit: t.Timeout, done: make(chan struct{})}
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
	go func() {
		defer a.wg.Done()
		r.run()
	}()
	return r, nil
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
		} else if codeOf(err) != 0 {
			break
		}
	}
	if errors.Is(err, ErrGone) || errors.Is(err, ErrStale) {
		return nil // its process is no more
	}
	if err != nil {
		return fmt.Errorf("cancel write %d: agent %s did not confirm (%w); bytes may land there until %s", r.num, r.peer.id.Name, err, r.began.Add(r.limit).Format(time.RFC3339))
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
			if f.kind == fStopped {
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
	timer.Stop()
	r.mu.Lock()
	land := r.land
	r.mu.Unlock()
	if err != nil {
		// What ended it from outside is the reason, whatever it led to.
		who := a.id.Name
		if cause := context.Cause(r.ctx); cause != nil {
			err = cause
			r.mu.Lock()
			who = r.who
			r.mu.Unlock()
		} else if b := (*blamed)(nil); errors.As(err, &b) {
			who, err = b.who, b.error
			r.sent = b.landed
		}
		if land != nil {
			land.close(err)
		}
		f := &Failure{Request: r.num, Op: r.t.Op, From: a.id, To: r.to(), Who: who, Total: r.total, Landed: r.sent, Why: err}
		if land != nil {
			f.Landed = land.moved.Load()
		}
		r.mu.Lock()
		s := r.sess
		r.err, r.state = f, Failed
		if errors.Is(err, ErrCancelled) && who == a.id.Name {
			r.state = Cancelled
		}
		r.mu.Unlock()
		// The other end hears of it, if it ever heard of the request.
		if s != nil {
			_ = s.control.nc.SetWriteDeadline(time.Now().Add(cancelTime))
			_ = s.control.send(fFail, r.num, 0, failPayload(err, who))
			_ = s.control.nc.SetWriteDeadline(time.Time{})
		}
	} else {
		r.enter(Done)
	}
	a.mu.Lock()
	delete(a.active, r.num)
	a.mu.Unlock()
	r.end(nil)
	close(r.done)
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
	case "shm", "pull":
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
		return r.own(id)
	})
}

func (r *Request) own(id uint32) (*place, error) {
	g := r.t.Local.own[id]
	g.mu.Lock()
	gone := g.gone
	g.mu.Unlock()
	if gone {
		return nil, fmt.Errorf("region %q: %w: it was released", g.name, ErrRegion)
	}
	return &place{mem: g.mem, store: g.store, region: g}, nil
}

// destination is where a read lands.
func (r *Request) destination(sliced bool) (*landing, error) {
	if r.land != nil {
		return r.land, nil
	}
	l, err := newLanding(r.agent.base, len(r.pairs), func(i int) Desc { return r.pairs[i].local }, func(id uint32) (*Region, error) {
		p, err := r.own(id)
		if err != nil {
			return nil, err
		}
		return p.region, nil
	}, r.total, sliced)
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

func (r *Request) gateFor(n int64) error { return r.agent.gate.take(r.ctx, r.t.Class, n) }

// inProcess moves bytes between agents of this process, or of one agent.
func (r *Request) inProcess(t *Agent) error {
	var err error
	told := false
	tell := func(n Notice) {
		n.From, n.Request = r.agent.id, r.num
		t.inbox.add(n)
		told = true
	}
	if r.t.Op == Read {
		err = r.readHere(t)
	} else {
		err = r.writeHere(t)
	}
	if err == nil && r.t.Notice != nil {
		tell(Notice{Data: append([]byte(nil), r.t.Notice...)})
		r.enter(Told)
	}
	if err != nil && t != r.agent && !told && (r.t.Op == Write || r.t.Notice != nil) {
		who := r.agent.id.Name
		why := err
		if cause := context.Cause(r.ctx); cause != nil {
			why = cause
			r.mu.Lock()
			who = r.who
			r.mu.Unlock()
		} else if b := (*blamed)(nil); errors.As(err, &b) {
			who, why = b.who, b.error
		}
		f := &Failure{Request: r.num, Op: r.t.Op, From: r.agent.id, To: t.id, Who: who, Total: r.total, Why: why}
		r.mu.Lock()
		if r.land != nil {
			f.Landed = r.land.moved.Load()
		}
		r.mu.Unlock()
		tell(Notice{Data: r.t.Notice, Err: f})
	}
	return err
}

func (r *Request) readHere(t *Agent) error {
	l, err := r.destination(false)
	if err != nil {
		return err
	}
	var le *lease
	if t != r.agent {
		h, err := r.t.Remote.leased(func() (*hold, error) { return t.leaseHere(r.agent, r.t.Remote) })
		if err != nil {
			return r.blame(err)
		}
		if err := h.use(r.ctx); err != nil {
			return r.blame(err)
		}
		defer h.unuse()
		t.mu.Lock()
		le = t.leases[h.id]
		t.mu.Unlock()
		if le == nil {
			return r.blame(fmt.Errorf("%w: its time was over", ErrLease))
		}
		if err := le.use(nil); err != nil {
			return r.blame(err)
		}
		defer le.unuse(nil)
	}
	src, err := viewOf(len(r.pairs), func(i int) Desc { return r.pairs[i].remote }, func(id uint32) (*place, error) {
		g, err := t.region(id)
		if err != nil {
			return nil, err
		}
		return &place{mem: g.mem, store: g.store, region: g}, nil
	})
	if err != nil {
		return r.blame(err)
	}
	r.enter(Moving)
	if err := l.copyFrom(r.ctx, &src, r.gateFor); err != nil {
		return r.faultOf(err)
	}
	if le != nil && time.Now().After(le.deadline()) {
		return r.blame(fmt.Errorf("%w: it ended while the memory was read", ErrLease))
	}
	if err := l.finish(r.ctx); err != nil {
		return err
	}
	r.enter(Landed)
	return nil
}

func (l *lease) deadline() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.until
}

// faultOf blames the owner of the storage that failed.
func (r *Request) faultOf(err error) error {
	var s *storageFailure
	if errors.As(err, &s) && s.agent != r.agent.id.Name && r.peer != nil {
		return &blamed{error: err, who: s.agent}
	}
	return err
}

func (r *Request) writeHere(t *Agent) error {
	remote := make([]Desc, len(r.pairs))
	for i, p := range r.pairs {
		remote[i] = p.remote
	}
	if t != r.agent {
		if err := t.allowed(r.t.Remote.capabilities(), remote); err != nil {
			return r.blame(err)
		}
	}
	l, err := t.destination(t.base, remote, r.total, false)
	if err != nil {
		return r.blame(err)
	}
	if err := r.landsIn(l); err != nil {
		return err
	}
	src, err := r.source()
	if err != nil {
		return err
	}
	r.enter(Moving)
	if err := l.copyFrom(r.ctx, &src, r.gateFor); err != nil {
		if errors.Is(err, ErrWithdrawn) {
			return r.blame(err)
		}
		return r.faultOf(err)
	}
	if err := l.finish(r.ctx); err != nil {
		return r.blame(err)
	}
	r.enter(Landed)
	return nil
}

// leaseHere gives a lease to an agent of the same process.
func (t *Agent) leaseHere(reader *Agent, list *List) (*hold, error) {
	l, err := t.leaseFor(reader.id, list.grant, reader.cfg.Lease, list.capabilities(), list.descs)
	if err != nil {
		return nil, err
	}
	h := &hold{id: l.id, ttl: time.Until(l.deadline()), until: l.deadline()}
	h.renew = func(context.Context) error { return l.renew(h.ttl) }
	h.giveIt = func() {
		reader.dropHold(t.id, h.id)
		l.end("returned")
	}
	reader.keepHold(t.id, h)
	return h, nil
}

// leased is the lease of a list: the one it has, or a new one.
func (l *List) leased(get func() (*hold, error)) (*hold, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.released {
		return nil, fmt.Errorf("%w: the list was released", ErrClosed)
	}
	if l.lease != nil {
		l.lease.mu.Lock()
		over := l.lease.given || l.lease.asked || time.Now().After(l.lease.until)
		l.lease.mu.Unlock()
		if !over || l.grant != 0 {
			return l.lease, nil
		}
	}
	h, err := get()
	if err == nil {
		l.lease = h
	}
	return h, err
}

// posting is the post of this request.
func (r *Request) posting(how uint8) *post {
	p := &post{op: r.t.Op, class: r.t.Class, how: how, timeout: max(time.Until(r.began.Add(r.limit)), 1), low: r.agent.low(), total: r.total, notice: r.t.Notice, tells: r.t.Notice != nil}
	p.caps = r.t.Remote.capabilities()
	p.remote = make([]Desc, len(r.pairs))
	for i, x := range r.pairs {
		p.remote[i] = x.remote
	}
	return p
}

// low is the least number of a request that is under way: all below are over.
func (a *Agent) low() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	least := a.calls.Load() + 1
	for n := range a.active {
		least = min(least, n)
	}
	return least
}

// send posts the request over a session.
func (r *Request) send(s *session, p *post, again bool) error {
	r.mu.Lock()
	r.sess = s
	r.mu.Unlock()
	flag := uint64(0)
	if again {
		flag = 1
	}
	if err := s.control.sendWhile(r.ctx, fPost, r.num, flag, p.put()); err != nil {
		s.lose(err)
		return s.errLost()
	}
	return nil
}

// answer waits for a frame of the target about the request.
func (r *Request) answer(s *session, ch chan frame, also <-chan struct{}) (frame, error) {
	select {
	case f := <-ch:
		if f.kind == fFail {
			who, err := parseFail(f.payload)
			// The target's clock may run out a moment before the own one, and it takes the initiator for late. Who
			// reads has waited for the target all the time.
			if errors.Is(err, ErrDeadline) && who == r.agent.id.Name && r.t.Op == Read && r.peer != nil {
				who = r.peer.id.Name
			}
			return f, &blamed{err, who, int64(f.number)}
		}
		return f, nil
	case <-s.lost:
		return frame{}, s.errLost()
	case <-also:
		return frame{}, nil
	case <-r.ctx.Done():
		return frame{}, context.Cause(r.ctx)
	}
}

// readMapped copies out of the peer's memory.
func (r *Request) readMapped(s *session, again bool) error {
	l, err := r.destination(false)
	if err != nil {
		return err
	}
	h, err := r.t.Remote.leased(func() (*hold, error) { return s.lease(r.ctx, r.t.Remote) })
	if err != nil {
		return r.blame(err)
	}
	if err := h.use(r.ctx); err != nil {
		return r.blame(err)
	}
	defer h.unuse()
	if r.t.Notice != nil {
		if err := r.send(s, r.posting(howTell), again); err != nil {
			return err
		}
	}
	if s.share != nil {
		if !s.share.use() {
			return s.errLost()
		}
		defer s.share.unuse()
	}
	src, err := viewOf(len(r.pairs), func(i int) Desc { return r.pairs[i].remote }, func(id uint32) (*place, error) {
		m, err := r.peer.region(id)
		if err != nil {
			return nil, err
		}
		switch {
		case m.Share >= 0 && s.share != nil && m.Share+m.Size <= int64(len(s.share.mem)):
			return &place{mem: s.share.mem[m.Share:][:m.Size:m.Size]}, nil
		case m.Addr != 0 && s.pid != 0:
			return &place{store: pulled{s.pid, uintptr(m.Addr), m.Size}}, nil
		}
		return nil, fmt.Errorf("region %q: %w: it cannot be mapped or read", m.Name, ErrPath)
	})
	if err != nil {
		return r.blame(err)
	}
	r.enter(Moving)
	if err := l.copyFrom(r.ctx, &src, r.gateFor); err != nil {
		if errors.Is(err, ErrStorage) { // reading the peer's memory failed
			return r.blame(err)
		}
		return err
	}
	if err := h.valid(); err != nil {
		return r.blame(err)
	}
	if err := l.finish(r.ctx); err != nil {
		return err
	}
	r.enter(Landed)
	return r.tell(s, r.t.Notice != nil)
}

// tell says that a read has landed; the notice is delivered when the answer comes.
func (r *Request) tell(s *session, wait bool) error {
	var w writer
	w.num(0)
	w.bytes(nil)
	if !wait {
		r.mu.Lock()
		posted := r.sess != nil
		r.mu.Unlock()
		if posted {
			_ = s.control.send(fTell, r.num, 0, w)
		}
		return nil
	}
	for n := 0; ; n++ {
		err := r.tellOnce(s, w)
		if err == nil {
			r.enter(Told)
			return nil
		}
		if !s.isLost() || !errors.Is(err, ErrLost) {
			return err
		}
		// The bytes are here; only the word is missing.
		if s, err = s.link.get(r.ctx); err != nil {
			return r.blame(err)
		}
		if err := r.send(s, r.posting(howTell), true); err != nil && !errors.Is(err, ErrLost) {
			return err
		}
	}
}

func (r *Request) tellOnce(s *session, w []byte) error {
	ch := s.expect(r.num)
	defer s.forget(r.num)
	if err := s.control.sendWhile(r.ctx, fTell, r.num, 0, w); err != nil {
		s.lose(err)
		return s.errLost()
	}
	_, err := r.answer(s, ch, nil)
	return err
}

// readStream receives slices over a session.
func (r *Request) readStream(s *session, again bool) error {
	l, err := r.destination(true)
	if err != nil {
		return err
	}
	l.view.index()
	// What is missing must come under the lease that the rest came under: else it may be of another time.
	h := r.lease
	if h == nil {
		if h, err = r.t.Remote.leased(func() (*hold, error) { return s.lease(r.ctx, r.t.Remote) }); err != nil {
			return r.blame(err)
		}
		r.lease = h
	}
	if err := h.use(r.ctx); err != nil {
		return r.blame(err)
	}
	defer h.unuse()
	p := r.posting(howStream)
	p.lease = h.id
	if again {
		p.have = l.bitmap()
	}
	ch := s.expect(r.num)
	s.mu.Lock()
	s.reads[r.num] = l
	s.mu.Unlock()
	defer s.forget(r.num)
	if err := r.send(s, p, again); err != nil {
		return err
	}
	r.enter(Moving)
	for {
		select {
		case <-l.full:
		default:
			f, err := r.answer(s, ch, either(l.full, l.shut))
			if err != nil {
				return err
			}
			if why := l.reason(); why != nil {
				return why
			}
			if f.kind != 0 {
				continue
			}
		}
		break
	}
	if err := l.finish(r.ctx); err != nil {
		return err
	}
	r.enter(Landed)
	s.forget(r.num)
	return r.tell(s, r.t.Notice != nil)
}

// either is closed when one of two is.
func either(a, b <-chan struct{}) <-chan struct{} {
	c := make(chan struct{})
	go func() {
		select {
		case <-a:
		case <-b:
		}
		close(c)
	}()
	return c
}

// writePulled lets the target copy out of this process's memory.
func (r *Request) writePulled(s *session, again bool) error {
	p := r.posting(howPull)
	p.source = make([]Desc, len(r.pairs))
	for i, x := range r.pairs {
		g := r.t.Local.own[x.local.Region]
		if _, err := r.own(x.local.Region); err != nil {
			return err
		}
		if g.share >= 0 && s.mapShare {
			p.source[i] = Desc{1, g.share + x.local.Off, x.local.Len}
		} else {
			p.source[i] = Desc{0, int64(g.address()) + x.local.Off, x.local.Len}
		}
	}
	return r.awaitLanding(s, p, again, nil)
}

// awaitLanding posts a write and waits until it has landed; meanwhile work sends what it must.
func (r *Request) awaitLanding(s *session, p *post, again bool, work func(ch chan frame) error) error {
	ch := s.expect(r.num)
	defer s.forget(r.num)
	if err := r.send(s, p, again); err != nil {
		return err
	}
	r.enter(Moving)
	if work != nil {
		if err := work(ch); err != nil {
			return err
		}
	}
	for {
		f, err := r.answer(s, ch, nil)
		if err != nil {
			return err
		}
		if f.kind == fLanded {
			r.enter(Landed)
			if r.t.Notice != nil {
				r.enter(Told)
			}
			return nil
		}
	}
}

// writeStream sends slices over a session.
func (r *Request) writeStream(s *session, again bool) error {
	src, err := r.source()
	if err != nil {
		return err
	}
	src.index()
	streams := pickStreams(s.streams, r.t.Class)
	failed := make(chan struct{})
	var answer frame
	send := &sender{view: &src, total: r.total, call: r.num, class: r.t.Class, gate: r.agent.gate, streams: streams,
		use: func(interrupter) error { return nil }, unuse: func(interrupter) {},
		stop: func() error {
			select {
			case <-failed:
				return ErrCancelled
			default:
				return r.ctx.Err()
			}
		}}
	s.mu.Lock()
	s.sends[r.num] = func(i int) {
		if i >= 0 && int64(i)*sliceSize < r.total {
			if err := send.one(r.ctx, streams[0], i); errors.Is(err, ErrLost) {
				s.lose(err)
			}
		}
	}
	s.mu.Unlock()
	return r.awaitLanding(s, r.posting(howStream), again, func(ch chan frame) error {
		var skip []uint64
		if again {
			f, err := r.answer(s, ch, nil)
			if err != nil {
				return err
			}
			if f.kind == fLanded {
				ch <- f
				return nil
			}
			b := reader{b: f.payload}
			if skip = b.bitmap(); f.kind != fHave || b.end() != nil {
				return fmt.Errorf("agent %s: it answered with a frame of kind %d", r.peerName(), f.kind)
			}
		}
		// A failure at the target stops the sending.
		sent := make(chan struct{})
		heard := make(chan struct{})
		var early []frame
		go func() {
			defer close(heard)
			for {
				select {
				case f := <-ch:
					early = append(early, f)
					if f.kind == fFail {
						answer = f
						close(failed)
						return
					}
				case <-sent:
					return
				}
			}
		}()
		err := send.all(r.ctx, skip)
		close(sent)
		<-heard
		for _, f := range early {
			ch <- f
		}
		switch {
		case answer.kind == fFail:
			return nil // the answer waits in the mailbox
		case errors.Is(err, ErrLost):
			s.lose(err)
			return s.errLost()
		}
		return err
	})
}

// Notify sends a notice that belongs to no data; it is delivered exactly once when Notify returns without an
// error. Notices of several calls have no order.
func (a *Agent) Notify(ctx context.Context, p *Peer, data []byte) error {
	if len(data) > maxNotice {
		return fmt.Errorf("notify %s: %w: %d bytes, at most %d", p.id.Name, ErrLimit, len(data), maxNotice)
	}
	if err := p.check(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, a.cfg.Timeout)
	defer cancel()
	if t := p.inProcess(); t != nil {
		t.inbox.add(Notice{From: a.id, Data: append([]byte(nil), data...)})
		return nil
	}
	a.mu.Lock()
	num := a.calls.Add(1)
	a.active[num] = nil // its number counts as under way
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		delete(a.active, num)
		a.mu.Unlock()
	}()
	var w writer
	w.num(1)
	w.bytes(data)
	l := p.link(p.network())
	for {
		s, err := l.get(ctx)
		if err != nil {
			return err
		}
		ch := s.expect(num)
		err = s.control.sendWhile(ctx, fTell, num, 0, w)
		if err != nil {
			s.lose(err)
		}
		select {
		case f := <-ch:
			s.forget(num)
			if f.kind == fFail {
				_, err := parseFail(f.payload)
				return err
			}
			return nil
		case <-s.lost:
			s.forget(num)
		case <-ctx.Done():
			s.forget(num)
			return fmt.Errorf("notify %s: %w: %w", p.id.Name, ErrDeadline, ctx.Err())
		}
	}
}
