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

// recoveryXid says what the driver wants done with a GPU. Anything but nothing ends the jobs on it.
const recoveryXid = 154

var recoveryNeeded = regexp.MustCompile(`(?i)to 0x[0-9a-f]+ \((?:.*(?:reset|reboot|drain).*)\)`)

// ofProcess are lines about one process.
var ofProcess = map[string]bool{"oom_kill": true, "nccl_crash": true, "hung_task": true}

// consequenceXids follow another error: the first decides.
var consequenceXids = map[int]bool{45: true, 43: true, 94: true, 154: true}

// kernelRules judges the kernel's lines, each with the job that it concerns.
func (d *diag) kernelRules() {
	firsts := map[part]Kernel{}
	for _, k := range d.c.Kernel {
		if k.Kind == "xid" && !consequenceXids[k.Code] {
			if _, ok := firsts[part{k.Host, k.Device}]; !ok {
				firsts[part{k.Host, k.Device}] = k
			}
		}
	}
	corrected := map[part][]Kernel{} // PCIe errors
	downs := map[part][]Kernel{}     // of NICs
	for _, k := range d.c.Kernel {
		s := Subject{Hosts: []string{k.Host}}
		if k.Device != "" {
			s.Devices = []string{named(k.Host, k.Device)}
		}
		var other, old bool
		if d.job, other, old = d.about(&k); old && ofProcess[k.Kind] {
			continue // of a process of another time
		}
		d.apart = ""
		if other || old {
			d.apart = "host " + k.Host
		}
		switch at := (part{k.Host, k.Device}); {
		case k.Kind == "xid":
			d.xid(k, s, firsts[at])
		case k.Kind == "aer" && !k.Fatal:
			corrected[at] = append(corrected[at], k)
		case k.Kind == "nic_down":
			at.dev = cmp.Or(k.F["if"], k.Device)
			downs[at] = append(downs[at], k)
		case kernelFinds[k.Kind] != nil:
			kernelFinds[k.Kind](d, k, s)
		}
	}
	d.job, d.apart = nil, ""
	d.pulled()
	d.pcieNoise(corrected)
	d.nicDowns(downs)
}

// kernelFinds are the kinds of lines that are findings on their own, without a look at others.
var kernelFinds = map[string]func(d *diag, k Kernel, s Subject){
	"fm_error": (*diag).fabricManager,
	"sxid": func(d *diag, k Kernel, s Subject) {
		id := "nvswitch-event"
		if k.Fatal {
			id = "nvswitch-failed"
		}
		f := d.find(id, s, k.At)
		f.Cause = fmt.Sprintf("SXid %d: %s", k.Code, cmp.Or(k.Text, f.Cause))
	},
	"aer": func(d *diag, k Kernel, s Subject) { d.find("pcie-errors", s, k.At) },
	"gpu_lost": func(d *diag, k Kernel, s Subject) {
		f := d.find("gpu-failed", s, k.At)
		if f.causes == nil && f.addCause("lost", k.Text) {
			f.Fix = "drain the host; reset the GPU or power-cycle the host; look for an Xid before this line"
		}
	},
	"gpu_fault": func(d *diag, k Kernel, s Subject) {
		f := d.find("gpu-fault", s, k.At)
		f.Cause, f.Fix = k.Text+": usually the program's", "find the access in the program; if other programs on this GPU fail as well, test it"
	},
	"driver_mismatch": func(d *diag, k Kernel, s Subject) {
		f := d.find("driver-mismatch", s, k.At)
		if k.Text != "" {
			f.Cause += ": " + k.Text
		}
	},
	"nic_driver": func(d *diag, k Kernel, s Subject) {
		f := d.find("nic-driver-error", s, k.At)
		if strings.Contains(k.Text, "-12") || strings.Contains(k.Text, "allocate") {
			f.Cause = "the device has no memory or objects left: " + k.Text
		}
	},
	"storage": func(d *diag, k Kernel, s Subject) {
		d.find("storage-stalled", Subject{Hosts: s.Hosts, Devices: []string{k.Device}}, k.At)
	},
}

func init() {
	for _, kind := range []string{"nic_power", "nic_heat", "nic_cable", "nic_keys", "nic_dead", "peermem", "nccl_crash", "oom_kill",
		"hung_task", "iommu", "panic", "file_max", "mce", "gpu_diag"} {
		kernelFinds[kind] = (*diag).kernelEvent
	}
}

// fabricManager judges what the fabric manager, or systemd about it, says. Where it does not start, CUDA does not either.
func (d *diag) fabricManager(k Kernel, s Subject) {
	unneeded := d.has("fabric-manager-errors")
	if k.Fatal && (unneeded == nil || unneeded.causes == nil) {
		f := d.find("fabric-manager-down", s, k.At)
		f.Confidence = 0.8
		return
	}
	f := d.find("fabric-manager-errors", s, k.At)
	switch {
	case strings.Contains(k.Text, "NV_WARN_NOTHING_TO_DO"):
		f.addCause("unneeded", "it found no NVSwitch on this host: GPUs without NVSwitches do not need it")
		f.Fix = "systemctl disable nvidia-fabricmanager; on a host with NVSwitches look for the NVSwitch driver and its devices"
	case len(f.Evidence) == 1:
		f.Cause = "it says: " + k.Text
	}
}

// pulled finds cables and modules that were pulled out. A port without one says so when its driver starts.
func (d *diag) pulled() {
	had, out := map[part]bool{}, map[part]Kernel{}
	for _, k := range d.c.Kernel {
		at := part{k.Host, k.Device}
		switch k.Kind {
		case "nic_plugged", "nic_up":
			had[at] = true
			delete(out, at)
		case "nic_unplugged":
			if had[at] || k.Uptime == 0 || k.Uptime > 600 {
				out[at] = k
			}
		}
	}
	for _, at := range slices.SortedFunc(maps.Keys(out), byHostThenDevice) {
		f := d.find("cable-unplugged", Subject{Hosts: []string{at.host}, Devices: []string{named(at.host, at.dev)}}, out[at].At)
		if f.Since == "" {
			f.Since = when(out[at])
		}
	}
}

// part is a device of a host.
type part struct{ host, dev string }

func byHostThenDevice(a, b part) int {
	return cmp.Or(natural(a.host, b.host), natural(a.dev, b.dev))
}

// kernelEvent takes lines that name their symptom themselves, and adds the ranks of the process that they name.
func (d *diag) kernelEvent(k Kernel, s Subject) {
	id := map[string]string{"nic_power": "nic-power", "nic_heat": "nic-heat", "nic_cable": "nic-cable", "nic_keys": "nic-keys-exhausted",
		"nic_dead": "nic-firmware",
		"peermem":  "peermem-context", "nccl_crash": d.crash(k), "oom_kill": "host-out-of-memory", "hung_task": "task-blocked",
		"iommu": "iommu-fault",
		"panic": "host-crashed", "file_max": "open-files", "mce": "host-hardware", "gpu_diag": "gpu-diagnostic-failed"}[k.Kind]
	f := d.find(id, s, k.At)
	if f.Since == "" {
		f.Since = when(k)
	}
	f.Subject.add(d.processOf(k))
	if (id == "host-hardware" || id == "gpu-diagnostic-failed") && len(f.Evidence) == 1 && k.Device != "" {
		f.Cause = k.Text
	}
	if f.mild(k) {
		f.Severity = Warning
	}
	if id == "host-out-of-memory" && f.Severity == Warning {
		f.Confidence = 0.7
	}
}

// mild says whether a kernel's line alone is no reason to call the job broken: a tool calls it a warning, or memory was short and
// a process ended that is none of the job's.
func (f *Finding) mild(k Kernel) bool {
	if f.ID == "host-out-of-memory" {
		return !strings.Contains(strings.ToLower(k.Text), "python") && len(f.Subject.Ranks) == 0
	}
	return k.F["status"] == "Warning" && len(f.Evidence) == 1
}

// processOf is the process that a kernel line names. Without a host, any process of that number may be it.
func (d *diag) processOf(k Kernel) (s Subject) {
	for _, p := range d.j.order {
		if strconv.Itoa(p.pid) != k.F["pid"] || k.Host != "" && k.Host != p.host {
			continue
		}
		s.Hosts = append(s.Hosts, p.host)
		for _, m := range p.members {
			s.Ranks = append(s.Ranks, m.rank)
		}
	}
	return s
}

func (d *diag) pcieNoise(corrected map[part][]Kernel) {
	for _, k := range slices.SortedFunc(maps.Keys(corrected), byHostThenDevice) {
		if list := corrected[k]; len(list) >= 10 {
			f := d.find("pcie-noise", Subject{Hosts: []string{k.host}, Devices: []string{named(k.host, k.dev)}}, list[0].At, list[len(list)-1].At)
			f.More += len(list) - 2
		}
	}
}

// nicDowns judges NICs that lost their link. Once in a host's first ten minutes is its start and no finding; more than
// twice is critical.
func (d *diag) nicDowns(downs map[part][]Kernel) {
	d.downs = downs
	for _, k := range slices.SortedFunc(maps.Keys(downs), byHostThenDevice) {
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
		if len(list) == 1 && d.upSoon(list[0]) && len(f.Subject.Devices) == 1 {
			f.Severity = Info
			f.Cause = "it was back within a minute: the start of the host or its driver, a short flap, or maintenance"
		}
	}
}

// upSoon says whether a link that went down was up again within a minute.
func (d *diag) upSoon(down Kernel) bool {
	at := cmp.Or(down.Time, down.Uptime)
	return slices.ContainsFunc(d.c.Kernel, func(k Kernel) bool {
		up := cmp.Or(k.Time, k.Uptime)
		return k.Kind == "nic_up" && k.Host == down.Host && k.F["if"] == down.F["if"] && k.Device == down.Device && up >= at && up < at+60
	})
}

// linksLost joins NICs that lost their link, as the kernel of their host says, with what NCCL says of transfers from or to that host
// about that time.
func (d *diag) linksLost() {
	effects := []string{"ib-pair-unreachable", "lossy-path", "completion-error", "peer-died", "nccl-failed"}
	for _, at := range slices.SortedFunc(maps.Keys(d.downs), byHostThenDevice) {
		down := d.downs[at][len(d.downs[at])-1]
		for _, jb := range d.j.jobs {
			d.job = jb
			if !d.sawLost(down) {
				continue
			}
			f := d.find("nic-link-down", Subject{Hosts: []string{at.host}, Devices: []string{named(at.host, at.dev)}}, down.At)
			f.Severity, f.Title, f.Cause = Critical, "a NIC lost its link while the job used it", byID["nic-link-down"].Cause
			f.Since = cmp.Or(f.Since, when(down))
			for _, id := range effects {
				if e := d.has(id); e != nil {
					f.Consequences = append(f.Consequences, e.brief())
					f.addEvidence(e.Evidence...)
					d.drop(e)
				}
			}
		}
	}
	d.job = nil
}

// sawLost says whether transfers of the current job failed at a host when its link was lost.
func (d *diag) sawLost(down Kernel) (saw bool) {
	d.job.each(func(_ *proc, l *Line) {
		host := down.Host == l.Host || down.Host == d.j.hostOf(l.F["peer"]) || down.Host == d.j.addr[ipOf(l.F["peer"])]
		saw = saw || host && down.Host != "" && l.F["status"] == "12" && about(l.Time, down.Time)
	}, "ib_wc")
	return saw
}

// about says whether an error can come from a link that was lost at that time: retries take a while, and clocks may differ by a zone.
func about(at, lost float64) bool {
	if at == 0 || lost == 0 {
		return true
	}
	after := at - lost
	zones := math.Round(after/1800) * 1800
	return after > -120 && after < 600 || math.Abs(zones) <= anyZone && math.Abs(after-zones) < 120
}

// rasAsked says whether somebody queried RAS: its answer is among the inputs, or a rank logged that it served one.
func (d *diag) rasAsked() bool {
	for i := range d.c.Lines {
		if msg := d.c.Lines[i].Msg; strings.Contains(msg, "RAS handling") || strings.Contains(msg, "RAS client connected") {
			return true
		}
	}
	return len(d.c.RAS) > 0
}

// crash says which bug a crash inside NCCL is.
func (d *diag) crash(k Kernel) string {
	var v [3]int
	known := false
	for _, jb := range d.j.jobs {
		if x, ok := jb.version(); ok {
			v, known = x, true
		}
	}
	switch {
	case known && atLeast(v, 2, 24) && !atLeast(v, 2, 29, 2) && d.rasAsked():
		return "ras-query-crash"
	case known && v == [3]int{2, 27, 7}:
		return "ras-thread-crash"
	}
	return "nccl-crash"
}

// xid judges one of the GPU driver's errors. first is the GPU's first error that does not follow from another one; its
// Kind is empty where there is none.
func (d *diag) xid(k Kernel, s Subject, first Kernel) {
	// The driver names the error that this one follows, of which there is no line.
	if c := num(k.F["after"]); c > 0 && xids[c].Code == c && first.Kind == "" {
		k.Code, k.F = c, nil
	}
	x, ok := xids[k.Code]
	if !ok {
		x = Xid{Code: k.Code, Name: "unknown", Meaning: "not in the table", Action: "ask the vendor", Severity: "warn"}
	}
	if k.Code == recoveryXid && recoveryNeeded.MatchString(k.Text) {
		x.Severity, first = "fatal", Kernel{} // the driver itself says that the GPU cannot go on
	}
	if k.F["unit"] != "" {
		x.Severity, x.Action = nvlinkXid(k, x)
		if l := k.F["link"]; l != "" && l != "-1" {
			s.Links = []string{named(k.Host, k.Device) + " NVLink " + l}
		}
	}
	text := fmt.Sprintf("Xid %d (%s): %s", k.Code,
		strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(x.Name, "ROBUST_CHANNEL_"), "_", " ")), x.Meaning)
	id := map[string]string{"fatal": "gpu-failed", "warn": "gpu-fault"}[x.Severity]
	if id == "" {
		id = "gpu-event"
	}
	if consequenceXids[k.Code] && first.Kind != "" && first.Code != k.Code {
		if f := d.has(d.xidOf(first.Code)); f != nil {
			f.addEvidence(k.At)
			f.Consequences = append(f.Consequences, text)
			slices.Sort(f.Consequences)
			f.Consequences = slices.Compact(f.Consequences)
			return
		}
		id = "gpu-event"
	}
	f := d.find(id, s, k.At)
	if first := f.causes == nil; f.addCause(fmt.Sprintf("Xid %d", k.Code), text) {
		switch {
		case first:
			f.Fix = x.Action
		case !f.causes["do "+x.Action]:
			f.Fix += "; " + x.Action
		}
		f.causes["do "+x.Action] = true
		if x.Effect != "" {
			f.Consequences = append(f.Consequences, x.Effect)
		}
	}
	if f.Since == "" {
		f.Since = when(k)
	}
	d.ranksOn(f, k)
}

// nvlinkXid is what an NVLink error's registers say of its severity and what to do. They know better than the table of
// codes, which has one row for all of them.
func nvlinkXid(k Kernel, x Xid) (severity, action string) {
	intr, _ := strconv.ParseUint(strings.TrimPrefix(k.F["intr"], "0x"), 16, 64)
	status, _ := strconv.ParseUint(strings.TrimPrefix(k.F["status"], "0x"), 16, 64)
	level, act, ok := nvlink5(k.Code, k.F["unit"], intr, status)
	if !ok {
		if strings.EqualFold(k.F["severity"], "Fatal") {
			return "fatal", x.Action
		}
		return x.Severity, x.Action
	}
	action = fmt.Sprintf("%s (%s, %s)", act, k.F["unit"], level)
	switch {
	case strings.EqualFold(level, "Fatal"):
		return "fatal", action
	case act == "ignore":
		return "info", action
	}
	return x.Severity, action
}

// ranksOn adds the ranks on the GPU that a line is about.
func (d *diag) ranksOn(f *Finding, k Kernel) {
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
