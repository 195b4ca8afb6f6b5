package simulation

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weft-fabric/weft/run/internal/member"
)

// death is a process that ended, until all know.
type death struct {
	rank      int
	at        int64
	seen      bool // by the one who started it
	suspected int64
	failed    int64
	known     int
	need      int // to know, at the last look
	knows     []uint64
}

// Report is what a run measured.
type Report struct {
	Ranks   int
	Seed    uint64
	Length  time.Duration
	Member  member.Config
	Network Network

	Deaths     int
	Detected   []time.Duration // from a death to the first that calls it failed, ascending
	Known      []time.Duration // to the last of the living that knows, ascending
	Unknown    int             // deaths that not all the living knew of at the end
	Suspected  int             // ranks that were suspected wrongly: alive, running and reached
	Failed     int             // ranks that were called failed wrongly
	Excused    int             // ranks that were called failed while stopped, cut off or troubled by a fault
	Isolated   int             // events
	QuorumLost int
	Evicted    int
	Epochs     int

	Sent, Received                float64 // messages a second and rank
	SentBytes                     float64 // with headers of UDP and IPv4
	BusiestMessages, BusiestBytes float64 // of one rank a second, sent and received
	Events                        uint64  // of the simulation
}

// see takes an event of a machine into account.
func (w *World) see(i int32, e member.Event) {
	if w.set.Log != nil {
		w.set.Log(w.Now(), member.ID(i), e)
	}
	switch e.Kind {
	case member.Suspected, member.Died:
		w.alarm(i, e)
	case member.EpochChanged:
		if w.nodes[i].up {
			for d := len(w.deaths) - 1; d >= 0; d-- {
				if e.Epoch.Index(member.ID(w.deaths[d].rank)) < 0 {
					w.learned(d, i)
				}
			}
		}
		x := &w.nodes[i]
		if k := e.Epoch.Index(member.ID(i)); w.set.CatchUp > 0 && !x.waiting && k >= 0 && e.Epoch.Members[k].Recovering &&
			e.Epoch.Members[k].Life == x.life {
			x.waiting = true
			w.push(w.now+w.set.CatchUp.Nanoseconds(), caught, i, 0)
		}
	case member.Isolated:
		w.report.Isolated++
	case member.QuorumLost:
		w.report.QuorumLost++
	case member.Evicted:
		w.report.Evicted++
	}
}

// alarm judges an accusation by what really happened. Against a rank that is down it is a detection. Against one that
// is stopped, cut off or in trouble it is excused. Against a healthy one it is false, and counts once however many
// observers make it.
func (w *World) alarm(i int32, e member.Event) {
	x := &w.nodes[e.ID]
	if !x.up {
		for d := len(w.deaths) - 1; d >= 0; d-- {
			if w.deaths[d].rank != int(e.ID) {
				continue
			}
			if e.Kind == member.Suspected {
				if w.deaths[d].suspected == 0 {
					w.deaths[d].suspected = w.now
				}
				return
			}
			w.learned(d, i)
			return
		}
		return
	}
	if x.stopped || x.cut != w.nodes[i].cut || w.now < x.troubled || w.now < w.nodes[i].troubled {
		if e.Kind == member.Died && w.now > x.excused {
			x.excused = w.now + 4*w.set.Member.Timeout.Nanoseconds()
			w.report.Excused++
		}
		return
	}
	// Many observers may say it; an incident counts once.
	switch {
	case e.Kind == member.Suspected && w.now > x.accused:
		x.accused = w.now + 2*w.set.Member.Timeout.Nanoseconds()
		w.report.Suspected++
	case e.Kind == member.Died && w.now > x.condemned:
		x.condemned = w.now + 4*w.set.Member.Timeout.Nanoseconds()
		w.report.Failed++
	}
}

// learned notes that a living rank knows of a death.
func (w *World) learned(d int, i int32) {
	k := &w.deaths[d]
	if k.knows[i/64]&(1<<(i%64)) != 0 || int(i) >= w.set.Ranks {
		return
	}
	if k.failed == 0 {
		k.failed = w.now
		w.report.Detected = append(w.report.Detected, time.Duration(w.now-k.at))
	}
	k.knows[i/64] |= 1 << (i % 64)
	k.known++
	if k.known < w.living(k) {
		return
	}
	w.report.Known = append(w.report.Known, time.Duration(w.now-k.at))
	w.report.Deaths++
	w.deaths = slices.Delete(w.deaths, d, d+1)
}

// living counts the ranks that know of a death or have to: those that run and are
// connected. As it takes a look at all, it waits until as many know as there
// were ranks that could, at the last look.
func (w *World) living(k *death) int {
	if k.known < k.need {
		return k.need
	}
	k.need = 0
	for i := range w.set.Ranks {
		if x := &w.nodes[i]; x.up && !x.stopped && x.cut == 0 || k.knows[i/64]&(1<<(i%64)) != 0 {
			k.need++
		}
	}
	return k.need
}

// Report gives what was measured up to now.
func (w *World) Report() Report {
	r := w.report
	r.Unknown = len(w.deaths)
	r.Deaths += len(w.deaths)
	slices.Sort(r.Detected)
	slices.Sort(r.Known)
	secs := max(1e-9, w.Now().Seconds())
	for i := range w.nodes {
		x := &w.nodes[i]
		r.Sent += float64(x.sent) / secs / float64(w.set.Ranks)
		r.Received += float64(x.received) / secs / float64(w.set.Ranks)
		r.SentBytes += float64(x.sentBytes) / secs / float64(w.set.Ranks)
		r.BusiestMessages = max(r.BusiestMessages, float64(x.sent+x.received)/secs)
		r.BusiestBytes = max(r.BusiestBytes, float64(x.sentBytes+x.receivedBytes)/secs)
	}
	r.Events = w.seq
	return r
}

// Quantile is the value that a share q of an ascending list does not exceed.
func Quantile(list []time.Duration, q float64) time.Duration {
	if len(list) == 0 {
		return 0
	}
	return list[min(len(list)-1, int(q*float64(len(list))))]
}

// PerHour scales a count to an hour.
func (r *Report) PerHour(count int) float64 { return float64(count) / r.Length.Hours() }

// String prints the times until deaths were noticed and known, false alarms per hour, and what ranks sent.
func (r Report) String() string {
	var b strings.Builder
	ms := func(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
	fmt.Fprintf(&b, "%d ranks, %v, seed %d\n", r.Ranks, r.Length, r.Seed)
	fmt.Fprintf(&b, "deaths          %d, %d not known to all at the end\n", r.Deaths, r.Unknown)
	fmt.Fprintf(&b, "failed after    p50 %v  p99 %v  max %v\n", ms(Quantile(r.Detected, 0.5)), ms(Quantile(r.Detected, 0.99)),
		ms(Quantile(r.Detected, 1)))
	fmt.Fprintf(&b, "known to all    p50 %v  p99 %v  max %v\n",
		ms(Quantile(r.Known, 0.5)), ms(Quantile(r.Known, 0.99)), ms(Quantile(r.Known, 1)))
	fmt.Fprintf(&b, "false alarms    %.1f suspects an hour, %.1f failures an hour (%d excused by faults)\n",
		r.PerHour(r.Suspected), r.PerHour(r.Failed), r.Excused)
	fmt.Fprintf(&b, "a rank sends    %.1f messages/s, %.0f B/s\n", r.Sent, r.SentBytes)
	fmt.Fprintf(&b, "the busiest     %.1f messages/s, %.0f B/s, sent and received\n", r.BusiestMessages, r.BusiestBytes)
	fmt.Fprintf(&b, "epochs          %d decided; %d evicted, %d isolated, %d quorum lost\n", r.Epochs, r.Evicted, r.Isolated, r.QuorumLost)
	return b.String()
}
