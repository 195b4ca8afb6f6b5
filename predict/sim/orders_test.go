package sim

import (
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

func placedRing(t *testing.T, preset string, params map[string]int, n int) (*topo.Graph, *Result) {
	t.Helper()
	c, err := cluster.Preset(preset, params)
	if err != nil {
		t.Fatal(err)
	}
	ring, err := algo.Find("ring")
	if err != nil {
		t.Fatal(err)
	}
	s := Spec(c.Graph, sched.AllReduce, n)
	s.Orders = Orders(c.Graph, n, c.Catalog)
	s.Channels = len(s.Orders)
	p, err := ring.Program(s)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Collective(c.Graph, p, unit.GiB, Options{Catalog: c.Catalog, Measured: true, Costs: DefaultCosts(c.Graph, c.Catalog)})
	if err != nil {
		t.Fatal(err)
	}
	return c.Graph, r
}

// V100 hybrid cube mesh, 1 GiB on eight GPUs: six rings, measured 134.5 GB/s.
func TestRingsOfTheCubeMesh(t *testing.T) {
	_, r := placedRing(t, "dgx-1v", nil, 8)
	if bus := float64(r.BusBW) / 1e9; bus < 134.5*0.92 || bus > 134.5*1.05 {
		t.Errorf("bus %.1f GB/s, measured 134.5", bus)
	}
}

// Rings over hosts use every NIC alike: DGX H100 reaches 370 to 380 GB/s.
func TestRingsUseEveryNIC(t *testing.T) {
	for _, hosts := range []int{2, 4, 16} {
		g, r := placedRing(t, "rail", map[string]int{"hosts": hosts}, 8*hosts)
		if bus := float64(r.BusBW) / 1e9; bus < 320 || bus > 385 {
			t.Errorf("%d hosts: bus %.1f GB/s; %s", hosts, bus, r.Limit)
		}
		for _, tier := range r.Tiers() {
			if tier.Tier.String() == "NIC cables" && tier.Wires != 2*g.Count(topo.NIC)*8/12 {
				t.Errorf("%d hosts: %d directions of NIC cables carry something", hosts, tier.Wires)
			}
			if tier.Tier.String() == "spine links" && tier.Bytes > 0 {
				t.Errorf("%d hosts: %s over the spines, though every other host is passed backwards", hosts, tier.Bytes)
			}
		}
	}
}
