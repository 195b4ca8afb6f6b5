package plan

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/weft-fabric/weft/view/draw/svg"
)

const timelineStyle = `
.weft-plan{--bg:#ffffff;--ink:#1b1f24;--F:#0072b2;--B:#56b4e9;--W:#009e73;--FB:#2e92cf;--end:#d55e00;background:var(--bg);font-family:Helvetica Neue,Arial,DejaVu Sans,Liberation Sans,sans-serif}
@media (prefers-color-scheme:dark){.weft-plan{--bg:#0d1117;--ink:#e6edf3;--F:#4aa3df;--B:#7cc8f2;--W:#1fbf90;--FB:#62b5e8;--end:#f0793a}}
.weft-plan text{fill:var(--ink)}.weft-plan .F{fill:var(--F)}.weft-plan .B{fill:var(--B)}.weft-plan .W{fill:var(--W)}.weft-plan .FB{fill:var(--FB)}.weft-plan .end{fill:var(--end)}
`

var passName = map[byte]string{'F': "forward", 'B': "backward", 'W': "weight gradients"}

// WritePerfetto writes one step as the JSON that Perfetto and chrome://tracing read: a process a pipeline rank.
func (c *Cost) WritePerfetto(w io.Writer) error {
	type event struct {
		Name string         `json:"name"`
		Cat  string         `json:"cat,omitempty"`
		Ph   string         `json:"ph"`
		Ts   float64        `json:"ts"`
		Dur  float64        `json:"dur,omitempty"`
		Pid  int            `json:"pid"`
		Tid  int            `json:"tid"`
		Args map[string]any `json:"args,omitempty"`
	}
	var all []event
	if c.Pipe != nil {
		for i := range c.Pipe.Busy {
			all = append(all, event{Name: "process_name", Ph: "M", Pid: i, Args: map[string]any{"name": fmt.Sprintf("stage %d", i)}})
		}
		for _, s := range c.Pipe.Spans {
			all = append(all, event{fmt.Sprintf("%c%d", s.Pass, s.Micro), passName[s.Pass], "X", s.Begin * 1e6, (s.End - s.Begin) * 1e6, s.Rank, 0,
				map[string]any{"chunk": s.Chunk, "micro_batch": s.Micro}})
		}
		for i := range c.Pipe.Busy {
			if rest := c.Step - c.Pipe.Period; rest > 0 {
				all = append(all, event{"gradients, optimizer", "end of step", "X", c.Pipe.Time * 1e6, rest * 1e6, i, 0, nil})
			}
		}
	}
	return json.NewEncoder(w).Encode(map[string]any{"traceEvents": all, "displayTimeUnit": "ms"})
}

// fine is how many passes are drawn one by one; of longer steps the passes of a small time are drawn as one.
const fine = 6000

// WriteTimeline draws one whole step: a row a pipeline rank, a bar a pass, or a bar for as many passes as would be too thin to see.
func (c *Cost) WriteTimeline(w io.Writer) error {
	const left, width, height = 70.0, 1100.0, 22.0
	rows := len(c.Pipe.Busy)
	scale := width / c.Step
	var doc svg.Canvas
	font := svg.Font{Size: 11}
	title := fmt.Sprintf("one step, %.4g s: %s", c.Step, c.LayoutText)
	doc.Text(4, 4, svg.Start, font, font.Fit(title, left+width))
	for i := range rows {
		doc.Text(4, 32+float64(i)*height, svg.Start, font, fmt.Sprintf("stage %d", i))
	}
	if len(c.Pipe.Spans) > fine {
		for _, b := range c.coarse(int(width) / 4) {
			box := svg.Box{X: left + b.begin*scale, Y: 30 + float64(b.rank)*height, W: (b.end - b.begin) * scale, H: height - 4}
			doc.Rect(box, 0, fmt.Sprintf("%.3g to %.3g s: %d%% busy with %s", b.begin, b.end, b.busy*25, coarseName[b.class]), svg.Class(b.class),
				svg.Attr{Name: "fill-opacity", Value: svg.Number(.25 * float64(b.busy))})
		}
	} else {
		for _, s := range c.Pipe.Spans {
			box := svg.Box{X: left + s.Begin*scale, Y: 30 + float64(s.Rank)*height, W: max((s.End-s.Begin)*scale-.3, .2), H: height - 4}
			doc.Rect(box, 0, fmt.Sprintf("%s of micro-batch %d, chunk %d: %.3g to %.3g s", passName[s.Pass], s.Micro, s.Chunk, s.Begin, s.End),
				svg.Class(string(s.Pass)), svg.Attr{Name: "fill-opacity", Value: svg.Number(1 - .12*float64(s.Chunk%5))})
		}
	}
	if rest := c.Step - c.Pipe.Period; rest > 0 {
		doc.Rect(svg.Box{X: left + c.Pipe.Time*scale, Y: 30, W: max(rest*scale, .5), H: float64(rows)*height - 4}, 0,
			fmt.Sprintf("gradients and optimizer: %.3g s", rest), svg.Class("end"))
	}
	x, y := left, 40+float64(rows)*height
	for _, k := range []struct{ name, class string }{{"forward", "F"}, {"backward", "B"}, {"weight gradients", "W"},
		{"forward and backward in turn", "FB"}, {"gradients and optimizer", "end"}} {
		doc.Rect(svg.Box{X: x, Y: y, W: 12, H: 12}, 0, "", svg.Class(k.class))
		box := doc.Text(x+16, y, svg.Start, font, k.name)
		x = box.Right() + 20
	}
	return doc.WriteTo(w, left+width+20, y+24, "weft-plan", title, timelineStyle)
}

// coarseName says what a bar of many passes holds.
var coarseName = map[string]string{"F": "forward passes", "B": "backward passes", "FB": "forward and backward passes"}

// stretch is a time in which a rank does the same.
type stretch struct {
	rank       int
	begin, end float64
	class      string // F, B or FB
	busy       int    // quarters of the time
}

// shares is how busy every rank is in every slice of a step: with forward passes, and with others.
func (c *Cost) shares(slices int) [][2]float64 {
	slice := c.Step / float64(slices)
	out := make([][2]float64, len(c.Pipe.Busy)*slices)
	for _, s := range c.Pipe.Spans {
		for i := int(s.Begin / slice); i < slices && float64(i)*slice < s.End; i++ {
			part := min(s.End, float64(i+1)*slice) - max(s.Begin, float64(i)*slice)
			out[s.Rank*slices+i][b2i(s.Pass != 'F')] += part / slice
		}
	}
	return out
}

// mixOf names what a slice holds.
func mixOf(x [2]float64) string {
	switch {
	case x[1] < .15*x[0]:
		return "F"
	case x[0] < .15*x[1]:
		return "B"
	}
	return "FB"
}

// coarse cuts a step into slices and joins those in which a rank does the same.
func (c *Cost) coarse(slices int) (out []stretch) {
	slice := c.Step / float64(slices)
	for i, x := range c.shares(slices) {
		at := float64(i%slices) * slice
		now := stretch{i / slices, at, at + slice, mixOf(x), int(4*min(x[0]+x[1], 1) + .5)}
		if now.busy == 0 {
			continue
		}
		if n := len(out) - 1; n >= 0 && out[n].joins(now, slice) {
			out[n].end = now.end
			continue
		}
		out = append(out, now)
	}
	return out
}

// joins reports whether the next stretch goes on with the same.
func (s stretch) joins(next stretch, slice float64) bool {
	return s.rank == next.rank && s.class == next.class && s.busy == next.busy && s.end > next.begin-slice/2
}
