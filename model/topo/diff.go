package topo

import (
	"fmt"
	"maps"
	"slices"
)

// maxDiffs bounds what Diff lists; the rest is counted.
const maxDiffs = 50

// Diff lists in words what distinguishes b from a: hosts, nodes and links that
// only one of them has, and every field, class, port and attribute that
// differs. Elements are matched by name, links by their ends, in canonical
// order, so that equal graphs (whatever they are named) give nothing.
func Diff(a, b *Graph) []string {
	var d differ
	d.fabrics(a, b)
	d.hosts(a, b)
	d.nodes(a, b)
	d.links(a, b)
	if d.more > 0 {
		d.list = append(d.list, fmt.Sprintf("and %d more differences", d.more))
	}
	return d.list
}

type differ struct {
	list []string
	more int
}

func (d *differ) say(format string, args ...any) {
	if len(d.list) >= maxDiffs {
		d.more++
		return
	}
	d.list = append(d.list, fmt.Sprintf(format, args...))
}

// merge walks two sorted lists and calls f with the indices of equal elements, or with -1 for a missing one.
func merge(n, m int, compare func(i, j int) int, f func(i, j int)) {
	for i, j := 0, 0; i < n || j < m; {
		switch {
		case j == m || i < n && compare(i, j) < 0:
			f(i, -1)
			i++
		case i == n || compare(i, j) > 0:
			f(-1, j)
			j++
		default:
			f(i, j)
			i, j = i+1, j+1
		}
	}
}

func (d *differ) fabrics(a, b *Graph) {
	if len(a.Fabrics) != len(b.Fabrics) {
		d.say("fabrics: %d against %d", len(a.Fabrics), len(b.Fabrics))
		return
	}
	for i := range a.Fabrics {
		x, y := &a.Fabrics[i], &b.Fabrics[i]
		if x.Name != y.Name || x.Family != y.Family || x.Service != y.Service || !slices.Equal(x.Dims, y.Dims) {
			d.say("fabric %d: %+v against %+v", i, *x, *y)
		}
	}
}

func (d *differ) hosts(a, b *Graph) {
	merge(len(a.Hosts), len(b.Hosts), func(i, j int) int { return Natural(a.Hosts[i].Name, b.Hosts[j].Name) }, func(i, j int) {
		switch {
		case j < 0:
			d.say("host %s: only in the first", a.Hosts[i].Name)
		case i < 0:
			d.say("host %s: only in the second", b.Hosts[j].Name)
		default:
			x, y := a.Hosts[i], b.Hosts[j]
			d.field("host "+x.Name, "model", x.Model, y.Model)
			d.field("host "+x.Name, "pod", x.Pod, y.Pod)
			d.field("host "+x.Name, "rack", x.Rack, y.Rack)
		}
	})
}

func (d *differ) field(what, name string, x, y any) {
	if x != y {
		d.say("%s: %s %v against %v", what, name, x, y)
	}
}

// named gives the nodes' full names in an order that two graphs share even where hosts or fabrics differ.
func named(g *Graph) []namedNode {
	list := make([]namedNode, len(g.Nodes))
	for i := range list {
		list[i] = namedNode{g.NodeName(NodeID(i)), NodeID(i)}
	}
	slices.SortFunc(list, func(x, y namedNode) int { return Natural(x.name, y.name) })
	return list
}

type namedNode struct {
	name string
	id   NodeID
}

func (d *differ) nodes(a, b *Graph) {
	x, y := named(a), named(b)
	merge(len(x), len(y), func(i, j int) int { return Natural(x[i].name, y[j].name) }, func(i, j int) {
		switch {
		case j < 0:
			d.say("%s %s: only in the first", a.Nodes[x[i].id].Kind, x[i].name)
		case i < 0:
			d.say("%s %s: only in the second", b.Nodes[y[j].id].Kind, y[j].name)
		default:
			d.node(x[i].name, &a.Nodes[x[i].id], &b.Nodes[y[j].id])
			d.attrs(x[i].name, a.Attrs[x[i].id], b.Attrs[y[j].id])
		}
	})
}

func (d *differ) node(name string, x, y *Node) {
	d.field(name, "kind", x.Kind, y.Kind)
	d.field(name, "tier", x.Tier, y.Tier)
	d.field(name, "fabric", x.Fabric, y.Fabric)
	d.field(name, "plane", x.Plane, y.Plane)
	d.field(name, "rail", x.Rail, y.Rail)
	d.field(name, "ports", x.Ports, y.Ports)
	d.field(name, "pod", x.Pod, y.Pod)
	d.field(name, "rack", x.Rack, y.Rack)
	d.field(name, "position", x.Pos, y.Pos)
	d.field(name, "model", x.Model, y.Model)
}

// attrs compares free attributes, key by key.
func (d *differ) attrs(name string, x, y Attrs) {
	keys := maps.Clone(x)
	if keys == nil {
		keys = Attrs{}
	}
	maps.Copy(keys, y)
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		v, inX := x[k]
		w, inY := y[k]
		switch {
		case !inY:
			d.say("%s: attribute %s=%q only in the first", name, k, v)
		case !inX:
			d.say("%s: attribute %s=%q only in the second", name, k, w)
		case v != w:
			d.say("%s: attribute %s %q against %q", name, k, v, w)
		}
	}
}

// namedLink is a link by the names of its ends, the lesser first.
type namedLink struct {
	a, b         string
	aPort, bPort uint16
	id           LinkID
}

func compareNamed(x, y namedLink) int {
	if c := Natural(x.a, y.a); c != 0 {
		return c
	}
	if c := Natural(x.b, y.b); c != 0 {
		return c
	}
	if c := int(x.aPort) - int(y.aPort); c != 0 {
		return c
	}
	return int(x.bPort) - int(y.bPort)
}

func namedLinks(g *Graph) []namedLink {
	list := make([]namedLink, len(g.Links))
	for i := range g.Links {
		l := &g.Links[i]
		n := namedLink{g.NodeName(l.A), g.NodeName(l.B), l.APort, l.BPort, LinkID(i)}
		if Natural(n.a, n.b) > 0 {
			n.a, n.b, n.aPort, n.bPort = n.b, n.a, n.bPort, n.aPort
		}
		list[i] = n
	}
	slices.SortStableFunc(list, compareNamed)
	return list
}

func (n namedLink) String() string {
	end := func(name string, port uint16) string {
		if port == 0 {
			return name
		}
		return fmt.Sprintf("%s:p%d", name, port)
	}
	return end(n.a, n.aPort) + " - " + end(n.b, n.bPort)
}

func (d *differ) links(a, b *Graph) {
	x, y := namedLinks(a), namedLinks(b)
	merge(len(x), len(y), func(i, j int) int { return compareNamed(x[i], y[j]) }, func(i, j int) {
		switch {
		case j < 0:
			d.say("link %s (%s): only in the first", x[i], a.Class(x[i].id))
		case i < 0:
			d.say("link %s (%s): only in the second", y[j], b.Class(y[j].id))
		default:
			name := "link " + x[i].String()
			if v, w := *a.Class(x[i].id), *b.Class(y[j].id); v != w {
				d.say("%s: class %s, %s, latency %s against %s, %s, latency %s", name, v.Kind, v, v.Latency, w.Kind, w, w.Latency)
			}
			d.field(name, "count", a.Links[x[i].id].Count, b.Links[y[j].id].Count)
			d.attrs(name, a.Wires[x[i].id], b.Wires[y[j].id])
		}
	})
}
