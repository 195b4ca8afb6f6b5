// Package cluster reads the one file that describes a cluster, or a preset's
// name, and gives the graph and what its owner asks of it.
//
// The file is YAML, strict: every error names line, field, value and what is
// known. See docs/reference/cluster-file.md for the whole language.
package cluster

import (
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/topo/floor"
)

// Cluster is what a file or a preset stands for.
type Cluster struct {
	Name    string
	Graph   *topo.Graph
	Catalog *catalog.Catalog // the built-in one with the file's own entries laid over it
	Needs   Needs
	Network Network
	Growth  Growth
	Notes   []string // what a preset leaves out or adds, for the report

	Floor    *floor.Plan // where everything stands; nil where the file does not say
	Services []Service   // networks beside the compute fabrics that the file declares

	// LinksPerCable is how many links of the fabrics share one cable, at least 1:
	// two where a cable of 800 Gb/s carries two links of 400.
	LinksPerCable int
}

// Needs is what the owner asks of the network, and what the design report
// assumes about parts; every field has a default.
type Needs struct {
	Params       float64            // parameters of the model to train; 0 where none are given
	Model        string             // name of a model to plan for; empty for none
	Batch, Seq   int                // of Model: sequences a step, tokens a sequence; defaults 1,024 and 8,192
	Tokens       float64            // to train Model on; 0 where it is not said
	Dtype        string             // of Model's products; default bf16
	BytesPer     float64            // bytes of gradient per parameter; default 4
	StepSeconds  float64            // time of one training step; default 1
	FailureRates map[string]float64 // yearly, by part: gpu, host, nic, cable, switch; DefaultNeeds says which and why
	PowerPrice   float64            // USD per kWh; default 0.10
	CloudPrice   float64            // USD per GPU hour; default from the catalogue's date
	Years        float64            // time in service; default 3
	Oversub      float64            // tolerated oversubscription; default 1.2
	Provided     map[string]string  // checklist items outside the network, by item key, with the owner's evidence: "monitoring.health": "node exporter + weft agent"
}

// Growth says how the family grows: by what unit, and to what size without a new tier.
type Growth struct {
	Unit      string // "scalable unit", "pod", "group"
	UnitHosts int
	MaxHosts  int                         // with the tiers there are; 0 if unknown
	Next      func() (*topo.Graph, error) // the same design with one unit more; nil if unknown
}
