package build

import (
	"encoding/csv"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
)

// counts is a row of NVIDIA's tables.
type counts struct {
	hosts, gpus, leaf, spine, core int
	hostLeaf, leafSpine, spineCore int
}

// count reads the row off a graph: hosts are those with GPUs, cables those of the fabrics.
func count(g *topo.Graph, perCable int) counts {
	var c counts
	c.gpus = g.Count(topo.GPU)
	for h := range g.Hosts {
		for _, n := range g.HostNodes(topo.HostID(h)) {
			if n.Kind == topo.GPU {
				c.hosts++
				break
			}
		}
	}
	g.Each(topo.Switch, func(_ topo.NodeID, n *topo.Node) {
		switch n.Tier {
		case 1:
			c.leaf++
		case 2:
			c.spine++
		case 3:
			c.core++
		}
	})
	for i := range g.Links {
		l := &g.Links[i]
		if !g.Class(topo.LinkID(i)).Kind.Network() {
			continue
		}
		switch g.Nodes[l.B].Tier {
		case 1:
			c.hostLeaf++
		case 2:
			c.leafSpine++
		case 3:
			c.spineCore++
		}
	}
	c.hostLeaf, c.leafSpine, c.spineCore = c.hostLeaf/perCable, c.leafSpine/perCable, c.spineCore/perCable
	return c
}

// TestSuperPODTables holds the rows of NVIDIA's tables for B200 and B300 as
// published, those for H100 as far as they are known, and for A100 the switches
// of the full system only; its cables follow from its ports.
func TestSuperPODTables(t *testing.T) {
	c := catalog.Default()
	for _, row := range []struct {
		preset string
		su     int
		want   counts
	}{
		// The full system of 140 DGX A100: 56, 80 and 28 switches. Other sizes were not to be had.
		{"superpod-a100", 7, counts{140, 1120, 56, 80, 28, 1120, 1120, 1120}},
		// For DGX H100, RA-11333-001, table of compute fabric counts; the host column holds the four UFM cables.
		{"superpod-h100", 1, counts{31, 248, 8, 4, 0, 252, 256, 0}},
		{"superpod-h100", 2, counts{63, 504, 16, 8, 0, 508, 512, 0}},
		{"superpod-h100", 3, counts{95, 760, 24, 16, 0, 764, 768, 0}},
		{"superpod-h100", 4, counts{127, 1016, 32, 16, 0, 1020, 1024, 0}},
		// For DGX B200, larger SuperPOD component counts.
		{"superpod-b200", 2, counts{64, 512, 16, 8, 0, 512, 512, 0}},
		{"superpod-b200", 4, counts{128, 1024, 32, 16, 0, 1024, 1024, 0}},
		{"superpod-b200", 8, counts{256, 2048, 64, 32, 0, 2048, 2048, 0}},
		{"superpod-b200", 16, counts{512, 4096, 128, 128, 64, 4096, 4096, 4096}},
		{"superpod-b200", 32, counts{1024, 8192, 256, 256, 128, 8192, 8192, 8192}},
		{"superpod-b200", 64, counts{2048, 16384, 512, 512, 256, 16384, 16384, 16384}},
		// For DGX B300 with Spectrum-4 Ethernet, table 3.
		{"superpod-b300", 1, counts{64, 512, 16, 8, 0, 512, 512, 0}},
		{"superpod-b300", 2, counts{128, 1024, 32, 16, 0, 1024, 1024, 0}},
		{"superpod-b300", 4, counts{256, 2048, 64, 32, 0, 2048, 2048, 0}},
		{"superpod-b300", 8, counts{512, 4096, 128, 64, 0, 4096, 4096, 0}},
		{"superpod-b300", 16, counts{1024, 8192, 256, 128, 0, 8192, 8192, 0}},
		// For DGX B300 with Quantum-X800, RA-11339-001, table 3; its 9216 GPUs in the last row are a misprint.
		{"superpod-b300-xdr", 1, counts{72, 576, 8, 4, 0, 576, 576, 0}},
		{"superpod-b300-xdr", 2, counts{144, 1152, 16, 8, 0, 1152, 1152, 0}},
		{"superpod-b300-xdr", 4, counts{288, 2304, 32, 18, 0, 2304, 2304, 0}},
		{"superpod-b300-xdr", 8, counts{576, 4608, 64, 36, 0, 4608, 4608, 0}},
		{"superpod-b300-xdr", 18, counts{1296, 10368, 144, 72, 0, 10368, 10368, 0}},
	} {
		t.Run(fmt.Sprintf("%s/%d", row.preset, row.su), func(t *testing.T) {
			b, err := BuildPreset(c, row.preset, map[string]int{"su": row.su})
			if err != nil {
				t.Fatal(err)
			}
			if got := count(b.Graph, b.LinksPerCable); got != row.want {
				t.Errorf("got  %+v\nwant %+v", got, row.want)
			}
		})
	}
}

// TestSuperPODCountsFile compares with the reference table, where there is one.
func TestSuperPODCountsFile(t *testing.T) {
	f, err := os.Open("../../../../shared/reference/data/superpod_counts.csv")
	if err != nil {
		t.Skip("no reference table beside the checkout")
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	c := catalog.Default()
	for _, row := range rows[1:] {
		gen, _, _ := strings.Cut(row[0], "_")
		var v [9]int
		for i := range v {
			if v[i], err = strconv.Atoi(row[i+1]); err != nil {
				t.Fatal(row, err)
			}
		}
		b, err := BuildPreset(c, "superpod-"+strings.ToLower(gen), map[string]int{"su": v[0]})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := count(b.Graph, 1), (counts{v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8]}); got != want {
			t.Errorf("%s, %d units:\ngot  %+v\nwant %+v", gen, v[0], got, want)
		}
	}
}
