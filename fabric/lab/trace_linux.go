package lab

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// flow is one direction of a connection.
type flow struct {
	proto    string // tcp or udp
	src, dst netip.AddrPort
}

// conn is a connection of two ends, whichever of them is first.
type conn struct{ a, b netip.AddrPort }

func newConn(a, b netip.AddrPort) conn {
	if b.Compare(a) < 0 {
		a, b = b, a
	}
	return conn{a, b}
}

// parseConn reads what the runtime says of a connection.
func parseConn(s string) (conn, bool) {
	x, y, _ := strings.Cut(s, " ")
	a, err := netip.ParseAddrPort(x)
	if err != nil {
		return conn{}, false
	}
	b, err := netip.ParseAddrPort(y)
	return newConn(a, b), err == nil
}

// hostOf finds the host that owns an address.
func (s *Spec) hostOf(a netip.Addr) *Node {
	for i := range s.Nodes {
		for _, p := range s.Nodes[i].Addrs {
			if q, err := netip.ParsePrefix(p); err == nil && q.Addr() == a {
				return &s.Nodes[i]
			}
		}
	}
	return nil
}

// rail says on which rail an address is; -1 for none.
func (s *Spec) rail(a netip.Addr) int {
	for i, r := range s.Rails {
		if p, err := netip.ParsePrefix(r); err == nil && p.Contains(a) {
			return i
		}
	}
	return -1
}

// wireIndex finds the cable at an interface; -1 for none.
func (s *Spec) wireIndex(node, iface string) int {
	if w := s.WireAt(node, iface); w != nil {
		for i := range s.Wires {
			if w == &s.Wires[i] {
				return i
			}
		}
	}
	return -1
}

// far gives the other end of a cable.
func (w *Wire) far(node string) (other, iface string) {
	if w.A == node {
		return w.B, w.BIf
	}
	return w.A, w.AIf
}

// joins says whether the wire is a cable of the node. A wire on a bridge has no far end.
func (w *Wire) joins(node string) bool { return w.Bridge == "" && (w.A == node || w.B == node) }

// trace asks the kernels of hosts and switches which cables flows take, hop by hop: each kernel knows
// how it hashes. A flow that leads nowhere has the cables up to there.
func (i *Info) trace(flows []flow) ([][]int, error) {
	out := make([][]int, len(flows))
	type at struct {
		node, in string
	}
	where := make([]at, len(flows))
	for k, f := range flows {
		if h := i.Spec.hostOf(f.src.Addr()); h != nil {
			where[k] = at{node: h.Name}
		}
	}
	for range 8 { // hops; a Clos of three tiers has six
		asks := map[string][]int{}
		var order []string
		for k, w := range where {
			if w.node != "" {
				if asks[w.node] == nil {
					order = append(order, w.node)
				}
				asks[w.node] = append(asks[w.node], k)
			}
		}
		if len(asks) == 0 {
			break
		}
		for _, node := range order {
			list := asks[node]
			var script bytes.Buffer
			for _, k := range list {
				f, iif := flows[k], ""
				if where[k].in != "" {
					iif = "iif " + where[k].in
				}
				fmt.Fprintf(&script, "route get %s from %s %s ipproto %s sport %d dport %d\n",
					f.dst.Addr(), f.src.Addr(), iif, f.proto, f.src.Port(), f.dst.Port())
			}
			line := append(i.Entry(node), "ip", "-j", "-force", "-batch", "-")
			cmd := exec.Command(line[0], line[1:]...)
			cmd.Stdin = &script
			answer, _ := cmd.Output() // a flow without a way is an error of the whole, and is seen below
			dec := json.NewDecoder(bytes.NewReader(answer))
			for _, k := range list {
				var routes []struct {
					Dev string `json:"dev"`
				}
				where[k].node, where[k].in = "", ""
				if err := dec.Decode(&routes); err != nil || len(routes) == 0 {
					continue
				}
				w := i.Spec.WireAt(node, routes[0].Dev)
				if w == nil || w.B == "" {
					continue
				}
				out[k] = append(out[k], i.Spec.wireIndex(node, routes[0].Dev))
				next, in := w.far(node)
				if n := i.Spec.Node(next); n != nil && n.Router {
					where[k] = at{next, in}
				}
			}
		}
	}
	return out, nil
}

// overRails names a socket's connection; ok is false where one of its ends is not on a rail.
func (s *Spec) overRails(id *netlink.SocketID) (c conn, ok bool) {
	a, ok1 := netip.AddrFromSlice(id.Source.To4())
	b, ok2 := netip.AddrFromSlice(id.Destination.To4())
	if !ok1 || !ok2 || s.rail(a) < 0 || s.rail(b) < 0 {
		return c, false
	}
	return newConn(netip.AddrPortFrom(a, id.SourcePort), netip.AddrPortFrom(b, id.DestinationPort)), true
}

// connections lists the established TCP connections over the rails, with the time for which one of
// its ends has not heard the other, in milliseconds.
func (i *Info) connections() (map[conn]uint32, error) {
	out := map[conn]uint32{}
	for _, host := range i.Spec.Hosts() {
		h, err := i.handle(host)
		if err != nil {
			return nil, err
		}
		list, err := h.SocketDiagTCPInfo(unix.AF_INET)
		h.Close()
		if err != nil {
			return nil, fmt.Errorf("connections of %s: %w", host, err)
		}
		for _, x := range list {
			if x.TCPInfo == nil || x.TCPInfo.State != netlink.TCP_ESTABLISHED {
				continue
			}
			if c, ok := i.Spec.overRails(&x.InetDiagMsg.ID); ok {
				last := min(x.TCPInfo.Last_ack_recv, x.TCPInfo.Last_data_recv)
				out[c] = max(out[c], last) // a way works if both ends hear
			}
		}
	}
	return out, nil
}

// ways traces connections in both directions.
func (i *Info) ways(list []conn) (map[conn][]int, error) {
	var flows []flow
	for _, c := range list {
		flows = append(flows, flow{"tcp", c.a, c.b}, flow{"tcp", c.b, c.a})
	}
	traced, err := i.trace(flows)
	if err != nil {
		return nil, err
	}
	out := map[conn][]int{}
	for k, c := range list {
		out[c] = append(append([]int{}, traced[2*k]...), traced[2*k+1]...)
	}
	return out, nil
}
