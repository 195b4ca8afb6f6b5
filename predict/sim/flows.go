package sim

import (
	"math"
	"slices"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// Flows is transfers between nodes that begin whenever somebody says so: they share links max-min fairly, as the
// messages of programs do. The caller keeps the clock:
//
//	Start(now, ...) ─► Next() says when the first of them is through ─► Advance(then) lists what is
type Flows struct {
	net    *network
	share  sharing
	wires  map[wire]int32
	names  []wire // by resource
	busy   []float64
	routes map[[2]topo.NodeID]routed
	list   []transfer
	active []int32 // in list
}

type routed struct {
	loads   []load
	latency unit.Time
}

type transfer struct {
	flow    int32
	left    float64 // bytes, at since
	since   unit.Time
	began   unit.Time
	latency unit.Time
}

// NewFlows prepares a graph for transfers.
func NewFlows(g *topo.Graph, o Options) (*Flows, error) {
	net, err := networkOf(g, o)
	if err != nil {
		return nil, err
	}
	return &Flows{net: net, wires: map[wire]int32{}, routes: map[[2]topo.NodeID]routed{}}, nil
}

// Start begins a transfer of bytes at a time that is not before any that was told, and gives its number.
func (f *Flows) Start(at unit.Time, from, to topo.NodeID, bytes float64) (int, error) {
	way, known := f.routes[[2]topo.NodeID{from, to}]
	if !known {
		var p path
		if from != to {
			if err := f.net.route(from, to, 0, &p); err != nil {
				return 0, err
			}
		}
		way = routed{f.loads(append(slices.Clip(p.uses), p.mid...)), p.latency}
		if p.net {
			way.latency += f.net.o.Costs.Net
		}
		f.routes[[2]topo.NodeID{from, to}] = way
	}
	f.settle(at)
	x := transfer{flow: f.share.flow(slices.Clone(way.loads)), left: max(bytes, 1), since: at, began: at, latency: way.latency}
	f.list = append(f.list, x)
	f.active = append(f.active, int32(len(f.list)-1))
	f.share.start(x.flow)
	return len(f.list) - 1, nil
}

// loads gives the resources of a way, each once. A way without links never fills.
func (f *Flows) loads(uses []use) []load {
	if len(uses) == 0 {
		uses = []use{{noWire - wire(len(f.names)), whole}}
	}
	var out []load
next:
	for _, u := range uses {
		res, known := f.wires[u.wire]
		if !known {
			capacity := int64(maxRate)
			if u.wire >= 0 {
				capacity = f.net.capacity(u.wire)
			}
			res = f.share.resource(capacity)
			f.wires[u.wire] = res
			f.names, f.busy = append(f.names, u.wire), append(f.busy, 0)
		}
		for i := range out {
			if out[i].res == res {
				out[i].share += int64(u.share)
				continue next
			}
		}
		out = append(out, load{res: res, share: int64(u.share)})
	}
	return out
}

// settle works out what is left of every transfer at a time, and their rates from there on.
func (f *Flows) settle(at unit.Time) {
	f.rates()
	for _, i := range f.active {
		x := &f.list[i]
		s := &f.share.flows[x.flow]
		x.left -= float64(s.rate) * float64(at-x.since) / 1e12
		x.since = at
	}
}

func (f *Flows) rates() {
	if len(f.share.dirty) > 0 {
		f.share.solve()
	}
}

// Next says when the first transfer will be through if none begins before; false if there is none.
func (f *Flows) Next() (unit.Time, bool) {
	f.rates()
	first := unit.Time(math.MaxInt64)
	for _, i := range f.active {
		x := &f.list[i]
		first = min(first, x.since+max(1, span(max(x.left, 0), f.share.flows[x.flow].rate)))
	}
	return first, len(f.active) > 0
}

// Advance lets time pass up to what Next said, or less, and lists the transfers that are through by then: their last byte
// has left. It arrives a latency later (Latency).
func (f *Flows) Advance(to unit.Time) []int {
	f.settle(to)
	var done []int
	f.active = slices.DeleteFunc(f.active, func(i int32) bool {
		x := &f.list[i]
		if x.left > .5 {
			return false
		}
		s := &f.share.flows[x.flow]
		f.busy[s.limit] += float64(to - x.began)
		f.share.stop(x.flow)
		done = append(done, int(i))
		return true
	})
	return done
}

// Latency is the way of a transfer's last byte.
func (f *Flows) Latency(id int) unit.Time { return f.list[id].latency }

// Limit names the link that held transfers back for the longest, all of them together; empty if there was none.
func (f *Flows) Limit() string {
	best := -1
	for i, b := range f.busy {
		if b > 0 && f.names[i] >= 0 && (best < 0 || b > f.busy[best]) {
			best = i
		}
	}
	if best < 0 {
		return ""
	}
	return f.net.name(f.names[best])
}
