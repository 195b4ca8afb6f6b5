package member

import "slices"

// Withdraw says that a process that asked to join is there no more. Without it an
// epoch would list the process first and be followed by one without it.
func (m *Machine) Withdraw(now Time, id ID, life uint64) {
	m.wake(now)
	if m.lead != nil {
		m.lead.joins = slices.DeleteFunc(m.lead.joins, func(p request) bool { return p.id == id && p.life == life })
	}
	m.settle()
}
