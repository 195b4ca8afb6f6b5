package sim

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/synth"
	"github.com/weft-fabric/weft/model/unit"
)

// sharesPage is what `make synth-shares` writes.
const sharesPage = "../../docs/reference/tables/synthesis-shares.md"

// linkGraph is a network as a link file has it.
type linkGraph struct{ name, links string }

func graphOf(name string, write func(link func(a, b string, rate int))) linkGraph {
	var b strings.Builder
	write(func(x, y string, rate int) { fmt.Fprintf(&b, "%s - %s %d\n", x, y, rate) })
	return linkGraph{name, b.String()}
}

func rankName(v int) string { return fmt.Sprintf("r%d", v) }

// boxGraph is boxes of ranks, each with a switch, and rails between them; a dead rank's NIC has no link, a slow one half the rate.
func boxGraph(name string, boxes, ranks, rails, inside, net, dead, slow int) linkGraph {
	return graphOf(name, func(link func(a, b string, rate int)) {
		for v := range boxes * ranks {
			link(rankName(v), fmt.Sprintf("box%d", v/ranks), inside)
			switch v {
			case dead:
			case slow:
				link(rankName(v), fmt.Sprintf("net%d", v%rails), max(net/2, 1))
			default:
				link(rankName(v), fmt.Sprintf("net%d", v%rails), net)
			}
		}
	})
}

// gridGraph is a torus of ranks; one link may be slow.
func gridGraph(name string, wide, high, rate, slow int) linkGraph {
	return graphOf(name, func(link func(a, b string, rate int)) {
		n := 0
		add := func(a, b int) {
			r := rate
			if n == slow {
				r = max(rate/2, 1)
			}
			n++
			link(rankName(a), rankName(b), r)
		}
		for y := range high {
			for x := range wide {
				add(y*wide+x, y*wide+(x+1)%wide)
				add(y*wide+x, (y+1)%high*wide+x)
			}
		}
	})
}

// dragonflyGraph is groups of switches that are all joined, with a link from each group to each other.
func dragonflyGraph(name string, groups, switches, ranks, near, far int) linkGraph {
	return graphOf(name, func(link func(a, b string, rate int)) {
		sw := func(g, s int) string { return fmt.Sprintf("g%ds%d", g, s) }
		for g := range groups {
			for s := range switches {
				for k := range ranks {
					link(rankName((g*switches+s)*ranks+k), sw(g, s), near)
				}
				for o := range s {
					link(sw(g, s), sw(g, o), near*ranks)
				}
			}
			for o := range g {
				link(sw(g, o%switches), sw(o, g%switches), far)
			}
		}
	})
}

// referenceGraphs are machines as they are sold, and small graphs whose optimum is known.
func referenceGraphs() []linkGraph {
	cube := map[[2]int]int{{0, 1}: 1, {0, 2}: 1, {0, 3}: 2, {0, 4}: 2, {1, 2}: 2, {1, 3}: 1, {1, 5}: 2, {2, 3}: 2, {2, 6}: 1,
		{3, 7}: 1, {4, 5}: 1, {4, 6}: 1, {4, 7}: 2, {5, 6}: 2, {5, 7}: 1, {6, 7}: 2}
	var list []linkGraph
	for _, gpus := range [][]int{{0, 1}, {0, 1, 2}, {0, 1, 4}, {0, 1, 2, 3}, {0, 1, 2, 3, 4}, {0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 4, 5, 6},
		{0, 1, 2, 3, 4, 5, 6, 7}} {
		list = append(list, graphOf(fmt.Sprintf("DGX-1V, GPUs %v", gpus), func(link func(a, b string, rate int)) {
			for i, a := range gpus {
				for j, b := range gpus[:i] {
					if c := cube[[2]int{b, a}]; c > 0 {
						link(rankName(j), rankName(i), 25*c)
					}
				}
			}
		}))
	}
	star := func(name string, ranks, rate int) linkGraph {
		return graphOf(name, func(link func(a, b string, rate int)) {
			for v := range ranks {
				link(rankName(v), "switch", rate)
			}
		})
	}
	mesh := func(name string, ranks, dead int) linkGraph {
		return graphOf(name, func(link func(a, b string, rate int)) {
			for a := range ranks {
				for b := range a {
					if a != dead || b != 0 {
						link(rankName(b), rankName(a), 64)
					}
				}
			}
		})
	}
	chain := func(name string, round bool, rates ...int) linkGraph {
		return graphOf(name, func(link func(a, b string, rate int)) {
			for i, r := range rates {
				to := i + 1
				if round {
					to %= len(rates)
				}
				if r > 0 {
					link(rankName(i), rankName(to), r)
				}
			}
		})
	}
	return append(list,
		star("DGX-2", 16, 150), star("DGX A100", 8, 300), star("DGX H100", 8, 450), star("star of 4", 4, 10),
		boxGraph("2 x 8 A100, one network switch", 2, 8, 1, 300, 25, -1, -1), boxGraph("2 x 8 A100, two rails", 2, 8, 2, 300, 25, -1, -1),
		boxGraph("2 x 8 A100, eight rails", 2, 8, 8, 300, 25, -1, -1), boxGraph("4 x 8 A100, one network switch", 4, 8, 1, 300, 25, -1, -1),
		boxGraph("2 x 4, inside 10, network 1", 2, 4, 1, 10, 1, -1, -1),
		mesh("MI300X", 8, -1), mesh("MI300X, link 0-1 dead", 8, 1), mesh("4 of MI300X", 4, -1),
		chain("ring of 8", true, 25, 25, 25, 25, 25, 25, 25, 25), chain("ring of 8, a dead link", true, 0, 25, 25, 25, 25, 25, 25, 25),
		chain("ring of 8, a link of 12", true, 12, 25, 25, 25, 25, 25, 25, 25), chain("line of 4", false, 25, 25, 25),
		chain("line of 25, 10, 25", false, 25, 10, 25),
		graphOf("rank 0 amid 4 others", func(link func(a, b string, rate int)) {
			for v := 1; v < 5; v++ {
				link("r0", rankName(v), 10)
			}
		}),
		graphOf("triangle of 1, 1, 2", func(link func(a, b string, rate int)) { link("r0", "r1", 1); link("r1", "r2", 1); link("r0", "r2", 2) }))
}

// randomGraphs draws networks of every family, always the same ones.
func randomGraphs(count int) []linkGraph {
	rng := rand.New(rand.NewPCG(40, 32))
	pick := func(list ...int) int { return list[rng.IntN(len(list))] }
	var list []linkGraph
	for i := range count {
		name := func(format string, args ...any) string {
			return fmt.Sprintf("%d: ", i+1) + fmt.Sprintf(format, args...)
		}
		switch i % 8 {
		case 0:
			boxes, ranks, inside, net := 2+rng.IntN(3), pick(4, 6, 8), pick(100, 240, 450), pick(20, 40, 50)
			list = append(list, boxGraph(name("%d boxes of %d, %d inside, one switch of %d", boxes, ranks, inside, net), boxes, ranks, 1, inside,
				net, -1, -1))
		case 1:
			boxes, ranks, net := 2+rng.IntN(3), pick(4, 8), pick(25, 50)
			dead := rng.IntN(boxes * ranks)
			list = append(list, boxGraph(name("%d boxes of %d, rails of %d, NIC %d dead", boxes, ranks, net, dead), boxes, ranks, ranks, 300, net,
				dead, -1))
		case 2:
			boxes, ranks, net := 2+rng.IntN(3), pick(4, 8), pick(25, 50)
			slow := rng.IntN(boxes * ranks)
			list = append(list, boxGraph(name("%d boxes of %d, rails of %d, NIC %d slow", boxes, ranks, net, slow), boxes, ranks, ranks, 300, net,
				-1, slow))
		case 3:
			wide, high := 3+rng.IntN(2), 3+rng.IntN(2)
			list = append(list, gridGraph(name("torus %d x %d", wide, high), wide, high, 25, -1))
		case 4:
			wide, high := 3+rng.IntN(2), 3+rng.IntN(2)
			slow := rng.IntN(2 * wide * high)
			list = append(list, gridGraph(name("torus %d x %d, link %d slow", wide, high, slow), wide, high, 24, slow))
		case 5:
			groups, switches, far := 3, 2, pick(10, 25)
			list = append(list, dragonflyGraph(name("dragonfly of %d x %d x 2, %d between groups", groups, switches, far), groups, switches, 2,
				25, far))
		case 6:
			hosts, over := pick(4, 6, 8), 2+rng.IntN(2)
			list = append(list, graphOf(name("%d hosts of 2, leaves of two hosts, %d:1", hosts, over), func(link func(a, b string, rate int)) {
				for v := range hosts * 2 {
					link(rankName(v), fmt.Sprintf("leaf%d", v/4), 24)
				}
				for l := range (hosts + 1) / 2 {
					link(fmt.Sprintf("leaf%d", l), "spine", 96/over)
				}
			}))
		default:
			ranks := 5 + rng.IntN(4)
			list = append(list, graphOf(name("mesh of %d, links of 10 to 40", ranks), func(link func(a, b string, rate int)) {
				for v := range ranks {
					link(rankName(v), rankName((v+1)%ranks), 10*(1+rng.IntN(4)))
				}
				for range ranks / 2 {
					if a, b := rng.IntN(ranks), rng.IntN(ranks); a != b {
						link(rankName(a), rankName(b), 10*(1+rng.IntN(4)))
					}
				}
			}))
		}
	}
	return list
}

// shareOf is what a synthesised program of 1 GiB reaches of the bound, links at wire rate, and why it is no more.
func shareOf(t *testing.T, x linkGraph, op sched.Collective) (share float64, why string) {
	net, err := synth.Read(x.name, x.links)
	if err != nil {
		t.Fatal(x.name, err)
	}
	g, gpus, ok := net.Graph()
	if !ok {
		t.Fatalf("%s has no graph", x.name)
	}
	end := cpu() + 20*time.Second
	s, err := Synthesise(g, gpus, op, unit.GiB, Options{}, SynthWish{Loss: DefaultLoss, Split: true, Stop: func() bool { return cpu() > end }})
	switch {
	case err != nil:
		t.Logf("%s, %s: %v", x.name, op, err)
		return 0, "no program"
	case s.Result == nil:
		return 0, "the time was up before its first program was simulated"
	}
	return float64(s.Result.AlgBW / s.Plan.Bound.Rate), s.Lost(unit.GiB)
}

// TestShares writes what synthesised programs reach of the bound: `make synth-shares`.
func TestShares(t *testing.T) {
	if os.Getenv("WEFT_SYNTH_SHARES") == "" {
		t.Skip("make synth-shares runs this; it takes half an hour")
	}
	ops := []sched.Collective{sched.AllGather, sched.ReduceScatter, sched.AllReduce, sched.Broadcast, sched.AllToAll}
	type low struct {
		share     float64
		name, why string
	}
	var b strings.Builder
	var lows []low
	sums := make([][]float64, len(ops))
	for _, part := range []struct {
		title string
		list  []linkGraph
	}{{"Machines and known graphs", referenceGraphs()}, {"Random graphs", randomGraphs(40)}} {
		fmt.Fprintf(&b,
			"## %s\n\n| network (GB/s) | all-gather | reduce-scatter | all-reduce | broadcast | all-to-all |\n|---|---|---|---|---|---|\n",
			part.title)
		for _, x := range part.list {
			fmt.Fprintf(&b, "| %s |", x.name)
			for i, op := range ops {
				share, why := shareOf(t, x, op)
				sums[i] = append(sums[i], share)
				lows = append(lows, low{share, x.name + ", " + op.String(), why})
				fmt.Fprintf(&b, " %.1f |", 100*share)
			}
			b.WriteString("\n")
			fmt.Println(x.name, lows[len(lows)-len(ops):])
		}
		b.WriteString("\n")
	}
	b.WriteString("## All of them\n\n| operation | median | lowest | at 95% or more |\n|---|---|---|---|\n")
	for i, op := range ops {
		slices.Sort(sums[i])
		at := 0
		for _, s := range sums[i] {
			if s >= 0.95 {
				at++
			}
		}
		fmt.Fprintf(&b, "| %s | %.1f | %.1f | %d of %d |\n", op, 100*sums[i][len(sums[i])/2], 100*sums[i][0], at, len(sums[i]))
	}
	slices.SortFunc(lows, func(a, b low) int {
		if a.share < b.share {
			return -1
		}
		return 1
	})
	b.WriteString("\n## The lowest five\n\nThe reasons are what `weft algo synth` prints.\n\n")
	for _, l := range lows[:5] {
		fmt.Fprintf(&b, "- %s, %.1f%%: %s\n", l.name, 100*l.share, l.why)
	}
	page := "# Synthesised programs and their bounds\n\nMade by:\n\n    make synth-shares\n\nPercent of the bound that a program of 1 GiB reaches in simulation, links at wire rate and no software overhead. Each gets\ntwenty seconds of processor time; the random graphs are always the same.\n\n"
	if err := os.WriteFile(sharesPage, []byte(page+b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
