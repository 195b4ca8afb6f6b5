package tune

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/topo/rings"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/cost"
)

// Explain answers for one collective, in sentences with figures: what runs and
// why, what bounds it, why bus bandwidth is not wire rate, why it may exceed the
// NICs, and at which sizes the choice changes.
func (m *NCCL) Explain(op sched.Collective, bytes unit.Bytes) []string {
	p := m.Predict(op, bytes)
	if p.Excluded {
		return []string{p.Reason + "."}
	}
	text := []string{fmt.Sprintf("%s of %s over %s: NCCL runs %s with %s on %d channels and takes %s, %s algorithm and %s bus bandwidth.",
		p.Op, max(bytes, 0), m.where(), p.Algo, p.Proto, p.Channels, p.Time, p.AlgBW, p.BusBW)}
	text = append(text, m.limitText(p))
	text = append(text, m.WhyChoice(op, bytes)...)
	if op == sched.AllReduce && m.f.nodes > 1 {
		text = append(text, m.WhyTreeOrRing(bytes)...)
	}
	text = append(text, m.WhyNotWireRate(op, bytes)...)
	text = append(text, m.WhyAboveNIC(op, bytes)...)
	if p.Error > 0 {
		text = append(text, fmt.Sprintf("The nearest measured point is %s; predictions there are typically off by %.0f%%.",
			p.Nearest, 100*p.Error))
	}
	return text
}

func (m *NCCL) where() string {
	if m.f.nodes == 1 {
		return fmt.Sprintf("%d GPUs of one node", m.f.ranks)
	}
	return fmt.Sprintf("%d GPUs on %d nodes", m.f.ranks, m.f.nodes)
}

// limitText says in words what Choice.Limit names.
func (m *NCCL) limitText(p Prediction) string {
	f := m.f
	switch p.Limit {
	case "latency":
		return "Latency is the limit: launch and steps take most of the time, so faster links would change little."
	case "protocol":
		return "The protocol is the limit: LL sends a four-byte flag with every four bytes of data, so it uses at most half of the link rate."
	case "nic":
		return fmt.Sprintf("The NICs are the limit: one node has %.4g GB/s each way, and large messages reach %.0f%% of it.",
			f.nicWire(), 100*f.nicShare(fitted.Net[f.net()]))
	case "fabric":
		return "The fabric is the limit: some switches have fewer uplinks than this traffic needs, which NCCL does not consider."
	case "host":
		return fmt.Sprintf("The path through the CPUs is the limit: the GPUs are connected by %s, so every byte between PCIe trees goes through host memory; %s.",
			f.path, f.why)
	default:
		return fmt.Sprintf("The links inside the node are the limit: %s.", f.why)
	}
}

// WhyChoice compares the two best algorithms and protocols by their latency and
// bandwidth in NCCL's model, with the size at which they break even, and lists
// all sizes at which NCCL's choice changes.
func (m *NCCL) WhyChoice(op sched.Collective, bytes unit.Bytes) []string {
	if m.f.ranks == 1 || !tuned(op) {
		return []string{"NCCL has no choice to make: " + m.Choose(op, bytes).Reason + "."}
	}
	size := max(float64(bytes), 0)
	a, p, us := m.pick(op, size)
	if a < 0 {
		return []string{"Every algorithm and protocol is excluded."}
	}
	text := []string{fmt.Sprintf("NCCL's own model estimates %s for %s %s: %s of latency, then %s at %.4g GB/s.",
		cost.Span(us), algoNames[a], protoNames[p], cost.Span(m.latency(op, a, p)), unit.Bytes(size), m.bandwidth(op, a, p))}
	if b, q, other := m.rival(op, a, size); b >= 0 {
		text = append(text, fmt.Sprintf("For the runner-up, %s with %s, it estimates %s: %s of latency, then %.4g GB/s. %s",
			algoNames[b], protoNames[q], cost.Span(other), cost.Span(m.latency(op, b, q)), m.bandwidth(op, b, q), m.tradeText(op, a, p, b, q)))
	}
	var parts []string
	for i, t := range m.Turns(op) {
		if i == 0 {
			parts = append(parts, t.Name)
		} else {
			parts = append(parts, fmt.Sprintf("%s from %s", t.Name, t.From))
		}
	}
	if len(parts) == 1 {
		return append(text, fmt.Sprintf("NCCL chooses %s at every size.", parts[0]))
	}
	return append(text, fmt.Sprintf("Choice by size: %s.", strings.Join(parts, ", ")))
}

// rival is the best choice of another algorithm, or, where there is none, of
// another protocol.
func (m *NCCL) rival(op sched.Collective, not algorithm, bytes float64) (a algorithm, p protocol, us float64) {
	a, p, us = -1, -1, math.Inf(1)
	for i := range algorithms {
		for j := range protocols {
			if i == not || m.why(op, i, j) != "" {
				continue
			}
			if t := m.own(op, i, j, bytes); t < us {
				a, p, us = i, j, t
			}
		}
	}
	return a, p, us
}

// tradeText says how two combinations trade latency for bandwidth.
func (m *NCCL) tradeText(op sched.Collective, a algorithm, p protocol, b algorithm, q protocol) string {
	la, ba, lb, bb := m.latency(op, a, p), m.bandwidth(op, a, p), m.latency(op, b, q), m.bandwidth(op, b, q)
	switch {
	case la <= lb && ba >= bb:
		return fmt.Sprintf("%s is better in both.", algoNames[a])
	case la >= lb && ba <= bb:
		return fmt.Sprintf("%s is worse in both, but NCCL's size corrections favour it.", algoNames[a])
	}
	even := unit.Bytes((lb - la) / (1/ba - 1/bb) * 1000)
	quick, wide := algoNames[a], algoNames[b]
	if la > lb {
		quick, wide = wide, quick
	}
	return fmt.Sprintf("%s has lower latency, %s has more bandwidth. They break even at %s, before NCCL's size corrections.",
		quick, wide, even)
}

// WhyTreeOrRing says from which size an all-reduce is better off with a ring
// than with a tree, in NCCL's model and by the measured constants, and why: steps
// against bytes.
func (m *NCCL) WhyTreeOrRing(bytes unit.Bytes) []string {
	const op = sched.AllReduce
	f := m.f
	if f.ranks < 2 {
		return nil
	}
	text := []string{fmt.Sprintf("A ring of %d ranks takes %d steps and keeps every link busy in each of them.",
		f.ranks, int(steps(op, f.ranks)))}
	if f.nodes > 1 {
		_, levels := f.hops(op, tree, f.nodes)
		_, hops := f.hops(op, ring, f.nodes)
		text = append(text, fmt.Sprintf("A small message crosses the network %.0f times in the ring and %.0f times in the tree, up and down.",
			hops, levels))
	} else {
		text = append(text,
			fmt.Sprintf("Inside one node NCCL's tree is a chain of %d GPUs, up and down. That is as many steps as the ring, so it saves nothing.",
				f.perNode))
	}
	best := func(a algorithm, b unit.Bytes, time func(p protocol) float64) (us float64, p protocol) {
		us = math.Inf(1)
		for q := range protocols {
			if m.why(op, a, q) != "" {
				continue
			}
			if t := time(q); t < us {
				us, p = t, q
			}
		}
		return us, p
	}
	own := func(a algorithm, b unit.Bytes) float64 {
		us, _ := best(a, b, func(p protocol) float64 { return m.own(op, a, p, float64(b)) })
		return us
	}
	measured := func(a algorithm, b unit.Bytes) float64 {
		us, _ := best(a, b, func(p protocol) float64 { us, _ := m.measured(op, a, p, float64(b)); return us })
		return us
	}
	for _, model := range []struct {
		who, verb string
		time      func(algorithm, unit.Bytes) float64
	}{{"Of these two, NCCL", "chooses", own}, {"By the measured constants, it", "should choose", measured}} {
		from := unit.Bytes(-1)
		for b := unit.Bytes(1 << 40); b >= 1; b /= 2 { // the last size at which the tree is ahead
			if model.time(tree, b) < model.time(ring, b) {
				from = b
				break
			}
		}
		switch {
		case from < 0:
			text = append(text, fmt.Sprintf("%s %s the ring at every size.", model.who, model.verb))
		case from == 1<<40:
			text = append(text, fmt.Sprintf("%s %s the tree at every size.", model.who, model.verb))
		default:
			lo, hi := from, 2*from
			for hi-lo > 1 {
				if mid := lo + (hi-lo)/2; model.time(tree, mid) < model.time(ring, mid) {
					lo = mid
				} else {
					hi = mid
				}
			}
			text = append(text, fmt.Sprintf("%s %s the ring from %s up and the tree below.", model.who, model.verb, hi))
		}
	}
	bytes = max(bytes, 0)
	_, p := best(tree, bytes, func(p protocol) float64 { return m.own(op, tree, p, float64(bytes)) })
	_, q := best(ring, bytes, func(p protocol) float64 { return m.own(op, ring, p, float64(bytes)) })
	return append(text, fmt.Sprintf("At %s NCCL's model has %s and %.4g GB/s for the tree with %s, and %s and %.4g GB/s for the ring with %s.",
		bytes,
		cost.Span(m.latency(op, tree, p)), m.bandwidth(op, tree, p), protoNames[p], cost.Span(m.latency(op, ring, q)), m.bandwidth(op, ring, q),
		protoNames[q]))
}

// Turns lists NCCL's choice from each size on, to the byte.
func (m *NCCL) Turns(op sched.Collective) []cost.Turn {
	name := func(b unit.Bytes) string {
		c := m.Choose(op, b)
		return c.Algo + " " + c.Proto
	}
	list := []cost.Turn{{From: 1, Name: name(1)}}
	last := unit.Bytes(1)
	for b := unit.Bytes(2); b <= 1<<40; b *= 2 {
		for from := last; name(b) != list[len(list)-1].Name; {
			current := list[len(list)-1].Name
			lo, hi := from, b
			for hi-lo > 1 {
				if mid := lo + (hi-lo)/2; name(mid) == current {
					lo = mid
				} else {
					hi = mid
				}
			}
			list = append(list, cost.Turn{From: hi, Name: name(hi)})
			from = hi
		}
		last = b
	}
	return list
}

// WhyNotWireRate takes the bus bandwidth apart: from the wire to what is left.
func (m *NCCL) WhyNotWireRate(op sched.Collective, bytes unit.Bytes) []string {
	f := m.f
	if f.ranks == 1 {
		return nil
	}
	p := m.Predict(op, bytes)
	if p.Excluded {
		return nil
	}
	k := &fitted.Class[f.class()]
	n := f.ranks
	wire, what := f.wire, "a ring's links inside a node"
	if f.medium == alone || f.nodes > 1 && f.nicWire() < wire {
		wire, what = f.nicWire(), "a node's NICs"
	}
	text := []string{fmt.Sprintf("Bus bandwidth is %s, %.0f%% of the %.4g GB/s each way that %s carry.",
		p.BusBW, float64(p.BusBW)/wire/1e7, wire, what)}
	if factor := op.BusFactor(n); factor != 1 {
		text = append(text,
			fmt.Sprintf("It counts %.4g bytes on the wire per buffer byte, as a ring of %d sends; algorithm bandwidth is %s.",
				factor, n, p.AlgBW))
	}
	a, pr := indices(p.Choice)
	if f.nodes == 1 {
		l := k.law(a, pr)
		hops, micros := k.inside(f, op, a, float64(max(bytes, 0)))
		lat := l.Floor + l.Hop*hops
		text = append(text,
			fmt.Sprintf("Packet headers and flow control leave %.0f%% of the wire rate for large copies between GPUs (measured for this generation), and %s leaves %.0f%% of that.",
				100*f.efficiency, protoText(pr, a), 100*min(l.Share, 1)))
		if a == ring && k.extra(op, f) > 0.01 {
			s := steps(op, n)
			text = append(text,
				fmt.Sprintf("Besides its %.0f steps, a ring copies its own blocks, worth %.2g more steps: with %d GPUs, %.0f%% of the transfer time.",
					s, k.extra(op, f), n, 100*k.extra(op, f)/(s+k.extra(op, f))))
		}
		if w := micros / l.Share; w > 0 {
			text = append(text, fmt.Sprintf("Latency takes %s and the bytes take %s.", cost.Span(lat), cost.Span(w)))
		}
		return text
	}
	net := fitted.Net[f.net()]
	if a == nvlsTree || a == nvls {
		text = append(text,
			fmt.Sprintf("Large messages reach %.0f%% of the NICs' rate; reduction in the NVLink switches, %.0f%% of that of plain copies.",
				100*f.nicShare(net), 100*k.NVLS.Share))
	} else {
		text = append(text, fmt.Sprintf("Large messages reach %.0f%% of the NICs' rate, and %s leaves %.0f%% of that.",
			100*f.nicShare(net), protoText(pr, a), 100*protoShare(k, pr)))
	}
	in, out := f.hops(op, a, f.nodes)
	return append(text,
		fmt.Sprintf("The longest path has %.0f steps of %.2g us inside nodes and %.0f of %.3g us between nodes; only large buffers hide that.",
			in, k.LL.Hop, out, net.Hop))
}

func protoShare(k *constants, p protocol) float64 {
	switch p {
	case ll:
		return min(1, k.LL.Share/k.Simple.Share)
	case ll128:
		return 120.0 / 128
	default:
		return 1
	}
}

func protoText(p protocol, a algorithm) string {
	switch {
	case a == nvls || a == nvlsTree:
		return "reduction in the switch"
	case p == ll:
		return "LL, which sends a flag with every four bytes,"
	case p == ll128:
		return "LL128, which sends 120 bytes of data in 128,"
	default:
		return "Simple"
	}
}

// WhyAboveNIC explains bus bandwidth above the NICs' rate on two and three
// nodes; nil where it does not apply.
func (m *NCCL) WhyAboveNIC(op sched.Collective, bytes unit.Bytes) []string {
	f := m.f
	if f.nodes < 2 || op != sched.AllReduce {
		return nil
	}
	p := m.Predict(op, bytes)
	a, _ := indices(p.Choice)
	if a != tree && a != nvlsTree {
		return nil
	}
	share := f.crossing(op, a, 1)
	nics := f.nicWire()
	bound := nics / share * op.BusFactor(f.ranks)
	text := []string{fmt.Sprintf("A ring would send %.4g bytes through a node's NICs per buffer byte, and bus bandwidth assumes that figure for every algorithm.",
		op.BusFactor(f.ranks))}
	switch {
	case f.nodes == 2:
		text = append(text,
			fmt.Sprintf("With two nodes, two trees share the work: each node sends half of the data up one tree and the sum of the other half down the other, %.4g bytes per buffer byte. So bus bandwidth can reach %.4g GB/s with NICs of %.4g GB/s, up to twice their rate.",
				share, bound, nics))
	case f.nodes == 3:
		text = append(text,
			fmt.Sprintf("With three nodes, the middle one of a tree sends %.4g bytes per buffer byte, so bus bandwidth can reach %.4g GB/s with NICs of %.4g GB/s, 4/3 of their rate.",
				share, bound, nics))
	default:
		text = append(text,
			fmt.Sprintf("From four nodes up, an inner node of the trees sends %.4g bytes per buffer byte, as much as in a ring, so bus bandwidth stays below the NICs' %.4g GB/s.",
				share, nics))
	}
	if float64(p.BusBW)/1e9 > nics {
		text = append(text, fmt.Sprintf("Here it is %s, above the NICs' rate, limited by %s.", p.BusBW, p.Limit))
	}
	return text
}

// WhySlowSet explains what a set of GPUs of one host reaches: the rings its
// links allow, which pairs have no link, what is left without, and a set of the
// same size that does better. It looks at no more than some two hundred sets.
func WhySlowSet(g *topo.Graph, gpus []topo.NodeID, c *catalog.Catalog) ([]string, error) {
	found, err := rings.Search(g, gpus, c, rings.Options{Budget: 200_000})
	if err != nil {
		return nil, err
	}
	m, err := NewNCCL(g, gpus, c, NCCLOptions{})
	if err != nil {
		return nil, err
	}
	f := m.f
	names := func(set []topo.NodeID) string {
		var list []string
		for _, n := range set {
			list = append(list, g.Nodes[n].Name)
		}
		return strings.Join(list, " ")
	}
	p := m.Predict(sched.AllReduce, unit.GiB)
	var text []string
	switch {
	case f.switched:
		text = append(text, fmt.Sprintf("%s communicate through NVLink switches, so every set of this size is equally fast: %s for 1 GiB.",
			names(found.GPUs), p.BusBW))
		return text, nil
	case f.medium == overNVLink:
		text = append(text, fmt.Sprintf("Over NVLink, %s have %d rings of %.4g GB/s: %s for an all-reduce of 1 GiB; %s.",
			names(found.GPUs), f.rings, f.wire/float64(f.rings), p.BusBW, f.why))
	default:
		var missing []string
		for i, a := range found.GPUs {
			for _, b := range found.GPUs[:i] {
				if g.Connection(a, b).Via == 0 {
					missing = append(missing, g.Nodes[b].Name+"-"+g.Nodes[a].Name)
				}
			}
		}
		text = append(text,
			fmt.Sprintf("No NVLink connects %s, so no NVLink ring passes through all of %s. NCCL falls back to PCIe, where they are connected by %s, and reaches %s for an all-reduce of 1 GiB.",
				strings.Join(missing, ", "), names(found.GPUs), f.path, p.BusBW))
		if len(found.Trees) > 0 && found.Medium == rings.NVLink {
			text = append(text,
				fmt.Sprintf("A tree needs no closed ring, and %d would fit on NVLink, but NCCL does not build them for such a set.",
					len(found.Trees)))
		}
	}
	if set, best := m.better(g, c, found.GPUs); set != nil {
		text = append(text, fmt.Sprintf("%s would reach %s, %.3g times as much: prefer those if you need %d GPUs.",
			names(set), best.BusBW, float64(best.BusBW)/float64(p.BusBW), len(set)))
	}
	return text, nil
}

// better searches sets of the same size in the same host for a faster one.
func (m *NCCL) better(g *topo.Graph, c *catalog.Catalog, set []topo.NodeID) ([]topo.NodeID, *Prediction) {
	host := g.Nodes[set[0]].Host
	if host == topo.None {
		return nil, nil
	}
	var all []topo.NodeID
	for i, n := range g.HostNodes(host) {
		if n.Kind == topo.GPU {
			all = append(all, g.Hosts[host].First+topo.NodeID(i))
		}
	}
	mine := m.Predict(sched.AllReduce, unit.GiB)
	var best []topo.NodeID
	var bestP *Prediction
	seen := 0
	var walk func(from int, picked []topo.NodeID)
	walk = func(from int, picked []topo.NodeID) {
		if len(picked) == len(set) {
			seen++
			other, err := NewNCCL(g, picked, c, NCCLOptions{})
			if err != nil {
				return
			}
			p := other.Predict(sched.AllReduce, unit.GiB)
			if p.BusBW > mine.BusBW*1.05 && (bestP == nil || p.BusBW > bestP.BusBW*1.001) {
				best, bestP = slices.Clone(picked), &p
			}
			return
		}
		for i := from; i < len(all) && seen < 200; i++ {
			walk(i+1, append(picked, all[i]))
		}
	}
	walk(0, nil)
	return best, bestP
}
