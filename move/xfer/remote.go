package xfer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// posting is the post of this request.
func (r *Request) posting(how uint8) *post {
	p := &post{op: r.t.Op, class: r.t.Class, how: how, timeout: max(time.Until(r.began.Add(r.limit)), 1), low: r.agent.low(), total: r.total,
		notice: r.t.Notice, tells: r.t.Notice != nil}
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
	flag := uint64(0)
	if again {
		flag = 1
	}
	b := p.put()
	if len(b) > maxPayload {
		return fmt.Errorf("%w: %d descriptors that lie apart take %d bytes to name, at most %d; post them as several requests",
			ErrLimit, len(p.remote), len(b), maxPayload)
	}
	r.mu.Lock()
	r.sess = s
	r.mu.Unlock()
	if err := s.control.sendWhile(r.ctx, fPost, r.num, flag, b); err != nil {
		s.lose(err)
		return s.errLost()
	}
	return nil
}

// answer waits for a frame of the target about the request.
func (r *Request) answer(s *session, ch chan frame) (frame, error) {
	select {
	case f := <-ch:
		return r.heard(f)
	case <-s.lost:
		return frame{}, s.errLost()
	case <-r.ctx.Done():
		return frame{}, context.Cause(r.ctx)
	}
}

// heard takes a frame of the target about the request.
func (r *Request) heard(f frame) (frame, error) {
	if f.Kind != fFail {
		return f, nil
	}
	who, err := parseFail(f.payload)
	// The target's clock may run out a moment before the own one, and it takes the initiator for late. Who
	// reads has waited for the target all the time.
	if errors.Is(err, ErrDeadline) && who == r.agent.id.Name && r.t.Op == Read && r.peer != nil {
		who = r.peer.id.Name
	}
	return f, &blamed{err, who, int64(f.Number)}
}

// readMapped copies out of the peer's memory.
func (r *Request) readMapped(s *session, again bool) error {
	l, err := r.destination(false)
	if err != nil {
		return err
	}
	h, err := r.t.Remote.leased(r.ctx, func() (*hold, error) { return s.lease(r.ctx, r.t.Remote) })
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
	s.imports.use()
	defer s.imports.unuse()
	src, err := viewOf(len(r.pairs), func(i int) Desc { return r.pairs[i].remote }, func(id uint32) (*place, error) {
		m, err := r.peer.region(id)
		if err != nil {
			return nil, err
		}
		switch {
		case m.Shown != nil && r.route.Path == "gpu":
			d := r.agent.onGPU(m.Shown.GPU, r.first())
			if d == nil {
				return nil, fmt.Errorf("region %q: %w: no own region is on its GPU any more", m.Name, ErrPath)
			}
			x, err := s.imports.device(d, m.Shown, m.Size)
			if err != nil {
				return nil, err
			}
			return &place{store: x}, nil
		case m.Share >= 0 && s.share != nil && m.Share <= int64(len(s.share.mem)) && m.Size <= int64(len(s.share.mem))-m.Share:
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
	if err := h.valid(s.slots); err != nil {
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
			r.bye = func() { _ = s.control.send(fTell, r.num, 0, w) }
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
	_, err := r.answer(s, ch)
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
		if h, err = r.t.Remote.leased(r.ctx, func() (*hold, error) { return s.lease(r.ctx, r.t.Remote) }); err != nil {
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
	for there := false; !there; {
		select {
		case <-l.full:
			there = true
		case <-l.shut:
			return l.reason()
		case f := <-ch:
			if _, err := r.heard(f); err != nil {
				return err
			}
		case <-s.lost:
			return s.errLost()
		case <-r.ctx.Done():
			return context.Cause(r.ctx)
		}
	}
	if err := l.finish(r.ctx); err != nil {
		return err
	}
	r.enter(Landed)
	s.forget(r.num)
	return r.tell(s, r.t.Notice != nil)
}

// offer enters into the table of leases that the source of the request stays as it is, until takeBack. The target looks there after it has
// copied: a request that failed here may not have failed there yet.
func (r *Request) offer() (id uint64, slot int, err error) {
	a := r.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.offered == 0 {
		a.lastLease++
		if slot = a.takeSlot(a.lastLease, time.Until(r.began.Add(r.limit))); slot < 0 {
			return 0, 0, fmt.Errorf("%w: %d requests and leases are in progress", ErrLimit, leaseSlots)
		}
		r.offered, r.slot = a.lastLease, slot
	}
	return r.offered, r.slot, nil
}

func (r *Request) takeBack() {
	a := r.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.offered != 0 {
		a.slots[r.slot].id.Store(0)
		r.offered = 0
	}
}

// writePulled lets the target copy out of this process's memory.
func (r *Request) writePulled(s *session, again bool) error {
	p := r.posting(howPull)
	var err error
	if p.lease, p.slot, err = r.offer(); err != nil {
		return err
	}
	p.source = make([]Desc, len(r.pairs))
	var last uint32
	var from Desc // where the region of that number begins, as the target finds it
	for i, x := range r.pairs {
		if d := x.local; i == 0 || d.Region != last {
			if from, err = r.sourceOf(d.Region, p); err != nil {
				return err
			}
			last = d.Region
		}
		p.source[i] = Desc{from.Region, from.Off + x.local.Off, x.local.Len}
	}
	return r.awaitLanding(s, p, again, nil)
}

// sourceOf is where an own region begins, as the target of a write finds it (post.source).
func (r *Request) sourceOf(id uint32, p *post) (Desc, error) {
	g, err := r.own(id)
	if err != nil {
		return Desc{}, err
	}
	d, ok := (&place{store: g.store}).device()
	switch {
	case ok:
		shown, err := d.show()
		if err != nil {
			return Desc{}, err
		}
		k := slices.Index(p.shown, shown)
		if k < 0 {
			k = len(p.shown)
			p.shown = append(p.shown, shown)
		}
		return Desc{Region: uint32(sourceShown + k)}, nil
	case g.share >= 0:
		return Desc{Region: 1, Off: g.share}, nil
	}
	return Desc{Region: 0, Off: int64(g.address())}, nil
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
		f, err := r.answer(s, ch)
		if err != nil {
			return err
		}
		if f.Kind == fLanded {
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
	// Slices that are sent again are sent before this returns: afterwards the memory is the user's.
	var resend sync.RWMutex
	over := false
	defer func() {
		resend.Lock()
		over = true
		resend.Unlock()
	}()
	s.mu.Lock()
	s.sends[r.num] = func(i int) {
		resend.RLock()
		defer resend.RUnlock()
		if !over && i >= 0 && int64(i)*sliceSize < r.total {
			if err := send.one(r.ctx, streams[0], i); errors.Is(err, ErrLost) {
				s.lose(err)
			}
		}
	}
	s.mu.Unlock()
	return r.awaitLanding(s, r.posting(howStream), again, func(ch chan frame) error {
		var skip []uint64
		if again {
			f, err := r.answer(s, ch)
			if err != nil {
				return err
			}
			if f.Kind == fLanded {
				select {
				case ch <- f:
				default:
				}
				return nil
			}
			b := reader{b: f.payload}
			if skip = b.bitmap(); f.Kind != fHave || b.end() != nil {
				return fmt.Errorf("agent %s: it answered with a frame of kind %d", r.peerName(), f.Kind)
			}
		}
		// A failure at the target stops the sending.
		sent := make(chan struct{})
		heard := make(chan struct{})
		go func() {
			defer close(heard)
			for {
				select {
				case f := <-ch:
					if f.Kind == fFail || f.Kind == fLanded { // all else was said before
						answer = f
					}
					if f.Kind == fFail {
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
		if answer.Kind != 0 {
			select {
			case ch <- answer:
			default: // the mailbox is full of what nobody asked for
				return fmt.Errorf("agent %s: too many answers to one request", r.peerName())
			}
		}
		switch {
		case answer.Kind == fFail:
			return nil // the answer waits in the mailbox
		case errors.Is(err, ErrLost):
			s.lose(err)
			return s.errLost()
		}
		return err
	})
}
