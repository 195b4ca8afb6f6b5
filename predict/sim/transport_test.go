package sim

import (
	"math"
	"testing"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
)

// twoHosts are two GPUs, each with a NIC of a generation on PCIe 4, under one switch.
func twoHosts(tb testing.TB, gen string) *topo.Graph {
	tb.Helper()
	c := catalog.Default()
	class := func(gen string) topo.Class {
		l, err := c.Link(gen)
		if err != nil {
			tb.Fatal(err)
		}
		return l.Class(0)
	}
	b := topo.NewBuilder("two")
	fabric := b.Fabric(topo.Fabric{Name: "net", Family: topo.Clos})
	sw := topo.Part(topo.Switch, topo.None, "leaf0")
	sw.Fabric, sw.Tier = fabric, 1
	var ends []topo.NodeID
	for _, name := range []string{"n0", "n1"} {
		h := b.Host(topo.Host{Name: name, Pod: topo.None, Rack: topo.None})
		gpu := topo.Part(topo.GPU, h, "gpu0")
		gpu.Model = "A100-SXM-80GB"
		nic := topo.Part(topo.NIC, h, "nic0")
		nic.Fabric = fabric
		pex := b.Node(topo.Part(topo.PCIeSwitch, h, "pex0"))
		at := b.Node(nic)
		b.Link(topo.Link{A: b.Node(gpu), B: pex, Class: b.Class(class("pcie4"))})
		b.Link(topo.Link{A: pex, B: at, Class: b.Class(class("pcie4"))})
		ends = append(ends, at)
	}
	leaf := b.Node(sw)
	for _, n := range ends {
		b.Link(topo.Link{A: n, B: leaf, Class: b.Class(class(gen))})
	}
	g, err := b.Graph()
	if err != nil {
		tb.Fatal(err)
	}
	return g
}

// a guide's table of transports, per port: what it says, what weft computes, and why
// they differ. Its bandwidths take bits for bytes or add up ports; its latencies
// are right in their order but for InfiniBand's 2 us, which leaves out PCIe at
// both ends.
func TestS0TransportTable(t *testing.T) {
	for _, c := range []struct {
		name, gen string
		transport Transport
		says      unit.Rate
		rate      float64 // GB/s, computed
		latency   [2]unit.Time
		why       string
	}{
		{"TCP, 10 GbE", "10gbe", TCP, 10 * unit.GBps, 1.0, [2]unit.Time{50 * unit.Microsecond, 100 * unit.Microsecond},
			"10 Gb/s are 1.25 GB/s, of which sockets reach 80%"},
		{"TCP, 100 GbE", "100gbe", TCP, 80 * unit.GBps, 10, [2]unit.Time{50 * unit.Microsecond, 60 * unit.Microsecond},
			"100 Gb/s are 12.5 GB/s; the CPU's copies end at 10"},
		{"RoCE, 100 GbE", "100gbe", RDMA, 90 * unit.GBps, 12, [2]unit.Time{unit.Microsecond, 10 * unit.Microsecond},
			"96% of 12.5 GB/s; 90 would be eight ports"},
		{"InfiniBand HDR", "hdr", RDMA, 180 * unit.GBps, 24, [2]unit.Time{unit.Microsecond, 5 * unit.Microsecond},
			"PCIe 4 x16 reaches 24 GB/s, as the port does; 180 is DGX A100's eight ports less overhead"},
	} {
		g := twoHosts(t, c.gen)
		o := Options{Measured: true, Transport: c.transport, Costs: Costs{Net: netPost}}
		big := simulate(t, g, o, pair(t, g, "n0:gpu0", "n1:gpu0", unit.GB))
		small := simulate(t, g, o, pair(t, g, "n0:gpu0", "n1:gpu0", 8))
		got := float64(big.AlgBW) / 1e9
		cpu := 0.0
		for _, u := range big.Tiers() {
			if u.Tier == Sockets {
				cpu = u.Most
			}
		}
		t.Logf("%-15s document %s, weft %.3g GB/s, latency %s, CPU copying %.0f%% of the time: %s",
			c.name, c.says, got, small.Time, 100*cpu, c.why)
		if math.Abs(got-c.rate) > 0.02*c.rate {
			t.Errorf("%s: %.3g GB/s, want %.3g", c.name, got, c.rate)
		}
		if small.Time < c.latency[0] || small.Time > c.latency[1] {
			t.Errorf("%s: 8 bytes take %s, want %s to %s", c.name, small.Time, c.latency[0], c.latency[1])
		}
		if (cpu > 0) != (c.transport == TCP) {
			t.Errorf("%s: the CPU copies %.0f%% of the time", c.name, 100*cpu)
		}
	}
}
