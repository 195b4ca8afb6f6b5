package synth

import (
	"fmt"
	"math/big"
	"slices"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/flow"
	"github.com/weft-fabric/weft/model/unit"
)

// Way is what a share of the data takes: up a tree to its root, down another
// one from there, or only one of them.
type Way struct {
	Up, Down *Tree
	Weight   int64
}

// Root is where the trees of a way meet.
func (w *Way) Root() int {
	if w.Down != nil {
		return w.Down.Root
	}
	return w.Up.Root
}

// Plan is a schedule as trees.
type Plan struct {
	Net   *Net
	Op    sched.Collective
	Root  int
	Bound *Bound   // what no schedule can beat
	Ways  []Way    // in the order of their roots
	Exact *big.Rat // the rate of these trees, in units of the network's
	Rate  unit.Rate

	ends  []int                         // by way of an all-to-all: where its path ends
	roads map[[2]int]map[[2]int]float64 // of an all-to-all, by pair of ranks and link: parts

	period int    // ways of the first ranks are those of the others, turned; 0 where they are not
	turned *turns // how; nil where they are not
}

// first is the rank that a rank is turned from.
func (p *Plan) first(rank int) int {
	if p.turned == nil {
		return rank
	}
	return p.turned.first(rank)
}

// back turns a rank as a root is turned back to the one it is turned from.
func (p *Plan) back(rank, root int) int {
	if p.turned == nil {
		return rank
	}
	return p.turned.back(rank, root)
}

// Wish says what a plan should be like.
type Wish struct {
	Loss  float64 // the share of the bound that may be given up for fewer trees
	Trees int     // at most this number; 0 for no limit
}

// mostTrees is how many trees a root may have, or all of an all-reduce together,
// before capacities are rounded.
const mostTrees = 512

// Make finds trees for a collective: all-gather, reduce-scatter, broadcast,
// reduce or all-reduce; and paths for an all-to-all.
func (n *Net) Make(op sched.Collective, root int, wish Wish) (*Plan, error) {
	b, err := n.Bounds(op, root, false)
	if err != nil {
		return nil, err
	}
	p := &Plan{Net: n, Op: op, Root: root, Bound: b}
	switch op {
	case sched.AllGather, sched.Broadcast:
		err = p.spread(n, false, wish)
	case sched.ReduceScatter, sched.Reduce:
		err = p.spread(n.Reversed(), true, wish)
	case sched.AllReduce:
		err = p.reduce(wish)
	case sched.AllToAll:
		err = p.exchange()
	default:
		return nil,
			fmt.Errorf("no schedule for %s: synthesised are all-reduce, all-gather, reduce-scatter, broadcast, reduce and all-to-all; 'weft explain --bound --op %s' says what no schedule beats",
				op, op)
	}
	if err != nil {
		return nil, err
	}
	p.centre()
	f, _ := p.Exact.Float64()
	p.Rate = unit.Rate(f) * n.Unit
	return p, nil
}

// centre gives ways of an all-reduce that take one tree up and down the root that makes it lowest. Trees that
// are turned into one another stay as they are.
func (p *Plan) centre() {
	if p.Op != sched.AllReduce || p.turned != nil {
		return
	}
	for i := range p.Ways {
		if w := &p.Ways[i]; w.Up != nil && w.Down != nil && equalTrees(w.Up, w.Down) {
			w.Down = w.Down.centred()
			w.Up = w.Down
		}
	}
	slices.SortStableFunc(p.Ways, func(a, b Way) int { return a.Root() - b.Root() })
}

// Share is the part of the bound that the plan reaches.
func (p *Plan) Share() float64 {
	f, _ := new(big.Rat).Quo(p.Exact, p.Bound.Exact).Float64()
	return f
}

// Even divides heavy ways into several alike ones, up to most in all, so that
// ways that share a link carry about the same: links are shared evenly among
// messages under way, not by what there is left to send.
func (p *Plan) Even(most int) *Plan {
	var total int64
	for _, w := range p.Ways {
		total += w.Weight
	}
	unit := total
	for u := int64(1); u <= total; u++ {
		parts := int64(0)
		for _, w := range p.Ways {
			parts += (w.Weight + u - 1) / u
		}
		if parts <= int64(most) {
			unit = u
			break
		}
	}
	q := *p
	q.Ways, q.period, q.turned = nil, 0, nil
	for _, w := range p.Ways {
		parts := (w.Weight + unit - 1) / unit
		for i := range parts {
			one := w
			one.Weight = w.Weight*(i+1)/parts - w.Weight*i/parts
			q.Ways = append(q.Ways, one)
		}
	}
	return &q
}

// Height is the number of hops of the longest way.
func (p *Plan) Height() int {
	most := 0
	for _, w := range p.Ways {
		h := 0
		if w.Up != nil {
			h += w.Up.Height()
		}
		if w.Down != nil {
			h += w.Down.Height()
		}
		most = max(most, h)
	}
	return most
}

// spread packs trees from every rank, or from the root alone.
func (p *Plan) spread(net *Net, up bool, wish Wish) error {
	weight := make([]int64, net.Ranks)
	blocks := int64(1)
	if p.Op.Rooted() {
		weight[p.Root] = 1
	} else {
		blocks = int64(net.Ranks)
		for r := range weight {
			weight[r] = 1
		}
	}
	if done, err := p.fill(net, up, wish); done || err != nil {
		return err
	}
	if net.lopsided(net) { // as far as that alone makes switches pass on what they take
		net = net.tight()
		net.Edges = slices.DeleteFunc(net.Edges, func(e Edge) bool { return e.Cap == 0 })
	}
	bound, scale := p.Bound.Exact, ratio(1, 1)
	if _, caps, err := net.settle(weight); err != nil {
		return err
	} else if caps != nil {
		m, by, err := net.scaled(caps)
		if err != nil {
			return err
		}
		net = m
		scale.SetInt(by)
		bound = new(big.Rat).Mul(bound, scale)
	}
	x, _, _, err := net.forest(weight)
	if err != nil {
		return err
	}
	exact, _ := net.trees(x)
	var best []Tree
	var rate *big.Rat
	for k := int64(1); ; k++ {
		if k > 64 && k < exact {
			if rate != nil && exact > mostTrees {
				break
			}
			k = exact
		}
		fine := net.least(x, weight, k)
		r := new(big.Rat).Quo(ratio(k*blocks, 1), fine)
		good := new(big.Rat).Quo(r, bound)
		share, _ := good.Float64()
		better := rate == nil || r.Cmp(rate) > 0
		if enough := share >= 1-wish.Loss-1e-12; !better || !enough && k < min(exact, 64) && (wish.Trees == 0 || k > 1) {
			if k >= exact {
				break
			}
			if wish.Trees == 0 || !better {
				continue
			}
		}
		trees, err := net.packed(fine, weight, k)
		if err != nil && k < exact { // capacities were rounded: switches may have lost their balance
			continue
		}
		if err != nil && best != nil {
			break
		}
		if err != nil {
			return err
		}
		if wish.Trees > 0 && len(trees) > wish.Trees && best != nil {
			break
		}
		best, rate = trees, r
		if share >= 1-wish.Loss-1e-12 || k >= exact || wish.Trees > 0 && len(trees) >= wish.Trees {
			break
		}
	}
	p.take(best, up)
	p.Exact = rate.Quo(rate, scale)
	return nil
}

// take makes trees the ways of the plan.
func (p *Plan) take(trees []Tree, up bool) {
	p.Ways = nil
	for i := range trees {
		way := Way{Down: &trees[i], Weight: trees[i].Weight}
		if up {
			way.Up, way.Down = way.Down, nil
		}
		p.Ways = append(p.Ways, way)
	}
}

// Trees are packed exactly up to mostPacked ranks, and always up to fewest; between
// the two where filling links does not reach what is wished for.
const (
	fewest     = 16
	mostPacked = 64
)

// fill makes a plan of many ranks by filling links. It reports whether that is good
// enough, or nothing better can be made in bearable time.
func (p *Plan) fill(net *Net, up bool, wish Wish) (bool, error) {
	if net.Ranks <= fewest || net.Ranks <= mostPacked && (wish.Loss == 0 || wish.Trees > 0) {
		return false, nil
	}
	roots, blocks, counts := []int{p.Root}, int64(1), []int{1, 2, 4, 8, 16, 32}
	if !p.Op.Rooted() {
		roots, blocks, counts = make([]int, net.Ranks), int64(net.Ranks), []int{1, 2, 3, 4}
		for r := range roots {
			roots[r] = r
		}
	}
	x := new(big.Rat).Quo(p.Bound.Exact, ratio(blocks, 1))
	enough := 1 - max(wish.Loss, 1e-9)
	var best []Tree
	for _, k := range counts {
		trees, turned, rate, err := net.fill(roots, x, k, enough)
		if err != nil {
			return false, err
		}
		if wish.Trees > 0 && best != nil && len(trees) > wish.Trees {
			break
		}
		rate.Mul(rate, ratio(blocks, 1))
		if best == nil || rate.Cmp(p.Exact) > 0 {
			best, p.Exact, p.period, p.turned = trees, rate, turned.period, turned
		}
		if p.Share() >= enough {
			break
		}
	}
	if p.Share() < enough && net.Ranks <= mostPacked {
		p.period, p.turned = 0, nil
		return false, nil
	}
	p.take(best, up)
	return true, nil
}

// packed scales capacities down to whole numbers and packs k trees for each weight.
func (n *Net) packed(scale *big.Rat, weight []int64, k int64) ([]Tree, error) {
	caps := make([]int64, len(n.Edges))
	for i, e := range n.Edges {
		caps[i] = floor(scale, e.Cap)
	}
	feed := make([]int64, n.Ranks)
	for r, w := range weight {
		feed[r] = k * w
	}
	w := n.wire(caps, feed)
	return w.trees()
}

// trees removes the switches and packs what is left.
func (w *wired) trees() ([]Tree, error) {
	if err := w.split(); err != nil {
		return nil, err
	}
	trees, err := w.pack()
	for i := range trees {
		trees[i].made = w
	}
	return trees, err
}

func floor(scale *big.Rat, c int64) int64 {
	x := new(big.Int).Mul(scale.Num(), big.NewInt(c))
	return x.Quo(x, scale.Denom()).Int64()
}

// least finds the least scale with which k trees for each weight fit into
// capacities that are rounded down: between k/x, which would do without
// rounding, and k/x + 1/(least capacity). Only scales that make some capacity
// whole matter.
func (n *Net) least(x *big.Rat, weight []int64, k int64) *big.Rat {
	low := new(big.Rat).Quo(ratio(k, 1), x)
	smallest := int64(flow.Endless)
	sizes := map[int64]bool{}
	for _, e := range n.Edges {
		smallest = min(smallest, e.Cap)
		sizes[e.Cap] = true
	}
	high := new(big.Rat).Add(low, ratio(1, smallest))
	list := []*big.Rat{low}
	for c := range sizes {
		i := floor(low, c)
		for ; ; i++ {
			s := ratio(i, c)
			if s.Cmp(high) > 0 {
				break
			}
			if s.Cmp(low) > 0 {
				list = append(list, s)
			}
		}
	}
	slices.SortFunc(list, func(a, b *big.Rat) int { return a.Cmp(b) })
	list = slices.CompactFunc(list, func(a, b *big.Rat) bool { return a.Cmp(b) == 0 })
	feed := make([]int64, n.Ranks)
	for r, w := range weight {
		feed[r] = k * w
	}
	caps := make([]int64, len(n.Edges))
	fits := func(scale *big.Rat) bool {
		for i, e := range n.Edges {
			caps[i] = floor(scale, e.Cap)
		}
		return n.wire(caps, feed).fits()
	}
	at, _ := slices.BinarySearchFunc(list, true, func(s *big.Rat, _ bool) int {
		if fits(s) {
			return 0 // the first that fits
		}
		return -1
	})
	return list[min(at, len(list)-1)]
}

// halves makes an all-reduce of a reduce-scatter and an all-gather over the same trees, which share the links evenly.
// Unless it may be below the bound, it is left out where it cannot come near.
func (p *Plan) halves(wish Wish, below bool) error {
	half := &Plan{Net: p.Net, Op: sched.AllGather, Bound: &Bound{Exact: new(big.Rat).Mul(p.Bound.Exact, ratio(2, 1))}}
	gather, err := p.Net.Bounds(sched.AllGather, 0, false)
	if err != nil {
		return err
	}
	whole := gather.Exact
	best, _ := new(big.Rat).Quo(whole, half.Bound.Exact).Float64()
	if best < 1-wish.Loss-1e-12 {
		if p.Net.Ranks <= mostPacked && !below {
			return nil
		}
		half.Bound.Exact = whole
	}
	if err := half.spread(p.Net, false, wish); err != nil {
		return err
	}
	p.Ways = nil
	for _, w := range half.Ways {
		p.Ways = append(p.Ways, Way{Up: w.Down, Down: w.Down, Weight: w.Weight})
	}
	p.Exact, p.period, p.turned = half.Exact.Mul(half.Exact, ratio(1, 2)), half.period, half.turned
	return nil
}

// fits reports whether there are no more trees than wished for.
func (w *Wish) fits(trees []Way) bool { return w.Trees == 0 || len(trees) <= w.Trees }

// near reports whether a plan comes as near to the bound as wished for.
func (p *Plan) near(wish Wish) bool { return p.Exact != nil && p.Share() >= 1-wish.Loss-1e-12 }

// enough reports whether halves are all that is made.
func (p *Plan) enough(wish Wish) bool {
	return p.near(wish) && wish.fits(p.Ways) || p.Exact != nil && p.Net.Ranks > mostPacked
}

// reduce packs an all-reduce: trees up and trees down that share the links.
func (p *Plan) reduce(wish Wish) error {
	if !p.Net.even() {
		return p.updown(wish)
	}
	// Where halves are as good, or nearly, they have the fewest trees; of many ranks nothing else is tried.
	if err := p.halves(wish, false); err != nil {
		return err
	}
	if p.enough(wish) {
		return nil
	}
	err := p.updown(wish)
	if p.near(wish) {
		return err
	}
	q := *p // halves may be nearer to the bound than trees over rounded links
	switch lost := q.halves(wish, true); {
	case lost != nil:
		return err
	case err != nil || q.Exact.Cmp(p.Exact) > 0 && wish.fits(q.Ways):
		*p = q
	}
	return nil
}

// updown packs trees up and down as the linear program divides the links between them, exactly or with rounded links.
func (p *Plan) updown(wish Wish) error {
	if p.Net.Ranks > mostPacked {
		return fmt.Errorf("%s: links differ by direction; an all-reduce over such links is made for up to %d ranks, here are %d",
			p.Net.Name, mostPacked, p.Net.Ranks)
	}
	var last error
	// No link carries more than the whole buffer up and down.
	most := new(big.Rat).Mul(p.Bound.Exact, ratio(2, 1))
	whole := new(big.Int).Add(new(big.Int).Quo(most.Num(), most.Denom()), big.NewInt(1)).Int64()
	clamped := p.Net.tight()
	for i := range clamped.Edges {
		clamped.Edges[i].Cap = min(clamped.Edges[i].Cap, whole)
	}
	widest := int64(0)
	for _, e := range clamped.Edges {
		widest = max(widest, e.Cap)
	}
	for _, levels := range []int64{0, 300, 200, 150, 100, 75, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1} {
		net, back := clamped, ratio(1, 1)
		if levels > 0 {
			if widest <= levels {
				continue
			}
			if net, back = clamped.rounded(levels, widest), ratio(widest, levels); net.apart() != nil {
				break
			}
		}
		ways, rate, err := net.ways()
		if err != nil {
			last = err
			continue
		}
		rate.Mul(rate, back)
		if fewer := !wish.fits(p.Ways) && len(ways) < len(p.Ways); p.Exact == nil || fewer || rate.Cmp(p.Exact) > 0 && wish.fits(ways) {
			p.Ways, p.Exact, p.period, p.turned = ways, rate, 0, nil
		}
		if wish.fits(p.Ways) && (p.near(wish) || levels == 0) {
			return nil
		}
	}
	if p.Exact == nil {
		return last
	}
	return nil
}

// rounded is the network with capacities rounded down to levels steps of the widest link.
func (n *Net) rounded(levels, widest int64) *Net {
	r := *n
	r.Edges = nil
	for _, e := range n.Edges {
		if e.Cap = e.Cap * levels / widest; e.Cap > 0 {
			r.Edges = append(r.Edges, e)
		}
	}
	return &r
}

// Twice makes an all-reduce of a reduce-scatter and an all-gather over the same trees. They are often lower than those
// that reach the bound, so that it wins where bytes and hops count both.
func (n *Net) Twice(wish Wish) (*Plan, error) {
	if !n.even() {
		return nil, fmt.Errorf("%s: links differ by direction", n.Name)
	}
	b, err := n.Bounds(sched.AllReduce, 0, false)
	if err != nil {
		return nil, err
	}
	half, err := n.Make(sched.AllGather, 0, wish)
	if err != nil {
		return nil, err
	}
	p := &Plan{Net: n, Op: sched.AllReduce, Bound: b, Exact: new(big.Rat).Mul(half.Exact, ratio(1, 2)), Rate: half.Rate / 2}
	for _, w := range half.Ways {
		p.Ways = append(p.Ways, Way{Up: w.Down, Down: w.Down, Weight: w.Weight})
	}
	p.centre()
	return p, nil
}

// ways packs an all-reduce with the capacities as they are.
func (n *Net) ways() ([]Way, *big.Rat, error) {
	h, _, err := n.halve(false)
	if err != nil {
		return nil, nil, err
	}
	scale, err := common(slices.Concat(h.feed, h.down, h.up))
	if err != nil {
		return nil, nil, err
	}
	if total := times(h.total, scale); total > mostTrees {
		return nil, nil, fmt.Errorf("an all-reduce at the full rate of %s needs %d trees; the limit is %d", n.Name, total, mostTrees)
	}
	side := func(net *Net, caps []*big.Rat) ([]Tree, error) {
		whole := make([]int64, len(caps))
		for i, c := range caps {
			whole[i] = times(c, scale)
		}
		feed := make([]int64, n.Ranks)
		for r, x := range h.feed {
			feed[r] = times(x, scale)
		}
		return net.wire(whole, feed).trees()
	}
	down, err := side(n, h.down)
	if err != nil {
		return nil, nil, err
	}
	up := down
	if !n.even() {
		if up, err = side(n.Reversed(), h.up); err != nil {
			return nil, nil, err
		}
	}
	return pair(up, down), new(big.Rat).Set(h.total), nil
}

// pair joins trees up with trees down of the same root.
func pair(up, down []Tree) []Way {
	var ways []Way
	left := make([]int64, len(up))
	for i := range up {
		left[i] = up[i].Weight
	}
	for i := range down {
		need := down[i].Weight
		// the same tree both ways where there is one, any of the root else
		for _, same := range []bool{true, false} {
			for j := range up {
				if take := min(need, left[j]); take > 0 && up[j].Root == down[i].Root && (!same || slices.Equal(up[j].Parent, down[i].Parent)) {
					ways = append(ways, Way{Up: &up[j], Down: &down[i], Weight: take})
					left[j] -= take
					need -= take
				}
			}
		}
	}
	return ways
}
