package cluster

import (
	"fmt"
	"path"
	"strings"
	"unicode"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/build"
	"github.com/weft-fabric/weft/model/topo/catalog"
)

// Parse reads a cluster file. name is the file's, for errors and for a cluster
// without a name; open reads the files that it includes, by the path written
// there, and may be nil. Every error is an *Error, or several joined.
func Parse(name string, data []byte, open func(path string) ([]byte, error)) (*Cluster, error) {
	root, err := readTree(name, data)
	if err != nil {
		return nil, err
	}
	p := &parse{reader: reader{file: name}, open: open, catalog: catalog.Default()}
	if root.kind != mapping {
		p.fail(root.line, "", "the file is %s; it must be a mapping with name and hosts, or preset", kindNames[root.kind])
		return nil, p.err()
	}
	c := p.cluster(p.fields("", root))
	if err := p.err(); err != nil {
		return nil, err
	}
	return c, nil
}

// parse is one file being read.
type parse struct {
	reader
	open    func(string) ([]byte, error)
	catalog *catalog.Catalog
	kinds   map[string]*topo.Graph // custom kinds, and known ones once used
	hosts   []build.Hosts
	places  map[string]int // line of each host's name
	size    int            // parts of all hosts together
	lines   map[string]int // line of each fabric
}

// cluster reads the whole file. What is wrong is collected; nothing is built
// from a file with errors.
func (p *parse) cluster(f *fields) *Cluster {
	name := f.text("name")
	if name == "" {
		name = strings.TrimSuffix(path.Base(p.file), path.Ext(p.file))
	}
	if len(name) > 64 || strings.ContainsFunc(name, unicode.IsControl) {
		f.fail("name", "%q; a cluster's name stands in every file that is written: at most 64 bytes, and no line breaks", clip(name))
	}
	p.parts(f.get("catalog"))
	needs, network := p.needs(f.get("needs")), p.network(f)
	ground, beside := p.readFloor(f.get("floor")), p.readServices(f.get("services"))
	where := floorLines(f.get("floor"))
	if f.has("preset") {
		c := p.preset(f, name, needs)
		if c != nil {
			c.Network = network
			p.finish(c, ground, beside, f.line("floor"), where)
		}
		return c
	}
	p.readKinds(f.get("kinds"))
	p.readHosts(f.get("hosts"), f.get("defaults"))
	var fabrics []build.Fabric
	var chips *build.Chips
	one, many, wires := f.get("fabric"), f.get("fabrics"), f.has("switches") || f.has("links")
	switch {
	case one != nil && many != nil:
		f.fail("fabrics", "fabric and fabrics are both given; write one fabric, or all under fabrics")
	case wires && (one != nil || many != nil):
		f.fail("switches", "switches and links describe the whole network; leave out fabric, or them")
	case one != nil:
		fabrics, chips = p.fabric("fabric", "compute", one)
	case many != nil:
		fabrics = p.fabrics(many)
	}
	switches, links := f.get("switches"), f.get("links")
	from := p.readImport(f.get("import"))
	if f.has("import") && (wires || one != nil || many != nil || f.has("nvlink")) {
		f.fail("import", "an imported fabric is the whole network; leave out fabric, fabrics, switches, links and nvlink, or import")
	}
	overlays := p.overlays(f)
	if !f.has("hosts") && !wires && !f.has("import") {
		f.fail("hosts", "missing; write for instance hosts: {\"n[0-3]\": dgx-h100}, or preset: NAME")
	}
	f.done()
	if len(p.errs) > 0 {
		return nil
	}
	c := &Cluster{Name: name, Catalog: p.catalog, Needs: needs, Network: network, LinksPerCable: 1}
	switch {
	case from != nil:
		p.buildImport(c, from)
	case chips != nil:
		p.buildChips(c, *chips, one.line)
	case wires:
		p.buildWires(c, switches, links)
	default:
		line := f.n.line
		if one != nil {
			line = one.line
		} else if many != nil {
			line = many.line
		}
		p.buildFabrics(c, build.Cluster{Name: name, Hosts: p.hosts, Fabrics: fabrics, Overlays: overlays}, line)
	}
	c.Network.devices = p.places
	p.finish(c, ground, beside, f.line("floor"), where)
	return c
}

// preset builds a cluster from a preset, which brings hosts and fabric. Keys that describe these are errors; nothing is
// merged.
func (p *parse) preset(f *fields, name string, needs Needs) *Cluster {
	params := map[string]int{}
	if n := f.get("params"); n != nil {
		q := p.fields("params", n)
		for _, e := range q.n.keys {
			params[e.key] = q.integer(e.key, 0, 1<<20)
		}
	}
	for _, other := range []string{"hosts", "kinds", "defaults", "fabric", "fabrics", "switches", "links", "nvlink", "import"} {
		if f.has(other) {
			f.fail(other, "a preset brings its own; leave out %s or preset", other)
		}
	}
	which := f.text("preset")
	given := f.has("name")
	f.done()
	if len(p.errs) > 0 {
		return nil
	}
	c, err := preset(p.catalog, which, params)
	if err != nil {
		f.fail("preset", "%v", err)
		return nil
	}
	if given {
		c.Name, c.Graph.Name = name, name
	}
	c.Needs = needs
	return c
}

// buildFabrics builds what the families lay out, and says how it grows.
func (p *parse) buildFabrics(c *Cluster, x build.Cluster, line int) {
	g, growth, err := x.Build(p.catalog)
	if err != nil {
		for name, at := range p.lines { // at most one name fits
			if strings.HasPrefix(err.Error(), fmt.Sprintf("fabric %q: ", name)) {
				line = at
			}
		}
		p.fail(line, "", "%v", err)
		return
	}
	c.Graph = g
	c.Growth = Growth{Unit: growth.Unit, UnitHosts: growth.UnitHosts, MaxHosts: growth.MaxHosts}
	if growth.UnitHosts > 0 {
		c.Growth.Next = func() (*topo.Graph, error) {
			more := x
			more.Hosts = append([]build.Hosts(nil), x.Hosts...)
			last := &more.Hosts[len(more.Hosts)-1]
			last.Names = append(append([]string(nil), last.Names...), p.freeNames(last.Names[len(last.Names)-1], growth.UnitHosts)...)
			g, _, err := more.Build(p.catalog)
			return g, err
		}
	}
}

func (p *parse) buildChips(c *Cluster, x build.Chips, line int) {
	if len(p.hosts) != 1 {
		p.fail(line, "fabric", "a torus of chips has hosts of one kind, not of %d", len(p.hosts))
		return
	}
	x.Name, x.Box, x.Hosts = c.Name, p.hosts[0].Box, p.hosts[0].Names
	g, growth, err := x.Build(p.catalog)
	if err != nil {
		p.fail(line, "fabric", "%v", err)
		return
	}
	c.Graph, c.Growth = g, Growth{Unit: growth.Unit, UnitHosts: growth.UnitHosts}
}
