package tune

import (
	"strings"
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

func says(t *testing.T, text []string, parts ...string) {
	t.Helper()
	all := strings.Join(text, "\n")
	t.Log("\n" + all)
	for _, p := range parts {
		if !strings.Contains(all, p) {
			t.Errorf("%q is not said", p)
		}
	}
	for _, s := range text {
		if !strings.HasSuffix(s, ".") || strings.Contains(s, "NaN") || strings.Contains(s, "%!") || strings.Contains(s, "+Inf") {
			t.Errorf("no sentence: %q", s)
		}
	}
}

// TestWhyTwoNodesExceedTheNIC: p4de measured 78 GB/s with NICs of 50.
func TestWhyTwoNodesExceedTheNIC(t *testing.T) {
	s := newMachines(t)
	says(t, s.model("aws_p4de_a100", 16, 2, NCCLOptions{}).WhyAboveNIC(sched.AllReduce, 2*unit.GiB),
		"each node sends half of the data up one tree", "93.75 GB/s", "NICs of 50 GB/s", "above the NICs' rate")
	says(t, s.model("aws_p4de_a100", 24, 3, NCCLOptions{Algos: []string{"Tree"}}).WhyAboveNIC(sched.AllReduce, 2*unit.GiB),
		"4/3 of their rate")
	says(t, s.model("aws_p4de_a100", 64, 8, NCCLOptions{Algos: []string{"Tree"}}).WhyAboveNIC(sched.AllReduce, 2*unit.GiB), "stays below")
}

// TestWhyThreeOfEightAreSlow on a cube mesh.
func TestWhyThreeOfEightAreSlow(t *testing.T) {
	s := newMachines(t)
	g := s.graph("dgx-1v", 1)
	var set []topo.NodeID
	for _, name := range []string{"gpu0", "gpu1", "gpu5"} {
		id, err := g.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		set = append(set, id)
	}
	text, err := WhySlowSet(g, set, s.c)
	if err != nil {
		t.Fatal(err)
	}
	says(t, text, "No NVLink connects gpu0-gpu5", "PCIe", "times as much")
	text, err = WhySlowSet(g, allGPUs(g), s.c)
	if err != nil {
		t.Fatal(err)
	}
	says(t, text, "6 rings of 25 GB/s")
	h := s.graph("dgx-h100", 1)
	if text, err = WhySlowSet(h, allGPUs(h)[:3], s.c); err != nil {
		t.Fatal(err)
	}
	says(t, text, "every set of this size is equally fast")
}

func TestWhyBusIsNotWireRate(t *testing.T) {
	s := newMachines(t)
	says(t, s.model("dgx-h100", 8, 1, NCCLOptions{}).WhyNotWireRate(sched.AllGather, unit.GiB), "of the 450 GB/s each way", "82%", "0.875 bytes")
	says(t, s.model("dgx-h100", 32, 4, NCCLOptions{}).WhyNotWireRate(sched.AllReduce, unit.GiB), "96%")
	says(t, s.model("pcie-8", 8, 1, NCCLOptions{}).WhyNotWireRate(sched.AllReduce, 64*unit.KiB), "LL, which sends a flag")
}

// TestWhyTreeHereAndRingThere on sixteen nodes: case C's turns, in words.
func TestWhyTreeHereAndRingThere(t *testing.T) {
	s := newMachines(t)
	says(t, caseC().WhyChoice(sched.AllReduce, unit.MiB), "Tree LL128", "Choice by size: Tree LL, Tree LL128 from", "Ring Simple from")
	says(t, s.model("dgx-h100", 128, 16, NCCLOptions{NoNVLS: true}).WhyTreeOrRing(unit.MiB), "crosses the network 30 times", "and 8 times",
		"Of these two, NCCL chooses the ring from", "By the measured constants", "At 1 MiB")
	says(t, s.model("dgx-h100", 8, 1, NCCLOptions{}).WhyTreeOrRing(unit.MiB), "at every size")
}

func TestExplainEverything(t *testing.T) {
	s := newMachines(t)
	for _, m := range []*NCCL{s.model("dgx-h100", 8, 1, NCCLOptions{}), s.model("dgx-h100", 16, 2, NCCLOptions{}),
		s.model("dgx-1v", 8, 1, NCCLOptions{}), s.model("pcie-8", 4, 1, NCCLOptions{}),
		s.model("dgx-b200", 1, 1, NCCLOptions{}), s.model("gh200", 4, 4, NCCLOptions{})} {
		for _, op := range sched.Collectives() {
			for _, size := range []unit.Bytes{0, 8, unit.MiB, unit.GiB, 1 << 50} {
				text := m.Explain(op, size)
				if len(text) < 2 {
					t.Errorf("%s of %s: %q", op, size, text)
				}
				for _, line := range text {
					if !strings.HasSuffix(line, ".") || strings.Contains(line, "NaN") || strings.Contains(line, "%!") {
						t.Errorf("no sentence: %q", line)
					}
				}
			}
		}
	}
	says(t, s.model("dgx-h100", 16, 2, NCCLOptions{}).Explain(sched.AllReduce, 64*unit.MiB))
}

// TestTurnsAgreeWithChoose on both sides of every turn.
func TestTurnsAgreeWithChoose(t *testing.T) {
	m := caseC()
	list := m.Turns(sched.AllReduce)
	for i, turn := range list[1:] {
		before, after := m.Choose(sched.AllReduce, turn.From-1), m.Choose(sched.AllReduce, turn.From)
		if before.Algo+" "+before.Proto != list[i].Name || after.Algo+" "+after.Proto != turn.Name {
			t.Errorf("turn %v: %s %s before, %s %s after", turn, before.Algo, before.Proto, after.Algo, after.Proto)
		}
	}
}
