package tune

import (
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/cost"
)

// AlphaBeta gives the model that the fitted constants mean for these GPUs,
// for the protocol that moves the most: what Select uses without calibration.
// The reduction is part of what was measured, so Gamma is zero.
func (m *NCCL) AlphaBeta() cost.AlphaBeta {
	f, k := m.f, &fitted.Class[m.f.class()]
	a := cost.AlphaBeta{Launch: k.LL.Floor, Alpha: k.LL.Hop, Overlap: 1}
	if f.medium != alone {
		a.Beta = 1e-3 / (f.ringRate() * k.Simple.Share)
	}
	if f.nodes > 1 {
		net := fitted.Net[f.net()]
		// A step is as slow as its slowest hop, and a rank's bytes share the NICs
		// with those of its node: a ring through every rank uses each NIC once.
		a.Alpha = net.Hop
		a.Beta = max(a.Beta, 1e-3/(f.nicWire()*f.nicShare(net)))
	}
	return a
}

// Select picks among the closed forms of a collective on these GPUs, by the
// calibration where one is given, else by the fitted constants. Over several
// nodes a step between nodes counts one and a step inside as the fraction it
// takes of that, and bytes count where they leave a node: a ring passes each node
// once and a tree has one rank a node that leaves it, while the flat algorithms
// send from every rank.
func (m *NCCL) Select(op sched.Collective, bytes unit.Bytes, cal *Calibration) (*cost.Selection, error) {
	algos, err := cost.Algos(op, m.f.ranks)
	if err != nil {
		return nil, err
	}
	var model cost.Model = m.AlphaBeta()
	if cal != nil {
		f, err := cal.Link(m.f.nodes)
		if err == nil {
			err = f.Answers(op)
		}
		if err != nil {
			return nil, err
		}
		model = f.Model()
	}
	return cost.Select(model, m.leave(op, algos), bytes)
}

// leave recounts algorithms over several nodes by what leaves a node.
func (m *NCCL) leave(op sched.Collective, algos []cost.Algo) []cost.Algo {
	if m.f.nodes > 1 {
		for i := range algos {
			algos[i] = m.f.leaving(op, algos[i], fitted.Class[m.f.class()].LL.Hop/fitted.Net[m.f.net()].Hop)
		}
	}
	return algos
}

// leaving recounts an algorithm's steps and bytes as those between nodes; inside
// is what a step inside a node takes of one between nodes.
func (f *facts) leaving(op sched.Collective, a cost.Algo, inside float64) cost.Algo {
	steps := func(like algorithm) float64 {
		in, out := f.hops(op, like, f.nodes)
		return in*inside + out
	}
	return cost.Algo{Name: a.Name, Cost: func(b unit.Bytes) cost.Work {
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
