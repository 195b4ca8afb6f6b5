package watch

import (
	"strings"
	"testing"
)

// A rank of an elastic job that was killed and started again is told of as restarted, with its signal, in whichever order an
// agent hears of the end of the old process and of the new one.
func TestRestartedInAnyOrder(t *testing.T) {
	end := Launch{Event: "ended", At: 101, Job: "up", Rank: 1, Size: 2, PID: 11, Host: "n0", Signal: 9, Seen: true}
	for name, heard := range map[string][2][]Launch{ // in the first report with the new process, and before it
		"end with the new process": {{end}, nil},
		"end before it":            {nil, {end}},
	} {
		m := New(Config{Elastic: true})
		var said []string
		report := func(now float64, pid int, launches []Launch) {
			rep := Report{Host: "n0", At: now, Every: 1, HasRanks: true, Launches: launches,
				Ranks: []Rank{{Job: "up", Rank: 0, Size: 2, PID: 10, State: "S"}}}
			if pid != 0 {
				rep.Ranks = append(rep.Ranks, Rank{Job: "up", Rank: 1, Size: 2, PID: pid, State: "S"})
			}
			if err := m.Observe(now, &rep); err != nil {
				t.Fatal(err)
			}
			for _, i := range m.Tick(now) {
				if i.Ended == 0 {
					said = append(said, i.Kind+": "+i.Verdict)
				}
			}
		}
		report(100, 11, nil)
		if heard[1] != nil {
			report(101, 0, heard[1])
		}
		report(101.5, 12, heard[0])
		for now := 102.0; now < 112; now++ {
			report(now, 12, nil)
		}
		if len(said) != 1 || !strings.HasPrefix(said[0], "rank-restarted: ") ||
			!strings.Contains(said[0], "process 11 was killed by SIGKILL, process 12 took its place") {
			t.Errorf("%s: %q", name, said)
		}
	}
}
