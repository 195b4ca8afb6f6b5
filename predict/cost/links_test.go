package cost

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/verify"
	"github.com/weft-fabric/weft/model/unit"
)

// twoCores is a host with two cores of an Intel Xeon of 2023, its paces taken
// from the all-reduces of two ranks below; meeting takes longer where ranks
// share cores.
func twoCores(ranks int) *Links {
	return &Links{Kind: "shm", Ranks: ranks, Cores: 2, Sync: map[int]float64{2: 0.2, 4: 2.3, 8: 5.4}[ranks],
		Paces: []Pace{{320 << 10, 4.3e-6}, {1 << 20, 13e-6}, {8 << 20, 16.6e-6}, {64 << 20, 25e-6}, {256 << 20, 42e-6}}}
}

// What a C program reached that adds straight out of its peers' buffers, on two
// cores, in us (medians of several rounds, 2026-11). The paces come from the
// first rows, the rest is predicted: within a factor of 1.6 for all, 1.25 in the
// geometric mean.
func TestFlatModelOnTwoCores(t *testing.T) {
	const ki, mi = unit.KiB, unit.MiB
	sum, count := 0.0, 0
	for _, c := range []struct {
		op    sched.Collective
		ranks int
		bytes unit.Bytes
		us    float64
	}{
		{sched.AllReduce, 2, 8, 0.2}, {sched.AllReduce, 2, 32 * ki, 0.9}, {sched.AllReduce, 2, 256 * ki, 7.1},
		{sched.AllReduce, 2, 2 * mi, 70}, {sched.AllReduce, 2, 16 * mi, 837}, {sched.AllReduce, 2, 64 * mi, 5641},
		{sched.AllReduce, 4, 8, 2.3}, {sched.AllReduce, 4, 32 * ki, 6.5}, {sched.AllReduce, 4, 256 * ki, 18.8},
		{sched.AllReduce, 4, 2 * mi, 208}, {sched.AllReduce, 4, 16 * mi, 1991},
		{sched.AllReduce, 8, 8, 5.4}, {sched.AllReduce, 8, 32 * ki, 16.1}, {sched.AllReduce, 8, 256 * ki, 42.3},
		{sched.AllReduce, 8, 2 * mi, 465}, {sched.AllReduce, 8, 16 * mi, 4640},
		{sched.ReduceScatter, 2, 256 * ki, 4.8}, {sched.ReduceScatter, 2, 16 * mi, 1127},
		{sched.ReduceScatter, 8, 256 * ki, 29.6}, {sched.ReduceScatter, 8, 16 * mi, 4361},
		{sched.AllGather, 2, 256 * ki, 8.4}, {sched.AllGather, 2, 16 * mi, 1654},
		{sched.AllGather, 8, 256 * ki, 51}, {sched.AllGather, 8, 16 * mi, 8026},
		{sched.Broadcast, 2, 256 * ki, 7.6}, {sched.Broadcast, 2, 16 * mi, 1439},
		{sched.Broadcast, 8, 256 * ki, 41}, {sched.Broadcast, 8, 16 * mi, 9102},
		{sched.AllToAll, 2, 256 * ki, 8.1}, {sched.AllToAll, 2, 16 * mi, 1511},
		{sched.AllToAll, 8, 256 * ki, 59}, {sched.AllToAll, 8, 16 * mi, 11971},
	} {
		algos, err := FlatAlgos(c.op, c.ranks)
		if err != nil {
			t.Fatal(err)
		}
		s, err := Select(Flat{twoCores(c.ranks)}, algos, c.bytes)
		if err != nil {
			t.Fatal(err)
		}
		off := math.Abs(math.Log(s.Time.Microseconds() / c.us))
		sum, count = sum+off, count+1
		t.Logf("%-14s %d ranks %8s: %s, predicted %.1f us, measured %.1f us", c.op, c.ranks, c.bytes, s.Name, s.Time.Microseconds(), c.us)
		if off > math.Log(1.6) {
			t.Errorf("%s, %d ranks, %s: %s in %s, measured %.1f us", c.op, c.ranks, c.bytes, s.Name, s.Time, c.us)
		}
	}
	if mean := math.Exp(sum / float64(count)); mean > 1.25 {
		t.Errorf("off by a factor of %.2f in the geometric mean", mean)
	}
}

// links draws links that a measurement may give.
func links(t *rapid.T, ranks int) *Links {
	l := &Links{Ranks: ranks, Cores: rapid.IntRange(1, 16).Draw(t, "cores"), Sync: rapid.Float64Range(0.05, 200).Draw(t, "sync")}
	traffic := 1e4
	for range rapid.IntRange(1, 5).Draw(t, "paces") {
		l.Paces = append(l.Paces, Pace{traffic, rapid.Float64Range(1e-6, 2e-4).Draw(t, "pace")})
		traffic *= rapid.Float64Range(1.1, 30).Draw(t, "growth")
	}
	link := func(wire float64) Link {
		return Link{Alpha: rapid.Float64Range(0, 50).Draw(t, "alpha"), Post: rapid.Float64Range(0, 20).Draw(t, "post"),
			Beta: rapid.Float64Range(1e-6, 1e-3).Draw(t, "beta"), Wire: wire}
	}
	l.Near = link(0)
	if rapid.Bool().Draw(t, "several hosts") {
		l.Far = link(rapid.Float64Range(1e-6, 1e-2).Draw(t, "wire"))
	}
	if err := l.Check(); err != nil {
		t.Fatal(err)
	}
	return l
}

// More bytes never take less, whatever the links; a larger host is never slower.
func TestFlatModelIsMonotone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 64).Draw(t, "ranks")
		l := links(t, n)
		algos, err := FlatAlgos(rapid.SampledFrom(sched.Collectives()).Draw(t, "op"), n)
		if err != nil {
			t.Fatal(err)
		}
		larger := *l
		larger.Cores++
		for _, a := range algos {
			last := unit.Time(-1)
			for b := unit.Bytes(0); b < 1<<40; b = b*5/4 + 1 {
				now := Flat{l}.Time(a.Cost(b))
				if now < last {
					t.Fatalf("%s of %s takes %s, of less it takes %s", a.Name, b, now, last)
				}
				if more := (Flat{&larger}).Time(a.Cost(b)); more > now {
					t.Fatalf("%s of %s takes %s on %d cores, %s on one more", a.Name, b, now, l.Cores, more)
				}
				last = now
			}
		}
	})
}

// One-shot is for small buffers and rank-order for large ones, with one size at
// which they change over; it grows with what a meeting costs.
func TestOneShotTurnsIntoRankOrder(t *testing.T) {
	turn := func(ranks int, sync float64) unit.Bytes {
		l := twoCores(2)
		l.Ranks, l.Sync = ranks, sync
		algos, err := FlatAlgos(sched.AllReduce, ranks)
		if err != nil {
			t.Fatal(err)
		}
		s, err := Select(Flat{l}, algos, 8)
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Turns) != 2 || s.Turns[0].Name != "one-shot" || s.Turns[1].Name != "rank-order" {
			t.Fatalf("%d ranks, %g us a meeting: %+v", ranks, sync, s.Turns)
		}
		return s.Turns[1].From
	}
	for _, ranks := range []int{2, 3, 4, 8, 16, 64} {
		last := unit.Bytes(0)
		for _, sync := range []float64{0.1, 0.2, 1, 5, 50} {
			now := turn(ranks, sync)
			if now < last {
				t.Errorf("%d ranks, %g us a meeting: rank-order from %s, with a cheaper one from %s", ranks, sync, now, last)
			}
			last = now
		}
	}
	// A second meeting of 0.2 us pays for 3 bytes of traffic a byte at 4.3 ps: 15.5 kB.
	if at := turn(2, 0.2); at < 8*unit.KiB || at > 32*unit.KiB {
		t.Errorf("2 ranks change over at %s", at)
	}
	if two, eight := turn(2, 2), turn(8, 2); eight >= two {
		t.Errorf("with 8 ranks at %s, with 2 at %s: one-shot moves more with more ranks", eight, two)
	}
}

// At zero bytes and nothing but latency, a replay takes the program's steps, as
// the proof counts them: for every algorithm and collective.
func TestReplayCountsSteps(t *testing.T) {
	l := &Links{Ranks: 1, Cores: 1, Near: Link{Alpha: 1}, Paces: []Pace{{1, 1e-6}}}
	tried := 0
	for _, a := range algo.All() {
		for _, op := range a.Ops {
			for _, n := range []int{2, 5, 8, 12} {
				p, err := a.Program(algo.Spec{Op: op, Ranks: n, Pieces: 2, Channels: 1 + n%2})
				if err != nil || p.Switches > 0 {
					continue
				}
				rep, err := verify.Program(p)
				if err != nil {
					t.Fatal(err)
				}
				got, err := l.Replay(p, 0, nil)
				if err != nil {
					t.Fatal(err)
				}
				if tried++; got.Chain != unit.Time(rep.Steps)*unit.Microsecond || got.Limit() != "the chain of messages" {
					t.Errorf("%s %s, %d ranks: %s, and the proof has %d steps", a.Name, op, n, got.Time, rep.Steps)
				}
			}
		}
	}
	if tried < 100 {
		t.Errorf("%d programs", tried)
	}
}

// More bytes never take less, more cores never longer; nothing is faster than a
// host's cores and way out allow.
func TestReplayIsMonotone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.SampledFrom(algo.All()).Draw(t, "algorithm")
		op := rapid.SampledFrom(a.Ops).Draw(t, "op")
		per, many := rapid.IntRange(1, 4).Draw(t, "ranks of a host"), rapid.IntRange(1, 4).Draw(t, "hosts")
		n := per * many
		p, err := a.Program(algo.Spec{Op: op, Ranks: n, Local: per, Channels: rapid.IntRange(1, 3).Draw(t, "channels")})
		if err != nil || p.Switches > 0 {
			t.Skip()
		}
		hosts := make([]int, n)
		for r := range hosts {
			hosts[r] = r / per
		}
		l := links(t, n)
		larger := *l
		larger.Cores++
		var sizes []unit.Bytes
		for b := unit.Bytes(1); b < 1<<32; b = b*4 + 1 {
			sizes = append(sizes, b)
		}
		curve, err := l.Curve(p, sizes, hosts, nil)
		if err != nil {
			t.Fatal(err)
		}
		last := unit.Time(-1)
		for i, b := range sizes {
			now, err := l.Replay(p, b, hosts)
			if err != nil || now != curve[i] {
				t.Fatalf("%s: %+v alone, %+v among others, %v", b, now, curve[i], err)
			}
			more, err := larger.Replay(p, b, hosts)
			if err != nil {
				t.Fatal(err)
			}
			if now.Time < last || more.Time > now.Time {
				t.Fatalf("%s of %s takes %s, of less %s, on one more core %s", p.Name, b, now.Time, last, more.Time)
			}
			if now.Time < max(now.Chain, now.Cores, now.Wire) || now.Time > 2*now.Chain+now.Cores+now.Wire {
				t.Fatalf("%s of %s: %+v", p.Name, b, now)
			}
			last = now.Time
		}
	})
}

// A ring over TCP: each step takes a message's latency, both ends' time for it
// and the sum of a block; over a slow way out the bytes that leave a host count.
func TestReplayOfARing(t *testing.T) {
	const n, bytes = 4, 4 << 20
	ring, err := algo.Find("ring")
	if err != nil {
		t.Fatal(err)
	}
	p, err := ring.Program(algo.Spec{Op: sched.AllReduce, Ranks: n})
	if err != nil {
		t.Fatal(err)
	}
	l := &Links{Ranks: n, Cores: n, Near: Link{Alpha: 5, Post: 2, Beta: 2e-4}, Paces: []Pace{{1, 1e-5}}}
	got, err := l.Replay(p, bytes, nil)
	if err != nil {
		t.Fatal(err)
	}
	// 2(n-1) steps, each a send and a receive; n-1 of them add, two loads and a
	// store a byte; all of the input is copied. The first send waits for nothing and the last receive ends a
	// latency after it was sent; in between sending hides the latency.
	block := float64(bytes / n)
	want := 2*(n-1)*(2*2+block*2*2e-4) + (n-1)*block*3e-5 + bytes*3e-5
	if us := got.Time.Microseconds(); us < want || us > want+2*(n-1)*5 {
		t.Errorf("%.1f us, want %.1f", us, want)
	}
	// In four runs each end has four messages for one.
	l.Run = bytes / n / 4
	runs, err := l.Replay(p, bytes, nil)
	if err != nil {
		t.Fatal(err)
	}
	if more := (runs.Time - got.Time).Microseconds(); more < 3*2*(n-1)*2*2 || more > 3*2*(n-1)*(2*2+5) {
		t.Errorf("%.1f us more in four runs, want 3 messages at each step", more)
	}
	l.Far = Link{Alpha: 50, Post: 2, Beta: 2e-4, Wire: 1e-1}
	if got, err = l.Replay(p, bytes, []int{0, 0, 1, 1}); err != nil {
		t.Fatal(err)
	}
	// Of every step's messages, one leaves each host.
	if us, least := got.Time.Microseconds(), 2*(n-1)*block*1e-1; us < least || us > 1.1*least {
		t.Errorf("%.1f us, and the way out alone takes %.1f", us, least)
	}
}

// What comes to one host shares its way in, also where each sender has a way out of its own.
func TestReplayCountsTheWayIn(t *testing.T) {
	const n, bytes = 5, 1 << 20
	l := &Links{Ranks: n, Cores: 1, Near: Link{Alpha: 1}, Far: Link{Alpha: 5, Post: 1, Wire: 1e-3}, Paces: []Pace{{1, 1e-9}}}
	for _, name := range []string{"direct", "rank-order"} {
		a, err := algo.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		p, err := a.Program(algo.Spec{Op: sched.Reduce, Ranks: n})
		if err != nil {
			t.Fatal(err)
		}
		got, err := l.Replay(p, bytes, []int{0, 1, 2, 3, 4})
		if err != nil {
			t.Fatal(err)
		}
		if us, want := got.Time.Microseconds(), (n-1)*bytes*1e-3; us < want || us > 1.1*want {
			t.Errorf("%s: %.1f us, and %d messages come in in %.1f", name, us, n-1, want)
		}
	}
}

// A call follows another once the busiest rank is done with its messages: the root of a direct broadcast with one to each rank, that of a
// binomial tree with one a round; ranks that share a core once all are.
func TestPeriod(t *testing.T) {
	const n, post = 8, 3
	for _, x := range []struct {
		name  string
		cores int
		hosts []int
		want  float64
	}{
		{"direct", 1, []int{0, 1, 2, 3, 4, 5, 6, 7}, (n - 1) * post}, {"binomial", 1, []int{0, 1, 2, 3, 4, 5, 6, 7}, 3 * post},
		{"direct", 1, nil, 2 * (n - 1) * post}, {"binomial", 1, nil, 2 * (n - 1) * post},
	} {
		a, err := algo.Find(x.name)
		if err != nil {
			t.Fatal(err)
		}
		p, err := a.Program(algo.Spec{Op: sched.Broadcast, Ranks: n})
		if err != nil {
			t.Fatal(err)
		}
		link := Link{Alpha: 50, Post: post}
		l := &Links{Ranks: n, Cores: x.cores, Near: link, Far: link, Paces: []Pace{{1, 1e-12}}}
		got, err := l.Replay(p, 0, x.hosts)
		if err != nil {
			t.Fatal(err)
		}
		if us := got.Period.Microseconds(); us != x.want || got.Time < got.Period {
			t.Errorf("%s on %v: one in %.1f us, want %.1f; it takes %v", x.name, x.hosts, us, x.want, got.Time)
		}
	}
}

// A buffer of one cache line is one chunk, and what is empty is not sent: of a
// direct all-reduce, everybody sends to rank 0 and rank 0 to everybody. Programs
// with scratch send all of their chunks.
func TestReplayOfOneLine(t *testing.T) {
	const n = 8
	l := &Links{Ranks: n, Cores: n, Near: Link{Alpha: 5, Post: 2}, Paces: []Pace{{1, 1e-9}}}
	for _, name := range []string{"direct", "rank-order"} {
		a, err := algo.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		p, err := a.Program(algo.Spec{Op: sched.AllReduce, Ranks: n})
		if err != nil {
			t.Fatal(err)
		}
		const want = 2 + 5 + 7*2 + 7*2 + 5 + 2 // a send, its way, 7 receives, 7 sends, a way, a receive
		for _, bytes := range []unit.Bytes{1, 8, 64} {
			got, err := l.Replay(p, bytes, nil)
			if err != nil {
				t.Fatal(err)
			}
			if us := got.Time.Microseconds(); name == "direct" && math.Abs(us-want) > 0.01 || us < want-0.01 {
				t.Errorf("%s of %s: %.2f us, want %d", name, bytes, us, want)
			}
		}
		all, err := l.Replay(p, 64*n, nil)
		if err != nil {
			t.Fatal(err)
		}
		one, err := l.Replay(p, 64, nil)
		if err != nil {
			t.Fatal(err)
		}
		if one.Time == all.Time != (name == "rank-order") {
			t.Errorf("%s: %s for a line, %s for a line a rank", name, one.Time, all.Time)
		}
	}
}

// In place comm copies the input where the program does not: the copy of a program
// costs nothing more.
func TestReplayCopiesOnce(t *testing.T) {
	const n, bytes = 4, 1 << 20
	l := &Links{Ranks: n, Cores: n, Near: Link{Alpha: 5, Post: 2, Beta: 1e-4}, Paces: []Pace{{1, 1e-5}}}
	var times []unit.Time
	for _, name := range []string{"bcube", "rabenseifner"} { // the same messages; the second one copies
		a, err := algo.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		p, err := a.Program(algo.Spec{Op: sched.AllReduce, Ranks: n})
		if err != nil {
			t.Fatal(err)
		}
		got, err := l.Replay(p, bytes, nil)
		if err != nil {
			t.Fatal(err)
		}
		times = append(times, got.Time)
	}
	if times[0] != times[1] {
		t.Errorf("%s and %s", times[0], times[1])
	}
}

func TestLinksAreChecked(t *testing.T) {
	good := *twoCores(2)
	for want, spoil := range map[string]func(*Links){
		"0 ranks on 2 cores": func(l *Links) { l.Ranks = 0 },
		"without a pace":     func(l *Links) { l.Paces = nil },
		"they must grow":     func(l *Links) { l.Paces = []Pace{{2, 1}, {2, 1}} },
		"cost -1 us":         func(l *Links) { l.Sync = -1 },
		"cost NaN us":        func(l *Links) { l.Far.Wire = math.NaN() },
	} {
		l := good
		spoil(&l)
		if err := l.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	p, err := algo.All()[0].Program(algo.Spec{Op: algo.All()[0].Ops[0], Ranks: 4})
	if err != nil {
		t.Fatal(err)
	}
	for _, hosts := range [][]int{{0}, {0, 0, 0, 4}, {0, 0, 0, -1}} {
		if _, err := good.Replay(p, 8, hosts); err == nil {
			t.Errorf("hosts %v are taken", hosts)
		}
	}
}

func BenchmarkReplay(b *testing.B) {
	for _, n := range []int{8, 64} {
		for _, name := range []string{"ring", "recursive-doubling", "rank-order"} {
			for _, sizes := range []int{1, 12} {
				b.Run(fmt.Sprintf("%s/%d ranks/%d sizes", name, n, sizes), func(b *testing.B) {
					a, err := algo.Find(name)
					if err != nil {
						b.Fatal(err)
					}
					p, err := a.Program(algo.Spec{Op: sched.AllReduce, Ranks: n})
					if err != nil {
						b.Fatal(err)
					}
					l := twoCores(n)
					for b.Loop() {
						if _, err := l.Curve(p, make([]unit.Bytes, sizes), nil, nil); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
	}
}
