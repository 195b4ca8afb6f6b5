package member_test

import (
	"testing"
	"time"

	"github.com/weft-fabric/weft/run/internal/member"
	"github.com/weft-fabric/weft/run/internal/member/simulation"
)

// A common plain detector: every rank gathers a heartbeat from all others each
// second, suspects a silent one after 10 s and calls it failed after 20. The tests
// below compare it with ours, claim by claim.

// heartbeats is that detector's loop in simulated seconds: it sends, then compares
// the clock with the times of the last heartbeats, and sleeps a second.
type heartbeats struct {
	timeout time.Duration
	last    []time.Duration
	state   []member.State
}

func (d *heartbeats) check(now time.Duration) {
	for r := range d.last {
		switch elapsed := now - d.last[r]; {
		case elapsed > 2*d.timeout:
			d.state[r] = member.Failed
		case elapsed > d.timeout:
			d.state[r] = member.Suspect
		}
	}
}

// "Suspect after one timeout, failed after two": the order and the times hold here,
// counted from the last sign of life.
func TestSuspectAfterOneTimeoutFailedAfterTwo(t *testing.T) {
	cfg := member.Default()
	const death = 3 * time.Second
	var suspect, failed time.Duration
	s := simulation.Settings{Ranks: 16, Seed: 5, Member: cfg, Length: 8 * time.Second,
		Network: simulation.Network{Latency: 100 * time.Microsecond, Store: time.Millisecond},
		Faults:  []simulation.Fault{{At: death, What: simulation.Kill, Ranks: []int{7}}},
		Log: func(at time.Duration, _ member.ID, e member.Event) {
			if e.Kind == member.Suspected && suspect == 0 {
				suspect = at
			}
			if e.Kind == member.Died && failed == 0 {
				failed = at
			}
		}}
	if _, err := simulation.Run(s); err != nil {
		t.Fatal(err)
	}
	// The last beat left up to an interval before the death.
	for _, c := range []struct {
		what     string
		got      time.Duration
		timeouts time.Duration
	}{{"suspect", suspect - death, 1}, {"failed", failed - death, 2}} {
		if lo, hi := c.timeouts*cfg.Timeout-cfg.Interval, c.timeouts*cfg.Timeout+time.Millisecond; c.got < lo || c.got > hi {
			t.Errorf("%s after %v, not between %v and %v", c.what, c.got, lo, hi)
		}
	}
}

// "Detection in milliseconds" is claimed for it with a timeout of 10 s: a dead
// rank is failed after 20 to 21 s there. A process that exits is known here within
// a flood, a host that goes silent within two timeouts, 1.6 s; milliseconds are
// not to be had for silence, as a process that is merely stopped for a few of
// them is no different from a dead one.
func TestPlainHeartbeatsTakeTwentySeconds(t *testing.T) {
	d := heartbeats{10 * time.Second, make([]time.Duration, 2), make([]member.State, 2)}
	death, now := 500*time.Millisecond, time.Duration(0)
	for ; d.state[1] != member.Failed; now += time.Second {
		d.last[0] = now // what the loop would do if it kept what it receives
		if now < death {
			d.last[1] = now
		}
		d.check(now)
	}
	theirs := now - time.Second - death
	cfg := member.Default()
	if ours := cfg.Bound(); theirs < 20*time.Second || ours >= 2*time.Second || theirs < 10*ours {
		t.Errorf("theirs %v, ours %v", theirs, ours)
	}
}

// Its loop never stores a heartbeat that it receives: with all ranks alive it
// calls all of them failed 21 s after the start.
func TestPlainHeartbeatsFailTheLiving(t *testing.T) {
	d := heartbeats{10 * time.Second, make([]time.Duration, 4), make([]member.State, 4)}
	for now := time.Duration(0); now <= 21*time.Second; now += time.Second {
		d.check(now)
	}
	for r, s := range d.state {
		if s != member.Failed {
			t.Errorf("rank %d is %v", r, s)
		}
	}
	r, err := simulation.Run(simulation.Settings{Ranks: 4, Seed: 1, Member: member.Default(), Network: simulation.Datacenter(),
		Length: 5 * time.Minute})
	if err != nil || r.Suspected+r.Failed+r.Epochs != 0 {
		t.Errorf("five quiet minutes: %v\n%v", err, r)
	}
}

// It gathers the heartbeats of all at all: n(n-1) a second, 100 million for 10,000
// ranks, and a gather never ends once one rank is dead. Here a rank sends the
// same whatever the number of ranks, five times as often.
func TestHeartbeatsOfAllToAll(t *testing.T) {
	cfg := member.Default()
	for _, n := range []int{16, 128, 1024} {
		r, err := simulation.Run(simulation.Settings{Ranks: n, Seed: 1, Member: cfg, Network: simulation.Datacenter(), Length: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		formula := float64(cfg.Observers) / cfg.Interval.Seconds()
		if r.Sent < 0.95*formula || r.Sent > 1.05*formula {
			t.Errorf("%d ranks: each sends %.1f messages a second, not %.1f", n, r.Sent, formula)
		}
		if theirs := float64(n - 1); n > 100 && theirs < 5*r.Sent {
			t.Errorf("%d ranks: heartbeats of all to all are %.0f messages a second and rank, we %.1f", n, theirs, r.Sent)
		}
	}
}

// It lists the state "recovering" and never enters it. Here a rank that comes back
// is recovering before it is healthy, in every rank's view.
func TestReturnedRanksRecoverFirst(t *testing.T) {
	seen := map[member.ID][]member.Kind{}
	s := simulation.Settings{Ranks: 6, Seed: 2, Member: member.Default(), Network: simulation.Datacenter(), Length: 12 * time.Second,
		CatchUp: time.Second, Step: 100 * time.Millisecond,
		Faults: []simulation.Fault{{At: 2 * time.Second, What: simulation.Kill, Ranks: []int{4}},
			{At: 5 * time.Second, What: simulation.Join, Ranks: []int{4}}},
		Log: func(_ time.Duration, r member.ID, e member.Event) {
			if e.ID == 4 && r != 4 && e.Kind <= member.Recovered {
				seen[r] = append(seen[r], e.Kind)
			}
		}}
	if _, err := simulation.Run(s); err != nil {
		t.Fatal(err)
	}
	for r := range member.ID(6) {
		k := seen[r]
		if r == 4 {
			continue
		}
		if n := len(k); n < 3 || k[n-3] != member.Died || k[n-2] != member.Returned || k[n-1] != member.Recovered {
			t.Errorf("r%d saw r4 %v", r, k)
		}
	}
}
