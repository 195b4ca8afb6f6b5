package sim

import (
	"math"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// Three short rings around a bad part say how long a long one takes.
func TestShortRings(t *testing.T) {
	const hosts = 1664
	g := preset(t, "rail", map[string]int{"hosts": hosts, "tiers": 3})
	var gpus []topo.NodeID
	g.Each(topo.GPU, func(id topo.NodeID, _ *topo.Node) { gpus = append(gpus, id) })
	ring, err := algo.Find("ring")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		size unit.Bytes
		o    Options
	}{
		{"a slow NIC", 16 << 30, Options{Slow: []Slow{{"n700:nic0", 0.5}}}},
		{"a slow GPU", 1 << 20, Options{Slow: []Slow{{"n5:gpu0", 0.2}}}},
	} {
		c.o.Costs, c.o.Measured = costs, true
		set := make([]topo.NodeID, hosts)
		for h := range set {
			set[h] = gpus[h*8]
		}
		build := func(ranks int) (*sched.Program, error) {
			return Wish{}.ProgramOn(ring, g, sched.ReduceScatter, set[:ranks], c.size)
		}
		p, err := build(hosts)
		if err != nil {
			t.Fatal(err)
		}
		jobs := []Job{{Program: p, Size: c.size, Place: set, Fewer: &Fewer{Program: build}}}
		whole, err := Run(g, jobs, c.o)
		if err != nil {
			t.Fatal(err)
		}
		c.o.shorten = true
		short, err := Run(g, jobs, c.o)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %s whole, %s from %d ranks", c.name, whole.Time, short.Time, short.Ranks)
		if !short.Shortened || whole.Shortened {
			t.Errorf("%s: shortened %v and %v; want false and true", c.name, whole.Shortened, short.Shortened)
		}
		if d := math.Abs(float64(short.Time)/float64(whole.Time) - 1); d > 2*maxBend {
			t.Errorf("%s: %s whole, %s from shorter rings", c.name, whole.Time, short.Time)
		}
		if whole.Limit[:10] != short.Limit[:10] {
			t.Errorf("%s: limit %q whole, %q from shorter rings", c.name, whole.Limit, short.Limit)
		}
	}
}
