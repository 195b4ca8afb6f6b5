package cost

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
	"github.com/weft-fabric/weft/model/unit"
)

// Replay is how long a program takes for a larger buffer of the given size if its
// messages go over the links: the interpreter runs it with times for messages.
// hosts says on which host each rank is; nil means all on one. After LogGP, a
// message of b bytes takes
//
//	Post + b*Beta   of a core of the sender
//	b*Wire          of the way out of its host, while it is sent
//	Alpha           on the way
//	b*Wire          of the way into the receiver's host, at the same time unless others come there
//	Post + b*Beta   of a core of the receiver, from its first byte on, and the memory traffic of adding
//
// (Alexandrov, Ionescu, Schauser and Scheiman 1995). Chunks are no smaller than
// a cache line while there are lines to go round, as comm cuts them: a buffer of
// one line is the first chunk, and what is empty is not sent, unless all is (of a
// barrier or no bytes). Chunks longer than Run go in as many messages as there are
// runs. The input of an all-reduce is copied once, by the program or, in place, by
// comm, which keeps what is overwritten until nothing can fail any more. A program
// takes the longest chain of these, and no less than any host's cores and its ways in and out
// need for all they have to do, and more where ranks share cores (end); channels of a
// rank run side by side as far as it has cores. None of it depends on the order in which the interpreter takes the ranks.
func (l *Links) Replay(p *sched.Program, bytes unit.Bytes, hosts []int) (Replayed, error) {
	all, err := l.Curve(p, []unit.Bytes{bytes}, hosts, nil)
	if err != nil {
		return Replayed{}, err
	}
	return all[0], nil
}

// ErrSlower is a program that takes longer than asked for at every size.
var ErrSlower = errors.New("slower at every size")

// Curve replays a program for several sizes at once, which for a dozen of them
// takes about a quarter longer than for one.
//
// within is a time for each size, the longest for any time, or nil. Once it is certain that the program takes longer at all sizes, the
// replay ends with ErrSlower. What makes it certain is work of cores, use of the way out and the chain of messages without their bytes:
// none of them becomes less if the program is cut into pieces or given more channels.
func (l *Links) Curve(p *sched.Program, sizes []unit.Bytes, hosts []int, within []unit.Time) ([]Replayed, error) {
	if p.Switches > 0 {
		return nil, fmt.Errorf("%s: these links have no computing switches", p.Name)
	}
	if hosts != nil && len(hosts) != p.Ranks {
		return nil, fmt.Errorf("%s: hosts of %d ranks for %d", p.Name, len(hosts), p.Ranks)
	}
	for r, h := range hosts {
		if h < 0 || h >= p.Ranks {
			return nil, fmt.Errorf("%s: rank %d is on host %d; hosts count from 0, and there are at most as many as ranks", p.Name, r, h)
		}
	}
	w := newWalk(l, p, sizes, hosts)
	for _, t := range within {
		us := t.Microseconds()
		if t == math.MaxInt64 { // what no Time can hold is no slower
			us = math.Inf(1)
		}
		w.within = append(w.within, us)
	}
	if err := step.Run(p, w.do); err != nil {
		return nil, err
	}
	return w.end(), nil
}

// Replayed is a program's time, and what it is made of.
type Replayed struct {
	Time  unit.Time
	Chain unit.Time // the longest chain of messages and of what ranks do between them, and no less than a rank's work
	Cores unit.Time // what the cores of the busiest host need for everything
	Wire  unit.Time // what the way in or out of the busiest host needs

	Period unit.Time // from one call to the next at least, if many follow one another: what the busiest rank does, or Cores, or Wire
}

// Limit names what bounds the time.
func (r Replayed) Limit() string {
	switch max(r.Chain, r.Cores, r.Wire) {
	case r.Chain:
		return "the chain of messages"
	case r.Cores:
		return "a host's cores"
	}
	return "the wire of a host"
}

// walk is a replay: when each thread is free again, and what everybody has to
// do in all, in us. All times are lists, one number for each size.
type walk struct {
	l       *Links
	p       *sched.Program
	sizes   int       // twice as many as are asked for
	chunk   []float64 // bytes of a chunk that is not empty
	full    []int64   // by size: chunks of a block that are not empty
	runs    []float64 // by size: messages of a chunk
	per     int64     // chunks of a block
	touch   []float64 // us to add up or copy a byte
	copies  bool      // the input is copied whatever the program does, and that is in the times from the start
	host    []int
	on      []int           // by host: its ranks
	thread  [][][]float64   // by rank and channel
	left    [][][]float64   // by rank and channel: when its last message was out of the host
	came    [][][]float64   // by rank and channel: when the last message was in the host that it received from another
	past    [][][][]float64 // thread after each action, where a channel waits for another
	rank    [][]float64     // by rank: work of cores
	work    [][]float64     // by host: work of cores
	out, in [][]float64     // by host: work of its ways out and in
	letters []sent          // that were taken
	within  []float64       // by size: the time that is asked for; nil if none is
	slower  int             // the sizes before this one take longer
}

// sent is a message under way: when its first byte and its last can be taken.
type sent struct{ first, last []float64 }

func newWalk(l *Links, p *sched.Program, sizes []unit.Bytes, hosts []int) *walk {
	n := 2 * len(sizes) // the second half is the same without the time of bytes
	w := &walk{l: l, p: p, sizes: n, host: hosts, chunk: make([]float64, n), touch: make([]float64, n), full: make([]int64, n),
		runs: make([]float64, n)}
	if hosts == nil {
		w.host = make([]int, p.Ranks)
	}
	for _, h := range w.host {
		for h >= len(w.on) {
			w.on = append(w.on, 0)
		}
		w.on[h]++
	}
	w.per = int64(max(p.NumChunks(sched.In), p.NumChunks(sched.Out), 1))
	blocks := 1.0
	if p.Op.Blocks() {
		blocks = float64(p.Ranks)
		w.per /= int64(p.Ranks)
	}
	for k, bytes := range sizes {
		w.full[k], w.runs[k] = w.per, 1
		if s := float64(bytes); s > 0 {
			block := s / blocks
			w.chunk[k] = max(block/float64(w.per), min(block, line))
			if l.Run > 0 {
				w.runs[k] = max(1, math.Ceil(w.chunk[k]/float64(l.Run)))
			}
			// Two loads and a store a byte summed; a load, a store and the load that
			// the store causes a byte copied. What a rank passes over is about S, and
			// no less than a chunk of every sort.
			s = w.chunk[k] * float64(w.per) * blocks
			w.touch[k] = l.memory(3*s, slices.Max(w.on)) / s
			if p.NumChunks(sched.Tmp) == 0 { // chunks that pass through scratch are all of one length
				w.full[k] = min(w.per, int64(math.Ceil(block/line)))
			}
		}
		w.full[len(sizes)+k], w.runs[len(sizes)+k] = w.full[k], 1
	}
	w.out, w.in, w.work, w.rank = w.lists(len(w.on)), w.lists(len(w.on)), w.lists(len(w.on)), w.lists(p.Ranks)
	w.thread, w.left, w.past = make([][][]float64, p.Ranks), make([][][]float64, p.Ranks), make([][][][]float64, p.Ranks)
	w.came = make([][][]float64, p.Ranks)
	for r := range p.Ranks {
		w.thread[r], w.left[r], w.came[r] = w.lists(p.Channels()), w.lists(p.Channels()), w.lists(p.Channels())
		if waits(p) {
			w.past[r] = make([][][]float64, p.Channels())
		}
		if w.copies = p.Op == sched.AllReduce && p.Ranks > 1; w.copies {
			for k, chunk := range w.chunk {
				cost := chunk * float64(w.full[k]) * w.touch[k]
				w.rank[r][k], w.work[w.host[r]][k] = cost, w.work[w.host[r]][k]+cost
				for _, thread := range w.thread[r] {
					thread[k] = cost / float64(p.Channels())
				}
			}
		}
	}
	return w
}

// line is the size in bytes of a cache line.
const line = 64

// count is how many of some chunks are not empty, for the k-th size. first and last are where the chunks begin and
// end: the block, and how far into it.
func (w *walk) count(c step.Chunks, first, last [2]int64, k int) float64 {
	full := w.full[k]
	if full == w.per || c.Buf == sched.Tmp {
		return float64(c.Count)
	}
	return float64((last[0]-first[0])*full + min(last[1], full) - min(first[1], full))
}

// lists makes n lists of times.
func (w *walk) lists(n int) [][]float64 {
	all, flat := make([][]float64, n), make([]float64, n*w.sizes)
	for i := range all {
		all[i] = flat[i*w.sizes : (i+1)*w.sizes]
	}
	return all
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

// do carries an action out.
func (w *walk) do(r sched.Rank, a *step.Action, m sent) (sent, error) {
	now := w.thread[r][a.Channel]
	if w.past[r] != nil {
		defer func() { w.past[r][a.Channel] = append(w.past[r][a.Channel], slices.Clone(now)) }()
	}
	if a.Op == sched.Wait {
		if a.Done > 0 {
			for k, t := range w.past[r][a.On][a.Done-1] {
				now[k] = max(now[k], t)
			}
		}
		return sent{}, nil
	}
	h := w.host[r]
	rank, work := w.rank[r], w.work[h]
	chunks := a.Src
	if !a.Op.Reads() {
		chunks = a.Dst
	}
	var from, to *Link
	var far, afar bool // to or from another host
	var letter sent
	if a.Op.Receives() {
		from, afar = w.between(a.From, r)
	}
	if a.Op.Sends() {
		to, far = w.between(r, a.To)
		letter = w.letter()
	}
	end := chunks.Index + chunks.Count
	starts, ends := [2]int64{chunks.Index / w.per, chunks.Index % w.per}, [2]int64{end / w.per, end % w.per}
	for k, chunk := range w.chunk {
		count := w.count(chunks, starts, ends, k)
		if count == 0 {
			if to != nil {
				letter.first[k], letter.last[k] = 0, 0
			}
			continue
		}
		b, begin, runs := count*chunk, now[k], w.runs[k]
		if from != nil {
			begin = max(begin, m.first[k])
			last := m.last[k]
			if afar {
				came := &w.came[r][a.Channel][k]
				*came = max(last, *came+b*from.Wire)
				last = *came
				w.in[h][k] += b * from.Wire
			}
			now[k] = max(begin+runs*from.Post+b*from.Beta, last+from.Post)
			rank[k] += runs*from.Post + b*from.Beta
			work[k] += runs*from.Post + b*from.Beta
		}
		cost := 0.0
		if a.Op.Reduces() || a.Op == sched.Copy && !(w.copies && a.Src.Buf == sched.In) {
			cost = b * w.touch[k]
		}
		first := 0.0
		if to != nil {
			first = now[k] + cost + to.Post
			cost += runs*to.Post + b*to.Beta
		}
		now[k], rank[k], work[k] = now[k]+cost, rank[k]+cost, work[k]+cost
		if to == nil {
			continue
		}
		last := now[k]
		if far {
			left := &w.left[r][a.Channel][k]
			first = max(first, *left)
			*left = first + b*to.Wire
			last = max(last, *left)
			w.out[h][k] += b * to.Wire
		}
		letter.first[k], letter.last[k] = first+to.Alpha, last+to.Alpha
	}
	if from != nil {
		w.letters = append(w.letters, m)
	}
	if w.within != nil && w.lost(h, now) {
		return letter, ErrSlower
	}
	return letter, nil
}

// lost reports whether the program takes longer than asked for at all sizes, by what host h and one of its threads
// have done so far. Times only grow, so that a size that is lost stays so.
func (w *walk) lost(h int, thread []float64) bool {
	have := float64(max(w.l.Cores, 1))
	for ; w.slower < len(w.within); w.slower++ {
		k := w.slower
		if max(w.work[h][k]/have, w.out[h][k], w.in[h][k], thread[len(w.within)+k]) <= w.within[k] {
			return false
		}
	}
	return true
}

// letter is a message to fill in.
func (w *walk) letter() sent {
	if k := len(w.letters) - 1; k >= 0 {
		l := w.letters[k]
		w.letters = w.letters[:k]
		return l
	}
	both := make([]float64, 2*w.sizes)
	return sent{both[:w.sizes], both[w.sizes:]}
}

// end adds up. Where ranks share cores, some work while others wait; but a rank whose
// message has come may have to wait for a core, so that the chain of messages without
// their bytes adds its part, as far as cores are busy and all of it as ranks become many.
func (w *walk) end() []Replayed {
	idle := 0.0
	for _, on := range w.on {
		idle = max(idle, 1-w.l.Own(on))
	}
	list := make([]Replayed, w.sizes/2)
	for k := range list {
		chain, bare, cores, wire, busy := 0.0, 0.0, 0.0, 0.0, 0.0
		for r, threads := range w.thread {
			for _, t := range threads {
				chain, bare = max(chain, t[k]), max(bare, t[len(list)+k])
			}
			own := min(max(int(w.l.Own(w.on[w.host[r]])), 1), len(threads))
			chain, busy = max(chain, w.rank[r][k]/float64(own)), max(busy, w.rank[r][k])
		}
		for h := range w.work {
			cores, wire = max(cores, w.work[h][k]/w.l.Own(1)), max(wire, w.out[h][k], w.in[h][k])
		}
		list[k] = Replayed{Time: Span(max(chain, cores, wire) + idle*min(bare, cores)), Chain: Span(chain), Cores: Span(cores), Wire: Span(wire),
			Period: Span(max(busy, cores, wire))}
	}
	return list
}
