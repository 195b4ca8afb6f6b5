// Package node is a host's launcher in an elastic job: it starts the host's ranks,
// registers them with the coordinator, announces epochs, detects ranks that die or
// fall silent, and restarts them.
//
//	process ends        ──► worker "dead" in the store ──► an epoch without it ──► survivors go on
//	process is silent   ──► the same, 1.2 s later; when it responds again it rejoins
//	a host is silent    ──► its observers among the other launchers report it after 0.5 to 0.65 s; or its leases end
//	a new process       ──► registers under the same slot, recovers, joins at a step's end
//
// It runs two kinds of programs. One that follows epochs (package elastic) starts first and
// gets everything over an inherited connection; a failed rank restarts while the others
// stay. Any other program starts once its epoch is known, with RANK, WORLD_SIZE,
// MASTER_ADDR and the like in its environment. Its processes form rounds: when one fails,
// or ranks come or go, all of them end and then restart together (Config.Restart).
package node

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weft-fabric/weft/run/coord"
	"github.com/weft-fabric/weft/run/elastic"
	"github.com/weft-fabric/weft/run/elastic/internal/observe"
	"github.com/weft-fabric/weft/run/internal/member"
	"github.com/weft-fabric/weft/run/launch"
)

// Config is what a launcher runs.
type Config struct {
	Client *coord.Client
	Policy coord.Policy // every launcher stands for the lead

	// Slots are the host's ids in the job, one for each process. Those that are Any get
	// the lowest ids in a row that no node has.
	Slots []int

	// Node names this node among those of the job, so that ranks learn which of them
	// are on the same one. Launchers with the same name count as one node.
	Node string

	Command []string
	Env     []string // NAME=VALUE beside this process's own environment
	Dir     string
	Follow  bool    // the program follows epochs; see package elastic
	Restart Restart // what is started again when a process fails

	// Secret makes the launchers of the job's hosts observe one another (package
	// observe): a lost host is then known within 0.7 s instead of when its leases
	// end. It is the same for all launchers of the job, and known to nobody else.
	Secret string

	Host string // this host's name
	Addr string // the address at which other hosts reach this one

	// Place, where set, puts the process of a slot, counted from 0, elsewhere than into this process's own network: words to
	// stand before the command, and the address at which the others reach it.
	Place func(local int) (words []string, addr string)

	Restarts int           // of a slot's process after it failed; then the slot stays empty
	Silence  time.Duration // after which a process that follows epochs is as good as dead; 1.2 s if 0
	Settle   time.Duration // how long ranks must have stayed the same before a program that does not follow is started; 1 s if 0
	Grace    time.Duration // between SIGTERM and SIGKILL; launch.Grace if 0, none if below 0
	Away     time.Duration // how long something may wait for a coordinator that does not answer; a minute if 0

	// Stdout and Stderr take whole lines, with the rank in brackets in front if
	// Prefix is set.
	Stdout, Stderr io.Writer
	Prefix         bool

	// Output, where set, is given the writers of a process that starts and gives those
	// that take their place.
	Output func(rank, local int, stdout, stderr io.Writer) (io.Writer, io.Writer)

	// Role and Run are what torchrun calls ROLE_NAME and TORCHELASTIC_RUN_ID.
	Role, Run string

	// Watch hears what happens, one call at a time. It must not wait for anything.
	Watch func(Event)
}

// Any is a slot of which the coordinator says the number.
const Any = -1

// Restart says what is started again when the process of a program that does not
// follow epochs fails.
type Restart string

// The choices. A program that follows epochs has its failed ranks started again
// alone, whatever is chosen.
const (
	All Restart = "all" // all ranks of the job, together, as torchrun does: the default
	One Restart = "one" // the rank that failed, in its place
)

// What an Event is about.
const (
	Started  = "started"  // a process was
	Exited   = "exited"   // a process has; Exit says how
	Silent   = "silent"   // a process has not been heard of for Silence
	Heard    = "heard"    // and then was
	Placed   = "placed"   // a slot has another place; Place says which
	Said     = "said"     // a process said something: Word
	Decided  = "decided"  // there is a new epoch
	Lost     = "lost"     // another host is; Text says which
	GaveUp   = "gave up"  // a slot's process failed too often
	Trouble  = "trouble"  // with the coordinator; it is tried again
	Answered = "answered" // the coordinator did, after Trouble
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
	Since time.Time // of Silent: when it was last heard of
	Place coord.Place
	Epoch coord.Epoch
	Word  elastic.Word
}

// AwayError says that the coordinator did not answer for as long as Config.Away while
// ranks needed it.
type AwayError struct {
	Endpoints []string
	For       time.Duration
	Waiting   int // slots that waited for it
}

func (e *AwayError) Error() string {
	return fmt.Sprintf("the coordinator at %s has not answered for %v, and %d ranks of this host wait for it; start it again, then this job",
		strings.Join(e.Endpoints, ","), e.For.Round(time.Second), e.Waiting)
}

// Unwrap makes it coord.ErrUnreachable.
func (e *AwayError) Unwrap() error { return coord.ErrUnreachable }

// HaltError says that the job stopped for want of ranks.
type HaltError struct{ Reason string }

func (e *HaltError) Error() string { return e.Reason }

// Node is a launcher at work.
type Node struct {
	cfg   Config
	slots []*slot

	mu       sync.Mutex // over what follows
	watching sync.Mutex
	lines    launch.Screen // takes output
	stopped  bool
	broken   error
	halt     error
	latest   uint64                     // epoch that was heard of
	ended    bool                       // the job is done
	peers    map[member.ID]coord.Worker // all workers of the job, as they were last
	finished map[member.ID]uint64       // those that have done their work: in which round, and 1 more
	wake     chan struct{}
	dead     chan struct{} // closed by Kill
	kill     sync.Once

	observer *observe.Observer // of the other hosts' launchers; nil without a secret
	agent    string            // how the others reach it
	hosts    coord.Epoch       // whose hosts are observed
	inner    context.Context   // of reports
	reports  sync.WaitGroup
}

// New makes a launcher; Run sets it to work.
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
	set(&cfg.Away, time.Minute)
	if cfg.Restart == "" {
		cfg.Restart = All
	}
	if cfg.Restart != All && cfg.Restart != One {
		return nil, fmt.Errorf("node: restart %q; known: %s, %s", cfg.Restart, All, One)
	}
	cfg.Policy.Together = cfg.Restart == All && !cfg.Follow
	if err := cfg.Policy.Check(); err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	if cfg.Addr == "" {
		cfg.Addr = "127.0.0.1"
	}
	if cfg.Node == "" {
		var err error
		if cfg.Node, err = launch.NewToken(); err != nil {
			return nil, err
		}
	}
	if cfg.Watch == nil {
		cfg.Watch = func(Event) {}
	}
	n := &Node{cfg: cfg, peers: map[member.ID]coord.Worker{}, finished: map[member.ID]uint64{}, wake: make(chan struct{}),
		dead: make(chan struct{})}
	for i, id := range cfg.Slots {
		n.slots = append(n.slots, &slot{n: n, id: id, local: i})
	}
	return n, nil
}

// runSlots works until all processes have ended, and gives the first failure by slot.
func (n *Node) runSlots(ctx, inner context.Context) error {
	var wg sync.WaitGroup
	failures := make([]error, len(n.slots))
	for i, s := range n.slots {
		wg.Go(func() { failures[i] = s.run(ctx, inner) })
	}
	wg.Wait()
	return cmp.Or(failures...)
}

// Run works until all its processes have ended for good. When ctx ends they get
// SIGTERM and, after the grace, SIGKILL. The error is that of the job if it cannot
// go on, a *HaltError if too few were left, a *launch.Failure if processes failed
// too often; nil if all have done their work.
func (n *Node) Run(ctx context.Context) error {
	if err := n.observe(); err != nil {
		return err
	}
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var others sync.WaitGroup
	n.inner = inner
	if n.observer != nil {
		defer n.reports.Wait()
		defer n.stopObserving()
	}
	for _, f := range []func(context.Context){n.decide, n.follow, n.roll, n.mind} {
		others.Add(1)
		go func() {
			defer others.Done()
			f(inner)
		}()
	}
	defer others.Wait()
	defer cancel()
	if err := n.number(ctx, inner); err != nil {
		return err
	}
	failed := n.runSlots(ctx, inner)
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := cmp.Or(n.broken, failed); err != nil {
		return err
	}
	if n.halt != nil && !n.ended && ctx.Err() == nil {
		return n.halt
	}
	return ctx.Err()
}

// number gives the slots their ids, if the coordinator is to say them.
func (n *Node) number(ctx, inner context.Context) error {
	var open []*slot
	for _, s := range n.slots {
		if s.id == Any {
			s.waits.Store(true)
			open = append(open, s)
		}
	}
	if len(open) == 0 {
		return nil
	}
	ask, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-n.wake:
			cancel()
		case <-ask.Done():
		}
	}()
	b, err := n.cfg.Client.Claim(ask, inner, n.cfg.Node, len(open))
	if err != nil {
		n.mu.Lock()
		defer n.mu.Unlock()
		return cmp.Or(n.broken, ctx.Err(), err)
	}
	for i, s := range open {
		s.id = int(b.First) + i
	}
	return nil
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

// Kill ends the grace of processes that were asked to end.
func (n *Node) Kill() { n.kill.Do(func() { close(n.dead) }) }

// Signal sends a signal to the process of a slot, by its place in Slots, and says
// which process that was; 0 if there is none at the moment.
func (n *Node) Signal(i int, sig syscall.Signal) (pid int) {
	s := n.slots[i]
	s.mu.Lock()
	p := s.live
	s.mu.Unlock()
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

// decide stands for the lead. What goes wrong with the store is tried
// again: another launcher may lead meanwhile.
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
		n.observeHosts(e)
		n.mu.Lock()
		stopped := n.stopped
		n.mu.Unlock()
		n.halts(e)
		if !stopped { // that all are leaving is no news
			n.tell(Event{Kind: Decided, Slot: -1, Epoch: e})
		}
	}
}

// halts takes note whether the latest epoch asks all to stop. One that follows such an
// epoch says that the job has been formed anew.
func (n *Node) halts(e coord.Epoch) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stopped || e.Number <= n.latest {
		return
	}
	n.latest, n.halt = e.Number, nil
	if e.Halt != 0 {
		n.halt = &HaltError{e.Reason}
	}
}

// waiting counts ranks that need an answer of the coordinator to go on.
func (n *Node) waiting() (count int) {
	for _, s := range n.slots {
		if s.waits.Load() {
			count++
		}
	}
	return count
}

// mind watches whether the coordinator answers, says when it does not, and ends the
// job here when ranks have waited for it too long. Ranks that need nothing of it go on.
func (n *Node) mind(ctx context.Context) {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	var since time.Time // when ranks began to wait for a coordinator that is away
	told := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		silence := n.cfg.Client.Silence()
		if silence < quiet {
			if told {
				n.tell(Event{Kind: Answered, Slot: -1, Text: "the coordinator answers again"})
			}
			told, since = false, time.Time{}
			continue
		}
		where := strings.Join(n.cfg.Client.Endpoints(), ",")
		waiting := n.waiting()
		if !told {
			told = true
			n.tell(Event{Kind: Trouble, Slot: -1,
				Text: fmt.Sprintf("the coordinator at %s has not answered for %v; ranks at work go on, others wait for it up to %v",
					where, silence.Round(time.Second), n.cfg.Away)})
		}
		switch {
		case waiting == 0:
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		case time.Since(since) >= n.cfg.Away:
			n.fail(&AwayError{Endpoints: n.cfg.Client.Endpoints(), For: silence, Waiting: waiting})
			return
		}
	}
}

// quiet is how long a coordinator may be silent before anybody is told: leases are
// renewed four times a second or less often, and a request is given 4 s at most.
const quiet = 5 * time.Second

// complete takes note that the job is done: all ranks end with it, and that too few
// of them are left then is no failure.
func (n *Node) complete() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ended = true
}

// done is what the record of a worker says that has done its work.
const done = "its work is done"

// roll keeps the list of workers, and of those that have done their work.
func (n *Node) roll(ctx context.Context) {
	for e := range n.cfg.Client.WatchWorkers(ctx) {
		n.mu.Lock()
		w := e.Worker
		if n.peers[w.ID] = w; e.Word == coord.Left || e.Word == coord.Expired {
			delete(n.peers, w.ID)
		}
		if w.Why == done {
			n.finished[w.ID] = w.Round + 1
			if n.cfg.Follow {
				n.stop()
			}
		}
		n.mu.Unlock()
	}
}

// allEnded reports whether no process of an earlier round is left: a process that
// began now could meet it.
func (n *Node) allEnded(e coord.Epoch) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range e.Members {
		if w := n.peers[m.ID]; w.Life != m.Life || w.Round < e.Round {
			return false
		}
	}
	return true
}

// allDone reports whether all members of an epoch have done their work, in its round
// if they are started together, and if so that they leave is no news.
func (n *Node) allDone(e coord.Epoch) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(e.Members) == 0 {
		return false // this node knows of no epoch at the moment
	}
	for _, m := range e.Members {
		if f := n.finished[m.ID]; f == 0 || n.cfg.Policy.Together && f != e.Round+1 {
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
