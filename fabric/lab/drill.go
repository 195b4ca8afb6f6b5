package lab

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// Fault is something that a drill breaks.
type Fault struct {
	Name string `json:"name"`
	Does string `json:"does"`
}

// Faults lists what a drill can break, in the order in which all of it is done.
func Faults() []Fault {
	return []Fault{
		{"cut-near", "a leaf's own port to a spine is switched off"},
		{"cut-far", "the other leaf's port to that spine is switched off: the spine must withdraw its routes"},
		{"blackhole", "a spine's port passes nothing any more, both ways, and its carrier stays"},
		{"data-blackhole", "a spine's port forwards nothing, while BGP and BFD go on: no router can notice"},
		{"flap", "a leaf's port to a spine goes off and on, five times in four seconds"},
		{"spine-killed", "every routing daemon of a spine is killed; its kernel goes on forwarding"},
		{"mtu", "a leaf's port to a spine has an MTU of 1500"},
		{"rule-missing", "a host loses the routing rule of its second rail"},
		{"hash-policy", "a leaf chooses among its spines by addresses alone"},
	}
}

// DrillConfig is how a drill is done.
type DrillConfig struct {
	Phase   time.Duration // before the fault, and with it; 3 s and 5 s are usual
	During  time.Duration
	Hosts   []string // where ranks run; up to four without it: two behind each of two leaves
	Program []string // starts a rank of bench.Steady; nil for no ranks
	Bytes   int      // of an operation
	Env     []string // of ranks
	Drift   func() ([]string, error)
	Log     func(format string, args ...any)

	// Until, if set, keeps the fault after During until it returns true, for at most a minute. It gets how many flows are dead, and
	// what was noticed so far.
	Until func(dead int, noticed []Notice) bool
}

// Drill is the report on one fault.
type Drill struct {
	Fault    Fault    `json:"fault"`
	Where    string   `json:"where"`
	Probe    Probe    `json:"probe"`
	Shares   []Share  `json:"shares"`
	Noticed  []Notice `json:"noticed"`
	Drift    []string `json:"drift"`       // what weft net check found while the fault was there
	Restored float64  `json:"restored_ms"` // after the repair, until every leaf had all its ways again; -1: not within the time limit
	Runtime  *Runtime `json:"runtime"`     // null where no ranks ran
}

// Probe is what packets of a fixed rate met.
type Probe struct {
	From     string  `json:"from"`
	To       string  `json:"to"`
	Flows    int     `json:"flows"`
	Interval float64 `json:"interval_ms"` // between the packets of a flow
	Bytes    int     `json:"bytes"`
	Sent     int     `json:"sent"`
	Lost     int     `json:"lost"`
	Hit      int     `json:"flows_hit"`      // that lost anything
	Dead     int     `json:"flows_dead"`     // that were still dead when the fault was repaired
	Packets  int     `json:"outage_packets"` // the longest row of lost packets of a flow
	Outage   float64 `json:"outage_ms"`      // and how long it lasted
}

// Share says over which port the packets of the probe left.
type Share struct {
	Port   string  `json:"port"`
	Before float64 `json:"before"` // of all packets, 0 to 1
	During float64 `json:"during"`
}

// Notice is somebody who noticed a fault.
type Notice struct {
	Who  string  `json:"who"`
	What string  `json:"what"`
	MS   float64 `json:"ms"` // after the fault
}

// Runtime is what weft's own ranks did: one all-reduce after the other.
type Runtime struct {
	Ranks  int    `json:"ranks"`
	Bytes  int    `json:"bytes"`
	Before Phase  `json:"before"`
	During Phase  `json:"during"`
	After  Phase  `json:"after"`
	Wrong  int    `json:"wrong"`      // elements of results
	Lost   int    `json:"paths_lost"` // connections that ranks gave up
	Back   int    `json:"paths_back"`
	Failed string `json:"failed,omitempty"` // why the run ended early

	Known   int       `json:"connections"` // over the rails, before the fault
	Suspect []Suspect `json:"suspects"`    // cables that explain the lost connections
}

// Phase is a part of a drill.
type Phase struct {
	Seconds float64   `json:"seconds"`
	Ops     int       `json:"operations"`
	MBps    float64   `json:"busbw_MBps"`
	Longest float64   `json:"longest_ms"` // operation
	Rails   []float64 `json:"rails"`      // share of bytes that hosts sent, by rail
}

// Suspect is a cable that lost connections have in common.
type Suspect struct {
	Port  string `json:"port"`  // its end at the higher tier: the spine's
	Other string `json:"other"` // its other end
	Lost  int    `json:"lost"`  // connections over it that were lost
	Of    int    `json:"of"`    // all lost connections
	// Proof is what packets showed that were sent over this cable and over no other suspect.
	Proof string `json:"proof,omitempty"`
}

// suspects finds what explains the lost: what most of them crossed and no
// working one did. Every way is a list of cables; the answer has the cables
// with the most lost ways, in order.
func suspects(lost, works [][]int) (cables []int, most int) {
	hit := crossings(lost)
	for c := range crossings(works) {
		delete(hit, c)
	}
	for _, c := range slices.Sorted(maps.Keys(hit)) {
		if hit[c] > most {
			cables, most = nil, hit[c]
		}
		if hit[c] == most {
			cables = append(cables, c)
		}
	}
	return cables, most
}

// crossings counts by cable the ways that cross it.
func crossings(ways [][]int) map[int]int {
	hit := map[int]int{}
	for _, way := range ways {
		seen := map[int]bool{}
		for _, c := range way {
			if !seen[c] {
				hit[c]++
			}
			seen[c] = true
		}
	}
	return hit
}

// outage sums up which packets of a flow arrived: how many were lost and the
// longest row of lost ones, with the time from the first of the row to the packet after it.
func outage(sent []int64, got []bool) (lost, row int, lasted time.Duration) {
	begin := -1
	for i := 0; i <= len(got); i++ {
		if i < len(got) && !got[i] {
			lost++
			if begin < 0 {
				begin = i
			}
			continue
		}
		if begin >= 0 && i-begin > row {
			row = i - begin
			end := i
			if end == len(got) {
				end--
			}
			lasted = time.Duration(sent[end] - sent[begin])
		}
		begin = -1
	}
	return lost, row, lasted
}

func (r *Runtime) print(w io.Writer) {
	for _, x := range []struct {
		name string
		p    *Phase
	}{{"before", &r.Before}, {"during", &r.During}, {"after", &r.After}} {
		var rails []string
		for _, s := range x.p.Rails {
			rails = append(rails, fmt.Sprintf("%.0f%%", 100*s))
		}
		fmt.Fprintf(w, "  %-9s %6.1f MB/s bus bandwidth, %d operations in %.1f s, longest %.0f ms, rails %s\n",
			x.name, x.p.MBps, x.p.Ops, x.p.Seconds, x.p.Longest, strings.Join(rails, " "))
	}
	fmt.Fprintf(w, "  runtime   %d ranks: %d of %d connections given up, %d back, %d wrong elements\n",
		r.Ranks, r.Lost, r.Known, r.Back, r.Wrong)
	if r.Failed != "" {
		fmt.Fprintf(w, "  runtime   ended early: %s\n", r.Failed)
	}
	for _, s := range r.Suspect {
		fmt.Fprintf(w, "  suspect   %s, cable to %s: crossed by %d of %d lost connections and by no working one\n",
			s.Port, s.Other, s.Lost, s.Of)
		if s.Proof != "" {
			fmt.Fprintf(w, "            %s\n", s.Proof)
		}
	}
}

// Print writes a report for people.
func (d *Drill) Print(w io.Writer) {
	fmt.Fprintf(w, "%s  %s\n", d.Fault.Name, d.Fault.Does)
	fmt.Fprintf(w, "  where     %s\n", d.Where)
	p := &d.Probe
	fmt.Fprintf(w, "  packets   %d of %d lost, %d flows of %d hit; longest outage of a flow %d packets, %.0f ms (%s to %s, one in %.0f ms)\n",
		p.Lost, p.Sent, p.Hit, p.Flows, p.Packets, p.Outage, p.From, p.To, p.Interval)
	if p.Dead > 0 {
		fmt.Fprintf(w, "            %d of %d flows were still dead when the fault was repaired: routing did not heal it\n", p.Dead, p.Flows)
	}
	for _, s := range d.Shares {
		fmt.Fprintf(w, "  share     %-16s %3.0f%% before, %3.0f%% during\n", s.Port, 100*s.Before, 100*s.During)
	}
	if len(d.Noticed) == 0 {
		fmt.Fprintln(w, "  noticed   by nobody")
	}
	for _, n := range d.Noticed {
		fmt.Fprintf(w, "  noticed   %7.0f ms  %s: %s\n", n.MS, n.Who, n.What)
	}
	for _, f := range d.Drift {
		fmt.Fprintf(w, "  check     %s\n", f)
	}
	if d.Runtime != nil {
		d.Runtime.print(w)
	}
	if d.Restored >= 0 {
		fmt.Fprintf(w, "  repaired  all ways back after %.0f ms\n", d.Restored)
	} else {
		fmt.Fprintln(w, "  repaired  but some ways did not come back within the time limit")
	}
}
