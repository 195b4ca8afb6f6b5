package comm

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	virtual "github.com/weft-fabric/weft/internal/world"
	"github.com/weft-fabric/weft/run/comm/choice"
	"github.com/weft-fabric/weft/run/transport"
)

var (
	scheduleSeed = flag.Uint64("schedules.seed", 0, "run the schedule of this seed alone, and say what it is")
	scheduleFrom = flag.Uint64("schedules.from", 1, "the first seed")
	scheduleTime = flag.Duration("schedules.time", 0,
		"how long to run schedules; without it a fixed number of them runs, the same on every machine")
)

// scheduled is what every rank does at one place of a schedule.
type scheduled struct {
	op    string
	count int // of elements
	root  int
	place bool // in place
}

var scheduledOps = []string{"all-reduce", "all-reduce", "broadcast", "all-gather", "reduce-scatter", "reduce", "gather", "scatter",
	"all-to-all", "send-recv", "async", "split", "barrier"}

// schedule is a run: what ranks do, how long everything takes, and what goes wrong.
type schedule struct {
	virtual.Config
	list []scheduled

	wrong string // "", or what a rank does: mismatch, abort; frozen: it is paused for longer than the limit, and wakes
	odd   int    // that rank
	at    int    // and in which operation
}

const (
	scheduleLimit = 20 * time.Second // of an operation
	frozenLimit   = time.Second      // where a rank is frozen: waits of virtual time cost some real time
)

// newSchedule draws a schedule.
func newSchedule(seed uint64) schedule {
	r := rand.New(rand.NewPCG(seed, 13))
	pick := func(list ...time.Duration) time.Duration { return list[r.IntN(len(list))] }
	n := 2 + r.IntN(4)
	s := schedule{Config: virtual.Config{Seed: seed, Ranks: n, Think: pick(0, time.Microsecond, 100*time.Microsecond, 5*time.Millisecond),
		Delay: pick(time.Microsecond, 50*time.Microsecond, 3*time.Millisecond),
		Tail:  []int{0, 5, 50}[r.IntN(3)], Overlaps: r.IntN(3) > 0, Holds: r.IntN(2) == 0,
		Notice: pick(0, time.Millisecond, 300*time.Millisecond),
		Limit:  time.Hour}}
	for range 1 + r.IntN(6) {
		s.list = append(s.list, scheduled{op: scheduledOps[r.IntN(len(scheduledOps))], count: []int{1, 3, 40, 700, 20_000}[r.IntN(5)],
			root: r.IntN(n), place: r.IntN(2) == 0})
	}
	s.odd, s.at = r.IntN(n), r.IntN(len(s.list))
	f := virtual.Fault{Rank: s.odd, Peer: (s.odd + 1 + r.IntN(n-1)) % n, Step: 1 + r.IntN(20*len(s.list))}
	switch k := r.IntN(20); {
	case k < 6:
	case k < 13:
		f.Kind = virtual.Kill
	case k < 14:
		f.Kind, f.For = virtual.Pause, scheduleLimit/4
	case k < 16:
		f.Kind, f.For = virtual.Cut, scheduleLimit/4
	case k < 18:
		s.wrong = "mismatch"
	default:
		s.wrong = "abort"
	}
	if f.Kind != 0 {
		s.Faults = append(s.Faults, f)
	}
	return s
}

func (s *schedule) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d ranks, think %s, delay %s, tail %d, overlaps %t, holds %t\n", s.Ranks, s.Think, s.Delay, s.Tail, s.Overlaps, s.Holds)
	for i, o := range s.list {
		fmt.Fprintf(&b, "  %d: %+v\n", i, o)
	}
	for _, f := range s.Faults {
		fmt.Fprintf(&b, "  %s\n", f)
	}
	if s.wrong != "" {
		fmt.Fprintf(&b, "  %s by rank %d in %d\n", s.wrong, s.odd, s.at)
	}
	return b.String()
}

// outcome is how a rank's run ended.
type outcome struct {
	err      error // the first failure
	problems []string
	finished bool // all operations went well
	shrunk   int  // ranks after Shrink; 0 if it was not called or failed
	sum      int32
}

func (o *outcome) bad(format string, args ...any) {
	o.problems = append(o.problems, fmt.Sprintf(format, args...))
}

var (
	scheduleMu     sync.Mutex
	scheduleTables = map[int]*choice.Tables{} // what programs cost does not depend on the schedule
)

// overEndpoint makes the communicator of all ranks of an endpoint.
func overEndpoint(e transport.Endpoint, cfg Config, gather transport.Gather) (*Comm, error) {
	n := e.Size()
	cfg.Rank, cfg.Size = e.Rank(), n
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	w := &world{process: &process{cfg: cfg, majority: cfg.Quorum == "majority", started: time.Now()}, ep: e, hosts: make([]int, n),
		pids: make([]int, n), local: n}
	scheduleMu.Lock()
	if scheduleTables[n] == nil {
		scheduleTables[n] = choice.NewTables(goroutines(n), e.Can())
	}
	w.choices = scheduleTables[n]
	scheduleMu.Unlock()
	return w.first(context.Background(), gather)
}

// value is an element of a rank's input to an operation.
func value(rank, op, i int) int32 { return int32((rank*31+op*7+i*3)%101 - 50) }

// carryOut does one operation and compares its result with a plain reference. A
// failed one must have left its input alone.
func (s *schedule) carryOut(ctx context.Context, c *Comm, k int, o *outcome) error {
	d := s.list[k]
	n, me := c.Size(), c.Rank()
	if s.wrong == "mismatch" && me == s.odd && k == s.at {
		d.count++
	}
	if s.wrong == "abort" && me == s.odd && k == s.at {
		c.Abort(errors.New("enough"))
		return c.Err()
	}
	input := func(rank, count int) []int32 {
		b := make([]int32, count)
		for i := range b {
			b[i] = value(rank, k, i)
		}
		return b
	}
	all := func(count int) []int32 { // what every rank has, one after another
		var b []int32
		for r := range n {
			b = append(b, input(r, count)...)
		}
		return b
	}
	sum := func(count int) []int32 {
		b := make([]int32, count)
		for r := range n {
			for i := range b {
				b[i] += value(r, k, i)
			}
		}
		return b
	}
	var err error
	var src, dst, want []int32
	switch d.op {
	case "all-reduce":
		src, want = input(me, d.count), sum(d.count)
		if dst = src; !d.place {
			dst = make([]int32, d.count)
		}
		err = AllReduceTo(ctx, c, dst, src, Sum)
	case "async":
		src, want, dst = input(me, d.count), sum(d.count), make([]int32, d.count)
		other := input(me, 5)
		h := AllReduceToAsync(ctx, c, dst, src, Sum)
		g := AllReduceAsync(ctx, c, other, Sum)
		err = errors.Join(h.Wait(context.Background()), g.Wait(context.Background()))
		if err == nil && !slices.Equal(other, sum(5)) {
			o.bad("operation %d: the second of two has a wrong result", k)
		}
	case "broadcast":
		src, want = input(me, d.count), input(d.root, d.count)
		dst = src
		err = Broadcast(ctx, c, dst, d.root)
		if err != nil && me != d.root {
			return err // there was no input
		}
	case "all-gather":
		src, want, dst = input(me, d.count), all(d.count), make([]int32, n*d.count)
		err = AllGather(ctx, c, dst, src)
	case "reduce-scatter":
		src, want, dst = input(me, n*d.count), sum(n * d.count)[me*d.count:][:d.count], make([]int32, d.count)
		err = ReduceScatter(ctx, c, dst, src, Sum)
	case "reduce":
		src = input(me, d.count)
		if me == d.root {
			dst, want = make([]int32, d.count), sum(d.count)
		}
		err = Reduce(ctx, c, dst, src, Sum, d.root)
	case "gather":
		src = input(me, d.count)
		if me == d.root {
			dst, want = make([]int32, n*d.count), all(d.count)
		}
		err = Gather(ctx, c, dst, src, d.root)
	case "scatter":
		if me == d.root {
			src = input(me, n*d.count)
		}
		dst, want = make([]int32, d.count), input(d.root, n*d.count)[me*d.count:][:d.count]
		err = Scatter(ctx, c, dst, src, d.root)
	case "all-to-all":
		src, dst = input(me, n*d.count), make([]int32, n*d.count)
		for r := range n {
			want = append(want, input(r, n*d.count)[me*d.count:][:d.count]...)
		}
		err = AllToAll(ctx, c, dst, src)
	case "send-recv":
		before, next := (me+n-1)%n, (me+1)%n
		src, dst, want = input(me, d.count), make([]int32, d.count), input(before, d.count)
		err = SendRecv(ctx, c, dst, src, before, next)
	case "barrier":
		err = Barrier(ctx, c)
	case "split":
		var sub *Comm
		if sub, err = c.Split(ctx, me%2, me); err == nil {
			src, want = []int32{1}, []int32{int32(sub.Size())}
			dst = src
			err = AllReduce(ctx, sub, dst, Sum)
			if (n+1-me%2)/2 != sub.Size() {
				o.bad("operation %d: %d ranks after split", k, sub.Size())
			}
			if err == nil {
				err = sub.Close()
			} else {
				_ = sub.Close()
				return inParent(err, me%2)
			}
		}
		if err != nil {
			return err
		}
	}
	if err == nil && !slices.Equal(dst, want) {
		o.bad("operation %d (%s of %d) gave a wrong result", k, d.op, d.count)
	}
	if len(src) > 0 && (err != nil || len(dst) == 0 || &src[0] != &dst[0]) && !slices.Equal(src, input(me, len(src))) && d.op != "split" {
		o.bad("operation %d (%s of %d) changed its input; its error is %v", k, d.op, d.count, err)
	}
	return err
}

// inParent names the culprits of a failure by their ranks before Split.
func inParent(err error, color int) error {
	var f *Failure
	if !errors.As(err, &f) {
		return err
	}
	own := *f
	own.Culprits = nil
	for _, r := range f.Culprits {
		own.Culprits = append(own.Culprits, 2*r+color)
	}
	return &own
}

// run carries out a schedule, and gives what was wrong with it.
func (s *schedule) run(t *testing.T) (virtual.Result, []string) {
	var gather *gathering
	outcomes := make([]outcome, s.Ranks)
	result := virtual.Run(t, s.Config, func(rank int, e transport.Endpoint) {
		scheduleMu.Lock()
		if gather == nil {
			gather = newGathering(s.Ranks)
		}
		g := gather.at(rank)
		scheduleMu.Unlock()
		o := &outcomes[rank]
		ctx := context.Background()
		cfg := Config{Timeout: scheduleLimit}
		if s.wrong == "frozen" {
			cfg.Quorum, cfg.Timeout = "majority", frozenLimit // a rank that wakes must not go on alone
		}
		c, err := overEndpoint(e, cfg, g)
		if err != nil {
			o.bad("no communicator: %v", err)
			return
		}
		dead := e.(*virtual.Endpoint).Dead
		for k := range s.list {
			if o.err = s.carryOut(ctx, c, k, o); o.err != nil {
				break
			}
		}
		if o.err == nil {
			o.err = Barrier(ctx, c)
		}
		if o.finished = o.err == nil; o.finished || dead() {
			_ = c.Close()
			return
		}
		if sub, err := c.Shrink(ctx); err == nil {
			one := []int32{1}
			if err := AllReduce(ctx, sub, one, Sum); err != nil {
				o.bad("after Shrink to %d: %v", sub.Size(), err)
			}
			o.shrunk, o.sum = sub.Size(), one[0]
			_ = sub.Close()
		} else if woken := s.wrong == "frozen" && rank == s.odd; !dead() &&
			!(woken && (errors.Is(err, ErrExcluded) || errors.Is(err, ErrNoQuorum))) {
			o.bad("Shrink: %v; the failure was: %v", err, o.err)
		}
		_ = c.Close()
	})
	return result, append(result.Problems, s.judge(result, outcomes)...)
}

// judge says what the outcomes have against what is promised.
func (s *schedule) judge(r virtual.Result, outcomes []outcome) (problems []string) {
	bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	killed := slices.Index(r.Dead, true)
	finished, shrunk := 0, 0
	for rank := range outcomes {
		if rank == killed {
			continue
		}
		if outcomes[rank].finished {
			finished++
		}
		if outcomes[rank].shrunk > 0 {
			shrunk++
		}
	}
	// names reports whether a failure names a rank: as a culprit, or, of a communicator that it is not in, in words.
	names := func(f *Failure, rank int, words string) bool {
		return slices.Equal(f.Culprits, []int{rank}) || len(f.Culprits) == 0 && strings.Contains(f.Error(), "split from") &&
			strings.Contains(f.Error(), words)
	}
	for rank, o := range outcomes {
		if rank == killed {
			continue
		}
		for _, p := range o.problems {
			bad("rank %d: %s", rank, p)
		}
		if o.shrunk > 0 && (o.shrunk != shrunk || int(o.sum) != shrunk) {
			bad("rank %d shrank to %d ranks that sum up to %d; %d did", rank, o.shrunk, o.sum, shrunk)
		}
		if o.err == nil {
			continue
		}
		var f *Failure
		if !errors.As(o.err, &f) {
			bad("rank %d: the error is no Failure: %v", rank, o.err)
			continue
		}
		switch {
		case killed >= 0 && finished == 0 && (f.Kind != Dead || !names(f, killed, fmt.Sprintf("rank %d died", killed))):
			bad("rank %d: rank %d died, and the failure is %s of %v: %v", rank, killed, f.Kind, f.Culprits, f)
		case killed >= 0:
		case s.wrong == "mismatch":
			if f.Kind != Mismatch || !slices.Contains(f.Culprits, s.odd) {
				bad("rank %d: rank %d called something else, and the failure is %s of %v: %v", rank, s.odd, f.Kind, f.Culprits, f)
			}
		case s.wrong == "abort":
			if f.Kind != Aborted || !names(f, s.odd, "aborted: enough") {
				bad("rank %d: rank %d aborted, and the failure is %s of %v: %v", rank, s.odd, f.Kind, f.Culprits, f)
			}
		case s.wrong == "frozen":
			if rank != s.odd && f.Kind != Timeout {
				bad("rank %d: rank %d was frozen, and the failure is %s of %v: %v", rank, s.odd, f.Kind, f.Culprits, f)
			}
		default:
			bad("rank %d: nothing went wrong, and the failure is %s of %v: %v", rank, f.Kind, f.Culprits, f)
		}
	}
	return problems
}

// Schedules of the real code in a world of virtual time: no hang, no wrong data,
// the right culprit, inputs as they were.
func TestSchedules(t *testing.T) {
	if *scheduleSeed != 0 {
		s := newSchedule(*scheduleSeed)
		t.Logf("seed %d: %s", *scheduleSeed, &s)
		r, problems := s.run(t)
		t.Logf("%d events, %s of virtual time, steps %v, dead %v", r.Events, r.Took, r.Steps, r.Dead)
		for _, p := range problems {
			t.Error(p)
		}
		return
	}
	limit, most := *scheduleTime, uint64(math.MaxUint64)
	if limit == 0 {
		limit, most = time.Minute, 500 // some 5 s of a core; a machine that is busy with other things does fewer
	}
	if testing.Short() {
		most = 100
	}
	if bounded.Long() {
		limit, most = max(limit, 5*time.Minute), max(most, 2000)
	}
	began, runs, events, failed := time.Now(), 0, 0, 0
	t.Logf("seeds from %d on", *scheduleFrom)
	for seed := *scheduleFrom; time.Since(began) < limit && uint64(runs) < most && failed < 5; seed++ {
		s := newSchedule(seed)
		r, problems := s.run(t)
		runs, events = runs+1, events+r.Events
		if len(problems) > 0 {
			failed++
			t.Errorf("seed %d: %s\nreplay: go test ./run/comm -run 'TestSchedules$' -v -args -schedules.seed=%d",
				seed, strings.Join(problems, "\n  "), seed)
		}
	}
	t.Logf("%d schedules with %d events in %s, %.0f a minute",
		runs, events, time.Since(began).Round(time.Millisecond), float64(runs)/time.Since(began).Minutes())
}

// A rank is killed at every one of its steps in turn, in every kind of operation.
func TestDeathAtEveryStep(t *testing.T) {
	ops := slices.Compact(slices.Clone(scheduledOps))
	if testing.Short() {
		ops = ops[:2]
	}
	runs := 0
	for i, op := range ops {
		for step := 1; ; step++ {
			s := schedule{Config: virtual.Config{Seed: uint64(1000*i + step), Ranks: 3, Think: 10 * time.Microsecond, Delay: 100 * time.Microsecond,
				Overlaps: true, Holds: true,
				Notice: 10 * time.Millisecond, Limit: time.Hour, Faults: []virtual.Fault{{Kind: virtual.Kill, Rank: step % 3, Step: step}}}}
			s.list = []scheduled{{op: op, count: 700, root: 1, place: true}, {op: "all-reduce", count: 20_000, place: true}}
			r, problems := s.run(t)
			runs++
			for _, p := range problems {
				t.Errorf("%s, rank %d killed at step %d: %s", op, step%3, step, p)
			}
			if t.Failed() || !slices.Contains(r.Dead, true) {
				break
			}
		}
	}
	t.Logf("%d runs", runs)
}

// A rank is frozen at every one of its steps in turn, for longer than the others wait for it, and woken when they have gone on. What
// it returns then is judged as theirs is: nil with the right result, or an error with the input as it was.
func TestFreezeAtEveryStep(t *testing.T) {
	ops := slices.Compact(slices.Clone(scheduledOps))
	if testing.Short() {
		ops = ops[:2]
	}
	runs := 0
	for i, op := range ops {
		for step := 1 + i%4; ; step += bounded.Times(4, 1) { // a quarter of the steps, others in each operation, and each rank in turn
			odd := step % 3
			s := schedule{Config: virtual.Config{Seed: uint64(2000*i + step), Ranks: 3, Think: 10 * time.Microsecond, Delay: 100 * time.Microsecond,
				Overlaps: true, Holds: true,
				Notice: 10 * time.Millisecond, Limit: time.Hour,
				Faults: []virtual.Fault{{Kind: virtual.Pause, Rank: odd, Step: step, For: 10 * frozenLimit}}}, wrong: "frozen", odd: odd}
			s.list = []scheduled{{op: op, count: 700, root: 1, place: true}, {op: "all-reduce", count: 20_000, place: true}}
			r, problems := s.run(t)
			runs++
			for _, p := range problems {
				t.Errorf("%s, rank %d frozen at step %d: %s", op, odd, step, p)
			}
			if t.Failed() || r.Steps[odd] < step {
				break
			}
		}
	}
	t.Logf("%d runs", runs)
}
