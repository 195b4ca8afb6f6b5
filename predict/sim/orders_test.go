package sim

import (
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/hostlist"
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
	s.Orders = Orders(c.Graph, c.Graph.First(topo.GPU, n), c.Catalog)
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

// A job need not fill its last host: as many rings as that has NICs, each at one rail wherever it passes from host to host.
func TestRingsWhereTheLastHostIsNotFull(t *testing.T) {
	c, err := cluster.Preset("rail", map[string]int{"hosts": 13})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{10, 12, 15, 19, 100, 103} {
		orders := Orders(c.Graph, c.Graph.First(topo.GPU, n), c.Catalog)
		if len(orders) != n%8 {
			t.Errorf("%d GPUs: %d rings, not one for each NIC of the last host", n, len(orders))
		}
		enters := map[sched.Rank]bool{}
		for _, order := range orders {
			seen := map[sched.Rank]bool{}
			for i, r := range order {
				seen[r] = true
				if next := order[(i+1)%len(order)]; i+1 < len(order) && next/8 != r/8 && next%8 != r%8 {
					t.Errorf("%d GPUs: from %d to %d a ring crosses rails", n, r, next)
				}
			}
			if enters[order[0]] = true; len(seen) != n || len(order) != n {
				t.Errorf("%d GPUs: a ring passes %d of them in %d steps", n, len(seen), len(order))
			}
		}
		if len(enters) != len(orders) {
			t.Errorf("%d GPUs: %d rings enter at %d GPUs", n, len(orders), len(enters))
		}
	}
	if _, r := placedRing(t, "rail", map[string]int{"hosts": 13}, 100); float64(r.BusBW)/1e9 < 185 {
		t.Errorf("bus %s over four NICs of 48 GB/s; %s", r.BusBW, r.Limit)
	}
}

// Ranks on chosen GPUs get the rings of the machine as the first GPUs do: other hosts, parts of hosts, and GPUs of one host.
func TestRingsOnChosenGPUs(t *testing.T) {
	busOf := func(preset string, hosts int, names string) float64 {
		t.Helper()
		var params map[string]int
		if hosts > 0 {
			params = map[string]int{"hosts": hosts}
		}
		c, err := cluster.Preset(preset, params)
		if err != nil {
			t.Fatal(err)
		}
		list, err := hostlist.Expand(names)
		if err != nil {
			t.Fatal(err)
		}
		var gpus []topo.NodeID
		for _, name := range list {
			id, err := c.Graph.Lookup(name)
			if err != nil {
				t.Fatal(err)
			}
			gpus = append(gpus, id)
		}
		ring, err := algo.Find("ring")
		if err != nil {
			t.Fatal(err)
		}
		p, err := Wish{}.PlacedOn(ring, c.Graph, sched.AllReduce, gpus, unit.GiB, c.Catalog)
		if err != nil {
			t.Fatal(err)
		}
		at, err := PlaceOn(c.Graph, p, gpus)
		if err != nil {
			t.Fatal(err)
		}
		r, err := Run(c.Graph, []Job{{Program: p, Size: unit.GiB, Place: at}}, Options{Catalog: c.Catalog, Measured: true})
		if err != nil {
			t.Fatal(err)
		}
		return float64(unit.GiB) / r.Time.Seconds() * 2 * float64(len(gpus)-1) / float64(len(gpus)) / 1e9
	}
	for _, c := range []struct {
		preset string
		hosts  int
		names  string
		bus    float64
	}{
		{"rail", 4, "n[1,3]:gpu[0-7]", 8 * 48},
		{"rail", 4, "n[0-3]:gpu[2-5]", 4 * 48},
		{"rail", 4, "n[1-2]:gpu[0-7],n3:gpu[0-2]", 3 * 48},
		{"rail", 4, "n0:gpu[0-3],n1:gpu[0-1],n2:gpu[0-3]", 2 * 48}, // a host in the middle has fewer
		{"dgx-1v", 0, "n0:gpu[0,2,3]", 2 * 22.4},
	} {
		if bus := busOf(c.preset, c.hosts, c.names); bus < .93*c.bus || bus > 1.01*c.bus {
			t.Errorf("%s on %s: bus %.1f GB/s, not %.1f", c.names, c.preset, bus, c.bus)
		}
	}
}
