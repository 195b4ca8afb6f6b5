package build

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/topo"
	"github.com/weft-fabric/weft/topo/catalog"
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
	byName := make(map[string]int, len(x.Devices))
	for i, d := range x.Devices {
		if d.Name == "" {
			return nil, at(d.Line, "a %s of %q has no name", d.Kind, x.Name)
		}
		if first, twice := byName[d.Name]; twice {
			return nil, at(d.Line, "%q has two devices named %q, a %s and a %s", x.Name, d.Name, x.Devices[first].Kind, d.Kind)
		}
		byName[d.Name] = i
	}
	known := func() string { return strings.Join(slices.SortedFunc(maps.Keys(byName), topo.Natural), " ") }
	if err := x.checkTree(byName, known); err != nil {
		return nil, err
	}

	b := topo.NewBuilder(name)
	host := b.Host(topo.Host{Name: name, Model: x.Name, Pod: topo.None, Rack: topo.None})
	ids := make([]topo.NodeID, len(x.Devices))
	for i, d := range x.Devices {
		n := topo.Part(d.Kind, host, d.Name)
		n.Model = d.Model
		switch d.Kind {
		case topo.NIC:
			if d.Rail < topo.None || d.Rail > math.MaxInt16 {
				return nil, at(d.Line, "device %q has rail %d; it must be between 0 and %d, or %d for none", d.Name, d.Rail, math.MaxInt16, topo.None)
			}
			n.Rail = int16(d.Rail)
			n.Ports = 1
		case topo.NVSwitch:
			n.Tier = 1
			n.Ports = uint16(c.Switches[d.Model].Ports)
		case topo.CPU:
			if n.Model == "" {
				n.Model = x.CPU
			}
		case topo.Switch:
			return nil, at(d.Line, "device %q is a switch; a host holds %s, %s, %s, %s, %s and %s", d.Name,
				topo.GPU, topo.CPU, topo.RootPort, topo.PCIeSwitch, topo.NVSwitch, topo.NIC)
		}
		ids[i] = b.Node(n)
	}
	joined := make([]bool, len(x.Devices))
	for i, d := range x.Devices {
		if d.Parent == "" {
			continue
		}
		gen := d.Link
		if gen == "" {
			if d.Kind != topo.RootPort {
				return nil, at(d.Line, "device %q hangs from %q by no link; name one, such as \"pcie5\"", d.Name, d.Parent)
			}
			gen = rootLink
		}
		link, err := c.Link(gen)
		if err != nil {
			return nil, at(d.Line, "device %q: %w", d.Name, err)
		}
		if err := d.fits(x.Devices[byName[d.Parent]], link); err != nil {
			return nil, at(d.Line, "device %q: %w", d.Name, err)
		}
		parent := byName[d.Parent]
		joined[i], joined[parent] = true, true
		b.Link(topo.Link{A: ids[i], B: ids[parent], Class: b.Class(link.Class(d.Lanes)), Count: 1})
	}
	for _, j := range x.Joins {
		link, err := c.Link(j.Link)
		if err != nil {
			return nil, at(j.Line, "join %s - %s: %w", j.A, j.B, err)
		}
		if link.Kind.Network() {
			return nil, at(j.Line, "join %s - %s: link %q is %s, which runs between hosts, not inside one", j.A, j.B, j.Link, link.Kind)
		}
		var ends [2]int
		for k, end := range []string{j.A, j.B} {
			i, ok := byName[end]
			if !ok {
				return nil, at(j.Line, "join %s - %s: no device %q in %q; known: %s", j.A, j.B, end, x.Name, known())
			}
			ends[k], joined[i] = i, true
		}
		if j.Count < 0 || j.Count > 1<<16-1 {
			return nil, at(j.Line, "join %s - %s has count %d; it must be between 1 and 65535", j.A, j.B, j.Count)
		}
		b.Link(topo.Link{A: ids[ends[0]], B: ids[ends[1]], Class: b.Class(link.Class(0)), Count: uint16(j.Count)})
	}
	for i, d := range x.Devices {
		if !joined[i] && len(x.Devices) > 1 {
			return nil, at(d.Line, "%s %q of %q is joined to nothing; give it a parent or a join", d.Kind, d.Name, x.Name)
		}
	}
	g, err := b.Graph()
	if err != nil {
		return nil, fmt.Errorf("host kind %q: %w", x.Name, err)
	}
	return g, nil
}

// fits says whether a device may hang from another by a link: PCIe devices from
// what forwards PCIe, root ports from CPUs, and GPUs from CPUs over their own links as well.
func (d Device) fits(parent Device, link catalog.Link) error {
	if d.Lanes < 0 || d.Lanes > maxLanes {
		return fmt.Errorf("lanes is %d; it must be between 0 (as usual) and %d", d.Lanes, maxLanes)
	}
	switch {
	case d.Kind == topo.CPU || d.Kind == topo.NVSwitch:
		return fmt.Errorf("a %s has no parent; join it to %q instead", d.Kind, parent.Name)
	case d.Kind == topo.RootPort && parent.Kind != topo.CPU:
		return fmt.Errorf("a %s hangs from a %s, but %q is a %s", d.Kind, topo.CPU, parent.Name, parent.Kind)
	case parent.Kind != topo.CPU && parent.Kind != topo.RootPort && parent.Kind != topo.PCIeSwitch:
		return fmt.Errorf("parent %q is a %s; it must be a %s, %s or %s", parent.Name, parent.Kind, topo.PCIeSwitch, topo.RootPort, topo.CPU)
	case link.Kind == topo.PCIe, link.Kind == topo.SMP && d.Kind == topo.RootPort, link.Kind.Accelerator() && d.Kind == topo.GPU && parent.Kind == topo.CPU:
		return nil
	}
	return fmt.Errorf("link %q to %q is %s; a %s hangs from a %s by PCIe", link.Gen, parent.Name, link.Kind, d.Kind, parent.Kind)
}

// maxLanes bounds the lanes of a link that a file may ask for; a chip-to-chip link has 90.
const maxLanes = 1024

// checkTree follows every device's parents to the top. A parent that does not
// exist, or a way that comes back to where it was, is an error.
func (x Box) checkTree(byName map[string]int, known func() string) error {
	const (
		unseen = iota
		onWay
		done
	)
	state := make([]uint8, len(x.Devices))
	for start := range x.Devices {
		var way []int
		for i := start; state[i] != done; {
			if state[i] == onWay {
				cycle := way[slices.Index(way, i):]
				var names []string
				for _, j := range cycle {
					names = append(names, x.Devices[j].Name)
				}
				names = append(names, x.Devices[i].Name)
				return at(x.Devices[i].Line, "the device tree of %q has a cycle: %s, each the child of the next", x.Name, strings.Join(names, " > "))
			}
			state[i] = onWay
			way = append(way, i)
			d := &x.Devices[i]
			if d.Parent == "" {
				break
			}
			p, ok := byName[d.Parent]
			if !ok {
				return at(d.Line, "device %q has parent %q, which is not in %q; known: %s", d.Name, d.Parent, x.Name, known())
			}
			i = p
		}
		for _, i := range way {
			state[i] = done
		}
	}
	return nil
}
