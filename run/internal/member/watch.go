package member

import (
	"slices"
	"time"
)

// watch is what an observer holds of one whom it observes.
type watch struct {
	index       int32 // in the epoch's list
	incarnation uint32
	life        uint64
	seen        Time // last sign of life, had or told of
	own         Time // last beat that came from it, or Never
	due         Time // when to look again
	remind      Time // when to tell everyone again that it has failed
	trouble     *trouble
}

// trouble is an inquiry into silence.
type trouble struct {
	again   Time                 // when to ask again
	answers [MaxObservers]answer // of the other observers, as the epoch lists them
}

type answer struct {
	at  Time // 0 if none came
	age time.Duration
}

// rewatch takes up the observing that an epoch demands. Who was observed before,
// as the same process, goes on with what is known of it.
func (m *Machine) rewatch(old *Epoch) {
	ids, watches := m.ids, m.watches
	m.ids, m.watches = nil, nil
	if !m.member() {
		return
	}
	for _, i := range m.epoch.watched[m.me] {
		id := m.epoch.Members[i].ID
		w := watch{index: i, life: m.epoch.Members[i].Life, seen: m.now, own: Never, due: m.now + m.timeout()/2}
		if j := slices.Index(ids, id); j >= 0 && sameLife(old, m.epoch, int(i)) {
			w.incarnation, w.seen, w.own, w.due = watches[j].incarnation, watches[j].seen, watches[j].own, min(watches[j].due, w.due)
		}
		m.ids, m.watches = append(m.ids, id), append(m.watches, w)
	}
}

// keep goes through what is held of members when an epoch comes that lists them
// still. What made one failed may have been left out of the epoch because it came
// late, or because it was a view from behind a partition. So observers look again,
// and call it failed again after an interval without a sign of life; what others
// were told lapses unless they are told again.
func (m *Machine) keep(old *Epoch) {
	kept := m.marks[:0]
	for _, k := range m.marks {
		i := m.epoch.Index(k.id)
		if i < 0 || !sameLife(old, m.epoch, i) {
			continue
		}
		at := slices.Index(m.ids, k.id)
		if k.mine && at < 0 && k.state == Suspect { // another looks after it now
			k.mine, k.until = false, m.now+2*m.cfg.Timeout
		}
		switch {
		case k.state != Failed:
		case k.incarnation == Final:
			if at >= 0 {
				m.watches[at].remind, m.watches[at].due = m.now, m.now
			}
		case at >= 0 && m.lead == nil:
			w := &m.watches[at]
			w.seen, w.due = max(w.seen, m.now-2*m.timeout()+m.interval), m.now
			k.state, k.mine, k.until = Suspect, true, far
			m.emit(Event{Kind: Suspected, ID: k.id})
		default:
			k.mine, k.until = false, m.now+2*m.cfg.Timeout
		}
		kept = append(kept, k)
	}
	m.marks = kept
}

// heard takes a beat.
func (m *Machine) heard(msg *Message) {
	i := slices.Index(m.ids, msg.From)
	if i < 0 {
		return
	}
	w := &m.watches[i]
	if w.life != msg.Life {
		return // another process under the same id
	}
	w.seen, w.own = m.now, m.now
	w.incarnation = max(w.incarnation, msg.Incarnation)
	w.due, w.trouble = m.now+m.timeout()/2, nil
	if len(m.marks) > 0 {
		m.sign(i)
	}
}

// sign ends suspicion of a member that was heard, and asks one that is held
// failed to refute it.
func (m *Machine) sign(i int) {
	k := m.mark(m.ids[i])
	if k < 0 {
		return
	}
	w, held := &m.watches[i], m.marks[k]
	switch held.state {
	case Suspect:
		m.set(held.id, Healthy, w.incarnation, false)
		if held.mine {
			m.confide(w, Word{held.id, Healthy, w.incarnation})
		}
	case Failed:
		if w.incarnation > held.incarnation {
			m.set(held.id, Recovering, w.incarnation, false)
			m.tell(Word{held.id, Healthy, w.incarnation})
			return
		}
		m.send(held.id, Message{Verb: Ping, State: Failed, Incarnation: held.incarnation})
	}
}

// check looks at one observed member whose time has come.
//
//	0 ── beats ── T/2 ── pings, questions to the other observers ── T suspect ── same ── 2T failed
func (m *Machine) check(i int) {
	w, id, t := &m.watches[i], m.ids[i], m.timeout()
	age := m.now - w.seen
	if age < t/2 {
		w.due, w.trouble = w.seen+t/2, nil
		return
	}
	state := m.State(id)
	if state == Failed { // a beat will tell if it is not; as long as none does, others are reminded
		m.remind(w, Word{id, Failed, m.marks[m.mark(id)].incarnation})
		return
	}
	if w.trouble == nil {
		w.trouble = &trouble{again: m.now}
	}
	if k := m.mark(id); age >= t && (state != Suspect || !m.marks[k].mine) {
		m.set(id, Suspect, w.incarnation, true)
		m.confide(w, Word{id, Suspect, w.incarnation})
	}
	if age >= 2*t && m.agreed(w, t) {
		m.set(id, Failed, w.incarnation, true)
		w.remind = m.now + m.cfg.Orphan/2
		m.remind(w, Word{id, Failed, w.incarnation})
		m.tell(Word{id, Failed, w.incarnation})
		return
	}
	if m.now >= w.trouble.again {
		w.trouble.again = m.now + m.cfg.Interval/2
		m.send(id, Message{Verb: Ping, State: m.State(id), Incarnation: w.incarnation})
		for _, o := range m.epoch.watching[w.index] {
			m.send(m.epoch.Members[o].ID, Message{Verb: Ask, Subject: id})
		}
		if age >= t {
			m.send(m.leader(), Message{Verb: Ping})
			m.read = m.lead != nil
		}
	}
	w.due = w.trouble.again
	switch {
	case age < t:
		w.due = min(w.due, w.seen+t)
	case age < 2*t:
		w.due = min(w.due, w.seen+2*t)
	}
}

// remind tells the leader of a failure until an epoch follows, as its message may
// be lost or come when an epoch has just changed, and now and then everyone.
func (m *Machine) remind(w *watch, word Word) {
	if m.lead == nil {
		m.send(m.leader(), Message{Verb: Rumour, Words: []Word{word}})
	}
	if m.now >= w.remind {
		w.remind = m.now + m.cfg.Orphan/2
		m.tell(word)
	}
	w.due, w.trouble = m.now+m.cfg.Retry, nil
}

// agreed reports whether an observer may call a member failed that it has not
// heard of for two timeouts: another observer has not heard it for one either, or
// the leader (for the leader itself, the store) is within reach, so that the
// trouble is not this process's own. Had any observer heard the member, its
// answer would have moved watch.seen.
func (m *Machine) agreed(w *watch, t time.Duration) bool {
	if m.now-m.leaderSeen < m.cfg.Timeout {
		return true
	}
	for _, a := range w.trouble.answers {
		if a.at > 0 && a.age >= 0 && m.now-a.at <= 2*m.cfg.Interval && a.age+m.now-a.at >= t {
			return true
		}
	}
	return false
}

// answer tells another observer when a beat came last.
func (m *Machine) answer(msg *Message) {
	reply := Message{Verb: Answer, Subject: msg.Subject, Age: Never}
	if i := slices.Index(m.ids, msg.Subject); i >= 0 {
		w := &m.watches[i]
		reply.Incarnation = w.incarnation
		if w.own != Never {
			reply.Age = m.now - w.own
		}
	}
	m.send(msg.From, reply)
}

// answered takes another observer's word.
func (m *Machine) answered(msg *Message) {
	i := slices.Index(m.ids, msg.Subject)
	if i < 0 || m.watches[i].trouble == nil {
		return
	}
	w := &m.watches[i]
	for j, o := range m.epoch.watching[w.index] {
		if m.epoch.Members[o].ID == msg.From {
			w.trouble.answers[j] = answer{max(1, m.now), msg.Age}
		}
	}
	if msg.Age < 0 || m.now-msg.Age <= w.seen {
		return
	}
	w.seen, w.incarnation = m.now-msg.Age, max(w.incarnation, msg.Incarnation)
	if m.now-w.seen < m.timeout() {
		if k := m.mark(msg.Subject); k >= 0 && m.marks[k].state == Suspect && m.marks[k].mine {
			m.set(msg.Subject, Healthy, w.incarnation, false)
			m.doubts() // others hear it, this process does not
		}
	}
	w.due = min(w.due, w.seen+m.timeout()/2)
}

// confide tells the other observers of a member, and the leader, what this one thinks of it.
func (m *Machine) confide(w *watch, word Word) {
	msg := Message{Verb: Rumour, Words: []Word{word}}
	asked := m.lead != nil
	for _, o := range m.epoch.watching[w.index] {
		m.send(m.epoch.Members[o].ID, msg)
		asked = asked || m.epoch.Members[o].ID == m.leader()
	}
	if !asked {
		m.send(m.leader(), msg)
	}
}

// raise tells everyone, and the leader without delay.
func (m *Machine) raise(word Word) {
	m.tell(word)
	if m.lead == nil {
		m.send(m.leader(), Message{Verb: Rumour, Words: []Word{word}})
	}
}

// tell puts news in line for the observers of this process, who pass it on.
func (m *Machine) tell(word Word) { m.queue = append(m.queue, word) }

// flush sends news that waits, one batch at a time.
func (m *Machine) flush() {
	n := min(len(m.queue), m.cfg.Batch)
	m.toNext(Message{Verb: Rumour, Words: slices.Clone(m.queue[:n])})
	m.queue = m.queue[:copy(m.queue, m.queue[n:])]
	m.nextFlush = m.now + m.cfg.Flush
}

// hear takes news of a member, and passes on what makes one failed or no longer so.
func (m *Machine) hear(w Word) {
	if w.ID == m.self && m.member() {
		m.refute(w)
		return
	}
	if m.epoch.Index(w.ID) < 0 {
		return
	}
	state, incarnation := Healthy, uint32(0)
	if i := m.mark(w.ID); i >= 0 {
		state, incarnation = m.marks[i].state, m.marks[i].incarnation
	} else if i := slices.Index(m.ids, w.ID); i >= 0 {
		incarnation = m.watches[i].incarnation
	}
	switch {
	case w.Incarnation < incarnation:
	case w.State == Failed && state == Failed && w.Incarnation == incarnation: // a reminder
		if k := &m.marks[m.mark(w.ID)]; !k.mine && k.until < m.now+2*m.cfg.Orphan-m.cfg.Orphan/4 {
			k.until = m.now + 2*m.cfg.Orphan
			m.tell(w)
		}
	case w.State == Failed && (state != Failed || w.Incarnation > incarnation):
		m.set(w.ID, Failed, w.Incarnation, false)
		if state != Failed {
			m.tell(w)
		}
	case w.State == Suspect && (state == Healthy || state == Recovering || w.Incarnation > incarnation && state != Failed):
		m.set(w.ID, Suspect, w.Incarnation, false)
	case w.State == Healthy && w.Incarnation > incarnation && state == Failed:
		m.set(w.ID, Recovering, w.Incarnation, false)
		m.tell(w)
		if i := slices.Index(m.ids, w.ID); i >= 0 { // its word is a sign of life, and it is to be watched again
			m.watches[i].seen, m.watches[i].due = m.now, m.now+m.timeout()/2
		}
	case w.State == Healthy && w.Incarnation > incarnation && state == Suspect:
		m.set(w.ID, Healthy, w.Incarnation, false)
	}
}

// refute answers news of one's own failing with a higher incarnation. What is
// final is not refuted: the next epoch is without this process.
func (m *Machine) refute(w Word) {
	if !m.member() || w.State != Suspect && w.State != Failed || w.Incarnation < m.incarnation || w.Incarnation == Final {
		return
	}
	m.incarnation = w.Incarnation + 1
	m.doubts()
	m.beatNow()
	if w.State == Failed {
		m.raise(Word{m.self, Healthy, m.incarnation})
	}
}

// checkQuorum notices that half of the members or more have failed as seen from
// here, or that too few are left, and that no epoch has followed for Config.Orphan.
func (m *Machine) checkQuorum() {
	n, failed, latest := len(m.epoch.Members), 0, Time(0)
	for i := range m.marks {
		if m.marks[i].state == Failed {
			failed++
			latest = max(latest, m.marks[i].since)
		}
	}
	if failed == 0 || m.warned || !m.member() || 2*failed < n && n-failed >= m.cfg.Min || m.now-latest < m.cfg.Orphan {
		return
	}
	m.warned = true
	m.emit(Event{Kind: QuorumLost, ID: m.self, Reason: Orphaned})
}

// silent counts the observed members without a sign of life for two timeouts, but for those that are known to have failed.
func (m *Machine) silent() (count int) {
	for i := range m.watches {
		if m.now-m.watches[i].seen >= 2*m.cfg.Timeout && m.State(m.ids[i]) != Failed {
			count++
		}
	}
	return count
}

// checkIsolation notices that half of those observed have been silent for two
// timeouts without another observer or the leader to confirm it, so that it is
// this process that is cut off; and after Config.Orphan that this goes on.
func (m *Machine) checkIsolation() {
	silent := m.silent()
	switch {
	case silent == 0 || 2*silent < len(m.watches) || m.now-m.leaderSeen < m.cfg.Timeout:
		if m.isolatedSince != far {
			m.isolatedSince, m.warned = far, false
		}
	case m.isolatedSince == far:
		m.isolatedSince = m.now
		m.emit(Event{Kind: Isolated, ID: m.self})
	case !m.warned && m.now-m.isolatedSince >= m.cfg.Orphan:
		m.warned = true
		m.emit(Event{Kind: QuorumLost, ID: m.self, Reason: CutOff})
	}
}
