package scene

import (
	"math"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/floor"
)

// Grid is the floor that the racks of a scene stand on, for a page that moves them.
type Grid struct {
	Row  int     `json:"row"` // racks per row
	W    float64 `json:"w"`   // of a position, with what is between two racks
	H    float64 `json:"h"`
	Rows int     `json:"rows"`
}

// Floor places a graph by its racks: a block is a rack with its switches at the top and its hosts below, where the rack stands
// on the floor, seen from above.
//
//	┌ A01 ┐ ┌ A02 ┐ ┌ A03 ┐
//	│ ▤   │ │ ▫▫▫ │ │ ▤   │
//	│ ▤   │ │     │ │ ▤   │
//	└─────┘ └─────┘ └─────┘
//	┌ B01 ┐ ...
//
// It has no links: all of them would cover the floor. A page asks for those of a rack (BlockLinks) when it opens it.
func Floor(g *topo.Graph, plan *floor.Plan) *Scene {
	s := empty(g)
	s.Folded = true
	l := &layout{g: g, s: s}
	l.hosts()
	l.racks(plan)
	for i := range g.Links {
		if !l.same(&g.Links[i]) {
			s.AllLinks++
		}
	}
	return s
}

// racks makes a block of each rack and puts everything into it.
func (l *layout) racks(plan *floor.Plan) {
	s := l.s
	groups := make([]group, len(plan.Racks))
	rackOf := map[int32]int{} // by a host's number of its rack
	for h := range l.g.Hosts {
		host := &l.g.Hosts[h]
		d, _ := plan.Find(host.Name)
		groups[d.Rack].hosts = append(groups[d.Rack].hosts, topo.HostID(h))
		rackOf[host.Rack] = d.Rack
	}
	s.Chips.First = len(l.g.Nodes)
	for id := range l.g.Nodes {
		n := &l.g.Nodes[id]
		if n.Host != topo.None {
			continue
		}
		s.Chips.First = min(s.Chips.First, id)
		at := rackOf[n.Rack] // an NVLink switch stands with its hosts
		if d, ok := plan.Find(l.g.NodeName(topo.NodeID(id))); ok {
			at = d.Rack
		}
		if n.Kind == topo.NVSwitch {
			groups[at].nvs = append(groups[at].nvs, topo.NodeID(id))
		} else {
			groups[at].leaves = append(groups[at].leaves, topo.NodeID(id))
		}
	}
	wide, high, area := 60.0, 60.0, 0.0
	for i := range groups {
		b := &groups[i]
		for _, h := range b.hosts {
			k := &s.Kinds[s.Hosts.Kind[h]]
			b.hostW, b.hostH = max(b.hostW, k.W), max(b.hostH, k.H)
		}
		wide = max(wide, b.hostW)
		area += float64(len(b.hosts)) * (b.hostW + between) * (b.hostH + between)
	}
	l.head = max(title, min(100, .034*math.Sqrt(area*aspect)))
	for i := range groups { // all racks are equally wide, so that switches wrap alike
		groups[i].hostW = max(groups[i].hostW, wide)
		groups[i].shape(1, l.head)
		high = max(high, groups[i].h)
	}
	s.Head = l.head
	grid := &Grid{Row: plan.Intent.Row, W: wide + 4*margin, H: high + 4*margin, Rows: plan.Rows}
	s.Grid = grid
	s.Width, s.Height = float64(min(len(groups), grid.Row))*grid.W, float64(plan.Rows)*grid.H
	l.chipColumns()
	for i := range groups {
		b, r := &groups[i], &plan.Racks[i]
		x, y := float64(r.Column)*grid.W+margin, float64(r.Row)*grid.H+margin
		switches := len(b.leaves) + len(b.nvs)
		s.Blocks = append(s.Blocks, Block{Name: r.Name, X: x, Y: y, W: wide + 2*margin, H: high, Hosts: len(b.hosts), Switches: switches})
		l.fill(b, i, x, y)
	}
}
