// Package elastic keeps a program's ranks working while others join, fail and return.
// The node's launcher (package node) announces epochs to its ranks; a rank moves from
// one epoch to the next without a restart.
//
//	link, err := elastic.Connect()                  // with the launcher that started this process
//	err = elastic.Run(ctx, link, job)               // until the job is done or told to stop
//
// A Job is what the program does:
//
//	Form    starts work on an epoch's communicator, with state from the ranks that have it
//	Step    one step of work
//	Halt    too few ranks are left: save the state
//
// What Run does, on every rank:
//
//	┌────────► epoch that lists this process ──► comm.Join ──► Form ──┐
//	│                                                                ▼
//	│  a rank died: the step failed, its state did not        ┌──► Step ──► agree ──┐
//	└───────────────────────◄──────────────────────────────────┤                    │
//	   a later epoch, at a boundary all agree on               └────────────────────┘
//
// An epoch that drops a working member takes effect at once: the current step fails and
// does not count. An epoch that adds a member waits for the end of a step: after each
// step, ranks agree in an all-reduce of two numbers on the latest epoch any of them
// knows. Each epoch has its own address and token, so leftovers of an earlier one cannot
// reach it.
package elastic

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/internal/member"
	"github.com/weft-fabric/weft/run/retry"
)

// Seat is a member of an epoch: the slot that it keeps over restarts, and which
// process of that slot it is.
type Seat = member.Seat

// Epoch is what a process is told of one.
type Epoch struct {
	Number  uint64 `json:"number"`
	Rank    int    `json:"rank"`    // of this process; -1 if it has none in this epoch
	Members []Seat `json:"members"` // by rank
	Addr    string `json:"addr"`    // where the members meet: rank 0 listens there
	Token   string `json:"token"`   // by which they know one another
	Waits   bool   `json:"waits"`   // members of the epoch before finish their step first
	Halt    bool   `json:"halt"`    // save what there is and leave
	Reason  string `json:"reason"`
}

// Job is what a rank does. Its methods are called from one goroutine.
type Job interface {
	// Form takes up work on c, which all members of the epoch do at once. An error
	// that is due to a failed communicator or an ended context, or that is
	// ErrElsewhere, is followed by another epoch; any other one ends Run.
	Form(ctx context.Context, c *comm.Comm, e Epoch) error
	// Step does one step and says whether it was the last. After an error the job
	// must be as it was before, or be able to tell in Form that it is not.
	Step(ctx context.Context) (last bool, err error)
	// Halt is called instead of Form where too few are left: c has them all.
	Halt(ctx context.Context, c *comm.Comm, e Epoch) error
}

// patience is how long a rank waits for the word on who is gone once its
// communicator has failed: a silent host is gone from the coordinator after 1.6 s.
const patience = 3 * time.Second

// ErrElsewhere is for a Job whose own part of something went well, and another
// rank's did not: that one ends the job, or has heard of another epoch already.
var ErrElsewhere = errors.New("another rank failed")

// Fatal is an error of the job itself, which another epoch would not mend.
type Fatal struct{ Err error }

func (f *Fatal) Error() string { return f.Err.Error() }

// Unwrap is the error of the job.
func (f *Fatal) Unwrap() error { return f.Err }

// Run works on a job until its last step, until the launcher says stop (then all
// ranks stop after the same step), or until too few are left. Where the word to stop
// comes between two epochs, ranks that have been at work form the next one first:
// what they hold may not have been saved. When ctx ends this rank asks to leave, and
// the others go on without it. Run returns nil in all these cases, and a *Fatal where
// the job cannot go on.
func Run(ctx context.Context, l *Link, job Job) error {
	base, err := comm.SettingsFromEnv()
	if err != nil {
		return &Fatal{err}
	}
	r := &runner{link: l, job: job, base: base}
	defer func() {
		r.drop(r.c)
		r.drops.Wait()
	}()
	leave := context.AfterFunc(ctx, func() {
		l.send(Word{Kind: Leave, Text: context.Cause(ctx).Error()})
		l.wake() // one that has no place need not wait for the answer
	})
	defer leave()
	for {
		e := l.await(ctx, r.now, r.seat)
		if e == nil {
			return l.Err()
		}
		if over, err := r.epoch(e); err != nil || over {
			return err
		}
	}
}

// runner is a rank between epochs.
type runner struct {
	link  *Link
	job   Job
	base  comm.Config
	now   uint64     // the latest epoch that was tried
	c     *comm.Comm // of the latest that was formed, kept until the next is: others may still be in its last operation
	links *comm.Links
	drops sync.WaitGroup // communicators that are being closed

	seat Seat // in the latest epoch that was formed; none if there was no such epoch
}

// drop closes the communicator of an epoch that is over, aside: one that leads to a
// host that does not answer takes seconds.
func (r *runner) drop(c *comm.Comm) {
	if c == nil {
		return
	}
	r.drops.Add(1)
	go func() {
		defer r.drops.Done()
		_ = c.Close() // it may be broken, and nothing is lost with it
	}()
}

// epoch works in one until it is over; over says that the job is.
func (r *runner) epoch(e *Epoch) (over bool, err error) {
	r.now = e.Number
	formed, over, err := r.form(e)
	if !formed {
		return over, err
	}
	ctx, cancel := r.link.during(e, func(next *Epoch) bool { return next.without(e) })
	defer cancel()
	for {
		last, err := r.job.Step(ctx)
		if err != nil {
			return false, r.failed(ctx, e, err)
		}
		latest, stop, err := r.agree(ctx, e, last)
		switch {
		case err != nil:
			return false, r.failed(ctx, e, err)
		case stop:
			r.link.final = e.Number
			return true, nil
		case latest > e.Number:
			return false, nil
		}
	}
}

// form joins an epoch and takes up its work. It ends early when there is a later
// one, as some of the members may go there straight away. formed is false then.
func (r *runner) form(e *Epoch) (formed, over bool, err error) {
	ctx, cancel := r.link.during(e, func(next *Epoch) bool { return !same(next, e) })
	defer cancel()
	c, err := r.join(ctx, e)
	if err != nil {
		r.wait(e, nil, fmt.Errorf("epoch %d could not be formed: %w", e.Number, err))
		return false, false, nil
	}
	// What the job has split off from the last communicator goes in Form; the last
	// one that goes closes the connections.
	defer r.drop(r.c)
	r.c = c
	if c.Size() > 1 {
		r.links = c.Links()
	}
	if e.Halt {
		if err := r.job.Halt(ctx, c, *e); err != nil {
			return false, true, &Fatal{fmt.Errorf("saving what there is: %w", err)}
		}
		return false, true, nil
	}
	if err := r.job.Form(ctx, c, *e); err != nil {
		return false, false, r.failed(ctx, e, err)
	}
	r.seat = e.Members[e.Rank]
	r.link.send(Word{Kind: Formed, Epoch: e.Number, At: time.Now()})
	return true, false, nil
}

// agree tells all ranks the latest epoch that one of them has heard of, and
// whether one is to stop.
func (r *runner) agree(ctx context.Context, e *Epoch, last bool) (latest uint64, stop bool, err error) {
	words := []uint64{r.link.latest(e), 0}
	if last || r.link.stopped() {
		words[1] = 1
	}
	if r.c.Size() > 1 {
		if err := comm.AllReduce(ctx, r.c, words, comm.Max); err != nil {
			return 0, false, err
		}
	}
	return words[0], words[1] != 0, nil
}

// failed sorts errors of the job from those that another epoch mends.
func (r *runner) failed(ctx context.Context, e *Epoch, err error) error {
	var f *comm.Failure
	if !errors.As(err, &f) && ctx.Err() == nil && !errors.Is(err, ErrElsewhere) {
		return &Fatal{err}
	}
	var culprits []int
	if f != nil && !errors.Is(f, comm.ErrAborted) {
		culprits = f.Culprits
	}
	r.c.Abort(err)
	r.wait(e, culprits, err)
	return nil
}

// wait is what follows a failure: the news of who is gone comes of itself, from the
// one that saw a process end or from a lease that ended. If it does not come, the
// launcher is told who is to blame and sees to another epoch.
func (r *runner) wait(e *Epoch, culprits []int, cause error) {
	w := Word{Kind: Failed, Epoch: e.Number, At: time.Now(), Text: cause.Error()}
	for _, rank := range culprits {
		if rank < len(e.Members) {
			w.Blame = append(w.Blame, e.Members[rank])
		}
	}
	r.link.send(w)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if !r.link.later(ctx, e.Number, r.seat != Seat{}) {
		w.Kind = Stuck
		r.link.send(w)
	}
}

// join makes the epoch's communicator. Others may still be on their way from the
// epoch before, so it is tried until the epoch is over or time is up.
func (r *runner) join(ctx context.Context, e *Epoch) (*comm.Comm, error) {
	cfg := r.base
	cfg.Rank, cfg.Size, cfg.Addr, cfg.Token, cfg.Epoch, cfg.Links = e.Rank, len(e.Members), e.Addr, e.Token, e.Number, r.links
	if os.Getenv("WEFT_TIMEOUT") == "" {
		cfg.Timeout = 20 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	for pauses := retry.Pause(10*time.Millisecond, 200*time.Millisecond); ; {
		var turn *turn
		if e.Rank == 0 {
			turn = r.link.listener.open()
			cfg.Listener = turn
		}
		c, err := comm.Join(ctx, cfg)
		if turn != nil {
			turn.retire()
		}
		if err == nil || ctx.Err() != nil {
			return c, err
		}
		if pauses.Wait(ctx) != nil {
			return nil, err
		}
	}
}

// without reports whether an epoch has lost a member of another that need not
// finish its step.
func (e *Epoch) without(old *Epoch) bool {
	return !e.Waits && slices.ContainsFunc(old.Members, func(s Seat) bool { return !slices.Contains(e.Members, s) })
}

// same reports whether the same processes have the same ranks in two epochs.
func same(a, b *Epoch) bool { return slices.Equal(a.Members, b.Members) && a.Halt == b.Halt }
