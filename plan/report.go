package plan

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
)

//go:embed report.html
var reportText string

var reportPage = template.Must(template.New("report").Parse(reportText))

// Page is what a report shows besides the cost.
type Page struct {
	Title   string
	Machine string
	Cost    *Cost
	Rows    [][4]string // other layouts: step, MFU, memory, layout
	Lines   []string    // reasons and changes
	Days    float64
	USD     float64
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
	if !c.Fits {
		fits.Class = "bad"
	}
	facts := []fact{{"a step", fmt.Sprintf("%.3g s", c.Step), ""}, {"tokens/s a GPU", fmt.Sprintf("%.4g", c.TokensPerS), ""}, {"MFU, " + string(c.Convention), fmt.Sprintf("%.1f%%", 100*c.MFU), ""}, fits,
		{"idle in the pipeline", fmt.Sprintf("%.1f%%", 100*c.Bubble), ""}}
	if p.Days > 0 {
		facts = append(facts, fact{"days", fmt.Sprintf("%.1f", p.Days), ""}, fact{"cost", fmt.Sprintf("$%.3g", p.USD), ""})
	}
	var bars []bar
	for _, t := range c.Memory {
		bars = append(bars, bar{t.Name, fmt.Sprintf("%.2f GB", t.Value/1e9), t.Why, int(400 * t.Value / max(c.Peak, 1))})
	}
	trust := []string{fmt.Sprintf("factor %.3f: %s", c.Factor, c.FactorFrom)}
	if n := c.Nearest; n != nil {
		trust = append(trust, fmt.Sprintf("nearest measured step: %s (%s), measured %.4g s, the model is off by %+.1f%% there", n.ID, n.What, n.Step, 100*n.Error))
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
	why := c.Why
	if why == nil {
		why = &Term{Name: "step", Value: c.Step, Unit: "s"}
	}
	shown := *c
	shown.Why = why
	return reportPage.Execute(w, map[string]any{"Title": p.Title, "Machine": p.Machine, "Cost": &shown, "Facts": facts, "Memory": bars, "Rows": p.Rows, "Lines": p.Lines, "Trust": trust, "Timeline": template.HTML(picture.String())})
}
