package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Rules on what the kernel, the GPUs, the ports and the host say.

func named(host, dev string) string {
	if host == "" {
		return dev
	}
	return host + ":" + dev
}

// consequenceXids follow another error: the first decides.
var consequenceXids = map[int]bool{45: true, 43: true, 94: true, 154: true}

func (d *diag) kernelRules() {
	type key struct{ host, dev string }
	firsts := map[key]Kernel{}
	for _, k := range d.c.Kernel {
		if k.Kind == "xid" && !consequenceXids[k.Code] {
			if _, ok := firsts[key{k.Host, k.Device}]; !ok {
				firsts[key{k.Host, k.Device}] = k
			}
		}
	}
	corrected := map[key][]Kernel{}
	downs := map[key][]Kernel{}
	for _, k := range d.c.Kernel {
		s := Subject{Hosts: []string{k.Host}}
		if k.Device != "" {
			s.Devices = []string{named(k.Host, k.Device)}
		}
		switch k.Kind {
		case "xid":
			d.xid(k, s, firsts[key{k.Host, k.Device}])
		case "sxid":
			id := "nvswitch-event"
			if k.Fatal {
				id = "nvswitch-failed"
			}
			f := d.find(id, s, k.At)
			f.Cause = fmt.Sprintf("SXid %d: %s", k.Code, cmp.Or(k.Text, f.Cause))
		case "aer":
			if k.Fatal {
				d.find("pcie-errors", s, k.At)
			} else {
				corrected[key{k.Host, k.Device}] = append(corrected[key{k.Host, k.Device}], k)
			}
		case "nic_down":
			downs[key{k.Host, cmp.Or(k.F["if"], k.Device)}] = append(downs[key{k.Host, cmp.Or(k.F["if"], k.Device)}], k)
		case "nic_power", "nic_heat", "nic_cable", "nic_keys", "nic_dead", "peermem", "nccl_crash", "oom_kill", "hung_task", "iommu":
			id := map[string]string{"nic_power": "nic-power", "nic_heat": "nic-heat", "nic_cable": "nic-cable", "nic_keys": "nic-keys-exhausted", "nic_dead": "nic-firmware",
				"peermem": "peermem-context", "nccl_crash": d.crash(k), "oom_kill": "host-out-of-memory", "hung_task": "task-blocked", "iommu": "iommu-fault"}[k.Kind]
			f := d.find(id, s, k.At)
			if pid := k.F["pid"]; pid != "" {
				if p := d.j.procs[k.Host+":"+pid]; p != nil {
					for _, m := range p.members {
						f.Subject.Ranks = append(f.Subject.Ranks, m.rank)
					}
				} else if k.Host == "" {
					for _, p := range d.j.order {
						if strconv.Itoa(p.pid) == pid {
							f.Subject.Hosts = append(f.Subject.Hosts, p.host)
							for _, m := range p.members {
								f.Subject.Ranks = append(f.Subject.Ranks, m.rank)
							}
						}
					}
				}
			}
			if id == "host-out-of-memory" && !strings.Contains(strings.ToLower(k.Text), "python") && len(f.Subject.Ranks) == 0 {
				f.Severity, f.Confidence = Warning, 0.7
			}
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(corrected), func(a, b key) int { return cmp.Or(natural(a.host, b.host), natural(a.dev, b.dev)) }) {
		if list := corrected[k]; len(list) >= 10 {
			f := d.find("pcie-noise", Subject{Hosts: []string{k.host}, Devices: []string{named(k.host, k.dev)}}, list[0].At, list[len(list)-1].At)
			f.More += len(list) - 2
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(downs), func(a, b key) int { return cmp.Or(natural(a.host, b.host), natural(a.dev, b.dev)) }) {
		list := downs[k]
		// Once in the first minutes of a host is its start.
		if len(list) == 1 && list[0].Uptime > 0 && list[0].Uptime < 600 {
			continue
		}
		f := d.find("nic-link-down", Subject{Hosts: []string{k.host}, Devices: []string{named(k.host, k.dev)}})
		for _, x := range list {
			f.addEvidence(x.At)
		}
		if len(list) > 2 {
			f.Severity, f.Title = Critical, "a NIC loses its link again and again"
		}
	}
}

// crash says which bug a crash inside NCCL is.
func (d *diag) crash(k Kernel) string {
	var v [3]int
	known := false
	ras := len(d.c.RAS) > 0
	for _, jb := range d.j.jobs {
		if x, ok := jb.version(); ok {
			v, known = x, true
		}
	}
	for i := range d.c.Lines {
		if strings.Contains(d.c.Lines[i].Msg, "RAS handling") || strings.Contains(d.c.Lines[i].Msg, "RAS client connected") {
			ras = true
		}
	}
	switch {
	case known && ras && atLeast(v, 2, 24) && !atLeast(v, 2, 29, 2):
		return "ras-query-crash"
	case known && v == [3]int{2, 27, 7}:
		return "ras-thread-crash"
	}
	return "nccl-crash"
}

func (d *diag) xid(k Kernel, s Subject, first Kernel) {
	x, ok := xids[k.Code]
	if !ok {
		x = Xid{Code: k.Code, Name: "unknown", Meaning: "not in the table", Action: "ask the vendor", Severity: "warn"}
	}
	sev := x.Severity
	action := x.Action
	if k.F["unit"] != "" {
		intr, _ := strconv.ParseUint(strings.TrimPrefix(k.F["intr"], "0x"), 16, 64)
		status, _ := strconv.ParseUint(strings.TrimPrefix(k.F["status"], "0x"), 16, 64)
		if level, act, ok := nvlink5(k.Code, k.F["unit"], intr, status); ok {
			action = fmt.Sprintf("%s (%s, %s)", act, k.F["unit"], level)
			if strings.EqualFold(level, "Fatal") {
				sev = "fatal"
			} else if act == "ignore" {
				sev = "info"
			}
		} else if strings.EqualFold(k.F["severity"], "Fatal") {
			sev = "fatal"
		}
		if l := k.F["link"]; l != "" && l != "-1" {
			s.Links = []string{named(k.Host, k.Device) + " NVLink " + l}
		}
	}
	text := fmt.Sprintf("Xid %d (%s): %s", k.Code, strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(x.Name, "ROBUST_CHANNEL_"), "_", " ")), x.Meaning)
	id := map[string]string{"fatal": "gpu-failed", "warn": "gpu-fault"}[sev]
	if id == "" {
		id = "gpu-event"
	}
	if consequenceXids[k.Code] && first.Kind != "" && first.Code != k.Code {
		if f := d.index[d.xidOf(first.Code)]; f != nil {
			f.addEvidence(k.At)
			f.Consequences = append(f.Consequences, text)
			slices.Sort(f.Consequences)
			f.Consequences = slices.Compact(f.Consequences)
			return
		}
		id = "gpu-event"
	}
	f := d.find(id, s, k.At)
	if !strings.Contains(f.Cause, fmt.Sprintf("Xid %d ", k.Code)) {
		if f.Cause == byID[id].Cause {
			f.Cause, f.Fix = text, action
		} else {
			f.Cause += "; " + text
			if !strings.Contains(f.Fix, action) {
				f.Fix += "; " + action
			}
		}
		if x.Effect != "" {
			f.Consequences = append(f.Consequences, x.Effect)
		}
	}
	if f.Since == "" {
		f.Since = when(k)
	}
	// Ranks on that GPU.
	for _, p := range d.j.order {
		if k.Host != "" && p.host != k.Host {
			continue
		}
		for _, m := range p.members {
			if m.bus != "" && sameBus(m.bus, k.Device) && m.proc.job != nil && m.comm == m.proc.job.world {
				f.Subject.Ranks = append(f.Subject.Ranks, m.rank)
				f.Subject.Hosts = append(f.Subject.Hosts, p.host)
			}
		}
	}
}

func (d *diag) xidOf(code int) string {
	switch xids[code].Severity {
	case "fatal":
		return "gpu-failed"
	case "warn":
		return "gpu-fault"
	}
	return "gpu-event"
}

func when(k Kernel) string {
	switch {
	case k.Time > 0:
		return strings.TrimSpace(stamp(k.Time))
	case k.Uptime > 0:
		return fmt.Sprintf("%.0f s after the host started", k.Uptime)
	}
	return ""
}

// stamp writes seconds since 1970 as a time, without a zone.
func stamp(sec float64) string {
	t := int64(sec)
	days := t / 86400
	// Civil date from days, after Howard Hinnant.
	z := days + 719468
	era := z / 146097
	doe := z - era*146097
	yoe := (doe - doe/1460 + doe/36524 - doe/146096) / 365
	doy := doe - (365*yoe + yoe/4 - yoe/100)
	mp := (5*doy + 2) / 153
	day := doy - (153*mp+2)/5 + 1
	month := mp + 3
	if month > 12 {
		month -= 12
	}
	year := yoe + era*400
	if month <= 2 {
		year++
	}
	s := t % 86400
	if year == 1972 { // logs that leave the year out
		return fmt.Sprintf("%02d-%02d %02d:%02d:%02d", month, day, s/3600, s/60%60, s%60)
	}
	return fmt.Sprintf("%04d-%02d-%02d %02d:%02d:%02d", year, month, day, s/3600, s/60%60, s%60)
}

var hexDigits = regexp.MustCompile(`[^0-9a-f]`)

// sameBus compares a bus id of NCCL (9b000, 1b000) with a PCI address (0000:9b:00).
func sameBus(nccl, pci string) bool {
	n := strings.TrimLeft(hexDigits.ReplaceAllString(strings.ToLower(strings.TrimPrefix(nccl, "0x")), ""), "0")
	p := strings.ToLower(pci)
	if i := strings.LastIndexByte(p, '.'); i >= 0 {
		p = p[:i] + p[i+1:]
	} else {
		p += "0"
	}
	p = strings.TrimLeft(hexDigits.ReplaceAllString(p, ""), "0")
	return n != "" && n == p
}

func (d *diag) gpuRules() {
	links := map[string]map[int]int{} // model, number of active links, GPUs
	clocks := map[string][]float64{}
	for _, g := range d.c.GPUs {
		n := 0
		for _, l := range g.Links {
			if l.Active && l.GBps != 0 {
				n++
			}
		}
		if len(g.Links) > 0 {
			if links[g.Name] == nil {
				links[g.Name] = map[int]int{}
			}
			links[g.Name][n]++
		}
		if g.Util > 80 && g.ClockSM > 0 {
			clocks[g.Name] = append(clocks[g.Name], g.ClockSM)
		}
	}
	masks := map[string]int{}
	for _, g := range d.c.GPUs {
		if g.FabricState != "" {
			masks[g.Clique+g.ClusterUUID]++
		}
	}
	spinning := map[string][]GPU{}
	for _, g := range d.c.GPUs {
		dev := cmp.Or(g.Bus, fmt.Sprintf("GPU%d", g.Index))
		s := Subject{Hosts: []string{g.Host}, Devices: []string{named(g.Host, dev)}}
		inactive, most := 0, 0
		for n := range links[g.Name] {
			most = max(most, n)
		}
		for _, l := range g.Links {
			if !l.Active {
				inactive++
				if most > 0 || inactive < len(g.Links) {
					x := s
					x.Links = []string{fmt.Sprintf("%s NVLink %d", named(g.Host, dev), l.Index)}
					d.find("nvlink-inactive", x, l.At)
				}
			}
			for _, name := range slices.Sorted(maps.Keys(l.Errors)) {
				n := l.Errors[name]
				bad := n > 0 && (strings.Contains(name, "recovery") || strings.Contains(name, "replay")) || n > 100 && strings.Contains(name, "crc")
				if bad {
					x := s
					x.Links = []string{fmt.Sprintf("%s NVLink %d", named(g.Host, dev), l.Index)}
					f := d.find("nvlink-errors", x, l.At)
					if strings.Contains(name, "recovery") {
						f.Severity = Critical
					}
				}
			}
		}
		if inactive == 0 && len(g.Links) > 0 && len(g.Links) < most {
			x := d.find("nvlink-inactive", s, g.At)
			x.Cause = fmt.Sprintf("%d links, other GPUs of the model have %d", len(g.Links), most)
		}
		if g.MemTotal > 0 && float64(g.MemUsed) > 0.97*float64(g.MemTotal) {
			d.find("gpu-memory-nearly-full", s, g.At)
		}
		if g.RemapFail {
			d.find("row-remap-failed", s, g.At)
		}
		if g.RemapWait {
			d.find("row-remap-pending", s, g.At)
		}
		if g.RemapRows >= 8 {
			f := d.find("row-remap-pending", s, g.At)
			f.Title = "many rows were remapped"
		}
		if g.ECC > 0 {
			d.find("ecc-errors", s, g.At)
		}
		if len(g.Throttle) > 0 {
			f := d.find("gpu-throttled", s, g.At)
			f.Cause = "active: " + strings.Join(g.Throttle, ", ") + "; cooling or power supply"
		}
		if g.Temp > 0 && g.TempSlow > 0 && g.Temp > g.TempSlow-5 {
			f := d.find("gpu-hot", s, g.At)
			if g.Temp >= g.TempSlow {
				f.Severity = Critical
			}
		}
		if m := median(clocks[g.Name]); g.Util > 80 && len(clocks[g.Name]) >= 3 && g.ClockSM > 0 && g.ClockSM < 0.9*m {
			f := d.find("gpu-slow-clock", s, g.At)
			f.Cause = fmt.Sprintf("%.0f MHz, the others run at %.0f", g.ClockSM, m)
			if g.ClockSM < 0.7*m {
				f.Severity = Critical
			}
		}
		if g.Width > 0 && g.WidthMax > 0 && g.Width < g.WidthMax {
			f := d.find("pcie-degraded", s, g.At)
			f.Cause = fmt.Sprintf("width x%d of x%d: seating, riser, BIOS", g.Width, g.WidthMax)
		}
		if g.PCIeGen > 0 && g.PCIeGen < g.PCIeGenMax && g.Util > 50 && g.Perf == "P0" {
			f := d.find("pcie-degraded", s, g.At)
			f.Cause = fmt.Sprintf("generation %d of %d under load: seating, riser, BIOS", g.PCIeGen, g.PCIeGenMax)
		}
		if g.Replays > 1000 {
			d.find("pcie-replays", s, g.At)
		}
		if g.FabricState != "" && !strings.EqualFold(g.FabricState, "Completed") || g.FabricCode != "" && !strings.EqualFold(g.FabricCode, "Success") {
			f := d.find("nvlink-fabric-degraded", s, g.At)
			f.Severity, f.Confidence = Critical, 0.85
			f.Cause = fmt.Sprintf("fabric state %s, status %s: fabric manager or IMEX", g.FabricState, g.FabricCode)
		}
		if g.Util >= 99 && g.Power > 0 && g.Cap > 0 && g.Power < 0.4*g.Cap {
			spinning[g.Host] = append(spinning[g.Host], g)
		}
	}
	for _, h := range slices.SortedFunc(maps.Keys(spinning), natural) {
		for _, g := range spinning[h] {
			f := d.find("gpu-spinning", Subject{Hosts: []string{h}, Devices: []string{named(h, cmp.Or(g.Bus, fmt.Sprintf("GPU%d", g.Index)))}}, g.At)
			f.Cause = fmt.Sprintf("%.0f%% utilisation at %.0f of %.0f W: kernels wait for data", g.Util, g.Power, g.Cap)
		}
	}
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Clone(v)
	slices.Sort(v)
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

// portLimits are totals above which a port is worth a look, after infiniband-diags.
var portLimits = []struct {
	name  string
	limit uint64
}{
	{"link_error_recovery", 10}, {"link_downed", 10}, {"port_rcv_errors", 10}, {"port_rcv_remote_physical_errors", 100}, {"port_rcv_switch_relay_errors", 100},
	{"port_xmit_discards", 100}, {"port_xmit_constraint_errors", 100}, {"port_rcv_constraint_errors", 100}, {"local_link_integrity_errors", 10},
	{"excessive_buffer_overrun_errors", 10}, {"VL15_dropped", 100}, {"symbol_error", 1000}, {"rx_icrc_encapsulated", 1},
}

func portName(p Port) string {
	if p.Switch {
		return fmt.Sprintf("%s port %d", cmp.Or(p.Name, p.Device), p.Port)
	}
	if p.Port > 1 || strings.HasPrefix(p.Device, "lid ") {
		return named(p.Host, fmt.Sprintf("%s port %d", p.Device, p.Port))
	}
	return named(p.Host, p.Device)
}

func (d *diag) portRules() {
	// Rates of ports of one role: the same device name on all hosts, and all of a host.
	rates := map[string]map[float64]int{}
	active := map[string]int{}      // by host
	byDevice := map[string][2]int{} // device name: active, all
	for _, p := range d.c.Ports {
		if p.Switch || p.State == "" {
			continue
		}
		x := byDevice[p.Device]
		x[1]++
		if p.State == "Active" {
			active[p.Host]++
			x[0]++
			if p.Rate > 0 {
				k := p.Layer
				if rates[k] == nil {
					rates[k] = map[float64]int{}
				}
				rates[k][p.Rate]++
			}
		}
		byDevice[p.Device] = x
	}
	common := map[string]float64{}
	for k, m := range rates {
		for _, r := range slices.Sorted(maps.Keys(m)) {
			if m[r] > m[common[k]] || m[r] == m[common[k]] && r > common[k] {
				common[k] = r
			}
		}
	}
	samples := map[string][]Port{}
	var order []string
	for _, p := range d.c.Ports {
		name := portName(p)
		s := Subject{Devices: []string{name}}
		if !p.Switch && p.Host != "" {
			s.Hosts = []string{p.Host}
		}
		if p.Problem != "" && p.Device == "" {
			d.find("ib-tool-failed", s, p.At)
			continue
		}
		if p.Problem != "" {
			f := d.find("ber-high", s, p.At)
			f.Cause = "mlxlink: " + p.Problem
		}
		up := p.State == "" || p.State == "Active" || p.State == "Link up"
		if p.State != "" && p.State != "Active" && p.State != "Link up" && !p.Switch {
			// A port that is down everywhere is not wired; management Ethernet may be.
			role := byDevice[p.Device]
			f := d.find("port-down", s, p.At)
			f.Cause = fmt.Sprintf("state %s, physical %s: cable, switch port, or no subnet manager", p.State, cmp.Or(p.Phys, "unknown"))
			switch {
			case active[p.Host] == 0 && len(d.c.Ports) > 1:
			case role[1] > 1 && role[0] == 0:
				f.Severity = min(f.Severity, Info)
				f.Cause += " (down on every host that was read: perhaps not wired)"
			case p.Layer == "Ethernet" && common["InfiniBand"] > 0:
				if len(f.Evidence) == 1 {
					f.Severity, f.Confidence = Warning, 0.5
				}
			}
			if p.Layer != "Ethernet" && active[p.Host] > 0 && role[0] > 0 {
				f.Severity = Critical
			}
		}
		if up && p.SMLID == 0 && p.Layer == "InfiniBand" {
			d.find("no-subnet-manager", s, p.At)
		}
		if up && p.Rate > 0 && p.Rate < common[p.Layer] && (rates[p.Layer][p.Rate]*2 < rates[p.Layer][common[p.Layer]] || len(rates[p.Layer]) > 2) {
			f := d.find("port-slow", s, p.At)
			f.Cause = fmt.Sprintf("%.0f Gbit/s, most ports of this kind have %.0f: a lane or a speed was lost", p.Rate, common[p.Layer])
			if p.Layer == "Ethernet" && common["InfiniBand"] > 0 || byDevice[p.Device][0] > 1 && sameRole(d.c.Ports, p) {
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

func (d *diag) counters(name string, list []Port, all map[string][]Port) {
	p := list[len(list)-1]
	s := Subject{Devices: []string{name}}
	if !p.Switch && p.Host != "" {
		s.Hosts = []string{p.Host}
	}
	ev := func(c string, v uint64) Evidence {
		e := p.At
		e.Text = fmt.Sprintf("%s %s = %d", name, c, v)
		return e
	}
	if len(list) > 1 {
		a := list[0]
		for _, x := range portLimits {
			if b, was := p.Counters[x.name], a.Counters[x.name]; b > was && x.name != "port_rcv_switch_relay_errors" && x.name != "VL15_dropped" {
				e := ev(x.name, b)
				e.Text = fmt.Sprintf("%s %s grew from %d to %d", name, x.name, was, b)
				f := d.find("port-errors-growing", s, e)
				if x.name == "port_rcv_remote_physical_errors" {
					f.Fix = "look one hop up: bad packets were marked there"
				}
				if x.name == "symbol_error" && b-was < 120 || x.name == "link_error_recovery" && b-was < 5 || x.name == "port_xmit_discards" && b-was < 100 {
					if len(f.Evidence) == 1 {
						f.Severity = Warning
					}
				} else {
					f.Severity = Critical
				}
			}
		}
	}
	packets := float64(p.Counters["port_rcv_packets"] + p.Counters["port_xmit_packets"])
	for _, x := range portLimits {
		v := p.Counters[x.name]
		if v <= x.limit {
			continue
		}
		// Other ports of the kind: an old fabric has counts everywhere.
		var others []float64
		for n, l := range all {
			if n != name && l[0].Switch == p.Switch {
				others = append(others, float64(l[len(l)-1].Counters[x.name]))
			}
		}
		if len(others) >= 3 && float64(v) < 10*median(others) {
			continue
		}
		if x.name == "port_rcv_switch_relay_errors" && packets > 0 && float64(v) < 1e-6*packets {
			continue
		}
		if x.name == "symbol_error" && packets > 0 && float64(v) < 1e-6*packets {
			continue
		}
		if x.name == "port_xmit_discards" && packets > 0 && float64(v) < 1e-7*packets {
			continue
		}
		f := d.find("port-errors", s, ev(x.name, v))
		if x.name == "port_rcv_remote_physical_errors" && len(f.Evidence) == 1 {
			f.Fix = "look one hop up: bad packets were marked there"
		}
	}
	if v := p.Counters["rp_cnp_ignored"]; v > 0 {
		d.find("cnp-ignored", s, ev("rp_cnp_ignored", v))
	}
	if v := p.Counters["req_transport_retries_exceeded"]; v > 0 {
		f := d.find("rdma-retries-exceeded", s, ev("req_transport_retries_exceeded", v))
		if v < 10 {
			f.Severity = Info
		}
	}
	rx := float64(p.Counters["port_rcv_packets"])
	for _, c := range []string{"out_of_sequence", "packet_seq_err", "duplicate_request", "local_ack_timeout_err"} {
		if v := p.Counters[c]; v > 100 && rx > 0 && float64(v) > 1e-4*rx {
			d.find("rdma-retries", s, ev(c, v))
		}
	}
	// Waiting for credits, against ports of the kind.
	if v := float64(p.Counters["port_xmit_wait"]); v > 1e6 {
		var others []float64
		for n, l := range all {
			if n != name && l[0].Switch == p.Switch {
				others = append(others, float64(l[len(l)-1].Counters["port_xmit_wait"]))
			}
		}
		if len(others) >= 3 {
			slices.Sort(others)
			high := others[len(others)*3/4]
			if v > 10*math.Max(high, 1e5) {
				d.find("port-congested", s, ev("port_xmit_wait", p.Counters["port_xmit_wait"]))
			}
		}
	}
}

// cables judges links of a fabric.
func (d *diag) cables() {
	kind := func(c Cable) string {
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
	usual := map[string]map[string]int{}
	for _, c := range d.c.Cables {
		if c.B == "" || !strings.HasPrefix(c.State, "Active") || c.Speed == "" || strings.Contains(c.A+c.B, "ggregation") {
			continue
		}
		k := kind(c)
		if usual[k] == nil {
			usual[k] = map[string]int{}
		}
		usual[k][fmt.Sprintf("%dx %s", c.Width, c.Speed)]++
	}
	seen := map[string]bool{}
	for _, c := range d.c.Cables {
		link := fmt.Sprintf("%s:%d - %s:%d", c.A, c.APort, c.B, c.BPort)
		if c.B == "" || strings.Contains(c.A+c.B, "ggregation") {
			continue
		}
		back := fmt.Sprintf("%s:%d - %s:%d", c.B, c.BPort, c.A, c.APort)
		if seen[back] {
			continue
		}
		seen[link] = true
		s := Subject{Links: []string{link}}
		for _, n := range []struct {
			name string
			sw   bool
		}{{c.A, c.ASwitch}, {c.B, c.BSwitch}} {
			if f := strings.Fields(n.name); !n.sw && len(f) > 0 {
				s.Hosts = append(s.Hosts, f[0])
			}
		}
		if c.WidthMax > c.Width || c.SpeedMax != "" {
			f := d.find("cable-degraded", s, c.At)
			f.Cause = fmt.Sprintf("%dX %s; both ends could do more", c.Width, c.Speed)
			continue
		}
		if strings.HasPrefix(c.State, "Active") && c.Speed != "" {
			k := kind(c)
			mine := usual[k][fmt.Sprintf("%dx %s", c.Width, c.Speed)]
			all := 0
			for _, n := range usual[k] {
				all += n
			}
			best := ""
			for _, v := range slices.Sorted(maps.Keys(usual[k])) {
				if best == "" || usual[k][v] > usual[k][best] {
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
		if !strings.HasPrefix(c.State, "Active") && c.State != "" && !strings.HasPrefix(c.State, "Down") {
			f := d.find("port-down", s, c.At)
			f.Cause = "state " + c.State
		}
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

func (d *diag) pciRules() {
	kind := func(p PCI) string {
		switch {
		case strings.Contains(p.Class, "nfiniband"), strings.Contains(p.Class, "thernet"):
			return "nic"
		case (strings.Contains(p.Class, "3D") || strings.Contains(p.Class, "VGA") || strings.Contains(p.Class, "Processing accel")) && (strings.Contains(p.Name, "NVIDIA") || strings.Contains(p.Name, "AMD") || strings.Contains(p.Name, "Advanced Micro")):
			return "gpu"
		}
		return ""
	}
	acs := 0
	for _, p := range d.c.PCI {
		s := Subject{Hosts: []string{p.Host}, Devices: []string{named(p.Host, p.Addr)}}
		k := kind(p)
		narrow := p.Width > 0 && p.WidthMax > 0 && p.Width < p.WidthMax
		slow := k == "nic" && p.Speed > 0 && p.SpeedMax > 0 && p.Speed < p.SpeedMax
		if (k != "") && (narrow || slow) {
			f := d.find("pcie-degraded", s, p.At)
			f.Cause = fmt.Sprintf("%s runs at %.4g GT/s x%d of %.4g GT/s x%d: seating, riser, BIOS, or a slot that has no more", cmp.Or(p.Name, p.Addr), p.Speed, p.Width, p.SpeedMax, p.WidthMax)
			if !fast(p) {
				f.Severity = min(f.Severity, Warning)
				if len(f.Evidence) == 1 {
					f.Severity, f.Confidence = Info, 0.4
				}
			} else {
				f.Severity, f.Confidence = Critical, byID["pcie-degraded"].Confidence
			}
		}
		if p.Bridge && strings.Contains(p.ACS, "SrcValid+") {
			acs++
			d.find("acs-enabled", s, p.At)
		}
		if p.AER["fatal"]+p.AER["nonfatal"] > 0 {
			d.find("pcie-errors", s, p.At)
		}
		if p.AER["correctable"] > 1000 {
			d.find("pcie-noise", s, p.At)
		}
	}
	if f := d.index["acs-enabled"]; f != nil {
		// A root port without a switch below has no peers; virtual machines need it.
		peers := false
		for _, p := range d.c.PCI {
			peers = peers || kind(p) == "gpu" || fast(p)
		}
		if !peers {
			f.Severity, f.Confidence = Info, 0.4
		}
	}
}

// fast says whether a device is one that carries the job's data.
func fast(p PCI) bool {
	return strings.Contains(p.Class, "nfiniband") || strings.Contains(p.Class, "3D") || strings.Contains(p.Name, "NVIDIA") || strings.Contains(p.Name, "ConnectX") || strings.Contains(p.Name, "BlueField") || strings.Contains(p.Name, "Elastic Fabric")
}

func (d *diag) hostRules() {
	// Interfaces.
	byHost := map[string][]Address{}
	for _, a := range d.c.Addresses {
		byHost[a.Host] = append(byHost[a.Host], a)
	}
	stem := regexp.MustCompile(`\d.*$`)
	for _, h := range slices.SortedFunc(maps.Keys(byHost), natural) {
		subnets := map[string][]Address{}
		kinds := map[string][]Address{}
		for _, a := range byHost[h] {
			if a.Name == "lo" || virtualIf.MatchString(a.Name) || strings.HasPrefix(a.Name, "br") || strings.HasPrefix(a.Name, "bond") {
				continue
			}
			kinds[stem.ReplaceAllString(a.Name, "")] = append(kinds[stem.ReplaceAllString(a.Name, "")], a)
			for _, p := range a.Prefixes {
				pre, err := netip.ParsePrefix(p)
				if err != nil || pre.Addr().IsLinkLocalUnicast() || !pre.Addr().Is4() || pre.Bits() >= 31 {
					continue
				}
				k := pre.Masked().String()
				subnets[k] = append(subnets[k], a)
			}
		}
		for _, k := range slices.Sorted(maps.Keys(subnets)) {
			if list := subnets[k]; len(list) > 1 {
				f := d.find("nics-one-subnet", Subject{Hosts: []string{h}})
				for _, a := range list {
					f.Subject.Devices = append(f.Subject.Devices, named(h, a.Name))
					f.addEvidence(a.At)
				}
				f.Cause = fmt.Sprintf("%d interfaces in %s: the kernel answers ARP for one NIC on another", len(list), k)
			}
		}
		for _, k := range slices.Sorted(maps.Keys(kinds)) {
			list := kinds[k]
			if len(list) < 4 {
				continue
			}
			up := 0
			mtu := map[int]int{}
			for _, a := range list {
				if a.State == "UP" {
					up++
					mtu[a.MTU]++
				}
			}
			for _, a := range list {
				if a.State == "DOWN" && up*2 > len(list) {
					d.find("interface-down", Subject{Hosts: []string{h}, Devices: []string{named(h, a.Name)}}, a.At)
				}
				if a.State == "UP" && len(mtu) > 1 && mtu[a.MTU]*4 <= up {
					d.find("mtu-differs", Subject{Hosts: []string{h}, Devices: []string{named(h, a.Name)}}, a.At)
				}
			}
		}
	}
	for _, h := range d.c.Host {
		s := Subject{Hosts: []string{h.Host}}
		ev := func(format string, args ...any) Evidence {
			e := h.At
			e.Text = fmt.Sprintf(format, args...)
			return e
		}
		if h.RDMA > 0 && h.MemLock >= 0 && h.MemLock < 1<<62 {
			f := d.find("memlock", s, ev("limit of locked memory: %d bytes", h.MemLock))
			f.Cause = "the limit of locked memory is not unlimited on a host with RDMA"
			f.Severity, f.Confidence = Warning, 0.7
		}
		if h.ShmSize > 0 && h.ShmFree < 64<<20 && h.NVIDIA {
			d.find("shm-small", s, ev("/dev/shm: %d MiB free of %d", h.ShmFree>>20, h.ShmSize>>20))
		}
		if h.RDMA > 0 && h.Verbs >= 0 && h.Verbs < h.RDMA {
			d.find("verbs-count", s, ev("%d files uverbs* for %d RDMA devices", h.Verbs, h.RDMA))
		}
		if h.RDMA > 0 && h.NVIDIA && !h.PeerMem {
			d.find("peermem-missing", s, ev("nvidia_peermem is not in /proc/modules"))
		}
		if ports := h.PortHigh - h.PortLow; h.PortHigh > 0 {
			d.portNeed(h, ports, s, ev("ip_local_port_range %d to %d", h.PortLow, h.PortHigh))
			if ports < 10000 {
				d.find("ports-narrow", s, ev("ip_local_port_range %d to %d: %d ports", h.PortLow, h.PortHigh, ports))
			}
		}
	}
	d.processes()
}

// portNeed holds the connections of a job against the ports of a host.
func (d *diag) portNeed(h HostState, ports int, s Subject, ev Evidence) {
	for _, jb := range d.j.jobs {
		hosts := len(jb.hosts())
		if hosts < 2 || jb.world == nil || h.Host != "" && !slices.Contains(jb.hosts(), h.Host) && len(d.c.Host) > 1 {
			continue
		}
		gpus := max(jb.world.n/hosts, 1)
		q := 0
		var line *Line
		for _, m := range jb.world.members {
			if m.channels != nil {
				if n := num(m.channels.F["pp"]); n > q {
					q, line = n, m.channels
				}
			}
		}
		if q == 0 {
			continue
		}
		need := (hosts - 1) * gpus * q * 2 * gpus
		for _, p := range jb.procs {
			if l := p.env["NCCL_PXN_DISABLE"]; l == nil || l.F["val"] != "1" {
				need /= gpus
			}
			break
		}
		if float64(need) > 0.8*float64(ports) {
			f := d.find("ports-narrow", s, ev, line.At)
			f.Cause = fmt.Sprintf("an all-to-all of this job needs up to %d ports a host, there are %d", need, ports)
			if need > ports {
				f.Severity = Critical
			}
		}
	}
}

// processes judges the processes of jobs on a live host.
func (d *diag) processes() {
	byHost := map[string][]Process{}
	for _, p := range d.c.Processes {
		byHost[p.Host] = append(byHost[p.Host], p)
	}
	for _, h := range slices.SortedFunc(maps.Keys(byHost), natural) {
		list := byHost[h]
		cores := map[int]bool{}
		one := len(list) > 1
		libs := map[string][]Process{}
		for _, p := range list {
			one = one && len(p.CPUs) == 1
			for _, c := range p.CPUs {
				cores[c] = true
			}
			if p.Hash != "" {
				libs[p.Hash] = append(libs[p.Hash], p)
			}
			s := Subject{Hosts: []string{h}, Ranks: []int{p.Rank}}
			if p.FilesUp > 0 && float64(p.Files) > 0.9*float64(p.FilesUp) {
				d.find("open-files", s, p.At)
			}
			if p.MemLock >= 0 && p.MemLock < 1<<30 {
				for _, x := range d.c.Host {
					if x.Host == h && x.RDMA > 0 {
						d.find("memlock", s, p.At)
					}
				}
			}
		}
		if one && len(cores) == 1 {
			for _, p := range list {
				d.find("affinity-one-core", Subject{Hosts: []string{h}, Ranks: []int{p.Rank}}, p.At)
			}
		}
		if len(libs) > 1 {
			for _, k := range slices.Sorted(maps.Keys(libs)) {
				d.find("versions-differ", Subject{Hosts: []string{h}, Ranks: []int{libs[k][0].Rank}}, libs[k][0].At)
			}
		}
	}
}
