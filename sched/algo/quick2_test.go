package algo_test

import (
	"os"
	"testing"

	"github.com/weft-fabric/weft/sched/algo"
	"github.com/weft-fabric/weft/sched/verify"
)

func TestLocal(t *testing.T) {
	var specs []algo.Spec
	for _, in := range algo.All() {
		for _, out := range algo.All() {
			if algo.IsInner(in) && algo.IsOuter(out) {
				specs = append(specs, algo.Spec{Inner: in.Name, Outer: out.Name})
			}
		}
	}
	for _, a := range algo.All() {
		if name := os.Getenv("ALGO"); name != "" && a.Name != name {
			continue
		}
		list := specs
		if a.Name != "hierarchical" {
			list = specs[:1]
		}
		for _, s := range list {
			for _, op := range a.Ops {
				for n := 1; n <= 20; n++ {
					for _, local := range []int{1, 2, 3, 4, 8, 9} {
						for root := 0; root < n && (root == 0 || op.Rooted()); root += 3 {
							for _, ch := range []int{1, 2} {
								spec := algo.Spec{Op: op, Ranks: n, Root: root, Channels: ch, Local: local, Inner: s.Inner, Outer: s.Outer}
								if a.Fits != nil && a.Fits(spec) != nil {
									continue
								}
								p, err := a.Program(spec)
								if err != nil {
									t.Errorf("%s %s n=%d root=%d: %v %+v", a.Name, op, n, root, err, spec)
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
	}
}
