// Package emit writes a network plan in the dialects of those who use it: hosts,
// switches, subnet managers, schedulers, NCCL, DHCP and DNS servers, and the
// people who plug cables. One file a dialect. Every dialect is a function of the
// plan alone: the same plan gives the same bytes.
package emit

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/model/cluster"
)

// File is one file to write, below the folder that the user names.
type File struct {
	Path string
	Mode uint32 // permissions
	Data []byte
}

// Dialect is a form that a plan can be written in.
type Dialect struct {
	Name    string
	What    string // for whom, in a few words
	Checker string // the program that reads the files in our tests; empty where none runs here
	Emit    func(*network.Plan) []File
}

// Dialects lists all of them, by name.
func Dialects() []Dialect {
	return []Dialect{
		{"cables", "people who plug cables: CSV with ports, lengths, labels and expected LLDP neighbours",
			"each port once, against what lldpd hears in a lab", Cables},
		{"dhcp", "DHCP servers: dnsmasq and Kea", "dnsmasq, kea-dhcp4", DHCP},
		{"dns", "name servers: zones, forward and reverse", "named-checkzone", DNS},
		{"frr", "switches and routers with FRR", "vtysh, bgpd; FRR that runs in a lab", FRR},
		{"gnmi", "gnmic, where --only names it: what to subscribe to on SONiC and Cumulus switches", "", GNMI},
		{"kubernetes", "Kubernetes: node labels, Kueue queues, rail networks, device plug-in, compute domains, a JobSet",
			"the API server's libraries with CEL, where KUBE_CRDS names the definitions; a list of fields", Kubernetes},
		{"lldp", "hosts and Linux switches: what lldpd tells neighbours", "lldpd in a lab", LLDP},
		{"nccl", "NCCL: nccl.conf with a reason for each variable", "", NCCL},
		{"netbox", "NetBox: CSV of devices, interfaces, prefixes, addresses and cables", "", NetBox},
		{"netplan", "hosts with netplan (Ubuntu)", "netplan", Netplan},
		{"networkd", "hosts with systemd-networkd", "systemd-networkd", Networkd},
		{"networkmanager", "hosts with NetworkManager (Red Hat)", "nmcli", NetworkManager},
		{"nft", "hosts, where --only names it: filters that keep a host's networks apart", "nft", NFT},
		{"nvue", "switches with Cumulus Linux 5.15 and later", "", NVUE},
		{"opensm", "the InfiniBand subnet manager: routing, roots, partitions", "opensm on ibsim", OpenSM},
		{"ptm", "Cumulus' check of the wiring: topology.dot", "graphviz", PTM},
		{"roce", "hosts: priorities, flow control and marks of RoCE", "systemd-analyze and the shell; no NIC here has mlnx_qos", RoCE},
		{"slurm", "Slurm: nodes, GPUs, topology", "slurmctld", Slurm},
		{"sonic", "switches with SONiC: config_db.json and frr.conf", "yanglint with SONiC's models, where SONIC_YANG names them", SONiC},
		{"sysctl", "hosts: kernel settings that several NICs need", "the kernel, in a lab", Sysctl},
		{"ztp", "switches that boot empty, where --only names it: SONiC's steps and Cumulus's script", "the shell; JSON", ZTP},
	}
}

// Names lists the names of all dialects.
func Names() []string {
	var out []string
	for _, d := range Dialects() {
		out = append(out, d.Name)
	}
	return out
}

// Wanted lists the dialects that a plan's render section asks for, and those that
// every cluster of its kind needs.
func Wanted(p *network.Plan) []string {
	r := p.Intent.Render
	out := []string{"cables", "dhcp", "dns", "lldp", "nccl", "netbox", "sysctl", r.Host}
	out = append(out, r.Schedules...)
	ib, routed := false, false
	for i := range p.Switches {
		ib, routed = ib || p.Switches[i].IB, routed || !p.Switches[i].IB
	}
	if ib {
		out = append(out, "opensm")
	}
	if routed {
		out = append(out, r.Leaf, r.Spine, "ptm", "roce")
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Make writes a plan in some dialects, in the order of their paths. Each switch has
// one dialect. Where one switch dialect is named, all switches have it; where
// several are, each switch has that of its tier.
func Make(p *network.Plan, names []string) ([]File, error) {
	var out []File
	p, err := rendered(p, names)
	if err != nil {
		return nil, err
	}
	for _, d := range Dialects() {
		if slices.Contains(names, d.Name) {
			out = append(out, d.Emit(p)...)
		}
	}
	for _, n := range names {
		if !slices.Contains(Names(), n) {
			return nil, fmt.Errorf("unknown dialect %q; known: %s", n, strings.Join(Names(), ", "))
		}
	}
	slices.SortFunc(out, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	for i := 1; i < len(out); i++ {
		if out[i].Path == out[i-1].Path && !bytes.Equal(out[i].Data, out[i-1].Data) {
			return nil, fmt.Errorf("two dialects write %s", out[i].Path)
		}
	}
	return slices.CompactFunc(out, func(a, b File) bool { return a.Path == b.Path }), nil
}

// rendered is the plan with the switch dialects that names call for.
func rendered(p *network.Plan, names []string) (*network.Plan, error) {
	var named []string
	for _, d := range cluster.SwitchDialects {
		if slices.Contains(names, d) {
			named = append(named, d)
		}
	}
	if len(named) == 1 {
		p = p.Rendered(named[0])
	}
	if slices.Contains(named, "sonic") {
		if err := sonicKnown(p); err != nil {
			return nil, err
		}
	}
	for _, d := range named {
		if r := p.Intent.Render; d != r.Leaf && d != r.Spine {
			return nil,
				fmt.Errorf("%s are dialects of one switch each, and no tier has %s; name one of them, or write render: {leaf: ..., spine: ...}",
					strings.Join(named, " and "), d)
		}
	}
	return p, nil
}

// switchesIn lists the switches whose files are in a dialect.
func switchesIn(p *network.Plan, dialect string) []*network.Switch {
	var out []*network.Switch
	for i := range p.Switches {
		if s := &p.Switches[i]; p.Dialect(s) == dialect {
			out = append(out, s)
		}
	}
	return out
}

// text collects the lines of a file.
type text struct{ bytes.Buffer }

func (t *text) line(format string, args ...any) {
	fmt.Fprintf(t, format, args...)
	t.WriteByte('\n')
}

// head writes what every file begins with, behind the dialect's mark of a comment.
func (t *text) head(p *network.Plan, mark string) {
	t.line("%s Made by weft net emit from the plan %s of %s. Change the cluster file, not this one.", mark, p.Digest, p.Name)
}

// file ends a text.
func (t *text) file(path string, mode uint32) File { return File{path, mode, t.Bytes()} }

// digestOf hashes names.
func digestOf(names []string) [32]byte { return sha256.Sum256([]byte(strings.Join(names, "\x00"))) }

// joined puts values behind one another, with commas.
func joined[T any](list []T, f func(T) string) string {
	var out []string
	for _, x := range list {
		out = append(out, f(x))
	}
	return strings.Join(out, ", ")
}
