package sim

import (
	"slices"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// maxBoundActions is how many actions of a rank bound looks at closely. Of those after them, up to maxBoundCosts, it takes the
// overhead and the copies alone; what comes then only adds to the time.
const (
	maxBoundActions = 1 << 12
	maxBoundCosts   = 1 << 18
)

// bound is a time that a job cannot fall below, found without simulating it. It
// follows a few ranks alone, as if every message were there at once and every
// link free:
//
//   - a channel does one action after another, so it takes at least the sum of
//     what each of them takes on an idle network;
//   - a link carries at least what these ranks send and receive over it;
//   - a channel that begins with a message begins no earlier than that message can come (chainBound);
//   - what is left of a host with a bad part carries at least what all ranks of this host send and receive over it (boundBad).
//
// A root that sends everything to everybody is found out this way at once, at any
// number of ranks, and an algorithm that cannot be the fastest is not simulated.
func (n *network) bound(j Job) (unit.Time, error) {
	p := j.Program
	code := step.Compile(p)
	chunk := j.chunk()
	var least unit.Time
	n.bounded, n.bounds = p, nil
	for _, r := range sample(p.Ranks, p.Switches) {
		b, err := n.boundRank(j, code.Machine(r), r, chunk)
		if err != nil {
			return 0, err
		}
		n.bounds = append(n.bounds, b)
		least = max(least, b.least())
	}
	chain := &chainBound{n: n, job: j, code: code, chunk: chunk, known: map[chainKey]unit.Time{}}
	for _, b := range n.bounds {
		t, err := chain.least(b)
		if err != nil {
			return 0, err
		}
		least = max(least, t)
	}
	bad, err := n.boundBad(j, code, chunk)
	if err != nil {
		return 0, err
	}
	for _, b := range bad {
		least = max(least, b.least())
	}
	n.bounds = append(n.bounds, bad...)
	return n.o.Costs.Launch + least, nil
}

// maxBadHosts is how many hosts with bad parts bound looks at, and maxBadRanks how many ranks of each.
const (
	maxBadHosts = 4
	maxBadRanks = 16
)

// boundBad follows the ranks of hosts with bad parts, those of a host together: where a NIC failed, the others carry its bytes too.
func (n *network) boundBad(j Job, code *step.Code, chunk int64) ([]*rankBound, error) {
	bad, err := n.badHosts()
	if err != nil || len(bad) == 0 {
		return nil, err
	}
	ranks := map[topo.HostID][]sched.Rank{}
	for r, at := range j.Place[:j.Program.Ranks] {
		if h := n.g.Nodes[at].Host; slices.Contains(bad, h) && len(ranks[h]) < maxBadRanks {
			ranks[h] = append(ranks[h], sched.Rank(r))
		}
	}
	var bounds []*rankBound
	for _, h := range bad {
		if len(ranks[h]) == 0 {
			continue
		}
		b, err := n.boundHost(j, code, ranks[h], chunk)
		if err != nil {
			return nil, err
		}
		bounds = append(bounds, b)
	}
	return bounds, nil
}

// boundHost is bound for the ranks of a host together. It stands under the last of them.
func (n *network) boundHost(j Job, code *step.Code, ranks []sched.Rank, chunk int64) (*rankBound, error) {
	all := n.rankBound(j, ranks[len(ranks)-1], chunk)
	for _, r := range ranks {
		b := n.rankBound(j, r, chunk)
		b.ways, b.load, b.beside = all.ways, all.load, ranks
		if err := b.follow(code.Machine(r)); err != nil {
			return nil, err
		}
		for c, t := range b.busy {
			all.busy[c] = max(all.busy[c], t)
		}
	}
	return all, nil
}

// badHosts lists the first hosts with a part that is dead or slow.
func (n *network) badHosts() ([]topo.HostID, error) {
	if n.whole == nil {
		return nil, nil
	}
	bad, err := findBad(n.whole, &n.o)
	if err != nil {
		return nil, err
	}
	hosts := bad.hosts(n.whole)
	return hosts[:min(len(hosts), maxBadHosts)], nil
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
func (n *network) boundRank(j Job, m *step.Machine, r sched.Rank, chunk int64) (*rankBound, error) {
	b := n.rankBound(j, r, chunk)
	return b, b.follow(m)
}

// follow takes in what a rank does.
func (b *rankBound) follow(m *step.Machine) error {
	var ready []step.Action
	for count := 0; count < maxBoundCosts; {
		if ready = m.Ready(ready[:0]); len(ready) == 0 {
			break
		}
		for i := range ready {
			a := &ready[i]
			count++
			times := int64(1)
			if a.Op != sched.Wait {
				more := m.Again(a.Channel)
				m.Repeat(a.Channel, more)
				times += more
			}
			m.Complete(a.Channel)
			if count > maxBoundActions {
				b.costs(a, times)
				continue
			}
			if err := b.add(a, times); err != nil {
				return err
			}
		}
	}
	return m.Err()
}

// rankBound begins to look at a rank.
func (n *network) rankBound(j Job, r sched.Rank, chunk int64) *rankBound {
	b := &rankBound{n: n, job: j, rank: r, chunk: chunk, factor: 1, ways: map[boundKey]boundWay{},
		busy: make([]float64, j.Program.Channels()), comes: map[boundKey]float64{}, load: map[wire]float64{}}
	if f, ok := n.lame[j.Place[r]]; ok {
		b.factor = f
	}
	if int(r) >= j.Program.Ranks {
		b.factor = 0
	}
	return b
}

// rankBound is what is known so far of what a rank does.
type rankBound struct {
	n      *network
	job    Job
	rank   sched.Rank
	chunk  int64
	factor float64 // what work takes there, 0 for a switch
	ways   map[boundKey]boundWay
	busy   []float64            // picoseconds, by channel
	comes  map[boundKey]float64 // picoseconds, of what it receives, by where that comes from
	load   map[wire]float64     // bytes times whole
	beside []sched.Rank         // those whose load is counted together with its own
}

type boundKey struct {
	from, to sched.Rank
	channel  int32
}

type boundWay struct {
	rate    int64
	latency unit.Time
	uses    []use
}

// way finds which links messages take, and at which rate.
func (b *rankBound) way(from, to sched.Rank, channel int32) (boundWay, error) {
	key := boundKey{from, to, channel}
	w, known := b.ways[key]
	if known {
		return w, nil
	}
	var p path
	w.rate = maxRate
	if at, to := b.job.Place[from], b.job.Place[to]; at != to {
		if err := b.n.route(at, to, channel, &p); err != nil {
			return w, err
		}
	}
	if w.latency = p.latency; p.net {
		w.latency += b.n.o.Costs.Net
	}
	w.uses = slices.Clone(p.uses) // the links between switches are left out: the bound is lower without them
	for _, u := range w.uses {
		w.rate = min(w.rate, rate(b.n.capacity(u.wire), int64(u.share)))
	}
	b.ways[key] = w
	return w, nil
}

// costs takes in an action whose way is not looked at.
func (b *rankBound) costs(a *step.Action, times int64) {
	if a.Op == sched.Wait || b.factor == 0 {
		return
	}
	cost, work := b.n.charges(a.Op, a.Count*b.chunk, b.factor)
	if !a.Op.Sends() {
		cost = 0
	}
	b.busy[a.Channel] += float64(cost+work) * float64(times)
}

// add takes in an action that the rank does a number of times.
func (b *rankBound) add(a *step.Action, times int64) error {
	if a.Op == sched.Wait {
		return nil
	}
	bytes := a.Count * b.chunk
	carry := func(w boundWay) {
		for _, u := range w.uses {
			b.load[u.wire] += float64(bytes) * float64(times) * float64(u.share)
		}
	}
	cost, work := b.n.charges(a.Op, bytes, b.factor)
	took := work
	if a.Op.Receives() {
		w, err := b.way(a.From, b.rank, a.Channel)
		if err != nil {
			return err
		}
		if !slices.Contains(b.beside, a.From) { // or it was counted there, as it was sent
			carry(w)
		}
		b.comes[boundKey{a.From, b.rank, a.Channel}] += float64(span(float64(bytes), w.rate)) * float64(times)
	}
	if a.Op.Sends() {
		w, err := b.way(b.rank, a.To, a.Channel)
		if err != nil {
			return err
		}
		carry(w)
		took = cost + max(work, span(float64(bytes), w.rate))
	}
	if b.factor != 0 { // a switch sends on all its ports at once
		b.busy[a.Channel] += float64(took) * float64(times)
	}
	return nil
}

// least is the time of the busiest channel or link.
func (b *rankBound) least() unit.Time {
	most := slices.Max(b.busy)
	for w, bytes := range b.load {
		most = max(most, bytes/whole/float64(b.n.capacity(w))*1e12)
	}
	// Rounding may have added a little; a bound must not exceed the time itself.
	return unit.Time(min(most*(1-1e-6), 1<<60))
}

// actions is about how many actions that send or receive all ranks take, from a few of them.
func (j Job) actions() int64 {
	actions, _ := j.Footprint()
	return actions
}

// Footprint is about how many actions and how many connections all ranks have, from a few of them.
func (j Job) Footprint() (actions, conns int64) {
	code := step.Compile(j.Program)
	ranks := sample(j.Program.Ranks, 0)
	peers := map[boundKey]bool{}
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
					actions += times
				}
				if a.Op.Sends() {
					peers[boundKey{r, a.To, a.Channel}] = true
				}
				m.Complete(a.Channel)
			}
		}
	}
	all := int64(j.Program.Ranks)
	return actions / int64(len(ranks)) * all, int64(len(peers)) / int64(len(ranks)) * all
}
