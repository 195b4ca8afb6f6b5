package up

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/train"
	"github.com/weft-fabric/weft/view/web"
)

// Summary is how a run went. Times are milliseconds; a figure that was not
// measured is nil.
type Summary struct {
	Steps     int     `json:"steps"` // the last one
	LossStart float64 `json:"loss_start"`
	LossEnd   float64 `json:"loss_end"`
	Rate      float64 `json:"tokens_per_s"`
	Epochs    int     `json:"epochs"`
	Kills     int     `json:"kills"`    // by the drill
	Failures  int     `json:"failures"` // of ranks at work, by whatever cause
	// Detect is from a failure to the moment the last survivor knew, Resume to the
	// moment all of them trained again: medians, and the worst of all.
	Detect    *float64 `json:"detect_ms"`
	DetectMax *float64 `json:"detect_ms_max"`
	Resume    *float64 `json:"resume_ms"`
	ResumeMax *float64 `json:"resume_ms_max"`
	Lost      int      `json:"steps_lost"` // taken and taken again, besides those in flight
	// Verdicts are what the watch of the run found.
	Verdicts []Verdict `json:"verdicts"`
	// Hidden is the share of the time of collectives among replicas during which rank 0
	// computed. What that gains is the difference of Apart and Together.
	Hidden *float64 `json:"overlap_hidden"`

	Ranks        int      `json:"ranks"`
	Layout       string   `json:"layout"`
	Seconds      float64  `json:"seconds"`
	Coordinators int      `json:"coordinator_kills"`
	Checkpoints  int      `json:"checkpoints"`
	Unsaved      int      `json:"steps_unsaved"`         // since the last checkpoint in --ckpt
	SaveHeld     *float64 `json:"checkpoint_held_ms"`    // median time that a checkpoint held a step up
	SaveSlows    *float64 `json:"checkpoint_step_ratio"` // median step in which a checkpoint was taken or written, to the others'
	Bubble       *float64 `json:"bubble"`
	BubbleModel  *float64 `json:"bubble_formula"`
	Memory       int      `json:"state_bytes"` // of rank 0: parameters, gradients, moments
	MemoryModel  int      `json:"state_formula_bytes"`
	Busy         float64  `json:"busy"` // share of step time that rank 0 computed
	Apart        *float64 `json:"apart_ms"`
	Together     *float64 `json:"together_ms"`
	Noise        *float64 `json:"noise_ms"` // a difference of apart and together below this says nothing
	Comm         *float64 `json:"comm_ms"`
	Backward     float64  `json:"backward_ms"`
	Commit       float64  `json:"commit_ms"` // agreeing on a step: waits for the slowest rank
	Update       float64  `json:"update_ms"`
	Step         float64  `json:"step_ms"` // from the begin of one to the begin of the next
	StepP99      float64  `json:"step_ms_p99"`
	// Checked is how many steps' losses were compared with those of a run that nobody
	// disturbed, and Deviation the largest relative difference.
	Checked   int        `json:"checked_steps,omitempty"`
	Deviation *float64   `json:"loss_deviation,omitempty"`
	Same      *bool      `json:"check_passed,omitempty"` // every difference is one of rounding
	Incidents []Incident `json:"incidents"`
}

// Incident is a failure of a rank at work.
type Incident struct {
	At     float64 `json:"at_s"` // since the run began
	Slot   int     `json:"slot"`
	Kind   string  `json:"kind"`
	Detect float64 `json:"detect_ms"`
	Resume float64 `json:"resume_ms"`
	Lost   int     `json:"steps_lost"`
	Over   bool    `json:"overcome"`
}

func milli(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

// summary closes the books.
func (l *ledger) summary() Summary {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := Summary{Steps: l.at, LossStart: l.start, LossEnd: l.losses[l.at], Epochs: l.epochs, Kills: l.kills, Ranks: l.r.o.Ranks,
		Layout: l.work.Layout.String(), Coordinators: l.coords, Memory: l.measures.Held, MemoryModel: l.measures.Expected, Busy: l.measures.Busy,
		Backward: milli(l.measures.Backward), Commit: milli(l.measures.Commit), Update: milli(l.measures.Update), Step: milli(l.measures.Step),
		Incidents: []Incident{}}
	total := 0
	for _, n := range l.tokens {
		total += n
	}
	if d := l.lastAt.Sub(l.firstAt); d > 0 {
		s.Seconds = d.Seconds()
		s.Rate = float64(total) / d.Seconds()
	}
	for _, c := range l.saves {
		if c.over && !c.failed {
			s.Checkpoints++
		}
	}
	if all := slices.Sorted(slices.Values(append(slices.Clone(l.alone), l.beside...))); len(all) > 0 {
		s.StepP99 = milli(all[len(all)*99/100])
	}
	set := func(to **float64, v float64) { *to = &v }
	if len(l.held) > 0 {
		set(&s.SaveHeld, milli(slices.Sorted(slices.Values(l.held))[len(l.held)/2]))
	}
	if mid := func(list []time.Duration) float64 { return milli(slices.Sorted(slices.Values(list))[len(list)/2]) }; len(l.beside) > 4 &&
		len(l.alone) > 4 {
		set(&s.SaveSlows, mid(l.beside)/mid(l.alone))
	}
	if m := l.measures; m.Comm > 0 {
		set(&s.Hidden, m.Hidden)
		set(&s.Comm, milli(m.Comm))
		if m.Apart > 0 {
			set(&s.Apart, milli(m.Apart))
			set(&s.Together, milli(m.Together))
			set(&s.Noise, milli(m.Noise))
		}
	}
	if m := l.measures; m.Formula > 0 {
		set(&s.Bubble, m.Bubble)
		set(&s.BubbleModel, m.Formula)
	}
	s.Lost = l.lost
	var detect, resume []float64
	for _, i := range l.incidents {
		if i.outside {
			continue
		}
		s.Failures++
		s.Incidents = append(s.Incidents, Incident{At: i.at.Sub(l.r.started).Seconds(), Slot: i.slot, Kind: i.kind, Detect: milli(i.detect),
			Resume: milli(i.resume), Lost: i.lost, Over: i.over && i.resume > 0})
		if i.resume > 0 {
			detect, resume = append(detect, milli(i.detect)), append(resume, milli(i.resume))
		}
	}
	if len(resume) > 0 {
		slices.Sort(detect)
		slices.Sort(resume)
		set(&s.Detect, detect[len(detect)/2])
		set(&s.DetectMax, detect[len(detect)-1])
		set(&s.Resume, resume[len(resume)/2])
		set(&s.ResumeMax, resume[len(resume)-1])
	}
	return s
}

// again trains up to a number of steps as one rank of an undisturbed run, and tells of every loss.
func (r *run) again(ctx context.Context, c *comm.Comm, steps int, tell func(step int, loss float64)) (err error) {
	t, err := train.New(ctx, r.o.Train, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	for t.Taken() < steps {
		stats, err := t.Step(ctx)
		if err != nil {
			return err
		}
		tell(stats.Step, stats.Loss)
	}
	return nil
}

// check trains again in this process, with as many ranks in the same layout and
// undisturbed, and compares the losses.
func (r *run) check(ctx context.Context, s *Summary) error {
	if r.o.Log != nil {
		_, _ = fmt.Fprintf(r.o.Log, "%8.3f s  the same %d steps again, undisturbed, to compare\n", time.Since(r.started).Seconds(), s.Steps)
	}
	world, err := comm.Local(r.o.Ranks)
	if err != nil {
		return err
	}
	v := verdict{wire: r.o.Train.Wire}
	errs := make([]error, len(world))
	var wg sync.WaitGroup
	for i, c := range world {
		wg.Add(1)
		go func() {
			defer wg.Done()
			defer func() { errs[i] = errors.Join(errs[i], c.Close()) }()
			errs[i] = r.again(ctx, c, s.Steps, func(step int, loss float64) {
				if was, ok := r.ledger.losses[step]; ok && i == 0 {
					v.take(step, was, loss)
				}
			})
		}()
	}
	wg.Wait()
	s.Checked, s.Deviation, s.Same = v.steps, &v.worst, new(bool)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if *s.Same = v.bad == 0; !*s.Same {
		return fmt.Errorf("check: the loss of step %d is %.6g, an undisturbed run has %.6g: they differ by %.2g, and rounding explains %.2g; %d of %d steps differ by more than that",
			v.step, v.loss, v.want, v.off, v.limit(v.step), v.bad, v.steps)
	}
	return nil
}

// verdict compares losses step by step.
type verdict struct {
	wire            reduce.Type
	steps, bad      int
	worst           float64 // the largest difference
	step            int     // the first that differs too much
	loss, want, off float64 // there
}

func (v *verdict) take(step int, loss, want float64) {
	off := math.Abs(loss-want) / want
	v.steps++
	v.worst = max(v.worst, off)
	if off <= v.limit(step) {
		return
	}
	if v.bad++; v.bad == 1 {
		v.step, v.loss, v.want, v.off = step, loss, want, off
	}
}

// limit is how far the losses of a step may be apart for the sake of rounding alone.
// Sums over other numbers of ranks round differently, and training magnifies that, by
// 10 in some 900 steps of the tiny model: 1e-7 after 500 steps, 4e-6 after 2,000 and
// 2e-4 after 3,500 were measured without any failure, 2e-3 with 40. A step that reads
// other samples is some 1e-2 off at once.
func (v *verdict) limit(step int) float64 {
	unit := 1e-6
	if v.wire != reduce.Float32 && v.wire != 0 {
		unit = 1e-3 // gradients have 8 or 11 bits on the wire
	}
	return min(0.02, unit*math.Pow(10, float64(step)/900))
}

// gain says what overlapping changed, where steps without it were taken to compare.
func (s Summary) gain() string {
	if s.Apart == nil {
		return ""
	}
	text := fmt.Sprintf("; passes take %.1f ms with overlap, %.1f ms without", *s.Together, *s.Apart)
	if math.Abs(*s.Apart-*s.Together) < *s.Noise {
		text = fmt.Sprintf("; no measurable difference (%.1f ms with overlap, %.1f ms without, noise ±%.1f ms)", *s.Together, *s.Apart, *s.Noise)
	}
	if cores := runtime.NumCPU(); s.Ranks > cores {
		text += fmt.Sprintf(" (%d ranks on %d cores: no core is idle while collectives run)", s.Ranks, cores)
	}
	return text
}

// Print writes a summary for people.
func (s Summary) Print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(name, format string, a ...any) { fmt.Fprintf(w, "%s\t%s\n", name, fmt.Sprintf(format, a...)) }
	row("steps", "%d in %.1f s on %d ranks (%s), %s tokens/s", s.Steps, s.Seconds, s.Ranks, s.Layout, si(s.Rate))
	row("loss", "%.4f to %.4f nats per byte", s.LossStart, s.LossEnd)
	if s.Hidden != nil {
		row("overlap", "%.0f%% of %.1f ms of collectives per step hidden behind compute%s", 100**s.Hidden, *s.Comm, s.gain())
	}
	if s.Bubble != nil {
		row("pipeline", "%.0f%% of the passes spent waiting for other stages; (p-1)/(m+p-1) is %.0f%%", 100**s.Bubble, 100**s.BubbleModel)
	}
	if s.MemoryModel > 0 {
		row("memory", "%s per rank for parameters, gradients and moments; the formula gives %s", unit.Bytes(s.Memory), unit.Bytes(s.MemoryModel))
	}
	row("computing", "%.0f%% of a step; the rest is communication, waiting for other ranks and for cores", 100*s.Busy)
	if s.SaveHeld != nil {
		slows := ""
		if s.SaveSlows != nil {
			slows = fmt.Sprintf("; steps during one take %.2f times as long as the others", *s.SaveSlows)
		}
		row("checkpoints", "%d, each delaying a step by %.2f ms%s", s.Checkpoints, *s.SaveHeld, slows)
	}
	if s.Unsaved > 0 {
		row("not saved", "the last %d steps", s.Unsaved)
	}
	row("epochs", "%d", s.Epochs)
	s.printFailures(row)
	if s.Deviation != nil {
		verdict := "passed"
		if s.Same != nil && !*s.Same {
			verdict = "failed"
		}
		row("check", "%s: the losses of %d steps differ by at most %.2g (relative) from those of an undisturbed run",
			verdict, s.Checked, *s.Deviation)
	}
	return w.Flush()
}

// printFailures says what befell the ranks, if anything did.
func (s Summary) printFailures(row func(name, format string, a ...any)) {
	if s.Failures == 0 && s.Kills == 0 {
		return
	}
	row("failures", "%d of working ranks, %d kills by the drill, %d of the coordinator", s.Failures, s.Kills, s.Coordinators)
	if s.Detect != nil {
		row("detected", "%.1f ms until all survivors knew (median), %.1f ms at most", *s.Detect, *s.DetectMax)
		row("resumed", "%.1f ms until all survivors trained again (median), %.1f ms at most", *s.Resume, *s.ResumeMax)
	}
	row("steps lost", "%d, not counting those in flight", s.Lost)
}

// figures are the measures as the page shows them.
func (l *ledger) figures() []web.Measure {
	m := l.measures
	var list []web.Measure
	add := func(name, value, note string, a ...any) {
		list = append(list, web.Measure{Name: name, Value: value, Note: fmt.Sprintf(note, a...)})
	}
	if m.Apart > 0 {
		note := "without overlap %.1f ms; noise ±%.1f ms"
		if (m.Apart - m.Together).Abs() < m.Noise {
			note = "without overlap %.1f ms: no measurable difference, noise ±%.1f ms"
		}
		add("passes with overlap", ms1(m.Together), note, milli(m.Apart), milli(m.Noise))
	}
	if m.Formula > 0 {
		add("pipeline bubble", fmt.Sprintf("%.0f%%", 100*m.Bubble), "(p-1)/(m+p-1) is %.0f%%", 100*m.Formula)
	}
	add("state per rank", unit.Bytes(m.Held).String(), "parameters, gradients, moments; the formula gives %s; %s with buffers and activations",
		unit.Bytes(m.Expected), unit.Bytes(m.Total))
	if value, note := host(); value != "" {
		add("this host", value, "%s", note)
	}
	add("computing", fmt.Sprintf("%.0f%%", 100*m.Busy), "of a step of rank 0; forward %.1f ms, backward %.1f ms",
		milli(m.Forward), milli(m.Backward))
	return list
}

func ms1(d time.Duration) string { return fmt.Sprintf("%.1f ms", milli(d)) }

// host is how busy this machine is; "" where /proc does not say.
func host() (value, note string) {
	load, err := os.ReadFile("/proc/loadavg")
	text, err2 := os.ReadFile("/proc/meminfo")
	if err != nil || err2 != nil || len(strings.Fields(string(load))) == 0 {
		return "", ""
	}
	kib := map[string]int{}
	for line := range strings.Lines(string(text)) {
		var name string
		var n int
		if _, err := fmt.Sscanf(line, "%s %d kB", &name, &n); err == nil {
			kib[strings.TrimSuffix(name, ":")] = n
		}
	}
	return "load " + strings.Fields(string(load))[0], fmt.Sprintf("on %d cores; %s of %s of memory in use", runtime.NumCPU(),
		unit.Bytes(kib["MemTotal"]-kib["MemAvailable"])*1024, unit.Bytes(kib["MemTotal"])*1024)
}

// si prints a number with at most three figures and k or M behind it.
func si(v float64) string {
	switch {
	case v >= 999.5e3:
		return fmt.Sprintf("%.3g M", v/1e6)
	case v >= 999.5:
		return fmt.Sprintf("%.3g k", v/1e3)
	}
	return fmt.Sprintf("%.3g", v)
}

// report prints a line of progress every other second.
func (l *ledger) report(ctx context.Context) {
	if l.r.o.Log == nil {
		return
	}
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		l.mu.Lock()
		line := ""
		if n := len(l.recent); n > 1 {
			tokens := 0
			for _, p := range l.recent[1:] {
				tokens += p.tokens
			}
			d := l.recent[n-1].at.Sub(l.recent[0].at).Seconds()
			line = fmt.Sprintf("%8.3f s  step %d  loss %.4f  %s tokens/s  epoch %d  %d of %d ranks at work",
				time.Since(l.r.started).Seconds(), l.recent[n-1].step, l.losses[l.recent[n-1].step], si(float64(tokens)/d), l.epoch.Number,
				len(l.epoch.Members), l.r.o.Ranks)
		}
		l.mu.Unlock()
		if line != "" {
			_, _ = fmt.Fprintln(l.r.o.Log, line)
		}
	}
}
