package format

import (
	"bufio"
	"fmt"
	"io"

	"github.com/weft-fabric/weft/model/topo"
)

// shapes are what kinds of node look like in a picture.
var shapes = map[topo.Kind]string{topo.GPU: "box", topo.CPU: "octagon", topo.RootPort: "point", topo.PCIeSwitch: "diamond",
	topo.NVSwitch: "hexagon", topo.NIC: "house", topo.Switch: "box3d"}

// encodeDOT writes an undirected graph for Graphviz: a cluster a host, switches
// of one tier side by side, and on each link its class and, where it is more
// than one, the number of physical links.
func encodeDOT(out io.Writer, g *topo.Graph) error {
	w := bufio.NewWriter(out)
	fmt.Fprintf(w, "graph %q {\n\trankdir=BT\n\tnode [fontname=\"sans-serif\"]\n", g.Name)
	node := func(indent string, n topo.NodeID) {
		v := &g.Nodes[n]
		fmt.Fprintf(w, "%sn%d [label=%q shape=%s]\n", indent, n, v.Name, shapes[v.Kind])
	}
	for h := range g.Hosts {
		host := &g.Hosts[h]
		fmt.Fprintf(w, "\tsubgraph cluster_%d {\n\t\tlabel=%q\n", h, host.Name)
		for i := range host.Count {
			node("\t\t", host.First+topo.NodeID(i))
		}
		w.WriteString("\t}\n")
	}
	tiers := map[[2]int][]topo.NodeID{}
	var keys [][2]int
	for i := range g.Nodes {
		n := &g.Nodes[i]
		if n.Host != topo.None {
			continue
		}
		node("\t", topo.NodeID(i))
		key := [2]int{int(n.Fabric), int(n.Tier)}
		if tiers[key] == nil {
			keys = append(keys, key)
		}
		tiers[key] = append(tiers[key], topo.NodeID(i))
	}
	for _, key := range keys { // in the nodes' order
		w.WriteString("\t{ rank=same;")
		for _, n := range tiers[key] {
			fmt.Fprintf(w, " n%d;", n)
		}
		w.WriteString(" }\n")
	}
	for i := range g.Links {
		l := &g.Links[i]
		label := g.Class(topo.LinkID(i)).Gen
		if l.Count > 1 {
			label = fmt.Sprintf("%d x %s", l.Count, label)
		}
		fmt.Fprintf(w, "\tn%d -- n%d [label=%q]\n", l.A, l.B, label)
	}
	w.WriteString("}\n")
	return w.Flush()
}
