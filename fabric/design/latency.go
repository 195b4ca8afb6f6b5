package design

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/topo/paths"
	"github.com/weft-fabric/weft/model/unit"
)

// Latency is what the first byte of a message meets on the longest path: the
// same terms and the same sum as package model/topo/paths gives for these two ends.
type Latency struct {
	From   string        `json:"from"`
	To     string        `json:"to"`
	Terms  []LatencyTerm `json:"terms"`
	Total  float64       `json:"total_us"` // of Terms
	Beyond []LatencyTerm `json:"beyond"`   // what may come on top
}

// LatencyTerm is one part of the budget.
type LatencyTerm struct {
	Name   string  `json:"name"`
	Micros float64 `json:"us"`
	How    string  `json:"how,omitempty"`
}

// packet is the frame that is sent once over the slowest link while switches cut through: InfiniBand's largest MTU.
const packet = 4 * unit.KiB

// software is what the measured floor of a two-node NCCL all-reduce over
// InfiniBand, 46 us for small messages, leaves after two crossings of one
// switch between two H100 hosts, about 3 us each.
const software = 40.0

// latency adds up the longest path, GPU to GPU where there are GPUs: of those
// with the most switches the slowest, since hosts differ inside. It settles which
// pair that is.
func (v *view) latency(c *catalog.Catalog, p *Paths) Latency {
	var worst Latency
	for _, models := range slices.SortedFunc(maps.Keys(p.longest), func(a, b [2]string) int {
		return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1]))
	}) {
		pair := p.longest[models]
		if l := v.between(c, pair[0], pair[1]); l.Total > worst.Total {
			worst = l
			p.WorstFrom, p.WorstTo = v.g.NodeName(pair[0]), v.g.NodeName(pair[1])
		}
	}
	return worst
}

// between adds up the path between the accelerators at two NICs, or the NICs themselves.
func (v *view) between(c *catalog.Catalog, a, b topo.NodeID) Latency {
	g := v.g
	var l Latency
	if g.Near(a) != topo.None && g.Near(b) != topo.None && g.Nodes[a].Kind == topo.NIC {
		a, b = g.Near(a), g.Near(b)
	}
	found, err := paths.Between(g, a, b, c)
	if err != nil {
		return l
	}
	path := plainest(found)
	l.From, l.To = g.NodeName(a), g.NodeName(b)
	for _, t := range path.Terms {
		l.Terms = append(l.Terms, LatencyTerm{Name: t.What, Micros: t.Time.Microseconds()})
	}
	l.Total = path.Latency.Microseconds()
	if path.Rate > 0 {
		l.Beyond = append(l.Beyond, LatencyTerm{"one packet", packet.Over(path.Rate).Microseconds(),
			fmt.Sprintf("%s sent once at %s; switches cut through", packet, path.Rate)})
	}
	if path.Mechanism == paths.RDMA {
		l.Beyond = append(l.Beyond, LatencyTerm{"collective library", software,
			"the measured 46 us floor of a two-node NCCL all-reduce, less its two crossings of the network"})
	}
	l.Beyond = append(l.Beyond, v.queueing(path.Rate))
	return l
}

// plainest picks the path that a flow takes without help from other GPUs or the
// kernel: RDMA through the ends' own NICs, or the accelerators' own network.
func plainest(found []paths.Path) *paths.Path {
	for _, want := range []paths.Mechanism{paths.RDMA, paths.ICI, paths.NVSwitch, paths.NVLink, paths.XGMI} {
		for i := range found {
			if found[i].Mechanism == want {
				return &found[i]
			}
		}
	}
	return &found[0]
}

// queueing is an incast computed: every other port of the fullest leaf sends
// 64 KiB to one port at once.
func (v *view) queueing(rate unit.Rate) LatencyTerm {
	ports := map[int32]int{}
	full := 0
	for _, e := range v.ends {
		ports[e.at] += int(e.count)
		full = max(full, ports[e.at])
	}
	if v.direct || full < 2 || rate <= 0 {
		return LatencyTerm{"queueing", 0, "no switch to queue in"}
	}
	burst := unit.Bytes(full-1) * 64 * unit.KiB
	return LatencyTerm{"queueing, worst", burst.Over(rate).Microseconds(),
		fmt.Sprintf("64 KiB from each of %s of one leaf into another at once; 0 without congestion", plural(full-1, "port"))}
}
