package format

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/weft-fabric/weft/model/sets"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/hostlist"
)

// encodeSlurm writes topology.conf. Hosts that share NVSwitches outside of them
// make blocks, any other cluster is a tree. The first line says which plug-in
// slurm.conf must name: slurmctld does not start where the two disagree.
func encodeSlurm(out io.Writer, g *topo.Graph) error {
	if len(g.Hosts) == 0 {
		return fmt.Errorf("slurm describes a cluster and %q has no host", g.Name)
	}
	w := &slurmWriter{Writer: bufio.NewWriter(out), g: g}
	if read := slurmRead(g); len(read) > 0 {
		w.again(read)
	} else if domains := NVLinkDomains(g); len(domains) > 0 {
		fmt.Fprintln(w, "# slurm.conf: TopologyPlugin=topology/block (Slurm 24.05 and later)")
		w.blocks(domains, 0)
	} else {
		fmt.Fprintln(w, "# slurm.conf: TopologyPlugin=topology/tree")
		if err := w.tree(); err != nil {
			return err
		}
	}
	return w.Flush()
}

// SlurmTree writes the switches of a topology.conf for topology/tree, in which
// Slurm wants each node at one leaf: leaves that share hosts (the rails of a pod)
// become one, and so do switches of a higher tier that share switches below. The
// comment says which switches a line stands for.
func SlurmTree(out io.Writer, g *topo.Graph) error {
	w := &slurmWriter{Writer: bufio.NewWriter(out), g: g}
	if err := w.tree(); err != nil {
		return err
	}
	return w.Flush()
}

// SlurmBlocks writes a topology.conf for topology/block: one line per block, and
// the sizes that jobs are planned by. base is the first of them; 0 takes the
// smallest block.
func SlurmBlocks(out io.Writer, g *topo.Graph, blocks [][]topo.HostID, base int) error {
	w := &slurmWriter{Writer: bufio.NewWriter(out), g: g}
	w.blocks(blocks, base)
	return w.Flush()
}

type slurmWriter struct {
	*bufio.Writer
	g *topo.Graph
}

func (w *slurmWriter) names(hosts []topo.HostID) string {
	list := make([]string, len(hosts))
	for i, h := range hosts {
		list[i] = w.g.Hosts[h].Name
	}
	return hostlist.Slurm(list)
}

// again writes what was read.
func (w *slurmWriter) again(switches []topo.NodeID) {
	sizes := ""
	for _, n := range switches {
		attrs := w.g.Attrs[n]
		key := "SwitchName"
		if attrs["slurm.block"] != "" {
			key = "BlockName"
		}
		fmt.Fprintf(w, "%s=%s", key, w.g.Nodes[n].Name)
		if below := attrs["slurm.switches"]; below != "" {
			fmt.Fprintf(w, " Switches=%s", below)
		}
		if hosts := hostsAt(w.g, n); len(hosts) > 0 {
			fmt.Fprintf(w, " Nodes=%s", w.names(hosts))
		}
		if speed := attrs["slurm.linkspeed"]; speed != "" {
			fmt.Fprintf(w, " LinkSpeed=%s", speed)
		}
		fmt.Fprintln(w)
		sizes = cmp.Or(sizes, attrs["slurm.blocksizes"])
	}
	if sizes != "" {
		fmt.Fprintf(w, "BlockSizes=%s\n", sizes)
	}
}

// NVLinkDomains gives the sets of hosts that NVSwitches outside of them join.
func NVLinkDomains(g *topo.Graph) [][]topo.HostID {
	s := sets.New[int](len(g.Hosts))
	joined := make([]bool, len(g.Hosts))
	g.Each(topo.NVSwitch, func(n topo.NodeID, node *topo.Node) {
		if node.Host != topo.None {
			return
		}
		first := -1
		for _, e := range g.Edges(n) {
			h := int(g.Nodes[e.Peer].Host)
			if h < 0 {
				continue
			}
			if first < 0 {
				first = h
			}
			s.Join(first, h)
			joined[h], joined[first] = true, true
		}
	})
	byFirst := map[int][]topo.HostID{}
	var order []int
	for h := range g.Hosts {
		if !joined[h] {
			continue
		}
		f := s.Find(h)
		if byFirst[f] == nil {
			order = append(order, f)
		}
		byFirst[f] = append(byFirst[f], topo.HostID(h))
	}
	var list [][]topo.HostID
	for _, f := range order {
		list = append(list, byFirst[f])
	}
	return list
}

// maxBlockLevel is how often Slurm lets the base be doubled.
const maxBlockLevel = 15

// blocks writes the blocks and their sizes: the base, then twice as many as long
// as there are hosts for one of them.
func (w *slurmWriter) blocks(blocks [][]topo.HostID, base int) {
	least := len(blocks[0])
	for i, list := range blocks {
		fmt.Fprintf(w, "BlockName=block%d Nodes=%s\n", i, w.names(list))
		least = min(least, len(list))
	}
	if base == 0 {
		base = least
	}
	hosts := base * len(blocks)
	fmt.Fprintf(w, "BlockSizes=%d", base)
	for level, size := 1, 2*base; level <= maxBlockLevel && size <= hosts; level, size = level+1, 2*size {
		fmt.Fprintf(w, ",%d", size)
	}
	fmt.Fprintln(w)
}

// slurmGroup is a line of the tree: switches that count as one.
type slurmGroup struct {
	members []topo.NodeID
	hosts   []topo.HostID
	below   []string
	name    string
}

// tree writes the tiers from the bottom up.
func (w *slurmWriter) tree() error {
	tiers := map[uint8][]topo.NodeID{}
	top := uint8(0)
	w.g.Each(topo.Switch, func(n topo.NodeID, node *topo.Node) {
		if node.Fabric != topo.None && w.g.Fabrics[node.Fabric].Service {
			return
		}
		tier := max(node.Tier, 1)
		tiers[tier] = append(tiers[tier], n)
		top = max(top, tier)
	})
	if len(tiers[1]) == 0 {
		return fmt.Errorf("slurm describes a tree of switches and %q has none", w.g.Name)
	}
	of := make([]int, len(w.g.Nodes)) // the group of a switch, counted from 1 over all tiers
	var groups []*slurmGroup
	parent := map[int]bool{}
	for tier := uint8(1); tier <= top; tier++ {
		list := tiers[tier]
		s, owner := sets.New[int](len(list)), map[int]int{}
		below := func(n topo.NodeID) (keys []int) {
			if tier == 1 {
				for _, h := range hostsAt(w.g, n) {
					keys = append(keys, int(h))
				}
				return keys
			}
			for _, e := range w.g.Edges(n) {
				if w.g.Nodes[e.Peer].Kind == topo.Switch && max(w.g.Nodes[e.Peer].Tier, 1) == tier-1 && of[e.Peer] > 0 {
					keys = append(keys, of[e.Peer])
				}
			}
			slices.Sort(keys)
			return slices.Compact(keys)
		}
		for i, n := range list {
			for _, key := range below(n) {
				if first, ok := owner[key]; ok {
					s.Join(first, i)
				} else {
					owner[key] = i
				}
			}
		}
		made := map[int]int{}
		for i, n := range list {
			keys := below(n)
			if len(keys) == 0 {
				continue // nothing hangs on it that Slurm could use
			}
			f := s.Find(i)
			if made[f] == 0 {
				groups = append(groups, &slurmGroup{name: w.g.Nodes[n].Name})
				made[f] = len(groups)
			}
			of[n] = made[f]
			group := groups[made[f]-1]
			group.members = append(group.members, n)
			for _, key := range keys {
				if tier == 1 {
					group.hosts = append(group.hosts, topo.HostID(key))
				} else if !parent[key] {
					parent[key] = true
					group.below = append(group.below, groups[key-1].name)
				}
			}
		}
	}
	w.write(groups, parent)
	return nil
}

// group prints the line of one group, and above it which switches of the graph it stands for where these are several.
func (w *slurmWriter) group(g *slurmGroup) {
	if len(g.members) > 1 {
		list := make([]string, len(g.members))
		for j, n := range g.members {
			list[j] = w.g.Nodes[n].Name
		}
		fmt.Fprintf(w, "# %s stands for %s\n", g.name, hostlist.Slurm(list))
	}
	fmt.Fprintf(w, "SwitchName=%s", g.name)
	if len(g.below) > 0 {
		fmt.Fprintf(w, " Switches=%s", hostlist.Slurm(g.below))
	}
	if len(g.hosts) > 0 {
		slices.Sort(g.hosts)
		fmt.Fprintf(w, " Nodes=%s", w.names(slices.Compact(g.hosts)))
	}
	fmt.Fprintln(w)
}

// write prints the groups and, if several have nothing above them, one switch above them all, without which no job could span them.
func (w *slurmWriter) write(groups []*slurmGroup, parent map[int]bool) {
	var roots []string
	for i, g := range groups {
		w.group(g)
		if !parent[i+1] {
			roots = append(roots, g.name)
		}
	}
	if len(roots) > 1 {
		name := "fabric"
		for used := true; used; {
			used = slices.ContainsFunc(groups, func(g *slurmGroup) bool { return g.name == name })
			if _, host := w.g.HostByName(name); used || host {
				name, used = name+"-all", true
			}
		}
		fmt.Fprintf(w, "SwitchName=%s Switches=%s\n", name, hostlist.Slurm(roots))
	}
}
