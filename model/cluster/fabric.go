package cluster

import (
	"cmp"
	"strings"

	"github.com/weft-fabric/weft/model/topo/build"
)

var families = []string{"rail", "fat-tree", "dragonfly", "torus", "chip-torus"}

// fabrics reads several fabrics by name, in the order written.
func (p *parse) fabrics(n *node) []build.Fabric {
	if n.kind != mapping || len(n.keys) == 0 {
		p.fail(n.line, "fabrics", "%s; write fabrics by name, such as compute: {family: rail, ...}", n.show())
		return nil
	}
	var all []build.Fabric
	for _, e := range n.keys {
		list, chips := p.fabric("fabrics."+clip(e.key), e.key, e.value)
		if chips != nil {
			p.fail(e.line, "fabrics."+clip(e.key), "a chip-torus stands alone; write it under fabric")
		}
		all = append(all, list...)
	}
	return all
}

// checkLink refuses a link that the catalogue does not have; where none is named, the usual one is taken later.
func (p *parse) checkLink(f *fields, gen string) bool {
	if gen == "" {
		return true
	}
	_, err := p.catalog.Link(gen)
	if err != nil {
		f.fail("link", "%v", err)
	}
	return err == nil
}

// fabricName takes a name, which must be new and must not be torn apart where names of ports are written.
func (p *parse) fabricName(f *fields, name string, line int) string {
	if strings.ContainsAny(name, ": \t") {
		f.fail("name", "%q; a name has neither colon nor space", clip(name))
	}
	if p.lines == nil {
		p.lines = map[string]int{}
	}
	if other, twice := p.lines[name]; twice {
		f.fail("name", "fabric %q is already on line %d", clip(name), other)
	}
	p.lines[name] = line
	return name
}

// fabric reads one fabric of any family.
func (p *parse) fabric(path, name string, n *node) ([]build.Fabric, *build.Chips) {
	f := p.fields(path, n)
	if n.kind == null {
		f.fail("family", "missing; known: %s", strings.Join(families, ", "))
		return nil, nil
	}
	if !f.has("family") {
		f.fail("family", "missing; known: %s", strings.Join(families, ", "))
	}
	family := f.oneOf("family", families...)
	name = p.fabricName(f, cmp.Or(f.text("name"), name), n.line)
	nics, service, link := f.names("nics"), f.bool("service"), f.text("link")
	p.checkLink(f, link)
	var out []build.Fabric
	var chips *build.Chips
	switch family {
	case "dragonfly":
		x := build.Dragonfly{Name: name, NICs: nics, Service: service, Link: link, Model: p.model(f, "switch", true),
			Routers: f.integer("routers", 1, 1024), Ports: f.integer("ports", 1, 1024), Global: f.integer("global", 1, 1024),
			Groups: f.integer("groups", 2, 1<<16)}
		for _, need := range []string{"routers", "ports", "global"} {
			if !f.has(need) {
				f.fail(need, "missing; a dragonfly needs routers (a group), ports (for NICs, a router) and global (links, a router)")
			}
		}
		out = append(out, x)
	case "torus":
		out = append(out, build.Torus{Name: name, NICs: nics, Service: service, Link: link, Model: p.model(f, "switch", true),
			Dims: p.dims(f), Ports: f.integer("ports", 1, 1024)})
	case "chip-torus":
		if link == "" {
			link = "ici4"
		}
		chips = &build.Chips{Dims: p.dims(f), Link: link}
	default:
		out = append(out, p.clos(f, family, name, nics, service, link))
	}
	f.done()
	return out, chips
}

// dims reads the lengths of a torus, [4, 4, 4] or 4x4x4.
func (p *parse) dims(f *fields) []int {
	n := f.get("dims")
	if n == nil {
		f.fail("dims", "missing; write for instance dims: [4, 4, 4]")
		return nil
	}
	items := n.list
	if n.kind == scalar {
		for part := range strings.SplitSeq(n.text, "x") {
			items = append(items, &node{kind: scalar, line: n.line, text: part})
		}
	}
	if len(items) == 0 || len(items) > 6 {
		f.fail("dims", "%d dimensions; it must be 1 to 6, such as [4, 4, 4]", len(items))
		return nil
	}
	var dims []int
	for _, item := range items {
		dims = append(dims, p.integer(f.at("dims"), item, 1, 1<<16))
	}
	return dims
}

// model reads the name of a switch.
func (p *parse) model(f *fields, name string, needed bool) string {
	m := f.text(name)
	if m == "" && !needed {
		return ""
	}
	sw, err := p.catalog.Switch(m)
	if err == nil && !sw.Kind.Network() {
		f.fail(name, "%q is a switch inside hosts; take one of a network, such as SN5600 or QM9700", m)
	}
	if err != nil {
		if m == "" {
			_, known, _ := strings.Cut(err.Error(), "; ")
			f.fail(name, "missing; %s", known)
		} else {
			f.fail(name, "%v", err)
		}
	}
	return m
}

// clos reads a rail-optimised fabric or a fat-tree.
func (p *parse) clos(f *fields, family, name string, nics []string, service bool, link string) build.Clos {
	x := build.Clos{
		Name: name, NICs: nics, Service: service, Link: link, Rails: family == "rail",
		Tiers: f.integer("tiers", 1, 3), Planes: f.integer("planes", 1, 8), Unit: f.integer("pod", 1, 1<<16),
		Block: f.integer("block", 1, 1<<16), Leaves: 0,
	}
	if family == "fat-tree" {
		x.Leaves = f.integer("leaves", 1, 64)
		x.UnitName = "leaf"
	} else {
		x.ByRail = f.bool("rail-only")
		if by := f.oneOf("spines-by", "pod", "rail"); by == "rail" {
			x.ByRail = true
		}
		if f.bool("rail-only") && x.Tiers == 3 {
			f.fail("rail-only", "true with tiers: 3; cores would join the rails again")
		} else if f.bool("rail-only") && x.Tiers == 0 {
			x.Tiers = 2
		}
	}
	all := p.model(f, "switch", !f.has("leaf"))
	x.Leaf.Model = all
	x.Leaf.Oversub = f.ratio("oversubscription")
	for _, t := range []struct {
		name string
		tier *build.Tier
	}{{"leaf", &x.Leaf}, {"spine", &x.Spine}, {"core", &x.Core}} {
		p.tier(f, t.name, t.tier)
	}
	return x
}

// tier reads the switches of a tier: their model alone, or a mapping. Nothing leads up from the cores.
func (p *parse) tier(f *fields, name string, t *build.Tier) {
	n := f.get(name)
	if n == nil {
		return
	}
	if n.kind == scalar {
		t.Model = p.model(f, name, true)
		return
	}
	q := p.fields(f.at(name), n)
	if m := p.model(q, "switch", t.Model == "" && name == "leaf"); m != "" {
		t.Model = m
	}
	if name != "leaf" {
		t.Count = q.integer("count", 1, 1<<14)
	}
	if name != "core" {
		p.upwards(q, t)
	}
	q.done()
}

// upwards reads how a tier's ports divide between the tiers below and above.
func (p *parse) upwards(f *fields, t *build.Tier) {
	t.Link = f.text("link")
	p.checkLink(f, t.Link)
	if f.has("oversubscription") {
		if t.Oversub.Up > 0 {
			f.fail("oversubscription", "also given for the whole fabric; write it once")
		}
		t.Oversub = f.ratio("oversubscription")
	}
	t.Down, t.Up = f.integer("down", 1, 4096), f.integer("up", 1, 4096)
	if t.Down > 0 && t.Oversub.Up > 0 {
		f.fail("down", "conflicts with oversubscription; write down and up, or oversubscription")
	}
}

// overlays reads nvlink: what joins hosts besides the fabrics.
func (p *parse) overlays(f *fields) []build.Overlay {
	if !f.has("nvlink") {
		return nil
	}
	const racks, network = "nvl72", "network"
	var o build.Overlay
	var err error
	switch f.oneOf("nvlink", racks, network) {
	case network:
		o, err = build.NewNVLinkNet(p.catalog)
	default:
		o, err = build.NVL72Domains(p.catalog)
		for i := range p.hosts {
			if gpus := len(p.hosts[i].Names) % build.NVL72Trays; gpus != 0 {
				f.fail("nvlink", "an NVL72 rack has %d hosts, and %d hosts do not fill whole racks", build.NVL72Trays, len(p.hosts[i].Names))
			}
			p.hosts[i].PerRack = build.NVL72Trays
		}
	}
	if err != nil {
		f.fail("nvlink", "%v", err)
	}
	return []build.Overlay{o}
}
