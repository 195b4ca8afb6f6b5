package check

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/fabric/network/emit"
)

// routed is a network in a routing table of a switch.
type routed struct {
	table string // main, or a VRF's number
	dst   netip.Prefix
}

// table is the routing table of a switch that has a host link.
func (c *comparer) table(q *network.Port) string {
	if q.VRF == 0 {
		return "main"
	}
	return fmt.Sprint(c.p.VRFs[q.VRF-1].Table)
}

// isVRF reports whether a table is a VRF's.
func (c *comparer) isVRF(table string) bool {
	return slices.ContainsFunc(c.p.VRFs, func(v network.VRF) bool { return fmt.Sprint(v.Table) == table })
}

// vrfs compares which VRF each routed port of a switch is in, and the routes of VRFs to other leaves.
func (c *comparer) vrfs(s *network.Switch, d *device) {
	for i := range s.Ports {
		q := &s.Ports[i]
		name := emit.PortName(c.p, s, q.Number)
		x, ok := d.ifaces[name]
		if !ok || q.VLAN != 0 {
			continue
		}
		want, fix := "", "ip link set "+name+" nomaster"
		if q.VRF != 0 {
			want = c.p.VRFs[q.VRF-1].Name
			fix = fmt.Sprintf("ip link set %s master %s", name, want)
		}
		if x.master != want {
			c.add(Finding{State: Differ, Kind: InVRF, Device: s.Name, Part: name, What: "the VRF of the port", Want: want, Got: x.master,
				Command: "ip -j addr", Intent: "tenants", Fix: fix, links: []string{"vrf " + want, "vrf " + x.master, ofRoute(q.Addr.String())}})
		}
	}
	for k := range c.p.VRFs {
		c.vrfRoutes(s, d, k+1)
	}
}

// endsVRF reports whether a route is the one that ends the table of a VRF.
func (c *comparer) endsVRF(r *route, dst netip.Prefix) bool {
	return dst.Bits() == 0 && r.via == "unreachable" && c.isVRF(r.table)
}

// vrfRoutes compares the routes of a switch in a VRF to the tenant's links on other switches, and the route that ends the table.
func (c *comparer) vrfRoutes(s *network.Switch, d *device, vrf int) {
	if d.routes == nil || !slices.ContainsFunc(s.Ports, func(q network.Port) bool { return q.VRF == vrf }) {
		return
	}
	v := &c.p.VRFs[vrf-1]
	have, closed := c.inTable(d, fmt.Sprint(v.Table))
	if !closed && c.p.Dialect(s) == "frr" {
		c.add(Finding{State: Missing, Kind: InVRF, Device: s.Name, Part: "end of " + v.Name,
			What: "packets that the VRF has no route to go on in the main table", Want: "unreachable default", Command: "ip -j route show table all",
			Intent: "tenants",
			Fix:    fmt.Sprintf("ip route add table %d unreachable default metric %d", v.Table, network.LastMetric)})
	}
	if missing := c.unknownLinks(s, vrf, have); len(missing) > 0 {
		c.add(Finding{State: Missing, Kind: InVRF, Device: s.Name, Part: "routes of " + v.Name,
			What: fmt.Sprintf("routes to %d of the tenant's links", len(missing)), Want: strings.Join(missing[:min(3, len(missing))], ", "),
			Command: "ip -j route show table all", Intent: "tenants", Fix: "look at the VRF on the switch that has them: vtysh -c 'show vrf vni'",
			links: []string{"vrf " + v.Name}, wide: true})
	}
}

// inTable lists the networks that a device has routes to in the table of a VRF, and reports whether the table has its end.
func (c *comparer) inTable(d *device, table string) (have map[netip.Prefix]bool, closed bool) {
	have = map[netip.Prefix]bool{}
	for _, r := range d.routes {
		if dst, ok := destination(r.dst); ok && r.table == table && r.ways > 0 {
			have[dst] = true
			closed = closed || c.endsVRF(&r, dst)
		}
	}
	return have, closed
}

// unknownLinks lists a tenant's links on other switches that a switch has no route to.
func (c *comparer) unknownLinks(s *network.Switch, vrf int, have map[netip.Prefix]bool) (out []string) {
	own := slices.IndexFunc(c.p.Switches, func(x network.Switch) bool { return x.Node == s.Node })
	for i := range c.p.Switches {
		if i == own || c.width(own, i) == 0 {
			continue
		}
		for _, q := range c.p.Switches[i].Ports {
			if q.VRF == vrf && !have[q.Addr.Masked()] {
				out = append(out, q.Addr.Masked().String())
			}
		}
	}
	return out
}
