package lab

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// frrBin is where FRR's daemons are.
const frrBin = "/usr/lib/frr"

// Init is the first process of a lab. It reads the spec from in, says on out how
// far it is, a JSON object a line, and then answers on the listener until it is
// told to end, or until in ends before the lab is up: whoever began it is gone.
func Init(in io.Reader, out io.Writer, l net.Listener) error {
	dec := json.NewDecoder(in)
	var begin struct {
		Spec Spec
		PID  int // as processes outside see init
	}
	if err := dec.Decode(&begin); err != nil {
		return err
	}
	b := &builder{spec: &begin.Spec, said: json.NewEncoder(out), spaces: map[string]netns.NsHandle{}, began: time.Now()}
	gone := make(chan error, 1)
	keep := make(chan struct{})
	go func() {
		var word string
		err := dec.Decode(&word)
		if err == nil && word == "keep" {
			close(keep)
			return
		}
		gone <- errors.New("the process that began the lab is gone")
	}()
	done := make(chan error, 1)
	go func() { done <- b.up() }()
	select {
	case err := <-done:
		if err != nil {
			b.say(Progress{Error: err.Error()})
			return err
		}
	case err := <-gone:
		return err
	}
	b.say(Progress{Ready: true, Seconds: time.Since(b.began).Seconds()})
	select {
	case <-keep:
	case err := <-gone:
		return err
	}
	settled := make(chan struct{})
	go func() { defer close(settled); b.settle() }()
	return serve(l, b.spec, begin.PID, settled)
}

// settleTime is how long a lab that is up may take until neighbours have heard one another.
const settleTime = 20 * time.Second

// settle waits until every lldpd has heard of what is plugged in, and every
// router of its neighbours by BFD. Routes are there before that.
func (b *builder) settle() {
	wires := map[string]int{}
	for _, w := range b.spec.Wires {
		wires[w.A]++
		wires[w.B]++
	}
	end := time.Now().Add(settleTime)
	wait := func(f func() bool) { // each look starts a process: a lab of many routers would be busy with them
		for pause := 100 * time.Millisecond; !f() && time.Now().Before(end); pause = min(2*pause, 800*time.Millisecond) {
			time.Sleep(pause)
		}
	}
	_ = b.each(func(n *Node) error {
		if _, err := exec.LookPath("lldpcli"); err == nil && b.spec.LLDP {
			answer := wires[n.Name] - b.bridged(n)
			wait(func() bool { return n.lldpHears(answer) })
		}
		if n.Router && b.spec.Routing == "frr" {
			conf, _ := os.ReadFile("/run/weft/" + n.Name + "/etc/frr/frr.conf")
			if bytes.Contains(conf, []byte("bfd profile")) {
				wait(n.bfdUp)
			}
		}
		return nil
	})
}

// bridged counts the wires of a node that end in a bridge, where nobody answers LLDP.
func (b *builder) bridged(n *Node) (count int) {
	for _, w := range b.spec.Wires {
		if w.A == n.Name && w.Bridge != "" {
			count++
		}
	}
	return count
}

func (n *Node) lldpHears(neighbours int) bool {
	out, err := exec.Command("lldpcli", "-u", "/run/weft/"+n.Name+"/lldpd.socket", "-f", "keyvalue", "show", "neighbors").Output()
	return err == nil && bytes.Count(out, []byte(".chassis.name=")) >= neighbours
}

// bfdUp says whether BFD hears a router on every uplink.
func (n *Node) bfdUp() bool {
	out, err := exec.Command("vtysh", "-N", n.Name, "-d", "bfdd", "-c", "show bfd peers brief").Output()
	return err == nil && len(regexp.MustCompile(`(?m)\bup\s*$`).FindAll(out, -1)) >= len(n.Uplink)
}

// Progress is a line that init says while the lab comes up.
type Progress struct {
	Step    string  `json:"step,omitempty"`
	Ready   bool    `json:"ready,omitempty"`
	Seconds float64 `json:"seconds"`
	Error   string  `json:"error,omitempty"`
}

type builder struct {
	spec   *Spec
	mu     sync.Mutex
	said   *json.Encoder
	spaces map[string]netns.NsHandle
	began  time.Time

	watching bool // BFD runs
}

func (b *builder) say(p Progress) {
	b.mu.Lock()
	defer b.mu.Unlock()
	_ = b.said.Encode(p) // nobody may be listening any more
}

func (b *builder) step(format string, args ...any) {
	b.say(Progress{Step: fmt.Sprintf(format, args...), Seconds: time.Since(b.began).Seconds()})
}

// up brings the lab up, step by step.
func (b *builder) up() error {
	if err := private(b.spec); err != nil {
		return err
	}
	runtime.LockOSThread() // the thread is given back by ending
	for i := range b.spec.Nodes {
		if err := b.space(b.spec.Nodes[i].Name); err != nil {
			return err
		}
	}
	if err := b.bridges(); err != nil {
		return err
	}
	for i := range b.spec.Wires {
		if err := b.wire(&b.spec.Wires[i]); err != nil {
			return fmt.Errorf("cable %s:%s - %s:%s: %w", b.spec.Wires[i].A, b.spec.Wires[i].AIf, b.spec.Wires[i].B, b.spec.Wires[i].BIf, err)
		}
	}
	b.step("%d namespaces, %d cables", len(b.spec.Nodes), len(b.spec.Wires))
	if err := b.each(b.node); err != nil {
		return err
	}
	b.step("routers and hosts run")
	// All routers run before the first is configured: who advertises itself to a
	// neighbour that does not listen yet waits for its next turn.
	if b.spec.Routing == "frr" {
		for _, f := range []func(*Node) error{b.daemons, b.configure} {
			if err := b.each(f); err != nil {
				return err
			}
		}
		b.step("routers are configured")
	}
	if b.spec.LLDP { // while routers wait for one another
		if err := b.each(b.lldp); err != nil {
			return err
		}
	}
	if err := b.converge(); err != nil || b.spec.Routing != "frr" {
		return err
	}
	return b.watch()
}

// each does a step for every node, four at a time: more only wait for one another.
func (b *builder) each(f func(*Node) error) error {
	var group sync.WaitGroup
	turns := make(chan struct{}, 4)
	errs := make([]error, len(b.spec.Nodes))
	for i := range b.spec.Nodes {
		group.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			if err := f(&b.spec.Nodes[i]); err != nil {
				errs[i] = fmt.Errorf("%s: %w", b.spec.Nodes[i].Name, err)
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// private gives the lab its own view of files: what it mounts and writes below
// /run and /etc/frr ends with it.
func private(s *Spec) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("a mount namespace of its own: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mounting /proc: %w", err)
	}
	for _, dir := range []string{"/run", "/etc/frr", "/var/tmp"} { // the last holds what networkd reads
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mounting a tmpfs on %s: %w", dir, err)
		}
	}
	for _, dir := range []string{"/run/netns", names, "/run/frr", "/run/weft", "/run/lock"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if s.Routing != "frr" {
		return nil
	}
	return own("/run/frr", "frr")
}

// own gives a folder to a user, where there is such a user.
func own(path, name string) error {
	u, err := user.Lookup(name)
	if err != nil {
		return nil
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	return os.Chown(path, uid, gid)
}

// space makes the namespace of a node, with its loopback up.
func (b *builder) space(name string) error {
	made := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		h, err := netns.NewNamed(name)
		if err == nil {
			err = named(name)
		}
		if err == nil {
			b.spaces[name] = h
			// Nobody has the address already: waiting for an answer from them takes seconds.
			for _, who := range []string{"all", "default"} {
				_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+who+"/accept_dad", []byte("0"), 0)
			}
			err = linkUp("lo")
		}
		made <- err
	}()
	if err := <-made; err != nil {
		return fmt.Errorf("namespace %s: %w", name, err)
	}
	return nil
}

// names is where the namespaces of host names are kept, as /run/netns keeps those of networks.
const names = "/run/utsns"

// named gives the calling thread, which ends, a host name of its own, and keeps
// it under the node's name: what enters a node is called as the node is.
func named(name string) error {
	if err := unix.Unshare(unix.CLONE_NEWUTS); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(name)); err != nil {
		return err
	}
	path := filepath.Join(names, name)
	if err := os.WriteFile(path, nil, 0o444); err != nil {
		return err
	}
	return unix.Mount(fmt.Sprintf("/proc/self/task/%d/ns/uts", unix.Gettid()), path, "", unix.MS_BIND, "")
}

// linkUp brings an interface of the calling thread's namespace up.
func linkUp(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(l)
}

// bridges makes the networks that the graph has no cables of: init's own
// namespace is where the gateway stands.
func (b *builder) bridges() error {
	if err := linkUp("lo"); err != nil {
		return err
	}
	names := map[string]bool{}
	for _, w := range b.spec.Wires {
		if w.Bridge != "" {
			names[w.Bridge] = true
		}
	}
	for name := range names {
		br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
		if err := netlink.LinkAdd(br); err != nil {
			return fmt.Errorf("bridge %s: %w", name, err)
		}
		if name == "frontend" {
			a, err := netlink.ParseAddr(b.spec.Front)
			if err != nil {
				return err
			}
			if err := netlink.AddrAdd(br, a); err != nil {
				return err
			}
		}
		if err := netlink.LinkSetUp(br); err != nil {
			return err
		}
	}
	return nil
}

// wire lays a cable. Hardware addresses follow from the ends' names, so that a
// lab made again has the same ones.
func (b *builder) wire(w *Wire) error {
	near, err := netlink.NewHandleAt(b.spaces[w.A])
	if err != nil {
		return err
	}
	defer near.Close()
	v := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: w.AIf, HardwareAddr: mac(w.A, w.AIf)}, PeerName: w.BIf}
	if w.B == "" { // the far end is the lab's own; all others get their MTU from the emitted files
		v.MTU, v.PeerMTU = w.AMTU, uint32(w.BMTU)
	}
	if w.B != "" {
		v.PeerNamespace = netlink.NsFd(b.spaces[w.B])
		v.PeerHardwareAddr = mac(w.B, w.BIf)
	} else {
		here, err := netns.Get()
		if err != nil {
			return err
		}
		defer here.Close()
		v.PeerNamespace = netlink.NsFd(here)
		v.PeerName = fmt.Sprintf("b%x", []byte(mac(w.A, w.AIf)[1:]))
	}
	if err := near.LinkAdd(v); err != nil {
		return err
	}
	if err := near.LinkSetUp(v); err != nil {
		return err
	}
	if w.B == "" {
		end, err := netlink.LinkByName(v.PeerName)
		if err != nil {
			return err
		}
		br, err := netlink.LinkByName(w.Bridge)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetMaster(end, br); err != nil {
			return err
		}
		// The front end is the site's own. Nothing that was emitted joins the ports of other
		// networks without switches, so the lab does not either.
		if w.Bridge != "frontend" {
			if err := netlink.LinkSetIsolated(end, true); err != nil {
				return err
			}
		}
		return netlink.LinkSetUp(end)
	}
	far, err := netlink.NewHandleAt(b.spaces[w.B])
	if err != nil {
		return err
	}
	defer far.Close()
	end, err := far.LinkByName(w.BIf)
	if err != nil {
		return err
	}
	return far.LinkSetUp(end)
}

// inside runs f in a node's namespace; what it starts is the node's.
func (b *builder) inside(name string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked
		err := netns.Set(b.spaces[name])
		if err == nil {
			err = enterName(filepath.Join(names, name))
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// enterName gives the calling thread the host name that a file keeps.
func enterName(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Setns(int(f.Fd()), unix.CLONE_NEWUTS)
}

// node writes a node's files, applies its kernel settings and starts what runs on it.
func (b *builder) node(n *Node) error {
	root := "/run/weft/" + n.Name
	for _, f := range n.Files {
		path := filepath.Join(root, f.Path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, f.Data, os.FileMode(f.Mode)|0o444); err != nil {
			return err
		}
	}
	return b.inside(n.Name, func() error {
		if err := sysctl(filepath.Join(root, "etc/sysctl.d/60-weft.conf")); err != nil {
			return err
		}
		if n.Router {
			hashPackets()
			if err := udev(filepath.Join(root, "etc/udev/rules.d/60-weft-mtu.rules")); err != nil {
				return err
			}
			if err := bridges(filepath.Join(root, "usr/local/sbin/weft-bridges")); err != nil {
				return err
			}
		}
		if err := batch(n.Script); err != nil {
			return err
		}
		var err error
		switch {
		case n.Router && b.spec.Routing == "frr":
			err = router(n.Name, root)
		case n.Router && b.spec.Routing == "bird":
			err = start(root+"/bird.out", "bird", "-f", "-c", root+"/etc/bird.conf", "-s", root+"/bird.ctl")
		case !n.Router && b.spec.Setup == "networkd":
			err = host(n.Name, root)
		}
		return err
	})
}

// bridges runs the emitted script of a switch that has bridges, in the thread's namespace.
func bridges(script string) error {
	if _, err := os.Stat(script); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if out, err := exec.Command("sh", "-x", script).CombinedOutput(); err != nil {
		return fmt.Errorf("weft-bridges: %w: %s", err, lastLines(out, 3))
	}
	return nil
}

// lastLines are the last lines of an output, behind one another.
func lastLines(out []byte, n int) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "; ")
}

// udevRule is a rule that sets the MTU of one interface.
var udevRule = regexp.MustCompile(`KERNEL=="([^"]+)".*ATTR\{mtu\}="([0-9]+)"`)

// udev does what udevd would for the thread's namespace, where none runs: it sets MTUs.
func udev(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for _, m := range udevRule.FindAllStringSubmatch(string(data), -1) {
		l, err := netlink.LinkByName(m[1])
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			continue // a port whose host the lab leaves out
		}
		if err != nil {
			return err
		}
		mtu, err := strconv.Atoi(m[2])
		if err != nil {
			return err
		}
		if err := netlink.LinkSetMTU(l, mtu); err != nil {
			return fmt.Errorf("%s: MTU %d: %w", m[1], mtu, err)
		}
	}
	return nil
}

// sysctl applies a file of settings in the thread's namespace. A setting that a
// namespace does not have is the machine's own and is left alone.
func sysctl(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok {
			return fmt.Errorf("%s: %q is not a setting", file, line)
		}
		path := "/proc/sys/" + strings.ReplaceAll(strings.TrimSpace(key), ".", "/")
		err := os.WriteFile(path, []byte(strings.TrimSpace(value)), 0)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s: %w", strings.TrimSpace(key), err)
		}
	}
	return nil
}

// batch configures the thread's namespace.
func batch(lines []string) error {
	if len(lines) == 0 {
		return nil
	}
	cmd := exec.Command("ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip -batch: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// hashPackets lets a switch of the lab hash what is in the packet, addresses and ports, as real switches do. With the emitted
// policy 1 the kernel takes a number that the sender's socket left with the packet, which no cable would carry, and which
// the sender draws anew when it retransmits. Kernels before 5.12 know no other way.
func hashPackets() {
	if os.WriteFile("/proc/sys/net/ipv4/fib_multipath_hash_fields", []byte("55"), 0) == nil { // addresses, protocol, ports
		_ = os.WriteFile("/proc/sys/net/ipv4/fib_multipath_hash_policy", []byte("3"), 0)
	}
}

// start runs a program in the thread's namespace; it writes to a log and ends with init.
func start(log string, name string, args ...string) error {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = f, f
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if filepath.Base(name) == "bfdd" {
		// A switch answers its neighbours in time whatever else it does. On a busy machine bfdd would not, and report links down
		// that are not.
		_ = unix.Setpriority(unix.PRIO_PROCESS, cmd.Process.Pid, -20)
	}
	go cmd.Wait()
	return nil
}

// router gives FRR the emitted file and starts its first daemon.
func router(name, root string) error {
	etc, run := "/etc/frr/"+name, "/run/frr/"+name
	for _, dir := range []string{etc, run} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := own(dir, "frr"); err != nil {
			return err
		}
	}
	conf, err := os.ReadFile(filepath.Join(root, "etc/frr/frr.conf"))
	if err != nil {
		return err
	}
	for file, text := range map[string][]byte{"frr.conf": conf, "vtysh.conf": []byte("service integrated-vtysh-config\n")} {
		if err := os.WriteFile(filepath.Join(etc, file), text, 0o644); err != nil {
			return err
		}
	}
	return daemon(name, daemons()[0])
}

// daemon starts one of a router's daemons in the thread's namespace.
func daemon(node, name string) error {
	return start("/run/weft/"+node+"/"+name+".log", frrBin+"/"+name, "-N", node, "-A", "127.0.0.1", "--log", "stdout", "--log-level",
		"informational")
}

// daemons starts the other daemons of a router once zebra listens: who does not
// find it asks again after ten seconds.
func (b *builder) daemons(n *Node) error {
	if !n.Router {
		return nil
	}
	return b.inside(n.Name, func() error {
		for _, d := range daemons()[1:] {
			if d == "bfdd" {
				continue // later
			}
			if d == "bgpd" {
				if err := until(b.spec.patience(), func() error { _, err := os.Stat("/run/frr/" + n.Name + "/zserv.api"); return err }); err != nil {
					return fmt.Errorf("zebra did not start: %w", err)
				}
			}
			if err := daemon(n.Name, d); err != nil {
				return err
			}
		}
		return nil
	})
}

// daemons lists what a router runs.
func daemons() []string {
	out := []string{"zebra", "bgpd", "bfdd"}
	if _, err := os.Stat(frrBin + "/mgmtd"); err == nil { // FRR 10
		out = append([]string{"mgmtd"}, out...)
	}
	return out
}

// watch starts BFD on routers whose sessions stand, and gives it its part of the
// file. Beside sessions that only begin it would take them down once more.
func (b *builder) watch() error {
	err := b.each(func(n *Node) error {
		if !n.Router {
			return nil
		}
		return b.inside(n.Name, func() error { return daemon(n.Name, "bfdd") })
	})
	b.watching = true
	return errors.Join(err, b.each(b.configure))
}

// configure gives a router its file.
func (b *builder) configure(n *Node) error {
	if !n.Router || b.spec.Routing != "frr" {
		return nil
	}
	for _, d := range daemons() {
		if d == "bfdd" && !b.watching {
			continue
		}
		if err := until(b.spec.patience(), func() error { _, err := os.Stat("/run/frr/" + n.Name + "/" + d + ".vty"); return err }); err != nil {
			return fmt.Errorf("%s did not start: %w", d, err)
		}
	}
	vtysh := exec.Command("vtysh", "-N", n.Name, "-b")
	vtysh.WaitDelay = outputTime
	out, err := vtysh.CombinedOutput()
	if text := strings.TrimSpace(string(out)); err != nil || strings.Contains(text, "nknown command") {
		return fmt.Errorf("vtysh -b: %v: %s", err, text)
	}
	return nil
}

// until asks again and again, at most for a while.
func until(limit time.Duration, f func() error) error {
	end := time.Now().Add(limit)
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		err := f()
		if err == nil || time.Now().After(end) {
			return err
		}
		time.Sleep(wait)
	}
}

// host runs systemd-networkd on the emitted files, in a mount namespace of its own.
func host(name, root string) error {
	script := `set -e
mount -t sysfs -o ro sysfs /sys
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/netif/links /run/systemd/netif/leases /run/systemd/network /run/dbus
chown -R systemd-network:systemd-network /run/systemd/netif
mount --bind "$0" /etc/systemd/network
exec /lib/systemd/systemd-networkd
`
	files := filepath.Join(root, "etc/systemd/network")
	held, err := os.MkdirTemp("/var/tmp", name+"-")
	if err != nil {
		return err
	}
	if err := os.Chmod(held, 0o755); err != nil {
		return err
	}
	list, err := os.ReadDir(files)
	if err != nil {
		return err
	}
	for _, e := range list { // virtual devices have no permanent address: names are matched, .link files are udev's
		if strings.HasSuffix(e.Name(), ".link") {
			continue
		}
		data, err := os.ReadFile(filepath.Join(files, e.Name()))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(held, e.Name()), data, 0o644); err != nil {
			return err
		}
	}
	return start(root+"/networkd.log", "unshare", "--mount", "--propagation", "private", "bash", "-c", script, held)
}

// lldp runs lldpd; it tells neighbours the host name, which is the node's.
func (b *builder) lldp(n *Node) error {
	if _, err := exec.LookPath("lldpd"); err != nil {
		return nil
	}
	root := "/run/weft/" + n.Name
	conf := root + "/etc/lldpd.d/60-weft.conf"
	data, err := os.ReadFile(conf)
	if err != nil {
		return err
	}
	data = bytes.ReplaceAll(data, []byte("tx-interval 30"), []byte("tx-interval 1")) // nobody waits half a minute in a lab
	if err := os.WriteFile(conf, data, 0o644); err != nil {
		return err
	}
	script := `mkdir -p /run/lldpd; exec lldpd -d -u "$0/lldpd.socket" -I '!!*,!lo' -O "$0/etc/lldpd.d/60-weft.conf"`
	return b.inside(n.Name, func() error {
		return start(root+"/lldpd.log", "unshare", "--mount", "--propagation", "private", "bash", "-c", script, root)
	})
}

// converge waits until hosts have their addresses and rules, and every router a
// path to every other one by all of its links.
func (b *builder) converge() error {
	for i := range b.spec.Nodes {
		n := &b.spec.Nodes[i]
		err := b.inside(n.Name, func() error {
			return until(b.spec.patience(), func() error {
				if n.Router {
					return b.routed(n)
				}
				return configured(n)
			})
		})
		if err != nil {
			return fmt.Errorf("%s: %w", n.Name, err)
		}
	}
	return nil
}

// configured checks a host in the thread's namespace.
func configured(n *Node) error {
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	have := map[string]bool{}
	for _, l := range links {
		addrs, err := netlink.AddrList(l, unix.AF_INET)
		if err != nil {
			return err
		}
		for _, a := range addrs {
			have[a.IPNet.String()] = true
		}
	}
	for _, a := range n.Addrs {
		if !have[a] {
			return fmt.Errorf("the address %s is missing", a)
		}
	}
	rules, err := netlink.RuleList(unix.AF_INET)
	if err != nil {
		return err
	}
	if got := len(rules) - 3; got < n.Rules {
		return fmt.Errorf("%d of %d routing rules are there", got, n.Rules)
	}
	return nil
}

// learns says whether routes to another router can come to this one.
func (n *Node) learns(other *Node) bool {
	return other.Router && other.Name != n.Name && other.Island == n.Island && (n.Tier == 1 || other.Tier == 1)
}

// routed checks a router in the thread's namespace: a route to the address of every
// router that it can learn of. Routers of one tier above the leaves share an AS number
// and do not learn of one another.
func (b *builder) routed(n *Node) error {
	routes, err := netlink.RouteList(nil, unix.AF_INET)
	if err != nil {
		return err
	}
	have := map[string]bool{}
	for _, r := range routes {
		if r.Dst != nil {
			have[r.Dst.IP.String()] = true
		}
	}
	for i := range b.spec.Nodes {
		other := &b.spec.Nodes[i]
		if n.learns(other) && !have[other.Loop] {
			return fmt.Errorf("no route to %s yet", other.Name)
		}
	}
	for _, v := range n.VRFs {
		if err := v.learnt(); err != nil {
			return err
		}
	}
	return flooded(n)
}

// learnt checks a VRF in the thread's namespace.
func (v *VRFRoutes) learnt() error {
	have, err := netlink.RouteListFiltered(unix.AF_INET, &netlink.Route{Table: v.Table}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return err
	}
	for _, want := range v.Routes {
		if !slices.ContainsFunc(have, func(r netlink.Route) bool { return r.Dst != nil && r.Dst.String() == want }) {
			return fmt.Errorf("no route to %s in table %d yet", want, v.Table)
		}
	}
	return nil
}

// flooded checks a router in the thread's namespace: each of its tunnels knows all other switches of its network.
func flooded(n *Node) error {
	for name, others := range n.Tunnels {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		list, err := netlink.NeighList(l.Attrs().Index, unix.AF_BRIDGE)
		if err != nil {
			return err
		}
		for _, other := range others {
			if !slices.ContainsFunc(list, func(x netlink.Neigh) bool { return x.IP.String() == other }) {
				return fmt.Errorf("%s does not know %s yet", name, other)
			}
		}
	}
	return nil
}

// serve answers questions about the lab until it is told to end.
func serve(l net.Listener, s *Spec, pid int, settled <-chan struct{}) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { <-ctx.Done(); l.Close() }()
	for {
		c, err := l.Accept()
		if err != nil {
			return nil
		}
		go func() {
			defer c.Close()
			word, err := bufio.NewReader(c).ReadString('\n')
			if err != nil {
				return
			}
			switch strings.TrimSpace(word) {
			case "info":
				_ = json.NewEncoder(c).Encode(Info{PID: pid, Spec: *s})
			case "settled":
				select {
				case <-settled:
				case <-ctx.Done():
				}
				fmt.Fprintln(c, "settled")
			case "down":
				fmt.Fprintln(c, "ends")
				cancel()
			}
		}()
	}
}

// Info is what a running lab says of itself.
type Info struct {
	PID  int // of init, as processes outside see it
	Spec Spec
}
