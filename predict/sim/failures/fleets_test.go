package failures

import (
	"math"
	"slices"
	"testing"
)

// The failures that each fleet had, from the rate that its own paper states, against a simulation of its hosts with its rates: OPT-175B's
// 105 restarts in two months, ByteDance's 155 incidents in 90 days and the others.
func TestFleetsFailAsPublished(t *testing.T) {
	stated := map[string]float64{ // per 1,000 host days
		"bytedance": 1.44, "rsc-2": 2.34, "lablup": 2.89, "llama3": 3.79, "stepfun": 4.48, "rsc-1": 6.5, "opt-175b": 14.1,
	}
	last := 0.0
	for _, f := range fleets {
		rate := stated[f.Name]
		if math.Abs(1000*f.PerHostDay()/rate-1) > .01 {
			t.Errorf("%s: %.3f per 1,000 host days, %.3f stated", f.Name, 1000*f.PerHostDay(), rate)
		}
		if rate < last {
			t.Errorf("%s is out of order", f.Name)
		}
		last = rate
		p := Parts{Hosts: f.Hosts, GPUs: 8 * f.Hosts, NICs: 8 * f.Hosts, Ports: 8 * f.Hosts, Leaves: f.Hosts / 32, HostsPerLeaf: 32}
		j := Job{Hosts: f.Hosts, GPUs: 8 * f.Hosts, Hazards: Scaled(Hazards(p, nil), f.Times(), nil), Days: f.Days, Spares: f.Hosts, Detect: 20,
			Timeout: 600, Localise: 120, Requeue: 60, InPlace: 60, Kept: .3, Tiers: []Tier{{Name: "store", Stall: 5, Load: 30, Every: 900}}}
		r, err := Run(j, 20, 1)
		if err != nil {
			t.Fatal(err)
		}
		// Stopped time counts in the papers' days and not in a simulation's: a few percent.
		if x := r.Failures / f.Events; x < .85 || x > 1.1 {
			t.Errorf("%s: %.0f failures in %g days, %.0f published", f.Name, r.Failures, f.Days, f.Events)
		}
		t.Logf("%-10s %4d hosts, %3g days: %4.0f failures simulated, %4.0f published", f.Name, f.Hosts, f.Days, r.Failures, f.Events)
	}
	if len(stated) != len(fleets) || !slices.Contains(FleetNames(), builtIn) {
		t.Error("a fleet has no stated rate")
	}
}

func TestAcrossFleets(t *testing.T) {
	got, err := Across(llama3(), 3, 1)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].Goodput < got[1].Goodput || got[0].MTTF < 9*got[1].MTTF {
		t.Errorf("%+v", got)
	}
	if _, err := FindFleet("nosuch"); err == nil {
		t.Error("a fleet that nobody published was found")
	}
}
