package draw

import (
	"testing"

	"github.com/weft-fabric/weft/topo"
	"github.com/weft-fabric/weft/topo/build"
	"github.com/weft-fabric/weft/topo/catalog"
)

// presets builds every preset of topo/build.
func presets(t testing.TB) map[string]*topo.Graph {
	list := map[string]*topo.Graph{}
	c := catalog.Default()
	for _, p := range build.Presets() {
		b, err := build.BuildPreset(c, p.Name, nil)
		if err != nil {
			t.Errorf("preset %q: %v", p.Name, err)
			continue
		}
		list["preset-"+p.Name] = b.Graph
	}
	for name, x := range map[string]struct {
		preset string
		params map[string]int
	}{
		"superpod-4su":  {"superpod-h100", map[string]int{"su": 4}},
		"superpod-16su": {"superpod-h100", map[string]int{"su": 16}},
	} {
		b, err := build.BuildPreset(c, x.preset, x.params)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		list[name] = b.Graph
	}
	return list
}
