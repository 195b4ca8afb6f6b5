package lab

import (
	"fmt"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Look asks the kernels of all nodes what their ports do. Rates are of the time since the
// state before, nil for none.
func (i *Info) Look(before *State) (*State, error) {
	s := &State{Lab: i.Spec.Name, At: time.Now(), Nodes: []NodeState{}, Wires: []WireState{}}
	links := map[string]netlink.Link{}
	for k := range i.Spec.Nodes {
		n := &i.Spec.Nodes[k]
		h, err := i.handle(n.Name)
		if err != nil {
			return nil, fmt.Errorf("lab %s does not answer: %w", i.Spec.Name, err)
		}
		list, err := h.LinkList()
		if err == nil && n.Router {
			var routes []netlink.Route
			if routes, err = h.RouteList(nil, unix.AF_INET); err == nil {
				s.Nodes = append(s.Nodes, NodeState{Name: n.Name, Router: true, Tier: max(n.Tier, 1), Routes: len(routes)})
			}
		} else {
			s.Nodes = append(s.Nodes, NodeState{Name: n.Name})
		}
		h.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", n.Name, err)
		}
		for _, l := range list {
			links[n.Name+":"+l.Attrs().Name] = l
		}
	}
	at := map[string]int{}
	for k := range s.Nodes {
		at[s.Nodes[k].Name] = k
	}
	for k := range i.Spec.Wires {
		w := &i.Spec.Wires[k]
		v := WireState{A: w.A + ":" + w.AIf, B: w.Bridge}
		if w.B != "" {
			v.B = w.B + ":" + w.BIf
		}
		var wrong []string
		for _, e := range []struct {
			node, port string
			mtu        int
			up         *bool
			sent       *uint64
		}{{w.A, v.A, w.AMTU, &v.AUp, &v.sentA}, {w.B, v.B, w.BMTU, &v.BUp, &v.sentB}} {
			if e.node == "" {
				*e.up = v.AUp
				if l := links[v.A]; l != nil && l.Attrs().Statistics != nil {
					*e.sent = l.Attrs().Statistics.RxBytes
				}
				continue
			}
			node := &s.Nodes[at[e.node]]
			node.Ports++
			l := links[e.port]
			if l == nil {
				wrong = append(wrong, e.port+" is gone")
				continue
			}
			*e.up = l.Attrs().OperState == netlink.OperUp
			if l.Attrs().Statistics != nil {
				*e.sent = l.Attrs().Statistics.TxBytes
			}
			switch {
			case *e.up:
				node.Up++
			case l.Attrs().RawFlags&unix.IFF_UP == 0:
				wrong = append(wrong, e.port+" is switched off")
			}
			if l.Attrs().MTU != e.mtu {
				wrong = append(wrong, fmt.Sprintf("%s has an MTU of %d, not %d", e.port, l.Attrs().MTU, e.mtu))
			}
		}
		if len(wrong) == 0 && !(v.AUp && v.BUp) {
			wrong = append(wrong, "no carrier")
		}
		v.Wrong = strings.Join(wrong, ", ")
		s.Wires = append(s.Wires, v)
	}
	if before != nil {
		s.rates(before)
	}
	return s, nil
}
