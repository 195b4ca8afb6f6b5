package floor

import (
	"cmp"
	"fmt"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
)

// OutOfBand is the network through which machines are managed when their own
// network is down. Racks share switches of 1 Gb/s ports as far as these reach:
// every BMC, every management port of a switch and every power distribution unit
// takes a port. Two switches in the middle join them.
type OutOfBand struct {
	Switch string // at the racks; "SN2201" if empty
	Spine  string // in the middle; "SN4600C" if empty
	PDUs   int    // power distribution units a rack; 2 if zero, none if negative
}

// spineRoom is how many leaves a pair of spines takes; what is left leads on.
const spineRoom = 60

func namesOf(list []Extra) map[string]bool {
	names := map[string]bool{}
	for _, x := range list {
		names[x.Name] = true
	}
	return names
}

func pduPorts(rack string, count int) (ports [][2]string) {
	for k := range count {
		ports = append(ports, [2]string{fmt.Sprintf("%s-pdu%d", rack, k), "eth0"})
	}
	return ports
}

func switchAndLink(c *catalog.Catalog, model string) (sw catalog.Switch, link catalog.Link, err error) {
	if sw, err = c.Switch(model); err == nil {
		link, err = c.Link(sw.Link)
	}
	return sw, link, err
}

// Build makes the network of a cluster that stands as plan says. more are
// switches of other networks beside the graph.
func (o *OutOfBand) Build(g *topo.Graph, c *catalog.Catalog, plan *Plan, more []Extra) (*topo.Graph, error) {
	leafModel, spineModel, pdus := cmp.Or(o.Switch, "SN2201"), cmp.Or(o.Spine, "SN4600C"), cmp.Or(o.PDUs, 2)
	leaf, port, err := switchAndLink(c, leafModel)
	if err != nil {
		return nil, err
	}
	spine, up, err := switchAndLink(c, spineModel)
	if err != nil {
		return nil, err
	}
	b := topo.NewBuilder("out-of-band")
	fabric := b.Fabric(topo.Fabric{Name: "out-of-band", Family: topo.Clos})
	extra := namesOf(more)
	node := func(name, model string, tier uint8, ports, rack int) topo.NodeID {
		n := topo.Part(topo.Switch, topo.None, name)
		n.Fabric, n.Tier, n.Model, n.Ports, n.Rack = fabric, tier, model, uint16(ports), int32(rack)
		return b.Node(n)
	}
	var leaves []topo.NodeID
	used := leaf.Ports
	class, climb := b.Class(port.Class(0)), b.Class(up.Class(0))
	join := func(device, nic string, rack int) {
		if used == leaf.Ports {
			leaves = append(leaves, node(fmt.Sprintf("oob-leaf%d", len(leaves)), leafModel, 1, leaf.Ports+4, rack))
			used = 0
		}
		used++
		n := topo.Part(topo.NIC, b.Host(topo.Host{Name: device, Pod: topo.None, Rack: int32(rack)}), nic)
		n.Fabric, n.Ports = fabric, 1
		b.Link(topo.Link{A: b.Node(n), B: leaves[len(leaves)-1], APort: 1, BPort: uint16(used), Class: class})
	}
	for i, r := range plan.Racks {
		if r.Use == "" {
			continue
		}
		names := append(oobPorts(g, plan, &r, extra), pduPorts(r.Name, pdus)...)
		if len(names) <= leaf.Ports && used+len(names) > leaf.Ports { // a rack is not parted where it need not be
			used = leaf.Ports
		}
		for _, n := range names {
			join(n[0], n[1], i)
		}
	}
	o.climb(leaves, leaf.Ports, len(plan.Racks)/2, spineModel, spine.Ports, node, func(a, z topo.NodeID, aPort, zPort int) {
		b.Link(topo.Link{A: a, B: z, APort: uint16(aPort), BPort: uint16(zPort), Class: climb})
	})
	out, err := b.Graph()
	if err != nil {
		return nil, err
	}
	return out.Placed(func(string) int32 { return topo.None }, func(l topo.LinkID) float64 {
		x, y := plan.stands(out, out.Links[l].A), plan.stands(out, out.Links[l].B)
		return plan.Length(plan.Way(x, y))
	}), nil
}

// oobPorts are the devices of a rack that are managed, each with the name of its port: hosts, switches and what was added.
func oobPorts(g *topo.Graph, plan *Plan, r *Rack, extra map[string]bool) (names [][2]string) {
	for _, at := range r.Devices {
		d := &plan.Devices[at]
		_, host := g.HostByName(d.Name)
		_, inGraph := g.Lookup(d.Name)
		switch {
		case host:
			names = append(names, [2]string{d.Name, "bmc"})
		case inGraph == nil || extra[d.Name]:
			names = append(names, [2]string{d.Name, "mgmt"})
		}
	}
	return names
}

// climb joins the leaves by pairs of spines, and the spines by two cores where
// there are several pairs.
func (o *OutOfBand) climb(leaves []topo.NodeID, ports, middle int, model string, radix int,
	node func(string, string, uint8, int, int) topo.NodeID, link func(a, z topo.NodeID, aPort, zPort int)) {
	if len(leaves) < 2 {
		return
	}
	room := min(spineRoom, radix-4)
	pairs := (len(leaves) + room - 1) / room
	var cores []topo.NodeID
	if pairs > 1 {
		for k := range 2 {
			cores = append(cores, node(fmt.Sprintf("oob-core%d", k), model, 3, max(radix, 2*pairs), middle))
		}
	}
	for p := range pairs {
		for k := range 2 {
			s := node(fmt.Sprintf("oob-spine%d", 2*p+k), model, 2, radix, middle)
			for i, l := range leaves[p*room : min(len(leaves), (p+1)*room)] {
				link(l, s, ports+1+k, i+1)
			}
			for j, top := range cores {
				link(s, top, room+1+j, 2*p+k+1)
			}
		}
	}
}

// stands is where a device of the out-of-band network stands: as the plan has
// it, or at the top of its rack.
func (p *Plan) stands(g *topo.Graph, n topo.NodeID) Device {
	name, rack := g.Nodes[n].Name, g.Nodes[n].Rack
	if h := g.Nodes[n].Host; h != topo.None {
		name, rack = g.Hosts[h].Name, g.Hosts[h].Rack
	}
	if d, ok := p.Find(name); ok {
		return d
	}
	return Device{Name: name, Units: 1, Rack: int(rack), Unit: p.Intent.Units}
}
