package watch

import (
	"fmt"

	"github.com/weft-fabric/weft/observe/doctor"
)

// absent names the ranks of a job that nobody has ever seen, where the others have been there longer than ranks take to start and have
// told of no operation. It is a warning: they may be on hosts without an agent, in a job that tells of none. Once a rank tells of
// operations, all have come.
func (m *Machine) absent(now float64, j *job, raise raiser) {
	size, newest := 0, 0.0
	for _, r := range j.ranks {
		if r.gone > 0 || len(r.groups) > 0 || r.Size == 0 {
			return // it has ended, or has met the others, or does not say how many they are
		}
		size, newest = max(size, r.Size), max(newest, r.first)
	}
	if size <= len(j.ranks) || now-newest < startTime || j.explained() {
		return
	}
	var missing []int
	for n := range size {
		if j.ranks[n] == nil {
			missing = append(missing, n)
		}
	}
	raise("absent/"+j.name, Incident{Kind: "rank-absent", Severity: doctor.Warning, Confidence: 0.6, Job: j.name,
		Subject: doctor.Subject{Ranks: missing},
		Verdict: fmt.Sprintf("%d of %d ranks of %s never came (%s); no operation has begun",
			len(missing), size, j.name, doctor.Numbers(missing)),
		Evidence: []Evidence{{newest, fmt.Sprintf("the last of the other %d came", len(j.ranks))}}})
}
