package draw

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// panel is one network of the picture: the switches of a fabric (or the
// NVSwitches that stand outside hosts), and the hosts joined to them.
type panel struct {
	name     string
	title    string
	family   topo.Family
	fabric   int       // index in Graph.Fabrics, None for the accelerator network
	kind     topo.Kind // of its switches
	switches []topo.NodeID
	chips    []topo.NodeID // torus of chips: the chips
	hosts    []topo.HostID
	member   []bool // by host
	mine     []bool // by node: switches and chips

	tier  map[topo.NodeID]int
	rows  []int // tiers from the top down
	above [][]*group
	pods  []*pod
}

// group is a frame: switches of one tier, plane and pod, or the hosts of a block.
type group struct {
	kind  topo.Kind // Switch or NVSwitch; 0 for hosts
	tier  int
	plane int8
	nodes []topo.NodeID
	hosts []topo.HostID
	view  frame
}

func (gr *group) size() int { return len(gr.nodes) + len(gr.hosts) }

// block is a set of hosts and the leaves they share; no host or leaf is in two.
type block struct {
	leaf []*group // one a plane
	host *group   // nil if no host
	sig  string
}

// pod is a set of blocks and the switches above them that belong to them alone.
type pod struct {
	label  int32
	mid    [][]*group // by row of the panel; nil where there are none
	blocks []*block
	sig    string
}

// partition finds the networks of a graph: fabrics in order, then switches of
// none, then the accelerator network outside hosts.
func partition(g *topo.Graph) []*panel {
	by := map[int]*panel{}
	var list []*panel
	get := func(key int, kind topo.Kind) *panel {
		p := by[key]
		if p == nil {
			p = &panel{fabric: topo.None, kind: kind, member: make([]bool, len(g.Hosts)), mine: make([]bool, len(g.Nodes))}
			by[key] = p
			list = append(list, p)
		}
		return p
	}
	const noFabric, accelerator = 1000, 1001
	for i := range g.Fabrics {
		p := get(i, topo.Switch)
		p.fabric, p.family, p.name = i, g.Fabrics[i].Family, g.Fabrics[i].Name
	}
	for i := range g.Nodes {
		n, id := &g.Nodes[i], topo.NodeID(i)
		switch {
		case n.Kind == topo.Switch && n.Fabric != topo.None:
			get(int(n.Fabric), topo.Switch).take(id)
		case n.Kind == topo.Switch:
			get(noFabric, topo.Switch).take(id)
		case n.Kind == topo.NVSwitch && n.Host == topo.None:
			get(accelerator, topo.NVSwitch).take(id)
		case n.Kind == topo.GPU && n.Fabric != topo.None && g.Fabrics[n.Fabric].Family == topo.Torus:
			p := get(int(n.Fabric), topo.Switch)
			p.chips = append(p.chips, id)
			p.mine[id] = true
			if n.Host != topo.None {
				p.member[n.Host] = true
			}
		}
	}
	if p := by[noFabric]; p != nil {
		p.name = "no fabric"
	}
	if p := by[accelerator]; p != nil {
		p.name = "accelerator network"
	}
	owner := make([]*panel, len(g.Nodes))
	for _, p := range list {
		for _, n := range p.switches {
			owner[n] = p
		}
	}
	for i := range g.Links {
		l := &g.Links[i]
		for _, e := range [2][2]topo.NodeID{{l.A, l.B}, {l.B, l.A}} {
			if p := owner[e[0]]; p != nil && g.Nodes[e[1]].Host != topo.None {
				p.member[g.Nodes[e[1]].Host] = true
			}
		}
	}
	list = slices.DeleteFunc(list, func(p *panel) bool { return len(p.switches)+len(p.chips) == 0 })
	for _, p := range list {
		for h, in := range p.member {
			if in {
				p.hosts = append(p.hosts, topo.HostID(h))
			}
		}
		p.caption(g)
	}
	return list
}

func (p *panel) take(n topo.NodeID) {
	p.switches = append(p.switches, n)
	p.mine[n] = true
}

// caption writes the panel's title: what the network is and how much of it there is.
func (p *panel) caption(g *topo.Graph) {
	var parts []string
	switch {
	case p.kind == topo.NVSwitch:
		p.title = "Accelerator network"
		parts = append(parts, count(len(p.switches), "NVSwitch"))
	case p.fabric == topo.None:
		p.title = "Switches outside any fabric"
		parts = append(parts, count(len(p.switches), "switch"))
	default:
		f := &g.Fabrics[p.fabric]
		p.title = "Fabric " + f.Name
		if f.Name == "" || f.Name == "fabric" {
			p.title = "Fabric"
		}
		parts = append(parts, f.Family.String())
		if f.Service {
			parts = append(parts, "storage or management")
		}
		if len(p.switches) > 0 {
			parts = append(parts, count(len(p.switches), "switch"))
		}
		if len(p.chips) > 0 {
			parts = append(parts, count(len(p.chips), "chip"))
		}
	}
	parts = append(parts, count(len(p.hosts), "host"))
	p.title += ": " + strings.Join(parts, ", ")
}

// owns reports whether a link touches one of the panel's switches or chips.
func (p *panel) owns(l *topo.Link) bool { return p.mine[l.A] || p.mine[l.B] }

// arrange sorts the panel's switches and hosts into tiers, pods and blocks.
func (p *panel) arrange(g *topo.Graph) {
	p.findTiers(g)
	top, lowest := 0, 0
	if len(p.rows) > 0 {
		top, lowest = p.rows[0], p.rows[len(p.rows)-1]
	}
	order, labels := p.blocks(g, lowest)
	homes := p.cut(g, order, labels, top)
	p.place(g, homes, top)
	// Blocks follow each other in the order of pod labels, then of their first leaf.
	slices.SortStableFunc(p.pods, func(a, b *pod) int { return cmp.Compare(a.label, b.label) })
	p.sign(g)
}

// piece is what a node counts as where things hang together: hosts are one piece each.
func piece(g *topo.Graph, n topo.NodeID) int {
	if h := g.Nodes[n].Host; h != topo.None {
		return len(g.Nodes) + int(h)
	}
	return int(n)
}

// blocks are the hosts and the switches of the lowest tier that hang together, with the labels of the pods that they name.
func (p *panel) blocks(g *topo.Graph, lowest int) (order []*block, labels map[*block]map[int32]bool) {
	together := newSets(len(g.Nodes) + len(g.Hosts))
	for i := range g.Links {
		l := &g.Links[i]
		a, b := g.Nodes[l.A].Host != topo.None, g.Nodes[l.B].Host != topo.None
		if p.owns(l) && a != b && (a && p.tier[l.B] == lowest || b && p.tier[l.A] == lowest) {
			together.join(piece(g, l.A), piece(g, l.B))
		}
	}
	made := map[int]*block{}
	labels = map[*block]map[int32]bool{}
	get := func(i int, label int32) *block {
		root := together.find(i)
		if together.size[root] == 1 { // hosts without a leaf, and leaves without a host: one block a pod label
			root = -2 - int(label)
		}
		b := made[root]
		if b == nil {
			b = &block{}
			made[root], labels[b] = b, map[int32]bool{}
			order = append(order, b)
		}
		if label != topo.None {
			labels[b][label] = true
		}
		return b
	}
	leaves := map[*block][]topo.NodeID{}
	for _, n := range p.switches {
		if p.tier[n] == lowest {
			b := get(int(n), g.Nodes[n].Pod)
			leaves[b] = append(leaves[b], n)
		}
	}
	for _, h := range p.hosts {
		b := get(len(g.Nodes)+int(h), g.Hosts[h].Pod)
		if b.host == nil {
			b.host = &group{plane: topo.None}
		}
		b.host.hosts = append(b.host.hosts, h)
	}
	for _, b := range order {
		b.leaf = byPlane(g, p.kind, lowest, leaves[b])
	}
	return order, labels
}

// homes says which pod a switch between the lowest tier and the top belongs to.
type homes struct {
	pods     map[int]*pod
	key      func(topo.NodeID) int
	labelled bool // pods are those of the labels
}

// cut makes pods of blocks: by label where every block has at most one, else by what hangs together below the top tier.
func (p *panel) cut(g *topo.Graph, order []*block, labels map[*block]map[int32]bool, top int) homes {
	several := func(b *block) bool { return len(labels[b]) > 1 }
	one := func(b *block) bool { return len(labels[b]) == 1 }
	h := homes{pods: map[int]*pod{}, labelled: slices.ContainsFunc(order, one) && !slices.ContainsFunc(order, several)}
	var of func(b *block) int
	if h.labelled {
		of = func(b *block) int {
			for l := range labels[b] {
				return int(l)
			}
			return topo.None
		}
		h.key = func(n topo.NodeID) int { return int(g.Nodes[n].Pod) }
	} else {
		below := p.below(g, top)
		of = func(b *block) int {
			if len(b.leaf) > 0 {
				return below.find(int(b.leaf[0].nodes[0]))
			}
			return below.find(len(g.Nodes) + int(b.host.hosts[0]))
		}
		h.key = func(n topo.NodeID) int { return below.find(int(n)) }
	}
	for _, b := range order {
		k := of(b)
		if h.pods[k] == nil {
			h.pods[k] = &pod{label: topo.None, mid: make([][]*group, len(p.rows))}
			if h.labelled {
				h.pods[k].label = int32(k)
			}
			p.pods = append(p.pods, h.pods[k])
		}
		h.pods[k].blocks = append(h.pods[k].blocks, b)
	}
	return h
}

// below is what hangs together without the top tier.
func (p *panel) below(g *topo.Graph, top int) *sets {
	s := newSets(len(g.Nodes) + len(g.Hosts))
	for i := range g.Links {
		l := &g.Links[i]
		between := p.tier[l.A] != top && p.tier[l.B] != top && p.tier[l.A] != p.tier[l.B]
		if p.owns(l) && (between || len(p.rows) == 1) {
			s.join(piece(g, l.A), piece(g, l.B))
		}
	}
	return s
}

// place puts the tiers above the lowest inside pods or above them. From the bottom up: a tier lies inside pods if all its
// switches belong to one, and the tiers below do, too.
func (p *panel) place(g *topo.Graph, h homes, top int) {
	p.above = make([][]*group, len(p.rows))
	inside := true
	for row := len(p.rows) - 2; row >= 0; row-- {
		t := p.rows[row]
		inPod := map[*pod][]topo.NodeID{}
		var all []topo.NodeID
		for _, n := range p.switches {
			if p.tier[n] != t {
				continue
			}
			all = append(all, n)
			home := h.pods[h.key(n)]
			inside = inside && t != top && home != nil && !(h.labelled && g.Nodes[n].Pod == topo.None)
			inPod[home] = append(inPod[home], n)
		}
		if !inside {
			p.above[row] = byPlane(g, p.kind, t, all)
			continue
		}
		for _, home := range p.pods {
			home.mid[row] = byPlane(g, p.kind, t, inPod[home])
		}
	}
}

// countTiers gives switches with hosts tier 1, and all others one more than the nearest of those.
func (p *panel) countTiers(g *topo.Graph) {
	var queue []topo.NodeID
	clear(p.tier)
	for _, n := range p.switches {
		if slices.ContainsFunc(g.Edges(n), func(e topo.Edge) bool { return g.Nodes[e.Peer].Host != topo.None }) {
			p.tier[n] = 1
			queue = append(queue, n)
		}
	}
	for q := 0; q < len(queue); q++ {
		for _, e := range g.Edges(queue[q]) {
			if p.mine[e.Peer] && p.tier[e.Peer] == 0 {
				p.tier[e.Peer] = p.tier[queue[q]] + 1
				queue = append(queue, e.Peer)
			}
		}
	}
	for _, n := range p.switches { // switches that reach no host
		p.tier[n] = max(p.tier[n], 1)
	}
}

// findTiers takes the switches' own tiers, or counts them from the hosts up where one is unknown.
func (p *panel) findTiers(g *topo.Graph) {
	p.tier = make(map[topo.NodeID]int, len(p.switches))
	known := true
	for _, n := range p.switches {
		p.tier[n] = int(g.Nodes[n].Tier)
		known = known && g.Nodes[n].Tier > 0
	}
	if !known {
		p.countTiers(g)
	}
	seen := map[int]bool{}
	for _, n := range p.switches {
		if t := p.tier[n]; !seen[t] {
			seen[t] = true
			p.rows = append(p.rows, t)
		}
	}
	slices.SortFunc(p.rows, func(a, b int) int { return b - a })
}

// byPlane splits switches into groups, one a plane, each sorted by rail and name.
func byPlane(g *topo.Graph, kind topo.Kind, tier int, nodes []topo.NodeID) []*group {
	var list []*group
	at := map[int8]*group{}
	for _, n := range nodes {
		plane := g.Nodes[n].Plane
		if at[plane] == nil {
			at[plane] = &group{kind: kind, tier: tier, plane: plane}
			list = append(list, at[plane])
		}
		at[plane].nodes = append(at[plane].nodes, n)
	}
	slices.SortFunc(list, func(a, b *group) int { return cmp.Compare(a.plane, b.plane) })
	for _, gr := range list {
		slices.SortStableFunc(gr.nodes, func(a, b topo.NodeID) int { return cmp.Compare(g.Nodes[a].Rail, g.Nodes[b].Rail) })
	}
	return list
}

// sign gives blocks and pods a signature, equal exactly for those that look
// alike: the same counts, models and planes of switches and hosts, and the same
// number and sort of links going up and down from each tier.
func (p *panel) sign(g *topo.Graph) {
	type flow struct {
		links int
		rate  unit.Rate
	}
	up := make(map[topo.NodeID]flow, len(p.switches))
	for i := range g.Links {
		l := &g.Links[i]
		if !p.owns(l) {
			continue
		}
		for _, e := range [2][2]topo.NodeID{{l.A, l.B}, {l.B, l.A}} {
			if p.mine[e[0]] && p.mine[e[1]] && p.tier[e[1]] > p.tier[e[0]] {
				f := up[e[0]]
				up[e[0]] = flow{f.links + int(l.Count), f.rate + g.Rate(topo.LinkID(i))}
			}
		}
	}
	groupSig := func(b *strings.Builder, gr *group) {
		if gr == nil {
			b.WriteString("none;")
			return
		}
		var sum flow
		rails := map[int16]bool{}
		for _, n := range gr.nodes {
			sum.links += up[n].links
			sum.rate += up[n].rate
			rails[g.Nodes[n].Rail] = true
		}
		gpus := 0
		for _, h := range gr.hosts {
			for _, n := range g.HostNodes(h) {
				if n.Kind == topo.GPU {
					gpus++
				}
			}
		}
		fmt.Fprintf(b, "%d %d %d rails=%d up=%d %g gpus=%d %s %s;", gr.tier, gr.plane, gr.size(), len(rails), sum.links, float64(sum.rate), gpus,
			models(len(gr.nodes), func(i int) string { return g.Nodes[gr.nodes[i]].Model }, "switch"),
			models(len(gr.hosts), func(i int) string { return g.Hosts[gr.hosts[i]].Model }, "host"))
	}
	for _, pd := range p.pods {
		var whole strings.Builder
		for _, row := range pd.mid {
			for _, gr := range row {
				groupSig(&whole, gr)
			}
		}
		for _, b := range pd.blocks {
			var s strings.Builder
			for _, gr := range b.leaf {
				groupSig(&s, gr)
			}
			groupSig(&s, b.host)
			b.sig = s.String()
			whole.WriteString(b.sig)
		}
		pd.sig = whole.String()
	}
}

// sets is a union of sets by their smallest element.
type sets struct{ parent, size []int32 }

func newSets(n int) *sets {
	s := &sets{make([]int32, n), make([]int32, n)}
	for i := range s.parent {
		s.parent[i], s.size[i] = int32(i), 1
	}
	return s
}

func (s *sets) find(i int) int {
	for int(s.parent[i]) != i {
		s.parent[i] = s.parent[s.parent[i]]
		i = int(s.parent[i])
	}
	return i
}

func (s *sets) join(a, b int) {
	a, b = s.find(a), s.find(b)
	if a == b {
		return
	}
	if a > b {
		a, b = b, a
	}
	s.parent[b] = int32(a)
	s.size[a] += s.size[b]
}
