package design

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/topo"
)

// Failure is how often a sort of part fails.
type Failure struct {
	Part    string  `json:"part"`
	Count   int     `json:"count"`
	Rate    float64 `json:"rate_per_year"`     // of one part
	PerYear float64 `json:"failures_per_year"` // of all
	Days    float64 `json:"days_between,omitempty"`
	Source  string  `json:"source"`
}

const daysAYear = 365

// defaultRates are S1's yearly failure rates.
var defaultRates = map[string]float64{"gpu": 0.02, "nic": 0.005, "cable": 0.001, "switch": 0.005}

// parts lists the parts a failure rate can be given for, in the order of the report.
var parts = []string{"gpu", "nic", "cable", "switch"}

// fail computes expected failures a year.
func (r *Report) fail(v *view, rates map[string]float64) error {
	for _, part := range slices.Sorted(maps.Keys(rates)) {
		if !slices.Contains(parts, part) {
			return fmt.Errorf("needs: a failure rate is given for %q; known parts: %s", part, strings.Join(parts, ", "))
		}
		if rates[part] < 0 {
			return fmt.Errorf("needs: the failure rate of %s is %g a year; it cannot be negative", part, rates[part])
		}
	}
	nics := 0 // those with a cable
	v.g.Each(topo.NIC, func(n topo.NodeID, _ *topo.Node) {
		for _, e := range v.g.Edges(n) {
			if v.g.Class(e.Link).Kind.Network() {
				nics++
				return
			}
		}
	})
	counts := map[string]int{
		"gpu": r.GPUs, "nic": nics, "cable": ternary(v.direct, r.Cables.Direct, r.Cables.Total()), "switch": r.Switches.Total(),
	}
	all := Failure{Part: "all", Source: "sum"}
	for _, part := range parts {
		f := Failure{Part: part, Count: counts[part]}
		if f.Count == 0 {
			continue
		}
		f.Rate, f.Source = defaultRates[part], "S1, yearly rates by part"
		if rate, given := rates[part]; given && rate != f.Rate {
			f.Rate, f.Source = rate, "the owner's needs"
		}
		f.settle()
		all.Count += f.Count
		all.PerYear += f.PerYear
		r.Failures = append(r.Failures, f)
	}
	if all.PerYear > 0 {
		all.Rate = all.PerYear / float64(all.Count)
		all.Days = daysAYear / all.PerYear
	}
	r.Failures = append(r.Failures, all)
	return nil
}

func (f *Failure) settle() {
	if f.PerYear = float64(f.Count) * f.Rate; f.PerYear > 0 {
		f.Days = daysAYear / f.PerYear
	}
}
