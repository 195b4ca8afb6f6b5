package plan

import (
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/weft-fabric/weft/plan/schedule"
	"github.com/weft-fabric/weft/work"
)

// Wish is what a search may choose from. Zero values mean everything that can run.
type Wish struct {
	Batch, Seq int
	Dtype      string
	Grad       string
	Phase      string
	Fixed      func(Layout) bool // layouts that are allowed; nil for all
	Schedules  []schedule.Kind   // nil for 1f1b and interleaved
	Release    string
	Factor     float64
	Reserve    float64 // share of the memory that a layout leaves free, where any layout does
	Top        int     // how many candidates to keep; 0 for 10
	Within     float64 // candidates up to Within times the best are priced for the front; 0 for 1.1
	// Progress, if set, is called now and then.
	Progress func(done, all int, best float64)
}

// Found is what a search gives.
type Found struct {
	Best       *Cost
	Candidates []*Cost // that fit, the fastest first
	Front      []*Cost // within Within times the best: no other has both less time and less memory
	Looked     int     // layouts that can run at all
	TooBig     int     // whose parameters alone do not fit
	Bounded    int     // left out since their compute alone, or their pipeline without transfers of data parallelism, takes longer than those kept
	Priced     int     // priced in full
	Over       *Cost   // where nothing fits: the one that misses by the least
}

// divisors of n in order.
func divisors(n int) []int {
	var out []int
	for d := 1; d*d <= n; d++ {
		if n%d == 0 {
			out = append(out, d)
			if d*d != n {
				out = append(out, n/d)
			}
		}
	}
	slices.Sort(out)
	return out
}

// Layouts lists every layout of a model on a machine that can run at all, in a fixed order.
func Layouts(m *work.Model, mc *Machine, f Framework, w Wish) []Layout {
	base := Default(f)
	base.Batch, base.Seq = w.Batch, w.Seq
	if w.Dtype != "" {
		base.Dtype = w.Dtype
	}
	if w.Grad != "" {
		base.Grad = w.Grad
	}
	if w.Phase != "" {
		base.Phase = w.Phase
	}
	n := mc.GPUs
	if m.CNN != nil {
		var out []Layout
		for _, micro := range divisors(max(w.Batch/n, 1)) {
			l := base
			l.DP, l.Micro, l.ETP = n, micro, 1
			if l.Check(m, n) == nil {
				out = append(out, l)
			}
		}
		return out
	}
	kinds := w.Schedules
	if kinds == nil {
		kinds = []schedule.Kind{schedule.OneFOneB, schedule.Interleaved}
	}
	zeros := []int{1}
	switch f {
	case FSDP:
		zeros = []int{2, 3}
	case DeepSpeed:
		zeros = []int{0, 1, 2, 3}
	case Megatron:
		zeros = []int{0, 1, 3}
	}
	recomputes := []work.Recompute{{}, {Full: true}}
	if f == Megatron && (m.Experts > 0 || m.Gated) {
		names := []string{"layernorm", "mlp_act"}
		if m.Experts > 0 {
			names = []string{"layernorm", "moe_act"}
		}
		if m.MLA != nil {
			names = append(names, "mla_up_proj")
		}
		slices.Sort(names)
		recomputes = append(recomputes, work.Recompute{Modules: names})
	}
	if f == FSDP {
		recomputes = append(recomputes, work.Recompute{Modules: []string{"op"}})
	}
	tpMost := min(mc.Domain, 16)
	var out []Layout
	for _, tp := range divisors(n) {
		if tp > tpMost || m.Heads%tp != 0 {
			continue
		}
		for _, cp := range divisors(n / tp) {
			// Context parallelism pays for long sequences only: below 4,096 tokens a rank it is left out.
			if cp > 1 && w.Seq/cp < 4096 || cp > 64 {
				continue
			}
			for _, pp := range divisors(n / tp / cp) {
				if pp > m.Layers || pp > 64 {
					continue
				}
				dp := n / tp / cp / pp
				if w.Batch%dp != 0 {
					continue
				}
				for _, micro := range divisors(w.Batch / dp) {
					if micro > 8 || micro > 1 && micro*w.Seq/cp > 65536 {
						continue
					}
					for _, ep := range divisors(max(m.Experts, 1)) {
						if ep > 1 && tp*cp*dp%ep != 0 {
							continue
						}
						if m.Experts > 0 && f != Megatron && ep > 1 {
							continue
						}
						for _, kind := range kinds {
							if pp == 1 && kind != schedule.OneFOneB {
								continue
							}
							chunks := []int{1}
							switch kind {
							case schedule.Interleaved:
								chunks = nil
								for _, v := range divisors(m.Layers / pp) {
									if v > 1 && m.Layers%pp == 0 && v <= 20 {
										chunks = append(chunks, v)
									}
								}
							case schedule.ZBV:
								chunks = []int{2}
							}
							for _, v := range chunks {
								for _, z := range zeros {
									if z == 3 && pp > 1 || z == 0 && dp*cp > 1 && f == Megatron {
										continue
									}
									if f == Megatron && z == 1 && dp*cp == 1 {
										continue
									}
									for _, r := range recomputes {
										l := base
										l.TP, l.CP, l.PP, l.VPP, l.DP, l.EP, l.ETP = tp, cp, pp, v, dp, ep, 1
										if ep == 1 {
											l.ETP = tp
										}
										l.Micro, l.Schedule, l.ZeRO, l.Recompute = micro, kind, z, r
										if w.Fixed != nil && !w.Fixed(l) {
											continue
										}
										if l.Check(m, n) == nil {
											out = append(out, l)
										}
									}
								}
							}
						}
					}
				}
			}
		}
	}
	return out
}

// bound is the least that a layout can take and hold: compute of the busiest stage without any wait, and
// the state with one micro-batch's activations.
func bound(q Question, h Habits) (seconds, bytes float64) {
	factor := q.Factor
	if factor == 0 {
		factor, _ = FactorFor(q.Framework, q.Machine.GPU.Name, q.Layout.Dtype, q.Model.Experts > 0, q.Layout.Flash)
	}
	compute, host := releaseFactor(q)
	factor *= compute
	h.MoEHost *= host
	p := newPricer(q.Model, q.Machine, q.Framework, q.Layout, h)
	b := p.bytesPer()
	share, shareE := float64(q.Layout.Sharded()), float64(q.Layout.ExpertData())
	if q.Layout.ZeRO == 0 {
		share, shareE = 1, 1
	}
	for _, o := range p.holds() {
		held := b.weights + b.gradients + b.optimizer
		shared := b.sharedW + b.sharedG + b.sharedO
		bytes = max(bytes, (o.dense+o.experts)*held+o.dense*shared/share+o.experts*shared/shareE)
	}
	if q.Model.CNN != nil {
		return 0, bytes
	}
	busy := make([]float64, q.Layout.PP)
	for i, s := range p.stages(factor) {
		r := i % q.Layout.PP
		if q.Layout.Schedule == schedule.ZBV && i >= q.Layout.PP {
			r = 2*q.Layout.PP - 1 - i
		}
		busy[r] += s.F + s.B + s.W
	}
	m := float64(q.Layout.MicroBatches())
	if q.Layout.Schedule == schedule.DualPipe { // a rank runs both directions, half of the micro-batches each
		for i := range (q.Layout.PP + 1) / 2 {
			j := q.Layout.PP - 1 - i
			both := (busy[i] + busy[j]) / 2
			busy[i], busy[j] = both, both
		}
	}
	opt, _ := p.optimizer()
	return m*slices.Max(busy) + opt, bytes
}

// Search looks for the fastest layout that fits. It leaves a layout out only where a bound proves that it
// cannot fit or cannot be among those kept, so the best it finds is the best there is.
func Search(m *work.Model, mc *Machine, f Framework, w Wish) (*Found, error) {
	return search(m, mc, f, w, habits)
}

func search(m *work.Model, mc *Machine, f Framework, w Wish, h Habits) (*Found, error) {
	if w.Batch < 1 || w.Seq < 1 && m.CNN == nil {
		return nil, fmt.Errorf("a search needs the batch in sequences and the sequence length: say --batch and --seq")
	}
	layouts := Layouts(m, mc, f, w)
	out := &Found{Looked: len(layouts)}
	if len(layouts) == 0 {
		return nil, fmt.Errorf("no layout of %s on %d GPUs can run batch %d: a batch that is a multiple of the data ranks is needed, and heads, layers and experts that divide", m.Name, mc.GPUs, w.Batch)
	}
	top, within := w.Top, w.Within
	if top == 0 {
		top = 10
	}
	if within == 0 {
		within = 1.1
	}
	type open struct {
		l  Layout
		lb float64
	}
	var todo []open
	capacity := mc.Usable() - contextBytes
	least, leastAt := math.Inf(1), 0
	question := func(l Layout) Question {
		return Question{Model: m, Machine: mc, Framework: f, Layout: l, Release: w.Release, Factor: w.Factor}
	}
	for i, l := range layouts {
		s, b := bound(question(l), h)
		if b < least {
			least, leastAt = b, i
		}
		if b > capacity {
			out.TooBig++
			continue
		}
		todo = append(todo, open{l, s})
	}
	sort.SliceStable(todo, func(i, j int) bool { return todo[i].lb < todo[j].lb })
	var fit []*Cost
	limit := math.Inf(1)
	slow := 0
	for i, x := range todo {
		if x.lb > limit {
			out.Bounded = len(todo) - i
			break
		}
		c, err := price(question(x.l), h, limit)
		if err != nil {
			continue
		}
		if c == nil {
			slow++
			continue
		}
		out.Priced++
		if w.Progress != nil && out.Priced%64 == 0 {
			best := 0.0
			if len(fit) > 0 {
				best = fit[0].Step
			}
			w.Progress(i, len(todo), best)
		}
		if c.Over > -w.Reserve*c.Capacity {
			if out.Over == nil || c.Over < out.Over.Over {
				out.Over = c
			}
			continue
		}
		at := sort.Search(len(fit), func(i int) bool { return fit[i].Step > c.Step })
		fit = slices.Insert(fit, at, c)
		if len(fit) >= top {
			limit = min(limit, max(fit[top-1].Step, fit[0].Step*within))
		}
	}
	out.Bounded += slow
	if len(fit) == 0 && w.Reserve > 0 {
		w.Reserve = 0
		return search(m, mc, f, w, h)
	}
	if len(fit) == 0 {
		if out.Over == nil {
			c, err := price(question(layouts[leastAt]), h, math.Inf(1))
			if err != nil {
				return nil, err
			}
			out.Over = c
		}
		out.Over.Nearest = nearestPoint(question(out.Over.Layout))
		return out, nil
	}
	out.Over = nil
	out.Best = fit[0]
	out.Candidates = fit[:min(top, len(fit))]
	low := math.Inf(1)
	for _, c := range fit {
		if c.Step > out.Best.Step*within {
			break
		}
		if c.Peak < low*.98 {
			low = c.Peak
			out.Front = append(out.Front, c)
		}
	}
	for _, c := range slices.Concat(out.Candidates, out.Front) {
		if c.Nearest == nil {
			c.Nearest = nearestPoint(question(c.Layout))
		}
	}
	return out, nil
}

// Beside says why one layout is faster than another, term by term, the largest difference first.
func Beside(winner, other *Cost) []string {
	if winner.Why == nil || other.Why == nil {
		return nil
	}
	flat := func(c *Cost) map[string]float64 {
		out := map[string]float64{}
		var walk func(Term, int)
		walk = func(t Term, depth int) {
			if depth > 0 && len(t.Terms) == 0 || depth == 2 {
				out[t.Name] = t.Value
			}
			if depth < 2 {
				for _, x := range t.Terms {
					walk(x, depth+1)
				}
			}
		}
		walk(*c.Why, 0)
		return out
	}
	a, b := flat(winner), flat(other)
	type diff struct {
		name string
		by   float64
	}
	var all []diff
	for _, name := range []string{"busy", "idle", "gradients", "parameters", "first gather and last reduction", "optimizer"} {
		if d := b[name] - a[name]; math.Abs(d) > .002*winner.Step {
			all = append(all, diff{name, d})
		}
	}
	sort.SliceStable(all, func(i, j int) bool { return math.Abs(all[i].by) > math.Abs(all[j].by) })
	var out []string
	for _, d := range all {
		word := "more"
		if d.by < 0 {
			word = "less"
		}
		out = append(out, fmt.Sprintf("%s: %.3g s %s", d.name, math.Abs(d.by), word))
	}
	return out
}

// Change is what a change of the machine would do for a plan.
type Change struct {
	What string  `json:"what"`
	Step float64 `json:"step_s"`
	Gain float64 `json:"gain"` // share of the step saved
}

// Changes prices the best layouts again on machines that have more of one thing.
func Changes(q Question, layouts []Layout) []Change {
	var out []Change
	base, err := Price(q)
	if err != nil {
		return nil
	}
	try := func(what string, mc *Machine) {
		best := math.Inf(1)
		for _, l := range layouts {
			x := q
			x.Machine, x.Layout, x.Why = mc, l, false
			if c, err := Price(x); err == nil && c.Fits {
				best = min(best, c.Step)
			}
		}
		if !math.IsInf(best, 1) {
			out = append(out, Change{what, best, 1 - best/base.Step})
		}
	}
	more := func(change func(*Machine)) *Machine {
		m := *q.Machine
		m.times, m.products = map[call]spoken{}, nil
		change(&m)
		return &m
	}
	if q.Machine.Domain < q.Machine.GPUs {
		try("twice the NICs", more(func(m *Machine) { m.faster = 2; m.NIC *= 2 }))
		try(fmt.Sprintf("NVLink domains of %d GPUs", 2*q.Machine.Domain), more(func(m *Machine) { m.wider = 2 * m.Domain; m.Domain *= 2 }))
	}
	try("memory twice as fast", more(func(m *Machine) { m.Chip.HBM *= 2 }))
	slices.SortStableFunc(out, func(a, b Change) int {
		if a.Step < b.Step {
			return -1
		}
		return 1
	})
	return out
}
