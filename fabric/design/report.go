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
	"cmp"
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
func Analyze(c *cluster.Cluster) (*Report, error) { return Run{}.Analyze(c) }

// Run says how an analysis goes on. 131,072 GPUs take seconds, in which its reader may leave.
type Run struct {
	Stop func() bool                       // asked before every stage; true ends the analysis with ErrStopped
	Tell func(stage string, done, all int) // called before every stage
}

// ErrStopped is the error of an analysis that Run.Stop ended.
var ErrStopped = errors.New("the analysis was stopped")

// Analyze is the function Analyze that can be stopped, and tells what it is doing.
func (o Run) Analyze(c *cluster.Cluster) (*Report, error) {
	a, err := begin(c)
	if err != nil {
		return nil, err
	}
	stages := a.stages()
	for i, s := range stages {
		if o.Stop != nil && o.Stop() {
			return nil, ErrStopped
		}
		if o.Tell != nil {
			o.Tell(s.name, i, len(stages))
		}
		if err := s.do(); err != nil {
			return nil, err
		}
	}
	return a.r, nil
}

// analysis is a report being made.
type analysis struct {
	c     *cluster.Cluster
	facts *catalog.Catalog
	needs cluster.Needs
	v     *view
	r     *Report
	half  *halfFlow
	b     *breaker
}

// begin checks that a cluster can be analysed, and fills in what it leaves out. Links whose rates are not stated are an
// error: every figure would be a guess.
func begin(c *cluster.Cluster) (*analysis, error) {
	if c == nil || c.Graph == nil {
		return nil, errors.New("there is no graph to analyze")
	}
	a := &analysis{c: c, facts: c.Catalog, needs: withDefaults(c.Needs)}
	if a.facts == nil {
		a.facts = catalog.Default()
	}
	if n := c.Graph.Unstated(); n > 0 {
		return nil, fmt.Errorf("the rates of %s of %q are not stated; give them a class with Graph.WithClass first",
			plural(n, "link"), c.Graph.Name)
	}
	var err error
	if a.v, err = look(c.Graph); err != nil {
		return nil, err
	}
	r := &Report{Name: cmp.Or(c.Name, c.Graph.Name), Notes: append([]string{}, c.Notes...),
		Unpriced: []string{}, Tiers: []TierRatio{}, Losses: []Loss{}}
	r.perCable, r.fibre = max(c.LinksPerCable, 1), true
	if c.Floor != nil {
		r.fibre = c.Floor.Intent.Cables == "fibre"
		if !r.fibre {
			r.Optics.Rule = floorRule
		}
	}
	a.r = r
	return a, nil
}

type stage struct {
	name string
	do   func() error
}

// stages lists what an analysis does, in its order: later stages use what earlier ones found.
func (a *analysis) stages() []stage {
	r, v := a.r, a.v
	var down, up []int64
	plain := func(f func()) func() error { return func() error { f(); return nil } }
	lose := func(f func() []Loss) func() error { return plain(func() { r.Losses = append(r.Losses, f()...) }) }
	return []stage{
		{"counting", plain(func() { r.count(v); r.Family, r.Endpoint = v.describe(r), v.endpoint() })},
		{"bisection", plain(func() { a.half = v.halfFlow(); r.Bisection = v.bisect(a.half); r.BisectionRate = r.Bisection.MaxFlow })},
		{"oversubscription", plain(func() { r.oversubscribe(v, a.needs.Oversub) })},
		{"paths", plain(func() { r.Paths = v.paths(); r.Latency = v.latency(a.facts, &r.Paths) })},
		{"needs", func() error { r.need(v, a.needs); return r.plan(a.c, a.needs) }},
		{"pieces", plain(func() { a.b = v.breaker(a.half, r.Bisection.MaxFlow); r.Pieces = a.b.pieces() })},
		{"loss of a host's cable", lose(func() []Loss { down, up = v.upAndDown(); return a.b.hostCables(down, up) })},
		{"loss of a cable between switches", lose(func() []Loss { return a.b.trunks() })},
		{"loss of a switch", lose(func() []Loss { return a.b.switches(down, up) })},
		{"loss of a network", lose(func() []Loss { return a.b.wholes() })},
		{"failure domains", plain(func() { r.Domains = a.b.domains(r); r.Redundancy = r.redundant(v) })},
		{"other networks", func() error { return r.beside(a.c, a.facts) }},
		{"bill", plain(func() { r.bill(v, a.facts) })},
		{"bill of other networks", func() error { return r.networks(v, a.facts) }},
		{"floor", plain(func() { r.stand(a.c, v) })},
		{"failures", func() error { return r.fail(v, a.needs.FailureRates) }},
		{"economics", plain(func() { r.economics(v, a.needs, a.facts); r.alternatives(v, a.facts) })},
		{"growth", plain(func() { r.grow(v, a.c.Growth) })},
		{"checklist", func() error {
			err := r.check(v, a.needs)
			r.assume(v)
			return err
		}},
	}
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
		r.Assumptions = append(r.Assumptions, fmt.Sprintf("path counts are from %d hosts spread over the cluster to every other host",
			r.Paths.Sources))
	}
	if len(r.Unpriced) > 0 {
		r.Assumptions = append(r.Assumptions, "cost and power leave out what the catalogue has no price for; see the bill")
	}
}
