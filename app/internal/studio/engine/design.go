package engine

import (
	"fmt"
	"strings"

	"github.com/weft-fabric/weft/fabric/design"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// Figure is one number with its name, and where it comes from.
type Figure struct {
	Key     string `json:"key"`
	Name    string `json:"name"`
	Value   string `json:"value"`
	Note    string `json:"note,omitempty"`
	State   string `json:"state,omitempty"` // good, warn or bad
	Formula string `json:"formula"`
	Source  string `json:"source"`
}

// design analyses the network. A host alone has none, which is an answer and no error.
func (j *job) design(f File) (any, error) {
	b, err := j.cluster(f)
	if err != nil {
		return nil, err
	}
	r, err := design.Run{Stop: j.stop, Tell: func(stage string, done, all int) {
		j.tell(Progress{Text: "analysing the network: " + stage, Done: float64(done) / float64(all)})
	}}.Analyze(b.c)
	if err != nil && b.c.Graph.Count(topo.Switch) == 0 { // a host alone has no network to judge
		return map[string]any{"name": b.c.Name, "family": "host", "figures": alone(b), "losses": []design.Loss{}, "bill": []design.Item{},
			"checks": []design.Check{}, "notes": []string{err.Error()}, "assumptions": []string{}}, nil
	}
	if err != nil {
		return nil, err
	}
	checks := []design.Check{}
	for _, c := range r.Checklist {
		if c.Answer == design.No {
			checks = append(checks, c)
		}
	}
	return map[string]any{"name": r.Name, "family": r.Family, "figures": figures(r), "losses": r.Losses, "bill": r.Bill,
		"checks": checks, "notes": r.Notes, "assumptions": r.Assumptions}, nil
}

// alone are the figures of hosts without a network.
func alone(b *built) []Figure {
	g := b.c.Graph
	n := g.Count(topo.GPU)
	list := []Figure{{Key: "gpus", Name: "GPUs", Value: grouped(int64(n)), Note: plural(len(g.Hosts), "host"),
		Formula: "hosts × GPUs per host", Source: "counted in the graph"}}
	if n > 0 {
		first := topo.NodeID(-1)
		g.Each(topo.GPU, func(id topo.NodeID, _ *topo.Node) {
			if first < 0 {
				first = id
			}
		})
		in := g.Injection(first)
		list = append(list, Figure{Key: "injection", Name: "Per GPU", Value: in.Accelerator.String(), Note: "over its own links, one way",
			Formula: "sum of the GPU's accelerator links", Source: "rates of the catalogue"})
	}
	return list
}

// figures are the numbers at the top of the page, each with its formula and where it comes from.
func figures(r *design.Report) []Figure {
	count := func(n int) string { return grouped(int64(n)) }
	list := []Figure{
		{Key: "gpus", Name: "GPUs", Value: count(r.GPUs), Note: fmt.Sprintf("%s, %d per host", plural(r.Hosts, "host"), r.Sizes.GPUsPerHost),
			Formula: "hosts × GPUs per host", Source: "counted in the graph"},
		{Key: "switches", Name: "Switches", Value: count(r.Switches.Total()), Note: switches(r), Formula: "by tier",
			Source: "counted in the graph; ports by the catalogue"},
		{Key: "cables", Name: "Cables", Value: count(r.Cables.Total()), Note: plural(r.Optics.Transceivers, "transceiver"),
			Formula: "host-leaf + leaf-spine + spine-core + others", Source: "counted in the graph. " + r.Optics.Rule},
	}
	over := Figure{Key: "oversubscription", Name: "Oversubscription", Value: ratio(r.Oversubscription), State: "good",
		Formula: "bandwidth into a switch from below ÷ bandwidth out of it upwards, worst tier", Source: "computed at every switch of the graph"}
	if r.Oversubscription > 1.0001 {
		over.State = "warn"
	}
	for _, t := range r.Tiers {
		if t.Ratio == r.Oversubscription {
			over.Note = t.Tier + ", at " + t.At
		}
	}
	if len(r.Tiers) == 0 {
		over.Value, over.State, over.Note = "–", "", "no tiers"
	}
	half := Figure{Key: "bisection", Name: "Bisection", Value: rate(r.BisectionRate),
		Note:    fmt.Sprintf("%.0f%% of half of the endpoints", 100*r.BisectionRate/max(r.Bisection.Ideal, 1)),
		Formula: "max-flow between two halves of the endpoints, one way", Source: r.Bisection.Method}
	if r.Bisection.Formula != nil {
		half.Formula += fmt.Sprintf("; the family's formula gives %s", rate(*r.Bisection.Formula))
	}
	cost := Figure{Key: "cost", Name: "Cost", Value: dollars(r.CostUSD),
		Note: fmt.Sprintf("%.0f%% of it network", 100*r.Economics.NetworkShare), Formula: "sum of the bill: count × unit price",
		Source: fmt.Sprintf("catalogue prices, %d lines of the bill", len(r.Bill))}
	if len(r.Unpriced) > 0 {
		cost.Note, cost.State = fmt.Sprintf("without %d items that have no price", len(r.Unpriced)), "warn"
		cost.Source += "; no price: " + strings.Join(r.Unpriced, ", ")
	}
	power := Figure{Key: "power", Name: "Power", Value: watts(r.PowerWatts), Note: "at most, without cooling",
		Formula: "sum of the bill: count × rated power", Source: "data sheets in the catalogue"}
	path := Figure{Key: "path", Name: "Longest path", Value: micros(r.Latency.Total), Note: plural(r.Paths.WorstSwitches, "switch"),
		Formula: terms(r.Latency.Terms), Source: fmt.Sprintf("%s to %s", r.Latency.From, r.Latency.To)}
	return append(list, over, half, cost, power, path)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	if strings.HasSuffix(what, "h") {
		what += "e"
	}
	return grouped(int64(n)) + " " + what + "s"
}

func terms(list []design.LatencyTerm) string {
	var out []string
	for _, t := range list {
		out = append(out, fmt.Sprintf("%s %.2f µs", t.Name, t.Micros))
	}
	return strings.Join(out, " + ")
}

func switches(r *design.Report) string {
	var out []string
	for _, x := range []struct {
		n    int
		name string
	}{{r.Switches.Leaf, "leaf"}, {r.Switches.Spine, "spine"}, {r.Switches.Core, "core"}, {r.Switches.Higher, "higher"},
		{r.Switches.Service, "service"}} {
		if x.n > 0 {
			out = append(out, grouped(int64(x.n))+" "+x.name)
		}
	}
	return strings.Join(out, ", ")
}

// grouped writes a number with commas between its thousands.
func grouped(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func ratio(r float64) string { return fmt.Sprintf("%.4g : 1", r) }

func rate(bytes float64) string {
	if bytes >= 1e12 {
		return fmt.Sprintf("%.4g TB/s", bytes/1e12)
	}
	return unit.Rate(bytes).String()
}

func micros(us float64) string {
	if us == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f µs", us)
}

func dollars(v float64) string {
	switch {
	case v == 0:
		return "–"
	case v >= 1e9:
		return fmt.Sprintf("$%.3g billion", v/1e9)
	case v >= 1e6:
		return fmt.Sprintf("$%.3g million", v/1e6)
	}
	return "$" + grouped(int64(v))
}

func watts(w float64) string {
	switch {
	case w == 0:
		return "–"
	case w >= 1e6:
		return fmt.Sprintf("%.3g MW", w/1e6)
	}
	return fmt.Sprintf("%.3g kW", w/1e3)
}
