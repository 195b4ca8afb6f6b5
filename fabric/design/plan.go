package design

import (
	"fmt"
	"strings"

	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/work"
	"github.com/weft-fabric/weft/predict/plan"
)

// ModelPlan is how the model that the cluster file names trains best on this cluster.
type ModelPlan struct {
	Model    string        `json:"model"`
	GPUs     int           `json:"gpus"`
	Best     *plan.Cost    `json:"best,omitempty"` // none where nothing fits
	Second   *plan.Cost    `json:"second,omitempty"`
	Behind   []string      `json:"second_loses,omitempty"` // why
	Short    float64       `json:"memory_short_bytes,omitempty"`
	Tokens   float64       `json:"tokens,omitempty"`
	Days     float64       `json:"days,omitempty"`
	USD      float64       `json:"usd,omitempty"`
	Changes  []plan.Change `json:"changes,omitempty"` // of the machine, and what they bring
	Verdict  string        `json:"verdict"`
	rateFrom string
}

// plan searches the best layout of the owner's model, if one is named.
func (r *Report) plan(c *cluster.Cluster, n cluster.Needs) error {
	if n.Model == "" {
		return nil
	}
	m, err := work.Named(n.Model)
	if err != nil {
		return fmt.Errorf("needs: model %q: %w", n.Model, err)
	}
	machine, err := plan.NewMachine(c, 0)
	if err != nil {
		return fmt.Errorf("needs: model %s cannot be planned here: %w", m.Name, err)
	}
	p := &ModelPlan{Model: m.Name, GPUs: machine.GPUs, Tokens: n.Tokens, rateFrom: machine.HourFrom}
	found, err := plan.Search(m, machine, plan.Megatron, plan.Wish{Batch: n.Batch, Seq: n.Seq, Dtype: n.Dtype, Reserve: .05, Top: 2})
	if err != nil {
		return fmt.Errorf("needs: model %s: %w", m.Name, err)
	}
	r.Plan = p
	if found.Best == nil {
		p.Short = found.Over.Over
		p.Verdict = fmt.Sprintf("%s does not fit: the best layout (%s) lacks %s a GPU.", p.Model, found.Over.LayoutText, size(p.Short))
		return nil
	}
	why := func(l plan.Layout) (*plan.Cost, error) {
		return plan.Price(plan.Question{Model: m, Machine: machine, Framework: plan.Megatron, Layout: l, Why: true})
	}
	if p.Best, err = why(found.Best.Layout); err != nil {
		return err
	}
	var layouts []plan.Layout
	for _, x := range found.Candidates {
		layouts = append(layouts, x.Layout)
	}
	if len(found.Candidates) > 1 {
		if p.Second, err = why(found.Candidates[1].Layout); err != nil {
			return err
		}
		p.Behind = plan.Beside(p.Best, p.Second)
		p.Second.Why = nil
	}
	p.Changes = plan.Changes(plan.Question{Model: m, Machine: machine, Framework: plan.Megatron, Layout: p.Best.Layout}, layouts)
	p.Best.Why = nil
	p.judge(n)
	return nil
}

// judge says how fast the best layout is, and what the owner's tokens take with it if their number is given.
func (p *ModelPlan) judge(n cluster.Needs) {
	p.Verdict = fmt.Sprintf("%s trains at %s a step of %s sequences, %.0f%% of the GPUs' peak, %.0f%% of the time on transfers nothing hides.",
		p.Model, seconds(p.Best.Step), count(n.Batch), 100*p.Best.MFU, 100*p.Best.Shown)
	if n.Tokens > 0 {
		steps := n.Tokens / (float64(n.Batch) * float64(n.Seq))
		p.Days, p.USD = steps*p.Best.Step/86400, steps*p.Best.USDPerStep
		p.Verdict += fmt.Sprintf(" %s tokens take %s without failures.", params(n.Tokens), days(p.Days))
	}
}

// planSections is empty where no model is named.
func (r *Report) planSections() []section {
	p := r.Plan
	if p == nil {
		return nil
	}
	s := section{ID: "plan", Title: "What the model needs", Lead: p.Verdict}
	if p.Best == nil {
		return []section{s}
	}
	b := p.Best
	near := "nothing measured is near: take it as a model's word"
	if b.Nearest != nil {
		what, _, _ := strings.Cut(b.Nearest.What, ", tp=")
		near = fmt.Sprintf("nearest measured: %s, %s, off by %+.0f%% there", what, seconds(b.Nearest.Step), 100*b.Nearest.Error)
		if b.Nearest.Remark != "" {
			near += "; " + b.Nearest.Remark
		}
	}
	t := table{Cols: []col{left("what"), right("amount"), left("how")}, Rows: [][]string{
		{"layout", count(p.GPUs) + " GPUs", "the fastest that fits: " + strings.ReplaceAll(b.LayoutText, ",", ", ")},
		{"step", seconds(b.Step), near},
		{"tokens", fmt.Sprintf("%.0f/s a GPU", b.TokensPerS),
			fmt.Sprintf("%.0f TFLOP/s per GPU, counted %s; %.1f%% of the peak", b.TFLOPS, b.Convention, 100*b.MFU)},
		{"memory", size(b.Peak), fmt.Sprintf("of %s a GPU at the peak; %s of it state", size(b.Capacity), size(b.State))},
		{"transfers shown", percent(b.Shown), fmt.Sprintf("of the step; the pipeline idles for %s", percent(b.Bubble))},
	}}
	if p.Days > 0 {
		t.Rows = append(t.Rows, []string{"run", days(p.Days),
			fmt.Sprintf("%s tokens, $%s (%s); failures come on top: 'weft sim failures'", params(p.Tokens), money(p.USD), p.rateFrom)})
	}
	if p.Second != nil {
		behind := ""
		if len(p.Behind) > 0 {
			behind = "; it takes " + strings.Join(p.Behind[:min(len(p.Behind), 2)], ", ")
		}
		t.Rows = append(t.Rows, []string{"second best", seconds(p.Second.Step), strings.ReplaceAll(p.Second.LayoutText, ",", ", ") + behind})
	}
	for _, x := range p.Changes { // what to buy or change
		t.Rows = append(t.Rows, []string{"with " + x.What, seconds(x.Step), fmt.Sprintf("%+.1f%%", -100*x.Gain)})
	}
	s.Tables = []table{t}
	return []section{s}
}
