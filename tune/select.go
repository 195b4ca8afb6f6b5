package tune

import (
	"errors"
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/unit"
)

// Ranked is an algorithm with its time.
type Ranked struct {
	Name string    `json:"algo"`
	Cost Cost      `json:"cost"`
	Time unit.Time `json:"time_ps"`
}

// Turn is a size from which another algorithm is the cheapest.
type Turn struct {
	From unit.Bytes `json:"from_bytes"`
	Name string     `json:"algo"`
}

// Selection is the cheapest algorithm at a size, why, and what would change it.
type Selection struct {
	Ranked
	Reason string   `json:"reason"`
	Change string   `json:"change"` // what would change the choice
	Turns  []Turn   `json:"turns"`  // the cheapest from each size on, from 1 byte to 1 TiB
	Others []Ranked `json:"others"` // by time, cheapest first
}

// Select picks the cheapest algorithm; of equal ones the first.
func Select(m Model, algos []Algo, bytes unit.Bytes) (*Selection, error) {
	if len(algos) == 0 {
		return nil, errors.New("no algorithm to select from")
	}
	bytes = max(bytes, 0)
	list := rank(m, algos, bytes)
	s := &Selection{Ranked: list[0], Others: list[1:], Turns: turns(m, algos)}
	s.Reason = fmt.Sprintf("%s takes %s for %s", s.Name, s.Time, describe(s.Cost))
	if len(s.Others) > 0 {
		next := s.Others[0]
		s.Reason += fmt.Sprintf("; %s, the next, %s for %s", next.Name, next.Time, describe(next.Cost))
	}
	s.Change = s.change(bytes)
	return s, nil
}

// Select picks among the closed forms of a collective on these GPUs, by the
// calibration where one is given, else by the fitted constants. Over several
// nodes a step between nodes counts one and a step inside as the fraction it
// takes of that, and bytes count where they leave a node: a ring passes each node
// once and a tree has one rank a node that leaves it, while the flat algorithms
// send from every rank.
func (m *NCCL) Select(op sched.Collective, bytes unit.Bytes, cal *Calibration) (*Selection, error) {
	algos, err := Algos(op, m.f.ranks)
	if err != nil {
		return nil, err
	}
	var model Model = m.AlphaBeta()
	if cal != nil {
		f, err := cal.Link(m.f.nodes)
		if err != nil {
			return nil, err
		}
		model = f.Model()
	}
	if m.f.nodes > 1 {
		for i := range algos {
			algos[i] = m.f.leaving(op, algos[i], fitted.Class[m.f.class()].LL.Hop/fitted.Net[m.f.net()].Hop)
		}
	}
	return Select(model, algos, bytes)
}

// leaving recounts an algorithm's steps and bytes as those between nodes; inside
// is what a step inside a node takes of one between nodes.
func (f *facts) leaving(op sched.Collective, a Algo, inside float64) Algo {
	steps := func(like algorithm) float64 {
		in, out := f.hops(op, like, f.nodes)
		return in*inside + out
	}
	return Algo{a.Name, func(b unit.Bytes) Cost {
		c := a.Cost(b)
		switch {
		case a.Name == "ring":
			c.Steps = steps(ring)
		case a.Name == "double-binary-tree" && op == sched.AllReduce:
			c.Steps, c.Wire = steps(tree), f.crossing(op, tree, max(float64(b), 0))
		case a.Name != "double-binary-tree":
			// Of the n-1 others, those of other nodes.
			c.Wire *= float64(f.perNode) * float64(f.ranks-f.perNode) / float64(max(f.ranks-1, 1))
		}
		return c
	}}
}

func describe(c Cost) string {
	return fmt.Sprintf("%.4g steps, %s sent and %s reduced a rank", c.Steps, unit.Bytes(c.Wire), unit.Bytes(c.Reduced))
}

func rank(m Model, algos []Algo, bytes unit.Bytes) []Ranked {
	var list []Ranked
	for _, a := range algos {
		c := a.Cost(bytes)
		list = append(list, Ranked{a.Name, c, m.Time(c)})
	}
	slices.SortStableFunc(list, func(a, b Ranked) int {
		switch {
		case a.Time < b.Time:
			return -1
		case a.Time > b.Time:
			return 1
		}
		return 0
	})
	return list
}

// turns walks the sizes by halves of a power of two and closes in on each change
// to the byte. A winner that lives for less than that is not seen.
func turns(m Model, algos []Algo) []Turn {
	best := func(b unit.Bytes) string { return rank(m, algos, b)[0].Name }
	list := []Turn{{1, best(1)}}
	last := unit.Bytes(1)
	for b := unit.Bytes(2); b <= 1<<40; b = max(b+b/2, b+1) {
		for from := last; ; {
			name := list[len(list)-1].Name
			if best(b) == name {
				break
			}
			lo, hi := from, b // best(lo) is name, best(hi) is not
			for hi-lo > 1 {
				if mid := lo + (hi-lo)/2; best(mid) == name {
					lo = mid
				} else {
					hi = mid
				}
			}
			list = append(list, Turn{hi, best(hi)})
			from = hi
		}
		last = b
	}
	return list
}

// change says at which sizes the choice would be another.
func (s *Selection) change(bytes unit.Bytes) string {
	at := 0
	for i, t := range s.Turns {
		if t.From <= max(bytes, 1) {
			at = i
		}
	}
	text := ""
	if at > 0 {
		text = fmt.Sprintf("below %s %s is cheaper", s.Turns[at].From, s.Turns[at-1].Name)
	}
	if at+1 < len(s.Turns) {
		if text != "" {
			text += ", "
		}
		text += fmt.Sprintf("from %s %s is", s.Turns[at+1].From, s.Turns[at+1].Name)
	}
	if text == "" {
		return "no size changes the choice"
	}
	return text
}
