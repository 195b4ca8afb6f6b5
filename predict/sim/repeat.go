package sim

import (
	"errors"
	"maps"
	"slices"

	"github.com/weft-fabric/weft/collective/step"
	"github.com/weft-fabric/weft/model/topo"
)

// One bad part makes all ranks different: a wave of delay passes from rank to rank, and nothing folds. With the same part bad in
// many hosts, ranks fold again:
//
//	hosts       0  1  2  3  4  5  6  7  8  9 ...
//	true        .  .  X  .  .  .  .  .  .  .        one bad part
//	simulated   .  .  X  .  .  .  X  .  .  .  X     in every fourth host: ranks repeat after four hosts
//
// In programs where every rank does the same, all ranks wait for those at the bad part, however many of these there are. So the two
// times are close to one another, and the closer the fewer copies there are. This is an estimate and no bound: hosts that are late
// in turn can get into each other's way more than hosts that are late together. TestRepeatedFaults measures how far it is off.

// heavy is the weight from which a collective around a bad part is estimated and not simulated rank by rank.
const heavy = 1 << 22

// light is the weight that an estimate should have.
const light = 1 << 20

// weight is how much work a job is for the simulator where nothing folds: its actions, and sixteen times its connections.
func (j Job) weight() int64 {
	actions, conns := j.Footprint()
	return actions + 16*conns
}

// repeatFaults estimates a job that is too large to simulate around a bad part; nil if it is small enough, or if the fabric or
// the program does not repeat itself.
func (n *network) repeatFaults(jobs []Job) (*Result, error) {
	j := jobs[0]
	if len(jobs) != 1 || j.Fewer != nil || j.Repeat > 1 || !n.folds() {
		return nil, nil
	}
	weight := j.weight()
	if weight <= heavy && !n.o.shorten {
		return nil, nil
	}
	if !n.repeats(j) {
		return nil, nil
	}
	bad, err := findBad(n.whole, &n.o)
	if err != nil {
		return nil, err
	}
	c := &counterparts{g: n.whole, every: 1}
	if !c.lay(j.Place) {
		return nil, nil
	}
	hosts := len(c.blocks)
	for c.every*8 <= hosts && hosts%(c.every*4) == 0 && weight/int64(hosts)*int64(c.every*4) <= light {
		c.every *= 4
	}
	res, err := n.repeated(j, c, bad)
	if errors.Is(err, topo.ErrUnreachable) {
		return nil, nil // the copies leave no path
	}
	if res != nil {
		res.Every = c.every
	}
	return res, err
}

// repeats reports whether ranks of a job's program do the same.
func (n *network) repeats(j Job) bool {
	ranks, _ := n.base(step.Compile(j.Program), j.Program)
	return ranks > 0 && j.Program.Switches == 0
}

// folds reports whether a network has bad parts without which ranks might fold.
func (n *network) folds() bool {
	return n.whole != nil && !n.o.Unfolded && n.o.Trace == 0 && n.o.Processors == nil && n.o.Routing == Adaptive
}

// repeated simulates a job with bad parts; nil if it does not fold.
func (n *network) repeated(j Job, c *counterparts, bad badParts) (*Result, error) {
	net, err := networkWith(n.whole, bad.repeat(c), n.o)
	if err != nil {
		return nil, err
	}
	net.bases, net.copied, net.cycle = n.bases, c.genuine(n), c.every
	w, err := newWorld(net, []Job{j}, net.o)
	if err != nil || w.sym == nil {
		return nil, err
	}
	if err := w.inTime(net.o.Deadline); err != nil {
		return nil, err
	}
	err = w.run()
	n.work += w.actions - w.folded
	if err != nil {
		return nil, err
	}
	return w.result(), nil
}

// badParts are the links and GPUs that are dead or slow.
type badParts struct {
	dead map[topo.LinkID]bool
	slow map[topo.LinkID]float64
	lame map[topo.NodeID]float64
}

// findBad finds what options name.
func findBad(g *topo.Graph, o *Options) (badParts, error) {
	b := badParts{dead: map[topo.LinkID]bool{}, slow: map[topo.LinkID]float64{}, lame: map[topo.NodeID]float64{}}
	for _, name := range o.Fail {
		p, err := find(g, name)
		if err != nil {
			return b, err
		}
		for _, l := range p.links {
			b.dead[l] = true
		}
	}
	for _, s := range o.Slow {
		p, err := find(g, s.Name)
		if err != nil {
			return b, err
		}
		for _, l := range p.links {
			b.weaken(l, s.Factor)
		}
		for _, node := range p.nodes {
			if g.Nodes[node].Kind == topo.GPU {
				b.lame[node] = s.Factor
			}
		}
	}
	return b, nil
}

// spares reports whether nothing of a simulation without a network's bad parts passes one of them or stands on it.
func (n *network) spares(res *Result) bool {
	bad, err := findBad(n.whole, &n.o)
	if err != nil || n.o.Routing != Adaptive {
		return false
	}
	for _, r := range res.w.runs {
		if slices.ContainsFunc(r.job.Place, func(at topo.NodeID) bool { return bad.lame[at] > 0 }) {
			return false
		}
	}
	sum := res.carried()
	unused := func(l topo.LinkID) bool { return sum[2*l] == 0 && sum[2*l+1] == 0 }
	for l := range bad.dead {
		if !unused(l) {
			return false
		}
	}
	for l := range bad.slow {
		if !unused(l) {
			return false
		}
	}
	return true
}

func (b *badParts) weaken(l topo.LinkID, factor float64) {
	if f, known := b.slow[l]; !known || factor < f {
		b.slow[l] = factor
	}
}

// hosts lists those that bad parts belong to, in their order.
func (b *badParts) hosts(g *topo.Graph) []topo.HostID {
	found := map[topo.HostID]bool{}
	link := func(l topo.LinkID) { found[g.Nodes[g.Links[l].A].Host], found[g.Nodes[g.Links[l].B].Host] = true, true }
	for l := range b.dead {
		link(l)
	}
	for l := range b.slow {
		link(l)
	}
	for node := range b.lame {
		found[g.Nodes[node].Host] = true
	}
	delete(found, topo.None)
	return slices.Sorted(maps.Keys(found))
}

// repeat gives the bad parts with their counterparts: those of a host in one of c.every hosts, those of a switch in every group of
// switches like its own.
func (b *badParts) repeat(c *counterparts) badParts {
	all := badParts{dead: map[topo.LinkID]bool{}, slow: map[topo.LinkID]float64{}, lame: map[topo.NodeID]float64{}}
	for l := range b.dead {
		c.link(l, func(x topo.LinkID) { all.dead[x] = true })
	}
	for l, f := range b.slow {
		c.link(l, func(x topo.LinkID) { all.weaken(x, f) })
	}
	for node, f := range b.lame {
		c.node(node, func(x topo.NodeID) {
			if was, known := all.lame[x]; !known || f < was {
				all.lame[x] = f
			}
		})
	}
	return all
}

// counterparts finds the parts that are in the position of another.
type counterparts struct {
	g      *topo.Graph
	blocks []topo.HostID                 // the hosts, in the order of their ranks
	block  map[topo.HostID]int           // where each is in blocks
	every  int                           // one of this number of hosts gets what a host has
	groups map[topo.NodeID][]topo.NodeID // by switch: those in its position, one per group
}

// lay lists the hosts; false if ranks are not placed host by host.
func (c *counterparts) lay(place []topo.NodeID) bool {
	c.block = map[topo.HostID]int{}
	for _, at := range place {
		h := c.g.Nodes[at].Host
		if h == topo.None {
			return false
		}
		if k, known := c.block[h]; !known {
			c.block[h] = len(c.blocks)
			c.blocks = append(c.blocks, h)
		} else if k != len(c.blocks)-1 {
			return false
		}
	}
	return len(c.blocks) > 1
}

// genuine says which host each copy of a bad one stands for. A host is bad if it is unlike most others in a network.
func (c *counterparts) genuine(n *network) map[topo.HostID]topo.HostID {
	times, usual := map[uint64]int{}, uint64(0)
	for _, h := range c.blocks {
		like := n.hosts[h].alike
		if times[like]++; times[like] > times[usual] {
			usual = like
		}
	}
	stands := map[topo.HostID]topo.HostID{}
	for _, h := range c.blocks {
		if n.hosts[h].alike != usual {
			c.hosts(h, func(copied topo.HostID) { stands[copied] = h })
		}
	}
	return stands
}

// every is the number of hosts after which bad parts repeat themselves.
func (n *network) every() int { return max(n.cycle, 1) }

// genuine is the wire of the bad part for which one of a copy stands.
func (n *network) genuine(w wire) wire {
	l := topo.LinkID(w >> 1)
	if l < 0 || int(l) >= len(n.g.Links) {
		return w
	}
	h := n.g.Nodes[n.g.Links[l].A].Host
	if real, ok := n.copied[h]; ok && h != topo.None {
		return w - wire(n.hosts[h].base)<<1 + wire(n.hosts[real].base)<<1
	}
	return w
}

// hosts calls f for every host that gets what a host has.
func (c *counterparts) hosts(h topo.HostID, f func(topo.HostID)) {
	at, known := c.block[h]
	if !known {
		f(h)
		return
	}
	for k := at % c.every; k < len(c.blocks); k += c.every {
		f(c.blocks[k])
	}
}

func (c *counterparts) node(node topo.NodeID, f func(topo.NodeID)) {
	h := c.g.Nodes[node].Host
	if h == topo.None {
		f(node)
		return
	}
	c.hosts(h, func(to topo.HostID) { f(node - c.g.Hosts[h].First + c.g.Hosts[to].First) })
}

// link calls f for the counterparts of a link: it is the same edge of the counterparts of one of its ends.
func (c *counterparts) link(l topo.LinkID, f func(topo.LinkID)) {
	end := c.g.Links[l].A
	if c.g.Nodes[end].Host == topo.None {
		end = c.g.Links[l].B
	}
	if c.g.Nodes[end].Host != topo.None {
		at := c.edge(end, l)
		c.node(end, func(x topo.NodeID) {
			if edges := c.g.Edges(x); at < len(edges) {
				f(edges[at].Link)
			}
		})
		return
	}
	a, b := c.g.Links[l].A, c.g.Links[l].B
	if c.g.Nodes[a].Tier > c.g.Nodes[b].Tier {
		a = b
	}
	at := c.edge(a, l)
	for _, x := range c.alike(a) {
		if edges := c.g.Edges(x); at < len(edges) {
			f(edges[at].Link)
		}
	}
}

func (c *counterparts) edge(node topo.NodeID, l topo.LinkID) int {
	return slices.IndexFunc(c.g.Edges(node), func(e topo.Edge) bool { return e.Link == l })
}

// alike are the switches in the position of another: of all groups of switches with the same tier and rail that have the same
// neighbours below, the one with the same number in its group.
func (c *counterparts) alike(s topo.NodeID) []topo.NodeID {
	if c.groups == nil {
		c.group()
	}
	return c.groups[s]
}

func (c *counterparts) group() {
	type kind struct {
		fabric, plane int8
		tier          uint8
		rail          int16
		number        int // in its group
	}
	g := c.g
	below := map[uint64]int{} // by neighbours: switches so far
	all := map[kind][]topo.NodeID{}
	c.groups = map[topo.NodeID][]topo.NodeID{}
	kinds := map[topo.NodeID]kind{}
	for i := range g.Nodes {
		n := &g.Nodes[i]
		if n.Host != topo.None || n.Kind != topo.Switch {
			continue
		}
		sum := uint64(n.Tier)
		for _, e := range g.Edges(topo.NodeID(i)) {
			if p := &g.Nodes[e.Peer]; p.Host != topo.None || p.Tier < n.Tier {
				sum += mix(uint64(e.Peer)+1, uint64(n.Tier))
			}
		}
		k := kind{n.Fabric, n.Plane, n.Tier, n.Rail, below[sum]}
		below[sum]++
		kinds[topo.NodeID(i)] = k
		all[k] = append(all[k], topo.NodeID(i))
	}
	for s, k := range kinds {
		c.groups[s] = all[k]
	}
}
