package sim

import (
	"strings"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
)

// TestAutoIsTheFastest: on machines of every sort and for small and large sizes,
// no algorithm that can be named is faster than what Best gives, and what Best
// gives takes the time that it says.
func TestAutoIsTheFastest(t *testing.T) {
	for i, c := range []struct {
		name   string
		params map[string]int
		gpus   int
		op     sched.Collective
		sizes  []unit.Bytes
	}{
		{"dgx-h100", nil, 8, sched.AllReduce, []unit.Bytes{8, unit.MiB, unit.GiB}},
		{"dgx-a100", nil, 8, sched.AllReduce, []unit.Bytes{8, unit.GiB}},
		{"dgx-1v", nil, 8, sched.AllReduce, []unit.Bytes{64 * unit.MiB}},
		{"gb200-nvl72", nil, 24, sched.AllReduce, []unit.Bytes{unit.MiB, unit.GiB}},
		{"rail", map[string]int{"hosts": 4}, 32, sched.AllReduce, []unit.Bytes{8, 256 * unit.MiB}},
		{"rail", map[string]int{"hosts": 3}, 24, sched.AllToAll, []unit.Bytes{64 * unit.MiB}},
		{"fat-tree", map[string]int{"hosts": 3}, 20, sched.AllGather, []unit.Bytes{64 * unit.KiB, 64 * unit.MiB}},
		{"rail", map[string]int{"hosts": 2}, 16, sched.Broadcast, []unit.Bytes{8, 64 * unit.MiB}},
		{"rail", map[string]int{"hosts": 2}, 16, sched.ReduceScatter, []unit.Bytes{64 * unit.MiB}},
		{"rail", map[string]int{"hosts": 2}, 16, sched.Barrier, []unit.Bytes{8}},
	} {
		if !bounded.Long() && i%3 != 0 {
			continue
		}
		g := preset(t, c.name, c.params)
		o := Options{Measured: true, Costs: DefaultCosts(g, catalog.Default())}
		for _, size := range c.sizes {
			best, err := Best(g, c.op, c.gpus, size, o, Wish{})
			if err != nil {
				t.Fatal(err)
			}
			if r, err := Collective(g, best.Program, size, o); err != nil || r.Time != best.Result.Time {
				t.Errorf("%s of %s on %s: %s takes %v, not %s; %v", c.op, size, c.name, best.Program.Name, r, best.Result.Time, err)
			}
			tried := 0
			for _, x := range candidates(g, c.op, c.gpus, Wish{}) {
				if why := leftOut(x.a, g, c.op, c.gpus, Wish{}); why != "" {
					continue
				}
				p, err := Wish{Outer: x.outer}.Program(x.a, g, c.op, c.gpus, size, catalog.Default())
				if err != nil {
					continue
				}
				r, err := Collective(g, p, size, o)
				if err != nil {
					t.Errorf("%s of %s on %s by %s: %v", c.op, size, c.name, x.name(), err)
					continue
				}
				if tried++; r.Time < best.Result.Time {
					t.Errorf("%s of %s on %s: %s takes %s, auto %s by %s", c.op, size, c.name, x.name(), r.Time, best.Result.Time, best.Algo)
				}
			}
			if tried < 3 {
				t.Errorf("%s on %s: only %d algorithms could be compared", c.op, c.name, tried)
			}
		}
	}
}

// TestAutoUsesSwitches where they add, and only there.
func TestAutoUsesSwitches(t *testing.T) {
	for name, want := range map[string]string{"dgx-h100": "nvls", "gb200-nvl72": "nvls", "dgx-a100": "ring"} {
		if name == "gb200-nvl72" && !bounded.Long() {
			continue
		}
		g := preset(t, name, nil)
		n := g.Count(topo.GPU)
		best, err := Best(g, sched.AllReduce, n, unit.GiB, Options{Measured: true, Costs: DefaultCosts(g, catalog.Default())}, Wish{})
		if err != nil {
			t.Fatal(err)
		}
		if best.Program.Name != want {
			t.Errorf("%s: %s in %s, not %s", name, best.Program.Name, best.Result.Time, want)
		}
		if best, err = Best(g, sched.AllReduce, n, unit.GiB, Options{}, Wish{NoSwitches: true}); err != nil || best.Program.Switches > 0 {
			t.Errorf("%s: %v although switches were not wanted; %v", name, best, err)
		}
	}
}

// TestAutoTakesTheChannelsAskedFor.
func TestAutoTakesTheChannelsAskedFor(t *testing.T) {
	g := preset(t, "rail", map[string]int{"hosts": 4})
	for _, channels := range []int{1, 3} {
		best, err := Best(g, sched.AllGather, 32, 16*unit.MiB, Options{}, Wish{Channels: channels})
		if err != nil {
			t.Fatal(err)
		}
		a, err := algo.Find(best.Program.Name)
		if err != nil {
			t.Fatal(err)
		}
		one, err := Wish{Channels: 1}.Program(a, g, sched.AllGather, 32, 16*unit.MiB, catalog.Default())
		if err != nil {
			t.Fatal(err)
		}
		if got := best.Program.Channels(); got != channels*one.Channels() {
			t.Errorf("%s has %d channels, not %d copies of %d", best.Program.Name, got, channels, one.Channels())
		}
	}
}

// TestAutoBeyondThousandsOfRanks: several copies there, too, and trees for few bytes.
func TestAutoBeyondThousandsOfRanks(t *testing.T) {
	hosts := 544
	g := preset(t, "rail", map[string]int{"hosts": hosts})
	a, err := algo.Find("hierarchical")
	if err != nil {
		t.Fatal(err)
	}
	if s := Place(a, Spec(g, sched.AllReduce, 8*hosts), g, catalog.Default()); s.Channels < 4 {
		t.Errorf("%d copies of hierarchical on %d ranks", s.Channels, 8*hosts)
	}
	hosts = bounded.Times(96, 1088)
	g = preset(t, "rail", map[string]int{"hosts": hosts})
	o := Options{Measured: true, Costs: DefaultCosts(g, catalog.Default())}
	best, err := Best(g, sched.AllReduce, 8*hosts, 8, o, Wish{NoSwitches: true})
	if err != nil {
		t.Fatal(err)
	}
	if best.Result.Time > 200*unit.Microsecond {
		t.Errorf("8 bytes over %d ranks take %s by %s", 8*hosts, best.Result.Time, best.Program.Name)
	}
}

// TestNVLSTreeOnEveryRailCluster: connections that no message uses are not routed.
func TestNVLSTreeOnEveryRailCluster(t *testing.T) {
	a, err := algo.Find("nvls-tree")
	if err != nil {
		t.Fatal(err)
	}
	for _, hosts := range []int{2, 3, 9, 17, 32} {
		g := preset(t, "rail", map[string]int{"hosts": hosts})
		p, err := Wish{Pieces: 2}.Program(a, g, sched.AllReduce, 8*hosts, unit.MiB, catalog.Default())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Collective(g, p, unit.MiB, Options{}); err != nil {
			t.Errorf("%d hosts: %v", hosts, err)
		}
	}
}

// TestSharpHangsOnLeaves: every rank sends to the switch that its NIC hangs on,
// so that no link of the fabric carries more than one rank's data each way.
func TestSharpHangsOnLeaves(t *testing.T) {
	a, err := algo.Find("sharp")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		hosts int
	}{{"rail", 4}, {"rail", 64}, {"fat-tree", 16}} {
		g := preset(t, c.name, map[string]int{"hosts": c.hosts})
		p, err := Wish{}.Program(a, g, sched.AllReduce, 8*c.hosts, 64*unit.MiB, catalog.Default())
		if err != nil {
			t.Fatal(err)
		}
		r, err := Collective(g, p, 64*unit.MiB, Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range r.Links() {
			if (l.Tier == Leaf || l.Tier == Spine) && float64(l.Bytes) > 1.01*float64(64*unit.MiB) {
				t.Errorf("%s of %d hosts: %s carries %s", c.name, c.hosts, l.Name, l.Bytes)
			}
		}
		if wire := (64 * unit.MiB).Over(50 * unit.GBps); r.Time > wire*3/2 {
			t.Errorf("%s of %d hosts: %s, a NIC alone needs %s", c.name, c.hosts, r.Time, wire)
		}
	}
}

// TestAllToAllOverHosts comes within a fifth of what the NICs allow.
func TestAllToAllOverHosts(t *testing.T) {
	for _, hosts := range []int{5, 12} {
		g := preset(t, "rail", map[string]int{"hosts": hosts})
		n := 8 * hosts
		best, err := Best(g, sched.AllToAll, n, 256*unit.MiB, Options{Measured: true, Costs: DefaultCosts(g, catalog.Default())}, Wish{})
		if err != nil {
			t.Fatal(err)
		}
		ideal := unit.Bytes(float64(256*unit.MiB) * float64(n-8) / float64(n)).Over(48 * unit.GBps)
		if best.Result.Time > ideal*6/5 {
			t.Errorf("%d hosts: %s by %s, ideal %s", hosts, best.Result.Time, best.Program.Name, ideal)
		}
	}
}

// TestDeadline gives up what takes longer, and nothing else.
func TestDeadline(t *testing.T) {
	g := preset(t, "rail", map[string]int{"hosts": 4})
	for _, name := range []string{"ring", "hierarchical", "sharp"} {
		a, err := algo.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		p, err := Wish{}.Program(a, g, sched.AllReduce, 32, unit.MiB, catalog.Default())
		if err != nil {
			t.Fatal(err)
		}
		r, err := Collective(g, p, unit.MiB, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if again, err := Collective(g, p, unit.MiB, Options{Deadline: r.Time}); err != nil || again.Time != r.Time {
			t.Errorf("%s with the time it takes: %v", name, err)
		}
		if _, err := Collective(g, p, unit.MiB, Options{Deadline: r.Time - 1}); err != ErrLate {
			t.Errorf("%s with a picosecond less: %v", name, err)
		}
	}
}

// TestFoldingWaitsForJobsToBegin: rounds of one job that are skipped do not put
// off another that begins later.
func TestFoldingWaitsForJobsToBegin(t *testing.T) {
	g := preset(t, "rail", map[string]int{"hosts": 4})
	var even, odd []topo.NodeID
	g.Each(topo.GPU, func(id topo.NodeID, _ *topo.Node) {
		if (len(even)+len(odd))%8 < 4 {
			even = append(even, id)
		} else {
			odd = append(odd, id)
		}
	})
	find := func(name string, op sched.Collective, gpus []topo.NodeID) *sched.Program {
		a, err := algo.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		p, err := Wish{}.ProgramOn(a, g, op, gpus, unit.MiB)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, start := range []unit.Time{0, 10 * unit.Microsecond, unit.Millisecond, 20 * unit.Millisecond} {
		jobs := []Job{{Program: find("ring", sched.AllReduce, even), Size: 64 * unit.MiB, Place: even},
			{Program: find("pairwise", sched.AllToAll, odd), Size: 64 * unit.MiB, Place: odd, Start: start}}
		var ends [2][]JobResult
		for i, unfolded := range []bool{false, true} {
			r, err := Run(g, jobs, Options{Unfolded: unfolded, ordered: unfolded, Costs: DefaultCosts(g, catalog.Default())})
			if err != nil {
				t.Fatal(err)
			}
			ends[i] = r.Jobs
		}
		for k := range jobs {
			if ends[0][k] != ends[1][k] {
				t.Errorf("second job at %s: job %d folded %v, unfolded %v", start, k, ends[0][k], ends[1][k])
			}
		}
	}
}

// TestAutoWithAFault is still the fastest, where ranks are too many to try all
// algorithms with every rank on its own.
func TestAutoWithAFault(t *testing.T) {
	g := preset(t, "rail", map[string]int{"hosts": 33})
	for _, o := range []Options{{Slow: []Slow{{"n7:nic2", 0.5}}}} {
		o.Measured, o.Costs = true, DefaultCosts(g, catalog.Default())
		best, err := Best(g, sched.AllReduce, 264, 16*unit.MiB, o, Wish{NoSwitches: true})
		if err != nil {
			t.Fatal(err)
		}
		skipped := 0
		for _, x := range best.Tried {
			if !strings.Contains(x.Why, "even where nothing is slow") {
				continue // simulated, or refused by the bound
			}
			skipped++
			a, outer, err := Named(x.Algo)
			if err != nil {
				t.Fatal(err)
			}
			p, err := Wish{Outer: outer}.Program(a, g, sched.AllReduce, 264, 16*unit.MiB, catalog.Default())
			if err != nil {
				t.Fatal(err)
			}
			o.Deadline = best.Result.Time - 1
			if r, err := Collective(g, p, 16*unit.MiB, o); err == nil {
				t.Errorf("%v: %s takes %s, auto %s by %s", o.Fail, x.Algo, r.Time, best.Result.Time, best.Algo)
			}
		}
		if skipped == 0 {
			t.Errorf("%v: every algorithm was simulated with the fault: %v", o.Fail, best.Tried)
		}
	}
}

// Halving and doubling between hosts is the same for every host, so that one of 128 is simulated; the time is that of all.
func TestSwapsAreFolded(t *testing.T) {
	g := example(t, "rail-1k.yaml")
	o := Options{Measured: true, Costs: DefaultCosts(g, catalog.Default())}
	a, err := algo.Find("hierarchical")
	if err != nil {
		t.Fatal(err)
	}
	p, err := Wish{Outer: "rabenseifner"}.Program(a, g, sched.AllReduce, 256, unit.MiB, catalog.Default())
	if err != nil {
		t.Fatal(err)
	}
	if res := both(t, g, []Job{{Program: p, Size: unit.MiB}}, o); res.Ranks > 8 {
		t.Errorf("%d of 256 ranks are simulated, want at most those of one host", res.Ranks)
	}
}

// Where switches compute is decided by what they do, not by what the program is called.
func TestSwitchesAreFoundByWhatTheyDo(t *testing.T) {
	g := preset(t, "rail", map[string]int{"hosts": 2})
	for name, want := range map[string]topo.Kind{"nvls-tree": topo.NVSwitch, "sharp": topo.Switch, "collnet-direct": topo.Switch} {
		a, err := algo.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		p, err := a.Program(algo.Spec{Op: sched.AllReduce, Ranks: 16, Local: 8})
		if err != nil {
			t.Fatal(err)
		}
		p.Name = "mine"
		at, err := DefaultPlace(g, p)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for k, n := range at[p.Ranks:] {
			if kind := g.Nodes[n].Kind; kind != want {
				t.Errorf("switch %d of %s under another name is placed on %s, which is a %s; want a %s", k, name, g.NodeName(n), kind, want)
			}
		}
	}
}
