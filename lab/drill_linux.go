package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/weft-fabric/weft/launch"
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

// aim chooses two leaves that hosts of one rail are behind, and a spine between them.
func (i *Info) aim() (*target, error) {
	s := i.Spec
	type place struct {
		leaf, nic string
		addr      netip.Addr
	}
	behind := map[string][]place{} // by host
	for _, name := range s.Hosts() {
		h, err := i.handle(name)
		if err != nil {
			return nil, err
		}
		for k := range s.Wires {
			w := &s.Wires[k]
			if w.A != name && w.B != name || w.Bridge != "" {
				continue
			}
			leaf, _ := w.far(name)
			_, nic := w.far(leaf)
			l, err := h.LinkByName(nic)
			if err != nil {
				continue
			}
			addrs, _ := h.AddrList(l, unix.AF_INET)
			for _, a := range addrs {
				if ip, ok := netip.AddrFromSlice(a.IP.To4()); ok && s.rail(ip) >= 0 {
					behind[name] = append(behind[name], place{leaf, nic, ip})
				}
			}
		}
		h.Close()
	}
	hosts := s.Hosts()
	for _, from := range hosts {
		for _, to := range hosts {
			for _, x := range behind[from] {
				for _, y := range behind[to] {
					if from == to || x.leaf == y.leaf || s.rail(x.addr) != s.rail(y.addr) {
						continue
					}
					t := &target{leaf: x.leaf, other: y.leaf, from: from, to: to, src: x.addr, dst: y.addr, nic: x.nic}
					for k := range s.Wires {
						w := &s.Wires[k]
						if w.A != t.leaf && w.B != t.leaf || w.Bridge != "" {
							continue
						}
						spine, port := w.far(t.leaf)
						for j := range s.Wires {
							v := &s.Wires[j]
							if n := s.Node(spine); !n.Router || v.A != t.other && v.B != t.other || v.Bridge != "" {
								continue
							}
							if far, _ := v.far(t.other); far == spine && t.spine == "" {
								_, own := w.far(spine)
								_, theirs := v.far(spine)
								t.spine, t.down, t.up, t.otherUp = spine, port, own, theirs
							}
						}
					}
					if t.spine == "" {
						continue
					}
					for _, h := range hosts {
						for _, p := range behind[h] {
							if p.leaf == t.leaf && !slices.Contains(t.near, h) {
								t.near = append(t.near, h)
							}
							if p.leaf == t.other && !slices.Contains(t.beyond, h) {
								t.beyond = append(t.beyond, h)
							}
						}
					}
					return t, nil
				}
			}
		}
	}
	return nil, errors.New("no two hosts of one rail are behind different leaves that share a spine; nothing here takes more than one way")
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
		return &breakage{where: node + ":" + p, plant: func() error { return port(node, p)(false) }, repair: func() error { return port(node, p)(true) }}
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
		return &breakage{where: t.spine, plant: func() error { return i.killRouter(t.spine) }, repair: func() error { return i.startRouter(t.spine) }}, nil
	case "mtu":
		mtu := func(n int) error {
			return i.link(t.leaf, t.up, func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetMTU(l, n) })
		}
		w := i.Spec.WireAt(t.leaf, t.up)
		was := w.AMTU
		if w.B == t.leaf {
			was = w.BMTU
		}
		return &breakage{where: t.leaf + ":" + t.up, size: 8900, plant: func() error { return mtu(1500) }, repair: func() error { return mtu(was) }}, nil
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
		links, err := h.LinkList()
		if err != nil {
			return nil, err
		}
		other := ""
		for _, l := range links {
			addrs, _ := h.AddrList(l, unix.AF_INET)
			for _, a := range addrs {
				if ip, _ := netip.AddrFromSlice(a.IP.To4()); ip == src {
					other = l.Attrs().Name
				}
			}
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
		if err := i.sh(node, "%s/%s -d -N %s -A 127.0.0.1 --log file:/run/weft/%s/%s.log --log-level informational >/dev/null 2>&1 </dev/null", frrBin, d, node, node, d); err != nil {
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

// whole reports whether every leaf has all its ways to every other leaf of its island.
func (i *Info) whole() error {
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
			if other.Router && other.Tier == 1 && other.Name != n.Name && other.Island == n.Island && ways[other.Loop] < i.shared(n, other) {
				return fmt.Errorf("%s has %d ways to %s, want %d", n.Name, ways[other.Loop], other.Name, i.shared(n, other))
			}
		}
	}
	return nil
}

// shared counts the uplinks of a leaf by which another leaf is reached in two hops; in a fabric of three tiers, all of them.
func (i *Info) shared(a, b *Node) int {
	spines := map[string]bool{}
	for _, p := range b.Uplink {
		far, _ := i.Spec.WireAt(b.Name, p).far(b.Name)
		spines[far] = true
	}
	n := 0
	for _, p := range a.Uplink {
		if far, _ := i.Spec.WireAt(a.Name, p).far(a.Name); spines[far] {
			n++
		}
	}
	if n == 0 {
		return len(a.Uplink)
	}
	return n
}

// watcher hears what routers and kernels say during a drill.
type watcher struct {
	mu    sync.Mutex
	began time.Time
	list  []Notice
	seen  map[string]bool
	done  chan struct{}
	wg    sync.WaitGroup
}

func (w *watcher) note(who, what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.began.IsZero() || w.seen[who+what] {
		return
	}
	w.seen[who+what] = true
	w.list = append(w.list, Notice{Who: who, What: what, MS: float64(time.Since(w.began).Microseconds()) / 1000})
}

// watch follows links of the switches that a fault concerns, and the logs of all routing daemons.
func (i *Info) watch(t *target) *watcher {
	w := &watcher{seen: map[string]bool{}, done: make(chan struct{})}
	for _, node := range []string{t.leaf, t.spine, t.other} {
		ns, err := i.space(node)
		if err != nil {
			continue
		}
		links := make(chan netlink.LinkUpdate, 64)
		if netlink.LinkSubscribeAt(ns, links, w.done) == nil {
			w.wg.Go(func() {
				for u := range links {
					if u.IfInfomsg.Flags&unix.IFF_RUNNING == 0 {
						w.note("kernel of "+node, u.Attrs().Name+" lost its carrier")
					}
				}
			})
		}
		ns.Close()
	}
	w.wg.Go(func() {
		at := map[string]int64{}
		logs := func(f func(node, line string)) {
			for k := range i.Spec.Nodes {
				n := &i.Spec.Nodes[k]
				if !n.Router {
					continue
				}
				for _, d := range []string{"bgpd", "bird"} {
					path := filepath.Join(fmt.Sprintf("/proc/%d/root/run/weft", i.PID), n.Name, d+".log")
					st, err := os.Stat(path)
					if err != nil {
						continue
					}
					was, known := at[path]
					at[path] = st.Size()
					if !known || st.Size() <= was {
						continue
					}
					data, err := os.ReadFile(path)
					if err != nil || int64(len(data)) < was {
						continue
					}
					for line := range strings.Lines(string(data[was:])) {
						f(n.Name, line)
					}
				}
			}
		}
		for {
			select {
			case <-w.done:
				return
			case <-time.After(10 * time.Millisecond):
			}
			logs(func(node, line string) {
				if _, text, ok := strings.Cut(line, "ADJCHANGE: neighbor "); ok && strings.Contains(text, " Down") {
					peer, _, _ := strings.Cut(text, "(")
					_, why, _ := strings.Cut(text, "Down ")
					w.note("BGP of "+node, fmt.Sprintf("session %s down: %s", peer, strings.TrimSpace(why)))
				}
				if _, text, ok := strings.Cut(line, "<TRACE> "); ok && strings.Contains(text, "BGP session closed") { // BIRD
					peer, _, _ := strings.Cut(text, ":")
					w.note("BGP of "+node, "session "+peer+" closed")
				}
			})
		}
	})
	return w
}

// begin says that the fault is there.
func (w *watcher) begin(at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.began = at
}

// end gives what was noticed until now.
func (w *watcher) end() []Notice {
	close(w.done)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.began = time.Time{}
	slices.SortStableFunc(w.list, func(a, b Notice) int { return int(a.MS - b.MS) })
	return w.list
}

// Drill plants a fault in the lab, measures, repairs it and reports.
func (i *Info) Drill(ctx context.Context, name string, cfg DrillConfig) (*Drill, error) {
	t, err := i.aim()
	if err != nil {
		return nil, err
	}
	near, beyond := t.near, t.beyond
	b, err := i.breakage(name, t)
	if err != nil {
		return nil, err
	}
	d := &Drill{Where: b.where, Noticed: []Notice{}, Drift: []string{}, Shares: []Share{}, Restored: -1}
	for _, f := range Faults() {
		if f.Name == name {
			d.Fault = f
		}
	}
	cfg.Log("%s: waiting until every leaf has all its ways", name)
	if err := until(60*time.Second, i.whole); err != nil {
		return nil, fmt.Errorf("the lab is not whole before the drill: %w", err)
	}
	if len(cfg.Hosts) == 0 {
		cfg.Hosts = append(append([]string{}, near[:min(2, len(near))]...), beyond[:min(2, len(beyond))]...)
	}
	var ranks *ranks
	if len(cfg.Program) > 0 {
		cfg.Log("%s: starting %d ranks", name, len(cfg.Hosts))
		if ranks, err = i.start(ctx, &cfg); err != nil {
			return nil, err
		}
		defer ranks.stop()
	}
	size := b.size
	if size == 0 {
		size = 64
	}
	p, err := i.probe(t.from, t.to, t.src, t.dst, 16, size, 2*time.Millisecond)
	if err != nil {
		return nil, err
	}
	w := i.watch(t)
	mark := func() (time.Time, []uint64, []uint64) {
		c, _ := i.counters(b.shares)
		return time.Now(), c, i.railBytes(cfg.Hosts)
	}
	t0, c0, r0 := mark()
	cfg.Log("%s: before, %s", name, cfg.Phase)
	if err := pause(ctx, cfg.Phase); err != nil {
		return nil, err
	}
	var known map[conn][]int
	if ranks != nil {
		if known, err = i.known(); err != nil {
			return nil, err
		}
	}
	t1, c1, r1 := mark()
	cfg.Log("%s: broken, %s: %s", name, cfg.During, b.where)
	w.begin(t1)
	repaired := false
	defer func() {
		if !repaired {
			_ = b.repair()
		}
	}()
	planted := make(chan error, 1)
	go func() { planted <- b.plant() }()
	if err := pause(ctx, cfg.During); err != nil {
		<-planted
		return nil, err
	}
	if err := <-planted; err != nil {
		return nil, fmt.Errorf("planting %s: %w", name, err)
	}
	d.Noticed = append(d.Noticed, w.end()...)
	d.Probe.Dead = p.dead(time.Second)
	t2, c2, r2 := mark()
	if ranks != nil {
		d.Runtime = &Runtime{Known: len(known)}
		if first, what := ranks.noticed(t1, t2); what != "" {
			d.Noticed = append(d.Noticed, Notice{"weft's runtime", what, first})
		}
		if d.Runtime.Suspect, err = i.blame(ranks, known, t1, t2); err != nil {
			return nil, err
		}
	}
	if cfg.Drift != nil {
		if d.Drift, err = cfg.Drift(); err != nil {
			return nil, err
		}
	}
	t3, _, r3 := mark()
	cfg.Log("%s: repaired", name)
	repaired = true
	if err := b.repair(); err != nil {
		return nil, fmt.Errorf("repairing %s: %w", name, err)
	}
	if err := until(60*time.Second, i.whole); err == nil {
		d.Restored = float64(time.Since(t3).Microseconds()) / 1000
	}
	if err := pause(ctx, cfg.Phase); err != nil {
		return nil, err
	}
	t4, _, r4 := mark()
	dead := d.Probe.Dead
	d.Probe = p.end()
	d.Probe.Dead, d.Probe.From, d.Probe.To = dead, t.from, t.to
	for k, port := range b.shares {
		d.Shares = append(d.Shares, Share{port, portion(c0, c1, k), portion(c1, c2, k)})
	}
	if ranks != nil {
		failed := ranks.stop()
		n := len(cfg.Hosts)
		d.Runtime.Ranks, d.Runtime.Bytes = n, cfg.Bytes
		d.Runtime.Before = ranks.phase(t0, t1, n, r0, r1)
		d.Runtime.During = ranks.phase(t1, t2, n, r1, r2)
		d.Runtime.After = ranks.phase(t3.Add(time.Duration(max(d.Restored, 0))*time.Millisecond), t4, n, r3, r4)
		d.Runtime.Wrong, d.Runtime.Lost, d.Runtime.Back = ranks.tally(t1)
		if failed != nil {
			d.Runtime.Failed = failed.Error()
		}
	}
	slices.SortStableFunc(d.Noticed, func(a, b Notice) int { return int(a.MS - b.MS) })
	return d, nil
}

// portion is one counter's part of what all of them grew by.
func portion(from, to []uint64, k int) float64 {
	all := 0.0
	for j := range to {
		all += float64(to[j] - from[j])
	}
	if all == 0 {
		return 0
	}
	return float64(to[k]-from[k]) / all
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// word is a line that a rank says.
type word struct {
	Time       time.Time     `json:"time"`
	Msg        string        `json:"msg"`
	Rank       int           `json:"rank"`
	Peer       int           `json:"peer"`
	Connection string        `json:"connection"`
	Interface  string        `json:"interface"`
	Bytes      int           `json:"bytes"`
	Took       time.Duration `json:"took"`
	Wrong      int           `json:"wrong"`
}

// ranks are those that work during a drill.
type ranks struct {
	mu      sync.Mutex
	words   []word
	first   chan struct{}
	signals chan os.Signal
	ended   chan error
	once    sync.Once
	err     error
}

// start starts the ranks and waits for their first operation.
func (i *Info) start(ctx context.Context, cfg *DrillConfig) (*ranks, error) {
	r := &ranks{first: make(chan struct{}), signals: make(chan os.Signal, 2), ended: make(chan error, 1)}
	var once sync.Once
	spec := launch.Spec{N: len(cfg.Hosts), Command: cfg.Program, Env: cfg.Env, Hosts: cfg.Hosts, Remote: i.Entry("{host}"), Addr: i.Spec.Node(cfg.Hosts[0]).Front,
		Signals: r.signals, Grace: 20 * time.Second,
		Capture: func(int) io.Writer {
			var rest []byte
			return writer(func(data []byte) {
				rest = append(rest, data...)
				for {
					end := bytes.IndexByte(rest, '\n')
					if end < 0 {
						return
					}
					var x word
					if json.Unmarshal(rest[:end], &x) == nil {
						r.mu.Lock()
						r.words = append(r.words, x)
						r.mu.Unlock()
						if x.Msg == "operation" {
							once.Do(func() { close(r.first) })
						}
					}
					rest = rest[end+1:]
				}
			})
		}}
	go func() {
		_, err := launch.Run(ctx, spec)
		r.ended <- err
	}()
	select {
	case <-r.first:
		return r, nil
	case err := <-r.ended:
		r.ended <- err
		return nil, fmt.Errorf("the ranks of the drill ended: %w", err)
	case <-time.After(40 * time.Second):
		r.stop()
		return nil, errors.New("the ranks of the drill did not finish an operation within 40 s")
	}
}

type writer func([]byte)

func (f writer) Write(b []byte) (int, error) { f(b); return len(b), nil }

// stop ends the ranks after their operation.
func (r *ranks) stop() error {
	r.once.Do(func() {
		r.signals <- syscall.SIGTERM
		r.err = <-r.ended
	})
	return r.err
}

// between gives the words of a while.
func (r *ranks) between(from, to time.Time) []word {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []word
	for _, w := range r.words {
		if w.Time.After(from) && !w.Time.After(to) {
			out = append(out, w)
		}
	}
	return out
}

// noticed says when ranks first lost a connection, and what.
func (r *ranks) noticed(from, to time.Time) (float64, string) {
	var first *word
	n := 0
	for _, w := range r.between(from, to) {
		if w.Msg == "path lost" || w.Msg == "link lost" {
			n++
			if first == nil || w.Time.Before(first.Time) {
				first = &w
			}
		}
	}
	if first == nil {
		return 0, ""
	}
	return float64(first.Time.Sub(from).Microseconds()) / 1000, fmt.Sprintf("rank %d: %s to rank %d (%s); %d such in all", first.Rank, first.Msg, first.Peer, strings.ReplaceAll(first.Connection, " ", " to "), n)
}

// phase sums up the operations that ended in a while.
func (r *ranks) phase(from, to time.Time, n int, before, after []uint64) Phase {
	p := Phase{Seconds: to.Sub(from).Seconds(), Rails: []float64{}}
	bytes := 0
	for _, w := range r.between(from, to) {
		if w.Msg == "operation" && w.Rank == 0 {
			p.Ops++
			bytes += w.Bytes
			p.Longest = max(p.Longest, float64(w.Took.Microseconds())/1000)
		}
	}
	if p.Seconds > 0 {
		p.MBps = float64(bytes) * 2 * float64(n-1) / float64(n) / p.Seconds / 1e6
	}
	for k := range after {
		p.Rails = append(p.Rails, portion(before, after, k))
	}
	return p
}

// tally counts what happened since the fault.
func (r *ranks) tally(from time.Time) (wrong, lost, back int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	gone := map[conn]bool{}
	for _, w := range r.words {
		wrong += w.Wrong
		if w.Time.Before(from) {
			continue
		}
		switch w.Msg {
		case "path lost", "link lost":
			if c, ok := parseConn(w.Connection); ok {
				gone[c] = true
			}
		case "path back":
			back++
		}
	}
	return wrong, len(gone), back
}

// known traces the connections that there are.
func (i *Info) known() (map[conn][]int, error) {
	list, err := i.connections()
	if err != nil {
		return nil, err
	}
	var all []conn
	for c := range list {
		all = append(all, c)
	}
	return i.ways(all)
}

// blame finds the cable that explains the connections which ranks gave up. Ways are those before
// the fault; a connection works if it heard from its other end since.
func (i *Info) blame(r *ranks, known map[conn][]int, from, to time.Time) ([]Suspect, error) {
	gone := map[conn]bool{}
	for _, w := range r.between(from, to) {
		if c, ok := parseConn(w.Connection); ok && (w.Msg == "path lost" || w.Msg == "link lost") {
			gone[c] = true
		}
	}
	if len(gone) == 0 {
		return []Suspect{}, nil
	}
	now, err := i.connections()
	if err != nil {
		return nil, err
	}
	var lost, works [][]int
	for c, way := range known {
		last, there := now[c]
		switch {
		case gone[c]:
			lost = append(lost, way)
		case there && time.Duration(last)*time.Millisecond < time.Since(from)-500*time.Millisecond:
			works = append(works, way)
		}
	}
	cables, most := suspects(lost, works)
	out := []Suspect{}
	for _, c := range cables {
		w := &i.Spec.Wires[c]
		s := Suspect{Port: w.A + ":" + w.AIf, Other: w.B + ":" + w.BIf, Lost: most, Of: len(lost)}
		if a, b := i.Spec.Node(w.A), i.Spec.Node(w.B); b.Router && (!a.Router || b.Tier > a.Tier) {
			s.Port, s.Other = s.Other, s.Port
		}
		out = append(out, s)
	}
	if len(cables) > 1 {
		return i.prove(cables, out)
	}
	return out, nil
}

// prove sends packets over each suspect and over no other of them, and keeps the suspects that lose
// packets. Where none does, the fault is over or comes and goes, and all stay.
func (i *Info) prove(cables []int, list []Suspect) ([]Suspect, error) {
	type end struct {
		host string
		addr netip.Addr
	}
	var ends []end
	for _, h := range i.Spec.Hosts() {
		for _, a := range i.Spec.Node(h).Addrs {
			if p, err := netip.ParsePrefix(a); err == nil && i.Spec.rail(p.Addr()) >= 0 {
				ends = append(ends, end{h, p.Addr()})
			}
		}
	}
	const first, perPair, most = 41000, 4, 2000
	var flows []flow
	for _, a := range ends {
		for _, b := range ends {
			if a.host == b.host {
				continue
			}
			for k := range perPair {
				if len(flows) < most {
					flows = append(flows, flow{"udp", netip.AddrPortFrom(a.addr, uint16(first+k)), netip.AddrPortFrom(b.addr, first+100)})
				}
			}
		}
	}
	ways, err := i.trace(flows)
	if err != nil {
		return nil, err
	}
	var guilty []Suspect
	for k, c := range cables {
		sent, lost := 0, 0
		for j, way := range ways {
			if sent >= 8 || !slices.Contains(way, c) || slices.ContainsFunc(way, func(x int) bool { return x != c && slices.Contains(cables, x) }) {
				continue
			}
			arrived, err := i.single(flows[j])
			if err != nil {
				return nil, err
			}
			sent++
			if !arrived {
				lost++
			}
		}
		if sent == 0 {
			list[k].Proof = "no flow crosses it and not the other suspects"
			continue
		}
		list[k].Proof = fmt.Sprintf("%d of %d flows that cross it and no other suspect lost their packets", lost, sent)
		if lost > 0 {
			guilty = append(guilty, list[k])
		}
	}
	if len(guilty) > 0 {
		return guilty, nil
	}
	return list, nil
}

// single sends three packets of a flow and reports whether one arrives.
func (i *Info) single(f flow) (bool, error) {
	in, err := i.udp(i.Spec.hostOf(f.dst.Addr()).Name, f.dst)
	if err != nil {
		return false, err
	}
	defer in.Close()
	out, err := i.udp(i.Spec.hostOf(f.src.Addr()).Name, f.src)
	if err != nil {
		return false, err
	}
	defer out.Close()
	for range 3 {
		_, _ = out.WriteToUDPAddrPort([]byte("weft"), f.dst) // what cannot be sent does not arrive
	}
	_ = in.SetReadDeadline(time.Now().Add(250 * time.Millisecond))
	_, err = in.Read(make([]byte, 64))
	return err == nil, nil
}
