package format

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/internal/ibsim"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/build"
	"github.com/weft-fabric/weft/model/topo/catalog"
)

// fabricOf builds hosts of one kind in a fabric, with nics of their compute NICs in use.
func fabricOf(t *testing.T, kind string, hosts, nics int, fabric func(names []string) build.Fabric) *topo.Graph {
	t.Helper()
	c := catalog.Default()
	box, err := build.Host(c, kind, "n0")
	if err != nil {
		t.Fatal(err)
	}
	var names, used []string
	for i := range hosts {
		names = append(names, fmt.Sprintf("n%d", i))
	}
	for i := range nics {
		used = append(used, fmt.Sprintf("nic%d", i))
	}
	g, _, err := build.Cluster{Name: "test", Hosts: []build.Hosts{{Box: box, Names: names}}, Fabrics: []build.Fabric{fabric(used)}}.Build(c)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// subnet is a running simulator of a graph.
type subnet struct {
	*ibsim.Subnet
}

// simulate starts ibsim with a graph's export.
func simulate(t *testing.T, g *topo.Graph) *subnet {
	t.Helper()
	var net bytes.Buffer
	if err := encodeIbsim(&net, g); err != nil {
		t.Fatal(err)
	}
	return &subnet{ibsim.Start(t, net.Bytes())}
}

func (s *subnet) run(t *testing.T, name string, args ...string) []byte {
	t.Helper()
	return s.Run(t, name, args...)
}

// route lets opensm sweep the subnet once and wants it up, routed by the engine and no other.
func (s *subnet) route(t *testing.T, engine string, args ...string) {
	t.Helper()
	log := filepath.Join(s.Dir, "opensm.log")
	s.run(t, "opensm", append([]string{"-f", log, "-d2", "-s", "0", "-o", "-R", engine + ",no_fallback"}, args...)...)
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{engine + " tables configured on all switches", "SUBNET UP"} {
		if !bytes.Contains(text, []byte(want)) {
			t.Fatalf("opensm's log does not say %q:\n%s", want, text[max(0, len(text)-3000):])
		}
	}
}

// discover gives what ibnetdiscover finds.
func (s *subnet) discover(t *testing.T, args ...string) *topo.Graph {
	t.Helper()
	g, err := decodeDiscover("found", s.run(t, "ibnetdiscover", args...))
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func same(t *testing.T, want, got *topo.Graph) {
	t.Helper()
	if diff := topo.Diff(topo.FabricOnly(want), topo.FabricOnly(got)); len(diff) > 0 {
		t.Errorf("discovery does not give the graph back:\n%s", strings.Join(diff, "\n"))
	}
}

func TestOpenSMRoutesTwoTiers(t *testing.T) {
	g := fabricOf(t, "dgx-a100", 128, 1, func(nics []string) build.Fabric {
		return build.Clos{Name: "compute", NICs: nics, Tiers: 2, Leaf: build.Tier{Model: "QM8790"}}
	})
	s := simulate(t, g)
	s.route(t, "ftree")
	found := s.discover(t)
	same(t, g, found)
	if found.Fabrics[0].Family != topo.Clos {
		t.Errorf("a fat-tree was taken for %s", found.Fabrics[0].Family)
	}
	if n := len(found.Hosts); n != 128 {
		t.Errorf("found %d hosts, want 128", n)
	}
	report := s.discover(t, "-p")
	if diff := topo.Diff(topo.FabricOnly(report), topo.FabricOnly(found)); len(diff) > 0 {
		t.Errorf("ibnetdiscover -p tells something else:\n%s", strings.Join(diff, "\n"))
	}
}

func TestOpenSMRoutesThreeTiersOfRails(t *testing.T) {
	g := fabricOf(t, "dgx-a100", bounded.Times(12, 128), 8, func(nics []string) build.Fabric {
		return build.Clos{Name: "compute", NICs: nics, Rails: true, Tiers: 3, Leaf: build.Tier{Model: "QM8790"}}
	})
	s := simulate(t, g)
	s.route(t, "updn")
	same(t, g, s.discover(t))
}

func TestOpenSMRoutesTorus(t *testing.T) {
	dims := []int{5, 4, 3}
	g := fabricOf(t, "dgx-a100", 60, 2, func(nics []string) build.Fabric {
		return build.Torus{Name: "compute", NICs: nics, Dims: dims, Ports: 2, Model: "QM8790"}
	})
	s := simulate(t, g)
	s.route(t, "dor")
	found := s.discover(t)
	same(t, g, found)
	if found.Fabrics[0].Family == topo.Clos {
		t.Error("a torus was taken for a Clos")
	}
	s.route(t, "torus-2QoS", "-Q", "--torus_config", s.torusConfig(t, g, dims))
}

// torusConfig tells torus-2QoS where the torus starts and which way its dimensions run.
func (s *subnet) torusConfig(t *testing.T, g *topo.Graph, dims []int) string {
	t.Helper()
	guid := func(x, y, z int) string {
		n := g.At(0, x+dims[0]*(y+dims[1]*z))
		return fmt.Sprintf("0x%x", inventGUID(g.Nodes[n].Name))
	}
	text := fmt.Sprintf("torus %d %d %d\n", dims[0], dims[1], dims[2])
	text += fmt.Sprintf("xp_link %s %s\nyp_link %s %s\nzp_link %s %s\n",
		guid(0, 0, 0), guid(1, 0, 0), guid(0, 0, 0), guid(0, 1, 0), guid(0, 0, 0), guid(0, 0, 1))
	text += fmt.Sprintf("xm_link %s %s\nym_link %s %s\nzm_link %s %s\n",
		guid(0, 0, 0), guid(dims[0]-1, 0, 0), guid(0, 0, 0), guid(0, dims[1]-1, 0), guid(0, 0, 0), guid(0, 0, dims[2]-1))
	path := filepath.Join(s.Dir, "torus.conf")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// The simulator may be older than NDR; the wiring must come back whole, and the rate as HDR or NDR.
func TestOpenSMRoutesNDRExport(t *testing.T) {
	g := fabricOf(t, "dgx-h100", 32, 8, func(nics []string) build.Fabric {
		return build.Clos{Name: "compute", NICs: nics, Rails: true, Tiers: 2, Leaf: build.Tier{Model: "QM9700"}}
	})
	s := simulate(t, g)
	s.route(t, "ftree")
	found := s.discover(t)
	net, err := os.ReadFile(s.File)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range found.Classes {
		switch c.Gen {
		case "hdr":
			net = bytes.ReplaceAll(net, []byte("4xNDR"), []byte("4xHDR"))
		case "ndr":
		default:
			t.Errorf("a link of %s; want hdr or ndr", c)
		}
	}
	want, err := decodeIbsim("want", net)
	if err != nil {
		t.Fatal(err)
	}
	same(t, want, found)
}
