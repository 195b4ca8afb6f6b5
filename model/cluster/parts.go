package cluster

import (
	"maps"
	"regexp"
	"slices"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
)

// parts lays the file's own catalogue entries over the built-in ones: entries in
// place, or in other files named by include, which are read first.
func (p *parse) parts(n *node) {
	if n == nil {
		return
	}
	if n.kind == scalar {
		p.include(n)
		return
	}
	f := p.fields("catalog", n)
	if files := f.get("include"); files != nil {
		if files.kind == list {
			for _, file := range files.list {
				p.include(file)
			}
		} else {
			p.include(files)
		}
	}
	p.sections(f)
}

// include reads a file of catalogue entries.
func (p *parse) include(n *node) {
	if n.kind != scalar || n.text == "" {
		p.fail(n.line, "catalog.include", "%s; it must be the path of a file", n.show())
		return
	}
	if p.open == nil {
		p.fail(n.line, "catalog.include", "%q cannot be read: files cannot be included here", clip(n.text))
		return
	}
	data, err := p.open(n.text)
	if err != nil {
		p.fail(n.line, "catalog.include", "%q cannot be read: %v", clip(n.text), err)
		return
	}
	root, err := readTree(n.text, data)
	if err != nil {
		p.errs = append(p.errs, err)
		return
	}
	sub := &parse{reader: reader{file: n.text}, catalog: p.catalog}
	sub.sections(sub.fields("", root))
	p.errs = append(p.errs, sub.errs...)
}

// sections reads entries by sort. Links come first, since the others name them.
func (p *parse) sections(f *fields) {
	section(p, f, "links", p.catalog.Links, p.link)
	section(p, f, "gpus", p.catalog.GPUs, p.gpu)
	section(p, f, "nics", p.catalog.NICs, p.nic)
	section(p, f, "switches", p.catalog.Switches, p.switchPart)
	section(p, f, "hosts", p.catalog.Hosts, p.hostPart)
	section(p, f, "cables", p.catalog.Cables, p.cable)
	f.done()
}

// section reads the entries of one sort. An entry that is already known, or that
// is like another, keeps what the file does not say.
func section[T any](p *parse, f *fields, name string, all map[string]T, read func(q *fields, key string, fresh bool, entry *T)) {
	n := f.get(name)
	if n == nil {
		return
	}
	s := p.fields(f.at(name), n)
	for _, e := range s.n.keys {
		q := p.fields(s.at(clip(e.key)), e.value)
		entry, known := all[e.key]
		if q.has("like") {
			base := q.text("like")
			if entry, known = all[base]; !known {
				q.fail("like", "%q; %s", clip(base), suggest(base, slices.Sorted(maps.Keys(all))))
				known = true
			}
		}
		read(q, e.key, !known, &entry)
		q.done()
		all[e.key] = entry
	}
}

// need reports fields that a new entry must have.
func (f *fields) need(fresh bool, names ...string) {
	for _, name := range names {
		if fresh && !f.has(name) {
			f.fail(name, "missing; a new entry needs it, or like with the name of a known one")
		}
	}
}

// set reads a whole number over what is there.
func (f *fields) set(name string, into *int, lo, hi int) {
	if f.has(name) {
		*into = f.integer(name, lo, hi)
	}
}

func (f *fields) setText(name string, into *string) {
	if f.has(name) {
		*into = f.text(name)
	}
}

// setLink reads the name of a link that the catalogue has.
func (p *parse) setLink(f *fields, name string, into *string) {
	if !f.has(name) {
		return
	}
	gen := f.text(name)
	if _, err := p.catalog.Link(gen); err != nil {
		f.fail(name, "%v", err)
		return
	}
	*into = gen
}

func (f *fields) source(p *parse) catalog.Source {
	if f.has("source") {
		return catalog.Source(f.text("source"))
	}
	return catalog.Source(p.file)
}

// link reads a generation of links. fresh says that the catalogue has none of that name: then kind and rate must be
// given. The rate is of the whole link, net of its encoding.
func (p *parse) link(f *fields, key string, fresh bool, l *catalog.Link) {
	f.need(fresh, "kind", "rate")
	l.Gen, l.Source = key, f.source(p)
	if f.has("kind") {
		k, err := topo.ParseLinkKind(f.text("kind"))
		if err != nil {
			f.fail("kind", "%v", err)
		}
		l.Kind = k
	}
	f.set("lanes", &l.Lanes, 1, 512)
	l.Lanes = max(l.Lanes, 1)
	if f.has("rate") { // of the whole link, net of its code
		var rate unit.Rate
		quantity(f, "rate", &rate, unit.ParseRate)
		if rate <= 0 {
			f.fail("rate", "%q; it must be more than nothing", f.text("rate"))
		}
		l.LaneRate, l.Encoding = rate.Bits()/unit.BitRate(l.Lanes), catalog.Encoding{}
	}
	quantity(f, "latency", &l.Latency, unit.ParseTime)
	l.Efficiency = f.number("efficiency", l.Efficiency, 0)
}

func (p *parse) gpu(f *fields, key string, fresh bool, g *catalog.GPU) {
	f.need(fresh, "memory", "pcie")
	g.Name, g.Source = key, f.source(p)
	f.setText("arch", &g.Arch)
	f.set("compute", &g.Compute, 0, 1000)
	quantity(f, "memory", &g.Memory, unit.ParseBytes)
	quantity(f, "memory-rate", &g.MemoryRate, unit.ParseRate)
	p.setLink(f, "link", &g.Link)
	f.set("links", &g.Links, 0, 64)
	p.setLink(f, "pcie", &g.PCIe)
	if n := f.get("dense"); n != nil {
		q := p.fields(f.at("dense"), n)
		g.Dense = maps.Clone(g.Dense)
		if g.Dense == nil {
			g.Dense = map[string]float64{}
		}
		for _, t := range []string{"fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4"} {
			if q.has(t) {
				g.Dense[t] = q.number(t, 0, 0)
			}
		}
		q.done()
	}
	g.Watts = f.number("watts", g.Watts, 0)
	f.setPrice("price", &g.Price)
}

func (p *parse) nic(f *fields, key string, fresh bool, n *catalog.NIC) {
	f.need(fresh, "link", "pcie")
	n.Name, n.Source = key, f.source(p)
	f.set("ports", &n.Ports, 1, 16)
	n.Ports = max(n.Ports, 1)
	p.setLink(f, "link", &n.Link)
	p.setLink(f, "pcie", &n.PCIe)
	f.set("lanes", &n.Lanes, 1, 32)
	quantity(f, "latency", &n.Latency, unit.ParseTime)
	n.Watts = f.number("watts", n.Watts, 0)
	f.setPrice("price", &n.Price)
}

func (p *parse) switchPart(f *fields, key string, fresh bool, s *catalog.Switch) {
	f.need(fresh, "ports", "link")
	s.Name, s.Source = key, f.source(p)
	f.set("ports", &s.Ports, 1, 4096)
	p.setLink(f, "link", &s.Link)
	s.Kind = p.catalog.Links[s.Link].Kind
	quantity(f, "latency", &s.Latency, unit.ParseTime)
	f.set("split", &s.Split, 1, 8)
	f.set("per-cage", &s.PerCage, 1, 8)
	f.set("units", &s.Units, 1, 60)
	s.Watts = f.number("watts", s.Watts, 0)
	f.setPrice("price", &s.Price)
}

func (p *parse) hostPart(f *fields, key string, fresh bool, h *catalog.Host) {
	h.Name, h.Source = key, f.source(p)
	if fresh && !f.has("like") {
		f.r.fail(f.n.line, f.path, "unknown host; a new kind of host is written under kinds, and %s",
			suggest(key, slices.Sorted(maps.Keys(p.catalog.Hosts))))
	}
	if f.has("gpu") {
		if _, err := p.catalog.GPU(f.text("gpu")); err != nil {
			f.fail("gpu", "%v", err)
		}
		h.GPU = f.text("gpu")
	}
	if f.has("nic") {
		if _, err := p.catalog.NIC(f.text("nic")); err != nil {
			f.fail("nic", "%v", err)
		}
		h.NIC = f.text("nic")
	}
	f.set("units", &h.Units, 1, 60)
	h.Watts = f.number("watts", h.Watts, 0)
	f.setPrice("price", &h.Price)
	f.setPrice("rent", &h.Rent)
}

func (p *parse) cable(f *fields, key string, fresh bool, c *catalog.Cable) {
	f.need(fresh, "link", "reach")
	c.Name, c.Source = key, f.source(p)
	p.setLink(f, "link", &c.Link)
	c.Reach = f.number("reach", c.Reach, 0)
	f.set("optics", &c.Optics, 0, 2)
	c.Watts = f.number("watts", c.Watts, 0)
	f.setPrice("price", &c.Price)
}

var month = regexp.MustCompile(`^\d{4}-\d{2}(-\d{2})?$`)

func (f *fields) setPrice(name string, into *catalog.Price) {
	if f.has(name) {
		*into = f.price(name)
	}
}

// price reads an amount in USD, alone or with the day it was true.
func (f *fields) price(name string) catalog.Price {
	n := f.get(name)
	if n == nil {
		return catalog.Price{}
	}
	if n.kind == scalar {
		return catalog.Price{USD: f.number(name, 0, 0), Source: catalog.Source(f.r.file)}
	}
	q := f.r.fields(f.at(name), n)
	out := catalog.Price{USD: q.number("usd", 0, 0), Date: q.text("date"), Source: catalog.Source(f.r.file)}
	if s := q.text("source"); s != "" {
		out.Source = catalog.Source(s)
	}
	if out.Date != "" && !month.MatchString(out.Date) {
		q.fail("date", "%q; write it as 2024-03", clip(out.Date))
	}
	q.done()
	return out
}
