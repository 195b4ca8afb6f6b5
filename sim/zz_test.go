package sim

import (
	"fmt"
	"os"
	"testing"

	"github.com/weft-fabric/weft/cluster"
	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/sched/algo"
	"github.com/weft-fabric/weft/topo"
	"github.com/weft-fabric/weft/topo/catalog"
	"github.com/weft-fabric/weft/unit"
)

func TestHier(t *testing.T) {
	for _, f := range []string{"131k", "16k", "1k"} {
		var c *cluster.Cluster
		var err error
		switch f {
		case "131k":
			data, _ := os.ReadFile("../examples/rail-131k.yaml")
			c, err = cluster.Parse("x", data, nil)
		case "16k":
			c, err = cluster.Preset("rail", map[string]int{"hosts": 2048, "tiers": 3})
		case "1k":
			c, err = cluster.Preset("rail", map[string]int{"hosts": 128})
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, outer := range []string{"ring", ""} {
			p := program(t, "hierarchical", algo.Spec{Op: sched.AllReduce, Ranks: c.Graph.Count(topo.GPU), Slots: 8, Local: 8, Outer: outer})
			if f == "1k" {
				fmt.Println(p)
			}
			for _, size := range []unit.Bytes{unit.GiB, 64 * unit.GiB} {
				start := cpu()
				res, err := Collective(c.Graph, p, size, Options{Measured: true, Costs: DefaultCosts(c.Graph, catalog.Default())})
				if err != nil {
					t.Fatal(err)
				}
				fmt.Println(f, size, outer, cpu()-start, res.Time, res.BusBW, res.Limit, res.Ranks, res.Folded, res.Actions)
			}
		}
	}
}
