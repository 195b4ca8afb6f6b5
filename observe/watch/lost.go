package watch

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/weft-fabric/weft/observe/doctor"
)

// limit is how long the host may say nothing, in seconds.
func (m *Machine) limit(h *host) float64 {
	limit := m.c.Silent
	if limit == 0 {
		limit = max(10, 3*h.every)
	}
	if h.starved() {
		limit *= patience
	}
	return limit
}

// overdue says that a report of the host should have come, though it does not count as silent yet.
func (m *Machine) overdue(now float64, h *host) bool {
	return h != nil && now-h.at > 2*h.every+1 && now-h.at <= m.limit(h)
}

// ranksByHost leaves out ranks that ended, unless nothing was heard of their host for too long: it may have taken them along.
func (m *Machine) ranksByHost(now float64, j *job) map[string][]int {
	hosts := map[string][]int{}
	for n, r := range j.ranks {
		if h := m.hosts[r.host]; r.gone == 0 || h != nil && now-h.at > m.limit(h) {
			hosts[r.host] = append(hosts[r.host], n)
		}
	}
	return hosts
}

// nodeLost judges a host that went silent and with which the job stopped: nothing ended since, ranks on other hosts wait
// or failed later. A host that is silent while its job goes on has lost its agent alone.
func (m *Machine) nodeLost(now float64, j *job, raise raiser) bool {
	hosts := m.ranksByHost(now, j)
	was := j.lost
	j.lost = ""
	if name := j.failedHost; name != "" {
		j.lost = name
		raise("lost/"+j.name+"/"+name, Incident{Kind: "node-lost", Severity: doctor.Critical, Confidence: 0.95, Job: j.name,
			Subject:  doctor.Subject{Hosts: []string{name}, Ranks: slices.Sorted(slices.Values(hosts[name]))},
			Verdict:  fmt.Sprintf("host %s of %s failed, as its scheduler says", name, j.name),
			Evidence: []Evidence{{now, "the scheduler ended the job for a node that failed"}}})
		return true
	}
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		h := m.hosts[name]
		if h == nil || now-h.at <= m.limit(h) || len(hosts) < 2 && was != name && !j.failedAfter(h.at) || !j.stood(h.at, m.slack(h), name) {
			continue
		}
		j.lost = name
		ranks := slices.Sorted(slices.Values(hosts[name]))
		raise("lost/"+j.name+"/"+name, Incident{Kind: "node-lost", Severity: doctor.Critical, Confidence: 0.85, Job: j.name,
			Subject: m.subject(j, ranks...),
			Verdict: fmt.Sprintf("host %s is lost, with ranks %v of %s: nothing was heard of it for %s, and the job stands still since",
				name, ranks, j.name, span(now-h.at)),
			Follows:  j.after(h.at, name),
			Evidence: []Evidence{{h.at, fmt.Sprintf("last report of %s", name)}, {j.moved, fmt.Sprintf("the last operation of %s ended", j.name)}}})
		return true
	}
	return false
}

// undecided says that ranks gave up while a report of another host of their job is overdue: whether that host is lost, and is
// why they did, is not known yet.
func (m *Machine) undecided(now float64, j *job) bool {
	if j.cause != nil {
		return false
	}
	for _, r := range j.ranks {
		h := m.hosts[r.host]
		if m.overdue(now, h) &&
			slices.ContainsFunc(j.deaths, func(d death) bool { return d.failed() && d.Host != r.host && d.seen > h.at+2*h.every+1 }) {
			return true
		}
	}
	return false
}

// lostWith says whether a job stopped with a host.
func (m *Machine) lostWith(host string) bool {
	for _, j := range m.jobs {
		if j.lost == host {
			return true
		}
	}
	return false
}

// failedAfter says whether a rank failed after a time.
func (j *job) failedAfter(at float64) bool {
	return slices.ContainsFunc(j.deaths, func(d death) bool { return d.failed() && d.seen > at })
}

// slack is how long after the last report of a host operations may be told that ended before it: starved agents tell late.
func (m *Machine) slack(h *host) float64 {
	if h.starved() {
		return patience * waitForOthers
	}
	return waitForOthers
}

// stood says whether the job stopped at a time: no operation ended later, and somebody on another host waits or failed.
func (j *job) stood(at, slack float64, host string) bool {
	moved := j.moved
	if slices.ContainsFunc(j.deaths, func(d death) bool { return d.failed() && math.Abs(d.seen-j.moved) < leaving }) {
		moved = j.still // an operation also ends when its rank gives it up
	}
	if moved > at+slack {
		return false
	}
	for _, r := range j.ranks {
		for _, g := range r.groups {
			if r.host != host && r.gone == 0 && g.In {
				return true
			}
		}
	}
	return j.failedAfter(at)
}

// after lists what failed on other hosts after a time.
func (j *job) after(at float64, host string) (list []string) {
	for i := range j.deaths {
		if d := &j.deaths[i]; d.failed() && d.seen > at && d.Host != host && len(list) < followers {
			list = append(list, fmt.Sprintf("rank %d %s", d.Rank, d.how()))
		}
	}
	return list
}
