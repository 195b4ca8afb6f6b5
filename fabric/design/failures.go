package design

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
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

// parts lists the parts a failure rate can be given for, in the order of the
// report, and where the default rate of each comes from (cluster.DefaultNeeds).
var parts = []struct{ name, source string }{
	{"gpu", "Llama 3 (2024), table 5: 268 stops by GPUs in 54 days on 16,384 H100"},
	{"host", "the same: 14 stops by power, boards, CPUs, memory and disks of 2,048 servers"},
	{"nic", "the same: 7 stops by NICs"},
	{"cable", "estimate from the same: 35 stops by cables or switches on 16,384 ports of three cables each"},
	{"switch", "estimate: the 35 stops do not tell cables from switches"},
}

func partNames() []string {
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	return names
}

func checkRates(rates map[string]float64) error {
	for _, part := range slices.Sorted(maps.Keys(rates)) {
		if !slices.Contains(partNames(), part) {
			return fmt.Errorf("needs: a failure rate is given for %q; known parts: %s", part, strings.Join(partNames(), ", "))
		}
		if rates[part] < 0 {
			return fmt.Errorf("needs: the failure rate of %s is %g a year; it cannot be negative", part, rates[part])
		}
	}
	return nil
}

// fail computes expected failures a year.
func (r *Report) fail(v *view, rates map[string]float64) error {
	if err := checkRates(rates); err != nil {
		return err
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
		"gpu": r.GPUs, "host": r.Hosts + r.ServiceHosts, "nic": nics, "cable": ternary(v.direct, r.Cables.Direct, r.Cables.Total()),
		"switch": r.Switches.Total(),
	}
	all := Failure{Part: "all", Source: "sum"}
	usual := cluster.DefaultNeeds().FailureRates
	for _, part := range parts {
		f := Failure{Part: part.name, Count: counts[part.name]}
		if f.Count == 0 {
			continue
		}
		f.Rate, f.Source = usual[part.name], part.source
		if rate, given := rates[part.name]; given && rate != f.Rate {
			f.Rate, f.Source = rate, "the cluster's needs"
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
