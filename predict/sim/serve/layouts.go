package serve

import (
	"fmt"
	"sort"
)

// Try is one layout and what it gives.
type Try struct {
	Result *Result
	Why    string // why it cannot be, if it cannot
	Layout Layout
}

// Options lists the ways to use the GPUs: copies of 1, 2, 4, ... GPUs, experts cut or spread over them, attention cut or
// each rank with requests of its own, and with prefill and decode apart in several ratios where apart is set.
func Options(e Engine, apart bool) (options []Layout) {
	n := e.Machine.GPUs
	for tp := 1; tp <= min(n, e.Machine.Domain); tp *= 2 {
		if e.Model.Heads%tp != 0 {
			continue
		}
		copies := n / tp
		options = append(options, Layout{TP: tp, PP: 1, Replicas: copies})
		if tp > 1 && e.Model.Experts > 0 && e.Model.Experts%tp == 0 {
			options = append(options, Layout{TP: tp, EP: tp, PP: 1, Replicas: copies}, Layout{TP: 1, DP: tp, EP: tp, PP: 1, Replicas: copies})
		}
		if apart {
			for p := 1; p < copies; p *= 2 {
				options = append(options, Layout{TP: tp, PP: 1, Replicas: copies - p, Prefill: p})
			}
		}
	}
	return options
}

// Layouts tries all Options under one load. The best comes first: among those within the time limits (0 for none) the most tokens
// a second, then the others.
func Layouts(e Engine, load Load, ttft, tpot float64, apart bool) []Try {
	var out []Try
	for _, l := range Options(e, apart) {
		x := e
		x.Layout, x.steps, x.products = l, nil, nil
		r, err := Run(x, load)
		if err != nil {
			out = append(out, Try{Why: err.Error(), Layout: l})
			continue
		}
		out = append(out, Try{Result: r, Layout: l})
	}
	for _, t := range out {
		if t.Result != nil {
			t.Result.Judge(ttft, tpot)
		}
	}
	within := func(t Try) bool { return t.Result != nil && t.Result.Misses == "" }
	sort.SliceStable(out, func(i, j int) bool {
		a, b := out[i], out[j]
		if within(a) != within(b) {
			return within(a)
		}
		if (a.Result == nil) != (b.Result == nil) {
			return a.Result != nil
		}
		return a.Result != nil && a.Result.Total > b.Result.Total
	})
	return out
}

// Judge notes which limit of the first token or of a token, 0 for none, 90% of the requests do not keep.
func (r *Result) Judge(ttft, tpot float64) {
	switch {
	case ttft > 0 && r.TTFT.P90 > ttft:
		r.Misses = fmt.Sprintf("first token %.3g s for 90%% of the requests, %.3g s asked", r.TTFT.P90, ttft)
	case tpot > 0 && r.TPOT.P90 > tpot:
		r.Misses = fmt.Sprintf("a token %.3g ms for 90%% of the requests, %.3g ms asked", 1e3*r.TPOT.P90, 1e3*tpot)
	}
}

// Reasons says why the first of tried layouts is the best under its load, and why the next ones are not.
func Reasons(load Load, tries []Try) []string {
	if len(tries) == 0 || tries[0].Result == nil {
		return nil
	}
	best := tries[0].Result
	var out []string
	if best.Misses != "" {
		out = append(out, fmt.Sprintf("at %s no layout keeps the limits; %s gives the most tokens a second: %s", load, tries[0].Layout, best.Misses))
	} else {
		out = append(out, fmt.Sprintf("at %s %s gives the most tokens a second of those that keep the limits: %s", load, tries[0].Layout, best.Limit))
	}
	for _, t := range tries[1:] {
		r := t.Result
		switch {
		case r == nil:
			out = append(out, fmt.Sprintf("%s cannot be: %s", t.Layout, t.Why))
			continue
		case r.Misses != "" && best.Misses == "":
			out = append(out, fmt.Sprintf("%s misses a limit: %s", t.Layout, r.Misses))
			continue
		}
		why := fmt.Sprintf("%s gives %.0f%% less", t.Layout, 100*(1-r.Total/best.Total))
		a, b := best.Layout, r.Layout
		switch {
		case r.Limit != best.Limit:
			why += ": " + r.Limit
		case b.Prefill > 0 && a.Prefill == 0:
			why += fmt.Sprintf(": %d of its %d copies only take prompts, the others decode %.0f requests at once", b.Prefill, b.Prefill+b.Replicas, r.Batch)
		case b.Ranks() > a.Ranks():
			why += fmt.Sprintf(": sums over ranks take %.0f%% of its steps, %.0f%% of the best's", 100*r.SumsShare, 100*best.SumsShare)
		default:
			why += fmt.Sprintf(": each GPU reads %.0f GB of weights a step, the best's %.0f GB, and its KV cache holds %d tokens, the best's %d", r.Weights/1e9, best.Weights/1e9, r.KVTokens*b.Replicas, best.KVTokens*a.Replicas)
		}
		out = append(out, why)
	}
	return out
}

// String is a layout as users say it.
func (l Layout) String() string {
	name := fmt.Sprintf("%d x tp %d", l.Replicas, l.TP)
	for _, x := range []struct {
		name string
		n    int
	}{{"dp", l.DP}, {"ep", l.EP}, {"pp", l.PP}} {
		if x.n > 1 {
			name += fmt.Sprintf(" %s %d", x.name, x.n)
		}
	}
	if l.Prefill > 0 {
		name += fmt.Sprintf(" + %d for prompts", l.Prefill)
	}
	return name
}
