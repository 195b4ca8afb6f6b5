package format

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
)

// NCCLView is what NCCL sees of a host's PCIe tree, up to the numbering of
// devices: two hosts with equal views get the same rings and the same choice of
// NICs. NCCL has no word for root ports, so NODE counts as PHB.
type NCCLView struct {
	GPUs, NICs int
	NUMA       []int       // GPUs on each CPU that has any, sorted
	Islands    []Island    // devices that reach each other without a CPU
	GPUPairs   []SpanCount // spans between GPUs over PCIe
	NICPairs   []SpanCount // spans between a GPU and a NIC
}

// Island is a set of devices below one PCIe switch, or a tree of them.
type Island struct {
	GPUs, NICs int
	GPULink    string // "pcie4 x16": the slowest link of a GPU in it
	NICLink    string
}

// SpanCount says how many pairs are so far apart.
type SpanCount struct {
	Span  topo.Span
	Pairs int
}

// ViewNCCL gives NCCL's view of a host.
func ViewNCCL(g *topo.Graph, h topo.HostID) NCCLView {
	gpus, nics := parts(g, h, topo.GPU), parts(g, h, topo.NIC)
	v := NCCLView{GPUs: len(gpus), NICs: len(nics)}
	perCPU := map[topo.NodeID]int{}
	var between, near [topo.SYS + 1]int
	for i, a := range gpus {
		perCPU[g.CPUOf(a)]++
		for _, b := range gpus[:i] {
			between[ncclSpan(g, a, b)]++
		}
		for _, n := range nics {
			near[ncclSpan(g, a, n)]++
		}
	}
	for _, n := range perCPU {
		v.NUMA = append(v.NUMA, n)
	}
	slices.Sort(v.NUMA)
	v.GPUPairs, v.NICPairs = spanCounts(between[:]), spanCounts(near[:])
	v.Islands = islands(g, slices.Concat(gpus, nics))
	return v
}

// islands gathers the devices that reach one another without passing a CPU, the largest islands first.
func islands(g *topo.Graph, devices []topo.NodeID) (list []Island) {
	taken := map[topo.NodeID]bool{}
	for _, first := range devices {
		if taken[first] {
			continue
		}
		var island Island
		for _, d := range devices {
			if taken[d] || d != first && ncclSpan(g, first, d) > topo.PXB {
				continue
			}
			taken[d] = true
			if g.Nodes[d].Kind == topo.GPU {
				island.GPUs++
				island.GPULink = slower(g, d, island.GPULink)
			} else {
				island.NICs++
				island.NICLink = slower(g, d, island.NICLink)
			}
		}
		list = append(list, island)
	}
	slices.SortFunc(list, func(x, y Island) int {
		return cmp.Or(-cmp.Compare(x.GPUs, y.GPUs), -cmp.Compare(x.NICs, y.NICs), strings.Compare(x.GPULink, y.GPULink),
			strings.Compare(x.NICLink, y.NICLink))
	})
	return list
}

func ncclSpan(g *topo.Graph, a, b topo.NodeID) topo.Span {
	if s := g.Span(a, b); s != topo.NODE {
		return s
	}
	return topo.PHB
}

func spanCounts(counts []int) []SpanCount {
	var list []SpanCount
	for s, n := range counts {
		if n > 0 {
			list = append(list, SpanCount{topo.Span(s), n})
		}
	}
	return list
}

// slower names the slower of a device's PCIe link and one seen before; names
// of PCIe classes sort by generation, and x16 is the only usual width.
func slower(g *topo.Graph, n topo.NodeID, before string) string {
	for _, e := range g.Edges(n) {
		if c := g.Class(e.Link); c.Kind == topo.PCIe {
			if name := fmt.Sprintf("%s x%d", c.Gen, c.Lanes); before == "" || name < before {
				return name
			}
		}
	}
	return before
}

// Layout is the part of a view that decides which GPUs use which NICs: for each
// island with GPUs, how many there are and whether a NIC is among them. Machines
// with the same layout get NCCL's channels in the same shape, though one may
// have more NICs or faster links in each island.
func (v NCCLView) Layout() string {
	var list []string
	for _, i := range v.Islands {
		switch {
		case i.GPUs > 0 && i.NICs > 0:
			list = append(list, fmt.Sprintf("%d GPUs with NIC", i.GPUs))
		case i.GPUs > 0:
			list = append(list, fmt.Sprintf("%d GPUs alone", i.GPUs))
		}
	}
	return strings.Join(list, ", ")
}
