package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

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
