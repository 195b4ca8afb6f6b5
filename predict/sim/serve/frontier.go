package serve

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Point is a layout under one load that no other layout or load beats in both throughput per GPU and time per token.
type Point struct {
	Users  int     `json:"users,omitempty"`
	Rate   float64 `json:"requests_per_s,omitempty"`
	TPOT   float64 `json:"tpot_p50_s"`
	TTFT   float64 `json:"ttft_p50_s"`
	PerGPU float64 `json:"tokens_per_s_per_gpu"`
	Name   string  `json:"layout_text"`
	Layout Layout  `json:"layout"`
}

// String is a load as users say it.
func (l Load) String() string {
	switch {
	case len(l.Trace) > 0:
		return fmt.Sprintf("a trace of %d requests", len(l.Trace))
	case l.Rate > 0:
		return fmt.Sprintf("%g requests/s", l.Rate)
	case l.Concurrency == 1:
		return "1 user"
	}
	return fmt.Sprintf("%d users", l.Concurrency)
}

// Loads are lighter and heavier ones around a load, and itself: users in steps of four from one to well above those asked, or an
// eighth to eight times the rate. A trace is the only load of its kind.
func (l Load) Loads() []Load {
	if len(l.Trace) > 0 {
		return []Load{l}
	}
	out := []Load{l}
	if l.Rate > 0 {
		for _, f := range []float64{.125, .25, .5, 2, 4, 8} {
			x := l
			x.Rate *= f
			out = append(out, x)
		}
		return out
	}
	for users := 1; users <= max(1024, 4*l.Concurrency); users *= 4 {
		if users == l.Concurrency {
			continue
		}
		x := l
		x.Concurrency, x.Requests = users, max(min(10*users, 10240), 2*users, 200) // of many users, fewer requests each tell the same
		out = append(out, x)
	}
	return out
}

// steps counts half percents: figures closer than that are equal, and of equal ones the shorter queue is better.
func steps(v float64) int { return int(math.Round(math.Log(v) / .005)) }

// Frontier runs layouts under several loads and keeps what none of the others beats in both tokens per second per GPU and median
// time per token, the shortest time first. Runs that miss a limit (0 for none) and loads that a layout cannot take are left out.
func Frontier(e Engine, layouts []Layout, loads []Load, ttft, tpot float64) []Point {
	var all []Point
	for _, layout := range layouts {
		x := e
		x.Layout, x.steps, x.products = layout, nil, nil
		for _, load := range loads {
			r, err := Run(x, load)
			if err != nil {
				continue
			}
			if r.Judge(ttft, tpot); r.Misses == "" && r.TPOT.P50 > 0 {
				all = append(all, Point{load.Concurrency, load.Rate, r.TPOT.P50, r.TTFT.P50, r.PerGPU, layout.String(), layout})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Point) int {
		return cmp.Or(cmp.Compare(steps(a.TPOT), steps(b.TPOT)), -cmp.Compare(steps(a.PerGPU), steps(b.PerGPU)), cmp.Compare(a.TTFT, b.TTFT))
	})
	var out []Point
	for _, p := range all {
		if len(out) == 0 || steps(p.PerGPU) > steps(out[len(out)-1].PerGPU) {
			out = append(out, p)
		}
	}
	return out
}
