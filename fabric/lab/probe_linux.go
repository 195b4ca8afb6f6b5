package lab

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// space opens the network namespace of a node.
func (i *Info) space(node string) (netns.NsHandle, error) {
	return netns.GetFromPath(fmt.Sprintf("/proc/%d/root/run/netns/%s", i.PID, node))
}

// handle talks with the kernel about a node. Its sockets are opened by a thread
// that ends: without root no thread finds back to the machine's own namespace.
func (i *Info) handle(node string) (*netlink.Handle, error) {
	var h *netlink.Handle
	err := i.within(node, func() (err error) {
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE, unix.NETLINK_INET_DIAG)
		return err
	})
	return h, err
}

// within runs f in a node's namespace; sockets that it opens stay there.
func (i *Info) within(node string, f func() error) error {
	ns, err := i.space(node)
	if err != nil {
		return err
	}
	defer ns.Close()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := netns.Set(ns)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// udp opens a socket on a host. Its packets are never cut into pieces, as those of RDMA are not.
func (i *Info) udp(host string, at netip.AddrPort) (*net.UDPConn, error) {
	var c *net.UDPConn
	err := i.within(host, func() error {
		l := net.ListenConfig{Control: func(_, _ string, raw syscallConn) error {
			var e error
			err := raw.Control(func(fd uintptr) {
				e = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
				_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20) // without it the machine's default serves
			})
			if err == nil {
				err = e
			}
			return err
		}}
		p, err := l.ListenPacket(context.Background(), "udp4", at.String())
		if err == nil {
			c = p.(*net.UDPConn)
		}
		return err
	})
	return c, err
}

// prober sends packets of several flows at a fixed rate and notes which arrive.
type prober struct {
	flows    []flow
	interval time.Duration
	out      []*net.UDPConn
	in       *net.UDPConn
	size     int

	mu   sync.Mutex
	sent [][]int64 // by flow and packet: when, in nanoseconds since began
	got  [][]bool

	began time.Time
	stop  chan struct{}
	wg    sync.WaitGroup
}

// probePort is where probes are received.
const probePort = 40000

// probe starts to send from one host's address to another's.
func (i *Info) probe(from, to string, src, dst netip.Addr, flows, size int, interval time.Duration) (*prober, error) {
	p := &prober{interval: interval, size: size, began: time.Now(), stop: make(chan struct{})}
	var err error
	if p.in, err = i.udp(to, netip.AddrPortFrom(dst, probePort)); err != nil {
		return nil, fmt.Errorf("a socket on %s: %w", to, err)
	}
	for k := range flows {
		at := netip.AddrPortFrom(src, uint16(probePort+1+k))
		c, err := i.udp(from, at)
		if err != nil {
			p.close()
			return nil, fmt.Errorf("a socket on %s: %w", from, err)
		}
		p.out = append(p.out, c)
		p.flows = append(p.flows, flow{"udp", at, netip.AddrPortFrom(dst, probePort)})
	}
	p.sent, p.got = make([][]int64, flows), make([][]bool, flows)
	p.wg.Add(2)
	go p.send(netip.AddrPortFrom(dst, probePort))
	go p.receive()
	return p, nil
}

func (p *prober) close() {
	for _, c := range append(p.out, p.in) {
		if c != nil {
			c.Close()
		}
	}
}

// send sends one packet per flow and interval, and notes when. After a pause of this machine it goes on from now:
// packets that were never sent must not count as lost.
func (p *prober) send(to netip.AddrPort) {
	defer p.wg.Done()
	buf := make([]byte, p.size)
	next := time.Now()
	for {
		for k, c := range p.out {
			p.mu.Lock()
			n := len(p.sent[k])
			p.sent[k] = append(p.sent[k], int64(time.Since(p.began)))
			p.got[k] = append(p.got[k], false)
			p.mu.Unlock()
			binary.BigEndian.PutUint16(buf, uint16(k))
			binary.BigEndian.PutUint32(buf[2:], uint32(n))
			_, _ = c.WriteToUDPAddrPort(buf, to) // what cannot be sent does not arrive
		}
		next = next.Add(p.interval)
		wait := time.Until(next)
		if wait < -10*p.interval { // this machine was busy: what it did not send was not lost
			next, wait = time.Now(), 0
		}
		select {
		case <-p.stop:
			return
		case <-time.After(max(wait, 0)):
		}
	}
}

func (p *prober) receive() {
	defer p.wg.Done()
	buf := make([]byte, 64<<10)
	for {
		n, err := p.in.Read(buf)
		if err != nil {
			return
		}
		p.arrived(buf[:n])
	}
}

func (p *prober) arrived(packet []byte) {
	if len(packet) < 6 {
		return
	}
	k, seq := int(binary.BigEndian.Uint16(packet)), int(binary.BigEndian.Uint32(packet[2:]))
	p.mu.Lock()
	defer p.mu.Unlock()
	if k < len(p.got) && seq < len(p.got[k]) {
		p.got[k][seq] = true
	}
}

// drain takes what arrived and was not read yet: on a busy machine the socket may hold seconds of it.
func (p *prober) drain() {
	raw, err := p.in.SyscallConn()
	if err != nil {
		return
	}
	buf := make([]byte, 64<<10)
	_ = raw.Control(func(fd uintptr) {
		for {
			n, _, err := unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT)
			if err != nil {
				return
			}
			p.arrived(buf[:n])
		}
	})
}

// dead says how many flows had none of the packets arrive that were sent in a while before now.
func (p *prober) dead(while time.Duration) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	out, now := 0, int64(time.Since(p.began))
	for k := range p.sent {
		any, seen := false, false
		for n := len(p.sent[k]) - 1; n >= 0 && p.sent[k][n] > now-int64(while); n-- {
			if p.sent[k][n] < now-int64(50*time.Millisecond) { // others may be under way
				seen = true
				any = any || p.got[k][n]
			}
		}
		if seen && !any {
			out++
		}
	}
	return out
}

// end stops sending, waits for what is under way, and sums up.
func (p *prober) end() Probe {
	close(p.stop)
	time.Sleep(200 * time.Millisecond) // packets under way
	_ = p.in.SetReadDeadline(time.Now())
	p.wg.Wait()
	p.drain()
	p.close()
	out := Probe{Flows: len(p.out), Interval: float64(p.interval.Microseconds()) / 1000, Bytes: p.size}
	for k := range p.sent {
		lost, row, lasted := outage(p.sent[k], p.got[k])
		out.Sent += len(p.sent[k])
		out.Lost += lost
		if lost > 0 {
			out.Hit++
		}
		if row > out.Packets {
			out.Packets, out.Outage = row, float64(lasted.Microseconds())/1000
		}
	}
	return out
}
