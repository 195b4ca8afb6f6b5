package draw

import (
	"fmt"
	"testing"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// The graphs drawn in the tests are made here by hand, so that these tests
// need no other package; cluster presets are drawn besides.

var (
	ndr   = topo.Class{Kind: topo.InfiniBand, Gen: "ndr", Lanes: 4, Rate: 50e9, Latency: 600 * unit.Nanosecond}
	nvl4  = topo.Class{Kind: topo.NVLink, Gen: "nvlink4", Lanes: 2, Rate: 26.5625e9}
	nvl5  = topo.Class{Kind: topo.NVLink, Gen: "nvlink5", Lanes: 2, Rate: 50e9}
	pcie5 = topo.Class{Kind: topo.PCIe, Gen: "pcie5", Lanes: 16, Rate: 63.015e9}
	upi   = topo.Class{Kind: topo.SMP, Gen: "upi", Lanes: 20, Rate: 62.4e9}
	ici   = topo.Class{Kind: topo.ICI, Gen: "ici4", Lanes: 1, Rate: 50e9}
	roce  = topo.Class{Kind: topo.Ethernet, Gen: "200gbe", Lanes: 4, Rate: 25e9}
)

func must(t testing.TB, b *topo.Builder) *topo.Graph {
	t.Helper()
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// slim adds a host with GPUs and NICs but no PCIe tree.
func slim(b *topo.Builder, name, model string, pod int32, gpus, nics, planes int) (nic []topo.NodeID) {
	h := b.Host(topo.Host{Name: name, Model: model, Pod: pod, Rack: topo.None})
	for i := range gpus {
		n := topo.Part(topo.GPU, h, fmt.Sprintf("gpu%d", i))
		n.Model = "H100-SXM"
		b.Node(n)
	}
	for i := range nics {
		for p := range planes {
			n := topo.Part(topo.NIC, h, fmt.Sprintf("nic%d", i*planes+p))
			n.Fabric, n.Rail = 0, int16(i)
			if planes > 1 {
				n.Plane = int8(p)
			}
			nic = append(nic, b.Node(n))
		}
	}
	return nic
}

func sw(b *topo.Builder, name, model string, tier uint8, rail int16, plane int8, pod int32) topo.NodeID {
	n := topo.Part(topo.Switch, topo.None, name)
	n.Tier, n.Fabric, n.Rail, n.Plane, n.Pod, n.Model = tier, 0, rail, plane, pod, model
	return b.Node(n)
}

// railFabric has pods of that number of hosts with one leaf a rail and plane, pod spines if
// midPerRail is set, and a top tier joined to every switch below.
func railFabric(t testing.TB, name string, pods, hosts, planes, midPerRail, tops int) *topo.Graph {
	b := topo.NewBuilder(name)
	b.Fabric(topo.Fabric{Name: "compute", Family: topo.Clos})
	c := b.Class(ndr)
	plane := func(p int) int8 {
		if planes == 1 {
			return topo.None
		}
		return int8(p)
	}
	top := make([][]topo.NodeID, planes)
	topTier, topName := uint8(2), "spine"
	if midPerRail > 0 {
		topTier, topName = 3, "core"
	}
	for p := range planes {
		for i := range tops {
			top[p] = append(top[p], sw(b, fmt.Sprintf("%s%d", topName, p*tops+i), "QM9700", topTier, topo.None, plane(p), topo.None))
		}
	}
	for pod := range pods {
		var leaf []topo.NodeID
		for r := range 8 {
			for p := range planes {
				leaf = append(leaf, sw(b, fmt.Sprintf("leaf%d", (pod*8+r)*planes+p), "QM9700", 1, int16(r), plane(p), int32(pod)))
			}
		}
		for h := range hosts {
			for i, n := range slim(b, fmt.Sprintf("n%d", pod*hosts+h), "dgx-h100", int32(pod), 8, 8, planes) {
				b.Link(topo.Link{A: n, B: leaf[i], Class: c})
			}
		}
		for i, l := range leaf {
			r, p := i/planes, i%planes
			if midPerRail == 0 {
				for _, s := range top[p] {
					b.Link(topo.Link{A: l, B: s, Class: c, Count: 2})
				}
				continue
			}
			for m := range midPerRail {
				s := sw(b, fmt.Sprintf("spine%d", (pod*8+r)*midPerRail+m), "QM9700", 2, int16(r), plane(p), int32(pod))
				b.Link(topo.Link{A: l, B: s, Class: c, Count: 8})
				for k, up := range top[p] {
					if k%midPerRail == m {
						b.Link(topo.Link{A: s, B: up, Class: c})
					}
				}
			}
		}
	}
	return must(t, b)
}

// fatTree has leaves of that number of hosts, one NIC a host, without pods or rails.
func fatTree(t testing.TB, leaves, hosts, spines int) *topo.Graph {
	b := topo.NewBuilder(fmt.Sprintf("fat-tree %d", leaves*hosts))
	b.Fabric(topo.Fabric{Name: "ib", Family: topo.Clos})
	c := b.Class(ndr)
	var top []topo.NodeID
	for i := range spines {
		top = append(top, sw(b, fmt.Sprintf("spine-%d", i), "QM9700", 2, topo.None, topo.None, topo.None))
	}
	for i := range leaves {
		l := sw(b, fmt.Sprintf("leaf-%d", i), "QM9700", 1, topo.None, topo.None, topo.None)
		for h := range hosts {
			nic := slim(b, fmt.Sprintf("node%03d", i*hosts+h), "", topo.None, 0, 1, 1)
			b.Link(topo.Link{A: nic[0], B: l, Class: c})
		}
		for _, s := range top {
			b.Link(topo.Link{A: l, B: s, Class: c})
		}
	}
	return must(t, b)
}

// nvl72 is one rack: 18 trays of 4 GPUs, each joined to each of 18 switch chips.
func nvl72(t testing.TB, racks int) *topo.Graph {
	b := topo.NewBuilder("gb200-nvl72")
	c := b.Class(nvl5)
	for r := range racks {
		var chips []topo.NodeID
		for i := range 18 {
			n := topo.Part(topo.NVSwitch, topo.None, fmt.Sprintf("rack%d-nvs%d", r, i))
			n.Tier, n.Rack, n.Model = 1, int32(r), "NVSwitch5"
			chips = append(chips, b.Node(n))
		}
		for h := range 18 {
			host := b.Host(topo.Host{Name: fmt.Sprintf("rack%d-tray%d", r, h), Model: "gb200-tray", Pod: topo.None, Rack: int32(r)})
			for i := range 4 {
				n := topo.Part(topo.GPU, host, fmt.Sprintf("gpu%d", i))
				n.Model = "B200"
				id := b.Node(n)
				for _, s := range chips {
					b.Link(topo.Link{A: id, B: s, Class: c})
				}
			}
		}
	}
	return must(t, b)
}

// irregular has switches without tiers, a leaf-to-leaf link and a host at a spine.
func irregular(t testing.TB) *topo.Graph {
	b := topo.NewBuilder("imported")
	b.Fabric(topo.Fabric{Name: "ib0", Family: topo.Irregular})
	c, slow := b.Class(ndr), b.Class(roce)
	var s []topo.NodeID
	for i := range 6 {
		s = append(s, sw(b, fmt.Sprintf("SwitchX -  Mellanox Technologies %c", 'A'+i), "", 0, topo.None, topo.None, topo.None))
	}
	for i := range 9 {
		nic := slim(b, fmt.Sprintf("compute-%c-%d", 'a'+i%3, i*7), "", topo.None, 0, 1, 1)
		b.Link(topo.Link{A: nic[0], B: s[i%4], Class: c})
	}
	for i := range 4 {
		b.Link(topo.Link{A: s[i], B: s[4], Class: c, Count: 3})
		b.Link(topo.Link{A: s[i], B: s[5], Class: slow})
	}
	b.Link(topo.Link{A: s[0], B: s[1], Class: slow})
	return must(t, b)
}

func pictures(t testing.TB) map[string]*topo.Graph {
	return map[string]*topo.Graph{
		"rail-1k":    railFabric(t, "rail-1k", 4, 32, 1, 0, 16),
		"rail-16k":   railFabric(t, "rail-16k", 32, 64, 1, 4, 32),
		"hpn":        railFabric(t, "hpn", 15, 128, 2, 0, 60),
		"rail-small": railFabric(t, "rail-small", 1, 4, 1, 0, 4),
		"fat-1k":     fatTree(t, 32, 32, 16),
		"fat-small":  fatTree(t, 4, 8, 2),
		"one-switch": fatTree(t, 1, 16, 0),
		"nvl72":      nvl72(t, 1),
		"nvl72x8":    nvl72(t, 8),
		"irregular":  irregular(t),
	}
}
