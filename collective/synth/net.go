// Package synth finds the fastest schedule that a network allows, and proves
// that nothing can be faster.
//
// A network is a directed graph with capacities. Its ranks hold data; its other
// nodes are switches. A collective of M bytes on N ranks is a question about
// cuts: what is inside a set S of nodes must leave through the capacity B+(S)
// of the links that lead out of it.
//
//	all-gather, reduce-scatter   T = M/N max |S ∩ ranks| / B+(S), over S that leave out a rank
//	broadcast, reduce            T = M / min over v of maxflow(root, v)
//	all-reduce                   T = M / X, X = min over families of disjoint sets that cover the ranks
//	                             of the capacity at their borders / 4(parts-1)
//
// Each is exact: Bounds gives the rate and the cut that proves it, Trees the
// trees that reach it, and Program the ordinary program that runs them.
//
//	Net ──► Bounds   max-flow, Newton's method on cuts, an exact linear program
//	    ──► split    switches removed: pairs of links become links between ranks
//	    ──► pack     spanning trees (Edmonds), grown breadth-first
//	    ──► Program  sched.Program, with tables of parents and children
//
// All arithmetic is in whole numbers and fractions of them.
package synth

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// Edge is a directed link with its capacity, in units of Net.Unit.
type Edge struct {
	From, To int
	Cap      int64
	Kind     topo.LinkKind // of the link that limits it; 0 if unknown
	Links    int           // physical links side by side
}

// Net is a network for synthesis: nodes 0 to Ranks-1 are ranks, the others switches.
type Net struct {
	Name  string
	Names []string // by node
	Ranks int
	Hosts []int // by node: the host or box that it belongs to, -1 for none
	Edges []Edge
	Unit  unit.Rate // what a capacity of 1 carries
	Note  string    // what is not counted, in words; empty for nothing

	Stop func() bool // asked between maximum flows; when it is true, Bounds ends with ErrStopped; may be nil
}

// Nodes is the number of ranks and switches.
func (n *Net) Nodes() int { return len(n.Names) }

// Options says how a graph becomes a network.
type Options struct {
	Slow map[topo.LinkID]float64 // links at a fraction of their rate
	// Reach says what software reaches of a link's rate; nil for all of it.
	Reach func(*topo.Class) float64
}

// grain is the precision of capacities: a megabyte a second.
const grain = 1e6

// FromGraph makes the network of some GPUs of a cluster. Ranks are the GPUs in
// the order given.
//
// GPUs of an accelerator network (NVLink, NVSwitch, xGMI, ICI) talk over it
// alone; where it does not join all GPUs of a host, PCIe serves as well. Between
// such networks bytes go by the NICs nearest to a GPU and the switches of their
// fabrics. The PCIe parts on the way to a NIC are there twice, once for each
// direction, so that no path turns round in them: GPUs do not use PCIe for what
// NVLink does.
func FromGraph(g *topo.Graph, gpus []topo.NodeID, o Options) (*Net, error) {
	if len(gpus) < 2 {
		return nil, fmt.Errorf("a collective needs at least two GPUs, not %d", len(gpus))
	}
	b := &builder{g: g, o: o, net: &Net{Name: g.Name, Ranks: len(gpus), Unit: grain}, at: map[place]int{}, known: map[[2]int]int{}}
	for _, gpu := range gpus {
		if gpu < 0 || int(gpu) >= len(g.Nodes) || g.Nodes[gpu].Kind != topo.GPU {
			return nil, fmt.Errorf("node %d is no GPU", gpu)
		}
		if _, twice := b.at[place{gpu, 0}]; twice {
			return nil, fmt.Errorf("%s is named twice", g.NodeName(gpu))
		}
		b.node(gpu, 0)
	}
	domains := b.accelerated(gpus)
	hosts := map[topo.HostID]map[int]bool{}
	for i, gpu := range gpus {
		h := g.Nodes[gpu].Host
		if hosts[h] == nil {
			hosts[h] = map[int]bool{}
		}
		hosts[h][domains[i]] = true
	}
	for _, h := range sortedHosts(hosts) {
		if h != topo.None && len(hosts[h]) > 1 {
			b.pcie(h)
		}
	}
	for _, e := range b.net.Edges {
		if e.Kind.Accelerator() && slices.ContainsFunc(g.Classes, func(c topo.Class) bool { return c.Kind == topo.PCIe }) {
			b.net.Note = "PCIe beside the accelerator links is not counted"
		}
	}
	first := domains[0]
	if slices.ContainsFunc(domains, func(d int) bool { return d != first }) && len(hosts) > 1 {
		b.network(gpus)
	}
	n := b.net
	n.tidy()
	if left := n.apart(); left != nil {
		return nil, fmt.Errorf("no path joins %s to the other GPUs; a schedule needs one network: leave them out with --gpus", n.ranks(left))
	}
	return n, nil
}

func sortedHosts(m map[topo.HostID]map[int]bool) []topo.HostID {
	var list []topo.HostID
	for h := range m {
		list = append(list, h)
	}
	slices.Sort(list)
	return list
}

// place is a node of the graph, in the direction it is used: 0 for both, 1
// towards the network, 2 from it.
type place struct {
	node topo.NodeID
	way  int
}

type builder struct {
	g     *topo.Graph
	o     Options
	net   *Net
	at    map[place]int
	known map[[2]int]int // edges by their ends
}

func (b *builder) node(id topo.NodeID, way int) int {
	p := place{id, way}
	if i, ok := b.at[p]; ok {
		return i
	}
	i := len(b.net.Names)
	b.at[p] = i
	b.net.Names = append(b.net.Names, b.g.NodeName(id))
	b.net.Hosts = append(b.net.Hosts, int(b.g.Nodes[id].Host))
	return i
}

// join adds one direction of a link.
func (b *builder) join(from, to int, l topo.LinkID) {
	class := b.g.Class(l)
	rate := float64(b.g.Rate(l))
	if f, ok := b.o.Slow[l]; ok {
		rate *= f
	}
	if b.o.Reach != nil {
		rate *= b.o.Reach(class)
	}
	c := max(int64(math.Round(rate/grain)), 1)
	if i, ok := b.known[[2]int{from, to}]; ok {
		e := &b.net.Edges[i]
		e.Cap += c
		e.Links += int(b.g.Links[l].Count)
		return
	}
	b.known[[2]int{from, to}] = len(b.net.Edges)
	b.net.Edges = append(b.net.Edges, Edge{from, to, c, class.Kind, int(b.g.Links[l].Count)})
}

// accelerates reports whether an edge is of an accelerator network and leads to a switch of it or to a GPU that takes part.
func (b *builder) accelerates(e topo.Edge) bool {
	if !b.g.Class(e.Link).Kind.Accelerator() {
		return false
	}
	_, member := b.at[place{e.Peer, 0}]
	kind := b.g.Nodes[e.Peer].Kind
	return kind == topo.NVSwitch || kind == topo.GPU && member
}

// accelerated adds the accelerator networks and says which of them each GPU is in.
func (b *builder) accelerated(gpus []topo.NodeID) []int {
	g := b.g
	domain := make([]int, len(gpus))
	for i := range domain {
		domain[i] = -1
	}
	seen := map[topo.NodeID]bool{}
	for i, gpu := range gpus {
		if domain[i] >= 0 {
			continue
		}
		queue := []topo.NodeID{gpu}
		seen[gpu] = true
		for len(queue) > 0 {
			at := queue[0]
			queue = queue[1:]
			if r, ok := b.at[place{at, 0}]; ok && r < len(gpus) {
				domain[r] = i
			}
			for _, e := range g.Edges(at) {
				if !b.accelerates(e) {
					continue
				}
				b.join(b.node(at, 0), b.node(e.Peer, 0), e.Link)
				if !seen[e.Peer] {
					seen[e.Peer] = true
					queue = append(queue, e.Peer)
				}
			}
		}
	}
	return domain
}

// inTree reports whether a part of a host passes bytes between GPUs, or is a GPU that takes part.
func (b *builder) inTree(id topo.NodeID) bool {
	kind := b.g.Nodes[id].Kind
	_, member := b.at[place{id, 0}]
	return kind != topo.NIC && kind != topo.NVSwitch && (kind != topo.GPU || member)
}

// pcie adds the PCIe tree and the sockets of a host, over which GPUs may reach one another.
func (b *builder) pcie(h topo.HostID) {
	g := b.g
	for i, n := range g.HostNodes(h) {
		id := g.Hosts[h].First + topo.NodeID(i)
		if !b.inTree(id) {
			continue
		}
		for _, e := range g.Edges(id) {
			peer := &g.Nodes[e.Peer]
			if peer.Host != h || !b.inTree(e.Peer) || g.Class(e.Link).Kind.Network() || n.Kind == topo.GPU && peer.Kind == topo.GPU {
				continue
			}
			b.join(b.node(id, 0), b.node(e.Peer, 0), e.Link)
		}
	}
}

// network adds the NICs nearest to the GPUs and the switches of their fabrics.
func (b *builder) network(gpus []topo.NodeID) {
	g := b.g
	serves := map[topo.NodeID]bool{}
	used := map[[2]topo.NodeID]bool{}
	var way []topo.Use
	attach := func(gpu, nic topo.NodeID) {
		if nic == topo.None || used[[2]topo.NodeID{gpu, nic}] {
			return
		}
		used[[2]topo.NodeID{gpu, nic}] = true
		var ok bool
		if way, ok = g.Inside(gpu, nic, way[:0]); !ok {
			return
		}
		serves[nic] = true
		for _, u := range way {
			from, to := g.Links[u.Link].Ends(u.Forward)
			b.once(b.up(gpu, from), b.up(gpu, to), u.Link)
			b.once(b.down(gpu, to), b.down(gpu, from), u.Link)
		}
	}
	for _, gpu := range gpus {
		attach(gpu, g.Near(gpu))
		if h := g.Nodes[gpu].Host; h != topo.None {
			for i, n := range g.HostNodes(h) {
				nic := g.Hosts[h].First + topo.NodeID(i)
				if n.Kind == topo.NIC && n.Fabric != topo.None && !g.Fabrics[n.Fabric].Service && g.Near(nic) == gpu {
					attach(gpu, nic)
				}
			}
		}
	}
	for nic := range g.Nodes {
		if !serves[topo.NodeID(nic)] {
			continue
		}
		for _, e := range g.Edges(topo.NodeID(nic)) {
			if g.Class(e.Link).Kind.Network() && g.Nodes[e.Peer].Kind == topo.Switch {
				b.join(b.node(topo.NodeID(nic), 1), b.node(e.Peer, 0), e.Link)
				b.join(b.node(e.Peer, 0), b.node(topo.NodeID(nic), 2), e.Link)
			} else if g.Class(e.Link).Kind.Network() && serves[e.Peer] {
				b.join(b.node(topo.NodeID(nic), 1), b.node(e.Peer, 2), e.Link)
			}
		}
	}
	g.Each(topo.Switch, func(id topo.NodeID, n *topo.Node) {
		if n.Fabric != topo.None && g.Fabrics[n.Fabric].Service {
			return
		}
		for _, e := range g.Edges(id) {
			if g.Class(e.Link).Kind.Network() && g.Nodes[e.Peer].Kind == topo.Switch {
				b.join(b.node(id, 0), b.node(e.Peer, 0), e.Link)
			}
		}
	})
}

// once adds one direction of a link that several GPUs share.
func (b *builder) once(from, to int, l topo.LinkID) {
	if _, ok := b.known[[2]int{from, to}]; !ok {
		b.join(from, to, l)
	}
}

func (b *builder) up(gpu, id topo.NodeID) int {
	if id == gpu {
		return b.node(id, 0)
	}
	return b.node(id, 1)
}

func (b *builder) down(gpu, id topo.NodeID) int {
	if id == gpu {
		return b.node(id, 0)
	}
	return b.node(id, 2)
}

// tidy makes a network smaller without changing any maximum flow between ranks:
// switches that lead nowhere go, one that only passes on from one node to
// another becomes a link, and switches with the same neighbours and capacities
// in the same proportion become one.
func (n *Net) tidy() {
	for n.prune() || n.merge() {
	}
	n.renumber()
}

// prune removes dead ends and passes, those that do not touch one another at
// once; it reports whether it changed something.
func (n *Net) prune() bool {
	in, out := n.sides()
	gone := make([]bool, len(n.Edges))
	var fresh []Edge
	changed := false
	for v := n.Ranks; v < n.Nodes(); v++ {
		a, b := in[v], out[v]
		touched := false
		for _, i := range slices.Concat(a, b) {
			touched = touched || gone[i]
		}
		switch {
		case touched || len(a) == 0 && len(b) == 0:
		case len(a) == 0 || len(b) == 0 || len(a) == 1 && len(b) == 1 && n.Edges[a[0]].From == n.Edges[b[0]].To:
			for _, i := range slices.Concat(a, b) {
				gone[i] = true
			}
			changed = true
		case len(a) == 1 && len(b) == 1:
			x, y := n.Edges[a[0]], n.Edges[b[0]]
			if y.Cap <= x.Cap {
				x.Cap, x.Kind, x.Links = y.Cap, y.Kind, y.Links
			}
			x.To = y.To
			gone[a[0]], gone[b[0]] = true, true
			fresh = append(fresh, x)
			changed = true
		}
	}
	if !changed {
		return false
	}
	kept := fresh
	for i, e := range n.Edges {
		if !gone[i] {
			kept = append(kept, e)
		}
	}
	n.Edges = gathered(kept)
	return true
}

// gathered adds up edges with the same ends.
func gathered(list []Edge) []Edge {
	at := map[[2]int]int{}
	var out []Edge
	for _, e := range list {
		if i, ok := at[[2]int{e.From, e.To}]; ok {
			out[i].Cap += e.Cap
			out[i].Links += e.Links
			continue
		}
		at[[2]int{e.From, e.To}] = len(out)
		out = append(out, e)
	}
	return out
}

// merge joins two switches that are alike; it reports whether it found some.
func (n *Net) merge() bool {
	in, out := n.sides()
	key := map[string][]int{}
	var order []string
	for v := n.Ranks; v < n.Nodes(); v++ {
		if len(in[v])+len(out[v]) == 0 {
			continue
		}
		k := n.shape(in[v], out[v])
		if key[k] == nil {
			order = append(order, k)
		}
		key[k] = append(key[k], v)
	}
	changed := false
	gone := map[int]int{}
	for _, k := range order {
		for _, v := range key[k][1:] {
			gone[v] = key[k][0]
			changed = true
		}
	}
	if !changed {
		return false
	}
	for i := range n.Edges {
		e := &n.Edges[i]
		if to, ok := gone[e.From]; ok {
			e.From = to
		}
		if to, ok := gone[e.To]; ok {
			e.To = to
		}
	}
	n.Edges = gathered(n.Edges)
	return true
}

// shape describes the links of a switch up to a common factor. Two switches of
// one shape may be neither each other's neighbours nor, being merged, carry
// more than before: every path through the merged one divides in that proportion.
func (n *Net) shape(in, out []int) string {
	var g int64
	for _, list := range [][]int{in, out} {
		for _, e := range list {
			g = gcd(g, n.Edges[e].Cap)
		}
	}
	var parts []string
	for _, e := range in {
		parts = append(parts, fmt.Sprintf("<%d:%d", n.Edges[e].From, n.Edges[e].Cap/g))
	}
	for _, e := range out {
		parts = append(parts, fmt.Sprintf(">%d:%d", n.Edges[e].To, n.Edges[e].Cap/g))
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

func (n *Net) sides() (in, out [][]int) {
	in, out = make([][]int, n.Nodes()), make([][]int, n.Nodes())
	for i, e := range n.Edges {
		out[e.From] = append(out[e.From], i)
		in[e.To] = append(in[e.To], i)
	}
	return in, out
}

// renumber drops switches without links, orders edges and divides capacities by what they have in common.
func (n *Net) renumber() {
	in, out := n.sides()
	to := make([]int, n.Nodes())
	var names []string
	var hosts []int
	for v := range n.Nodes() {
		if v >= n.Ranks && len(in[v])+len(out[v]) == 0 {
			to[v] = -1
			continue
		}
		to[v] = len(names)
		names = append(names, n.Names[v])
		hosts = append(hosts, n.Hosts[v])
	}
	n.Names, n.Hosts = names, hosts
	var g int64
	for i := range n.Edges {
		e := &n.Edges[i]
		e.From, e.To = to[e.From], to[e.To]
		g = gcd(g, e.Cap)
	}
	slices.SortFunc(n.Edges, func(a, b Edge) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
	if g > 1 {
		for i := range n.Edges {
			n.Edges[i].Cap /= g
		}
		n.Unit *= unit.Rate(g)
	}
}

// reached marks the nodes that links lead to from rank 0, in the direction in which they end at end.
func (n *Net) reached(links [][]int, end func(e *Edge) int) []bool {
	seen := make([]bool, n.Nodes())
	seen[0] = true
	queue := []int{0}
	for len(queue) > 0 {
		v := queue[0]
		queue = queue[1:]
		for _, i := range links[v] {
			if u := end(&n.Edges[i]); !seen[u] {
				seen[u] = true
				queue = append(queue, u)
			}
		}
	}
	return seen
}

// apart gives the ranks that rank 0 cannot reach, or that cannot reach it; the
// smaller side of them. It gives nil if there are none.
func (n *Net) apart() []int {
	in, out := n.sides()
	to := n.reached(out, func(e *Edge) int { return e.To })
	from := n.reached(in, func(e *Edge) int { return e.From })
	for _, seen := range [][]bool{to, from} {
		var reached, left []int
		for r := range n.Ranks {
			if seen[r] {
				reached = append(reached, r)
			} else {
				left = append(left, r)
			}
		}
		if len(left) > 0 {
			if len(reached) < len(left) {
				return reached
			}
			return left
		}
	}
	return nil
}

// Reversed is the network with all links turned round.
func (n *Net) Reversed() *Net {
	r := *n
	r.Edges = slices.Clone(n.Edges)
	for i := range r.Edges {
		r.Edges[i].From, r.Edges[i].To = r.Edges[i].To, r.Edges[i].From
	}
	return &r
}

// ranks names ranks shortly: runs of GPUs of a host as n0:gpu[0-3].
func (n *Net) ranks(list []int) string {
	var parts []string
	var host string
	var nums []string
	flush := func() {
		switch {
		case len(nums) == 1:
			parts = append(parts, host+nums[0])
		case len(nums) > 1:
			parts = append(parts, host+"["+runs(nums)+"]")
		}
		nums = nil
	}
	for _, r := range list {
		name := n.Names[r]
		head := strings.TrimRight(name, "0123456789")
		if head != host || head == name {
			flush()
			host = head
		}
		if head == name {
			parts = append(parts, name)
			continue
		}
		nums = append(nums, name[len(head):])
	}
	flush()
	if len(parts) > 6 {
		parts = append(parts[:5], fmt.Sprintf("and %d more", len(parts)-5))
	}
	return strings.Join(parts, ", ")
}

// runs writes 0 1 2 5 as 0-2,5.
func runs(nums []string) string {
	var out []string
	for i := 0; i < len(nums); {
		j := i
		for j+1 < len(nums) && atoi(nums[j+1]) == atoi(nums[j])+1 {
			j++
		}
		if j > i {
			out = append(out, nums[i]+"-"+nums[j])
		} else {
			out = append(out, nums[i])
		}
		i = j + 1
	}
	return strings.Join(out, ",")
}

func atoi(s string) int {
	v := 0
	for i := range len(s) {
		v = v*10 + int(s[i]-'0')
	}
	return v
}
