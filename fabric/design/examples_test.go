package design

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
)

func example(t *testing.T, path string) *cluster.Cluster {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Parse(path, data, os.ReadFile)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestExamples analyzes every cluster file there is.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob("../../examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			c := example(t, path)
			if len(c.Graph.Hosts) == 1 { // one box has no network to report on
				if _, err := Analyze(c); err == nil || !strings.Contains(err.Error(), "no network between hosts") {
					t.Errorf("one host: %v", err)
				}
				return
			}
			r := analyze(t, c)
			check(t, r, "")
			if r.Bisection.Formula != nil && !r.Bisection.Agree {
				t.Errorf("formula %g, max-flow %g", *r.Bisection.Formula, r.Bisection.MaxFlow)
			}
		})
	}
}

// Two independent networks: either may be lost whole.
func TestTwoFabrics(t *testing.T) {
	r := analyze(t, example(t, "../../examples/two-fabrics.yaml"))
	l, ok := r.loss("fabric")
	if !ok || l.GPUsCutOff != 0 || l.HostLeft >= 1 || r.Redundancy[3].Answer != Yes {
		t.Errorf("%+v\n%+v", l, r.Redundancy[3])
	}
	for _, c := range r.Checklist {
		if c.Key == "reliability.dual_fabric" && c.Answer != Yes {
			t.Errorf("%+v", c)
		}
	}
}

// TestFabricWithoutAccelerators: an imported fabric may know no GPU and no tier.
func TestFabricWithoutAccelerators(t *testing.T) {
	g := wiring{hosts: 4, leaves: 2, tops: 1, nics: [][3]int{{0, 0, 100}, {1, 0, 100}, {2, 1, 100}, {3, 1, 100}},
		up: [][3]int{{0, 0, 100}, {1, 0, 100}}}.graph(t)
	b := topo.NewBuilder("imported")
	for _, h := range g.Hosts {
		b.Host(topo.Host{Name: h.Name, Pod: topo.None, Rack: topo.None})
	}
	moved := map[topo.NodeID]topo.NodeID{}
	for i, n := range g.Nodes {
		if n.Kind == topo.NIC || n.Kind == topo.Switch {
			n.Fabric, n.Tier = topo.None, 0
			moved[topo.NodeID(i)] = b.Node(n)
		}
	}
	for i, l := range g.Links {
		if c := g.Class(topo.LinkID(i)); c.Kind.Network() {
			b.Link(topo.Link{A: moved[l.A], B: moved[l.B], Class: b.Class(*c)})
		}
	}
	bare, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	r := analyze(t, &cluster.Cluster{Graph: bare})
	check(t, r, "")
	if r.Hosts != 0 || r.ServiceHosts != 4 || r.Switches.Leaf != 2 || r.Switches.Spine != 1 || r.Oversubscription != 2 ||
		r.BisectionRate != 12.5e9 {
		t.Errorf("%+v %+v %g %g", r.Hosts, r.Switches, r.Oversubscription, r.BisectionRate)
	}
	if l, _ := r.loss("spine"); l.HostsCutOff != 2 {
		t.Errorf("without its only spine: %+v", l)
	}
	for _, c := range r.Checklist {
		if strings.HasPrefix(c.Key, "host.") && c.Answer != NotApplicable {
			t.Errorf("%+v", c)
		}
	}
}
