package bench

import (
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/comm"
	"github.com/weft-fabric/weft/cost"
	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/sim"
	"github.com/weft-fabric/weft/topo"
	"github.com/weft-fabric/weft/topo/catalog"
	"github.com/weft-fabric/weft/unit"
)

// Ran is what an operation ran by: the program, the links as the ranks measured them, and where the ranks are.
type Ran struct {
	Program string     `json:"program"` // its text
	Name    string     `json:"name"`
	Links   cost.Links `json:"links"`
	Hosts   []int      `json:"hosts"` // by rank
}

// ran asks a communicator.
func ran(c *comm.Comm, cfg *Config, bytes int64) (*Ran, error) {
	p := cfg.program
	if p == nil {
		var err error
		if p, err = c.Chosen(cfg.Op.Collective, cfg.Root, bytes); err != nil {
			return nil, err
		}
	}
	return &Ran{Program: p.String(), Name: p.Name, Links: *c.Links(), Hosts: c.Hosts()}, nil
}

// Predict simulates what ran on a cluster made of the measured links:
//
//	rank ── memory of the host ── rank      what the processors of both do for a message
//	          │
//	         NIC ── switch ── NIC           at the rate of the host's way out
//
// Ranks share the cores of their machine (sim.Processors): where ranks are many or hosts are namespaces, cores are what there is too
// little of. repeat is how many operations were measured one after another: a rank that is done with its part goes on to the next, so
// that the root of a broadcast is ahead of the others. What is given is the time of one.
func (r *Ran) Predict(bytes int64, repeat int) (unit.Time, error) {
	p, err := sched.Parse(r.Program)
	if err != nil {
		return 0, err
	}
	known := *r
	known.Links.Near, known.Links.Far = worked(r.Links.Near), worked(r.Links.Far)
	r = &known
	g, ranks, err := r.graph()
	if err != nil {
		return 0, err
	}
	repeat = min(max(repeat, 1), steady)
	// Transports have room for more messages than programs ask for.
	chunk := bytes / int64(max(p.NumChunks(sched.In), p.NumChunks(sched.Out), 1))
	p.Slots = max(p.Slots, int(min(room/max(chunk, 1), 4*steady)))
	o := sim.Options{Processors: r.processors(bytes), Costs: sim.Costs{Net: cost.Span(max(r.Links.Far.Wake-r.Links.Near.Wake, 0))}, Catalog: chips}
	res, err := sim.Run(g, []sim.Job{{Program: p, Size: unit.Bytes(bytes), Place: ranks, Repeat: repeat}}, o)
	if err != nil {
		return 0, err
	}
	return res.Time / unit.Time(repeat), nil
}

const (
	steady = 16       // operations after which another one takes as long as the one before
	room   = 16 << 20 // bytes that a rank may have under way to another (package tcp)

	// sender is the part of a message's work between hosts that its sender does: it makes the checksum and the packets. Of an all-reduce the kernel's
	// send and checksums are 42% of the processor time, receive and checks 29 (perf record, docs/hosts.md).
	sender = 0.6

	// wasted is how many times as long as cores need large messages take at least where a wire is what holds them back.
	wasted = 3
)

// worked is a link whose work was measured, or follows from times: links that were kept by an earlier version have only these.
func worked(l cost.Link) cost.Link {
	if l.Work == 0 {
		l.Work, l.WorkByte, l.Wake = 2*l.Post, 2*l.Beta, l.Alpha
	}
	return l
}

// widest is the number of ranks of the host that has most.
func (r *Ran) widest() int {
	on := map[int]int{}
	most := 1
	for _, h := range r.Hosts {
		on[h]++
		most = max(most, on[h])
	}
	return most
}

// crowd is how many ranks share a core.
func (r *Ran) crowd() float64 { return max(1, 1/r.Links.Own(r.widest())) }

// pace is what a byte of memory traffic takes of a core, in us, where all ranks of a host pass over buffers of some bytes.
func (r *Ran) pace(bytes int64) float64 {
	pace := r.Links.Paces[0]
	for _, p := range r.Links.Paces[1:] {
		if 3*float64(bytes)*float64(r.widest()) > pace.Traffic {
			pace = p
		}
	}
	return pace.Byte
}

// chips take no time of their own: what messages take on their way was measured as a whole. A way between hosts begins and ends in their memory, too.
var chips = &catalog.Catalog{
	NICs:     map[string]catalog.NIC{measured: {Latency: unit.Picosecond}},
	Switches: map[string]catalog.Switch{measured: {Latency: unit.Picosecond}},
}

const measured = "measured"

// processors are the cores of the machines, and what was measured of their work.
func (r *Ran) processors(bytes int64) *sim.Processors {
	l := &r.Links
	pass := 3e3 * r.pace(bytes) // ns: two loads and a store a byte added up, or a load, a store and the load that it causes a byte copied
	work := func(x cost.Link, sends float64) sim.Work {
		message, byte := x.Work, 1e3*x.WorkByte
		return sim.Work{Send: cost.Span(message * sends), Take: cost.Span(message * (1 - sends)), SendByte: byte * sends, TakeByte: byte * (1 - sends)}
	}
	p := &sim.Processors{Near: work(l.Near, sender), Far: work(l.Far, sender), Sum: pass, Copy: pass}
	if l.Kind != "tcp" { // ranks of a host see one another's memory
		p.Near = work(l.Near, 0)
		p.Near.Shared = true
	}
	hosts := slices.Max(r.Hosts) + 1
	for h := range hosts {
		p.Machine = append(p.Machine, h/max(l.Hosts, 1))
	}
	p.Cores = slices.Repeat([]float64{float64(l.Cores)}, p.Machine[hosts-1]+1)
	return p
}

// wire is what a byte takes of a host's way out, in us: nothing where hosts are namespaces of one machine and its cores are what large messages
// wait for.
func (r *Ran) wire() float64 {
	l := &r.Links
	narrowest := len(r.Hosts)
	on := map[int]int{}
	for _, h := range r.Hosts {
		on[h]++
	}
	for _, n := range on {
		narrowest = min(narrowest, n)
	}
	if l.Hosts > 1 && l.Far.Wire*float64(narrowest) < wasted*l.Far.WorkByte*r.crowd() {
		return 0
	}
	return l.Far.Wire
}

// graph is the cluster, and where each rank is on it.
func (r *Ran) graph() (*topo.Graph, []topo.NodeID, error) {
	rate := func(usPerByte float64) unit.Rate {
		if usPerByte <= 0 {
			return 1000 * unit.GBps
		}
		return unit.Rate(1e6 / usPerByte)
	}
	b := topo.NewBuilder("measured")
	inside := b.Class(topo.Class{Kind: topo.PCIe, Gen: "memory", Lanes: 1, Rate: rate(0), Latency: cost.Span(r.Links.Near.Wake / 2)})
	outside := b.Class(topo.Class{Kind: topo.Ethernet, Gen: "measured", Lanes: 1, Rate: rate(r.wire())})
	fabric := b.Fabric(topo.Fabric{Name: "net"})
	leaf := topo.Part(topo.Switch, topo.HostID(topo.None), "switch")
	leaf.Tier, leaf.Fabric, leaf.Model = 1, fabric, measured
	sw := b.Node(leaf)
	cpus := map[int]topo.NodeID{}
	at := map[int]topo.HostID{}
	names := make([]string, len(r.Hosts))
	for rank, h := range r.Hosts {
		if _, known := cpus[h]; !known {
			at[h] = b.Host(topo.Host{Name: fmt.Sprintf("h%d", h)})
			cpus[h] = b.Node(topo.Part(topo.CPU, at[h], "memory"))
			part := topo.Part(topo.NIC, at[h], "nic0")
			part.Fabric, part.Model = fabric, measured
			nic := b.Node(part)
			b.Link(topo.Link{A: cpus[h], B: nic, Class: b.Class(topo.Class{Kind: topo.PCIe, Gen: "memory", Lanes: 1, Rate: 1000 * unit.GBps}), Count: 1})
			b.Link(topo.Link{A: nic, B: sw, Class: outside, Count: 1})
		}
		names[rank] = fmt.Sprintf("h%d:r%d", h, rank)
		gpu := b.Node(topo.Part(topo.GPU, at[h], fmt.Sprintf("r%d", rank)))
		b.Link(topo.Link{A: cpus[h], B: gpu, Class: inside, Count: 1})
	}
	g, err := b.Graph()
	if err != nil {
		return nil, nil, err
	}
	place := make([]topo.NodeID, len(names))
	for i, name := range names {
		if place[i], err = g.Lookup(name); err != nil {
			return nil, nil, err
		}
	}
	return g, place, nil
}
