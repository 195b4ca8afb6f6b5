package build

import (
	"fmt"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
)

// NVLinkNet is a second level of NVLink switches between up to 32 DGX H100.
//
//	tray 0: chips 0, 1    tray 1: chips 2, 3   …   tray 17        64 ports a chip
//	    ╲╱                                                         4 links a cable,
//	 host: nvs0 (5 cables)  nvs1 (4)  nvs2 (4)  nvs3 (5)           2 to each chip
//	        40 links down     32        32        40
//
// A host's NVSwitches have twice as many links to GPUs as upwards: 144 and 72,
// so the network is tapered 2:1 and a host sends 72 x 25 GB/s = 1.8 TB/s; 32 of
// them make 57.6 TB/s. The 72 links are published; how they spread over trays
// and chips is the even spread that fills every port.
//
// Ishii, Wells, "The NVLink-Network Switch", Hot Chips 34, 2022: 18 switch
// trays of two chips and 128 ports, 32 hosts.
type NVLinkNet struct {
	class topo.Class
}

const (
	nvlinkTrays      = 18 // one cable of four links from each host to each tray
	nvlinkChips      = 2  // a tray
	nvlinkPerChip    = 2  // links from a host to a chip
	nvlinkChipPorts  = 64
	nvlinkHosts      = nvlinkChipPorts / nvlinkPerChip
	nvlinkChipModel  = "NVSwitch-3"
	nvlinkGeneration = "nvlink4"
)

// NewNVLinkNet finds the link in the catalogue.
func NewNVLinkNet(c *catalog.Catalog) (NVLinkNet, error) {
	link, err := c.Link(nvlinkGeneration)
	return NVLinkNet{link.Class(0)}, err
}

func (x NVLinkNet) nodes(int) []topo.Node {
	var list []topo.Node
	for i := range nvlinkTrays * nvlinkChips {
		n := topo.Part(topo.NVSwitch, topo.None, fmt.Sprintf("nvlink%d", i))
		n.Tier, n.Ports, n.Model = 2, nvlinkChipPorts, nvlinkChipModel
		list = append(list, n)
	}
	return list
}

// join cables one host's NVSwitches to the network's, two to one oversubscribed. h is the host's number, first and base
// the nodes at which host and network begin.
func (x NVLinkNet) join(b *topo.Builder, h int, box *topo.Graph, first, base topo.NodeID) error {
	if h >= nvlinkHosts {
		return fmt.Errorf("host %d does not fit: an NVLink switch chip of %d ports takes %d links from each of %d hosts",
			h+1, nvlinkChipPorts, nvlinkPerChip, nvlinkHosts)
	}
	class := b.Class(x.class)
	tray := topo.NodeID(0)
	for i := range box.Nodes {
		if box.Nodes[i].Kind != topo.NVSwitch {
			continue
		}
		// As many cables of four links as the switch has links to one GPU: 2:1.
		cables := topo.NodeID(box.Links[box.Edges(topo.NodeID(i))[0].Link].Count)
		for range cables {
			for chip := range topo.NodeID(nvlinkChips) {
				b.Link(topo.Link{A: first + topo.NodeID(i), B: base + tray*nvlinkChips + chip, Class: class, Count: nvlinkPerChip})
			}
			tray++
		}
	}
	if tray != nvlinkTrays {
		return fmt.Errorf("host kind %q has %d NVLink cables for the network; it needs %d, as dgx-h100 has",
			box.Hosts[0].Model, tray, nvlinkTrays)
	}
	return nil
}

// Domains joins the hosts of each rack by NVSwitches of their own, one link from
// every GPU to every switch, as GB200 NVL72 does: 18 hosts of four GPUs, 18
// switch chips.
type Domains struct {
	Hosts    int // hosts a rack
	Switches int // switch chips a rack
	Ports    int // of a chip
	Model    string
	class    topo.Class
}

// NVL72Domains are those of racks of GB200 or GB300 NVL72; see NVL72 for the rack itself.
func NVL72Domains(c *catalog.Catalog) (Domains, error) {
	chip, err := c.Switch("NVSwitch-4")
	if err != nil {
		return Domains{}, err
	}
	link, err := c.Link(chip.Link)
	return Domains{Hosts: NVL72Trays, Switches: NVL72Switches, Ports: chip.Ports, Model: chip.Name, class: link.Class(0)}, err
}

func (x Domains) nodes(hosts int) []topo.Node {
	var list []topo.Node
	for i := range ceil(hosts, x.Hosts) * x.Switches {
		n := topo.Part(topo.NVSwitch, topo.None, fmt.Sprintf("nvs%d", i))
		n.Tier, n.Ports, n.Model, n.Rack = 1, uint16(x.Ports), x.Model, int32(i/x.Switches)
		n.Pod = n.Rack
		list = append(list, n)
	}
	return list
}

func (x Domains) join(b *topo.Builder, h int, box *topo.Graph, first, base topo.NodeID) error {
	class := b.Class(x.class)
	for i := range box.Nodes {
		if box.Nodes[i].Kind != topo.GPU {
			continue
		}
		for s := range x.Switches {
			b.Link(topo.Link{A: first + topo.NodeID(i), B: base + topo.NodeID(h/x.Hosts*x.Switches+s), Class: class})
		}
	}
	return nil
}
