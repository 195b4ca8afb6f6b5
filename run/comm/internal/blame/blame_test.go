package blame

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// op is an operation as ranks enter it; odd is another one under its number.
func op(seq uint64) Call {
	return Call{Seq: seq, What: "all-reduce of 4 float32 sum", Sig: 7, Ago: " 1ms ago"}
}
func odd(seq uint64) Call {
	return Call{Seq: seq, What: "broadcast of 4 float32 at root 0", Sig: 8, Ago: " 1ms ago"}
}

// rank is one that entered operations up to seq and did its part.
func rank(seq uint64) Rank {
	r := Rank{Answers: true, Entered: seq, Done: true, WaitsFor: -1, PairsWith: -1}
	if seq > 0 {
		r.Last, r.Mine = op(seq), op(seq)
	}
	return r
}

func with(r Rank, change func(*Rank)) Rank {
	change(&r)
	return r
}

func silent(r *Rank)  { *r = Rank{WaitsFor: -1, PairsWith: -1} }
func stopped(r *Rank) { r.State = 'T' }
func undone(r *Rank)  { r.Done = false }
func waits(for_ int) func(*Rank) {
	return func(r *Rank) { r.Done, r.WaitsFor, r.Channel, r.Step = false, for_, 1, 5 }
}
func pairs(with int) func(*Rank) { return func(r *Rank) { r.PairsWith = with } }
func both(fs ...func(*Rank)) func(*Rank) {
	return func(r *Rank) {
		for _, f := range fs {
			f(r)
		}
	}
}

// Every verdict: who is at fault and what is said. Rank 0 asks, in operation 5.
func TestJudge(t *testing.T) {
	late := func(p Phase, ranks ...Rank) Scene {
		return Scene{Ranks: append([]Rank{rank(5)}, ranks...), Call: op(5), Phase: p, Shared: p != Messages, Waited: 2 * time.Second}
	}
	message := func(ranks ...Rank) Scene {
		return Scene{Ranks: append([]Rank{rank(5)}, ranks...), Message: "receive from", Peer: 1}
	}
	lost := func(l Loss, ranks ...Rank) Scene {
		l.Gone, l.Rank = true, 1
		return Scene{Ranks: append([]Rank{rank(5)}, ranks...), Lost: l}
	}
	for _, x := range []struct {
		name     string
		scene    Scene
		kind     Kind
		culprits []int
		says     string // a part of the sentence
	}{
		{"died, board seen", lost(Loss{Why: "killed"}, rank(5)), Dead, []int{1},
			"rank 1 died (killed); it last entered operation 5 (all-reduce of 4 float32 sum) 1ms ago"},
		{"died before any operation", lost(Loss{Why: "killed"}, rank(0)), Dead, []int{1}, "rank 1 died (killed); it took part in no operation"},
		{"died far away", lost(Loss{Why: "no answer"}, with(rank(0), func(r *Rank) { silent(r); r.Last = op(3) })), Dead, []int{1},
			"rank 1 died (no answer); its last message here was of operation 3"},
		{"died far away, nothing seen", lost(Loss{Why: "no answer"}, with(rank(0), silent)), Dead, []int{1},
			"rank 1 died (no answer); no operation of it was seen"},
		{"refused frames", lost(Loss{Why: "rank 0 does not take what rank 1 sends: frame of unknown kind 9", Refused: true, Sender: 1}, rank(5)),
			Refused, []int{1}, "unknown kind 9"},
		{"own frames refused", lost(Loss{Why: "rank 1 does not take what rank 0 sends: frame of unknown kind 9", Refused: true, Sender: 0},
			rank(5)), Refused, []int{0}, "unknown kind 9"},
		{"left", lost(Loss{Closed: true}, rank(4)), Left, []int{1}, "rank 1 closed the communicator; it last entered operation 4"},

		{"one did not enter", late(Entry, rank(5), rank(4)), Timeout, []int{2},
			"time limit passed after 2s at entry: rank 2 did not enter it; rank 2: last entered operation 4"},
		{"one never came", late(Entry, rank(5), rank(0)), Timeout, []int{2}, "rank 2 did not enter it; rank 2: took part in no operation yet"},
		{"two did not enter, the hindmost is at fault", late(Entry, rank(4), rank(2)), Timeout, []int{2}, "rank 2 did not enter it"},
		{"two alike did not enter", late(Entry, rank(4), rank(4)), Timeout, []int{1, 2}, "ranks 1, 2 did not enter it"},
		{"far away all that are missing are at fault", late(Messages, rank(4), rank(2)), Timeout, []int{1, 2}, "ranks 1, 2 did not enter it"},
		{"one waits for a silent one in an operation before", late(Messages, with(rank(4), waits(2)), with(rank(4), silent)), Timeout, []int{2},
			"rank 2 did not enter it"},
		{"one waits for this rank in an operation before", late(Messages, with(rank(4), waits(0)), rank(5)), Timeout, []int{1},
			"rank 1 did not enter it"},
		{"one does not answer", late(Messages, rank(5), with(rank(5), silent)), Timeout, []int{2},
			"rank 2 did not enter it; rank 2: does not answer"},
		{"one sent messages and does not answer", late(Messages, rank(5), with(rank(5), func(r *Rank) { silent(r); r.Last = op(5) })).from(2),
			Timeout, []int{2}, "rank 2 entered it but did not go on; rank 2: sent messages of operation 5, does not answer now"},
		{"a stopped one is at fault", late(Entry, rank(4), with(rank(4), stopped)), Timeout, []int{2},
			"rank 2: last entered operation 4 (all-reduce of 4 float32 sum) 1ms ago; its process is stopped"},
		{"one sums slowly", late(Sums, rank(5), with(rank(5), undone)), Timeout, []int{2},
			"at sums: rank 2 entered it but did not go on; rank 2: entered operation 5 (all-reduce of 4 float32 sum) 1ms ago, not done with it"},
		{"the end of a chain of waits", late(Messages, with(rank(5), waits(2)), with(rank(5), undone)).from(1), Timeout, []int{2},
			"rank 2 entered it but did not go on"},
		{"a circle of waits", late(Messages, with(rank(5), waits(2)), with(rank(5), waits(0))).from(1), Timeout, []int{1, 2},
			"rank 1: entered operation 5 (all-reduce of 4 float32 sum) 1ms ago, waits for rank 2 at step 5 of channel 1"},
		{"all did their part", late(Pieces, rank(5)), Timeout, nil,
			"time limit passed after 2s at pieces: every other rank entered it and did its part, so nobody seems to be at fault; the time limit may be too short"},
		{"all did their part, and this rank waits for nobody",
			late(Messages, rank(5)), Timeout, []int{0}, "rank 0 entered it but did not go on; rank 0 is this rank, and waits for no other"},

		{"another call now", late(Entry, with(rank(5), func(r *Rank) { r.Last = odd(5) })), Mismatch, []int{0, 1}, ""},
		{"another call now, and it went on", late(Entry, with(rank(7), func(r *Rank) { r.Here = odd(5) })), Mismatch, []int{0, 1}, ""},
		{"another call before", late(Entry, with(rank(3), func(r *Rank) { r.Last = odd(3) })), Mismatch, []int{0, 1}, ""},
		{"it went on after the same call", late(Exit, with(rank(7), func(r *Rank) { r.Here = op(5); r.Done = false })), Timeout, []int{1},
			"rank 1 entered it but did not go on"},

		{"missing because of a send to one that is here", late(Entry, rank(5), with(rank(4), pairs(1))), Mismatch, []int{1, 2},
			"rank 2 waits for rank 1 in a send or receive, and rank 1 for it in this operation"},
		{"missing because of a send to one that is missing", late(Messages, with(rank(4), pairs(2)), rank(4)), Timeout, []int{2},
			"rank 2 did not enter it"},
		{"a stopped one waits for nobody", late(Messages, with(rank(4), both(pairs(2), stopped)), rank(4)), Timeout, []int{1},
			"rank 1 did not enter it"},

		{"a message that does not come", message(rank(5)), Timeout, []int{1}, "time limit passed: receive from rank 1, which did not come"},
		{"from a rank that does not answer", message(with(rank(5), silent)), Timeout, []int{1}, "receive from rank 1: rank 1 does not answer"},
		{"from a stopped rank", message(with(rank(5), stopped)), Timeout, []int{1}, "which did not come; its process is stopped"},
		{"from a rank in an operation", message(rank(6)), Mismatch, []int{0, 1},
			"rank 1 is in operation 6 (all-reduce of 4 float32 sum) 1ms ago, which rank 0 has not entered"},
		{"both receive", message(with(rank(5), pairs(0))), Mismatch, []int{0, 1},
			"while rank 1 waits for rank 0: they differ in what they send and receive"},
		{"the other waits for a third", message(with(rank(5), pairs(2)), rank(5)), Timeout, []int{2},
			"receive from rank 1, which waits for rank 2, which did not come"},
		{"the third is in an operation", message(with(rank(5), pairs(2)), rank(6)), Mismatch, []int{0, 2},
			"which waits for rank 2: rank 2 is in operation 6"},
		{"a circle of others", message(with(rank(5), pairs(2)), with(rank(5), pairs(1))), Timeout, []int{2}, "which did not come"},
	} {
		t.Run(x.name, func(t *testing.T) {
			v := Judge(&x.scene)
			if v.Kind != x.kind || !slices.Equal(v.Culprits, x.culprits) || !strings.Contains(v.Text, x.says) {
				t.Errorf("kind %d, ranks %v: %s\nwant kind %d, ranks %v: %s\n%s",
					v.Kind, v.Culprits, v.Text, x.kind, x.culprits, x.says, strings.Join(v.Report, "\n"))
			}
			if differs := v.Kind == Mismatch && v.Text == ""; differs != (v.Differs >= 0) {
				t.Errorf("rank %d differs: %s", v.Differs, v.Text)
			}
			if again := Judge(&x.scene); fmt.Sprint(again) != fmt.Sprint(v) {
				t.Errorf("a second look says %v, the first %v", again, v)
			}
		})
	}
}

// from makes the asking rank wait for another.
func (s Scene) from(waits int) Scene {
	s.Ranks[0].WaitsFor = waits
	return s
}

// Every answer about a rank that is gone.
func TestAsk(t *testing.T) {
	for _, x := range []struct {
		name string
		a    Absence
		want Answer
	}{
		{"it did its part", Absence{Phase: Sums, Shared: true, Died: true, Done: true}, GoOn},
		{"it did not enter", Absence{Phase: Entry, Shared: true, Died: true}, Fail},
		{"it left its sums undone", Absence{Phase: Sums, Shared: true, Died: true}, Fail},
		{"it gives no more pieces", Absence{Phase: Pieces, Shared: true, Died: true}, Fail},

		{"died at the exit, nobody misses its sums", Absence{Phase: Exit, Shared: true, Died: true}, Inherit},
		{"died at the exit, this is the heir", Absence{Phase: Exit, Shared: true, Died: true, Heirs: true, Heir: true}, Inherit},
		{"died at the exit, another is the heir", Absence{Phase: Exit, Shared: true, Died: true, Heirs: true}, GoOn},
		{"closed at the exit, awaited", Absence{Phase: Exit, Shared: true, Died: true, Closed: true, Awaited: true}, Fail},
		{"closed at the exit, not awaited", Absence{Phase: Exit, Shared: true, Died: true, Closed: true}, GoOn},

		{"left after its messages", Absence{Phase: Messages}, GoOn},
		{"left after its messages, shared", Absence{Phase: Messages, Shared: true}, GoOn},
		{"died in shared memory, its board says not done", Absence{Phase: Messages, Shared: true, Died: true}, Fail},
		{"died just now", Absence{Phase: Messages, Died: true, Missing: DiedFor - 1}, GoOn},
		{"died a moment ago", Absence{Phase: Messages, Died: true, Missing: DiedFor}, Fail},
		{"closed, awaited, just now", Absence{Phase: Messages, Died: true, Closed: true, Awaited: true, Missing: ClosedFor - 1}, GoOn},
		{"closed, awaited, long ago", Absence{Phase: Messages, Died: true, Closed: true, Awaited: true, Missing: ClosedFor}, Fail},
		{"closed, not awaited", Absence{Phase: Messages, Died: true, Closed: true, Missing: time.Hour}, GoOn},
	} {
		if got := Ask(&x.a); got != x.want {
			t.Errorf("%s: %d, want %d", x.name, got, x.want)
		}
	}
}

// Whatever boards say, also nonsense: a verdict names ranks of the group, in order, each once, and does not hang.
func FuzzJudge(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, uint8(3), uint8(0))
	f.Fuzz(func(t *testing.T, b []byte, n, what uint8) {
		next := func() int {
			if len(b) == 0 {
				return 0
			}
			v := int(int8(b[0]))
			b = b[1:]
			return v
		}
		s := Scene{Ranks: make([]Rank, 2+n%6), Phase: Phase(what>>2) % (Input + 1), Shared: what&1 != 0, Call: op(5), Peer: 1}
		for i := range s.Ranks {
			k := next()
			s.Ranks[i] = Rank{Answers: k&1 != 0, Done: k&2 != 0, Last: op(uint64(next() & 7)), Here: odd(uint64(next() & 7)),
				Mine:    odd(uint64(next() & 7)),
				Entered: uint64(next() & 7), State: State("TXDR"[next()&3]), WaitsFor: next(), PairsWith: next()}
		}
		switch what & 3 {
		case 2:
			s.Message = "send to"
		case 3:
			s.Lost = Loss{Gone: true, Rank: 1}
		}
		v := Judge(&s)
		if !slices.Equal(v.Culprits, Sorted(slices.Clone(v.Culprits)...)) {
			t.Errorf("ranks %v", v.Culprits)
		}
		for _, c := range v.Culprits {
			if c < 0 || c >= len(s.Ranks) {
				t.Errorf("rank %d of %d", c, len(s.Ranks))
			}
		}
		if v.Text == "" && v.Differs < 0 {
			t.Error("it says nothing")
		}
	})
}
