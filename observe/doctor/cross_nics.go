package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// netPaths judges GPUDirect, NICs that are not used, and rails that are crossed.
func (d *diag) netPaths() {
	if !d.job.multiHost() {
		return
	}
	names, listed := d.job.nics()
	uses := d.job.nicsUsed()
	off := d.gdrOff(uses)
	for _, c := range d.job.sure() {
		d.gdrOneSide(c, off)
	}
	d.crossedRails(names)
	d.job.each(func(_ *proc, l *Line) { d.find("cross-rail", d.of(l), l.At) }, "ib_rail")
	d.unusedNICs(names, listed, uses)
}

// nicNames are the InfiniBand devices of each host, by the number that NCCL gave them.
type nicNames map[string]map[int]string

// nics also says how many devices the longest list of a host has.
func (jb *job) nics() (names nicNames, listed map[string]int) {
	names, listed = nicNames{}, map[string]int{}
	jb.each(func(_ *proc, l *Line) {
		if names[l.Host] == nil {
			names[l.Host] = map[int]string{}
		}
		list := ibDevices(l.F["list"])
		for _, x := range list {
			names[l.Host][x.index] = x.name
		}
		listed[l.Host] = max(listed[l.Host], len(list))
	}, "ib_using")
	return names, listed
}

// nicUse is what the connections of one host use: channels with and without GPUDirect RDMA, and numbers of NICs.
type nicUse struct {
	gdr, plain []*Line
	nics       map[int]bool
}

// nicsUsed says which NICs each host's channels go over, and whether with GPUDirect RDMA.
func (jb *job) nicsUsed() map[string]*nicUse {
	hosts := map[string]*nicUse{}
	for _, c := range jb.comms {
		for _, r := range c.ranks() {
			for _, l := range c.members[r].via {
				if l.Kind != "ch_net" || l.F["net"] == "Socket" {
					continue
				}
				u := hosts[l.Host]
				if u == nil {
					u = &nicUse{nics: map[int]bool{}}
					hosts[l.Host] = u
				}
				u.nics[num(l.F["dev"])] = true
				if strings.Contains(l.F["sfx"], "GDRDMA") {
					u.gdr = append(u.gdr, l)
				} else {
					u.plain = append(u.plain, l)
				}
			}
		}
	}
	return hosts
}

// gdrOff finds hosts that use GPUDirect RDMA for no connection.
func (d *diag) gdrOff(hosts map[string]*nicUse) (off map[string]bool) {
	order := slices.SortedFunc(maps.Keys(hosts), natural)
	some := slices.ContainsFunc(order, func(h string) bool { return len(hosts[h].gdr) > 0 })
	off = map[string]bool{}
	for _, h := range order {
		u := hosts[h]
		if len(u.gdr) > 0 || len(u.plain) == 0 {
			continue
		}
		off[h] = true
		if near, ev := d.nearNIC(h); some || near {
			f := d.find("gdr-off", d.of(u.plain[0]), append([]Evidence{u.plain[0].At}, ev...)...)
			f.Subject.Hosts = append(f.Subject.Hosts, h)
			continue
		}
		f := d.find("gdr-off", Subject{Hosts: []string{h}}, u.plain[0].At)
		if len(f.Evidence) == 1 {
			f.Severity, f.Confidence = Info, 0.5
			f.Cause = "no rank of the job uses GPUDirect RDMA; whether it could is unknown (nvidia-smi topo -m)"
		}
	}
	if some {
		if f := d.has("gdr-off"); f != nil {
			f.Severity, f.Confidence, f.Cause = Critical, 0.9, byID["gdr-off"].Cause
		}
	}
	return off
}

// gdrOneSide finds connections that have GPUDirect RDMA at one end.
func (d *diag) gdrOneSide(c *comm, off map[string]bool) {
	send, recv := wires(c)
	for _, w := range sortWires(send) {
		s, r := send[w], recv[w]
		if r == nil || s.F["net"] == "Socket" || r.F["net"] == "Socket" {
			continue
		}
		sg, rg := strings.Contains(s.F["sfx"], "GDRDMA"), strings.Contains(r.F["sfx"], "GDRDMA")
		if sg != rg {
			lack := s
			if sg {
				lack = r
			}
			if !off[lack.Host] {
				f := d.find("gdr-one-side", Subject{Hosts: []string{lack.Host}, Links: []string{fmt.Sprintf("rank %d - rank %d", w.a, w.b)}},
					s.At, r.At)
				f.Subject.Ranks = append(f.Subject.Ranks, d.j.rankOf(lack))
			} else if f := d.has("gdr-off"); f != nil && len(f.Consequences) < 4 {
				f.Consequences = append(f.Consequences, fmt.Sprintf("channel %s between ranks %d and %d has GPUDirect on one side only", w.c, w.a, w.b))
			}
		}
	}
}

// crossing names the NICs of a connection whose ends have different numbers and names, "" if they are of one rail.
func (names nicNames) crossing(send, recv *Line) string {
	i, j := num(send.F["dev"]), num(recv.F["dev"])
	a, b := names[send.Host][i], names[recv.Host][j]
	if i == j || a != "" && a == b {
		return ""
	}
	return fmt.Sprintf("%s:%s - %s:%s", send.Host, cmp.Or(a, "nic"+send.F["dev"]), recv.Host, cmp.Or(b, "nic"+recv.F["dev"]))
}

// crossedRails finds connections from one rail to another.
func (d *diag) crossedRails(names nicNames) {
	crossing, all := 0, 0
	var ev []Evidence
	var links []string
	for _, c := range d.job.sure() {
		send, recv := wires(c)
		for _, w := range sortWires(send) {
			s, r := send[w], recv[w]
			if r == nil || s.F["net"] == "Socket" || r.F["net"] == "Socket" {
				continue
			}
			all++
			if link := names.crossing(s, r); link != "" {
				crossing++
				ev = append(ev, s.At, r.At)
				links = append(links, link)
			}
		}
	}
	if float64(crossing) <= 0.1*float64(all) {
		return
	}
	f := d.find("cross-rail", Subject{Links: links}, ev...)
	f.Cause = fmt.Sprintf("%d of %d connections go from one rail to another: order of ranks or NICs differs between hosts", crossing, all)
	if 2*crossing <= all && !d.job.some("modify_qp", "ib_wc") { // rings of NCCL may leave a host by another NIC than they entered it
		f.Severity, f.Confidence = Info, 0.5
		f.Cause += "; on fabrics whose rails are connected this is normal"
	}
}

// usualNICs is the number of NICs that the most hosts use, the higher one of two, and how many hosts use each number.
func usualNICs(hosts map[string]*nicUse) (usual int, most map[int]int) {
	most = map[int]int{}
	for _, u := range hosts {
		most[len(u.nics)]++
	}
	for _, n := range slices.Sorted(maps.Keys(most)) {
		if most[n] > most[usual] || most[n] == most[usual] && n > usual {
			usual = n
		}
	}
	return usual, most
}

// unused names a host's NICs that no connection uses.
func (u *nicUse) unused(host string, names map[int]string) (list []string) {
	for i, name := range names {
		if !u.nics[i] {
			list = append(list, host+":"+name)
		}
	}
	slices.SortFunc(list, natural)
	return list
}

// nicsSeen is a line that uses a NIC of the host, and one that lists its NICs if there is one.
func (d *diag) nicsSeen(host string, u *nicUse) []Evidence {
	ev := []Evidence{append(slices.Clone(u.gdr), u.plain...)[0].At}
	d.job.each(func(_ *proc, l *Line) {
		if l.Host == host && len(ev) < 2 {
			ev = append(ev, l.At)
		}
	}, "ib_using")
	return ev
}

// enoughFor says whether a host has a rank for each of n NICs, and none whose connections are not in the logs.
func (d *diag) enoughFor(host string, n int) bool {
	local := d.localRanks(host)
	return local >= n && d.job.ranksSeen(host) >= local
}

// unusedNICs finds hosts that use fewer NICs than most hosts do, or than they have.
func (d *diag) unusedNICs(names nicNames, listed map[string]int, hosts map[string]*nicUse) {
	order := slices.SortedFunc(maps.Keys(hosts), natural)
	common, most := usualNICs(hosts)
	for _, h := range order {
		u := hosts[h]
		used, own := len(u.nics), listed[h]
		lost := common > used && most[common] > most[used]
		fewer := own > used && d.enoughFor(h, own)
		if !lost && !fewer {
			continue
		}
		ev := d.nicsSeen(h, u)
		f := d.find("rails-unused", Subject{Hosts: []string{h}, Devices: u.unused(h, names[h])}, ev...)
		f.Cause = fmt.Sprintf("%s uses %d NICs; it has %d", h, used, own)
		switch {
		case lost:
			f.Cause = fmt.Sprintf("%s uses %d NICs; most hosts use %d", h, used, common)
		case used > 1 && 2*used >= own: // NCCL chooses so on some machines
			if len(f.Evidence) <= len(ev) {
				f.Severity, f.Confidence = Info, 0.5
			}
		default:
			f.Severity = Warning
		}
	}
}

// ranksSeen counts the ranks of the largest communicator that a host's logs speak of.
func (jb *job) ranksSeen(host string) (n int) {
	for _, p := range jb.procs {
		if p.host != host {
			continue
		}
		for _, m := range p.members {
			if m.comm == jb.world {
				n++
			}
		}
	}
	return n
}

// localRanks is how many ranks of the job are on a host, as NCCL counts them.
func (d *diag) localRanks(host string) int {
	n, told := 0, 0
	for _, p := range d.job.procs {
		if p.host != host {
			continue
		}
		for _, m := range p.members {
			if m.comm != d.job.world {
				continue
			}
			n++
			if m.shape != nil {
				told = max(told, num(m.shape.F["lr"]))
			}
		}
	}
	return max(n, told)
}

// nearNIC says whether a GPU of a host has a NIC on its own PCIe switch.
func (d *diag) nearNIC(host string) (bool, []Evidence) {
	for _, m := range d.c.Paths {
		if m.Host != host && m.Host != "" && len(d.c.Paths) > 1 {
			continue
		}
		for k, v := range m.Cell {
			if strings.HasPrefix(k[0], "GPU") && !strings.HasPrefix(k[1], "GPU") && (v == "PIX" || v == "PXB") {
				return true, []Evidence{m.At}
			}
		}
	}
	return false, nil
}
