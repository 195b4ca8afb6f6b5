// Package scene places every part of a cluster on a plane, for a page that draws it on a canvas.
//
// A picture (package draw) folds what is alike and is done. A canvas is looked at from far and from near, so it needs
// every part's coordinates and decides itself how much of it to draw:
//
//	 ▫▫▫▫▫▫▫▫ spines          rows above: tiers from the second on, the highest at the top
//	┌ pod 0 ───┐ ┌ pod 1 ───┐
//	│ ▫▫▫▫ leaf│ │ ▫▫▫▫     │  a block: a pod's leaves, hosts and NVLink switches
//	│ ▤▤▤▤ host│ │ ▤▤▤▤     │
//	└──────────┘ └──────────┘
//
// Coordinates are arithmetic by level; nothing is searched. What is inside a host is laid out once for each kind of host.
// A part is named by its number in the graph (topo.NodeID) everywhere: in links, in routes and in what a page selects.
package scene

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/weft-fabric/weft/model/topo"
)

// Scene is a cluster with coordinates. Its JSON is what the page of weft studio reads.
type Scene struct {
	Name   string   `json:"name"`
	Width  float64  `json:"w"`
	Height float64  `json:"h"`
	GPUs   int      `json:"gpus"`
	Nodes  int      `json:"nodes"`
	Kinds  []Inside `json:"kinds"`
	Hosts  Hosts    `json:"hosts"`
	Chips  Chips    `json:"switches"`
	Blocks []Block  `json:"blocks"`
	Rows   []Row    `json:"rows"`

	// Links are pairs of parts, with the kind of each link in LinkKinds; those inside hosts are in Kinds. Above MaxLinks there
	// are none, Folded is set, and Bands stand for them: a page asks for the links of a block (BlockLinks) when it opens it.
	Links     []int32 `json:"links"`
	LinkKinds []int   `json:"link_kinds"`
	Folded    bool    `json:"folded"`
	Bands     []Band  `json:"bands"`
	AllLinks  int     `json:"all_links"`
	Head      float64 `json:"head"` // height of a block's name
	Grid      *Grid   `json:"grid,omitempty"`
}

// MaxLinks is how many links between hosts and switches a scene carries one by one.
const MaxLinks = 24000

// Inside is what one kind of host holds, in the host's own coordinates.
type Inside struct {
	Model string    `json:"model"`
	W     float64   `json:"w"`
	H     float64   `json:"h"`
	Names []string  `json:"names"`
	Kinds []int     `json:"kinds"` // topo.Kind
	X     []float64 `json:"x"`     // of the middle
	Y     []float64 `json:"y"`
	Size  []float64 `json:"size"`  // width of the part; its height is the same but for NICs
	Links []int32   `json:"links"` // pairs of parts by their place in this list
	Count []int     `json:"count"` // physical links of each pair
}

// Hosts are the machines, a column for each property.
type Hosts struct {
	Name  []string  `json:"name"`
	X     []float64 `json:"x"` // of the upper left corner
	Y     []float64 `json:"y"`
	Kind  []int     `json:"kind"`
	First []int32   `json:"first"` // the number of its first part
	Block []int     `json:"block"`
}

// Chips are the parts outside hosts: switches and NVLink switches.
type Chips struct {
	First int       `json:"first"` // the number of the first one; the others follow
	Name  []string  `json:"name"`
	X     []float64 `json:"x"` // of the middle
	Y     []float64 `json:"y"`
	Tier  []int     `json:"tier"`
	Kind  []int     `json:"kind"`
	Block []int     `json:"block"` // -1 for those of the rows above
	Model []string  `json:"model"`
}

// Block is a pod, a group or a rack: what is drawn inside one frame.
type Block struct {
	Name     string  `json:"name"`
	X        float64 `json:"x"`
	Y        float64 `json:"y"`
	W        float64 `json:"w"`
	H        float64 `json:"h"`
	Hosts    int     `json:"hosts"`
	Switches int     `json:"switches"`
}

// Row is a tier above the blocks.
type Row struct {
	Name string  `json:"name"`
	Tier uint8   `json:"tier"`
	X    float64 `json:"x"`
	Y    float64 `json:"y"`
	W    float64 `json:"w"`
	H    float64 `json:"h"`
	N    int     `json:"n"`
}

// Band stands for many links between two groups: blocks by their number, rows as -1, -2, ... from the top.
type Band struct {
	A     int `json:"a"`
	B     int `json:"b"`
	Count int `json:"count"`
}

// Measures of the plane. A GPU is a square of one cell.
const (
	cell    = 16.0
	gap     = 4.0
	chip    = 14.0 // a switch
	pitch   = 20.0 // from switch to switch
	margin  = 12.0
	title   = 12.0 // above what is in a frame, for its name
	between = 10.0 // hosts of a block
	aspect  = 1.35
)

// New places a graph.
func New(g *topo.Graph) *Scene {
	s := empty(g)
	l := &layout{g: g, s: s}
	l.hosts()
	l.blocks()
	l.place()
	l.links()
	return s
}

// empty is a graph's scene before anything is placed. JSON's lists are empty, not null.
func empty(g *topo.Graph) *Scene {
	return &Scene{Name: g.Name, Nodes: len(g.Nodes), GPUs: g.Count(topo.GPU),
		Kinds: []Inside{}, Blocks: []Block{}, Rows: []Row{}, Bands: []Band{}, LinkKinds: []int{}}
}

// layout is a scene being made.
type layout struct {
	g      *topo.Graph
	s      *Scene
	kindOf map[string]int
	groups []group
	above  [][]topo.NodeID // switches by row, the highest tier first
	head   float64         // height of a block's name: a line of text when all is seen
}

// group is a block before it has a place.
type group struct {
	pod                  int32
	hosts                []topo.HostID
	leaves, nvs          []topo.NodeID
	w, h                 float64
	cols                 int
	leafRows, nvRows     int
	hostW, hostH, innerW float64
}

// hosts finds the kinds of hosts and lays out the inside of each.
func (l *layout) hosts() {
	l.kindOf = map[string]int{}
	for h := range l.g.Hosts {
		host := &l.g.Hosts[h]
		key := fmt.Sprintf("%s/%d", host.Model, host.Count)
		kind, known := l.kindOf[key]
		if !known {
			kind = len(l.s.Kinds)
			l.kindOf[key] = kind
			l.s.Kinds = append(l.s.Kinds, inside(l.g, topo.HostID(h)))
		}
		l.s.Hosts.Name = append(l.s.Hosts.Name, host.Name)
		l.s.Hosts.Kind = append(l.s.Hosts.Kind, kind)
		l.s.Hosts.First = append(l.s.Hosts.First, int32(host.First))
	}
	n := len(l.g.Hosts)
	l.s.Hosts.X, l.s.Hosts.Y, l.s.Hosts.Block = make([]float64, n), make([]float64, n), make([]int, n)
}

// blocks sorts hosts and switches into blocks and rows.
func (l *layout) blocks() {
	at, rackPod := map[int32]int{}, map[int32]int32{}
	for h := range l.g.Hosts {
		host := &l.g.Hosts[h]
		if _, known := at[host.Pod]; !known {
			at[host.Pod] = len(l.groups)
			l.groups = append(l.groups, group{pod: host.Pod})
		}
		b := &l.groups[at[host.Pod]]
		b.hosts = append(b.hosts, topo.HostID(h))
		if host.Rack >= 0 {
			rackPod[host.Rack] = host.Pod
		}
	}
	l.s.Chips.First = len(l.g.Nodes)
	tiers := map[[2]int][]topo.NodeID{}
	for id := range l.g.Nodes {
		n := &l.g.Nodes[id]
		if n.Host != topo.None {
			continue
		}
		l.s.Chips.First = min(l.s.Chips.First, id)
		if b := l.blockOf(n, at, rackPod); b == nil {
			key := [2]int{-int(n.Tier), int(n.Fabric)}
			tiers[key] = append(tiers[key], topo.NodeID(id))
		} else if n.Kind == topo.NVSwitch {
			b.nvs = append(b.nvs, topo.NodeID(id))
		} else {
			b.leaves = append(b.leaves, topo.NodeID(id))
		}
	}
	slices.SortStableFunc(l.groups, func(a, b group) int { return cmp.Compare(a.pod, b.pod) })
	// The highest tier first, and inside a tier fabric by fabric.
	for _, k := range slices.SortedFunc(maps.Keys(tiers), func(a, b [2]int) int { return slices.Compare(a[:], b[:]) }) {
		l.above = append(l.above, tiers[k])
	}
}

// blockOf is the block that a switch stands in: a leaf or an NVLink switch with its pod or rack. It is nil for the rows above.
func (l *layout) blockOf(n *topo.Node, at map[int32]int, rackPod map[int32]int32) *group {
	pod := n.Pod
	if other, known := rackPod[n.Rack]; pod == topo.None && known && n.Kind == topo.NVSwitch {
		pod = other
	}
	i, known := at[pod]
	if !known || n.Kind != topo.NVSwitch && (n.Tier > 1 || pod == topo.None && !(len(at) == 1 && l.flat(n))) {
		return nil
	}
	return &l.groups[i]
}

// flat reports whether a switch belongs to a fabric without tiers, whose switches stand among the hosts.
func (l *layout) flat(n *topo.Node) bool {
	return n.Fabric >= 0 && l.g.Fabrics[n.Fabric].Family != topo.Clos
}

// place chooses how many hosts and blocks stand side by side, so that the whole has the shape of a screen.
func (l *layout) place() {
	most := 0
	for i := range l.groups {
		b := &l.groups[i]
		most = max(most, len(b.hosts))
		for _, h := range b.hosts {
			k := &l.s.Kinds[l.s.Hosts.Kind[h]]
			b.hostW, b.hostH = max(b.hostW, k.W), max(b.hostH, k.H)
		}
	}
	area := 0.0
	for i := range l.groups {
		b := &l.groups[i]
		area += float64(len(b.hosts)) * (b.hostW + between) * (b.hostH + between)
	}
	l.head = max(title, min(100, .034*math.Sqrt(area*aspect)))
	l.s.Head = l.head
	bestCols, bestAcross, best := 1, 1, math.Inf(1)
	for cols := 1; cols <= max(most, 1); cols++ {
		for across := 1; across <= max(len(l.groups), 1); across++ {
			w, h := l.size(cols, across)
			// Rows that are filled look calmer than the exact shape.
			off := math.Abs(math.Log(w/h/aspect)) + .9*hole(most, cols) + .9*hole(len(l.groups), across)
			if b := &l.groups[0]; len(l.groups) > 16 { // of many blocks each fills a screen, too, when it is opened
				off += .2 * math.Abs(math.Log(b.w/b.h/aspect))
			}
			if off < best-1e-9 {
				bestCols, bestAcross, best = cols, across, off
			}
		}
		if cols > 256 {
			break
		}
	}
	l.put(bestCols, bestAcross)
}

// hole is the share of a grid's places that its last row leaves empty.
func hole(n, cols int) float64 {
	rows := (n + cols - 1) / cols
	return 1 - float64(n)/float64(max(rows*cols, 1))
}

// shape computes a block's size for a number of hosts side by side.
func (b *group) shape(cols int, head float64) {
	b.cols = max(1, min(cols, len(b.hosts)))
	rows := (len(b.hosts) + b.cols - 1) / b.cols
	b.innerW = max(float64(b.cols)*(b.hostW+between)-between, 60)
	lines := func(n int) int { return (n*int(pitch) + int(b.innerW) - 1) / int(b.innerW) }
	b.leafRows, b.nvRows = lines(len(b.leaves)), lines(len(b.nvs))
	b.w = b.innerW + 2*margin
	b.h = 2*margin + head + float64(rows)*(b.hostH+between) - between
	if b.leafRows > 0 {
		b.h += float64(b.leafRows)*pitch + 2*margin
	}
	if b.nvRows > 0 {
		b.h += float64(b.nvRows)*pitch + margin
	}
}

// size is that of the whole for a choice.
func (l *layout) size(cols, across int) (w, h float64) {
	lineH, lineW := 0.0, 0.0
	for i := range l.groups {
		b := &l.groups[i]
		b.shape(cols, l.head)
		lineW += b.w + 2*margin
		lineH = max(lineH, b.h)
		if (i+1)%across == 0 || i == len(l.groups)-1 {
			w, h = max(w, lineW), h+lineH+2*margin
			lineW, lineH = 0, 0
		}
	}
	w = max(w, 160)
	return w, h + l.top(w)
}

// rowHeight is that of a tier above the blocks, wrapped to a width.
func rowHeight(n int, w float64) (perLine, lines int) {
	perLine = max(1, int(w/pitch))
	return perLine, (n + perLine - 1) / perLine
}

// top is the height of all rows above the blocks, with the space for links below each.
func (l *layout) top(w float64) float64 {
	h := 0.0
	for _, row := range l.above {
		_, lines := rowHeight(len(row), w)
		h += float64(lines)*pitch + l.space(w)
	}
	return h
}

// space is what links have between two tiers.
func (l *layout) space(w float64) float64 { return max(56, .055*w) }

// put gives everything its coordinates.
func (l *layout) put(cols, across int) {
	s := l.s
	w, h := l.size(cols, across)
	s.Width, s.Height = w, h
	l.chipColumns()
	y := 0.0
	for _, row := range l.above {
		per, lines := rowHeight(len(row), w)
		wide := min(w, float64(min(per, len(row)))*3*pitch)
		s.Rows = append(s.Rows, Row{Name: l.tierName(row), Tier: l.g.Nodes[row[0]].Tier, X: (w - wide) / 2, Y: y, W: wide,
			H: float64(lines) * pitch, N: len(row)})
		l.line(row, 0, y, w, -1)
		y += float64(lines)*pitch + l.space(w)
	}
	x, lineH := margin, 0.0
	for i := range l.groups {
		b := &l.groups[i]
		s.Blocks = append(s.Blocks, Block{Name: l.blockName(b), X: x, Y: y, W: b.w, H: b.h, Hosts: len(b.hosts),
			Switches: len(b.leaves) + len(b.nvs)})
		l.fill(b, i, x, y)
		lineH = max(lineH, b.h)
		x += b.w + 2*margin
		if (i+1)%across == 0 {
			x, y, lineH = margin, y+lineH+2*margin, 0
		}
	}
}

// chipColumns makes the columns of what stands outside hosts.
func (l *layout) chipColumns() {
	c := &l.s.Chips
	n := len(l.g.Nodes) - c.First
	c.Name, c.X, c.Y, c.Model = make([]string, n), make([]float64, n), make([]float64, n), make([]string, n)
	c.Tier, c.Kind, c.Block = make([]int, n), make([]int, n), make([]int, n)
}

// fill puts a block's switches and hosts into its frame.
func (l *layout) fill(b *group, i int, x, y float64) {
	inner := y + margin + l.head
	if b.leafRows > 0 {
		l.line(b.leaves, x+margin, inner, b.innerW, i)
		inner += float64(b.leafRows)*pitch + 2*margin
	}
	for j, h := range b.hosts {
		l.s.Hosts.X[h] = x + margin + float64(j%b.cols)*(b.hostW+between)
		l.s.Hosts.Y[h] = inner + float64(j/b.cols)*(b.hostH+between)
		l.s.Hosts.Block[h] = i
	}
	rows := (len(b.hosts) + b.cols - 1) / b.cols
	l.line(b.nvs, x+margin, inner+float64(rows)*(b.hostH+between), b.innerW, i)
}

// line places switches side by side, in several lines where there are many.
func (l *layout) line(list []topo.NodeID, x, y, w float64, block int) {
	c := &l.s.Chips
	per, _ := rowHeight(len(list), w)
	for j, id := range list {
		here := min(per, len(list)-j/per*per)
		step := min(w/float64(here), 3*pitch)
		i, node := int(id)-c.First, &l.g.Nodes[id]
		c.X[i], c.Y[i] = x+w/2+(float64(j%per)-float64(here-1)/2)*step, y+float64(j/per)*pitch+pitch/2
		c.Name[i], c.Tier[i], c.Kind[i], c.Block[i], c.Model[i] = l.g.NodeName(id), int(node.Tier), int(node.Kind), block, node.Model
	}
}

// tierName names a row of switches. With several fabrics the fabric is part of the name.
func (l *layout) tierName(row []topo.NodeID) string {
	n := &l.g.Nodes[row[0]]
	name := map[uint8]string{1: "leaf", 2: "spine", 3: "core"}[n.Tier]
	switch {
	case n.Kind == topo.NVSwitch:
		name = "NVLink switch"
	case name == "":
		name = fmt.Sprintf("tier %d", n.Tier)
	}
	if len(l.g.Fabrics) > 1 && n.Fabric >= 0 {
		name = l.g.Fabrics[n.Fabric].Name + " " + name
	}
	if len(row) == 1 {
		return name
	}
	return fmt.Sprintf("%d %s switches", len(row), name)
}

func (l *layout) blockName(b *group) string {
	if b.pod == topo.None {
		if len(b.hosts) == 1 {
			return ""
		}
		return "hosts"
	}
	for _, f := range l.g.Fabrics {
		if f.Family == topo.Dragonfly {
			return fmt.Sprintf("group %d", b.pod)
		}
	}
	return fmt.Sprintf("pod %d", b.pod)
}

// links lists what joins hosts and switches, one by one or in bands.
func (l *layout) links() {
	s := l.s
	bands := map[[2]int]int{}
	for i := range l.g.Links {
		link := &l.g.Links[i]
		if l.same(link) {
			continue
		}
		s.AllLinks++
		a, b := l.groupOf(link.A), l.groupOf(link.B)
		if a != b {
			bands[[2]int{min(a, b), max(a, b)}] += int(link.Count)
		}
		if s.AllLinks <= MaxLinks {
			s.Links = append(s.Links, int32(link.A), int32(link.B))
			s.LinkKinds = append(s.LinkKinds, int(l.g.Classes[link.Class].Kind))
		}
	}
	if s.AllLinks > MaxLinks {
		s.Links, s.LinkKinds, s.Folded = nil, []int{}, true
	}
	for k, n := range bands {
		s.Bands = append(s.Bands, Band{k[0], k[1], n})
	}
	slices.SortFunc(s.Bands, func(x, y Band) int { return cmp.Or(cmp.Compare(x.A, y.A), cmp.Compare(x.B, y.B)) })
}

// same reports whether a link stays inside one host.
func (l *layout) same(link *topo.Link) bool {
	a, b := l.g.Nodes[link.A].Host, l.g.Nodes[link.B].Host
	return a == b && a != topo.None
}

// groupOf is the block of a part, or -1, -2, ... for a row from the top.
func (l *layout) groupOf(id topo.NodeID) int {
	if h := l.g.Nodes[id].Host; h != topo.None {
		return l.s.Hosts.Block[h]
	}
	if b := l.s.Chips.Block[int(id)-l.s.Chips.First]; b >= 0 {
		return b
	}
	for i, r := range l.s.Rows {
		if y := l.s.Chips.Y[int(id)-l.s.Chips.First]; y >= r.Y && y < r.Y+r.H {
			return -1 - i
		}
	}
	return -1
}

// BlockLinks lists the links with an end in a block, as Scene.Links has them, at most MaxLinks of them.
func BlockLinks(g *topo.Graph, s *Scene, block int) []int32 {
	l := &layout{g: g, s: s}
	var out []int32
	for i := range g.Links {
		link := &g.Links[i]
		if l.same(link) || l.groupOf(link.A) != block && l.groupOf(link.B) != block {
			continue
		}
		if out = append(out, int32(link.A), int32(link.B)); len(out) >= 2*MaxLinks {
			break
		}
	}
	return out
}
