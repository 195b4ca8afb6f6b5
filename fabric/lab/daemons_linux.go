package lab

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

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
