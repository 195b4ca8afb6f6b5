package build

import (
	"testing"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
)

// TestSixHundredHostsGetTheCoresTheyNeed: 152 spines of 32 uplinks are 4,864
// links, for which 76 cores of 64 ports suffice.
func TestSixHundredHostsGetTheCoresTheyNeed(t *testing.T) {
	built, err := simple(catalog.Default(), "x", "dgx-h100", 600, 0, Clos{Name: "f", Rails: true, Leaf: Tier{Model: "QM9700"}})
	if err != nil {
		t.Fatal(err)
	}
	g, count := built.Graph, map[uint8]int{}
	g.Each(topo.Switch, func(_ topo.NodeID, n *topo.Node) { count[n.Tier]++ })
	if count[1] != 152 || count[2] != 152 || count[3] != 76 {
		t.Errorf("%d leaves, %d spines, %d cores; want 152, 152, 76", count[1], count[2], count[3])
	}
	checkSwitches(t, catalog.Default(), g)
}

// TestStorageServersStayOut: a kind whose NICs are all for storage takes no part
// in the compute fabric, and a compute host's storage NICs neither.
func TestStorageServersStayOut(t *testing.T) {
	c := catalog.Default()
	gpu, err := Host(c, "dgx-h100", "n0")
	if err != nil {
		t.Fatal(err)
	}
	box := Box{Name: "store", Devices: []Device{
		{Name: "cpu0", Kind: topo.CPU}, {Name: "root0", Kind: topo.RootPort, Parent: "cpu0"},
		{Name: "nic0", Kind: topo.NIC, Model: "ConnectX-7", Parent: "root0", Link: "pcie5", Rail: topo.None},
	}}
	store, err := box.Build(c, "s0")
	if err != nil {
		t.Fatal(err)
	}
	g, _, err := Cluster{Name: "x", Hosts: []Hosts{{Box: gpu, Names: numbered("n", 8)}, {Box: store, Names: numbered("s", 4)}},
		Fabrics: []Fabric{
			Clos{Name: "compute", Rails: true, Leaf: Tier{Model: "QM9700"}},
			Clos{Name: "storage", Service: true, Leaf: Tier{Model: "QM9700"}},
		}}.Build(c)
	if err != nil {
		t.Fatal(err)
	}
	g.Each(topo.NIC, func(id topo.NodeID, n *topo.Node) {
		want := int8(0)
		if g.Hosts[n.Host].Model == "store" || n.Name[:3] != "nic" {
			want = 1
		}
		if n.Fabric != want {
			t.Errorf("%s is in fabric %d, want %d", g.NodeName(id), n.Fabric, want)
		}
	})
}
