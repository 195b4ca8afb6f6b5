package simulation

import (
	"time"

	"github.com/weft-fabric/weft/run/internal/member"
)

// Random makes a world of 2 to 48 ranks with faults of all kinds out of a seed.
// The faults are over by two thirds of its length, so that whoever lives should
// agree in the end.
func Random(seed uint64) Settings {
	w := World{rng: seed * 0xd1342543de82ef95}
	pick := func(n int) int { return int(w.bits() % uint64(n)) }
	span := func(from, to time.Duration) time.Duration { return from + time.Duration(w.random()*float64(to-from)) }
	s := Settings{Seed: seed, Ranks: 2 + pick(47), Member: []member.Config{member.Default(), member.Lab(), member.Hosts()}[pick(3)],
		Outside: pick(2) == 0, Empty: pick(4) == 0, Wire: true}
	t := s.Member.Timeout
	s.Length = 90 * t
	s.Lease = span(t, 4*t)
	s.CatchUp = span(t/4, 2*t)
	if pick(2) == 0 {
		s.Step = span(t/20, t)
	}
	s.Network = Network{Latency: span(0, t/20), Jitter: span(0, t/50), Tail: w.random() * 0.01, TailFor: span(0, t/2),
		Drift: w.random() * 500, Store: span(0, t/10)}
	if pick(2) == 0 {
		s.Network.Loss = w.random() * 0.1
	}
	for range pick(12) {
		f := Fault{At: span(2*time.Second, 40*t+2*time.Second), What: What(pick(len(whats))), For: span(t/10, 8*t), Delay: span(0, t/2),
			Loss: w.random() * 0.5, By: pick(s.Ranks)}
		first := pick(s.Ranks)
		for r := first; r < min(s.Ranks, first+1+pick(1+s.Ranks/3)); r++ {
			f.Ranks = append(f.Ranks, r)
		}
		s.Faults = append(s.Faults, f)
		if f.What == Kill || f.What == Exit {
			s.Faults = append(s.Faults, Fault{At: f.At + span(0, 10*t), What: Join, Ranks: f.Ranks})
		}
	}
	s.Length += 2 * time.Second
	return s
}
