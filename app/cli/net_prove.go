package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/fabric/network/emit"
	"github.com/weft-fabric/weft/fabric/network/prove"
	"github.com/weft-fabric/weft/model/topo"
)

func newNetProve() *cobra.Command {
	var f planFlags
	var from string
	var asJSON, nofail bool
	var pairs int
	var racks bool
	var together []string
	cmd := &cobra.Command{
		Use:   "prove CLUSTER",
		Short: "Prove from the emitted files that packets arrive, for every pair of hosts and every single failure",
		Long: `Read the emitted files back and prove, for all pairs of host addresses in storage and
on each rail: packets arrive on every path of equal cost, at full size; storage and
rails are apart; all shortest paths are used; and all of it stays so while any one
switch, cable or NIC is broken. Addresses, router ids and AS numbers are unique.
Of SONiC switches also: both ends of a cable pause the same packets, buffers do not
wait for one another in a circle (PFC deadlock), and no path is left unused because
two tiers choose by one hash. Of InfiniBand fabrics, routed as OpenSM does by its files:
all adapters reach one another, also after any one failure, partitions join and part hosts
as meant, and buffers do not wait in a circle. Where DIR has opensm/FABRIC/var/log/opensm-lfts.dump
(opensm -D 0x43 writes one), OpenSM's own tables are judged.
Of Slurm's files: every host is there once, below the switches that cables make.
A property that does not hold is refuted by a packet, the failure and the path.

The files are those that 'weft net emit' would write, or with --from those in a
folder, as they are now: frr.conf, bird.conf with etc/network/interfaces, or SONiC's
config_db.json with the MTUs of every switch, netplan, nftables and RoCE settings of every host, OpenSM's and Slurm's files, and
the cable plan. NVUE, networkd and NetworkManager are not modelled.

Exit code 1 if a property is refuted, a line of a file is not modelled, or a network
is not proven because no fabric of the cluster file joins its hosts.`,
		Example: `  weft net prove examples/storage.yaml
  weft net emit examples/storage.yaml -o out && weft net prove examples/storage.yaml --from out`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: clusterNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := f.load(cmd, args[0])
			if err != nil {
				return err
			}
			defer debug.SetGCPercent(debug.SetGCPercent(200)) // nearly all that is allocated stays: collecting it seldom saves a quarter of the time
			files, err := provenFiles(p, from)
			if err != nil {
				return err
			}
			n, err := prove.Load(files)
			if err != nil {
				return err
			}
			areas, outside := provenAreas(p)
			if len(areas)+len(n.Subnets()) == 0 {
				return finding{fmt.Errorf("%s has no switches for storage or rails that are modelled: there is nothing to prove", p.Name)}
			}
			groups, err := failGroups(p, together, racks)
			if err != nil {
				return err
			}
			began := time.Now()
			o := prove.Options{Failures: !nofail, Pairs: pairs, Together: groups}
			r := &prove.Report{}
			if len(areas) > 0 {
				r = n.Prove(areas, o)
			}
			for _, s := range n.Subnets() {
				r.InfiniBand = append(r.InfiniBand, n.ProveSubnet(s, provenTenants(p), o))
			}
			r.Slurm = n.Slurm.Prove()
			r.Seconds = time.Since(began).Seconds()
			if asJSON {
				err = printJSON(cmd.OutOrStdout(), r)
			} else {
				err = printProof(cmd.OutOrStdout(), p.Name, r)
			}
			if err != nil {
				return err
			}
			return verdict(r.Holds(), outside)
		},
	}
	f.register(cmd)
	cmd.Flags().StringVar(&from, "from", "", "`DIR` that 'weft net emit' wrote; default: what it would write")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	cmd.Flags().BoolVar(&nofail, "no-failures", false, "prove the network as it is, without failures")
	cmd.Flags().IntVar(&pairs, "pairs", 0, "look also at this `NUMBER` of pairs of switches that fail together")
	cmd.Flags().StringArrayVar(&together, "together", nil, "look also at `SWITCHES` that fail together, such as leaf0,leaf1; may be repeated")
	cmd.Flags().BoolVar(&racks, "racks", false, "look also at each rack's switches failing together")
	return cmd
}

// failGroups lists the switches that fail together: those named, and each rack's.
func failGroups(p *network.Plan, together []string, racks bool) (out [][]string, err error) {
	for _, text := range together {
		names := strings.Split(text, ",")
		for _, name := range names {
			if p.Switch(name) == nil {
				return nil, fmt.Errorf("--together %s: there is no switch %q", text, name)
			}
		}
		out = append(out, names)
	}
	if !racks {
		return out, nil
	}
	byRack := map[int32][]string{}
	for i := range p.Switches {
		rack := p.Graph.Nodes[p.Switches[i].Node].Rack
		byRack[rack] = append(byRack[rack], p.Switches[i].Name)
	}
	if delete(byRack, topo.None); len(byRack) == 0 {
		return nil, fmt.Errorf("--racks: %s does not say in which racks switches stand; give it a floor section", p.Name)
	}
	for _, rack := range slices.Sorted(maps.Keys(byRack)) {
		out = append(out, byRack[rack])
	}
	return out, nil
}

// printProof prints what holds, and the counterexamples of what does not.
func printProof(w io.Writer, name string, r *prove.Report) error {
	seconds := fmt.Sprintf("%.1f s", r.Seconds)
	if len(r.Verdicts) > 0 {
		fmt.Fprintf(w, "%s: %s, %s, %s, %s of targets, %d decided by symmetry, %s\n\n",
			name, count(r.Hosts, "host"), count(r.Switches, "switch"), count(r.Cables, "cable"), count(r.Classes, "class"),
			r.Classes-r.Decided, seconds)
		if err := printVerdicts(w, r.Verdicts); err != nil {
			return err
		}
	}
	for i, s := range r.InfiniBand {
		if i > 0 || len(r.Verdicts) > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s: InfiniBand fabric %s, %s, %s, %s, routed by %s, %s\n\n",
			name, s.Name, count(s.Adapters, "adapter"), count(s.Switches, "switch"), count(s.Cables, "cable"), s.Engine, seconds)
		if err := printVerdicts(w, s.Verdicts); err != nil {
			return err
		}
	}
	if len(r.Slurm) == 0 {
		return nil
	}
	fmt.Fprintf(w, "\n%s: Slurm\n\n", name)
	return printVerdicts(w, r.Slurm)
}

func printVerdicts(w io.Writer, list []prove.Verdict) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, v := range list {
		note := ""
		if v.Note != "" {
			note = " (" + v.Note + ")"
		}
		fmt.Fprintf(t, "%s\t%d %s%s\t%s\n", v.Property, v.Cases, v.Of, note, stateOf(&v))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, v := range list {
		for i, c := range v.Counter {
			if i == 0 {
				fmt.Fprintf(w, "\n%s: not so\n", v.Property)
			}
			fmt.Fprintf(w, "  %s\n", c)
		}
	}
	return nil
}

// stateOf says in a word or two what was found of a property.
func stateOf(v *prove.Verdict) string {
	switch {
	case v.Advice && v.Broken > 0 && v.Of == "pairs":
		return fmt.Sprintf("%d are longer", v.Broken)
	case v.Advice && v.Broken > 0:
		return fmt.Sprintf("%d cut hosts off", v.Broken)
	case !v.Holds:
		return fmt.Sprintf("refuted in %d", v.Broken)
	}
	return "holds"
}

// provenTenants are the partitions that hosts are meant to be in.
func provenTenants(p *network.Plan) (out []prove.Tenant) {
	for _, t := range p.Intent.Partitions {
		x := prove.Tenant{Name: t.Name, Hosts: map[string]bool{}, Limited: map[string]bool{}}
		for _, h := range t.Hosts {
			x.Hosts[h] = true
		}
		for _, h := range t.Limited {
			x.Hosts[h], x.Limited[h] = true, true
		}
		out = append(out, x)
	}
	return out
}

// storageNet is the network that a storage NIC belongs to. Where storage is routed, that is more than its own link.
func storageNet(x *network.Interface) netip.Prefix {
	if x.Net.IsValid() {
		return x.Net
	}
	return x.Addr.Masked()
}

// provenAreas are the networks that Ethernet switches of the plan join. Storage NICs of all
// numbers reach one another; rails need not. Each tenant has its own part of a network. outside names
// storage networks without switches.
func provenAreas(p *network.Plan) (out []prove.Area, outside []string) {
	seen := map[netip.Prefix]bool{}
	for i := range p.Hosts {
		h := &p.Hosts[i]
		for j := range h.Interfaces {
			x := &h.Interfaces[j]
			if x.Role != network.Storage || x.IB || !x.Addr.IsValid() {
				continue
			}
			net := storageNet(x)
			if seen[net] {
				continue
			}
			seen[net] = true
			if name := "storage " + x.Name; h.Leg(x).Link == network.None {
				outside = append(outside, name)
			} else {
				out = append(out, ofTenants(p, prove.Area{Name: name, Group: "storage", Prefix: net, Open: x.Net.IsValid()})...)
			}
		}
	}
	for _, r := range p.Rails {
		if !r.InfiniBand {
			out = append(out, ofTenants(p, prove.Area{Name: fmt.Sprintf("rail %d", r.Number), Group: "backend", Prefix: r.Prefix})...)
		}
	}
	return out, outside
}

// ofTenants cuts an area into those of the plan's tenants, and that of the hosts without one.
func ofTenants(p *network.Plan, a prove.Area) (out []prove.Area) {
	if len(p.Intent.Tenants) == 0 {
		return []prove.Area{a}
	}
	hosts := map[string]map[string]bool{}
	for i := range p.Hosts {
		t := p.Tenant(p.Hosts[i].Name)
		if hosts[t] == nil {
			hosts[t] = map[string]bool{}
		}
		hosts[t][p.Hosts[i].Name] = true
	}
	for _, t := range slices.Sorted(maps.Keys(hosts)) {
		part := a
		part.Hosts = hosts[t]
		if t != "" {
			part.Name, part.Group = a.Name+" of "+t, a.Group+" of "+t
		}
		out = append(out, part)
	}
	return out
}

// verdict is what is left to say of a proof: what does not hold, and which networks it is not about.
func verdict(holds bool, outside []string) error {
	var list []error
	if !holds {
		list = append(list, errors.New("not everything holds"))
	}
	if len(outside) > 0 {
		list = append(list, fmt.Errorf("not proven: %s; no fabric of the cluster file joins them (fabrics: {NAME: {service: true, ...}})",
			strings.Join(outside, ", ")))
	}
	if err := errors.Join(list...); err != nil {
		return finding{err}
	}
	return nil
}

// provenFiles are the files to read: of a folder, or what would be emitted.
func provenFiles(p *network.Plan, from string) (map[string][]byte, error) {
	if from == "" {
		return emittedFiles(p)
	}
	out := map[string][]byte{}
	if d, err := os.Stat(from); err != nil || !d.IsDir() {
		return nil, fmt.Errorf("--from %s: no such folder; 'weft net emit -o DIR' writes one", from)
	}
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err == nil {
			out[filepath.ToSlash(name)], err = os.ReadFile(path)
		}
		return err
	})
	return out, err
}

// emittedFiles are those that would be emitted, of all kinds that the prover reads.
func emittedFiles(p *network.Plan) (map[string][]byte, error) {
	out := map[string][]byte{}
	names := []string{"cables", "netplan", "opensm"}
	if slices.Contains(p.Intent.Render.Schedules, "slurm") {
		names = append(names, "slurm")
	}
	for _, d := range []string{p.Intent.Render.Leaf, p.Intent.Render.Spine} {
		if d == "nvue" {
			return nil, errors.New("network.render has nvue, which is not modelled; write frr or sonic to have the same plan proven")
		}
		names = append(names, d)
	}
	if slices.Contains(names, "sonic") { // switches that pause, and hosts that must do so alike
		names = append(names, "roce")
	}
	list, err := emit.Make(p, names)
	for _, f := range list {
		out[f.Path] = f.Data
	}
	return out, err
}
