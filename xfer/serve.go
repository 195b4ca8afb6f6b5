package xfer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/weft-fabric/weft/transport/auth"
	"github.com/weft-fabric/weft/transport/shm"
)

// guest is an agent that posts requests here. It outlives its connections for a moment, so that requests go on
// when it comes back.
type guest struct {
	agent *Agent
	id    ID

	mu       sync.Mutex
	entered  sync.Cond // a request came, or a session changed
	now      *inbound  // nil while it has no connection
	requests map[uint64]*incoming
	over     map[uint64]*ending // requests that ended
	low      uint64             // those below are over for the guest, too
	timer    *time.Timer        // until its requests fail for want of a connection
	leases   map[*lease]struct{}
}

// inbound is a session of a guest.
type inbound struct {
	guest   *guest
	name    [16]byte
	control *conn
	streams []*conn
	share   *mapping // the guest's
	imports imports  // the guest's memory of GPUs
	pid     int      // of the guest, if its memory can be read
	lost    bool
}

// enter takes a connection that has proven itself.
func (a *Agent) enter(nc net.Conn, h auth.Hello) {
	a.mu.Lock()
	closed := a.closed
	if !closed {
		a.wg.Add(1)
	}
	a.mu.Unlock()
	if closed {
		nc.Close()
		return
	}
	go func() {
		defer a.wg.Done()
		a.serve(nc, h)
	}()
}

// serve is a connection of a guest, until it ends.
func (a *Agent) serve(nc net.Conn, h auth.Hello) {
	c := a.newConn(nc, &h.Secret, false)
	defer c.close()
	greet, cancel := context.WithTimeout(a.base, auth.Timeout)
	defer cancel()
	stop := context.AfterFunc(greet, readEnd{c}.interrupt)
	c.greet = greet
	var f frame
	var g hello
	err := c.next(&f)
	c.greet = nil
	if !stop() && err == nil {
		err = greet.Err()
	}
	if err == nil && f.kind != fHello {
		err = fmt.Errorf("it begins with a frame of kind %d", f.kind)
	}
	if err == nil {
		err = g.get(f.payload)
	}
	if err != nil {
		a.warn("a connection ended before it said who it is", "why", err)
		return
	}
	switch {
	case g.to.Name != a.id.Name:
		err = fmt.Errorf("this is agent %s, not %s: %w", a.id.Name, g.to.Name, ErrAgent)
	case g.to.Generation != 0 && g.to.Generation != a.id.Generation:
		err = fmt.Errorf("agent %s: %w: generation %x; it has started anew as %x", a.id.Name, ErrStale, g.to.Generation, a.id.Generation)
	case g.from.Name == "" || g.from.Generation == 0:
		err = fmt.Errorf("%w: an agent without a name", ErrAgent)
	}
	if err == nil && g.stream >= 0 {
		err = a.serveStream(c, &g)
	} else if err == nil {
		err = a.serveControl(c, &g, &f)
	}
	if err != nil {
		_ = c.send(fFail, 0, 0, failPayload(err, g.from.Name))
	}
}

func (a *Agent) warn(text string, args ...any) {
	if a.cfg.Log != nil {
		a.cfg.Log.Warn(text, args...)
	}
}

// guest finds or makes a guest. One of a later life ends the earlier ones of its name.
func (a *Agent) guest(id ID) (*guest, error) {
	a.mu.Lock()
	var old []*guest
	for _, g := range a.guests {
		if g.id.Name != id.Name {
			continue
		}
		if g.id.Generation > id.Generation {
			a.mu.Unlock()
			return nil, fmt.Errorf("agent %s: %w: generation %x; %x was here already", id.Name, ErrStale, id.Generation, g.id.Generation)
		}
		if g.id != id {
			old = append(old, g)
			delete(a.guests, g.id)
		}
	}
	g := a.guests[id]
	if g == nil {
		g = &guest{agent: a, id: id, requests: map[uint64]*incoming{}, over: map[uint64]*ending{}, leases: map[*lease]struct{}{}}
		g.entered.L = &g.mu
		a.guests[id] = g
	}
	a.mu.Unlock()
	for _, o := range old {
		o.failAll(fmt.Errorf("agent %s: %w: it has started anew", id.Name, ErrGone), id.Name)
	}
	return g, nil
}

// serveControl is the control connection of a guest's session, until it is lost.
func (a *Agent) serveControl(c *conn, h *hello, f *frame) error {
	g, err := a.guest(h.from)
	if err != nil {
		return err
	}
	s := &inbound{guest: g, name: h.session, control: c}
	var flags uint64
	if h.flags&helloShares != 0 {
		file, err := receiveFile(c.nc)
		if err != nil {
			return err
		}
		mem, err := shm.MapShare(file)
		file.Close()
		if err == nil {
			s.share = &mapping{mem: mem}
			flags |= welcomeMapped
		}
	}
	if _, unix := c.nc.(*net.UnixConn); unix && readable(h.pid, f.call, f.number) == nil {
		s.pid = h.pid
		flags |= welcomePulls
	}
	_, unix := c.nc.(*net.UnixConn)
	shares := unix && a.share != nil
	var slots uint64
	if shares {
		flags |= welcomeShares
		slots, _ = a.share.Offset(a.slotMem)
	}
	if a.cfg.Private || !unix {
		flags |= welcomePrivate
	}
	g.attach(s)
	var w writer
	w.num(flags)
	w.num(uint64(os.Getpid()))
	w.num(slots)
	err = c.send(fWelcome, uint64(wordAddress(a.word)), *a.word, w)
	if err == nil && shares {
		err = sendFile(c.nc, a.share.File())
	}
	c.src = bufio.NewReaderSize(c.nc, 64<<10)
	for err == nil {
		var f frame
		if err = c.next(&f); err == nil {
			err = g.handle(s, &f)
		}
	}
	g.detach(s, err)
	return nil
}

// serveStream reads slices of a guest's session.
func (a *Agent) serveStream(c *conn, h *hello) error {
	a.mu.Lock()
	g := a.guests[h.from]
	a.mu.Unlock()
	if g == nil {
		return fmt.Errorf("%w: a stream of %s, which has no session here", ErrAgent, h.from)
	}
	g.mu.Lock()
	s := g.now
	if s == nil || s.name != h.session || h.stream != len(s.streams) {
		g.mu.Unlock()
		return fmt.Errorf("%w: stream %d of a session that is not the present one of %s", ErrLost, h.stream, h.from)
	}
	s.streams = append(s.streams, c)
	g.mu.Unlock()
	err := c.send(fWelcome, 0, 0, nil)
	defer c.checkLater()()
	c.src = whole(c.nc)
	for err == nil {
		var f frame
		if err = c.next(&f); err == nil && f.kind != fData {
			err = fmt.Errorf("frame of kind %d on a stream", f.kind)
		}
		if err == nil {
			l := g.landing(s, f.call)
			err = c.slice(&f, l, func(call, i uint64) error { return s.again(l, call, i) })
		}
	}
	g.detach(s, err)
	return nil
}

// again asks for a slice that came with a wrong checksum.
func (s *inbound) again(l *landing, call, i uint64) error {
	l.mu.Lock()
	l.bad++
	bad := l.bad
	l.mu.Unlock()
	if bad > tooBad {
		l.close(fmt.Errorf("slice %d: %w: %d slices came so", i, ErrSum, bad))
		return nil
	}
	return s.control.send(fAgain, call, i, nil)
}

// landing finds where slices of a request land. They may come before the post does, as that takes another
// connection.
func (g *guest) landing(s *inbound, call uint64) *landing {
	g.mu.Lock()
	defer g.mu.Unlock()
	for {
		if in := g.requests[call]; in != nil && in.ready {
			return in.land
		}
		if _, over := g.over[call]; over || call < g.low || s.lost {
			return nil
		}
		g.entered.Wait()
	}
}

// attach makes a session the guest's present one.
func (g *guest) attach(s *inbound) {
	g.mu.Lock()
	old := g.now
	g.now = s
	if g.timer != nil {
		g.timer.Stop()
		g.timer = nil
	}
	g.entered.Broadcast()
	g.mu.Unlock()
	if old != nil {
		g.detach(old, errors.New("it came back over another connection"))
	}
}

// detach ends a session. If no other comes in time, the guest's requests fail.
func (g *guest) detach(s *inbound, why error) {
	g.mu.Lock()
	if s.lost {
		g.mu.Unlock()
		return
	}
	s.lost = true
	streams := s.streams
	present := g.now == s
	if present {
		g.now = nil
		g.timer = time.AfterFunc(outage*8/10, func() { g.expire(why) })
	}
	g.entered.Broadcast()
	g.mu.Unlock()
	s.control.close()
	for _, c := range streams {
		c.close()
	}
	s.share.drop()
	s.imports.drop()
}

func (g *guest) expire(why error) {
	g.mu.Lock()
	back := g.now != nil
	g.mu.Unlock()
	if back {
		return
	}
	g.failAll(fmt.Errorf("agent %s: %w: %w", g.id.Name, ErrLost, why), g.id.Name)
	g.agent.mu.Lock()
	g.mu.Lock()
	if g.now == nil && len(g.requests) == 0 && g.agent.guests[g.id] == g && len(g.over) == 0 {
		delete(g.agent.guests, g.id)
	}
	g.mu.Unlock()
	g.agent.mu.Unlock()
}

// failAll fails what the guest has under way and takes back its leases.
func (g *guest) failAll(why error, who string) {
	g.mu.Lock()
	var all []*incoming
	for _, in := range g.requests {
		all = append(all, in)
	}
	var leases []*lease
	for l := range g.leases {
		leases = append(leases, l)
	}
	g.leases = map[*lease]struct{}{}
	g.mu.Unlock()
	for _, in := range all {
		in.fail(why, who)
	}
	for _, l := range leases {
		l.end("the reader is gone")
	}
}

// tellHolder asks a holder for its lease back, if it is there to be asked.
func (a *Agent) tellHolder(holder ID, lease uint64) bool {
	agents.Lock()
	local := agents.by[holder]
	agents.Unlock()
	if local != nil {
		go local.revoked(a.id, lease)
		return true
	}
	a.mu.Lock()
	g := a.guests[holder]
	a.mu.Unlock()
	if g == nil {
		return false
	}
	g.mu.Lock()
	s := g.now
	g.mu.Unlock()
	// Without a connection it cannot be asked: it returns, or its lease ends.
	if s != nil {
		go func() { _ = s.control.send(fRevoke, 0, lease, nil) }()
	}
	return true
}

// handle takes a frame of the guest. An error ends the session.
func (g *guest) handle(s *inbound, f *frame) error {
	switch f.kind {
	case fLease:
		answer, err := g.lease(f)
		if err != nil {
			return s.control.send(fFail, f.call, 0, failPayload(err, g.agent.id.Name))
		}
		return s.control.send(fLeased, f.call, answer.id, answer.put)
	case fReturn:
		g.agent.mu.Lock()
		l := g.agent.leases[f.number]
		g.agent.mu.Unlock()
		if l != nil && l.holderID() == g.id {
			g.mu.Lock()
			delete(g.leases, l)
			g.mu.Unlock()
			g.agent.wg.Go(func() { l.end("returned") })
		}
	case fPost:
		var p post
		if err := p.get(f.payload); err != nil {
			return s.control.send(fFail, f.call, 0, failPayload(err, g.agent.id.Name))
		}
		g.post(s, f.call, f.number != 0, &p)
	case fTell:
		return g.tell(s, f)
	case fFail:
		if in := g.find(f.call); in != nil {
			who, err := parseFail(f.payload)
			g.agent.wg.Go(func() { in.fail(err, who) })
		}
	case fCancel:
		in := g.find(f.call)
		g.agent.wg.Go(func() {
			if in != nil {
				in.fail(fmt.Errorf("by %s: %w", g.id.Name, ErrCancelled), g.id.Name)
			}
			g.refuse(f.call, ErrCancelled)
			_ = s.control.send(fStopped, f.call, 0, nil)
		})
	case fAgain:
		if in := g.find(f.call); in != nil && in.again != nil {
			g.agent.wg.Go(func() { in.again(int(f.number)) })
		}
	case fAsk:
		return s.control.send(fBlob, f.call, 0, g.agent.Describe())
	default:
		return fmt.Errorf("frame of kind %d from an agent that dialed", f.kind)
	}
	return nil
}

func (g *guest) find(call uint64) *incoming {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.requests[call]
}

// refuse notes that a request is over, also if it was never seen: what comes of it later is dropped.
func (g *guest) refuse(call uint64, why error) {
	g.mu.Lock()
	if _, over := g.over[call]; !over && call >= g.low {
		g.over[call] = &ending{why: why, who: g.id.Name}
	}
	g.entered.Broadcast()
	g.mu.Unlock()
}

// ending is how a request ended. The initiator may ask again, if it lost the connection when it was told.
type ending struct {
	why    error // nil if all is well
	who    string
	landed int64
}

func (e *ending) say(s *inbound, call uint64) error {
	if e.why == nil {
		return s.control.send(fLanded, call, 0, nil)
	}
	return s.control.send(fFail, call, uint64(e.landed), failPayload(e.why, e.who))
}

type leased struct {
	id  uint64
	put []byte
}

// lease gives a lease, takes up one that was granted, or renews one.
func (g *guest) lease(f *frame) (leased, error) {
	r := reader{b: f.payload}
	granted, ttl := r.num(), time.Duration(r.num())
	caps := r.caps()
	descs := r.descs()
	if err := r.end(); err != nil {
		return leased{}, err
	}
	l, err := g.agent.leaseFor(g.id, granted, ttl, caps, descs)
	if err != nil {
		return leased{}, err
	}
	g.mu.Lock()
	g.leases[l] = struct{}{}
	g.mu.Unlock()
	var w writer
	w.num(uint64(l.slot + 1))
	l.mu.Lock()
	w.num(uint64(max(time.Until(l.until), 1)))
	l.mu.Unlock()
	return leased{l.id, w}, nil
}

// leaseFor is the lease of a holder: a new one, or the one with a number.
func (a *Agent) leaseFor(holder ID, granted uint64, ttl time.Duration, caps []capability, descs []Desc) (*lease, error) {
	ttl = min(ttl, a.cfg.Lease)
	if ttl <= 0 {
		return nil, fmt.Errorf("%w: a lease for %s", ErrLimit, ttl)
	}
	if granted == 0 {
		if len(descs) == 0 {
			return nil, fmt.Errorf("%w: a lease of nothing", ErrBounds)
		}
		if err := a.allowed(caps, descs); err != nil {
			return nil, err
		}
		return a.grant(holder, descs, ttl)
	}
	a.mu.Lock()
	l := a.leases[granted]
	a.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("%w: it was given back, or its time was over", ErrLease)
	}
	for _, d := range descs {
		if !l.covers(d) {
			return nil, fmt.Errorf("%w: it does not cover %d bytes at %d of region %d", ErrLease, d.Len, d.Off, d.Region)
		}
	}
	l.mu.Lock()
	if l.holder.Name == "" {
		l.holder = holder // a grant, taken up: it lasts as long as it was given for
		l.mu.Unlock()
	} else {
		same := l.holder == holder
		l.mu.Unlock()
		if !same {
			return nil, fmt.Errorf("%w: it belongs to %s", ErrLease, l.holderName())
		}
		if err := l.renew(ttl); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// allowed checks the keys of the regions that descriptors name.
func (a *Agent) allowed(caps []capability, descs []Desc) error {
	keys := map[uint32]bool{}
	for _, c := range caps {
		r, err := a.region(c.region)
		if err != nil {
			return err
		}
		if r.key != c.key {
			return fmt.Errorf("region %q: %w", r.name, ErrKey)
		}
		keys[c.region] = true
	}
	for _, d := range descs {
		if !keys[d.Region] {
			if _, err := a.region(d.Region); err != nil {
				return err
			}
			return fmt.Errorf("region %d: %w: none was given", d.Region, ErrKey)
		}
	}
	return nil
}

func (l *lease) holderID() ID {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holder
}

// incoming is a request of a guest.
type incoming struct {
	guest *guest
	call  uint64
	op    Op
	total int64
	class Class
	tells bool
	text  []byte
	land  *landing // of a write
	again func(i int)
	ready bool // land and again are set
	timer *time.Timer
	once  sync.Once
	done  chan struct{}
	ctx   context.Context // ends with the request
	end   context.CancelFunc
}

// post takes a request: a new one, or one that goes on after its connection was lost.
func (g *guest) post(s *inbound, call uint64, resumed bool, p *post) {
	a := g.agent
	g.mu.Lock()
	if p.low > g.low {
		g.low = p.low
		for n := range g.over {
			if n < g.low {
				delete(g.over, n)
			}
		}
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
		in = &incoming{guest: g, call: call, op: p.op, total: p.total, class: p.class, tells: p.tells, text: p.notice, done: make(chan struct{})}
		in.ctx, in.end = context.WithCancel(a.base)
		g.requests[call] = in
		in.timer = time.AfterFunc(p.timeout, func() {
			in.fail(fmt.Errorf("%w: %s were left when it came", ErrDeadline, p.timeout.Round(time.Millisecond)), g.id.Name)
		})
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
	g, a := in.guest, in.guest.agent
	if in.tells && a.inbox.full() {
		return fmt.Errorf("agent %s: %w: %d notices wait to be taken", a.id.Name, ErrLimit, maxWaiting)
	}
	if p.op == Read {
		if p.how == howTell {
			in.set(nil, nil)
			return nil // the initiator does the rest, and tells
		}
		return in.serveRead(s, p)
	}
	ctx := in.ctx
	g.mu.Lock()
	known := in.ready
	g.mu.Unlock()
	if !known {
		if err := a.allowed(p.caps, p.remote); err != nil {
			return err
		}
		if at := overlap(p.remote); at >= 0 {
			return fmt.Errorf("%w: descriptor %d", ErrOverlap, at)
		}
		l, err := a.destination(ctx, p.remote, p.total, p.how == howStream)
		if err != nil {
			return err
		}
		l.view.index()
		in.set(l, nil)
		select {
		case <-in.done: // it failed meanwhile
			l.close(ErrCancelled)
			return nil
		default:
		}
	}
	if p.how == howPull && known {
		return nil // the copy goes on
	}
	if p.how == howPull {
		s.imports.use()
		src, err := s.source(p, in.land.view.parts[0].at)
		if err != nil {
			s.imports.unuse()
			return err
		}
		if s.share.use() {
			defer s.share.unuse()
		}
		defer s.imports.unuse()
		in.land.still = true
		if err := in.land.copyFrom(ctx, &src, func(n int64) error { return a.gate.take(ctx, p.class, n) }); err != nil {
			if own := (*storageFailure)(nil); errors.Is(err, ErrStorage) && !errors.As(err, &own) {
				return &blamed{error: fmt.Errorf("memory of %s: %w", g.id.Name, err), who: g.id.Name} // it could not be read: its process is no more
			}
			return err
		}
		return in.finish()
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

// set tells the readers of streams where slices land.
func (in *incoming) set(l *landing, again func(i int)) {
	in.guest.mu.Lock()
	in.land, in.again, in.ready = l, again, true
	in.guest.entered.Broadcast()
	in.guest.mu.Unlock()
}

// destination makes the landing of a write into own regions.
func (a *Agent) destination(ctx context.Context, descs []Desc, total int64, sliced bool) (*landing, error) {
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
	}, total, sliced)
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
	s := g.now
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
	src, err := viewOf(len(p.remote), func(i int) Desc { return p.remote[i] }, func(id uint32) (*place, error) {
		r, err := a.region(id)
		if err != nil {
			return nil, err
		}
		return &place{mem: r.mem, store: r.store, region: r}, nil
	})
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
	err = send.all(in.ctx, p.have)
	if err == nil || errors.Is(err, ErrLost) || errors.Is(err, ErrCancelled) {
		if errors.Is(err, ErrLost) {
			g.detach(s, err)
		}
		return nil // the guest says when it has landed, or comes back, or its time is over
	}
	return err
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
		g.mu.Lock()
		_, over := g.over[f.call]
		old := over || f.call < g.low
		full := g.agent.inbox.full()
		if !old && !full {
			g.over[f.call] = &ending{}
		}
		g.mu.Unlock()
		if !old && full {
			return s.control.send(fFail, f.call, 0, failPayload(fmt.Errorf("agent %s: %w: %d notices wait to be taken", g.agent.id.Name, ErrLimit, maxWaiting), g.agent.id.Name))
		}
		if !old {
			g.agent.inbox.add(Notice{From: g.id, Data: text})
		}
		return s.control.send(fTold, f.call, 0, nil)
	}
	if in := g.find(f.call); in != nil {
		in.succeed()
		return nil
	}
	g.mu.Lock()
	how := g.over[f.call]
	g.mu.Unlock()
	if how == nil {
		how = &ending{why: fmt.Errorf("request %d: %w here", f.call, ErrAgent), who: g.id.Name}
	}
	return how.say(s, f.call)
}
