package web

import (
	"cmp"
	"maps"
	"math/bits"
	"slices"
	"time"

	"github.com/weft-fabric/weft/view/report"
)

// tallyKeys is how many operations and sizes are kept apart for one rank.
// Sizes beyond them are rounded up to a power of two, of which there are few.
const tallyKeys = 192

// tally is what the processes of one id have counted.
type tally struct {
	earlier map[opSize]opSum // by processes that ended
	now     map[opSize]opSum // by the one that runs
}

type opSize struct {
	op    string
	bytes int64
}

// opSum adds up calls; moved and bus are bytes, the latter times the factor.
type opSum struct {
	count, ns  int64
	moved, bus float64
}

func (s opSum) plus(t opSum) opSum {
	return opSum{s.count + t.count, s.ns + t.ns, s.moved + t.moved, s.bus + t.bus}
}

func newTally() *tally { return &tally{earlier: map[opSize]opSum{}, now: map[opSize]opSum{}} }

// restart says that the process which counted so far has ended.
func (t *tally) restart() {
	for k, s := range t.now {
		t.earlier[k] = t.earlier[k].plus(s)
	}
	clear(t.now)
}

// set takes a rank's counts so far. Counts that fall belong to a new process: what was counted before is kept. Past
// tallyKeys sizes, others are rounded up to a power of two.
func (t *tally) set(list []report.Collective) {
	next := map[opSize]opSum{}
	for _, c := range list {
		k := opSize{short(c.Op), c.Bytes}
		_, old := t.earlier[k]
		_, cur := t.now[k]
		if _, got := next[k]; !got && !old && !cur && max(len(t.earlier), len(t.now))+len(next) >= tallyKeys && c.Bytes > 1 {
			k.bytes = 1 << bits.Len64(uint64(c.Bytes-1))
		}
		moved := float64(c.Bytes) * float64(c.Count)
		next[k] = next[k].plus(opSum{c.Count, int64(c.Time), moved, moved * c.BusFactor})
	}
	for k, was := range t.now {
		if next[k].count < was.count {
			t.restart()
			break
		}
	}
	t.now = next
}

// collectiveView is one operation and size over all ranks. Bandwidths are those of a mean call.
type collectiveView struct {
	Op    string  `json:"op"`             // operation
	Bytes int64   `json:"bytes"`          // bytes of one call
	Ranks int     `json:"ranks"`          // ranks that called it
	Count int64   `json:"count"`          // calls by all ranks
	Total int64   `json:"total_ns"`       // time of all calls
	Mean  int64   `json:"mean_ns"`        // time of one call
	Alg   float64 `json:"algbw_gb_per_s"` // bytes over time
	Bus   float64 `json:"busbw_gb_per_s"` // the same times nccl-tests' factor

	Took      int64   `json:"took_ns,omitempty"`         // time of one call once all ranks are there, median of late
	Predicted int64   `json:"predicted_ns,omitempty"`    // what it should take
	Ratio     float64 `json:"predicted_ratio,omitempty"` // took to predicted
}

// Against is what an operation takes once all ranks are there, and what was predicted for it.
type Against struct {
	Op              string
	Bytes           int64
	Took, Predicted time.Duration
}

// Against takes what operations take now against their predictions; a later call replaces it.
func (b *Board) Against(list []Against) {
	seq, unlock := b.change()
	defer unlock()
	b.tallySeq, b.against = seq, map[opSize]Against{}
	for _, a := range list {
		b.against[opSize{short(a.Op), a.Bytes}] = a
	}
}

// collectives adds up all ranks, by operation and size.
func (b *Board) collectives() []collectiveView {
	type total struct {
		opSum
		ranks int
	}
	all := map[opSize]total{}
	for _, id := range slices.Sorted(maps.Keys(b.tallies)) { // in order: sums of floats depend on it
		t := b.tallies[id]
		for k, s := range t.now {
			e := t.earlier[k]
			a := all[k]
			all[k] = total{a.plus(s).plus(e), a.ranks + 1}
		}
		for k, s := range t.earlier {
			if _, both := t.now[k]; !both {
				a := all[k]
				all[k] = total{a.plus(s), a.ranks + 1}
			}
		}
	}
	list := make([]collectiveView, 0, len(all))
	for k, s := range all {
		v := collectiveView{Op: k.op, Bytes: k.bytes, Ranks: s.ranks, Count: s.count, Total: s.ns}
		if s.count > 0 {
			v.Mean = s.ns / s.count
		}
		if s.ns > 0 { // bytes a nanosecond are GB/s
			v.Alg, v.Bus = round(s.moved/float64(s.ns)), round(s.bus/float64(s.ns))
		}
		if a := b.against[k]; a.Predicted > 0 && a.Took > 0 {
			v.Took, v.Predicted, v.Ratio = int64(a.Took), int64(a.Predicted), round(float64(a.Took)/float64(a.Predicted))
		}
		list = append(list, v)
	}
	// What takes most of the time comes first.
	slices.SortFunc(list, func(a, b collectiveView) int {
		return cmp.Or(cmp.Compare(b.Total, a.Total), cmp.Compare(a.Op, b.Op), cmp.Compare(a.Bytes, b.Bytes))
	})
	return list
}
