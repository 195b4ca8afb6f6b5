// Package paths lists the paths between two endpoints and ranks them by modelled
// bandwidth, latency and message time.
//
//	n0:gpu0 ═ nvs0…3 ═ n0:gpu5                            nvswitch
//	n0:gpu0 ─ pex ─ root ─ cpu ─ root ─ pex ─ n0:gpu5     pcie, peer to peer
//	n0:gpu0 ─ … ─ cpu memory ─ … ─ n0:gpu5                staged
//	n0:gpu0 ─ pex ─ nic0 ─ leaf0 ─ … ─ nic5 ─ pex ─ gpu5  rdma
//	n0:gpu0 ═ gpu5 ─ nic5 ─ leaf5 ─ nic5 ─ n1:gpu5        rdma-pxn
//	n0:gpu0 ─ cpu ─ nic ─ … ─ nic ─ cpu ─ n1:gpu5         sockets
//
// No order of mechanisms is built in. NVLink before PCIe, PCIe before RDMA, and RDMA
// before sockets is an outcome, and on some machines and for some sizes it differs.
//
// The time of a message of n bytes over a path is
//
//	Latency + n / Expected + sum of min(n, Chunk) / s, s in Stores
//
// where Stores has a rate for every point at which a piece must arrive in full before
// it continues: a staging buffer, another GPU's memory, a socket's buffer. Pieces are
// pipelined, so the slowest leg counts in full and each other leg for one piece.
package paths

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
)

// Mechanism says how bytes are moved along a path.
type Mechanism string

// The mechanisms.
const (
	NVLink     Mechanism = "nvlink"      // direct NVLinks
	NVSwitch   Mechanism = "nvswitch"    // NVLinks through switches, striped
	XGMI       Mechanism = "xgmi"        // AMD Infinity Fabric
	ICI        Mechanism = "ici"         // along a torus of chips
	C2C        Mechanism = "c2c"         // NVLink chip-to-chip between a CPU and its GPU
	Relay      Mechanism = "gpu-relay"   // direct links by way of a third GPU
	PCIe       Mechanism = "pcie"        // peer to peer, or between a device and host memory
	Socket     Mechanism = "smp"         // between the memories of two sockets
	Staged     Mechanism = "host-staged" // copied into host memory and out again
	RDMA       Mechanism = "rdma"        // the endpoint's own NIC and the fabric
	RDMAPXN    Mechanism = "rdma-pxn"    // over the accelerators' network to the NIC on the destination's rail
	RDMAPlanes Mechanism = "rdma-planes" // several NICs in parallel planes at once
	Sockets    Mechanism = "sockets"     // TCP through the kernel
)

// Term is one part of a path's latency.
type Term struct {
	What string
	Time unit.Time
}

// Path is one way between two endpoints.
type Path struct {
	Mechanism Mechanism
	Detail    string // what sets it apart from others of its mechanism: "PXB", "rail 0 to rail 5", "plane 1"
	From, To  topo.NodeID
	Hops      []topo.Use // in order; shares add up to 1 wherever bytes part
	Rate      unit.Rate  // bottleneck on the wire
	Expected  unit.Rate  // bottleneck with what was measured of each part
	Loaded    unit.Rate  // Expected when every neighbour sends the same way at the same time
	Latency   unit.Time  // of the first byte: the sum of Terms
	Terms     []Term
	Stores    []unit.Rate // for every place where a piece waits until it is complete, the leg before or after it that is not the slowest
	Limit     string      // the link, or the mechanism, that sets Expected
	Crowd     string      // what is shared when Loaded is less than Expected, else empty
	Count     uint64      // equal-cost ways of which Hops is one
	Reason    string      // why the path ranks where it does

	order int // in which Between found it, to break ties
}

// Chunk is the piece that is stored and forwarded whole: a slot of the buffer
// between two GPUs, NCCL's 4 MiB over 8 slots cut in half as its ring does.
const Chunk = 256 * unit.KiB

// Reference is the message for which Between ranks.
const Reference = 1 * unit.MiB

// Time is how long a message takes over the path on an idle machine.
func (p *Path) Time(size unit.Bytes) unit.Time {
	return p.Latency + size.Over(p.Expected) + p.wait(size)
}

// wait is the part of Time that pieces spend waiting to be complete.
func (p *Path) wait(size unit.Bytes) unit.Time {
	var t unit.Time
	for _, rate := range p.Stores {
		t += min(size, Chunk).Over(rate)
	}
	return t
}

// Between lists the ways from one endpoint (GPU, CPU or NIC) to another, ranked
// for a message of the Reference size. Only ways that the graph has are listed;
// at least one, or an error.
func Between(g *topo.Graph, a, b topo.NodeID, c *catalog.Catalog) ([]Path, error) {
	for _, n := range []topo.NodeID{a, b} {
		if n < 0 || int(n) >= len(g.Nodes) {
			return nil, fmt.Errorf("node number %d; the graph has %d nodes", n, len(g.Nodes))
		}
		if k := g.Nodes[n].Kind; k != topo.GPU && k != topo.CPU && k != topo.NIC {
			return nil, fmt.Errorf("%s is a %s; a path joins two of gpu, cpu, nic", g.NodeName(n), k)
		}
	}
	if a == b {
		return nil, fmt.Errorf("%s is both ends; a path joins two different nodes", g.NodeName(a))
	}
	if c == nil {
		return nil, errors.New("no catalogue; latencies and efficiencies come from it")
	}
	f := &finder{g: g, c: c, a: a, b: b}
	f.accelerated()
	f.relayed()
	f.inside()
	f.staged()
	f.networked()
	if len(f.found) == 0 {
		return nil, fmt.Errorf("%w from %s to %s: neither accelerator links, nor PCIe, nor NICs of a common fabric",
			topo.ErrUnreachable, g.NodeName(a), g.NodeName(b))
	}
	Rank(f.found, Reference)
	return f.found, nil
}

// Rank sorts paths by the time that a message of the given size takes, shortest
// first, and says why each stands where it does. Among equal times the path with
// more bandwidth left under load comes first.
func Rank(paths []Path, size unit.Bytes) {
	slices.SortStableFunc(paths, func(x, y Path) int {
		return cmp.Or(cmp.Compare(x.Time(size), y.Time(size)), cmp.Compare(y.Loaded, x.Loaded), cmp.Compare(x.order, y.order))
	})
	for i := range paths {
		if i == 0 {
			paths[i].Reason = fmt.Sprintf("shortest time for %s: %s at %s after %s", size, paths[i].Time(size), paths[i].Expected, paths[i].Latency)
			continue
		}
		paths[i].Reason = paths[i].against(&paths[i-1], size)
	}
}

// against says in a sentence why p takes longer than the path above it.
func (p *Path) against(above *Path, size unit.Bytes) string {
	later := p.Time(size) - above.Time(size)
	wait := p.Latency - above.Latency
	store := p.wait(size) - above.wait(size)
	move := size.Over(p.Expected) - size.Over(above.Expected)
	switch {
	case later == 0:
		return fmt.Sprintf("as fast as %s", above.name())
	case move >= wait && move >= store:
		return fmt.Sprintf("%s longer than %s: %s against %s, limited by %s", later, above.name(), p.Expected, above.Expected, p.Limit)
	case wait >= store:
		most := Term{}
		for _, t := range p.Terms {
			if t.Time > most.Time && !slices.Contains(above.Terms, t) {
				most = t
			}
		}
		return fmt.Sprintf("%s longer than %s: %s more latency, most of it %s", later, above.name(), wait, most.What)
	default:
		return fmt.Sprintf("%s longer than %s: stored and forwarded %s on the way", later, above.name(), times(len(p.Stores)))
	}
}

func (p *Path) name() string {
	if p.Detail == "" {
		return string(p.Mechanism)
	}
	return fmt.Sprintf("%s (%s)", p.Mechanism, p.Detail)
}

func times(n int) string {
	switch n {
	case 1:
		return "once"
	case 2:
		return "twice"
	}
	return fmt.Sprintf("%d times", n)
}
