package spell_test

import (
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/spell"
)

// plain is the distance by its definition.
func plain(a, b string) int {
	if a == "" || b == "" {
		return len(a) + len(b)
	}
	change := plain(a[1:], b[1:])
	if a[0] != b[0] {
		change++
	}
	return min(change, plain(a[1:], b)+1, plain(a, b[1:])+1)
}

func TestDistanceIsTheLeastNumberOfEdits(t *testing.T) {
	var words []string
	for _, a := range []string{"", "a", "b"} {
		for _, b := range []string{"", "a", "bb"} {
			words = append(words, a+b, b+a+b, b+b+a)
		}
	}
	for _, a := range words {
		for _, b := range words {
			for limit := 1; limit < 7; limit++ {
				if got, want := spell.Distance(a, b, limit), min(plain(a, b), limit); got != want {
					t.Errorf("distance of %q and %q below %d is %d, want %d", a, b, limit, got, want)
				}
			}
		}
	}
}

func TestNearest(t *testing.T) {
	known := []string{"hosts", "rails", "leaves"}
	for word, want := range map[string]string{"host": "hosts", "rials": "rails", "spines": "", "leaves": "leaves",
		strings.Repeat("hosts", 100): ""} {
		if got := spell.Nearest(word, known); got != want {
			t.Errorf("nearest to %q is %q, want %q", word, got, want)
		}
	}
}
