package xfer

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
)

// A model of Reclaim and of readers that come at any moment, which knows nothing of the code: two words of memory, an owner that
// reclaims, fills and publishes them twice, and two readers that each read them up to three times. All interleavings are walked
// through; a process that is frozen is one that does not step while the others do.
//
//	owner    Reclaim is entered -> leases are awaited -> it returns -> word 0 is filled -> word 1 is, and both are published; dies
//	reader   lease -> word 0 -> word 1 -> check -> nil or an error -> again, with the lease, a new one, or a new description; dies
//	time     a lease becomes overdue; only then its owner may end it by itself
//
// What must hold: a reader that reports no error has both words of the version that its description is of. And nobody is stuck.

// A fenceRule is what is tried.
type fenceRule struct {
	name   string
	epochs bool // leases are refused from the entry of Reclaim on, and afterwards to descriptions from before
	late   bool // ... only from its return on
	early  bool // the lease is looked at before the last read
	never  bool // it is not looked at
	right  bool // the rule is expected to hold
}

type fenceReader struct {
	at    uint8 // see step
	desc  uint8 // the version of its description
	lease uint8 // see below
	word  [2]uint8
	left  uint8 // reads that it may begin still
	dead  bool
}

const (
	leaseNone = iota
	leaseStands
	leaseOverdue // by the clock that both see
	leaseEnded   // by its owner, or given back
)

const (
	readerIdle = iota
	readerLeased
	readerHalf
	readerRead
	readerChecked
	readerOver
)

type fenceState struct {
	word    [2]uint8
	round   uint8 // versions that were published besides the first
	owner   uint8 // 0 between rounds, 1 awaits, 2 may use the memory, 3 has filled word 0
	awaited [2]bool
	dead    bool
	reader  [2]fenceReader
}

// epoch is that of a description made now, and whether leases can be had at all.
func (s *fenceState) epoch(rule fenceRule) (now uint8, out bool) {
	begun := uint8(1)
	if rule.late {
		begun = 2
	}
	if s.owner >= begun {
		return s.round + 1, true
	}
	return s.round, false
}

const fenceRounds = 2

// next calls see for all that can happen next, and wrong for a reader that reports nil with other words than those described.
func (s fenceState) next(rule fenceRule, see func(fenceState), wrong func(mixed bool)) {
	if !s.dead {
		s.ownerSteps(see)
	}
	for i := range s.reader {
		if l := s.reader[i].lease; l == leaseStands {
			n := s
			n.reader[i].lease = leaseOverdue
			see(n)
		} else if l == leaseOverdue && !s.dead {
			n := s
			n.endLease(i)
			see(n)
		}
		if !s.reader[i].dead && s.reader[i].at != readerOver {
			n := s
			n.reader[i].dead = true
			see(n)
			s.readerSteps(rule, i, see, wrong)
		}
	}
}

func (s *fenceState) endLease(i int) { s.reader[i].lease, s.awaited[i] = leaseEnded, false }

func (s fenceState) ownerSteps(see func(fenceState)) {
	n := s
	switch s.owner {
	case 0:
		if s.round == fenceRounds {
			return
		}
		for i := range s.reader {
			l := s.reader[i].lease
			n.awaited[i] = l == leaseStands || l == leaseOverdue
		}
		n.owner = 1
	case 1:
		if s.awaited[0] || s.awaited[1] {
			n.dead = true // it waits, or dies
			see(n)
			return
		}
		n.owner = 2
	case 2:
		n.word[0], n.owner = s.round+1, 3
	case 3:
		n.word[1], n.round, n.owner = s.round+1, s.round+1, 0
	}
	see(n)
	n = s
	n.dead = true
	see(n)
}

func (s fenceState) readerSteps(rule fenceRule, i int, see func(fenceState), wrong func(mixed bool)) {
	n := s
	r := &n.reader[i]
	again := func() {
		if r.left--; r.left == 0 {
			r.at = readerOver
			see(n)
			return
		}
		for _, lease := range []bool{true, false} { // goes on with the one it has, or gives that back
			m := n
			if m.reader[i].at = readerLeased; !lease {
				m.reader[i].at = readerIdle
				if m.reader[i].lease != leaseEnded {
					m.endLease(i)
				}
			}
			see(m)
		}
	}
	checked := func() bool { return r.lease == leaseStands }
	switch r.at {
	case readerIdle:
		now, out := s.epoch(rule)
		if r.desc != now {
			m := n
			m.reader[i].desc = now
			see(m) // it asks for a new description
		}
		if s.dead {
			again()
			return
		}
		if rule.epochs && (out || r.desc != now) {
			if r.left--; r.left == 0 { // refused
				r.at = readerOver
			}
			see(n)
			return
		}
		r.lease, r.at = leaseStands, readerLeased
		see(n)
	case readerLeased:
		r.word[0], r.at = s.word[0], readerHalf
		see(n)
	case readerHalf:
		if rule.early && !checked() {
			again()
			return
		}
		r.word[1], r.at = s.word[1], readerRead
		if rule.early { // between the look and the read anything may happen
			r.word[1], r.at = 0, readerChecked
		}
		see(n)
	case readerRead:
		if !rule.never && !checked() {
			again()
			return
		}
		if r.word != [2]uint8{r.desc, r.desc} {
			wrong(r.word[0] != r.word[1])
		}
		again()
	case readerChecked: // of early: the last read, then nil
		r.word[1] = s.word[1]
		if r.word != [2]uint8{r.desc, r.desc} {
			wrong(r.word[0] != r.word[1])
		}
		again()
	}
}

// walk looks at every state that can be reached.
func (rule fenceRule) walk(reads int) (states, wrong, mixed, stuck, shortest int) {
	var first fenceState
	for i := range first.reader {
		first.reader[i].left = uint8(reads)
	}
	seen := map[fenceState]struct{}{first: {}}
	level := []fenceState{first}
	for steps := 1; len(level) > 0; steps++ {
		var after []fenceState
		for _, s := range level {
			moved := false
			s.next(rule, func(n fenceState) {
				moved = true
				if _, ok := seen[n]; !ok {
					seen[n] = struct{}{}
					after = append(after, n)
				}
			}, func(torn bool) {
				if wrong++; shortest == 0 {
					shortest = steps
				}
				if torn {
					mixed++
				}
			})
			if !moved && !s.dead && (s.owner != 0 || s.round != fenceRounds) {
				stuck++
			}
		}
		level = after
	}
	return len(seen), wrong, mixed, stuck, shortest
}

func TestFenceModel(t *testing.T) {
	for _, rule := range []fenceRule{
		{name: "leases of the entry are awaited, others are given"},
		{name: "leases are refused from the return on", epochs: true, late: true},
		{name: "leases are refused from the entry on, no check", epochs: true, never: true},
		{name: "leases are refused from the entry on, check before the last read", epochs: true, early: true},
		{name: "leases are refused from the entry on, check after the last read", epochs: true, right: true},
	} {
		reads := bounded.Times(1, 3) // of a wrong rule a few states are enough
		if rule.right {
			reads = bounded.Times(2, 3)
		}
		states, wrong, mixed, stuck, shortest := rule.walk(reads)
		t.Logf("%s: %d states, %d reads with nil and wrong words (%d mixed), the first after %d steps, %d states stuck",
			rule.name, states, wrong, mixed, shortest, stuck)
		if stuck > 0 || (wrong == 0) != rule.right {
			t.Errorf("%s: %d wrong, %d stuck", rule.name, wrong, stuck)
		}
	}
}

// The list of spans against an array with an entry for each byte.
func TestEpochs(t *testing.T) {
	const size = 40
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		var e epochs
		var when [size]uint64
		var out [size]bool
		for step := range 60 {
			off := r.Int64N(size)
			n := 1 + r.Int64N(size-off)
			what := "withdraw"
			if r.IntN(2) == 0 {
				e.withdraw(off, n)
				for i := off; i < off+n; i++ {
					when[i], out[i] = e.now, true
				}
			} else {
				what = "publish"
				e.publish(off, n)
				for i := off; i < off+n; i++ {
					out[i] = false
				}
			}
			for i, s := range e.list {
				if s.off >= s.end || i > 0 && (s.off < e.list[i-1].end || s.off == e.list[i-1].end && s.epoch == e.list[i-1].epoch &&
					s.out == e.list[i-1].out) {
					t.Fatalf("seed %d, step %d: %s of %d bytes at %d: spans %+v", seed, step, what, n, off, e.list)
				}
			}
			for range 20 {
				off := r.Int64N(size)
				n, epoch := 1+r.Int64N(size-off), r.Uint64N(e.now+2)
				want := true
				for i := off; i < off+n; i++ {
					want = want && !out[i] && when[i] <= epoch
				}
				if err := e.check(off, n, epoch); (err == nil) != want {
					t.Fatalf("seed %d, step %d: %d bytes at %d in epoch %d: %v, want %v; %s", seed, step, n, off, epoch, err, want, fmt.Sprint(e.list))
				}
			}
		}
	}
}
