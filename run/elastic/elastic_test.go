package elastic

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/run/transport/auth"
)

// The word to stop reaches one rank only, and all stop after the same step.
func TestAllStopAfterTheSameStep(t *testing.T) {
	t.Parallel()
	list := crew(t, 3, nil)
	tell(epoch(1, list...), list...)
	formed(1, list...)
	stop(t, list[1], list...)
	for _, p := range list {
		p.hears(Ended, 0)
	}
}

// The word to stop comes between two epochs: ranks that have left one at a step's
// end for another that cannot be formed, as its newcomer stops at once, and ranks
// whose step was dropped. They stop after a step that all take in the epoch after.
func TestStopBetweenTwoEpochs(t *testing.T) {
	t.Parallel()
	t.Run("a newcomer that never comes", func(t *testing.T) {
		list := crew(t, 3, nil)
		old := list[:2]
		tell(epoch(1, old...), old...)
		formed(1, old...)
		// Rank 0 of epoch 2 is the test itself, which so sees the others come.
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		second := epoch(2, list[2], list[0], list[1])
		second.Addr, second.Waits = ln.Addr().String(), true
		tell(second, old...)
		for range old {
			conn, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
		}
		stopBefore(t, epoch(3, old...), list...)
	})
	t.Run("a step that was dropped", func(t *testing.T) {
		list := crew(t, 3, func(p *person) {
			p.job.begun = make(chan uint64, 1)
			if p.id == 2 {
				p.job.step = func(Epoch, int) (bool, error) { return false, errors.New("out of order") }
			}
		})
		tell(epoch(1, list...), list...)
		formed(1, list...)
		if err := list[2].ends(); !isFatal(err) {
			t.Fatal(err)
		}
		left := list[:2]
		for _, p := range left {
			p.hears(Failed, 1)
		}
		stopBefore(t, epoch(2, left...), left...)
	})
}

// stopBefore says stop to a crew that is between two epochs and only then tells of
// the next one, whose members take one more step together. Others stop at once.
func stopBefore(t *testing.T, next *Epoch, list ...*person) {
	t.Helper()
	for _, p := range list {
		p.say(Word{Kind: Stop})
	}
	members := list[:len(next.Members)]
	for _, p := range list[len(members):] {
		if err := p.ends(); err != nil || p.link.Final() {
			t.Errorf("slot %d has no part in the job: %v", p.id, err)
		}
	}
	tell(next, members...)
	formed(next.Number, members...)
	for _, p := range members {
		if err := p.ends(); err != nil || !p.link.Final() || p.job.steps[next.Number] != 1 || p.total() != members[0].total() {
			t.Errorf("slot %d: %d steps, %d of them in epoch %d, final %v, %v",
				p.id, p.total(), p.job.steps[next.Number], next.Number, p.link.Final(), err)
		}
	}
}

// A rank that goes to an epoch says which: where another epoch's rank 0 listens by now, that one learns it, and nothing of tokens.
func TestRanksSayTheirEpoch(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	turned := make(chan string, 1)
	gate := auth.Listener{Token: "token of epoch 9", Epoch: 9, Admit: func(auth.Hello) error { return errors.New("nobody") },
		Log: slog.New(slog.NewTextHandler(writer(func(b []byte) {
			select {
			case turned <- string(b):
			default:
			}
		}), nil))}
	go gate.Serve(ln)
	t.Cleanup(func() {
		ln.Close()
		gate.Close()
	})
	list := crew(t, 2, nil)
	e := epoch(7, list...)
	e.Addr = ln.Addr().String()
	tell(e, list[1])
	select {
	case said := <-turned:
		if !strings.Contains(said, "rank 1 of 2 belongs to epoch 7 of the job, this is epoch 9") {
			t.Error(said)
		}
	case <-time.After(limit):
		t.Error("nobody came")
	}
}

// writer is a function that takes what is written.
type writer func(b []byte)

func (w writer) Write(b []byte) (int, error) {
	w(b)
	return len(b), nil
}

// The last step of one rank is the last of all.
func TestTheLastStepIsTheLastOfAll(t *testing.T) {
	t.Parallel()
	list := crew(t, 3, func(p *person) {
		if p.id == 2 {
			p.job.step = func(_ Epoch, total int) (bool, error) { return total == 5, nil }
		}
	})
	tell(epoch(1, list...), list...)
	for _, p := range list {
		if err := p.ends(); err != nil || p.total() != 5 {
			t.Errorf("slot %d: %d steps, %v", p.id, p.total(), err)
		}
	}
}

// An epoch that adds a rank is told to one of three, and later to the others: all
// leave the epoch before after the same step, and none has a step that fails.
func TestANewcomerJoinsAtAStepsEnd(t *testing.T) {
	t.Parallel()
	list := crew(t, 4, nil)
	old := list[:3]
	tell(epoch(1, old...), old...)
	formed(1, old...)
	second := epoch(2, list...)
	second.Waits = true
	tell(second, list[1], list[3])
	tell(second, list[0], list[2])
	formed(2, list...)
	stop(t, list[3], list...)
	first := old[0].job.steps[1]
	for _, p := range old {
		if p.job.steps[1] != first {
			t.Errorf("slot %d took %d steps in epoch 1, slot 0 %d", p.id, p.job.steps[1], first)
		}
		for len(p.words) > 0 {
			if w := <-p.words; w.Kind == Failed || w.Kind == Knew {
				t.Errorf("slot %d: %+v", p.id, w)
			}
		}
	}
}

// A rank is gone in the middle of a step: the others are told, drop the step, and
// go on from the state they had.
func TestAStepWithoutOneIsDropped(t *testing.T) {
	t.Parallel()
	list := crew(t, 3, func(p *person) {
		if p.id == 2 {
			p.job.gate = make(chan struct{}) // takes no step, so those of the others do not end
		}
		p.job.begun = make(chan uint64, 1)
	})
	tell(epoch(1, list...), list...)
	formed(1, list...)
	for _, p := range list {
		<-p.job.begun
	}
	left := list[:2]
	tell(epoch(2, left...), left...)
	for _, p := range left {
		p.hears(Knew, 2)
		p.hears(Failed, 1)
	}
	formed(2, left...)
	stop(t, list[0], left...)
	for _, p := range left {
		if p.job.steps[1] != 0 {
			t.Errorf("slot %d counts %d steps of epoch 1", p.id, p.job.steps[1])
		}
	}
}

// An epoch reaches one rank only before the next replaces it: that one has gone
// there, and gives it up.
func TestAnEpochThatOneRankSkips(t *testing.T) {
	t.Parallel()
	list := crew(t, 4, nil)
	three := list[:3]
	tell(epoch(1, three...), three...)
	formed(1, three...)
	// Rank 0 of epoch 2 is the test itself, which so sees slot 0 come.
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	second := epoch(2, list[3], list[0], list[1], list[2])
	second.Addr, second.Waits = ln.Addr().String(), true
	tell(second, list[0])
	conn, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	tell(epoch(3, three...), three...)
	formed(3, three...)
	stop(t, list[2], three...)
	for _, p := range three {
		if !slices.Equal(p.job.formed, []uint64{1, 3}) {
			t.Errorf("slot %d formed %v, want 1 and 3", p.id, p.job.formed)
		}
		if p.job.steps[1] != list[0].job.steps[1] {
			t.Errorf("slot %d took %d steps in epoch 1, slot 0 %d", p.id, p.job.steps[1], list[0].job.steps[1])
		}
	}
}

// One of the members of an epoch never comes: while the others wait for it to join,
// a later epoch is told.
func TestALaterEpochWhileForming(t *testing.T) {
	t.Parallel()
	list := crew(t, 3, nil)
	tell(epoch(1, list...), list[:2]...)
	left := list[:2]
	tell(epoch(2, left...), left...)
	formed(2, left...)
	stop(t, list[0], left...)
}

// All have joined, and one does not come to the collective in which they take up
// their work: what waits there is ended by the next epoch.
func TestALaterEpochWhileTakingUpWork(t *testing.T) {
	t.Parallel()
	inForm := make(chan struct{})
	list := crew(t, 3, func(p *person) {
		if p.id == 2 {
			p.job.form = func(ctx context.Context, e Epoch) error {
				if e.Number > 1 {
					return nil
				}
				close(inForm)
				<-ctx.Done()
				return context.Cause(ctx)
			}
		}
	})
	tell(epoch(1, list...), list...)
	<-inForm
	left := list[:2]
	tell(epoch(2, left...), left...)
	formed(2, left...)
	// And the one that was left out is told so, and let in again under a new life.
	gone := *epoch(2, left...)
	gone.Rank = -1
	list[2].say(Word{Kind: Assign, Place: &gone})
	list[2].hears(Failed, 1)
	list[2].life = 0xff
	third := epoch(3, list...)
	third.Waits = true
	tell(third, list...)
	formed(3, list...)
	stop(t, list[0], list...)
}

// A rank that was taken for dead is told an epoch without it, and comes back.
func TestEvictedAndBack(t *testing.T) {
	t.Parallel()
	list := crew(t, 3, nil)
	tell(epoch(1, list...), list...)
	formed(1, list...)
	left := list[:2]
	tell(epoch(2, left...), list...)
	formed(2, left...)
	list[2].life = 0xff
	third := epoch(3, list...)
	third.Waits = true
	tell(third, list...)
	formed(3, list...)
	stop(t, list[2], list...)
	if got := list[2].job.formed; !slices.Equal(got, []uint64{1, 3}) {
		t.Errorf("slot 2 formed epochs %v, want 1 and 3", got)
	}
}

// Epochs with the same ranks, which only list others that recover, disturb nobody.
func TestTheSameRanksGoOn(t *testing.T) {
	t.Parallel()
	list := crew(t, 2, func(p *person) { p.job.begun = make(chan uint64, 1) })
	tell(epoch(1, list...), list...)
	formed(1, list...)
	tell(epoch(2, list...), list...)
	tell(epoch(3, list...), list[0])
	for _, p := range list { // and steps go on
		for range 5 {
			<-p.job.begun
		}
	}
	stop(t, list[0], list...)
	for _, p := range list {
		if !slices.Equal(p.job.formed, []uint64{1}) {
			t.Errorf("slot %d formed epochs %v, want 1 alone", p.id, p.job.formed)
		}
	}
}

// A communicator fails and nobody says who is gone: after a while the agent is told
// whom the rank holds responsible.
func TestNoNewsAfterAFailure(t *testing.T) {
	t.Parallel()
	list := crew(t, 2, nil)
	tell(epoch(1, list...), list...)
	formed(1, list...)
	list[1].conn.Close() // its agent is gone, and it goes as well
	if err := list[1].ends(); !errors.Is(err, ErrAgent) {
		t.Errorf("%v, want %v", err, ErrAgent)
	}
	w := list[0].hears(Failed, 1)
	if w.Text == "" || w.At.IsZero() {
		t.Errorf("%+v", w)
	}
	w = list[0].hears(Stuck, 1)
	if len(w.Blame) > 0 && w.Blame[0] != (Seat{ID: 1, Life: list[1].life}) {
		t.Errorf("%+v blames another than slot 1", w)
	}
	tell(epoch(2, list[0]), list[0])
	formed(2, list[0])
	stop(t, list[0], list[0])
}

// A rank whose context ends asks to leave, takes part until an epoch is without it,
// and the others go on.
func TestLeaving(t *testing.T) {
	t.Parallel()
	list := crew(t, 3, nil)
	tell(epoch(1, list...), list...)
	formed(1, list...)
	list[1].leave()
	list[1].hears(Leave, 0)
	left := []*person{list[0], list[2]}
	second := epoch(2, left...)
	second.Waits = true
	tell(second, list...)
	formed(2, left...)
	if err := list[1].ends(); err != nil {
		t.Error(err)
	}
	first := list[1].job.steps[1]
	stop(t, list[0], left...)
	for _, p := range left {
		if p.job.steps[1] != first {
			t.Errorf("slot %d took %d steps with the one that left, which took %d", p.id, p.job.steps[1], first)
		}
	}
}

// A rank that was never let in, or is left out at the moment, leaves at once.
func TestLeavingWithoutAPlace(t *testing.T) {
	t.Parallel()
	never := enter(t, 0)
	never.run()
	list := crew(t, 2, nil)
	tell(epoch(1, list...), list...)
	formed(1, list...)
	tell(epoch(2, list[0]), list...)
	list[1].hears(Knew, 2)
	for _, p := range []*person{never, list[1]} {
		p.leave()
		if err := p.ends(); err != nil {
			t.Errorf("slot %d: %v", p.id, err)
		}
	}
	formed(2, list[0])
	stop(t, list[0], list[0])
}

// The agent dies while ranks wait, form and step.
func TestTheAgentIsGone(t *testing.T) {
	t.Parallel()
	waiting := enter(t, 7)
	waiting.run()
	forming := enter(t, 8)
	forming.run()
	tell(epoch(1, forming, waiting), forming)
	list := crew(t, 2, nil)
	tell(epoch(1, list...), list...)
	formed(1, list...)
	for _, p := range append(list, waiting, forming) {
		p.conn.Close()
	}
	for _, p := range append(list, waiting, forming) {
		if err := p.ends(); !errors.Is(err, ErrAgent) {
			t.Errorf("slot %d: %v, want %v", p.id, err, ErrAgent)
		}
	}
}

// What is not a line of an agent ends the connection and says what it was.
func TestAnAgentThatTalksNonsense(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"hello\n", `{"kind":7}` + "\n", strings.Repeat("x", maxWord+1)} {
		p := enter(t, 0)
		p.run()
		go p.conn.Write([]byte(text)) // it may be refused before all of it is written
		err := p.ends()
		if !errors.Is(err, ErrAgent) || err.Error() == ErrAgent.Error() {
			t.Errorf("%.20q: %v", text, err)
		}
	}
	// Words of a kind that this version does not know, and epochs that are over, are
	// passed over.
	p := enter(t, 0)
	p.run()
	p.say(Word{Kind: "news of a later version"})
	p.say(Word{Kind: Assign})
	tell(epoch(2, p), p)
	formed(2, p)
	tell(epoch(1, p), p)
	stop(t, p, p)
	if !slices.Equal(p.job.formed, []uint64{2}) {
		t.Errorf("formed %v", p.job.formed)
	}
}

// An error of the job itself is told as such, in Form and in Step.
func TestAnErrorOfTheJob(t *testing.T) {
	t.Parallel()
	broken := errors.New("the text has no letters")
	for _, at := range []string{"form", "step"} {
		p := enter(t, 0)
		if at == "form" {
			p.job.form = func(context.Context, Epoch) error { return broken }
		} else {
			p.job.step = func(Epoch, int) (bool, error) { return false, broken }
		}
		p.run()
		tell(epoch(1, p), p)
		if err := p.ends(); !isFatal(err) || !errors.Is(err, broken) {
			t.Errorf("%s: %v", at, err)
		}
		if w := p.hears(Broken, 0); w.Text != broken.Error() {
			t.Errorf("%s: %+v", at, w)
		}
	}
}

// An error that another rank is the cause of is followed by the next epoch.
func TestAnErrorElsewhere(t *testing.T) {
	t.Parallel()
	list := crew(t, 2, func(p *person) {
		p.job.form = func(_ context.Context, e Epoch) error {
			if e.Number == 1 {
				return fmt.Errorf("a checkpoint: %w", ErrElsewhere)
			}
			return nil
		}
	})
	tell(epoch(1, list...), list...)
	for _, p := range list {
		p.hears(Failed, 1)
	}
	for _, p := range list {
		p.life <<= 4
	}
	tell(epoch(2, list...), list...)
	formed(2, list...)
	stop(t, list[0], list...)
}

// Too few are left: those that are save what there is, all of them, and it is over.
func TestHalt(t *testing.T) {
	t.Parallel()
	full := errors.New("no space left")
	for _, want := range []error{nil, full} {
		list := crew(t, 3, func(p *person) { p.job.halt = want })
		tell(epoch(1, list...), list...)
		formed(1, list...)
		left := list[:2]
		halt := epoch(2, left...)
		halt.Halt = true
		tell(halt, left...)
		for _, p := range left {
			err := p.ends()
			if want == nil && err != nil || want != nil && !(isFatal(err) && errors.Is(err, full)) {
				t.Errorf("slot %d: %v, want %v", p.id, err, want)
			}
			if !slices.Equal(p.job.halted, []uint64{2}) {
				t.Errorf("slot %d halted in %v", p.id, p.job.halted)
			}
		}
	}
}
