package comm

import (
	"context"
	"fmt"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/reduce"
)

func init() {
	bodies["exercise"] = (*kid).exerciseAll
	bodies["algorithms"] = (*kid).algorithms
	bodies["splits"] = func(k *kid) error { return k.once(splits(k.c)) }
	bodies["huge"] = func(k *kid) error { return k.once(huge(k.c)) }
}

// once tells that a body is done and waits for the order to leave.
func (k *kid) once(err error) error {
	if err != nil {
		return err
	}
	k.say(event{At: "done"})
	var o order
	return k.orders.Decode(&o)
}

// exerciseAll is the part of the tests between goroutines that processes run, too.
func (k *kid) exerciseAll() error {
	c := k.c
	for i, op := range []reduce.Op{Sum, Prod, Min, Max, Avg} {
		if err := everyType(c, op, []int{3, 40, 1100}[i%3], i%c.Size(), i%2 == 0, i%3 == 0, c.world.cfg.Canonical); err != nil {
			return err
		}
	}
	for i, op := range []reduce.Op{BAnd, BOr, BXor} {
		if err := exercise[uint64](c, op, 700, i%c.Size(), i%2 == 0, i == 1); err != nil {
			return err
		}
	}
	for i, count := range []int{0, 1, 7, 8, 9, 1023, 1024, 1025, 2049, 10000, 70001} {
		for _, registered := range []bool{false, true} {
			for _, inPlace := range []bool{false, true} {
				if err := exercise[float32](c, Sum, count, i%c.Size(), registered, inPlace); err != nil {
					return err
				}
			}
		}
	}
	for seed := range uint64(4) {
		if err := exerciseV[float32](c, seed, int(seed)%c.Size(), seed%2 == 0); err != nil {
			return err
		}
	}
	return k.once(nil)
}

// Every operation between processes: with more ranks than cores, registered and
// plain, in and out of place.
func TestProcesses(t *testing.T) {
	for _, x := range []struct {
		transport string
		ranks     []int
	}{{"shm", bounded.First(2, 2, 5, 3, 4, 8)}, {"tcp", bounded.First(1, 3, 2, 5)}} {
		for _, n := range x.ranks {
			if testing.Short() && n > 4 {
				continue
			}
			t.Run(fmt.Sprintf("%s %d", x.transport, n), func(t *testing.T) {
				list := startProcs(t, n, x.transport, "exercise", fmt.Sprintf("WEFT_CANONICAL=%d", n%2))
				list.await("done")
				list.finish()
			})
		}
	}
}

// trialOf names the trial of a collective.
var trialOf = map[sched.Collective]string{sched.AllReduce: "all-reduce", sched.ReduceScatter: "reduce-scatter",
	sched.AllGather: "all-gather", sched.Broadcast: "broadcast",
	sched.Reduce: "reduce", sched.AllToAll: "all-to-all", sched.Gather: "gather", sched.Scatter: "scatter", sched.Barrier: "barrier"}

// programs calls do with every algorithm's programs for n ranks.
func programs(n int, do func(a *algo.Algorithm, p *sched.Program) error) error {
	for _, a := range algo.All() {
		for _, op := range a.Ops {
			if trialOf[op] == "" {
				continue // not a call of its own
			}
			for channels := 1; channels <= 3; channels += 2 {
				p, err := a.Program(algo.Spec{Op: op, Ranks: n, Root: n - 1, Channels: channels, Local: 2})
				if err != nil || p.Switches > 0 {
					continue // a number of ranks that it cannot do, or switches that compute
				}
				if err := do(a, p); err != nil {
					return fmt.Errorf("%s, %s of %d ranks, %d channels: %w", a.Name, op, n, channels, err)
				}
			}
		}
	}
	return nil
}

// algorithms runs every program of every algorithm as it is written.
func (k *kid) algorithms() error {
	c := k.c
	i := 0
	return k.once(programs(c.Size(), func(a *algo.Algorithm, p *sched.Program) error {
		i++
		for _, count := range []int{5, 3001} {
			tr, err := newTrial[int32](c, order{Op: trialOf[p.Op], Count: count, Root: c.Size() - 1, InPlace: i%2 == 0, Registered: i%3 == 0},
				Using(p))
			if err != nil {
				return err
			}
			if err := tr.run(context.Background()); err != nil {
				return err
			}
			if err := tr.complete(); err != nil {
				return err
			}
			if err := Barrier(context.Background(), c); err != nil {
				return err
			}
			tr.free()
		}
		return nil
	}))
}

func TestEveryAlgorithmBetweenProcesses(t *testing.T) {
	for _, n := range bounded.First(2, 3, 4, 2, 5) {
		t.Run(fmt.Sprintf("tcp %d", n), func(t *testing.T) {
			list := startProcs(t, n, "tcp", "algorithms")
			list.await("done")
			list.finish()
		})
	}
	t.Run("shm 4", func(t *testing.T) {
		list := startProcs(t, 4, "shm", "algorithms")
		list.await("done")
		list.finish()
	})
}
