// Package design evaluates a cluster's network before it is bought: counts,
// oversubscription, bisection, paths and latency, a model's demands, failures and their
// cost, power and money, growth, and a design checklist.
//
// Analyze computes everything from the graph and the catalogue; a Report is a
// plain value that prints itself as text, as JSON (encoding/json) and as one
// HTML page. Where a textbook's figure and the computation differ, the report
// shows both and says why.
package design

import (
	"errors"
	"fmt"

	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
)

// Report is everything the analysis finds. JSON keys are stable.
type Report struct {
	Name         string   `json:"name"`
	Family       string   `json:"family"`
	Endpoint     string   `json:"endpoint"`      // what attaches to the fabric: NIC, chip, or GPU
	Hosts        int      `json:"hosts"`         // with accelerators
	ServiceHosts int      `json:"service_hosts"` // without
	GPUs         int      `json:"gpus"`
	Switches     Switches `json:"switches"`
	Cables       Cables   `json:"cables"`
	Sizes        Sizes    `json:"sizes"`
	Optics       Optics   `json:"optics"`

	Networks []Network `json:"networks"`        // compute, and those beside it
	Floor    *Floor    `json:"floor,omitempty"` // where the cluster file has one

	Oversubscription float64     `json:"oversubscription"` // the worst tier's; 1 is non-blocking
	Tiers            []TierRatio `json:"oversubscription_by_tier"`
	BisectionRate    float64     `json:"bisection_bytes_per_s"` // one way
	Bisection        Bisection   `json:"bisection"`
	Collectives      []Fastest   `json:"collectives,omitempty"` // only where the caller asks for it
	Paths            Paths       `json:"paths"`
	Latency          Latency     `json:"latency"`
	Need             *Need       `json:"need,omitempty"` // only where a model is named

	Failures   []Failure `json:"failures"` // the last is all parts together
	Losses     []Loss    `json:"losses"`
	Domains    []Domain  `json:"failure_domains"`
	Redundancy []Verdict `json:"redundancy"`
	Pieces     *Pieces   `json:"pieces,omitempty"` // only where hosts do not reach each other although nothing is broken

	PowerWatts float64   `json:"power_watts"`
	CostUSD    float64   `json:"cost_usd"`
	Bill       []Item    `json:"bill"`
	Unpriced   []string  `json:"unpriced"` // items counted at no price
	Economics  Economics `json:"economics"`
	Growth     Growth    `json:"growth"`

	Plan        *ModelPlan `json:"plan,omitempty"` // of the model that the cluster file names
	Checklist   []Check    `json:"checklist"`
	Assumptions []string   `json:"assumptions"`
	Notes       []string   `json:"notes"`
	Textbook    *Textbook  `json:"textbook,omitempty"` // only where the caller asks for it

	perCable int  // links of the compute networks that one cable carries
	own      int  // items of the bill that are of the graph
	fibre    bool // between racks, also where another cable is cheaper
}

// Analyze computes the report of a cluster. It changes nothing of it.
func Analyze(c *cluster.Cluster) (*Report, error) {
	if c == nil || c.Graph == nil {
		return nil, errors.New("there is no graph to analyze")
	}
	facts := c.Catalog
	if facts == nil {
		facts = catalog.Default()
	}
	if n := c.Graph.Unstated(); n > 0 {
		return nil, fmt.Errorf("the rates of %s of %q are not stated; give them a class with Graph.WithClass first", plural(n, "link"), c.Graph.Name)
	}
	v, err := look(c.Graph)
	if err != nil {
		return nil, err
	}
	needs := withDefaults(c.Needs)
	r := &Report{Name: c.Name, Notes: append([]string{}, c.Notes...), Unpriced: []string{}, Tiers: []TierRatio{}, Losses: []Loss{}}
	if r.Name == "" {
		r.Name = c.Graph.Name
	}
	r.perCable, r.fibre = max(c.LinksPerCable, 1), true
	if c.Floor != nil {
		r.fibre = c.Floor.Intent.Cables == "fibre"
		if !r.fibre {
			r.Optics.Rule = floorRule
		}
	}
	r.count(v)
	r.Family, r.Endpoint = v.describe(r), v.endpoint()

	h := v.halfFlow()
	r.Bisection = v.bisect(h)
	r.BisectionRate = r.Bisection.MaxFlow
	r.oversubscribe(v, needs.Oversub)
	r.Paths = v.paths()
	r.Latency = v.latency(facts, &r.Paths)
	r.need(v, needs)
	if err := r.plan(c, needs); err != nil {
		return nil, err
	}

	b := v.breaker(h, r.Bisection.MaxFlow)
	r.Pieces = b.pieces()
	r.Losses = append(r.Losses, b.losses()...)
	r.Domains = b.domains(r)
	r.Redundancy = r.redundant(v)

	if err := r.beside(c, facts); err != nil {
		return nil, err
	}
	r.bill(v, facts)
	if err := r.networks(v, facts); err != nil {
		return nil, err
	}
	r.stand(c, v)
	if err := r.fail(v, needs.FailureRates); err != nil {
		return nil, err
	}
	r.economics(v, needs, facts)
	r.alternatives(v, facts)
	r.grow(v, c.Growth)
	if err := r.check(v, needs); err != nil {
		return nil, err
	}
	r.assume(v)
	return r, nil
}

// withDefaults fills in what the owner left open. Electricity may be free, so
// its price is a default only where nothing at all was asked for.
func withDefaults(n cluster.Needs) cluster.Needs {
	if n.Years == 0 && n.StepSeconds == 0 && n.PowerPrice == 0 {
		n.PowerPrice = 0.10
	}
	set := func(v *float64, def float64) {
		if *v == 0 {
			*v = def
		}
	}
	set(&n.BytesPer, 4)
	set(&n.StepSeconds, 1)
	set(&n.Years, 3)
	set(&n.Oversub, 1.2)
	return n
}

// describe says in words what the fabric is.
func (v *view) describe(r *Report) string {
	family, fabric, ok := v.family()
	switch {
	case !ok:
		return fmt.Sprintf("%d fabrics of different families", r.Sizes.Fabrics)
	case family == topo.Torus:
		s := "torus"
		for i, d := range v.g.Fabrics[fabric].Dims {
			s += ternary(i == 0, " of ", " x ") + fmt.Sprint(d)
		}
		return s
	case family == topo.Dragonfly:
		return fmt.Sprintf("dragonfly, %d switches in %d groups", r.Switches.Leaf, max(r.Sizes.Pods, 1))
	}
	s := fmt.Sprintf("%s in %d tiers", ternary(family == topo.Clos, "fat-tree", "irregular fabric"), v.top())
	if v.top() == 1 {
		s = ternary(len(v.nodes) == 1, "one switch", "single tier")
	}
	if r.Sizes.Rails > 1 {
		s += fmt.Sprintf(", rail-optimised with %d rails", r.Sizes.Rails)
	}
	if r.Sizes.Planes > 1 {
		s += fmt.Sprintf(", %d planes", r.Sizes.Planes)
	}
	if r.Sizes.Fabrics > 1 {
		s += fmt.Sprintf(", %d fabrics", r.Sizes.Fabrics)
	}
	return s
}

// endpoint says what attaches.
func (v *view) endpoint() string {
	switch {
	case v.direct:
		return "chip"
	case len(v.ends) > 0 && v.g.Nodes[v.ends[0].node].Kind == topo.GPU:
		return "GPU"
	}
	return "NIC"
}

// assume lists what the figures rest on and the graph does not say.
func (r *Report) assume(v *view) {
	r.Assumptions = []string{
		"cables: " + r.Optics.Rule,
		"bandwidths are one way and at the links' payload rate; a large ring reaches about 96% of a NIC's",
		"max-flow assumes ideal routing; ECMP hashing reaches less when flows are few",
		fmt.Sprintf("power is the most the machines draw, at $%s a kWh, without cooling", trim(r.Economics.PowerPrice)),
		"cloud: " + r.Economics.CloudSource,
		"failure rates are the same all year and parts fail independently",
	}
	if r.Paths.Sources > 0 {
		r.Assumptions = append(r.Assumptions, fmt.Sprintf("path counts are from %d hosts spread over the cluster to every other host", r.Paths.Sources))
	}
	if len(r.Unpriced) > 0 {
		r.Assumptions = append(r.Assumptions, "cost and power leave out what the catalogue has no price for; see the bill")
	}
}
