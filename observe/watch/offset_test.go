package watch

import (
	"slices"
	"testing"
)

// Rank 0 on n0 dies first; a second later rank 1 on n1, whose clock is wrong by ahead and whose reports take a while, now and then
// long. n1's last report is the slowest. Who died first must not depend on that.
func TestClocksAreJudgedByTheFastestReports(t *testing.T) {
	for _, ahead := range []float64{0, -7, 90, -1.2, 1.2} {
		m := New(Config{})
		say := func(now float64, host string, at float64, l ...Launch) {
			t.Helper()
			if err := m.Observe(now, &Report{Host: host, At: at, Every: 1, Launches: l}); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 20 {
			at := 100 + float64(i)
			say(at+0.01, "n0", at)
			say(at+0.01+float64(i%4), "n1", at+ahead)
		}
		died := func(rank int, host string, at float64) Launch {
			return Launch{Event: "ended", At: at, Job: "j", Rank: rank, Size: 2, PID: 10 + rank, Host: host, Signal: 9}
		}
		say(124, "n1", 120+ahead, died(1, "n1", 119+ahead)) // 4 s on its way
		say(124, "n0", 124, died(0, "n0", 118))
		deaths := m.jobs["j"].deaths
		var order []int
		for _, d := range deaths {
			order = append(order, d.Rank)
		}
		if !slices.Equal(order, []int{0, 1}) || deaths[1].At < 118.9 || deaths[1].At > 119.1 {
			t.Errorf("a clock that is %+.1f s ahead: %v, rank 1 at %.2f", ahead, order, deaths[1].At)
		}
	}
}
