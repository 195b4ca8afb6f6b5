package tune

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/sets"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/cost"
)

// NCCLOptions is what a user can tell NCCL; the zero value is NCCL's default.
type NCCLOptions struct {
	CollNet    bool      // a plug-in that reduces in the network, SHARP, is loaded and enabled
	NoNVLS     bool      // NVLink SHARP is turned off, as by NCCL_NVLS_ENABLE=0
	NICLatency unit.Time // what the network plug-in reports; 0 for InfiniBand and RoCE
	Algos      []string  // only these, as by NCCL_ALGO; empty for all
	Protos     []string  // only these, as by NCCL_PROTO; empty for all
	Outline    *Outline  // the graph's, for whoever asks about many sets of its GPUs; nil to find it
}

// Outline is what models of all sets of a graph's GPUs need, and what takes a walk over all its nodes.
type Outline struct {
	joined sets.Sets[int32] // hosts, then nodes without one, that an NVLink network joins; nil where none does
	top    uint8            // the highest tier of switches
}

// OutlineOf finds a graph's.
func OutlineOf(g *topo.Graph) *Outline {
	x := &Outline{}
	var joining []topo.NodeID // NVSwitches that join hosts, or others
	for i := range g.Nodes {
		n, node := topo.NodeID(i), &g.Nodes[i]
		switch {
		case node.Kind == topo.Switch:
			x.top = max(x.top, node.Tier)
		case node.Kind == topo.NVSwitch && (node.Host == topo.None || node.Tier >= 2 || leavesHost(g, n)):
			joining = append(joining, n)
		}
	}
	if len(joining) > 0 {
		x.joined = join(g, joining)
	}
	return x
}

// NCCL is NCCL's cost model for one communicator.
type NCCL struct {
	f      *facts
	o      NCCLOptions
	graphs [algorithms]shape
}

// NewNCCL derives NCCL's model for a set of GPUs. Like NCCL it chooses by the hosts
// and their NICs only, as if the fabric between them did not block; the time that
// it predicts counts the fabric's cuts.
func NewNCCL(g *topo.Graph, gpus []topo.NodeID, c *catalog.Catalog, o NCCLOptions) (*NCCL, error) {
	f, err := gather(g, gpus, c, o.Outline)
	if err != nil {
		return nil, err
	}
	if err := known("algorithm", o.Algos, algoNames[:]); err != nil {
		return nil, err
	}
	if err := known("protocol", o.Protos, protoNames[:]); err != nil {
		return nil, err
	}
	m := &NCCL{f: f, o: o}
	r := f.searchRing()
	t := f.searchTree(r)
	n := f.searchNVLS()
	m.graphs = [algorithms]shape{tree: t, ring: r, collDirect: t, collChain: t, nvls: n, nvlsTree: n, pat: r}
	return m, nil
}

func known(what string, names, all []string) error {
	for _, n := range names {
		if !slices.Contains(all, n) {
			return fmt.Errorf("unknown %s %q; known: %v", what, n, all)
		}
	}
	return nil
}

// NCCLAlgos lists NCCL's algorithms by the names that NCCL_ALGO takes.
func NCCLAlgos() []string { return algoNames[:] }

// NCCLProtos lists NCCL's protocols by the names that NCCL_PROTO takes.
func NCCLProtos() []string { return protoNames[:] }

// Ranks is how many GPUs take part.
func (m *NCCL) Ranks() int { return m.f.ranks }

// Nodes is how many nodes they are on; hosts that share an NVLink network are one.
func (m *NCCL) Nodes() int { return m.f.nodes }

// nodeColumn picks the column of NCCL's caps: one, two, or more nodes.
func (m *NCCL) nodeColumn() int { return min(m.f.nodes, 3) - 1 }

// steps counts ring steps: 2(n-1) for all-reduce, n-1 for the two that move
// blocks, n otherwise.
func steps(op sched.Collective, n int) float64 {
	switch op {
	case sched.AllReduce:
		return float64(2 * (n - 1))
	case sched.ReduceScatter, sched.AllGather:
		return float64(n - 1)
	default:
		return float64(n)
	}
}

// why says what keeps NCCL from a combination; empty if nothing does.
func (m *NCCL) why(op sched.Collective, a algorithm, p protocol) string {
	others := func(asked []string, name string) bool { return len(asked) > 0 && !slices.Contains(asked, name) }
	if others(m.o.Algos, algoNames[a]) {
		return "not among the algorithms asked for"
	}
	if others(m.o.Protos, protoNames[p]) {
		return "not among the protocols asked for"
	}
	if why := whyNotFor(op, a); why != "" {
		return why
	}
	if p != simple && a != tree && a != ring {
		return algoNames[a] + " runs with Simple only"
	}
	why := ""
	switch a {
	case nvls, nvlsTree:
		why = m.whyNoNVLS(op, a)
	case collDirect, collChain:
		why = m.whyNoCollNet(op, a)
	case pat:
		why = m.whyNoPAT()
	}
	if p == ll128 {
		why = cmp.Or(why, m.whyNoLL128())
	}
	return why
}

// whyNotFor is why no version of NCCL has an operation by an algorithm.
func whyNotFor(op sched.Collective, a algorithm) string {
	switch op {
	case sched.Broadcast, sched.Reduce:
		if a != ring {
			return fmt.Sprintf("NCCL has %s by Ring only", op)
		}
	case sched.ReduceScatter, sched.AllGather:
		if a != ring && a != pat && a != nvls && a != collDirect {
			return fmt.Sprintf("NCCL has no %s by %s", op, algoNames[a])
		}
	case sched.AllReduce:
		if a == pat {
			return "PAT serves all-gather and reduce-scatter only"
		}
	}
	return ""
}

// whyNoNVLS says why NCCL does not use NVLS here; "" if it may.
func (m *NCCL) whyNoNVLS(op sched.Collective, a algorithm) string {
	f := m.f
	switch {
	case m.o.NoNVLS:
		return "NVLS is turned off"
	case f.compute < 90 || !f.multi:
		return "the NVLink switches do not reduce in flight (needs compute capability 9.0 and its NVSwitch)"
	case m.graphs[a].Channels < 2:
		return "fewer than two channels"
	case a == nvlsTree && f.nodes == 1:
		return "NVLSTree is for several nodes"
	case a == nvlsTree || f.nodes == 1:
		return ""
	case !m.o.CollNet:
		return "NVLS over several nodes needs a network that reduces (CollNet)"
	case op != sched.AllReduce:
		return "NVLS over several nodes needs a plug-in with iallgather and ireducescatter"
	}
	return ""
}

// whyNoCollNet says why NCCL does not use CollNet here; "" if it may.
func (m *NCCL) whyNoCollNet(op sched.Collective, a algorithm) string {
	f := m.f
	switch {
	case !m.o.CollNet:
		return "no network plug-in that reduces (CollNet) is enabled"
	case f.nodes < 2:
		return "CollNet needs at least two nodes"
	case f.perNode > 8:
		return "CollNet serves at most eight ranks a node"
	case a == collDirect && !f.switched:
		return "CollNetDirect needs NVSwitch"
	case a == collDirect && op != sched.AllReduce:
		return "CollNetDirect needs a plug-in with iallgather and ireducescatter here"
	}
	return ""
}

func (m *NCCL) whyNoPAT() string {
	switch {
	case m.f.perNode > 1:
		return "PAT is on by default only with one rank a node"
	case m.f.nodes < 2:
		return "PAT is for several nodes"
	}
	return ""
}

// whyNoLL128 says why NCCL does not use the LL128 protocol here; "" if it may. Its stores of 128 bytes must arrive
// whole, which not every path guarantees.
func (m *NCCL) whyNoLL128() string {
	f, inter := m.f, m.graphs[ring].TypeInter
	farthest := pathPXB
	if f.compute >= 90 {
		farthest = pathPXN
	}
	switch {
	case f.compute < 70:
		return "LL128 needs compute capability 7.0"
	case f.medium != alone && f.path > pathNVB:
		return fmt.Sprintf("LL128 is on only over NVLink; the way inside the node is %s", f.path)
	case f.nodes > 1 && inter > farthest:
		return fmt.Sprintf("LL128 is off with NICs as far as %s", inter)
	}
	return ""
}

// bandwidth is NCCL's algorithm bandwidth in GB/s before any correction by size.
func (m *NCCL) bandwidth(op sched.Collective, a algorithm, p protocol) float64 {
	f, g, gen, col := m.f, m.graphs[a], m.f.gen(), m.nodeColumn()
	c := float64(g.Channels)
	ppn := float64(f.perNode)
	n := float64(f.ranks)
	speed := g.Inter
	if f.nodes <= 2 || a == collDirect || a == collChain {
		speed = g.Intra
	}
	if a == nvls || a == nvlsTree {
		if g.Channels < 2 {
			return 0
		}
		intra := g.Intra * nvlsShare[gen] * (c - 1) / c
		if op == sched.AllReduce {
			intra *= 2
		} else {
			intra *= (ppn - 1) / ppn
		}
		inter := g.Inter
		if a == nvlsTree && f.nodes <= 2 {
			inter *= 2
		}
		speed = intra
		if f.nodes > 1 {
			speed = min(speed, inter)
		}
		if a == nvlsTree {
			speed = min(speed, capNVLSTree[gen][col])
		}
	}
	bus := c * speed
	llCap := capLL[gen][col]
	if f.nodes > 1 {
		row := volta
		if f.cpu == amd || f.mixedCPU {
			row = ampere
		}
		llCap = capLL[row][col]
	}
	switch a {
	case ring:
		switch p {
		case ll:
			bus = min(llCap, bus/2)
		case ll128:
			bus = min(.92*bus, c*capRing128[gen][col])
		}
	case tree:
		bus = min(.92*bus, c*capTree[gen][col])
		switch p {
		case ll:
			bus = min(bus/3.8, llCap)
		case ll128:
			share := 7.0 / 9
			if f.nodes > 1 {
				share = 120.0 / 128
			}
			bus = min(bus*share, c*capTree128[gen][col])
		}
	case pat:
		bus *= .75
	case collDirect:
		if op != sched.AllReduce {
			bus = ppn * min(g.Intra, .9*g.Inter)
		} else {
			factor := ppn / c
			bus /= factor - (factor-1)/2
		}
		if f.compute >= 90 {
			bus *= .85
		}
	}
	switch {
	case a == ring || a == nvls || a == nvlsTree:
		return bus * n / steps(op, f.ranks)
	case op == sched.AllGather || op == sched.ReduceScatter:
		return bus
	default:
		return bus * .5
	}
}

// latency is NCCL's latency in microseconds.
func (m *NCCL) latency(op sched.Collective, a algorithm, p protocol) float64 {
	f := m.f
	ppn, nodes := float64(f.perNode), float64(f.nodes)
	base := baseLatency[a][p]
	link := hopPCI
	if f.medium == overNVLink || f.medium == alone {
		link = hopNVLink
	}
	intra := hopLatency[link][a][p]
	if f.cpu == power && link == hopPCI && a == tree && p == simple {
		intra = hopLatency[link][ring][p]
	}
	of := a
	if f.perNode == 1 {
		of = tree
	}
	nicLat := m.o.NICLatency.Microseconds()
	inter := hopLatency[hopNet][of][p] + nicLat
	post := 1.0
	if f.cpu == amd {
		post = 2
	}
	if p == simple {
		inter += nicLat
		post *= 3
	}
	log := 0.0
	if f.nodes > 1 {
		log = math.Floor(math.Log2(nodes))
	}
	switch a {
	case ring:
		if op == sched.Broadcast || op == sched.Reduce {
			hop := intra
			if p == simple {
				hop = hopLatency[link][tree][p]
			}
			if f.nodes > 1 {
				hop = inter
			}
			return base + float64(f.ranks)*hop
		}
		s, i := steps(op, f.ranks), 0.0
		if f.nodes > 1 {
			i = nodes - 1
			if op == sched.AllReduce {
				i *= 2
			}
			intra = max(intra, post)
		}
		return base + (s-i)*intra + i*inter
	case tree:
		return base + 2*((ppn-1)*intra+log*inter)
	case collDirect:
		return base + 2*(min(1, ppn-1)*intra+.4*(ppn-1)) + inter
	case collChain:
		return base + 2*(ppn-1)*intra + inter
	case nvls:
		if f.nodes > 1 {
			return intra + inter
		}
		return intra
	case nvlsTree:
		return base + intra + 2*log*inter
	default: // PAT
		return base + log*inter/3.5 + 2.8*float64(f.ranks)
	}
}

// channelCount is how many channels the communicator has for an algorithm: the
// search's, doubled because trees come in pairs, doubled again between Hopper
// nodes with fast rings.
func (m *NCCL) channelCount(a algorithm) int {
	if a == nvls || a == nvlsTree {
		several := 0
		if m.f.nodes > 1 {
			several = 1
		}
		return nvlsChannels[m.f.gen()][several]
	}
	r := m.graphs[ring]
	n := min(2*r.Channels, 2*maxChannels)
	if m.f.compute >= 90 && m.f.nodes > 1 && r.Intra > 45 && n < 16 {
		n *= 2
	}
	return n
}

// own is NCCL's estimate in microseconds; infinite where it has no bandwidth.
func (m *NCCL) own(op sched.Collective, a algorithm, p protocol, bytes float64) float64 {
	bw := m.bandwidth(op, a, p)
	if bw <= 0 {
		return math.Inf(1)
	}
	i := sizeIndex(bytes)
	switch {
	case a == tree && op == sched.AllReduce && i >= 0 && i < 23:
		bw *= treeCorrection[p][i]
	case a == nvlsTree && m.f.compute >= 100 && (m.f.cpu == intel || m.f.cpu == amd) && i >= 0 && i < 24:
		bw *= treeCorrection[p][i]
	}
	lat := m.latency(op, a, p)
	if a == ring && p == simple && op == sched.AllReduce && m.f.nodes > 1 &&
		bytes/float64(m.channelCount(ring)*m.f.ranks) >= 64 {
		if m.f.compute >= 80 {
			lat *= 1.4
		} else {
			lat *= 1.9
		}
	}
	return lat + bytes/(1000*bw)
}

// tuned reports whether NCCL's table decides about a collective; the others are
// sends and receives.
func tuned(op sched.Collective) bool {
	switch op {
	case sched.AllReduce, sched.AllGather, sched.ReduceScatter, sched.Broadcast, sched.Reduce:
		return true
	}
	return false
}

// pick finds the first minimum.
func (m *NCCL) pick(op sched.Collective, bytes float64) (a algorithm, p protocol, us float64) {
	us, a, p = math.Inf(1), -1, -1
	for i := range algorithms {
		for j := range protocols {
			if m.why(op, i, j) != "" {
				continue
			}
			if t := m.own(op, i, j, bytes); t < us {
				a, p, us = i, j, t
			}
		}
	}
	return a, p, us
}

// Choose gives NCCL's choice for a collective over bytes (the larger buffer: n
// blocks for all-gather and reduce-scatter, as nccl-tests counts), with NCCL's own
// estimate of the time; sends and receives, for which NCCL has none, have the
// measured one. Sizes below zero count as zero.
func (m *NCCL) Choose(op sched.Collective, bytes unit.Bytes) Choice {
	size := max(float64(bytes), 0)
	bytes = max(bytes, 0)
	switch {
	case m.f.ranks == 1:
		c := Choice{Op: op.String(), Algo: "Copy", Proto: "Simple", Channels: 1, Threads: 512, Limit: "latency",
			Reason: "one rank: a copy from input to output, or nothing"}
		return c.timed(op, 1, bytes, copyTime(m.f, size))
	case op == sched.Barrier:
		c := m.Choose(sched.AllReduce, 4)
		c.Op, c.Reason = op.String(), "a barrier is an all-reduce of one element"
		return c
	case !tuned(op):
		return m.sends(op, bytes)
	}
	a, p, us := m.pick(op, size)
	if a < 0 {
		return Choice{Op: op.String(), Excluded: true, Time: math.MaxInt64, Reason: "every algorithm and protocol is excluded; see the table"}
	}
	c := Choice{Op: op.String(), Algo: algoNames[a], Proto: protoNames[p]}
	c.Channels, c.Threads = m.grid(a, p, size)
	c.Limit = m.ownLimit(op, a, p, size)
	c.Reason = m.reason(op, a, p, size, us)
	return c.timed(op, m.f.ranks, bytes, us)
}

// ownLimit names the larger part of NCCL's estimate.
func (m *NCCL) ownLimit(op sched.Collective, a algorithm, p protocol, bytes float64) string {
	if m.latency(op, a, p) > bytes/(1000*m.bandwidth(op, a, p)) {
		return "latency"
	}
	return m.boundBy(op, a, p)
}

// grid gives channels and threads by size: channels fall to one before threads do.
func (m *NCCL) grid(a algorithm, p protocol, bytes float64) (nc, nt int) {
	nc = max(m.channelCount(a), 1)
	var threshold float64
	nt = 512
	switch {
	case a == collDirect || a == collChain:
		nt, threshold = 640, 512
	case a == nvls || a == nvlsTree:
		nt, threshold = 640, 64
	case p == ll:
		threshold = 8
		if a == ring {
			threshold *= float64(m.f.ranks)
		}
	case p == ll128:
		nt, threshold = 640, 8
	default:
		threshold = 64
		if r := m.graphs[ring]; r.Intra*float64(r.Channels) <= 12 {
			nt = 256
		}
	}
	for bytes < float64(nc*nt)*threshold {
		switch {
		case nc >= 2:
			nc--
		case nt%128 == 0 && nt > 128:
			nt /= 2
		default:
			return nc, nt
		}
	}
	return nc, nt
}

// sends describes a collective that NCCL runs as sends and receives.
func (m *NCCL) sends(op sched.Collective, bytes unit.Bytes) Choice {
	c := Choice{Op: op.String(), Algo: "P2P", Proto: "Simple", Channels: max(m.channelCount(ring), 1), Threads: 512,
		Reason: "NCCL has no algorithm for it: every pair sends and receives at once"}
	each := float64(bytes)
	if op == sched.AllToAll || op == sched.Gather || op == sched.Scatter {
		each /= float64(m.f.ranks)
	}
	if each <= sendLL {
		c.Proto, c.Reason = "LL", c.Reason+"; messages up to 16 KiB by LL"
	}
	us, limit := m.measured(op, p2p, map[string]protocol{"LL": ll, "Simple": simple}[c.Proto], float64(bytes))
	c.Limit = limit
	return c.timed(op, m.f.ranks, bytes, us)
}

// sendLL is the size of a message up to which NCCL sends with LL.
const sendLL = 16384

// Table lists every algorithm and protocol with NCCL's estimate, the excluded
// ones with the reason, in NCCL's order.
func (m *NCCL) Table(op sched.Collective, bytes unit.Bytes) []Choice {
	bytes = max(bytes, 0)
	if m.f.ranks == 1 || !tuned(op) {
		return []Choice{m.Choose(op, bytes)}
	}
	var list []Choice
	for a := range algorithms {
		for p := range protocols {
			c := Choice{Op: op.String(), Algo: algoNames[a], Proto: protoNames[p]}
			if c.Reason = m.why(op, a, p); c.Reason != "" {
				c.Excluded, c.Time = true, math.MaxInt64
				list = append(list, c)
				continue
			}
			us := m.own(op, a, p, float64(bytes))
			if math.IsInf(us, 1) {
				c.Excluded, c.Time, c.Reason = true, math.MaxInt64, "NCCL's model gives it no bandwidth here"
				list = append(list, c)
				continue
			}
			c.Channels, c.Threads = m.grid(a, p, float64(bytes))
			c.Limit = m.ownLimit(op, a, p, float64(bytes))
			c.Reason = fmt.Sprintf("%s and %.4g GB/s", cost.Span(m.latency(op, a, p)), m.bandwidth(op, a, p))
			list = append(list, c.timed(op, m.f.ranks, bytes, us))
		}
	}
	return list
}

// reason compares the choice with the best of the other algorithms and protocols.
func (m *NCCL) reason(op sched.Collective, a algorithm, p protocol, bytes, us float64) string {
	bestA, bestP, best := algorithm(-1), protocol(-1), math.Inf(1)
	for i := range algorithms {
		for j := range protocols {
			if (i == a && j == p) || m.why(op, i, j) != "" {
				continue
			}
			if t := m.own(op, i, j, bytes); t < best {
				bestA, bestP, best = i, j, t
			}
		}
	}
	if bestA < 0 {
		return "the only combination left"
	}
	return fmt.Sprintf("NCCL counts %s for %s %s against %s for %s %s, the next best",
		cost.Span(us), algoNames[a], protoNames[p], cost.Span(best), algoNames[bestA], protoNames[bestP])
}
