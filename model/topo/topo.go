// Package topo is the cluster as a value: hosts with what is inside them,
// switches, and the links between all of these.
//
// A Graph is immutable, complete and flat. Its nodes and links lie in slices in
// canonical order, so an ID is an index, two graphs of the same cluster are
// equal element by element, and 131,072 GPUs fit in a few hundred megabytes.
//
//	host n0                                     fabric
//	  gpu0 ─NVLink─ nvs0 … nvs3
//	  gpu0 ─PCIe─ pex0 ─PCIe─ root0 ─ cpu0
//	  nic0 ─PCIe─ pex0                          nic0 ─NDR─ leaf0 ─NDR─ spine0 … core0
//
// Builders (model/topo/build) and dialects (model/topo/format) make graphs through a
// Builder; nothing changes one afterwards.
package topo

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/unit"
)

// NodeID is a node's index in Graph.Nodes.
type NodeID int32

// LinkID is a link's index in Graph.Links.
type LinkID int32

// HostID is a host's index in Graph.Hosts; fabric switches have None.
type HostID int32

// ClassID is a class's index in Graph.Classes.
type ClassID uint16

// None stands for "no such thing" in every id and in Rail, Plane, Pod, Rack, Pos and Fabric.
const None = -1

// Kind says what a node is. The order of kinds is the canonical order inside a host.
type Kind uint8

// The kinds of node.
const (
	GPU        Kind = iota + 1 // an accelerator: a GPU or a TPU chip
	CPU                        // one NUMA node: a socket, or a part of one that has its own memory
	RootPort                   // a PCIe host bridge of a CPU
	PCIeSwitch                 // a PCIe switch
	NVSwitch                   // a switch of the accelerator network, inside a host or in a rack
	NIC                        // one network port of a host, InfiniBand or Ethernet
	Switch                     // a switch of the network between hosts
)

var kindNames = []string{"", "gpu", "cpu", "root-port", "pcie-switch", "nvswitch", "nic", "switch"}

func (k Kind) String() string { return name(kindNames, int(k)) }

// ParseKind reads what Kind.String prints.
func ParseKind(s string) (Kind, error) { return parse[Kind]("node kind", kindNames, s) }

// LinkKind says how two nodes are joined.
type LinkKind uint8

// The kinds of link.
const (
	NVLink     LinkKind = iota + 1 // between GPUs and NVSwitches, and to POWER CPUs
	C2C                            // NVLink chip-to-chip, between Grace and its GPU
	XGMI                           // AMD Infinity Fabric between accelerators
	ICI                            // between TPU chips
	PCIe                           // between a device, its switch and its root port
	SMP                            // between sockets: UPI, xGMI, X-Bus; and a CPU to its own root port
	InfiniBand                     // between NICs and switches
	Ethernet                       // likewise, RoCE or plain
)

var linkNames = []string{"", "nvlink", "c2c", "xgmi", "ici", "pcie", "smp", "infiniband", "ethernet"}

func (k LinkKind) String() string { return name(linkNames, int(k)) }

// ParseLinkKind reads what LinkKind.String prints.
func ParseLinkKind(s string) (LinkKind, error) { return parse[LinkKind]("link kind", linkNames, s) }

// Accelerator reports whether the kind joins accelerators without the host's PCIe tree.
func (k LinkKind) Accelerator() bool { return k == NVLink || k == C2C || k == XGMI || k == ICI }

// Network reports whether the kind runs between hosts, NIC to switch.
func (k LinkKind) Network() bool { return k == InfiniBand || k == Ethernet }

func name(names []string, i int) string {
	if i < len(names) && i > 0 {
		return names[i]
	}
	return fmt.Sprintf("unknown(%d)", i)
}

func parse[T ~uint8](what string, names []string, s string) (T, error) {
	for i, n := range names {
		if n == s && i > 0 {
			return T(i), nil
		}
	}
	return 0, fmt.Errorf("unknown %s %q; known: %s", what, s, strings.Join(names[1:], ", "))
}

// Class is a sort of link: everything that links of one sort share.
type Class struct {
	Kind    LinkKind
	Gen     string    // the catalogue's name of the generation: "nvlink4", "pcie5", "ndr"
	Lanes   uint16    // lanes of one physical link, each way
	Rate    unit.Rate // payload of one physical link, one way
	Latency unit.Time // from one end's port to the other's
}

// Unstated is the generation of links whose rate nobody has stated: a file that
// was read names the cable but not its speed. The class holds a rate all the
// same, since every link has one; nothing may report it as a fact. WithClass
// replaces it.
const Unstated = "unstated"

// Stated reports whether the class's rate is known.
func (c Class) Stated() bool { return c.Gen != Unstated }

func (c Class) String() string { return fmt.Sprintf("%s x%d, %s each way", c.Gen, c.Lanes, c.Rate) }

// Link joins two nodes; A < B in a Graph.
type Link struct {
	A, B         NodeID
	APort, BPort uint16 // port number at that end, from 1; 0 where ports have no numbers
	Class        ClassID
	Count        uint16 // parallel physical links counted as one, at least 1: nvidia-smi's "NV2" is one link of Count 2
}

// Node is one element. Fields that do not apply to its kind hold None, or zero where zero means absent.
type Node struct {
	Kind   Kind
	Tier   uint8  // switches: 1 leaf, 2 spine, 3 core; NVSwitches: 1 at the GPUs, 2 above; else 0
	Fabric int8   // index in Graph.Fabrics of a NIC, a switch, or a chip of a torus
	Plane  int8   // which of several parallel, unconnected planes
	Rail   int16  // NICs and switches of a rail-optimised fabric
	Ports  uint16 // how many ports there are, 0 if unknown
	Host   HostID
	Pod    int32  // pod, scalable unit, segment or dragonfly group
	Rack   int32  // where it stands
	Pos    int32  // place in the fabric's structure: torus coordinate, x fastest; dragonfly router, group by group
	Name   string // unique inside its host, or among all nodes that have none
	Model  string // catalogue key: "H100-SXM", "QM9700"; empty if unknown
}

// Host is a machine with an operating system of its own. Its nodes are
// Graph.Nodes[First:First+Count].
type Host struct {
	Name  string
	Model string // catalogue key: "dgx-h100"
	Pod   int32
	Rack  int32
	First NodeID
	Count int32
}

// Family says how a fabric is wired, and so how it is routed.
type Family uint8

// The families.
const (
	Clos      Family = iota + 1 // tiers: fat-tree, rail-optimised, multi-plane; up, then down
	Torus                       // dimension by dimension
	Dragonfly                   // groups, fully joined
	Irregular                   // hand-made or imported; routed up and down, or by fewest hops where switches of one tier are joined
)

var familyNames = []string{"", "clos", "torus", "dragonfly", "irregular"}

func (f Family) String() string { return name(familyNames, int(f)) }

// ParseFamily reads what Family.String prints.
func ParseFamily(s string) (Family, error) { return parse[Family]("fabric family", familyNames, s) }

// Fabric is one network between hosts (or chips). A graph may hold several that share no switch.
type Fabric struct {
	Name    string
	Family  Family
	Dims    []int // torus: length of each dimension; dragonfly: routers a group, hosts a router, global links a router
	Service bool  // storage or management: GPUs do not use its NICs
}

// Attrs holds what a dialect says of an element beyond the model, so that it can say it again.
type Attrs map[string]string

// Graph is a whole cluster, or one host. See the package comment.
type Graph struct {
	Name    string
	Hosts   []Host
	Nodes   []Node
	Links   []Link
	Classes []Class
	Fabrics []Fabric
	Attrs   map[NodeID]Attrs // sparse; only imported graphs have any
	Wires   map[LinkID]Attrs // the same for links

	first  []int32 // adjacency of node n is edges[first[n]:first[n+1]], by peer, then link
	edges  []Edge
	metres []float32 // per link: the length of its cable, 0 where it is not known; nil where none is
	near   []NodeID  // per node: the NIC a GPU uses, the GPU a NIC serves, None elsewhere
	byPos  [][]NodeID
	peers  []bool // per fabric: some link joins two switches of one tier
	hosts  map[string]HostID
	bare   map[string]NodeID // nodes outside hosts, by name
}

// Edge is a link seen from one of its ends.
type Edge struct {
	Peer NodeID
	Link LinkID
}

// Edges lists the links of a node, by peer and then by link.
func (g *Graph) Edges(n NodeID) []Edge { return g.edges[g.first[n]:g.first[n+1]] }

// Class gives the class of a link.
func (g *Graph) Class(l LinkID) *Class { return &g.Classes[g.Links[l].Class] }

// Rate is what a link carries one way, all its parallel physical links together.
func (g *Graph) Rate(l LinkID) unit.Rate {
	return g.Class(l).Rate * unit.Rate(g.Links[l].Count)
}

// Unstated counts the links whose rate nobody has stated.
func (g *Graph) Unstated() int {
	n := 0
	for i := range g.Links {
		if !g.Class(LinkID(i)).Stated() {
			n += int(g.Links[i].Count)
		}
	}
	return n
}

// WithClass gives the same graph with a class for the links whose rate nobody has stated.
func (g *Graph) WithClass(c Class) *Graph {
	same := *g
	same.Classes = slices.Clone(g.Classes)
	for i := range same.Classes {
		if !same.Classes[i].Stated() {
			same.Classes[i] = c
		}
	}
	return &same
}

// HostNodes lists the nodes of a host.
func (g *Graph) HostNodes(h HostID) []Node {
	host := &g.Hosts[h]
	return g.Nodes[host.First : host.First+NodeID(host.Count)]
}

// Each calls f for every node of a kind, in order.
func (g *Graph) Each(k Kind, f func(NodeID, *Node)) {
	for i := range g.Nodes {
		if g.Nodes[i].Kind == k {
			f(NodeID(i), &g.Nodes[i])
		}
	}
}

// First gives the first n nodes of a kind, in order; all of them if there are fewer.
func (g *Graph) First(k Kind, n int) (list []NodeID) {
	for i := range g.Nodes {
		if len(list) >= n {
			break
		}
		if g.Nodes[i].Kind == k {
			list = append(list, NodeID(i))
		}
	}
	return list
}

// Count says how many nodes of a kind there are.
func (g *Graph) Count(k Kind) int {
	n := 0
	g.Each(k, func(NodeID, *Node) { n++ })
	return n
}

// NodeName is the full name, "n0:gpu3" or "leaf7", which Lookup takes.
func (g *Graph) NodeName(n NodeID) string {
	node := &g.Nodes[n]
	if node.Host == None {
		return node.Name
	}
	return g.Hosts[node.Host].Name + ":" + node.Name
}

// LinkName names a link by its ends: "n0:nic3 - leaf3:p1".
func (g *Graph) LinkName(l LinkID) string {
	link := &g.Links[l]
	return g.end(link.A, link.APort) + " - " + g.end(link.B, link.BPort)
}

func (g *Graph) end(n NodeID, port uint16) string {
	if port == 0 || g.Nodes[n].Kind != Switch {
		return g.NodeName(n)
	}
	return fmt.Sprintf("%s:p%d", g.NodeName(n), port)
}

// HostByName finds a host.
func (g *Graph) HostByName(name string) (HostID, bool) {
	h, ok := g.hosts[name]
	return h, ok
}

// Lookup finds a node by its full name. In a graph of one host the host's name may be left out.
func (g *Graph) Lookup(name string) (NodeID, error) {
	if n, ok := g.bare[name]; ok {
		return n, nil
	}
	host, local, ok := strings.Cut(name, ":")
	if !ok {
		if len(g.Hosts) != 1 {
			return None, fmt.Errorf("no switch %q; a part of a host is written HOST:PART, like %s", name, g.example())
		}
		host, local = g.Hosts[0].Name, name
	}
	h, ok := g.hosts[host]
	if !ok {
		return None, fmt.Errorf("no host %q among %s", host, g.span())
	}
	var parts []string
	for i, n := range g.HostNodes(h) {
		if n.Name == local {
			return g.Hosts[h].First + NodeID(i), nil
		}
		parts = append(parts, n.Name)
	}
	return None, fmt.Errorf("host %q has no part %q; it has: %s", host, local, strings.Join(parts, " "))
}

func (g *Graph) example() string {
	if len(g.Nodes) == 0 {
		return "n0:gpu0"
	}
	return g.NodeName(0)
}

func (g *Graph) span() string {
	switch n := len(g.Hosts); {
	case n == 0:
		return "none"
	case n == 1:
		return fmt.Sprintf("%q", g.Hosts[0].Name)
	default:
		return fmt.Sprintf("%d hosts, %q to %q", n, g.Hosts[0].Name, g.Hosts[n-1].Name)
	}
}

// Near gives the NIC that a GPU uses, or the GPU that a NIC serves: the closest
// over PCIe, shared out evenly among equals. None if the host has none.
func (g *Graph) Near(n NodeID) NodeID { return g.near[n] }

// At gives the node at a position of a fabric's structure, None if there is none.
func (g *Graph) At(fabric, pos int) NodeID {
	if fabric < 0 || fabric >= len(g.byPos) || pos < 0 || pos >= len(g.byPos[fabric]) {
		return None
	}
	return g.byPos[fabric][pos]
}

// Peered reports whether an irregular fabric has links between switches of one
// tier. Such a fabric is routed by fewest hops, any other one up and down.
func (g *Graph) Peered(fabric int8) bool {
	return fabric >= 0 && int(fabric) < len(g.peers) && g.peers[fabric]
}

// Ends gives the two ends of a link in the order asked for: from the first to the second.
func (l Link) Ends(forward bool) (from, to NodeID) {
	if forward {
		return l.A, l.B
	}
	return l.B, l.A
}
