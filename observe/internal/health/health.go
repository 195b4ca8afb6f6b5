// Package health turns samples of counters and gauges into states: good, bad or
// unknown. A counter is judged by how much it grew in a window, never by its total:
//
//	total  120 ── 120 ── 135 ── 150 ── 3        a reset: the value went down
//	growth       0     +15    +15    +3
//
// A state becomes bad at once and is left only after quiet time, ten windows, so that
// a link that flaps does not look healthy between two flaps. What was not sampled is
// unknown, not good. Baselines belong to a start of the host: after a reboot they
// begin anew.
//
// The package is pure: the time of a sample is an argument.
package health

import (
	"cmp"
	"fmt"
	"slices"
)

// State is what is known of a check.
type State int

const (
	Unknown State = iota
	Good
	Warn
	Bad
)

func (s State) String() string { return [...]string{"unknown", "good", "warn", "bad"}[s] }

// MarshalText writes the word.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the word.
func (s *State) UnmarshalText(b []byte) error {
	for x := Unknown; x <= Bad; x++ {
		if x.String() == string(b) {
			*s = x
			return nil
		}
	}
	return fmt.Errorf("unknown state %q; known: unknown, good, warn, bad", b)
}

// Rule says from when on a metric is bad.
type Rule struct {
	Metric string
	Gauge  bool    // judged by value, not by growth
	Below  bool    // of a gauge: bad below the limit
	Warn   float64 // growth in the window above which to warn; 0 means none
	Bad    float64 // growth in the window above which it is bad; 0 means none
	Any    bool    // any growth is bad
	Window float64 // seconds
	Why    string
	Fix    string
}

// Rules for counters of ports, PCIe devices and hosts. Limits after NVSentinel,
// infiniband-diags, gpud and DCGM.
var Rules = []Rule{
	{Metric: "link_downed", Any: true, Window: 60, Why: "a link was lost", Fix: "cable or port; drain"},
	{Metric: "symbol_error", Warn: 100, Bad: 120, Window: 3600, Why: "errors of the physical layer",
		Fix: "clean or replace the cable or optic"},
	{Metric: "link_error_recovery", Warn: 5, Bad: 20, Window: 60, Why: "the link retrains", Fix: "cable; firmware"},
	{Metric: "port_rcv_errors", Warn: 600, Bad: 6000, Window: 60, Why: "malformed packets", Fix: "cable"},
	{Metric: "port_rcv_remote_physical_errors", Warn: 1, Bad: 100, Window: 300, Why: "packets that an upstream hop marked bad",
		Fix: "look one hop up"},
	{Metric: "port_xmit_discards", Warn: 6000, Bad: 60000, Window: 60, Why: "packets discarded on sending", Fix: "find the stuck receiver"},
	{Metric: "port_xmit_constraint_errors", Warn: 1, Bad: 100, Window: 300, Why: "partition key", Fix: "fix the partition key"},
	{Metric: "port_rcv_constraint_errors", Warn: 1, Bad: 100, Window: 300, Why: "partition key", Fix: "fix the partition key"},
	{Metric: "local_link_integrity_errors", Any: true, Window: 60, Why: "physical errors above the hardware's limit",
		Fix: "replace cable or port"},
	{Metric: "excessive_buffer_overrun_errors", Any: true, Window: 60, Why: "flow control broke", Fix: "firmware; replace"},
	{Metric: "VL15_dropped", Warn: 50, Window: 300, Why: "management packets dropped", Fix: "subnet manager's load; firmware"},
	{Metric: "local_ack_timeout_err", Warn: 60, Window: 60, Why: "no answer in time",
		Fix: "compare with peers: one sender is its path, all senders to one host are that host"},
	{Metric: "rnr_nak_retry_err", Warn: 60, Window: 60, Why: "a receiver had no buffer", Fix: "slow receiver"},
	{Metric: "req_transport_retries_exceeded", Any: true, Window: 60, Why: "a connection was given up",
		Fix: "path or peer; normal when a job is killed"},
	{Metric: "rp_cnp_ignored", Any: true, Window: 60, Why: "congestion notifications are ignored", Fix: "enable ECN for the RoCE priority"},
	{Metric: "roce_adp_retrans_to", Warn: 1, Bad: 60, Window: 60, Why: "adaptive retransmission timed out", Fix: "loss or a black hole"},
	{Metric: "rx_icrc_encapsulated", Warn: 1, Bad: 60, Window: 60, Why: "payload was corrupted on the way",
		Fix: "NIC or switch memory, cable"},
	{Metric: "carrier_changes", Warn: 2, Bad: 5, Window: 86400, Why: "the interface goes up and down", Fix: "cable"},
	{Metric: "aer_fatal", Any: true, Window: 60, Why: "PCIe failed", Fix: "drain"},
	{Metric: "aer_nonfatal", Any: true, Window: 60, Why: "PCIe failed", Fix: "drain"},
	{Metric: "aer_correctable", Warn: 60, Window: 60, Why: "PCIe corrects errors", Fix: "reseat; riser"},
	{Metric: "pcie_replay", Warn: 8, Bad: 100, Window: 60, Why: "PCIe replays", Fix: "reseat; riser"},
	{Metric: "xid_fatal", Any: true, Window: 60, Why: "a GPU failed", Fix: "drain; see the Xid"},
	{Metric: "port_active", Gauge: true, Below: true, Bad: 1, Window: 30, Why: "the port is not active",
		Fix: "cable, switch port, subnet manager"},
	{Metric: "width_ratio", Gauge: true, Below: true, Bad: 1, Window: 30, Why: "fewer PCIe lanes than possible", Fix: "reseat"},
	{Metric: "memory_available", Gauge: true, Below: true, Warn: 0.05, Bad: 0.02, Window: 10, Why: "the host's memory is nearly full",
		Fix: "find who uses it (smem, ps); the kernel kills next"},
	{Metric: "prio_pause_us", Warn: 6e5, Bad: 6e6, Window: 60, Why: "the port was paused for more than a hundredth of the time",
		Fix: "find the slow receiver; another priority than the RoCE one is a wrong setting"},
	{Metric: "prio_discards", Any: true, Window: 60, Why: "packets of a lossless priority were dropped",
		Fix: "PFC and buffer settings of NIC and switch"},
	{Metric: "gpu_ecc", Any: true, Window: 60, Why: "uncorrectable memory errors of a GPU", Fix: "drain; reset the GPU"},
	{Metric: "nvlinks", Gauge: true, Below: true, Bad: 1, Window: 30, Why: "fewer NVLinks are up than at the start",
		Fix: "nvidia-smi nvlink -s; drain"},
	{Metric: "listen_drops", Warn: 1, Window: 60, Why: "connections were refused for a full queue",
		Fix: "raise somaxconn and tcp_max_syn_backlog"},
	{Metric: "dev_shm_free", Gauge: true, Below: true, Warn: 1 << 30, Bad: 64 << 20, Window: 30, Why: "/dev/shm is nearly full",
		Fix: "--shm-size; remove stale nccl-* files"},
}

var ruleOf = func() map[string]*Rule {
	m := map[string]*Rule{}
	for i := range Rules {
		m[Rules[i].Metric] = &Rules[i]
	}
	return m
}()

// quiet is how many windows without growth end a state.
const quiet = 10

// Key names what a sample is of.
type Key struct {
	Device string `json:"device"`
	Port   string `json:"port,omitempty"`
	Metric string `json:"metric"`
}

// Event is a change of state.
type Event struct {
	Key
	At    float64 `json:"at"` // seconds since 1970
	From  State   `json:"from"`
	To    State   `json:"to"`
	Grown float64 `json:"grown"` // in the window, or the gauge's value
	Why   string  `json:"why"`
	Fix   string  `json:"fix"`
}

func (e Event) String() string {
	port := ""
	if e.Port != "" {
		port = " port " + e.Port
	}
	return fmt.Sprintf("%s%s %s: %s to %s (%g): %s", e.Device, port, e.Metric, e.From, e.To, e.Grown, e.Why)
}

type point struct{ at, grown float64 }

type series struct {
	has    bool
	last   float64
	at     float64
	seen   float64 // the first sample
	window []point
	state  State
	since  float64 // when the state began
	worst  float64 // when it was last as bad as its state
	low    float64 // of a gauge: since when it is beyond the limit, 0 if it is not
}

// Machine keeps the states of one host.
type Machine struct {
	boot string
	all  map[Key]*series
}

// New makes a machine without a past.
func New() *Machine { return &Machine{all: map[Key]*series{}} }

// Boot tells which start of the host the next samples belong to. Another one than
// before clears the baselines; states stay until they are left by quiet time.
func (m *Machine) Boot(id string) {
	if m.boot != "" && m.boot != id {
		for _, s := range m.all {
			s.has, s.window = false, nil
		}
	}
	m.boot = id
}

// Observe takes a sample and gives the change of state that it makes, if any. Samples
// of metrics without a rule are ignored.
func (m *Machine) Observe(at float64, k Key, value float64) (Event, bool) {
	r := ruleOf[k.Metric]
	if r == nil {
		return Event{}, false
	}
	s := m.all[k]
	if s == nil {
		s = &series{seen: at}
		m.all[k] = s
	}
	if at < s.at { // a clock that went back: begin anew
		s.window, s.seen, s.worst, s.since, s.low = nil, at, min(s.worst, at), min(s.since, at), 0
	}
	level, grown := Good, 0.0
	if r.Gauge {
		grown = value
		level = r.gauge(value)
		if level > Good {
			if s.low == 0 {
				s.low = at
			}
			if at-s.low < r.Window {
				level = max(Good, s.state) // not for long enough
			}
		} else {
			s.low = 0
		}
	} else {
		if s.has {
			d := value - s.last
			if d < 0 {
				d = value // a reset: it counted up to here from nothing
			}
			if d > 0 {
				s.window = append(s.window, point{at, d})
			}
		}
		for len(s.window) > 0 && s.window[0].at <= at-r.Window {
			s.window = s.window[1:]
		}
		for _, p := range s.window {
			grown += p.grown
		}
		level = r.growth(grown)
	}
	s.has, s.last, s.at = true, value, at
	next := s.state
	switch {
	case level >= s.state && level > Good:
		next, s.worst = level, at
		if n := len(s.window); n > 0 {
			s.worst = s.window[n-1].at
		}
	case s.state <= Good:
		next = Good
	case at-s.worst >= quiet*r.Window:
		next = level
		s.worst = at
	}
	if next == s.state {
		return Event{}, false
	}
	e := Event{Key: k, At: at, From: s.state, To: next, Grown: grown, Why: r.Why, Fix: r.Fix}
	s.state, s.since = next, at
	return e, true
}

func (r *Rule) growth(g float64) State {
	switch {
	case r.Any && g > 0, r.Bad > 0 && g > r.Bad:
		return Bad
	case r.Warn > 0 && g >= r.Warn:
		return Warn
	}
	return Good
}

func (r *Rule) gauge(v float64) State {
	over := func(limit float64) bool { return limit != 0 && (r.Below && v < limit || !r.Below && v > limit) }
	switch {
	case over(r.Bad):
		return Bad
	case over(r.Warn):
		return Warn
	}
	return Good
}

// Status is a check and its state.
type Status struct {
	Key
	State State   `json:"state"`
	Since float64 `json:"since"`
	Value float64 `json:"value"`
	Why   string  `json:"why,omitempty"`
	Fix   string  `json:"fix,omitempty"`
}

// Lost makes states unknown whose last sample is older than a limit, and gives the
// changes.
func (m *Machine) Lost(at, older float64) []Event {
	var out []Event
	for k, s := range m.all {
		if at-s.at > older && s.state != Unknown {
			out = append(out, Event{Key: k, At: at, From: s.state, To: Unknown, Why: "no samples any more"})
			s.state, s.since, s.has = Unknown, at, false
		}
	}
	slices.SortFunc(out, func(a, b Event) int { return compare(a.Key, b.Key) })
	return out
}

// States lists all checks in the order of device, port and metric.
func (m *Machine) States() []Status {
	out := make([]Status, 0, len(m.all))
	for k, s := range m.all {
		x := Status{Key: k, State: s.state, Since: s.since, Value: s.last}
		if s.state > Good {
			x.Why, x.Fix = ruleOf[k.Metric].Why, ruleOf[k.Metric].Fix
		}
		out = append(out, x)
	}
	slices.SortFunc(out, func(a, b Status) int { return compare(a.Key, b.Key) })
	return out
}

func compare(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Metric, b.Metric))
}
