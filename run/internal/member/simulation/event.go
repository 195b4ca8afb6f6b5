package simulation

// event is something that will happen to a node, ordered by (at, seq).
type event struct {
	at   int64 // ns of the world's time
	seq  uint64
	node int32
	arg  int32
	kind kind
}

// Before orders by (at, seq). The world has one queue for
// timers, about one a rank, and one for messages, which are under way for a
// hundred microseconds and so number some tens even with 10,000 ranks: apart,
// the second stays in the first-level cache.
func (x event) Before(y event) bool { return x.at < y.at || x.at == y.at && x.seq < y.seq }
