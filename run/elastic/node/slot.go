package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weft-fabric/weft/run/coord"
	"github.com/weft-fabric/weft/run/elastic"
	"github.com/weft-fabric/weft/run/internal/member"
	"github.com/weft-fabric/weft/run/launch"
	"github.com/weft-fabric/weft/run/turns"
)

// slot is one place for a process, with one goroutine that looks after it.
type slot struct {
	n     *Node
	id    int // Any until the coordinator has said
	local int
	rank  atomic.Int32 // that lines of output begin with; -1 without one
	waits atomic.Bool  // for the coordinator

	mu   sync.Mutex      // held while a process is started, so that a signal for it waits until it is known
	live *launch.Process // proc, for those who send it signals

	exits  chan *launch.Process
	words  chan said
	enters chan entry
	over   chan struct{} // closed when nobody looks after the slot any more

	proc     *launch.Process
	conn     net.Conn      // with the process; nil if it does not follow epochs
	heardAll chan struct{} // closed when nothing more comes from it
	serial   int           // of the process: what an earlier one said does not count
	heard    time.Time
	silent   bool
	hunger   hunger
	ended    bool // it has done its work
	left     bool // it asked to leave
	restarts int
	stuck    bool // its epoch failed, and no other has formed yet

	reg      *coord.Registration
	entering bool
	addr     string // under which it is entered
	port     *launch.Port
	places   <-chan coord.Place
	forget   context.CancelFunc // ends places
	dropping sync.WaitGroup     // registrations that are being ended
	place    coord.Place

	// Of a program that does not follow epochs:
	since   time.Time   // when the ranks of place changed
	halted  time.Time   // when the job stopped for want of ranks
	due     time.Time   // not to be started before
	begun   uint64      // round for which it has been said that no earlier process is left
	running coord.Epoch // that the process was started with
	why     string      // the launcher has ended it
}

// said is a word of a process.
type said struct {
	serial int
	word   elastic.Word
}

// entry is the answer of the coordinator to a wish to enter.
type entry struct {
	serial int
	reg    *coord.Registration
	err    error
}

// run looks after the slot until its work is done, it stays empty, or ctx ends.
// Life is the context of what must outlast ctx.
func (s *slot) run(ctx, life context.Context) (err error) {
	s.rank.Store(-1)
	s.exits, s.words, s.enters, s.over = make(chan *launch.Process, 1), make(chan said), make(chan entry), make(chan struct{})
	life, cancel := context.WithCancel(life)
	defer cancel()
	defer s.finish(life)
	if s.n.cfg.Follow {
		if err := s.start(nil); err != nil {
			return err
		}
	} else if err := s.enterPlain(life); err != nil {
		return err
	}
	tick := time.NewTicker(elastic.Pulse)
	defer tick.Stop()
	last := time.Now()
	var kill <-chan time.Time
	stop, quit, dead := s.n.wake, ctx.Done(), s.n.dead
	for {
		s.waits.Store(s.waiting())
		var gone <-chan struct{}
		if s.reg != nil {
			gone = s.reg.Gone()
		}
		select {
		case <-quit:
			quit, stop = nil, nil
			kill = time.After(s.n.cfg.Grace)
			if s.proc == nil {
				return nil
			}
			s.proc.Signal(syscall.SIGTERM)
		case <-stop:
			stop = nil
			if s.proc == nil {
				return nil
			}
			if !s.halts() { // else it saves what there is, however long that takes, and ends by itself
				kill = time.After(s.n.cfg.Grace)
				s.askToStop()
			}
		case <-dead:
			dead = nil
			if s.proc != nil {
				s.proc.Kill()
			}
		case <-kill:
			if s.proc != nil {
				s.proc.Kill()
			}
		case w := <-s.words:
			if w.serial == s.serial {
				s.hear(life, w.word)
			}
		case p := <-s.exits:
			if p != s.proc {
				continue
			}
			s.hearOut(life)
			// Its last words may have ended the job, of which this loop has not heard yet.
			if over, err := s.exit(life, stop == nil || s.n.stopping()); over || err != nil {
				return err
			}
		case e := <-s.enters:
			if err := s.entered(life, e); err != nil {
				return err
			}
		case <-gone:
			s.drop(life, "")
			s.enter(life)
		case p, ok := <-s.places:
			if !ok {
				s.places = nil
				continue
			}
			s.placed(p)
		case now := <-tick.C:
			// Time in which this process itself did not run is held against nobody.
			if gap := now.Sub(last); gap > 3*elastic.Pulse {
				s.heard = s.heard.Add(gap)
			}
			last = now
			if over, err := s.pulse(life, now, stop == nil); over || err != nil {
				return err
			}
		}
	}
}

// askToStop lets the rank know that it is to stop.
func (s *slot) askToStop() {
	if s.conn != nil {
		s.say(elastic.Word{Kind: elastic.Stop})
	} else {
		s.proc.Signal(syscall.SIGTERM)
	}
}

// pulse is what a slot looks after again and again. It reports whether the slot's work is over.
func (s *slot) pulse(life context.Context, now time.Time, stopping bool) (over bool, err error) {
	mute := s.mute(now)
	s.listen(life, now, mute)
	if stopping && mute {
		s.proc.Kill() // it does not hear that it is to stop
	}
	ran := s.running
	if !s.n.cfg.Policy.Together {
		ran = s.place.Epoch
	}
	if s.ended && s.proc == nil && s.n.allDone(ran) {
		return true, nil
	}
	if err := s.settle(now); err != nil {
		return true, err
	}
	return s.stranded(now), nil
}

// waiting reports whether the slot can do nothing without the coordinator.
func (s *slot) waiting() bool {
	if !s.n.cfg.Follow {
		return s.proc == nil
	}
	return !s.ended && (s.reg == nil || s.stuck || s.place.Standing != coord.Active)
}

// prefix is what a line of output begins with.
func (s *slot) prefix() string {
	if r := s.rank.Load(); r >= 0 {
		return "[" + strconv.Itoa(int(r)) + "] "
	}
	return "[slot " + strconv.Itoa(s.name()) + "] "
}

// pipe says where the process's output goes.
func (s *slot) pipe(c *launch.Command) {
	cfg := &s.n.cfg
	prefix := func() string { return "" }
	if cfg.Prefix {
		prefix = s.prefix
	}
	if cfg.Stdout != nil {
		c.Stdout = launch.Lines(cfg.Stdout, &s.n.lines, prefix)
	}
	if cfg.Stderr != nil {
		c.Stderr = launch.Lines(cfg.Stderr, &s.n.lines, prefix)
	}
	if cfg.Output != nil {
		c.Stdout, c.Stderr = cfg.Output(c.Rank, s.local, c.Stdout, c.Stderr)
	}
}

// start starts the process, with an epoch in its environment if there is one.
func (s *slot) start(env []string) error {
	cfg := &s.n.cfg
	s.serial++
	c := launch.Command{Rank: s.name(), Host: cfg.Host, Args: cfg.Command, Dir: cfg.Dir}
	if r := s.rank.Load(); r >= 0 {
		c.Rank = int(r)
	}
	addr := cfg.Addr
	if cfg.Place != nil {
		var words []string
		words, addr = cfg.Place(s.local)
		c.Args = append(words, c.Args...)
	}
	c.Env = append(s.common(), cfg.Env...)
	c.Env = append(c.Env, env...)
	s.pipe(&c)
	if cfg.Follow {
		ours, theirs, err := pair()
		if err != nil {
			return fmt.Errorf("a connection with rank %d: %w", s.local, err)
		}
		defer theirs.Close()
		c.Files = []*os.File{theirs}
		c.Env = append(c.Env, elastic.EnvAgent+"=3", elastic.EnvHost+"="+addr)
		s.conn = ours
	}
	p, err := s.launch(c)
	if err != nil {
		if s.conn != nil {
			s.conn.Close()
		}
		return fmt.Errorf("starting %s: %w", cfg.Command[0], err)
	}
	s.proc, s.heard, s.silent, s.why = p, time.Now(), false, ""
	if s.conn != nil {
		s.heardAll = make(chan struct{})
		go s.read(s.conn, s.serial, s.heardAll)
	}
	s.n.tell(Event{Kind: Started, Slot: s.name(), Pid: p.Pid})
	return nil
}

// launch starts a process, of which those who send signals know as soon as it runs.
func (s *slot) launch(c launch.Command) (*launch.Process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := launch.Start(c, s.exits)
	s.live = p
	return p, err
}

// gone has no signal sent to the process any more.
func (s *slot) gone() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live = nil
}

// name is the slot as people are told of it.
func (s *slot) name() int {
	if s.id == Any {
		return s.local
	}
	return s.id
}

// read hands on what a process says until it is gone. The loop of the slot runs
// until the process has ended and its words are read.
func (s *slot) read(conn net.Conn, serial int, end chan<- struct{}) {
	defer close(end)
	_ = elastic.Lines(conn, func(w elastic.Word) {
		select {
		case s.words <- said{serial, w}:
		case <-s.over:
		}
	})
}

// hearOut takes the last words of a process that has ended: they may say why.
func (s *slot) hearOut(life context.Context) {
	if s.conn == nil {
		return
	}
	s.silent = false
	_ = s.conn.SetReadDeadline(time.Now().Add(time.Second)) // a descendant may hold its end open
	for {
		select {
		case w := <-s.words:
			if w.serial == s.serial && w.word.Kind != elastic.Hello {
				s.hear(life, w.word)
			}
		case <-s.heardAll:
			return
		}
	}
}

// say tells the process something. One that does not read is found out by its silence.
func (s *slot) say(w elastic.Word) {
	line, err := json.Marshal(w)
	if err != nil {
		panic(err) // words hold nothing that JSON has not
	}
	_ = s.conn.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = s.conn.Write(append(line, '\n'))
}

// hear takes a word of the process.
func (s *slot) hear(life context.Context, w elastic.Word) {
	s.heard = time.Now()
	if s.silent {
		s.silent = false
		s.n.tell(Event{Kind: Heard, Slot: s.name(), Pid: s.proc.Pid})
		s.enter(life)
	}
	switch w.Kind {
	case elastic.Hello:
		s.addr = w.Addr
		s.enter(life)
	case elastic.Beat:
		if w.Step > 0 && s.reg != nil {
			s.reg.Progress(uint64(w.Step), w.Pace)
		}
	case elastic.Leave:
		s.ended, s.left = true, true
		if s.reg != nil {
			s.reg.AskToLeave(w.Text)
		}
	case elastic.Ended:
		s.ended = true
		if w.Epoch > 0 {
			s.n.complete()
		}
	case elastic.Broken:
		s.n.fail(errors.New(w.Text))
	case elastic.Formed:
		s.stuck = false
	case elastic.Failed:
		s.stuck = true
	case elastic.Stuck:
		s.stuck = true
		s.unstick(life, w)
	}
	s.n.tell(Event{Kind: Said, Slot: s.name(), Pid: s.proc.Pid, Word: w})
}

// unstick sees to another epoch where a communicator failed and nobody was found
// dead: those to blame are, as far as the others are concerned. Where nobody is
// known to be it is this process.
func (s *slot) unstick(life context.Context, w elastic.Word) {
	blame := w.Blame
	if len(blame) == 0 && s.reg != nil {
		self := s.reg.Worker()
		blame = []member.Seat{{ID: self.ID, Life: self.Life}}
	}
	for _, seat := range blame {
		go func() {
			ctx, cancel := context.WithTimeout(life, 10*time.Second)
			defer cancel()
			_ = s.n.cfg.Client.Accuse(ctx, w.Epoch, seat.ID, seat.Life, w.Text) // it is said again if it still holds
		}()
	}
}

// starvedFor is how many times as long a process may be silent that waits for a processor: it is not dead, its host is busy.
const starvedFor = 10

// hunger watches a silent process for threads that are ready to run and are not let.
type hunger struct {
	since time.Time
	waits map[string]turns.Turn
}

// look says whether the threads of the process have waited for a processor for at least a third of the time since the first
// look, all together: a program that goes on in whichever thread is free waits a little in each. One that is stopped, blocked
// or gone waits for none.
func (h *hunger) look(pid int, now time.Time) bool {
	return h.see(turns.Of("/proc/"+strconv.Itoa(pid)), now)
}

func (h *hunger) see(threads map[string]turns.Turn, now time.Time) bool {
	if h.since.IsZero() {
		h.since, h.waits = now, threads
		return false
	}
	waited := time.Duration(0)
	for id, t := range threads {
		waited += t.Waited - h.waits[id].Waited
	}
	return waited > 0 && waited >= now.Sub(h.since)/3
}

// talks says whether the process should be heard of.
func (s *slot) talks() bool {
	return !s.silent && (!s.ended || s.left) && s.reg != nil
}

// mute says that the process has been silent for too long, and not because it gets no processor.
func (s *slot) mute(now time.Time) bool {
	quiet := now.Sub(s.heard)
	if s.conn == nil || s.proc == nil || quiet < s.n.cfg.Silence/2 {
		s.hunger = hunger{}
		return false
	}
	starved := s.hunger.look(s.proc.Pid, now)
	return quiet >= s.n.cfg.Silence && (!starved || quiet >= starvedFor*s.n.cfg.Silence)
}

// listen finds processes that have fallen silent. One that has done its work may take its time to end.
func (s *slot) listen(life context.Context, now time.Time, mute bool) {
	if !mute || !s.talks() {
		return
	}
	s.silent = true
	why := fmt.Sprintf("pid %d was silent for %v", s.proc.Pid, now.Sub(s.heard).Round(100*time.Millisecond))
	s.n.tell(Event{Kind: Silent, Slot: s.name(), Pid: s.proc.Pid, Text: why, Since: s.heard})
	s.drop(life, why)
}

// enter asks the coordinator to let the process in; the answer comes to enters.
func (s *slot) enter(life context.Context) {
	if s.entering || s.reg != nil || s.addr == "" {
		return
	}
	s.entering = true
	w := coord.Worker{ID: member.ID(s.id), Host: s.n.cfg.Host, Address: s.addr, Node: s.n.cfg.Node, Agent: s.n.agent}
	if s.proc != nil {
		w.PID = s.proc.Pid
	}
	serial := s.serial
	go func() {
		reg, err := s.n.cfg.Client.Register(life, w)
		select {
		case s.enters <- entry{serial, reg, err}:
		case <-s.over:
			if reg != nil { // nobody heard the answer: its lease ends
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				_ = reg.Leave(ctx)
			}
		}
	}()
}

// entered takes the coordinator's answer.
func (s *slot) entered(life context.Context, e entry) error {
	s.entering = false
	if e.err != nil {
		return fmt.Errorf("entering rank %d of this host: %w", s.local, e.err)
	}
	s.reg = e.reg
	s.id = int(e.reg.Worker().ID)
	if s.n.cfg.Follow && (e.serial != s.serial || s.silent || s.proc == nil) { // that process is no more
		s.drop(life, "ended before it was let in")
		s.enter(life)
		return nil
	}
	ctx, cancel := context.WithCancel(life)
	s.forget = cancel
	s.places = e.reg.Places(ctx)
	return nil
}

// drop ends the registration; with a reason the process is dead to the others at once.
func (s *slot) drop(life context.Context, why string) {
	reg := s.reg
	if reg == nil {
		return
	}
	s.reg, s.places, s.place, s.begun = nil, nil, coord.Place{}, 0
	s.rank.Store(-1)
	if s.forget != nil {
		s.forget()
		s.forget = nil
	}
	s.dropping.Add(1)
	go func() {
		defer s.dropping.Done()
		// The coordinator may be away for a while; it hears of it when it is back,
		// unless the lease has ended by then.
		if why != "" {
			_ = reg.ReportDead(life, why)
		} else {
			_ = reg.Leave(life)
		}
	}()
}

// placed takes a new place of the slot and tells the process.
func (s *slot) placed(p coord.Place) {
	s.n.halts(p.Epoch)
	s.n.tell(Event{Kind: Placed, Slot: s.name(), Place: p})
	if p.Standing == coord.Recovering {
		s.reg.CaughtUp() // the state comes with the epoch in which it is active
	}
	if s.conn == nil {
		s.placedPlain(p)
		return
	}
	s.place = p
	s.rank.Store(int32(p.Rank))
	if p.Epoch.Number == 0 || s.proc == nil {
		return
	}
	// A process that has nothing to save waits while others do. When one of them is
	// done the job ends here, too; when all of them die the job is formed anew.
	e := elastic.Epoch{Number: p.Epoch.Number, Rank: -1, Addr: p.Epoch.Master, Token: p.Epoch.Token, Waits: p.Epoch.After > 0,
		Halt: p.Standing == coord.Halted, Reason: p.Epoch.Reason}
	if p.Standing == coord.Active || p.Standing == coord.Halted {
		e.Rank = p.Rank
	}
	for _, m := range p.Epoch.Members {
		e.Members = append(e.Members, m.Seat)
	}
	s.say(elastic.Word{Kind: elastic.Assign, Place: &e})
}

// halts reports whether the process takes part in a job that is asked to stop with
// a checkpoint, and has been told so or will be.
func (s *slot) halts() bool {
	s.n.mu.Lock()
	defer s.n.mu.Unlock()
	return s.n.cfg.Follow && s.n.halt != nil && !s.n.ended && (s.place.Standing == coord.Active || s.place.Standing == coord.Halted)
}

// exit sees to a process that has ended.
func (s *slot) exit(life context.Context, stopping bool) (over bool, err error) {
	p := s.proc
	exit := p.Exit()
	if r := s.rank.Load(); r >= 0 {
		exit.Rank = int(r)
	}
	s.proc, s.stuck = nil, false
	s.serial++
	if s.conn != nil {
		s.conn.Close()
		s.conn = nil
	}
	s.gone()
	s.n.tell(Event{Kind: Exited, Slot: s.name(), Pid: exit.Pid, Exit: exit})
	if exit.OK() && s.why == "" || s.ended {
		s.ended = true
		if !s.n.cfg.Follow && s.reg != nil && !stopping && s.place.Standing == coord.Active {
			s.reg.Note(done) // its place stays its own until all are done, so that nobody's rank changes
			return false, nil
		}
		return true, nil
	}
	if s.n.cfg.Follow {
		s.drop(life, exit.String())
		s.addr = ""
	}
	if stopping {
		return true, nil
	}
	if s.why == "" {
		s.restarts++
		if s.n.cfg.Policy.Together { // ranks that failed with this one are not counted again
			s.restarts = s.running.Restarts + 1
		}
		if s.restarts > s.n.cfg.Restarts {
			last := p.Wait() // for its last words
			last.Rank = exit.Rank
			s.drop(life, exit.String())
			s.n.tell(Event{Kind: GaveUp, Slot: s.name(), Pid: exit.Pid, Exit: exit, Text: gaveUp(s.restarts, s.n.cfg.Restarts)})
			return true, &launch.Failure{Exit: last, Ranks: len(s.n.slots)}
		}
	}
	if s.n.cfg.Follow {
		return false, s.start(nil)
	}
	// Its place stays its own, and no rank changes.
	switch {
	case !s.n.cfg.Policy.Together:
		// Others may be about to fail for the same reason, so all begin a little later.
		s.due = time.Now().Add(s.n.cfg.Settle)
	case s.why == "" && s.reg != nil:
		s.reg.Failed(exit.String())
	}
	return false, nil
}

// gaveUp says why a slot stays empty.
func gaveUp(failed, allowed int) string {
	if allowed == 0 {
		return "it failed, and --max-restarts is 0"
	}
	return fmt.Sprintf("it failed after %d restarts, and --max-restarts is %d", failed-1, allowed)
}

// finish ends what is left of the slot.
func (s *slot) finish(life context.Context) {
	if s.proc != nil {
		s.proc.Kill()
		s.proc.Wait()
		s.gone()
	}
	close(s.over)
	if s.conn != nil {
		s.conn.Close()
	}
	if s.forget != nil {
		s.forget()
	}
	if s.reg != nil {
		ctx, cancel := context.WithTimeout(life, 2*time.Second)
		defer cancel()
		if s.ended && !s.left {
			s.reg.AskToLeave(done)
		}
		_ = s.reg.Leave(ctx) // or its lease ends
	}
	if s.ended && !s.left && s.n.cfg.Follow {
		s.n.Stop() // the others stop after the same step, and who has no part in it has none any more
	}
	if s.port != nil {
		s.port.Release()
	}
	told := make(chan struct{})
	go func() {
		defer close(told)
		s.dropping.Wait()
	}()
	timer := time.NewTimer(2 * time.Second)
	defer timer.Stop()
	select {
	case <-told:
	case <-timer.C: // the coordinator is away; leases end
	}
}
