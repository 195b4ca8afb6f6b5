package prove_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/fabric/network/emit"
	"github.com/weft-fabric/weft/fabric/network/prove"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/model/cluster"
)

// planOf makes the plan of a cluster file.
func planOf(t *testing.T, name, text string) *network.Plan {
	t.Helper()
	c, err := cluster.Parse(name, []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := network.Make(name, c, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// emitted reads the files of a plan back; of the hosts those named only.
func emitted(t *testing.T, p *network.Plan, hosts []string) *prove.Net {
	t.Helper()
	list, err := emit.Make(p, []string{"cables", "frr", "netplan"})
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, f := range list {
		part := strings.Split(f.Path, "/")
		if part[0] != "hosts" || slices.Contains(hosts, part[1]) {
			files[f.Path] = f.Data
		}
	}
	n, err := prove.Load(files)
	if err != nil {
		t.Fatal(err)
	}
	if len(n.Unread) > 0 {
		t.Errorf("the model does not know %d lines: %q", len(n.Unread), n.Unread[:min(5, len(n.Unread))])
	}
	return n
}

// some names the hosts of a plan, of a large one a few far apart.
func some(p *network.Plan) []string {
	var out []string
	for i := range p.Hosts {
		if n := len(p.Hosts); n <= 16 || i < 2 || i == n/2 || i >= n-2 {
			out = append(out, p.Hosts[i].Name)
		}
	}
	return out
}

// TestFlowsArrive: of every example, flows between hosts in storage and on each rail arrive by the emitted files
// alone, where the cluster file has the switches.
func TestFlowsArrive(t *testing.T) {
	files, err := filepath.Glob("../../../examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			p := planOf(t, file, string(data))
			if len(p.Hosts) > 512 && !bounded.Long() {
				t.Skipf("%d hosts; with the long tests", len(p.Hosts))
			}
			if arrived, lost := flows(t, p); len(lost) > 0 {
				t.Errorf("%d flows arrive, %d are lost: %v", arrived, len(lost), lost[0])
			}
		})
	}
}

// flows follows the flows of a plan between some of its hosts.
func flows(t *testing.T, p *network.Plan) (arrived int, lost []prove.Trip) {
	t.Helper()
	hosts := some(p)
	n := emitted(t, p, hosts)
	for _, a := range hosts {
		for _, b := range hosts {
			for rail := -1; a != b && rail < len(p.Rails); rail++ {
				flow := "collective"
				if rail < 0 {
					flow = "checkpoint"
				}
				path, err := p.Path(a, b, flow, rail)
				if err != nil || !path.Modelled {
					continue // a host without this rail, InfiniBand, or a network of the site
				}
				trip := n.Follow(a, path.Source, path.Target)
				if p.Tenant(a) != p.Tenant(b) { // apart by design
					trip.Reached = !trip.Reached
				}
				if trip.Reached {
					arrived++
				} else {
					lost = append(lost, trip)
				}
			}
		}
	}
	return arrived, lost
}

// TestSharedSubnets: a subnet per leaf is a VLAN. SONiC's files make its bridge; FRR's do not, so it is refused. A subnet
// per rail has bridges that tunnels join, in both.
func TestSharedSubnets(t *testing.T) {
	data, err := os.ReadFile("../../../examples/lab.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ links, leaf, refused string }{
		{"/31", "frr", ""}, {"leaf", "sonic", ""}, {"leaf", "frr", "makes no bridge"}, {"rail", "frr", ""}, {"rail", "sonic", ""},
	} {
		text := fmt.Sprintf("%snetwork: {backend: {links: %s}, render: {leaf: %s, spine: frr}}\n", data, x.links, x.leaf)
		c, err := cluster.Parse("lab.yaml", []byte(text), nil)
		if err != nil {
			t.Fatal(err)
		}
		p, err := network.Make("lab.yaml", c, nil)
		if x.refused != "" {
			if err == nil || !strings.Contains(err.Error(), x.refused) {
				t.Errorf("links %s, %s: %v, want %q", x.links, x.leaf, err, x.refused)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if v := load(t, texts(t, p)).Prove(areasOf(p), prove.Options{}).Verdict("hosts reach one another"); !v.Holds || v.Cases == 0 {
			t.Errorf("links %s, %s: %+v", x.links, x.leaf, v)
		}
	}
}

// TestStorageIsRouted: all pairs of storage addresses reach one another, over both NICs, and
// storage switches know no way into the backend.
func TestStorageIsRouted(t *testing.T) {
	data, err := os.ReadFile("../../../examples/storage.yaml")
	if err != nil {
		t.Fatal(err)
	}
	p := planOf(t, "storage.yaml", string(data))
	n := emitted(t, p, some(p))
	pairs, lost := n.Reach(p.Intent.Storage.Prefix)
	if pairs != 16*14 || len(lost) > 0 {
		t.Errorf("%d of %d pairs of storage addresses are lost, the first: %v", len(lost), pairs, first(lost))
	}
	if pairs, lost = n.Reach(p.Intent.Backend.Prefix); pairs != 16*14 || len(lost) > 0 {
		t.Logf("%d of %d pairs over different rails are lost", len(lost), pairs) // rails share no leaf, but spines
	}
	backend := p.Host("n7").First(network.Backend).Addr.Addr()
	storage := p.Host("n7").First(network.Storage).Addr.Addr()
	for name, d := range n.Devices {
		if !d.Router {
			continue
		}
		target, other := storage, backend
		if strings.HasPrefix(name, "compute") {
			target, other = backend, storage
		}
		if trip := n.Follow(name, netip.Addr{}, target); !trip.Reached {
			t.Errorf("%v", trip)
		}
		if trip := n.Follow(name, netip.Addr{}, other); trip.Reached {
			t.Errorf("%s leads from one network into the other: %v", name, trip)
		}
	}
}

func first(list []prove.Trip) any {
	if len(list) == 0 {
		return "none"
	}
	return list[0]
}

// TestModelSeesMistakes: files that were changed by hand are refuted, with the place.
func TestModelSeesMistakes(t *testing.T) {
	data, err := os.ReadFile("../../../examples/lab.yaml")
	if err != nil {
		t.Fatal(err)
	}
	p := planOf(t, "lab.yaml", string(data))
	list, err := emit.Make(p, []string{"cables", "frr", "netplan"})
	if err != nil {
		t.Fatal(err)
	}
	src, dst := p.Host("n0").First(network.Backend).Addr.Addr(), p.Host("n7").First(network.Backend).Addr.Addr()
	for _, x := range []struct{ name, file, old, new, want string }{
		{"nothing", "", "", "", ""},
		{"a leaf that advertises nothing", "switches/leaf2/", "redistribute connected route-map OURS", "", "has no route"},
		{"a filter that forgets the backend", "switches/leaf2/", "permit 10.160.0.0/16 le 32", "permit 10.160.0.0/16", "has no route"},
		{"a session that one end does not know", "switches/spine0/", "neighbor swp1s0 interface", "!", ""}, // spine1 is left
		{"a wrong gateway", "hosts/n0/", "via: 10.160.0.0", "via: 10.160.0.4", "does not have it"},
		{"a leaf with its spines' number", "switches/leaf2/", "router bgp 4200010002", "router bgp 4200000001", "has no route"},
		{"no route on the host", "hosts/n0/", "- {to: 10.160.0.0", "# - {to: 10.160.0.0", "front0, which has no cable"},
	} {
		files := map[string][]byte{}
		changed := x.file == ""
		for _, f := range list {
			text := string(f.Data)
			if x.file != "" && strings.HasPrefix(f.Path, x.file) {
				now := strings.ReplaceAll(text, x.old, x.new)
				changed = changed || now != text
				text = now
			}
			files[f.Path] = []byte(text)
		}
		if !changed {
			t.Errorf("%s: %q is not in the files", x.name, x.old)
			continue
		}
		n, err := prove.Load(files)
		if err != nil {
			t.Errorf("%s: %v", x.name, err)
			continue
		}
		trip := n.Follow("n0", src, dst)
		if trip.Reached != (x.want == "") || !strings.Contains(trip.Why, x.want) {
			t.Errorf("%s: %v, want %q", x.name, trip, x.want)
		}
	}
}
