package up

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weft-fabric/weft/run/coord"
	"github.com/weft-fabric/weft/run/elastic"
	"github.com/weft-fabric/weft/run/elastic/node"
	"github.com/weft-fabric/weft/run/elastic/rank"
	"github.com/weft-fabric/weft/run/launch"
	"github.com/weft-fabric/weft/run/train"
	"github.com/weft-fabric/weft/view/report"
	"github.com/weft-fabric/weft/view/web"
	"golang.org/x/sys/unix"
)

// ledger keeps the books of a run: what the node and its ranks say becomes the
// page, the journal, incidents and the summary.
type ledger struct {
	r *run

	mu        sync.Mutex
	changed   chan struct{} // closed and replaced when something happened
	slots     []web.Rank
	had       map[int]int // the slot of each process so far
	standing  []coord.Standing
	epoch     coord.Epoch
	epochs    int
	formed    map[uint64]map[int]time.Time // epochs at work, and since when each slot is
	working   uint64                       // the latest epoch of which all members are at work
	work      rank.Formed                  // of rank 0 there
	shape     train.Layout                 // that was shown last
	seat      map[int]int                  // slots of that epoch, to ranks
	incidents []*incident
	kills     int
	coords    int
	saves     map[saveKey]*save

	losses   map[int]float64 // by step: the last one counts
	tokens   map[int]int
	firstAt  time.Time
	lastAt   time.Time
	top      int // the highest step
	at       int // the step that ranks are at
	lost     int // steps that were taken and had to be taken again
	next     int // the first of the epoch at work
	start    float64
	recent   []paced // of rank 0, for the pace
	measures rank.Measures
	held     []time.Duration // that checkpoints took of steps
	beside   []time.Duration // steps of rank 0 while a checkpoint was being written
	alone    []time.Duration // and without
}

type paced struct {
	at     time.Time
	tokens int
	step   int
}

type saveKey struct {
	step  int
	epoch uint64
}

// save is a checkpoint of which ranks have told.
type save struct {
	began  time.Time
	bytes  int64
	done   map[int]bool
	over   bool
	failed bool
	why    string
}

// whyUnsaved is why the last checkpoint that failed did, as the rest of a sentence.
func (l *ledger) whyUnsaved() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	last, why := -1, ""
	for k, s := range l.saves {
		if s.failed && k.step > last {
			last, why = k.step, fmt.Sprintf(" (that of step %d: %s)", k.step, s.why)
		}
	}
	return why
}

// incident is a failure and what followed.
type incident struct {
	slot    int
	pid     int
	kind    string // kill, stop, exit, silent
	at      time.Time
	epoch   uint64            // the latest that counts on it: what ends the incident is a later one
	others  map[int]bool      // that were at work in it
	knew    map[int]time.Time // and when they knew
	detect  time.Duration
	resume  time.Duration
	lost    int // steps taken that had to be taken again
	over    bool
	outside bool // the rank was not at work: nobody had to notice
}

func newLedger(r *run) *ledger {
	l := &ledger{r: r, had: map[int]int{}, changed: make(chan struct{}), slots: make([]web.Rank, r.o.Ranks),
		standing: make([]coord.Standing, r.o.Ranks),
		formed:   map[uint64]map[int]time.Time{}, seat: map[int]int{}, saves: map[saveKey]*save{}, losses: map[int]float64{},
		tokens: map[int]int{}}
	for i := range l.slots {
		l.slots[i] = web.Rank{ID: i, Rank: -1, State: web.Starting}
	}
	return l
}

// note puts a line into the journal and onto the page.
func (r *run) note(kind string, slot int, format string, a ...any) {
	r.event(web.Event{At: time.Now(), Kind: kind, ID: slot, Text: fmt.Sprintf(format, a...)})
}

// event records what happened: on the page, in the log and in the journal. A log that cannot be written does not stop
// the run.
func (r *run) event(e web.Event) {
	r.board.Event(e)
	line := fmt.Sprintf("%-11s ", e.Kind)
	if e.ID >= 0 {
		line += fmt.Sprintf("slot %d: ", e.ID)
	}
	line += e.Text
	if e.Resume > 0 {
		line += fmt.Sprintf("; known to all after %s, at work after %s", ms(e.Detect), ms(e.Resume))
	}
	if r.o.Log != nil {
		_, _ = fmt.Fprintf(r.o.Log, "%8.3f s  %s\n", e.At.Sub(r.started).Seconds(), line) // whoever stopped listening does not stop the run
	}
	if r.o.Journal != nil {
		r.o.Journal(e.At, line)
	}
}

// fate says how a process ended.
func fate(e launch.Exit) string {
	how := fmt.Sprintf("pid %d exited with code %d", e.Pid, e.Code)
	if e.Signal != 0 {
		how = fmt.Sprintf("pid %d was ended by %s", e.Pid, unix.SignalName(e.Signal))
	}
	return strings.Join(append([]string{how}, e.Stderr...), ": ")
}

func (l *ledger) started(e node.Event) {
	s := &l.slots[e.Slot]
	again := s.Pid != 0
	l.had[e.Pid] = e.Slot
	s.Pid, s.State, s.Rank, s.Host = e.Pid, web.Starting, -1, "localhost"
	if again {
		s.Restarts++
		l.r.note("restart", e.Slot, "started again as pid %d", e.Pid)
	}
	l.show(e.Slot)
}

func (l *ledger) exited(e node.Event) {
	s := &l.slots[e.Slot]
	s.State, s.Rank = web.Failed, -1
	if e.Exit.OK() {
		s.State = web.Left
	} else {
		l.open(e.Slot, e.Pid, e.At, "exit")
		l.r.event(web.Event{At: e.At, Kind: "exit", ID: e.Slot, Text: fate(e.Exit)})
	}
	l.show(e.Slot)
}

// placed notes a slot's standing with the coordinator. Only members of an epoch have a rank.
func (l *ledger) placed(e node.Event) {
	l.standing[e.Slot] = e.Place.Standing
	s := &l.slots[e.Slot]
	switch e.Place.Standing {
	case coord.Recovering, coord.Waiting, coord.Spare:
		s.State, s.Rank = web.Recovering, -1
	case coord.Evicted:
		s.Rank = -1
	}
	l.show(e.Slot)
}

// watch takes what happens on the node. Calls come one at a time.
func (l *ledger) watch(e node.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.wake()
	switch e.Kind {
	case node.Decided:
		l.decided(e)
	case node.Started:
		l.started(e)
	case node.Exited:
		l.exited(e)
	case node.Silent:
		l.open(e.Slot, e.Pid, e.Since, "silent")
		l.slots[e.Slot].State, l.slots[e.Slot].Rank = web.Suspect, -1 // its seat is no longer its own
		l.r.event(web.Event{At: e.At, Kind: "failure", ID: e.Slot, Text: e.Text})
		l.show(e.Slot)
	case node.Heard:
		l.slots[e.Slot].State = web.Recovering
		l.r.event(web.Event{At: e.At, Kind: "continued", ID: e.Slot, Text: fmt.Sprintf("pid %d speaks again", e.Pid)})
		l.show(e.Slot)
	case node.Placed:
		l.placed(e)
	case node.Trouble:
		l.r.event(web.Event{At: e.At, Kind: "coordinator", ID: -1, Text: e.Text})
	case node.GaveUp:
		l.r.event(web.Event{At: e.At, Kind: "error", ID: e.Slot, Text: "stays empty: " + e.Text})
	case node.Said:
		l.said(e)
	}
}

func (l *ledger) wake() {
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *ledger) show(slot int) { l.r.board.Rank(l.slots[slot]) }

// decided takes a new epoch.
func (l *ledger) decided(e node.Event) {
	l.epoch = e.Epoch
	l.epochs++
	w := web.Epoch{Number: e.Epoch.Number, At: e.At, Reason: e.Epoch.Reason, Step: l.top,
		Layout: l.r.o.Train.Layout.Fit(max(1, len(e.Epoch.Members))).String()}
	for _, m := range e.Epoch.Members {
		w.Members = append(w.Members, int(m.ID))
	}
	for _, m := range e.Epoch.Recovering {
		w.Recovering = append(w.Recovering, int(m.ID))
	}
	l.r.board.Epoch(w)
	text := fmt.Sprintf("%d: %d at work", e.Epoch.Number, len(e.Epoch.Members))
	if n := len(e.Epoch.Recovering); n > 0 {
		text += fmt.Sprintf(", %d recovering", n)
	}
	l.r.event(web.Event{At: e.At, Kind: "epoch", ID: -1, Text: text + ": " + e.Epoch.Reason})
	l.settle()
}

// said takes a word of a rank.
func (l *ledger) said(e node.Event) {
	w := e.Word
	switch w.Kind {
	case elastic.Formed:
		if l.formed[w.Epoch] == nil {
			l.formed[w.Epoch] = map[int]time.Time{}
		}
		l.formed[w.Epoch][e.Slot] = w.At
		l.know(e.Slot, w.At, w.Epoch)
		l.slots[e.Slot].State = web.Healthy
		l.show(e.Slot)
		l.settle()
	case elastic.Knew:
		l.know(e.Slot, w.At, w.Epoch)
	case elastic.Failed:
		l.know(e.Slot, w.At, w.Epoch+1)
		l.settle()
	case elastic.Stuck:
		l.r.event(web.Event{At: w.At, Kind: "failure", ID: e.Slot, Text: "no new epoch followed: " + w.Text})
	case elastic.Broken:
		l.r.event(web.Event{At: w.At, Kind: "error", ID: e.Slot, Text: w.Text})
	case elastic.Report:
		l.reported(e.Slot, w)
	}
}

// reported takes a report of a rank's program.
func (l *ledger) reported(slot int, w elastic.Word) {
	read := func(v any) bool { return json.Unmarshal(w.Data, v) == nil } // both ends are this program
	switch w.Name {
	case rank.Work:
		var f rank.Formed
		if !read(&f) {
			return
		}
		s := &l.slots[slot]
		s.Rank, s.Replica, s.Stage, s.Tensor = f.Rank, f.Replica, f.Stage, f.Tensor
		l.show(slot)
		if f.Rank == 0 {
			l.work = f
			l.r.job(f)
			l.next = f.Step + 1
			l.fellBack(f)
			if was := l.shape; was != f.Layout {
				if l.shape = f.Layout; was.DP > 0 {
					text := fmt.Sprintf("%v on %d ranks", f.Layout, f.Ranks)
					if n := f.Ranks - f.Layout.Ranks(); n > 0 {
						text += fmt.Sprintf(", %d spare", n)
					}
					l.r.note("layout", -1, "%s", text)
				}
			}
			if f.From != "peers" {
				l.r.note("note", -1, "training begins with step %d, from the %s, on %d ranks (%v) over %s",
					f.Step+1, f.From, f.Ranks, f.Layout, f.Transport)
			}
		}
	case rank.Stepped:
		s := report.Step{ID: slot}
		if read(&s) {
			l.stepped(slot, s)
		}
	case rank.Traffic:
		var list []report.Collective
		if read(&list) {
			l.r.board.Collectives(slot, list)
		}
	case rank.Saved:
		var c rank.Part
		if read(&c) {
			l.saved(slot, w.At, c)
		}
	case rank.Measured:
		var m rank.Measures
		if read(&m) && l.slots[slot].Rank == 0 {
			l.measures = m
			l.r.board.Measures(l.figures())
		}
	}
}

// fellBack counts the steps that the ranks of an epoch have to take again. They are
// lost once, however many ranks died: the first failure that is not overcome has them.
func (l *ledger) fellBack(f rank.Formed) {
	lost := l.at - f.Step
	l.at = f.Step
	if lost <= 0 {
		return
	}
	l.lost += lost
	if i := slices.IndexFunc(l.incidents, func(i *incident) bool { return !i.over }); i >= 0 {
		l.incidents[i].lost += lost
	}
	cause := f.Cause
	if cause == "" {
		cause = "no rank at work is left"
	}
	l.r.note("failure", -1, "%s: back to step %d, %d steps lost", cause, f.Step, lost)
}

func (l *ledger) stepped(slot int, s report.Step) {
	st := &l.slots[slot]
	st.Step = s.Step
	if s.Memory > 0 {
		st.Memory = s.Memory
		l.show(slot)
	}
	l.r.board.Step(s)
	if s.Save > 0 {
		l.held = append(l.held, s.Save)
	}
	if l.firstAt.IsZero() || s.Began.Before(l.firstAt) {
		l.firstAt = s.Began
	}
	if s.Ended.After(l.lastAt) {
		l.lastAt = s.Ended
	}
	if len(l.losses) == 0 {
		l.start = s.Loss
	}
	l.losses[s.Step], l.tokens[s.Step] = s.Loss, s.Tokens
	l.top = max(l.top, s.Step)
	if s.Epoch >= l.work.Epoch { // not the word of a rank that was killed, read late
		l.at = max(l.at, s.Step)
	}
	if s.Rank == 0 {
		l.pace(s)
	}
}

// pace keeps how long steps take, those beside a checkpoint apart, and the last five seconds for the rate.
func (l *ledger) pace(s report.Step) {
	if s.Overlap {
		to := &l.alone
		if s.Writing || s.Save > 0 {
			to = &l.beside
		}
		*to = append(*to, s.Ended.Sub(s.Began))
	}
	l.recent = append(l.recent, paced{s.Ended, s.Tokens, s.Step})
	for len(l.recent) > 2 && s.Ended.Sub(l.recent[0].at) > 5*time.Second {
		l.recent = slices.Delete(l.recent, 0, 1)
	}
}

// saved takes a rank's part of a checkpoint.
func (l *ledger) saved(slot int, at time.Time, c rank.Part) {
	key := saveKey{c.Step, c.Epoch}
	s := l.saves[key]
	if s == nil {
		s = &save{began: at, done: map[int]bool{}}
		l.saves[key] = s
	}
	out := web.Checkpoint{Step: c.Step, At: s.began, State: "writing"}
	if c.Err != "" {
		if !s.over {
			l.r.event(web.Event{At: at, Kind: "error", ID: slot,
				Text: fmt.Sprintf("checkpoint of step %d: %s; training goes on, earlier checkpoints are as they were", c.Step, c.Err)})
		}
		s.over, s.failed, s.why = true, true, c.Err
		out.State, out.Text = "failed", c.Err
		l.r.board.Checkpoint(out)
		return
	}
	if c.Done && !s.done[slot] {
		s.done[slot] = true
		s.bytes += c.Bytes
	}
	out.Bytes, out.Took = s.bytes, at.Sub(s.began)
	if !s.over && len(s.done) >= c.Of && c.Of > 0 {
		s.over = true
		out.State = l.complete(at, c)
	}
	l.r.board.Checkpoint(out)
}

// complete tells of a checkpoint that is more than one of many, and gives the state that the page shows.
func (l *ledger) complete(at time.Time, c rank.Part) string {
	if c.Final {
		l.r.event(web.Event{At: at, Kind: "checkpoint", ID: -1, Text: fmt.Sprintf("of step %d, where the run ends", c.Step)})
	}
	if !c.Emergency {
		return "complete"
	}
	l.r.event(web.Event{At: at, Kind: "checkpoint", ID: -1, Text: fmt.Sprintf("emergency checkpoint of step %d", c.Step)})
	return "emergency"
}

// covers reports whether what befell a process belongs to an incident: a process ends only once, and is stopped again
// only when it went on.
func (i *incident) covers(slot, pid int, kind string) bool {
	return i.slot == slot && i.pid == pid && (!i.over || kind == "exit")
}

// open begins an incident, unless the drill has for that process.
func (l *ledger) open(slot, pid int, at time.Time, kind string) {
	if slices.ContainsFunc(l.incidents, func(i *incident) bool { return i.covers(slot, pid, kind) }) {
		return
	}
	i := &incident{slot: slot, pid: pid, kind: kind, at: at, epoch: l.working, others: map[int]bool{}, knew: map[int]time.Time{}}
	if slices.ContainsFunc(l.epoch.Members, func(m coord.Seat) bool { return int(m.ID) == slot }) {
		i.epoch = l.epoch.Number // which may be on its way
	}
	_, in := l.seat[slot]
	i.outside = !in || l.slots[slot].Pid != pid
	for other := range l.seat {
		i.others[other] = other != slot
	}
	for _, before := range l.incidents { // who is gone need not know
		if !before.over {
			delete(before.others, slot)
			delete(i.others, before.slot)
		}
	}
	delete(i.others, slot)
	i.over = i.outside
	l.incidents = append(l.incidents, i)
}

// hurt is open for the drill.
func (l *ledger) hurt(slot, pid int, at time.Time, kind string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if kind == "kill" {
		l.kills++
	}
	l.open(slot, pid, at, kind)
	name := map[string]string{"kill": "SIGKILL", "stop": "SIGSTOP"}[kind]
	l.r.event(web.Event{At: at, Kind: map[string]string{"kill": "kill", "stop": "stopped"}[kind], ID: slot,
		Text: fmt.Sprintf("%s to rank %d, pid %d", name, l.slots[slot].Rank, pid)})
}

func (l *ledger) coordinatorKilled() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.coords++
}

// know says that a slot knew of whatever happened in epochs before one.
func (l *ledger) know(slot int, at time.Time, before uint64) {
	for _, i := range l.incidents {
		if !i.over && i.others[slot] && i.epoch < before && i.knew[slot].IsZero() && at.After(i.at) {
			i.knew[slot] = at
		}
	}
}

// seated gives the rank of each slot in an epoch, and when the last of them was at work; nil if some are not yet.
func seated(e coord.Epoch, at map[int]time.Time) (seat map[int]int, last time.Time) {
	seat = map[int]int{}
	for rank, m := range e.Members {
		t, ok := at[int(m.ID)]
		if !ok {
			return nil, last
		}
		seat[int(m.ID)] = rank
		if t.After(last) {
			last = t
		}
	}
	return seat, last
}

// settle finds out whether all members of the latest epoch are at work, and which
// incidents are over with that.
func (l *ledger) settle() {
	e := l.epoch
	at := l.formed[e.Number]
	if len(at) == 0 {
		// Members did not have to change over where only newcomers have been listed.
		return
	}
	seat, last := seated(e, at)
	if seat == nil {
		return
	}
	l.working, l.seat = e.Number, seat
	for n := range l.formed {
		if n+16 < e.Number {
			delete(l.formed, n)
		}
	}
	for _, i := range l.incidents {
		if i.over || e.Number <= i.epoch {
			continue
		}
		i.over = true
		i.resume = last.Sub(i.at)
		for slot := range i.others {
			if t, ok := i.knew[slot]; ok {
				i.detect = max(i.detect, t.Sub(i.at))
			}
		}
		l.r.event(web.Event{At: last, Kind: "resumed", ID: i.slot, Detect: i.detect, Resume: i.resume,
			Text: fmt.Sprintf("on %d ranks with step %d, %d steps lost", len(e.Members), l.next, i.lost)})
	}
}

func ms(d time.Duration) string { return fmt.Sprintf("%.0f ms", float64(d)/1e6) }

// until waits for cond, which is called with mu held; false if ctx ended first.
func (l *ledger) until(ctx context.Context, cond func() bool) bool {
	for {
		l.mu.Lock()
		met, changed := cond(), l.changed
		l.mu.Unlock()
		if met {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// first waits for the first step.
func (l *ledger) first(ctx context.Context) bool {
	return l.until(ctx, func() bool { return len(l.losses) > 0 })
}

// victim waits until nothing is being overcome, and gives one of the slots at work,
// if there are two.
func (l *ledger) victim(ctx context.Context, p float64) (slot int, ok bool) {
	ok = l.until(ctx, func() bool {
		if len(l.seat) < 2 || !l.isCalm() {
			return false
		}
		var list []int
		for s := range l.seat {
			list = append(list, s)
		}
		slices.Sort(list)
		slot = list[int(math.Min(p*float64(len(list)), float64(len(list)-1)))]
		return true
	})
	return slot, ok
}

func (l *ledger) isCalm() bool {
	return !slices.ContainsFunc(l.incidents, func(i *incident) bool { return !i.over })
}

// calm waits until all ranks that were hurt are overcome and all slots are at work again.
func (l *ledger) calm(ctx context.Context) bool {
	return l.until(ctx, func() bool { return l.isCalm() && len(l.seat) == l.r.o.Ranks })
}

// job tells the page what runs.
func (r *run) job(f rank.Formed) {
	j := web.Job{Title: "weft up", Model: describe(r.o.Train.Model),
		Layout: f.Layout.String(), Transport: f.Transport, Command: r.o.Command, Params: f.Params, Ranks: r.o.Ranks, Started: r.started,
		Watch: "/watch/", Studio: r.studio()}
	if r.o.For > 0 {
		j.Until = r.started.Add(r.o.For)
	}
	r.shown = j
	r.board.Job(j)
}

// over tells the page that the run has ended.
func (r *run) over() {
	r.ledger.mu.Lock()
	defer r.ledger.mu.Unlock()
	r.shown.Ended = true
	r.board.Job(r.shown)
}
