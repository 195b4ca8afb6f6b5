package emit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/internal/ibsim"
	"github.com/weft-fabric/weft/model/topo/format"
	"github.com/weft-fabric/weft/run/launch"
)

// These tests ask the programs that read the files what they understood, and
// compare it with the plan. Exit codes are not trusted: most of these programs
// accept what they then ignore.

// tool skips the test where a program is missing.
func tool(t *testing.T, name, debian string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("%v; Debian has it in %s", err, debian)
	}
}

// command runs a program and wants it to end well, with nothing on standard error.
func command(t *testing.T, stdin []byte, name string, args ...string) string {
	t.Helper()
	cmd := bounded.Command(t, name, args...)
	cmd.Stdin = bytes.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out.String(), errs.String())
	}
	return out.String() + errs.String()
}

// section is a part of an ini file: its head and its entries, in order.
type section struct {
	head    string
	entries map[string]string
}

func sections(text string) []section {
	var out []section
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '[':
			out = append(out, section{strings.Trim(line, "[]"), map[string]string{}})
		default:
			k, v, _ := strings.Cut(line, "=")
			out[len(out)-1].entries[k] = v
		}
	}
	return out
}

// understood is what a host's program says of an interface.
type understood struct {
	mtu    string
	addr   string
	routes []Route
	rules  []Rule
}

// wanted is what the plan says of it.
func wanted(p *network.Plan, x *network.Interface) understood {
	u := understood{mtu: fmt.Sprint(x.MTU), addr: x.Addr.String()}
	u.routes, u.rules = Routing(p, x)
	return u
}

func (u understood) String() string {
	return fmt.Sprintf("mtu %s address %s routes %v rules %v", u.mtu, u.addr, u.routes, u.rules)
}

func prefix(s string) netip.Prefix {
	if p, err := netip.ParsePrefix(s); err == nil {
		return p
	}
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(a, 32)
	}
	return netip.Prefix{}
}

func number(s string) (n int) {
	fmt.Sscan(s, &n)
	return n
}

// networkd reads a .network file.
func networkd(text string) understood {
	var u understood
	for _, s := range sections(text) {
		switch s.head {
		case "Link":
			u.mtu = s.entries["MTUBytes"]
		case "Network":
			u.addr = s.entries["Address"]
		case "Route":
			via, _ := netip.ParseAddr(s.entries["Gateway"])
			u.routes = append(u.routes, Route{To: prefix(s.entries["Destination"]), Via: via, Table: number(s.entries["Table"])})
		case "RoutingPolicyRule":
			u.rules = append(u.rules, Rule{prefix(s.entries["From"]), prefix(s.entries["To"]), number(s.entries["Table"]),
				number(s.entries["Priority"])})
		}
	}
	for i := range u.routes {
		if u.routes[i].To == netip.MustParsePrefix("0.0.0.0/0") { // how netplan writes the default route
			u.routes[i].To = netip.Prefix{}
		}
	}
	return u
}

func TestNetplanUnderstands(t *testing.T) {
	tool(t, "netplan", "netplan.io")
	for name, p := range map[string]*network.Plan{
		"rails":   ethernet(t, 8, ""),
		"leaf":    ethernet(t, 8, "network: {backend: {links: leaf}, render: {leaf: sonic}}\n"),
		"bond":    ethernet(t, 8, "network: {storage: {bond: lacp}}\n"),
		"hpn":     example(t, "hpn"),
		"storage": example(t, "storage"),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, Netplan(p), dir)
			understoodByNetplan(t, p, &p.Hosts[3], dir, false)
		})
	}
}

func TestNetworkManagerUnderstands(t *testing.T) {
	tool(t, "nmcli", "network-manager")
	for _, p := range []*network.Plan{ethernet(t, 4, ""), ethernet(t, 4, "network: {storage: {bond: lacp}}\n"), example(t, "rail-1k"),
		example(t, "storage")} {
		h := &p.Hosts[1]
		for i := range h.Interfaces {
			x := &h.Interfaces[i]
			file := nmConnection(p, h, x)
			back := command(t, file.Bytes(), "nmcli", "--offline", "connection", "modify", "connection.autoconnect", "yes")
			want, got := sections(file.String()), sections(back)
			for _, s := range want {
				k := slices.IndexFunc(got, func(y section) bool { return y.head == s.head })
				for key, v := range s.entries {
					v = strings.ReplaceAll(v, "/32 to", " to")
					if key == "mac-address" {
						v = strings.ToUpper(v)
					}
					if key == "gateway" { // joins the address
						key, v = "address1", x.Addr.String()+","+v
					} else if key == "address1" && s.entries["gateway"] != "" {
						continue
					}
					if key == "transport-mode" && v == "datagram" { // the default
						continue
					}
					if k < 0 || got[k].entries[key] != v {
						t.Errorf("%s %s: %s.%s is %q, NetworkManager understood %q", p.Name, x.Name, s.head, key, v, entry(got, k, key))
					}
				}
			}
		}
	}
}

func entry(s []section, i int, key string) string {
	if i < 0 {
		return "nothing"
	}
	return s[i].entries[key]
}

func TestFRRUnderstands(t *testing.T) {
	tool(t, "vtysh", "frr")
	for _, p := range []*network.Plan{ethernet(t, 8, ""), ethernet(t, 8, "network: {routing: {bfd: off}}\n"),
		ethernet(t, 8, "network: {tenants: {red: {hosts: n0}, blue: {hosts: n1}}}\n"), example(t, "hpn")} {
		dir := t.TempDir()
		write(t, FRR(p), dir)
		for _, s := range []*network.Switch{&p.Switches[0], &p.Switches[len(p.Switches)-1]} {
			file := filepath.Join(dir, "switches", s.Name, "etc/frr/frr.conf")
			if out := command(t, nil, "vtysh", "-C", "-f", file); strings.TrimSpace(out) != "" {
				t.Errorf("%s %s: vtysh says %s", p.Name, s.Name, out)
			}
			if out, err := bounded.Command(t, "/usr/lib/frr/bgpd", "-C", "-f", file).CombinedOutput(); err != nil ||
				strings.Contains(string(out), "nknown") {
				t.Errorf("%s %s: bgpd says %v %s", p.Name, s.Name, err, out)
			}
		}
	}
}

func TestDHCPServersUnderstand(t *testing.T) {
	p := ethernet(t, 8, "")
	dir := t.TempDir()
	write(t, DHCP(p), dir)
	t.Run("dnsmasq", func(t *testing.T) {
		tool(t, "dnsmasq", "dnsmasq-base")
		if out := command(t, nil, "dnsmasq", "--test", "-C", filepath.Join(dir, "dhcp/dnsmasq.conf")); !strings.Contains(out, "syntax check OK") {
			t.Error(out)
		}
		// It does not look at addresses: every one must be a host's.
		data, _ := os.ReadFile(filepath.Join(dir, "dhcp/dnsmasq.conf"))
		if n := strings.Count(string(data), "dhcp-host="); n != 2*len(p.Hosts) {
			t.Errorf("%d reservations, want %d", n, 2*len(p.Hosts))
		}
	})
	t.Run("kea", func(t *testing.T) {
		tool(t, "kea-dhcp4", "kea-dhcp4-server")
		out := command(t, nil, "kea-dhcp4", "-t", filepath.Join(dir, "dhcp/kea-dhcp4.conf"))
		for _, want := range []string{p.Intent.Management.Prefix.String(), p.Intent.Frontend.Prefix.String()} {
			if !strings.Contains(out, "added to configuration: "+want) {
				t.Errorf("Kea did not take %s: %s", want, out)
			}
		}
	})
}

func TestNameServerUnderstands(t *testing.T) {
	tool(t, "named-checkzone", "bind9-utils")
	p := ethernet(t, 8, "")
	dir := t.TempDir()
	write(t, DNS(p), dir)
	zone := command(t, nil, "named-checkzone", "-D", p.Intent.Domain, filepath.Join(dir, "dns", p.Intent.Domain+".zone"))
	for _, r := range records(p) {
		if !strings.Contains(strings.Join(strings.Fields(zone), " "), fmt.Sprintf("%s.%s. 3600 IN A %s", r.name, p.Intent.Domain, r.addr)) {
			t.Errorf("the zone has no %s %s", r.name, r.addr)
		}
	}
	files, _ := filepath.Glob(filepath.Join(dir, "dns/*.in-addr.arpa.zone"))
	if len(files) != 4 {
		t.Errorf("%d reverse zones, want 4", len(files))
	}
	for _, f := range files {
		if out := command(t, nil, "named-checkzone", strings.TrimSuffix(filepath.Base(f), ".zone"), f); !strings.Contains(out, "OK") {
			t.Error(out)
		}
	}
}

// TestOpenSMUnderstands (n0 is where it runs, and so a full member of all): the subnet manager routes as asked, and ports have the keys of
// their tenants.
func TestOpenSMUnderstands(t *testing.T) {
	p := infiniband(t)
	d, err := format.Find("ibsim")
	if err != nil {
		t.Fatal(err)
	}
	var fabric bytes.Buffer
	if err := d.Encode(&fabric, p.Graph); err != nil {
		t.Fatal(err)
	}
	s := ibsim.Start(t, fabric.Bytes())
	write(t, OpenSM(p), s.Dir)
	etc := filepath.Join(s.Dir, "opensm/compute/etc/opensm")
	conf := filepath.Join(etc, "opensm.conf")
	data, err := os.ReadFile(conf)
	if err != nil {
		t.Fatal(err)
	}
	data = bytes.ReplaceAll(data, []byte("/etc/opensm"), []byte(etc))
	if err := os.WriteFile(conf, data, 0o644); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(s.Dir, "opensm.log")
	out := s.Run(t, "opensm", "-F", conf, "-f", log, "-d2", "-s", "0", "-o")
	if bytes.Contains(out, []byte("Unrecognized token")) {
		t.Errorf("opensm does not know an option: %s", out)
	}
	said, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"ftree tables configured on all switches", "SUBNET UP"} {
		if !bytes.Contains(said, []byte(want)) {
			t.Errorf("opensm's log does not say %q:\n%s", want, said[max(0, len(said)-2000):])
		}
	}
	if bytes.Contains(said, []byte("ERR AC")) {
		t.Errorf("partitions: %s", said)
	}
	lids := map[string]string{} // of a NIC's port, by description
	for line := range strings.Lines(string(s.Run(t, "ibnetdiscover", "-p"))) {
		// CA 12 1 0x... 4x NDR - SW ... ( 'n0 nic0' - 'leaf0' )
		f := strings.Fields(line)
		if i := strings.Index(line, "'"); len(f) > 1 && f[0] == "CA" && i > 0 {
			name, _, _ := strings.Cut(line[i+1:], "'")
			lids[name] = f[1]
		}
	}
	for host, want := range map[string]string{"n1": "0x7fff 0x8010", "n2": "0x7fff 0x8011", "n3": "0x7fff 0x0011", "n6": "0xffff"} {
		keys := string(s.Run(t, "smpquery", "pkeys", lids[host+" nic0"], "1"))
		got := []string{}
		for _, w := range strings.Fields(keys) {
			if strings.HasPrefix(w, "0x") && w != "0x0000" {
				got = append(got, w)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s has the keys %v, want %s", host, got, want)
		}
	}
}

// freePort is a port that nobody else is given until the test ends.
func freePort(t *testing.T) int {
	t.Helper()
	p, err := launch.HoldPort()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Release)
	return p.Number
}

// TestSlurmUnderstands asks a running controller for nodes and topology, and a
// node's daemon for its GPUs.
func TestSlurmUnderstands(t *testing.T) {
	tool(t, "slurmctld", "slurmctld")
	tool(t, "scontrol", "slurm-client")
	p := ethernet(t, 8, "")
	c := startSlurm(t, p)
	topology := command(t, nil, "scontrol", "show", "topology")
	for _, want := range []string{"SwitchName=leaf0 Level=0 LinkSpeed=1 Nodes=n[0-3]", "SwitchName=leaf8 Level=0 LinkSpeed=1 Nodes=n[4-7]",
		"Level=1 LinkSpeed=1 Nodes=n[0-7] Switches=leaf[0,8]"} {
		if !strings.Contains(topology, want) {
			t.Errorf("the topology has no %q:\n%s", want, topology)
		}
	}
	nodes := command(t, nil, "scontrol", "show", "node", "-o")
	for i := range p.Hosts {
		h := &p.Hosts[i]
		want := fmt.Sprintf("Gres=gpu:h100-sxm:8 NodeAddr=%s NodeHostName=%s ", h.First(network.Frontend).Addr.Addr(), h.Name)
		if !strings.Contains(nodes, want) {
			t.Errorf("%s: no %q in %s", h.Name, want, nodes)
		}
	}
	if _, err := exec.LookPath("slurmd"); err != nil {
		return
	}
	out, _ := bounded.Command(t, "slurmd", "-G", "-N", "n1", "-f", c.conf).CombinedOutput()
	for i := range 8 {
		var links []string
		for j := range 8 {
			links = append(links, map[bool]string{true: "-1", false: "18"}[i == j])
		}
		if want := "Links=" + strings.Join(links, ","); !strings.Contains(string(out), want) {
			t.Errorf("slurmd does not know %s of GPU %d:\n%s", want, i, out)
		}
	}
}

// TestNetworkdUnderstands runs systemd-networkd on a host's files in a namespace
// and asks the kernel what came of it.
func TestNetworkdUnderstands(t *testing.T) {
	const daemon = "/lib/systemd/systemd-networkd"
	if _, err := os.Stat(daemon); err != nil || os.Getuid() != 0 {
		t.Skip("this test runs systemd-networkd as root in a namespace")
	}
	if out, err := bounded.Command(t, "unshare", "--net", "--mount", "true").CombinedOutput(); err != nil {
		t.Skipf("no namespaces here: %v %s", err, out)
	}
	p := ethernet(t, 8, "")
	h := &p.Hosts[2]
	dir := t.TempDir()
	write(t, Networkd(p), dir)
	var script strings.Builder
	script.WriteString("set -e\nmount -t sysfs -o ro sysfs /sys\nmount -t tmpfs tmpfs /run\nmkdir -p /run/systemd/netif/links /run/systemd/netif/leases /run/systemd/network /run/dbus\nchown -R systemd-network:systemd-network /run/systemd/netif\n")
	fmt.Fprintf(&script, "mount --bind %s /etc/systemd/network\nip link set lo up\n",
		filepath.Join(dir, "hosts", h.Name, "etc/systemd/network"))
	for _, x := range h.Interfaces {
		fmt.Fprintf(&script, "ip link add %s type veth peer name p%s mtu 9216\nip link set p%s up\n", x.Name, x.Name, x.Name)
	}
	fmt.Fprintf(&script, "SYSTEMD_LOG_LEVEL=debug SYSTEMD_LOG_TARGET=console %s > %s/log 2>&1 &\npid=$!\n", daemon, dir)
	fmt.Fprintf(&script,
		"for i in $(seq 100); do n=$(ip rule | grep -c '^10[0-9]*:' || true); [ \"$n\" = 8 ] && r=$(ip route show table %d | wc -l) && [ \"$r\" -ge 1 ] && break; sleep 0.1; done\n",
		p.Rails[7].Table)
	fmt.Fprintf(&script, "ip -j addr > %s/addr\nip -j rule > %s/rule\nip -j route show table all > %s/route\nkill $pid\n", dir, dir, dir)
	out, err := bounded.Command(t, "unshare", "--net", "--mount", "--propagation", "private", "bash", "-c", script.String()).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	log, err := os.ReadFile(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, "Unknown key") || strings.Contains(line, "gnoring assignment") || strings.Contains(line, "Failed to parse") {
			t.Errorf("networkd: %s", line)
		}
	}
	read := func(name string, into any) {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			err = json.Unmarshal(data, into)
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	type link struct {
		Name  string `json:"ifname"`
		MTU   int    `json:"mtu"`
		Addrs []struct {
			Local string `json:"local"`
			Len   int    `json:"prefixlen"`
		} `json:"addr_info"`
	}
	var links []link
	var rules []struct {
		Priority int    `json:"priority"`
		Src      string `json:"src"`
		Dst      string `json:"dst"`
		Table    string `json:"table"`
	}
	var routes []struct {
		Dst     string `json:"dst"`
		Gateway string `json:"gateway"`
		Dev     string `json:"dev"`
		Table   string `json:"table"`
	}
	read("addr", &links)
	read("rule", &rules)
	read("route", &routes)
	for i := range h.Interfaces {
		x := &h.Interfaces[i]
		k := slices.IndexFunc(links, func(l link) bool { return l.Name == x.Name })
		if k < 0 || links[k].MTU != x.MTU || len(links[k].Addrs) != 1 ||
			fmt.Sprintf("%s/%d", links[k].Addrs[0].Local, links[k].Addrs[0].Len) != x.Addr.String() {
			t.Errorf("%s: the kernel has %+v, the plan MTU %d and %s", x.Name, links[max(k, 0)], x.MTU, x.Addr)
		}
		want, policy := Routing(p, x)
		for _, r := range want {
			dst, table := "default", ""
			if r.To.IsValid() {
				dst = r.To.String()
			}
			if r.Table > 0 {
				table = fmt.Sprint(r.Table)
			}
			found := false
			for _, g := range routes {
				found = found || g.Dst == dst && g.Gateway == r.Via.String() && g.Dev == x.Name && g.Table == table
			}
			if !found {
				t.Errorf("%s: no route to %s by %s in table %q", x.Name, dst, r.Via, table)
			}
		}
		for _, r := range policy {
			found := false
			for _, g := range rules {
				found = found || g.Priority == r.Priority && g.Src == r.From.Addr().String() && g.Dst == r.To.Addr().String() &&
					g.Table == fmt.Sprint(r.Table)
			}
			if !found {
				t.Errorf("%s: no rule %d from %s to table %d: %+v", x.Name, r.Priority, r.From, r.Table, rules)
			}
		}
	}
}
