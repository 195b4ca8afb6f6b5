package topo

import "testing"

// boxed builds a host from lines of parent and child, with PCIe between them,
// SMP from a CPU to its root ports, and NVLinks by count.
func boxed(t *testing.T, tree [][2]string, nvlinks map[[2]string]uint16) *Graph {
	t.Helper()
	kinds := map[byte]Kind{'g': GPU, 'c': CPU, 'r': RootPort, 'p': PCIeSwitch, 's': NVSwitch, 'n': NIC}
	b := NewBuilder("box")
	h := b.Host(Host{Name: "h", Pod: None, Rack: None})
	nodes := map[string]NodeID{}
	node := func(name string) NodeID {
		if _, ok := nodes[name]; !ok {
			nodes[name] = b.Node(Part(kinds[name[0]], h, name))
		}
		return nodes[name]
	}
	for _, e := range tree {
		kind := PCIe
		if e[0][0] == 'c' && (e[1][0] == 'r' || e[1][0] == 'c') {
			kind = SMP
		}
		b.Link(Link{A: node(e[0]), B: node(e[1]), Class: b.Class(Class{Kind: kind, Gen: "x", Lanes: 16, Rate: 1e9})})
	}
	for e, n := range nvlinks {
		b.Link(Link{A: node(e[0]), B: node(e[1]), Class: b.Class(Class{Kind: NVLink, Gen: "nv", Lanes: 1, Rate: 1e9}), Count: n})
	}
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestConnectionSaysWhatNvidiaSmiSays(t *testing.T) {
	g := boxed(t, [][2]string{
		{"c0", "c1"},
		{"c0", "r0"}, {"r0", "p0"}, {"p0", "g0"}, {"p0", "n0"}, {"p0", "p1"}, {"p1", "g1"},
		{"r0", "g2"}, {"c0", "r1"}, {"r1", "g3"},
		{"c1", "g4"}, {"c1", "g5"}, {"c1", "p2"}, {"p2", "n1"},
	}, map[[2]string]uint16{{"g4", "g5"}: 2, {"g0", "s0"}: 6, {"g0", "s1"}: 6, {"g3", "s0"}: 5, {"g3", "s1"}: 6, {"g1", "s1"}: 4})
	for _, c := range []struct{ a, b, want string }{
		{"g0", "g0", "X"},
		{"g0", "n0", "PIX"},
		{"g1", "n0", "PXB"},
		{"g2", "n0", "PHB"},
		{"g3", "n0", "NODE"},
		{"g4", "n0", "SYS"},
		{"g4", "n1", "PHB"}, // cpu c1 has no root ports in the graph and counts as one
		{"n0", "n1", "SYS"},
		{"g4", "g5", "NV2"},
		{"g0", "g3", "NV11"}, // 12 against 11 into the two switches they share
		{"g0", "g1", "NV4"},  // only s1 is shared
		{"g1", "g2", "PHB"},
	} {
		a, err := g.Lookup(c.a)
		if err != nil {
			t.Fatal(err)
		}
		b, err := g.Lookup(c.b)
		if err != nil {
			t.Fatal(err)
		}
		if got := g.Connection(a, b).String(); got != c.want {
			t.Errorf("%s to %s: %s, want %s", c.a, c.b, got, c.want)
		}
		if ab, ba := g.Connection(a, b), g.Connection(b, a); ab != ba {
			t.Errorf("%s to %s is %s, but back it is %s", c.a, c.b, ab, ba)
		}
	}
}

func TestDiffNamesWhatDiffers(t *testing.T) {
	tree := [][2]string{{"c0", "r0"}, {"r0", "g0"}, {"r0", "n0"}}
	a := boxed(t, tree, nil)
	if d := Diff(a, boxed(t, tree, nil)); len(d) > 0 {
		t.Errorf("equal graphs differ: %v", d)
	}
	b := boxed(t, append(tree[:2:2], [2]string{"r0", "g1"}), map[[2]string]uint16{{"g0", "g1"}: 2})
	got := Diff(a, b)
	want := []string{
		"gpu h:g1: only in the second",
		"nic h:n0: only in the first",
		"link h:g0 - h:g1 (nv x1, 1 GB/s each way): only in the second",
		"link h:g1 - h:r0 (x x16, 1 GB/s each way): only in the second",
		"link h:n0 - h:r0 (x x16, 1 GB/s each way): only in the first",
	}
	if len(got) != len(want) {
		t.Fatalf("got %q", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("got %q, want %q", got[i], want[i])
		}
	}
}

func TestCabledNumbersOpenPorts(t *testing.T) {
	b := NewBuilder("net")
	f := b.Fabric(Fabric{Name: "ib", Family: Clos})
	h := b.Host(Host{Name: "n0", Pod: 3, Rack: 1})
	nic := b.Node(Part(NIC, h, "nic0"))
	unused := b.Node(Part(NIC, h, "nic1"))
	leaf, spine := Part(Switch, None, "leaf0"), Part(Switch, None, "spine0")
	leaf.Fabric, leaf.Tier, leaf.Rail, leaf.Ports = f, 1, 0, 8
	spine.Fabric, spine.Tier = f, 2
	l, s := b.Node(leaf), b.Node(spine)
	hdr := b.Class(Class{Kind: InfiniBand, Gen: "hdr", Lanes: 4, Rate: 25e9})
	b.Link(Link{A: nic, B: l, BPort: 2, Class: hdr})
	b.Link(Link{A: l, B: s, Class: hdr, Count: 3})
	_ = unused
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	got := FabricOnly(g)
	var names []string
	for i := range got.Links {
		names = append(names, got.LinkName(LinkID(i)))
	}
	want := []string{"n0:nic0 - leaf0:p2", "leaf0:p1 - spine0:p1", "leaf0:p3 - spine0:p2", "leaf0:p4 - spine0:p3"}
	if len(names) != len(want) {
		t.Fatalf("got %q", names)
	}
	for i := range want {
		if names[i] != want[i] {
			t.Errorf("got %q, want %q", names[i], want[i])
		}
	}
	if got.Count(NIC) != 1 || got.Fabrics[0].Family != Clos || got.Hosts[0].Pod != None {
		t.Errorf("got %d NICs, family %s, pod %d", got.Count(NIC), got.Fabrics[0].Family, got.Hosts[0].Pod)
	}
	if sp, _ := got.Lookup("spine0"); got.Nodes[sp].Ports != 3 || got.Nodes[sp].Tier != 2 {
		t.Errorf("spine has %d ports in tier %d; want 3 in tier 2", got.Nodes[sp].Ports, got.Nodes[sp].Tier)
	}
}

func TestHostOnlyKeepsSwitchesOutside(t *testing.T) {
	b := NewBuilder("rack")
	nv := b.Class(Class{Kind: NVLink, Gen: "nv", Lanes: 1, Rate: 1e9})
	sw := b.Node(Part(NVSwitch, None, "nvs0"))
	for i := range 3 {
		h := b.Host(Host{Name: string(rune('a' + i)), Pod: None, Rack: None})
		for _, name := range []string{"gpu0", "gpu1"} {
			b.Link(Link{A: b.Node(Part(GPU, h, name)), B: sw, Class: nv, Count: 9})
		}
	}
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	one := HostOnly(g, 1)
	if len(one.Hosts) != 1 || one.Hosts[0].Name != "b" || one.Count(GPU) != 2 || one.Count(NVSwitch) != 1 || len(one.Links) != 2 {
		t.Fatalf("got %d hosts, %d GPUs, %d switches, %d links", len(one.Hosts), one.Count(GPU), one.Count(NVSwitch), len(one.Links))
	}
	if c := one.Connection(0, 1).String(); c != "NV9" {
		t.Errorf("got %s, want NV9", c)
	}
}
