package tune

import (
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/sched/step"
	"github.com/weft-fabric/weft/unit"
)

// Replay is how long a program takes for a larger buffer of so many bytes if its
// messages go over the links: the interpreter runs it with times for messages.
// hosts says on which host each rank is; nil means all on one. After LogGP, a
// message of b bytes takes
//
//	Post + b*Beta   of a core of the sender
//	b*Wire          of the way out of its host
//	Alpha           on the way
//	Post + b*Beta   of a core of the receiver, and the memory traffic of adding
//
// (Alexandrov, Ionescu, Schauser and Scheiman 1995). The result is the longest
// chain of these, and no less than what any rank, any host's cores and any
// host's way out need for all they have to do; so it does not depend on the
// order in which the interpreter takes the ranks.
func (l *Links) Replay(p *sched.Program, bytes unit.Bytes, hosts []int) (unit.Time, error) {
	if p.Switches > 0 {
		return 0, fmt.Errorf("%s: switches that compute are no part of these links", p.Name)
	}
	if hosts != nil && len(hosts) != p.Ranks {
		return 0, fmt.Errorf("%s: hosts of %d ranks for %d", p.Name, len(hosts), p.Ranks)
	}
	for r, h := range hosts {
		if h < 0 || h >= p.Ranks {
			return 0, fmt.Errorf("%s: rank %d is on host %d; hosts count from 0 and are no more than ranks", p.Name, r, h)
		}
	}
	w := newWalk(l, p, bytes, hosts)
	if err := step.Run(p, w.do); err != nil {
		return 0, err
	}
	return span(w.end()), nil
}

// walk is a replay: when each thread is free again, and what everybody has to
// do in all, in us.
type walk struct {
	l      *Links
	p      *sched.Program
	chunk  float64 // bytes of a chunk
	touch  float64 // us to add up or copy a byte
	host   []int
	on     []int         // by host: its ranks
	thread [][]float64   // by rank and channel
	left   [][]float64   // by rank and channel: when its last message was out of the host
	past   [][][]float64 // thread after each action, where a channel waits for another
	rank   []float64     // by rank: work of cores
	work   []float64     // by host: work of cores
	out    []float64     // by host: work of its way out
}

func newWalk(l *Links, p *sched.Program, bytes unit.Bytes, hosts []int) *walk {
	s := max(float64(bytes), 0)
	w := &walk{l: l, p: p, host: hosts, chunk: s / float64(max(p.NumChunks(sched.In), p.NumChunks(sched.Out), 1))}
	if hosts == nil {
		w.host = make([]int, p.Ranks)
	}
	for _, h := range w.host {
		for h >= len(w.on) {
			w.on = append(w.on, 0)
		}
		w.on[h]++
	}
	if s > 0 {
		// Two loads and a store a byte summed; a load, a store and the load that
		// the store causes a byte copied. What a rank passes over is about S.
		w.touch = l.memory(3*s, slices.Max(w.on)) / s
	}
	w.out, w.work, w.rank = make([]float64, len(w.on)), make([]float64, len(w.on)), make([]float64, p.Ranks)
	w.thread, w.left, w.past = make([][]float64, p.Ranks), make([][]float64, p.Ranks), make([][][]float64, p.Ranks)
	for r := range p.Ranks {
		w.thread[r], w.left[r] = make([]float64, p.Channels()), make([]float64, p.Channels())
		if waits(p) {
			w.past[r] = make([][]float64, p.Channels())
		}
	}
	return w
}

// waits reports whether a channel of the program waits for another.
func waits(p *sched.Program) bool {
	var in func(body []sched.Stmt) bool
	in = func(body []sched.Stmt) bool {
		for _, s := range body {
			if s.Step != nil && s.Step.Op == sched.Wait || s.Loop != nil && in(s.Loop.Body) || s.If != nil && (in(s.If.Then) || in(s.If.Else)) {
				return true
			}
		}
		return false
	}
	for _, g := range p.Groups {
		if in(g.Body) {
			return true
		}
	}
	return false
}

// between is the link of two ranks.
func (w *walk) between(a, b sched.Rank) (l *Link, far bool) {
	if w.host[a] == w.host[b] || w.l.Far == (Link{}) {
		return &w.l.Near, false
	}
	return &w.l.Far, true
}

// do carries an action out; a message is the time at which it can be taken.
func (w *walk) do(r sched.Rank, a *step.Action, arrived float64) (float64, error) {
	now := &w.thread[r][a.Channel]
	if w.past[r] != nil {
		defer func() { w.past[r][a.Channel] = append(w.past[r][a.Channel], *now) }()
	}
	if a.Op == sched.Wait {
		if a.Done > 0 {
			*now = max(*now, w.past[r][a.On][a.Done-1])
		}
		return 0, nil
	}
	b, cost := float64(a.Count)*w.chunk, 0.0
	if a.Op.Receives() {
		from, _ := w.between(a.From, r)
		cost += from.Post + b*from.Beta
		*now = max(*now, arrived)
	}
	if a.Op.Reduces() || a.Op == sched.Copy {
		cost += b * w.touch
	}
	h := w.host[r]
	var to *Link
	far := false
	if a.Op.Sends() {
		to, far = w.between(r, a.To)
		cost += to.Post + b*to.Beta
	}
	*now += cost
	w.rank[r] += cost
	w.work[h] += cost
	if to == nil {
		return 0, nil
	}
	sent := *now
	if far {
		left := &w.left[r][a.Channel]
		*left = max(*left, sent) + b*to.Wire
		w.out[h] += b * to.Wire
		sent = *left
	}
	return sent + to.Alpha, nil
}

// end is when the last thread is done, and no less than what the busiest rank,
// cores and way out need.
func (w *walk) end() float64 {
	last := 0.0
	for r, threads := range w.thread {
		for _, t := range threads {
			last = max(last, t)
		}
		cores := min(max(w.l.Cores/w.on[w.host[r]], 1), len(threads))
		last = max(last, w.rank[r]/float64(cores))
	}
	for h := range w.work {
		last = max(last, w.work[h]/float64(max(w.l.Cores, 1)), w.out[h])
	}
	return last
}
