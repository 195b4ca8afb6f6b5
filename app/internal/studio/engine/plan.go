package engine

import (
	"cmp"
	"fmt"
	"time"

	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/work"
	"github.com/weft-fabric/weft/predict/plan"
)

type planQuestion struct {
	File
	Model     string `json:"model"` // a name, or a size such as 13B
	Batch     int    `json:"batch"`
	Seq       int    `json:"seq"`
	GPUs      int    `json:"gpus"`
	Framework string `json:"framework"`
	Dtype     string `json:"dtype"`
	Layout    string `json:"layout"` // price this one instead of searching
	Tokens    string `json:"tokens"`
}

// point is one layout of the scatter.
type point struct {
	Layout string  `json:"layout"`
	Step   float64 `json:"step_s"`
	MFU    float64 `json:"mfu"`
	Peak   float64 `json:"memory_peak_bytes"`
	Front  bool    `json:"front"`
}

type pass struct {
	Rank  int     `json:"rank"`
	Chunk int     `json:"chunk"`
	Micro int     `json:"micro"`
	Pass  string  `json:"pass"`
	Begin float64 `json:"begin_s"`
	End   float64 `json:"end_s"`
}

// mostPasses bounds the passes of one step that the page draws.
const mostPasses = 40_000

func (j *job) plan(q planQuestion) (any, error) {
	ask, err := j.training(q)
	if err != nil {
		return nil, err
	}
	m, mc := ask.Model, ask.Machine
	out := map[string]any{"model": m.Name, "params": m.Params().Total, "gpu": mc.GPU.Name, "host_gpus": mc.HostGPUs, "domain": mc.Domain}
	cost, err := j.layouts(q, ask, out)
	if err != nil {
		return nil, err
	}
	if err := describe(q, mc, cost, out); err != nil {
		return nil, err
	}
	return out, nil
}

// training reads what is to be trained, on what and by which framework.
func (j *job) training(q planQuestion) (*plan.Question, error) {
	b, err := j.cluster(q.File)
	if err != nil {
		return nil, err
	}
	m, err := model(q.Model)
	if err != nil {
		return nil, err
	}
	if min(q.Batch, q.Seq) < 1 || max(q.Batch, q.Seq) > 1<<26 {
		return nil, fmt.Errorf("batch %d and sequence %d; both must be at least 1", q.Batch, q.Seq)
	}
	fw := plan.Megatron
	if q.Framework != "" {
		if fw, err = plan.ParseFramework(q.Framework); err != nil {
			return nil, err
		}
	}
	mc, err := plan.NewMachine(b.c, q.GPUs)
	if err != nil {
		return nil, err
	}
	return &plan.Question{Model: m, Machine: mc, Framework: fw, Why: true}, nil
}

func model(name string) (*work.Model, error) {
	m, err := work.Named(name)
	if n, wrong := cluster.ParseCount(name); err != nil && wrong == nil && n >= 1e6 {
		return work.GPTLike(n), nil
	}
	return m, err
}

// layouts prices the layout that was asked for, or searches.
func (j *job) layouts(q planQuestion, ask *plan.Question, out map[string]any) (*plan.Cost, error) {
	if q.Layout != "" {
		return priced(q, ask)
	}
	var told time.Time
	w := plan.Wish{Batch: q.Batch, Seq: q.Seq, Dtype: q.Dtype, Reserve: .05, Top: 40, Within: 1.5, Stop: j.stop,
		Progress: func(priced int, best float64) {
			if time.Since(told) > 100*time.Millisecond {
				told = time.Now()
				j.tell(Progress{Text: fmt.Sprintf("%s layouts priced, best %.4g s", grouped(int64(priced)), best)})
			}
		}}
	j.tell(Progress{Text: "searching layouts"})
	found, err := plan.Search(ask.Model, ask.Machine, ask.Framework, w)
	if err == nil {
		err = j.ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	out["looked"], out["priced"] = found.TooBig+found.Bounded+found.Priced, found.Priced
	if found.Best == nil {
		return found.Over, nil
	}
	out["points"] = points(found)
	ask.Layout = found.Best.Layout
	cost, err := plan.Price(*ask)
	if err != nil {
		return nil, err
	}
	var few []plan.Layout
	for _, c := range found.Candidates[:min(5, len(found.Candidates))] {
		few = append(few, c.Layout)
	}
	out["changes"] = plan.Changes(*ask, few)
	return cost, nil
}

// priced is the cost of the layout that was asked for.
func priced(q planQuestion, ask *plan.Question) (*plan.Cost, error) {
	l, err := plan.ParseLayout(q.Layout, ask.Framework, ask.Machine.GPUs)
	if err != nil {
		return nil, err
	}
	l.Batch, l.Seq = cmp.Or(l.Batch, q.Batch), cmp.Or(l.Seq, q.Seq)
	if err := l.Check(ask.Model, ask.Machine.GPUs); err != nil {
		return nil, err
	}
	ask.Layout = l
	return plan.Price(*ask)
}

// points lists each layout once. Those on the Pareto front come first.
func points(f *plan.Found) []point {
	var list []point
	seen := map[string]bool{}
	add := func(c *plan.Cost, front bool) {
		if !seen[c.LayoutText] {
			seen[c.LayoutText] = true
			list = append(list, point{c.LayoutText, c.Step, c.MFU, c.Peak, front})
		}
	}
	for _, c := range f.Front {
		add(c, true)
	}
	for _, c := range f.Candidates {
		add(c, false)
	}
	return list
}

// describe adds the chosen layout: figures, memory, the tree of terms, one step's passes and which GPUs do what.
func describe(q planQuestion, mc *plan.Machine, c *plan.Cost, out map[string]any) error {
	why := c.Why
	shown := *c
	shown.Why = nil
	out["cost"] = &shown
	out["why"] = why
	out["notes"] = append(append([]string{}, mc.Notes...), c.Notes...)
	if c.Pipe != nil {
		list := []pass{}
		for _, s := range c.Pipe.Spans[:min(len(c.Pipe.Spans), mostPasses)] {
			list = append(list, pass{s.Rank, s.Chunk, s.Micro, string(s.Pass), s.Begin, s.End})
		}
		out["passes"], out["passes_cut"], out["pipe_s"] = list, len(c.Pipe.Spans) > mostPasses, c.Pipe.Time
	}
	_, places := mc.Places()
	nodes := ints{}
	for _, n := range places {
		nodes = append(nodes, int32(n))
	}
	out["nodes"] = nodes
	if q.Tokens != "" {
		n, err := cluster.ParseCount(q.Tokens)
		if err != nil {
			return fmt.Errorf("tokens: %w", err)
		}
		steps := n / (float64(c.Layout.Batch) * float64(max(c.Layout.Seq, 1)))
		out["tokens"], out["days"], out["usd"], out["mwh"] = n, steps*c.Step/86400, steps*c.USDPerStep, steps*c.EnergyJ/3.6e9
	}
	return nil
}
