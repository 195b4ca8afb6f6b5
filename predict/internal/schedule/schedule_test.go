package schedule

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func even(kind Kind, ranks, chunks, micro int, c Cost) Pipe {
	p := Pipe{Kind: kind, Ranks: ranks, Chunks: chunks, Micro: micro}
	for range ranks * chunks {
		p.Cost = append(p.Cost, Cost{c.F / float64(chunks), c.B / float64(chunks), c.W / float64(chunks)})
	}
	return p
}

// Bubbles as the papers give them, for equal stages and no time between them.
func TestBubblesAreThePapers(t *testing.T) {
	for _, x := range []struct {
		kind           Kind
		p, v, m        int
		c              Cost
		bubble, slack  float64
		alive0, slack0 int
	}{
		{GPipe, 4, 1, 16, Cost{1, 1, 1}, 3 * 3, 0, 16, 0},
		{OneFOneB, 4, 1, 16, Cost{1, 1, 1}, 3 * 3, 0, 4, 0},
		{OneFOneB, 8, 1, 64, Cost{1, 1.2, .8}, 7 * 3, 0, 8, 0},
		{Interleaved, 4, 2, 16, Cost{1, 1, 1}, 3 * 3 / 2.0, 0, 11, 0},
		{Interleaved, 8, 4, 64, Cost{1, 1, 1}, 7 * 3 / 4.0, 0, 39, 0},
		{ZBH1, 4, 1, 16, Cost{1, 1, 1}, 3 * 1, 1, 4, 0},
		{ZBH1, 8, 1, 64, Cost{1, 1, 1}, 7 * 1, 3, 8, 0},
		{ZBH2, 4, 1, 16, Cost{1, 1, 1}, 0, 1.5, 7, 0},
		{ZBV, 4, 2, 16, Cost{1, 1, 1}, 0, 2.5, 8, 1},
	} {
		r, err := even(x.kind, x.p, x.v, x.m, x.c).Run()
		if err != nil {
			t.Fatal(err)
		}
		busy := float64(x.m) * (x.c.F + x.c.B + x.c.W)
		if got := r.Period - busy; math.Abs(got-x.bubble) > x.slack+1e-9 {
			t.Errorf("%s p %d v %d m %d: bubble %.2f, paper %.2f", x.kind, x.p, x.v, x.m, got, x.bubble)
		}
		if d := r.Alive[0] - x.alive0; d > x.slack0 || d < -x.slack0 {
			t.Errorf("%s p %d v %d: %d activations at rank 0, paper %d", x.kind, x.p, x.v, r.Alive[0], x.alive0)
		}
	}
}

// Whatever the costs: all work is done, nothing overlaps on a rank, order of dependence holds, and
// no schedule beats its busiest rank.
func TestEveryScheduleIsValid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom(Kinds()).Draw(t, "kind")
		p := Pipe{Kind: kind, Ranks: rapid.IntRange(1, 6).Draw(t, "ranks"), Chunks: 1, Trace: true, Sync: rapid.Bool().Draw(t, "sync")}
		p.Micro = p.Ranks * rapid.IntRange(1, 4).Draw(t, "groups")
		switch kind {
		case Interleaved:
			p.Chunks = rapid.IntRange(1, 4).Draw(t, "chunks")
		case ZBV:
			p.Chunks = 2
		case DualPipe:
			p.Ranks, p.Micro = 2*p.Ranks, 2*p.Micro
		}
		for range p.Ranks {
			p.Hops = append(p.Hops, rapid.Float64Range(0, .5).Draw(t, "hop"))
		}
		for range p.Ranks * p.Chunks {
			p.Cost = append(p.Cost, Cost{rapid.Float64Range(.5, 2).Draw(t, "F"), rapid.Float64Range(.5, 2).Draw(t, "B"),
				rapid.Float64Range(.5, 2).Draw(t, "W")})
		}
		r, err := p.Run()
		if err != nil {
			t.Fatal(err)
		}
		for rank, alive := range r.Alive {
			if n, ok := p.Holds(rank); ok && n != alive {
				t.Fatalf("rank %d holds %d activations, and %d were said before", rank, alive, n)
			}
		}
		want := 2 * p.Ranks * p.Chunks * p.Micro
		if kind.Splits() {
			want = 3 * p.Ranks * p.Chunks * p.Micro
		}
		if len(r.Spans) != want {
			t.Fatalf("%d passes, want %d", len(r.Spans), want)
		}
		last := make([]float64, p.Ranks)
		for _, s := range r.Spans {
			if s.Begin < last[s.Rank]-1e-9 && !kind.Splits() {
				t.Fatalf("rank %d: passes overlap", s.Rank)
			}
			last[s.Rank] = max(last[s.Rank], s.End)
		}
		for _, b := range r.Busy {
			if b > r.Time+1e-9 {
				t.Fatalf("busy for %v of %v", b, r.Time)
			}
		}
	})
}

func TestWhatASpanCosts(t *testing.T) {
	if _, err := even(Interleaved, 4, 2, 6, Cost{1, 1, 1}).Run(); err == nil {
		t.Error("6 micro-batches over 4 ranks pass as interleaved")
	}
	if _, err := ParseKind("pipedream"); err == nil {
		t.Error("an unknown kind passes")
	}
}

// A long pipeline that is run by a short one takes as long as pass by pass, in all that is asked of it.
func TestSteadyRunsAreWholeRuns(t *testing.T) {
	short, long := 0, 0
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 3))
		p := Pipe{Kind: OneFOneB, Ranks: 1 + r.IntN(9), Chunks: 1, Sync: r.IntN(4) == 0}
		p.Micro = p.Ranks*(16+r.IntN(100)) + r.IntN(p.Ranks)
		if r.IntN(2) == 0 {
			p.Kind, p.Chunks = Interleaved, 2+r.IntN(4)
			p.Micro -= p.Micro % p.Ranks
		}
		for range p.Ranks * p.Chunks {
			c := Cost{F: 1, B: 1.2, W: .8}
			if seed%3 > 0 {
				c = Cost{F: .5 + r.Float64(), B: .5 + r.Float64(), W: r.Float64()}
			}
			p.Cost = append(p.Cost, c)
		}
		for range p.Ranks {
			p.Hops = append(p.Hops, r.Float64()*float64(r.IntN(3)))
		}
		got := p.steady()
		long++
		if got == nil {
			continue
		}
		short++
		want, _, err := p.walk(p.inTurn())
		if err != nil {
			t.Fatal(err)
		}
		near := func(a, b float64) bool { return math.Abs(a-b) <= 1e-9*b }
		same := near(got.Time, want.Time) && near(got.Period, want.Period) && math.Abs(got.Bubble-want.Bubble) < 1e-9 &&
			slices.EqualFunc(got.Busy, want.Busy, near) && slices.EqualFunc(got.LastB, want.LastB, near) && slices.Equal(got.Alive, want.Alive)
		if !same {
			t.Fatalf("seed %d, %d ranks, %d chunks, %d micro-batches: %+v by a short run, %+v pass by pass", seed, p.Ranks, p.Chunks, p.Micro,
				got, want)
		}
	}
	t.Logf("%d of %d were short", short, long)
	if short < long/2 {
		t.Errorf("only %d of %d", short, long)
	}
}

// What ranks hold at least is no more than what they hold in a run, and where Holds says it, as much.
func TestRanksHoldWhatIsSaid(t *testing.T) {
	tight, all := 0, 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 5))
		kind := []Kind{ZBH1, ZBH2, ZB1P, ZB2P, ZBV, DualPipe}[seed%6]
		p := Pipe{Kind: kind, Ranks: 2 * (1 + r.IntN(4)), Chunks: 1, Sync: r.IntN(4) == 0}
		p.Micro = 2 * (1 + r.IntN(40))
		if kind == ZBV {
			p.Chunks = 2
		}
		for range p.Ranks * p.Chunks {
			p.Cost = append(p.Cost, Cost{F: .5 + r.Float64(), B: .5 + r.Float64(), W: r.Float64()})
		}
		for range p.Ranks {
			p.Hops = append(p.Hops, r.Float64()*float64(r.IntN(3)))
		}
		run, err := p.Run()
		if err != nil {
			t.Fatal(err)
		}
		least := p.HoldsAtLeast()
		for rank, n := range least {
			exact, known := p.Holds(rank)
			if n > run.Alive[rank] || known && exact != run.Alive[rank] {
				t.Fatalf("seed %d, %s, %d ranks, %d micro-batches: rank %d holds %d, at least %d, %d (%v) said", seed, kind, p.Ranks, p.Micro,
					rank, run.Alive[rank], n, exact, known)
			}
			all++
			tight += b2i(n == run.Alive[rank])
		}
	}
	if tight < all*8/10 {
		t.Errorf("%d of %d bounds are tight", tight, all)
	}
	t.Logf("%d of %d bounds are tight", tight, all)
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
