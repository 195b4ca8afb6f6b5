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
	if m.State(1) != Healthy || m.State(2) != Failed || !slices.ContainsFunc(accused(), func(e Event) bool { return e.ID == 2 && e.Kind == Died }) {
		t.Errorf("r1, which beats, is %v; r2, which does not, is %v", m.State(1), m.State(2))
	}
}
