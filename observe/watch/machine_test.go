package watch

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/internal/health"
)

// play is a job in virtual time: n ranks, one host for two of them, an operation every
// 100 ms, reports every second.
type play struct {
	n       int
	rng     *rand.Rand
	m       *Machine
	now     float64
	seq     int64
	late    map[int]float64 // seconds that a rank is late
	slow    map[pair]float64
	cut     map[pair]bool
	gone    map[int]bool
	stopped map[int]bool
	stuck   int // a rank that does not come any more, -1 for none
	full    map[int]bool
	drag    float64             // operations take as many times as long
	ops     int                 // operations a second; 0 for ten
	first   int                 // late ranks are late to every operation with a number that this divides, and to no other; 0 to all
	links   map[pair][2]float64 // acked, busy
	alarms  []Incident
	load    map[int]Load    // of hosts
	dark    map[int]bool    // hosts that are lost
	burns   map[int]float64 // processor time that a rank uses a second
	turns   map[int]Turns   // that threads of ranks have a second; none are looked at if nil
	had     map[int]Turns   // so far
}

func newPlay(n int, seed uint64, c Config) *play {
	return &play{n: n, rng: rand.New(rand.NewPCG(seed, 1)), m: New(c), now: 1e9, stuck: -1, late: map[int]float64{}, slow: map[pair]float64{},
		cut: map[pair]bool{}, gone: map[int]bool{}, stopped: map[int]bool{}, full: map[int]bool{}, links: map[pair][2]float64{},
		had: map[int]Turns{}}
}

// second lets a second pass.
func (p *play) second() {
	p.now++
	stands := p.stuck >= 0
	for r := range p.n {
		stands = stands || p.gone[r] || p.stopped[r] || p.dark[r/2]
	}
	var ops []map[int]float64
	if !stands {
		for k := range cmp.Or(p.ops, 10) {
			arrive := make([]float64, p.n)
			end := 0.0
			for r := range arrive {
				arrive[r] = math.Abs(p.rng.NormFloat64()) * 0.002
				if p.first == 0 || k%p.first == 0 {
					arrive[r] += p.late[r]
				}
				if p.rng.Float64() < 0.1/float64(cmp.Or(p.ops, 10)) {
					arrive[r] += 0.02 // the scheduler
				}
				end = max(end, arrive[r])
			}
			took := map[int]float64{}
			for r := range arrive {
				took[r] = end - arrive[r] + 0.001*max(1, p.drag)
			}
			ops = append(ops, took)
		}
	}
	for h := 0; h < p.n; h += 2 {
		if p.dark[h/2] {
			continue
		}
		rep := Report{Host: fmt.Sprintf("n%d", h/2), Boot: "b", At: p.now, Every: 1, HasRanks: true}
		if l, ok := p.load[h/2]; ok {
			rep.Load = &l
		}
		for r := h; r < min(h+2, p.n); r++ {
			if p.gone[r] {
				continue
			}
			x := Rank{Job: "train", Rank: r, Size: p.n, PID: 100 + r, State: "S", Limit: 1 << 30, Used: 1 << 28, CPU: (p.now - 1e9) * p.burns[r]}
			if p.stopped[r] {
				x.State = "T"
			}
			if t, ok := p.turns[r]; ok {
				h := p.had[r]
				h = Turns{h.Seen + 1, h.Ran + t.Ran, h.Waited + t.Waited, h.Times + t.Times}
				p.had[r], x.Turns = h, &h
			}
			if p.full[r] {
				x.Used = 1020 << 20
			}
			g := Group{Name: "world", Done: p.seq + int64(len(ops)), In: stands && r != p.stuck && !p.stopped[r]}
			for i, o := range ops {
				g.Ops = append(g.Ops, Op{Seq: p.seq + int64(i) + 1, Name: "all-reduce", Bytes: 4 << 20, Took: o[r]})
			}
			x.Groups = []Group{g}
			for _, d := range []int{1, p.n - 1} { // a ring, both ways
				k := pair{r, (r + d) % p.n}
				f := p.links[k]
				const bytes = 40e6
				per := 1e-9 * (1 + 0.3*p.rng.Float64())
				if s := p.slow[k]; s > 0 {
					per *= s
				}
				if !stands && !p.cut[k] {
					f[0], f[1] = f[0]+bytes, f[1]+bytes*per
				}
				l := Link{Local: fmt.Sprintf("10.0.0.%d:%d", r, 1000+k.to), Remote: fmt.Sprintf("10.0.0.%d:%d", k.to, 1000+r)}
				if p.cut[k] {
					f[1]++
					l.Queued = 4096
				}
				p.links[k] = f
				l.Acked, l.Busy = f[0], f[1]
				x.Links = append(x.Links, l)
			}
			rep.Ranks = append(rep.Ranks, x)
		}
		if err := p.m.Observe(p.now, &rep); err != nil {
			panic(err)
		}
	}
	p.seq += int64(len(ops))
	for _, i := range p.m.Tick(p.now) {
		if i.Ended == 0 {
			p.alarms = append(p.alarms, i)
		}
	}
}

// until lets time pass until an incident opens, and gives it and the seconds it took.
func (p *play) until(t *testing.T, limit int) (Incident, int) {
	t.Helper()
	n := len(p.alarms)
	for s := 1; s <= limit; s++ {
		if p.second(); len(p.alarms) > n {
			return p.alarms[n], s
		}
	}
	t.Fatalf("no verdict within %d s", limit)
	return Incident{}, 0
}

func (p *play) run(seconds int) {
	for range seconds {
		p.second()
	}
}

// Every fault is named, with the right subject, within five seconds, in virtual time and
// for several seeds.
func TestFaultsAreNamed(t *testing.T) {
	for _, c := range []struct {
		name, kind string
		ranks      []int
		limit      int
		do         func(*play)
	}{
		{"late", "straggler", []int{5}, 5, func(p *play) { p.late[5] = 0.03 }},
		{"late in steps of five operations", "straggler", []int{5}, 6, func(p *play) { p.late[5], p.first = 0.05, 5 }},
		{"late in steps of a second", "straggler", []int{5}, 5, func(p *play) { p.late[5] = 0.06 }},
		{"late in steps of a second of forty operations", "straggler", []int{5}, 5, func(p *play) { p.late[5], p.first = 0.06, 40 }},
		{"stopped", "rank-stopped", []int{2}, 2, func(p *play) { p.stopped[2] = true }},
		{"died", "rank-dead", []int{3}, 5, func(p *play) { p.gone[3] = true }},
		{"hangs", "hang", []int{6}, 35, func(p *play) { p.stuck = 6 }},
		{"link", "slow-link", []int{3, 4}, 5, func(p *play) { p.slow[pair{3, 4}] = 30 }},
		{"sender", "slow-sender", []int{1}, 5, func(p *play) { p.slow[pair{1, 2}], p.slow[pair{1, 0}] = 30, 30 }},
		{"receiver", "slow-receiver", []int{1}, 5, func(p *play) { p.slow[pair{2, 1}], p.slow[pair{0, 1}] = 30, 30 }},
		{"cut", "link-cut", []int{3, 4}, 5, func(p *play) { p.cut[pair{3, 4}] = true }},
		{"memory", "memory-full", []int{7}, 2, func(p *play) { p.full[7] = true }},
	} {
		t.Run(c.name, func(t *testing.T) {
			for seed := range uint64(5) {
				p := newPlay(8, seed, Config{})
				switch {
				case strings.HasSuffix(c.name, "a second"):
					p.ops = 1
				case strings.HasSuffix(c.name, "forty operations"):
					p.ops = 40
				}
				p.run(60)
				if len(p.alarms) > 0 {
					t.Fatalf("seed %d: a healthy job: %s", seed, p.alarms[0].Verdict)
				}
				c.do(p)
				i, took := p.until(t, c.limit)
				if i.Kind != c.kind || !slices.Equal(i.Subject.Ranks, c.ranks) {
					t.Errorf("seed %d: %s %v after %d s: %s", seed, i.Kind, i.Subject.Ranks, took, i.Verdict)
				}
				if c.kind == "straggler" { // it stays one incident
					if p.run(40); len(p.alarms) != 1 || p.m.View(p.now).Health.State == "good" {
						t.Errorf("seed %d: %d incidents, then %s", seed, len(p.alarms), p.m.View(p.now).Health.State)
					}
				}
				if len(i.Evidence) == 0 || i.Cause == "" || i.Fix == "" || !strings.Contains(i.Verdict, "train") {
					t.Errorf("seed %d: %+v says too little", seed, i)
				}
			}
		})
	}
}

// A day of healthy running raises at most one alarm.
func TestHealthyDay(t *testing.T) {
	hours := 0.2 // 'make watch-drills' plays 24
	if h, err := strconv.ParseFloat(os.Getenv("WEFT_TEST_HOURS"), 64); err == nil {
		hours = h
	}
	for _, ops := range []int{10, 1, 40} { // a second
		p := newPlay(8, 42, Config{})
		p.ops = ops
		if ops > 10 {
			hours = min(hours, 1) // an hour takes as long as six of the others
		}
		p.run(int(hours * 3600))
		for _, a := range p.alarms {
			t.Log(a.Verdict, a.Evidence)
		}
		t.Logf("%d operations a second: %d alarms in %g hours", ops, len(p.alarms), hours)
		if len(p.alarms) > 1 {
			t.Errorf("%d operations a second: %d alarms in %g hours: %s %v", ops, len(p.alarms), hours, p.alarms[0].Verdict, p.alarms[0].Evidence)
		}
	}
}

// What is over is closed, and a job that ends is no dead rank.
func TestIncidentsEnd(t *testing.T) {
	p := newPlay(4, 1, Config{})
	p.run(30)
	p.stopped[1] = true
	p.until(t, 3)
	delete(p.stopped, 1)
	p.run(20)
	if v := p.m.View(p.now); v.Health.State != "good" || v.Incidents[0].Ended == 0 {
		t.Errorf("%+v", v.Health)
	}
	for r := range 4 {
		p.gone[r] = true
	}
	n := len(p.alarms)
	p.run(2)
	// Their parent has not asked yet how they ended.
	p.m.Observe(p.now, &Report{Host: "n0", At: p.now, Every: 1, HasRanks: true,
		Ranks: []Rank{{Job: "train", Rank: 0, Size: 4, PID: 100, State: "Z"}, {Job: "train", Rank: 1, Size: 4, PID: 101, State: "Z"}}})
	p.run(120)
	if len(p.alarms) != n {
		t.Errorf("a job that ended: %s", p.alarms[n].Verdict)
	}
}

// A rank that runs on a starved host is slow and not hung. One that uses no processor hangs, however busy its host is; and
// no host is busy for ever.
func TestStarvedHostIsNoHang(t *testing.T) {
	starved := func(burns float64) *play {
		p := newPlay(8, 5, Config{})
		p.run(20)
		p.load, p.burns, p.stuck = map[int]Load{3: {CPU: 0.93, Lag: 1.4}}, map[int]float64{6: burns}, 6
		return p
	}
	p := starved(0.05)
	i, _ := p.until(t, 40)
	if i.Kind != "host-starved" || i.Severity != doctor.Warning || !slices.Equal(i.Subject.Ranks, []int{6}) ||
		!slices.Equal(i.Subject.Hosts, []string{"n3"}) {
		t.Errorf("a starved host: %s %s", i.Kind, i.Verdict)
	}
	if i, s := p.until(t, 120); i.Kind != "hang" || s < 60 || !slices.Equal(i.Subject.Ranks, []int{6}) {
		t.Errorf("after two minutes: %s %s, %d s later", i.Kind, i.Verdict, s)
	}
	if i, s := starved(0.001).until(t, 35); i.Kind != "hang" || s > 32 {
		t.Errorf("a rank that uses no processor: %s %s after %d s", i.Kind, i.Verdict, s)
	}
	// Nobody is behind: all are in one operation, on hosts that have no processor for it.
	for _, load := range []map[int]Load{nil, {1: {CPU: 0.9}}} {
		p := newPlay(8, 5, Config{})
		p.run(20)
		p.load, p.stuck = load, p.n
		if i, s := p.until(t, 140); i.Kind != "hang" || len(i.Subject.Ranks) > 0 || s < 32 != (load == nil) || s < 110 != (load == nil) {
			t.Errorf("all wait, load %v: %s %s after %d s", load, i.Kind, i.Verdict, s)
		}
	}
	// An agent that gets no processor itself does not say that its host is starved: what it said last counts.
	p = newPlay(8, 5, Config{})
	p.run(20)
	p.load, p.stuck = map[int]Load{0: {CPU: 0.9}, 1: {CPU: 0.9}, 2: {CPU: 0.9}, 3: {CPU: 0.9}}, p.n
	p.run(2)
	p.dark = map[int]bool{0: true, 1: true, 2: true, 3: true}
	if p.run(36); len(p.alarms) > 0 {
		t.Errorf("nobody gets a processor: %s", p.alarms[0].Verdict)
	}
	// A busy host that falls silent gets more time.
	for _, busy := range []bool{false, true} {
		m := New(Config{})
		r := &Report{Host: "n0", At: 1000, Every: 1}
		if busy {
			r.Load = &Load{CPU: 0.8}
		}
		if err := m.Observe(1000, r); err != nil {
			t.Fatal(err)
		}
		if news := m.Tick(1015); len(news) > 0 == busy {
			t.Errorf("busy %v: 15 s of silence are %d incidents", busy, len(news))
		}
	}
}

// A hang whose culprit is stopped is a consequence of that, not a second incident.
func TestHangFolds(t *testing.T) {
	p := newPlay(4, 1, Config{Hang: 5})
	p.run(30)
	p.stopped[1] = true
	p.run(20)
	if len(p.alarms) != 1 || p.alarms[0].Kind != "rank-stopped" {
		t.Fatalf("%v", p.alarms)
	}
	if i := p.m.View(p.now).Incidents[0]; len(i.Follows) == 0 {
		t.Error("the hang is not named as a consequence")
	}
}

// Ports are compared with ports of their role, checks become incidents, several on one
// switch one, and what changed is listed.
func TestPortsChecksChanges(t *testing.T) {
	m := New(Config{})
	now := 1e9
	report := func(bad string, rate map[string]float64, facts string) {
		for h := range 8 {
			name := fmt.Sprintf("n%d", h)
			c := &Counters{Schema: "s", Names: []string{"a"}, Values: []float64{1}, Checks: 10, Facts: map[string]string{"kernel": "6.1"}}
			if name == "n2" {
				c.Facts["kernel"] = facts
			}
			for d := range 2 {
				dev := fmt.Sprintf("mlx5_%d", d)
				g := 400.0
				if v, ok := rate[name+dev]; ok {
					g = v
				}
				c.Ports = append(c.Ports, Port{Device: dev, Port: "1", Active: true, Gbps: g, Tx: now * 1e9})
			}
			if name == bad {
				c.States = []health.Status{{Key: health.Key{Device: "mlx5_1", Port: "1", Metric: "link_downed"}, State: health.Bad,
					Why: "a link was lost", Fix: "cable"}}
			}
			if err := m.Observe(now, &Report{Host: name, At: now, Every: 10, Counters: c}); err != nil {
				t.Fatal(err)
			}
		}
	}
	var kinds []string
	tick := func() {
		for range 10 {
			now++
			for _, i := range m.Tick(now) {
				if i.Ended == 0 {
					kinds = append(kinds, i.Kind+" "+strings.Join(i.Subject.Devices, ","))
				}
			}
		}
	}
	for range 6 {
		report("", nil, "6.1")
		tick()
	}
	if len(kinds) > 0 {
		t.Fatalf("healthy: %v", kinds)
	}
	for range 5 {
		report("n5", map[string]float64{"n3mlx5_0": 200}, "6.2")
		tick()
	}
	slices.Sort(kinds)
	if !slices.Equal(kinds, []string{"check n5:mlx5_1", "port-slow n3:mlx5_0"}) {
		t.Errorf("%v", kinds)
	}
	v := m.View(now)
	if len(v.Changes) != 1 || v.Changes[0].Host != "n2" || v.Changes[0].To != "6.2" {
		t.Errorf("changes: %v", v.Changes)
	}
	if len(v.Heat.Cells) != 16 || len(v.Heat.Columns) != 2 {
		t.Errorf("heat: %d cells, %v", len(v.Heat.Cells), v.Heat.Columns)
	}
	for range 40 { // silence is unknown, not good
		now++
		m.Tick(now)
	}
	if h := m.View(now).Health; h.Silent != 8 || h.State == "good" {
		t.Errorf("%+v", h)
	}
}

// Collectives are held against the prediction as this cluster reaches it.
func TestCollectivesAgainstPrediction(t *testing.T) {
	m := New(Config{Predict: func(op string, bytes int64, ranks int) (float64, bool) { return 0.010, true }})
	now, seq := 1e9, int64(0)
	feed := func(seconds int, took float64) (opened []Incident) {
		for range seconds {
			now++
			for r := range 4 {
				x := Rank{Job: "j", Rank: r, Size: 4, PID: r + 1, State: "R", Groups: []Group{{Name: "w", Done: seq + 10}}}
				for k := range int64(10) {
					x.Groups[0].Ops = append(x.Groups[0].Ops, Op{Seq: seq + k + 1, Name: "all-reduce", Bytes: 64 << 20, Took: took})
				}
				m.Observe(now, &Report{Host: fmt.Sprint("h", r), At: now, Every: 1, HasRanks: true, Ranks: []Rank{x}})
			}
			seq += 10
			for _, i := range m.Tick(now) {
				if i.Ended == 0 {
					opened = append(opened, i)
				}
			}
		}
		return opened
	}
	if o := feed(300, 0.013); len(o) > 0 { // 30% slower than predicted, always: that is this cluster
		t.Fatalf("%v", o)
	}
	c := m.View(now).Collectives[0]
	if math.Abs(c.Baseline-0.013) > 0.001 || c.Predicted != 0.010 || c.Ratio > 1.1 {
		t.Errorf("%+v", c)
	}
	o := feed(60, 0.030)
	if len(o) != 1 || o[0].Kind != "slow-collective" || o[0].Severity != doctor.Critical {
		t.Errorf("%v", o)
	}
}

// Reports that lie or are broken do no harm.
func TestBadReports(t *testing.T) {
	m := New(Config{})
	for _, r := range []Report{{}, {Host: "a b"}, {Host: "x", At: math.NaN()}, {Host: "x", Ranks: []Rank{{Rank: -1}}},
		{Host: "x", Counters: &Counters{Names: []string{"a"}}}} {
		if m.Observe(1, &r) == nil {
			t.Errorf("%+v was taken", r)
		}
	}
	if err := m.Observe(1, &Report{Host: "x", Counters: &Counters{Schema: "?", Values: []float64{1}}}); err != ErrSchema {
		t.Errorf("%v", err)
	}
	// A clock that is an hour off is said, and changes nothing else.
	now := 1e9
	for range 20 {
		now++
		if err := m.Observe(now, &Report{Host: "y", At: now - 3600, Every: 1}); err != nil {
			t.Fatal(err)
		}
		m.Tick(now)
	}
	if v := m.View(now); len(v.Incidents) != 1 || v.Incidents[0].Kind != "clock-wrong" {
		t.Errorf("%v", v.Incidents)
	}
}

// The records of those that wait for a dead rank can come before the report that it is gone:
// it is dead, and does not just hold the job up.
func TestRecordsBeforeTheProcessIsGone(t *testing.T) {
	p := newPlay(4, 1, Config{Hang: 5})
	p.run(30)
	var dumps []Dump
	for r := range 3 {
		dumps = append(dumps, Dump{Job: "train", Dump: doctor.Dump{File: fmt.Sprintf("rank-%d", r), Rank: r, NameRank: r, Version: "weft",
			Groups: []doctor.Group{{ID: -1, Name: "comm 1 epoch 0", Ranks: []int{0, 1, 2, 3}, LastEnqueued: 99, LastCompleted: -1,
				HasStatus: true}},
			Entries: []doctor.Op{{Record: 1, Group: "comm 1 epoch 0", GroupID: -1, Seq: 99, Name: "all-reduce", From: -1, To: -1,
				State: "started"}}}})
	}
	p.m.Observe(p.now, &Report{Host: "n0", At: p.now, Every: 1, Dumps: dumps})
	p.run(2)
	if len(p.alarms) > 0 {
		t.Fatalf("before its process is known to be gone: %s", p.alarms[0].Verdict)
	}
	p.gone[3] = true
	p.run(4)
	if len(p.alarms) == 0 || p.alarms[0].Kind != "rank-dead" || !slices.Equal(p.alarms[0].Subject.Ranks, []int{3}) {
		t.Errorf("%+v", p.alarms)
	}
}

// A job that is started again is one incident, a rank that is, is named.
func TestJobStartedAgain(t *testing.T) {
	m, now := New(Config{}), 1e9
	pid := map[int]int{}
	second := func(there ...int) (opened []Incident) {
		now++
		rep := Report{Host: "n0", At: now, Every: 1, HasRanks: true}
		for _, r := range there {
			rep.Ranks = append(rep.Ranks, Rank{Job: "train", Rank: r, Size: 8, PID: 100 + r + pid[r], State: "R"})
		}
		if err := m.Observe(now, &rep); err != nil {
			t.Fatal(err)
		}
		for _, i := range m.Tick(now) {
			if i.Ended == 0 {
				opened = append(opened, i)
			}
		}
		return opened
	}
	all := []int{0, 1, 2, 3, 4, 5, 6, 7}
	play := func(seconds int, there ...int) (opened []Incident) {
		for range seconds {
			opened = append(opened, second(there...)...)
		}
		return opened
	}
	play(5, all...)
	play(10)
	for r := range 8 {
		pid[r] = 1000
	}
	opened := append(second(0, 1, 2, 3), play(20, all...)...)
	if len(opened) != 1 || opened[0].Kind != "job-restarted" || !slices.Equal(opened[0].Subject.Ranks, all) {
		t.Errorf("all were started again: %+v", opened)
	}
	play(100, all...)
	play(10)
	for r := range 8 {
		pid[r] = 1500
	}
	if opened = play(10, 0, 1, 2, 3, 4, 5, 6); len(opened) != 1 || opened[0].Kind != "job-restarted" {
		t.Errorf("all but rank 7: %+v", opened)
	}
	if opened = play(80, 0, 1, 2, 3, 4, 5, 6); len(opened) != 1 || opened[0].Kind != "rank-dead" ||
		!slices.Equal(opened[0].Subject.Ranks, []int{7}) {
		t.Errorf("rank 7 did not come: %+v", opened)
	}
	play(200, all...)
	pid[5] = 2000
	if opened = play(10, all...); len(opened) != 1 || opened[0].Kind != "rank-restarted" || !slices.Equal(opened[0].Subject.Ranks, []int{5}) {
		t.Errorf("rank 5 was: %+v", opened)
	}
}

// A host that was taken away is not spoken of for ever, and records of jobs that are over do not stay.
func TestWhatIsForgotten(t *testing.T) {
	m, now := New(Config{}), 1e9
	if err := m.Observe(now, &Report{Host: "old", At: now, Every: 1, Dumps: []Dump{{Job: "over", Dump: doctor.Dump{File: "f"}}}}); err != nil {
		t.Fatal(err)
	}
	m.Tick(now + 61)
	if len(m.dumps) != 0 || len(m.dumped) != 0 {
		t.Errorf("%d jobs have records", len(m.dumps))
	}
	if v := m.View(now + 61); len(v.Incidents) != 1 || v.Incidents[0].Kind != "agent-silent" {
		t.Errorf("%+v", v.Incidents)
	}
	for s := 62.0; s < 86500; s += 60 {
		m.Tick(now + s)
	}
	news := m.News()
	if v := m.View(now + 86500); len(m.hosts) != 0 || slices.ContainsFunc(v.Incidents, func(i Incident) bool { return i.Ended == 0 }) ||
		len(news) != 1 || news[0].Host != "old" {
		t.Errorf("%d hosts, %+v, changes %+v", len(m.hosts), v.Incidents, news)
	}
}

// A link that is somewhat slow is a warning by itself. Where it makes collectives three times as slow as they were, it is
// as bad as that, stands before it everywhere, and the collective names it.
func TestCauseStandsBeforeItsSymptom(t *testing.T) {
	for seed := range uint64(3) {
		p := newPlay(4, seed, Config{})
		p.run(300)
		p.slow[pair{1, 2}], p.drag = 5, 3 // the whole ring goes at the speed of its slowest link
		p.run(60)
		at := map[string]int{}
		v := p.m.View(p.now)
		for i := len(v.Incidents) - 1; i >= 0; i-- {
			if v.Incidents[i].Ended == 0 {
				at[v.Incidents[i].Kind] = i
			}
		}
		link, have := at["slow-link"]
		slow, symptom := at["slow-collective"]
		if !have || !symptom {
			t.Fatalf("seed %d: %v", seed, v.Incidents)
		}
		a, b := v.Incidents[link], v.Incidents[slow]
		if link > slow || a.Severity < b.Severity || b.Severity != doctor.Critical || !slices.Contains(b.Because, a.ID) {
			t.Errorf("seed %d: #%d %s %s is number %d, #%d %s %s because of %v is number %d",
				seed, a.ID, a.Severity, a.Kind, link, b.ID, b.Severity, b.Kind, b.Because, slow)
		}
		if !strings.HasPrefix(v.Health.Verdict, a.Verdict) || v.Jobs[0].Verdict != a.Verdict {
			t.Errorf("seed %d: %q, %q", seed, v.Health.Verdict, v.Jobs[0].Verdict)
		}
	}
}
