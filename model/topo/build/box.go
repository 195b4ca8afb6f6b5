package build

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
)

// Device is one part of a host and the link to its parent in the PCIe tree.
//
//	gpu0  parent pex0   pcie5 x16
//	pex0  parent root0  pcie5 x16
//	root0 parent cpu0   (the CPU's own fabric)
//	cpu0  no parent
type Device struct {
	Name   string
	Kind   topo.Kind
	Model  string // catalogue key; empty if unknown
	Parent string // empty for CPUs, NVSwitches and whatever only Joins connect
	Link   string // catalogue key of the link to the parent, "pcie5"; empty for a root port, which sits on its CPU
	Lanes  int    // 0 means what the link usually has
	Rail   int    // NICs: which rail; topo.None if none
	Line   int    // where the device is written down, for errors; 0 if nowhere
}

// Join is a link outside the PCIe tree: NVLink, xGMI, ICI, C2C, or between sockets.
type Join struct {
	A, B  string
	Link  string // catalogue key, "nvlink4"
	Count int    // parallel links, 0 means one
	Line  int
}

// Box is a host written down as its parts: the form in which the known hosts and
// those of cluster files are both built.
type Box struct {
	Name    string // what kind of host it is: the host's Model
	CPU     string // model of its CPUs, where a CPU does not say it itself
	Devices []Device
	Joins   []Join
}

// rootLink joins a root port to its CPU, and the NUMA nodes of one socket.
const rootLink = "iomesh"

// at puts the line in front of what is said about it.
func at(line int, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if line > 0 {
		return fmt.Errorf("line %d: %w", line, err)
	}
	return err
}

// Build makes a graph of one host of this form, named name.
func (x Box) Build(c *catalog.Catalog, name string) (*topo.Graph, error) {
	a := assembly{Box: x, c: c, b: topo.NewBuilder(name), byName: make(map[string]int, len(x.Devices)), joined: make([]bool, len(x.Devices))}
	for _, step := range []func() error{a.names, a.tree, func() error { return a.nodes(name) }, a.branches, a.joins, a.loose} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	g, err := a.b.Graph()
	if err != nil {
		return nil, fmt.Errorf("host kind %q: %w", x.Name, err)
	}
	return g, nil
}

// assembly is a box on its way to a graph; its methods are the steps, in order.
type assembly struct {
	Box
	c      *catalog.Catalog
	b      *topo.Builder
	byName map[string]int // index in Devices
	ids    []topo.NodeID  // of Devices
	joined []bool         // Devices that have a link
}

func (a *assembly) known() string {
	return strings.Join(slices.SortedFunc(maps.Keys(a.byName), topo.Natural), " ")
}

// names refuses devices without a name of their own.
func (a *assembly) names() error {
	if len(a.Devices) == 0 {
		return fmt.Errorf("host kind %q has no devices", a.Name)
	}
	for i, d := range a.Devices {
		if d.Name == "" {
			return at(d.Line, "a %s of %q has no name", d.Kind, a.Name)
		}
		if first, twice := a.byName[d.Name]; twice {
			return at(d.Line, "%q has two devices named %q, a %s and a %s", a.Name, d.Name, a.Devices[first].Kind, d.Kind)
		}
		a.byName[d.Name] = i
	}
	return nil
}

// tree follows every device's parents to the top. A parent that does not exist,
// or a way that comes back to where it was, is an error.
func (a *assembly) tree() error {
	const (
		unseen = iota
		onWay
		done
	)
	state := make([]uint8, len(a.Devices))
	for start := range a.Devices {
		var way []int
		for i := start; state[i] != done; {
			if state[i] == onWay {
				var names []string
				for _, j := range append(way[slices.Index(way, i):], i) {
					names = append(names, a.Devices[j].Name)
				}
				return at(a.Devices[i].Line, "the device tree of %q has a cycle: %s, each the child of the next", a.Name, strings.Join(names, " > "))
			}
			state[i] = onWay
			way = append(way, i)
			d := &a.Devices[i]
			if d.Parent == "" {
				break
			}
			p, ok := a.byName[d.Parent]
			if !ok {
				return at(d.Line, "device %q has parent %q, which is not in %q; known: %s", d.Name, d.Parent, a.Name, a.known())
			}
			i = p
		}
		for _, i := range way {
			state[i] = done
		}
	}
	return nil
}

// nodes adds the host and its parts.
func (a *assembly) nodes(name string) error {
	host := a.b.Host(topo.Host{Name: name, Model: a.Name, Pod: topo.None, Rack: topo.None})
	for _, d := range a.Devices {
		n := topo.Part(d.Kind, host, d.Name)
		n.Model = d.Model
		switch d.Kind {
		case topo.NIC:
			if d.Rail < topo.None || d.Rail > math.MaxInt16 {
				return at(d.Line, "device %q has rail %d; it must be between 0 and %d, or %d for none", d.Name, d.Rail, math.MaxInt16, topo.None)
			}
			n.Rail, n.Ports = int16(d.Rail), 1
		case topo.NVSwitch:
			n.Tier, n.Ports = 1, uint16(a.c.Switches[d.Model].Ports)
		case topo.CPU:
			if n.Model == "" {
				n.Model = a.CPU
			}
		case topo.Switch:
			return at(d.Line, "device %q is a switch; a host holds %s, %s, %s, %s, %s and %s", d.Name,
				topo.GPU, topo.CPU, topo.RootPort, topo.PCIeSwitch, topo.NVSwitch, topo.NIC)
		}
		a.ids = append(a.ids, a.b.Node(n))
	}
	return nil
}

// branches links every device to its parent.
func (a *assembly) branches() error {
	for i, d := range a.Devices {
		if d.Parent == "" {
			continue
		}
		gen := d.Link
		if gen == "" {
			if d.Kind != topo.RootPort {
				return at(d.Line, "device %q hangs from %q by no link; name one, such as \"pcie5\"", d.Name, d.Parent)
			}
			gen = rootLink
		}
		parent := a.byName[d.Parent]
		link, err := a.c.Link(gen)
		if err == nil {
			err = d.fits(a.Devices[parent], link)
		}
		if err != nil {
			return at(d.Line, "device %q: %w", d.Name, err)
		}
		a.link(i, parent, link.Class(d.Lanes), 1)
	}
	return nil
}

// joins adds the links outside the tree.
func (a *assembly) joins() error {
	for _, j := range a.Joins {
		fail := func(format string, args ...any) error {
			return at(j.Line, "join %s - %s: "+format, append([]any{j.A, j.B}, args...)...)
		}
		link, err := a.c.Link(j.Link)
		switch {
		case err != nil:
			return fail("%w", err)
		case link.Kind.Network():
			return fail("link %q is %s, which runs between hosts, not inside one", j.Link, link.Kind)
		case j.Count < 0 || j.Count > math.MaxUint16:
			return fail("count is %d; it must be between 1 and %d", j.Count, math.MaxUint16)
		}
		var ends [2]int
		for k, name := range []string{j.A, j.B} {
			i, ok := a.byName[name]
			if !ok {
				return fail("no device %q in %q; known: %s", name, a.Name, a.known())
			}
			ends[k] = i
		}
		a.link(ends[0], ends[1], link.Class(0), j.Count)
	}
	return nil
}

func (a *assembly) link(i, j int, class topo.Class, count int) {
	a.joined[i], a.joined[j] = true, true
	a.b.Link(topo.Link{A: a.ids[i], B: a.ids[j], Class: a.b.Class(class), Count: uint16(count)})
}

// loose refuses a device that nothing is linked to, unless it is the only one.
func (a *assembly) loose() error {
	for i, d := range a.Devices {
		if !a.joined[i] && len(a.Devices) > 1 {
			return at(d.Line, "%s %q of %q is joined to nothing; give it a parent or a join", d.Kind, d.Name, a.Name)
		}
	}
	return nil
}

// fits says whether a device may hang from another by a link: PCIe devices from
// what forwards PCIe, root ports from CPUs, and GPUs from CPUs over their own links as well.
func (d Device) fits(parent Device, link catalog.Link) error {
	if d.Lanes < 0 || d.Lanes > maxLanes {
		return fmt.Errorf("lanes is %d; it must be between 0 (as usual) and %d", d.Lanes, maxLanes)
	}
	return d.hangs(parent, link)
}

// joins reports whether a kind of link runs between two devices.
func (d Device) joins(parent Device, link catalog.Link) bool {
	switch {
	case link.Kind == topo.SMP:
		return d.Kind == topo.RootPort
	case link.Kind.Accelerator():
		return d.Kind == topo.GPU && parent.Kind == topo.CPU
	}
	return link.Kind == topo.PCIe
}

func (d Device) hangs(parent Device, link catalog.Link) error {
	switch {
	case d.Kind == topo.CPU || d.Kind == topo.NVSwitch:
		return fmt.Errorf("a %s has no parent; join it to %q instead", d.Kind, parent.Name)
	case d.Kind == topo.RootPort && parent.Kind != topo.CPU:
		return fmt.Errorf("a %s hangs from a %s, but %q is a %s", d.Kind, topo.CPU, parent.Name, parent.Kind)
	case !slices.Contains([]topo.Kind{topo.CPU, topo.RootPort, topo.PCIeSwitch}, parent.Kind):
		return fmt.Errorf("parent %q is a %s; it must be a %s, %s or %s", parent.Name, parent.Kind, topo.PCIeSwitch, topo.RootPort, topo.CPU)
	case d.joins(parent, link):
		return nil
	}
	return fmt.Errorf("link %q to %q is %s; a %s hangs from a %s by PCIe", link.Gen, parent.Name, link.Kind, d.Kind, parent.Kind)
}

// maxLanes bounds the lanes of a link that a file may ask for; a chip-to-chip link has 90.
const maxLanes = 1024
