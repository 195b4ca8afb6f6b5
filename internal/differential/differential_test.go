package differential

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/verify"
	"github.com/weft-fabric/weft/internal/reference"
	"github.com/weft-fabric/weft/run/comm/device"
	"github.com/weft-fabric/weft/run/transport/ucx"
)

var (
	long   = flag.Duration("time", 25*time.Second, "how long to draw programs")
	seed   = flag.Uint64("seed", 0, "the first seed; 0 for one that the date gives")
	replay = flag.Uint64("replay", 0, "the only seed")
	limit  = flag.Duration("limit", 2*time.Minute, "after which a call hangs")
)

func TestMain(m *testing.M) {
	Rank()
	os.Exit(m.Run())
}

// way is one in which a program is run.
type way struct {
	name     string
	start    func(n int) (Group, error)
	messages bool
	chooses  bool // half of the calls run what comm chooses, as phases over several hosts are
	straight bool // calls run the program that the documentation says, in place of what was drawn
	one      bool // process has all ranks: none can be stopped
	least    int  // ranks
	most     int
}

func within(n int) (Group, error) { return Local(n, *limit) }

func among(s func(n int) Setting) func(n int) (Group, error) {
	return func(n int) (Group, error) { return Processes(n, s(n), *limit) }
}

func over(transport string) func(n int) (Group, error) {
	return among(func(int) Setting { return Setting{Transport: transport} })
}

// onHosts are ranks over shared memory and tcp, each on the host that place gives it.
func onHosts(place func(rank, n int) int) func(n int) (Group, error) {
	return among(func(n int) Setting {
		s := Setting{Transport: "mixed"}
		for r := range n {
			s.Hosts = append(s.Hosts, place(r, n))
		}
		return s
	})
}

func onGPUs(transport string, path device.Way) func(n int) (Group, error) {
	return among(func(int) Setting { return Setting{Transport: transport, GPU: path} })
}

// ways are all of them.
func ways(t *testing.T) []way {
	list := []way{
		{name: "mem", start: within, one: true, most: 7},
		{name: "mem by messages", start: within, one: true, messages: true, most: 7},
		{name: "shm", start: over("shm"), most: 4},
		{name: "shm by messages", start: over("shm"), messages: true, most: 4},
		{name: "tcp", start: over("tcp"), most: 4},
		{name: "mixed, equal hosts", start: onHosts(func(r, n int) int { return 2 * r / n }), chooses: true, least: 4, most: 4},
		{name: "mixed, uneven hosts", start: onHosts(func(r, n int) int { return (r + 1) / n }), chooses: true, least: 3, most: 4},
		{name: "mixed, interleaved hosts", start: onHosts(func(r, n int) int { return r % 2 }), chooses: true, least: 3, most: 4},
		{name: "GPU memory, direct", start: onGPUs("shm", device.Direct), straight: true, most: 3},
		{name: "GPU memory, staged", start: onGPUs("tcp", device.Staged), most: 3},
	}
	if _, err := ucx.Available(); err != nil {
		t.Logf("without ucx: %v", err)
		return list
	}
	return append(list, way{name: "ucx", start: over("ucx"), most: 3})
}

// counts are what came of the programs that were drawn.
type counts struct {
	drawn, proven, refused, refusedRight, runs, frozen int
	over                                               map[string]int // calls, by way
}

// What is proven is what runs: programs are drawn and proven, and those that are proven
// give the reference's bits in every world, at several sizes, in and out of place.
func TestProvenIsWhatRuns(t *testing.T) {
	first := *seed
	if first == 0 {
		first = uint64(time.Now().Unix()) << 20
	}
	end := time.Now().Add(*long)
	if *replay > 0 {
		first, end = *replay, time.Time{}
	}
	t.Logf("seeds from %d", first)
	groups := map[string]Group{}
	defer func() {
		for _, g := range groups {
			g.Close()
		}
	}()
	c, all := counts{over: map[string]int{}}, ways(t)
	for s := first; s == first || time.Now().Before(end); s++ {
		if err := one(s, all, groups, &c); err != nil {
			t.Errorf("%v\nreplay with: go test ./internal/differential -run TestProvenIsWhatRuns -replay %d", err, s)
			break
		}
	}
	t.Logf("%d programs drawn: %d proven, which made %d calls; %d refused, of which %d are right in every order that the reference tried",
		c.drawn, c.proven, c.runs, c.refused, c.refusedRight)
	t.Logf("in %d calls a rank was stopped and woken; calls by transport:", c.frozen)
	for _, w := range all {
		t.Logf("%8d %s", c.over[w.name], w.name)
	}
	if *replay == 0 && c.drawn > 100 && c.proven < c.drawn/10 {
		t.Errorf("%d of %d programs are proven: the test says little", c.proven, c.drawn)
	}
}

// one draws a program, proves it and runs it.
func one(seed uint64, all []way, groups map[string]Group, c *counts) error {
	rng := rand.New(rand.NewPCG(seed, 1))
	n := 2 + rng.IntN(3)
	if rng.IntN(8) == 0 {
		n = 5 + rng.IntN(3)
	}
	p, how := Draw(rng, n)
	c.drawn++
	if _, err := verify.Program(p); err != nil {
		c.refused++
		if right(p, rng) == nil {
			c.refusedRight++
		}
		return nil
	}
	c.proven++
	for i, w := range all {
		if n < w.least || n > w.most || i != int(seed%uint64(len(all))) && rng.IntN(3) > 0 {
			continue
		}
		key := fmt.Sprint(w.name, n)
		for range 2 {
			cs, err := w.draw(rng, p)
			if err != nil {
				return err
			}
			start := func() (Group, error) { return w.start(n) }
			if err := try(groups, key, start, &cs); err != nil {
				err = smaller(groups, key, start, cs, err)
				return report(seed, shrunk(groups, key, start, cs, p), how, w.name, cs, err)
			}
			c.runs++
			c.over[w.name]++
			c.frozen += min(cs.Frozen, 1)
		}
	}
	return nil
}

// draw draws a call of a program, or of the one that takes its place.
func (w *way) draw(rng *rand.Rand, p *sched.Program) (Case, error) {
	if w.straight && p.Op != sched.Barrier {
		name := "direct"
		if p.Op.Reduces() {
			name = "rank-order"
		}
		a, err := algo.Find(name)
		if err != nil {
			return Case{}, err
		}
		if p, err = a.Program(algo.Spec{Op: p.Op, Ranks: p.Ranks, Root: p.Root}); err != nil {
			return Case{}, err
		}
	}
	c := DrawCase(rng, p)
	c.Messages, c.Chosen = w.messages, w.straight
	if w.chooses && rng.IntN(2) == 0 {
		c.Chosen, c.Tricky = true, false // the order of its sums is comm's business
	}
	if !w.one && rng.IntN(4) == 0 {
		c.Frozen, c.After = 1+rng.IntN(p.Ranks), time.Duration(rng.IntN(3000))*time.Microsecond
	}
	return c, nil
}

// try runs a case in a group, which is started if it is not there.
func try(groups map[string]Group, key string, start func() (Group, error), c *Case) error {
	g := groups[key]
	if g == nil {
		var err error
		if g, err = start(); err != nil {
			return fmt.Errorf("cannot start: %w", err)
		}
		groups[key] = g
	}
	outs, err := g.Run(c)
	if err == nil {
		return c.Check(outs)
	}
	g.Close()
	delete(groups, key)
	return err
}

// smaller looks for a call that fails, too, and is simpler.
func smaller(groups map[string]Group, key string, start func() (Group, error), c Case, err error) error {
	fewer := func(change func(*Case)) {
		d := c
		d.InPlace, d.Plain = append([]bool(nil), c.InPlace...), append([]bool(nil), c.Plain...)
		change(&d)
		if e := try(groups, key, start, &d); e != nil {
			c, err = d, e
		}
	}
	began := time.Now()
	for _, k := range sizes {
		if k < c.Count && c.Lengths == nil && time.Since(began) < time.Minute {
			fewer(func(d *Case) { d.Count, d.Tricky = k, d.Op == "sum" && k <= mostTricky })
		}
	}
	fewer(func(d *Case) { clear(d.InPlace) })
	fewer(func(d *Case) { clear(d.Plain) })
	return fmt.Errorf("%w\nsmallest call that fails: %s", err, c)
}

// shrunk looks for a smaller program whose call fails, too, for a minute at most.
func shrunk(groups map[string]Group, key string, start func() (Group, error), c Case, p *sched.Program) *sched.Program {
	end := time.Now().Add(time.Minute)
	return Shrink(p, func(q *sched.Program) bool {
		d := c
		d.Program = q.String()
		return time.Now().Before(end) && try(groups, key, start, &d) != nil
	})
}

// TestShrink: a program that is made smaller is proven, fails as before, and loses the
// lines that have nothing to do with it.
func TestShrink(t *testing.T) {
	reduces := func(p *sched.Program) bool { return strings.Contains(p.String(), "recv-reduce") }
	less := 0
	for seed := uint64(1); seed <= 60; seed++ {
		p, _ := Draw(rand.New(rand.NewPCG(seed, 1)), 3)
		if _, err := verify.Program(p); err != nil || !reduces(p) || len(p.String()) > 3000 {
			continue
		}
		q := Shrink(p, reduces)
		if _, err := verify.Program(q); err != nil || !reduces(q) {
			t.Fatalf("seed %d: shrunk to a program that is not proven or does not fail: %v\n%s", seed, err, q)
		}
		if len(q.String()) < len(p.String()) {
			less++
		}
	}
	if less == 0 {
		t.Error("no program became smaller")
	}
	// A copy to scratch that nobody reads is what a person would take out first.
	p, err := sched.Parse("weft 1\nname x\nop all-reduce\nranks 2\nchunks 1\nscratch 2\nslots 2\nchannels 1:\n  copy in[0] -> tmp[0]\n  repeat i < 3:\n    copy in[0] -> tmp[1]\n  send tmp[0] to 1-r\n  recv-reduce in[0] -> out[0] from 1-r\n")
	if err != nil {
		t.Fatal(err)
	}
	if q := Shrink(p, reduces); strings.Contains(q.String(), "tmp[1]") || strings.Contains(q.String(), "repeat") {
		t.Errorf("left:\n%s", q)
	}
}

// report writes the program down and says what is wrong.
func report(seed uint64, p *sched.Program, how, way string, c Case, err error) error {
	path := filepath.Join(os.TempDir(), fmt.Sprintf("weft-differential-%d.weft", seed))
	if e := os.WriteFile(path, []byte(p.String()), 0o644); e != nil {
		path = e.Error()
	}
	return fmt.Errorf("seed %d: a proven program (%s) is not what runs over %s: %w\ncall: %s\nprogram, also in %s:\n%s",
		seed, how, way, err, c, path, p)
}

// right runs a program with the reference in several orders and compares with what the
// collective promises.
func right(p *sched.Program, rng *rand.Rand) error {
	if p.Check() != nil || p.NumChunks(sched.In) == 0 {
		return fmt.Errorf("no program")
	}
	in := make([][]int64, p.Ranks)
	for r := range in {
		for range p.NumChunks(sched.In) {
			in[r] = append(in[r], rng.Int64N(1<<40))
		}
	}
	want := reference.Promised(p.Op, p.Root, in)
	for i := range 4 {
		pick := rng.IntN
		if i == 0 {
			pick = nil
		}
		out, err := reference.Run(p, in, pick)
		if err != nil {
			return err
		}
		for r := range want {
			if want[r] != nil && fmt.Sprint(out[r]) != fmt.Sprint(want[r]) {
				return fmt.Errorf("rank %d", r)
			}
		}
	}
	return nil
}
