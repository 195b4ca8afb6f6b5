package algo

import (
	"fmt"

	"github.com/weft-fabric/weft/collective/sched"
)

//	     root switch          Switches add up what comes from below, send the sum
//	    ╱           ╲         up, and send the result down to all. Local ranks
//	 leaf 0       leaf 1      hang on a leaf switch; with one leaf there is no
//	╱ │ │ ╲      ╱ │ │ ╲      root above it.
//	0 1 2 3      4 5 6 7
//
// Graham et al., Scalable hierarchical aggregation protocol (SHArP): a hardware
// architecture for efficient data reduction, 2016.
func init() {
	register(&Algorithm{
		Name: "sharp", Traits: Traits{Adds: FabricSwitch, ByLeaf: true, Vast: true, Long: 9, Short: 1},
		Ops:       []sched.Collective{sched.AllReduce, sched.Barrier},
		Summary:   "all sizes where the network's switches compute: every rank sends its data once",
		Steps:     "2 below one switch, 4 below two tiers, for a piece",
		Sent:      "S",
		Reference: "Graham et al. 2016",
		Build:     sharp,
	})
}

func sharp(s Spec) (string, error) {
	var t text
	local := s.domain()
	leaves := (s.Ranks + local - 1) / local
	pieces := s.cut(4)
	switches := 1
	if leaves > 1 {
		switches = leaves + 1
	}
	t.line("switches %d", switches)
	t.line("chunks %d", s.Channels*pieces)
	t.line("scratch %d", 2*s.Channels*pieces)
	t.line("slots %d", orDefault(s.Slots, 2))
	below := fmt.Sprintf("(%d min n-(r-n)*%d)", local, local) // ranks of a leaf; the last may have fewer
	first := fmt.Sprintf("(r-n)*%d", local)
	for ch := range s.Channels {
		at := itoa(ch*pieces) + "+p"
		sum := "tmp[" + at + "]"
		result := sum
		if leaves > 1 {
			result = fmt.Sprintf("tmp[%d+p]", (s.Channels+ch)*pieces)
		}
		three := func(rank, leaf, root func()) {
			t.block(func() {
				t.each(pieces, func() {
					t.block(rank, "if r < n:")
					t.block(leaf, "if n <= r && r < n+%d:", leaves)
					if leaves > 1 {
						t.block(root, "if r == n+%d:", leaves)
					}
				})
			}, "channels 1:")
		}
		three(func() { t.line("send in[%s] to n+r/%d", at, local) }, func() {
			t.line("recv -> %s from %s", sum, first)
			t.block(func() { t.line("recv-reduce %s -> %s from %s+k+1", sum, sum, first) }, "repeat k < %s-1:", below)
			if leaves > 1 {
				t.line("send %s to n+%d", sum, leaves)
			}
		}, func() {
			t.line("recv -> %s from n", sum)
			t.block(func() { t.line("recv-reduce %s -> %s from n+d+1", sum, sum) }, "repeat d < %d:", leaves-1)
		})
		three(func() { t.line("recv -> out[%s] from n+r/%d", at, local) }, func() {
			if leaves > 1 {
				t.line("recv -> %s from n+%d", result, leaves)
			} else {
				t.line("wait channel %d done (p+1)*n", ch*2)
			}
			t.block(func() { t.line("send %s to %s+k", result, first) }, "repeat k < %s:", below)
		}, func() {
			t.line("wait channel %d done (p+1)*%d", ch*2, leaves)
			t.block(func() { t.line("send %s to n+d", sum) }, "repeat d < %d:", leaves)
		})
	}
	return t.String(), nil
}
