package flight

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/weft-fabric/weft/run/comm/internal/clock"
)

// Live is how far a communicator has come.
type Live struct {
	Done uint64 `json:"done"` // the last operation that ended
	In   bool   `json:"in"`   // the next one is under way
	Op   string `json:"op,omitempty"`
	Ops  []Took `json:"ops,omitempty"`
}

// Took is an operation that ended, from its begin to its end.
type Took struct {
	Seq   uint64 `json:"seq"`
	Op    string `json:"op"`
	Bytes int    `json:"bytes"`
	Took  int64  `json:"took_ns"`

	Predicted int64 `json:"predicted_ns,omitempty"` // how long it should have taken; 0 unknown
}

// Live tells how far the communicator has come, and of the operations that ended after
// one. If there are more than most, those are told whose numbers more powers of two
// divide, so that all ranks tell of the same ones.
func (f *Recorder) Live(after uint64, most int) Live {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := f.word.Or(beingRead)
	defer f.word.And(^uint64(beingRead))
	l := Live{In: at&turnMask != Idle}
	ended := int(at / oneEnded)
	when := clock.NewAnchor()
	for i := max(0, ended-len(f.ring)+1); i < ended; i++ {
		k := &f.ring[i%len(f.ring)]
		if k.program == nil {
			continue
		}
		l.Done, l.Op = k.call.Seq, k.call.Op.String()
		if k.call.Seq > after && k.err == nil {
			l.Ops = append(l.Ops, Took{Seq: k.call.Seq, Op: l.Op, Bytes: k.bytes, Took: when.Time(k.ended) - when.Time(k.began)})
		}
	}
	if len(l.Ops) > most {
		slices.SortFunc(l.Ops, func(a, b Took) int {
			return cmp.Or(cmp.Compare(bits.TrailingZeros64(b.Seq), bits.TrailingZeros64(a.Seq)), cmp.Compare(b.Seq, a.Seq))
		})
		l.Ops = l.Ops[:most]
		slices.SortFunc(l.Ops, func(a, b Took) int { return cmp.Compare(a.Seq, b.Seq) })
	}
	return l
}
