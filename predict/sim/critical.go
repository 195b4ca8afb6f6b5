package sim

import "github.com/weft-fabric/weft/model/unit"

// Tier is what time on the longest chain of events went into: software, or the
// part of the cluster that held a flow back.
type Tier uint8

// The tiers.
const (
	Before      Tier = iota // before the job began
	Overhead                // software: the launch and every message's start
	Latency                 // of links and chips
	Reduction               // memory: copies and sums that no flow hides
	Accelerator             // NVLink and its like
	Host                    // PCIe and sockets' links inside hosts
	Leaf                    // cables between NICs and switches
	Spine                   // between leaf and spine switches
	Core                    // above the spines
	Sockets                 // the CPU's copies
	tiers
)

var tierNames = [tiers]string{"before", "overhead", "latency", "reduction", "accelerator links", "host links", "NIC cables", "spine links",
	"core links", "CPU copies"}

func (t Tier) String() string { return tierNames[t] }

// Critical splits the time of an event by what the chain that led to it was
// doing; its terms add up to the event's time.
type Critical [tiers]unit.Time
