package emit

import (
	"encoding/csv"
	"fmt"
	"strings"

	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/model/topo"
)

// csvFile writes rows as CSV.
func csvFile(path string, rows [][]string) File {
	var t text
	w := csv.NewWriter(&t)
	for _, r := range rows {
		if err := w.Write(r); err != nil {
			break // a buffer takes everything
		}
	}
	w.Flush()
	return t.file(path, 0o644)
}

// cable is one cable of the plan, its switch end first.
type cable struct {
	sw         *network.Switch
	port       *network.Port
	here       string // the port's name
	far, there string // the other end: device and interface
	rack       int32  // of the other end
}

// cables lists every cable once, from the lower tier.
func cables(p *network.Plan) []cable {
	var out []cable
	for i := range p.Switches {
		s := &p.Switches[i]
		for j := range s.Ports {
			q := &s.Ports[j]
			c := cable{sw: s, port: q, here: PortName(p, s, q.Number)}
			if q.Host != network.None {
				h := &p.Hosts[q.Host]
				c.far, c.there, c.rack = h.Name, p.Graph.Nodes[q.Peer].Name, p.Graph.Hosts[h.ID].Rack
				if q.Iface != network.None {
					c.there = h.Interfaces[q.Iface].Name
				}
			} else {
				sw, port := p.Far(q)
				if sw == nil || sw.Node < s.Node {
					continue
				}
				c.far, c.there, c.rack = sw.Name, PortName(p, sw, port.Number), p.Graph.Nodes[sw.Node].Rack
			}
			out = append(out, c)
		}
	}
	return out
}

// listedSecond says whether a cable between two nodes is listed as one from b to a: it begins at a switch, and at the lower one
// of two.
func listedSecond(g *topo.Graph, a, b topo.NodeID) bool {
	return g.Nodes[a].Kind == topo.NIC || g.Nodes[b].Kind == topo.Switch && g.Nodes[b].Tier < g.Nodes[a].Tier
}

// farEnd names the device and the port that a cable leads to: a host and its NIC, or a switch and its port.
func farEnd(g *topo.Graph, n topo.NodeID, port int) (device, there string) {
	if h := g.Nodes[n].Host; h != topo.None {
		return g.Hosts[h].Name, g.Nodes[n].Name
	}
	return g.Nodes[n].Name, fmt.Sprintf("p%d", port)
}

// Cables writes the plan of cables: one line each, with what the people who buy and
// plug it, and LLDP afterwards, must see. Cables of networks beside the graph
// (services in the cluster file) follow.
func Cables(p *network.Plan) []File {
	rows := [][]string{{"cable", "from_device", "from_port", "from_rack", "to_device", "to_port", "to_rack", "link", "medium", "length_m",
		"label_from", "label_to", "lldp_chassis", "lldp_port",
		"from_unit", "to_unit", "model", "usd", "network"}}
	type need struct {
		gen    string
		metres float64
		fibre  bool
	}
	known := map[need][3]string{} // most cables are alike
	add := func(g *topo.Graph, l topo.LinkID, from, here string, fromRack int32, far, there string, toRack int32, fibre bool, network string) {
		metres := g.Metres(l)
		key := need{g.Class(l).Gen, metres, fibre && !g.SameRack(l)}
		x, ok := known[key]
		if !ok {
			x[0], x[1], x[2] = bought(p, key.gen, key.metres, key.fibre)
			known[key] = x
		}
		model, sort, usd := x[0], x[1], x[2]
		rows = append(rows, []string{fmt.Sprintf("C%05d", len(rows)), from, here, rackOf(p, from, fromRack), far, there, rackOf(p, far, toRack),
			g.Class(l).Gen, sort, fmt.Sprintf("%g", metres), from + ":" + here, far + ":" + there, far, there,
			unitOf(p, from), unitOf(p, far), model, usd, network})
	}
	fibre := p.Floor == nil || p.Floor.Intent.Cables == "fibre"
	for _, c := range cables(p) {
		fabric := "network"
		if f := p.Graph.Nodes[c.sw.Node].Fabric; f >= 0 {
			fabric = p.Graph.Fabrics[f].Name
		}
		add(p.Graph, c.port.Link, c.sw.Name, c.here, p.Graph.Nodes[c.sw.Node].Rack, c.far, c.there, c.rack, fibre, fabric)
	}
	for _, s := range p.Services {
		g := s.Graph
		for i := range g.Links {
			l := &g.Links[i]
			a, b, aPort, bPort := l.A, l.B, l.APort, l.BPort
			if listedSecond(g, a, b) {
				a, b, aPort, bPort = b, a, bPort, aPort
			}
			far, there := farEnd(g, b, int(bPort))
			add(g, topo.LinkID(i), g.Nodes[a].Name, fmt.Sprintf("p%d", aPort), g.Nodes[a].Rack, far, there, g.Nodes[b].Rack, fibre &&
				s.Name != "out-of-band", s.Name)
		}
	}
	return []File{csvFile("cables/cables.csv", rows)}
}

// bought says which cable of the catalogue a link takes, what sort that is, and what it costs.
func bought(p *network.Plan, gen string, metres float64, fibre bool) (model, sort, usd string) {
	if p.Catalog == nil {
		return "", medium(metres), ""
	}
	c, ok := p.Catalog.CableFor(gen, metres, fibre)
	if !ok {
		return "", "none in the catalogue reaches", ""
	}
	for _, s := range [][2]string{{"dac-", "copper (DAC)"}, {"acc-", "active copper (ACC)"}, {"aoc-", "active optical (AOC)"},
		{"smf-", "single-mode fibre, two transceivers"}, {"cat6-", "twisted pair"}} {
		if strings.HasPrefix(c.Name, s[0]) {
			sort = s[1]
		}
	}
	if sort == "" {
		sort = medium(metres)
	}
	return c.Name, sort, fmt.Sprintf("%g", c.Price.USD)
}

// rackOf names the rack of a device: as the floor plan has it, or by the graph's number.
func rackOf(p *network.Plan, device string, rack int32) string {
	if p.Floor != nil {
		if name := p.Floor.RackOf(device); name != "" {
			return name
		}
		if rack >= 0 && int(rack) < len(p.Floor.Racks) {
			return p.Floor.Racks[rack].Name
		}
	}
	return rackName(rack)
}

// unitOf is the lowest rack unit of a device that a floor plan has.
func unitOf(p *network.Plan, device string) string {
	if p.Floor != nil {
		if d, ok := p.Floor.Find(device); ok {
			return fmt.Sprint(d.Unit)
		}
	}
	return ""
}

func rackName(r int32) string {
	if r < 0 {
		return ""
	}
	return fmt.Sprintf("r%d", r)
}

// medium is the usual sort of cable for a length at 100 Gb/s a lane.
func medium(metres float64) string {
	switch {
	case metres <= 2:
		return "copper (DAC)"
	case metres <= 5:
		return "active copper (ACC)"
	case metres <= 50:
		return "multi-mode fibre"
	}
	return "single-mode fibre"
}

// NetBox writes CSV files for NetBox's import, numbered in the order in which
// they must be imported.
func NetBox(p *network.Plan) []File {
	g := p.Graph
	devices := [][]string{{"name", "role", "manufacturer", "device_type", "site", "rack", "status"}}
	interfaces := [][]string{{"device", "name", "type", "mtu", "lag"}}
	addresses := [][]string{{"address", "device", "interface", "dns_name", "is_primary", "is_oob", "status"}}
	joined := [][]string{{"side_a_device", "side_a_type", "side_a_name", "side_b_device", "side_b_type", "side_b_name", "label", "length",
		"length_unit", "status"}}
	for i := range p.Hosts {
		h := &p.Hosts[i]
		devices = append(devices, []string{h.Name, "gpu-host", maker(g.Hosts[h.ID].Model), g.Hosts[h.ID].Model, p.Name,
			rackOf(p, h.Name, g.Hosts[h.ID].Rack), "planned"})
		front := h.First(network.Frontend)
		for j := range h.Interfaces {
			x := &h.Interfaces[j]
			interfaces = append(interfaces, []string{h.Name, x.Name, netboxType(g, x.Link, isBond(h, x)), fmt.Sprint(x.MTU), x.Bond})
			if x.Addr.IsValid() {
				addresses = append(addresses, []string{x.Addr.String(), h.Name, x.Name, dnsName(p, h, x, front), fmt.Sprint(x == front), "false",
					"active"})
			}
		}
		interfaces = append(interfaces, []string{h.Name, "bmc", "1000base-t", "1500", ""})
		addresses = append(addresses, []string{h.BMC.String(), h.Name, "bmc", h.Name + "-bmc." + p.Intent.Domain, "false", "true", "active"})
	}
	for i := range p.Switches {
		s := &p.Switches[i]
		n := &g.Nodes[s.Node]
		devices = append(devices, []string{s.Name, tierName(s.Tier), maker(n.Model), strings.ToLower(n.Model), p.Name, rackOf(p, s.Name, n.Rack),
			"planned"})
		interfaces = append(interfaces, []string{s.Name, "mgmt", "1000base-t", "1500", ""})
		addresses = append(addresses, []string{s.Mgmt.String(), s.Name, "mgmt", strings.ToLower(s.Name) + "." + p.Intent.Domain, "true", "true",
			"active"})
		for j := range s.Ports {
			q := &s.Ports[j]
			name := PortName(p, s, q.Number)
			interfaces = append(interfaces, []string{s.Name, name, netboxType(g, q.Link, false), fmt.Sprint(q.MTU), ""})
			if q.Addr.IsValid() && q.VLAN == 0 {
				addresses = append(addresses, []string{q.Addr.String(), s.Name, name, "", "false", "false", "active"})
			}
		}
	}
	for _, c := range cables(p) {
		joined = append(joined, []string{c.sw.Name, "dcim.interface", c.here, c.far, "dcim.interface", c.there, c.sw.Name + ":" + c.here,
			fmt.Sprintf("%g", g.Metres(c.port.Link)), "m", "planned"})
	}
	prefixes := [][]string{{"prefix", "status", "vlan", "description"}}
	vlans := [][]string{{"vid", "name", "status"}}
	asns := [][]string{{"asn", "description"}}
	for _, r := range []network.Role{network.Frontend, network.Backend, network.Storage, network.Management} {
		net := p.Net(r)
		prefixes = append(prefixes, []string{net.Prefix.String(), "container", "", r.String()})
		vlans = append(vlans, []string{fmt.Sprint(net.VLAN), r.String(), "active"})
	}
	for _, r := range p.Rails {
		prefixes = append(prefixes, []string{r.Prefix.String(), "active", "", fmt.Sprintf("rail %d", r.Number)})
	}
	prefixes = append(prefixes, []string{p.Intent.Loopbacks.String(), "active", "", "loopbacks of switches"})
	seen := map[uint32]bool{}
	for i := range p.Switches {
		if s := &p.Switches[i]; s.ASN != 0 && !seen[s.ASN] {
			seen[s.ASN] = true
			asns = append(asns, []string{fmt.Sprint(s.ASN), s.Name})
		}
	}
	out := []File{csvFile("netbox/1-devices.csv", devices), csvFile("netbox/2-interfaces.csv", interfaces),
		csvFile("netbox/3-vlans.csv", vlans),
		csvFile("netbox/4-prefixes.csv", prefixes), csvFile("netbox/5-addresses.csv", addresses), csvFile("netbox/6-cables.csv", joined)}
	if len(asns) > 1 {
		out = append(out, csvFile("netbox/7-asns.csv", asns))
	}
	return out
}

func dnsName(p *network.Plan, h *network.Host, x, front *network.Interface) string {
	if x == front {
		return h.Name + "." + p.Intent.Domain
	}
	return h.Label(x) + "." + p.Intent.Domain
}

func tierName(tier int) string {
	switch tier {
	case 1:
		return "leaf"
	case 2:
		return "spine"
	}
	return "core"
}

// makers tells who sells a model by how its name begins.
var makers = [][2]string{{"QM", "NVIDIA"}, {"Q3", "NVIDIA"}, {"SN", "NVIDIA"}, {"SB", "NVIDIA"}, {"dgx", "NVIDIA"}, {"hgx", "NVIDIA"},
	{"gb", "NVIDIA"},
	{"TH", "Broadcom"}, {"78", "Arista"}, {"tpu", "Google"}}

func maker(model string) string {
	for _, m := range makers {
		if strings.HasPrefix(model, m[0]) {
			return m[1]
		}
	}
	return "generic"
}

// netboxType is the slug of an interface's sort.
func netboxType(g *topo.Graph, l topo.LinkID, bond bool) string {
	if bond {
		return "lag"
	}
	if l == network.None {
		return "other"
	}
	c := g.Class(l)
	if c.Kind == topo.InfiniBand {
		return "infiniband-" + map[string]string{"edr": "edr", "hdr": "hdr", "ndr": "ndr", "xdr": "xdr"}[c.Gen]
	}
	switch nearestSpeed(int(float64(c.Rate) * 8 / 1e6)) {
	case 100000:
		return "100gbase-x-qsfp28"
	case 200000:
		return "200gbase-x-qsfp56"
	case 400000:
		return "400gbase-x-qsfp112"
	case 800000:
		return "800gbase-x-osfp"
	}
	return "other"
}
