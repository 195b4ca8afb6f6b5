package cluster

import (
	"github.com/weft-fabric/weft/topo/build"
	"github.com/weft-fabric/weft/topo/catalog"
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
		Name: b.Graph.Name, Graph: b.Graph, Catalog: c, Needs: DefaultNeeds(), Notes: b.Notes, LinksPerCable: b.LinksPerCable,
		Growth: Growth{Unit: b.Growth.Unit, UnitHosts: b.Growth.UnitHosts, MaxHosts: b.Growth.MaxHosts, Next: b.Next},
	}, nil
}

// DefaultNeeds is what a file that says nothing asks for: GPT-3's 175 billion
// parameters in gradients of four bytes, a step of one second, and yearly
// failures of 2% of GPUs, 0.5% of NICs and switches, 0.1% of cables.
func DefaultNeeds() Needs {
	return Needs{
		Params: 175e9, BytesPer: 4, StepSeconds: 1, PowerPrice: 0.10, Years: 3, Oversub: 1.2,
		FailureRates: map[string]float64{"gpu": 0.02, "nic": 0.005, "cable": 0.001, "switch": 0.005},
		Provided:     map[string]string{},
	}
}
