//go:build linux

package lab

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/fabric/network/check"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/model/cluster"
	"golang.org/x/sys/unix"
)

var only = flag.String("lab.fault", "", "plant this fault alone")

var all = flag.Bool("lab.all", false, "plant every fault, also those after which routers take seconds")

// The test's own program is init, too.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "lab-init" {
		l, err := net.FileListener(os.NewFile(3, "listener"))
		if err == nil {
			err = Init(os.Stdin, os.Stdout, l)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// examplePlan is the plan of examples/lab.yaml.
func examplePlan(t *testing.T) *network.Plan {
	t.Helper()
	data, err := os.ReadFile("../../examples/lab.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Parse("lab.yaml", data, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := network.Make("lab.yaml", c, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// up brings the usual lab of a plan up.
func up(t *testing.T, p *network.Plan, name string) *Info {
	t.Helper()
	s, err := NewSpec(p, name, Usual())
	if err != nil {
		t.Fatal(err)
	}
	return bring(t, s)
}

func addr(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// bring brings a lab up, or skips the test where that cannot be.
func bring(t *testing.T, s *Spec) *Info {
	t.Helper()
	name := s.Name
	if os.Geteuid() != 0 {
		t.Skip("a lab's tests need root")
	}
	if err := Check(s); err != nil {
		t.Skip(err)
	}
	for _, x := range []struct{ tool, debian string }{{"lldpcli", "lldpd"}, {"vtysh", "frr"}, {"nsenter", "util-linux"}, {"ip", "iproute2"},
		{"nft", "nftables"}} {
		if _, err := exec.LookPath(x.tool); err != nil {
			t.Skipf("%v; Debian has it in %s", err, x.debian)
		}
	}
	if err := Up(s, func(p Progress) { t.Logf("%5.2f s %s", p.Seconds, p.Step) }); err != nil {
		if strings.Contains(err.Error(), "operation not permitted") {
			t.Skipf("no namespaces here: %v", err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if i, err := Find(name); err == nil {
			_ = Down(i.Spec.Name)
		}
	})
	i, err := Find(name)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// settled waits until the comparison gives what is wanted, and gives what was read.
func settled(t *testing.T, i *Info, p *network.Plan, limit time.Duration, want func([]check.Finding) error) (r check.Readings) {
	t.Helper()
	err := until(limit, func() (err error) {
		if r, err = i.Collect(); err != nil {
			return err
		}
		return want(check.Compare(p, r))
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func nothing(found []check.Finding) error {
	if len(found) == 0 {
		return nil
	}
	var lines []string
	for _, f := range found {
		lines = append(lines, f.String())
	}
	return fmt.Errorf("%d findings:\n%s", len(found), strings.Join(lines, "\n"))
}

// fault is a thing to do wrong: where, how, how it is undone, and the one finding it gives.
type fault struct {
	name         string
	node         string
	plant, undo  string
	state        check.State
	device, part string
	slow         bool // routers take seconds to come back
}

func faults() []fault {
	vtysh := func(node string, lines ...string) string {
		out := "vtysh -N " + node + " -c 'configure terminal'"
		for _, l := range lines {
			out += " -c '" + l + "'"
		}
		return out
	}
	restarted := func(node string) string {
		var out []string
		for _, d := range daemons() {
			out = append(out, fmt.Sprintf("%s/%s -d -N %s -A 127.0.0.1 </dev/null >/dev/null 2>&1", frrBin, d, node))
		}
		return strings.Join(append(out, "vtysh -N "+node+" -b >/dev/null 2>&1"), "; ")
	}
	return []fault{
		{"host MTU", "n0", "ip link set nic0 mtu 1500", "ip link set nic0 mtu 9000", check.Differ, "n0", "nic0", false},
		{"switch MTU", "leaf1", "ip link set swp1s0 mtu 1500", "ip link set swp1s0 mtu 9216", check.Differ, "leaf1", "swp1s0", false},
		{"trunk MTU", "spine0", "ip link set swp1s0 mtu 9000", "ip link set swp1s0 mtu 9216", check.Differ, "spine0", "swp1s0", false},
		{"rule missing", "n1", "ip rule del priority 1020", "ip rule add priority 1020 from 10.160.128.3 to 10.160.0.0/16 table 102",
			check.Missing, "n1", "rule 1020", false},
		{"rule to the wrong table", "n1", "ip rule del priority 1020; ip rule add priority 1020 from 10.160.128.3 to 10.160.0.0/16 table 101",
			"ip rule del priority 1020; ip rule add priority 1020 from 10.160.128.3 to 10.160.0.0/16 table 102",
			check.Differ, "n1", "rule 1020", false},
		{"rule with the wrong priority", "n2", "ip rule del priority 1010; ip rule add priority 2010 from 10.160.0.5 to 10.160.0.0/16 table 101",
			"ip rule del priority 2010; ip rule add priority 1010 from 10.160.0.5 to 10.160.0.0/16 table 101",
			check.Differ, "n2", "rule 1010", false},
		{"rule without destination", "n2", "ip rule del priority 1010; ip rule add priority 1010 from 10.160.0.5 table 101",
			"ip rule del priority 1010; ip rule add priority 1010 from 10.160.0.5 to 10.160.0.0/16 table 101",
			check.Differ, "n2", "rule 1010", false},
		{"extra rule", "n3", "ip rule add priority 900 from 10.9.9.9 table 77", "ip rule del priority 900", check.Extra, "n3", "rule 900", false},
		{"route of a table missing", "n4", "ip route del 10.160.0.0/16 table 101", "ip route add 10.160.0.0/16 via 10.160.0.8 dev nic0 table 101",
			check.Missing, "n4", "route to 10.160.0.0/16", false},
		{"route of a table by the other rail", "n4", "ip route replace 10.160.0.0/16 via 10.160.128.8 dev nic1 table 101",
			"ip route replace 10.160.0.0/16 via 10.160.0.8 dev nic0 table 101", check.Differ, "n4", "route to 10.160.0.0/16", false},
		{"route of a rail missing", "n4", "ip route del 10.160.0.0/17", "ip route add 10.160.0.0/17 via 10.160.0.8 dev nic0",
			check.Missing, "n4", "route to 10.160.0.0/17", false},
		{"default route missing", "n5", "ip route del default", "ip route add default via 10.0.0.1 dev front0",
			check.Missing, "n5", "route to default", false},
		{"second default route", "n5", "ip route add default via 10.160.0.10 dev nic0 metric 500",
			"ip route del default via 10.160.0.10 dev nic0 metric 500", check.Extra, "n5", "default route", false},
		{"extra address", "n6", "ip addr add 10.77.0.1/24 dev nic0", "ip addr del 10.77.0.1/24 dev nic0", check.Extra, "n6", "nic0", false},
		{"second address on a switch", "leaf3", "ip addr add 10.77.0.1/24 dev swp1s0", "ip addr del 10.77.0.1/24 dev swp1s0", check.Extra,
			"leaf3", "swp1s0", false},
		{"front end's address lost", "n6", "ip addr add 10.0.1.77/16 dev front0; ip addr del 10.0.1.16/16 dev front0",
			"ip addr add 10.0.1.16/16 dev front0; ip addr del 10.0.1.77/16 dev front0; ip route replace default via 10.0.0.1 dev front0",
			check.Differ, "n6", "front0", false},
		{"ARP for others", "n7", "sysctl -qw net.ipv4.conf.nic0.arp_ignore=0", "sysctl -qw net.ipv4.conf.nic0.arp_ignore=1",
			check.Differ, "n7", "net.ipv4.conf.nic0.arp_ignore", false},
		{"ARP with others' addresses", "n7", "sysctl -qw net.ipv4.conf.nic1.arp_announce=0", "sysctl -qw net.ipv4.conf.nic1.arp_announce=2",
			check.Differ, "n7", "net.ipv4.conf.nic1.arp_announce", false},
		{"strict reverse path", "n7", "sysctl -qw net.ipv4.conf.all.rp_filter=0; sysctl -qw net.ipv4.conf.nic1.rp_filter=1",
			"sysctl -qw net.ipv4.conf.all.rp_filter=2; sysctl -qw net.ipv4.conf.nic1.rp_filter=2",
			check.Differ, "n7", "net.ipv4.conf.nic1.rp_filter", false},
		{"strict reverse path for all", "n7", "sysctl -qw net.ipv4.conf.all.rp_filter=1; sysctl -qw net.ipv4.conf.nic0.rp_filter=0",
			"sysctl -qw net.ipv4.conf.all.rp_filter=2; sysctl -qw net.ipv4.conf.nic0.rp_filter=2",
			check.Differ, "n7", "net.ipv4.conf.nic0.rp_filter", false},
		{"hijacking route on a host", "n3", "ip route add 10.160.0.8/30 via 10.0.0.1 dev front0",
			"ip route del 10.160.0.8/30", check.Extra, "n3", "route to 10.160.0.8/30", false},
		{"black hole on a host", "n3", "ip route add blackhole 10.160.0.8/30", "ip route del blackhole 10.160.0.8/30", check.Extra, "n3",
			"route to 10.160.0.8/30", false},
		{"leaked prefix", "leaf0", "ip addr add 10.160.77.1/24 dev lo", "ip addr del 10.160.77.1/24 dev lo", check.Extra, "leaf0", "lo", false},
		{"hijacking static route", "leaf0", "ip route add 10.160.0.8/31 dev swp1s0 metric 5 proto static",
			"ip route del 10.160.0.8/31 dev swp1s0 metric 5", check.Differ, "leaf0", "route to 10.160.0.8/31", false},
		{"more specific static route", "leaf1", "ip route add blackhole 10.160.0.9/32 proto static",
			"ip route del blackhole 10.160.0.9/32", check.Extra, "leaf1", "route to 10.160.0.9", false},
		{"a filter in the running configuration", "spine1", vtysh("spine1", "ip prefix-list OURS seq 7 permit 172.16.0.0/12 le 32"),
			vtysh("spine1", "no ip prefix-list OURS seq 7 permit 172.16.0.0/12 le 32"), check.Differ, "spine1", "running configuration", false},
		{"BFD timers", "leaf1", vtysh("leaf1", "bfd", "profile fabric", "receive-interval 900", "transmit-interval 900"),
			vtysh("leaf1", "bfd", "profile fabric", "receive-interval 300", "transmit-interval 300"), check.Differ, "leaf1", "", false},
		{"hash policy", "leaf0", "sysctl -qw net.ipv4.fib_multipath_hash_policy=0", "sysctl -qw net.ipv4.fib_multipath_hash_policy=1",
			check.Differ, "leaf0", "net.ipv4.fib_multipath_hash_policy", false},
		{"no forwarding", "spine1", "sysctl -qw net.ipv4.ip_forward=0",
			"sysctl -qw net.ipv4.ip_forward=1; sysctl -qw net.ipv4.conf.all.ignore_routes_with_linkdown=1",
			check.Differ, "spine1", "net.ipv4.ip_forward", false},
		{"dead routes used", "leaf2", "sysctl -qw net.ipv4.conf.all.ignore_routes_with_linkdown=0",
			"sysctl -qw net.ipv4.conf.all.ignore_routes_with_linkdown=1",
			check.Differ, "leaf2", "net.ipv4.conf.all.ignore_routes_with_linkdown", false},
		{"front end switched off", "n7", "ip link set front0 down",
			"ip link set front0 up; ip route replace default via 10.0.0.1 dev front0 || true", check.Differ, "n7", "front0", false},
		{"extra session", "leaf0", vtysh("leaf0", "router bgp 4200010000", "neighbor swp1s0 interface remote-as external"),
			vtysh("leaf0", "router bgp 4200010000", "no neighbor swp1s0 interface"), check.Extra, "leaf0", "bgp swp1s0", false},
		{"session shut", "leaf1", vtysh("leaf1", "router bgp 4200010001", "neighbor swp3s0 shutdown"),
			vtysh("leaf1", "router bgp 4200010001", "no neighbor swp3s0 shutdown"), check.Differ, "leaf1", "bgp swp3s0", true},
		{"session missing", "leaf1", vtysh("leaf1", "router bgp 4200010001", "no neighbor swp3s1 interface"),
			vtysh("leaf1", "router bgp 4200010001", "neighbor swp3s1 interface v6only peer-group FABRIC"), check.Missing, "leaf1",
			"bgp swp3s1", true},
		{"leaf's uplink off", "leaf2", "ip link set swp3s0 down", "ip link set swp3s0 up", check.Differ, "leaf2", "swp3s0", true},
		{"spine's port off", "spine1", "ip link set swp2s1 down", "ip link set swp2s1 up", check.Differ, "spine1", "swp2s1", true},
		{"no BFD", "leaf3", vtysh("leaf3", "router bgp 4200010003", "no neighbor FABRIC bfd"),
			vtysh("leaf3", "router bgp 4200010003", "neighbor FABRIC bfd profile fabric"), check.Missing, "leaf3", "", true},
		{"routing daemons dead", "leaf2", "kill -9 $(cat /run/frr/leaf2/*.pid)", restarted("leaf2"), check.Missing, "leaf2", "routing", true},
		{"loopback lost", "leaf3", "ip addr del 10.255.0.4/32 dev lo", "ip addr add 10.255.0.4/32 dev lo", check.Missing, "leaf3", "lo", true},
	}
}

// TestLab brings one lab up and tries everything on it.
func TestLab(t *testing.T) {
	if testing.Short() {
		t.Skip("brings routers up")
	}
	p := examplePlan(t)
	i := up(t, p, fmt.Sprintf("test-%d", os.Getpid()))
	t.Run("rules", func(t *testing.T) { testRules(t, i) })
	t.Run("drift", func(t *testing.T) { testDrift(t, p, i) }) // lldpd has heard of its neighbours meanwhile
	t.Run("drills", func(t *testing.T) { testDrills(t, i) })
	t.Run("show", func(t *testing.T) { testShow(t, i) })
	t.Run("killed", func(t *testing.T) { testKilled(t, i) })
}

// testDrift: an untouched lab gives no finding; each planted fault gives one, the
// right one; undone, it is gone. Without -lab.all a few faults of hosts are
// planted, all at once.
func testDrift(t *testing.T, p *network.Plan, i *Info) {
	r := settled(t, i, p, 60*time.Second, nothing)
	t.Run("cables crossed", func(t *testing.T) {
		crossed(r)
		found := check.Compare(p, r)
		if len(found) != 1 || found[0].What != "two cables are crossed" || found[0].Device != "leaf0" ||
			!strings.Contains(found[0].Fix, "leaf0:swp1s1") {
			t.Errorf("want one finding: %v", nothing(found))
		}
	})
	if !*all && *only == "" {
		t.Run("several", func(t *testing.T) {
			testSeveral(t, p, i, "host MTU", "switch MTU", "rule missing", "extra rule", "default route missing", "ARP for others",
				"strict reverse path for all", "black hole on a host", "leaked prefix", "more specific static route")
		})
		if bounded.Long() { // it waits for every command's limit
			t.Run("frozen", func(t *testing.T) { testFrozen(t, p, i) })
		}
		return
	}
	for _, f := range faults() {
		if *only != "" && !strings.Contains(*only, f.name) {
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			t.Cleanup(func() { // also after a failure: the next fault begins with a whole lab
				if out, err := i.Run(f.node, "sh", "-c", f.undo); err != nil {
					t.Fatalf("%v %s", err, out)
				}
				settled(t, i, p, 60*time.Second, nothing)
			})
			if out, err := i.Run(f.node, "sh", "-c", f.plant); err != nil {
				t.Fatalf("%v %s", err, out)
			}
			settled(t, i, p, 60*time.Second, func(found []check.Finding) error {
				if len(found) == 1 && f.is(&found[0]) {
					return nil
				}
				return fmt.Errorf("want one finding, %s %s %s: %v", f.state, f.device, f.part, nothing(found))
			})
		})
	}
}

// testFrozen: a daemon that hangs does not hang the check; what it would have said is not checked.
func testFrozen(t *testing.T, p *network.Plan, i *Info) {
	if out, err := i.Run("leaf1", "sh", "-c", "kill -STOP $(cat /run/frr/leaf1/bgpd.pid)"); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	r, err := i.Collect()
	if out, err := i.Run("leaf1", "sh", "-c", "kill -CONT $(cat /run/frr/leaf1/bgpd.pid)"); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	if err != nil {
		t.Fatal(err)
	}
	found := check.Compare(p, r)
	if len(found) == 0 || found[0].State != check.Unknown || found[0].Device != "leaf1" || !strings.Contains(found[0].What, "not checked") {
		t.Errorf("want leaf1 not checked: %v", nothing(found))
	}
	for _, f := range found {
		if f.Device == "leaf1" && f.Part == "rib.json" {
			t.Errorf("zebra answers, and is not checked: %v", f)
		}
	}
	settled(t, i, p, 60*time.Second, nothing)
}

// is reports whether a finding is what a fault should give.
func (f *fault) is(got *check.Finding) bool {
	return got.State == f.state && (f.device == "" || got.Device == f.device) && (f.part == "" || got.Part == f.part)
}

// testSeveral plants some faults at once: each gives its finding, and there is no other.
func testSeveral(t *testing.T, p *network.Plan, i *Info, names ...string) {
	var planted []fault
	for _, f := range faults() {
		if slices.Contains(names, f.name) {
			planted = append(planted, f)
		}
	}
	each := func(text func(f *fault) string) {
		t.Helper()
		for k := range planted {
			if out, err := i.Run(planted[k].node, "sh", "-c", text(&planted[k])); err != nil {
				t.Fatalf("%v %s", err, out)
			}
		}
	}
	each(func(f *fault) string { return f.plant })
	settled(t, i, p, 60*time.Second, func(found []check.Finding) error {
		left := slices.DeleteFunc(slices.Clone(found), func(x check.Finding) bool {
			return slices.ContainsFunc(planted, func(f fault) bool { return f.is(&x) })
		})
		if len(found) != len(names) || len(left) > 0 {
			return fmt.Errorf("want %d findings, those of %v: %v", len(names), names, nothing(found))
		}
		return nil
	})
	each(func(f *fault) string { return f.undo })
	settled(t, i, p, 60*time.Second, nothing)
}

// leaks sends packets from the address of every rail of some hosts to another rail's address of the next host, and names
// the rails whose packets left by another NIC than their own. Only the rule of the rail keeps them on it.
func leaks(t *testing.T, i *Info, of ...string) []string {
	t.Helper()
	hosts := i.Spec.Hosts()
	nics := func(host string) (addrs []netip.Addr, ports []string) {
		h, err := i.handle(host)
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		links, err := h.LinkList()
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range links {
			list, _ := h.AddrList(l, unix.AF_INET)
			for _, a := range list {
				if ip, ok := netip.AddrFromSlice(a.IP.To4()); ok && i.Spec.rail(ip) >= 0 {
					addrs, ports = append(addrs, ip), append(ports, host+":"+l.Attrs().Name)
				}
			}
		}
		return addrs, ports
	}
	const packets = 200
	var out []string
	for k, host := range hosts {
		if !slices.Contains(of, host) {
			continue
		}
		addrs, ports := nics(host)
		there, _ := nics(hosts[(k+1)%len(hosts)])
		for r, from := range addrs {
			before, err := i.counters(ports)
			if err != nil {
				t.Fatal(err)
			}
			c, err := i.udp(host, netip.AddrPortFrom(from, 0))
			if err != nil {
				t.Fatal(err)
			}
			for range packets {
				_, _ = c.WriteToUDPAddrPort([]byte("x"), netip.AddrPortFrom(there[(r+1)%len(there)], 9))
			}
			c.Close()
			// They leave when their neighbour's address is known, by this NIC or by another one.
			left := make([]uint64, len(ports))
			bounded.Holds(5*time.Second, func() bool {
				after, err := i.counters(ports)
				if err != nil {
					t.Fatal(err)
				}
				for k := range left {
					left[k] = after[k] - before[k]
				}
				return slices.Max(left) >= packets
			})
			if left[r] < packets/2 { // what is not a test's is a few
				out = append(out, ports[r])
			}
		}
	}
	return out
}

// testRules: packets leave by the rail whose address they bear, and no longer if any single rule is missing.
func testRules(t *testing.T, i *Info) {
	if got := leaks(t, i, i.Spec.Hosts()...); len(got) > 0 {
		t.Fatalf("packets of %v leave by other rails", got)
	}
	removed := 0
	for _, host := range i.Spec.Hosts() {
		text, err := i.Run(host, "ip", "-j", "rule")
		if err != nil {
			t.Fatal(err)
		}
		var rules []struct {
			Priority        int
			Src, Dst, Table string
			Dstlen          int
		}
		if err := json.Unmarshal(text, &rules); err != nil {
			t.Fatal(err)
		}
		for _, r := range rules {
			if r.Src == "all" || r.Src == "" {
				continue
			}
			line := fmt.Sprintf("priority %d from %s to %s/%d table %s", r.Priority, r.Src, r.Dst, r.Dstlen, r.Table)
			if _, err := i.Run(host, "sh", "-c", "ip rule del "+line); err != nil {
				t.Fatal(err)
			}
			got := leaks(t, i, host)
			if _, err := i.Run(host, "sh", "-c", "ip rule add "+line); err != nil {
				t.Fatal(err)
			}
			if len(got) != 1 || !strings.HasPrefix(got[0], host+":") {
				t.Errorf("without the rule %q of %s, packets of %v leave by other rails; want one rail of %s", line, host, got, host)
			}
			removed++
		}
	}
	if removed != 16 {
		t.Errorf("%d rules were removed in turn; 8 hosts with two rails have 16", removed)
	}
}

// testDrills: a cut that the kernel sees loses nothing; one that nobody sees is found by BFD.
func testDrills(t *testing.T, i *Info) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cfg := DrillConfig{Phase: 500 * time.Millisecond, During: 1500 * time.Millisecond, Log: t.Logf}
	for _, c := range []struct {
		fault  string
		during time.Duration
		until  func(dead int, noticed []Notice) bool
		want   func(d *Drill) string
	}{
		{"cut-near", time.Second, func(_ int, noticed []Notice) bool { return len(noticed) > 0 }, func(d *Drill) string {
			// A port that is going down drops what is sent until the kernel has taken its routes away.
			gap := slices.IndexFunc(d.Noticed, func(n Notice) bool { return strings.HasPrefix(n.Who, "kernel of leaf0") })
			if gap < 0 || float64(d.Probe.Packets-10)*d.Probe.Interval > d.Noticed[gap].MS {
				return "want the kernel to notice, and no flow to lose packets for longer than that takes"
			}
			return ""
		}},
		{"blackhole", time.Second, func(dead int, noticed []Notice) bool {
			return dead == 0 && strings.Contains(fmt.Sprint(noticed), "BGP of ")
		}, func(d *Drill) string {
			if d.Probe.Hit == 0 || d.Probe.Dead > 0 || !strings.Contains(fmt.Sprint(d.Noticed), "BGP of ") {
				return "want an outage that is ended by routing"
			}
			return ""
		}},
		{"data-blackhole", 1500 * time.Millisecond, func(dead int, _ []Notice) bool { return dead > 0 }, func(d *Drill) string {
			if d.Probe.Dead == 0 || len(d.Noticed) > 0 {
				return "want flows that stay dead, noticed by nobody"
			}
			return ""
		}},
		{"hash-policy", 1500 * time.Millisecond, nil, func(d *Drill) string {
			if len(d.Shares) != 2 || max(d.Shares[0].Before, d.Shares[1].Before) > 0.9 || max(d.Shares[0].During, d.Shares[1].During) < 0.95 {
				return "want both uplinks used before, and one alone with the fault"
			}
			return ""
		}},
	} {
		if !*all && *only == "" && c.fault == "hash-policy" {
			continue
		}
		t.Run(c.fault, func(t *testing.T) {
			cfg := cfg
			cfg.During, cfg.Until = c.during, c.until
			d, err := i.Drill(ctx, c.fault, cfg)
			if err != nil {
				t.Fatal(err)
			}
			if wrong := c.want(d); wrong != "" {
				var text strings.Builder
				d.Print(&text)
				t.Errorf("%s\n%s", wrong, text.String())
			}
		})
	}
	if _, err := i.Drill(ctx, "nothing", cfg); err == nil || !strings.Contains(err.Error(), "known: cut-near") {
		t.Errorf("an unknown fault gives %v", err)
	}
}

// testShow: the state of the lab as text, as a picture and by the page, with a port that is switched off.
func testShow(t *testing.T, i *Info) {
	if err := i.power("leaf3", "swp3s1", false); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = i.power("leaf3", "swp3s1", true) }()
	before, err := i.Look(nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := i.udp("n0", netip.MustParseAddrPort("10.160.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// Routers that did not run for a while may have lost a session that is back soon.
	if err := until(60*time.Second, func() error {
		now, err := i.Look(nil)
		if err != nil {
			return err
		}
		if p := now.Problems(); len(p) != 1 || !strings.Contains(p[0], "leaf3:swp3s1 is switched off") {
			return fmt.Errorf("problems: %v", p)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if err := until(60*time.Second, func() error { // they leave when the address of their neighbour is known
		for range 10 {
			_, _ = c.WriteToUDPAddrPort(make([]byte, 8000), netip.MustParseAddrPort("10.160.0.3:9"))
		}
		s, err := i.Look(before)
		if err != nil {
			return err
		}
		for _, n := range s.Nodes {
			if n.Name == "n0" && (n.Out < 1000 || n.Ports != 3 || n.Up != 3) {
				return fmt.Errorf("n0 after ten packets of 8000 bytes: %+v", n)
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	page := httptest.NewServer(Page(func() (*State, error) { return i.Look(nil) }))
	defer page.Close()
	for path, want := range map[string]string{"/": "state.json", "/base.css": "--ink", "/lab.js": "fetch",
		"/lab.svg": "leaf3:swp3s1 is switched off", "/state.json": `"lab":"` + i.Spec.Name} {
		r, err := http.Get(page.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || r.StatusCode != http.StatusOK || !strings.Contains(string(data), want) {
			t.Errorf("%s: %s, %v, no %q in\n%s", path, r.Status, err, want, data)
		}
	}
}

// crossed changes what two ports of a leaf, and their hosts, say of their
// neighbours, as if the two cables had changed places.
func crossed(r check.Readings) {
	exchange := func(dev, key string) {
		const a, b = "swp1s0", "swp1s1"
		text := string(r[dev]["lldp.json"])
		one, two := fmt.Sprintf("%q: %q", key, a), fmt.Sprintf("%q: %q", key, b)
		r[dev]["lldp.json"] = []byte(strings.NewReplacer(one, two, two, one).Replace(text))
	}
	exchange("leaf0", "name")
	exchange("n0", "value")
	exchange("n1", "value")
}

// testKilled: init is killed, and nothing of the lab is left.
func testKilled(t *testing.T, i *Info) {
	space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", i.PID))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(processes(space)); n < 30 {
		t.Fatalf("%d processes inside; there should be three a router and more", n)
	}
	if err := syscall.Kill(i.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_, _ = syscall.Wait4(i.PID, nil, 0, nil) // it is this process's child; weft lab up would have ended before
	gone(t, i.Spec.Name, space)
}

// gone waits until nothing of a lab is left.
func gone(t *testing.T, name, space string) {
	t.Helper()
	if err := until(60*time.Second, func() error {
		if _, err := Find(name); err == nil {
			return fmt.Errorf("lab %s still answers", name)
		}
		if left := processes(space); len(left) > 0 {
			return fmt.Errorf("processes %v are still there", left)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// TestKilledWhileComingUp: init is killed before its routers are configured, and nothing is left.
func TestKilledWhileComingUp(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a lab's tests need root")
	}
	s, err := NewSpec(examplePlan(t), fmt.Sprintf("killed-%d", os.Getpid()), Usual())
	if err == nil {
		err = Check(s)
	}
	if err != nil {
		t.Skip(err)
	}
	space := ""
	err = Up(s, func(p Progress) {
		if p.Step != "routers and hosts run" {
			return
		}
		inits, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, path := range inits {
			dir := filepath.Dir(path)
			line, _ := os.ReadFile(path)
			status, _ := os.ReadFile(dir + "/status")
			if !strings.Contains(string(line), "\x00lab-init\x00") || !strings.Contains(string(status), fmt.Sprintf("PPid:\t%d\n", os.Getpid())) {
				continue
			}
			if space, err = os.Readlink(dir + "/ns/pid"); err != nil {
				t.Error(err)
			}
			pid, _ := strconv.Atoi(filepath.Base(dir))
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Error(err)
			}
		}
	})
	if err == nil || space == "" {
		_ = Down(s.Name)
		t.Skipf("init was not caught: %v", err)
	}
	if strings.Contains(err.Error(), "operation not permitted") {
		t.Skip(err)
	}
	gone(t, s.Name, space)
}

// processes lists the living processes of a process namespace.
func processes(space string) []string {
	links, _ := filepath.Glob("/proc/[0-9]*/ns/pid")
	var out []string
	for _, l := range links {
		if got, err := os.Readlink(l); err == nil && got == space {
			out = append(out, l)
		}
	}
	return out
}
