package simulation

import (
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weft-fabric/weft/run/internal/member"
)

var worlds = flag.Uint64("worlds", 0, "run this number of seeds of TestRandomWorlds")

var seed = flag.Uint64("seed", 0, "run only this seed of TestRandomWorlds, with its log")

// Whatever happens, epochs never go back, one number never has two lists, and
// once the faults are over those that the store lists agree with it and on one
// another's health.
func TestRandomWorlds(t *testing.T) {
	first, last := uint64(1), uint64(200)
	if testing.Short() {
		last = 50
	}
	if *worlds != 0 {
		last = *worlds
	}
	if *seed != 0 {
		first, last = *seed, *seed
	}
	epochs, settled := 0, 0
	for s := first; s <= last; s++ {
		n, err := try(t, s)
		epochs += n
		settled += min(n, 1)
		if err != nil {
			t.Errorf("%v\nreplay: go test ./run/internal/member/simulation -run RandomWorlds -v -seed=%d", err, s)
		}
	}
	t.Logf("%d worlds, of which %d changed and settled, with %d epochs", last-first+1, settled, epochs)
	if *seed == 0 && settled < int(last)/2 {
		t.Errorf("only %d of %d worlds came to rest after a change; the others say little", settled, last)
	}
}

func try(t *testing.T, seed0 uint64) (int, error) {
	s := Random(seed0)
	lists := map[uint64]string{}
	latest := map[[2]uint64]uint64{} // by rank and life
	var broken error
	var w *World
	s.Log = func(at time.Duration, r member.ID, e member.Event) {
		if *seed != 0 {
			t.Logf("%v r%d: %v r%d %v %v", at, r, e.Kind, e.ID, e.Reason, e.Epoch)
		}
		if e.Kind != member.EpochChanged || broken != nil {
			return
		}
		list := fmt.Sprint(e.Epoch.Members, e.Epoch.Leader, e.Epoch.AfterStep, e.Epoch.Halt)
		if old, ok := lists[e.Epoch.Number]; ok && old != list {
			broken = fmt.Errorf("at %v r%d has an epoch %d of %s, another has %s", at, r, e.Epoch.Number, list, old)
		}
		lists[e.Epoch.Number] = list
		process := [2]uint64{uint64(r), 1}
		if w != nil {
			process[1] = w.nodes[r].life
		}
		if e.Epoch.Number < latest[process] {
			broken = fmt.Errorf("at %v r%d goes back from epoch %d to %d", at, r, latest[process], e.Epoch.Number)
		}
		latest[process] = e.Epoch.Number
	}
	if *seed != 0 {
		for _, f := range s.Faults {
			t.Logf("%v %v %v for %v", f.At, f.What, f.Ranks, f.For)
		}
		t.Logf("%d ranks, outside %v, empty %v, interval %v, lease %v, network %+v",
			s.Ranks, s.Outside, s.Empty, s.Member.Interval, s.Lease, s.Network)
	}
	w, err := New(s)
	if err != nil {
		return 0, err
	}
	for w.Step() && broken == nil {
	}
	if w.Err != nil || broken != nil {
		return 0, cmpOr(w.Err, broken)
	}
	if w.store == nil || w.store.Halt != member.NoReason || w.report.QuorumLost > 0 {
		return 0, nil // some were asked to leave, which ranks of this world do not do
	}
	if *seed != 0 {
		t.Logf("store: %v", w.store)
	}
	if !slices.ContainsFunc(w.store.Members, func(m member.Member) bool { return w.nodes[m.ID].up && w.nodes[m.ID].life == m.Life }) {
		return 0, nil // all are gone at once, and nobody is left to notice
	}
	for _, m := range w.store.Members {
		x := &w.nodes[m.ID]
		if !x.up || x.life != m.Life {
			return 0, fmt.Errorf("the store's %v lists r%d with life %d, which is gone", w.store, m.ID, m.Life)
		}
		if got := x.machine.Epoch(); got == nil || got.Number != w.store.Number {
			return 0, fmt.Errorf("r%d is in %v, the store has %v", m.ID, got, w.store)
		}
		for _, o := range w.store.Members {
			if got := x.machine.State(o.ID); s.Network.Loss == 0 && (got == member.Failed || got == member.Suspect) {
				return 0, fmt.Errorf("r%d holds r%d %v, which lives", m.ID, o.ID, got)
			}
		}
	}
	return w.report.Epochs, nil
}

func cmpOr(a, b error) error {
	if a != nil {
		return a
	}
	return b
}
