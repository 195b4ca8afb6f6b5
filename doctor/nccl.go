package doctor

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// direct are lines of which one is enough.
var direct = map[string]string{
	"ib_gid_change": "gid-changed", "net_missing": "network-not-found", "root_twice": "rank-twice", "root_mismatch": "world-size-differs",
	"dup_gpu": "gpu-shared", "ver_mismatch": "versions-differ", "ras_ver_mismatch": "versions-differ", "p2p_off_nvl": "nvlink-p2p-broken",
	"ring_broken": "topologies-differ", "pxn_old": "plugin-old-no-pxn", "stack": "stack-unlimited", "cumem_host": "cumem-host-blocked",
	"bootstrap_none": "no-interface", "ib_noip": "no-interface", "driver_old": "driver-too-old", "files": "open-files", "family": "unique-id-empty",
	"no_path": "topology-search-failed", "mixed_nics": "nic-count-differs", "ib_mixed": "ib-roce-mixed", "too_old": "versions-differ", "cuda_oom": "cuda-out-of-memory",
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

func (d *diag) ncclRules() {
	jb := d.job
	multi := jb.multiHost()
	version, versionKnown := jb.version()
	for _, kind := range slices.Sorted(maps.Keys(direct)) {
		id := direct[kind]
		jb.each(func(_ *proc, l *Line) { d.find(id, d.of(l), l.At) }, kind)
	}
	jb.each(func(_ *proc, l *Line) {
		f := d.find("no-interface", d.of(l), l.At)
		if strings.Contains(l.Msg, "ignoring") && f.Severity == Critical && len(f.Evidence) == 1 {
			f.Severity = Warning
		}
	}, "oob_none")
	if f := d.has("gpu-shared"); f != nil {
		jb.each(func(_ *proc, l *Line) {
			for _, k := range []string{"a", "b"} {
				if r, err := strconv.Atoi(l.F[k]); err == nil {
					f.Subject.Ranks = append(f.Subject.Ranks, r)
				}
			}
			if l.F["bus"] != "" {
				f.Subject.Devices = append(f.Subject.Devices, l.F["bus"])
			}
		}, "dup_gpu")
	}
	jb.each(func(_ *proc, l *Line) {
		for _, k := range []string{"a", "b"} {
			if r, err := strconv.Atoi(l.F[k]); err == nil {
				d.find("versions-differ", Subject{Ranks: []int{r}})
			}
		}
	}, "ver_mismatch")
	jb.each(func(_ *proc, l *Line) {
		if r := num(l.F["rank"]); r >= 0 {
			d.find("rank-twice", Subject{Ranks: []int{r}})
		}
	}, "root_twice")
	d.completions()
	d.asyncEvents()
	d.queuePairs()
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
	for _, s := range []string{"Proxy Call to rank", "Could not receive type", "Accept failed", "NCCL_", "MSCCL", "Failed to find reverse path", "NUMA auto balancing", "Missing \"iommu=pt\"", "poll", "[Service thread]", "Could not find libnccl-net", "Cuda failure", "misc/socket", "ncclUnhandled", "HINT"} {
		if strings.Contains(msg, s) {
			return true
		}
	}
	return false
}

// completions judges RDMA completion errors.
func (d *diag) completions() {
	jb := d.job
	var retry []*Line
	jb.each(func(_ *proc, l *Line) {
		s := d.of(l)
		if h := l.F["hca"]; h != "" {
			s.Devices = []string{l.Host + ":" + strings.TrimSuffix(h, ",")}
		}
		if p := d.j.hostOf(l.F["peer"]); p != "" {
			s.Links = []string{l.Host + " - " + p}
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
	if len(retry) == 0 {
		return
	}
	// One side saw its port fail: the link.
	flap := false
	jb.each(func(_ *proc, l *Line) {
		ev := strings.ToLower(l.F["ev"])
		if !strings.Contains(ev, "port error") && !strings.Contains(ev, "port down") && !strings.Contains(ev, "port err") {
			return
		}
		near := false
		for _, r := range retry {
			near = near || l.Time == 0 || r.Time == 0 || r.Time-l.Time < 120 && l.Time-r.Time < 120
		}
		if !near {
			return
		}
		flap = true
		s := d.of(l)
		if dev := l.F["dev"]; dev != "" {
			s.Devices = []string{l.Host + ":" + dev}
		}
		d.find("link-flap", s, l.At)
	}, "ib_async")
	if flap {
		for _, l := range retry {
			d.find("link-flap", Subject{}, l.At)
			d.consequence("retries exhausted (status 12)", l)
		}
		return
	}
	// Many name one peer that does not complain itself: it died.
	peers := map[string][]*Line{}
	reporters := map[string]map[string]bool{}
	for _, l := range retry {
		peer := ipOf(l.F["peer"])
		if peer == "" {
			peer = l.F["gid"]
		}
		if h := d.j.hostOf(l.F["peer"]); h != "" {
			peer = h
		}
		peers[peer] = append(peers[peer], l)
		if reporters[peer] == nil {
			reporters[peer] = map[string]bool{}
		}
		reporters[peer][fmt.Sprintf("%s:%d", l.Host, l.PID)] = true
	}
	complains := map[string]bool{}
	for _, l := range retry {
		complains[l.Host] = true
	}
	var silent []string
	for _, p := range slices.Sorted(maps.Keys(peers)) {
		if p != "" && len(reporters[p]) >= 2 && !complains[p] {
			silent = append(silent, p)
		}
	}
	if len(silent) == 1 && len(peers[silent[0]])*10 >= len(retry)*8 {
		host := silent[0]
		s := Subject{Hosts: []string{host}}
		for _, p := range jb.procs {
			if p.host == host {
				for _, m := range p.members {
					if m.comm == jb.world {
						s.Ranks = append(s.Ranks, m.rank)
					}
				}
			}
		}
		d.find("peer-died", s)
		for _, l := range peers[host] {
			d.find("peer-died", Subject{}, l.At)
			d.consequence("retries exhausted (status 12) towards "+host, l)
		}
		return
	}
	for _, l := range retry {
		s := d.of(l)
		if h := l.F["hca"]; h != "" {
			s.Devices = []string{l.Host + ":" + strings.TrimSuffix(h, ",")}
		}
		if p := d.j.hostOf(l.F["peer"]); p != "" {
			s.Hosts = append(s.Hosts, p)
			s.Links = []string{l.Host + " - " + p}
		} else if p := l.F["peer"]; p != "" {
			s.Links = []string{l.Host + " - " + ipOf(p)}
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
			f.Cause = "if right after init: " + byID["ib-pair-unreachable"].Cause + "; if during the run: " + byID["lossy-path"].Cause + " (the log has no times)"
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
		case strings.Contains(ev, "access violation"):
			d.find("remote-invalid-request", s, l.At)
		case strings.Contains(ev, "port error") || strings.Contains(ev, "port err"):
			if d.has("link-flap") == nil {
				f := d.find("link-flap", s, l.At)
				f.Confidence = 0.8
			}
		}
	}, "ib_async")
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

func (d *diag) queuePairs() {
	d.job.each(func(_ *proc, l *Line) {
		msg := strings.ToLower(l.F["msg"])
		s := d.of(l)
		if m := regexp.MustCompile(`on dev (\S+?):\d+`).FindStringSubmatch(l.Msg); m != nil {
			s.Devices = []string{l.Host + ":" + m[1]}
		}
		switch {
		case l.F["errno"] == "110" || strings.Contains(msg, "timed out"):
			d.find("qp-timeout", s, l.At)
		case l.F["errno"] == "101" || strings.Contains(msg, "network is unreachable"):
			d.find("gid-unreachable", s, l.At)
		case l.F["errno"] == "22" || strings.Contains(msg, "invalid argument"):
			d.find("gid-index-wrong", s, l.At)
		case l.F["errno"] == "19" || strings.Contains(msg, "no such device"):
			d.find("gid-no-netdev", s, l.At)
		default:
			d.find("qp-timeout", s, l.At).Confidence = 0.4
		}
	}, "modify_qp")
	d.job.each(func(_ *proc, l *Line) {
		switch fn := l.F["fn"]; {
		case strings.HasPrefix(fn, "ibv_reg_") && (strings.Contains(l.F["msg"], "annot allocate memory") || l.F["msg"] == ""):
			d.find("memlock", d.of(l), l.At)
		case strings.HasPrefix(fn, "ibv_create_") && strings.Contains(l.F["msg"], "annot allocate memory"):
			d.find("verbs-memory", d.of(l), l.At)
		case fn != "ibv_modify_qp":
			f := d.find("completion-error", d.of(l), l.At)
			f.Title = "a verbs call failed: " + fn
			f.Confidence = 0.5
		}
	}, "verbs_fail")
}

// devices judges which RDMA devices could be opened.
func (d *diag) devices(multi bool) {
	jb := d.job
	jb.each(func(_ *proc, l *Line) {
		id := "verbs-device-missing"
		if strings.Contains(l.F["rest"], "ENOENT") || strings.Contains(l.F["rest"], "No such file") || strings.Contains(l.F["rest"], "errno 2") || strings.Contains(l.F["rest"], "errno=2") {
			id = "verbs-permission"
		}
		s := d.of(l)
		s.Devices = []string{l.Host + ":" + strings.Trim(l.F["dev"], ".,")}
		d.find(id, s, l.At)
	}, "ib_open", "ib_query")
	// Lists of devices.
	lists := map[string][]ibDevice{}
	jb.each(func(p *proc, l *Line) {
		list := ibDevices(l.F["list"])
		if len(list) > len(lists[l.Host]) {
			lists[l.Host] = list
		}
		if len(list) == 0 {
			f := d.find("ib-list-empty", d.of(l), l.At)
			if !multi {
				f.Severity = Info
			}
		}
		layers := map[string]bool{}
		for _, x := range list {
			layer := x.layer
			if strings.HasPrefix(layer, "IB") {
				layer = "IB"
			}
			layers[layer] = true
		}
		if layers["IB"] && layers["RoCE"] {
			d.find("ib-roce-mixed", d.of(l), l.At)
		}
	}, "ib_using")
	// NCCL_IB_HCA names what is not there.
	have := map[string]map[string]bool{}
	for h, list := range lists {
		have[h] = map[string]bool{}
		for _, x := range list {
			have[h][x.name] = true
		}
	}
	whole := map[string]bool{} // hosts of which all devices are known
	for _, p := range d.c.Ports {
		if p.Switch || p.Device == "" {
			continue
		}
		if have[p.Host] == nil {
			have[p.Host] = map[string]bool{}
		}
		have[p.Host][p.Device] = true
		whole[p.Host] = true
	}
	jb.each(func(p *proc, l *Line) {
		if l.F["var"] != "NCCL_IB_HCA" || l.Host == "" || have[l.Host] == nil {
			return
		}
		val := strings.TrimSpace(l.F["val"])
		if strings.HasPrefix(val, "^") {
			return
		}
		exact := strings.HasPrefix(val, "=")
		var lost []string
		for part := range strings.SplitSeq(strings.TrimPrefix(val, "="), ",") {
			name, _, _ := strings.Cut(strings.TrimSpace(part), ":")
			if name == "" {
				continue
			}
			found := false
			for dev := range have[l.Host] {
				found = found || dev == name || !exact && strings.HasPrefix(dev, name)
			}
			if !found {
				lost = append(lost, name)
			}
		}
		// Devices that the log does not list may be down; only a full list is proof,
		// or a list from which other names of the filter are missing entirely.
		if len(lost) > 0 {
			f := d.find("hca-name-wrong", Subject{Hosts: []string{l.Host}, Devices: prefixed(l.Host, lost)}, l.At)
			if !whole[l.Host] {
				f.Confidence = min(f.Confidence, 0.7)
				f.Cause = "the list was copied from another kind of host, or these ports are down"
			}
		}
	}, "env", "env_hca")
	// Numbers of NICs differ.
	if multi && len(lists) > 1 {
		count := map[int][]string{}
		for h, list := range lists {
			count[len(list)] = append(count[len(list)], h)
		}
		if len(count) > 1 {
			common := slices.MaxFunc(slices.Sorted(maps.Keys(count)), func(a, b int) int {
				return cmp.Or(cmp.Compare(len(count[a]), len(count[b])), cmp.Compare(a, b))
			})
			jb.each(func(_ *proc, l *Line) {
				if n := len(ibDevices(l.F["list"])); n < common && n > 0 {
					f := d.find("nic-count-differs", Subject{Hosts: []string{l.Host}}, l.At)
					f.Cause = fmt.Sprintf("these hosts open %d NICs, the others %d; NCCL goes on by default and may hang or run at the pace of the slowest", n, common)
				}
			}, "ib_using")
		}
	}
}

func prefixed(host string, names []string) []string {
	var out []string
	for _, n := range names {
		out = append(out, host+":"+n)
	}
	return out
}

// ibDevice is an element of NET/IB : Using.
type ibDevice struct {
	index int
	name  string
	port  string
	layer string
}

var ibElement = regexp.MustCompile(`\[(\d+)\]([^:\s]+):(\d+)/(\S+)`)

func ibDevices(list string) []ibDevice {
	var out []ibDevice
	for _, m := range ibElement.FindAllStringSubmatch(list, -1) {
		layer, _, _ := strings.Cut(m[4], ":") // 2.30 adds rail and plane
		out = append(out, ibDevice{num(m[1]), m[2], m[3], layer})
	}
	return out
}

// rdmaOn says why it is known that a host has RDMA, "" if it is not.
func (d *diag) rdmaOn(host string) (Evidence, bool) {
	for _, p := range d.c.Ports {
		if (p.Host == host || p.Host == "") && !p.Switch && p.State == "Active" {
			return p.At, true
		}
	}
	for _, p := range d.c.PCI {
		if (p.Host == host || p.Host == "") && (strings.Contains(p.Class, "nfiniband") || p.Driver == "mlx5_core") {
			return p.At, true
		}
	}
	for _, q := range d.job.procs {
		for _, l := range q.lines {
			if l.Kind == "ib_using" && l.F["list"] != "" || l.Kind == "ib_open" && l.Host == host {
				return l.At, true
			}
		}
	}
	for _, h := range d.c.Host {
		if h.Host == host && h.RDMA > 0 {
			return h.At, true
		}
	}
	return Evidence{}, false
}

// network judges which network carries the data.
func (d *diag) network(multi bool) {
	jb := d.job
	names := map[string][]*Line{}
	jb.each(func(_ *proc, l *Line) {
		names[strings.TrimSpace(l.F["net"])] = append(names[strings.TrimSpace(l.F["net"])], l)
	}, "network")
	jb.each(func(_ *proc, l *Line) {
		if l.F["what"] == "Assigned" {
			names[l.F["name"]] = append(names[l.F["name"]], l)
		}
	}, "net_init")
	if len(names) > 1 && multi {
		var kinds []string
		for n := range names {
			kinds = append(kinds, n)
		}
		slices.Sort(kinds)
		// A process may be told twice, in two wordings.
		perProc := map[string]map[string]bool{}
		for n, list := range names {
			for _, l := range list {
				k := fmt.Sprintf("%s:%d", l.Host, l.PID)
				if perProc[k] == nil {
					perProc[k] = map[string]bool{}
				}
				perProc[k][n] = true
			}
		}
		sets := map[string]bool{}
		for _, set := range perProc {
			sets[strings.Join(slices.Sorted(maps.Keys(set)), "+")] = true
		}
		if len(sets) > 1 {
			common := kinds[0]
			for _, k := range kinds {
				if len(names[k]) > len(names[common]) {
					common = k
				}
			}
			for _, k := range kinds {
				for _, l := range names[k] {
					if k != common {
						f := d.find("networks-differ", d.of(l), l.At)
						f.Cause = "hosts have different software: " + strings.Join(kinds, ", ")
					}
				}
			}
		}
	}
	socket := names["Socket"]
	jb.each(func(_ *proc, l *Line) {
		if l.F["net"] == "Socket" {
			socket = append(socket, l)
		}
	}, "ch_net")
	if len(socket) == 0 || !multi {
		return
	}
	reasons := map[string]string{"ib_nolib": "tcp-no-library", "ofi_none": "tcp-no-provider", "ib_none": "tcp-no-device"}
	byHost := map[string]bool{}
	for _, l := range socket {
		ev, rdma := d.rdmaOn(l.Host)
		s := d.of(l)
		if rdma {
			d.find("tcp-fallback", s, l.At, ev)
		} else {
			f := d.find("tcp-fallback", s, l.At)
			if len(f.Evidence) == 1 || f.Severity == Info {
				f.Severity, f.Confidence = Info, 0.5
				f.Title = "the job runs over TCP"
				f.Cause = "no RDMA was used; whether the hosts have any is unknown"
			}
		}
		if byHost[l.Host] {
			continue
		}
		byHost[l.Host] = true
		jb.each(func(_ *proc, x *Line) {
			if x.Host != l.Host {
				return
			}
			id := reasons[x.Kind]
			if id == "tcp-no-device" && !rdma {
				return
			}
			f := d.find(id, d.of(x), x.At, l.At)
			if !rdma && id == "tcp-no-library" {
				f.Severity, f.Confidence = Warning, 0.7
			}
		}, "ib_nolib", "ofi_none", "ib_none")
	}
	if f := d.has("tcp-fallback"); f != nil && f.Severity == Info {
		for _, l := range socket {
			if _, rdma := d.rdmaOn(l.Host); rdma {
				e := byID["tcp-fallback"]
				f.Severity, f.Confidence, f.Title, f.Cause = e.Severity, e.Confidence, e.Title, e.Cause
			}
		}
	}
	for _, p := range jb.procs {
		if l := p.env["NCCL_IB_DISABLE"]; l != nil && l.F["val"] == "1" {
			if f := d.has("tcp-fallback"); f != nil && f.Severity > Info {
				f.Cause = "NCCL_IB_DISABLE=1 turns RDMA off"
				f.addEvidence(l.At)
			}
		}
	}
	// Plugin that fails in every version.
}

var virtualIf = regexp.MustCompile(`^(docker|veth|virbr|cni|br-|flannel|cali|tun|tap|wg|tailscale|zt|cloudflare|CloudflareWARP|vxlan|kube|lxc|podman|utun|vmnet|weave|cilium|nodelocaldns|dummy)`)

func (d *diag) bootstrap(multi bool, v [3]int, known bool) {
	jb := d.job
	nets := map[string][]*Line{}
	jb.each(func(p *proc, l *Line) {
		name, addr := l.F["if"], ipOf(l.F["addr"])
		a, _ := netip.ParseAddr(addr)
		text := l.F["addr"]
		switch {
		case name == "lo" || strings.HasPrefix(text, "127."):
			if !multi {
				return
			}
			f := d.find("bootstrap-loopback", d.of(l), l.At)
			comm := p != nil && p.env["NCCL_COMM_ID"] != nil
			if !(known && atLeast(v, 2, 29, 2) && !atLeast(v, 2, 30, 0) && comm) {
				f.Confidence = 0.8
				f.Cause = "NCCL_SOCKET_IFNAME=lo, or the host has no other usable interface"
				f.Fix = "NCCL_SOCKET_IFNAME=<management interface>"
			}
		case a.Is6() && a.IsLinkLocalUnicast():
			if multi {
				d.find("bootstrap-link-local", d.of(l), l.At)
			}
		case virtualIf.MatchString(name) || a.Is4() && (a.IsLinkLocalUnicast() || strings.HasPrefix(addr, "172.17.")):
			if !multi {
				return
			}
			s := d.of(l)
			s.Devices = []string{l.Host + ":" + name}
			f := d.find("bootstrap-virtual-interface", s, l.At)
			if jb.ready() {
				f.Severity = Info
				if jb.uses("Socket") {
					f.Severity = Critical
				}
			}
		}
		if a.Is4() {
			pre, _ := a.Prefix(16)
			nets[name+" "+pre.String()] = append(nets[name+" "+pre.String()], l)
		}
	}, "bootstrap_if")
	if multi && len(nets) > 1 {
		keys := slices.Sorted(maps.Keys(nets))
		common := keys[0]
		for _, k := range keys {
			if len(nets[k]) > len(nets[common]) {
				common = k
			}
		}
		// Names may differ by slot; networks that differ by interface name are the sign.
		for _, k := range keys {
			if k == common {
				continue
			}
			ifA, netA, _ := strings.Cut(common, " ")
			ifB, netB, _ := strings.Cut(k, " ")
			if netA == netB || virtualIf.MatchString(ifB) || virtualIf.MatchString(ifA) && len(nets[k]) >= len(nets[common]) {
				continue
			}
			for _, l := range nets[k] {
				s := d.of(l)
				s.Devices = []string{l.Host + ":" + ifB}
				f := d.find("bootstrap-subnets-differ", s, l.At, nets[common][0].At)
				if jb.ready() {
					f.Severity = Info // it worked
					f.Confidence = 0.5
				}
			}
		}
	}
}

func (jb *job) uses(net string) bool {
	found := false
	jb.each(func(_ *proc, l *Line) {
		found = found || strings.TrimSpace(l.F["net"]) == net
	}, "network", "ch_net")
	return found
}

func (d *diag) sockets(v [3]int, known bool) {
	jb := d.job
	jb.each(func(_ *proc, l *Line) {
		msg := l.F["msg"] + l.F["m2"]
		s := d.of(l)
		if h := d.j.hostOf(l.F["peer"]); h != "" {
			s.Links = []string{l.Host + " - " + h}
		} else if a := ipOf(l.F["peer"]); a != "" {
			s.Links = []string{l.Host + " - " + a}
		}
		if strings.Contains(msg, "Software caused connection abort") {
			if !known || !atLeast(v, 2, 24) {
				d.find("connect-abort", s, l.At)
				return
			}
		}
		d.find("connect-refused", s, l.At)
	}, "connect_fail")
	retries := map[string][]*Line{}
	jb.each(func(_ *proc, l *Line) {
		m := l.F["msg"] + l.F["m2"]
		if strings.Contains(m, "refused") || strings.Contains(m, "o route to host") {
			retries[l.Host] = append(retries[l.Host], l)
		}
	}, "connect_retry")
	for _, h := range slices.Sorted(maps.Keys(retries)) {
		if len(retries[h]) >= 10 && !jb.ready() {
			d.find("connect-refused", d.of(retries[h][0]), retries[h][0].At, retries[h][len(retries[h])-1].At)
		}
	}
	jb.each(func(_ *proc, l *Line) {
		if strings.Contains(l.F["what"], "type") {
			d.find("stale-process", d.of(l), l.At)
			return
		}
		f := d.find("foreign-client", d.of(l), l.At)
		if t := magicText(l.Msg); t != "" {
			f.Cause = fmt.Sprintf("a foreign client; its first bytes are %q", t)
			if strings.HasPrefix(t, "GET ") || strings.HasPrefix(t, "POST") || strings.HasPrefix(t, "HEAD") {
				f.Cause += ": an HTTP client, such as a metrics scraper"
			} else if strings.HasPrefix(t, "SSH-") {
				f.Cause += ": an SSH client or scanner"
			}
		}
		if len(f.Evidence) == 1 && jb.ready() {
			f.Severity = Info
		} else if len(f.Evidence) > 1 || !jb.ready() {
			f.Severity = Warning
		}
	}, "bad_magic")
	jb.each(func(p *proc, l *Line) {
		if d.justEnded(l) {
			d.find("leftovers", d.of(l), l.At)
			return
		}
		if strings.Contains(l.F["msg"], "ddress already in use") {
			d.find("ports-exhausted", d.of(l), l.At)
		} else {
			d.find("socket-error", d.of(l), l.At)
		}
	}, "bind_fail")
	jb.each(func(_ *proc, l *Line) {
		peer := d.j.hostOf(l.F["peer"])
		if peer == "" {
			peer = ipOf(l.F["peer"])
		}
		s := Subject{}
		if peer != "" {
			s.Hosts = []string{peer}
		}
		d.consequence("connection closed by "+cmp.Or(peer, "a peer"), l)
		d.find("peer-closed", s, l.At)
	}, "peer_closed")
	if f := d.has("peer-closed"); f != nil && len(f.Subject.Hosts) == 1 {
		// Everybody names one peer that says nothing: it died.
		host := f.Subject.Hosts[0]
		who := map[string]bool{}
		said := false
		jb.each(func(_ *proc, l *Line) {
			if l.Host == host {
				said = true
			}
			who[fmt.Sprintf("%s:%d", l.Host, l.PID)] = true
		}, "peer_closed")
		other := false
		for _, p := range jb.procs {
			for _, l := range p.lines {
				other = other || l.Warn && l.Kind != "peer_closed" && l.Kind != "bt" && l.Kind != "proxy_fail" && l.Kind != "async_err"
			}
		}
		if !said && len(who) >= 2 && !other {
			g := d.find("peer-died", Subject{Hosts: []string{host}}, f.Evidence...)
			g.Confidence = 0.8
		}
	}
}

// justEnded says whether another process of the host ended a communicator shortly
// before the line.
func (d *diag) justEnded(l *Line) bool {
	if l.Time == 0 {
		return false
	}
	for _, p := range d.j.order {
		if p.host != l.Host || p.pid == l.PID {
			continue
		}
		for _, x := range p.lines {
			if x.Kind == "comm_end" && x.F["st"] == "COMPLETE" && x.Time > 0 && x.Time <= l.Time && l.Time-x.Time < 120 {
				return true
			}
		}
	}
	return false
}

// magicText prints the eight bytes of a wrong magic as text: 74656d2f20544547 is
// "GET /met", little end first.
func magicText(msg string) string {
	for _, m := range regexp.MustCompile(`(?:0x)?([0-9a-fA-F]{8,16})\b`).FindAllStringSubmatch(msg, -1) {
		v, err := strconv.ParseUint(m[1], 16, 64)
		if err != nil {
			continue
		}
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], v)
		text := strings.TrimRight(string(b[:]), "\x00\r\n")
		if len(text) < 4 {
			continue
		}
		ok := true
		for _, r := range text {
			ok = ok && r < unicode.MaxASCII && (unicode.IsPrint(r) || r == '\r' || r == '\n')
		}
		if ok {
			return text
		}
	}
	return ""
}

func (d *diag) memory() {
	jb := d.job
	jb.each(func(p *proc, l *Line) {
		near := ""
		for _, x := range p2lines(p) {
			if x.Kind == "cuda_fail" {
				near += x.F["msg"]
			}
		}
		path := l.F["path"] + l.F["path2"]
		switch {
		case unprintable(path):
			d.find("shm-name-garbage", d.of(l), l.At)
		case d.justEnded(l):
			d.find("leftovers", d.of(l), l.At)
		case strings.Contains(l.Msg, "No space left") || strings.Contains(l.Msg, "9637888") || !strings.Contains(near, "invalid argument"):
			f := d.find("shm-full", d.of(l), l.At)
			if !strings.Contains(l.Msg, "No space left") && !strings.Contains(l.Msg, "9637888") {
				f.Confidence = min(f.Confidence, 0.7)
			}
		default:
			d.find("shm-register", d.of(l), l.At)
		}
	}, "shm_fail")
	jb.each(func(_ *proc, l *Line) {
		b, _ := strconv.ParseInt(l.F["b"], 10, 64)
		full := false
		for _, g := range d.c.GPUs {
			full = full || (g.Host == l.Host || g.Host == "") && g.MemTotal > 0 && float64(g.MemUsed) > 0.9*float64(g.MemTotal)
		}
		f := d.find("gpu-memory-full", d.of(l), l.At)
		if full && !jb.some("coll") && b < 1<<30 {
			d.find("lazy-communicator", d.of(l), l.At)
		}
		_ = f
	}, "oom")
	jb.each(func(_ *proc, l *Line) {
		switch l.F["code"] {
		case "2":
			d.find("nvls-leak", d.of(l), l.At)
		default:
			d.find("nvls-fabric", d.of(l), l.At)
		}
	}, "nvls_bind")
	jb.each(func(p *proc, l *Line) {
		switch {
		case strings.Contains(l.Msg, "256 bytes instead of 4"):
			d.find("init-order", d.of(l), l.At)
		default:
			d.find("collective-mismatch", d.of(l), l.At)
		}
	}, "coll_mismatch")
}

func p2lines(p *proc) []*Line {
	if p == nil {
		return nil
	}
	return p.lines
}

func unprintable(s string) bool {
	i := strings.Index(s, "nccl-")
	if i < 0 {
		return false
	}
	name, _, _ := strings.Cut(s[i+5:], " ")
	for _, r := range name {
		if r == '?' || r == unicode.ReplacementChar || r > unicode.MaxASCII || !unicode.IsPrint(r) {
			return true
		}
	}
	return false
}

func (d *diag) cuda() {
	jb := d.job
	jb.each(func(_ *proc, l *Line) {
		code, msg, src := l.F["code"], strings.ToLower(l.F["msg"]), l.Source
		s := d.of(l)
		switch {
		case code == "802" || strings.Contains(msg, "system not yet initialized"):
			d.find("fabric-manager-down", s, l.At)
		case code == "800" && (strings.Contains(src, "p2p") || strings.Contains(l.At.Text, "p2p.cc") || jb.some("mnnvl")):
			d.find("imex-missing", s, l.At)
		case code == "217" && strings.Contains(l.At.Text, "shm"):
			d.find("cumem-no-p2p", s, l.At)
		case strings.Contains(l.At.Text, "nvls.cc") && strings.Contains(msg, "invalid argument"):
			d.find("nvls-invalid", s, l.At)
		case strings.Contains(msg, "peer access") || code == "217" || code == "704" && false || strings.Contains(msg, "peer mapping"):
			d.find("p2p-forced", s, l.At)
		case strings.Contains(msg, "out of memory"):
			d.find("gpu-memory-full", s, l.At)
		case jb.some("shm_fail") && strings.Contains(msg, "invalid argument"):
			d.consequence("CUDA refuses the shared memory", l)
		default:
			f := d.find("cuda-error", s, l.At)
			f.Cause = "CUDA says: " + l.F["msg"] + "; the first of a host counts, others follow"
		}
	}, "cuda_fail")
	jb.each(func(_ *proc, l *Line) {
		if strings.Contains(l.F["fn"], "GetHandleByPciBusId") && strings.Contains(l.F["why"], "Not Found") {
			d.find("gpu-hidden", d.of(l), l.At)
		} else {
			d.find("nvml-error", d.of(l), l.At)
		}
	}, "nvml_fail")
	// NVLink fabric: the odd one out.
	masks := map[string][]*Line{}
	jb.each(func(_ *proc, l *Line) { masks[l.F["hm"]] = append(masks[l.F["hm"]], l) }, "mnnvl")
	common := ""
	for _, m := range slices.Sorted(maps.Keys(masks)) {
		if common == "" || len(masks[m]) > len(masks[common]) {
			common = m
		}
	}
	jb.each(func(_ *proc, l *Line) {
		zero := strings.Trim(l.F["u"], "0.x-") == ""
		if l.F["hm"] != common || zero && l.F["st"] != "" && len(masks) >= 1 && jb.mnnvlWanted() {
			s := d.of(l)
			s.Devices = []string{l.Host + ":" + l.F["bus"]}
			d.find("nvlink-fabric-degraded", s, l.At)
		}
	}, "mnnvl")
}

// mnnvlWanted says whether some rank of the job is registered with an NVLink fabric.
func (jb *job) mnnvlWanted() bool {
	yes := false
	jb.each(func(_ *proc, l *Line) { yes = yes || strings.Trim(l.F["u"], "0.x-") != "" }, "mnnvl")
	return yes
}

var consumer = regexp.MustCompile(`(?i)geforce|rtx [2345]0|titan|quadro rtx|\bL40|\bL4\b|\bA10\b|\bT4\b|RTX A\d|RTX \d000|RTX PRO`)

// gpuPaths judges P2P between GPUs of a host.
func (d *diag) gpuPaths() {
	jb := d.job
	nv := func(host string, a, b int) (Evidence, bool) {
		for _, m := range d.c.Paths {
			if m.Host == host || m.Host == "" || len(d.c.Paths) == 1 {
				if c := m.Cell[[2]string{fmt.Sprintf("GPU%d", a), fmt.Sprintf("GPU%d", b)}]; strings.HasPrefix(c, "NV") {
					return m.At, true
				}
			}
		}
		return Evidence{}, false
	}
	isConsumer := func(host string) bool {
		for _, g := range d.c.GPUs {
			if (g.Host == host || g.Host == "") && consumer.MatchString(g.Name) {
				return true
			}
		}
		return false
	}
	dataCentre := func(host string) bool {
		for _, g := range d.c.GPUs {
			if (g.Host == host || g.Host == "") && g.Name != "" && !consumer.MatchString(g.Name) {
				return true
			}
		}
		return false
	}
	jb.each(func(_ *proc, l *Line) {
		i, j := num(l.F["i"]), num(l.F["j"])
		if ev, ok := nv(l.Host, i, j); ok {
			d.find("nvlink-unused", d.of(l), l.At, ev)
			return
		}
		if isConsumer(l.Host) {
			return
		}
		f := d.find("p2p-refused", d.of(l), l.At)
		if !dataCentre(l.Host) {
			f.Severity, f.Confidence = Info, 0.4
		}
	}, "p2p_off", "p2p_off_conn")
	for _, c := range jb.comms {
		for _, r := range c.ranks() {
			m := c.members[r]
			for _, l := range m.via {
				if l.Kind != "ch_shm" {
					continue
				}
				a, b := c.members[num(l.F["a"])], c.members[num(l.F["b"])]
				if a == nil || b == nil || a.proc.host != b.proc.host {
					continue
				}
				i, j := gpuIndex(l.F["ai"], a), gpuIndex(l.F["bi"], b)
				if ev, ok := nv(l.Host, i, j); ok {
					d.find("nvlink-unused", d.of(l), l.At, ev)
				}
			}
		}
	}
	// GPUs spin, paths are P2P, and ACS is on.
	for _, g := range d.c.GPUs {
		if g.Util < 99 || g.Power <= 0 || g.Cap <= 0 || g.Power > 0.4*g.Cap {
			continue
		}
		p2p := false
		jb.each(func(_ *proc, l *Line) { p2p = p2p || (l.Host == g.Host || g.Host == "") }, "ch_p2p")
		for _, p := range d.c.PCI {
			if p2p && p.Bridge && strings.Contains(p.ACS, "SrcValid+") && (p.Host == g.Host || g.Host == "" || p.Host == "") {
				d.find("p2p-writes-lost", Subject{Hosts: []string{g.Host}, Devices: []string{p.Addr}}, p.At, g.At)
			}
		}
		if jb.some("ib_wc") {
			bad := false
			jb.each(func(_ *proc, l *Line) { bad = bad || num(l.F["status"]) != 5 }, "ib_wc")
			if bad && !jb.some("watchdog", "exit") {
				d.find("error-not-polled", Subject{Hosts: []string{g.Host}}, g.At)
			}
		}
	}
}

// gpuIndex is the NVML index of a via line's bracket: a number from 2.18.3 on, a bus
// id before.
func gpuIndex(bracket string, m *member) int {
	if n, err := strconv.Atoi(bracket); err == nil && n < 64 {
		return n
	}
	return m.dev
}

func (d *diag) settings(multi bool, v [3]int, known bool) {
	jb := d.job
	tuned := map[string]*Line{}
	seen := map[string]bool{}
	jb.each(func(p *proc, l *Line) {
		name, val := l.F["var"], strings.TrimSpace(l.F["val"])
		s := d.of(l)
		if why := unknownVariable(name, v, known); why != "" && !seen[name+l.Host] {
			f := d.find("variable-unknown", s, l.At)
			if !strings.Contains(f.Cause, name) {
				f.Cause = strings.TrimPrefix(strings.TrimPrefix(f.Cause, byID["variable-unknown"].Cause)+"; "+why, "; ")
			}
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
			if val != "" && !strings.HasPrefix(val, "/dev/std") && !(strings.Contains(val, "%p") || strings.Contains(val, "%h") && jb.size() <= len(jb.hosts())) {
				d.find("debug-file-shared", s, l.At)
			}
		}
		off := map[string]string{"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_PXN_DISABLE": "1", "NCCL_NET_GDR_LEVEL": "0"}
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
	// Values that differ between ranks.
	values := map[string]map[string][]*Line{}
	for _, p := range jb.procs {
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
		if slices.Contains(mayDiffer, name) {
			continue
		}
		if len(values[name]) > 1 {
			common := ""
			for _, val := range slices.Sorted(maps.Keys(values[name])) {
				if common == "" || len(values[name][val]) > len(values[name][common]) {
					common = val
				}
			}
			for _, val := range slices.Sorted(maps.Keys(values[name])) {
				for _, l := range values[name][val] {
					if val != common {
						f := d.find("env-differs", d.of(l), l.At, values[name][common][0].At)
						note := fmt.Sprintf("%s is %q on some ranks and %q on others", name, val, common)
						if !strings.Contains(f.Cause, note) {
							f.Cause = strings.TrimPrefix(strings.TrimPrefix(f.Cause, byID["env-differs"].Cause)+"; "+note, "; ")
						}
					}
				}
			}
			continue
		}
		// Set on all processes of some hosts and on none of others.
		set, all := map[string]int{}, map[string]int{}
		var example *Line
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
		if len(set) > 0 && len(set) < len(all) && example != nil {
			whole := true
			for h, n := range set {
				whole = whole && n == all[h]
			}
			if whole {
				for _, h := range slices.Sorted(maps.Keys(all)) {
					if set[h] == 0 {
						f := d.find("env-differs", Subject{Hosts: []string{h}}, example.At)
						note := fmt.Sprintf("%s is not set there", name)
						if !strings.Contains(f.Cause, note) {
							f.Cause = strings.TrimPrefix(strings.TrimPrefix(f.Cause, byID["env-differs"].Cause)+"; "+note, "; ")
						}
					}
				}
			}
		}
	}
	// The plugin of the network.
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
	// Versions.
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
	jb.each(func(_ *proc, l *Line) {
		for x, list := range vers {
			if x != l.F["ver"] && len(vers) == 1 {
				f := d.find("library-twice", Subject{Hosts: []string{l.Host}}, l.At, list[0].At)
				f.Cause = fmt.Sprintf("the package is %s, the library that runs is %s: two packages install the same path, and the last wins", l.F["ver"], x)
			}
		}
	}, "package")
	if known && !atLeast(v, 2, 22) && len(jb.procs) > 1 && len(vers) == 1 {
		d.unknown = append(d.unknown, "NCCL "+dotted(v)+" prints its version on rank 0 only: whether the others run the same is unknown (grep libnccl /proc/PID/maps)")
	}
}

var mayDiffer = []string{"NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME", "NCCL_TOPO_FILE", "NCCL_HOSTID", "NCCL_DEBUG_FILE", "NCCL_COMM_ID", "NCCL_TOPO_DUMP_FILE", "NCCL_TOPO_DUMP_FILE_RANK", "NCCL_GRAPH_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE_RANK", "NCCL_RAS_ADDR", "NCCL_CONF_FILE", "NCCL_INSPECTOR_DUMP_DIR"}

var tuning = []string{"NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_BUFFSIZE", "NCCL_NTHREADS", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE", "NCCL_P2P_LEVEL", "NCCL_P2P_NET_CHUNKSIZE",
	"NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_READ", "NCCL_CROSS_NIC", "NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_SPLIT_DATA_ON_QPS", "NCCL_IB_TC", "NCCL_IB_SL", "NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT", "NCCL_IB_AR_THRESHOLD", "NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD", "NCCL_THREAD_THRESHOLDS",
	"NCCL_TREE_THRESHOLD", "NCCL_IB_PCI_RELAXED_ORDERING", "NCCL_CHECKS_DISABLE", "NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE", "NCCL_PXN_DISABLE", "NCCL_P2P_PXN_LEVEL", "NCCL_IGNORE_CPU_AFFINITY", "NCCL_NCHANNELS_PER_NET_PEER", "NCCL_WORK_FIFO_DEPTH"}

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

func (d *diag) initTimes() {
	jb := d.job
	for _, c := range jb.comms {
		var slow *member
		var sum [2]float64
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
				sum[0]++
			} else if f("topo")+f("graphs") > f("total")/2 {
				sum[1]++
			}
		}
		if slow == nil {
			continue
		}
		switch {
		case sum[0] > 0:
			s := Subject{}
			ev := []Evidence{slow.timings.At}
			// The late rank waited least.
			if late := d.latest(c); late != nil {
				s = Subject{Ranks: []int{late.rank}, Hosts: []string{late.proc.host}}
				ev = append(ev, late.boot.At)
			}
			d.find("init-slow-bootstrap", s, ev...)
		case sum[1] > 0:
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
			list := bySize[n]
			first, last := list[0].first(), list[len(list)-1].first()
			ended := 0
			for _, m := range list {
				if m.end != nil && m.end.F["what"] != "Abort" {
					ended++
				}
			}
			if first.Time > 0 && last.Time-first.Time > 600 {
				late := 0
				for _, m := range list {
					if m.first().Time-first.Time > 600 {
						late++
					}
				}
				minutes := (last.Time - first.Time - 600) / 60
				if late >= 3 && float64(late) > minutes {
					d.find("communicators-in-loop", d.of(last), first.At, last.At)
				}
			} else if first.Time == 0 && len(list) >= 24 && ended*2 >= len(list) {
				d.find("communicators-in-loop", d.of(last), first.At, last.At).Confidence = 0.6
			}
			if len(list) >= 48 && ended*4 < len(list) {
				d.find("communicators-leaked", d.of(last), first.At, last.At)
			}
		}
	}
}
