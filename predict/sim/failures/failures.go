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
	"fmt"
	"github.com/weft-fabric/weft/model/heap"
	"maps"
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
	Spares   int     // hosts that stand by, or Enough
	Tiers    []Tier  // the quickest first
	Days     float64 // of a run
	Work     float64 // days of training to do; 0 for as much as the run allows
}

// Enough asks Best for as many spares as there are hosts away at the 99th percentile.
const Enough = -1

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
	Unfinished int                `json:"unfinished,omitempty"` // runs in which the work was not done in 40 times the days
	Spares     int                `json:"spares"`
	Away       float64            `json:"hosts_away_mean"` // from Best: of a job that never waits, so that they do not depend on Spares
	AwayP99    float64            `json:"hosts_away_p99"`
	Enough     int                `json:"spares_enough_99"` // spares with which no more hosts are away 99% of the time: AwayP99
	Runs       int                `json:"runs"`
	Seed       uint64             `json:"seed"`
	Fleets     []Seen             `json:"fleets,omitempty"` // the same job where hosts fail as often as in other published fleets
}

// event is the next failure of a kind, or a host's return.
type event struct {
	at   float64
	seq  int
	kind int // of hazard, or one of the two below
	back int // hosts that come back with it
}

// Kinds of events that are no failure.
const (
	repaired = -1 // a part is whole again
	over     = -2 // the run ends
)

// Before orders by time, then by what was drawn first.
func (x event) Before(y event) bool { return x.at < y.at || x.at == y.at && x.seq < y.seq }

// one is what a single run gave.
type one struct {
	good, wait, total             float64
	stall, again, detect, restart float64
	failures                      []float64
	lost                          []float64
	away, finish                  float64
	finished                      bool
	awayTimes                     map[int]float64 // by hosts away: seconds
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
	case j.Rate()*j.Days*86400 > 1e7:
		return fmt.Errorf("%.3g failures in %g days are more than can be followed; at most 10 million", j.Rate()*j.Days*86400, j.Days)
	}
	for _, h := range j.Hazards {
		if h.Count < 0 || h.Yearly < 0 || h.Shape < 0 || h.Repair < 0 || h.Sigma < 0 {
			return fmt.Errorf("hazard %s: counts, rates and times must not be negative", h.Name)
		}
	}
	for _, t := range j.Tiers {
		if !(t.Stall >= 0 && t.Load >= 0 && t.Survives >= 0 && t.Survives <= 1 && t.Every >= 0 && t.Drain >= 0) {
			return fmt.Errorf("tier %s: times must not be negative, and it survives a share of 0 to 1", t.Name)
		}
	}
	for name, v := range map[string]float64{"detection": j.Detect, "the time limit": j.Timeout, "localisation": j.Localise,
		"requeue": j.Requeue, "a restart in place": j.InPlace} {
		if !(v >= 0) {
			return fmt.Errorf("%s takes %g s; times must not be negative", name, v)
		}
	}
	if !(j.Kept >= 0 && j.Kept <= 1) {
		return fmt.Errorf("the same hosts go on after a share of %g of the failures; want 0 to 1", j.Kept)
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
func (j Job) run(r *rand.Rand, year *seasons) one {
	end := j.Days * 86400
	o := one{failures: make([]float64, len(j.Hazards)), lost: make([]float64, len(j.Hazards)), awayTimes: map[int]float64{}}
	q := &heap.Heap[event]{}
	seq := 0
	push := func(at float64, kind, back int) {
		seq++
		q.Push(event{at, seq, kind, back})
	}
	for k, h := range j.Hazards {
		if h.Count > 0 && h.Yearly > 0 {
			push(year.after(h, 0, h.first(r)), k, 0)
		}
	}
	// Work that counts grows by speed between events: saves take their share of it.
	overhead := 1.0
	for _, t := range j.Tiers {
		overhead += t.Stall / t.intervals
	}
	away, awaySince := 0, 0.0
	need, have := j.Hosts, j.Hosts+j.Spares
	note := func(at float64) {
		o.away += float64(away) * (at - awaySince)
		o.awayTimes[away] += at - awaySince
		awaySince = at
	}
	work := 0.0 // done and kept
	goal := j.Work * 86400
	limit := end
	if goal > 0 {
		limit = 40 * end // a job that is not done by then is given up
	}
	// The job is in one of three states: it works since begin; it starts, and will work from begin on, what it does before
	// being detection until found and restart after; or it waits for hosts since begin.
	const (
		working = iota
		starting
		waiting
	)
	state, begin, found, since := working, 0.0, 0.0, 0.0 // since: when a start began
	settleStart := func(at float64) {                    // count what a start took up to a time
		o.detect += max(min(at, found)-since, 0)
		o.restart += max(at-max(found, since), 0)
		since = at
	}
	now := limit
	for {
		e := q.Pop()
		if e.at > limit {
			e.at, e.kind = limit, over
		}
		if state == starting && e.at >= begin { // it works by now, or has too few hosts
			settleStart(begin)
			state = working
			if have-away < need {
				state = waiting
			}
		}
		if goal > 0 && state == working && work+(e.at-begin)/overhead >= goal {
			now = begin + (goal-work)*overhead
			o.stall += (goal - work) * (overhead - 1)
			work, o.finished = goal, true
			break
		}
		if e.kind == over {
			switch state {
			case working:
				done := (limit - begin) / overhead
				o.stall += limit - begin - done
				work += done
			case starting:
				settleStart(limit)
			case waiting:
				o.wait += limit - begin
			}
			break
		}
		if e.kind == repaired {
			note(e.at)
			away -= e.back
			if state == waiting && have-away >= need {
				o.wait += e.at - begin
				state, begin = working, e.at
			}
			continue
		}
		h := j.Hazards[e.kind]
		push(year.after(h, e.at, h.gap(r)), e.kind, 0)
		if state == waiting { // nothing runs that could fail
			continue
		}
		o.failures[e.kind]++
		// Which checkpoint is left decides what is repeated.
		tier := len(j.Tiers) - 1
		for i := range j.Tiers[:tier] {
			if r.Float64() < j.Tiers[i].Survives {
				tier = i
				break
			}
		}
		t := j.Tiers[tier]
		lost := 0.0
		if state == starting {
			settleStart(e.at) // the start begins again
		} else {
			ran := e.at - begin
			done := ran / overhead
			o.stall += ran - done
			lost = math.Mod(work+done, t.intervals)
			if t.Drain > 0 && lost < t.Drain {
				lost += t.intervals
			}
			lost = min(lost, work+done)
			work += done - lost
			o.again += lost
		}
		detect := j.Detect
		if r.Float64() < h.Silent {
			detect = j.Timeout
		}
		restart := j.Requeue
		if h.Hosts == 0 || h.Hosts == 1 && r.Float64() < j.Kept {
			restart = j.InPlace
		} else {
			note(e.at)
			away += h.Hosts
			push(e.at+j.repair(h, r), repaired, h.Hosts) // one part is repaired, and all its hosts are back
			detect += j.Localise
		}
		o.lost[e.kind] += lost*overhead + detect + restart + t.Load
		state, since, found = starting, e.at, e.at+detect
		begin = found + restart + t.Load
	}
	o.total = now
	if goal > 0 {
		o.finish = now
	}
	note(o.total)
	o.good = work
	return o
}

// gap draws the seconds from one failure to the next. All parts of a kind together are one renewal process; its gaps are
// Weibull with the mean that the counts give, and a shape below 1 makes bursts.
func (h Hazard) gap(r *rand.Rand) float64 { return h.scale() * math.Pow(r.ExpFloat64(), 1/h.shape()) }

// first draws the seconds to the first failure of a run, which begins somewhere inside a gap: long gaps are met more often
// than short ones, as often as they are long.
func (h Hazard) first(r *rand.Rand) float64 {
	if h.shape() == 1 {
		return h.gap(r)
	}
	return r.Float64() * h.scale() * math.Pow(gamma(r, 1+1/h.shape()), 1/h.shape())
}

func (h Hazard) shape() float64 {
	if h.Shape == 0 {
		return 1
	}
	return h.Shape
}

// scale is the Weibull's, from its mean.
func (h Hazard) scale() float64 {
	return 365 * 86400 / (float64(h.Count) * h.Yearly) / math.Gamma(1+1/h.shape())
}

// gamma draws from a gamma distribution with a shape of at least 1 and scale 1, by Marsaglia and Tsang's method.
func gamma(r *rand.Rand, shape float64) float64 {
	d := shape - 1./3
	c := 1 / math.Sqrt(9*d)
	for {
		x := r.NormFloat64()
		v := 1 + c*x
		if v <= 0 {
			continue
		}
		v = v * v * v
		if math.Log(1-r.Float64()) < .5*x*x+d-d*v+d*math.Log(v) {
			return d * v
		}
	}
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
	stall, falls := max(last.Stall, .1), res.MTTF // the time between failures that fall to the last tier
	for _, t := range j.Tiers[:len(j.Tiers)-1] {
		falls /= max(1-t.Survives, 1e-3)
	}
	res.Intervals["young"], res.Intervals["daly"], res.Intervals["exact"] = Young(stall, falls), Daly(stall, falls), Exact(stall, falls)
	for _, t := range j.Tiers {
		res.Intervals["tier "+t.Name] = t.intervals
	}
	var good, finish []float64
	away := map[int]float64{}
	unfinished := 0
	var total, failures, waiting, counts float64
	causes := make([]Cause, len(j.Hazards))
	sums := map[string]float64{}
	for i := range runs {
		o := j.run(rand.New(rand.NewPCG(seed, uint64(i))), &seasons{r: rand.New(rand.NewPCG(seed, ^uint64(i)))})
		good = append(good, o.good/o.total)
		total += o.total
		counts += o.good
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
		for n, t := range o.awayTimes {
			away[n] += t
		}
		if j.Work > 0 {
			finish = append(finish, o.finish/86400)
			if !o.finished {
				unfinished++
			}
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
	res.Goodput, res.GoodputLow, res.GoodputUp = mean, max(mean-half, 0), min(mean+half, 1)
	res.ETTR = mean
	if waiting > 0 && total > waiting {
		res.ETTR = counts / (total - waiting)
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
	// 99% of the time no more hosts are away.
	left := total * .99
	for _, n := range slices.Sorted(maps.Keys(away)) {
		res.AwayP99 = float64(n)
		if left -= away[n]; left <= 0 {
			break
		}
	}
	res.Enough = int(res.AwayP99)
	res.Unfinished = unfinished
	if len(finish) > 0 {
		slices.Sort(finish)
		at := func(p float64) float64 { return finish[min(int(p*float64(len(finish))), len(finish)-1)] }
		res.Days = map[string]float64{"p10": at(.1), "p50": at(.5), "p90": at(.9), "p99": at(.99)}
	}
	return res, nil
}

// demand runs a job that never waits for hosts: it says how many are away when spares do not limit the failures. It runs for two years at
// least: some repairs take months, and a cluster is not new when a job begins.
func demand(j Job, runs int, seed uint64) (*Result, error) {
	j.Spares, j.Tiers, j.Days = 4*j.Hosts, slices.Clone(j.Tiers), max(j.Days, 730)
	return Run(j, runs, seed)
}

// fewFailures is how many failures all runs together must have for their cost to tell intervals apart.
const fewFailures = 100

// Best tries intervals around the exact one for the last tier and keeps the one with the most goodput. Hosts away and the spares
// that are enough come from one run without a shortage of hosts, so the two always agree. Where few failures are drawn, it keeps the exact
// one: the best of several draws of a few failures is luck.
func Best(j Job, runs int, seed uint64) (*Result, error) {
	if err := j.Check(); err != nil {
		return nil, err
	}
	free, err := demand(j, runs, seed)
	if err != nil {
		return nil, err
	}
	if j.Spares == Enough {
		j.Spares = free.Enough
	}
	j.Tiers = slices.Clone(j.Tiers)
	last := &j.Tiers[len(j.Tiers)-1]
	asked := last.Every
	j.every()
	start := last.intervals
	var best *Result
	factors := []float64{.5, .7, 1, 1.4, 2}
	if asked > 0 || float64(runs)*j.Days*86400 < fewFailures*j.MTTF() { // what few failures cost says little of the best interval
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
	best.Away, best.AwayP99, best.Enough = free.Away, free.AwayP99, free.Enough
	return best, nil
}
