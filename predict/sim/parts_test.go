package sim

import (
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/topo"
)

// Parts go by the names that weft prints, and an unknown one by what is known.
func TestPartsByName(t *testing.T) {
	g := preset(t, "rail", map[string]int{"hosts": 4})
	link := topo.LinkID(len(g.Links) - 1)
	for name, links := range map[string]int{
		"n2:nic3": 2, "leaf3": len(g.Edges(node(t, g, "leaf3"))), "leaf3:p1": 1, g.LinkName(link): 1, " n2:gpu0 ": 5,
	} {
		p, err := find(g, name)
		if err != nil || len(p.links) != links {
			t.Errorf("%q has %d links, want %d: %v", name, len(p.links), links, err)
		}
	}
	if p, err := find(g, "n2"); err != nil || len(p.nodes) != int(g.Hosts[2].Count) {
		t.Errorf("a host: %d nodes, %v", len(p.nodes), err)
	}
	for name, want := range map[string]string{
		"n2:nic99": "has no part", "leaf3:p999": "nothing at port 999", "leaf99": "no switch", "a - b": "a link is written like",
		"n9:gpu0": "no host", "": "",
	} {
		if _, err := find(g, name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", name, err, want)
		}
	}
}

func FuzzFind(f *testing.F) {
	g := preset(f, "rail", map[string]int{"hosts": 2})
	for _, s := range []string{"n0", "n0:nic1", "leaf0:p1", "leaf0", g.LinkName(0), ":p", "a - b", "leaf0:p99999999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := find(g, s)
		if err == nil && len(p.links)+len(p.nodes) == 0 {
			t.Fatalf("%q is nothing", s)
		}
	})
}
