package comm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm/internal/blame"
	"github.com/weft-fabric/weft/run/reduce"
	"reflect"
)

var kinds = []string{"shm", "tcp"}

func init() { bodies["exits"] = (*kid).exits }

// Ranks that end with their last operation, without a Close, let the others end it.
// What is wrong counts if nobody had to wait for a core for as long as those have.
func TestExitAfterTheLast(t *testing.T) {
	var witness pulse
	witness.start()
	defer witness.end()
	for _, kind := range kinds {
		for range 3 {
			for again := 0; ; again++ {
				witness.worst.Store(0)
				var problems []string
				list := startProcs(t, 7, kind, "exits")
				for r, e := range list.await("done") {
					if e.Err != "" {
						problems = append(problems, fmt.Sprintf("rank %d over %s: %s", r, kind, e.Err))
					}
				}
				for _, p := range list {
					p.wait()
				}
				if again < 4 && len(problems) > 0 && witness.worst.Load() >= int64(blame.DiedFor) {
					continue
				}
				for _, p := range problems {
					t.Error(p)
				}
				break
			}
		}
	}
}

func (k *kid) exits() error {
	err := AllReduce(context.Background(), k.c, make([]float32, 3000), Sum)
	if err == nil {
		err = Barrier(context.Background(), k.c)
	}
	k.say(tell("done", err))
	os.Exit(0)
	return nil
}

// Communicators that are split from different ones at once are different ones.
func TestSplitsAtOnce(t *testing.T) {
	ctx := context.Background()
	for _, kind := range kinds {
		two(t, kind, func(c *Comm) error {
			d, err := c.Dup(context.Background())
			if err != nil {
				return err
			}
			var wg sync.WaitGroup
			var mu sync.Mutex
			seen, errs := map[uint32]bool{}, []error{}
			for k, from := range []*Comm{c, d} {
				wg.Go(func() {
					for i := range 50 {
						sub, err := from.Split(context.Background(), i%2*(from.Rank()+1), 0)
						if err == nil {
							sum := []int{k, 1}
							x := []int64{int64(sum[0]), int64(sum[1])}
							if err = AllReduce(ctx, sub, x, Sum); err == nil && (x[0] != int64(k*sub.Size()) || x[1] != int64(sub.Size())) {
								err = fmt.Errorf("summed up to %d on %d ranks", x, sub.Size())
							}
						}
						mu.Lock()
						if errs = append(errs, err); sub != nil {
							if seen[sub.id] {
								errs = append(errs, fmt.Errorf("two communicators are number %d", sub.id))
							}
							seen[sub.id] = true
							defer sub.Close()
						}
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			return errors.Join(append(errs, Barrier(ctx, c), d.Close())...)
		})
	}
}

// A rank that waits for a message of its own ends with the others.
func TestMessageToItselfThatDoesNotCome(t *testing.T) {
	ctx := context.Background()
	for name, end := range map[string]func(c *Comm){
		"abort": func(c *Comm) { c.Abort(errors.New("enough")) },
		"close": func(c *Comm) { _ = c.Close() },
		"limit": func(*Comm) {},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, 2, Config{Timeout: 300 * time.Millisecond}, func(c *Comm) error {
				h := RecvAsync(ctx, c, []int8{1}, c.Rank())
				end(c)
				if err := h.Wait(ctx); err == nil || name == "limit" && !errors.Is(err, context.DeadlineExceeded) {
					return fmt.Errorf("ended with %w", err)
				}
				return nil
			})
		})
	}
}

// Exchanges that waited for their turns leave nothing behind once they are over.
func TestExchangesInARow(t *testing.T) {
	for _, kind := range kinds {
		two(t, kind, func(c *Comm) error {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			in, handles := make([][]int32, 20), make([]*Handle, 20)
			for i := range in {
				in[i] = make([]int32, 1)
				handles[i] = SendRecvAsync(ctx, c, in[i], []int32{int32(i)}, 1-c.Rank(), 1-c.Rank())
			}
			if err := WaitAll(ctx, handles...); err != nil {
				return err
			}
			for i := range in {
				if in[i][0] != int32(i) {
					return fmt.Errorf("message %d is %d", i, in[i][0])
				}
			}
			if n := reflect.ValueOf(c.messages.Load().Messages).Elem().FieldByName("active").Len(); n != 0 {
				return fmt.Errorf("%d messages are still under way", n)
			}
			return nil
		})
	}
}

// No reduction at all is not one that does not exist.
func TestNoReduction(t *testing.T) {
	ctx := context.Background()
	each(t, 2, Config{}, func(c *Comm) error {
		b := make([]float32, 4)
		return errors.Join(
			says(AllReduce(ctx, c, b, 0), "no such operation"),
			says(Reduce(ctx, c, b, b, 0, 0), "no such operation"),
			says(ReduceScatter(ctx, c, make([]float32, 2), b, 0), "no such operation"),
			says(ReduceScatterV(ctx, c, make([]float32, 2), b, []int{2, 2}, 0), "no such operation"),
			says(AllReduce(ctx, c, b, reduce.Op(77)), "no such operation"),
			Barrier(ctx, c))
	})
}

// A call whose context has ended is not made, and the others are told so.
func TestContextThatHasEnded(t *testing.T) {
	bg := context.Background()
	cancelled, cancel := context.WithCancel(bg)
	cancel()
	late, cancel := context.WithDeadline(bg, time.Now().Add(-time.Second))
	defer cancel()
	for name, call := range map[string]func(ctx context.Context, c *Comm) error{
		"all-reduce": func(ctx context.Context, c *Comm) error { return AllReduce(ctx, c, []int32{1}, Sum) },
		"broadcast":  func(ctx context.Context, c *Comm) error { return Broadcast(ctx, c, []int32{1}, 1) },
		"send":       func(ctx context.Context, c *Comm) error { return Send(ctx, c, []int32{1}, 0) },
		"exchange": func(ctx context.Context, c *Comm) error {
			return SendRecv(ctx, c, []int32{1}, []int32{1}, 0, 0)
		},
		"async": func(ctx context.Context, c *Comm) error {
			return AllReduceAsync(ctx, c, []int32{1}, Sum).Wait(bg)
		},
	} {
		for _, end := range []struct {
			ctx  context.Context
			want error
			kind Kind
		}{{cancelled, context.Canceled, Aborted}, {late, context.DeadlineExceeded, Timeout}} {
			t.Run(name+" "+end.want.Error(), func(t *testing.T) {
				each(t, 2, Config{}, func(c *Comm) error {
					err := errors.Join(Broadcast(bg, c, []int32{1}, 1), AllReduce(bg, c, []int32{1}, Sum),
						SendRecv(bg, c, []int8{1}, []int8{1}, 1-c.Rank(), 1-c.Rank()))
					if err != nil {
						return err
					}
					want := end.want
					if c.Rank() == 1 {
						err = call(end.ctx, c)
					} else if err, want = Barrier(bg, c), nil; err == nil {
						return errors.New("the other one was not told")
					}
					var f *Failure
					if !errors.As(err, &f) || f.Kind != end.kind || len(f.Culprits) != 1 || f.Culprits[0] != 1 || want != nil && !errors.Is(err, want) {
						return fmt.Errorf("not a call of rank 1 that came too late: %w", err)
					}
					return nil
				})
			})
		}
	}
}

// The context of a call counts while it waits for calls that were made before it.
func TestContextOfACallThatWaits(t *testing.T) {
	bg := context.Background()
	for name, call := range map[string]func(ctx context.Context, c *Comm) *Handle{
		"collective": func(ctx context.Context, c *Comm) *Handle { return AllReduceAsync(ctx, c, []int32{1}, Sum) },
		"receive":    func(ctx context.Context, c *Comm) *Handle { return RecvAsync(ctx, c, []int32{1}, 0) },
	} {
		for _, ends := range []error{context.Canceled, context.DeadlineExceeded} {
			t.Run(name+" "+ends.Error(), func(t *testing.T) {
				each(t, 2, Config{}, func(c *Comm) error {
					if c.Rank() == 0 {
						return nil // it does not come
					}
					ctx, cancel := context.WithCancel(bg)
					if ends == context.DeadlineExceeded {
						ctx, cancel = context.WithTimeout(bg, 50*time.Millisecond)
					}
					defer cancel()
					first, second := call(bg, c), call(ctx, c)
					if ends == context.Canceled {
						cancel()
					}
					if err := first.Wait(bg); !errors.Is(err, ends) {
						return fmt.Errorf("the first ended with %w", err)
					}
					if err := second.Wait(bg); !errors.Is(err, ends) {
						return fmt.Errorf("the second ended with %w", err)
					}
					return nil
				})
			})
		}
	}
}

// Who waits for a rank that closed the communicator is told so.
func TestClosedByAnother(t *testing.T) {
	ctx := context.Background()
	for _, kind := range kinds {
		for name, call := range map[string]func(c *Comm) error{
			"all-reduce": func(c *Comm) error { return AllReduce(ctx, c, make([]float32, 100), Sum) },
			"large":      func(c *Comm) error { return AllReduce(ctx, c, make([]float32, 100000), Sum) },
			"receive":    func(c *Comm) error { return Recv(ctx, c, make([]int8, 1), 0) },
		} {
			t.Run(kind+" "+name, func(t *testing.T) {
				two(t, kind, func(c *Comm) error {
					d, err := c.Dup(context.Background())
					if err != nil {
						return err
					}
					if c.Rank() == 0 {
						err = Send(ctx, d, []int8{5}, 1) // comes, though it is received later
					}
					err = errors.Join(err, Barrier(ctx, d))
					if c.Rank() == 0 {
						return errors.Join(err, d.Close(), Barrier(ctx, c))
					}
					five := make([]int8, 1)
					err = errors.Join(err, Recv(ctx, d, five, 0))
					if err != nil || five[0] != 5 {
						return fmt.Errorf("received %d: %w", five[0], err)
					}
					began := time.Now()
					err = call(d)
					var f *Failure
					if !errors.As(err, &f) || !errors.Is(err, ErrLeft) || errors.Is(err, ErrDead) || len(f.Culprits) != 1 || f.Culprits[0] != 0 {
						return fmt.Errorf("not the end of rank 0: %w", err)
					}
					if took := time.Since(began); took > 20*time.Second {
						return fmt.Errorf("it took %s", took)
					}
					return errors.Join(says(err, "rank 0 closed the communicator"), d.Close(), Barrier(ctx, c))
				})
			})
		}
	}
}

// Buffers that overlap so that results overwrite what is yet to be read are refused;
// those that are each other's blocks, or where one of them is not used, are not.
func TestBuffersThatOverlap(t *testing.T) {
	ctx := context.Background()
	each(t, 3, Config{}, func(c *Comm) error {
		me, n := c.Rank(), c.Size()
		b := make([]int32, 20)
		all, own, other := b[:9], b[3*me:][:3], b[3*((me+1)%n):][:3]
		counts, offset := []int{2, 3, 4}, []int{0, 2, 5, 9}
		mine, wrong := b[offset[me]:offset[me+1]], b[offset[me]+1:offset[me+1]+1]
		refused := []error{
			AllReduceTo(ctx, c, b[1:10], all, Sum), ReduceScatter(ctx, c, other, all, Sum), AllGather(ctx, c, all, other),
			AllToAll(ctx, c, b[1:10], all),
			AllGatherV(ctx, c, all, wrong, counts), ReduceScatterV(ctx, c, wrong, all, counts, Sum),
			AllToAllV(ctx, c, b[1:10], all, []int{3, 3, 3}, []int{3, 3, 3}), SendRecv(ctx, c, b[1:4], b[:3], me, me),
		}
		refused = append(refused, Gather(ctx, c, all, other, me), Scatter(ctx, c, other, all, me), Reduce(ctx, c, b[1:10], all, Sum, me),
			GatherV(ctx, c, all, wrong, counts, me), ScatterV(ctx, c, wrong, all, counts, me))
		for i, err := range refused {
			if err := says(err, "overlaps"); err != nil {
				return fmt.Errorf("call %d: %w", i, err)
			}
		}
		if me == 0 {
			if err := says(AllToAllV(ctx, c, all, all, []int{3, 2, 4}, []int{3, 4, 2}), "not recvs"); err != nil {
				return err
			}
		}
		return errors.Join(AllReduceTo(ctx, c, all, all, Sum), ReduceScatter(ctx, c, own, all, Sum), AllGather(ctx, c, all, own),
			AllToAll(ctx, c, all, all),
			AllGatherV(ctx, c, all, mine, counts), ReduceScatterV(ctx, c, mine, all, counts, Sum),
			Gather(ctx, c, all, b[me*3:][:3], 1), Scatter(ctx, c, b[me*3:][:3], all, 1))
	})
}

// Blocks of different lengths change places in place.
func TestAllToAllVInPlace(t *testing.T) {
	ctx := context.Background()
	for _, kind := range kinds {
		for _, k := range []int{1, 1000, 100000} {
			two(t, kind, func(c *Comm) error {
				me := c.Rank()
				counts := []int{[]int{3, 2}[me] * k, []int{2, 5}[me] * k} // what goes is as long as what comes
				b := make([]int32, counts[0]+counts[1])
				for i := range b {
					b[i] = int32(me*10_000_000 + i)
				}
				if err := AllToAllV(ctx, c, b, b, counts, counts); err != nil {
					return err
				}
				from := [][]int{{0, 0}, {3 * k, 2 * k}}[me] // where my block begins at rank 0 and 1
				at := 0
				for r, n := range counts {
					for i := range n {
						if want := int32(r*10_000_000 + from[r] + i); b[at] != want {
							return fmt.Errorf("element %d is %d, want %d", at, b[at], want)
						}
						at++
					}
				}
				return nil
			})
		}
	}
}

// The flight recorder is JSON whatever the errors of users say, and a directory it
// cannot be written to is told at once.
func TestFlightOfOddErrors(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	each(t, 2, Config{FlightDir: dir}, func(c *Comm) error {
		if c.Rank() == 0 {
			c.Abort(errors.New("\x00 \xff \\ \" \n caf\u00e9"))
		}
		if Barrier(ctx, c) == nil {
			return errors.New("not aborted")
		}
		return nil
	})
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) != 4 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		if b, err := os.ReadFile(f); err != nil || !json.Valid(b) {
			t.Errorf("%s: %v, or no JSON: %s", f, err, b)
		}
	}
	_, err = LocalWith(2, Config{FlightDir: filepath.Join(files[0], "below")})
	if err := says(err, "WEFT_FLIGHT_DIR", "not a directory"); err != nil {
		t.Error(err)
	}
}

// Blocks of different lengths go through programs that pass them on, by messages as
// well; an all-to-all of such is refused by those.
func TestBlocksThroughScratch(t *testing.T) {
	ctx, counts := context.Background(), []int{3, 0, 70, 11}
	bruck := func(op sched.Collective) *sched.Program {
		a, err := algo.Find("bruck")
		if err != nil {
			t.Fatal(err)
		}
		p, err := a.Program(algo.Spec{Op: op, Ranks: len(counts)})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	gather, exchange := bruck(sched.AllGather), bruck(sched.AllToAll)
	each(t, len(counts), Config{}, func(c *Comm) error {
		if err := Barrier(ctx, c); err != nil {
			return err
		}
		messagesOnly(c)
		src, dst := make([]int32, counts[c.Rank()]), make([]int32, total(counts))
		for i := range src {
			src[i] = int32(1000*c.Rank() + i)
		}
		if err := AllGatherV(ctx, c, dst, src, counts, Using(gather)); err != nil {
			return err
		}
		at := 0
		for r, n := range counts {
			for i := range n {
				if dst[at] != int32(1000*r+i) {
					return fmt.Errorf("element %d of rank %d is %d", i, r, dst[at])
				}
				at++
			}
		}
		ones := []int{1, 1, 1, 1}
		return says(AllToAllV(ctx, c, make([]int8, 4), make([]int8, 4), ones, ones, Using(exchange)), "passes blocks on")
	})
}
