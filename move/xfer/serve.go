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

	"github.com/weft-fabric/weft/run/transport/auth"
	"github.com/weft-fabric/weft/run/transport/shm"
)

// guest is an agent that posts requests here. It outlives its connections for a moment, so that requests go on
// when it comes back.
type guest struct {
	agent *Agent
	id    ID

	mu       sync.Mutex
	entered  sync.Cond           // a request came, or a session changed
	now      map[string]*inbound // its present sessions, one for each network; those without a connection are missing
	requests map[uint64]*incoming
	over     map[uint64]*ending     // requests that ended
	low      uint64                 // those below are over for the guest, too
	waits    map[string]*time.Timer // until its requests over a network fail for want of a connection
	timer    *time.Timer            // until it is forgotten
	until    time.Time              // the last deadline of its requests
	leases   map[*lease]struct{}
}

// inbound is a session of a guest.
type inbound struct {
	guest   *guest
	network string // "unix", "tcp", "ucx", or "ask" for one that only asks
	name    [16]byte
	control *conn
	streams []*conn
	share   *mapping // the guest's
	slots   *[leaseSlots]leaseSlot
	imports imports // the guest's memory of GPUs
	pid     int     // of the guest, if its memory can be read
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
	if err == nil && f.Kind != fHello {
		err = fmt.Errorf("it begins with a frame of kind %d", f.Kind)
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

// guest finds or makes a guest. One of a later life (life.go) ends the earlier ones of its name.
func (a *Agent) guest(id ID) (*guest, error) {
	a.mu.Lock()
	var old []*guest
	for _, g := range a.guests {
		if g.id.Name != id.Name || g.id == id {
			continue
		}
		if err := a.lives.follows(id, g.id, g.there()); err != nil {
			a.mu.Unlock()
			return nil, err
		}
		old = append(old, g)
	}
	for _, g := range old {
		a.lives.end(g.id)
		delete(a.guests, g.id)
	}
	g := a.guests[id]
	if g == nil {
		g = &guest{agent: a, id: id, now: map[string]*inbound{}, waits: map[string]*time.Timer{}, requests: map[uint64]*incoming{},
			over: map[uint64]*ending{}, leases: map[*lease]struct{}{}}
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
	var g *guest
	err := a.unlessThere(func() (err error) {
		g, err = a.guest(h.from)
		return err
	})
	if err != nil {
		return err
	}
	_, unix := c.nc.(*net.UnixConn)
	s := &inbound{guest: g, network: h.network(unix), name: h.session, control: c}
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
			if s.slots, err = tableAt(mem, h.slots); err != nil {
				s.share.drop()
				return err
			}
			flags |= welcomeMapped
		}
	}
	if unix && readable(h.pid, f.Call, f.Number) == nil {
		s.pid = h.pid
		flags |= welcomePulls
	}
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
	var s *inbound
	for _, x := range g.now {
		if x.name == h.session {
			s = x
		}
	}
	if s == nil || h.stream != len(s.streams) {
		g.mu.Unlock()
		return fmt.Errorf("%w: stream %d of a session that is not the present one of %s", ErrLost, h.stream, h.from)
	}
	over := h.flags&helloUCX != 0
	if !over {
		s.streams = append(s.streams, c)
	}
	g.mu.Unlock()
	err := c.send(fWelcome, 0, 0, nil)
	if over && err == nil {
		if err = a.meetUCX(c); err == nil {
			g.mu.Lock()
			s.streams = append(s.streams, c)
			g.mu.Unlock()
			err = c.send(fWelcome, 0, 0, nil)
		}
	}
	c.src = whole(c.nc)
	for err == nil {
		var f frame
		if err = c.next(&f); err == nil && f.Kind != fData {
			err = fmt.Errorf("frame of kind %d on a stream", f.Kind)
		}
		if err == nil {
			l := g.landing(s, f.Call)
			err = c.slice(&f, l, func(call, i uint64) error { return s.again(l, call, i) })
		}
	}
	g.detach(s, err)
	return nil
}

// meetUCX lets the frames of a guest's stream go over UCX.
func (a *Agent) meetUCX(c *conn) error {
	ctx, cancel := context.WithTimeout(a.base, auth.Timeout)
	defer cancel()
	c.greet = ctx
	stop := context.AfterFunc(ctx, readEnd{c}.interrupt)
	err := c.overUCX(ctx, 1)
	c.greet = nil
	if !stop() && err == nil {
		err = ctx.Err()
	}
	return err
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

// attach makes a session the guest's present one of its network.
func (g *guest) attach(s *inbound) {
	g.mu.Lock()
	old := g.now[s.network]
	g.now[s.network] = s
	if t := g.waits[s.network]; t != nil {
		t.Stop()
		delete(g.waits, s.network)
	}
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

// detach ends a session. If no other of its network comes in time, the guest's requests over it fail.
func (g *guest) detach(s *inbound, why error) {
	g.mu.Lock()
	if s.lost {
		g.mu.Unlock()
		return
	}
	s.lost = true
	streams := s.streams
	if g.now[s.network] == s {
		delete(g.now, s.network)
		g.waits[s.network] = time.AfterFunc(outage*8/10, func() { g.expire(s.network, why) })
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

// expire fails the requests over a network whose session did not come back. Leases stay while there is another.
func (g *guest) expire(network string, why error) {
	g.mu.Lock()
	back, others := g.now[network] != nil, len(g.now) > 0
	g.mu.Unlock()
	if back {
		return
	}
	g.fail(func(in *incoming) bool { return in.network == network }, !others, fmt.Errorf("agent %s: %w: %w", g.id.Name, ErrLost, why),
		g.id.Name)
	g.mu.Lock()
	delete(g.waits, network)
	wait := max(remember, time.Until(g.until))
	if len(g.over) == 0 {
		wait = 0
	}
	if len(g.now) == 0 && g.agent.base.Err() == nil {
		if g.timer != nil {
			g.timer.Stop()
		}
		g.timer = time.AfterFunc(wait, g.drop)
	}
	g.mu.Unlock()
}

// remember is how long a guest that is gone is known: one that was stopped and comes back asks how its requests ended.
const remember = time.Hour

// drop forgets a guest that did not come back.
func (g *guest) drop() {
	a := g.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.now) == 0 && len(g.requests) == 0 && a.guests[g.id] == g {
		delete(a.guests, g.id)
	}
}

// failAll fails what the guest has under way and takes back its leases.
func (g *guest) failAll(why error, who string) {
	g.mu.Lock()
	for _, t := range g.waits {
		t.Stop()
	}
	if g.timer != nil {
		g.timer.Stop()
	}
	g.mu.Unlock()
	g.fail(func(*incoming) bool { return true }, true, why, who)
}

// fail fails some requests of the guest, and takes back its leases if it is to.
func (g *guest) fail(which func(*incoming) bool, take bool, why error, who string) {
	g.mu.Lock()
	var some []*incoming
	for _, in := range g.requests {
		if which(in) {
			some = append(some, in)
		}
	}
	var leases []*lease
	if take {
		for l := range g.leases {
			leases = append(leases, l)
		}
		g.leases = map[*lease]struct{}{}
	}
	g.mu.Unlock()
	for _, in := range some {
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
	defer g.mu.Unlock()
	// Without a connection it cannot be asked: it returns, or its lease ends.
	for _, s := range g.now {
		go func() { _ = s.control.send(fRevoke, 0, lease, nil) }()
	}
	return true
}

// handle takes a frame of the guest. An error ends the session.
func (g *guest) handle(s *inbound, f *frame) error {
	switch f.Kind {
	case fLease:
		answer, err := g.lease(f)
		if err != nil {
			return s.control.send(fFail, f.Call, 0, failPayload(err, g.agent.id.Name))
		}
		return s.control.send(fLeased, f.Call, answer.id, answer.put)
	case fReturn:
		g.agent.mu.Lock()
		l := g.agent.leases[f.Number]
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
			g.refuse(f.Call, err) // slices of it may be on their way
			return s.control.send(fFail, f.Call, 0, failPayload(err, g.agent.id.Name))
		}
		g.post(s, f.Call, f.Number != 0, &p)
	case fTell:
		return g.tell(s, f)
	case fFail:
		if in := g.find(f.Call); in != nil {
			who, err := parseFail(f.payload)
			g.agent.wg.Go(func() { in.fail(err, who) })
		}
	case fCancel:
		in := g.find(f.Call)
		g.agent.wg.Go(func() {
			if in != nil {
				in.fail(fmt.Errorf("by %s: %w", g.id.Name, ErrCancelled), g.id.Name)
			}
			g.refuse(f.Call, ErrCancelled)
			_ = s.control.send(fStopped, f.Call, 0, nil)
		})
	case fAgain:
		g.mu.Lock()
		var again func(i int)
		if in := g.requests[f.Call]; in != nil {
			again = in.again
		}
		g.mu.Unlock()
		if again != nil {
			g.agent.wg.Go(func() { again(int(f.Number)) })
		}
	case fAsk:
		return s.control.send(fBlob, f.Call, 0, g.agent.Describe())
	default:
		return fmt.Errorf("frame of kind %d from an agent that dialed", f.Kind)
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
