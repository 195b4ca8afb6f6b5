package watch

import (
	"fmt"
	"maps"
	"slices"

	"github.com/weft-fabric/weft/observe/doctor"
)

// Jobs in which ranks wait and no operation ends.

// recorded judges the flight records of a job's ranks. Those of one failure come within a moment of one another.
func (m *Machine) recorded(now float64, j *job, raise raiser) {
	list := m.dumps[j.name]
	if len(list) == 0 || now-m.dumped[j.name] < 1 {
		return
	}
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

// hang judges a job in which ranks wait and no operation ends, by doctor's wait-graph.
func (m *Machine) hang(now float64, j *job, raise raiser) {
	m.recorded(now, j, raise)
	quiet := now - j.moved
	if quiet < m.c.Hang {
		return
	}
	waits := false
	for _, r := range j.ranks {
		waits = waits || r.waits() && now-r.moved >= m.c.Hang
	}
	if !waits {
		return
	}
	for _, h := range doctor.Hangs(&doctor.Case{Dumps: j.asDumps()}) {
		if quiet < patience*m.c.Hang && m.starving(now, j, h.Culprits, raise) || m.unheard(now, j, h.Culprits) {
			continue
		}
		m.hung(now, j, h, raise, fmt.Sprintf("no operation of the job has ended for %s", span(quiet)))
	}
}

// unheard says that a report of a culprit's host is overdue: whether the rank hangs or its host is lost is not known yet.
func (m *Machine) unheard(now float64, j *job, culprits []int) bool {
	return slices.ContainsFunc(culprits, func(c int) bool { return j.ranks[c] != nil && m.overdue(now, m.hosts[j.ranks[c].host]) })
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
				d.Entries = append(d.Entries, doctor.Op{Record: record, Group: name, GroupID: -1, Seq: g.Done, Name: "operation", From: -1, To: -1,
					State: "completed", Done: true})
				record++
			}
			if g.In {
				d.Idle = false
				dg.LastEnqueued = g.Done + 1
				d.Entries = append(d.Entries, doctor.Op{Record: record, Group: name, GroupID: -1, Seq: g.Done + 1, Name: "operation", From: -1, To: -1,
					State: "started"})
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
	if j.explained() && h.Class != "mismatch" { // ranks end for a mismatch, no mismatch comes of ranks that end
		if j.cause == nil {
			return // it is decided within a moment
		}
		f := fmt.Sprintf("the job hangs: %s in %s", waiting(h.Waiting), h.Operation)
		if i := m.open[j.causeKey()]; i != nil && !slices.Contains(i.Follows, f) && len(i.Follows) < followers+4 {
			i.Follows = append(i.Follows, f)
		}
		return
	}
	if h.Class != "mismatch" && (m.follows(j, h) || j.asked(now)) {
		return
	}
	kind := "hang"
	switch {
	case h.Class == "mismatch":
		kind = "mismatch"
	case h.Class == "missing" && slices.ContainsFunc(h.Culprits, func(c int) bool { return j.ranks[c] != nil && j.ranks[c].gone > 0 }):
		// Its peers failed because it was gone, and told so before they ended.
		for _, c := range h.Culprits {
			if r := j.ranks[c]; r != nil && r.gone > 0 {
				died := "died first"
				if d := j.exit(c, r.PID); d != nil { // with 0, or it would explain all
					died = d.how()
				}
				raise(fmt.Sprintf("dead/%s/%d/%d", j.name, c, r.PID),
					Incident{Kind: "rank-dead", Severity: doctor.Critical, Confidence: h.Confidence, Job: j.name, Subject: m.subject(j, c),
						Verdict:  fmt.Sprintf("%s of %s %s; %s for it in %s", j.on(c), j.name, died, waiting(h.Waiting), h.Operation),
						Evidence: []Evidence{{now, "by " + why}}})
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
	i := Incident{Kind: kind, Severity: doctor.Critical, Confidence: h.Confidence, Job: j.name, Subject: m.subject(j, h.Culprits...),
		Cause:   doctor.HangClasses[h.Class],
		Verdict: fmt.Sprintf("%s hangs in %s of %s: %s", j.name, h.Operation, h.Group, who), Evidence: []Evidence{{now, why}}}
	if kind == "mismatch" {
		i.Follows = j.consequences()
		j.differ = h.Culprits
		i.Verdict = fmt.Sprintf("%s: at %s of %s, ranks %v called another operation than the rest", j.name, h.Operation, h.Group, h.Culprits)
	}
	for _, w := range h.Why {
		if len(i.Evidence) < evidenceKept {
			i.Evidence = append(i.Evidence, Evidence{now, w})
		}
	}
	raise(fmt.Sprintf("%s/%s", kind, j.name), i)
}

// follows says whether a hang is the consequence of a rank that is stopped or dead, and lists it there.
func (m *Machine) follows(j *job, h doctor.Hang) bool {
	for _, c := range h.Culprits {
		for _, i := range m.open {
			if i.Job == j.name && (i.Kind == "rank-stopped" || i.Kind == "rank-dead" || i.Kind == "node-lost") &&
				slices.Contains(i.Subject.Ranks, c) {
				f := fmt.Sprintf("the job hangs: %s for it in %s", waiting(h.Waiting), h.Operation)
				if !slices.Contains(i.Follows, f) && len(i.Follows) < 4 {
					i.Follows = append(i.Follows, f)
				}
				return true
			}
		}
	}
	return false
}

func waiting(ranks []int) string {
	if len(ranks) == 1 {
		return fmt.Sprintf("rank %d waits", ranks[0])
	}
	return fmt.Sprintf("%d ranks wait", len(ranks))
}
