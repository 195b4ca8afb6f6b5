package sim

import (
	"math"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// What a job takes at least is told before any way of its messages is looked for, where each rank sends to very many others: an
// all-to-all on 131,072 GPUs has a million ways among eight of them alone, and finding these takes most of the time. One rank of each
// kind (kinds.go) is simulated with the best that any way might be:
//
//	in a host        at no cost
//	between hosts    as fast as the fastest GPU reaches its leaf, and as near as two such GPUs under one leaf
//
// TestNoTimeIsBelowTheSoonest holds it to simulations.

// manyPeers is the number of ways of one rank of each kind from which it is worth it.
const manyPeers = 1 << 12

// maxGuests bounds the ranks of a host, each of which has ways to all others.
const maxGuests = 64

// soonest is ErrLate if a job takes longer than a deadline even with the best ways that there might be.
func (n *network) soonest(jobs []Job, deadline unit.Time, peers int) error {
	if len(jobs) != 1 || deadline == 0 {
		return nil
	}
	k := n.guess(jobs[0], deadline, peers)
	if k == nil {
		return nil
	}
	err := k.run()
	n.work += k.actions - k.folded
	return err
}

// canGuess reports whether ranks depend on each other alone, and messages take ways that outward knows.
func (n *network) canGuess(j Job) bool {
	return j.Program.Switches == 0 && j.Repeat <= 1 && n.o.Processors == nil && !n.o.plain() && !n.o.PXN && n.o.ways == nil
}

// guess is the world with one rank of each kind; nil if there are no kinds, fewer ways than wanted, or ways that are none of the two.
func (n *network) guess(j Job, deadline unit.Time, peers int) *world {
	if !n.canGuess(j) {
		return nil
	}
	p := j.Program
	code := step.Compile(p)
	base, swaps := n.base(code, p)
	if base == 0 || int(base) >= p.Ranks {
		return nil
	}
	ways := n.guessed(j, code, base, swaps, peers)
	if ways == nil {
		return nil
	}
	r := &run{job: j, code: code, world: int32(p.Ranks), period: int32(p.Ranks), swaps: swaps, channels: int32(p.Channels()),
		chunk: j.chunk(), waits: code.Waits()}
	w := &world{o: n.o, net: n, runs: []*run{r}}
	w.fold.on = !n.o.Unfolded
	for rank, at := range j.Place {
		factor, lame := n.lame[at]
		if !lame {
			factor = 1
		}
		w.ranks, w.lame = append(w.ranks, sched.Rank(rank)), append(w.lame, factor)
	}
	return w.ofKinds(base, swaps, deadline, ways)
}

// guessed are the best ways that there might be; nil if these are fewer than wanted, or others than inside a host and between two.
func (n *network) guessed(j Job, code *step.Code, base int32, swaps bool, peers int) map[kindKey]kindWay {
	ways := map[kindKey]kindWay{}
	if !code.Sends(int(base), func(from, to sched.Rank, channel int32) bool {
		ways[kindKey{int32(from), apart(int32(from), int32(to), int32(j.Program.Ranks), swaps), channel}] = kindWay{}
		return true
	}) || len(ways) < peers {
		return nil
	}
	out, ok := n.outward(j.Place)
	if !ok {
		return nil
	}
	inside := n.neighbours(j.Place, swaps)
	if inside == nil {
		return nil
	}
	for key := range ways {
		if ways[key] = out; inside[key.delta] {
			ways[key] = kindWay{rate: maxRate}
		}
	}
	return ways
}

// outward is the best way between two hosts that there might be; false if a GPU might leave its host otherwise than by its NIC.
func (n *network) outward(place []topo.NodeID) (kindWay, bool) {
	best := kindWay{latency: math.MaxInt64 / 4}
	for _, at := range place {
		w, ok := n.toLeaf(at)
		if !ok {
			return best, false
		}
		best.rate, best.latency = max(best.rate, w.rate), min(best.latency, w.latency)
	}
	best.latency = 2*best.latency + n.o.Costs.Net
	return best, true
}

// toLeaf is how fast a GPU's bytes reach the first switch, and when; the chip of that switch is left out.
func (n *network) toLeaf(at topo.NodeID) (kindWay, bool) {
	g := n.g
	node, nic := &g.Nodes[at], g.Near(at)
	if node.Kind != topo.GPU || node.Host == topo.None || n.hosts[node.Host].open || nic == topo.None || g.Nodes[nic].Host != node.Host {
		return kindWay{}, false
	}
	cable := n.cable(g.Edges(nic))
	if cable.Link == topo.None {
		return kindWay{}, false
	}
	var out, in path
	if n.inside(at, nic, &out, false) != nil || n.inside(nic, at, &in, false) != nil {
		return kindWay{}, false
	}
	w := kindWay{rate: n.capacity(n.wire(cable.Link, nic)), latency: min(out.latency, in.latency) + g.LinkLatency(cable.Link) + n.chip(nic, 0)}
	for _, u := range out.uses {
		w.rate = min(w.rate, rate(n.capacity(u.wire), int64(u.share)))
	}
	return w, true
}

// neighbours are the distances, as apart counts, between ranks of one host; nil if a host has too many.
func (n *network) neighbours(place []topo.NodeID, swaps bool) map[int32]bool {
	guests := map[topo.HostID][]int32{}
	for r, at := range place {
		h := n.g.Nodes[at].Host
		if guests[h] = append(guests[h], int32(r)); len(guests[h]) > maxGuests {
			return nil
		}
	}
	found := map[int32]bool{}
	for _, ranks := range guests {
		for _, a := range ranks {
			for _, b := range ranks {
				found[apart(a, b, int32(len(place)), swaps)] = true
			}
		}
	}
	return found
}
