package plan

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/view/kit"
)

//go:embed report.html
var reportText string

var reportPage = template.Must(template.New("report").Funcs(template.FuncMap{"soft": soft}).Parse(reportText))

// soft lets a browser break a layout's text after its commas, and nowhere else.
func soft(s string) template.HTML {
	return template.HTML(strings.ReplaceAll(template.HTMLEscapeString(s), ",", ",<wbr>"))
}

// Page is what a report shows besides the cost.
type Page struct {
	Title   string
	Machine string
	Cost    *Cost
	Rows    [][4]string // other layouts: step, MFU, memory, layout
	Lines   []string    // reasons and changes
	Spots   []Spot      // layouts of the search
	Days    float64
	Real    float64 // days with failures; 0 if nobody asked
	USD     float64
}

// days says a time in the unit that fits it.
func days(d float64) string {
	switch {
	case d < 2:
		return fmt.Sprintf("%.1f hours", 24*d)
	case d >= 100 && d < 730:
		return fmt.Sprintf("%.0f days", d)
	case d < 100:
		return fmt.Sprintf("%.1f days", d)
	}
	return fmt.Sprintf("%.1f years", d/365)
}

// dollars says an amount in words that people use.
func dollars(v float64) string {
	switch {
	case v >= 1e9:
		return fmt.Sprintf("$%.3g billion", v/1e9)
	case v >= 1e6:
		return fmt.Sprintf("$%.3g million", v/1e6)
	case v >= 1e4:
		return fmt.Sprintf("$%.0f,000", v/1e3)
	}
	return "$" + readable(v)
}

// readable writes four figures of a number without an exponent, with commas between thousands.
func readable(v float64) string {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	places := 3 - int(math.Floor(math.Log10(math.Abs(v))))
	s := strconv.FormatFloat(v, 'f', max(places, 0), 64)
	if strings.Contains(s, ".") {
		return strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Text is the value in a unit that fits it.
func (t Term) Text() string {
	switch {
	case t.Unit == "s" && t.Value > 0 && t.Value < 1e-3:
		return fmt.Sprintf("%.3g us", 1e6*t.Value)
	case t.Unit == "s" && t.Value > 0 && t.Value < 1:
		return fmt.Sprintf("%.3g ms", 1e3*t.Value)
	}
	return readable(t.Value) + " " + t.Unit
}

// HTML writes the report as one page that needs nothing else.
func (p Page) HTML(w io.Writer) error {
	type fact struct{ Name, Value, Class string }
	type bar struct {
		Name, Value, Why string
		Width            int
	}
	c := p.Cost
	fits := fact{"memory", fmt.Sprintf("%.0f of %.0f GB", c.Peak/1e9, c.Capacity/1e9), "good"}
	switch {
	case !c.Fits:
		fits.Class = "bad"
	case c.Verdict == VerdictUnsure || c.Peak > .95*c.Capacity:
		fits.Class, fits.Name = "tight", "memory, which is tight"
	}
	facts := []fact{{c.Interval.around(), readable(c.Step) + " s", ""}, {"tokens/s per GPU", readable(c.TokensPerS), ""},
		{"MFU, " + string(c.Convention), fmt.Sprintf("%.1f%%", 100*c.MFU), ""}, fits,
		{"idle in the pipeline", fmt.Sprintf("%.1f%%", 100*c.Bubble), ""}}
	if p.Days > 0 {
		facts = append(facts, fact{"to train", days(p.Days), ""}, fact{"cost", dollars(p.USD), ""})
	}
	if p.Real > 0 {
		facts = append(facts, fact{"with failures", days(p.Real), ""})
	}
	var bars []bar
	for _, t := range c.Memory {
		bars = append(bars, bar{t.Name, fmt.Sprintf("%.2f GB", t.Value/1e9), t.Why, int(400 * t.Value / max(c.Peak, 1))})
	}
	trust := []string{fmt.Sprintf("factor %.3f: %s", c.Factor, c.FactorFrom)}
	if n := c.Nearest; n != nil {
		trust = append(trust, fmt.Sprintf("nearest measured step: %s (%s), measured %s s, the model is off by %+.1f%% there",
			n.ID, n.What, readable(n.Step), 100*n.Error))
		if n.Remark != "" {
			trust = append(trust, n.Remark)
		}
	}
	trust = append(trust, c.Notes...)
	var picture bytes.Buffer
	if c.Pipe != nil && len(c.Pipe.Spans) > 0 {
		if err := c.WriteTimeline(&picture); err != nil {
			return err
		}
	}
	var scatter bytes.Buffer
	if len(p.Spots) > 1 {
		if err := c.WriteScatter(&scatter, p.Spots); err != nil {
			return err
		}
	}
	if c.Interval != nil {
		trust = append([]string{"step: " + c.Interval.String()}, trust...)
	}
	if c.MemoryInterval != nil {
		trust = append([]string{"memory: " + c.MemoryInterval.String()}, trust...)
	}
	why := c.Why
	if why == nil {
		why = &Term{Name: "step", Value: c.Step, Unit: "s"}
	}
	shown := *c
	shown.Why = why
	return reportPage.Execute(w, map[string]any{"Style": template.CSS(kit.Style()), "Title": p.Title, "Machine": p.Machine, "Cost": &shown,
		"Facts": facts, "Memory": bars, "Rows": p.Rows, "Lines": p.Lines, "Trust": trust, "Timeline": template.HTML(picture.String()),
		"Scatter": template.HTML(scatter.String())})
}
