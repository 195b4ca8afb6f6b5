package watch

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/doctor"
	"github.com/weft-fabric/weft/health"
)

type raiser func(key string, i Incident)

func (m *Machine) silent(now float64, raise raiser) {
	for _, name := range slices.Sorted(maps.Keys(m.hosts)) {
		h := m.hosts[name]
		limit := m.c.Silent
		if limit == 0 {
			limit = max(10, 3*h.every)
		}
		quiet := now - h.at
		if quiet > limit {
			raise("silent/"+name, Incident{Kind: "agent-silent", Severity: doctor.Warning, Confidence: 0.9, Subject: doctor.Subject{Hosts: []string{name}},
				Verdict:  fmt.Sprintf("host %s has said nothing for %s; its health is unknown", name, span(quiet)),
				Evidence: []Evidence{{h.at, fmt.Sprintf("last report of %s", name)}}})
		}
		if skew := math.Abs(h.skew); quiet <= limit && skew > 30 {
			raise("clock/"+name, Incident{Kind: "clock-wrong", Severity: doctor.Warning, Confidence: 0.95, Subject: doctor.Subject{Hosts: []string{name}},
				Verdict:  fmt.Sprintf("the clock of host %s is %s off", name, span(skew)),
				Evidence: []Evidence{{now, fmt.Sprintf("a report of %s said %.0f s, it arrived at %.0f s", name, h.at+h.skew, h.at)}}})
		}
	}
}

// span is a time in words.
func span(s float64) string {
	switch {
	case s < 0.001:
		return fmt.Sprintf("%.0f us", s*1e6)
	case s < 1:
		return fmt.Sprintf("%.3g ms", s*1e3)
	case s < 120:
		return fmt.Sprintf("%.3g s", s)
	case s < 2*3600:
		return fmt.Sprintf("%.0f min", s/60)
	case s < 48*3600:
		return fmt.Sprintf("%.1f h", s/3600)
	}
	return fmt.Sprintf("%.1f days", s/86400)
}

func (m *Machine) subject(j *job, ranks ...int) doctor.Subject {
	s := doctor.Subject{Ranks: ranks}
	for _, n := range ranks {
		if r := j.ranks[n]; r != nil {
			s.Hosts = append(s.Hosts, r.host)
			if r.place.NIC != "" {
				s.Devices = append(s.Devices, r.host+":"+r.place.NIC)
			}
		}
	}
	return s.Tidy()
}

// on names a rank with its host and process.
func (j *job) on(n int) string {
	r := j.ranks[n]
	if r == nil {
		return fmt.Sprintf("rank %d", n)
	}
	return fmt.Sprintf("rank %d (process %d on %s)", n, r.PID, r.host)
}

// replaced is called when another process has the place of a rank.
func (m *Machine) replaced(now float64, j *job, r *rank, by *Rank) {
	if m.c.Elastic && r.gone == 0 || r.PID == by.PID {
		return
	}
	m.raise(now, fmt.Sprintf("dead/%s/%d/%d", j.name, by.Rank, r.PID), Incident{Kind: "rank-restarted", Severity: doctor.Warning, Confidence: 0.95, Job: j.name, Subject: m.subject(j, by.Rank),
		Verdict:  fmt.Sprintf("rank %d of %s: process %d ended, process %d took its place on %s", by.Rank, j.name, r.PID, by.PID, r.host),
		Evidence: []Evidence{{r.at, fmt.Sprintf("process %d was last seen", r.PID)}, {now, fmt.Sprintf("process %d is there", by.PID)}}})
}

// processes finds ranks that died, are stopped or have no memory left.
func (m *Machine) processes(now float64, j *job, raise raiser) {
	alive, ended := 0, 0.0 // ranks that are there; when the last of the others went
	for _, r := range j.ranks {
		if r.gone == 0 {
			alive++
		} else {
			ended = max(ended, r.gone)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(j.ranks)) {
		r := j.ranks[n]
		if r.gone > 0 && alive > 0 {
			// Others must go on: ranks of a job that ends go within a moment of one another.
			since := r.gone
			if now-ended >= waitForOthers {
				raise(fmt.Sprintf("dead/%s/%d/%d", j.name, n, r.PID), Incident{Kind: "rank-dead", Severity: doctor.Critical, Confidence: 0.95, Job: j.name, Subject: m.subject(j, n),
					Verdict:  fmt.Sprintf("%s of %s has died; %d of %d ranks are left", j.on(n), j.name, alive, j.size),
					Evidence: []Evidence{{since, fmt.Sprintf("process %d is gone from %s", r.PID, r.host)}}})
			}
		}
		if r.gone > 0 {
			continue
		}
		if r.State == "T" || r.State == "t" {
			raise(fmt.Sprintf("stopped/%s/%d", j.name, n), Incident{Kind: "rank-stopped", Severity: doctor.Critical, Confidence: 0.98, Job: j.name, Subject: m.subject(j, n),
				Verdict:  fmt.Sprintf("%s of %s is stopped (state %s)", j.on(n), j.name, r.State),
				Fix:      fmt.Sprintf("kill -CONT %d on %s, and find who stopped it", r.PID, r.host),
				Evidence: []Evidence{{r.at, fmt.Sprintf("/proc/%d/stat on %s says %s", r.PID, r.host, r.State)}}})
		}
		if r.Limit > 0 && float64(r.Used) > 0.95*float64(r.Limit) {
			raise(fmt.Sprintf("memory/%s/%d", j.name, n), Incident{Kind: "memory-full", Severity: doctor.Critical, Confidence: 0.9, Job: j.name, Subject: m.subject(j, n),
				Verdict:  fmt.Sprintf("%s of %s has used %.0f%% of the memory it may use", j.on(n), j.name, 100*float64(r.Used)/float64(r.Limit)),
				Evidence: []Evidence{{r.at, fmt.Sprintf("%d of %d bytes are in use", r.Used, r.Limit)}}})
		}
	}
}

// Lateness is judged by the operations of the last windowTime seconds, and at least by window of them.
// They are cut into slices, as a step of training may have many operations of which only
// the first tells who was late.
const (
	window     = 20
	slices10   = 10
	windowTime = 1.5
	telling10  = 4 // slices that must tell of somebody
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
			bad = m.slice(j, g, equal(known[:recent], slices10), recent, latestOf, bad)
		}
		wall := (told[0][0].at - told[len(told)-1][0].at) / float64(max(1, len(told)-1))
		late := false // somebody was, in the newest batches: else the older need no look
		for _, part := range told[:min(len(told), 2)] {
			r, _ := firstOf(part, wall)
			late = late || r >= 0
		}
		if n := min(len(told), slices10); late && n >= 2*batches && len(known) >= window { // long steps, of which the last window has too few
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

// later is latestOf with a number of deviations and a least lateness in seconds.
func later(part []*opSeen, deviations, least float64) (rank int, late float64) {
	sum := map[int]float64{}
	for _, o := range part {
		for r, w := range o.took {
			sum[r] += o.mid - w
		}
	}
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

// slice sums up lateness in slices of operations and judges every rank: bad are those that come
// late in most of them.
func (m *Machine) slice(j *job, g *group, parts [][]*opSeen, count int, tells teller, bad map[int]bool) map[int]bool {
	newest, oldest := parts[0][0], parts[len(parts)-1]
	ops := float64(count) / float64(len(parts))
	wall := max(g.step*ops, (newest.at-oldest[len(oldest)-1].at)/float64(len(parts))) // of a slice
	ranks := map[int]*latest{}
	all := map[int]float64{}
	telling := 0
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
		bad[r] = bad[r] || telling >= telling10 && l.share >= 0.6 && l.cost > 0.02
	}
	return bad
}

// straggles raises the incident of a rank that comes late.
func (m *Machine) straggles(now float64, j *job, g *group, r int, l *latest, raise raiser) {
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
	raise(fmt.Sprintf("late/%s/%d", j.name, r), Incident{Kind: "straggler", Severity: sev, Confidence: min(0.95, 0.6+0.35*l.share), Job: j.name, Subject: m.subject(j, r),
		Verdict:  fmt.Sprintf("%s of %s is late: the others wait for it %.0f%% of the time", j.on(r), j.name, 100*min(1, l.cost)),
		Evidence: []Evidence{{now, fmt.Sprintf("%s: the latest rank in %d of %d parts of the last %d operations that tell of somebody, the last one in %d of them, then %s after the median", g.name, l.top, l.telling, l.n, l.last, span(l.late))}}})
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

type pair struct{ from, to int }

// flow is what one rank sent to another.
type flow struct {
	at     []float64
	acked  []float64
	busy   []float64
	lost   []float64
	queued float64
	conns  int
}

// flowWindow is over which time a link is judged, in seconds.
const flowWindow = 4.0

// flows takes the connections of a rank. The other end of each is found by its address
// among the connections of the other ranks.
func (m *Machine) flows(now float64, j *job, r *rank, links []Link) {
	for _, l := range r.Links {
		delete(j.ends, l.Local+" "+l.Remote)
	}
	if r.Links = slices.Clone(links); len(r.Links) > 4096 {
		r.Links = r.Links[:4096]
	}
	for _, l := range r.Links {
		j.ends[l.Local+" "+l.Remote] = r.Rank.Rank
	}
	type sum struct {
		acked, busy, lost, queued float64
		n                         int
	}
	to := map[int]*sum{}
	for _, l := range r.Links {
		peer, ok := j.ends[l.Remote+" "+l.Local]
		if !ok || peer == r.Rank.Rank {
			continue
		}
		s := to[peer]
		if s == nil {
			s = &sum{}
			to[peer] = s
		}
		s.acked, s.busy, s.lost, s.queued, s.n = s.acked+l.Acked, s.busy+l.Busy, s.lost+l.Lost, s.queued+l.Queued, s.n+1
	}
	for peer, s := range to {
		k := pair{r.Rank.Rank, peer}
		f := j.links[k]
		if f == nil || f.conns != s.n || len(f.acked) > 0 && s.acked < f.acked[len(f.acked)-1] {
			f = &flow{conns: s.n}
			j.links[k] = f
		}
		f.at, f.acked, f.busy, f.lost, f.queued = append(f.at, now), append(f.acked, s.acked), append(f.busy, s.busy), append(f.lost, s.lost), s.queued
		for len(f.at) > 2 && now-f.at[1] >= flowWindow || len(f.at) > 64 {
			f.at, f.acked, f.busy, f.lost = f.at[1:], f.acked[1:], f.busy[1:], f.lost[1:]
		}
	}
}

// delay is how long a byte took while there was something to send, over the window; ok
// is whether enough was sent to say so. cut is that nothing gets through.
func (f *flow) delay(now float64) (perByte, bytes float64, ok, cut bool) {
	n := len(f.at)
	if n < 2 || now-f.at[n-1] > 2*flowWindow {
		return 0, 0, false, false
	}
	// Nothing at all in the last two seconds, although there was something to send.
	k := n - 1
	for k > 0 && f.acked[k-1] == f.acked[n-1] {
		k--
	}
	if f.queued > 0 && f.busy[n-1]-f.busy[k] > 0.5 {
		return 0, 0, false, f.at[n-1]-f.at[k] >= 2 && f.busy[n-1]-f.busy[k] >= 1.5
	}
	bytes, busy := f.acked[n-1]-f.acked[0], f.busy[n-1]-f.busy[0]
	return busy / bytes, bytes, bytes >= 1<<18, false
}

// matrix finds slow senders, receivers and links among the flows of a job.
func (m *Machine) matrix(now float64, j *job, raise raiser) {
	cells := map[pair]float64{}
	var all []float64
	for _, k := range slices.SortedFunc(maps.Keys(j.links), byPair) {
		v, _, ok, cut := j.links[k].delay(now)
		if cut {
			f := j.links[k]
			raise(fmt.Sprintf("cut/%s/%d-%d", j.name, min(k.from, k.to), max(k.from, k.to)), Incident{Kind: "link-cut", Severity: doctor.Critical, Confidence: 0.9, Job: j.name, Subject: m.linkSubject(j, k),
				Verdict:  fmt.Sprintf("nothing gets from rank %d to rank %d of %s", k.from, k.to, j.name),
				Evidence: []Evidence{{now, fmt.Sprintf("%.0f bytes are queued, none was acknowledged for %s; %.0f segments were sent again", f.queued, span(f.at[len(f.at)-1]-f.at[0]), f.lost[len(f.lost)-1]-f.lost[0])}}})
		}
		if ok {
			cells[k] = v
			all = append(all, v)
		}
	}
	if len(cells) < 3 {
		return
	}
	mid := median(all)
	row, col := map[int][2]int{}, map[int][2]int{}
	slow := map[pair]bool{}
	for k, v := range cells {
		bad := v > 3*mid && v > 2e-9
		slow[k] = bad
		a, b := row[k.from], col[k.to]
		a[1], b[1] = a[1]+1, b[1]+1
		if bad {
			a[0], b[0] = a[0]+1, b[0]+1
		}
		row[k.from], col[k.to] = a, b
	}
	most := func(x [2]int) bool { return x[1] >= 2 && float64(x[0]) >= 0.8*float64(x[1]) }
	for _, k := range slices.SortedFunc(maps.Keys(cells), byPair) {
		v := cells[k]
		key := fmt.Sprintf("link/%s/%d-%d", j.name, k.from, k.to)
		if !m.held(key, slow[k]) {
			continue
		}
		ev := []Evidence{{now, fmt.Sprintf("rank %d to rank %d: %.3g MB/s while there was something to send; the median of %d pairs is %.3g MB/s", k.from, k.to, 1e-6/v, len(all), 1e-6/mid)}}
		i := Incident{Kind: "slow-link", Severity: doctor.Critical, Confidence: 0.85, Job: j.name, Subject: m.linkSubject(j, k), Evidence: ev,
			Verdict: fmt.Sprintf("the link from rank %d to rank %d of %s is slow: %.3g MB/s, others reach %.3g MB/s", k.from, k.to, j.name, 1e-6/v, 1e-6/mid)}
		switch {
		case most(row[k.from]) && !most(col[k.to]):
			key = fmt.Sprintf("sender/%s/%d", j.name, k.from)
			i.Kind, i.Subject, i.Verdict = "slow-sender", m.subject(j, k.from), fmt.Sprintf("everything that %s of %s sends is slow: %.3g MB/s, others reach %.3g MB/s", j.on(k.from), j.name, 1e-6/v, 1e-6/mid)
		case most(col[k.to]) && !most(row[k.from]):
			key = fmt.Sprintf("receiver/%s/%d", j.name, k.to)
			i.Kind, i.Subject, i.Verdict = "slow-receiver", m.subject(j, k.to), fmt.Sprintf("everything that %s of %s receives is slow: %.3g MB/s, others reach %.3g MB/s", j.on(k.to), j.name, 1e-6/v, 1e-6/mid)
		}
		if v < 10*mid {
			i.Severity = doctor.Warning
		}
		raise(key, i)
	}
}

func (m *Machine) linkSubject(j *job, k pair) doctor.Subject {
	s := m.subject(j, k.from, k.to)
	s.Links = []string{fmt.Sprintf("rank %d - rank %d", k.from, k.to)}
	return s
}

func byPair(a, b pair) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to)) }

// hang judges a job in which ranks wait and no operation ends, by doctor's wait-graph.
func (m *Machine) hang(now float64, j *job, raise raiser) {
	// Records of one failure come within a moment of one another.
	if list := m.dumps[j.name]; len(list) > 0 && now-m.dumped[j.name] >= 1 {
		j.members(list)
		for _, h := range doctor.Hangs(&doctor.Case{Dumps: list}) {
			// A rank without a record that still counts as running may have died a moment ago: the
			// records of the others can come before the report that its process is gone.
			running := slices.ContainsFunc(h.Culprits, func(c int) bool { return j.ranks[c] != nil && j.ranks[c].gone == 0 })
			if h.Class == "missing" && running && now-m.dumped[j.name] < waitForOthers {
				continue
			}
			m.hung(now, j, h, raise, "flight records of the ranks")
		}
	}
	quiet := now - j.moved
	if quiet < m.c.Hang {
		return
	}
	waits := false
	for _, r := range j.ranks {
		for _, g := range r.groups {
			waits = waits || g.In && r.gone == 0 && now-r.moved >= m.c.Hang
		}
	}
	if !waits {
		return
	}
	for _, h := range doctor.Hangs(&doctor.Case{Dumps: j.asDumps()}) {
		m.hung(now, j, h, raise, fmt.Sprintf("no operation of the job has ended for %s", span(quiet)))
	}
}

// members says who belongs to groups of flight records that do not say so.
func (j *job) members(list []doctor.Dump) {
	for i := range list {
		for k := range list[i].Groups {
			g := &list[i].Groups[k]
			if len(g.Ranks) > 0 {
				continue
			}
			for _, r := range j.ranks {
				if known := r.groups[g.Name]; known != nil && len(known.Ranks) > 0 {
					g.Ranks = slices.Clone(known.Ranks)
				}
			}
		}
	}
}

// asDumps is what the ranks of a job say of their operations, as flight records.
func (j *job) asDumps() []doctor.Dump {
	var list []doctor.Dump
	for _, n := range slices.Sorted(maps.Keys(j.ranks)) {
		r := j.ranks[n]
		if r.gone > 0 {
			continue
		}
		d := doctor.Dump{File: j.name, Rank: n, NameRank: n, Version: "live", Idle: true}
		record := int64(0)
		for _, name := range slices.Sorted(maps.Keys(r.groups)) {
			g := r.groups[name]
			members := slices.Clone(g.Ranks)
			if len(members) == 0 {
				for k := range j.size {
					members = append(members, k)
				}
			}
			dg := doctor.Group{ID: -1, Name: name, Ranks: members, LastEnqueued: g.Done, LastCompleted: g.Done, HasStatus: true}
			if g.Done > 0 {
				d.Entries = append(d.Entries, doctor.Op{Record: record, Group: name, GroupID: -1, Seq: g.Done, Name: cmp.Or(g.Op, "operation"), From: -1, To: -1, State: "completed", Done: true})
				record++
			}
			if g.In {
				d.Idle = false
				dg.LastEnqueued = g.Done + 1
				d.Entries = append(d.Entries, doctor.Op{Record: record, Group: name, GroupID: -1, Seq: g.Done + 1, Name: "operation", From: -1, To: -1, State: "started"})
				record++
			}
			d.Groups = append(d.Groups, dg)
		}
		if len(d.Groups) > 0 {
			list = append(list, d)
		}
	}
	return list
}

func (m *Machine) hung(now float64, j *job, h doctor.Hang, raise raiser, why string) {
	// A rank that is stopped or dead explains it: the hang is its consequence.
	for _, c := range h.Culprits {
		for _, i := range m.open {
			if i.Job == j.name && (i.Kind == "rank-stopped" || i.Kind == "rank-dead") && slices.Contains(i.Subject.Ranks, c) {
				f := fmt.Sprintf("the job hangs: %s for it in %s", waiting(h.Waiting), h.Operation)
				if !slices.Contains(i.Follows, f) && len(i.Follows) < 4 {
					i.Follows = append(i.Follows, f)
				}
				return
			}
		}
	}
	kind := "hang"
	switch {
	case h.Class == "mismatch":
		kind = "mismatch"
	case h.Class == "missing" && slices.ContainsFunc(h.Culprits, func(c int) bool { return j.ranks[c] != nil && j.ranks[c].gone > 0 }):
		// Its peers failed because it was gone, and told so before they ended.
		for _, c := range h.Culprits {
			if r := j.ranks[c]; r != nil && r.gone > 0 {
				raise(fmt.Sprintf("dead/%s/%d/%d", j.name, c, r.PID), Incident{Kind: "rank-dead", Severity: doctor.Critical, Confidence: h.Confidence, Job: j.name, Subject: m.subject(j, c),
					Verdict: fmt.Sprintf("%s of %s died first; %s for it in %s", j.on(c), j.name, waiting(h.Waiting), h.Operation), Evidence: []Evidence{{now, "by " + why}}})
			}
		}
		return
	}
	who := "nobody is behind"
	switch {
	case len(h.Culprits) == 1:
		who = j.on(h.Culprits[0]) + " holds it up"
	case len(h.Culprits) > 1:
		who = fmt.Sprintf("ranks %v hold it up", h.Culprits)
	}
	i := Incident{Kind: kind, Severity: doctor.Critical, Confidence: h.Confidence, Job: j.name, Subject: m.subject(j, h.Culprits...), Cause: doctor.HangClasses[h.Class],
		Verdict: fmt.Sprintf("%s hangs in %s of %s: %s", j.name, h.Operation, h.Group, who), Evidence: []Evidence{{now, why}}}
	if kind == "mismatch" {
		i.Verdict = fmt.Sprintf("%s: at %s of %s, ranks %v called another operation than the rest", j.name, h.Operation, h.Group, h.Culprits)
	}
	for _, w := range h.Why {
		if len(i.Evidence) < evidenceKept {
			i.Evidence = append(i.Evidence, Evidence{now, w})
		}
	}
	raise(fmt.Sprintf("%s/%s", kind, j.name), i)
}

func waiting(ranks []int) string {
	if len(ranks) == 1 {
		return fmt.Sprintf("rank %d waits", ranks[0])
	}
	return fmt.Sprintf("%d ranks wait", len(ranks))
}

// checks makes incidents of the checks of agents. Three and more bad ports of one switch
// are one incident, of the switch.
func (m *Machine) checks(now float64, raise raiser) {
	byLeaf := map[string][]string{}
	type bad struct {
		h *host
		s health.Status
	}
	var list []bad
	for _, name := range slices.Sorted(maps.Keys(m.hosts)) {
		h := m.hosts[name]
		for _, s := range h.states {
			list = append(list, bad{h, s})
			if leaf := h.leaf(s.Device); leaf != "" && s.State == health.Bad && !slices.Contains(byLeaf[leaf], h.name+":"+s.Device) {
				byLeaf[leaf] = append(byLeaf[leaf], h.name+":"+s.Device)
			}
		}
	}
	for _, leaf := range slices.Sorted(maps.Keys(byLeaf)) {
		if ports := byLeaf[leaf]; len(ports) >= 3 {
			raise("leaf/"+leaf, Incident{Kind: "leaf", Severity: doctor.Critical, Confidence: 0.8, Subject: doctor.Subject{Devices: append([]string{leaf}, ports...)}, Where: []string{leaf},
				Verdict: fmt.Sprintf("switch %s: %d ports of hosts on it are bad at once", leaf, len(ports)), Evidence: []Evidence{{now, strings.Join(ports[:min(len(ports), 8)], ", ")}}})
		}
	}
	for _, b := range list {
		if len(byLeaf[b.h.leaf(b.s.Device)]) >= 3 {
			continue
		}
		sev := doctor.Warning
		if b.s.State == health.Bad {
			sev = doctor.Critical
		}
		device := b.s.Device
		if b.s.Port != "" {
			device += " port " + b.s.Port
		}
		raise(fmt.Sprintf("check/%s/%s/%s/%s", b.h.name, b.s.Device, b.s.Port, b.s.Metric), Incident{Kind: "check", Severity: sev, Confidence: 0.9,
			Subject: doctor.Subject{Hosts: []string{b.h.name}, Devices: []string{b.h.name + ":" + b.s.Device}}, Cause: b.s.Why, Fix: b.s.Fix,
			Verdict: fmt.Sprintf("%s %s: %s (%s)", b.h.name, device, b.s.Why, b.s.Metric), Evidence: []Evidence{{now, fmt.Sprintf("%s is %s, value %g", b.s.Metric, b.s.State, b.s.Value)}}})
	}
}

func (h *host) leaf(device string) string {
	for _, p := range h.ports {
		if p.Device == device {
			return p.place.Leaf
		}
	}
	return ""
}

// standing are verdicts of the slow part of Tick, which hold until the next one.
type standing struct {
	key string
	i   Incident
}

func (m *Machine) sustained(now float64, raise raiser) {
	for _, s := range m.stand {
		raise(s.key, s.i)
	}
}

// roles compares ports of one role: the same rail, or the same device name where rails
// are not known.
func (m *Machine) roles(now float64) {
	m.stand = m.stand[:0]
	role := map[string][]*port{}
	of := map[*port]string{}
	jobs := map[string]string{} // which job a host runs
	for _, n := range slices.Sorted(maps.Keys(m.jobs)) {
		for _, r := range m.jobs[n].ranks {
			if r.gone == 0 {
				jobs[r.host] = n
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.hosts)) {
		h := m.hosts[name]
		for _, p := range h.ports {
			if !p.Active || now-p.at > 60 {
				continue
			}
			k := p.Device
			if p.place.Rail >= 0 {
				k = fmt.Sprintf("rail %d", p.place.Rail)
			}
			role[k] = append(role[k], p)
			of[p] = name
		}
	}
	add := func(kind, key string, p *port, sev doctor.Severity, sure float64, verdict, text string) {
		name := of[p]
		key = kind + "/" + key
		if m.held(key, true) {
			m.stand = append(m.stand, standing{key, Incident{Kind: kind, Severity: sev, Confidence: sure, Subject: doctor.Subject{Hosts: []string{name}, Devices: []string{name + ":" + p.Device}}, Verdict: verdict, Evidence: []Evidence{{now, text}}}})
		}
	}
	for _, k := range slices.Sorted(maps.Keys(role)) {
		list := role[k]
		if len(list) < 3 {
			continue
		}
		var rate, wait []float64
		tx := map[string][]float64{}
		for _, p := range list {
			rate, wait = append(rate, p.Gbps), append(wait, p.waitRate)
			if j := jobs[of[p]]; j != "" {
				tx[j] = append(tx[j], p.txRate)
			}
		}
		midRate, midWait := median(rate), median(wait)
		midTx := map[string]float64{}
		for j, l := range tx {
			if len(l) >= 3 {
				midTx[j] = median(l)
			}
		}
		for _, p := range list {
			name := of[p]
			job := jobs[name]
			idle := midTx[job] > 0.02*p.Gbps/8*1e9 && p.txRate < 0.5*midTx[job]
			if !(p.Gbps > 0 && p.Gbps < 0.99*midRate) && !idle && !(p.waitRate > 10*midWait && p.waitRate > 1e6) && len(m.seen) == 0 {
				continue
			}
			key := name + "/" + p.Device + "/" + p.Port.Port
			if p.Gbps > 0 && p.Gbps < 0.99*midRate {
				add("port-slow", key, p, doctor.Critical, 0.95, fmt.Sprintf("%s %s runs at %g Gb/s, ports of %s at %g Gb/s", name, p.Device, p.Gbps, k, midRate), fmt.Sprintf("%d ports of %s compared", len(list), k))
			} else {
				delete(m.seen, "port-slow/"+key)
			}
			if idle {
				add("port-idle", key, p, doctor.Warning, 0.7, fmt.Sprintf("%s %s sends %.3g GB/s for %s, ports of %s send %.3g GB/s", name, p.Device, p.txRate/1e9, job, k, midTx[job]/1e9), fmt.Sprintf("%d ports of %s compared", len(tx[job]), k))
			} else {
				delete(m.seen, "port-idle/"+key)
			}
			if p.waitRate > 10*midWait && p.waitRate > 1e6 && p.txRate > 0 {
				add("port-congested", key, p, doctor.Warning, 0.6, fmt.Sprintf("%s %s waits for credits ten times as long as ports of %s", name, p.Device, k), fmt.Sprintf("port_xmit_wait grows by %.3g a second, the median is %.3g", p.waitRate, midWait))
			} else {
				delete(m.seen, "port-congested/"+key)
			}
		}
	}
}

// timing is what operations of one kind and size took, in windows of ten seconds.
type timing struct {
	op      string
	bytes   int64
	ranks   int
	at      float64
	took    []float64 // of this window
	count   int64
	windows []float64 // medians of the last windows
	mean    float64   // median of the last window
	ratio   float64   // to the baseline
	base    float64
	predict float64
}

const windowsKept = 360 // an hour

// calibration is how measured and predicted times differ on this cluster.
type calibration struct {
	ratios []float64
}

// measure takes what an operation took without waiting for others: the time of the rank
// that came last.
func (g *group) measure(now float64, o *opSeen, there int) {
	k := fmt.Sprintf("%s/%d", o.name, o.bytes)
	t := g.per[k]
	if t == nil {
		if len(g.per) >= 256 {
			return
		}
		t = &timing{op: o.name, bytes: o.bytes, at: now}
		g.per[k] = t
	}
	least := math.Inf(1)
	for _, w := range o.took {
		least = min(least, w)
	}
	t.ranks = max(there, len(o.took))
	t.count++
	if len(t.took) < 4096 {
		t.took = append(t.took, least)
	}
}

// learned is how many windows a baseline needs.
const learned = 12

// collectives holds what operations take against what is predicted, corrected by how this
// cluster differs from the prediction.
func (m *Machine) collectives(now float64) {
	for _, name := range slices.Sorted(maps.Keys(m.jobs)) {
		j := m.jobs[name]
		for _, gn := range slices.Sorted(maps.Keys(j.group)) {
			g := j.group[gn]
			for _, k := range slices.Sorted(maps.Keys(g.per)) {
				t := g.per[k]
				if len(t.took) < 5 {
					continue
				}
				t.mean = median(t.took)
				t.took = t.took[:0]
				m.compare(now, j, g, t)
			}
		}
	}
}

func (m *Machine) compare(now float64, j *job, g *group, t *timing) {
	key := fmt.Sprintf("%s/%d/%d", t.op, t.bytes, t.ranks)
	if _, ok := m.predict[key]; !ok && m.c.Predict != nil {
		if x, known := m.c.Predict(t.op, t.bytes, t.ranks); known {
			m.predict[key] = x
		}
	}
	t.predict = m.predict[key]
	t.base = 0
	if len(t.windows) >= learned {
		t.base = median(t.windows)
	}
	if t.predict > 0 {
		// Sizes differ in what limits them, so each power of two has its own.
		class := fmt.Sprintf("%s/%d", t.op, bits.Len64(uint64(t.bytes)))
		c := m.calib[class]
		if c == nil {
			c = &calibration{}
			m.calib[class] = c
		}
		if len(c.ratios) >= learned {
			t.base = t.predict * median(c.ratios)
		}
		if c.ratios = append(c.ratios, t.mean/t.predict); len(c.ratios) > windowsKept {
			c.ratios = c.ratios[1:]
		}
	}
	if t.windows = append(t.windows, t.mean); len(t.windows) > windowsKept {
		t.windows = t.windows[1:]
	}
	t.ratio = 0
	if t.base > 0 {
		t.ratio = t.mean / t.base
	}
	at := fmt.Sprintf("collective/%s/%s/%s/%d", j.name, g.name, t.op, t.bytes)
	// Small operations are ruled by latency, which says little of links.
	if !m.held(at, t.ratio > 1.25*1.25 && t.bytes >= 1<<20) {
		return
	}
	sev, against := doctor.Warning, "its own median"
	if t.ratio > 2 {
		sev = doctor.Critical
	}
	if t.predict > 0 {
		against = "the prediction, corrected by what this cluster reaches"
	}
	m.stand = append(m.stand, standing{at, Incident{Kind: "slow-collective", Severity: sev, Confidence: 0.7, Job: j.name,
		Verdict:  fmt.Sprintf("%s of %s in %s takes %s, %.1f times the baseline of %s", t.op, size(t.bytes), j.name, span(t.mean), t.ratio, span(t.base)),
		Evidence: []Evidence{{now, "the baseline is " + against}}}})
}

func size(b int64) string {
	switch {
	case b >= 1<<30:
		return fmt.Sprintf("%.4g GiB", float64(b)/(1<<30))
	case b >= 1<<20:
		return fmt.Sprintf("%.4g MiB", float64(b)/(1<<20))
	case b >= 1<<10:
		return fmt.Sprintf("%.4g KiB", float64(b)/(1<<10))
	}
	return fmt.Sprintf("%d B", b)
}
