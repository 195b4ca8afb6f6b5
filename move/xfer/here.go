package xfer

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// inProcess moves bytes between agents of this process, or of one agent.
func (r *Request) inProcess(t *Agent) error {
	if r.t.Notice != nil && t.inbox.full() {
		return r.blame(t.errFull())
	}
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

// readHere reads from an agent in the same process, without a message. The lease still holds: the owner may take its
// memory back, and bytes that were read after that do not count.
func (r *Request) readHere(t *Agent) error {
	l, err := r.destination(false)
	if err != nil {
		return err
	}
	var le *lease
	if t != r.agent {
		h, err := r.t.Remote.leased(r.ctx, func() (*hold, error) { return t.leaseHere(r.agent, r.t.Remote) })
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
	far := places{}
	defer far.close()
	src, err := viewOf(len(r.pairs), func(i int) Desc { return r.pairs[i].remote }, func(id uint32) (*place, error) {
		return far.of(id, func() (*Region, error) { return t.region(id) })
	})
	if err != nil {
		return r.blame(err)
	}
	r.enter(Moving)
	l.still = t == r.agent
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

// writeHere writes to an agent in the same process, with the same checks as over a socket.
func (r *Request) writeHere(t *Agent) error {
	remote := make([]Desc, len(r.pairs))
	for i, p := range r.pairs {
		remote[i] = p.remote
	}
	var epoch func(uint32) uint64 // of own memory there is none
	if r.peer != nil {
		caps := r.t.Remote.capabilities()
		if err := t.allowed(caps, remote); err != nil {
			return r.blame(err)
		}
		epoch = epochsOf(caps)
	}
	l, err := t.destination(t.base, epoch, remote, r.total, false)
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
	l.still = true
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
	h := &hold{id: l.id, slot: l.slot, ttl: time.Until(l.deadline()), until: l.deadline()}
	h.renew = func(context.Context) error { return l.renew(h.ttl) }
	h.giveIt = func() {
		reader.dropHold(t.id, h.id)
		l.end("returned")
	}
	reader.keepHold(t.id, h)
	return h, nil
}

// stands reports whether the list has a lease that will do for a request as it is.
func (l *List) stands() bool {
	l.mu.Lock()
	h := l.lease
	l.mu.Unlock()
	if h == nil {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.given && !h.asked && time.Until(h.until) > h.ttl*3/4
}

// over reports whether nothing may be begun under a lease any more: it was given back, the owner wants it, or its time has passed.
func (h *hold) over() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.given || h.asked || time.Now().After(h.until)
}

// leased is the lease of a list: the one it has, or a new one. One request asks for it, others wait as long as their own time lasts.
func (l *List) leased(ctx context.Context, get func() (*hold, error)) (*hold, error) {
	select {
	case l.asks <- struct{}{}:
		defer func() { <-l.asks }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	l.mu.Lock()
	old, released := l.lease, l.released
	l.mu.Unlock()
	if released {
		return nil, fmt.Errorf("%w: the list was released", ErrClosed)
	}
	if old != nil && (l.grant != 0 || !old.over()) {
		return old, nil
	}
	h, err := get()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	if released = l.released; !released {
		l.lease = h
	}
	l.mu.Unlock()
	if old != nil {
		old.giveBack()
	}
	if released { // while the lease was on its way
		h.giveBack()
		return nil, fmt.Errorf("%w: the list was released", ErrClosed)
	}
	return h, nil
}
