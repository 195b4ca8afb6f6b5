package comm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
)

// Ranks that are frozen (SIGSTOP) inside a call for longer than the time limit, and woken when the others have given them up, shrunk
// and gone on. Every rank judges itself, the woken one, too:
//
//   - a call that returned nil has its whole result;
//   - a call that returned an error has left its input as it was, or says that it is lost, which only calls in place may;
//   - nobody writes to the memory that survivors hold afterwards: what they allocated anew, and the buffers of the failed call.
//
// What is right is computed here, element by element, by nothing that the calls use.

func init() { bodies["freeze"] = (*kid).freeze }

// trialOfFreeze is drawn from a seed.
type trialOfFreeze struct {
	transport  string
	ranks      int
	op         string
	count      int // elements of a rank's block
	registered bool
	inPlace    bool
	keep       bool // survivors go on using the buffers of the failed call; else they free them
	offset     int  // elements by which buffers begin behind their allocation
	victim     int
	after      time.Duration
}

var freezeOps = []string{"all-reduce", "all-reduce", "all-reduce", "reduce-scatter", "all-gather", "all-to-all", "reduce", "gather",
	"broadcast"}

func drawFreeze(seed uint64) trialOfFreeze {
	r := rand.New(rand.NewPCG(seed, 1))
	x := trialOfFreeze{transport: []string{"shm", "shm", "mixed", "tcp"}[seed%4], ranks: 2 + r.IntN(7), op: freezeOps[r.IntN(len(freezeOps))]}
	if over := os.Getenv("WEFT_TEST_FREEZE_OVER"); over != "" {
		x.transport = over
	}
	if x.transport == "mixed" {
		x.ranks = max(x.ranks, 4)
	}
	x.count = []int{600, 4096, 30_000, 300_000}[r.IntN(4)]
	x.registered, x.keep, x.inPlace = r.IntN(4) > 0, r.IntN(2) == 0, x.op == "all-reduce" && r.IntN(2) == 0
	if r.IntN(3) == 0 {
		x.offset = 1 + r.IntN(100)
	}
	if x.op == "reduce-scatter" || x.op == "all-gather" || x.op == "all-to-all" || x.op == "gather" {
		x.count = max(x.count/x.ranks, 1)
	}
	x.victim, x.after = r.IntN(x.ranks), time.Duration(r.IntN(30_000))*time.Microsecond
	return x
}

// The elements that a rank gives in its k-th call.
func frozenIn(rank, k, i int) uint64 { return uint64(rank+1)<<40 + uint64(k)<<20 + uint64(i%1009) }

// frozenOut is what a rank must have at an element of its result.
func frozenOut(op string, rank, ranks, count, root, k, i int) (want uint64, any bool) {
	switch op {
	case "all-reduce", "reduce", "reduce-scatter":
		if op == "reduce" && rank != root {
			return 0, true
		}
		if op == "reduce-scatter" {
			i += rank * count
		}
		for r := range ranks {
			want += frozenIn(r, k, i)
		}
		return want, false
	case "all-gather", "gather":
		return frozenIn(i/count, k, i%count), op == "gather" && rank != root
	case "all-to-all":
		return frozenIn(i/count, k, rank*count+i%count), false
	}
	return frozenIn(root, k, i), false // broadcast
}

// frozenCall is one call on buffers of this rank.
type frozenCall struct {
	c       *Comm
	op      string
	count   int
	in, out []uint64
	inPlace bool
}

func (f *frozenCall) do(ctx context.Context, root int) error {
	switch f.op {
	case "all-reduce":
		if f.inPlace {
			return AllReduce(ctx, f.c, f.out, Sum)
		}
		return AllReduceTo(ctx, f.c, f.out, f.in, Sum)
	case "reduce":
		return Reduce(ctx, f.c, f.out, f.in, Sum, root)
	case "reduce-scatter":
		return ReduceScatter(ctx, f.c, f.out, f.in, Sum)
	case "all-gather":
		return AllGather(ctx, f.c, f.out, f.in)
	case "gather":
		return Gather(ctx, f.c, f.out, f.in, root)
	case "all-to-all":
		return AllToAll(ctx, f.c, f.out, f.in)
	}
	return Broadcast(ctx, f.c, f.out, root)
}

// fill prepares the buffers of the k-th call.
func (f *frozenCall) fill(k, root int) {
	for i := range f.out {
		f.out[i] = 77777
	}
	in := f.in
	if f.op == "broadcast" && f.c.Rank() == root {
		in = f.out
	}
	for i := range in {
		in[i] = frozenIn(f.c.Rank(), k, i)
	}
}

// judge says what is wrong after the k-th call.
func (f *frozenCall) judge(k, root int, err error) string {
	bad, first := 0, ""
	note := func(what string, i int, have, want uint64) {
		if bad++; have != want && first == "" {
			first = fmt.Sprintf("%s of call %d: element %d is %#x, want %#x", what, k, i, have, want)
		}
	}
	if err == nil {
		for i, have := range f.out {
			if want, any := frozenOut(f.op, f.c.Rank(), f.c.Size(), f.count, root, k, i); !any && have != want {
				note("nil, and the result", i, have, want)
			}
		}
	}
	var lost *Failure
	if known := errors.As(err, &lost) && lost.Overwritten; !known && (err != nil || !f.inPlace) {
		for i, have := range f.in {
			if want := frozenIn(f.c.Rank(), k, i); have != want {
				note("the input", i, have, want)
			}
		}
	}
	if lost != nil && lost.Overwritten && !f.inPlace {
		return "the input of a call that is not in place is said to be lost"
	}
	if bad > 0 {
		return fmt.Sprintf("%s; %d in all", first, bad)
	}
	return ""
}

// freeze is a rank of a trial.
func (k *kid) freeze() error {
	ctx := context.Background()
	var o order
	if err := k.orders.Decode(&o); err != nil {
		return err
	}
	x := drawFreeze(o.Seed)
	ranks := k.c.Size()
	var whole [][]uint64
	get := func(n int) ([]uint64, error) {
		if !x.registered {
			return make([]uint64, n), nil
		}
		b, err := Alloc[uint64](k.c, n+x.offset)
		whole = append(whole, b)
		if err != nil {
			return nil, err
		}
		return b[x.offset:], nil
	}
	f := frozenCall{c: k.c, op: x.op, count: x.count, inPlace: x.inPlace}
	ins, outs := x.count, x.count
	switch x.op {
	case "all-gather", "gather":
		outs *= ranks
	case "reduce-scatter":
		ins *= ranks
	case "all-to-all":
		ins, outs = ins*ranks, outs*ranks
	case "broadcast":
		ins = 0
	}
	var err error
	if f.out, err = get(outs); err != nil {
		return err
	}
	if f.in = f.out; !x.inPlace {
		if f.in, err = get(ins); err != nil {
			return err
		}
	}
	wrong := ""
	for n := 0; ; n++ {
		root := n % ranks
		f.fill(n, root)
		err = f.do(ctx, root)
		if wrong = f.judge(n, root, err); wrong != "" || err != nil {
			break
		}
		if n == 2 {
			k.say(event{At: "looping"})
		}
	}
	failed := tell("failed", err)
	failed.Data = wrong
	k.say(failed)
	return k.holdOn(ctx, &x, whole, &f)
}

// holdOn is what a rank does after its call failed: it goes on with whoever is left, and holds memory that nobody else may touch.
func (k *kid) holdOn(ctx context.Context, x *trialOfFreeze, whole [][]uint64, f *frozenCall) error {
	if !x.keep {
		for _, b := range whole {
			if err := Free(k.c, b); err != nil {
				return err
			}
		}
	}
	next, err := k.c.Shrink(ctx)
	shrunk := tell("shrunk", err)
	if err == nil {
		k.c = next
	}
	var mine [][]uint64
	if x.keep {
		mine = append(mine, f.out, f.in)
	}
	for range 4 {
		b, err := Alloc[uint64](k.c, len(f.out))
		if err != nil {
			return err
		}
		mine = append(mine, b)
	}
	const pattern = 0x5555
	for _, b := range mine {
		for i := range b {
			b[i] = pattern
		}
	}
	k.say(shrunk)
	var o order
	if err := k.orders.Decode(&o); err != nil {
		return err
	}
	e := event{At: "checked"}
	for n, b := range mine {
		if i := slices.IndexFunc(b, func(v uint64) bool { return v != pattern }); i >= 0 {
			e.Data = fmt.Sprintf("buffer %d that this rank holds was written to: element %d is %#x", n, i, b[i])
		}
	}
	if next != nil { // it works
		sum := []uint64{1}
		if err := AllReduce(ctx, k.c, sum, Sum); err != nil && e.Data == "" && !errors.Is(err, ErrTimeout) {
			e.Data = fmt.Sprintf("a call of the survivors: %v", err)
		} else if err == nil && sum[0] != uint64(k.c.Size()) {
			e.Data = fmt.Sprintf("a call of the survivors: %d of %d", sum[0], k.c.Size())
		}
	}
	k.say(e)
	return k.orders.Decode(&o) // leave
}

// freezeCounts sums up trials.
type freezeCounts struct{ trials, excluded, given int }

// A rank that is frozen in a call and woken after the others went on has a right result or an error, and touches nothing of theirs.
// WEFT_TEST_FREEZES=500 runs as many trials (make freezes); WEFT_TEST_SEED begins with another seed, WEFT_TEST_FREEZE_OVER=ucx
// takes one transport.
func TestWokenRanks(t *testing.T) {
	trials, first := bounded.Times(4, 40), uint64(1)
	if n, err := strconv.Atoi(os.Getenv("WEFT_TEST_FREEZES")); err == nil {
		trials = n
	}
	if n, err := strconv.ParseUint(os.Getenv("WEFT_TEST_SEED"), 10, 64); err == nil {
		first = n
	}
	counts := map[string]*freezeCounts{}
	for seed := first; seed < first+uint64(trials); seed++ {
		x := drawFreeze(seed)
		if counts[x.transport] == nil {
			counts[x.transport] = &freezeCounts{}
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) { freezeOnce(t, seed, x, counts[x.transport]) })
	}
	for name, n := range counts {
		t.Logf("%s: %d trials; %d woken ranks found that they were given up inside a call, %d were excluded", name, n.trials, n.given, n.excluded)
	}
}

func freezeOnce(t *testing.T, seed uint64, x trialOfFreeze, n *freezeCounts) {
	list := startProcs(t, x.ranks, x.transport, "freeze", "WEFT_TIMEOUT=400ms", "WEFT_OUTAGE=30s")
	list.order(order{Do: "freeze", Seed: seed})
	// A rank that the machine gave no core for long may fail before it is frozen: then it is judged all the same.
	var told []event
	await := func(p *proc, at string) event {
		for {
			e, ok := p.next()
			if !ok {
				p.wait()
				t.Fatalf("%+v: rank %d ended before %q: %v\n%s", x, p.rank, at, p.cmd.ProcessState, p.stderr)
			}
			if e.Data != "" || e.At == "broken" {
				t.Errorf("%+v: rank %d, %s: %s%s", x, p.rank, e.At, e.Data, e.Err)
			}
			if told = append(told, e); e.At == at || e.At == "failed" && at == "looping" {
				return e
			}
		}
	}
	for _, p := range list {
		await(p, "looping")
	}
	timer := time.NewTimer(x.after)
	<-timer.C // a moment of the loop
	victim := list[x.victim]
	victim.signal(syscall.SIGSTOP)
	for _, p := range list {
		if p != victim {
			await(p, "shrunk")
		}
	}
	victim.signal(syscall.SIGCONT)
	woken := await(victim, "shrunk")
	list.order(order{Do: "check"})
	for _, p := range list {
		await(p, "checked")
	}
	n.trials++
	if woken.Kind == Excluded {
		n.excluded++
	}
	for _, e := range told {
		if e.At == "failed" && strings.Contains(e.Err, "gave the operation up in epoch") {
			n.given++
		}
	}
	list.finish()
}
