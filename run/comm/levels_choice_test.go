package comm

import (
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/predict/cost"
	"github.com/weft-fabric/weft/run/comm/choice"
	"github.com/weft-fabric/weft/run/transport"
)

// A long all-to-all in phases passes the same bytes between hosts and copies half of them once more, so it never pays, however fast the
// links of one rank a host were measured; a short one pays, however slow they were.
func TestAllToAllIsNotChosenByAnotherMeasurement(t *testing.T) {
	for _, off := range []float64{0.1, 0.5, 1, 2, 10} {
		for _, local := range []int{2, 4} {
			all := cost.Links{Kind: "tcp", Ranks: 2 * local, Cores: 2, Hosts: 2, Sync: 2,
				Paces: []cost.Pace{{Traffic: 48 << 10, Byte: 5e-6}, {Traffic: 1 << 30, Byte: 1e-4}},
				Near:  cost.Link{Alpha: 2, Post: 2, Beta: 1e-4}, Far: cost.Link{Alpha: 5, Post: 5, Beta: 3e-4, Wire: 1e-5}}
			one := all
			one.Far = cost.Link{Alpha: off * 5, Post: off * 5, Beta: off * 3e-4, Wire: off * 1e-5}
			over := transport.Capabilities{Name: "tcp"}
			hosts := make([]int, 2*local)
			for r := range hosts {
				hosts[r] = r / local
			}
			l := &levels{local: local, least: local, hosts: 2, sizes: []int{local, local}, built: map[string]*sched.Program{},
				table: choice.Single(one, over, 2, []int{0, 1}), whole: choice.New(all, over, 2*local, hosts),
				within: func(ranks int) *choice.Table {
					return choice.New(all, transport.Capabilities{Name: "shm", SharedMemory: true}, ranks, nil)
				}}
			l.post = l.table.Post()
			for bytes, phases := range map[int64]bool{64: true, 1 << 20: false, 64 << 20: false} {
				x, _, _, err := l.choose(sched.AllToAll, 0, bytes, false)
				if err != nil {
					t.Fatal(err)
				}
				whole, err := l.instead(sched.AllToAll, 0, bytes, x)
				if err != nil {
					t.Fatal(err)
				}
				if phases != (whole == nil) {
					t.Errorf("%d ranks a host, %d bytes, links of one rank %g times as slow: phases take %s, chosen instead: %v",
						local, bytes, off, x.predicted, whole)
				}
			}
		}
	}
}
