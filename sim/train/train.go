// Package train puts one training step on the fabric: the gradient rings of all data parallel groups run at once
// over the graph's links, with dead and slow parts, ECMP or adaptive routing, and other jobs beside them.
//
//	plan's step ─► rings of every stage and tensor parallel rank, all at once ─► what of them the backward still hides
//
// Compute, the pipeline and what stays inside a host are the plan's; what crosses the fabric is simulated. Where a
// group has several ranks in a host, each of their NICs has a ring of its own over the hosts, with its part of the bytes.
package train

import (
	"fmt"

	"github.com/weft-fabric/weft/plan"
	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/sched/algo"
	"github.com/weft-fabric/weft/sim"
	"github.com/weft-fabric/weft/topo"
	"github.com/weft-fabric/weft/unit"
)

// Result is a step with contention. Its JSON keys are stable.
type Result struct {
	Step      float64    `json:"step_s"`
	Planned   float64    `json:"planned_step_s"` // by NCCL's model of a group, without other jobs
	Reduce    float64    `json:"gradient_reduction_s"`
	Alone     float64    `json:"gradient_reduction_alone_s"` // one group of the job by itself on the healthy fabric
	Modelled  float64    `json:"gradient_reduction_planned_s"`
	Hidden    float64    `json:"gradient_hidden_s"`
	Groups    int        `json:"groups"`
	Ranks     int        `json:"ranks_of_a_group"`
	Limit     string     `json:"limit"`
	Jobs      []float64  `json:"jobs_reduction_s"`
	Cost      *plan.Cost `json:"plan"`
	Simulated int        `json:"simulated_ranks"`
	Shortened bool       `json:"shortened,omitempty"` // rings around a bad part were simulated at three shorter lengths, and their times carried on along a straight line
}

// Step simulates one step of jobs equal jobs, each on as many GPUs as the layout takes, one after the other in the
// cluster's order; mixed deals them out host by host instead.
func Step(g *topo.Graph, q plan.Question, jobs int, mixed bool, hostGPUs int, o sim.Options) (*Result, error) {
	cost, err := plan.Price(q)
	if err != nil {
		return nil, err
	}
	l := q.Layout
	if l.ZeRO >= 3 {
		return nil, fmt.Errorf("zero 3 gathers and reduces with every micro-batch; sim train simulates reductions once a step: use zero 0 to 2")
	}
	var gpus []topo.NodeID
	g.Each(topo.GPU, func(id topo.NodeID, _ *topo.Node) { gpus = append(gpus, id) })
	n := l.GPUs()
	if jobs < 1 || jobs*n > len(gpus) {
		return nil, fmt.Errorf("%d jobs of %d GPUs; the cluster has %d", jobs, n, len(gpus))
	}
	at := func(job, rank int) topo.NodeID {
		if mixed && jobs > 1 {
			host, in := rank/hostGPUs, rank%hostGPUs
			return gpus[(host*jobs+job)*hostGPUs+in]
		}
		return gpus[job*n+rank]
	}
	ranks := l.DP * l.CP
	res := &Result{Planned: cost.Step, Modelled: cost.Reduce, Hidden: cost.Hide, Ranks: ranks, Cost: cost, Step: cost.Step}
	if ranks < 2 {
		return res, nil
	}
	ring, err := algo.Find("ring")
	if err != nil {
		return nil, err
	}
	op := sched.ReduceScatter
	if l.ZeRO == 0 {
		op = sched.AllReduce
	}
	bytes := plan.GradientBytes(q)
	var all []sim.Job
	var owner []int
	first, split := 0, false // jobs of the first group; several ranks of a group share a host
	for job := range jobs {
		for stage := range l.PP {
			for t := range l.TP {
				set := make([]topo.NodeID, ranks)
				for i := range set {
					set[i] = at(job, stage*l.TP*ranks+i*l.TP+t)
				}
				rings := byHost(g, set)
				split = split || len(rings) > 1
				size := unit.Bytes(bytes[stage] / float64(len(rings)))
				for _, set := range rings {
					build := func(set []topo.NodeID) (*sched.Program, error) { return sim.Wish{}.ProgramOn(ring, g, op, set, size) }
					p, err := build(set)
					if err != nil {
						return nil, err
					}
					place, err := sim.PlaceOn(g, p, set)
					if err != nil {
						return nil, err
					}
					all = append(all, sim.Job{Program: p, Size: size, Place: place, Fewer: &sim.Fewer{Program: func(ranks int) (*sched.Program, error) { return build(set[:ranks]) }}})
					owner = append(owner, job)
				}
				if job+stage+t == 0 {
					first = len(all)
				}
			}
		}
	}
	healthy := o
	healthy.Fail, healthy.Slow, healthy.Progress = nil, nil, nil
	alone, err := sim.Run(g, all[:first], healthy)
	if err != nil {
		return nil, err
	}
	r, err := sim.Run(g, all, o)
	if err != nil {
		return nil, err
	}
	res.Alone, res.Groups, res.Limit, res.Simulated = alone.Time.Seconds(), l.PP*l.TP, r.Limit, r.Ranks
	res.Shortened = r.Shortened
	res.Jobs = make([]float64, jobs)
	for i, x := range r.Jobs {
		res.Jobs[owner[i]] = max(res.Jobs[owner[i]], (x.End - x.Start).Seconds())
	}
	inside := 0.0 // what NCCL's rings take longer than their part between hosts
	if split {
		inside = max(0, res.Modelled-res.Alone)
		res.Alone += inside
	}
	for i := range res.Jobs {
		res.Jobs[i] += inside
		res.Reduce = max(res.Reduce, res.Jobs[i])
	}
	res.Step = cost.Step - cost.ShownOf(cost.Reduce) + cost.ShownOf(res.Reduce)
	return res, nil
}

// byHost cuts a group of which every host has as many ranks into one ring for each of these, over the hosts.
func byHost(g *topo.Graph, set []topo.NodeID) [][]topo.NodeID {
	local := sim.DomainOf(g, set)
	if local < 2 || local == len(set) || len(set)%local != 0 {
		return [][]topo.NodeID{set}
	}
	rings := make([][]topo.NodeID, local)
	for i, id := range set {
		rings[i%local] = append(rings[i%local], id)
	}
	return rings
}
