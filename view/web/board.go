package web

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/weft-fabric/weft/view/report"
)

// What a board keeps, however long a run lasts. A run of 1,000 ranks was
// measured at 3.1 MB (2026-11-15), most of it lateness: 8 bytes a rank and step.
const (
	lateSteps   = 240  // steps of the heat map
	lossPoints  = 2048 // of the curve; then every two become one
	ratePoints  = 720  // of throughput; likewise
	eventsKept  = 1000
	epochsKept  = 200
	savesKept   = 200
	recentSteps = 64   // over which means are taken
	textKept    = 1000 // bytes of a text that a feeder gives
	seriesKept  = 120  // steps of each rank
	linesKept   = 200  // of the output of each rank
)

// Board is what the page shows. All methods may be called from any goroutine;
// values are copied. Every change has a number, and every row remembers the
// number of its last change, so that what a reader has missed can be told for
// any number it knows, without a queue for each reader.
type Board struct {
	id      string // of this board: numbers of another one mean nothing here
	seq     atomic.Uint64
	done    chan struct{}
	close   sync.Once
	clients atomic.Int64
	dropped atomic.Int64 // readers that did not take what they were sent in time
	skipped atomic.Int64 // messages that were folded into a later one as their reader was slow

	mu       sync.Mutex
	job      Job
	jobSeq   uint64
	endedAt  time.Time
	ranks    map[int]*rankRow
	ids      []int // ascending
	placeSeq uint64
	loss     curve
	rate     meter
	late     lateness
	tallies  map[int]*tally
	against  map[opSize]Against
	tallySeq uint64
	epochs   []epochRow
	events   []eventRow
	saves    []saveRow
	measures []Measure
	measSeq  uint64
	recent   []stepSum   // the last steps, oldest first
	newest   report.Step // the report of the highest step
	tokens   int64
	counts   struct{ events, failures, restarts, epochs, saves int64 }
	down     map[int]bool // ids whose failure is counted, until they are healthy again
}

type rankRow struct {
	Rank
	last    report.Step   // 0 if none
	series  []report.Step // the last ones
	log     []logLine
	seq     uint64 // of a change of anything but the step
	stepSeq uint64
}

type epochRow struct {
	Epoch
	seq uint64
}

// eventRow is an event with its number.
type eventRow struct {
	Event
	Number int64 `json:"number"` // from 1, in order
	Step   int   `json:"step"`   // last finished step
	seq    uint64
}

type saveRow struct {
	Checkpoint
	seq uint64
}

// stepSum is one step over the ranks that reported it.
type stepSum struct {
	step                                           int
	epoch                                          uint64
	n, lossN, tokens                               int
	loss                                           float64
	ended                                          time.Time
	wall, forward, backward, comm, exposed, bubble time.Duration
	tensor                                         time.Duration
}

// NewBoard makes an empty board.
func NewBoard() *Board {
	var name [6]byte
	rand.Read(name[:])
	b := &Board{
		id: hex.EncodeToString(name[:]), done: make(chan struct{}),
		ranks: map[int]*rankRow{}, tallies: map[int]*tally{}, down: map[int]bool{},
		loss: newCurve(), rate: newMeter(), late: newLateness(),
	}
	b.seq.Store(1) // 0 is the number of a reader that knows nothing
	return b
}

// Close ends the streams of all readers after a last message, so that an
// http.Server can shut down. The board still takes what it is fed.
func (b *Board) Close() { b.close.Do(func() { close(b.done) }) }

// change locks the board and gives this change its number.
func (b *Board) change() (seq uint64, unlock func()) {
	b.mu.Lock()
	return b.seq.Add(1), b.mu.Unlock
}

// Job says what runs; a later call replaces it.
func (b *Board) Job(j Job) {
	j.Title, j.Model, j.Layout, j.Transport, j.Command = short(j.Title), short(j.Model), short(j.Layout), short(j.Transport), short(j.Command)
	seq, unlock := b.change()
	defer unlock()
	if !j.Ended {
		b.endedAt = time.Time{}
	} else if b.endedAt.IsZero() {
		b.endedAt = time.Now()
	}
	if j.Transport != b.job.Transport || j.Layout != b.job.Layout {
		b.placeSeq = seq
	}
	b.job, b.jobSeq = j, seq
}

// row is the rank of an id, made if there is none.
func (b *Board) row(id int, seq uint64) *rankRow {
	r := b.ranks[id]
	if r == nil {
		r = &rankRow{Rank: Rank{ID: id, Rank: -1, State: Starting}, seq: seq}
		b.ranks[id] = r
		i, _ := slices.BinarySearch(b.ids, id)
		b.ids = slices.Insert(b.ids, i, id)
		b.late.know(id, b.ids, seq)
		b.placeSeq = seq
	}
	return r
}

// restarted says whether a process number is that of a new process: both numbers have to be known.
func (r *rankRow) restarted(pid int) bool { return pid != r.Pid && pid != 0 && r.Pid != 0 }

// inPlaceOf says whether two ranks have the same host and the same place in all groups, and both are in the job or both left.
func (r *Rank) inPlaceOf(o *Rank) bool {
	return r.Host == o.Host && r.Rank == o.Rank && r.Replica == o.Replica && r.Tensor == o.Tensor && r.Stage == o.Stage &&
		(r.State == Left) == (o.State == Left)
}

// Rank adds or replaces the rank of an id. One with another pid than before is
// a new process.
func (b *Board) Rank(r Rank) {
	r.Host, r.State = short(r.Host), short(r.State)
	seq, unlock := b.change()
	defer unlock()
	row := b.row(r.ID, seq)
	if row.restarted(r.Pid) {
		if t := b.tallies[r.ID]; t != nil {
			t.restart()
		}
	} else if r.Step == 0 {
		r.Step = row.Step
	}
	if r.Restarts > row.Restarts {
		b.counts.restarts += int64(r.Restarts - row.Restarts)
	}
	switch r.State {
	case Failed:
		b.failed(r.ID)
	case Healthy:
		delete(b.down, r.ID)
	}
	old := row.Rank
	if !old.inPlaceOf(&r) {
		b.placeSeq = seq
	}
	if old.Step != r.Step {
		row.stepSeq = seq
	}
	old.Step = r.Step
	if old != r {
		row.seq = seq
	}
	row.Rank = r
}

// announced says whether anything but a step was heard of the rank.
func (r *rankRow) announced() bool { return r.State != Starting || r.Rank.Rank >= 0 || r.Pid != 0 }

// Step adds one rank's finished step.
func (b *Board) Step(s report.Step) {
	if s.Ended.IsZero() {
		s.Ended = time.Now()
	}
	seq, unlock := b.change()
	defer unlock()
	row := b.row(s.ID, seq)
	if s.Epoch < row.last.Epoch {
		return // of a time that the rank has left behind
	}
	if !row.announced() {
		row.State, row.Rank.Rank, row.seq, b.placeSeq = Healthy, s.Rank, seq, seq
	}
	row.Step, row.last, row.stepSeq = s.Step, s, seq
	row.series = append(row.series, s)
	if n := len(row.series) - seriesKept; n > 0 {
		row.series = slices.Delete(row.series, 0, n)
	}

	if s.Epoch > b.newest.Epoch {
		b.rollBack(s.Step, s.Epoch, seq)
	}
	if s.Epoch > b.newest.Epoch || s.Epoch == b.newest.Epoch && s.Step >= b.newest.Step {
		b.newest = s
	}
	b.sum(s, seq)
	b.late.add(s, seq)
}

// rollBack forgets the steps from one on that were taken before an epoch.
func (b *Board) rollBack(step int, epoch uint64, seq uint64) {
	stale := func(t int, e uint64) bool { return t >= step && e < epoch }
	b.recent = slices.DeleteFunc(b.recent, func(s stepSum) bool { return stale(s.step, s.epoch) })
	b.loss.cut(step, seq)
	b.late.cut(step, epoch, seq)
}

// recentStep finds a step among the recent ones or adds it. It is nil if the step has left them, or is of an epoch that is
// over.
func (b *Board) recentStep(step int, epoch uint64) *stepSum {
	i, found := slices.BinarySearchFunc(b.recent, step, func(a stepSum, step int) int { return cmp.Compare(a.step, step) })
	switch {
	case found && b.recent[i].epoch > epoch, !found && i == 0 && len(b.recent) == recentSteps:
		return nil
	case found && b.recent[i].epoch < epoch:
		b.recent[i] = stepSum{step: step, epoch: epoch}
	case !found:
		b.recent = slices.Insert(b.recent, i, stepSum{step: step, epoch: epoch})
		if len(b.recent) > recentSteps {
			b.recent = slices.Delete(b.recent, 0, 1)
			i--
		}
	}
	return &b.recent[i]
}

// sum adds a report to its step. Reports of steps that have left the recent
// ones are dropped: all other ranks are far ahead.
func (b *Board) sum(s report.Step, seq uint64) {
	sum := b.recentStep(s.Step, s.Epoch)
	if sum == nil {
		return
	}
	sum.n++
	if s.Loss != 0 {
		sum.loss += s.Loss
		sum.lossN++
		b.loss.add(s.Step, s.Loss, s.Norm, s.Rate, seq)
	}
	if s.Tokens > sum.tokens { // the first report, or one that knows better
		b.rate.add(s.Began, s.Ended, s.Tokens-sum.tokens, seq)
		b.tokens += int64(s.Tokens - sum.tokens)
		sum.tokens = s.Tokens
	}
	if s.Ended.After(sum.ended) {
		sum.ended = s.Ended
	}
	if !s.Began.IsZero() && s.Ended.After(s.Began) {
		sum.wall += s.Ended.Sub(s.Began)
	}
	sum.forward += s.Forward
	sum.backward += s.Backward
	sum.comm += s.Comm
	sum.exposed += s.Exposed
	sum.tensor += s.Tensor
	sum.bubble += s.Bubble
}

// Log adds a line that the process of an id has printed.
func (b *Board) Log(id int, at time.Time, text string) {
	seq, unlock := b.change()
	defer unlock()
	row := b.row(id, seq)
	row.log = append(row.log, logLine{at, short(text)})
	if n := len(row.log) - linesKept; n > 0 {
		row.log = slices.Delete(row.log, 0, n)
	}
}

// settled is the newest step that as many ranks have reported as the one before
// it: a mean over a few of the ranks would jump.
func (b *Board) settled() (s stepSum, ok bool) {
	n := len(b.recent)
	switch {
	case n == 0:
		return stepSum{}, false
	case n > 1 && b.recent[n-1].n < b.recent[n-2].n:
		return b.recent[n-2], true
	}
	return b.recent[n-1], true
}

// Collectives replaces what the process of an id has counted since its start.
// Counts that are lower than before, or gone, are those of a new process, and
// what the earlier one had counted is kept.
func (b *Board) Collectives(id int, list []report.Collective) {
	seq, unlock := b.change()
	defer unlock()
	t := b.tallies[id]
	if t == nil {
		t = newTally()
		b.tallies[id] = t
	}
	t.set(list)
	b.tallySeq = seq
}

// Epoch adds a membership, or replaces the one of the same number.
func (b *Board) Epoch(e Epoch) {
	e.Members, e.Recovering, e.Reason, e.Layout = slices.Clone(e.Members), slices.Clone(e.Recovering), short(e.Reason), short(e.Layout)
	if e.At.IsZero() {
		e.At = time.Now()
	}
	seq, unlock := b.change()
	defer unlock()
	i, found := slices.BinarySearchFunc(b.epochs, e.Number, func(r epochRow, n uint64) int { return cmp.Compare(r.Number, n) })
	if found {
		b.epochs[i] = epochRow{e, seq}
		return
	}
	b.counts.epochs++
	b.epochs = slices.Insert(b.epochs, i, epochRow{e, seq})
	if n := len(b.epochs) - epochsKept; n > 0 {
		b.epochs = slices.Delete(b.epochs, 0, n)
	}
}

// failed counts the failure of a rank once, whether an event tells of it, its
// state, or both.
func (b *Board) failed(id int) {
	if !b.down[id] {
		b.down[id] = true
		b.counts.failures++
	}
}

// Event adds something that happened.
func (b *Board) Event(e Event) {
	e.Kind, e.Text = short(e.Kind), short(e.Text)
	if e.At.IsZero() {
		e.At = time.Now()
	}
	seq, unlock := b.change()
	defer unlock()
	b.counts.events++
	if e.Kind == "failure" && e.ID >= 0 {
		b.failed(e.ID)
	}
	b.events = append(b.events, eventRow{e, b.counts.events, b.newest.Step, seq})
	if n := len(b.events) - eventsKept; n > 0 {
		b.events = slices.Delete(b.events, 0, n)
	}
}

// Checkpoint adds a checkpoint, or replaces the one of the same step.
func (b *Board) Checkpoint(c Checkpoint) {
	c.State, c.Text = short(c.State), short(c.Text)
	if c.At.IsZero() {
		c.At = time.Now()
	}
	seq, unlock := b.change()
	defer unlock()
	i, found := slices.BinarySearchFunc(b.saves, c.Step, func(r saveRow, step int) int { return cmp.Compare(r.Step, step) })
	if found {
		b.saves[i] = saveRow{c, seq}
		return
	}
	b.counts.saves++
	b.saves = slices.Insert(b.saves, i, saveRow{c, seq})
	if n := len(b.saves) - savesKept; n > 0 {
		b.saves = slices.Delete(b.saves, 0, n)
	}
}

// Measures replaces the figures of the run.
func (b *Board) Measures(list []Measure) {
	list = slices.Clone(list)
	for i, m := range list {
		list[i] = Measure{short(m.Name), short(m.Value), short(m.Note)}
	}
	seq, unlock := b.change()
	defer unlock()
	b.measures, b.measSeq = list, seq
}

// short cuts a text to what a board keeps of it, between two characters.
func short(s string) string {
	if len(s) <= textKept {
		return s
	}
	n := textKept
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// number is x, or nil where JSON has no word for it.
func number(x float64) *float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return nil
	}
	return &x
}
