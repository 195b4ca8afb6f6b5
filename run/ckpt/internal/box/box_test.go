package box_test

import (
	"math"
	"testing"

	"github.com/weft-fabric/weft/run/ckpt/internal/box"
	"pgregory.net/rapid"
)

// shapes draws a tensor's shape, empty dimensions and scalars among them.
func shapes(t *rapid.T) []int {
	return rapid.SliceOfN(rapid.IntRange(0, 5), 0, 4).Draw(t, "global")
}

// regions draws a box or a range of a tensor.
func regions(t *rapid.T, global []int, label string) box.Region {
	total, err := box.Elements(global)
	if err != nil {
		t.Fatal(err)
	}
	if rapid.Bool().Draw(t, label+" flat") {
		from := rapid.IntRange(0, total).Draw(t, label+" from")
		return box.Range(global, from, rapid.IntRange(0, total-from).Draw(t, label+" n"))
	}
	r := box.Region{Global: global, Offset: make([]int, len(global)), Shape: make([]int, len(global))}
	for d, n := range global {
		r.Offset[d] = rapid.IntRange(0, n).Draw(t, label+" offset")
		r.Shape[d] = rapid.IntRange(0, n-r.Offset[d]).Draw(t, label+" shape")
	}
	return r
}

// elements is the plain reference: for every element of a region, in the order of
// its memory, its number in the flattened tensor.
func elements(r box.Region) []int {
	list := []int{}
	if len(r.Shape) == 1 && len(r.Global) != 1 {
		for i := range r.Shape[0] {
			list = append(list, r.Offset[0]+i)
		}
		return list
	}
	var walk func(d, at int)
	walk = func(d, at int) {
		if d == len(r.Global) {
			list = append(list, at)
			return
		}
		for i := range r.Shape[d] {
			walk(d+1, at*r.Global[d]+r.Offset[d]+i)
		}
	}
	walk(0, 0)
	return list
}

func TestOverlapIsTheIntersection(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		global := shapes(t)
		a, b := regions(t, global, "a"), regions(t, global, "b")
		for _, r := range []box.Region{a, b} {
			if err := r.Check(); err != nil {
				t.Fatal(err)
			}
		}
		x, y := elements(a), elements(b)
		in := map[int]int{}
		for j, e := range y {
			in[e] = j
		}
		type pair struct{ i, j int }
		var want, got []pair
		for i, e := range x {
			if j, ok := in[e]; ok {
				want = append(want, pair{i, j})
			}
		}
		box.Overlap(a, b, func(i, j, n int) {
			if n <= 0 {
				t.Fatalf("a stretch of %d elements", n)
			}
			for k := range n {
				got = append(got, pair{i + k, j + k})
			}
		})
		if len(got) != len(want) {
			t.Fatalf("%d elements shared, want %d: %v %v", len(got), len(want), got, want)
		}
		for k := range got {
			if got[k] != want[k] {
				t.Fatalf("element %d: %v, want %v", k, got[k], want[k])
			}
		}
	})
}

func TestPlanFillsEveryElementOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		global := shapes(t)
		want := regions(t, global, "want")
		var parts []box.Region
		holds := map[int]bool{}
		for range rapid.IntRange(0, 5).Draw(t, "parts") {
			p := regions(t, global, "part")
			parts = append(parts, p)
			for _, e := range elements(p) {
				holds[e] = true
			}
		}
		ids := elements(want)
		segments, gaps := box.Plan(want, parts)
		times := make([]int, len(ids))
		for _, s := range segments {
			from := elements(parts[s.Part])
			for k := range s.Len {
				times[s.To+k]++
				if from[s.From+k] != ids[s.To+k] {
					t.Fatalf("element %d is filled with element %d", ids[s.To+k], from[s.From+k])
				}
			}
		}
		for _, g := range gaps {
			for k := range g.Len {
				times[g.From+k] += 100
			}
		}
		for i, n := range times {
			if w := map[bool]int{true: 1, false: 100}[holds[ids[i]]]; n != w {
				t.Fatalf("element %d: filled %d times, want %d (100 is a gap)", i, n, w)
			}
		}
	})
}

func TestCheckRefusesWhatIsOutside(t *testing.T) {
	good := []box.Region{
		box.Whole([]int{3, 4}),
		box.Whole(nil),
		box.Range(nil, 0, 1),
		box.Range([]int{3, 4}, 11, 1),
		{Global: []int{3, 4}, Offset: []int{2, 0}, Shape: []int{1, 4}},
		{Global: []int{0, math.MaxInt}, Offset: []int{0, 0}, Shape: []int{0, 7}},
	}
	for _, r := range good {
		if err := r.Check(); err != nil {
			t.Errorf("%v: %v", r, err)
		}
	}
	bad := []box.Region{
		{Global: []int{3, 4}, Offset: []int{2, 0}, Shape: []int{2, 4}},
		{Global: []int{3, 4}, Offset: []int{0, -1}, Shape: []int{1, 1}},
		{Global: []int{3, 4}, Offset: []int{0, 0}, Shape: []int{-1, 1}},
		{Global: []int{3, 4}, Offset: []int{0}, Shape: []int{1, 1}},
		{Global: []int{3, 4, 5}, Offset: []int{0, 0}, Shape: []int{1, 1}},
		{Global: []int{3, 4}, Offset: []int{math.MaxInt}, Shape: []int{math.MaxInt}},
		box.Range([]int{3, 4}, 11, 2),
		box.Range(nil, 1, 1),
		box.Whole([]int{math.MaxInt, math.MaxInt}),
		box.Whole([]int{1 << 31, 1 << 31}),
	}
	for _, r := range bad {
		if r.Check() == nil {
			t.Errorf("%v is accepted", r)
		}
	}
}
