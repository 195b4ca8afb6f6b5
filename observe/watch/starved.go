package watch

import (
	"fmt"

	"github.com/weft-fabric/weft/observe/doctor"
)

// Ranks that are slow on busy hosts, and how they differ from those that hang there.

// patience is how many times as long a starved host may take until its silence counts.
const patience = 4

// mark is what a rank had used at a time.
type mark struct {
	at, cpu float64
	turns   *Turns
}

// mark notes what the rank has used, so that its use can be told over the last one or two times every.
func (r *rank) mark(now, every float64) {
	switch k := (mark{now, r.CPU, r.Turns}); {
	case r.marks[1].at == 0:
		r.marks = [2]mark{k, k}
	case now-r.marks[1].at >= every:
		r.marks = [2]mark{r.marks[1], k}
	}
}

// use is what a rank has had of the processors lately, in shares of the time.
type use struct {
	ran   float64
	wants float64 // share in which threads ran or were ready to, of each of them
	turn  float64 // seconds that its threads ran each time they were let; 0 where that is not known
	known bool    // that its threads were looked at for wants
}

func (r *rank) use() (u use) {
	from := r.marks[0]
	if from.at == 0 || r.at <= from.at {
		return use{}
	}
	u.ran = (r.CPU - from.cpu) / (r.at - from.at)
	if r.Turns == nil {
		return u
	}
	was := Turns{}
	if from.turns != nil {
		was = *from.turns
	}
	if seen := r.Turns.Seen - was.Seen; seen > 0 {
		u.ran = (r.Turns.Ran - was.Ran) / seen
		if times := r.Turns.Times - was.Times; times > 0 {
			u.turn = (r.Turns.Ran - was.Ran) / float64(times)
		}
		u.wants, u.known = u.ran+(r.Turns.Waited-was.Waited)/seen, true
	}
	return u
}

// How a rank that works on a starved host is told from one that hangs there. Threads of the first are ready to run nearly all
// the time. Those of the second wake up now and then, as those of a rank do that waits in an operation.
const (
	someUse = 0.01 // share of the time that a rank runs which works, where nothing else is known
	atWork  = 0.5  // share of the time that threads of a rank want to run which works
	asMuch  = 2    // times as much as one that waits
	glance  = 3e-5 // seconds: threads that run for less each time have looked and found nothing to do
)

// hungry says that a rank of a starved host wants to run, more so than ranks that do nothing there but wait in an operation.
func (j *job) hungry(r *rank) bool {
	mine := r.use()
	switch {
	case !mine.known:
		return mine.ran >= someUse
	case mine.turn > 0 && mine.turn < glance: // each wait for a processor is long where many want one, so it seems to want much
		return false
	}
	ran, wants := j.waiters(r)
	return mine.wants >= atWork && (len(ran) == 0 || mine.ran >= asMuch*median(ran) || mine.wants >= asMuch*median(wants))
}

// waiters give what the ranks next to one use that wait in an operation.
func (j *job) waiters(r *rank) (ran, wants []float64) {
	for _, p := range j.ranks {
		if p == r || p.host != r.host || !p.waits() {
			continue
		}
		if u := p.use(); u.known && u.wants < atWork { // the others may spin while they wait
			ran, wants = append(ran, u.ran), append(wants, u.wants)
		}
	}
	return ran, wants
}

// waits says whether the rank is in an operation.
func (r *rank) waits() bool {
	for _, g := range r.groups {
		if g.In && r.gone == 0 {
			return true
		}
	}
	return false
}

// starvedJob says that tasks wait for processors or memory on a host of the job: everything takes longer there.
func (m *Machine) starvedJob(j *job) bool {
	for _, r := range j.ranks {
		if r.gone == 0 && m.hosts[r.host].starved() {
			return true
		}
	}
	return false
}

// starving says that all who hold a job up are ranks that want to run, on hosts on which tasks wait for processors or memory:
// they are slow. A rank that hangs wants nothing, however busy its host is. Where nobody is behind, all move the data of one
// operation, and a starved host among theirs is what it takes so long for.
func (m *Machine) starving(now float64, j *job, culprits []int, raise raiser) bool {
	if len(culprits) == 0 {
		return m.starvedJob(j)
	}
	for _, c := range culprits {
		r := j.ranks[c]
		if r == nil || r.gone > 0 || !m.hosts[r.host].starved() || !j.hungry(r) {
			return false
		}
	}
	for _, c := range culprits {
		h := m.hosts[j.ranks[c].host]
		raise("starved/"+h.name, Incident{Kind: "host-starved", Severity: doctor.Warning, Confidence: 0.8, Job: j.name,
			Subject: m.subject(j, culprits...),
			Verdict: fmt.Sprintf("host %s is starved: ranks %v of %s are slow there, and the others wait for them", h.name, culprits, j.name),
			Evidence: []Evidence{{now, fmt.Sprintf("tasks wait for a processor %.0f%% and for memory %.0f%% of the time; its agent came %s late",
				100*h.load.CPU, 100*h.load.Memory, span(h.load.Lag))}}})
	}
	return true
}
