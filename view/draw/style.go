package draw

import (
	"fmt"
	"math"
	"slices"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/view/draw/svg"
)

// style colours the picture. The eight rail colours r0 to r7 are those of Okabe
// and Ito (2008), told apart by the colour-blind, with black replaced by grey
// and yellow darkened on white. Every colour is doubled by a label.
const style = `
.weft-draw{--bg:#ffffff;--on0:#ffffff;--ink:#1b1f24;--dim:#57606a;--faint:#d0d7de;--frame:#f6f8fa;--cell:#ffffff;--edge:#8c959f;--pod:#fbfcfd;
--r0:#0072b2;--r1:#e69f00;--r2:#009e73;--r3:#cc79a7;--r4:#56b4e9;--r5:#d55e00;--r6:#a89a00;--r7:#7a7a7a;
--nvlink:#4d8a00;--c2c:#00806a;--xgmi:#c2383a;--ici:#7a4fbf;--pcie:#5b7083;--smp:#a0529a;--infiniband:#2f6fb5;--ethernet:#b86a00;
--gpu:#e3f2d3;--cpu:#f1e3f0;--root:#eef1f4;--pciesw:#e1e8ee;--nvsw:#cfe8b4;--nic:#dbe9f8;--switch:#dbe9f8;--host:#eceff2;
background:var(--bg);font-family:Helvetica Neue,Arial,DejaVu Sans,Liberation Sans,sans-serif}
@media (prefers-color-scheme:dark){.weft-draw{--bg:#0d1117;--on0:#101418;--ink:#e6edf3;--dim:#9aa5b1;--faint:#30363d;--frame:#161b22;--cell:#0d1117;--edge:#6e7681;--pod:#11161d;
--r0:#4aa3df;--r1:#e69f00;--r2:#1fbf90;--r3:#d98fb8;--r4:#7cc8f2;--r5:#f0793a;--r6:#f0e442;--r7:#a8a8a8;
--nvlink:#8fd14f;--c2c:#35c4a5;--xgmi:#f07174;--ici:#b594f0;--pcie:#93a7b8;--smp:#d58fd0;--infiniband:#6cb0f2;--ethernet:#f0a94a;
--gpu:#26381a;--cpu:#36253a;--root:#20262d;--pciesw:#27313a;--nvsw:#314a1c;--nic:#1c3046;--switch:#1c3046;--host:#262c33}}
.weft-draw text{fill:var(--ink)}
.weft-draw .dim{fill:var(--dim)}
.weft-draw .plate{fill:var(--bg);fill-opacity:.9}
.weft-draw .halo{paint-order:stroke;stroke:var(--frame);stroke-width:3px;stroke-linejoin:round}
.weft-draw .on{fill:#101418}
.weft-draw .on.r0{fill:var(--on0)}
.weft-draw .pod{fill:var(--pod);stroke:var(--faint)}
.weft-draw .block{fill:none;stroke:var(--faint)}
.weft-draw .frame{fill:var(--frame);stroke:var(--edge)}
.weft-draw .more{fill:none;stroke:var(--edge);stroke-dasharray:4 4}
.weft-draw .rule{stroke:var(--faint)}
.weft-draw .line{fill:none}
.weft-draw .ribbon{stroke:none;fill-opacity:.3}
.weft-draw .gpu{fill:var(--gpu);stroke:var(--nvlink)}
.weft-draw .cpu{fill:var(--cpu);stroke:var(--smp)}
.weft-draw .root{fill:var(--root);stroke:var(--edge)}
.weft-draw .pciesw{fill:var(--pciesw);stroke:var(--pcie)}
.weft-draw .nvsw{fill:var(--nvsw);stroke:var(--nvlink)}
.weft-draw .nic{fill:var(--nic);stroke:var(--infiniband)}
.weft-draw .switch{fill:var(--switch);stroke:var(--infiniband)}
.weft-draw .host{fill:var(--host);stroke:var(--edge)}
.weft-draw .r0{--k:var(--r0)}.weft-draw .r1{--k:var(--r1)}.weft-draw .r2{--k:var(--r2)}.weft-draw .r3{--k:var(--r3)}
.weft-draw .r4{--k:var(--r4)}.weft-draw .r5{--k:var(--r5)}.weft-draw .r6{--k:var(--r6)}.weft-draw .r7{--k:var(--r7)}
.weft-draw .nvlink{--k:var(--nvlink)}.weft-draw .c2c{--k:var(--c2c)}.weft-draw .xgmi{--k:var(--xgmi)}.weft-draw .ici{--k:var(--ici)}
.weft-draw .pcie{--k:var(--pcie)}.weft-draw .smp{--k:var(--smp)}.weft-draw .infiniband{--k:var(--infiniband)}.weft-draw .ethernet{--k:var(--ethernet)}
.weft-draw .line{stroke:var(--k)}
.weft-draw .ribbon,.weft-draw .fill{fill:var(--k)}
`

// railClass is the colour of a rail; nine rails and more share colours, their labels still differ.
func railClass(rail int16) string {
	if rail < 0 {
		return ""
	}
	return fmt.Sprintf("r%d", rail%8)
}

// strokeFor is the width of a line that stands for a rate: 1 pixel for PCIe 3 x4
// and below (4 GB/s), 0.7 more for each doubling, at most 6.
func strokeFor(r unit.Rate) float64 {
	return min(6, max(1, 1+0.7*math.Log2(float64(r)/4e9)))
}

// legend explains the signs used on the page, in one flow of lines.
func (p *page) legend() {
	type entry struct {
		text string
		w    float64
		sign func(x, y float64)
	}
	var list []entry
	add := func(w float64, text string, sign func(x, y float64)) { list = append(list, entry{text, w, sign}) }
	if len(p.rails) > 0 {
		var rails []int16
		for r := range p.rails {
			rails = append(rails, r)
		}
		slices.Sort(rails)
		for i, r := range rails {
			if i == 16 {
				add(0, fmt.Sprintf("… %d more rails, colours repeating", len(rails)-i), func(x, y float64) {})
				break
			}
			add(14, fmt.Sprintf("rail %d", r), func(x, y float64) {
				p.c.Rect(svg.Box{X: x, Y: y + 1, W: 12, H: 12}, 2, "", svg.Class("fill "+railClass(r)))
			})
		}
	}
	for k := topo.NVLink; k <= topo.Ethernet; k++ {
		if p.kinds[k] {
			add(24, kindTitle(k), func(x, y float64) {
				p.c.Line(x, y+7, x+22, y+7, "", svg.Class("line "+k.String()), svg.Stroke(3))
			})
		}
	}
	for _, m := range []struct{ mark, text string }{
		{"square-switch", "square: one switch"}, {"square-folded", "square ×N: N switches of a rail"}, {"square-host", "square: one host"},
		{"square-chip", "square: one chip"},
	} {
		if p.marks[m.mark] {
			class := map[string]string{"square-switch": "switch", "square-folded": "switch", "square-host": "host", "square-chip": "gpu"}[m.mark]
			add(14, m.text, func(x, y float64) {
				p.c.Rect(svg.Box{X: x, Y: y + 1, W: 12, H: 12}, 2, "", svg.Class(class))
			})
		}
	}
	if p.marks["ribbon"] {
		add(24, "band: many links together, ×N of them", func(x, y float64) {
			p.c.Rect(svg.Box{X: x, Y: y + 2, W: 22, H: 10}, 0, "", svg.Class("ribbon r7"))
		})
	}
	if p.marks["width"] {
		add(0, "thicker line: more bandwidth, doubling by doubling", func(x, y float64) {})
	}
	add(0, "hover for exact names", func(x, y float64) {})

	p.c.Line(margin, p.y, p.width-margin, p.y, "", svg.Class("rule"))
	p.y += 10
	x := margin
	for _, e := range list {
		if e.w > 0 {
			e.w += 4
		}
		w := e.w + plain.Width(e.text)
		if x > margin && x+w > p.width-margin {
			x = margin
			p.y += 20
		}
		e.sign(x, p.y)
		p.c.Text(x+e.w, p.y, svg.Start, plain, e.text, svg.Class("dim"))
		x += w + 22
	}
	p.y += 16
}
