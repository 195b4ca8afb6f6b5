package prove

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
)

// Load reads the files of a network by their paths, as weft net emit lays them
// out: switches/NAME/etc/frr/frr.conf, hosts/NAME/etc/netplan/*.yaml and
// cables/cables.csv. Other files are left alone.
func Load(files map[string][]byte) (*Net, error) {
	n := &Net{Devices: map[string]*Device{}}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		part := strings.Split(path, "/")
		var err error
		switch {
		case len(part) == 5 && part[0] == "switches" && part[4] == "frr.conf" && part[3] == "frr":
			err = n.frr(part[1], files[path])
		case len(part) == 5 && part[0] == "hosts" && part[3] == "netplan":
			err = n.netplan(part[1], files[path])
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	if err := n.cables(files["cables/cables.csv"]); err != nil {
		return nil, fmt.Errorf("cables/cables.csv: %w", err)
	}
	n.advertise()
	return n, nil
}

func (n *Net) device(name string, router bool) *Device {
	d := n.Devices[name]
	if d == nil {
		d = &Device{Name: name, Router: router, Ports: map[string]*Port{}}
		n.Devices[name] = d
	}
	return d
}

func (d *Device) port(name string) *Port {
	p := d.Ports[name]
	if p == nil {
		p = &Port{Name: name}
		d.Ports[name] = p
	}
	return p
}

// inert are the lines of frr.conf that do not change where packets go in a
// network without failures.
var inert = []string{"frr defaults ", "hostname ", "service ", "no zebra nexthop kernel enable", "description ", "ipv6 nd ", "no ipv6 nd ", "exit", "end", "bfd", "profile ", "detect-multiplier ",
	"receive-interval ", "transmit-interval ", "bgp router-id ", "bgp bestpath as-path multipath-relax", "address-family ipv4 unicast", "maximum-paths "}

// frr reads the routing of a switch.
func (n *Net) frr(name string, data []byte) error {
	d := n.device(name, true)
	d.BGP = &BGP{Maps: map[string]string{}, Lists: map[string][]Permit{}}
	var port *Port
	entry := "" // the route-map that lines belong to
	for number, line := range strings.Split(string(data), "\n") {
		line = strings.TrimSpace(line)
		w := strings.Fields(line)
		if len(w) == 0 || strings.HasPrefix(line, "!") {
			continue
		}
		var err error
		switch {
		case w[0] == "interface" && len(w) == 2:
			port = d.port(w[1])
		case strings.HasPrefix(line, "ip address ") && port != nil && len(w) == 3:
			err = port.address(w[2])
		case strings.HasPrefix(line, "ip prefix-list "):
			err = d.BGP.list(w[2:])
		case w[0] == "route-map" && len(w) == 4 && w[2] == "permit":
			entry = w[1]
		case strings.HasPrefix(line, "match ip address prefix-list ") && entry != "":
			d.BGP.Maps[entry] = w[4]
		case strings.HasPrefix(line, "router bgp ") && len(w) == 3:
			var asn uint64
			asn, err = strconv.ParseUint(w[2], 10, 32)
			d.BGP.ASN = uint32(asn)
		case w[0] == "neighbor" && len(w) >= 3:
			if w[2] == "interface" {
				d.BGP.Neighbours = append(d.BGP.Neighbours, w[1])
			}
		case strings.HasPrefix(line, "redistribute connected route-map ") && len(w) == 4:
			d.BGP.Connected = w[3]
		case !slices.ContainsFunc(inert, func(s string) bool { return strings.HasPrefix(line+" ", s) }):
			n.Unread = append(n.Unread, fmt.Sprintf("%s line %d: %s", name, number+1, line))
		}
		if err != nil {
			return fmt.Errorf("line %d: %q: %w", number+1, line, err)
		}
	}
	return nil
}

func (p *Port) address(text string) error {
	a, err := netip.ParsePrefix(text)
	p.Addrs = append(p.Addrs, a)
	return err
}

// list reads NAME seq N permit PREFIX [ge A] [le B]. Without bounds the length is the prefix's own.
func (b *BGP) list(w []string) error {
	if len(w) < 5 || w[3] != "permit" {
		return fmt.Errorf("only permit is modelled")
	}
	p, err := netip.ParsePrefix(w[4])
	if err != nil {
		return err
	}
	l := Permit{Prefix: p, Min: p.Bits(), Max: p.Bits()}
	for i := 5; i+1 < len(w); i += 2 {
		v, err := strconv.Atoi(w[i+1])
		if err != nil {
			return err
		}
		switch w[i] {
		case "ge":
			l.Min, l.Max = v, max(l.Max, 32)
		case "le":
			l.Max = v
		}
	}
	b.Lists[w[0]] = append(b.Lists[w[0]], l)
	return nil
}

// planned is what netplan reads of an interface, as far as packets care.
type planned struct {
	Addresses []string
	Routes    []struct {
		To, Via string
		Table   int
	}
	Policy []struct {
		From, To        string
		Table, Priority int
	} `yaml:"routing-policy"`
}

// netplan reads a host. A bond has no cable of its own and so no neighbours here.
func (n *Net) netplan(name string, data []byte) error {
	var file struct {
		Network struct {
			Ethernets map[string]planned
			Bonds     map[string]planned
		}
	}
	if err := yaml.Unmarshal(data, &file); err != nil {
		return err
	}
	d := n.device(name, false)
	for _, group := range []map[string]planned{file.Network.Ethernets, file.Network.Bonds} {
		for _, nic := range slices.Sorted(maps.Keys(group)) {
			if err := d.interfaceOf(nic, group[nic]); err != nil {
				return fmt.Errorf("%s: %w", nic, err)
			}
		}
	}
	slices.SortStableFunc(d.Rules, func(a, b Rule) int { return cmp.Compare(a.Priority, b.Priority) })
	return nil
}

func (d *Device) interfaceOf(nic string, x planned) error {
	p := d.port(nic)
	for _, a := range x.Addresses {
		if err := p.address(a); err != nil {
			return err
		}
	}
	for _, r := range x.Routes {
		to, err := prefixOf(r.To)
		if err != nil {
			return err
		}
		via, err := netip.ParseAddr(r.Via)
		if err != nil {
			return err
		}
		d.Routes = append(d.Routes, Route{To: to, Via: via, Port: p, Table: r.Table})
	}
	for _, r := range x.Policy {
		from, err := prefixOf(r.From)
		if err != nil {
			return err
		}
		to, err := prefixOf(r.To)
		if err != nil {
			return err
		}
		d.Rules = append(d.Rules, Rule{from, to, r.Table, r.Priority})
	}
	return nil
}

// prefixOf reads a prefix, an address, or default; nothing is everything.
func prefixOf(s string) (netip.Prefix, error) {
	if s == "default" || s == "" {
		return netip.MustParsePrefix("0.0.0.0/0"), nil
	}
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	return netip.ParsePrefix(s)
}

// cables joins ports. Ends without files, such as InfiniBand switches, are left open.
func (n *Net) cables(data []byte) error {
	if len(data) == 0 {
		return fmt.Errorf("it is missing; the model takes cables from it")
	}
	rows, err := csv.NewReader(bytes.NewReader(data)).ReadAll()
	if err != nil {
		return err
	}
	at := map[string]int{}
	for i, name := range rows[0] {
		at[name] = i
	}
	for _, name := range []string{"from_device", "from_port", "to_device", "to_port"} {
		if _, ok := at[name]; !ok {
			return fmt.Errorf("no column %s", name)
		}
	}
	for _, r := range rows[1:] {
		a, b := n.Devices[r[at["from_device"]]], n.Devices[r[at["to_device"]]]
		if a == nil || b == nil {
			continue
		}
		p, q := a.port(r[at["from_port"]]), b.port(r[at["to_port"]])
		if p.Peer != nil || q.Peer != nil {
			return fmt.Errorf("%s:%s or %s:%s has two cables", a.Name, p.Name, b.Name, q.Name)
		}
		p.Peer, q.Peer = &End{b, q}, &End{a, p}
	}
	return nil
}
