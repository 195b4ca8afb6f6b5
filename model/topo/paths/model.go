package paths

import (
	"fmt"
	"math"
	"slices"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// What the mechanisms cost beyond the links they use.
const (
	// flag is what it takes one GPU to see that another has written: NCCL's cost
	// model (2.30.7) takes 0.6 us for a hop over NVLink, of which a link is 0.25 us.
	flag = 350 * unit.Nanosecond
	// post is what it takes a host thread to hand a message to the NIC: NCCL's
	// cost model (2.30.7) takes 1 us, 2 us on AMD's CPUs.
	post = 1 * unit.Microsecond
	// kernel is one side's way through the socket layer: system calls, TCP, interrupt
	// and wake-up. The two sides make the 50 us that is common for TCP over 100 GbE,
	// against 1 to 2 us for RDMA.
	kernel = 25 * unit.Microsecond

	// rdmaShare is what RDMA reaches of a port's rate with large messages, on
	// InfiniBand and RoCE alike: 24 of 25 GB/s, 48 of 50 (NVIDIA GTC24 S62129).
	rdmaShare = 0.96
	// socketShare and socketRate are what NCCL reaches over sockets: 10 of the
	// 12.5 GB/s of 100 GbE (same source). Each byte is copied twice a side by the
	// CPU, so a faster port does not help much: the rate is taken for the ceiling.
	socketShare = 0.8
	socketRate  = 10 * unit.GBps

	// A chip that passes bytes on. PCIe switches: 100 to 150 ns by their data
	// sheets. NVSwitches are taken to be like them. Network switches come from
	// the catalogue; where the model is unknown, QM8790 and QM9700 (130 ns) stand
	// for InfiniBand and a Tomahawk-class chip for Ethernet.
	pexLatency        = 110 * unit.Nanosecond
	nvswitchLatency   = 100 * unit.Nanosecond
	infinibandLatency = 130 * unit.Nanosecond
	ethernetLatency   = 700 * unit.Nanosecond
	adapterLatency    = 130 * unit.Nanosecond
)

// efficiency is what is reached of a link's rate by a mechanism; 1 where nobody measured.
func (f *finder) efficiency(l topo.LinkID, m Mechanism) float64 {
	class := f.g.Class(l)
	e := f.c.Links[class.Gen].Efficiency
	switch {
	case class.Kind.Network() && m == Sockets:
		return socketShare
	case class.Kind.Network() && e <= socketShare: // unknown, or measured over sockets
		return rdmaShare
	case e > 0:
		return e
	}
	return 1
}

type way struct {
	link    topo.LinkID
	forward bool
}

// load adds up the shares of the bytes that pass each directed link.
func load(hops []topo.Use) map[way]float64 {
	sum := make(map[way]float64, len(hops))
	for _, u := range hops {
		sum[way{u.Link, u.Forward}] += float64(u.Share)
	}
	return sum
}

// stores fills in the rates of the legs, and of the kernel's copies on both
// sides of a socket, but for the slowest.
func (f *finder) stores(p *Path, legs []leg) {
	var rates []unit.Rate
	for _, l := range legs {
		if len(l) == 0 { // an end in host memory needs no copy out of a device
			continue
		}
		sum := load(l)
		var rate unit.Rate
		for i, u := range l {
			full := f.g.Rate(u.Link) / unit.Rate(sum[way{u.Link, u.Forward}]) * unit.Rate(f.efficiency(u.Link, p.Mechanism))
			if i == 0 || full < rate {
				rate = full
			}
		}
		rates = append(rates, rate)
	}
	if p.Mechanism == Sockets {
		rates = append(rates, socketRate, socketRate)
	}
	slices.Sort(rates)
	p.Stores = rates[1:]
}

// rate fills in what the hops carry: each directed link's rate over the share of
// the bytes that pass it, all passes added up.
func (f *finder) rate(p *Path) {
	load := load(p.Hops)
	worst := -1
	for i, u := range p.Hops {
		full := f.g.Rate(u.Link) / unit.Rate(load[way{u.Link, u.Forward}])
		if i == 0 || full < p.Rate {
			p.Rate = full
		}
		reached := full * unit.Rate(f.efficiency(u.Link, p.Mechanism))
		if i == 0 || reached < p.Expected*(1-1e-5) {
			p.Expected, worst = reached, i
		}
		crowd, who := f.crowd(u)
		if shared := reached / unit.Rate(crowd); i == 0 || shared < p.Loaded*(1-1e-5) {
			p.Loaded, p.Crowd = shared, who
		}
	}
	if p.Loaded >= p.Expected*(1-1e-5) {
		p.Loaded, p.Crowd = p.Expected, ""
	}
	p.Rate, p.Expected, p.Loaded = exact(p.Rate), exact(p.Expected), exact(p.Loaded)
	p.Limit = f.limit(p, p.Hops[worst])
	if p.Mechanism == Sockets {
		p.throttle(socketRate, "the CPU's copies between sockets and buffers")
	}
}

// throttle bounds a path by something other than its links. Where that is less than what a crowd on the links leaves,
// the crowd no longer matters.
func (p *Path) throttle(rate unit.Rate, why string) {
	if p.Expected <= rate {
		return
	}
	p.Expected, p.Limit = rate, why
	p.Loaded = min(p.Loaded, rate)
	if p.Loaded == rate {
		p.Crowd = ""
	}
}

// exact rounds to seven digits. Shares are single-precision numbers: a third of
// the bytes over a third of the links is not quite the whole rate.
func exact(r unit.Rate) unit.Rate {
	if r <= 0 {
		return r
	}
	step := math.Pow(10, math.Floor(math.Log10(float64(r)))-6)
	return unit.Rate(math.Round(float64(r)/step) * step)
}

// limit names a link, or the bundle it is part of, with its rate.
func (f *finder) limit(p *Path, u topo.Use) string {
	from, to := f.g.Links[u.Link].Ends(u.Forward)
	if u.Share > 0.999 {
		return fmt.Sprintf("%s (%s)", f.g.LinkName(u.Link), f.g.Classes[f.g.Links[u.Link].Class].Gen)
	}
	out, in := 0, 0
	for _, v := range p.Hops {
		x, y := f.g.Links[v.Link].Ends(v.Forward)
		if x == from {
			out += int(f.g.Links[v.Link].Count)
		}
		if y == to {
			in += int(f.g.Links[v.Link].Count)
		}
	}
	end, n := from, out
	if in > out {
		end, n = to, in
	}
	return fmt.Sprintf("the %d %s links of %s", n, f.g.Class(u.Link).Gen, f.g.NodeName(end))
}

// crowd says among how many a link is shared when every neighbour sends the same
// way: GPUs behind one PCIe uplink, or ports below a switch that has less
// bandwidth upwards than downwards.
func (f *finder) crowd(u topo.Use) (float64, string) {
	g := f.g
	from, to := g.Links[u.Link].Ends(u.Forward)
	switch class := g.Class(u.Link); {
	case class.Kind == topo.PCIe:
		low, high := from, to
		if f.above(from, to) {
			low, high = to, from
		}
		if g.Nodes[low].Kind != topo.PCIeSwitch {
			return 1, ""
		}
		if n := f.below(low, high); n > 1 {
			return float64(n), fmt.Sprintf("%d GPUs share %s", n, g.LinkName(u.Link))
		}
	case class.Kind.Network() && (g.Nodes[from].Kind == topo.NIC || g.Nodes[to].Kind == topo.NIC):
		nic := from
		if g.Nodes[to].Kind == topo.NIC {
			nic = to
		}
		if n := f.served(nic); n > 1 {
			return float64(n), fmt.Sprintf("%d GPUs share %s", n, g.NodeName(nic))
		}
	case class.Kind.Network() && g.Nodes[from].Kind == topo.Switch && g.Nodes[to].Kind == topo.Switch:
		low := from
		if g.Nodes[to].Tier < g.Nodes[from].Tier {
			low = to
		}
		var up, down unit.Rate
		for _, e := range g.Edges(low) {
			if g.Nodes[e.Peer].Tier > g.Nodes[low].Tier {
				up += g.Rate(e.Link)
			} else {
				down += g.Rate(e.Link)
			}
		}
		if up > 0 && down > up*1.001 {
			return float64(down / up), fmt.Sprintf("%s has %s down and %s up", g.NodeName(low), down, up)
		}
	}
	return 1, ""
}

// served counts the GPUs that use a NIC.
func (f *finder) served(nic topo.NodeID) int {
	h := f.g.Nodes[nic].Host
	if h == topo.None {
		return 0
	}
	n, first := 0, f.g.Hosts[h].First
	for i := range f.g.HostNodes(h) {
		if m := first + topo.NodeID(i); f.kind(m) == topo.GPU && f.g.Near(m) == nic {
			n++
		}
	}
	return n
}

// above reports whether the first of two joined nodes of a PCIe tree is the nearer to the root.
func (f *finder) above(a, b topo.NodeID) bool {
	if f.kind(b) != topo.PCIeSwitch {
		return f.kind(b) != topo.RootPort && f.kind(b) != topo.CPU
	}
	switch f.kind(a) {
	case topo.RootPort, topo.CPU:
		return true
	case topo.PCIeSwitch:
		for _, e := range f.g.Edges(a) { // the one whose other links lead to the root
			if e.Peer != b && f.g.Class(e.Link).Kind == topo.PCIe && f.above(e.Peer, a) {
				return true
			}
		}
	}
	return false
}

// below counts the GPUs of the PCIe subtree under a node; above is its parent.
func (f *finder) below(n, above topo.NodeID) int {
	count := 0
	for _, e := range f.g.Edges(n) {
		if e.Peer == above || f.g.Class(e.Link).Kind != topo.PCIe {
			continue
		}
		switch f.g.Nodes[e.Peer].Kind {
		case topo.GPU:
			count++
		case topo.PCIeSwitch:
			count += f.below(e.Peer, n)
		}
	}
	return count
}

// latency adds up what the first byte meets on its way: links, chips that pass
// it on, and what the mechanism costs besides. Where bytes part it follows the
// first way; the others are alike.
func (f *finder) latency(p *Path, extra ...Term) {
	type key struct {
		what string
		each unit.Time
	}
	var keys []key
	count := map[key]int{}
	meet := func(what string, each unit.Time) {
		if each == 0 {
			return
		}
		k := key{what, each}
		if count[k] == 0 {
			keys = append(keys, k)
		}
		count[k]++
	}
	at := p.From
	for _, u := range p.Hops {
		from, to := f.g.Links[u.Link].Ends(u.Forward)
		if from != at {
			continue
		}
		if from != p.From {
			what, each := f.passing(from, u.Link)
			meet(what, each)
		}
		what := f.g.Class(u.Link).Gen + " link"
		if m := f.g.Metres(u.Link); m > 0 {
			what = fmt.Sprintf("%s of %g m", what, m)
		}
		meet(what, f.g.LinkLatency(u.Link))
		at = to
	}
	for _, k := range keys {
		n := count[k]
		t := Term{What: k.what, Time: k.each * unit.Time(n)}
		if n > 1 {
			t.What = fmt.Sprintf("%d x %s", n, k.what)
		}
		p.Terms = append(p.Terms, t)
	}
	p.Terms = append(p.Terms, extra...)
	for _, t := range p.Terms {
		p.Latency += t.Time
	}
}

// passing is what a node takes to pass bytes on to a link.
func (f *finder) passing(n topo.NodeID, next topo.LinkID) (string, unit.Time) {
	node := &f.g.Nodes[n]
	switch node.Kind {
	case topo.PCIeSwitch:
		return "PCIe switch", pexLatency
	case topo.NVSwitch:
		return "NVSwitch", nvswitchLatency
	case topo.NIC:
		if t := f.c.NICs[node.Model].Latency; t > 0 {
			return node.Model, t
		}
		return "NIC", adapterLatency
	case topo.Switch:
		if t := f.c.Switches[node.Model].Latency; t > 0 {
			return node.Model, t
		}
		if f.g.Class(next).Kind == topo.InfiniBand {
			return "InfiniBand switch", infinibandLatency
		}
		return "Ethernet switch", ethernetLatency
	}
	return "", 0
}
