// Package observe lets the launchers of a job's hosts detect that one of them is gone.
// It drives package member's machine, the same one as in the simulation, with a clock
// and datagrams, and reports what it finds.
//
//	         list of hosts ◄── epochs ◄── the coordinator ◄── Event.Report
//	               │                                              ▲
//	datagrams ─► Observer ─► member.Machine ─► Suspected, Died ───┘
//	    ▲            │                             │ known to every launcher within milliseconds
//	    └────────────┴──── the other launchers ◄──────┘
//
// Each host sends a datagram to four others per interval, whatever the number of hosts.
// The host list comes from the coordinator's epochs, never from a datagram.
//
// # Authentication
//
// Datagrams carry a MAC under a key derived from the job's secret, name their receiver,
// and are numbered; see packet.go. Forged, repeated and misdirected ones are dropped and
// counted.
//
// # Reports
//
// Every launcher learns of every loss. It reports a lost host to the coordinator only if
// it is one of that host's observers, has received from it before, and still receives
// from another host. A launcher that is cut off therefore reports nobody. If a firewall
// drops all datagrams, hosts are lost when their leases end.
package observe

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weft-fabric/weft/run/internal/member"
)

// Coordinator is the id under which machines know the coordinator. It takes no
// datagrams: what is meant for it goes through Config.Ask.
const Coordinator = member.Nobody - 1

// Host is a launcher as the others reach it.
type Host struct {
	ID   member.ID // of the launcher's process; see NewID
	Addr netip.AddrPort
}

// NewID draws the id of a launcher's process. Of 10,000 hosts two have the same in
// one job of fifty; Update leaves both out, and their leases have to do.
func NewID() member.ID { return member.ID(rand.Uint32() >> 1) }

// Config says who observes, and over what.
type Config struct {
	ID     member.ID
	Secret string       // of the job: those that have it are believed
	Conn   *net.UDPConn // the launcher's socket; Close closes it
	Member member.Config

	// Ask asks the coordinator for a sign of life. It is called in a goroutine of
	// its own, one at a time, while a host is suspect; nil is never answered.
	Ask func(context.Context) error

	// Tell hears what happens, one call at a time. It must not wait for anything.
	Tell func(Event)
}

// Event is news of a host.
type Event struct {
	Kind   member.Kind
	ID     member.ID
	Epoch  uint64 // of the list that was valid then
	Report bool   // Died: this launcher tells the coordinator
}

// Counters are numbers that only grow.
type Counters struct {
	Sent, Received uint64
	SentBytes      uint64 // without headers of UDP and IP
	Forged         uint64 // not of this job or not for this process: wrong secret, damage, redirection
	Garbled        uint64 // of this job, and without a message
	Repeated       uint64 // came before, or more than 64 late
	Unlisted       uint64 // of a process that the list does not have
	Dropped        uint64 // came faster than they were handled
	Unsent         uint64 // the system did not take them: no route, full queue
	Asked          uint64 // questions to the coordinator
	Stalled        uint64 // times that this launcher did not run for two intervals; silence of others does not count then
	Withheld       uint64 // losses that this launcher saw and may not report
	Heard          uint64 // hosts, when their first datagram since they were listed comes
}

// Observer is a launcher's part in observing.
type Observer struct {
	cfg   Config
	began time.Time

	packets chan []byte
	inputs  chan func()
	done    chan struct{}
	once    sync.Once
	wg      sync.WaitGroup
	ctx     context.Context
	cancel  context.CancelFunc

	// The loop's own.
	m        *member.Machine
	seal     *sealer
	addrs    map[member.ID]netip.AddrPort
	sent     map[member.ID]uint64 // numbers used
	came     map[member.ID]*window
	heard    map[member.ID]member.Time // the latest datagram of each
	owed     map[member.ID]bool        // lost hosts that this launcher observes and has not reported
	withheld map[member.ID]bool        // of them, those that are counted
	out      []byte
	asking   bool

	count struct {
		sent, received, sentBytes, forged, garbled, repeated, unlisted, dropped, unsent, asked, stalled, withheld, heard atomic.Uint64
	}
}

// Open begins to observe. There is nobody to observe before the first Update.
func Open(cfg Config) (*Observer, error) {
	o := &Observer{cfg: cfg, began: time.Now(), packets: make(chan []byte, 1024), inputs: make(chan func(), 16), done: make(chan struct{}),
		seal: newSealer(cfg.Secret), addrs: map[member.ID]netip.AddrPort{}, sent: map[member.ID]uint64{}, came: map[member.ID]*window{},
		heard: map[member.ID]member.Time{}, owed: map[member.ID]bool{}, withheld: map[member.ID]bool{}}
	if cfg.Conn == nil || cfg.ID >= Coordinator {
		return nil, fmt.Errorf("observe: launcher %d with socket %v; ids are below %d and a socket is needed", cfg.ID, cfg.Conn, Coordinator)
	}
	if most := maxMessage / 12; cfg.Member.Batch > most {
		return nil, fmt.Errorf("observe: %d rumours in a message; %d fit into a datagram", cfg.Member.Batch, most)
	}
	if o.cfg.Tell == nil {
		o.cfg.Tell = func(Event) {}
	}
	var err error
	if o.m, err = member.New(cfg.Member, cfg.ID, uint64(cfg.ID), uint64(cfg.ID), 0, nil); err != nil {
		return nil, fmt.Errorf("observe: %w", err)
	}
	o.ctx, o.cancel = context.WithCancel(context.Background())
	o.wg.Add(2)
	go func() { defer o.wg.Done(); o.read() }()
	go func() { defer o.wg.Done(); o.loop() }()
	return o, nil
}

// Close ends it. The other launchers notice, unless an epoch without this one came before.
func (o *Observer) Close() error {
	o.once.Do(func() { close(o.done) })
	o.cancel()
	err := o.cfg.Conn.Close()
	o.wg.Wait()
	return err
}

// Update takes the list of an epoch, by its number. All launchers must be given the
// same list under the same number; a number that is not above the latest is ignored.
func (o *Observer) Update(number uint64, hosts []Host) {
	list := slices.Clone(hosts)
	o.do(func() { o.update(number, list) })
}

// do has the loop run f.
func (o *Observer) do(f func()) {
	select {
	case o.inputs <- f:
	case <-o.done:
	}
}

// Counters are the numbers so far.
func (o *Observer) Counters() Counters {
	c := &o.count
	return Counters{c.sent.Load(), c.received.Load(), c.sentBytes.Load(), c.forged.Load(), c.garbled.Load(), c.repeated.Load(),
		c.unlisted.Load(), c.dropped.Load(), c.unsent.Load(), c.asked.Load(), c.stalled.Load(), c.withheld.Load(), c.heard.Load()}
}

func (o *Observer) now() member.Time { return time.Since(o.began) }

// read takes datagrams off the socket as they come, so that they do not wait there
// while the loop is busy.
func (o *Observer) read() {
	buf := make([]byte, 65536)
	for {
		n, _, err := o.cfg.Conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			select {
			case <-o.done:
				return
			default:
			}
			if n == 0 { // such as an answer that nobody listens at an address we sent to
				time.Sleep(time.Millisecond)
				continue
			}
		}
		select {
		case o.packets <- slices.Clone(buf[:n]):
		default:
			o.count.dropped.Add(1)
		}
	}
}

// loop gives the machine its inputs one by one. What has come counts before the
// time that has passed.
func (o *Observer) loop() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	last := o.now()
	for {
		now := o.now()
		if now-last > 2*o.cfg.Member.Interval {
			o.count.stalled.Add(1)
		}
		last = now
		o.flush()
		select {
		case p := <-o.packets:
			o.take(p)
			continue
		default:
		}
		wait := min(o.m.Next()-o.now(), o.cfg.Member.Interval)
		if wait <= 0 {
			o.m.Tick(o.now())
			continue
		}
		timer.Reset(wait)
		select {
		case p := <-o.packets:
			o.take(p)
		case f := <-o.inputs:
			f()
		case <-timer.C:
		case <-o.done:
			return
		}
	}
}

// update takes a list.
func (o *Observer) update(number uint64, hosts []Host) {
	slices.SortFunc(hosts, func(a, b Host) int { return int(int64(a.ID) - int64(b.ID)) })
	e := &member.Epoch{Number: number, Leader: Coordinator, Observers: o.cfg.Member.Observers}
	addrs := make(map[member.ID]netip.AddrPort, len(hosts))
	for i, h := range hosts {
		if h.ID >= Coordinator || i > 0 && hosts[i-1].ID == h.ID || i+1 < len(hosts) && hosts[i+1].ID == h.ID {
			continue
		}
		e.Members = append(e.Members, member.Member{ID: h.ID, Life: uint64(h.ID)})
		addrs[h.ID] = h.Addr
	}
	if old := o.m.Epoch(); old != nil && number <= old.Number {
		return
	}
	o.addrs = addrs
	gone := func(id member.ID) bool { _, ok := addrs[id]; return !ok }
	maps.DeleteFunc(o.sent, func(id member.ID, _ uint64) bool { return gone(id) })
	maps.DeleteFunc(o.came, func(id member.ID, _ *window) bool { return gone(id) })
	maps.DeleteFunc(o.heard, func(id member.ID, _ member.Time) bool { return gone(id) })
	clear(o.owed) // who is still listed is called lost again, or is not
	clear(o.withheld)
	o.m.Decided(o.now(), e)
}

// take takes a datagram.
func (o *Observer) take(p []byte) {
	number, msg, err := o.seal.open(o.cfg.ID, p)
	switch err {
	case nil:
	case errGarbled:
		o.count.garbled.Add(1)
		return
	default:
		o.count.forged.Add(1)
		return
	}
	if _, ok := o.addrs[msg.From]; !ok || msg.Life != uint64(msg.From) || msg.From == o.cfg.ID {
		o.count.unlisted.Add(1)
		return
	}
	w := o.came[msg.From]
	if w == nil {
		w = &window{}
		o.came[msg.From] = w
	}
	if !w.take(number) {
		o.count.repeated.Add(1)
		return
	}
	o.count.received.Add(1)
	now := o.now()
	if _, before := o.heard[msg.From]; !before {
		o.count.heard.Add(1)
	}
	o.heard[msg.From] = now
	if between(msg.Verb) {
		o.m.Message(now, &msg)
	}
}

// between reports whether a message goes from launcher to launcher. Lists, and requests
// to join and leave, are the coordinator's.
func between(v member.Verb) bool {
	switch v {
	case member.Beat, member.Ping, member.Ask, member.Answer, member.Rumour, member.Notice:
		return true
	}
	return false
}

// flush sends what the machine has to say and tells what it found out.
func (o *Observer) flush() {
	r := o.m.Ready()
	for i := range r.Messages {
		o.send(r.Messages[i].To, &r.Messages[i].Message)
	}
	for _, e := range r.Events {
		o.happened(e)
	}
	o.m.Advance()
	for id := range o.owed {
		o.report(id)
	}
}

// send puts a message on the wire, or asks the coordinator. It does not wait, and messages may be lost.
func (o *Observer) send(to member.ID, m *member.Message) {
	if to == Coordinator {
		if m.Verb == member.Ping {
			o.ask()
		}
		return
	}
	addr, ok := o.addrs[to]
	if !ok || !between(m.Verb) {
		return
	}
	o.sent[to]++
	o.out = o.seal.seal(o.out[:0], to, o.sent[to], m)
	if _, err := o.cfg.Conn.WriteToUDPAddrPort(o.out, addr); err != nil {
		o.count.unsent.Add(1)
		return
	}
	o.count.sent.Add(1)
	o.count.sentBytes.Add(uint64(len(o.out)))
}

// ask asks the coordinator. Its answer is what a datagram of the machine's decider
// would be: the trouble is not this launcher's own.
func (o *Observer) ask() {
	if o.asking || o.cfg.Ask == nil {
		return
	}
	o.asking = true
	o.count.asked.Add(1)
	o.wg.Add(1)
	go func() {
		defer o.wg.Done()
		ctx, cancel := context.WithTimeout(o.ctx, o.cfg.Member.Timeout)
		defer cancel()
		err := o.cfg.Ask(ctx)
		o.do(func() {
			o.asking = false
			if e := o.m.Epoch(); err == nil && e != nil {
				o.m.Message(o.now(), &member.Message{Verb: member.Beat, From: Coordinator, EpochNumber: e.Number})
			}
		})
	}()
}

// happened takes news from the machine.
func (o *Observer) happened(e member.Event) {
	switch e.Kind {
	case member.Died:
		if slices.Contains(o.m.Epoch().ObserversOf(e.ID), o.cfg.ID) {
			o.owed[e.ID] = true
			return // it is told with its report, or when it is known that there will be none
		}
	case member.Recovered, member.Returned:
		delete(o.owed, e.ID)
	case member.Suspected, member.Isolated:
	default:
		return // epochs are told by the coordinator
	}
	o.cfg.Tell(Event{Kind: e.Kind, ID: e.ID, Epoch: o.m.Epoch().Number})
}

// report tells of a lost host that this launcher observes: with a report, or once
// without while this launcher may not report.
func (o *Observer) report(id member.ID) {
	_, before := o.heard[id]
	hears, now := false, o.now()
	for other, at := range o.heard {
		hears = hears || other != id && now-at < o.cfg.Member.Timeout
	}
	ev := Event{Kind: member.Died, ID: id, Epoch: o.m.Epoch().Number, Report: before && hears}
	switch {
	case ev.Report:
		delete(o.owed, id)
	case o.withheld[id]:
		return
	default:
		o.withheld[id] = true
		o.count.withheld.Add(1)
	}
	o.cfg.Tell(ev)
}
