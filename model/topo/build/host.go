package build

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/spell"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
)

// wirings says how each known kind of host is wired inside, given which GPU and
// NIC the catalogue has it come with.
var wirings = map[string]func(*maker){
	"pcie-8":         pcie8,
	"pcie-8-plx":     pcie8Plx,
	"dgx-1p":         dgx1P,
	"dgx-1v":         dgx1V,
	"summit":         summit,
	"dgx-2":          dgx2,
	"dgx-a100":       dgxA100,
	"hgx-a100":       hgxA100,
	"dgx-h100":       dgxH100,
	"hgx-h100":       hgxH100,
	"dgx-h200":       dgxH100,
	"dgx-b200":       dgxB200,
	"dgx-b300":       dgxB300,
	"grand-teton":    grandTeton,
	"gb200":          graceTray,
	"gb300":          graceUltraTray,
	"gh200":          graceHopper,
	"mi300x":         mi300X,
	"mi325x":         mi300X,
	"mi350x":         mi300X,
	"mi355x":         mi300X,
	"hgx-h20":        hgxH100,
	"hgx-h800":       hgxH800,
	"tpu-v4":         tpuHost,
	"l40s-8":         cards8,
	"rtx-pro-6000-8": cards8,
	"aws-p4d":        awsP4,
	"aws-p4de":       awsP4,
	"aws-p5":         awsP5,
	"aws-p5en":       awsP5en,
}

// HostKinds lists the known kinds in natural order.
func HostKinds() []string {
	kinds := make([]string, 0, len(wirings))
	for k := range wirings {
		kinds = append(kinds, k)
	}
	slices.SortFunc(kinds, topo.Natural)
	return kinds
}

// Host builds a graph of one host of a known kind, named name.
func Host(c *catalog.Catalog, kind, name string) (*topo.Graph, error) {
	box, err := HostBox(c, kind)
	if err != nil {
		return nil, err
	}
	return box.Build(c, name)
}

// HostBox gives the parts of a known kind of host.
func HostBox(c *catalog.Catalog, kind string) (Box, error) {
	wire, ok := wirings[kind]
	if !ok {
		return Box{}, fmt.Errorf("unknown host kind %q; %sknown: %s", kind, spell.Meant(kind, HostKinds()), strings.Join(HostKinds(), ", "))
	}
	host, err := c.Host(kind)
	if err != nil {
		return Box{}, err
	}
	m := &maker{Box: Box{Name: kind}, next: map[string]int{}}
	if m.gpu, err = c.GPU(host.GPU); err != nil {
		return Box{}, fmt.Errorf("host %q: %w", kind, err)
	}
	if host.NIC != "" {
		if m.nic, err = c.NIC(host.NIC); err != nil {
			return Box{}, fmt.Errorf("host %q: %w", kind, err)
		}
	}
	wire(m)
	return m.Box, nil
}

// maker writes a Box down device by device and numbers the names: each method
// gives the name of what it added.
type maker struct {
	Box
	gpu  catalog.GPU
	nic  catalog.NIC
	next map[string]int
}

func (m *maker) add(prefix string, d Device) string {
	d.Name = fmt.Sprintf("%s%d", prefix, m.next[prefix])
	m.next[prefix]++
	m.Devices = append(m.Devices, d)
	return d.Name
}

func (m *maker) join(a, b, link string, count int) {
	m.Joins = append(m.Joins, Join{A: a, B: b, Link: link, Count: count})
}

// sockets adds n CPUs of one NUMA node each, every two joined by count links.
func (m *maker) sockets(n int, model, link string, count int) []string {
	m.CPU = model
	var cpus []string
	for range n {
		cpu := m.add("cpu", Device{Kind: topo.CPU})
		for _, other := range cpus {
			m.join(other, cpu, link, count)
		}
		cpus = append(cpus, cpu)
	}
	return cpus
}

// root adds a host bridge.
func (m *maker) root(cpu string) string {
	return m.add("root", Device{Kind: topo.RootPort, Parent: cpu})
}

// pex adds a PCIe switch with an uplink of sixteen lanes.
func (m *maker) pex(parent, link string) string {
	return m.add("pex", Device{Kind: topo.PCIeSwitch, Parent: parent, Link: link})
}

// addGPU adds a GPU by its PCIe link.
func (m *maker) addGPU(parent string) string {
	return m.add("gpu", Device{Kind: topo.GPU, Model: m.gpu.Name, Parent: parent, Link: m.gpu.PCIe})
}

// addNIC adds a port of the compute network; port i is on rail i.
func (m *maker) addNIC(parent string) string {
	return m.add("nic", Device{Kind: topo.NIC, Model: m.nic.Name, Parent: parent, Link: m.nic.PCIe, Lanes: m.nic.Lanes, Rail: m.next["nic"]})
}

// serviceCard adds a card with two ports on a root of its own: one for storage,
// "stor", one for users and in-band management, "svc". The ports share the
// card's PCIe link, which is why it stands as a PCIe switch of its own, and why
// nvidia-smi calls them PIX.
func (m *maker) serviceCard(cpu, model, link string) {
	card := m.pex(m.root(cpu), link)
	for _, port := range []string{"stor", "svc"} {
		m.add(port, Device{Kind: topo.NIC, Model: model, Parent: card, Link: link, Rail: topo.None})
	}
}

// switches adds n NVSwitches of a generation.
func (m *maker) switches(n int, model string) []string {
	var names []string
	for range n {
		names = append(names, m.add("nvs", Device{Kind: topo.NVSwitch, Model: model}))
	}
	return names
}

// stripe joins every GPU to as many new NVSwitches as there are counts, counts[i] links to the i-th.
func (m *maker) stripe(model string, counts ...int) {
	for i, nvs := range m.switches(len(counts), model) {
		for g := range m.next["gpu"] {
			m.join(fmt.Sprintf("gpu%d", g), nvs, m.gpu.Link, counts[i])
		}
	}
}
