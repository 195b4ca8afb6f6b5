package prove

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

// planned is what netplan reads of an interface, as far as packets care.
type planned struct {
	Addresses []string
	MTU       int
	Routes    []struct {
		To, Via string
		Table   int
	}
	Policy []struct {
		From, To        string
		Table, Priority int
	} `yaml:"routing-policy"`
	Interfaces []string // of a bond
	Parameters struct{ Mode string }
}

// template is a netplan file whose addresses are counted instead of written: files
// of thousands of hosts differ in nothing else, and one of them is parsed.
type template struct {
	names []string
	nics  []planned
}

// counted is where addresses of a template begin: a range that no host has.
const counted = 240 << 24

// netplan reads a host. A bond has no cable of its own, but those of its members.
func (n *Net) netplan(name string, data []byte) error {
	text, addrs := skeleton(string(data))
	t := n.templates[text]
	if t == nil {
		var err error
		if t, err = parseNetplan(text); err != nil {
			return err
		}
		n.templates[text] = t
	}
	d := n.device(name, false)
	for i := range t.nics {
		if err := d.interfaceOf(t.names[i], &t.nics[i], addrs); err != nil {
			return fmt.Errorf("%s: %w", t.names[i], err)
		}
	}
	slices.SortStableFunc(d.Rules, func(a, b Rule) int { return cmp.Compare(a.Priority, b.Priority) })
	return nil
}

func parseNetplan(text string) (*template, error) {
	var file struct {
		Network struct {
			Ethernets map[string]planned
			Bonds     map[string]planned
		}
	}
	if err := yaml.Unmarshal([]byte(text), &file); err != nil {
		return nil, err
	}
	t := &template{}
	for _, group := range []map[string]planned{file.Network.Ethernets, file.Network.Bonds} {
		for _, nic := range slices.Sorted(maps.Keys(group)) {
			t.names, t.nics = append(t.names, nic), append(t.nics, group[nic])
		}
	}
	return t, nil
}

// skeleton puts a counted address in the place of each IPv4 address of a text. MACs, which
// nothing here reads, become one and the same.
func skeleton(text string) (string, []netip.Addr) {
	var out strings.Builder
	out.Grow(len(text))
	var addrs []netip.Addr
	for i := 0; i < len(text); {
		end := i
		for end < len(text) && token(text[end]) {
			end++
		}
		if end == i {
			out.WriteByte(text[i])
			i++
			continue
		}
		word := text[i:end]
		i = end
		if a, err := netip.ParseAddr(word); err == nil && a.Is4() {
			var b [4]byte
			binary.BigEndian.PutUint32(b[:], counted+uint32(len(addrs)))
			out.WriteString(netip.AddrFrom4(b).String())
			addrs = append(addrs, a)
		} else if len(word) == 17 && strings.Count(word, ":") == 5 {
			out.WriteString("00:00:00:00:00:00")
		} else {
			out.WriteString(word)
		}
	}
	return out.String(), addrs
}

func token(c byte) bool {
	return c >= '0' && c <= '9' || c == '.' || c == ':' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

// counter gives a template's addresses back.
type counter []netip.Addr

func (c counter) addr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil || !a.Is4() {
		return a, err
	}
	b := a.As4()
	if i := binary.BigEndian.Uint32(b[:]) - counted; int(i) < len(c) {
		return c[i], nil
	}
	return a, nil
}

// prefix reads a prefix, an address, or default; nothing is everything.
func (c counter) prefix(s string) (netip.Prefix, error) {
	if s == "default" || s == "" {
		return netip.MustParsePrefix("0.0.0.0/0"), nil
	}
	text, length, long := strings.Cut(s, "/")
	a, err := c.addr(text)
	if err != nil {
		return netip.Prefix{}, err
	}
	if !long {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	return netip.ParsePrefix(a.String() + "/" + length)
}

func (d *Device) interfaceOf(nic string, x *planned, addrs counter) error {
	p := d.port(nic)
	p.MTU = x.MTU
	if len(x.Interfaces) > 0 && x.Parameters.Mode == "802.3ad" {
		d.bond(p).legs(x.Interfaces)
	}
	for _, text := range x.Addresses {
		a, err := addrs.prefix(text)
		if err != nil {
			return err
		}
		p.Addrs = append(p.Addrs, a)
	}
	for _, r := range x.Routes {
		to, err := addrs.prefix(r.To)
		if err != nil {
			return err
		}
		via, err := addrs.addr(r.Via)
		if err != nil {
			return err
		}
		d.Routes = append(d.Routes, Route{To: to, Via: via, Port: p, Table: r.Table})
	}
	return d.rulesOf(x, addrs)
}

// rulesOf reads which routes are for which addresses.
func (d *Device) rulesOf(x *planned, addrs counter) error {
	for _, r := range x.Policy {
		from, err := addrs.prefix(r.From)
		if err != nil {
			return err
		}
		to, err := addrs.prefix(r.To)
		if err != nil {
			return err
		}
		d.Rules = append(d.Rules, Rule{from, to, r.Table, r.Priority})
	}
	return nil
}
