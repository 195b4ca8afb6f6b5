package design

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/weft-fabric/weft/model/topo"
)

// Domain is a failure domain: how many there are, what one takes down and how it comes back.
type Domain struct {
	Level    string `json:"level"`
	Count    int    `json:"count"`
	Takes    string `json:"takes"`
	Loss     Loss   `json:"loss"`
	Recovery string `json:"recovery"`
	Class    string `json:"time_class"`
}

// domains lists failure domains from a GPU to the datacentre, each with
// what it takes down on this graph.
func (b *breaker) domains(r *Report) []Domain {
	v := b.v
	var list []Domain
	minutes := "minutes: job restarts from its checkpoint"
	add := func(level string, count int, l Loss, takes, recovery, class string) {
		l.Part, l.Of = level, count
		list = append(list, Domain{level, count, takes, l, recovery, class})
	}
	if r.GPUs > 0 {
		gone, takes := map[int32]bool{}, "1 GPU; its host's job"
		lost := Loss{GPUsCutOff: 1, HostLeft: 1, BisectionLeft: 1, Bisection: b.full}
		if v.direct && len(v.ends) > 0 { // a chip forwards for others
			at := v.ends[0].at
			if p, ok := b.critical(v.tier[at]); ok {
				at = int32(p)
			}
			gone[at] = true
			lost = b.try(removal{nodes: gone}, nil)
			takes = "1 chip and the paths through it"
			lost.GPUsCutOff = max(lost.GPUsCutOff, 1)
			lost.Example = v.g.NodeName(v.nodes[at])
		}
		v.g.Each(topo.GPU, func(n topo.NodeID, _ *topo.Node) {
			if lost.Example == "" {
				lost.Example = v.g.NodeName(n)
			}
		})
		add("gpu", r.GPUs, lost, takes, "restart the process, reload the checkpoint, leave the GPU out or swap the host", minutes)
	}
	// The host with the most accelerators and bandwidth.
	best := topo.HostID(topo.None)
	for h := range v.g.Hosts {
		if v.capacity[h] == 0 || v.computes > 0 && v.gpus[h] == 0 {
			continue
		}
		if best == topo.None || cmp.Or(cmp.Compare(v.gpus[h], v.gpus[best]), cmp.Compare(v.capacity[h], v.capacity[best])) > 0 {
			best = topo.HostID(h)
		}
	}
	if best != topo.None {
		l := b.lose(map[topo.HostID]bool{best: true}, nil)
		l.Example = v.g.Hosts[best].Name
		add("server", ternary(r.Hosts > 0, r.Hosts, r.ServiceHosts), l, fmt.Sprintf("%d GPUs", v.gpus[best]),
			"skip the node or take a spare; power, board and NVSwitch faults end here", minutes)
	}
	if l, racks, takes, ok := b.rack(); ok {
		add("rack", racks, l, takes, "isolate the rack, reschedule on others", minutes)
	} else {
		list = append(list, Domain{Level: "rack", Takes: "unknown: the cluster file places nothing in racks",
			Recovery: "isolate the rack, reschedule on others", Class: minutes})
	}
	switchover := "under a second: routes move to what is left"
	for _, l := range r.Losses {
		switch l.Part {
		case "leaf":
			recovery, class := "traffic goes through the hosts' other leaves", switchover
			if l.GPUsCutOff > 0 {
				recovery, class = "none for hosts behind this leaf alone: leave them out, replace the switch", minutes
			}
			add("leaf", l.Of, l, describe(l), recovery, class)
		case "spine", "core":
			recovery, class := "ECMP spreads over the others", switchover
			switch {
			case l.GPUsCutOff > 0:
				recovery, class = "none: it is the only path for some hosts", minutes
			case l.Pieces > 0:
				recovery, class = "traffic between the pieces has to cross inside hosts (PXN)", minutes
			}
			add(l.Part, l.Of, l, describe(l), recovery, class)
		case "plane", "fabric":
			recovery, class := "every NIC or bond goes on with the rest", switchover
			if l.GPUsCutOff > 0 {
				recovery, class = "none: hosts have no other path", minutes
			}
			add(l.Part, l.Of, l, describe(l), recovery, class)
		}
	}
	add("datacentre", 1, Loss{GPUsCutOff: r.GPUs, HostsCutOff: r.Hosts, HostLeft: 0, BisectionLeft: 0}, "everything",
		"checkpoints kept at another site", "hours or days")
	return list
}

func describe(l Loss) string {
	switch {
	case l.GPUsCutOff > 0:
		return fmt.Sprintf("%s GPUs cut off, %s slower", count(l.GPUsCutOff), count(l.GPUsDegraded))
	case l.Pieces > 0:
		return fmt.Sprintf("no host cut off, but the switches fall into %d pieces more", l.Pieces)
	case l.GPUsDegraded > 0:
		return fmt.Sprintf("no GPU cut off; %s on hosts that keep %s of their rate", count(l.GPUsDegraded), percent(l.HostLeft))
	case l.BisectionLeft < 1-1e-9:
		return fmt.Sprintf("no host slower by itself; %s of the bisection left", percent(l.BisectionLeft))
	}
	return "nothing measurable: the rest carries it all"
}

// lose takes out hosts, and nodes besides, and counts the hosts as lost.
func (b *breaker) lose(hosts map[topo.HostID]bool, nodes map[int32]bool) Loss {
	r := removal{nodes: map[int32]bool{}}
	for n := range nodes {
		r.nodes[n] = true
	}
	if b.v.direct {
		for _, e := range b.v.ends {
			if hosts[e.host] {
				r.nodes[e.at] = true
			}
		}
	}
	l := b.try(r, hosts)
	for h := range hosts {
		l.HostsCutOff++
		l.GPUsCutOff += int(b.v.gpus[h])
	}
	return l
}

// rackLoads counts by rack the GPUs of the hosts that are in the network, or the hosts if there are no GPUs at all.
func (v *view) rackLoads() map[int32]int {
	load := map[int32]int{}
	for h := range v.g.Hosts {
		rack := v.g.Hosts[h].Rack
		if rack == topo.None || v.capacity[h] == 0 || v.computes > 0 && v.gpus[h] == 0 {
			continue
		}
		load[rack] += max(int(v.gpus[h]), 1)
	}
	return load
}

// rack takes out the fullest rack, with the switches that stand in it.
func (b *breaker) rack() (l Loss, racks int, takes string, ok bool) {
	v := b.v
	load := v.rackLoads()
	best := int32(topo.None)
	for _, rack := range slices.Sorted(maps.Keys(load)) {
		if best == topo.None || load[rack] > load[best] {
			best = rack
		}
	}
	if best == topo.None {
		return l, 0, "", false
	}
	hosts, nodes := map[topo.HostID]bool{}, map[int32]bool{}
	for h := range v.g.Hosts {
		if v.g.Hosts[h].Rack == best {
			hosts[topo.HostID(h)] = true
		}
	}
	for p, n := range v.nodes {
		if v.g.Nodes[n].Rack == best && v.g.Nodes[n].Kind != topo.GPU {
			nodes[int32(p)] = true
		}
	}
	l = b.lose(hosts, nodes)
	l.Example = fmt.Sprintf("rack %d", best)
	takes = fmt.Sprintf("%s, %s, %s", plural(len(hosts), "host"), plural(l.GPUsCutOff, "GPU"), plural(len(nodes), "fabric switch"))
	return l, len(load), takes, true
}
