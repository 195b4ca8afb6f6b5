package bench

import (
	"math"
	"testing"

	"github.com/weft-fabric/weft/cost"
	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/sched/algo"
)

// What ran is simulated on the links that were measured: where the way out of a host is slow, its time is that of the bytes that
// leave; where messages are small, that of the messages.
func TestPredict(t *testing.T) {
	links := cost.Links{Kind: "mixed", Ranks: 4, Cores: 8, Sync: 1, Paces: []cost.Pace{{Traffic: 1 << 20, Byte: 1e-5}},
		Near: cost.Link{Alpha: 1, Post: 0.2, Beta: 1e-4}, Far: cost.Link{Alpha: 20, Post: 3, Beta: 1e-4, Wire: 8e-3}} // 1 Gb/s
	a, err := algo.Find("two-level")
	if err != nil {
		t.Fatal(err)
	}
	p, err := a.Program(algo.Spec{Op: sched.AllReduce, Ranks: 4, Local: 2})
	if err != nil {
		t.Fatal(err)
	}
	ran := &Ran{Program: p.String(), Links: links, Hosts: []int{0, 0, 1, 1}}
	for _, c := range []struct {
		bytes    int64
		min, max float64 // us
	}{{8, 20, 60}, {1 << 20, 8389, 9500}, {16 << 20, 134218, 140000}} { // every byte leaves its host once
		got, err := ran.Predict(c.bytes)
		if err != nil {
			t.Fatal(err)
		}
		if us := float64(got) / 1e6; us < c.min || us > c.max || math.IsNaN(us) {
			t.Errorf("%d bytes take %.1f us; want %g to %g", c.bytes, us, c.min, c.max)
		}
	}
	ran.Program = "weft 1\nname x\n"
	if _, err := ran.Predict(8); err == nil {
		t.Error("a program that cannot be read is simulated")
	}
}
