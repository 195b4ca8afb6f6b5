package design

import (
	"testing"

	"pgregory.net/rapid"
)

type pipe struct {
	a, b        int32
	there, back int64
}

func pipes(t *rapid.T, nodes, most int) []pipe {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) pipe {
		p := pipe{a: int32(rapid.IntRange(0, nodes-1).Draw(t, "a")), b: int32(rapid.IntRange(0, nodes-1).Draw(t, "b")), there: rapid.Int64Range(0, 20).Draw(t, "there")}
		if rapid.Bool().Draw(t, "both ways") {
			p.back = p.there
		}
		return p
	}), 0, most).Draw(t, "pipes")
}

func flowOf(nodes int, list []pipe) int64 {
	n := newNetwork(nodes, len(list))
	for _, p := range list {
		if p.a != p.b {
			n.add(p.a, p.b, p.there, p.back)
		}
	}
	return n.flow(0, int32(nodes-1))
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
				in, out := set>>p.a&1 == 1, set>>p.b&1 == 1
				switch {
				case in && !out:
					cut += p.there
				case out && !in:
					cut += p.back
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

// augment is the plain reference: one shortest augmenting way after another (Edmonds, Karp 1972).
func augment(nodes int, list []pipe) int64 {
	room := make([][]int64, nodes)
	for i := range room {
		room[i] = make([]int64, nodes)
	}
	for _, p := range list {
		if p.a != p.b {
			room[p.a][p.b] += p.there
			room[p.b][p.a] += p.back
		}
	}
	total := int64(0)
	for {
		from := make([]int, nodes)
		for i := range from {
			from[i] = -1
		}
		from[0] = 0
		queue := []int{0}
		for q := 0; q < len(queue); q++ {
			for w, r := range room[queue[q]] {
				if r > 0 && from[w] < 0 {
					from[w] = queue[q]
					queue = append(queue, w)
				}
			}
		}
		if from[nodes-1] < 0 {
			return total
		}
		least := int64(1 << 62)
		for w := nodes - 1; w != 0; w = from[w] {
			least = min(least, room[from[w]][w])
		}
		for w := nodes - 1; w != 0; w = from[w] {
			room[from[w]][w] -= least
			room[w][from[w]] += least
		}
		total += least
	}
}

func TestFlowEqualsAugmentingWays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.IntRange(2, 40).Draw(t, "nodes")
		list := pipes(t, nodes, 200)
		if got, want := flowOf(nodes, list), augment(nodes, list); got != want {
			t.Fatalf("flow %d, by augmenting ways %d", got, want)
		}
	})
}
