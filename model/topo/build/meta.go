package build

import (
	"fmt"

	"github.com/weft-fabric/weft/model/topo/catalog"
)

// metaRSC is Meta's Research SuperCluster: 2,000 DGX A100 with eight HDR ports
// each, without oversubscription. How it is cabled is not known in detail: pods
// of 20 hosts, a leaf's ports, are an assumption. The number of switches is hardly
// free, though: 16,000 is exactly what three tiers of 40-port switches can join,
// 40 x 40 x 40 / 4, and Meta gives the network as the reason for that maximum.
var metaRSC = Preset{
	Name: "meta-rsc", Summary: "Meta Research SuperCluster: 2,000 DGX A100, three tiers of HDR, non-blocking",
	Source: "Meta AI, \"Introducing the AI Research SuperCluster\", 2022; Kokolis et al., \"Revisiting Reliability in Large-Scale Machine Learning Research Clusters\", 2024",
	Params: []Param{{"hosts", 2000, "number of hosts"}},
	Build: func(c *catalog.Catalog, p map[string]int) (*Built, error) {
		if err := within(p, "hosts", 1, 2000); err != nil {
			return nil, err
		}
		built, err := simple(c, "meta-rsc", "dgx-a100", p["hosts"], 2,
			Clos{Name: "compute", Rails: true, ByRail: true, Unit: 20, Tiers: 3, Leaf: Tier{Model: "QM8790"}})
		if err != nil {
			return nil, err
		}
		built.Notes = []string{"Hosts, HDR and 1:1 are published; pods of 20 hosts are assumed, and switches follow from 40 ports in three tiers. The Ethernet network for storage is not modelled."}
		return built, nil
	},
}

const (
	zoneRacks  = 192 // of an AI zone: 3,072 GPUs
	rackHosts  = 2
	rackUp     = 18 // uplinks of a rack switch: 16 down and an eighth more, so that two spines may fail
	zoneSpines = 18 // assumed: one link of a rack switch to each
	zoneUp     = 27 // uplinks of a cluster switch: a seventh of 192
)

// meta24K is the RoCE cluster on which Llama 3 was trained: racks of two Grand
// Teton servers under a rack switch, 192 racks under the cluster switches of an
// AI zone, eight zones under aggregation switches at 1:7.
//
//	aggregation ATSW  9, modular
//	cluster     CTSW  18 a zone, modular: one link to every rack, 27 up
//	rack        RTSW  192 a zone: 16 ports of 400 Gb/s down, 18 up
var meta24K = Preset{
	Name: "meta-24k", Summary: "Meta 24K RoCE: eight AI zones of 3,072 H100, 1:7 between zones",
	Source: "Gangidi et al., \"RDMA over Ethernet for Distributed AI Training at Meta Scale\", SIGCOMM 2024; Llama 3, 2024",
	Params: []Param{{"zones", 8, "AI zones of 3,072 GPUs"}},
	Build: func(c *catalog.Catalog, p map[string]int) (*Built, error) {
		if err := within(p, "zones", 1, 64); err != nil {
			return nil, err
		}
		f := Clos{
			Name: "compute", Unit: rackHosts, Block: zoneRacks, Tiers: 3, UnitName: "AI zone",
			Rack:  func(host int) int32 { return int32(host / rackHosts) },
			Link:  "400gbe",
			Leaf:  Tier{Model: "TH4", Link: "400gbe", Down: 16, Up: rackUp},
			Spine: Tier{Model: "7800R3", Link: "400gbe", Down: zoneRacks, Up: zoneUp, Count: zoneSpines},
			Core:  Tier{Model: "7800R3", Count: even(ceil(p["zones"]*zoneSpines*zoneUp, c.Switches["7800R3"].Ports), zoneUp)},
		}
		built, err := simple(c, fmt.Sprintf("meta-24k-%dz", p["zones"]), "grand-teton", p["zones"]*zoneRacks*rackHosts, rackHosts, f)
		if err != nil {
			return nil, err
		}
		built.Growth.UnitHosts = zoneRacks * rackHosts
		built.Notes = []string{
			"A rack switch has 16 ports down and 18 up: 12.5% more than non-blocking, for failed spines.",
			fmt.Sprintf("A cluster switch has %d links to racks and %d upwards, %.1f:1; published is 1:7, not how many switches carry it.",
				zoneRacks, zoneUp, float64(zoneRacks)/zoneUp),
		}
		return built, nil
	},
}
