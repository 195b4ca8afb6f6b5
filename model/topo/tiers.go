package topo

// InferTiers gives the switches of a fabric their tiers from the wiring alone:
// switches with NICs are tier 1, the others are one above their lowest
// neighbour. It says whether the fabric is layered: every link between switches
// joins neighbouring tiers, as in a Clos; a torus or a dragonfly is not.
// Switches that no NIC reaches get tier 0. A fabric of one switch is layered.
func (b *Builder) InferTiers(fabric int8) (layered bool) {
	g := &b.g
	peers := make(map[NodeID][]NodeID)
	var queue []NodeID
	for i := range g.Nodes {
		if n := &g.Nodes[i]; n.Kind == Switch && n.Fabric == fabric {
			n.Tier = 0
		}
	}
	inside := func(n NodeID) bool { return g.Nodes[n].Kind == Switch && g.Nodes[n].Fabric == fabric }
	for i := range g.Links {
		l := &g.Links[i]
		if l.A < 0 || l.B < 0 || int(l.A) >= len(g.Nodes) || int(l.B) >= len(g.Nodes) {
			continue
		}
		x, y := l.A, l.B
		if g.Nodes[y].Kind == NIC {
			x, y = y, x
		}
		switch {
		case inside(x) && inside(y):
			peers[x], peers[y] = append(peers[x], y), append(peers[y], x)
		case g.Nodes[x].Kind == NIC && inside(y) && g.Nodes[y].Tier == 0:
			g.Nodes[y].Tier = 1
			queue = append(queue, y)
		}
	}
	for q := 0; q < len(queue); q++ {
		tier := g.Nodes[queue[q]].Tier
		for _, p := range peers[queue[q]] {
			if g.Nodes[p].Tier == 0 && tier < 255 {
				g.Nodes[p].Tier = tier + 1
				queue = append(queue, p)
			}
		}
	}
	for i := range g.Links {
		l := &g.Links[i]
		if !inside(l.A) || !inside(l.B) {
			continue
		}
		x, y := g.Nodes[l.A].Tier, g.Nodes[l.B].Tier
		if x == 0 || y == 0 || x == y {
			return false
		}
	}
	return true
}

// SetFamily changes what is known of a fabric's wiring after InferTiers has looked at it.
func (b *Builder) SetFamily(fabric int8, f Family) { b.g.Fabrics[fabric].Family = f }
