package sim

import (
	"errors"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
)

// Rings over eight rails are alike, whatever the fabric above them, so one is simulated for all: to the picosecond what all of
// them take, with the bytes of every link. A slow or dead part on one rail makes its ring unlike the others.
func TestChannelsThatDoTheSame(t *testing.T) {
	ring, err := algo.Find("ring")
	if err != nil {
		t.Fatal(err)
	}
	parts := []struct {
		name string
		o    Options
		copy bool
	}{
		{"healthy", Options{}, true},
		{"a slow NIC", Options{Slow: []Slow{{"n1:nic2", 0.5}}}, false},
		{"a slow GPU", Options{Slow: []Slow{{"n2:gpu3", 0.5}}}, false},
		{"a dead NIC", Options{Fail: []string{"n1:nic2"}}, false},
		{"slow leaves of one rail", Options{Slow: []Slow{{"leaf1", 0.5}}}, false},
	}
	for _, g := range orbitGraphs(t)[:2] {
		for _, op := range []sched.Collective{sched.AllReduce, sched.AllGather} {
			j, err := Wish{}.Job(ring, g, op, 64, 8*unit.MiB, catalog.Default())
			if err != nil {
				t.Fatal(err)
			}
			if j.Program.Channels() != 8 {
				t.Fatalf("%d rings, want one per rail", j.Program.Channels())
			}
			j.Fewer = nil
			for _, part := range parts {
				o := part.o
				o.Measured, o.Costs = true, DefaultCosts(g, catalog.Default())
				r := both(t, g, []Job{j}, o)
				if copied := r.w.copies != nil; copied != part.copy {
					t.Errorf("%s: %s: one channel stands for others: %v, want %v", op, part.name, copied, part.copy)
				}
			}
		}
	}
}

// A simulation that can meet its deadline is not given up before it has, and one that is late by a picosecond is.
func TestPaceGivesNothingUpTooEarly(t *testing.T) {
	g := smallPods(t)
	early := 0
	for _, a := range algo.All() {
		for _, op := range a.Ops {
			j, err := Wish{}.Job(a, g, op, 32, 16*unit.MiB, catalog.Default())
			if err != nil {
				continue
			}
			if j, err = j.placed(g); err != nil {
				continue
			}
			net, err := networkOf(g, Options{Measured: true, Costs: DefaultCosts(g, catalog.Default())})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := net.bound(j); err != nil {
				t.Fatal(err)
			}
			r, err := net.run([]Job{j}, 0)
			if err != nil {
				t.Fatal(err)
			}
			before := net.work
			if on, err := net.run([]Job{j}, r.Time); err != nil || on.Time != r.Time {
				t.Errorf("%s %s takes %s and is given up before: %v", a.Name, op, r.Time, err)
			}
			all := net.work - before
			if _, err := net.run([]Job{j}, r.Time-1); !errors.Is(err, ErrLate) {
				t.Errorf("%s %s takes %s and is not late for a picosecond less: %v", a.Name, op, r.Time, err)
			}
			before = net.work
			if _, err := net.run([]Job{j}, r.Time*3/4); errors.Is(err, ErrLate) && 2*(net.work-before) < all {
				early++
			}
		}
	}
	if early == 0 {
		t.Error("nothing that takes a third too long is given up within half of its actions")
	}
}
