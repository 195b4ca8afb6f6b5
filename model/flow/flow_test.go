package flow

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/internal/reference"
)

type pipe = reference.Pipe

func pipes(t *rapid.T, nodes, most int) []pipe {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) pipe {
		p := pipe{A: rapid.IntRange(0, nodes-1).Draw(t, "a"), B: rapid.IntRange(0, nodes-1).Draw(t, "b"),
			There: rapid.Int64Range(0, 20).Draw(t, "there")}
		if rapid.Bool().Draw(t, "both ways") {
			p.Back = p.There
		}
		return p
	}), 0, most).Draw(t, "pipes")
}

func flowOf(nodes int, list []pipe) int64 {
	n := New(nodes, len(list))
	for _, p := range list {
		if p.A != p.B {
			n.Link(p.A, p.B, p.There, p.Back)
		}
	}
	return n.Run(0, nodes-1, Endless)
}

// TestFlowIsTheNarrowestCut tries every cut of small random networks.
func TestFlowIsTheNarrowestCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.IntRange(2, 9).Draw(t, "nodes")
		list := pipes(t, nodes, 30)
		narrowest := int64(-1)
		for set := 0; set < 1<<nodes; set++ {
			if set&1 == 0 || set>>(nodes-1)&1 == 1 {
				continue // the source is in, the sink is out
			}
			cut := int64(0)
			for _, p := range list {
				in, out := set>>p.A&1 == 1, set>>p.B&1 == 1
				switch {
				case in && !out:
					cut += p.There
				case out && !in:
					cut += p.Back
				}
			}
			if narrowest < 0 || cut < narrowest {
				narrowest = cut
			}
		}
		if got := flowOf(nodes, list); got != narrowest {
			t.Fatalf("flow %d, narrowest cut %d", got, narrowest)
		}
	})
}

func TestFlowEqualsAugmentingWays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.IntRange(2, 40).Draw(t, "nodes")
		list := pipes(t, nodes, 200)
		if got, want := flowOf(nodes, list), reference.Flow(nodes, list); got != want {
			t.Fatalf("flow %d, by augmenting ways %d", got, want)
		}
	})
}
