// Package node is the agent of a host in an elastic job: it starts the host's
// ranks, enters them with the coordinator, tells them their epochs, sees who dies
// or falls silent, and starts those again, and nobody else.
//
//	process ends        ──► worker "dead" in the store ──► an epoch without it ──► survivors go on
//	process is silent   ──► the same, 1.2 s later; when it speaks again it enters anew
//	this host is silent ──► its leases end, 1.0 to 1.6 s later
//	a new process       ──► enters under the same slot, recovers, joins at a step's end
//
// Two kinds of programs run under it. One that follows epochs (package elastic) is
// started first and told everything over a connection it inherits. Any other is
// started once its epoch is known, with RANK, WORLD_SIZE, MASTER_ADDR and their
// like in its environment; it is started again when the ranks in these have
// changed, and left alone when a rank that failed comes back to its place.
package node

import (
	"context"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/weft-fabric/weft/coord"
	"github.com/weft-fabric/weft/elastic"
	"github.com/weft-fabric/weft/launch"
)

// Config is what an agent runs.
type Config struct {
	Client *coord.Client
	Policy coord.Policy // every agent stands for the office of decider

	// Slots are the host's ids in the job, one for each process; coord.Any takes
	// the lowest that is free.
	Slots []int

	Command []string
	Env     []string // NAME=VALUE beside this process's own environment
	Dir     string
	Follow  bool // the program follows epochs; see package elastic

	Host string // this host's name
	Addr string // the address at which other hosts reach this one

	Restarts int           // of a slot's process after it failed; then the slot stays empty
	Silence  time.Duration // after which a process that follows epochs is as good as dead; 1.2 s if 0
	Settle   time.Duration // how long ranks must have stayed the same before a program that does not follow is started; 1 s if 0
	Grace    time.Duration // between SIGTERM and SIGKILL; launch.Grace if 0

	// Stdout and Stderr take whole lines, with the slot in brackets in front if
	// Prefix is set.
	Stdout, Stderr io.Writer
	Prefix         bool

	// Watch hears what happens, one call at a time. It must not wait for anything.
	Watch func(Event)
}

// Any is a slot of which the coordinator says the number.
const Any = -1

// What an Event is about.
const (
	Started  = "started"  // a process was
	Exited   = "exited"   // a process has; Exit says how
	Silent   = "silent"   // a process has not been heard of for Silence
	Heard    = "heard"    // and then was
	Placed   = "placed"   // a slot has another place; Place says which
	Said     = "said"     // a process said something: Word
	Decided  = "decided"  // there is a new epoch
	GaveUp   = "gave up"  // a slot's process failed too often
	Trouble  = "trouble"  // with the coordinator; it is tried again
	Replaced = "replaced" // a process that does not follow epochs is ended for new ranks
)

// Event is something that happened on a node.
type Event struct {
	At    time.Time
	Kind  string
	Slot  int // -1 if of none
	Pid   int
	Text  string
	Exit  launch.Exit
	Place coord.Place
	Epoch coord.Epoch
	Word  elastic.Word
}

// HaltError says that the job stopped for want of ranks.
type HaltError struct{ Reason string }

func (e *HaltError) Error() string { return e.Reason }

// Node is an agent at work.
type Node struct {
	cfg   Config
	slots []*slot

	mu       sync.Mutex // over what follows
	watching sync.Mutex
	lines    sync.Mutex // over output
	stopped  bool
	broken   error
	halt     error
	ended    bool         // the job is done
	finished map[int]bool // ids whose processes have done their work
	wake     chan struct{}
}

// New makes an agent; Run sets it to work.
func New(cfg Config) (*Node, error) {
	if len(cfg.Slots) == 0 || len(cfg.Command) == 0 {
		return nil, fmt.Errorf("node: %d slots and %d words of a command; at least one of each is needed", len(cfg.Slots), len(cfg.Command))
	}
	set := func(d *time.Duration, def time.Duration) {
		if *d == 0 {
			*d = def
		}
	}
	set(&cfg.Silence, 1200*time.Millisecond)
	set(&cfg.Settle, time.Second)
	set(&cfg.Grace, launch.Grace)
	if err := cfg.Policy.Check(); err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	if cfg.Addr == "" {
		cfg.Addr = "127.0.0.1"
	}
	if cfg.Watch == nil {
		cfg.Watch = func(Event) {}
	}
	n := &Node{cfg: cfg, finished: map[int]bool{}, wake: make(chan struct{})}
	for i, id := range cfg.Slots {
		n.slots = append(n.slots, &slot{n: n, id: id, local: i})
	}
	return n, nil
}

// Run works until all its processes have ended for good. When ctx ends they get
// SIGTERM and, after the grace, SIGKILL. The error is that of the job if it cannot
// go on, a *HaltError if too few were left, a *launch.Failure if processes failed
// too often; nil if all have done their work.
func (n *Node) Run(ctx context.Context) error {
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var others sync.WaitGroup
	for _, f := range []func(context.Context){n.decide, n.follow, n.roll} {
		others.Add(1)
		go func() {
			defer others.Done()
			f(inner)
		}()
	}
	defer others.Wait()
	defer cancel()
	var wg sync.WaitGroup
	failures := make([]error, len(n.slots))
	for i, s := range n.slots {
		wg.Add(1)
		go func() {
			defer wg.Done()
			failures[i] = s.run(ctx, inner)
		}()
	}
	wg.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.broken != nil {
		return n.broken
	}
	for _, err := range failures {
		if err != nil {
			return err
		}
	}
	if n.halt != nil && !n.ended {
		return n.halt
	}
	return ctx.Err()
}

// Stop asks all ranks to stop after the same step, and restarts none.
func (n *Node) Stop() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stop()
}

// stop does so with mu held.
func (n *Node) stop() {
	if !n.stopped {
		n.stopped = true
		close(n.wake)
	}
}

// Signal sends a signal to the process of a slot, by its place in Slots, and says
// which process that was; 0 if there is none at the moment.
func (n *Node) Signal(i int, sig syscall.Signal) (pid int) {
	p := n.slots[i].live.Load()
	if p == nil {
		return 0
	}
	p.Signal(sig)
	return p.Pid
}

// stopping reports whether ranks were asked to stop.
func (n *Node) stopping() bool {
	select {
	case <-n.wake:
		return true
	default:
		return false
	}
}

// fail ends the job for an error that nobody can mend.
func (n *Node) fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.broken == nil {
		n.broken = err
	}
	n.stop()
}

func (n *Node) tell(e Event) {
	if e.At.IsZero() {
		e.At = time.Now()
	}
	n.watching.Lock()
	defer n.watching.Unlock()
	n.cfg.Watch(e)
}

// decide stands for the office of decider. What goes wrong with the store is tried
// again: another agent may hold the office meanwhile.
func (n *Node) decide(ctx context.Context) {
	for {
		err := n.cfg.Client.Decide(ctx, n.cfg.Policy)
		if ctx.Err() != nil || n.isStopped() {
			return
		}
		n.tell(Event{Kind: Trouble, Slot: -1, Text: fmt.Sprintf("deciding on epochs: %v", err)})
		timer := time.NewTimer(time.Second)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// follow tells of epochs, and of the end of the job.
func (n *Node) follow(ctx context.Context) {
	for e := range n.cfg.Client.WatchEpochs(ctx) {
		n.mu.Lock()
		stopped := n.stopped
		n.mu.Unlock()
		if e.Halt != 0 {
			n.halts(e)
		}
		if !stopped { // that all are leaving is no news
			n.tell(Event{Kind: Decided, Slot: -1, Epoch: e})
		}
	}
}

// halts takes note that an epoch asks all to stop, unless they do already.
func (n *Node) halts(e coord.Epoch) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.stopped && n.halt == nil {
		n.halt = &HaltError{e.Reason}
	}
}

// complete takes note that the job is done: all ranks end with it, and that too few
// of them are left then is no failure.
func (n *Node) complete() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ended = true
}

// done is what the record of a worker says that has done its work.
const done = "its work is done"

// roll keeps the list of those that have done their work.
func (n *Node) roll(ctx context.Context) {
	for e := range n.cfg.Client.WatchWorkers(ctx) {
		if e.Worker.Why == done {
			n.mu.Lock()
			n.finished[int(e.Worker.ID)] = true
			if n.cfg.Follow {
				n.stop()
			}
			n.mu.Unlock()
		}
	}
}

// allDone reports whether all members of an epoch have done their work, and if so
// that they leave is no news.
func (n *Node) allDone(e coord.Epoch) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range e.Members {
		if !n.finished[int(m.ID)] {
			return false
		}
	}
	n.ended = true
	n.stop()
	return true
}

func (n *Node) isStopped() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.stopped
}
