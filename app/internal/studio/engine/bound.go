package engine

import (
	"fmt"

	"github.com/weft-fabric/weft/collective/synth"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/sim"
)

// mostBounded is how many GPUs a bound is computed for: 1,024 take a second.
const mostBounded = 2048

// boundAnswer is the least time of a collective and what proves it.
type boundAnswer struct {
	Op      string   `json:"op"`
	GPUs    int      `json:"gpus"`
	Rate    float64  `json:"rate_bytes_per_s"`
	Bus     float64  `json:"bus_bytes_per_s"`
	Time    int64    `json:"time_ps"`
	Exact   bool     `json:"exact"` // some schedule reaches it
	Why     string   `json:"why"`
	Parts   [][]int  `json:"parts"` // sets of parts: the cut's inside, or the sets that cover the ranks
	Sets    int      `json:"sets"`
	Edges   [][2]int `json:"edges"` // links that leave a set
	Formula string   `json:"formula"`
}

// What is drawn of a bound: all sets of the largest cluster that it is computed for, and the links that leave them.
const (
	mostParts = mostBounded
	mostEdges = 4 * mostBounded
)

// bound finds the least time that any schedule can take, and the cut that proves it. Exact says that a schedule is
// known to reach the bound.
func (j *job) bound(q Collective) (any, error) {
	a, err := j.read(q)
	if err != nil {
		return nil, err
	}
	if len(a.gpus) > mostBounded {
		return nil, fmt.Errorf("%d GPUs are too many for a bound while you wait; the limit is %d", len(a.gpus), mostBounded)
	}
	j.tell(Progress{Text: "looking for the tightest cut"})
	n, err := sim.Net(a.c.Graph, a.gpus, a.o)
	if err != nil {
		return nil, err
	}
	n.Stop = j.stop
	b, err := n.Bounds(a.op, 0, false)
	if err != nil {
		return nil, err
	}
	out := &boundAnswer{Op: a.op.String(), GPUs: len(a.gpus), Rate: float64(b.Rate),
		Bus: float64(b.Rate * unit.Rate(a.op.BusFactor(len(a.gpus)))), Time: int64(b.Time(a.size)),
		Exact: b.Least == nil, Why: b.Why, Parts: [][]int{}, Edges: [][2]int{},
		Formula: "bytes that must leave a set of parts ÷ the rate of the links that leave it, over the worst set"}
	cuts := b.Parts
	if b.Cut != nil {
		cuts = []synth.Cut{*b.Cut}
	}
	out.Sets = len(cuts)
	for _, c := range cuts[:min(len(cuts), mostParts)] {
		out.cut(a, n, &c)
	}
	return out, nil
}

// cut adds one set: its parts by their numbers in the graph, and the links that leave it.
func (b *boundAnswer) cut(a *asked, n *synth.Net, c *synth.Cut) {
	set := []int{}
	for _, r := range c.Ranks {
		set = append(set, int(a.gpus[r]))
	}
	for i := n.Ranks; i < len(c.Nodes); i++ {
		if id := a.part(n, i); c.Nodes[i] && id >= 0 {
			set = append(set, id)
		}
	}
	b.Parts = append(b.Parts, set)
	if c.Nodes != nil {
		b.leaving(a, n, c)
	}
}

// leaving adds the links that leave a set.
func (b *boundAnswer) leaving(a *asked, n *synth.Net, c *synth.Cut) {
	for _, e := range n.Edges {
		if len(b.Edges) >= mostEdges || !c.Nodes[e.From] || c.Nodes[e.To] {
			continue
		}
		if x, y := a.part(n, e.From), a.part(n, e.To); x >= 0 && y >= 0 {
			b.Edges = append(b.Edges, [2]int{x, y})
		}
	}
}

// part is a node of a network for synthesis as a part of the cluster; -1 for one of the two that a PCIe part becomes there.
func (a *asked) part(n *synth.Net, i int) int {
	if i < n.Ranks {
		return int(a.gpus[i])
	}
	id, err := a.c.Graph.Lookup(n.Names[i])
	if err != nil {
		return -1
	}
	return int(id)
}
