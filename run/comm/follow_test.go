package comm

import (
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/comm/internal/board"
	"github.com/weft-fabric/weft/run/comm/internal/plan"
)

func init() { bodies["grows"], bodies["strides"] = (*kid).grows, (*kid).strides }

// All-gathers of blocks that are moved by parts, and of those just shorter and
// longer, on memory of every kind, also one that not all ranks have: every result is
// right.
func TestBlocksByParts(t *testing.T) { startProcs(t, 2, "shm", "strides").finish() }

func (k *kid) strides() error {
	for i, count := range []int{plan.StrideFrom/4 - 1, plan.StrideFrom / 4, plan.StrideFrom/4 + plan.StridePart/8 + 3, plan.StrideUpTo / 4,
		plan.StrideUpTo/4 + 1} {
		for kind := range 4 {
			if (i+kind)%2 != 0 && !bounded.Long() {
				continue
			}
			o := order{Op: "all-gather", Count: count, Registered: kind>>k.c.Rank()&1 != 0, InPlace: i%2 == 0}
			if err := k.try(o); err != nil {
				return fmt.Errorf("blocks of %d, memory %b: %w", count, kind, err)
			}
		}
	}
	return nil
}

// Operations with inputs in growing stages, on plain memory, of lengths around
// those at which they begin and have a piece more, every rank as the root, one
// after the other without a pause: every result is right.
func TestGrowingStages(t *testing.T) {
	for _, n := range bounded.First(1, 3, 2) {
		startProcs(t, n, "shm", "grows").finish()
	}
}

func (k *kid) grows() error {
	r := rand.New(rand.NewPCG(9, uint64(k.c.Size())))
	n := k.c.Size()
	counts := []int{plan.PullMovesFrom / 4, plan.FollowFrom/4 - 1, plan.FollowFrom / 4, plan.FollowFrom/4 + 1, plan.FollowUpTo/4 - 3,
		plan.FollowUpTo / 4}
	for range bounded.Times(2, 6) {
		counts = append(counts, plan.FollowFrom/4+r.IntN(plan.FollowFrom))
	}
	for i, count := range counts {
		for j, op := range []string{"broadcast", "reduce", "gather", "all-gather"} {
			o := order{Op: op, Count: count, Root: i, InPlace: (i+j)%3 == 0}
			if count > plan.FollowFrom && op != "broadcast" && op != "reduce" {
				o.Count /= n
			}
			if err := k.try(o); err != nil {
				return fmt.Errorf("%s of %d at root %d: %w", op, o.Count, i%n, err)
			}
		}
	}
	if k.c.group.Mine().Staged().Load() == 0 {
		return fmt.Errorf("rank %d left nothing in a growing stage", k.c.Rank())
	}
	return nil
}

// A rank is killed or stopped when it has staged a number of pieces of its input: the
// others have theirs as they were, or the whole result, and name the rank.
func TestFaultsWhileAStageGrows(t *testing.T) {
	const count = plan.FollowUpTo / 4
	var y tally
	for k, op := range []string{"broadcast", "reduce", "gather", "reduce"} {
		for s, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
			f := &faultCase{fault: signal.String(), transport: "shm", op: op, count: count, inPlace: k == 3, k: k}
			y.add(f.steady(func() *tally {
				y := &tally{cases: 1}
				list := startProcs(t, 2, "shm", "serve")
				list.all(order{Do: "dup"})
				o := f.order()
				o.Root = 0
				victim, kind, within := 1, Dead, longTime
				if op == "broadcast" {
					victim = 0
				}
				if signal == syscall.SIGSTOP {
					kind, within = Timeout, f.limit
				}
				for r, p := range list {
					own := o
					if own.Limit = within; r == victim {
						own.Limit, own.Pieces, own.Signal = longTime, 2+2*k+s, signal
					}
					p.order(own)
				}
				if signal == syscall.SIGKILL {
					list[victim].wait()
				}
				rest := list.without(victim)
				y.judge(f, "the operation", rest.await("op"), victim, within, kind)
				y.after(f, rest, victim, within, kind)
				if signal == syscall.SIGSTOP {
					list[victim].resume()
					own := list[victim].await("op")
					own.Stall = 0
					y.judge(f, "its own operation", []event{own}, victim, longTime, kind)
					list.finish()
				} else {
					rest.finish()
				}
				return y
			}))
		}
	}
	for _, p := range y.problems {
		t.Error(p)
	}
	if y.errors <= 8 { // those of the operations after
		t.Error("no operation was cut short")
	}
}

// signalGrown sends the process a signal once it has staged a number of pieces, of which its board tells, or when
// all is over.
func signalGrown(mine board.Board, at uint64, s syscall.Signal, over <-chan struct{}) {
	for mine.Staged().Load() < at {
		select {
		case <-over:
			at = 0
		default:
		}
	}
	_ = syscall.Kill(os.Getpid(), s)
}
