// Package simulation runs the machines of package member in a world of its own:
// a network that loses and delays, clocks that drift, processes that die, stop
// and come back, and a store that decides. One goroutine, integer time, one
// seeded generator: the same settings give the same bytes.
//
//	          ┌──── faults ────┐
//	timers ─► machine ─► loss, latency, partitions ─► machine ─► events ─► Report
//	             └─ proposal ─► store (compare and set) ─┘
//
// 10,000 ranks take a sixth to a quarter of the time they simulate, on one core:
// 280,000 events for a second of theirs, each of which finds its machine outside
// the nearer caches (BenchmarkTenThousand).
package simulation

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/weft-fabric/weft/model/heap"
	"github.com/weft-fabric/weft/run/internal/member"
)

// Network is what messages go through.
type Network struct {
	Latency time.Duration // least time one way
	Jitter  time.Duration // mean of the exponential time on top
	Tail    float64       // share of messages that take TailTime more: a full queue, a retransmit below
	TailFor time.Duration
	Loss    float64       // share of messages lost
	Drift   float64       // parts per million by which clocks run fast or slow, at most
	Store   time.Duration // one way to the store
}

// Datacenter is a routed network that is busy with training traffic.
func Datacenter() Network {
	return Network{Latency: 50 * time.Microsecond, Jitter: 50 * time.Microsecond, Tail: 0.001, TailFor: 20 * time.Millisecond,
		Loss: 0.0001, Drift: 50, Store: 2 * time.Millisecond}
}

// Settings describe a world.
type Settings struct {
	Ranks   int
	Seed    uint64
	Member  member.Config
	Network Network
	Length  time.Duration
	Faults  []Fault
	Outside bool          // the leader is a process of its own and no rank
	Empty   bool          // nobody is a member at first; ranks start at random instants of the first second and join
	Lease   time.Duration // a leader that the store does not hear for this long is replaced; 0 is 2 s
	Step    time.Duration // ranks report a step each time; 0 is never
	CatchUp time.Duration // a recovering member has caught up after this; 0 is never
	Wire    bool          // every message goes through its binary form
	Log     func(at time.Duration, rank member.ID, e member.Event)
}

type kind uint8

const (
	timer kind = iota
	deliver
	fault
	ended   // of a fault
	propose // reaches the store
	decided // answer reaches the leader
	lease
	steps
	caught
	start
	exited
)

// held bounds the messages that wait for a stopped process, as a socket's buffer does.
const held = 512

type node struct {
	machine       *member.Machine
	drift         float64 // local time is world time times (1+drift)
	received      int64
	receivedBytes int64
	cut           int32 // partition it is in
	up            bool  // the process exists
	stopped       bool
	waiting       bool // catches up
	alone         bool // cut off from the store as well
	slow          int64
	loss          float64
	timerAt       int64 // of the event that is in the heap
	sent          int64
	sentBytes     int64
	life          uint64
	inbox         []int32 // messages while stopped

	troubled                    int64 // until when silence of this rank is no false alarm
	excused, accused, condemned int64 // until when another alarm is of the same incident
}

// World is a simulation under way.
type World struct {
	set      Settings
	nodes    []node
	timers   heap.Heap[event]
	messages heap.Heap[event]
	pool     []member.Message
	free     []int32
	seq      uint64
	now      int64
	rng      uint64
	book     member.Book
	scratch  []byte
	jitter   [4096]int64 // quantiles of the exponential distribution; whole numbers, so that every processor has the same

	store     *member.Epoch
	proposals []proposal
	storeDown int
	holder    int32 // of the leader's lease, as the store sees it; -1 if none
	leaseTill int64
	step      uint64

	report Report
	deaths []death // not yet known to all
	Err    error   // a broken promise of the machines, with the time it was seen
}

type proposal struct {
	node  int32
	value member.Proposal
}

// New builds a world.
func New(s Settings) (*World, error) {
	if s.Ranks < 1 {
		return nil, fmt.Errorf("simulation: %d ranks; at least 1", s.Ranks)
	}
	if s.Lease == 0 {
		s.Lease = 2 * time.Second
	}
	w := &World{set: s, rng: s.Seed*0x9e3779b97f4a7c15 + 1, holder: -1}
	n := s.Ranks
	if s.Outside {
		n++
	}
	for i := range w.jitter {
		w.jitter[i] = int64(math.Round(-math.Log(1-(float64(i)+0.5)/float64(len(w.jitter))) * float64(s.Network.Jitter)))
	}
	w.nodes = make([]node, n)
	var list []member.Member
	for i := range w.nodes {
		x := &w.nodes[i]
		x.life, x.timerAt = 1, math.MaxInt64
		x.drift = (2*w.random() - 1) * s.Network.Drift * 1e-6
		x.up = true
		if i < s.Ranks {
			list = append(list, member.Member{ID: member.ID(i), Life: 1})
		}
		m, err := member.New(s.Member, member.ID(i), x.life, s.Seed, 0, &w.book)
		if err != nil {
			return nil, err
		}
		x.machine = m
	}
	w.holder = 0
	if s.Outside {
		w.holder = int32(s.Ranks)
	}
	for i := range s.Faults {
		f := &s.Faults[i]
		if err := f.check(s.Ranks); err != nil {
			return nil, err
		}
		w.push(f.At.Nanoseconds(), fault, 0, int32(i))
	}
	if s.Empty {
		for i := range s.Ranks {
			if int32(i) != w.holder {
				w.push(int64(w.random()*1e9), start, int32(i), 0)
			}
		}
	} else {
		w.store = &member.Epoch{Number: 1, Leader: member.ID(w.holder), Observers: s.Member.Observers, Members: list}
		for i := range w.nodes {
			w.nodes[i].machine.Decided(0, w.store)
			w.store = w.nodes[i].machine.Epoch()
		}
	}
	h := w.nodes[w.holder].machine
	h.Lead(0, w.store)
	if s.Empty && int(w.holder) < s.Ranks {
		h.Join(0, 1, nil)
	}
	for i := range w.nodes {
		w.nodes[i].machine.Ready()
		w.drain(int32(i))
	}
	w.leaseTill = s.Lease.Nanoseconds()
	w.push(s.Lease.Nanoseconds()/4, lease, 0, 0)
	if s.Step > 0 {
		w.push(s.Step.Nanoseconds(), steps, 0, 0)
	}
	w.report = Report{Ranks: s.Ranks, Seed: s.Seed, Length: s.Length, Member: s.Member, Network: s.Network}
	for i := range w.nodes { // the start is not part of what is measured
		x := &w.nodes[i]
		x.sent, x.received, x.sentBytes, x.receivedBytes = 0, 0, 0, 0
	}
	return w, nil
}

// Run builds a world and lets its time pass.
func Run(s Settings) (Report, error) {
	w, err := New(s)
	if err != nil {
		return Report{}, err
	}
	for w.Step() {
	}
	return w.Report(), w.Err
}

func (w *World) bits() uint64 {
	w.rng += 0x9e3779b97f4a7c15
	x := w.rng
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// random is a number from 0 up to 1.
func (w *World) random() float64 { return float64(w.bits()>>11) / (1 << 53) }

func (w *World) push(at int64, k kind, node, arg int32) {
	w.seq++
	e := event{at: max(at, w.now), seq: w.seq, node: node, arg: arg, kind: k}
	if k == deliver {
		w.messages.Push(e)
	} else {
		w.timers.Push(e)
	}
}

// Now is the world's time.
func (w *World) Now() time.Duration { return time.Duration(w.now) }

// Machine is a rank's machine, for looking at.
func (w *World) Machine(id member.ID) *member.Machine { return w.nodes[id].machine }

// Store is the epoch that the store holds.
func (w *World) Store() *member.Epoch { return w.store }

// local is a node's clock.
func (x *node) local(at int64) member.Time { return member.Time(float64(at) * (1 + x.drift)) }

// world is the world's time when a node's clock shows t.
func (x *node) world(t member.Time) int64 {
	if t == math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(math.Ceil(float64(t)/(1+x.drift))) + 1
}

// Step does the next event; false once the length is over or a promise is broken.
func (w *World) Step() bool {
	var e event
	switch m, t := w.messages.Len(), w.timers.Len(); {
	case m == 0 && t == 0:
		return false
	case t == 0 || m > 0 && w.messages.First().Before(w.timers.First()):
		e = w.messages.Pop()
	default:
		e = w.timers.Pop()
	}
	if e.at > w.set.Length.Nanoseconds() || w.Err != nil {
		return false
	}
	w.now = e.at
	x := &w.nodes[e.node]
	switch e.kind {
	case deliver:
		w.arrive(e)
	case timer:
		if e.at != x.timerAt {
			return true
		}
		x.timerAt = math.MaxInt64
		if x.up && !x.stopped {
			x.machine.Tick(x.local(w.now))
			w.drain(e.node)
		}
	case fault:
		w.begin(e.arg)
	case ended:
		w.end(e.arg)
	case propose:
		w.decide(e.arg)
	case decided:
		if w.reaches(e.node) {
			x.machine.Decided(x.local(w.now), w.store)
			w.drain(e.node)
		}
	case lease:
		w.renew()
		w.push(w.now+w.set.Lease.Nanoseconds()/4, lease, 0, 0)
	case steps:
		w.step++
		for i := range w.set.Ranks {
			if x := &w.nodes[i]; x.up && !x.stopped {
				x.machine.Boundary(x.local(w.now), w.step)
				w.drain(int32(i))
			}
		}
		w.push(w.now+w.set.Step.Nanoseconds(), steps, 0, 0)
	case caught:
		x.waiting = false
		if x.up && !x.stopped {
			x.machine.CaughtUp(x.local(w.now))
			w.drain(e.node)
		}
	case start:
		w.join(e.node)
	case exited:
		if x.up && !x.stopped {
			x.machine.Exited(x.local(w.now), member.ID(e.arg), 0)
			w.drain(e.node)
		}
	}
	return true
}

// arrive gives a message to a machine, or keeps it while the process is stopped.
func (w *World) arrive(e event) {
	x := &w.nodes[e.node]
	msg := &w.pool[e.arg]
	switch {
	case !x.up:
	case x.stopped && len(x.inbox) < held:
		x.inbox = append(x.inbox, e.arg)
		return
	case x.stopped:
	default:
		x.received++
		beat := msg.Verb == member.Beat
		x.machine.Message(x.local(w.now), msg)
		w.release(e.arg)
		if beat { // beats put deadlines off; unless one brings out something there is nothing to do
			if r := x.machine.Ready(); len(r.Messages)+len(r.Events) == 0 {
				return
			}
		}
		w.drain(e.node)
		return
	}
	w.release(e.arg)
}

func (w *World) release(i int32) {
	w.pool[i] = member.Message{}
	w.free = append(w.free, i)
}

// drain takes what a machine has to say and sets its timer.
func (w *World) drain(i int32) {
	x := &w.nodes[i]
	r := x.machine.Ready()
	for j := range r.Messages {
		w.send(i, &r.Messages[j])
	}
	for _, e := range r.Events {
		w.see(i, e)
	}
	if r.Proposal != nil {
		w.proposals = append(w.proposals, proposal{i, *r.Proposal})
		w.push(w.now+w.set.Network.Store.Nanoseconds(), propose, i, int32(len(w.proposals)-1))
	}
	if r.Read && w.reaches(i) {
		w.push(w.now+2*w.set.Network.Store.Nanoseconds(), decided, i, 0)
	}
	x.machine.Advance()
	if next := max(x.world(x.machine.Next()), w.now+1); next < x.timerAt {
		x.timerAt = next
		w.push(next, timer, i, 0)
	}
}

// headers of UDP and IPv4.
const headers = 28

// send puts a message on its way: it is lost, delayed and counted as the network says. With Wire set it goes through
// its encoding, so that the simulation tests that as well.
func (w *World) send(from int32, out *member.Outbound) {
	x := &w.nodes[from]
	w.scratch = out.Message.Append(w.scratch[:0])
	size := int64(len(w.scratch) + headers)
	x.sent++
	x.sentBytes += size
	if int(out.To) >= len(w.nodes) {
		return
	}
	y := &w.nodes[out.To]
	n := &w.set.Network
	lost := n.Loss + x.loss + y.loss
	if x.cut != y.cut || lost > 0 && w.random() < lost {
		return
	}
	delay := w.delay() + x.slow + y.slow
	y.receivedBytes += size
	at := w.room()
	if w.set.Wire {
		msg, err := member.Decode(w.scratch)
		if err != nil {
			w.broken("a %v of r%d does not decode: %v", out.Message.Verb, from, err)
		}
		w.pool[at] = msg
	} else {
		w.pool[at] = out.Message
	}
	w.push(w.now+delay, deliver, int32(out.To), at)
}

func (w *World) broken(format string, args ...any) {
	if w.Err == nil {
		w.Err = fmt.Errorf("simulation: seed %d, at %v: %s", w.set.Seed, w.Now(), fmt.Sprintf(format, args...))
	}
}

// reaches reports whether the store and a node can talk.
func (w *World) reaches(i int32) bool {
	x := &w.nodes[i]
	return x.up && !x.stopped && !x.alone && w.storeDown == 0
}

// decide is the store's compare and set.
func (w *World) decide(i int32) {
	p := w.proposals[i]
	if !w.reaches(p.node) {
		return
	}
	number := uint64(0)
	if w.store != nil {
		number = w.store.Number
	}
	if number == p.value.Prev {
		if p.value.Next.Number != number+1 {
			w.broken("r%d proposes epoch %d after %d", p.node, p.value.Next.Number, number)
		}
		w.store = p.value.Next
		w.report.Epochs++
	}
	w.push(w.now+w.set.Network.Store.Nanoseconds(), decided, p.node, 0)
}

// renew moves the leader's lease on, or gives it to another once it has run out.
func (w *World) renew() {
	if w.storeDown > 0 {
		w.leaseTill = max(w.leaseTill, w.now+w.set.Lease.Nanoseconds())
		return
	}
	if w.holder >= 0 && w.reaches(w.holder) {
		w.leaseTill = w.now + w.set.Lease.Nanoseconds()
		if m := w.nodes[w.holder].machine; !m.Deciding() {
			m.Lead(w.nodes[w.holder].local(w.now), w.store)
			w.drain(w.holder)
		}
		return
	}
	if w.now < w.leaseTill || w.store == nil {
		return
	}
	for i := range w.nodes { // the lowest that lives and is a member
		if w.reaches(int32(i)) && w.store.Index(member.ID(i)) >= 0 {
			w.holder, w.leaseTill = int32(i), w.now+w.set.Lease.Nanoseconds()
			x := &w.nodes[i]
			x.machine.Lead(x.local(w.now), w.store)
			w.drain(int32(i))
			return
		}
	}
}

// join starts a process that asks to be let in.
func (w *World) join(i int32) {
	x := &w.nodes[i]
	x.life++
	x.up, x.stopped, x.waiting = true, false, false
	m, err := member.New(w.set.Member, member.ID(i), x.life, w.set.Seed^x.life<<20, x.local(w.now), &w.book)
	if err != nil {
		w.broken("%v", err)
		return
	}
	x.machine = m
	via := []member.ID{member.ID(w.holder)}
	if w.store != nil {
		via = nil
		for k := range min(4, len(w.store.Members)) {
			via = append(via, w.store.Members[k*len(w.store.Members)/4].ID)
		}
		via = slices.Compact(via)
	}
	m.Join(x.local(w.now), x.life, via)
	w.drain(i)
}

// delay is how long a message of the network takes this time.
func (w *World) delay() int64 {
	n := &w.set.Network
	d := n.Latency.Nanoseconds()
	if n.Jitter > 0 {
		d += w.jitter[w.bits()%uint64(len(w.jitter))]
	}
	if n.Tail > 0 && w.random() < n.Tail {
		d += n.TailFor.Nanoseconds()
	}
	return d
}

// room is a place for a message under way, one that was used before if there is any.
func (w *World) room() int32 {
	if k := len(w.free); k > 0 {
		at := w.free[k-1]
		w.free = w.free[:k-1]
		return at
	}
	w.pool = append(w.pool, member.Message{})
	return int32(len(w.pool) - 1)
}
