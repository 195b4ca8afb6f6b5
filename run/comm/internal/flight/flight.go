// Package flight is a flight recorder: the last operations of a communicator with their times. It is always on; recording costs
// some 30 ns an operation.
package flight

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm/internal/calls"
	"github.com/weft-fabric/weft/run/comm/internal/clock"
	"github.com/weft-fabric/weft/run/comm/internal/plan"
)

// Recorder keeps the last operations of a rank, and whose turn it is to carry operations out.
type Recorder struct {
	mu       sync.Mutex // of those that read
	rank     int
	links    *Links
	messages messages
	ring     []flown
	next     int           // the place of the operation under way, which its goroutine alone touches
	word     atomic.Uint64 // whose turn it is, whether somebody reads, and how many operations ended
}

// What is in the word of a recorder. One word has it all, so that one instruction ends an operation: instructions that other
// cores see as a whole take 8 ns each.
const (
	Idle      = 0 // nobody carries operations out
	Running   = 1 // a caller does, one operation
	Queued    = 2 // somebody does until no operation is queued
	turnMask  = 3
	beingRead = 4 // which ends of operations wait for
	oneEnded  = 8
)

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
	Way       string `json:"way"`  // flat, script, or phases inside hosts and between them
	Mode      string `json:"mode"` // how it ran: inline, direct, store, ...
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
	mode                  plan.Mode
}

// Step is an action of a script.
type Step struct {
	Channel int32  `json:"channel"`
	Op      string `json:"op"`
	From    int    `json:"from"` // -1 if nothing is received
	To      int    `json:"to"`   // -1 if nothing is sent
	Ended   int64  `json:"ended_ns"`
}

// New makes the recorder of a rank, which keeps a number of operations.
func New(rank, size int) *Recorder { return &Recorder{rank: rank, ring: make([]flown, max(size, 1)+1)} }

// SetRank changes the rank; nobody uses the recorder yet.
func (f *Recorder) SetRank(rank int) { f.rank = rank }

// nothingAfter is the size up to which nothing comes after the last step that takes time.
const nothingAfter = 4096

// Begin notes what is known of an operation before it ends, in the place that nobody reads: a rank that waits for others does so
// meanwhile. Field by field: a whole one would be put together first.
func (f *Recorder) Begin(call *calls.Call, p *sched.Program, bytes int, began int64) {
	r := &f.ring[f.next]
	r.call, r.bytes, r.began = *call, bytes, began
	if r.program != p {
		r.program = p
	}
}

// End records that an operation ended: when all ranks had entered, in ticks, 0 if that was not looked at, and whether it ended
// when it began.
func (f *Recorder) End(m plan.Mode, entered int64, atOnce bool, steps *Steps, err error) {
	r := &f.ring[f.next]
	r.mode, r.entered, r.ended = m, entered, r.began
	if n := len(steps.list); n > 0 && r.bytes <= nothingAfter {
		r.ended = steps.list[n-1].ended
	} else if !atOnce {
		r.ended = clock.Ticks()
	}
	if r.err != nil || err != nil {
		r.err = err
	}
	if len(r.steps)+len(steps.list) > 0 {
		r.steps, steps.list = steps.list, r.steps
	}
	r.more = uint32(steps.more)
	if f.next++; f.next == len(f.ring) {
		f.next = 0
	}
}

// Publish lets others read the operation that ended, and if letGo is set ends the caller's turn. It reports whether there are
// operations for somebody else to carry out then.
func (f *Recorder) Publish(letGo bool) (more bool) {
	for {
		v := f.word.Load()
		if v&beingRead != 0 {
			f.awaitReader()
			continue
		}
		next := v + oneEnded
		if letGo && v&turnMask == Running {
			next -= Running
		}
		if f.word.CompareAndSwap(v, next) {
			return letGo && v&turnMask == Queued
		}
	}
}

// awaitReader returns when nobody reads.
func (f *Recorder) awaitReader() {
	f.mu.Lock()
	defer f.mu.Unlock()
}

// Take makes it the caller's turn, unless it is somebody else's.
func (f *Recorder) Take() bool {
	for {
		v := f.word.Load()
		if v&turnMask != Idle {
			return false
		}
		if f.word.CompareAndSwap(v, v|Running) {
			return true
		}
	}
}

// Turn sets whose turn it is, and gives whose it was.
func (f *Recorder) Turn(to uint64) (from uint64) {
	for {
		v := f.word.Load()
		if f.word.CompareAndSwap(v, v&^turnMask|to) {
			return v & turnMask
		}
	}
}

// LetGo ends the caller's turn. It reports whether somebody queued an operation meanwhile: then the turn goes on.
func (f *Recorder) LetGo() (more bool) {
	for {
		v := f.word.Load()
		if v&turnMask == Queued {
			return true
		}
		if f.word.CompareAndSwap(v, v&^turnMask) {
			return false
		}
	}
}

// Records gives the recorded operations, oldest first.
func (f *Recorder) Records() []Record {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := f.word.Or(beingRead)
	defer f.word.And(^uint64(beingRead))
	ended := int(at / oneEnded)
	next := ended % len(f.ring)
	when := clock.NewAnchor()
	var list []Record
	add := func(from []flown) {
		for i := range from {
			k := &from[i]
			if k.program == nil {
				continue
			}
			r := Record{Comm: k.call.Comm, Epoch: k.call.Epoch, Seq: k.call.Seq, Op: k.call.Op.String(), Count: k.call.Count,
				Type: k.call.Type.String(), Root: k.call.Root, Program: k.program.Name, Digest: k.program.Digest(), Way: "script",
				Bytes: k.bytes, Began: when.Time(k.began), Entered: when.Time(k.entered), Ended: when.Time(k.ended),
				Mode: k.mode.String(), OrLater: k.began&clock.Loose != 0, MoreSteps: int(k.more)}
			if k.call.Reduce != 0 {
				r.Reduce = k.call.Reduce.String()
			}
			switch k.mode {
			case plan.Script:
			case plan.Levels:
				r.Way = "phases"
			default:
				r.Way = "flat"
			}
			if k.err != nil {
				r.Err = k.err.Error()
			}
			for _, s := range k.steps {
				r.Steps = append(r.Steps, Step{Channel: s.channel, Op: s.op.String(), From: int(s.from), To: int(s.to), Ended: when.Time(s.ended)})
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
func (f *Recorder) WriteJSON(w io.Writer) error { return f.writeJSON(w, nil) }

// writeJSON writes the record as weft doctor reads it. The keys are its format: keep them.
func (f *Recorder) writeJSON(w io.Writer, why error) error {
	failure := ""
	if why != nil {
		failure = fmt.Sprintf("%+v", why)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	return e.Encode(struct {
		Rank     int       `json:"rank"`
		Failure  string    `json:"failure,omitempty"`
		Links    []Link    `json:"links,omitempty"`
		Records  []Record  `json:"records"`
		Messages []Message `json:"messages,omitempty"`
	}{f.rank, failure, f.Links(), f.Records(), f.Messages()})
}

// Dump writes the recorder and why an operation failed to dir/NAME.json and dir/NAME.trace.json.
func (f *Recorder) Dump(dir, name string, why error) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var plain, trace bytes.Buffer
	if err := errors.Join(f.writeJSON(&plain, why), f.WriteChrome(&trace)); err != nil {
		return err
	}
	base := filepath.Join(dir, name)
	return errors.Join(os.WriteFile(base+".json", plain.Bytes(), 0o644), os.WriteFile(base+".trace.json", trace.Bytes(), 0o644))
}

// quote is a text in JSON, whatever is in it: errors may be the user's.
func quote(s string) []byte {
	b, _ := json.Marshal(s) // a string always can be
	return b
}

// WriteChrome writes the records as the JSON that chrome://tracing and Perfetto
// read, in the form of the simulator's traces: a process for each rank, a thread
// for each channel, times in microseconds.
func (f *Recorder) WriteChrome(w io.Writer) error {
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
			end = clock.Now()
		}
		span(fmt.Sprintf("%s %d", r.Op, r.Seq), "operation", -1, r.Began, end,
			fmt.Sprintf(`"bytes": %d, "program": %s, "error": %s`, r.Bytes, quote(r.Program), quote(r.Err)))
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
	for _, l := range f.Links() {
		if l.Lasted > 0 {
			span(fmt.Sprintf("%s: rank %d", l.Kind, l.Peer), "link", -2, l.At-l.Lasted, l.At, fmt.Sprintf(`"interface": %s`, quote(l.Path)))
		} else {
			span(fmt.Sprintf("%s: rank %d", l.Kind, l.Peer), "link", -2, l.At, l.At,
				fmt.Sprintf(`"interface": %s, "why": %s`, quote(l.Path), quote(l.Why)))
		}
	}
	b.WriteString("\n]}\n")
	return b.Flush()
}
