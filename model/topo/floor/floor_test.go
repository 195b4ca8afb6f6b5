package floor

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/build"
	"github.com/weft-fabric/weft/model/topo/catalog"
)

// rails is a rail-optimised cluster of DGX H100, perRack hosts a rack; 0 leaves racks open.
func rails(t testing.TB, hosts, pod, perRack int) (*topo.Graph, *catalog.Catalog) {
	t.Helper()
	c := catalog.Default()
	box, err := build.Host(c, "dgx-h100", "dgx-h100")
	if err != nil {
		t.Fatal(err)
	}
	names := make([]string, hosts)
	for i := range names {
		names[i] = fmt.Sprintf("n%d", i)
	}
	g, _, err := build.Cluster{Name: "x", Hosts: []build.Hosts{{Box: box, Names: names, PerRack: perRack}},
		Fabrics: []build.Fabric{build.Clos{Name: "compute", Rails: true, Unit: pod, Leaf: build.Tier{Model: "QM9700"}}}}.Build(c)
	if err != nil {
		t.Fatal(err)
	}
	return g, c
}

// sound checks what holds of every plan: each device stands once, no two share a
// unit, no rack holds or draws more than it may.
func sound(t *testing.T, g *topo.Graph, p *Plan) {
	t.Helper()
	want := len(g.Hosts) + g.Count(topo.Switch)
	seen := map[string]bool{}
	for i, r := range p.Racks {
		taken := map[int]string{}
		watts := 0.0
		for _, at := range r.Devices {
			d := &p.Devices[at]
			if seen[d.Name] || d.Rack != i {
				t.Errorf("%s stands twice, or not where its rack says", d.Name)
			}
			seen[d.Name] = true
			watts += d.Watts
			for u := d.Unit; u < d.Unit+d.Units; u++ {
				if u < 1 || u > p.Intent.Units || taken[u] != "" {
					t.Errorf("%s: unit %d has %s and %q", r.Name, u, d.Name, taken[u])
				}
				taken[u] = d.Name
			}
		}
		if p.Intent.Power > 0 && watts > p.Intent.Power*1.0001 || math.Abs(watts-r.Watts) > 1 {
			t.Errorf("%s draws %g, says %g, may %g", r.Name, watts, r.Watts, p.Intent.Power)
		}
	}
	if len(seen) != want {
		t.Errorf("%d devices stand, the graph has %d", len(seen), want)
	}
}

// TestRacksHoldWhatTheyMay: by height five DGX H100 fit into 48 units less two, by 35 kW three, and the plan keeps to it.
func TestRacksHoldWhatTheyMay(t *testing.T) {
	g, c := rails(t, 64, 32, 0)
	for _, x := range []struct {
		power float64
		units int
		most  int
	}{{0, 48, 5}, {35e3, 48, 3}, {45e3, 48, 4}, {0, 42, 5}, {0, 41, 4}} {
		in := Default()
		in.Power, in.Units = x.power, x.units
		p, bad := Make(g, c, in, nil)
		if bad != nil {
			t.Fatal(bad)
		}
		sound(t, g, p)
		if p.Fits[0].Most != x.most {
			t.Errorf("%g W, %d units: %d hosts a rack, want %d (%+v)", x.power, x.units, p.Fits[0].Most, x.most, p.Fits[0])
		}
	}
}

// TestLengthsAreOfTheRoute: a cable is as long as the way up, along, across and down, and slack at both ends, in the next length sold.
func TestLengthsAreOfTheRoute(t *testing.T) {
	g, c := rails(t, 64, 32, 4)
	in := Default()
	in.Places = []Place{{Names: []string{"spine0"}, Rack: "D01", Unit: 40}, {Names: []string{"leaf0"}, Rack: "D03", Unit: 10}}
	p, bad := Make(g, c, in, nil)
	if bad != nil {
		t.Fatal(bad)
	}
	sound(t, g, p)
	top := 48*unitMetres + 0.4
	want := (top - 39.5*unitMetres) + (top - 9.5*unitMetres) + 2*0.6 + 2*0.5
	a, _ := p.Find("spine0")
	b, _ := p.Find("leaf0")
	if got := p.Way(a, b); math.Abs(got-want) > 1e-9 || p.Between("spine0", "leaf0") != 7 {
		t.Errorf("%g m, cable of %g m; want %g and 7", got, p.Between("spine0", "leaf0"), want)
	}
	b.Rack += 2 * in.Row // two rows on
	p.Racks = append(p.Racks, make([]Rack, 30)...)
	p.Racks[b.Rack] = Rack{Row: p.Racks[a.Rack].Row + 2, Column: 2}
	if got := p.Way(a, b); math.Abs(got-want-2*(1.2+1.2)) > 1e-9 {
		t.Errorf("two rows on: %g m, want %g", got, want+4.8)
	}
	placed := p.Apply(g)
	for i := range placed.Links {
		l := topo.LinkID(i)
		if m := placed.Metres(l); placed.Class(l).Kind.Network() && (m < 1 || m > 50) {
			t.Fatalf("%s is %g m", placed.LinkName(l), m)
		}
	}
	n, _ := placed.Lookup("spine0")
	if placed.Nodes[n].Rack != int32(a.Rack) {
		t.Errorf("spine0 is in rack %d of the graph, %d of the plan", placed.Nodes[n].Rack, a.Rack)
	}
	if placed.LinkLatency(0) != g.LinkLatency(0) && placed.Class(0).Kind.Network() == false {
		t.Error("a link inside a host changed")
	}
}

func TestWrongFloors(t *testing.T) {
	g, c := rails(t, 32, 32, 4)
	for _, x := range []struct {
		name   string
		change func(*Intent)
		want   string
	}{
		{"too little power", func(in *Intent) { in.Power = 35e3 },
			"rack.power: 35 kW: 4 hosts such as n3 (dgx-h100) in one rack draw 40.8 kW; 3 may: write floor: {rack: {hosts: 3}}"},
		{"power for no host", func(in *Intent) { in.Power = 9e3 }, "rack.power: 9 kW: one dgx-h100 draws 10.2 kW"},
		{"too low", func(in *Intent) { in.Units = 30 }, "rack.units: 30: 4 hosts"},
		{"too low for one", func(in *Intent) { in.Units = 9 }, "a rack needs at least 10"},
		{"too many", func(in *Intent) { in.Hosts = 6 }, "5 do: write floor: {rack: {hosts: 5}}"},
		{"no such rack", func(in *Intent) { in.Places = []Place{{Names: []string{"leaf0"}, Rack: "7"}} }, "no rack"},
		{"past the row", func(in *Intent) { in.Places = []Place{{Names: []string{"leaf0"}, Rack: "A11"}} }, "numbers up to 10"},
		{"stranger", func(in *Intent) { in.Places = []Place{{Names: []string{"leaf99"}, Rack: "A01"}} }, `no host and no switch "leaf99"`},
		{"twice", func(in *Intent) {
			in.Places = []Place{{Names: []string{"leaf0"}, Rack: "A01"}, {Names: []string{"leaf0"}, Rack: "A02"}}
		}, "two places"},
		{"one unit for two", func(in *Intent) {
			in.Places = []Place{{Names: []string{"leaf0"}, Rack: "A01", Unit: 5}, {Names: []string{"n0"}, Rack: "A01", Unit: 1}}
		}, `unit 5 of rack A01, which "leaf0" has`},
		{"above the rack", func(in *Intent) { in.Places = []Place{{Names: []string{"n0"}, Rack: "A01", Unit: 44}} }, "units 44 to 51 of 48"},
	} {
		t.Run(x.name, func(t *testing.T) {
			in := Default()
			x.change(&in)
			p, bad := Make(g, c, in, nil)
			if bad == nil {
				sound(t, g, p)
				t.Fatal("accepted")
			}
			if !strings.Contains(bad.Error(), x.want) {
				t.Errorf("%v\nwant %q", bad, x.want)
			}
		})
	}
}

func TestNamesOfRacks(t *testing.T) {
	for _, row := range []int{1, 10, 26, 99} {
		for i := range 3000 {
			if at, ok := rackIndex(rackName(i, row), row); !ok || at != i {
				t.Fatalf("rack %d of rows of %d is %s, which is %d", i, row, rackName(i, row), at)
			}
		}
	}
}

// TestOutOfBandReachesEverything: every host's BMC, every switch's management port and the power units of every rack have a port of their
// own.
func TestOutOfBandReachesEverything(t *testing.T) {
	for _, hosts := range []int{4, 128, 4096} {
		g, c := rails(t, hosts, 32, 4)
		p, bad := Make(g, c, Default(), nil)
		if bad != nil {
			t.Fatal(bad)
		}
		o, err := (&OutOfBand{}).Build(g, c, p, nil)
		if err != nil {
			t.Fatal(err)
		}
		racks := 0
		for _, r := range p.Racks {
			if r.Use != "" {
				racks++
			}
		}
		if want := hosts + g.Count(topo.Switch) + 2*racks; len(o.Hosts) != want {
			t.Errorf("%d hosts: %d ports, want %d", hosts, len(o.Hosts), want)
		}
		first, last := o.Hosts[0].First, o.Hosts[len(o.Hosts)-1].First
		if _, ok := o.Across(first, last, 0, nil); !ok {
			t.Errorf("%d hosts: no way from %s to %s", hosts, o.NodeName(first), o.NodeName(last))
		}
	}
}
