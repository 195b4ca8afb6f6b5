package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

func (d *diag) settings(multi bool, v [3]int, known bool) {
	d.variables(multi, v, known)
	d.valuesDiffer()
	d.plugin()
	d.versions(v, known)
}

// variables judges what each rank has set, by itself.
func (d *diag) variables(multi bool, v [3]int, known bool) {
	tuned := map[string]*Line{}
	seen := map[string]bool{}
	d.job.each(func(p *proc, l *Line) {
		name, val := l.F["var"], strings.TrimSpace(l.F["val"])
		s := d.of(l)
		if why := unknownVariable(name, v, known); why != "" && !seen[name+l.Host] {
			d.variableUnknown(name, why, l)
		}
		seen[name+l.Host] = true
		switch name {
		case "NCCL_IB_GID_INDEX":
			if known && atLeast(v, 2, 21) && val != "-1" {
				d.find("gid-index-set", s, l.At)
			}
		case "NCCL_DEBUG":
			if !slices.Contains([]string{"VERSION", "WARN", "INFO", "TRACE", "ABORT", "NONE", ""}, strings.ToUpper(val)) {
				d.find("debug-word-unknown", s, l.At)
			}
		case "NCCL_DEBUG_FILE":
			jb := d.job
			if val != "" && !strings.HasPrefix(val, "/dev/std") &&
				!(strings.Contains(val, "%p") || strings.Contains(val, "%h") && jb.size() <= len(jb.hosts())) {
				d.find("debug-file-shared", s, l.At)
			}
		}
		off := map[string]string{"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1", "NCCL_NVLS_ENABLE": "0",
			"NCCL_PXN_DISABLE": "1", "NCCL_NET_GDR_LEVEL": "0"}
		if want, ok := off[name]; ok && (val == want || name == "NCCL_NET_GDR_LEVEL" && val == "LOC") && multi {
			d.find("workaround-left-on", s, l.At)
		}
		if slices.Contains(tuning, name) {
			tuned[name] = l
		}
	}, "env", "env_hca")
	if len(tuned) >= 8 {
		for _, n := range slices.Sorted(maps.Keys(tuned)) {
			d.find("over-tuned", Subject{}, tuned[n].At)
		}
	}
}

func (d *diag) variableUnknown(name, why string, l *Line) {
	f := d.find("variable-unknown", d.of(l), l.At)
	f.addCause(name, why)
	// NCCL prints what it reads: a library that prints this one is a vendor's build.
	if _, ncclReads := variables[name]; l.F["script"] != "" || ncclReads {
		f.Severity, f.Confidence = byID[f.ID].Severity, byID[f.ID].Confidence
	} else if len(f.Evidence) == 1 {
		f.Severity, f.Confidence = Info, 0.5
	}
}

// valuesDiffer finds variables that some ranks have set otherwise than others, or not at all.
func (d *diag) valuesDiffer() {
	values := map[string]map[string][]*Line{}
	for _, p := range d.job.procs {
		for name, l := range p.env {
			if l.F["script"] != "" {
				continue
			}
			if values[name] == nil {
				values[name] = map[string][]*Line{}
			}
			values[name][l.F["val"]] = append(values[name][l.F["val"]], l)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		switch {
		case slices.Contains(mayDiffer, name):
		case len(values[name]) > 1:
			d.valueDiffers(name, values[name])
		default:
			d.unsetOnHosts(name)
		}
	}
}

// valueDiffers takes the lines that set a variable, by value.
func (d *diag) valueDiffers(name string, by map[string][]*Line) {
	common := commonest(by)
	for _, val := range slices.Sorted(maps.Keys(by)) {
		if val == common {
			continue
		}
		for _, l := range by[val] {
			f := d.find("env-differs", d.of(l), l.At, by[common][0].At)
			f.addCause(name+"="+val, fmt.Sprintf("%s is %q on some ranks and %q on others", name, val, common))
		}
	}
}

// settersOf counts by host the processes that print variables, and those of them that set this one.
func (jb *job) settersOf(name string) (set, all map[string]int, example *Line) {
	set, all = map[string]int{}, map[string]int{}
	for _, p := range jb.procs {
		if len(p.members) == 0 || len(p.env) == 0 {
			continue
		}
		all[p.host]++
		if l := p.env[name]; l != nil {
			set[p.host]++
			example = l
		}
	}
	return set, all, example
}

// unsetOnHosts finds a variable that is set on all processes of some hosts and on none of others.
func (d *diag) unsetOnHosts(name string) {
	set, all, example := d.job.settersOf(name)
	if len(set) == 0 || len(set) == len(all) {
		return
	}
	for h, n := range set {
		if n != all[h] {
			return
		}
	}
	for _, h := range slices.Sorted(maps.Keys(all)) {
		if set[h] > 0 {
			continue
		}
		f := d.find("env-differs", Subject{Hosts: []string{h}}, example.At)
		f.addCause(name, name+" is not set there")
	}
}

// plugin finds a plug-in of the network that was there and could not be used.
func (d *diag) plugin() {
	jb := d.job
	fails, loaded := []*Line{}, false
	jb.each(func(_ *proc, l *Line) { fails = append(fails, l) }, "plugin_fail")
	jb.each(func(_ *proc, l *Line) { loaded = true }, "plugin_loaded")
	external := false
	jb.each(func(_ *proc, l *Line) {
		n := strings.TrimSpace(l.F["net"])
		external = external || n != "IB" && n != "Socket"
	}, "network")
	if len(fails) >= 3 && !loaded && !external {
		d.find("plugin-mismatch", d.of(fails[0]), fails[0].At, fails[len(fails)-1].At)
	}
}

// libraryTwice compares the version that runs with those of the packages that list the library as theirs.
func (d *diag) libraryTwice(runs string, said *Line) {
	d.job.each(func(_ *proc, l *Line) {
		if ver := l.F["ver"]; ver != runs {
			f := d.find("library-twice", Subject{Hosts: []string{l.Host}}, l.At, said.At)
			f.Cause = fmt.Sprintf("the package is %s, the library that runs is %s: two packages install the same path, and the last wins",
				ver, runs)
		}
	}, "package")
}

// versions finds libraries of different versions.
func (d *diag) versions(v [3]int, known bool) {
	jb := d.job
	vers := map[string][]*Line{}
	jb.each(func(_ *proc, l *Line) { vers[l.F["ver"]] = append(vers[l.F["ver"]], l) }, "version")
	if len(vers) > 1 {
		for _, x := range slices.SortedFunc(maps.Keys(vers), natural) {
			for _, l := range vers[x] {
				f := d.find("versions-differ", d.of(l), l.At)
				f.Cause = "two libraries: " + strings.Join(slices.SortedFunc(maps.Keys(vers), natural), ", ")
			}
		}
	}
	if len(vers) == 1 {
		for x, list := range vers {
			d.libraryTwice(x, list[0])
		}
	}
	if known && !atLeast(v, 2, 22) && len(jb.procs) > 1 && len(vers) == 1 {
		d.unknown = append(d.unknown, "NCCL "+dotted(v)+
			" prints its version on rank 0 only: whether the others run the same is unknown (grep libnccl /proc/PID/maps)")
	}
}

var mayDiffer = []string{"NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME", "NCCL_TOPO_FILE", "NCCL_HOSTID", "NCCL_DEBUG_FILE",
	"NCCL_COMM_ID", "NCCL_TOPO_DUMP_FILE", "NCCL_TOPO_DUMP_FILE_RANK", "NCCL_GRAPH_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE_RANK", "NCCL_RAS_ADDR",
	"NCCL_CONF_FILE", "NCCL_INSPECTOR_DUMP_DIR"}

var tuning = []string{"NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS",
	"NCCL_BUFFSIZE", "NCCL_NTHREADS", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE", "NCCL_P2P_LEVEL", "NCCL_P2P_NET_CHUNKSIZE",
	"NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_READ", "NCCL_CROSS_NIC", "NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_SPLIT_DATA_ON_QPS", "NCCL_IB_TC",
	"NCCL_IB_SL", "NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT", "NCCL_IB_AR_THRESHOLD", "NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD",
	"NCCL_THREAD_THRESHOLDS",
	"NCCL_TREE_THRESHOLD", "NCCL_IB_PCI_RELAXED_ORDERING", "NCCL_CHECKS_DISABLE", "NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE", "NCCL_PXN_DISABLE",
	"NCCL_P2P_PXN_LEVEL", "NCCL_IGNORE_CPU_AFFINITY", "NCCL_NCHANNELS_PER_NET_PEER", "NCCL_WORK_FIFO_DEPTH"}

// cpusIn counts the processors of a mask in hex words, or of a list of ranges.
func cpusIn(mask, set string) int {
	n := 0
	if mask != "" {
		for _, r := range mask {
			if v, err := strconv.ParseUint(string(r), 16, 8); err == nil {
				for ; v > 0; v >>= 1 {
					n += int(v & 1)
				}
			}
		}
		return n
	}
	for part := range strings.SplitSeq(set, ",") {
		a, b, ok := strings.Cut(part, "-")
		x, err := strconv.Atoi(a)
		if err != nil {
			continue
		}
		y := x
		if ok {
			y, _ = strconv.Atoi(b)
		}
		n += max(y-x+1, 0)
	}
	return n
}

// affinity judges on which cores NCCL's threads may run. One core that all ranks of a host share is a finding of its
// own; one core otherwise is judged like none.
func (d *diag) affinity() {
	jb := d.job
	single := map[string]map[string][]*Line{} // host, mask, lines
	all := map[string]int{}
	jb.each(func(_ *proc, l *Line) {
		all[l.Host]++
		if strings.Contains(l.F["set"], "empty") {
			d.find("affinity-empty", d.of(l), l.At)
			return
		}
		mask := strings.TrimPrefix(l.F["mask"], "0x")
		if n := cpusIn(mask, l.F["set"]); n == 1 {
			if single[l.Host] == nil {
				single[l.Host] = map[string][]*Line{}
			}
			k := strings.TrimLeft(strings.ReplaceAll(mask, ",", ""), "0") + l.F["set"]
			single[l.Host][k] = append(single[l.Host][k], l)
		}
	}, "affinity", "affinity2")
	for _, h := range slices.Sorted(maps.Keys(single)) {
		for _, k := range slices.Sorted(maps.Keys(single[h])) {
			list := single[h][k]
			for _, l := range list {
				if len(list) > 1 && len(list) == all[h] {
					d.find("affinity-one-core", d.of(l), l.At)
				} else {
					d.find("affinity-empty", d.of(l), l.At)
				}
			}
		}
	}
}

// slowInit returns the first rank whose Init took more than a minute, and how many ranks spent most of theirs in the
// bootstrap and in the search for a topology.
func (c *comm) slowInit() (slow *member, boot, topo int) {
	for _, r := range c.ranks() {
		m := c.members[r]
		if m.timings == nil {
			continue
		}
		f := func(k string) float64 { v, _ := strconv.ParseFloat(m.timings.F[k], 64); return v }
		if f("total") <= 60 {
			continue
		}
		if slow == nil {
			slow = m
		}
		if f("boot") > f("total")/2 {
			boot++
		} else if f("topo")+f("graphs") > f("total")/2 {
			topo++
		}
	}
	return slow, boot, topo
}

// initTimes explains an Init that took long by the part that most of the time went into.
func (d *diag) initTimes() {
	for _, c := range d.job.comms {
		slow, boot, topo := c.slowInit()
		switch {
		case boot > 0:
			s := Subject{}
			ev := []Evidence{slow.timings.At}
			// The late rank waited least.
			if late := d.latest(c); late != nil {
				s = Subject{Ranks: []int{late.rank}, Hosts: []string{late.proc.host}}
				ev = append(ev, late.boot.At)
			}
			d.find("init-slow-bootstrap", s, ev...)
		case topo > 0:
			d.find("init-slow-topology", d.of(slow.timings), slow.timings.At)
		}
	}
}

// latest is the member with the smallest recv of the bootstrap timings, if it is
// clearly smaller than the others'.
func (d *diag) latest(c *comm) *member {
	var least, second *member
	recv := func(m *member) float64 { v, _ := strconv.ParseFloat(m.boot.F["recv"], 64); return v }
	for _, r := range c.ranks() {
		m := c.members[r]
		if m.boot == nil {
			continue
		}
		if least == nil || recv(m) < recv(least) {
			least, second = m, least
		} else if second == nil || recv(m) < recv(second) {
			second = m
		}
	}
	if least == nil || second == nil || recv(least) > recv(second)/2 {
		return nil
	}
	return least
}

// churn finds communicators that are made in a loop.
func (d *diag) churn() {
	jb := d.job
	for _, p := range jb.procs {
		bySize := map[int][]*member{}
		for _, m := range p.members {
			bySize[m.comm.n] = append(bySize[m.comm.n], m)
		}
		for _, n := range slices.Sorted(maps.Keys(bySize)) {
			d.madeAgain(bySize[n])
		}
	}
}

// madeAgain judges the communicators of one size that a process made, in order.
func (d *diag) madeAgain(list []*member) {
	first, last := list[0].first(), list[len(list)-1].first()
	ended := 0
	for _, m := range list {
		if m.end != nil && m.end.F["what"] != "Abort" {
			ended++
		}
	}
	if moreThanOnePerMinute(list) {
		d.find("communicators-in-loop", d.of(last), first.At, last.At)
	} else if first.Time == 0 && len(list) >= 24 && ended*2 >= len(list) {
		d.find("communicators-in-loop", d.of(last), first.At, last.At).Confidence = 0.6
	}
	if len(list) >= 48 && ended*4 < len(list) {
		d.find("communicators-leaked", d.of(last), first.At, last.At)
	}
}

// moreThanOnePerMinute leaves out the first ten minutes, in which programs set themselves up. Without times it is false.
func moreThanOnePerMinute(list []*member) bool {
	const setup = 600
	begin := list[0].first().Time
	late := 0
	for _, m := range list {
		if m.first().Time-begin > setup {
			late++
		}
	}
	minutes := (list[len(list)-1].first().Time - begin - setup) / 60
	return begin > 0 && minutes > 0 && late >= 3 && float64(late) > minutes
}
