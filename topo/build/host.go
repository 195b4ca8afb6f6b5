package build

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/topo"
	"github.com/weft-fabric/weft/topo/catalog"
)

// wirings says how each known kind of host is wired inside, given which GPU and
// NIC the catalogue has it come with.
var wirings = map[string]func(*maker){
	"dgx-a100": dgxA100,
	"dgx-h100": dgxH100,
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
		return Box{}, fmt.Errorf("unknown host kind %q; known: %s", kind, strings.Join(HostKinds(), ", "))
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

// addCPU adds a NUMA node.
func (m *maker) addCPU() string { return m.add("cpu", Device{Kind: topo.CPU}) }

// sockets adds so many CPUs, one NUMA node each, every two joined by count links.
func (m *maker) sockets(n int, model, link string, count int) []string {
	m.CPU = model
	var cpus []string
	for range n {
		cpu := m.addCPU()
		for _, other := range cpus {
			m.join(other, cpu, link, count)
		}
		cpus = append(cpus, cpu)
	}
	return cpus
}

// addRoot adds a host bridge.
func (m *maker) addRoot(cpu string) string {
	return m.add("root", Device{Kind: topo.RootPort, Parent: cpu})
}

// addPEX adds a PCIe switch with an uplink of sixteen lanes.
func (m *maker) addPEX(parent, link string) string {
	return m.add("pex", Device{Kind: topo.PCIeSwitch, Parent: parent, Link: link})
}

// addGPU adds a GPU by its PCIe link.
func (m *maker) addGPU(parent string) string {
	return m.add("gpu", Device{Kind: topo.GPU, Model: m.gpu.Name, Parent: parent, Link: m.gpu.PCIe})
}

// addNIC adds a NIC of the compute network; NIC i is on rail i.
func (m *maker) addNIC(parent string) string {
	return m.add("nic", Device{Kind: topo.NIC, Model: m.nic.Name, Parent: parent, Link: m.nic.PCIe, Lanes: m.nic.Lanes, Rail: m.next["nic"]})
}

// addStorage adds a NIC port of the storage network.
func (m *maker) addStorage(parent, model, link string) string {
	return m.add("stor", Device{Kind: topo.NIC, Model: model, Parent: parent, Link: link, Rail: topo.None})
}

// stripe joins every GPU to NVSwitches, counts[i] links to the i-th.
func (m *maker) stripe(counts ...int) {
	var switches []string
	for range counts {
		switches = append(switches, m.add("nvs", Device{Kind: topo.NVSwitch}))
	}
	for g := range m.next["gpu"] {
		for i, n := range counts {
			m.join(fmt.Sprintf("gpu%d", g), switches[i], m.gpu.Link, n)
		}
	}
}
