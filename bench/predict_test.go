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
		got, err := ran.Predict(c.bytes, 1)
		if err != nil {
			t.Fatal(err)
		}
		if us := float64(got) / 1e6; us < c.min || us > c.max || math.IsNaN(us) {
			t.Errorf("%d bytes take %.1f us; want %g to %g", c.bytes, us, c.min, c.max)
		}
	}
	ran.Program = "weft 1\nname x\n"
	if _, err := ran.Predict(8, 1); err == nil {
		t.Error("a program that cannot be read is simulated")
	}
}

// Hosts that are namespaces of one machine share its cores: with half of them, what cores are the limit of takes twice as long. A wire is the
// limit where large messages take much longer than cores need for them.
func TestPredictCores(t *testing.T) {
	a, err := algo.Find("ring")
	if err != nil {
		t.Fatal(err)
	}
	p, err := a.Program(algo.Spec{Op: sched.AllGather, Ranks: 4})
	if err != nil {
		t.Fatal(err)
	}
	predict := func(cores int, wire float64) float64 {
		links := cost.Links{Kind: "tcp", Ranks: 4, Cores: cores, Hosts: 4, Paces: []cost.Pace{{Traffic: 1 << 20, Byte: 1e-6}},
			Far: cost.Link{Alpha: 1, Post: 3, Beta: 2e-4, Wire: wire, Work: 6, WorkByte: 4e-4, Wake: 1}}
		ran := &Ran{Program: p.String(), Links: links, Hosts: []int{0, 1, 2, 3}}
		got, err := ran.Predict(16<<20, 1)
		if err != nil {
			t.Fatal(err)
		}
		return float64(got) / 1e6
	}
	const work = 3 * 16 << 20 * 4e-4 // us: three quarters of 16 MiB for each of four ranks
	for _, c := range []struct {
		cores int
		wire  float64
		want  float64
	}{{1, 16e-4, work}, {2, 8e-4, work / 2}, {4, 4e-4, work / 4}, {8, 4e-4, work / 4}, {2, 8e-3, 12 << 20 * 8e-3}} {
		if got := predict(c.cores, c.wire); math.Abs(got/c.want-1) > 0.05 {
			t.Errorf("%d cores, %g us a byte on the wire: %.0f us; want %.0f", c.cores, c.wire, got, c.want)
		}
	}
}
