package prove_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/fabric/network/emit"
	"github.com/weft-fabric/weft/fabric/network/prove"
)

// TestSlurmMistakes plants mistakes into Slurm's files of a tree.
func TestSlurmMistakes(t *testing.T) {
	const conf, nodes = "slurm/etc/slurm/topology.conf", "slurm/etc/slurm/weft-nodes.conf"
	tree := leavesAndSpines
	for _, c := range []struct {
		name, text, file, from, to, property, want string
	}{
		{"untouched tree", tree, conf, "", "", "", ""},
		{"a host at the wrong switch", tree, conf, "n[0-3]\n", "n[0-2]\n", "Slurm has every host once", "n3 is at no switch"},
		{"hosts exchanged", tree, conf, "n[0-3]", "n[0-2,4]", "Slurm's switches are what cables make", "cables of that level do not join them"},
		{"a host twice", tree, conf, "n[0-3]", "n[0-4]", "Slurm has every host once", "n4 is at leaf"},
		{"a host that nobody knows", tree, conf, "n[0-3]", "n[0-3],x9", "Slurm has every host once", "no NodeName line does"},
		{"a switch that no line is about", tree, conf, "Switches=leaf", "Switches=loaf9,leaf", "Slurm's files are one", "loaf9 below it"},
		{"a key that nobody knows", tree, conf, "SwitchName=leaf0", "SwitchName=leaf0 Speed=9", "Slurm's files are one", "Speed=9"},
		{"the other plug-in", tree, nodes, "topology/tree", "topology/block", "Slurm's files are one",
			"is no line for TopologyPlugin=topology/block"},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := slurmFiles(t, c.text)
			if !strings.Contains(string(files[c.file]), c.from) {
				t.Fatalf("no %q in\n%s", c.from, files[c.file])
			}
			files[c.file] = []byte(strings.Replace(string(files[c.file]), c.from, c.to, 1))
			judgeSlurm(t, files, c.property, c.want)
		})
	}
}

func slurmFiles(t *testing.T, text string) map[string][]byte {
	t.Helper()
	list, err := emit.Make(planOf(t, "test.yaml", text), []string{"cables", "slurm"})
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, f := range list {
		files[f.Path] = f.Data
	}
	return files
}

// judgeSlurm wants one property refuted with some words, or none.
func judgeSlurm(t *testing.T, files map[string][]byte, property, want string) {
	t.Helper()
	n, err := prove.Load(files)
	if err != nil {
		t.Fatal(err)
	}
	list := n.Slurm.Prove()
	i := slices.IndexFunc(list, func(v prove.Verdict) bool { return v.Property == property })
	if property == "" {
		if i = slices.IndexFunc(list, func(v prove.Verdict) bool { return !v.Holds }); i >= 0 {
			t.Errorf("%+v", list[i])
		}
		return
	}
	if i < 0 || list[i].Holds || !strings.Contains(fmt.Sprint(list[i].Counter), want) {
		t.Errorf("want %q: %+v", want, list)
	}
}

// TestSlurmYAML: topology.yaml says the same in another language, and counts where both are there.
func TestSlurmYAML(t *testing.T) {
	files := slurmFiles(t, leavesAndSpines)
	const file = "slurm/etc/slurm/topology.yaml"
	yaml := "- topology: main\n  cluster_default: true\n  tree:\n    switches:\n"
	for line := range strings.Lines(string(files["slurm/etc/slurm/topology.conf"])) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "SwitchName=") {
			continue
		}
		for _, w := range strings.Fields(line) {
			key, value, _ := strings.Cut(w, "=")
			words := map[string]string{"SwitchName": "      - switch: ", "Nodes": "        nodes: ", "Switches": "        children: "}
			yaml += words[key] + value + "\n"
		}
	}
	files[file] = []byte(yaml)
	judgeSlurm(t, files, "", "")
	both := maps.Clone(files)
	both[file] = []byte(strings.Replace(yaml, "n[0-3]", "n[0-2,4]", 1))
	judgeSlurm(t, both, "Slurm's switches are what cables make", "do not join them")
	block := maps.Clone(files)
	block[file] = []byte("- topology: b\n  cluster_default: true\n  block:\n    block_sizes: [4, 8, 12]\n    blocks:\n" +
		"      - {block: b0, nodes: 'n[0-3]'}\n      - {block: b1, nodes: 'n[4-7]'}\n      - {block: b2, nodes: 'n[8-11]'}\n")
	judgeSlurm(t, block, "Slurm's block sizes double", "12, which is not 4 doubled")
}
