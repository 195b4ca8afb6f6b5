package format

import (
	"bytes"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/build"
	"github.com/weft-fabric/weft/model/topo/catalog"
)

func TestSlurmFiles(t *testing.T) {
	tree := again(t, "slurm",
		[]byte("# a tree\nswitchname=s0 nodes=tux[0-3,7] LinkSpeed=900\nSwitchName=s1 \\\n  Nodes=tux[4-6]\nSwitchName=s4 Switches=s[0-1]  LinkSpeed=1800 # twice\nSwitchName=s5 Switches=s[0-1]\n"))
	if len(tree.Hosts) != 8 || tree.Count(topo.Switch) != 4 || len(tree.Links) != 12 || tree.Fabrics[0].Family != topo.Clos {
		t.Errorf("got %d hosts, %d switches, %d links, %s", len(tree.Hosts), tree.Count(topo.Switch), len(tree.Links), tree.Fabrics[0].Family)
	}
	block := again(t, "slurm", []byte("BlockName=b1 Nodes=n[1-4]\nBlockName=b2 Nodes=n[5-8]\nBlockSizes=4,8\n"))
	if len(block.Hosts) != 8 || block.Count(topo.Switch) != 2 {
		t.Errorf("got %d hosts, %d blocks", len(block.Hosts), block.Count(topo.Switch))
	}
}

// slurmOf encodes a preset and reads it back.
func slurmOf(t *testing.T, preset string, params map[string]int) (string, *topo.Graph) {
	t.Helper()
	b, err := build.BuildPreset(catalog.Default(), preset, params)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := encodeSlurm(&out, b.Graph); err != nil {
		t.Fatal(err)
	}
	g, err := decodeSlurm("x", out.Bytes())
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if len(g.Hosts) != len(b.Graph.Hosts) {
		t.Errorf("%s: %d of %d hosts are in topology.conf\n%s", preset, len(g.Hosts), len(b.Graph.Hosts), out.String())
	}
	// Slurm wants every node at one leaf, and every two joined.
	for h := range g.Hosts {
		if g.Hosts[h].Count != 1 {
			t.Errorf("%s is at %d leaves", g.Hosts[h].Name, g.Hosts[h].Count)
		}
	}
	return out.String(), g
}

func TestSlurmOfBuiltClusters(t *testing.T) {
	text, _ := slurmOf(t, "fat-tree", map[string]int{"hosts": 16})
	if !strings.Contains(text, "SwitchName=leaf0 Nodes=n[0-3]\n") || !strings.Contains(text, " Switches=leaf[0-3]\n") {
		t.Errorf("got\n%s", text)
	}
	text, g := slurmOf(t, "rail", map[string]int{"hosts": 64})
	if !strings.Contains(text, "stands for leaf[0-7]") || g.Count(topo.Switch) != 3 {
		t.Errorf("two pods of eight rails are %d switches:\n%s", g.Count(topo.Switch), text)
	}
	text, g = slurmOf(t, "torus", map[string]int{"x": 3, "y": 3, "z": 1})
	if g.Count(topo.Switch) != 10 || !strings.HasSuffix(text, "SwitchName=fabric Switches=sw[0-8]\n") {
		t.Errorf("got\n%s", text)
	}
}

func TestSlurmBlocksOfNVLinkDomains(t *testing.T) {
	g, err := build.NVL72(catalog.Default(), "gb200", "rack")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := encodeSlurm(&out, g); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "topology/block") || !strings.Contains(out.String(), "\nBlockName=block0 Nodes=") ||
		!strings.HasSuffix(out.String(), "BlockSizes=18\n") {
		t.Errorf("got\n%s", out.String())
	}
	again(t, "slurm", out.Bytes())
}

func TestSlurmRefusals(t *testing.T) {
	for _, c := range []struct{ name, data, want string }{
		{"nothing", "# empty\n", "line 1: no SwitchName= or BlockName= found"},
		{"a ring", "SwitchName=a Switches=b\nSwitchName=b Switches=a\n", "line 1: switch \"a\" is part of a ring"},
		{"below itself", "SwitchName=a Switches=a\n", "line 1: switch \"a\" is below itself"},
		{"no such switch", "SwitchName=a Switches=b[0-1]\n", "line 1: switch \"a\" has switch \"b0\" below it, which no line defines"},
		{"twice", "SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2\n", "line 2: \"a\" is defined twice, first in line 1"},
		{"mixed", "SwitchName=a Nodes=n1\nBlockName=b Nodes=n2\n", "line 2: \"b\" mixes blocks with switches"},
		{"a ring topology", "RingName=r Nodes=n1\n", "line 1: found \"RingName=r\"; expected SwitchName= or BlockName= first"},
		{"too many", "SwitchName=a Nodes=n[0-999999]\n", "line 1: more than 131072 names"},
		{"a bad list", "SwitchName=a Nodes=n[0-\n", "line 1: "},
		{"no value", "SwitchName=\n", "line 1: found \"SwitchName=\"; expected"},
		{"node and switch", "SwitchName=a Nodes=a\n", "\"a\" is both a node and a switch"},
		{"another text", "hello\n", "line 1: found \"hello\"; expected SwitchName="},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := decodeSlurm("x", []byte(c.data))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// topologyYAML is what Slurm 25.05 and later read beside topology.conf.
const topologyYAML = `---
# two views of one cluster
- topology: nvl
  cluster_default: false
  block:
    block_sizes: [4, 8]
    blocks:
      - block: b0
        nodes: n[0-3]
      - block: b1
        nodes: "n[4-7]"
- topology: fabric
  cluster_default: true
  tree:
    switches:
    - switch: spine
      children: pod[0-1]
    - switch: pod0
      nodes: n[0-3]   # the first
    - switch: pod1
      nodes: n[4-7]
`

// TestSlurmYAML: the cluster's default topology is read, and reads as the same
// graph as its topology.conf.
func TestSlurmYAML(t *testing.T) {
	if d, ok := Detect([]byte(topologyYAML)); !ok || d.Name != "slurm" {
		t.Fatalf("told to be %q", d.Name)
	}
	tree := again(t, "slurm", []byte(topologyYAML))
	conf, err := decodeSlurm("x", []byte("SwitchName=spine Switches=pod[0-1]\nSwitchName=pod0 Nodes=n[0-3]\nSwitchName=pod1 Nodes=n[4-7]\n"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := topo.Diff(tree, conf); len(diff) > 0 {
		t.Error(strings.Join(diff, "\n"))
	}
	block := again(t, "slurm", []byte(strings.Replace(topologyYAML, "cluster_default: true", "cluster_default: false", 1)))
	if block.Count(topo.Switch) != 2 || len(block.Hosts) != 8 {
		t.Errorf("%d blocks, %d hosts", block.Count(topo.Switch), len(block.Hosts))
	}
}

// TestSlurmYAMLRefused: what Slurm would pass over in silence is said with its line.
func TestSlurmYAMLRefused(t *testing.T) {
	for text, want := range map[string]string{
		"- topology: x\n  tree:\n    switchs:\n      - switch: a\n":                                           `line 4: unknown key "switchs"; known: switches`,
		"- topology: x\n  flat: true\n":                                                                       "neither tree nor block",
		"- topology: x\n  tree:\n    switches:\n      - nodes: n0\n":                                          "line 4: a switch without a name",
		"- topology: x\n  tree:\n    switches:\n      - switch: a\n      - switch: a\n":                       `line 5: "a" is defined twice, first in line 4`,
		"- topology: x\n  tree:\n    switches:\n      - switch: a\n        children: b\n":                     `which no line defines`,
		"- topology: x\n  tree:\n    switches:\n      - switch: a\n       nodes: n0\n":                        "line 5",
		"- topology: &t x\n  tree: {}\n":                                                                      "expected plain text",
		"- topology: x\n\ttree: y\n":                                                                          "tab",
		"- topology: x\n---\n- topology: y\n":                                                                 "second document",
		"- topology: x\n  tree:\n    switches:\n      - switch: a\n        nodes: n[3-1]\n":                   "line 5",
		"- topology: x\n  tree:\n    switches:\n      - switch: a\n        nodes: n[0-99999999]\n":            "line 5",
		"- topology: x\n  topology: y\n":                                                                      "written twice",
		"- topology: x\n  block:\n    block_sizes: [4\n    blocks:\n":                                         "ends with ]",
		"- topology: x\n  block:\n    block_sizes: [4 8]\n    blocks:\n      - block: b\n        nodes: n0\n": `line 3: block size "4 8"`,
	} {
		g, err := decodeSlurm("x", []byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "slurm: line ") {
			t.Errorf("%q: %v, %v; want %q", text, g, err, want)
		}
	}
}
