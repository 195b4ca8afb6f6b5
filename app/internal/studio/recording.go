package studio

import (
	"fmt"

	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/watch"
)

// Frame is one moment of a recorded cluster, as a page follows a live one.
type Frame struct {
	At   float64     `json:"t"` // seconds from the beginning
	View watch.View  `json:"view"`
	Rows []watch.Row `json:"rows"`
}

// The recorded job: eight ranks on each of four hosts. From second 30 on, rank 13 does not come to the next operation.
const (
	recordedHosts   = 4
	recordedSeconds = 60
	missingRank     = 13
	missingFrom     = 30
	frameEvery      = 2
)

// record lets package watch judge the reports of a job that hangs. Nothing runs: the reports follow from the second that they
// are of, so that the page is the same whenever it is written.
func record(text string) ([]Frame, error) {
	c, err := cluster.Parse("cluster.yaml", []byte(text), nil)
	if err != nil {
		return nil, err
	}
	const begin = 1_794_844_800 // 2026-11-16 16:00
	predict := func(_ string, bytes int64, _ int) (float64, bool) { return float64(bytes) / 180e9, true }
	m := watch.New(watch.Config{Title: "a training job", Site: doctor.NewSite(c.Graph), Hang: 10, Predict: predict})
	var out []Frame
	for second := range recordedSeconds {
		now := float64(begin + second)
		for host := range recordedHosts {
			if err := m.Observe(now, agentReport(host, second, now)); err != nil {
				return nil, err
			}
		}
		m.Tick(now)
		if second%frameEvery > 0 {
			continue
		}
		view := m.View(now)
		view.Heat, view.Changes = watch.Heat{}, nil // which the page does not draw
		rows, _ := m.Table("", "", 0, 8*recordedHosts)
		out = append(out, Frame{float64(second), view, rows})
	}
	return out, nil
}

// agentReport is what one host's agent reports in one second.
func agentReport(host, second int, now float64) *watch.Report {
	r := &watch.Report{Host: fmt.Sprintf("n%d", host), Boot: "boot", At: now, Every: 1, HasRanks: true}
	r.Counters = &watch.Counters{Schema: "none", Checks: 8}
	const perSecond = 4
	done := int64(perSecond * min(second, missingFrom))
	for p := range 8 {
		sent := float64(done) * cableBytes(host)
		r.Counters.Ports = append(r.Counters.Ports, watch.Port{Device: fmt.Sprintf("mlx5_%d", p), Port: "1", Active: true, Gbps: 400, Tx: sent,
			Rx: sent})
	}
	for g := range 8 {
		n := 8*host + g
		stuck := second > missingFrom
		x := watch.Rank{Job: "llama", Rank: n, Size: 8 * recordedHosts, PID: 4000 + n, GPU: fmt.Sprint(g), State: "S",
			CPU: float64(second), Memory: 60 << 30}
		grp := watch.Group{Name: "world", Done: done, In: stuck && n != missingRank, Op: "all-reduce"}
		if stuck {
			grp.Since = float64(second - missingFrom)
		}
		for s := done - perSecond + 1; s <= done && s > 0 && !stuck; s++ {
			grp.Ops = append(grp.Ops, watch.Op{Seq: s, Name: "all-reduce", Bytes: 256 << 20, Took: .0017 + .0001*float64((n*7+int(s)*3)%5)})
		}
		x.Groups = []watch.Group{grp}
		r.Ranks = append(r.Ranks, x)
	}
	return r
}

// cableBytes is what one all-reduce of 256 MiB sends over the cable of each of a host's NICs: NVLS adds inside hosts, and a tree of
// hosts does the rest on each rail. A host inside the tree sends to two others, one at its edge to one.
func cableBytes(host int) float64 {
	const rail = 256 << 20 / 8
	if host == 0 || host == recordedHosts-1 {
		return rail
	}
	return 2 * rail
}
