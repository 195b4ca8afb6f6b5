package format

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
)

// generic are words of the descriptions that adapters and switches have from their makers until somebody gives them a name.
var generic = []string{"Mellanox Technologies", "ConnectX", "InfiniHost", "Infiniscale", "SwitchIB", "SwitchX", "Quantum Mellanox",
	"NVIDIA Quantum", "Voltaire", "QLogic", "OmniPath"}

func isGeneric(desc string) bool {
	return strings.TrimSpace(desc) == "" || slices.ContainsFunc(generic, func(w string) bool { return strings.Contains(desc, w) })
}

// graph turns a subnet into a graph.
func (n *ibNet) graph(name string) (*topo.Graph, error) {
	slices.SortFunc(n.order, func(x, y *ibNode) int {
		return cmp.Or(topo.Natural(x.desc, y.desc), cmp.Compare(x.guid, y.guid), topo.Natural(x.id, y.id))
	})
	for _, v := range n.order {
		if v.desc == "" && v.guid == 0 {
			v.desc = v.id // a free name in a file for ibsim
		}
	}
	b := topo.NewBuilder(name)
	fabric := b.Fabric(topo.Fabric{Name: "fabric", Family: topo.Irregular})
	hosts := n.adapters(b, fabric)
	n.switches(b, fabric, hosts)
	for _, v := range n.order {
		for _, port := range sortedPorts(v) {
			if err := n.cable(b, v, port); err != nil {
				return nil, err
			}
		}
	}
	layered := b.InferTiers(fabric)
	if layered {
		b.SetFamily(fabric, topo.Clos)
	}
	return finish(n.dialect, b)
}

func sortedPorts(v *ibNode) []int {
	list := make([]int, 0, len(v.port))
	for p := range v.port {
		list = append(list, p)
	}
	slices.Sort(list)
	return list
}

// adapters adds hosts and NICs and gives the names that hosts took.
func (n *ibNet) adapters(b *topo.Builder, fabric int8) map[string]topo.HostID {
	times := map[ibSeat]int{}
	places := map[*ibNode]ibSeat{}
	for _, v := range n.order {
		if v.sw || v.aggregation() {
			continue
		}
		places[v] = v.seat()
		times[places[v]]++
	}
	hosts := map[string]topo.HostID{}
	for _, v := range n.order {
		at, ok := places[v]
		if !ok {
			continue
		}
		if times[at] > 1 { // the same words for several: each is a host of its own
			v.needGUID()
			at.host = fmt.Sprintf("%s-%x", at.host, v.guid)
		}
		host, ok := hosts[at.host]
		if !ok {
			host = b.Host(topo.Host{Name: at.host, Pod: topo.None, Rack: topo.None})
			hosts[at.host] = host
		}
		part := topo.Part(topo.NIC, host, at.nic)
		part.Fabric, part.Ports = fabric, uint16(v.ports)
		v.node = b.Node(part)
		b.Attr(v.node, n.said(v, at.host+" "+at.nic))
		for _, p := range sortedPorts(v) {
			b.Attr(v.node, v.port[p].said(p, v.guid))
		}
	}
	return hosts
}

// ibSeat is the host and the NIC that an adapter's description makes of it.
type ibSeat struct{ host, nic string }

// seat reads an adapter's description. One that the driver wrote and nobody changed names no host; then the GUIDs do.
func (v *ibNode) seat() ibSeat {
	if isGeneric(v.desc) {
		v.needGUID()
		image := cmp.Or(v.attrs["ib.sysimgguid"], fmt.Sprintf("0x%x", v.guid))
		return ibSeat{"host-" + strings.TrimPrefix(image, "0x"), fmt.Sprintf("nic-%x", v.guid)}
	}
	words := strings.Fields(v.desc)
	if len(words) == 1 {
		return ibSeat{hostName(words[0]), "nic0"}
	}
	return ibSeat{hostName(words[0]), hostName(strings.Join(words[1:], "-"))}
}

// said keeps what a file says of an adapter's port, so that it can be written again. Usually a port's GUID is the node's
// plus its number, and says nothing new.
func (p *ibPort) said(number int, node uint64) topo.Attrs {
	own, key := topo.Attrs{}, fmt.Sprintf("ib.p%d.", number)
	if p.guid != 0 && p.guid != node+uint64(number) {
		own[key+"guid"] = fmt.Sprintf("0x%x", p.guid)
	}
	if p.lid != "" {
		own[key+"lid"] = p.lid
	}
	if p.lmc != "" {
		own[key+"lmc"] = p.lmc
	}
	return own
}

// needGUID gives a node without a GUID one, since its name depends on it.
func (v *ibNode) needGUID() {
	if v.guid == 0 {
		v.guid = inventGUID(v.id)
	}
}

// said gives a node's attributes: those of the file, its GUID unless it was invented here, its description unless the name says the same.
func (n *ibNet) said(v *ibNode, plain string) topo.Attrs {
	if v.guid != 0 && v.guid != inventGUID(plain) {
		v.attrs["ib.guid"] = fmt.Sprintf("0x%016x", v.guid)
	}
	if v.desc != plain {
		v.attrs["ib.desc"] = v.desc
	}
	return v.attrs
}

// boardName takes a switch's name apart into its own, with the board's place in a director, and a model of the catalogue.
func boardName(desc string) (name, model string) {
	_, rest, _ := strings.Cut(desc, ";")
	own, board, ok := strings.Cut(rest, ":")
	if !ok {
		return desc, ""
	}
	name = own
	places := strings.Split(board, "/")
	if len(places) > 2 {
		name += "/" + strings.Join(places[1:len(places)-1], "/")
	}
	if last := places[len(places)-1]; len(places) > 1 && last != "U1" {
		name += "/" + last
	}
	if m := strings.TrimPrefix(places[0], "M"); m != places[0] {
		if _, err := known().Switch(m); err == nil {
			model = m
		}
	}
	return name, model
}

// switches adds the switches. "MF0;leaf3:MQM8700/U1" is leaf3, a QM8700; a part
// of a director, ".../L01/U1", keeps its place in the name.
func (n *ibNet) switches(b *topo.Builder, fabric int8, hosts map[string]topo.HostID) {
	names, times := map[*ibNode]string{}, map[string]int{}
	models := map[*ibNode]string{}
	for _, v := range n.order {
		if !v.sw {
			continue
		}
		var name string
		name, models[v] = boardName(v.desc)
		if isGeneric(v.desc) {
			v.needGUID()
			name = fmt.Sprintf("switch-%x", v.guid)
		}
		names[v] = hostName(name)
		times[names[v]]++
	}
	for _, v := range n.order {
		if !v.sw {
			continue
		}
		name := names[v]
		if _, taken := hosts[name]; times[name] > 1 || taken {
			v.needGUID()
			name = fmt.Sprintf("%s-%x", name, v.guid)
		}
		part := topo.Part(topo.Switch, topo.None, name)
		part.Fabric, part.Ports, part.Model = fabric, uint16(v.ports), models[v]
		v.node = b.Node(part)
		b.Attr(v.node, n.said(v, name))
	}
}

// cable adds the link at a node's port, once for both ends.
func (n *ibNet) cable(b *topo.Builder, v *ibNode, port int) error {
	p := v.port[port]
	peer := n.nodes[p.peer]
	switch {
	case v.aggregation():
		return nil // said by the switch
	case peer.aggregation():
		if v.sw { // nothing else has one
			b.Attr(v.node, topo.Attrs{fmt.Sprintf("ib.an%d", port): anSaid(peer, p)})
		}
		return nil
	case peer == v:
		return errorAt(n.dialect, p.line, "port %d of %s leads back to itself", port, v.name())
	}
	back, ok := peer.port[p.peerPort]
	if ok && (back.peer != v.id || back.peerPort != port) {
		return errorAt(n.dialect, p.line, "port %d of %s leads to port %d of %s, but that leads to port %d of %s (line %d)",
			port, v.name(), p.peerPort, peer.name(), back.peerPort, clip(back.peer), back.line)
	}
	if ok && (peer.node < v.node) {
		return nil // added from the other end
	}
	b.At(peer.node).Ports = max(b.At(peer.node).Ports, uint16(p.peerPort))
	class, _ := ibClass(p.width, p.speed)
	link := b.Link(topo.Link{A: v.node, B: peer.node, APort: uint16(port), BPort: uint16(p.peerPort), Class: b.Class(class)})
	more := topo.Attrs{}
	v.sayMore(more, p)
	peer.sayMore(more, back)
	b.Wire(link, more)
	return nil
}

// sayMore keeps what a line, if there is one, says of a node's port behind width and speed. Without a GUID nothing would
// tell which end it is about.
func (v *ibNode) sayMore(to topo.Attrs, p *ibPort) {
	if p != nil && p.more != "" && v.guid != 0 {
		to[fmt.Sprintf("ib.more.%x", v.guid)] = p.more
	}
}

// anSaid packs what is known of an aggregation node into an attribute of its switch; anRead unpacks it.
func anSaid(v *ibNode, p *ibPort) string {
	return strings.Join([]string{fmt.Sprintf("%016x", v.guid), strconv.Itoa(p.peerPort), fmt.Sprintf("%dx%s", p.width, p.speed), p.peerLID,
		v.attrs["ib.vendid"], v.attrs["ib.devid"], v.attrs["ib.sysimgguid"], p.more, v.desc}, ";")
}

// anRead reads back the engine for in-network reduction behind a switch port, which the graph keeps as one attribute.
func anRead(s string) (v *ibNode, p *ibPort, ok bool) {
	f := strings.SplitN(s, ";", 9)
	if len(f) < 9 {
		return nil, nil, false
	}
	v = &ibNode{attrs: topo.Attrs{}, port: map[int]*ibPort{}, desc: f[8], ports: 1}
	p = &ibPort{lid: f[3], peerLID: f[3], more: f[7]}
	v.guid, _ = parseGUID(f[0])
	p.peerPort, _ = strconv.Atoi(f[1])
	p.width, p.speed, ok = widthSpeed(f[2])
	for i, key := range []string{"ib.vendid", "ib.devid", "ib.sysimgguid"} {
		if f[4+i] != "" {
			v.attrs[key] = f[4+i]
		}
	}
	v.ports = max(v.ports, p.peerPort)
	return v, p, ok
}
