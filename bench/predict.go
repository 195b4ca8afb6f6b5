package bench

import (
	"fmt"

	"github.com/weft-fabric/weft/comm"
	"github.com/weft-fabric/weft/cost"
	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/sim"
	"github.com/weft-fabric/weft/topo"
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
//	rank ── memory of the host ── rank      at the rate of messages inside the host, or of a pass over memory where it is shared
//	          │
//	         NIC ── switch ── NIC           at the rate of the host's way out
//
// A message costs its sender what one more message was measured to cost, and is on its way for the rest of the time of a small one. Adding
// and copying go at the measured pace of memory; ranks that share cores share it.
func (r *Ran) Predict(bytes int64) (unit.Time, error) {
	p, err := sched.Parse(r.Program)
	if err != nil {
		return 0, err
	}
	g, ranks, err := r.graph()
	if err != nil {
		return 0, err
	}
	l := &r.Links
	local := 0
	for _, h := range r.Hosts {
		if h == r.Hosts[0] {
			local++
		}
	}
	crowd := max(1, 1/l.Own(local))
	// A message inside a host costs its sender least; what one between hosts costs more passes on its way.
	post := l.Far.Post
	if local > 1 {
		post = l.Near.Post
	}
	o := sim.Options{Costs: sim.Costs{
		Local: cost.Span(post * crowd), Net: cost.Span(l.Far.Alpha + max(2*l.Far.Post-post, 0)*crowd),
		Memory: unit.Rate(1e6 / (l.Paces[len(l.Paces)/2].Byte * crowd)),
	}}
	res, err := sim.Run(g, []sim.Job{{Program: p, Size: unit.Bytes(bytes), Place: ranks}}, o)
	if err != nil {
		return 0, err
	}
	return res.Time, nil
}

// graph is the cluster, and where each rank is on it.
func (r *Ran) graph() (*topo.Graph, []topo.NodeID, error) {
	l := &r.Links
	rate := func(usPerByte float64) unit.Rate {
		if usPerByte <= 0 {
			return 100 * unit.GBps
		}
		return unit.Rate(1e6 / usPerByte)
	}
	near := l.Near.Beta
	if l.Kind != "tcp" { // memory is shared: a byte is read once and written once
		near = 3 * l.Paces[len(l.Paces)/2].Byte
	}
	b := topo.NewBuilder("measured")
	inside := b.Class(topo.Class{Kind: topo.PCIe, Gen: "memory", Lanes: 1, Rate: rate(near), Latency: cost.Span(l.Near.Alpha / 2)})
	outside := b.Class(topo.Class{Kind: topo.Ethernet, Gen: "measured", Lanes: 1, Rate: rate(l.Far.Wire)})
	fabric := b.Fabric(topo.Fabric{Name: "net"})
	leaf := topo.Part(topo.Switch, topo.HostID(topo.None), "switch")
	leaf.Tier, leaf.Fabric = 1, fabric
	sw := b.Node(leaf)
	cpus := map[int]topo.NodeID{}
	at := map[int]topo.HostID{}
	names := make([]string, len(r.Hosts))
	for rank, h := range r.Hosts {
		if _, known := cpus[h]; !known {
			at[h] = b.Host(topo.Host{Name: fmt.Sprintf("h%d", h)})
			cpus[h] = b.Node(topo.Part(topo.CPU, at[h], "memory"))
			part := topo.Part(topo.NIC, at[h], "nic0")
			part.Fabric = fabric
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
