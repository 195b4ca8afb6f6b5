package engine

import (
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/floor"
)

// stands reads a text and says in which rack everything stands.
func stands(t *testing.T, text string, row int) map[string]string {
	t.Helper()
	c, err := cluster.Parse("x.yaml", []byte(text), nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	p := c.Floor
	if p == nil {
		var problem *floor.Problem
		in := floor.Default()
		in.Row = row
		if p, problem = floor.Make(c.Graph, c.Catalog, in, nil); problem != nil {
			t.Fatal(problem)
		}
	}
	out := map[string]string{}
	for _, d := range p.Devices {
		out[d.Name] = p.Racks[d.Rack].Name
	}
	return out
}

// A rack that is dragged to another position stands there, what stood there stands where it was, and nothing else moves. The
// rest of the text stays.
func TestMoveRack(t *testing.T) {
	base := "# ours\nname: x\nhosts:\n  \"n[0-31]\": {kind: dgx-h100, rack: 4}   # four per rack\nfabric: {family: rail, switch: QM9700}\n"
	for name, c := range map[string]struct {
		text, rack, to string
		row            int // racks per row where the file does not say
	}{
		"swapped":           {base, "A02", "A07", 10},
		"to an empty place": {base, "A02", "B04", 10},
		"with a floor":      {base + "floor:\n  row: 12   # racks\n  aisle: 1.5m\n", "A01", "A12", 12},
		"with places":       {base + "floor:\n  place: {\"spine[0-3]\": B06, leaf0: \"B07:U40\"}\n  row: 8\n", "B06", "A01", 8},
		"with places in rows": {base +
			"floor:\n  place:\n    \"spine[0-3]\": B06\n    leaf0: \"B07:U40\"\n  row: 8\nneeds: {oversubscription: 2}\n", "A03", "B06", 8},
		"no end of line":    {strings.TrimSuffix(base, "\n"), "A03", "A04", 10},
		"long rows":         {text(t, "rail-16k"), "A02", "AA36", 37},
		"fabric at the end": {text(t, "rail-1k"), "A01", "D10", 10},
	} {
		t.Run(name, func(t *testing.T) {
			before := stands(t, c.text, c.row)
			var got struct{ Text string }
			must(t, do(t, New(Default()), "edit", editQuestion{File: File{c.text}, Rack: c.rack, To: c.to}, &got))
			moved := 0
			for device, at := range stands(t, got.Text, 10) {
				want := before[device]
				switch want {
				case c.rack:
					want = c.to
					moved++
				case c.to:
					want = c.rack
				}
				if at != want {
					t.Errorf("%s stands in %s, want %s\n%s", device, at, want, got.Text)
				}
			}
			if moved == 0 {
				t.Error("nothing moved")
			}
			for line := range strings.Lines(c.text) {
				if !strings.Contains(line, "place") && !strings.Contains(line, "B0") && !strings.Contains(got.Text, strings.TrimSuffix(line, "\n")) {
					t.Errorf("the line %q is gone", line)
				}
			}
		})
	}
	err := do(t, New(Default()), "edit", editQuestion{File: File{base}, Rack: "Z09", To: "A01"}, nil)
	if err == nil || !strings.Contains(err.Error(), "nothing stands") {
		t.Errorf("an empty rack is moved: %v", err)
	}
}

// Rails are counted in the graph that the changed text makes.
func TestRails(t *testing.T) {
	text := "hosts:\n  \"n[0-31]\": dgx-h100\nfabric:\n  family: rail\n  switch: QM9700\n"
	for _, c := range []struct{ by, want int }{{-4, 4}, {2, 6}, {2, 8}, {-7, 1}, {3, 4}} {
		var got struct{ Text string }
		must(t, do(t, New(Default()), "edit", editQuestion{File: File{text}, Rail: c.by}, &got))
		text = got.Text
		parsed, err := cluster.Parse("x.yaml", []byte(text), nil)
		must(t, err)
		leaves := 0
		parsed.Graph.Each(topo.Switch, func(_ topo.NodeID, n *topo.Node) {
			if n.Tier == 1 {
				leaves++
			}
		})
		if leaves != c.want { // a leaf for each rail of the only pod
			t.Errorf("by %d: %d leaves, want %d\n%s", c.by, leaves, c.want, text)
		}
	}
	for by, says := range map[int]string{5: "8 compute NICs", -4: "0 rails"} {
		if err := do(t, New(Default()), "edit", editQuestion{File: File{text}, Rail: by}, nil); err == nil ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("by %d: %v", by, err)
		}
	}
}

// A file that cannot become smaller says so; one that has nothing to count says that.
func TestTooSmall(t *testing.T) {
	e := New(Default())
	for text, want := range map[string]string{"hosts:\n  n[0-1]: dgx-h100\n": "2 fewer would leave nothing",
		"preset: dgx-1v\n": "no list of hosts"} {
		if err := do(t, e, "edit", editQuestion{File: File{text}, By: -2}, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
