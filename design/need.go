package design

import (
	"fmt"
	"math"

	"github.com/weft-fabric/weft/cluster"
)

// Need is the bandwidth that data-parallel training asks of the network.
//
// A ring all-reduce of S bytes over n ranks sends 2(n-1)/n S through every rank
// and so through every NIC that carries the ring. Sharing the work over the k
// NICs of a host (reduce-scatter inside the host, k rings between hosts, gather
// inside) leaves each NIC a k-th of it. Neither divides by n.
type Need struct {
	Params      float64 `json:"params"`
	BytesPer    float64 `json:"bytes_per_param"`
	Gradient    float64 `json:"gradient_bytes"` // S
	StepSeconds float64 `json:"step_seconds"`
	Ranks       int     `json:"ranks"`
	NICs        int     `json:"nics_per_host"`
	NICRate     float64 `json:"nic_bytes_per_s"`

	FlatBytes      float64 `json:"flat_bytes_per_nic"`       // one ring over all ranks
	FlatSeconds    float64 `json:"flat_seconds"`             // at the NIC's rate
	ShardedBytes   float64 `json:"sharded_bytes_per_nic"`    // shared over the host's NICs
	ShardedSeconds float64 `json:"sharded_seconds"`          // at the NIC's rate
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

// newNeed computes the need of hosts of equal make.
func newNeed(parameters, bytesPer, step float64, gpus, hosts, nics int, rate float64) Need {
	n := Need{Params: parameters, BytesPer: bytesPer, Gradient: parameters * bytesPer, StepSeconds: step, Ranks: gpus, NICs: nics, NICRate: rate}
	n.FlatBytes = ringShare(gpus) * n.Gradient
	n.ShardedBytes = ringShare(hosts) * n.Gradient / float64(max(nics, 1))
	n.TotalBytes = n.ShardedBytes * float64(max(nics, 1)) * float64(hosts)
	if rate > 0 {
		n.FlatSeconds, n.ShardedSeconds = n.FlatBytes/rate, n.ShardedBytes/rate
	}
	if step > 0 {
		n.NeedPerNIC = n.ShardedBytes / step
		n.ModelParallel = max(1, int(math.Ceil(n.ShardedSeconds/step-1e-9)))
	}
	switch {
	case n.ShardedBytes == 0:
		n.Verdict = "nothing leaves the host"
	case rate <= 0:
		n.Verdict = "no NIC carries it"
	case n.ShardedSeconds <= step:
		n.Verdict = fmt.Sprintf("fits, %s of the %s step where the ports of a host share the work", seconds(n.ShardedSeconds), seconds(step))
	default:
		n.Verdict = fmt.Sprintf("does not fit, %s at the rate of the ports; cut the model into %d parts or more (tensor, pipeline), send fewer bytes, or reduce less often",
			seconds(n.ShardedSeconds), n.ModelParallel)
	}
	return n
}

// need fills in what the owner's model asks of this cluster.
func (r *Report) need(v *view, n cluster.Needs) {
	hosts := r.Hosts
	if hosts == 0 {
		hosts = r.ServiceHosts
	}
	ranks := max(r.GPUs, hosts)
	if r.Endpoint != "NIC" { // chips and GPUs stand in the rings by themselves
		r.Need = newNeed(n.Params, n.BytesPer, n.StepSeconds, ranks, ranks, 1, r.Sizes.NICRate)
		return
	}
	r.Need = newNeed(n.Params, n.BytesPer, n.StepSeconds, ranks, hosts, r.Sizes.NICsPerHost, r.Sizes.NICRate)
}
