package web

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/view/report"
)

// reader puts messages together as the page does.
type reader struct {
	at uint64
	m  message
}

func merge[T any, K cmp.Ordered](list, rows []T, key func(T) K, keep int) []T {
	for _, r := range rows {
		i, found := slices.BinarySearchFunc(list, key(r), func(t T, k K) int { return cmp.Compare(key(t), k) })
		if found {
			list[i] = r
		} else {
			list = slices.Insert(list, i, r)
		}
	}
	return list[max(0, len(list)-keep):]
}

func (r *reader) take(m message) {
	if m.Full {
		r.m = message{}
	}
	old := r.m
	r.at = m.Seq
	r.m = m
	if m.Job == nil {
		r.m.Job = old.Job
	}
	r.m.Ranks = merge(old.Ranks, m.Ranks, func(x Rank) int { return x.ID }, math.MaxInt32)
	for _, s := range m.Steps {
		i := slices.IndexFunc(r.m.Ranks, func(x Rank) bool { return x.ID == s[0] })
		r.m.Ranks[i].Step = s[1]
	}
	r.m.Steps = nil
	if m.Topology == nil {
		r.m.Topology = old.Topology
	}
	r.m.Loss = old.Loss
	if v := m.Loss; v != nil {
		if v.Reset {
			r.m.Loss = v
		} else {
			for i, step := range v.Steps {
				at, found := slices.BinarySearch(old.Loss.Steps, step)
				if !found {
					old.Loss.Steps, old.Loss.Loss = slices.Insert(old.Loss.Steps, at, step), slices.Insert(old.Loss.Loss, at, nil)
					old.Loss.Norm, old.Loss.Rate = slices.Insert(old.Loss.Norm, at, nil), slices.Insert(old.Loss.Rate, at, nil)
				}
				old.Loss.Loss[at], old.Loss.Norm[at], old.Loss.Rate[at] = v.Loss[i], v.Norm[i], v.Rate[i]
			}
		}
	}
	r.m.Throughput = old.Throughput
	if v := m.Throughput; v != nil {
		if v.Reset {
			r.m.Throughput = v
		} else {
			v.Rate = append(slices.Clone(old.Throughput.Rate[:v.From]), v.Rate...)
			v.Reset, v.From = true, 0
			r.m.Throughput = v
		}
	}
	r.m.Lateness = old.Lateness
	if v := m.Lateness; v != nil {
		if v.Reset {
			r.m.Lateness = v
		} else {
			r.m.Lateness.Columns = merge(old.Lateness.Columns, v.Columns, func(c lateColumn) int { return c.Step }, lateSteps)
		}
	}
	if m.Collectives == nil {
		r.m.Collectives = old.Collectives
	}
	r.m.Epochs = merge(old.Epochs, m.Epochs, func(e epochView) uint64 { return e.Number }, epochsKept)
	r.m.Events = merge(old.Events, m.Events, func(e eventRow) int64 { return e.Number }, eventsKept)
	r.m.Checkpoints = merge(old.Checkpoints, m.Checkpoints, func(c Checkpoint) int { return c.Step }, savesKept)
	if m.Measures == nil {
		r.m.Measures = old.Measures
	}
}

func (r *reader) text() string {
	m := r.m
	m.Full, m.Now, m.Summary = true, time.Time{}, summary{}
	b, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// Whatever is fed and whenever a reader asks, changes put together are what a
// new reader gets.
func TestChangesAddUpToEverything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := NewBoard()
		start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		var follower reader
		follower.take(b.since(0))
		epoch, step := uint64(1), 0
		instant := func() time.Time {
			return start.Add(time.Duration(step)*time.Second + time.Duration(rapid.IntRange(0, 2000).Draw(t, "ms"))*time.Millisecond)
		}
		same := func() {
			follower.take(b.since(follower.at))
			var fresh reader
			fresh.take(b.since(0))
			if d := gocmp.Diff(fresh.text(), follower.text()); d != "" {
				t.Fatal(d)
			}
		}
		actions := map[string]func(*rapid.T){
			"read": func(*rapid.T) { same() },
			"job": func(t *rapid.T) {
				b.Job(Job{Title: rapid.StringN(0, 3, -1).Draw(t, "title"), Ended: rapid.Bool().Draw(t, "ended")})
			},
			"rank": func(t *rapid.T) {
				b.Rank(Rank{ID: rapid.IntRange(0, 5).Draw(t, "id"), Rank: rapid.IntRange(-1, 5).Draw(t, "rank"),
					Pid:   rapid.IntRange(0, 2).Draw(t, "pid"),
					State: rapid.SampledFrom([]string{Starting, Healthy, Failed, Left}).Draw(t, "state"), Step: rapid.IntRange(0, 9).Draw(t, "step")})
			},
			"steps": func(t *rapid.T) {
				for range rapid.SampledFrom([]int{1, 2, 2, 2, 250, 1200}).Draw(t, "steps") {
					step++
					at := start.Add(time.Duration(step) * time.Second)
					for id := range 2 {
						b.Step(report.Step{ID: id, Step: step, Epoch: epoch, Loss: 1 / float64(step), Tokens: 10, Began: at.Add(-100 * time.Millisecond),
							Arrived: at.Add(time.Duration(id) * time.Millisecond), Ended: at})
					}
				}
			},
			"one": func(t *rapid.T) {
				b.Step(report.Step{ID: rapid.IntRange(0, 5).Draw(t, "id"), Step: step + rapid.IntRange(-3, 3).Draw(t, "by"),
					Epoch: epoch - uint64(rapid.IntRange(0, 1).Draw(t, "behind")),
					Loss:  rapid.SampledFrom([]float64{0, 1, math.NaN()}).Draw(t, "loss"), Tokens: rapid.IntRange(0, 20).Draw(t, "tokens"),
					Began: instant(), Arrived: instant(), Ended: instant()})
			},
			"back": func(t *rapid.T) { epoch++; step = max(0, step-rapid.IntRange(0, 400).Draw(t, "lost")) },
			"collectives": func(t *rapid.T) {
				b.Collectives(rapid.IntRange(0, 3).Draw(t, "id"), []report.Collective{{Op: "all-reduce", Bytes: 8, Count: int64(step), Time: 1}})
			},
			"epoch": func(*rapid.T) { b.Epoch(Epoch{Number: epoch, At: start, Members: []int{0, 1}}) },
			"event": func(t *rapid.T) {
				for range rapid.SampledFrom([]int{1, 600}).Draw(t, "events") {
					b.Event(Event{At: start, Kind: "note", ID: -1})
				}
			},
			"checkpoint": func(t *rapid.T) {
				b.Checkpoint(Checkpoint{Step: rapid.IntRange(0, 400).Draw(t, "step"), At: start, State: "complete"})
			},
			"measures": func(t *rapid.T) { b.Measures([]Measure{{Name: "x", Value: fmt.Sprint(step)}}) },
		}
		names := slices.Sorted(maps.Keys(actions))
		for range rapid.IntRange(1, 40).Draw(t, "actions") {
			actions[rapid.SampledFrom(names).Draw(t, "action")](t)
		}
		same()
	})
}

// A board stays small however long a run lasts.
func TestBoardStaysSmall(t *testing.T) {
	b := NewBoard()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range 60_000 {
		at := start.Add(time.Duration(i) * 300 * time.Millisecond)
		b.Step(report.Step{ID: i % 2, Step: i / 2, Epoch: uint64(i / 5000), Loss: 3, Tokens: 100, Began: at, Arrived: at,
			Ended: at.Add(time.Second)})
		if i%20 == 0 {
			b.Event(Event{At: at, Kind: "failure", ID: 0, Text: string(make([]byte, 5000))})
			b.Epoch(Epoch{Number: uint64(i), At: at, Members: []int{1, 2}})
			b.Checkpoint(Checkpoint{Step: i, At: at, State: "complete"})
			b.Rank(Rank{ID: 0, Pid: 1 + i, State: Healthy})
			b.Collectives(0, []report.Collective{{Op: "send", Bytes: int64(i), Count: 1, Time: 1}})
		}
	}
	for _, c := range []struct {
		what    string
		got, at int
	}{
		{"points of the loss", len(b.loss.points), lossPoints}, {"pieces of throughput", len(b.rate.parts), ratePoints},
		{"steps of lateness", len(b.late.columns), lateSteps},
		{"events", len(b.events), eventsKept}, {"epochs", len(b.epochs), epochsKept}, {"checkpoints", len(b.saves), savesKept},
		{"recent steps", len(b.recent), recentSteps},
		{"sizes of collectives", len(b.tallies[0].earlier), tallyKeys + 64}, {"bytes of a text", len(b.events[0].Text), textKept + len("…")},
	} {
		if c.got > c.at || c.got == 0 {
			t.Errorf("%d %s; at most %d are kept", c.got, c.what, c.at)
		}
	}
	if got := b.since(0).Summary; got.Failures != 3_000 || got.Step != 29_999 {
		t.Errorf("%d failures and step %d are told", got.Failures, got.Step)
	}
	var calls int64
	for _, c := range b.collectives() {
		calls += c.Count
	}
	if calls != 3_000 {
		t.Errorf("%d of 3,000 calls are counted", calls)
	}
}

// A curve's points are the means of the steps they stand for.
func TestCurveIsTheMeanOfItsSteps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCurve()
		plain := map[int][]float64{}
		for i := range rapid.IntRange(1, 6000).Draw(t, "steps") {
			for range 1 + i%2 {
				v := float64((i * 7919) % 101)
				c.add(i, v, 2*v, 3*v, 1)
				plain[i] = append(plain[i], v)
			}
		}
		if len(c.points) > lossPoints {
			t.Fatalf("%d points", len(c.points))
		}
		seen := 0
		for _, p := range c.points {
			sum, n := 0.0, 0
			for s := p.step; s < p.step+c.stride; s++ {
				for _, v := range plain[s] {
					sum, n = sum+v, n+1
				}
			}
			if p.n != n || p.sum != sum { // whole numbers: exact
				t.Fatalf("steps from %d: sum %v of %d, want %v of %d", p.step, p.sum, p.n, sum, n)
			}
			seen += n
		}
		total := 0
		for _, list := range plain {
			total += len(list)
		}
		if seen != total {
			t.Fatalf("%d of %d values are in a point", seen, total)
		}
	})
}

// No token is lost or counted twice, however times lie and pieces widen.
func TestThroughputKeepsEveryToken(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMeter()
		start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		total := 0
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			from := start.Add(time.Duration(rapid.Int64Range(-1e9, 4e12).Draw(t, "from")))
			to := from.Add(time.Duration(rapid.Int64Range(-1e9, 1e11).Draw(t, "took")))
			n := rapid.IntRange(0, 1000).Draw(t, "tokens")
			m.add(from, to, n, 1)
			total += n
		}
		sum := 0.0
		for _, p := range m.parts {
			sum += p.amount
		}
		if len(m.parts) > ratePoints || math.Abs(sum-float64(total)) > 1e-6*float64(total+1) {
			t.Fatalf("%v of %d tokens in %d pieces", sum, total, len(m.parts))
		}
	})
}

// Processes come and go; what each had counted stays.
func TestTallyKeepsEarlierProcesses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := NewBoard()
		var want int64
		for pid := range rapid.IntRange(1, 5).Draw(t, "processes") {
			b.Rank(Rank{ID: 3, Pid: 100 + pid, State: Healthy})
			var n int64
			for range rapid.IntRange(0, 4).Draw(t, "reports") {
				n += int64(rapid.IntRange(0, 9).Draw(t, "calls"))
				b.Collectives(3,
					[]report.Collective{{Op: "all-reduce", Bytes: 1000, Count: n, Time: time.Duration(n) * time.Microsecond, BusFactor: 1.5}})
			}
			want += n
		}
		for _, c := range b.collectives() {
			if c.Count != want || c.Ranks != 1 || want > 0 && (c.Mean != 1000 || c.Alg != 1 || c.Bus != 1.5) {
				t.Fatalf("%+v; want %d calls of 1 us at 1 GB/s, 1.5 on the bus", c, want)
			}
		}
	})
}

// Without pids, counts that go down tell of a new process.
func TestTallySeesARestartByItsCounts(t *testing.T) {
	b := NewBoard()
	of := func(op string, n int64) report.Collective {
		return report.Collective{Op: op, Bytes: 8, Count: n, Time: 1}
	}
	b.Collectives(0, []report.Collective{of("send", 10), of("recv", 4)})
	b.Collectives(0, []report.Collective{of("send", 3), of("recv", 4)})
	b.Collectives(0, []report.Collective{of("send", 5), of("recv", 6)})
	b.Collectives(0, []report.Collective{of("send", 7)})
	got := b.collectives()
	if len(got) != 2 || got[0].Count != 10+5+7 || got[1].Count != 10 { // the longer in sum first
		t.Errorf("%+v", got)
	}
}
