// Package probe reads the machine it runs on: GPUs, the PCIe tree, NVLink,
// xGMI, NICs and NUMA nodes, and gives them as a topo.Graph of one host.
//
// PCIe, NUMA, NICs and AMD's xGMI come from /sys, so a copy of another
// machine's /sys can be read as well. NVLink is known only to NVIDIA's
// management library, which is opened at run time where there is one and only
// for this machine's own /sys.
//
// The /sys reader is our own and tolerant: one device with an unreadable file,
// which a hypervisor may well present, must not hide the others.
package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
)

// Found is a host as it was read.
type Found struct {
	Graph *topo.Graph
	Notes []string // what could not be read and why, what was left out
}

// Host reads the machine whose file system starts at root; "/" is this one.
// Root may also be a copy of /sys itself.
func Host(root, name string, c *catalog.Catalog) (*Found, error) {
	sys := filepath.Join(root, "sys")
	if !isDir(sys) {
		sys = root
	}
	if !isDir(filepath.Join(sys, "devices")) && !isDir(filepath.Join(sys, "bus")) {
		return nil, fmt.Errorf("no /sys under %q: it has neither devices/ nor bus/; give the folder that holds sys/, or / for this machine", root)
	}
	p := &prober{root: root, sys: sys, c: c, b: topo.NewBuilder(name), bridges: map[string]topo.NodeID{}}
	p.host = p.b.Host(topo.Host{Name: name, Pod: topo.None, Rack: topo.None})
	p.cpus()
	devices, err := p.devices()
	if err != nil {
		return nil, err
	}
	p.place(devices)
	p.xgmi()
	if filepath.Clean(root) == "/" {
		p.nvlinks()
	} else if p.nvidia {
		p.note("NVLink is not in /sys: it is read only on the machine itself; the links below are PCIe alone")
	}
	g, err := p.b.Graph()
	if err != nil {
		return nil, fmt.Errorf("what /sys says makes no host: %w", err)
	}
	return &Found{Graph: g, Notes: p.notes}, nil
}

type prober struct {
	root, sys string
	c         *catalog.Catalog
	b         *topo.Builder
	host      topo.HostID
	numa      map[int]topo.NodeID
	bridges   map[string]topo.NodeID // host bridges and switches by address
	gpus      []gpu
	counts    map[string]int
	nvidia    bool
	notes     []string
}

type gpu struct {
	device
	node topo.NodeID
}

func (p *prober) note(format string, args ...any) {
	p.notes = append(p.notes, fmt.Sprintf(format, args...))
}

func isDir(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}

func (p *prober) read(path ...string) string {
	data, err := os.ReadFile(filepath.Join(append([]string{p.sys}, path...)...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// next names the next node of a sort: gpu0, gpu1.
func (p *prober) next(sort string) string {
	if p.counts == nil {
		p.counts = map[string]int{}
	}
	p.counts[sort]++
	return fmt.Sprintf("%s%d", sort, p.counts[sort]-1)
}

// cpus adds a node for each NUMA node and joins them pairwise.
func (p *prober) cpus() {
	p.numa = map[int]topo.NodeID{}
	dirs, _ := filepath.Glob(filepath.Join(p.sys, "devices/system/node/node[0-9]*"))
	slices.SortFunc(dirs, topo.Natural)
	for _, d := range dirs {
		id, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(d), "node"))
		if err != nil {
			continue
		}
		cores := p.read("devices/system/node", filepath.Base(d), "cpulist")
		if cores == "" && p.read("devices/system/node", filepath.Base(d), "meminfo") != "" && len(dirs) > 1 {
			p.note("NUMA node %d has memory but no cores (GPU or CXL memory); left out", id)
			continue
		}
		p.addCPU(id, cores)
	}
	if len(p.numa) == 0 {
		p.addCPU(0, "")
	}
	gen := "upi2"
	if strings.Contains(p.cpuinfo(), "AuthenticAMD") {
		gen = "xgmi3-cpu"
	}
	ids := slices.Sorted(maps.Keys(p.numa))
	for i, a := range ids {
		for _, b := range ids[i+1:] {
			p.b.Link(topo.Link{A: p.numa[a], B: p.numa[b], Class: p.class(gen, topo.SMP, 0, 20*unit.GBps)})
		}
	}
}

func (p *prober) addCPU(id int, cores string) {
	n := p.b.Node(topo.Part(topo.CPU, p.host, fmt.Sprintf("cpu%d", id)))
	p.numa[id] = n
	if mask := cpuMask(cores); mask != "" {
		p.b.Attr(n, topo.Attrs{"cpu.numaid": strconv.Itoa(id), "cpu.affinity": mask})
	}
}

// cpuMask turns a list of cores like 0-3,8 into the words of 32 bits, highest
// first, that NCCL's topology files use.
func cpuMask(list string) string {
	var words []uint32
	for part := range strings.SplitSeq(list, ",") {
		low, high, ranged := strings.Cut(part, "-")
		a, err := strconv.Atoi(low)
		if err != nil {
			return ""
		}
		b := a
		if ranged {
			if b, err = strconv.Atoi(high); err != nil {
				return ""
			}
		}
		for i := a; i <= b && i < 1<<16; i++ {
			for len(words) <= i/32 {
				words = append(words, 0)
			}
			words[i/32] |= 1 << (i % 32)
		}
	}
	var text []string
	for _, w := range slices.Backward(words) {
		text = append(text, fmt.Sprintf("%08x", w))
	}
	return strings.Join(text, ",")
}

func (p *prober) cpuinfo() string {
	f, err := os.Open(filepath.Join(p.root, "proc/cpuinfo"))
	if err != nil {
		return ""
	}
	defer f.Close()
	buf := make([]byte, 4096)
	n, _ := f.Read(buf)
	return string(buf[:n])
}

// class takes a generation from the catalogue, or a plain one of the given rate.
func (p *prober) class(gen string, kind topo.LinkKind, lanes int, rate unit.Rate) topo.ClassID {
	if l, err := p.c.Link(gen); err == nil {
		return p.b.Class(l.Class(lanes))
	}
	return p.b.Class(topo.Class{Kind: kind, Gen: gen, Lanes: uint16(max(lanes, 1)), Rate: rate, Latency: 500 * unit.Nanosecond})
}

// place adds host bridges, switches, GPUs and NICs in the order of their addresses.
func (p *prober) place(devices []device) {
	for _, d := range devices {
		switch {
		case d.isGPU():
			n := topo.Part(topo.GPU, p.host, p.next("gpu"))
			n.Model = models[fmt.Sprintf("%04x:%04x", d.vendor, d.id)]
			id := p.b.Node(n)
			p.gpus = append(p.gpus, gpu{d, id})
			p.nvidia = p.nvidia || d.vendor == nvidiaVendor
			p.b.Attr(id, d.attrs())
			p.join(id, d)
		case d.isNIC():
			id := p.b.Node(topo.Part(topo.NIC, p.host, p.next("nic")))
			p.b.Attr(id, d.attrs())
			p.b.Attr(id, p.ports(d))
			p.join(id, d)
		}
	}
	if len(p.gpus) == 0 {
		p.note("no GPU among %d PCI devices", len(devices))
	}
}

// join links a device to the switch or host bridge above it, adding what is missing.
func (p *prober) join(n topo.NodeID, d device) {
	parent := p.bridge(d)
	p.b.Link(topo.Link{A: n, B: parent, Class: p.pcie(d)})
}

// bridge gives the node above a device: the innermost PCIe switch, else the host bridge.
func (p *prober) bridge(d device) topo.NodeID {
	root, ok := p.bridges[d.root]
	if !ok {
		root = p.b.Node(topo.Part(topo.RootPort, p.host, p.next("root")))
		p.bridges[d.root] = root
		p.b.Attr(root, topo.Attrs{"pci.bridge": strings.TrimPrefix(d.root, "pci")})
		cpu, known := p.numa[d.numa]
		if !known {
			cpu = p.numa[slices.Min(keys(p.numa))]
			if len(p.numa) > 1 {
				p.note("%s says NUMA node %d, which does not exist; taken to be at the first", d.addr, d.numa)
			}
		}
		p.b.Link(topo.Link{A: root, B: cpu, Class: p.class("iomesh", topo.SMP, 0, 128*unit.GBps)})
	}
	above := root
	for _, up := range d.switches {
		n, ok := p.bridges[up.addr]
		if !ok {
			n = p.b.Node(topo.Part(topo.PCIeSwitch, p.host, p.next("pex")))
			p.bridges[up.addr] = n
			p.b.Attr(n, up.attrs())
			p.b.Link(topo.Link{A: n, B: above, Class: p.pcie(up)})
		}
		above = n
	}
	return above
}

func keys[K comparable, V any](m map[K]V) []K {
	var out []K
	for k := range m {
		out = append(out, k)
	}
	return out
}

// pcie gives the class of the link above a device.
func (p *prober) pcie(d device) topo.ClassID {
	gen, lanes := d.generation(), d.width
	if gen == "" || lanes == 0 { // virtual devices say nothing, or "Unknown"
		gen, lanes = "pcie3", 16
		p.note("%s does not say its PCIe speed (a virtual machine?); counted as PCIe 3 x16", d.addr)
	}
	return p.class(gen, topo.PCIe, lanes, unit.Rate(lanes)*unit.GBps/4)
}

// ports says what the network side of a NIC is: interface, RDMA device, speed, state.
func (p *prober) ports(d device) topo.Attrs {
	a := topo.Attrs{}
	for _, class := range []string{"infiniband", "net"} {
		names, err := os.ReadDir(filepath.Join(d.dir, class))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			p.note("%s: %v", d.addr, err)
		}
		if below, _ := filepath.Glob(filepath.Join(d.dir, "virtio*", class)); len(names) == 0 && len(below) == 1 {
			names, _ = os.ReadDir(below[0]) // a paravirtual card has its interface one folder down
		}
		for _, n := range names {
			switch class {
			case "infiniband":
				p.rdmaPort(a, n.Name())
			case "net":
				p.netPort(a, n.Name())
			}
		}
	}
	return a
}

// rdmaPort adds what the first port of an RDMA device says. Its rate has the unit behind it: "400 Gb/sec (4X NDR)".
func (p *prober) rdmaPort(a topo.Attrs, name string) {
	a["smi.device"] = name
	base := filepath.Join("class/infiniband", name, "ports/1")
	for file, key := range map[string]string{"rate": "port.rate", "state": "port.state", "link_layer": "port.layer"} {
		if v := p.read(base, file); v != "" {
			a[key] = v
		}
	}
	if gbps, _, ok := strings.Cut(a["port.rate"], " "); ok {
		if v, err := strconv.ParseFloat(gbps, 64); err == nil {
			a["net.name"], a["net.speed"] = name, strconv.Itoa(int(v*1000))
		}
	}
}

func (p *prober) netPort(a topo.Attrs, name string) {
	if a["smi.device"] == "" {
		a["smi.device"] = name
	}
	a["port.interface"] = name
	if mbps, err := strconv.Atoi(p.read("class/net", name, "speed")); err == nil && mbps > 0 {
		a["port.mbps"] = strconv.Itoa(mbps)
	}
}
