package sim

import (
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/verify"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/topo/hostlist"
	"github.com/weft-fabric/weft/model/unit"
)

// Where the last host has fewer GPUs than the others, auto comes near what its NICs allow: they send all that leaves the host and receive
// all that enters it, which is the whole buffer for an all-reduce and the other hosts' part of an all-to-all.
func TestAutoOnUnevenHosts(t *testing.T) {
	const nic = 48e9 // bytes a second, measured
	for _, x := range []struct {
		preset string
		hosts  int
		gpus   int
		op     sched.Collective
		share  float64 // of the bound
	}{
		{"rail", 4, 25, sched.AllReduce, 0.9},
		{"rail", 3, 19, sched.AllReduce, 0.6},
		{"rail", 13, 97, sched.AllReduce, 0.9},
		{"rail", 4, 25, sched.AllToAll, 0.95},
		{"rail", 3, 19, sched.AllToAll, 0.95},
		{"rail", 13, 103, sched.AllToAll, 0.95},
	} {
		g := preset(t, x.preset, map[string]int{"hosts": x.hosts})
		o := Options{Measured: true, Costs: DefaultCosts(g, catalog.Default())}
		best, err := Best(g, x.op, x.gpus, unit.GiB, o, Wish{NoSwitches: true, Plain: true})
		if err != nil {
			t.Fatal(err)
		}
		short := float64(x.gpus % 8)
		out := float64(unit.GiB)
		if x.op == sched.AllToAll {
			out *= short * (float64(x.gpus) - short) / float64(x.gpus)
		}
		bound := out / short / nic
		if took := best.Result.Time.Seconds(); took < bound || bound/took < x.share {
			t.Errorf("%s on %d GPUs: %s by %s, %.2f of the bound, want %.2f", x.op, x.gpus, best.Result.Time, best.Algo, bound/took, x.share)
		}
	}
}

// Folding changes nothing where hosts are uneven.
func TestUnevenHostsFoldedAreUnfolded(t *testing.T) {
	g := preset(t, "rail", map[string]int{"hosts": 5})
	for name, op := range map[string]sched.Collective{"hierarchical": sched.AllReduce, "pairwise-hosts": sched.AllToAll} {
		a, err := algo.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{9, 19, 28, 39} {
			p, err := Wish{}.Program(a, g, op, n, 64*unit.MiB, catalog.Default())
			if err != nil {
				t.Fatal(err)
			}
			o := Options{Measured: true, Costs: DefaultCosts(g, catalog.Default())}
			folded, err := Collective(g, p, 64*unit.MiB, o)
			if err != nil {
				t.Fatal(err)
			}
			o.Unfolded = true
			plain, err := Collective(g, p, 64*unit.MiB, o)
			if err != nil || plain.Time != folded.Time {
				t.Errorf("%s on %d GPUs: %d ps folded, %d ps unfolded; %v", name, n, folded.Time, plain.Time, err)
			}
		}
	}
}

// Where a host in the middle lacks a GPU, auto is as fast as where the last one does, with programs that are proven.
func TestAutoOnChosenGPUs(t *testing.T) {
	g := preset(t, "rail", map[string]int{"hosts": 5})
	o := Options{Measured: true, Costs: DefaultCosts(g, catalog.Default())}
	on := func(names ...string) (gpus []topo.NodeID) {
		for _, name := range names {
			list, err := hostlist.Expand(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range list {
				id, err := g.Lookup(n)
				if err != nil {
					t.Fatal(err)
				}
				gpus = append(gpus, id)
			}
		}
		return gpus
	}
	last := on("n[0,2-4]:gpu[0-7]", "n1:gpu[0-2]")
	middle := on("n0:gpu[0-7]", "n1:gpu[0-2]", "n[2-4]:gpu[0-7]")
	two := on("n0:gpu[0-3]", "n[1-3]:gpu[0-7]", "n4:gpu[0-2]")
	for _, op := range []sched.Collective{sched.AllReduce, sched.AllGather, sched.AllToAll, sched.Broadcast} {
		var took [3]unit.Time
		for i, gpus := range [][]topo.NodeID{last, middle, two} {
			f, err := Best(g, op, len(gpus), 256*unit.MiB, o, Wish{On: gpus})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := verify.Right(f.Program); err != nil {
				t.Errorf("%s on chosen GPUs, %s: %v", op, f.Algo, err)
			}
			place, err := PlaceOn(g, f.Program, gpus)
			if err != nil {
				t.Fatal(err)
			}
			r, err := Run(g, []Job{{Program: f.Program, Size: 256 * unit.MiB, Place: place}}, o)
			if err != nil || r.Time != f.Result.Time {
				t.Errorf("%s by %s: %s, simulated again %s; %v", op, f.Algo, f.Result.Time, r.Time, err)
			}
			took[i] = f.Result.Time
		}
		if took[1] > took[0]+took[0]/20 {
			t.Errorf("%s: %s with the short host in the middle, %s with it last", op, took[1], took[0])
		}
	}
}

// Around dead NICs and slow ones, rings of auto leave their rails out where the others carry more without them: with seven of eight rails
// they are nearly that fast, and programs are proven.
func TestRingsAroundBadNICs(t *testing.T) {
	g := preset(t, "rail", map[string]int{"hosts": 4})
	for _, x := range []struct {
		fail  []string
		slow  []Slow
		rings int
		bus   float64
	}{{nil, nil, 8, 0}, {[]string{"n3:nic2"}, nil, 7, 7 * 48}, {[]string{"n0:nic0", "n2:nic7"}, nil, 6, 6 * 48},
		{[]string{"n0:nic0", "n1:nic1", "n2:nic2", "n3:nic3"}, nil, 8, 4 * 48},
		{nil, []Slow{{"n1:nic3", 0.5}}, 7, 7 * 48}, {nil, []Slow{{"leaf3", 0.5}}, 7, 7 * 48},
		{nil, []Slow{{"n1:nic3", 0.9}}, 8, 8 * 0.9 * 48},
		{[]string{"n0:nic0"}, []Slow{{"n1:nic3", 0.1}, {"n2:nic5", 0.8}}, 5, 5 * 48}} {
		o := Options{Measured: true, Costs: DefaultCosts(g, catalog.Default()), Fail: x.fail, Slow: x.slow}
		f, err := Best(g, sched.AllGather, 32, unit.GiB, o, Wish{Plain: true})
		if err != nil {
			t.Fatal(err)
		}
		if f.Algo != "ring" || f.Program.Channels() != x.rings || float64(f.Result.BusBW)/1e9 < .95*x.bus {
			t.Errorf("without %v, %v: %s of %d channels, bus %s; want %d rings and %g GB/s", x.fail, x.slow, f.Algo, f.Program.Channels(), f.Result.BusBW,
				x.rings, x.bus)
		}
		if _, err := verify.Right(f.Program); err != nil {
			t.Error(err)
		}
	}
}

// With a bad part, auto first simulates what is the fastest without it, and then leaves out what is slower even so.
func TestHealthyWinnerIsTriedFirst(t *testing.T) {
	g := preset(t, "rail", map[string]int{"hosts": 40})
	o := Options{Measured: true, Costs: DefaultCosts(g, catalog.Default()), Fail: []string{"n7:nic2"}}
	f, err := Best(g, sched.AllGather, 320, unit.GiB, o, Wish{})
	if err != nil {
		t.Fatal(err)
	}
	simulated := 0
	for _, tried := range f.Tried {
		if tried.Why == "" {
			simulated++
		}
		t.Log(tried.Algo, tried.Time, tried.Why)
	}
	if f.Algo != "ring" || simulated != 1 {
		t.Errorf("%s of %d simulated, want ring, the only one", f.Algo, simulated)
	}
}

// A program whose flows pass no bad part takes as long as without it, and one whose flows do is told apart: a ring round all rails from one
// round seven of them, and a slow GPU is never spared.
func TestSparedBadPartsChangeNothing(t *testing.T) {
	g := preset(t, "rail", map[string]int{"hosts": 4})
	plain := Options{Catalog: catalog.Default(), Measured: true, Costs: DefaultCosts(g, catalog.Default())}
	healthy, err := networkOf(g, plain)
	if err != nil {
		t.Fatal(err)
	}
	ring, err := algo.Find("ring")
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		fail   []string
		slow   []Slow
		around bool
		spared bool
	}{{[]string{"n1:nic2"}, nil, true, true}, {nil, []Slow{{"leaf3", 0.5}}, true, true}, {nil, []Slow{{"leaf3", 0.5}}, false, false},
		{nil, []Slow{{"n3:gpu1", 0.5}}, true, false}, {[]string{"n1:nic2"}, []Slow{{"n1:gpu5", 0.9}}, true, false}} {
		o := plain
		o.Fail, o.Slow = x.fail, x.slow
		net, err := networkOf(g, o)
		if err != nil {
			t.Fatal(err)
		}
		wish := Wish{}
		if x.around {
			wish.bad = net
		}
		j, err := wish.Job(ring, g, sched.AllReduce, 32, 64*unit.MiB, catalog.Default())
		if err == nil {
			j, err = j.placed(g)
		}
		if err != nil {
			t.Fatal(err)
		}
		res, err := healthy.run([]Job{j}, 0)
		if err != nil {
			t.Fatal(err)
		}
		if spared := net.spares(res); spared != x.spared {
			t.Errorf("%v, %v: spared %v, want %v", x.fail, x.slow, spared, x.spared)
		}
		o.Unfolded = true
		whole, err := Collective(g, j.Program, 64*unit.MiB, o)
		if err != nil {
			t.Fatal(err)
		}
		if same := whole.Time == res.Time; same != x.spared {
			t.Errorf("%v, %v: %s with the bad part, %s without", x.fail, x.slow, whole.Time, res.Time)
		}
	}
}
