package flat

import (
	"reflect"
	"slices"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
)

// A form that is read from a table is the one that was written.
func TestTableIsTheForm(t *testing.T) {
	for _, name := range []string{"rank-order", "direct", "one-shot", "ring"} {
		for _, op := range sched.Collectives() {
			for _, n := range []int{2, 5, 8} {
				a, err := algo.Find(name)
				if err != nil {
					t.Fatal(err)
				}
				p, err := a.Program(algo.Spec{Op: op, Ranks: n, Root: n - 1})
				if err != nil {
					continue // not every algorithm has every operation
				}
				f, err := New(p)
				if err != nil {
					continue
				}
				got, err := FromTable(f.Table())
				if err != nil {
					t.Fatalf("%s %s of %d ranks: %v", name, op, n, err)
				}
				if got.InPlace != f.InPlace || got.Pushes != f.Pushes || got.Rooted != f.Rooted || got.Size() != n {
					t.Errorf("%s %s of %d ranks: %+v was read, %+v written", name, op, n, got, f)
				}
				for r := range n {
					if !reflect.DeepEqual(got.Rank(r), f.Rank(r)) {
						t.Errorf("%s %s of %d ranks: rank %d does %+v, %+v was written", name, op, n, r, got.Rank(r), f.Rank(r))
					}
				}
			}
		}
	}
}

// A table that is cut off is refused.
func TestTableIsWhole(t *testing.T) {
	a, err := algo.Find("rank-order")
	if err != nil {
		t.Fatal(err)
	}
	p, err := a.Program(algo.Spec{Op: sched.AllReduce, Ranks: 5})
	if err != nil {
		t.Fatal(err)
	}
	f, err := New(p)
	if err != nil {
		t.Fatal(err)
	}
	table := f.Table()
	for n := 0; n < len(table); n += 4 {
		if _, err := FromTable(slices.Clone(table[:n])); err == nil {
			t.Fatalf("%d of %d bytes are taken for a table", n, len(table))
		}
	}
}
