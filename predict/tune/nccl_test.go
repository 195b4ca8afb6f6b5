package tune

import (
	"fmt"
	"math"
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// caseA is the first check case: eight Hopper GPUs of one node, 12 channels of 30 GB/s.
func caseA() *NCCL {
	g := shape{Channels: 12, Intra: 30, Inter: 30, TypeIntra: pathNVL, TypeInter: pathPIX}
	return &NCCL{f: &facts{ranks: 8, nodes: 1, perNode: 8, compute: 90, medium: overNVLink, path: pathNVL, switched: true, multi: true,
		total: 370.8},
		o: NCCLOptions{NoNVLS: true}, graphs: [algorithms]shape{tree: g, ring: g}}
}

// caseC is the second: sixteen nodes of eight Hopper GPUs, 8 channels of 40/40 GB/s, Intel.
func caseC() *NCCL {
	g := shape{Channels: 8, Intra: 40, Inter: 40, TypeIntra: pathNVL, TypeInter: pathPIX}
	return &NCCL{f: &facts{ranks: 128, nodes: 16, perNode: 8, compute: 90, medium: overNVLink, path: pathNVL, switched: true, multi: true,
		total: 370.8},
		o: NCCLOptions{NoNVLS: true}, graphs: [algorithms]shape{tree: g, ring: g}}
}

type checkValue struct {
	a       algorithm
	p       protocol
	lat, bw float64
}

func checkValues(t *testing.T, m *NCCL, want []checkValue) {
	t.Helper()
	for _, w := range want {
		lat, bw := m.latency(sched.AllReduce, w.a, w.p), m.bandwidth(sched.AllReduce, w.a, w.p)
		// The reference prints four digits at most, cut rather than rounded in places.
		if math.Abs(lat-w.lat) > 5e-4*w.lat || math.Abs(bw-w.bw) > 1.2e-3*w.bw {
			t.Errorf("%s %s: %.5g us and %.5g GB/s, want %g and %g", algoNames[w.a], protoNames[w.p], lat, bw, w.lat, w.bw)
		}
	}
}

type turn struct {
	from   unit.Bytes
	choice string
}

// checkTurns walks the powers of two and compares where the choice changes.
func checkTurns(t *testing.T, m *NCCL, op sched.Collective, want []turn) {
	t.Helper()
	var got []turn
	for size := unit.Bytes(8); size <= 16*unit.GiB; size *= 2 {
		c := m.Choose(op, size)
		name := c.Algo + " " + c.Proto
		if len(got) == 0 || got[len(got)-1].choice != name {
			got = append(got, turn{size, name})
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: choices %v, want %v", op, got, want)
	}
}

func TestCheckValuesCaseA(t *testing.T) {
	m := caseA()
	checkValues(t, m, []checkValue{
		{tree, ll, 15.2, 43.58}, {tree, ll128, 31.5, 128.8}, {tree, simple, 64.4, 165.6},
		{ring, ll, 15.0, 80.57}, {ring, ll128, 40.6, 189.26}, {ring, simple, 56.0, 205.71},
	})
	checkTurns(t, m, sched.AllReduce, []turn{{8, "Ring LL"}, {4 * unit.MiB, "Ring LL128"}, {64 * unit.MiB, "Ring Simple"}})
}

func TestCheckValuesCaseC(t *testing.T) {
	m := caseC()
	checkValues(t, m, []checkValue{
		{tree, ll, 55.2, 10.2}, {tree, ll128, 99.5, 116}, {tree, simple, 176.4, 144},
		{ring, ll, 311.6, 10.28}, {ring, ll128, 559.6, 147.96}, {ring, simple, 1190, 161.3},
	})
	checkTurns(t, m, sched.AllReduce, []turn{{8, "Tree LL"}, {256 * unit.KiB, "Tree LL128"}, {128 * unit.MiB, "Tree Simple"},
		{2 * unit.GiB, "Ring Simple"}})
}

// TestShapes: what the search finds on known machines, as NCCL prints it.
func TestShapes(t *testing.T) {
	s := newMachines(t)
	for _, w := range []struct {
		machine     string
		gpus, nodes int
		channels    int
		speed       float64
		path        path
	}{
		{"dgx-a100", 8, 1, 12, 20, pathNVL},
		{"dgx-h100", 8, 1, 12, 30, pathNVL},
		{"dgx-b200", 8, 1, 16, 45, pathNVL},
		{"dgx-1v", 2, 1, 1, 20, pathNVL},
		{"dgx-1v", 4, 1, 4, 20, pathNVL},
		{"dgx-1v", 8, 1, 6, 20, pathNVL},
		{"dgx-1p", 8, 1, 4, 18, pathNVL},
		{"dgx-a100", 16, 2, 8, 24, pathNVL},
		{"dgx-h100", 16, 2, 8, 45, pathNVL},
		{"aws_p4de_a100", 16, 2, 4, 12, pathNVL},
		{"aws_p5_h100", 16, 2, 8, 45, pathNVL},
		{"pcie-8", 8, 1, 1, 15, pathSYS},
		{"pcie-8-plx", 4, 1, 2, 12, pathPIX},
	} {
		m := s.model(w.machine, w.gpus, w.nodes, NCCLOptions{})
		g := m.graphs[ring]
		if g.Channels != w.channels || g.Intra != w.speed || g.TypeIntra != w.path {
			t.Errorf("%s, %d GPUs on %d nodes: %d channels of %g over %s, want %d of %g over %s", w.machine, w.gpus, w.nodes,
				g.Channels, g.Intra, g.TypeIntra, w.channels, w.speed, w.path)
		}
	}
}

// TestNVLSFromHowManyGPUs: from 5 GPUs on Hopper and 6 on Blackwell, from about
// 2 MiB, and all-reduce only.
func TestNVLSFromHowManyGPUs(t *testing.T) {
	s := newMachines(t)
	for machine, first := range map[string]int{"dgx-h100": 5, "dgx-h200": 5, "dgx-b200": 6} {
		for n := 2; n <= 8; n++ {
			m := s.model(machine, n, 1, NCCLOptions{})
			any := false
			for size := unit.Bytes(8); size <= 16*unit.GiB; size *= 2 {
				if m.Choose(sched.AllReduce, size).Algo == "NVLS" {
					any = true
					if size < 2*unit.MiB {
						t.Errorf("%s with %d GPUs takes NVLS at %s", machine, n, size)
					}
				}
				for _, op := range []sched.Collective{sched.AllGather, sched.ReduceScatter} {
					if c := m.Choose(op, size); c.Algo != "Ring" {
						t.Errorf("%s with %d GPUs: %s of %s by %s", machine, n, op, size, c.Algo)
					}
				}
			}
			if any != (n >= first) {
				t.Errorf("%s with %d GPUs takes NVLS: %v", machine, n, any)
			}
		}
	}
}

// TestProtocolTurnsAsMeasured: the measured times jump where NCCL leaves LL.
func TestProtocolTurnsAsMeasured(t *testing.T) {
	s := newMachines(t)
	for _, w := range []struct {
		machine string
		gpus    int
		op      sched.Collective
		want    []turn
	}{
		{"a100_sxm", 2, sched.AllReduce, []turn{{8, "Ring LL"}, {unit.MiB, "Ring Simple"}}},
		{"a100_sxm", 2, sched.AllGather, []turn{{8, "Ring LL"}, {2 * unit.MiB, "Ring Simple"}}},
		{"a100_sxm", 4, sched.AllGather, []turn{{8, "Ring LL"}, {2 * unit.MiB, "Ring Simple"}}},
		{"a100_sxm", 8, sched.AllGather, []turn{{8, "Ring LL"}, {4 * unit.MiB, "Ring LL128"}, {16 * unit.MiB, "Ring Simple"}}},
		{"h100_sxm", 8, sched.AllReduce, []turn{{8, "Ring LL"}, {2 * unit.MiB, "NVLS Simple"}}},
		{"b300_sxm", 2, sched.AllReduce, []turn{{8, "Ring LL"}, {4 * unit.MiB, "Ring Simple"}}},
		{"b300_sxm", 8, sched.AllReduce, []turn{{8, "Ring LL"}, {4 * unit.MiB, "NVLS Simple"}}},
		{"rtx_pro_6000_server", 2, sched.AllReduce, []turn{{8, "Ring LL"}, {unit.MiB, "Ring Simple"}}},
		{"rtx_pro_6000_server", 8, sched.AllReduce, []turn{{8, "Ring LL"}, {unit.MiB, "Ring Simple"}}},
	} {
		t.Run(fmt.Sprint(w.machine, "/", w.gpus, "/", w.op), func(t *testing.T) {
			checkTurns(t, s.model(w.machine, w.gpus, 1, NCCLOptions{}), w.op, w.want)
		})
	}
}

// TestTable: every combination stands in it, the cheapest is the choice, and
// what is excluded says why.
func TestTable(t *testing.T) {
	s := newMachines(t)
	for _, m := range []*NCCL{s.model("dgx-h100", 8, 1, NCCLOptions{}), s.model("dgx-h100", 32, 4, NCCLOptions{CollNet: true}),
		s.model("pcie-8", 4, 1, NCCLOptions{}),
		s.model("dgx-a100", 4, 4, NCCLOptions{})} {
		for _, op := range []sched.Collective{sched.AllReduce, sched.AllGather, sched.ReduceScatter, sched.Broadcast, sched.Reduce} {
			for size := unit.Bytes(0); size <= 4*unit.GiB; size = max(1, size*4) {
				list := m.Table(op, size)
				if len(list) != int(algorithms)*int(protocols) {
					t.Fatalf("%d rows", len(list))
				}
				best := -1
				for i, c := range list {
					if c.Reason == "" {
						t.Errorf("%s %s has no reason", c.Algo, c.Proto)
					}
					if !c.Excluded && (best < 0 || c.Time < list[best].Time) {
						best = i
					}
				}
				c := m.Choose(op, size)
				if c.Algo != list[best].Algo || c.Proto != list[best].Proto || c.Time != list[best].Time {
					t.Errorf("%s of %s: chose %s %s, the table's best is %s %s", op, size, c.Algo, c.Proto, list[best].Algo, list[best].Proto)
				}
			}
		}
	}
}

// TestNVL72IsOneNode: hosts that one NVLink network joins count as one node.
func TestNVL72IsOneNode(t *testing.T) {
	s := newMachines(t)
	g := preset(t, s.c, "gb200-nvl72", nil)
	m, err := NewNCCL(g, allGPUs(g), s.c, NCCLOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if m.Ranks() != 72 || m.Nodes() != 1 {
		t.Errorf("%d ranks on %d nodes", m.Ranks(), m.Nodes())
	}
	if c := m.Predict(sched.AllReduce, 8*unit.GiB); c.Algo != "NVLS" || c.BusBW < 650*unit.GBps || c.BusBW > 950*unit.GBps {
		t.Errorf("%s at %s; NVIDIA shows NVLS at 850 GB/s", c.Algo, c.BusBW)
	}
}

// TestTrayIsPartOfItsRack: four GPUs of a tray by itself do as four of the rack.
func TestTrayIsPartOfItsRack(t *testing.T) {
	s := newMachines(t)
	g := preset(t, s.c, "gb200-nvl72", nil)
	rack, err := NewNCCL(g, allGPUs(g)[:4], s.c, NCCLOptions{})
	if err != nil {
		t.Fatal(err)
	}
	tray := s.model("gb200", 4, 1, NCCLOptions{})
	for _, op := range sched.Collectives() {
		if a, b := tray.Predict(op, 64*unit.MiB), rack.Predict(op, 64*unit.MiB); a != b {
			t.Errorf("%s: %+v by itself, %+v in the rack", op, a, b)
		}
	}
}

// TestPublishedPeaks compares with what NVIDIA shows for large all-reduces.
func TestPublishedPeaks(t *testing.T) {
	s := newMachines(t)
	for _, w := range []struct {
		machine     string
		gpus, nodes int
		algos       []string
		want, off   float64
	}{
		{"dgx-a100", 8, 1, nil, 232, .10},
		{"dgx-h100", 8, 1, []string{"Ring"}, 370, .10},
		{"dgx-h100", 8, 1, nil, 480, .12},
		{"dgx-b200", 8, 1, []string{"Ring"}, 700, .12},
		{"dgx-b200", 8, 1, nil, 850, .20},
		{"dgx-a100", 32, 4, nil, 192, .05},
		{"dgx-h100", 32, 4, []string{"Ring"}, 370, .06},
		{"dgx-1v", 8, 1, nil, 134.5, .05},
	} {
		m := s.model(w.machine, w.gpus, w.nodes, NCCLOptions{Algos: w.algos})
		p := m.Predict(sched.AllReduce, 8*unit.GiB)
		got := float64(p.BusBW) / 1e9
		t.Logf("%s, %d GPUs, %s %s: %.0f GB/s, published %.0f", w.machine, w.gpus, p.Algo, p.Proto, got, w.want)
		if math.Abs(got/w.want-1) > w.off {
			t.Errorf("%s, %d GPUs on %d nodes, %s: %.1f GB/s, published %.0f", w.machine, w.gpus, w.nodes, p.Algo, got, w.want)
		}
	}
}

// TestGrowsWithSize: more bytes never take less than half the time of fewer, and
// no time is zero, negative or infinite. (NCCL's changes of protocol do make some
// larger sizes faster.)
func TestGrowsWithSize(t *testing.T) {
	s := newMachines(t)
	for _, m := range []*NCCL{s.model("dgx-h100", 7, 1, NCCLOptions{}), s.model("dgx-b200", 128, 16, NCCLOptions{}),
		s.model("pcie-8", 3, 1, NCCLOptions{}),
		s.model("dgx-1v", 3, 1, NCCLOptions{}), s.model("dgx-h100", 4, 4, NCCLOptions{}), s.model("gh200", 8, 8, NCCLOptions{})} {
		for _, op := range sched.Collectives() {
			last := unit.Time(0)
			for size := unit.Bytes(0); size <= 1<<50; size = max(1, 2*size) {
				p := m.Predict(op, size)
				if p.Time <= 0 || p.Time == math.MaxInt64 || p.Time < last/2 || p.Error < 0 || math.IsNaN(p.Error) || p.Nearest == "" || p.Limit == "" {
					t.Fatalf("%d GPUs, %s of %s: %s after %s, error %g, limit %q, %q", m.Ranks(), op, size, p.Time, last, p.Error, p.Limit, p.Nearest)
				}
				last = p.Time
			}
		}
	}
}

func TestBadInput(t *testing.T) {
	s := newMachines(t)
	g := s.graph("dgx-h100", 1)
	gpus := allGPUs(g)
	nic, err := g.Lookup("nic0")
	if err != nil {
		t.Fatal(err)
	}
	bad := map[string]func() error{
		"no GPUs": func() error { _, err := NewNCCL(g, nil, s.c, NCCLOptions{}); return err },
		"a NIC":   func() error { _, err := NewNCCL(g, []topo.NodeID{nic}, s.c, NCCLOptions{}); return err },
		"twice":   func() error { _, err := NewNCCL(g, []topo.NodeID{gpus[0], gpus[0]}, s.c, NCCLOptions{}); return err },
		"outside": func() error { _, err := NewNCCL(g, []topo.NodeID{1 << 20}, s.c, NCCLOptions{}); return err },
		"algo":    func() error { _, err := NewNCCL(g, gpus, s.c, NCCLOptions{Algos: []string{"Star"}}); return err },
		"proto":   func() error { _, err := NewNCCL(g, gpus, s.c, NCCLOptions{Protos: []string{"LL64"}}); return err },
		"not NVIDIA": func() error {
			g := s.graph("mi300x", 1)
			_, err := NewNCCL(g, allGPUs(g), s.c, NCCLOptions{})
			return err
		},
	}
	for name, f := range bad {
		if err := f(); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	one, err := NewNCCL(g, gpus[:1], s.c, NCCLOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if p := one.Predict(sched.AllReduce, unit.GiB); p.Algo != "Copy" || p.Time <= 0 {
		t.Errorf("one rank: %+v", p)
	}
	m := s.model("dgx-h100", 8, 1, NCCLOptions{Algos: []string{"PAT"}})
	if c := m.Choose(sched.AllReduce, 8); !c.Excluded || c.Reason == "" {
		t.Errorf("%+v", c)
	}
}
