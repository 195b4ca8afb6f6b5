package train

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/run/train/model"
)

// part draws a box of an array, and a run of its elements.
func part(t *rapid.T, shape []int) (p model.Param, lo, n int) {
	p.Shape = shape
	for _, s := range shape {
		size := rapid.IntRange(1, s).Draw(t, "size")
		p.Size = append(p.Size, size)
		p.Offset = append(p.Offset, rapid.IntRange(0, s-size).Draw(t, "offset"))
	}
	lo = rapid.IntRange(0, p.Len()-1).Draw(t, "lo")
	return p, lo, rapid.IntRange(1, p.Len()-lo).Draw(t, "n")
}

// at is the place in the whole of element i of a box.
func at(shape, offset, size []int, i int) int {
	index := make([]int, len(size))
	for a := len(size) - 1; a >= 0; a-- {
		index[a] = offset[a] + i%size[a]
		i /= size[a]
	}
	place := 0
	for a, k := range index {
		place = place*shape[a] + k
	}
	return place
}

// A run of elements cut into boxes: every box is one, and element by element they
// are the run, in order; there are at most twice as many as axes, less one.
func TestBoxesAreTheRun(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shape := rapid.SliceOfN(rapid.IntRange(1, 5), 1, 4).Draw(t, "shape")
		p, lo, n := part(t, shape)
		data := make([]float32, n)
		for i := range data {
			data[i] = float32(at(p.Shape, p.Offset, p.Size, lo+i))
		}
		list := boxes("x", p, lo, n, data)
		next := 0
		for _, b := range list {
			if err := b.check(); err != nil {
				t.Fatal(err)
			}
			for i, v := range b.Data {
				if v != float32(at(b.Shape, b.Offset, b.Size, i)) {
					t.Fatalf("box %v+%v: element %d is that of place %v", b.Offset, b.Size, i, v)
				}
				if v != data[next] {
					t.Fatalf("element %d of the run is %v, in a box %v", next, data[next], v)
				}
				next++
			}
		}
		if next != n || len(list) > 2*len(shape)-1 {
			t.Fatalf("%d of %d elements in %d boxes of %d axes", next, n, len(list), len(shape))
		}
	})
}

// Copying between boxes is copying the elements whose places are in both.
func TestCopyBoxIsByPlace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shape := rapid.SliceOfN(rapid.IntRange(1, 5), 1, 4).Draw(t, "shape")
		box := func(value func(i int) float32) Box {
			p, _, _ := part(t, shape)
			b := Box{Name: "x", Shape: shape, Offset: p.Offset, Size: p.Size, Data: make([]float32, p.Len())}
			for i := range b.Data {
				b.Data[i] = value(at(shape, p.Offset, p.Size, i))
			}
			return b
		}
		src := box(func(i int) float32 { return float32(i) })
		dst := box(func(int) float32 { return -1 })
		n := copyBox(dst, src)
		have := map[int]bool{}
		for i := range src.Data {
			have[at(shape, src.Offset, src.Size, i)] = true
		}
		for i, v := range dst.Data {
			place := at(shape, dst.Offset, dst.Size, i)
			if have[place] {
				n--
			}
			if have[place] && v != float32(place) || !have[place] && v != -1 {
				t.Fatalf("element of place %d is %v; the source has it: %v", place, v, have[place])
			}
		}
		if n != 0 {
			t.Fatalf("%d elements more were counted than copied", n)
		}
	})
}

func TestBadBoxesAreRefused(t *testing.T) {
	good := Box{Name: "x", Shape: []int{2, 3}, Offset: []int{0, 1}, Size: []int{2, 2}, Data: make([]float32, 4)}
	for _, change := range []func(b *Box){
		func(b *Box) { b.Data = b.Data[:3] },
		func(b *Box) { b.Offset = []int{0, 2} },
		func(b *Box) { b.Offset = []int{-1, 1} },
		func(b *Box) { b.Size = []int{2} },
		func(b *Box) { b.Shape, b.Offset, b.Size = nil, nil, nil },
	} {
		bad := good
		bad.Offset, bad.Size = slices.Clone(good.Offset), slices.Clone(good.Size)
		change(&bad)
		if _, err := FromBoxes(Meta{}, []Box{good, bad})([]Box{good}); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
	if _, err := FromBoxes(Meta{}, []Box{good})([]Box{good}); err != nil {
		t.Error(err)
	}
}
