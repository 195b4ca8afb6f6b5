package rings

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// intoSwitches counts the links into NVSwitches of the GPU that has the fewest.
func (s *search) intoSwitches() (least int, kind topo.LinkKind, err error) {
	for i, gpu := range s.gpus {
		links := 0
		for _, e := range s.g.Edges(gpu) {
			if s.g.Nodes[e.Peer].Kind == topo.NVSwitch {
				links += int(s.g.Links[e.Link].Count)
				kind = s.g.Class(e.Link).Kind
			}
		}
		if links == 0 {
			return 0, 0, fmt.Errorf("%s has no link to a switch of the accelerator network", s.name(gpu))
		}
		if i == 0 || links < least {
			least = links
		}
	}
	return least, kind, nil
}

// switched stripes rings over NVSwitches. Any order of GPUs will do as far as
// their own links go; the order chosen keeps GPUs at the same switches together,
// so that a ring crosses from one board or tray group to the next only once each
// way. Each ring edge is striped as topo.Route stripes it, and the rate follows
// from the most loaded link: the GPUs' own, or a trunk between switches.
func (s *search) switched() (Plan, error) {
	g := s.g
	count, kind, err := s.intoSwitches()
	if err != nil {
		return Plan{}, err
	}
	order := slices.Clone(s.gpus)
	slices.SortStableFunc(order, func(a, b topo.NodeID) int {
		return cmp.Or(cmp.Compare(s.board(a), s.board(b)), cmp.Compare(a, b))
	})
	hops, err := s.hops(order, func(a, b topo.NodeID) ([]topo.Use, error) {
		way, err := g.Route(topo.Flow{From: a, To: b}, nil)
		for _, u := range way {
			if err == nil && !g.Class(u.Link).Kind.Accelerator() {
				err = fmt.Errorf("the switches of %s do not reach %s", s.name(a), s.name(b))
			}
		}
		return way, err
	})
	if err != nil {
		return Plan{}, err
	}
	medium := NVSwitch
	if kind != topo.NVLink {
		medium = Medium(kind.String())
	}
	p := Plan{Medium: medium}
	worst := s.circle(&p, order, hops, count)
	p.Bound = s.switchBound()
	p.Exact = p.RingBus >= p.Bound.Rate*(1-1e-5)
	if p.Exact {
		p.Why = p.Bound.Why
	} else {
		p.Why = s.direction(worst) + " is the most loaded link"
	}
	return p, nil
}

// board is the first switch of a GPU, which GPUs of one board share.
func (s *search) board(gpu topo.NodeID) topo.NodeID {
	for _, e := range s.g.Edges(gpu) {
		if s.g.Nodes[e.Peer].Kind == topo.NVSwitch {
			return e.Peer
		}
	}
	return topo.None
}

// switchBound is the smaller of what one GPU's links carry and what the trunks
// carry out of the switches of one board, if the set goes beyond it.
func (s *search) switchBound() Bound {
	g := s.g
	var b Bound
	for i, gpu := range s.gpus {
		var rate unit.Rate
		links := 0
		for _, e := range g.Edges(gpu) {
			if g.Nodes[e.Peer].Kind == topo.NVSwitch {
				rate += g.Rate(e.Link)
				links += int(g.Links[e.Link].Count)
			}
		}
		if i == 0 || rate < b.Rate {
			b = Bound{Rings: links, Rate: rate, Why: fmt.Sprintf("%s has %d %s into the switches", s.name(gpu), links, plural(links, "link"))}
		}
	}
	var last []topo.NodeID
	for _, gpu := range s.gpus {
		board := s.switchesOf(gpu)
		if slices.Equal(board, last) {
			continue
		}
		last = board
		if trunk, ok := s.trunk(board); ok && trunk < b.Rate {
			b = Bound{Rate: trunk, Why: fmt.Sprintf("the switches of %s reach the others at %s", s.name(gpu), trunk)}
		}
	}
	return b
}

// switchesOf lists the switches that a GPU hangs on, in order.
func (s *search) switchesOf(gpu topo.NodeID) []topo.NodeID {
	var list []topo.NodeID
	for _, e := range s.g.Edges(gpu) {
		if s.g.Nodes[e.Peer].Kind == topo.NVSwitch {
			list = append(list, e.Peer) // edges come by peer
		}
	}
	return slices.Compact(list)
}

// trunk is what leads from some switches to other ones. It is a cut of the set
// if some GPU of the set hangs on none of them, and every other one on no others.
func (s *search) trunk(board []topo.NodeID) (rate unit.Rate, cut bool) {
	for _, gpu := range s.gpus {
		inside := 0
		own := s.switchesOf(gpu)
		for _, n := range own {
			if _, ok := slices.BinarySearch(board, n); ok {
				inside++
			}
		}
		if inside != 0 && inside != len(own) {
			return 0, false
		}
		cut = cut || inside == 0
	}
	return s.leaving(board), cut
}

// leaving is the rate of all links from some switches, which are sorted, to others.
func (s *search) leaving(board []topo.NodeID) (rate unit.Rate) {
	for _, n := range board {
		for _, e := range s.g.Edges(n) {
			if _, ok := slices.BinarySearch(board, e.Peer); !ok && s.g.Nodes[e.Peer].Kind == topo.NVSwitch {
				rate += s.g.Rate(e.Link)
			}
		}
	}
	return rate
}

// intoHost is the rate of a GPU's links to its host, over PCIe or straight to a CPU.
func (s *search) intoHost(gpu topo.NodeID) (rate unit.Rate) {
	for _, e := range s.g.Edges(gpu) {
		if k := s.g.Class(e.Link).Kind; k == topo.PCIe || s.g.Nodes[e.Peer].Kind == topo.CPU {
			rate += s.g.Rate(e.Link)
		}
	}
	return rate
}

// hosted makes one ring through the PCIe tree and the sockets of the host. GPUs
// come in tree order, so that every switch, root port and socket is entered and
// left once: no ring crosses any link of a tree less often. Where sockets are
// joined in more than one way, their best order is searched.
func (s *search) hosted() (Plan, error) {
	if !s.oneHost() {
		return Plan{}, fmt.Errorf("%s are in different hosts; PCIe joins the GPUs of one", s.names(s.gpus))
	}
	order, err := s.treeOrder()
	if err != nil {
		return Plan{}, err
	}
	hops, err := s.hops(order, s.inside)
	if err != nil {
		return Plan{}, err
	}
	p := Plan{Medium: Socket, Exact: true}
	onPCIe := func(u topo.Use) bool { return s.g.Class(u.Link).Kind == topo.PCIe }
	if slices.ContainsFunc(slices.Concat(hops...), onPCIe) {
		p.Medium = PCIe
	}
	worst := s.circle(&p, order, hops, 1)
	// Each end of the set has one way into the host, crossed once each way.
	for i, gpu := range s.gpus {
		if rate := s.intoHost(gpu); i == 0 || rate < p.Bound.Rate {
			p.Bound = Bound{Rings: 1, Rate: rate, Why: fmt.Sprintf("%s reaches its host at %s", s.name(gpu), rate)}
		}
	}
	from, _ := s.g.Links[worst.link].Ends(worst.forward)
	if s.g.Nodes[from].Kind == topo.GPU {
		p.Why = p.Bound.Why
	} else {
		p.Why = fmt.Sprintf("%s carries %s", s.direction(worst), s.g.Rate(worst.link))
	}
	p.Exact = p.RingBus >= p.Bound.Rate*(1-1e-5) || s.crossedOnce(hops)
	return p, nil
}

func (s *search) inside(a, b topo.NodeID) ([]topo.Use, error) {
	way, ok := s.g.Inside(a, b, nil)
	if !ok {
		return nil, fmt.Errorf("no PCIe path joins %s and %s", s.name(a), s.name(b))
	}
	return way, nil
}

// crossedOnce reports whether the ring uses no directed link twice. If the
// sockets in use are at most two, nothing can then be better: every link lies on
// the only way between two parts of the set.
func (s *search) crossedOnce(hops [][]topo.Use) bool {
	sockets := map[topo.NodeID]bool{}
	seen := map[way]bool{}
	for _, hop := range hops {
		for _, u := range hop {
			w := way{u.Link, u.Forward}
			if seen[w] {
				return false
			}
			seen[w] = true
			link := &s.g.Links[u.Link]
			for _, n := range []topo.NodeID{link.A, link.B} {
				if s.g.Nodes[n].Kind == topo.CPU {
					sockets[n] = true
				}
			}
		}
	}
	return len(sockets) <= 2
}

// seat is where a GPU stands in the tree of its host.
type seat struct {
	gpu    topo.NodeID
	socket topo.NodeID   // None where no CPU reaches it
	up     []topo.NodeID // from the socket down to the GPU
}

// seatOf finds the socket that is the fewest hops away.
func (s *search) seatOf(gpu topo.NodeID) seat {
	best := seat{gpu: gpu, socket: topo.None}
	host := &s.g.Hosts[s.g.Nodes[gpu].Host]
	for i := range host.Count {
		cpu := host.First + topo.NodeID(i)
		if s.g.Nodes[cpu].Kind != topo.CPU {
			continue
		}
		way, ok := s.g.Inside(cpu, gpu, nil)
		if ok && (best.socket == topo.None || len(way) < len(best.up)) {
			best.socket, best.up = cpu, nil
			for _, u := range way {
				_, to := s.g.Links[u.Link].Ends(u.Forward)
				best.up = append(best.up, to)
			}
		}
	}
	return best
}

// treeOrder sorts GPUs by their way up to the socket, and the sockets so that
// the worst link is loaded least.
func (s *search) treeOrder() ([]topo.NodeID, error) {
	var seats []seat
	var sockets []topo.NodeID
	for _, gpu := range s.gpus {
		best := s.seatOf(gpu)
		if best.socket != topo.None && !slices.Contains(sockets, best.socket) {
			sockets = append(sockets, best.socket)
		}
		seats = append(seats, best)
	}
	arrange := func(sockets []topo.NodeID) []topo.NodeID {
		slices.SortStableFunc(seats, func(a, b seat) int {
			return cmp.Or(cmp.Compare(slices.Index(sockets, a.socket), slices.Index(sockets, b.socket)),
				slices.Compare(a.up, b.up), cmp.Compare(a.gpu, b.gpu))
		})
		var order []topo.NodeID
		for _, seat := range seats {
			order = append(order, seat.gpu)
		}
		return order
	}
	slices.Sort(sockets)
	best := arrange(sockets)
	if len(sockets) < 4 || len(sockets) > 8 { // up to three sockets have one cyclic order and its reverse
		return best, nil
	}
	var bestRate unit.Rate
	var failed error
	permute(sockets[1:], func(rest []topo.NodeID) {
		order := arrange(append([]topo.NodeID{sockets[0]}, rest...))
		hops, err := s.hops(order, s.inside)
		if err != nil {
			failed = err
			return
		}
		l := newLoad()
		for _, hop := range hops {
			l.add(hop, 1, false)
		}
		if rate, _, _ := s.rate(l); rate > bestRate {
			best, bestRate = order, rate
		}
	})
	return best, failed
}

// permute calls f with every order of a list, the given one first.
func permute(list []topo.NodeID, f func([]topo.NodeID)) {
	if len(list) == 0 {
		f(nil)
		return
	}
	var from func(i int)
	from = func(i int) {
		if i == len(list)-1 {
			f(slices.Clone(list))
			return
		}
		for j := i; j < len(list); j++ {
			list[i], list[j] = list[j], list[i]
			from(i + 1)
			list[i], list[j] = list[j], list[i]
		}
	}
	from(0)
}

// hops gives the links of each edge of a ring.
func (s *search) hops(order []topo.NodeID, route func(a, b topo.NodeID) ([]topo.Use, error)) ([][]topo.Use, error) {
	hops := make([][]topo.Use, len(order))
	for i, gpu := range order {
		way, err := route(gpu, order[(i+1)%len(order)])
		if err != nil {
			return nil, err
		}
		if len(way) == 0 {
			return nil, errors.New("an empty way between two GPUs")
		}
		hops[i] = way
	}
	return hops, nil
}

// circle makes count equal rings of one order, and one tree per GPU where rings
// are striped (one in all where they are not): the chain that starts at that GPU
// and follows the ring, hung at its middle. Over all of them every edge of the
// ring carries (n-1)/n of the buffer each way, so that no GPU's links do more
// than another's. It returns the link that limits the rings.
func (s *search) circle(p *Plan, order []topo.NodeID, hops [][]topo.Use, count int) way {
	n := len(order)
	ring := newLoad()
	var uses []topo.Use
	for _, hop := range hops {
		ring.add(hop, 1, false)
		uses = append(uses, hop...)
	}
	wire, expected, worst := s.rate(ring)
	p.RingBus, p.RingExpected, p.Unmeasured = wire, expected, s.unmeasured(worst.link)
	for range count {
		p.Rings = append(p.Rings, Ring{Order: order, Rate: wire / unit.Rate(count), Uses: uses})
	}
	chains := 1
	if p.Medium == NVSwitch {
		chains = n
	}
	tree := newLoad()
	for i, hop := range hops {
		times := float64(n-1) / float64(n)
		if chains == 1 {
			if i == n-1 {
				continue
			}
			times = 1
		}
		tree.add(hop, times, false)
		tree.add(hop, times, true)
	}
	wire, expected, _ = s.rate(tree)
	factor := unit.Rate(2*(n-1)) / unit.Rate(n)
	p.TreeBus, p.TreeExpected = wire*factor, expected*factor*treeShare
	for c := range chains {
		p.Trees = append(p.Trees, s.chain(order, hops, c, wire/unit.Rate(chains)))
	}
	return worst
}

// chain is the path through the ring from its c-th GPU, hung at the middle.
func (s *search) chain(order []topo.NodeID, hops [][]topo.Use, c int, rate unit.Rate) Tree {
	n := len(order)
	middle := (n - 1) / 2
	parent, up := map[topo.NodeID]topo.NodeID{}, map[topo.NodeID][]topo.Use{}
	for i := range n {
		at := order[(c+i)%n]
		switch {
		case i < middle:
			parent[at], up[at] = order[(c+i+1)%n], hops[(c+i)%n]
		case i > middle:
			before := (c + i - 1) % n
			parent[at] = order[before]
			for j := len(hops[before]) - 1; j >= 0; j-- {
				u := hops[before][j]
				u.Forward = !u.Forward
				up[at] = append(up[at], u)
			}
		default:
			parent[at] = topo.None
		}
	}
	t := Tree{Root: order[(c+middle)%n], Rate: rate, Depth: n - 1 - middle}
	for _, gpu := range s.gpus {
		t.Parent = append(t.Parent, parent[gpu])
		t.Uses = append(t.Uses, up[gpu]...)
	}
	return t
}
