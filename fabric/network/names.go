package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/cluster"
)

// wrongName says that a host or switch must not be called what it is.
func (m *maker) wrongName(kind, name, format string, args ...any) {
	m.errs = append(m.errs, &cluster.Error{File: m.file, Line: m.in.DeviceLine(name), Field: kind, Msg: fmt.Sprintf(format, args...)})
}

// called checks the names of hosts and switches, which DNS does not tell apart
// by case, and in which n0-bmc is a name of n0.
func (m *maker) called() {
	byName := make(map[string]string, len(m.plan.Hosts)+len(m.plan.Switches))
	lineOf := func(name string) string {
		if at := m.in.DeviceLine(name); at > 0 {
			return fmt.Sprintf(" on line %d", at)
		}
		return ""
	}
	add := func(kind, name string) bool {
		switch {
		case !hostname.MatchString(name) && (kind == "hosts" || m.in.DeviceLine(name) > 0):
			m.wrongName(kind, name, "name %q; a name has letters, digits and hyphens, at most 63, and a letter or digit at both ends", clip(name))
			return false
		case strings.Trim(name, "0123456789") == "" || strings.EqualFold(name, "localhost"):
			m.wrongName(kind, name, "name %q; programs read it as an address of their own, take one such as n0", clip(name))
			return false
		case strings.EqualFold(name, "ns"):
			m.wrongName(kind, name, "name %q; the zone calls the name server so, take another", name)
			return false
		}
		low := strings.ToLower(name)
		if other, taken := byName[low]; taken {
			m.wrongName(kind, name, "%q and %q%s are one name to DNS; call one of them otherwise", clip(name), clip(other), lineOf(other))
			return false
		}
		byName[low] = name
		return true
	}
	for i := range m.plan.Hosts {
		h := &m.plan.Hosts[i]
		if !add("hosts", h.Name) {
			return
		}
		label := len(h.Name) + len("-bmc")
		for j := range h.Interfaces {
			label = max(label, len(h.Name)+1+len(h.Interfaces[j].Name))
		}
		if full := label + 1 + len(m.in.Domain); label > 63 || full > 253 {
			m.wrongName("hosts", h.Name,
				"the names of %q have up to %d bytes and with the domain %d; DNS takes 63 and 253: shorten the name or the domain",
				clip(h.Name), label, full)
			return
		}
	}
	for i := range m.plan.Switches {
		if !add("switches", m.plan.Switches[i].Name) {
			return
		}
	}
	names := make([]string, 0, len(byName))
	for i := range m.plan.Hosts {
		names = append(names, m.plan.Hosts[i].Name)
	}
	for i := range m.plan.Switches {
		names = append(names, m.plan.Switches[i].Name)
	}
	for _, name := range names {
		low := strings.ToLower(name)
		for at := strings.IndexByte(low, '-'); at >= 0; at = nextHyphen(low, at) {
			h := m.plan.Host(byName[low[:at]])
			if h == nil || !m.labelled(h, low) {
				continue
			}
			m.wrongName("hosts", name, "%q is in DNS also the name of a part of %q%s; call one of them otherwise",
				clip(name), clip(h.Name), lineOf(h.Name))
			return
		}
	}
}

// nextHyphen is where the next hyphen behind one stands; -1 if there is none.
func nextHyphen(s string, at int) int {
	next := strings.IndexByte(s[at+1:], '-')
	if next < 0 {
		return -1
	}
	return at + 1 + next
}

// labelled reports whether a part of a host has a name in DNS, given in small letters.
func (m *maker) labelled(h *Host, low string) bool {
	if low == strings.ToLower(h.Name)+"-bmc" {
		return true
	}
	front := h.First(Frontend)
	for j := range h.Interfaces {
		if x := &h.Interfaces[j]; x != front && x.Bond == "" && strings.ToLower(h.Label(x)) == low {
			return true
		}
	}
	return false
}

// taken are names that mean something else to Linux: its loopback, and the settings of all interfaces.
var taken = []string{"lo", "all", "default"}

func linuxTakes(name string) bool {
	return len(name) <= 15 && !strings.ContainsAny(name, "/: \t") && !slices.Contains(taken, name)
}

// names checks the names of a host's interfaces, which the kernel limits.
func (m *maker) names(h *Host) {
	for i, x := range h.Interfaces {
		if len(m.errs) > 0 {
			return // hosts of one kind have the same names
		}
		if !linuxTakes(x.Name) {
			m.wrongName("hosts", h.Name,
				"%s: interface name %q; Linux takes at most 15 bytes without slash, colon or space, and not lo, all or default: rename it under kinds",
				h.Name, clip(x.Name))
		}
		if strings.EqualFold(x.Name, "bmc") {
			m.wrongName("hosts", h.Name, "%s: interface name %q; %s-bmc is the BMC: rename it under kinds", h.Name, x.Name, h.Name)
		}
		for _, y := range h.Interfaces[:i] {
			if x.Name == y.Name || len(x.Name) == len(y.Name) && h.same(&x, &y) {
				m.wrongName("hosts", h.Name,
					"%s: interface name %q stands for a NIC of the %s and of the %s network: rename the NIC under kinds, or name others with nics",
					h.Name, clip(x.Name), y.Role, x.Role)
			}
		}
	}
}

// pins sets the addresses that somebody chose, if nobody else has them.
func (m *maker) pins() {
	if len(m.in.Pins) == 0 {
		return
	}
	owner := map[netip.Addr]string{}
	for i := range m.plan.Hosts {
		for _, x := range m.plan.Hosts[i].Interfaces {
			owner[x.Addr.Addr()] = m.plan.Hosts[i].Name
		}
		owner[m.plan.Hosts[i].BMC.Addr()] = m.plan.Hosts[i].Name
	}
	for i := range m.plan.Switches {
		owner[m.plan.Switches[i].Mgmt.Addr()] = "switch " + m.plan.Switches[i].Name
	}
	for _, pin := range m.in.Pins {
		field := "pin." + pin.Host + "." + pin.Net
		h := m.plan.Host(pin.Host)
		if h == nil {
			m.fail(field, "there is no host %q", clip(pin.Host))
			continue
		}
		role, err := ParseRole(pin.Net)
		if err != nil || !pin.Addr.IsValid() {
			continue
		}
		net := m.plan.Net(role)
		if !net.Prefix.Contains(pin.Addr) {
			m.fail(field, "%s is outside %s", pin.Addr, net.Prefix)
			continue
		}
		if end := between(net.Prefix.Addr(), pin.Addr); end == 0 || end == size(net.Prefix)-1 {
			m.fail(field, "%s is the network's own or its broadcast address; take one that no host has, such as %s",
				pin.Addr, at(net.Prefix, firstOfBlock-1))
			continue
		}
		if other := owner[pin.Addr]; other != "" && other != h.Name {
			m.fail(field, "%s belongs to %s; take one that no host has, such as %s", pin.Addr, other, at(net.Prefix, firstOfBlock-1))
			continue
		}
		if pin.Addr == net.Gateway || slices.Contains(net.DNS, pin.Addr) {
			m.fail(field, "%s is the gateway's or a name server's", pin.Addr)
			continue
		}
		owner[pin.Addr] = h.Name
		if role == Management {
			h.BMC = whole(pin.Addr, net.Prefix)
		} else if x := h.First(role); x != nil {
			if part := x.Addr.Masked(); !part.Contains(pin.Addr) {
				m.fail(field, "%s is outside %s, the part of %s %s", pin.Addr, part, h.Name, x.Name)
				continue
			}
			x.Addr = whole(pin.Addr, x.Addr)
		} else if slices.ContainsFunc(h.Interfaces, func(x Interface) bool { return x.Role == role && x.Net.IsValid() }) {
			m.fail(field, "%s; storage links are routed, and their addresses follow from NIC and host: leave it out", pin.Addr)
		} else {
			m.fail(field, "%s has no interface in %s", h.Name, role)
		}
	}
}

// inventory puts what is known of real parts into the interfaces.
func (m *maker) inventory() {
	for _, d := range m.in.Inventory {
		bad := func(format string, args ...any) {
			m.errs = append(m.errs, &cluster.Error{File: m.in.InventoryFile, Line: d.Line, Msg: fmt.Sprintf(format, args...)})
		}
		h := m.plan.Host(d.Host)
		if h == nil {
			bad("there is no host %q in %s; correct the name or drop the line", clip(d.Host), m.file)
			continue
		}
		x := h.Interface(d.Part)
		if x == nil {
			if d.Part != "bmc" {
				bad("%s has no part %q with an address; it has %s and bmc", h.Name, clip(d.Part), interfaces(h))
			}
			continue
		}
		x.MAC, x.PCI, x.GUID = d.MAC, d.PCI, d.GUID
	}
}

// interfaces lists the interfaces of a host by name.
func interfaces(h *Host) string {
	var names []string
	for i := range h.Interfaces {
		names = append(names, h.Interfaces[i].Name)
	}
	return strings.Join(names, ", ")
}

// partitions checks the tenants of an InfiniBand fabric.
func (m *maker) partitions() {
	keys := map[int]string{}
	for _, p := range m.in.Partitions {
		field := "partitions." + p.Name
		if other, twice := keys[p.PKey]; twice {
			m.fail(field+".pkey", "0x%x is also the key of %s; the subnet manager would make one partition of both", p.PKey, other)
		}
		keys[p.PKey] = p.Name
		for _, name := range p.Hosts {
			h := m.plan.Host(name)
			if h == nil {
				m.fail(field+".hosts", "there is no host %q", clip(name))
				break
			}
			if !slices.ContainsFunc(h.Interfaces, func(x Interface) bool { return x.IB }) {
				m.fail(field+".hosts", "%s has no InfiniBand NIC; partitions are InfiniBand's, Ethernet has VLANs", name)
				break
			}
		}
	}
}
