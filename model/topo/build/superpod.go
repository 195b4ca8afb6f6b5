package build

import (
	"fmt"

	"github.com/weft-fabric/weft/model/topo/catalog"
)

// superpod is a generation of NVIDIA's DGX SuperPOD by its scalable unit. All of
// them follow the rule of Clos: full units, 1:1 at every tier, and a number of
// spines that divides a leaf's uplinks.
type superpod struct {
	name, host, summary string
	unit                int  // hosts a scalable unit
	less                int  // hosts left out of the last unit, for the fabric manager
	guests              int  // fabric managers, each with two ports
	planes              int  // one port of every NIC in each
	byRail              bool // spine groups of a large system: by rail, or else by unit
	block               int  // units under one spine group of a large system
	perRack             int
	perCable            int // links that one cable carries
	leaf                string
	link                string
	published           string
	notes               []string
}

var superpods = []superpod{
	{
		name: "superpod-a100", host: "dgx-a100", summary: "DGX SuperPOD of DGX A100, 20 hosts a unit, HDR",
		unit: 20, byRail: true, perRack: 4, leaf: "QM8790",
		published: "NVIDIA RA-09950-001, November 2020",
		notes:     []string{"Only the switches of the full system, seven units, were compared with NVIDIA's; other sizes follow from the same rule. Fabric managers are not modelled."},
	},
	{
		name: "superpod-h100", host: "dgx-h100", summary: "DGX SuperPOD of DGX H100, 32 hosts a unit, NDR",
		unit: 32, less: 1, guests: 2, block: 1, perRack: 4, leaf: "QM9700",
		published: "NVIDIA RA-11333-001, September 2023",
		notes:     []string{"The last unit has one host less; two UFM servers with two ports each take its place in the fabric."},
	},
	{
		name: "superpod-b200", host: "dgx-b200", summary: "DGX SuperPOD of DGX B200, 32 hosts a unit, NDR",
		unit: 32, block: 1, perRack: 4, leaf: "QM9700",
		published: "NVIDIA DGX SuperPOD reference architecture for DGX B200, 2025",
		notes:     []string{"The fabric managers are not in the published counts, nor here."},
	},
	{
		name: "superpod-b300", host: "dgx-b300", summary: "DGX SuperPOD of DGX B300, 64 hosts a unit, two planes of Spectrum-X Ethernet",
		unit: 64, planes: 2, block: 1, perRack: 4, perCable: 2, leaf: "SN5600", link: "400gbe",
		published: "NVIDIA DGX SuperPOD reference architecture for DGX B300 with Spectrum-4 Ethernet, 2025",
		notes:     []string{"Every GPU has 2 x 400 Gb/s, one in each plane; a cable of 800 Gb/s carries two links, and cables are counted so."},
	},
	{
		name: "superpod-b300-xdr", host: "dgx-b300", summary: "DGX SuperPOD of DGX B300, 72 hosts a unit, XDR",
		unit: 72, block: 1, perRack: 4, leaf: "Q3400",
		published: "NVIDIA RA-11339-001, 2025",
		notes:     []string{"NVIDIA's table prints 9216 GPUs for 18 units; 1296 hosts of eight are 10368, as its cables say."},
	},
}

func (s superpod) preset() Preset {
	return Preset{
		Name: s.name, Summary: s.summary, Source: s.published,
		Params: []Param{{"su", 1, "scalable units"}},
		Build:  s.build,
	}
}

// build takes two tiers as long as they fit, and three past that.
func (s superpod) build(c *catalog.Catalog, p map[string]int) (*Built, error) {
	su := p["su"]
	if su < 1 || su > 4096 {
		return nil, fmt.Errorf("su is %d; it must be between 1 and 4096", su)
	}
	box, err := Host(c, s.host, "n0")
	if err != nil {
		return nil, err
	}
	x := Cluster{
		Name:  fmt.Sprintf("%s-%dsu", s.name, su),
		Hosts: []Hosts{{Box: box, Names: numbered("n", s.unit*su-s.less), PerRack: s.perRack}},
		Fabrics: []Fabric{Clos{
			Name: "compute", Rails: true, Unit: s.unit, Planes: s.planes, Tiers: 2,
			Link: s.link, Leaf: Tier{Model: s.leaf, Link: s.link}, UnitName: "scalable unit",
		}},
	}
	if s.guests > 0 {
		ufm, err := fabricManager(c)
		if err != nil {
			return nil, err
		}
		x.Hosts = append(x.Hosts, Hosts{Box: ufm, Names: numbered("ufm", s.guests), Guest: true})
	}
	g, growth, err := x.Build(c)
	if err != nil {
		// Past the two tiers, spines are grouped and cores join the groups.
		f := x.Fabrics[0].(Clos)
		f.Tiers, f.ByRail, f.Block = 3, s.byRail, s.block
		x.Fabrics[0] = f
		if g, growth, err = x.Build(c); err != nil {
			return nil, err
		}
	}
	return &Built{Graph: g, Growth: growth, Notes: s.notes, LinksPerCable: max(s.perCable, 1)}, nil
}
