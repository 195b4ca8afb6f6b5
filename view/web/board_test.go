package web

import (
	"testing"
	"time"

	"github.com/weft-fabric/weft/view/report"
)

// A rank that is suspect has no seat: its replica is not counted, and another rank may
// have its number. Neither has a spare one.
func TestTopologyIsOfThoseAtWork(t *testing.T) {
	b := NewBoard()
	for i := range 8 {
		r := Rank{ID: i, Rank: i, Host: "h", State: Healthy, Replica: i / 4, Stage: i / 2 % 2, Tensor: i % 2}
		switch {
		case i == 3:
			r.State = Suspect // as it was when it was last heard of
		case i > 3:
			r.Rank--
			r.Replica, r.Stage, r.Tensor = -1, -1, -1
		}
		b.Rank(r)
	}
	b.Rank(Rank{ID: 4, Rank: 3, Host: "h", State: Healthy, Stage: 1, Tensor: 1})
	v := b.topology()
	if v.Replicas != 1 || v.Stages != 2 || v.Tensor != 2 {
		t.Errorf("%d replicas, %d stages, %d tensor ranks", v.Replicas, v.Stages, v.Tensor)
	}
	for _, g := range v.Groups {
		if len(g.IDs) != 2 {
			t.Errorf("%s group of %v", g.Kind, g.IDs)
		}
	}
}

// Sums within layers are communication for which a rank stands still, and are told
// with the time of a step; so are norm and rate with the curve.
func TestStepsTellTensorSumsNormAndRate(t *testing.T) {
	b := NewBoard()
	at := time.Now()
	for step := 1; step <= 3; step++ {
		for id := range 2 {
			b.Step(report.Step{ID: id, Rank: id, Step: step, Loss: 2, Tokens: 1, Began: at, Arrived: at, Ended: at.Add(10 * time.Millisecond),
				Forward: time.Millisecond, Tensor: 3 * time.Millisecond, Norm: 4, Rate: 0.5})
		}
	}
	if got := b.stepTime(); got.Tensor != int64(3*time.Millisecond) {
		t.Errorf("%+v", got)
	}
	v := b.lossSince(0)
	if len(v.Norm) != 3 || *v.Norm[1] != 4 || *v.Rate[2] != 0.5 {
		t.Errorf("%+v", v)
	}
	b.Log(1, at, "out of memory")
	one := b.rankViews(1)
	if one[0].Series != nil || one[0].Log != nil || len(one[1].Series.Steps) != 3 || one[1].Series.Wall[0] != int64(10*time.Millisecond) ||
		one[1].Log[0].Text != "out of memory" {
		t.Errorf("%+v, %+v", one[0], one[1])
	}
}

// What takes most time comes first.
func TestCollectivesByTime(t *testing.T) {
	b := NewBoard()
	b.Collectives(0, []report.Collective{{Op: "all-gather", Bytes: 8, Count: 1, Time: 1}, {Op: "send", Bytes: 8, Count: 1, Time: 9},
		{Op: "all-reduce", Bytes: 8, Count: 1, Time: 5}})
	list := b.collectives()
	if list[0].Op != "send" || list[1].Op != "all-reduce" || list[2].Op != "all-gather" {
		t.Errorf("%+v", list)
	}
}

// In the end the ranks that left are those that there were.
func TestRanksInTheEnd(t *testing.T) {
	b := NewBoard()
	for i := range 4 {
		b.Rank(Rank{ID: i, Rank: i, State: Left})
	}
	if s := b.summary(time.Now()); s.Ranks != 0 {
		t.Errorf("%d ranks while the run goes on without them", s.Ranks)
	}
	b.Job(Job{Ended: true})
	if s := b.summary(time.Now()); s.Ranks != 4 || s.States[Left] != 4 {
		t.Errorf("%+v", s)
	}
}
