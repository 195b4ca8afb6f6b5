package sim

import (
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
)

// Costs is what software and memory add to the wires.
type Costs struct {
	Launch unit.Time // once, before the first message: the kernel's start and end
	Local  unit.Time // each message, at the sender, whose channel it keeps busy
	Net    unit.Time // each message that leaves by a NIC, on its way: a proxy hands it over while the channel goes on
	Memory unit.Rate // of a GPU: a copy moves each byte twice, a reduction three times; 0 for free
}

// What software costs, from measurements of NCCL.
//
// A 512-byte all-reduce takes 6.2, 9.6 and 15.5 us on 2, 4 and 8 H100, and 10.0,
// 14.5 and 22.6 us on A100: a start and 2(n-1) steps of 0.78 and 1.05 us. A step
// over NVSwitch is 0.6 us of links and chip in the catalogue; the rest is
// overhead.
const (
	hopperLaunch = 4640 * unit.Nanosecond
	hopperLocal  = 180 * unit.Nanosecond
	ampereLaunch = 7900 * unit.Nanosecond
	ampereLocal  = 450 * unit.Nanosecond
	// What it takes a host thread to hand a message to the NIC, and the other to
	// notice it: NCCL's cost model (2.30.7) counts 1 us.
	netPost = 1 * unit.Microsecond
	// One side's way through the socket layer (system calls, TCP, interrupt and
	// wake-up): the two sides make the 50 us that is common for TCP over 100 GbE.
	kernel = 25 * unit.Microsecond
)

// What transports reach of a port: NVIDIA GTC24 S62129 shows 24 of 25 and 48 of
// 50 GB/s with RDMA, and 10 of 12.5 GB/s over sockets. Each byte is copied twice
// a side by the CPU, so 10 GB/s is taken for the ceiling of one port's sockets.
const (
	rdmaShare   = 0.96
	socketShare = 0.8
	socketRate  = 10 * unit.GBps
)

// Chips that pass bytes on, where the catalogue does not know the model. PCIe
// switches: 100 to 150 ns by their data sheets; the others as QM9700, a
// Tomahawk-class chip and ConnectX have them.
const (
	pexLatency        = 110 * unit.Nanosecond
	nvswitchLatency   = 100 * unit.Nanosecond
	infinibandLatency = 150 * unit.Nanosecond
	ethernetLatency   = 700 * unit.Nanosecond
	adapterLatency    = 130 * unit.Nanosecond
)

// DefaultCosts gives the overheads measured for a graph's GPUs: Hopper's for
// Hopper and later, Ampere's for Ampere and earlier.
func DefaultCosts(g *topo.Graph, c *catalog.Catalog) Costs {
	costs := Costs{Launch: hopperLaunch, Local: hopperLocal}
	for i := range g.Nodes {
		if g.Nodes[i].Kind != topo.GPU {
			continue
		}
		gpu, ok := c.GPUs[g.Nodes[i].Model]
		if ok {
			costs.Memory = gpu.MemoryRate
			if gpu.Compute > 0 && gpu.Compute < 90 {
				costs.Launch, costs.Local = ampereLaunch, ampereLocal
			}
		}
		break
	}
	costs.Net = netPost
	return costs
}

// chipLatency is what a sort of node adds, looked up once.
type chipLatency struct {
	model string
	kind  topo.Kind
	link  topo.LinkKind
	time  unit.Time
}

// chip is what a node on the way adds to a message's latency.
func (n *network) chip(id topo.NodeID, link topo.LinkKind) unit.Time {
	node := &n.g.Nodes[id]
	if node.Kind < topo.PCIeSwitch {
		return 0
	}
	for i := range n.chips {
		if c := &n.chips[i]; c.kind == node.Kind && c.link == link && c.model == node.Model {
			return c.time
		}
	}
	var t unit.Time
	switch node.Kind {
	case topo.PCIeSwitch:
		t = pexLatency
	case topo.NVSwitch:
		t = nvswitchLatency
	case topo.NIC:
		if t = n.o.Catalog.NICs[node.Model].Latency; t == 0 {
			t = adapterLatency
		}
	case topo.Switch:
		if t = n.o.Catalog.Switches[node.Model].Latency; t == 0 {
			t = ethernetLatency
			if link == topo.InfiniBand {
				t = infinibandLatency
			}
		}
	}
	n.chips = append(n.chips, chipLatency{node.Model, node.Kind, link, t})
	return t
}

// charges is what an action costs besides its flow: overhead and memory. The
// factor is that of its GPU, 0 for a switch.
func (n *network) charges(op sched.Op, bytes int64, factor float64) (cost, work unit.Time) {
	if factor == 0 {
		return 0, 0
	}
	cost = n.o.Costs.Local
	if mem := n.o.Costs.Memory; mem > 0 {
		switch {
		case op.Reduces():
			work = unit.Bytes(3 * bytes).Over(mem)
		case op == sched.Copy:
			work = unit.Bytes(2 * bytes).Over(mem)
		}
	}
	if factor < 1 {
		work, cost = unit.Time(float64(work)/factor), unit.Time(float64(cost)/factor)
	}
	return cost, work
}
