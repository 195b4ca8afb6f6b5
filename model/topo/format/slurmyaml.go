package format

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/topo/hostlist"
)

// slurmYAML reports whether a text is Slurm's topology.yaml (25.05 and later),
// a list of topologies, rather than topology.conf.
func slurmYAML(head []byte) bool {
	for line := range bytes.Lines(head) {
		text, _, _ := strings.Cut(strings.TrimSpace(string(line[:min(len(line), 4096)])), "#")
		if text = strings.TrimSpace(text); text == "" || text == "---" {
			continue
		}
		return strings.HasPrefix(text, "- ") && bytes.Contains(head, []byte("topology:"))
	}
	return false
}

// readSlurmYAML reads topology.yaml: of several topologies the cluster's default,
// or else the first. Slurm ignores keys that it does not know, and so makes a
// tree flat without a word; here they are refused.
func readSlurmYAML(data []byte) (entries []*slurmEntry, sizes string, err error) {
	chosen, err := slurmDefault(data)
	if err != nil {
		return nil, "", err
	}
	r := &slurmYAMLReader{}
	switch tree, block := chosen.get("tree"), chosen.get("block"); {
	case tree.line > 0:
		err = r.read(tree, "switches", "switch")
	case block.line > 0:
		err = r.read(block, "blocks", "block")
	default:
		err = errorAt("slurm", chosen.line, "topology %q has neither tree nor block; nothing else has switches to read",
			clip(chosen.get("topology").text))
	}
	if err == nil && len(r.entries) == 0 {
		err = errorAt("slurm", chosen.line, "topology %q names no switch and no block", clip(chosen.get("topology").text))
	}
	return r.entries, r.sizes, err
}

// slurmDefault is the topology that Slurm takes for the whole cluster. Of several that say so, the last one counts.
func slurmDefault(data []byte) (chosen *plainNode, err error) {
	root, err := readPlainYAML("slurm", data)
	if err != nil {
		return nil, err
	}
	if root.list == nil {
		return nil, errorAt("slurm", root.line, "expected a list of topologies that starts with - topology:")
	}
	for _, t := range root.list {
		if err := t.only("topology", "cluster_default", "tree", "block", "flat", "ring", "torus3d"); err != nil {
			return nil, err
		}
		if chosen == nil || t.get("cluster_default").text == "true" {
			chosen = t
		}
	}
	return chosen, nil
}

// SlurmConf writes what a topology.yaml says as a topology.conf, so that the two can be compared.
func SlurmConf(data []byte) ([]byte, error) {
	entries, sizes, err := readSlurmYAML(data)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	for _, e := range entries {
		kind := "SwitchName"
		if e.block {
			kind = "BlockName"
		}
		fmt.Fprintf(&b, "%s=%s", kind, e.name)
		if len(e.switches) > 0 {
			fmt.Fprintf(&b, " Switches=%s", hostlist.Slurm(e.switches))
		}
		if len(e.nodes) > 0 {
			fmt.Fprintf(&b, " Nodes=%s", hostlist.Slurm(e.nodes))
		}
		b.WriteString("\n")
	}
	if sizes != "" {
		fmt.Fprintf(&b, "BlockSizes=%s\n", sizes)
	}
	return b.Bytes(), nil
}

type slurmYAMLReader struct {
	entries []*slurmEntry
	sizes   string
	names   int
}

// read takes the switches of a tree or the blocks of a block topology.
func (r *slurmYAMLReader) read(n *plainNode, list, name string) error {
	if err := n.only(list, "block_sizes"); err != nil {
		return err
	}
	var sizes []string
	for _, s := range n.get("block_sizes").list {
		sizes = append(sizes, s.text)
	}
	if err := checkBlockSizes(n.get("block_sizes").line, sizes); err != nil {
		return err
	}
	r.sizes = strings.Join(sizes, ",")
	index := map[string]int{}
	for _, item := range n.get(list).list {
		e, err := r.entry(item, name, index)
		if err != nil {
			return err
		}
		if len(r.entries) == maxSlurmSwitches {
			return errorAt("slurm", item.line, "more than %d switches", maxSlurmSwitches)
		}
		r.entries = append(r.entries, e)
	}
	return nil
}

// entry takes one switch or block, whose name must be new; seen has the line of each name so far.
func (r *slurmYAMLReader) entry(item *plainNode, name string, seen map[string]int) (*slurmEntry, error) {
	if err := item.only(name, "nodes", "children"); err != nil {
		return nil, err
	}
	e := &slurmEntry{name: item.get(name).text, block: name == "block", line: item.line}
	if e.name == "" {
		return nil, errorAt("slurm", item.line, "a %s without a name; expected %s: NAME", name, name)
	}
	if first, twice := seen[e.name]; twice {
		return nil, errorAt("slurm", item.line, "%q is defined twice, first in line %d", clip(e.name), first)
	}
	seen[e.name] = item.line
	var err error
	if e.nodes, err = r.expand(item.get("nodes")); err != nil {
		return nil, err
	}
	e.switches, err = r.expand(item.get("children"))
	return e, err
}

// expand reads a hostlist.
func (r *slurmYAMLReader) expand(n *plainNode) ([]string, error) {
	if n.text == "" {
		return nil, nil
	}
	names, err := hostlist.Expand(n.text)
	if err != nil {
		return nil, errorAt("slurm", n.line, "%v", err)
	}
	if r.names += len(names); r.names > maxSlurmHosts {
		return nil, errorAt("slurm", n.line, "more than %d names", maxSlurmHosts)
	}
	return names, nil
}

// plainNode is a value of a plain YAML text: a scalar, a list or a mapping. The
// zero node stands for what is not there.
type plainNode struct {
	line int
	text string
	list []*plainNode
	keys []string
	vals []*plainNode
}

func (n *plainNode) get(key string) *plainNode {
	if i := slices.Index(n.keys, key); i >= 0 {
		return n.vals[i]
	}
	return &plainNode{}
}

// only refuses keys other than those known.
func (n *plainNode) only(known ...string) error {
	for i, k := range n.keys {
		if !slices.Contains(known, k) {
			return errorAt("slurm", n.vals[i].line, "unknown key %q; known: %s", clip(k), strings.Join(known, ", "))
		}
	}
	return nil
}

// plainLine is a line of a text with its indentation.
type plainLine struct {
	number, indent int
	text           string
}

// readPlainYAML reads what such files hold of YAML: block lists and mappings,
// plain and quoted scalars, lists of scalars in brackets, comments. Anchors,
// tags, several documents and texts over several lines are refused.
func readPlainYAML(dialect string, data []byte) (*plainNode, error) {
	p := &plainYAML{dialect: dialect}
	if err := lines(data, p.take); err != nil {
		return nil, err
	}
	if len(p.lines) == 0 {
		return nil, errorAt(dialect, 1, "the file is empty")
	}
	root, err := p.value(p.lines[0].indent, 0)
	if err == nil && p.at < len(p.lines) {
		err = errorAt(dialect, p.lines[p.at].number, "found %q less indented than the lines before", clip(p.lines[p.at].text))
	}
	return root, err
}

// take keeps a line that holds something besides a comment and the mark before the first document.
func (p *plainYAML) take(number int, line string) error {
	if len(line) > maxLine {
		return errorAt(p.dialect, number, "a line of more than %d bytes", maxLine)
	}
	text := uncomment(line)
	body := strings.TrimLeft(text, " ")
	switch {
	case body == "" || body == "---" && len(p.lines) == 0:
		return nil
	case body == "---" || body == "...":
		return errorAt(p.dialect, number, "a second document; one is read")
	case strings.Contains(text[:len(text)-len(body)]+body[:1], "\t"):
		return errorAt(p.dialect, number, "a tab at the start of the line; YAML is indented with spaces")
	}
	p.lines = append(p.lines, plainLine{number, len(text) - len(body), body})
	return nil
}

// indent is that of the line where reading is, -1 after the last one.
func (p *plainYAML) indent() int {
	if p.at < len(p.lines) {
		return p.lines[p.at].indent
	}
	return -1
}

// listItem cuts the dash off an item of a list. A minus sign with something behind it starts a scalar.
func listItem(text string) (item string, ok bool) {
	item, ok = strings.CutPrefix(text, "-")
	return item, ok && (item == "" || item[0] == ' ')
}

// uncomment cuts a comment off, but not a # inside quotes or a word, and the blanks at the end.
func uncomment(line string) string {
	quote := byte(0)
	for i := range len(line) {
		switch c := line[i]; {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'':
			quote = c
		case c == '#' && (i == 0 || line[i-1] == ' ' || line[i-1] == '\t'):
			return strings.TrimRight(line[:i], " \t")
		}
	}
	return strings.TrimRight(line, " \t")
}

type plainYAML struct {
	dialect string
	lines   []plainLine
	at      int
}

// maxPlainDepth bounds the nesting; topology.yaml has five levels.
const maxPlainDepth = 16

// value reads the list or mapping that starts at the current line.
func (p *plainYAML) value(indent, depth int) (*plainNode, error) {
	if depth > maxPlainDepth {
		return nil, errorAt(p.dialect, p.lines[p.at].number, "nested more than %d deep", maxPlainDepth)
	}
	n := &plainNode{line: p.lines[p.at].number}
	for p.indent() == indent {
		l := &p.lines[p.at]
		if item, ok := listItem(l.text); ok {
			if len(n.keys) > 0 {
				return nil, errorAt(p.dialect, l.number, "a list item among keys")
			}
			child, err := p.item(l, strings.TrimLeft(item, " "), depth)
			if err != nil {
				return nil, err
			}
			n.list = append(n.list, child)
			continue
		}
		if n.list != nil {
			return nil, errorAt(p.dialect, l.number, "found %q among list items; expected - ", clip(l.text))
		}
		if err := p.entry(n, l, depth); err != nil {
			return nil, err
		}
	}
	if p.indent() > indent {
		return nil, errorAt(p.dialect, p.lines[p.at].number, "found %q indented more than the lines before", clip(p.lines[p.at].text))
	}
	return n, nil
}

// item reads what follows a dash: a value on the lines below, a scalar, or the first entry of a mapping.
func (p *plainYAML) item(l *plainLine, rest string, depth int) (*plainNode, error) {
	if rest == "" {
		p.at++
		if p.at < len(p.lines) && p.lines[p.at].indent > l.indent {
			return p.value(p.lines[p.at].indent, depth+1)
		}
		return &plainNode{line: l.number}, nil
	}
	if key, _, ok := cutKey(rest); ok && key != "" || strings.HasPrefix(rest, "- ") {
		l.indent += len(l.text) - len(rest) // the mapping starts here, two columns in
		l.text = rest
		return p.value(l.indent, depth+1)
	}
	p.at++
	return p.scalar(l.number, rest)
}

// entry reads key: value.
func (p *plainYAML) entry(n *plainNode, l *plainLine, depth int) error {
	key, rest, ok := cutKey(l.text)
	if !ok {
		return errorAt(p.dialect, l.number, "found %q; expected key: value", clip(l.text))
	}
	if slices.Contains(n.keys, key) {
		return errorAt(p.dialect, l.number, "key %q is written twice", clip(key))
	}
	p.at++
	child := &plainNode{line: l.number}
	var err error
	switch next := p.at; {
	case rest != "":
		child, err = p.scalar(l.number, rest)
	case next < len(p.lines) && (p.lines[next].indent > l.indent || p.lines[next].indent == l.indent &&
		strings.HasPrefix(p.lines[next].text, "- ")):
		// The items of a list may stand under the key without indentation.
		if p.lines[next].indent > l.indent {
			child, err = p.value(p.lines[next].indent, depth+1)
		} else {
			child, err = p.flush(l.indent, depth+1)
		}
	}
	n.keys, n.vals = append(n.keys, key), append(n.vals, child)
	return err
}

// flush reads list items that stand as far left as the key above them.
func (p *plainYAML) flush(indent, depth int) (*plainNode, error) {
	n := &plainNode{line: p.lines[p.at].number}
	for p.at < len(p.lines) && p.lines[p.at].indent == indent {
		l := &p.lines[p.at]
		item, ok := strings.CutPrefix(l.text, "- ")
		if !ok {
			break
		}
		child, err := p.item(l, strings.TrimLeft(item, " "), depth)
		if err != nil {
			return nil, err
		}
		n.list = append(n.list, child)
	}
	return n, nil
}

// cutKey splits "key: value".
func cutKey(s string) (key, rest string, ok bool) {
	if s == "" || strings.ContainsAny(s[:1], `[{"'&*!|>%@`) {
		return "", "", false
	}
	key, rest, ok = strings.Cut(s, ":")
	if !ok || rest != "" && rest[0] != ' ' {
		return "", "", false
	}
	return strings.TrimSpace(key), strings.TrimSpace(rest), true
}

// scalar reads a plain or quoted text, or a list of them in brackets.
func (p *plainYAML) scalar(number int, s string) (*plainNode, error) {
	if inner, ok := strings.CutPrefix(s, "["); ok {
		inner, closed := strings.CutSuffix(inner, "]")
		if !closed {
			return nil, errorAt(p.dialect, number, "found %q; expected a list that ends with ] on the same line", clip(s))
		}
		return p.bracketed(number, inner)
	}
	if strings.ContainsAny(s[:1], `{&*!|>%@`) {
		return nil, errorAt(p.dialect, number, "found %q; expected plain text, a quoted text or a list in brackets", clip(s))
	}
	if quote := s[0]; quote == '"' || quote == '\'' {
		if len(s) < 2 || s[len(s)-1] != quote || strings.IndexByte(s[1:len(s)-1], quote) >= 0 || strings.Contains(s, `\`) {
			return nil, fmt.Errorf("%s: line %d: found %q; expected a text in one pair of quotes", p.dialect, number, clip(s))
		}
		s = s[1 : len(s)-1]
	}
	return &plainNode{line: number, text: s}, nil
}

// bracketed reads scalars between commas. An empty list differs from none, so its node holds a list of no items.
func (p *plainYAML) bracketed(number int, s string) (*plainNode, error) {
	n := &plainNode{line: number, list: []*plainNode{}}
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		child, err := p.scalar(number, part)
		if err != nil {
			return nil, err
		}
		n.list = append(n.list, child)
	}
	return n, nil
}
