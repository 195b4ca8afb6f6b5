package verify

import (
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
)

// trace keeps the actions of small runs, to explain what went wrong.
type trace struct {
	list []event
}

type event struct {
	rank sched.Rank
	act  step.Action
}

// maxTrace is how many actions are kept; a wrong program shows itself at small counts.
const maxTrace = 1 << 16

func (t *trace) record(r sched.Rank, a *step.Action) {
	if len(t.list) < maxTrace {
		t.list = append(t.list, event{r, *a})
	}
}

func (e event) String() string {
	return fmt.Sprintf("rank %d channel %d step %d: %s", e.rank, e.act.Channel, e.act.Step, &e.act)
}

// leading gives the last steps that the failing action depends on: its rank's
// own and, through its messages, those of others.
func (t *trace) leading(r sched.Rank, a *step.Action) []string {
	return t.walk(func(e event) bool { return e.rank == r && e.act.Channel == a.Channel && e.act.Step == a.Step })
}

// writers gives the steps that led to what a chunk of a rank holds.
func (t *trace) writers(r sched.Rank, c step.Chunks) []string {
	return t.walk(func(e event) bool {
		return e.rank == r && e.act.Op.Stores() && e.act.Dst.Buf == c.Buf && e.act.Dst.Index <= c.Index &&
			c.Index < e.act.Dst.Index+e.act.Dst.Count
	})
}

// walk goes back from the newest event that matches, along program order and
// messages, and gives what it passed, oldest first, at most a screenful.
func (t *trace) walk(match func(event) bool) []string {
	if t == nil {
		return nil
	}
	start := len(t.list) - 1
	for start >= 0 && !match(t.list[start]) {
		start--
	}
	if start < 0 {
		return nil
	}
	want := map[int]bool{start: true}
	var lines []string
	for i := start; i >= 0 && len(lines) < 24; i-- {
		if !want[i] {
			continue
		}
		e := t.list[i]
		lines = append(lines, e.String())
		prev, sent := false, !e.act.Op.Receives()
		for j := i - 1; j >= 0 && !(prev && sent); j-- {
			f := t.list[j]
			if !prev && f.rank == e.rank && f.act.Channel == e.act.Channel {
				want[j], prev = true, true
			}
			if !sent && f.rank == e.act.From && f.act.Channel == e.act.Channel && f.act.Op.Sends() && f.act.To == e.rank {
				if t.ordinal(j) == t.ordinalRecv(i) {
					want[j], sent = true, true
				}
			}
		}
	}
	slices.Reverse(lines)
	return lines
}

// ordinal counts the messages sent before event i on the same way; ordinalRecv those received.
func (t *trace) ordinal(i int) int {
	n, e := 0, t.list[i]
	for _, f := range t.list[:i] {
		if f.rank == e.rank && f.act.Channel == e.act.Channel && f.act.Op.Sends() && f.act.To == e.act.To {
			n++
		}
	}
	return n
}

func (t *trace) ordinalRecv(i int) int {
	n, e := 0, t.list[i]
	for _, f := range t.list[:i] {
		if f.rank == e.rank && f.act.Channel == e.act.Channel && f.act.Op.Receives() && f.act.From == e.act.From {
			n++
		}
	}
	return n
}
