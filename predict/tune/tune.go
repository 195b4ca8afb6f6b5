// Package tune predicts how long collectives take, and says why.
//
// Two models stand side by side. The first reproduces the cost model that NCCL
// carries inside it, because that model decides which algorithm and protocol
// run: NewNCCL derives from a topology what NCCL's search would find, and
// Choose gives NCCL's choice with NCCL's own estimate. Those estimates are known
// to be off, being static, so Predict keeps the choice and takes the time from
// the second model, whose constants are fitted to measurements and belong to a
// GPU generation, a kind of link and a protocol, never to a single machine.
//
//	topology ─► facts ─► NCCL's channels and speeds ─► NCCL's choice ─┐
//	                └──► wire rates, hops ───────────► measured time ─┴► Prediction
//
// Calibrate fits an alpha-beta-gamma model to a user's own nccl-tests log, and
// Select uses that to pick among the closed forms of package cost.
package tune

import (
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/cost"
)

// Choice is one way of running a collective, and how long a model says it takes.
type Choice struct {
	Op       string    `json:"op"`       // "all-reduce"
	Algo     string    `json:"algo"`     // "Ring", "Tree", "NVLS", "NVLSTree", "PAT", "CollNetDirect", "CollNetChain"; "P2P" for sends and receives
	Proto    string    `json:"proto"`    // "LL", "LL128", "Simple"
	Channels int       `json:"channels"` // as many as this size uses
	Threads  int       `json:"threads"`  // a channel
	Time     unit.Time `json:"time_ps"`
	AlgBW    unit.Rate `json:"algbw_bytes_per_s"`  // bytes over time
	BusBW    unit.Rate `json:"busbw_bytes_per_s"`  // AlgBW times BusFactor, as nccl-tests prints it
	Limit    string    `json:"limit"`              // what bounds the time: "latency", "nvlink", "pcie", "host", "nic", "fabric", "protocol"
	Reason   string    `json:"reason,omitempty"`   // why it was chosen; for an excluded row of a table, why not
	Excluded bool      `json:"excluded,omitempty"` // NCCL would not consider it
}

// Prediction is NCCL's choice with a time fitted to measurements, and how much
// that time can be trusted.
type Prediction struct {
	Choice
	Nearest string  `json:"nearest"`       // the nearest measured point, and how far it is in machine, GPUs and size
	Error   float64 `json:"typical_error"` // typical relative error shown around that point: the median of |predicted/measured - 1|
	Within  float64 `json:"within"`        // nine of ten left-out measurements lay within this part of their prediction
}

// timed fills in the time and both bandwidths.
func (c Choice) timed(op sched.Collective, n int, bytes unit.Bytes, us float64) Choice {
	c.Time = cost.Span(us)
	c.AlgBW, c.BusBW = 0, 0
	if us > 0 && op != sched.Barrier { // which moves no bytes, whatever the size
		c.AlgBW = unit.Rate(float64(bytes) / us * 1e6)
		c.BusBW = c.AlgBW * unit.Rate(op.BusFactor(n))
	}
	return c
}
