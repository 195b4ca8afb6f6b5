package format

import (
	"bytes"
	"cmp"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// Limits of a topology file. A host of eight GPUs takes some 70 elements and a
// rack of 72 some 2,500; a PCIe tree is at most some eight bridges deep.
const (
	maxElements = 1 << 14
	maxCPUs     = 1 << 9
	maxDepth    = 64
)

// element is a tag of a topology file.
type element struct {
	name  string
	attrs topo.Attrs
	subs  []*element
	line  int
	at    int // place in the file, counted over all elements
}

// detectNCCL looks for <system> as the first element, among the first hundred tokens.
func detectNCCL(head []byte) bool {
	d := xml.NewDecoder(bytes.NewReader(head))
	d.CharsetReader = asIs
	for range 100 {
		token, err := d.Token()
		if err != nil {
			return false
		}
		if start, ok := token.(xml.StartElement); ok {
			return start.Name.Local == "system"
		}
	}
	return false
}

func asIs(_ string, r io.Reader) (io.Reader, error) { return r, nil }

// readElements reads the XML into a tree with line numbers. Number and depth are limited; namespaces and attributes
// that come twice are errors.
func readElements(data []byte) (*element, error) {
	d := xml.NewDecoder(bytes.NewReader(data))
	d.CharsetReader = asIs
	var stack []*element
	var root *element
	count := 0
	for {
		token, err := d.Token()
		line, _ := d.InputPos()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, errorAt("nccl-xml", line, "%s; expected NCCL topology XML, <system> with <cpu> and <pci> inside", clip(err.Error()))
		}
		switch t := token.(type) {
		case xml.StartElement:
			if count++; count > maxElements {
				return nil, errorAt("nccl-xml", line, "more than %d elements", maxElements)
			}
			if len(stack) >= maxDepth {
				return nil, errorAt("nccl-xml", line, "elements nested more than %d deep", maxDepth)
			}
			e := &element{name: t.Name.Local, attrs: topo.Attrs{}, line: line, at: count}
			if t.Name.Space != "" {
				return nil, errorAt("nccl-xml", line, "<%s> is in a namespace; NCCL's elements are in none", clip(t.Name.Local))
			}
			for _, a := range t.Attr {
				if a.Name.Space != "" {
					return nil, errorAt("nccl-xml", line, "attribute %s is in a namespace; NCCL's attributes are in none", clip(a.Name.Local))
				}
				if _, twice := e.attrs[a.Name.Local]; twice {
					return nil, errorAt("nccl-xml", line, "attribute %s appears twice in <%s>", clip(a.Name.Local), clip(e.name))
				}
				e.attrs[a.Name.Local] = a.Value
			}
			switch {
			case len(stack) > 0:
				up := stack[len(stack)-1]
				up.subs = append(up.subs, e)
			case root != nil:
				return nil, errorAt("nccl-xml", line, "a second <%s> after the end of <%s>", clip(e.name), root.name)
			case e.name != "system":
				return nil, errorAt("nccl-xml", line, "found <%s>; expected <system>", clip(e.name))
			default:
				root = e
			}
			stack = append(stack, e)
		case xml.EndElement:
			stack = stack[:len(stack)-1]
		case xml.CharData:
			if text := bytes.TrimSpace(t); len(text) > 0 {
				return nil, errorAt("nccl-xml", line, "found text %q; expected elements only", clip(string(text)))
			}
		}
	}
	if root == nil {
		return nil, errorAt("nccl-xml", 1, "no element found; expected <system>")
	}
	return root, nil
}

// ncclReader turns elements into a graph.
type ncclReader struct {
	b       *topo.Builder
	hosts   map[string]topo.HostID // by host_hash
	gpus    []ncclDevice
	nics    []ncclDevice
	unknown []ncclDevice // leaves that state no class
	pex     map[topo.HostID]int
	cpus    []topo.NodeID
	said    []topo.Attrs           // what the file says of each CPU
	nvs     map[uint64]topo.NodeID // NVSwitches that stand in the PCIe tree, by bus id
	lines   map[ncclAddress]int    // where a function's element is
}

// ncclAddress is a PCI function of a host.
type ncclAddress struct {
	host topo.HostID
	id   uint64
}

// ncclDevice is a device whose name depends on the devices that follow in the file.
type ncclDevice struct {
	node  topo.NodeID
	cpu   topo.NodeID
	host  topo.HostID
	busid uint64
	text  string // the bus id as written, in lower case
	dev   string
	el    *element // the <gpu> of a GPU, else nil
	at    int
}

// countHosts counts the hosts that the CPUs of a system are in. Files of several hosts say by a hash which one it is.
func countHosts(system *element) (int, error) {
	hashes := map[string]bool{}
	for _, e := range system.subs {
		if e.name != "cpu" {
			return 0, errorAt("nccl-xml", e.line, "found <%s> in <system>; expected <cpu>", clip(e.name))
		}
		hashes[e.attrs["host_hash"]] = true
	}
	if len(system.subs) == 0 {
		return 0, errorAt("nccl-xml", system.line, "<system> holds no <cpu>")
	}
	if len(system.subs) > maxCPUs {
		return 0, errorAt("nccl-xml", system.subs[maxCPUs].line, "more than %d <cpu>", maxCPUs)
	}
	return len(hashes), nil
}

// decodeNCCL reads a topology file. CPUs, PCIe switches, GPUs and NICs become
// nodes; all that an element says is kept in attributes ("pci.class", "gpu.sm",
// "net.guid"), with its place in the file, so that encoding gives it back. Files
// made by hand for clouds name only PCI functions, and NCCL finds out at run
// time what they are; here the class says it: 0x03 and 0x12 are GPUs, 0x02 and
// 0x0c06 NICs, anything with functions below it a switch. Where not even a class
// is given, functions listed under a CPU in rising bus order are GPUs, and those
// after the first step backwards NICs, which is how such files are written.
//
// As NCCL and NVML number them, GPUs are gpu0, gpu1, ... by "dev" where it is
// given and by bus id elsewhere, NICs likewise; switches come in file order.
func decodeNCCL(name string, data []byte) (*topo.Graph, error) {
	root, err := readElements(data)
	if err != nil {
		return nil, err
	}
	r := &ncclReader{b: topo.NewBuilder(name), hosts: map[string]topo.HostID{}, pex: map[topo.HostID]int{}, nvs: map[uint64]topo.NodeID{},
		lines: map[ncclAddress]int{}}
	hosts, err := countHosts(root)
	if err != nil {
		return nil, err
	}
	for _, e := range root.subs {
		hash := e.attrs["host_hash"]
		host, ok := r.hosts[hash]
		if !ok {
			h := topo.Host{Name: hostName(name), Pod: topo.None, Rack: topo.None}
			if hosts > 1 {
				h.Name = fmt.Sprintf("%s-%d", h.Name, len(r.hosts))
			}
			host = r.b.Host(h)
			r.hosts[hash] = host
		}
		if err := r.cpu(e, host, root); err != nil {
			return nil, err
		}
	}
	r.settle()
	r.nameCPUs()
	r.number(r.gpus, "gpu")
	r.number(r.nics, "nic")
	r.sockets()
	if err := r.accelerators(); err != nil {
		return nil, err
	}
	return finish("nccl-xml", r.b)
}

// prefixed gives an element's attributes under their element's name.
func prefixed(e *element, into topo.Attrs) topo.Attrs {
	if into == nil {
		into = topo.Attrs{}
	}
	for k, v := range e.attrs {
		into[e.name+"."+k] = v
	}
	return into
}

func (r *ncclReader) cpu(e *element, host topo.HostID, root *element) error {
	attrs := prefixed(e, topo.Attrs{"nccl.at": strconv.Itoa(e.at)})
	if len(r.cpus) == 0 {
		prefixed(root, attrs)
	}
	cpu := r.b.Node(topo.Part(topo.CPU, host, fmt.Sprintf("cpu%d", len(r.cpus))))
	r.cpus, r.said = append(r.cpus, cpu), append(r.said, attrs)
	r.b.Attr(cpu, attrs)
	for _, sub := range e.subs {
		var err error
		switch sub.name {
		case "pci":
			err = r.pci(sub, cpu, cpu, host)
		case "nic":
			err = r.nic(nil, sub, cpu, cpu, host)
		default:
			err = errorAt("nccl-xml", sub.line, "found <%s> in <cpu>; expected <pci> or <nic>", clip(sub.name))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// function says what a PCI class is: a node's kind, or zero if the class says nothing.
func function(class string) topo.Kind {
	class = strings.ToLower(class)
	for _, c := range []struct {
		prefix string
		kind   topo.Kind
	}{
		{"0x0604", topo.PCIeSwitch}, {"0x0680", topo.NVSwitch}, {"0x03", topo.GPU}, {"0x12", topo.GPU}, {"0x02", topo.NIC}, {"0x0c06", topo.NIC},
		{"0x0801", topo.PCIeSwitch},
	} {
		if strings.HasPrefix(class, c.prefix) {
			return c.kind
		}
	}
	if class == "" {
		return 0
	}
	return topo.PCIeSwitch // as NCCL takes every other class
}

// busID reads a bus id as NCCL does: its hexadecimal digits, whatever stands between them.
func busID(s string) (uint64, bool) {
	digits := strings.Map(func(c rune) rune {
		if c == ':' || c == '.' || c == '-' {
			return -1
		}
		return c
	}, s)
	v, err := strconv.ParseUint(digits, 16, 64)
	return v, err == nil
}

func (r *ncclReader) pci(e *element, parent, cpu topo.NodeID, host topo.HostID) error {
	busid := strings.ToLower(e.attrs["busid"])
	id, ok := busID(busid)
	if !ok {
		return errorAt("nccl-xml", e.line, "<pci> has busid %q; expected one like 0000:3b:00.0", clip(e.attrs["busid"]))
	}
	at := ncclAddress{host, id}
	if first, twice := r.lines[at]; twice {
		return errorAt("nccl-xml", e.line, "<pci> has busid %q, which is in line %d already; a host has a bus id once",
			clip(e.attrs["busid"]), first)
	}
	r.lines[at] = e.line
	var gpus, nics, below, rest []*element
	for _, sub := range e.subs {
		switch sub.name {
		case "gpu":
			gpus = append(gpus, sub)
		case "nic":
			nics = append(nics, sub)
		case "pci":
			below = append(below, sub)
		default: // pcilink, and what later versions add
			rest = append(rest, sub)
		}
	}
	if len(below) > 0 && len(gpus)+len(nics) > 0 {
		return errorAt("nccl-xml", e.line, "<pci> %s holds a device and other functions; expected either", busid)
	}
	attrs := prefixed(e, topo.Attrs{"nccl.at": strconv.Itoa(e.at)})
	for _, sub := range rest {
		attrs[fmt.Sprintf("nccl.below.%d", sub.at)] = serialize([]*element{sub})
	}
	width, _ := strconv.Atoi(e.attrs["link_width"])
	class := r.b.Class(pcie(e.attrs["link_speed"], width))
	dev := ncclDevice{cpu: cpu, host: host, busid: id, text: busid, at: e.at}
	kind := function(e.attrs["class"])
	switch {
	case len(gpus)+len(nics) > 0:
		for _, sub := range gpus {
			dev.node = r.device(topo.GPU, host, parent, class, attrs)
			r.gpu(dev, sub)
		}
		for _, sub := range nics {
			if err := r.nic(e, sub, parent, cpu, host); err != nil {
				return err
			}
		}
	case len(below) > 0 || kind == topo.PCIeSwitch:
		node := r.device(topo.PCIeSwitch, host, parent, class, attrs)
		r.b.At(node).Name = fmt.Sprintf("pex%d", r.pex[host])
		r.pex[host]++
		for _, sub := range below {
			if err := r.pci(sub, node, cpu, host); err != nil {
				return err
			}
		}
	case kind == topo.GPU:
		dev.node = r.device(kind, host, parent, class, attrs)
		r.gpus = append(r.gpus, dev)
	case kind == topo.NIC:
		dev.node = r.device(kind, host, parent, class, attrs)
		r.nics = append(r.nics, dev)
	case kind == topo.NVSwitch:
		node := r.device(kind, host, parent, class, attrs)
		r.b.At(node).Name = "nvs-" + hostName(strings.ReplaceAll(busid, ":", "."))
		r.nvs[id] = node
	default:
		dev.node = r.device(topo.GPU, host, parent, class, attrs)
		r.unknown = append(r.unknown, dev)
	}
	return nil
}

// gpu takes a <gpu> of the device that was made for it.
func (r *ncclReader) gpu(dev ncclDevice, sub *element) {
	dev.el, dev.dev, dev.at = sub, sub.attrs["dev"], sub.at
	own := prefixed(sub, topo.Attrs{"nccl.sub": strconv.Itoa(sub.at)})
	if len(sub.subs) > 0 {
		own["nccl.below"] = serialize(sub.subs)
	}
	r.b.Attr(dev.node, own)
	r.gpus = append(r.gpus, dev)
}

// pciModels are catalogue keys of accelerators by PCI vendor and device (the PCI ID repository, pci.ids).
var pciModels = map[string]string{
	"0x10de 0x15f9": "P100-SXM", "0x10de 0x1db1": "V100-SXM-16GB", "0x10de 0x1db5": "V100-SXM", "0x10de 0x1db4": "V100-PCIe",
	"0x10de 0x20b0": "A100-SXM-40GB", "0x10de 0x20b2": "A100-SXM-80GB", "0x10de 0x20f1": "A100-PCIe", "0x10de 0x20b5": "A100-PCIe",
	"0x10de 0x2236": "A10", "0x10de 0x26b9": "L40S", "0x10de 0x2330": "H100-SXM", "0x10de 0x2331": "H100-PCIe", "0x10de 0x2335": "H200",
	"0x10de 0x2342": "GH200", "0x10de 0x2901": "B200", "0x10de 0x2941": "GB200", "0x10de 0x3182": "B300", "0x10de 0x31c2": "GB300",
	"0x1002 0x74a1": "MI300X",
}

func (r *ncclReader) device(kind topo.Kind, host topo.HostID, parent topo.NodeID, class topo.ClassID, attrs topo.Attrs) topo.NodeID {
	part := topo.Part(kind, host, "?")
	if kind == topo.GPU {
		part.Model = pciModels[strings.ToLower(attrs["pci.vendor"]+" "+attrs["pci.device"])]
	}
	node := r.b.Node(part)
	r.b.Link(topo.Link{A: parent, B: node, Class: class})
	r.b.Attr(node, attrs)
	return node
}

// nic adds the ports of a <nic>, which stands in a <pci> or, where NCCL found no PCI function, in a <cpu>.
func (r *ncclReader) nic(pci, e *element, parent, cpu topo.NodeID, host topo.HostID) error {
	dev := ncclDevice{cpu: cpu, host: host, busid: 1 << 63, at: e.at}
	attrs, class := topo.Attrs{"nccl.at": strconv.Itoa(e.at)}, r.b.Class(pcie("", 0))
	if pci != nil {
		attrs = prefixed(pci, topo.Attrs{"nccl.at": strconv.Itoa(pci.at)})
		width, _ := strconv.Atoi(pci.attrs["link_width"])
		class = r.b.Class(pcie(pci.attrs["link_speed"], width))
		dev.busid, _ = busID(pci.attrs["busid"])
	}
	prefixed(e, attrs)
	nets := e.subs
	if len(nets) == 0 {
		attrs["nccl.nic"] = strconv.Itoa(e.at)
		dev.node = r.device(topo.NIC, host, parent, class, attrs)
		r.nics = append(r.nics, dev)
	}
	for _, net := range nets {
		if net.name != "net" && net.name != "gin" {
			return errorAt("nccl-xml", net.line, "found <%s> in <nic>; expected <net>", clip(net.name))
		}
		if len(net.subs) > 0 {
			return errorAt("nccl-xml", net.subs[0].line, "found <%s> in <%s>; expected nothing inside", clip(net.subs[0].name), net.name)
		}
		own := prefixed(net, maps.Clone(attrs))
		own["nccl.nic"], own["nccl.sub"], own["nccl.tag"] = strconv.Itoa(e.at), strconv.Itoa(net.at), net.name
		dev.node, dev.dev, dev.at = r.device(topo.NIC, host, parent, class, own), net.attrs["dev"], net.at
		r.nics = append(r.nics, dev)
	}
	return nil
}

// settle decides what the functions without a class are; see decodeNCCL.
func (r *ncclReader) settle() {
	for i := 0; i < len(r.unknown); {
		j, falling := i, false
		for ; j < len(r.unknown) && r.unknown[j].cpu == r.unknown[i].cpu; j++ {
			dev := r.unknown[j]
			if falling = falling || j > i && dev.busid < r.unknown[j-1].busid; falling {
				r.b.At(dev.node).Kind = topo.NIC
				r.nics = append(r.nics, dev)
			} else {
				r.gpus = append(r.gpus, dev)
			}
		}
		i = j
	}
}

// number names the devices of each host in NCCL's order.
func (r *ncclReader) number(devices []ncclDevice, prefix string) {
	byHost := map[topo.HostID][]ncclDevice{}
	for _, d := range devices {
		byHost[d.host] = append(byHost[d.host], d)
	}
	for _, list := range byHost { // each host by itself, so their order does not matter
		given := map[int]bool{}
		for _, d := range list {
			if v, err := strconv.Atoi(d.dev); err == nil && v >= 0 && v < 1<<16 {
				given[v] = true
			}
		}
		if len(given) == len(list) {
			for _, d := range list {
				v, _ := strconv.Atoi(d.dev)
				r.b.At(d.node).Name = fmt.Sprintf("%s%d", prefix, v)
			}
			continue
		}
		slices.SortFunc(list, func(x, y ncclDevice) int { return cmp.Or(cmp.Compare(x.busid, y.busid), cmp.Compare(x.at, y.at)) })
		for i, d := range list {
			r.b.At(d.node).Name = fmt.Sprintf("%s%d", prefix, i)
		}
	}
}

// nameCPUs calls CPUs after their NUMA ids where these are usable.
func (r *ncclReader) nameCPUs() {
	names := map[string]bool{}
	wanted := make([]string, len(r.cpus))
	for i, c := range r.cpus {
		id, err := strconv.ParseInt(r.said[i]["cpu.numaid"], 0, 32)
		if err != nil || id < 0 {
			return
		}
		wanted[i] = fmt.Sprintf("cpu%d", id)
		key := fmt.Sprintf("%d %s", r.b.At(c).Host, wanted[i])
		if names[key] {
			return
		}
		names[key] = true
	}
	for i, c := range r.cpus {
		r.b.At(c).Name = wanted[i]
	}
}

// sockets joins the CPUs of a host to one another, as NCCL does.
func (r *ncclReader) sockets() {
	for i, a := range r.cpus {
		for _, c := range r.cpus[:i] {
			if r.b.At(a).Host == r.b.At(c).Host {
				r.b.Link(topo.Link{A: c, B: a, Class: r.b.Class(socket(r.said[i]))})
			}
		}
	}
}

// socket gives the link between sockets that goes with a CPU's family and model.
func socket(attrs topo.Attrs) topo.Class {
	number := func(key string) int64 {
		v, _ := strconv.ParseInt(attrs[key], 0, 32)
		return v
	}
	gen := "upi1"
	switch model, family := number("cpu.modelid"), number("cpu.familyid"); {
	case attrs["cpu.arch"] == "ppc64":
		gen = "xbus"
	case attrs["cpu.arch"] == "arm64":
		gen = "upi2"
	case attrs["cpu.vendor"] == "AuthenticAMD" && family >= 25:
		gen = "xgmi3-cpu"
	case attrs["cpu.vendor"] == "AuthenticAMD":
		gen = "xgmi2-cpu"
	case model >= 0x8f:
		gen = "upi2"
	case model > 0 && model < 0x55:
		gen = "qpi"
	}
	return class(gen, 0)
}

// accelerators adds the links that <nvlink>, <xgmi> and <c2c> stand for. A link
// between two GPUs is listed by both; where only one lists it, that is enough.
func (r *ncclReader) accelerators() error {
	w := &ncclWires{ncclReader: r, gpus: map[ncclAddress]int{}, switches: map[string]*fan{}, counts: map[ncclPair]uint64{}}
	for i, d := range r.gpus {
		w.gpus[ncclAddress{d.host, d.busid}] = i
	}
	fans := w.hang()
	for _, d := range r.gpus {
		sm, total := 0, uint64(0)
		if d.el != nil {
			sm, _ = strconv.Atoi(d.el.attrs["sm"])
		}
		for _, e := range subsOf(d.el) {
			if e.name == "nvlink" {
				n, _ := strconv.ParseUint(e.attrs["count"], 10, 16)
				total += n
			}
		}
		for _, e := range subsOf(d.el) {
			if e.name != "nvlink" && e.name != "xgmi" && e.name != "c2c" {
				continue
			}
			n, err := strconv.ParseUint(e.attrs["count"], 10, 16)
			if err != nil || n == 0 {
				return errorAt("nccl-xml", e.line, "<%s> has count %q; expected a number of links, 1 or more", e.name, clip(e.attrs["count"]))
			}
			if e.name == "c2c" {
				c := class("c2c", 0)
				if bw, err := strconv.ParseFloat(e.attrs["bw"], 64); err == nil && bw > 0 && bw < 1e9 {
					c.Rate = unit.Rate(bw*float64(n)) * 1e6 // NCCL counts MB/s a link
				}
				r.b.Link(topo.Link{A: d.cpu, B: d.node, Class: r.b.Class(c)})
				continue
			}
			c := nvlink(sm, int(total))
			if e.name == "xgmi" {
				c = class("xgmi3", 0)
			}
			if err := w.link(d, e, c, n); err != nil {
				return err
			}
		}
	}
	r.trunks(fans)
	return nil
}

// ncclWires finds what the links of accelerators lead to.
type ncclWires struct {
	*ncclReader
	gpus     map[ncclAddress]int
	switches map[string]*fan     // by target as written
	counts   map[ncclPair]uint64 // links between two GPUs that are added
}

type ncclPair struct {
	a, b topo.NodeID
	kind topo.LinkKind
}

// hang adds the NVSwitches that GPUs name as targets, but for those that stand in the PCIe tree already.
func (w *ncclWires) hang() []*fan {
	var targets []string
	for _, d := range w.ncclReader.gpus {
		for _, e := range subsOf(d.el) {
			if e.name == "nvlink" && strings.HasPrefix(e.attrs["tclass"], "0x068000") {
				targets = append(targets, e.attrs["target"])
			}
		}
	}
	slices.SortFunc(targets, func(x, y string) int {
		a, _ := busID(x)
		b, _ := busID(y)
		return cmp.Or(cmp.Compare(a, b), strings.Compare(x, y))
	})
	targets = slices.Compact(targets)
	byNode := map[topo.NodeID]*fan{}
	var fans []*fan
	for i, t := range targets {
		id, ok := busID(t)
		node := w.nvs[id]
		if !ok || node == 0 { // node 0 is a CPU
			host := topo.HostID(topo.None)
			if len(w.hosts) == 1 {
				host = 0
			}
			part := topo.Part(topo.NVSwitch, host, fmt.Sprintf("nvs%d", i))
			part.Tier = 1
			node = w.b.Node(part)
			w.b.Attr(node, topo.Attrs{"nvs.busid": t})
		}
		if byNode[node] == nil {
			byNode[node] = &fan{sw: node}
			fans = append(fans, byNode[node])
		}
		w.switches[t] = byNode[node]
	}
	return fans
}

// link adds n links of a GPU: to its CPU, to an NVSwitch, or to another GPU.
func (w *ncclWires) link(d ncclDevice, e *element, c topo.Class, n uint64) error {
	target, tclass := e.attrs["target"], strings.ToLower(e.attrs["tclass"])
	if strings.HasPrefix(tclass, "0x068001") {
		w.b.Link(topo.Link{A: d.cpu, B: d.node, Class: w.b.Class(c), Count: uint16(n)})
		return nil
	}
	if f, ok := w.switches[target]; ok && strings.HasPrefix(tclass, "0x068000") {
		w.b.Link(topo.Link{A: d.node, B: f.sw, Class: w.b.Class(c), Count: uint16(n)})
		f.gpus, f.links, f.class = append(f.gpus, d.node), f.links+int(n), c
		return nil
	}
	id, ok := busID(target)
	if !ok {
		return errorAt("nccl-xml", e.line, "<%s> has target %q; expected a bus id", e.name, clip(target))
	}
	at, ok := w.gpus[ncclAddress{d.host, id}]
	if !ok { // a file of a job that used some of a host's GPUs leaves the others out
		w.b.Attr(d.node, topo.Attrs{nowhere + target: strconv.FormatUint(n, 10)})
		return nil
	}
	other := w.ncclReader.gpus[at].node
	if other == d.node {
		return errorAt("nccl-xml", e.line, "<%s> of %s leads to itself", e.name, d.text)
	}
	p := ncclPair{min(d.node, other), max(d.node, other), c.Kind}
	before, listed := w.counts[p]
	if listed && before != n {
		return errorAt("nccl-xml", e.line, "%s lists %d links to %s, which lists %d", d.text, n, target, before)
	}
	if !listed {
		w.counts[p] = n
		w.b.Link(topo.Link{A: p.a, B: p.b, Class: w.b.Class(c), Count: uint16(n)})
	}
	return nil
}

// fan is what hangs on an NVSwitch.
type fan struct {
	sw    topo.NodeID
	gpus  []topo.NodeID
	links int
	class topo.Class
}

// trunks joins NVSwitches that have no GPU in common, such as those on the two
// boards of a DGX-2. The file does not tell of links between switches, and NCCL
// takes all switches for one; here the switches of each further board are joined
// one by one to those of the first, with as many links as the GPUs have.
func (r *ncclReader) trunks(fans []*fan) {
	board, boards := map[topo.NodeID]int{}, [][]*fan{} // of a GPU; the switches of each
	for _, f := range fans {
		at := len(boards)
		for _, g := range f.gpus {
			if b, ok := board[g]; ok {
				at = min(at, b)
			}
		}
		if at == len(boards) {
			boards = append(boards, nil)
		}
		boards[at] = append(boards[at], f)
		for _, g := range f.gpus {
			board[g] = at
		}
	}
	for i := 1; i < len(boards); i++ {
		for j := range min(len(boards[0]), len(boards[i])) {
			a, b := boards[0][j], boards[i][j]
			r.b.Link(topo.Link{A: a.sw, B: b.sw, Class: r.b.Class(a.class), Count: uint16(min(a.links, b.links, 1<<15))})
		}
	}
}

func subsOf(e *element) []*element {
	if e == nil {
		return nil
	}
	return e.subs
}
