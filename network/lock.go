package network

import (
	"bufio"
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Lock is what an earlier plan gave out: the numbers of hosts and switches, and
// every address. It is a text with one entry a line, so that a change of the
// plan is a change of a few lines:
//
//	host n0 0
//	switch leaf0 0
//	address n0 nic0 192.168.0.1/31
type Lock struct {
	Hosts     map[string]int
	Switches  map[string]int
	Addresses map[[2]string]netip.Prefix // by device and interface
}

const lockHead = "# weft net lock 1. Numbers and addresses that were given out; keep it beside the cluster file.\n"

// ParseLock reads a lock.
func ParseLock(file string, data []byte) (*Lock, error) {
	l := &Lock{Hosts: map[string]int{}, Switches: map[string]int{}, Addresses: map[[2]string]netip.Prefix{}}
	taken := map[[2]string]bool{}
	scan := bufio.NewScanner(bytes.NewReader(data))
	for number := 1; scan.Scan(); number++ {
		line := strings.TrimSpace(scan.Text())
		if number == 1 && !strings.HasPrefix(line, "# weft net lock 1") {
			return nil, fmt.Errorf("%s:1: this is no lock of weft net: it begins with %q", file, clip(line))
		}
		if line == "" || line[0] == '#' {
			continue
		}
		bad := func(why string) error {
			return fmt.Errorf("%s:%d: %q: %s", file, number, clip(line), why)
		}
		f := strings.Fields(line)
		switch {
		case len(f) == 3 && (f[0] == "host" || f[0] == "switch"):
			n, err := strconv.Atoi(f[2])
			if err != nil || n < 0 || n > 1<<24 {
				return nil, bad("the number must be 0 or more")
			}
			if taken[[2]string{f[0], f[2]}] {
				return nil, bad("the number is given out twice")
			}
			taken[[2]string{f[0], f[2]}] = true
			names := l.Hosts
			if f[0] == "switch" {
				names = l.Switches
			}
			if _, twice := names[f[1]]; twice {
				return nil, bad("the name comes twice")
			}
			names[f[1]] = n
		case len(f) == 4 && f[0] == "address":
			a, err := netip.ParsePrefix(f[3])
			if err != nil {
				return nil, bad("the address must look like 10.0.1.10/16")
			}
			l.Addresses[[2]string{f[1], f[2]}] = a
		default:
			return nil, bad("want host NAME NUMBER, switch NAME NUMBER or address DEVICE INTERFACE ADDRESS")
		}
	}
	if err := scan.Err(); err != nil {
		return nil, fmt.Errorf("%s: %v", file, err)
	}
	return l, nil
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:77] + "..."
	}
	return s
}

// Lock writes down what the plan gave out.
func (p *Plan) Lock() []byte {
	var b bytes.Buffer
	b.WriteString(lockHead)
	for i := range p.Hosts {
		fmt.Fprintf(&b, "host %s %d\n", p.Hosts[i].Name, p.Hosts[i].Number)
	}
	for i := range p.Switches {
		fmt.Fprintf(&b, "switch %s %d\n", p.Switches[i].Name, p.Switches[i].Number)
	}
	p.each(func(device, iface string, a netip.Prefix) {
		fmt.Fprintf(&b, "address %s %s %s\n", device, iface, a)
	})
	return b.Bytes()
}

// each calls f for every address of the plan, in order.
func (p *Plan) each(f func(device, iface string, a netip.Prefix)) {
	for i := range p.Hosts {
		h := &p.Hosts[i]
		for j := range h.Interfaces {
			if x := &h.Interfaces[j]; x.Addr.IsValid() {
				f(h.Name, x.Name, x.Addr)
			}
		}
		f(h.Name, "bmc", h.BMC)
	}
	for i := range p.Switches {
		s := &p.Switches[i]
		f(s.Name, "mgmt", s.Mgmt)
		if s.Loopback.IsValid() {
			f(s.Name, "lo", netip.PrefixFrom(s.Loopback, 32))
		}
	}
}

// Move is an address that an earlier plan gave out and this one changes.
type Move struct {
	Device, Interface string
	From, To          netip.Prefix
}

func (m Move) String() string {
	return fmt.Sprintf("%s %s: %s becomes %s", m.Device, m.Interface, m.From, m.To)
}

// Moves lists the addresses of a lock that the plan changes, in the plan's order.
func (p *Plan) Moves(l *Lock) []Move {
	var out []Move
	p.each(func(device, iface string, a netip.Prefix) {
		if old, ok := l.Addresses[[2]string{device, iface}]; ok && old != a {
			out = append(out, Move{device, iface, old, a})
		}
	})
	return out
}

// numbers gives every name its number: the one in the lock, and the next free
// one for a new name. Numbers of names that are gone are not given out again.
func numbers(names []string, locked map[string]int) []int {
	next := 0
	for _, n := range locked {
		next = max(next, n+1)
	}
	out := make([]int, len(names))
	for i, name := range names {
		n, known := locked[name]
		if !known {
			n = next
			next++
		}
		out[i] = n
	}
	return out
}

// top is the number of numbers in use: one more than the highest.
func top(numbers []int) int {
	if len(numbers) == 0 {
		return 0
	}
	return slices.Max(numbers) + 1
}
