package watch

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/weft-fabric/weft/observe/doctor"
)

// Lateness is judged by the operations of the last windowTime seconds, and at least by window of them.
// They are cut into parts, as a step of training may have many operations of which only
// the first tells who was late.
const (
	window        = 20
	partCount     = 10 // of a window
	windowTime    = 1.5
	partsThatTell = 4 // that must tell of somebody
)

// A step of training may take a second. Operations that were told of at one time are a batch, and
// three batches in a row that tell of the same rank are a verdict, if batches before them told of
// nobody: chance does that in noisy jobs only.
const (
	batchGap  = 0.25 // seconds between batches
	batchTime = 5    // seconds of which batches are judged
	batches   = 3
	quietly   = 0.25 // of the batches before may tell of somebody
)

// lateness finds stragglers: all leave an operation together, so a rank that comes last
// waits least.
func (m *Machine) lateness(now float64, j *job, raise raiser) {
	for _, name := range slices.Sorted(maps.Keys(j.group)) {
		g := j.group[name]
		var known []*opSeen // the newest first
		recent := 0         // of them that the last seconds' verdict is about
		fresh := false
		there := j.there(g)
		for i := len(g.order) - 1; i >= 0; i-- {
			o := g.ops[g.order[i]]
			if now-o.at > 30 {
				break
			}
			if len(o.took) < there && now-o.at < 3 {
				continue // some have not told yet
			}
			if !o.full {
				o.full, fresh = true, true
				o.mid, o.least = o.middle()
				g.measure(now, o, there)
			}
			if len(o.took) >= 3 {
				if known = append(known, o); len(known) <= window || now-o.at <= windowTime {
					recent = len(known)
				}
			}
		}
		if n := len(g.order); n >= 2 {
			a, b := g.order[0], g.order[n-1]
			if dt := g.ops[b].at - g.ops[a].at; dt > 0 {
				g.step = dt / float64(b-a)
			}
		}
		if len(known) == 0 {
			clear(g.late)
		}
		if !fresh || len(known) < batches {
			continue
		}
		told := batched(known)
		bad := map[int]bool{}
		if recent >= window {
			bad = m.slice(j, g, equal(known[:recent], partCount), recent, latestOf, bad)
		}
		wall := (told[0][0].at - told[len(told)-1][0].at) / float64(max(1, len(told)-1))
		late := false // somebody was, in the newest batches: else the older need no look
		for _, part := range told[:min(len(told), 2)] {
			r, _ := firstOf(part, wall)
			late = late || r >= 0
		}
		if n := min(len(told), partCount); late && n >= 2*batches && len(known) >= window { // long steps, of which the last window has too few
			count := 0
			for _, part := range told[:n] {
				count += len(part)
			}
			bad = m.slice(j, g, told[:n], count, firstOf, bad)
		}
		for _, r := range slices.Sorted(maps.Keys(j.ranks)) {
			if l := g.late[r]; m.held(fmt.Sprintf("late/%s/%d/%s", j.name, r, g.name), bad[r]) && l != nil {
				m.straggles(now, j, g, r, l, raise)
			}
		}
		if !late {
			continue
		}
		if r, l := g.atOnce(now, wall, told); l != nil {
			if old := g.late[r]; old == nil || old.cost < l.cost {
				g.late[r] = l
			}
			m.straggles(now, j, g, r, l, raise)
		}
	}
}

// middle is the median of the times and the rank that took least.
func (o *opSeen) middle() (float64, int) {
	all := make([]float64, 0, len(o.took))
	least := -1
	for r, w := range o.took {
		all = append(all, w)
		if least < 0 || w < o.took[least] || w == o.took[least] && r < least {
			least = r
		}
	}
	return median(all), least
}

// batched gives operations by the batch in which they were told of, the newest first.
func batched(ops []*opSeen) [][]*opSeen {
	var out [][]*opSeen
	from := 0
	for i := 1; i <= len(ops); i++ {
		if i == len(ops) || math.Abs(ops[i-1].at-ops[i].at) > batchGap {
			out = append(out, ops[from:i])
			from = i
		}
	}
	return out
}

// equal cuts operations into n parts.
func equal(ops []*opSeen, n int) [][]*opSeen {
	out := make([][]*opSeen, n)
	for i, o := range ops {
		out[i*n/len(ops)] = append(out[i*n/len(ops)], o)
	}
	return out
}

// teller finds the rank that was late in a part of the operations, or -1.
type teller func(part []*opSeen, wall float64) (rank int, late float64)

// latestOf gives the rank that was the latest in a part and by how much, and -1 where nobody was later
// than chance allows.
func latestOf(part []*opSeen, wall float64) (rank int, late float64) {
	return later(part, 5, 0.02*wall)
}

// lateIn sums up by rank how much later than the median it came to the operations.
func lateIn(part []*opSeen) map[int]float64 {
	sum := map[int]float64{}
	for _, o := range part {
		for r, w := range o.took {
			sum[r] += o.mid - w
		}
	}
	return sum
}

// later is latestOf with a number of deviations and a least lateness in seconds.
func later(part []*opSeen, deviations, least float64) (rank int, late float64) {
	sum := lateIn(part)
	top := -1
	all, dev := make([]float64, 0, len(sum)), make([]float64, 0, len(sum))
	for r, x := range sum {
		all = append(all, x)
		if top < 0 || x > sum[top] || x == sum[top] && r < top {
			top = r
		}
	}
	mid := median(all)
	for _, x := range all {
		dev = append(dev, math.Abs(x-mid))
	}
	if top >= 0 && sum[top] > max(deviations*median(dev), least, 200e-6) {
		return top, sum[top]
	}
	return -1, 0
}

// firstOf is latestOf for steps of many operations, of which only the first may tell who was late.
func firstOf(part []*opSeen, wall float64) (rank int, late float64) {
	if rank, late = later(part, 8, 0.03*wall); rank >= 0 || len(part) == 1 {
		return rank, late
	}
	for _, o := range part {
		if x := o.mid - o.took[o.least]; x > max(late, 0.03*wall) {
			if r, l := later([]*opSeen{o}, 8, 0.03*wall); r >= 0 {
				rank, late = r, l
			}
		}
	}
	return rank, late
}

// atOnce judges the batches of the last seconds: three or more tell of one rank, where hardly any
// told of anybody before.
func (g *group) atOnce(now, wall float64, told [][]*opSeen) (int, *latest) {
	if len(told) < 2*batches {
		return -1, nil
	}
	who, n, ops, over, before, loud := -1, 0, 0, false, 0, 0
	sum, began := 0.0, now
	for _, part := range told {
		r, late := firstOf(part, wall)
		over = over || now-part[0].at > max(batchTime, (batches+0.5)*wall) || who >= 0 && r >= 0 && r != who
		switch {
		case !over && r >= 0:
			who, n, ops, sum, began = r, n+1, ops+len(part), sum+late, part[len(part)-1].at
		case !over: // the end of a step tells nothing
		default:
			before++
			if r >= 0 {
				loud++
			}
		}
	}
	if n < batches || before < 2*batches || float64(loud) > quietly*float64(before) {
		return -1, nil
	}
	return who, &latest{share: 1, cost: sum / max(now-began+wall, 1e-9), late: sum / float64(n), n: ops, top: n, telling: n, last: n}
}

// lateInAll sums up by rank how late it came where it was the last, and in all how much later than the median.
func lateInAll(parts [][]*opSeen, count int) (ranks map[int]*latest, all map[int]float64) {
	ranks, all = map[int]*latest{}, map[int]float64{}
	for _, part := range parts {
		for _, o := range part {
			for r, w := range o.took {
				if ranks[r] == nil {
					ranks[r] = &latest{n: count}
				}
				all[r] += o.mid - w
				if r == o.least {
					ranks[r].last++
					ranks[r].late += o.mid - w
				}
			}
		}
	}
	return ranks, all
}

// slice sums up lateness in slices of operations and judges every rank: bad are those that come
// late in most of them.
func (m *Machine) slice(j *job, g *group, parts [][]*opSeen, count int, tells teller, bad map[int]bool) map[int]bool {
	newest, oldest := parts[0][0], parts[len(parts)-1]
	ops := float64(count) / float64(len(parts))
	wall := max(g.step*ops, (newest.at-oldest[len(oldest)-1].at)/float64(len(parts))) // of a slice
	if wall <= 0 {                                                                    // all were told of at once: nothing is known of the time between them
		return bad
	}
	ranks, all := lateInAll(parts, count)
	telling := 0
	for _, part := range parts {
		if r, _ := tells(part, wall); r >= 0 {
			telling++
			ranks[r].top++
		}
	}
	clear(g.late)
	for r, l := range ranks {
		l.telling = telling
		l.share = float64(l.top) / float64(max(1, telling))
		l.cost = max(0, all[r]) / max(float64(len(parts))*wall, 1e-9)
		if l.last > 0 {
			l.late /= float64(l.last)
		}
		g.late[r] = l
		bad[r] = bad[r] || telling >= partsThatTell && l.share >= 0.6 && l.cost > 0.02
	}
	return bad
}

// starvedCost is the share of the time that others must wait for a rank of a starved host until it is named. Below it the
// scheduler of a busy host makes now one and now another rank late.
const starvedCost = 0.3

// straggles raises the incident of a rank that comes late.
func (m *Machine) straggles(now float64, j *job, g *group, r int, l *latest, raise raiser) {
	if x := j.ranks[r]; x != nil && l.cost < starvedCost && m.hosts[x.host].starved() {
		return
	}
	if i := m.linkOf(now, j, r); i != nil { // what comes over a slow link comes late
		f := fmt.Sprintf("rank %d comes late", r)
		if !slices.Contains(i.Follows, f) {
			i.Follows = append(i.Follows, f)
		}
		return
	}
	sev := doctor.Warning
	if l.cost > 0.1 {
		sev = doctor.Critical
	}
	raise(fmt.Sprintf("late/%s/%d", j.name, r), Incident{Kind: "straggler", Severity: sev, Confidence: min(0.95, 0.6+0.35*l.share),
		Job: j.name, Subject: m.subject(j, r),
		Verdict: fmt.Sprintf("%s of %s is late: the others wait for it %.0f%% of the time", j.on(r), j.name, 100*min(1, l.cost)),
		Evidence: []Evidence{{now,
			fmt.Sprintf("%s: the latest rank in %d of %d parts of the last %d operations that tell of somebody, the last one in %d of them, then %s after the median",
				g.name, l.top, l.telling, l.n, l.last, span(l.late))}}})
}

// linkOf is the incident of a link that ends at a rank and is slow now.
func (m *Machine) linkOf(now float64, j *job, rank int) *Incident {
	for _, i := range m.open {
		switch i.Kind {
		case "slow-link", "slow-sender", "slow-receiver", "link-cut":
			if i.Job == j.name && now-i.Seen < 3 && slices.Contains(i.Subject.Ranks, rank) {
				return i
			}
		}
	}
	return nil
}

// there is how many ranks of a group report.
func (j *job) there(g *group) int {
	n := 0
	for _, r := range j.ranks {
		if r.gone == 0 && r.groups[g.name] != nil {
			n++
		}
	}
	return n
}
