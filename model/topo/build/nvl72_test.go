package build

import (
	"math"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
)

// An NVL72 rack: 18 hosts, 72 GPUs with one link to each of 18 chips, all ports
// of the chips in use, 130 TB/s both ways, and 900 GB/s each way between any two.
func TestNVL72Rack(t *testing.T) {
	for _, kind := range []string{"gb200", "gb300"} {
		g, err := NVL72(catalog.Default(), kind, "r0")
		if err != nil {
			t.Fatal(err)
		}
		if h, gpus, chips, cpus := len(g.Hosts), g.Count(topo.GPU), g.Count(topo.NVSwitch), g.Count(topo.CPU); h != 18 || gpus != 72 ||
			chips != 18 || cpus != 36 {
			t.Errorf("%s: %d hosts, %d GPUs, %d chips, %d CPUs", kind, h, gpus, chips, cpus)
		}
		var total unit.Rate
		g.Each(topo.GPU, func(id topo.NodeID, n *topo.Node) {
			for _, e := range g.Edges(id) {
				if g.Class(e.Link).Kind != topo.NVLink {
					continue
				}
				if g.Nodes[e.Peer].Kind != topo.NVSwitch || g.Nodes[e.Peer].Host != topo.None || g.Links[e.Link].Count != 1 {
					t.Errorf("%s: %s", kind, g.LinkName(e.Link))
				}
				total += g.Rate(e.Link)
			}
			if got := accelerators(g, id); got != 18 {
				t.Errorf("%s: %s has %d links", kind, g.NodeName(id), got)
			}
		})
		if got := total.BothWays(); got != 72*1.8e12 {
			t.Errorf("%s: %s, want 129.6 TB/s", kind, got)
		}
		g.Each(topo.NVSwitch, func(id topo.NodeID, n *topo.Node) {
			if got := accelerators(g, id); got != 72 || n.Ports != 72 {
				t.Errorf("%s: %s uses %d of %d ports", kind, n.Name, got, n.Ports)
			}
		})
		from, to := node(t, g, "r0-t0:gpu0"), node(t, g, "r0-t17:gpu3")
		way, err := g.Route(topo.Flow{From: from, To: to}, nil)
		if err != nil || len(way) != 36 || math.Abs(float64(between(g, way)-900e9)) > 1e-6*900e9 {
			t.Errorf("%s: %d links at %s, %v", kind, len(way), between(g, way), err)
		}
		if got := g.Connection(from, to).String(); got != "NV18" {
			t.Errorf("%s: GPUs of two trays are %s", kind, got)
		}
	}
	if _, err := NVL72(catalog.Default(), "dgx-1v", "r0"); err == nil || !strings.Contains(err.Error(), "18 links") {
		t.Errorf("a rack of DGX-1: %v", err)
	}
}
