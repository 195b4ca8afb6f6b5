package prove

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Load reads the files of a network by their paths, as weft net emit lays them
// out: of switches etc/frr/frr.conf or etc/bird.conf, udev rules and interfaces, or etc/sonic, of hosts netplan and
// nftables, of InfiniBand fabrics OpenSM's, of Slurm its hosts and topology, and cables/cables.csv. Other files are left alone.
func Load(files map[string][]byte) (*Net, error) {
	n := &Net{Devices: map[string]*Device{}, templates: map[string]*template{}, subnets: map[string]*Subnet{}}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		part := strings.SplitN(path, "/", 3)
		if len(part) < 3 {
			continue
		}
		if err := n.file(part, files); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	if err := n.plug(files["cables/cables.csv"]); err != nil {
		return nil, fmt.Errorf("cables/cables.csv: %w", err)
	}
	if err := n.plugSubnets(files["cables/cables.csv"]); err != nil {
		return nil, fmt.Errorf("cables/cables.csv: %w", err)
	}
	if err := n.plugSlurm(files["cables/cables.csv"]); err != nil {
		return nil, fmt.Errorf("cables/cables.csv: %w", err)
	}
	n.build()
	return n, nil
}

// file reads one of a device's files, by the three parts of its path.
func (n *Net) file(part []string, files map[string][]byte) error {
	if other := secondDialect[part[2]]; other != "" && part[0] == "switches" {
		if _, both := files["switches/"+part[1]+"/etc/frr/frr.conf"]; both {
			n.Unread = append(n.Unread, part[1]+", which has files of two dialects: etc/frr and "+other)
		}
	}
	for _, r := range readers {
		if r.of != part[0] || !strings.HasPrefix(part[2], r.path) {
			continue
		}
		if err := r.read(n, part[1], files[strings.Join(part, "/")]); err != nil {
			return err
		}
	}
	return nil
}

// secondDialect are files that a switch with etc/frr/frr.conf does not have as well.
var secondDialect = map[string]string{"etc/sonic/config_db.json": "etc/sonic", "etc/bird.conf": "etc/bird.conf",
	"etc/bird/bird.conf": "etc/bird"}

// readers says who reads the files of which devices, by how their paths begin.
var readers = []struct {
	of, path string
	read     func(n *Net, device string, data []byte) error
}{
	{"switches", "etc/frr/frr.conf", (*Net).frr},
	{"switches", "etc/sonic/frr/frr.conf", (*Net).frr},
	{"switches", "etc/bird.conf", (*Net).bird},
	{"switches", "etc/bird/bird.conf", (*Net).bird},
	{"switches", "etc/network/interfaces", (*Net).interfaces},
	{"switches", "etc/udev/rules.d/", (*Net).udev},
	{"switches", "etc/sonic/config_db.json", (*Net).sonic},
	{"switches", "usr/local/sbin/weft-bridges", (*Net).script},
	{"hosts", "etc/netplan/", (*Net).netplan},
	{"hosts", "etc/nftables.d/", (*Net).nft},
	{"hosts", "usr/local/sbin/weft-roce", (*Net).roce},
	{"opensm", "etc/opensm/opensm.conf", (*Net).openSM},
	{"opensm", "etc/opensm/root_guids.conf", (*Net).rootGUIDs},
	{"opensm", "etc/opensm/cn_guids.conf", (*Net).cnGUIDs},
	{"opensm", "etc/opensm/ib-node-name-map", (*Net).nodeNames},
	{"opensm", "etc/opensm/partitions.conf", (*Net).partitionFile},
	{"slurm", "slurm/weft-nodes.conf", (*Net).slurmNodes},
	{"slurm", "slurm/slurm.conf", (*Net).slurmNodes},
	{"slurm", "slurm/topology.conf", (*Net).slurmTopology},
	{"slurm", "slurm/topology.yaml", (*Net).slurmYAML},
	{"opensm", "var/log/opensm-lfts.dump", (*Net).forwardingTables},
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
		p = &Port{Name: name, on: d, cable: -1}
		d.Ports[name] = p
	}
	return p
}

// inert are the lines of frr.conf that do not change where packets go in a
// network that has settled.
var inert = []string{"frr defaults ", "hostname ", "service ", "no zebra nexthop kernel enable", "description ", "ipv6 nd ", "no ipv6 nd ",
	"exit", "end", "bfd", "profile ", "detect-multiplier ",
	"receive-interval ", "transmit-interval ", "evpn mh startup-delay ", "evpn mh es-df-pref "}

// inertOfNeighbours are what neighbours may have besides a session.
var inertOfNeighbours = []string{"peer-group", "remote-as external", "advertisement-interval ", "timers ", "bfd"}

// frrFile is a frr.conf being read.
type frrFile struct {
	d     *Device
	port  *Port  // the interface that lines belong to
	entry string // the route-map likewise

	evpn bool // lines belong to the address family of bridges
	vrf  *VRF // lines belong to a VRF
}

// frr reads the routing of a switch.
func (n *Net) frr(name string, data []byte) error {
	f := frrFile{d: n.device(name, true)}
	f.d.BGP = &BGP{named: map[string]bool{}, Maps: map[string]string{}, Groups: map[string]string{}, Guards: map[string]string{},
		EVPN: map[string]bool{}, Lists: map[string][]Permit{}, MaxPaths: 64}
	number := 0
	for line := range strings.Lines(string(data)) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '!' {
			continue
		}
		known, err := f.line(line)
		if err != nil {
			return fmt.Errorf("line %d: %q: %w", number, line, err)
		}
		if !known && !slices.ContainsFunc(inert, func(s string) bool { return strings.HasPrefix(line+" ", s) }) {
			n.Unread = append(n.Unread, fmt.Sprintf("%s line %d: %s", name, number, line))
		}
	}
	return nil
}

// line reads one line; known says whether the model uses it.
func (f *frrFile) line(line string) (known bool, err error) {
	w := strings.Fields(line)
	b := f.d.BGP
	if mine, known, err := f.table(line, w); mine {
		return known, err
	}
	switch w[0] {
	case "interface":
		f.port = f.d.port(w[min(1, len(w)-1)])
		return f.inVRF(w), nil
	case "neighbor":
		return f.neighbour(w), nil
	case "address-family":
		f.evpn = line == "address-family l2vpn evpn"
		return f.evpn || line == "address-family ipv4 unicast", nil
	case "evpn", "advertise-all-vni":
		return f.overlay(line, w), nil
	case "route-map":
		f.entry = w[min(1, len(w)-1)]
		return len(w) == 4 && w[2] == "permit", nil
	case "maximum-paths":
		b.MaxPaths, err = strconv.Atoi(w[len(w)-1])
		return len(w) == 2, err
	}
	return f.policy(line, w)
}

// policy reads addresses, prefix lists and route-maps.
func (f *frrFile) policy(line string, w []string) (known bool, err error) {
	b := f.d.BGP
	rest := func(words string) (string, bool) { return strings.CutPrefix(line, words) }
	if x, ok := rest("ip address "); ok && f.port != nil {
		return true, f.port.address(x)
	}
	if _, ok := rest("ip prefix-list "); ok {
		return true, b.list(w[2:])
	}
	if x, ok := rest("match ip address prefix-list "); ok && f.entry != "" {
		b.Maps[f.entry] = x
		return true, nil
	}
	return f.bgp(line, w)
}

// bgp reads the lines below router bgp.
func (f *frrFile) bgp(line string, w []string) (known bool, err error) {
	b := f.d.BGP
	switch {
	case strings.HasPrefix(line, "router bgp ") && len(w) == 3:
		asn, err := strconv.ParseUint(w[2], 10, 32)
		b.ASN = uint32(asn)
		return true, err
	case strings.HasPrefix(line, "bgp router-id "):
		b.ID = w[2]
		return true, nil
	case line == "bgp bestpath as-path multipath-relax":
		b.Relax = true
		return true, nil
	case strings.HasPrefix(line, "redistribute connected route-map ") && len(w) == 4:
		b.Connected = w[3]
		return true, nil
	}
	return false, nil
}

// neighbour reads a line of a neighbour: a session over a port, or what does not change routes.
func (f *frrFile) neighbour(w []string) (known bool) {
	if len(w) < 3 {
		return false
	}
	switch w[2] {
	case "interface":
		f.d.BGP.Neighbours = append(f.d.BGP.Neighbours, w[1])
		f.d.BGP.named[w[1]] = true
		if w[len(w)-2] == "peer-group" {
			f.d.BGP.Groups[w[1]] = w[len(w)-1]
		}
		return true
	case "password", "ttl-security":
		f.d.BGP.Guards[w[1]] += strings.Join(w[2:], " ") + "\n"
		return true
	}
	if f.evpn && w[2] == "activate" && len(w) == 3 {
		f.d.BGP.EVPN[w[1]] = true
		return true
	}
	what := strings.Join(w[2:], " ") + " "
	return slices.ContainsFunc(inertOfNeighbours, func(s string) bool { return strings.HasPrefix(what, s) })
}

// address adds an address to a port, once: SONiC has them in two files.
func (p *Port) address(text string) error {
	a, err := netip.ParsePrefix(text)
	if !slices.Contains(p.Addrs, a) {
		p.Addrs = append(p.Addrs, a)
	}
	return err
}

// list reads NAME seq N permit PREFIX [ge A] [le B]. Without bounds the length is the prefix's own.
func (b *BGP) list(w []string) error {
	if len(w) < 5 || w[3] != "permit" {
		return errors.New("only permit is modelled")
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

// udev reads the MTUs of a Linux switch: lines of network devices with KERNEL=="NAME" and ATTR{mtu}="BYTES".
func (n *Net) udev(name string, data []byte) error {
	d := n.device(name, true)
	for line := range strings.Lines(string(data)) {
		if !strings.HasPrefix(line, `SUBSYSTEM=="net"`) {
			continue
		}
		port, mtu := quoted(line, "KERNEL=="), quoted(line, "ATTR{mtu}=")
		if port == "" || mtu == "" {
			continue
		}
		var err error
		if d.port(port).MTU, err = strconv.Atoi(mtu); err != nil {
			return err
		}
	}
	return nil
}

// quoted is what stands in quotes behind a key.
func quoted(line, key string) string {
	_, rest, _ := strings.Cut(line, key+`"`)
	value, _, _ := strings.Cut(rest, `"`)
	return strings.Clone(value)
}

var (
	nftChain = regexp.MustCompile(`type filter hook (\w+) `)
	nftSkip  = regexp.MustCompile(`^(#.*|table .*|delete table .*|chain .*|\}|type .*)?$`)
	nftDrop  = regexp.MustCompile(`^(iifname|oifname) \{ ([^}]*) \}(?: ip ([sd])addr (!= )?(\S+))?(?: counter)? drop\b`)
)

// nft reads the filters of a host. A host passes nothing on in this model, so
// its chain for forwarding is left alone.
func (n *Net) nft(name string, data []byte) error {
	d, hook := n.device(name, false), ""
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if m := nftChain.FindStringSubmatch(line); m != nil {
			hook = m[1]
		}
		m := nftDrop.FindStringSubmatch(line)
		switch {
		case nftSkip.MatchString(line) || hook == "forward":
			continue
		case m == nil || m[3] == "" || (m[1] == "oifname") != (hook == "output") || (m[3] == "d") != (hook == "output"):
			n.Unread = append(n.Unread, fmt.Sprintf("%s filter: %s", name, line))
			continue
		}
		x, err := nftRule(m)
		if err != nil {
			return err
		}
		d.Drops = append(d.Drops, x)
	}
	return nil
}

// nftRule makes a rule of what nftDrop found.
func nftRule(m []string) (x Drop, err error) {
	x = Drop{Out: m[1] == "oifname", Not: m[4] != ""}
	for port := range strings.SplitSeq(m[2], ",") {
		x.Ports = append(x.Ports, strings.Trim(strings.TrimSpace(port), `"`))
	}
	x.Prefix, err = netip.ParsePrefix(m[5])
	return x, err
}

// columns finds the ends of a cable, and the network that it belongs to, in the first row. network is -1 without one.
func columns(r *csv.Reader) (at [4]int, network int, err error) {
	head, err := r.Read()
	if err != nil {
		return at, -1, err
	}
	for i, name := range []string{"from_device", "from_port", "to_device", "to_port"} {
		if at[i] = slices.Index(head, name); at[i] < 0 {
			return at, -1, fmt.Errorf("no column %s", name)
		}
	}
	return at, slices.Index(head, "network"), nil
}

// plug joins ports. Ends without files, such as InfiniBand switches, are left open.
func (n *Net) plug(data []byte) error {
	if len(data) == 0 {
		return errors.New("it is missing; the model takes cables from it")
	}
	r := csv.NewReader(bytes.NewReader(data))
	r.ReuseRecord = true
	at, _, err := columns(r)
	if err != nil {
		return err
	}
	for {
		row, err := r.Read()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		a, b := n.Devices[row[at[0]]], n.Devices[row[at[2]]]
		if a == nil || b == nil {
			continue
		}
		p, q := a.port(strings.Clone(row[at[1]])), b.port(strings.Clone(row[at[3]]))
		if p.Peer != nil || q.Peer != nil {
			return fmt.Errorf("%s:%s or %s:%s has two cables", a.Name, p.Name, b.Name, q.Name)
		}
		p.Peer, q.Peer = &End{b, q}, &End{a, p}
		p.cable, q.cable = int32(len(n.cables)), int32(len(n.cables))
		n.cables = append(n.cables, cable{a: p, b: q})
	}
}
