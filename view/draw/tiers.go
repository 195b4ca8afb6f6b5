package draw

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/view/draw/svg"
)

// tiersView is the layout of one panel of tiers.
type tiersView struct {
	*page
	pn      *panel
	x0      float64 // left edge of the drawing, right of the notes
	body    float64 // its width
	columns []*column
	rows    []band // tiers from the top, then hosts
	hostRow int
	podRow  int // the first row that lies inside pods
	notes   [][]note
	gaps    [][]note // below row i
	framed  bool     // pods have a box and a label
	wires   wiring
}

// band is a row's extent.
type band struct{ top, bottom float64 }

// column is a pod as shown, or several that are not.
type column struct {
	pod    *pod
	blocks []*stack
	more   *elision
	x, w   float64
	low    float64
	want   float64
}

// stack is a block as shown inside a pod, or several that are not.
type stack struct {
	block *block
	more  *elision
	x, w  float64
	low   float64
	want  float64
}

// elision stands for what is counted instead of drawn.
type elision struct {
	pods   []*pod
	blocks []*block
	lines  []string
	box    svg.Box
}

const (
	moreWidth = 108.0
	between   = 14.0 // columns
	inside    = 10.0 // a pod's or block's edge to its frames
)

// tiers draws a panel as rows of tiers.
func (p *page) tiers(pn *panel) {
	pn.arrange(p.g)
	v := &tiersView{page: p, pn: pn, x0: margin + gutter}
	v.hostRow = len(pn.rows)
	v.podRow = v.hostRow
	for row := range pn.rows {
		v.eachPodGroup(row, func(*group) { v.podRow = min(v.podRow, row) })
	}
	v.framed = len(pn.pods) > 1
	for _, row := range pn.above {
		for _, gr := range row {
			p.prepare(gr)
		}
	}
	for row := range v.hostRow + 1 {
		v.eachPodGroup(row, p.prepare)
	}
	v.choose()
	p.c.Group("", svg.Data("chips", len(pn.chips))) // chips of a torus without a grid are inside the hosts; the title counts them
	p.section(pn.title)
	p.c.End()
	v.tallyNotes()
	v.horizontal()
	v.vertical()
	v.paintAll()
}

// eachPodGroup calls f for every group of a row that lies inside a pod.
func (v *tiersView) eachPodGroup(row int, f func(*group)) {
	for _, pd := range v.pn.pods {
		if row < len(pd.mid) {
			for _, gr := range pd.mid[row] {
				f(gr)
			}
		}
		for _, b := range pd.blocks {
			if row == v.hostRow-1 {
				for _, gr := range b.leaf {
					f(gr)
				}
			}
			if row == v.hostRow && b.host != nil {
				f(b.host)
			}
		}
	}
}

func rowWidth(groups []*group, want bool) float64 {
	sum := 0.0
	for i, gr := range groups {
		if i > 0 {
			sum += inside
		}
		if want {
			sum += gr.view.want
		} else {
			sum += gr.view.low
		}
	}
	return sum
}

// pick is an index to show, or a range from..to-1 to count.
type pick struct {
	index, from, to int
}

// choices shows at most n of the signatures: all if they fit, else the first of
// each run of equal ones, filled up from the front, and the last.
func choices(sigs []string, n int) []pick {
	show := make([]bool, len(sigs))
	left := len(sigs)
	if left > n {
		left = max(n, 1)
		mark := func(i int) {
			if left > 0 && !show[i] {
				show[i] = true
				left--
			}
		}
		mark(0)
		if n >= 3 {
			mark(len(sigs) - 1)
		}
		for i := 1; i < len(sigs); i++ {
			if sigs[i] != sigs[i-1] {
				mark(i)
			}
		}
		for i := range sigs {
			mark(i)
		}
		for i := 1; i+1 < len(sigs); i++ { // a single one left out takes as much room as one shown
			if !show[i] && show[i-1] && show[i+1] {
				show[i] = true
			}
		}
	} else {
		for i := range show {
			show[i] = true
		}
	}
	var list []pick
	for i := 0; i < len(sigs); i++ {
		if show[i] {
			list = append(list, pick{index: i})
			continue
		}
		j := i
		for j < len(sigs) && !show[j] {
			j++
		}
		list = append(list, pick{-1, i, j})
		i = j - 1
	}
	return list
}

// choose takes the fullest view that fits the page, and widens the page if none does.
func (v *tiersView) choose() {
	v.body = v.width - margin - v.x0
	const all = 1 << 30
	for _, c := range [][2]int{{all, all}, {5, all}, {all, 3}, {5, 3}, {4, 3}, {3, 3}, {3, 2}, {2, 2}, {2, 1}, {1, 1}} {
		v.columns = v.view(c[0], c[1])
		if v.total(false) <= v.body {
			break
		}
	}
	need := v.total(false)
	for _, row := range v.pn.above {
		need = max(need, rowWidth(row, false))
	}
	if need > v.body {
		v.width += need - v.body
		v.body = need
	}
}

func (v *tiersView) total(want bool) float64 {
	sum := 0.0
	for i, c := range v.columns {
		if i > 0 {
			sum += between
		}
		if want {
			sum += c.want
		} else {
			sum += c.low
		}
	}
	return sum
}

// view builds columns with at most pods pods, and blocks blocks a pod.
func (v *tiersView) view(pods, blocks int) []*column {
	var list []*column
	sigs := make([]string, len(v.pn.pods))
	for i, pd := range v.pn.pods {
		sigs[i] = pd.sig
	}
	for _, pk := range choices(sigs, pods) {
		if pk.index < 0 {
			e := &elision{pods: v.pn.pods[pk.from:pk.to]}
			v.describe(e, sigs[pk.from:pk.to], sigs[max(pk.from-1, 0)])
			list = append(list, &column{more: e, low: moreWidth, want: moreWidth})
			continue
		}
		pd := v.pn.pods[pk.index]
		c := &column{pod: pd, blocks: v.stacks(pd.blocks, blocks)}
		for i, s := range c.blocks {
			if i > 0 {
				c.low, c.want = c.low+between, c.want+between
			}
			c.low, c.want = c.low+s.low, c.want+s.want
		}
		for _, row := range pd.mid {
			c.low, c.want = max(c.low, rowWidth(row, false)), max(c.want, rowWidth(row, true))
		}
		if v.framed {
			c.low = max(c.low, strong.Width(v.podName(pd)))
			c.low, c.want = c.low+2*inside, max(c.low, c.want)+2*inside
		}
		list = append(list, c)
	}
	level(list)
	return list
}

// stacks chooses at most n blocks of a pod to be drawn, and works out the widths that each needs and would like.
func (v *tiersView) stacks(blocks []*block, n int) (list []*stack) {
	sigs := make([]string, len(blocks))
	for i, b := range blocks {
		sigs[i] = b.sig
	}
	for _, k := range choices(sigs, n) {
		if k.index < 0 {
			e := &elision{blocks: blocks[k.from:k.to]}
			v.describe(e, sigs[k.from:k.to], sigs[max(k.from-1, 0)])
			list = append(list, &stack{more: e, low: moreWidth, want: moreWidth})
			continue
		}
		b := blocks[k.index]
		s := &stack{block: b}
		s.low, s.want = rowWidth(b.leaf, false), rowWidth(b.leaf, true)
		if b.host != nil {
			s.low, s.want = max(s.low, b.host.view.low), max(s.want, b.host.view.want)
		}
		s.low, s.want = s.low+2*inside, s.want+2*inside
		list = append(list, s)
	}
	return list
}

// level gives columns that look alike the same width, whatever their names' lengths.
func level(list []*column) {
	type room struct{ low, want float64 }
	most := map[string]room{}
	for _, c := range list {
		if c.pod != nil {
			m := most[c.pod.sig]
			most[c.pod.sig] = room{max(m.low, c.low), max(m.want, c.want)}
		}
	}
	for _, c := range list {
		if c.pod != nil {
			c.low, c.want = most[c.pod.sig].low, most[c.pod.sig].want
		}
	}
}

func (v *tiersView) podName(pd *pod) string {
	if pd.label < 0 {
		return ""
	}
	return fmt.Sprintf("pod %d", pd.label)
}

// describe says what an elision leaves out; "like this" only where it is true.
func (v *tiersView) describe(e *elision, sigs []string, before string) {
	n := len(sigs)
	sorts := map[string]bool{}
	for _, s := range sigs {
		sorts[s] = true
	}
	e.lines = []string{fmt.Sprintf("… %s more", thousands(n))}
	if len(sorts) == 1 && sorts[before] {
		e.lines = append(e.lines, "like this")
	} else if len(sorts) == 1 {
		e.lines = append(e.lines, "of one sort")
	} else {
		e.lines = append(e.lines, fmt.Sprintf("of %d sorts", len(sorts)))
	}
	switches, hosts := e.counts()
	if hosts > 0 {
		e.lines = append(e.lines, count(hosts, "host"))
	}
	for _, t := range slices.Sorted(maps.Keys(switches)) {
		e.lines = append(e.lines, thousands(switches[t])+" "+plural(switches[t], tierWord(v.pn.kind, t)))
	}
}

// counts says how many switches of each tier and hosts an elision stands for.
func (e *elision) counts() (switches map[int]int, hosts int) {
	switches = map[int]int{}
	add := func(b *block) {
		for _, gr := range b.leaf {
			switches[gr.tier] += gr.size()
		}
		if b.host != nil {
			hosts += b.host.size()
		}
	}
	for _, pd := range e.pods {
		for _, row := range pd.mid {
			for _, gr := range row {
				switches[gr.tier] += gr.size()
			}
		}
		for _, b := range pd.blocks {
			add(b)
		}
	}
	for _, b := range e.blocks {
		add(b)
	}
	return switches, hosts
}

// note is a paragraph of the left column.
type note struct {
	text  string
	title bool
}

func (v *tiersView) row(n topo.NodeID) int {
	if v.g.Nodes[n].Host != topo.None {
		return v.hostRow
	}
	return slices.Index(v.pn.rows, v.pn.tier[n])
}

// tallyNotes counts links between rows and writes the notes of the left column.
func (v *tiersView) tallyNotes() {
	rows := v.hostRow + 1
	at := make([]tally, rows*rows)
	out := 0
	type load struct{ up, down unit.Rate }
	loads := make(map[topo.NodeID]load, len(v.pn.switches))
	for i := range v.g.Links {
		l := &v.g.Links[i]
		if !v.pn.owns(l) {
			continue
		}
		id := topo.LinkID(i)
		if !v.mineOrHost(l.A) || !v.mineOrHost(l.B) {
			out += int(l.Count)
			continue
		}
		a, b := v.row(l.A), v.row(l.B)
		if a > b {
			a, b = b, a
		}
		at[a*rows+b].add(v.g, id)
		for _, e := range [2][2]topo.NodeID{{l.A, l.B}, {l.B, l.A}} {
			if x, y := v.row(e[0]), v.row(e[1]); x != v.hostRow && x != y {
				w := loads[e[0]]
				if y < x {
					w.up += v.g.Rate(id)
				} else {
					w.down += v.g.Rate(id)
				}
				loads[e[0]] = w
			}
		}
	}
	v.notes, v.gaps = make([][]note, rows), make([][]note, rows)
	for row, t := range v.pn.rows {
		var ids []topo.NodeID
		worst, bare, sum := 0.0, 0, load{}
		ports := map[uint16]bool{}
		for _, n := range v.pn.switches {
			if v.pn.tier[n] != t {
				continue
			}
			ids = append(ids, n)
			ports[v.g.Nodes[n].Ports] = true
			w := loads[n]
			if w.up == 0 { // it hangs in the air, or is a top of its own; it would falsify the ratio
				bare++
				continue
			}
			sum.up, sum.down = sum.up+w.up, sum.down+w.down
			worst = max(worst, float64(w.down/w.up))
		}
		text := models(len(ids), func(i int) string { return v.g.Nodes[ids[i]].Model }, tierWord(v.pn.kind, t))
		if len(ports) == 1 && v.g.Nodes[ids[0]].Ports > 0 {
			text += fmt.Sprintf(", %s each", count(int(v.g.Nodes[ids[0]].Ports), "port"))
		}
		v.notes[row] = []note{{tierTitle(v.pn.kind, t), true}, {text, false}}
		if row > 0 && sum.up > 0 {
			ratio := float64(sum.down / sum.up)
			line := fmt.Sprintf("oversubscription %s: %s down, %s up", ratioText(ratio), sum.down, sum.up)
			if worst > 1.01*ratio {
				line += fmt.Sprintf("; worst switch %s", ratioText(worst))
			}
			if bare > 0 {
				line += fmt.Sprintf("; %d without uplink", bare)
			}
			v.notes[row] = append(v.notes[row], note{line, false})
		}
		if same := &at[row*rows+row]; same.links > 0 {
			v.notes[row] = append(v.notes[row], note{"inside this tier: " + same.text(v.g), false})
		}
	}
	gpus := 0
	for _, h := range v.pn.hosts {
		gpus += int(v.gpus[h])
	}
	text := models(len(v.pn.hosts), func(i int) string { return v.g.Hosts[v.pn.hosts[i]].Model }, "host")
	if gpus > 0 {
		text += ", " + count(gpus, "GPU")
	}
	v.notes[v.hostRow] = []note{{"Hosts", true}, {text, false}}
	if out > 0 {
		v.notes[v.hostRow] = append(v.notes[v.hostRow], note{fmt.Sprintf("%s to other networks not drawn", count(out, "link")), false})
	}
	for a := range rows {
		for b := a + 1; b < rows; b++ {
			if t := &at[a*rows+b]; t.links > 0 {
				text := fmt.Sprintf("%s to %s: %s", v.rowWord(b), v.rowWord(a), t.text(v.g))
				if t.links > 1 {
					text += fmt.Sprintf("; %s in all", t.rate)
				}
				v.gaps[b-1] = append(v.gaps[b-1], note{text, false})
			}
		}
	}
}

func (v *tiersView) mineOrHost(n topo.NodeID) bool {
	return v.pn.mine[n] || v.g.Nodes[n].Host != topo.None
}

func (v *tiersView) rowWord(row int) string {
	if row == v.hostRow {
		return "host"
	}
	return tierWord(v.pn.kind, v.pn.rows[row])
}

// ratioText prints down over up: "1:1", "1.14:1".
func ratioText(r float64) string {
	s := strings.TrimRight(strings.TrimRight(fmt.Sprintf("%.2f", r), "0"), ".")
	return s + ":1"
}
