package engine

import "slices"

// chain finds the critical path: the spans, first to last, each of which waited for the one before it and for nothing later.
// It begins with the span that ends last, and goes back from each span to whatever came last before it began: the message that
// it received, or what its rank did before on the same channel.
//
//	rank 0  ▆▆▆▆╲
//	rank 1       ▆▆▆▆╲           a span begins when its message is there
//	rank 2            ▆▆▆▆
//
// Where only one rank of each class has spans, a message's sender is the rank of the sender's class.
func (t *trace) chain() ints {
	last := -1
	sends := map[[2]int32][]int32{}  // by sender and receiver, as the trace shows them
	thread := map[[2]int32][]int32{} // by rank and channel
	for i := range t.Rank {
		if last < 0 || t.End[i] > t.End[last] {
			last = i
		}
		if t.To[i] >= 0 {
			key := t.shownPair(t.Rank[i], t.To[i])
			sends[key] = append(sends[key], int32(i))
		}
		key := [2]int32{t.Rank[i], t.Channel[i]}
		thread[key] = append(thread[key], int32(i))
	}
	var out ints
	for i := last; i >= 0 && len(out) <= len(t.Rank); {
		out = append(out, int32(i))
		before := t.latest(thread[[2]int32{t.Rank[i], t.Channel[i]}], i, t.Begin[i], false)
		if t.From[i] >= 0 {
			if m := t.latest(sends[t.shownPair(t.From[i], t.Rank[i])], i, t.Begin[i], true); m >= 0 && (before < 0 || t.there(m) > t.End[before]) {
				before = m
			}
		}
		i = before
	}
	slices.Reverse(out)
	return out
}

// latest is the span of a list that ended last, not after a time; -1 if none did. Messages end when they are there.
func (t *trace) latest(list []int32, self int, by int64, message bool) int {
	best := -1
	for _, s := range list {
		i := int(s)
		end := t.End[i]
		if message {
			end = t.there(i)
		}
		// A span's times are rounded when they are stretched, and a message may be told of before its last byte: a part in a
		// thousand of slack, and always an earlier beginning, so that the walk ends.
		if i == self || t.Begin[i] >= t.Begin[self] || end > by+by/1000+1 {
			continue
		}
		if best < 0 || t.End[i] > t.End[best] {
			best = i
		}
	}
	return best
}

// there is when a message has arrived.
func (t *trace) there(i int) int64 {
	if p := t.Pair[i]; p >= 0 && int(p) < len(t.Latency) {
		return t.End[i] + t.Latency[p]
	}
	return t.End[i]
}

// shownPair is a sender and a receiver moved back by whole classes, so that the sender is one that the trace shows.
func (t *trace) shownPair(from, to int32) [2]int32 {
	p, n := int32(t.Period), int32(t.Ranks)
	if p <= 0 || p >= n || from < 0 || from >= n || to >= n {
		return [2]int32{from, to}
	}
	by := from / p * p
	return [2]int32{from - by, ((to-by)%n + n) % n}
}
