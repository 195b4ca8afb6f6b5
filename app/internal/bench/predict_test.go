package bench

import (
	"math"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/predict/cost"
)

// line is times of some us and some ns a byte, as they would be measured.
func line(us, ns float64) (list []Took) {
	for _, bytes := range placed {
		t := us + ns*float64(bytes)/1e3
		list = append(list, Took{Bytes: bytes, Least: t, Mostly: t, CPU: 2 * t})
	}
	return list
}

// gaugeOf is what is measured where an exchange between hosts takes 10 us and some ns a byte of two cores, and ranks share a core.
func gaugeOf(ns, share float64) *Gauge {
	return &Gauge{Pair: line(10, ns), OneWay: line(6, ns*0.6), All: line(10*share, ns*share), Chain: line(10*share*links, 0),
		Near: line(1*share, 0.2*share), Inside: line(1*share, 0.1*share), Seats: line(11*share, ns*share), Leaders: line(11*share, ns),
		Passes: line(0, 0.03*share)}
}

func programOf(t *testing.T, name string, s algo.Spec) string {
	t.Helper()
	a, err := algo.Find(name)
	if err != nil {
		t.Fatal(err)
	}
	p, err := a.Program(s)
	if err != nil {
		t.Fatal(err)
	}
	return p.String()
}

func predicted(t *testing.T, r *Ran, bytes int64, repeat int) float64 {
	t.Helper()
	got, err := r.Predict(bytes, repeat)
	if err != nil {
		t.Fatal(err)
	}
	return got.Microseconds()
}

func near(got, want, by float64) bool { return math.Abs(got/want-1) <= by }

// An operation that is a chain of exchanges takes as long as these were measured to take, whether ranks share cores or not.
func TestPredictExchanges(t *testing.T) {
	program := programOf(t, "ring", algo.Spec{Op: sched.AllGather, Ranks: 4})
	for _, cores := range []int{1, 2, 4, 16} {
		share := max(1, 4/float64(cores))
		r := &Ran{Program: program, Links: cost.Links{Kind: "tcp", Ranks: 4, Cores: cores, Hosts: 4}, Hosts: []int{0, 1, 2, 3},
			Gauge: gaugeOf(0.5, share)}
		for _, bytes := range []int64{32, 64 << 10, 1 << 20, 8 << 20} {
			want := 3 * (10 + 0.5*float64(bytes/4)/1e3) * share
			if got := predicted(t, r, bytes, 8); !near(got, want, 0.1) {
				t.Errorf("%d bytes on %d cores: %.1f us; want %.1f", bytes, cores, got, want)
			}
		}
	}
}

// A wire is known by carrying as much in both directions as in one. Then an operation takes the time of the bytes that leave its host.
func TestPredictWire(t *testing.T) {
	g := gaugeOf(0.5, 1)
	g.Pair, g.OneWay, g.All = line(10, 8), line(6, 8), line(10, 16) // 1 Gb/s for two ranks
	r := &Ran{Program: programOf(t, "two-level", algo.Spec{Op: sched.AllReduce, Ranks: 4, Local: 2}), Phases: true,
		Links: cost.Links{Kind: "mixed", Ranks: 4, Cores: 8}, Hosts: []int{0, 0, 1, 1}, Gauge: g}
	for _, c := range []struct {
		bytes    int64
		min, max float64 // us
	}{{8, 10, 30}, {1 << 20, 8389, 9500}, {16 << 20, 134218, 140000}} { // every byte leaves its host once
		if us := predicted(t, r, c.bytes, 1); us < c.min || us > c.max {
			t.Errorf("%d bytes take %.1f us; want %g to %g", c.bytes, us, c.min, c.max)
		}
	}
	g.Pair = line(10, 16)
	if m, err := newModel(r); err != nil || m.wire != 0 {
		t.Errorf("a wire of %g us a byte (%v) where one way is twice as fast as both; want none", m.wire, err)
	}
}

// Channels are side by side as far as they were measured to be.
func TestPredictChannels(t *testing.T) {
	program := programOf(t, "direct", algo.Spec{Op: sched.AllToAll, Ranks: 2, Channels: 2})
	r := &Ran{Program: program, Links: cost.Links{Kind: "tcp", Ranks: 2, Cores: 16, Hosts: 2}, Hosts: []int{0, 1}, Gauge: gaugeOf(0.5, 1)}
	for _, ns := range []float64{0.25, 0.5, 0.7} { // twice as fast, as fast, and slower
		r.Gauge.Channels = map[int][]Took{2: line(10, ns)}
		want := ns * (4 << 20) / 1e3
		if got := predicted(t, r, 8<<20, 4); !near(got, want, 0.1) {
			t.Errorf("%g ns a byte on two channels: %.0f us; want %.0f", ns, got, want)
		}
	}
}

// What was measured in one place is of caches; an operation on more memory takes as long as places all over it.
func TestAtSpans(t *testing.T) {
	list := append(line(0, 1), Took{Bytes: 64 << 10, Span: 32 << 20, Least: 131.072}, Took{Bytes: 2 << 20, Span: 32 << 20, Least: 4194.304})
	m := &model{crowd: 1}
	for _, c := range []struct{ bytes, span, want float64 }{
		{1 << 20, 2 << 20, 1048.576}, {1 << 20, 32 << 20, 2097.152}, {1 << 20, 1 << 30, 2097.152}, {1 << 20, 8 << 20, 1048.576 * 1.5},
		{32 << 10, 64 << 20, 65.536}, {8, 16, 0.008},
	} {
		if got := m.at(list, c.bytes, c.span); !near(got, c.want, 1e-6) {
			t.Errorf("%g bytes in %g: %g us; want %g", c.bytes, c.span, got, c.want)
		}
	}
	if got := m.at(nil, 8, 8); got != 0 {
		t.Errorf("nothing was measured and takes %g us", got)
	}
}

// What cannot be simulated is an error.
func TestPredictRefuses(t *testing.T) {
	for _, r := range []*Ran{
		{Program: "weft 1\nname x\n", Hosts: []int{0, 1}, Gauge: &Gauge{}},
		{Program: programOf(t, "direct", algo.Spec{Op: sched.AllToAll, Ranks: 2}), Hosts: []int{0, 1}},
	} {
		if got, err := r.Predict(8, 1); err == nil {
			t.Errorf("%+v is simulated in %s", r, got)
		}
	}
}
