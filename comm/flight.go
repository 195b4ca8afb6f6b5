package comm

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/weft-fabric/weft/comm/calls"
	"github.com/weft-fabric/weft/sched"
)

// Flight is a flight recorder: the last operations of a communicator with their
// times. It is always on; recording costs some 30 ns an operation.
type Flight struct {
	mu   sync.Mutex // of those that read
	rank int
	ring []flown
	next int           // the place of the operation under way, which its goroutine alone touches
	at   atomic.Uint64 // who carries operations out, whether somebody reads, and how many operations ended
}

// What is in the word of a recorder. One word has it all, so that one instruction
// ends an operation: those that other cores see as a whole take 8 ns each.
const (
	idle      = 0 // nobody carries operations out
	running   = 1 // a caller does, one operation
	queued    = 2 // somebody does until no operation is queued
	turnMask  = 3
	beingRead = 4 // which ends of operations wait for
	oneEnded  = 8
)

// maxSteps is how many steps of an operation are kept.
const maxSteps = 64

// Record is one operation. Times are nanoseconds since the host started, 0 for
// what was not reached.
type Record struct {
	Comm      uint32 `json:"comm"`
	Epoch     uint32 `json:"epoch"`
	Seq       uint64 `json:"seq"`
	Op        string `json:"op"`
	Count     uint64 `json:"count"`
	Type      string `json:"type"`
	Reduce    string `json:"reduce,omitempty"`
	Root      int32  `json:"root"`
	Program   string `json:"program"`
	Digest    string `json:"digest"`
	Way       string `json:"way"` // flat or script
	Bytes     int    `json:"bytes"`
	Began     int64  `json:"began_ns"`
	OrLater   bool   `json:"began_or_later,omitempty"` // it waited for nobody and took no look at the clock: the last one before it was then
	Entered   int64  `json:"entered_ns,omitempty"`     // flat, more than 4 KiB: everybody had come
	Ended     int64  `json:"ended_ns,omitempty"`
	Err       string `json:"error,omitempty"`
	Steps     []Step `json:"steps,omitempty"`
	MoreSteps int    `json:"more_steps,omitempty"` // that were not kept
}

// flown is what is kept of an operation: two cache lines, so that the ring stays
// near.
type flown struct {
	call                  calls.Call
	program               *sched.Program // nil if the place was not used yet
	began, entered, ended int64          // in ticks
	bytes                 int
	err                   error
	steps                 []passed
	more                  uint32
	flat                  bool
}

// Step is an action of a script.
type Step struct {
	Channel int32  `json:"channel"`
	Op      string `json:"op"`
	From    int    `json:"from"` // -1 if nothing is received
	To      int    `json:"to"`   // -1 if nothing is sent
	Ended   int64  `json:"ended_ns"`
}

// passed is what is kept of a step.
type passed struct {
	channel  int32
	from, to sched.Rank
	op       sched.Op
	ended    int64 // in ticks
}

func newFlight(rank, size int) *Flight {
	return &Flight{rank: rank, ring: make([]flown, max(size, 1)+1)}
}

// step remembers that an action is done.
func (o *op) step(a *action, now int64) {
	if o.many {
		o.stepMu.Lock()
		defer o.stepMu.Unlock()
	}
	n := len(o.steps)
	if n == maxSteps {
		o.more++
		return
	}
	if n == cap(o.steps) {
		o.steps = append(o.steps, passed{})
	}
	o.steps = o.steps[:n+1]
	s := &o.steps[n] // field by field: a whole one would be put together first
	s.channel, s.op, s.from, s.to, s.ended = a.Channel, a.Op, a.From, a.To, now
}

// begin notes what is known of an operation before it ends, in the place that
// nobody reads. Who waits for others anyway does so meanwhile.
func (f *Flight) begin(o *op) {
	r := &f.ring[f.next]
	r.call, r.flat = o.call, o.ready.flat != nil && o.theirs == nil
	if r.program != o.ready.program {
		r.program = o.ready.program
	}
	r.bytes = max(len(o.in), len(o.out))
	r.began = o.began
}

// end records an operation that ended.
func (f *Flight) end(o *op, err error) {
	r := &f.ring[f.next]
	r.entered, r.ended = o.entered, o.began
	if n := len(o.steps); n > 0 && r.bytes <= smallSize {
		r.ended = o.steps[n-1].ended // nothing came after it that takes time
	} else if !o.swift {
		r.ended = ticks()
	}
	if r.err != nil || err != nil {
		r.err = err
	}
	if len(r.steps)+len(o.steps) > 0 {
		r.steps, o.steps = o.steps, r.steps
	}
	r.more = uint32(o.more)
	if f.next++; f.next == len(f.ring) {
		f.next = 0
	}
}

// ended lets others read the operation that ended, and if its caller is to let go of
// the communicator does that as well. It reports whether there are operations for
// somebody else to carry out then.
func (f *Flight) ended(letGo bool) (more bool) {
	for {
		v := f.at.Load()
		if v&beingRead != 0 {
			f.await()
			continue
		}
		next := v + oneEnded
		if letGo && v&turnMask == running {
			next -= running
		}
		if f.at.CompareAndSwap(v, next) {
			return letGo && v&turnMask == queued
		}
	}
}

// await returns when nobody reads.
func (f *Flight) await() {
	f.mu.Lock()
	defer f.mu.Unlock()
}

// Flight is the communicator's flight recorder.
func (c *Comm) Flight() *Flight { return c.flight }

// Records gives the recorded operations, oldest first.
func (f *Flight) Records() []Record {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := f.at.Or(beingRead)
	defer f.at.And(^uint64(beingRead))
	ended := int(at / oneEnded)
	next := ended % len(f.ring)
	when := newAnchor()
	var list []Record
	add := func(from []flown) {
		for i := range from {
			k := &from[i]
			if k.program == nil {
				continue
			}
			r := Record{Comm: k.call.Comm, Epoch: k.call.Epoch, Seq: k.call.Seq, Op: k.call.Op.String(), Count: k.call.Count,
				Type: k.call.Type.String(), Root: k.call.Root, Program: k.program.Name, Digest: k.program.Digest(), Way: "script",
				Bytes: k.bytes, Began: when.clock(k.began), Entered: when.clock(k.entered), Ended: when.clock(k.ended),
				OrLater: k.began&loose != 0, MoreSteps: int(k.more)}
			if k.call.Reduce != 0 {
				r.Reduce = k.call.Reduce.String()
			}
			if k.flat {
				r.Way = "flat"
			}
			if k.err != nil {
				r.Err = k.err.Error()
			}
			for _, s := range k.steps {
				r.Steps = append(r.Steps, Step{Channel: s.channel, Op: s.op.String(), From: int(s.from), To: int(s.to), Ended: when.clock(s.ended)})
			}
			list = append(list, r)
		}
	}
	if ended >= len(f.ring) {
		add(f.ring[next+1:])
	}
	add(f.ring[:next])
	return list
}

// WriteJSON writes the records as one JSON object.
func (f *Flight) WriteJSON(w io.Writer) error { return f.writeJSON(w, nil) }

func (f *Flight) writeJSON(w io.Writer, why error) error {
	failure := ""
	if why != nil {
		failure = fmt.Sprintf("%+v", why)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	return e.Encode(struct {
		Rank    int      `json:"rank"`
		Failure string   `json:"failure,omitempty"`
		Records []Record `json:"records"`
	}{f.rank, failure, f.Records()})
}

// dump writes the recorder to the configured directory at the first failure of
// any communicator of the process.
func (c *Comm) dump(why error) {
	w := c.world
	if w.cfg.FlightDir == "" || !w.dumped.CompareAndSwap(false, true) {
		return
	}
	base := filepath.Join(w.cfg.FlightDir, fmt.Sprintf("rank-%d", w.ep.Rank()))
	err := os.MkdirAll(w.cfg.FlightDir, 0o755)
	for _, x := range []struct {
		name  string
		write func(io.Writer) error
	}{
		{base + ".json", func(to io.Writer) error { return c.flight.writeJSON(to, why) }},
		{base + ".trace.json", c.flight.WriteChrome},
	} {
		if err != nil {
			break
		}
		var b bytes.Buffer
		if err = x.write(&b); err == nil {
			err = os.WriteFile(x.name, b.Bytes(), 0o644)
		}
	}
	if err != nil && w.cfg.Log != nil {
		w.cfg.Log.Warn("the flight recorder could not be written", "directory", w.cfg.FlightDir, "error", err)
	}
}

// quote is a text in JSON, whatever is in it: errors may be the user's.
func quote(s string) []byte {
	b, _ := json.Marshal(s) // a string always can be
	return b
}

// WriteChrome writes the records as the JSON that chrome://tracing and Perfetto
// read, in the form of the simulator's traces: a process for each rank, a thread
// for each channel, times in microseconds.
func (f *Flight) WriteChrome(w io.Writer) error {
	b := bufio.NewWriter(w)
	us := func(ns int64) string { return strconv.FormatFloat(float64(ns)/1e3, 'f', -1, 64) }
	fmt.Fprintf(b, "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [\n")
	fmt.Fprintf(b, `{"ph": "M", "name": "process_name", "pid": %d, "args": {"name": "rank %d"}}`, f.rank, f.rank)
	span := func(name, cat string, channel int32, from, to int64, args string) {
		fmt.Fprintf(b, ",\n"+`{"ph": "X", "name": %s, "cat": "%s", "pid": %d, "tid": %d, "ts": %s, "dur": %s, "args": {%s}}`,
			quote(name), cat, f.rank, channel, us(from), us(to-from), args)
	}
	for _, r := range f.Records() {
		end := r.Ended
		if end == 0 {
			end = clock()
		}
		span(fmt.Sprintf("%s %d", r.Op, r.Seq), "operation", -1, r.Began, end, fmt.Sprintf(`"bytes": %d, "program": %s, "error": %s`, r.Bytes, quote(r.Program), quote(r.Err)))
		if r.Entered != 0 {
			span("wait for all", "wait", 0, r.Began, r.Entered, "")
			span("work", "local", 0, r.Entered, end, fmt.Sprintf(`"bytes": %d`, r.Bytes))
		}
		last := map[int32]int64{}
		for _, s := range r.Steps {
			from := r.Began
			if t := last[s.Channel]; t != 0 {
				from = t
			}
			last[s.Channel] = s.Ended
			cat := "local"
			if s.To >= 0 {
				cat = "send"
			} else if s.From >= 0 {
				cat = "receive"
			}
			span(s.Op, cat, s.Channel, from, s.Ended, fmt.Sprintf(`"from": %d, "to": %d`, s.From, s.To))
		}
	}
	b.WriteString("\n]}\n")
	return b.Flush()
}
