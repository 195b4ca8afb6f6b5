package sim

import (
	"fmt"
	"strings"

	"github.com/weft-fabric/weft/model/unit"
)

// Lost says where a synthesised program stays behind its bound, from its plan and its simulation; empty from 99.5% on.
//
//	bound ──► trees ──► a pipeline that fills ──► links that wait for one another ──► simulated
//
// The first two follow from the plan; what is left is time in which links stood idle.
func (s *Synthesis) Lost(size unit.Bytes) string {
	if s.Result == nil || s.Plan == nil {
		return ""
	}
	share := float64(s.Result.AlgBW / s.Plan.Bound.Rate)
	if share >= 0.995 {
		return ""
	}
	var why []string
	add := func(part float64, format string, args ...any) {
		if part >= 0.002 {
			why = append(why, fmt.Sprintf("%.1f%% ", 100*part)+fmt.Sprintf(format, args...))
		}
	}
	plan := s.Plan.Share()
	add(1-plan, "as %d trees or paths leave links unused (--loss 0 packs more)", len(s.Plan.Ways))
	// A tree of h hops passes on its first piece h-1 times before its last leaf has anything.
	depth, pieces := s.Plan.Height(), s.pieces()
	fill := 0.0
	if depth > 1 && pieces > 0 {
		fill = min(plan*float64(depth-1)/float64(depth-1+pieces), plan-share)
		add(fill, "as %d hops pass on %d pieces one after the other", depth, pieces)
	}
	if rest := plan - fill - share; rest > 0 {
		add(rest, "as links wait for messages or for software; the busiest: %s", s.Result.Limit)
	}
	return strings.Join(why, ", ")
}

// pieces is how many pieces a tree's share passes one after the other, 0 if that is not known.
func (s *Synthesis) pieces() int {
	pieces := 0
	for _, field := range strings.Split(s.Form, ", ") {
		if _, err := fmt.Sscanf(field, "%d piece", &pieces); err == nil {
			return pieces
		}
	}
	return 0
}
