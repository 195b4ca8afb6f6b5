package simulation

import (
	"testing"
	"time"

	"github.com/weft-fabric/weft/member"
)

func TestSmall(t *testing.T) {
	for _, n := range []int{2, 3, 8, 64} {
		s := Settings{Ranks: n, Seed: 1, Member: member.Default(), Network: Datacenter(), Length: 20 * time.Second, Wire: true,
			Faults: []Fault{{At: 3210 * time.Millisecond, What: Kill, Ranks: []int{n - 1}}}}
		if n <= 8 {
			s.Log = func(at time.Duration, r member.ID, e member.Event) {
				t.Logf("%v r%d: %v r%d %v %v", at, r, e.Kind, e.ID, e.Reason, e.Epoch)
			}
		}
		r, err := Run(s)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("\n%v", r)
	}
}

func BenchmarkTenThousand(b *testing.B) {
	for b.Loop() {
		s := Settings{Ranks: 10000, Seed: 1, Member: member.Default(), Network: Datacenter(), Length: 30 * time.Second,
			Faults: []Fault{{At: 3210 * time.Millisecond, What: Kill, Ranks: []int{17, 18, 19, 20, 21, 22, 23, 24}}, {At: 10210 * time.Millisecond, What: Kill, Ranks: []int{9000}}}}
		r, err := Run(s)
		if err != nil {
			b.Fatal(err)
		}
		b.Logf("\n%v%d events", r, r.Events)
	}
}
