package serve

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Interval is where a mean time lies with 90% confidence: the prediction times what was measured over what was predicted, from the 5th
// percentile to the 95th. All that was measured are closed loops of users, and how a client spreads its users over time, which decides how
// long prompts queue, belongs to a campaign: the runs of one client with an engine, model, GPU and type. Every campaign has the same
// weight.
type Interval struct {
	Low       float64 `json:"low_s"`
	High      float64 `json:"high_s"`
	Class     string  `json:"class"`
	Campaigns int     `json:"campaigns"` // that the class has
	Points    int     `json:"points"`
}

// errors.csv is measured over predicted times, with factors of the engine's other models. make serve-accuracy writes it.
//
//go:embed errors.csv
var errorsText string

// miss is a row of it. A first token of 0 waited for room, and is left out.
type miss struct {
	class, campaign string
	first, token    float64
}

var misses = sync.OnceValue(func() (all []miss) {
	for line := range strings.Lines(errorsText) {
		c := strings.Split(strings.TrimSpace(line), ",")
		users, err := strconv.Atoi(c[2])
		if err != nil {
			continue // the columns
		}
		first, _ := strconv.ParseFloat(c[3], 64)
		token, _ := strconv.ParseFloat(c[4], 64)
		all = append(all, miss{loadClass(c[0] == "experts", float64(users)), c[1], first, token})
	}
	return all
})

// loadClass is whose errors a prediction shares: by kind of model and users per copy.
func loadClass(experts bool, users float64) string {
	kind := "dense models"
	if experts {
		kind = "models with experts"
	}
	switch {
	case users <= 4:
		return kind + ", up to 4 users per copy"
	case users <= 32:
		return kind + ", 5 to 32 users per copy"
	}
	return kind + ", more than 32 users per copy"
}

// spread is what 90% of measured over predicted times lie between, one campaign left out if leave names it; of first tokens or of others.
func spread(class, leave string, first bool) (low, high float64, campaigns, points int) {
	by := map[string][]float64{}
	for _, m := range misses() {
		v := m.token
		if first {
			v = m.first
		}
		if m.class == class && m.campaign != leave && v > 0 {
			by[m.campaign] = append(by[m.campaign], v)
			points++
		}
	}
	return quantileOf(by, .05), quantileOf(by, .95), len(by), points
}

// quantileOf is a quantile of all values, those of each list weighing as much as another list's.
func quantileOf(by map[string][]float64, q float64) float64 {
	type weighed struct{ value, weight float64 }
	var all []weighed
	for _, list := range by {
		for _, v := range list {
			all = append(all, weighed{v, 1 / float64(len(list)*len(by))})
		}
	}
	slices.SortFunc(all, func(a, b weighed) int {
		if a.value < b.value {
			return -1
		}
		return 1
	})
	sum := 0.0
	for _, x := range all {
		if sum += x.weight; sum >= q-1e-9 {
			return x.value
		}
	}
	return 0
}

// Intervals fills in how far the means may be off under a load. Nothing is known of loads that are no closed loop of users, nor of
// prompts and answers on copies of their own.
func (e *Engine) Intervals(l Load, tries []Try) {
	if l.Concurrency == 0 || len(l.Trace) > 0 {
		return
	}
	for _, x := range tries {
		if x.Result != nil && x.Layout.Prefill == 0 {
			x.Result.off(e.Model.Experts > 0, float64(l.Concurrency)/float64(max(x.Layout.Replicas, 1)))
		}
	}
}

// off fills in the intervals of a result, by users per copy.
func (r *Result) off(experts bool, users float64) {
	class := loadClass(experts, users)
	of := func(mean float64, first bool) *Interval {
		low, high, campaigns, points := spread(class, "", first)
		return &Interval{mean * low, mean * high, class, campaigns, points}
	}
	r.FirstInterval, r.TokenInterval = of(r.TTFT.Mean, true), of(r.TPOT.Mean, false)
}

// Off says how far a result's means may be off.
func (r *Result) Off() string {
	f, t := r.FirstInterval, r.TokenInterval
	if f == nil {
		return "how far this is off is not known: all that was measured are closed loops of users, prompts and answers on the same copies"
	}
	few := ""
	if f.Campaigns < 9 {
		few = "; fewer than 9 cannot support 90%"
	}
	return fmt.Sprintf("90%% interval of the mean first token %.3g to %.3g s, of the mean token %.3g to %.3g ms: "+
		"%d points of %d campaigns (%s)%s.\nHow a client spreads its users in time decides how prompts queue, and is not known",
		f.Low, f.High, 1e3*t.Low, 1e3*t.High, f.Points, f.Campaigns, f.Class, few)
}
