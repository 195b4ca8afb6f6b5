package heap

import (
	"cmp"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

type item struct{ key, id int }

func (x item) Before(y item) bool { return x.key < y.key }

// Whatever is pushed and popped in whatever order comes as from a sorted list.
func TestHeapIsASortedList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h Heap[item]
		var list []item
		for i, key := range rapid.SliceOf(rapid.IntRange(-1, 20)).Draw(t, "keys") {
			if key >= 0 {
				h.Push(item{key, i})
				list = append(list, item{key, i})
			} else if len(list) > 0 {
				x := h.Pop()
				if least := slices.MinFunc(list, func(a, b item) int { return cmp.Compare(a.key, b.key) }); least.key != x.key {
					t.Fatalf("popped %v, the least is %v", x, least)
				}
				at := slices.Index(list, x)
				if at < 0 {
					t.Fatalf("popped %v, which is not there", x)
				}
				list = slices.Delete(list, at, at+1)
			}
			if h.Len() != len(list) {
				t.Fatalf("%d values, want %d", h.Len(), len(list))
			}
		}
		h.Set(slices.Clone(list))
		for len(list) > 0 {
			slices.SortFunc(list, func(a, b item) int { return cmp.Compare(a.key, b.key) })
			if x := h.First(); x.key != list[0].key || h.Pop() != x {
				t.Fatalf("the first is %v, want %v", x, list[0])
			}
			list = list[1:]
		}
	})
}
