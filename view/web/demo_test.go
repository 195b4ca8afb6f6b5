package web_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/weft-fabric/weft/view/report"
	"github.com/weft-fabric/weft/view/web"
)

// demo feeds a board as a run does: a loss that falls, ranks that are late, one
// of them more than others, failures that are detected and mended, checkpoints.
// The same seed gives the same run, but for the time at which it began.
type demo struct {
	*web.Board
	rng                    *rand.Rand
	ranks, perHost, tp, pp int
	step                   int
	epoch                  uint64
	now                    time.Time
	state                  []string
	restarts               []int
	pids                   []int
	calls                  []int64
	took                   time.Duration
	failAt, healAt, failed int
	every, slow            int
}

func newDemo(ranks, perHost, tp, pp int, began time.Time) *demo {
	d := &demo{Board: web.NewBoard(), rng: rand.New(rand.NewPCG(7, uint64(ranks))), ranks: ranks, perHost: perHost, tp: tp, pp: pp,
		now: began, took: 380 * time.Millisecond, failAt: 60, failed: -1, every: 50, slow: min(ranks-1, 5)}
	d.Job(web.Job{Title: "weft up", Model: "GPT 6 layers, 256 wide", Layout: fmt.Sprintf("dp%d pp%d tp%d zero1", ranks/tp/pp, pp, tp),
		Transport: "shm+tcp", Command: fmt.Sprintf("weft up --ranks %d --tp %d --pp %d --zero 1 --for 10m", ranks, tp, pp),
		Params: 4_861_952, Ranks: ranks, Started: began, Until: began.Add(10 * time.Minute), Watch: "/watch/", Studio: "/studio/"})
	for id := range ranks {
		d.state = append(d.state, web.Healthy)
		d.restarts = append(d.restarts, 0)
		d.pids = append(d.pids, 40_000+id)
		d.calls = append(d.calls, 0)
		d.tell(id)
	}
	d.newEpoch("the run begins")
	return d
}

func (d *demo) tell(id int) {
	d.Rank(web.Rank{ID: id, Rank: d.rankOf(id), Host: fmt.Sprintf("node-%d", id/d.perHost), Pid: d.pids[id], State: d.state[id],
		Restarts: d.restarts[id],
		Replica:  id / (d.tp * d.pp), Stage: id / d.tp % d.pp, Tensor: id % d.tp, Memory: int64(180<<20 + id%d.tp<<20 + d.step%7<<16)})
}

func (d *demo) rankOf(id int) int {
	if d.state[id] == web.Failed || d.state[id] == web.Starting {
		return -1
	}
	return id
}

func (d *demo) newEpoch(why string) {
	d.epoch++
	var members, recovering []int
	for id, s := range d.state {
		switch s {
		case web.Healthy, web.Suspect:
			members = append(members, id)
		case web.Recovering:
			recovering = append(recovering, id)
		}
	}
	d.Epoch(web.Epoch{Number: d.epoch, At: d.now, Members: members, Recovering: recovering, Reason: why, Step: d.step,
		Layout: fmt.Sprintf("dp%d pp%d tp%d", len(members)/d.tp/d.pp, d.pp, d.tp)})
	d.Event(web.Event{At: d.now, Kind: "epoch", ID: -1, Text: fmt.Sprintf("%d with %d members: %s", d.epoch, len(members), why)})
}

// fail kills one rank, which everybody knows shortly after.
func (d *demo) fail(id int) {
	d.failed = id
	d.state[id] = web.Failed
	d.Event(web.Event{At: d.now, Kind: "kill", ID: id, Text: "killed by the drill (signal 9)"})
	detect := time.Duration(12+d.rng.IntN(40)) * time.Millisecond
	d.Event(web.Event{At: d.now.Add(detect), Kind: "failure", ID: id, Text: "lease gone and connection reset"})
	resume := detect + time.Duration(90+d.rng.IntN(220))*time.Millisecond
	d.now = d.now.Add(resume)
	d.tell(id)
	d.newEpoch(fmt.Sprintf("rank %d failed", id))
	d.Event(web.Event{At: d.now, Kind: "resumed", ID: -1, Detect: detect, Resume: resume})
	d.healAt = d.step + 24
}

func (d *demo) heal() {
	id := d.failed
	d.restarts[id]++
	d.pids[id] += 1000
	d.calls[id] = 0
	d.state[id] = web.Healthy
	d.Event(web.Event{At: d.now.Add(-2 * time.Second), Kind: "restart", ID: id, Text: "started again"})
	d.Event(web.Event{At: d.now, Kind: "joined", ID: id, Text: "brought up to date by a peer"})
	d.tell(id)
	d.newEpoch(fmt.Sprintf("rank %d is back", id))
	d.failed = -1
	d.failAt = d.step + 90 + d.rng.IntN(120)
}

// next takes one step with all ranks that are there.
func (d *demo) next() {
	switch {
	case d.failed < 0 && d.step >= d.failAt:
		d.fail(d.rng.IntN(d.ranks))
	case d.failed >= 0 && d.step == d.healAt-12:
		d.state[d.failed] = web.Starting
		d.tell(d.failed)
	case d.failed >= 0 && d.step == d.healAt-5:
		d.state[d.failed] = web.Recovering
		d.tell(d.failed)
	case d.failed >= 0 && d.step >= d.healAt:
		d.heal()
	}
	d.step++
	loss := 1.72 + 3.8*math.Exp(-float64(d.step)/180) + 0.9*math.Exp(-float64(d.step)/40) + 0.09*d.rng.NormFloat64()
	began := d.now
	took := d.took + time.Duration(d.rng.NormFloat64()*12)*time.Millisecond
	var last time.Duration
	late := make([]time.Duration, d.ranks)
	for id := range late {
		late[id] = time.Duration(math.Abs(d.rng.NormFloat64()) * 1.1 * float64(time.Millisecond))
		if id == d.slow {
			late[id] += time.Duration((4 + 3*math.Sin(float64(d.step)/9)) * float64(time.Millisecond))
		}
		if d.rng.IntN(400) == 0 {
			late[id] += time.Duration(d.rng.IntN(22)) * time.Millisecond
		}
		last = max(last, late[id])
	}
	d.now = began.Add(took + last)
	for id := range d.ranks {
		if d.rankOf(id) < 0 || d.state[id] == web.Recovering {
			continue
		}
		bubble := time.Duration(0)
		if d.pp > 1 {
			bubble = took * 3 / 25
		}
		d.Step(report.Step{ID: id, Rank: id, Step: d.step, Epoch: d.epoch, Loss: loss, Tokens: 16_384, Began: began,
			Arrived: began.Add(took*9/10 + late[id]), Ended: d.now,
			Forward: took * 26 / 100, Backward: took * 48 / 100, Comm: took * 17 / 100, Exposed: took * 3 / 100, Bubble: bubble})
		d.calls[id]++
		if d.step%10 == 0 || d.ranks < 100 {
			n := d.calls[id]
			us := func(x float64) time.Duration { return time.Duration(float64(n) * x * float64(time.Microsecond)) }
			d.Collectives(id, []report.Collective{
				{Op: "all-reduce", Bytes: 8, Count: n * 2, Time: us(2 * 9.4), BusFactor: 1.75},
				{Op: "all-reduce", Bytes: 256 << 10, Count: n * 24, Time: us(24 * 118), BusFactor: 1.75},
				{Op: "all-reduce", Bytes: 4 << 20, Count: n * 4, Time: us(4 * 1630), BusFactor: 1.75},
				{Op: "reduce-scatter", Bytes: 4 << 20, Count: n * 2, Time: us(2 * 905), BusFactor: 0.875},
				{Op: "all-gather", Bytes: 512 << 10, Count: n * 2, Time: us(2 * 171), BusFactor: 7},
				{Op: "broadcast", Bytes: 19 << 20, Count: 1 + n/90, Time: time.Duration(1+n/90) * 6200 * time.Microsecond, BusFactor: 1},
				{Op: "send", Bytes: 512 << 10, Count: n * 8, Time: us(8 * 64), BusFactor: 1},
				{Op: "barrier", Count: n / 10, Time: us(0.1 * 14)},
			})
		}
	}
	if d.step%d.every == 0 {
		d.Checkpoint(web.Checkpoint{Step: d.step, At: d.now, Bytes: 58_343_424, Took: time.Duration(140+d.rng.IntN(50)) * time.Millisecond,
			State: "complete", Text: "8 shards"})
		d.Event(web.Event{At: d.now, Kind: "checkpoint", ID: -1, Text: fmt.Sprintf("of step %d is whole", d.step)})
	}
}

func (d *demo) measure() {
	d.Measures([]web.Measure{
		{Name: "overlap hidden", Value: "83%", Note: "apart 41.2 ms, together 33.1 ms, collectives 9.7 ms"},
		{Name: "pipeline bubble", Value: "11.9%", Note: "formula (p-1)/(m+p-1) gives 11.1% for 2 stages and 8 micro-batches"},
		{Name: "memory a rank", Value: "43.1 MiB", Note: "formula 42.6 MiB, ZeRO 1"},
		{Name: "scaling efficiency", Value: "91%", Note: "against one rank at the same batch"},
		{Name: "steps lost", Value: "0", Note: "beyond the one in flight"},
	})
}

// run is a run that began some time ago and goes on.
func run(ranks, perHost, tp, pp int, age time.Duration) *demo {
	d := newDemo(ranks, perHost, tp, pp, time.Now().Add(-age))
	for d.now.Add(d.took).Before(time.Now()) {
		d.next()
	}
	d.measure()
	return d
}
