package network

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
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

	lines map[[2]string]int // of Addresses
}

// maxNumber is the highest number of a host or a switch.
const maxNumber = 1<<20 - 1

const lockHead = "# weft net lock 1. Numbers and addresses that were given out; keep it beside the cluster file.\n"

// ParseLock reads a lock.
func ParseLock(file string, data []byte) (*Lock, error) {
	l := &Lock{Hosts: map[string]int{}, Switches: map[string]int{}, Addresses: map[[2]string]netip.Prefix{}, lines: map[[2]string]int{}}
	taken, owner := map[[2]string]bool{}, map[netip.Addr]string{}
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, fmt.Errorf("%s:1: the lock is empty; take it from a backup, or remove it and write it anew with --write", file)
	}
	scan := bufio.NewScanner(bytes.NewReader(data))
	for number := 1; scan.Scan(); number++ {
		line := strings.TrimSpace(scan.Text())
		if rest, ok := strings.CutPrefix(line, "# weft net lock 1"); number == 1 && (!ok || rest != "" && rest[0] != '.') {
			return nil, fmt.Errorf("%s:1: this is not a weft net lock: it begins with %q, not with \"# weft net lock 1.\"", file, clip(line))
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
			if err != nil || n < 0 || n > maxNumber {
				return nil, bad(fmt.Sprintf("the number must be 0 to %d", maxNumber))
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
			if err != nil || !a.Addr().Is4() {
				return nil, bad("the address must look like 10.0.1.10/16")
			}
			key := [2]string{f[1], f[2]}
			_, host := l.Hosts[f[1]]
			_, sw := l.Switches[f[1]]
			if !host && !sw {
				return nil, bad("no line above gives that host or switch a number")
			}
			if at := l.lines[key]; at > 0 {
				return nil, bad(fmt.Sprintf("the interface is already on line %d", at))
			}
			if other, twice := owner[a.Addr()]; twice {
				return nil, bad("the address is already that of " + other)
			}
			l.Addresses[key], l.lines[key], owner[a.Addr()] = a, number, f[1]+" "+f[2]
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
	b := make([]byte, 0, 64*(len(p.Hosts)+len(p.Switches)))
	b = append(b, lockHead...)
	numbered := func(kind, name string, n int) {
		b = append(append(append(append(b, kind...), ' '), name...), ' ')
		b = append(strconv.AppendInt(b, int64(n), 10), '\n')
	}
	for i := range p.Hosts {
		numbered("host", p.Hosts[i].Name, p.Hosts[i].Number)
	}
	for _, name := range slices.SortedFunc(maps.Keys(p.goneHosts), topo.Natural) {
		numbered("host", name, p.goneHosts[name])
	}
	for i := range p.Switches {
		numbered("switch", p.Switches[i].Name, p.Switches[i].Number)
	}
	for _, name := range slices.SortedFunc(maps.Keys(p.goneSwitches), topo.Natural) {
		numbered("switch", name, p.goneSwitches[name])
	}
	p.each(func(device, iface string, a netip.Prefix) {
		b = append(append(append(append(append(b, "address "...), device...), ' '), iface...), ' ')
		b = append(a.AppendTo(b), '\n')
	})
	return b
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
	Line              int // of the lock
}

func (m Move) String() string {
	return fmt.Sprintf("%s %s: %s becomes %s", m.Device, m.Interface, m.From, m.To)
}

// Moves lists the addresses of a lock that the plan changes, in the plan's order.
func (p *Plan) Moves(l *Lock) []Move {
	var out []Move
	p.each(func(device, iface string, a netip.Prefix) {
		if old, ok := l.Addresses[[2]string{device, iface}]; ok && old != a {
			out = append(out, Move{device, iface, old, a, l.lines[[2]string{device, iface}]})
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

// gone gives the numbers of a lock whose names there are no longer.
func gone(names []string, locked map[string]int) map[string]int {
	out := maps.Clone(locked)
	for _, name := range names {
		delete(out, name)
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
