package topo

import "testing"

func TestInferTiers(t *testing.T) {
	build := func(links [][2]string) (*Builder, map[string]NodeID, int8) {
		b := NewBuilder("net")
		f := b.Fabric(Fabric{Name: "ib", Family: Irregular})
		h := b.Host(Host{Name: "h", Pod: None, Rack: None})
		class := b.Class(Class{Kind: InfiniBand, Gen: "hdr", Lanes: 4, Rate: 1e9})
		nodes := map[string]NodeID{}
		node := func(name string) NodeID {
			if _, ok := nodes[name]; !ok {
				part := Part(Switch, None, name)
				if name[0] == 'n' {
					part = Part(NIC, h, name)
				}
				part.Fabric = f
				nodes[name] = b.Node(part)
			}
			return nodes[name]
		}
		for _, l := range links {
			b.Link(Link{A: node(l[0]), B: node(l[1]), Class: class})
		}
		return b, nodes, f
	}
	for _, c := range []struct {
		name    string
		links   [][2]string
		tiers   map[string]uint8
		layered bool
	}{
		{"three tiers", [][2]string{{"n0", "l0"}, {"l0", "s0"}, {"s0", "c0"}, {"c0", "s1"}, {"s1", "l1"}, {"l1", "n1"}},
			map[string]uint8{"l0": 1, "l1": 1, "s0": 2, "s1": 2, "c0": 3}, true},
		{"a ring", [][2]string{{"n0", "a"}, {"n1", "b"}, {"a", "b"}}, map[string]uint8{"a": 1, "b": 1}, false},
		{"one switch", [][2]string{{"n0", "a"}}, map[string]uint8{"a": 1}, true},
		{"a server at a spine", [][2]string{{"n0", "l0"}, {"l0", "s0"}, {"n1", "s0"}}, map[string]uint8{"l0": 1, "s0": 1}, false},
		{"switches without hosts", [][2]string{{"n0", "l0"}, {"x", "y"}}, map[string]uint8{"l0": 1, "x": 0, "y": 0}, false},
	} {
		b, nodes, f := build(c.links)
		if got := b.InferTiers(f); got != c.layered {
			t.Errorf("%s: layered %v, want %v", c.name, got, c.layered)
		}
		for name, tier := range c.tiers {
			if got := b.At(nodes[name]).Tier; got != tier {
				t.Errorf("%s: %s in tier %d, want %d", c.name, name, got, tier)
			}
		}
	}
}
