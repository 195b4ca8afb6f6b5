package sim

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/weft-fabric/weft/cluster"
	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/sched/algo"
	"github.com/weft-fabric/weft/topo"
	"github.com/weft-fabric/weft/topo/catalog"
	"github.com/weft-fabric/weft/unit"
)

func preset(tb testing.TB, name string, params map[string]int) *topo.Graph {
	tb.Helper()
	c, err := cluster.Preset(name, params)
	if err != nil {
		tb.Fatal(err)
	}
	return c.Graph
}

func program(tb testing.TB, name string, s algo.Spec) *sched.Program {
	tb.Helper()
	a, err := algo.Find(name)
	if err != nil {
		tb.Fatal(err)
	}
	p, err := a.Program(s)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func TestTmp(t *testing.T) {
	g := preset(t, "dgx-h100", nil)
	p := program(t, "ring", algo.Spec{Op: sched.AllReduce, Ranks: 8})
	for _, un := range []bool{false, true} {
		res, err := Collective(g, p, unit.GiB, Options{Unfolded: un})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println(res.Time, res.BusBW, res.Limit, res.Ranks, res.Folded, res.Actions, res.Critical)
	}
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
		p := program(t, "ring", algo.Spec{Op: sched.AllReduce, Ranks: c.Graph.Count(topo.GPU), Slots: 8})
		for _, size := range []unit.Bytes{unit.GiB, 64 * unit.GiB} {
			start := cpu()
			res, err := Collective(c.Graph, p, size, Options{Measured: true, Costs: DefaultCosts(c.Graph, catalog.Default())})
			if err != nil {
				t.Fatal(err)
			}
			fmt.Println(f, size, cpu()-start, res.Time, res.BusBW, res.Limit, res.Ranks, res.Folded, res.Actions)
		}
	}
}

// cpu is the processor time this process has used.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
