package member

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func someEpoch(t *rapid.T, name string, number uint64) *Epoch {
	e := &Epoch{Number: number, Leader: ID(rapid.Uint32Range(0, 50).Draw(t, name+" leader")),
		Observers: rapid.IntRange(1, MaxObservers).Draw(t, name+" observers"),
		AfterStep: rapid.Uint64().Draw(t, name+" after"), Halt: Reason(rapid.IntRange(0, int(reasonCount)-1).Draw(t, name+" halt"))}
	ids := rapid.SliceOfNDistinct(rapid.Uint32Range(0, 80), 0, 60, rapid.ID[uint32]).Draw(t, name+" ids")
	slices.Sort(ids)
	for _, id := range ids {
		e.Members = append(e.Members, Member{ID(id), rapid.Uint64Range(1, 3).Draw(t, name+" life"), rapid.Bool().Draw(t, name+" recovering")})
	}
	return e
}

// Every member has as many different observers as there are to be had, none of
// them itself; who observes and who is observed say the same; news told to
// observers reaches everyone; and losing a member moves few edges of others.
func TestGraph(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := someEpoch(t, "epoch", 1)
		e.wire()
		n := len(e.Members)
		k := min(e.Observers, max(0, n-1))
		for i, list := range e.watching {
			if len(list) != k {
				t.Fatalf("%d of %d members has %d observers, not %d", i, n, len(list), k)
			}
			for j, o := range list {
				if int(o) == i || slices.Contains(list[:j], o) {
					t.Fatalf("%d is observed by %v", i, list)
				}
				if !slices.Contains(e.watched[o], int32(i)) {
					t.Fatalf("%d is observed by %d, which observes %v", i, o, e.watched[o])
				}
			}
		}
		edges := 0
		for _, list := range e.watched {
			edges += len(list)
		}
		if edges != n*k {
			t.Fatalf("%d edges one way, %d the other", n*k, edges)
		}
		if n == 0 {
			return
		}
		reached, queue := make([]bool, n), []int32{0}
		for len(queue) > 0 {
			i := queue[0]
			queue = queue[1:]
			if !reached[i] {
				reached[i] = true
				queue = append(queue, e.watching[i]...)
			}
		}
		if slices.Contains(reached, false) {
			t.Fatalf("from %v some are not reached: %v", e.Members[0].ID, reached)
		}
		gone := rapid.IntRange(0, n-1).Draw(t, "gone")
		less := &Epoch{Number: 2, Observers: e.Observers, Members: slices.Delete(slices.Clone(e.Members), gone, gone+1)}
		less.wire()
		moved := 0
		for i := range e.Members {
			if i == gone {
				continue
			}
			for _, o := range e.watching[i] {
				id := e.Members[o].ID
				if int(o) != gone && !slices.Contains(less.watching[less.Index(e.Members[i].ID)], int32(less.Index(id))) {
					moved++
				}
			}
		}
		if n > 4*e.Observers && moved > 2*e.Observers {
			t.Fatalf("losing one of %d members moves %d edges of others", n, moved)
		}
	})
}

// The difference of two epochs leads from one to the other.
func TestChange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := someEpoch(t, "a", 7), someEpoch(t, "b", 8)
		if rapid.Bool().Draw(t, "first") {
			a, b.Number = nil, 1
		}
		c := change(a, b)
		book := &Book{}
		got, err := book.turn(a, &c)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got.Members, b.Members) || got.Number != b.Number || got.Leader != b.Leader || got.Halt != b.Halt ||
			got.AfterStep != b.AfterStep {
			t.Fatalf("from %v by %+v to %v, not %v", a, c, got, b)
		}
		again, err := book.turn(a, &c)
		if err != nil || again != got {
			t.Fatalf("the book makes an epoch twice: %v", err)
		}
	})
}

func BenchmarkGraph(b *testing.B) {
	e := Epoch{Number: 1, Observers: 4}
	for i := range 10_000 {
		e.Members = append(e.Members, Member{ID: ID(i), Life: 1})
	}
	for b.Loop() {
		e.wire()
	}
}
