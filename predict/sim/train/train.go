// Package train puts training steps on the fabric: every kind of transfer that a plan has between hosts runs over the
// graph's links with all its sister groups at once, with dead and slow parts, ECMP or adaptive routing, and other jobs
// beside it.
//
//	plan's transfers ─┬─ as the plan takes them: this job alone, healthy, links between switches wide enough ─┐
//	                  └─ as they are: all jobs, bad parts, this routing, every link ────────────────────────┴─► times as long
//	                                                                       plan's step with these transfers ◄──┘
//
// Compute, the pipeline's order and what stays inside a domain are the plan's. Transfers of one kind of all jobs run at
// the same time; transfers of different kinds of one job do not. A job that has no transfer of a kind sends its gradients
// meanwhile.
package train

import (
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/plan"
	"github.com/weft-fabric/weft/predict/sim"
)

// Result is a step with contention. Its JSON keys are stable. What it says of gradients is said of the first job.
type Result struct {
	Step      float64    `json:"step_s"`         // of the slowest job
	Planned   float64    `json:"planned_step_s"` // of that job by the plan: without other jobs, on a healthy fabric that blocks nobody
	Reduce    float64    `json:"gradient_reduction_s"`
	Alone     float64    `json:"gradient_reduction_alone_s"` // one group of the job by itself on the healthy fabric
	Modelled  float64    `json:"gradient_reduction_planned_s"`
	Hidden    float64    `json:"gradient_hidden_s"`
	Groups    int        `json:"groups"`
	Ranks     int        `json:"ranks_of_a_group"`
	Limit     string     `json:"limit"`            // of the gradients
	Jobs      []float64  `json:"jobs_reduction_s"` // of the gradients
	Steps     []JobStep  `json:"jobs"`
	Transfers []Transfer `json:"transfers"` // between domains, of all jobs
	Cost      *plan.Cost `json:"plan"`
	Simulated int        `json:"simulated_ranks"`
	Shortened bool       `json:"shortened,omitempty"` // rings around a bad part were simulated at three shorter lengths, and their times carried on along a straight line
	Notes     []string   `json:"notes,omitempty"`
}

// JobStep is one job's step.
type JobStep struct {
	Model   string  `json:"model"`
	Layout  string  `json:"layout"`
	GPUs    int     `json:"gpus"`
	Step    float64 `json:"step_s"`
	Planned float64 `json:"planned_step_s"`
}

// Transfer is one kind of transfer of one job.
type Transfer struct {
	Job    int     `json:"job"`
	Kind   string  `json:"kind"` // gradients, expert gradients, experts, context, stages, tensor, shards, copies
	Op     string  `json:"op"`
	Ranks  int     `json:"ranks"`
	Stride int     `json:"stride"`
	Groups int     `json:"groups"`
	Bytes  float64 `json:"bytes"`
	Times  float64 `json:"times_as_long"` // as in the plan
	Limit  string  `json:"limit"`
}

// Job is a model that trains on GPUs of its own.
type Job struct {
	plan.Question
	Place []topo.NodeID // the GPU of each rank
}

// Deal gives each of some jobs the GPUs it asks for: one job after the other in the cluster's order, or host by host in turn.
func Deal(g *topo.Graph, asked []int, mixed bool, hostGPUs int) ([][]topo.NodeID, error) {
	var gpus []topo.NodeID
	g.Each(topo.GPU, func(id topo.NodeID, _ *topo.Node) { gpus = append(gpus, id) })
	want := 0
	for _, n := range asked {
		want += n
	}
	short := fmt.Errorf("%d jobs of %v GPUs; the cluster has %d", len(asked), asked, len(gpus))
	if len(asked) == 0 || want > len(gpus) {
		return nil, short
	}
	out := make([][]topo.NodeID, len(asked))
	if !mixed || len(asked) == 1 {
		for i, n := range asked {
			out[i], gpus = gpus[:n:n], gpus[n:]
		}
		return out, nil
	}
	for turn := 0; want > 0; turn++ {
		i := turn % len(asked)
		n := min(asked[i]-len(out[i]), hostGPUs)
		if n == 0 {
			continue
		}
		if len(gpus) < hostGPUs {
			return nil, fmt.Errorf("%w; host by host every job takes whole hosts of %d", short, hostGPUs)
		}
		out[i] = append(out[i], gpus[:n]...)
		gpus, want = gpus[hostGPUs:], want-n
	}
	return out, nil
}

// Steps simulates one step of jobs that run at once.
func Steps(g *topo.Graph, jobs []Job, o sim.Options) (*Result, error) {
	f := &fabric{g: g, o: o, longer: map[callOf]float64{}, reference: map[callOf]float64{}, res: &Result{}}
	for i, j := range jobs {
		cost, err := plan.Price(j.Question)
		if err != nil {
			return nil, err
		}
		f.jobs = append(f.jobs, &running{Job: j, cost: cost, kinds: map[string]plan.Transfer{}})
		if err := f.jobs[i].list(); err != nil {
			return nil, err
		}
	}
	for _, kind := range kinds {
		if err := f.contend(kind); err != nil {
			return nil, err
		}
	}
	return f.result()
}

// The kinds of transfers, those with the most bytes last.
var kinds = []string{"stages", "tensor", "context", "experts", "shards", "copies", "expert gradients", "gradients"}

// kindOf says what a transfer of a layout is for.
func kindOf(l plan.Layout, t plan.Transfer) string {
	switch {
	case t.Op == sched.SendRecv:
		return "stages"
	case t.Op == sched.AllToAll && t.Stride == 1:
		return "experts"
	case t.Op == sched.AllToAll, t.Ranks == l.CP && t.Stride == l.TP && l.CP > 1 && l.DP > 1:
		return "context"
	case t.Ranks == l.DP*l.CP && t.Stride == l.TP:
		return "gradients"
	case t.Stride == 1 && t.Ranks == l.TP:
		return "tensor"
	case t.Ranks == l.ExpertData() && t.Stride == l.EP*l.ETP:
		return "expert gradients"
	case t.Stride == l.TP:
		return "shards"
	}
	return "copies"
}

// running is a job with its transfers between domains.
type running struct {
	Job
	cost  *plan.Cost
	kinds map[string]plan.Transfer // the largest of each kind
}

// list finds the job's transfers: those that the plan asks its machine for.
func (r *running) list() error {
	q := r.Question
	q.Machine = q.Machine.Stretched(func(t plan.Transfer) float64 {
		k := kindOf(q.Layout, t)
		if old, ok := r.kinds[k]; !ok || t.Bytes > old.Bytes {
			r.kinds[k] = t
		}
		return 1
	})
	_, err := plan.Price(q)
	return err
}

// other is what a job sends while others have a transfer of a kind.
func (r *running) other(kind string) (string, bool) {
	if _, ok := r.kinds[kind]; ok {
		return kind, true
	}
	_, ok := r.kinds["gradients"]
	return "gradients", ok
}

// callOf is a kind of transfer of a job.
type callOf struct {
	job  int
	kind string
}

// fabric is what the jobs share.
type fabric struct {
	g         *topo.Graph
	o         sim.Options
	jobs      []*running
	longer    map[callOf]float64 // times as long as in the plan
	reference map[callOf]float64 // seconds as the plan takes it
	res       *Result
}

// maxPairs is how many messages of all-to-alls at once are simulated.
const maxPairs = 1 << 21

// fewMessages is how many messages are followed one by one.
const fewMessages = 1 << 17

// contend runs the transfers of a kind of all jobs at once.
func (f *fabric) contend(kind string) error {
	var all []sim.Job
	var owner []int
	sends := make([]string, len(f.jobs))
	has, pairs := false, 0
	for i, j := range f.jobs {
		name, ok := j.other(kind)
		if !ok {
			continue
		}
		sends[i] = name
		has = has || name == kind
		t := j.kinds[name]
		if t.Op == sched.AllToAll {
			pairs += len(j.Place) * t.Ranks
		}
		some, err := f.groups(t, j.Place)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, some...)
		owner = append(owner, slices.Repeat([]int{i}, len(some))...)
	}
	if !has || len(all) == 0 {
		return nil
	}
	if pairs > maxPairs {
		f.res.Notes = append(f.res.Notes, fmt.Sprintf("%s send %d million messages at once, too many to simulate: their time is the plan's",
			kind, pairs>>20))
		return nil
	}
	r, err := f.run(all, f.o)
	if err != nil {
		return fmt.Errorf("%s: %w", kind, err)
	}
	times := make([]float64, len(f.jobs))
	groups := make([]int, len(f.jobs))
	for i, x := range r.Jobs {
		times[owner[i]] = max(times[owner[i]], (x.End - x.Start).Seconds())
		groups[owner[i]]++
	}
	for i, j := range f.jobs {
		if sends[i] != kind {
			continue
		}
		t := j.kinds[kind]
		ref, err := f.asPlanned(callOf{i, kind})
		if err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
		f.longer[callOf{i, kind}] = max(times[i]/ref, 1)
		f.res.Transfers = append(f.res.Transfers, Transfer{Job: i + 1, Kind: kind, Op: t.Op.String(), Ranks: t.Ranks, Stride: t.Stride,
			Groups: len(j.Place) / t.Ranks, Bytes: t.Bytes, Times: max(times[i]/ref, 1), Limit: r.Limit})
	}
	f.res.Simulated += r.Ranks
	f.res.Shortened = f.res.Shortened || r.Shortened
	if kind == "gradients" {
		f.res.Limit = r.Limit
	}
	return nil
}

// asPlanned is the time of a job's transfer under what the plan assumes: the job is alone on the first GPUs of a healthy cluster,
// and links between switches limit nobody, unless the plan has simulated them.
func (f *fabric) asPlanned(c callOf) (float64, error) {
	j := f.jobs[c.job]
	t := j.kinds[c.kind]
	for i := range c.job { // an equal job before it
		if o := f.jobs[i]; o.Machine == j.Machine && o.kinds[c.kind] == t && f.reference[callOf{i, c.kind}] > 0 {
			return f.reference[callOf{i, c.kind}], nil
		}
	}
	_, gpus := j.Machine.Places()
	if !t.Simulated { // groups that share no host with the first do not meet it
		gpus = gpus[:t.Ranks*t.Stride]
	}
	o := f.o
	o.Fail, o.Slow, o.Progress, o.Routing, o.Wide = nil, nil, nil, sim.Adaptive, !t.Simulated
	some, err := f.groups(t, gpus)
	if err != nil {
		return 0, err
	}
	r, err := f.run(some, o)
	if err != nil {
		return 0, err
	}
	f.reference[c] = r.Time.Seconds()
	return f.reference[c], nil
}

// run simulates groups at once. Where they send few messages it costs less to follow each than to look for equal ones.
func (f *fabric) run(jobs []sim.Job, o sim.Options) (*sim.Result, error) {
	messages := 0
	for _, j := range jobs {
		if j.Program.Op == sched.SendRecv {
			messages += j.Program.Ranks
		} else {
			messages += j.Program.Ranks * (j.Program.Ranks - 1)
		}
	}
	o.Unfolded = messages <= fewMessages
	return sim.Run(f.g, jobs, o)
}

// groups makes the programs of all groups of a transfer over a job's GPUs.
func (f *fabric) groups(t plan.Transfer, place []topo.NodeID) ([]sim.Job, error) {
	name, op := "ring", sched.ReduceScatter // an all-gather passes the same links, an all-reduce passes them twice
	switch t.Op {
	case sched.AllToAll:
		name, op = "pairwise", t.Op
	case sched.SendRecv:
		op = t.Op
	}
	a, err := algo.Find(name)
	if err != nil {
		return nil, err
	}
	block := t.Ranks * t.Stride
	if len(place)%block != 0 {
		return nil, fmt.Errorf("groups of %d ranks %d apart do not divide %d GPUs", t.Ranks, t.Stride, len(place))
	}
	var all []sim.Job
	for first := 0; first < len(place); first += block {
		for k := range t.Stride {
			set := make([]topo.NodeID, t.Ranks)
			for i := range set {
				set[i] = place[first+i*t.Stride+k]
			}
			rings := [][]topo.NodeID{set}
			if op == sched.ReduceScatter {
				rings = byHost(f.g, set)
			}
			size := unit.Bytes(max(t.Bytes/float64(len(rings)), 1))
			for _, set := range rings {
				j, err := f.job(a, op, set, size)
				if err != nil {
					return nil, err
				}
				all = append(all, j)
			}
		}
	}
	return all, nil
}

// job is one group's program.
func (f *fabric) job(a *algo.Algorithm, op sched.Collective, set []topo.NodeID, size unit.Bytes) (sim.Job, error) {
	build := func(set []topo.NodeID) (*sched.Program, error) { return sim.Wish{}.ProgramOn(a, f.g, op, set, size) }
	p, err := build(set)
	if err != nil {
		return sim.Job{}, err
	}
	place, err := sim.PlaceOn(f.g, p, set)
	if err != nil {
		return sim.Job{}, err
	}
	j := sim.Job{Program: p, Size: size, Place: place}
	if op == sched.ReduceScatter {
		j.Fewer = &sim.Fewer{Program: func(ranks int) (*sched.Program, error) { return build(set[:ranks]) }}
	}
	return j, nil
}

// result prices the jobs again with the transfers as they are.
func (f *fabric) result() (*Result, error) {
	res := f.res
	for i, j := range f.jobs {
		q := j.Question
		q.Machine = q.Machine.Stretched(func(t plan.Transfer) float64 {
			if x, ok := f.longer[callOf{i, kindOf(q.Layout, t)}]; ok {
				return x
			}
			return 1
		})
		cost, err := plan.Price(q)
		if err != nil {
			return nil, err
		}
		res.Jobs = append(res.Jobs, cost.Reduce)
		res.Steps = append(res.Steps, JobStep{q.Model.Name, q.Layout.String(), q.Layout.GPUs(), cost.Step, j.cost.Step})
		if cost.Step > res.Step {
			res.Step, res.Planned = cost.Step, j.cost.Step
		}
		if i == 0 {
			res.Reduce = cost.Reduce
		}
	}
	one := f.jobs[0]
	l := one.Layout
	res.Cost, res.Modelled, res.Hidden, res.Groups, res.Ranks = one.cost, one.cost.Reduce, one.cost.Hide, l.PP*l.TP, l.DP*l.CP
	return res, f.alone()
}

// alone runs one group's gradients by itself.
func (f *fabric) alone() error {
	one := f.jobs[0]
	t, ok := one.kinds["gradients"]
	if !ok {
		return nil
	}
	_, gpus := one.Machine.Places()
	t.Stride, gpus = 1, everyNth(gpus[:t.Ranks*t.Stride], t.Stride)
	some, err := f.groups(t, gpus)
	if err != nil {
		return err
	}
	o := f.o
	o.Fail, o.Slow, o.Progress = nil, nil, nil
	r, err := f.run(some, o)
	if err != nil {
		return err
	}
	f.res.Alone = r.Time.Seconds()
	if t.Op == sched.AllReduce {
		f.res.Alone *= 2
	}
	return nil
}

func everyNth(all []topo.NodeID, n int) []topo.NodeID {
	var out []topo.NodeID
	for i := 0; i < len(all); i += n {
		out = append(out, all[i])
	}
	return out
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
