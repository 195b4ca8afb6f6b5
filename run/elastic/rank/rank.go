// Package rank is the program of one rank of an elastic training run: a trainer
// (package train) on the communicator of each epoch, with checkpoints, telling the
// launcher what it does.
//
// Where the state comes from when an epoch forms, in this order: from ranks that
// have it; where a shard of it has died with its rank, from the latest checkpoint;
// where there is none, from the seed.
package rank

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/ckpt"
	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/elastic"
	"github.com/weft-fabric/weft/run/fault"
	"github.com/weft-fabric/weft/run/train"
	"github.com/weft-fabric/weft/run/train/checkpoint"
	"github.com/weft-fabric/weft/run/train/pipe"
	"github.com/weft-fabric/weft/view/report"
)

// Env is where a rank finds its Config, in JSON.
const Env = "WEFT_TRAIN"

// Config is what all ranks of a run have in common.
type Config struct {
	Run      string       `json:"run"` // its name in checkpoints
	Train    train.Config `json:"train"`
	Steps    int          `json:"steps"`    // after which the run is done; 0: never
	Contrast int          `json:"contrast"` // every Contrast steps one does not overlap, for comparison; 0: none
	Ckpt     string       `json:"ckpt"`     // where checkpoints go; empty: nowhere
	Every    int          `json:"every"`    // steps between two of them
	Last     bool         `json:"last"`     // save one where the run ends, too
	Keep     int          `json:"keep"`     // of the latest; 0 keeps all
	Orders   string       `json:"orders"`   // folder with orders of drills, by slot; empty: none
}

// The names of a rank's reports and what they hold.
const (
	Work     = "work"       // Formed, when an epoch has formed
	Stepped  = "step"       // report.Step
	Traffic  = "traffic"    // []report.Collective
	Saved    = "checkpoint" // Checkpoint
	Measured = "measures"   // Measures
)

// Formed is where a rank stands in an epoch.
type Formed struct {
	Epoch     uint64       `json:"epoch"`
	Rank      int          `json:"rank"`
	Ranks     int          `json:"ranks"`
	Step      int          `json:"step"` // taken so far
	Layout    train.Layout `json:"layout"`
	Replica   int          `json:"replica"`
	Stage     int          `json:"stage"`
	Tensor    int          `json:"tensor"` // -1 of a spare rank, as replica and stage
	Params    int          `json:"params"`
	Transport string       `json:"transport"`
	From      string       `json:"from"`            // peers, checkpoint or seed
	Cause     string       `json:"cause,omitempty"` // why not from peers, where some had state
}

// Part is a rank's part of a checkpoint.
type Part struct {
	Step      int           `json:"step"`
	Epoch     uint64        `json:"epoch"`
	Bytes     int64         `json:"bytes"` // of this rank
	Held      time.Duration `json:"held_ns"`
	Took      time.Duration `json:"took_ns"`
	Done      bool          `json:"done"`
	Of        int           `json:"of"` // ranks that write one
	Emergency bool          `json:"emergency"`
	Final     bool          `json:"final"` // where the run ended
	Err       string        `json:"error,omitempty"`
}

// Measures are medians of the last steps of one rank.
type Measures struct {
	Steps    int           `json:"steps"` // with overlap, and as many or fewer without
	Forward  time.Duration `json:"forward_ns"`
	Backward time.Duration `json:"backward_ns"`
	Comm     time.Duration `json:"comm_ns"`     // collectives among replicas in steps that overlap
	Exposed  time.Duration `json:"exposed_ns"`  // of these, how long the rank stood still for them
	Apart    time.Duration `json:"apart_ns"`    // passes without overlap
	Together time.Duration `json:"together_ns"` // with it
	Noise    time.Duration `json:"noise_ns"`    // a difference of the two below this says nothing
	Commit   time.Duration `json:"commit_ns"`   // agreeing on the step: waits for the slowest
	Update   time.Duration `json:"update_ns"`
	Step     time.Duration `json:"step_ns"` // from the begin of one to the begin of the next
	Hidden   float64       `json:"hidden"`  // share of Comm during which the rank computed: 1 - Exposed / Comm
	Bubble   float64       `json:"bubble"`  // share of passes spent waiting for other stages
	Formula  float64       `json:"bubble_formula"`
	Busy     float64       `json:"busy"` // share of the step's time spent computing
	Held     int           `json:"held_bytes"`
	Expected int           `json:"held_formula_bytes"`
	Total    int           `json:"total_bytes"`
	Layout   string        `json:"layout"`
}

// Main is the whole life of a rank's process: its Config comes from the environment.
func Main(ctx context.Context) error {
	var cfg Config
	if err := json.Unmarshal([]byte(os.Getenv(Env)), &cfg); err != nil {
		return fmt.Errorf("%s=%q: %w; ranks are started by `weft up`", Env, os.Getenv(Env), err)
	}
	link, err := elastic.Connect()
	if err != nil {
		return err
	}
	err = Run(ctx, link, cfg)
	link.Close(err)
	return err
}

// Run trains until the run is over.
func Run(ctx context.Context, link *elastic.Link, cfg Config) (err error) {
	slot, _ := strconv.Atoi(os.Getenv("WEFT_SLOT")) // the launcher sets it
	j := &job{cfg: cfg, link: link, orders: fault.Take(cfg.Orders, slot), t: train.Blank(cfg.Train), seen: map[*comm.Comm]uint64{},
		traffic: map[report.Collective]*report.Collective{}}
	if cfg.Ckpt != "" {
		if j.store, err = ckpt.Open(ctx, cfg.Ckpt, ckpt.Options{Keep: cfg.Keep, Min: j.min}); err != nil {
			return &elastic.Fatal{Err: err}
		}
	}
	if err = elastic.Run(ctx, link, j); err == nil {
		j.last()
	}
	j.writes.Wait()
	if j.store != nil {
		if e := j.store.Close(); e != nil && !errors.Is(e, ckpt.ErrEarlier) && err == nil {
			err = e
		}
	}
	_ = j.t.Close() // what is left of its communicators goes with the process
	return err
}

// job is the elastic.Job of a trainer.
type job struct {
	cfg    Config
	link   *elastic.Link
	t      *train.Trainer
	c      *comm.Comm
	e      elastic.Epoch
	store  *ckpt.Store
	writes sync.WaitGroup

	writing atomic.Int32 // checkpoints
	saved   int          // step of the last one that was begun, or that the state came from
	final   bool         // the run has ended

	orders *fault.Orders

	with, without window
	seen          map[*comm.Comm]uint64
	traffic       map[report.Collective]*report.Collective
	told          time.Time
	began         time.Time // the last step
}

// min is what the store asks all ranks in Resume.
func (j *job) min(ctx context.Context, v int64) (int64, error) {
	return checkpoint.Min(j.c)(ctx, v)
}

// Form brings the trainer to an epoch.
func (j *job) Form(ctx context.Context, c *comm.Comm, e elastic.Epoch) error {
	j.c, j.e = c, e
	from, cause := "peers", ""
	j.t.Overlap(j.cfg.Train.Overlap) // ranks compare their configurations
	err := j.t.Rebuild(ctx, c)
	var lost *train.LostError
	if errors.As(err, &lost) {
		cause = lost.Error()
	}
	if lost != nil || errors.Is(err, train.ErrStateless) {
		from, err = j.begin(ctx, c)
	}
	if err != nil {
		return err
	}
	if from != "peers" {
		j.saved = j.t.Taken()
	}
	f := Formed{Epoch: e.Number, Step: j.t.Taken(), Layout: j.t.Config().Layout, Transport: c.Transport(), From: from, Cause: cause}
	f.Rank, f.Ranks = j.t.Rank()
	f.Params, _ = j.t.Params()
	f.Replica, f.Stage, f.Tensor = j.t.Place()
	clear(j.seen)
	j.with, j.without = window{}, window{}
	return j.link.Report(Work, f)
}

// begin starts from a checkpoint, or from the seed where there is none.
func (j *job) begin(ctx context.Context, c *comm.Comm) (from string, err error) {
	if err := j.t.Begin(ctx, c); err != nil {
		return "", err
	}
	if j.store == nil {
		return "seed", nil
	}
	_ = j.store.Wait(ctx) // of what this rank was writing; its errors have been told
	m, damaged, err := checkpoint.Resume(ctx, j.t, j.store)
	for _, d := range damaged {
		_ = j.link.Report(Saved, Part{Step: int(d.Step), Epoch: j.e.Number, Err: d.Error()})
	}
	if errors.Is(err, ckpt.ErrNone) && len(damaged) == 0 {
		return "seed", nil
	}
	if errors.Is(err, ckpt.ErrNone) { // beginning anew would overwrite what may still be mended
		return "", fmt.Errorf("%w: mend them, or move them away to begin from the seed", err)
	}
	if errors.Is(err, ckpt.ErrElsewhere) {
		err = errors.Join(elastic.ErrElsewhere, err)
	}
	if err != nil {
		return "", fmt.Errorf("the checkpoints in %s: %w", j.cfg.Ckpt, err)
	}
	return fmt.Sprintf("checkpoint of step %d", m.Step), nil
}

// Step takes one step.
func (j *job) Step(ctx context.Context) (last bool, err error) {
	if j.cfg.Steps > 0 && j.t.Taken() >= j.cfg.Steps { // a checkpoint has them all
		return true, nil
	}
	if err := j.obey(ctx); err != nil {
		return false, err
	}
	overlap := j.cfg.Train.Overlap && (j.cfg.Contrast == 0 || (j.t.Taken()+1)%j.cfg.Contrast != 0)
	j.t.Overlap(overlap)
	began, writing := time.Now(), j.writing.Load() > 0
	s, err := j.t.Step(ctx)
	if err != nil {
		return false, err
	}
	out := report.Step{Epoch: j.e.Number, Rank: j.c.Rank(), Step: s.Step, Loss: s.Loss, Tokens: s.Tokens, Began: began,
		Arrived: began.Add(s.Passes),
		Overlap: overlap, Writing: writing || j.writing.Load() > 0, Forward: s.Forward, Backward: s.Backward, Tensor: s.Tensor, Comm: s.Comm,
		Exposed: s.Exposed, Bubble: s.Bubble, Update: s.Update, Norm: s.Norm, Rate: s.Rate}
	if j.store != nil && j.cfg.Every > 0 && s.Step%j.cfg.Every == 0 {
		out.Save, _ = j.save()
	}
	out.Ended = time.Now()
	into := &j.with
	if !overlap {
		into = &j.without
	}
	into.add(s, began.Sub(j.began))
	j.began = began
	last = j.cfg.Steps > 0 && s.Step >= j.cfg.Steps
	if last || out.Ended.Sub(j.told) > 250*time.Millisecond {
		j.told = out.Ended
		out.Memory = resident()
		j.count()
		if err := j.link.Report(Measured, j.measures()); err != nil {
			return false, err
		}
	}
	if err := j.link.Report(Stepped, out); err != nil {
		return false, err
	}
	j.link.Progress(s.Step, s.Wall)
	return last, nil
}

// obey does what a drill has ordered: come late, or not at all until the order is taken
// back.
func (j *job) obey(ctx context.Context) error {
	for {
		o := j.orders.Now()
		wait := o.Time
		if o.What == "hang" {
			wait = 20 * time.Millisecond
		}
		if wait > 0 {
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if o.What != "hang" {
			return nil
		}
	}
}

// last saves where the run ends, if nothing has yet: all ranks have stopped after the
// same step.
func (j *job) last() {
	if j.store == nil || !j.cfg.Last || !j.link.Final() || j.saved == j.t.Taken() {
		return
	}
	j.final = true
	_, done := j.save()
	<-done
}

// save starts a checkpoint and says how long the step was held up; done is closed when
// this rank's part is written. An error is told, and training goes on: the checkpoints
// before it are as they were.
func (j *job) save() (held time.Duration, done <-chan struct{}) {
	over := make(chan struct{})
	j.saved = j.t.Taken()
	if j.t.Spare() {
		close(over)
		return 0, over
	}
	began := time.Now()
	m, tensors, err := checkpoint.Of(j.t, j.cfg.Run, int64(j.e.Number))
	if err == nil {
		err = j.store.Async(context.Background(), m, tensors)
	}
	r := Part{Step: int(m.Step), Epoch: j.e.Number, Of: m.World, Held: time.Since(began), Final: j.final}
	for _, t := range tensors {
		r.Bytes += int64(len(t.Data))
	}
	if err != nil {
		r.Err = err.Error()
	}
	_ = j.link.Report(Saved, r)
	j.writes.Add(1)
	j.writing.Add(1)
	go func() {
		defer j.writes.Done()
		defer j.writing.Add(-1)
		defer close(over)
		r.Err = ""
		if err := j.store.Wait(context.Background()); err != nil {
			r.Err = err.Error()
		}
		r.Took, r.Done = time.Since(began), true
		_ = j.link.Report(Saved, r)
	}()
	return r.Held, over
}

// Halt saves what is left: the ranks of the last epoch hold the state between
// them, or an earlier checkpoint does.
func (j *job) Halt(ctx context.Context, c *comm.Comm, e elastic.Epoch) error {
	if j.store == nil {
		return nil
	}
	j.c, j.e = c, e
	j.t.Overlap(j.cfg.Train.Overlap)
	err := j.t.Rebuild(ctx, c)
	var lost *train.LostError
	if errors.Is(err, train.ErrStateless) || errors.As(err, &lost) {
		return nil
	}
	if err != nil {
		return err
	}
	if j.t.Spare() {
		return nil
	}
	began := time.Now()
	m, tensors, err := checkpoint.Of(j.t, j.cfg.Run, int64(e.Number))
	if err != nil {
		return err
	}
	j.saved = int(m.Step)
	err = j.store.Emergency(ctx, m, tensors)
	r := Part{Step: int(m.Step), Epoch: e.Number, Of: m.World, Took: time.Since(began), Done: true, Emergency: true}
	for _, t := range tensors {
		r.Bytes += int64(len(t.Data))
	}
	if err != nil {
		r.Err = err.Error()
	}
	_ = j.link.Report(Saved, r)
	return err
}

// count adds up what the flight recorders have seen since they were last asked.
func (j *job) count() {
	for _, c := range j.t.Comms() {
		for _, r := range c.Flight().Records() {
			if r.Seq <= j.seen[c] || r.Err != "" {
				continue
			}
			j.seen[c] = r.Seq
			ranks := c.Size()
			key := report.Collective{Op: r.Op, Ranks: ranks, Bytes: int64(r.Bytes)}
			sum := j.traffic[key]
			if sum == nil {
				sum = &report.Collective{Op: r.Op, Ranks: ranks, Bytes: int64(r.Bytes), BusFactor: 1}
				if op, err := sched.ParseCollective(r.Op); err == nil {
					sum.BusFactor = op.BusFactor(ranks)
				}
				j.traffic[key] = sum
			}
			sum.Count++
			sum.Time += time.Duration(r.Ended - r.Began)
		}
	}
	list := []report.Collective{}
	for _, s := range j.traffic {
		list = append(list, *s)
	}
	slices.SortFunc(list, func(a, b report.Collective) int {
		return cmp.Or(cmp.Compare(a.Op, b.Op), cmp.Compare(a.Bytes, b.Bytes), cmp.Compare(a.Ranks, b.Ranks))
	})
	_ = j.link.Report(Traffic, list)
}

// measures are those of the last steps.
func (j *job) measures() Measures {
	l := j.t.Config().Layout
	mem := j.t.Memory()
	m := Measures{Steps: len(j.with.passes), Forward: j.with.mid(j.with.forward), Backward: j.with.mid(j.with.backward),
		Commit: j.with.mid(j.with.commit), Update: j.with.mid(j.with.update), Step: j.with.mid(j.with.step),
		Together: j.with.mid(j.with.passes), Bubble: j.with.bubble(), Busy: j.with.busy(),
		Held: mem.Held(), Expected: mem.Formula, Total: mem.Total(), Layout: l.String()}
	if l.PP > 1 {
		m.Formula = pipe.Bubble(l.PP, j.with.micros)
	}
	if m.Comm, m.Exposed = j.with.mean(j.with.comm), j.with.mean(j.with.exposed); m.Comm > 0 {
		m.Hidden = 1 - min(1, float64(m.Exposed)/float64(m.Comm))
	}
	if len(j.without.passes) > 0 {
		m.Apart = j.without.mid(j.without.passes)
		m.Noise = time.Duration(2 * math.Hypot(j.with.doubt(j.with.passes), j.without.doubt(j.without.passes)))
	}
	return m
}

// window keeps the last steps of a kind.
type window struct {
	forward, backward, comm, exposed, passes, idle, all, compute, wall, commit, update, step []time.Duration
	micros                                                                                   int
}

const windowSize = 128

func (w *window) add(s train.Stats, whole time.Duration) {
	w.micros = s.Micros
	for list, v := range map[*[]time.Duration]time.Duration{&w.forward: s.Forward, &w.backward: s.Backward, &w.comm: s.Comm,
		&w.exposed: s.Exposed, &w.passes: s.Passes,
		&w.idle: s.Bubble, &w.all: s.Forward + s.Backward + s.Tensor + s.Bubble, &w.compute: s.Forward + s.Backward + s.Update, &w.wall: s.Wall,
		&w.commit: s.Commit, &w.update: s.Update, &w.step: whole} {
		if *list = append(*list, v); len(*list) > windowSize {
			*list = slices.Delete(*list, 0, 1)
		}
	}
}

func (w *window) mid(list []time.Duration) time.Duration {
	if len(list) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(list))
	return sorted[len(sorted)/2]
}

func (w *window) mean(list []time.Duration) time.Duration {
	if len(list) == 0 {
		return 0
	}
	var sum time.Duration
	for _, v := range list {
		sum += v
	}
	return sum / time.Duration(len(list))
}

// doubt is the standard error of a median, from the median distance to it.
func (w *window) doubt(list []time.Duration) float64 {
	mid := w.mid(list)
	var off []time.Duration
	for _, v := range list {
		off = append(off, (v - mid).Abs())
	}
	return 1.25 * 1.48 * float64(w.mid(off)) / math.Sqrt(float64(max(1, len(list))))
}

func share(part, whole []time.Duration) float64 {
	var p, w time.Duration
	for i := range part {
		p, w = p+part[i], w+whole[i]
	}
	if w == 0 {
		return 0
	}
	return float64(p) / float64(w)
}

func (w *window) bubble() float64 { return share(w.idle, w.all) }
func (w *window) busy() float64   { return share(w.compute, w.wall) }
