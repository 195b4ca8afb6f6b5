// Package build makes graphs of known hosts and of whole clusters.
//
// A host is a Box of devices (box.go; one file a family of hosts); Host builds a
// known kind. A Cluster stamps hosts and lays fabrics between them: Clos in
// tiers, Dragonfly, Torus; Chips is a torus without switches, and an Overlay is
// NVSwitches outside the hosts. Presets are designs that go by a name.
package build

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
)

// Cluster is hosts and the fabrics between them, before it is a graph.
type Cluster struct {
	Name     string
	Hosts    []Hosts
	Fabrics  []Fabric
	Overlays []Overlay
}

// maxLinks is how many links between switches a fabric may have: sixteen times
// those of 131,072 GPUs in three tiers. Past it, numbers were mistyped.
const maxLinks = 1 << 22

// Hosts is a number of like hosts. They take their places in the fabrics in the
// order of the lists.
type Hosts struct {
	Box     *topo.Graph // a graph of one such host
	Names   []string
	PerRack int  // hosts a rack, filled in order; 0 if racks are not known
	Guest   bool // a server of the fabric itself, such as UFM: it takes ports that are left free
}

// Fabric is a network that can be laid between hosts: a Clos, Dragonfly or Torus.
type Fabric interface {
	lay(c *catalog.Catalog, name string, hosts []party) (*layout, error)
	describe() (name string, nics []string, service bool)
}

// Overlay joins hosts by something else than NICs: NVSwitches outside them.
type Overlay interface {
	// nodes gives the NVSwitches, in canonical order.
	nodes(hosts int) []topo.Node
	// join adds the links of host number h, whose node 0 is first; base is the overlay's first node.
	join(b *topo.Builder, h int, box *topo.Graph, first, base topo.NodeID) error
}

// party is one group of hosts as a fabric sees it.
type party struct {
	count int
	nics  int     // NICs of one host that belong to the fabric
	rails []int16 // the rail of each in the host: nic4 is on rail 4 also where it is the fabric's first
	model string
	guest bool
}

// end is a port of a switch, by the switch's index in the layout.
type end struct {
	sw   int32
	port uint16
}

// wire is a link between two switches of a layout, a before b.
type wire struct {
	a, b         int32
	aport, bport uint16
	class        int32
}

// layout is a fabric worked out for a number of hosts: the switches and links in
// canonical order, and where each NIC of each host goes.
type layout struct {
	fabric  topo.Fabric
	nodes   []topo.Node
	wires   []wire
	classes []topo.Class                               // of wires
	ports   []topo.Class                               // of the links to hosts, by party
	attach  func(party, host, nic int, to []end) []end // host counts the hosts of all parties but guests; a guest counts guests
	pod     func(party, host int) int32
	rack    func(host int) int32 // nil if the fabric does not say
	rail    func(party, nic int) int16
	growth  Growth
}

// Growth says by what unit a fabric grows, and how far with the tiers it has.
type Growth struct {
	Unit      string
	UnitHosts int
	MaxHosts  int // 0 if unknown
}

// Build makes the graph.
func (x Cluster) Build(c *catalog.Catalog) (*topo.Graph, Growth, error) {
	b := topo.NewBuilder(x.Name)
	layouts := make([]*layout, len(x.Fabrics))
	uses, err := x.assign()
	if err != nil {
		return nil, Growth{}, err
	}
	var growth Growth
	main := -1
	for i, f := range x.Fabrics {
		name, _, service := f.describe()
		prefix := ""
		if len(x.Fabrics) > 1 {
			prefix = name + "-"
		}
		l, err := f.lay(c, prefix, x.parties(i, uses))
		if err != nil {
			return nil, Growth{}, fmt.Errorf("fabric %q: %w", name, err)
		}
		l.fabric.Name, l.fabric.Service = name, service
		layouts[i] = l
		if main < 0 && !service {
			main, growth = i, l.growth
		}
		b.Fabric(l.fabric)
	}
	x.emit(b, layouts, uses, main)
	if err := x.overlay(b); err != nil {
		return nil, Growth{}, err
	}
	g, err := b.Graph()
	return g, growth, err
}

// parties gives for each group of hosts what a fabric has to know of it. A NIC
// that the box puts on no rail is on the rail of its number within the fabric.
func (x Cluster) parties(fabric int, uses [][]use) []party {
	var list []party
	for g, group := range x.Hosts {
		p := party{count: len(group.Names), guest: group.Guest}
		for _, u := range uses[g] {
			if u.fabric != fabric {
				continue
			}
			nic := &group.Box.Nodes[u.node]
			rail := nic.Rail
			if rail == topo.None {
				rail = int16(u.nic)
			}
			p.nics, p.model, p.rails = p.nics+1, nic.Model, append(p.rails, rail)
		}
		list = append(list, p)
	}
	return list
}

// use says that a NIC, by its index in the box, is port number nic of a fabric.
type use struct {
	node   int32
	fabric int
	nic    int
}

// assign gives every NIC of every group to at most one fabric.
func (x Cluster) assign() ([][]use, error) {
	all := make([][]use, len(x.Hosts))
	for g, group := range x.Hosts {
		if len(group.Box.Hosts) != 1 {
			return nil, fmt.Errorf("the pattern %q holds %d hosts; it must hold one", group.Box.Name, len(group.Box.Hosts))
		}
		taken := map[int32]string{}
		for f, fabric := range x.Fabrics {
			name, nics, service := fabric.describe()
			nodes, err := pickNICs(group.Box, nics, service, group.Guest)
			if err != nil {
				return nil, fmt.Errorf("fabric %q: %w", name, err)
			}
			for i, n := range nodes {
				if other, ok := taken[n]; ok {
					return nil, fmt.Errorf("%s of host kind %q is claimed by fabrics %q and %q; give each fabric its own NICs",
						group.Box.Nodes[n].Name, group.Box.Hosts[0].Model, other, name)
				}
				taken[n] = name
				all[g] = append(all[g], use{n, f, i})
			}
		}
		slices.SortFunc(all[g], func(a, b use) int { return cmp.Compare(a.node, b.node) })
	}
	return all, nil
}

// pickNICs gives the NICs of a box that belong to a fabric: those named, where a
// kind that lacks them all takes no part; else the compute NICs (those on a
// rail), or for a service fabric the others. A server of the fabric itself gives
// all it has. A kind with storage NICs alone takes no part in a compute fabric.
func pickNICs(box *topo.Graph, names []string, service, guest bool) ([]int32, error) {
	var all, match []int32
	var known []string
	for i := range box.Nodes {
		n := &box.Nodes[i]
		if n.Kind != topo.NIC {
			continue
		}
		all = append(all, int32(i))
		known = append(known, n.Name)
		if len(names) == 0 && (n.Rail == topo.None) == service {
			match = append(match, int32(i))
		}
	}
	switch {
	case guest:
		return all, nil
	case len(names) == 0:
		return match, nil
	}
	match, missing := namedNICs(box, names)
	if missing != "" && len(match) > 0 {
		return nil, fmt.Errorf("host kind %q has no NIC %q; it has: %s", box.Hosts[0].Model, missing, strings.Join(known, " "))
	}
	return match, nil
}

// namedNICs finds NICs of a box by their names, and says which name, if any, the box does not have.
func namedNICs(box *topo.Graph, names []string) (found []int32, missing string) {
	for _, name := range names {
		i := slices.IndexFunc(box.Nodes, func(n topo.Node) bool { return n.Kind == topo.NIC && n.Name == name })
		if i < 0 {
			missing = name
			continue
		}
		found = append(found, int32(i))
	}
	return found, missing
}

// emit adds hosts, then switches, with all ids known beforehand, so that
// everything is added in canonical order and nothing has to be sorted.
func (x Cluster) emit(b *topo.Builder, layouts []*layout, uses [][]use, main int) {
	nodes, links, switches := 0, 0, 0
	for g, group := range x.Hosts {
		nodes += len(group.Names) * len(group.Box.Nodes)
		links += len(group.Names) * (len(group.Box.Links) + 2*len(uses[g]))
	}
	for _, o := range x.Overlays {
		switches += len(o.nodes(x.hostCount()))
	}
	base := make([]topo.NodeID, len(layouts))
	for i, l := range layouts {
		base[i] = topo.NodeID(nodes + switches)
		switches += len(l.nodes)
		links += len(l.wires)
	}
	b.Grow(nodes+switches, links)

	var ends []end
	host, guest, rack := 0, 0, int32(0)
	for g, group := range x.Hosts {
		classes := make([]topo.ClassID, len(layouts))
		for i, l := range layouts {
			if l.ports[g].Rate > 0 {
				classes[i] = b.Class(l.ports[g])
			}
		}
		for i, name := range group.Names {
			h := topo.Host{Name: name, Model: group.Box.Hosts[0].Model, Pod: topo.None, Rack: topo.None}
			index := host
			if group.Guest {
				index = guest
			} else if main >= 0 && layouts[main].ports[g].Rate > 0 {
				h.Pod = layouts[main].pod(g, host)
				if r := layouts[main].rack; r != nil {
					h.Rack = r(host)
				}
			}
			if group.PerRack > 0 {
				h.Rack = rack + int32(i/group.PerRack)
			}
			_, first := b.Stamp(group.Box, h)
			for _, u := range uses[g] {
				l := layouts[u.fabric]
				n := b.At(first + topo.NodeID(u.node))
				n.Fabric, n.Rail = int8(u.fabric), l.rail(g, u.nic)
				ends = l.attach(g, index, u.nic, ends[:0])
				n.Ports = uint16(len(ends))
				for p, e := range ends {
					b.Link(topo.Link{A: first + topo.NodeID(u.node), B: base[u.fabric] + topo.NodeID(e.sw),
						APort: uint16(p + 1), BPort: e.port, Class: classes[u.fabric]})
				}
			}
			if group.Guest {
				guest++
			} else {
				host++
			}
		}
		if group.PerRack > 0 {
			rack += int32((len(group.Names) + group.PerRack - 1) / group.PerRack)
		}
	}
	for _, o := range x.Overlays {
		for _, n := range o.nodes(x.hostCount()) {
			b.Node(n)
		}
	}
	connect(b, layouts, base)
}

// connect makes the switches of every fabric and the links between them; base is the first switch of each.
func connect(b *topo.Builder, layouts []*layout, base []topo.NodeID) {
	for i, l := range layouts {
		for _, n := range l.nodes {
			n.Fabric = int8(i)
			b.Node(n)
		}
	}
	for i, l := range layouts {
		classes := make([]topo.ClassID, len(l.classes))
		for j, c := range l.classes {
			classes[j] = b.Class(c)
		}
		for _, w := range l.wires {
			b.Link(topo.Link{A: base[i] + topo.NodeID(w.a), B: base[i] + topo.NodeID(w.b), APort: w.aport, BPort: w.bport, Class: classes[w.class]})
		}
	}
}

// overlay adds the links of the overlays, whose nodes emit has added behind the hosts.
func (x Cluster) overlay(b *topo.Builder) error {
	nodes := 0
	for _, group := range x.Hosts {
		nodes += len(group.Names) * len(group.Box.Nodes)
	}
	base := topo.NodeID(nodes)
	for _, o := range x.Overlays {
		h, first := 0, topo.NodeID(0)
		for _, group := range x.Hosts {
			for range group.Names {
				if !group.Guest {
					if err := o.join(b, h, group.Box, first, base); err != nil {
						return err
					}
					h++
				}
				first += topo.NodeID(len(group.Box.Nodes))
			}
		}
		base += topo.NodeID(len(o.nodes(x.hostCount())))
	}
	return nil
}

func (x Cluster) hostCount() int {
	n := 0
	for _, g := range x.Hosts {
		if !g.Guest {
			n += len(g.Names)
		}
	}
	return n
}

// same compares rates, which are computed and so may differ in the last bits.
func same(a, b unit.Rate) bool { return math.Abs(float64(a-b)) <= 1e-6*float64(max(a, b)) }

// portClass finds the link between a NIC and a switch: the one named, or the
// NIC's own rate in the switch's kind, at most the rate of the switch's port. A
// NIC of one port that stands in several planes divides its rate among them.
func portClass(c *catalog.Catalog, gen, nic string, sw catalog.Switch, planes int) (topo.Class, error) {
	if gen != "" {
		return statedClass(c, gen, nic, sw, planes)
	}
	native, err := c.Link(sw.Link)
	if err != nil {
		return topo.Class{}, fmt.Errorf("switch %q: %w", sw.Name, err)
	}
	rate := native.Class(0).Rate
	if card, ok := c.NICs[nic]; ok {
		own, err := c.Link(card.Link)
		if err != nil {
			return topo.Class{}, fmt.Errorf("NIC %q: %w", nic, err)
		}
		want := own.Class(0).Rate
		if card.Ports < planes {
			want /= unit.Rate(planes)
		} else if own.Kind == sw.Kind && own.Class(0).Rate <= rate {
			return own.Class(0), nil
		}
		rate = min(rate, want)
	}
	return classOf(c, sw.Kind, rate, native)
}

// statedClass is the link that the description names, where both the switch and the NIC can speak it.
func statedClass(c *catalog.Catalog, gen, nic string, sw catalog.Switch, planes int) (topo.Class, error) {
	link, err := c.Link(gen)
	if err == nil && link.Kind != sw.Kind {
		err = fmt.Errorf("link %q is %s, but switch %q is %s", gen, link.Kind, sw.Name, sw.Kind)
	}
	if err == nil {
		err = nicCan(c, nic, link, planes)
	}
	return link.Class(0), err
}

// nicCan refuses a link that is faster than a port of the NIC, or so fast that
// the ports of the NIC do not suffice for all planes.
func nicCan(c *catalog.Catalog, nic string, link catalog.Link, planes int) error {
	card, known := c.NICs[nic]
	if !known {
		return nil
	}
	own, err := c.Link(card.Link)
	if err != nil {
		return fmt.Errorf("NIC %q: %w", nic, err)
	}
	rate, most := link.Class(0).Rate, own.Class(0).Rate
	if planes > card.Ports { // one port stands in several planes and divides its rate
		most = most * unit.Rate(max(card.Ports, 1)) / unit.Rate(planes)
	}
	where := ""
	if planes > 1 {
		where = fmt.Sprintf(" in each of %d planes", planes)
	}
	if rate > most && !same(rate, most) {
		return fmt.Errorf("link %q runs at %s, but NIC %q at most at %s%s", link.Gen, rate.Bits(), nic, most.Bits(), where)
	}
	return nil
}

// classOf finds the generation of a kind with a rate; the switch's own if none has it.
func classOf(c *catalog.Catalog, kind topo.LinkKind, rate unit.Rate, native catalog.Link) (topo.Class, error) {
	if same(native.Class(0).Rate, rate) {
		return native.Class(0), nil
	}
	for _, gen := range slices.Sorted(maps.Keys(c.Links)) {
		if l := c.Links[gen]; l.Kind == kind && same(l.Class(0).Rate, rate) {
			return l.Class(0), nil
		}
	}
	return native.Class(0), nil
}

// portsAt says how many ports of a rate a switch has: its own number, or a
// multiple where ports of its own rate may be split.
func portsAt(c *catalog.Catalog, sw catalog.Switch, class topo.Class) (int, error) {
	native, err := c.Link(sw.Link)
	if err != nil {
		return 0, fmt.Errorf("switch %q: %w", sw.Name, err)
	}
	if class.Kind != sw.Kind {
		return 0, fmt.Errorf("link %q is %s, but switch %q is %s", class.Gen, class.Kind, sw.Name, sw.Kind)
	}
	own := native.Class(0).Rate
	if class.Rate > own && !same(class.Rate, own) {
		return 0, fmt.Errorf("link %q runs at %s, but a port of switch %q at most at %s", class.Gen, class.Rate.Bits(), sw.Name, own.Bits())
	}
	return sw.Ports * max(1, min(sw.Split, int(float64(own/class.Rate)*(1+1e-9)))), nil
}

// LinkBetween finds the class of a link between a NIC, by its model, and a
// switch: the NIC's rate in the switch's kind, at most that of the switch's port.
func LinkBetween(c *catalog.Catalog, nic string, sw catalog.Switch) (topo.Class, error) {
	return portClass(c, "", nic, sw, 1)
}
