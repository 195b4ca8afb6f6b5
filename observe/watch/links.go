package watch

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/weft-fabric/weft/observe/doctor"
)

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

// leastSending is how long a link must have had something to send, in seconds, to be called slow: the kernel counts that
// time in ticks of up to 10 ms.
const leastSending = 0.05

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
	for peer, s := range j.toPeers(r) {
		k := pair{r.Rank.Rank, peer}
		f := j.links[k]
		if f == nil || f.conns != s.n || len(f.acked) > 0 && s.acked < f.acked[len(f.acked)-1] {
			f = &flow{conns: s.n}
			j.links[k] = f
		}
		f.add(now, s)
	}
}

// linkSum is what the connections of one rank to another have in sum.
type linkSum struct {
	acked, busy, lost, queued float64
	n                         int
}

// toPeers sums up a rank's connections by the rank at the other end, where that is known.
func (j *job) toPeers(r *rank) map[int]*linkSum {
	to := map[int]*linkSum{}
	for _, l := range r.Links {
		peer, ok := j.ends[l.Remote+" "+l.Local]
		if !ok || peer == r.Rank.Rank {
			continue
		}
		s := to[peer]
		if s == nil {
			s = &linkSum{}
			to[peer] = s
		}
		s.acked, s.busy, s.lost, s.queued, s.n = s.acked+l.Acked, s.busy+l.Busy, s.lost+l.Lost, s.queued+l.Queued, s.n+1
	}
	return to
}

// add takes a reading and drops those that have left the window.
func (f *flow) add(now float64, s *linkSum) {
	f.at, f.acked, f.busy, f.lost, f.queued = append(f.at, now), append(f.acked, s.acked), append(f.busy, s.busy),
		append(f.lost, s.lost), s.queued
	for len(f.at) > 2 && now-f.at[1] >= flowWindow || len(f.at) > 64 {
		f.at, f.acked, f.busy, f.lost = f.at[1:], f.acked[1:], f.busy[1:], f.lost[1:]
	}
}

// linkRate is what links like one of a job reached when its ranks met, in bytes/s; 0 unknown.
func (j *job) linkRate(k pair) float64 {
	from, to := j.ranks[k.from], j.ranks[k.to]
	switch {
	case from == nil || to == nil:
		return 0
	case from.host == to.host:
		return from.Near
	}
	return from.Far
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
	cells, sending := map[pair]float64{}, map[pair]float64{} // seconds per byte; seconds in all
	var all []float64
	for _, k := range slices.SortedFunc(maps.Keys(j.links), byPair) {
		v, bytes, ok, cut := j.links[k].delay(now)
		if cut {
			f := j.links[k]
			raise(fmt.Sprintf("cut/%s/%d-%d", j.name, min(k.from, k.to), max(k.from, k.to)),
				Incident{Kind: "link-cut", Severity: doctor.Critical, Confidence: 0.9, Job: j.name, Subject: m.linkSubject(j, k),
					Verdict: fmt.Sprintf("nothing gets from rank %d to rank %d of %s", k.from, k.to, j.name),
					Evidence: []Evidence{{now, fmt.Sprintf("%.0f bytes are queued, none was acknowledged for %s; %.0f segments were sent again",
						f.queued, span(f.at[len(f.at)-1]-f.at[0]), f.lost[len(f.lost)-1]-f.lost[0])}}})
		}
		if ok {
			cells[k], sending[k] = v, v*bytes
			all = append(all, v)
		}
	}
	mid := median(all)
	if len(cells) < 3 || mid == 0 {
		return
	}
	row, col := map[int][2]int{}, map[int][2]int{}
	slow := map[pair]bool{}
	for k, v := range cells {
		bad := m.slow(j, k, v, mid) && v > 2e-9 && sending[k] > leastSending
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
		if !m.held(key, slow[k]) || m.starvedLink(j, k) && m.seen[key] < patience*settle {
			continue
		}
		ev := []Evidence{{now, fmt.Sprintf("rank %d to rank %d: %.3g MB/s while there was something to send; the median of %d pairs is %.3g MB/s",
			k.from, k.to, 1e-6/v, len(all), 1e-6/mid)}}
		i := Incident{Kind: "slow-link", Severity: doctor.Critical, Confidence: 0.85, Job: j.name, Subject: m.linkSubject(j, k), Evidence: ev,
			Verdict: fmt.Sprintf("the link from rank %d to rank %d of %s is slow: %.3g MB/s, others reach %.3g MB/s",
				k.from, k.to, j.name, 1e-6/v, 1e-6/mid)}
		switch {
		case most(row[k.from]) && !most(col[k.to]):
			key = fmt.Sprintf("sender/%s/%d", j.name, k.from)
			i.Kind, i.Subject, i.Verdict = "slow-sender", m.subject(j, k.from),
				fmt.Sprintf("everything that %s of %s sends is slow: %.3g MB/s, others reach %.3g MB/s", j.on(k.from), j.name, 1e-6/v, 1e-6/mid)
		case most(col[k.to]) && !most(row[k.from]):
			key = fmt.Sprintf("receiver/%s/%d", j.name, k.to)
			i.Kind, i.Subject, i.Verdict = "slow-receiver", m.subject(j, k.to),
				fmt.Sprintf("everything that %s of %s receives is slow: %.3g MB/s, others reach %.3g MB/s", j.on(k.to), j.name, 1e-6/v, 1e-6/mid)
		}
		if v < 10*mid {
			i.Severity = doctor.Warning
		}
		raise(key, i)
	}
}

// slow says that a byte takes many times the median. On hosts whose tasks wait for processors it also does now and then where
// nothing is wrong with the link: there it must be slow at its best, or very slow.
func (m *Machine) slow(j *job, k pair, perByte, mid float64) bool {
	if m.starvedLink(j, k) {
		return perByte > 40*mid || j.links[k].best() > 5*mid
	}
	return perByte > 3*mid
}

// best is how long a byte took between two reports when it took least; 0 if there are too few in which enough was sent.
func (f *flow) best() float64 {
	least, n := math.Inf(1), 0
	for i := range f.at[1:] {
		if bytes := f.acked[i+1] - f.acked[i]; bytes >= 1<<16 {
			least = min(least, (f.busy[i+1]-f.busy[i])/bytes)
			n++
		}
	}
	if n < settle {
		return 0
	}
	return least
}

// starvedLink says that an end of a link is on a host whose tasks wait for processors.
func (m *Machine) starvedLink(j *job, k pair) bool {
	return slices.ContainsFunc([]int{k.from, k.to}, func(n int) bool { return j.ranks[n] != nil && m.hosts[j.ranks[n].host].starved() })
}

func (m *Machine) linkSubject(j *job, k pair) doctor.Subject {
	s := m.subject(j, k.from, k.to)
	s.Links = []string{fmt.Sprintf("rank %d - rank %d", k.from, k.to)}
	return s
}

func byPair(a, b pair) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to)) }
