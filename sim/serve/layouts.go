package serve

import "sort"

// Try is one layout and what it gives.
type Try struct {
	Result *Result
	Why    string // why it cannot be, if it cannot
	Layout Layout
}

// Layouts tries every way to use the GPUs: copies of 1, 2, 4, ... GPUs, experts cut or spread over them, attention cut or
// each rank with requests of its own, and with prefill and decode apart in several ratios where apart is set. The best comes first: among those within the time limits (0 for none) the most tokens a
// second, then the others.
func Layouts(e Engine, load Load, ttft, tpot float64, apart bool) []Try {
	var out []Try
	n := e.Machine.GPUs
	for tp := 1; tp <= min(n, e.Machine.Domain); tp *= 2 {
		if e.Model.Heads%tp != 0 {
			continue
		}
		copies := n / tp
		options := []Layout{{TP: tp, PP: 1, Replicas: copies}}
		if tp > 1 && e.Model.Experts > 0 && e.Model.Experts%tp == 0 {
			options = append(options, Layout{TP: tp, EP: tp, PP: 1, Replicas: copies}, Layout{TP: 1, DP: tp, EP: tp, PP: 1, Replicas: copies})
		}
		if apart {
			for p := 1; p < copies; p *= 2 {
				options = append(options, Layout{TP: tp, PP: 1, Replicas: copies - p, Prefill: p})
			}
		}
		for _, l := range options {
			x := e
			x.Layout, x.steps, x.products = l, nil, nil
			r, err := Run(x, load)
			if err != nil {
				out = append(out, Try{Why: err.Error(), Layout: l})
				continue
			}
			out = append(out, Try{Result: r, Layout: l})
		}
	}
	within := func(t Try) bool {
		return t.Result != nil && (ttft == 0 || t.Result.TTFT.P90 <= ttft) && (tpot == 0 || t.Result.TPOT.P90 <= tpot)
	}
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
