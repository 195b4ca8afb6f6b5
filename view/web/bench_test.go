package web_test

import (
	"testing"
	"time"

	"github.com/weft-fabric/weft/view/report"
	"github.com/weft-fabric/weft/view/web"
)

// What a rank's report costs the one who feeds it.
func BenchmarkStep(b *testing.B) {
	board := web.NewBoard()
	at := time.Now()
	for i := 0; b.Loop(); i++ {
		n := i / 1000
		t := at.Add(time.Duration(n) * time.Millisecond)
		board.Step(report.Step{ID: i % 1000, Step: n, Loss: 1, Tokens: 1, Began: t, Arrived: t, Ended: t})
	}
}

// What a new reader of 1,000 ranks is sent.
func BenchmarkEverything(b *testing.B) {
	d := run(1000, 8, 2, 4, 100*time.Second)
	for b.Loop() {
		b.SetBytes(int64(get(d.Board, "http://localhost/api/all").Body.Len()))
	}
}
