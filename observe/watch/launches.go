package watch

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/observe/doctor"
	"golang.org/x/sys/unix"
)

// A launcher knows what an agent can only guess: when a process ended, by which signal or
// with which code, and whether it had been asked to. The first failure that nobody asked
// for is the cause; what happens to the job after it follows from it.

const (
	// settleDeaths is how long the causes of a job's end may come in after one another, in
	// seconds: peers of a killed rank can exit before the kernel tells its launcher.
	settleDeaths = 1.0
	// seenTogether is the same where an agent saw the ends itself: the kernel tells of one
	// a moment after its connections are closed.
	seenTogether = 0.25
	// clocksAgree is how far a host's clock may be off, in seconds, until its times are corrected. Below it reports take about
	// as long to arrive. Few reports may all have been slow.
	clocksAgree      = 0.5
	clocksAgreeFirst = 2.0
	// lostExit is how long after a process is gone its launcher may still say how it ended.
	lostExit  = 10.0
	followers = 8 // consequences that an incident lists
)

// death is the end of a rank's process, and when the server heard of it.
type death struct {
	Launch
	seen float64
}

func (d *death) failed() bool { return (d.Code != 0 || d.Signal != 0) && !d.Asked }

// how says what ended it: "was killed by SIGKILL", "exited with code 1: a file system is full".
func (d *death) how() string {
	if e, err := doctor.Explain(d.Why); d.Why != "" && err == nil {
		return d.status() + ": " + e.Title
	}
	return d.status()
}

// status is how without the reason.
func (d *death) status() string {
	if d.Signal == 0 {
		return fmt.Sprintf("exited with code %d", d.Code)
	}
	return "was killed by " + cmp.Or(unix.SignalName(unix.Signal(d.Signal)), fmt.Sprintf("signal %d", d.Signal))
}

// why says who sends such a signal.
func (d *death) why() (cause, fix string) {
	if e, err := doctor.Explain(d.Why); d.Why != "" && err == nil {
		return e.Cause, e.Fix
	}
	switch unix.Signal(d.Signal) {
	case unix.SIGKILL:
		return "somebody killed its process: the kernel for want of memory, a scheduler or a person; its launcher did not",
			"look at the kernel log of the host for out of memory, then at the scheduler's log"
	case unix.SIGSEGV, unix.SIGBUS, unix.SIGILL, unix.SIGFPE:
		return "its program crashed", "get a stack of it: core dump, faulthandler; look at the kernel log of the host (Xid, memory errors)"
	case unix.SIGABRT:
		return "its program gave up: a failed assertion, or a watchdog of its own", "look at its last output"
	case 0:
		return "its program ended with an error", "look at its last output"
	}
	return "a signal that its launcher did not send ended it", "find who sent it"
}

// jobNamed finds a job, or makes it.
func (m *Machine) jobNamed(now float64, name string) *job {
	j := m.jobs[name]
	if j == nil {
		j = &job{name: name, ranks: map[int]*rank{}, group: map[string]*group{}, began: now, moved: now, alive: now, links: map[pair]*flow{},
			ends: map[string]int{}, words: map[[2]int]Launch{}}
		m.jobs[name] = j
	}
	return j
}

// launch takes what a launcher said.
func (m *Machine) launch(now float64, l Launch) {
	j := m.jobNamed(now, l.Job)
	j.launcher = true
	j.size = max(j.size, l.Size)
	switch l.Event {
	case "started":
		m.started(now, j, l)
	case "ended":
		m.ended(now, j, l)
	case "said":
		if k := [2]int{l.Rank, l.PID}; l.Why != "" && j.words[k].Why == "" && len(j.words) < ranksKept {
			j.words[k] = l
		}
	case "over":
		j.setOver(l)
	}
}

// started takes the start of a rank. One that comes after the last death begins another attempt, of a job that is not elastic.
func (m *Machine) started(now float64, j *job, l Launch) {
	if m.c.Elastic {
		j.reborn(now, l)
	} else if n := len(j.deaths); n > 0 && l.At > j.deaths[n-1].At {
		j.deaths, j.cause, j.differ = nil, nil, nil
		clear(j.words)
	}
	j.over = ""
}

// setOver takes the end of the whole job.
func (j *job) setOver(l Launch) {
	if l.Why == "host-lost" {
		j.failedHost = l.Host
	}
	if l.Rank < 0 && (j.cause != nil || l.How == j.over) { // a scheduler does not know whose failure it was
		return
	}
	j.over, j.overBy = l.How, l.Rank
}

// reborn takes the start of a process in the place of one that failed, where that is what the job does.
func (j *job) reborn(now float64, l Launch) {
	for i := range j.deaths {
		d := &j.deaths[i]
		if d.Rank == l.Rank && d.failed() && l.At > d.At {
			j.restart(restart{rank: l.Rank, was: d.PID, is: l.PID, host: d.Host, seen: d.At, at: now, how: d.how()})
			j.deaths, j.cause = slices.Delete(j.deaths, i, i+1), nil
			return
		}
	}
}

// ended takes the end of a rank's process. A launcher and an agent may both tell of it.
func (m *Machine) ended(now float64, j *job, l Launch) {
	r := j.ranks[l.Rank]
	if r == nil { // no agent saw it before
		r = &rank{Rank: Rank{Job: l.Job, Rank: l.Rank, Size: l.Size, PID: l.PID}, host: l.Host, at: now, first: now, moved: now,
			groups: map[string]*Group{}, place: doctor.Place{Rail: -1}}
		j.ranks[l.Rank] = r
	}
	if l.PID == 0 { // it ran on another host, under a number that its launcher does not know
		l.PID, l.Host = r.PID, r.host
	}
	if j.exit(l.Rank, l.PID) != nil {
		return
	}
	if r.PID == l.PID && r.gone == 0 {
		r.gone = now
	}
	j.die(m.c.Elastic, r, death{l, now})
}

// die remembers the end of a process, unless another one has its place already.
func (j *job) die(elastic bool, r *rank, d death) {
	if elastic && r.PID != d.PID && r.gone == 0 && d.failed() {
		j.restart(restart{rank: d.Rank, was: d.PID, is: r.PID, host: d.Host, seen: d.At, at: d.seen, how: d.how()})
		return
	}
	if j.cause != nil && j.moved > j.cause.seen+waitForOthers { // the job went on without that rank
		j.deaths, j.cause = nil, nil
	}
	j.deaths = append(j.deaths, d)
	slices.SortStableFunc(j.deaths, func(a, b death) int { return cmp.Compare(a.At, b.At) })
}

// hard says that no other rank's end can have caused this one: nobody who tidies up sends such a signal, or the kernel
// said why.
func (d *death) hard() bool {
	switch unix.Signal(d.Signal) {
	case unix.SIGKILL, unix.SIGSEGV, unix.SIGBUS, unix.SIGILL, unix.SIGFPE:
		return true
	}
	return false
}

// polite says that somebody asked the process to end, where no launcher told who.
func (d *death) polite() bool {
	return d.Seen && (d.Signal == int(unix.SIGTERM) || d.Signal == int(unix.SIGINT) || d.Signal == int(unix.SIGHUP))
}

// PeerDied is the finding of a rank that ended since another one did.
const PeerDied = "peer-died"

// weak says that the rank itself blames another one: programs may leave their group a while before they end.
func (j *job) weak(d *death) bool {
	return cmp.Or(d.Why, j.words[[2]int{d.Rank, d.PID}].Why) == PeerDied
}

// reasoned says that the reason of an end is known, and lies in the rank itself.
func (j *job) reasoned(d *death) bool {
	why := cmp.Or(d.Why, j.words[[2]int{d.Rank, d.PID}].Why)
	return why != "" && why != PeerDied
}

// leaving is how long after it left its group a program may still run, in seconds, while others blame it.
const leaving = 5.0

// together is how far apart ends may be that have one reason.
func (d *death) together() float64 {
	if d.Seen { // by the kernel, a moment after its connections were closed
		return seenTogether
	}
	return settleDeaths
}

// decide finds the death that explains the others. A rank that a signal ended did not end
// because of another, so it comes before ranks that gave up a moment earlier; launchers
// judge the same way, and their word counts. Ranks that were asked to end at one time
// explain nothing: somebody cancelled the job.
func (j *job) decide(now float64) {
	var first *death
	for i := range j.deaths {
		d := &j.deaths[i]
		if !d.failed() {
			continue
		}
		if j.over == "failed" && d.Rank == j.overBy {
			first = d
			break
		}
		switch {
		case first == nil:
			if wait := j.settled(d); now-d.seen < wait && j.over == "" {
				return
			}
			first = d
		case j.weak(first) && !j.weak(d) && !d.polite() && d.At <= first.At+leaving:
			first = d
		case d.At > first.At+d.together():
		case first.polite() && d.polite():
			j.over = "cancelled"
			return
		case d.hard() && !first.hard() && (j.reasoned(d) || !j.reasoned(first)): // launchers kill, too
			first = d
		}
	}
	if first != nil {
		c := *first
		j.cause = &c
	}
}

// settled is how long after a death others may come in that explain it.
func (j *job) settled(d *death) float64 {
	if j.weak(d) && len(j.deaths) < len(j.ranks) && !slices.ContainsFunc(j.deaths, func(o death) bool { return o.failed() && !j.weak(&o) }) {
		return leaving
	}
	return settleDeaths
}

// conclude says how a job ended whose launcher does not: once all its ranks have.
func (j *job) conclude(now float64) {
	if j.over != "" || len(j.deaths) == 0 || len(j.deaths) < max(j.size, len(j.ranks)) {
		return
	}
	for i := range j.deaths {
		if d := &j.deaths[i]; !d.Seen || now-d.seen < settleDeaths {
			return
		}
	}
	if j.over = "finished"; j.cause != nil {
		j.over, j.overBy = "failed", j.cause.Rank
	}
}

// launched judges what the launcher of a job said.
func (m *Machine) launched(now float64, j *job, raise raiser) {
	if m.nodeLost(now, j, raise) {
		return
	}
	if m.undecided(now, j) {
		return
	}
	if j.cause == nil && j.over != "cancelled" {
		j.decide(now)
	}
	j.conclude(now)
	alive := j.count().alive
	if c := j.cause; c != nil && (alive > 0 || now-c.seen < 2*waitForOthers) && !m.differs(now, j) {
		raise(j.causeKey(), j.caused(alive))
	}
}

// caused is the incident of the death that ended the job, with the last words of the rank where they came after its end.
func (j *job) caused(alive int) Incident {
	c := j.cause
	if w := j.words[[2]int{c.Rank, c.PID}]; c.Why == "" {
		c.Why, c.Said = w.Why, w.Said
	}
	left := ""
	if alive > 0 {
		left = fmt.Sprintf("; %d of %d ranks are left", alive, j.size)
	}
	cause, fix := c.why()
	i := Incident{Kind: "rank-dead", Severity: doctor.Critical, Confidence: 0.99, Job: j.name,
		Subject: doctor.Subject{Ranks: []int{c.Rank}, Hosts: []string{c.Host}},
		Verdict: fmt.Sprintf("rank %d (process %d on %s) of %s %s%s", c.Rank, c.PID, c.Host, j.name, c.how(), left),
		Cause:   cause, Fix: fix, Follows: j.consequences(),
		Evidence: []Evidence{{c.At, fmt.Sprintf("its launcher says that process %d %s", c.PID, c.status())}}}
	if c.Seen {
		i.Evidence[0].Text = fmt.Sprintf("the kernel says that process %d %s", c.PID, c.status())
	}
	if c.Said != "" {
		i.Evidence = append(i.Evidence, Evidence{c.At, c.Said})
	}
	return i
}

// differs says that ranks gave up since they called different operations, or that flight records may say so within a
// moment: then who gave up first means nothing.
func (m *Machine) differs(now float64, j *job) bool {
	if j.cause.hard() {
		return false
	}
	return j.differ != nil || len(m.dumps[j.name]) > 0 && now-m.dumped[j.name] < 1.5
}

// causeKey is the key of the incident of a job's cause.
func (j *job) causeKey() string {
	return fmt.Sprintf("dead/%s/%d/%d", j.name, j.cause.Rank, j.cause.PID)
}

// consequences are the other ends after the cause.
func (j *job) consequences() (list []string) {
	for _, d := range j.deaths {
		first := j.cause != nil && j.differ == nil && d.Rank == j.cause.Rank && d.PID == j.cause.PID
		if first || d.Code == 0 && d.Signal == 0 || len(list) == followers {
			continue
		}
		how := d.how()
		if d.Asked {
			how = "was ended by the launcher"
		}
		list = append(list, fmt.Sprintf("rank %d %s", d.Rank, how))
	}
	return list
}

// exit is how the process of a rank ended, nil if no launcher said so.
func (j *job) exit(n, pid int) *death {
	for i := range j.deaths {
		if d := &j.deaths[i]; d.Rank == n && d.PID == pid {
			return d
		}
	}
	return nil
}

// guessed tells whether a rank that is gone is judged by its absence: where no launcher
// reports, or its word was lost.
func (j *job) guessed(now float64, n int) bool {
	r := j.ranks[n]
	return !j.launcher || j.cause == nil && j.over == "" && j.exit(n, r.PID) == nil && now-r.gone >= lostExit
}

// explained tells whether a death that its launcher reported explains what happens to the
// job now, or may within a moment.
func (j *job) explained() bool {
	return j.cause != nil || j.lost != "" || slices.ContainsFunc(j.deaths, func(d death) bool { return d.failed() })
}

// asked says that a launcher asked a rank to end a moment ago, and it did: the others end as well, or go on without it.
func (j *job) asked(now float64) bool {
	return slices.ContainsFunc(j.deaths, func(d death) bool { return d.Asked && now-d.seen < lostExit })
}

// end says how a job ended, "" if it goes on or nobody said so.
func (j *job) end() string {
	if j.lost != "" {
		return "failed: host " + j.lost + " was lost"
	}
	if j.over == "failed" && len(j.differ) == 1 {
		return fmt.Sprintf("failed by rank %d", j.differ[0])
	}
	if j.over == "failed" && j.overBy < 0 {
		if j.cause == nil {
			return "failed"
		}
		return fmt.Sprintf("failed by rank %d", j.cause.Rank)
	}
	if j.over == "failed" {
		return fmt.Sprintf("failed by rank %d", j.overBy)
	}
	return j.over
}
