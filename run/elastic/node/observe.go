package node

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weft-fabric/weft/run/coord"
	"github.com/weft-fabric/weft/run/elastic/internal/observe"
	"github.com/weft-fabric/weft/run/internal/member"
)

// observe opens this launcher's socket. It takes part once an epoch lists its ranks.
func (n *Node) observe() error {
	if n.cfg.Secret == "" {
		return nil
	}
	ip, err := netip.ParseAddr(n.cfg.Addr)
	if err != nil {
		return fmt.Errorf("node: address %q of this host: %w", n.cfg.Addr, err)
	}
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(ip, 0)))
	if err != nil {
		return fmt.Errorf("node: a socket for the other launchers: %w", err)
	}
	id := observe.NewID()
	n.observer, err = observe.Open(observe.Config{ID: id, Secret: n.cfg.Secret, Conn: conn, Member: member.Hosts(), Ask: n.cfg.Client.Ping,
		Tell: n.observed})
	if err != nil {
		conn.Close()
		return err
	}
	n.agent = formatAgent(id, conn.LocalAddr().(*net.UDPAddr).Port)
	return nil
}

// stopObserving closes the launcher's socket, and says what came there that was not
// of this job.
func (n *Node) stopObserving() {
	_ = n.observer.Close()
	if c := n.observer.Counters(); c.Forged+c.Garbled+c.Repeated > 0 {
		n.tell(Event{Kind: Trouble, Slot: -1,
			Text: fmt.Sprintf("datagrams between launchers: %d were forged or of another job, %d held no message, %d came twice; all were dropped",
				c.Forged, c.Garbled, c.Repeated)})
	}
}

// formatAgent is a launcher as workers' records name it: 1f3c5a70:4711. Its address is
// the workers' own.
func formatAgent(id member.ID, port int) string { return fmt.Sprintf("%08x:%d", uint32(id), port) }

// agentOf reads the launcher of a seat.
func agentOf(s coord.Seat) (observe.Host, error) {
	id, port, ok := strings.Cut(s.Agent, ":")
	n, err := strconv.ParseUint(id, 16, 32)
	p, bad := strconv.ParseUint(port, 10, 16)
	if !ok || err != nil || bad != nil || len(id) != 8 || p == 0 || member.ID(n) >= observe.Coordinator {
		return observe.Host{}, fmt.Errorf("launcher %.64q; want 8 hexadecimal digits, a colon and a port", s.Agent)
	}
	a, err := netip.ParseAddrPort(s.Address)
	if err != nil {
		return observe.Host{}, fmt.Errorf("launcher %.64q: the address %.64q of its worker is not IP:port", s.Agent, s.Address)
	}
	return observe.Host{ID: member.ID(n), Addr: netip.AddrPortFrom(a.Addr(), uint16(p))}, nil
}

// observeHosts takes the hosts of an epoch: those of members and of ranks that recover.
func (n *Node) observeHosts(e coord.Epoch) {
	if n.observer == nil {
		return
	}
	n.mu.Lock()
	n.hosts = e
	n.mu.Unlock()
	seen := map[string]bool{}
	var hosts []observe.Host
	for _, list := range [][]coord.Seat{e.Members, e.Recovering} {
		for _, s := range list {
			if s.Agent == "" || seen[s.Agent] {
				continue
			}
			seen[s.Agent] = true
			if h, err := agentOf(s); err == nil { // a host of another version has leases
				hosts = append(hosts, h)
			}
		}
	}
	n.observer.Update(e.Number, hosts)
}

// seatsOf are those of an epoch whose processes a launcher started, and where it listens.
func seatsOf(e coord.Epoch, launcher member.ID) (seats []coord.Seat, at netip.AddrPort) {
	for _, s := range slices.Concat(e.Members, e.Recovering) {
		if h, err := agentOf(s); err == nil && h.ID == launcher {
			seats, at = append(seats, s), h.Addr
		}
	}
	return seats, at
}

// observed takes news of another host.
func (n *Node) observed(ev observe.Event) {
	if ev.Kind != member.Died {
		return
	}
	n.mu.Lock()
	e, stopped := n.hosts, n.stopped
	n.mu.Unlock()
	if e.Number != ev.Epoch || stopped {
		return
	}
	seats, at := seatsOf(e, ev.ID)
	if len(seats) == 0 {
		return
	}
	what := fmt.Sprintf("host %s is lost: its launcher at %s is silent", seats[0].Host, at)
	n.tell(Event{Kind: Lost, Slot: -1, Epoch: e, Text: what})
	if !ev.Report {
		return
	}
	n.reports.Add(1)
	go func() {
		defer n.reports.Done()
		ctx, cancel := context.WithTimeout(n.inner, 10*time.Second)
		defer cancel()
		if err := n.cfg.Client.Lost(ctx, e.Number, seats, what); err != nil && !n.isStopped() {
			n.tell(Event{Kind: Trouble, Slot: -1, Text: fmt.Sprintf("reporting that %s: %v", what, err)})
		}
	}()
}
