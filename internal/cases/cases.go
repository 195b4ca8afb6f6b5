// Package cases holds the worked figures on collectives and transport of the
// guides to GPU clusters, each beside what weft computes, and why the two
// differ.
//
//	guide's figure ──┐
//	                    ├─► verdict: agrees, or by what factor it is off, and the cause
//	simulator, verifier,│
//	NCCL's model ───────┘
//
// Ours is computed each time: by package sim on a built topology wherever it is a
// collective or a transfer, by package tune where a guide says what NCCL takes,
// by collective/verify where it counts bytes and steps, and from the catalogue where
// it is the rate of a port. Every case carries bounds from a closed form, so that
// an engine that goes astray is noticed here.
package cases

import (
	"fmt"
	"math"
	"slices"
	"strconv"
)

// Span is a figure, or a range of them.
type Span struct{ Low, High float64 }

// Cause says in a word why a guide's figure differs from ours.
type Cause string

// The causes.
const (
	Agrees      Cause = "agrees"
	BitsBytes   Cause = "bits taken for bytes, or ports added up"
	BothWays    Cause = "one way taken for both ways"
	Volume      Cause = "wrong number of bytes"
	Arithmetic  Cause = "wrong arithmetic"
	Denominator Cause = "different denominator"
	Wiring      Cause = "wiring misread"
	Conditions  Cause = "other conditions than stated"
	Latency     Cause = "latency overstated"
	Software    Cause = "software counted on one side only"
	Estimate    Cause = "ours is an estimate"
)

// Case is one figure of a guide and ours.
type Case struct {
	ID     string // "links-5.2-nvswitch": guide, section, what
	Source string // "links, 5.2"
	Claim  string // what the guide says, in short
	Guide  Span
	Unit   string // of both figures
	Ours   float64
	How    string // which model computed it
	Cause  Cause
	Why    string // the difference in a sentence or two
	Bounds Span   // what Ours must lie in
	Closed string // where the bounds come from
}

// near is a closed form's value with a tolerance.
func near(v, tolerance float64) Span { return Span{v * (1 - tolerance), v * (1 + tolerance)} }

// is is a figure that is no range.
func is(v float64) Span { return Span{v, v} }

// agreement is how far a figure may be from ours and still be called right.
const agreement = 0.10

// ratio is the guide's figure over ours: 1 within a range, and from its nearer
// end outside.
func (c *Case) ratio() float64 {
	switch {
	case c.Ours == 0 && c.Guide.Low > 0:
		return math.Inf(1)
	case c.Ours < c.Guide.Low:
		return c.Guide.Low / c.Ours
	case c.Ours > c.Guide.High:
		return c.Guide.High / c.Ours
	}
	return 1
}

// Right reports whether the guide's figure is within a tenth of ours.
func (c *Case) Right() bool { return math.Abs(c.ratio()-1) <= agreement }

// Verdict says how the guide's figure relates to ours.
func (c *Case) Verdict() string {
	r := c.ratio()
	switch {
	case c.Right() && math.Abs(r-1) < 0.005:
		return "agrees"
	case c.Right():
		return fmt.Sprintf("agrees within %.0f%%", math.Ceil(math.Abs(r-1)*100-1e-9))
	case c.Ours == 0:
		return fmt.Sprintf("ours is none: %s", c.Cause)
	case r > 1:
		return fmt.Sprintf("%s times ours: %s", digits(r, 2), c.Cause)
	}
	return fmt.Sprintf("1/%s of ours: %s", digits(1/r, 2), c.Cause)
}

// Figures prints the guide's figure and ours, in the unit that suits each: three
// digits of what is simulated or counted, two of what is fitted.
func (c *Case) Figures() (guide, ours string) {
	n := 3
	if c.How == byNCCL && c.Unit != "MiB" { // sizes are tried by powers of two and exact
		n = 2
	}
	guide = amount(c.Guide.High, 4, c.Unit, c.Unit)
	if c.Guide.High != c.Guide.Low {
		guide = digits(c.Guide.Low, 4) + " to " + guide
	}
	return guide, amount(c.Ours, n, c.Unit, scaled(c.Ours, c.Unit))
}

// chains of units, each a thousand times the one before.
var chains = [][]string{{"ns", "us", "ms", "s"}, {"KB/s", "MB/s", "GB/s", "TB/s"}, {"Gb/s", "Tb/s", "Pb/s"}}

// scaled is the unit of a chain in which a figure has one to four digits left of the point.
func scaled(v float64, unit string) string {
	for _, chain := range chains {
		i := slices.Index(chain, unit)
		for ; i >= 0 && i+1 < len(chain) && v >= 9999.5; i++ {
			v /= 1e3
		}
		for ; i > 0 && v < 0.0995; i-- {
			v *= 1e3
		}
		if i >= 0 {
			return chain[i]
		}
	}
	return unit
}

// amount prints a figure that is in one unit in another of its chain.
func amount(v float64, n int, from, to string) string {
	for _, chain := range chains {
		if i, j := slices.Index(chain, from), slices.Index(chain, to); i >= 0 && j >= 0 {
			v *= math.Pow(1e3, float64(i-j))
		}
	}
	if to == "%" || to == "x" {
		return digits(v, n) + to
	}
	return digits(v, n) + " " + to
}

// digits prints n significant digits, and every digit left of the point.
func digits(v float64, n int) string {
	if v == 0 {
		return "0"
	}
	p := n - 1 - int(math.Floor(math.Log10(math.Abs(v))+1e-12))
	step := math.Pow(10, float64(max(p, -p)))
	if p <= 0 {
		return strconv.FormatFloat(math.Round(v/step)*step, 'f', 0, 64)
	}
	return strconv.FormatFloat(math.Round(v*step)/step, 'f', -1, 64)
}

// entry is a case before it is computed.
type entry struct {
	id, section, claim string
	says               Span
	unit               string
	how                string
	ours               func(*lab) float64
	bounds             Span
	closed             string
	cause              Cause
	why                string
	also               func(*lab) string // another figure of ours, added to why; nil if there is none
}

// All computes every case, in the order of the guides.
func All() ([]Case, error) {
	l := newLab()
	var list []Case
	for doc, entries := range [][]entry{layersGuide(), clustersGuide(), linksGuide(), append(modelsGuide(), planned()...), transfersGuide()} {
		for _, e := range entries {
			c := Case{
				ID: guides[doc].name + "-" + e.id, Source: guides[doc].name + ", " + e.section, Claim: e.claim,
				Guide: e.says, Unit: e.unit, Ours: e.ours(l), How: e.how, Cause: e.cause, Why: e.why, Bounds: e.bounds, Closed: e.closed,
			}
			if e.also != nil && l.err == nil {
				c.Why += " " + e.also(l)
			}
			if l.err != nil {
				return nil, fmt.Errorf("case %s: %w", c.ID, l.err)
			}
			list = append(list, c)
		}
	}
	return list, nil
}

// How a figure was computed.
const (
	bySim      = "simulated at wire rates"
	byMeasured = "simulated at measured rates and overheads"
	byNCCL     = "NCCL's choice, fitted time"
	byProof    = "counted by the verifier"
	byCatalog  = "from the catalogue"
	byGraph    = "summed over the topology"
	byForm     = "arithmetic"
	byPlan     = "planned"
)
