package prove_test

import (
	"fmt"
	"math/rand/v2"
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
)

// areasOf are the networks of a plan that switches join.
func areasOf(p *network.Plan) (out []prove.Area) {
	seen := map[netip.Prefix]bool{}
	for i := range p.Hosts {
		for _, x := range p.Hosts[i].Interfaces {
			net := x.Net
			if x.Role == network.Storage && p.Intent.Storage.Bond == "lacp" && x.Bond == "" &&
				p.Hosts[i].Interfaces[len(p.Hosts[i].Interfaces)-2].Link != network.None {
				net = x.Addr.Masked() // a bond of plugged NICs
			}
			if net.IsValid() && !seen[net] {
				seen[net] = true
				out = append(out, prove.Area{Name: x.Name, Group: "storage", Prefix: net, Open: x.Net.IsValid()})
			}
		}
	}
	for _, r := range p.Rails {
		if !r.InfiniBand {
			out = append(out, prove.Area{Name: fmt.Sprintf("rail %d", r.Number), Group: "backend", Prefix: r.Prefix})
		}
	}
	if len(p.Intent.Tenants) == 0 {
		return out
	}
	var parts []prove.Area
	for _, a := range out {
		rest := map[string]bool{}
		for i := range p.Hosts {
			rest[p.Hosts[i].Name] = true
		}
		for _, tenant := range p.Intent.Tenants {
			part := a
			part.Name, part.Group, part.Hosts = a.Name+" "+tenant.Name, a.Group+" "+tenant.Name, map[string]bool{}
			for _, host := range tenant.Hosts {
				part.Hosts[host] = true
				delete(rest, host)
			}
			parts = append(parts, part)
		}
		a.Hosts = rest
		parts = append(parts, a)
	}
	return parts
}

// texts are the files of a plan.
func texts(t *testing.T, p *network.Plan, more ...string) map[string]string {
	t.Helper()
	list, err := emit.Make(p, append([]string{"cables", "netplan", p.Intent.Render.Leaf, p.Intent.Render.Spine}, more...))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, f := range list {
		out[f.Path] = string(f.Data)
	}
	return out
}

func load(t *testing.T, files map[string]string) *prove.Net {
	t.Helper()
	data := map[string][]byte{}
	for path, text := range files {
		data[path] = []byte(text)
	}
	n, err := prove.Load(data)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func broken(r *prove.Report) (out []string) {
	for _, v := range r.Verdicts {
		if !v.Holds && !v.Advice {
			out = append(out, fmt.Sprintf("%s: %d of %d: %v", v.Property, v.Broken, v.Cases, v.Counter))
		}
	}
	return out
}

// TestExamplesAreProven: of every example with Ethernet between hosts all properties hold, in every
// pair and under every single failure.
func TestExamplesAreProven(t *testing.T) {
	files, err := filepath.Glob("../../../examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	proven := 0
	for _, file := range files {
		if large := slices.Contains([]string{"meta-24k.yaml", "rail-131k.yaml"}, filepath.Base(file)); large && !bounded.Long() {
			continue
		}
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		p := planOf(t, file, string(data))
		areas := areasOf(p)
		if len(areas) == 0 {
			continue
		}
		proven++
		r := load(t, texts(t, p)).Prove(areas, prove.Options{Failures: true, Pairs: 20})
		for _, b := range broken(r) {
			if strings.HasSuffix(file, "pcie-lab.yaml") && strings.HasPrefix(b, "any one failure") {
				continue // one spine
			}
			t.Errorf("%s: %s", file, b)
		}
		t.Logf("%s: %d hosts, %d switches, %d classes, %d pairs, %d pairs and failures", filepath.Base(file), r.Hosts, r.Switches, r.Classes,
			r.Verdict("hosts reach one another").Cases, r.Verdict("any one failure is survived").Cases)
	}
	if proven < 4 {
		t.Errorf("%d examples were proven", proven)
	}
}

// TestThreeTiersRoute: in a fabric of three tiers spines of different pods do not share an AS number, which
// would make them refuse one another's routes.
func TestThreeTiersRoute(t *testing.T) {
	p := planOf(t, "c.yaml",
		"name: c\nhosts: {\"n[0-31]\": hgx-h100}\nfabric: {family: rail, tiers: 3, pod: 4, switch: SN5600-400, link: 400gbe}\n")
	tiers := map[int]int{}
	for _, s := range p.Switches {
		tiers[s.Tier]++
	}
	if tiers[3] == 0 {
		t.Fatalf("no cores: %v", tiers)
	}
	if got := broken(load(t, texts(t, p)).Prove(areasOf(p), prove.Options{})); got != nil {
		t.Error(got)
	}
}

// TestTiersOfTwoDialects: SONiC leaves below FRR spines are one network, with routed links and with VLANs.
func TestTiersOfTwoDialects(t *testing.T) {
	for _, links := range []string{"/31", "leaf"} {
		for _, tiers := range [][2]string{{"sonic", "frr"}, {"frr", "sonic"}, {"sonic", "sonic"}} {
			if links == "leaf" && tiers[0] == "frr" {
				continue // no bridge, and nobody says there is one
			}
			p := planOf(t, "c.yaml",
				fmt.Sprintf("name: c\nhosts: {\"n[0-7]\": hgx-h100}\nfabric: {family: rail, switch: SN5600, link: 400gbe, pod: 4}\nnetwork: {backend: {links: %s}, render: {leaf: %s, spine: %s}}\n",
					links, tiers[0], tiers[1]))
			r := load(t, texts(t, p, "nft")).Prove(areasOf(p), prove.Options{}) // there is one spine
			if got := broken(r); got != nil {
				t.Errorf("links %s, %v: %v", links, tiers, got)
			}
			if v := r.Verdict("hosts reach one another"); v == nil || v.Cases != 8*8*7 {
				t.Errorf("links %s, %v: %v", links, tiers, v)
			}
		}
	}
}

// TestPlantedMistakesAreRefuted: each mistake in a file refutes the property it breaks, with a packet, the
// failure, the path and the place, and no property that it leaves alone.
func TestPlantedMistakesAreRefuted(t *testing.T) {
	data, err := os.ReadFile("../../../examples/storage.yaml")
	if err != nil {
		t.Fatal(err)
	}
	p := planOf(t, "storage.yaml", string(data))
	areas := areasOf(p)
	const reach, mtu, any, unique, spoken, ecmp, apart, read = "hosts reach one another", "full packets pass", "any one failure is survived",
		"addresses and numbers are unique", "cables between switches carry BGP", "all shortest paths are used", "networks are apart",
		"files are modelled"
	leaf, spine := "switches/compute-leaf0/", "switches/compute-spine0/"
	for _, x := range []struct {
		name, file, old, new string
		refuted              []string
		want                 string
	}{
		{"nothing", "", "", "", nil, ""},
		{"no MTU on a leaf", leaf + "etc/udev", "ATTR{mtu}=\"9216\"", "", []string{mtu}, "9000 bytes"},
		{"a spine's port of 1500", spine + "etc/udev", `KERNEL=="swp1s0", ATTR{mtu}="9216"`, `KERNEL=="swp1s0", ATTR{mtu}="1500"`, []string{mtu},
			"compute-spine0:swp1s0 carries 1500 bytes"},
		{"a NIC of 1500", "hosts/n3/etc/netplan", "mtu: 9000", "mtu: 1500", []string{mtu}, "n3"},
		{"one path of two", leaf + "etc/frr/frr.conf", "maximum-paths 64", "maximum-paths 1", []string{ecmp}, "compute-leaf0 uses 1 of"},
		{"a session that one end does not know", spine + "etc/frr/frr.conf", "neighbor swp1s0 interface", "! ", []string{spoken, ecmp, any},
			"has no neighbor swp1s0"},
		{"two routers of one id", leaf + "etc/frr/frr.conf", "bgp router-id 10.255.0.1", "bgp router-id 10.255.0.2", []string{unique},
			"router id 10.255.0.2"},
		{"two leaves of one number", leaf + "etc/frr/frr.conf", "router bgp 4200010000", "router bgp 4200010001", []string{unique},
			"AS number 4200010001"},
		{"a password at one end", leaf + "etc/frr/frr.conf", " neighbor FABRIC timers connect 1", " neighbor FABRIC password x",
			[]string{spoken, reach}, "their passwords or their TTL security differ"},
		{"TTL security at one end", spine + "etc/frr/frr.conf", " neighbor FABRIC timers connect 1", " neighbor FABRIC ttl-security hops 1",
			[]string{spoken, any}, "compute-leaf0:swp3s0 - compute-spine0:swp1s0 has no session"},
		{"an address twice", "hosts/n1/etc/netplan", "addresses: [10.0.1.11/16]", "addresses: [10.0.1.10/16]", []string{unique},
			"address 10.0.1.10"},
		{"a line that nobody knows", leaf + "etc/frr/frr.conf", "router bgp", "ip route 10.9.0.0/16 swp1s0\nrouter bgp",
			[]string{read}, "ip route 10.9.0.0/16"},
		{"a cable and sessions between two networks", "", "join", "", []string{apart}, "it arrives from"},
	} {
		files := texts(t, p)
		changed := x.file == ""
		for path, text := range files {
			if x.file != "" && strings.HasPrefix(path, x.file) && strings.Contains(text, x.old) {
				files[path] = strings.ReplaceAll(text, x.old, x.new)
				changed = true
			}
		}
		if x.old == "join" { // a spare port of a compute spine into one of storage
			joinSpines(files)
		}
		if !changed {
			t.Errorf("%s: %q is not in the files", x.name, x.old)
			continue
		}
		r := load(t, files).Prove(areas, prove.Options{Failures: true})
		var names []string
		for _, v := range r.Verdicts {
			if !v.Holds {
				names = append(names, v.Property)
			}
		}
		slices.Sort(names)
		slices.Sort(x.refuted)
		if !slices.Equal(names, x.refuted) {
			t.Errorf("%s refutes %v, want %v: %v", x.name, names, x.refuted, broken(r))
		}
		if got := fmt.Sprint(broken(r)); !strings.Contains(got, x.want) {
			t.Errorf("%s: %s, want %q", x.name, got, x.want)
		}
	}
}

// joinSpines plugs a cable between a compute spine and a storage spine, with sessions at both ends.
func joinSpines(files map[string]string) {
	rows := strings.Split(strings.TrimSpace(files["cables/cables.csv"]), "\n")
	f := strings.Split(rows[1], ",")
	f[1], f[2], f[4], f[5] = "compute-spine0", "swp60", "storage-spine0", "swp60"
	files["cables/cables.csv"] = strings.Join(append(rows, strings.Join(f, ",")), "\n") + "\n"
	for _, s := range []string{"compute-spine0", "storage-spine0"} {
		path := "switches/" + s + "/etc/frr/frr.conf"
		files[path] = strings.Replace(files[path], " neighbor FABRIC peer-group\n",
			" neighbor FABRIC peer-group\n neighbor swp60 interface v6only peer-group FABRIC\n", 1)
		files["switches/"+s+"/etc/udev/rules.d/60-weft-mtu.rules"] += "SUBSYSTEM==\"net\", ACTION==\"add\", KERNEL==\"swp60\", ATTR{mtu}=\"9216\"\n"
	}
}

// TestFailuresByBruteForce: what is concluded for all pairs and failures at once is what following every
// packet under every failure gives, on fabrics with lines taken out at random.
func TestFailuresByBruteForce(t *testing.T) {
	data, err := os.ReadFile("../../../examples/lab.yaml")
	if err != nil {
		t.Fatal(err)
	}
	p := planOf(t, "lab.yaml", string(data))
	areas := areasOf(p)
	verdicts := map[bool]int{}
	for seed := range uint64(bounded.Times(12, 60)) {
		rng := rand.New(rand.NewPCG(seed, 7))
		files := texts(t, p)
		for range rng.IntN(4) {
			spoil(rng, files)
		}
		n := load(t, files)
		r := n.Prove(areas, prove.Options{Failures: true})
		lost, cut := brute(t, p, n, areas)
		if v := r.Verdict("hosts reach one another"); v.Broken != lost {
			t.Errorf("seed %d: %d pairs lost, following gives %d: %v", seed, v.Broken, lost, v.Counter)
		}
		v := r.Verdict("any one failure is survived")
		verdicts[v.Holds]++
		if lost == 0 && v.Broken != cut {
			t.Errorf("seed %d: %d pairs and failures cut, following gives %d: %v", seed, v.Broken, cut, v.Counter)
		}
	}
	t.Logf("held and refuted: %v", verdicts)
	if verdicts[true] == 0 || verdicts[false] == 0 {
		t.Errorf("only one verdict: %v", verdicts)
	}
}

// spoil takes a line out of a switch's file.
func spoil(rng *rand.Rand, files map[string]string) {
	sw := []string{"leaf0", "leaf1", "leaf2", "leaf3", "spine0", "spine1"}[rng.IntN(6)]
	path := "switches/" + sw + "/etc/frr/frr.conf"
	lines := strings.Split(files[path], "\n")
	var at []int
	for i, l := range lines {
		if strings.Contains(l, " interface v6only") {
			at = append(at, i)
		}
	}
	if len(at) > 0 {
		lines[at[rng.IntN(len(at))]] = "!"
	}
	files[path] = strings.Join(lines, "\n")
}

// brute follows every packet, as the network is and under every single failure that leaves both ends their NIC and switch.
func brute(t *testing.T, p *network.Plan, n *prove.Net, areas []prove.Area) (lost, cut int) {
	t.Helper()
	var failures []prove.Failure
	seen := map[string]bool{}
	for i := range p.Switches {
		s := &p.Switches[i]
		failures = append(failures, prove.Failure{Switches: []string{s.Name}})
		for j := range s.Ports {
			q := &s.Ports[j]
			if far, port := p.Far(q); far != nil && !seen[far.Name+":"+emit.PortName(p, far, port.Number)] {
				name := s.Name + ":" + emit.PortName(p, s, q.Number)
				seen[name] = true
				failures = append(failures, prove.Failure{Cables: []string{name}})
			}
		}
	}
	leaf := func(h *network.Host, rail int) string {
		for j := range h.Interfaces {
			if x := &h.Interfaces[j]; x.Rail == rail {
				sw, _ := p.PeerPort(x)
				return sw.Name
			}
		}
		return ""
	}
	for rail := range p.Rails {
		for a := range p.Hosts {
			for b := range p.Hosts {
				path, err := p.Path(p.Hosts[a].Name, p.Hosts[b].Name, "collective", rail)
				if a == b || err != nil {
					continue
				}
				if !n.Follow(p.Hosts[a].Name, path.Source, path.Target).Reached {
					lost++
				}
				for _, f := range failures {
					if slices.Contains(f.Switches, leaf(&p.Hosts[a], rail)) || slices.Contains(f.Switches, leaf(&p.Hosts[b], rail)) {
						continue
					}
					trip, err := n.FollowWithout(f, p.Hosts[a].Name, path.Source, path.Target)
					if err != nil {
						t.Fatal(err)
					}
					if !trip.Reached {
						cut++
					}
				}
			}
		}
	}
	return lost, cut
}
