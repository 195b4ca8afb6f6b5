package prove

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/weft-fabric/weft/model/sets"
	"github.com/weft-fabric/weft/model/topo/hostlist"
)

// Slurm is what Slurm's files say of hosts and of the switches between them.
type Slurm struct {
	Plugin string   // TopologyPlugin, without topology/
	Nodes  []string // of NodeName lines
	Unread []string // lines of topology.conf that the model does not know

	lines  []*slurmLine
	byName map[string]*slurmLine
	yaml   bool  // topology.yaml says which plug-in there is, whatever slurm.conf does
	sizes  []int // BlockSizes
	cables [][4]string
}

// slurmLine is a line of topology.conf: a switch or a block.
type slurmLine struct {
	name  string
	block bool
	nodes []string
	below []string // switches
}

func (n *Net) slurm() *Slurm {
	if n.Slurm == nil {
		n.Slurm = &Slurm{byName: map[string]*slurmLine{}}
	}
	return n.Slurm
}

// slurmRows gives the lines of a file of Slurm's as keys in small letters with their values. A line that ends with a backslash goes on.
func slurmRows(data []byte, each func(line string, row map[string]string) error) error {
	text := strings.ReplaceAll(string(data), "\\\n", " ")
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		row := map[string]string{}
		for _, w := range strings.Fields(line) {
			key, value, _ := strings.Cut(w, "=")
			row[strings.ToLower(key)] = value
		}
		if err := each(line, row); err != nil {
			return err
		}
	}
	return nil
}

// slurmNodes reads the hosts and the plug-in of a part of slurm.conf.
func (n *Net) slurmNodes(_ string, data []byte) error {
	s := n.slurm()
	return slurmRows(data, func(_ string, row map[string]string) error {
		if plugin, ok := row["topologyplugin"]; ok && !s.yaml {
			s.Plugin = strings.TrimPrefix(plugin, "topology/")
		}
		list, err := hostlist.Expand(row["nodename"])
		if row["nodename"] == "" || row["nodename"] == "DEFAULT" {
			return nil
		}
		s.Nodes = append(s.Nodes, list...)
		return err
	})
}

// slurmTopology reads topology.conf.
func (n *Net) slurmTopology(_ string, data []byte) error {
	s := n.slurm()
	return slurmRows(data, func(line string, row map[string]string) error {
		if sizes, ok := row["blocksizes"]; ok && len(row) == 1 {
			return s.blockSizes(strings.Split(sizes, ","))
		}
		for key := range row {
			if !slices.Contains([]string{"switchname", "blockname", "nodes", "switches", "linkspeed"}, key) {
				s.Unread = append(s.Unread, "topology.conf: "+line)
				return nil
			}
		}
		return s.line(row["switchname"], row["blockname"], row["nodes"], row["switches"])
	})
}

func (s *Slurm) blockSizes(list []string) error {
	for _, text := range list {
		v, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil {
			return fmt.Errorf("BlockSizes: %q is no number", text)
		}
		s.sizes = append(s.sizes, v)
	}
	return nil
}

// line adds a switch or a block.
func (s *Slurm) line(name, block, nodes, below string) error {
	x := &slurmLine{name: name, block: name == ""}
	if x.block {
		x.name = block
	}
	if x.name == "" || s.byName[x.name] != nil {
		return fmt.Errorf("%q is no name of a switch or block, or stands twice", x.name)
	}
	for text, into := range map[string]*[]string{nodes: &x.nodes, below: &x.below} {
		if text == "" {
			continue
		}
		list, err := hostlist.Expand(text)
		if err != nil {
			return err
		}
		*into = list
	}
	s.lines, s.byName[x.name] = append(s.lines, x), x
	return nil
}

// slurmTopologies are those of a topology.yaml.
type slurmTopologies []struct {
	Topology string
	Default  bool `yaml:"cluster_default"`
	Tree     struct {
		Switches []struct{ Switch, Children, Nodes string }
	}
	Block struct {
		Sizes  []int `yaml:"block_sizes"`
		Blocks []struct{ Block, Nodes string }
	}
}

// slurmYAML reads topology.yaml, which Slurm prefers to topology.conf: its first topology, or that of the whole cluster.
func (n *Net) slurmYAML(_ string, data []byte) error {
	var file slurmTopologies
	if err := yaml.UnmarshalWithOptions(data, &file, yaml.Strict()); err != nil {
		return err
	}
	if len(file) == 0 {
		return errors.New("it has no topology")
	}
	at := 0
	for i := range file {
		if file[i].Default {
			at = i
		}
	}
	t := &file[at]
	s := n.slurm()
	s.yaml, s.Plugin = true, "tree"
	s.lines, s.byName, s.sizes = nil, map[string]*slurmLine{}, t.Block.Sizes
	for _, x := range t.Tree.Switches {
		if err := s.line(x.Switch, "", x.Nodes, x.Children); err != nil {
			return err
		}
	}
	for _, x := range t.Block.Blocks {
		s.Plugin = "block"
		if err := s.line("", x.Block, x.Nodes, ""); err != nil {
			return err
		}
	}
	return nil
}

// plugSlurm keeps the cables of the networks that Slurm's switches are of.
func (n *Net) plugSlurm(data []byte) error {
	if n.Slurm == nil {
		return nil
	}
	r := csv.NewReader(bytes.NewReader(data))
	at, network, err := columns(r)
	if err != nil || network < 0 {
		return err
	}
	rows, err := r.ReadAll()
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	for _, row := range rows {
		for _, end := range []int{at[0], at[2]} {
			if n.Slurm.byName[row[end]] != nil {
				wanted[row[network]] = true
			}
		}
	}
	for _, row := range rows {
		if wanted[row[network]] {
			n.Slurm.cables = append(n.Slurm.cables, [4]string{row[at[0]], row[at[1]], row[at[2]], row[at[3]]})
		}
	}
	return nil
}

// all are the hosts below a line, and how many lines are below one another there.
func (s *Slurm) all(x *slurmLine, depth int) (nodes []string, height int) {
	nodes = slices.Clone(x.nodes)
	for _, name := range x.below {
		if next := s.byName[name]; next != nil && depth < 64 {
			more, h := s.all(next, depth+1)
			nodes, height = append(nodes, more...), max(height, h+1)
		}
	}
	slices.Sort(nodes)
	return nodes, height
}

// Levels are the sets of hosts below Slurm's switches, lowest switches first.
func (s *Slurm) Levels() (out [][]string) {
	for _, x := range s.lines {
		nodes, height := s.all(x, 0)
		for len(out) <= height {
			out = append(out, nil)
		}
		out[height] = append(out[height], strings.Join(nodes, " "))
	}
	for _, l := range out {
		slices.Sort(l)
	}
	return out
}

// Prove looks at what must hold of Slurm's files, and of them and the cables.
func (s *Slurm) Prove() []Verdict {
	if s == nil {
		return nil
	}
	list := []Verdict{s.read(), s.once()}
	if s.Plugin == "block" {
		list = append(list, s.blocks())
	} else if len(s.lines) > 0 {
		list = append(list, s.tree())
	}
	for i := range list {
		list[i].Holds = list[i].Broken == 0
	}
	return list
}

// read looks for what slurmctld does not start with.
func (s *Slurm) read() Verdict {
	v := Verdict{Property: "Slurm's files are one", Of: "lines", Cases: len(s.lines)}
	for _, line := range s.Unread {
		v.refute(1, Counterexample{Why: "the model does not know " + line})
	}
	for _, x := range s.lines {
		if x.block != (s.Plugin == "block") {
			v.refute(1, Counterexample{Why: fmt.Sprintf("%s is no line for TopologyPlugin=topology/%s", x.name, s.Plugin)})
		}
		for _, name := range x.below {
			if s.byName[name] == nil {
				v.refute(1, Counterexample{Why: fmt.Sprintf("%s has %s below it, which no line is about", x.name, name)})
			}
		}
	}
	if len(s.lines) == 0 && (s.Plugin == "tree" || s.Plugin == "block") {
		v.refute(1, Counterexample{Why: "TopologyPlugin=topology/" + s.Plugin + " needs topology.conf, which is empty or missing"})
	}
	return v
}

// once looks for hosts that are at no switch, at several, or that Slurm does not know.
func (s *Slurm) once() Verdict {
	v := Verdict{Property: "Slurm has every host once", Of: "hosts", Cases: len(s.Nodes)}
	at, known := map[string]string{}, map[string]bool{}
	for _, x := range s.lines {
		for _, node := range x.nodes {
			if other := at[node]; other != "" {
				v.refute(1, Counterexample{Why: fmt.Sprintf("%s is at %s and at %s", node, other, x.name)})
			}
			at[node] = x.name
		}
	}
	for _, node := range s.Nodes {
		known[node] = true
		if at[node] == "" && len(s.lines) > 0 {
			v.refute(1, Counterexample{Why: node + " is at no switch and in no block"})
		}
	}
	for _, node := range slices.Sorted(maps.Keys(at)) {
		if !known[node] {
			v.refute(1, Counterexample{Why: fmt.Sprintf("%s has %s, and no NodeName line does", at[node], node)})
		}
	}
	return v
}

// blocks looks at the sizes that jobs are planned by: each the first one, doubled some times, and at most fifteen.
func (s *Slurm) blocks() Verdict {
	v := Verdict{Property: "Slurm's block sizes double", Of: "sizes", Cases: len(s.sizes)}
	for _, size := range s.sizes {
		base := s.sizes[0]
		times := 0
		for x := base; x > 0 && x < size; x *= 2 {
			times++
		}
		if base <= 0 || size != base<<times || times > 15 {
			v.refute(1, Counterexample{Why: fmt.Sprintf("BlockSizes has %d, which is not %d doubled up to fifteen times", size, base)})
		}
	}
	return v
}

// tree compares Slurm's switches with those that cables make: hosts at one switch of the lowest level share a switch, or a host
// that does; hosts below one of level k are joined by switches up to k+1 cables away from hosts.
func (s *Slurm) tree() Verdict {
	v := Verdict{Property: "Slurm's switches are what cables make", Of: "switches", Cases: len(s.lines),
		Note: fmt.Sprintf("%d levels", len(s.Levels()))}
	heights := map[int][]*slurmLine{}
	for _, x := range s.lines {
		_, h := s.all(x, 0)
		heights[h] = append(heights[h], x)
	}
	for _, h := range slices.Sorted(maps.Keys(heights)) {
		group := s.joined(h + 1)
		count := map[int]int{}
		for _, number := range group {
			count[number]++
		}
		for _, x := range heights[h] {
			if why := s.wrong(x, group, count); why != "" {
				v.refute(1, Counterexample{Path: []string{x.name}, Why: why})
			}
		}
	}
	return v
}

// wrong says how the hosts below a line differ from those that cables join; nothing if they do not. group are numbers of hosts, one for
// those that are joined, and count says how many have a number.
func (s *Slurm) wrong(x *slurmLine, group map[string]int, count map[int]int) string {
	nodes, _ := s.all(x, 0)
	if len(nodes) == 0 {
		return "it has no hosts"
	}
	mine := map[string]bool{}
	for _, node := range nodes {
		mine[node] = true
		if number, known := group[node]; !known || number != group[nodes[0]] {
			return fmt.Sprintf("%s and %s are below it, and cables of that level do not join them", nodes[0], node)
		}
	}
	if len(mine) == count[group[nodes[0]]] {
		return ""
	}
	for _, node := range s.Nodes {
		if group[node] == group[nodes[0]] && !mine[node] {
			return fmt.Sprintf("cables join %s and %s at that level, and %s is not below it", nodes[0], node, node)
		}
	}
	return ""
}

// joined gives hosts that switches up to some cables away from hosts join one number. At one cable, switches that are themselves
// joined by a cable count as apart.
func (s *Slurm) joined(tiers int) map[string]int {
	host := map[string]bool{}
	for _, node := range s.Nodes {
		host[node] = true
	}
	number := s.numbered(host, tiers)
	up := sets.New[int](len(number))
	for _, c := range s.cables {
		a, inA := number[c[0]]
		b, inB := number[c[2]]
		if inA && inB && (tiers > 1 || host[c[0]] || host[c[2]]) {
			up.Join(a, b)
		}
	}
	out := map[string]int{}
	for node := range host {
		out[node] = up.Find(number[node])
	}
	return out
}

// numbered counts hosts, and switches up to some cables away from them.
func (s *Slurm) numbered(host map[string]bool, tiers int) map[string]int {
	number := map[string]int{}
	for node := range host {
		number[node] = len(number)
	}
	for x, tier := range s.tiers(host) {
		if tier <= tiers {
			number[x] = len(number)
		}
	}
	return number
}

// tiers are the distances of switches from hosts, in cables.
func (s *Slurm) tiers(host map[string]bool) map[string]int {
	next := map[string][]string{}
	for _, c := range s.cables {
		next[c[0]], next[c[2]] = append(next[c[0]], c[2]), append(next[c[2]], c[0])
	}
	tier := map[string]int{}
	queue := slices.Sorted(maps.Keys(host))
	for ; len(queue) > 0; queue = queue[1:] {
		for _, x := range next[queue[0]] {
			if !host[x] && tier[x] == 0 {
				tier[x] = tier[queue[0]] + 1
				queue = append(queue, x)
			}
		}
	}
	return tier
}
