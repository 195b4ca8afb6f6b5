package sim

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// Result is what a simulation found.
type Result struct {
	Time     unit.Time // from the first job's start to the last one's end
	AlgBW    unit.Rate // of the first job: its size over its time
	BusBW    unit.Rate // the same times nccl-tests' factor
	Limit    string    // what holds it back, in words
	Critical Critical  // what the longest chain of events was doing
	Jobs     []JobResult
	Actions  int64 // carried out by simulated ranks, folded ones included
	Folded   int64 // of these, skipped as rounds that repeat
	Ranks    int   // simulated, of all jobs
	Events   int64 // moments at which something happened
	Seed     uint64
	Trace    *Trace // nil unless asked for

	// Paused is the part of all flows' time for which a pause held them back, while no link on their way was full. It is 0 with
	// FairShares.
	Paused float64

	// Shortened means that rings were simulated with three smaller numbers of ranks around a bad part, and their time carried on
	// to all of them, within one part in 10,000. Links and Tiers then tell of the largest of these.
	Shortened bool

	// Every is 0 where Time is exact. Where ranks were too many to simulate around a bad part, Time is that of the same bad part in
	// one of this number of hosts, and Links and Tiers tell of these.
	Every int

	w    *world
	more []*world // of jobs that share no link with those of w
}

// JobResult is one job's part.
type JobResult struct {
	Start, End unit.Time
	AlgBW      unit.Rate
	BusBW      unit.Rate
}

func (w *world) result() *Result {
	if w.copies != nil {
		w.copies.fill(w)
	}
	res := &Result{Actions: w.actions, Folded: w.folded, Ranks: len(w.machines), Events: w.batches, Seed: w.o.Seed, w: w, Trace: w.trace.trace}
	begin := w.runs[0].job.Start
	var end unit.Time
	for _, r := range w.runs {
		begin = min(begin, r.job.Start)
		if r.end >= end {
			end, res.Critical = r.end, r.last
		}
		alg := r.job.Size.Per(r.end - r.job.Start)
		p := r.job.Program
		res.Jobs = append(res.Jobs, JobResult{r.job.Start, r.end, alg, alg * unit.Rate(p.Op.BusFactor(p.Ranks))})
	}
	res.Time = end - begin
	res.AlgBW, res.BusBW = res.Jobs[0].AlgBW, res.Jobs[0].BusBW
	res.Limit = w.limit(res)
	if p := w.share.pause; p != nil {
		busy := 0.0
		for _, t := range w.resBusy {
			busy += t
		}
		res.Paused = float64(p.lost) / max(busy, 1)
	}
	return res
}

// limit says in words what the longest chain of events spent its time on.
func (w *world) limit(res *Result) string {
	c := res.Critical
	total := max(res.Time, 1)
	share := func(t unit.Time) string { return fmt.Sprintf("%.0f%%", 100*float64(t)/float64(total)) }
	worst := Tier(0)
	for t := Accelerator; t < tiers; t++ {
		if worst == 0 || c[t] > c[worst] {
			worst = t
		}
	}
	wait := c[Overhead] + c[Latency]
	if wait > c[worst] && wait > c[Reduction] {
		return fmt.Sprintf("latency: %s of the time is the start and the way of messages one after another, %s the bytes",
			share(wait), share(c[worst]))
	}
	if c[Reduction] > c[worst] {
		return fmt.Sprintf("memory: %s of the time is copies and sums", share(c[Reduction]))
	}
	best := -1
	for i := range w.resWire {
		if w.resTier[i] == worst && (best < 0 || w.resBusy[i] > w.resBusy[best]) {
			best = i
		}
	}
	if best < 0 {
		return "nothing"
	}
	wire := w.net.genuine(w.resWire[best])
	if wire == coreWire {
		return fmt.Sprintf("cores: %s of the time is bytes that they move", share(c[worst]))
	}
	rate := unit.Rate(w.share.res[best].cap)
	why := ""
	if l := topo.LinkID(wire >> 1); l >= 0 && int(l) < len(w.net.g.Links) {
		why = w.net.g.Class(l).Gen + ", "
		if f := w.net.slowness(l); f != 1 {
			why += fmt.Sprintf("at %g of its rate, ", f)
		}
	}
	return fmt.Sprintf("%s (%s%s): %s of the time on %s", w.net.name(wire), why, rate, share(c[worst]), worst)
}

// LinkUse is what passed one direction of a link.
type LinkUse struct {
	Link     topo.LinkID // None for the CPU's copies
	Forward  bool
	Name     string
	Tier     Tier
	Bytes    unit.Bytes
	Capacity unit.Rate
	Busy     float64 // share of the whole time at full rate
}

// carried adds up the bytes on every wire, in bytes times whole.
func (res *Result) carried() []float64 {
	sum := make([]float64, 2*(len(res.w.net.g.Links)+len(res.w.net.g.Nodes)))
	res.w.passed(sum)
	for _, w := range res.more {
		w.passed(sum)
	}
	return sum
}

// passed adds the bytes of a world's flows to their wires.
func (w *world) passed(sum []float64) {
	if s := w.sym; s != nil {
		byFlow := make([]int64, s.first[s.period])
		for i := range w.conns {
			byFlow[w.conns[i].wide] = w.conns[i].bytes
		}
		all := sum
		if s.group != nil {
			sum = make([]float64, len(all))
		}
		middles := make([]float64, len(s.middles))
		for k := range s.listed {
			for f := s.first[k]; f < s.first[k+1]; f++ {
				bytes := float64(byFlow[s.orbit(k, f)])
				for _, u := range s.own(f) {
					sum[u.wire] += bytes * float64(s.load(u))
				}
				if mid := s.mid[f]; mid >= 0 {
					middles[mid] += bytes
				}
			}
		}
		for mid, bytes := range middles {
			for _, u := range s.middles[mid] {
				sum[u.wire] += bytes * float64(s.load(u))
			}
		}
		if s.group != nil {
			s.group.expand(sum, all)
		}
		return
	}
	for i := range w.conns {
		c := &w.conns[i]
		if x := w.flowlets[int32(i)]; x != nil {
			x.pass(sum)
			continue
		}
		for _, part := range [2][]use{c.path, c.mid} {
			for _, u := range part {
				sum[u.wire] += float64(c.bytes) * float64(u.share)
			}
		}
	}
}

// Links lists what passed every direction of every link that carried anything,
// the busiest first.
func (res *Result) Links() []LinkUse {
	w := res.w
	var list []LinkUse
	for i, v := range res.carried() {
		if v == 0 {
			continue
		}
		x := wire(i)
		u := LinkUse{Link: topo.LinkID(x >> 1), Forward: x&1 == 0, Tier: w.net.tier(x), Bytes: unit.Bytes(v/whole + 0.5),
			Capacity: unit.Rate(w.net.capacity(x))}
		if int(u.Link) >= len(w.net.g.Links) {
			u.Link = topo.None
		}
		u.Name = w.net.name(x)
		u.Busy = v / whole / float64(u.Capacity) / res.Time.Seconds()
		list = append(list, u)
	}
	slices.SortStableFunc(list, func(a, b LinkUse) int { return cmp.Compare(b.Busy, a.Busy) })
	return list
}

// TierUse is what passed a tier of the cluster.
type TierUse struct {
	Tier  Tier
	Wires int        // directions of links that carried anything
	Bytes unit.Bytes // summed over them
	Mean  float64    // busy share, over those that carried anything
	Most  float64    // of the busiest
}

// Tiers sums up the links by tier, from the accelerators outwards.
func (res *Result) Tiers() []TierUse {
	w := res.w
	var sums [tiers]TierUse
	for i, v := range res.carried() {
		if v == 0 {
			continue
		}
		x := wire(i)
		t := &sums[w.net.tier(x)]
		busy := v / whole / float64(w.net.capacity(x)) / res.Time.Seconds()
		t.Wires++
		t.Bytes += unit.Bytes(v/whole + 0.5)
		t.Mean += busy
		t.Most = max(t.Most, busy)
	}
	var list []TierUse
	for i := range sums {
		if t := sums[i]; t.Wires > 0 {
			t.Tier = Tier(i)
			t.Mean /= float64(t.Wires)
			list = append(list, t)
		}
	}
	return list
}
