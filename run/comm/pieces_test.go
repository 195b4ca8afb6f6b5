package comm

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/weft-fabric/weft/run/comm/internal/plan"
	"github.com/weft-fabric/weft/run/reduce"
)

func init() { bodies["trades"] = (*kid).trades }

// Two ranks on plain memory of lengths around those at which a trade begins and has
// one piece more, in place and not, of several types: the bits of the definition on
// both, and an input that is not overwritten stays as it is.
func TestTradeIsTheDefinition(t *testing.T) {
	startProcs(t, 2, "shm", "trades").finish()
}

func (k *kid) trades() error {
	r := rand.New(rand.NewPCG(5, 6))
	lengths := []int{plan.PiecesFrom - 8, plan.PiecesFrom, plan.PiecesFrom + 8, plan.PiecesFrom + 2*plan.PieceSize - 8,
		plan.PiecesFrom + 2*plan.PieceSize + 72}
	for range 5 {
		lengths = append(lengths, plan.PiecesFrom+r.IntN(plan.PiecesFrom)&^7)
	}
	for i, n := range lengths {
		for j, inPlace := range []bool{true, false} {
			var err error
			switch (i + j) % 4 {
			case 0:
				err = tradeOnce[uint8](k.c, n+i%2, inPlace, BXor)
			case 1:
				err = tradeOnce[float64](k.c, n/8, inPlace, Avg)
			case 2:
				err = tradeOnce[reduce.BF16](k.c, n/2, inPlace, Sum)
			default:
				err = tradeOnce[int32](k.c, n/4, inPlace, Max)
			}
			if err != nil {
				return fmt.Errorf("%d bytes, in place %t: %w", n, inPlace, err)
			}
		}
	}
	if list := k.c.Flight().Records(); list[len(list)-1].Mode != plan.Pieces.String() {
		return fmt.Errorf("the last operation ran %s, not by pieces", list[len(list)-1].Mode)
	}
	return nil
}

// tradeOnce is one all-reduce of noise that every rank knows of all others.
func tradeOnce[T reduce.Element](c *Comm, count int, inPlace bool, op reduce.Op) error {
	typ := reduce.TypeOf[T]()
	noise := func(rank int) []byte {
		b := make([]byte, count*typ.Size())
		_, _ = rand.NewChaCha8([32]byte{byte(rank), byte(count), byte(op)}).Read(b)
		return b
	}
	want := make([]byte, count*typ.Size())
	reduce.Apply(typ, op, want, noise(0), noise(1))
	reduce.Finish(typ, op, want, 2)
	src := make([]T, count)
	copy(reduce.Bytes(src), noise(c.Rank()))
	dst := src
	if !inPlace {
		dst = make([]T, count)
	}
	if err := AllReduceTo(context.Background(), c, dst, src, op); err != nil {
		return err
	}
	if !bytes.Equal(reduce.Bytes(dst), want) {
		return fmt.Errorf("%s of %s is not the definition's", op, typ)
	}
	if !inPlace && !bytes.Equal(reduce.Bytes(src), noise(c.Rank())) {
		return fmt.Errorf("%s of %s changed its input", op, typ)
	}
	return nil
}

// One of two ranks is killed after a number of steps of a trade, from the first to the
// last: the other has its input as it was, or the whole result, and the error names
// the dead rank.
func TestKilledAtEveryStepOfATrade(t *testing.T) {
	const count = 1<<20 + 77
	steps := (4*count/2+plan.PieceSize-1)/plan.PieceSize + 2*2
	var y tally
	for k := range 16 {
		list := startProcs(t, 2, "shm", "serve")
		f := &faultCase{fault: "kill -9 in a trade", transport: "shm", op: "all-reduce", count: count, inPlace: k%4 != 3, k: k}
		list.all(order{Do: "dup"})
		victim := k % 2
		for r, p := range list {
			o := f.order()
			o.Limit = longTime
			if r == victim {
				o.Steps, o.Signal = 1+k*(steps-1)/15, syscall.SIGKILL
			}
			p.order(o)
		}
		list[victim].wait()
		rest := list.without(victim)
		y.judge(f, "the operation", rest.await("op"), victim, longTime, Dead)
		y.after(f, rest, victim, longTime, Dead)
		rest.finish()
	}
	for _, p := range y.problems {
		t.Error(p)
	}
	if y.errors <= 16 { // those of the operations after
		t.Error("no trade was cut short")
	}
	t.Logf("%d errors, all name the dead rank", y.errors)
}

// One of two ranks stands still in the middle of a trade: the other says so when its
// time is over, and both have their inputs as they were.
func TestStoppedInATrade(t *testing.T) {
	const count = 1 << 20
	var y tally
	for k := range 2 {
		f := &faultCase{fault: "SIGSTOP in a trade", transport: "shm", op: "all-reduce", count: count, inPlace: true, k: k}
		y.add(f.steady(func() *tally {
			y := &tally{cases: 1}
			list := startProcs(t, 2, "shm", "serve")
			list.all(order{Do: "dup"})
			for r, p := range list {
				o := f.order()
				o.Limit = f.limit
				if r == k {
					o.Limit, o.Steps, o.Signal = longTime, 20+50*k, syscall.SIGSTOP
				}
				p.order(o)
			}
			rest := list.without(k)
			y.judge(f, "the operation", rest.await("op"), k, f.limit, Timeout)
			y.after(f, rest, k, f.limit, Timeout)
			list[k].resume()
			own := list[k].await("op")
			own.Stall = 0
			y.judge(f, "its own operation", []event{own}, k, longTime, Timeout)
			list.finish()
			return y
		}))
	}
	for _, p := range y.problems {
		t.Error(p)
	}
	if y.errors == 0 {
		t.Error("nobody noticed")
	}
}
