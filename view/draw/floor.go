package draw

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/weft-fabric/weft/model/topo/floor"
	"github.com/weft-fabric/weft/view/draw/svg"
)

// Sizes of the floor plan's picture, in pixels.
const (
	rackW, rackH  = 74.0, 92.0
	aisleH        = 40.0
	elevationUnit = 9.0
	elevationW    = 190.0
)

// floorStyle colours what only a floor plan has.
const floorStyle = `
.weft-draw .tray{fill:none;stroke:var(--edge);stroke-dasharray:2 5;stroke-width:2}
.weft-draw .bar{fill:var(--r2)}
.weft-draw .bar.high{fill:var(--r5)}
.weft-draw .empty{fill:none;stroke:var(--faint);stroke-dasharray:3 3}
`

// Floor writes a picture of a floor plan: racks in rows from above, with what
// they hold and how much of their power they draw, and one rack of each sort
// from the front.
func Floor(w io.Writer, p *floor.Plan, title string) error {
	var c svg.Canvas
	y := margin
	c.Text(margin, y, svg.Start, huge, title+": floor plan")
	y += 30
	limit := "power of a rack not limited"
	if p.Intent.Power > 0 {
		limit = fmt.Sprintf("%.4g kW a rack", p.Intent.Power/1000)
	}
	most := 0.0
	for i := range p.Racks {
		most = max(most, p.Racks[i].Watts)
	}
	c.Text(margin, y, svg.Start, plain, fmt.Sprintf("%d racks in %s, %.1f m by %.1f m, %d units and %s; cables run in trays above the rows",
		len(p.Racks), ranks(p.Rows, "row"), p.Width, p.Depth, p.Intent.Units, limit), svg.Class("dim"))
	y += 32
	top := y
	right := 0.0
	for i := range p.Racks {
		r := &p.Racks[i]
		b := svg.Box{X: margin + 34 + float64(r.Column)*(rackW+4), Y: top + float64(r.Row)*(rackH+aisleH), W: rackW, H: rackH}
		if r.Column == 0 {
			name := r.Name[:len(r.Name)-2]
			c.Text(margin, b.Y+rackH/2-8, svg.Start, large, name)
			last := min(len(p.Racks)-r.Row*p.Intent.Row, p.Intent.Row)
			end := b.X + float64(last)*(rackW+4)
			c.Line(b.X-6, b.Y-8, end, b.Y-8, "cable tray of row "+name, svg.Class("tray"))
		}
		floorRack(&c, p, r, b, most)
		right = max(right, b.Right())
	}
	y = top + float64(p.Rows)*(rackH+aisleH)
	if p.Rows > 1 {
		c.Line(margin+28, top-8, margin+28, y-rackH-aisleH-8, "cable tray across the rows", svg.Class("tray"))
	}
	bottom, wide := elevations(&c, p, y)
	width := max(right, wide, 760) + margin
	return c.WriteTo(w, width, bottom+margin, "weft-draw", title+": floor plan", style+floorStyle)
}

// floorRack draws one rack from above.
func floorRack(c *svg.Canvas, p *floor.Plan, r *floor.Rack, b svg.Box, most float64) {
	hosts, switches := 0, 0
	names := ""
	for _, at := range r.Devices {
		d := &p.Devices[at]
		if d.Kind == "host" {
			hosts++
		} else {
			switches++
		}
		if len(names) < 300 {
			names += fmt.Sprintf(" %s (U%d)", d.Name, d.Unit)
		}
	}
	class := "host"
	if r.Use == "network" {
		class = "switch"
	}
	if r.Use == "" {
		class = "empty"
	}
	c.Rect(b, 3, fmt.Sprintf("%s: %d of %d units, %.4g kW:%s", r.Name, r.Units, p.Intent.Units, r.Watts/1000, names), svg.Class(class),
		svg.Data("hosts", hosts), svg.Data("switches", switches))
	c.Text(b.Mid(), b.Y+6, svg.Middle, strong, r.Name)
	if r.Use == "" {
		return
	}
	line := b.Y + 26
	for _, s := range []string{ranks(hosts, "host"), ranks(switches, "switch")} {
		if s != "" {
			c.Text(b.Mid(), line, svg.Middle, small, s)
			line += 15
		}
	}
	c.Text(b.Mid(), b.Bottom()-32, svg.Middle, small, fmt.Sprintf("%.1f kW", r.Watts/1000), svg.Class("dim"))
	powerBar(c, svg.Box{X: b.X + 6, Y: b.Bottom() - 12, W: b.W - 12, H: 6}, r.Watts, p.Intent.Power, most)
}

// powerBar shows a rack's power as a share of what it may draw, or of what the rack that draws the most does if that is not
// known.
func powerBar(c *svg.Canvas, bar svg.Box, watts, limit, most float64) {
	share := 0.0
	if of := cmp.Or(limit, most); of > 0 {
		share = min(1, watts/of)
	}
	c.Rect(bar, 2, "", svg.Class("empty"))
	high := "bar"
	if limit > 0 && share > 0.9 {
		high = "bar high"
	}
	bar.W *= share
	c.Rect(bar, 2, fmt.Sprintf("%.0f%% of the power", 100*share), svg.Class(high))
}

// ranks counts things; nothing where there are none.
func ranks(n int, what string) string {
	switch n {
	case 0:
		return ""
	case 1:
		return "1 " + what
	}
	if what == "switch" {
		return fmt.Sprintf("%d switches", n)
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// typical are the first rack with hosts, since the others look like it, and the first network racks.
func typical(p *floor.Plan) (list []int) {
	if i := slices.IndexFunc(p.Racks, func(r floor.Rack) bool { return r.Use == "hosts" }); i >= 0 {
		list = append(list, i)
	}
	for i := range p.Racks {
		if p.Racks[i].Use == "network" && len(list) < 5 {
			list = append(list, i)
		}
	}
	return list
}

// elevations draws the first rack with hosts and the network racks from the front.
func elevations(c *svg.Canvas, p *floor.Plan, y float64) (bottom, right float64) {
	list := typical(p)
	c.Text(margin, y, svg.Start, large, "From the front")
	y += 28
	height := float64(p.Intent.Units) * elevationUnit
	for k, i := range list {
		r := &p.Racks[i]
		x := margin + float64(k)*(elevationW+44)
		c.Text(x, y, svg.Start, strong, fmt.Sprintf("%s, %.1f kW", r.Name, r.Watts/1000))
		box := svg.Box{X: x, Y: y + 20, W: elevationW, H: height}
		c.Rect(box, 2, "", svg.Class("frame"))
		for u := 1; u <= p.Intent.Units; u++ {
			if u == 1 || u%10 == 0 {
				c.Text(x+elevationW+4, box.Bottom()-float64(u)*elevationUnit-2, svg.Start, small, fmt.Sprintf("U%d", u), svg.Class("dim"))
			}
		}
		for _, at := range r.Devices {
			d := &p.Devices[at]
			class := "host"
			if d.Kind == "switch" {
				class = "switch"
			}
			b := svg.Box{X: x + 3, Y: box.Bottom() - float64(d.Unit-1+d.Units)*elevationUnit + 0.5, W: elevationW - 6,
				H: float64(d.Units)*elevationUnit - 1}
			c.Rect(b, 1, fmt.Sprintf("%s (%s), U%d to U%d, %.4g kW", d.Name, d.Model, d.Unit, d.Unit+d.Units-1, d.Watts/1000), svg.Class(class))
			if d.Units > 1 {
				c.Text(b.X+6, b.Y+b.H/2-7, svg.Start, small, small.Fit(d.Name+"  "+d.Model, b.W-10))
			}
		}
		right = max(right, x+elevationW+34)
	}
	return y + 20 + height, right
}
