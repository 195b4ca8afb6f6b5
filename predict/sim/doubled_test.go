package sim

import (
	"math"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
)

// The ranks around a bad part say how long all take, with a ring between hosts and with halving and doubling.
func TestFewerRanksAroundABadPart(t *testing.T) {
	hosts := bounded.Times(128, 256)
	g := preset(t, "rail", map[string]int{"hosts": hosts, "tiers": 2})
	a, err := algo.Find("hierarchical")
	if err != nil {
		t.Fatal(err)
	}
	type trial struct {
		name, outer string
		size        unit.Bytes
		o           Options
	}
	for _, c := range bounded.First(2,
		trial{"a slow NIC", "rabenseifner", 1 << 30, Options{Slow: []Slow{{"n7:nic2", 0.5}}}},
		trial{"a dead NIC", "rabenseifner", 1 << 28, Options{Fail: []string{"n70:nic0"}}},
		trial{"a slow NIC, few bytes", "rabenseifner", 1 << 16, Options{Slow: []Slow{{"n7:nic2", 0.1}}}},
		trial{"a slow GPU", "rabenseifner", 1 << 26, Options{Slow: []Slow{{"n30:gpu5", 0.25}}}},
		trial{"a slow NIC", "", 1 << 30, Options{Slow: []Slow{{"n7:nic2", 0.5}}}}, // four million actions
	) {
		ranks := hosts * 8
		build := func(n int) (*sched.Program, error) {
			return Wish{Outer: c.outer}.Program(a, g, sched.AllReduce, n, c.size, catalog.Default())
		}
		p, err := build(ranks)
		if err != nil {
			t.Fatal(err)
		}
		c.o.Measured, c.o.Costs = true, DefaultCosts(g, catalog.Default())
		job := Job{Program: p, Size: c.size, Fewer: &Fewer{Program: build, Grain: 8, Doubles: c.outer != ""}}
		whole, err := Run(g, []Job{job}, c.o)
		if err != nil {
			t.Fatal(err)
		}
		c.o.shorten = true
		net, err := networkOf(g, c.o)
		if err != nil {
			t.Fatal(err)
		}
		net.quick = true
		if job, err = job.placed(g); err != nil {
			t.Fatal(err)
		}
		short, err := net.run([]Job{job}, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s, %s: %s whole from %d actions, %s from %d ranks", c.name, c.outer, whole.Time, whole.Actions, short.Time, short.Ranks)
		if d := math.Abs(float64(short.Time)/float64(whole.Time) - 1); d > roughBend {
			t.Errorf("%s: %s whole, %s with fewer ranks", c.name, whole.Time, short.Time)
		}
		if !short.Shortened || whole.Shortened {
			t.Errorf("%s: shortened %v and %v; want false and true", c.name, whole.Shortened, short.Shortened)
		}
	}
}
