package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/fabric/network/emit"
)

func newNet() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "net",
		Short: "Plan addresses and routing, write configuration files, trace flows, check for drift",
		RunE:  group,
	}
	cmd.AddCommand(newNetPlan(), newNetEmit(), newNetPath(), newNetReach(), newNetProve(), newNetMoves(), newNetCollect(), newNetCheck())
	return cmd
}

// planFlags are what every question about a plan takes.
type planFlags struct {
	presetFlags
	lock     string
	renumber bool
	recable  bool
}

func (f *planFlags) register(cmd *cobra.Command) {
	f.presetFlags.register(cmd)
	cmd.Flags().StringVar(&f.lock, "lock", "",
		"lock `FILE` with assigned numbers, addresses and ports; default: CLUSTER.lock next to the cluster file, if it exists")
	cmd.Flags().BoolVar(&f.renumber, "renumber", false, "let addresses of the lock change")
	cmd.Flags().BoolVar(&f.recable, "recable", false, "let cables and racks of the lock change; see 'weft net moves'")
}

// lockPath is the lock's file: the one named, or the one beside the cluster file.
func (f *planFlags) lockPath(arg string) string {
	if f.lock != "" || arg == "-" || !strings.ContainsAny(arg, "/.") {
		return f.lock
	}
	return strings.TrimSuffix(arg, filepath.Ext(arg)) + ".lock"
}

// locked makes the plan of a cluster with its lock, where there is one; moves are what it changes of it.
func (f *planFlags) locked(cmd *cobra.Command, arg string) (p *network.Plan, lock *network.Lock, moves []network.Move, err error) {
	c, err := loadCluster(cmd, arg, f.presetFlags)
	if err != nil {
		return nil, nil, nil, err
	}
	if lock, err = readLock(f.lockPath(arg), f.lock != ""); err != nil {
		return nil, nil, nil, err
	}
	p, err = network.Make(arg, c, lock)
	if err != nil && lock != nil && f.renumber { // numbers of the lock may not fit any more
		p, err = network.Make(arg, c, nil)
	}
	if err != nil || lock == nil {
		return p, lock, nil, err
	}
	return p, lock, p.Moves(lock), nil
}

// readLock reads a lock; nil where there is none and none must be.
func readLock(path string, must bool) (*network.Lock, error) {
	if path == "" {
		return nil, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		if must || !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		return nil, nil
	}
	return network.ParseLock(path, data)
}

// load makes the plan of a cluster, held to its lock.
func (f *planFlags) load(cmd *cobra.Command, arg string) (*network.Plan, error) {
	p, _, moves, err := f.locked(cmd, arg)
	if err != nil || len(moves) == 0 {
		return p, err
	}
	byWhat := map[string][]network.Move{}
	for _, m := range moves {
		byWhat[m.What] = append(byWhat[m.What], m)
	}
	see := "--recable; 'weft net moves " + arg + "' shows the order"
	return p, errors.Join(f.allow(cmd, arg, byWhat["address"], "--renumber", f.renumber), f.allow(cmd, arg, byWhat["cable"], see, f.recable),
		f.allow(cmd, arg, byWhat["rack"], see, f.recable))
}

// allow refuses moves, or prints them where they are allowed.
func (f *planFlags) allow(cmd *cobra.Command, arg string, moves []network.Move, flag string, allowed bool) error {
	if len(moves) == 0 {
		return nil
	}
	var text strings.Builder
	for i, m := range moves {
		if i == 5 {
			fmt.Fprintf(&text, "\n  and %d more", len(moves)-i)
			break
		}
		fmt.Fprintf(&text, "\n  %s:%d: %s", f.lockPath(arg), m.Line, m)
	}
	if !allowed {
		return fmt.Errorf("%s of %s would change:%s\nundo the change, or say %s",
			count(len(moves), moves[0].What), f.lockPath(arg), text.String(), flag)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "weft: %s changed:%s\n", count(len(moves), moves[0].What), text.String())
	return nil
}

func newNetPlan() *cobra.Command {
	var f planFlags
	var asJSON, write bool
	var host string
	cmd := &cobra.Command{
		Use:   "plan CLUSTER",
		Short: "Plan addresses, gateways, rails, routing tables and AS numbers for every interface and port",
		Long: `Number every interface and port of a cluster, as the file's network section says;
default: four networks with usual prefixes.

A lock file keeps numbers, addresses, cables and racks where they are when hosts come and
go. --write makes it next to the cluster file. Locked addresses change only with
--renumber, locked cables and racks only with --recable.`,
		Example: `  weft net plan examples/rail-1k.yaml
  weft net plan examples/hpn.yaml --host n17
  weft net plan superpod-h100 --su 2 --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: clusterNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := f.load(cmd, args[0])
			if err != nil {
				return err
			}
			if write {
				path := f.lockPath(args[0])
				if path == "" {
					return fmt.Errorf("--write: %s is not a file; name the lock with --lock", args[0])
				}
				if err := output(cmd, path, func(w io.Writer) error { _, err := w.Write(p.Lock()); return err }); err != nil {
					return err
				}
			}
			if host != "" && p.Host(host) == nil && p.Switch(host) == nil {
				return fmt.Errorf("--host: no host or switch %q in %s", host, args[0])
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), netReport(p, host, len(p.Hosts)+len(p.Switches)))
			}
			return printPlan(cmd.OutOrStdout(), p, host)
		},
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	cmd.Flags().BoolVar(&write, "write", false, "write the lock file")
	cmd.Flags().StringVar(&host, "host", "", "one host or switch, whole: `NAME`")
	return cmd
}

// Rows of weft net plan --json. Keys are stable.
type (
	netPlanRow struct {
		Name     string         `json:"name"`
		Digest   string         `json:"digest"`
		Networks []netRow       `json:"networks"`
		Rails    []netRailRow   `json:"rails"`
		Hosts    []netHostRow   `json:"hosts"`
		Switches []netSwitchRow `json:"switches"`
		Warnings []string       `json:"warnings"`
	}
	netRow struct {
		Name   string `json:"name"`
		Prefix string `json:"prefix"`
		VLAN   int    `json:"vlan"`
		MTU    int    `json:"mtu"`
	}
	netRailRow struct {
		Rail   int    `json:"rail"`
		Prefix string `json:"prefix"`
		Table  int    `json:"table"`
		Rule   int    `json:"rule"`
	}
	netHostRow struct {
		Name       string        `json:"name"`
		Number     int           `json:"number"`
		BMC        string        `json:"bmc"`
		Interfaces []netIfaceRow `json:"interfaces"`
	}
	netIfaceRow struct {
		Name    string `json:"name"`
		Network string `json:"network"`
		Rail    int    `json:"rail"`
		Address string `json:"address"`
		Gateway string `json:"gateway"`
		MTU     int    `json:"mtu"`
		VLAN    int    `json:"vlan"`
		Bond    string `json:"bond,omitempty"`
		MAC     string `json:"mac,omitempty"`
		Switch  string `json:"switch"`
		Port    string `json:"port"`
	}
	netSwitchRow struct {
		Name       string       `json:"name"`
		Number     int          `json:"number"`
		Tier       int          `json:"tier"`
		ASN        uint32       `json:"asn"`
		Loopback   string       `json:"loopback"`
		Management string       `json:"management"`
		Ports      []netPortRow `json:"ports"`
	}
	netPortRow struct {
		Number  int    `json:"number"`
		Name    string `json:"name"`
		Peer    string `json:"peer"`
		Address string `json:"address"`
		VLAN    int    `json:"vlan"`
	}
)

// text is a value's text, or nothing where it is not valid.
func validText(v interface {
	IsValid() bool
	String() string
}) string {
	if !v.IsValid() {
		return ""
	}
	return v.String()
}

func (r *netPlanRow) networks(p *network.Plan) {
	for _, role := range []network.Role{network.Frontend, network.Backend, network.Storage, network.Management} {
		n := p.Net(role)
		r.Networks = append(r.Networks, netRow{role.String(), n.Prefix.String(), n.VLAN, n.MTU})
	}
	for _, x := range p.Rails {
		r.Rails = append(r.Rails, netRailRow{x.Number, x.Prefix.String(), x.Table, x.Rule})
	}
}

// netReport is the plan of one host or switch, or of the first some of each.
func netReport(p *network.Plan, only string, some int) netPlanRow {
	out := netPlanRow{Name: p.Name, Digest: p.Digest, Warnings: append([]string{}, p.Warnings...), Hosts: []netHostRow{},
		Switches: []netSwitchRow{}, Rails: []netRailRow{}}
	out.networks(p)
	for i := range p.Hosts {
		h := &p.Hosts[i]
		if only != "" && h.Name != only || len(out.Hosts) == some {
			continue
		}
		out.Hosts = append(out.Hosts, hostRow(p, h))
	}
	for i := range p.Switches {
		s := &p.Switches[i]
		if only != "" && s.Name != only || len(out.Switches) == some {
			continue
		}
		out.Switches = append(out.Switches, switchRow(p, s))
	}
	return out
}

func hostRow(p *network.Plan, h *network.Host) netHostRow {
	row := netHostRow{Name: h.Name, Number: h.Number, BMC: h.BMC.String(), Interfaces: []netIfaceRow{}}
	for j := range h.Interfaces {
		x := &h.Interfaces[j]
		q := netIfaceRow{Name: x.Name, Network: x.Role.String(), Rail: x.Rail, Address: validText(x.Addr), Gateway: validText(x.Gateway),
			MTU: x.MTU, VLAN: x.VLAN, Bond: x.Bond, MAC: x.MAC}
		if sw, port := p.PeerPort(x); sw != nil {
			q.Switch, q.Port = sw.Name, emit.PortName(p, sw, port.Number)
		}
		row.Interfaces = append(row.Interfaces, q)
	}
	return row
}

func switchRow(p *network.Plan, s *network.Switch) netSwitchRow {
	row := netSwitchRow{Name: s.Name, Number: s.Number, Tier: s.Tier, ASN: s.ASN, Loopback: validText(s.Loopback),
		Management: s.Mgmt.String(), Ports: []netPortRow{}}
	for j := range s.Ports {
		q := &s.Ports[j]
		row.Ports = append(row.Ports, netPortRow{q.Number, emit.PortName(p, s, q.Number), p.Graph.NodeName(q.Peer), validText(q.Addr), q.VLAN})
	}
	return row
}

func printPlan(w io.Writer, p *network.Plan, only string) error {
	const few = 2 // hosts and switches shown of many
	r := netReport(p, only, 3*few)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if only == "" {
		fmt.Fprintf(t, "%s: %s, %s, plan %s\n\n", p.Name, count(len(p.Hosts), "host"), count(len(p.Switches), "switch"), p.Digest)
		fmt.Fprintln(t, "network\tprefix\tVLAN\tMTU")
		for _, n := range r.Networks {
			fmt.Fprintf(t, "%s\t%s\t%d\t%d\n", n.Name, n.Prefix, n.VLAN, n.MTU)
		}
		if len(r.Rails) > 0 {
			fmt.Fprintln(t, "\nrail\tprefix\ttable\trule")
			for _, x := range r.Rails {
				fmt.Fprintf(t, "%d\t%s\t%d\t%d\n", x.Rail, x.Prefix, x.Table, x.Rule)
			}
		}
	}
	for i, h := range r.Hosts {
		if only == "" && i == few {
			fmt.Fprintf(t, "\n... and %s; --host NAME shows one, --json all\n", count(len(p.Hosts)-few, "more host"))
			break
		}
		fmt.Fprintf(t, "\n%s\tnumber %d\tBMC %s\n", h.Name, h.Number, h.BMC)
		fmt.Fprintln(t, "  interface\tnetwork\taddress\tgateway\tMTU\tplugged into")
		for _, x := range h.Interfaces {
			into := "-"
			if x.Switch != "" {
				into = x.Switch + " " + x.Port
			}
			what := x.Network
			if x.Rail >= 0 {
				what = fmt.Sprintf("rail %d", x.Rail)
			}
			addr := x.Address
			if x.Bond != "" {
				addr = "in " + x.Bond
			}
			fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%d\t%s\n", x.Name, what, addr, dash(x.Gateway), x.MTU, into)
		}
	}
	shown := 0
	for _, s := range r.Switches {
		if only == "" {
			if shown == 0 {
				fmt.Fprintln(t, "\nswitch\ttier\tAS\tloopback\tmanagement\tports in use")
			}
			if shown == 2*few && len(p.Switches) > 3*few {
				fmt.Fprintf(t, "... and %s\n", count(len(p.Switches)-shown, "more switch"))
				break
			}
			shown++
			fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%d\n", s.Name, s.Tier, zeroDash(s.ASN), dash(s.Loopback), s.Management, len(s.Ports))
			continue
		}
		fmt.Fprintf(t, "\n%s\ttier %d\tAS %s\tloopback %s\tmanagement %s\n", s.Name, s.Tier, zeroDash(s.ASN), dash(s.Loopback), s.Management)
		fmt.Fprintln(t, "  port\tname\tpeer\taddress")
		for _, q := range s.Ports {
			fmt.Fprintf(t, "  %d\t%s\t%s\t%s\n", q.Number, q.Name, q.Peer, dash(q.Address))
		}
	}
	for _, x := range r.Warnings {
		fmt.Fprintf(t, "\nnote: %s", x)
	}
	if len(r.Warnings) > 0 {
		fmt.Fprintln(t)
	}
	return t.Flush()
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func zeroDash(n uint32) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

func listDialects(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "dialect\tfor\tread back in tests by")
	for _, d := range emit.Dialects() {
		fmt.Fprintf(t, "%s\t%s\t%s\n", d.Name, d.What, cmp.Or(d.Checker, "no checker here"))
	}
	return t.Flush()
}

// putFiles writes what is not there already, and counts it.
func putFiles(dir string, files []emit.File) (written int, err error) {
	for _, x := range files {
		changed, err := putFile(filepath.Join(dir, filepath.FromSlash(x.Path)), x)
		if err != nil {
			return written, err
		}
		if changed {
			written++
		}
	}
	return written, nil
}

func newNetEmit() *cobra.Command {
	var f planFlags
	var dir string
	var only []string
	var list bool
	cmd := &cobra.Command{
		Use:   "emit CLUSTER -o DIR",
		Short: "Write configuration for hosts, switches, subnet managers, schedulers, DHCP, DNS, NCCL and cabling",
		Long: `Write every configuration file of a cluster's network below DIR: hosts/NAME/etc/...,
switches/NAME/etc/..., opensm, slurm, kubernetes, nccl, dhcp, dns, cables, netbox.
network.render in the cluster file chooses the dialects; --only names others. Equal
input gives equal bytes.`,
		Example: `  weft net emit examples/rail-1k.yaml -o out
  weft net emit examples/hpn.yaml -o out --only netplan,frr,slurm
  weft net emit --list`,
		Args: func(cmd *cobra.Command, args []string) error {
			if list { // the same for every cluster
				return cobra.MaximumNArgs(1)(cmd, args)
			}
			return cobra.ExactArgs(1)(cmd, args)
		},
		ValidArgsFunction: clusterNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			if list {
				return listDialects(cmd.OutOrStdout())
			}
			if dir == "" {
				return errors.New("-o DIR is missing; files are written below it")
			}
			p, err := f.load(cmd, args[0])
			if err != nil {
				return err
			}
			names := only
			if len(names) == 0 {
				names = emit.Wanted(p)
			}
			files, err := emit.Make(p, names)
			if err != nil {
				return fmt.Errorf("--only: %w", err)
			}
			written, err := putFiles(dir, files)
			if err != nil {
				return err
			}
			for _, w := range p.Warnings {
				fmt.Fprintf(cmd.ErrOrStderr(), "note: %s\n", w)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: %d files below %s, %d written, %d as they were (%s)\n",
				p.Name, len(files), dir, written, len(files)-written, strings.Join(names, ", "))
			return nil
		},
	}
	f.register(cmd)
	cmd.Flags().StringVarP(&dir, "output", "o", "", "folder to write below: `DIR`")
	cmd.Flags().StringSliceVar(&only, "only", nil, "dialects to write: `NAMES`, see --list")
	cmd.Flags().BoolVar(&list, "list", false, "list the dialects, for whom they are, and who reads them back")
	_ = cmd.RegisterFlagCompletionFunc("only", cobra.FixedCompletions(emit.Names(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// putFile writes a file if it differs, through a temporary name.
func putFile(path string, f emit.File) (changed bool, err error) {
	if old, err := os.ReadFile(path); err == nil && string(old) == string(f.Data) {
		return false, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return false, err
	}
	tmp := path + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) { // its mode would stay
		return false, err
	}
	if err := os.WriteFile(tmp, f.Data, os.FileMode(f.Mode)); err != nil {
		return false, err
	}
	return true, os.Rename(tmp, path)
}
