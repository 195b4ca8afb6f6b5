package format

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/hostlist"
)

// Limits of a topology.conf: Slurm's own MAX_SLURM_NODES is 65,536.
const (
	maxSlurmHosts    = 1 << 17
	maxSlurmSwitches = 1 << 16
)

// slurmEntry is a line of topology.conf.
type slurmEntry struct {
	name     string
	block    bool
	nodes    []string
	switches []string
	speed    string
	line     int
	node     topo.NodeID
}

// detectSlurm looks at the first line that is neither empty nor a comment.
func detectSlurm(head []byte) bool {
	if slurmYAML(head) {
		return true
	}
	for line := range bytes.Lines(head) {
		text, _, _ := strings.Cut(string(line[:min(len(line), 4096)]), "#")
		key, _, ok := strings.Cut(strings.TrimSpace(text), "=")
		if strings.TrimSpace(text) == "" {
			continue
		}
		key = strings.ToLower(key)
		return ok && (key == "switchname" || key == "blockname" || key == "blocksizes")
	}
	return false
}

// slurmReader collects the lines of a topology.conf.
type slurmReader struct {
	entries []*slurmEntry
	sizes   string         // of BlockSizes=, as written
	index   map[string]int // names to entries
	hosts   int            // names that hostlists expanded to, of both kinds
}

// readSlurm reads the lines. Keys are not case sensitive, a backslash goes on in
// the next line, and # starts a comment.
func readSlurm(data []byte) (entries []*slurmEntry, sizes string, err error) {
	r := slurmReader{index: map[string]int{}}
	held, start := "", 0
	err = lines(data, func(number int, line string) error {
		if len(line) > maxLine || len(held) > maxLine {
			return errorAt("slurm", number, "a line of more than %d bytes", maxLine)
		}
		text, _, _ := strings.Cut(line, "#")
		if held == "" {
			start = number
		}
		if more, ok := strings.CutSuffix(strings.TrimSpace(text), `\`); ok {
			held += more + " "
			return nil
		}
		text = held + text
		held = ""
		return r.line(start, text)
	})
	if err == nil {
		err = r.line(start, held)
	}
	if err == nil && len(r.entries) == 0 {
		err = errorAt("slurm", 1, "no SwitchName= or BlockName= found; expected Slurm's topology.conf")
	}
	return r.entries, r.sizes, err
}

// line reads one whole line. Its first field names a switch, a block, or the sizes of blocks.
func (r *slurmReader) line(number int, text string) error {
	fields := strings.Fields(text)
	if len(fields) == 0 {
		return nil
	}
	e := &slurmEntry{line: number}
	for i, field := range fields {
		key, value, ok := strings.Cut(field, "=")
		value = strings.Trim(value, `"'`)
		key = strings.ToLower(key)
		if !ok || value == "" {
			return errorAt("slurm", number, "found %q; expected SwitchName=, Nodes=, Switches=, LinkSpeed=, BlockName= or BlockSizes= with a value",
				clip(field))
		}
		switch {
		case i == 0 && (key == "switchname" || key == "blockname"):
			e.name, e.block = value, key == "blockname"
		case i == 0 && key == "blocksizes":
			r.sizes = value
			return checkBlockSizes(number, strings.Split(value, ","))
		case e.name != "" && key == "linkspeed":
			e.speed = value
		case e.name != "" && (key == "nodes" || key == "switches" && !e.block):
			if err := r.names(e, key, value); err != nil {
				return err
			}
		default:
			return errorAt("slurm", number, "found %q; expected SwitchName= or BlockName= first, then Nodes=, Switches= or LinkSpeed=", clip(field))
		}
	}
	return r.add(e)
}

// names expands the hostlist of Nodes= or Switches=.
func (r *slurmReader) names(e *slurmEntry, key, value string) error {
	names, err := hostlist.Expand(value)
	if err != nil {
		return errorAt("slurm", e.line, "%v", err)
	}
	if r.hosts += len(names); r.hosts > maxSlurmHosts {
		return errorAt("slurm", e.line, "more than %d names", maxSlurmHosts)
	}
	if key == "nodes" {
		e.nodes = append(e.nodes, names...)
	} else {
		e.switches = append(e.switches, names...)
	}
	return nil
}

func (r *slurmReader) add(e *slurmEntry) error {
	if before, twice := r.index[e.name]; twice {
		return errorAt("slurm", e.line, "%q is defined twice, first in line %d", clip(e.name), r.entries[before].line)
	}
	if len(r.entries) == maxSlurmSwitches {
		return errorAt("slurm", e.line, "more than %d switches", maxSlurmSwitches)
	}
	if len(r.entries) > 0 && r.entries[0].block != e.block {
		return errorAt("slurm", e.line, "%q mixes blocks with switches; a file has either", clip(e.name))
	}
	r.index[e.name] = len(r.entries)
	r.entries = append(r.entries, e)
	return nil
}

// decodeSlurm reads topology.conf or topology.yaml. Every node is a host with a NIC at its leaf
// switch; a block becomes a switch, too, marked as one. Slurm knows no rates
// (LinkSpeed has no unit and no use), so they are unstated.
func decodeSlurm(name string, data []byte) (*topo.Graph, error) {
	read := readSlurm
	if slurmYAML(data[:min(len(data), detectBytes)]) {
		read = readSlurmYAML
	}
	entries, sizes, err := read(data)
	if err != nil {
		return nil, err
	}
	b := topo.NewBuilder(name)
	fabric := b.Fabric(topo.Fabric{Name: "fabric", Family: topo.Irregular})
	rate := b.Class(unstated(topo.Ethernet))
	byName := map[string]*slurmEntry{}
	for i, e := range entries {
		part := topo.Part(topo.Switch, topo.None, e.name)
		part.Fabric = fabric
		e.node = b.Node(part)
		attrs := topo.Attrs{"slurm.at": strconv.Itoa(i)}
		if e.block {
			attrs["slurm.block"] = "1"
		}
		if i == 0 && sizes != "" {
			attrs["slurm.blocksizes"] = sizes
		}
		if e.speed != "" {
			attrs["slurm.linkspeed"] = e.speed
		}
		if len(e.switches) > 0 {
			attrs["slurm.switches"] = hostlist.Compress(e.switches)
		}
		b.Attr(e.node, attrs)
		byName[e.name] = e
	}
	hosts, nics := map[string]topo.HostID{}, map[topo.HostID]int{}
	for _, e := range entries {
		below := map[string]bool{}
		for _, s := range e.switches {
			child, ok := byName[s]
			if !ok {
				return nil, errorAt("slurm", e.line, "switch %q has switch %q below it, which no line defines", clip(e.name), clip(s))
			}
			if below[s] {
				return nil, errorAt("slurm", e.line, "switch %q names %q twice", clip(e.name), clip(s))
			}
			below[s] = true
			if child == e {
				return nil, errorAt("slurm", e.line, "switch %q is below itself", clip(e.name))
			}
			b.Link(topo.Link{A: child.node, B: e.node, Class: rate})
		}
		here := map[string]bool{}
		for _, n := range e.nodes {
			if here[n] {
				return nil, errorAt("slurm", e.line, "%q names node %q twice", clip(e.name), clip(n))
			}
			here[n] = true
			host, ok := hosts[n]
			if !ok {
				if _, taken := byName[n]; taken {
					return nil, errorAt("slurm", e.line, "%q is both a node and a switch", clip(n))
				}
				host = b.Host(topo.Host{Name: n, Pod: topo.None, Rack: topo.None})
				hosts[n] = host
			}
			part := topo.Part(topo.NIC, host, fmt.Sprintf("nic%d", nics[host]))
			nics[host]++
			part.Fabric = fabric
			b.Link(topo.Link{A: b.Node(part), B: e.node, Class: rate})
		}
	}
	if err := acyclic(entries, byName); err != nil {
		return nil, err
	}
	if b.InferTiers(fabric) {
		b.SetFamily(fabric, topo.Clos)
	}
	return finish("slurm", b)
}

// acyclic refuses a switch that is above itself.
func acyclic(entries []*slurmEntry, byName map[string]*slurmEntry) error {
	left, parents := map[*slurmEntry]int{}, map[*slurmEntry][]*slurmEntry{}
	var ready []*slurmEntry
	for _, e := range entries {
		left[e] = len(e.switches)
		for _, s := range e.switches {
			parents[byName[s]] = append(parents[byName[s]], e)
		}
		if len(e.switches) == 0 {
			ready = append(ready, e)
		}
	}
	for i := 0; i < len(ready); i++ {
		for _, p := range parents[ready[i]] {
			if left[p]--; left[p] == 0 {
				ready = append(ready, p)
			}
		}
	}
	for _, e := range entries {
		if left[e] > 0 {
			return errorAt("slurm", e.line, "switch %q is part of a ring of switches above one another; expected a tree", clip(e.name))
		}
	}
	return nil
}

// slurmRead lists the switches of a graph that was read from topology.conf, in its order; nil for any other graph.
func slurmRead(g *topo.Graph) []topo.NodeID {
	var list []topo.NodeID
	g.Each(topo.Switch, func(n topo.NodeID, _ *topo.Node) {
		if _, ok := g.Attrs[n]["slurm.at"]; ok {
			list = append(list, n)
		}
	})
	if len(list) != g.Count(topo.Switch) {
		return nil
	}
	slices.SortFunc(list, func(x, y topo.NodeID) int {
		return cmp.Compare(number(g.Attrs[x]["slurm.at"]), number(g.Attrs[y]["slurm.at"]))
	})
	return list
}

// hostsAt lists the hosts with a NIC at a switch, each once, in order.
func hostsAt(g *topo.Graph, n topo.NodeID) []topo.HostID {
	var list []topo.HostID
	for _, e := range g.Edges(n) {
		if g.Nodes[e.Peer].Kind == topo.NIC && g.Nodes[e.Peer].Host != topo.None {
			list = append(list, g.Nodes[e.Peer].Host)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// checkBlockSizes refuses sizes that are no number of nodes.
func checkBlockSizes(line int, sizes []string) error {
	for _, size := range sizes {
		if n, err := strconv.Atoi(size); err != nil || n < 1 {
			return errorAt("slurm", line, "block size %q; want a number of nodes, 1 or more", clip(size))
		}
	}
	return nil
}
