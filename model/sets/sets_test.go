package sets_test

import (
	"slices"
	"testing"

	"github.com/weft-fabric/weft/model/sets"
	"pgregory.net/rapid"
)

// Sets are those of a reference that writes every member's set down: whatever is joined, in whichever order, numbers are together if the
// reference says so, Find gives the least of them, and Join reports whether anything changed.
func TestSetsAreThoseOfTheReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(t, "numbers")
		s := sets.New[int32](n)
		least := make([]int32, n) // the reference: of each number
		for i := range least {
			least[i] = int32(i)
		}
		number := rapid.Int32Range(0, int32(n-1))
		for range rapid.IntRange(0, 60).Draw(t, "joins") {
			a, b := number.Draw(t, "a"), number.Draw(t, "b")
			x, y := least[a], least[b]
			if got := s.Join(a, b); got != (x != y) {
				t.Fatalf("joining %d and %d: %v", a, b, got)
			}
			for i, of := range least {
				if of == max(x, y) {
					least[i] = min(x, y)
				}
			}
			if look := number.Draw(t, "look"); s.Find(look) != least[look] {
				t.Fatalf("%d is with %d, not %d", look, least[look], s.Find(look))
			}
		}
		s.Flatten()
		if !slices.Equal(s, least) {
			t.Fatalf("%v, want %v", s, least)
		}
	})
}
