package sim

import "github.com/weft-fabric/weft/model/unit"

// kind says what an event is.
type kind uint8

const (
	begins  kind = iota // a job's ranks may start
	starts              // a thread's overhead is over, its flow begins
	ends                // a thread's flow is through, if its version still holds
	done                // a thread's action is done
	arrives             // the oldest message under way on a connection is there
	calms               // a link may no longer pause others
	carries             // what a switch sends on a connection is through, if its version still holds
)

// event is something that will happen.
type event struct {
	id      int32
	version uint32
	kind    kind
}

// events holds what will happen, by (time, sequence). Like ranks do like things
// at the same time, so events of one time are kept in a list, and the heap, of
// four children a node, holds a list for each time. Which list a time has is
// remembered in a small table, where one time may push another out; then a time
// has two lists, of which the older comes first.
type events struct {
	heap  []moments
	lists [][]event
	spare []int32 // lists that are free
	table [256]slot
	seq   uint64
	at    int // in the list of the first time
	count int
}

// moments is a time and its list.
type moments struct {
	at   unit.Time
	seq  uint64
	list int32
}

type slot struct {
	at   unit.Time
	list int32 // plus one
}

func before(a, b *moments) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }

func (e *events) slot(at unit.Time) *slot {
	return &e.table[uint64(at)*0x9e3779b97f4a7c15>>56]
}

func (e *events) push(at unit.Time, k kind, id int32, version uint32) {
	e.count++
	s := e.slot(at)
	if s.list > 0 && s.at == at {
		e.lists[s.list-1] = append(e.lists[s.list-1], event{id, version, k})
		return
	}
	var list int32
	if n := len(e.spare); n > 0 {
		list, e.spare = e.spare[n-1], e.spare[:n-1]
	} else {
		list = int32(len(e.lists))
		e.lists = append(e.lists, nil)
	}
	e.lists[list] = append(e.lists[list], event{id, version, k})
	*s = slot{at, list + 1}
	e.seq++
	x := moments{at, e.seq, list}
	e.heap = append(e.heap, x)
	h, i := e.heap, len(e.heap)-1
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

// next is the time of the first event; there must be one.
func (e *events) next() unit.Time { return e.heap[0].at }

// pop takes the first event out.
func (e *events) pop() event {
	top := e.heap[0]
	list := e.lists[top.list]
	x := list[e.at]
	e.count--
	if e.at++; e.at < len(list) {
		return x
	}
	e.at = 0
	e.lists[top.list] = list[:0]
	e.spare = append(e.spare, top.list)
	if s := e.slot(top.at); s.list == top.list+1 {
		s.list = 0
	}
	e.drop()
	return x
}

// drop takes the first list off the heap.
func (e *events) drop() {
	h := e.heap
	n := len(h) - 1
	x := h[n]
	h = h[:n]
	e.heap = h
	if n == 0 {
		return
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
}

// shift puts all events off; their order stays. It is called between times.
func (e *events) shift(by unit.Time) {
	for i := range e.heap {
		e.heap[i].at += by
	}
	clear(e.table[:])
}
