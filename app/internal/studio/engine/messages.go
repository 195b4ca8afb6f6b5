package engine

import (
	"math"
	"slices"
	"time"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/sim"
)

// trace is what ranks did, in the form that the page draws: dots on the canvas and lanes below it.
//
// Only one rank of each class was simulated. Rank r + k·Period does what rank r does, with peers k·Period further on, so a
// dot is a function of (span, k, time) and nothing is stored for each of 131,072 ranks.
type trace struct {
	Period int   `json:"period"`
	Ranks  int   `json:"ranks"`
	Shown  []int `json:"shown"` // ranks with spans
	Cut    bool  `json:"cut"`   // there were more spans
	Gaps   []gap `json:"gaps"`  // spans of time in which the round before repeats

	// Spans by column. Path is an index in Paths by member, or -1 where nothing is sent.
	Rank    ints  `json:"rank"`
	Channel ints  `json:"channel"`
	From    ints  `json:"from"` // -1 if it receives nothing
	To      ints  `json:"to"`   // -1 if it sends nothing
	Bytes   longs `json:"bytes"`
	Begin   longs `json:"begin_ps"`
	Flow    longs `json:"flow_ps"`
	End     longs `json:"end_ps"`
	Op      ints  `json:"op"` // an index in Ops
	Pair    ints  `json:"pair"`

	Ops     []string `json:"ops"`
	Members []int    `json:"members"` // the k whose messages are drawn
	All     int      `json:"all"`     // how many there are
	// Paths are routes by pair and member: the parts that a message passes. Routes[Starts[p·len(Members)+m]:] up to the next start.
	Starts ints `json:"starts"`
	Routes ints `json:"routes"`
	Nodes  ints `json:"nodes"` // where each rank is
	// Latency is how long after its last byte left a message arrives, by pair: links, and the hand-over to a NIC.
	Latency longs `json:"latency_ps"`

	// Load is the sum over links of bytes under way by tier over time: the mean rate in each of its steps.
	LoadTiers []string    `json:"load_tiers"`
	Load      [][]float64 `json:"load"` // by tier, as a share of its links' rate
	LinkLoad  octets      `json:"link_load"`
	Chain     ints        `json:"chain"` // the critical path: spans by their number, the first one first

	passes []uint16 // by pair: the tiers of links on its path, a bit each
}

type gap struct {
	Begin  int64 `json:"begin_ps"`
	End    int64 `json:"end_ps"`
	Rounds int64 `json:"rounds"`
}

const (
	mostSpans  = 120_000
	fewSpans   = 40_000 // that ranks are chosen for, where there are many
	mostRanks  = 256
	fewRanks   = 16
	mostRoutes = 12_000 // pairs times members
	loadSteps  = 240
	whole      = 64 // GPUs up to which nothing is folded in a trace
)

// messages simulates the program once more and records its messages. An answer without them is still an answer, so a
// trace that takes too long is left out with a note.
func (j *job) messages(a *asked, f *sim.Found, out *answer) {
	o := a.o
	o.Trace, o.TraceRanks, o.Unfolded = mostSpans, mostRanks, len(a.gpus) <= whole && f.Result.Actions < mostSpans
	if r := f.Result; r.Ranks > 0 && r.Actions > 0 { // fewer ranks to the end rather than all of them for a while
		o.TraceRanks = tracedRanks(int64(r.Ranks), max(r.Actions-r.Folded, 1))
	}
	deadline := time.Now().Add(15 * time.Second)
	o.Stop = func() bool { return j.stop() || time.Now().After(deadline) }
	g := a.c.Graph
	place, err := sim.PlaceOn(g, f.Program, a.gpus[:min(len(a.gpus), f.Program.Ranks)])
	if err != nil {
		out.Notes = append(out.Notes, "The messages are not drawn: "+err.Error()+".")
		return
	}
	res, err := sim.Run(g, []sim.Job{{Program: f.Program, Size: a.size}}, o)
	if err != nil || res.Trace == nil {
		out.Notes = append(out.Notes, "The messages are not drawn: tracing them takes too long.")
		return
	}
	stretch := 1.0
	if res.Time > 0 {
		stretch = float64(out.Time) / float64(res.Time)
	}
	t := newTrace(res.Trace, f.Program, stretch)
	broken, err := sim.Without(g, o.Fail)
	if err != nil {
		return
	}
	t.routes(broken, place, o.Costs.Net)
	t.load(res, int64(out.Time))
	t.LinkLoad = t.linkLoad(out.Busy, len(g.Nodes), int64(out.Time))
	t.Chain = t.chain()
	out.Trace = t
}

// tracedRanks is how many ranks a trace shows: as many as fewSpans are enough for. A few more are worth more spans, as long as
// all of their time is shown.
func tracedRanks(ranks, actions int64) int {
	whole := mostSpans * ranks / actions * 9 / 10 // ranks do not all take the same number of steps
	return int(min(mostRanks, max(1, min(whole, max(fewRanks, fewSpans*ranks/actions)))))
}

// newTrace turns a trace into columns, which are a fraction of the size of objects in JSON. stretch scales its times to
// those of the answer.
func newTrace(s *sim.Trace, p *sched.Program, stretch float64) *trace {
	t := &trace{Period: s.Period, Ranks: p.Ranks, Cut: s.Cut, Shown: []int{}, Gaps: []gap{}}
	at := func(ps int64) int64 { return int64(float64(ps) * stretch) }
	for _, r := range s.Ranks {
		t.Shown = append(t.Shown, int(r))
	}
	for _, x := range s.Gaps {
		t.Gaps = append(t.Gaps, gap{at(int64(x.Begin)), at(int64(x.End)), x.Rounds})
	}
	names := map[sched.Op]int{}
	for _, x := range s.Spans {
		op, known := names[x.Op]
		if !known {
			op = len(t.Ops)
			names[x.Op] = op
			t.Ops = append(t.Ops, x.Op.String())
		}
		t.Rank, t.Channel = append(t.Rank, int32(x.Rank)), append(t.Channel, x.Channel)
		t.From, t.To = append(t.From, int32(x.From)), append(t.To, int32(x.To))
		t.Bytes, t.Op = append(t.Bytes, int64(x.Bytes)), append(t.Op, int32(op))
		t.Begin, t.Flow, t.End = append(t.Begin, at(int64(x.Begin))), append(t.Flow, at(int64(x.Flow))), append(t.End, at(int64(x.End)))
	}
	return t
}

// routes finds the path of every pair of ranks that exchange messages, for as many members of each class as are drawn.
func (t *trace) routes(g *topo.Graph, place []topo.NodeID, net unit.Time) {
	list := t.pairs()
	t.All = max(1, t.Ranks/max(t.Period, 1))
	draw := max(1, min(t.All, mostRoutes/max(len(list), 1)))
	for m := range draw {
		t.Members = append(t.Members, m*t.All/draw)
	}
	for i, p := range list {
		mask, wires := uint16(0), unit.Time(0)
		for _, k := range t.Members {
			t.Starts = append(t.Starts, int32(len(t.Routes)))
			from, to := t.member(p[0], k), t.member(p[1], k)
			if from >= len(place) || to >= len(place) || place[from] == place[to] {
				continue
			}
			uses := route(g, place[from], place[to], uint64(i)<<20|uint64(k))
			if mask == 0 {
				mask, wires = tiersOf(g, uses)
			}
			t.Routes = append(t.Routes, stops(g, place[from], uses)...)
		}
		if mask&(1<<sim.Leaf) != 0 {
			wires += net
		}
		t.passes, t.Latency = append(t.passes, mask), append(t.Latency, int64(wires))
	}
	t.Starts = append(t.Starts, int32(len(t.Routes)))
	for _, n := range place {
		t.Nodes = append(t.Nodes, int32(n))
	}
}

// pairs lists the senders with their receivers, and notes for each span which of them it is.
func (t *trace) pairs() (list [][2]int) {
	known := map[[2]int]int{}
	for i := range t.Rank {
		if t.To[i] < 0 {
			t.Pair = append(t.Pair, -1)
			continue
		}
		key := [2]int{int(t.Rank[i]), int(t.To[i])}
		if _, ok := known[key]; !ok {
			known[key] = len(list)
			list = append(list, key)
		}
		t.Pair = append(t.Pair, int32(known[key]))
	}
	return list
}

// member is a rank of the same class, k classes further on. Switches that compute have no class.
func (t *trace) member(rank, k int) int {
	if rank >= t.Ranks || t.Period == 0 {
		return rank
	}
	return (rank + k*t.Period) % t.Ranks
}

// route finds a message's path; nil if there is none. Programs that add in switches send to a switch, which is no end of a
// route: the path there is a link, or several by way of the NIC.
func route(g *topo.Graph, from, to topo.NodeID, key uint64) []topo.Use {
	if uses, err := g.Route(topo.Flow{From: from, To: to, Key: key}, nil); err == nil {
		return uses
	}
	if u, ok := join(g, from, to); ok {
		return []topo.Use{u}
	}
	if g.Nodes[from].Kind == topo.GPU {
		return byNIC(g, from, to)
	}
	way := byNIC(g, to, from)
	slices.Reverse(way)
	for i := range way {
		way[i].Forward = !way[i].Forward
	}
	return way
}

// byNIC is the path from a GPU through its NIC to the switch at that NIC.
func byNIC(g *topo.Graph, gpu, to topo.NodeID) []topo.Use {
	if g.Nodes[gpu].Kind != topo.GPU {
		return nil
	}
	nic := g.Near(gpu)
	if nic == topo.None {
		return nil
	}
	inner, ok := g.Inside(gpu, nic, nil)
	cable, joined := join(g, nic, to)
	if !ok || !joined {
		return nil
	}
	return append(inner, cable)
}

// join finds a link between two parts.
func join(g *topo.Graph, a, b topo.NodeID) (topo.Use, bool) {
	for _, e := range g.Edges(a) {
		if e.Peer == b {
			return topo.Use{Link: e.Link, Forward: g.Links[e.Link].A == a, Share: 1}, true
		}
	}
	return topo.Use{}, false
}

// stops lists the parts that a route passes, its ends included. Where NVSwitches stripe a message, one of them stands for all.
func stops(g *topo.Graph, from topo.NodeID, uses []topo.Use) []int32 {
	if len(uses) == 0 {
		return nil
	}
	out := []int32{int32(from)}
	at := from
	for _, u := range uses {
		a, b := g.Links[u.Link].Ends(u.Forward)
		if a == at && b != at {
			at = b
			out = append(out, int32(at))
		}
	}
	return out
}

// tiersOf is the tiers of links on a path, a bit each, and the latency of these links.
func tiersOf(g *topo.Graph, uses []topo.Use) (mask uint16, wires unit.Time) {
	at := topo.NodeID(topo.None)
	for _, u := range uses {
		mask |= 1 << tierOf(g, u.Link)
		if from, to := g.Links[u.Link].Ends(u.Forward); at == topo.None || from == at { // not the other stripes
			at = to
			wires += g.LinkLatency(u.Link)
		}
	}
	return mask, wires
}

// tierOf says which tier a link belongs to, by its lower end.
func tierOf(g *topo.Graph, id topo.LinkID) sim.Tier {
	l := &g.Links[id]
	if kind := g.Class(id).Kind; !kind.Network() {
		if kind == topo.PCIe || kind == topo.SMP {
			return sim.Host
		}
		return sim.Accelerator
	}
	a, b := &g.Nodes[l.A], &g.Nodes[l.B]
	switch low := min(a.Tier, b.Tier); {
	case a.Kind == topo.NIC || b.Kind == topo.NIC:
		return sim.Leaf
	case low <= 1:
		return sim.Spine
	}
	return sim.Core
}

// load sums up what is under way over time for each tier of links, from the flows that pass it, each at its mean rate. A
// curve is scaled so that its mean is the mean that the simulation counted.
func (t *trace) load(res *sim.Result, total int64) {
	if t.Cut { // the rest of the time would look idle
		return
	}
	for _, u := range res.Tiers() {
		sum := t.under(1<<u.Tier, total)
		mean := 0.0
		for _, v := range sum {
			mean += v / loadSteps
		}
		if mean == 0 || u.Mean == 0 {
			continue
		}
		for s := range sum {
			sum[s] = math.Round(sum[s]/mean*u.Mean*1e4) / 1e4
		}
		t.LoadTiers, t.Load = append(t.LoadTiers, u.Tier.String()), append(t.Load, sum)
	}
}

// under is the bytes under way in each step of time, of the flows that pass some tier of a mask.
func (t *trace) under(mask uint16, total int64) []float64 {
	sum := make([]float64, loadSteps)
	for i, pair := range t.Pair {
		if pair >= 0 && t.passes[pair]&mask != 0 {
			t.spread(i, total, sum)
		}
	}
	return sum
}

// spread adds a span's bytes to the steps of time in which they are under way.
func (t *trace) spread(i int, total int64, sum []float64) {
	step := float64(max(total, 1)) / float64(len(sum))
	for _, by := range t.shifts(t.End[i]) {
		from, to := float64(t.Flow[i]+by), min(float64(t.End[i]+by), float64(total))
		for s := int(from / step); s < len(sum) && float64(s)*step < to; s++ {
			sum[s] += float64(t.Bytes[i]) * (min(to, float64(s+1)*step) - max(from, float64(s)*step)) / max(to-from, 1)
		}
	}
}

// shifts are the times by which a span repeats in gaps, 0 first. A gap repeats what ended in the round before it: flows that
// are under way when it begins were recorded with the time at which they end, behind it.
func (t *trace) shifts(end int64) []int64 {
	out := []int64{0}
	for _, x := range t.Gaps {
		if x.Rounds < 1 {
			continue
		}
		round := (x.End - x.Begin) / x.Rounds
		if end <= x.Begin-round || end > x.Begin || round == 0 {
			continue
		}
		for r := int64(1); r <= min(x.Rounds, 4096); r++ {
			out = append(out, r*round)
		}
	}
	return slices.Clip(out)
}
