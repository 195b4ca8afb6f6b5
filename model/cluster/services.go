package cluster

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/build"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/topo/floor"
)

// Service is a network beside the compute fabrics, as a graph of its own:
// storage, in-band (users and schedulers) or out-of-band (BMCs, management ports
// of switches, power distribution).
type Service struct {
	Name     string
	Declared bool // the file asks for it; otherwise it is what weft would build
	Graph    *topo.Graph
	Problem  string // why it could not be built; Graph is nil then
}

// services is the section services.
type services struct {
	storage, inBand *sideIntent
	outOfBand       *floor.OutOfBand
}

// sideIntent is what the file says of a storage or in-band network.
type sideIntent struct {
	NICs    []string
	Switch  string
	Link    string
	Leaves  int
	Oversub build.Ratio
	Down    int // ports of a leaf to hosts, in place of an oversubscription
	Up      int
	line    int
}

// serviceNames are the networks that may stand under services, in the order of reports.
var serviceNames = []string{"storage", "in-band", "out-of-band"}

// readServices reads the section services: a word for all, or each by name.
func (p *parse) readServices(n *node) *services {
	out := &services{}
	if n == nil {
		return out
	}
	if n.kind == scalar && n.text == "all" {
		side := &sideIntent{line: n.line}
		out.storage, out.inBand, out.outOfBand = side, side, &floor.OutOfBand{}
		return out
	}
	if n.kind == scalar {
		p.fail(n.line, "services", "%s; write all, or the networks: %s", n.show(), strings.Join(serviceNames, ", "))
		return out
	}
	f := p.fields("services", n)
	out.storage, out.inBand = p.side(f, "storage"), p.side(f, "in-band")
	if out.storage != nil && out.inBand != nil {
		for _, x := range out.inBand.NICs {
			if slices.Contains(out.storage.NICs, x) {
				p.fail(out.inBand.line, "services.in-band.nics", "%q is under storage, too; a NIC is in one network", clip(x))
				break
			}
		}
	}
	if s := f.get("out-of-band"); s != nil {
		out.outOfBand = p.outOfBand(p.fields(f.at("out-of-band"), s))
	}
	f.done()
	return out
}

// side reads a network that serves all hosts, nil if there is none.
func (p *parse) side(f *fields, name string) *sideIntent {
	s := f.get(name)
	if s == nil {
		return nil
	}
	q := p.fields(f.at(name), s)
	x := &sideIntent{NICs: q.names("nics"), Switch: p.model(q, "switch", false), Link: q.text("link"), Leaves: q.integer("leaves", 1, 64),
		Oversub: q.ratio("oversubscription"),
		Down:    q.integer("down", 1, 4096), Up: q.integer("up", 1, 4096), line: s.line}
	if x.Down > 0 && x.Oversub.Up > 0 {
		q.fail("down", "conflicts with oversubscription; write down and up, or oversubscription")
	}
	p.checkLink(q, x.Link)
	q.done()
	return x
}

// outOfBand reads the network of BMCs and PDUs, which all have Ethernet.
func (p *parse) outOfBand(f *fields) *floor.OutOfBand {
	x := &floor.OutOfBand{Switch: p.model(f, "switch", false), Spine: p.model(f, "spine", false), PDUs: -1}
	for _, field := range []string{"switch", "spine"} {
		if m := f.text(field); m != "" && p.catalog.Switches[m].Kind == topo.InfiniBand {
			f.fail(field, "%q is InfiniBand, and BMCs have Ethernet; take one such as SN2201", m)
		}
	}
	if f.has("pdus") {
		x.PDUs = f.integer("pdus", 0, 16)
	}
	f.done()
	return x
}

// The NICs of a network beside the compute fabrics, by how their names begin.
var sidePrefixes = map[string]string{"storage": "stor", "in-band": "svc"}

// finish puts the cluster on its floor and gives it its networks beside the compute fabrics.
func (p *parse) finish(c *Cluster, in *floor.Intent, asked *services, line int, lineOf func(field string) int) {
	if c == nil || c.Graph == nil {
		return
	}
	if !p.addSides(c, asked) {
		return
	}
	if in == nil {
		c.addOutOfBand(asked)
		return
	}
	plan, problem := floor.Make(c.Graph, c.Catalog, *in, extras(c.Services))
	if problem != nil {
		at := cmp.Or(problem.Line, lineOf(problem.Field), line)
		p.fail(at, "floor."+problem.Field, "%s", problem.Msg)
		return
	}
	if at := lineOf("lengths"); at > 0 { // the default lengths are not the owner's word
		if problem := c.tooLong(plan); problem != nil {
			p.fail(at, "floor.lengths", "%s", problem.Msg)
			return
		}
	}
	c.Floor = plan
	c.Graph = plan.Apply(c.Graph)
	for i := range c.Services {
		c.Services[i].Graph = plan.Apply(c.Services[i].Graph)
	}
	c.addOutOfBand(asked)
}

// addSides builds the storage and in-band networks that are asked for; false if one cannot be.
func (p *parse) addSides(c *Cluster, asked *services) bool {
	for _, s := range []struct {
		name string
		in   *sideIntent
	}{{"storage", asked.storage}, {"in-band", asked.inBand}} {
		if s.in == nil {
			continue
		}
		svc := c.side(s.name, s.in)
		if svc.Problem != "" {
			p.fail(s.in.line, "services."+s.name, "%s", svc.Problem)
			return false
		}
		c.Services = append(c.Services, svc)
	}
	return true
}

// addOutOfBand comes last: the switches of all other networks have a BMC, too.
func (c *Cluster) addOutOfBand(asked *services) {
	if asked.outOfBand != nil {
		c.Services = append(c.Services, c.outOfBand(asked.outOfBand, c.Services))
	}
}

// tooLong finds a cable of any network that is longer than the plan lets it be.
func (c *Cluster) tooLong(plan *floor.Plan) *floor.Problem {
	if problem := plan.TooLong(c.Graph); problem != nil {
		return problem
	}
	for _, s := range c.Services {
		if problem := plan.TooLong(s.Graph); problem != nil {
			return problem
		}
	}
	return nil
}

// extras lists the switches of networks beside the graph.
func extras(list []Service) []floor.Extra {
	var out []floor.Extra
	for _, s := range list {
		s.Graph.Each(topo.Switch, func(_ topo.NodeID, n *topo.Node) { out = append(out, floor.Extra{Name: n.Name, Model: n.Model}) })
	}
	return out
}

// AllServices lists the networks that the file declares, those that its fabrics
// hold left out, and behind them what weft would build for the others.
func (c *Cluster) AllServices() []Service {
	out := slices.Clone(c.Services)
	has := func(name string) bool {
		return slices.ContainsFunc(out, func(s Service) bool { return s.Name == name })
	}
	for _, name := range []string{"storage", "in-band"} {
		if has(name) {
			continue
		}
		if s := c.side(name, &sideIntent{}); s.Graph != nil {
			s.Declared = false
			out = append(out, s)
		}
	}
	if !has("out-of-band") && len(c.Graph.Hosts) > 1 {
		s := c.outOfBand(&floor.OutOfBand{}, out)
		s.Declared = false
		out = append(out, s)
	}
	return out
}

// facts is the cluster's catalogue, or the built-in one.
func (c *Cluster) facts() *catalog.Catalog {
	if c.Catalog == nil {
		return catalog.Default()
	}
	return c.Catalog
}

// outOfBand builds the network of BMCs and management ports, those of the
// networks beside the graph among them.
func (c *Cluster) outOfBand(in *floor.OutOfBand, beside []Service) Service {
	out := Service{Name: "out-of-band", Declared: true}
	plan := c.Floor
	if plan == nil {
		var problem *floor.Problem
		if plan, problem = floor.Make(c.Graph, c.facts(), floor.Default(), extras(beside)); problem != nil {
			return Service{Name: out.Name, Problem: problem.Error()}
		}
	}
	g, err := in.Build(c.Graph, c.facts(), plan, extras(beside))
	if err != nil {
		return Service{Name: out.Name, Problem: err.Error()}
	}
	out.Graph = g
	return out
}

// side builds a fat-tree over NICs of hosts that no fabric of the graph has.
func (c *Cluster) side(name string, in *sideIntent) Service {
	out := Service{Name: name, Declared: true}
	bad := func(format string, args ...any) Service {
		out.Problem = fmt.Sprintf(format, args...)
		return out
	}
	facts := c.facts()
	groups, most, model := c.sideHosts(name, in.NICs)
	if len(groups) == 0 {
		what := fmt.Sprintf("whose name begins with %q", sidePrefixes[name])
		if len(in.NICs) > 0 {
			what = "called " + strings.Join(in.NICs, ", ")
		}
		return bad("no host has a NIC %s that no fabric uses; name others with nics, or leave %s out", what, name)
	}
	sw := in.Switch
	if sw == "" {
		if sw = cheapestSwitch(facts, model); sw == "" {
			return bad("the catalogue has no switch that runs %s at its full rate; name one with switch", model)
		}
	}
	leaves := in.Leaves
	if leaves == 0 {
		leaves = max(1, min(most, 2)) // two NICs are there to survive the loss of a leaf
	}
	x := build.Cluster{Name: name, Hosts: groups,
		Fabrics: []build.Fabric{build.Clos{Name: name, Link: in.Link, Leaves: leaves, UnitName: "leaf",
			Leaf: build.Tier{Model: sw, Oversub: in.Oversub, Down: in.Down, Up: in.Up}}}}
	g, _, err := x.Build(facts)
	if err != nil {
		return bad("%v", err)
	}
	out.Graph = renamed(g, name+"-")
	return out
}

// freeNICs gives the NICs of a host that no fabric has: those named, or else those whose names say the network.
func freeNICs(parts []topo.Node, network string, names []string) (found []topo.Node) {
	for _, n := range parts {
		want := slices.Contains(names, n.Name)
		if len(names) == 0 {
			want = strings.HasPrefix(n.Name, sidePrefixes[network])
		}
		if n.Kind == topo.NIC && n.Fabric == topo.None && want {
			found = append(found, n)
		}
	}
	return found
}

// sideHosts cuts out of every host the NICs of a network that no fabric has.
func (c *Cluster) sideHosts(name string, nics []string) (groups []build.Hosts, most int, model string) {
	g := c.Graph
	boxes := map[string]int{}
	for h := range g.Hosts {
		host := &g.Hosts[h]
		found := freeNICs(g.HostNodes(topo.HostID(h)), name, nics)
		if len(found) == 0 {
			continue
		}
		most, model = max(most, len(found)), found[0].Model
		key := fmt.Sprint(host.Model, len(found), found[0].Model)
		at, seen := boxes[key]
		if !seen {
			b := topo.NewBuilder(host.Model)
			id := b.Host(topo.Host{Name: host.Model, Model: host.Model, Pod: topo.None, Rack: topo.None})
			for i, n := range found {
				part := topo.Part(topo.NIC, id, n.Name)
				part.Model, part.Rail = n.Model, int16(i)
				b.Node(part)
			}
			box, err := b.Graph()
			if err != nil {
				continue
			}
			at = len(groups)
			boxes[key] = at
			groups = append(groups, build.Hosts{Box: box})
		}
		groups[at].Names = append(groups[at].Names, host.Name)
	}
	return groups, most, model
}

// renamed puts a prefix before the names of a graph's switches, so that they
// differ from those of the compute fabrics.
func renamed(g *topo.Graph, prefix string) *topo.Graph {
	b := topo.NewBuilder(g.Name)
	for _, f := range g.Fabrics {
		b.Fabric(f)
	}
	for _, h := range g.Hosts {
		b.Host(h)
	}
	for _, n := range g.Nodes {
		if n.Host == topo.None {
			n.Name = prefix + n.Name
		}
		b.Node(n)
	}
	for _, l := range g.Links {
		l.Class = b.Class(g.Classes[l.Class])
		b.Link(l)
	}
	out, err := b.Graph()
	if err != nil {
		return g
	}
	return out
}

// cheapestSwitch is the switch with the cheapest port that runs a NIC at its full rate.
func cheapestSwitch(c *catalog.Catalog, nic string) string {
	card, ok := c.NICs[nic]
	if !ok {
		return ""
	}
	full := c.Links[card.Link].Class(0)
	best, price := "", 0.0
	for _, name := range slices.Sorted(maps.Keys(c.Switches)) {
		s := c.Switches[name]
		if !s.Kind.Network() || s.Price.USD == 0 {
			continue
		}
		class, err := build.LinkBetween(c, nic, s)
		if err != nil || class.Rate < full.Rate*(1-1e-9) {
			continue
		}
		if usd := s.Price.USD / float64(s.Ports); best == "" || usd < price {
			best, price = name, usd
		}
	}
	return best
}
