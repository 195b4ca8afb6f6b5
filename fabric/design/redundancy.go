package design

import (
	"fmt"

	"github.com/weft-fabric/weft/model/topo"
)

// Verdict is an answer with its evidence.
type Verdict struct {
	Topic    string `json:"topic"`
	Answer   string `json:"answer"` // yes, no, partly, not applicable
	Evidence string `json:"evidence"`
}

// The answers that verdicts and the checklist give.
const (
	Yes           = "yes"
	No            = "no"
	Partly        = "partly"
	NotApplicable = "not applicable"
	NeedsYou      = "needs you"
)

func (r *Report) loss(part string) (Loss, bool) {
	for _, l := range r.Losses {
		if l.Part == part {
			return l, true
		}
	}
	return Loss{}, false
}

// redundant judges four sorts of redundancy on the graph.
func (r *Report) redundant(v *view) []Verdict {
	if v.direct {
		l, _ := r.loss("cable between chips")
		na := "chips are joined directly; there is no switch"
		return []Verdict{
			{"dual link (bonding)", ternary(r.Paths.DisjointMin > 1, Yes, No),
				fmt.Sprintf("%s paths between hosts that share no cable; one cable lost leaves %s of the bisection",
					span(r.Paths.DisjointMin, r.Paths.DisjointMax), percent(l.BisectionLeft))},
			{"dual leaf (MLAG or rails)", NotApplicable, na},
			{"ECMP over spines", NotApplicable, na},
			{"second plane or fabric", NotApplicable, na},
		}
	}
	return []Verdict{r.dualLink(v), r.dualLeaf(v), r.ecmpVerdict(), r.dualFabric()}
}

// dualLink asks whether one NIC (the port a GPU uses) has two links, so that a cable may fail under it.
func (r *Report) dualLink(v *view) Verdict {
	links, nics, single := map[topo.NodeID]int{}, 0, 0
	for _, e := range v.endpoints() {
		links[e.node] += int(e.count)
	}
	for _, e := range v.endpoints() {
		if n := links[e.node]; n > 0 {
			nics++
			if n < 2 {
				single++
			}
			links[e.node] = 0
		}
	}
	l, _ := r.loss("host cable")
	after := fmt.Sprintf("one host cable lost: %s of that host's rate left, %d GPUs cut off", percent(l.HostLeft), l.GPUsCutOff)
	switch {
	case nics == 0:
		return Verdict{"dual link (bonding)", NotApplicable, "no host is attached"}
	case single == 0:
		return Verdict{"dual link (bonding)", Yes, fmt.Sprintf("all %s %ss have two links or more; %s", count(nics), r.Endpoint, after)}
	case l.GPUsCutOff == 0 && l.HostsCutOff == 0:
		return Verdict{"dual link (bonding)", Partly,
			fmt.Sprintf("%s of %s NICs have one link; a GPU that loses its own goes through its host's other NICs, slower: %s",
				count(single), count(nics), after)}
	default:
		return Verdict{"dual link (bonding)", No, fmt.Sprintf("%d of %d NICs have one link and some hosts have one NIC; %s", single, nics, after)}
	}
}

// leaves are the leaves that each host and each NIC reaches.
func (v *view) leaves() (perHost map[topo.HostID]map[int32]bool, perNIC map[topo.NodeID]map[int32]bool) {
	perHost, perNIC = map[topo.HostID]map[int32]bool{}, map[topo.NodeID]map[int32]bool{}
	for _, e := range v.endpoints() {
		if perHost[e.host] == nil {
			perHost[e.host] = map[int32]bool{}
		}
		if perNIC[e.node] == nil {
			perNIC[e.node] = map[int32]bool{}
		}
		perHost[e.host][e.at], perNIC[e.node][e.at] = true, true
	}
	return perHost, perNIC
}

// dualLeaf asks whether a host survives any leaf. Leaves of different rails are
// no MLAG pair: the host lives on with fewer NICs, and every collective with it.
func (r *Report) dualLeaf(v *view) Verdict {
	const topic = "dual leaf (MLAG or rails)"
	least, most := -1, 0
	same := true // every NIC by itself reaches two leaves
	perHost, perNIC := v.leaves()
	for _, leaves := range perHost {
		most = max(most, len(leaves))
		if least < 0 || len(leaves) < least {
			least = len(leaves)
		}
	}
	for _, leaves := range perNIC {
		same = same && len(leaves) > 1
	}
	l, ok := r.loss("leaf")
	switch {
	case least < 0 || !ok:
		return Verdict{topic, NotApplicable, "there are no leaves"}
	case least < 2:
		return Verdict{topic, No, fmt.Sprintf("some hosts hang on one leaf; losing %s cuts off %d GPUs", l.Example, l.GPUsCutOff)}
	case same:
		return Verdict{topic, Yes, fmt.Sprintf("every %s reaches two leaves or more; losing %s leaves hosts %s of their rate",
			r.Endpoint, l.Example, percent(l.HostLeft))}
	default:
		return Verdict{topic, Partly,
			fmt.Sprintf("every host reaches %s leaves but each NIC only one: losing %s cuts off %d GPUs and slows %d, whose hosts keep %s of their rate; rails are a degraded mode, not a standby",
				span(least, most), l.Example, l.GPUsCutOff, l.GPUsDegraded, percent(l.HostLeft))}
	}
}

// ecmpVerdict says whether leaves spread traffic over several spines, and what the loss of one spine takes.
func (r *Report) ecmpVerdict() Verdict {
	const topic = "ECMP over spines"
	l, ok := r.loss("spine")
	switch {
	case !ok && r.Switches.Leaf == 1:
		return Verdict{topic, NotApplicable, "one switch joins all hosts"}
	case !ok && r.Cables.Peer > 0:
		return Verdict{topic, ternary(r.Paths.Min > 1, Yes, Partly),
			fmt.Sprintf("no spines; %s shortest paths between hosts and %d or more that share no cable", spanPaths(r.Paths), r.Paths.DisjointMin)}
	case !ok:
		return Verdict{topic, Partly,
			fmt.Sprintf("no spines: two hosts have %s shortest paths, through the leaves they share, and %d or more that share no cable",
				spanPaths(r.Paths), r.Paths.DisjointMin)}
	case r.Paths.ECMPPeers < 2:
		return Verdict{topic, No, fmt.Sprintf("some leaf has uplinks to %s only; losing %s leaves %s of the bisection and %s",
			plural(r.Paths.ECMPPeers, "spine"), l.Example, percent(l.BisectionLeft), plural(l.Pieces+1, "piece"))}
	default:
		return Verdict{topic, Yes,
			fmt.Sprintf("every leaf has %s uplinks to %d spines or more; losing %s leaves %s of the bisection and cuts off %d GPUs",
				span(r.Paths.ECMPMin, r.Paths.ECMPMax), r.Paths.ECMPPeers, l.Example, percent(l.BisectionLeft), l.GPUsCutOff)}
	}
}

func spanPaths(p Paths) string {
	if p.Min == p.Max {
		return ways(p.Min)
	}
	return ways(p.Min) + " to " + ways(p.Max)
}

func (r *Report) dualFabric() Verdict {
	const topic = "second plane or fabric"
	for _, part := range []string{"fabric", "plane"} {
		if l, ok := r.loss(part); ok {
			return Verdict{topic, ternary(l.GPUsCutOff == 0, Yes, No),
				fmt.Sprintf("%d %ss that share no switch; losing one cuts off %d GPUs and leaves hosts %s of their rate",
					l.Of, part, l.GPUsCutOff, percent(l.HostLeft))}
		}
	}
	return Verdict{topic, No, "one fabric in one plane"}
}

func ternary[T any](c bool, a, b T) T {
	if c {
		return a
	}
	return b
}
