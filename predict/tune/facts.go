package tune

import (
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/model/sets"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/topo/rings"
)

// vendor is the maker of a host's CPUs, as far as NCCL tells them apart.
type vendor int

const (
	intel vendor = iota // and whatever is not known
	amd
	arm
	power
	zhaoxin
)

// path is NCCL's measure of distance, nearest first.
type path int

const (
	pathLOC path = iota
	pathNVL
	pathNVB
	pathPIX
	pathPXB
	pathPXN
	pathPHB
	pathSYS
	pathNET
)

var pathNames = []string{"LOC", "NVL", "NVB", "PIX", "PXB", "PXN", "PHB", "SYS", "NET"}

func (p path) String() string { return pathNames[p] }

// pathOf is NCCL's word for a span; it has none for two root ports of one CPU.
func pathOf(s topo.Span) path {
	switch s {
	case topo.PIX:
		return pathPIX
	case topo.PXB:
		return pathPXB
	case topo.PHB, topo.NODE:
		return pathPHB
	default:
		return pathSYS
	}
}

// medium is what carries the bytes inside a node, in the classes that the
// measured constants distinguish.
type medium int

const (
	overNVLink medium = iota // NVLink, direct or through NVSwitches
	overPCIe                 // below one PCIe switch
	overHost                 // PCIe and through a CPU
	alone                    // one GPU a node
)

var mediumNames = []string{"nvlink", "pcie", "host", "none"}

func (m medium) String() string { return mediumNames[m] }

// nic is what serves one GPU: all its adapters together, as NCCL's NIC fusion
// and multi-rail plug-ins present them.
type nic struct {
	speed float64 // as NCCL counts it, GB/s
	wire  float64 // GB/s one way
}

// facts is what both models need to know of a set of GPUs. Where nodes differ
// the weakest counts, as NCCL merges its graphs.
type facts struct {
	ranks, nodes, perNode int
	compute               int // smallest compute capability, times ten
	model                 string
	cpu                   vendor
	mixedCPU              bool

	medium     medium
	path       path
	switched   bool    // NVLinks lead to switches
	multi      bool    // the switches reduce in flight (NVLink SHARP)
	total      float64 // NVLink of one GPU as NCCL counts it; with direct links, what all rings add up to
	perRing    float64 // direct links: speed of one ring as NCCL counts it; 0 with switches
	rings      int     // direct links: how many rings
	pci        float64 // bottleneck of the ring over PCIe as NCCL counts it
	wire       float64 // GB/s one way that a ring can use on the wire, all its channels together
	full       float64 // GB/s one way of all accelerator links of a GPU; of its PCIe link without any
	memory     float64 // GB/s of a GPU's own memory
	efficiency float64 // what a large ring reaches of the wire, from the catalogue
	pair       float64 // busiest link when every GPU of a node sends a block to every other: blocks over GB/s
	why        string  // what limits the ring, in words

	nics    []nic // of the node with the least
	netPath path
	efa     bool
	netRate float64 // share of the NICs' wire that large messages reach, from the catalogue; 0 if unknown
	load    fabricLoad
	blind   string // what of the fabric load leaves out
}

func (f *facts) gen() generation { return generationOf(f.compute) }

// nicWire is what all NICs of a node carry one way.
func (f *facts) nicWire() (sum float64) {
	for _, n := range f.nics {
		sum += n.wire
	}
	return sum
}

// gather derives the facts from a graph.
func gather(g *topo.Graph, gpus []topo.NodeID, c *catalog.Catalog, outline *Outline) (*facts, error) {
	if outline == nil {
		outline = OutlineOf(g)
	}
	set := slices.Clone(gpus)
	slices.Sort(set)
	if len(set) == 0 {
		return nil, fmt.Errorf("no GPUs given; a collective needs at least one rank")
	}
	f := &facts{ranks: len(set)}
	for i, n := range set {
		if n < 0 || int(n) >= len(g.Nodes) || g.Nodes[n].Kind != topo.GPU {
			return nil, fmt.Errorf("rank %d is node %d, which is no GPU of this graph of %d nodes", i, n, len(g.Nodes))
		}
		if i > 0 && set[i-1] == n {
			return nil, fmt.Errorf("%s is given twice; each rank has a GPU of its own", g.NodeName(n))
		}
		gpu, err := c.GPU(g.Nodes[n].Model)
		if err != nil {
			sm, bad := strconv.Atoi(g.Attrs[n]["gpu.sm"])
			if bad != nil || sm <= 0 {
				return nil, fmt.Errorf("%s: %w", g.NodeName(n), err)
			}
			gpu = catalog.GPU{Name: "unknown", Compute: sm} // an import that tells no more
		}
		if gpu.Compute == 0 {
			return nil, fmt.Errorf("%s is a %s, which NCCL does not run on; the model covers NVIDIA GPUs only", g.NodeName(n), gpu.Name)
		}
		if i == 0 || gpu.Compute < f.compute {
			f.compute, f.model, f.memory = gpu.Compute, gpu.Name, float64(gpu.MemoryRate)/1e9
		}
	}
	groups := nodesOf(g, set, outline)
	f.nodes = len(groups)
	seen := map[string]*facts{}
	for i, group := range groups {
		key := shapeKey(g, group)
		one, known := seen[key]
		if !known {
			var err error
			if one, err = inspect(g, group, c, f.compute); err != nil {
				return nil, err
			}
			seen[key] = one
		}
		if i == 0 {
			f.merge(one, true)
		} else if !known {
			f.merge(one, false)
		}
	}
	if f.nodes > 1 {
		ports := portsOf(g, groups)
		f.load, f.blind = loadOf(g, ports, outline.top), unknown(g, groups, ports)
	}
	if f.nodes > 1 && len(f.nics) == 0 {
		return nil, fmt.Errorf("the %d hosts of these %d GPUs have no NIC that NCCL could use between them", f.nodes, f.ranks)
	}
	return f, nil
}

// merge takes the weaker of two nodes.
func (f *facts) merge(o *facts, first bool) {
	if first {
		whole := *f
		*f = *o
		f.ranks, f.nodes, f.compute, f.model, f.memory = whole.ranks, whole.nodes, whole.compute, whole.model, whole.memory
		return
	}
	f.mixedCPU = f.mixedCPU || o.mixedCPU || f.cpu != o.cpu
	f.perNode = max(f.perNode, o.perNode)
	if o.medium != alone && (f.medium == alone || o.medium > f.medium || o.medium == f.medium && o.wire < f.wire) {
		f.medium, f.switched, f.total, f.perRing, f.rings, f.pci, f.wire, f.full, f.efficiency, f.why = o.medium, o.switched, o.total, o.perRing,
			o.rings, o.pci, o.wire, o.full, o.efficiency, o.why
	}
	f.path = max(f.path, o.path)
	f.pair = max(f.pair, o.pair)
	f.multi = f.multi && o.multi
	if o.nicWire() < f.nicWire() {
		f.nics = o.nics
	}
	f.netPath = max(f.netPath, o.netPath)
}

// nodesOf splits GPUs into what NCCL calls nodes: the GPUs of a host, and all
// hosts that one NVLink network joins.
func nodesOf(g *topo.Graph, set []topo.NodeID, outline *Outline) [][]topo.NodeID {
	index := map[int32]int{}
	var groups [][]topo.NodeID
	for _, n := range set {
		d := domain(g, n)
		if outline.joined != nil {
			d = outline.joined[d]
		}
		i, ok := index[d]
		if !ok {
			i = len(groups)
			index[d] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], n)
	}
	return groups
}

// domain is the number of a node's host, or one of its own where it has none.
func domain(g *topo.Graph, n topo.NodeID) int32 {
	if h := g.Nodes[n].Host; h != topo.None {
		return int32(h)
	}
	return int32(len(g.Hosts)) + int32(n)
}

// join joins the domains that NVSwitches have links to.
func join(g *topo.Graph, switches []topo.NodeID) sets.Sets[int32] {
	joined := sets.New[int32](len(g.Hosts) + len(g.Nodes))
	for _, n := range switches {
		for _, e := range g.Edges(n) {
			if k := g.Nodes[e.Peer].Kind; k == topo.GPU || k == topo.NVSwitch {
				joined.Join(domain(g, n), domain(g, e.Peer))
			}
		}
	}
	joined.Flatten()
	return joined
}

func leavesHost(g *topo.Graph, n topo.NodeID) bool {
	for _, e := range g.Edges(n) {
		if g.Nodes[e.Peer].Host != g.Nodes[n].Host {
			return true
		}
	}
	return false
}

// shapeKey is equal for nodes that are wired alike: the same kind of host with
// the same GPUs of it. Hosts without a kind are each looked at.
func shapeKey(g *topo.Graph, group []topo.NodeID) string {
	var b strings.Builder
	last := topo.HostID(topo.None)
	for _, n := range group {
		h := g.Nodes[n].Host
		if h == topo.None {
			fmt.Fprintf(&b, "/%d", n)
			continue
		}
		host := &g.Hosts[h]
		if h != last {
			kind := host.Model
			if kind == "" {
				kind = "host " + host.Name
			}
			fmt.Fprintf(&b, ";%s+%d", kind, host.Count)
			last = h
		}
		fmt.Fprintf(&b, ",%d", n-host.First)
	}
	return b.String()
}

// inspect derives the facts of one node.
func inspect(g *topo.Graph, group []topo.NodeID, c *catalog.Catalog, compute int) (*facts, error) {
	f := &facts{perNode: len(group), compute: compute, medium: alone}
	host := g.Nodes[group[0]].Host
	var cpuModel string
	if host != topo.None {
		cpuModel = cpuOf(g, host)
	}
	f.cpu = vendorOf(cpuModel)
	f.network(g, group, c)
	if len(group) == 1 {
		f.total = 5000 // what NCCL counts a GPU's own memory with
		return f, nil
	}
	if tray(g, group) {
		// A Grace tray by itself stands for one in its rack, whose NVLink switches
		// join the GPUs: it is not sold without.
		gpu := c.GPUs[g.Nodes[group[0]].Model]
		class := c.Links[gpu.Link].Class(0)
		f.medium, f.path, f.switched, f.multi = overNVLink, pathNVL, true, true
		f.wire = float64(gpu.OneWay(c)) / 1e9
		f.total, f.full, f.efficiency = float64(gpu.Links)*nvlinkSpeed(compute), f.wire, efficiencyOf(c, class.Gen)
		f.pair = float64(len(group)-1) / f.wire
		f.why = fmt.Sprintf("%d NVLinks of a GPU carry %.4g GB/s each way to the switches of the rack", gpu.Links, f.wire)
		return f, nil
	}
	links, wire, multi, link := 0, 0.0, true, ""
	for i, n := range group {
		own, rate := 0, 0.0
		for _, e := range g.Edges(n) {
			if g.Nodes[e.Peer].Kind == topo.NVSwitch && g.Class(e.Link).Kind == topo.NVLink {
				own += int(g.Links[e.Link].Count)
				rate += float64(g.Rate(e.Link)) / 1e9
				link = g.Class(e.Link).Gen
				multi = multi && strings.Compare(g.Class(e.Link).Gen, "nvlink4") >= 0
			}
		}
		if i == 0 || own < links {
			links, wire = own, rate
		}
	}
	if links > 0 {
		f.medium, f.path, f.switched, f.multi = overNVLink, pathNVL, true, multi
		f.total, f.wire = float64(links)*nvlinkSpeed(compute), wire
		f.efficiency = efficiencyOf(c, link)
		f.full, f.pair = wire, float64(len(group)-1)/wire
		f.why = fmt.Sprintf("%d NVLinks of a GPU carry %.4g GB/s each way", links, wire)
		return f, nil
	}
	found, err := rings.Search(g, group, c, rings.Options{Budget: 400_000})
	if err != nil {
		return nil, err
	}
	if ok, err := f.relayed(g, group, c); ok || err != nil {
		return f, err
	}
	plan := &found.Plan
	if len(plan.Rings) == 0 || plan.Medium != rings.NVLink {
		for i := range found.Others {
			if len(plan.Rings) == 0 || found.Others[i].Medium == rings.NVLink && len(found.Others[i].Rings) > 0 {
				plan = &found.Others[i]
			}
		}
	}
	if len(plan.Rings) == 0 {
		return nil, fmt.Errorf("no ring joins %d GPUs: %s", len(group), found.Why)
	}
	f.wire = float64(plan.RingBus) / 1e9
	f.why = plan.Why
	in := g.Injection(group[0])
	f.full = float64(max(in.Accelerator, in.PCIe)) / 1e9
	f.pair = pairLoad(g, group)
	f.efficiency = 1
	for i, u := range plan.Rings[0].Uses {
		if e := efficiencyOf(c, g.Class(u.Link).Gen); i == 0 || e < f.efficiency {
			f.efficiency = e
		}
	}
	if plan.Medium == rings.NVLink {
		f.medium, f.path = overNVLink, pathNVL
		f.rings, f.perRing = len(plan.Rings), nvlinkSpeed(compute)
		f.total = float64(f.rings) * f.perRing
		return f, nil
	}
	f.overTree(g, group, plan, cpuModel)
	return f, nil
}

// tray reports whether GPUs hang on their CPUs by chip-to-chip links and have no
// other accelerator link: a tray of Grace and Blackwell without its rack.
func tray(g *topo.Graph, group []topo.NodeID) bool {
	for _, n := range group {
		chip := false
		for _, e := range g.Edges(n) {
			switch g.Class(e.Link).Kind {
			case topo.C2C:
				chip = true
			case topo.NVLink, topo.XGMI, topo.ICI:
				return false
			}
		}
		if !chip {
			return false
		}
	}
	return true
}

// efficiencyOf is what large rings reach on a generation of links; one where nobody measured.
func efficiencyOf(c *catalog.Catalog, gen string) float64 {
	if e := c.Links[gen].Efficiency; e > 0 {
		return e
	}
	return 1
}

// pairLoad sends one block from every GPU of a node to every other and gives
// the time of the busiest link, in blocks over GB/s.
func pairLoad(g *topo.Graph, group []topo.NodeID) (worst float64) {
	type way struct {
		link    topo.LinkID
		forward bool
	}
	load := map[way]float64{}
	var uses []topo.Use
	for _, a := range group {
		for _, b := range group {
			var err error
			if uses, err = g.Route(topo.Flow{From: a, To: b}, uses[:0]); err != nil {
				continue
			}
			for _, u := range uses {
				w := way{u.Link, u.Forward}
				load[w] += float64(u.Share)
				worst = max(worst, load[w]/float64(g.Rate(u.Link))*1e9)
			}
		}
	}
	return worst
}

// overTree fills in what a ring over PCIe and sockets reaches.
func (f *facts) overTree(g *topo.Graph, group []topo.NodeID, plan *rings.Plan, cpuModel string) {
	f.medium = overPCIe
	for i := range group {
		for j := range group[:i] {
			f.path = max(f.path, pathOf(g.Span(group[i], group[j])))
		}
	}
	if f.path >= pathPHB {
		f.medium = overHost
	}
	type way struct {
		link    topo.LinkID
		forward bool
	}
	load := map[way]float64{}
	for _, u := range plan.Rings[0].Uses {
		w := way{u.Link, u.Forward}
		load[w] += float64(u.Share)
		speed := linkSpeed(g, u.Link, cpuModel) / load[w]
		if f.medium == overHost && f.cpu == intel && g.Class(u.Link).Kind == topo.PCIe {
			speed /= intelDetour
		}
		if speed > 0 && (f.pci == 0 || speed < f.pci) {
			f.pci = speed
		}
	}
}

// linkSpeed is what NCCL counts a link of the host with; 0 where it counts none.
func linkSpeed(g *topo.Graph, l topo.LinkID, cpuModel string) float64 {
	c := g.Class(l)
	switch {
	case c.Kind == topo.PCIe:
		return pcieSpeed(pcieGen(c.Gen), int(c.Lanes)) * float64(g.Links[l].Count)
	case c.Kind == topo.SMP && g.Nodes[g.Links[l].A].Kind == topo.CPU && g.Nodes[g.Links[l].B].Kind == topo.CPU:
		return socketSpeed(cpuModel)
	default:
		return 0
	}
}

func pcieGen(name string) int {
	var gen int
	if _, err := fmt.Sscanf(name, "pcie%d", &gen); err != nil || gen < 1 {
		return 3
	}
	return gen
}

// cpuOf names the model of a host's CPUs or, in an import from NCCL, their vendor.
func cpuOf(g *topo.Graph, h topo.HostID) string {
	for i, n := range g.HostNodes(h) {
		if n.Kind != topo.CPU {
			continue
		}
		if n.Model != "" {
			return n.Model
		}
		attrs := g.Attrs[g.Hosts[h].First+topo.NodeID(i)]
		switch {
		case attrs["cpu.vendor"] == "AuthenticAMD":
			return "AMD"
		case attrs["cpu.arch"] == "arm64":
			return "Arm"
		case attrs["cpu.arch"] == "ppc64":
			return "POWER"
		}
		return attrs["cpu.vendor"]
	}
	return ""
}

func vendorOf(model string) vendor {
	switch m := strings.ToLower(model); {
	case strings.HasPrefix(m, "epyc"), strings.HasPrefix(m, "amd"):
		return amd
	case strings.HasPrefix(m, "grace"), strings.HasPrefix(m, "neoverse"), strings.HasPrefix(m, "arm"):
		return arm
	case strings.HasPrefix(m, "power"):
		return power
	case strings.HasPrefix(m, "zhaoxin"):
		return zhaoxin
	default:
		return intel
	}
}

// socketSpeed is what NCCL counts the way between sockets with.
func socketSpeed(model string) float64 {
	switch m := strings.ToLower(model); vendorOf(model) {
	case amd:
		return 16
	case arm:
		return 6
	case power:
		return 32
	case zhaoxin:
		return 9
	default:
		switch {
		case strings.HasPrefix(m, "xeon-85"), strings.HasPrefix(m, "xeon-65"), strings.HasPrefix(m, "xeon-67"), strings.HasPrefix(m, "xeon-69"):
			return 40
		case strings.HasPrefix(m, "xeon-84"), strings.HasPrefix(m, "xeon-64"):
			return 22
		case strings.HasPrefix(m, "xeon-e5"), strings.HasPrefix(m, "xeon-e7"):
			return 6
		default:
			return 10
		}
	}
}

// network lists the NICs that serve the GPUs of a node.
func (f *facts) network(g *topo.Graph, group []topo.NodeID, c *catalog.Catalog) {
	in := map[topo.NodeID]int{}
	for i, n := range group {
		in[n] = i
	}
	merged := map[topo.NodeID]int{} // GPU or NIC it counts with, to index of nics
	used := map[topo.NodeID]bool{}
	add := func(n, owner topo.NodeID) {
		if used[n] {
			return
		}
		used[n] = true
		wire, pcie := 0.0, 0.0
		for _, e := range g.Edges(n) {
			switch class := g.Class(e.Link); {
			case class.Kind.Network():
				wire += float64(g.Rate(e.Link)) / 1e9
				f.netRate = c.Links[class.Gen].Efficiency
			case class.Kind == topo.PCIe:
				pcie += pcieSpeed(pcieGen(class.Gen), int(class.Lanes))
			}
		}
		card, known := c.NICs[g.Nodes[n].Model]
		if wire == 0 && known {
			wire = float64(c.Links[card.Link].Class(0).Rate) / 1e9
			f.netRate = c.Links[card.Link].Efficiency
		}
		if wire == 0 {
			wire = 1.25 // what NCCL takes for a NIC of unknown speed, 10 Gb/s
		}
		f.efa = f.efa || strings.HasPrefix(g.Nodes[n].Model, "EFA")
		speed := wire
		if pcie > 0 {
			speed = min(speed, pcie)
		}
		i, ok := merged[owner]
		if !ok {
			i = len(f.nics)
			merged[owner] = i
			f.nics = append(f.nics, nic{})
		}
		f.nics[i].speed += speed
		f.nics[i].wire += wire
	}
	hosts := map[topo.HostID]bool{}
	for _, n := range group {
		h := g.Nodes[n].Host
		if h == topo.None || hosts[h] {
			continue
		}
		hosts[h] = true
		for id, owner := range owners(g, h) {
			if _, ok := in[owner]; ok {
				add(id, owner)
			}
		}
	}
	for _, n := range group {
		if id := g.Near(n); id != topo.None && serves(g, id) {
			add(id, id)
			f.netPath = max(f.netPath, pathOf(g.Span(n, id)))
		}
	}
}

// owners yields the NICs of a host that GPUs use, in order, each with the GPU it
// serves. Beyond one NIC a GPU they are shared out evenly among the nearest.
func owners(g *topo.Graph, h topo.HostID) iter.Seq2[topo.NodeID, topo.NodeID] {
	return func(yield func(nic, gpu topo.NodeID) bool) {
		first := g.Hosts[h].First
		served := map[topo.NodeID]int{}
		var gpus, spare []topo.NodeID
		for i, n := range g.HostNodes(h) {
			id := first + topo.NodeID(i)
			switch {
			case n.Kind == topo.GPU:
				gpus = append(gpus, id)
			case n.Kind != topo.NIC || !serves(g, id):
			case g.Near(id) == topo.None:
				spare = append(spare, id)
			default:
				served[g.Near(id)]++
				if !yield(id, g.Near(id)) {
					return
				}
			}
		}
		for _, id := range spare {
			best, bestSpan := topo.NodeID(topo.None), topo.SYS
			for _, gpu := range gpus {
				span := g.Span(id, gpu)
				if best == topo.None || span < bestSpan || span == bestSpan && served[gpu] < served[best] {
					best, bestSpan = gpu, span
				}
			}
			served[best]++
			if !yield(id, best) {
				return
			}
		}
	}
}

// serves reports whether GPUs use a NIC: one of a compute fabric, or, in a host
// by itself, one on a rail.
func serves(g *topo.Graph, n topo.NodeID) bool {
	node := &g.Nodes[n]
	if node.Fabric != topo.None && int(node.Fabric) < len(g.Fabrics) {
		return !g.Fabrics[node.Fabric].Service
	}
	return node.Rail != topo.None
}
