// Package heap is a priority queue of values, with four children a node.
package heap

// Ordered is what the queue is ordered by. Values of which none is before the other come in any order, the same one every time.
type Ordered[T any] interface{ Before(T) bool }

// Heap gives the first of its values. The zero value is empty.
type Heap[T Ordered[T]] struct{ list []T }

// Len is how many values it holds.
func (h *Heap[T]) Len() int { return len(h.list) }

// First is the value that Pop would give.
func (h *Heap[T]) First() T { return h.list[0] }

// All are the values, the first one first and the others in no order. Whoever changes them calls Set.
func (h *Heap[T]) All() []T { return h.list }

// Set replaces the values.
func (h *Heap[T]) Set(list []T) {
	h.list = list[:0]
	for _, x := range list {
		h.Push(x)
	}
}

// Clear takes all values out.
func (h *Heap[T]) Clear() { h.list = h.list[:0] }

// Push adds a value.
func (h *Heap[T]) Push(x T) {
	h.list = append(h.list, x)
	l, i := h.list, len(h.list)-1
	for i > 0 {
		up := (i - 1) / 4
		if !x.Before(l[up]) {
			break
		}
		l[i] = l[up]
		i = up
	}
	l[i] = x
}

// Pop takes the first value out.
func (h *Heap[T]) Pop() T {
	l := h.list
	top, n := l[0], len(l)-1
	x := l[n]
	var none T
	l[n] = none
	l = l[:n]
	if h.list = l; n == 0 {
		return top
	}
	i := 0
	for first := 1; first < n; first = 4*i + 1 {
		best := first
		for c := first + 1; c < min(first+4, n); c++ {
			if l[c].Before(l[best]) {
				best = c
			}
		}
		if !l[best].Before(x) {
			break
		}
		l[i] = l[best]
		i = best
	}
	l[i] = x
	return top
}
