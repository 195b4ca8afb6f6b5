package simulation

import (
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/run/internal/member"
)

// The same settings give the same bytes, another seed gives others.
func TestSameSeedSameBytes(t *testing.T) {
	text := func(seed uint64) string {
		s := Random(seed)
		var b strings.Builder
		s.Log = func(at time.Duration, r member.ID, e member.Event) {
			b.WriteString(strings.Join([]string{at.String(), e.Kind.String(), e.Epoch.String()}, " "))
		}
		r, err := Run(s)
		if err != nil {
			t.Fatal(err)
		}
		return b.String() + r.String()
	}
	first, again := text(11), text(11)
	if first != again {
		t.Error("seed 11 twice gives different runs")
	}
	if first == text(12) {
		t.Error("seeds 11 and 12 give the same run")
	}
}

// Wrong scenarios are answered with what is known.
func TestScenarioErrors(t *testing.T) {
	for text, want := range map[string]string{
		"kill r1 at=1s":                         "start with a line such as",
		"cluster 4\nrun 1s\nmaim r1 at=1s":      "known are cluster, run, kill",
		"cluster 4 config=huge\nrun 1s":         "default, lab, hosts",
		"cluster 4\nkill r9 at=1s\nrun 2s":      "ranks are 0 to 3",
		"cluster 4\nkill r1\nrun 2s":            "say when",
		"cluster 4\npause r1 at=1s\nrun 2s":     "say for how long",
		"cluster 4\nkill r1 at=1s":              "does not run",
		"cluster 4\nkill x at=1s\nrun 2s":       "is not a rank",
		"cluster 0\nrun 2s":                     "from 1 to 100000",
		"cluster 4 min=5 max=3\nrun 2s":         "not below the least",
		"cluster 4\nkill r1 at=1s as=2\nrun 2s": "known are at, for",
	} {
		if _, err := Play(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; it should say %q", text, err, want)
		}
	}
}

// A simulated minute of 10,000 ranks, with nine deaths.
func BenchmarkTenThousand(b *testing.B) {
	for b.Loop() {
		s := Settings{Ranks: 10_000, Seed: 1, Member: member.Default(), Network: Datacenter(), Length: time.Minute,
			Faults: []Fault{{At: 3 * time.Second, What: Kill, Ranks: []int{16, 17, 18, 19, 20, 21, 22, 23}},
				{At: 10 * time.Second, What: Kill, Ranks: []int{9000}}}}
		r, err := Run(s)
		if err != nil || r.Deaths != 9 || r.Unknown != 0 {
			b.Fatal(err, r)
		}
		b.ReportMetric(float64(r.Events)/1e6, "Mevents/op")
	}
}

// FuzzScenario: lines of a scenario are read or refused, and name no more ranks than they can.
func FuzzScenario(f *testing.F) {
	for _, s := range []string{"kill r3 at=1.2s", "stop r0-2,5 at=1s for=2s", "kill r5-1 at=1s", "kill r-1 at=1s", "kill r0 at=-1s",
		"kill at=1s", "5 config=lab seed=3 loss=NaN", "0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		fields := strings.Fields(text)
		if len(fields) == 0 {
			return
		}
		if x, err := parseFault(fields); err == nil && x.At < 0 {
			t.Errorf("%q at %v", text, x.At)
		}
		if s, err := cluster(fields); err == nil && (s.Ranks < 1 || s.Ranks > 100_000) {
			t.Errorf("%q: %d ranks", text, s.Ranks)
		}
	})
}
