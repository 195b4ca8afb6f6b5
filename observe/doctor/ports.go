package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// portLimits are totals above which a port is worth a look, after infiniband-diags.
var portLimits = []struct {
	name  string
	limit uint64
}{
	{"link_error_recovery", 10}, {"link_downed", 10}, {"port_rcv_errors", 10}, {"port_rcv_remote_physical_errors", 100},
	{"port_rcv_switch_relay_errors", 100},
	{"port_xmit_discards", 100}, {"port_xmit_constraint_errors", 100}, {"port_rcv_constraint_errors", 100},
	{"local_link_integrity_errors", 10},
	{"excessive_buffer_overrun_errors", 10}, {"VL15_dropped", 100}, {"symbol_error", 1000}, {"rx_icrc_encapsulated", 1},
}

// zeroIsNormal are counters of which a healthy port has none. Links go down when hosts
// start, and symbol errors are usual on fast links.
var zeroIsNormal = []string{"link_error_recovery", "port_rcv_errors", "local_link_integrity_errors", "excessive_buffer_overrun_errors",
	"port_rcv_remote_physical_errors"}

func portName(p Port) string {
	if p.Switch {
		return fmt.Sprintf("%s port %d", cmp.Or(p.Name, p.Device), p.Port)
	}
	if strings.HasPrefix(p.Device, "lid ") { // the fabric's own name: whoever asked
		return fmt.Sprintf("%s port %d", p.Device, p.Port)
	}
	if p.Port > 1 {
		return named(p.Host, fmt.Sprintf("%s port %d", p.Device, p.Port))
	}
	return named(p.Host, p.Device)
}

// portKind is the link layer and the family of an adapter: mlx5_3 is not held against mlx4_0.
func portKind(p Port) string {
	family, _, numbered := strings.Cut(p.Device, "_")
	if !numbered { // ibp12s0, rocep4s0
		family = strings.TrimRight(p.Device, "0123456789")
		family = family[:len(family)-len(strings.TrimLeft(family, "abcdefghijklmnopqrstuvwxyz"))]
	}
	return p.Layer + " " + family
}

// portRules judges ports one by one, then their counters, then cables and switches. Several readings of a port are
// compared: growth says more than a total.
func (d *diag) portRules() {
	seen := d.portsSeen()
	samples := map[string][]Port{}
	var order []string
	for _, p := range d.c.Ports {
		name := portName(p)
		s := Subject{Devices: []string{name}}
		if !p.Switch && p.Host != "" {
			s.Hosts = []string{p.Host}
		}
		if p.Problem != "" && p.Device == "" {
			d.portUnread(p, s)
			continue
		}
		d.port(p, s, seen)
		if len(p.Counters) > 0 {
			if samples[name] == nil {
				order = append(order, name)
			}
			samples[name] = append(samples[name], p)
		}
	}
	for _, name := range order {
		d.counters(name, samples[name], samples)
	}
	d.cables()
	d.switches()
	d.pairTests()
}

// switches passes on what switches report of their own hardware: fans, power supplies, heat.
func (d *diag) switches() {
	for _, w := range d.c.Switches {
		if len(w.Problems) > 0 {
			d.find("switch-hardware", Subject{Devices: []string{strings.TrimSpace(w.Name + " " + w.GUID)}}, w.Problems...)
		}
	}
}

// portsSeen is what the ports of all hosts have in common.
type portsSeen struct {
	rates    map[string]map[float64]int // ports of a kind by rate
	usual    map[string]float64         // the rate that most ports of a kind have
	layers   map[string]bool            // of active ports
	active   map[string]int             // active ports of a host
	device   map[string][2]int          // by device name: active ports, all
	disabled map[string]bool            // hosts with a port that is switched off
}

// portsSeen counts what is usual in the case, so that a port can be judged against its likes.
func (d *diag) portsSeen() portsSeen {
	rates := map[string]map[float64]int{}
	layers := map[string]bool{}
	active := map[string]int{}
	byDevice := map[string][2]int{}
	disabled := map[string]bool{}
	for _, p := range d.c.Ports {
		if p.Switch || p.State == "" {
			continue
		}
		disabled[p.Host] = disabled[p.Host] || strings.EqualFold(p.Phys, "Disabled")
		x := byDevice[p.Device]
		x[1]++
		if p.State == "Active" {
			active[p.Host]++
			x[0]++
			if p.Rate > 0 {
				layers[p.Layer] = true
				k := portKind(p)
				if rates[k] == nil {
					rates[k] = map[float64]int{}
				}
				rates[k][p.Rate]++
			}
		}
		byDevice[p.Device] = x
	}
	return portsSeen{rates, usualRates(rates), layers, active, byDevice, disabled}
}

// usualRates is the rate that most ports of each kind have, and the higher one of two that are as frequent.
func usualRates(rates map[string]map[float64]int) map[string]float64 {
	usual := map[string]float64{}
	for k, m := range rates {
		for _, r := range slices.Sorted(maps.Keys(m)) {
			if m[r] > m[usual[k]] || m[r] == m[usual[k]] && r > usual[k] {
				usual[k] = r
			}
		}
	}
	return usual
}

// portUnread tells of a tool that could not read its device.
func (d *diag) portUnread(p Port, s Subject) {
	s.Devices = nil
	if p.Name != "" {
		s.Devices = []string{named(p.Host, p.Name)}
	}
	f := d.find("ib-tool-failed", s, p.At)
	if p.Name != "" {
		f.Cause = "device " + p.Name + " cannot be read: its driver or its files in /sys are gone, or a container does not see it"
		f.Fix = "ls /sys/class/infiniband/" + p.Name + "; the kernel log of its driver; reset or replace the NIC"
	}
}

// port judges the state, the rate and the bit errors of one port.
func (d *diag) port(p Port, s Subject, seen portsSeen) {
	up := p.State == "" || p.State == "Active" || p.State == "Link up"
	if up && p.Problem != "" {
		d.find("ber-high", s, p.At).Cause = "mlxlink: " + p.Problem
	}
	if !up && !p.Switch {
		d.portDown(p, s, seen)
	}
	if up && p.SMLID == 0 && p.Layer == "InfiniBand" {
		d.find("no-subnet-manager", s, p.At)
	}
	k := portKind(p)
	if rates, usual := seen.rates[k], seen.usual[k]; up && p.Rate > 0 && p.Rate < usual && (rates[p.Rate]*2 < rates[usual] || len(rates) > 2) {
		f := d.find("port-slow", s, p.At)
		f.Cause = fmt.Sprintf("%.0f Gbit/s, most ports of this kind have %.0f: a lane or a speed was lost", p.Rate, usual)
		if p.Layer == "Ethernet" && seen.layers["InfiniBand"] || seen.device[p.Device][0] > 1 && sameRole(d.c.Ports, p) {
			f.Severity = Info // all ports of this name are so: a management port
			f.Confidence = 0.4
		}
	}
	if p.EffBER > 1e-15 || p.RawBER > 1e-6 {
		f := d.find("ber-high", s, p.At)
		f.Cause = fmt.Sprintf("raw BER %.0e, effective BER %.0e: cable or optic", p.RawBER, p.EffBER)
		if p.EffBER > 1e-12 || p.RawBER > 1e-5 {
			f.Severity = Critical
		}
	}
}

// unmanaged says whether the link is up and waits for a subnet manager to give it an address.
func (p *Port) unmanaged() bool {
	return (strings.HasPrefix(p.State, "Init") || p.State == "Armed") && strings.EqualFold(p.Phys, "LinkUp")
}

// downEverywhere weighs a port that is down on every host: it is likely not wired, unless it looks for a partner while the
// ports that are not wired are switched off.
func (f *Finding) downEverywhere(p Port, seen portsSeen) {
	if seen.disabled[p.Host] && strings.EqualFold(p.Phys, "Polling") {
		f.Severity, f.Confidence = max(Warning, f.Severity), 0.7
		f.Cause = "it looks for a partner and finds none, on every host that was read; ports that are not wired are switched off on this host, so this one should be: cable or switch port"
		return
	}
	f.Severity = min(f.Severity, Info)
	f.Cause += " (down on every host that was read: perhaps not wired)"
}

// portDown weighs a port that is down: one that is down everywhere is not wired; management Ethernet may be.
func (d *diag) portDown(p Port, s Subject, seen portsSeen) {
	if strings.EqualFold(p.Phys, "Disabled") {
		d.find("port-disabled", s, p.At)
		return
	}
	f := d.find("port-down", s, p.At)
	why, fix := p.whyDown()
	f.Cause = fmt.Sprintf("state %s, physical %s: %s", p.State, cmp.Or(p.Phys, "unknown"), why)
	f.Fix = cmp.Or(fix, f.Fix)
	role := seen.device[p.Device]
	switch {
	case seen.active[p.Host] == 0 && len(d.c.Ports) > 1:
	case role[1] > 1 && role[0] == 0:
		f.downEverywhere(p, seen)
	case p.Layer == "Ethernet" && seen.layers["InfiniBand"]:
		if len(f.Evidence) == 1 {
			f.Severity, f.Confidence = Warning, 0.5
		}
	}
	if seen.needed(p) {
		f.Severity = Critical
	}
}

// needed says whether a port should be up: ports of its name are active elsewhere, and its host has active ones.
func (seen *portsSeen) needed(p Port) bool {
	return p.Layer != "Ethernet" && seen.active[p.Host] > 0 && seen.device[p.Device][0] > 0
}

// whyDown is what mlxlink says of a port that is down; else what it can be. fix is "" where there is no better one than usual.
func (p *Port) whyDown() (why, fix string) {
	switch {
	case p.unmanaged():
		return "the cable is good, and no subnet manager has set the port up",
			"is a subnet manager at work (sminfo), and does it reach this port? restart it; its log names ports that it gives up"
	case p.Problem != "":
		return "mlxlink: " + p.Problem, ""
	}
	return "cable, switch port, or no subnet manager", ""
}

// bestPairs is the fastest bandwidth test of each NIC. Small messages measure latency and do not count.
func (d *diag) bestPairs() map[string]Bench {
	best := map[string]Bench{}
	for _, b := range d.c.Bench {
		if b.Device != "" && strings.HasSuffix(b.Op, "_bw") && b.Size >= 64<<10 && b.Alg > best[b.Device].Alg {
			best[b.Device] = b
		}
	}
	return best
}

// pairTests holds the bandwidth between two NICs against the rate of the port.
func (d *diag) pairTests() {
	best := d.bestPairs()
	for _, dev := range slices.Sorted(maps.Keys(best)) {
		b := best[dev]
		for _, p := range d.c.Ports {
			if p.Device != dev || p.Switch || p.Rate <= 0 || p.State != "Active" {
				continue
			}
			if b.Alg < 0.8*p.Rate/8 {
				f := d.find("pair-slow", Subject{Hosts: []string{p.Host}, Devices: []string{named(p.Host, dev)}}, b.At, p.At)
				f.Cause = fmt.Sprintf("%.1f GB/s at best, the port could do %.1f GB/s", b.Alg, p.Rate/8)
			}
			break
		}
	}
}

// sameRole says whether all ports of this device name have this rate.
func sameRole(all []Port, p Port) bool {
	n := 0
	for _, q := range all {
		if !q.Switch && q.Device == p.Device && q.State == "Active" {
			if q.Rate != p.Rate {
				return false
			}
			n++
		}
	}
	return n > 1
}

// counters judges the counts of one port, of which list has the readings in the order of time. all are the ports of the
// case: the same count on other ports tells an old fabric from a bad cable.
func (d *diag) counters(name string, list []Port, all map[string][]Port) {
	p := list[len(list)-1]
	s := Subject{Devices: []string{name}}
	if !p.Switch && p.Host != "" {
		s.Hosts = []string{p.Host}
	}
	ev := func(c string) Evidence {
		e := p.At
		e.Text = fmt.Sprintf("%s %s = %d", name, c, p.Counters[c])
		return e
	}
	others := func(counter string) (v []float64) {
		for n, l := range all {
			if n != name && l[0].Switch == p.Switch {
				v = append(v, float64(l[len(l)-1].Counters[counter]))
			}
		}
		return v
	}
	if len(list) > 1 {
		d.countersGrew(name, s, list[0], p)
	}
	for _, x := range portLimits {
		v := p.Counters[x.name]
		if v < x.limit {
			// A few since nobody knows when: worth a second reading where zero is normal.
			if v > 0 && slices.Contains(zeroIsNormal, x.name) && d.has("port-errors") == nil {
				d.find("port-errors-few", s, ev(x.name))
			}
			continue
		}
		if o := others(x.name); len(o) >= 3 && float64(v) < 10*median(o) || seldom(p, x.name) {
			continue
		}
		f := d.find("port-errors", s, ev(x.name))
		if x.name == "port_rcv_remote_physical_errors" && len(f.Evidence) == 1 {
			f.Fix = "look one hop up: bad packets were marked there"
		}
	}
	d.rdmaCounters(p, s, ev)
	if v := float64(p.Counters["port_xmit_wait"]); v > 1e6 {
		if o := others("port_xmit_wait"); len(o) >= 3 {
			slices.Sort(o)
			high := o[len(o)*3/4]
			if v > 10*math.Max(high, 1e5) {
				d.find("port-congested", s, ev("port_xmit_wait"))
			}
		}
	}
}

// rdmaCounters judges what RDMA had to repeat. Retries count against the packets received: above one in ten thousand.
func (d *diag) rdmaCounters(p Port, s Subject, ev func(string) Evidence) {
	if p.Counters["rp_cnp_ignored"] > 0 {
		d.find("cnp-ignored", s, ev("rp_cnp_ignored"))
	}
	if v := p.Counters["req_transport_retries_exceeded"]; v > 0 {
		f := d.find("rdma-retries-exceeded", s, ev("req_transport_retries_exceeded"))
		if v < 10 {
			f.Severity = Info
		}
	}
	rx := float64(p.Counters["port_rcv_packets"])
	for _, c := range []string{"out_of_sequence", "packet_seq_err", "duplicate_request", "local_ack_timeout_err"} {
		if v := p.Counters[c]; v > 100 && rx > 0 && float64(v) > 1e-4*rx {
			d.find("rdma-retries", s, ev(c))
		}
	}
}

// seldom says that an error is rare beside the packets that passed.
func seldom(p Port, counter string) bool {
	share := map[string]float64{"port_rcv_switch_relay_errors": 1e-6, "symbol_error": 1e-6, "port_xmit_discards": 1e-7}[counter]
	packets := float64(p.Counters["port_rcv_packets"] + p.Counters["port_xmit_packets"])
	return packets > 0 && float64(p.Counters[counter]) < share*packets
}

// countersGrew compares the first reading of a port with its last.
func (d *diag) countersGrew(name string, s Subject, a, p Port) {
	for _, x := range portLimits {
		b, was := p.Counters[x.name], a.Counters[x.name]
		if b <= was || x.name == "port_rcv_switch_relay_errors" || x.name == "VL15_dropped" {
			continue
		}
		e := p.At
		e.Text = fmt.Sprintf("%s %s grew from %d to %d", name, x.name, was, b)
		f := d.find("port-errors-growing", s, e)
		if x.name == "port_rcv_remote_physical_errors" {
			f.Fix = "look one hop up: bad packets were marked there"
		}
		if b-was >= alarming[x.name] {
			f.Severity = Critical
		} else if len(f.Evidence) == 1 {
			f.Severity = Warning
		}
	}
}

// alarming is by how much a counter has to grow to be critical; any growth of the others is.
var alarming = map[string]uint64{"symbol_error": 120, "link_error_recovery": 5, "port_xmit_discards": 100}

// cables judges links of a fabric.
func (d *diag) cables() {
	usual := d.usualCables()
	seen := map[string]bool{}
	for _, c := range d.c.Cables {
		if c.B == "" || strings.Contains(c.A+c.B, "ggregation") {
			continue
		}
		link := fmt.Sprintf("%s:%d - %s:%d", c.A, c.APort, c.B, c.BPort)
		back := fmt.Sprintf("%s:%d - %s:%d", c.B, c.BPort, c.A, c.APort)
		if seen[back] {
			continue
		}
		seen[link] = true
		d.cable(c, Subject{Links: []string{link}}, usual[cableKind(c)])
	}
}

// cableKind tells cables apart by what is at their ends and by the file that lists them.
func cableKind(c Cable) string {
	a, b := "CA", "CA"
	if c.ASwitch {
		a = "SW"
	}
	if c.BSwitch {
		b = "SW"
	}
	if a > b {
		a, b = b, a
	}
	return a + b + c.At.File
}

// usualCables counts active cables by kind, width and speed.
func (d *diag) usualCables() map[string]map[string]int {
	usual := map[string]map[string]int{}
	for _, c := range d.c.Cables {
		if c.B == "" || !strings.HasPrefix(c.State, "Active") || c.Speed == "" || strings.Contains(c.A+c.B, "ggregation") {
			continue
		}
		k := cableKind(c)
		if usual[k] == nil {
			usual[k] = map[string]int{}
		}
		usual[k][fmt.Sprintf("%dx %s", c.Width, c.Speed)]++
	}
	return usual
}

// hosts names the hosts at the cable's ends: the first word of an adapter's description.
func (c Cable) hosts() (list []string) {
	for _, n := range []struct {
		name string
		sw   bool
	}{{c.A, c.ASwitch}, {c.B, c.BSwitch}} {
		if f := strings.Fields(n.name); !n.sw && len(f) > 0 {
			list = append(list, f[0])
		}
	}
	return list
}

// cable judges one cable; usual counts the cables of its kind by width and speed.
func (d *diag) cable(c Cable, s Subject, usual map[string]int) {
	if c.Problem != "" {
		f := d.find("port-unhealthy", s, c.At)
		f.Cause = "the subnet manager marked it " + c.Problem
		return
	}
	s.Hosts = append(s.Hosts, c.hosts()...)
	if c.WidthMax > c.Width || c.SpeedMax != "" {
		f := d.find("cable-degraded", s, c.At)
		f.Cause = fmt.Sprintf("%dX %s; both ends could do more", c.Width, c.Speed)
		return
	}
	if strings.HasPrefix(c.State, "Active") && c.Speed != "" {
		d.slowerThanUsual(c, s, usual)
	}
	if !strings.HasPrefix(c.State, "Active") && c.State != "" && !strings.HasPrefix(c.State, "Down") {
		f := d.find("port-down", s, c.At)
		f.Cause = "state " + c.State
	}
}

// slowerThanUsual finds a cable that runs slower than most of its kind. Fewer than eight of the kind tell nothing.
func (d *diag) slowerThanUsual(c Cable, s Subject, usual map[string]int) {
	mine := usual[fmt.Sprintf("%dx %s", c.Width, c.Speed)]
	all, best := 0, ""
	for _, v := range slices.Sorted(maps.Keys(usual)) {
		all += usual[v]
		if best == "" || usual[v] > usual[best] {
			best = v
		}
	}
	if all >= 8 && mine*5 <= all && cableRate(c.Width, c.Speed) < bestRate(best) {
		f := d.find("cable-degraded", s, c.At)
		if len(f.Evidence) == 1 {
			f.Severity, f.Confidence = Warning, 0.6
		}
		f.Cause = fmt.Sprintf("%dx %s, most links of its kind are %s", c.Width, c.Speed, best)
	}
}

var ibSpeeds = map[string]float64{"SDR": 2.5, "DDR": 5, "QDR": 10, "FDR10": 10, "FDR": 14, "EDR": 25, "HDR": 50, "NDR": 100, "XDR": 200}

func cableRate(width int, speed string) float64 {
	if v, ok := ibSpeeds[speed]; ok {
		return v * float64(width)
	}
	v, _ := strconv.ParseFloat(strings.TrimSuffix(speed, " Gbps"), 64)
	return v * float64(width)
}

func bestRate(text string) float64 {
	w, s, _ := strings.Cut(text, "x ")
	n, _ := strconv.Atoi(w)
	return cableRate(n, s)
}

var prioPause = regexp.MustCompile(`^rx_prio(\d)_pause$`)

// etherRules judges counters of Ethernet NICs: pause frames and drops, by priority.
func (d *diag) etherRules() {
	for _, e := range d.c.Ether {
		s := Subject{Hosts: []string{e.Host}, Devices: []string{named(e.Host, cmp.Or(e.Device, "interface"))}}
		ev := func(c string) Evidence {
			x := e.At
			x.Text = fmt.Sprintf("%s = %d", c, e.Counters[c])
			return x
		}
		if e.Counters["tx_pause_storm_error_events"] > 0 {
			d.find("pause-storm", s, ev("tx_pause_storm_error_events"))
		} else if e.Counters["tx_pause_storm_warning_events"] > 0 {
			f := d.find("pause-storm", s, ev("tx_pause_storm_warning_events"))
			f.Severity, f.Confidence = Warning, 0.7
		}
		// The priority that carries RoCE is the one with the most bytes, other than 0.
		roce, most := -1, uint64(0)
		var paused []string
		for i := range 8 {
			b := e.Counters[fmt.Sprintf("rx_prio%d_bytes", i)] + e.Counters[fmt.Sprintf("tx_prio%d_bytes", i)]
			if i > 0 && b > most {
				roce, most = i, b
			}
		}
		for _, c := range slices.Sorted(maps.Keys(e.Counters)) {
			if m := prioPause.FindStringSubmatch(c); m != nil && e.Counters[c] > 0 {
				paused = append(paused, c)
			}
		}
		if len(paused) > 1 {
			f := d.find("pause-wrong-priority", s)
			for _, c := range paused {
				f.addEvidence(ev(c))
			}
		}
		if c := fmt.Sprintf("rx_prio%d_discards", roce); roce >= 0 && e.Counters[c] > 0 {
			d.find("lossless-drops", s, ev(c))
		}
		rx := e.Counters["rx_packets_phy"] + e.Counters["rx_packets"]
		for _, c := range []string{"rx_discards_phy", "tx_discards_phy"} {
			if v := e.Counters[c]; v > 1000 && (rx == 0 || float64(v) > 1e-6*float64(rx)) {
				d.find("nic-drops", s, ev(c))
			}
		}
		if e.Counters["module_high_temp"] > 0 {
			d.find("nic-heat", s, ev("module_high_temp"))
		}
		if v := e.Counters["link_down_events_phy"]; v > 10 {
			f := d.find("port-errors", s, ev("link_down_events_phy"))
			f.Layer = "fabric"
		}
		bits := 8 * float64(e.Counters["rx_bytes_phy"])
		if v := e.Counters["rx_pcs_symbol_err_phy"]; v > 0 && bits > 1e12 && float64(v)/bits > 1e-12 {
			f := d.find("ber-high", s, ev("rx_pcs_symbol_err_phy"))
			f.Cause = fmt.Sprintf("%.0e errors a bit after correction: cable or optic", float64(v)/bits)
		}
	}
}
