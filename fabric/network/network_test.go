package network

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/cluster"
)

// roce is an Ethernet cluster with every network cabled; hosts is a hostlist.
func roce(hosts, network string) string {
	return `name: roce
hosts:
  "` + hosts + `": {kind: dgx-h100, rack: 4}
fabric:
  family: rail
  switch: SN5600
  link: 400gbe
  pod: 32
` + network
}

func parse(t testing.TB, text string, files map[string]string) *cluster.Cluster {
	t.Helper()
	c, err := cluster.Parse("test.yaml", []byte(text), func(name string) ([]byte, error) {
		if s, ok := files[name]; ok {
			return []byte(s), nil
		}
		return nil, fmt.Errorf("no file %s", name)
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func plan(t testing.TB, text string) *Plan {
	t.Helper()
	p, err := Make("test.yaml", parse(t, text, nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// sound checks what every plan keeps.
func sound(t *testing.T, p *Plan) {
	t.Helper()
	owner := map[netip.Addr]string{}
	claim := func(who string, a netip.Addr) {
		if !a.IsValid() {
			t.Errorf("%s has no address", who)
		}
		if other, twice := owner[a]; twice {
			t.Fatalf("%s belongs to %s and to %s", a, other, who)
		}
		owner[a] = who
	}
	p.each(func(device, iface string, a netip.Prefix) { claim(device+" "+iface, a.Addr()) })
	for i := range p.Switches {
		for _, q := range p.Switches[i].Ports {
			if q.Addr.IsValid() && p.Intent.Backend.Links == "/31" {
				claim(fmt.Sprintf("%s p%d", p.Switches[i].Name, q.Number), q.Addr.Addr())
			}
		}
	}
	for i := range p.Hosts {
		h := &p.Hosts[i]
		defaults := 0
		for j := range h.Interfaces {
			x := &h.Interfaces[j]
			net := p.Net(x.Role)
			if x.Bond != "" {
				if x.Addr.IsValid() {
					t.Errorf("%s %s is a member of %s and has an address", h.Name, x.Name, x.Bond)
				}
				continue
			}
			if !net.Prefix.Contains(x.Addr.Addr()) {
				t.Errorf("%s %s: %s is outside %s", h.Name, x.Name, x.Addr, net.Prefix)
			}
			if x.Role == Frontend && x.Gateway.IsValid() {
				defaults++
			}
			if x.Role != Backend {
				continue
			}
			r := p.Rails[x.Rail]
			if !r.Prefix.Contains(x.Addr.Addr()) {
				t.Errorf("%s %s: %s is outside its rail %s", h.Name, x.Name, x.Addr, r.Prefix)
			}
			sw, port := p.PeerPort(x)
			if sw == nil {
				t.Errorf("%s %s leads to no switch", h.Name, x.Name)
				continue
			}
			if port.Host != i || port.Iface != j {
				t.Errorf("%s p%d is plugged into host %d interface %d, not %d %d", sw.Name, port.Number, port.Host, port.Iface, i, j)
			}
			if port.VNI != 0 { // a bridge over all leaves of the rail, where nobody routes
				if x.Gateway.IsValid() || x.Addr.Masked() != r.Prefix {
					t.Errorf("%s %s: %s by %s on the bridge of %s", h.Name, x.Name, x.Addr, x.Gateway, r.Prefix)
				}
			} else if !x.IB && !x.Addr.Masked().Contains(x.Gateway) {
				t.Errorf("%s %s: gateway %s is outside %s", h.Name, x.Name, x.Gateway, x.Addr.Masked())
			}
		}
		if defaults != 1 {
			t.Errorf("%s has %d default routes", h.Name, defaults)
		}
	}
}

func TestExamplesHaveSoundPlans(t *testing.T) {
	files, err := filepath.Glob("../../examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".yaml")
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			c, err := cluster.Parse(f, data, nil)
			if err != nil {
				t.Fatal(err)
			}
			p, err := Make(f, c, nil)
			if err != nil {
				t.Fatal(err)
			}
			sound(t, p)
		})
	}
}

func TestPlanOfRails(t *testing.T) {
	p := plan(t, roce("n[0-63]", ""))
	if len(p.Rails) != 8 || p.Rails[3].Prefix.String() != "10.160.96.0/19" || p.Rails[3].Table != 104 || p.Rails[3].Rule != 1040 {
		t.Fatalf("rail 3 is %+v", p.Rails[3])
	}
	h := p.Host("n1")
	for _, x := range []struct{ name, addr, gateway string }{
		{"svc0", "10.0.1.11/16", "10.0.0.1"},
		{"nic0", "10.160.0.3/31", "10.160.0.2"},
		{"nic7", "10.160.224.3/31", "10.160.224.2"},
		{"stor0", "10.1.1.11/17", "invalid IP"},
		{"stor1", "10.1.129.11/17", "invalid IP"},
	} {
		i := h.Interface(x.name)
		if i == nil {
			t.Errorf("no interface %s", x.name)
		} else if i.Addr.String() != x.addr || i.Gateway.String() != x.gateway {
			t.Errorf("%s is %s by %s; want %s by %s", x.name, i.Addr, i.Gateway, x.addr, x.gateway)
		}
	}
	if h.BMC.String() != "172.16.1.11/16" {
		t.Errorf("bmc %s", h.BMC)
	}
	leaf, spine, other := p.Switch("leaf0"), p.Switch("spine0"), p.Switch("spine1")
	if leaf.ASN == spine.ASN || spine.ASN != other.ASN || leaf.ASN == p.Switch("leaf1").ASN {
		t.Errorf("leaf0 %d leaf1 %d spine0 %d spine1 %d", leaf.ASN, p.Switch("leaf1").ASN, spine.ASN, other.ASN)
	}
}

// TestAddressesStay: a cluster that grows or loses a host keeps its addresses with a lock.
func TestAddressesStay(t *testing.T) {
	before := plan(t, roce("n[0-39]", ""))
	lock, err := ParseLock("lock", before.Lock())
	if err != nil {
		t.Fatal(err)
	}
	c := parse(t, roce("n[0-6,8-99]", ""), nil)
	after, err := Make("test.yaml", c, lock)
	if err != nil {
		t.Fatal(err)
	}
	sound(t, after)
	for _, m := range after.Moves(lock) { // more spines take over uplinks
		if m.What == "address" {
			t.Fatalf("%s", m)
		}
	}
	plain, err := Make("test.yaml", c, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(plain.Moves(lock), func(m Move) bool { return m.What == "address" }) {
		t.Error("without the lock a lost host should move the addresses behind it")
	}
	again, err := ParseLock("lock", after.Lock())
	if err != nil || again.Hosts["n8"] != 8 || again.Hosts["n99"] != 98+1 {
		t.Errorf("n8 is %d, n99 is %d, %v", again.Hosts["n8"], again.Hosts["n99"], err)
	}
}

func TestPathsOfFlows(t *testing.T) {
	p := plan(t, roce("n[0-63]", ""))
	path, err := p.Path("n0", "n17", "collective", 5)
	if err != nil {
		t.Fatal(err)
	}
	if path.Network != "backend" || path.Table != 106 || !path.Modelled || path.Hops != nil {
		t.Errorf("%+v", path)
	}
	if path, err = p.Path("n0", "n17", "checkpoint", 0); err != nil || path.Network != "storage" || path.Interface != "stor0" {
		t.Errorf("%+v %v", path, err)
	}
	if path, err = p.Path("n0", "n17", "bmc", 0); err != nil || path.Target.String() != "172.16.1.27" {
		t.Errorf("%+v %v", path, err)
	}
	for _, bad := range []func() error{
		func() error { _, err := p.Path("n0", "n99", "collective", 0); return err },
		func() error { _, err := p.Path("n0", "n1", "gossip", 0); return err },
		func() error { _, err := p.Path("n0", "n1", "collective", 8); return err },
	} {
		if bad() == nil {
			t.Error("a wrong question got an answer")
		}
	}
}

// TestTenantsAreApart: hosts that share no partition do not reach one another on InfiniBand.
func TestTenantsAreApart(t *testing.T) {
	p := plan(t, `name: x
hosts: {"n[0-7]": dgx-h100}
fabric: {family: rail, switch: QM9700}
network:
  partitions:
    a: {pkey: 0x10, hosts: "n[0-1,6]"}
    b: {pkey: 0x11, hosts: "n[2-5]", limited: "n[2-3]"}
`)
	reach := func(x, y string) bool {
		list, err := p.Reach(x, y)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range list {
			if c.From == "backend" && c.To == "backend" {
				return c.Reaches
			}
			if c.From == "backend" && c.Reaches {
				t.Errorf("backend reaches %s", c.To)
			}
		}
		return false
	}
	for pair, want := range map[[2]string]bool{{"n0", "n1"}: true, {"n0", "n2"}: false, {"n2", "n3"}: false, {"n2", "n4"}: true,
		{"n4", "n5"}: true, {"n0", "n4"}: false, {"n0", "n6"}: true} {
		if reach(pair[0], pair[1]) != want {
			t.Errorf("%v: want %v", pair, want)
		}
	}
}

func TestSubnetsALeaf(t *testing.T) {
	p := plan(t, roce("n[0-63]", "network: {backend: {links: leaf}, render: {leaf: sonic}}\n"))
	sound(t, p)
	if a, b := p.Host("n0").Interface("nic0"), p.Host("n63").Interface("nic0"); a.Addr.Masked() == b.Addr.Masked() {
		t.Errorf("n0 has %s, n63 has %s", a.Addr, b.Addr)
	}
}

// TestWrongIntents: each is refused with the line and a fix.
func TestWrongIntents(t *testing.T) {
	ib := func(network string) string {
		return "name: x\nhosts: {\"n[0-7]\": dgx-h100}\nfabric: {family: rail, switch: QM9700}\n" + network
	}
	eth := func(network string) string { return roce("n[0-63]", network) }
	big := func(network string) string { return roce("n[0-4999]", network) }
	for _, x := range []struct{ name, text, want string }{
		{"prefix is no prefix", eth("network: {frontend: {prefix: 10.0.0.0}}"), "such as 10.0.0.0/16"},
		{"prefix with host bits", eth("network: {frontend: {prefix: 10.0.0.1/16}}"), "write 10.0.0.0/16"},
		{"prefix of IPv6", eth("network: {frontend: {prefix: \"fd00::/64\"}}"), "IPv4"},
		{"prefix too wide", eth("network: {frontend: {prefix: 10.0.0.0/7}}"), "/8"},
		{"unknown field", eth("network: {frontent: {prefix: 10.0.0.0/16}}"), "did you mean \"frontend\""},
		{"unknown field of a net", eth("network: {frontend: {prefx: 10.0.0.0/16}}"), "did you mean \"prefix\""},
		{"vlan 0", eth("network: {frontend: {vlan: 0}}"), "between 1 and 4094"},
		{"vlan 4095", eth("network: {storage: {vlan: 4095}}"), "between 1 and 4094"},
		{"vlan of the peerlink", eth("network: {storage: {vlan: 4094}}"), "kept for the link"},
		{"vlan twice", eth("network: {storage: {vlan: 10}}"), "also the VLAN of frontend"},
		{"mtu small", eth("network: {backend: {mtu: 500}}"), "between 1280 and 9216"},
		{"mtu large", eth("network: {backend: {mtu: 9216}}"), "at most 9202"},
		{"mtu of InfiniBand", ib("network: {backend: {mtu: 9000}}"), "at most 4092"},
		{"links of InfiniBand", ib("network: {backend: {links: leaf}}"), "write rail"},
		{"links word", eth("network: {backend: {links: /30}}"), "known: /31, leaf, rail"},
		{"gateway outside", eth("network: {frontend: {gateway: 10.1.0.1}}"), "outside 10.0.0.0/16"},
		{"gateway is a host", eth("network: {frontend: {gateway: 10.0.1.20}}"), "address that hosts get"},
		{"gateway is the network", eth("network: {frontend: {gateway: 10.0.0.0}}"), "network's own"},
		{"gateway is no address", eth("network: {frontend: {gateway: one}}"), "such as 10.0.0.1"},
		{"second default route", eth("network: {storage: {gateway: 10.1.0.1}}"), "one default route"},
		{"default route of the backend", eth("network: {backend: {gateway: 10.160.0.1}}"), "one default route"},
		{"dns is a host", eth("network: {frontend: {dns: [10.0.2.30]}}"), "address that hosts get"},
		{"overlap of two", eth("network: {storage: {prefix: 10.0.128.0/17}}"), "overlaps 10.0.0.0/16 of frontend"},
		{"overlap with loopbacks", eth("network: {loopbacks: 10.1.0.0/24}"), "overlaps 10.1.0.0/16 of storage"},
		{"overlap with reserved", eth("network: {reserved: [10.0.0.0/12]}"), "of frontend"},
		{"loopback's own", eth("network: {frontend: {prefix: 127.0.0.0/16}}"), "the loopback"},
		{"link-local", eth("network: {backend: {prefix: 169.254.0.0/16}}"), "link-local"},
		{"multicast", eth("network: {backend: {prefix: 239.0.0.0/16}}"), "multicast"},
		{"reserved is no prefix", eth("network: {reserved: [pods]}"), "IPv4 prefix"},
		{"Calico's pool", eth("network: {backend: {prefix: 192.168.0.0/16}, render: {scheduler: [kubernetes]}}"), "Calico"},
		{"backend exhausted", big("network: {backend: {prefix: 10.160.0.0/16}}"), "a /15 would do"},
		{"frontend exhausted", eth("network: {frontend: {prefix: 10.0.0.0/26}}"), "a /25 would do"},
		{"management exhausted", eth("network: {management: {prefix: 172.16.0.0/26}}"), "would do"},
		{"storage exhausted", eth("network: {storage: {prefix: 10.1.0.0/25}}"), "a /24 would do"},
		{"loopbacks exhausted", eth("network: {loopbacks: 10.255.0.0/29}"), "would do"},
		{"rails do not fit", eth("network: {backend: {prefix: 10.160.0.0/30}}"), "cannot be cut into 8 rails"},
		{"table of the kernel", eth("network: {backend: {table: 250}}"), "253 to 255 are the kernel's"},
		{"rule behind main", eth("network: {backend: {rule: 32760}}"), "behind the main table"},
		{"table 0", eth("network: {backend: {table: 0}}"), "between 1 and"},
		{"protocol", eth("network: {routing: {protocol: ospf}}"), "known: bgp-unnumbered"},
		{"public asn", eth("network: {routing: {asn: 3320}}"), "private"},
		{"asn exhausted", big("network: {backend: {prefix: 172.20.0.0/14}, routing: {asn: 65000}}"), "begin at 4200000000"},
		{"bfd without count", eth("network: {routing: {bfd: 300ms}}"), "such as 300ms x3"},
		{"bfd too quick", eth("network: {routing: {bfd: 1ms x3}}"), "such as 300ms x3"},
		{"dscp", eth("network: {roce: {dscp: 64}}"), "between 0 and 63"},
		{"priority", eth("network: {roce: {priority: 8}}"), "between 0 and 7"},
		{"cnp priority lossless", eth("network: {roce: {cnp-priority: 3}}"), "lossless priority"},
		{"cnp dscp is the data's", eth("network: {roce: {cnp-dscp: 26}}"), "of the data"},
		{"ecn min above max", eth("network: {roce: {ecn: {min: 2MB, max: 1MB}}}"), "not below max"},
		{"ecn min of nothing", eth("network: {roce: {ecn: {min: 1B}}}"), "less than one packet"},
		{"ecn probability", eth("network: {roce: {ecn: {probability: 0}}}"), "between 1 and 100"},
		{"roce mode", eth("network: {roce: {mode: lossles}}"), "did you mean \"lossless\""},
		{"pkey of default", ib("network: {partitions: {a: {pkey: 0x7fff, hosts: n0}}}"), "0x1 to 0x7ffe"},
		{"pkey with the top bit", ib("network: {partitions: {a: {pkey: 0x8001, hosts: n0}}}"), "0x1 to 0x7ffe"},
		{"pkey twice", ib("network: {partitions: {a: {pkey: 1, hosts: n0}, b: {pkey: 1, hosts: n1}}}"), "also the key of a"},
		{"partition of nobody", ib("network: {partitions: {a: {pkey: 1}}}"), "missing"},
		{"partition of a stranger", ib("network: {partitions: {a: {pkey: 1, hosts: \"n[0-9]\"}}}"), "no host \"n8\""},
		{"partition on Ethernet", eth("network: {partitions: {a: {pkey: 1, hosts: n0}}}"), "Ethernet has VLANs"},
		{"bond of one", eth("network: {storage: {nics: stor0, bond: lacp}}"), "needs two"},
		{"bond of the backend", eth("network: {backend: {bond: lacp}}"), "separate networks"},
		{"bond on InfiniBand",
			"name: x\nhosts: {\"n[0-7]\": dgx-h100}\nfabrics:\n  c: {family: rail, switch: QM9700}\n  s: {family: fat-tree, service: true, nics: \"stor[0-1]\", leaves: 2, switch: QM9700}\nnetwork: {storage: {bond: lacp}}",
			"no LACP"},
		{"bond at one leaf",
			"name: x\nhosts: {\"n[0-7]\": dgx-h100}\nfabrics:\n  c: {family: rail, switch: SN5600, link: 400gbe}\n  s: {family: fat-tree, service: true, nics: \"stor[0-1]\", switch: SN5600, link: 400gbe}\nnetwork: {storage: {bond: lacp}}",
			"both NICs of n0 go to s-leaf0"},
		{"front end on routed switches",
			"name: x\nhosts: {\"n[0-7]\": dgx-h100}\nfabrics:\n  c: {family: rail, switch: SN5600, link: 400gbe}\n  f: {family: fat-tree, service: true, nics: svc0, switch: SN5600, link: 400gbe}",
			"no switch has the gateway"},
		{"bond over two leaves with Cumulus",
			"name: x\nhosts: {\"n[0-7]\": dgx-h100}\nfabrics:\n  c: {family: rail, switch: SN5600, link: 400gbe}\n  s: {family: fat-tree, service: true, nics: \"stor[0-1]\", leaves: 2, switch: SN5600, link: 400gbe}\nnetwork: {storage: {bond: lacp}, render: {leaf: nvue, spine: nvue}}",
			"written for frr and sonic"},
		{"bond with packets too large",
			"name: x\nhosts: {\"n[0-7]\": dgx-h100}\nfabrics:\n  c: {family: rail, switch: SN5600, link: 400gbe}\n  s: {family: fat-tree, service: true, nics: \"stor[0-1]\", leaves: 2, switch: SN5600, link: 400gbe}\nnetwork: {storage: {bond: lacp, mtu: 9180}}",
			"put 50 bytes around"},
		{"tenants on subnets of leaves", eth("network: {backend: {links: leaf}, render: {leaf: sonic}, tenants: {a: {hosts: n0}}}"),
			"would share the subnet of a leaf"},
		{"a tenant whose VRF has too long a name", eth("network: {tenants: {a-long-tenant: {hosts: n0}}}"), "a name of at most 11"},
		{"a VLAN of VRFs", eth("network: {frontend: {vlan: 3001}, tenants: {a: {hosts: n0}}}"), "take VLANs 3001 to 3001"},
		{"VLANs that reach into those of VRFs",
			"name: x\nhosts: {\"n[0-7]\": dgx-h100}\nfabrics:\n  c: {family: rail, switch: SN5600, link: 400gbe}\n  s: {family: fat-tree, service: true, nics: \"stor[0-1]\", leaves: 2, switch: SN5600, link: 400gbe}\nnetwork: {backend: {links: rail, vlan: 2990}, tenants: {a: {hosts: n0}}}",
			"VRFs of tenants take 3001 to 3001"},
		{"VRFs on Cumulus", eth("network: {render: {leaf: nvue, spine: nvue}, tenants: {a: {hosts: n0}}}"), "written for frr and sonic"},
		{"VRFs with packets too large", eth("network: {backend: {mtu: 9180}, tenants: {a: {hosts: n0}}}"), "put 50 bytes around"},
		{"tenants on InfiniBand", ib("network: {tenants: {a: {hosts: n0}}}"), "write partitions"},
		{"tenant of a stranger", eth("network: {backend: {links: rail, vlan: 100}, tenants: {a: {hosts: n999}}}"), "no host \"n999\""},
		{"host of two tenants", eth("network: {backend: {links: rail, vlan: 100}, tenants: {a: {hosts: n0}, b: {hosts: n0}}}"),
			"a host has one tenant"},
		{"tenant of nobody", eth("network: {tenants: {a: {}}}"), "missing"},
		{"VLANs that reach into others", eth("network: {backend: {links: rail}, tenants: {a: {hosts: n0}}}"), "begin at another such as 1000"},
		{"VLANs beyond the last", eth("network: {backend: {links: rail, vlan: 4090}}"), "4093 is the last"},
		{"pin on a routed link",
			"name: x\nhosts: {\"n[0-7]\": dgx-h100}\nfabrics:\n  c: {family: rail, switch: SN5600, link: 400gbe}\n  s: {family: fat-tree, service: true, nics: \"stor[0-1]\", leaves: 2, switch: SN5600, link: 400gbe}\nnetwork: {pin: {n1: {storage: 10.1.0.77}}}",
			"storage links are routed"},
		{"bond word", eth("network: {storage: {bond: balance-rr}}"), "known: none, lacp"},
		{"pin of a stranger", eth("network: {pin: {m7: {frontend: 10.0.0.9}}}"), "no host \"m7\""},
		{"pin outside", eth("network: {pin: {n7: {frontend: 10.9.0.9}}}"), "outside 10.0.0.0/16"},
		{"pin of another", eth("network: {pin: {n7: {frontend: 10.0.1.10}}}"), "belongs to n0"},
		{"pin of the gateway", eth("network: {pin: {n7: {frontend: 10.0.0.1}}}"), "gateway"},
		{"pin of the backend", eth("network: {pin: {n7: {backend: 10.160.0.1}}}"), "pins are for"},
		{"flow to nowhere", eth("network: {flows: {checkpoint: store}}"), "known: frontend, backend, storage, management"},
		{"host dialect", eth("network: {render: {host: ifupdown}}"), "known: netplan"},
		{"leaf dialect", eth("network: {render: {leaf: ios}}"), "known: frr"},
		{"scheduler", eth("network: {render: {scheduler: [pbs]}}"), "known: slurm, kubernetes"},
		{"domain", eth("network: {domain: \"a b\"}"), "domain name"},
		{"slurm topology", eth("network: {slurm: {topology: ring}}"), "known: tree, block"},
		{"inventory missing", eth("inventory: none.csv"), "no file"},
		{"inventory column", eth("inventory: column.csv"), "known: host, part"},
		{"inventory mac", eth("inventory: mac.csv"), "six bytes"},
		{"inventory mac twice", eth("inventory: twice.csv"), "already on line 2"},
		{"inventory stranger", eth("inventory: stranger.csv"), "no host \"q1\""},
		{"inventory part", eth("inventory: part.csv"), "no part \"nic9\""},
		{"inventory guid", eth("inventory: guid.csv"), "16 hexadecimal"},
	} {
		t.Run(x.name, func(t *testing.T) {
			files := map[string]string{
				"column.csv":   "host,part,colour\n",
				"mac.csv":      "host,part,mac\nn0,nic0,b8:3f\n",
				"twice.csv":    "host,part,mac\nn0,nic0,b8:3f:d2:00:00:01\nn0,nic1,B8:3F:D2:00:00:01\n",
				"stranger.csv": "host,part,mac\nq1,nic0,b8:3f:d2:00:00:01\n",
				"part.csv":     "host,part,mac\nn0,nic9,b8:3f:d2:00:00:01\n",
				"guid.csv":     "host,part,guid\nn0,nic0,12\n",
			}
			c, err := cluster.Parse("test.yaml", []byte(x.text), func(name string) ([]byte, error) {
				if s, ok := files[name]; ok {
					return []byte(s), nil
				}
				return nil, fmt.Errorf("no file %s", name)
			})
			if err == nil {
				_, err = Make("test.yaml", c, nil)
			}
			if err == nil {
				t.Fatal("accepted")
			}
			if !strings.Contains(err.Error(), x.want) {
				t.Errorf("%v\nwant %q", err, x.want)
			}
			var e *cluster.Error
			if !errors.As(err, &e) || e.Line == 0 && !strings.Contains(err.Error(), "line ") && !strings.Contains(err.Error(), "exhausted") &&
				len(strings.Split(x.text, "network")) > 1 {
				t.Errorf("no line: %v", err)
			}
		})
	}
}

func FuzzParseLock(f *testing.F) {
	f.Add([]byte(lockHead + "host n0 0\nswitch leaf0 0\naddress n0 nic0 10.160.0.1/31\n"))
	f.Add([]byte("host"))
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := ParseLock("lock", data)
		if (l == nil) == (err == nil) {
			t.Errorf("%v %v", l, err)
		}
	})
}

func TestPrefixesAreCut(t *testing.T) {
	p := netip.MustParsePrefix("10.160.0.0/16")
	for i, want := range []string{"10.160.0.0/19", "10.160.32.0/19", "10.160.64.0/19"} {
		if got := cut(p, i, 8).String(); got != want {
			t.Errorf("part %d is %s, want %s", i, got, want)
		}
	}
	if got := hostRoom(p); got != 60960 {
		t.Errorf("a /16 holds %d", got)
	}
}

// BenchmarkMake plans 16,384 hosts.
func BenchmarkMake(b *testing.B) {
	data, err := os.ReadFile("../../examples/rail-131k.yaml")
	if err != nil {
		b.Fatal(err)
	}
	c, err := cluster.Parse("rail-131k.yaml", data, nil)
	if err != nil {
		b.Fatal(err)
	}
	c.Network.Backend.Prefix = netip.MustParsePrefix("172.20.0.0/14")
	b.ResetTimer()
	for range b.N {
		if _, err := Make("rail-131k.yaml", c, nil); err != nil {
			b.Fatal(err)
		}
	}
}
