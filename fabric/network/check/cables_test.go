package check

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/fabric/network/emit"
)

// neighbours is what LLDP says on switches whose cables are as planned.
func neighbours(p *network.Plan) map[string]*device {
	out := map[string]*device{}
	for i := range p.Hosts {
		out[p.Hosts[i].Name] = &device{}
	}
	for i := range p.Switches {
		s := &p.Switches[i]
		d := &device{lldp: map[string][]neighbour{}}
		out[s.Name] = d
		for j := range s.Ports {
			q := &s.Ports[j]
			n := neighbour{}
			if sw, port := p.Far(q); sw != nil {
				n = neighbour{sw.Name, emit.PortName(p, sw, port.Number)}
			} else {
				n = neighbour{p.Hosts[q.Host].Name, p.Hosts[q.Host].Interfaces[q.Iface].Name}
			}
			d.lldp[emit.PortName(p, s, q.Number)] = []neighbour{n}
		}
	}
	return out
}

// TestMispluggedCables: a cable in an empty port, in another's port and crossed with another is told with where it is
// and where it belongs. Cables as planned are no finding.
func TestMispluggedCables(t *testing.T) {
	p := sonicPlan(t)
	for _, x := range []struct {
		name string
		plug func(said map[string]*device)
		want []string
	}{
		{"as planned", func(map[string]*device) {}, nil},
		{"in an empty port", func(said map[string]*device) {
			leaf := said["leaf0"].lldp
			leaf["Ethernet900"] = leaf["Ethernet0"]
			delete(leaf, "Ethernet0")
		}, []string{"leaf0 Ethernet0", "n0:nic0 at leaf0:Ethernet900", "move the cable of n0:nic0 from leaf0:Ethernet900 to leaf0:Ethernet0"}},
		{"in another's port", func(said map[string]*device) {
			said["leaf0"].lldp["Ethernet0"] = said["leaf1"].lldp["Ethernet0"]
			delete(said["leaf1"].lldp, "Ethernet0")
		}, []string{"leaf0 Ethernet0", "n0:nic1", "move the cable of n0:nic1 to leaf1:Ethernet0, where it belongs, and plug n0:nic0 in here"}},
		{"crossed", func(said map[string]*device) {
			a, b := said["leaf0"].lldp, said["leaf1"].lldp
			a["Ethernet0"], b["Ethernet0"] = b["Ethernet0"], a["Ethernet0"]
		}, []string{"two cables are crossed", "swap the cables of leaf0:Ethernet0 and leaf1:Ethernet0"}},
	} {
		c := &comparer{p: p, said: neighbours(p)}
		x.plug(c.said)
		c.cables()
		var got strings.Builder
		for _, f := range c.found {
			fmt.Fprintf(&got, "%s; %s\n", f, f.Fix)
		}
		if (len(x.want) == 0) != (len(c.found) == 0) {
			t.Errorf("%s: %s", x.name, got.String())
		}
		for _, w := range x.want {
			if !strings.Contains(got.String(), w) {
				t.Errorf("%s: %s, want %q", x.name, got.String(), w)
			}
		}
	}
}
