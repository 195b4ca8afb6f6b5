package design

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/cluster"
)

// Check is one item of a design checklist, answered.
type Check struct {
	Group    string `json:"group"`
	Key      string `json:"key"`
	Item     string `json:"item"`
	Answer   string `json:"answer"` // yes, no, not applicable, needs you
	Evidence string `json:"evidence"`
}

// checkItems is the list in its order. Items that the graph cannot answer are
// answered by Needs.Provided under their key, or need the owner.
var checkItems = []Check{
	{Group: "topology", Key: "topology.scale", Item: "cluster size assessed"},
	{Group: "topology", Key: "topology.family", Item: "fat-tree, rail-optimised or dragonfly chosen"},
	{Group: "topology", Key: "topology.oversubscription", Item: "oversubscription designed (1:1 recommended)"},
	{Group: "hardware", Key: "hardware.switch", Item: "switches of 200 Gb/s or 400 Gb/s"},
	{Group: "hardware", Key: "hardware.nic", Item: "NICs of the switches' rate (ConnectX-6, ConnectX-7)"},
	{Group: "hardware", Key: "hardware.cable", Item: "cables: AOC, DAC, fibre"},
	{Group: "host layout", Key: "host.affinity", Item: "GPU and NIC on the same PCIe switch"},
	{Group: "host layout", Key: "host.nic_per_gpu", Item: "one NIC per GPU"},
	{Group: "host layout", Key: "host.nvlink", Item: "NVLink or NVSwitch between the GPUs"},
	{Group: "reliability", Key: "reliability.link", Item: "redundant links"},
	{Group: "reliability", Key: "reliability.switch", Item: "redundant switches (MLAG)"},
	{Group: "reliability", Key: "reliability.multipath", Item: "several paths (ECMP)"},
	{Group: "reliability", Key: "reliability.dual_fabric", Item: "two networks (optional)"},
	{Group: "failure handling", Key: "failure.detection", Item: "failures detected"},
	{Group: "failure handling", Key: "failure.switchover", Item: "automatic switch-over"},
	{Group: "failure handling", Key: "failure.checkpoint", Item: "checkpoints"},
	{Group: "failure handling", Key: "failure.elastic", Item: "elastic training"},
	{Group: "monitoring", Key: "monitoring.bandwidth", Item: "bandwidth and latency watched"},
	{Group: "monitoring", Key: "monitoring.errors", Item: "errors and drops watched"},
	{Group: "monitoring", Key: "monitoring.health", Item: "health checks"},
	{Group: "monitoring", Key: "monitoring.alerts", Item: "alert thresholds set"},
	{Group: "tuning", Key: "tuning.nccl", Item: "NCCL parameters"},
	{Group: "tuning", Key: "tuning.ib", Item: "InfiniBand or RoCE parameters"},
	{Group: "tuning", Key: "tuning.numa", Item: "NUMA and CPU affinity"},
}

// CheckKeys lists the keys that Needs.Provided may use.
func CheckKeys() []string {
	keys := make([]string, len(checkItems))
	for i, c := range checkItems {
		keys[i] = c.Key
	}
	return keys
}

// check answers the list. An item is answered yes only with evidence.
func (r *Report) check(v *view, n cluster.Needs) error {
	for _, key := range slices.Sorted(maps.Keys(n.Provided)) {
		if !slices.Contains(CheckKeys(), key) {
			return fmt.Errorf("needs: something is provided for %q; known checklist keys: %s", key, strings.Join(CheckKeys(), ", "))
		}
	}
	inside := v.inside()
	for _, c := range checkItems {
		own := n.Provided[c.Key]
		c.Answer, c.Evidence = r.answer(v, c.Key, inside, n.Oversub)
		switch {
		case own == "":
		case c.Answer == NeedsYou:
			c.Answer, c.Evidence = Yes, "the owner: "+own
		default:
			c.Evidence += "; the owner adds: " + own
		}
		r.Checklist = append(r.Checklist, c)
	}
	return nil
}

// answer answers one item of the checklist, with the evidence for it. What the file cannot tell is left to people:
// NeedsYou.
func (r *Report) answer(v *view, key string, in insides, tolerated float64) (answer, evidence string) {
	switch key {
	case "topology.scale":
		evidence = fmt.Sprintf("%s hosts with %s GPUs", count(r.Hosts), count(r.GPUs))
		if r.Growth.MaxHosts == 0 {
			return Yes, evidence + "; the largest size is not known for this family"
		}
		evidence += fmt.Sprintf("; these switches and tiers reach %s hosts", count(r.Growth.MaxHosts))
		return ternary(r.Hosts <= r.Growth.MaxHosts, Yes, No), evidence
	case "topology.family":
		return Yes, r.Family
	case "topology.oversubscription":
		evidence = fmt.Sprintf("%s:1 at the worst tier, %s:1 tolerated", trim(r.Oversubscription), trim(tolerated))
		return ternary(r.Oversubscription <= tolerated+1e-9, Yes, No), evidence
	case "hardware.switch":
		return r.switchAnswer(v)
	case "hardware.nic":
		if v.direct {
			return NotApplicable, "chips are joined directly"
		}
		rate := r.Sizes.NICRate * 8 / 1e9
		return ternary(rate >= 199, Yes, No), fmt.Sprintf("%s NICs (%s) of up to %s Gb/s", count(r.Sizes.NICs), orUnknown(in.nics), trim(rate))
	case "hardware.cable":
		var missing []string
		for _, c := range r.Optics.Choices {
			if c.Cable == "" {
				missing = append(missing, c.Gen+" "+c.Link)
			}
		}
		switch {
		case len(r.Optics.Choices) == 0:
			return NotApplicable, "there are no network cables"
		case len(missing) > 0:
			return NeedsYou, "the catalogue has no cable for: " + strings.Join(missing, ", ")
		}
		return Yes, fmt.Sprintf("%s cables chosen from the catalogue, %s transceivers; lengths are assumed",
			count(r.Cables.Total()), count(r.Optics.Transceivers))
	case "host.affinity", "host.nic_per_gpu", "host.nvlink":
		return in.answer(key, r)
	case "reliability.link":
		return r.verdict(0)
	case "reliability.switch":
		return r.verdict(1)
	case "reliability.multipath":
		return r.verdict(2)
	case "reliability.dual_fabric":
		return r.verdict(3)
	case "failure.detection":
		return NeedsYou, fmt.Sprintf("one failure of a part every %s is expected; say what notices it, in milliseconds",
			days(r.Failures[len(r.Failures)-1].Days))
	case "failure.switchover":
		return NeedsYou,
			fmt.Sprintf("the graph leaves %d or more paths between hosts that share no cable; say what moves traffic to them, in under a second",
				r.Paths.DisjointMin)
	case "failure.checkpoint":
		return NeedsYou, fmt.Sprintf("a GPU fails every %s; say where checkpoints go and how often", days(r.failure("gpu").Days))
	case "failure.elastic":
		return NeedsYou, fmt.Sprintf("a lost server takes %d GPUs; say how training goes on without them", r.Sizes.GPUsPerHost)
	case "tuning.numa":
		return NeedsYou, fmt.Sprintf("%s of %s GPUs have a NIC on their own NUMA node; say how processes are bound",
			count(in.sameNode), count(in.gpus))
	}
	return NeedsYou, "not a property of the wiring; name what provides it under needs, provided, " + key
}

func (r *Report) failure(part string) Failure {
	for _, f := range r.Failures {
		if f.Part == part {
			return f
		}
	}
	return Failure{}
}

// verdict carries a redundancy verdict over. A degraded mode is not redundancy, so partly counts as no.
func (r *Report) verdict(i int) (answer, evidence string) {
	v := r.Redundancy[i]
	return ternary(v.Answer == Partly, No, v.Answer), v.Evidence
}

func (r *Report) switchAnswer(v *view) (answer, evidence string) {
	if v.direct {
		return NotApplicable, "chips are joined directly"
	}
	var names []string
	for _, m := range r.Sizes.SwitchModels {
		names = append(names, fmt.Sprintf("%s %s %s of %d ports", count(m.Count), m.Tier, orUnknown(m.Model), m.Ports))
	}
	slow := int64(0)
	for _, e := range v.endpoints() {
		if slow == 0 || e.rate/int64(e.count) < slow {
			slow = e.rate / int64(e.count)
		}
	}
	for _, t := range v.links {
		if slow == 0 || t.rate/int64(t.count) < slow {
			slow = t.rate / int64(t.count)
		}
	}
	rate := float64(slow) * 8 / 1e9
	return ternary(rate >= 199, Yes, No), fmt.Sprintf("%s; the slowest link is %s Gb/s", strings.Join(names, ", "), trim(rate))
}

func orUnknown(s string) string { return ternary(s == "", "of unknown make", s) }
