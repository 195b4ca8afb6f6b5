package paths

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
)

// finder collects the candidates of one question.
type finder struct {
	g     *topo.Graph
	c     *catalog.Catalog
	a, b  topo.NodeID
	found []Path
	ways  map[span]uint64 // equal-cost ways, counted before
	wires map[span]leg    // the way through the fabric, found before

	fronts [2]*front // scratch space of that
}

// leg is a part of a path after which bytes are stored.
type leg []topo.Use

// add completes a candidate of one or more legs and keeps it.
func (f *finder) add(p Path, legs []leg, extra ...Term) {
	p.From, p.To, p.order = f.a, f.b, len(f.found)
	p.Count = max(p.Count, 1)
	for _, l := range legs {
		p.Hops = append(p.Hops, l...)
	}
	f.rate(&p)
	f.stores(&p, legs)
	f.latency(&p, extra...)
	f.found = append(f.found, p)
}

func (f *finder) kind(n topo.NodeID) topo.Kind { return f.g.Nodes[n].Kind }

func (f *finder) endsAtNIC() bool { return f.kind(f.a) == topo.NIC || f.kind(f.b) == topo.NIC }

// sameHost reports whether both ends are parts of one host.
func (f *finder) sameHost() bool {
	h := f.g.Nodes[f.a].Host
	return h != topo.None && h == f.g.Nodes[f.b].Host
}

// own gives the links of a way between GPUs that stays inside their own network.
func (f *finder) own(a, b topo.NodeID, way []topo.Use) ([]topo.Use, bool) {
	if f.kind(a) != topo.GPU || f.kind(b) != topo.GPU {
		return way, false
	}
	if out := f.g.Nodes[a].Host != f.g.Nodes[b].Host; !f.linked(a, out) || !f.linked(b, out) {
		return way, false
	}
	start := len(way)
	way, err := f.g.Route(topo.Flow{From: a, To: b}, way)
	if err != nil {
		return way[:start], false
	}
	for _, u := range way[start:] {
		if !f.g.Class(u.Link).Kind.Accelerator() {
			return way[:start], false
		}
	}
	return way, len(way) > start
}

// linked reports whether a GPU has a link into a network of GPUs, one that
// leaves its host if asked for. It spares a search through the fabric for GPUs
// that have none.
func (f *finder) linked(gpu topo.NodeID, out bool) bool {
	host := f.g.Nodes[gpu].Host
	for _, e := range f.g.Edges(gpu) {
		if !f.g.Class(e.Link).Kind.Accelerator() || f.kind(e.Peer) == topo.CPU {
			continue
		}
		if !out || f.kind(e.Peer) == topo.GPU || f.g.Nodes[e.Peer].Host != host {
			return true
		}
		for _, up := range f.g.Edges(e.Peer) { // a switch of the host may have others above it
			if f.g.Nodes[up.Peer].Host != host {
				return true
			}
		}
	}
	return false
}

// accelerated is the GPUs' own network: direct links, switches, or a torus.
func (f *finder) accelerated() {
	way, ok := f.own(f.a, f.b, nil)
	if !ok {
		return
	}
	p := Path{}
	links, switched := 0, false
	for _, u := range way {
		from, to := f.g.Links[u.Link].Ends(u.Forward)
		if from == f.a {
			links += int(f.g.Links[u.Link].Count)
		}
		switched = switched || f.kind(to) == topo.NVSwitch
	}
	p.Detail = fmt.Sprintf("%d %s", links, plural(links, "link"))
	switch k := f.g.Class(way[0].Link).Kind; {
	case k == topo.XGMI:
		p.Mechanism = XGMI
	case k == topo.ICI:
		p.Mechanism, p.Count = ICI, f.minimal(f.a, f.b, len(way))
		p.Detail = fmt.Sprintf("%d %s", len(way), plural(len(way), "hop"))
	case switched:
		p.Mechanism = NVSwitch
	default:
		p.Mechanism = NVLink
	}
	f.add(p, []leg{way}, Term{"flag seen by the receiving GPU", flag})
}

func plural(n int, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}

// relays reports whether an edge of the source leads to another GPU than the destination.
func (f *finder) relays(e topo.Edge) bool {
	return e.Peer != f.b && f.kind(e.Peer) == topo.GPU && f.g.Class(e.Link).Kind.Accelerator()
}

// by gives the two legs of a way that is stored and forwarded by a GPU, nil if there are no such.
func (f *finder) by(gpu topo.NodeID) []leg {
	first, ok := f.own(f.a, gpu, nil)
	second, also := f.own(gpu, f.b, nil)
	if !ok || !also {
		return nil
	}
	return []leg{first, second}
}

// relayed goes by way of the GPU that is best joined to both ends, directly.
func (f *finder) relayed() {
	if f.kind(f.a) != topo.GPU || f.kind(f.b) != topo.GPU {
		return
	}
	best := Path{Mechanism: Relay}
	var legs []leg
	var bestRate float64
	last := topo.NodeID(topo.None)
	for _, e := range f.g.Edges(f.a) {
		m := e.Peer
		if m == last || !f.relays(e) {
			continue
		}
		last = m
		out, in := f.direct(f.a, m), f.direct(m, f.b)
		if in == 0 {
			continue
		}
		best.Count++
		if r := min(out, in); r > bestRate {
			if both := f.by(m); both != nil {
				bestRate, legs, best.Detail = r, both, "by "+f.g.Nodes[m].Name
			}
		}
	}
	if legs != nil {
		f.add(best, legs, Term{"flags seen by both GPUs", 2 * flag})
	}
}

// direct is the rate of the accelerator links between two GPUs.
func (f *finder) direct(a, b topo.NodeID) float64 {
	var sum float64
	for _, e := range f.g.Edges(a) {
		if e.Peer == b && f.g.Class(e.Link).Kind.Accelerator() {
			sum += float64(f.g.Rate(e.Link))
		}
	}
	return sum
}

// inside is the host's PCIe tree and sockets, with no stop on the way.
func (f *finder) inside() {
	if !f.sameHost() {
		return
	}
	way, ok := f.g.Inside(f.a, f.b, nil)
	if !ok {
		return
	}
	p := Path{Mechanism: Socket}
	for _, u := range way {
		switch f.g.Class(u.Link).Kind {
		case topo.PCIe:
			p.Mechanism = PCIe
		case topo.C2C:
			if p.Mechanism != PCIe {
				p.Mechanism = C2C
			}
		case topo.NVLink:
			if p.Mechanism == Socket {
				p.Mechanism = NVLink
			}
		}
	}
	if p.Mechanism == PCIe {
		p.Detail = f.g.Span(f.a, f.b).String()
	}
	f.add(p, []leg{way}, Term{"flag seen by the receiver", flag})
}

// staged copies into the memory of the source's CPU and out again.
func (f *finder) staged() {
	if !f.sameHost() || f.kind(f.a) != topo.GPU || f.kind(f.b) != topo.GPU {
		return
	}
	cpu := f.g.CPUOf(f.a)
	if cpu == topo.None {
		return
	}
	up, ok := f.g.Inside(f.a, cpu, nil)
	down, also := f.g.Inside(cpu, f.b, nil)
	if ok && also {
		f.add(Path{Mechanism: Staged, Detail: "memory of " + f.g.Nodes[cpu].Name}, []leg{up, down}, Term{"flags seen by host and GPU", 2 * flag})
	}
}

// lane is one of several networks that share no switch: a fabric, or a plane of
// one. A NIC with a port in each plane is in several.
type lane struct{ fabric, plane int8 }

// span is a pair of NICs in one network.
type span struct {
	out, in topo.NodeID
	lane    lane
}

// whole reports whether there is a NIC at either end.
func (s span) whole() bool { return s.out != topo.None && s.in != topo.None }

// networked is what leaves through a NIC: RDMA in each network that both ends
// reach, by another rail's NIC, over all planes at once, and sockets.
func (f *finder) networked() {
	f.ways, f.wires = map[span]uint64{}, map[span]leg{}
	if f.sameHost() {
		f.loopback()
	}
	lanes, service := f.lanes()
	var planes []leg
	var widths []uint64
	for i, l := range lanes {
		out, in := f.port(f.a, l), f.port(f.b, l)
		if out == in || out == topo.None || in == topo.None {
			continue
		}
		s := span{out, in, l}
		if way, ok := f.join(f.hostLeg(f.a, out), f.fabricLeg(s), f.hostLeg(in, f.b)); ok {
			f.add(Path{Mechanism: RDMA, Detail: f.detail(out, in, l, len(lanes) > 1), Count: f.equalCost(s)}, []leg{way}, remote()...)
			planes, widths = append(planes, way), append(widths, f.equalCost(s))
		}
		f.proxied(s, len(lanes) > 1)
		if i == 0 {
			f.sockets(s, len(lanes)+len(service) > 1)
		}
	}
	if len(planes) > 1 {
		f.parallel(planes, widths)
	}
	for _, l := range service {
		f.sockets(span{f.port(f.a, l), f.port(f.b, l), l}, true)
	}
}

func remote() []Term {
	return []Term{{"message posted to the NIC", post}, {"completion seen by the receiver", flag}}
}

// lanes lists the networks in which both ends' hosts have NICs, that of the
// first end's nearest NIC first, and apart those for storage and management.
func (f *finder) lanes() (compute, service []lane) {
	here, there := f.attached(f.a), f.attached(f.b)
	for _, l := range here {
		if !slices.Contains(there, l) {
			continue
		}
		if f.g.Fabrics[l.fabric].Service {
			service = append(service, l)
		} else {
			compute = append(compute, l)
		}
	}
	if near := f.g.Near(f.a); f.kind(f.a) == topo.GPU && near != topo.None {
		slices.SortStableFunc(compute, func(x, y lane) int {
			return cmp.Compare(b2i(!f.in(near, x)), b2i(!f.in(near, y)))
		})
	}
	return compute, service
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// in reports whether a NIC has a port in a network.
func (f *finder) in(nic topo.NodeID, l lane) bool {
	if f.g.Nodes[nic].Fabric != l.fabric {
		return false
	}
	for _, e := range f.g.Edges(nic) {
		if f.g.Class(e.Link).Kind.Network() && f.g.Nodes[e.Peer].Plane == l.plane {
			return true
		}
	}
	return false
}

// attached lists the networks of an endpoint: of its host's NICs, or its own.
func (f *finder) attached(n topo.NodeID) []lane {
	var list []lane
	f.nics(n, func(nic topo.NodeID) {
		fabric := f.g.Nodes[nic].Fabric
		if fabric == topo.None {
			return
		}
		for _, e := range f.g.Edges(nic) {
			if l := (lane{fabric, f.g.Nodes[e.Peer].Plane}); f.g.Class(e.Link).Kind.Network() && !slices.Contains(list, l) {
				list = append(list, l)
			}
		}
	})
	slices.SortFunc(list, func(x, y lane) int {
		return cmp.Or(cmp.Compare(x.fabric, y.fabric), cmp.Compare(x.plane, y.plane))
	})
	return list
}

// nics calls visit for the NICs that an endpoint may use.
func (f *finder) nics(n topo.NodeID, visit func(topo.NodeID)) {
	if f.kind(n) == topo.NIC {
		visit(n)
		return
	}
	h := f.g.Nodes[n].Host
	if h == topo.None {
		return
	}
	first := f.g.Hosts[h].First
	for i := range f.g.HostNodes(h) {
		if m := first + topo.NodeID(i); f.kind(m) == topo.NIC {
			visit(m)
		}
	}
}

// port is the NIC through which an endpoint enters a network: the one that the
// graph gives a GPU, else the closest, the one on the same rail among equals.
func (f *finder) port(n topo.NodeID, l lane) topo.NodeID {
	near := topo.NodeID(topo.None)
	rail := int16(topo.None)
	if f.kind(n) == topo.GPU {
		if near = f.g.Near(n); near != topo.None {
			if f.in(near, l) {
				return near
			}
			rail = f.g.Nodes[near].Rail
		}
	}
	best, bestCost := topo.NodeID(topo.None), 0
	var way []topo.Use
	f.nics(n, func(nic topo.NodeID) {
		if !f.in(nic, l) {
			return
		}
		var ok bool
		if way, ok = f.g.Inside(n, nic, way[:0]); !ok {
			return
		}
		cost := 2*len(way) + b2i(f.g.Nodes[nic].Rail != rail)
		if best == topo.None || cost < bestCost {
			best, bestCost = nic, cost
		}
	})
	return best
}

// detail names rails, and the network where there are several.
func (f *finder) detail(out, in topo.NodeID, l lane, several bool) string {
	var parts []string
	if x, y := f.g.Nodes[out].Rail, f.g.Nodes[in].Rail; x != topo.None && y != topo.None {
		if x == y {
			parts = append(parts, fmt.Sprintf("rail %d", x))
		} else {
			parts = append(parts, fmt.Sprintf("rail %d to rail %d", x, y))
		}
	}
	if several {
		if name := f.g.Fabrics[l.fabric].Name; l.plane != topo.None {
			parts = append(parts, fmt.Sprintf("%s plane %d", name, l.plane))
		} else {
			parts = append(parts, name)
		}
	}
	return strings.Join(parts, ", ")
}

// join strings ways together; ok is false if one of them does not exist.
func (f *finder) join(legs ...func([]topo.Use) ([]topo.Use, bool)) (way []topo.Use, ok bool) {
	for _, leg := range legs {
		if way, ok = leg(way); !ok {
			return nil, false
		}
	}
	return way, len(way) > 0
}

func (f *finder) hostLeg(a, b topo.NodeID) func([]topo.Use) ([]topo.Use, bool) {
	return func(way []topo.Use) ([]topo.Use, bool) { return f.g.Inside(a, b, way) }
}

func (f *finder) fabricLeg(s span) func([]topo.Use) ([]topo.Use, bool) {
	return func(way []topo.Use) ([]topo.Use, bool) {
		found, known := f.wires[s]
		if !known {
			if w, ok := f.wire(s, nil); ok {
				found = w
			}
			f.wires[s] = found
		}
		return append(way, found...), len(found) > 0
	}
}

// proxy gives the first NIC of the source's host on a rail, and the GPU that it serves.
func (f *finder) proxy(rail int16, l lane) (nic, gpu topo.NodeID) {
	nic, gpu = topo.None, topo.None
	f.nics(f.a, func(n topo.NodeID) {
		if nic == topo.None && f.g.Nodes[n].Rail == rail && f.in(n, l) && f.g.Near(n) != topo.None {
			nic, gpu = n, f.g.Near(n)
		}
	})
	return nic, gpu
}

// proxied reaches the NIC on the destination's rail over the accelerators'
// network, so that the fabric need not cross rails.
func (f *finder) proxied(s span, several bool) {
	rail := f.g.Nodes[s.in].Rail
	if f.kind(f.a) != topo.GPU || f.sameHost() || rail == topo.None || f.g.Nodes[s.out].Rail == rail {
		return
	}
	nic, proxy := f.proxy(rail, s.lane)
	if proxy == topo.None || proxy == f.a {
		return
	}
	first, ok := f.own(f.a, proxy, nil)
	if !ok {
		return
	}
	s.out = nic
	rest, ok := f.join(f.hostLeg(proxy, nic), f.fabricLeg(s), f.hostLeg(s.in, f.b))
	if !ok {
		return
	}
	detail := f.detail(nic, s.in, s.lane, several) + " by " + f.g.Nodes[proxy].Name
	f.add(Path{Mechanism: RDMAPXN, Detail: detail, Count: f.equalCost(s)}, []leg{first, rest},
		append(remote(), Term{"flag seen by the proxy", flag})...)
}

// parallel splits bytes evenly over several networks.
func (f *finder) parallel(planes []leg, widths []uint64) {
	p := Path{Mechanism: RDMAPlanes, Detail: fmt.Sprintf("%d at once", len(planes)), Count: 1}
	var all leg
	for i, plane := range planes {
		p.Count = times64(p.Count, widths[i])
		for _, u := range plane {
			u.Share /= float32(len(planes))
			all = append(all, u)
		}
	}
	f.add(p, []leg{all}, remote()...)
}

// sockets copies into host memory, through the kernel and the NIC, and the same
// back at the other end.
func (f *finder) sockets(s span, several bool) {
	if f.sameHost() || !s.whole() || f.endsAtNIC() {
		return
	}
	here, there := f.g.CPUOf(f.a), f.g.CPUOf(f.b)
	if here == topo.None || there == topo.None {
		return
	}
	up, ok := f.g.Inside(f.a, here, nil)
	down, also := f.g.Inside(there, f.b, nil)
	if !ok || !also {
		return
	}
	wire, ok := f.join(f.hostLeg(here, s.out), f.fabricLeg(s), f.hostLeg(s.in, there))
	if !ok {
		return
	}
	p := Path{Mechanism: Sockets, Count: f.equalCost(s)}
	if several {
		p.Detail = f.detail(s.out, s.in, s.lane, true)
	}
	f.add(p, []leg{up, wire, down}, Term{"kernel, both sides", 2 * kernel})
}

// loopback is a socket between two processes of one host.
func (f *finder) loopback() {
	if f.kind(f.a) == topo.NIC || f.kind(f.b) == topo.NIC {
		return
	}
	cpu := f.g.CPUOf(f.a)
	if cpu == topo.None {
		return
	}
	up, ok := f.g.Inside(f.a, cpu, nil)
	down, also := f.g.Inside(cpu, f.b, nil)
	if ok && also && len(up)+len(down) > 0 {
		f.add(Path{Mechanism: Sockets, Detail: "loopback"}, []leg{up, down}, Term{"kernel, both sides", 2 * kernel})
	}
}
