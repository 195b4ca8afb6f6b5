package sim

import (
	"fmt"
	"github.com/weft-fabric/weft/internal/bounded"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/verify"
	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
)

func preset(tb testing.TB, name string, params map[string]int) *topo.Graph {
	tb.Helper()
	c, err := cluster.Preset(name, params)
	if err != nil {
		tb.Fatal(err)
	}
	return c.Graph
}

func example(tb testing.TB, name string) *topo.Graph {
	tb.Helper()
	data, err := os.ReadFile("../../examples/" + name)
	if err != nil {
		tb.Fatal(err)
	}
	c, err := cluster.Parse(name, data, nil)
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

func node(tb testing.TB, g *topo.Graph, name string) topo.NodeID {
	tb.Helper()
	n, err := g.Lookup(name)
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

// both runs folded and unfolded and insists on the same answer.
func both(tb testing.TB, g *topo.Graph, jobs []Job, o Options) *Result {
	tb.Helper()
	o.Unfolded, o.ordered = true, true
	plain, err := Run(g, jobs, o)
	if err != nil {
		tb.Fatal(err)
	}
	o.Unfolded, o.ordered = false, false
	folded, err := Run(g, jobs, o)
	if err != nil {
		tb.Fatal(err)
	}
	if folded.Time != plain.Time {
		tb.Fatalf("%s, %s: folded %d ps, unfolded %d ps", jobs[0].Program.Name, jobs[0].Size, folded.Time, plain.Time)
	}
	if plain.Folded != 0 {
		tb.Fatalf("the unfolded run folded %d actions", plain.Folded)
	}
	a, b := folded.Links(), plain.Links()
	byLink := func(x, y LinkUse) int {
		if x.Link != y.Link {
			return int(x.Link - y.Link)
		}
		if x.Forward == y.Forward {
			return strings.Compare(x.Name, y.Name)
		}
		if x.Forward {
			return -1
		}
		return 1
	}
	slices.SortFunc(a, byLink)
	slices.SortFunc(b, byLink)
	if !slices.Equal(a, b) {
		tb.Fatalf("%s: links carry %d and %d different loads", jobs[0].Program.Name, len(a), len(b))
	}
	return folded
}

var costs = Costs{Launch: 5 * unit.Microsecond, Local: 300 * unit.Nanosecond, Net: unit.Microsecond}

// A ring on an NVSwitch box takes 2(n-1) times overhead, latency and a chunk's
// time at the GPU's whole rate, exactly.
func TestRingOnNVSwitchIsItsClosedForm(t *testing.T) {
	g := preset(t, "dgx-h100", nil)
	const latency = 600 * unit.Nanosecond // two links of 250 ns and a chip of 100
	for n := 2; n <= 8; n++ {
		for _, size := range []unit.Bytes{8, unit.MiB, unit.GiB} {
			p := program(t, "ring", algo.Spec{Op: sched.AllReduce, Ranks: n, Slots: 8})
			res := both(t, g, []Job{{Program: p, Size: size}}, Options{Costs: costs})
			chunk := (size + unit.Bytes(n) - 1) / unit.Bytes(n)
			want := costs.Launch + unit.Time(2*(n-1))*(costs.Local+latency+chunk.Over(450*unit.GBps))
			if res.Time != want {
				t.Errorf("%d GPUs, %s: %d ps, closed form %d ps", n, size, res.Time, want)
			}
		}
	}
}

// A broadcast down a tree of four: the root's message, then the inner rank's two
// one after the other.
func TestTreeIsItsClosedForm(t *testing.T) {
	g := preset(t, "dgx-h100", nil)
	p := program(t, "tree", algo.Spec{Op: sched.Broadcast, Ranks: 4, Pieces: 1})
	res := both(t, g, []Job{{Program: p, Size: 64 * unit.MiB}}, Options{Costs: costs})
	message := costs.Local + (64 * unit.MiB).Over(450*unit.GBps)
	if want := costs.Launch + 3*message + 2*600*unit.Nanosecond; res.Time != want {
		t.Errorf("%d ps, closed form %d ps", res.Time, want)
	}
}

// pair is a broadcast from one GPU to another.
func pair(tb testing.TB, g *topo.Graph, from, to string, size unit.Bytes) Job {
	p := program(tb, "ring", algo.Spec{Op: sched.Broadcast, Ranks: 2, Pieces: 1})
	return Job{Program: p, Size: size, Place: []topo.NodeID{node(tb, g, from), node(tb, g, to)}}
}

func simulate(tb testing.TB, g *topo.Graph, o Options, jobs ...Job) *Result {
	tb.Helper()
	res, err := Run(g, jobs, o)
	if err != nil {
		tb.Fatal(err)
	}
	return res
}

// Flows into one GPU share its links: n of them take n times as long, but for
// the latency. Two collectives at once contend in the same way.
func TestIncastSharesTheReceiver(t *testing.T) {
	g := preset(t, "dgx-h100", nil)
	one := simulate(t, g, Options{}, pair(t, g, "gpu1", "gpu0", unit.GiB))
	for n := 2; n <= 7; n++ {
		var jobs []Job
		for i := 1; i <= n; i++ {
			jobs = append(jobs, pair(t, g, fmt.Sprintf("gpu%d", i), "gpu0", unit.GiB))
		}
		res := simulate(t, g, Options{}, jobs...)
		const latency = 600 * unit.Nanosecond
		got, want := float64(res.Time-latency), float64(n)*float64(one.Time-latency)
		if math.Abs(got-want) > float64(n) { // a picosecond of rounding each

			t.Errorf("%d senders: %.0f ps, want %.0f", n, got, want)
		}
	}
}

// A job that begins halfway through another slows it for the rest of its time:
// the first has sent half alone, and both share from there on.
func TestAJobThatComesLaterShares(t *testing.T) {
	g := preset(t, "dgx-h100", nil)
	a, b := pair(t, g, "gpu1", "gpu0", 450*unit.MB), pair(t, g, "gpu2", "gpu0", 450*unit.MB)
	b.Start = 500 * unit.Microsecond
	res := simulate(t, g, Options{}, a, b)
	const latency = 600 * unit.Nanosecond
	if got := res.Jobs[0].End - latency; got != 1500*unit.Microsecond {
		t.Errorf("the first ends at %s, want 1.5 ms", got)
	}
	if got := res.Jobs[1].End - latency; got != 2000*unit.Microsecond {
		t.Errorf("the second ends at %s, want 2 ms", got)
	}
}

// S2: four GPUs behind one PCIe switch get a quarter each of what one gets alone.
func TestS2FourGPUsOnOnePCIeSwitch(t *testing.T) {
	g := preset(t, "pcie-8-plx", nil)
	one := simulate(t, g, Options{}, pair(t, g, "gpu0", "gpu4", unit.GB))
	var jobs []Job
	for i := range 4 {
		jobs = append(jobs, pair(t, g, fmt.Sprintf("gpu%d", i), fmt.Sprintf("gpu%d", i+4), unit.GB))
	}
	four := simulate(t, g, Options{}, jobs...)
	if ratio := float64(four.Time) / float64(one.Time); ratio < 3.99 || ratio > 4.01 {
		t.Errorf("four at once take %.3f times as long as one: %s, %s", ratio, four.Time, one.Time)
	}
	if !strings.Contains(four.Limit, "pex") {
		t.Errorf("the limit is %q, not the PCIe switch", four.Limit)
	}
}

// shifted sends from every GPU of the first half of the hosts to its like in the second.
func shifted(tb testing.TB, g *topo.Graph, size unit.Bytes) []Job {
	var jobs []Job
	half := len(g.Hosts) / 2
	for h := range half {
		for i := range 8 {
			jobs = append(jobs, pair(tb, g, fmt.Sprintf("n%d:gpu%d", h, i), fmt.Sprintf("n%d:gpu%d", h+half, i), size))
		}
	}
	return jobs
}

// A fabric with a third of the links upwards gives every flow across it a third
// of the rate.
func TestOversubscriptionDividesTheRate(t *testing.T) {
	full := preset(t, "fat-tree", map[string]int{"hosts": 8, "tiers": 2})
	third := preset(t, "fat-tree", map[string]int{"hosts": 12, "tiers": 2, "down": 3, "up": 1})
	a := simulate(t, full, Options{}, shifted(t, full, unit.GB)...)
	b := simulate(t, third, Options{}, shifted(t, third, unit.GB)...)
	t.Logf("1:1 %s (%s), 3:1 %s (%s)", a.Time, a.Limit, b.Time, b.Limit)
	if r := float64(b.Time) / float64(a.Time); r < 2.99 || r > 3.01 {
		t.Errorf("3:1 takes %.3f times as long as 1:1: %s, %s", r, b.Time, a.Time)
	}
}

// Without one of sixteen spines the others carry its part: a ring that crosses
// the spines at every host takes 16/15 of the time, and nothing passes the dead one.
func TestAFailedSpineIsRoutedAround(t *testing.T) {
	g := example(t, "rail-1k.yaml")
	p := program(t, "ring", algo.Spec{Op: sched.AllReduce, Ranks: 1024, Slots: 8})
	job := []Job{{Program: p, Size: 64 * unit.GiB}}
	whole := simulate(t, g, Options{}, job...)
	hurt := simulate(t, g, Options{Fail: []string{"spine3"}}, job...)
	if r := float64(hurt.Time) / float64(whole.Time) * 15 / 16; r < 0.995 || r > 1.005 {
		t.Errorf("without a spine: %s, with it %s", hurt.Time, whole.Time)
	}
	for _, l := range hurt.Links() {
		if strings.Contains(l.Name, "spine3:") {
			t.Fatalf("%s carries %s", l.Name, l.Bytes)
		}
	}
	if !strings.Contains(hurt.Limit, "spine") {
		t.Errorf("the limit is %q", hurt.Limit)
	}
}

// A leaf that fails takes one NIC from each host of its pod; their GPUs go by another.
func TestAFailedLeafMovesItsGPUs(t *testing.T) {
	g := preset(t, "rail", map[string]int{"hosts": 8})
	p := program(t, "hierarchical", algo.Spec{Op: sched.AllReduce, Ranks: 64, Local: 8, Slots: 8})
	job := []Job{{Program: p, Size: unit.GiB}}
	whole := simulate(t, g, Options{}, job...)
	hurt := both(t, g, job, Options{Fail: []string{"leaf3"}})
	if hurt.Time <= whole.Time {
		t.Errorf("without a leaf %s, with it %s", hurt.Time, whole.Time)
	}
}

// A slow NIC sets the pace and is named.
func TestASlowNICIsNamed(t *testing.T) {
	g := preset(t, "rail", map[string]int{"hosts": 8})
	p := program(t, "hierarchical", algo.Spec{Op: sched.AllReduce, Ranks: 64, Local: 8, Slots: 8})
	job := []Job{{Program: p, Size: unit.GiB}}
	res := both(t, g, job, Options{Slow: []Slow{{"n5:nic2", 0.25}}})
	if !strings.Contains(res.Limit, "n5:nic2") || !strings.Contains(res.Limit, "at 0.25 of its rate") {
		t.Error(res.Limit)
	}
}

// A GPU at half speed makes its part of every step slower.
func TestASlowRankIsFelt(t *testing.T) {
	g := preset(t, "dgx-h100", nil)
	p := program(t, "ring", algo.Spec{Op: sched.AllReduce, Ranks: 8, Slots: 8})
	job := []Job{{Program: p, Size: 8 * unit.KiB}}
	fine := both(t, g, job, Options{Costs: costs})
	lame := both(t, g, job, Options{Costs: costs, Slow: []Slow{{"gpu3", 0.1}}})
	if lame.Time <= fine.Time+2*9*costs.Local {
		t.Errorf("%s with a slow rank, %s without", lame.Time, fine.Time)
	}
}

// With PXN, bytes for another rail change rails inside the host and stay under
// one leaf; without, they cross a spine.
func TestPXNStaysUnderTheLeaf(t *testing.T) {
	g := preset(t, "rail", map[string]int{"hosts": 64})
	job := pair(t, g, "n0:gpu0", "n1:gpu5", unit.GB)
	spine := func(res *Result) (sum unit.Bytes) {
		for _, u := range res.Tiers() {
			if u.Tier == Spine {
				sum += u.Bytes
			}
		}
		return sum
	}
	if b := spine(simulate(t, g, Options{}, job)); b < unit.GB {
		t.Errorf("without PXN the spines carry %s", b)
	}
	if b := spine(simulate(t, g, Options{PXN: true}, job)); b != 0 {
		t.Errorf("with PXN the spines carry %s", b)
	}
}

// Under ECMP flows collide: the mean over seeds is above adaptive routing, the
// 99th percentile above the mean, and every seed gives the same time again.
func TestECMPCollides(t *testing.T) {
	g := preset(t, "rail", map[string]int{"hosts": 64})
	jobs := shifted(t, g, 64*unit.MiB)
	adaptive := simulate(t, g, Options{}, jobs...)
	s, err := Seeds(g, jobs, Options{Seed: 7}, 20)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("adaptive %s, ECMP mean %s, p99 %s", adaptive.Time, s.Mean, s.P99)
	if s.Mean < adaptive.Time*3/2 || s.P99 < s.Mean || s.Worst.Time != s.P99 {
		t.Errorf("adaptive %s, ECMP mean %s, p99 %s, worst %s", adaptive.Time, s.Mean, s.P99, s.Worst.Time)
	}
	again, err := Seeds(g, jobs, Options{Seed: 7}, 20)
	if err != nil || !slices.Equal(again.Times, s.Times) {
		t.Errorf("the same seeds give other times: %v", err)
	}
}

// Folded and unfolded agree at 1,024 GPUs, latencies and bandwidths, healthy and hurt.
func TestFoldedIsUnfoldedAt1024(t *testing.T) {
	if testing.Short() {
		t.Skip("two million actions each")
	}
	g := example(t, "rail-1k.yaml")
	o := Options{Measured: true, Costs: DefaultCosts(g, catalog.Default())}
	for _, c := range []struct {
		name string
		size unit.Bytes
		o    func(*Options)
	}{
		{"hierarchical", unit.MiB, func(o *Options) { o.Slow = []Slow{{"n77:nic3", 0.5}} }}, {"double-binary-tree", 64 * unit.MiB, nil},
		{"ring", 64 * unit.KiB, nil},
		{"hierarchical", unit.GiB, nil}, {"ring", unit.GiB, nil},
	} {
		if c.size == unit.GiB && !bounded.Long() {
			continue
		}
		opt := o
		if c.o != nil {
			c.o(&opt)
		}
		p := program(t, c.name, Spec(g, sched.AllReduce, 1024))
		start := cpu()
		res := both(t, g, []Job{{Program: p, Size: c.size}}, opt)
		t.Logf("%s %s: %s, %d of %d actions folded, %d ranks simulated, both in %s", c.name, c.size, res.Time, res.Folded, res.Actions, res.Ranks,
			cpu()-start)
	}
}

// The program that is simulated is the one that is proven.
func TestTheSameProgramIsProvenAndSimulated(t *testing.T) {
	g := preset(t, "dgx-h100", nil)
	for _, name := range []string{"ring", "double-binary-tree"} {
		p := program(t, name, Spec(g, sched.AllReduce, 8))
		rep, err := verify.Program(p)
		if err != nil {
			t.Fatal(err)
		}
		before := p.Digest()
		res := simulate(t, g, Options{}, Job{Program: p, Size: unit.MiB})
		if rep.Digest != before || p.Digest() != before {
			t.Errorf("%s: proven %s, simulated %s", name, rep.Digest, p.Digest())
		}
		sent := int64(0)
		for i := range res.w.conns {
			sent += res.w.conns[i].messages
		}
		if rep.Actions < res.Actions || sent == 0 {
			t.Errorf("%s: %d actions proven, %d simulated", name, rep.Actions, res.Actions)
		}
	}
}

func TestBadJobsAreRefused(t *testing.T) {
	g := preset(t, "dgx-h100", nil)
	ring := func(n int) *sched.Program {
		return program(t, "ring", algo.Spec{Op: sched.AllReduce, Ranks: n})
	}
	for want, f := range map[string]func() error{
		"at least one byte": func() error { _, err := Collective(g, ring(8), 0, Options{}); return err },
		"too large":         func() error { _, err := Collective(g, ring(8), 1<<50, Options{}); return err },
		"at least two":      func() error { _, err := Collective(g, ring(1), 8, Options{}); return err },
		"needs 9 GPUs":      func() error { _, err := Collective(g, ring(9), 8, Options{}); return err },
		"no part \"leaf3\"": func() error { _, err := Collective(g, ring(8), 8, Options{Fail: []string{"leaf3"}}); return err },
		"above 0 and at most": func() error {
			_, err := Collective(g, ring(8), 8, Options{Slow: []Slow{{"gpu0", 0}}})
			return err
		},
		"there is no job": func() error { _, err := Run(g, nil, Options{}); return err },
		"no path": func() error {
			_, err := Collective(preset(t, "rail", map[string]int{"hosts": 2}), ring(16), 8,
				Options{Fail: []string{"leaf0", "leaf1", "leaf2", "leaf3", "leaf4", "leaf5", "leaf6", "leaf7"}})
			return err
		},
	} {
		if err := f(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
}

// A program that waits for ever is told so, not simulated for ever.
func TestADeadlockIsReported(t *testing.T) {
	p, err := sched.Parse("weft 1\nname stuck\nop barrier\nranks 2\nchunks 1\nchannels 1:\n  recv -> out[0] from 1-r\n  send in[0] to 1-r\n")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Check(); err != nil {
		t.Fatal(err)
	}
	_, err = Collective(preset(t, "dgx-h100", nil), p, 8, Options{})
	if err == nil || !strings.Contains(err.Error(), "deadlock") {
		t.Errorf("got %v", err)
	}
}
