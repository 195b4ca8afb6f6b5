//go:build linux

// Package nslab makes hosts of network namespaces, for tests: each has its own
// interfaces, joined by switches, one for each rail, and links that can be cut.
//
//	host 0          host 1          host 2
//	 r0  r1          r0  r1          r0  r1       10.77.0.1/24 10.77.1.1/24, ...
//	  |   |           |   |           |   |
//	==+===|===========+===|===========+===|==     switch of rail 0
//	======+===============+===============+==     switch of rail 1
//
// It needs root and leaves nothing behind: the namespaces have no names, so the
// system removes them with the last process in them.
package nslab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Lab is a set of hosts.
type Lab struct {
	hosts  []*host
	fabric netns.NsHandle
	net    *netlink.Handle // of the fabric
	rails  int
}

type host struct {
	space netns.NsHandle
	net   *netlink.Handle
}

// New makes a lab, or skips the test where that is not allowed.
func New(t testing.TB, hosts, rails int) *Lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	if hosts > 250 || rails > 250 {
		t.Fatalf("%d hosts with %d rails: the addresses are for 250", hosts, rails)
	}
	l := &Lab{rails: rails, fabric: netns.None()}
	t.Cleanup(l.close)
	if err := l.build(hosts); err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	return l
}

// Rail is the name of an interface, the same on all hosts.
func Rail(rail int) string { return fmt.Sprintf("r%d", rail) }

// Addr is a host's address on a rail.
func Addr(host, rail int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 77, byte(rail), byte(host + 1)})
}

// space makes a namespace and leaves the thread in the one it was in. The
// caller has locked the thread.
func space() (netns.NsHandle, error) {
	was, err := netns.Get()
	if err != nil {
		return netns.None(), err
	}
	defer was.Close()
	made, err := netns.New()
	if err != nil {
		return netns.None(), err
	}
	if err := netns.Set(was); err != nil {
		// The thread must not be used again: it ends with its goroutine, which
		// never unlocks it.
		panic(fmt.Sprintf("cannot leave a network namespace: %v", err))
	}
	return made, nil
}

// addHost adds a host without a wire. It is listed as soon as it has a namespace, so that Close removes it whatever fails then.
func (l *Lab) addHost() (h *host, err error) {
	h = &host{}
	if h.space, err = space(); err != nil {
		return nil, err
	}
	l.hosts = append(l.hosts, h)
	if h.net, err = netlink.NewHandleAt(h.space); err != nil {
		return nil, err
	}
	lo, err := h.net.LinkByName("lo")
	if err != nil {
		return nil, err
	}
	return h, h.net.LinkSetUp(lo)
}

func (l *Lab) build(hosts int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var err error
	if l.fabric, err = space(); err != nil {
		return err
	}
	fabric, err := netlink.NewHandleAt(l.fabric)
	if err != nil {
		return err
	}
	l.net = fabric
	bridges := make([]netlink.Link, l.rails)
	for r := range bridges {
		b := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("sw%d", r)}}
		if err := fabric.LinkAdd(b); err != nil {
			return fmt.Errorf("switch of rail %d: %w", r, err)
		}
		if err := fabric.LinkSetUp(b); err != nil {
			return err
		}
		bridges[r] = b
	}
	for i := range hosts {
		h, err := l.addHost()
		if err != nil {
			return err
		}
		for r := range l.rails {
			if err := l.wire(fabric, bridges[r], h, i, r); err != nil {
				return fmt.Errorf("rail %d of host %d: %w", r, i, err)
			}
		}
	}
	return l.ready()
}

// ready waits until the links carry: the system says so a little after they
// were set up.
func (l *Lab) ready() error {
	for end := time.Now().Add(3 * time.Second); ; time.Sleep(time.Millisecond) {
		up := true
		for _, h := range l.hosts {
			for r := range l.rails {
				x, err := h.net.LinkByName(Rail(r))
				if err != nil {
					return err
				}
				up = up && x.Attrs().OperState == netlink.OperUp
			}
		}
		if up {
			return nil
		}
		if time.Now().After(end) {
			return errors.New("the links did not come up")
		}
	}
}

// wire joins a host with the switch of a rail.
func (l *Lab) wire(fabric *netlink.Handle, bridge netlink.Link, h *host, i, r int) error {
	port := fmt.Sprintf("p%dr%d", i, r)
	v := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: port}, PeerName: Rail(r), PeerNamespace: netlink.NsFd(h.space)}
	if err := fabric.LinkAdd(v); err != nil {
		return err
	}
	if err := fabric.LinkSetMaster(v, bridge); err != nil {
		return err
	}
	if err := fabric.LinkSetUp(v); err != nil {
		return err
	}
	end, err := h.net.LinkByName(Rail(r))
	if err != nil {
		return err
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: Addr(i, r).AsSlice(), Mask: net.CIDRMask(24, 32)}}
	if err := h.net.AddrAdd(end, addr); err != nil {
		return err
	}
	return h.net.LinkSetUp(end)
}

// Do runs f on a host: sockets that f opens and processes that it starts are of
// the host. What f starts in goroutines of their own is not.
func (l *Lab) Do(host int, f func() error) error {
	runtime.LockOSThread()
	was, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer was.Close()
	if err := netns.Set(l.hosts[host].space); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	err = f()
	if back := netns.Set(was); back != nil {
		return back // the thread stays locked and ends with its goroutine
	}
	runtime.UnlockOSThread()
	return err
}

// Path is where a host's namespace can be entered by, for as long as this process runs.
func (l *Lab) Path(host int) string {
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(l.hosts[host].space))
}

// Cut takes a host's link on a rail down, as pulling its cable does.
func (l *Lab) Cut(host, rail int) error { return l.link(host, rail, (*netlink.Handle).LinkSetDown) }

// Mend brings it up again.
func (l *Lab) Mend(host, rail int) error { return l.link(host, rail, (*netlink.Handle).LinkSetUp) }

// Unplug takes a host off the switch of a rail: its link stays up and nothing comes through, as behind a switch
// that lost its tables.
func (l *Lab) Unplug(host, rail int) error { return l.port(host, rail, "") }

// Plug brings it back.
func (l *Lab) Plug(host, rail int) error { return l.port(host, rail, fmt.Sprintf("sw%d", rail)) }

// Narrow gives the switch's port of a host on a rail another MTU than the host has: small packets pass, larger ones vanish, and
// nobody is told.
func (l *Lab) Narrow(host, rail, mtu int) error {
	port, err := l.net.LinkByName(fmt.Sprintf("p%dr%d", host, rail))
	if err != nil {
		return err
	}
	return l.net.LinkSetMTU(port, mtu)
}

// Part takes hosts, as a group, off all others on all rails: they go on reaching one another. Plug brings each back.
func (l *Lab) Part(hosts ...int) error {
	for r := range l.rails {
		name := fmt.Sprintf("part%d", r)
		b := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
		if err := l.net.LinkAdd(b); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		if err := l.net.LinkSetUp(b); err != nil {
			return err
		}
		for _, h := range hosts {
			if err := l.port(h, r, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// port joins a host's link with a switch, or with none.
func (l *Lab) port(host, rail int, to string) error {
	end, err := l.net.LinkByName(fmt.Sprintf("p%dr%d", host, rail))
	if err != nil {
		return err
	}
	if to == "" {
		return l.net.LinkSetNoMaster(end)
	}
	b, err := l.net.LinkByName(to)
	if err != nil {
		return err
	}
	return l.net.LinkSetMaster(end, b)
}

func (l *Lab) link(host, rail int, f func(*netlink.Handle, netlink.Link) error) error {
	h := l.hosts[host].net
	end, err := h.LinkByName(Rail(rail))
	if err != nil {
		return err
	}
	return f(h, end)
}

// Bytes are what a host has sent and received on a rail, by the interface's own
// counters.
func (l *Lab) Bytes(host, rail int) (sent, received uint64, err error) {
	end, err := l.hosts[host].net.LinkByName(Rail(rail))
	if err != nil {
		return 0, 0, err
	}
	s := end.Attrs().Statistics
	return s.TxBytes, s.RxBytes, nil
}

// Limit lets a host send at most bytesPerSecond bytes on a rail.
func (l *Lab) Limit(host, rail int, bytesPerSecond uint64) error {
	h := l.hosts[host].net
	end, err := h.LinkByName(Rail(rail))
	if err != nil {
		return err
	}
	return h.QdiscReplace(&netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: end.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       bytesPerSecond, Buffer: 1 << 17, Limit: 1 << 20,
	})
}

func (l *Lab) close() {
	for _, h := range l.hosts {
		if h.net != nil {
			h.net.Close()
		}
		if h.space.IsOpen() {
			h.space.Close()
		}
	}
	if l.net != nil {
		l.net.Close()
	}
	if l.fabric.IsOpen() {
		l.fabric.Close()
	}
}
