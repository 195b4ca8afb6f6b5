package sim

import (
	"slices"

	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/sched/step"
	"github.com/weft-fabric/weft/unit"
)

// maxBoundActions is how many actions of a rank bound looks at. What comes after
// them only adds to the time.
const maxBoundActions = 1 << 12

// bound is a time that a job cannot fall below, found without simulating it. It
// follows a few ranks alone, as if every message were there at once and every
// link free:
//
//   - a channel does one action after another, so it takes at least the sum of
//     what each of them takes on an idle network;
//   - a link carries at least what these ranks send and receive over it.
//
// A root that sends everything to everybody is found out this way at once, at any
// number of ranks, and an algorithm that cannot be the fastest is not simulated.
func (n *network) bound(j Job) (unit.Time, error) {
	p := j.Program
	code := step.Compile(p)
	chunk := j.chunk()
	var least unit.Time
	for _, r := range sample(p.Ranks, p.Switches) {
		t, err := n.boundRank(j, code.Machine(r), r, chunk)
		if err != nil {
			return 0, err
		}
		least = max(least, t)
	}
	return n.o.Costs.Launch + least, nil
}

// sample chooses the ranks that bound looks at: the root and its neighbour, some
// in the middle, the last, and a switch.
func sample(ranks, switches int) []sched.Rank {
	list := []sched.Rank{0, 1, sched.Rank(ranks / 2), sched.Rank(ranks - 1)}
	if switches > 0 {
		list = append(list, sched.Rank(ranks))
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// boundRank is bound for one rank.
func (n *network) boundRank(j Job, m *step.Machine, r sched.Rank, chunk int64) (unit.Time, error) {
	type way struct {
		rate int64
		uses []use
	}
	type wayKey struct {
		from, to sched.Rank
		channel  int32
	}
	ways := map[wayKey]way{}
	find := func(from, to sched.Rank, channel int32) (way, error) {
		key := wayKey{from, to, channel}
		w, known := ways[key]
		if known {
			return w, nil
		}
		var p path
		w.rate = maxRate
		if a, b := j.Place[from], j.Place[to]; a != b {
			if err := n.route(a, b, channel, &p); err != nil {
				return w, err
			}
		}
		w.uses = slices.Clone(p.uses) // the links between switches are left out: the bound is lower without them
		for _, u := range w.uses {
			w.rate = min(w.rate, rate(n.capacity(u.wire), int64(u.share)))
		}
		ways[key] = w
		return w, nil
	}
	factor := 1.0
	if f, ok := n.lame[j.Place[r]]; ok {
		factor = f
	}
	if int(r) >= j.Program.Ranks {
		factor = 0
	}
	busy := make([]float64, j.Program.Channels()) // picoseconds, by channel
	load := map[wire]float64{}                    // bytes times whole
	carry := func(w way, bytes float64) {
		for _, u := range w.uses {
			load[u.wire] += bytes * float64(u.share)
		}
	}
	var ready []step.Action
	for count := 0; count < maxBoundActions; {
		if ready = m.Ready(ready[:0]); len(ready) == 0 {
			break
		}
		for _, a := range ready {
			count++
			times := int64(1)
			if a.Op != sched.Wait {
				more := m.Again(a.Channel)
				m.Repeat(a.Channel, more)
				times += more
			}
			m.Complete(a.Channel)
			if a.Op == sched.Wait {
				continue
			}
			bytes := a.Count * chunk
			cost, work := n.charges(a.Op, bytes, factor)
			took := work
			if a.Op.Receives() {
				w, err := find(a.From, r, a.Channel)
				if err != nil {
					return 0, err
				}
				carry(w, float64(bytes)*float64(times))
			}
			if a.Op.Sends() {
				w, err := find(r, a.To, a.Channel)
				if err != nil {
					return 0, err
				}
				carry(w, float64(bytes)*float64(times))
				took = cost + max(work, span(float64(bytes), w.rate))
			}
			if factor != 0 { // a switch sends on all its ports at once
				busy[a.Channel] += float64(took) * float64(times)
			}
		}
	}
	most := slices.Max(busy)
	for w, bytes := range load {
		most = max(most, bytes/whole/float64(n.capacity(w))*1e12)
	}
	// Rounding may have added a little; a bound must not exceed the time itself.
	return unit.Time(min(most*(1-1e-6), 1<<60)), m.Err()
}

// actions is about how many actions that send or receive all ranks take, from a few of them.
func (j Job) actions() int64 {
	code := step.Compile(j.Program)
	ranks := sample(j.Program.Ranks, 0)
	total := int64(0)
	var ready []step.Action
	for _, r := range ranks {
		m := code.Machine(r)
		for count := 0; count < maxBoundActions; {
			if ready = m.Ready(ready[:0]); len(ready) == 0 {
				break
			}
			for _, a := range ready {
				count++
				times := int64(1)
				if a.Op != sched.Wait {
					more := m.Again(a.Channel)
					m.Repeat(a.Channel, more)
					times += more
				}
				if a.Op.Sends() || a.Op.Receives() {
					total += times
				}
				m.Complete(a.Channel)
			}
		}
	}
	return total / int64(len(ranks)) * int64(j.Program.Ranks)
}
