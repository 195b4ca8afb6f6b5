package serve

import (
	"encoding/csv"
	"strconv"
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

// Answers and what they say of themselves hold against the file of measurements, read and counted here on its own: it has
// numbers where it should, and of each class a twentieth of the weight lies below the interval and a twentieth above.
func TestIntervalsHoldWhatTheFileSays(t *testing.T) {
	rows, err := csv.NewReader(strings.NewReader(errorsText)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		kind        string
		least, most float64
	}{{"dense", 1, 4}, {"dense", 5, 32}, {"dense", 33, 1e9}, {"experts", 1, 4}, {"experts", 5, 32}, {"experts", 33, 1e9}} {
		r := &Result{}
		r.TTFT.Mean, r.TPOT.Mean = 1, 1
		r.off(c.kind == "experts", c.least)
		for column, got := range map[int]*Interval{3: r.FirstInterval, 4: r.TokenInterval} {
			values := map[string][]float64{}
			points := 0
			for _, row := range rows[1:] {
				users, err := strconv.ParseFloat(row[2], 64)
				if row[column] == "" && column == 3 {
					continue // it waited for room
				}
				v, err2 := strconv.ParseFloat(row[column], 64)
				if err != nil || err2 != nil || users < 1 || v <= 0 {
					t.Fatalf("row %q is not one of numbers", row)
				}
				if row[0] == c.kind && users >= c.least && users <= c.most {
					values[row[1]] = append(values[row[1]], v)
					points++
				}
			}
			if got.Points != points || got.Campaigns != len(values) {
				t.Errorf("%s, %d points of %d campaigns are said; the file has %d of %d", got.Class, got.Points, got.Campaigns, points, len(values))
			}
			var below, notAbove, heaviest float64
			for _, list := range values {
				weight := 1 / float64(len(list)*len(values))
				heaviest = max(heaviest, weight)
				for _, v := range list {
					below += weight * float64(b2i(v < got.Low))
					notAbove += weight * float64(b2i(v <= got.High))
				}
			}
			if below > .05 || below < .05-heaviest-1e-9 || notAbove < .95-1e-9 || notAbove > .95+heaviest+1e-9 {
				t.Errorf("%s: %.3f of the weight lies below, %.3f not above", got.Class, below, notAbove)
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
