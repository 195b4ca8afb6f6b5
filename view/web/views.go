package web

import (
	"math"
	"slices"
	"time"

	"github.com/weft-fabric/weft/view/report"
)

// message is what a reader is sent: everything, or what has changed since a
// number. Absent parts have not changed. Of a part with reset, what the reader
// had is to be forgotten first; rows of the others replace those with the same
// key (id, step, number) or are new.
type message struct {
	Board       string           `json:"board"`
	Seq         uint64           `json:"seq"`
	Full        bool             `json:"full"`
	Now         time.Time        `json:"now"`
	Summary     summary          `json:"summary"`
	Job         *jobView         `json:"job,omitempty"`
	Ranks       []Rank           `json:"ranks,omitempty"`
	Steps       [][2]int         `json:"steps,omitempty"` // id and step of ranks of which nothing else changed
	Topology    *topologyView    `json:"topology,omitempty"`
	Loss        *lossView        `json:"loss,omitempty"`
	Throughput  *throughputView  `json:"throughput,omitempty"`
	Lateness    *latenessView    `json:"lateness,omitempty"`
	Collectives []collectiveView `json:"collectives,omitempty"`
	Epochs      []epochView      `json:"epochs,omitempty"`
	Events      []eventRow       `json:"events,omitempty"`
	Checkpoints []Checkpoint     `json:"checkpoints,omitempty"`
	Measures    *[]Measure       `json:"measures,omitempty"`
}

// summary is the head of the page.
type summary struct {
	// State is waiting (no rank yet), starting (no step yet), training,
	// recovering (no step for a while, and a rank is missing), stalled (no step
	// for a while although all are there) or ended.
	State      string         `json:"state"`
	Step       int            `json:"step"`
	Loss       *float64       `json:"loss"` // null: none yet, or no number
	Diverged   bool           `json:"diverged"`
	Epoch      uint64         `json:"epoch"`
	TokensRate float64        `json:"tokens_per_s"`
	Tokens     int64          `json:"tokens"`
	Ranks      int            `json:"ranks"` // without those that left before the end
	States     map[string]int `json:"states"`
	Failures   int64          `json:"failures"`
	Restarts   int64          `json:"restarts"`
	Elapsed    int64          `json:"elapsed_ns"`
	Left       int64          `json:"left_ns"` // until the end that the job has; -1: none
	Time       stepTime       `json:"step_time"`
	Detect     spread         `json:"detect"` // of the failures among the events kept
	Resume     spread         `json:"resume"`
}

// stepTime is where the time of a step goes: the mean over ranks and over the
// last steps.
type stepTime struct {
	Steps    int   `json:"steps"`
	Wall     int64 `json:"wall_ns"`
	Forward  int64 `json:"forward_ns"`
	Backward int64 `json:"backward_ns"`
	Comm     int64 `json:"comm_ns"`
	Exposed  int64 `json:"exposed_ns"`
	Tensor   int64 `json:"tensor_ns"`
	Bubble   int64 `json:"bubble_ns"`
}

// spread tells how a time varies; zero of all where there is none.
type spread struct {
	Count int   `json:"count"`
	P50   int64 `json:"p50_ns"`
	P99   int64 `json:"p99_ns"`
	Max   int64 `json:"max_ns"`
}

type jobView struct {
	Job
	EndedAt time.Time `json:"ended_at,omitzero"`
}

// lossView is the curve: the mean loss of the stride steps from each of steps.
type lossView struct {
	Reset  bool       `json:"reset"`
	Stride int        `json:"stride"`
	Steps  []int      `json:"steps"`
	Loss   []*float64 `json:"loss"`          // null: no number
	Norm   []*float64 `json:"grad_norm"`     // of the gradients; 0: not told
	Rate   []*float64 `json:"learning_rate"` // 0: not told
}

// throughputView is tokens a second in pieces of time from start on. From is the
// number of the first piece that is told.
type throughputView struct {
	Reset bool      `json:"reset"`
	Start time.Time `json:"start,omitzero"`
	Width int64     `json:"width_ns"`
	From  int       `json:"from"`
	Rate  []float64 `json:"tokens_per_s"`
}

// latenessView is when ranks arrived at the commits of steps.
type latenessView struct {
	Reset   bool         `json:"reset"`
	IDs     []int        `json:"ids,omitempty"` // rows; told with reset
	Columns []lateColumn `json:"columns"`
}

type lateColumn struct {
	Step  int      `json:"step"`
	Epoch uint64   `json:"epoch"`
	Late  []*int64 `json:"late_us"` // by row, after the earliest; null: not reported
}

type epochView struct {
	Number     uint64    `json:"number"`
	At         time.Time `json:"at,omitzero"`
	Members    int       `json:"members"`
	Recovering int       `json:"recovering"`
	Reason     string    `json:"reason"`
	Step       int       `json:"step"`
	Layout     string    `json:"layout"`
}

// rankView is a rank with its last step and, where it is asked for alone, its last
// steps and lines.
type rankView struct {
	Rank
	Last   *lastStep   `json:"last,omitempty"`
	Series *rankSeries `json:"series,omitempty"`
	Log    []logLine   `json:"log,omitempty"`
}

// rankSeries are the last steps of a rank, oldest first.
type rankSeries struct {
	Steps   []int   `json:"steps"`
	Wall    []int64 `json:"wall_ns"`
	Compute []int64 `json:"compute_ns"`
	Waited  []int64 `json:"waited_ns"`
}

// logLine is a line that a rank has printed.
type logLine struct {
	At   time.Time `json:"at"`
	Text string    `json:"text"`
}

func (r *rankRow) seriesView() *rankSeries {
	v := &rankSeries{Steps: []int{}, Wall: []int64{}, Compute: []int64{}, Waited: []int64{}}
	for _, s := range r.series {
		l := lastOf(s)
		v.Steps, v.Wall = append(v.Steps, s.Step), append(v.Wall, l.Wall)
		v.Compute, v.Waited = append(v.Compute, l.Forward+l.Backward), append(v.Waited, l.Waited)
	}
	return v
}

// lastOf is a step as the page has it.
func lastOf(s report.Step) *lastStep {
	l := &lastStep{Step: s.Step, Epoch: s.Epoch, Ended: s.Ended, Forward: int64(s.Forward), Backward: int64(s.Backward),
		Comm: int64(s.Comm), Exposed: int64(s.Exposed), Tensor: int64(s.Tensor), Bubble: int64(s.Bubble)}
	if !s.Began.IsZero() {
		l.Wall = int64(s.Ended.Sub(s.Began))
	}
	if !s.Arrived.IsZero() {
		l.Waited = int64(s.Ended.Sub(s.Arrived))
	}
	return l
}

type lastStep struct {
	Step     int       `json:"step"`
	Epoch    uint64    `json:"epoch"`
	Ended    time.Time `json:"ended"`
	Wall     int64     `json:"wall_ns"`
	Waited   int64     `json:"waited_ns"` // from its arrival at the commit to the end
	Forward  int64     `json:"forward_ns"`
	Backward int64     `json:"backward_ns"`
	Comm     int64     `json:"comm_ns"`
	Exposed  int64     `json:"exposed_ns"`
	Tensor   int64     `json:"tensor_ns"`
	Bubble   int64     `json:"bubble_ns"`
}

// since is what has changed after a number; after 0, everything.
func (b *Board) since(seq uint64) message {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	m := message{Board: b.id, Seq: b.seq.Load(), Full: seq == 0, Now: now.UTC(), Summary: b.summary(now)}
	full := seq == 0
	if full || b.jobSeq > seq {
		m.Job = &jobView{b.job, b.endedAt}
	}
	for _, id := range b.ids {
		switch r := b.ranks[id]; {
		case full || r.seq > seq:
			m.Ranks = append(m.Ranks, r.Rank)
		case r.stepSeq > seq:
			m.Steps = append(m.Steps, [2]int{id, r.Step})
		}
	}
	if full || b.placeSeq > seq {
		m.Topology = b.topology()
	}
	m.Loss = b.lossSince(seq)
	m.Throughput = b.rateSince(seq)
	m.Lateness = b.lateSince(seq)
	if full || b.tallySeq > seq {
		m.Collectives = b.collectives()
	}
	for _, r := range b.epochs {
		if r.seq > seq {
			m.Epochs = append(m.Epochs, epochView{r.Number, r.At, len(r.Members), len(r.Recovering), r.Reason, r.Step, r.Layout})
		}
	}
	for _, r := range b.events {
		if r.seq > seq {
			m.Events = append(m.Events, r)
		}
	}
	for _, r := range b.saves {
		if r.seq > seq {
			m.Checkpoints = append(m.Checkpoints, r.Checkpoint)
		}
	}
	if full || b.measSeq > seq {
		list := append([]Measure{}, b.measures...)
		m.Measures = &list
	}
	return m
}

func (b *Board) lossSince(seq uint64) *lossView {
	v := lossView{Reset: seq == 0 || b.loss.resetSeq > seq, Stride: b.loss.stride, Steps: []int{}, Loss: []*float64{}, Norm: []*float64{}, Rate: []*float64{}}
	for _, p := range b.loss.points {
		if v.Reset || p.seq > seq {
			v.Steps = append(v.Steps, p.step)
			n := float64(p.n)
			v.Loss, v.Norm, v.Rate = append(v.Loss, number(round(p.sum/n))), append(v.Norm, number(round(p.norm/n))), append(v.Rate, number(round(p.rate/n)))
		}
	}
	if !v.Reset && len(v.Steps) == 0 {
		return nil
	}
	return &v
}

// rateSince leaves out the piece that time is still in unless the run has
// ended: it would always look like a drop.
func (b *Board) rateSince(seq uint64) *throughputView {
	m := &b.rate
	v := throughputView{Reset: seq == 0 || m.resetSeq > seq, Start: m.start, Width: int64(m.width), Rate: []float64{}}
	parts := m.parts
	if n := len(parts); n > 1 && !b.job.Ended {
		parts = parts[:n-1]
	}
	v.From = len(parts)
	for i, p := range parts {
		// A piece is told when its neighbour was begun, as that is when it stopped
		// being the last.
		if v.Reset || b.jobSeq > seq || p.seq > seq || i+1 < len(m.parts) && m.parts[i+1].seq > seq {
			v.From = i
			break
		}
	}
	for i := v.From; i < len(parts); i++ {
		v.Rate = append(v.Rate, round(parts[i].amount/m.width.Seconds()))
	}
	if !v.Reset && len(v.Rate) == 0 {
		return nil
	}
	return &v
}

func (b *Board) lateSince(seq uint64) *latenessView {
	l := &b.late
	v := latenessView{Reset: seq == 0 || l.resetSeq > seq, Columns: []lateColumn{}}
	if v.Reset {
		v.IDs = slices.Clone(l.ids)
	}
	for _, c := range l.columns {
		if v.Reset || c.seq > seq {
			v.Columns = append(v.Columns, lateColumn{c.step, c.epoch, l.late(c)})
		}
	}
	if !v.Reset && len(v.Columns) == 0 {
		return nil
	}
	return &v
}

func (b *Board) summary(now time.Time) summary {
	s := summary{Step: b.newest.Step, Epoch: b.newest.Epoch, Tokens: b.tokens, States: map[string]int{},
		Failures: b.counts.failures, Restarts: b.counts.restarts, Left: -1, Time: b.stepTime()}
	if n := len(b.epochs); n > 0 {
		s.Epoch = max(s.Epoch, b.epochs[n-1].Number)
	}
	missing := false
	for _, r := range b.ranks {
		s.States[r.State]++
		if r.State != Left || b.job.Ended {
			s.Ranks++
		}
		missing = missing || r.State != Healthy && r.State != Left
	}
	if last, ok := b.settled(); ok && last.lossN > 0 {
		mean := last.loss / float64(last.lossN)
		s.Loss = number(round(mean))
		s.Diverged = s.Loss == nil
	}
	until := now
	if !b.endedAt.IsZero() {
		until = b.endedAt
	}
	if !b.job.Started.IsZero() {
		s.Elapsed = int64(max(0, until.Sub(b.job.Started)))
	}
	if !b.job.Until.IsZero() {
		s.Left = int64(max(0, b.job.Until.Sub(until)))
	}
	var late bool
	s.TokensRate, late = b.tokensRate(until)
	switch {
	case b.job.Ended:
		s.State = "ended"
	case len(b.ranks) == 0:
		s.State = "waiting"
	case len(b.recent) == 0:
		s.State = "starting"
	case late && missing:
		s.State = "recovering"
	case late:
		s.State = "stalled"
	default:
		s.State = "training"
	}
	s.Detect, s.Resume = b.spreads()
	return s
}

// tokensRate is the rate over the last steps: at least ten seconds of them,
// where there are as many. Once the next step is late, by twice a mean step and
// two seconds, the time since the last one counts as well, so that the rate of
// a run that hangs goes to zero.
func (b *Board) tokensRate(now time.Time) (rate float64, late bool) {
	n := len(b.recent)
	if n == 0 {
		return 0, false
	}
	end := b.recent[n-1].ended
	first := n - 1
	for first > 0 && (n-1-first < 4 || end.Sub(b.recent[first].ended) < 10*time.Second) {
		first--
	}
	span := end.Sub(b.recent[first].ended)
	if since := now.Sub(end); !b.job.Ended && since > 2*time.Second+2*span/time.Duration(max(1, n-1-first)) {
		late = true
		span += since
	}
	tokens := 0
	for _, s := range b.recent[first+1:] {
		tokens += s.tokens
	}
	if span <= 0 {
		return 0, late
	}
	return round(float64(tokens) / span.Seconds()), late
}

func (b *Board) stepTime() stepTime {
	var t stepTime
	n := 0
	for _, s := range b.recent[max(0, len(b.recent)-20):] {
		t.Steps++
		n += s.n
		t.Wall += int64(s.wall)
		t.Forward += int64(s.forward)
		t.Backward += int64(s.backward)
		t.Comm += int64(s.comm)
		t.Exposed += int64(s.exposed)
		t.Tensor += int64(s.tensor)
		t.Bubble += int64(s.bubble)
	}
	if n > 0 {
		for _, f := range []*int64{&t.Wall, &t.Forward, &t.Backward, &t.Comm, &t.Exposed, &t.Tensor, &t.Bubble} {
			*f /= int64(n)
		}
	}
	return t
}

func (b *Board) spreads() (detect, resume spread) {
	var d, r []int64
	for _, e := range b.events {
		if e.Kind == "resumed" {
			d, r = append(d, int64(e.Detect)), append(r, int64(e.Resume))
		}
	}
	return spreadOf(d), spreadOf(r)
}

// spreadOf takes percentiles by the nearest rank.
func spreadOf(list []int64) spread {
	n := len(list)
	if n == 0 {
		return spread{}
	}
	slices.Sort(list)
	at := func(p float64) int64 { return list[min(n-1, int(math.Ceil(p*float64(n)))-1)] }
	return spread{n, at(0.5), at(0.99), list[n-1]}
}

// rankViews are all ranks; that of only has its series and lines with it.
func (b *Board) rankViews(only int) []rankView {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := make([]rankView, 0, len(b.ids))
	for _, id := range b.ids {
		r := b.ranks[id]
		v := rankView{Rank: r.Rank}
		if s := r.last; !s.Ended.IsZero() {
			v.Last = lastOf(s)
		}
		if only == id {
			v.Series, v.Log = r.seriesView(), slices.Clone(r.log)
		}
		list = append(list, v)
	}
	return list
}

func (b *Board) epochList() []Epoch {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := make([]Epoch, 0, len(b.epochs))
	for _, r := range b.epochs {
		e := r.Epoch
		e.Members, e.Recovering = append([]int{}, e.Members...), append([]int{}, e.Recovering...)
		list = append(list, e)
	}
	return list
}

// round keeps six digits: more than a page shows, and less to send.
func round(x float64) float64 {
	if x == 0 || math.IsNaN(x) || math.IsInf(x, 0) {
		return x
	}
	scale := math.Pow(10, 5-math.Floor(math.Log10(math.Abs(x))))
	if r := math.Round(x*scale) / scale; !math.IsNaN(r) && !math.IsInf(r, 0) {
		return r
	}
	return x
}
