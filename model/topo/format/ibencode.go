package format

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
)

// encodeDiscover writes the classic form of ibnetdiscover. Nodes without a GUID
// get one derived from their name, always the same.
func encodeDiscover(w io.Writer, g *topo.Graph) error { return writeClassic(w, g, "ibnetdiscover") }

// encodeIbsim writes a net file for the simulator: NICs as channel adapters
// described as "HOST NIC", switches by their names, so that ibnetdiscover in the
// simulated fabric imports as the same graph. An Ethernet fabric is written as
// the InfiniBand of the same rate. Speeds are written as they are.
// Version 0.10 of the simulator (Debian 12) knows SDR to HDR and 0.12 also NDR:
// it loads a file with a faster port, warns, and by the options written for that
// runs the port at HDR.
// Descriptions end after 64 bytes in InfiniBand, and longer names are refused.
func encodeIbsim(w io.Writer, g *topo.Graph) error { return writeClassic(w, g, "ibsim") }

// simFallback are the simulator's options for a port whose speed it does not
// know: every speed to QDR (s) and every extended speed to HDR (e) enabled.
const simFallback = "s=7 e=7"

// ibName64 is the length of a NodeDescription.
const ibName64 = 64

// ibWriter writes records of nodes.
type ibWriter struct {
	*bufio.Writer
	g    *topo.Graph
	sim  bool
	guid []uint64
	desc []string
	told map[uint64]bool // aggregation nodes that have their record
}

// writeClassic writes the text of ibnetdiscover, or of ibsim. Only what has cables is written.
func writeClassic(out io.Writer, g *topo.Graph, dialect string) error {
	g = topo.Cabled(g)
	if len(g.Nodes) == 0 {
		return fmt.Errorf("%s describes a network and %q has neither switch nor linked NIC", dialect, g.Name)
	}
	w := &ibWriter{Writer: bufio.NewWriter(out), g: g, sim: dialect == "ibsim", guid: make([]uint64, len(g.Nodes)),
		desc: make([]string, len(g.Nodes)), told: map[uint64]bool{}}
	if err := w.identify(dialect); err != nil {
		return err
	}
	for _, kind := range []topo.Kind{topo.Switch, topo.NIC} {
		for i := range g.Nodes {
			if g.Nodes[i].Kind == kind {
				w.record(topo.NodeID(i))
			}
		}
	}
	return w.Flush()
}

// identify gives every node its GUID and description.
func (w *ibWriter) identify(dialect string) error {
	taken := map[uint64]string{}
	for i := range w.g.Nodes {
		n, attrs := &w.g.Nodes[i], w.g.Attrs[topo.NodeID(i)]
		plain := n.Name
		if n.Host != topo.None {
			plain = w.g.Hosts[n.Host].Name + " " + n.Name
		}
		w.desc[i] = plain
		if d, ok := attrs["ib.desc"]; ok {
			w.desc[i] = d
		}
		if len(w.desc[i]) > ibName64 && dialect == "ibsim" || strings.ContainsAny(w.desc[i], "\n\r") {
			return fmt.Errorf("%s: description %q of %s has %d bytes; InfiniBand allows %d, on one line",
				dialect, clip(w.desc[i]), w.g.NodeName(topo.NodeID(i)), len(w.desc[i]), ibName64)
		}
		guid, ok := parseGUID(attrs["ib.guid"])
		if !ok {
			guid = inventGUID(plain)
		}
		if other, twice := taken[guid]; twice {
			return fmt.Errorf("%s: %s and %s have the same GUID 0x%x; rename one", dialect, other, plain, guid)
		}
		taken[guid] = plain
		w.guid[i] = guid
		if n.Ports > maxIBPorts {
			return fmt.Errorf("%s: %s has %d ports; InfiniBand allows %d", dialect, plain, n.Ports, maxIBPorts)
		}
	}
	return nil
}

func (w *ibWriter) id(n topo.NodeID) string {
	if w.g.Nodes[n].Kind == topo.Switch {
		return fmt.Sprintf("S-%016x", w.guid[n])
	}
	return fmt.Sprintf("H-%016x", w.guid[n])
}

// numbers writes the lines before a record.
func (w *ibWriter) numbers(attrs topo.Attrs, key string, guid uint64) {
	fmt.Fprintf(w, "vendid=%s\ndevid=%s\nsysimgguid=%s\n", cmp.Or(attrs["ib.vendid"], "0x0"), cmp.Or(attrs["ib.devid"], "0x0"),
		cmp.Or(attrs["ib.sysimgguid"], fmt.Sprintf("0x%x", guid)))
	if key == "switchguid" {
		fmt.Fprintf(w, "switchguid=0x%x(%x)\n", guid, guid)
	} else {
		fmt.Fprintf(w, "caguid=0x%x\n", guid)
	}
}

// record writes a switch or NIC with its ports. What a decoder kept as attributes is written back, so that a round trip
// changes nothing.
func (w *ibWriter) record(n topo.NodeID) {
	node, attrs := &w.g.Nodes[n], w.g.Attrs[n]
	sw := node.Kind == topo.Switch
	if sw {
		w.numbers(attrs, "switchguid", w.guid[n])
		fmt.Fprintf(w, "Switch\t%d %q\t\t# \"%s\" %s port 0 lid %s lmc %s\n", node.Ports, w.id(n), w.desc[n], cmp.Or(attrs["ib.port0"], "base"),
			cmp.Or(attrs["ib.lid"], "0"), cmp.Or(attrs["ib.lmc"], "0"))
	} else {
		w.numbers(attrs, "caguid", w.guid[n])
		fmt.Fprintf(w, "Ca\t%d %q\t\t# \"%s\"\n", node.Ports, w.id(n), w.desc[n])
	}
	edges := slices.Clone(w.g.Edges(n))
	slices.SortFunc(edges, func(x, y topo.Edge) int { return cmp.Compare(w.port(n, x.Link), w.port(n, y.Link)) })
	for _, e := range edges {
		w.cable(n, e)
	}
	type engine struct {
		*ibNode
		*ibPort
		at int
	}
	var engines []engine
	for port := 1; sw && port <= int(node.Ports); port++ {
		if said := attrs[fmt.Sprintf("ib.an%d", port)]; said != "" {
			if an, p, ok := anRead(said); ok {
				fmt.Fprintf(w, "[%d]\t\"H-%016x\"[%d](%x) \t\t# \"%s\" lid %s %dx%s%s\n",
					port, an.guid, p.peerPort, an.guid, an.desc, cmp.Or(p.lid, "0"), p.width, p.speed, tail(p.more))
				engines = append(engines, engine{an, p, port})
			}
		}
	}
	w.WriteString("\n")
	for _, an := range engines {
		guid := an.ibNode.guid
		if w.told[guid] {
			continue
		}
		w.told[guid] = true
		w.numbers(an.attrs, "caguid", guid)
		fmt.Fprintf(w, "Ca\t%d \"H-%016x\"\t\t# \"%s\"\n", an.ports, guid, an.desc)
		fmt.Fprintf(w, "[%d](%x) \t%q[%d]\t\t# lid %s lmc 0 \"%s\" lid %s %dx%s\n\n",
			an.peerPort, guid, w.id(n), an.at, cmp.Or(an.lid, "0"), w.desc[n], cmp.Or(attrs["ib.lid"], "0"), an.width, an.speed)
	}
}

func tail(s string) string {
	if s == "" {
		return ""
	}
	return " " + s
}

func (w *ibWriter) port(n topo.NodeID, l topo.LinkID) uint16 {
	link := &w.g.Links[l]
	if link.A == n {
		return link.APort
	}
	return link.BPort
}

// cable writes the line of one port.
func (w *ibWriter) cable(n topo.NodeID, e topo.Edge) {
	mine, yours := w.port(n, e.Link), w.port(e.Peer, e.Link)
	width, speed := ibName(*w.g.Class(e.Link))
	more := w.g.Wires[e.Link][fmt.Sprintf("ib.more.%x", w.guid[n])]
	if w.sim && more == "" && (speed == "NDR" || speed == "XDR") {
		more = simFallback
	}
	peerLID := w.g.Attrs[e.Peer]["ib.lid"]
	if w.g.Nodes[e.Peer].Kind == topo.NIC {
		peerLID = w.g.Attrs[e.Peer][fmt.Sprintf("ib.p%d.lid", yours)]
	}
	fmt.Fprintf(w, "[%d]", mine)
	own := ""
	if w.g.Nodes[n].Kind == topo.NIC {
		a := w.g.Attrs[n]
		fmt.Fprintf(w, "(%s) ", w.portGUID(n, mine))
		own = fmt.Sprintf("lid %s lmc %s ", cmp.Or(a[fmt.Sprintf("ib.p%d.lid", mine)], "0"), cmp.Or(a[fmt.Sprintf("ib.p%d.lmc", mine)], "0"))
	}
	fmt.Fprintf(w, "\t%q[%d]", w.id(e.Peer), yours)
	if w.g.Nodes[e.Peer].Kind == topo.NIC {
		fmt.Fprintf(w, "(%s) ", w.portGUID(e.Peer, yours))
	}
	fmt.Fprintf(w, "\t\t# %s\"%s\" lid %s %dx%s%s\n", own, w.desc[e.Peer], cmp.Or(peerLID, "0"), width, speed, tail(more))
}

func (w *ibWriter) portGUID(n topo.NodeID, port uint16) string {
	if said := w.g.Attrs[n][fmt.Sprintf("ib.p%d.guid", port)]; said != "" {
		return strings.TrimPrefix(said, "0x")
	}
	return fmt.Sprintf("%x", w.guid[n]+uint64(port))
}
