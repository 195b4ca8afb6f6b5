package member

import (
	"slices"
	"testing"
)

// A process that was stopped for ten timeouts finds everyone silent when it goes
// on. It holds that against nobody, and against those that stay silent it counts
// from then.
func TestAStoppedObserverAccusesNobody(t *testing.T) {
	cfg := Default()
	m, err := New(cfg, 0, 1, 1, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	e := &Epoch{Number: 1, Leader: 0, Observers: 2, Members: []Member{{0, 1, false}, {1, 1, false}, {2, 1, false}}}
	m.Decided(0, e)
	m.Lead(0, e)
	m.Advance()
	beat := func(now Time, from ID) {
		m.Message(now, &Message{Verb: Beat, From: from, Life: 1, EpochNumber: 1})
	}
	now := Time(0)
	for ; now < 10*cfg.Interval; now += cfg.Interval / 2 {
		beat(now, 1)
		beat(now, 2)
		m.Tick(now)
	}
	accused := func() (list []Event) {
		for _, e := range m.Ready().Events {
			if e.Kind == Suspected || e.Kind == Died {
				list = append(list, e)
			}
		}
		return list
	}
	now += 10 * cfg.Timeout
	m.Tick(now)
	if list := accused(); len(list) > 0 {
		t.Fatalf("after a stop of ten timeouts: %+v", list)
	}
	m.Advance()
	end := now + 3*cfg.Timeout // a quarter of doubt on two timeouts, and a look to spare
	for ; now < end; now += cfg.Interval / 4 {
		beat(now, 1)
		m.Tick(now)
		if m.Ready().Read {
			m.Decided(now, e)
		}
	}
	if m.State(1) != Healthy || m.State(2) != Failed ||
		!slices.ContainsFunc(accused(), func(e Event) bool { return e.ID == 2 && e.Kind == Died }) {
		t.Errorf("r1, which beats, is %v; r2, which does not, is %v", m.State(1), m.State(2))
	}
}

// outsideLeader is a leader that is no member, with a job of four that needs four.
func outsideLeader(t *testing.T, wait Time) *Machine {
	cfg := Default()
	cfg.Min, cfg.Max, cfg.Return, cfg.MaxFailures = 4, 4, wait, 1000
	m, err := New(cfg, 99, 1, 1, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	m.Lead(0, nil)
	m.Tick(0)
	for id := range ID(4) {
		m.Message(1, &Message{Verb: Enter, From: id, Life: 1, Subject: id, SubjectLife: 1})
	}
	p := m.Ready().Proposal
	if p == nil || len(p.Next.Members) != 4 {
		t.Fatalf("four joined: %+v", p)
	}
	m.Advance()
	m.Decided(2, p.Next)
	m.Advance()
	return m
}

// tickUntil calls Tick as Next asks for it, and takes proposals, until the job is
// asked to leave.
func tickUntil(t *testing.T, m *Machine, end Time, each func(due Time) (now Time)) (halted Time) {
	t.Helper()
	for now := m.now; now < end; {
		now = min(max(m.Next(), now+1), end)
		if each != nil {
			now = each(now)
		}
		m.Tick(now)
		p := m.Ready().Proposal
		m.Advance()
		if p != nil {
			if p.Next.Halt != NoReason {
				return now
			}
			m.Decided(now, p.Next)
			m.Advance()
		}
	}
	return far
}

// A member is gone for good. The leader sleeps until the wait is over: that it slept
// is no reason to wait again.
func TestTooFewAfterTheWait(t *testing.T) {
	const wait = 30 * Time(1e9)
	m := outsideLeader(t, wait)
	m.Exited(10, 3, 1)
	m.Advance()
	if at := tickUntil(t, m, 10*wait, nil); at > 10+wait {
		t.Errorf("asked to leave after %v, not after %v", at, wait)
	}
}

// A process that dies as often as it is started is not waited for without end.
func TestTooFewWhileOneDiesAgainAndAgain(t *testing.T) {
	const wait = Time(1e9)
	m := outsideLeader(t, wait)
	m.Exited(10, 3, 1)
	m.Advance()
	life, alive := uint64(1), false
	next := Time(100e6)
	if at := tickUntil(t, m, 10*wait, func(due Time) Time {
		if due < next {
			return due
		}
		now := next
		next += 100e6
		if alive {
			m.Exited(now, 3, life)
		} else {
			life++
			m.Message(now, &Message{Verb: Enter, From: 3, Life: life, Subject: 3, SubjectLife: life})
		}
		alive = !alive
		return now
	}); at > 2*wait {
		t.Errorf("asked to leave after %v, not soon after %v", at, wait)
	}
}

// A process that is back and catches up may take longer than the wait.
func TestWhoCatchesUpIsWaitedFor(t *testing.T) {
	const wait = Time(1e9)
	m := outsideLeader(t, wait)
	m.Exited(10, 3, 1)
	m.Message(20, &Message{Verb: Enter, From: 3, Life: 2, Subject: 3, SubjectLife: 2})
	if at := tickUntil(t, m, 10*wait, nil); at != far || m.State(3) != Recovering {
		t.Errorf("asked to leave after %v; the member is %v", at, m.State(3))
	}
}
