package sim

import (
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// The worlds of jobs that were simulated apart are kept for questions about links. They share what is the same for all of them, and keep
// nothing else that is as large as the cluster: a thousand groups of 16,384 GPUs took 24 GB when they did.
func TestWorldsThatAreKeptAreSmall(t *testing.T) {
	g := preset(t, "rail", map[string]int{"hosts": 16})
	a, err := algo.Find("ring")
	if err != nil {
		t.Fatal(err)
	}
	rails := make([][]topo.NodeID, 8) // a group for each
	at := 0
	g.Each(topo.GPU, func(id topo.NodeID, _ *topo.Node) { rails[at%8] = append(rails[at%8], id); at++ })
	var jobs []Job
	for _, gpus := range rails {
		p, err := Wish{}.ProgramOn(a, g, sched.ReduceScatter, gpus, unit.MiB)
		if err != nil {
			t.Fatal(err)
		}
		jobs = append(jobs, Job{Program: p, Size: unit.MiB, Place: gpus})
	}
	r, err := Run(g, jobs, Options{})
	if err != nil {
		t.Fatal(err)
	}
	worlds := append(r.more, r.w)
	if len(worlds) != len(jobs) {
		t.Fatalf("%d worlds of %d jobs that meet nowhere", len(worlds), len(jobs))
	}
	folded := 0
	for _, w := range worlds {
		if w.sym == nil {
			continue
		}
		folded++
		if w.sym.colour != nil || &w.sym.capacity[0] != &w.net.capacities()[0] {
			t.Errorf("a world keeps %d colours and rates of its own", len(w.sym.colour))
		}
	}
	if folded == 0 {
		t.Error("no world was folded")
	}
}
