//go:build linux

package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/weft-fabric/weft/run/retry"
	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/auth"
	"github.com/weft-fabric/weft/run/transport/internal/frame"
	"github.com/weft-fabric/weft/run/transport/internal/socket"
)

// A stream that breaks is made again by the rank that made it. While a peer has other streams they carry its
// messages. A peer without any is either dead or out of reach: where its process ended, its host
// refuses connections, which takes a millisecond to find out; where nothing answers it is an outage, and the peer
// has Config.Outage to come back. Then everything that was not acknowledged is sent again.
const (
	// How often streams are looked after, and after how many retransmissions without an
	// answer one is given up: 0.6 s with Linux's first timeout of 0.2 s; and one that cannot be
	// made again, 25 s. A peer that does not read answers probes of its window, so a slow one is not lost.
	healthTime = 50 * time.Millisecond
	giveUp     = 2
	giveUpLast = 7

	// Where a peer has streams over other rails, those of a rail are given up once a packet that was sent again has no
	// answer for this time, or for two round trips: 0.3 to 0.4 s after the first. Answers come from the peer's kernel, so a
	// process that waits for a core is not taken for a lost rail; and a rail that was given up wrongly is back in a moment.
	railTime  = 100 * time.Millisecond
	checkTime = 250 * time.Millisecond // for a host to answer over a rail that may be lost

	redialFirst = 20 * time.Millisecond
	redialMost  = 400 * time.Millisecond
	attemptTime = time.Second // for a host to answer an attempt to connect

	refusals = 3 // of the same frame: it is no accident, and would be sent again for ever

	// A stream that is lost sooner than this after it was made is made again with a pause, which grows.
	briefTime = time.Second
)

// outage is how long a peer without streams is waited for.
func (e *Node) outage() time.Duration {
	if e.cfg.Outage == 0 {
		return OutageTime
	}
	return max(e.cfg.Outage, 0)
}

// report tells what happened to the links with a peer.
func (e *Node) report(ev transport.Event) {
	if ev.Time.IsZero() {
		ev.Time = time.Now()
	}
	if e.cfg.Event != nil {
		e.cfg.Event(ev)
	}
	if e.cfg.Log == nil {
		return
	}
	ok, last, missed := e.peers[ev.Peer].log.may(ev.Time)
	if !ok {
		return
	}
	args := []any{"rank", e.cfg.Rank, "peer", ev.Peer}
	if ev.Path != "" {
		args = append(args, "interface", ev.Path)
	}
	if ev.Conn != "" {
		args = append(args, "connection", ev.Conn)
	}
	if ev.Lasted > 0 {
		args = append(args, "after", ev.Lasted.Round(time.Millisecond))
	}
	if ev.Text != "" {
		args = append(args, "why", ev.Text)
	}
	if missed > 0 {
		args = append(args, "left out before", missed)
	}
	if last {
		args = append(args, "more", fmt.Sprintf("only counted for %s", chatTime))
	}
	e.cfg.Log.Warn(ev.Kind.String(), args...) // also what is back: who read that it was lost is to know
}

// ending is what the end of a stream means for its peer.
type ending struct {
	rest    []*Stream      // streams that are left
	altered bool           // it brought a frame that was changed on its way
	refused *frame.Refused // it brought a frame that makes no sense; nil if it did not
	often   bool           // streams of the peer end in one of these two ways too often
	same    bool           // too many frames were refused for the same reason
	brief   int            // streams in a row that did not last
	stalled time.Duration  // for how long nothing was acknowledged, though streams were made; 0 if it may go on
	stall   stall
}

// takeBack marks the pieces that a stream carried to be sent again.
func (c *carrier) takeBack(s *Stream) {
	for _, p := range c.window {
		if p != nil && p.s == s {
			p.s = nil
			c.again = append(c.again, p)
		}
	}
}

// strike takes a stream out, and counts how it ended. What it carried is to be sent again.
func (pr *Link) strike(s *Stream, why error) ending {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	out := ending{altered: errors.Is(why, auth.ErrAltered)}
	out.rest = slices.DeleteFunc(slices.Clone(pr.Streams()), func(x *Stream) bool { return x == s })
	out.refused, _ = errors.AsType[*frame.Refused](why)
	if pr.Numbered && !pr.e.closed.Load() {
		pr.streams.Store(&out.rest)
		pr.left = append(pr.left, s)
		pr.carrier.takeBack(s)
	}
	out.stalled = pr.stall.another(&pr.carrier, pr.e.outage(), s.born, time.Now())
	out.stall = pr.stall
	if out.altered || out.refused != nil {
		out.often = pr.altered.often(time.Now())
	}
	if out.refused != nil {
		if pr.refused != out.refused.What {
			pr.refused, pr.times = out.refused.What, 0
		}
		pr.times++
	}
	if pr.brief++; time.Since(s.born) > briefTime {
		pr.brief = 0
	}
	out.same, out.brief = pr.times >= refusals, pr.brief
	return out
}

// lose notes the end of a stream, and moves what it carried to the others.
func (pr *Link) lose(s *Stream, why error) {
	e := pr.e
	end := pr.strike(s, why)
	bye := pr.bye.Load()
	text := why.Error()
	if bye {
		text = "it closed its endpoint"
	}
	if end.altered {
		e.count.altered.Add(1)
	}
	switch {
	case e.closed.Load():
	case !pr.Numbered && end.refused != nil:
		pr.refuse(end.refused.What)
	case !pr.Numbered:
		pr.vanish(text)
	case bye:
		e.Later(func() {
			s.abandon()
			pr.discard(s)
			if len(end.rest) == 0 {
				pr.vanish(text)
			}
		})
	default:
		e.count.paths.Add(1)
		lost := &loss{pr: pr, ev: transport.Event{Time: time.Now(), Kind: transport.PathLost, Peer: pr.Rank, Path: e.rails[s.rail].Name,
			Conn: s.ends, Text: text}}
		if errors.Is(why, errReplaced) {
			lost.tell() // the other side noticed, and lives
		}
		e.Later(func() { pr.goOn(s, end, lost, why) })
	}
	e.WakeAll()
}

// goOn goes on without a stream that was lost: it sends what it carried over the others, and makes it anew. Or it gives the peer up.
func (pr *Link) goOn(s *Stream, end ending, lost *loss, why error) {
	e := pr.e
	s.abandon()
	pr.discard(s)
	if pr.givenUpFor(&end) {
		return
	}
	e.above.Renew(pr.Rank)
	if len(end.rest) == 0 {
		e.Later(func() {
			pr.lastHope(lost.ev.Text, errors.Is(why, errClosed) || errors.Is(why, syscall.ECONNRESET))
		})
	} else if !errors.Is(why, errReplaced) {
		e.Later(lost.soon)
	}
	pr.feed()
	pr.acknowledge(s) // what was told over the stream may not have come
	if e.dials(e.cfg.Rank, pr.Rank) {
		pr.redial(s.pair, s.number, lost, end.brief)
	}
}

// givenUpFor gives the peer up if the way in which a stream ended is a reason for that, and reports whether it is.
func (pr *Link) givenUpFor(end *ending) bool {
	mine := pr.e.cfg.Rank
	switch {
	case end.refused != nil && (end.same || end.often):
		pr.refuse(end.refused.What)
	case end.often:
		pr.vanishFor(fmt.Sprintf("its connections with rank %d bring altered frames more often than every %s: something between the hosts changes what they send",
			mine, AlterTime),
			&transport.Parted{Lives: true})
	case end.stalled > 0:
		pr.vanishFor(fmt.Sprintf("%s; %d connections were lost in %s, WEFT_OUTAGE says how long to wait",
			end.stall.between(mine, pr.Rank), end.stall.lost, end.stalled.Round(100*time.Millisecond)),
			&transport.Parted{Lives: true})
	default:
		return false
	}
	return true
}

// discard closes a stream that is none of the peer's any more.
func (pr *Link) discard(s *Stream) {
	s.dispose()
	pr.mu.Lock()
	defer pr.mu.Unlock()
	pr.left = slices.DeleteFunc(pr.left, func(x *Stream) bool { return x == s })
}

// errClosed is a stream that its peer, or its peer's host, closed.
var errClosed = errors.New("connection closed by the other side")

// errReplaced is a stream in whose place the peer made another.
var errReplaced = errors.New("the other side made a new connection")

// loss is a stream that was lost. It is told when it is known that the peer has not ended, which is told otherwise.
type loss struct {
	pr   *Link
	ev   transport.Event
	once sync.Once
}

const tellTime = 100 * time.Millisecond

func (l *loss) soon() {
	select {
	case <-l.pr.e.ctx.Done():
	case <-time.After(tellTime):
		if l.pr.Alive() == nil && !l.pr.bye.Load() {
			l.tell()
		}
	}
}

func (l *loss) tell() { l.once.Do(func() { l.pr.e.report(l.ev) }) }

// Later runs f unless the node is closed.
func (e *Node) Later(f func()) {
	e.lmu.Lock()
	defer e.lmu.Unlock()
	if !e.closed.Load() {
		e.wg.Go(f)
	}
}

// lastHope waits for a peer without any stream. closed says that the last one was closed by the peer or its host, as
// it is when its process ends: then it is asked first whether it is still there.
func (pr *Link) lastHope(why string, closed bool) {
	e := pr.e
	pr.hoping.Lock() // of several streams that broke at once the first waits for all
	defer pr.hoping.Unlock()
	began := time.Now()
	end := began.Add(e.outage())
	told, pauses := false, retry.Pause(redialFirst, redialMost)
	for e.ctx.Err() == nil && pr.Alive() == nil && len(pr.Streams()) == 0 {
		if !closed && !told {
			told = true
			pr.isDown(began, fmt.Sprintf("%s; waiting %s for it", why, e.outage()))
		}
		refused, came := pr.refuses()
		if came {
			continue
		}
		if refused {
			pr.vanish(why)
			return
		}
		closed = false
		if time.Now().After(end) {
			pr.vanishFor(fmt.Sprintf("no link with it for %s (%s); WEFT_OUTAGE says how long to wait", e.outage(), why), &transport.Parted{})
			return
		}
		select {
		case <-e.ctx.Done():
		case <-pr.came:
		case <-time.After(min(pauses.Next(), time.Until(end)+time.Millisecond)):
		}
	}
}

// isDown reports an outage, unless it is over.
func (pr *Link) isDown(began time.Time, text string) {
	pr.telling.Lock()
	defer pr.telling.Unlock()
	pr.mu.Lock()
	out := len(pr.Streams()) == 0 && pr.down.IsZero()
	if out {
		pr.down = began
	}
	pr.mu.Unlock()
	if out {
		pr.e.count.outages.Add(1)
		pr.e.report(transport.Event{Time: began, Kind: transport.Outage, Peer: pr.Rank, Text: text})
	}
}

// hasStream ends an outage with a stream that was made, if nothing waits to be acknowledged. Else an acknowledgement
// ends it: a link may let the few bytes through that make a stream, and nothing else.
func (pr *Link) hasStream() {
	pr.mu.Lock()
	waits := len(pr.carrier.window) > 0
	pr.mu.Unlock()
	if !waits {
		pr.isBack()
	}
}

// isBack reports the end of an outage, if there was one.
func (pr *Link) isBack() {
	pr.telling.Lock()
	defer pr.telling.Unlock()
	pr.mu.Lock()
	down := pr.down
	pr.down = time.Time{}
	pr.mu.Unlock()
	if !down.IsZero() {
		d := time.Since(down)
		pr.e.count.outageTime.Add(uint64(d / time.Millisecond))
		pr.e.report(transport.Event{Kind: transport.OutageOver, Peer: pr.Rank, Lasted: d})
	}
}

// refuses says whether a peer's host answers and its process does not: it has ended. came says that a stream was made meanwhile.
func (pr *Link) refuses() (refused, came bool) {
	e := pr.e
	pairs := e.pairsWith(pr.Rank)
	pr.mu.Lock()
	youngest := pr.youngest
	pr.mu.Unlock()
	ctx, cancel := context.WithTimeout(e.ctx, attemptTime)
	defer cancel()
	answers := make(chan error, len(pairs))
	for _, p := range pairs {
		go func() {
			conn, _, err := e.dialOnce(ctx, pr.Rank, lane{mine: uint32(p[0]), yours: uint32(p[1]), kind: laneProbe, attempt: youngest})
			if err == nil {
				conn.Close()
			}
			answers <- err
		}()
	}
	for range pairs {
		select {
		case err := <-answers:
			if err == nil || pr.unwanted(err) {
				return false, false
			}
			refused = refused || isRefused(err)
		case <-pr.came:
			return false, true
		}
	}
	return refused, false
}

// probed takes a peer's word that it has lost all streams with this rank up to an attempt. Younger ones, which were made
// while that word was on its way, are not lost: if they were given up, too, two ranks on busy hosts could go on so without end.
func (pr *Link) probed(attempt uint32) {
	if !pr.Numbered || pr.bye.Load() {
		return
	}
	for _, s := range pr.Streams() {
		if s.attempt <= attempt {
			s.fail(errors.New("the other side lost all connections"))
		}
	}
}

// redial brings a stream back, however long that takes. brief is how many before it did not last.
func (pr *Link) redial(pair, number int, lost *loss, brief int) {
	e := pr.e
	p, first := e.pairsWith(pr.Rank)[pair], redialFirst
	if brief > 1 {
		first = redialFirst << min(brief-2, 8)
	}
	pauses := retry.Pause(first, redialMost)
	if brief > 1 {
		_ = pauses.Wait(e.ctx)
	}
	for pr.Alive() == nil && e.ctx.Err() == nil {
		// A host that answers is given more time: it may be busy.
		ctx, cancel := context.WithTimeout(e.ctx, dialTime)
		l := pr.attempt(p, number)
		conn, secret, err := e.dialOnce(ctx, pr.Rank, l)
		cancel()
		if err == nil {
			if e.add(conn, pr, p[0], l, &secret, true) == nil {
				e.count.dialed.Add(1)
				lost.tell()
				e.report(transport.Event{Kind: transport.PathBack, Peer: pr.Rank, Path: e.rails[p[0]].Name, Lasted: time.Since(lost.ev.Time)})
				return
			}
			conn.Close()
		} else if pr.unwanted(err) {
			return
		}
		_ = pauses.Wait(e.ctx)
	}
}

// watchHealth gives up streams whose packets are not answered.
func (e *Node) watchHealth() {
	t := time.NewTicker(healthTime)
	defer t.Stop()
	for {
		select {
		case <-e.ctx.Done():
			return
		case <-t.C:
		}
		for _, pr := range e.peers {
			for _, s := range pr.Streams() {
				n, trip := s.unanswered()
				switch {
				case n == 0:
					s.quiet = time.Time{}
				case s.quiet.IsZero():
					s.quiet = time.Now()
				}
				switch {
				case pr.Numbered && n > 0 && time.Since(s.quiet) >= max(railTime, 2*trip) && pr.hasOther(s.pair):
					pr.loseRail(s.pair, s, fmt.Errorf("packets without an answer for %s, while other rails are there",
						time.Since(s.quiet).Round(time.Millisecond)))
				case pr.Numbered && n >= giveUp, n >= giveUpLast:
					s.fail(fmt.Errorf("%d packets in a row without an answer", n))
				}
			}
		}
	}
}

// hasOther reports whether a peer has streams over other rails than a pair of them.
func (pr *Link) hasOther(pair int) bool {
	return slices.ContainsFunc(pr.Streams(), func(s *Stream) bool { return s.pair != pair && !s.lost.Load() })
}

// loseRail gives up all streams of a pair of rails of which one has no answers, so that nothing more goes that way, tells the peer over
// another rail, and looks after the same rail's streams with the others. If it was a false alarm, they are made again at once.
func (pr *Link) loseRail(pair int, s *Stream, why error) {
	e := pr.e
	last := pr.failRail(pair, ^uint32(0), why)
	e.Later(func() {
		ctx, cancel := context.WithTimeout(e.ctx, dialTime)
		defer cancel()
		for i, p := range e.pairsWith(pr.Rank) {
			if i == pair {
				continue
			}
			conn, _, err := e.dialOnce(ctx, pr.Rank, lane{mine: uint32(p[0]), yours: uint32(p[1]), number: uint32(pair), kind: laneRail,
				attempt: last})
			if err == nil {
				conn.Close()
				return
			}
		}
	})
	e.checkRail(s.rail, pr)
}

// failRail ends the streams of a pair of rails up to an attempt, and gives the last attempt among them.
func (pr *Link) failRail(pair int, attempt uint32, why error) (last uint32) {
	for _, s := range pr.Streams() {
		if s.pair == pair && s.attempt <= attempt {
			last = max(last, s.attempt)
			s.fail(why)
		}
	}
	return last
}

// toldOfRail takes a peer's word that it has lost the streams of a pair of rails up to an attempt. Younger ones are not lost.
func (pr *Link) toldOfRail(pair int, attempt uint32) {
	if !pr.Numbered || pr.bye.Load() || !pr.hasOther(pair) {
		return
	}
	for _, s := range pr.Streams() {
		if s.pair == pair && s.attempt <= attempt {
			pr.failRail(pair, attempt, errRail)
			pr.e.checkRail(s.rail, pr)
			return
		}
	}
}

// errRail is a stream whose peer has no answers over its rail.
var errRail = errors.New("the other side has no answers over this rail")

// checkRail tries one of this rank's rails with every peer but one that has streams over it and over others. Where nothing answers,
// the streams are given up before anybody waits for them.
func (e *Node) checkRail(rail int, but *Link) {
	for _, pr := range e.peers {
		if pr == but || !pr.Numbered || pr.Alive() != nil {
			continue
		}
		all := pr.Streams() // streams come and go meanwhile
		i := slices.IndexFunc(all, func(s *Stream) bool { return s.rail == rail })
		if i < 0 {
			continue
		}
		pair := all[i].pair
		if !pr.hasOther(pair) {
			continue
		}
		pr.mu.Lock()
		youngest := pr.youngest
		pr.mu.Unlock()
		p := e.pairsWith(pr.Rank)[pair]
		e.Later(func() {
			ctx, cancel := context.WithTimeout(e.ctx, dialTime)
			defer cancel()
			conn, _, err := e.dialOnce(ctx, pr.Rank, lane{mine: uint32(p[0]), yours: uint32(p[1]), kind: laneCheck})
			if err == nil {
				conn.Close()
				return
			}
			if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() && ctx.Err() == nil && pr.hasOther(pair) {
				pr.failRail(pair, youngest, fmt.Errorf("nothing answers over this rail: %w", err))
			}
		})
	}
}

// unanswered is how often the oldest packet was sent again, or the peer's window
// was asked for (also where nothing leaves the host any more); an answer of any
// kind sets it back to zero. The time is that of a round trip.
func (s *Stream) unanswered() (n uint8, trip time.Duration) {
	if s.lost.Load() {
		return 0, 0
	}
	s.amu.Lock()
	defer s.amu.Unlock()
	if s.disposed {
		return 0, 0
	}
	if s.conn == nil {
		return socket.Unanswered(s.fd)
	}
	if raw, err := beneath(s.conn).SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { n, trip = socket.Unanswered(int(fd)) })
	}
	return n, trip
}
