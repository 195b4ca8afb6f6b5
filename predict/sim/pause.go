package sim

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"github.com/weft-fabric/weft/model/heap"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// Congestion says what a lossless fabric does where more bytes come to a link than it carries.
type Congestion uint8

// The kinds of congestion control.
const (
	// FairShares gives every flow its max-min share at once and holds back nobody else.
	FairShares Congestion = iota

	// Pauses has switches pause the links that bring too much (PFC, or credits that run out), and with them all flows there.
	Pauses

	// Notices has senders slow down when switches mark their packets (DCQCN). Flows begin at the rate of their NIC, and each
	// notice halves it; until the shares are found, switches pause links.
	Notices
)

// noticeTime is the time between two notices to a sender, of DCQCN as published.
const noticeTime = 50 * unit.Microsecond

// pausing is what queues do to the rates of flows, where switches pause the links that fill them.
//
//	A ══╗              X carries the flows of A and B at half their rate, and its queue fills. The switch pauses its links, L and B's.
//	    ╠═ L ══╗       On L everything comes in the order in which it was sent: the flow of C, which does not go to X, comes at
//	C ══╝      ╠═ X    the rate of A's.
//	B ═════════╝
//
// The rates are a fixed point, found in rounds. Flows take max-min shares, in which a switch takes from its links in turn: a link
// that brings few flows gives each of them more (the parking lot). A link is paused if a flow on it is held back behind it, by a
// link that is full while none before it is. All flows on a paused link keep to the rate of the slowest of those held back, each
// as its own link before it brings them. A flow that is slowed down is held back there, so the pause spreads towards the senders.
// What a slowed flow leaves to others is shared anew, but no flow that was slowed gets faster again: with many full links on the
// ways of the same flows the rates are a little low.
type pausing struct {
	queues []bool    // by resource: a link of the network, whose packets wait for one another
	before [][]uint8 // by flow: how many links come before each of its loads
	mild   bool      // links pause only for a while after flows have begun: Notices
	since  []unit.Time
	asked  []unit.Time // when the end of a link's pauses is looked at, so that it is asked for once
	wake   []int32     // links whose end is to be asked for
	now    unit.Time

	stuck []bool    // by flow: a pause holds it back, and no full link on its way
	was   []bool    // the same until its rate was last taken note of
	lost  unit.Time // of all flows, while they were stuck

	rate, most, weight []float64 // by flow: bytes a second; what pauses leave it; how many flows it counts for
	held, slowed       []int32   // by flow: the load that holds it back; the one at which a pause does
	used, open         []float64 // by resource, while rates rise
	let                []float64 // by resource: the rate of each link before it, where it is paused; else infinite
	next               heap.Heap[filled]

	by      [][]int32   // by flow: a number for each of its loads and the link that leads there
	brings  [][][]int32 // by flow and load: numbers of the links that lead there, which differ from load to load
	beside  []int32     // by such a number: how many flows there are
	turn    uint32      // counts what weigh was asked for, so that what it counted before counts no more
	seen    []uint32    // by such a number of brings
	counted []uint32    // by resource: the turn in which links was counted
	links   []int32     // by resource: links that bring flows
	holds   []int32     // by resource: flows that it holds back
	order   []int32     // the flows of a component, by what holds them back
}

// maxSpread bounds the rounds in which pauses spread, each over at least one link.
const maxSpread = 32

// tiny is how close to each other rates are that count as the same.
const tiny = 1e-9

// hold begins to keep to pauses: it puts loads in the order of their links.
func (w *world) hold(c Congestion) {
	p := &pausing{mild: c == Notices}
	for _, tier := range w.resTier {
		p.queues = append(p.queues, tier == Leaf || tier == Spine || tier == Core)
	}
	flows := len(w.share.flows)
	p.before = make([][]uint8, flows)
	depth := make([]uint8, len(w.net.g.Nodes))
	for f := range w.share.flows {
		p.before[f] = w.steps(w.share.flows[f].loads, depth)
	}
	p.size(len(p.queues), flows)
	p.number(w.share.flows)
	w.share.pause = p
}

// size makes room for what is worked out.
func (p *pausing) size(links, flows int) {
	p.since, p.asked = make([]unit.Time, links), make([]unit.Time, links)
	p.used, p.open, p.let = make([]float64, links), make([]float64, links), make([]float64, links)
	p.counted, p.links, p.holds = make([]uint32, links), make([]int32, links), make([]int32, links)
	p.rate, p.most, p.weight = make([]float64, flows), make([]float64, flows), make([]float64, flows)
	p.held, p.slowed = make([]int32, flows), make([]int32, flows)
	p.stuck, p.was = make([]bool, flows), make([]bool, flows)
}

// steps counts the links before each load: those that lead to where it begins. Depth is room for a number by node, all of them zero.
func (w *world) steps(loads []load, depth []uint8) []uint8 {
	before := make([]uint8, len(loads))
	from, to := make([]topo.NodeID, len(loads)), make([]topo.NodeID, len(loads))
	for i, l := range loads {
		from[i], to[i] = topo.None, topo.None
		if x := w.resWire[l.res]; x >= 0 && int(x>>1) < len(w.net.g.Links) {
			from[i], to[i] = w.net.g.Links[x>>1].Ends(x&1 == 0)
		}
	}
	rise := func(i int) bool {
		before[i] = max(before[i], depth[from[i]])
		next := min(before[i], math.MaxUint8-1) + 1
		higher := next > depth[to[i]]
		depth[to[i]] = max(depth[to[i]], next)
		return higher
	}
	changed := true
	for round := 0; changed && round < len(loads); round++ { // the longest way has no more links than there are
		changed = false
		for i := range loads {
			changed = from[i] != topo.None && rise(i) || changed
		}
	}
	for _, n := range to {
		if n != topo.None {
			depth[n] = 0
		}
	}
	return before
}

// leads is a link that leads to another.
type leads struct{ by, res int32 }

// numbers gives links that lead to others a number. Flows that are spread over many ways pass the same links by the hundred, so what is
// before a link is worked out once for all flows that come to it by the same links.
type numbers struct {
	known, pairs map[leads]int32
	flows, links int32             // numbers so far: of flows' own ways with known, and of links' with pairs
	sets         map[string]int32  // links of one level of a flow
	brings       map[leads][]int32 // by such a set and the link after it
	key          []byte
}

func number(known map[leads]int32, x leads, next *int32) int32 {
	k, there := known[x]
	if !there {
		k = *next
		known[x] = k
		*next++
	}
	return k
}

// after gives the numbers of the links before one.
func (n *numbers) after(before []int32, res int32) []int32 {
	n.key = n.key[:0]
	for _, x := range before {
		n.key = binary.LittleEndian.AppendUint32(n.key, uint32(x))
	}
	set, there := n.sets[string(n.key)]
	if !there {
		set = int32(len(n.sets))
		n.sets[string(n.key)] = set
	}
	list, there := n.brings[leads{set, res}]
	if !there {
		for _, x := range before {
			list = append(list, number(n.pairs, leads{x, res}, &n.links))
		}
		n.brings[leads{set, res}] = list
	}
	return list
}

// of gives the numbers of a flow's way to a link, and of the links that it comes by.
func (n *numbers) of(come []int32, res int32) (way int32, links []int32) {
	if len(come) == 0 {
		n.links++
		links = []int32{n.links - 1}
	} else {
		links = n.after(come, res)
	}
	if len(come) == 1 {
		return number(n.known, leads{come[0], res}, &n.flows), links
	}
	n.flows++
	return n.flows - 1, links
}

// number gives each load and the link that leads there a number. A flow that begins there, or comes by several links, has one of its own.
func (p *pausing) number(flows []stream) {
	n := &numbers{known: map[leads]int32{}, pairs: map[leads]int32{}, sets: map[string]int32{}, brings: map[leads][]int32{}}
	var levels [math.MaxUint8 + 1][]int32
	for f := range flows {
		before, loads := p.before[f], flows[f].loads
		for at, l := range loads {
			levels[before[at]] = append(levels[before[at]], l.res)
		}
		list, all := make([]int32, len(loads)), make([][]int32, len(loads))
		for at, l := range loads {
			var come []int32 // none where it begins
			if before[at] > 0 {
				come = levels[before[at]-1]
			}
			list[at], all[at] = n.of(come, l.res)
		}
		for _, b := range before {
			levels[b] = levels[b][:0]
		}
		p.by, p.brings = append(p.by, list), append(p.brings, all)
	}
	p.seen = make([]uint32, n.links)
	p.beside = make([]int32, n.flows)
}

// at tells the time.
func (p *pausing) at(now unit.Time) {
	if p != nil {
		p.now = now
	}
}

// begun notes that a flow starts now.
func (p *pausing) begun(loads []load) {
	for _, l := range loads {
		p.since[l.res] = p.now
	}
}

// pauses reports whether a link whose queue fills with a number of flows pauses those before it now.
func (p *pausing) pauses(res int32, flows int) bool {
	if !p.mild {
		return true
	}
	end := p.since[res] + noticeTime*unit.Time(bits.Len(uint(flows-1)))
	if p.now >= end {
		return false
	}
	if p.asked[res] != end {
		p.asked[res] = end
		p.wake = append(p.wake, res)
	}
	return true
}

// fillPaused gives the flows of a component their rates.
func (s *sharing) fillPaused() {
	p := s.pause
	for _, f := range s.part {
		for _, k := range p.by[f] {
			p.beside[k] = 0
		}
	}
	for _, f := range s.part {
		p.most[f], p.weight[f] = math.Inf(1), 1
		for _, k := range p.by[f] {
			p.beside[k]++
		}
	}
	s.rise()
	s.takeTurns()
	for range maxSpread {
		s.rise()
		if !s.spreadPauses() {
			break
		}
	}
	for _, f := range s.part {
		p.stuck[f] = p.rate[f] >= p.most[f]*(1-tiny)
		s.set(f, max(1, int64(p.rate[f])), s.flows[f].loads[p.held[f]].res)
	}
}

// filled is a level at which a resource is full, or a flow, ^res, as fast as pauses let it be.
type filled struct {
	level float64
	res   int32
}

// Before orders them by level.
func (a filled) Before(b filled) bool {
	return a.level < b.level || a.level == b.level && a.res < b.res
}

// rise finds weighted max-min rates, none above what pauses leave.
func (s *sharing) rise() {
	p := s.pause
	for _, r := range s.queue {
		p.used[r], p.open[r] = 0, 0
	}
	for _, f := range s.part {
		p.rate[f] = -1
		for _, l := range s.flows[f].loads {
			p.open[l.res] += float64(l.share) * p.weight[f]
		}
	}
	p.next.Clear()
	for _, r := range s.queue {
		p.next.Push(filled{s.fullAt(r), r})
	}
	for _, f := range s.part {
		if p.most[f] < math.Inf(1) {
			p.next.Push(filled{p.most[f] / p.weight[f], ^f})
		}
	}
	for left := len(s.part); left > 0; {
		left -= s.fullNow()
	}
}

// fullNow ends the rise of the flows that the next links to be full hold back, and counts them.
func (s *sharing) fullNow() (frozen int) {
	p := s.pause
	level := s.nextFull()
	for _, r := range s.full { // before anything changes
		if r >= 0 {
			s.res[r].tight = s.epoch
		} else if p.rate[^r] < 0 {
			s.freeze(^r, p.slowed[^r], level)
			frozen++
		}
	}
	for _, r := range s.full {
		if r >= 0 {
			frozen += s.freezeOn(r, level)
		}
	}
	for _, r := range s.full {
		if r >= 0 {
			s.res[r].tight = 0
		}
	}
	return frozen
}

// nextFull lists in full what is full next, and gives the level.
func (s *sharing) nextFull() (level float64) {
	p := s.pause
	s.full = s.full[:0]
	for p.next.Len() > 0 {
		x := p.next.First()
		if len(s.full) > 0 && x.level > level*(1+tiny) {
			break
		}
		p.next.Pop()
		if x.res >= 0 {
			if now := s.fullAt(x.res); now > x.level*(1+tiny) { // others have left it since
				p.next.Push(filled{now, x.res})
				continue
			}
		}
		if len(s.full) == 0 {
			level = x.level
		}
		s.full = append(s.full, x.res)
	}
	return level
}

// freezeOn ends the rise of the flows on a resource that is full.
func (s *sharing) freezeOn(r int32, level float64) (frozen int) {
	for _, m := range s.res[r].on {
		if s.pause.rate[m.flow] < 0 {
			s.freeze(m.flow, s.firstFull(m.flow), level)
			frozen++
		}
	}
	return frozen
}

// fullAt is the level at which a resource is full.
func (s *sharing) fullAt(r int32) float64 {
	p := s.pause
	if p.open[r] < tiny {
		return math.Inf(1)
	}
	return max(0, float64(s.res[r].cap)*whole-p.used[r]) / p.open[r]
}

// freeze ends a flow's rise.
func (s *sharing) freeze(f, held int32, level float64) {
	p := s.pause
	p.rate[f], p.held[f] = level*p.weight[f], held
	for _, l := range s.flows[f].loads {
		p.used[l.res] += float64(l.share) * p.rate[f]
		if p.open[l.res] -= float64(l.share) * p.weight[f]; p.open[l.res] < tiny {
			p.open[l.res] = 0
		}
	}
}

// firstFull is the load of a flow that holds it back: of the links that are full, the one nearest to the sender.
func (s *sharing) firstFull(f int32) int32 {
	best := int32(-1)
	for i, l := range s.flows[f].loads {
		if s.res[l.res].tight == s.epoch && (best < 0 || s.pause.before[f][i] < s.pause.before[f][best]) {
			best = int32(i)
		}
	}
	return best
}

// takeTurns weighs flows as switches do that take from their links in turn, on the way to what holds them back. A flow that comes by
// two links has a turn on each.
func (s *sharing) takeTurns() {
	p := s.pause
	full := func(f int32) int32 { return s.flows[f].loads[p.held[f]].res }
	p.order = append(p.order[:0], s.part...)
	slices.SortFunc(p.order, func(a, b int32) int { return cmp.Or(cmp.Compare(full(a), full(b)), cmp.Compare(a, b)) })
	for first := 0; first < len(p.order); {
		last := first
		for last < len(p.order) && full(p.order[last]) == full(p.order[first]) {
			last++
		}
		s.weigh(p.order[first:last])
		first = last
	}
}

// weigh is takeTurns for the flows that one resource holds back.
func (s *sharing) weigh(flows []int32) {
	p := s.pause
	p.turn++
	for _, f := range flows {
		s.toFull(f, func(i int, l *load) {
			if p.counted[l.res] != p.turn {
				p.counted[l.res], p.links[l.res] = p.turn, 0
			}
			for _, k := range p.brings[f][i] {
				if p.seen[k] != p.turn {
					p.seen[k] = p.turn
					p.links[l.res]++
				}
			}
		})
	}
	sum := 0.0
	for _, f := range flows {
		var level [256]float64 // by links before: the part that is taken of the flow there
		s.toFull(f, func(i int, l *load) {
			level[p.before[f][i]] += float64(len(p.brings[f][i])) / float64(p.links[l.res]) * float64(l.share) / whole
		})
		for _, part := range level[:p.before[f][p.held[f]]+1] {
			if part > 0 {
				p.weight[f] *= part
			}
		}
		sum += p.weight[f]
	}
	for _, f := range flows {
		p.weight[f] *= float64(len(flows)) / sum
	}
}

// toFull visits the loads of a flow in the network, up to the one that holds it back.
func (s *sharing) toFull(f int32, visit func(i int, l *load)) {
	p := s.pause
	most := p.before[f][p.held[f]]
	for i := range s.flows[f].loads {
		if l := &s.flows[f].loads[i]; p.queues[l.res] && p.before[f][i] <= most {
			visit(i, l)
		}
	}
}

// spreadPauses slows flows on paused links down; false if none had to be.
func (s *sharing) spreadPauses() bool {
	p := s.pause
	for _, r := range s.queue {
		p.let[r], p.holds[r] = math.Inf(1), 0
	}
	for _, f := range s.part {
		p.holds[s.flows[f].loads[p.held[f]].res]++
	}
	for _, f := range s.part {
		if s.fills(f) {
			s.letIn(f)
		}
	}
	slower := false
	for _, f := range s.part {
		for i, l := range s.flows[f].loads {
			most := p.let[l.res] / float64(p.beside[p.by[f][i]]) * float64(l.share) / whole
			if most < p.rate[f]*(1-1e-6) && most < p.most[f]*(1-1e-6) {
				p.most[f], p.slowed[f], slower = most, int32(i), true
			}
		}
	}
	return slower
}

// fills reports whether a flow waits in the queue of what holds it back, so that the links before that are paused.
func (s *sharing) fills(f int32) bool {
	p := s.pause
	held := p.held[f]
	full := s.flows[f].loads[held].res
	if !p.queues[full] || p.before[f][held] == 0 {
		return false
	}
	slowed := p.rate[f] >= p.most[f]*(1-tiny) // by a pause, which spreads
	return slowed || p.pauses(full, int(p.holds[full]))
}

// letIn keeps the links before what holds a flow back to the rate at which it goes on.
func (s *sharing) letIn(f int32) {
	p := s.pause
	for i, l := range s.flows[f].loads {
		if p.queues[l.res] && p.before[f][i] < p.before[f][p.held[f]] {
			p.let[l.res] = min(p.let[l.res], p.rate[f]*float64(p.beside[p.by[f][i]])*whole/float64(l.share))
		}
	}
}

// lose counts the time for which a flow was stuck until now.
func (w *world) lose(f int32, since unit.Time) {
	p := w.share.pause
	if p == nil {
		return
	}
	if p.was[f] {
		p.lost += w.now - since
	}
	p.was[f] = p.stuck[f]
}
