package xfer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"
)

// incoming is a request of a guest.
type incoming struct {
	guest   *guest
	network string // of the session that it came by
	call    uint64
	op      Op
	total   int64
	class   Class
	tells   bool
	text    []byte
	land    *landing // of a write
	again   func(i int)
	ready   bool       // land and again are set
	turn    sync.Mutex // held while land or reads is made: a request that is posted again has one
	reads   places     // regions that a read is served from
	timer   *time.Timer
	once    sync.Once
	done    chan struct{}
	ctx     context.Context // ends with the request
	end     context.CancelFunc
}

// begin enters a new request, which fails at the deadline that came with it. The caller holds mu.
func (g *guest) begin(network string, call uint64, p *post) *incoming {
	in := &incoming{guest: g, network: network, call: call, op: p.op, total: p.total, class: p.class, tells: p.tells, text: p.notice,
		done: make(chan struct{})}
	in.ctx, in.end = context.WithCancel(g.agent.base)
	g.requests[call] = in
	if end := time.Now().Add(p.timeout); end.After(g.until) {
		g.until = end
	}
	in.timer = time.AfterFunc(p.timeout, func() {
		in.fail(fmt.Errorf("%w: %s were left when it came", ErrDeadline, p.timeout.Round(time.Millisecond)), g.id.Name)
	})
	return in
}

// post takes a request: a new one, or one that goes on after its connection was lost.
func (g *guest) post(s *inbound, call uint64, resumed bool, p *post) {
	a := g.agent
	g.mu.Lock()
	if p.low > g.low {
		g.low = p.low
		maps.DeleteFunc(g.over, func(n uint64, _ *ending) bool { return n < g.low })
	}
	why, over := g.over[call]
	in := g.requests[call]
	if over || call < g.low {
		g.mu.Unlock()
		if over {
			_ = why.say(s, call)
		}
		return
	}
	if in == nil {
		in = g.begin(s.network, call, p)
	}
	g.mu.Unlock()
	a.wg.Go(func() {
		if err := in.serve(s, p, resumed); err != nil {
			who := a.id.Name
			if b := (*blamed)(nil); errors.As(err, &b) {
				who, err = b.who, b.error
			}
			in.fail(err, who)
		}
	})
}

// serve does the target's part of a request.
func (in *incoming) serve(s *inbound, p *post, resumed bool) error {
	a := in.guest.agent
	if in.tells && a.inbox.full() {
		return a.errFull()
	}
	if p.op == Read {
		if p.how == howTell {
			in.set(nil, nil)
			return nil // the initiator does the rest, and tells
		}
		return in.serveRead(s, p)
	}
	if p.how == howPull {
		if s.share == nil {
			return fmt.Errorf("%w: memory of %s cannot be mapped", ErrPath, in.guest.id.Name)
		}
		if !s.share.use() {
			return nil // the session is lost; over the next one it is posted again
		}
		defer s.share.unuse()
		s.imports.use()
		defer s.imports.unuse()
	}
	known, err := in.prepare(p)
	if err != nil {
		return err
	}
	select {
	case <-in.done: // it failed meanwhile
		in.land.close(ErrCancelled)
		return nil
	default:
	}
	if p.how == howPull {
		if known {
			return nil // the copy goes on
		}
		return in.pull(s, p)
	}
	if resumed {
		var w writer
		w.bitmap(in.land.bitmap())
		if err := s.control.send(fHave, in.call, 0, w); err != nil {
			return nil // the session is lost; the next one asks again
		}
	}
	if known {
		return nil // the first call waits for the bytes
	}
	select {
	case <-in.land.full:
		return in.finish()
	case <-in.land.shut:
		if why := in.land.reason(); why != errLanded {
			return why
		}
		return nil
	}
}

// prepare makes the landing of a write, unless there is one (known).
func (in *incoming) prepare(p *post) (known bool, err error) {
	in.turn.Lock()
	defer in.turn.Unlock()
	g, a := in.guest, in.guest.agent
	g.mu.Lock()
	known = in.ready
	g.mu.Unlock()
	if known {
		return true, nil
	}
	if err := a.allowed(p.caps, p.remote); err != nil {
		return false, err
	}
	if at := overlap(p.remote); at >= 0 {
		return false, fmt.Errorf("%w: descriptor %d", ErrOverlap, at)
	}
	l, err := a.destination(in.ctx, epochsOf(p.caps), p.remote, p.total, p.how == howStream)
	if err != nil {
		return false, err
	}
	l.view.index()
	in.set(l, nil)
	return false, nil
}

// pull copies out of the guest's memory, which is mapped or can be read. What its owner may have used again meanwhile is not taken.
func (in *incoming) pull(s *inbound, p *post) error {
	g, a := in.guest, in.guest.agent
	src, err := s.source(p, in.land.view.parts[0].at)
	if err != nil {
		return err
	}
	a.gate.join(p.class)
	err = in.land.copyFrom(in.ctx, &src, func(n int64) error { return a.gate.take(in.ctx, p.class, n, false) })
	a.gate.leave(p.class)
	if err != nil {
		if own := (*storageFailure)(nil); errors.Is(err, ErrStorage) && !errors.As(err, &own) {
			return &blamed{error: fmt.Errorf("memory of %s: %w", g.id.Name, err), who: g.id.Name} // it could not be read: its process is no more
		}
		return err
	}
	if p.slot < 0 || p.slot >= leaseSlots || s.slots == nil {
		return fmt.Errorf("%w: slot %d of the source", ErrBounds, p.slot)
	}
	if err := s.slots[p.slot].stands(p.lease); err != nil {
		return &blamed{error: err, who: g.id.Name}
	}
	return in.finish()
}

// set tells the readers of streams where slices land.
func (in *incoming) set(l *landing, again func(i int)) {
	in.guest.mu.Lock()
	in.land, in.again, in.ready = l, again, true
	in.guest.entered.Broadcast()
	in.guest.mu.Unlock()
}

// destination makes the landing of a write into own regions (newLanding).
func (a *Agent) destination(ctx context.Context, epoch func(uint32) uint64, descs []Desc, total int64, sliced bool) (*landing, error) {
	return newLanding(ctx, len(descs), func(i int) Desc { return descs[i] }, func(id uint32) (*Region, error) {
		r, err := a.region(id)
		if err != nil {
			return nil, err
		}
		if r.access&MayWrite == 0 {
			return nil, fmt.Errorf("region %q: %w: it may not be written", r.name, ErrAccess)
		}
		for _, d := range descs {
			if d.Region == id {
				if err := bounds(d, r.Size()); err != nil {
					return nil, fmt.Errorf("region %q: %w", r.name, err)
				}
			}
		}
		return r, nil
	}, total, sliced, epoch)
}

// finish makes a write durable, tells the user, then the initiator.
func (in *incoming) finish() error {
	if err := in.land.finish(in.guest.agent.base); err != nil {
		return err
	}
	in.succeed()
	return nil
}

// stopTimer ends the deadline, which may have been set this moment.
func (in *incoming) stopTimer() {
	in.guest.mu.Lock()
	defer in.guest.mu.Unlock()
	in.timer.Stop()
}

// succeed delivers the notice, once, and says so.
func (in *incoming) succeed() {
	in.once.Do(func() {
		g := in.guest
		in.stopTimer()
		if in.tells {
			g.agent.inbox.add(Notice{From: g.id, Request: in.call, Data: in.text})
		}
		g.forget(in, &ending{})
	})
}

// fail ends a request with an error: nothing lands any more, the user hears of it, and the initiator.
func (in *incoming) fail(why error, who string) {
	in.once.Do(func() {
		g := in.guest
		in.stopTimer()
		g.mu.Lock()
		land := in.land
		g.mu.Unlock()
		f := &Failure{Request: in.call, Op: in.op, From: g.id, To: g.agent.id, Who: who, Total: in.total, Why: why}
		if land != nil {
			land.close(why)
			f.Landed = land.moved.Load()
		}
		if in.op == Write || in.tells {
			g.agent.inbox.add(Notice{From: g.id, Request: in.call, Data: in.text, Err: f})
		}
		g.forget(in, &ending{why, who, f.Landed})
	})
}

// forget notes how a request ended and tells the initiator.
func (g *guest) forget(in *incoming, how *ending) {
	g.mu.Lock()
	delete(g.requests, in.call)
	g.over[in.call] = how
	g.entered.Broadcast()
	s := g.now[in.network]
	g.mu.Unlock()
	close(in.done)
	in.end()
	if s != nil {
		_ = how.say(s, in.call)
	}
}

// source is where the bytes of a write lie in the memory of the guest's process.
func (s *inbound) source(p *post, to *place) (view, error) {
	sum := int64(0)
	if len(p.source) != len(p.remote) {
		return view{}, fmt.Errorf("%w: %d pieces for %d descriptors", ErrLength, len(p.source), len(p.remote))
	}
	for i, d := range p.source {
		if d.Len != p.remote[i].Len {
			return view{}, fmt.Errorf("%w: piece %d has %d bytes, want %d", ErrLength, i, d.Len, p.remote[i].Len)
		}
		sum += d.Len
	}
	return viewOf(len(p.source), func(i int) Desc { return p.source[i] }, func(id uint32) (*place, error) {
		switch {
		case id == 1 && s.share != nil:
			for i, d := range p.source {
				if d.Region == 1 {
					if err := bounds(d, int64(len(s.share.mem))); err != nil {
						return nil, fmt.Errorf("piece %d: %w", i, err)
					}
				}
			}
			return &place{mem: s.share.mem}, nil
		case id == 0 && s.pid != 0:
			return &place{store: pulled{pid: s.pid, size: 1 << 62}}, nil
		}
		if k := int(id) - sourceShown; k >= 0 && k < len(p.shown) {
			d := s.guest.agent.onGPU(p.shown[k].GPU, to)
			if d == nil {
				return nil, fmt.Errorf("%w: no region here is on the GPU of %s", ErrPath, s.guest.id.Name)
			}
			most := int64(0)
			for i, x := range p.source {
				if x.Region == id {
					if x.Off < 0 || x.Len > 1<<50 || x.Off > 1<<50 {
						return nil, fmt.Errorf("piece %d: %w: %d bytes at %d", i, ErrBounds, x.Len, x.Off)
					}
					most = max(most, x.Off+x.Len)
				}
			}
			x, err := s.imports.device(d, p.shown[k], most)
			if err != nil {
				return nil, fmt.Errorf("memory of the GPU of %s: %w", s.guest.id.Name, err)
			}
			return &place{store: x}, nil
		}
		return nil, fmt.Errorf("%w: memory of %s cannot be read", ErrPath, s.guest.id.Name)
	})
}

// serveRead sends what a guest reads.
func (in *incoming) serveRead(s *inbound, p *post) error {
	g, a := in.guest, in.guest.agent
	a.mu.Lock()
	l := a.leases[p.lease]
	a.mu.Unlock()
	if l == nil || l.holderID() != g.id {
		return fmt.Errorf("%w: lease %d is not one of %s", ErrLease, p.lease, g.id.Name)
	}
	for i, d := range p.remote {
		if d.Len <= 0 || !l.covers(d) {
			return fmt.Errorf("%w: it does not cover %d bytes at %d of region %d, descriptor %d", ErrLease, d.Len, d.Off, d.Region, i)
		}
	}
	in.turn.Lock()
	if in.reads == nil {
		in.reads = places{}
		context.AfterFunc(in.ctx, func() {
			in.turn.Lock()
			defer in.turn.Unlock()
			in.reads.close()
		})
	}
	src, err := viewOf(len(p.remote), func(i int) Desc { return p.remote[i] }, func(id uint32) (*place, error) {
		return in.reads.of(id, func() (*Region, error) { return a.region(id) })
	})
	in.turn.Unlock()
	if err != nil {
		return err
	}
	src.index()
	g.mu.Lock()
	streams := pickStreams(append([]*conn(nil), s.streams...), p.class)
	g.mu.Unlock()
	if len(streams) == 0 {
		return fmt.Errorf("%w: a session without streams", ErrLost)
	}
	send := &sender{view: &src, total: p.total, call: in.call, class: p.class, gate: a.gate, streams: streams, use: l.use, unuse: l.unuse,
		stop: func() error {
			select {
			case <-in.done:
				return ErrCancelled
			default:
				return nil
			}
		}}
	in.set(nil, func(i int) {
		if i >= 0 && int64(i)*sliceSize < p.total {
			if err := send.one(in.ctx, streams[0], i); err != nil && !errors.Is(err, ErrLost) {
				in.fail(err, a.id.Name)
			}
		}
	})
	a.gate.join(p.class)
	err = send.all(in.ctx, p.have)
	a.gate.leave(p.class)
	if err == nil || errors.Is(err, ErrLost) || errors.Is(err, ErrCancelled) {
		if errors.Is(err, ErrLost) {
			g.detach(s, err)
		}
		return nil // the guest says when it has landed, or comes back, or its time is over
	}
	return err
}

// tellAlone takes a notice that belongs to no data. One that came before is answered again and not added twice.
func (g *guest) tellAlone(s *inbound, call uint64, text []byte) error {
	g.mu.Lock()
	_, over := g.over[call]
	old := over || call < g.low
	full := g.agent.inbox.full()
	if !old && !full {
		g.over[call] = &ending{}
	}
	g.mu.Unlock()
	if !old && full {
		return s.control.send(fFail, call, 0, failPayload(g.agent.errFull(), g.agent.id.Name))
	}
	if !old {
		g.agent.inbox.add(Notice{From: g.id, Data: text})
	}
	return s.control.send(fTold, call, 0, nil)
}

// tell takes a notice: of a read that has landed at its initiator, or without data.
func (g *guest) tell(s *inbound, f *frame) error {
	r := reader{b: f.payload}
	alone := r.num() != 0
	text := append([]byte(nil), r.bytes(maxNotice)...)
	if err := r.end(); err != nil {
		return err
	}
	if alone {
		return g.tellAlone(s, f.Call, text)
	}
	if in := g.find(f.Call); in != nil {
		in.succeed()
		return nil
	}
	g.mu.Lock()
	how := g.over[f.Call]
	g.mu.Unlock()
	if how == nil {
		how = &ending{why: fmt.Errorf("request %d: %w here", f.Call, ErrAgent), who: g.id.Name}
	}
	return how.say(s, f.Call)
}
