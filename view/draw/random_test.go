package draw

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/topo"
	"pgregory.net/rapid"
)

// anyGraph draws a graph without regard for sense: tiers that skip, pods that
// cut across, switches joined to nothing, hosts of any make.
func anyGraph(t *rapid.T) *topo.Graph {
	b := topo.NewBuilder("any")
	classes := []topo.ClassID{b.Class(ndr), b.Class(roce), b.Class(nvl4), b.Class(pcie5), b.Class(upi), b.Class(ici)}
	const network, slower, nvlink, pcie, smp, chip = 0, 1, 2, 3, 4, 5
	below := func(name string, n int) int { return rapid.IntRange(0, n-1).Draw(t, name) }
	fabrics := below("fabrics", 3)
	for f := range fabrics {
		family := topo.Family(1 + below("family", 4))
		dims := []int{}
		if family == topo.Torus || family == topo.Dragonfly {
			for range below("dims", 5) {
				dims = append(dims, 1+below("dim", 5))
			}
		}
		b.Fabric(topo.Fabric{Name: fmt.Sprintf("f%d", f), Family: family, Dims: dims, Service: f == 1})
	}
	some := func(n topo.Node) topo.Node {
		n.Fabric = int8(below("fabric", fabrics+1) - 1)
		n.Pod = int32(below("pod", 4) - 1)
		n.Plane = int8(below("plane", 4) - 1)
		n.Rail = int16(below("rail", 12) - 1)
		n.Pos = int32(below("pos", 40) - 1)
		n.Model = []string{"", "QM9700", "a model with a very long name indeed, yes"}[below("model", 3)]
		return n
	}
	var outer, inner []topo.NodeID
	prefix := []string{"s", "a-switch-with-a-long-name-"}[below("prefix", 2)]
	for i := range below("switches", 40) {
		n := some(topo.Part(topo.Switch, topo.None, fmt.Sprintf("%s%d", prefix, i)))
		n.Tier = uint8(below("tier", 5))
		if below("nv", 6) == 0 {
			n.Kind, n.Fabric = topo.NVSwitch, topo.None
		}
		outer = append(outer, b.Node(n))
	}
	for h := range below("hosts", 30) {
		id := b.Host(topo.Host{Name: fmt.Sprintf("h%d", h), Pod: int32(below("hostpod", 4) - 1), Rack: topo.None,
			Model: []string{"", "dgx-h100"}[below("hostmodel", 2)]})
		var mine []topo.NodeID
		for k := topo.GPU; k <= topo.NIC; k++ {
			for i := range below("parts", 4) {
				n := some(topo.Part(k, id, fmt.Sprintf("%s%d", k, i)))
				if k != topo.GPU && k != topo.NIC {
					n.Fabric, n.Pos = topo.None, topo.None
				}
				mine = append(mine, b.Node(n))
			}
		}
		for i := 1; i < len(mine); i++ { // a tree of PCIe, and anything besides
			if below("tree", 4) > 0 {
				b.Link(topo.Link{A: mine[below("parent", i)], B: mine[i], Class: classes[pcie]})
			}
			if j := below("peer", i); below("extra", 3) == 0 {
				b.Link(topo.Link{A: mine[j], B: mine[i], Class: classes[[]int{nvlink, smp, chip}[below("class", 3)]], Count: uint16(below("count", 5))})
			}
		}
		inner = append(inner, mine...)
	}
	ends := append(append([]topo.NodeID{}, outer...), inner...)
	if len(outer) > 0 {
		for range below("links", 120) {
			x, y := outer[below("x", len(outer))], ends[below("y", len(ends))]
			if x != y {
				b.Link(topo.Link{A: x, B: y, Class: classes[[]int{network, slower, nvlink}[below("class", 3)]], Count: uint16(below("count", 3))})
			}
		}
	}
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// TestAnyGraph checks on senseless graphs what TestEveryPicture checks on real ones.
func TestAnyGraph(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		g := anyGraph(rt)
		o := Options{Width: rapid.IntRange(0, 2500).Draw(rt, "width")}
		if len(g.Hosts) > 0 {
			o.Hosts = []string{g.Hosts[0].Name}
		}
		p, err := clusterPage(g, o)
		if err != nil {
			rt.Fatal(err)
		}
		readable(rt, p)
		var out, again bytes.Buffer
		if err := p.write(&out); err != nil {
			rt.Fatal(err)
		}
		if err := Cluster(&again, g, o); err != nil || !bytes.Equal(out.Bytes(), again.Bytes()) {
			rt.Fatalf("two drawings differ, %v", err)
		}
		if strings.Contains(out.String(), "NaN") {
			rt.Fatal("a coordinate is not a number")
		}
		accounted(rt, g, parse(rt, out.Bytes()))
	})
}
