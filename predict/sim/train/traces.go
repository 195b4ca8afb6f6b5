package train

import (
	"fmt"
	"math"

	"github.com/weft-fabric/weft/predict/internal/schedule"
	"github.com/weft-fabric/weft/predict/plan"
	"github.com/weft-fabric/weft/predict/sim/chakra"
)

// buckets is in how many parts gradients are reduced while the last backward goes on.
const buckets = 4

// Traces writes a step down as execution traces, one a rank, with the groups that reduce
// gradients. Passes take the time that the plan gives them, tensor and expert parallel
// traffic included; what crosses between stages and replicas are transfers of their own.
func Traces(q plan.Question) ([]*chakra.Trace, chakra.Groups, error) {
	l := q.Layout
	switch {
	case l.Schedule == schedule.ZBV || l.Schedule == schedule.DualPipe:
		return nil, nil,
			fmt.Errorf("traces of schedule %s are not written: its stages do not follow one another in one direction; use 1f1b, interleaved, gpipe or zb-h1",
				l.Schedule)
	case l.ZeRO >= 3:
		return nil, nil, fmt.Errorf("traces of zero 3 are not written: it gathers with every micro-batch; use zero 0 to 2")
	case q.Model.CNN != nil:
		return nil, nil, fmt.Errorf("traces are written of transformers; %s is a convolutional network", q.Model.Name)
	}
	q.Why = true // for the passes
	cost, err := plan.Price(q)
	if err != nil {
		return nil, nil, err
	}
	replicas := l.DP * l.CP
	at := func(stage, replica, t int) int { return stage*l.TP*replicas + replica*l.TP + t }
	groups := chakra.Groups{}
	for stage := range l.PP {
		for t := range l.TP {
			name := groupName(l, stage, t)
			for i := range replicas {
				groups[name] = append(groups[name], at(stage, i, t))
			}
		}
	}
	w := &writer{l: l, cost: cost, gradients: plan.GradientBytes(q),
		activation: 2 * float64(l.Micro) * float64(l.Seq) / float64(l.CP) * float64(q.Model.Hidden), at: at}
	if l.Sequence {
		w.activation /= float64(l.TP)
	}
	var all []*chakra.Trace
	for stage := range l.PP {
		for i := range replicas {
			for t := range l.TP {
				all = append(all, w.trace(stage, i, t))
			}
		}
	}
	return all, groups, nil
}

func groupName(l plan.Layout, stage, t int) string { return fmt.Sprint(stage*l.TP + t) }

// writer writes the traces of one step.
type writer struct {
	l          plan.Layout
	cost       *plan.Cost
	gradients  []float64
	activation float64
	at         func(stage, replica, t int) int
}

func (w *writer) trace(stage, replica, t int) *chakra.Trace {
	l := w.l
	tr := &chakra.Trace{Rank: w.at(stage, replica, t), Version: "0.0.4"}
	add := func(n chakra.Node) uint64 {
		n.ID = uint64(len(tr.Nodes)) + 1
		tr.Nodes = append(tr.Nodes, n)
		return n.ID
	}
	micros := func(s float64) uint64 { return uint64(math.Round(s * 1e6)) }
	after := func(ids ...uint64) (list []uint64) {
		for _, id := range ids {
			if id > 0 {
				list = append(list, id)
			}
		}
		return list
	}
	group := ""
	if l.DP*l.CP > 1 {
		group = groupName(l, stage, t)
	}
	last := -1 // the last pass that makes gradients
	for i, s := range w.cost.Pipe.Spans {
		if s.Rank == stage && s.Pass != 'F' {
			last = i
		}
	}
	stages := l.PP * l.VPP
	var before uint64
	var reductions []uint64
	for i, s := range w.cost.Pipe.Spans {
		if s.Rank != stage {
			continue
		}
		v := s.Chunk*l.PP + stage // of the stages in the order of the layers
		from, to := v-1, v+1
		if s.Pass == 'B' {
			from, to = v+1, v-1
		}
		inside := s.Pass == 'W' || l.PP == 1
		tag := func(v int) int64 { // of what comes to stage v
			t := 2 * int64(v*l.MicroBatches()+s.Micro)
			if s.Pass == 'B' {
				t++
			}
			return t
		}
		var came uint64
		if !inside && from >= 0 && from < stages {
			came = add(chakra.Node{Name: fmt.Sprintf("receive for %c%d of stage %d", s.Pass, s.Micro, v), Kind: chakra.Recv,
				Bytes: uint64(w.activation), Op: -1,
				Peer: int64(w.at(from%l.PP, replica, t)), Tag: tag(v)})
		}
		parts := 1
		if i == last && l.Overlap && group != "" {
			parts = buckets
		}
		for k := range parts {
			before = add(chakra.Node{Name: fmt.Sprintf("%s of micro-batch %d, stage %d", passes[s.Pass], s.Micro, v), Kind: chakra.Compute, Op: -1,
				Peer:    -1,
				Control: after(before), Data: after(came),
				Duration: micros((s.End-s.Begin)*float64(k+1)/float64(parts)) - micros((s.End-s.Begin)*float64(k)/float64(parts))})
			came = 0
			if i == last && group != "" {
				reductions = append(reductions, w.reduce(add, stage, group, parts, before))
			}
		}
		if !inside && to >= 0 && to < stages {
			add(chakra.Node{Name: fmt.Sprintf("send of %c%d of stage %d", s.Pass, s.Micro, v), Kind: chakra.Send,
				Bytes: uint64(w.activation), Op: -1,
				Peer: int64(w.at(to%l.PP, replica, t)), Tag: tag(to), Data: []uint64{before}})
		}
	}
	if rest := w.cost.Step - w.cost.Pipe.Period - w.cost.ShownOf(w.cost.Reduce); rest > 0 {
		add(chakra.Node{Name: "optimizer and what else ends a step", Kind: chakra.Compute, Op: -1, Peer: -1,
			Control: after(append(reductions, before)...), Duration: micros(rest)})
	}
	return tr
}

var passes = map[byte]string{'F': "forward", 'B': "backward", 'W': "weight gradients"}

// reduce adds one part of the reduction of gradients.
func (w *writer) reduce(add func(chakra.Node) uint64, stage int, group string, parts int, before uint64) uint64 {
	n := chakra.Node{Name: "gradients", Kind: chakra.Collect, Op: chakra.ReduceScatter, Bytes: uint64(w.gradients[stage] / float64(parts)),
		Group: group, Peer: -1, Data: []uint64{before}}
	if w.l.ZeRO == 0 {
		n.Op = chakra.AllReduce
	}
	return add(n)
}
