package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// Rules on what the kernel, the GPUs, the ports and the host say.

func named(host, dev string) string {
	if host == "" {
		return dev
	}
	return host + ":" + dev
}

// pciKind tells NICs and GPUs from other devices, for which it returns "".
func pciKind(p PCI) string {
	any := func(s string, parts ...string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(s, part) })
	}
	switch {
	case any(p.Class, "nfiniband", "thernet"):
		return "nic"
	case any(p.Class, "3D", "VGA", "Processing accel") && any(p.Name, "NVIDIA", "AMD", "Advanced Micro"):
		return "gpu"
	}
	return ""
}

// pciRules judges links of NICs and GPUs, access control on bridges, and counts of PCIe errors.
func (d *diag) pciRules() {
	for _, p := range d.c.PCI {
		s := Subject{Hosts: []string{p.Host}, Devices: []string{named(p.Host, p.Addr)}}
		d.pciLink(p, s)
		if p.Bridge && strings.Contains(p.ACS, "SrcValid+") {
			d.find("acs-enabled", s, p.At)
		}
		if p.AER["fatal"]+p.AER["nonfatal"] > 0 {
			at := p.At
			at.Text = fmt.Sprintf("%s: %d fatal and %d other uncorrectable errors since it was counted", p.Addr, p.AER["fatal"], p.AER["nonfatal"])
			f := d.find("pcie-errors", s, at)
			f.Severity, f.Confidence = Warning, 0.6 // a total: when they were is not known
		}
		if p.AER["correctable"] > 1000 {
			d.find("pcie-noise", s, p.At)
		}
	}
	if f := d.index["acs-enabled"]; f != nil {
		// A root port without a switch below has no peers; virtual machines need it.
		if !slices.ContainsFunc(d.c.PCI, func(p PCI) bool { return pciKind(p) == "gpu" || fast(p) }) {
			f.Severity, f.Confidence = Info, 0.4
		}
	}
}

// below says whether a link is known to run at less than it could; 0 is unknown.
func below[T int | float64](is, most T) bool { return is > 0 && is < most }

// pciLink compares what a NIC's or GPU's link runs at with what it could.
func (d *diag) pciLink(p PCI, s Subject) {
	kind := pciKind(p)
	slow := kind == "nic" && below(p.Speed, p.SpeedMax)
	if kind == "" || !slow && !below(p.Width, p.WidthMax) {
		return
	}
	f := d.find("pcie-degraded", s, p.At)
	f.Cause = fmt.Sprintf("%s runs at %.4g GT/s x%d of %.4g GT/s x%d: seating, riser, BIOS, or a slot that has no more",
		cmp.Or(p.Name, p.Addr), p.Speed, p.Width, p.SpeedMax, p.WidthMax)
	if fast(p) {
		f.Severity, f.Confidence = Critical, byID["pcie-degraded"].Confidence
		return
	}
	f.Severity = min(f.Severity, Warning)
	if len(f.Evidence) == 1 {
		f.Severity, f.Confidence = Info, 0.4
	}
}

// fast says whether a device is one that carries the job's data.
func fast(p PCI) bool {
	return strings.Contains(p.Class, "nfiniband") || strings.Contains(p.Class, "3D") || strings.Contains(p.Name, "NVIDIA") ||
		strings.Contains(p.Name, "ConnectX") || strings.Contains(p.Name, "BlueField") || strings.Contains(p.Name, "Elastic Fabric")
}

// hostRules judges the settings of hosts, each alone and then against one another.
func (d *diag) hostRules() {
	byHost := map[string][]Address{}
	for _, a := range d.c.Addresses {
		byHost[a.Host] = append(byHost[a.Host], a)
	}
	for _, h := range slices.SortedFunc(maps.Keys(byHost), natural) {
		d.interfaces(h, byHost[h])
	}
	for _, h := range d.c.Host {
		d.memoryLimits(h)
		d.rdmaSetup(h)
		d.portRange(h)
	}
	d.processes()
	d.mtuAcross()
}

// says is the evidence for a setting of the host.
func (h HostState) says(format string, args ...any) Evidence {
	e := h.At
	e.Text = fmt.Sprintf(format, args...)
	return e
}

func (d *diag) memoryLimits(h HostState) {
	s := Subject{Hosts: []string{h.Host}}
	if h.RDMA > 0 && h.MemLock >= 0 && h.MemLock < 1<<62 {
		f := d.find("memlock", s, h.says("limit of locked memory: %d bytes", h.MemLock))
		f.Cause = "the limit of locked memory is not unlimited on a host with RDMA"
		f.Severity, f.Confidence = Warning, 0.7
	}
	if h.ShmSize > 0 && h.ShmFree < 64<<20 && h.NVIDIA {
		d.find("shm-small", s, h.says("/dev/shm: %d MiB free of %d", h.ShmFree>>20, h.ShmSize>>20))
	}
}

// rdmaSetup looks for what the kernel has to offer to programs so that they can use the RDMA devices it knows.
func (d *diag) rdmaSetup(h HostState) {
	s := Subject{Hosts: []string{h.Host}}
	if h.RDMA > 0 && h.Verbs >= 0 && h.Verbs < h.RDMA {
		d.find("verbs-count", s, h.says("%d files uverbs* for %d RDMA devices", h.Verbs, h.RDMA))
	}
	if h.RDMA > 0 && h.NVIDIA && !h.PeerMem {
		d.find("peermem-missing", s, h.says("nvidia_peermem is not in /proc/modules"))
	}
}

// portRange judges the ports that connections may begin from: a large all-to-all over TCP can use them up.
func (d *diag) portRange(h HostState) {
	if h.PortHigh <= 0 {
		return
	}
	s := Subject{Hosts: []string{h.Host}}
	ports := h.PortHigh - h.PortLow
	d.portNeed(h, ports, s, h.says("ip_local_port_range %d to %d", h.PortLow, h.PortHigh))
	if ports < 10000 {
		d.find("ports-narrow", s, h.says("ip_local_port_range %d to %d: %d ports", h.PortLow, h.PortHigh, ports))
	}
}

// mtuAcross compares interfaces of one name between hosts: what leaves with the larger MTU is dropped on the way.
func (d *diag) mtuAcross() {
	byName := map[string][]Address{}
	for _, a := range d.c.Addresses {
		if a.State == "UP" && a.MTU > 0 && a.Host != "" && a.Name != "lo" && !virtualIf.MatchString(a.Name) {
			byName[a.Name] = append(byName[a.Name], a)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		list := byName[name]
		if !slices.ContainsFunc(list, func(a Address) bool { return a.MTU != list[0].MTU }) {
			continue
		}
		f := d.find("mtu-differs", Subject{})
		var each []string
		for _, a := range list {
			f.Subject.Hosts = append(f.Subject.Hosts, a.Host)
			f.addEvidence(a.At)
			each = append(each, fmt.Sprintf("%d on %s", a.MTU, a.Host))
		}
		f.Title = "hosts have different MTUs on one network"
		f.Cause = "the MTU of " + name + " is " + few(each) + ": small messages pass and large ones are lost"
	}
}

// virtual says whether the interface is the loopback, a bridge, a bond or another one without a port of its own.
func (a Address) virtual() bool {
	return a.Name == "lo" || virtualIf.MatchString(a.Name) || strings.HasPrefix(a.Name, "br") || strings.HasPrefix(a.Name, "bond")
}

// sharedSubnet is the IPv4 network of an interface's address, "" if no other interface can be in it.
func sharedSubnet(prefix string) string {
	pre, err := netip.ParsePrefix(prefix)
	if err != nil || pre.Addr().IsLinkLocalUnicast() || !pre.Addr().Is4() || pre.Bits() >= 31 {
		return ""
	}
	return pre.Masked().String()
}

// interfaces compares the addresses, states and MTUs of one host's interfaces.
func (d *diag) interfaces(h string, list []Address) {
	stem := regexp.MustCompile(`\d.*$`)
	subnets := map[string][]Address{}
	kinds := map[string][]Address{}
	for _, a := range list {
		if a.virtual() {
			continue
		}
		kinds[stem.ReplaceAllString(a.Name, "")] = append(kinds[stem.ReplaceAllString(a.Name, "")], a)
		for _, p := range a.Prefixes {
			if k := sharedSubnet(p); k != "" {
				subnets[k] = append(subnets[k], a)
			}
		}
	}
	d.addressTwice(h, list)
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
		if len(kinds[k]) >= 4 {
			d.sameKind(h, kinds[k])
		}
	}
}

// addressTwice finds one address on several interfaces of a host.
func (d *diag) addressTwice(h string, list []Address) {
	by := map[netip.Prefix][]Address{}
	for _, a := range list {
		for _, text := range a.Prefixes {
			if p, err := netip.ParsePrefix(text); err == nil && p.Addr().IsGlobalUnicast() && !virtualIf.MatchString(a.Name) {
				by[p] = append(by[p], a)
			}
		}
	}
	for _, p := range slices.SortedFunc(maps.Keys(by), func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) }) {
		if len(by[p]) < 2 {
			continue
		}
		f := d.find("address-twice", Subject{Hosts: []string{h}})
		f.addCause(p.String(), fmt.Sprintf("%s is on %d interfaces: answers leave by one and come back by another, connections hang or are reset",
			p.Addr(), len(by[p])))
		for _, a := range by[p] {
			f.Subject.Devices = append(f.Subject.Devices, named(h, a.Name))
			f.addEvidence(a.At)
		}
		if p.IsSingleIP() {
			f.Severity, f.Confidence = Info, 0.5
		}
	}
}

// sameKind finds interfaces that are down or have another MTU while most of their kind are up or have one.
func (d *diag) sameKind(h string, list []Address) {
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

// channelsPerPeer is the most point-to-point channels that a rank has to each peer, and the line that says so.
func (c *comm) channelsPerPeer() (most int, said *Line) {
	for _, m := range c.members {
		if m.channels == nil {
			continue
		}
		if n := num(m.channels.F["pp"]); n > most {
			most, said = n, m.channels
		}
	}
	return most, said
}

// elsewhere says whether a job runs on other hosts. The state of a single host may have another name than its logs.
func (d *diag) elsewhere(jb *job, host string) bool {
	return host != "" && !slices.Contains(jb.hosts(), host) && len(d.c.Host) > 1
}

// portNeed holds the connections of a job against the ports of a host.
func (d *diag) portNeed(h HostState, ports int, s Subject, ev Evidence) {
	for _, jb := range d.j.jobs {
		hosts := len(jb.hosts())
		if hosts < 2 || jb.world == nil || d.elsewhere(jb, h.Host) {
			continue
		}
		gpus := max(jb.world.n/hosts, 1)
		q, line := jb.world.channelsPerPeer()
		if q == 0 {
			continue
		}
		need := (hosts - 1) * gpus * q * 2 * gpus
		if l := jb.procs[0].env["NCCL_PXN_DISABLE"]; l == nil || l.F["val"] != "1" {
			need /= gpus
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
		d.processesOn(h, byHost[h])
	}
}

// processesOn judges what a host's processes share: a core that all are bound to, or libraries that should be the same.
func (d *diag) processesOn(h string, list []Process) {
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
		d.processLimits(h, p)
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

func (d *diag) processLimits(h string, p Process) {
	s := Subject{Hosts: []string{h}, Ranks: []int{p.Rank}}
	if p.FilesUp > 0 && float64(p.Files) > 0.9*float64(p.FilesUp) {
		d.find("open-files", s, p.At)
	}
	if p.MemLock >= 0 && p.MemLock < 1<<30 &&
		slices.ContainsFunc(d.c.Host, func(x HostState) bool { return x.Host == h && x.RDMA > 0 }) {
		d.find("memlock", s, p.At)
	}
}
