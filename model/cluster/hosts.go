package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/build"
	"github.com/weft-fabric/weft/model/topo/catalog"
)

// Limits of a file: hosts it may name, parts and joins of one kind of host, and
// parts of all hosts together. 131,072 GPUs are 16,384 hosts and 0.6 million parts.
const (
	maxHosts   = 1 << 17
	maxDevices = 1 << 12
	maxJoins   = 1 << 16
	maxParts   = 1 << 23
)

// kindNamesKnown lists every kind of host there is, the file's own first.
func (p *parse) knownKinds() []string {
	own := slices.SortedFunc(maps.Keys(p.kinds), topo.Natural)
	for _, k := range build.HostKinds() {
		if !slices.Contains(own, k) {
			own = append(own, k)
		}
	}
	return own
}

// rackDefaults reads how many hosts of each kind stand in a rack.
func (p *parse) rackDefaults(n *node) map[string]int {
	perRack := map[string]int{}
	if n == nil {
		return perRack
	}
	d := p.fields("defaults", n)
	for _, e := range d.n.keys {
		if known := p.knownKinds(); !slices.Contains(known, e.key) {
			p.fail(e.line, d.at(clip(e.key)), "unknown host kind; %s", suggest(e.key, known))
			continue
		}
		q := p.fields(d.at(e.key), e.value)
		perRack[e.key] = q.perRack()
		q.done()
	}
	return perRack
}

// hostKind reads a kind alone, or a mapping of the kind and the hosts per rack.
func (p *parse) hostKind(field string, n *node) (kind string, rack int) {
	if n.kind == scalar {
		return n.text, 0
	}
	f := p.fields(field, n)
	kind = f.text("kind")
	if kind == "" {
		f.fail("kind", "missing; known: %s", strings.Join(p.knownKinds(), ", "))
	}
	rack = f.perRack()
	f.done()
	return kind, rack
}

// placeHosts notes the line of each host; of several mistakes in a hostlist, the first is told.
func (p *parse) placeHosts(field string, line int, names []string) {
	for _, name := range names {
		if strings.Contains(name, ":") {
			p.fail(line, field, "host name %q has a colon, which stands between a host and its parts", name)
			return
		}
		if other, twice := p.places[name]; twice {
			p.fail(line, field, "host %q is already on line %d", name, other)
			return
		}
		p.places[name] = line
	}
}

// readHosts reads hostlists with their kinds, in the order written.
func (p *parse) readHosts(n, defaults *node) {
	perRack := p.rackDefaults(defaults)
	if n == nil {
		return
	}
	if n.kind != mapping || len(n.keys) == 0 {
		p.fail(n.line, "hosts", "%s; write hostlists with their kinds, such as \"n[0-3]\": dgx-h100", n.show())
		return
	}
	p.places = map[string]int{}
	for _, e := range n.keys {
		field := "hosts." + clip(e.key)
		names := p.expand(field, e.line, e.key)
		kind, rack := p.hostKind(field, e.value)
		if rack == 0 {
			rack = perRack[kind]
		}
		p.placeHosts(field, e.line, names)
		if len(p.places) > maxHosts {
			p.fail(e.line, field, "more than %d hosts", maxHosts)
			return
		}
		if box := p.box(field, e.value.line, kind); box != nil && len(names) > 0 {
			if p.size += len(names) * len(box.Nodes); p.size > maxParts {
				p.fail(e.line, field, "more than %d parts in all hosts together", maxParts)
				return
			}
			p.hosts = append(p.hosts, build.Hosts{Box: box, Names: names, PerRack: rack})
		}
	}
}

// perRack reads how many hosts stand in a rack: 4, or "4 per rack".
func (f *fields) perRack() int {
	n := f.get("rack")
	if n == nil {
		return 0
	}
	count, _ := strings.CutSuffix(n.text, " per rack")
	return f.r.integer(f.at("rack"), &node{kind: n.kind, line: n.line, text: strings.TrimSpace(count)}, 1, 1000)
}

// box gives the pattern of a kind, built once.
func (p *parse) box(field string, line int, kind string) *topo.Graph {
	if kind == "" {
		return nil
	}
	if g, ok := p.kinds[kind]; ok {
		return g
	}
	known := p.knownKinds()
	if !slices.Contains(known, kind) {
		p.fail(line, field, "unknown host kind %q; %s", clip(kind), suggest(kind, known))
		return nil
	}
	g, err := build.Host(p.catalog, kind, kind)
	if err != nil {
		p.fail(line, field, "%v", err)
		return nil
	}
	p.kinds[kind] = g
	return g
}

// readKinds builds the file's own kinds of host.
func (p *parse) readKinds(n *node) {
	p.kinds = map[string]*topo.Graph{}
	if n == nil {
		return
	}
	all := p.fields("kinds", n)
	for _, e := range all.n.keys {
		before := len(p.errs)
		p.kinds[e.key] = nil // known, also where it is wrong
		f := p.fields(all.at(clip(e.key)), e.value)
		box := build.Box{Name: e.key, CPU: f.text("cpu")}
		p.devices(f, &box)
		p.joins(f, &box)
		p.sold(f, box)
		f.done()
		if len(p.errs) > before {
			continue
		}
		g, err := box.Build(p.catalog, e.key)
		if err != nil {
			line, msg := located(e.line, err)
			p.fail(line, f.path, "%s", msg)
			continue
		}
		p.kinds[e.key] = g
	}
}

// located takes the line that the build room puts in front of what it says of a device.
func located(line int, err error) (int, string) {
	msg := err.Error()
	if rest, ok := strings.CutPrefix(msg, "line "); ok {
		if number, rest, ok := strings.Cut(rest, ": "); ok {
			if v, err := strconv.Atoi(number); err == nil {
				return v, rest
			}
		}
	}
	return line, msg
}

// deviceKinds are what may stand in a host.
var deviceKinds = []string{"gpu", "cpu", "root-port", "pcie-switch", "nvswitch", "nic"}

func (p *parse) deviceKind(f *fields) topo.Kind {
	word := f.text("kind")
	kind, err := topo.ParseKind(word)
	if err != nil || kind == topo.Switch {
		f.fail("kind", "%q; known: %s", clip(word), strings.Join(deviceKinds, ", "))
	}
	return kind
}

// devices reads the device tree: hostlists of names with kind, model, parent and
// link. A parent that is a hostlist as long as the names pairs up with them; a
// longer run of names is dealt out in equal parts.
func (p *parse) devices(f *fields, box *build.Box) {
	n := f.get("devices")
	if n == nil || n.kind != mapping || len(n.keys) == 0 {
		f.fail("devices", "missing; write for instance devices: {cpu0: {kind: cpu}, gpu0: {kind: gpu, parent: cpu0, link: pcie5}}")
		return
	}
	rail := 0
	for _, e := range n.keys {
		path := f.at("devices." + clip(e.key))
		names := p.expand(path, e.line, e.key)
		q := p.fields(path, e.value)
		d := build.Device{Kind: p.deviceKind(q)}
		parents := q.names("parent")
		d.Model, d.Link, d.Lanes, d.Rail, d.Line = q.text("model"), q.text("link"), q.integer("lanes", 1, 512), topo.None, e.line
		compute := !q.bool("storage") && d.Kind == topo.NIC
		p.checkLink(q, d.Link)
		p.checkModel(q, d.Kind, d.Model)
		if len(parents) > 0 && len(names)%len(parents) != 0 {
			q.fail("parent", "%d devices do not divide among %d parents", len(names), len(parents))
			parents = nil
		}
		q.done()
		if len(box.Devices)+len(names) > maxDevices {
			p.fail(e.line, path, "more than %d devices in a host", maxDevices)
			return
		}
		for i, name := range names {
			if d.Name = name; len(parents) > 0 {
				d.Parent = parents[i/(len(names)/len(parents))]
			}
			if compute {
				d.Rail = rail
				rail++
			}
			box.Devices = append(box.Devices, d)
		}
	}
}

// checkModel looks a model up where the catalogue has its kind.
func (p *parse) checkModel(f *fields, kind topo.Kind, model string) {
	if model == "" {
		return
	}
	var err error
	switch kind {
	case topo.GPU:
		_, err = p.catalog.GPU(model)
	case topo.NIC:
		_, err = p.catalog.NIC(model)
	}
	if err != nil {
		f.fail("model", "%v", err)
	}
}

// joins reads links outside the tree: {from, to, link, count}, hostlists pairwise.
func (p *parse) joins(f *fields, box *build.Box) {
	n := f.get("joins")
	if n == nil {
		return
	}
	if n.kind != list {
		f.fail("joins", "%s; it must be a list of {from, to, link}", n.show())
		return
	}
	for i, item := range n.list {
		q := p.fields(f.at(fmt.Sprintf("joins[%d]", i)), item)
		from, to := q.names("from"), q.names("to")
		link, count := q.text("link"), q.integer("count", 1, 1024)
		if _, err := p.catalog.Link(link); err != nil {
			q.fail("link", "%v", err)
		}
		q.done()
		pairs, err := pair(from, to)
		if err != nil {
			p.fail(item.line, q.path, "%v", err)
		}
		if len(box.Joins)+len(pairs) > maxJoins {
			p.fail(item.line, q.path, "more than %d joins in a host", maxJoins)
			return
		}
		for _, x := range pairs {
			box.Joins = append(box.Joins, build.Join{A: x[0], B: x[1], Link: link, Count: count, Line: item.line})
		}
	}
}

// pair matches two lists: one to one, or one to all.
func pair(a, b []string) ([][2]string, error) {
	if len(a) == 0 || len(b) == 0 {
		return nil, fmt.Errorf("from and to are both needed")
	}
	if len(a) != len(b) && len(a) != 1 && len(b) != 1 {
		return nil, fmt.Errorf("%d names on one side and %d on the other; they must be as many, or one", len(a), len(b))
	}
	out := make([][2]string, max(len(a), len(b)))
	for i := range out {
		out[i] = [2]string{a[min(i, len(a)-1)], b[min(i, len(b)-1)]}
	}
	return out, nil
}

// sold puts a kind into the catalogue, with what it costs and draws.
func (p *parse) sold(f *fields, box build.Box) {
	h := catalog.Host{Name: box.Name, Units: f.integer("units", 1, 60), Watts: f.number("watts", 0, 0), Price: f.price("price"),
		Source: catalog.Source(p.file)}
	for _, d := range box.Devices {
		switch {
		case d.Kind == topo.GPU:
			h.GPU, h.GPUs = d.Model, h.GPUs+1
		case d.Kind == topo.NIC && d.Rail != topo.None:
			h.NIC, h.NICs = d.Model, h.NICs+1
		}
	}
	p.catalog.Hosts[box.Name] = h
}

// freeNames continues the numbers of a name: after n127 come n128, n129, ...
func (p *parse) freeNames(last string, count int) []string {
	end := len(last)
	for end > 0 && last[end-1] >= '0' && last[end-1] <= '9' {
		end--
	}
	next, err := strconv.Atoi(last[end:])
	if err != nil {
		next = -1
	}
	var names []string
	for len(names) < count {
		next++
		if name := fmt.Sprintf("%s%d", last[:end], next); p.places[name] == 0 {
			names = append(names, name)
		}
	}
	return names
}
