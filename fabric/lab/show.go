package lab

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/weft-fabric/weft/view/draw/svg"
	"github.com/weft-fabric/weft/view/kit"
	"github.com/weft-fabric/weft/view/web"
)

// State is what a lab looks like at one moment.
type State struct {
	Lab   string      `json:"lab"`
	At    time.Time   `json:"at"`
	Over  float64     `json:"over_s"` // rates are means of this time
	Nodes []NodeState `json:"nodes"`
	Wires []WireState `json:"cables"`
}

// NodeState is a host or a switch.
type NodeState struct {
	Name   string  `json:"name"`
	Router bool    `json:"router"`
	Tier   int     `json:"tier"` // 0 for a host
	Ports  int     `json:"ports"`
	Up     int     `json:"ports_up"`
	In     float64 `json:"in_Bps"`
	Out    float64 `json:"out_Bps"`
	Routes int     `json:"routes"` // of a switch's kernel
}

// WireState is a cable.
type WireState struct {
	A     string  `json:"a"` // node:interface
	B     string  `json:"b"` // or the bridge's name
	AUp   bool    `json:"a_up"`
	BUp   bool    `json:"b_up"`
	FromA float64 `json:"from_a_Bps"`
	FromB float64 `json:"from_b_Bps"`
	Wrong string  `json:"wrong,omitempty"` // what is not as the lab was made

	sentA, sentB uint64
	rate         float64
}

// Problems lists the cables that are not as the lab was made.
func (s *State) Problems() []string {
	out := []string{}
	for _, w := range s.Wires {
		if w.Wrong != "" {
			out = append(out, fmt.Sprintf("%s - %s: %s", w.A, w.B, w.Wrong))
		}
	}
	return out
}

// rates fills in what moved between two moments.
func (s *State) rates(before *State) {
	s.Over = s.At.Sub(before.At).Seconds()
	at := map[string]int{}
	for i := range s.Nodes {
		at[s.Nodes[i].Name] = i
	}
	for i := range s.Wires {
		w, o := &s.Wires[i], &before.Wires[i]
		if s.Over <= 0 || w.sentA < o.sentA || w.sentB < o.sentB {
			continue
		}
		w.FromA, w.FromB = float64(w.sentA-o.sentA)/s.Over, float64(w.sentB-o.sentB)/s.Over
		w.rate = max(w.FromA, w.FromB)
		a, _, _ := strings.Cut(w.A, ":")
		s.Nodes[at[a]].Out += w.FromA
		s.Nodes[at[a]].In += w.FromB
		if b, _, ok := strings.Cut(w.B, ":"); ok {
			s.Nodes[at[b]].Out += w.FromB
			s.Nodes[at[b]].In += w.FromA
		}
	}
}

// rate writes a rate in few letters.
func rate(v float64) string {
	for _, u := range []struct {
		least float64
		name  string
	}{{1e9, "GB/s"}, {1e6, "MB/s"}, {1e3, "KB/s"}} {
		if v >= u.least {
			return fmt.Sprintf("%.1f %s", v/u.least, u.name)
		}
	}
	return fmt.Sprintf("%.0f B/s", v)
}

// tiers gives the nodes by tier, highest first, hosts last.
func (s *State) tiers() [][]int {
	byTier := map[int][]int{}
	top := 0
	for i := range s.Nodes {
		byTier[s.Nodes[i].Tier] = append(byTier[s.Nodes[i].Tier], i)
		top = max(top, s.Nodes[i].Tier)
	}
	var out [][]int
	for t := top; t >= 0; t-- {
		if len(byTier[t]) > 0 {
			out = append(out, byTier[t])
		}
	}
	return out
}

var (
	tierNames = []string{"hosts", "leaves", "spines", "cores"}
	tierName  = []string{"host", "leaf", "spine", "core"}
)

// Print writes the state for people.
func (s *State) Print(w io.Writer) {
	fmt.Fprintf(w, "lab %s  %d nodes, %d cables, rates over %.1f s\n\n", s.Lab, len(s.Nodes), len(s.Wires), s.Over)
	fmt.Fprintf(w, "%-12s %-8s %9s %12s %12s %8s\n", "node", "tier", "ports up", "in", "out", "routes")
	for _, row := range s.tiers() {
		for _, i := range row {
			n := &s.Nodes[i]
			routes := "-"
			if n.Router {
				routes = fmt.Sprint(n.Routes)
			}
			fmt.Fprintf(w, "%-12s %-8s %9s %12s %12s %8s\n", n.Name, tierName[min(n.Tier, 3)], fmt.Sprintf("%d of %d", n.Up, n.Ports), rate(n.In),
				rate(n.Out), routes)
		}
	}
	for i, p := range s.Problems() {
		if i == 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "wrong  %s\n", p)
	}
}

const showStyle = `
.weft-lab{--bg:#ffffff;--ink:#1b1f24;--dim:#57606a;--edge:#8c959f;--idle:#c4ccd4;--busy:#0072b2;--bad:#c2383a;--switch:#dbe9f8;--host:#eceff2;
background:var(--bg);font-family:Helvetica Neue,Arial,DejaVu Sans,Liberation Sans,sans-serif}
@media (prefers-color-scheme:dark){.weft-lab{--bg:#0d1117;--ink:#e6edf3;--dim:#9aa5b1;--edge:#6e7681;--idle:#3a424b;--busy:#4aa3df;--bad:#f07174;--switch:#1c3046;--host:#262c33}}
.weft-lab text{fill:var(--ink)}
.weft-lab .dim{fill:var(--dim)}
.weft-lab .switch{fill:var(--switch);stroke:var(--edge)}
.weft-lab .host{fill:var(--host);stroke:var(--edge)}
.weft-lab .hurt{stroke:var(--bad);stroke-width:2px}
.weft-lab .idle{stroke:var(--idle);fill:none}
.weft-lab .busy{stroke:var(--busy);fill:none}
.weft-lab .bad{stroke:var(--bad);fill:none;stroke-dasharray:6 4}
.weft-lab .badtext{fill:var(--bad)}
`

// Draw writes the state as a picture: switches above, hosts below; the busier a
// cable, the thicker; what is not as the lab was made is dashed and named.
func (s *State) Draw(w io.Writer) error {
	rows := s.tiers()
	most := 0
	for _, r := range rows {
		most = max(most, len(r))
	}
	const margin, left, rowHeight, high = 24.0, 76.0, 132.0, 44.0
	step := min(max(1080/float64(most), 26), 150)
	width := left + float64(most)*step + margin
	width = max(width, 720)
	small, normal, bold := svg.Font{Size: 11}, svg.Font{Size: 12}, svg.Font{Size: 16, Bold: true}
	var c svg.Canvas
	c.Text(margin, 34, svg.Start, bold, "lab "+s.Lab)
	c.Text(margin, 54, svg.Start, normal, fmt.Sprintf("%d nodes, %d cables, %s", len(s.Nodes), len(s.Wires),
		s.At.UTC().Format("15:04:05 MST")), svg.Class("dim"))
	top := 84.0
	place := map[string]svg.Box{}
	for r, row := range rows {
		y := top + float64(r)*rowHeight
		own := (width - left - margin) / float64(len(row))
		for k, i := range row {
			wide := min(own-8, 104)
			x := left + (float64(k)+0.5)*own - wide/2
			place[s.Nodes[i].Name] = svg.Box{X: x, Y: y, W: wide, H: high}
		}
	}
	busiest := 1.0
	for i := range s.Wires {
		busiest = max(busiest, s.Wires[i].rate)
	}
	hurt := map[string]bool{}
	draw := func(bad bool) {
		for i := range s.Wires {
			v := &s.Wires[i]
			an, _, _ := strings.Cut(v.A, ":")
			bn, _, _ := strings.Cut(v.B, ":")
			a, b := place[an], place[bn]
			if b.W == 0 || (v.Wrong != "") != bad { // bridges are not drawn
				continue
			}
			if a.Y > b.Y {
				a, b = b, a
			}
			title := fmt.Sprintf("%s - %s: %s and %s", v.A, v.B, rate(v.FromA), rate(v.FromB))
			class, thick := "idle", 1.2
			switch {
			case v.Wrong != "":
				class, thick, title = "bad", 2.5, title+"; "+v.Wrong
				hurt[an], hurt[bn] = true, true
			case v.rate > busiest/100 && v.rate > 5000:
				class, thick = "busy", 1.2+4*v.rate/busiest
			}
			c.Line(a.X+a.W/2, a.Y+a.H, b.X+b.W/2, b.Y, title, svg.Class(class), svg.Stroke(thick))
		}
	}
	draw(false)
	draw(true)
	for r, row := range rows {
		y := top + float64(r)*rowHeight
		c.Text(margin, y+high/2-3, svg.Start, normal, tierNames[min(s.Nodes[row[0]].Tier, 3)], svg.Class("dim"))
		for _, i := range row {
			n := &s.Nodes[i]
			class := "host"
			if n.Router {
				class = "switch"
			}
			if hurt[n.Name] {
				class += " hurt"
			}
			b := place[n.Name]
			c.Rect(b, 4, fmt.Sprintf("%s: %d of %d ports up, in %s, out %s", n.Name, n.Up, n.Ports, rate(n.In), rate(n.Out)), svg.Class(class))
			if normal.Width(n.Name) < b.W-4 {
				c.Text(b.X+b.W/2, b.Y+13, svg.Middle, normal, n.Name)
			}
			if text := "out " + rate(n.Out); small.Width(text) < b.W-4 {
				c.Text(b.X+b.W/2, b.Y+29, svg.Middle, small, text, svg.Class("dim"))
			}
		}
	}
	y := top + float64(len(rows)-1)*rowHeight + high + 30
	problems := s.Problems()
	if len(problems) == 0 {
		c.Text(margin, y, svg.Start, normal, "every cable is as the lab was made; the thickest line carries "+rate(busiest), svg.Class("dim"))
	}
	for i, p := range problems {
		if i == 8 {
			c.Text(margin, y, svg.Start, normal, fmt.Sprintf("and %d more", len(problems)-i), svg.Class("badtext"))
			y += 18
			break
		}
		c.Text(margin, y, svg.Start, normal, normal.Fit(p, width-2*margin), svg.Class("badtext"))
		y += 18
	}
	return c.WriteTo(w, width, y+20, "weft-lab", "lab "+s.Lab, showStyle)
}

//go:embed page
var pages embed.FS

// pagePolicy is web.Guard's, but for the style element that the picture carries.
const pagePolicy = "default-src 'self'; style-src 'self' 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Page serves a page that shows the lab as it is, every second anew: /, /lab.svg and
// /state.json. It answers to this host's own names alone. look gives the state; it is asked at most once a second, however many look.
func Page(look func() (*State, error)) http.Handler {
	var mu sync.Mutex
	var last *State
	var asked time.Time
	state := func() (*State, error) {
		mu.Lock()
		defer mu.Unlock()
		if last != nil && time.Since(asked) < 900*time.Millisecond {
			return last, nil
		}
		if last == nil { // rates take two moments
			s, err := look()
			if err != nil {
				return nil, err
			}
			last = s
			time.Sleep(500 * time.Millisecond)
		}
		s, err := look()
		if err != nil {
			return nil, err
		}
		if len(last.Wires) == len(s.Wires) {
			s.rates(last)
		}
		last, asked = s, time.Now()
		return s, nil
	}
	answer := func(kind string, f func(http.ResponseWriter, *State) error) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			s, err := state()
			if err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			w.Header().Set("Content-Type", kind)
			w.Header().Set("Cache-Control", "no-store")
			_ = f(w, s) // whoever asked may be gone
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /lab.svg", answer("image/svg+xml", func(w http.ResponseWriter, s *State) error { return s.Draw(w) }))
	mux.HandleFunc("GET /state.json", answer("application/json",
		func(w http.ResponseWriter, s *State) error { return json.NewEncoder(w).Encode(s) }))
	files, err := fs.Sub(pages, "page")
	if err != nil {
		panic(err) // it is embedded
	}
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", pagePolicy)
		if b, ok := kit.File(strings.TrimPrefix(r.URL.Path, "/")); ok {
			http.ServeContent(w, r, r.URL.Path, time.Time{}, bytes.NewReader(b))
			return
		}
		http.ServeFileFS(w, r, files, r.URL.Path)
	})
	return web.Guard(mux)
}
