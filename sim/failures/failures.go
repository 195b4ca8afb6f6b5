// Package failures says what breaks, how often, and how much of a cluster's time is left for training.
//
// Parts fail by hazards of their own: Weibull gaps, more of them on some hosts than on others (lemons), a
// repair time for each kind. A failure takes what hangs on its part, is noticed after a while, and the job goes
// back to its last checkpoint.
//
//	parts ─► failures ─► detect ─► localise ─► restart ─► work lost since the checkpoint
//	   └─ repair, spares                           └─ goodput, ETTR, days to finish
//
// A run draws one year or one job from a seed; Run draws many and gives means with confidence intervals. Closed
// forms stand beside it: Young, Daly, and the exact optimum by Lambert's W.
package failures

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// Hazard is how one kind of part fails.
type Hazard struct {
	Name   string
	Count  int     // parts of this kind
	Yearly float64 // failures of one part a year
	Shape  float64 // of the Weibull gaps: 1 memoryless, below 1 in bursts; 0 means 1
	Hosts  int     // hosts that one failure takes, its blast radius; 0 if the same hosts go on
	Repair float64 // median hours until a part is back
	Sigma  float64 // spread of the repair's logarithm
	Silent float64 // share that nothing reports: the job hangs until its time limit
}

// Tier is one place of checkpoints.
type Tier struct {
	Name      string
	Stall     float64 // seconds that training stands still for a save
	Load      float64 // seconds to read it back
	Survives  float64 // share of failures that leave it whole; the last tier survives all
	Every     float64 // seconds of work between saves; 0 for the best interval
	Drain     float64 // seconds until a save that goes on behind training counts
	intervals float64
}

// Job is what runs.
type Job struct {
	Hosts    int
	GPUs     int // of all hosts
	Hazards  []Hazard
	Detect   float64 // seconds until a reported failure is known
	Timeout  float64 // seconds until a silent one is
	Localise float64 // seconds to find the part to blame
	Requeue  float64 // seconds to start again with other hosts
	InPlace  float64 // seconds to start again on the same hosts
	Kept     float64 // share of failures after which the same hosts go on
	Spares   int     // hosts that stand by
	Tiers    []Tier  // the quickest first
	Days     float64 // of a run
	Work     float64 // days of training to do; 0 for as much as the run allows
}

// Rate is the failures of the whole job a second.
func (j Job) Rate() float64 {
	r := 0.0
	for _, h := range j.Hazards {
		r += float64(h.Count) * h.Yearly
	}
	return r / (365 * 86400)
}

// MTTF is the mean time between failures of the job, in seconds.
func (j Job) MTTF() float64 { return 1 / j.Rate() }

// Young is the best work between checkpoints by Young's formula, all in seconds.
func Young(stall, mttf float64) float64 { return math.Sqrt(2 * stall * mttf) }

// Daly is Daly's higher-order estimate.
func Daly(stall, mttf float64) float64 {
	if stall >= 2*mttf {
		return mttf
	}
	x := stall / (2 * mttf)
	return math.Sqrt(2*stall*mttf)*(1+math.Sqrt(x)/3+x/9) - stall
}

// Exact is the optimum for memoryless failures: M (1 + W0(-exp(-1 - stall/M))).
func Exact(stall, mttf float64) float64 {
	return mttf * (1 + lambertW(-math.Exp(-1-stall/mttf)))
}

// lambertW is the principal branch of w e^w = x, for x from -1/e on, by Halley's steps.
func lambertW(x float64) float64 {
	// Near the branch point a series in sqrt(2(ex+1)) is a good start.
	p := math.Sqrt(max(2*(math.E*x+1), 0))
	w := -1 + p - p*p/3
	if x > 0 {
		w = math.Log1p(x)
	}
	for range 50 {
		e := math.Exp(w)
		f := w*e - x
		d := e*(w+1) - (w+2)*f/(2*w+2)
		if d == 0 || math.IsNaN(d) {
			break
		}
		next := w - f/d
		if math.Abs(next-w) < 1e-14 {
			return next
		}
		w = next
	}
	return w
}

// Wall is the expected time of an amount of work with memoryless failures, all in seconds: work, work between
// checkpoints, stall, restart, mean time between failures.
func Wall(work, every, stall, restart, mttf float64) float64 {
	return work / every * mttf * math.Exp(restart/mttf) * math.Expm1((every+stall)/mttf)
}

// Ratio is Meta's estimate of the effective training time ratio: (1 - rate (restart + every/2)) / (1 + stall/every).
func Ratio(every, stall, restart, mttf float64) float64 {
	return max((1-(restart+every/2)/mttf)/(1+stall/every), 0)
}

// Standby is how many hosts must stand by so that with probability 99% enough do: the percentile of a binomial
// with the number of hosts, each away with probability p.
func Standby(hosts int, p float64) int {
	term := math.Pow(1-p, float64(hosts))
	sum := term
	for k := 0; k < hosts; k++ {
		if sum >= .99 {
			return k
		}
		term *= float64(hosts-k) / float64(k+1) * p / (1 - p)
		sum += term
	}
	return hosts
}

// Cause is what a kind of failure cost.
type Cause struct {
	Name     string  `json:"name"`
	Failures float64 `json:"failures"`  // a run
	GPUHours float64 `json:"gpu_hours"` // lost, a run
}

// Result is the mean over runs. Its JSON keys are stable.
type Result struct {
	Goodput    float64            `json:"goodput"` // training that counts over all time
	GoodputLow float64            `json:"goodput_low"`
	GoodputUp  float64            `json:"goodput_high"` // 95% confidence interval of the mean
	ETTR       float64            `json:"ettr"`         // the same, time in the queue for spares left out
	MTTF       float64            `json:"mttf_s"`
	Measured   float64            `json:"mttf_simulated_s"`
	Interval   float64            `json:"interval_s"` // work between checkpoints of the last tier
	Intervals  map[string]float64 `json:"intervals_s"`
	Failures   float64            `json:"failures"` // a run
	Lost       float64            `json:"lost_gpu_hours"`
	Causes     []Cause            `json:"lost_by_cause"`
	Parts      map[string]float64 `json:"lost_share"` // of all time: checkpoints, repeated work, detection, restart, waiting for hosts
	Days       map[string]float64 `json:"days_to_finish,omitempty"`
	Spares     int                `json:"spares"`
	Away       float64            `json:"hosts_away_mean"`
	AwayP99    float64            `json:"hosts_away_p99"`
	Runs       int                `json:"runs"`
	Seed       uint64             `json:"seed"`
}

// event is the next failure of a kind, or a host's return.
type event struct {
	at   float64
	seq  int
	kind int // of hazard; -1 for a host that is repaired
}

type events []event

func (h events) Len() int { return len(h) }
func (h events) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h events) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *events) Push(x any)   { *h = append(*h, x.(event)) }
func (h *events) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// one is what a single run gave.
type one struct {
	good, wait, total             float64
	stall, again, detect, restart float64
	failures                      []float64
	lost                          []float64
	away, finish                  float64
	awayTimes                     []float64
}

// Check reports what makes a job impossible.
func (j Job) Check() error {
	switch {
	case j.Hosts < 1:
		return fmt.Errorf("a job needs hosts; there are %d", j.Hosts)
	case j.Days <= 0:
		return fmt.Errorf("a run of %g days", j.Days)
	case len(j.Tiers) == 0:
		return fmt.Errorf("a job needs a place for checkpoints")
	case !(j.Rate() > 0):
		return fmt.Errorf("nothing ever fails: give hazards with a rate")
	}
	for _, h := range j.Hazards {
		if h.Count < 0 || h.Yearly < 0 || h.Shape < 0 || h.Repair < 0 || h.Sigma < 0 {
			return fmt.Errorf("hazard %s: counts, rates and times must not be negative", h.Name)
		}
	}
	for _, t := range j.Tiers {
		if t.Stall < 0 || t.Load < 0 || t.Survives < 0 || t.Survives > 1 || t.Every < 0 {
			return fmt.Errorf("tier %s: times must not be negative, and it survives a share of 0 to 1", t.Name)
		}
	}
	return nil
}

// every gives each tier its interval: as asked, or the best for the failures that fall to it.
func (j *Job) every() {
	mttf := j.MTTF()
	left := 1.0
	for i := range j.Tiers {
		t := &j.Tiers[i]
		share := left
		if i < len(j.Tiers)-1 {
			share = left * t.Survives
			left *= 1 - t.Survives
		}
		t.intervals = t.Every
		if t.intervals == 0 {
			t.intervals = math.Sqrt(2 * max(t.Stall, .1) * mttf / max(share, 1e-3))
			if len(j.Tiers) == 1 {
				t.intervals = Exact(max(t.Stall, .1), mttf)
			}
		}
		t.intervals = max(t.intervals, t.Drain)
	}
}

// run draws one run.
func (j Job) run(r *rand.Rand) one {
	end := j.Days * 86400
	o := one{failures: make([]float64, len(j.Hazards)), lost: make([]float64, len(j.Hazards))}
	q := &events{}
	seq := 0
	push := func(at float64, kind int) {
		seq++
		heap.Push(q, event{at, seq, kind})
	}
	// All parts of a kind together are one renewal process. Its gaps are Weibull with the mean that the
	// counts give; a shape below 1 makes bursts.
	gap := func(k int) float64 {
		h := j.Hazards[k]
		mean := 365 * 86400 / (float64(h.Count) * h.Yearly)
		shape := h.Shape
		if shape == 0 {
			shape = 1
		}
		return mean / math.Gamma(1+1/shape) * math.Pow(r.ExpFloat64(), 1/shape)
	}
	for k, h := range j.Hazards {
		if h.Count > 0 && h.Yearly > 0 {
			at := gap(k)
			if h.Shape > 0 && h.Shape < 1 { // begin in the middle of the process, not at a failure
				at *= r.Float64() * 2
			}
			push(at, k)
		}
	}
	// Work that counts grows by speed between events: saves take their share of it.
	overhead := 1.0
	for _, t := range j.Tiers {
		overhead += t.Stall / t.intervals
	}
	now, away, awaySince := 0.0, 0, 0.0
	need := j.Hosts
	have := j.Hosts + j.Spares
	note := func(at float64) {
		o.away += float64(away) * (at - awaySince)
		awaySince = at
	}
	work := 0.0 // done and kept
	goal := j.Work * 86400
	begin := 0.0 // when the job last began to work
	up := true
	for {
		if q.Len() == 0 {
			break
		}
		e := heap.Pop(q).(event)
		if goal > 0 && up && work+(e.at-begin)/overhead >= goal && e.at > begin {
			now = begin + (goal-work)*overhead
			work = goal
			break
		}
		if e.at >= end && goal == 0 || e.at > 40*end {
			break
		}
		if e.kind < 0 {
			note(e.at)
			away--
			if !up && have-away >= need {
				up = true
				o.wait += e.at - now
				begin = max(e.at, begin)
			}
			continue
		}
		push(e.at+gap(e.kind), e.kind)
		if !up || e.at < begin { // nothing runs, or it is starting: the part is repaired all the same
			continue
		}
		h := j.Hazards[e.kind]
		o.failures[e.kind]++
		ran := e.at - begin
		done := ran / overhead
		o.stall += ran - done
		// Which checkpoint is left decides what is repeated.
		tier := len(j.Tiers) - 1
		for i := range j.Tiers[:tier] {
			if r.Float64() < j.Tiers[i].Survives {
				tier = i
				break
			}
		}
		t := j.Tiers[tier]
		lost := math.Mod(work+done, t.intervals)
		if t.Drain > 0 && lost < t.Drain {
			lost += t.intervals
		}
		lost = min(lost, work+done)
		work += done - lost
		o.again += lost
		detect := j.Detect
		if r.Float64() < h.Silent {
			detect = j.Timeout
		}
		restart := j.Requeue
		if h.Hosts == 0 || r.Float64() < j.Kept {
			restart = j.InPlace
		} else {
			note(e.at)
			for range h.Hosts {
				away++
				push(e.at+j.repair(h, r), -1)
			}
			detect += j.Localise
		}
		o.detect += detect
		o.restart += restart + t.Load
		o.lost[e.kind] += lost*overhead + detect + restart + t.Load
		begin = e.at + detect + restart + t.Load
		o.awayTimes = append(o.awayTimes, float64(away))
		if have-away < need {
			up = false
			now = begin
		}
	}
	if goal > 0 {
		o.finish, o.total = now, now
	} else {
		now = end
		o.total = end
		if up && begin < end {
			done := (end - begin) / overhead
			o.stall += end - begin - done
			work += done
		} else if !up {
			o.wait += end - min(begin, end)
		}
	}
	note(o.total)
	o.good = work
	return o
}

// repair draws the seconds until a host is back.
func (j Job) repair(h Hazard, r *rand.Rand) float64 {
	return h.Repair * 3600 * math.Exp(h.Sigma*r.NormFloat64())
}

// Run draws a number of runs from a seed.
func Run(j Job, runs int, seed uint64) (*Result, error) {
	if err := j.Check(); err != nil {
		return nil, err
	}
	j.every()
	res := &Result{MTTF: j.MTTF(), Runs: runs, Seed: seed, Spares: j.Spares, Parts: map[string]float64{}, Intervals: map[string]float64{}}
	last := j.Tiers[len(j.Tiers)-1]
	res.Interval = last.intervals
	stall := max(last.Stall, .1)
	res.Intervals["young"], res.Intervals["daly"], res.Intervals["exact"] = Young(stall, res.MTTF), Daly(stall, res.MTTF), Exact(stall, res.MTTF)
	for _, t := range j.Tiers {
		res.Intervals["tier "+t.Name] = t.intervals
	}
	var good, finish, away []float64
	var total, failures, waiting float64
	causes := make([]Cause, len(j.Hazards))
	sums := map[string]float64{}
	for i := range runs {
		o := j.run(rand.New(rand.NewPCG(seed, uint64(i))))
		good = append(good, o.good/o.total)
		total += o.total
		waiting += o.wait
		for k := range causes {
			causes[k].Failures += o.failures[k] / float64(runs)
			causes[k].GPUHours += o.lost[k] / 3600 * float64(j.GPUs) / float64(runs)
			failures += o.failures[k]
		}
		sums["checkpoints"] += o.stall
		sums["repeated work"] += o.again
		sums["detection"] += o.detect
		sums["restart"] += o.restart
		sums["waiting for hosts"] += o.wait
		res.Away += o.away / o.total / float64(runs)
		away = append(away, o.awayTimes...)
		if j.Work > 0 {
			finish = append(finish, o.finish/86400)
		}
	}
	for k, v := range sums {
		res.Parts[k] = v / total
	}
	mean, spread := 0.0, 0.0
	for _, g := range good {
		mean += g / float64(len(good))
	}
	for _, g := range good {
		spread += (g - mean) * (g - mean)
	}
	half := 0.0
	if runs > 1 {
		half = 1.96 * math.Sqrt(spread/float64(runs-1)/float64(runs))
	}
	res.Goodput, res.GoodputLow, res.GoodputUp = mean, mean-half, mean+half
	res.ETTR = mean
	if busy := 1 - waiting/total; busy > 0 {
		res.ETTR = mean / busy
	}
	res.Failures = failures / float64(runs)
	if failures > 0 {
		res.Measured = (total - waiting) / failures // a job that waits for hosts does not fail
	}
	for k := range causes {
		causes[k].Name = j.Hazards[k].Name
		res.Lost += causes[k].GPUHours
	}
	slices.SortStableFunc(causes, func(a, b Cause) int {
		switch {
		case a.GPUHours > b.GPUHours:
			return -1
		case a.GPUHours < b.GPUHours:
			return 1
		}
		return 0
	})
	res.Causes = causes
	if len(away) > 0 {
		slices.Sort(away)
		res.AwayP99 = away[len(away)*99/100]
	}
	if len(finish) > 0 {
		slices.Sort(finish)
		at := func(p float64) float64 { return finish[min(int(p*float64(len(finish))), len(finish)-1)] }
		res.Days = map[string]float64{"p10": at(.1), "p50": at(.5), "p90": at(.9), "p99": at(.99)}
	}
	return res, nil
}

// Best tries intervals around the exact one for the last tier and keeps the one with the most goodput.
func Best(j Job, runs int, seed uint64) (*Result, error) {
	if err := j.Check(); err != nil {
		return nil, err
	}
	j.Tiers = slices.Clone(j.Tiers)
	last := &j.Tiers[len(j.Tiers)-1]
	asked := last.Every
	j.every()
	start := last.intervals
	var best *Result
	factors := []float64{.5, .7, 1, 1.4, 2}
	if asked > 0 {
		factors = []float64{1}
	}
	for _, f := range factors {
		last.Every = start * f
		r, err := Run(j, runs, seed)
		if err != nil {
			return nil, err
		}
		if best == nil || r.Goodput > best.Goodput {
			best = r
		}
	}
	best.Intervals["simulation"] = best.Interval
	return best, nil
}
