package prove_test

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/fabric/network/prove"
)

// bondedStorage is examples/storage.yaml with its two storage NICs bonded over two leaves.
func bondedStorage(t *testing.T, render string) map[string]string {
	t.Helper()
	data, err := os.ReadFile("../../../examples/storage.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return texts(t,
		planOf(t, "storage.yaml", fmt.Sprintf("%snetwork: {storage: {bond: lacp}, render: {leaf: %s, spine: %s}}\n", data, render, render)))
}

var stored = []prove.Area{{Name: "storage", Group: "storage", Prefix: netip.MustParsePrefix("10.1.0.0/16")}}

// TestBondsOverTwoLeaves: bonded hosts reach one another over any one failure, their own NICs and leaves among them; and
// each line that makes it so is missed.
func TestBondsOverTwoLeaves(t *testing.T) {
	for _, render := range []string{"frr", "sonic"} {
		r := load(t, bondedStorage(t, render)).Prove(stored, prove.Options{Failures: true})
		single := r.Verdict("any one failure is survived")
		// 56 pairs; 12 switches, 16 cables between them and 16 NICs fail.
		if got := broken(r); len(got) > 0 || r.Verdict("hosts reach one another").Cases != 56 || single.Cases != 56*(12+16+16) {
			t.Errorf("%s: %q, %+v", render, got, single)
		}
	}
	leaf, script := "switches/storage-leaf0/etc/frr/frr.conf", "switches/storage-leaf0/usr/local/sbin/weft-bridges"
	for _, x := range []struct{ name, file, old, new, property, why string }{
		{"a leaf tells nobody", leaf, "  advertise-all-vni\n", "", "hosts reach one another", "tells nobody of its bridges"},
		{"a spine carries no addresses", "switches/storage-spine0/etc/frr/frr.conf",
			"  neighbor FABRIC activate\n", "", "bridges and VRFs are joined", "both ends need activate"},
		{"another network's number", script, "vxlan id 4040 ", "vxlan id 4041 ", "hosts reach one another", "nobody has"},
		{"another segment", leaf, "es-id 1\n", "es-id 77\n", "bridges and VRFs are joined", "not one segment"},
		{"another system", script, "ad_actor_system 02:", "ad_actor_system 06:", "bridges and VRFs are joined",
			"not one segment with one system"},
		{"no segment", leaf, " evpn mh es-id 1\n", " evpn mh es-id 2\n", "bridges and VRFs are joined", "segment"},
		{"a tunnel that carries too little", script, "vx40 mtu 9166", "vx40 mtu 1450", "full packets pass", "carries 1450 bytes"},
		{"a trunk without place for the header", "switches/storage-leaf0/etc/udev/rules.d/60-weft-mtu.rules",
			"9216", "9020", "full packets pass", "carries 9020 bytes"},
		{"a loopback that nobody learns", leaf, "permit 10.255.0.0/16 ge 32", "permit 10.254.0.0/16 ge 32", "bridges and VRFs are joined",
			"the end of its tunnels"},
		{"a host without its bond", "hosts/n0/etc/netplan/60-weft.yaml", "mode: 802.3ad", "mode: balance-rr", "bridges and VRFs are joined",
			"is bonded and"},
	} {
		files := bondedStorage(t, "frr")
		if !strings.Contains(files[x.file], x.old) {
			t.Fatalf("%s: no %q in %s", x.name, x.old, x.file)
		}
		files[x.file] = strings.Replace(files[x.file], x.old, x.new, -1)
		v := load(t, files).Prove(stored, prove.Options{Failures: true}).Verdict(x.property)
		if v.Holds || !strings.Contains(fmt.Sprint(v.Counter), x.why) {
			t.Errorf("%s: %+v, want %q", x.name, v, x.why)
		}
	}
}

// TestUplinksAreWatched: a leaf whose only uplink fails takes its bonds down, and hosts use their other leaf. Without the
// line that says so their packets end there.
func TestUplinksAreWatched(t *testing.T) {
	text := `name: s
kinds: {one: {devices: {cpu0: {kind: cpu}, gpu0: {kind: gpu, model: H100-SXM, parent: cpu0, link: pcie5}, "stor[0-1]": {kind: nic, model: ConnectX-7-Ethernet, parent: cpu0, link: pcie5, storage: true}}}}
hosts: {"n[0-3]": one}
fabrics: {s: {family: fat-tree, service: true, nics: "stor[0-1]", leaves: 2, leaf: {switch: SN5600-400, down: 2, up: 1, link: 400gbe}, spine: {switch: SN5600-400, count: 1}, link: 400gbe}}
network: {storage: {bond: lacp}}
`
	files := texts(t, planOf(t, "s.yaml", text))
	without := map[string]string{}
	for path, data := range files {
		without[path] = strings.ReplaceAll(data, " evpn mh uplink\n", "")
	}
	only := prove.Failure{Cables: []string{"leaf0:swp2s0"}}
	from, to := netip.MustParseAddr("10.1.1.10"), netip.MustParseAddr("10.1.1.13")
	for _, x := range []struct {
		files   map[string]string
		arrives bool
	}{{files, true}, {without, false}} {
		trip, err := load(t, x.files).FollowWithout(only, "n0", from, to)
		if err != nil || trip.Reached != x.arrives {
			t.Errorf("%v, %v; want arrival %v", trip, err, x.arrives)
		}
		// The only spine carries everything, so its loss is told in any case; the uplinks' loss where nobody watches them.
		v := load(t, x.files).Prove(stored, prove.Options{Failures: true}).Verdict("any one failure is survived")
		if told := strings.Contains(fmt.Sprint(v.Counter), "leaf0:swp2s0"); told == x.arrives {
			t.Errorf("uplinks watched: %v; told %v", x.arrives, v.Counter)
		}
	}
}

// TestTenantsAreApart: hosts of a tenant reach one another and nobody else, and a port in the wrong bridge is found.
func TestTenantsAreApart(t *testing.T) {
	data, err := os.ReadFile("../../../examples/lab.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, render := range []string{"frr", "sonic"} {
		p := planOf(t, "lab.yaml",
			fmt.Sprintf("%snetwork: {backend: {links: rail, vlan: 100}, tenants: {red: {hosts: [n0, n4]}, blue: {hosts: [n1, n5]}}, render: {leaf: %s, spine: %s}}\n",
				data, render, render))
		areas := areasOf(p)
		files := texts(t, p)
		r := load(t, files).Prove(areas, prove.Options{Failures: true})
		if got := broken(r); len(got) > 0 || r.Verdict("networks are apart").Cases != 160 {
			t.Errorf("%s: %q", render, got)
		}
		file, old, wrong := "switches/leaf0/usr/local/sbin/weft-bridges",
			"ip link set dev swp1s0 master br101 up", "ip link set dev swp1s0 master br102 up"
		if render == "sonic" {
			file, old, wrong = "switches/leaf0/etc/sonic/config_db.json", `"Vlan101|Ethernet0"`, `"Vlan102|Ethernet0"`
		}
		if !strings.Contains(files[file], old) {
			t.Fatalf("no %q in %s", old, files[file])
		}
		files[file] = strings.Replace(files[file], old, wrong, 1)
		r = load(t, files).Prove(areas, prove.Options{})
		if r.Verdict("networks are apart").Holds || r.Verdict("hosts reach one another").Holds {
			t.Errorf("%s: n0 is in blue's bridge: %q", render, broken(r))
		}
	}
}

// TestRoutedTenantsAreApart: tenants on routed links have VRFs. Their hosts reach one another and nobody else, with any one
// failure; and each line that makes it so is missed.
func TestRoutedTenantsAreApart(t *testing.T) {
	data, err := os.ReadFile("../../../examples/lab.yaml")
	if err != nil {
		t.Fatal(err)
	}
	planned := func(render string) (files map[string]string, areas []prove.Area) {
		p := planOf(t, "lab.yaml",
			fmt.Sprintf("%snetwork: {tenants: {red: {hosts: [n0, n4]}, blue: {hosts: [n1, n5]}}, render: {leaf: %s, spine: %s}}\n",
				data, render, render))
		return texts(t, p), areasOf(p)
	}
	for _, render := range []string{"frr", "sonic"} {
		files, areas := planned(render)
		r := load(t, files).Prove(areas, prove.Options{Failures: true})
		if got := broken(r); len(got) > 0 || r.Verdict("networks are apart").Cases != 160 {
			t.Errorf("%s: %q, %+v", render, got, r.Verdict("networks are apart"))
		}
	}
	conf, script, db := "switches/leaf0/etc/frr/frr.conf", "switches/leaf0/usr/local/sbin/weft-bridges",
		"switches/leaf0/etc/sonic/config_db.json"
	for _, x := range []struct{ name, render, file, old, new, property, why string }{
		{"a port in another tenant's VRF", "frr", script, "swp1s0 master Vrf_red", "swp1s0 master Vrf_blue", "networks are apart", "10.160"},
		{"and its own tenant misses it", "frr", script, "swp1s0 master Vrf_red", "swp1s0 master Vrf_blue", "hosts reach one another", "in Vrf_"},
		{"a port in no VRF", "frr", script, "ip link set dev swp1s0 master Vrf_red\n", "", "hosts reach one another", "10.160"},
		{"the same number for two tenants", "frr", conf, "vni 7001", "vni 7002", "bridges and VRFs are joined", "no tunnel of leaf0"},
		{"a tunnel with another number", "frr", script, "vxlan id 7001 ", "vxlan id 7009 ", "hosts reach one another",
			"no tunnel of leaf0 carries packets of Vrf_red"},
		{"routes that are not advertised", "frr", conf, "  advertise ipv4 unicast\n", "", "bridges and VRFs are joined",
			"tells nobody of Vrf_red"},
		{"routes that are not taken from the ports",
			"frr", conf,
			"vrf Vrf_red\n bgp router-id 10.255.0.1\n bgp bestpath as-path multipath-relax\n !\n address-family ipv4 unicast\n  redistribute connected route-map OURS\n",
			"vrf Vrf_red\n bgp router-id 10.255.0.1\n bgp bestpath as-path multipath-relax\n !\n address-family ipv4 unicast\n",
			"bridges and VRFs are joined", "tells nobody of 10.160.0.0/31"},
		{"a VRF that takes routes of another", "frr", conf,
			"  maximum-paths 64\n exit-address-family\n !\n address-family l2vpn evpn\n  advertise",
			"  import vrf Vrf_blue\n  maximum-paths 64\n exit-address-family\n !\n address-family l2vpn evpn\n  advertise",
			"files are modelled", "import vrf"},
		{"a VRF that goes on in the main table", "frr", script, "ip route add table 1001 unreachable default metric 4278198272\n",
			"", "networks are apart", "leaf0"},
		{"a tunnel that carries too little", "frr", script, "vx3001 mtu 9166", "vx3001 mtu 1450", "full packets pass", "carries 1450 bytes"},
		{"SONiC: a port in another tenant's VRF", "sonic", db, `"vrf_name": "Vrf_red"`, `"vrf_name": "Vrf_blue"`, "hosts reach one another",
			"10.160"},
		{"SONiC: a VRF without its number", "sonic", db, `"vni": "7001"`, `"vni": "7002"`, "bridges and VRFs are joined", "Vrf_red"},
	} {
		files, areas := planned(x.render)
		if !strings.Contains(files[x.file], x.old) {
			t.Fatalf("%s: no %q in %s", x.name, x.old, files[x.file])
		}
		files[x.file] = strings.Replace(files[x.file], x.old, x.new, 1)
		v := load(t, files).Prove(areas, prove.Options{}).Verdict(x.property)
		if v.Holds || !strings.Contains(fmt.Sprint(v.Counter), x.why) {
			t.Errorf("%s: %+v, want %q", x.name, v, x.why)
		}
	}
}
