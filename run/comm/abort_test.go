package comm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/transport"
)

// attempt runs one operation on every rank of a world of goroutines, each by its
// own order (nil for none), then one more, and gives the errors of both.
func attempt(t *testing.T, n int, messages bool, orders func(rank int) *order) (first, next []error) {
	t.Helper()
	comms, err := LocalWith(n, Config{Timeout: quick.Timeout})
	if err != nil {
		t.Fatal(err)
	}
	first, next = make([]error, n), make([]error, n)
	call := func(c *Comm, o *order) error {
		tr, err := newTrialOf(c, *o)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), o.Limit)
		defer cancel()
		if err := tr.run(ctx); err != nil {
			return errors.Join(err, tr.intact())
		}
		return tr.complete()
	}
	var all, firsts sync.WaitGroup
	firsts.Add(n)
	for r, c := range comms {
		if messages {
			messagesOnly(c)
		}
		all.Go(func() {
			if o := orders(r); o != nil {
				first[r] = call(c, o)
			}
			firsts.Done()
			firsts.Wait()
			if orders(r) != nil {
				next[r] = call(c, &order{Op: "barrier", Limit: orders(r).Limit})
			}
		})
	}
	all.Wait()
	for _, c := range comms {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	return first, next
}

// The faults that goroutines can have, in every operation, with memory that is
// seen and with messages. What is wrong with a case counts if nobody had to wait
// for a core for a good part of the limit; else the case is repeated with a longer
// one.
func TestFaultsBetweenGoroutines(t *testing.T) {
	var witness pulse
	witness.start()
	defer witness.end()
	for i, op := range trialOps {
		for j, fault := range []string{"wrong count", "wrong type", "wrong operation", "missing call"} {
			for _, messages := range []bool{false, true} {
				if fault == "missing call" && i%5 != 0 {
					continue // each waits for its limit; processes have them all
				}
				for again := 0; ; again++ {
					limit := limit << again
					witness.worst.Store(0)
					problems := between(t, op, i, fault, (i+j)%4, messages, limit)
					if again < 4 && len(problems) > 0 && witness.worst.Load() >= int64(limit/4) {
						continue
					}
					if again < 7 && slices.ContainsFunc(problems, neverBegan) {
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
}

// neverBegan says that the limit of a call had passed before the machine let it begin.
func neverBegan(text string) bool { return strings.Contains(text, "was called too late") }

// between has a rank of four do something else than the others in the i-th of the
// operations, and says what is wrong with what they hear.
func between(t *testing.T, op string, i int, fault string, victim int, messages bool, limit time.Duration) (problems []string) {
	const n = 4
	o := order{Op: op, Count: []int{5, 2000}[i%2], Root: i / 2, Limit: limit}
	w := o
	switch fault {
	case "wrong count":
		w.Count++
	case "wrong type":
		w.Type = "i32"
	}
	if fault == "wrong operation" || op == "barrier" {
		w.Op = trialOps[(i+1)%len(trialOps)]
	}
	what := fmt.Sprintf("%s in %s by rank %d, messages %t", fault, op, victim, messages)
	first, next := attempt(t, n, messages, func(rank int) *order {
		switch {
		case rank != victim:
			return &o
		case fault == "missing call":
			return nil
		}
		return &w
	})
	for r := range n {
		if r == victim && fault == "missing call" {
			continue
		}
		if next[r] == nil {
			problems = append(problems, fmt.Sprintf("%s: rank %d goes on", what, r))
		}
		for _, err := range []error{first[r], next[r]} {
			var f *Failure
			if err != nil && (!errors.As(err, &f) || !slices.Contains(f.Culprits, victim) || len(f.Culprits) > 2) {
				problems = append(problems, fmt.Sprintf("%s: rank %d: %v", what, r, err))
			}
		}
	}
	return problems
}

// Abort from any goroutine ends what the group is doing, everywhere.
func TestAbortFromAnotherGoroutine(t *testing.T) {
	for _, messages := range []bool{false, true} {
		comms, err := LocalWith(3, quick)
		if err != nil {
			t.Fatal(err)
		}
		errs := make([]error, 3)
		var wg sync.WaitGroup
		for r, c := range comms {
			if messages {
				messagesOnly(c)
			}
			if r == 2 {
				continue // so that the others wait
			}
			wg.Go(func() { errs[r] = AllReduce(context.Background(), c, make([]float32, 5000), Sum) })
		}
		bounded.Until(t, patience, "both in the call", func() bool { return comms[0].entered() > 0 && comms[1].entered() > 0 })
		comms[2].Abort(errors.New("the loss is not a number"))
		wg.Wait()
		for r, err := range errs[:2] {
			var f *Failure
			if !errors.As(err, &f) || f.Kind != Aborted || !slices.Equal(f.Culprits, []int{2}) ||
				!strings.Contains(err.Error(), "the loss is not a number") {
				t.Errorf("messages %t, rank %d: %v", messages, r, err)
			}
		}
		for _, c := range comms {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// A context that ends is an abort by the rank whose context it was; one that is
// over before the call does no harm that the others do not hear of.
func TestCanceledContext(t *testing.T) {
	comms, err := LocalWith(3, quick)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	errs := make([]error, 3)
	var wg sync.WaitGroup
	for r, c := range comms[:2] {
		own := context.Background()
		if r == 1 {
			own = ctx
		}
		wg.Go(func() { errs[r] = Barrier(own, c) })
	}
	bounded.Until(t, patience, "both in the call", func() bool { return comms[0].entered() > 0 && comms[1].entered() > 0 })
	cancel()
	wg.Wait()
	for r, err := range errs[:2] {
		var f *Failure
		if !errors.As(err, &f) || f.Kind != Aborted || !slices.Equal(f.Culprits, []int{1}) {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	if !errors.Is(errs[1], context.Canceled) {
		t.Errorf("the canceled rank: %v", errs[1])
	}
	for _, c := range comms {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := Barrier(context.Background(), c); err == nil {
			t.Error("a closed communicator has barriers")
		}
	}
}

// The report of a hang says who waits for whom, since when and at which step.
func TestHangReport(t *testing.T) {
	for _, messages := range []bool{false, true} {
		var first []error
		for limit := 100 * time.Millisecond; limit < time.Minute; limit *= 2 { // until it is long enough for calls to begin
			first, _ = attempt(t, 3, messages, func(rank int) *order {
				if rank == 2 {
					return nil
				}
				return &order{Op: "all-reduce", Count: 4000, Limit: limit}
			})
			if !neverBegan(fmt.Sprint(first[:2])) {
				break
			}
		}
		for r, err := range first[:2] {
			var f *Failure
			if !errors.As(err, &f) {
				t.Fatal(err)
			}
			full := fmt.Sprintf("%+v", f)
			if strings.Contains(f.Error(), " reports: ") {
				continue // the other one's report came first
			}
			for _, part := range []string{"rank 2: took part in no operation yet", "all-reduce of 4000 float32 sum", "time limit passed after"} {
				if !strings.Contains(full, part) {
					t.Errorf("messages %t, rank %d: no %q in\n%s", messages, r, part, full)
				}
			}
		}
	}
}

// Ranks that use two communicators in different order are told who waits where, each of them.
func TestWaitsElsewhere(t *testing.T) {
	ctx := context.Background()
	for _, kind := range []string{"shm", "tcp"} {
		var looked sync.WaitGroup
		looked.Add(2)
		two(t, kind, func(c *Comm) error {
			a, err := c.Dup(ctx)
			if err != nil {
				return err
			}
			b, err := c.Split(ctx, 0, -c.Rank()) // in which they have other numbers
			if err != nil {
				return err
			}
			if err := errors.Join(Barrier(ctx, b), Barrier(ctx, c)); err != nil {
				return err
			}
			first, other, its := a, b, fmt.Sprintf("operation 2 (all-reduce of %d float32 sum)", 7)
			if c.Rank() == 1 {
				first, other, its = b, a, fmt.Sprintf("operation 1 (all-reduce of %d float32 sum)", 5)
			}
			short, cancel := context.WithTimeout(ctx, 1500*time.Millisecond)
			defer cancel()
			err = AllReduce(short, first, make([]float32, 5+2*c.Rank()), Sum)
			wrong := says(err, fmt.Sprintf("it waits in communicator %d (ranks", other.id), its, "which this rank has not entered")
			looked.Done()
			looked.Wait()                         // none may leave before
			_ = errors.Join(a.Close(), b.Close()) // one of them has failed
			return wrong
		})
	}
}

// Calls that differ are named in full.
func TestMismatchNamesBoth(t *testing.T) {
	first, _ := attempt(t, 2, false, func(rank int) *order {
		return &order{Op: "broadcast", Count: 10 + rank, Limit: longTime}
	})
	found := false
	for _, err := range first {
		var m *transport.Mismatch
		if errors.As(err, &m) {
			found = true
			for _, part := range []string{"rank 0", "rank 1", "broadcast of 10 float32", "broadcast of 11 float32", "counts 1"} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("no %q in %v", part, err)
				}
			}
		}
	}
	if !found {
		t.Errorf("no mismatch: %v", first)
	}
}
