// Package draw makes pictures of a topo.Graph that a person can read.
//
// A cluster is drawn as rows of tiers, core at the top and hosts at the bottom,
// with pods as boxes, planes side by side and rails by colour:
//
//	   ┌ spine0-15 ─────────────┐             one frame a group, one square a switch
//	   └──╲──────────╱──────────┘
//	       ╲        ╱                         up to 64 links between two tiers are lines,
//	┌ leaf0-7 ┐  ┌ leaf8-15 ┐   … 14 more     more are bundles with their count;
//	└─┬┬┬┬┬┬┬─┘  └─┬┬┬┬┬┬┬──┘   like this     equal pods are counted, not repeated
//	┌ n0-31 ──┐  ┌ n32-63 ──┐
//	└─────────┘  └──────────┘
//
// A torus is drawn as layers, a dragonfly as a circle of groups, and a host as
// its PCIe tree with the accelerator links below. Nothing is left out silently:
// every host and switch of a fabric is drawn or counted where it is left out,
// and the elements carry data-hosts and data-switches that add up to the whole.
//
// The output is one SVG without scripts or outside references. Its style sheet
// follows the reader's light or dark setting and is confined to the class weft-draw,
// so that the picture may stand inside an HTML page.
package draw

import (
	"fmt"
	"io"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/view/draw/svg"
)

// MaxHosts is how many hosts' insides one picture holds: some 50 KB each, and
// more than a person looks at.
const MaxHosts = 64

// Options say what to draw and how large.
type Options struct {
	Title string   // heading; the graph's name if empty
	Hosts []string // names of hosts whose insides are drawn below the cluster
	Width int      // in pixels, 1600 if zero, at least 900; a picture that does not fit grows
}

// Cluster writes a picture of the whole graph. A graph of a single host and no
// switch is drawn as Host draws it.
func Cluster(w io.Writer, g *topo.Graph, o Options) error {
	p, err := clusterPage(g, o)
	if err != nil {
		return err
	}
	return p.write(w)
}

// Host writes a picture of the inside of one host.
func Host(w io.Writer, g *topo.Graph, h topo.HostID, o Options) error {
	p, err := hostPage(g, h, o)
	if err != nil {
		return err
	}
	return p.write(w)
}

// The fonts, in pixels. Nothing is smaller than small.
var (
	huge   = svg.Font{Size: 20, Bold: true}
	large  = svg.Font{Size: 14, Bold: true}
	plain  = svg.Font{Size: 12}
	strong = svg.Font{Size: 12, Bold: true}
	small  = svg.Font{Size: 11}
)

const (
	margin  = 24.0
	gutter  = 262.0 // column of notes left of a fabric
	leading = 1.3   // of a line of text, in font sizes
)

// page is a picture in the making: parts are drawn from top to bottom, each
// moves y down and widens the page if it must.
type page struct {
	c     svg.Canvas
	g     *topo.Graph
	width float64
	y     float64
	title string
	rails map[int16]bool         // rails drawn, for the legend
	kinds map[topo.LinkKind]bool // sorts of link drawn, likewise
	marks map[string]bool        // other signs used, likewise
	gpus  []int32                // by host
}

// newPage begins a page, at least 900 wide. y is where the next thing goes.
func newPage(g *topo.Graph, o Options, fallback string) *page {
	p := &page{g: g, title: o.Title, rails: map[int16]bool{}, kinds: map[topo.LinkKind]bool{}, marks: map[string]bool{}}
	p.width = 1600
	if o.Width > 0 {
		p.width = max(float64(o.Width), 900)
	}
	if p.title == "" {
		p.title = fallback
	}
	if p.title == "" {
		p.title = "cluster"
	}
	p.gpus = make([]int32, len(g.Hosts))
	g.Each(topo.GPU, func(_ topo.NodeID, n *topo.Node) {
		if n.Host != topo.None {
			p.gpus[n.Host]++
		}
	})
	p.y = margin
	return p
}

// heading writes the title and a line below it.
func (p *page) heading(summary string) {
	p.c.Text(margin, p.y, svg.Start, huge, huge.Fit(p.title, p.width-2*margin))
	p.y += huge.Size * leading
	p.y = p.paragraph(margin, p.y, p.width-2*margin, plain, summary, "dim") + 14
}

// paragraph writes wrapped text and gives the y below it.
func (p *page) paragraph(x, y, width float64, f svg.Font, text, class string) float64 {
	for _, line := range f.Wrap(text, width) {
		p.c.Text(x, y, svg.Start, f, line, svg.Class(class))
		y += f.Size * leading
	}
	return y
}

// section writes the name of a part of the page.
func (p *page) section(name string) {
	p.c.Text(margin, p.y, svg.Start, large, large.Fit(name, p.width-2*margin))
	p.y += large.Size*leading + 8
}

func (p *page) write(w io.Writer) error {
	return p.c.WriteTo(w, p.width, p.y+margin, "weft-draw", p.title, style)
}

// clusterPage draws every network of the cluster below the other, and the insides of the hosts that were asked for.
func clusterPage(g *topo.Graph, o Options) (*page, error) {
	if len(o.Hosts) > MaxHosts {
		return nil, fmt.Errorf("cannot draw the insides of %d hosts in one picture; at most %d", len(o.Hosts), MaxHosts)
	}
	var inside []topo.HostID
	for _, name := range o.Hosts {
		h, ok := g.HostByName(name)
		if !ok {
			return nil, fmt.Errorf("cannot draw host %q: no such host among %s", name, hostSpan(g))
		}
		inside = append(inside, h)
	}
	parts := partition(g)
	if len(g.Hosts) == 1 && len(parts) == 0 {
		return hostPage(g, 0, o)
	}
	p := newPage(g, o, g.Name)
	p.heading(p.summary())
	for _, part := range parts {
		p.c.Group("", svg.Class("panel"), svg.Attr{Name: "data-panel", Value: part.name})
		switch part.family {
		case topo.Torus:
			p.torus(part)
		case topo.Dragonfly:
			p.dragonfly(part)
		default:
			p.tiers(part)
		}
		p.c.End()
		p.y += 26
	}
	p.apart(parts)
	for _, h := range inside {
		p.section("Inside host " + g.Hosts[h].Name)
		p.inside(h)
		p.y += 26
	}
	p.legend()
	return p, nil
}

// hostPage draws the inside of one host.
func hostPage(g *topo.Graph, h topo.HostID, o Options) (*page, error) {
	if h < 0 || int(h) >= len(g.Hosts) {
		return nil, fmt.Errorf("cannot draw host number %d of %d", h, len(g.Hosts))
	}
	name := g.Hosts[h].Name
	if m := g.Hosts[h].Model; m != "" && m != name {
		name += ": " + m
	}
	p := newPage(g, o, name)
	p.heading(p.hostSummary(h))
	p.inside(h)
	p.y += 12
	p.legend()
	return p, nil
}

func hostSpan(g *topo.Graph) string {
	switch n := len(g.Hosts); n {
	case 0:
		return "none"
	case 1:
		return fmt.Sprintf("%q alone", g.Hosts[0].Name)
	default:
		return fmt.Sprintf("%d hosts, %q to %q", n, g.Hosts[0].Name, g.Hosts[n-1].Name)
	}
}
