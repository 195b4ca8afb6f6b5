package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/spell"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/build"
	"github.com/weft-fabric/weft/model/topo/format"
)

// imported is the section import: a fabric that another tool found, onto which
// the hosts of the file are put.
type imported struct {
	graph *topo.Graph
	model string // of switches whose make the file does not state
	line  int
}

// readImport reads the section import, a file's name or {file, from, link,
// switch}, and the topology in that file.
func (p *parse) readImport(n *node) *imported {
	if n == nil {
		return nil
	}
	name, from, link, model := n.text, "", "", ""
	f := &fields{r: &p.reader, path: "import", n: &node{kind: mapping, line: n.line}}
	if n.kind != scalar {
		f = p.fields("import", n)
		if !f.has("file") {
			f.fail("file", "missing; write the file that ibnetdiscover or weft topo import wrote")
			return nil
		}
		name, from, link = f.text("file"), f.text("from"), f.text("link")
		model = p.model(f, "switch", false)
		f.done()
	}
	if name == "" {
		return nil
	}
	g, err := p.importedFrom(name, from)
	if err != nil {
		p.fail(n.line, "import", "%v", err)
		return nil
	}
	if link != "" {
		l, err := p.catalog.Link(link)
		if err != nil {
			f.fail("link", "%v", err)
			return nil
		}
		g = g.WithClass(l.Class(0))
	}
	if count := g.Unstated(); count > 0 {
		p.fail(n.line, "import", "%s does not state the rate of %s; write what they are, such as import: {file: %s, link: ndr}",
			clip(name), plural(count, "link"), clip(name))
		return nil
	}
	return &imported{graph: g, model: model, line: n.line}
}

// importedFrom reads the topology in a file. Descriptions that arrive without their files, over the network for
// instance, cannot open any.
func (p *parse) importedFrom(name, from string) (*topo.Graph, error) {
	if p.open == nil {
		return nil, fmt.Errorf("%q cannot be read here", clip(name))
	}
	data, err := p.open(name)
	if err != nil {
		return nil, err
	}
	return decodeImport(name, from, data)
}

// decodeImport reads a topology in the dialect that is named, or that its text shows.
func decodeImport(name, from string, data []byte) (*topo.Graph, error) {
	var d format.Dialect
	var readable []string
	for _, x := range format.Dialects() {
		if x.Decode != nil {
			readable = append(readable, x.Name)
		}
	}
	if from != "" {
		if !slices.Contains(readable, from) {
			return nil, fmt.Errorf("from: %q; %s", clip(from), suggest(from, readable))
		}
		d, _ = format.Find(from)
	} else {
		var ok bool
		if d, ok = format.Detect(data); !ok || d.Decode == nil {
			return nil,
				fmt.Errorf("%s is in no dialect that can be told from its text; say which: import: {file: %s, from: ibnetdiscover}; known: %s",
					clip(name), clip(name), strings.Join(readable, ", "))
		}
	}
	g, err := d.Decode("imported", data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", clip(name), err)
	}
	return g, nil
}

// buildImport puts the hosts of the file onto the imported fabric: a host that
// the file gives a kind gets the parts of that kind, and its NICs take the
// cables that were found at it, by name where both agree, else in their order,
// compute NICs first.
func (p *parse) buildImport(c *Cluster, from *imported) {
	g := from.graph
	kinds, rack, ok := p.kindsOf(g)
	if !ok {
		return
	}
	b := topo.NewBuilder(c.Name)
	for _, f := range g.Fabrics {
		b.Fabric(f)
	}
	moved := slices.Repeat([]topo.NodeID{topo.None}, len(g.Nodes))
	var bare, short []string
	for h := range g.Hosts {
		host := g.Hosts[h]
		group := kinds[host.Name]
		if group == nil {
			if g.Hosts[h].Model == "" {
				bare = append(bare, host.Name)
			}
			copyHost(b, g, host, moved)
			continue
		}
		box := group.Box
		first := stampRailless(b, box, topo.Host{Name: host.Name, Model: box.Hosts[0].Model, Pod: host.Pod, Rack: rack[host.Name]})
		left, problem := p.plug(b, g, topo.HostID(h), box, first, moved)
		if problem != "" {
			p.fail(p.places[host.Name], "hosts", "%s", problem)
			return
		}
		if left > 0 {
			short = append(short, host.Name)
		}
	}
	copyFabric(b, g, moved, from.model)
	railed(b, g, moved, kinds)
	out, err := b.Graph()
	if err != nil {
		p.fail(from.line, "import", "%v", err)
		return
	}
	c.Graph = out
	c.noteImport(bare, short)
}

// noteImport says what the import leaves incomplete: hosts without a kind, and hosts whose NICs lack cables.
func (c *Cluster) noteImport(bare, short []string) {
	if len(bare) > 0 {
		c.Notes = append(c.Notes, fmt.Sprintf("%s of the imported fabric, the first %s, have no kind under hosts and so no GPUs",
			plural(len(bare), "host"), bare[0]))
	}
	if len(short) > 0 {
		c.Notes = append(c.Notes, fmt.Sprintf("%s, the first %s, have fewer cables in the imported fabric than their kind has compute NICs",
			plural(len(short), "host"), short[0]))
	}
}

// copyHost takes over a host as the import found it, and notes in moved which node each of its parts has become.
func copyHost(b *topo.Builder, g *topo.Graph, host topo.Host, moved []topo.NodeID) {
	id := b.Host(host)
	for i := range host.Count {
		n := host.First + topo.NodeID(i)
		part := g.Nodes[n]
		part.Host = id
		moved[n] = b.Node(part)
		b.Attr(moved[n], g.Attrs[n])
	}
}

// stampRailless adds a host and gives its first part. A kind numbers its NICs as rails, which only cables make true.
func stampRailless(b *topo.Builder, box *topo.Graph, host topo.Host) (first topo.NodeID) {
	_, first = b.Stamp(box, host)
	for i := range box.Nodes {
		if n := b.At(first + topo.NodeID(i)); n.Kind == topo.NIC {
			n.Rail = topo.None
		}
	}
	return first
}

// kindsOf is what the file says of imported hosts: their kind and rack.
func (p *parse) kindsOf(g *topo.Graph) (kinds map[string]*build.Hosts, rack map[string]int32, ok bool) {
	kinds, rack = map[string]*build.Hosts{}, map[string]int32{}
	next := int32(0)
	for i := range p.hosts {
		group := &p.hosts[i]
		for j, name := range group.Names {
			kinds[name] = group
			rack[name] = topo.None
			if group.PerRack > 0 {
				rack[name] = next + int32(j/group.PerRack)
			}
			if _, ok := g.HostByName(name); !ok {
				p.fail(p.places[name], "hosts", "%q is not in the imported fabric; %s", clip(name), nearHost(g, name))
				return nil, nil, false
			}
		}
		if group.PerRack > 0 {
			next += int32((len(group.Names) + group.PerRack - 1) / group.PerRack)
		}
	}
	return kinds, rack, true
}

// copyFabric takes over switches, which are of the given model where they have none, and the links that are left.
func copyFabric(b *topo.Builder, g *topo.Graph, moved []topo.NodeID, model string) {
	for i := range g.Nodes {
		if n := g.Nodes[i]; n.Host == topo.None {
			if n.Kind == topo.Switch && n.Model == "" {
				n.Model = model
			}
			moved[i] = b.Node(n)
			b.Attr(moved[i], g.Attrs[topo.NodeID(i)])
		}
	}
	for i := range g.Links {
		l := g.Links[i]
		if moved[l.A] == topo.None || moved[l.B] == topo.None {
			continue // inside a host whose kind replaces what was found
		}
		l.A, l.B, l.Class = moved[l.A], moved[l.B], b.Class(g.Classes[l.Class])
		b.Wire(b.Link(l), g.Wires[topo.LinkID(i)])
	}
}

// computeFirst lists the NICs of a kind: those on a rail in its order, then the others.
func computeFirst(box *topo.Graph) (nics []int) {
	for i := range box.Nodes {
		if box.Nodes[i].Kind == topo.NIC {
			nics = append(nics, i)
		}
	}
	place := func(i int) uint16 { return uint16(box.Nodes[i].Rail) } // None is the greatest
	slices.SortStableFunc(nics, func(a, b int) int { return cmp.Compare(place(a), place(b)) })
	return nics
}

// plug gives the NICs of a stamped host the places of those that were found at
// it. It says how many compute NICs are left without a cable, or what is wrong.
func (p *parse) plug(b *topo.Builder, g *topo.Graph, h topo.HostID, box *topo.Graph, first topo.NodeID, moved []topo.NodeID) (left int,
	problem string) {
	host := g.Hosts[h]
	var found []topo.NodeID
	for i, n := range g.HostNodes(h) {
		if n.Kind == topo.NIC {
			found = append(found, host.First+topo.NodeID(i))
		}
	}
	free := computeFirst(box)
	if len(found) > len(free) {
		return 0, fmt.Sprintf("%q has %s in the imported fabric and kind %s has %d; take another kind, or write your own under kinds",
			host.Name, plural(len(found), "NIC"), box.Hosts[0].Model, len(free))
	}
	named := map[string]int{}
	for _, i := range free {
		named[box.Nodes[i].Name] = i
	}
	all := true
	for _, n := range found {
		_, ok := named[g.Nodes[n].Name]
		all = all && ok
	}
	for k, n := range found {
		i := free[k]
		if all {
			i = named[g.Nodes[n].Name]
		}
		moved[n] = first + topo.NodeID(i)
		nic, was := b.At(moved[n]), g.Nodes[n]
		nic.Fabric, nic.Plane, nic.Ports = was.Fabric, was.Plane, was.Ports
		b.Attr(moved[n], g.Attrs[n])
	}
	for _, i := range free {
		if box.Nodes[i].Rail != topo.None && !slices.Contains(moved[host.First:host.First+topo.NodeID(host.Count)], first+topo.NodeID(i)) {
			left++
		}
	}
	return left, ""
}

// railed numbers the rails where the wiring has them: every leaf serves NICs of
// one number only, and there is more than one number.
func railed(b *topo.Builder, g *topo.Graph, moved []topo.NodeID, kinds map[string]*build.Hosts) {
	of := map[topo.NodeID]int16{} // rail of a leaf, by its node in g
	rails := map[int16]bool{}
	rail := func(n topo.NodeID) int16 { // the number of a NIC inside its kind
		node := &g.Nodes[n]
		group := kinds[g.Hosts[node.Host].Name]
		if group == nil || moved[n] == topo.None {
			return topo.None
		}
		name := b.At(moved[n]).Name
		i := slices.IndexFunc(group.Box.Nodes, func(x topo.Node) bool { return x.Name == name })
		return group.Box.Nodes[i].Rail
	}
	for i := range g.Links {
		l := &g.Links[i]
		nic, leaf := l.A, l.B
		if g.Nodes[nic].Kind != topo.NIC {
			nic, leaf = leaf, nic
		}
		if g.Nodes[nic].Kind != topo.NIC || g.Nodes[leaf].Kind != topo.Switch {
			continue
		}
		r := rail(nic)
		if r == topo.None {
			continue
		}
		if other, seen := of[leaf]; seen && other != r {
			return
		}
		of[leaf] = r
		rails[r] = true
	}
	if len(rails) < 2 {
		return
	}
	for leaf, r := range of {
		b.At(moved[leaf]).Rail = r
	}
	for i := range g.Nodes {
		if n := topo.NodeID(i); g.Nodes[i].Kind == topo.NIC && moved[n] != topo.None {
			b.At(moved[n]).Rail = rail(n)
		}
	}
}

// nearHost names a host of the fabric that a wrong name may mean, or some that there are.
func nearHost(g *topo.Graph, name string) string {
	var known []string
	for _, h := range g.Hosts {
		known = append(known, h.Name)
	}
	if found := spell.Nearest(name, known); found != "" {
		return fmt.Sprintf("did you mean %q?", found)
	}
	if len(known) > 8 {
		known = append(known[:8:8], "...")
	}
	return "it has: " + strings.Join(known, ", ")
}
