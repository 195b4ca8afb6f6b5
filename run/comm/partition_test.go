package comm

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	virtual "github.com/weft-fabric/weft/internal/world"
	"github.com/weft-fabric/weft/run/comm/internal/board"
	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/witness"
)

// survivor is how a rank came through.
type survivor struct {
	group []int // the ranks of the last communicator in which an operation succeeded after the fault, by their first ranks
	epoch int
	err   error // why it did not go on; nil if it did
}

// ledgerOf is a ledger as a rank sees it: one that was killed writes no more.
type ledgerOf struct {
	witness.Ledger
	e *virtual.Endpoint
}

func (l ledgerOf) Decide(k witness.Key, record []byte) ([]byte, error) {
	if l.e.Dead() {
		return nil, errors.New("killed")
	}
	return l.Ledger.Decide(k, record)
}

const outliveLimit = 2 * time.Second // of an operation

// outlive runs ranks that add, and shrink after each failure, until they have added again or are told that they may not go on.
func outlive(t *testing.T, cfg virtual.Config, quorum string, witnesses ...witness.Witness) (virtual.Result, []survivor) {
	t.Helper()
	var mu sync.Mutex
	var gather *gathering
	list, ledger := make([]survivor, cfg.Ranks), witness.MemoryLedger()
	result := virtual.Run(t, cfg, func(rank int, e transport.Endpoint) {
		mu.Lock()
		if gather == nil {
			gather = newGathering(cfg.Ranks)
		}
		g := gather.at(rank)
		mu.Unlock()
		ctx, s := context.Background(), &list[rank]
		c, err := overEndpoint(e, Config{Timeout: outliveLimit, Quorum: quorum}, g)
		if err != nil {
			s.err = err
			return
		}
		defer func() { _ = c.Close() }()
		if len(witnesses) > 0 {
			c.world.witness = witnesses[rank]
		}
		if quorum == "any" {
			c.world.ledger = ledgerOf{ledger, e.(*virtual.Endpoint)}
		}
		for shrunk := 0; ; {
			who := make([]int32, c.Size())
			if err := AllGather(ctx, c, who, []int32{int32(rank)}); err == nil && everyPair(ctx, c) == nil {
				s.group, s.epoch = nil, c.Epoch()
				for _, r := range who {
					s.group = append(s.group, int(r))
				}
				if shrunk > 0 && Barrier(ctx, c) == nil {
					return
				}
				continue
			}
			if shrunk++; shrunk > 5 {
				s.err = fmt.Errorf("does not come to an end: %w", c.Err())
				return
			}
			next, err := c.Shrink(ctx)
			if err != nil {
				s.group, s.err = nil, err
				return
			}
			c = next
		}
	})
	return result, list
}

// everyPair lets every two ranks talk, which no collective promises.
func everyPair(ctx context.Context, c *Comm) error {
	n := c.Size()
	for d := 1; d < n; d++ {
		if err := SendRecv(ctx, c, make([]int32, 1), make([]int32, 1), (c.Rank()-d+n)%n, (c.Rank()+d)%n); err != nil {
			return err
		}
	}
	return nil
}

// The network breaks in two, for ever or for a while, at any moment: one part goes on, and only one. Ranks of the other one
// are told.
func TestNeverTwoWorlds(t *testing.T) {
	seeds := uint64(bounded.Times(12, 25))
	if testing.Short() {
		seeds = 10
	}
	if *scheduleTime > 0 {
		seeds = uint64(*scheduleTime / time.Second)
	}
	went := 0
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 99))
		n := 2 + r.IntN(5)
		side := 1 + r.Uint64N(1<<n-2)
		lasts := []time.Duration{0, 0, 3 * outliveLimit, 10 * outliveLimit}[r.IntN(4)]
		cfg := virtual.Config{Seed: seed, Ranks: n, Think: time.Duration(r.IntN(100)) * time.Microsecond,
			Delay: []time.Duration{time.Microsecond, time.Millisecond}[r.IntN(2)],
			Tail:  []int{0, 20}[r.IntN(2)], Notice: 300 * time.Millisecond, Limit: time.Hour,
			Faults: []virtual.Fault{{Kind: virtual.Part, Side: side, Rank: r.IntN(n), Step: 5 + r.IntN(60), For: lasts}}}
		result, list := outlive(t, cfg, "majority")
		if bits.OnesCount64(side)*2 > n || bits.OnesCount64(side)*2 == n && side&1 != 0 {
			// it has the majority
		} else {
			side ^= 1<<n - 1
		}
		var problems []string
		groups := map[string]bool{}
		for rank, s := range list {
			var f *Failure
			switch {
			case s.err == nil:
				groups[fmt.Sprint(s.group, s.epoch)] = true
				if !slices.Contains(s.group, rank) {
					problems = append(problems, fmt.Sprintf("rank %d is in a group without it: %v", rank, s.group))
				}
			case side>>rank&1 != 0 && lasts == 0:
				problems = append(problems, fmt.Sprintf("rank %d of the majority did not go on: %v", rank, s.err))
			case !errors.As(s.err, &f) || f.Kind != Excluded && f.Kind != NoQuorum && f.Kind != Timeout:
				problems = append(problems, fmt.Sprintf("rank %d was not told in the right way: %v", rank, s.err))
			}
		}
		if went += len(groups); len(groups) != 1 {
			problems = append(problems, fmt.Sprintf("%d groups go on: %v", len(groups), groups))
		}
		if problems = append(problems, result.Problems...); len(problems) > 0 {
			t.Fatalf("seed %d: %d ranks, %s\n  %s", seed, n, cfg.Faults[0], strings.Join(problems, "\n  "))
		}
	}
	t.Logf("%d partitions, %d groups went on", seeds, went)
}

// Some pairs of ranks lose each other for good, at any moment, as when a switch drops what goes one way. The first Shrink keeps the most
// ranks that all reach one another if they are a majority, which a search of all groups tells, and nobody else goes on.
func TestShrinkKeepsTheLargestConnectedMajority(t *testing.T) {
	seeds := uint64(bounded.Times(40, 100))
	if *scheduleTime > 0 {
		seeds = uint64(*scheduleTime / time.Second)
	}
	went := 0
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 7))
		n := 3 + r.IntN(5)
		cfg := virtual.Config{Seed: seed, Ranks: n, Think: time.Duration(r.IntN(100)) * time.Microsecond,
			Delay: []time.Duration{time.Microsecond, time.Millisecond}[r.IntN(2)],
			Tail:  []int{0, 20}[r.IntN(2)], Notice: 300 * time.Millisecond, Limit: time.Hour}
		var torn [8][8]bool
		f := virtual.Fault{Kind: virtual.Tear, Rank: r.IntN(n), Step: 5 + r.IntN(60)}
		host, rate := func(i int) int { return i }, 1+r.IntN(6)
		if seed%2 == 0 { // hosts of several ranks: 3, 1 and 2 of 6 among them
			a, b := 1+r.IntN(n-2), 0
			b = a + 1 + r.IntN(n-a-1)
			host = func(i int) int { return min(1, i/a) + min(1, i/b) }
			rate = 2
		}
		for a := range n {
			for b := range a {
				if host(a) != host(b) && rand.New(rand.NewPCG(seed, uint64(host(a)*10+host(b)))).IntN(rate) == 0 {
					torn[a][b], torn[b][a] = true, true
					f.Pair = append(f.Pair, [2]int{a, b})
				}
			}
		}
		if len(f.Pair) == 0 {
			continue
		}
		cfg.Faults = []virtual.Fault{f}
		result, list := outlive(t, cfg, "majority")
		var best [][]int // all groups of the greatest size
		for set := range uint64(1) << n {
			var group []int
			for i := range n {
				if set>>i&1 != 0 && !slices.ContainsFunc(group, func(j int) bool { return torn[i][j] }) {
					group = append(group, i)
				}
			}
			if len(group) < bits.OnesCount64(set) || len(best) > 0 && len(group) < len(best[0]) {
				continue
			}
			if len(best) > 0 && len(group) > len(best[0]) {
				best = nil
			}
			best = append(best, group)
		}
		size := len(best[0])
		may := 2*size > n || 2*size == n && slices.ContainsFunc(best, func(g []int) bool { return g[0] == 0 })
		problems, groups := result.Problems, map[string]bool{}
		for rank, s := range list {
			var failure *Failure
			switch {
			case s.err == nil:
				groups[fmt.Sprint(s.group)] = true
				if s.epoch != 1 || !slices.ContainsFunc(best, func(g []int) bool { return slices.Equal(g, s.group) }) ||
					!slices.Contains(s.group, rank) {
					problems = append(problems, fmt.Sprintf("rank %d goes on in %v in epoch %d, want one of %v in epoch 1", rank, s.group, s.epoch, best))
				}
			case !errors.As(s.err, &failure) || failure.Kind != Excluded && failure.Kind != NoQuorum && failure.Kind != Timeout:
				problems = append(problems, fmt.Sprintf("rank %d was not told in the right way: %v", rank, s.err))
			}
		}
		went += len(groups)
		if len(groups) > 1 || may != (len(groups) == 1) {
			problems = append(problems, fmt.Sprintf("%d groups go on: %v", len(groups), groups))
		}
		for g := range groups {
			for _, rank := range best[0] {
				if len(best) == 1 && list[rank].err != nil {
					problems = append(problems, fmt.Sprintf("rank %d of %s does not go on: %v", rank, g, list[rank].err))
				}
			}
		}
		if len(problems) > 0 {
			t.Errorf("seed %d: %d ranks, %s\n  %s", seed, n, f, strings.Join(problems, "\n  "))
		}
	}
	t.Logf("%d graphs, %d groups went on", seeds, went)
}

// Ranks die while they agree, candidates among them, and messages are late: the majority that is left goes on as one group, and
// without a majority (ranks of one host with a ledger) there are never two.
func TestShrinkWhileCandidatesDie(t *testing.T) {
	seeds := uint64(bounded.Times(40, 100))
	if testing.Short() {
		seeds = 20
	}
	if *scheduleTime > 0 {
		seeds = uint64(*scheduleTime / time.Second)
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 5))
		n := 5 + r.IntN(4)
		cfg := virtual.Config{Seed: seed, Ranks: n, Think: 100 * time.Microsecond,
			Delay: []time.Duration{time.Millisecond, 5 * time.Millisecond}[r.IntN(2)],
			Tail:  []int{5, 20}[r.IntN(2)], Notice: 300 * time.Millisecond, Limit: time.Hour}
		for i, victim := range r.Perm(n)[:(n-1)/2] {
			step := 5 + r.IntN(30)
			if i > 0 { // the lowest ranks are the first candidates
				victim, step = []int{i - 1, victim}[r.IntN(2)], step+r.IntN(8*n)
			}
			cfg.Faults = append(cfg.Faults, virtual.Fault{Kind: virtual.Kill, Rank: victim, Step: step})
		}
		quorum := []string{"majority", "any"}[seed%2]
		result, list := outlive(t, cfg, quorum)
		// Ranks that were done before the last one died are gone; those that were not go on from there, or are too few to.
		problems, groups := result.Problems, map[int]string{} // by epoch
		for rank, s := range list {
			var f *Failure
			group := fmt.Sprint(s.group)
			switch was, known := groups[s.epoch]; {
			case result.Dead[rank]:
			case s.err == nil && known && was != group:
				problems = append(problems, fmt.Sprintf("two groups go on in epoch %d: %s and %s", s.epoch, was, group))
			case s.err == nil:
				groups[s.epoch] = group
			case !errors.As(s.err, &f) || f.Kind != Excluded && f.Kind != NoQuorum:
				problems = append(problems, fmt.Sprintf("rank %d did not go on: %v", rank, s.err))
			}
		}
		if len(groups) == 0 {
			problems = append(problems, "nobody goes on")
		}
		if len(problems) > 0 {
			t.Errorf("seed %d: %d ranks, %s, delay %s, %v\n  %s", seed, n, quorum, cfg.Delay, cfg.Faults, strings.Join(problems, "\n  "))
		}
	}
}

// A candidate had its record accepted and died, and the word of an earlier candidate came late to the same boards: the record may
// have been chosen, so it is what the others take.
func TestALateCandidateDoesNotHideWhatWasAccepted(t *testing.T) {
	const n, dead, late = 5, 2, 0
	accepted := board.Record{Ballot: n + dead, ID: 77} // without rank 4
	for _, r := range []int{0, 1, dead, 3} {
		accepted.Add(r)
	}
	old := board.Record{Ballot: n + late, ID: 78}
	for r := range n {
		old.Add(r)
	}
	var mu sync.Mutex
	var gather, ready *gathering
	sizes, errs := make([]int, n), make([]error, n)
	cfg := virtual.Config{Seed: 1, Ranks: n, Think: 10 * time.Microsecond, Delay: time.Millisecond, Notice: time.Millisecond, Limit: time.Hour,
		Faults: []virtual.Fault{{Kind: virtual.Kill, Rank: dead, Step: 40}}}
	result := virtual.Run(t, cfg, func(rank int, e transport.Endpoint) {
		mu.Lock()
		if gather == nil {
			gather, ready = newGathering(n), newGathering(n-1)
		}
		mu.Unlock()
		ctx := context.Background()
		c, err := overEndpoint(e, Config{Timeout: outliveLimit, Quorum: "majority"}, gather.at(rank))
		for err == nil {
			err = Barrier(ctx, c)
		}
		if rank == dead {
			return
		}
		defer func() { _ = c.Close() }()
		c.group.Mine().SwapVote(board.Vote{}, board.Vote{Promised: accepted.Ballot, Accepted: accepted.Ballot})
		c.group.Mine().WriteRecord(dead, accepted.Encode())
		c.group.Mine().WriteRecord(late, old.Encode())
		if _, err := ready.at(rank-min(1, rank/(dead+1)))(ctx, nil); err != nil {
			errs[rank] = err
			return
		}
		sub, err := c.Shrink(ctx)
		if errs[rank] = err; err == nil {
			sizes[rank] = sub.Size()
			_ = sub.Close()
		}
	})
	if len(result.Problems) > 0 || !result.Dead[dead] {
		t.Fatalf("%v, dead: %v", result.Problems, result.Dead)
	}
	for rank := range n {
		switch {
		case rank == dead:
		case rank == 4 && !errors.Is(errs[rank], ErrExcluded):
			t.Errorf("rank 4, which is not in the record, shrank to %d: %v", sizes[rank], errs[rank])
		case rank != 4 && sizes[rank] != 4:
			t.Errorf("rank %d shrank to %d ranks: %v", rank, sizes[rank], errs[rank])
		}
	}
}

// silent is a witness that cannot be reached.
type silent struct{}

func (silent) Swap(context.Context, witness.Key, uint64, uint64, []byte) (uint64, []byte, error) {
	return 0, nil, errors.New("no way to it")
}

// The network breaks in two halves of the same size: the half that the witness votes with goes on, also without rank 0; never
// both, whichever can reach it; and none if nobody can.
func TestWitnessDecidesBetweenHalves(t *testing.T) {
	seeds := uint64(24)
	if testing.Short() {
		seeds = 8
	}
	if *scheduleTime > 0 {
		seeds = uint64(*scheduleTime / time.Second)
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 7))
		n := 2 * (1 + r.IntN(3))
		side := uint64(0)
		for _, i := range r.Perm(n)[:n/2] {
			side |= 1 << i
		}
		reach := int(seed % 4) // 0 both halves, 1 the side, 2 the other, 3 nobody
		lasts := []time.Duration{0, 0, 3 * outliveLimit}[r.IntN(3)]
		shared := witness.Memory()
		witnesses := make([]witness.Witness, n)
		for i := range n {
			witnesses[i] = shared
			if in := side>>i&1 != 0; reach == 3 || reach == 1 && !in || reach == 2 && in {
				witnesses[i] = silent{}
			}
		}
		cfg := virtual.Config{Seed: seed, Ranks: n, Think: time.Duration(r.IntN(100)) * time.Microsecond,
			Delay: []time.Duration{time.Microsecond, time.Millisecond}[r.IntN(2)],
			Tail:  []int{0, 20}[r.IntN(2)], Notice: 300 * time.Millisecond, Limit: time.Hour,
			Faults: []virtual.Fault{{Kind: virtual.Part, Side: side, Rank: r.IntN(n), Step: 5 + r.IntN(60), For: lasts}}}
		result, list := outlive(t, cfg, "majority", witnesses...)
		problems, groups := result.Problems, map[string]bool{}
		for rank, s := range list {
			var f *Failure
			if s.err == nil {
				groups[fmt.Sprint(s.group, s.epoch)] = true
			} else if !errors.As(s.err, &f) || f.Kind != Excluded && f.Kind != NoQuorum && f.Kind != Timeout {
				problems = append(problems, fmt.Sprintf("rank %d was not told in the right way: %v", rank, s.err))
			}
			if in := side>>rank&1 != 0; lasts == 0 && (reach == 1 && in || reach == 2 && !in) && s.err != nil {
				problems = append(problems, fmt.Sprintf("rank %d reaches the witness and did not go on: %v", rank, s.err))
			}
		}
		if len(groups) > 1 || lasts == 0 && (len(groups) == 0) != (reach == 3) {
			problems = append(problems, fmt.Sprintf("%d groups go on: %v", len(groups), groups))
		}
		if len(problems) > 0 {
			t.Fatalf("seed %d: %d ranks, reach %d, %s\n  %s", seed, n, reach, cfg.Faults[0], strings.Join(problems, "\n  "))
		}
	}
}

// A rank that lives and does nothing, whichever it is, holds nobody up for longer than the grace, and learns that it was left out.
func TestShrinkWithoutARankThatLives(t *testing.T) {
	for _, quorum := range []string{"any", "majority"} {
		for absent := range 4 {
			for seed := range uint64(1) {
				cfg := virtual.Config{Seed: seed, Ranks: 4, Think: 20 * time.Microsecond, Delay: 100 * time.Microsecond, Limit: time.Hour,
					Faults: []virtual.Fault{{Kind: virtual.Pause, Rank: absent, Step: 10 + int(seed), For: 8 * outliveLimit}}}
				result, list := outlive(t, cfg, quorum)
				if len(result.Problems) > 0 {
					t.Fatal(result.Problems)
				}
				want := slices.DeleteFunc([]int{0, 1, 2, 3}, func(r int) bool { return r == absent })
				for rank, s := range list {
					if rank == absent {
						if !errors.Is(s.err, ErrExcluded) {
							t.Errorf("%s, seed %d: rank %d came too late and got %v, %v", quorum, seed, rank, s.group, s.err)
						}
					} else if !slices.Equal(s.group, want) || s.err != nil {
						t.Errorf("%s, seed %d: rank %d is in %v, want %v: %v", quorum, seed, rank, s.group, want, s.err)
					}
				}
			}
		}
	}
}

func init() { bodies["stubborn"] = (*kid).stubborn }

// stubborn adds until it fails, shrinks, adds once more and tells how that went.
func (k *kid) stubborn() error {
	ctx := context.Background()
	one := make([]float32, 1000)
	k.say(event{At: "ready"})
	for AllReduce(ctx, k.c, one, Sum) == nil {
	}
	e := event{At: "over"}
	c, err := k.c.Shrink(ctx)
	if err == nil {
		k.c = c
		err = AllReduce(ctx, c, one, Sum)
		e.Value = fmt.Appendf(nil, "%d", c.Size())
	}
	if err != nil {
		e.Err = err.Error()
		var f *Failure
		if errors.As(err, &f) {
			e.Kind, e.Culprits = f.Kind, f.Culprits
		}
	}
	k.say(e)
	var o order
	return k.orders.Decode(&o) // until all may leave
}

// A process that is stopped, be it the first or the last rank, is left behind, and told so when it goes on.
func TestShrinkWithoutAStoppedProcess(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		for _, stopped := range map[string][]int{"shm": {0}, "tcp": {0, 2}}[transport] {
			list := startProcs(t, 3, transport, "stubborn", "WEFT_TIMEOUT=1500ms")
			for _, p := range list {
				p.await("ready")
			}
			list[stopped].signal(syscall.SIGSTOP)
			for _, e := range list.without(stopped).await("over") {
				if e.Err != "" || string(e.Value) != "2" {
					t.Errorf("%s, rank %d stopped: shrank to %s ranks: %s", transport, stopped, e.Value, e.Err)
				}
			}
			list[stopped].signal(syscall.SIGCONT)
			if e := list[stopped].await("over"); e.Kind != Excluded {
				t.Errorf("%s, rank %d stopped: once back it shrank to %q ranks: %s", transport, stopped, e.Value, e.Err)
			}
			list.finish()
		}
	}
}

// A process that is stopped while the others shrink, go on and end does not go on alone when it wakes: nobody is left to tell it,
// but what they decided is kept as long as it lives.
func TestALateRankDoesNotGoOnAlone(t *testing.T) {
	for _, c := range []struct {
		transport string
		stopped   int
	}{{"tcp", 0}, {"tcp", 2}, {"shm", 0}} {
		list := startProcs(t, 3, c.transport, "stubborn", "WEFT_TIMEOUT=1500ms")
		for _, p := range list {
			p.await("ready")
		}
		list[c.stopped].signal(syscall.SIGSTOP)
		others := list.without(c.stopped)
		for _, e := range others.await("over") {
			if e.Err != "" || string(e.Value) != "2" {
				t.Errorf("%s, rank %d stopped: the others shrank to %s ranks: %s", c.transport, c.stopped, e.Value, e.Err)
			}
		}
		others.finish()
		list[c.stopped].signal(syscall.SIGCONT)
		if e := list[c.stopped].await("over"); e.Kind != Excluded {
			t.Errorf("%s, rank %d stopped: when all others had ended it shrank to %q ranks: %s", c.transport, c.stopped, e.Value, e.Err)
		}
		list[c.stopped : c.stopped+1].finish()
	}
}
