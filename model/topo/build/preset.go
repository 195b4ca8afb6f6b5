package build

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/spell"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
)

// ErrNoPreset is what errors about a name that no preset has wrap.
var ErrNoPreset = errors.New("unknown preset")

// Preset is a cluster that goes by a name and a few numbers.
type Preset struct {
	Name    string
	Summary string
	Source  string // where the design is published; empty for families
	Params  []Param
	Build   func(c *catalog.Catalog, p map[string]int) (*Built, error) // p has every parameter
}

// Param is a number that a preset takes.
type Param struct {
	Name    string
	Default int
	Meaning string
}

// Built is what a preset gives.
type Built struct {
	Graph         *topo.Graph
	Growth        Growth
	Next          func() (*topo.Graph, error) // the same with one unit more; nil if the design does not grow
	Notes         []string                    // what the design leaves out, adds or corrects
	LinksPerCable int                         // how many links of the fabric share one cable
}

// Presets lists them all: reference designs, families, and every kind of host by
// itself, with -host behind its name where a design already has that name.
func Presets() []Preset {
	var list []Preset
	for _, s := range superpods {
		list = append(list, s.preset())
	}
	list = append(list, metaRSC, meta24K, alibabaHPN, nvl72Unit, nvlink256, tpuPod, fatTree, railFabric, dragonflyFabric, torusFabric)
	for _, kind := range []string{"gb200", "gb300"} {
		list = append(list, Preset{
			Name: kind + "-nvl72", Summary: "one NVL72 rack: 18 trays of four GPUs, 18 NVSwitch chips",
			Build: func(c *catalog.Catalog, _ map[string]int) (*Built, error) {
				g, err := NVL72(c, kind, "nvl72")
				return &Built{Graph: g}, err
			},
		})
	}
	for _, kind := range HostKinds() {
		name := kind
		if slices.ContainsFunc(list, func(p Preset) bool { return p.Name == kind }) {
			name += "-host"
		}
		list = append(list, Preset{
			Name: name, Summary: "one host of this kind",
			Build: func(c *catalog.Catalog, _ map[string]int) (*Built, error) {
				g, err := Host(c, kind, "n0")
				return &Built{Graph: g}, err
			},
		})
	}
	return list
}

// BuildPreset builds a preset with the parameters given and the others at their
// defaults. Unknown names are answered with the known ones.
func BuildPreset(c *catalog.Catalog, name string, params map[string]int) (*Built, error) {
	p, err := presetNamed(name)
	if err != nil {
		return nil, err
	}
	full := map[string]int{}
	for _, param := range p.Params {
		full[param.Name] = param.Default
	}
	var unknown []string
	for given, v := range params {
		if _, ok := full[given]; !ok {
			unknown = append(unknown, given)
		}
		full[given] = v
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return nil, fmt.Errorf("preset %q has no parameter %q; %s", name, unknown[0], p.takes())
	}
	built, err := p.Build(c, full)
	if err != nil {
		return nil, fmt.Errorf("preset %q: %w", name, err)
	}
	built.LinksPerCable = max(built.LinksPerCable, 1)
	if grow, ok := growing[name]; ok || strings.HasPrefix(name, "superpod-") {
		built.Next = func() (*topo.Graph, error) { return p.next(c, full, cmp.Or(grow, "su"), built.Growth) }
	}
	return built, nil
}

func presetNamed(name string) (Preset, error) {
	var known []string
	for _, p := range Presets() {
		if p.Name == name {
			return p, nil
		}
		known = append(known, p.Name)
	}
	return Preset{}, fmt.Errorf("%w %q; %sknown: %s", ErrNoPreset, name, spell.Meant(name, known), strings.Join(known, ", "))
}

// next builds the preset one unit larger, by the parameter that it grows by. Hosts are added by the unit, not one by one.
func (p Preset) next(c *catalog.Catalog, params map[string]int, grow string, g Growth) (*topo.Graph, error) {
	more := maps.Clone(params)
	more[grow]++
	if grow == "hosts" {
		more[grow] += max(g.UnitHosts, 1) - 1
	}
	next, err := p.Build(c, more)
	if err != nil {
		return nil, fmt.Errorf("preset %q with one %s more: %w", p.Name, g.Unit, err)
	}
	return next.Graph, nil
}

// growing names the parameter by which each preset grows.
var growing = map[string]string{
	"meta-rsc": "hosts", "meta-24k": "zones", "alibaba-hpn": "segments", "gb200-su": "su",
	"fat-tree": "hosts", "rail": "hosts", "dragonfly": "groups",
}

func (p Preset) takes() string {
	if len(p.Params) == 0 {
		return "it takes none"
	}
	var list []string
	for _, q := range p.Params {
		list = append(list, q.Name)
	}
	return "it takes: " + strings.Join(list, ", ")
}

// within refuses a parameter outside its range.
func within(p map[string]int, name string, lo, hi int) error {
	if v := p[name]; v < lo || v > hi {
		return fmt.Errorf("%s is %d; it must be between %d and %d", name, v, lo, hi)
	}
	return nil
}

// simple builds like hosts with one fabric.
func simple(c *catalog.Catalog, name, kind string, hosts, perRack int, f Fabric) (*Built, error) {
	box, err := Host(c, kind, "n0")
	if err != nil {
		return nil, err
	}
	g, growth, err := Cluster{Name: name, Hosts: []Hosts{{Box: box, Names: numbered("n", hosts), PerRack: perRack}},
		Fabrics: []Fabric{f}}.Build(c)
	if err != nil {
		return nil, err
	}
	return &Built{Graph: g, Growth: growth}, nil
}

// fabricManager is a server with two ports and no GPU, such as UFM runs on.
func fabricManager(c *catalog.Catalog) (*topo.Graph, error) {
	const nic = "ConnectX-7"
	card, err := c.NIC(nic)
	if err != nil {
		return nil, err
	}
	box := Box{Name: "ufm", Devices: []Device{
		{Name: "cpu0", Kind: topo.CPU},
		{Name: "root0", Kind: topo.RootPort, Parent: "cpu0"},
		{Name: "root1", Kind: topo.RootPort, Parent: "cpu0"},
		{Name: "nic0", Kind: topo.NIC, Model: nic, Parent: "root0", Link: card.PCIe, Lanes: card.Lanes, Rail: topo.None},
		{Name: "nic1", Kind: topo.NIC, Model: nic, Parent: "root1", Link: card.PCIe, Lanes: card.Lanes, Rail: topo.None},
	}}
	return box.Build(c, "ufm0")
}

var fatTree = Preset{
	Name: "fat-tree", Summary: "DGX H100 in a fat-tree of QM9700, all NICs of a host at one leaf",
	Params: []Param{{"hosts", 128, "number of hosts"}, {"tiers", 0, "tiers of switches; 0 for as few as fit"},
		{"down", 1, "oversubscription at the leaf: ports down"}, {"up", 1, "ports up for them"}},
	Build: func(c *catalog.Catalog, p map[string]int) (*Built, error) {
		for _, n := range []string{"hosts", "down", "up"} {
			if err := within(p, n, 1, 1<<17); err != nil {
				return nil, err
			}
		}
		return simple(c, fmt.Sprintf("fat-tree-%d", p["hosts"]), "dgx-h100", p["hosts"], 4,
			Clos{Name: "compute", Tiers: p["tiers"], Leaf: Tier{Model: "QM9700", Oversub: Ratio{p["down"], p["up"]}}, UnitName: "leaf"})
	},
}

var railFabric = Preset{
	Name: "rail", Summary: "DGX H100 in a rail-optimised fabric of QM9700",
	Params: []Param{{"hosts", 128, "number of hosts"}, {"tiers", 0, "tiers of switches; 0 for as few as fit"},
		{"rail-only", 0, "1: no spine joins different rails"}},
	Build: func(c *catalog.Catalog, p map[string]int) (*Built, error) {
		if err := within(p, "hosts", 1, 1<<17); err != nil {
			return nil, err
		}
		return simple(c, fmt.Sprintf("rail-%d", p["hosts"]), "dgx-h100", p["hosts"], 4,
			Clos{Name: "compute", Rails: true, Tiers: p["tiers"], ByRail: p["rail-only"] == 1, Leaf: Tier{Model: "QM9700"}})
	},
}

var dragonflyFabric = Preset{
	Name: "dragonfly", Summary: "DGX H100 in a balanced dragonfly of QM9700, a = 2p = 2h",
	Source: "Kim, Dally, Scott, Abts, ISCA 2008",
	Params: []Param{{"routers", 16, "routers a group, a"}, {"ports", 8, "NIC ports a router, p"}, {"global", 8, "global links a router, h"},
		{"groups", 9, "groups; at most a·h+1"}},
	Build: func(c *catalog.Catalog, p map[string]int) (*Built, error) {
		for _, n := range []string{"routers", "ports", "global"} {
			if err := within(p, n, 1, 1024); err != nil {
				return nil, err
			}
		}
		if err := within(p, "groups", 2, p["routers"]*p["global"]+1); err != nil {
			return nil, err
		}
		hosts := p["routers"] * p["ports"] * p["groups"] / 8
		if hosts < 1 || hosts > 1<<17 {
			return nil, fmt.Errorf("%d NIC ports a group make %d hosts of eight; it must be between 1 and %d", p["routers"]*p["ports"], hosts, 1<<17)
		}
		return simple(c, fmt.Sprintf("dragonfly-%d", hosts), "dgx-h100", hosts, 4,
			Dragonfly{Name: "compute", Routers: p["routers"], Ports: p["ports"], Global: p["global"], Groups: p["groups"], Model: "QM9700"})
	},
}

var torusFabric = Preset{
	Name: "torus", Summary: "DGX H100 at a torus of QM9700, one host a switch",
	Params: []Param{{"x", 4, "length of the first dimension"}, {"y", 4, "of the second"},
		{"z", 4, "of the third; 1 for a two-dimensional torus"}},
	Build: func(c *catalog.Catalog, p map[string]int) (*Built, error) {
		dims := []int{p["x"], p["y"], p["z"]}
		if p["z"] == 1 {
			dims = dims[:2]
		}
		places, err := checkDims(dims)
		if err != nil {
			return nil, err
		}
		return simple(c, fmt.Sprintf("torus-%dx%dx%d", p["x"], p["y"], p["z"]), "dgx-h100", places, 4,
			Torus{Name: "compute", Dims: dims, Ports: 8, Model: "QM9700"})
	},
}

var tpuPod = Preset{
	Name: "tpu-v4", Summary: "TPU v4 pod: a torus of chips, four a host",
	Source: "Jouppi et al., \"TPU v4: An Optically Reconfigurable Supercomputer\", ISCA 2023",
	Params: []Param{{"x", 16, "length of the first dimension"}, {"y", 16, "of the second"}, {"z", 16, "of the third"}},
	Build: func(c *catalog.Catalog, p map[string]int) (*Built, error) {
		box, err := Host(c, "tpu-v4", "n0")
		if err != nil {
			return nil, err
		}
		g, growth, err := Chips{Name: fmt.Sprintf("tpu-v4-%dx%dx%d", p["x"], p["y"], p["z"]), Dims: []int{p["x"], p["y"], p["z"]}, Box: box,
			Link: "ici4"}.Build(c)
		if err != nil {
			return nil, err
		}
		return &Built{Graph: g, Growth: growth, Notes: []string{
			"The published pod of 4096 chips is 16 x 16 x 16; optical switches can also close it as 4 x 4 x 256, which x, y and z ask for."}}, nil
	},
}

var nvlink256 = Preset{
	Name: "nvlink-256", Summary: "32 DGX H100, 256 GPUs, joined by NVLink switches and by NDR rails",
	Source: "Ishii, Wells, \"The NVLink-Network Switch\", Hot Chips 34, 2022",
	Params: []Param{{"hosts", nvlinkHosts, "number of hosts"}},
	Build: func(c *catalog.Catalog, p map[string]int) (*Built, error) {
		if err := within(p, "hosts", 1, nvlinkHosts); err != nil {
			return nil, err
		}
		box, err := Host(c, "dgx-h100", "n0")
		if err != nil {
			return nil, err
		}
		net, err := NewNVLinkNet(c)
		if err != nil {
			return nil, err
		}
		g, growth, err := Cluster{
			Name: "nvlink-256", Hosts: []Hosts{{Box: box, Names: numbered("n", p["hosts"]), PerRack: 4}}, Overlays: []Overlay{net},
			Fabrics: []Fabric{Clos{Name: "compute", Rails: true, Unit: 32, Leaf: Tier{Model: "QM9700"}, UnitName: "scalable unit"}},
		}.Build(c)
		if err != nil {
			return nil, err
		}
		return &Built{Graph: g, Growth: growth,
			Notes: []string{"The NVLink network is tapered 2:1 at the hosts: 72 of 144 links lead outwards."}}, nil
	},
}

var nvl72Unit = Preset{
	Name: "gb200-su", Summary: "GB200 NVL72 racks, eight a scalable unit, joined by NDR rails",
	Source: "NVIDIA DGX SuperPOD reference architecture for DGX GB200, 2025",
	Params: []Param{{"su", 1, "scalable units of eight racks"}},
	Build: func(c *catalog.Catalog, p map[string]int) (*Built, error) {
		if err := within(p, "su", 1, 64); err != nil {
			return nil, err
		}
		box, err := Host(c, "gb200", "n0")
		if err != nil {
			return nil, err
		}
		nvl, err := NVL72Domains(c)
		if err != nil {
			return nil, err
		}
		g, growth, err := Cluster{
			Name:     fmt.Sprintf("gb200-%dsu", p["su"]),
			Hosts:    []Hosts{{Box: box, Names: numbered("n", p["su"]*8*nvl.Hosts), PerRack: nvl.Hosts}},
			Overlays: []Overlay{nvl},
			Fabrics:  []Fabric{Clos{Name: "compute", Rails: true, Unit: nvl.Hosts, Leaf: Tier{Model: "QM9700"}, UnitName: "rack"}},
		}.Build(c)
		if err != nil {
			return nil, err
		}
		growth.Unit, growth.UnitHosts = "scalable unit", 8*nvl.Hosts
		return &Built{Graph: g, Growth: growth, Notes: []string{
			"NVIDIA publishes no switch counts for this unit; every rack has a leaf for each of its four rails, 18 ports down and 18 up."}}, nil
	},
}
