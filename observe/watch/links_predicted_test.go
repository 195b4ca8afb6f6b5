package watch

import (
	"fmt"
	"math"
	"testing"
)

// Links of ranks that say what their links reached when they met have a prediction: of links inside a host, or between
// hosts. Those of other libraries have none.
func TestLinksAgainstPrediction(t *testing.T) {
	m := New(Config{})
	for k := range 8 {
		for h := range 2 {
			rep := Report{Host: fmt.Sprintf("n%d", h), Boot: "b", At: float64(k), Every: 1, HasRanks: true}
			for r := 2 * h; r < 2*h+2; r++ {
				x := Rank{Job: "train", Rank: r, Size: 4, PID: 100 + r, State: "S", Near: 4e9, Far: 1e9}
				if r == 3 {
					x.Near, x.Far = 0, 0
				}
				for _, peer := range []int{(r + 1) % 4, (r + 3) % 4} {
					sent := 1e8 * float64(k)
					x.Links = append(x.Links, Link{Local: fmt.Sprintf("10.0.0.%d:%d", r, 1000+peer), Remote: fmt.Sprintf("10.0.0.%d:%d", peer, 1000+r),
						Acked: sent, Busy: sent / 5e8})
				}
				rep.Ranks = append(rep.Ranks, x)
			}
			if err := m.Observe(float64(k), &rep); err != nil {
				t.Fatal(err)
			}
		}
		m.Tick(float64(k))
	}
	v := m.View(7)
	if len(v.Links) != 1 || len(v.Links[0].Cells) != 8 {
		t.Fatalf("links: %+v", v.Links)
	}
	for _, c := range v.Links[0].Cells {
		want := map[bool]float64{true: 4000, false: 1000}[c.From/2 == c.To/2]
		if c.From == 3 {
			want = 0
		}
		ratio := 0.0
		if want > 0 {
			ratio = 500 / want
		}
		if math.Abs(c.MBps-500) > 1 || c.Predicted != want || math.Abs(c.Against-ratio) > .01 {
			t.Errorf("%d to %d: %.0f MB/s of %.0f, ratio %.3f; want 500 of %.0f, %.3f", c.From, c.To, c.MBps, c.Predicted, c.Against, want, ratio)
		}
	}
}
