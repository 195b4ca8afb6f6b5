package build

import (
	"fmt"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
)

// What an NVL72 rack holds.
const (
	NVL72Trays    = 18 // compute trays, each a host
	NVL72Switches = 18 // NVSwitch chips, two in each of nine switch trays
)

// NVL72 builds a graph of one NVL72 rack without a network: eighteen compute
// trays of a kind, "gb200" or "gb300", which are hosts of four GPUs named NAME-t0
// to NAME-t17, and the eighteen switch chips of its nine switch trays, which
// belong to no host. Every GPU has one link to every chip:
//
//	t0:gpu0 … t0:gpu3   t1:gpu0 …   …   t17:gpu3      72 GPUs of 18 links
//	   └──────┴───────────┴────  nvs0 … nvs17  ───┘      18 chips of 72 ports
//
// so any two of the 72 GPUs are joined by 18 ways of one chip each.
func NVL72(c *catalog.Catalog, kind, name string) (*topo.Graph, error) {
	tray, err := Host(c, kind, kind)
	if err != nil {
		return nil, err
	}
	domain, err := NVL72Domains(c)
	if err != nil {
		return nil, err
	}
	host, err := c.Host(kind)
	if err != nil {
		return nil, err
	}
	if part, err := c.GPU(host.GPU); err != nil {
		return nil, fmt.Errorf("host %q: %w", kind, err)
	} else if part.Links != domain.Switches {
		return nil, fmt.Errorf("a rack of %q needs GPUs with %d links, one per switch chip; %q has %d",
			kind, domain.Switches, part.Name, part.Links)
	}
	g, _, err := Cluster{
		Name:     name,
		Hosts:    []Hosts{{Box: tray, Names: numbered(name+"-t", domain.Hosts), PerRack: domain.Hosts}},
		Overlays: []Overlay{domain},
	}.Build(c)
	return g, err
}
