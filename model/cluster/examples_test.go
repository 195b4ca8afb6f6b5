package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/topo"
)

// TestExamples parses every example and checks its size.
func TestExamples(t *testing.T) {
	type size struct{ hosts, gpus, leaves, spines, cores int }
	want := map[string]size{
		"rail-1k.yaml":        {128, 1024, 32, 16, 0},
		"rail-131k.yaml":      {16384, 131072, 2048, 2048, 1024},
		"fat-tree-2tier.yaml": {125, 1000, 25, 10, 0},
		"superpod-h100.yaml":  {129, 1016, 32, 16, 0},
		"hpn.yaml":            {256, 2048, 32, 120, 0},
		"dragonfly.yaml":      {36, 288, 72, 0, 0},
		"torus.yaml":          {64, 512, 64, 0, 0},
		"tpu-v4.yaml":         {1024, 4096, 0, 0, 0},
		"two-fabrics.yaml":    {64, 512, 20, 10, 0},
		"pcie-lab.yaml":       {4, 16, 2, 1, 0},
		"lab.yaml":            {8, 16, 4, 2, 0},
		"hall.yaml":           {64, 512, 16, 4, 0},
		"nvl72.yaml":          {144, 576, 32, 9, 0},
		"meta-24k.yaml":       {3072, 24576, 1536, 144, 9},

		"storage.yaml":              {8, 16, 8, 4, 0},
		"tenants.yaml":              {8, 16, 8, 4, 0},
		"collective-pcie.yaml":      {1, 8, 0, 0, 0},
		"collective-cube-mesh.yaml": {1, 8, 0, 0, 0},
		"collective-nvswitch.yaml":  {1, 8, 0, 0, 0},
		"collective-torus.yaml":     {1024, 4096, 0, 0, 0},
	}
	files, err := filepath.Glob("../../examples/*.yaml")
	if err != nil || len(files) < len(want) {
		t.Fatalf("%d examples, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			if testing.Short() && strings.Contains(file, "131k") {
				t.Skip("large")
			}
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(string(data), "# ") {
				t.Error("no comment at the top")
			}
			c, err := Parse(file, data, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Graph.Validate(); err != nil {
				t.Error(err)
			}
			w, ok := want[filepath.Base(file)]
			if !ok {
				t.Fatal("its size is not in the test")
			}
			got := size{hosts: len(c.Graph.Hosts), gpus: c.Graph.Count(topo.GPU)}
			c.Graph.Each(topo.Switch, func(_ topo.NodeID, n *topo.Node) {
				switch n.Tier {
				case 1:
					got.leaves++
				case 2:
					got.spines++
				case 3:
					got.cores++
				}
			})
			if got != w {
				t.Errorf("got %+v, want %+v", got, w)
			}
		})
	}
}
