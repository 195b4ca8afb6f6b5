package serve

import (
	"fmt"
	"slices"
	"sort"
	"strings"
)

// Try is one layout and what it gives.
type Try struct {
	Result *Result
	Why    string // why it cannot be, if it cannot
	Layout Layout
}

// Options lists the ways to use the GPUs: copies of 1, 2, 4, ... GPUs and of a whole NVLink domain, experts cut or spread over them,
// attention cut or each rank with requests of its own, and with prefill and decode apart in several ratios where apart is set. Copies
// wider than a domain spread experts over all of their GPUs and attend on each.
func Options(e Engine, apart bool) (options []Layout) {
	n := e.Machine.GPUs
	add := func(l Layout) {
		l.PP, l.Replicas = 1, n/l.Ranks()
		options = append(options, l)
		for p := 1; apart && p < n/l.Ranks(); p *= 2 {
			l.Replicas, l.Prefill = n/l.Ranks()-p, p
			options = append(options, l)
		}
	}
	for _, size := range sizes(n, e.Machine.Domain) {
		if size <= e.Machine.Domain && e.Model.Heads%size == 0 {
			add(Layout{TP: size})
		}
		if size == 1 || size > e.Model.Experts {
			continue
		}
		if size <= e.Machine.Domain && e.Model.Heads%size == 0 {
			add(Layout{TP: size, EP: size})
		}
		add(Layout{TP: 1, DP: size, EP: size})
	}
	return options
}

// sizes are those of copies: powers of two up to n, and the domain.
func sizes(n, domain int) (out []int) {
	for size := 1; size <= n; size *= 2 {
		out = append(out, size)
	}
	if domain <= n && !slices.Contains(out, domain) {
		out = append(out, domain)
		slices.Sort(out)
	}
	return out
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
		out = append(out, fmt.Sprintf("at %s no layout keeps the limits; %s gives the most tokens a second: %s",
			load, tries[0].Layout, best.Misses))
	} else {
		out = append(out, fmt.Sprintf("at %s %s gives the most tokens a second of those that keep the limits: %s",
			load, tries[0].Layout, best.Limit))
	}
	for _, t := range tries[1:] {
		r := t.Result
		switch {
		case r == nil: // Refused has these
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
			why += fmt.Sprintf(": %d of its %d copies only take prompts, the others decode %.0f requests at once",
				b.Prefill, b.Prefill+b.Replicas, r.Batch)
		case b.Ranks() > a.Ranks():
			why += fmt.Sprintf(": transfers between ranks take %.0f%% of its steps, %.0f%% of the best's", 100*r.SumsShare, 100*best.SumsShare)
		default:
			why += fmt.Sprintf(": each GPU reads %.0f GB of weights a step, the best's %.0f GB, and its KV cache holds %d tokens, the best's %d",
				r.Weights/1e9, best.Weights/1e9, r.KVTokens*b.Replicas, best.KVTokens*a.Replicas)
		}
		out = append(out, why)
	}
	return out
}

// Refused names the layouts that cannot be, one line for each reason.
func Refused(tries []Try) []string {
	var out, reasons []string
	names := map[string][]string{}
	for _, t := range tries {
		if t.Result != nil {
			continue
		}
		if names[t.Why] == nil {
			reasons = append(reasons, t.Why)
		}
		names[t.Why] = append(names[t.Why], t.Layout.String())
	}
	for _, why := range reasons {
		list := names[why]
		if n := len(list); n > 4 {
			list = append(list[:4:4], fmt.Sprintf("and %d more", n-4))
		}
		out = append(out, fmt.Sprintf("cannot be: %s: %s", strings.Join(list, ", "), why))
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
