package probe

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// nvlinkTable counts, for every GPU and what its links lead to, how many links
// there are and of which generation. GPUs see one another's addresses; an
// address that is no GPU's is an NVSwitch, or the machine hides it.
type nvlinkTable map[nvlinkEnd]int

type nvlinkEnd struct {
	gpu  topo.NodeID
	peer string
	gen  uint32
}

func (t nvlinkTable) add(gpu topo.NodeID, peer string, gen uint32) { t[nvlinkEnd{gpu, peer, gen}]++ }

// wire turns the table into links: one between each pair of GPUs (both ends
// report it, one is kept) and one between each GPU and each switch.
func (p *prober) wire(t nvlinkTable, gpus map[string]topo.NodeID) {
	ends := slices.SortedFunc(maps.Keys(t), func(a, b nvlinkEnd) int {
		return cmp.Or(cmp.Compare(a.gpu, b.gpu), cmp.Compare(a.peer, b.peer), cmp.Compare(a.gen, b.gen))
	})
	switches := map[string]topo.NodeID{}
	for _, e := range ends {
		class := p.class(fmt.Sprintf("nvlink%d", e.gen), topo.NVLink, 0, 25*unit.GBps)
		far, direct := gpus[e.peer]
		if direct && far < e.gpu {
			continue
		}
		if !direct {
			var ok bool
			if far, ok = switches[e.peer]; !ok {
				n := topo.Part(topo.NVSwitch, p.host, p.next("nvs"))
				n.Tier = 1
				far = p.b.Node(n)
				switches[e.peer] = far
				p.b.Attr(far, topo.Attrs{"pci.busid": e.peer})
			}
		}
		p.b.Link(topo.Link{A: e.gpu, B: far, Class: class, Count: uint16(t[e])})
	}
}
