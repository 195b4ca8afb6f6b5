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
		var wrong, more []string
		v.AUp, v.sentA, wrong = endState(&s.Nodes[at[w.A]], links[v.A], v.A, w.AMTU)
		if w.B != "" {
			v.BUp, v.sentB, more = endState(&s.Nodes[at[w.B]], links[v.B], v.B, w.BMTU)
			wrong = append(wrong, more...)
		} else { // a bridge is as its port is: what it sends is what comes in there
			v.BUp = v.AUp
			if l := links[v.A]; l != nil && l.Attrs().Statistics != nil {
				v.sentB = l.Attrs().Statistics.RxBytes
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

// endState looks at one end of a wire, counts it at its node, and says what is wrong with it. l is nil if the port is
// gone.
func endState(node *NodeState, l netlink.Link, port string, mtu int) (up bool, sent uint64, wrong []string) {
	node.Ports++
	if l == nil {
		return false, 0, []string{port + " is gone"}
	}
	x := l.Attrs()
	up = x.OperState == netlink.OperUp
	if x.Statistics != nil {
		sent = x.Statistics.TxBytes
	}
	switch {
	case up:
		node.Up++
	case x.RawFlags&unix.IFF_UP == 0:
		wrong = append(wrong, port+" is switched off")
	}
	if x.MTU != mtu {
		wrong = append(wrong, fmt.Sprintf("%s has an MTU of %d, not %d", port, x.MTU, mtu))
	}
	return up, sent, wrong
}
