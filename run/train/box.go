package train

import (
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/run/train/model"
)

// Box is a part of a named array: its elements by rows, the last axis the fastest.
type Box struct {
	Name   string
	Shape  []int // of the whole array
	Offset []int // where the box begins
	Size   []int // of the box
	Data   []float32
}

// boxes cuts elements [lo, lo+n) of a parameter's box into boxes: a run of
// elements that are stored by rows is at most a part of a first row, whole rows and
// a part of a last one, for every axis. data is what they hold, and is not copied.
func boxes(name string, p model.Param, lo, n int, data []float32) []Box {
	var list []Box
	var cut func(axis int, prefix []int, lo, n int, data []float32)
	cut = func(axis int, prefix []int, lo, n int, data []float32) {
		inner := 1
		for _, s := range p.Size[axis+1:] {
			inner *= s
		}
		add := func(first, count int) {
			b := Box{Name: name, Shape: p.Shape, Data: data[:count*inner]}
			for a := range p.Size {
				switch {
				case a < axis:
					b.Offset, b.Size = append(b.Offset, p.Offset[a]+prefix[a]), append(b.Size, 1)
				case a == axis:
					b.Offset, b.Size = append(b.Offset, p.Offset[a]+first), append(b.Size, count)
				default:
					b.Offset, b.Size = append(b.Offset, p.Offset[a]), append(b.Size, p.Size[a])
				}
			}
			list = append(list, b)
			data = data[count*inner:]
		}
		for n > 0 {
			row, within := lo/inner, lo%inner
			if within == 0 && n >= inner {
				count := n / inner
				add(row, count)
				lo, n = lo+count*inner, n-count*inner
				continue
			}
			k := min(n, inner-within)
			cut(axis+1, append(slices.Clone(prefix), row), within, k, data[:k])
			data = data[k:]
			lo, n = lo+k, n-k
		}
	}
	cut(0, nil, lo, n, data)
	return list
}

// copyBox copies what two boxes of one array have in common, and returns how many
// elements that is.
func copyBox(dst, src Box) int {
	axes := len(dst.Shape)
	lo, size := make([]int, axes), make([]int, axes)
	n := 1
	for a := range axes {
		lo[a] = max(dst.Offset[a], src.Offset[a])
		size[a] = min(dst.Offset[a]+dst.Size[a], src.Offset[a]+src.Size[a]) - lo[a]
		if size[a] <= 0 {
			return 0
		}
		n *= size[a]
	}
	place := func(b Box, index []int) int {
		at := 0
		for a := range axes {
			at = at*b.Size[a] + lo[a] + index[a] - b.Offset[a]
		}
		return at
	}
	index := make([]int, axes)
	run := size[axes-1]
	for range n / run {
		copy(dst.Data[place(dst, index):][:run], src.Data[place(src, index):][:run])
		for a := axes - 2; a >= 0; a-- {
			if index[a]++; index[a] < size[a] {
				break
			}
			index[a] = 0
		}
	}
	return n
}

// check reports a box that is none.
func (b Box) check() error {
	n := 1
	good := len(b.Offset) == len(b.Shape) && len(b.Size) == len(b.Shape) && len(b.Shape) > 0
	for a := 0; good && a < len(b.Shape); a++ {
		good = b.Offset[a] >= 0 && b.Size[a] >= 0 && b.Size[a] <= b.Shape[a]-b.Offset[a]
		n *= b.Size[a]
	}
	if !good || n != len(b.Data) {
		return fmt.Errorf("train: %d elements of array %q are no box of size %v at %v of %v", len(b.Data), b.Name, b.Size, b.Offset, b.Shape)
	}
	return nil
}

// FromBoxes is a state at hand: boxes that together hold all that is asked for. They
// do not overlap where they hold different values.
func FromBoxes(m Meta, have []Box) Source {
	return func(held []Box) (Meta, error) {
		byName := map[string][]Box{}
		for _, b := range have {
			if err := b.check(); err != nil {
				return m, err
			}
			byName[b.Name] = append(byName[b.Name], b)
		}
		for _, b := range held {
			if err := fill(b, byName[b.Name]); err != nil {
				return m, err
			}
		}
		return m, nil
	}
}

// fill copies a box from those that have its elements.
func fill(b Box, have []Box) error {
	// Boxes may overlap (copies on several ranks), so that what is filled is marked element by element.
	filled := make([]float32, len(b.Data))
	mark := Box{Shape: b.Shape, Offset: b.Offset, Size: b.Size, Data: filled}
	for _, c := range have {
		if !slices.Equal(c.Shape, b.Shape) {
			return fmt.Errorf("train: array %q has shape %v, the model's is %v: another model?", b.Name, c.Shape, b.Shape)
		}
		if copyBox(b, c) > 0 {
			c.Data = slices.Repeat([]float32{1}, len(c.Data))
			copyBox(mark, c)
		}
	}
	if i := slices.Index(filled, 0); i >= 0 {
		return fmt.Errorf("train: element %d of box %v+%v of array %q is in none of %d boxes", i, b.Offset, b.Size, b.Name, len(have))
	}
	return nil
}
