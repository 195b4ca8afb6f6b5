package build

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
)

// demand is what is plugged into one switch: links by class.
type demand map[topo.Class]int

func (p *plan) slowest(hosts []party) (class topo.Class) {
	for g, h := range hosts {
		if !h.guest && h.nics > 0 && (class.Rate == 0 || p.host[g].Rate < class.Rate) {
			class = p.host[g]
		}
	}
	return class
}

// checkPorts adds up what every switch of the plan has to carry and refuses the
// plan if one of them lacks the ports. Hosts of different rates may share a
// leaf, so every unit is looked at, not only the first.
func (p *plan) checkPorts(c *catalog.Catalog, hosts []party) error {
	if p.Leaf.Down > 0 { // the owner's own split must hold when the leaf is full, even with the slowest hosts
		d := demand{p.slowest(hosts): p.Leaf.Down}
		d[p.up[0]] += p.leafUp
		if err := d.fits(c, p.models[0]); err != nil {
			return fmt.Errorf("leaf with down: %d and up: %d: %w", p.Leaf.Down, p.Leaf.Up, err)
		}
	}
	for u, unit := range p.hostLinks(hosts) {
		for leaf, d := range unit {
			if p.leafUp > 0 {
				d[p.up[0]] += p.leafUp
			}
			if err := d.fits(c, p.models[0]); err != nil {
				return fmt.Errorf("leaf %d of %s %d: %w", leaf, p.unitName(), u, err)
			}
		}
	}
	if p.tiers > 1 {
		d := demand{p.up[0]: p.spineDown}
		d[p.up[1]] += p.spineUp
		if err := d.fits(c, p.models[1]); err != nil {
			return fmt.Errorf("every spine: %w", err)
		}
	}
	return nil
}

// hostLinks counts the links to hosts by class at every leaf of every unit, in one plane.
func (p *plan) hostLinks(hosts []party) [][]demand {
	units := make([][]demand, p.units)
	for u := range units {
		for range p.leaves {
			units[u] = append(units[u], demand{})
		}
	}
	host, guests := 0, 0
	for g, h := range hosts {
		for range h.count {
			for nic := range h.nics {
				if h.guest {
					units[p.units-1][guests%p.leaves][p.host[g]]++
					guests++
				} else {
					units[host/p.unit][nic%p.leaves][p.host[g]]++
				}
			}
			if !h.guest && h.nics > 0 {
				host++
			}
		}
	}
	return units
}

// fits refuses more links than the switch has ports. A port carries one link, or
// several slower ones where it may be split; all links of a split port have one rate.
func (d demand) fits(c *catalog.Catalog, sw catalog.Switch) error {
	need := 0
	var list []string
	for _, class := range slices.SortedFunc(maps.Keys(d), func(a, b topo.Class) int { return cmp.Compare(b.Rate, a.Rate) }) {
		if d[class] == 0 {
			continue
		}
		all, err := portsAt(c, sw, class)
		if err != nil {
			return err
		}
		need += ceil(d[class], all/sw.Ports)
		list = append(list, fmt.Sprintf("%d %s", d[class], class.Gen))
	}
	if need > sw.Ports {
		return fmt.Errorf("%s links need %d ports of %s, which has %d; use fewer hosts a pod, fewer uplinks, or a larger switch",
			strings.Join(list, " and "), need, sw.Name, sw.Ports)
	}
	return nil
}

func (p *plan) unitName() string { return cmp.Or(p.UnitName, "pod") }
