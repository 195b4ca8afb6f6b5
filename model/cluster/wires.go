package cluster

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/model/spell"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/build"
	"github.com/weft-fabric/weft/model/topo/catalog"
)

// maxWires is how many links a file may spell out.
const maxWires = 1 << 20

// wires is a hand-made network: switches by name, and links end by end.
type wires struct {
	p        *parse
	b        *topo.Builder
	hosts    map[string]hostPlace
	switches map[string]*handSwitch
	order    []*handSwitch
	fabrics  map[string]int8
	tiers    map[int8][2]int // switches of a fabric with and without a tier of their own
	links    []handLink
}

type hostPlace struct {
	box   *topo.Graph
	first topo.NodeID
}

type handSwitch struct {
	name  string
	id    topo.NodeID
	model catalog.Switch
	used  map[int]int // line by port
	next  int
}

// handLink is a link read but not yet added: ports not written are given out
// when all written ones are known.
type handLink struct {
	ends  [2]handEnd
	class topo.Class
	line  int
	path  string
}

type handEnd struct {
	node topo.NodeID
	sw   *handSwitch
	port int
	text string
}

// buildWires builds a hand-made network.
func (p *parse) buildWires(c *Cluster, switches, links *node) {
	w := &wires{p: p, b: topo.NewBuilder(c.Name), hosts: map[string]hostPlace{}, switches: map[string]*handSwitch{},
		fabrics: map[string]int8{}, tiers: map[int8][2]int{}}
	w.addHosts()
	w.readSwitches(switches)
	w.readLinks(links)
	if len(p.errs) > 0 {
		return
	}
	w.checkRates()
	w.addLinks()
	if len(p.errs) > 0 {
		return
	}
	for f := range len(w.fabrics) {
		if w.tiers[int8(f)][0] == 0 {
			w.b.InferTiers(int8(f))
		}
	}
	g, err := w.b.Graph()
	if err != nil {
		p.fail(0, "", "%v", err)
		return
	}
	c.Graph = g
}

// addHosts adds all hosts. Racks are numbered through the groups that have some, as each fills its own.
func (w *wires) addHosts() {
	rack := int32(0)
	for _, group := range w.p.hosts {
		for i, name := range group.Names {
			h := topo.Host{Name: name, Model: group.Box.Hosts[0].Model, Pod: topo.None, Rack: topo.None}
			if group.PerRack > 0 {
				h.Rack = rack + int32(i/group.PerRack)
			}
			w.hosts[name] = hostPlace{group.Box, stampRailless(w.b, group.Box, h)}
		}
		if group.PerRack > 0 {
			rack += int32((len(group.Names) + group.PerRack - 1) / group.PerRack)
		}
	}
}

// switchBase reads what all switches of an entry have in common.
func (w *wires) switchBase(f *fields, model string) topo.Node {
	base := topo.Part(topo.Switch, topo.None, "")
	base.Model, base.Ports = model, uint16(w.p.catalog.Switches[model].Ports)
	if f.has("ports") {
		base.Ports = uint16(f.integer("ports", 1, 65535))
	}
	base.Tier = uint8(f.integer("tier", 1, 9))
	for _, field := range []struct {
		name string
		set  func(v int)
	}{
		{"rail", func(v int) { base.Rail = int16(v) }}, {"plane", func(v int) { base.Plane = int8(v) }},
		{"pod", func(v int) { base.Pod = int32(v) }}, {"rack", func(v int) { base.Rack = int32(v) }},
	} {
		if f.has(field.name) {
			field.set(f.integer(field.name, 0, 127))
		}
	}
	fabric := f.text("fabric")
	f.done()
	base.Fabric = w.fabric(fabric)
	return base
}

// readSwitches reads switches by name or hostlist, each with a model alone or with more keys.
func (w *wires) readSwitches(n *node) {
	if n == nil {
		return
	}
	all := w.p.fields("switches", n)
	for _, e := range all.n.keys {
		path := all.at(clip(e.key))
		names := w.p.expand(path, e.line, e.key)
		var f *fields
		var key string
		if e.value.kind == scalar {
			f = &fields{r: &w.p.reader, path: "switches", n: all.n}
			key = w.p.model(f, e.key, true)
			f = w.p.fields(path, &node{kind: mapping, line: e.line})
		} else {
			f = w.p.fields(path, e.value)
			key = w.p.model(f, "model", true)
		}
		model, base := w.p.catalog.Switches[key], w.switchBase(f, key)
		for _, name := range names {
			if _, twice := w.switches[name]; twice {
				w.p.fail(e.line, path, "switch %q is already there", name)
				break
			}
			if line, host := w.p.places[name]; host {
				w.p.fail(e.line, path, "%q is already a host, on line %d", name, line)
				break
			}
			node := base
			node.Name = name
			s := &handSwitch{name: name, id: w.b.Node(node), model: model, used: map[int]int{}, next: 1}
			w.switches[name] = s
			if w.p.places == nil {
				w.p.places = map[string]int{}
			}
			w.p.places[name] = e.line
			w.order = append(w.order, s)
			w.countTier(base)
		}
		if count := w.tiers[base.Fabric]; count[0] > 0 && count[1] > 0 {
			w.p.fail(e.line, path,
				"some switches of the fabric have a tier and some have none; write it for all, or for none and it is read off the links")
		}
	}
}

// fabric numbers the fabrics in the order in which they are named.
func (w *wires) fabric(name string) int8 {
	if name == "" {
		name = "network"
	}
	id, ok := w.fabrics[name]
	if !ok {
		id = w.b.Fabric(topo.Fabric{Name: name, Family: topo.Irregular})
		w.fabrics[name] = id
	}
	return id
}

// countTier counts the switches of a fabric with a written tier and those without.
func (w *wires) countTier(n topo.Node) {
	count := w.tiers[n.Fabric]
	if n.Tier > 0 {
		count[0]++
	} else {
		count[1]++
	}
	w.tiers[n.Fabric] = count
}

// writtenLinks is an item of links: hostlists of both ends, which pair up, and how many cables run between each pair.
type writtenLinks struct {
	from, to []string
	gen      string
	count    int
}

// item reads one item of links in either form; nil if it is none.
func (w *wires) item(path string, item *node) *writtenLinks {
	switch {
	case item.kind == list && len(item.list) == 2 && item.list[0].kind == scalar && item.list[1].kind == scalar:
		return &writtenLinks{from: w.p.expand(path, item.list[0].line, item.list[0].text),
			to: w.p.expand(path, item.list[1].line, item.list[1].text), count: 1}
	case item.kind == mapping:
		f := w.p.fields(path, item)
		l := &writtenLinks{from: f.names("from"), to: f.names("to"), gen: f.text("link"), count: 1}
		if f.has("count") {
			l.count = f.integer("count", 1, 1024)
		}
		if !w.p.checkLink(f, l.gen) {
			l.gen = ""
		}
		f.done()
		return l
	}
	w.p.fail(item.line, path, "%s; a link is [\"n0:nic0\", \"leaf0:p1\"] or {from: n0:nic0, to: leaf0:p1}", item.show())
	return nil
}

// readLinks reads cables as pairs of ends. Ends may be hostlists, matched one to one or one to all.
func (w *wires) readLinks(n *node) {
	if n == nil {
		return
	}
	if n.kind != list {
		w.p.fail(n.line, "links", "%s; it must be a list of [end, end] or {from, to, link}", n.show())
		return
	}
	for i, item := range n.list {
		path := fmt.Sprintf("links[%d]", i)
		written := w.item(path, item)
		if written == nil {
			continue
		}
		pairs, err := pair(written.from, written.to)
		if err != nil {
			w.p.fail(item.line, path, "%v", err)
			continue
		}
		for _, ends := range pairs {
			for range written.count {
				if len(w.links) >= maxWires {
					w.p.fail(item.line, path, "more than %d links", maxWires)
					return
				}
				w.link(path, item.line, ends, written.gen)
			}
		}
	}
}

// link resolves the two ends of a link and takes the ports that are written.
func (w *wires) link(path string, line int, ends [2]string, gen string) {
	l := handLink{line: line, path: path}
	for i, text := range ends {
		e, err := w.end(text)
		if err != nil {
			w.p.fail(line, path, "%v", err)
			return
		}
		if e.sw != nil && e.port > 0 {
			if other, taken := e.sw.used[e.port]; taken {
				w.p.fail(line, path, "port %d of %q is already used on line %d", e.port, e.sw.name, other)
				return
			}
			e.sw.used[e.port] = line
		}
		l.ends[i] = e
	}
	if l.ends[0].node == l.ends[1].node {
		w.p.fail(line, path, "%q and %q are the same", ends[0], ends[1])
		return
	}
	class, err := w.class(l, gen)
	if err != nil {
		w.p.fail(line, path, "%v", err)
		return
	}
	l.class = class
	if err := w.joinFabric(l); err != nil {
		w.p.fail(line, path, "%v", err)
		return
	}
	w.links = append(w.links, l)
}

// joinFabric puts a NIC that is linked to a switch into the switch's fabric and on its rail.
func (w *wires) joinFabric(l handLink) error {
	for i, e := range l.ends {
		if n, other := w.b.At(e.node), l.ends[1-i].sw; n.Kind == topo.NIC && other != nil {
			sw := w.b.At(other.id)
			if n.Fabric != topo.None && n.Fabric != sw.Fabric {
				return fmt.Errorf("%q is already in another fabric than %q", e.text, other.name)
			}
			n.Fabric, n.Rail = sw.Fabric, sw.Rail
		}
	}
	return nil
}

// end finds HOST:PART, SWITCH or SWITCH:pN.
func (w *wires) end(text string) (handEnd, error) {
	name, part, has := strings.Cut(text, ":")
	if s, ok := w.switches[name]; ok {
		e := handEnd{node: s.id, sw: s, text: text}
		if !has {
			return e, nil
		}
		port, err := strconv.Atoi(strings.TrimPrefix(part, "p"))
		if ports := int(w.b.At(s.id).Ports); err != nil || port < 1 || port > ports {
			return e, fmt.Errorf("switch %[2]q has no port %[1]q; its ports are p1 to p%[3]d", part, name, ports)
		}
		e.port = port
		return e, nil
	}
	h, ok := w.hosts[name]
	if !ok {
		return handEnd{}, fmt.Errorf("%q leads to nowhere: no host and no switch %q; %s", clip(text), clip(name), w.nearest(name))
	}
	if !has {
		return handEnd{}, fmt.Errorf("%q is a host; write which part, such as %s:nic0", name, name)
	}
	var parts []string
	for i := range h.box.Nodes {
		if h.box.Nodes[i].Name == part {
			return handEnd{node: h.first + topo.NodeID(i), text: text}, nil
		}
		parts = append(parts, h.box.Nodes[i].Name)
	}
	return handEnd{}, fmt.Errorf("%q leads to nowhere: host %q has no part %q; it has: %s",
		clip(text), name, clip(part), strings.Join(parts, " "))
}

// nearest names switches and hosts that there are, a readable number of them.
func (w *wires) nearest(name string) string {
	var known []string
	for _, s := range w.order {
		known = append(known, s.name)
	}
	for _, g := range w.p.hosts {
		known = append(known, g.Names...)
	}
	if found := spell.Nearest(name, known); found != "" {
		return fmt.Sprintf("did you mean %q?", found)
	}
	slices.SortFunc(known, topo.Natural)
	if len(known) > 8 {
		known = append(known[:8:8], "...")
	}
	return "known: " + strings.Join(known, ", ")
}

// class finds what sort of link joins two ends, unless it is written.
func (w *wires) class(l handLink, gen string) (topo.Class, error) {
	if gen != "" {
		link := w.p.catalog.Links[gen]
		return link.Class(0), w.can(l, link)
	}
	a, b := l.ends[0], l.ends[1]
	if a.sw == nil {
		a, b = b, a
	}
	switch {
	case a.sw != nil && b.sw != nil:
		x, y := w.p.catalog.Links[a.sw.model.Link].Class(0), w.p.catalog.Links[b.sw.model.Link].Class(0)
		if x.Kind != y.Kind {
			return x, fmt.Errorf("switch %q is %s and %q is %s; they cannot be joined", a.sw.name, x.Kind, b.sw.name, y.Kind)
		}
		if y.Rate < x.Rate {
			return y, nil
		}
		return x, nil
	case a.sw != nil && w.b.At(b.node).Kind == topo.NIC:
		return build.LinkBetween(w.p.catalog, w.b.At(b.node).Model, a.sw.model)
	default:
		return topo.Class{}, fmt.Errorf("%q and %q: no network link joins them by itself; write link, such as nvlink4", a.text, b.text)
	}
}

// can holds a written link against what both ends are able to do: the kind of
// the switch's ports, and the rate of the switch's and the NIC's.
func (w *wires) can(l handLink, link catalog.Link) error {
	for i, e := range l.ends {
		n := w.b.At(e.node)
		var err error
		switch {
		case e.sw != nil:
			err = w.switchCan(e.sw, link)
		case n.Kind == topo.NIC:
			err = w.nicCan(e.text, n.Model, link)
		case link.Kind.Network() || l.ends[1-i].sw != nil:
			err = fmt.Errorf("%q is a %s; a network link ends at a NIC or a switch", e.text, n.Kind)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// switchCan says why a switch cannot have a link; nil if it can, or if its ports are unknown.
func (w *wires) switchCan(sw *handSwitch, link catalog.Link) error {
	own, known := w.p.catalog.Links[sw.model.Link]
	if !known {
		return nil
	}
	if own.Kind != link.Kind {
		return fmt.Errorf("link %q is %s, but switch %q (%s) is %s", link.Gen, link.Kind, sw.name, sw.model.Name, own.Kind)
	}
	if rate := own.Class(0).Rate; link.Class(0).Rate > rate*(1+1e-9) {
		return fmt.Errorf("link %q runs at %s, but a port of switch %q (%s) at most at %s: %s",
			link.Gen, link.Class(0).Rate.Bits(), sw.name, sw.model.Name, rate.Bits(), own.Gen)
	}
	return nil
}

// nicCan is switchCan for NICs.
func (w *wires) nicCan(name, model string, link catalog.Link) error {
	if !link.Kind.Network() {
		return fmt.Errorf("link %q is %s; a NIC such as %q takes InfiniBand or Ethernet", link.Gen, link.Kind, name)
	}
	card, known := w.p.catalog.NICs[model]
	if !known {
		return nil
	}
	if own := w.p.catalog.Links[card.Link]; link.Class(0).Rate > own.Class(0).Rate*(1+1e-9) {
		return fmt.Errorf("link %q runs at %s, but %q (%s) at most at %s: %s",
			link.Gen, link.Class(0).Rate.Bits(), name, model, own.Class(0).Rate.Bits(), own.Gen)
	}
	return nil
}

// nicPorts is how many links a NIC takes: the ports of its model, one if the model is unknown.
func (w *wires) nicPorts(n *topo.Node) int { return max(w.p.catalog.NICs[n.Model].Ports, 1) }

// checkRates refuses a switch that carries more than its data sheet gives it, as
// one with a number of ports of its own may.
func (w *wires) checkRates() {
	sum := map[*handSwitch]float64{}
	for _, l := range w.links {
		for _, e := range l.ends {
			if e.sw == nil {
				continue
			}
			have := float64(w.p.catalog.Links[e.sw.model.Link].Class(0).Rate) * float64(e.sw.model.Ports)
			before := sum[e.sw]
			sum[e.sw] += float64(l.class.Rate)
			if limit := have * (1 + 1e-9); have > 0 && before <= limit && sum[e.sw] > limit {
				w.p.fail(l.line, l.path, "switch %q (%s) has %.1f Tb/s and the links up to here need %.1f; wire fewer or slower links",
					e.sw.name, e.sw.model.Name, have*8e-12, sum[e.sw]*8e-12)
			}
		}
	}
}

// addLinks gives out the ports not written, the lowest free ones first, and adds all links.
func (w *wires) addLinks() {
	nics := map[topo.NodeID]uint16{}
	for _, l := range w.links {
		var ports [2]uint16
		for i, e := range l.ends {
			if e.sw == nil {
				if n := w.b.At(e.node); n.Kind == topo.NIC {
					nics[e.node]++
					if have := w.nicPorts(n); int(nics[e.node]) > have {
						w.p.fail(l.line, l.path, "%q has %s and is wired %d times; use another NIC, or give it a model with more ports under catalog, nics",
							e.text, plural(have, "port"), nics[e.node])
						return
					}
					ports[i] = nics[e.node]
					n.Ports = max(n.Ports, ports[i])
				}
				continue
			}
			port := e.port
			if port == 0 {
				for e.sw.used[e.sw.next] != 0 {
					e.sw.next++
				}
				port = e.sw.next
				if have := int(w.b.At(e.sw.id).Ports); port > have {
					w.p.fail(l.line, l.path, "switch %q has no port left: all %d are used", e.sw.name, have)
					return
				}
				e.sw.used[port] = l.line
			}
			ports[i] = uint16(port)
		}
		w.b.Link(topo.Link{A: l.ends[0].node, B: l.ends[1].node, APort: ports[0], BPort: ports[1], Class: w.b.Class(l.class)})
	}
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
