package design

import (
	"github.com/weft-fabric/weft/model/sets"
	"github.com/weft-fabric/weft/model/topo"
)

// Switches counts switches by tier. Leaf, spine and core are those of the
// networks that accelerators use.
type Switches struct {
	Leaf    int `json:"leaf"`
	Spine   int `json:"spine"`
	Core    int `json:"core"`
	Higher  int `json:"higher,omitempty"`  // a fourth tier and above
	Service int `json:"service,omitempty"` // of storage and management networks
}

// Total is all of them.
func (s Switches) Total() int { return s.Leaf + s.Spine + s.Core + s.Higher + s.Service }

// Cables counts physical links by what they join.
type Cables struct {
	HostLeaf  int `json:"host_leaf"`  // every cable from a NIC to a leaf, service hosts' too
	LeafSpine int `json:"leaf_spine"` // tier 1 to tier 2
	SpineCore int `json:"spine_core"` // tier 2 to tier 3
	Peer      int `json:"peer"`       // inside a tier: dragonfly's local and global links, pairs of leaves
	Other     int `json:"other"`      // between tiers that do not adjoin, or above the third
	Service   int `json:"service"`    // of storage and management networks
	Direct    int `json:"direct"`     // accelerator links that leave a host: torus chips, rack NVLink
}

// Total is all cables of networks between hosts; Direct ones are links of
// accelerators and not among them.
func (c Cables) Total() int {
	return c.HostLeaf + c.LeafSpine + c.SpineCore + c.Peer + c.Other + c.Service
}

// Sizes says how large a host and its parts are.
type Sizes struct {
	NICs         int     `json:"nics"`                  // endpoints of hosts with accelerators in compute networks; chips where chips are joined directly
	GPUsPerHost  int     `json:"gpus_per_host"`         // most
	NICsPerHost  int     `json:"nics_per_host"`         // most, in compute networks
	NICRate      float64 `json:"nic_bytes_per_s"`       // of the fastest
	NICLeast     float64 `json:"nic_bytes_per_s_least"` // of the slowest
	Racks        int     `json:"racks"`
	Pods         int     `json:"pods"`
	Planes       int     `json:"planes"`
	Rails        int     `json:"rails"`
	Fabrics      int     `json:"fabrics"` // compute networks
	Domain       int     `json:"accelerator_domain"`
	Domains      int     `json:"accelerator_domains"`
	HostRate     float64 `json:"host_bytes_per_s"`
	SwitchModels []Model `json:"switch_models"`
}

// Model is a sort of switch and how many there are.
type Model struct {
	Tier  string `json:"tier"`
	Model string `json:"model"`
	Ports int    `json:"ports"`
	Count int    `json:"count"`
}

// add counts a switch. One without a tier is a leaf.
func (s *Switches) add(tier uint8) {
	switch tier {
	case 0, 1:
		s.Leaf++
	case 2:
		s.Spine++
	case 3:
		s.Core++
	default:
		s.Higher++
	}
}

// count fills in everything that is only counted.
func (r *Report) count(v *view) {
	g := v.g
	for h := range g.Hosts {
		r.GPUs += int(v.gpus[h])
		if v.gpus[h] > 0 {
			r.Hosts++
		} else {
			r.ServiceHosts++
		}
	}
	g.Each(topo.Switch, func(_ topo.NodeID, n *topo.Node) {
		if !compute(g, n) {
			r.Switches.Service++
		}
	})
	models := map[Model]int{}
	var order []Model
	for p, id := range v.nodes {
		n := &g.Nodes[id]
		if n.Kind == topo.GPU {
			continue
		}
		r.Switches.add(v.tier[p])
		m := Model{Tier: tierName(max(v.tier[p], 1)), Model: n.Model, Ports: int(n.Ports)}
		if models[m]++; models[m] == 1 {
			order = append(order, m)
		}
	}
	for _, m := range order {
		m.Count = models[m]
		r.Sizes.SwitchModels = append(r.Sizes.SwitchModels, m)
	}
	r.countCables(v)
	r.Cables.bundle(max(r.perCable, 1))
	r.countPlaces(v)
	r.Sizes.Domain, r.Sizes.Domains = domains(g)
}

// countCables sorts cables by the tiers they join. Links inside a host are none.
func (r *Report) countCables(v *view) {
	g := v.g
	for i := range g.Links {
		l := &g.Links[i]
		a, b := &g.Nodes[l.A], &g.Nodes[l.B]
		n := int(l.Count)
		kind := g.Classes[l.Class].Kind
		switch {
		case kind.Accelerator() && !oneHost(a, b):
			r.Cables.Direct += n
		case !kind.Network():
		case !compute(g, a) || !compute(g, b):
			r.Cables.Service += n
		case a.Kind == topo.NIC || b.Kind == topo.NIC:
			r.Cables.HostLeaf += n
		case min(v.index[l.A], v.index[l.B]) < 0:
			r.Cables.Other += n
		default:
			*r.Cables.between(v.tier[v.index[l.A]], v.tier[v.index[l.B]]) += n
		}
	}
}

func oneHost(a, b *topo.Node) bool { return a.Host == b.Host && a.Host != topo.None }

// between is the count of cables between switches of two tiers.
func (c *Cables) between(x, y uint8) *int {
	switch {
	case x == y:
		return &c.Peer
	case min(x, y) == 1 && max(x, y) == 2:
		return &c.LeafSpine
	case min(x, y) == 2 && max(x, y) == 3:
		return &c.SpineCore
	}
	return &c.Other
}

// bundle turns links into cables where one cable carries several.
func (c *Cables) bundle(per int) {
	for _, n := range []*int{&c.HostLeaf, &c.LeafSpine, &c.SpineCore, &c.Peer, &c.Other} {
		*n = (*n + per - 1) / per
	}
}

// countPlaces counts racks, pods, planes and rails. What states none is not a place of its own.
func (r *Report) countPlaces(v *view) {
	g := v.g
	racks, pods, planes, rails := map[int32]bool{}, map[int32]bool{}, map[int8]bool{}, map[int16]bool{}
	for h := range g.Hosts {
		racks[g.Hosts[h].Rack] = true
		if v.gpus[h] == 0 && v.computes > 0 {
			continue
		}
		pods[g.Hosts[h].Pod] = true
		r.Sizes.GPUsPerHost = max(r.Sizes.GPUsPerHost, int(v.gpus[h]))
		r.Sizes.HostRate = max(r.Sizes.HostRate, float64(v.capacity[h]))
	}
	for _, id := range v.nodes {
		if n := &g.Nodes[id]; n.Kind == topo.Switch {
			planes[n.Plane], rails[n.Rail] = true, true
		}
	}
	delete(racks, topo.None)
	delete(pods, topo.None)
	delete(planes, topo.None)
	delete(rails, topo.None)
	r.Sizes.Racks, r.Sizes.Pods, r.Sizes.Planes, r.Sizes.Rails = len(racks), len(pods), len(planes), len(rails)
	for _, f := range g.Fabrics {
		if !f.Service {
			r.Sizes.Fabrics++
		}
	}
	r.countNICs(v)
}

// countNICs counts the NICs that are in the network, which a host may have more of, and takes their rates.
func (r *Report) countNICs(v *view) {
	perHost := map[topo.HostID]int{}
	rates := map[topo.NodeID]float64{}
	for _, e := range v.endpoints() {
		if rates[e.node] == 0 {
			perHost[e.host]++
			r.Sizes.NICs++
		}
		rates[e.node] += float64(e.rate)
	}
	for _, rate := range rates {
		r.Sizes.NICRate = max(r.Sizes.NICRate, rate)
		if r.Sizes.NICLeast == 0 || rate < r.Sizes.NICLeast {
			r.Sizes.NICLeast = rate
		}
	}
	for _, n := range perHost {
		r.Sizes.NICsPerHost = max(r.Sizes.NICsPerHost, n)
	}
}

// acceleratorSets joins accelerators that reach each other without the host's PCIe tree.
func acceleratorSets(g *topo.Graph) sets.Sets[int32] {
	s := sets.New[int32](len(g.Nodes))
	for i := range g.Links {
		l := &g.Links[i]
		if !g.Classes[l.Class].Kind.Accelerator() || g.Nodes[l.A].Kind == topo.CPU || g.Nodes[l.B].Kind == topo.CPU {
			continue
		}
		s.Join(int32(l.A), int32(l.B))
	}
	return s
}

// domains counts the sets of accelerators joined without the host's PCIe tree:
// the size of the largest one, and how many there are.
func domains(g *topo.Graph) (largest, number int) {
	s := acceleratorSets(g)
	size := map[int32]int{}
	g.Each(topo.GPU, func(n topo.NodeID, _ *topo.Node) {
		root := s.Find(int32(n))
		size[root]++
		largest = max(largest, size[root])
	})
	return largest, len(size)
}
