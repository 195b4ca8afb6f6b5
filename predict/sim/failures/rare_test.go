package failures

import "testing"

// A job that hardly ever fails gets the exact interval, whatever few failures its runs draw, and no goodput above 1.
func TestRareFailuresAreNoLuck(t *testing.T) {
	for seed := range uint64(20) {
		hosts := Hazard{Name: "host", Count: 3, Yearly: 1.4, Hosts: 1, Repair: 20, Sigma: 1}
		j := Job{Hosts: 3, GPUs: 24, Hazards: []Hazard{hosts}, Detect: 20, Timeout: 600,
			Localise: 120, Requeue: 400, InPlace: 60, Kept: .3, Spares: Enough, Tiers: []Tier{{Name: "store", Stall: 5, Load: 5}}, Days: 30}
		r, err := Best(j, 20, seed)
		if err != nil {
			t.Fatal(err)
		}
		if exact := Exact(5, j.MTTF()); r.Interval < .99*exact || r.Interval > 1.01*exact {
			t.Errorf("seed %d: checkpoints every %.0f s, and the exact interval is %.0f s", seed, r.Interval, exact)
		}
		if r.GoodputUp > 1 || r.GoodputLow < 0 || r.Goodput > r.GoodputUp || r.Goodput < r.GoodputLow {
			t.Errorf("seed %d: goodput %g of %g to %g", seed, r.Goodput, r.GoodputLow, r.GoodputUp)
		}
	}
}
