package sim

import (
	"slices"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/topo/rings"
)

// Orders places rings on a machine: the ranks, which stand on the GPUs given, as
// each ring passes them. Inside one host without NVSwitches they are the rings
// that the search finds; over hosts there is a ring for every NIC of a host, up
// to maxRings, so that all NICs carry the same. Nil means that one ring in the
// order of the ranks is as good.
//
//	ring 0    0 1 2 3 4 5 6 7    7 6 5 4 3 2 1 0    0 1 2 ...
//	ring 1    1 2 3 4 5 6 7 0    0 7 6 5 4 3 2 1    1 2 3 ...
//	          first host         second host        third host
//
// Every other host is passed backwards: what leaves at one rail enters the next
// host at the same, and no byte has to cross to another rail.
func Orders(g *topo.Graph, gpus []topo.NodeID, c *catalog.Catalog) [][]sched.Rank {
	if len(gpus) < 2 {
		return nil
	}
	if local := DomainOf(g, gpus); local < len(gpus) {
		if !inBlocks(g, gpus, local) {
			return nil
		}
		return railRings(g, gpus, local)
	}
	rank := map[topo.NodeID]sched.Rank{}
	for i, id := range gpus {
		rank[id] = sched.Rank(i)
	}
	found, err := rings.Search(g, gpus, c, rings.Options{})
	if err != nil || found.Medium == "nvswitch" || len(found.Rings) < 2 {
		return nil
	}
	var orders [][]sched.Rank
	for _, r := range found.Rings {
		var order []sched.Rank
		for _, id := range r.Order {
			order = append(order, rank[id])
		}
		orders = append(orders, order)
	}
	return orders
}

// inBlocks says whether domain follows domain, each with as many GPUs but for the last.
func inBlocks(g *topo.Graph, gpus []topo.NodeID, local int) bool {
	for block := range slices.Chunk(gpus, local) {
		if host := g.Nodes[block[0]].Host; host == g.Nodes[block[len(block)-1]].Host {
			continue
		}
		if DomainOf(g, block) < len(block) {
			return false
		}
	}
	return true
}

// maxRings is how many rings there are at most over hosts. In a rack of 72 GPUs
// sixteen rings already carry what the NVLinks of a GPU do, and NCCL has no more
// than 32.
const maxRings = 16

// railRings makes a ring for each GPU of a domain that has a NIC of its own, as many as the last domain has: the job may not
// fill it.
func railRings(g *topo.Graph, gpus []topo.NodeID, local int) [][]sched.Rank {
	last := (len(gpus)-1)%local + 1
	var first []int // the GPUs of a domain at which rings enter
	seen := map[topo.NodeID]bool{}
	for i, id := range gpus[:last] {
		if nic := g.Near(id); nic != topo.None && !seen[nic] {
			seen[nic] = true
			first = append(first, i)
		}
	}
	if len(first) < 2 {
		return nil
	}
	for n, all := min(len(first), maxRings), first; len(first) > n; { // evenly spread
		first = nil
		for i := range n {
			first = append(first, all[i*len(all)/n])
		}
	}
	var orders [][]sched.Rank
	for _, f := range first {
		orders = append(orders, railRing(len(gpus), local, f, (f-1+last)%last))
	}
	return orders
}

// railRing enters hosts at one GPU and leaves them at another, or the other way round.
func railRing(n, local, in, out int) []sched.Rank {
	order := make([]sched.Rank, 0, n)
	for base := 0; base < n; base += local {
		pass := passing(min(local, n-base), in, out)
		if base/local%2 == 1 {
			slices.Reverse(pass)
		}
		for _, at := range pass {
			order = append(order, sched.Rank(base+at))
		}
	}
	return order
}

// ringsAround makes a ring for each rail that is worth one, as all rings take as long as the slowest. Nil means that all are.
func ringsAround(g *topo.Graph, bad *network, gpus []topo.NodeID, local int) [][]sched.Rank {
	if local == len(gpus) || len(gpus)%local > 0 || local > maxRings || len(railRings(g, gpus, local)) != local {
		return nil
	}
	keep := worthRings(railFactors(g, bad, gpus, local))
	if len(keep) == local || len(keep) < 2 {
		return nil
	}
	var orders [][]sched.Rank
	for i, in := range keep {
		orders = append(orders, railRing(len(gpus), local, in, keep[(i+len(keep)-1)%len(keep)]))
	}
	return orders
}

// sharedNIC is the part of a NIC that a rank has whose own is dead: it shares its neighbour's.
const sharedNIC = 0.5

// railFactors are the parts of their rate that rails reach, by GPU of a domain: that of the slowest of its like in all domains.
func railFactors(g *topo.Graph, bad *network, gpus []topo.NodeID, local int) []float64 {
	factors := slices.Repeat([]float64{1}, local)
	for at, gpu := range gpus {
		nic, f := bad.g.Near(gpu), &factors[at%local]
		if nic != g.Near(gpu) {
			*f = min(*f, sharedNIC)
			continue
		}
		for _, e := range bad.g.Edges(nic) {
			*f = min(*f, bad.slowness(e.Link))
		}
	}
	return factors
}

// worthRings are the rails that together carry the most if all carry what the slowest of them does.
func worthRings(factors []float64) (keep []int) {
	most, least := 0.0, 0.0
	for _, f := range factors {
		count := 0.0
		for _, other := range factors {
			if other >= f {
				count++
			}
		}
		if count*f > most || count*f == most && f < least {
			most, least = count*f, f
		}
	}
	for i, f := range factors {
		if f >= least {
			keep = append(keep, i)
		}
	}
	return keep
}

// passing is a way through n GPUs that enters at one and leaves at another.
func passing(n, in, out int) []int {
	way := make([]int, 0, n)
	for i := range n {
		if at := (in + i) % n; at != out {
			way = append(way, at)
		}
	}
	return append(way, out)
}
