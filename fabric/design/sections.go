package design

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// section is a part of the printed report: text and HTML show the same ones.
type section struct {
	ID     string
	Title  string
	Lead   string
	Tables []table
	Notes  []string
}

type table struct {
	Title string
	Bare  bool // the columns need no names
	Cols  []col
	Rows  [][]string
}

type col struct {
	Name   string
	Right  bool // numbers with their units
	Answer bool // yes, no and the like
}

func left(name string) col   { return col{Name: name} }
func right(name string) col  { return col{Name: name, Right: true} }
func answer(name string) col { return col{Name: name, Answer: true} }

// sections lays the report out in reading order.
func (r *Report) sections() []section {
	list := []section{r.summarySection(), r.countSection(), r.networkSection()}
	list = append(list, r.floorSections()...)
	list = append(list, r.bandwidthSection(), r.pathSection())
	list = append(list, r.needSections()...)
	list = append(list, r.failureSection(), r.lossSection(), r.redundancySection(), r.costSection(), r.growthSection(), r.checkSection(),
		section{ID: "assumptions", Title: "What these figures assume", Notes: append(append([]string{}, r.Notes...), r.Assumptions...)})
	list = append(list, r.Textbook.sections()...)
	for i := range list {
		list[i].Tables = slices.DeleteFunc(list[i].Tables, func(t table) bool { return len(t.Rows) == 0 })
	}
	return list
}

func (r *Report) summarySection() section {
	yes, no, you := r.tally()
	oversubscription, longest := trim(r.Oversubscription)+":1",
		fmt.Sprintf("%s, %.2f us", plural(r.Paths.WorstSwitches, r.hop()), r.Latency.Total)
	if r.Pieces != nil {
		oversubscription, longest = "without limit: the fabric is in pieces", "none between the pieces"
	}
	rows := [][]string{
		{"fabric", r.Family},
		{"hosts", fmt.Sprintf("%s with %s, %s", count(r.Hosts), plural(r.GPUs, "GPU"), plural(r.ServiceHosts, "service host"))},
		{"switches", fmt.Sprintf("%s leaf, %s spine, %s core", count(r.Switches.Leaf), count(r.Switches.Spine), count(r.Switches.Core))},
		{"oversubscription", oversubscription},
		{"bisection, one way", rate(r.BisectionRate)},
		{"longest path", longest},
		{"a part fails every", days(r.Failures[len(r.Failures)-1].Days)},
		{"power", watts(r.PowerWatts)},
		{"cost", ternary(r.CostUSD > 0, "$"+money(r.CostUSD), "no prices known")},
		{"checklist", fmt.Sprintf("%d yes, %d no, %d need you", yes, no, you)},
	}
	if r.Direct() {
		rows = slices.Delete(rows, 2, 3)
	}
	return section{ID: "summary", Title: "In short", Lead: r.lead(),
		Tables: []table{{Bare: true, Cols: []col{left("what"), left("value")}, Rows: rows}}}
}

// Direct reports whether accelerators are joined without switches.
func (r *Report) Direct() bool { return r.Endpoint == "chip" }

// lead is the first thing to know: a fabric in pieces, else how much of what
// the endpoints can send the network carries, and what that means for the
// owner's model if there is one.
func (r *Report) lead() string {
	if p := r.Pieces; p != nil {
		return fmt.Sprintf("THE FABRIC IS IN %d PIECES: %s of %s do not reach the rest (%s). The figures below hold inside a piece only.",
			p.Count, plural(p.HostsCutOff, "host"), count(p.Hosts), p.example())
	}
	full := bits(r.Sizes.NICRate)
	if r.Sizes.NICLeast < r.Sizes.NICRate*(1-1e-9) {
		full = fmt.Sprintf("%s to %s", bits(r.Sizes.NICLeast), full)
	}
	s := fmt.Sprintf("Non-blocking: every %s can send its full %s while all others do.", r.Endpoint, full)
	switch worst := max(r.Oversubscription, r.Bisection.Ratio); {
	case worst <= 1+1e-9:
	case worst <= 1.05:
		s = fmt.Sprintf("Nearly non-blocking: every %s keeps %s of its %s when all send across the network at once.",
			r.Endpoint, percent(1/worst), full)
	default:
		s = fmt.Sprintf("Oversubscribed %s:1: a %s of %s keeps %s of its rate when all send across the network at once.",
			trim(worst), r.Endpoint, full, percent(1/worst))
	}
	if r.Need != nil {
		s += " " + r.Need.sentence()
	}
	if r.Plan != nil {
		s += " " + r.Plan.Verdict
	}
	return s
}

// sentence holds the owner's model against the network.
func (n *Need) sentence() string {
	return fmt.Sprintf("Reducing the gradients of %s parameters within a step of %s %s.",
		params(n.Params), seconds(n.StepSeconds), strings.TrimSuffix(n.Verdict, "."))
}

func (r *Report) tally() (yes, no, you int) {
	for _, c := range r.Checklist {
		switch c.Answer {
		case Yes:
			yes++
		case No:
			no++
		case NeedsYou:
			you++
		}
	}
	return yes, no, you
}

func (r *Report) countSection() section {
	hosts := table{Title: "Parts", Bare: true, Cols: []col{left("part"), right("count")}}
	add := func(t *table, name string, n int) {
		if n != 0 {
			t.Rows = append(t.Rows, []string{name, count(n)})
		}
	}
	add(&hosts, "hosts with accelerators", r.Hosts)
	add(&hosts, "service hosts", r.ServiceHosts)
	add(&hosts, "GPUs", r.GPUs)
	if r.Endpoint == "NIC" {
		add(&hosts, "NICs on compute networks", r.Sizes.NICs)
	}
	if r.Sizes.Domain > 1 {
		add(&hosts, "accelerator domains (NVLink and the like)", r.Sizes.Domains)
	}
	add(&hosts, "racks", r.Sizes.Racks)
	add(&hosts, "pods", r.Sizes.Pods)
	add(&hosts, "leaf switches", r.Switches.Leaf)
	add(&hosts, "spine switches", r.Switches.Spine)
	add(&hosts, "core switches", r.Switches.Core)
	add(&hosts, "switches above", r.Switches.Higher)
	add(&hosts, "switches of service networks", r.Switches.Service)
	cables := table{Title: "Cables", Bare: true, Cols: []col{left("cable"), right("count")}}
	add(&cables, "host to leaf", r.Cables.HostLeaf)
	add(&cables, "leaf to spine", r.Cables.LeafSpine)
	add(&cables, "spine to core", r.Cables.SpineCore)
	add(&cables, "inside a tier", r.Cables.Peer)
	add(&cables, "other", r.Cables.Other)
	add(&cables, "service networks", r.Cables.Service)
	add(&cables, "accelerator links between hosts", r.Cables.Direct)
	add(&cables, "transceivers", r.Optics.Transceivers)
	choice := table{Title: "Cables by segment", Cols: []col{left("segment"), left("link"), right("length"), left("cable"), right("count"),
		right("transceivers")}}
	for _, c := range r.Optics.Choices {
		choice.Rows = append(choice.Rows, []string{c.Link, c.Gen, trim(c.Metres) + " m", ternary(c.Cable == "", "none in the catalogue", c.Cable),
			count(c.Count), count(c.Optics)})
	}
	return section{ID: "counts", Title: "Counts", Tables: []table{hosts, cables, choice}}
}

func (r *Report) bandwidthSection() section {
	t := table{Title: "Oversubscription", Cols: []col{left("tier"), right("down"), right("up"), right("ratio"), left("worst at"),
		left("by switch"), left("verdict")}}
	for _, x := range r.Tiers {
		t.Rows = append(t.Rows, []string{x.Tier, rate(x.Down), rate(x.Up), trim(x.Ratio) + ":1", x.At, x.spread(), x.Verdict})
	}
	b := table{Title: "Bisection, one way", Bare: true, Cols: []col{left("how"), right("rate")}, Rows: [][]string{
		{"half of the endpoints at full rate", rate(r.Bisection.Ideal)},
		{"max-flow on the graph", rate(r.Bisection.MaxFlow)},
		{"ratio", ratioText(r.Bisection.Ratio)},
	}}
	if r.Bisection.Formula != nil {
		b.Rows = append(b.Rows, []string{"formula", rate(*r.Bisection.Formula)})
	}
	f := table{Title: "What no schedule beats, over all GPUs",
		Cols: []col{left("collective"), right("bandwidth"), right("bus bandwidth"), left("limit")}}
	for _, x := range r.Collectives {
		f.Rows = append(f.Rows, []string{x.Op + ternary(x.Adds, ", if switches add", ""), rate(x.Rate), rate(x.Bus), x.Limit})
	}
	s := section{ID: "bandwidth", Title: "Bandwidth", Tables: []table{t, b, f}, Notes: []string{r.Bisection.Method}}
	if r.Bisection.Formula != nil {
		s.Notes = append(s.Notes, ternary(r.Bisection.Agree, "formula and max-flow agree",
			"formula and max-flow differ: the wiring is uneven and does not reach what its uplinks add up to"))
	}
	if len(r.Tiers) == 0 {
		s.Lead = "One tier of switches: nothing to oversubscribe."
		s.Tables = s.Tables[1:]
	}
	return s
}

func ratioText(x float64) string {
	if x == 0 {
		return "nothing crosses"
	}
	return trim(x) + ":1"
}

// hop names what a path passes through.
func (r *Report) hop() string { return ternary(r.Endpoint == "chip", "chip", "switch") }

func (r *Report) pathSection() section {
	p := r.Paths
	between := table{Title: "Paths between hosts", Cols: []col{left("what"), right("least"), right("median"), right("most")}, Rows: [][]string{
		{"equal-cost shortest paths between two hosts", ways(p.Min), ways(p.Median), ways(p.Max)},
		{fmt.Sprintf("paths that share no cable (max-flow, %d pairs)", p.DisjointPairs), fmt.Sprint(p.DisjointMin), "",
			fmt.Sprint(p.DisjointMax)},
	}}
	if p.ECMPMax > 0 {
		between.Rows = append(between.Rows, []string{"uplinks of a leaf (ECMP width)", fmt.Sprint(p.ECMPMin), "", fmt.Sprint(p.ECMPMax)})
	}
	s := section{ID: "paths", Title: "Paths and latency", Tables: []table{between}}
	if len(r.Latency.Terms) == 0 {
		s.Notes = []string{fmt.Sprintf("no latency budget: there is no path from %s to %s",
			cmp.Or(p.WorstFrom, "one host"), cmp.Or(p.WorstTo, "another"))}
		return s
	}
	micros := func(us float64) string { return fmt.Sprintf("%.2f us", us) }
	lat := table{Title: fmt.Sprintf("Latency of the longest path, %s to %s, %s",
		r.Latency.From, r.Latency.To, plural(p.WorstSwitches, r.hop())),
		Cols: []col{left("term"), right("time"), left("how")}}
	for _, t := range r.Latency.Terms {
		lat.Rows = append(lat.Rows, []string{t.Name, micros(t.Micros), t.How})
	}
	lat.Rows = append(lat.Rows, []string{"first byte, one way", micros(r.Latency.Total),
		"the sum; 'weft topo paths' gives the same for these two ends"})
	beyond := table{Title: "What may come on top", Cols: []col{left("term"), right("time"), left("how")}}
	for _, t := range r.Latency.Beyond {
		beyond.Rows = append(beyond.Rows, []string{t.Name, micros(t.Micros), t.How})
	}
	s.Tables = append(s.Tables, lat, beyond)
	return s
}

// needSections is empty where no model is named.
func (r *Report) needSections() []section {
	list := r.planSections()
	n := r.Need
	if n == nil {
		return list
	}
	shared := fmt.Sprintf("2(m-1)/m of it for m = %s %ss, over %s each", count(n.Groups), n.Group, plural(n.NICs, r.Endpoint))
	if r.Endpoint != "NIC" {
		shared = "over all its links at once"
	}
	rows := [][]string{
		{"gradient", size(n.Gradient), fmt.Sprintf("%s parameters of %g bytes", params(n.Params), n.BytesPer)},
		{"through every " + r.Endpoint + ", one ring", size(n.FlatBytes), fmt.Sprintf("2(n-1)/n of it, n = %s", count(n.Ranks))},
		{"that takes", seconds(n.FlatSeconds), "at " + bits(n.NICRate)},
		{"through every " + r.Endpoint + ", shared", size(n.ShardedBytes), shared},
		{"that takes", seconds(n.ShardedSeconds), "at " + bits(n.NICRate)},
	}
	if n.InsideBytes > 0 {
		rows = append(rows, []string{"through every GPU inside " + a(n.Group), size(n.InsideBytes),
			fmt.Sprintf("2(g-1)/g of it, g = %d", n.GroupGPUs)},
			[]string{"that takes", seconds(n.InsideSeconds), fmt.Sprintf("at %s; it overlaps with the network", rate(n.InsideRate))})
	}
	rows = append(rows,
		[]string{"needed for a step of " + seconds(n.StepSeconds), bits(n.NeedPerNIC), "on every " + r.Endpoint},
		[]string{"all " + r.Endpoint + "s together", size(n.TotalBytes), "a step"},
		[]string{"model cut into", plural(max(n.ModelParallel, 1), "part"), "so that the gradients of one part fit the step"})
	return append(list, section{ID: "need", Title: "What gradients need", Lead: n.sentence(),
		Tables: []table{{Cols: []col{left("what"), right("amount"), left("how")}, Rows: rows}}})
}

func (r *Report) failureSection() section {
	t := table{Cols: []col{left("part"), right("count"), right("a year, each"), right("failures a year"), right("one every"), left("source")}}
	for _, f := range r.Failures {
		t.Rows = append(t.Rows, []string{f.Part, count(f.Count), trim(f.Rate*100) + "%",
			ternary(f.PerYear >= 1, fmt.Sprintf("%.1f", f.PerYear), fmt.Sprintf("%.2g", f.PerYear)), days(f.Days), f.Source})
	}
	return section{ID: "failures", Title: "Expected failures", Tables: []table{t}}
}

func (r *Report) lossSection() section {
	l := table{Title: "One part lost, recomputed on the graph",
		Cols: []col{left("part"), right("of"), left("taken out"), right("GPUs cut off"), right("GPUs slower"), right("host rate left"),
			right("bisection left")}}
	for _, x := range r.Losses {
		l.Rows = append(l.Rows, []string{x.Part, count(x.Of), x.Example, count(x.GPUsCutOff), count(x.GPUsDegraded), percent(x.HostLeft),
			percent(x.BisectionLeft)})
	}
	d := table{Title: "Failure domains", Cols: []col{left("domain"), right("count"), left("takes down"), right("bisection left"),
		left("comes back by"), left("in")}}
	for _, x := range r.Domains {
		leftover := percent(x.Loss.BisectionLeft)
		if x.Count == 0 {
			leftover = ""
		}
		d.Rows = append(d.Rows, []string{x.Level, count(x.Count), x.Takes, leftover, x.Recovery, x.Class})
	}
	return section{ID: "domains", Title: "When something breaks", Tables: []table{l, d}}
}

func verdictTable(title, first string, list []Verdict) table {
	t := table{Title: title, Cols: []col{left(first), answer("answer"), left("evidence")}}
	for _, v := range list {
		t.Rows = append(t.Rows, []string{v.Topic, v.Answer, v.Evidence})
	}
	return t
}

func (r *Report) redundancySection() section {
	return section{ID: "redundancy", Title: "Redundancy", Tables: []table{verdictTable("", "sort", r.Redundancy)}}
}

func (r *Report) costSection() section {
	e := r.Economics
	bill := table{Title: "Bill of materials", Cols: []col{left("item"), right("count"), right("each"), right("together"), right("power"),
		left("price of"), left("source")}}
	for _, it := range r.Bill {
		price := "$" + money(it.UnitUSD)
		source := it.Source
		if it.UnitUSD == 0 {
			price = "none"
		}
		if it.Note != "" {
			source = strings.TrimPrefix(source+"; "+it.Note, "; ")
		}
		bill.Rows = append(bill.Rows, []string{it.Item, count(it.Count), price, "$" + money(it.USD), watts(it.Watts), it.Date, source})
	}
	bill.Rows = append(bill.Rows, []string{"all", "", "", "$" + money(r.CostUSD), watts(r.PowerWatts), "",
		fmt.Sprintf("switches and cables are %s of the cost", percent(e.NetworkShare))})
	breakEven := "never: renting stays cheaper"
	if r.CostUSD == 0 {
		breakEven = "unknown: no prices"
	}
	if e.BreakEven != nil {
		breakEven = fmt.Sprintf("%.1f months", *e.BreakEven)
	}
	own := table{Title: "Own or rent", Bare: true, Cols: []col{left("what"), right("amount")}, Rows: [][]string{
		{"electricity a year", "$" + money(e.EnergyPerYear)},
		{fmt.Sprintf("own, %s years", trim(e.Years)), "$" + money(e.OwnTotal)},
		{fmt.Sprintf("rent, %s years at $%s a GPU hour", trim(e.Years), trim(e.CloudPrice)), "$" + money(e.CloudTotal)},
		{"own, a GPU hour", fmt.Sprintf("$%.2f", e.OwnPerGPUHour)},
		{"break-even at all hours", breakEven},
		{fmt.Sprintf("break-even use over %s years", trim(e.Years)), fmt.Sprintf("%.0f%%", e.Utilisation*100)},
	}}
	return section{ID: "cost", Title: "Power and cost", Tables: []table{bill, own, r.alternativeTable()}}
}

func (r *Report) growthSection() section {
	g := r.Growth
	s := section{ID: "growth", Title: "Growth"}
	if g.MaxHosts > 0 {
		s.Lead = fmt.Sprintf("With these switches and tiers: %s hosts at most.", count(g.MaxHosts))
	}
	s.Notes = append(s.Notes, "largest size: "+g.MaxRule)
	if g.Problem != "" {
		s.Notes = append(s.Notes, "one "+g.Unit+" more cannot be built: "+g.Problem)
	}
	if n := g.Next; n != nil {
		t := table{Title: fmt.Sprintf("One %s more (%d hosts)", g.Unit, g.UnitHosts), Bare: true, Cols: []col{left("part"), right("more")}}
		for _, x := range []struct {
			name string
			n    int
		}{{"hosts", n.Hosts}, {"GPUs", n.GPUs}, {"leaf switches", n.Switches.Leaf}, {"spine switches", n.Switches.Spine},
			{"core switches", n.Switches.Core},
			{"host to leaf cables", n.Cables.HostLeaf}, {"leaf to spine cables", n.Cables.LeafSpine}, {"spine to core cables", n.Cables.SpineCore},
			{"cables inside a tier", n.Cables.Peer}, {"accelerator links between hosts", n.Cables.Direct}} {
			if x.n != 0 {
				t.Rows = append(t.Rows, []string{x.name, fmt.Sprintf("%+d", x.n)})
			}
		}
		s.Tables = append(s.Tables, t)
		s.Notes = append(s.Notes, n.Moved)
	}
	return s
}

func (r *Report) checkSection() section {
	t := table{Cols: []col{left("group"), left("item"), answer("answer"), left("evidence")}}
	last := ""
	for _, c := range r.Checklist {
		group := c.Group
		if group == last {
			group = ""
		}
		last = c.Group
		t.Rows = append(t.Rows, []string{group, c.Item, c.Answer, c.Evidence})
	}
	yes, no, you := r.tally()
	return section{ID: "checklist", Title: "Design checklist",
		Lead: fmt.Sprintf("%d yes, %d no, %d not applicable, %d need you.", yes, no, len(r.Checklist)-yes-no-you, you), Tables: []table{t}}
}

// textbookSections are printed only where they were asked for.
func (t *Textbook) sections() []section {
	if t == nil {
		return nil
	}
	figures := table{Title: "Figures", Cols: []col{left("source"), left("it says"), left("computed"), left("why")}}
	for _, c := range t.Corrections {
		figures.Rows = append(figures.Rows, []string{c.Source, c.Document, c.Computed, c.Why})
	}
	opts := table{Title: "Three ways to train on eight A100",
		Cols: []col{left("choice"), right("hardware"), right("days a run"), right("a run"), right("first run"), right("ten runs"),
			right("a run over all years"), left("the text says")}}
	for _, o := range t.Options {
		opts.Rows = append(opts.Rows, []string{o.Name, "$" + money(o.Hardware), trim(o.Days), "$" + money(o.PerRun), "$" + money(o.First),
			"$" + money(o.Ten), "$" + money(o.PerRunOverAll), o.Document})
	}
	crossings := table{Title: "Break-even by runs", Cols: []col{left("pair"), right("from"), left("how")},
		Rows: verdictTable("", "", t.Crossings).Rows}
	return []section{{ID: "textbook", Title: "Worked figures of introductory texts, checked",
		Lead: "These figures are not about this cluster.", Tables: []table{figures, opts, crossings}}}
}
