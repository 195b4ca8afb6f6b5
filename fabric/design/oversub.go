package design

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
)

// TierRatio is how much bandwidth enters a tier from below for each unit that leaves it upwards.
type TierRatio struct {
	Tier     string       `json:"tier"`
	Ratio    float64      `json:"ratio"`       // down over up, the worst of the tier
	Down     float64      `json:"down"`        // bytes a second at the worst switch, one way
	Up       float64      `json:"up"`          // the same upwards
	At       string       `json:"at"`          // the worst switch or group
	Of       int          `json:"of"`          // how many have uplinks
	CutOff   int          `json:"no_up"`       // how many have none though their tier has
	Switches []RatioCount `json:"by_switches"` // every ratio of the tier, worst first
	Verdict  string       `json:"verdict"`
}

// RatioCount is how many switches or groups of a tier have one ratio.
type RatioCount struct {
	Ratio float64 `json:"ratio"`
	Count int     `json:"count"`
	First string  `json:"first"` // the first of them by name
}

// note counts one switch or group with its ratio.
func (r *TierRatio) note(down, up float64, name string) {
	r.Of++
	x := down / up
	if x > r.Ratio {
		r.Ratio, r.Down, r.Up, r.At = x, down, up, name
	}
	for i := range r.Switches {
		if c := &r.Switches[i]; math.Abs(c.Ratio-x) <= 1e-9*x {
			c.Count++
			return
		}
	}
	r.Switches = append(r.Switches, RatioCount{x, 1, name})
}

// judge puts the ratios in order and says what they mean.
func (r *TierRatio) judge(tolerated float64) {
	slices.SortStableFunc(r.Switches, func(a, b RatioCount) int { return cmp.Compare(b.Ratio, a.Ratio) })
	r.Verdict = ratioVerdict(r.Ratio, tolerated)
	if r.CutOff > 0 {
		r.Verdict += fmt.Sprintf("; %d without any uplink", r.CutOff)
	}
}

// spread prints the ratios of a tier: "8 at 1:1, 8 at 0.5:1".
func (r *TierRatio) spread() string {
	const shown = 4
	var list []string
	for i, c := range r.Switches {
		if i == shown {
			rest := 0
			for _, c := range r.Switches[i:] {
				rest += c.Count
			}
			list = append(list, fmt.Sprintf("%s lower", count(rest)))
			break
		}
		list = append(list, fmt.Sprintf("%s at %s:1", count(c.Count), trim(c.Ratio)))
	}
	return strings.Join(list, ", ")
}

// rates sums up by node what leads down and what leads up from it. Links inside a tier are neither.
func (v *view) rates() (down, up []float64) {
	down, up = make([]float64, len(v.nodes)), make([]float64, len(v.nodes))
	for _, e := range v.ends {
		down[e.at] += float64(e.rate)
	}
	for _, t := range v.links {
		low, high := t.a, t.b
		if v.tier[low] > v.tier[high] {
			low, high = high, low
		}
		if v.tier[low] < v.tier[high] {
			up[low] += float64(t.rate)
			down[high] += float64(t.rate)
		}
	}
	return down, up
}

// ratios measures every tier on the links as they are.
func (v *view) ratios(wanted float64) []TierRatio {
	if family, _, ok := v.family(); ok && (family == topo.Dragonfly || family == topo.Torus) {
		return v.groupRatios(family, wanted)
	}
	down, up := v.rates()
	var list []TierRatio
	for t := uint8(1); t < v.top(); t++ {
		r := TierRatio{Tier: tierName(t)}
		for p := range v.nodes {
			if v.tier[p] != t || down[p] == 0 {
				continue
			}
			if up[p] == 0 {
				r.CutOff++
				continue
			}
			r.note(down[p], up[p], v.g.NodeName(v.nodes[p]))
		}
		if r.Of > 0 {
			r.judge(wanted)
			list = append(list, r)
		}
	}
	return list
}

// groupRatios measures families without tiers. A dragonfly's groups inject
// what their endpoints have and leave over global links; a torus chip may use
// all its links, of which a cut of the machine has few.
func (v *view) groupRatios(family topo.Family, wanted float64) []TierRatio {
	if family == topo.Torus {
		return nil
	}
	in, out := map[int32]float64{}, map[int32]float64{}
	var pods []int32
	for _, id := range v.nodes {
		pod := v.g.Nodes[id].Pod
		if _, seen := in[pod]; !seen {
			in[pod] = 0
			pods = append(pods, pod)
		}
	}
	for _, e := range v.ends {
		in[v.g.Nodes[v.nodes[e.at]].Pod] += float64(e.rate)
	}
	for _, t := range v.links {
		if a, b := v.g.Nodes[v.nodes[t.a]].Pod, v.g.Nodes[v.nodes[t.b]].Pod; a != b {
			out[a] += float64(t.rate)
			out[b] += float64(t.rate)
		}
	}
	r := TierRatio{Tier: "group"}
	for _, pod := range pods {
		if out[pod] == 0 {
			r.CutOff++
			continue
		}
		r.note(in[pod], out[pod], fmt.Sprintf("group %d", pod))
	}
	if r.Of == 0 {
		return nil
	}
	r.judge(wanted)
	return []TierRatio{r}
}

// ratioVerdict holds a ratio against 1:1, which is wanted, and against what the owner tolerates.
func ratioVerdict(ratio, tolerated float64) string {
	switch {
	case ratio <= 1+1e-9:
		return "non-blocking"
	case ratio <= tolerated+1e-9:
		return fmt.Sprintf("oversubscribed, within the tolerated %s:1", trim(tolerated))
	default:
		return fmt.Sprintf("oversubscribed beyond the tolerated %s:1", trim(tolerated))
	}
}

// oversubscribe fills in the ratios; the headline is the worst of them and never
// below 1. Where bandwidth lies beside the tiers, a bisection short of its
// ideal counts as one more.
func (r *Report) oversubscribe(v *view, tolerated float64) {
	r.Tiers = append(r.Tiers, v.ratios(tolerated)...)
	r.Oversubscription = 1
	for _, t := range r.Tiers {
		r.Oversubscription = max(r.Oversubscription, t.Ratio)
	}
	if v.flat() && r.Bisection.MaxFlow > 0 {
		x := r.Bisection.Ratio
		r.Tiers = append(r.Tiers, TierRatio{Tier: "bisection", Ratio: x, Down: r.Bisection.Ideal, Up: r.Bisection.MaxFlow,
			At: "the halves", Of: 1,
			Switches: []RatioCount{{x, 1, "the halves"}}, Verdict: ratioVerdict(x, tolerated)})
		r.Oversubscription = max(r.Oversubscription, x)
	}
}
