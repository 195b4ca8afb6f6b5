package serve

import (
	"strings"
	"testing"
)

// Intervals of each class of load contain about 90% of the points of campaigns that they do not know. With 8 to 19 campaigns a class,
// 80 to 95% are what chance leaves.
func TestIntervalsCoverLeftOutCampaigns(t *testing.T) {
	classes := map[string]map[string][]miss{}
	for _, m := range misses() {
		if classes[m.class] == nil {
			classes[m.class] = map[string][]miss{}
		}
		classes[m.class][m.campaign] = append(classes[m.class][m.campaign], m)
	}
	if len(classes) != 6 {
		t.Fatalf("%d classes, want 6", len(classes))
	}
	for class, campaigns := range classes {
		for _, first := range []bool{true, false} {
			sum, n := 0.0, 0
			for name, list := range campaigns {
				low, high, _, _ := spread(class, name, first)
				in, all := 0, 0
				for _, m := range list {
					v := m.token
					if first {
						v = m.first
					}
					if v > 0 {
						all++
						in += b2i(v >= low && v <= high)
					}
				}
				if all > 0 {
					sum, n = sum+float64(in)/float64(all), n+1
				}
			}
			low, high, _, points := spread(class, "", first)
			t.Logf("%s, first token %v: x%.2f to x%.2f, %d points of %d campaigns, covered %.1f%%",
				class, first, low, high, points, n, 100*sum/float64(n))
			if covered := sum / float64(n); covered < .80 || covered > .95 {
				t.Errorf("%s: %.1f%% of left-out campaigns' points are covered", class, 100*covered)
			}
		}
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// An answer says what it does not know.
func TestIntervalsNeedALoadThatWasMeasured(t *testing.T) {
	e := &Engine{}
	r := &Result{}
	e.Intervals(Load{Rate: 3}, []Try{{Result: r}})
	if r.FirstInterval != nil || !strings.Contains(r.Off(), "not known") {
		t.Errorf("arrivals at a rate: %s", r.Off())
	}
}
