package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

type syscallConn = syscall.RawConn

// target is what a drill breaks and where it looks.
type target struct {
	leaf, spine, other string // switches
	up, down           string // the leaf's port to the spine, and the spine's to the leaf
	otherUp            string // the other leaf's port to the spine
	from, to           string // hosts behind the two leaves
	src, dst           netip.Addr
	nic                string // of from, on the rail
	near, beyond       []string
}

// spot is where a host is attached: the leaf, the host's interface to it, and the interface's address on a rail.
type spot struct {
	leaf, nic string
	addr      netip.Addr
}

// aim chooses two leaves that hosts of one rail are behind, and a spine between them.
func (i *Info) aim() (*target, error) {
	s := i.Spec
	hosts := s.Hosts()
	behind := map[string][]spot{} // by host
	for _, name := range hosts {
		var err error
		if behind[name], err = i.spots(name); err != nil {
			return nil, err
		}
	}
	for _, from := range hosts {
		for _, to := range hosts {
			for _, x := range behind[from] {
				for _, y := range behind[to] {
					if from == to || x.leaf == y.leaf || s.rail(x.addr) != s.rail(y.addr) {
						continue
					}
					t := &target{leaf: x.leaf, other: y.leaf, from: from, to: to, src: x.addr, dst: y.addr, nic: x.nic}
					if t.meet(&s) {
						t.sides(hosts, behind)
						return t, nil
					}
				}
			}
		}
	}
	return nil, errors.New("no two hosts of one rail are behind different leaves that share a spine; nothing here takes more than one way")
}

// spots lists where a host is attached, for every address on a rail.
func (i *Info) spots(host string) (list []spot, err error) {
	s := i.Spec
	h, err := i.handle(host)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	for k := range s.Wires {
		w := &s.Wires[k]
		if !w.joins(host) {
			continue
		}
		leaf, _ := w.far(host)
		_, nic := w.far(leaf)
		l, err := h.LinkByName(nic)
		if err != nil {
			continue
		}
		addrs, _ := h.AddrList(l, unix.AF_INET)
		for _, a := range addrs {
			if ip, ok := netip.AddrFromSlice(a.IP.To4()); ok && s.rail(ip) >= 0 {
				list = append(list, spot{leaf, nic, ip})
			}
		}
	}
	return list, nil
}

// meet fills in the first spine that both leaves have a link to, and says whether there is one.
func (t *target) meet(s *Spec) bool {
	for k := range s.Wires {
		w := &s.Wires[k]
		if !w.joins(t.leaf) {
			continue
		}
		spine, port := w.far(t.leaf)
		if !s.Node(spine).Router {
			continue
		}
		for j := range s.Wires {
			v := &s.Wires[j]
			if !v.joins(t.other) {
				continue
			}
			if far, _ := v.far(t.other); far == spine {
				_, own := w.far(spine)
				_, theirs := v.far(spine)
				t.spine, t.down, t.up, t.otherUp = spine, port, own, theirs
				return true
			}
		}
	}
	return false
}

// sides lists the hosts behind either leaf; a host with NICs at both is in both lists.
func (t *target) sides(hosts []string, behind map[string][]spot) {
	for _, h := range hosts {
		at := func(leaf string) bool {
			return slices.ContainsFunc(behind[h], func(p spot) bool { return p.leaf == leaf })
		}
		if at(t.leaf) {
			t.near = append(t.near, h)
		}
		if at(t.other) {
			t.beyond = append(t.beyond, h)
		}
	}
}

// link changes an interface of a node.
func (i *Info) link(node, name string, f func(*netlink.Handle, netlink.Link) error) error {
	h, err := i.handle(node)
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("%s:%s: %w", node, name, err)
	}
	return f(h, l)
}

func (i *Info) power(node, name string, on bool) error {
	return i.link(node, name, func(h *netlink.Handle, l netlink.Link) error {
		if on {
			return h.LinkSetUp(l)
		}
		return h.LinkSetDown(l)
	})
}

// sh runs a line of shell on a node.
func (i *Info) sh(node, format string, args ...any) error {
	_, err := i.Run(node, "sh", "-c", fmt.Sprintf(format, args...))
	return err
}

// breakage is a fault that can be planted and repaired.
type breakage struct {
	where         string
	plant, repair func() error
	size          int      // bytes of a probe's packet; 0 for few
	cross         bool     // probe from the second rail to the first, where only rules keep rails apart
	shares        []string // ports whose part in the probe's packets is of interest
}

// breakage says how a fault is done to a target.
func (i *Info) breakage(name string, t *target) (*breakage, error) {
	port := func(node, p string) func(bool) error {
		return func(on bool) error { return i.power(node, p, on) }
	}
	cut := func(node, p string) *breakage {
		return &breakage{where: node + ":" + p, plant: func() error { return port(node, p)(false) },
			repair: func() error { return port(node, p)(true) }}
	}
	filter := func(hooks ...string) *breakage {
		rules := "table inet weftdrill {\n"
		for _, h := range hooks {
			for _, d := range []string{"iifname", "oifname"} {
				if h == "input" && d == "oifname" || h == "output" && d == "iifname" {
					continue
				}
				rules += fmt.Sprintf("chain %s_%s { type filter hook %s priority 0; %s \"%s\" drop; }\n", h, d, h, d, t.down)
			}
		}
		return &breakage{where: t.spine + ":" + t.down, plant: func() error { return i.sh(t.spine, "nft -f - <<'END'\n%s}\nEND", rules) },
			repair: func() error { return i.sh(t.spine, "nft delete table inet weftdrill") }}
	}
	switch name {
	case "cut-near":
		return cut(t.leaf, t.up), nil
	case "cut-far":
		return cut(t.other, t.otherUp), nil
	case "blackhole":
		return filter("input", "output", "forward"), nil
	case "data-blackhole":
		return filter("forward"), nil
	case "flap":
		return &breakage{where: t.leaf + ":" + t.up, plant: func() error {
			for range 5 {
				for _, on := range []bool{false, true} {
					if err := port(t.leaf, t.up)(on); err != nil {
						return err
					}
					time.Sleep(400 * time.Millisecond)
				}
			}
			return nil
		}, repair: func() error { return port(t.leaf, t.up)(true) }}, nil
	case "spine-killed":
		return &breakage{where: t.spine, plant: func() error { return i.killRouter(t.spine) },
			repair: func() error { return i.startRouter(t.spine) }}, nil
	case "mtu":
		mtu := func(n int) error {
			return i.link(t.leaf, t.up, func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetMTU(l, n) })
		}
		w := i.Spec.WireAt(t.leaf, t.up)
		was := w.AMTU
		if w.B == t.leaf {
			was = w.BMTU
		}
		return &breakage{where: t.leaf + ":" + t.up, size: 8900, plant: func() error { return mtu(1500) },
			repair: func() error { return mtu(was) }}, nil
	case "rule-missing":
		return i.ruleMissing(t)
	case "hash-policy":
		const key = "net.ipv4.fib_multipath_hash_policy"
		was, err := i.Run(t.leaf, "sysctl", "-n", key)
		if err != nil {
			return nil, err
		}
		set := func(v string) func() error {
			return func() error { return i.sh(t.leaf, "sysctl -qw %s=%s", key, v) }
		}
		b := &breakage{where: t.leaf + " " + key, plant: set("0"), repair: set(strings.TrimSpace(string(was)))}
		for k := range i.Spec.Nodes {
			if n := &i.Spec.Nodes[k]; n.Name == t.leaf {
				for _, p := range n.Uplink {
					b.shares = append(b.shares, t.leaf+":"+p)
				}
			}
		}
		return b, nil
	}
	var known []string
	for _, f := range Faults() {
		known = append(known, f.Name)
	}
	return nil, fmt.Errorf("unknown fault %q; known: %s", name, strings.Join(known, ", "))
}

// nicWith names the interface that has an address, "" if none has.
func nicWith(h *netlink.Handle, addr netip.Addr) (name string, err error) {
	links, err := h.LinkList()
	if err != nil {
		return "", err
	}
	for _, l := range links {
		addrs, _ := h.AddrList(l, unix.AF_INET)
		for _, a := range addrs {
			if ip, _ := netip.AddrFromSlice(a.IP.To4()); ip == addr {
				name = l.Attrs().Name
			}
		}
	}
	return name, nil
}

// ruleMissing takes the rule of a rail other than the first of a host away.
func (i *Info) ruleMissing(t *target) (*breakage, error) {
	h, err := i.handle(t.from)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	rules, err := h.RuleList(unix.AF_INET)
	if err != nil {
		return nil, err
	}
	for _, r := range rules {
		if r.Src == nil || r.Dst == nil {
			continue
		}
		src, _ := netip.AddrFromSlice(r.Src.IP.To4())
		if src == t.src || i.Spec.rail(src) < 0 {
			continue
		}
		b := &breakage{where: fmt.Sprintf("%s rule %d", t.from, r.Priority), cross: true}
		line := fmt.Sprintf("priority %d from %s to %s table %d", r.Priority, src, r.Dst, r.Table)
		b.plant = func() error { return i.sh(t.from, "ip rule del %s", line) }
		b.repair = func() error { return i.sh(t.from, "ip rule add %s", line) }
		// The probe leaves from the other rail's address to the first rail's: the rule alone says by which NIC.
		other, err := nicWith(h, src)
		if err != nil {
			return nil, err
		}
		b.shares = []string{t.from + ":" + other, t.from + ":" + t.nic}
		t.src = src
		return b, nil
	}
	return nil, fmt.Errorf("%s has one rail; a rule that is missing changes nothing", t.from)
}

// killRouter kills the routing daemons of a switch; its kernel goes on with the routes it has.
func (i *Info) killRouter(node string) error {
	if i.Spec.Routing == "bird" {
		return i.sh(node, "birdc -s /run/weft/%s/bird.ctl down", node)
	}
	return i.sh(node, "kill -9 $(cat /run/frr/%s/*.pid)", node)
}

// startRouter starts them again.
func (i *Info) startRouter(node string) error {
	if i.Spec.Routing == "bird" {
		return i.sh(node, "bird -c /run/weft/%s/etc/bird.conf -s /run/weft/%s/bird.ctl", node, node)
	}
	for _, d := range daemons() {
		if err := i.sh(node, "%s/%s -d -N %s -A 127.0.0.1 --log file:/run/weft/%s/%s.log --log-level informational >/dev/null 2>&1 </dev/null",
			frrBin, d, node, node, d); err != nil {
			return err
		}
	}
	return i.sh(node, "vtysh -N %s -b >/dev/null 2>&1", node)
}

// counters reads how many packets left by some ports.
func (i *Info) counters(ports []string) ([]uint64, error) {
	var out []uint64
	for _, p := range ports {
		node, name, _ := strings.Cut(p, ":")
		err := i.link(node, name, func(_ *netlink.Handle, l netlink.Link) error {
			out = append(out, l.Attrs().Statistics.TxPackets)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// railBytes sums what hosts sent, by rail.
func (i *Info) railBytes(hosts []string) []uint64 {
	out := make([]uint64, len(i.Spec.Rails))
	for _, name := range hosts {
		h, err := i.handle(name)
		if err != nil {
			continue
		}
		links, _ := h.LinkList()
		for _, l := range links {
			addrs, _ := h.AddrList(l, unix.AF_INET)
			for _, a := range addrs {
				if ip, ok := netip.AddrFromSlice(a.IP.To4()); ok {
					if r := i.Spec.rail(ip); r >= 0 {
						out[r] += l.Attrs().Statistics.TxBytes
					}
				}
			}
		}
		h.Close()
	}
	return out
}

// mostWays is how many paths of equal length routers are told to use.
const mostWays = 64

// whole reports whether every leaf has all its ways to every other leaf of its island.
func (i *Info) whole() error {
	want, near := map[string]map[string]int{}, i.Spec.trunks()
	for k := range i.Spec.Nodes {
		if n := &i.Spec.Nodes[k]; n.Router && n.Tier == 1 {
			want[n.Name] = widths(near, n.Name)
		}
	}
	for k := range i.Spec.Nodes {
		n := &i.Spec.Nodes[k]
		if !n.Router || n.Tier != 1 {
			continue
		}
		h, err := i.handle(n.Name)
		if err != nil {
			return err
		}
		routes, err := h.RouteList(nil, unix.AF_INET)
		h.Close()
		if err != nil {
			return err
		}
		ways := map[string]int{}
		for _, r := range routes {
			if r.Dst == nil {
				continue
			}
			n := 1
			if len(r.MultiPath) > 0 {
				n = 0
				for _, x := range r.MultiPath {
					if x.Flags&(unix.RTNH_F_DEAD|unix.RTNH_F_LINKDOWN) == 0 {
						n++
					}
				}
			}
			ways[r.Dst.IP.String()] = n
		}
		for j := range i.Spec.Nodes {
			other := &i.Spec.Nodes[j]
			if other.Router && other.Tier == 1 && other.Name != n.Name && other.Island == n.Island &&
				ways[other.Loop] < min(want[other.Name][n.Name], mostWays) {
				return fmt.Errorf("%s has %d paths to %s, want %d", n.Name, ways[other.Loop], other.Name, want[other.Name][n.Name])
			}
		}
	}
	return nil
}

// widths gives each router the count of its cables that shortest paths to another begin with: BGP uses all of them.
func widths(near map[string][]string, to string) map[string]int {
	hops, out := map[string]int{to: 0}, map[string]int{}
	for queue := []string{to}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		for _, far := range near[at] {
			if _, known := hops[far]; !known {
				hops[far] = hops[at] + 1
				queue = append(queue, far)
			}
			if hops[far] == hops[at]+1 {
				out[far]++
			}
		}
	}
	return out
}

// trunks lists the routers at the other ends of every router's cables.
func (s *Spec) trunks() map[string][]string {
	routers, near := map[string]bool{}, map[string][]string{}
	for k := range s.Nodes {
		routers[s.Nodes[k].Name] = s.Nodes[k].Router
	}
	for _, w := range s.Wires {
		if routers[w.A] && routers[w.B] {
			near[w.A], near[w.B] = append(near[w.A], w.B), append(near[w.B], w.A)
		}
	}
	return near
}
