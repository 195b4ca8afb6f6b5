package member

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// far is a time that does not come.
const far = Time(math.MaxInt64)

// Machine is one process's view of the job. Give it inputs with the time at which
// they came, then take Ready, send its messages, write its proposal, act on its
// events, and call Advance. Call Tick no later than Next, which is an Interval
// away at most for a member: a machine that gets no input for two intervals, and
// had something to do in them, takes it that its own process was stopped and holds
// that time against nobody.
//
// A Machine is not safe for concurrent use and does not look at the clock.
type Machine struct {
	// What every beat touches comes first, in two lines of the cache: with 10,000
	// machines in one simulation most of the time goes into fetching these.
	now        Time
	epoch      *Epoch
	interval   time.Duration // cfg.Interval
	ids        []ID          // of watches
	watches    []watch
	marks      []mark // ascending by id
	leaderSeen Time   // last message from it
	doubt      int    // in oneself: quarters by which timeouts are stretched

	// What every tick touches.
	me            int // index in epoch.Members, or -1
	self          ID
	incarnation   uint32
	life          uint64
	nextBeat      Time
	nextAsk       Time // of a join, a leave or a catching up
	isolatedSince Time // far if not isolated
	step          uint64
	cfg           *Config
	book          *Book
	queue         []Word      // to be told to the observers
	lead          *leadership // not nil while this process decides
	out           []Outbound
	events        []Event
	proposal      *Proposal
	read          bool // asks for what the store holds

	rng       uint64
	last      *Change // that led to epoch, if known
	nextFlush Time
	nextFetch Time
	doubtAt   Time
	warned    bool // QuorumLost was said in this epoch or isolation

	via      []ID // to join through; nil if not joining
	tried    int
	leaving  bool
	caughtUp bool

	stepAt Time
	pace   time.Duration // of a step
}

// mark is what is held of a member that is not simply healthy.
type mark struct {
	id          ID
	state       State
	mine        bool // from own silence, not told
	incarnation uint32
	since       Time
	until       Time // then what was told lapses, recovering becomes healthy, healthy is forgotten
}

// New makes the machine of a process. Life tells it from other processes of the
// same id; the seed spreads the beats of ranks that start at one time. Machines
// of one process or simulation may share a book; nil is a book of one's own.
func New(cfg Config, self ID, life, seed uint64, now Time, book *Book) (*Machine, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	if self == Nobody {
		return nil, fmt.Errorf("member: id %d is reserved for no member; choose another", self)
	}
	if book == nil {
		book = &Book{}
	}
	m := &Machine{cfg: book.config(cfg), interval: cfg.Interval, self: self, life: life, book: book, rng: mix(seed ^ uint64(self)<<32),
		now: now, me: -1,
		leaderSeen: now, isolatedSince: far, nextBeat: far, nextAsk: far, nextFlush: now}
	return m, nil
}

// random gives the next number of the machine's generator, below n.
func (m *Machine) random(n uint64) uint64 {
	m.rng += 0x9e3779b97f4a7c15
	return mix(m.rng) % n
}

// Epoch is the latest that this process knows of, nil before the first.
func (m *Machine) Epoch() *Epoch { return m.epoch }

// Deciding reports whether this process leads.
func (m *Machine) Deciding() bool { return m.lead != nil }

// State is what this process holds of a member: Failed for one that the epoch does not list.
func (m *Machine) State(id ID) State {
	if i := m.mark(id); i >= 0 {
		if s := m.marks[i].state; s != Healthy {
			return s
		}
	}
	i := m.epoch.Index(id)
	switch {
	case i < 0:
		return Failed
	case m.epoch.Members[i].Recovering:
		return Recovering
	}
	return Healthy
}

// Ready hands out what came of the inputs so far.
func (m *Machine) Ready() Ready { return Ready{m.out, m.events, m.proposal, m.read} }

// Advance drops what Ready handed out.
func (m *Machine) Advance() {
	if m.out != nil {
		clear(m.out) // lets go of lists
		m.book.spare, m.out = m.out[:0], nil
	}
	m.events, m.proposal, m.read = m.events[:0], nil, false
}

// send addresses a message; its head is filled in.
func (m *Machine) send(to ID, msg Message) {
	if to == m.self || to == Nobody {
		return
	}
	msg.From, msg.Life, msg.EpochNumber = m.self, m.life, m.epoch.number()
	if m.out == nil {
		m.out, m.book.spare = m.book.spare, nil
	}
	m.out = append(m.out, Outbound{to, msg})
}

func (m *Machine) emit(e Event) { m.events = append(m.events, e) }

// member reports whether this process is in the epoch.
func (m *Machine) member() bool { return m.me >= 0 }

// leader is whom to tell what has to be decided.
func (m *Machine) leader() ID {
	if m.epoch == nil {
		return Nobody
	}
	return m.epoch.Leader
}

// timeout is the silence this process suspects after, stretched by its doubt in itself.
func (m *Machine) timeout() time.Duration {
	return m.cfg.Timeout * time.Duration(4+m.doubt) / 4
}

// doubts raises the doubt in oneself by a quarter.
func (m *Machine) doubts() {
	m.doubt = min(m.doubt+1, m.cfg.Stretch)
	m.doubtAt = m.now
}

// later moves what is known of others by a time in which this process heard nothing.
func (m *Machine) later(gap Time) {
	for i := range m.watches {
		w := &m.watches[i]
		w.seen, w.due, w.trouble = min(m.now, w.seen+gap), m.now, nil
	}
	for i := range m.marks {
		m.marks[i].since += gap
		if m.marks[i].until < far-gap {
			m.marks[i].until += gap
		}
	}
}

// wake takes the time of an input. Time that passed without any input for two
// intervals was not this process's to watch in: silence of others is counted
// without it.
func (m *Machine) wake(now Time) {
	gap := now - m.now
	if gap <= 0 {
		return // a clock that is set back stands still here
	}
	if gap > 2*m.interval && m.epoch != nil { // until Next there was nothing to do
		gap = min(gap, max(0, now-m.Next())+m.interval)
	}
	m.now = now
	if gap <= 2*m.interval || m.epoch == nil {
		return
	}
	m.later(gap)
	if m.isolatedSince != far {
		m.isolatedSince += gap
	}
	if m.lead != nil && m.lead.below != Never {
		m.lead.below += gap
	}
	m.leaderSeen = min(now, m.leaderSeen+gap)
	m.doubts()
}

// Next is when Tick has to be called at the latest; an input may bring it forward.
func (m *Machine) Next() Time {
	next := min(m.nextBeat, m.nextAsk)
	for i := range m.watches {
		next = min(next, m.watches[i].due)
	}
	if len(m.marks) > 0 {
		for i := range m.marks {
			next = min(next, m.marks[i].until)
		}
	}
	if len(m.queue) > 0 {
		next = min(next, m.nextFlush)
	}
	if m.lead != nil {
		next = min(next, m.leadDue())
	}
	return next
}

// checkAll looks at the members whose time has come, and reports whether any is in doubt.
func (m *Machine) checkAll() (troubled bool) {
	for i := range m.watches {
		if m.now >= m.watches[i].due {
			m.check(i)
		}
		troubled = troubled || m.watches[i].trouble != nil
	}
	return troubled
}

// Tick lets time pass.
func (m *Machine) Tick(now Time) {
	m.wake(now)
	if m.now >= m.nextBeat {
		m.beat()
	}
	if troubled := m.checkAll(); troubled || m.isolatedSince != far {
		m.checkIsolation()
	}
	if len(m.marks) > 0 {
		m.lapse()
		m.checkQuorum()
	}
	if m.doubt > 0 && m.now >= m.doubtAt+m.cfg.Timeout {
		m.doubt, m.doubtAt = m.doubt-1, m.now
	}
	if m.now >= m.nextAsk {
		m.askAgain()
	}
	m.settle()
}

// settle does what may follow from any input.
func (m *Machine) settle() {
	if len(m.queue) > 0 && m.now >= m.nextFlush {
		m.flush()
	}
	if m.lead != nil {
		m.decide()
	}
}

// beat gives a sign of life to every observer. A leader outside the epoch pings
// one member instead, which fetches the epoch if it has missed it.
func (m *Machine) beat() {
	m.nextBeat = max(m.nextBeat+m.cfg.Interval, m.now+m.cfg.Interval/2)
	if !m.member() {
		if m.lead == nil || m.epoch == nil || len(m.epoch.Members) == 0 {
			m.nextBeat = far
			return
		}
		m.send(m.epoch.Members[m.random(uint64(len(m.epoch.Members)))].ID, Message{Verb: Ping})
		return
	}
	for _, o := range m.epoch.watching[m.me] {
		m.send(m.epoch.Members[o].ID, Message{Verb: Beat, Incarnation: m.incarnation, Step: m.step})
	}
	m.report()
}

// Message takes what another process sent. The shell has made sure of the
// sender's identity.
func (m *Machine) Message(now Time, msg *Message) {
	m.wake(now)
	number := m.epoch.number()
	if msg.From == m.leader() {
		m.leaderSeen = m.now
	}
	if msg.EpochNumber > number {
		m.behind(msg)
	}
	switch msg.Verb {
	case Beat:
		if msg.EpochNumber < number {
			m.send(msg.From, Message{Verb: Notice})
		}
		m.heard(msg)
		return // beats decide nothing else; they are nearly all there is
	case Ping:
		if msg.EpochNumber < number {
			m.send(msg.From, Message{Verb: Notice})
		}
		m.send(msg.From, Message{Verb: Beat, Incarnation: m.incarnation, Step: m.step})
		if msg.EpochNumber == number && m.member() {
			m.refute(Word{m.self, msg.State, msg.Incarnation})
		}
	case Ask:
		m.answer(msg)
	case Answer:
		m.answered(msg)
	case Rumour:
		if msg.EpochNumber == number && (m.member() || m.lead != nil) {
			for _, w := range msg.Words {
				m.hear(w)
			}
		}
	case Turn:
		if msg.Change != nil && msg.Change.Number == number+1 && m.epoch != nil {
			if e, err := m.book.turn(m.epoch, msg.Change); err == nil {
				m.adopt(e, msg.Change)
				m.pass()
			}
		}
	case Fetch:
		m.fetched(msg)
	case Whole:
		if msg.Epoch != nil && msg.Epoch.Number > number && msg.Epoch.check() == nil {
			m.adopt(m.book.keep(msg.Epoch), nil)
		}
	case Enter, Exit, Caught:
		m.request(msg)
	case Deny:
		if m.via != nil {
			m.via, m.nextAsk = nil, far
			m.emit(Event{Kind: Refused, ID: m.self, Reason: msg.Reason})
		}
	case Pace:
		if m.lead != nil {
			m.step, m.stepAt, m.pace = max(m.step, msg.Step), m.now, msg.Age
		}
	}
	m.settle()
}

// behind asks for what the sender has and this process has not.
func (m *Machine) behind(msg *Message) {
	switch {
	case msg.Verb == Whole, msg.Verb == Turn && msg.Change != nil && msg.Change.Number == m.epoch.number()+1 && m.epoch != nil:
		return // it brings it
	case m.epoch == nil && m.via == nil:
		return // not asked to take part
	case m.now < m.nextFetch:
		return
	}
	m.nextFetch = m.now + m.cfg.Flush
	m.send(msg.From, Message{Verb: Fetch})
}

// fetched gives a process that is behind the epoch it is missing.
func (m *Machine) fetched(msg *Message) {
	switch number := m.epoch.number(); {
	case msg.EpochNumber >= number:
	case msg.EpochNumber == number-1 && m.last != nil && msg.EpochNumber > 0:
		m.send(msg.From, Message{Verb: Turn, Change: m.last})
	default:
		m.send(msg.From, Message{Verb: Whole, Epoch: m.epoch})
	}
}

// pass tells the epoch's observers, or as many members if this process is not
// one, of the change that led to it.
func (m *Machine) pass() {
	if m.last == nil || m.epoch.Number == 1 {
		return // the first list is fetched, once by each, from whose beats bring its number
	}
	m.toNext(Message{Verb: Turn, Change: m.last})
}

// toNext sends along this process's edges of the graph.
func (m *Machine) toNext(msg Message) {
	if m.epoch == nil {
		return
	}
	if m.member() {
		for _, o := range m.epoch.watching[m.me] {
			m.send(m.epoch.Members[o].ID, msg)
		}
		return
	}
	n := len(m.epoch.Members)
	if n == 0 {
		return
	}
	from := int(m.random(uint64(n)))
	for i := range min(n, m.epoch.Observers) {
		m.send(m.epoch.Members[(from+i*max(1, n/m.epoch.Observers))%n].ID, msg)
	}
}

// adopt moves on to an epoch that the store has decided. The change that led to
// it may be nil.
func (m *Machine) adopt(e *Epoch, c *Change) {
	old, was := m.epoch, m.member()
	if c == nil && e.Number == old.number()+1 {
		d := change(old, e)
		c = &d
	}
	m.epoch, m.last = e, c
	m.me = e.Index(m.self)
	if m.me >= 0 && e.Members[m.me].Life != m.life {
		m.me = -1
	}
	m.rewatch(old)
	m.warned = false
	m.keep(old)
	evicted := was && !m.member()
	if m.lead != nil && (evicted || e.Leader != m.self) {
		m.lead = nil // another decides
	}
	if m.member() || was || m.lead != nil {
		m.emit(Event{Kind: EpochChanged, ID: m.self, Epoch: e})
	}
	if c != nil && old != nil && (m.member() || m.lead != nil) {
		for _, n := range c.Came {
			i := old.Index(n.ID)
			switch {
			case n.Recovering:
				m.emit(Event{Kind: Returned, ID: n.ID})
			case i >= 0 && old.Members[i].Recovering:
				m.emit(Event{Kind: Recovered, ID: n.ID})
			}
		}
	}
	switch {
	case m.member():
		if !was {
			m.nextBeat = m.now + Time(m.random(uint64(m.cfg.Interval)))
			m.beatNow()
		}
		if m.via != nil {
			m.via, m.nextAsk = nil, far
		}
		if m.caughtUp && !e.Members[m.me].Recovering {
			m.caughtUp, m.nextAsk = false, far
		}
	case evicted: // what it held of others was seen from outside
		m.marks, m.queue = nil, nil
		m.nextBeat, m.nextAsk, m.leaving, m.caughtUp = far, far, false, false
		m.isolatedSince = far
		m.emit(Event{Kind: Evicted, ID: m.self, Epoch: e})
	}
	if m.lead != nil {
		m.lead.decided(m, e)
	}
	if e.Halt != NoReason && (was || m.member()) {
		m.warned = true
		m.emit(Event{Kind: QuorumLost, ID: m.self, Reason: e.Halt})
	}
}

// beatNow gives a sign of life out of turn.
func (m *Machine) beatNow() {
	for _, o := range m.epoch.watching[m.me] {
		m.send(m.epoch.Members[o].ID, Message{Verb: Beat, Incarnation: m.incarnation, Step: m.step})
	}
}

// sameLife reports whether the member at a place of an epoch is the process that
// the one before listed under its id.
func sameLife(old, e *Epoch, i int) bool {
	j := old.Index(e.Members[i].ID)
	return j >= 0 && old.Members[j].Life == e.Members[i].Life
}

// mark finds a member's mark, or -1.
func (m *Machine) mark(id ID) int {
	if len(m.marks) == 0 {
		return -1
	}
	i, ok := slices.BinarySearchFunc(m.marks, id, func(k mark, id ID) int { return cmp.Compare(k.id, id) })
	if !ok {
		return -1
	}
	return i
}

// set marks a member and says so if its state changes.
func (m *Machine) set(id ID, s State, incarnation uint32, mine bool) {
	before := m.State(id)
	k := mark{id: id, state: s, mine: mine, incarnation: incarnation, since: m.now, until: far}
	switch {
	case s == Suspect && !mine:
		k.until = m.now + 2*m.cfg.Timeout
	case s == Failed && !mine && incarnation != Final:
		k.until = m.now + 2*m.cfg.Orphan
	case s == Recovering:
		k.until = m.now + m.cfg.Timeout
	case s == Healthy:
		k.until = m.now + 4*m.cfg.Timeout
	}
	i, ok := slices.BinarySearchFunc(m.marks, id, func(k mark, id ID) int { return cmp.Compare(k.id, id) })
	if ok {
		m.marks[i] = k
	} else {
		m.marks = slices.Insert(m.marks, i, k)
	}
	if after := m.State(id); after != before {
		m.emit(Event{Kind: [...]Kind{Recovered, Suspected, Died, Returned}[after], ID: id})
	}
}

// lapse ends the marks whose time has come.
func (m *Machine) lapse() {
	for i := 0; i < len(m.marks); i++ {
		k := m.marks[i]
		if m.now < k.until {
			continue
		}
		if k.state == Healthy {
			m.marks = slices.Delete(m.marks, i, i+1)
			i--
			continue
		}
		m.set(k.id, Healthy, k.incarnation, false)
	}
}
