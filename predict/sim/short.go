package sim

import (
	"slices"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// A bad part makes all ranks of a ring different, and its steps grow with their number: of 131,072 ranks that is
// 17 billion messages. But most of a long ring repeats itself:
//
//	leaf | leaf | bad | leaf | leaf | leaf | leaf | ...      blocks of ranks, as many as the healthy fabric repeats after
//	            └─ stays ─┘      └──── one like the other ────┘
//
// Each block of healthy ranks that is left out takes as many steps with it as it has ranks, and all steps take the same
// once the bad part sets the pace. So the time of a ring is a straight line in the number of its blocks. Three short rings around the same
// bad part say which line; if the three are not on one, they are made longer, and in the end the whole ring is simulated.

// maxWhole is the number of actions up to which a ring around a bad part is simulated as it is.
const maxWhole = 1 << 23

// maxQuick is maxWhole where Best tries many algorithms.
const maxQuick = 1 << 21

// maxBend is how far the slopes between three lengths may lie apart for a line, as a fraction; roughBend where copies of a
// pattern share links, which makes the slopes waver, and where Best looks for the fastest of many.
const (
	maxBend   = 1e-4
	roughBend = 1e-2
)

// most is the number of actions up to which jobs around a bad part are simulated with all their ranks.
func (n *network) most() int64 {
	switch {
	case n.o.shorten:
		return 0
	case n.quick:
		return maxQuick
	}
	return maxWhole
}

func (n *network) bend(jobs []Job) float64 {
	if n.quick || slices.ContainsFunc(jobs, func(j Job) bool { return j.Program.Channels() > 1 }) {
		return roughBend
	}
	return maxBend
}

// short gives the result of rings that are too long to simulate around a bad part; nil if it cannot.
func (w *world) short(jobs []Job, deadline unit.Time) (*Result, error) {
	n := w.net
	if w.sym != nil || !w.known || !w.fold.on || w.trace.trace != nil || n.whole == nil {
		return nil, nil
	}
	ranks, work := jobs[0].Program.Ranks, int64(0)
	grain := 1
	for _, j := range jobs {
		if j.Fewer == nil || j.Program.Ranks != ranks || j.Program.Switches > 0 {
			return nil, nil
		}
		grain = max(grain, j.Fewer.Grain)
		work += j.actions()
	}
	if work <= n.most() {
		return nil, nil
	}
	period, err := n.healthyPeriod(w.runs)
	if err != nil || period == 0 {
		return nil, err
	}
	for one := period; period%grain != 0; {
		period += one
	}
	if ranks%period != 0 {
		return nil, nil
	}
	blocks, special := w.blocks(ranks, period)
	count := 0
	for _, s := range special {
		if s {
			count++
		}
	}
	healthy := blocks - count
	base := max(2, 256/period)
	for ; 2*(count+3*base) <= blocks; base *= 2 {
		var at [3]*Result
		for i := range at {
			if at[i], err = n.shortened(jobs, special, period, (i+1)*base); err != nil {
				return nil, err
			}
		}
		if r := extend(at, jobs, float64(healthy-3*base)/float64(base), n.bend(jobs)); r != nil {
			r.Seed = n.o.Seed
			return r.by(deadline, nil)
		}
	}
	return nil, nil
}

// by turns a result after the deadline, if there is one, into ErrLate.
func (r *Result) by(deadline unit.Time, err error) (*Result, error) {
	if r != nil && deadline > 0 && r.Time > deadline {
		return nil, ErrLate
	}
	return r, err
}

// healthyPeriod is the number of ranks after which rings repeat on the network without bad parts; 0 if they do not.
func (n *network) healthyPeriod(runs []*run) (int, error) {
	o := n.o
	o.Fail, o.Slow = nil, nil
	net, err := networkOf(n.whole, o)
	if err != nil {
		return 0, err
	}
	period := 1
	for _, r := range runs {
		s, err := findSymmetry(net, r)
		if err != nil || s == nil {
			return 0, err
		}
		if p := int(s.period); p%period == 0 {
			period = p
		} else if period%p != 0 {
			return 0, nil
		}
	}
	return period, nil
}

// blocks cuts the ranks into blocks of a period and says which of them are unlike most others: in what their flows
// pass, how wide it is, and who else is on it.
func (w *world) blocks(ranks, period int) (int, []bool) {
	load := make([]int64, len(w.share.res))
	for i := range w.conns {
		for _, l := range w.share.flows[w.conns[i].flow].loads {
			load[l.res] += l.share
		}
	}
	sign := make([]uint64, ranks/period)
	for i := range w.conns {
		c := &w.conns[i]
		t := &w.threads[c.from]
		rank := int(w.ranks[t.machine])
		h := mix(uint64(c.latency), uint64(w.lame[t.machine]*1e6))
		for _, l := range w.share.flows[c.flow].loads {
			h += mix(mix(uint64(w.share.res[l.res].cap), uint64(load[l.res])), uint64(l.share))
		}
		sign[rank/period] += mix(mix(uint64(w.runOf[t.machine]), uint64(rank%period)<<8|uint64(t.channel)), h)
	}
	times, most := map[uint64]int{}, sign[0]
	for _, s := range sign {
		if times[s]++; times[s] > times[most] {
			most = s
		}
	}
	special := make([]bool, len(sign))
	for i, s := range sign {
		special[i] = s != most
	}
	return len(sign), special
}

// shortened runs rings of the special blocks and others of the rest.
func (n *network) shortened(jobs []Job, special []bool, period, others int) (*Result, error) {
	some := make([]Job, len(jobs))
	for i, j := range jobs {
		var place []topo.NodeID
		left := others
		for b, s := range special {
			if !s && left == 0 {
				continue
			}
			if !s {
				left--
			}
			place = append(place, j.Place[b*period:(b+1)*period]...)
		}
		p, err := j.Fewer.Program(len(place))
		if err != nil {
			return nil, err
		}
		chunks := max(p.NumChunks(sched.In), p.NumChunks(sched.Out))
		some[i] = Job{Program: p, Size: unit.Bytes(j.chunk() * int64(chunks)), Place: place, Start: j.Start}
	}
	return n.runExactly(some, 0)
}

// extend carries three results on along their line, times as far as the way from the second to the third; nil if
// they are on none, which may bend a little.
func extend(at [3]*Result, jobs []Job, times, bend float64) *Result {
	on := func(a, b, c unit.Time) (unit.Time, bool) {
		first, second := float64(b-a), float64(c-b)
		return c + unit.Time(second*times+.5), second >= 0 && max(first-second, second-first) <= bend*max(second, 1)
	}
	last := at[2]
	r := *last
	r.Jobs = make([]JobResult, len(jobs))
	var begin, end unit.Time
	for i, j := range jobs {
		to, ok := on(at[0].Jobs[i].End, at[1].Jobs[i].End, last.Jobs[i].End)
		if !ok {
			return nil
		}
		alg := j.Size.Per(to - j.Start)
		r.Jobs[i] = JobResult{j.Start, to, alg, alg * unit.Rate(j.Program.Op.BusFactor(j.Program.Ranks))}
		if i == 0 || j.Start < begin {
			begin = j.Start
		}
		end = max(end, to)
	}
	for k := range r.Critical {
		r.Critical[k] += unit.Time(float64(last.Critical[k]-at[1].Critical[k]) * times)
	}
	r.Time, r.Shortened = end-begin, true
	r.AlgBW, r.BusBW = r.Jobs[0].AlgBW, r.Jobs[0].BusBW
	r.Limit = r.w.limit(&r)
	return &r
}
