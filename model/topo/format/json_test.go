package format

import (
	"bytes"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/build"
	"github.com/weft-fabric/weft/model/topo/catalog"
)

func TestJSONLosesNothing(t *testing.T) {
	c := catalog.Default()
	for _, preset := range bounded.First(7, "dgx-a100", "gb200-nvl72", "fat-tree", "rail", "dragonfly", "torus", "superpod-h100",
		"alibaba-hpn") {
		t.Run(preset, func(t *testing.T) {
			var params map[string]int
			if preset == "fat-tree" || preset == "rail" {
				params = map[string]int{"hosts": 16}
			}
			b, err := build.BuildPreset(c, preset, params)
			if err != nil {
				t.Skip(err)
			}
			var out bytes.Buffer
			if err := encodeJSON(&out, b.Graph); err != nil {
				t.Fatal(err)
			}
			got, err := decodeJSON("x", out.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			if diff := topo.Diff(b.Graph, got); len(diff) > 0 || got.Name != b.Graph.Name {
				t.Errorf("%s\n%s", got.Name, strings.Join(diff, "\n"))
			}
		})
	}
	imported := again(t, "nccl-xml", []byte(dump))
	var out bytes.Buffer
	if err := encodeJSON(&out, imported); err != nil {
		t.Fatal(err)
	}
	if d, ok := Detect(out.Bytes()); !ok || d.Name != "json" {
		t.Errorf("detected as %q", d.Name)
	}
	got, err := decodeJSON("x", out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if diff := topo.Diff(imported, got); len(diff) > 0 {
		t.Error(strings.Join(diff, "\n"))
	}
}

func TestJSONRefusals(t *testing.T) {
	const head = `{"format":"weft-topology-1","name":"x",` + "\n"
	for _, c := range []struct{ name, data, want string }{
		{"not JSON", "hello", "json: line 1: invalid character"},
		{"another format", `{"format":"other","nodes":[],"links":[]}`, `line 1: format is "other"; expected "weft-topology-1"`},
		{"an unknown key", head + `"nodes":[{"name":"a","kind":"gpu","colour":"red"}]}`, `line 2: json: unknown field "colour"`},
		{"a wrong type", head + `"nodes":[{"name":7}]}`, "line 2: nodes.name holds a number; expected string"},
		{"an unknown kind", head + `"nodes":[{"name":"a","kind":"toaster"}],"links":[]}`, `nodes[0]: unknown node kind "toaster"; known: gpu`},
		{"a link to nowhere", head + `"nodes":[],"links":[{"a":0,"b":1,"class":0}]}`, "links[0]: joins nodes 0 and 1 of 0"},
		{"no such class", head + `"nodes":[{"name":"a","kind":"switch"},{"name":"b","kind":"switch"}],"links":[{"a":0,"b":1,"class":3}]}`,
			"links[0]: class is 3; there are 0 classes"},
		{"no such host", head + `"nodes":[{"name":"a","kind":"gpu","host":2}],"links":[]}`, "nodes[0]: host is 2; there are 0 hosts"},
		{"more behind", head + `"nodes":[],"links":[]} {}`, "line 2: more follows"},
		{"cut off", head, "unexpected EOF"},
		{"a name twice", head + `"nodes":[{"name":"a","kind":"switch"},{"name":"a","kind":"switch"}],"links":[]}`, `two nodes are named "a"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := decodeJSON("x", []byte(c.data))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestDOTNamesEveryNode(t *testing.T) {
	g, err := build.Host(catalog.Default(), "dgx-a100", "n0")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := encodeDOT(&out, g); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	for _, n := range g.Nodes {
		if !strings.Contains(text, `label="`+n.Name+`"`) {
			t.Errorf("%s is not in the picture", n.Name)
		}
	}
	if strings.Count(text, " -- ") != len(g.Links) || !strings.HasPrefix(text, "graph \"") || !strings.HasSuffix(text, "}\n") {
		t.Errorf("%d of %d links", strings.Count(text, " -- "), len(g.Links))
	}
}
