package scene

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
)

// Every part of every example has a place of its own inside the picture, and nothing is left out.
func TestEveryPartHasAPlace(t *testing.T) {
	files, err := filepath.Glob("../../examples/*.yaml")
	if err != nil || len(files) < 10 {
		t.Fatal(len(files), err)
	}
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			c, err := cluster.Parse(name, data, func(path string) ([]byte, error) { return os.ReadFile(filepath.Join(filepath.Dir(name), path)) })
			if err != nil {
				t.Fatal(err)
			}
			check(t, c.Graph, New(c.Graph))
		})
	}
}

// box is a rectangle with a name.
type box struct {
	name       string
	x, y, w, h float64
}

func check(t *testing.T, g *topo.Graph, s *Scene) {
	t.Helper()
	var boxes []box
	hosts, switches := 0, 0
	for i, name := range s.Hosts.Name {
		k := s.Kinds[s.Hosts.Kind[i]]
		boxes = append(boxes, box{name, s.Hosts.X[i], s.Hosts.Y[i], k.W, k.H})
		if len(k.Names) != int(g.Hosts[i].Count) {
			t.Fatalf("%s has %d parts in the graph and %d here", name, g.Hosts[i].Count, len(k.Names))
		}
	}
	for i, name := range s.Chips.Name {
		if want := g.NodeName(topo.NodeID(s.Chips.First + i)); name != want {
			t.Fatalf("switch %d is %q, want %q", i, name, want)
		}
		boxes = append(boxes, box{name, s.Chips.X[i] - chip/2, s.Chips.Y[i] - chip/2, chip, chip})
	}
	for _, b := range s.Blocks {
		hosts, switches = hosts+b.Hosts, switches+b.Switches
	}
	for _, r := range s.Rows {
		switches += r.N
	}
	if hosts != len(g.Hosts) || switches != len(s.Chips.Name) {
		t.Errorf("blocks and rows hold %d hosts and %d switches; the graph has %d and %d", hosts, switches, len(g.Hosts), len(s.Chips.Name))
	}
	apart(t, s, boxes)
	for _, k := range s.Kinds {
		var parts []box
		for i, name := range k.Names {
			parts = append(parts, box{name, k.X[i] - k.Size[i]/2, k.Y[i] - k.Size[i]/2, k.Size[i], k.Size[i]})
		}
		apart(t, &Scene{Width: k.W, Height: k.H}, parts)
	}
	links := 0
	for i := range g.Links {
		a, b := g.Nodes[g.Links[i].A].Host, g.Nodes[g.Links[i].B].Host
		if a != b || a == topo.None {
			links++
		}
	}
	if s.AllLinks != links || !s.Folded && len(s.Links) != 2*links {
		t.Errorf("%d links, %d of them one by one; the graph has %d", s.AllLinks, len(s.Links)/2, links)
	}
}

// apart fails where boxes leave the picture or cover one another. Only neighbours in a grid of cells are compared.
func apart(t *testing.T, s *Scene, boxes []box) {
	t.Helper()
	const side = 300.0
	cells := map[[2]int][]int{}
	bad := 0
	for i, b := range boxes {
		if b.x < -.01 || b.y < -.01 || b.x+b.w > s.Width+.01 || b.y+b.h > s.Height+.01 {
			t.Errorf("%s at %.0f,%.0f of size %.0fx%.0f leaves the picture of %.0fx%.0f", b.name, b.x, b.y, b.w, b.h, s.Width, s.Height)
			bad++
		}
		for x := int(b.x / side); x <= int((b.x+b.w)/side); x++ {
			for y := int(b.y / side); y <= int((b.y+b.h)/side); y++ {
				for _, j := range cells[[2]int{x, y}] {
					o := boxes[j]
					if b.x < o.x+o.w-.01 && o.x < b.x+b.w-.01 && b.y < o.y+o.h-.01 && o.y < b.y+b.h-.01 {
						t.Errorf("%s covers %s", b.name, o.name)
						bad++
					}
				}
				cells[[2]int{x, y}] = append(cells[[2]int{x, y}], i)
			}
		}
		if bad > 4 {
			t.FailNow()
		}
	}
}

// A block of a large cluster has the links that lead into it, and no others.
func TestLinksOfABlock(t *testing.T) {
	c, err := cluster.Parse("c", []byte("hosts: {\"n[0-7]\": dgx-h100}\nfabric: {family: rail, switch: QM9700, pod: 4}\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	s := New(c.Graph)
	if len(s.Blocks) != 2 {
		t.Fatalf("%d blocks", len(s.Blocks))
	}
	both := len(BlockLinks(c.Graph, s, 0)) + len(BlockLinks(c.Graph, s, 1))
	if both != 2*s.AllLinks {
		t.Errorf("the blocks have %d ends of links, want %d", both, 2*s.AllLinks)
	}
}
