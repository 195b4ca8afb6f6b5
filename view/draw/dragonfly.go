package draw

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/view/draw/svg"
)

// flyGroup is a dragonfly group: its routers and the hosts at them.
type flyGroup struct {
	label   int32
	routers []topo.NodeID
	hosts   int
	box     svg.Box
	cx, cy  float64
	shown   bool
}

// dragonfly draws groups in a circle with the links between them, and the first
// group's inside beside it.
func (p *page) dragonfly(pn *panel) {
	at := map[int32]*flyGroup{}
	var groups []*flyGroup
	of := map[topo.NodeID]*flyGroup{}
	for _, n := range pn.switches {
		label := p.g.Nodes[n].Pod
		if at[label] == nil {
			at[label] = &flyGroup{label: label}
			groups = append(groups, at[label])
		}
		at[label].routers = append(at[label].routers, n)
		of[n] = at[label]
	}
	if len(groups) < 2 {
		p.tiers(pn)
		return
	}
	slices.SortFunc(groups, func(a, b *flyGroup) int { return cmp.Compare(a.label, b.label) })
	home := map[topo.HostID]*flyGroup{}
	between := map[[2]int32]*tally{}
	var local, global, host tally
	for i := range p.g.Links {
		l, id := &p.g.Links[i], topo.LinkID(i)
		a, b := of[l.A], of[l.B]
		switch {
		case a != nil && b != nil && a == b:
			local.add(p.g, id)
		case a != nil && b != nil:
			k := [2]int32{min(a.label, b.label), max(a.label, b.label)}
			if between[k] == nil {
				between[k] = &tally{}
			}
			between[k].add(p.g, id)
			global.add(p.g, id)
		case a != nil || b != nil:
			host.add(p.g, id)
			if a == nil {
				a, l = b, &topo.Link{A: l.B, B: l.A}
			}
			if h := p.g.Nodes[l.B].Host; h != topo.None && home[h] == nil {
				home[h] = a
				a.hosts++
			}
		}
	}
	p.section(pn.title)
	top := p.y
	v := &flyView{page: p, pn: pn, groups: groups, between: between}
	v.circle(top)
	v.detail(top)
	y := top
	write := func(f svg.Font, text, class string) { y = p.paragraph(margin, y, gutter-20, f, text, class) + 3 }
	write(large, fmt.Sprintf("%s, %s", count(len(groups), "group"), count(len(pn.switches), "router")), "")
	write(small, models(len(pn.switches), func(i int) string { return p.g.Nodes[pn.switches[i]].Model }, "router"), "dim")
	if v.alike {
		write(small, fmt.Sprintf("each group (g0 is group 0): %s, %s", count(len(groups[0].routers), "router"),
			count(groups[0].hosts, "host")), "dim")
	}
	write(large, "Between groups", "")
	write(small, global.text(p.g)+"; "+v.evenness(), "dim")
	if v.only0 {
		write(small, fmt.Sprintf("drawn: the links of %s alone; there are %s", groupName(groups[0]), count(len(between), "joined pair")), "dim")
	}
	write(large, "Inside groups", "")
	write(small, local.text(p.g), "dim")
	write(large, "Hosts", "")
	text := models(len(pn.hosts), func(i int) string { return p.g.Hosts[pn.hosts[i]].Model }, "host")
	gpus := 0
	for _, h := range pn.hosts {
		gpus += int(p.gpus[h])
	}
	if gpus > 0 {
		text += ", " + count(gpus, "GPU")
	}
	write(small, text+"; "+host.text(p.g), "dim")
	p.y = max(v.bottom, y)
}

type flyView struct {
	*page
	pn      *panel
	groups  []*flyGroup
	between map[[2]int32]*tally
	only0   bool // the pairs are too many: only the first group's links are drawn
	alike   bool // every group has as many routers and hosts
	bottom  float64
}

func groupName(f *flyGroup) string {
	if f.label < 0 {
		return "no group"
	}
	return fmt.Sprintf("group %d", f.label)
}

// briefName is a group's name where there are many: "g12".
func briefName(f *flyGroup) string {
	if f.label < 0 {
		return "none"
	}
	return fmt.Sprintf("g%d", f.label)
}

// evenness says whether every pair of groups is joined alike.
func (v *flyView) evenness() string {
	least, most := math.MaxInt, 0
	for _, t := range v.between {
		least, most = min(least, t.links), max(most, t.links)
	}
	n := len(v.groups)
	if missing := n*(n-1)/2 - len(v.between); missing > 0 {
		return fmt.Sprintf("%s not joined directly", count(missing, "pair"))
	}
	if least == most {
		return fmt.Sprintf("%d for each pair of groups", most)
	}
	return fmt.Sprintf("%d to %d for each pair of groups", least, most)
}

const mostGroups = 36

// circle puts the groups on a circle, small ones if they are many. Groups beyond mostGroups are counted in one box.
func (v *flyView) circle(top float64) {
	show := v.groups
	var more []*flyGroup
	if len(show) > mostGroups {
		const head, last = 22, 3
		more = show[head : len(show)-last]
		show = append(append([]*flyGroup{}, show[:head]...), show[len(show)-last:]...)
	}
	places := len(show)
	if more != nil {
		places++
	}
	wide := 0.0
	for _, f := range show {
		wide = max(wide, strong.Width(groupName(f)), small.Width(fmt.Sprintf("%d routers", len(f.routers))), small.Width(count(f.hosts, "host")))
	}
	wide += 14
	high := 52.0
	v.alike = !slices.ContainsFunc(v.groups, func(f *flyGroup) bool {
		return len(f.routers) != len(show[0].routers) || f.hosts != show[0].hosts
	})
	brief := v.alike && places > 12 // the notes say once what is in each group
	if brief {
		wide, high = 0, 24
		for _, f := range show {
			wide = max(wide, strong.Width(briefName(f))+12)
		}
	}
	tall := high
	if more != nil { // the box that counts the rest is taller
		tall = 52
	}
	radius := ring(places, wide, tall, 210)
	cx, cy := margin+gutter+wide/2+radius+20, top+radius+high/2
	if more != nil {
		cx += 80
	}
	put := func(i int) (float64, float64) {
		a := 2*math.Pi*float64(i)/float64(places) - math.Pi/2
		return cx + radius*math.Cos(a), cy + radius*math.Sin(a)
	}
	i := 0
	for _, f := range show {
		if more != nil && f == v.groups[len(v.groups)-3] {
			i++
		}
		f.cx, f.cy = put(i)
		f.box = svg.Box{X: f.cx - wide/2, Y: f.cy - high/2, W: wide, H: high}
		f.shown = true
		i++
	}
	pairs := 0
	for k := range v.between {
		if v.find(k[0]).shown && v.find(k[1]).shown {
			pairs++
		}
	}
	v.only0 = pairs > mostLines
	for i, a := range show {
		for _, b := range show[i+1:] {
			t := v.between[[2]int32{a.label, b.label}]
			if t == nil || v.only0 && a != v.groups[0] {
				continue
			}
			k := t.kind(v.g)
			v.kinds[k] = true
			v.marks["width"] = true
			v.c.Line(a.cx, a.cy, b.cx, b.cy, fmt.Sprintf("%s to %s\n%s", groupName(a), groupName(b), t.text(v.g)), svg.Class("line "+k.String()),
				svg.Stroke(strokeFor(t.rate/32)))
		}
	}
	for _, f := range show {
		names := spanAll(len(f.routers), func(i int) string { return v.g.Nodes[f.routers[i]].Name })
		v.c.Group(names, svg.Data("switches", len(f.routers)), svg.Data("hosts", f.hosts))
		v.c.Rect(f.box, 5, "", svg.Class("frame"))
		if brief {
			v.c.Text(f.cx, f.box.Y+5, svg.Middle, strong, briefName(f))
		} else {
			v.c.Text(f.cx, f.box.Y+5, svg.Middle, strong, groupName(f))
			v.c.Text(f.cx, f.box.Y+20, svg.Middle, small, count(len(f.routers), "router"), svg.Class("dim"))
			v.c.Text(f.cx, f.box.Y+34, svg.Middle, small, count(f.hosts, "host"), svg.Class("dim"))
		}
		v.c.End()
	}
	if more != nil {
		x, y := put(places - 4)
		routers, hosts := 0, 0
		for _, f := range more {
			routers, hosts = routers+len(f.routers), hosts+f.hosts
		}
		v.c.Group("", svg.Data("switches", routers), svg.Data("hosts", hosts))
		// Its text is wider than a group's box, so it stands to the left of its place, outside the circle.
		lines := []string{fmt.Sprintf("… %d more", len(more)), count(routers, "router"), count(hosts, "host")}
		w := 0.0
		for _, l := range lines {
			w = max(w, strong.Width(l)+14)
		}
		box := svg.Box{X: x + wide/2 - w, Y: y - 26, W: w, H: 52}
		v.c.Rect(box, 5, "", svg.Class("frame"))
		for i, l := range lines {
			f, class := small, "dim"
			if i == 0 {
				f, class = strong, ""
			}
			v.c.Text(box.Mid(), box.Y+5+15*float64(i), svg.Middle, f, l, svg.Class(class))
		}
		v.c.End()
	}
	v.bottom = cy + radius + high/2 + 10
	v.page.width = max(v.page.width, cx+radius+wide/2+margin)
}

// ring gives the least radius, from one up, of a circle on which n boxes stand clear of each other.
func ring(n int, wide, high, radius float64) float64 {
	const clear = 8
	at := func(i int) svg.Box {
		a := 2*math.Pi*float64(i)/float64(n) - math.Pi/2
		return svg.Box{X: radius * math.Cos(a), Y: radius * math.Sin(a), W: wide + clear, H: high + clear}
	}
	for ; radius < 5000; radius += 8 {
		free := true
		for i := 0; i < n && free; i++ {
			free = n < 2 || !at(i).Overlaps(at((i+1)%n))
		}
		if free {
			break
		}
	}
	return radius
}

func (v *flyView) find(label int32) *flyGroup {
	i, _ := slices.BinarySearchFunc(v.groups, label, func(f *flyGroup, l int32) int { return cmp.Compare(f.label, l) })
	return v.groups[i]
}

// detail draws the routers of the first group in a small circle of their own.
func (v *flyView) detail(top float64) {
	f := v.groups[0]
	n := min(len(f.routers), 24)
	left := 0.0
	for _, g := range v.groups {
		if g.shown {
			left = max(left, g.box.Right())
		}
	}
	name := func(i int) string { return v.g.Nodes[f.routers[i]].Name }
	wide := 0.0
	for i := range n {
		wide = max(wide, small.Width(name(i)))
	}
	wide = min(wide, 110) + 12
	const high = 24.0
	radius := ring(n, wide, high, 150)
	left += 60
	need := left + 2*radius + wide + 20 + margin
	v.page.width = max(v.page.width, need)
	box := svg.Box{X: left, Y: top + 10, W: 2*radius + wide + 20, H: 2*radius + high + 76}
	v.c.Rect(box, 8, "", svg.Class("pod"))
	title := "inside " + groupName(f)
	if n < len(f.routers) {
		title += fmt.Sprintf(", %d of %d routers", n, len(f.routers))
	}
	v.c.Text(box.Mid(), box.Y+8, svg.Middle, strong, strong.Fit(title, box.W-10))
	cx, cy := box.Mid(), box.Y+30+radius+high/2
	at := func(i int) (float64, float64) {
		a := 2*math.Pi*float64(i)/float64(n) - math.Pi/2
		return cx + radius*math.Cos(a), cy + radius*math.Sin(a)
	}
	index := map[topo.NodeID]int{}
	for i := range n {
		index[f.routers[i]] = i
	}
	pairs := map[[2]int]bool{}
	for i := range n {
		for _, e := range v.g.Edges(f.routers[i]) {
			if j, ok := index[e.Peer]; ok && j > i {
				pairs[[2]int{i, j}] = true
			}
		}
	}
	few := len(pairs) <= mostLines
	for i := range n {
		for _, e := range v.g.Edges(f.routers[i]) {
			j, ok := index[e.Peer]
			if !ok || j <= i || !few && i > 0 {
				continue
			}
			x1, y1 := at(i)
			x2, y2 := at(j)
			k := v.g.Class(e.Link).Kind
			v.kinds[k] = true
			v.c.Line(x1, y1, x2, y2, v.g.LinkName(e.Link)+"\n"+rateTitle(v.g.Class(e.Link)), svg.Class("line "+k.String()),
				svg.Stroke(strokeFor(v.g.Rate(e.Link)/8)))
		}
	}
	for i := range n {
		x, y := at(i)
		v.c.Rect(svg.Box{X: x - wide/2, Y: y - high/2, W: wide, H: high}, 4, name(i), svg.Class("switch"))
		v.c.Text(x, y-small.Height()/2, svg.Middle, small, small.Fit(name(i), wide-6))
	}
	text := fmt.Sprintf("%s of %d joined", count(len(pairs), "pair"), n*(n-1)/2)
	if len(pairs) == n*(n-1)/2 {
		text = "every router is joined to every other"
	}
	if !few {
		text += "; drawn: the first one's links"
	}
	for i, line := range small.Wrap(text, box.W-16) {
		v.c.Text(box.Mid(), box.Bottom()-34+float64(i)*small.Size*leading, svg.Middle, small, line, svg.Class("dim"))
	}
	v.bottom = max(v.bottom, box.Bottom())
}
