// Package catalog holds hardware facts as data, each with its source: link
// generations, GPUs, hosts, NICs, switches, cables, prices.
//
// Bandwidths of links are computed from rate, lanes and encoding, never typed
// in. Prices and power carry their date. Default gives the built-in catalogue;
// a user's entries are laid over it with Merge.
package catalog

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// Source says where a figure comes from, so that a reader can check it.
type Source string

// Encoding is a line code: bits of data, and the bits on the wire that carry them.
type Encoding struct{ Data, Wire int }

// Share is the part of the wire rate that is data.
func (e Encoding) Share() float64 {
	if e.Wire == 0 {
		return 1
	}
	return float64(e.Data) / float64(e.Wire)
}

// Link is a generation of link.
type Link struct {
	Gen        string // the key: "nvlink4", "pcie5", "ndr"
	Kind       topo.LinkKind
	LaneRate   unit.BitRate // signalling rate of one lane, one way
	Lanes      int          // lanes of one link as it is usually built, each way
	Encoding   Encoding     // zero where the rate is already net of its code
	Latency    unit.Time    // end to end of one link
	Efficiency float64      // what a large ring transfer reaches of the computed rate, measured; 0 if unknown
	Source     Source
}

// Class computes the class of one link by its lanes; 0 lanes means the usual number.
func (l Link) Class(lanes int) topo.Class {
	if lanes == 0 {
		lanes = l.Lanes
	}
	bits := float64(l.LaneRate) * float64(lanes)
	if e := l.Encoding; e.Wire != 0 { // multiplied first, so that 106.25 Gb/s by 16/17 is exactly 100
		bits = bits * float64(e.Data) / float64(e.Wire)
	}
	rate := unit.BitRate(bits).Bytes()
	return topo.Class{Kind: l.Kind, Gen: l.Gen, Lanes: uint16(lanes), Rate: rate, Latency: l.Latency}
}

// Price is an amount of money with the day it was true.
type Price struct {
	USD    float64
	Date   string // 2024-03
	Source Source
}

// GPU is an accelerator.
type GPU struct {
	Name       string // the key: "H100-SXM"
	Arch       string // "Hopper"
	Compute    int    // NVIDIA compute capability times ten: 90; 0 elsewhere
	Memory     unit.Bytes
	MemoryRate unit.Rate
	Dense      map[string]float64 // FLOP/s without sparsity, by type: "fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4"
	Link       string             // generation of its accelerator links: "nvlink4"; empty if none
	Links      int                // how many of them
	PCIe       string             // "pcie5"
	Watts      float64
	Price      Price
	Source     Source
}

// NIC is a network adapter.
type NIC struct {
	Name    string // the key: "ConnectX-7"
	Ports   int
	Link    string // generation of a port at its full rate: "ndr"
	PCIe    string
	Lanes   int
	Latency unit.Time // between its PCIe port and its wire, one way
	Watts   float64
	Price   Price
	Source  Source
}

// Switch is a network switch.
type Switch struct {
	Name    string // the key: "QM9700"
	Ports   int    // at the rate of Link
	Link    string
	Kind    topo.LinkKind
	Latency unit.Time // port to port
	Split   int       // into how many slower links a port may be split, 0 or 1 for none
	PerCage int       // ports that one transceiver serves: 2 in the twin-port cages of Quantum-2; 0 means 1
	Units   int       // rack units; 0 means 1
	Watts   float64
	Price   Price
	Source  Source
}

// Host is a server as sold; model/topo/build knows how it is wired inside.
type Host struct {
	Name   string // the key: "dgx-h100"
	GPU    string
	GPUs   int
	NIC    string // of the compute network
	NICs   int
	Shared int     // compute NICs that share one transceiver: 2 where a twin-port cage serves two adapters; 0 means 1
	Units  int     // rack units
	Watts  float64 // whole machine, at most
	Price  Price
	Rent   Price // one GPU of it for an hour in a public cloud, on demand; zero if nobody lets it
	Source Source
}

// Cable is a sort of cable, with both its ends.
type Cable struct {
	Name   string // the key: "dac-ndr", "aoc-hdr", "smf-400gbe"
	Link   string
	Reach  float64 // metres
	Optics int     // transceivers bought besides, two for a fibre, none for copper or an active cable
	Watts  float64 // both ends together
	Price  Price   // both ends and the cable
	Source Source
}

// Catalog is a set of hardware facts by key.
type Catalog struct {
	Links    map[string]Link
	GPUs     map[string]GPU
	NICs     map[string]NIC
	Switches map[string]Switch
	Hosts    map[string]Host
	Cables   map[string]Cable
}

// find answers an unknown key with the known ones.
func find[T any](what string, m map[string]T, key string) (T, error) {
	v, ok := m[key]
	if !ok {
		return v, fmt.Errorf("unknown %s %q; known: %s", what, key, strings.Join(slices.Sorted(maps.Keys(m)), ", "))
	}
	return v, nil
}

// Link finds a link generation.
func (c *Catalog) Link(gen string) (Link, error) { return find("link", c.Links, gen) }

// GPU finds an accelerator.
func (c *Catalog) GPU(name string) (GPU, error) { return find("GPU", c.GPUs, name) }

// NIC finds a network adapter.
func (c *Catalog) NIC(name string) (NIC, error) { return find("NIC", c.NICs, name) }

// Switch finds a switch.
func (c *Catalog) Switch(name string) (Switch, error) { return find("switch", c.Switches, name) }

// Host finds a server.
func (c *Catalog) Host(name string) (Host, error) { return find("host", c.Hosts, name) }

// Cable finds a cable.
func (c *Catalog) Cable(name string) (Cable, error) { return find("cable", c.Cables, name) }

// CableFor takes the cheapest cable that fits a link and reaches; of equal prices
// the one that draws less, then the first by name. With fibre it takes one with
// transceivers of its own where there is any that fits, so that either can be
// replaced by itself.
func (c *Catalog) CableFor(gen string, metres float64, fibre bool) (best Cable, ok bool) {
	rank := func(x Cable) int {
		if fibre && x.Optics > 0 {
			return 0
		}
		return 1
	}
	for _, name := range slices.Sorted(maps.Keys(c.Cables)) {
		cable := c.Cables[name]
		if cable.Link != gen || cable.Reach < metres {
			continue
		}
		if !ok ||
			cmp.Or(cmp.Compare(rank(cable), rank(best)), cmp.Compare(cable.Price.USD, best.Price.USD), cmp.Compare(cable.Watts, best.Watts)) < 0 {
			best, ok = cable, true
		}
	}
	return best, ok
}

// Merge lays other's entries over c's: a whole entry replaces one of the same key.
func (c *Catalog) Merge(other *Catalog) {
	merge(&c.Links, other.Links)
	merge(&c.GPUs, other.GPUs)
	merge(&c.NICs, other.NICs)
	merge(&c.Switches, other.Switches)
	merge(&c.Hosts, other.Hosts)
	merge(&c.Cables, other.Cables)
}

func merge[T any](into *map[string]T, from map[string]T) {
	if *into == nil {
		*into = map[string]T{}
	}
	maps.Copy(*into, from)
}
