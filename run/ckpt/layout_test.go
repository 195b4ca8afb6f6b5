package ckpt_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weft-fabric/weft/run/ckpt"
	"pgregory.net/rapid"
)

// kinds are ways to split a tensor among ranks. Each gives, for every rank, boxes
// or ranges; element by element, as a plain reference of what a shard is.
var kinds = []string{"flat", "rows", "columns", "grid", "replicated", "owner", "uneven", "two pieces"}

// cutTensor gives a rank's shards of a whole tensor.
func cutTensor(t ckpt.Tensor, kind string, rank, world int) []ckpt.Tensor {
	dims := len(t.Shape)
	n := len(t.Data) / t.Type.Size()
	part := func(length, i, of int) (int, int) { return length * i / of, length * (i + 1) / of }
	flat := func(from, to int) ckpt.Tensor {
		s := t
		s.Global, s.Offset, s.Shape = t.Shape, []int{from}, []int{to - from}
		s.Data = slices.Clone(t.Data[from*t.Type.Size() : to*t.Type.Size()])
		return s
	}
	along := func(d, from, to int) ckpt.Tensor {
		offset, shape := make([]int, dims), slices.Clone(t.Shape)
		offset[d], shape[d] = from, to-from
		return extract(t, offset, shape)
	}
	if world == 1 && kind == "uneven" {
		kind = "flat"
	}
	if dims == 0 && kind != "flat" && kind != "replicated" {
		kind = "owner"
	}
	switch kind {
	case "flat":
		from, to := part(n, rank, world)
		return []ckpt.Tensor{flat(from, to)}
	case "uneven": // everything but one element with the last rank
		if rank == 0 {
			return []ckpt.Tensor{flat(0, min(1, n))}
		} else if rank < world-1 {
			return nil
		}
		return []ckpt.Tensor{flat(min(1, n), n)}
	case "rows":
		from, to := part(t.Shape[0], rank, world)
		return []ckpt.Tensor{along(0, from, to)}
	case "columns":
		from, to := part(t.Shape[dims-1], rank, world)
		return []ckpt.Tensor{along(dims-1, from, to)}
	case "two pieces": // like a fused query-key-value weight: a part of either half
		if t.Shape[0] < 2 || world == 1 {
			return cutTensor(t, "rows", rank, world)
		}
		half := t.Shape[0] / 2
		a, b := part(half, rank, world)
		c, d := part(t.Shape[0]-half, rank, world)
		var list []ckpt.Tensor
		for _, s := range []ckpt.Tensor{along(0, a, b), along(0, half+c, half+d)} {
			if len(s.Data) > 0 {
				list = append(list, s)
			}
		}
		return list
	case "grid":
		rows := 1
		for rows*rows < world && world%(rows*2) == 0 {
			rows *= 2
		}
		if dims < 2 {
			return cutTensor(t, "rows", rank, world)
		}
		offset, shape := make([]int, dims), slices.Clone(t.Shape)
		a, b := part(t.Shape[0], rank%rows, rows)
		c, d := part(t.Shape[1], rank/rows, world/rows)
		offset[0], shape[0], offset[1], shape[1] = a, b-a, c, d-c
		return []ckpt.Tensor{extract(t, offset, shape)}
	case "replicated":
		return []ckpt.Tensor{t}
	default: // owner
		if len(t.Name)%world != rank {
			return nil
		}
		return []ckpt.Tensor{t}
	}
}

// extract copies a box out of a whole tensor, one element at a time.
func extract(t ckpt.Tensor, offset, shape []int) ckpt.Tensor {
	s := t
	s.Global, s.Offset, s.Shape, s.Data = t.Shape, offset, shape, nil
	size := t.Type.Size()
	var walk func(d, at int)
	walk = func(d, at int) {
		if d == len(shape) {
			s.Data = append(s.Data, t.Data[at*size:(at+1)*size]...)
			return
		}
		for i := range shape[d] {
			walk(d+1, at*t.Shape[d]+offset[d]+i)
		}
	}
	walk(0, 0)
	return s
}

// shardsOf is what a rank holds of a model in a mixed layout.
func shardsOf(m model, layout []string, rank, world int) []ckpt.Tensor {
	var list []ckpt.Tensor
	for i, t := range m {
		list = append(list, cutTensor(t, layout[i], rank, world)...)
	}
	return list
}

// reload loads a step into the shards of another world and layout, and demands the
// same bits; then it saves them as the next step of that world.
func reload(ctx context.Context, t rapid.TB, s *ckpt.Store, m model, step int64, layout []string, world int) {
	t.Helper()
	for rank := range world {
		want := shardsOf(m, layout, rank, world)
		got := model(want).blank()
		if _, err := s.Load(ctx, step, got); err != nil {
			t.Fatalf("%d ranks, %v: %v", world, layout, err)
		}
		for i := range want {
			if string(want[i].Data) != string(got[i].Data) {
				t.Fatalf("rank %d of %d: %s at %v of shape %v is not what was saved (%v)",
					rank, world, want[i].Name, want[i].Offset, want[i].Shape, layout)
			}
		}
		if err := s.Save(ctx, ckpt.Meta{Step: step + 1, Rank: rank, World: world}, got); err != nil {
			t.Fatal(err)
		}
	}
}

// 8 ranks, then 3, 5 and 8 again, each loading what the one before saved.
func TestReshardOnLoad(t *testing.T) {
	s := open(t, t.TempDir(), ckpt.Options{Keep: 2})
	m := newModel(1)
	r := rand.New(rand.NewPCG(8, 3))
	mix := func() []string {
		layout := make([]string, len(m))
		for i := range layout {
			layout[i] = kinds[r.IntN(len(kinds))]
		}
		return layout
	}
	step := int64(100)
	first := mix()
	for rank := range 8 {
		if err := s.Save(t.Context(), ckpt.Meta{Step: step, Rank: rank, World: 8}, shardsOf(m, first, rank, 8)); err != nil {
			t.Fatal(err)
		}
	}
	for round := range 6 {
		for _, world := range []int{3, 5, 8} {
			layout := mix()
			if round == 0 {
				layout = slices.Repeat([]string{kinds[world%len(kinds)]}, len(m))
			}
			reload(t.Context(), t, s, m, step, layout, world)
			step++
		}
	}
}

func TestAnyLayoutLoadsIntoAnyOther(t *testing.T) {
	m, ctx := newModel(2), t.Context()
	kind := rapid.SampledFrom(kinds)
	rapid.Check(t, func(t *rapid.T) {
		mem := newMemory()
		s, err := ckpt.New(mem, ckpt.Options{})
		if err != nil {
			t.Fatal(err)
		}
		from := rapid.SliceOfN(kind, len(m), len(m)).Draw(t, "from")
		world := rapid.IntRange(1, 9).Draw(t, "world")
		for rank := range world {
			if err := s.Save(ctx, ckpt.Meta{Step: 5, Rank: rank, World: world}, shardsOf(m, from, rank, world)); err != nil {
				t.Fatal(err)
			}
		}
		reload(ctx, t, s, m, 5, rapid.SliceOfN(kind, len(m), len(m)).Draw(t, "to"), rapid.IntRange(1, 9).Draw(t, "ranks"))
	})
}

func TestReshard(t *testing.T) {
	src := open(t, t.TempDir(), ckpt.Options{})
	m := newModel(3)
	save(t, src, m, ckpt.Meta{Step: 7, Epoch: 2, World: 4, Data: 99, Random: map[string][]byte{"r": {7}}, Extra: map[string]string{"a": "b"}})
	for _, l := range ckpt.Layouts {
		for _, world := range []int{1, 3, 5, 11} {
			dst := open(t, t.TempDir(), ckpt.Options{})
			old, err := src.At(t.Context(), 7)
			if err != nil {
				t.Fatal(err)
			}
			if err := ckpt.Reshard(t.Context(), src, old, dst, world, l.Cut, "test"); err != nil {
				t.Fatalf("%s to %d ranks: %v", l.Name, world, err)
			}
			got := m.blank()
			man, err := dst.Load(t.Context(), 7, got)
			if err != nil {
				t.Fatalf("%s to %d ranks: %v", l.Name, world, err)
			}
			m.equal(t, got)
			if man.World != world || man.Epoch != 2 || man.Data != 99 || man.Extra["a"] != "b" || man.Bytes() != old.Bytes() {
				t.Errorf("%+v", man)
			}
			if rank := min(world, 4) - 1; man.Random(rank)["r"][0] != 7 {
				t.Errorf("rank %d lost its random state", rank)
			}
			list, err := dst.List(t.Context())
			if err != nil || len(list) != 1 {
				t.Fatalf("%v %v", list, err)
			}
			if p, err := dst.Verify(t.Context(), list[0]); err != nil || len(p) > 0 {
				t.Errorf("%s to %d ranks: %v %v", l.Name, world, p, err)
			}
		}
	}
}

func TestShareIsTheShard(t *testing.T) {
	m := newModel(4)
	for _, kind := range kinds {
		for _, whole := range m {
			for _, shard := range cutTensor(whole, kind, 0, 2) {
				for _, n := range []int{1, 2, 3, 7} {
					var data []byte
					for i := range n {
						s := shard.Share(i, n)
						if err := s.Region().Check(); err != nil {
							t.Errorf("%s %s: share %d of %d: %v", kind, whole.Name, i, n, err)
						}
						if s.Region().Len()*s.Type.Size() != len(s.Data) {
							t.Errorf("%s %s: share %d of %d has %d bytes for shape %v", kind, whole.Name, i, n, len(s.Data), s.Shape)
						}
						data = append(data, s.Data...)
					}
					if string(data) != string(shard.Data) {
						t.Errorf("%s %s: %d shares are not the shard", kind, whole.Name, n)
					}
				}
			}
		}
	}
}
