package plan

import (
	"fmt"
	"strings"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/internal/kernel"
	"github.com/weft-fabric/weft/predict/sim"
	"github.com/weft-fabric/weft/predict/tune"
)

// Machine is what a plan needs of a cluster.
type Machine struct {
	Name     string
	GPU      catalog.GPU
	Chip     kernel.Chip
	GPUs     int     // that the plan uses
	HostGPUs int     // in a host
	Domain   int     // that NVLink or its like joins
	NIC      float64 // bytes a second and GPU, one way, all NICs of a host shared out
	Watts    float64 // of a GPU with its share of the host
	Hour     float64 // USD of a GPU hour
	HourFrom string
	Notes    []string

	graph   *topo.Graph
	catalog *catalog.Catalog
	gpus    []topo.NodeID
	nccl    map[group]*tune.NCCL
	outline *tune.Outline
	fabric  *sim.Fabric
	rings   map[group]law
	times   map[call]spoken

	products   map[shape]float64
	attentions map[prompts]float64

	stretch func(Transfer) float64 // nil for a fabric that is as the plan takes it

	// What if: NICs faster times as fast, NVLink domains of wider GPUs. Zero for the machine as it is.
	faster float64
	wider  int
	still  bool // transfers take no time: for bounds
}

// group is a set of ranks: n of them, stride apart, the first at rank 0.
type group struct{ n, stride int }

type call struct {
	group
	op    sched.Collective
	bytes int64
}

// law is a time that grows with the bytes: seconds, and seconds a byte. It is zero where nothing was simulated.
type law struct{ start, each float64 }

type spoken struct {
	seconds float64
	how     string
}

// Transfer is one that leaves NVLink domains, of all groups of a kind at once: Ranks of them, Stride apart. A send between the
// stages of a pipeline is a SendRecv of as many ranks as there are stages.
type Transfer struct {
	Op            sched.Collective
	Ranks, Stride int
	Bytes         float64 // the larger of input and output
	Simulated     bool    // the plan's time is that of a simulation on the healthy cluster's links
}

// Stretched is the machine with a fabric on which each transfer takes times as long as the plan has it, as f says.
func (m *Machine) Stretched(f func(Transfer) float64) *Machine {
	c := *m
	c.stretch, c.times = f, map[call]spoken{}
	return &c
}

// longer is how many times as long a transfer takes on the machine's fabric.
func (m *Machine) longer(t Transfer) float64 {
	if m.stretch == nil || t.Ranks < 2 || t.Ranks*t.Stride <= m.Domain {
		return 1
	}
	return m.stretch(t)
}

// NewMachine takes the first gpus GPUs of a cluster; 0 means all.
func NewMachine(c *cluster.Cluster, gpus int) (*Machine, error) {
	m := &Machine{Name: c.Name, graph: c.Graph, catalog: c.Catalog, nccl: map[group]*tune.NCCL{}, times: map[call]spoken{}}
	c.Graph.Each(topo.GPU, func(id topo.NodeID, _ *topo.Node) { m.gpus = append(m.gpus, id) })
	if len(m.gpus) == 0 {
		return nil, fmt.Errorf("%s has no GPUs", c.Name)
	}
	if gpus == 0 {
		gpus = len(m.gpus)
	}
	if gpus < 0 || gpus > len(m.gpus) {
		return nil, fmt.Errorf("%d GPUs are asked for; %s has %d", gpus, c.Name, len(m.gpus))
	}
	m.GPUs, m.gpus = gpus, m.gpus[:gpus]
	first := &c.Graph.Nodes[m.gpus[0]]
	for _, id := range m.gpus {
		if n := &c.Graph.Nodes[id]; n.Model != first.Model {
			return nil, fmt.Errorf("%s mixes %s and %s; a plan needs GPUs of one kind: choose them with --gpus", c.Name, first.Model, n.Model)
		}
	}
	var err error
	if m.GPU, err = c.Catalog.GPU(first.Model); err != nil {
		return nil, fmt.Errorf("%s: %w", c.Name, err)
	}
	m.Chip = kernel.NewChip(m.GPU)
	host := first.Host
	nics := 0.0
	seen := map[topo.NodeID]bool{}
	c.Graph.Each(topo.GPU, func(id topo.NodeID, n *topo.Node) {
		if n.Host != host {
			return
		}
		m.HostGPUs++
		if nic := c.Graph.Near(id); nic != topo.None && !seen[nic] {
			seen[nic] = true
			nics += float64(c.Graph.Injection(id).NIC)
		}
	})
	m.HostGPUs = max(m.HostGPUs, 1)
	m.NIC = nics / float64(m.HostGPUs)
	m.Domain = min(sim.DomainOf(c.Graph, m.gpus), gpus)
	m.Watts = float64(m.GPU.Watts) * 1.4
	if host >= 0 {
		if h, err := c.Catalog.Host(c.Graph.Hosts[host].Model); err == nil {
			if h.GPUs > 0 && h.Watts > 0 {
				m.Watts = float64(h.Watts) / float64(h.GPUs)
			}
			m.Hour, m.HourFrom = h.Rent.USD, fmt.Sprintf("rent, %s: %s", h.Rent.Date, h.Rent.Source)
		}
	}
	if c.Needs.CloudPrice > 0 {
		m.Hour, m.HourFrom = c.Needs.CloudPrice, "the cluster file's cloud-price"
	}
	if m.Hour == 0 && m.GPU.Price.USD > 0 {
		m.Hour, m.HourFrom = m.GPU.Price.USD*1.6/(3*8760*.8),
			"price of the GPU and as much again by 0.6 for the rest, over three years at 80% use"
	}
	return m, nil
}

// shown is the memory of GPUs as their driver shows it, in MiB: what is sold as 80 GB is nearly 80 GiB.
var shown = map[string]float64{"V100-SXM-16GB": 16160, "V100-SXM": 32510, "V100-PCIe": 32510, "A100-SXM-40GB": 40536,
	"A100-SXM-80GB": 81251, "A800-SXM": 81251, "A100-PCIe": 81251, "A10": 23028, "RTX-4090": 24564, "L40S": 46068,
	"RTX-PRO-6000": 97887, "H100-SXM": 81559, "H100-PCIe": 81559, "H800-SXM": 81559, "H20": 97871, "H200": 143771, "GH200": 97871,
	"B200": 183359, "GB200": 189471, "B300": 275040, "GB300": 284208, "MI300X": 196592}

// Computes reports why a GPU's matrix units cannot multiply in a layout's type. Microscaled types came with the same chips as four bits.
func (m *Machine) Computes(dtype string) error {
	unit := map[string]string{"bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "fp8block": "fp8", "mxfp8": "fp4", "nvfp4": "fp4"}[dtype]
	if unit == "" || m.GPU.Dense[unit] > 0 {
		return nil
	}
	can := []string{"fp32"}
	for _, x := range []string{"fp16", "bf16", "fp8", "fp8block", "mxfp8", "nvfp4"} {
		if x != dtype && m.GPU.Dense[map[string]string{"fp8block": "fp8", "mxfp8": "fp4", "nvfp4": "fp4"}[x]]+m.GPU.Dense[x] > 0 {
			can = append(can, x)
		}
	}
	return fmt.Errorf("%s cannot multiply matrices in %s; it has %s", m.GPU.Name, dtype, strings.Join(can, ", "))
}

// Usable is the bytes of a GPU that programs can have.
func (m *Machine) Usable() float64 {
	if v := shown[m.GPU.Name]; v > 0 {
		return v * (1 << 20)
	}
	return float64(m.GPU.Memory)
}

// Collective is the time in seconds of a collective of n ranks that lie stride apart, with all
// groups of the same kind running at once, and how it was found. bytes is the larger buffer.
func (m *Machine) Collective(op sched.Collective, n, stride int, bytes float64) (float64, string) {
	if n <= 1 || bytes <= 0 {
		return 0, "one rank: nothing to send"
	}
	if m.still {
		return 0, "no time"
	}
	if (n-1)*stride >= len(m.gpus) {
		stride = max((len(m.gpus)-1)/(n-1), 1)
	}
	g := group{n, stride}
	key := call{g, op, int64(bytes)}
	if t, ok := m.times[key]; ok {
		return t.seconds, t.how
	}
	var t spoken
	floor, local := m.wire(op, g, bytes)
	simulated := false
	if ring := m.placed(op, g, local, bytes); ring.each > 0 {
		floor, simulated = 0, true
		t = spoken{ring.start + ring.each*bytes,
			fmt.Sprintf("rings of %d ranks %d apart, all %d sister groups at once, simulated on the cluster's links", n, stride, m.sisters(g))}
	} else if model := m.model(g); model != nil {
		p := model.Predict(op, unit.Bytes(bytes))
		t = spoken{p.Time.Seconds(), fmt.Sprintf("NCCL %s %s over %d ranks %d apart, limited by %s", p.Algo, p.Proto, n, stride, p.Limit)}
	} else {
		t = m.byLinks(op, g, local, bytes, floor)
	}
	switch crosses := n*stride > m.Domain; {
	case m.wider > 0 && !crosses && n*stride > 1:
		inside := bytes * float64(n-1) / float64(n) / (m.Inside() * .7)
		if op == sched.AllReduce {
			inside *= 2
		}
		t.seconds = min(t.seconds, inside+15e-6)
	case m.faster > 1 && crosses:
		t.seconds /= m.faster
	}
	if t.seconds < floor {
		t = spoken{floor, fmt.Sprintf("%d ranks of the group in a domain share its NICs with their sister groups: %.0f GB/s",
			local, float64(local)*m.NIC/1e9)}
	}
	t.seconds *= m.longer(Transfer{op, n, stride, bytes, simulated})
	if len(m.times) > 1<<20 {
		clear(m.times)
	}
	m.times[key] = t
	return t.seconds, t.how
}

// model is NCCL's for a group, or nil where it has none.
func (m *Machine) model(g group) *tune.NCCL {
	model, ok := m.nccl[g]
	if !ok {
		set := make([]topo.NodeID, 0, g.n)
		for i := range g.n {
			if at := i * g.stride; at < len(m.gpus) {
				set = append(set, m.gpus[at])
			}
		}
		if len(set) == g.n {
			if m.outline == nil {
				m.outline = tune.OutlineOf(m.graph)
			}
			model, _ = tune.NewNCCL(m.graph, set, m.catalog, tune.NCCLOptions{Outline: m.outline})
		}
		m.nccl[g] = model
	}
	return model
}

// Placement decides where a group has one rank in each of many domains: its ring has one NIC a domain, and its
// sister groups have the others. Such rings are simulated on the cluster's own links, all sisters at once, at
// two sizes, and times in between follow a line. Small buffers, which are no matter of links, and groups that would
// take long to simulate stay with NCCL's model.
const (
	leastPlaced = 16 << 20 // bytes
	mostPlaced  = 1 << 17  // actions of a simulation
)

// sisters is how many groups of a kind lie side by side within one stride.
func (m *Machine) sisters(g group) int {
	return min(g.stride, len(m.gpus)-(g.n-1)*g.stride)
}

// placed is the law of a simulated ring. Reduce-scatter and all-gather send the same bytes over the same links, and an
// all-reduce is both, so one simulation serves all three.
func (m *Machine) placed(op sched.Collective, g group, local int, bytes float64) law {
	if bytes < leastPlaced {
		return law{}
	}
	times := 1.0
	switch op {
	case sched.AllReduce:
		times = 2
	case sched.ReduceScatter, sched.AllGather:
	default:
		return law{}
	}
	if m.wider > 0 || m.faster > 1 { // a machine that nobody has
		return law{}
	}
	x, ok := m.rings[g]
	if !ok {
		if m.rings == nil {
			m.rings = map[group]law{}
		}
		x = m.ring(g, local)
		m.rings[g] = x
	}
	return law{times * x.start, times * x.each}
}

// ring simulates the rings of a group and its sisters at two sizes.
func (m *Machine) ring(g group, local int) law {
	if local != 1 || g.n < 3 || g.stride < m.HostGPUs || g.n*g.stride <= m.Domain || m.sisters(g)*g.n*(g.n-1) > mostPlaced {
		return law{}
	}
	var at [2]float64
	for i, bytes := range []unit.Bytes{64 * unit.MiB, unit.GiB} {
		t, err := m.simulate(g.n, g.stride, bytes)
		if err != nil {
			return law{}
		}
		at[i] = t
	}
	each := (at[1] - at[0]) / float64(unit.GiB-64*unit.MiB)
	return law{max(at[0]-each*float64(64*unit.MiB), 0), each}
}

// simulate runs the rings of all groups of n ranks that lie stride apart at once on the cluster's links, and gives the seconds
// until the last is done.
func (m *Machine) simulate(n, stride int, bytes unit.Bytes) (float64, error) {
	ring, err := algo.Find("ring")
	if err != nil {
		return 0, err
	}
	var jobs []sim.Job
	for k := range m.sisters(group{n, stride}) {
		set := make([]topo.NodeID, n)
		for i := range set {
			set[i] = m.gpus[i*stride+k]
		}
		p, err := sim.Wish{}.ProgramOn(ring, m.graph, sched.ReduceScatter, set, bytes)
		if err != nil {
			return 0, err
		}
		jobs = append(jobs, sim.Job{Program: p, Size: bytes, Place: set})
	}
	// Rings here are short: to run every step costs less than to look for equal parts of a large cluster, once for each sister.
	if m.fabric == nil {
		m.fabric, err = sim.NewFabric(m.graph, sim.Options{Catalog: m.catalog, Measured: true, Unfolded: true,
			Costs: sim.DefaultCosts(m.graph, m.catalog)})
		if err != nil {
			return 0, err
		}
	}
	r, err := m.fabric.Run(jobs)
	if err != nil {
		return 0, err
	}
	return r.Time.Seconds(), nil
}

// byLinks is the time of a collective on GPUs whose library nobody fitted here: 85% of the wire between domains, and inside of one 70% of a
// GPU's own links, which is what RCCL reaches on eight MI300X (about 310 of 448 GB/s). Where GPUs are joined one by one, a
// group has the links among its own ranks alone.
func (m *Machine) byLinks(op sched.Collective, g group, local int, bytes, floor float64) spoken {
	own := m.Inside()
	if peers := m.HostGPUs - 1; m.GPU.Links == peers && peers > 0 {
		own *= float64(local-1) / float64(peers)
	}
	inside := 0.0
	if local > 1 && own > 0 {
		inside = bytes * float64(local-1) / float64(local) / (own * .7)
		if op == sched.AllReduce {
			inside *= 2
		}
	}
	if floor/.85 > inside {
		return spoken{floor/.85 + 20e-6, fmt.Sprintf("wire rate at 85%% over %d ranks %d apart", g.n, g.stride)}
	}
	return spoken{inside + 20e-6, fmt.Sprintf("70%% of the %.0f GB/s of links among %d ranks of a domain", own/1e9, local)}
}

// wire is the least time of a collective when all sister groups send at once, and how many ranks of a
// group lie in one domain: each of them has its own share of the NICs and no more.
func (m *Machine) wire(op sched.Collective, g group, bytes float64) (float64, int) {
	local := min(max(m.Domain/g.stride, 1), g.n)
	if g.n*g.stride <= m.Domain || m.NIC == 0 {
		return 0, local
	}
	n := float64(g.n)
	share := (n - 1) / n
	switch op {
	case sched.AllReduce:
		share *= 2
	case sched.AllToAll:
		// What stays in the domain does not cross a NIC; every rank has its own share.
		return bytes * (n - float64(local)) / n / (m.NIC * .93), local
	}
	return bytes * share / (float64(local) * m.NIC * .96), local
}

// Send is the time of bytes from a rank to the one stride further.
func (m *Machine) Send(stride int, bytes float64) (float64, string) {
	if bytes <= 0 || m.still {
		return 0, ""
	}
	if stride < m.Domain || m.NIC == 0 {
		rate := m.Inside()
		return 10e-6 + bytes/(rate*.75), fmt.Sprintf("inside a domain at 75%% of %.0f GB/s", rate/1e9)
	}
	return 15e-6 + bytes/(m.NIC*.9), fmt.Sprintf("through a NIC at 90%% of %.0f GB/s", m.NIC/1e9)
}

// Inside is what a GPU sends over its own links, in bytes a second, or over PCIe where it has none.
func (m *Machine) Inside() float64 {
	in := m.graph.Injection(m.gpus[0])
	if in.Accelerator > 0 {
		return float64(in.Accelerator)
	}
	return float64(in.PCIe)
}

// Places is the cluster's graph and the GPUs that the plan uses, by rank.
func (m *Machine) Places() (*topo.Graph, []topo.NodeID) { return m.graph, m.gpus }

// Catalog holds the facts of the cluster's parts.
func (m *Machine) Catalog() *catalog.Catalog { return m.catalog }
