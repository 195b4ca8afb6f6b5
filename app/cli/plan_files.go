package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/predict/plan"
)

// isTerminal reports whether somebody watches.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}

// readLike reads a configuration of a training framework.
func (f *trainFlags) readLike(cmd *cobra.Command, a *answer) (*plan.Config, error) {
	data, err := readInput(cmd, f.like)
	if err != nil {
		return nil, err
	}
	c, err := plan.ReadConfig(filepath.Base(f.like), data)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// write prints the layout in another tool's words.
func (f *trainFlags) write(cmd *cobra.Command, q *plan.Question, a *answer) error {
	text, err := plan.Emit(f.emit, q.Model, a.Layout)
	if err != nil {
		return fmt.Errorf("--emit: %w", err)
	}
	path := ""
	if f.dir != "" {
		path = f.dir
	}
	return output(cmd, path, func(w io.Writer) error { _, err := io.WriteString(w, text); return err })
}

// draw writes one step as a picture or a trace.
func (f *trainFlags) draw(cmd *cobra.Command, q *plan.Question, a *answer) error {
	if a.Pipe == nil {
		return fmt.Errorf("--timeline: %s has no pipeline to draw", a.Model)
	}
	switch strings.ToLower(filepath.Ext(f.timeline)) {
	case ".svg":
		return output(cmd, f.timeline, a.WriteTimeline)
	case ".json":
		return output(cmd, f.timeline, a.WritePerfetto)
	}
	return fmt.Errorf("--timeline %q: want a name that ends in .svg, or in .json for Perfetto", f.timeline)
}

// nicOf says what each GPU has of the network between hosts.
func nicOf(q *plan.Question) string {
	if q.Machine.NIC == 0 {
		return "one host without a network"
	}
	return fmt.Sprintf("%.0f GB/s of NIC each", q.Machine.NIC/1e9)
}

// report writes the page, the picture, the trace and the answer to a folder, or the page alone to a file.
func (f *trainFlags) report(cmd *cobra.Command, q *plan.Question, a *answer) error {
	p := pageOf(q, a)
	switch ext := strings.ToLower(filepath.Ext(f.dir)); ext {
	case ".html", ".htm":
		return output(cmd, f.dir, p.HTML)
	case ".json", ".svg", ".md", ".pdf", ".txt":
		return fmt.Errorf("-o %s: want a folder, or a name that ends in .html for the page alone", f.dir)
	}
	if err := os.MkdirAll(f.dir, 0o755); err != nil {
		return err
	}
	files := []struct {
		name  string
		write func(io.Writer) error
	}{
		{"plan.html", p.HTML},
		{"plan.json", func(w io.Writer) error { return printJSON(w, a) }},
	}
	if a.Pipe != nil {
		files = append(files, struct {
			name  string
			write func(io.Writer) error
		}{"step.svg", a.WriteTimeline}, struct {
			name  string
			write func(io.Writer) error
		}{"step.perfetto.json", a.WritePerfetto})
	}
	for _, x := range files {
		if err := output(cmd, filepath.Join(f.dir, x.name), x.write); err != nil {
			return err
		}
	}
	return nil
}

// pageOf is the page of an answer.
func pageOf(q *plan.Question, a *answer) plan.Page {
	p := plan.Page{Title: fmt.Sprintf("%s on %d %s", a.Model, a.GPUs, a.GPU), Cost: a.Cost, Days: a.Days, USD: a.USD,
		Machine: fmt.Sprintf("%s: %d GPUs per host, %d per fast domain, %s", a.Cluster, q.Machine.HostGPUs, q.Machine.Domain, nicOf(q))}
	for _, c := range a.Candidates {
		p.Rows = append(p.Rows, [4]string{fmt.Sprintf("%.4g s", c.Step), fmt.Sprintf("%.1f%%", 100*c.MFU), gigabytes(c.Peak), c.Layout})
	}
	for _, c := range a.Candidates {
		p.Spots = append(p.Spots, plan.Spot{Layout: c.Layout, Step: c.Step, Peak: c.Peak, USD: c.USD})
	}
	for _, c := range a.Front {
		p.Spots = append(p.Spots, plan.Spot{Layout: c.Layout, Step: c.Step, Peak: c.Peak, USD: c.USD, Front: true})
	}
	p.Real = a.RealDays
	if len(a.Beside) > 0 {
		p.Lines = append(p.Lines, "the second best loses by "+strings.Join(a.Beside, ", "))
	}
	for _, c := range a.Changes {
		p.Lines = append(p.Lines, fmt.Sprintf("with %s a step takes %.4g s (%+.1f%%)", c.What, c.Step, -100*c.Gain))
	}
	p.Lines = append(p.Lines, a.Findings...)
	return p
}
