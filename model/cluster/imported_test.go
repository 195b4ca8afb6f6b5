package cluster

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/format"
)

const designed = `name: designed
hosts: {"n[0-31]": {kind: dgx-h100, rack: 4}}
fabric: {family: rail, switch: QM9700, pod: 16}
`

// discovered writes a design as ibnetdiscover would print it.
func discovered(t *testing.T, text string) (*topo.Graph, string) {
	t.Helper()
	c, err := Parse("designed.yaml", []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	d, err := format.Find("ibnetdiscover")
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := d.Encode(&b, c.Graph); err != nil {
		t.Fatal(err)
	}
	return c.Graph, b.String()
}

// importing parses a file that imports another.
func importing(text string, files map[string]string) (*Cluster, error) {
	return Parse("ours.yaml", []byte(text), func(path string) ([]byte, error) {
		if s, ok := files[path]; ok {
			return []byte(s), nil
		}
		return nil, fmt.Errorf("no file %q", path)
	})
}

// TestKindsOnAnImportedFabric: a fabric as it was found, with kinds put onto its hosts, is the cluster that was designed.
func TestKindsOnAnImportedFabric(t *testing.T) {
	want, found := discovered(t, designed)
	other := found
	for i := range 8 { // as real adapters are called
		other = strings.ReplaceAll(other, fmt.Sprintf(" nic%d\"", i), fmt.Sprintf(" mlx5_%d\"", i))
	}
	for name, text := range map[string]string{"our names": found, "other names": other} {
		t.Run(name, func(t *testing.T) {
			c, err := importing("import: {file: fabric.txt, switch: QM9700}\nhosts: {\"n[0-31]\": {kind: dgx-h100, rack: 4}}\n",
				map[string]string{"fabric.txt": text})
			if err != nil {
				t.Fatal(err)
			}
			got := c.Graph
			if n := got.Count(topo.GPU); n != 256 {
				t.Errorf("%d GPUs, want 256", n)
			}
			if diff := topo.Diff(topo.FabricOnly(got), topo.FabricOnly(want)); len(diff) > 0 {
				t.Errorf("the fabric differs: %v", diff[:min(len(diff), 5)])
			}
			got.Each(topo.NIC, func(id topo.NodeID, n *topo.Node) {
				if there, err := want.Lookup(got.NodeName(id)); err != nil || want.Nodes[there].Rail != n.Rail && n.Fabric >= 0 ||
					want.Nodes[there].Model != n.Model {
					t.Errorf("%s is %+v, designed %+v, %v", got.NodeName(id), n, want.Nodes[max(there, 0)], err)
				}
			})
			a, _ := got.Lookup("n0:gpu3")
			b, _ := got.Lookup("n31:gpu3")
			way, err := got.Route(topo.Flow{From: a, To: b}, nil)
			if err != nil || len(way) == 0 {
				t.Errorf("no way from GPU to GPU: %v", err)
			}
			if len(c.Notes) > 0 {
				t.Errorf("notes: %v", c.Notes)
			}
		})
	}
}

// TestPartOfAnImportedFabric: hosts without a kind stay as they were found, and the cluster says so.
func TestPartOfAnImportedFabric(t *testing.T) {
	_, found := discovered(t, designed)
	c, err := importing("import: fabric.txt\nhosts: {\"n[0-7]\": dgx-h100}\n", map[string]string{"fabric.txt": found})
	if err != nil {
		t.Fatal(err)
	}
	if c.Graph.Count(topo.GPU) != 64 || len(c.Graph.Hosts) != 32 || len(c.Notes) != 1 || !strings.Contains(c.Notes[0], "24 hosts") {
		t.Errorf("%d GPUs, %d hosts, %v", c.Graph.Count(topo.GPU), len(c.Graph.Hosts), c.Notes)
	}
}

func TestWrongImports(t *testing.T) {
	_, found := discovered(t, designed)
	files := map[string]string{"fabric.txt": found,
		"topology.conf": "SwitchName=s0 Nodes=n[0-3]\nSwitchName=s1 Nodes=n[4-7]\nSwitchName=top Switches=s[0-1]\n", "letter.txt": "dear all\n"}
	for _, x := range []struct{ name, text, want string }{
		{"no file", "import: none.txt\nhosts: {n0: dgx-h100}\n", `ours.yaml:1: import: no file "none.txt"`},
		{"no topology", "import: letter.txt\nhosts: {n0: dgx-h100}\n", "ours.yaml:1: import: letter.txt is in no dialect"},
		{"dialect", "import: {file: fabric.txt, from: ibnetdisover}\nhosts: {n0: dgx-h100}\n", `did you mean "ibnetdiscover"?`},
		{"rates not stated", "import: topology.conf\nhosts: {n0: dgx-h100}\n", "link: ndr}"},
		{"unknown link", "import: {file: topology.conf, link: nrd}\nhosts: {n0: dgx-h100}\n", `unknown link "nrd"`},
		{"unknown switch", "import: {file: fabric.txt, switch: QM97}\nhosts: {n0: dgx-h100}\n", `unknown switch "QM97"`},
		{"stranger", "import: fabric.txt\nhosts:\n  \"n[0-3]\": dgx-h100\n  m4: dgx-h100\n",
			`ours.yaml:4: hosts: "m4" is not in the imported fabric; did you mean "n4"?`},
		{"too few NICs", "import: fabric.txt\nhosts: {\"n[0-3]\": dgx-1v}\n", "8 NICs in the imported fabric and kind dgx-1v has"},
		{"beside a fabric", "import: fabric.txt\nhosts: {n0: dgx-h100}\nfabric: {family: rail, switch: QM9700}\n", "the whole network"},
		{"beside a preset", "import: fabric.txt\npreset: superpod-h100\n", "a preset brings its own"},
		{"no file named", "import: {link: ndr}\nhosts: {n0: dgx-h100}\n", "import.file: missing"},
		{"unknown field", "import: {file: fabric.txt, links: ndr}\nhosts: {n0: dgx-h100}\n", `did you mean "link"?`},
	} {
		t.Run(x.name, func(t *testing.T) {
			_, err := importing(x.text, files)
			if err == nil || !strings.Contains(err.Error(), x.want) {
				t.Errorf("%v\nwant %q", err, x.want)
			}
		})
	}
}
