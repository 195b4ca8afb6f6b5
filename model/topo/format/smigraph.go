package format

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/model/sets"
	"github.com/weft-fabric/weft/model/topo"
)

// decodeSMI rebuilds a host from its matrix. The spans nest, so they are a
// tree: devices at PIX share a switch, switches at PXB a switch above them, at
// PHB a root port, at NODE a CPU. Where NVLink hides how far two GPUs are apart
// over PCIe, other devices and the NUMA affinity tell, or else they are put
// apart. The graph's Connection of any two devices is the cell that was read;
// a matrix that no tree has is refused. Rates are not in the matrix: NVLink's
// generation is guessed from the number of links, PCIe's from that.
func decodeSMI(name string, data []byte) (*topo.Graph, error) {
	m, err := readSMI(data)
	if err != nil {
		return nil, err
	}
	spans, err := m.nest()
	if err != nil {
		return nil, err
	}
	return m.graph(name, spans)
}

// nest gives for each span up to NODE the sets of devices that are so near, and
// refuses a pair that is farther apart than the devices between them allow.
func (m *smiMatrix) nest() ([]sets.Sets[int], error) {
	n := len(m.devices)
	nested := make([]sets.Sets[int], topo.NODE+1)
	for level := topo.PIX; level <= topo.NODE; level++ {
		s := sets.New[int](n)
		for i := range n {
			for j := range i {
				if c := m.at(i, j); c.Via == 0 && c.Span <= level {
					s.Join(i, j)
				}
			}
		}
		if level == topo.NODE {
			m.gather(s)
		}
		if err := m.apart(s, level); err != nil {
			return nil, err
		}
		nested[level] = s
	}
	return nested, nil
}

// apart refuses a pair in one set of a level that the matrix says is farther apart.
func (m *smiMatrix) apart(s sets.Sets[int], level topo.Span) error {
	for i := range m.devices {
		for j := range i {
			if c := m.at(i, j); c.Via == 0 && c.Span > level && c.Span != unknownSpan && s.Find(i) == s.Find(j) {
				return errorAt("nvidia-smi", m.line[i], "%s to %s is %s, but both are within %s of the same devices; no host is wired so",
					m.devices[i].label, m.devices[j].label, c, level)
			}
		}
	}
	return nil
}

// gather puts GPUs whose distance NVLink hides onto one CPU if their NUMA affinity is the same and no pair of them is known to be farther
// apart.
func (m *smiMatrix) gather(s sets.Sets[int]) {
	byNUMA := map[string]int{}
	for i, d := range m.devices {
		if _, err := strconv.Atoi(d.numa); err != nil {
			continue
		}
		first, ok := byNUMA[d.numa]
		if !ok {
			byNUMA[d.numa] = i
			continue
		}
		if s.Find(first) != s.Find(i) && !m.acrossCPUs(s, first, i) {
			s.Join(first, i)
		}
	}
}

// acrossCPUs reports whether some pair between two sets, named by a device of each, is known to be on different CPUs.
func (m *smiMatrix) acrossCPUs(s sets.Sets[int], a, b int) bool {
	a, b = s.Find(a), s.Find(b)
	for x := range m.devices {
		for y := range x {
			c := m.at(x, y)
			fx, fy := s.Find(x), s.Find(y)
			if c.Via == 0 && c.Span == topo.SYS && (fx == a && fy == b || fy == a && fx == b) {
				return true
			}
		}
	}
	return false
}

// graph invents the PCIe tree that explains the matrix. nested has for each distance the sets of devices that are at
// most that far apart.
func (m *smiMatrix) graph(name string, nested []sets.Sets[int]) (*topo.Graph, error) {
	b := topo.NewBuilder(name)
	host := b.Host(topo.Host{Name: hostName(name), Pod: topo.None, Rack: topo.None})
	links, kind := m.most()
	gen := "pcie4"
	switch {
	case links > 12:
		gen = "pcie5"
	case links > 0 && links <= 6:
		gen = "pcie3"
	}
	if kind == topo.XGMI {
		gen = "pcie5"
	}
	pcieClass := b.Class(class(gen, 16))
	cpus := m.cpus(b, host, nested[topo.NODE])
	roots, tops, switches := map[int]topo.NodeID{}, map[int]topo.NodeID{}, map[int]topo.NodeID{}
	alone := func(level topo.Span, i int) bool { // nothing else is that near
		for j := range m.devices {
			if j != i && nested[level].Find(j) == nested[level].Find(i) {
				return false
			}
		}
		return true
	}
	below := map[int]map[int]bool{} // sets at PIX in a set at PXB
	for i := range m.devices {
		top := nested[topo.PXB].Find(i)
		if below[top] == nil {
			below[top] = map[int]bool{}
		}
		below[top][nested[topo.PIX].Find(i)] = true
	}
	pex := 0
	newSwitch := func(up topo.NodeID) topo.NodeID {
		n := b.Node(topo.Part(topo.PCIeSwitch, host, fmt.Sprintf("pex%d", pex)))
		pex++
		b.Link(topo.Link{A: up, B: n, Class: pcieClass})
		return n
	}
	nodes := make([]topo.NodeID, len(m.devices))
	for i, d := range m.devices {
		cpu, root := cpus[nested[topo.NODE].Find(i)], nested[topo.PHB].Find(i)
		if _, ok := roots[root]; !ok {
			roots[root] = b.Node(topo.Part(topo.RootPort, host, fmt.Sprintf("root%d", len(roots))))
			b.Link(topo.Link{A: cpu, B: roots[root], Class: b.Class(class("iomesh", 0))})
		}
		up := roots[root]
		if top := nested[topo.PXB].Find(i); len(below[top]) > 1 {
			if _, ok := tops[top]; !ok {
				tops[top] = newSwitch(up)
			}
			up = tops[top]
		}
		if set := nested[topo.PIX].Find(i); len(below[nested[topo.PXB].Find(i)]) > 1 || !alone(topo.PIX, i) {
			if _, ok := switches[set]; !ok {
				switches[set] = newSwitch(up)
			}
			up = switches[set]
		}
		part, attrs := topo.Part(topo.NIC, host, fmt.Sprintf("nic%d", d.index)), topo.Attrs{}
		if d.gpu {
			part = topo.Part(topo.GPU, host, fmt.Sprintf("gpu%d", d.index))
			attrs["smi.label"] = d.label
			for _, key := range m.columns {
				attrs[key] = map[string]string{"smi.cpus": d.cpus, "smi.numa": d.numa, "smi.gpu-numa": d.gpuNUMA}[key]
			}
		} else if d.device != "" {
			attrs["smi.device"] = d.device
		}
		nodes[i] = b.Node(part)
		b.Attr(nodes[i], attrs)
		b.Link(topo.Link{A: up, B: nodes[i], Class: pcieClass})
	}
	m.accelerators(b, host, nodes)
	return finish("nvidia-smi", b)
}

// most gives the largest number of links that a pair of GPUs has, and their kind.
func (m *smiMatrix) most() (links int, kind topo.LinkKind) {
	for i := range m.devices {
		for j := range i {
			if c := m.at(i, j); c.Via != 0 && c.Links > links {
				links, kind = c.Links, c.Via
			}
		}
	}
	return links, kind
}

// numa gives sets of devices the NUMA number that their first GPU states, unless another set has it.
func (m *smiMatrix) numa(near sets.Sets[int]) (number map[int]int, taken map[int]bool) {
	number, taken = map[int]int{}, map[int]bool{}
	for i, d := range m.devices {
		if v, err := strconv.Atoi(d.numa); err == nil && v >= 0 && v < 1<<12 && !taken[v] {
			if _, done := number[near.Find(i)]; !done {
				number[near.Find(i)], taken[v] = v, true
			}
		}
	}
	return number, taken
}

// cpus makes a CPU for each set of devices, named after the NUMA affinity of its
// GPUs where that is a number of its own, and joins them all.
func (m *smiMatrix) cpus(b *topo.Builder, host topo.HostID, near sets.Sets[int]) map[int]topo.NodeID {
	number, taken := m.numa(near)
	cpus, next := map[int]topo.NodeID{}, 0
	var list []topo.NodeID
	for i := range m.devices {
		set := near.Find(i)
		if _, ok := cpus[set]; ok {
			continue
		}
		v, ok := number[set]
		for ; !ok; next++ {
			if v = next; !taken[v] {
				taken[v], ok = true, true
			}
		}
		cpus[set] = b.Node(topo.Part(topo.CPU, host, fmt.Sprintf("cpu%d", v)))
		for _, other := range list {
			b.Link(topo.Link{A: other, B: cpus[set], Class: b.Class(class("upi1", 0))})
		}
		list = append(list, cpus[set])
	}
	return cpus
}

// gpuLinks is the most NVLinks that a GPU has had so far: H100 to B300.
const gpuLinks = 18

// accelerators adds the NVLinks. Direct ones serve as long as no GPU needs more
// than it can have; beyond that there must be an NVSwitch between them, and a
// pair has as many links as its lesser end. A pair with all 18 goes through one,
// too: no bridge between two cards has that many.
func (m *smiMatrix) accelerators(b *topo.Builder, host topo.HostID, nodes []topo.NodeID) {
	n := len(m.devices)
	joined, sum, top := sets.New[int](n), make([]int, n), make([]int, n)
	for i := range n {
		for j := range i {
			if c := m.at(i, j); c.Via != 0 {
				joined.Join(i, j)
				for _, k := range []int{i, j} {
					sum[k] += c.Links
					top[k] = max(top[k], c.Links)
				}
			}
		}
	}
	switched, links := map[int]bool{}, map[int]int{}
	for i := range n {
		set := joined.Find(i)
		switched[set] = switched[set] || sum[i] > gpuLinks || top[i] >= gpuLinks
		links[set] = max(links[set], min(sum[i], gpuLinks))
	}
	for i := range n {
		for j := range i {
			c := m.at(i, j)
			if joined.Find(i) == joined.Find(j) && (c.Via != topo.NVLink || c.Links != min(top[i], top[j])) {
				switched[joined.Find(i)] = false
			}
		}
	}
	through := map[int]topo.NodeID{}
	for i := range n {
		set := joined.Find(i)
		if switched[set] {
			if _, ok := through[set]; !ok {
				part := topo.Part(topo.NVSwitch, host, fmt.Sprintf("nvs%d", len(through)))
				part.Tier = 1
				through[set] = b.Node(part)
			}
			b.Link(topo.Link{A: nodes[i], B: through[set], Class: b.Class(nvlink(0, top[set])), Count: uint16(top[i])})
			continue
		}
		for j := range i {
			c := m.at(i, j)
			if c.Via == 0 {
				continue
			}
			class := map[topo.LinkKind]topo.Class{topo.NVLink: nvlink(0, links[set]), topo.XGMI: class("xgmi3", 0),
				topo.ICI: class("ici4", 0)}[c.Via]
			b.Link(topo.Link{A: nodes[j], B: nodes[i], Class: b.Class(class), Count: uint16(c.Links)})
		}
	}
}

const smiLegend = `
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
`

// encodeSMI prints the matrix as nvidia-smi topo -m does, tabs and legends
// included. CPU affinity is N/A where the graph does not know it.
func encodeSMI(out io.Writer, g *topo.Graph) error {
	h, err := one("nvidia-smi", g)
	if err != nil {
		return err
	}
	return encodeSMIHost(out, g, h)
}

// encodeSMIHost prints the matrix of one host of a cluster.
func encodeSMIHost(out io.Writer, g *topo.Graph, h topo.HostID) error {
	gpus, nics := parts(g, h, topo.GPU), parts(g, h, topo.NIC)
	if len(gpus) == 0 {
		return fmt.Errorf("nvidia-smi: host %q has no GPU", g.Hosts[h].Name)
	}
	_, read := g.Attrs[gpus[0]]["smi.label"]
	var columns []string
	for _, c := range smiColumns {
		if _, has := g.Attrs[gpus[0]][c.key]; has || !read {
			columns = append(columns, c.head)
		}
	}
	w := bufio.NewWriter(out)
	devices := slices.Concat(gpus, nics)
	label := labels(g, gpus, "GPU", "gpu")
	label = append(label, labels(g, nics, "NIC", "nic")...)
	for _, l := range label {
		fmt.Fprintf(w, "\t%s", l)
	}
	for _, c := range columns {
		fmt.Fprintf(w, "\t%s", c)
	}
	fmt.Fprintln(w)
	for i, a := range devices {
		w.WriteString(label[i])
		for _, d := range devices {
			if a == d {
				w.WriteString("\t X ")
			} else {
				fmt.Fprintf(w, "\t%s", g.Connection(a, d))
			}
		}
		for _, c := range columns {
			cell := ""
			if i < len(gpus) {
				cell = smiAffinity(g, a, c)
			}
			if c == "GPU NUMA ID" {
				cell = "\t" + cell
			}
			fmt.Fprintf(w, "\t%s", cell)
		}
		fmt.Fprintln(w)
	}
	w.WriteString(smiLegend)
	var names []string
	for i, n := range nics {
		if name := g.Attrs[n]["smi.device"]; name != "" || !read {
			names = append(names, fmt.Sprintf("  %s: %s\n", label[len(gpus)+i], device(g, n, i)))
		}
	}
	if len(names) > 0 {
		w.WriteString("\nNIC Legend:\n\n" + strings.Join(names, "") + "\n")
	}
	return w.Flush()
}

// labels gives the devices their numbers from their names, gpu3 is GPU3, or by order if a name has none.
func labels(g *topo.Graph, nodes []topo.NodeID, label, prefix string) []string {
	list, seen := make([]string, len(nodes)), map[int]bool{}
	for i, n := range nodes {
		rest, ok := strings.CutPrefix(g.Nodes[n].Name, prefix)
		v, err := strconv.Atoi(rest)
		if !ok || err != nil || v < 0 || v > 9999 || seen[v] {
			for j := range list {
				list[j] = fmt.Sprintf("%s%d", label, j)
			}
			return list
		}
		seen[v] = true
		list[i] = fmt.Sprintf("%s%d", label, v)
	}
	return list
}

// smiAffinity is a cell of the affinity columns: as it was read, or from the CPU that the GPU hangs on.
func smiAffinity(g *topo.Graph, gpu topo.NodeID, column string) string {
	attrs := g.Attrs[gpu]
	_, read := attrs["smi.label"]
	cpu := g.CPUOf(gpu)
	var said topo.Attrs
	name := "N/A"
	if cpu != topo.None {
		said = g.Attrs[cpu]
		if rest, ok := strings.CutPrefix(g.Nodes[cpu].Name, "cpu"); ok {
			name = rest
		}
	}
	switch {
	case column == "CPU Affinity" && read:
		return attrs["smi.cpus"]
	case column == "CPU Affinity":
		return cmp.Or(cpuList(said["cpu.affinity"]), "N/A")
	case column == "NUMA Affinity" && read:
		return attrs["smi.numa"]
	case column == "NUMA Affinity":
		return cmp.Or(said["cpu.numaid"], name)
	case read:
		return attrs["smi.gpu-numa"]
	default:
		return "N/A"
	}
}

// cpuList turns a kernel's CPU mask, "00000000,0000ffff", into a list of ranges, "0-15"; empty if it is none.
func cpuList(mask string) string {
	words := strings.Split(mask, ",")
	var list []string
	start := -1
	for i := 0; i <= 32*len(words); i++ {
		set := false
		if i < 32*len(words) {
			v, err := strconv.ParseUint(words[len(words)-1-i/32], 16, 32)
			if err != nil {
				return ""
			}
			set = v>>(i%32)&1 == 1
		}
		switch {
		case set && start < 0:
			start = i
		case !set && start >= 0:
			list, start = append(list, cpuRange(start, i-1)), -1
		}
	}
	return strings.Join(list, ",")
}

func cpuRange(first, last int) string {
	if first == last {
		return strconv.Itoa(first)
	}
	return fmt.Sprintf("%d-%d", first, last)
}
