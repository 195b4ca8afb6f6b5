package tune

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/cost"
)

// Value is a fitted constant and its standard error.
type Value struct{ Best, Error float64 }

func (v Value) String() string { return fmt.Sprintf("%.4g ± %.2g", v.Best, v.Error) }

// LinkFit is the alpha-beta-gamma model of one kind of link, fitted.
type LinkFit struct {
	Kind    string // "inside" one node, or "between" nodes
	Launch  Value  // us
	Alpha   Value  // us a step
	Beta    Value  // us a MB (1e6 bytes) over the wire
	Gamma   Value  // us a MB reduced
	Overlap Value

	Ops         []sched.Collective // that the points are of
	Points      int
	From, To    unit.Bytes // sizes that the points span
	MinGPUs     int
	MaxGPUs     int
	MedianError float64 // of |model/measured - 1|, each point by a model that was fitted without it
	P90Error    float64
	Notes       []string // what the points could not tell apart
}

// Model gives the fitted model.
func (f *LinkFit) Model() cost.AlphaBeta {
	return cost.AlphaBeta{Launch: f.Launch.Best, Alpha: f.Alpha.Best, Beta: f.Beta.Best / 1e6, Gamma: f.Gamma.Best / 1e6,
		Overlap: f.Overlap.Best}
}

// Bus is the bus bandwidth that the model gives a ring all-reduce of the largest
// size and over the most GPUs that were measured.
func (f *LinkFit) Bus() unit.Rate {
	p := Point{Op: sched.AllReduce, GPUs: max(f.MaxGPUs, 2), Bytes: f.To}
	us := f.Model().Micros(costOf(p))
	if us <= 0 {
		return 0
	}
	return unit.Rate(float64(f.To) * p.Op.BusFactor(p.GPUs) / us * 1e6)
}

// Calibration is what the points of one cluster say of its links.
type Calibration struct {
	Links []LinkFit // at most one of each kind, "inside" first
}

// Link finds the fit of a kind of link: inside a node, or between nodes.
func (c *Calibration) Link(nodes int) (*LinkFit, error) {
	kind := kindOf(nodes)
	for i := range c.Links {
		if c.Links[i].Kind == kind {
			return &c.Links[i], nil
		}
	}
	return nil, fmt.Errorf("the calibration has no points %s; measure there too",
		map[string]string{"inside": "inside one node", "between": "between nodes"}[kind])
}

func kindOf(nodes int) string {
	if nodes > 1 {
		return "between"
	}
	return "inside"
}

const (
	bootstraps  = 40
	leastPoints = 4
)

// Calibrate fits an alpha-beta-gamma model to points, one for each kind of link
// that they cover. It minimises a robust loss of the logarithm of model over
// measured, so that a factor counts the same at 8 bytes and at 8 GiB and a few
// outliers do not rule. Errors are the spread over bootstrap samples drawn with
// a fixed seed: the same points give the same calibration. Points of the two
// places are taken alike; a point without bytes counts as one of pure latency.
func Calibrate(points []Point) (*Calibration, error) {
	var c Calibration
	for _, kind := range []string{"inside", "between"} {
		var list []Point
		for i, p := range points {
			if p.Time <= 0 || p.GPUs < 2 || p.Bytes < 0 {
				if p.GPUs >= 1 && p.Bytes >= 0 && p.Time >= 0 {
					continue // nothing moves with one GPU, and no clock shows nothing
				}
				return nil, fmt.Errorf("point %d: %d GPUs, %d bytes, %s; none may be negative", i+1, p.GPUs, p.Bytes, p.Time)
			}
			if kindOf(p.Nodes) == kind {
				list = append(list, p)
			}
		}
		if len(list) == 0 {
			continue
		}
		f, err := calibrate(kind, list)
		if err != nil {
			return nil, err
		}
		c.Links = append(c.Links, *f)
	}
	if len(c.Links) == 0 {
		return nil, errors.New("no points of two GPUs or more with a time above zero")
	}
	return &c, nil
}

// costOf is the cost of what NCCL most likely ran: rings, and direct sends. Its barrier is an all-reduce of nothing.
func costOf(p Point) cost.Work {
	name, op, bytes := "ring", p.Op, p.Bytes
	switch {
	case sends(p.Op):
		name = "direct"
	case p.Op == sched.Barrier:
		op, bytes = sched.AllReduce, 0
	}
	var w cost.Work
	algos, _ := cost.Algos(op, max(p.GPUs, 1))
	for _, a := range algos {
		if a.Name == name {
			w = a.Cost(bytes)
		}
	}
	if p.Op == sched.AllToAll && p.Nodes > 1 { // what all GPUs of a node send to other nodes
		n := float64(p.GPUs)
		per := n / float64(p.Nodes)
		w.Wire = per * float64(p.Bytes) * (n - per) / n
	}
	return w
}

// sample is a point ready for fitting.
type sample struct {
	c  cost.Work
	us float64
}

// calibrate fits the links of one kind to measured points. Points that cannot tell latency from bandwidth are refused:
// four times the size from the smallest to the largest, at least.
func calibrate(kind string, points []Point) (*LinkFit, error) {
	f := &LinkFit{Kind: kind, Points: len(points), From: points[0].Bytes, To: points[0].Bytes, MinGPUs: points[0].GPUs,
		MaxGPUs: points[0].GPUs}
	for _, p := range points {
		if !slices.Contains(f.Ops, p.Op) {
			f.Ops = append(f.Ops, p.Op)
		}
	}
	slices.Sort(f.Ops)
	var list []sample
	var steps []float64
	var plain, reducing bool
	for _, p := range points {
		c := costOf(p)
		list = append(list, sample{c, p.Time.Microseconds()})
		if !slices.Contains(steps, c.Steps) {
			steps = append(steps, c.Steps)
		}
		if c.Reduced > 0 {
			reducing = true
		} else if c.Wire > 0 {
			plain = true
		}
		f.From, f.To = min(f.From, p.Bytes), max(f.To, p.Bytes)
		f.MinGPUs, f.MaxGPUs = min(f.MinGPUs, p.GPUs), max(f.MaxGPUs, p.GPUs)
	}
	if len(list) < leastPoints || f.To < 4*max(f.From, 1) {
		return nil, fmt.Errorf("%d points %s over %s to %s; at least %d over a factor of four in size are needed to tell latency from bandwidth",
			len(list), inWords[kind], f.From, f.To, leastPoints)
	}
	free := freedom{launch: len(steps) > 1, gamma: plain && reducing}
	if !free.launch {
		f.Notes = append(f.Notes,
			fmt.Sprintf("all points take %.4g steps: launch and steps cannot be told apart, and all latency counts for the steps", steps[0]))
	}
	if !free.gamma {
		f.Notes = append(f.Notes, "points either all reduce or none do: what reducing costs is part of beta")
	}
	if len(list) <= free.constants() {
		return nil,
			fmt.Errorf("%d points %s for %d constants; give at least one point more, or points of one operation or GPU count, which have fewer constants",
				len(list), inWords[kind], free.constants())
	}
	best := free.fit(list, free.start(list), 8)
	m := free.model(best)
	f.Launch.Best, f.Alpha.Best, f.Beta.Best, f.Gamma.Best, f.Overlap.Best = m.Launch, m.Alpha, m.Beta*1e6, m.Gamma*1e6, m.Overlap
	errs := free.heldOut(list, best)
	f.MedianError = errs[(len(errs)-1)/2]
	f.P90Error = errs[int(math.Ceil(.9*float64(len(errs))))-1]
	free.bootstrap(f, list, best)
	return f, nil
}

var inWords = map[string]string{"inside": "inside a node", "between": "between nodes"}

// folds is how many parts the points are cut into to find the error on points that the fit has not seen; every point is a part of
// its own where there are no more than twice as many.
const folds = 5

// heldOut gives the errors of all points, sorted, each by a model that was fitted without the point's part.
func (o freedom) heldOut(list []sample, best []float64) (errs []float64) {
	parts := folds
	if len(list) <= 2*folds {
		parts = len(list)
	}
	for k := range parts {
		var rest []sample
		for i, s := range list {
			if i%parts != k {
				rest = append(rest, s)
			}
		}
		m := o.model(o.fit(rest, best, 4))
		for i := k; i < len(list); i += parts {
			errs = append(errs, math.Abs(m.Micros(list[i].c)/list[i].us-1))
		}
	}
	slices.Sort(errs)
	return errs
}

// constants is how many there are to fit.
func (o freedom) constants() int {
	n := 3
	if o.launch {
		n++
	}
	if o.gamma {
		n++
	}
	return n
}

// freedom says which constants the points determine.
type freedom struct{ launch, gamma bool }

// model reads the logarithms of alpha, beta, overlap and, where free, launch and gamma.
func (o freedom) model(x []float64) cost.AlphaBeta {
	m := cost.AlphaBeta{Alpha: math.Exp(x[0]), Beta: math.Exp(x[1]), Overlap: math.Exp(max(-1, min(1.2, x[2])))}
	k := 3
	if o.launch {
		m.Launch = math.Exp(x[k])
		k++
	}
	if o.gamma {
		m.Gamma = math.Exp(x[k])
	}
	return m
}

// start reads a first guess off the smallest and the largest time a byte.
func (o freedom) start(list []sample) []float64 {
	alpha, beta := math.Inf(1), math.Inf(1)
	for _, s := range list {
		alpha = min(alpha, s.us/max(s.c.Steps, 1))
		if s.c.Wire > 0 {
			beta = min(beta, s.us/s.c.Wire)
		}
	}
	if math.IsInf(beta, 1) {
		beta = 1e-6
	}
	x := []float64{math.Log(alpha), math.Log(beta), 0}
	if o.launch {
		x[0] -= math.Ln2
		x = append(x, math.Log(alpha)+math.Ln2)
	}
	if o.gamma {
		x = append(x, math.Log(beta/4))
	}
	return x
}

// fit searches for the parameters with the least loss, beginning anew from the best a few times, as a simplex may
// collapse early.
func (o freedom) fit(list []sample, start []float64, restarts int) []float64 {
	f := func(x []float64) float64 {
		m := o.model(x)
		sum := 0.0
		for _, s := range list {
			sum += loss(m.Micros(s.c), s.us)
		}
		// Without points of middle size nothing says how latency and bytes
		// overlap: a weak pull towards adding up.
		return sum/float64(len(list)) + 1e-4*x[2]*x[2]
	}
	x := start
	for range restarts {
		x = simplex(f, x, .3, 150)
	}
	return x
}

// bootstrap fits samples drawn with replacement and takes the spread.
func (o freedom) bootstrap(f *LinkFit, list []sample, best []float64) {
	random := rand.New(rand.NewPCG(1, uint64(len(list))))
	var sum, square [5]float64
	drawn := make([]sample, len(list))
	for range bootstraps {
		for i := range drawn {
			drawn[i] = list[random.IntN(len(list))]
		}
		m := o.model(o.fit(drawn, best, 2))
		for i, v := range []float64{m.Launch, m.Alpha, m.Beta * 1e6, m.Gamma * 1e6, m.Overlap} {
			sum[i] += v
			square[i] += v * v
		}
	}
	for i, v := range []*Value{&f.Launch, &f.Alpha, &f.Beta, &f.Gamma, &f.Overlap} {
		mean := sum[i] / bootstraps
		v.Error = math.Sqrt(max(0, square[i]/bootstraps-mean*mean) * bootstraps / (bootstraps - 1))
	}
}
