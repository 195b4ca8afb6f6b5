package algo

import (
	"strings"

	"github.com/weft-fabric/weft/collective/sched"
)

//	0 ──► 1 ──► 2
//	▲           │      Chunk c starts at rank c+1, gathers a contribution at
//	│           ▼      every rank, is whole at rank c, and goes round once more.
//	5 ◄── 4 ◄── 3
//
// The reduction order of chunk c is x[c+1], x[c+2], ..., x[c]. The bidirectional
// ring is two of them with half the data each, the second one turning the other
// way, so that both directions of every link are busy.
//
// Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of
// workstations, 2009.
func init() {
	register(&Algorithm{
		Name: "ring", Traits: Traits{Ring: true, Cut: CutWhole, Long: 2}, Nests: true,
		Ops:       []sched.Collective{sched.AllReduce, sched.ReduceScatter, sched.AllGather, sched.Broadcast, sched.Reduce, sched.SendRecv},
		Summary:   "large messages: every link carries the least bytes there can be",
		Steps:     "2(n-1); n-1 for reduce-scatter, all-gather",
		Sent:      "2S(n-1)/n; S(n-1)/n for reduce-scatter, all-gather",
		Reference: "Patarasuk and Yuan 2009",
		Build:     func(s Spec) (string, error) { return ring(s, 1), nil },
	})
	register(&Algorithm{
		Name: "bidirectional-ring", Traits: Traits{Cut: CutWhole},
		Ops:       []sched.Collective{sched.AllReduce, sched.ReduceScatter, sched.AllGather, sched.Broadcast, sched.Reduce},
		Summary:   "large messages on links that carry both directions at once",
		Steps:     "2(n-1); n-1 for reduce-scatter, all-gather",
		Sent:      "2S(n-1)/n, half of it each way; S(n-1)/n for reduce-scatter, all-gather",
		Reference: "Patarasuk and Yuan 2009, both ways",
		Build:     func(s Spec) (string, error) { return ring(s, 2), nil },
	})
}

// round is a number of rings. If there are two ways, every second ring turns the
// other way; the channel's parity tells which.
type round struct {
	channels int
	ways     int
}

// ahead gives the rank that many places on, behind the rank that many places before.
func (w round) ahead(places ...string) string { return w.place("+", places) }

func (w round) behind(places ...string) string { return w.place("-", places) }

func (w round) place(sign string, places []string) string {
	if w.ways == 1 {
		return "(r" + sign + strings.Join(places, sign) + ")%n"
	}
	return "(r" + sign + "(" + strings.Join(places, "+") + ")*(1-c%2*2))%n"
}

func ring(s Spec, ways int) string {
	switch s.Op {
	case sched.Broadcast, sched.Reduce, sched.SendRecv:
		return ringChain(s, ways)
	}
	var t text
	w := round{s.Channels * ways, ways}
	pieces := s.cut(1)
	k := w.channels * pieces // chunks a block: a share for each channel, cut into pieces
	at := func(block string) string {
		switch {
		case k == 1:
			return block
		case pieces == 1:
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
		t.each(pieces, body)
	}
	next, prev := w.ahead("1"), w.behind("1")
	behind := func(places ...string) string { return at(w.behind(places...)) }
	reduce := func() {
		each(func() { t.line("send in[%s] to %s", behind("1"), next) })
		t.block(func() {
			each(func() { t.line("recv-reduce-send in[%s] from %s to %s", behind("2", "j"), prev, next) })
		}, "repeat j < n-2:")
	}
	gather := func() {
		t.block(func() {
			each(func() { t.line("recv-copy-send -> out[%s] from %s to %s", behind("1", "j"), prev, next) })
		}, "repeat j < n-2:")
		each(func() { t.line("recv -> out[%s] from %s", at(w.ahead("1")), prev) })
	}
	t.line("chunks %s", times("n", k))
	t.line("slots %d", orDefault(s.Slots, pieces+1))
	t.block(func() {
		switch s.Op {
		case sched.AllReduce:
			reduce()
			each(func() { t.line("recv-reduce-copy-send in[%s] -> out[%s] from %s to %s", at("r"), at("r"), prev, next) })
			gather()
		case sched.ReduceScatter:
			reduce()
			each(func() { t.line("recv-reduce in[%s] -> out[%s] from %s", at("r"), own, prev) })
		case sched.AllGather:
			each(func() { t.line("copy in[%s] -> out[%s]", own, at("r")) })
			each(func() { t.line("send in[%s] to %s", own, next) })
			gather()
		}
	}, "channels %d:", w.channels)
	return t.String()
}

// ringChain passes pieces along the ring from the root on, or towards it.
func ringChain(s Spec, ways int) string {
	var t text
	w := round{s.Channels * ways, ways}
	pieces := orDefault(s.Pieces, 4)
	if s.Op == sched.SendRecv {
		pieces = orDefault(s.Pieces, 1)
	}
	t.line("root %d", s.Root)
	t.line("chunks %d", w.channels*pieces)
	t.line("slots %d", orDefault(s.Slots, pieces+1))
	at := "c*" + itoa(pieces) + "+p"
	each := func(format string, args ...any) {
		t.each(pieces, func() { t.line(format, args...) })
	}
	next, prev := w.ahead("1"), w.behind("1")
	d := "(r-" + itoa(s.Root) + ")%n" // distance from the root along the ring
	if ways == 2 {
		d = "((r-" + itoa(s.Root) + ")*(1-c%2*2))%n"
	}
	t.block(func() {
		switch s.Op {
		case sched.SendRecv:
			each("send in[%s] to %s", at, next)
			each("recv -> out[%s] from %s", at, prev)
		case sched.Broadcast:
			t.block(func() {
				each("copy in[%s] -> out[%s]", at, at)
				each("send in[%s] to %s", at, next)
			}, "if %s == 0:", d)
			t.block(func() { each("recv-copy-send -> out[%s] from %s to %s", at, prev, next) }, "if 0 < %s && %s < n-1:", d, d)
			t.block(func() { each("recv -> out[%s] from %s", at, prev) }, "if %s == n-1:", d)
		case sched.Reduce:
			t.block(func() { each("send in[%s] to %s", at, next) }, "if %s == 1:", d)
			t.block(func() { each("recv-reduce-send in[%s] from %s to %s", at, prev, next) }, "if 1 < %s:", d)
			t.block(func() { each("recv-reduce in[%s] -> out[%s] from %s", at, at, prev) }, "if %s == 0:", d)
		}
	}, "channels %d:", w.channels)
	return t.String()
}
