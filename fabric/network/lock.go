package network

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
)

// Lock is what an earlier plan gave out: the numbers of hosts and switches, every
// address, every cable, and where a floor plan put the devices. It is a text with
// one entry per line, so that a change of the plan is a change of a few lines:
//
//	host n0 0
//	switch leaf0 0
//	address n0 nic0 10.160.0.1/31
//	cable leaf0 1 n0 nic0
//	rack n0 A01 12
type Lock struct {
	Hosts     map[string]int
	Switches  map[string]int
	Addresses map[[2]string]netip.Prefix // by device and interface
	Cables    []Cable                    // in the order of the file
	Racks     map[string]Shelf

	lines   map[[2]string]int // of addresses, of cables by their first end, and of racks
	farEnds map[Socket]Socket // of cables
}

// Shelf is where a device stands: its rack, and the lowest unit that it takes.
type Shelf struct {
	Rack string
	Unit int
}

func (s Shelf) String() string { return fmt.Sprintf("%s unit %d", s.Rack, s.Unit) }

// far is the other end of a cable.
func (l *Lock) far(s Socket) (Socket, bool) {
	far, known := l.farEnds[s]
	return far, known
}

// pairOf names two devices, in any order.
func pairOf(a, b string) [2]string { return [2]string{min(a, b), max(a, b)} }

// between lists the cables between every two devices.
func (l *Lock) between() map[[2]string][]Cable {
	out := map[[2]string][]Cable{}
	for _, c := range l.Cables {
		pair := pairOf(c[0].Device, c[1].Device)
		out[pair] = append(out[pair], c)
	}
	return out
}

// portNumber reads the number of a switch's port; 0 if it is none.
func portNumber(s string) uint16 {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return 0
	}
	return uint16(n)
}

// maxNumber is the highest number of a host or a switch.
const maxNumber = 1<<20 - 1

const lockHead = "# weft net lock 1. Numbers, addresses and ports that were given out; keep it next to the cluster file.\n"

// ParseLock reads a lock.
func ParseLock(file string, data []byte) (*Lock, error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, fmt.Errorf("%s:1: the lock is empty; take it from a backup, or remove it and write it anew with --write", file)
	}
	r := lockReader{taken: map[[2]string]bool{}, owner: map[netip.Addr]string{},
		l: &Lock{Hosts: map[string]int{}, Switches: map[string]int{}, Addresses: map[[2]string]netip.Prefix{}, Racks: map[string]Shelf{},
			lines: map[[2]string]int{}, farEnds: map[Socket]Socket{}}}
	scan := bufio.NewScanner(bytes.NewReader(data))
	for r.number = 1; scan.Scan(); r.number++ {
		line := strings.TrimSpace(scan.Text())
		if r.number == 1 && !begins(line) {
			return nil, fmt.Errorf("%s:1: this is not a weft net lock: it begins with %q, not with \"# weft net lock 1.\"", file, clip(line))
		}
		if line == "" || line[0] == '#' {
			continue
		}
		if err := r.entry(strings.Fields(line)); err != nil {
			return nil, fmt.Errorf("%s:%d: %q: %w", file, r.number, clip(line), err)
		}
	}
	if err := scan.Err(); err != nil {
		return nil, fmt.Errorf("%s: %v", file, err)
	}
	return r.l, nil
}

// begins reports whether a line is the first one of a lock.
func begins(line string) bool {
	rest, ok := strings.CutPrefix(line, "# weft net lock 1")
	return ok && (rest == "" || rest[0] == '.')
}

// lockReader reads a lock line by line.
type lockReader struct {
	l      *Lock
	number int                // of the line
	taken  map[[2]string]bool // numbers of hosts and switches
	owner  map[netip.Addr]string
}

// entry reads one line.
func (r *lockReader) entry(f []string) error {
	switch {
	case len(f) == 3 && (f[0] == "host" || f[0] == "switch"):
		return r.numbered(f)
	case len(f) == 4 && f[0] == "address":
		return r.address(f)
	case len(f) == 5 && f[0] == "cable":
		return r.cable(f)
	case len(f) == 4 && f[0] == "rack":
		return r.rack(f)
	}
	return errors.New("want host NAME NUMBER, switch NAME NUMBER, address DEVICE INTERFACE ADDRESS, cable SWITCH PORT DEVICE PORT or rack DEVICE RACK UNIT")
}

// numbered reads the number that a host or switch keeps for good. A number or a name that comes twice is an error, as
// addresses follow from numbers.
func (r *lockReader) numbered(f []string) error {
	n, err := strconv.Atoi(f[2])
	if err != nil || n < 0 || n > maxNumber {
		return fmt.Errorf("the number must be 0 to %d", maxNumber)
	}
	if r.taken[[2]string{f[0], f[2]}] {
		return errors.New("the number is given out twice")
	}
	r.taken[[2]string{f[0], f[2]}] = true
	names := r.l.Hosts
	if f[0] == "switch" {
		names = r.l.Switches
	}
	if _, twice := names[f[1]]; twice {
		return errors.New("the name comes twice")
	}
	names[f[1]] = n
	return nil
}

// known refuses devices that no line above numbers.
func (r *lockReader) known(names ...string) error {
	for _, name := range names {
		_, host := r.l.Hosts[name]
		if _, sw := r.l.Switches[name]; !host && !sw {
			return errors.New("no line above gives that host or switch a number")
		}
	}
	return nil
}

// address reads an address that an interface keeps. Its device must have come before.
func (r *lockReader) address(f []string) error {
	a, err := netip.ParsePrefix(f[3])
	if err != nil || !a.Addr().Is4() {
		return errors.New("the address must look like 10.0.1.10/16")
	}
	if err := r.known(f[1]); err != nil {
		return err
	}
	key := [2]string{f[1], f[2]}
	if at := r.l.lines[key]; at > 0 {
		return fmt.Errorf("the interface is already on line %d", at)
	}
	if other, twice := r.owner[a.Addr()]; twice {
		return errors.New("the address is already that of " + other)
	}
	r.l.Addresses[key], r.l.lines[key], r.owner[a.Addr()] = a, r.number, f[1]+" "+f[2]
	return nil
}

// cable reads a cable that stands. Each port has one.
func (r *lockReader) cable(f []string) error {
	if err := r.known(f[1], f[3]); err != nil {
		return err
	}
	c := Cable{{f[1], f[2]}, {f[3], f[4]}}
	for _, s := range c {
		if _, sw := r.l.Switches[s.Device]; sw && portNumber(s.Port) == 0 {
			return fmt.Errorf("%s is a switch: its port must be a number from 1", s.Device)
		}
		if far, twice := r.l.farEnds[s]; twice {
			return fmt.Errorf("%s already has a cable to %s", s, far)
		}
	}
	if c[0] == c[1] {
		return errors.New("both ends are the same port")
	}
	r.l.farEnds[c[0]], r.l.farEnds[c[1]] = c[1], c[0]
	r.l.Cables = append(r.l.Cables, c)
	r.l.lines[[2]string{"cable", c[0].String()}] = r.number
	return nil
}

func (r *lockReader) rack(f []string) error {
	if err := r.known(f[1]); err != nil {
		return err
	}
	unit, err := strconv.Atoi(f[3])
	if err != nil || unit < 1 || unit > 1000 {
		return errors.New("the unit must be a number from 1")
	}
	if _, twice := r.l.Racks[f[1]]; twice {
		return errors.New("the device already has a rack")
	}
	r.l.Racks[f[1]] = Shelf{f[2], unit}
	r.l.lines[[2]string{"rack", f[1]}] = r.number
	return nil
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
	for _, c := range p.Cables() {
		b = append(b, "cable"...)
		for _, s := range c {
			b = append(append(append(append(b, ' '), s.Device...), ' '), s.Port...)
		}
		b = append(b, '\n')
	}
	p.eachShelf(func(device string, s Shelf) { b = fmt.Appendf(b, "rack %s %s %d\n", device, s.Rack, s.Unit) })
	return b
}

// Cables lists every cable of the plan once, from the switch of the lower tier.
func (p *Plan) Cables() []Cable {
	var out []Cable
	names := hostPorts(p.Graph)
	for i := range p.Switches {
		s := &p.Switches[i]
		for j := range s.Ports {
			q := &s.Ports[j]
			c := Cable{{s.Name, strconv.Itoa(q.Number)}}
			if q.Host != None {
				c[1] = Socket{p.Hosts[q.Host].Name, names[q.Link][0] + names[q.Link][1]}
			} else {
				far, port := p.Far(q)
				if far == nil || far.Node < s.Node {
					continue
				}
				c[1] = Socket{far.Name, strconv.Itoa(port.Number)}
			}
			out = append(out, c)
		}
	}
	return out
}

// Shelves says where a floor plan put hosts and switches.
func (p *Plan) Shelves() map[string]Shelf {
	out := map[string]Shelf{}
	p.eachShelf(func(device string, s Shelf) { out[device] = s })
	return out
}

// eachShelf calls f for every host and switch that a floor plan has.
func (p *Plan) eachShelf(f func(device string, s Shelf)) {
	if p.Floor == nil {
		return
	}
	one := func(name string) {
		if d, ok := p.Floor.Find(name); ok {
			f(name, Shelf{p.Floor.Racks[d.Rack].Name, d.Unit})
		}
	}
	for i := range p.Hosts {
		one(p.Hosts[i].Name)
	}
	for i := range p.Switches {
		one(p.Switches[i].Name)
	}
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

// Move is something of a lock that the plan changes.
type Move struct {
	What     string // "address", "cable" or "rack"
	Device   string
	Port     string // the interface of an address, the port of a cable
	From, To string // the address, the far end or the place; To is empty where a cable goes
	Line     int    // of the lock
}

func (m Move) String() string {
	at := m.Device
	if m.Port != "" {
		at += " " + m.Port
	}
	if m.To == "" {
		return fmt.Sprintf("%s: the cable to %s goes", at, m.From)
	}
	return fmt.Sprintf("%s: %s becomes %s", at, m.From, m.To)
}

// Moves lists what the plan changes of a lock, in the order of the plan: addresses, cables between
// devices that stay, and places in racks. What comes new, and cables of devices that go, are no moves.
func (p *Plan) Moves(l *Lock) []Move {
	var out []Move
	p.each(func(device, iface string, a netip.Prefix) {
		if old, ok := l.Addresses[[2]string{device, iface}]; ok && old != a {
			out = append(out, Move{"address", device, iface, old.String(), a.String(), l.lines[[2]string{device, iface}]})
		}
	})
	out = append(out, p.replugged(l)...)
	p.eachShelf(func(device string, s Shelf) {
		if old, ok := l.Racks[device]; ok && old != s {
			out = append(out, Move{"rack", device, "", old.String(), s.String(), l.lines[[2]string{"rack", device}]})
		}
	})
	return out
}

// devices has the names of all hosts and switches.
func (p *Plan) devices() map[string]bool {
	names := map[string]bool{}
	for i := range p.Hosts {
		names[p.Hosts[i].Name] = true
	}
	for i := range p.Switches {
		names[p.Switches[i].Name] = true
	}
	return names
}

// replugged lists the cables of a lock that the plan has no more, between devices that it has. A host's
// cable is named from the host.
func (p *Plan) replugged(l *Lock) (out []Move) {
	if len(l.Cables) == 0 {
		return nil
	}
	far, names := map[Socket]Socket{}, p.devices()
	for _, c := range p.Cables() {
		far[c[0]], far[c[1]] = c[1], c[0]
	}
	for _, c := range l.Cables {
		if far[c[0]] == c[1] || !names[c[0].Device] || !names[c[1].Device] {
			continue
		}
		at := c
		if _, host := l.Hosts[c[1].Device]; host {
			at = Cable{c[1], c[0]}
		}
		m := Move{What: "cable", Device: at[0].Device, Port: at[0].Port, From: at[1].String(), Line: l.lines[[2]string{"cable", c[0].String()}]}
		if to, stays := far[at[0]]; stays {
			m.To = to.String()
		}
		out = append(out, m)
	}
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
