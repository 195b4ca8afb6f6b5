package algo

import (
	"github.com/weft-fabric/weft/sched"
)

//	0 ──► 1 ──► 2
//	▲           │      Chunk c starts at rank c+1, gathers a contribution at
//	│           ▼      every rank, is whole at rank c, and goes round once more.
//	5 ◄── 4 ◄── 3
//
// The reduction order of chunk c is x[c+1], x[c+2], ..., x[c].
//
// Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of
// workstations, 2009.
func init() {
	register(&Algorithm{
		Name:      "ring",
		Ops:       []sched.Collective{sched.AllReduce, sched.ReduceScatter, sched.AllGather, sched.Broadcast, sched.Reduce, sched.SendRecv},
		Summary:   "large messages: every link carries the least bytes there can be",
		Steps:     "2(n-1); n-1 for reduce-scatter, all-gather",
		Sent:      "2S(n-1)/n; S(n-1)/n for reduce-scatter, all-gather",
		Reference: "Patarasuk and Yuan 2009",
		Build:     ring,
	})
}

func ring(s Spec) (string, error) {
	var t text
	pieces := orDefault(s.Pieces, 1)
	k := s.Channels * pieces // chunks a block: a share for each channel, cut into pieces
	at := func(block string) string {
		if k == 1 {
			return block
		}
		if pieces == 1 {
			return block + "*" + itoa(k) + "+c"
		}
		return block + "*" + itoa(k) + "+c*" + itoa(pieces) + "+p"
	}
	own := "c"
	if pieces > 1 {
		own = "c*" + itoa(pieces) + "+p"
	}
	each := func(body func()) {
		if pieces == 1 {
			body()
			return
		}
		t.block(body, "repeat p < %d:", pieces)
	}
	next, prev := "(r+1)%n", "(r-1)%n"
	switch s.Op {
	case sched.Broadcast, sched.Reduce, sched.SendRecv:
		return ringChain(s), nil
	}
	t.line("chunks n*%d", k)
	t.line("slots %d", orDefault(s.Slots, pieces+1))
	t.block(func() {
		switch s.Op {
		case sched.AllReduce:
			each(func() { t.line("send in[%s] to %s", at("(r-1)%n"), next) })
			t.block(func() {
				each(func() { t.line("recv-reduce-send in[%s] from %s to %s", at("(r-2-j)%n"), prev, next) })
			}, "repeat j < n-2:")
			each(func() { t.line("recv-reduce-copy-send in[%s] -> out[%s] from %s to %s", at("r"), at("r"), prev, next) })
			t.block(func() {
				each(func() { t.line("recv-copy-send -> out[%s] from %s to %s", at("(r-1-j)%n"), prev, next) })
			}, "repeat j < n-2:")
			each(func() { t.line("recv -> out[%s] from %s", at("(r+1)%n"), prev) })
		case sched.ReduceScatter:
			each(func() { t.line("send in[%s] to %s", at("(r-1)%n"), next) })
			t.block(func() {
				each(func() { t.line("recv-reduce-send in[%s] from %s to %s", at("(r-2-j)%n"), prev, next) })
			}, "repeat j < n-2:")
			each(func() { t.line("recv-reduce in[%s] -> out[%s] from %s", at("r"), own, prev) })
		case sched.AllGather:
			each(func() { t.line("copy in[%s] -> out[%s]", own, at("r")) })
			each(func() { t.line("send in[%s] to %s", own, next) })
			t.block(func() {
				each(func() { t.line("recv-copy-send -> out[%s] from %s to %s", at("(r-1-j)%n"), prev, next) })
			}, "repeat j < n-2:")
			each(func() { t.line("recv -> out[%s] from %s", at("(r+1)%n"), prev) })
		}
	}, "channels %d:", s.Channels)
	return t.String(), nil
}

// ringChain passes pieces along the ring from the root on, or towards it.
func ringChain(s Spec) string {
	var t text
	pieces := orDefault(s.Pieces, 4)
	if s.Op == sched.SendRecv {
		pieces = orDefault(s.Pieces, 1)
	}
	t.line("root %d", s.Root)
	t.line("chunks %d", s.Channels*pieces)
	t.line("slots %d", orDefault(s.Slots, pieces+1))
	at := "c*" + itoa(pieces) + "+p"
	each := func(format string, args ...any) {
		t.block(func() { t.line(format, args...) }, "repeat p < %d:", pieces)
	}
	d := "(r-" + itoa(s.Root) + ")%n" // distance from the root along the ring
	t.block(func() {
		switch s.Op {
		case sched.SendRecv:
			each("send in[%s] to (r+1)%%n", at)
			each("recv -> out[%s] from (r-1)%%n", at)
		case sched.Broadcast:
			t.block(func() {
				each("copy in[%s] -> out[%s]", at, at)
				each("send in[%s] to (r+1)%%n", at)
			}, "if %s == 0:", d)
			t.block(func() { each("recv-copy-send -> out[%s] from (r-1)%%n to (r+1)%%n", at) }, "if 0 < %s && %s < n-1:", d, d)
			t.block(func() { each("recv -> out[%s] from (r-1)%%n", at) }, "if %s == n-1:", d)
		case sched.Reduce:
			t.block(func() { each("send in[%s] to (r+1)%%n", at) }, "if %s == 1:", d)
			t.block(func() { each("recv-reduce-send in[%s] from (r-1)%%n to (r+1)%%n", at) }, "if 1 < %s:", d)
			t.block(func() { each("recv-reduce in[%s] -> out[%s] from (r-1)%%n", at, at) }, "if %s == 0:", d)
		}
	}, "channels %d:", s.Channels)
	return t.String()
}
