package tune

import (
	"fmt"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/topo/rings"
)

// relayed fills in the rings of GPUs of which some have NVLinks to one other only,
// so that no cycle of NVLinks passes all of them. NCCL goes there and back through
// that one (its path NVB):
//
//	3 ── 2        rings pass 0, 1, 2, 3; at 0 they turn off to 4 and come back,
//	│ ╳  │        as many of them as 4 has links to 0
//	0 ── 1
//	║
//	4
//
// It reports false where a cycle exists, or where NVLink does not join them all.
// What passing through a GPU costs is not in it: on five V100 rings so reach 45
// GB/s by this count, and 37 were measured. NCCL keeps the buffer of such a hop in
// the memory of the GPU between, so the receiver reads it over NVLink, where all
// other hops are writes; at what rate, no public figure says. The interval of an
// answer is therefore that of a machine that nobody measured.
func (f *facts) relayed(g *topo.Graph, group []topo.NodeID, c *catalog.Catalog) (bool, error) {
	links := func(a, b topo.NodeID) (count int) {
		for _, e := range g.Edges(a) {
			if e.Peer == b && g.Class(e.Link).Kind == topo.NVLink {
				count += int(g.Links[e.Link].Count)
			}
		}
		return count
	}
	var core, ends []topo.NodeID
	most := maxChannels
	for _, n := range group {
		peers, only := 0, 0
		for _, m := range group {
			if k := links(n, m); m != n && k > 0 {
				peers, only = peers+1, k
			}
		}
		switch peers {
		case 0:
			return false, nil
		case 1:
			ends = append(ends, n)
			most = min(most, only)
		default:
			core = append(core, n)
		}
	}
	if len(ends) == 0 || len(core) < 2 {
		return false, nil
	}
	found, err := rings.Search(g, core, c, rings.Options{Budget: 400_000})
	if err != nil {
		return false, err
	}
	if found.Medium != rings.NVLink || len(found.Rings) == 0 {
		return false, nil
	}
	f.medium, f.path = overNVLink, pathNVB
	f.rings, f.perRing = min(len(found.Rings), most), nvlinkSpeed(f.compute)
	f.total = float64(f.rings) * f.perRing
	f.wire = float64(found.Rings[0].Rate) / 1e9 * float64(f.rings)
	f.efficiency = 1
	for i, u := range found.Rings[0].Uses {
		if e := efficiencyOf(c, g.Class(u.Link).Gen); i == 0 || e < f.efficiency {
			f.efficiency = e
		}
	}
	in := g.Injection(group[0])
	f.full = float64(max(in.Accelerator, in.PCIe)) / 1e9
	f.pair = pairLoad(g, group)
	f.why = fmt.Sprintf("%s has NVLinks to one other GPU only, and %d rings pass it there and back", g.NodeName(ends[0]), f.rings)
	return true, nil
}
