package design

import (
	"fmt"
	"math"

	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
)

// Need is what data-parallel training of a model asks of the network.
//
// A ring all-reduce of S bytes over n ranks sends 2(n-1)/n S through every rank
// and so through every NIC that carries the ring. Sharing the work inside a
// group (a host, or hosts joined by NVLink) leaves less to the network:
// reduce-scatter inside the group, a ring between groups over each of its k
// NICs, gather inside. Each NIC then carries 2(m-1)/m S/k for m groups, and each
// GPU 2(g-1)/g S over the links inside a group of g. The two overlap, so the
// slower one is the time. Neither divides by n.
type Need struct {
	Params      float64 `json:"params"`
	BytesPer    float64 `json:"bytes_per_param"`
	Gradient    float64 `json:"gradient_bytes"` // S
	StepSeconds float64 `json:"step_seconds"`
	Ranks       int     `json:"ranks"`      // n
	Groups      int     `json:"groups"`     // m
	GroupGPUs   int     `json:"group_gpus"` // g
	NICs        int     `json:"group_nics"` // k
	Group       string  `json:"group"`      // "host", "NVLink domain"
	NICRate     float64 `json:"nic_bytes_per_s"`
	InsideRate  float64 `json:"inside_bytes_per_s"` // of one GPU's links inside a group, one way

	FlatBytes      float64 `json:"flat_bytes_per_nic"`       // one ring over all ranks
	FlatSeconds    float64 `json:"flat_seconds"`             // at the NIC's rate
	ShardedBytes   float64 `json:"sharded_bytes_per_nic"`    // shared over the group's NICs
	ShardedSeconds float64 `json:"sharded_seconds"`          // at the NIC's rate
	InsideBytes    float64 `json:"inside_bytes_per_gpu"`     // inside a group
	InsideSeconds  float64 `json:"inside_seconds"`           // at InsideRate
	Seconds        float64 `json:"seconds"`                  // the slower of the two
	NeedPerNIC     float64 `json:"need_bytes_per_s_per_nic"` // sharded bytes within one step
	TotalBytes     float64 `json:"total_bytes_through_nics"` // sharded, all NICs of the cluster together
	ModelParallel  int     `json:"model_parallel_needed"`    // into how many parts the model must be cut to fit a step
	Verdict        string  `json:"verdict"`
}

// ringShare is 2(n-1)/n, the part of the data each rank of a ring sends.
func ringShare(n int) float64 {
	if n < 2 {
		return 0
	}
	return 2 * float64(n-1) / float64(n)
}

// settle computes everything that follows from sizes and rates.
func (n *Need) settle() {
	n.Gradient = n.Params * n.BytesPer
	n.FlatBytes = ringShare(n.Ranks) * n.Gradient
	n.ShardedBytes = ringShare(n.Groups) * n.Gradient / float64(max(n.NICs, 1))
	n.TotalBytes = n.ShardedBytes * float64(max(n.NICs, 1)) * float64(n.Groups)
	n.InsideBytes = ringShare(n.GroupGPUs) * n.Gradient
	if n.NICRate > 0 {
		n.FlatSeconds, n.ShardedSeconds = n.FlatBytes/n.NICRate, n.ShardedBytes/n.NICRate
	}
	if n.InsideRate > 0 {
		n.InsideSeconds = n.InsideBytes / n.InsideRate
	}
	n.Seconds = max(n.ShardedSeconds, n.InsideSeconds)
	if n.StepSeconds > 0 {
		n.NeedPerNIC = n.ShardedBytes / n.StepSeconds
		n.ModelParallel = max(1, int(math.Ceil(n.Seconds/n.StepSeconds-1e-9)))
	}
	n.Verdict = n.verdict()
}

// verdict says whether the exchange fits into a step, and what limits it.
func (n *Need) verdict() string {
	switch {
	case n.ShardedBytes == 0 && n.InsideBytes == 0:
		return "there is nothing to exchange"
	case n.ShardedBytes > 0 && n.NICRate <= 0:
		return "no NIC carries it"
	}
	limit := "limited by the network"
	switch {
	case n.ShardedBytes == 0:
		limit = "all of it inside one " + n.Group
	case n.InsideSeconds > n.ShardedSeconds:
		limit = fmt.Sprintf("limited by the links inside %s; the network takes %s", a(n.Group), seconds(n.ShardedSeconds))
	}
	if n.Seconds <= n.StepSeconds {
		return fmt.Sprintf("fits: %s of the %s step, %s", seconds(n.Seconds), seconds(n.StepSeconds), limit)
	}
	return fmt.Sprintf("does not fit: %s, %s; cut the model into %d parts or more (tensor, pipeline), send fewer bytes, or reduce less often",
		seconds(n.Seconds), limit, n.ModelParallel)
}

// need fills in what the owner's model asks of this cluster, if there is one.
func (r *Report) need(v *view, n cluster.Needs) {
	if n.Params == 0 {
		return
	}
	hosts := r.Hosts
	if hosts == 0 {
		hosts = r.ServiceHosts
	}
	need := &Need{Params: n.Params, BytesPer: n.BytesPer, StepSeconds: n.StepSeconds, Ranks: max(r.GPUs, hosts), NICRate: r.Sizes.NICLeast,
		Groups: hosts, GroupGPUs: r.Sizes.GPUsPerHost, NICs: r.Sizes.NICsPerHost, Group: "host"}
	switch {
	case r.Endpoint != "NIC": // chips and GPUs stand in the rings by themselves
		need.Groups, need.GroupGPUs, need.NICs, need.Group = need.Ranks, 1, 1, r.Endpoint
	case r.Sizes.Domain > r.Sizes.GPUsPerHost:
		need.Groups, need.GroupGPUs, need.Group = r.Sizes.Domains, r.Sizes.Domain, "NVLink domain"
		need.NICs = r.Sizes.NICs / max(r.Sizes.Domains, 1)
	}
	if need.GroupGPUs > 1 {
		need.InsideRate = v.insideRate()
	}
	need.settle()
	r.Need = need
}

// insideRate is what the slowest accelerator sends to its neighbours, one way:
// over its own links, or where it has none over PCIe.
func (v *view) insideRate() float64 {
	least := 0.0
	v.g.Each(topo.GPU, func(id topo.NodeID, _ *topo.Node) {
		own, pcie := 0.0, 0.0
		for _, e := range v.g.Edges(id) {
			switch kind := v.g.Class(e.Link).Kind; {
			case kind.Accelerator() && v.g.Nodes[e.Peer].Kind != topo.CPU:
				own += float64(v.g.Rate(e.Link))
			case kind == topo.PCIe:
				pcie += float64(v.g.Rate(e.Link))
			}
		}
		if own == 0 {
			own = pcie
		}
		if least == 0 || own < least {
			least = own
		}
	})
	return least
}
