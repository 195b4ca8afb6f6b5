package tune

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/build"
	"github.com/weft-fabric/weft/model/unit"
)

// TestEveryHostKind: every kind of host with NVIDIA GPUs, any number of them,
// alone and three together.
func TestEveryHostKind(t *testing.T) {
	s := newMachines(t)
	for _, kind := range build.HostKinds() {
		if s.c.GPUs[s.c.Hosts[kind].GPU].Compute == 0 {
			continue
		}
		per := s.c.Hosts[kind].GPUs
		for n := 1; n <= per; n++ {
			for _, nodes := range []int{1, 3} {
				m := s.model(kind, n*nodes, nodes, NCCLOptions{})
				if m.Ranks() != n*nodes {
					t.Fatalf("%s: %d ranks", kind, m.Ranks())
				}
				for _, op := range sched.Collectives() {
					for _, size := range []unit.Bytes{0, 8, 64 * unit.KiB, 64 * unit.MiB, 16 * unit.GiB} {
						p := m.Predict(op, size)
						if p.Excluded || p.Time <= 0 || p.Time > 1000*unit.Second || p.Limit == "" {
							t.Fatalf("%s, %d GPUs on %d nodes, %s of %s: %+v", kind, n*nodes, nodes, op, size, p)
						}
						if wire := max(m.f.wire, m.f.nicWire(), 1); m.f.ranks > 1 && float64(p.BusBW)/1e9 > 2*wire {
							t.Errorf("%s, %d GPUs on %d nodes, %s of %s by %s: %s over links of %.4g GB/s",
								kind, n*nodes, nodes, op, size, p.Algo, p.BusBW, wire)
						}
					}
				}
			}
		}
	}
}

// TestOrderOfGPUsDoesNotMatter: the same set in any order gives the same prediction.
func TestOrderOfGPUsDoesNotMatter(t *testing.T) {
	s := newMachines(t)
	graphs := []*topo.Graph{s.graph("dgx-1v", 1), s.graph("pcie-8", 1), s.graph("dgx-h100", 2), s.graph("summit", 1)}
	rapid.Check(t, func(t *rapid.T) {
		g := rapid.SampledFrom(graphs).Draw(t, "graph")
		set := rapid.Permutation(allGPUs(g)).Draw(t, "order")
		set = set[:rapid.IntRange(2, len(set)).Draw(t, "gpus")]
		sorted := slices.Sorted(slices.Values(set))
		a, err := NewNCCL(g, set, s.c, NCCLOptions{})
		if err != nil {
			t.Fatal(err)
		}
		b, err := NewNCCL(g, sorted, s.c, NCCLOptions{})
		if err != nil {
			t.Fatal(err)
		}
		op := rapid.SampledFrom(sched.Collectives()).Draw(t, "op")
		size := unit.Bytes(rapid.Int64Range(0, 1<<34).Draw(t, "size"))
		if x, y := a.Predict(op, size), b.Predict(op, size); x != y {
			t.Fatalf("%+v\n%+v", x, y)
		}
	})
}

// TestImportedGPU: a GPU that only tells its compute capability, as in NCCL's
// topology files, and a CPU that only tells its vendor.
func TestImportedGPU(t *testing.T) {
	s := newMachines(t)
	b := topo.NewBuilder("import")
	host := b.Host(topo.Host{Name: "n0", Pod: topo.None, Rack: topo.None})
	cpu := b.Node(topo.Part(topo.CPU, host, "cpu0"))
	b.Attr(cpu, topo.Attrs{"cpu.vendor": "AuthenticAMD", "cpu.arch": "x86_64"})
	class := b.Class(s.c.Links["pcie4"].Class(0))
	for _, name := range []string{"gpu0", "gpu1"} {
		gpu := b.Node(topo.Part(topo.GPU, host, name))
		b.Attr(gpu, topo.Attrs{"gpu.sm": "86"})
		b.Link(topo.Link{A: cpu, B: gpu, Class: class})
	}
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	m, err := NewNCCL(g, allGPUs(g), s.c, NCCLOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if m.f.compute != 86 || m.f.cpu != amd || m.f.path != pathPHB {
		t.Errorf("%+v", m.f)
	}
	if p := m.Predict(sched.AllReduce, unit.GiB); p.Limit != "host" || p.BusBW < 10*unit.GBps || p.BusBW > 32*unit.GBps {
		t.Errorf("%+v", p)
	}
}
