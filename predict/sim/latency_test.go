package sim

import (
	"testing"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
)

// TestCablesAreAsLongAsInPaths: the simulator counts the cables that 'topo paths' and
// the design report count, metre by metre.
func TestCablesAreAsLongAsInPaths(t *testing.T) {
	g := preset(t, "rail", map[string]int{"hosts": 1088, "tiers": 3})
	net, err := networkOf(g, Options{Catalog: catalog.Default()})
	if err != nil {
		t.Fatal(err)
	}
	var gpus []topo.NodeID
	g.Each(topo.GPU, func(id topo.NodeID, _ *topo.Node) { gpus = append(gpus, id) })
	last := len(gpus) - 8
	for range 2 { // the second time from what is remembered
		var p path
		if err := net.route(gpus[0], gpus[last], 0, &p); err != nil {
			t.Fatal(err)
		}
		way, err := g.Route(topo.Flow{From: gpus[0], To: gpus[last]}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var want unit.Time
		at := gpus[0]
		for _, u := range way {
			if at != gpus[0] {
				want += net.chip(at, g.Class(u.Link).Kind)
			}
			want += g.LinkLatency(u.Link)
			_, at = g.Links[u.Link].Ends(u.Forward)
		}
		if diff := p.latency - want; diff > unit.Nanosecond || diff < -unit.Nanosecond {
			t.Errorf("%s over %d links, the links and chips alone take %s", p.latency, len(way), want)
		}
	}
}
