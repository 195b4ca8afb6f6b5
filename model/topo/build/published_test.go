package build

import (
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/topo"
)

// rows is the matrix of a host as nvidia-smi prints it: GPUs and compute NICs, names left out.
func rows(g *topo.Graph) []string {
	var parts []topo.NodeID
	for i := range g.Nodes {
		if n := &g.Nodes[i]; n.Kind == topo.GPU || n.Kind == topo.NIC && n.Rail != topo.None {
			parts = append(parts, topo.NodeID(i))
		}
	}
	var list []string
	for _, a := range parts {
		var row []string
		for _, b := range parts {
			row = append(row, g.Connection(a, b).String())
		}
		list = append(list, strings.Join(row, " "))
	}
	return list
}

func compareRows(t *testing.T, kind, want string) {
	t.Helper()
	got := rows(mustHost(t, kind))
	lines := strings.Split(strings.TrimSpace(want), "\n")
	if len(got) != len(lines) {
		t.Fatalf("%s: %d rows, want %d", kind, len(got), len(lines))
	}
	for i, line := range lines {
		if line = strings.Join(strings.Fields(line), " "); line != got[i] {
			t.Errorf("%s, row %d:\n got %s\nwant %s", kind, i, got[i], line)
		}
	}
}

// The matrix of a DGX-1V that many sites print, its NICs in the order of their
// GPUs (mlx5_0, mlx5_1, mlx5_2, mlx5_3).
func TestDGX1VMatrixAsPublished(t *testing.T) {
	compareRows(t, "dgx-1v", `
		X   NV1 NV1 NV2 NV2 SYS SYS SYS PIX PHB SYS SYS
		NV1 X   NV2 NV1 SYS NV2 SYS SYS PIX PHB SYS SYS
		NV1 NV2 X   NV2 SYS SYS NV1 SYS PHB PIX SYS SYS
		NV2 NV1 NV2 X   SYS SYS SYS NV1 PHB PIX SYS SYS
		NV2 SYS SYS SYS X   NV1 NV1 NV2 SYS SYS PIX PHB
		SYS NV2 SYS SYS NV1 X   NV2 NV1 SYS SYS PIX PHB
		SYS SYS NV1 SYS NV1 NV2 X   NV2 SYS SYS PHB PIX
		SYS SYS SYS NV1 NV2 NV1 NV2 X   SYS SYS PHB PIX
		PIX PIX PHB PHB SYS SYS SYS SYS X   PHB SYS SYS
		PHB PHB PIX PIX SYS SYS SYS SYS PHB X   SYS SYS
		SYS SYS SYS SYS PIX PIX PHB PHB SYS SYS X   PHB
		SYS SYS SYS SYS PHB PHB PIX PIX SYS SYS PHB X`)
}

// The matrix of a DGX A100 (NVIDIA/nccl issue 1505), the NICs of its compute network.
func TestDGXA100MatrixAsPublished(t *testing.T) {
	compareRows(t, "dgx-a100", `
		X    NV12 NV12 NV12 NV12 NV12 NV12 NV12 PXB PXB SYS SYS SYS SYS SYS SYS
		NV12 X    NV12 NV12 NV12 NV12 NV12 NV12 PXB PXB SYS SYS SYS SYS SYS SYS
		NV12 NV12 X    NV12 NV12 NV12 NV12 NV12 SYS SYS PXB PXB SYS SYS SYS SYS
		NV12 NV12 NV12 X    NV12 NV12 NV12 NV12 SYS SYS PXB PXB SYS SYS SYS SYS
		NV12 NV12 NV12 NV12 X    NV12 NV12 NV12 SYS SYS SYS SYS PXB PXB SYS SYS
		NV12 NV12 NV12 NV12 NV12 X    NV12 NV12 SYS SYS SYS SYS PXB PXB SYS SYS
		NV12 NV12 NV12 NV12 NV12 NV12 X    NV12 SYS SYS SYS SYS SYS SYS PXB PXB
		NV12 NV12 NV12 NV12 NV12 NV12 NV12 X    SYS SYS SYS SYS SYS SYS PXB PXB
		PXB PXB SYS SYS SYS SYS SYS SYS X   PXB SYS SYS SYS SYS SYS SYS
		PXB PXB SYS SYS SYS SYS SYS SYS PXB X   SYS SYS SYS SYS SYS SYS
		SYS SYS PXB PXB SYS SYS SYS SYS SYS SYS X   PXB SYS SYS SYS SYS
		SYS SYS PXB PXB SYS SYS SYS SYS SYS SYS PXB X   SYS SYS SYS SYS
		SYS SYS SYS SYS PXB PXB SYS SYS SYS SYS SYS SYS X   PXB SYS SYS
		SYS SYS SYS SYS PXB PXB SYS SYS SYS SYS SYS SYS PXB X   SYS SYS
		SYS SYS SYS SYS SYS SYS PXB PXB SYS SYS SYS SYS SYS SYS X   PXB
		SYS SYS SYS SYS SYS SYS PXB PXB SYS SYS SYS SYS SYS SYS PXB X`)
	g := mustHost(t, "dgx-a100")
	for name, cpu := range map[string]string{"gpu0": "cpu3", "gpu1": "cpu3", "gpu2": "cpu1", "gpu3": "cpu1", "gpu4": "cpu7", "gpu5": "cpu7",
		"gpu6": "cpu5", "gpu7": "cpu5"} {
		if got := g.Nodes[g.CPUOf(node(t, g, name))].Name; got != cpu {
			t.Errorf("%s is on %s, want NUMA node %s", name, got, cpu)
		}
	}
	if got := g.Connection(node(t, g, "stor0"), node(t, g, "svc0")).String(); got != "PIX" {
		t.Errorf("the two ports of a service card are %s", got)
	}
}

// What DGX H100, DGX B200 and HGX B300 print alike: PXB to the NIC of its own
// branch, NODE to the others of the socket, SYS across.
func TestDGXH100MatrixAsPublished(t *testing.T) {
	for _, kind := range []string{"dgx-h100", "dgx-h200", "dgx-b200", "dgx-b300"} {
		compareRows(t, kind, `
			X    NV18 NV18 NV18 NV18 NV18 NV18 NV18 PXB  NODE NODE NODE SYS  SYS  SYS  SYS
			NV18 X    NV18 NV18 NV18 NV18 NV18 NV18 NODE PXB  NODE NODE SYS  SYS  SYS  SYS
			NV18 NV18 X    NV18 NV18 NV18 NV18 NV18 NODE NODE PXB  NODE SYS  SYS  SYS  SYS
			NV18 NV18 NV18 X    NV18 NV18 NV18 NV18 NODE NODE NODE PXB  SYS  SYS  SYS  SYS
			NV18 NV18 NV18 NV18 X    NV18 NV18 NV18 SYS  SYS  SYS  SYS  PXB  NODE NODE NODE
			NV18 NV18 NV18 NV18 NV18 X    NV18 NV18 SYS  SYS  SYS  SYS  NODE PXB  NODE NODE
			NV18 NV18 NV18 NV18 NV18 NV18 X    NV18 SYS  SYS  SYS  SYS  NODE NODE PXB  NODE
			NV18 NV18 NV18 NV18 NV18 NV18 NV18 X    SYS  SYS  SYS  SYS  NODE NODE NODE PXB
			PXB  NODE NODE NODE SYS  SYS  SYS  SYS  X    NODE NODE NODE SYS  SYS  SYS  SYS
			NODE PXB  NODE NODE SYS  SYS  SYS  SYS  NODE X    NODE NODE SYS  SYS  SYS  SYS
			NODE NODE PXB  NODE SYS  SYS  SYS  SYS  NODE NODE X    NODE SYS  SYS  SYS  SYS
			NODE NODE NODE PXB  SYS  SYS  SYS  SYS  NODE NODE NODE X    SYS  SYS  SYS  SYS
			SYS  SYS  SYS  SYS  PXB  NODE NODE NODE SYS  SYS  SYS  SYS  X    NODE NODE NODE
			SYS  SYS  SYS  SYS  NODE PXB  NODE NODE SYS  SYS  SYS  SYS  NODE X    NODE NODE
			SYS  SYS  SYS  SYS  NODE NODE PXB  NODE SYS  SYS  SYS  SYS  NODE NODE X    NODE
			SYS  SYS  SYS  SYS  NODE NODE NODE PXB  SYS  SYS  SYS  SYS  NODE NODE NODE X`)
	}
}

// DGX-2 (NVIDIA/nccl-tests issue 78): NV6 between all sixteen, over PCIe two GPUs
// and a NIC to a switch, two switches to a tree, two trees to a socket.
func TestDGX2MatrixAsPublished(t *testing.T) {
	got := rows(mustHost(t, "dgx-2"))
	for i, want := range []string{
		"PIX PXB NODE NODE", "PIX PXB NODE NODE", "PXB PIX NODE NODE", "PXB PIX NODE NODE",
		"NODE NODE PIX PXB", "NODE NODE PIX PXB", "NODE NODE PXB PIX", "NODE NODE PXB PIX",
	} {
		if row := strings.Repeat("NV6 ", i) + "X " + strings.Repeat("NV6 ", 15-i) + want + " SYS SYS SYS SYS"; got[i] != row {
			t.Errorf("row %d:\n got %s\nwant %s", i, got[i], row)
		}
		if row := strings.Repeat("NV6 ", i+8) + "X " + strings.Repeat("NV6 ", 7-i) + "SYS SYS SYS SYS " + want; got[i+8] != row {
			t.Errorf("row %d:\n got %s\nwant %s", i+8, got[i+8], row)
		}
	}
}

// The P100 mesh: four single links each, a full quad and one twin across.
func TestDGX1PMesh(t *testing.T) {
	g := mustHost(t, "dgx-1p")
	for a := range 8 {
		for b := range 8 {
			want := 0
			if a != b && (a/4 == b/4 || a%4 == b%4) {
				want = 1
			}
			if got := g.Connection(node(t, g, gpu(a)), node(t, g, gpu(b))).Links; got != want {
				t.Errorf("%d - %d: %d links, want %d", a, b, got, want)
			}
		}
	}
}

// Eight MI300X are fully joined, 64 GB/s each way a pair.
func TestMI300XIsFullyJoined(t *testing.T) {
	g := mustHost(t, "mi300x")
	for a := range 8 {
		for b := range a {
			way, err := g.Route(topo.Flow{From: node(t, g, gpu(a)), To: node(t, g, gpu(b))}, nil)
			if err != nil || len(way) != 1 || between(g, way) != 64e9 {
				t.Errorf("%d - %d: %v, %v", a, b, way, err)
			}
		}
	}
}
