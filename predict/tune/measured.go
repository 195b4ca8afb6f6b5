package tune

import (
	"math"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/cost"
)

// p2p stands beside NCCL's algorithms for sends and receives.
const p2p = algorithms

// law is how long a collective takes by one protocol over one kind of link:
//
//	L = Floor + Hop * hops                                   latency, us
//	W = bytes over the busiest link / (rate * Share)         us
//	t = (L^Overlap + W^Overlap)^(1/Overlap)
//
// The rate is the wire rate times the catalogue's efficiency of the link, so that
// Share is near one for the protocol that moves the most. Overlap 1 adds both
// up; larger values let the latency of one chunk hide behind the bytes of
// another; smaller ones say that middle sizes, cut into small chunks, run below
// full speed.
type law struct {
	Floor   float64 // us: launch, first and last chunk
	Hop     float64 // us for each step
	Share   float64
	Overlap float64
}

func (l law) time(hops, micros float64) float64 {
	return cost.Join(l.Floor+l.Hop*hops, micros/l.Share, l.Overlap)
}

// class is what a set of constants belongs to: a GPU generation over NVLink, or
// a way over PCIe.
type class int

const (
	classVolta class = iota
	classAmpere
	classHopper
	classBlackwell
	classPCIe // below one PCIe switch
	classHost // through a CPU
	classes
)

var classNames = [classes]string{"Volta NVLink", "Ampere NVLink", "Hopper NVLink", "Blackwell NVLink", "PCIe switch", "PCIe through a CPU"}

func (c class) String() string { return classNames[c] }

func (f *facts) class() class {
	switch f.medium {
	case overPCIe:
		return classPCIe
	case overHost:
		return classHost
	default:
		return class(f.gen())
	}
}

// constants are the laws of one class.
type constants struct {
	LL, LL128, Simple law // rings
	NVLS              law
	SendLL, Send      law // sends and receives

	// Packed is what LL128 moves over the links inside a node, of what Simple does. Threads store every line with its flag themselves,
	// which fills NVLink less than it fills a NIC.
	Packed float64

	// Blocks of a ring step's time besides the steps: a rank copies its own
	// block, and the first and last step overlap with nothing.
	ExtraReduce, ExtraGather, ExtraScatter float64 // all-reduce, all-gather, reduce-scatter
	ExtraSend                              float64 // all-to-all: a rank's block for itself
}

// law picks the law of an algorithm and protocol.
func (k *constants) law(a algorithm, p protocol) law {
	switch {
	case a == p2p && p == ll:
		return k.SendLL
	case a == p2p:
		return k.Send
	case a == nvls || a == nvlsTree:
		return k.NVLS
	case p == ll:
		return k.LL
	case p == ll128:
		return k.LL128
	default:
		return k.Simple
	}
}

// extra counts the blocks besides the ring's steps. It shrinks where a ring uses
// only part of a GPU's links: then the copying is hidden.
func (k *constants) extra(op sched.Collective, f *facts) float64 {
	part := 1.0
	if f.full > 0 {
		part = min(1, f.wire/f.full)
	}
	switch op {
	case sched.AllReduce:
		return k.ExtraReduce * part
	case sched.ReduceScatter:
		return k.ExtraScatter * part
	default:
		return k.ExtraGather * part
	}
}

// hostCopy is the rate in GB/s at which a CPU's memory passes on what goes from
// one PCIe tree to another, in series with the PCIe links: measured on one
// machine with PCIe 5, on which rings reach 0.6 of what they do below one switch.
// It gives 9 GB/s with PCIe 3, which is what DGX-1 shows without NVLink.
const hostCopy = 88

// ringRate is what a ring can reach inside a node, GB/s.
func (f *facts) ringRate() float64 {
	rate := f.wire
	if f.medium == overHost {
		rate = 1 / (1/rate + 1.0/hostCopy)
	}
	return rate * f.efficiency
}

// inside gives the steps and the microseconds at the link's rate that a
// collective over one node's GPUs takes.
func (k *constants) inside(f *facts, op sched.Collective, a algorithm, bytes float64) (hops, micros float64) {
	n := float64(f.ranks)
	switch a {
	case nvls, nvlsTree:
		// A GPU's links carry every block once each way, its own block once more.
		// Past eight GPUs bus bandwidth no longer grows: NVIDIA shows 850 GB/s for
		// 8 and for 32 GPUs of one generation.
		n = float64(f.perNode)
		return 0, bytes * max(1+1/n, 9.0/14*sched.AllReduce.BusFactor(f.perNode)) / (f.wire * f.efficiency) / 1e3
	case p2p:
		if op == sched.AllToAll {
			return n - 1, bytes / n * (f.pair + k.ExtraSend/f.full) / f.efficiency / 1e3
		}
		return 1, bytes * op.BusFactor(f.ranks) / f.ringRate() / 1e3
	case tree:
		// Every byte goes up and down; NCCL and model/topo/rings count a tree with 0.92 of a ring.
		return 2 * (n - 1), 2 * bytes / (treeShare * f.ringRate()) / 1e3
	default:
		return steps(op, f.ranks), bytes / n * (steps(op, f.ranks) + k.extra(op, f)) / f.ringRate() / 1e3
	}
}

const treeShare = 0.92

// network gives what a network adds, from measurements of two nodes.
type network struct {
	Hop     float64 // us a network hop adds to a small message
	Share   float64 // of the NICs' wire rate that large messages reach
	Overlap float64
}

// nicShare is what large messages reach of the NICs' wire rate: what the
// catalogue says of the link, 0.96 for RDMA and 0.8 for 100 GbE with sockets, else
// the network's own. EFA speaks its own protocol over Ethernet links.
func (f *facts) nicShare(net network) float64 {
	if f.netRate > 0 && !f.efa {
		return f.netRate
	}
	return net.Share
}

// furtherHop is what a hop beyond the first two nodes' costs of theirs, which
// hold the start of the proxies as well: NCCL counts 5 us for a hop of a tree,
// where 15 were measured between two nodes; half lies between.
const furtherHop = 0.5

// netKind is what a set of network constants belongs to.
type netKind int

const (
	netRDMA netKind = iota // InfiniBand and RoCE
	netEFA1                // AWS EFA of the A100 generation
	netEFA2                // AWS EFA of the H100 generation and later
	networks
)

var netNames = [networks]string{"InfiniBand or RoCE", "EFA, first generation", "EFA, second generation on"}

// net gives the kind of network between the nodes.
func (f *facts) net() netKind {
	switch {
	case f.efa && f.compute < 90:
		return netEFA1
	case f.efa:
		return netEFA2
	default:
		return netRDMA
	}
}

// hops counts steps inside nodes and between nodes on the longest way.
func (f *facts) hops(op sched.Collective, a algorithm, nodes int) (inside, between float64) {
	ppn, n := float64(f.perNode), nodes*f.perNode
	log := math.Ceil(math.Log2(float64(nodes)))
	switch a {
	case tree:
		return 2 * (ppn - 1), 2 * log
	case nvlsTree:
		return 2, 2 * log
	case collDirect, collChain, nvls:
		return 2, 2
	case pat:
		return 0, log
	case p2p:
		return float64(f.perNode - 1), 1
	default:
		between = float64(nodes - 1)
		if op == sched.AllReduce {
			between *= 2
		}
		return steps(op, n) - between, between
	}
}

// crossing is how many bytes the NICs of one node send.
func (f *facts) crossing(op sched.Collective, a algorithm, bytes float64) float64 {
	switch a {
	case tree, nvlsTree:
		// Half of the data goes up each of two trees and comes down again. Of two
		// nodes each sends S/2 up one and S/2 down the other; of three, the one in
		// the middle sends 3/2 S; from four on an inner node sends 2 S.
		return bytes * min(2, float64(f.nodes)/2)
	case collDirect, collChain, nvls:
		return bytes // up to the switch that adds; the sum comes down the other way
	case p2p:
		if op != sched.AllToAll {
			return bytes * op.BusFactor(f.ranks)
		}
		return float64(f.perNode) * bytes * float64(f.ranks-f.perNode) / float64(f.ranks)
	default:
		return bytes * op.BusFactor(f.ranks)
	}
}

// several is the time over several nodes, and what bounds it. A small message
// takes the latency of two nodes; bytes take the slower of the NICs and the links
// inside; both are joined as measured; each further node adds its hops.
func (k *constants) several(f *facts, net network, op sched.Collective, a algorithm, p protocol, bytes float64) (us float64, limit string) {
	in, out := f.hops(op, a, 2)
	first := k.LL.Floor + k.LL.Hop*in + net.Hop*out
	moreIn, moreOut := f.hops(op, a, f.nodes)
	more := k.LL.Hop*(moreIn-in) + net.Hop*furtherHop*(moreOut-out)
	data, packed := k.data(p)
	wire := f.crossing(op, a, bytes) / (f.nicWire() * f.nicShare(net)) / 1e3 / data
	limit = "nic"
	if w := f.fabric(op, a, bytes) / f.nicShare(net) / data; w > wire {
		wire, limit = w, "fabric"
	}
	if f.medium != alone {
		l := k.Simple
		if a == nvlsTree || a == nvls || a == collDirect {
			l = k.NVLS
		} else if a == p2p {
			l = k.Send
		}
		_, micros := k.inside(f, op, a, bytes)
		if a == ring {
			// A ring leaves the node once: of its ppn hops one goes by a NIC, and as the
			// rings leave at different GPUs each of them carries one less inside.
			micros *= float64(f.perNode-1) / float64(f.perNode)
		}
		if w := micros / l.Share / packed; w > wire {
			wire, limit = w, f.medium.String()
		}
	}
	if first+more > wire {
		limit = "latency"
	}
	return cost.Join(first, wire, net.Overlap) + more, limit
}

// data gives the parts of what Simple moves between nodes and inside of them that a protocol moves as data.
func (k *constants) data(p protocol) (between, inside float64) {
	switch p {
	case ll:
		part := k.LL.Share / k.Simple.Share
		return part, part
	case ll128:
		return 120.0 / 128, k.Packed
	default:
		return 1, 1
	}
}

// measured gives the time that measurements suggest, and what bounds it. Blackwell's law of LL128 is Simple's, as NCCL 2.27 runs Simple on
// a node where its model takes LL128; whoever asks for LL128 gets it.
func (m *NCCL) measured(op sched.Collective, a algorithm, p protocol, bytes float64) (us float64, limit string) {
	if p != ll128 || len(m.o.Protos) == 0 {
		return fitted.time(m.f, op, a, p, bytes)
	}
	asked, c := fitted, m.f.class()
	k := &asked.Class[c]
	k.LL128.Share = k.Simple.Share * k.Packed
	return asked.time(m.f, op, a, p, bytes)
}

// fit is every fitted constant.
type fit struct {
	Class [classes]constants
	Net   [networks]network
}

// time predicts an operation in microseconds, and says what limits it.
func (x *fit) time(f *facts, op sched.Collective, a algorithm, p protocol, bytes float64) (us float64, limit string) {
	k := &x.Class[f.class()]
	if f.nodes > 1 {
		return k.several(f, x.Net[f.net()], op, a, p, bytes)
	}
	hops, micros := k.inside(f, op, a, bytes)
	l := k.law(a, p)
	limit = f.medium.String()
	switch {
	case l.Floor+l.Hop*hops > micros/l.Share:
		limit = "latency"
	case p == ll:
		limit = "protocol"
	}
	return l.time(hops, micros), limit
}

// boundBy names what NCCL's bandwidth of a combination rests on.
func (m *NCCL) boundBy(op sched.Collective, a algorithm, p protocol) string {
	f := m.f
	switch {
	case p == ll:
		return "protocol"
	case f.nodes > 1 && (f.medium == alone || f.inside() >= 1.02*m.graphs[ring].Inter*float64(m.graphs[ring].Channels)):
		return "nic"
	default:
		return f.medium.String()
	}
}

// copyTime is what one rank takes: its own copy, read and written.
func copyTime(f *facts, bytes float64) float64 {
	us := fitted.Class[f.class()].LL.Floor
	if f.memory > 0 {
		us += 2 * bytes / f.memory / 1e3
	}
	return us
}

// Predict keeps NCCL's choice and takes the time from the measured constants.
func (m *NCCL) Predict(op sched.Collective, bytes unit.Bytes) Prediction {
	bytes = max(bytes, 0)
	c := m.Choose(op, bytes)
	if c.Excluded || m.f.ranks == 1 {
		return Prediction{Choice: c, Nearest: "none: no links are used", Error: 0}
	}
	us, limit := m.timeOf(op, c, bytes)
	c = c.timed(op, m.f.ranks, bytes, us)
	c.Limit = limit
	p := Prediction{Choice: c}
	var doublings float64
	p.Nearest, p.Error, doublings = m.nearest(op, bytes)
	p.Within = max(m.within(bytes)*farther(doublings), p.Error)
	return p
}

// timeOf is the measured time of a choice.
func (m *NCCL) timeOf(op sched.Collective, c Choice, bytes unit.Bytes) (us float64, limit string) {
	size := float64(bytes)
	if op == sched.Barrier {
		op, size = sched.AllReduce, 4
	}
	a, p := indices(c)
	return m.measured(op, a, p, size)
}

// indices reads a choice's names.
func indices(c Choice) (a algorithm, p protocol) {
	a, p = p2p, simple
	for i, n := range algoNames {
		if n == c.Algo {
			a = algorithm(i)
		}
	}
	for i, n := range protoNames {
		if n == c.Proto {
			p = protocol(i)
		}
	}
	return a, p
}
