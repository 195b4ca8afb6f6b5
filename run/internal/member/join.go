package member

import "time"

// Join asks to be let in through any of the processes named, which hand the wish
// to the leader. The life must differ from those of earlier processes of this id.
// It goes on until an epoch lists this process (EpochChanged) or it is Refused.
func (m *Machine) Join(now Time, life uint64, via []ID) {
	m.wake(now)
	m.life, m.via, m.tried = life, append([]ID{}, via...), 0
	m.incarnation, m.leaving, m.caughtUp = 0, false, false
	m.me = -1
	m.rewatch(m.epoch)
	m.askAgain()
	m.settle()
}

// Leave asks for an epoch without this process; it goes on as a member until
// Evicted comes.
func (m *Machine) Leave(now Time) {
	m.wake(now)
	m.leaving = m.member()
	m.askAgain()
	m.settle()
}

// CaughtUp says that this process, a recovering member, has the state of the
// others; it becomes active at a step boundary.
func (m *Machine) CaughtUp(now Time) {
	m.wake(now)
	m.caughtUp = m.member() && m.epoch.Members[m.me].Recovering
	m.askAgain()
	m.settle()
}

// Boundary says that this process has done a step.
func (m *Machine) Boundary(now Time, step uint64) {
	m.wake(now)
	if step > m.step && m.step > 0 {
		took := (m.now - m.stepAt) / time.Duration(step-m.step)
		if m.pace == 0 {
			m.pace = took
		}
		m.pace += (took - m.pace) / 4
	}
	m.step, m.stepAt = max(m.step, step), m.now
	m.settle()
}

// Exited says that the process of a member was seen to end, by the one that
// started it or by the kernel. Life 0 stands for the process that the epoch lists.
// It needs no timeout and cannot be refuted.
func (m *Machine) Exited(now Time, id ID, life uint64) {
	m.wake(now)
	if i := m.epoch.Index(id); i >= 0 && id != m.self && (life == 0 || life == m.epoch.Members[i].Life) && m.State(id) != Failed {
		m.set(id, Failed, Final, true)
		m.raise(Word{id, Failed, Final})
	}
	m.settle()
}

// askAgain repeats what the leader has not yet done.
func (m *Machine) askAgain() {
	m.nextAsk = m.now + m.cfg.Retry
	msg := Message{Subject: m.self, SubjectLife: m.life, Step: m.step, Age: m.pace}
	switch {
	case m.via != nil:
		msg.Verb = Enter
		switch {
		case m.lead != nil:
			m.lead.enter(m, m.self, m.life)
		case len(m.via) > 0:
			m.send(m.via[m.tried%len(m.via)], msg)
			m.tried++
		}
	case m.leaving:
		msg.Verb = Exit
		m.ask(msg)
	case m.caughtUp:
		msg.Verb = Caught
		m.ask(msg)
	default:
		m.nextAsk = far
	}
}

// ask puts a wish to the leader, which may be this process.
func (m *Machine) ask(msg Message) {
	if m.lead != nil {
		m.lead.request(m, &msg)
		return
	}
	m.send(m.leader(), msg)
}

// request takes a wish, or hands it to the leader.
func (m *Machine) request(msg *Message) {
	if m.lead != nil {
		m.lead.request(m, msg)
		return
	}
	if d := m.leader(); d != m.self && d != msg.From {
		m.send(d, Message{Verb: msg.Verb, Subject: msg.Subject, SubjectLife: msg.SubjectLife, Step: msg.Step, Age: msg.Age})
	}
}

// report tells the leader how far training is, while a member waits to be
// activated; the first active member does it for all.
func (m *Machine) report() {
	if m.step > 0 && m.epoch.recovering && m.epoch.first == int32(m.me) {
		m.send(m.leader(), Message{Verb: Pace, Step: m.step, Age: m.pace})
	}
}
