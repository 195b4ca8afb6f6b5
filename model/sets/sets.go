// Package sets joins numbers into sets (union-find, with paths halved).
package sets

// Sets has for each number another one of its set. The least member of a set has itself, and stands for the set.
type Sets[T ~int | ~int32] []T

// New puts each of n numbers, from 0 on, into a set of its own.
func New[T ~int | ~int32](n int) Sets[T] {
	s := make(Sets[T], n)
	for i := range s {
		s[i] = T(i)
	}
	return s
}

// Find is the least member of the set that a number is in.
func (s Sets[T]) Find(x T) T {
	for s[x] != x {
		s[x] = s[s[x]]
		x = s[x]
	}
	return x
}

// Join makes one set of those that two numbers are in, and reports whether they were two.
func (s Sets[T]) Join(a, b T) bool {
	a, b = s.Find(a), s.Find(b)
	s[max(a, b)] = min(a, b)
	return a != b
}

// Flatten makes every number have the least member of its set.
func (s Sets[T]) Flatten() {
	for x := range s {
		s[x] = s.Find(T(x))
	}
}
