package emit

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/model/cluster"
)

// TestSONiCByItsModels has yanglint judge every config_db.json by SONiC's own YANG models. The models are SONiC's:
// SONIC_YANG names a folder with those of src/sonic-yang-models in sonic-net/sonic-buildimage, its templates
// rendered with yang_model_type=py.
func TestSONiCByItsModels(t *testing.T) {
	dir := os.Getenv("SONIC_YANG")
	if dir == "" {
		t.Skip("SONIC_YANG names no folder with SONiC's YANG models")
	}
	if _, err := exec.LookPath("yanglint"); err != nil {
		t.Skipf("%v; Debian has it in libyang-tools", err)
	}
	models, err := filepath.Glob(filepath.Join(dir, "*.yang"))
	if err != nil || len(models) < 100 {
		t.Fatalf("%s has %d models, %v", dir, len(models), err)
	}
	y := newYang(t, models)
	judge := func(db map[string]map[string]map[string]any) string {
		file := filepath.Join(t.TempDir(), "db.xml")
		text, err := y.xml(db)
		if err != nil {
			return err.Error()
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		out, _ := bounded.Command(t, "yanglint", append(append([]string{"-p", dir, "-t", "config", "-i"}, models...), file)...).CombinedOutput()
		var errs []string
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, "libyang err") || strings.Contains(line, "YANGLINT[E]") {
				errs = append(errs, strings.TrimSpace(line))
			}
		}
		return strings.Join(errs, "\n")
	}
	decode := func(data []byte) map[string]map[string]map[string]any {
		var db map[string]map[string]map[string]any
		if err := json.Unmarshal(data, &db); err != nil {
			t.Fatal(err)
		}
		return db
	}
	var first []byte
	const text = "name: c\nhosts: {\"n[0-3]\": hgx-h100}\nfabric: {family: rail, switch: SN5600, link: 400gbe}\nnetwork: {%srender: {leaf: sonic, spine: sonic}}\n"
	for name, p := range map[string]*network.Plan{
		"rails":  planOf(t, fmt.Sprintf(text, "")),
		"vlans":  planOf(t, fmt.Sprintf(text, "backend: {links: leaf}, ")),
		"vrfs":   planOf(t, fmt.Sprintf(text, "tenants: {red: {hosts: n0}, blue: {hosts: n1}}, ")),
		"lossy":  planOf(t, fmt.Sprintf(text, "roce: {mode: lossy}, ")),
		"planes": example(t, "hpn"),
	} {
		files := SONiC(p.Rendered("sonic"))
		done := map[string]bool{}
		for _, f := range files {
			kind := strings.TrimRight(strings.Split(f.Path, "/")[1], "0123456789ab") // one leaf and one spine of a design
			if !strings.HasSuffix(f.Path, "config_db.json") || done[kind] {
				continue
			}
			done[kind] = true
			if got := judge(decode(f.Data)); got != "" {
				t.Errorf("%s, %s:\n%s", name, f.Path, got)
			}
			if name == "rails" {
				first = f.Data
			}
		}
		if len(done) == 0 {
			t.Errorf("%s has no config_db.json", name)
		}
	}
	// The judge says no, too.
	for what, spoil := range map[string]func(db map[string]map[string]map[string]any){
		"a port that is not there": func(db map[string]map[string]map[string]any) {
			db["INTERFACE"]["Ethernet1000"] = map[string]any{}
		},
		"an MTU that is not a number": func(db map[string]map[string]map[string]any) {
			for _, row := range db["PORT"] {
				row["mtu"] = "jumbo"
			}
		},
		"an unknown field": func(db map[string]map[string]map[string]any) {
			db["DEVICE_METADATA"]["localhost"]["colour"] = "blue"
		},
		"an unknown table": func(db map[string]map[string]map[string]any) {
			db["PORTS"] = map[string]map[string]any{"x": {}}
		},
	} {
		db := decode(first)
		spoil(db)
		if judge(db) == "" {
			t.Errorf("%s passes", what)
		}
	}
}

// planOf makes the plan of a cluster file.
func planOf(t *testing.T, text string) *network.Plan {
	t.Helper()
	c, err := cluster.Parse("c.yaml", []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	return makePlan(t, "c.yaml", c)
}

// statement is one of a YANG module.
type statement struct {
	word, arg string
	body      []statement
}

// yangModels are the tables that the modules know.
type yangModels struct {
	tables    map[string]yangTable
	groupings map[string][]statement
}

type yangTable struct {
	space, top string
	body       []statement
}

var (
	yangComment = regexp.MustCompile(`(?s)/\*.*?\*/`)
	yangLine    = regexp.MustCompile(`(?m)//[^\n"]*$`)
	yangToken   = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|'[^']*'|[{};]|[^\s{};]+`)
)

func newYang(t *testing.T, files []string) *yangModels {
	t.Helper()
	y := &yangModels{tables: map[string]yangTable{}, groupings: map[string][]statement{}}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		text := yangLine.ReplaceAllString(yangComment.ReplaceAllString(string(data), ""), "")
		tokens := yangToken.FindAllString(text, -1)
		tree, _ := parseYang(tokens, 0)
		if len(tree) == 0 {
			t.Fatalf("%s holds no module", f)
		}
		space := ""
		for _, s := range tree[0].body {
			switch s.word {
			case "namespace":
				space = s.arg
			case "grouping":
				y.groupings[s.arg] = s.body
			}
		}
		for _, s := range tree[0].body {
			for _, inner := range s.body {
				if s.word == "container" && inner.word == "container" {
					y.tables[inner.arg] = yangTable{space, s.arg, inner.body}
				}
			}
		}
	}
	return y
}

func parseYang(t []string, i int) (out []statement, end int) {
	for i < len(t) && t[i] != "}" {
		s := statement{word: t[i]}
		for i++; i < len(t) && t[i] != "{" && t[i] != ";"; i++ {
			if t[i] != "+" {
				s.arg = strings.TrimSpace(s.arg + " " + strings.Trim(t[i], `"'`))
			}
		}
		if i < len(t) && t[i] == "{" {
			s.body, i = parseYang(t, i+1)
		}
		i++
		out = append(out, s)
	}
	return out, i
}

// inside lists what a body holds, groupings and choices unfolded.
func (y *yangModels) inside(body []statement) (out []statement) {
	for _, s := range body {
		switch s.word {
		case "uses":
			name := s.arg[strings.LastIndex(s.arg, ":")+1:]
			out = append(out, y.inside(y.groupings[name])...)
		case "choice", "case":
			out = append(out, y.inside(s.body)...)
		default:
			out = append(out, s)
		}
	}
	return out
}

func leaf(name string, v any) string {
	var b bytes.Buffer
	list, ok := v.([]any)
	if !ok {
		list = []any{v}
	}
	for _, x := range list {
		fmt.Fprintf(&b, "<%s>", name)
		_ = xml.EscapeText(&b, []byte(fmt.Sprint(x)))
		fmt.Fprintf(&b, "</%s>", name)
	}
	return b.String()
}

func leaves(row map[string]any) (out string) {
	for _, name := range slices.Sorted(maps.Keys(row)) {
		out += leaf(name, row[name])
	}
	return out
}

// xml writes a config_db as an instance of the models: keys cut at |, rows of maps as lists of two leaves.
func (y *yangModels) xml(db map[string]map[string]map[string]any) (string, error) {
	byTop := map[string]string{}
	for _, table := range slices.Sorted(maps.Keys(db)) {
		m, ok := y.tables[table]
		if !ok {
			return "", fmt.Errorf("SONiC has no table %s", table)
		}
		out := ""
		for _, key := range slices.Sorted(maps.Keys(db[table])) {
			row, parts := db[table][key], strings.Split(key, "|")
			found := false
			for _, s := range y.inside(m.body) {
				if s.word == "container" && s.arg == key {
					out += fmt.Sprintf("<%s>%s</%s>", key, leaves(row), key)
					found = true
					break
				}
				if s.word != "list" {
					continue
				}
				var keys []string
				var inner *statement
				for _, x := range y.inside(s.body) {
					if x.word == "key" {
						keys = strings.Fields(x.arg)
					}
					if x.word == "list" {
						inner = &x
					}
				}
				if len(keys) != len(parts) {
					continue
				}
				found = true
				out += "<" + s.arg + ">"
				for i := range keys {
					out += leaf(keys[i], parts[i])
				}
				if inner == nil {
					out += leaves(row)
				} else {
					var names []string
					for _, x := range y.inside(inner.body) {
						if x.word == "leaf" {
							names = append(names, x.arg)
						}
					}
					for _, k := range slices.Sorted(maps.Keys(row)) {
						out += fmt.Sprintf("<%s>%s%s</%s>", inner.arg, leaf(names[0], k), leaf(names[1], row[k]), inner.arg)
					}
				}
				out += "</" + s.arg + ">"
				break
			}
			if !found {
				return "", fmt.Errorf("SONiC's table %s has no list with %d keys for %s", table, len(parts), key)
			}
		}
		byTop[m.top+"\x00"+m.space] += fmt.Sprintf("<%s>%s</%s>", table, out, table)
	}
	all := ""
	for _, k := range slices.Sorted(maps.Keys(byTop)) {
		top, space, _ := strings.Cut(k, "\x00")
		all += fmt.Sprintf("<%s xmlns=%q>%s</%s>\n", top, space, byTop[k], top)
	}
	return all, nil
}
