package topo

import (
	"cmp"
	"slices"
	"strings"
)

// Natural compares names so that n2 comes before n10: runs of digits count as numbers.
func Natural(a, b string) int {
	for i, j := 0, 0; ; {
		if i == len(a) || j == len(b) {
			return cmp.Or(cmp.Compare(len(a)-i, len(b)-j), strings.Compare(a, b))
		}
		if digit(a[i]) && digit(b[j]) {
			x, y := digits(a[i:]), digits(b[j:])
			i, j = i+len(x), j+len(y)
			x, y = strings.TrimLeft(x, "0"), strings.TrimLeft(y, "0")
			if c := cmp.Or(cmp.Compare(len(x), len(y)), strings.Compare(x, y)); c != 0 {
				return c
			}
			continue
		}
		if a[i] != b[j] {
			return cmp.Compare(a[i], b[j])
		}
		i, j = i+1, j+1
	}
}

func digit(c byte) bool { return c >= '0' && c <= '9' }

// digits is the number that a text starts with.
func digits(s string) string {
	n := 0
	for n < len(s) && digit(s[n]) {
		n++
	}
	return s[:n]
}

// order gives the permutation that sorts n things, nil if they are in order already.
func order(n int, compare func(i, j int) int) []int32 {
	sorted := true
	for i := 1; i < n && sorted; i++ {
		sorted = compare(i-1, i) <= 0
	}
	if sorted {
		return nil
	}
	perm := make([]int32, n)
	for i := range perm {
		perm[i] = int32(i)
	}
	slices.SortStableFunc(perm, func(i, j int32) int { return compare(int(i), int(j)) })
	return perm
}

// permute returns the list in the order of perm, and where each old element went.
func permute[T any](list []T, perm []int32) (sorted []T, moved []int32) {
	sorted, moved = make([]T, len(list)), make([]int32, len(list))
	for to, from := range perm {
		sorted[to], moved[from] = list[from], int32(to)
	}
	return sorted, moved
}

func (g *Graph) sortHosts() {
	perm := order(len(g.Hosts), func(i, j int) int { return Natural(g.Hosts[i].Name, g.Hosts[j].Name) })
	if perm == nil {
		return
	}
	var moved []int32
	g.Hosts, moved = permute(g.Hosts, perm)
	for i := range g.Nodes {
		if n := &g.Nodes[i]; n.Host != None {
			n.Host = HostID(moved[n.Host])
		}
	}
}

// compareNodes is the canonical order: host by host, then what belongs to no host by fabric, kind and tier, and names
// in natural order.
func compareNodes(a, b *Node) int {
	if c := cmp.Compare(uint32(a.Host), uint32(b.Host)); c != 0 { // None, as unsigned, comes last
		return c
	}
	if a.Host == None {
		if c := cmp.Or(cmp.Compare(a.Fabric, b.Fabric), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Tier, b.Tier)); c != 0 {
			return c
		}
	} else if a.Kind != b.Kind {
		return cmp.Compare(a.Kind, b.Kind)
	}
	if a.Name == b.Name {
		return 0
	}
	return Natural(a.Name, b.Name)
}

// sortNodes puts nodes into canonical order and renumbers what refers to them.
func (g *Graph) sortNodes() {
	perm := order(len(g.Nodes), func(i, j int) int { return compareNodes(&g.Nodes[i], &g.Nodes[j]) })
	if perm == nil {
		return
	}
	var moved []int32
	g.Nodes, moved = permute(g.Nodes, perm)
	for i := range g.Links {
		l := &g.Links[i]
		l.A, l.B = NodeID(moved[l.A]), NodeID(moved[l.B])
	}
	if g.Attrs != nil {
		attrs := make(map[NodeID]Attrs, len(g.Attrs))
		for n, a := range g.Attrs {
			attrs[NodeID(moved[n])] = a
		}
		g.Attrs = attrs
	}
}

func compareClasses(a, b *Class) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), strings.Compare(a.Gen, b.Gen), cmp.Compare(a.Lanes, b.Lanes),
		cmp.Compare(a.Rate, b.Rate), cmp.Compare(a.Latency, b.Latency))
}

// sortClasses does the same for classes, and drops those that no link has.
func (g *Graph) sortClasses() {
	used := make([]bool, len(g.Classes))
	for i := range g.Links {
		used[g.Links[i].Class] = true
	}
	var perm []int32
	for i := range g.Classes {
		if used[i] {
			perm = append(perm, int32(i))
		}
	}
	slices.SortStableFunc(perm, func(i, j int32) int { return compareClasses(&g.Classes[i], &g.Classes[j]) })
	classes, moved := make([]Class, len(perm)), make([]ClassID, len(g.Classes))
	for to, from := range perm {
		classes[to], moved[from] = g.Classes[from], ClassID(to)
	}
	g.Classes = classes
	for i := range g.Links {
		g.Links[i].Class = moved[g.Links[i].Class]
	}
}

func compareLinks(a, b *Link) int {
	if c := cmp.Compare(a.A, b.A); c != 0 {
		return c
	}
	if c := cmp.Compare(a.B, b.B); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(a.APort, b.APort), cmp.Compare(a.BPort, b.BPort), cmp.Compare(a.Class, b.Class), cmp.Compare(a.Count, b.Count))
}

// sortLinks turns links so that A is the lower node, and sorts them.
func (g *Graph) sortLinks() {
	for i := range g.Links {
		if l := &g.Links[i]; l.A > l.B {
			l.A, l.B, l.APort, l.BPort = l.B, l.A, l.BPort, l.APort
		}
	}
	perm := order(len(g.Links), func(i, j int) int { return compareLinks(&g.Links[i], &g.Links[j]) })
	if perm == nil {
		return
	}
	var moved []int32
	g.Links, moved = permute(g.Links, perm)
	if g.Wires != nil {
		wires := make(map[LinkID]Attrs, len(g.Wires))
		for l, a := range g.Wires {
			wires[LinkID(moved[l])] = a
		}
		g.Wires = wires
	}
}

// index builds adjacency and name tables for a sorted graph.
func (g *Graph) index() {
	g.measure()
	g.first = make([]int32, len(g.Nodes)+1)
	for i := range g.Links {
		g.first[g.Links[i].A+1]++
		g.first[g.Links[i].B+1]++
	}
	for i := range g.Nodes {
		g.first[i+1] += g.first[i]
	}
	g.edges = make([]Edge, 2*len(g.Links))
	next := slices.Clone(g.first)
	// Links are sorted by A, then B. Entering all edges to smaller peers first,
	// and those to larger peers second, leaves every list sorted by peer.
	for i := range g.Links {
		l := &g.Links[i]
		g.edges[next[l.B]] = Edge{l.A, LinkID(i)}
		next[l.B]++
	}
	for i := range g.Links {
		l := &g.Links[i]
		g.edges[next[l.A]] = Edge{l.B, LinkID(i)}
		next[l.A]++
	}
	g.hosts = make(map[string]HostID, len(g.Hosts))
	for i := range g.Hosts {
		g.hosts[g.Hosts[i].Name] = HostID(i)
		g.Hosts[i].First, g.Hosts[i].Count = 0, 0
	}
	g.bare = map[string]NodeID{}
	g.byPos = make([][]NodeID, len(g.Fabrics))
	g.peers = make([]bool, len(g.Fabrics))
	for i := range g.Links {
		a, b := &g.Nodes[g.Links[i].A], &g.Nodes[g.Links[i].B]
		if a.Kind == Switch && b.Kind == Switch && a.Tier == b.Tier && a.Fabric != None && a.Fabric == b.Fabric &&
			g.Fabrics[a.Fabric].Family == Irregular {
			g.peers[a.Fabric] = true
		}
	}
	for i := range g.Nodes {
		n := &g.Nodes[i]
		if n.Host == None {
			g.bare[n.Name] = NodeID(i)
		} else {
			h := &g.Hosts[n.Host]
			if h.Count == 0 {
				h.First = NodeID(i)
			}
			h.Count++
		}
		if n.Pos >= 0 && n.Fabric >= 0 && int(n.Pos) < len(g.Nodes) {
			at := &g.byPos[n.Fabric]
			for len(*at) <= int(n.Pos) {
				*at = append(*at, None)
			}
			(*at)[n.Pos] = NodeID(i)
		}
	}
}

// affinity gives each GPU the NIC closest to it over PCIe and each NIC the GPU
// it serves. Among NICs equally close the one with the fewest GPUs wins, then
// the first; so eight GPUs and four NICs pair up two to one.
func (g *Graph) affinity() {
	g.near = make([]NodeID, len(g.Nodes))
	for i := range g.near {
		g.near[i] = None
	}
	var walk hostWalk
	load := map[NodeID]int{}
	for h := range g.Hosts {
		host := &g.Hosts[h]
		nics := 0
		for i := range g.HostNodes(HostID(h)) {
			if g.Nodes[host.First+NodeID(i)].Kind == NIC {
				nics++
			}
		}
		if nics == 0 {
			continue
		}
		clear(load)
		for i := int32(0); i < host.Count; i++ {
			gpu := host.First + NodeID(i)
			if g.Nodes[gpu].Kind != GPU {
				continue
			}
			walk.from(g, gpu)
			best := walk.nearest(g, host, load)
			if best == None {
				continue
			}
			load[best]++
			g.near[gpu] = best
			if g.near[best] == None {
				g.near[best] = gpu
			}
		}
	}
}

// nearest is the NIC of a host with the fewest hops from where the walk began, and among those the least loaded; None
// if there is no NIC for it.
func (w *hostWalk) nearest(g *Graph, host *Host, load map[NodeID]int) NodeID {
	best := NodeID(None)
	for i := range host.Count {
		nic := host.First + NodeID(i)
		if g.Nodes[nic].Kind != NIC || w.dist[i] < 0 || !g.networked(nic) {
			continue
		}
		if best == None || cmp.Or(cmp.Compare(w.dist[i], w.dist[best-host.First]), cmp.Compare(load[nic], load[best])) < 0 {
			best = nic
		}
	}
	return best
}

// networked reports whether GPUs may use a NIC: it belongs to a fabric that is
// not for storage or management, or there is no fabric and so every NIC counts.
func (g *Graph) networked(nic NodeID) bool {
	f := g.Nodes[nic].Fabric
	return len(g.Fabrics) == 0 || f != None && !g.Fabrics[f].Service
}

// hostWalk is a breadth-first search inside one host, over the links that are
// neither accelerator nor network links. It is reused without allocating.
type hostWalk struct {
	dist  []int16 // hops from the start by index in the host, -1 if not reached
	via   []Edge  // the edge back towards the start
	queue []NodeID
}

// coherent reports whether a link of a kind that mostly joins accelerators is here a CPU's way to its GPU.
func (g *Graph) coherent(k LinkKind, a, b NodeID) bool {
	return k == C2C || k == NVLink && g.hostOnly(a, b)
}

func (w *hostWalk) reset(parts int32) {
	w.dist, w.via, w.queue = w.dist[:0], w.via[:0], w.queue[:0]
	for range parts {
		w.dist, w.via = append(w.dist, -1), append(w.via, Edge{None, None})
	}
}

// from measures distances inside a host, over PCIe, between sockets and over coherent links: NVLink does not lead to a
// NIC. Devices that forward nothing are ends.
func (w *hostWalk) from(g *Graph, start NodeID) {
	host := &g.Hosts[g.Nodes[start].Host]
	w.reset(host.Count)
	w.dist[start-host.First] = 0
	w.queue = append(w.queue, start)
	for q := 0; q < len(w.queue); q++ {
		n := w.queue[q]
		if n != start && !g.Nodes[n].Kind.forwards() {
			continue
		}
		for _, e := range g.Edges(n) {
			if k := g.Class(e.Link).Kind; k != PCIe && k != SMP && !g.coherent(k, n, e.Peer) || g.Nodes[e.Peer].Host != g.Nodes[start].Host {
				continue
			}
			if i := e.Peer - host.First; w.dist[i] < 0 {
				w.dist[i] = w.dist[n-host.First] + 1
				w.via[i] = Edge{n, e.Link}
				w.queue = append(w.queue, e.Peer)
			}
		}
	}
}

// hostOnly reports whether an NVLink joins a GPU to a CPU (POWER), which is the GPU's way into the host.
func (g *Graph) hostOnly(a, b NodeID) bool {
	return g.Nodes[a].Kind == CPU || g.Nodes[b].Kind == CPU
}

// forwards reports whether bytes may pass through a node of this kind on their way.
func (k Kind) forwards() bool {
	return k == CPU || k == RootPort || k == PCIeSwitch || k == NVSwitch || k == Switch
}
