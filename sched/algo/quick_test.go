package algo_test

import (
	"os"
	"testing"

	"github.com/weft-fabric/weft/sched/algo"
	"github.com/weft-fabric/weft/sched/verify"
)

func TestQuick(t *testing.T) {
	for _, a := range algo.All() {
		if name := os.Getenv("ALGO"); name != "" && a.Name != name {
			continue
		}
		for _, op := range a.Ops {
			for n := 1; n <= 20; n++ {
				for root := 0; root < n && (root == 0 || op.Rooted()); root += 3 {
					for _, ch := range []int{1, 2} {
						spec := algo.Spec{Op: op, Ranks: n, Root: root, Channels: ch}
						if a.Fits != nil && a.Fits(spec) != nil {
							continue
						}
						p, err := a.Program(spec)
						if err != nil {
							t.Errorf("%s %s n=%d root=%d: %v", a.Name, op, n, root, err)
							return
						}
						if _, err := verify.Program(p); err != nil {
							t.Errorf("%s %s n=%d root=%d channels=%d: %+v\n%s", a.Name, op, n, root, ch, err, p)
							return
						}
					}
				}
			}
		}
	}
}
