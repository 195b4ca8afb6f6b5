package sim

import (
	"github.com/weft-fabric/weft/model/sets"
	"github.com/weft-fabric/weft/model/unit"
)

// apart finds the jobs that no link joins: of a training step's gradient rings those around a bad part
// feel it, and the others fold as if nothing had happened. It lists the jobs of each part in their order;
// nil if it cannot tell or nothing would be gained.
func (w *world) apart() [][]int {
	if len(w.runs) < 2 || !w.known || !w.fold.on || w.trace.trace != nil {
		return nil
	}
	joined := sets.New[int32](len(w.runs))
	first := make([]int32, len(w.share.res)) // a job on a resource, plus one
	for i := range w.conns {
		c := &w.conns[i]
		mine := w.runOf[w.threads[c.from].machine]
		for _, l := range w.share.flows[c.flow].loads {
			if at := first[l.res] - 1; at >= 0 {
				joined.Join(at, mine)
			} else {
				first[l.res] = mine + 1
			}
		}
	}
	var parts [][]int
	at := map[int32]int{}
	for i := range w.runs {
		r := joined.Find(int32(i))
		k, known := at[r]
		if !known {
			k = len(parts)
			at[r] = k
			parts = append(parts, nil)
		}
		parts[k] = append(parts[k], i)
	}
	return parts
}

// runApart simulates parts of the jobs one after the other. Links that could carry all flows of all jobs
// were left out of the sharing before the parts were found, and carry those of one part all the more; so every
// job takes as long as with the others beside it.
func (n *network) runApart(jobs []Job, parts [][]int, deadline unit.Time) (*Result, error) {
	all := &Result{Seed: n.o.Seed, Jobs: make([]JobResult, len(jobs))}
	var begin, end unit.Time
	var last *Result
	for i, part := range parts {
		some := make([]Job, len(part))
		for k, j := range part {
			some[k] = jobs[j]
		}
		r, err := n.run(some, deadline)
		if err != nil {
			return nil, err
		}
		all.Actions, all.Folded, all.Ranks, all.Events = all.Actions+r.Actions, all.Folded+r.Folded, all.Ranks+r.Ranks, all.Events+r.Events
		all.Shortened = all.Shortened || r.Shortened
		for k, j := range part {
			all.Jobs[j] = r.Jobs[k]
			if x := r.Jobs[k]; last == nil || x.End > end {
				end, last = x.End, r
			}
			if s := jobs[j].Start; i == 0 && k == 0 || s < begin {
				begin = s
			}
		}
		all.more = append(all.more, r.w)
	}
	for i, w := range all.more {
		if w == last.w {
			all.w, all.more = w, append(all.more[:i:i], all.more[i+1:]...)
			break
		}
	}
	all.Time, all.Critical = end-begin, last.Critical
	all.AlgBW, all.BusBW = all.Jobs[0].AlgBW, all.Jobs[0].BusBW
	all.Limit = all.w.limit(all)
	return all, nil
}
