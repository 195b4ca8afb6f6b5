package build

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
)

func small() Box {
	return Box{Name: "mine", CPU: "Xeon", Devices: []Device{
		{Name: "cpu0", Kind: topo.CPU, Line: 1},
		{Name: "root0", Kind: topo.RootPort, Parent: "cpu0", Line: 2},
		{Name: "pex0", Kind: topo.PCIeSwitch, Parent: "root0", Link: "pcie5", Line: 3},
		{Name: "gpu0", Kind: topo.GPU, Model: "H100-PCIe", Parent: "pex0", Link: "pcie5", Line: 4},
		{Name: "gpu1", Kind: topo.GPU, Model: "H100-PCIe", Parent: "pex0", Link: "pcie5", Lanes: 8, Line: 5},
		{Name: "nic0", Kind: topo.NIC, Parent: "pex0", Link: "pcie5", Rail: topo.None, Line: 6},
	}, Joins: []Join{{A: "gpu0", B: "gpu1", Link: "nvlink4", Count: 12, Line: 7}}}
}

func TestBoxBuilds(t *testing.T) {
	g, err := small().Build(catalog.Default(), "h")
	if err != nil {
		t.Fatal(err)
	}
	if got := g.Connection(node(t, g, "gpu0"), node(t, g, "gpu1")).String(); got != "NV12" {
		t.Error(got)
	}
	if cpu := g.Nodes[node(t, g, "cpu0")]; cpu.Model != "Xeon" {
		t.Errorf("%+v", cpu)
	}
	way, _ := g.Inside(node(t, g, "gpu1"), node(t, g, "cpu0"), nil)
	if got, want := between(g, way), catalog.Default().Links["pcie5"].Class(8).Rate; got != want {
		t.Errorf("eight lanes carry %s, want %s", got, want)
	}
}

// A mistake in a box is answered with line, device, value and what is known.
func TestBoxErrorsNameTheDevice(t *testing.T) {
	for _, test := range []struct {
		name  string
		spoil func(*Box)
		want  []string
	}{
		{"cycle", func(b *Box) {
			b.Devices[1].Parent, b.Devices[1].Link, b.Devices[1].Kind = "pex0", "pcie5", topo.PCIeSwitch
		}, []string{"cycle", "root0", "pex0", "line 2"}},
		{"own parent", func(b *Box) { b.Devices[2].Parent = "pex0" }, []string{"line 3", "cycle: pex0 > pex0"}},
		{"parent", func(b *Box) { b.Devices[3].Parent = "pex7" }, []string{"line 4", `"gpu0"`, `"pex7"`, "cpu0 gpu0 gpu1 nic0 pex0 root0"}},
		{"twice", func(b *Box) { b.Devices[4].Name = "gpu0" }, []string{"line 5", `two devices named "gpu0"`}},
		{"nothing", func(b *Box) { *b = Box{Name: "mine"} }, []string{`"mine"`, "no devices"}},
		{"no name", func(b *Box) { b.Devices[4].Name = "" }, []string{"line 5", "a gpu", "no name"}},
		{"link", func(b *Box) { b.Devices[3].Link = "pcie9" }, []string{"line 4", `"gpu0"`, `"pcie9"`, "pcie5"}},
		{"no link", func(b *Box) { b.Devices[3].Link = "" }, []string{"line 4", `"gpu0"`, `"pcie5"`}},
		{"network link", func(b *Box) { b.Devices[3].Link = "ndr" }, []string{"line 4", `"gpu0"`, `"ndr"`, "infiniband"}},
		{"lanes", func(b *Box) { b.Devices[3].Lanes = -4 }, []string{"line 4", `"gpu0"`, "-4"}},
		{"rail", func(b *Box) { b.Devices[5].Rail = 1 << 20 }, []string{"line 6", `"nic0"`, "1048576"}},
		{"switch", func(b *Box) { b.Devices[2].Kind = topo.Switch }, []string{"line 3", `"pex0"`, "pcie-switch"}},
		{"under a GPU", func(b *Box) { b.Devices[5].Parent = "gpu0" }, []string{"line 6", `"nic0"`, `"gpu0" is a gpu`, "root-port"}},
		{"root under a switch", func(b *Box) {
			b.Devices = append(b.Devices, Device{Name: "root1", Kind: topo.RootPort, Parent: "pex0", Line: 9})
		}, []string{"line 9", `"root1"`, `"pex0" is a pcie-switch`}},
		{"CPU with a parent", func(b *Box) {
			b.Devices = append(b.Devices, Device{Name: "cpu1", Kind: topo.CPU, Parent: "cpu0", Link: "upi2", Line: 9})
		}, []string{"line 9", `"cpu1"`, "join"}},
		{"alone", func(b *Box) { b.Devices = append(b.Devices, Device{Name: "nvs0", Kind: topo.NVSwitch, Line: 9}) },
			[]string{"line 9", `"nvs0"`, "nothing"}},
		{"join to nowhere", func(b *Box) { b.Joins[0].B = "gpu9" }, []string{"line 7", `"gpu9"`, "gpu0 gpu1"}},
		{"join by an unknown link", func(b *Box) { b.Joins[0].Link = "nvlink0" }, []string{"line 7", `"nvlink0"`, "nvlink4"}},
		{"join by a network link", func(b *Box) { b.Joins[0].Link = "ndr" }, []string{"line 7", `"ndr"`, "between hosts"}},
		{"join to itself", func(b *Box) { b.Joins[0].B = "gpu0" }, []string{`"mine"`, "itself"}},
		{"count", func(b *Box) { b.Joins[0].Count = -1 }, []string{"line 7", "count is -1"}},
	} {
		b := small()
		test.spoil(&b)
		_, err := b.Build(catalog.Default(), "h")
		if err == nil {
			t.Errorf("%s: no error", test.name)
			continue
		}
		for _, w := range test.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %q does not say %q", test.name, err, w)
			}
		}
	}
}

// A random forest of switches builds exactly if following parents from every
// device ends; counting steps says so without marking anything.
func TestBoxFindsEveryCycle(t *testing.T) {
	c := catalog.Default()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "n")
		b := Box{Name: "random", Devices: []Device{{Name: "cpu0", Kind: topo.CPU}, {Name: "root0", Kind: topo.RootPort, Parent: "cpu0"}}}
		parent := make([]int, n)
		for i := range n {
			parent[i] = rapid.IntRange(-1, n-1).Draw(t, "parent")
			d := Device{Name: fmt.Sprintf("pex%d", i), Kind: topo.PCIeSwitch, Parent: "root0", Link: "pcie4"}
			if parent[i] >= 0 {
				d.Parent = fmt.Sprintf("pex%d", parent[i])
			}
			b.Devices = append(b.Devices, d)
		}
		cyclic := false
		for i := range n {
			at, steps := i, 0
			for at >= 0 && steps <= n {
				at, steps = parent[at], steps+1
			}
			cyclic = cyclic || steps > n
		}
		g, err := b.Build(c, "h")
		if cyclic != (err != nil) {
			t.Fatalf("parents %v: cyclic %v, error %v", parent, cyclic, err)
		}
		if err != nil {
			if !strings.Contains(err.Error(), "cycle") {
				t.Fatal(err)
			}
			return
		}
		if len(g.Nodes) != n+2 || len(g.Links) != n+1 {
			t.Fatalf("%d nodes, %d links", len(g.Nodes), len(g.Links))
		}
	})
}
