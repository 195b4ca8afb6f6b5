package synth

import (
	"fmt"
	"math/big"
	"slices"
)

// A switch that neither copies nor adds passes on as many bytes as it takes. Where its
// links carry more one way than the other, as those of a NIC that serves two GPUs do, the
// cuts around ranks promise too much: a byte that came in once cannot leave to both. What
// each link then carries is found by a linear program, with in = out at every switch:
//
//	the most of x, with c(e) <= b(e), c in = c out at switches, and
//	x · (what the ranks of S feed)  <=  c leaving S,  for every set S that leaves out a rank

// settle finds the rate at which ranks can feed their weights to all others at once, and
// what each link carries then. It gives nil where all switches are balanced, and cuts
// alone say it.
func (n *Net) settle(weight []int64) (*big.Rat, []*big.Rat, error) {
	t := n.tight()
	if !n.lopsided(t) || n.Ranks > mostPaired {
		return nil, nil, nil
	}
	_, side := t.orbits(weight)
	vars := map[int]int{}
	carry := make([]int, len(t.Edges)) // by edge: its variable; 0 is x
	for i := range t.Edges {
		k, ok := vars[side[i]]
		if !ok {
			k = 1 + len(vars)
			vars[side[i]] = k
		}
		carry[i] = k
	}
	l := &linear{gain: make([]int64, 1+len(vars))}
	l.gain[0] = 1
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
	for i, e := range t.Edges {
		row := make([]int64, len(l.gain))
		row[carry[i]] = 1
		add(row, e.Cap)
	}
	for v := n.Ranks; v < n.Nodes(); v++ {
		in, out := make([]int64, len(l.gain)), make([]int64, len(l.gain))
		for i, e := range t.Edges {
			if e.To == v {
				in[carry[i]]++
				out[carry[i]]--
			}
			if e.From == v {
				in[carry[i]]--
				out[carry[i]]++
			}
		}
		add(in, 0)
		add(out, 0)
	}
	cut := func(inside []bool) bool {
		row := make([]int64, len(l.gain))
		for r, w := range weight {
			if inside[r] {
				row[0] += w
			}
		}
		for i, e := range t.Edges {
			if inside[e.From] && !inside[e.To] {
				row[carry[i]]--
			}
		}
		return add(row, 0)
	}
	var total int64
	for v, w := range weight {
		total += w
		inside := make([]bool, n.Nodes())
		for u := range inside {
			inside[u] = u != v
		}
		cut(inside)
	}
	f := t.rooted()
	for round := 1; round <= mostRounds; round++ {
		z, x := l.solve()
		scale, err := common(z)
		if err != nil {
			return nil, nil, err
		}
		for r, w := range weight {
			f.Set(f.feeds[r], times(x, scale)*w)
		}
		caps := make([]*big.Rat, len(t.Edges))
		for i := range t.Edges {
			caps[i] = z[carry[i]]
			f.Set(f.edges[i], times(caps[i], scale))
		}
		want := times(x, scale) * total
		violated := false
		if n.stopped() {
			return nil, nil, ErrStopped
		}
		for v := range n.Ranks {
			if f.Run(f.source, v, want) < want {
				near, far := f.Near(f.source), f.Far(v)
				violated = cut(near) || violated
				violated = cut(far) || violated
			}
		}
		if !violated {
			return x, caps, nil
		}
	}
	return nil, nil, fmt.Errorf("the linear program of %s did not settle in %d rounds", n.Name, mostRounds)
}

// lopsided reports whether some switch of a network takes in more or less than it passes on.
func (n *Net) lopsided(t *Net) bool {
	off := make([]int64, n.Nodes())
	for _, e := range t.Edges {
		off[e.From] -= e.Cap
		off[e.To] += e.Cap
	}
	return slices.ContainsFunc(off[n.Ranks:], func(d int64) bool { return d != 0 })
}

// scaled is the network with what its links carry as their capacities, in whole numbers of
// a unit that is smaller by the factor given.
func (n *Net) scaled(caps []*big.Rat) (*Net, *big.Int, error) {
	scale, err := common(caps)
	if err != nil {
		return nil, nil, err
	}
	m := *n
	m.Edges = nil
	for i, e := range n.Edges {
		if e.Cap = times(caps[i], scale); e.Cap > 0 {
			m.Edges = append(m.Edges, e)
		}
	}
	return &m, scale, nil
}
