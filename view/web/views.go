package web

import (
	"math"
	"slices"
	"time"

	"github.com/weft-fabric/weft/view/report"
)

// message is an event of /events: everything, or what has changed. Absent parts have not changed. Rows replace those with the
// same key (id, step, number) or are new; a reader discards a part with reset first.
type message struct {
	Board       string           `json:"board"`                 // this run's id; numbers of other runs mean nothing here
	Seq         uint64           `json:"seq"`                   // number of the last change
	Full        bool             `json:"full"`                  // true: everything; false: what has changed
	Now         time.Time        `json:"now"`                   // the server's clock
	Summary     summary          `json:"summary"`               // progress
	Job         *jobView         `json:"job,omitempty"`         // what runs
	Ranks       []Rank           `json:"ranks,omitempty"`       // without their last steps
	Steps       [][2]int         `json:"steps,omitempty"`       // in changes: slot and step of ranks with no other change
	Topology    *topologyView    `json:"topology,omitempty"`    // hosts and groups
	Loss        *lossView        `json:"loss,omitempty"`        // by step
	Throughput  *throughputView  `json:"throughput,omitempty"`  // over time
	Lateness    *latenessView    `json:"lateness,omitempty"`    // at commits
	Collectives []collectiveView `json:"collectives,omitempty"` // by operation and size
	Epochs      []epochView      `json:"epochs,omitempty"`      // in order
	Events      []eventRow       `json:"events,omitempty"`      // the last 1,000
	Checkpoints []Checkpoint     `json:"checkpoints,omitempty"` // the last 200
	Measures    *[]Measure       `json:"measures,omitempty"`    // figures of the run
}

// summary is the progress of the run.
type summary struct {
	State      string         `json:"state"`        // waiting (no rank), starting (no step), training, recovering (no step, a rank is missing), stalled (no step, all there), ended
	Step       int            `json:"step"`         // last step finished by any rank
	Loss       *float64       `json:"loss"`         // that step's mean loss; null: none yet, or NaN
	Diverged   bool           `json:"diverged"`     // the loss is not a number
	Epoch      uint64         `json:"epoch"`        // epoch number
	TokensRate float64        `json:"tokens_per_s"` // throughput over the last steps
	Tokens     int64          `json:"tokens"`       // tokens trained on
	Ranks      int            `json:"ranks"`        // ranks, without those that left
	States     map[string]int `json:"states"`       // ranks by state
	Failures   int64          `json:"failures"`     // failures of ranks
	Restarts   int64          `json:"restarts"`     // restarted ranks
	Elapsed    int64          `json:"elapsed_ns"`   // since the start
	Left       int64          `json:"left_ns"`      // until the end; -1: no end
	Time       stepTime       `json:"step_time"`    // mean over ranks and the last 20 steps
	Detect     spread         `json:"detect"`       // from a failure until all knew
	Resume     spread         `json:"resume"`       // from a failure until all trained again
}

// stepTime is where the time of a step goes, as a mean over ranks and the last 20 steps.
type stepTime struct {
	Steps    int   `json:"steps"`       // steps averaged
	Wall     int64 `json:"wall_ns"`     // the whole step
	Forward  int64 `json:"forward_ns"`  // forward pass
	Backward int64 `json:"backward_ns"` // backward pass
	Comm     int64 `json:"comm_ns"`     // communication among replicas
	Exposed  int64 `json:"exposed_ns"`  // the part of it that stalls the rank
	Tensor   int64 `json:"tensor_ns"`   // tensor parallel communication
	Bubble   int64 `json:"bubble_ns"`   // waiting for other pipeline stages
}

// spread summarises times; all zero if there are none.
type spread struct {
	Count int   `json:"count"`  // failures counted
	P50   int64 `json:"p50_ns"` // median
	P99   int64 `json:"p99_ns"` // 99th percentile
	Max   int64 `json:"max_ns"` // longest
}

// jobView is the job with its end.
type jobView struct {
	Job
	EndedAt time.Time `json:"ended_at,omitzero"` // when it ended; absent while it runs
}

// lossView is the loss curve. A point is the mean of stride steps.
type lossView struct {
	Reset  bool       `json:"reset"`         // discard this part first; always true in a view
	Stride int        `json:"stride"`        // steps per point
	Steps  []int      `json:"steps"`         // first step of each point
	Loss   []*float64 `json:"loss"`          // loss of each point; null: not a number
	Norm   []*float64 `json:"grad_norm"`     // gradient norm of each point; 0: unknown
	Rate   []*float64 `json:"learning_rate"` // learning rate of each point; 0: unknown
}

// throughputView is tokens per second in equal intervals from start on.
type throughputView struct {
	Reset bool      `json:"reset"`          // discard this part first; always true in a view
	Start time.Time `json:"start,omitzero"` // start of the first interval
	Width int64     `json:"width_ns"`       // length of an interval
	From  int       `json:"from"`           // number of the first interval
	Rate  []float64 `json:"tokens_per_s"`   // throughput of each interval
}

// latenessView is how late ranks arrived at the commits of the last 240 steps.
type latenessView struct {
	Reset   bool         `json:"reset"`         // discard this part first; always true in a view
	IDs     []int        `json:"ids,omitempty"` // slots, one per row
	Columns []lateColumn `json:"columns"`       // one per step
}

// lateColumn is one step: when each rank arrived.
type lateColumn struct {
	Step  int      `json:"step"`    // the step
	Epoch uint64   `json:"epoch"`   // its epoch
	Late  []*int64 `json:"late_us"` // per row: delay after the earliest rank; null: not reported
}

// epochView is an epoch with member counts.
type epochView struct {
	Number     uint64    `json:"number"`      // from 1
	At         time.Time `json:"at,omitzero"` // when
	Members    int       `json:"members"`     // how many members
	Recovering int       `json:"recovering"`  // members recovering
	Reason     string    `json:"reason"`      // why it was formed
	Step       int       `json:"step"`        // first step
	Layout     string    `json:"layout"`      // its layout
}

// rankView is a rank with its last step and, with ?id=N, its last steps and output.
type rankView struct {
	Rank
	Last   *lastStep   `json:"last,omitempty"`   // its last step; absent: none yet
	Series *rankSeries `json:"series,omitempty"` // with `?id=N`: its last steps, oldest first
	Log    []logLine   `json:"log,omitempty"`    // with `?id=N`: lines it printed
}

// rankSeries has a rank's last steps, oldest first.
type rankSeries struct {
	Steps   []int   `json:"steps"`      // their numbers
	Wall    []int64 `json:"wall_ns"`    // the whole step
	Compute []int64 `json:"compute_ns"` // computing
	Waited  []int64 `json:"waited_ns"`  // waiting at the commit
}

// logLine is a line that a rank has printed.
type logLine struct {
	At   time.Time `json:"at"`   // when
	Text string    `json:"text"` // the line
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

// lastStep is where a rank spent the time of its last step.
type lastStep struct {
	Step     int       `json:"step"`        // its number
	Epoch    uint64    `json:"epoch"`       // its epoch
	Ended    time.Time `json:"ended"`       // when it ended
	Wall     int64     `json:"wall_ns"`     // the whole step
	Waited   int64     `json:"waited_ns"`   // from the commit to the step's end
	Forward  int64     `json:"forward_ns"`  // forward pass
	Backward int64     `json:"backward_ns"` // backward pass
	Comm     int64     `json:"comm_ns"`     // communication among replicas
	Exposed  int64     `json:"exposed_ns"`  // the part of it that stalls the rank
	Tensor   int64     `json:"tensor_ns"`   // tensor parallel communication
	Bubble   int64     `json:"bubble_ns"`   // waiting for other pipeline stages
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

// lossSince returns the points that changed after seq; nil if none did. Reset says that the reader has to forget those
// it has.
func (b *Board) lossSince(seq uint64) *lossView {
	v := lossView{Reset: seq == 0 || b.loss.resetSeq > seq, Stride: b.loss.stride, Steps: []int{}, Loss: []*float64{}, Norm: []*float64{},
		Rate: []*float64{}}
	for _, p := range b.loss.points {
		if v.Reset || p.seq > seq {
			v.Steps = append(v.Steps, p.step)
			n := float64(p.n)
			v.Loss, v.Norm, v.Rate = append(v.Loss, number(round(p.sum/n))), append(v.Norm, number(round(p.norm/n))),
				append(v.Rate, number(round(p.rate/n)))
		}
	}
	if !v.Reset && len(v.Steps) == 0 {
		return nil
	}
	return &v
}

// firstChange is the first of n pieces that has to be told, n if none has: it changed, or its neighbour was begun, as that is
// when it stopped being the last.
func (m *meter) firstChange(n int, seq uint64) int {
	for i := range n {
		if m.parts[i].seq > seq || i+1 < len(m.parts) && m.parts[i+1].seq > seq {
			return i
		}
	}
	return n
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
	if !v.Reset && b.jobSeq <= seq {
		v.From = m.firstChange(len(parts), seq)
	}
	for i := v.From; i < len(parts); i++ {
		v.Rate = append(v.Rate, round(parts[i].amount/m.width.Seconds()))
	}
	if !v.Reset && len(v.Rate) == 0 {
		return nil
	}
	return &v
}

// lateSince is lossSince for lateness.
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

// summary is the head of the page. A loss that is not a number is Diverged, as JSON has none.
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

// stepTime averages the last twenty steps, over all ranks that told of them.
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
