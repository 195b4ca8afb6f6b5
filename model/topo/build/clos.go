package build

import (
	"cmp"
	"fmt"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
)

// Clos is a fabric in tiers.
//
//	      core   core   core   core        three tiers
//	        │  ╲╱  │      │  ╲╱  │
//	spine  spine  spine  spine             two tiers
//	   │ ╲╱ │        │ ╲╱ │
//	 leaf  leaf    leaf  leaf
//	unit 0 = hosts   unit 1 = hosts
//
// Hosts that share leaves are a unit. NIC j of a host goes to leaf j of its
// unit, counted round: with as many leaves as NICs every leaf is a rail, with
// one leaf a unit this is the plain fat-tree. Every leaf is joined to every spine
// of its spine group, every spine to every core of its core group, by equally
// many links.
//
// A number of switches that does not come out even is rounded up to the next one
// that divides the links evenly: of S spines over leaves with U uplinks each, S
// is the smallest number that has the ports, divides U, and so gives each leaf
// U/S links to each spine. This is the rule behind NVIDIA's tables: 24 leaves of
// 32 uplinks need 12 switches of 64 ports and get 16. Cores are too dear for
// that: where fewer of them have the ports for all uplinks, the uplinks of a
// spine go to the cores of its group in turn, and some cores get one link more
// from a spine than others.
type Clos struct {
	Name    string
	NICs    []string // which NICs of a host; none means its compute NICs
	Service bool     // storage or management

	Rails  bool // as many leaves a unit as NICs a host
	Leaves int  // else: leaves over which the NICs of a host are spread, in turn; 0 means one
	Planes int  // planes that share no switch; every NIC has a port in each; 0 means one
	Unit   int  // hosts a unit; 0 means as many as the leaves take
	Block  int  // three tiers: units that share spines; 0 means as few as fit
	ByRail bool // spines join the leaves of one rail in several units (three tiers: Block, or as many as fit), not the leaves of a unit
	Tiers  int  // 1, 2 or 3; 0 means as few as fit

	Link  string // catalogue key of the links to hosts; empty: what the NIC and the leaf can both do
	Leaf  Tier
	Spine Tier
	Core  Tier

	UnitName string               // what a unit is called: "scalable unit", "segment"; empty: "pod"
	Rack     func(host int) int32 // where hosts stand, if the design says so
}

// Tier is the switches of one tier.
type Tier struct {
	Model   string // catalogue key; empty means that of the tier below
	Link    string // of the links upwards; empty means by the switches' own rate
	Oversub Ratio  // ports down for ports up; zero means 1:1
	Down    int    // ports used downwards and upwards, instead of Oversub
	Up      int
	Count   int // spines of a group, cores of a group, instead of the rule
}

// Ratio is an oversubscription: ports down for ports up.
type Ratio struct{ Down, Up int }

func (r Ratio) String() string { return fmt.Sprintf("%d:%d", r.Down, r.Up) }

func (r Ratio) orEven() Ratio {
	if r.Down == 0 || r.Up == 0 {
		return Ratio{1, 1}
	}
	return r
}

// split divides ports by the ratio. Ports that do not divide are an error, since
// the rounding would silently be another ratio.
func (r Ratio) split(ports int, sw string) (down, up int, err error) {
	r = r.orEven()
	sum := r.Down + r.Up
	if ports%sum != 0 {
		u := ports / sum * r.Up
		return 0, 0,
			fmt.Errorf("the %d ports of %s do not divide %s; write down: %d, up: %d, which leaves %d unused, or another oversubscription",
				ports, sw, r, ports/sum*r.Down, u, ports%sum)
	}
	return ports / sum * r.Down, ports / sum * r.Up, nil
}

func (x Clos) describe() (string, []string, bool) { return x.Name, x.NICs, x.Service }

// plan is a Clos with every number worked out.
type plan struct {
	Clos
	hosts, guests int
	tiers         int
	unit          int // hosts
	block         int // units under one spine group
	leaves        int // of a unit and plane
	perLeaf       int // ports that one host takes at one leaf
	units         int
	leafDown      int
	leafUp        int
	groups        int // spine groups of a plane
	spines        int // of a group
	leafSpine     int // links from one leaf to one spine
	spineDown     int
	spineUp       int
	coreGroups    int
	cores         int // of a core group
	spineCore     int // links from one spine to one core; 0 where they are dealt out in turn
	ports         [3]int
	models        [3]catalog.Switch
	up            [2]topo.Class
	host          []topo.Class // by party
}

func (x Clos) lay(c *catalog.Catalog, prefix string, hosts []party) (*layout, error) {
	p, err := x.plan(c, hosts)
	if err != nil {
		return nil, err
	}
	return p.layout(prefix, hosts), nil
}

// countHosts counts the hosts with NICs here, and the ports of guests, which take what is left; it gives the most NICs
// of a host.
func (p *plan) countHosts(hosts []party) (nics int) {
	for _, h := range hosts {
		if h.guest {
			p.guests += h.count * h.nics
			continue
		}
		if h.nics > 0 {
			p.hosts += h.count
			nics = max(nics, h.nics)
		}
	}
	return nics
}

// tierRange is how many tiers are tried. One switch alone has no leaves that could be shaped.
func (p *plan) tierRange() (from, to int) {
	switch {
	case p.Tiers != 0:
		return p.Tiers, p.Tiers
	case p.Leaf.Down > 0 || p.Leaf.Up > 0 || p.leaves > 1 || p.Unit > 0:
		return 2, 3
	}
	return 1, 3
}

// plan works out the numbers, with as few tiers as fit if none are given.
func (x Clos) plan(c *catalog.Catalog, hosts []party) (*plan, error) {
	p := &plan{Clos: x}
	p.Planes = max(p.Planes, 1)
	if err := p.checkSigns(); err != nil {
		return nil, err
	}
	nics := p.countHosts(hosts)
	if p.hosts == 0 {
		return nil, fmt.Errorf("no host has a NIC for it; name them with nics")
	}
	p.leaves = max(x.Leaves, 1)
	if x.Rails {
		p.leaves = nics
	}
	if p.leaves > nics {
		return nil, fmt.Errorf("%d leaves a unit, but a host has only %d NICs here", p.leaves, nics)
	}
	p.perLeaf = (nics + p.leaves - 1) / p.leaves
	if err := p.hardware(c, hosts); err != nil {
		return nil, err
	}
	from, to := p.tierRange()
	var err error
	for t := from; t <= to; t++ {
		p.tiers = t
		if err = p.fit(); err == nil {
			if n := p.Planes * (p.units*p.leaves*p.leafUp + p.groups*p.spines*p.spineUp); n > maxLinks {
				return nil, fmt.Errorf("%d links between switches; at most %d are built", n, maxLinks)
			}
			return p, p.checkPorts(c, hosts)
		}
	}
	return nil, err
}

func (p *plan) checkSigns() error {
	for _, f := range []struct {
		name  string
		value int
	}{
		{"unit", p.Unit}, {"block", p.Block}, {"leaves", p.Leaves}, {"tiers", p.Tiers}, {"planes", p.Planes},
		{"leaf down", p.Leaf.Down}, {"leaf up", p.Leaf.Up}, {"leaf count", p.Leaf.Count},
		{"spine down", p.Spine.Down}, {"spine up", p.Spine.Up}, {"spine count", p.Spine.Count}, {"core count", p.Core.Count},
	} {
		if f.value < 0 || f.value > 1<<16-1 {
			return fmt.Errorf("%s is %d; it must be between 0 and 65535", f.name, f.value)
		}
	}
	if p.Tiers > 3 {
		return fmt.Errorf("tiers is %d; known: 1, 2, 3", p.Tiers)
	}
	if p.Planes > 26 {
		return fmt.Errorf("planes is %d; at most 26 are named", p.Planes)
	}
	return nil
}

// findModels finds each tier's switch; one that names none has that of the tier below.
func (p *plan) findModels(c *catalog.Catalog, tiers [3]*Tier) (err error) {
	for i, t := range tiers {
		if t.Model == "" && i > 0 {
			t.Model = tiers[i-1].Model
		}
		if p.models[i], err = c.Switch(t.Model); err != nil {
			return err
		}
	}
	return nil
}

// hostClasses finds the links of each group of hosts, and the fastest of them: a slower host takes a whole port of that rate.
func (p *plan) hostClasses(c *catalog.Catalog, hosts []party) (fastest topo.Class, err error) {
	for _, h := range hosts {
		var class topo.Class
		if h.nics > 0 {
			if class, err = portClass(c, p.Link, h.model, p.models[0], p.Planes); err != nil {
				return fastest, err
			}
			if !h.guest && class.Rate > fastest.Rate {
				fastest = class
			}
		}
		p.host = append(p.host, class)
	}
	return fastest, nil
}

// usualLink is what leads up from a tier: its switches' own link, or where their ports are split, one like those below.
func (p *plan) usualLink(tier int, hosts topo.Class) string {
	switch low := p.models[tier]; {
	case p.ports[tier] <= low.Ports:
		return low.Link
	case tier == 0:
		return hosts.Gen
	default:
		return p.up[0].Gen
	}
}

// hardware finds models, link classes and port counts.
func (p *plan) hardware(c *catalog.Catalog, hosts []party) error {
	tiers := [3]*Tier{&p.Leaf, &p.Spine, &p.Core}
	if err := p.findModels(c, tiers); err != nil {
		return err
	}
	fastest, err := p.hostClasses(c, hosts)
	if err != nil {
		return err
	}
	if p.ports[0], err = portsAt(c, p.models[0], fastest); err != nil {
		return err
	}
	for i := range p.up {
		low, high := p.models[i], p.models[i+1]
		link, err := c.Link(cmp.Or(tiers[i].Link, p.usualLink(i, fastest)))
		if err != nil {
			return err
		}
		p.up[i] = link.Class(0)
		if _, err = portsAt(c, low, p.up[i]); err != nil {
			return err
		}
		if p.ports[i+1], err = portsAt(c, high, p.up[i]); err != nil {
			return err
		}
	}
	p.ports[0] = max(p.ports[0], p.Leaf.Down+p.Leaf.Up)
	return nil
}

// even gives the smallest number of switches, at least need, that divides links evenly; 0 if there is none.
func even(need, links int) int {
	for s := max(need, 1); s <= links; s++ {
		if links%s == 0 {
			return s
		}
	}
	return 0
}

func ceil(a, b int) int { return (a + b - 1) / b }

// fit works out switches and links for p.tiers tiers.
func (p *plan) fit() error {
	if err := p.fitLeaves(); err != nil {
		return err
	}
	p.groups, p.spines, p.coreGroups, p.cores, p.leafSpine, p.spineCore, p.block = 0, 0, 0, 0, 0, 0, 0
	switch p.tiers {
	case 1:
		if p.units > 1 {
			return fmt.Errorf("%d hosts do not fit one tier: a leaf %s takes %d hosts; use tiers: 2", p.hosts, p.models[0].Name, p.unit)
		}
		return nil
	case 2:
		if p.Spine.Up > 0 || p.Spine.Oversub.Up > 0 {
			return fmt.Errorf("the spines of two tiers have no uplinks; leave out their oversubscription and up, or use tiers: 3")
		}
		return p.fitSpines()
	default:
		return p.fitCores()
	}
}

// splitLeaf divides a leaf's ports as the oversubscription says. A unit smaller than the leaf leaves ports free on both
// sides.
func (p *plan) splitLeaf() (err error) {
	ports, name := p.ports[0], p.models[0].Name
	r := p.Leaf.Oversub.orEven()
	if p.Unit == 0 {
		p.leafDown, p.leafUp, err = r.split(ports, "leaf "+name)
		return err
	}
	p.leafDown = p.Unit * p.perLeaf
	if p.leafDown*r.Up%r.Down != 0 {
		return fmt.Errorf("%d ports down do not divide %s; with %d hosts a unit write down and up", p.leafDown, r, p.Unit)
	}
	p.leafUp = p.leafDown * r.Up / r.Down
	if p.leafDown+p.leafUp > ports {
		most := ports / (r.Down + r.Up) * r.Down / p.perLeaf
		return fmt.Errorf("a unit of %d hosts needs %d ports down and %d up at each leaf, and %s has %d; at most %d hosts a unit fit at %s",
			p.Unit, p.leafDown, p.leafUp, name, ports, most, r)
	}
	return nil
}

// fitLeaves settles how many ports of a leaf go down and up: as given, or by the oversubscription.
func (p *plan) fitLeaves() error {
	p.leafDown, p.leafUp = p.Leaf.Down, p.Leaf.Up
	name := p.models[0].Name
	switch {
	case p.tiers == 1:
		if p.leafDown == 0 {
			p.leafDown = p.ports[0]
		}
		p.leafUp = 0
	case p.leafDown == 0 && p.leafUp == 0:
		if err := p.splitLeaf(); err != nil {
			return err
		}
	case p.leafDown == 0 || p.leafUp == 0:
		return fmt.Errorf("leaf has down: %d and up: %d; give both, or oversubscription", p.leafDown, p.leafUp)
	}
	return p.fillUnits(name)
}

// fillUnits divides the hosts into units of as many as a leaf takes, and finds room for guests in the last one.
func (p *plan) fillUnits(name string) error {
	unit := cmp.Or(p.Unit, p.leafDown/p.perLeaf)
	if unit == 0 || unit*p.perLeaf > p.leafDown {
		return fmt.Errorf("a leaf %s has %d ports down; each host takes %d of them, so %d hosts fit and not %d",
			name, p.leafDown, p.perLeaf, p.leafDown/p.perLeaf, max(unit, 1))
	}
	p.unit, p.units = unit, ceil(p.hosts, unit)
	last := p.hosts - (p.units-1)*unit
	if free := (p.leafDown - last*p.perLeaf) * p.leaves; p.guests > free {
		return fmt.Errorf("%d ports of service hosts need a place, and the last unit has %d free", p.guests, free)
	}
	return nil
}

// fitSpines joins all leaves of a plane, or those of one rail, by spines.
func (p *plan) fitSpines() error {
	p.groups, p.block = 1, p.units
	each := p.units * p.leaves
	if p.ByRail {
		p.groups, each = p.leaves, p.units
	}
	ports := p.ports[1]
	p.spines = p.Spine.Count
	if p.spines == 0 {
		p.spines = even(ceil(each*p.leafUp, ports), p.leafUp)
	}
	if p.spines == 0 || p.leafUp%p.spines != 0 || each*(p.leafUp/p.spines) > ports {
		if p.Spine.Count > 0 {
			return fmt.Errorf("%d spines do not fit: %d uplinks of a leaf over them, and %d leaves on the %d ports of %s; %s",
				p.Spine.Count, p.leafUp, each, ports, p.models[1].Name, p.advice(even(ceil(each*p.leafUp, ports), p.leafUp)))
		}
		most := ports / p.leaves * p.unit
		if p.ByRail {
			most = ports * p.unit
		}
		return fmt.Errorf("%d hosts do not fit two tiers: %d leaves each need a port at every spine, and %s has %d; at most %d hosts fit, or use tiers: 3",
			p.hosts, each, p.models[1].Name, ports, most)
	}
	p.leafSpine = p.leafUp / p.spines
	p.spineDown, p.spineUp = each*p.leafSpine, 0
	return nil
}

func (p *plan) advice(count int) string {
	if count == 0 && p.tiers == 2 {
		return "use tiers: 3"
	}
	if count == 0 {
		return "use smaller blocks"
	}
	return fmt.Sprintf("%d would", count)
}

// fitCores groups the leaves by units or rails under spines, and the spines under cores.
func (p *plan) fitCores() error {
	if p.ByRail {
		down, err := p.spinePorts()
		if err != nil {
			return err
		}
		p.block = min(p.units, down)
		if p.Block > 0 {
			p.block = p.Block
		}
		return p.fitGroups(ceil(p.units, p.block)*p.leaves, p.block)
	}
	if p.Block > 0 {
		p.block = p.Block
		return p.fitGroups(ceil(p.units, p.block), p.block*p.leaves)
	}
	var first error
	for p.block = 1; p.block <= p.units && (p.block == 1 || p.block*p.leaves <= p.ports[1]); p.block++ {
		err := p.fitGroups(ceil(p.units, p.block), p.block*p.leaves)
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// spinePorts is how many ports a spine under cores has downwards.
func (p *plan) spinePorts() (int, error) {
	if p.Spine.Down > 0 {
		return p.Spine.Down, nil
	}
	down, _, err := p.Spine.Oversub.split(p.ports[1], "spine "+p.models[1].Name)
	return down, err
}

// fitGroups lays spines under groups of leaves, and cores above them.
func (p *plan) fitGroups(groups, leaves int) error {
	p.groups = groups
	down, err := p.spinePorts()
	if err != nil {
		return err
	}
	if err := p.groupSpines(leaves, down); err != nil {
		return err
	}
	best := p.fewestCores()
	if best == 0 && p.Core.Count > 0 {
		return fmt.Errorf("%d cores a group do not fit: they must be at most the %d uplinks of a spine, and have ports for %d groups of spines; leave count out",
			p.Core.Count, p.spineUp, groups)
	}
	if best == 0 {
		return p.tooMany(down, fmt.Sprintf("%d groups of spines each need a port at every core of a group, and a core %s has %d",
			groups, p.models[2].Name, p.ports[2]))
	}
	p.evenCores(best)
	p.spineCore = 0
	if p.spineUp%p.cores == 0 {
		p.spineCore = p.spineUp / p.cores
	}
	return nil
}

// groupSpines chooses how many spines a group of leaves has, and their ports down and up.
func (p *plan) groupSpines(leaves, down int) error {
	r := p.Spine.Oversub.orEven()
	p.spines = p.Spine.Count
	if p.spines == 0 {
		p.spines = even(ceil(leaves*p.leafUp, down), p.leafUp)
	}
	if p.Block > 0 && leaves > down {
		return fmt.Errorf("block: %d has %d leaves, each of which needs a port at every spine, and a spine %s has %d down; at most %d fit, or leave block out",
			p.Block, leaves, p.models[1].Name, down, down*p.Block/leaves)
	}
	if p.Spine.Count > 0 && (p.leafUp%p.spines != 0 || leaves*(p.leafUp/p.spines) > down) {
		return fmt.Errorf("%d spines a group do not fit: %d uplinks of a leaf over them, and %d leaves on the %d ports down of %s; %s",
			p.Spine.Count, p.leafUp, leaves, down, p.models[1].Name, p.advice(even(ceil(leaves*p.leafUp, down), p.leafUp)))
	}
	if p.spines == 0 || leaves*(p.leafUp/p.spines) > down {
		return p.tooMany(down, fmt.Sprintf("%d leaves each need a port at every spine of their group, and a spine %s has %d down",
			leaves, p.models[1].Name, down))
	}
	p.leafSpine = p.leafUp / p.spines
	p.spineDown, p.spineUp = leaves*p.leafSpine, p.Spine.Up
	if p.spineUp == 0 {
		p.spineUp = ceil(p.spineDown*r.Up, r.Down) // a spine that is not full keeps at least its ratio
	}
	if p.spineDown+p.spineUp > p.ports[1] {
		return fmt.Errorf("a spine needs %d ports down and %d up, and %s has %d", p.spineDown, p.spineUp, p.models[1].Name, p.ports[1])
	}
	return nil
}

// fewestCores chooses the core groups: group k takes as many spines of every group of
// leaves. The fewest cores win; among equals the most groups, which grow furthest without
// recabling. It returns how many cores there are in all, 0 if none fit.
func (p *plan) fewestCores() (best int) {
	ports := p.ports[2]
	for g := p.spines; g >= 1; g-- {
		if p.spines%g != 0 {
			continue
		}
		spines := p.groups * (p.spines / g)
		cores := p.Core.Count
		if cores == 0 {
			cores = ceil(spines*p.spineUp, ports)
		}
		if cores > p.spineUp || spines*p.spineUp > cores*ports {
			continue
		}
		if best == 0 || g*cores < best {
			best, p.coreGroups, p.cores = g*cores, g, cores
		}
	}
	return best
}

// evenCores takes a number of cores that divides a spine's uplinks, where that costs no
// more cores and the file does not state a number.
func (p *plan) evenCores(best int) {
	ports := p.ports[2]
	for g := p.spines; g >= 1 && p.Core.Count == 0; g-- {
		if p.spines%g != 0 {
			continue
		}
		spines := p.groups * (p.spines / g)
		if cores := even(ceil(spines*p.spineUp, ports), p.spineUp); cores > 0 && spines*(p.spineUp/cores) <= ports && g*cores <= best {
			p.coreGroups, p.cores = g, cores
			return
		}
	}
}

// tooMany says how many hosts three tiers would take.
func (p *plan) tooMany(down int, why string) error {
	return fmt.Errorf("%d hosts do not fit three tiers: %s; at most %d hosts fit", p.hosts, why, p.most3(down))
}

// most3 is the number of hosts that fit three tiers, when every core has one
// link to each group of spines, and every spine one to each leaf below it.
func (p *plan) most3(down int) int {
	if p.ByRail {
		units := down
		if p.Block > 0 {
			units = min(units, p.Block)
		}
		return p.ports[2] / p.leaves * units * p.unit
	}
	units := down / p.leaves
	if p.Block > 0 {
		units = min(units, p.Block)
	}
	return p.ports[2] * units * p.unit
}

// most is the number of hosts that fit with the tiers there are.
func (p *plan) most() int {
	switch {
	case p.tiers == 1:
		return p.leafDown / p.perLeaf
	case p.tiers == 2 && p.ByRail:
		return p.ports[1] * p.unit
	case p.tiers == 2:
		return p.ports[1] / p.leaves * p.unit
	}
	down, _ := p.spinePorts() // fitted before, so it divides
	return p.most3(down)
}
