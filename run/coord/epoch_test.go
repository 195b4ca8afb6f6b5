package coord

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync"
	"testing"

	"github.com/weft-fabric/weft/run/internal/member"
)

// A worker that is reported dead is gone from the next epoch; a new process of its
// slot recovers, catches up and trains again; one that leaves is let go.
func TestLifeOfAJob(t *testing.T) {
	p := single(t, &Policy{Min: 2, Max: 3, Settle: settled, Name: "server"})
	c := dial(t, p.addr)
	ctx := within(t)
	epochs := c.WatchEpochs(ctx)
	var regs []*Registration
	for i := range 3 {
		regs = append(regs, register(t, c, member.ID(i)))
	}
	e := await(t, epochs, "all three", lists(0, 1, 2))
	if e.Master != "10.0.0.0:29500" || len(e.Token) != 32 || e.Halt != member.NoReason || e.Decider != "server" {
		t.Fatalf("%+v", e)
	}
	places := regs[2].Places(ctx)
	await(t, places, "rank 2", func(p Place) bool { return p.Standing == Active && p.Rank == 2 })

	spare := register(t, c, 7)
	waits := spare.Places(ctx)
	s := await(t, waits, "a spare", func(p Place) bool { return p.Standing == Spare })
	if s.Why != member.Full.String() {
		t.Errorf("spare because %q", s.Why)
	}

	regs[1].cancel() // its process is no more
	if err := c.ReportDead(ctx, 1, regs[1].Worker().Life, "signal: killed"); err != nil {
		t.Fatal(err)
	}
	next := await(t, epochs, "the survivors", lists(0, 2))
	if next.Reason != "worker 1 died: signal: killed" || next.Token == e.Token {
		t.Errorf("%+v", next)
	}
	await(t, places, "rank 1", func(p Place) bool { return p.Standing == Active && p.Rank == 1 && p.Epoch.Number == next.Number })
	await(t, waits, "the spare to be let in", func(p Place) bool { return p.Standing == Recovering })
	spare.CaughtUp()
	await(t, epochs, "the spare as a member", lists(0, 2, 7))
	await(t, waits, "rank 2 of the spare", func(p Place) bool { return p.Standing == Active && p.Rank == 2 })

	regs[0].AskToLeave("maintenance")
	left := await(t, epochs, "the others without 0", lists(2, 7))
	if left.Reason != "worker 0 left: maintenance" || left.Master != "10.0.0.2:29500" {
		t.Errorf("%+v", left)
	}
	if err := regs[0].Leave(ctx); err != nil {
		t.Fatal(err)
	}
	spare.cancel()
	// One more, and there are fewer than two.
	if err := c.ReportDead(ctx, 7, 0, "exit status 3"); err != nil {
		t.Fatal(err)
	}
	halt := await(t, epochs, "the halt", func(e Epoch) bool { return e.Halt == member.TooFew })
	if want := "stop with a checkpoint: fewer than the least number of members; worker 7 died: exit status 3"; halt.Reason != want {
		t.Errorf("%q, want %q", halt.Reason, want)
	}
	await(t, places, "the order to halt", func(p Place) bool { return p.Standing == Halted && p.Rank == 0 })
	// Once all have left, whoever comes forms the job anew, and numbers go on.
	if err := regs[2].Leave(ctx); err != nil {
		t.Fatal(err)
	}
	a, b := register(t, c, 4), register(t, c, Any)
	anew := await(t, epochs, "a job formed anew", func(e Epoch) bool { return e.Start == halt.Number && len(e.Members) == 2 })
	if anew.Number != halt.Number+1 || anew.Halt != member.NoReason || len(anew.Recovering) != 0 {
		t.Errorf("%+v", anew)
	}
	all, err := c.History(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range all {
		if e.Number != uint64(i+1) {
			t.Errorf("epoch %d in place %d", e.Number, i)
		}
	}
	for _, r := range []*Registration{a, b} {
		if err := r.Leave(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// Two that both think they decide, and any number of observers: no number ever
// has two lists, and no number is left out.
func TestRacingDecidersPublishOneListPerNumber(t *testing.T) {
	p := single(t, nil)
	ctx, cancel := context.WithCancel(within(t))
	const deciders, last = 3, 40
	observer := dial(t, p.addr)
	epochs := observer.WatchEpochs(ctx)
	if first, err := observer.Publish(ctx, Epoch{Number: 1, Members: []Seat{{Seat: member.Seat{ID: 0, Life: 1}}}}); err != nil {
		t.Fatal(first, err)
	}
	seen := make([]map[uint64]Epoch, deciders)
	// All begin a number together, so that each has a chance to be first.
	gates := make([]sync.WaitGroup, last+1)
	for n := range gates {
		gates[n].Add(deciders)
	}
	var all sync.WaitGroup
	for d := range deciders {
		c := dial(t, p.addr)
		seen[d] = map[uint64]Epoch{}
		rng := rand.New(rand.NewPCG(uint64(d), 1))
		all.Go(func() {
			for n := uint64(2); n <= last; n++ {
				e := Epoch{Number: n, Reason: fmt.Sprint("decider ", d), Members: []Seat{}}
				for id := range member.ID(8) {
					if rng.IntN(2) == 0 {
						e.Members = append(e.Members, Seat{Seat: member.Seat{ID: id, Life: Life(1 + rng.Uint64N(9))}})
					}
				}
				gates[n].Done()
				gates[n].Wait()
				held, err := c.Publish(ctx, e)
				if held.Number != n {
					t.Errorf("decider %d, epoch %d: %+v, %v", d, n, held, err)
				}
				seen[d][n] = held
			}
		})
	}
	all.Wait()
	history, err := observer.History(ctx)
	if err != nil || len(history) != last {
		t.Fatalf("%d epochs, %v", len(history), err)
	}
	won := map[string]int{}
	for i, e := range history {
		if e.Number != uint64(i+1) {
			t.Fatalf("epoch %d in place %d", e.Number, i)
		}
		won[e.Reason]++
		for d := range deciders {
			if got, ok := seen[d][e.Number]; ok && !reflect.DeepEqual(got, e) {
				t.Errorf("epoch %d: decider %d has %+v, the store %+v", e.Number, d, got, e)
			}
		}
	}
	var at uint64
	await(t, epochs, "the last epoch", func(e Epoch) bool {
		if at > 0 && e.Number != at+1 {
			t.Errorf("epoch %d was told after %d", e.Number, at)
		}
		if want := history[e.Number-1]; !reflect.DeepEqual(e, want) {
			t.Errorf("told %+v, the store holds %+v", e, want)
		}
		at = e.Number
		return at == last
	})
	t.Logf("published by %v", won)
	_, err = observer.Publish(ctx, Epoch{Number: last + 2, Members: []Seat{}})
	wantError(t, err, ErrConflict, "epoch 41 is missing")
	cancel()
}

// Two stand for the lead at a time; when the one that has it goes, the other
// decides on, and numbers and lists stay one history.
func TestTheLeadPassesOn(t *testing.T) {
	p := single(t, nil)
	ctx := within(t)
	policy := Policy{Min: 1, Max: 8, Settle: 20e6}
	type running struct {
		cancel context.CancelFunc
		done   chan error
	}
	var deciders []running
	for i := range 2 {
		c := dial(t, p.addr)
		mine := policy
		mine.Name = fmt.Sprint("d", i)
		run, cancel := context.WithCancel(ctx)
		r := running{cancel, make(chan error, 1)}
		go func() { r.done <- c.Decide(run, mine) }()
		deciders = append(deciders, r)
	}
	c := dial(t, p.addr)
	epochs := c.WatchEpochs(ctx)
	register(t, c, 0)
	first := await(t, epochs, "the first", lists(0))
	leads := int(first.Decider[1] - '0')
	deciders[leads].cancel()
	if err := <-deciders[leads].done; err != context.Canceled {
		t.Error(err)
	}
	register(t, c, 1).CaughtUp()
	second := await(t, epochs, "the second's", lists(0, 1))
	if second.Decider == first.Decider {
		t.Errorf("decided by %s, which had gone", second.Decider)
	}
	deciders[1-leads].cancel()
	<-deciders[1-leads].done
}

// When everything dies, the coordinator too, whoever is started on its directory
// forms the job anew, and numbers go on.
func TestWholeJobStartedAgain(t *testing.T) {
	p := single(t, &Policy{Min: 2, Max: 4, Settle: 20e6, Name: "server"})
	ctx := within(t)
	for round := range uint64(2) {
		c, err := Dial(ctx, Config{Endpoints: []string{p.addr}, Job: "job", Token: testToken})
		if err != nil {
			t.Fatal(err)
		}
		epochs := c.WatchEpochs(ctx)
		for i := range 2 {
			register(t, c, member.ID(i))
		}
		e := await(t, epochs, "both", func(e Epoch) bool { return e.Number > round && len(e.Members) == 2 && e.Halt == member.NoReason })
		if round > 0 && (e.Start == 0 || len(e.Recovering) > 0) {
			t.Errorf("%+v", e)
		}
		if err := c.Close(); err != nil && err != context.Canceled {
			t.Error(err)
		}
		p.kill()
		p = start(t, p.conf)
	}
}

// Members change over after a step that none has done yet when it is decided, and
// newcomers learn how far the others are.
func TestChangeOverAtAStep(t *testing.T) {
	p := single(t, &Policy{Min: 1, Max: 4, Settle: 20e6, Name: "server"})
	ctx := within(t)
	c := dial(t, p.addr)
	epochs, workers := c.WatchEpochs(ctx), c.WatchWorkers(ctx)
	first := register(t, c, 0)
	await(t, epochs, "the first", lists(0))
	first.Progress(100, 10e6)
	await(t, workers, "step 100", func(e WorkerEvent) bool { return e.Worker.Step == 100 })
	second := register(t, c, 1)
	e := await(t, epochs, "the second, recovering", func(e Epoch) bool { return len(e.Recovering) == 1 })
	if e.Step != 100 || e.After != 0 {
		t.Errorf("%+v", e)
	}
	second.CaughtUp()
	e = await(t, epochs, "both", lists(0, 1))
	if e.After <= 100 || e.Step != 100 || e.Reason != "worker 1 has caught up" {
		t.Errorf("%+v", e)
	}
}
