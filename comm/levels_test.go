package comm

import (
	"testing"
)

// Collectives are right however ranks are dealt out to hosts: in phases where hosts have as many ranks each, host by host,
// and as a whole where they have not.
func TestHostsOfSeveralRanks(t *testing.T) {
	layouts := []string{"aabb", "aaabbb", "aabbcc", "abab", "aaab", "aaaa", "abcd"}
	if testing.Short() {
		layouts = layouts[:1]
	}
	for _, hosts := range layouts {
		t.Run(hosts, func(t *testing.T) {
			list := startProcs(t, len(hosts), "mixed", "serve", "hosts="+hosts)
			list.all(order{Do: "dup"})
			for i, count := range []int{1, 7, 1000, 40001, 300000} {
				for _, in := range []bool{false, true} {
					o := order{Do: "op", Op: "all-reduce,reduce-scatter,all-gather,broadcast,reduce,all-to-all,gather,scatter,barrier", Count: count,
						Root: (i + 1) % len(hosts), InPlace: in, Registered: i%2 == 0, Times: 2}
					for r, e := range list.all(o) {
						if e.Err != "" || e.Data != "complete" {
							t.Errorf("%s, count %d, in place %t: rank %d: %s %s", hosts, count, in, r, e.Data, e.Err)
						}
					}
				}
			}
			list.finish()
		})
	}
}
