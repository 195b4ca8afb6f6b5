package design

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
)

// insides is what the graph says of GPUs and NICs inside hosts.
type insides struct {
	gpus     int
	own      int // GPUs with a NIC of their own
	sameNode int // GPUs whose NIC hangs on the same CPU
	nvswitch int // GPUs with a link to an NVSwitch
	linked   int // GPUs with any accelerator link
	hostGPUs int // GPUs of hosts that have several
	relation [6]int
	nics     string // models, listed
}

// relations are nvidia-smi's names for the way from a GPU to its NIC, best first.
var relations = [6]string{"PIX", "PXB", "PHB", "NODE", "SYS", "none"}

// inside looks at every accelerator: which links it has, and what lies between it and the NIC it uses.
func (v *view) inside() insides {
	g := v.g
	var in insides
	var way []topo.Use
	models := map[string]bool{}
	for i := range g.Nodes {
		n := &g.Nodes[i]
		switch n.Kind {
		case topo.NIC:
			if n.Host != topo.None && v.gpus[n.Host] > 0 && compute(g, n) && n.Model != "" {
				models[n.Model] = true
			}
			continue
		case topo.GPU:
		default:
			continue
		}
		in.gpus++
		gpu := topo.NodeID(i)
		if n.Host != topo.None && v.gpus[n.Host] > 1 {
			in.hostGPUs++
		}
		toSwitch, linked := false, false
		for _, e := range g.Edges(gpu) {
			if g.Class(e.Link).Kind.Accelerator() {
				k := g.Nodes[e.Peer].Kind
				toSwitch = toSwitch || k == topo.NVSwitch
				linked = linked || k == topo.NVSwitch || k == topo.GPU
			}
		}
		if toSwitch {
			in.nvswitch++
		}
		if linked {
			in.linked++
		}
		nic := g.Near(gpu)
		if nic == topo.None {
			in.relation[5]++
			continue
		}
		if g.Near(nic) == gpu {
			in.own++
		}
		way, _ = g.Route(topo.Flow{From: gpu, To: nic}, way[:0])
		rel := relation(g, gpu, way)
		in.relation[rel]++
		if rel < 4 {
			in.sameNode++
		}
	}
	in.nics = strings.Join(slices.Sorted(maps.Keys(models)), ", ")
	return in
}

// relation classifies a way inside a host as nvidia-smi does: PIX at most one
// PCIe switch, PXB several, PHB through one host bridge, NODE through several
// bridges of a CPU, SYS from one CPU to another.
func relation(g *topo.Graph, from topo.NodeID, way []topo.Use) int {
	if len(way) == 0 {
		return 5
	}
	crossed := map[topo.Kind]int{}
	for _, u := range way {
		_, at := g.Links[u.Link].Ends(u.Forward)
		crossed[g.Nodes[at].Kind]++
	}
	switch {
	case crossed[topo.CPU] > 1:
		return 4
	case crossed[topo.RootPort] > 1:
		return 3
	case crossed[topo.RootPort] == 1 || crossed[topo.CPU] == 1:
		return 2
	case crossed[topo.PCIeSwitch] > 1:
		return 1
	}
	return 0
}

// paths counts GPUs by how near their NIC is.
func (in insides) paths() string {
	var seen []string
	for i, n := range in.relation {
		if n > 0 {
			seen = append(seen, fmt.Sprintf("%s %s", count(n), relations[i]))
		}
	}
	return strings.Join(seen, ", ")
}

// answer answers the checklist's questions about the inside of hosts. What a host without accelerators cannot have is
// not applicable rather than no.
func (in insides) answer(key string, r *Report) (answer, evidence string) {
	if in.gpus == 0 {
		return NotApplicable, "there are no accelerators"
	}
	switch key {
	case "host.affinity":
		evidence = "the path from each GPU to the NIC it uses: " + in.paths()
		if in.relation[5] == in.gpus {
			return NotApplicable, "GPUs use no NIC"
		}
		return ternary(in.relation[0]+in.relation[1] == in.gpus, Yes, No), evidence
	case "host.nic_per_gpu":
		if in.relation[5] == in.gpus {
			return NotApplicable, "GPUs use no NIC"
		}
		return ternary(in.own == in.gpus, Yes, No), fmt.Sprintf("%s of %s GPUs have a NIC of their own; %s NICs in all",
			count(in.own), count(in.gpus), count(r.Sizes.NICs))
	}
	switch {
	case in.nvswitch == in.gpus:
		return Yes, fmt.Sprintf("all %s GPUs are linked to NVSwitches: any pair at full rate, in %s of up to %s",
			count(in.gpus), plural(r.Sizes.Domains, "domain"), count(r.Sizes.Domain))
	case in.linked == in.gpus:
		return Yes, fmt.Sprintf("all %s GPUs have direct accelerator links, in %s of up to %s; some pairs go through others or PCIe",
			count(in.gpus), plural(r.Sizes.Domains, "domain"), count(r.Sizes.Domain))
	case in.hostGPUs == 0:
		return NotApplicable, "no host has two GPUs"
	}
	return No, fmt.Sprintf("%s of %s GPUs have an accelerator link; the rest share PCIe", count(in.linked), count(in.gpus))
}
