package cluster

import (
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/topo"
)

const hall = `name: hall
hosts: {"n[0-31]": dgx-h100}
fabric: {family: rail, switch: SN5600, link: 400gbe}
`

// TestFloorAndServices: racks and lengths go into the graph, networks beside it are graphs of their own.
func TestFloorAndServices(t *testing.T) {
	c, err := Parse("hall.yaml", []byte(hall+"services: all\nfloor: {rack: {power: 45kW}, row: 6, place: {leaf0: \"B02:U12\"}}\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.Floor == nil || len(c.Services) != 3 {
		t.Fatalf("floor %v, %d services", c.Floor, len(c.Services))
	}
	if d, ok := c.Floor.Find("leaf0"); !ok || d.Unit != 12 || c.Floor.RackOf("leaf0") != "B02" {
		t.Errorf("leaf0 stands in %s, unit %d", c.Floor.RackOf("leaf0"), d.Unit)
	}
	for h := range c.Graph.Hosts {
		if c.Graph.Hosts[h].Rack < 0 {
			t.Fatalf("%s has no rack", c.Graph.Hosts[h].Name)
		}
	}
	ports := map[string]int{}
	for _, s := range c.Services {
		if !s.Declared || s.Graph == nil {
			t.Errorf("%+v", s)
			continue
		}
		ports[s.Name] = s.Graph.Count(topo.NIC)
		s.Graph.Each(topo.Switch, func(_ topo.NodeID, n *topo.Node) {
			if _, err := c.Graph.Lookup(n.Name); err == nil {
				t.Errorf("%s is the name of two switches", n.Name)
			}
			if n.Rack < 0 {
				t.Errorf("%s has no rack", n.Name)
			}
		})
	}
	if ports["storage"] != 64 || ports["in-band"] != 64 || ports["out-of-band"] < 32+c.Graph.Count(topo.Switch) {
		t.Errorf("ports %v", ports)
	}
	bare, err := Parse("hall.yaml", []byte(hall), nil)
	if err != nil {
		t.Fatal(err)
	}
	if all := bare.AllServices(); len(all) != 3 || all[0].Declared || len(bare.Services) != 0 {
		t.Errorf("undeclared services: %+v", all)
	}
	preset, err := Parse("p.yaml", []byte("preset: superpod-h100\nparams: {su: 2}\nservices: {out-of-band: {}}\nfloor: {rack: {hosts: 3}}\n"),
		nil)
	if err != nil || preset.Floor.Fits[0].Most != 3 || len(preset.Services) != 1 {
		t.Errorf("a preset on a floor: %v", err)
	}
}

// TestWrongFloorsAndServices: each is refused with its line and a fix.
func TestWrongFloorsAndServices(t *testing.T) {
	for _, x := range []struct{ name, text, want string }{
		{"unknown field", "floor: {racks: 10}", `hall.yaml:4: floor.racks: unknown field; did you mean "rack"?`},
		{"unknown field of a rack", "floor:\n  rack: {unit: 48}", `hall.yaml:5: floor.rack.unit: unknown field; did you mean "units"?`},
		{"no power", "floor: {rack: {power: forty}}", `"forty"; it must be such as 40kW`},
		{"power too small", "floor: {rack: {power: 40}}", "between 100 and"},
		{"power for three of four", "floor:\n  rack:\n    hosts: 4\n    power: 35kW",
			"hall.yaml:7: floor.rack.power: 35 kW: 4 hosts such as n3 (dgx-h100) in one rack draw 40.8 kW; 3 may"},
		{"power for none", "floor: {rack: {power: 8kW}}", "one dgx-h100 draws 10.2 kW"},
		{"height for five of six", "floor: {rack: {hosts: 6}}", "5 do"},
		{"all units reserved", "floor: {rack: {units: 8, reserve: 8}}", "leave some for hosts"},
		{"width", "floor: {rack: {width: 60}}", "between 0.3 and 3, such as 600mm"},
		{"row", "floor: {row: 0}", "between 1 and 200"},
		{"slack", "floor: {slack: -1m}", "such as 0.5m"},
		{"lengths", "floor: {lengths: 3}", "a list of lengths"},
		{"one length", "floor: {lengths: [1, two]}", `"two"; it must be a length such as 3m`},
		{"cables", "floor: {cables: cheap}", "known: cheapest, fibre"},
		{"place of nobody", "floor:\n  place:\n    leaf77: A01", `hall.yaml:6: floor.place: there is no host and no switch "leaf77"`},
		{"place nowhere", "floor: {place: {leaf0: first}}", "no rack; write row and number, such as B04"},
		{"place unit", "floor: {place: {leaf0: \"A01:Utop\"}}", "such as C05:U20"},
		{"place past the row", "floor: {row: 4, place: {leaf0: A05}}", "numbers up to 4"},
		{"services word", "services: some", "write all, or the networks: storage, in-band, out-of-band"},
		{"unknown service", "services: {store: {}}", "did you mean"},
		{"unknown field of a service", "services: {storage: {swich: SN5600}}", `did you mean "switch"?`},
		{"unknown switch of a service", "services: {storage: {switch: SN9}}", `unknown switch "SN9"`},
		{"unknown link of a service", "services: {in-band: {link: 100g}}", `unknown link "100g"`},
		{"no such NIC", "services: {storage: {nics: disk0}}", "no host has a NIC called disk0"},
		{"NICs of the fabric", "services: {storage: {nics: nic0}}", "that no fabric uses"},
		{"ratio and ports", "services: {storage: {oversubscription: 2:1, down: 4, up: 2}}", "conflicts with oversubscription"},
		{"kinds that do not join", "services: {storage: {switch: SB7800, link: 400gbe}}", "services.storage"},
		{"pdus", "services: {out-of-band: {pdus: 99}}", "between 0 and 16"},
	} {
		t.Run(x.name, func(t *testing.T) {
			_, err := Parse("hall.yaml", []byte(hall+x.text+"\n"), nil)
			if err == nil || !strings.Contains(err.Error(), x.want) || !strings.HasPrefix(err.Error(), "hall.yaml:") {
				t.Errorf("%v\nwant %q", err, x.want)
			}
		})
	}
}
