package emit

import (
	"fmt"
	"strings"

	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/format"
)

// OpenSM writes the subnet manager's files, a folder for each InfiniBand fabric:
// routing up and down from stated roots where there are tiers, else by nue, partitions
// for tenants, a service level for each.
func OpenSM(p *network.Plan) []File {
	var out []File
	for f := range p.Graph.Fabrics {
		out = append(out, openSM(p, f)...)
	}
	return out
}

// openSM writes the subnet manager's files for one InfiniBand fabric; nil for any other. Without GUIDs in the inventory
// they are made from names, and the files say so.
func openSM(p *network.Plan, fabric int) []File {
	g := p.Graph
	roots, ib := smRoots(p, fabric)
	if !ib {
		return nil
	}
	tiered := g.Fabrics[fabric].Family == topo.Clos
	ports, invented := smPorts(p, fabric)
	dir := "opensm/" + g.Fabrics[fabric].Name + "/etc/opensm/"
	begin := func() *text {
		var t text
		t.head(p, "#")
		if invented {
			t.line("# The inventory has no GUIDs of some ports: those here are made from names, as weft topo export does.")
		}
		return &t
	}
	conf := begin()
	smEngine(conf, tiered)
	conf.line("cn_guid_file /etc/opensm/cn_guids.conf\npartition_config_file /etc/opensm/partitions.conf")
	conf.line("node_name_map_name /etc/opensm/ib-node-name-map")
	conf.line("sm_priority 14\nsweep_interval 10")
	if len(p.Intent.Partitions) > 0 {
		conf.line("qos TRUE\nqos_policy_file /etc/opensm/qos-policy.conf\nqos_max_vls 4\nqos_high_limit 255\nqos_vlarb_high 0:64,1:64\nqos_vlarb_low 0:64,1:128\nqos_sl2vl 0,1,2,3,0,1,2,3,0,1,2,3,0,1,2,15")
	}
	root := begin()
	for _, r := range roots {
		root.line("%s", r)
	}
	cn := begin()
	for _, x := range ports {
		cn.line("%s # %s %s", x.guid, x.host.Name, x.name)
	}
	names := begin()
	for i := range p.Switches {
		if s := &p.Switches[i]; int(g.Nodes[s.Node].Fabric) == fabric {
			names.line("0x%016x %q", nodeGUID(p, s.Node, ""), s.Name)
		}
	}
	part, qos := begin(), begin()
	partitions(p, ports, part, qos)
	out := []File{conf.file(dir+"opensm.conf", 0o644), cn.file(dir+"cn_guids.conf", 0o644),
		names.file(dir+"ib-node-name-map", 0o644),
		part.file(dir+"partitions.conf", 0o644)}
	if tiered {
		out = append(out, root.file(dir+"root_guids.conf", 0o644))
	}
	if len(p.Intent.Partitions) > 0 {
		out = append(out, qos.file(dir+"qos-policy.conf", 0o644))
	}
	return out
}

// smEngine writes how packets are routed.
func smEngine(conf *text, tiered bool) {
	if tiered {
		conf.line("routing_engine ftree,updn,no_fallback\nroot_guid_file /etc/opensm/root_guids.conf")
	} else {
		conf.line("# Without tiers, engines that count from roots let buffers wait in a circle, or lose hosts with a cable.")
		conf.line("# Nue does neither, on one virtual lane, so that senders need no service level of their own.")
		conf.line("routing_engine nue,no_fallback\nnue_max_num_vls 1")
	}
}

// smRoots are the GUIDs of the highest switches, which routing up and down counts from; ib says whether the fabric is InfiniBand.
func smRoots(p *network.Plan, fabric int) (roots []string, ib bool) {
	tiers := 0
	var all []*network.Switch
	for i := range p.Switches {
		s := &p.Switches[i]
		if int(p.Graph.Nodes[s.Node].Fabric) == fabric && s.IB {
			ib, tiers = true, max(tiers, s.Tier)
			all = append(all, s)
		}
	}
	for _, s := range all {
		if s.Tier == tiers {
			roots = append(roots, fmt.Sprintf("0x%016x", nodeGUID(p, s.Node, "")))
		}
	}
	return roots, ib
}

// smPort is a port of a host in an InfiniBand fabric.
type smPort struct {
	host *network.Host
	name string
	guid string
}

// smPorts also says whether GUIDs had to be made up.
func smPorts(p *network.Plan, fabric int) (ports []smPort, invented bool) {
	g := p.Graph
	for i := range p.Hosts {
		h := &p.Hosts[i]
		for j := range h.Interfaces {
			x := &h.Interfaces[j]
			if !x.IB || x.Node == network.None || int(g.Nodes[x.Node].Fabric) != fabric {
				continue
			}
			guid := x.GUID
			if guid == "" {
				invented = true
				guid = fmt.Sprintf("0x%016x", nodeGUID(p, x.Node, h.Name)+1) // the first port
			}
			ports = append(ports, smPort{h, x.Name, guid})
		}
	}
	return ports, invented
}

// defaultPartition writes the one that all ports are in. Tenants are apart only where it does not join them: their ports are
// limited members of it, and limited members do not hear one another.
func defaultPartition(p *network.Plan, ports []smPort, part *text) {
	tenant := map[string]bool{}
	for _, t := range p.Intent.Partitions {
		for _, h := range t.Hosts {
			tenant[h] = true
		}
	}
	if len(tenant) == 0 {
		part.line("Default=0x7fff, ipoib, mtu=5, defmember=full : ALL, ALL_SWITCHES=full, SELF=full ;")
		return
	}
	others := []string{"ALL", "ALL_SWITCHES=full", "SELF=full"}
	for _, x := range ports {
		if !tenant[x.host.Name] {
			others = append(others, x.guid+"=full")
		}
	}
	part.line("Default=0x7fff, ipoib, mtu=5, defmember=limited : %s ;", strings.Join(others, ", "))
}

// partitions writes who may talk to whom, and a service level for each partition.
func partitions(p *network.Plan, ports []smPort, part, qos *text) {
	defaultPartition(p, ports, part)
	qos.line("qos-ulps\n    default : 0")
	for i, t := range p.Intent.Partitions {
		member := map[string]string{} // a host to what its ports are in the partition
		for _, name := range t.Hosts {
			member[name] = ""
		}
		for _, name := range t.Limited {
			member[name] = "=limited"
		}
		var guids []string
		for _, x := range ports {
			if how, in := member[x.host.Name]; in {
				guids = append(guids, x.guid+how)
			}
		}
		part.line("%s=0x%04x, ipoib, mtu=5, sl=%d, defmember=full : %s ;", t.Name, t.PKey, 1+i%3, strings.Join(guids, ", "))
		qos.line("    any, pkey 0x%04x : %d", t.PKey, 1+i%3)
	}
	qos.line("end-qos-ulps")
}

// nodeGUID is a node's GUID: what the imported graph says, or a stand-in.
func nodeGUID(p *network.Plan, n topo.NodeID, host string) uint64 {
	var v uint64
	if s := p.Graph.Attrs[n]["ib.guid"]; s != "" {
		if _, err := fmt.Sscanf(strings.TrimPrefix(s, "0x"), "%x", &v); err == nil {
			return v
		}
	}
	name := p.Graph.Nodes[n].Name
	if host != "" {
		name = host + " " + name
	}
	return format.StandInGUID(name)
}
