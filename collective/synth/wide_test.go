package synth

import (
	"math/big"
	"testing"
)

// Two switches with a thin link between them look the same from every rank. Renumbering swaps the switches, so all turned trees of eight
// ranks share the two directions of that link.
func TestLinksThatStay(t *testing.T) {
	const ranks = 8
	n := &Net{Name: "two switches", Ranks: ranks, Unit: 1e9}
	for v := range ranks + 2 {
		n.Names = append(n.Names, string(rune('a'+v)))
		n.Hosts = append(n.Hosts, -1)
	}
	both := func(a, b int, c int64) {
		n.Edges = append(n.Edges, Edge{From: a, To: b, Cap: c}, Edge{From: b, To: a, Cap: c})
	}
	for r := range ranks {
		both(r, ranks+r%2, 100)
	}
	both(ranks, ranks+1, 8)
	turned := n.turned()
	if turned.period != 1 {
		t.Fatalf("it repeats after %d ranks, want 1", turned.period)
	}
	stays := len(n.Edges) - 1 // the link between the switches
	if got := turned.times[stays]; got != ranks/2 {
		t.Errorf("a tree that is turned uses the link between the switches %v times, want %d", got, ranks/2)
	}
	if got := turned.times[0]; got != 1 {
		t.Errorf("a tree that is turned uses the link of a rank %v times, want 1", got)
	}
	// No root can have more than its part of the link between the switches: 8 for 4 roots.
	roots := make([]int, ranks)
	for r := range roots {
		roots[r] = r
	}
	trees, _, reach, err := n.fill(roots, big.NewRat(2, 1), 4, 1)
	if err != nil {
		t.Fatal(err)
	}
	crossed, weight := int64(0), int64(0) // over the link from the first to the second
	for _, s := range trees {
		for v, p := range s.Parent {
			if p >= 0 && p%2 == 0 && v%2 == 1 {
				crossed += s.Weight
			}
		}
		weight += s.Weight
	}
	perRoot := weight / ranks
	if limit := big.NewRat(8*perRoot, crossed); reach.Cmp(limit) > 0 {
		t.Errorf("%s is said to be reached; the link between the switches allows %s", reach.RatString(), limit.RatString())
	}
}
