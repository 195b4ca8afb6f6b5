package plan

import (
	"cmp"
	_ "embed"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/weft-fabric/weft/model/work"
)

// Interval is where a step's time lies with 90% confidence. It is calibrated on measured steps whose whole model was left out of
// the fit. Every model has the same weight, however many of its steps were measured.
type Interval struct {
	Low    float64 `json:"low_s"`
	High   float64 `json:"high_s"`
	Class  string  `json:"class"`
	Models int     `json:"models"` // that the class has
	Steps  int     `json:"steps"`
	Took   float64 `json:"measured_over_predicted,omitempty"` // in the median of the class, where that is far from 1
}

// confidence is the share of steps that an interval is to contain. Of a class of few models its errors' quantile is nearer to the largest.
const (
	confidence = .9
	enough     = 9 // models that support it
	fewer      = .96
)

// biased is the median error of a class from which on an answer says so.
const biased = .15

// String says what stands behind an interval.
func (i Interval) String() string {
	text := fmt.Sprintf("90%% interval %.4g to %.4g s, from %d left-out steps of %d %s models", i.Low, i.High, i.Steps, i.Models, i.Class)
	if i.Models < enough {
		text += fmt.Sprintf("; fewer than %d models cannot support 90%%", enough)
	}
	if i.Took > 0 {
		text += fmt.Sprintf("; measured steps took %.2f times as long as predicted in the median: do not rely on this figure", i.Took)
	}
	return text
}

// around names a step by its interval, where it has one.
func (i *Interval) around() string {
	if i == nil {
		return "step"
	}
	return fmt.Sprintf("step, 90%% within %s to %s s", readable(i.Low), readable(i.High))
}

// sinkClass is the class of models whose attention has sinks. Its kernels were slow in most releases, so their errors tell nothing of
// others'.
const sinkClass = "MoE or attention-sink"

// errorClass is the class whose errors a step shares: dense, FSDP, MoE or sinkClass.
func errorClass(f Framework, m *work.Model) string {
	switch {
	case m.Sinks:
		return sinkClass
	case m.Experts > 0:
		return "MoE"
	case f == FSDP:
		return "FSDP"
	}
	return "dense"
}

//go:embed outside_errors.csv
var outsideErrorsText string

//go:embed memory_errors.csv
var memoryErrorsText string

// measuredError is predicted over measured, less 1, for a model that stands behind no factor of the prediction.
type measuredError struct {
	class, model string
	error        float64
}

var (
	outsideErrors = sync.OnceValue(func() []measuredError { return readErrors(outsideErrorsText) }) // of published steps, by errorClass
	memoryErrors  = sync.OnceValue(func() []measuredError { return readErrors(memoryErrorsText) })  // of measured peaks, by framework
)

func readErrors(text string) (all []measuredError) {
	for _, line := range strings.Split(strings.TrimSpace(text), "\n")[1:] {
		c := strings.Split(line, ",")
		v, _ := strconv.ParseFloat(c[2], 64)
		all = append(all, measuredError{c[0], c[1], v})
	}
	return all
}

// spreadOf is the conformal quantile of |ln(measured / predicted)| in a class, with one more model left out if leave names it.
func spreadOf(class, leave string) (spread float64, models, steps int) {
	by := map[string][]float64{}
	for _, p := range Points() {
		if !math.IsNaN(p.Error) && p.Model.Name != leave && shares(class, errorClass(p.Framework, p.Model)) {
			by[p.Model.Name] = append(by[p.Model.Name], p.Error)
		}
	}
	for _, e := range outsideErrors() {
		if e.model != leave && shares(class, e.class) {
			by[e.model] = append(by[e.model], e.error)
		}
	}
	switch {
	case class == sinkClass: // two models: the largest error of all with experts
		return conformal(by, 1)
	case len(by) < enough:
		return conformal(by, fewer)
	}
	return conformal(by, confidence)
}

// tookOf is what measured steps of a class took over what was predicted, in the median; 0 where that is near 1.
func tookOf(class string) float64 {
	var all []float64
	for _, e := range outsideErrors() {
		if e.class == class {
			all = append(all, 1/(1+e.error))
		}
	}
	if took := median(all); took > 1+biased || took < 1-biased && took > 0 {
		return took
	}
	return 0
}

// shares reports whether errors of a class say something of another: sinkClass has too few of its own.
func shares(class, errors string) bool {
	return errors == class || class == sinkClass && errors == "MoE"
}

// conformal is the quantile of |ln(1 + error)| at the confidence, from errors by model. Every model has the same weight. How much of a
// left-out model's errors it holds is tested.
func conformal(by map[string][]float64, confidence float64) (spread float64, models, runs int) {
	type score struct{ size, weight float64 }
	var all []score
	for _, list := range by {
		for _, e := range list {
			all = append(all, score{math.Abs(math.Log1p(e)), 1 / float64(len(list))})
		}
	}
	if len(all) == 0 {
		return math.Inf(1), 0, 0
	}
	slices.SortFunc(all, func(a, b score) int { return cmp.Or(cmp.Compare(a.size, b.size), cmp.Compare(a.weight, b.weight)) })
	left := confidence*float64(len(by)) - 1e-9
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
	class := errorClass(q.Framework, q.Model)
	spread, models, steps := spreadOf(class, "")
	if models == 0 {
		return nil
	}
	return &Interval{step * math.Exp(-spread), step * math.Exp(spread), class, models, steps, tookOf(class)}
}

// MemoryInterval is where a peak lies with 90% confidence. It is calibrated on measured peaks of left-out models, as Interval is.
type MemoryInterval struct {
	Low    float64 `json:"low_bytes"`
	High   float64 `json:"high_bytes"`
	Models int     `json:"models"` // that were measured
	Runs   int     `json:"runs"`
}

// String says what stands behind an interval.
func (i MemoryInterval) String() string {
	return fmt.Sprintf("90%% interval %.1f to %.1f GB, from %d measured peaks of %d models", i.Low/1e9, i.High/1e9, i.Runs, i.Models)
}

// Verdicts on memory. Unsure is where the limit lies within the error of what is predicted.
const (
	VerdictFits   = "fits"
	VerdictUnsure = "unsure"
	VerdictNot    = "does not fit"
)

// memorySpread is the conformal quantile of all frameworks' peaks, with one more model left out if leave names it. By framework there are
// too few models for 90%.
func memorySpread(leave string) (spread float64, models, runs int) {
	by := map[string][]float64{}
	for _, e := range memoryErrors() {
		if e.model != leave {
			by[e.model] = append(by[e.model], e.error)
		}
	}
	return conformal(by, confidence)
}

// ranOut is the smallest share of the memory that was predicted for a run that ran out of it, by framework. BLOOM's 82 layers of 14,336 on
// 384 A100 did at 74.1%, though 70 of them took what is predicted. Nobody knows why, so above it no layout is said to fit for sure.
var ranOut = map[Framework]float64{DeepSpeed: .74}

// judge fills in how sure the verdict on memory is.
func (c *Cost) judge() {
	spread, models, runs := memorySpread("")
	c.MemoryInterval = &MemoryInterval{c.Peak * math.Exp(-spread), c.Peak * math.Exp(spread), models, runs}
	room := c.least - c.Over
	sure := math.Exp(-spread)
	if known := ranOut[c.Framework]; known > 0 {
		sure = min(sure, known)
	}
	switch {
	case c.least <= room*sure:
		c.Verdict = VerdictFits
	case c.least*math.Exp(-spread) > room:
		c.Verdict = VerdictNot
	default:
		c.Verdict = VerdictUnsure
	}
}
