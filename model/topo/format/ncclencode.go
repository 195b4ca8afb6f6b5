package format

import (
	"bufio"
	"cmp"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
)

// attrOrder is the order in which NCCL itself writes the attributes of an element; others follow by name.
var attrOrder = map[string][]string{
	"system": {"version"},
	"cpu":    {"host_hash", "numaid", "affinity", "arch", "vendor", "familyid", "modelid"},
	"pci":    {"busid", "class", "vendor", "device", "subsystem_vendor", "subsystem_device", "link_speed", "link_width"},
	"gpu":    {"dev", "sm", "mig", "gcn", "arch", "rank", "gdr"},
	"net":    {"name", "dev", "latency", "speed", "port", "guid", "maxconn", "gdr", "coll", "keep"},
	"nvlink": {"target", "count", "tclass"},
	"xgmi":   {"target", "count", "tclass"},
	"c2c":    {"bw", "count"},
}

// keys lists an element's attributes in that order.
func (e *element) keys() []string {
	order := attrOrder[e.name]
	rank := func(s string) int {
		if i := slices.Index(order, s); i >= 0 {
			return i
		}
		return len(order)
	}
	return slices.SortedFunc(maps.Keys(e.attrs), func(x, y string) int {
		return cmp.Or(cmp.Compare(rank(x), rank(y)), strings.Compare(x, y))
	})
}

// write prints an element and what it holds; a negative depth puts all on one line.
func (e *element) write(w *strings.Builder, depth int) {
	indent, end, next := "", "", -1
	if depth >= 0 {
		indent, end, next = strings.Repeat("  ", depth), "\n", depth+1
	}
	w.WriteString(indent + "<" + e.name)
	for _, k := range e.keys() {
		w.WriteString(" " + k + `="`)
		xml.EscapeText(w, []byte(e.attrs[k]))
		w.WriteString(`"`)
	}
	if len(e.subs) == 0 {
		w.WriteString("/>" + end)
		return
	}
	w.WriteString(">" + end)
	for _, sub := range e.subs {
		sub.write(w, next)
	}
	w.WriteString(indent + "</" + e.name + ">" + end)
}

func serialize(list []*element) string {
	var w strings.Builder
	for _, e := range list {
		e.write(&w, -1)
	}
	return w.String()
}

// ncclWriter turns a graph into elements.
type ncclWriter struct {
	g    *topo.Graph
	seen map[topo.NodeID]bool
	gpus map[topo.NodeID]int // index among the GPUs of the host
	nics map[topo.NodeID]int
	busy map[topo.NodeID]string // bus ids, invented where the graph has none
}

// encodeNCCL writes a topology file that NCCL reads with NCCL_TOPO_FILE. Bus ids
// that the graph does not know are invented: domain 0 for GPUs, 1 for NICs, 2
// for switches, 3 for NVSwitches, in each the buses by index, so that NCCL
// numbers devices as the graph does; a NIC whose rate is not known is written
// with 100 Gb/s. What NCCL fills in itself (CPU affinity
// and model, device numbers of the vendor) is left out.
func encodeNCCL(out io.Writer, g *topo.Graph) error {
	var hosts []topo.HostID
	hashed := len(g.Hosts) > 1
	for h := range g.Hosts {
		for _, c := range parts(g, topo.HostID(h), topo.CPU) {
			_, hash := g.Attrs[c]["cpu.host_hash"]
			_, read := g.Attrs[c]["nccl.at"]
			if !hash && !read { // a file that was read told its hosts apart, one of them perhaps by having no hash
				hashed = false
			}
		}
		hosts = append(hosts, topo.HostID(h))
	}
	if !hashed {
		h, err := one("nccl-xml", g)
		if err != nil {
			return err
		}
		hosts = []topo.HostID{h}
	}
	return writeNCCL(out, g, hosts)
}

// encodeNCCLHost writes one host of a cluster.
func encodeNCCLHost(out io.Writer, g *topo.Graph, h topo.HostID) error {
	return writeNCCL(out, g, []topo.HostID{h})
}

// writeNCCL writes NCCL's topology XML for hosts. Elements that were read keep their order and attributes; others get
// what NCCL would write.
func writeNCCL(out io.Writer, g *topo.Graph, hosts []topo.HostID) error {
	w := &ncclWriter{g: g, seen: map[topo.NodeID]bool{}, gpus: map[topo.NodeID]int{}, nics: map[topo.NodeID]int{},
		busy: map[topo.NodeID]string{}}
	root := &element{name: "system", attrs: topo.Attrs{}}
	for _, h := range hosts {
		w.invent(h)
		cpus := parts(g, h, topo.CPU)
		if len(cpus) == 0 {
			return fmt.Errorf("nccl-xml: host %q has no CPU, and NCCL's tree starts at CPUs", g.Hosts[h].Name)
		}
		for i, c := range cpus {
			maps.Copy(root.attrs, under(g.Attrs[c], "system."))
			e := &element{name: "cpu", attrs: under(g.Attrs[c], "cpu."), at: number(g.Attrs[c]["nccl.at"])}
			if _, read := g.Attrs[c]["nccl.at"]; !read {
				e.attrs["numaid"] = strconv.Itoa(i)
				if id, ok := strings.CutPrefix(g.Nodes[c].Name, "cpu"); ok && isNumber(id) {
					e.attrs["numaid"] = id
				}
			}
			w.below(e, c, topo.None)
			root.subs = append(root.subs, e)
		}
	}
	if len(root.attrs) == 0 && root.subs[0].at == 0 {
		root.attrs["version"] = "1"
	}
	slices.SortStableFunc(root.subs, func(x, y *element) int { return cmp.Compare(x.at, y.at) })
	var text strings.Builder
	root.write(&text, 0)
	b := bufio.NewWriter(out)
	b.WriteString(text.String())
	return b.Flush()
}

// under gives the attributes whose keys start with a prefix, without it.
func under(attrs topo.Attrs, prefix string) topo.Attrs {
	own := topo.Attrs{}
	for k, v := range attrs {
		if name, ok := strings.CutPrefix(k, prefix); ok {
			own[name] = v
		}
	}
	return own
}

func number(s string) int {
	v, _ := strconv.Atoi(s)
	return v
}

// invent gives every device of a host a bus id and its index.
func (w *ncclWriter) invent(h topo.HostID) {
	for domain, kind := range []topo.Kind{topo.GPU, topo.NIC, topo.PCIeSwitch, topo.NVSwitch} {
		for i, n := range parts(w.g, h, kind) {
			w.busy[n] = fmt.Sprintf("%04x:%02x:00.0", domain+i/255*16, 1+i%255)
			switch kind {
			case topo.GPU:
				w.gpus[n] = i
			case topo.NIC:
				w.nics[n] = i
			}
			if id := w.g.Attrs[n]["pci.busid"]; id != "" {
				w.busy[n] = id
			}
		}
	}
}

// element makes the element of a device. Where it was read from a file, it has the same attributes again, and the
// elements below it that are no devices; their order is settled later.
func (w *ncclWriter) element(d hung, at int) *element {
	attrs := w.g.Attrs[d.node]
	pci := &element{name: "pci", attrs: under(attrs, "pci."), at: at}
	if len(pci.attrs) == 0 && at == 0 {
		pci.attrs = w.function(d)
	}
	for k, v := range attrs {
		if at, ok := strings.CutPrefix(k, "nccl.below."); ok {
			for _, sub := range elements(v) {
				sub.at = number(at)
				pci.subs = append(pci.subs, sub)
			}
		}
	}
	if len(pci.attrs) == 0 { // a <nic> right under its <cpu>
		pci.name = "nic"
		pci.attrs = under(attrs, "nic.")
	}
	return pci
}

// below adds the elements of what hangs on a node, seen from its parent.
func (w *ncclWriter) below(e *element, n, parent topo.NodeID) {
	byAt := map[int]*element{}
	for _, d := range w.children(n, parent) {
		attrs := w.g.Attrs[d.node]
		at := number(attrs["nccl.at"])
		pci := byAt[at]
		if at == 0 || pci == nil {
			pci = w.element(d, at)
			byAt[at] = pci
			e.subs = append(e.subs, pci)
		}
		switch w.g.Nodes[d.node].Kind {
		case topo.GPU:
			w.gpu(pci, d.node)
		case topo.NIC:
			w.nic(pci, d.node)
		case topo.PCIeSwitch:
			w.below(pci, d.node, n)
		}
	}
	for _, pci := range byAt {
		slices.SortStableFunc(pci.subs, func(x, y *element) int { return cmp.Compare(x.at, y.at) })
	}
	slices.SortStableFunc(e.subs, func(x, y *element) int { return cmp.Compare(x.at, y.at) })
}

// hung is a device and the PCIe link it hangs on, None where it has none.
type hung struct {
	node topo.NodeID
	link topo.LinkID
}

// hangs reports whether a neighbour of a node is to be written among what hangs below it: part of the same host, not
// written yet, and no CPU, since CPUs stand side by side.
func (w *ncclWriter) hangs(peer, n, parent topo.NodeID) bool {
	p := &w.g.Nodes[peer]
	return peer != parent && !w.seen[peer] && p.Kind != topo.CPU && p.Host == w.g.Nodes[n].Host
}

// children lists the devices below a node in the order they are to be written;
// root ports are passed through, since NCCL does not know them.
func (w *ncclWriter) children(n, parent topo.NodeID) []hung {
	var list []hung
	for _, edge := range w.g.Edges(n) {
		kind, link := w.g.Nodes[edge.Peer].Kind, w.g.Class(edge.Link).Kind
		if !w.hangs(edge.Peer, n, parent) {
			continue
		}
		switch {
		case kind == topo.RootPort:
			w.seen[edge.Peer] = true
			list = append(list, w.children(edge.Peer, n)...)
		case link == topo.PCIe:
			w.seen[edge.Peer] = true
			list = append(list, hung{edge.Peer, edge.Link})
		case kind == topo.GPU && w.g.Nodes[n].Kind == topo.CPU && !w.onPCIe(edge.Peer):
			w.seen[edge.Peer] = true
			list = append(list, hung{edge.Peer, topo.None})
		}
	}
	order := func(h hung) (int, int) {
		a := w.g.Attrs[h.node]
		return number(a["nccl.at"]), number(a["nccl.sub"])
	}
	slices.SortStableFunc(list, func(x, y hung) int {
		xa, xs := order(x)
		ya, ys := order(y)
		return cmp.Or(cmp.Compare(xa, ya), cmp.Compare(xs, ys))
	})
	return list
}

func (w *ncclWriter) onPCIe(n topo.NodeID) bool {
	for _, e := range w.g.Edges(n) {
		if w.g.Class(e.Link).Kind == topo.PCIe {
			return true
		}
	}
	return false
}

// function describes a PCI function that the graph has no file's words for.
func (w *ncclWriter) function(d hung) topo.Attrs {
	attrs := topo.Attrs{"busid": w.busy[d.node], "link_speed": "", "link_width": "0"} // as NCCL writes what it cannot find out
	if d.link != topo.None {
		c := w.g.Class(d.link)
		attrs["link_speed"], attrs["link_width"] = pcieSpeed(c.Gen), strconv.Itoa(int(c.Lanes))
	}
	switch w.g.Nodes[d.node].Kind {
	case topo.GPU:
		attrs["class"], attrs["vendor"] = "0x030200", "0x10de"
		if w.amd(d.node) {
			attrs["class"], attrs["vendor"] = "0x120000", "0x1002"
		}
	case topo.NIC:
		attrs["class"] = "0x020000"
		if k := w.network(d.node).Kind; k != topo.Ethernet {
			attrs["class"] = "0x020700"
		}
	case topo.PCIeSwitch:
		attrs["class"] = "0x060400"
	case topo.NVSwitch:
		attrs["class"] = "0x068000"
	}
	return attrs
}

func (w *ncclWriter) amd(n topo.NodeID) bool {
	for _, e := range w.g.Edges(n) {
		if w.g.Class(e.Link).Kind == topo.XGMI {
			return true
		}
	}
	return false
}

// network gives the class of a NIC's port: of its link, or as the catalogue knows its model.
func (w *ncclWriter) network(n topo.NodeID) topo.Class {
	for _, e := range w.g.Edges(n) {
		if c := w.g.Class(e.Link); c.Kind.Network() {
			return *c
		}
	}
	if nic, err := known().NIC(w.g.Nodes[n].Model); err == nil {
		if l, err := known().Link(nic.Link); err == nil {
			return l.Class(0)
		}
	}
	return topo.Class{}
}

func (w *ncclWriter) gpu(pci *element, n topo.NodeID) {
	attrs := w.g.Attrs[n]
	own := under(attrs, "gpu.")
	if _, read := attrs["nccl.at"]; read {
		if _, has := attrs["nccl.sub"]; has {
			pci.subs = append(pci.subs, &element{name: "gpu", attrs: own, subs: elements(attrs["nccl.below"]), at: number(attrs["nccl.sub"])})
		}
		return
	}
	i := strconv.Itoa(w.gpus[n])
	e := &element{name: "gpu", attrs: topo.Attrs{"dev": i, "rank": i, "gdr": "1"}}
	if gpu, err := known().GPU(w.g.Nodes[n].Model); err == nil && gpu.Compute > 0 {
		e.attrs["sm"] = strconv.Itoa(gpu.Compute)
	}
	for _, edge := range w.g.Edges(n) {
		c, count := w.g.Class(edge.Link), strconv.Itoa(int(w.g.Links[edge.Link].Count))
		sub := &element{name: "nvlink", attrs: topo.Attrs{"count": count, "target": w.busy[edge.Peer]}}
		switch kind := w.g.Nodes[edge.Peer].Kind; {
		case c.Kind == topo.C2C:
			sub.name, sub.attrs = "c2c", topo.Attrs{"count": count, "bw": strconv.FormatFloat(float64(c.Rate)/1e6, 'f', 0, 64)}
		case c.Kind == topo.XGMI && kind == topo.GPU:
			sub.name, sub.attrs["tclass"] = "xgmi", "0x120000"
		case c.Kind != topo.NVLink:
			continue
		case kind == topo.CPU:
			sub.attrs["target"], sub.attrs["tclass"] = "ffff:ff:ff.0", "0x068001"
		case kind == topo.NVSwitch:
			sub.attrs["tclass"] = "0x068000"
			if sub.attrs["target"] == "" { // a switch outside the host: NCCL calls them all one
				sub.attrs["target"] = "fffffff:ffff:ff"
				if last := len(e.subs) - 1; last >= 0 && e.subs[last].attrs["target"] == sub.attrs["target"] {
					e.subs[last].attrs["count"] = strconv.Itoa(number(e.subs[last].attrs["count"]) + number(count))
					continue
				}
			}
		case kind == topo.GPU && sub.attrs["target"] != "":
			sub.attrs["tclass"] = "0x030200"
		default:
			continue
		}
		e.subs = append(e.subs, sub)
	}
	pci.subs = append(pci.subs, e)
}

func (w *ncclWriter) nic(pci *element, n topo.NodeID) {
	attrs := w.g.Attrs[n]
	if _, read := attrs["nccl.at"]; read {
		if attrs["nccl.nic"] == "" {
			return
		}
		nic := pci
		if pci.name != "nic" {
			nic = nil
			for _, sub := range pci.subs {
				if sub.name == "nic" && sub.at == number(attrs["nccl.nic"]) {
					nic = sub
				}
			}
			if nic == nil {
				nic = &element{name: "nic", attrs: under(attrs, "nic."), at: number(attrs["nccl.nic"])}
				pci.subs = append(pci.subs, nic)
			}
		}
		if tag := attrs["nccl.tag"]; tag != "" {
			nic.subs = append(nic.subs, &element{name: tag, attrs: under(attrs, tag+".")})
		}
		return
	}
	i := w.nics[n]
	speed := 100e3 // Mb/s
	if c := w.network(n); c.Rate > 0 {
		speed = float64(c.Rate.Bits()) / 1e6
	}
	net := &element{name: "net", attrs: topo.Attrs{
		"name": device(w.g, n, i), "dev": strconv.Itoa(i), "speed": strconv.FormatFloat(speed, 'f', 0, 64), "port": "1",
		"guid": fmt.Sprintf("0x%x", uint64(i)+1), "latency": "0.000000", "maxconn": "131072", "gdr": "1",
	}}
	maps.Copy(net.attrs, under(attrs, "net.")) // what a probe of the host found out
	pci.subs = append(pci.subs, &element{name: "nic", attrs: topo.Attrs{}, subs: []*element{net}})
}

// device gives the name by which the operating system knows a NIC, mlx5_0 and on where the graph does not say.
func device(g *topo.Graph, n topo.NodeID, i int) string {
	a := g.Attrs[n]
	name := fmt.Sprintf("mlx5_%d", i)
	if v := a["pci.vendor"]; v != "" && v != "0x15b3" {
		name = g.Nodes[n].Name // another maker's: a Mellanox name would be made up
	}
	return cmp.Or(a["smi.device"], a["net.name"], name)
}

// elements reads what serialize wrote.
func elements(s string) []*element {
	if s == "" {
		return nil
	}
	root, err := readElements([]byte("<system>" + s + "</system>"))
	if err != nil {
		return nil
	}
	return root.subs
}
