package build

import (
	"fmt"

	"github.com/weft-fabric/weft/model/topo/catalog"
)

// alibabaHPN is Alibaba's HPN 7.0: each of a host's eight NICs has two ports of
// 200 Gb/s, one to a ToR of either plane; eight rails of two ToRs serve 128
// hosts, a segment; 15 segments hang on 60 aggregation switches a plane.
//
//	plane a:  agg0a … agg59a          plane b:  agg0b … agg59b
//	            │ 400 Gb/s                        │
//	          leaf0a (rail 0)                   leaf0b (rail 0)
//	              ╲  200 Gb/s                   ╱
//	               └────────── nic0 ───────────┘
//
// A NIC is one node with two links, one in each plane, as its two ports are one
// bonded device; a flow takes one of them by its key.
//
// The aggregation switches are rails of their own only in so far as the planes
// are apart: a leaf reaches all 60 of its plane by one link each.
var alibabaHPN = Preset{
	Name: "alibaba-hpn", Summary: "Alibaba HPN 7.0: segments of 1,024 GPUs, dual ToR, two planes, two tiers",
	Source: "Qian et al., \"Alibaba HPN: A Data Center Network for Large Language Model Training\", SIGCOMM 2024",
	Params: []Param{{"segments", 15, "segments of 128 hosts"}},
	Build: func(c *catalog.Catalog, p map[string]int) (*Built, error) {
		if err := within(p, "segments", 1, 15); err != nil {
			return nil, err
		}
		f := Clos{
			Name: "compute", Rails: true, Unit: 128, Planes: 2, Tiers: 2, UnitName: "segment",
			Link:  "200gbe",
			Leaf:  Tier{Model: "TH5", Link: "400gbe", Down: 128, Up: 60},
			Spine: Tier{Model: "TH5", Count: 60},
		}
		built, err := simple(c, fmt.Sprintf("alibaba-hpn-%ds", p["segments"]), "hgx-h100", p["segments"]*128, 1, f)
		if err == nil {
			built.Growth.MaxHosts = 15 * 128 // the other eight ports of an aggregation switch lead to other pods
			built.Notes = []string{
				"A ToR has 128 ports of 200 Gb/s down and 60 of 400 Gb/s up, 1.067:1; the eight backup ports of the published ToR are free.",
				"Segments, planes and port rates are published; 60 uplinks a ToR and 60 aggregation switches a plane fit 51.2 Tb/s and were not compared with the paper.",
				"The third tier between pods (15:1) and the front-end network are not modelled.",
			}
		}
		return built, err
	},
}
