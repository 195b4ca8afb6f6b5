package build

import (
	"fmt"

	"github.com/weft-fabric/weft/model/topo"
)

// name gives the name of a switch, with a letter for the plane where there are several: leaf3a, leaf3b.
func (p *plan) name(prefix, tier string, i, plane int) string {
	if p.Planes == 1 {
		return fmt.Sprintf("%s%s%d", prefix, tier, i)
	}
	return fmt.Sprintf("%s%s%d%c", prefix, tier, i, 'a'+plane)
}

// podOf gives the pod of a unit: the unit itself in a rail fabric, the units
// that share spines in a fat-tree of three tiers. A plain fat-tree of two tiers
// has no pods.
func (p *plan) podOf(unit int) int32 {
	switch {
	case p.Rails:
		return int32(unit)
	case p.tiers == 3:
		return int32(unit / p.block)
	default:
		return topo.None
	}
}

// layout writes the plan down as switches and links. The switches of a tier are
// numbered unit by unit (or group by group), and plane by plane inside a number.
func (p *plan) layout(prefix string, hosts []party) *layout {
	l := &layout{fabric: topo.Fabric{Family: topo.Clos}, classes: p.up[:], ports: p.host}
	var rails []int16 // of the leaves of a unit, after the hosts with the most NICs
	for _, h := range hosts {
		if !h.guest && len(h.rails) > len(rails) {
			rails = h.rails
		}
	}
	spine0 := p.units * p.leaves * p.Planes
	core0 := spine0 + p.groups*p.spines*p.Planes
	p.leafTier(l, prefix, rails, spine0)
	p.spineTier(l, prefix, rails, spine0, core0)
	for i := range p.coreGroups * p.cores {
		for plane := range p.Planes {
			l.nodes = append(l.nodes, p.node(3, plane, p.name(prefix, "core", i, plane)))
		}
	}
	l.attach = p.attach(hosts)
	skipped := before(hosts)
	l.pod = func(group, host int) int32 { return p.podOf((host - skipped[group]) / p.unit) }
	l.rack = p.Rack
	l.rail = func(group, nic int) int16 {
		if p.Rails {
			return hosts[group].rails[nic]
		}
		return topo.None
	}
	l.growth = Growth{Unit: p.unitName(), UnitHosts: p.unit, MaxHosts: p.most()}
	return l
}

// leafTier adds the leaves and their cables to the spines, whose first is node spine0.
func (p *plan) leafTier(l *layout, prefix string, rails []int16, spine0 int) {
	for u := range p.units {
		for r := range p.leaves {
			for plane := range p.Planes {
				n := p.node(1, plane, p.name(prefix, "leaf", u*p.leaves+r, plane))
				n.Pod = p.podOf(u)
				if p.Rails {
					n.Rail = rails[r]
				}
				if p.Rack != nil && p.leaves == 1 {
					n.Rack = p.Rack(u * p.unit)
				}
				l.nodes = append(l.nodes, n)
				a := int32((u*p.leaves+r)*p.Planes + plane)
				group, index := p.group(u, r)
				for s := range p.spines {
					b := int32(spine0 + (group*p.spines+s)*p.Planes + plane)
					for m := range p.leafSpine {
						l.wires = append(l.wires, wire{a, b, uint16(p.leafDown + s*p.leafSpine + m + 1), uint16(index*p.leafSpine + m + 1), 0})
					}
				}
			}
		}
	}
}

// spineTier adds the spines and, with three tiers, their cables to the cores, whose first is node core0.
func (p *plan) spineTier(l *layout, prefix string, rails []int16, spine0, core0 int) {
	for g := range p.groups {
		for s := range p.spines {
			for plane := range p.Planes {
				n := p.node(2, plane, p.name(prefix, "spine", g*p.spines+s, plane))
				switch {
				case p.ByRail && p.Rails:
					n.Rail = rails[g%p.leaves]
				case p.tiers == 3 && (!p.Rails || p.block == 1):
					n.Pod = int32(g)
				}
				l.nodes = append(l.nodes, n)
				if p.tiers < 3 {
					continue
				}
				a := int32(spine0 + (g*p.spines+s)*p.Planes + plane)
				per := p.spines / p.coreGroups
				index, port := g*per+s%per, p.spineDown
				for k := range p.cores {
					b := int32(core0 + (s/per*p.cores+k)*p.Planes + plane)
					for _, at := range p.corePorts(index, k) {
						port++
						l.wires = append(l.wires, wire{a, b, uint16(port), uint16(at), 1})
					}
				}
			}
		}
	}
}

// corePorts lists the ports of a group's core k that a spine's uplinks take; index
// is the spine's place in the core group. Uplinks that do not divide evenly are
// dealt out in turn, going on where the spine before has left off.
func (p *plan) corePorts(index, k int) []int {
	var list []int
	if p.spineCore > 0 {
		for m := range p.spineCore {
			list = append(list, index*p.spineCore+m+1)
		}
		return list
	}
	first := index * p.spineUp
	for t := first + ((k-first)%p.cores+p.cores)%p.cores; t < first+p.spineUp; t += p.cores {
		list = append(list, t/p.cores+1)
	}
	return list
}

func (p *plan) node(tier uint8, plane int, name string) topo.Node {
	n := topo.Part(topo.Switch, topo.None, name)
	n.Tier, n.Ports, n.Model = tier, uint16(p.ports[tier-1]), p.models[tier-1].Name
	if p.Planes > 1 {
		n.Plane = int8(plane)
	}
	return n
}

// group gives the spine group of a leaf and the leaf's place in it.
func (p *plan) group(unit, leaf int) (group, index int) {
	switch {
	case p.tiers == 1:
		return 0, 0
	case p.ByRail:
		return unit/p.block*p.leaves + leaf, unit % p.block
	default:
		return unit / p.block, unit%p.block*p.leaves + leaf
	}
}

// before counts, for every party, the hosts of the parties before it that take no part in the fabric.
func before(hosts []party) []int {
	skipped, none := make([]int, len(hosts)), 0
	for g, h := range hosts {
		skipped[g] = none
		if !h.guest && h.nics == 0 {
			none += h.count
		}
	}
	return skipped
}

// attach gives the ports of a NIC, one in each plane. Guests take the ports that
// the hosts of the last unit leave free, leaf by leaf.
func (p *plan) attach(hosts []party) func(group, host, nic int, to []end) []end {
	skipped := before(hosts)
	return func(group, host, nic int, to []end) []end {
		var leaf, port int
		if hosts[group].guest {
			k := host*hosts[group].nics + nic
			last := p.units - 1
			leaf = last*p.leaves + k%p.leaves
			port = (p.hosts-last*p.unit)*p.perLeaf + k/p.leaves + 1
		} else {
			host -= skipped[group]
			leaf = host/p.unit*p.leaves + nic%p.leaves
			port = host%p.unit*p.perLeaf + nic/p.leaves + 1
		}
		for plane := range p.Planes {
			to = append(to, end{int32(leaf*p.Planes + plane), uint16(port)})
		}
		return to
	}
}
