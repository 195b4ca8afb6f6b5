package design

import (
	_ "embed"
	"html/template"
	"io"
	"strings"

	"github.com/weft-fabric/weft/view/kit"
)

//go:embed page.html
var pageSource string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"class": func(c col, cell string) string {
		switch {
		case c.Right:
			return "n"
		case c.Answer:
			return "a " + strings.ReplaceAll(cell, " ", "-")
		}
		return ""
	},
	"at":       func(cols []col, i int) col { return cols[i] },
	"pictures": func(string) []template.HTML { return nil },
}).Parse(pageSource))

// Picture is one that stands in a section of the page.
type Picture struct {
	Section string // its id: networks, floor
	Name    string // of a file that holds it alone
	SVG     string
}

// HTML prints the report as one page that needs nothing else. svg is the
// picture of the cluster, as package draw makes it; it is put in as it is. An
// empty one leaves the picture out. more stand in their sections.
func (r *Report) HTML(w io.Writer, svg string, more ...Picture) error {
	inside := func(svg string) template.HTML { // no XML declaration inside HTML
		if i := strings.Index(svg, "<svg"); i > 0 {
			svg = svg[i:]
		}
		return template.HTML(svg)
	}
	page, err := page.Clone()
	if err != nil {
		return err
	}
	page.Funcs(template.FuncMap{"pictures": func(id string) (out []template.HTML) {
		for _, p := range more {
			if p.Section == id {
				out = append(out, inside(p.SVG))
			}
		}
		return out
	}})
	type figure struct{ Value, Name string }
	return page.Execute(w, struct {
		Name, Family string
		Alarm        string
		Figures      []figure
		Sections     []section
		Picture      template.HTML
		Style        template.CSS
	}{
		r.Name, r.Family, ternary(r.Pieces != nil, r.lead(), ""),
		[]figure{
			{count(r.GPUs), "GPUs"}, {count(r.Hosts), "hosts"},
			{count(r.Switches.Leaf + r.Switches.Spine + r.Switches.Core + r.Switches.Higher), "switches"},
			{ternary(r.Pieces == nil, trim(r.Oversubscription)+":1", "in pieces"), "oversubscription"},
			{rate(r.BisectionRate), "bisection, one way"}, {watts(r.PowerWatts), "power"},
			{ternary(r.CostUSD > 0, "$"+millions(r.CostUSD), "unknown"), "cost"},
		},
		r.sections(), inside(svg), template.CSS(kit.Style()),
	})
}

// millions prints money short: 36.2 M.
func millions(v float64) string {
	switch {
	case v >= 1e9:
		return trim(float64(int64(v/1e7))/100) + " B"
	case v >= 1e6:
		return trim(float64(int64(v/1e4))/100) + " M"
	}
	return money(v)
}
