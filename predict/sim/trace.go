package sim

import (
	"math"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/unit"
)

// Span is one action of a traced rank.
type Span struct {
	Job     int
	Rank    sched.Rank
	Channel int32
	Op      sched.Op
	From    sched.Rank // -1 if it receives nothing
	To      sched.Rank // -1 if it sends nothing
	Bytes   unit.Bytes
	Begin   unit.Time // message there and room
	Flow    unit.Time // first byte leaves; Begin for actions that send nothing
	End     unit.Time
}

// Gap is a stretch of time whose rounds were folded into the one before.
type Gap struct {
	Begin, End unit.Time
	Rounds     int64
}

// Trace is what some ranks did, and when.
type Trace struct {
	Ranks []sched.Rank
	Spans []Span
	Gaps  []Gap
	Cut   bool // there were more spans than asked for

	// Period is the number of ranks that were simulated of the first job: rank r does what rank r mod Period does, at the same
	// time and with every peer as many ranks further on. It is the number of all ranks where nothing was folded.
	Period int
}

// tracer records spans as they end.
type tracer struct {
	max   int
	on    []bool // by machine
	trace *Trace
}

// tracedRanks is how many ranks of a job a trace shows unless Options.TraceRanks says otherwise.
const tracedRanks = 16

func (x *tracer) init(w *world) {
	if w.o.Trace <= 0 {
		return
	}
	x.max = w.o.Trace
	x.on = make([]bool, len(w.machines))
	x.trace = &Trace{Period: int(w.runs[0].period)}
	most := int32(tracedRanks)
	if w.o.TraceRanks > 0 {
		most = int32(min(w.o.TraceRanks, math.MaxInt32))
	}
	for _, r := range w.runs {
		first := w.threads[r.first].machine
		show := min(most, r.period)
		for i := range show {
			k := i * r.period / show
			if show == r.period || r.period >= most && i < 8 {
				k = i // the first eight side by side: one host as a rule
			}
			x.on[first+k] = true
		}
	}
	for m, on := range x.on {
		if on {
			x.trace.Ranks = append(x.trace.Ranks, w.ranks[m])
		}
	}
}

func (x *tracer) span(w *world, id int32) {
	if x.trace == nil {
		return
	}
	t := &w.threads[id]
	if !x.on[t.machine] {
		return
	}
	if len(x.trace.Spans) >= x.max {
		x.trace.Cut = true
		return
	}
	s := Span{Job: int(w.runOf[t.machine]), Rank: w.ranks[t.machine], Channel: t.channel, Op: t.op, From: -1, To: -1,
		Bytes: unit.Bytes(t.bytes), Begin: t.began, Flow: t.began, End: w.now}
	if t.out >= 0 {
		s.To, s.Flow = t.lastOut.rank, t.flowed
	}
	if t.in >= 0 {
		s.From = t.lastIn.rank
	}
	x.trace.Spans = append(x.trace.Spans, s)
}

func (x *tracer) gap(w *world, from, to unit.Time, rounds int64) {
	if x.trace != nil {
		x.trace.Gaps = append(x.trace.Gaps, Gap{from, to, rounds})
	}
}
