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

// direct are lines of which one is enough.
var direct = map[string]string{
	"ib_gid_change": "gid-changed", "net_missing": "network-not-found", "root_twice": "rank-twice", "root_mismatch": "world-size-differs",
	"dup_gpu": "gpu-shared", "ver_mismatch": "versions-differ", "ras_ver_mismatch": "versions-differ", "p2p_off_nvl": "nvlink-p2p-broken",
	"ring_broken": "topologies-differ", "pxn_old": "plugin-old-no-pxn", "stack": "stack-unlimited", "cumem_host": "cumem-host-blocked",
	"ib_noip": "no-interface", "driver_old": "driver-too-old", "files": "open-files", "family": "unique-id-empty",
	"no_path": "topology-search-failed", "mixed_nics": "nic-count-differs", "ib_mixed": "ib-roce-mixed", "too_old": "versions-differ",
	"ipc_fail": "p2p-forced", "imex": "imex-missing",
}

func (jb *job) multiHost() bool {
	if len(jb.hosts()) > 1 {
		return true
	}
	many := false
	for _, c := range jb.comms {
		for _, m := range c.members {
			many = many || m.shape != nil && num(m.shape.F["nodes"]) > 1 && m.comm.n > num(m.shape.F["lr"])
		}
	}
	return many
}

// ready says whether the job's largest communicator was set up.
func (jb *job) ready() bool {
	if jb.world == nil {
		return false
	}
	for _, m := range jb.world.members {
		if m.done != nil {
			return true
		}
	}
	return false
}

// pair lists the two ranks that a line names, or those of them that it has.
func (l *Line) pair() (ranks []int) {
	for _, k := range []string{"a", "b"} {
		if r, err := strconv.Atoi(l.F[k]); err == nil {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// ranksNamed adds to findings the ranks that lines tell of, rather than those that print the lines.
func (d *diag) ranksNamed() {
	if f := d.has("gpu-shared"); f != nil {
		d.job.each(func(_ *proc, l *Line) {
			f.Subject.Ranks = append(f.Subject.Ranks, l.pair()...)
			if l.F["bus"] != "" {
				f.Subject.Devices = append(f.Subject.Devices, l.F["bus"])
			}
		}, "dup_gpu")
	}
	d.job.each(func(_ *proc, l *Line) {
		for _, r := range l.pair() {
			d.find("versions-differ", Subject{Ranks: []int{r}})
		}
	}, "ver_mismatch")
	d.job.each(func(_ *proc, l *Line) {
		if r := num(l.F["rank"]); r >= 0 {
			d.find("rank-twice", Subject{Ranks: []int{r}})
		}
	}, "root_twice")
}

// ncclRules judges the lines of NCCL's log, first those of which one is enough.
func (d *diag) ncclRules() {
	jb := d.job
	multi := jb.multiHost()
	version, versionKnown := jb.version()
	for _, kind := range slices.Sorted(maps.Keys(direct)) {
		id := direct[kind]
		jb.each(func(_ *proc, l *Line) { d.find(id, d.of(l), l.At) }, kind)
	}
	d.noInterface()
	d.otherSubnet()
	jb.each(func(_ *proc, l *Line) {
		f := d.find("no-interface", d.of(l), l.At)
		if strings.Contains(l.Msg, "ignoring") && f.Severity == Critical && len(f.Evidence) == 1 {
			f.Severity = Warning
		}
	}, "oob_none")
	d.ranksNamed()
	d.completions()
	d.asyncEvents()
	d.queuePairs()
	d.verbsFailed()
	d.devices(multi)
	d.network(multi)
	d.bootstrap(multi, version, versionKnown)
	d.sockets(version, versionKnown)
	d.memory()
	d.cuda()
	d.gpuPaths()
	d.settings(multi, version, versionKnown)
	d.affinity()
	d.initTimes()
	d.churn()
	jb.each(func(_ *proc, l *Line) { d.consequence("return codes passed up", l) }, "bt")
	jb.each(func(_ *proc, l *Line) { d.consequence("proxy operations failed", l) }, "proxy_fail", "async_err")
	jb.each(func(_ *proc, l *Line) {
		if l.F["what"] == "Abort" {
			d.consequence("communicators aborted", l)
		}
	}, "comm_end")
	// Warnings of unknown text.
	jb.each(func(_ *proc, l *Line) {
		if !l.Warn || strings.TrimSpace(l.Msg) == "" || harmless(l.Msg) {
			return
		}
		d.find("nccl-error", d.of(l), l.At)
	}, "")
}

// harmless are warnings that mean nothing by themselves.
func harmless(msg string) bool {
	for _, s := range []string{"Proxy Call to rank", "Could not receive type", "Accept failed", "NCCL_", "MSCCL",
		"Failed to find reverse path", "NUMA auto balancing", "Missing \"iommu=pt\"", "while polling", "Cannot get incoming CPU",
		"Maximum retry reached for", "[Service thread]", "Could not find libnccl-net", "Cuda failure", "misc/socket", "ncclUnhandled", "HINT",
		"User asked for a m", "Could not find real path", "CollNet", "not dumping topology", "Skipping nvlink detection", "cap it to",
		"limiting it to", "Limiting value to", "is being ignored", "Ignoring SHM", "set both to", "GDR Flush only", "trying to use CUDA instead",
		"unlink failed", "munmap"} {
		if strings.Contains(msg, s) {
			return true
		}
	}
	return false
}

// completions judges RDMA completion errors.
func (d *diag) completions() {
	retry := d.completionErrors()
	provider := ""
	d.job.each(func(_ *proc, l *Line) { provider = l.F["provider"] }, "no_provider")
	d.job.each(func(_ *proc, l *Line) {
		if provider != "" { // said by libfabric, which does not say for whom
			f := d.find("tcp-no-provider", d.of(l), l.At)
			f.Cause = fmt.Sprintf("libfabric has no device for its provider %s, and the plugin fails: the device is not in the container, or its driver is missing",
				provider)
			return
		}
		f := d.find("completion-error", d.of(l), l.At)
		f.Title = "the libfabric plugin reports an error"
		f.Cause = "libfabric says: " + strings.TrimPrefix(l.Msg, "NET/OFI ")
		f.Fix = "FI_LOG_LEVEL=warn; security group that allows itself; locked memory; versions of EFA, libfabric and the plugin"
	}, "ofi_fail")
	if len(retry) > 0 && !d.flapped(retry) && !d.silentPeer(retry) {
		d.retriesExceeded(retry)
	}
}

// completionErrors judges RDMA operations that failed and returns those whose retries were exhausted (status 12), which
// can mean several things.
func (d *diag) completionErrors() (retry []*Line) {
	d.job.each(func(_ *proc, l *Line) {
		s := d.of(l)
		if h := l.F["hca"]; h != "" {
			s.Devices = []string{l.Host + ":" + strings.TrimSuffix(h, ",")}
		}
		if p := d.j.hostOf(l.F["peer"]); p != "" {
			s.Links = []string{linkTo(l.Host, p)}
		}
		switch num(l.F["status"]) {
		case 12:
			retry = append(retry, l)
		case 5:
			d.consequence("requests flushed after an error (status 5)", l)
		case 4:
			d.find("gpudirect-acs", s, l.At)
		case 9:
			d.find("remote-invalid-request", s, l.At)
		case 10, 11:
			d.find("remote-access-error", s, l.At)
		case 13:
			d.find("receiver-not-ready", s, l.At)
		case 19, 21:
			d.find("nic-firmware", s, l.At)
		default:
			f := d.find("completion-error", s, l.At)
			f.Title = "an RDMA operation failed with status " + l.F["status"]
		}
	}, "ib_wc")
	return retry
}

// portFailed says whether an asynchronous event of a NIC means that its port went down.
func portFailed(event string) bool {
	event = strings.ToLower(event)
	return strings.Contains(event, "port err") || strings.Contains(event, "port down")
}

// mayBeWith says whether two lines can tell of one event: they are at most two minutes apart, or one has no time.
func (l *Line) mayBeWith(o *Line) bool {
	return l.Time == 0 || o.Time == 0 || math.Abs(l.Time-o.Time) < 120
}

// flapped: one side saw its port fail, so it was the link.
func (d *diag) flapped(retry []*Line) bool {
	flap := false
	d.job.each(func(_ *proc, l *Line) {
		if !portFailed(l.F["ev"]) || !slices.ContainsFunc(retry, l.mayBeWith) {
			return
		}
		flap = true
		s := d.of(l)
		if dev := l.F["dev"]; dev != "" {
			s.Devices = []string{l.Host + ":" + dev}
		}
		d.find("link-flap", s, l.At)
	}, "ib_async")
	if !flap {
		return false
	}
	for _, l := range retry {
		d.find("link-flap", Subject{}, l.At)
		d.consequence("retries exhausted (status 12)", l)
	}
	return true
}

// processesIn counts the processes that the lines are of.
func processesIn(lines []*Line) int {
	who := map[string]bool{}
	for _, l := range lines {
		who[fmt.Sprintf("%s:%d", l.Host, l.PID)] = true
	}
	return len(who)
}

// silentPeer: many name one peer that does not complain itself, so it died.
func (d *diag) silentPeer(retry []*Line) bool {
	peers := map[string][]*Line{}
	for _, l := range retry {
		peer := cmp.Or(d.j.hostOf(l.F["peer"]), ipOf(l.F["peer"]), l.F["gid"])
		peers[peer] = append(peers[peer], l)
	}
	silent := slices.DeleteFunc(slices.Sorted(maps.Keys(peers)), func(p string) bool {
		return p == "" || processesIn(peers[p]) < 2 || slices.ContainsFunc(retry, func(l *Line) bool { return l.Host == p })
	})
	if len(silent) != 1 || len(peers[silent[0]])*10 < len(retry)*8 {
		return false
	}
	host, jb := silent[0], d.job
	s := Subject{Hosts: []string{host}}
	for _, p := range jb.procs {
		if p.host == host {
			s.Ranks = append(s.Ranks, p.ranksIn(jb.world)...)
		}
	}
	d.find("peer-died", s)
	for _, l := range peers[host] {
		d.find("peer-died", Subject{}, l.At)
		d.consequence("retries exhausted (status 12) towards "+host, l)
	}
	return true
}

// retriesExceeded tells pairs that never could talk from paths that lose packets, by the time since init.
func (d *diag) retriesExceeded(retry []*Line) {
	for _, l := range retry {
		s := d.of(l)
		if h := l.F["hca"]; h != "" {
			s.Devices = []string{l.Host + ":" + strings.TrimSuffix(h, ",")}
		}
		if p := d.j.hostOf(l.F["peer"]); p != "" {
			s.Hosts = append(s.Hosts, p)
			s.Links = []string{linkTo(l.Host, p)}
		} else if p := l.F["peer"]; p != "" {
			s.Links = []string{linkTo(l.Host, ipOf(p))}
		}
		since, known := d.sinceInit(l)
		switch {
		case known && since > 60:
			d.find("lossy-path", s, l.At)
		case known:
			d.find("ib-pair-unreachable", s, l.At)
		default:
			f := d.find("ib-pair-unreachable", s, l.At)
			f.Confidence = min(f.Confidence, 0.6)
			f.Cause = "if right after init: " + byID["ib-pair-unreachable"].Cause + "; if during the run: " + byID["lossy-path"].Cause +
				" (the log has no times)"
		}
	}
}

// sinceInit is the time between the end of init of the line's process and the line.
func (d *diag) sinceInit(l *Line) (float64, bool) {
	p := d.j.procs[fmt.Sprintf("%s:%d", l.Host, l.PID)]
	if p == nil || l.Time == 0 {
		return 0, false
	}
	last := 0.0
	for _, m := range p.members {
		if m.done != nil && m.done.Time > 0 && m.done.Time <= l.Time {
			last = max(last, m.done.Time)
		}
	}
	return l.Time - last, last > 0
}

func (d *diag) asyncEvents() {
	d.job.each(func(_ *proc, l *Line) {
		ev := strings.ToLower(l.F["ev"])
		s := d.of(l)
		if dev := l.F["dev"]; dev != "" {
			s.Devices = []string{l.Host + ":" + dev}
		}
		switch {
		case strings.Contains(ev, "catastrophic") || strings.Contains(ev, "device fatal"):
			d.find("nic-firmware", s, l.At)
		case strings.Contains(ev, "gid table change") || strings.Contains(ev, "gid change"):
			d.find("gid-changed", s, l.At)
		case strings.Contains(ev, "access violation"), strings.Contains(ev, "invalid request local"):
			d.find("remote-invalid-request", s, l.At)
		case strings.Contains(ev, "port err"):
			if d.has("link-flap") == nil {
				f := d.find("link-flap", s, l.At)
				f.Confidence = 0.8
			}
		case strings.Contains(l.Msg, "async fatal event"):
			f := d.find("completion-error", s, l.At)
			f.Title = "a NIC reports a fatal event"
			f.Cause = l.F["ev"]
		}
	}, "ib_async")
	d.recoveries()
}

// recoveries judges links that NCCL could use again, and ports that came back slower than they were.
func (d *diag) recoveries() {
	d.job.each(func(_ *proc, l *Line) {
		f := d.find("link-flap", Subject{Hosts: []string{l.Host}}, l.At)
		if strings.Contains(l.Msg, "succeeded") && len(f.Evidence) <= 2 {
			f.Severity = Warning
			f.Title = "a link went down and the job survived"
		}
	}, "ib_recover")
	d.job.each(func(_ *proc, l *Line) {
		a, _ := strconv.ParseFloat(l.F["a"], 64)
		b, err := strconv.ParseFloat(l.F["b"], 64)
		if err == nil && b < a {
			d.find("port-slow", Subject{Hosts: []string{l.Host}, Devices: []string{l.Host + ":" + l.F["dev"]}}, l.At)
		}
	}, "ib_speed")
}

type queuePairError struct{ errno, text, id string }

// queuePairErrors is what the error of a queue pair's change of state means. Logs have the number, the text or both.
var queuePairErrors = []queuePairError{
	{"110", "timed out", "qp-timeout"},
	{"101", "network is unreachable", "gid-unreachable"},
	{"22", "invalid argument", "gid-index-wrong"},
	{"19", "no such device", "gid-no-netdev"},
}

// notRegistered says why memory could not be registered with a NIC, and returns false if the error is not one it knows.
func (d *diag) notRegistered(l *Line) bool {
	switch msg := l.F["msg"]; {
	case msg == "" || strings.Contains(msg, "annot allocate memory"):
		d.find("memlock", d.of(l), l.At)
	case strings.Contains(l.Msg, "Invalid argument") || strings.Contains(l.Msg, "Bad address"):
		f := d.find("peermem-missing", d.of(l), l.At)
		f.Title, f.Severity, f.Confidence = "the NIC cannot register memory", Critical, 0.6
		f.Cause = l.F["fn"] +
			" failed: mostly GPU memory that the NIC cannot reach, because nvidia-peermem or DMA-BUF is missing or does not fit the driver"
	default:
		return false
	}
	return true
}

// queuePairs judges calls of the verbs library that failed to connect a queue pair.
func (d *diag) queuePairs() {
	d.job.each(func(_ *proc, l *Line) {
		msg := strings.ToLower(l.F["msg"])
		s := d.of(l)
		if m := regexp.MustCompile(`on dev (\S+?):\d+`).FindStringSubmatch(l.Msg); m != nil {
			s.Devices = []string{l.Host + ":" + m[1]}
		}
		i := slices.IndexFunc(queuePairErrors, func(e queuePairError) bool { return l.F["errno"] == e.errno || strings.Contains(msg, e.text) })
		if i >= 0 {
			d.find(queuePairErrors[i].id, s, l.At)
		} else {
			d.find("qp-timeout", s, l.At).Confidence = 0.4
		}
	}, "modify_qp")
}

// verbsFailed judges all other calls of the verbs library that failed.
func (d *diag) verbsFailed() {
	d.job.each(func(_ *proc, l *Line) {
		switch fn := l.F["fn"]; {
		case strings.HasPrefix(fn, "ibv_reg_") && d.notRegistered(l):
		case strings.HasPrefix(fn, "ibv_create_") && strings.Contains(l.F["msg"], "annot allocate memory"):
			d.find("verbs-memory", d.of(l), l.At)
		case fn == "ibv_get_async_event" && d.has("nic-firmware") != nil:
			d.consequence("the NIC gives no events any more", l)
		case fn != "ibv_modify_qp":
			f := d.find("completion-error", d.of(l), l.At)
			f.Title = "a verbs call failed: " + fn
			f.Confidence = 0.5
		}
	}, "verbs_fail")
}
