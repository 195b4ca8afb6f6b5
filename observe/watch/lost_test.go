package watch

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/observe/doctor"
)

// A host that goes dark takes its job with it. It is named, and neither a hang nor the ranks that give up later are.
func TestLostHostIsNamed(t *testing.T) {
	p := newPlay(8, 1, Config{Hang: 5})
	for range 30 {
		p.second()
	}
	p.dark = map[int]bool{2: true}
	i, took := p.until(t, 20)
	if i.Kind != "node-lost" || !slices.Equal(i.Subject.Ranks, []int{4, 5}) || !slices.Equal(i.Subject.Hosts, []string{"n2"}) {
		t.Fatalf("after %d s %s of %v: %s", took, i.Kind, i.Subject, i.Verdict)
	}
	if took > 12 {
		t.Errorf("it took %d s", took)
	}
	for r := range 4 { // their watchdog ends them
		p.gone[r] = true
		rep := Report{Host: fmt.Sprintf("n%d", r/2), At: p.now, Every: 1,
			Launches: []Launch{{Event: "ended", At: p.now, Job: "train", Rank: r, PID: 100 + r, Host: fmt.Sprintf("n%d", r/2), Signal: 6,
				Seen: true}}}
		if err := p.m.Observe(p.now, &rep); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		p.second()
	}
	if len(p.alarms) != 1 {
		t.Errorf("also %s: %s", p.alarms[1].Kind, p.alarms[1].Verdict)
	}
	v := p.m.View(p.now)
	if len(v.Jobs) != 1 || v.Jobs[0].End != "failed: host n2 was lost" {
		t.Errorf("the job %+v", v.Jobs)
	}
	if list := v.Incidents; len(list[0].Follows) != 4 || !strings.Contains(list[0].Follows[0], "rank 0 was killed by SIGABRT") {
		t.Errorf("consequences %q", list[0].Follows)
	}
}

// Hosts that were starved may be silent for longer. Ranks that give up meanwhile are not named for it: whether the silent host
// is lost is not known yet. If it is heard of again, they are.
func TestSurvivorsOfAStarvedHost(t *testing.T) {
	for _, back := range []bool{false, true} {
		p := newPlay(8, 1, Config{Hang: 60})
		p.load = map[int]Load{}
		for h := range 4 {
			p.load[h] = Load{CPU: 0.9}
		}
		p.run(30)
		p.dark = map[int]bool{2: true}
		p.m.jobs["train"].moved += 6 // a starved agent tells late of the last operation
		p.run(15)
		p.seq++            // the operation ends when they give it up
		for r := range 4 { // they wait no longer
			p.gone[r] = true
			rep := Report{Host: fmt.Sprintf("n%d", r/2), At: p.now, Every: 1,
				Launches: []Launch{{Event: "ended", At: p.now, Job: "train", Rank: r, PID: 100 + r, Host: fmt.Sprintf("n%d", r/2), Code: 1,
					Seen: true}}}
			if err := p.m.Observe(p.now, &rep); err != nil {
				t.Fatal(err)
			}
		}
		p.run(10)
		if len(p.alarms) > 0 {
			t.Fatalf("after 25 s of silence: %s", p.alarms[0].Verdict)
		}
		kind, hosts := "node-lost", []string{"n2"}
		if back {
			kind, hosts, p.dark, p.stuck = "rank-dead", []string{"n0"}, nil, p.n
		}
		if i, s := p.until(t, 30); i.Kind != kind || !slices.Equal(i.Subject.Hosts, hosts) {
			t.Errorf("heard of again %v: %s after %d s", back, i.Verdict, s)
		}
		if p.run(20); len(p.alarms) > 1 {
			t.Errorf("heard of again %v: also %s", back, p.alarms[1].Verdict)
		}
	}
}

// A rank that is still in an operation that others have finished called the same one, whatever it is called: what a rank is in
// has no name in reports.
func TestBehindIsNoMismatch(t *testing.T) {
	m := New(Config{Hang: 5})
	var news []Incident
	for now := 1000.0; now < 1020; now++ {
		rep := &Report{Host: "n0", Boot: "b", At: now, Every: 1, HasRanks: true}
		for r := range 4 {
			g := Group{Name: "world", Op: "all-reduce", Done: 22, In: true, Ranks: []int{0, 1, 2, 3}}
			if r > 1 {
				g.Done = 21
			}
			rep.Ranks = append(rep.Ranks, Rank{Job: "train", Rank: r, Size: 4, PID: 100 + r, State: "S", Groups: []Group{g}})
		}
		if err := m.Observe(now, rep); err != nil {
			t.Fatal(err)
		}
		news = append(news, m.Tick(now)...)
	}
	if len(news) != 1 || news[0].Kind != "hang" || !slices.Equal(news[0].Subject.Ranks, []int{2, 3}) {
		t.Errorf("%+v", news)
	}
}

// A host whose agent alone is silent is not lost: its job goes on.
func TestSilentAgentIsNoLostHost(t *testing.T) {
	p := newPlay(8, 1, Config{Hang: 5})
	for range 30 {
		p.second()
	}
	p.m.hosts["n3"].at -= 11 // its report is late, and the others' operations end
	p.m.Tick(p.now)
	for _, i := range p.m.View(p.now).Incidents {
		if i.Kind != "agent-silent" {
			t.Errorf("%s: %s", i.Kind, i.Verdict)
		}
	}
}

// deaths lets ranks of one host end, as an agent saw it, and gives what is said of the job.
func deaths(t *testing.T, list ...Launch) (named []int, end string) {
	t.Helper()
	m := New(Config{})
	size := 0
	for _, l := range list {
		size = max(size, l.Rank+1)
	}
	rep := Report{Host: "n0", At: 100, Every: 1, HasRanks: true}
	for r := range size {
		rep.Ranks = append(rep.Ranks, Rank{Job: "j", Rank: r, Size: size, PID: 10 + r, State: "S"})
	}
	if err := m.Observe(100, &rep); err != nil {
		t.Fatal(err)
	}
	rep = Report{Host: "n0", At: 102, Every: 1, HasRanks: true}
	for _, l := range list {
		l.Event, l.Job, l.Host, l.PID, l.Size, l.Seen, l.At = "ended", "j", "n0", 10+l.Rank, size, true, 101+l.At
		rep.Launches = append(rep.Launches, l)
	}
	if err := m.Observe(102, &rep); err != nil {
		t.Fatal(err)
	}
	for now := 102.0; now < 108; now++ {
		rep := Report{Host: "n0", At: now, Every: 1, HasRanks: true}
		if err := m.Observe(now, &rep); err != nil {
			t.Fatal(err)
		}
		for _, i := range m.Tick(now) {
			if i.Ended == 0 {
				named = append(named, i.Subject.Ranks...)
			}
		}
	}
	return named, m.View(108).Jobs[0].End
}

// Who died first, by what the kernel says of processes that others started.
func TestFirstDeath(t *testing.T) {
	for _, c := range []struct {
		what  string
		list  []Launch
		named []int
		end   string
	}{
		{"all end well", []Launch{{Rank: 0}, {Rank: 1, At: 0.1}}, nil, "finished"},
		{"peers of a killed rank exit before the kernel tells of it",
			[]Launch{{Rank: 0, Code: 1}, {Rank: 1, Code: 1, At: 0.001}, {Rank: 2, Signal: 9, At: 0.004}}, []int{2}, "failed by rank 2"},
		{"the launcher kills the others a second after one failed",
			[]Launch{{Rank: 1, Code: 3}, {Rank: 0, Signal: 9, At: 1.1}, {Rank: 2, Signal: 9, At: 1.1}}, []int{1}, "failed by rank 1"},
		{"the launcher asks the others to end", []Launch{{Rank: 1, Code: 3}, {Rank: 0, Signal: 15, At: 0.002}, {Rank: 2, Signal: 15, At: 0.003}},
			[]int{1}, "failed by rank 1"},
		{"others abort after one failed", []Launch{{Rank: 1, Code: 1}, {Rank: 0, Signal: 6, At: 0.1}, {Rank: 2, Signal: 6, At: 0.1}}, []int{1},
			"failed by rank 1"},
		{"all are asked to end", []Launch{{Rank: 0, Signal: 15}, {Rank: 1, Signal: 15, At: 0.01}, {Rank: 2, Code: 1, At: 0.02}}, nil,
			"cancelled"},
		{"somebody asked one to end", []Launch{{Rank: 1, Signal: 15}, {Rank: 0, Code: 1, At: 0.01}, {Rank: 2, Code: 1, At: 0.02}}, []int{1},
			"failed by rank 1"},
		{"the others blame one that ends after them",
			[]Launch{{Rank: 0, Code: 1, Why: PeerDied}, {Rank: 1, Code: 1, Why: PeerDied, At: 0.1}, {Rank: 2, Code: 1, Why: "disk-full", At: 0.6}},
			[]int{2}, "failed by rank 2"},
		{"a full disk ends one, and its launcher kills another at once",
			[]Launch{{Rank: 0, Code: 1, Why: PeerDied}, {Rank: 2, Code: 1, Why: "disk-full", At: 0.05}, {Rank: 1, Signal: 9, At: 0.1}}, []int{2},
			"failed by rank 2"},
		{"one is killed for memory, and an error of another is written before",
			[]Launch{{Rank: 0, Code: 1, Why: "program-error"}, {Rank: 2, Signal: 9, Why: "host-out-of-memory", At: 0.01},
				{Rank: 1, Code: 1, At: 0.1}}, []int{2}, "failed by rank 2"},
		{"a crash", []Launch{{Rank: 2, Signal: 11}, {Rank: 0, Signal: 15, At: 0.5}, {Rank: 1, Signal: 15, At: 0.5}}, []int{2},
			"failed by rank 2"},
	} {
		if named, end := deaths(t, c.list...); !slices.Equal(named, c.named) || end != c.end {
			t.Errorf("%s: named %v, the job %q; want %v, %q", c.what, named, end, c.named, c.end)
		}
	}
}

// Ranks end when they find that one of them called another operation. Who ended first means nothing, even if it is the one
// that differed.
func TestMismatchIsNotWhoEndedFirst(t *testing.T) {
	for first := range 3 {
		m := New(Config{})
		rep := Report{Host: "n0", At: 100, Every: 1, HasRanks: true}
		for r := range 3 {
			rep.Ranks = append(rep.Ranks, Rank{Job: "j", Rank: r, Size: 3, PID: 10 + r, State: "S"})
		}
		if err := m.Observe(100, &rep); err != nil {
			t.Fatal(err)
		}
		rep = Report{Host: "n0", At: 102, Every: 1, HasRanks: true}
		for k := range 3 {
			r := (first + k) % 3
			d := doctor.Dump{File: fmt.Sprint(r), Rank: r, NameRank: r, Groups: []doctor.Group{{ID: -1, Name: "g", Ranks: []int{0, 1, 2}}},
				Entries: []doctor.Op{{Group: "g", GroupID: -1, Seq: 5, Name: "all_reduce", From: -1, To: -1, State: "started"}}}
			if r == 2 {
				d.Entries[0].Name = "all_gather"
			}
			rep.Dumps = append(rep.Dumps, Dump{"j", d})
			rep.Launches = append(rep.Launches, Launch{Event: "ended", At: 101 + 0.01*float64(k), Job: "j", Rank: r, Size: 3, PID: 10 + r,
				Host: "n0", Code: 1, Seen: true})
		}
		if err := m.Observe(102, &rep); err != nil {
			t.Fatal(err)
		}
		var got []string
		for now := 102.0; now < 108; now += 0.5 {
			for _, i := range m.Tick(now) {
				if i.Ended == 0 {
					got = append(got, fmt.Sprint(i.Kind, i.Subject.Ranks))
				}
			}
		}
		if end := m.View(108).Jobs[0].End; !slices.Equal(got, []string{"mismatch[2]"}) || end != "failed by rank 2" {
			t.Errorf("rank %d ended first: %q, the job %s", first, got, end)
		}
	}
}

// On a host whose tasks wait for processors a rank that is a little late is no straggler; one that holds all others up is.
func TestLateOnAStarvedHost(t *testing.T) {
	for _, c := range []struct {
		late  float64
		named bool
	}{{0.012, false}, {0.06, true}} {
		p := newPlay(8, 3, Config{})
		p.load = map[int]Load{}
		for h := range 4 {
			p.load[h] = Load{CPU: 0.9}
		}
		for range 20 {
			p.second()
		}
		p.late[5] = c.late
		for range 40 {
			p.second()
		}
		if named := len(p.alarms) > 0; named != c.named || named &&
			(p.alarms[0].Kind != "straggler" || !slices.Equal(p.alarms[0].Subject.Ranks, []int{5})) {
			t.Errorf("%g s late of 0.1 s: %+v", c.late, p.alarms)
		}
		p.load = nil
	}
}

// What takes long on starved hosts, collectives and links alike, is no fault of its own.
func TestSlowOnAStarvedHost(t *testing.T) {
	for _, starved := range []bool{false, true} {
		p := newPlay(8, 3, Config{})
		for range 150 { // a baseline
			p.second()
		}
		if p.load = map[int]Load{}; starved {
			for h := range 4 {
				p.load[h] = Load{CPU: 0.9}
			}
		}
		p.drag = 20
		for s := range 60 { // a link of ranks that wait for processors is slow by turns, one that is slow always
			if p.slow[pair{1, 2}] = 13; starved {
				p.slow[pair{1, 2}] = 1 + 25*float64(s%2)
			}
			p.second()
		}
		var kinds []string
		for _, i := range p.alarms {
			kinds = append(kinds, i.Kind)
		}
		slices.Sort(kinds)
		if want := []string{"slow-collective", "slow-link"}; starved && kinds != nil || !starved && !slices.Equal(kinds, want) {
			t.Errorf("starved %v: %v", starved, kinds)
		}
	}
}

// Operations that were all told of in one report say nothing of the time between them, so nobody waits for longer than ever.
func TestAllToldAtOnce(t *testing.T) {
	m := New(Config{})
	rep := Report{Host: "n0", At: 100, Every: 1, HasRanks: true}
	for r := range 4 {
		x := Rank{Job: "j", Rank: r, Size: 4, PID: 10 + r, State: "S", Groups: []Group{{Name: "g", Done: 40}}}
		for k := range 40 {
			took := 0.02
			if r == 2 {
				took = 0.001
			}
			x.Groups[0].Ops = append(x.Groups[0].Ops, Op{Seq: int64(k + 1), Name: "all-reduce", Bytes: 1024, Took: took})
		}
		rep.Ranks = append(rep.Ranks, x)
	}
	if err := m.Observe(100, &rep); err != nil {
		t.Fatal(err)
	}
	for now := 100.0; now < 106; now += 0.5 {
		for _, i := range m.Tick(now) {
			t.Errorf("%s: %s", i.Kind, i.Verdict)
		}
	}
	for _, l := range m.View(106).Late {
		if l.Cost > 1 {
			t.Errorf("others wait for rank %d %g of the time", l.Rank, l.Cost)
		}
	}
}

// A launcher's word and the new process in the list are one restart, in whichever order they come.
func TestRestartIsToldOnce(t *testing.T) {
	for _, listFirst := range []bool{false, true} {
		m := New(Config{Elastic: true})
		list := func(at float64, pid int) {
			rep := Report{Host: "n0", At: at, Every: 1, HasRanks: true}
			for r := range 4 {
				x := Rank{Job: "j", Rank: r, Size: 4, PID: 10 + r, State: "S"}
				if r == 1 {
					x.PID = pid
				}
				if x.PID != 0 {
					rep.Ranks = append(rep.Ranks, x)
				}
			}
			if err := m.Observe(at, &rep); err != nil {
				t.Fatal(err)
			}
		}
		say := func(at float64, l Launch) {
			l.At, l.Job, l.Rank, l.Size, l.Host = at, "j", 1, 4, "n0"
			if err := m.Observe(at, &Report{Host: "n0", At: at, Every: 1, Launches: []Launch{l}}); err != nil {
				t.Fatal(err)
			}
		}
		list(100, 11)
		say(101, Launch{Event: "ended", PID: 11, Signal: 9})
		list(101.2, 0)
		if listFirst {
			list(101.5, 99)
		}
		say(101.6, Launch{Event: "started", PID: 99})
		list(101.7, 99)
		var got []string
		for now := 102.0; now < 110; now += 0.5 {
			for _, i := range m.Tick(now) {
				if i.Ended == 0 {
					got = append(got, i.Kind+" "+i.Verdict)
				}
			}
			list(now, 99)
		}
		if want := "rank-restarted rank 1 of j: process 11 was killed by SIGKILL, process 99 took its place on n0"; len(got) != 1 ||
			got[0] != want {
			t.Errorf("list first %v: %q, want %q", listFirst, got, want)
		}
	}
}

// On a starved host a rank that is not let run for a while makes its links look slow. A link that stays so is.
func TestLinkOfAStarvedHost(t *testing.T) {
	for _, c := range []struct {
		seconds int
		slow    float64 // times
		rests   bool    // it is so every other second
		named   bool
	}{{8, 100, false, false}, {30, 100, false, true}, {30, 13, false, true}, {60, 40, true, false}} {
		p := newPlay(8, 3, Config{})
		p.run(30)
		p.load = map[int]Load{0: {CPU: 0.9}, 1: {CPU: 0.9}, 2: {CPU: 0.9}, 3: {CPU: 0.9}}
		p.run(10)
		for s := range c.seconds {
			if p.slow[pair{1, 2}] = c.slow; c.rests && s%2 > 0 {
				delete(p.slow, pair{1, 2})
			}
			p.second()
		}
		delete(p.slow, pair{1, 2})
		p.run(10)
		if named := len(p.alarms) > 0; named != c.named || named &&
			(p.alarms[0].Kind != "slow-link" || !slices.Equal(p.alarms[0].Subject.Ranks, []int{1, 2})) {
			t.Errorf("%g times as slow for %d s, with rests %v: %+v", c.slow, c.seconds, c.rests, p.alarms)
		}
	}
}

// A rank that ended well when its launcher asked all to end is not dead, though another waits for it in an operation for a moment.
func TestAskedToEndIsNotDead(t *testing.T) {
	for _, asked := range []bool{true, false} {
		m := New(Config{})
		rep := Report{Host: "n0", At: 100, Every: 1, HasRanks: true}
		for r := range 2 {
			rep.Ranks = append(rep.Ranks, Rank{Job: "j", Rank: r, Size: 2, PID: 10 + r, State: "S"})
		}
		if err := m.Observe(100, &rep); err != nil {
			t.Fatal(err)
		}
		rep = Report{Host: "n0", At: 102, Every: 1, HasRanks: true, Ranks: rep.Ranks[:1],
			Launches: []Launch{{Event: "ended", At: 101, Job: "j", Rank: 1, Size: 2, PID: 11, Host: "n0", Asked: asked}}}
		for r, state := range []string{"started", "completed"} {
			rep.Dumps = append(rep.Dumps, Dump{"j", doctor.Dump{File: fmt.Sprint(r), Rank: r, NameRank: r,
				Groups:  []doctor.Group{{ID: -1, Name: "g", Ranks: []int{0, 1}}},
				Entries: []doctor.Op{{Group: "g", GroupID: -1, Seq: int64(5 - r), Name: "all_reduce", From: -1, To: -1, State: state}}}})
		}
		if err := m.Observe(102, &rep); err != nil {
			t.Fatal(err)
		}
		var named []int
		for now := 102.0; now < 108; now += 0.5 {
			for _, i := range m.Tick(now) {
				named = append(named, i.Subject.Ranks...)
			}
		}
		if len(named) > 0 == asked {
			t.Errorf("asked to end %t: named %v", asked, named)
		}
	}
}
