package web

import (
	"slices"

	"github.com/weft-fabric/weft/view/report"
)

// lateness holds when each rank arrived at the commit of the last steps.
type lateness struct {
	index    map[int]int // id to place in arrived, in the order of first appearance
	ids      []int       // ascending
	columns  []column    // by step, ascending
	resetSeq uint64      // when columns went or the ids changed
}

type column struct {
	step    int
	epoch   uint64
	arrived []int64 // Unix nanoseconds by place; 0: not reported
	seq     uint64
}

func newLateness() lateness { return lateness{index: map[int]int{}} }

// know gives an id a place; ids are all that are known, ascending.
func (l *lateness) know(id int, ids []int, seq uint64) {
	l.index[id] = len(l.index)
	l.ids = slices.Clone(ids)
	l.resetSeq = seq
}

// column finds a step or adds it. It is nil if the step is older than all that are kept, or of an epoch that is over.
func (l *lateness) column(step int, epoch uint64) *column {
	i, found := slices.BinarySearchFunc(l.columns, step, func(c column, step int) int { return c.step - step })
	if found {
		c := &l.columns[i]
		if c.epoch > epoch {
			return nil
		}
		if c.epoch < epoch {
			clear(c.arrived)
			c.epoch = epoch
		}
		return c
	}
	if len(l.columns) < lateSteps {
		l.columns = slices.Insert(l.columns, i, column{step: step, epoch: epoch})
		return &l.columns[i]
	}
	if i == 0 {
		return nil
	}
	old := l.columns[0].arrived // reused: a run of 1,000 ranks takes 8 kB a step
	clear(old)
	copy(l.columns, l.columns[1:i])
	l.columns[i-1] = column{step: step, epoch: epoch, arrived: old}
	return &l.columns[i-1]
}

// add takes when a rank arrived at the end of a step.
func (l *lateness) add(s report.Step, seq uint64) {
	if s.Arrived.IsZero() {
		return
	}
	c := l.column(s.Step, s.Epoch)
	if c == nil {
		return
	}
	at := l.index[s.ID]
	if at >= len(c.arrived) {
		c.arrived = append(c.arrived, make([]int64, len(l.index)-len(c.arrived))...)
	}
	c.arrived[at], c.seq = s.Arrived.UnixNano(), seq
}

// cut takes away the columns from a step on that are older than an epoch.
func (l *lateness) cut(step int, epoch uint64, seq uint64) {
	n := len(l.columns)
	l.columns = slices.DeleteFunc(l.columns, func(c column) bool { return c.step >= step && c.epoch < epoch })
	if len(l.columns) < n {
		l.resetSeq = seq
	}
}

// late is a column as microseconds after the earliest rank, in the order of
// ids; nil where a rank has not reported.
func (l *lateness) late(c column) []*int64 {
	var first int64
	for _, t := range c.arrived {
		if t != 0 && (first == 0 || t < first) {
			first = t
		}
	}
	cells := make([]int64, len(l.ids))
	row := make([]*int64, len(l.ids))
	for i, id := range l.ids {
		if at := l.index[id]; at < len(c.arrived) && c.arrived[at] != 0 {
			cells[i] = (c.arrived[at] - first) / 1000
			row[i] = &cells[i]
		}
	}
	return row
}
