package synth

import (
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/flow"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// Bound is the least time that any schedule of a collective takes on a network
// where bytes count and latency does not, and the proof.
type Bound struct {
	Op     sched.Collective
	Ranks  int
	Adds   bool      // switches may copy and add
	Exact  *big.Rat  // bytes of the larger buffer over time, in units of the network's
	Rate   unit.Rate // the same in bytes a second
	Least  *big.Rat  // a rate that is known to be reached, where it is not Exact; nil if Exact is reached
	Cut    *Cut      // what proves it; nil where Parts do
	Parts  []Cut     // disjoint sets that cover the ranks, of an all-reduce
	Why    string    // in words
	Rounds int       // of Newton's method, or of the linear program
}

// Cut is a set of nodes and what leads out of it.
type Cut struct {
	Nodes []bool // by node: inside
	Ranks []int  // inside
	Left  []int  // ranks left out
	Exit  int64  // capacity that leads out
}

// cut describes a set of nodes: its ranks, those outside, and the capacity that leaves it.
func (n *Net) cut(in []bool) *Cut {
	c := &Cut{Nodes: slices.Clone(in[:n.Nodes()])}
	for r := range n.Ranks {
		if in[r] {
			c.Ranks = append(c.Ranks, r)
		} else {
			c.Left = append(c.Left, r)
		}
	}
	for _, e := range n.Edges {
		if in[e.From] && !in[e.To] {
			c.Exit += e.Cap
		}
	}
	return c
}

func ratio(a, b int64) *big.Rat { return big.NewRat(a, b) }

// Bounds gives the least time of a collective. Root counts for the rooted ones.
func (n *Net) Bounds(op sched.Collective, root int, adds bool) (*Bound, error) {
	if n.Ranks < 2 {
		return nil, fmt.Errorf("a collective needs at least two ranks; %s has %d", n.Name, n.Ranks)
	}
	if op.Rooted() && (root < 0 || root >= n.Ranks) {
		return nil, fmt.Errorf("root %d is outside 0 to %d", root, n.Ranks-1)
	}
	if left := n.apart(); left != nil {
		return nil, fmt.Errorf("no path joins %s to the other ranks of %s", n.ranks(left), n.Name)
	}
	b := &Bound{Op: op, Ranks: n.Ranks, Adds: adds}
	var err error
	switch op {
	case sched.AllGather:
		err = b.gather(n, n, false)
	case sched.ReduceScatter:
		err = b.gather(n, n.Reversed(), true)
	case sched.Broadcast:
		err = b.spread(n, n, root, "the whole buffer must reach")
	case sched.Reduce:
		err = b.spread(n, n.Reversed(), root, "sums of the whole buffer must leave")
	case sched.Scatter:
		b.scatter(n, n, root)
	case sched.Gather:
		b.scatter(n, n.Reversed(), root)
	case sched.AllReduce:
		err = b.reduce(n)
	case sched.AllToAll, sched.SendRecv:
		b.pairs(n)
	default:
		return nil, fmt.Errorf("a %s moves no bytes, so no cut bounds it: only latency does", op)
	}
	if n.stopped() {
		return nil, ErrStopped
	}
	if err != nil {
		return nil, err
	}
	if adds && b.Least == nil && n.Nodes()-n.Ranks > 1 { // trees through several switches that copy need not fill all cuts
		if plain, err := n.Bounds(op, root, false); err == nil && plain.Exact.Cmp(b.Exact) < 0 {
			b.Least = plain.Exact
		}
	}
	if n.Note != "" {
		b.Why += "; " + n.Note
	}
	f, _ := b.Exact.Float64()
	b.Rate = unit.Rate(f) * n.Unit
	return b, nil
}

// ErrStopped is the error of Bounds where Net.Stop ended it.
var ErrStopped = errors.New("the search for the tightest cut was stopped")

func (n *Net) stopped() bool { return n.Stop != nil && n.Stop() }

// Time is the least time for a size.
func (b *Bound) Time(size unit.Bytes) unit.Time { return size.Over(b.Rate) }

// gather is all-gather on net, which is n or n reversed.
func (b *Bound) gather(n, net *Net, back bool) error {
	x, cut, rounds, err := net.forest(nil)
	if err != nil {
		return err
	}
	b.Exact = new(big.Rat).Mul(x, ratio(int64(n.Ranks), 1))
	b.Cut, b.Rounds = cut, rounds
	inside, left := n.ranks(cut.Ranks), n.ranks(cut.Left)
	if len(cut.Ranks) > len(cut.Left) {
		inside = count(len(cut.Ranks), "rank")
	} else if len(cut.Left) > len(cut.Ranks) {
		left = "the others"
	}
	if back {
		b.Why = fmt.Sprintf("%s must send their parts of the sums of %s over %s", left, inside, net.exits(cut))
	} else {
		b.Why = fmt.Sprintf("the blocks of %s must reach %s over %s", inside, left, net.exits(cut))
	}
	return b.balance(net, ones(n.Ranks), int64(n.Ranks))
}

func ones(n int) []int64 {
	list := make([]int64, n)
	for i := range list {
		list[i] = 1
	}
	return list
}

// balance lowers a bound to what switches that cannot copy pass on.
func (b *Bound) balance(net *Net, weight []int64, blocks int64) error {
	if b.Adds {
		return nil
	}
	if net.lopsided(net.tight()) && net.Ranks > mostPaired {
		b.Least = new(big.Rat) // cuts may promise too much
		return nil
	}
	x, _, err := net.settle(weight)
	if err != nil {
		b.Least = new(big.Rat)
		return nil
	}
	if x == nil {
		return nil
	}
	if x = x.Mul(x, ratio(blocks, 1)); x.Cmp(b.Exact) < 0 {
		b.Exact = x
		b.Why = "switches pass on what they take, and no division of their links gives more: the linear program over all cuts has this optimum; " +
			b.Why + " alone would allow more"
	}
	return nil
}

func count(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

// linkWords are the links of each kind as people call them.
var linkWords = map[topo.LinkKind]string{0: "link", topo.NVLink: "NVLink", topo.C2C: "C2C link", topo.XGMI: "xGMI link",
	topo.ICI: "ICI link", topo.PCIe: "PCIe link",
	topo.SMP: "socket link", topo.InfiniBand: "InfiniBand link", topo.Ethernet: "Ethernet link"}

// exits says what leads out of a cut: "2 NVLinks: 50 GB/s".
func (n *Net) exits(c *Cut) string {
	links := map[string]int{}
	var kinds []string
	for _, e := range n.Edges {
		if c.Nodes[e.From] && !c.Nodes[e.To] {
			kind := linkWords[e.Kind]
			if links[kind] == 0 {
				kinds = append(kinds, kind)
			}
			links[kind] += max(e.Links, 1)
		}
	}
	slices.Sort(kinds)
	var parts []string
	for _, k := range kinds {
		parts = append(parts, count(links[k], k))
	}
	return fmt.Sprintf("%s: %s", strings.Join(parts, " and "), unit.Rate(c.Exit)*n.Unit)
}

// rooted is a network with a source that feeds every rank, for the test of a rate.
type rooted struct {
	*flow.Network
	source int
	feeds  []int // by rank: the link from the source
	edges  []int // by edge
}

func (n *Net) rooted() *rooted {
	r := &rooted{Network: flow.New(n.Nodes()+1, 0), source: n.Nodes()}
	for v := range n.Ranks {
		r.feeds = append(r.feeds, r.Link(r.source, v, 0, 0))
	}
	for _, e := range n.Edges {
		r.edges = append(r.edges, r.Link(e.From, e.To, e.Cap, 0))
	}
	return r
}

// forest finds the rate at which every rank can broadcast at once: the least
// B+(S)/|S ∩ ranks|, over all S that leave out a rank. It is Newton's method
// (Dinkelbach's): start with the cuts around single ranks; as long as some rank
// does not get the flow of all the others, its cut gives a lower rate. Weights,
// if there are any, say how much each rank has to send.
func (n *Net) forest(weight []int64) (*big.Rat, *Cut, int, error) {
	if weight == nil {
		weight = ones(n.Ranks)
	}
	var total int64
	for _, w := range weight {
		total += w
	}
	var p, q int64 = 0, 0
	var best *Cut
	lower := func(c *Cut) {
		var w int64
		for _, r := range c.Ranks {
			w += weight[r]
		}
		if w > 0 && (best == nil || c.Exit*q < p*w) {
			g := max(gcd(c.Exit, w), 1)
			p, q, best = c.Exit/g, w/g, c
		}
	}
	entry := make([]int64, n.Ranks)
	for _, e := range n.Edges {
		if e.To < n.Ranks {
			entry[e.To] += e.Cap
		}
	}
	for v := range n.Ranks {
		if best != nil && entry[v]*q >= p*(total-weight[v]) {
			continue
		}
		in := make([]bool, n.Nodes())
		for u := range in {
			in[u] = u != v
		}
		lower(n.cut(in))
	}
	f := n.rooted()
	rounds := 0
	first := n.firsts()
	for again := true; again; {
		again = false
		rounds++
		set := func() {
			for r, w := range weight {
				f.Set(f.feeds[r], p*w)
			}
			for i, e := range n.Edges {
				f.Set(f.edges[i], q*e.Cap)
			}
		}
		set()
		for v := range n.Ranks {
			if p == 0 {
				return nil, best, rounds, fmt.Errorf("no path joins %s to the other ranks of %s", n.ranks(best.Left), n.Name)
			}
			if first(v) != v { // of very many ranks, those that are turned to the others
				continue
			}
			if n.stopped() {
				return nil, best, rounds, ErrStopped
			}
			if f.Run(f.source, v, total*p) == total*p {
				continue
			}
			lower(n.cut(f.Near(f.source)))
			again = true
			set()
		}
	}
	return ratio(p, q), best, rounds, nil
}

// firsts says of very many ranks which one each is turned from; of others, the rank itself.
func (n *Net) firsts() func(rank int) int {
	if n.Ranks <= mostChecked {
		return func(rank int) int { return rank }
	}
	return n.contracted().turned().first
}

// spread is a broadcast from the root on net: the least maximum flow from the root to a rank.
func (b *Bound) spread(n, net *Net, root int, verb string) error {
	f := flow.New(n.Nodes(), 0)
	for _, e := range net.Edges {
		f.Link(e.From, e.To, e.Cap, 0)
	}
	least := int64(flow.Endless)
	for v := range n.Ranks {
		if v == root || n.stopped() && b.Cut != nil { // a bound with one cut is thrown away whole
			continue
		}
		if got := f.Run(root, v, least); got < least {
			least = got
			b.Cut = net.cut(f.Near(root))
		}
	}
	b.Exact = ratio(least, 1)
	b.Why = fmt.Sprintf("%s %s over %s", verb, n.ranks(b.Cut.Left), net.exits(b.Cut))
	weight := make([]int64, n.Ranks)
	weight[root] = 1
	return b.balance(net, weight, 1)
}

// scatter is a scatter from the root on net: every other rank takes a block of its own.
func (b *Bound) scatter(n, net *Net, root int) {
	f := flow.New(n.Nodes()+1, 0)
	var edges, sinks []int
	for _, e := range net.Edges {
		edges = append(edges, f.Link(e.From, e.To, e.Cap, 0))
	}
	for v := range n.Ranks {
		sinks = append(sinks, f.Link(v, n.Nodes(), 0, 0))
	}
	in := make([]bool, n.Nodes())
	in[root] = true
	b.Cut = net.cut(in)
	for {
		b.Rounds++
		p, q := b.Cut.Exit, int64(len(b.Cut.Left))
		for i, e := range net.Edges {
			f.Set(edges[i], q*e.Cap)
		}
		for v, l := range sinks {
			f.Set(l, p)
			if v == root {
				f.Set(l, 0)
			}
		}
		want := p * int64(n.Ranks-1)
		if n.stopped() || f.Run(root, n.Nodes(), want) == want {
			b.Exact = ratio(p*int64(n.Ranks), q)
			b.Why = fmt.Sprintf("%s of %s pass %s", count(len(b.Cut.Left), "block"), n.ranks(b.Cut.Left), net.exits(b.Cut))
			return
		}
		b.Cut = net.cut(f.Near(root))
	}
}

// pairs bounds collectives in which each pair of ranks has bytes of its own, by
// all cuts of a small network, and by those around ranks, hosts, all within some hops of a
// switch, what all-gathers are limited by, and what any of them leaves out. Whether such a
// bound is reached is a harder question: the answer is a bound only.
func (b *Bound) pairs(n *Net) {
	hosts := map[int][]bool{}
	var sets [][]bool
	for v := range n.Nodes() {
		if v < n.Ranks {
			one := make([]bool, n.Nodes())
			one[v] = true
			sets = append(sets, one)
		}
		if h := n.Hosts[v]; h >= 0 {
			if hosts[h] == nil {
				hosts[h] = make([]bool, n.Nodes())
				sets = append(sets, hosts[h])
			}
			hosts[h][v] = true
		}
	}
	if _, cut, _, err := n.forest(nil); err == nil {
		sets = append(sets, cut.Nodes)
	}
	if _, cut, _, err := n.Reversed().forest(nil); err == nil {
		sets = append(sets, cut.Nodes)
	}
	sets = append(sets, n.balls()...)
	for _, in := range slices.Clone(sets) {
		sets = append(sets, outside(in))
	}
	if n.Nodes() <= mostCut {
		sets = nil
		for set := 1; set < 1<<n.Nodes()-1; set++ {
			in := make([]bool, n.Nodes())
			for v := range in {
				in[v] = set>>v&1 == 1
			}
			sets = append(sets, in)
		}
	}
	for _, in := range sets {
		if b.Exact != nil && n.stopped() {
			break
		}
		c := n.cut(in)
		inside, left := int64(len(c.Ranks)), int64(len(c.Left))
		if inside == 0 || left == 0 {
			continue
		}
		moved, parts := inside*left, int64(n.Ranks)
		if b.Op == sched.SendRecv {
			moved, parts = 0, 1
			for _, r := range c.Ranks {
				if !in[(r+1)%n.Ranks] {
					moved++
				}
			}
			if moved == 0 {
				continue
			}
		}
		if rate := ratio(c.Exit*parts, moved); b.Exact == nil || rate.Cmp(b.Exact) < 0 {
			b.Exact, b.Cut = rate, c
		}
	}
	b.Least = new(big.Rat)
	b.Why = fmt.Sprintf("what %s send to the other ranks leaves over %s", n.ranks(b.Cut.Ranks), n.exits(b.Cut))
}

// mostCut is the number of nodes up to which all cuts are looked at.
const mostCut = 12

func outside(in []bool) []bool {
	out := make([]bool, len(in))
	for v := range in {
		out[v] = !in[v]
	}
	return out
}

// balls are the ranks within some hops of each switch of the fabric, and the same with
// their hosts as a whole: those below a leaf, those of a pod. Switches are on the side
// that makes the cut narrow.
func (n *Net) balls() [][]bool {
	_, out := n.sides()
	var sets [][]bool
	known := map[string]bool{}
	add := func(in []bool) {
		key := fmt.Sprint(in[:n.Ranks])
		if known[key] || !slices.Contains(in[:n.Ranks], true) || !slices.Contains(in[:n.Ranks], false) {
			return
		}
		known[key] = true
		part := make([]int, n.Nodes())
		for r := range n.Ranks {
			if !in[r] {
				part[r] = 1
			}
		}
		n.divide(part)
		set := make([]bool, n.Nodes())
		for v := range set {
			set[v] = part[v] == 0
		}
		sets = append(sets, set)
	}
	for v := n.Ranks; v < n.Nodes(); v++ {
		if n.Hosts[v] >= 0 {
			continue
		}
		in := make([]bool, n.Nodes())
		in[v] = true
		for edge := []int{v}; len(edge) > 0; {
			var next []int
			for _, u := range edge {
				for _, i := range out[u] {
					if to := n.Edges[i].To; !in[to] {
						in[to] = true
						next = append(next, to)
					}
				}
			}
			edge = next
			hosts := map[int]bool{}
			for r := range n.Ranks {
				if in[r] && n.Hosts[r] >= 0 {
					hosts[n.Hosts[r]] = true
				}
			}
			whole := slices.Clone(in)
			for u, h := range n.Hosts {
				whole[u] = whole[u] || hosts[h]
			}
			add(in)
			add(whole)
			if len(sets) > mostBalls || n.stopped() {
				return sets
			}
		}
	}
	return sets
}

// mostBalls bounds the sets around switches that are looked at.
const mostBalls = 256

// trees gives the least number of trees for each root that reach the rate x,
// and the scale that makes capacities whole: each tree then takes 1 of a link.
func (n *Net) trees(x *big.Rat) (k int64, scale *big.Rat) {
	inverse := new(big.Rat).Inv(x)
	p, q := inverse.Num().Int64(), inverse.Denom().Int64()
	y := q
	for _, e := range n.Edges {
		y = gcd(y, e.Cap)
	}
	return q / y, ratio(p, y)
}
