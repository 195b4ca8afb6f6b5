package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Interval is where a step's time lies with 90% confidence. It is calibrated on measured steps whose whole model was left out of
// the fit. Every model has the same weight, however many of its steps were measured.
type Interval struct {
	Low    float64 `json:"low_s"`
	High   float64 `json:"high_s"`
	Class  string  `json:"class"`
	Models int     `json:"models"` // that the class has
	Steps  int     `json:"steps"`
}

// confidence is the share of steps that an interval is to contain.
const confidence = .9

// String says what stands behind an interval.
func (i Interval) String() string {
	text := fmt.Sprintf("90%% interval %.4g to %.4g s, from %d left-out steps of %d %s models", i.Low, i.High, i.Steps, i.Models, i.Class)
	if i.Models < 9 {
		text += "; fewer than 9 models cannot support 90%"
	}
	return text
}

// errorClass is the class whose errors a step shares: dense, FSDP or MoE.
func errorClass(f Framework, experts int) string {
	switch {
	case experts > 0:
		return "MoE"
	case f == FSDP:
		return "FSDP"
	}
	return "dense"
}

// spreadOf is the conformal quantile of |ln(measured / predicted)| in a class, with one more model left out if leave names it.
func spreadOf(class, leave string) (spread float64, models, steps int) {
	by := map[string][]float64{}
	for _, p := range Points() {
		if !math.IsNaN(p.Error) && p.Model.Name != leave && errorClass(p.Framework, p.Model.Experts) == class {
			by[p.Model.Name] = append(by[p.Model.Name], math.Abs(math.Log1p(p.Error)))
		}
	}
	type score struct{ size, weight float64 }
	var all []score
	for _, list := range by {
		for _, e := range list {
			all = append(all, score{e, 1 / float64(len(list))})
		}
	}
	if len(all) == 0 {
		return math.Inf(1), 0, 0
	}
	slices.SortFunc(all, func(a, b score) int { return cmp.Or(cmp.Compare(a.size, b.size), cmp.Compare(a.weight, b.weight)) })
	left := min(confidence*float64(len(by)+1), float64(len(by))) - 1e-9
	for _, s := range all {
		spread = s.size
		if left -= s.weight; left <= 0 {
			break
		}
	}
	return spread, len(by), len(all)
}

// interval is a step's, or nil where nothing was measured.
func (q Question) interval(step float64) *Interval {
	if q.Model.CNN != nil {
		return nil
	}
	class := errorClass(q.Framework, q.Model.Experts)
	spread, models, steps := spreadOf(class, "")
	if models == 0 {
		return nil
	}
	return &Interval{step * math.Exp(-spread), step * math.Exp(spread), class, models, steps}
}
