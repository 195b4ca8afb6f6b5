package topo

import (
	"fmt"
	"slices"
)

// Span is how far apart two parts of a host are over PCIe, nearest first, in
// the words of `nvidia-smi topo -m`.
type Span uint8

// The spans.
const (
	Self Span = iota // the same part
	PIX              // at most one PCIe switch between them
	PXB              // several PCIe switches, but no root port
	PHB              // through one root port
	NODE             // through two root ports of one CPU (NUMA node)
	SYS              // from one CPU to another, or no way at all
)

var spanNames = []string{"X", "PIX", "PXB", "PHB", "NODE", "SYS"}

func (s Span) String() string {
	if int(s) < len(spanNames) {
		return spanNames[s]
	}
	return fmt.Sprintf("unknown(%d)", uint8(s))
}

// Connection is one cell of the matrix: the accelerator links between two GPUs
// where there are any, and the PCIe span otherwise.
type Connection struct {
	Via   LinkKind // NVLink, XGMI or ICI; zero where bytes go over PCIe
	Links int      // how many of them, 0 over PCIe
	Span  Span     // over PCIe; zero where Via is set
}

// String prints NV# for NVLinks as nvidia-smi does, and XG# and IC# likewise
// for the links of other vendors, which nvidia-smi never meets.
func (c Connection) String() string {
	switch c.Via {
	case 0:
		return c.Span.String()
	case NVLink:
		return fmt.Sprintf("NV%d", c.Links)
	case XGMI:
		return fmt.Sprintf("XG%d", c.Links)
	case ICI:
		return fmt.Sprintf("IC%d", c.Links)
	default:
		return fmt.Sprintf("%s%d", c.Via, c.Links)
	}
}

// Connection says how two GPUs or NICs of one host are joined. NVLinks count
// one by one when direct; through NVSwitches a pair has as many as the end with
// fewer links into the switches they share. Parts of different hosts have SYS
// unless accelerator links join them.
func (g *Graph) Connection(a, b NodeID) Connection {
	if a == b {
		return Connection{Span: Self}
	}
	if g.Nodes[a].Kind == GPU && g.Nodes[b].Kind == GPU {
		if via, links := g.bonded(a, b); links > 0 {
			return Connection{Via: via, Links: links}
		}
	}
	return Connection{Span: g.Span(a, b)}
}

// bonded counts the accelerator links between two GPUs.
func (g *Graph) bonded(a, b NodeID) (LinkKind, int) {
	direct, via := 0, LinkKind(0)
	for _, e := range g.Edges(a) {
		if k := g.Class(e.Link).Kind; e.Peer == b && k.Accelerator() {
			direct += int(g.Links[e.Link].Count)
			via = k
		}
	}
	if direct > 0 {
		return via, direct
	}
	// Both lists are sorted by peer: walk them side by side for the switches both have.
	ea, eb, na, nb := g.Edges(a), g.Edges(b), 0, 0
	for i, j := 0, 0; i < len(ea) && j < len(eb); {
		switch pa, pb := ea[i].Peer, eb[j].Peer; {
		case pa < pb:
			i++
		case pb < pa:
			j++
		default:
			for ; i < len(ea) && ea[i].Peer == pa; i++ {
				if k := g.Class(ea[i].Link).Kind; g.Nodes[pa].Kind == NVSwitch && k.Accelerator() {
					na += int(g.Links[ea[i].Link].Count)
					via = k
				}
			}
			for ; j < len(eb) && eb[j].Peer == pa; j++ {
				if g.Nodes[pa].Kind == NVSwitch && g.Class(eb[j].Link).Kind.Accelerator() {
					nb += int(g.Links[eb[j].Link].Count)
				}
			}
		}
	}
	if shared := min(na, nb); shared > 0 {
		return via, shared
	}
	return g.trunked(a, b)
}

// trunked counts the links between two GPUs that share no NVSwitch but whose
// switches are joined, like those of DGX-2's two boards: as many as the end
// with fewer has into its switches.
func (g *Graph) trunked(a, b NodeID) (via LinkKind, links int) {
	into := func(gpu NodeID) (list []NodeID, count int) {
		for _, e := range g.Edges(gpu) {
			if k := g.Class(e.Link).Kind; g.Nodes[e.Peer].Kind == NVSwitch && k.Accelerator() {
				list, count, via = append(list, e.Peer), count+int(g.Links[e.Link].Count), k
			}
		}
		return list, count
	}
	near, na := into(a)
	far, nb := into(b)
	if na == 0 || nb == 0 {
		return 0, 0
	}
	seen := g.switchesFrom(near)
	if !slices.ContainsFunc(far, func(n NodeID) bool { return seen[n] }) {
		return 0, 0
	}
	return via, min(na, nb)
}

// switchesFrom gives all NVSwitches that can be reached from some of them by way of others, not through GPUs.
func (g *Graph) switchesFrom(todo []NodeID) map[NodeID]bool {
	seen := map[NodeID]bool{}
	for len(todo) > 0 {
		n := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if seen[n] {
			continue
		}
		seen[n] = true
		for _, e := range g.Edges(n) {
			if g.Nodes[e.Peer].Kind == NVSwitch && g.Class(e.Link).Kind.Accelerator() {
				todo = append(todo, e.Peer)
			}
		}
	}
	return seen
}

// oneBridge reports whether two ascents to the same CPU end at one host bridge.
func (g *Graph) oneBridge(a, b ascent) bool {
	return a.root != None && a.root == b.root || !g.hasRoots(a.cpu) && a.wired && b.wired
}

// Span says how far apart two parts of a host are over PCIe, whatever
// accelerator links they have besides. Where a CPU has no root ports in the
// graph, the CPU itself is taken for its one root port.
func (g *Graph) Span(a, b NodeID) Span {
	switch {
	case a == b:
		return Self
	case g.Nodes[a].Host != g.Nodes[b].Host:
		return SYS
	}
	ra := g.climb(a, b)
	if ra.met {
		if ra.switches <= 1 {
			return PIX
		}
		return PXB
	}
	rb := g.climb(b, None)
	switch {
	case ra.cpu == None || ra.cpu != rb.cpu:
		return SYS
	case g.oneBridge(ra, rb):
		return PHB
	default:
		return NODE
	}
}

// ascent is what a walk from a device up its PCIe tree finds.
type ascent struct {
	met      bool   // the other device, below every root port
	switches int    // PCIe switches on the way to it
	root     NodeID // the root port the tree hangs on
	cpu      NodeID // the CPU of that root port
	wired    bool   // the way to the CPU is PCIe, not NVLink or C2C
}

// climb walks the PCIe links around a device without passing a root port or a CPU.
func (g *Graph) climb(from, to NodeID) ascent {
	type visit struct {
		node, back NodeID
		switches   int
	}
	up := ascent{root: None, cpu: None}
	queue := []visit{{from, None, 0}}
	for q := 0; q < len(queue); q++ {
		v := queue[q]
		if v.node == to {
			up.met, up.switches = true, v.switches
			return up
		}
		switch k := g.Nodes[v.node].Kind; {
		case k == RootPort:
			if up.root == None {
				up.root, up.wired = v.node, true
			}
			continue
		case k == CPU:
			if up.cpu == None && up.root == None {
				up.cpu, up.wired = v.node, true
			}
			continue
		case k == PCIeSwitch:
			v.switches++
		case v.node != from:
			continue // bytes do not pass through another device
		}
		for _, e := range g.Edges(v.node) {
			if e.Peer != v.back && g.Class(e.Link).Kind == PCIe {
				queue = append(queue, visit{e.Peer, v.node, v.switches})
			}
		}
	}
	if up.root != None {
		up.cpu = g.owner(up.root)
	} else if up.cpu == None {
		up.cpu = g.owner(from) // a GPU that has only NVLink or C2C to its CPU
	}
	return up
}

// owner gives the first CPU that a node is linked to.
func (g *Graph) owner(n NodeID) NodeID {
	for _, e := range g.Edges(n) {
		if g.Nodes[e.Peer].Kind == CPU {
			return e.Peer
		}
	}
	return None
}

// CPUOf gives the CPU (NUMA node) that a part of a host hangs on, None if the graph does not say.
func (g *Graph) CPUOf(n NodeID) NodeID {
	switch g.Nodes[n].Kind {
	case CPU:
		return n
	case RootPort:
		return g.owner(n)
	default:
		return g.climb(n, None).cpu
	}
}

func (g *Graph) hasRoots(cpu NodeID) bool {
	for _, e := range g.Edges(cpu) {
		if g.Nodes[e.Peer].Kind == RootPort {
			return true
		}
	}
	return false
}
