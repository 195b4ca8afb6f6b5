package engine

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/floor"
	"github.com/weft-fabric/weft/model/topo/hostlist"
)

// editQuestion is one change that somebody made on the picture.
type editQuestion struct {
	File
	By   int    `json:"by"`   // hosts or, of a preset, units; negative to take some away
	Rail int    `json:"rail"` // rails more or fewer
	Rack string `json:"rack"` // this rack goes to the position To, and what stands there comes here
	To   string `json:"to"`
}

// edit changes the text as the picture was changed. Everything else of the text stays as it is.
func (j *job) edit(q editQuestion) (any, error) {
	var text string
	var err error
	switch {
	case q.Rack != "":
		text, err = j.move(q)
	case q.Rail != 0:
		text, err = j.rails(q)
	default:
		if text = grow(q.Text, q.By); text == "" {
			err = ungrown(q)
		}
	}
	if err != nil {
		return nil, err
	}
	if _, err := j.cluster(File{text}); err != nil {
		return nil, err
	}
	return map[string]string{"text": text}, nil
}

// ungrown says why a file cannot be made larger or smaller.
func ungrown(q editQuestion) error {
	if q.By < 0 && grow(q.Text, 1) != "" {
		return &Problem{Text: fmt.Sprintf("%d fewer would leave nothing; edit the text", -q.By)}
	}
	return &Problem{Text: "this file has no list of hosts such as \"n[0-31]\", and no preset with params, to make larger; edit its text"}
}

var (
	hostKey   = regexp.MustCompile(`(?m)^(\s+["']?)([A-Za-z][\w-]*)\[0*(\d+)-(\d+)\](["']?\s*:)`)
	paramPart = regexp.MustCompile(`(?m)^(params:\s*\{?\s*[\w-]+:\s*)(\d+)`)
)

// grow changes how many hosts a file has: the first hostlist under hosts, or the first parameter of a preset. It is empty if
// there is neither.
func grow(text string, by int) string {
	if at := strings.Index(text, "\nhosts:"); at >= 0 || strings.HasPrefix(text, "hosts:") {
		at = max(at, 0)
		m := hostKey.FindStringSubmatchIndex(text[at:])
		if m == nil {
			return ""
		}
		first, _ := strconv.Atoi(text[at+m[6] : at+m[7]])
		last, err := strconv.Atoi(text[at+m[8] : at+m[9]])
		if err != nil || last+by < first || last+by >= hostlist.MaxNames {
			return ""
		}
		return text[:at+m[8]] + strconv.Itoa(last+by) + text[at+m[9]:]
	}
	if m := paramPart.FindStringSubmatchIndex(text); m != nil {
		n, err := strconv.Atoi(text[m[4]:m[5]])
		if err != nil || n+by < 1 {
			return ""
		}
		return text[:m[4]] + strconv.Itoa(n+by) + text[m[5]:]
	}
	return ""
}

var (
	fabricLine = regexp.MustCompile(`(?m)^fabric:[ \t]*(#.*)?\n`)
	nicsLine   = regexp.MustCompile(`(?m)^([ \t]+nics:[ \t]*)["']?nic(\d+|\[0-\d+\])["']?`)
)

// rails changes how many NICs of a host have a rail of their own: the field nics of a rail fabric.
func (j *job) rails(q editQuestion) (string, error) {
	b, err := j.cluster(q.File)
	if err != nil {
		return "", err
	}
	now, most := railsOf(b.c.Graph)
	at := fabricLine.FindStringIndex(q.Text)
	want := now + q.Rail
	switch {
	case at == nil || !strings.Contains(q.Text, "family: rail") || now == 0:
		return "", &Problem{Text: "rails are of a fabric with 'family: rail', written as a block below 'fabric:'; edit the text"}
	case want < 1 || want > most:
		return "", fmt.Errorf("%s; a host of this cluster has %d compute NICs, and each rail needs one", plural(want, "rail"), most)
	}
	list := "nic0"
	if want > 1 {
		list = fmt.Sprintf(`"nic[0-%d]"`, want-1)
	}
	if m := nicsLine.FindStringSubmatchIndex(q.Text[at[1]:]); m != nil {
		return q.Text[:at[1]+m[3]] + list + q.Text[at[1]+m[1]:], nil
	}
	return q.Text[:at[1]] + "  nics: " + list + "\n" + q.Text[at[1]:], nil
}

// railsOf is how many rails a graph has, and how many its hosts have NICs for.
func railsOf(g *topo.Graph) (now, most int) {
	for i := range g.Nodes {
		n := &g.Nodes[i]
		if n.Kind == topo.Switch && n.Tier == 1 {
			now = max(now, int(n.Rail)+1, 1)
		}
		if n.Kind == topo.NIC && n.Host == 0 && strings.HasPrefix(n.Name, "nic") {
			most++
		}
	}
	return now, most
}

// spot is where a device stands by hand.
type spot struct {
	rack string
	unit int
}

// move puts a rack at another position of the floor. What stands there goes where the rack was. Racks that nobody placed are
// numbered one after another, so those that would move with the change are placed, too.
func (j *job) move(q editQuestion) (string, error) {
	b, err := j.cluster(q.File)
	if err != nil {
		return "", err
	}
	plan, err := b.floor()
	if err != nil {
		return "", err
	}
	want, moved := map[string]string{}, false
	for _, d := range plan.Devices {
		want[d.Name] = plan.Racks[d.Rack].Name
		switch want[d.Name] {
		case q.Rack:
			want[d.Name], moved = q.To, true
		case q.To:
			want[d.Name] = q.Rack
		}
	}
	if !moved {
		return "", fmt.Errorf("nothing stands in rack %q; name a rack of the floor, such as %s", q.Rack, plan.Racks[0].Name)
	}
	spots, row := map[string]spot{}, plan.Intent.Row
	for _, p := range plan.Intent.Places {
		for i, name := range p.Names {
			spots[name] = spot{rack: p.Rack}
			if p.Unit > 0 && i == 0 {
				spots[name] = spot{p.Rack, p.Unit}
			}
		}
	}
	for again := true; again; {
		again = false
		for _, d := range plan.Devices {
			if plan.Racks[d.Rack].Name != want[d.Name] {
				again = again || spots[d.Name].rack != want[d.Name]
				spots[d.Name] = spot{rack: want[d.Name]}
			}
		}
		text, err := placed(q.Text, row, spots)
		if err != nil || !again {
			return text, err
		}
		if b, err = j.cluster(File{text}); err != nil {
			return "", err
		}
		plan = b.c.Floor
	}
	return "", nil
}

var (
	floorLine = regexp.MustCompile(`(?m)^floor:[ \t]*(#.*)?\n`)
	placeLine = regexp.MustCompile(`(?m)^([ \t]+)place:.*\n`)
)

// placed writes a floor's places into a text: a block below 'place:', a line for each rack.
func placed(text string, row int, spots map[string]spot) (string, error) {
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	m := floorLine.FindStringIndex(text)
	if m == nil {
		if strings.Contains(text, "\nfloor:") {
			return "", &Problem{Text: "write 'floor:' as a block, with its fields on lines of their own, to move racks on the picture"}
		}
		text += "\nfloor:\n"
		if row != floor.Default().Row {
			text += fmt.Sprintf("  row: %d\n", row)
		}
		m = []int{0, len(text)}
	}
	head := text[:m[1]]
	body, rest := cutBlock(text[m[1]:], " ", "\t")
	indent := "  "
	if p := placeLine.FindStringSubmatchIndex(body); p != nil {
		indent = body[p[2]:p[3]]
		_, tail := cutBlock(body[p[1]:], indent+" ")
		body = body[:p[0]] + tail
	}
	return head + indent + "place:\n" + places(indent+"  ", spots) + body + rest, nil
}

// cutBlock cuts lines off that begin with one of some indents, or are empty, and gives the rest.
func cutBlock(text string, indents ...string) (block, rest string) {
	end := 0
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) != "" && !slices.ContainsFunc(indents, func(in string) bool { return strings.HasPrefix(line, in) }) {
			break
		}
		end += len(line)
	}
	return text[:end], text[end:]
}

func places(indent string, spots map[string]spot) string {
	groups := map[spot][]string{}
	natural := func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b)) }
	for _, name := range slices.SortedFunc(maps.Keys(spots), natural) {
		groups[spots[name]] = append(groups[spots[name]], name)
	}
	out := ""
	for _, s := range slices.SortedFunc(maps.Keys(groups), func(a, b spot) int { return strings.Compare(a.String(), b.String()) }) {
		out += fmt.Sprintf("%s%q: %q\n", indent, hostlist.Compress(groups[s]), s)
	}
	return out
}

func (s spot) String() string {
	if s.unit > 0 {
		return fmt.Sprintf("%s:U%d", s.rack, s.unit)
	}
	return s.rack
}
