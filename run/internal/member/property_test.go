package member_test

import (
	"slices"
	"testing"
	"time"

	"github.com/weft-fabric/weft/run/internal/member"
	"github.com/weft-fabric/weft/run/internal/member/simulation"
	"pgregory.net/rapid"
)

func configs(t *rapid.T) member.Config {
	return rapid.SampledFrom([]func() member.Config{member.Default, member.Lab, member.Hosts}).Draw(t, "config")()
}

func span(t *rapid.T, name string, from, to time.Duration) time.Duration {
	return time.Duration(rapid.Int64Range(int64(from), int64(to)).Draw(t, name))
}

// On a network that loses nothing, a rank that is never silent for a timeout of
// its own making is never called failed: not when it or its observers are stopped
// for up to a timeout, at once or in turn, not when clocks drift, not when
// messages take a tenth of a timeout.
func TestNobodyWhoAnswersIsFailed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := configs(t)
		n := rapid.IntRange(2, 30).Draw(t, "ranks")
		s := simulation.Settings{Ranks: n, Seed: rapid.Uint64().Draw(t, "seed"), Member: cfg, Wire: true,
			Outside: rapid.Bool().Draw(t, "outside"), Length: 40 * cfg.Timeout,
			Network: simulation.Network{Latency: span(t, "latency", 0, cfg.Timeout/10), Drift: 500, Store: time.Millisecond}}
		for range rapid.IntRange(0, 12).Draw(t, "pauses") {
			from := rapid.IntRange(0, n-1).Draw(t, "first")
			f := simulation.Fault{At: span(t, "at", cfg.Timeout, 30*cfg.Timeout), What: simulation.Pause, For: span(t, "for", 1, cfg.Timeout*9/10)}
			for r := from; r < min(n, from+rapid.IntRange(1, n).Draw(t, "count")); r++ {
				f.Ranks = append(f.Ranks, r)
			}
			s.Faults = append(s.Faults, f)
		}
		// Two pauses of a rank with less than a beat between are one long silence.
		s.Faults = apart(s.Faults, cfg.Timeout)
		s.Log = func(at time.Duration, r member.ID, e member.Event) {
			if e.Kind == member.Died {
				t.Errorf("at %v r%d calls r%d failed, which lives", at, r, e.ID)
			}
		}
		if _, err := simulation.Run(s); err != nil {
			t.Fatal(err)
		}
	})
}

// apart drops pauses that touch a rank within a gap of an earlier one.
func apart(list []simulation.Fault, gap time.Duration) []simulation.Fault {
	slices.SortStableFunc(list, func(a, b simulation.Fault) int { return int(a.At - b.At) })
	free := map[int]time.Duration{}
	var kept []simulation.Fault
	for _, f := range list {
		if slices.ContainsFunc(f.Ranks, func(r int) bool { return f.At < free[r] }) {
			continue
		}
		for _, r := range f.Ranks {
			free[r] = f.At + f.For + gap
		}
		kept = append(kept, f)
	}
	return kept
}

// A dead rank that has a living observer is failed within Config.Bound of its
// death (and a message), and every living rank knows a flood later; those whose
// observers all died with it are given new ones by the epoch that removes these.
func TestTheDeadFailWithinTheBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := configs(t)
		n := rapid.IntRange(2, 60).Draw(t, "ranks")
		latency := span(t, "latency", 0, 2*time.Millisecond)
		s := simulation.Settings{Ranks: n, Seed: rapid.Uint64().Draw(t, "seed"), Member: cfg, Wire: true, Outside: true,
			Network: simulation.Network{Latency: latency, Drift: 200, Store: time.Millisecond}}
		at := span(t, "at", 2*cfg.Timeout, 4*cfg.Timeout)
		dead := rapid.SliceOfNDistinct(rapid.IntRange(0, n-1), 1, max(1, n/2), rapid.ID[int]).Draw(t, "dead")
		s.Faults = []simulation.Fault{{At: at, What: simulation.Kill, Ranks: dead}}
		s.Length = at + 8*cfg.Timeout
		w, err := simulation.New(s)
		if err != nil {
			t.Fatal(err)
		}
		observed := func(id int) bool {
			return slices.ContainsFunc(w.Store().ObserversOf(member.ID(id)), func(o member.ID) bool { return !slices.Contains(dead, int(o)) })
		}
		direct := map[int]bool{}
		for _, d := range dead {
			direct[d] = observed(d)
		}
		// The flood has at most n hops of one latency and one pause between batches.
		spread := time.Duration(min(n, 12)) * (latency + cfg.Flush)
		slack := 4*latency + 5*time.Millisecond + cfg.Timeout/1000
		limit := at + cfg.Bound() + slack + spread
		for w.Step() {
			if w.Now() > limit {
				break
			}
		}
		for r := range n {
			if slices.Contains(dead, r) {
				continue
			}
			for _, d := range dead {
				if got := w.Machine(member.ID(r)).State(member.ID(d)); direct[d] && got != member.Failed {
					t.Fatalf("%v after its death r%d is %v to r%d; dead are %v", w.Now()-at, d, got, r, dead)
				}
			}
		}
		for w.Step() {
		}
		for r := range n {
			if e := w.Machine(member.ID(r)).Epoch(); !slices.Contains(dead, r) && len(e.Members) != n-len(dead) {
				t.Fatalf("in the end r%d has %v; dead are %v", r, e, dead)
			}
		}
	})
}

// A process that is seen to exit is known to all within a flood.
func TestAnExitIsKnownAtOnce(t *testing.T) {
	s := simulation.Settings{Ranks: 64, Seed: 1, Member: member.Default(), Wire: true, Length: 4 * time.Second,
		Network: simulation.Network{Latency: 50 * time.Microsecond, Store: time.Millisecond},
		Faults:  []simulation.Fault{{At: 2 * time.Second, What: simulation.Exit, Ranks: []int{8, 9, 10, 11, 12, 13, 14, 15}}}}
	r, err := simulation.Run(s)
	if err != nil {
		t.Fatal(err)
	}
	if r.Deaths != 8 || r.Unknown != 0 || simulation.Quantile(r.Known, 1) > 100*time.Millisecond {
		t.Errorf("eight exits are to be known to all within 100 ms:\n%v", r)
	}
}
