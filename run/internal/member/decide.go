package member

import (
	"cmp"
	"slices"
	"time"
)

// leadership is what the leader holds besides its view of the members.
type leadership struct {
	joins  []request // ascending by id
	leaves []request
	caught []request
	joined Time // when the latest wish to join came
	below  Time // when fewer than Min were left; Never if enough are

	asked    Time // when a proposal went out; Never if none waits for its answer
	proposed *Proposal
	failures int // in it
	losses   []loss
}

type request struct {
	id   ID
	life uint64
	at   Time
}

// loss is a number of failures that an epoch removed.
type loss struct {
	at    Time
	count int
}

// Lead makes this process the leader. The epoch is what the store holds, nil if it
// holds none yet. The caller holds the lease that makes it the leader. Two leaders
// at a time do no harm, as the store
// takes only one epoch for a number. A machine that learns of another's epoch, or
// of one without itself, stops leading (Deciding is false); if the lease is
// still its process's, call Lead again.
func (m *Machine) Lead(now Time, stored *Epoch) {
	m.wake(now)
	if stored.number() > m.epoch.number() && stored.check() == nil {
		m.adopt(m.book.keep(stored), nil)
		m.pass()
	}
	m.lead, m.leaderSeen = &leadership{asked: Never, below: Never}, m.now
	if !m.member() {
		m.nextBeat = m.now
	}
	m.settle()
}

// Follow says that this process no longer leads.
func (m *Machine) Follow(now Time) {
	m.wake(now)
	m.lead = nil
	m.settle()
}

// Decided says what the store holds: the answer to a proposal, or news from
// watching it. A nil epoch says that it holds none.
func (m *Machine) Decided(now Time, stored *Epoch) {
	m.wake(now)
	if m.lead != nil {
		m.lead.asked, m.leaderSeen = Never, m.now
	}
	if stored.number() > m.epoch.number() {
		if stored.check() != nil {
			return
		}
		m.adopt(m.book.keep(stored), nil)
		m.pass()
	}
	m.settle()
}

// put adds a request, or replaces an older one of the same id.
func put(list []request, p request) []request {
	i, ok := slices.BinarySearchFunc(list, p.id, func(q request, id ID) int { return cmp.Compare(q.id, id) })
	if !ok {
		return slices.Insert(list, i, p)
	}
	if list[i].life != p.life {
		list[i] = p
	}
	return list
}

// request takes what a process asks for itself.
func (o *leadership) request(m *Machine, msg *Message) {
	if msg.Subject == Nobody {
		return
	}
	if msg.Verb == Enter {
		o.enter(m, msg.Subject, msg.SubjectLife)
		return
	}
	i := m.epoch.Index(msg.Subject)
	if i < 0 || m.epoch.Members[i].Life != msg.SubjectLife {
		return
	}
	if msg.Step > m.step {
		m.step, m.stepAt, m.pace = msg.Step, m.now, msg.Age
	}
	p := request{msg.Subject, msg.SubjectLife, m.now}
	switch {
	case msg.Verb == Exit:
		o.leaves = put(o.leaves, p)
	case msg.Verb == Caught && m.epoch.Members[i].Recovering:
		o.caught = put(o.caught, p)
	}
}

// enter takes a wish to join. A process whose id is in use waits until the other
// one has failed, and is refused if it lives.
func (o *leadership) enter(m *Machine, id ID, life uint64) {
	i := m.epoch.Index(id)
	if i >= 0 && m.epoch.Members[i].Life == life {
		m.send(id, Message{Verb: Whole, Epoch: m.epoch})
		return
	}
	if m.epoch != nil && m.epoch.Halt != NoReason {
		m.deny(id, m.epoch.Halt)
		return
	}
	members := len(o.joins)
	if m.epoch != nil {
		members += len(m.epoch.Members)
	}
	at := slices.IndexFunc(o.joins, func(p request) bool { return p.id == id })
	switch {
	case at >= 0 && o.joins[at].life == life:
		if i < 0 || m.now-o.joins[at].at <= m.cfg.Bound()+m.cfg.Settle {
			break
		}
		switch {
		case !m.observed(i): // nobody is left to say that the other one is silent; its successor is word enough
			m.set(id, Failed, Final, true)
		case m.State(id) == Healthy:
			o.joins = slices.Delete(o.joins, at, at+1)
			m.deny(id, Taken)
		}
	case at < 0 && i < 0 && members >= m.cfg.Max:
		m.deny(id, Full)
	default:
		o.joins = put(o.joins, request{id, life, m.now})
		o.joined = m.now
	}
}

// observed reports whether a member has an observer that is not failed.
func (m *Machine) observed(i int) bool {
	return slices.ContainsFunc(m.epoch.watching[i], func(o int32) bool { return m.State(m.epoch.Members[o].ID) != Failed })
}

// deny refuses a process, which may be this one.
func (m *Machine) deny(id ID, why Reason) {
	if id == m.self {
		m.via = nil
		m.emit(Event{Kind: Refused, ID: id, Reason: why})
		return
	}
	m.send(id, Message{Verb: Deny, Reason: why})
}

// decided drops what an epoch has done.
func (o *leadership) decided(m *Machine, e *Epoch) {
	if p := o.proposed; p != nil && p.Next.Number == e.Number && p.Next.Leader == e.Leader {
		o.losses = append(o.losses, loss{m.now, o.failures})
	}
	o.proposed, o.asked = nil, Never
	listed := func(p request) bool { i := e.Index(p.id); return i >= 0 && e.Members[i].Life == p.life }
	o.joins = slices.DeleteFunc(o.joins, listed)
	o.leaves = slices.DeleteFunc(o.leaves, func(p request) bool { return !listed(p) })
	o.caught = slices.DeleteFunc(o.caught, func(p request) bool { return !listed(p) || !e.Members[e.Index(p.id)].Recovering })
	if m.last == nil {
		return
	}
	// Who is new cannot apply a change. A few get the whole list from here; their
	// first beats make their observers fetch it from them, and so on.
	for _, c := range m.last.Came[:min(len(m.last.Came), e.Observers)] {
		m.send(c.ID, Message{Verb: Whole, Epoch: e})
	}
	for _, id := range m.last.Gone { // it may live after all, or wait for this
		m.send(id, Message{Verb: Notice})
	}
}

// leadDue is when the leader has something to do without any input.
func (m *Machine) leadDue() Time {
	o := m.lead
	if m.epoch != nil && m.epoch.Halt != NoReason {
		return far
	}
	if o.asked != Never {
		return o.asked + m.cfg.Retry
	}
	due := far
	wait := func(t Time) { // what is due already waits for something else than time
		if t > m.now {
			due = min(due, t)
		}
	}
	if len(o.joins) > 0 {
		wait(o.joined + m.cfg.Gather)
	}
	for i := range m.marks {
		if m.marks[i].state == Failed {
			wait(m.marks[i].since + m.cfg.Settle)
		}
	}
	if o.below != Never {
		wait(o.below + m.cfg.Return)
	}
	return due
}

// decide proposes the next epoch if there is reason for one. All that waits goes
// into it. More than half of the members are never removed for being silent: a
// leader that reaches the store and nobody else would end a job that is well
// without it. It leaves after Config.Orphan; if the others live they go on. A
// proposal without an answer is made again after Config.Retry, with what has come
// since; the store takes one of them.
func (m *Machine) decide() {
	o, e := m.lead, m.epoch
	if o.asked != Never && m.now < o.asked+m.cfg.Retry || e != nil && e.Halt != NoReason {
		return
	}
	o.asked = Never
	var members []Member
	if e != nil {
		members = e.Members
	}
	g := m.gone()
	if len(g.failed) > 0 && 2*g.silent > len(members) {
		return // either they are gone or this process is; see checkQuorum
	}
	var joins []request
	for _, p := range o.joins { // a new process waits until the old one of its id is gone
		if i := e.Index(p.id); i < 0 || m.State(p.id) == Failed {
			joins = append(joins, p)
		}
	}
	due := len(g.failed) > 0 && (!g.suspects || m.now >= g.first+m.cfg.Settle) ||
		len(o.leaves) > 0 || len(o.caught) > 0 || e != nil && e.Leader != m.self
	if len(joins) > 0 {
		total := len(members) + len(joins)
		due = due || total >= m.cfg.Min && (total >= m.cfg.Max || m.now >= o.joined+m.cfg.Gather)
	}
	if !due {
		return
	}
	next := m.nextOf(members, g.failed, joins)
	if e != nil && !m.mayGoOn(next, g) {
		return
	}
	o.asked, o.failures = m.now, len(g.failed)
	o.proposed = &Proposal{Prev: e.number(), Next: next}
	m.proposal = o.proposed
}

// losses are the members that do not answer.
type losses struct {
	failed   []ID // in order
	first    Time // when the first of them failed
	silent   int  // that did not say that they end, suspects included
	suspects bool
}

// gone counts them.
func (m *Machine) gone() losses {
	g := losses{first: far}
	for _, k := range m.marks {
		switch k.state {
		case Failed:
			g.failed = append(g.failed, k.id)
			g.first = min(g.first, k.since)
			if k.incarnation != Final {
				g.silent++
			}
		case Suspect:
			g.suspects = true
			g.silent++
		}
	}
	return g
}

// nextOf is the epoch without those that failed or leave, and with those that join.
func (m *Machine) nextOf(members []Member, failed []ID, joins []request) *Epoch {
	o, e := m.lead, m.epoch
	next := &Epoch{Number: e.number() + 1, Leader: m.self, Observers: m.cfg.Observers}
	for _, old := range members {
		_, dead := slices.BinarySearch(failed, old.ID)
		if dead || has(o.leaves, old.ID) {
			continue
		}
		old.Recovering = old.Recovering && !has(o.caught, old.ID)
		next.Members = append(next.Members, old)
	}
	for _, p := range joins {
		if len(next.Members) < m.cfg.Max {
			next.Members = append(next.Members, Member{p.id, p.life, e != nil})
		}
	}
	slices.SortFunc(next.Members, func(a, b Member) int { return cmp.Compare(a.ID, b.ID) })
	switch {
	case e == nil, len(failed) > 0:
	case slices.Equal(next.Active(), e.Active()):
		next.AfterStep = e.AfterStep
	default:
		next.AfterStep = m.boundary()
	}
	return next
}

// mayGoOn says in the next epoch whether too few members are left or too many were lost; false if some may yet come back.
func (m *Machine) mayGoOn(next *Epoch, g losses) bool {
	o, active := m.lead, next.Active()
	recent := len(g.failed)
	o.losses = slices.DeleteFunc(o.losses, func(l loss) bool { return m.now-l.at > m.cfg.Window })
	for _, l := range o.losses {
		recent += l.count
	}
	few := len(active) < m.cfg.Min
	switch {
	case !few:
		o.below = Never
	case o.below == Never:
		o.below = min(g.first, m.now)
	}
	// Of those that come back some may catch up, if one that is active is left. Who
	// dies again while it does is waited for no longer than the first time.
	returns := few && len(active) > 0 && m.cfg.Return > 0 && (len(g.failed) == 0 || m.now < o.below+m.cfg.Return)
	switch {
	case returns && len(next.Members) >= m.cfg.Min:
	case returns && len(g.failed) > 0:
		return false
	case few:
		next.Halt = TooFew
	case recent > m.cfg.MaxFailures:
		next.Halt = TooMany
	}
	return true
}

func has(list []request, id ID) bool {
	_, ok := slices.BinarySearchFunc(list, id, func(q request, id ID) int { return cmp.Compare(q.id, id) })
	return ok
}

// boundary is the step after which active members change over: far enough ahead
// that everyone knows by then, which takes a flood, or an interval and a fetch
// where the flood is lost. 0 if nobody reports steps.
func (m *Machine) boundary() uint64 {
	if m.step == 0 {
		return 0
	}
	ahead := uint64(1)
	if m.pace > 0 {
		ahead += uint64((m.now-m.stepAt+2*m.cfg.Interval+m.cfg.Retry)/max(m.pace, time.Microsecond)) + 1
	}
	return m.step + ahead
}
