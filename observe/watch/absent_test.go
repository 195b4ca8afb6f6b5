package watch

import (
	"fmt"
	"slices"
	"testing"
)

// Three of four ranks wait in their first meeting for one that never comes: it is named once they have waited longer than ranks
// take to start. A job that works with ranks nobody watches has none that are missing.
func TestARankThatNeverComes(t *testing.T) {
	for _, c := range []struct {
		name  string
		works bool
		want  []int
	}{
		{"a rank that was never started", false, []int{2}},
		{"a host without an agent", true, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := New(Config{Hang: 30})
			var found []Incident
			named := 0
			for now := 1000.0; now < 1000+3*startTime; now++ {
				for host, ranks := range [][]int{{0, 1}, {3}} {
					r := Report{Host: fmt.Sprintf("n%d", host), At: now, Every: 1, HasRanks: true}
					for _, n := range ranks {
						x := Rank{Job: "train", Rank: n, Size: 4, PID: 100 + n, State: "S"}
						if c.works {
							x.Groups = []Group{{Name: "world", Done: int64(now)}}
						}
						r.Ranks = append(r.Ranks, x)
					}
					if err := m.Observe(now, &r); err != nil {
						t.Fatal(err)
					}
				}
				for _, i := range m.Tick(now) {
					if i.Kind == "rank-absent" {
						found = append(found, i)
						named = int(now) - 1000
					}
				}
			}
			switch {
			case c.want == nil && len(found) > 0:
				t.Errorf("found %s", found[0].Verdict)
			case c.want != nil && (len(found) != 1 || !slices.Equal(found[0].Subject.Ranks, c.want) || named < startTime || named > startTime+5):
				t.Errorf("after %d s %+v, want rank %v of it", named, found, c.want)
			}
		})
	}
}
