package algo

import "github.com/weft-fabric/weft/collective/sched"

//	0 ─► 1 ─► 2 ─► 3 ─► 4 ─► 0        step 0: to the next
//	0 ─────► 2 ─────► 4 ─────► 1 ...  step 1: two on
//	0 ───────────────► 4 ...          step 2: four on
//
// After step k everybody has heard, directly or not, of the 2^(k+1)-1 ranks
// before it. Contributions arrive twice when the count is no power of two, which
// a barrier may allow and a sum may not.
//
// Hensgen, Finkel and Manber, Two algorithms for barrier synchronization, 1988.
func init() {
	register(&Algorithm{
		Name: "dissemination", Traits: Traits{Vast: true, Short: 6}, Ops: []sched.Collective{sched.Barrier},
		Summary:   "barriers: the fewest steps for any count",
		Steps:     "ceil(log2 n)",
		Sent:      "S ceil(log2 n)",
		Reference: "Hensgen, Finkel, Manber 1988",
		Build: func(s Spec) (string, error) {
			var t text
			t.line("chunks %d", s.Channels)
			t.line("slots %d", orDefault(s.Slots, 1))
			t.block(func() {
				t.line("copy in[c] -> out[c]")
				t.block(func() {
					t.line("send out[c] to (r+(1<<k))%%n")
					t.line("recv-reduce out[c] -> out[c] from (r-(1<<k))%%n")
				}, "repeat k < %d:", log2(s.Ranks))
			}, "channels %d:", s.Channels)
			return t.String(), nil
		},
	})
}
