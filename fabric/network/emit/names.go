package emit

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/fabric/network"
)

// record is a name and its address.
type record struct {
	name string
	addr netip.Addr
}

// records lists the names of a cluster: n0 on the front end, n0-bmc, n0-stor0,
// n0-nic0 on the rails, and switches by their management address.
func records(p *network.Plan) []record {
	var out []record
	for i := range p.Hosts {
		h := &p.Hosts[i]
		front := h.First(network.Frontend)
		out = append(out, record{h.Name, front.Addr.Addr()}, record{h.Name + "-bmc", h.BMC.Addr()})
		for j := range h.Interfaces {
			if x := &h.Interfaces[j]; x.Addr.IsValid() && x != front {
				out = append(out, record{h.Label(x), x.Addr.Addr()})
			}
		}
	}
	for i := range p.Switches {
		out = append(out, record{strings.ToLower(p.Switches[i].Name), p.Switches[i].Mgmt.Addr()})
	}
	return out
}

// DNS writes the zone of the cluster and the reverse zones of its networks. The
// serial number is fixed: raise it when the zone is loaded into a server that
// other servers copy.
func DNS(p *network.Plan) []File {
	soa := func(t *text) {
		t.head(p, ";")
		t.line("$TTL 3600")
		t.line("@ IN SOA ns.%s. hostmaster.%s. (1 3600 600 604800 300)", p.Intent.Domain, p.Intent.Domain)
		t.line("@ IN NS ns.%s.", p.Intent.Domain)
	}
	var zone text
	soa(&zone)
	if len(p.Intent.Frontend.DNS) > 0 {
		zone.line("ns IN A %s", p.Intent.Frontend.DNS[0])
	}
	all := records(p)
	reverse := map[string]*text{}
	var order []string
	for _, r := range all {
		zone.line("%s IN A %s", r.name, r.addr)
		a := r.addr.As4()
		origin := fmt.Sprintf("%d.%d.in-addr.arpa", a[1], a[0])
		t := reverse[origin]
		if t == nil {
			t = &text{}
			soa(t)
			reverse[origin] = t
			order = append(order, origin)
		}
		t.line("%d.%d IN PTR %s.%s.", a[3], a[2], r.name, p.Intent.Domain)
	}
	out := []File{zone.file("dns/"+p.Intent.Domain+".zone", 0o644)}
	slices.Sort(order)
	for _, o := range order {
		out = append(out, reverse[o].file("dns/"+o+".zone", 0o644))
	}
	return out
}

// lease is an address that a DHCP server hands out.
type lease struct {
	name string
	mac  string
	addr netip.Addr
}

// leases lists what a server hands out in a network, to parts whose MAC is known.
func leases(p *network.Plan, role network.Role) (out []lease, unknown int) {
	macs := map[[2]string]string{}
	for _, d := range p.Intent.Inventory {
		macs[[2]string{d.Host, d.Part}] = d.MAC
	}
	for i := range p.Hosts {
		h := &p.Hosts[i]
		l := lease{h.Name, "", netip.Addr{}}
		if role == network.Management {
			l = lease{h.Name + "-bmc", macs[[2]string{h.Name, "bmc"}], h.BMC.Addr()}
		} else if x := h.First(network.Frontend); x != nil {
			l = lease{h.Name, x.MAC, x.Addr.Addr()}
		}
		if l.mac == "" {
			unknown++
			continue
		}
		out = append(out, l)
	}
	return out, unknown
}

// DHCP writes reservations of the front end and of management for dnsmasq and
// for Kea. A part whose MAC the inventory does not know gets none.
func DHCP(p *network.Plan) []File {
	var t text
	t.head(p, "#")
	t.line("domain=%s\nexpand-hosts\nno-resolv\ndhcp-authoritative", p.Intent.Domain)
	type subnet map[string]any
	var subnets []subnet
	for id, role := range []network.Role{network.Management, network.Frontend} {
		net := p.Net(role)
		tag := role.String()
		t.line("dhcp-range=set:%s,%s,static,%s,12h", tag, net.Prefix.Addr(), mask(net.Prefix))
		s := subnet{"id": id + 1, "subnet": net.Prefix.String(), "reservations": []subnet{}}
		options := []subnet{{"name": "interface-mtu", "data": fmt.Sprint(net.MTU)}}
		t.line("dhcp-option=tag:%s,option:mtu,%d", tag, net.MTU)
		if net.Gateway.IsValid() {
			t.line("dhcp-option=tag:%s,option:router,%s", tag, net.Gateway)
			options = append(options, subnet{"name": "routers", "data": net.Gateway.String()})
		}
		if len(net.DNS) > 0 {
			t.line("dhcp-option=tag:%s,option:dns-server,%s", tag, strings.ReplaceAll(joined(net.DNS, netip.Addr.String), " ", ""))
			options = append(options, subnet{"name": "domain-name-servers", "data": joined(net.DNS, netip.Addr.String)})
		}
		if role == network.Management {
			for _, line := range ztpOptions(p) {
				t.line("%s", line)
				if url, ok := strings.CutPrefix(line, "dhcp-option=tag:management,67,"); ok {
					options = append(options, subnet{"name": "boot-file-name", "data": url})
				}
			}
		}
		s["option-data"] = options
		list, unknown := leases(p, role)
		reserved := []subnet{}
		for _, l := range list {
			t.line("dhcp-host=%s,%s,%s", l.mac, l.addr, l.name)
			reserved = append(reserved, subnet{"hw-address": l.mac, "ip-address": l.addr.String(), "hostname": l.name})
		}
		if unknown > 0 {
			t.line("# %d parts of the %s network have no reservation: the inventory does not know their MAC.", unknown, role)
		}
		s["reservations"] = reserved
		subnets = append(subnets, s)
	}
	kea := map[string]any{"Dhcp4": map[string]any{
		"interfaces-config": map[string]any{"interfaces": []string{"*"}},
		"lease-database":    map[string]any{"type": "memfile", "persist": true},
		"valid-lifetime":    43200,
		"subnet4":           subnets,
		"user-context": map[string]any{"comment": fmt.Sprintf("Made by weft net emit from the plan %s of %s. Change the cluster file, not this one.",
			p.Digest, p.Name)},
	}}
	data, err := json.MarshalIndent(kea, "", "  ")
	if err != nil {
		data = []byte("{}") // maps of strings always marshal
	}
	return []File{t.file("dhcp/dnsmasq.conf", 0o644), {"dhcp/kea-dhcp4.conf", 0o644, append(data, '\n')}}
}

// mask is a prefix length in the old form.
func mask(p netip.Prefix) netip.Addr {
	m := ^uint32(0) << (32 - p.Bits())
	return netip.AddrFrom4([4]byte{byte(m >> 24), byte(m >> 16), byte(m >> 8), byte(m)})
}
