package failures

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Fleet is a cluster whose failures were published.
type Fleet struct {
	Name   string
	What   string // the cluster, and what was counted
	Hosts  int
	Days   float64
	Events float64 // that stopped a job or took a host out of service
	Source string
}

// builtIn is the fleet whose parts' rates Hazards has.
const builtIn = "llama3"

// fleets are those with a count of failures, of hosts and of days, those that fail the least first. They differ tenfold: how old the
// parts are, how they are cooled, what is counted, and how well hosts are tested before they come back matter more than the kind of GPU.
// RSC's counts follow from rates per 1,000 host days over eleven months. OPT's are at least 35 restarts by hand and 70 by machine.
var fleets = []Fleet{
	{"bytedance", "9,600 Hopper GPUs, incidents of one dense job", 1200, 90, 155, "arXiv 2509.16293, table 4"},
	{"rsc-2", "8,000 A100, hardware failures that stopped jobs", 1000, 330, 772, "arXiv 2410.21680"},
	{"lablup", "504 B200, GPU failures with an XID", 63, 55, 10, "arXiv 2605.09370"},
	{builtIn, "16,384 H100, unexpected stops of one job", 2048, 54, 419, "arXiv 2407.21783, table 5"},
	{"stepfun", "3,200 GPUs, hosts taken out of service", 400, 174, 312, "InfiniteHBD's trace"},
	{"rsc-1", "16,000 A100, hardware failures that stopped jobs", 2000, 330, 4290, "arXiv 2410.21680"},
	{"opt-175b", "992 A100 in 2021, restarts of one job", 124, 60, 105, "arXiv 2205.01068, section 2.5"},
}

// FleetNames lists the fleets with published failures, those that fail the least first.
func FleetNames() []string {
	var out []string
	for _, f := range fleets {
		out = append(out, f.Name)
	}
	return out
}

// FindFleet finds a fleet by its name.
func FindFleet(name string) (Fleet, error) {
	for _, f := range fleets {
		if f.Name == name {
			return f, nil
		}
	}
	return Fleet{}, fmt.Errorf("no failures of a fleet %q were published; known: %s", name, strings.Join(FleetNames(), ", "))
}

// PerHostDay is the failures of a host and day.
func (f Fleet) PerHostDay() float64 { return f.Events / (float64(f.Hosts) * f.Days) }

// Times is how many times as often a fleet's hosts fail as those of the built-in rates.
func (f Fleet) Times() float64 {
	base, _ := FindFleet(builtIn)
	return f.PerHostDay() / base.PerHostDay()
}

// Scaled multiplies the rates of parts by times, but for those whose rate was given.
func Scaled(list []Hazard, times float64, given map[string]float64) []Hazard {
	out := slices.Clone(list)
	for i := range out {
		name, _, _ := strings.Cut(out[i].Name, " ")
		if _, ok := given[name]; !ok {
			out[i].Yearly *= times
		}
	}
	return out
}

// Seen is what a job's failures would be in a fleet.
type Seen struct {
	Fleet   string  `json:"fleet"`
	Times   float64 `json:"times"`
	MTTF    float64 `json:"mttf_s"`
	Goodput float64 `json:"goodput"`
}

// Across runs a job with the built-in rates scaled to the fleets that fail the least and the most often, each with its own best interval.
func Across(j Job, runs int, seed uint64) ([]Seen, error) {
	var out []Seen
	for _, f := range []Fleet{fleets[0], fleets[len(fleets)-1]} {
		x := j
		x.Hazards = Scaled(j.Hazards, f.Times(), nil)
		r, err := Best(x, min(runs, 5), seed)
		if err != nil {
			return nil, err
		}
		out = append(out, Seen{f.Name, math.Round(1000*f.Times()) / 1000, r.MTTF, r.Goodput})
	}
	return out, nil
}
