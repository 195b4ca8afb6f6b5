package rings

import (
	"fmt"
	"testing"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
)

// machine builds one host with numbered GPUs, two a PCIe switch, half of the
// switches on each of two sockets, and whatever mesh or switches a test adds.
type machine struct {
	t    testing.TB
	c    *catalog.Catalog
	b    *topo.Builder
	host topo.HostID
	gpus []topo.NodeID
}

func newMachine(t testing.TB, gpus int, pcie, smp string) *machine {
	m := &machine{t: t, c: catalog.Default(), b: topo.NewBuilder("test")}
	m.host = m.b.Host(topo.Host{Name: "n0"})
	cpus := []topo.NodeID{m.part(topo.CPU, "cpu0"), m.part(topo.CPU, "cpu1")}
	m.join(cpus[0], cpus[1], smp, 1)
	for i := range gpus {
		m.gpus = append(m.gpus, m.part(topo.GPU, fmt.Sprintf("gpu%d", i)))
	}
	for i := 0; i < gpus; i += 2 {
		root := m.part(topo.RootPort, fmt.Sprintf("root%d", i/2))
		pex := m.part(topo.PCIeSwitch, fmt.Sprintf("pex%d", i/2))
		m.join(cpus[i*2/max(gpus, 2)%2], root, "iomesh", 1)
		m.join(root, pex, pcie, 1)
		for j := i; j < min(i+2, gpus); j++ {
			m.join(pex, m.gpus[j], pcie, 1)
		}
	}
	return m
}

func (m *machine) part(k topo.Kind, name string) topo.NodeID {
	return m.b.Node(topo.Part(k, m.host, name))
}

func (m *machine) join(a, b topo.NodeID, gen string, count int) {
	l, err := m.c.Link(gen)
	if err != nil {
		m.t.Fatal(err)
	}
	m.b.Link(topo.Link{A: a, B: b, Class: m.b.Class(l.Class(0)), Count: uint16(count)})
}

func (m *machine) graph() *topo.Graph {
	g, err := m.b.Graph()
	if err != nil {
		m.t.Fatal(err)
	}
	return g
}

// cubeMesh is what nvidia-smi topo -m prints on a DGX-1V: links between each two GPUs.
var cubeMesh = [8][8]int{
	{0, 1, 1, 2, 2, 0, 0, 0},
	{1, 0, 2, 1, 0, 2, 0, 0},
	{1, 2, 0, 2, 0, 0, 1, 0},
	{2, 1, 2, 0, 0, 0, 0, 1},
	{2, 0, 0, 0, 0, 1, 1, 2},
	{0, 2, 0, 0, 1, 0, 2, 1},
	{0, 0, 1, 0, 1, 2, 0, 2},
	{0, 0, 0, 1, 2, 1, 2, 0},
}

func dgx1V(t testing.TB) *topo.Graph {
	m := newMachine(t, 8, "pcie3", "qpi")
	for i, row := range cubeMesh {
		for j, n := range row[:i] {
			if n > 0 {
				m.join(m.gpus[i], m.gpus[j], "nvlink2", n)
			}
		}
	}
	return m.graph()
}

// complete joins every two of n GPUs by one link, as MI300X boxes do.
func complete(t testing.TB, n int) *topo.Graph {
	m := newMachine(t, n, "pcie5", "xgmi3-cpu")
	for i := range n {
		for j := range i {
			m.join(m.gpus[i], m.gpus[j], "xgmi3", 1)
		}
	}
	return m.graph()
}

// striped joins n GPUs to NVSwitches, counts[i] links to the i-th.
func striped(t testing.TB, n int, pcie, nvlink string, counts ...int) *topo.Graph {
	m := newMachine(t, n, pcie, "upi2")
	for i, count := range counts {
		s := m.part(topo.NVSwitch, fmt.Sprintf("nvs%d", i))
		for _, gpu := range m.gpus {
			m.join(gpu, s, nvlink, count)
		}
	}
	return m.graph()
}

// dgx2 is two boards of eight V100 and six NVSwitches, trunk links between each two opposite switches.
func dgx2(t testing.TB, trunk int) *topo.Graph {
	m := newMachine(t, 16, "pcie3", "upi1")
	var boards [2][]topo.NodeID
	for i := range 12 {
		boards[i/6] = append(boards[i/6], m.part(topo.NVSwitch, fmt.Sprintf("nvs%d", i)))
	}
	for i, gpu := range m.gpus {
		for _, s := range boards[i/8] {
			m.join(gpu, s, "nvlink2", 1)
		}
	}
	for i := range 6 {
		m.join(boards[0][i], boards[1][i], "nvlink2", trunk)
	}
	return m.graph()
}

func gpus(t testing.TB, g *topo.Graph, index ...int) []topo.NodeID {
	var all, list []topo.NodeID
	g.Each(topo.GPU, func(n topo.NodeID, _ *topo.Node) { all = append(all, n) })
	if index == nil {
		return all
	}
	for _, i := range index {
		list = append(list, all[i])
	}
	return list
}

func find(t testing.TB, g *topo.Graph, set []topo.NodeID) *Result {
	t.Helper()
	r, err := Search(g, set, catalog.Default(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	check := append([]Plan{r.Plan}, r.Others...)
	for i := range check {
		consistent(t, g, r.GPUs, &check[i])
	}
	return r
}

// consistent checks what holds of every plan: rings visit every GPU once along
// links that join them, trees span, and no link carries more than its rate.
func consistent(t testing.TB, g *topo.Graph, set []topo.NodeID, p *Plan) {
	t.Helper()
	ringLoad, treeLoad := map[way]unit.Rate{}, map[way]unit.Rate{}
	var sum unit.Rate
	for _, r := range p.Rings {
		seen := map[topo.NodeID]bool{}
		for _, n := range r.Order {
			seen[n] = true
		}
		if len(r.Order) != len(set) || len(seen) != len(set) {
			t.Fatalf("%s ring visits %v of %v", p.Medium, r.Order, set)
		}
		flow := map[topo.NodeID]float64{}
		for _, u := range r.Uses {
			from, to := g.Links[u.Link].Ends(u.Forward)
			flow[from] -= float64(u.Share)
			flow[to] += float64(u.Share)
			ringLoad[way{u.Link, u.Forward}] += r.Rate * unit.Rate(u.Share)
		}
		for n, f := range flow {
			if f > 1e-4 || f < -1e-4 {
				t.Fatalf("%s ring: %s receives %g more than it sends", p.Medium, g.NodeName(n), f)
			}
		}
		sum += r.Rate
	}
	if !close(sum, p.RingBus) || p.RingBus > p.Bound.Rate*(1+1e-5) {
		t.Fatalf("%s rings sum to %s, bus %s, bound %s", p.Medium, sum, p.RingBus, p.Bound.Rate)
	}
	n := len(set)
	sum = 0
	for _, tree := range p.Trees {
		root := map[topo.NodeID]topo.NodeID{}
		for i, parent := range tree.Parent {
			root[set[i]] = parent
		}
		for _, v := range set {
			hops := 0
			for v != tree.Root {
				if v = root[v]; v == topo.None || hops > tree.Depth {
					t.Fatalf("%s tree does not lead to its root: %v", p.Medium, tree)
				}
				hops++
			}
		}
		for _, u := range tree.Uses {
			treeLoad[way{u.Link, u.Forward}] += tree.Rate * unit.Rate(u.Share)
			treeLoad[way{u.Link, !u.Forward}] += tree.Rate * unit.Rate(u.Share)
		}
		sum += tree.Rate * unit.Rate(2*(n-1)) / unit.Rate(n)
	}
	if !close(sum, p.TreeBus) {
		t.Fatalf("%s trees sum to %s, bus %s", p.Medium, sum, p.TreeBus)
	}
	for _, l := range []map[way]unit.Rate{ringLoad, treeLoad} {
		for w, r := range l {
			if r > g.Rate(w.link)*(1+1e-4) {
				t.Fatalf("%s: %s carries %s of %s", p.Medium, g.LinkName(w.link), r, g.Rate(w.link))
			}
		}
	}
}

func close(a, b unit.Rate) bool { return a <= b*1.0001 && b <= a*1.0001 }
