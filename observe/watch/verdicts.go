package watch

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/internal/health"
)

type raiser func(key string, i Incident)

func (m *Machine) silent(now float64, raise raiser) {
	for _, name := range slices.Sorted(maps.Keys(m.hosts)) {
		h := m.hosts[name]
		limit, quiet := m.limit(h), now-h.at
		if quiet > max(forgotten, limit) {
			m.change(Change{At: now, Host: name, What: "the host is not watched any more: no report for " + span(quiet)})
			delete(m.hosts, name)
			continue
		}
		if quiet > limit && !m.lostWith(name) {
			raise("silent/"+name, Incident{Kind: "agent-silent", Severity: doctor.Warning, Confidence: 0.9,
				Subject:  doctor.Subject{Hosts: []string{name}},
				Verdict:  fmt.Sprintf("host %s has said nothing for %s; its health is unknown", name, span(quiet)),
				Evidence: []Evidence{{h.at, fmt.Sprintf("last report of %s", name)}}})
		}
		if skew := math.Abs(h.skew); quiet <= limit && skew > 30 {
			raise("clock/"+name, Incident{Kind: "clock-wrong", Severity: doctor.Warning, Confidence: 0.95,
				Subject:  doctor.Subject{Hosts: []string{name}},
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

// restart is a process that took the place of another one.
type restart struct {
	rank, was, is int // processes
	host, how     string
	seen, at      float64 // when the old one was last seen; when the new one came
}

// replaced is called when another process has the place of a rank.
func (m *Machine) replaced(now float64, j *job, r *rank, by *Rank) {
	if m.c.Elastic && r.gone == 0 || r.PID == by.PID {
		return
	}
	if m.c.Elastic {
		j.reborn(now, Launch{Rank: by.Rank, PID: by.PID, At: math.Inf(1)})
	}
	j.restart(restart{rank: by.Rank, was: r.PID, is: by.PID, host: r.host, seen: r.at, at: now})
}

// restart remembers one. A launcher and the list of processes both tell of it.
func (j *job) restart(x restart) {
	for i := range j.again {
		if a := &j.again[i]; a.rank == x.rank && a.was == x.was {
			a.how = cmp.Or(a.how, x.how)
			return
		}
	}
	j.again = append(j.again, x)
}

// restarted tells of processes that took the place of others, once no more come. Half of a job and more are one incident.
func (m *Machine) restarted(now float64, j *job, raise raiser) {
	if len(j.again) == 0 || now-j.again[len(j.again)-1].at < waitForOthers {
		return
	}
	list := j.again
	j.again = nil
	if len(list) > 1 && 2*len(list) >= len(j.ranks) {
		var ranks []int
		seen := 0.0
		for _, x := range list {
			ranks, seen = append(ranks, x.rank), max(seen, x.seen)
		}
		slices.Sort(ranks)
		ranks = slices.Compact(ranks)
		raise("again/"+j.name, Incident{Kind: "job-restarted", Severity: doctor.Warning, Confidence: 0.95, Job: j.name,
			Subject: m.subject(j, ranks...),
			Verdict: fmt.Sprintf("%d of %d ranks of %s were started again", len(ranks), len(j.ranks), j.name),
			Evidence: []Evidence{{seen, "the last of the old processes was seen"},
				{list[0].at, fmt.Sprintf("process %d of rank %d on %s is the first of the new ones", list[0].is, list[0].rank, list[0].host)}}})
		return
	}
	for _, x := range list {
		raise(fmt.Sprintf("dead/%s/%d/%d", j.name, x.rank, x.was),
			Incident{Kind: "rank-restarted", Severity: doctor.Warning, Confidence: 0.95, Job: j.name, Subject: m.subject(j, x.rank),
				Verdict: fmt.Sprintf("rank %d of %s: process %d %s, process %d took its place on %s",
					x.rank, j.name, x.was, cmp.Or(x.how, "ended"), x.is, x.host),
				Evidence: []Evidence{{x.seen, fmt.Sprintf("process %d was last seen", x.was)}, {x.at, fmt.Sprintf("process %d is there", x.is)}}})
	}
}

// census counts a job's ranks.
type census struct {
	alive          int
	ended          float64 // when the last one of the others went
	oldest, newest float64 // when those that are there came
	size           int     // of the job, as they say
}

func (j *job) count() census {
	c := census{oldest: math.Inf(1)}
	for _, r := range j.ranks {
		if r.gone == 0 {
			c.alive++
			c.oldest, c.newest, c.size = min(c.oldest, r.first), max(c.newest, r.first), max(c.size, r.Size)
		} else {
			c.ended = max(c.ended, r.gone)
		}
	}
	return c
}

// othersGoOn says whether the job goes on without rank n. Ranks of a job that ends go within a moment of one another. Those of
// a job that is started again come one by one, and are no others that go on: who has not come long after them is missing.
func (c *census) othersGoOn(now float64, n int, r *rank) bool {
	if c.alive == 0 || now-c.ended < waitForOthers {
		return false
	}
	return c.oldest <= r.gone || now-c.newest >= startTime && (n < c.size || c.size == 0)
}

// processes finds ranks that died, are stopped or have no memory left.
func (m *Machine) processes(now float64, j *job, raise raiser) {
	c := j.count()
	for _, n := range slices.Sorted(maps.Keys(j.ranks)) {
		r := j.ranks[n]
		if r.gone > 0 {
			if j.guessed(now, n) && c.othersGoOn(now, n, r) {
				raise(fmt.Sprintf("dead/%s/%d/%d", j.name, n, r.PID),
					Incident{Kind: "rank-dead", Severity: doctor.Critical, Confidence: 0.95, Job: j.name, Subject: m.subject(j, n),
						Verdict:  fmt.Sprintf("%s of %s has died; %d of %d ranks are left", j.on(n), j.name, c.alive, j.size),
						Evidence: []Evidence{{r.gone, fmt.Sprintf("process %d is gone from %s", r.PID, r.host)}}})
			}
			continue
		}
		if r.State == "T" || r.State == "t" {
			raise(fmt.Sprintf("stopped/%s/%d", j.name, n),
				Incident{Kind: "rank-stopped", Severity: doctor.Critical, Confidence: 0.98, Job: j.name, Subject: m.subject(j, n),
					Verdict:  fmt.Sprintf("%s of %s is stopped (state %s)", j.on(n), j.name, r.State),
					Fix:      fmt.Sprintf("kill -CONT %d on %s, and find who stopped it", r.PID, r.host),
					Evidence: []Evidence{{r.at, fmt.Sprintf("/proc/%d/stat on %s says %s", r.PID, r.host, r.State)}}})
		}
		if r.Limit > 0 && float64(r.Used) > 0.95*float64(r.Limit) {
			raise(fmt.Sprintf("memory/%s/%d", j.name, n),
				Incident{Kind: "memory-full", Severity: doctor.Critical, Confidence: 0.9, Job: j.name, Subject: m.subject(j, n),
					Verdict:  fmt.Sprintf("%s of %s has used %.0f%% of the memory it may use", j.on(n), j.name, 100*float64(r.Used)/float64(r.Limit)),
					Evidence: []Evidence{{r.at, fmt.Sprintf("%d of %d bytes are in use", r.Used, r.Limit)}}})
		}
	}
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
			raise("leaf/"+leaf, Incident{Kind: "leaf", Severity: doctor.Critical, Confidence: 0.8,
				Subject: doctor.Subject{Devices: append([]string{leaf}, ports...)}, Where: []string{leaf},
				Verdict:  fmt.Sprintf("switch %s: %d ports of hosts on it are bad at once", leaf, len(ports)),
				Evidence: []Evidence{{now, strings.Join(ports[:min(len(ports), 8)], ", ")}}})
		}
	}
	for _, b := range list {
		if len(byLeaf[b.h.leaf(b.s.Device)]) >= 3 {
			continue
		}
		raise(fmt.Sprintf("check/%s/%s/%s/%s", b.h.name, b.s.Device, b.s.Port, b.s.Metric), b.h.check(now, b.s))
	}
}

// check is the incident of an agent's check that is not well.
func (h *host) check(now float64, s health.Status) Incident {
	sev := doctor.Warning
	if s.State == health.Bad {
		sev = doctor.Critical
	}
	device := s.Device
	if s.Port != "" {
		device += " port " + s.Port
	}
	return Incident{Kind: "check", Severity: sev, Confidence: 0.9,
		Subject: doctor.Subject{Hosts: []string{h.name}, Devices: []string{h.name + ":" + s.Device}}, Cause: s.Why, Fix: s.Fix,
		Verdict:  fmt.Sprintf("%s %s: %s (%s)", h.name, device, s.Why, s.Metric),
		Evidence: []Evidence{{now, fmt.Sprintf("%s is %s, value %g", s.Metric, s.State, s.Value)}}}
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
	role := map[string][]peer{}
	jobs := m.jobOf()
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
			role[k] = append(role[k], peer{p, name, jobs[name]})
		}
	}
	for _, k := range slices.Sorted(maps.Keys(role)) {
		if len(role[k]) >= 3 {
			m.role(now, k, role[k])
		}
	}
}

// jobOf says which job a host runs; of several the last by name.
func (m *Machine) jobOf() map[string]string {
	jobs := map[string]string{}
	for _, n := range slices.Sorted(maps.Keys(m.jobs)) {
		for _, r := range m.jobs[n].ranks {
			if r.gone == 0 {
				jobs[r.host] = n
			}
		}
	}
	return jobs
}

// peer is a port among those of its role, with its host and the job that runs there, "" if none does.
type peer struct {
	*port
	host, job string
}

// role judges the ports of one role by their medians: of rates and waits among all, of traffic among those of a job. A
// median of fewer than three says nothing.
func (m *Machine) role(now float64, k string, list []peer) {
	var rate, wait []float64
	tx := map[string][]float64{}
	for _, p := range list {
		rate, wait = append(rate, p.Gbps), append(wait, p.waitRate)
		if p.job != "" {
			tx[p.job] = append(tx[p.job], p.txRate)
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
		slow := p.Gbps > 0 && p.Gbps < 0.99*midRate
		idle := midTx[p.job] > 0.02*p.Gbps/8*1e9 && p.txRate < 0.5*midTx[p.job]
		waits := p.waitRate > 10*midWait && p.waitRate > 1e6
		if !slow && !idle && !waits && len(m.seen) == 0 {
			continue
		}
		key := p.host + "/" + p.Device + "/" + p.Port.Port
		if m.held("port-slow/"+key, slow) {
			m.stands("port-slow", key, p, Incident{Severity: doctor.Critical, Confidence: 0.95,
				Verdict:  fmt.Sprintf("%s %s runs at %g Gb/s, ports of %s at %g Gb/s", p.host, p.Device, p.Gbps, k, midRate),
				Evidence: []Evidence{{now, fmt.Sprintf("%d ports of %s compared", len(list), k)}}})
		}
		if m.held("port-idle/"+key, idle) {
			m.stands("port-idle", key, p, Incident{Severity: doctor.Warning, Confidence: 0.7,
				Verdict: fmt.Sprintf("%s %s sends %.3g GB/s for %s, ports of %s send %.3g GB/s", p.host, p.Device, p.txRate/1e9, p.job, k,
					midTx[p.job]/1e9),
				Evidence: []Evidence{{now, fmt.Sprintf("%d ports of %s compared", len(tx[p.job]), k)}}})
		}
		if m.held("port-congested/"+key, waits && p.txRate > 0) {
			m.stands("port-congested", key, p, Incident{Severity: doctor.Warning, Confidence: 0.6,
				Verdict:  fmt.Sprintf("%s %s waits for credits ten times as long as ports of %s", p.host, p.Device, k),
				Evidence: []Evidence{{now, fmt.Sprintf("port_xmit_wait grows by %.3g a second, the median is %.3g", p.waitRate, midWait)}}})
		}
	}
}

// stands keeps an incident of a port until roles looks again.
func (m *Machine) stands(kind, key string, p peer, i Incident) {
	i.Kind, i.Subject = kind, doctor.Subject{Hosts: []string{p.host}, Devices: []string{p.host + ":" + p.Device}}
	m.stand = append(m.stand, standing{kind + "/" + key, i})
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
	told    float64 // what the library that runs it predicts; 0 nothing
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
	t.told = cmp.Or(o.predicted, t.told)
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
	t.predict = cmp.Or(t.told, m.predicted(t))
	t.base = 0
	if len(t.windows) >= learned {
		t.base = median(t.windows)
	}
	if t.predict > 0 && t.told == 0 { // libraries predict for their own links, which differ from job to job
		m.calibrate(t)
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
	if m.held(at, t.ratio > 1.25*1.25 && t.bytes >= 1<<20 && !m.starvedJob(j)) {
		m.stand = append(m.stand, standing{at, j.slowCollective(now, t)})
	}
}

// predicted is the planner's time for a collective, 0 if it has none. It is asked once for each size.
func (m *Machine) predicted(t *timing) float64 {
	key := fmt.Sprintf("%s/%d/%d", t.op, t.bytes, t.ranks)
	if _, ok := m.predict[key]; !ok && m.c.Predict != nil {
		if x, known := m.c.Predict(t.op, t.bytes, t.ranks); known {
			m.predict[key] = x
		}
	}
	return m.predict[key]
}

// calibrate corrects a prediction by how much longer collectives of about this size take on this cluster. What limits them
// differs with the size, so each power of two has ratios of its own.
func (m *Machine) calibrate(t *timing) {
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

func (j *job) slowCollective(now float64, t *timing) Incident {
	sev, against := doctor.Warning, "its own median"
	if t.ratio > 2 {
		sev = doctor.Critical
	}
	if t.predict > 0 && t.told == 0 {
		against = "the prediction, corrected by what this cluster reaches"
	}
	return Incident{Kind: "slow-collective", Severity: sev, Confidence: 0.7, Job: j.name,
		Verdict: fmt.Sprintf("%s of %s in %s takes %s, %.1f times the baseline of %s",
			t.op, size(t.bytes), j.name, span(t.mean), t.ratio, span(t.base)),
		Evidence: []Evidence{{now, "the baseline is " + against}}}
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
