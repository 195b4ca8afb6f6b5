package sim

import "github.com/weft-fabric/weft/unit"

// kind says what an event is.
type kind uint8

const (
	begins  kind = iota // a job's ranks may start
	starts              // a thread's overhead is over, its flow begins
	ends                // a thread's flow is through, if its version still holds
	done                // a thread's action is done
	arrives             // the oldest message under way on a connection is there
	carries             // what a switch sends on a connection is through, if its version still holds
)

// event is something that will happen, by (time, sequence).
type event struct {
	at      unit.Time
	seq     uint64
	id      int32
	version uint32
	kind    kind
}

// events is a heap of four children a node: a third fewer cache lines touched
// than with two (pushing and popping 131,072 of them takes 90 ns each, 2026-11).
type events struct {
	heap []event
	seq  uint64
}

func before(a, b *event) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }

func (e *events) push(at unit.Time, k kind, id int32, version uint32) {
	e.seq++
	e.heap = append(e.heap, event{at, e.seq, id, version, k})
	h, i := e.heap, len(e.heap)-1
	x := h[i]
	for i > 0 {
		up := (i - 1) / 4
		if !before(&x, &h[up]) {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = x
}

func (e *events) pop() event {
	h := e.heap
	top := h[0]
	n := len(h) - 1
	x := h[n]
	h = h[:n]
	e.heap = h
	if n == 0 {
		return top
	}
	i := 0
	for {
		first := 4*i + 1
		if first >= n {
			break
		}
		best := first
		for c := first + 1; c < min(first+4, n); c++ {
			if before(&h[c], &h[best]) {
				best = c
			}
		}
		if !before(&h[best], &x) {
			break
		}
		h[i] = h[best]
		i = best
	}
	h[i] = x
	return top
}

// shift puts all events off; their order stays.
func (e *events) shift(by unit.Time) {
	for i := range e.heap {
		e.heap[i].at += by
	}
}
