package draw

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/format"
)

// presets builds every preset, and some again in other sizes.
func presets(t testing.TB) map[string]*topo.Graph {
	list := map[string]*topo.Graph{}
	for _, p := range cluster.Presets() {
		c, err := cluster.Preset(p.Name, nil)
		if err != nil {
			t.Errorf("preset %q: %v", p.Name, err)
			continue
		}
		list["preset-"+p.Name] = c.Graph
	}
	for name, x := range map[string]struct {
		preset string
		params map[string]int
	}{
		"superpod-4su":  {"superpod-h100", map[string]int{"su": 4}},
		"superpod-16su": {"superpod-h100", map[string]int{"su": 16}},
		"dragonfly-33g": {"dragonfly", map[string]int{"groups": 33}},
		"dragonfly-60g": {"dragonfly", map[string]int{"groups": 60}},
		"torus-8x6":     {"torus", map[string]int{"x": 8, "y": 6, "z": 1}},
		"torus-40x10":   {"torus", map[string]int{"x": 40, "y": 10, "z": 1}},
	} {
		c, err := cluster.Preset(x.preset, x.params)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		list[name] = c.Graph
	}
	return list
}

// examples builds every example file; the largest is left to the test of speed.
func examples(t testing.TB) map[string]*topo.Graph {
	list := map[string]*topo.Graph{}
	files, err := filepath.Glob("../../examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no example files: %v", err)
	}
	for _, f := range files {
		if strings.Contains(f, "131k") {
			continue
		}
		list["example-"+strings.TrimSuffix(filepath.Base(f), ".yaml")] = example(t, f)
	}
	return list
}

func example(t testing.TB, file string) *topo.Graph {
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Parse(filepath.Base(file), data, os.ReadFile)
	if err != nil {
		t.Fatal(err)
	}
	return c.Graph
}

// imported decodes the fixture files where they are at hand.
func imported(t testing.TB) map[string]*topo.Graph {
	list := map[string]*topo.Graph{}
	const root = "../../../shared/reference/fixtures"
	for dialect, pattern := range map[string]string{"ibnetdiscover": "ibnetdiscover/*.txt", "nccl-xml": "nccl-topo/*.xml",
		"slurm": "slurm/*.conf"} {
		files, _ := filepath.Glob(filepath.Join(root, pattern))
		d, err := format.Find(dialect)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			data, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			g, err := d.Decode(filepath.Base(f), data)
			if err != nil {
				t.Errorf("%s: %v", f, err)
				continue
			}
			list["import-"+filepath.Base(f)] = g
		}
	}
	return list
}

// everything is every graph the tests draw. They are built once; no test changes them.
func everything(t testing.TB) map[string]*topo.Graph {
	if whole == nil {
		whole = pictures(t)
		for _, more := range []map[string]*topo.Graph{presets(t), examples(t), imported(t)} {
			maps.Copy(whole, more)
		}
	}
	return whole
}

var whole map[string]*topo.Graph
