package fit

import (
	"strings"
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/synth"
)

// What was measured with some noise becomes the network that was there.
func TestText(t *testing.T) {
	pairs := [][]float64{{0, 2.9e8, 8e8}, {3.0e8, 0, 7.6e8}, {7.8e8, 7.9e8, 0}}
	m := &rates{hosts: [][]int{{0, 2}, {1, 3}, {4}}, near: []float64{9e9, 4e9, 0}, pair: pairs, out: []float64{1.05e9, 1.1e9, 0.8e9}}
	text := m.text()
	for _, want := range []string{"host h0 r0 r2\n", "host h1 r1 r3\n", "h0 - h1 290MB/s\n", "h0 - net2 798MB/s\n", "h1 - net2 798MB/s\n",
		"r4 - net2 798MB/s\n", "r0 - h0 6308MB/s\n", "r1 - h1 6308MB/s\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	n, err := synth.Read("measured", text)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, even := n.Graph(); !even {
		t.Error("links differ by direction")
	}
	b, err := n.Bounds(sched.Broadcast, 0, false)
	if err != nil || b.Rate < 7.9e8 || b.Rate > 8.5e8 {
		t.Errorf("broadcast at %v, %v", b, err)
	}
}

// One host, and hosts with a rank each.
func TestTextOfPlainWorlds(t *testing.T) {
	one := &rates{hosts: [][]int{{0, 1}}, near: []float64{1e9}, pair: [][]float64{{0}}, out: []float64{0}}
	if got := one.text(); got != "host h0 r0 r1\nr0 - h0 1000MB/s\nr1 - h0 1000MB/s\n" {
		t.Errorf("one host: %s", got)
	}
	two := &rates{hosts: [][]int{{0}, {1}}, near: []float64{0, 0}, pair: [][]float64{{0, 2e6}, {1e5, 0}}, out: []float64{0, 0}}
	if got := two.text(); got != "r0 - r1 1MB/s\n" {
		t.Errorf("two hosts, the slower direction below what is told apart: %s", got)
	}
}
