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
	// IP over InfiniBand: the interface is of an RDMA device.
	for _, q := range d.job.procs {
		for _, l := range q.lines {
			if l.Host == host && (l.Kind == "bootstrap_if" && overIB.MatchString(l.F["if"]) || l.Kind == "sock_using" &&
				overIB.MatchString(l.F["list"])) {
				return l.At, true
			}
		}
	}
	return Evidence{}, false
}

// overIB are names of interfaces over InfiniBand: ib0, ibp12s0, ibs65.
var overIB = regexp.MustCompile(`(?:^|\])ib(?:\d|[ps]\d|bond)`)

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
		d.networksDiffer(names)
	}
	socket := names["Socket"]
	jb.each(func(_ *proc, l *Line) {
		if l.F["net"] == "Socket" {
			socket = append(socket, l)
		}
	}, "ch_net")
	if len(socket) > 0 && multi {
		d.overTCP(socket)
	}
}

// networksDiffer finds processes that use another network than most. names are lines by the network they name.
func (d *diag) networksDiffer(names map[string][]*Line) {
	kinds := slices.Sorted(maps.Keys(names))
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
	if len(sets) < 2 {
		return
	}
	common := commonest(names)
	for _, k := range kinds {
		if k == common {
			continue
		}
		for _, l := range names[k] {
			f := d.find("networks-differ", d.of(l), l.At)
			f.Cause = "hosts have different software: " + strings.Join(kinds, ", ")
		}
	}
}

// overTCP says why ranks use TCP, and weighs it by whether their hosts have RDMA.
func (d *diag) overTCP(socket []*Line) {
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
		d.whyTCP(l, rdma)
	}
	d.weighTCP(socket)
}

// whyTCP finds what kept a host from RDMA. That it has no device is a reason only where it should have one.
func (d *diag) whyTCP(l *Line, rdma bool) {
	reasons := map[string]string{"ib_nolib": "tcp-no-library", "ofi_none": "tcp-no-provider", "ib_none": "tcp-no-device"}
	d.job.each(func(_ *proc, x *Line) {
		id := reasons[x.Kind]
		if x.Host != l.Host || id == "tcp-no-device" && !rdma {
			return
		}
		f := d.find(id, d.of(x), x.At, l.At)
		if !rdma && id == "tcp-no-library" {
			f.Severity, f.Confidence = Warning, 0.7
		}
	}, "ib_nolib", "ofi_none", "ib_none")
}

// weighTCP gives TCP its full weight if any host that uses it has RDMA, and then names the variable that turns RDMA off.
func (d *diag) weighTCP(socket []*Line) {
	if f := d.has("tcp-fallback"); f != nil && f.Severity == Info {
		for _, l := range socket {
			if _, rdma := d.rdmaOn(l.Host); rdma {
				e := byID["tcp-fallback"]
				f.Severity, f.Confidence, f.Title, f.Cause = e.Severity, e.Confidence, e.Title, e.Cause
			}
		}
	}
	for _, p := range d.job.procs {
		if l := p.env["NCCL_IB_DISABLE"]; l != nil && l.F["val"] == "1" {
			if f := d.has("tcp-fallback"); f != nil && f.Severity > Info {
				f.Cause = "NCCL_IB_DISABLE=1 turns RDMA off"
				f.addEvidence(l.At)
			}
		}
	}
}

var virtualIf = regexp.MustCompile(`^(docker|veth|virbr|cni|br-|flannel|cali|tun|tap|wg|tailscale|zt|cloudflare|CloudflareWARP|vxlan|kube|lxc|podman|utun|vmnet|weave|cilium|nodelocaldns|dummy)`)

// bootstrap judges the interfaces that ranks meet over. multi says that the job has several hosts: on one, any does.
func (d *diag) bootstrap(multi bool, v [3]int, known bool) {
	nets := map[string][]*Line{} // by interface and network
	d.job.each(func(p *proc, l *Line) {
		a, _ := netip.ParseAddr(ipOf(l.F["addr"]))
		if a.Is4() {
			pre, _ := a.Prefix(16)
			net := l.F["if"] + " " + pre.String()
			nets[net] = append(nets[net], l)
		}
		if multi {
			d.unreachable(p, l, a, known && atLeast(v, 2, 29, 2) && !atLeast(v, 2, 30, 0))
		}
	}, "bootstrap_if")
	if multi && len(nets) > 1 {
		d.subnetsDiffer(nets)
	}
}

// unreachable judges an interface that other hosts cannot reach. misled says that this version of NCCL chooses the
// loopback by itself where NCCL_COMM_ID is set: the catalogue's cause is then the right one.
func (d *diag) unreachable(p *proc, l *Line, a netip.Addr, misled bool) {
	name := l.F["if"]
	switch {
	case name == "lo" || strings.HasPrefix(l.F["addr"], "127."):
		f := d.find("bootstrap-loopback", d.of(l), l.At)
		if !(misled && p != nil && p.env["NCCL_COMM_ID"] != nil) {
			f.Confidence = 0.8
			f.Cause = "NCCL_SOCKET_IFNAME=lo, or the host has no other usable interface"
			f.Fix = "NCCL_SOCKET_IFNAME=<management interface>"
		}
	case a.Is6() && a.IsLinkLocalUnicast():
		d.find("bootstrap-link-local", d.of(l), l.At)
	case virtualIf.MatchString(name) || a.Is4() && (a.IsLinkLocalUnicast() || strings.HasPrefix(ipOf(l.F["addr"]), "172.17.")):
		s := d.of(l)
		s.Devices = []string{l.Host + ":" + name}
		f := d.find("bootstrap-virtual-interface", s, l.At)
		if d.job.ready() {
			f.Severity = Info
			if d.job.uses("Socket") {
				f.Severity = Critical
			}
		}
	}
}

// subnetsDiffer finds hosts that meet over another network than most.
func (d *diag) subnetsDiffer(nets map[string][]*Line) {
	common := commonest(nets)
	// Names may differ by slot; networks that differ by interface name are the sign.
	for _, k := range slices.Sorted(maps.Keys(nets)) {
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
			if d.job.ready() {
				f.Severity = Info // it worked
				f.Confidence = 0.5
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
	d.connections(v, known)
	jb := d.job
	jb.each(func(_ *proc, l *Line) { d.foreignClient(l) }, "bad_magic")
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
		f := d.find("socket-error", d.of(l), l.At)
		f.Severity = Critical
		msg := l.F["msg"] + l.F["m2"]
		if f.Cause = "the system says: " + msg; strings.Contains(msg, "ddress family not supported") {
			f.Cause += ". The peer's address is empty or IPv6, and IPv6 is switched off here: NCCL_SOCKET_FAMILY=AF_INET, NCCL_SOCKET_IFNAME"
		}
	}, "sock_fail")
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
		d.closedByOne(f)
	}
}

// connections judges connections that were refused or came to nothing.
func (d *diag) connections(v [3]int, known bool) {
	jb := d.job
	jb.each(func(_ *proc, l *Line) {
		msg := l.F["msg"] + l.F["m2"] + l.F["m3"] + l.F["m4"] + l.F["m6"]
		s := d.of(l)
		peer := l.F["peer"] + l.F["peer3"]
		if h := d.j.hostOf(peer); h != "" {
			s.Links = []string{linkTo(l.Host, h)}
		} else if a := ipOf(peer); a != "" {
			s.Links = []string{linkTo(l.Host, a)}
		}
		if strings.Contains(msg, "Software caused connection abort") {
			if !known || !atLeast(v, 2, 24) {
				notReachable(d.find("connect-abort", s, l.At), peer)
				return
			}
		}
		f := d.find("connect-refused", s, l.At)
		notReachable(f, peer)
	}, "connect_fail")
	d.connectsInVain()
}

// connectsInVain finds hosts that tried again and again to connect while the job never came up. A few tries are normal:
// peers start at different times.
func (d *diag) connectsInVain() {
	jb := d.job
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
}

// protocols explains the first four bytes of clients that are often pointed at the wrong port.
var protocols = map[string]string{
	"GET ": ": an HTTP client, such as a metrics scraper",
	"POST": ": an HTTP client, such as a metrics scraper",
	"HEAD": ": an HTTP client, such as a metrics scraper",
	"SSH-": ": an SSH client or scanner",
}

// foreignClient judges a connection that began with bytes that are not NCCL's.
func (d *diag) foreignClient(l *Line) {
	if strings.Contains(l.F["what"], "type") {
		d.find("stale-process", d.of(l), l.At)
		return
	}
	f := d.find("foreign-client", d.of(l), l.At)
	if t := magicText(l.Msg); t != "" {
		f.Cause = fmt.Sprintf("a foreign client; its first bytes are %q%s", t, protocols[t[:4]])
	}
	if len(f.Evidence) == 1 && d.job.ready() {
		f.Severity = Info
	} else if len(f.Evidence) > 1 || !d.job.ready() {
		f.Severity = Warning
	}
}

// otherTrouble says whether the job has a warning that a closed connection does not explain by itself.
func (jb *job) otherTrouble() bool {
	follows := []string{"peer_closed", "bt", "proxy_fail", "async_err"}
	return slices.ContainsFunc(jb.procs, func(p *proc) bool {
		return slices.ContainsFunc(p.lines, func(l *Line) bool { return l.Warn && !slices.Contains(follows, l.Kind) })
	})
}

// closedByOne: everybody names one peer that says nothing, so it died.
func (d *diag) closedByOne(f *Finding) {
	jb := d.job
	host := f.Subject.Hosts[0]
	who := map[string]bool{}
	said := false
	jb.each(func(_ *proc, l *Line) {
		if l.Host == host {
			said = true
		}
		who[fmt.Sprintf("%s:%d", l.Host, l.PID)] = true
	}, "peer_closed")
	if !said && len(who) >= 2 && !jb.otherTrouble() {
		g := d.find("peer-died", Subject{Hosts: []string{host}}, f.Evidence...)
		g.Confidence = 0.8
	}
}

// noInterface judges hosts on which NCCL finds no interface. That a filter is set is seen in the log; without one, there is
// none but loopback and Docker's, or the filter was not printed.
func (d *diag) noInterface() {
	d.job.each(func(p *proc, l *Line) {
		f := d.find("no-interface", d.of(l), l.At)
		if p != nil && p.env["NCCL_SOCKET_IFNAME"] != nil {
			f.addEvidence(p.env["NCCL_SOCKET_IFNAME"].At)
			f.addCause("filter", byID["no-interface"].Cause)
			f.Confidence = byID["no-interface"].Confidence
		} else if f.causes == nil {
			f.Confidence, f.Cause = 0.75,
				"NCCL_SOCKET_IFNAME matches nothing on this host, or no interface but loopback and Docker's is up and has an address"
		}
	}, "bootstrap_none")
}

// otherSubnet judges hosts that have no interface in the subnet of NCCL_COMM_ID. Only with that variable NCCL compares
// subnets; NCCL_SOCKET_IFNAME is then not asked.
func (d *diag) otherSubnet() {
	fatal := d.job.some("nccl_failed") || len(d.job.comms) == 0
	d.job.each(func(_ *proc, l *Line) { fatal = fatal || l.F["addr"] == "" }, "subnet_none")
	d.job.each(func(p *proc, l *Line) {
		f := d.find("comm-id-subnet", d.of(l), l.At)
		if !fatal { // it goes on with another interface
			f.Severity, f.Confidence = Warning, 0.6
		}
		if p != nil && p.env["NCCL_COMM_ID"] != nil {
			f.addEvidence(p.env["NCCL_COMM_ID"].At)
		}
		if a, err := netip.ParseAddr(ipOf(l.F["addr"])); err == nil {
			d.whySubnet(f, l.Host, a)
		}
	}, "subnet_none")
}

// whySubnet looks at the address in whose subnet a host has no interface.
func (d *diag) whySubnet(f *Finding, host string, a netip.Addr) {
	if a.IsLinkLocalUnicast() {
		f.addCause("link-local",
			fmt.Sprintf("NCCL_COMM_ID or the root's address is %s, a link-local address: no other host can tell which of its interfaces leads there",
				a))
		f.Fix = "give rank 0 a routable address: NCCL_SOCKET_FAMILY=AF_INET there, or the right interface"
		return
	}
	for _, x := range d.c.Addresses {
		for _, text := range x.Prefixes {
			if pre, err := netip.ParsePrefix(text); x.Host == host && err == nil && pre.Contains(a) {
				f.addCause("there is one",
					fmt.Sprintf("%s of this host is in the subnet of %s now: it was not up or had no address then, or the process runs in another network namespace",
						x.Name, a))
				f.Confidence = min(f.Confidence, 0.6)
				f.addEvidence(x.At)
			}
		}
	}
}

// notReachable adds to a failed connection that the address is one that no other host can have.
func notReachable(f *Finding, peer string) {
	a := ipOf(peer)
	if (strings.HasPrefix(a, "127.") || strings.HasPrefix(a, "169.254.") || a == "::1") && !f.causes[a] {
		was := f.Cause
		f.addCause(a, "")
		f.Cause = fmt.Sprintf("the peer announced %s, which only its own host reaches: it chose the wrong interface; NCCL_SOCKET_IFNAME. Else: %s",
			a, was)
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
		if slices.ContainsFunc(p.lines, func(x *Line) bool {
			return x.Kind == "comm_end" && x.F["st"] == "COMPLETE" && x.Time > 0 && x.Time <= l.Time && l.Time-x.Time < 120
		}) {
			return true
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
