// Package world is a transport in virtual time, for reproducible tests. A seed decides
// how long everything takes: the work between two calls, a message's travel, the delay
// until a death is noticed. Faults happen at a given step of a rank. Same seed and same
// code give the same run.
//
// Ranks are goroutines in a testing/synctest bubble, so every clock, timer and context
// of the code under test is virtual. One goroutine runs at a time: each transport call
// stops its rank until the scheduler resumes it. The scheduler runs what is due first
// and advances the time when nothing is.
//
// The world is as harsh as the contract allows. It writes announced messages into their
// memory as soon as they arrive, delivers pieces one step at a time, leaves half a
// message when its sender dies, and reports memory that changes before its Send has
// returned.
package world

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weft-fabric/weft/model/heap"
	"github.com/weft-fabric/weft/run/transport"
)

// Config is a run.
type Config struct {
	Seed  uint64
	Ranks int

	Think time.Duration // between two steps of a rank, at most
	Delay time.Duration // of a message, usually at most
	Tail  int           // one message in Tail takes up to 50 times as long; 0 for none

	Overlaps, Holds bool // capabilities

	Notice time.Duration // until a death or a cut is noticed, at most
	Faults []Fault
	Limit  time.Duration // of virtual time: a run that takes longer hangs
}

// Kind is a fault's.
type Kind uint8

// The faults.
const (
	Kill  Kind = iota + 1 // the rank's process ends
	Pause                 // the rank does nothing for a while
	Cut                   // the rank and its peer cannot reach each other for a while, for ever if For is 0
	Part                  // the ranks of Side and the others cannot reach one another for a while, for ever if For is 0
	Tear                  // some pairs of ranks cannot reach each other for a while, for ever if For is 0
)

// Fault happens when a rank takes a step.
type Fault struct {
	Kind Kind
	Rank int
	Peer int      // of Cut
	Side uint64   // of Part: a bit a rank
	Pair [][2]int // of Tear
	Step int      // of the rank, from 1
	For  time.Duration
}

func (f Fault) String() string {
	switch f.Kind {
	case Kill:
		return fmt.Sprintf("kill rank %d at its step %d", f.Rank, f.Step)
	case Pause:
		return fmt.Sprintf("pause rank %d for %s at its step %d", f.Rank, f.For, f.Step)
	}
	if f.Kind == Part {
		return fmt.Sprintf("part ranks %b from the others for %s at step %d of rank %d", f.Side, f.For, f.Step, f.Rank)
	}
	if f.Kind == Tear {
		return fmt.Sprintf("tear the pairs %v apart for %s at step %d of rank %d", f.Pair, f.For, f.Step, f.Rank)
	}
	return fmt.Sprintf("cut ranks %d and %d for %s at step %d of the first", f.Rank, f.Peer, f.For, f.Step)
}

// World is a run under way.
type World struct {
	cfg  Config
	base time.Time

	mu       sync.Mutex
	eps      []*Endpoint
	tasks    []*task
	mail     heap.Heap[*packet] // under way
	last     map[lineKey]int64
	sent     map[lineKey]uint64
	dead     []bool
	steps    []int
	paused   []int64 // until when, by rank
	cuts     map[[2]int]int64
	gone     map[[2]int]*loss // by observer and rank
	running  int
	news     chan struct{} // a token when something was added
	events   int
	hung     bool
	problems []string
}

// loss is a rank that another one cannot reach.
type loss struct {
	at  int64 // when it is noticed
	why transport.Gone
}

const never = int64(1) << 62

// task is a goroutine that waits for its turn.
type task struct {
	rank, key int
	due       int64       // it may go on from then on
	ready     func() bool // or once this is true; under mu
	wake      chan struct{}
}

// Result is what a run came to.
type Result struct {
	Events   int
	Steps    []int // by rank
	Dead     []bool
	Took     time.Duration // of virtual time
	Problems []string      // breaches of the contract by the code under test, hangs
}

// Run runs body once for each rank, each in a goroutine of its own.
func Run(t *testing.T, cfg Config, body func(rank int, e transport.Endpoint)) (r Result) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(cfg)
		for rank, e := range w.eps {
			go func() {
				defer w.ended()
				body(rank, e)
			}()
		}
		w.schedule()
		r = Result{Events: w.events, Steps: w.steps, Dead: w.dead, Took: time.Duration(w.now()), Problems: w.problems}
	})
	return r
}

func newWorld(cfg Config) *World {
	n := cfg.Ranks
	w := &World{cfg: cfg, base: time.Now(), last: map[lineKey]int64{}, sent: map[lineKey]uint64{}, dead: make([]bool, n),
		steps:  make([]int, n),
		paused: make([]int64, n), cuts: map[[2]int]int64{}, gone: map[[2]int]*loss{}, running: n, news: make(chan struct{}, 1)}
	for r := range n {
		w.eps = append(w.eps, &Endpoint{w: w, rank: r, mine: memory{blocks: map[uint64][]byte{}}})
	}
	return w
}

func (w *World) now() int64 { return int64(time.Since(w.base)) }

// draw is a number from 0 to most that depends on the seed and on what it is for.
func (w *World) draw(most time.Duration, what ...uint64) int64 {
	if most <= 0 {
		return 0
	}
	x := w.cfg.Seed*0x9e3779b97f4a7c15 + 1
	for _, v := range what {
		x ^= v + 0x9e3779b97f4a7c15 + x<<6 + x>>2
		x *= 0xff51afd7ed558ccd
		x ^= x >> 33
	}
	return int64(x % uint64(most+1))
}

func (w *World) ended() {
	w.mu.Lock()
	w.running--
	w.tell()
	w.mu.Unlock()
}

// tell lets the scheduler look again; the caller holds mu.
func (w *World) tell() {
	select {
	case w.news <- struct{}{}:
	default:
	}
}

// problem notes what must not happen; the caller holds mu.
func (w *World) problem(format string, args ...any) {
	w.problems = append(w.problems, fmt.Sprintf(format, args...))
}

// schedule lets one goroutine run at a time until all ranks have ended.
func (w *World) schedule() {
	for {
		synctest.Wait() // everybody waits for a turn, for time, or for another goroutine of its rank
		w.mu.Lock()
		if w.running == 0 && len(w.tasks) == 0 {
			w.mu.Unlock()
			return
		}
		now := w.now()
		if now > int64(w.cfg.Limit) && !w.hung {
			w.hung = true
			w.problem("hangs: %d ranks have not ended after %s; %s", w.running, w.cfg.Limit, w.waiting())
		}
		next := w.turn(now)
		w.mu.Unlock()
		if next > now {
			timer := time.NewTimer(time.Duration(next - now))
			select {
			case <-timer.C:
			case <-w.news: // a rank that slept did something
				timer.Stop()
			}
		}
	}
}

// waiting names the ranks that wait; the caller holds mu.
func (w *World) waiting() string {
	s := "waiting:"
	for _, t := range w.tasks {
		s += fmt.Sprintf(" rank %d (%d)", t.rank, t.key)
	}
	return s
}

// over reports whether a task need not wait any longer.
func (t *task) over(now int64) bool { return t.due <= now || t.ready != nil && t.ready() }

// turn carries out what is due first, or says when something will be; the caller
// holds mu.
func (w *World) turn(now int64) (next int64) {
	next = now + int64(10*time.Millisecond)
	if w.mail.Len() > 0 {
		p := w.mail.First()
		if p.due <= now {
			w.mail.Pop()
			w.events++
			p.deliver(w)
			return now
		}
		next = min(next, p.due)
	}
	slices.SortStableFunc(w.tasks, func(a, b *task) int {
		return cmp.Or(cmp.Compare(a.due, b.due), cmp.Compare(a.rank, b.rank), cmp.Compare(a.key, b.key))
	})
	for i, t := range w.tasks {
		until := w.paused[t.rank]
		if w.hung || until <= now && t.over(now) {
			w.tasks = slices.Delete(w.tasks, i, i+1)
			w.events++
			close(t.wake)
			return now
		}
		next = min(next, max(t.due, until))
	}
	for _, l := range w.gone { // somebody may be waiting for a death to be noticed
		if l.at > now {
			next = min(next, l.at)
		}
	}
	return next
}

// errHung ends the waits of a run that takes too long.
var errHung = errors.New("world: the run hangs")

// step stops the rank until its next turn. It is ErrClosed for a rank that died
// or left.
func (e *Endpoint) step(key int) error {
	w := e.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := e.usable(); err != nil {
		return err
	}
	w.steps[e.rank]++
	n := w.steps[e.rank]
	now := w.now()
	for _, f := range w.cfg.Faults {
		if f.Rank == e.rank && f.Step == n {
			w.fault(f, now)
		}
	}
	if err := e.usable(); err != nil {
		return err
	}
	w.sleep(e.rank, key, now+w.draw(w.cfg.Think, 1, uint64(e.rank), uint64(n)), nil)
	return e.usable()
}

// usable is nil, or why the rank can do nothing any more; the caller holds mu.
func (e *Endpoint) usable() error {
	switch {
	case e.w.hung:
		return errHung
	case e.w.dead[e.rank] || e.closed:
		return transport.ErrClosed
	}
	return nil
}

// sleep waits for a turn; the caller holds mu, which is given up meanwhile.
func (w *World) sleep(rank, key int, due int64, ready func() bool) {
	t := &task{rank: rank, key: key, due: due, ready: ready, wake: make(chan struct{})}
	w.tasks = append(w.tasks, t)
	w.tell()
	w.mu.Unlock()
	<-t.wake
	w.mu.Lock()
}

// wait waits until ready, or ends with what stop says. The caller holds mu, which
// is given up meanwhile.
func (e *Endpoint) wait(key int, ready func() bool, stop transport.Stop) error {
	w := e.w
	for {
		if err := e.usable(); err != nil {
			return err
		}
		if ready() {
			return nil
		}
		if stop != nil {
			w.mu.Unlock()
			err := stop()
			w.mu.Lock()
			if err != nil && !ready() {
				return err
			}
		}
		w.sleep(e.rank, key, w.now()+int64(10*time.Millisecond), func() bool { return e.usable() != nil || ready() })
	}
}

// fault carries out a fault; the caller holds mu.
func (w *World) fault(f Fault, now int64) {
	switch f.Kind {
	case Kill:
		w.dead[f.Rank] = true
		w.lose(f.Rank, transport.Gone{Rank: f.Rank, Why: "killed"}, now)
	case Pause:
		w.paused[f.Rank] = now + int64(f.For)
	case Cut:
		w.sever(f.Rank, f.Peer, f.For, now)
	case Tear:
		for _, p := range f.Pair {
			w.sever(p[0], p[1], f.For, now)
		}
	case Part:
		for a := range w.eps {
			for b := range a {
				if f.Side>>a&1 != f.Side>>b&1 {
					w.sever(a, b, f.For, now)
				}
			}
		}
	}
}

// sever cuts two ranks off from each other, for ever if long is 0; the caller holds mu.
func (w *World) sever(a, b int, long time.Duration, now int64) {
	until := now + int64(long)
	if long == 0 {
		until = never
		w.part(a, transport.Gone{Rank: b, Why: "no answer"}, now, true)
		w.part(b, transport.Gone{Rank: a, Why: "no answer"}, now, true)
	}
	w.cuts[[2]int{a, b}], w.cuts[[2]int{b, a}] = until, until
	for _, p := range w.mail.All() {
		p.due = max(p.due, w.cut(p.line.from, p.line.to))
	}
	w.mail.Set(w.mail.All())
}

// cut is until when nothing gets from one rank to another; the caller holds mu.
func (w *World) cut(from, to int) int64 { return w.cuts[[2]int{from, to}] }

// lose lets all others find a rank gone; the caller holds mu.
func (w *World) lose(rank int, why transport.Gone, now int64) {
	for o := range w.eps {
		if o != rank && !w.dead[o] {
			w.part(o, why, now, !why.Left)
		}
	}
}

// part lets a rank find another one gone, after what is still delivered. If lossy,
// of every line a number of the last messages is lost. The caller holds mu.
func (w *World) part(observer int, why transport.Gone, now int64, lossy bool) {
	k := [2]int{observer, why.Rank}
	if w.gone[k] != nil {
		return
	}
	at := now + w.draw(w.cfg.Notice, 2, uint64(observer), uint64(why.Rank))
	mail := w.mail.All()
	slices.SortFunc(mail, func(a, b *packet) int { return cmp.Or(a.line.compare(b.line), cmp.Compare(a.no, b.no)) })
	var lost []*packet
	cut := map[lineKey]bool{}
	for _, p := range mail {
		if p.line.from != why.Rank || p.line.to != observer {
			continue
		}
		if lossy && (cut[p.line] || w.draw(2, 3, p.line.hash(), p.no) == 0) {
			cut[p.line] = true
			lost = append(lost, p)
			continue
		}
		at = max(at, p.due)
	}
	w.mail.Set(slices.DeleteFunc(mail, func(p *packet) bool { return slices.Contains(lost, p) }))
	for _, p := range lost {
		if p.torn != nil {
			p.torn(w)
		}
	}
	w.gone[k] = &loss{at: at + 1, why: why}
}

// missing is nil, or why a rank finds another one gone by now; the caller holds mu.
func (w *World) missing(observer, rank int) *transport.Gone {
	if l := w.gone[[2]int{observer, rank}]; l != nil && l.at <= w.now() {
		g := l.why
		return &g
	}
	return nil
}
