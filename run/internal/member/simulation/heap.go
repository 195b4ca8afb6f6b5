package simulation

// event is something that will happen to a node, ordered by (at, seq).
type event struct {
	at   int64 // ns of the world's time
	seq  uint64
	node int32
	arg  int32
	kind kind
}

func before(a, b *event) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }

// heap is a priority queue with four children a node. The world has one for
// timers, about one a rank, and one for messages, which are under way for a
// hundred microseconds and so number some tens even with 10,000 ranks: apart,
// the second stays in the first-level cache.
type heap struct{ list []event }

func (h *heap) push(x event) {
	h.list = append(h.list, x)
	l, i := h.list, len(h.list)-1
	for i > 0 {
		up := (i - 1) / 4
		if !before(&x, &l[up]) {
			break
		}
		l[i] = l[up]
		i = up
	}
	l[i] = x
}

func (h *heap) pop() event {
	l := h.list
	top, n := l[0], len(l)-1
	x := l[n]
	l = l[:n]
	h.list = l
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
			if before(&l[c], &l[best]) {
				best = c
			}
		}
		if !before(&l[best], &x) {
			break
		}
		l[i] = l[best]
		i = best
	}
	l[i] = x
	return top
}
