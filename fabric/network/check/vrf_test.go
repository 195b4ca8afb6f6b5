package check

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/fabric/network/emit"
	"github.com/weft-fabric/weft/model/cluster"
)

// routedTenants is a plan with two tenants on routed links, and what its switches say of ports and routes if all is as planned.
func routedTenants(t *testing.T) (*network.Plan, map[string]*device) {
	t.Helper()
	c, err := cluster.Parse("x.yaml", []byte(`name: x
hosts: {"n[0-7]": dgx-h100}
fabric: {family: rail, pod: 4, leaf: {switch: SN5600-400, down: 4, up: 2, link: 400gbe}, spine: {switch: SN5600-400, count: 2}, link: 400gbe}
network: {tenants: {red: {hosts: [n0, n4]}, blue: {hosts: [n1, n5]}}}
`), nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := network.Make("x.yaml", c, nil)
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]*device{}
	for i := range p.Hosts {
		said[p.Hosts[i].Name] = &device{}
	}
	for i := range p.Switches {
		s := &p.Switches[i]
		d := &device{ifaces: map[string]iface{}, routes: []route{}}
		for j := range s.Ports {
			x := iface{}
			if k := s.Ports[j].VRF; k != 0 {
				x.master = p.VRFs[k-1].Name
				for a := range p.Switches {
					for _, q := range p.Switches[a].Ports {
						if q.VRF == k && (a == i || s.Tier == 1) {
							d.routes = append(d.routes, route{dst: q.Addr.Masked().String(), table: fmt.Sprint(p.VRFs[k-1].Table), ways: 1, proto: "bgp"})
						}
					}
				}
			}
			d.ifaces[emit.PortName(p, s, s.Ports[j].Number)] = x
		}
		for _, v := range p.VRFs {
			d.routes = append(d.routes, route{dst: "default", via: "unreachable", table: fmt.Sprint(v.Table), ways: 1})
		}
		said[s.Name] = d
	}
	return p, said
}

// TestVRFs: ports in the wrong VRF, routes that one lacks and routes of another tenant are found, each as one finding.
func TestVRFs(t *testing.T) {
	for _, x := range []struct {
		name  string
		plant func(*device)
		want  []string
	}{
		{"as planned", func(*device) {}, nil},
		{"a port in another VRF", func(d *device) { d.ifaces["swp1s0"] = iface{master: "Vrf_blue"} },
			[]string{"leaf0 swp1s0: differ: Vrf_blue, want Vrf_red"}},
		{"a port in no VRF", func(d *device) { d.ifaces["swp1s0"] = iface{} }, []string{"leaf0 swp1s0: differ: nothing, want Vrf_red"}},
		{"a free port in a VRF", func(d *device) { d.ifaces["swp2s0"] = iface{master: "Vrf_red"} },
			[]string{"leaf0 swp2s0: differ: Vrf_red, want nothing"}},
		{"no routes of a VRF", func(d *device) {
			d.routes = append(without(d.routes, "1001"), route{dst: "default", via: "unreachable", table: "1001", ways: 1})
		}, []string{"leaf0 routes of Vrf_red: missing: nothing, want 10.160"}},
		{"a VRF without its end", func(d *device) { d.routes = d.routes[:len(d.routes)-1] }, []string{"leaf0 end of Vrf_blue: missing"}},
		{"a route of another tenant", func(d *device) {
			d.routes = append(d.routes, route{dst: "10.160.0.2/31", table: "1001", ways: 1, proto: "bgp"})
		}, []string{"leaf0 route to 10.160.0.2/31: extra"}},
		{"a tenant's route in the main table", func(d *device) {
			d.routes = append(d.routes, route{dst: "10.160.0.8/31", table: "main", ways: 1, proto: "bgp"})
		}, []string{"leaf0 route to 10.160.0.8/31: extra"}},
	} {
		p, said := routedTenants(t)
		x.plant(said["leaf0"])
		c := &comparer{p: p, said: said}
		for i := range p.Switches {
			c.vrfs(&p.Switches[i], said[p.Switches[i].Name])
		}
		c.extraRoutes()
		found := c.folded()
		for k := range max(len(found), len(x.want)) {
			if k >= len(found) || k >= len(x.want) || !strings.HasPrefix(found[k].String(), x.want[k]) {
				t.Fatalf("%s: %v, want %q", x.name, found, x.want)
			}
		}
	}
}

func without(list []route, table string) (out []route) {
	for _, r := range list {
		if r.table != table {
			out = append(out, r)
		}
	}
	return out
}
