package watch

import (
	"slices"
	"testing"
)

// A rank that does not come is told by what its threads do from one that its host does not let come: against the ranks of the
// same host that wait in the operation, whose threads wake up as often as those of a rank that hangs.
func TestHangsOnStarvedHosts(t *testing.T) {
	idle, stalled := Turns{Ran: 0.012, Waited: 0.2}, Turns{Ran: 0.003, Waited: 2}
	long, short := Turns{Ran: 0.003, Waited: 2, Times: 2}, Turns{Ran: 0.004, Waited: 0.9, Times: 270} // a core for 15 processes
	for _, c := range []struct {
		name  string
		rank  Turns // that does not come
		peer  Turns // that waits on the same host
		burns float64
		want  string
	}{
		{"hangs and wakes up as those do that wait", idle, idle, 0.012, "hang"},
		{"hangs, on a slower host", Turns{Ran: 0.03, Waited: 0.55}, Turns{Ran: 0.03, Waited: 0.45}, 0.03, "hang"},
		{"hangs alone on its host", idle, Turns{}, 0.012, "hang"},
		{"works", Turns{Ran: 0.05, Waited: 1.1}, idle, 0.05, "host-starved"},
		{"works with little weight", Turns{Ran: 0.004, Waited: 0.95}, idle, 0.004, "host-starved"},
		{"works next to one that spins", Turns{Ran: 0.05, Waited: 0.95}, Turns{Ran: 0.05, Waited: 0.95}, 0.05, "host-starved"},
		{"nobody is let run", stalled, stalled, 0.003, "host-starved"},
		{"nobody is let run, for long each time", long, long, 0.003, "host-starved"},
		{"hangs where each look takes long", short, short, 0.004, "hang"},
		{"hangs there, alone", short, Turns{}, 0.004, "hang"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPlay(8, 5, Config{Hang: 5})
			p.load, p.burns = map[int]Load{3: {CPU: 0.9}}, map[int]float64{6: c.burns, 7: c.peer.Ran}
			p.turns = map[int]Turns{6: {Ran: 0.15, Waited: 1}, 7: {Ran: 0.15, Waited: 1}}
			p.run(20)
			if p.turns[6], p.turns[7], p.stuck = c.rank, c.peer, 6; c.peer == (Turns{}) {
				delete(p.turns, 7) // nobody looks at it
			}
			i, s := p.until(t, 8)
			if i.Kind != c.want || !slices.Equal(i.Subject.Ranks, []int{6}) {
				t.Errorf("%s %v after %d s: %s", i.Kind, i.Subject.Ranks, s, i.Verdict)
			}
			// Once it neither runs nor wants to, it is not slow any more.
			p.turns[6] = idle
			if _, ok := p.turns[7]; ok {
				p.turns[7] = idle
			}
			for s := 0; i.Kind != "hang"; s++ {
				if i, _ = p.until(t, 8); s > 1 {
					t.Fatalf("%s: %s", i.Kind, i.Verdict)
				}
			}
		})
	}
}

// What a rank used long ago says nothing of now: one that works and then hangs is named.
func TestHangsAfterWork(t *testing.T) {
	p := newPlay(8, 5, Config{Hang: 30})
	p.run(20)
	p.load, p.stuck = map[int]Load{3: {CPU: 0.9}}, 6
	p.turns = map[int]Turns{6: {Ran: 0.9, Waited: 0.3}, 7: {Ran: 0.01, Waited: 0.1}}
	p.run(25)
	p.turns[6] = p.turns[7]
	at := p.now
	i, _ := p.until(t, 60)
	for i.Kind == "host-starved" {
		i, _ = p.until(t, 60)
	}
	if i.Kind != "hang" || i.Began-at > 45 {
		t.Errorf("%s after %.0f s: %s", i.Kind, i.Began-at, i.Verdict)
	}
}
