package cluster

import (
	"github.com/weft-fabric/weft/model/topo/build"
	"github.com/weft-fabric/weft/model/topo/catalog"
)

// Presets lists the known designs, families and hosts.
func Presets() []build.Preset { return build.Presets() }

// Preset builds one by its name, with the parameters given and the others at
// their defaults. An unknown name or parameter is answered with the known ones.
func Preset(name string, params map[string]int) (*Cluster, error) {
	return preset(catalog.Default(), name, params)
}

func preset(c *catalog.Catalog, name string, params map[string]int) (*Cluster, error) {
	b, err := build.BuildPreset(c, name, params)
	if err != nil {
		return nil, err
	}
	return &Cluster{
		Name: b.Graph.Name, Graph: b.Graph, Catalog: c, Needs: DefaultNeeds(), Network: DefaultNetwork(), Notes: b.Notes,
		LinksPerCable: b.LinksPerCable,
		Growth:        Growth{Unit: b.Growth.Unit, UnitHosts: b.Growth.UnitHosts, MaxHosts: b.Growth.MaxHosts, Next: b.Next},
	}, nil
}

// DefaultNeeds is what a file that says nothing asks for: no model, and yearly
// failure rates as measured on 16,384 H100 during 54 days (Llama 3, 2024, table
// 5): 11.1% of GPUs, 4.6% of servers by their other parts, 0.29% of NICs. Stops
// by cables and switches are not told apart there, 1.4% of ports; with three
// cables a port and 2% of switches 0.45% of cables are left.
func DefaultNeeds() Needs {
	return Needs{
		BytesPer: 4, StepSeconds: 1, PowerPrice: 0.10, Years: 3, Oversub: 1.2,
		FailureRates: map[string]float64{"gpu": 0.111, "host": 0.046, "nic": 0.0029, "cable": 0.0045, "switch": 0.02},
		Provided:     map[string]string{},
	}
}
