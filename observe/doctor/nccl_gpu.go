package doctor

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

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
		case unprintable(path), strings.HasPrefix(path, "/dev/shm/nccl- "):
			d.find("shm-name-garbage", d.of(l), l.At)
		case strings.Contains(l.Msg, "attaching") && strings.Contains(l.Msg, "No such file"):
			f := d.find("host-identity-split", d.of(l), l.At)
			f.Confidence = 0.6
			f.Cause = "a peer's segment is not in this /dev/shm: containers of one host do not share it, or it was removed"
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
		case strings.HasPrefix(l.Msg, "Mismatched collective detected") && jb.some("ib_wc"):
			// NCCL up to 2.7 says so whenever ranks differ, also because one of them failed.
			d.consequence("collectives do not match after the error", l)
		default:
			f := d.find("collective-mismatch", d.of(l), l.At)
			if r, err := strconv.Atoi(l.F["rank"]); err == nil {
				f.Subject.Ranks = append(f.Subject.Ranks, r)
			}
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
		case strings.Contains(msg, "peer access") || code == "217" || strings.Contains(msg, "peer mapping"):
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
	common := commonest(masks)
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
	jb.each(func(_ *proc, l *Line) {
		i, j := num(l.F["i"]), num(l.F["j"])
		if ev, ok := d.nvlinked(l.Host, i, j); ok {
			d.find("nvlink-unused", d.of(l), l.At, ev)
			return
		}
		consumers, others := d.gpuKinds(l.Host)
		if consumers {
			return
		}
		f := d.find("p2p-refused", d.of(l), l.At)
		if !others {
			f.Severity, f.Confidence = Info, 0.4
		}
	}, "p2p_off", "p2p_off_conn")
	d.sharedMemory()
	d.spinningAndACS()
}

// sharedMemory finds ranks that talk through their host's memory although NVLink joins their GPUs.
func (d *diag) sharedMemory() {
	for _, c := range d.job.comms {
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
				if ev, ok := d.nvlinked(l.Host, i, j); ok {
					d.find("nvlink-unused", d.of(l), l.At, ev)
				}
			}
		}
	}
}

// nvlinked says whether two GPUs of a host are joined by NVLink, as nvidia-smi topo shows them.
func (d *diag) nvlinked(host string, a, b int) (Evidence, bool) {
	for _, m := range d.c.Paths {
		if m.Host == host || m.Host == "" || len(d.c.Paths) == 1 {
			if c := m.Cell[[2]string{fmt.Sprintf("GPU%d", a), fmt.Sprintf("GPU%d", b)}]; strings.HasPrefix(c, "NV") {
				return m.At, true
			}
		}
	}
	return Evidence{}, false
}

// gpuKinds says whether a host has consumer GPUs, and whether it has others.
func (d *diag) gpuKinds(host string) (consumers, others bool) {
	for _, g := range d.c.GPUs {
		if g.Host == host || g.Host == "" {
			known := consumer.MatchString(g.Name)
			consumers = consumers || known
			others = others || g.Name != "" && !known
		}
	}
	return consumers, others
}

// writesLost finds bridges that send direct writes between GPUs through the root complex, where some machines lose them.
func (d *diag) writesLost(g GPU) {
	p2p := false
	d.job.each(func(_ *proc, l *Line) { p2p = p2p || (l.Host == g.Host || g.Host == "") }, "ch_p2p")
	if !p2p {
		return
	}
	for _, p := range d.c.PCI {
		if p.Bridge && strings.Contains(p.ACS, "SrcValid+") && (p.Host == g.Host || g.Host == "" || p.Host == "") {
			d.find("p2p-writes-lost", Subject{Hosts: []string{g.Host}, Devices: []string{p.Addr}}, p.At, g.At)
		}
	}
}

// spinningAndACS: GPUs spin, paths are P2P, and ACS is on.
func (d *diag) spinningAndACS() {
	jb := d.job
	for _, g := range d.c.GPUs {
		if g.Util < 99 || g.Power <= 0 || g.Cap <= 0 || g.Power > 0.4*g.Cap {
			continue
		}
		d.writesLost(g)
		bad := false // a completion failed, other than because its queue was being emptied
		jb.each(func(_ *proc, l *Line) { bad = bad || num(l.F["status"]) != 5 }, "ib_wc")
		if bad && !jb.some("watchdog", "exit") {
			d.find("error-not-polled", Subject{Hosts: []string{g.Host}}, g.At)
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
