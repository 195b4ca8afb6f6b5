package rings

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/build"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/topo/format"
)

// fixtures holds dumps from real machines, which are not part of the project.
const fixtures = "../../../../shared/reference/fixtures/nccl-topo"

// The machines as they are built, by kind: rings and their bus bandwidth on the
// wire, over all GPUs.
func TestBuiltHosts(t *testing.T) {
	for _, c := range []struct {
		kind   string
		medium Medium
		rings  int
		wire   float64
	}{
		{"dgx-1p", NVLink, 4, 80},
		{"dgx-1v", NVLink, 6, 150},
		{"dgx-2", NVSwitch, 6, 150},
		{"dgx-a100", NVSwitch, 12, 300},
		{"dgx-h100", NVSwitch, 18, 450},
		{"dgx-b200", NVSwitch, 18, 900},
		{"mi300x", XGMI, 7, 448},
		{"pcie-8", PCIe, 1, 31.5},
		{"summit", Socket, 1, 50},
	} {
		g, err := build.Host(catalog.Default(), c.kind, "n0")
		if err != nil {
			t.Fatal(err)
		}
		r := find(t, g, gpus(t, g))
		if r.Medium != c.medium || len(r.Rings) != c.rings || !r.Exact {
			t.Errorf("%s: %d rings over %s, exact %t; want %d over %s", c.kind, len(r.Rings), r.Medium, r.Exact, c.rings, c.medium)
		}
		near(t, c.kind, r.RingBus, c.wire, 0.001)
	}
}

// What a dialect can say of a machine is enough to find the same rings.
func TestSameRingsAfterImport(t *testing.T) {
	for _, kind := range []string{"dgx-1v", "dgx-1p", "dgx-a100", "dgx-h100"} {
		built, err := build.Host(catalog.Default(), kind, "n0")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"nccl-xml", "nvidia-smi", "json"} {
			d, err := format.Find(name)
			if err != nil {
				t.Fatal(err)
			}
			var b bytes.Buffer
			if err := d.Encode(&b, built); err != nil {
				t.Fatal(err)
			}
			g, err := d.Decode("n0", b.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range []int{2, 3, 4, 5, 8} {
				want, got := find(t, built, gpus(t, built)[:n]), find(t, g, gpus(t, g)[:n])
				if len(got.Rings) != len(want.Rings) || len(got.Trees) != len(want.Trees) || got.Medium != want.Medium || !got.Exact {
					t.Errorf("%s by %s, %d GPUs: %d rings and %d trees over %s (%s), want %d and %d over %s", kind, name, n,
						len(got.Rings), len(got.Trees), got.Medium, got.Why, len(want.Rings), len(want.Trees), want.Medium)
				}
			}
		}
	}
}

// The files that clouds hand out for NCCL_TOPO_FILE hold the PCIe tree alone:
// NCCL asks the driver for NVLinks when it runs. What is left is the ring that
// crosses every PCIe link once.
func TestFilesOfCloudsHoldNoNVLinks(t *testing.T) {
	for _, c := range []struct {
		file     string
		expected float64
	}{
		{"azure-ndv4.xml", 24}, // 16 GT/s
		{"aws-p4d.xml", 12},    // 8 GT/s
	} {
		file := c.file
		data, err := os.ReadFile(filepath.Join(fixtures, file))
		if err != nil {
			t.Skipf("the file %s is not here", file)
		}
		d, err := format.Find("nccl-xml")
		if err != nil {
			t.Fatal(err)
		}
		g, err := d.Decode("n0", data)
		if err != nil {
			t.Fatal(err)
		}
		r := find(t, g, gpus(t, g))
		if r.Medium != PCIe || len(r.Rings) != 1 || len(r.GPUs) != 8 || len(r.Others) != 0 {
			t.Errorf("%s: %d rings of %d GPUs over %s, others %v", file, len(r.Rings), len(r.GPUs), r.Medium, r.Others)
		}
		near(t, file, r.RingExpected, c.expected, 0.01)
	}
}

// Racks and NVLink networks: hosts do not matter, switches do.
func TestDomainsOfManyHosts(t *testing.T) {
	for _, c := range []struct {
		name string
		pick func(hosts int) []int
		wire float64
	}{
		{"gb200-nvl72", func(h int) []int { return []int{0, 1, 2, h - 1} }, 900},
		{"nvlink-256", func(h int) []int { return []int{0, 1} }, 450},
	} {
		built, err := build.BuildPreset(catalog.Default(), c.name, nil)
		if err != nil {
			t.Fatal(err)
		}
		g := built.Graph
		var set []topo.NodeID
		for _, h := range c.pick(len(g.Hosts)) {
			for i, n := range g.HostNodes(topo.HostID(h)) {
				if n.Kind == topo.GPU {
					set = append(set, g.Hosts[h].First+topo.NodeID(i))
				}
			}
		}
		r := find(t, g, set)
		t.Logf("%s: %d GPUs, %d rings, %s on the wire, exact %t: %s", c.name, len(set), len(r.Rings), r.RingBus, r.Exact, r.Why)
		if r.Medium != NVSwitch || !r.Exact {
			t.Errorf("%s: %s, exact %t: %s", c.name, r.Medium, r.Exact, r.Why)
		}
		near(t, c.name, r.RingBus, c.wire, 0.001)
	}
}

// A torus of chips falls into as many rings as a chip has links: half as many
// cycles, each both ways.
func TestTorusOfChips(t *testing.T) {
	for _, c := range []struct{ x, y, z, chips, rings int }{{4, 4, 1, 16, 4}, {4, 4, 2, 32, 5}, {4, 4, 4, 64, 6}} {
		built, err := build.BuildPreset(catalog.Default(), "tpu-v4", map[string]int{"x": c.x, "y": c.y, "z": c.z})
		if err != nil {
			t.Fatal(err)
		}
		r := find(t, built.Graph, gpus(t, built.Graph))
		if len(r.GPUs) != c.chips || len(r.Rings) != c.rings || r.Medium != ICI || !r.Exact {
			t.Errorf("%d x %d x %d: %d rings over %s, exact %t, want %d", c.x, c.y, c.z, len(r.Rings), r.Medium, r.Exact, c.rings)
		}
	}
}
