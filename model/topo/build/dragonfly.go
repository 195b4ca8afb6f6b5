package build

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
)

// Dragonfly is groups of routers, every router joined to every other of its
// group, and every group to every other.
//
//	group 0            group 1            group 2
//	r0 ─ r1 ─ r2       r3 ─ r4 ─ r5       r6 ─ r7 ─ r8
//	└────────┘ local   │    │             │
//	 │    └── global ──┘    └── global ───┘
//
// Global links follow the palm-tree arrangement: the k-th global port of group i
// leads to group i+k+1, counted round, and arrives there at port a·h-1-k. With
// fewer groups than a·h+1 the same pattern is laid as often as the ports allow,
// and what is left over stays free.
//
// Kim, Dally, Scott, Abts, "Technology-Driven, Highly-Scalable Dragonfly
// Topology", ISCA 2008; Camarero, Vallejo, Beivide, "Topological
// Characterization of Hamming and Dragonfly Networks", TACO 2014.
type Dragonfly struct {
	Name    string
	NICs    []string
	Service bool
	Routers int // a: routers a group
	Ports   int // p: NIC ports a router
	Global  int // h: global links a router
	Groups  int // 0 means as many as the hosts need, at least two
	Model   string
	Link    string // of the links to hosts; empty: what the NIC and the router can both do
}

func (x Dragonfly) describe() (string, []string, bool) { return x.Name, x.NICs, x.Service }

// lay builds the groups: routers of a group are all joined, and each has links to other groups. Without a number of
// groups there are as many as the hosts need.
func (x Dragonfly) lay(c *catalog.Catalog, prefix string, hosts []party) (*layout, error) {
	a, p, h := x.Routers, x.Ports, x.Global
	if a < 1 || p < 1 || h < 1 || a > 1<<10 || p > 1<<10 || h > 1<<10 {
		return nil, fmt.Errorf("routers: %d, ports: %d, global: %d; each must be between 1 and 1024", a, p, h)
	}
	sw, err := c.Switch(x.Model)
	if err != nil {
		return nil, err
	}
	l := &layout{fabric: topo.Fabric{Family: topo.Dragonfly, Dims: []int{a, p, h}}, rail: func(int, int) int16 { return topo.None }}
	up, radix, err := l.flat(c, sw, x.Link, hosts)
	if err != nil {
		return nil, err
	}
	if need := p + a - 1 + h; need > radix {
		return nil, fmt.Errorf("a router needs %d ports for hosts, %d in its group and %d global, %d in all, and %s has %d",
			p, a-1, h, need, sw.Name, radix)
	}
	first, total := starts(hosts)
	most := a*h + 1
	groups := x.Groups
	if groups == 0 {
		groups = max(2, ceil(total, a*p))
	}
	if groups < 2 || groups > most {
		return nil, fmt.Errorf("%d groups; %d routers with %d global links each join 2 to %d groups", groups, a, h, most)
	}
	if total > groups*a*p {
		return nil, fmt.Errorf("%d NICs do not fit %d groups of %d routers with %d ports for hosts: %d fit, and at most %d in %d groups",
			total, groups, a, p, groups*a*p, most*a*p, most)
	}
	if n := groups * a * (a - 1 + h) / 2; n > maxLinks {
		return nil, fmt.Errorf("%d links between routers; at most %d are built", n, maxLinks)
	}
	for r := range groups * a {
		n := topo.Part(topo.Switch, topo.None, fmt.Sprintf("%srouter%d", prefix, r))
		n.Tier, n.Ports, n.Model, n.Pos, n.Pod = 1, uint16(radix), sw.Name, int32(r), int32(r/a)
		l.nodes = append(l.nodes, n)
	}
	l.classes = []topo.Class{up}
	for g := range groups {
		for i := range a {
			for j := i + 1; j < a; j++ {
				l.wires = append(l.wires, wire{int32(g*a + i), int32(g*a + j), uint16(p + j), uint16(p + i + 1), 0})
			}
		}
		rounds := a * h / (groups - 1)
		for t := range rounds {
			for d := 1; d < groups; d++ {
				other := (g + d) % groups
				if other < g {
					continue
				}
				k, back := t*(groups-1)+d-1, t*(groups-1)+groups-d-1
				l.wires = append(l.wires, wire{int32(g*a + k/h), int32(other*a + back/h), uint16(p + a + k%h), uint16(p + a + back%h), 0})
			}
		}
	}
	sortWires(l.wires)
	l.attach = func(group, host, nic int, to []end) []end {
		t := first(group, host) + nic
		return append(to, end{int32(t / p), uint16(t%p + 1)})
	}
	l.pod = func(group, host int) int32 { return int32(first(group, host) / (a * p)) }
	if nics := widest(hosts); nics > 0 {
		l.growth = Growth{Unit: "group", UnitHosts: a * p / nics, MaxHosts: most * a * p / nics}
	}
	return l, nil
}

func sortWires(wires []wire) {
	slices.SortFunc(wires, func(x, y wire) int {
		return cmp.Or(cmp.Compare(x.a, y.a), cmp.Compare(x.b, y.b), cmp.Compare(x.aport, y.aport))
	})
}

// widest is the largest number of NICs that a host has in the fabric.
func widest(hosts []party) int {
	n := 0
	for _, h := range hosts {
		n = max(n, h.nics)
	}
	return n
}

// starts numbers all NICs of all hosts through: first gives the number of a
// host's first one.
func starts(hosts []party) (first func(group, host int) int, total int) {
	nic, host := make([]int, len(hosts)), make([]int, len(hosts))
	count, guests := 0, 0
	for g, h := range hosts {
		nic[g], host[g] = total, count
		if h.guest {
			host[g] = guests
			guests += h.count
		} else {
			count += h.count
		}
		total += h.count * h.nics
	}
	return func(g, h int) int { return nic[g] + (h-host[g])*hosts[g].nics }, total
}

// flat finds the links of a fabric of one tier: those to hosts, by party, and the
// switch's own rate between switches.
func (l *layout) flat(c *catalog.Catalog, sw catalog.Switch, gen string, hosts []party) (up topo.Class, radix int, err error) {
	for _, h := range hosts {
		var class topo.Class
		if h.nics > 0 {
			if class, err = portClass(c, gen, h.model, sw, 1); err != nil {
				return up, 0, err
			}
		}
		l.ports = append(l.ports, class)
	}
	link, err := c.Link(sw.Link)
	if err != nil {
		return up, 0, fmt.Errorf("switch %q: %w", sw.Name, err)
	}
	return link.Class(0), sw.Ports, nil
}
