package synth

import (
	"fmt"
	"github.com/weft-fabric/weft/model/flow"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// An all-reduce sends every byte up a tree to its root and down another one.
// Trees up and down share the links, and roots may have unequal shares, so it is
// more than a reduce-scatter and an all-gather one after the other. With x(u)
// the rate at rank u as a root, and each link divided into up(e) + down(e) <= b(e):
//
//	the most of sum x(u), with for every set S that leaves out a rank
//	sum of x(u) over u in S  <=  down leaving S,  and  <=  up entering S
//	switches that neither copy nor add pass on what they take: up and down each
//
// Edmonds: then trees can be packed. There are too many S to write down; rows
// are added for those that a maximum flow shows to be violated. Where links carry
// as much one way as the other, up is down turned round.
type halves struct {
	total *big.Rat
	feed  []*big.Rat // by rank: x
	down  []*big.Rat // by edge
	up    []*big.Rat // by edge
}

// rounds bounds how often rows are added; a few dozen have been enough.
const mostRounds = 400

// halve solves the linear program, with alike values for what can take one another's
// place, which loses nothing. Of very many ranks those that colours do not tell apart are
// taken for alike: what comes out then is a schedule that can be reached in any case.
func (n *Net) halve(adds bool) (*halves, int, error) {
	reverse := n.mirror()
	even := reverse != nil
	colour, side := n.alike()
	vars := map[[2]int]int{}
	index := func(what, class int) int {
		i, ok := vars[[2]int{what, class}]
		if !ok {
			i = len(vars)
			vars[[2]int{what, class}] = i
		}
		return i
	}
	feed := make([]int, n.Ranks)
	for v := range feed {
		feed[v] = index(0, colour[v])
	}
	down, up := make([]int, len(n.Edges)), make([]int, len(n.Edges))
	for i := range n.Edges {
		down[i] = index(1, side[i])
	}
	for i := range n.Edges {
		if even {
			up[i] = down[reverse[i]]
		} else {
			up[i] = index(2, side[i])
		}
	}
	l := &linear{gain: make([]int64, len(vars))}
	for _, v := range feed {
		l.gain[v]++
	}
	have := map[string]bool{}
	add := func(row []int64, limit int64) bool {
		key := fmt.Sprint(row, limit)
		if have[key] {
			return false
		}
		have[key] = true
		l.rows, l.limit = append(l.rows, row), append(l.limit, limit)
		return true
	}
	for i, e := range n.Edges {
		row := make([]int64, len(vars))
		row[down[i]]++
		row[up[i]]++
		add(row, e.Cap)
	}
	if !adds {
		for v := n.Ranks; v < n.Nodes(); v++ {
			for _, half := range [][]int{down, up} {
				in, out := make([]int64, len(vars)), make([]int64, len(vars))
				for i, e := range n.Edges {
					if e.To == v {
						in[half[i]]++
						out[half[i]]--
					}
					if e.From == v {
						in[half[i]]--
						out[half[i]]++
					}
				}
				add(in, 0)
				add(out, 0)
			}
		}
	}
	cut := func(in []bool, half []int, back bool) bool {
		row := make([]int64, len(vars))
		for v := range n.Ranks {
			if in[v] {
				row[feed[v]]++
			}
		}
		for i, e := range n.Edges {
			from, to := e.From, e.To
			if back {
				from, to = to, from
			}
			if in[from] && !in[to] {
				row[half[i]]--
			}
		}
		return add(row, 0)
	}
	for v := range n.Ranks {
		in := make([]bool, n.Nodes())
		for u := range in {
			in[u] = u != v
		}
		cut(in, down, false)
		cut(in, up, true)
	}
	first := n.firsts()
	flows := []struct {
		f    *rooted
		half []int
		back bool
	}{{n.rooted(), down, false}, {n.Reversed().rooted(), up, true}}
	if even {
		flows = flows[:1] // the other one is its mirror
	}
	for round := 1; round <= mostRounds; round++ {
		z, total := l.solve()
		scale, err := common(append(slices.Clone(z), total))
		if err != nil {
			return nil, round, err
		}
		whole := make([]int64, len(z))
		for i := range z {
			whole[i] = times(z[i], scale)
		}
		want := times(total, scale)
		violated := false
		for _, side := range flows {
			for v := range n.Ranks {
				side.f.Set(side.f.feeds[v], whole[feed[v]])
			}
			for i := range n.Edges {
				side.f.Set(side.f.edges[i], whole[side.half[i]])
			}
			for v := range n.Ranks {
				if first(v) != v {
					continue
				}
				if n.stopped() {
					return nil, round, ErrStopped
				}
				if side.f.Run(side.f.source, v, want) == want {
					continue
				}
				near := side.f.Near(side.f.source)
				far := side.f.Far(v)
				violated = cut(near, side.half, side.back) || violated
				violated = cut(far, side.half, side.back) || violated
			}
		}
		if !violated {
			h := &halves{total: total}
			for _, v := range feed {
				h.feed = append(h.feed, z[v])
			}
			for i := range n.Edges {
				h.down, h.up = append(h.down, z[down[i]]), append(h.up, z[up[i]])
			}
			return h, round, nil
		}
	}
	return nil, mostRounds, fmt.Errorf("the linear program of %s did not settle in %d rounds", n.Name, mostRounds)
}

// mostChecked is the number of ranks up to which every rank's flow is checked; of more
// than that, those that are turned to all others.
const mostChecked = 256

// common is the least whole number that makes all fractions whole.
func common(list []*big.Rat) (*big.Int, error) {
	m := big.NewInt(1)
	var g big.Int
	for _, v := range list {
		d := v.Denom()
		g.GCD(nil, nil, m, d)
		m.Mul(m, new(big.Int).Quo(d, &g))
	}
	var sum big.Int // what a cut can hold; rates of up to 64 ranks are multiplied with it
	for _, v := range list {
		x := new(big.Int).Mul(v.Num(), m)
		if sum.Add(&sum, x.Quo(x, v.Denom())); sum.BitLen() > 52 {
			return nil, fmt.Errorf("rates have no common denominator of a reasonable size; round them to fewer digits")
		}
	}
	return m, nil
}

func times(v *big.Rat, m *big.Int) int64 {
	x := new(big.Int).Mul(v.Num(), m)
	return x.Quo(x, v.Denom()).Int64()
}

// reduce is an all-reduce.
func (b *Bound) reduce(n *Net) error {
	net := n
	if !b.Adds {
		net = n.tight()
	}
	h, rounds, err := net.halve(b.Adds)
	if err != nil { // no exact answer: a bound all the same
		b.Parts, b.Exact = n.parts(nil, b.Adds)
		b.Why, b.Least = n.border(b.Parts, b.Adds), new(big.Rat)
		return nil
	}
	b.Rounds = rounds
	parts, rate := n.parts(h, b.Adds)
	b.Exact, b.Parts = rate, parts
	b.Why = n.border(parts, b.Adds)
	switch {
	case rate.Cmp(h.total) == 0:
	case n.Ranks <= mostPaired: // the linear program itself is the proof
		b.Exact = h.total
		b.Why = "no division of the links between ways up and down gives more: the linear program over all cuts has this optimum"
	default:
		b.Least = h.total
	}
	return nil
}

// border says why disjoint sets bound an all-reduce.
func (n *Net) border(parts []Cut, adds bool) string {
	var sum int64
	for _, p := range parts {
		sum += p.Exit
	}
	var text string
	switch {
	case len(parts) == 2:
		small := parts[0]
		if len(parts[1].Ranks) < len(small.Ranks) {
			small = parts[1]
		}
		return fmt.Sprintf("the sums of %s and the others pass %s each way", n.ranks(small.Ranks), n.exits(&small))
	case len(parts) == n.Ranks:
		text = "each rank alone,"
	default:
		var sizes []string
		for i, p := range parts {
			if i == 4 {
				sizes = append(sizes, fmt.Sprintf("and %d more", len(parts)-i))
				break
			}
			sizes = append(sizes, "{"+n.ranks(p.Ranks)+"}")
		}
		text = strings.Join(sizes, " ")
	}
	verb := "lead out of them"
	if adds {
		verb = "lead from one to another"
	}
	return fmt.Sprintf("between %d groups, %s every byte crosses %d times, up to its sum and down again, and links of %s %s",
		len(parts), text, 2*(len(parts)-1), unitRate(n, sum), verb)
}

func unitRate(n *Net, c int64) string {
	return strconv.FormatFloat(float64(c)*float64(n.Unit)/1e9, 'f', -1, 64) + " GB/s"
}

// parts looks for disjoint sets that cover the ranks and prove that an
// all-reduce cannot be faster. A tree up and one down cross the borders of m
// sets at least 2(m-1) times, each time out of one and into another:
//
//	X <= sum of (B+ + B-) / 4(m-1)       switches in no set: they pass on only
//	X <= capacity between sets / 2(m-1)  sets cover all nodes, as switches add
//
// Candidates are single ranks, hosts, and what the linear program found full.
func (n *Net) parts(h *halves, adds bool) ([]Cut, *big.Rat) {
	var best []Cut
	var rate *big.Rat
	consider := func(sets [][]bool) {
		cuts, r := n.family(sets, adds)
		if r != nil && (rate == nil || r.Cmp(rate) < 0) {
			best, rate = cuts, r
		}
	}
	var singles [][]bool
	hosts := map[int][]bool{}
	var boxes [][]bool
	for v := range n.Nodes() {
		if v < n.Ranks {
			one := make([]bool, n.Nodes())
			one[v] = true
			singles = append(singles, one)
		}
		if k := n.Hosts[v]; k >= 0 {
			if hosts[k] == nil {
				hosts[k] = make([]bool, n.Nodes())
				boxes = append(boxes, hosts[k])
			}
			hosts[k][v] = true
		} else if v < n.Ranks {
			boxes = append(boxes, singles[v])
		}
	}
	consider(singles)
	consider(boxes)
	if h == nil {
		return best, rate
	}
	if scale, err := common(slices.Concat(h.feed, h.down, h.up, []*big.Rat{h.total})); err == nil {
		f := n.rooted()
		f.Node() // where two ranks meet
		for v := range n.Ranks {
			f.Set(f.feeds[v], times(h.feed[v], scale))
		}
		for i := range n.Edges {
			f.Set(f.edges[i], times(h.down[i], scale))
		}
		want := times(h.total, scale)
		var small, large [][]bool
		for v := range n.Ranks {
			if n.Ranks > mostChecked {
				break
			}
			f.Run(f.source, v, want)
			near, far := f.Near(f.source), f.Far(v)
			s, l := make([]bool, n.Nodes()), make([]bool, n.Nodes())
			for u := range s {
				s[u], l[u] = !far[u], !near[u]
			}
			small, large = append(small, s), append(large, l)
		}
		consider(n.joined(small))
		consider(n.joined(large))
		consider(n.widest(large))
		if n.Ranks > mostPaired {
			return best, rate
		}
		full := slices.Concat(small, large)
		for u := range n.Ranks { // the smallest full set that holds two ranks
			if n.stopped() {
				return best, rate
			}
			for v := range u {
				a, b := f.Link(u, n.Nodes()+1, flow.Endless, 0), f.Link(v, n.Nodes()+1, flow.Endless, 0)
				got := f.Run(f.source, n.Nodes()+1, want)
				in := f.Far(n.Nodes() + 1)
				f.Trim(min(a, b))
				set := make([]bool, n.Nodes())
				for w := range set {
					set[w] = !in[w]
				}
				if got == want && slices.Contains(set[:n.Ranks], false) {
					full = append(full, set)
				}
			}
		}
		for _, set := range full { // alone against the rest, and beside single ranks
			rest := make([]bool, n.Nodes())
			for v := range rest {
				rest[v] = !set[v]
			}
			consider([][]bool{set, rest})
			consider(n.beside(set))
		}
		for better := true; better; { // what is proven so far, with one more set joined
			better = false
			was := rate
			for _, set := range full {
				sets := [][]bool{set}
				for _, c := range best {
					sets = append(sets, c.Nodes)
				}
				consider(n.joined(sets))
			}
			better = rate.Cmp(was) < 0
		}
	}
	return best, rate
}

// mostPaired is the number of ranks up to which pairs of ranks are looked at for a proof.
const mostPaired = 64

// beside is a set and all other ranks alone.
func (n *Net) beside(set []bool) [][]bool {
	sets := [][]bool{set}
	for r := range n.Ranks {
		if !set[r] {
			one := make([]bool, n.Nodes())
			one[r] = true
			sets = append(sets, one)
		}
	}
	return sets
}

// joined makes sets disjoint by joining those that share a rank.
func (n *Net) joined(sets [][]bool) [][]bool {
	var out [][]bool
	for _, s := range sets {
		s = slices.Clone(s)
		for i := 0; i < len(out); {
			shares := false
			for r := range n.Ranks {
				shares = shares || s[r] && out[i][r]
			}
			if !shares {
				i++
				continue
			}
			for v := range s {
				s[v] = s[v] || out[i][v]
			}
			out = slices.Delete(out, i, i+1)
			i = 0
		}
		out = append(out, s)
	}
	return out
}

func (n *Net) ranksIn(set []bool) (count int) {
	for r := range n.Ranks {
		if set[r] {
			count++
		}
	}
	return count
}

// widest takes the largest sets first and leaves out what overlaps them.
func (n *Net) widest(sets [][]bool) [][]bool {
	sets = slices.Clone(sets)
	slices.SortStableFunc(sets, func(a, b []bool) int { return n.ranksIn(b) - n.ranksIn(a) })
	taken := make([]bool, n.Ranks)
	var out [][]bool
	for _, s := range sets {
		free := true
		for r := range n.Ranks {
			free = free && !(s[r] && taken[r])
		}
		if !free {
			continue
		}
		for r := range n.Ranks {
			taken[r] = taken[r] || s[r]
		}
		out = append(out, s)
	}
	for r := range n.Ranks {
		if !taken[r] {
			one := make([]bool, n.Nodes())
			one[r] = true
			out = append(out, one)
		}
	}
	return out
}

// divide puts switches to one of two sets of ranks by the narrowest cut between them.
func (n *Net) divide(part []int) {
	f := flow.New(n.Nodes()+2, 0)
	for _, e := range n.Edges {
		f.Link(e.From, e.To, e.Cap, 0)
	}
	for v := range n.Ranks {
		if part[v] == 0 {
			f.Link(n.Nodes(), v, flow.Endless, 0)
		} else {
			f.Link(v, n.Nodes()+1, flow.Endless, 0)
		}
	}
	f.Run(n.Nodes(), n.Nodes()+1, flow.Endless)
	near := f.Near(n.Nodes())
	for v := n.Ranks; v < n.Nodes(); v++ {
		if part[v] = 1; near[v] {
			part[v] = 0
		}
	}
}

// partOf gives for every node the first set that it is in, -1 for none.
func (n *Net) partOf(sets [][]bool) []int {
	part := slices.Repeat([]int{-1}, n.Nodes())
	for i, s := range sets {
		for v := range s {
			if s[v] && part[v] < 0 {
				part[v] = i
			}
		}
	}
	return part
}

// family evaluates sets that are disjoint in ranks. Those that switches of
// theirs could serve better are trimmed: a switch belongs to one set only, or,
// where switches pass on only, to none if that makes borders smaller.
func (n *Net) family(sets [][]bool, adds bool) ([]Cut, *big.Rat) {
	if len(sets) < 2 {
		return nil, nil
	}
	part := n.partOf(sets)
	if len(sets) == 2 {
		n.divide(part)
	}
	if !adds {
		return n.trimmed(part, len(sets), false)
	}
	// Switches that add are each in some set: near their ranks, or all of the fabric in the first one.
	one := slices.Clone(part)
	for v := n.Ranks; v < n.Nodes(); v++ {
		if n.Hosts[v] < 0 {
			one[v] = 0
		}
	}
	cuts, rate := n.trimmed(part, len(sets), true)
	if whole, r := n.trimmed(one, len(sets), true); r != nil && (rate == nil || r.Cmp(rate) < 0) {
		return whole, r
	}
	return cuts, rate
}

// trimmed moves switches to where borders are smallest, and evaluates the parts that result.
func (n *Net) trimmed(part []int, sets int, adds bool) ([]Cut, *big.Rat) {
	in, out := n.sides()
	// what a switch's borders are, in a part or in none
	border := func(v, p int) int64 {
		var sum int64
		for _, i := range slices.Concat(in[v], out[v]) {
			e := n.Edges[i]
			q := part[e.From]
			if e.From == v {
				q = part[e.To]
			}
			if q != p {
				sum += e.Cap
				if !adds && q >= 0 && p >= 0 {
					sum += e.Cap // it leaves one set and enters another
				}
			}
		}
		return sum
	}
	for moved, again := true, 0; moved && again < 8; again++ {
		moved = false
		for v := n.Ranks; v < n.Nodes(); v++ {
			at, least := part[v], border(v, part[v])
			if adds && at < 0 {
				least = flow.Endless
			}
			near := map[int]bool{}
			var options []int
			for _, i := range slices.Concat(in[v], out[v]) {
				for _, u := range []int{n.Edges[i].From, n.Edges[i].To} {
					if q := part[u]; u != v && q >= 0 && !near[q] {
						near[q] = true
						options = append(options, q)
					}
				}
			}
			if !adds {
				options = append(options, -1)
			}
			for _, q := range options {
				if b := border(v, q); b < least {
					at, least = q, b
				}
			}
			if at != part[v] {
				part[v], moved = at, true
			}
		}
	}
	cuts := make([]Cut, sets)
	for i := range cuts {
		nodes := make([]bool, n.Nodes())
		for v := range nodes {
			nodes[v] = part[v] == i
		}
		cuts[i] = *n.cut(nodes)
		if len(cuts[i].Ranks) == 0 {
			return nil, nil
		}
	}
	var sum int64
	for _, e := range n.Edges {
		a, b := part[e.From], part[e.To]
		if a == b {
			continue
		}
		switch {
		case adds:
			sum += 2 * e.Cap
		case a >= 0 && b >= 0:
			sum += 2 * e.Cap
		default:
			sum += e.Cap
		}
	}
	return cuts, ratio(sum, int64(4*(sets-1)))
}
