package shared_test

import (
	"fmt"
	"strings"
	"testing"
)

// A model of one operation in shared memory, of which all interleavings are explored. Three ranks each
//
//	enter    unless the operation is known to be given up
//	read     the inputs of the other two, each its user's memory
//	work     store:  its part of the result to all three outputs, one after another
//	         commit: tell its part, and when all have told theirs copy them to the own output
//	leave    store:  wait until all have left
//	return   nil
//
// A rank may be frozen and woken anywhere, or die, and may give up every wait, whatever the others do. Then it marks the operation,
// returns an error, and its user changes its input and shrinks; the user writes to what it allocates anew and to the buffer that it
// still holds. What must hold:
//
//   - a rank that returned nil has the three right parts in its output;
//   - nothing is stored to memory after its owner wrote there for something else.
//
// The model shares no code with the runner. It says which rules are enough, and which are not.

const modelRanks = 3

// rules are those under test.
type rules struct {
	name   string
	commit bool // the work is told, not stored to others
	marks  bool // a rank that gives up says so on all boards before it returns
	late   bool // the mark comes after the error instead
	checks bool // the mark is looked for after the last read: before telling, and at the end
	early  bool // it is looked for before the last read only
	frames string
}

// What becomes of an output that others could store to.
const (
	reused      = "reused"      // it is allocated again at once
	quarantined = "quarantined" // it is not allocated again while a rank may be in the operation; its user still holds it
	moved       = "moved"       // its user's pointer leads to other frames
)

// The states of a rank.
const (
	atEntry = iota
	atEntered
	atRead1
	atRead2
	atWork  // and one more for each store or copy
	atLeave = atWork + modelRanks + 1
	atNil   = iota + atLeave
	atError
	atChanged
	atShrunk
	atReused
	atHeld
	atDead
)

// What a part of an output holds.
const (
	empty uint8 = iota
	right
	wrong   // computed from an input that its owner had changed
	foreign // what a user wrote there for something else
)

type modelRank struct {
	at      int8
	frozen  bool
	entered bool
	told    bool
	left    bool
	bad     bool // it read an input that was changed
	given   bool // its board says that another rank gave up
	changed bool // its input
	where   int8 // the frames behind its user's output
	out     [2][modelRanks]uint8
}

// world is a state of the model.
type modelWorld struct {
	ranks  [modelRanks]modelRank
	freeze bool // a rank was frozen before
	died   bool
	sum    [modelRanks]uint8 // what was told
}

// steps are the successors of a state by one rank, with a word for each; broken says what must not be.
func (r *rules) steps(w modelWorld, me int, yield func(next modelWorld, what, broken string)) {
	x := &w.ranks[me]
	if x.at == atDead {
		return
	}
	step := func(what string, change func(n *modelWorld, x *modelRank) string) {
		n := w
		broken := change(&n, &n.ranks[me])
		yield(n, fmt.Sprintf("rank %d %s", me, what), broken)
	}
	if x.frozen {
		step("wakes", func(_ *modelWorld, x *modelRank) string { x.frozen = false; return "" })
		return
	}
	if !w.freeze && x.at < atNil {
		step("is frozen", func(n *modelWorld, x *modelRank) string { n.freeze, x.frozen = true, true; return "" })
	}
	if !w.died && x.at < atNil {
		step("dies", func(n *modelWorld, x *modelRank) string { n.died, x.at = true, atDead; return "" })
	}
	r.forward(&w, x, me, step)
}

// forward is what a rank does next.
func (r *rules) forward(w *modelWorld, x *modelRank, me int, step func(string, func(*modelWorld, *modelRank) string)) {
	all := func(has func(*modelRank) bool) bool {
		for i := range w.ranks {
			if !has(&w.ranks[i]) {
				return false
			}
		}
		return true
	}
	to := func(at int8) func(*modelWorld, *modelRank) string {
		return func(_ *modelWorld, x *modelRank) string { x.at = at; return "" }
	}
	fail := func(why string) { step(why, func(n *modelWorld, _ *modelRank) string { r.giveUp(n, me); return "" }) }
	given := x.given && r.checks
	switch x.at {
	case atEntry:
		if given {
			fail("does not enter")
			return
		}
		step("enters", func(_ *modelWorld, x *modelRank) string { x.entered, x.at = true, atEntered; return "" })
	case atEntered:
		if all(func(o *modelRank) bool { return o.entered }) {
			step("sees all enter", to(atRead1))
		}
		fail("gives up at entry")
	case atRead1, atRead2:
		if x.at == atRead1 && r.early && x.given {
			fail("finds it given up")
			return
		}
		from := (me + 1 + int(x.at-atRead1)) % modelRanks
		step("reads", func(n *modelWorld, x *modelRank) string {
			x.bad = x.bad || n.ranks[from].changed
			x.at++
			return ""
		})
	case atWork, atWork + 1, atWork + 2:
		r.work(w, x, me, all, step, fail)
	case atLeave - 1: // of stores: the flag; of commits nothing is left
		step("leaves", func(_ *modelWorld, x *modelRank) string { x.left, x.at = true, atLeave; return "" })
	case atLeave:
		if !r.commit && !all(func(o *modelRank) bool { return o.left }) {
			fail("gives up at exit")
			return
		}
		if given && !r.commit {
			fail("finds it given up")
			return
		}
		step("returns nil", func(_ *modelWorld, x *modelRank) string {
			x.at = atNil
			if x.out[x.where] != [modelRanks]uint8{right, right, right} {
				return "nil with a wrong result"
			}
			return ""
		})
	default:
		r.after(w, x, me, step)
	}
}

// work is the part between the last read and the exit.
func (r *rules) work(w *modelWorld, x *modelRank, me int, all func(func(*modelRank) bool) bool,
	step func(string, func(*modelWorld, *modelRank) string), fail func(string)) {
	value := right
	if x.bad {
		value = wrong
	}
	k := int(x.at - atWork)
	if !r.commit {
		// Stores go where the handle of the entry leads: the first frames.
		step("stores", func(n *modelWorld, x *modelRank) string {
			cell := &n.ranks[(me+k)%modelRanks].out[0][me]
			was := *cell
			*cell = value
			x.at++
			if was == foreign {
				return "a store to memory that was used for something else"
			}
			return ""
		})
		return
	}
	switch {
	case !x.told && x.given && r.checks:
		fail("finds it given up")
	case !x.told:
		step("tells its part", func(n *modelWorld, x *modelRank) string { n.sum[me], x.told = value, true; return "" })
	case !all(func(o *modelRank) bool { return o.told }):
		fail("gives up waiting for parts")
	default:
		step("copies a part", func(n *modelWorld, x *modelRank) string { x.out[0][k] = n.sum[k]; x.at++; return "" })
	}
}

// giveUp ends the operation for a rank.
func (r *rules) giveUp(n *modelWorld, me int) {
	x := &n.ranks[me]
	x.at = atError
	if r.marks && !r.late {
		n.mark(me)
	}
	if r.frames == moved {
		x.where, x.out[1] = 1, x.out[0]
	}
}

func (n *modelWorld) mark(me int) {
	for i := range n.ranks {
		n.ranks[i].given = n.ranks[i].given || i != me
	}
}

// after is what a user does with the error.
func (r *rules) after(w *modelWorld, x *modelRank, me int, step func(string, func(*modelWorld, *modelRank) string)) {
	switch x.at {
	case atError:
		step("changes its input", func(_ *modelWorld, x *modelRank) string { x.changed, x.at = true, atChanged; return "" })
	case atChanged:
		step("shrinks", func(n *modelWorld, x *modelRank) string {
			if x.at = atShrunk; r.marks && r.late {
				n.mark(me)
			}
			return ""
		})
	case atShrunk:
		step("uses memory that it allocates", func(_ *modelWorld, x *modelRank) string {
			x.at = atReused
			switch {
			case r.frames == reused, r.frames == quarantined && quiet(w, me):
				x.out[0] = [modelRanks]uint8{foreign, foreign, foreign}
			}
			return ""
		})
	case atReused:
		if r.frames == quarantined {
			return // of quarantine it is not claimed that the buffer which the user holds is safe
		}
		step("uses the buffer that it holds", func(_ *modelWorld, x *modelRank) string {
			x.at, x.out[x.where] = atHeld, [modelRanks]uint8{foreign, foreign, foreign}
			return ""
		})
	}
}

// quiet reports whether no other rank is in the operation.
func quiet(w *modelWorld, me int) bool {
	for i := range w.ranks {
		if i != me && w.ranks[i].at < atNil {
			return false
		}
	}
	return true
}

// explore visits every state. It gives how many there are, the violations by kind, and the shortest trace to one.
func (r *rules) explore() (states int, broken map[string]int, trace []string) {
	type from struct {
		was  modelWorld
		what string
	}
	var start modelWorld
	seen, queue := map[modelWorld]from{start: {}}, []modelWorld{start}
	broken = map[string]int{}
	for len(queue) > 0 {
		w := queue[0]
		queue = queue[1:]
		for me := range modelRanks {
			r.steps(w, me, func(n modelWorld, what, bad string) {
				if bad != "" {
					if broken[bad]++; trace == nil {
						for trace = []string{what + ": " + bad}; w != start; w = seen[w].was {
							trace = append([]string{seen[w].what}, trace...)
						}
					}
					return
				}
				if _, known := seen[n]; !known {
					seen[n] = from{w, what}
					queue = append(queue, n)
				}
			})
		}
	}
	return len(seen), broken, trace
}

// The rules of giveup.go leave no violation, and none of them can be left out.
func TestEveryInterleavingOfAnOperationThatIsGivenUp(t *testing.T) {
	for _, x := range []struct {
		rules
		fails bool
	}{
		{rules{name: "store, no rule", frames: reused}, true},
		{rules{name: "store, check alone", marks: true, checks: true, frames: reused}, true},
		{rules{name: "store, check and quarantine", marks: true, checks: true, frames: quarantined}, false},
		{rules{name: "store, quarantine alone", frames: quarantined}, true},
		{rules{name: "store, moved frames alone", frames: moved}, true},
		{rules{name: "store, check before the last read", marks: true, early: true, frames: moved}, true},
		{rules{name: "store, marked after the error", marks: true, late: true, checks: true, frames: moved}, true},
		{rules{name: "store, check and moved frames", marks: true, checks: true, frames: moved}, false},
		{rules{name: "commit, no rule", commit: true, frames: moved}, true},
		{rules{name: "commit, marked after the error", commit: true, marks: true, late: true, checks: true, frames: moved}, true},
		{rules{name: "commit, check before telling", commit: true, marks: true, checks: true, frames: moved}, false},
	} {
		t.Run(x.name, func(t *testing.T) {
			states, broken, trace := x.explore()
			t.Logf("%d states, violations: %v", states, broken)
			if x.fails != (len(broken) > 0) {
				t.Errorf("violations %v after %d states; expected some: %t\n  %s", broken, states, x.fails, strings.Join(trace, "\n  "))
			}
		})
	}
}
