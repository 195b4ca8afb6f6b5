package cli

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/sim"
)

// simRow is one line of the answer; its keys are stable.
type simRow struct {
	Op       string  `json:"op"`
	Bytes    int64   `json:"bytes"`
	GPUs     int     `json:"gpus"`
	Algo     string  `json:"algo"`
	Proto    string  `json:"proto"`
	Channels int     `json:"channels"`
	Time     float64 `json:"time_us"`
	AlgBW    float64 `json:"algbw_GBps"`
	BusBW    float64 `json:"busbw_GBps"`
	Limit    string  `json:"limit"`
	Mean     float64 `json:"ecmp_mean_us,omitempty"`
	P99      float64 `json:"ecmp_p99_us,omitempty"` // of flowlets, if Routing says so
	Seeds    int     `json:"ecmp_seeds,omitempty"`
	Routing  string  `json:"routing,omitempty"` // that the seeds are for
	Seed     uint64  `json:"seed,omitempty"`
	Paused   float64 `json:"paused_share,omitempty"`   // of all flows' time: held back by a pause while no link on their way was full
	Copies   int     `json:"copies,omitempty"`         // bandwidths are those of each
	Short    bool    `json:"shortened,omitempty"`      // simulated with fewer ranks around a bad part, and carried on to all
	Every    int     `json:"repeated_every,omitempty"` // an estimate: the bad part was simulated in one of this number of hosts
	Digest   string  `json:"digest,omitempty"`
	Nearest  string  `json:"nearest,omitempty"`
	Error    float64 `json:"typical_error,omitempty"`
	Within   float64 `json:"within,omitempty"` // nine of ten left-out measurements lay within this part of their prediction

	Needs      string            `json:"needs,omitempty"`       // what the algorithm needs beyond links
	Tried      []string          `json:"tried,omitempty"`       // by auto: what was simulated
	LeftOut    map[string]string `json:"left_out,omitempty"`    // by auto: what was not, and why
	OverBudget []string          `json:"over_budget,omitempty"` // left out only because simulating them takes too much memory or time
	Notes      []string          `json:"notes,omitempty"`       // where the question lies outside of what was measured
}

// tell notes what the algorithm needs, and what auto chose among; why others were left out if the row is the only one.
func (r *simRow) tell(found *sim.Found, only bool) {
	r.Needs = sim.Needs(found.Algo)
	for _, t := range found.Tried {
		if t.Why == "" {
			r.Tried = append(r.Tried, t.Algo)
		} else if only {
			if r.LeftOut == nil {
				r.LeftOut = map[string]string{}
			}
			r.LeftOut[t.Algo] = t.Why
		}
		if t.Cost {
			r.OverBudget = append(r.OverBudget, t.Algo)
		}
	}
}

// about marks the time of a row that is an estimate.
func (r *simRow) about() string {
	if r.Every > 0 {
		return "~"
	}
	return ""
}

// channelsOf is how many channels a row has, a dash where that is not known.
func channelsOf(r simRow) string {
	if r.Channels == 0 {
		return "-"
	}
	return strconv.Itoa(r.Channels)
}

func printRows(w io.Writer, rows []simRow) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	ecmp := len(rows) > 0 && rows[0].Seeds > 0
	head := "size\tGPUs\talgorithm\tproto\tchannels\ttime\talgbw\tbusbw\t"
	if ecmp {
		how := map[string]string{"ecmp": "ECMP", "flowlet": "flowlets"}[rows[0].Routing]
		head = "size\tGPUs\talgorithm\tproto\tchannels\tadaptive\talgbw\tbusbw\t" + how + " mean\t" + how + " p99\t"
	}
	fmt.Fprintln(table, head+"limit")
	us := func(v float64) unit.Time { return unit.Time(v * 1e6) }
	for _, r := range rows {
		fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%s\t%s%s%s\t%.2f GB/s\t%.2f GB/s\t", unit.Bytes(r.Bytes), r.GPUs, r.Algo, r.Proto, channelsOf(r),
			r.about(), us(r.Time), r.interval(), r.AlgBW, r.BusBW)
		if ecmp {
			fmt.Fprintf(table, "%s\t%s\t", us(r.Mean), us(r.P99))
		}
		fmt.Fprintln(table, r.Limit)
	}
	table.Flush()
}

// interval is the part of the time by which it may be off, for the headline; empty where no measurements tell.
func (r simRow) interval() string {
	if r.Within <= 0 {
		return ""
	}
	return fmt.Sprintf(" ±%.0f%%", 100*r.Within)
}

// printNeeds says what algorithms in the answer need of the machine beyond links.
func printNeeds(w io.Writer, rows []simRow) {
	said := map[string]bool{}
	for _, r := range rows {
		if need := sim.Needs(r.Algo); need != "" && !said[r.Algo] {
			said[r.Algo] = true
			fmt.Fprintf(w, "%s needs %s; --no-switches leaves it out\n", r.Algo, need)
		}
	}
}

// printTried says what auto chose among.
func printTried(w io.Writer, r simRow) {
	if len(r.Tried) == 0 {
		return
	}
	fmt.Fprintf(w, "fastest of %s\n", strings.Join(r.Tried, ", "))
	if len(r.OverBudget) > 0 {
		fmt.Fprintf(w, "over budget: %s may be faster; give --memory or --limit more to find out\n", strings.Join(r.OverBudget, ", "))
	}
	why := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(r.LeftOut)) {
		why[r.LeftOut[name]] = append(why[r.LeftOut[name]], name)
	}
	for _, reason := range slices.Sorted(maps.Keys(why)) {
		fmt.Fprintf(w, "not tried: %s: %s\n", strings.Join(why[reason], ", "), reason)
	}
}

// printTiers shows how busy the parts of the cluster were.
func printTiers(w io.Writer, r *sim.Result) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "tier\tlink directions used\tbytes\tbusy, mean\tbusy, most")
	for _, t := range r.Tiers() {
		fmt.Fprintf(table, "%s\t%d\t%s\t%.1f%%\t%.1f%%\n", t.Tier, t.Wires, t.Bytes.Decimal(), 100*t.Mean, 100*t.Most)
	}
	table.Flush()
	if r.Paused > 0 {
		fmt.Fprintf(w, "Pauses held flows back, with no full link on their way, for %.1f%% of all flows' time.\n", 100*r.Paused)
	}
	fmt.Fprintf(w, "%d actions, %d of them folded; %s simulated\n", r.Actions, r.Folded, count(r.Ranks, "rank"))
	if r.Shortened {
		fmt.Fprintln(w, "The table is of the ranks around the bad part. The time of all ranks was carried on from three such parts, to about 1%.")
	}
	switch {
	case r.Every == 1:
		fmt.Fprintln(w,
			"The time is an estimate: the bad part was simulated in every host, so that ranks fold. Nine of ten such estimates are within 15%.")
	case r.Every > 1:
		fmt.Fprintf(w,
			"The time is an estimate: the bad part was simulated in one of every %d hosts, so that ranks fold. Nine of ten such estimates are within 7%%.\n",
			r.Every)
	}
}

type traceFunc func(t *sim.Trace, w io.Writer, title string, name func(job, rank int) string) error

// traceWriter chooses the form of a trace by the file's name.
func traceWriter(path string) (traceFunc, error) {
	switch {
	case path == "":
		return nil, nil
	case strings.HasSuffix(path, ".json"):
		return func(t *sim.Trace, w io.Writer, _ string, name func(job, rank int) string) error {
			return t.WriteChrome(w, name)
		}, nil
	case strings.HasSuffix(path, ".svg"):
		return func(t *sim.Trace, w io.Writer, title string, name func(job, rank int) string) error {
			return t.WriteTimeline(w, title, name)
		}, nil
	}
	return nil, fmt.Errorf("-o %s: a trace is written to FILE.json (Perfetto) or FILE.svg (timeline)", path)
}

// progress tells a terminal how far a long simulation is; nil elsewhere.
func progress(w io.Writer) func(now unit.Time, actions int64) {
	f, ok := w.(*os.File)
	if !ok {
		return nil
	}
	if st, err := f.Stat(); err != nil || st.Mode()&os.ModeCharDevice == 0 {
		return nil
	}
	start := time.Now()
	shown := start
	return func(now unit.Time, actions int64) {
		if t := time.Now(); t.Sub(start) > time.Second && t.Sub(shown) > 100*time.Millisecond {
			shown = t
			fmt.Fprintf(w, "\r\033[Ksimulated %s, %d actions", now, actions)
		}
	}
}
