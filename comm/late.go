package comm

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/weft-fabric/weft/comm/calls"
	"github.com/weft-fabric/weft/transport"
)

// late is the failure of an operation whose time limit passed: who waits for
// whom, since when, at which step, and what each rank was last seen doing.
func (c *Comm) late() *Failure {
	o := &c.cur
	f := &Failure{Kind: Timeout}
	waited := time.Duration(clock() - toClock(o.began)).Round(time.Millisecond)
	mine := signature(&o.call)
	var missing, behind []int
	boards := c.allBoards()
	for i, b := range boards {
		if i == c.rank {
			continue
		}
		if b == nil {
			if last, _, ok := c.lastOf(i); ok && last.Seq >= o.call.Seq {
				f.Report = append(f.Report, fmt.Sprintf("rank %d: sent messages of operation %d, does not answer now", i, last.Seq))
				behind = append(behind, i)
				continue
			}
			f.Report = append(f.Report, fmt.Sprintf("rank %d: does not answer%s", i, c.processState(i)))
			missing = append(missing, i)
			continue
		}
		call, began, ok := b.called()
		if ok && call.Seq > o.call.Seq { // it went on, but what it did here may still be known
			if then, at, known := b.callOf(o.call.Seq); known && signature(&then) != mine {
				call, began = then, at
			}
		}
		state := c.processState(i)
		switch {
		case !ok:
			f.Report = append(f.Report, fmt.Sprintf("rank %d: took part in no operation yet%s", i, state))
			missing = append(missing, i)
		case call.Seq < o.call.Seq:
			f.Report = append(f.Report, fmt.Sprintf("rank %d: last entered operation %d (%s)%s%s", i, call.Seq, &call, c.ago(i, began), state))
			missing = append(missing, i)
			if mine, _, known := boards[c.rank].callOf(call.Seq); known && signature(&call) != signature(&mine) && f.Kind != Mismatch {
				f.Kind, f.Err = Mismatch, calls.Mismatch(c.rank, i, &mine, &call)
				f.Culprits = sorted(c.rank, i)
			}
		case call.Seq == o.call.Seq && signature(&call) != mine:
			f.Report = append(f.Report, fmt.Sprintf("rank %d: entered operation %d as %s%s%s", i, call.Seq, &call, c.ago(i, began), state))
			if f.Kind != Mismatch {
				f.Kind, f.Err = Mismatch, calls.Mismatch(c.rank, i, &o.call, &call)
				f.Culprits = sorted(c.rank, i)
			}
		default:
			at := ""
			if !c.did(i, o.call.Seq, b) {
				behind = append(behind, i)
				at = ", not done with it"
				if r, ch, k := b.waiting(); c.phase == moving && r >= 0 {
					at = fmt.Sprintf(", waits for rank %d at step %d of channel %d", r, k, ch)
				}
			}
			f.Report = append(f.Report, fmt.Sprintf("rank %d: entered operation %d (%s)%s%s%s", i, call.Seq, &call, c.ago(i, began), at, state))
		}
	}
	if f.Kind == Mismatch {
		return f
	}
	if said := c.heard(); said != nil {
		return said // somebody found out more meanwhile
	}
	if a, b := c.crossed(boards, missing); a >= 0 {
		f.Kind, f.Culprits = Mismatch, sorted(a, b)
		f.Err = fmt.Errorf("rank %d waits for rank %d in a send or receive, and rank %d for it in this operation: one of them makes its calls in another order; after %s at %s", a, b, b, waited, phases[c.phase])
		return f
	}
	if c.world.mem != nil {
		missing = hindmost(boards, missing)
	}
	f.Culprits = c.awaited(boards, missing)
	what := "did not enter it"
	if len(missing) == 0 {
		f.Culprits, what = c.chain(boards, behind), "entered it but did not go on"
	}
	if stuck := c.stopped(f.Culprits); len(stuck) > 0 {
		f.Culprits = stuck
	}
	f.Err = fmt.Errorf("%s after %s at %s: %s %s; %s", "time limit passed", waited, phases[c.phase], ranks(f.Culprits), what, c.lastWords(f))
	return f
}

// chain follows who waits for whom from this rank on to those that wait for
// nobody, or round in a circle.
func (c *Comm) chain(boards []board, behind []int) []int {
	if c.phase != moving {
		return behind
	}
	seen := map[int]bool{}
	for at := c.rank; ; {
		if boards[at] == nil {
			return []int{at}
		}
		next, _, _ := boards[at].waiting()
		if next < 0 || next >= len(boards) {
			return []int{at}
		}
		if seen[at] {
			return behind
		}
		seen[at] = true
		at = next
	}
}

// crossed finds a rank that is missing because it waits in a send or receive for
// one that is not; -1 if there is none.
func (c *Comm) crossed(boards []board, missing []int) (waits, here int) {
	for _, i := range missing {
		if boards[i] == nil || len(c.stopped([]int{i})) > 0 {
			continue
		}
		if p := boards[i].pairing(); p >= 0 && p < len(boards) && p != i && !slices.Contains(missing, p) {
			return i, p
		}
	}
	return -1, -1
}

// awaited replaces missing ranks that wait for others in sends and receives by
// those that all of them wait for in the end.
func (c *Comm) awaited(boards []board, missing []int) []int {
	var ends []int
	for _, i := range missing {
		at := i
		for range boards {
			if boards[at] == nil || len(c.stopped([]int{at})) > 0 {
				break
			}
			p := boards[at].pairing()
			if p < 0 || p >= len(boards) || p == at {
				break
			}
			at = p
		}
		ends = append(ends, at)
	}
	return sorted(ends...)
}

// lastWords is the report of the first culprit.
func (c *Comm) lastWords(f *Failure) string {
	if len(f.Culprits) == 0 {
		return "nobody seems to be at fault"
	}
	prefix := fmt.Sprintf("rank %d: ", f.Culprits[0])
	for _, line := range f.Report {
		if strings.HasPrefix(line, prefix) {
			return line
		}
	}
	return ""
}

// did reports whether a rank that entered an operation did its part in the
// phase that this one waits in.
func (c *Comm) did(rank int, seq uint64, b board) bool {
	switch c.phase {
	case summing:
		return b.mid().flag().Load() >= seq
	case leaving:
		return b.leave().Load() >= seq || !slices.Contains(c.readers, int32(rank))
	case following:
		return rank != c.followed || b.staged().Load() >= c.wanted
	case moving:
		return b.leave().Load() >= seq
	case trading:
		return b.steps().Load() >= c.cur.trade.awaits
	}
	return true
}

// hindmost are those of some ranks that entered the fewest operations: ranks that
// are ahead of them may wait for them, but not they for others.
func hindmost(boards []board, list []int) (out []int) {
	least := ^uint64(0)
	for _, i := range list {
		at := uint64(0)
		if boards[i] != nil {
			at = boards[i].entered()
		}
		if at < least {
			least, out = at, nil
		}
		if at == least {
			out = append(out, i)
		}
	}
	return out
}

func ranks(list []int) string {
	if len(list) == 1 {
		return fmt.Sprintf("rank %d", list[0])
	}
	return fmt.Sprintf("ranks %s", strings.Trim(strings.Join(strings.Fields(fmt.Sprint(list)), ", "), "[]"))
}

// ago says how long ago a rank of the same host began something.
func (c *Comm) ago(i int, began int64) string {
	if began == 0 || c.world.hosts[c.members[i]] != c.world.hosts[c.members[c.rank]] {
		return ""
	}
	if began&loose != 0 {
		return " at most " + since(began) + " ago"
	}
	return " " + since(began) + " ago"
}

// answer is how long ranks have to answer who asks for their boards: their
// processes have to get a core, no more.
const answer = 400 * time.Millisecond

// allBoards gets the boards of the members; nil for those that do not answer.
func (c *Comm) allBoards() []board {
	if c.world.mem != nil {
		return c.boards
	}
	list := make([]board, len(c.members))
	list[c.rank] = c.boards[c.rank]
	type read struct {
		i int
		t transport.Ticket
	}
	var reads []read
	for i, m := range c.members {
		if i == c.rank || c.world.ep.Alive(m) != nil || len(c.stopped([]int{i})) > 0 {
			continue
		}
		b := make([]byte, atSmall)
		if t, err := c.world.ep.Verbs().Read(m, b, c.keys[i]); err == nil {
			list[i] = b
			reads = append(reads, read{i, t})
		}
	}
	end := time.Now().Add(answer)
	for _, r := range reads {
		if c.world.verbs.wait(r.t, time.Until(end)) != nil {
			list[r.i] = nil
		}
	}
	return list
}

// processState says so if a rank's process on this host is stopped or dead.
func (c *Comm) processState(i int) string {
	switch c.letter(i) {
	case 'T', 't':
		return "; its process is stopped"
	case 'D':
		return "; its process is in uninterruptible sleep"
	case 'Z', 'X':
		return "; its process ended"
	}
	return ""
}

// stopped are those of some ranks whose processes are stopped.
func (c *Comm) stopped(list []int) []int {
	var out []int
	for _, i := range list {
		if s := c.letter(i); s == 'T' || s == 't' {
			out = append(out, i)
		}
	}
	return out
}

// letter is the state of a rank's process as the kernel has it, 0 if it is not of this host.
func (c *Comm) letter(i int) byte {
	m := c.members[i]
	if c.world.hosts[m] != c.world.hosts[c.members[c.rank]] || m >= len(c.world.pids) || c.world.pids[m] <= 0 || c.world.ep.Can().OneProcess {
		return 0
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.world.pids[m]))
	if err != nil {
		return 'X'
	}
	if at := slices.Index(b, ')'); at > 0 && at+2 < len(b) {
		return b[at+2]
	}
	return 0
}
