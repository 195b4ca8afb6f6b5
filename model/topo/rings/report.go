package rings

import "github.com/weft-fabric/weft/model/topo"

// Report is a result with names instead of numbers, as --json prints it. Rates
// are bytes a second.
type Report struct {
	GPUs []string `json:"gpus"`
	PlanReport
	Others []PlanReport `json:"others,omitempty"`
}

// PlanReport is a Plan in a Report.
type PlanReport struct {
	Medium       Medium       `json:"medium"`
	Best         string       `json:"best"`
	Bus          float64      `json:"bus_bytes_per_s"`  // of the best, rings or trees
	NCCL         float64      `json:"nccl_bytes_per_s"` // of the rings, which NCCL runs; 0 if there are none
	RingBus      float64      `json:"ring_wire_bytes_per_s"`
	RingExpected float64      `json:"ring_expected_bytes_per_s"`
	TreeBus      float64      `json:"tree_wire_bytes_per_s"`
	TreeExpected float64      `json:"tree_expected_bytes_per_s"`
	BoundRings   int          `json:"bound_rings,omitempty"`
	Bound        float64      `json:"bound_bytes_per_s"`
	BoundWhy     string       `json:"bound_why"`
	Exact        bool         `json:"exact"`
	Steps        int          `json:"search_steps"`
	Why          string       `json:"limit"`
	Unmeasured   string       `json:"unmeasured,omitempty"`
	Rings        []RingReport `json:"rings"`
	Trees        []TreeReport `json:"trees"`
}

// RingReport is a Ring in a Report.
type RingReport struct {
	Order []string `json:"order"`
	Rate  float64  `json:"bytes_per_s"`
}

// TreeReport is a Tree in a Report: each GPU but the root with its parent.
type TreeReport struct {
	Root  string      `json:"root"`
	Depth int         `json:"depth"`
	Rate  float64     `json:"bytes_per_s"`
	Edges [][2]string `json:"child_parent"`
}

// Report writes a result with names.
func (r *Result) Report(g *topo.Graph) Report {
	out := Report{PlanReport: r.Plan.report(g, r.GPUs)}
	for _, n := range r.GPUs {
		out.GPUs = append(out.GPUs, g.NodeName(n))
	}
	for i := range r.Others {
		out.Others = append(out.Others, r.Others[i].report(g, r.GPUs))
	}
	return out
}

func (p *Plan) report(g *topo.Graph, gpus []topo.NodeID) PlanReport {
	out := PlanReport{
		Medium: p.Medium, Best: p.Best(), Bus: float64(p.Bus()), NCCL: float64(p.RingExpected),
		RingBus: float64(p.RingBus), RingExpected: float64(p.RingExpected), TreeBus: float64(p.TreeBus), TreeExpected: float64(p.TreeExpected),
		BoundRings: p.Bound.Rings, Bound: float64(p.Bound.Rate), BoundWhy: p.Bound.Why,
		Exact: p.Exact, Steps: p.Steps, Why: p.Why, Unmeasured: p.Unmeasured, Rings: []RingReport{}, Trees: []TreeReport{},
	}
	for _, r := range p.Rings {
		ring := RingReport{Rate: float64(r.Rate)}
		for _, n := range r.Order {
			ring.Order = append(ring.Order, g.NodeName(n))
		}
		out.Rings = append(out.Rings, ring)
	}
	for _, t := range p.Trees {
		tree := TreeReport{Root: g.NodeName(t.Root), Depth: t.Depth, Rate: float64(t.Rate)}
		for i, parent := range t.Parent {
			if parent != topo.None {
				tree.Edges = append(tree.Edges, [2]string{g.NodeName(gpus[i]), g.NodeName(parent)})
			}
		}
		out.Trees = append(out.Trees, tree)
	}
	return out
}
