package chakra

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/heap"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/sim"
)

// Machine is what traces run on.
type Machine struct {
	Graph   *topo.Graph
	GPUs    []topo.NodeID // of each rank
	Options sim.Options

	// A computation of which the trace does not say how long it takes needs
	// operations/Peak or bytes/Memory seconds, whichever is longer.
	Peak, Memory float64 // operations and bytes a second; 0 for unknown

	Progress func(done, all int)
}

// Result is when everything ran. Its JSON keys are stable.
type Result struct {
	Time  float64      `json:"time_s"`
	Ranks []RankResult `json:"ranks"`
	Calls []CallResult `json:"calls"` // kinds of collectives, longest in total first
}

// RankResult is how a rank spent the time.
type RankResult struct {
	Rank    int     `json:"rank"`
	End     float64 `json:"end_s"`
	Compute float64 `json:"compute_s"`
	Comm    float64 `json:"comm_s"`    // transfers under way
	Exposed float64 `json:"exposed_s"` // transfers under way or waited for while nothing is computed
	Waited  float64 `json:"waited_s"`  // for other ranks to come to a transfer
}

// CallResult is what equal collectives of sister groups took.
type CallResult struct {
	Op      string  `json:"op"`
	Bytes   float64 `json:"bytes"` // the larger of input and output
	Ranks   int     `json:"ranks"`
	Groups  int     `json:"groups"` // sister groups that call at once
	Calls   int     `json:"calls"`
	Each    float64 `json:"each_s"` // the slowest group's
	Algo    string  `json:"algo"`
	Limit   string  `json:"limit"`
	seconds []float64
}

// Run runs the traces of all ranks. Computations of a rank go one after the other, those of
// its processor apart from those of its GPU; collectives of a group go one after the other.
// A collective begins when all its ranks have come to it, a message when it is sent. Sister groups, which have as many
// ranks each and share none, are taken to call at once: they share the fabric's links.
func Run(traces []*Trace, groups Groups, m Machine) (*Result, error) {
	w, err := newWorld(traces, groups, m)
	if err != nil {
		return nil, err
	}
	return w.run()
}

// stream is what runs one node at a time on a rank.
type stream struct {
	rank int
	name string
}

type job struct {
	rank  int
	node  *Node
	left  int   // nodes that must end before it
	after []int // nodes that wait for it
	begun bool
}

// call is a transfer that ranks come to.
type call struct {
	key   string
	nodes []int // of those that have come
	want  int
	there float64 // of a message that was sent: when its bytes are there
}

type world struct {
	m      Machine
	jobs   []job
	queue  map[stream][]int // ready nodes, lowest id first
	moved  map[stream]bool  // may have something to begin
	busy   map[stream]bool
	events heap.Heap[moment]
	now    float64
	done   int
	open   map[string]*call
	turn   map[string]int // by group, rank and pair: transfers begun
	groups Groups
	sister map[string][]string // by group: its family
	prices map[priceKey]*CallResult
	spent  []RankResult
	active []map[byte]int // by rank: kinds under way
	since  []float64
}

type priceKey struct {
	family string
	op     sched.Collective
	bytes  uint64
}

type moment struct {
	at    float64
	order int
	nodes []int
}

// Before orders by time, then by node.
func (x moment) Before(y moment) bool { return cmp.Or(cmp.Compare(x.at, y.at), x.order-y.order) < 0 }

// everybody is the group of a collective that names none.
const everybody = ""

func newWorld(traces []*Trace, groups Groups, m Machine) (*world, error) {
	n := len(traces)
	if n == 0 {
		return nil, fmt.Errorf("there is no trace")
	}
	if len(m.GPUs) < n {
		return nil, fmt.Errorf("%d ranks have traces; the cluster has %d GPUs", n, len(m.GPUs))
	}
	w := &world{m: m, queue: map[stream][]int{}, moved: map[stream]bool{}, busy: map[stream]bool{}, open: map[string]*call{},
		turn:   map[string]int{},
		groups: Groups{}, prices: map[priceKey]*CallResult{}, spent: make([]RankResult, n), since: make([]float64, n)}
	all := make([]int, n)
	for i := range all {
		all[i] = i
		w.active = append(w.active, map[byte]int{})
		w.spent[i].Rank = i
	}
	w.groups[everybody] = all
	for name, ranks := range groups {
		for _, r := range ranks {
			if r >= n {
				return nil, fmt.Errorf("group %q has rank %d; there are traces of %d ranks", name, r, n)
			}
		}
		w.groups[name] = ranks
	}
	w.sister = families(w.groups)
	for r, t := range traces {
		if t.Rank != r {
			return nil, fmt.Errorf("there is no trace of rank %d", r)
		}
		at := map[uint64]int{}
		first := len(w.jobs)
		for i := range t.Nodes {
			at[t.Nodes[i].ID] = len(w.jobs)
			w.jobs = append(w.jobs, job{rank: r, node: &t.Nodes[i]})
		}
		for i := first; i < len(w.jobs); i++ {
			j := &w.jobs[i]
			for _, d := range slices.Concat(j.node.Control, j.node.Data) {
				w.jobs[at[d]].after = append(w.jobs[at[d]].after, i)
				j.left++
			}
			if j.node.Kind == Collect {
				if ranks, ok := w.groups[j.node.Group]; !ok {
					return nil, fmt.Errorf("rank %d, node %d (%s): group %q is not in the file of groups; give it by --groups",
						r, j.node.ID, j.node.Name, j.node.Group)
				} else if !slices.Contains(ranks, r) {
					return nil, fmt.Errorf("rank %d, node %d (%s): the rank is not in group %q", r, j.node.ID, j.node.Name, j.node.Group)
				}
			}
			if (j.node.Kind == Send || j.node.Kind == Recv) && (j.node.Peer >= int64(n) || j.node.Peer == int64(r)) {
				return nil, fmt.Errorf("rank %d, node %d (%s): its peer is rank %d of %d", r, j.node.ID, j.node.Name, j.node.Peer, n)
			}
		}
	}
	return w, nil
}

// families finds the groups that have as many ranks each and share none.
func families(groups Groups) map[string][]string {
	var all [][]string
	var taken []map[int]bool
next:
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		ranks := groups[name]
		for i, f := range all {
			if len(groups[f[0]]) != len(ranks) || slices.ContainsFunc(ranks, func(r int) bool { return taken[i][r] }) {
				continue
			}
			all[i] = append(f, name)
			for _, r := range ranks {
				taken[i][r] = true
			}
			continue next
		}
		all = append(all, []string{name})
		taken = append(taken, map[int]bool{})
		for _, r := range ranks {
			taken[len(taken)-1][r] = true
		}
	}
	of := map[string][]string{}
	for _, f := range all {
		for _, name := range f {
			of[name] = f
		}
	}
	return of
}

func (w *world) run() (*Result, error) {
	for i := range w.jobs {
		if w.jobs[i].left == 0 {
			w.makeReady(i)
		}
	}
	if err := w.begin(); err != nil {
		return nil, err
	}
	for w.events.Len() > 0 {
		e := w.events.Pop()
		w.now = e.at
		for _, i := range e.nodes {
			w.end(i)
		}
		if err := w.begin(); err != nil {
			return nil, err
		}
	}
	if w.done < len(w.jobs) {
		return nil, w.stuck()
	}
	if keys := slices.Sorted(maps.Keys(w.open)); len(keys) > 0 {
		return nil, fmt.Errorf("%s is sent and never received (node %d of rank %d); %d messages are so",
			keys[0], w.jobs[w.open[keys[0]].nodes[0]].node.ID, w.jobs[w.open[keys[0]].nodes[0]].rank, len(keys))
	}
	res := &Result{Ranks: w.spent}
	for _, r := range w.spent {
		res.Time = max(res.Time, r.End)
	}
	for _, p := range w.prices {
		res.Calls = append(res.Calls, *p)
	}
	slices.SortFunc(res.Calls, func(a, b CallResult) int {
		return cmp.Or(cmp.Compare(b.Each*float64(b.Calls), a.Each*float64(a.Calls)), cmp.Compare(a.Op, b.Op), cmp.Compare(a.Bytes, b.Bytes))
	})
	return res, nil
}

func (w *world) streamOf(j *job) stream {
	switch n := j.node; {
	case n.Kind == Collect:
		return stream{j.rank, "group " + n.Group}
	case n.Kind == Send:
		return stream{j.rank, fmt.Sprintf("to %d", n.Peer)}
	case n.Kind == Recv:
		return stream{j.rank, fmt.Sprintf("from %d", n.Peer)}
	case n.CPU:
		return stream{j.rank, "processor"}
	}
	return stream{j.rank, "GPU"}
}

func (w *world) makeReady(i int) {
	j := &w.jobs[i]
	s := w.streamOf(j)
	q := w.queue[s]
	at, _ := slices.BinarySearchFunc(q, j.node.ID, func(k int, id uint64) int { return cmp.Compare(w.jobs[k].node.ID, id) })
	w.queue[s] = slices.Insert(q, at, i)
	w.moved[s] = true
}

// begin starts what can start now.
func (w *world) begin() error {
	var free []stream
	for s := range w.moved {
		if len(w.queue[s]) > 0 && !w.busy[s] {
			free = append(free, s)
		}
	}
	clear(w.moved)
	slices.SortFunc(free, func(a, b stream) int { return cmp.Or(a.rank-b.rank, strings.Compare(a.name, b.name)) })
	for _, s := range free {
		i := w.queue[s][0]
		w.queue[s] = w.queue[s][1:]
		if len(w.queue[s]) == 0 {
			delete(w.queue, s)
		}
		w.busy[s] = true
		j := &w.jobs[i]
		j.begun = true
		var err error
		switch j.node.Kind {
		case Collect:
			err = w.come(i)
		case Send, Recv:
			err = w.meet(i)
		default:
			w.note(j.rank, 'c', 1)
			w.finishAt(w.now+w.seconds(j.node), i)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *world) finishAt(at float64, nodes ...int) {
	w.events.Push(moment{at, nodes[0], nodes})
}

// seconds is how long a node takes that needs no other rank.
func (w *world) seconds(n *Node) float64 {
	if n.Duration > 0 {
		return float64(n.Duration) / 1e6
	}
	t := 0.0
	if w.m.Peak > 0 {
		t = float64(n.Ops) / w.m.Peak
	}
	if w.m.Memory > 0 {
		t = max(t, float64(n.Bytes)/w.m.Memory)
	}
	return t
}

// come brings a rank to its group's next collective.
func (w *world) come(i int) error {
	j := &w.jobs[i]
	turn := fmt.Sprintf("%s\x00%d", j.node.Group, j.rank)
	key := fmt.Sprintf("collective %d of group %q", w.turn[turn], j.node.Group)
	w.turn[turn]++
	c := w.arrive(key, len(w.groups[j.node.Group]), i)
	if o := w.jobs[c.nodes[0]].node; o.Op != j.node.Op || o.Bytes != j.node.Bytes {
		return fmt.Errorf("%s: rank %d calls %s of %d bytes (node %d, %s), rank %d calls %s of %d bytes (node %d, %s)",
			key, w.jobs[c.nodes[0]].rank, opName(o.Op), o.Bytes,
			o.ID, o.Name, j.rank, opName(j.node.Op), j.node.Bytes, j.node.ID, j.node.Name)
	}
	if len(c.nodes) < c.want {
		return nil
	}
	delete(w.open, key)
	p, err := w.price(j.node)
	if err != nil {
		return fmt.Errorf("%s (node %d, %s): %w", key, j.node.ID, j.node.Name, err)
	}
	p.Calls++
	w.launch(c.nodes, w.now+p.seconds[slices.Index(w.sister[j.node.Group], j.node.Group)])
	return nil
}

// meet brings a rank to a message. A send does not wait for its receive, as in ASTRA-sim: it is done when the bytes are
// sent. A receive is done when they are there.
func (w *world) meet(i int) error {
	j := &w.jobs[i]
	from, to := j.rank, int(j.node.Peer)
	if j.node.Kind == Recv {
		from, to = to, from
	}
	pair := fmt.Sprintf("message from %d to %d, tag %d", from, to, j.node.Tag)
	turn := fmt.Sprintf("%s\x00%d", pair, j.node.Kind)
	key := fmt.Sprintf("%s, number %d", pair, w.turn[turn]+1)
	w.turn[turn]++
	c := w.arrive(key, 2, i)
	both := len(c.nodes) == 2
	if both {
		delete(w.open, key)
		if a, b := w.jobs[c.nodes[0]].node.Bytes, j.node.Bytes; a != b {
			return fmt.Errorf("%s: %d bytes at one end, %d at the other", key, a, b)
		}
	}
	if j.node.Kind == Send {
		t, err := w.message(from, to, j.node.Bytes)
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		c.there = w.now + t
		w.launch(c.nodes, c.there) // the receive, too, if it waits
	} else if both {
		w.launch([]int{i}, max(c.there, w.now))
	}
	return nil
}

func (w *world) arrive(key string, want, i int) *call {
	c := w.open[key]
	if c == nil {
		c = &call{key: key, want: want}
		w.open[key] = c
	}
	c.nodes = append(c.nodes, i)
	w.note(w.jobs[i].rank, 'w', 1)
	return c
}

// launch lets a transfer of ranks that have come begin, and says when it ends.
func (w *world) launch(nodes []int, end float64) {
	for _, i := range nodes {
		w.note(w.jobs[i].rank, 'w', -1)
		w.note(w.jobs[i].rank, 't', 1)
	}
	w.finishAt(end, slices.Clone(nodes)...)
}

func (w *world) end(i int) {
	j := &w.jobs[i]
	w.done++
	if w.m.Progress != nil && w.done%4096 == 0 {
		w.m.Progress(w.done, len(w.jobs))
	}
	kind := byte('c')
	if j.node.Kind == Collect || j.node.Kind == Send || j.node.Kind == Recv {
		kind = 't'
	}
	w.note(j.rank, kind, -1)
	w.spent[j.rank].End = w.now
	s := w.streamOf(j)
	delete(w.busy, s)
	w.moved[s] = true
	for _, k := range j.after {
		if w.jobs[k].left--; w.jobs[k].left == 0 {
			w.makeReady(k)
		}
	}
}

// note changes what a rank has under way, and books the time since the last change.
func (w *world) note(rank int, kind byte, by int) {
	a, r, t := w.active[rank], &w.spent[rank], w.now-w.since[rank]
	if a['c'] > 0 {
		r.Compute += t
	}
	if a['t'] > 0 {
		r.Comm += t
	}
	if a['w'] > 0 && a['t'] == 0 {
		r.Waited += t
	}
	if a['c'] == 0 && (a['t'] > 0 || a['w'] > 0) {
		r.Exposed += t
	}
	w.since[rank] = w.now
	a[kind] += by
}

// stuck says what waits for what.
func (w *world) stuck() error {
	keys := slices.DeleteFunc(slices.Sorted(maps.Keys(w.open)), func(k string) bool { // a message that was sent holds nobody up
		return w.jobs[w.open[k].nodes[0]].node.Kind == Send
	})
	if len(keys) == 0 {
		for _, j := range w.jobs {
			if !j.begun {
				return fmt.Errorf("rank %d: node %d (%s) waits for nodes that wait for it: the trace has a cycle", j.rank, j.node.ID, j.node.Name)
			}
		}
	}
	c := w.open[keys[0]]
	var there []int
	for _, i := range c.nodes {
		there = append(there, w.jobs[i].rank)
	}
	j := w.jobs[c.nodes[0]]
	return fmt.Errorf("nothing goes on at %.6g s: %s has ranks %v of %d, and the others do not come (node %d of rank %d, %s); %d transfers wait so",
		w.now, c.key, there, c.want, j.node.ID, j.rank, j.node.Name, len(keys))
}

var ops = map[int64]sched.Collective{AllReduce: sched.AllReduce, Reduce: sched.Reduce, AllGather: sched.AllGather, Gather: sched.Gather,
	Scatter:   sched.Scatter,
	Broadcast: sched.Broadcast, AllToAll: sched.AllToAll, ReduceScatter: sched.ReduceScatter, ReduceScatterBlock: sched.ReduceScatter,
	Barrier: sched.Barrier}

func opName(op int64) string { return ops[op].String() }

// tries are the algorithms of which the fastest is taken.
var tries = map[sched.Collective][]string{
	sched.AllReduce: {"ring", "double-binary-tree", "direct"}, sched.ReduceScatter: {"ring", "direct"}, sched.AllGather: {"ring", "direct"},
	sched.Broadcast: {"ring", "binomial"}, sched.Reduce: {"ring", "binomial"}, sched.Gather: {"direct"}, sched.Scatter: {"direct"},
	sched.AllToAll: {"pairwise", "direct"}, sched.Barrier: {"dissemination"},
}

// price simulates a collective in all groups of a family at once.
func (w *world) price(n *Node) (*CallResult, error) {
	op, family := ops[n.Op], w.sister[n.Group]
	ranks := len(w.groups[n.Group])
	key := priceKey{family[0], op, n.Bytes}
	if p := w.prices[key]; p != nil {
		return p, nil
	}
	// The format counts a rank's input, weft the larger of input and output.
	size := n.Bytes
	if op == sched.AllGather || op == sched.Gather {
		size *= uint64(ranks)
	}
	p := &CallResult{Op: op.String(), Bytes: float64(size), Ranks: ranks, Groups: len(family), seconds: make([]float64, len(family))}
	w.prices[key] = p
	if ranks == 1 || size == 0 && op != sched.Barrier {
		p.Algo = "none"
		return p, nil
	}
	for _, name := range tries[op] {
		if name == "direct" && ranks > 16 && len(tries[op]) > 1 {
			continue
		}
		r, err := w.simulate(name, op, family, unit.Bytes(size))
		if err != nil {
			return nil, err
		}
		if slowest := r.Time.Seconds(); p.Algo == "" || slowest < p.Each {
			p.Algo, p.Each, p.Limit = name, slowest, r.Limit
			for i, x := range r.Jobs {
				p.seconds[i] = (x.End - x.Start).Seconds()
			}
		}
	}
	return p, nil
}

func (w *world) simulate(name string, op sched.Collective, family []string, size unit.Bytes) (*sim.Result, error) {
	a, err := algo.Find(name)
	if err != nil {
		return nil, err
	}
	var jobs []sim.Job
	for _, f := range family {
		set := make([]topo.NodeID, len(w.groups[f]))
		for i, r := range w.groups[f] {
			set[i] = w.m.GPUs[r]
		}
		p, err := sim.Wish{}.ProgramOn(a, w.m.Graph, op, set, size)
		if err != nil {
			return nil, err
		}
		place, err := sim.PlaceOn(w.m.Graph, p, set)
		if err != nil {
			return nil, err
		}
		jobs = append(jobs, sim.Job{Program: p, Size: size, Place: place})
	}
	return sim.Run(w.m.Graph, jobs, w.m.Options)
}

// message is the time of bytes from a rank to another.
func (w *world) message(from, to int, bytes uint64) (float64, error) {
	if bytes == 0 {
		return 0, nil
	}
	name := fmt.Sprintf("message\x00%d\x00%d", from, to)
	key := priceKey{name, sched.Broadcast, bytes}
	if p := w.prices[key]; p != nil {
		p.Calls++
		return p.Each, nil
	}
	w.groups[name] = []int{from, to}
	r, err := w.simulate("binomial", sched.Broadcast, []string{name}, unit.Bytes(bytes))
	delete(w.groups, name)
	if err != nil {
		return 0, err
	}
	w.prices[key] = &CallResult{Op: fmt.Sprintf("send %d to %d", from, to), Bytes: float64(bytes), Ranks: 2, Groups: 1, Calls: 1,
		Each: r.Time.Seconds(), Algo: "message", Limit: r.Limit}
	return r.Time.Seconds(), nil
}
