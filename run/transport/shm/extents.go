//go:build linux

package shm

import "sort"

// span is a range of an arena, from start to end.
type span struct{ start, end uint64 }

func (s span) size() uint64 { return s.end - s.start }

// extents are the free parts of an arena, first fit. Free spans are sorted,
// never empty and never touch, so giving a part back finds its neighbours by
// binary search. Taking looks at one span after another: an arena has few, as
// what is given back merges.
type extents struct {
	free []span
	used map[uint64]uint64 // size by start
}

func newExtents(all span) *extents {
	return &extents{free: []span{all}, used: map[uint64]uint64{}}
}

// take gets n bytes at a multiple of align, a power of two; false if no free
// span has room.
func (x *extents) take(n, align uint64) (span, bool) {
	for i, f := range x.free {
		start := (f.start + align - 1) &^ (align - 1)
		if start < f.start || start > f.end || f.end-start < n {
			continue
		}
		s := span{start, start + n}
		switch before, after := (span{f.start, s.start}), (span{s.end, f.end}); {
		case before.size() > 0 && after.size() > 0:
			x.free[i] = before
			x.free = append(x.free, span{})
			copy(x.free[i+2:], x.free[i+1:])
			x.free[i+1] = after
		case before.size() > 0:
			x.free[i] = before
		case after.size() > 0:
			x.free[i] = after
		default:
			x.free = append(x.free[:i], x.free[i+1:]...)
		}
		x.used[s.start] = n
		return s, true
	}
	return span{}, false
}

// holder is the start of what is in use and holds a span.
func (x *extents) holder(s span) (start uint64, ok bool) {
	for start, n := range x.used {
		if s.start >= start && s.end <= start+n {
			return start, true
		}
	}
	return 0, false
}

// give frees what begins at start. It says what that was and the free span that
// it has become a part of; false if nothing in use begins there.
func (x *extents) give(start uint64) (was, merged span, ok bool) {
	n, ok := x.used[start]
	if !ok {
		return span{}, span{}, false
	}
	delete(x.used, start)
	was = span{start, start + n}
	i := sort.Search(len(x.free), func(i int) bool { return x.free[i].start > start })
	left := i > 0 && x.free[i-1].end == was.start
	right := i < len(x.free) && x.free[i].start == was.end
	switch {
	case left && right:
		x.free[i-1].end = x.free[i].end
		x.free = append(x.free[:i], x.free[i+1:]...)
		merged = x.free[i-1]
	case left:
		x.free[i-1].end = was.end
		merged = x.free[i-1]
	case right:
		x.free[i].start = was.start
		merged = x.free[i]
	default:
		x.free = append(x.free, span{})
		copy(x.free[i+1:], x.free[i:])
		x.free[i] = was
		merged = was
	}
	return was, merged, true
}
