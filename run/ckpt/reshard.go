package ckpt

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/run/ckpt/internal/box"
)

// Layout says which region of tensor number i (by name) of a checkpoint a rank of
// a world holds; false for none of it.
type Layout func(i int, t Info, rank, world int) (box.Region, bool)

// Layouts are the ones with a name.
var Layouts = []struct {
	Name, Summary string
	Cut           Layout
}{
	{"flat", "equal ranges of every flattened tensor, as ZeRO", func(_ int, t Info, rank, world int) (box.Region, bool) {
		n, _ := box.Elements(t.Shape)
		from, to := split(n, rank, world)
		return box.Range(t.Shape, from, to-from), from < to || n == 0 && rank == 0
	}},
	{"rows", "equal parts of the first dimension", along(func(dims int) int { return 0 })},
	{"columns", "equal parts of the last dimension", along(func(dims int) int { return dims - 1 })},
	{"whole", "every tensor in one file, in turn", func(i int, t Info, rank, world int) (box.Region, bool) {
		return box.Whole(t.Shape), i%world == rank
	}},
}

// FindLayout finds a layout by name; an error lists them.
func FindLayout(name string) (Layout, error) {
	var names []string
	for _, l := range Layouts {
		if l.Name == name {
			return l.Cut, nil
		}
		names = append(names, l.Name)
	}
	return nil, fmt.Errorf("unknown layout %q; known: %s", name, strings.Join(names, ", "))
}

// along cuts one dimension; tensors without any are with the first rank.
func along(dim func(dims int) int) Layout {
	return func(_ int, t Info, rank, world int) (box.Region, bool) {
		r := box.Whole(t.Shape)
		if len(t.Shape) == 0 {
			return r, rank == 0
		}
		d := dim(len(t.Shape))
		from, to := split(t.Shape[d], rank, world)
		r.Offset[d] = from
		r.Shape = slices.Clone(r.Shape)
		r.Shape[d] = to - from
		return r, from < to || r.Len() == 0 && rank == 0
	}
}

// Reshard writes a checkpoint of src to dst as another number of ranks would have,
// one rank after the other, so that it takes the memory of one. Step, epoch, data
// position and metadata stay; a rank keeps the random states of the rank of its
// number, and those beyond the old world have none. Run tells the result apart
// from other checkpoints of the step in dst.
func Reshard(ctx context.Context, src *Store, m *Manifest, dst *Store, world int, cut Layout, run string) error {
	meta := Meta{Step: m.Step, Epoch: m.Epoch, World: world, Run: run, Data: m.Data, Extra: m.Extra, Layout: map[string]int{"ranks": world}}
	var memory []byte
	for rank := range world {
		var shards []Tensor
		var sizes []int
		total := 0
		for i, t := range m.Tensors {
			r, ok := cut(i, t, rank, world)
			if !ok {
				continue
			}
			if err := r.Check(); err != nil {
				return fmt.Errorf("reshard: tensor %q for rank %d: %w", t.Name, rank, err)
			}
			shards = append(shards, Tensor{Name: t.Name, Type: t.Type, Global: r.Global, Offset: r.Offset, Shape: r.Shape})
			sizes = append(sizes, r.Len()*t.Type.Size())
			total += sizes[len(sizes)-1]
		}
		if cap(memory) < total {
			memory = make([]byte, total)
		}
		rest := memory[:total]
		for i, n := range sizes {
			shards[i].Data, rest = rest[:n:n], rest[n:]
		}
		if err := src.LoadFrom(ctx, m, shards); err != nil {
			return err
		}
		meta.Rank, meta.Random = rank, m.Random(rank)
		if err := dst.Save(ctx, meta, shards); err != nil {
			return err
		}
	}
	return nil
}
