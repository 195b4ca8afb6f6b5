package sim_test

// The ring all-reduce beside ASTRA-sim's analytical network core
// (github.com/astra-sim/astra-network-analytical, MIT).
//
// ASTRA_RING names one driver of that core or several, separated as in PATH.
// Such a driver is some sixty lines of C++ against the library that the
// repository builds with
//
//	cmake -B build -DNETWORK_BACKEND_BUILD_AS_LIBRARY=ON && cmake --build build
//
// Called as "driver n bytes link_GBps latency_ns" it makes a one-way Ring of n
// NPUs (the library's GB is 2^30 bytes, ours 10^9), lets every NPU send bytes/n
// to the next, and lets every arrival but the last of the 2(n-1) of an NPU send
// the next message: with the congestion-aware backend from the callback of a
// Chunk, with the congestion-unaware one from an event scheduled at now plus
// what Topology::send returns. It prints
//
//	n seconds events simulated_seconds
//
// where the seconds are processor time, which other work on the machine does not
// lengthen, from the first send to the empty queue. Making the topology is left
// out, on both sides; writing and parsing the program is in
// ours. A fifth argument is the fraction of the rate that the link from NPU 0 to
// NPU 1 has; a driver that cannot do that exits with an error and sits out.

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/sim"
)

// The links of the comparison: one NDR port's rate, and a latency that stands
// for a NIC, a cable and a switch.
const (
	peerSize    = unit.GiB
	peerRate    = 50 * unit.GBps
	peerLatency = 500 * unit.Nanosecond
)

// chipRing is n GPUs, each a host of its own, each with a link to the next.
func chipRing(tb testing.TB, n int) *topo.Graph {
	tb.Helper()
	b := topo.NewBuilder("ring")
	class := b.Class(topo.Class{Kind: topo.ICI, Gen: "ici4", Lanes: 1, Rate: peerRate, Latency: peerLatency})
	fabric := b.Fabric(topo.Fabric{Name: "ring", Family: topo.Torus, Dims: []int{n}})
	for i := range n {
		h := b.Host(topo.Host{Name: fmt.Sprintf("n%d", i), Pod: topo.None, Rack: topo.None})
		gpu := topo.Part(topo.GPU, h, "gpu0")
		gpu.Fabric, gpu.Pos = fabric, int32(i)
		b.Node(gpu)
	}
	for i := range n {
		b.Link(topo.Link{A: topo.NodeID(i), B: topo.NodeID((i + 1) % n), Class: class})
	}
	g, err := b.Graph()
	if err != nil {
		tb.Fatal(err)
	}
	return g
}

// ringTime simulates the all-reduce, from the algorithm's name to the result.
// slow is the fraction of its rate that the link from rank 0 to rank 1 has.
func ringTime(tb testing.TB, g *topo.Graph, slow float64, unfolded bool) unit.Time {
	tb.Helper()
	ring, err := algo.Find("ring")
	if err != nil {
		tb.Fatal(err)
	}
	p, err := ring.Program(algo.Spec{Op: sched.AllReduce, Ranks: len(g.Nodes)})
	if err != nil {
		tb.Fatal(err)
	}
	o := sim.Options{Unfolded: unfolded}
	if slow != 1 {
		o.Slow = []sim.Slow{{Name: "n0:gpu0 - n1:gpu0", Factor: slow}}
	}
	r, err := sim.Collective(g, p, peerSize, o)
	if err != nil {
		tb.Fatal(err)
	}
	return r.Time
}

// ringForm is the closed form. All links alike, there are 2(n-1) steps of a
// latency and an n-th of the bytes. One link slower, and a message's time on the
// others no less than the latency, the slow link never rests while the 2(n-1)
// messages pass it, and the last of them has the latency to go.
func ringForm(n int, slow float64) float64 {
	message := float64(peerSize) / float64(n) / float64(peerRate)
	if slow != 1 {
		return 2*float64(n-1)*message/slow + peerLatency.Seconds()
	}
	return 2 * float64(n-1) * (peerLatency.Seconds() + message)
}

// near holds a simulated time against the closed form. Each step may be rounded
// to the grain of the clock that was used.
func near(tb testing.TB, who string, n int, slow, got, grain float64) {
	tb.Helper()
	want := ringForm(n, slow)
	if math.Abs(got-want) > 2*float64(n-1)*grain+1e-12 {
		tb.Errorf("%s: %d ranks, a link at %g, take %.12f s; the closed form is %.12f s", who, n, slow, got, want)
	}
}

// processor is the time in seconds that this process has had of processors.
func processor(tb testing.TB) float64 {
	tb.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// runPeer gives the processor time and the simulated time of a driver in
// seconds, and false if it does not know slow links.
func runPeer(tb testing.TB, driver string, n int, slow float64) (took, simulated float64, ok bool) {
	tb.Helper()
	args := []string{fmt.Sprint(n), fmt.Sprint(int64(peerSize)),
		fmt.Sprint(float64(peerRate / unit.GBps)), fmt.Sprint(int64(peerLatency / unit.Nanosecond))}
	if slow != 1 {
		args = append(args, fmt.Sprint(slow))
	}
	out, err := bounded.Within(tb, 10*time.Minute, driver, args...).Output()
	if err != nil && slow != 1 {
		return 0, 0, false
	}
	if err != nil {
		tb.Fatalf("ASTRA_RING %s: %v", driver, err)
	}
	var ranks int
	var events int64
	if _, err := fmt.Sscan(string(out), &ranks, &took, &events, &simulated); err != nil || ranks != n {
		tb.Fatalf("ASTRA_RING %s prints %q; it must print: n seconds events simulated_seconds", driver, out)
	}
	return took, simulated, true
}

func TestRingClosedForm(t *testing.T) {
	for _, n := range []int{4, 64, 256} {
		g := chipRing(t, n)
		for _, slow := range []float64{1, 0.5} {
			for _, unfolded := range []bool{false, true} {
				near(t, fmt.Sprintf("unfolded=%v", unfolded), n, slow, ringTime(t, g, slow, unfolded).Seconds(), 1e-12)
			}
		}
	}
}

// BenchmarkRing has all links alike, the best case of both simulators: ours
// folds it, and the peer's queue, a list of moments searched from its front,
// never holds more than three.
func BenchmarkRing(b *testing.B) { besidePeers(b, 1) }

// BenchmarkRingSlowLink has one link at half its rate, so that ranks are not
// alike and their messages end at many different moments.
func BenchmarkRingSlowLink(b *testing.B) { besidePeers(b, 0.5) }

// besidePeers takes folded, unfolded and every peer in turn in each iteration,
// so that what else the machine does to caches and clocks meets all of them, and
// reports medians. A peer that takes over ten seconds runs once. ns/op is the
// sum of all and means nothing.
func besidePeers(b *testing.B, slow float64) {
	drivers := filepath.SplitList(os.Getenv("ASTRA_RING"))
	for _, n := range []int{64, 256, 1024} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			g := chipRing(b, n)
			var folded, unfolded []float64
			peers := make([][]float64, len(drivers))
			for b.Loop() {
				for _, way := range []struct {
					times    *[]float64
					unfolded bool
				}{{&folded, false}, {&unfolded, true}} {
					start := processor(b)
					t := ringTime(b, g, slow, way.unfolded)
					*way.times = append(*way.times, processor(b)-start)
					near(b, "weft", n, slow, t.Seconds(), 1e-12)
				}
				for i, driver := range drivers {
					if len(peers[i]) > 0 && peers[i][0] > 10 {
						continue
					}
					took, simulated, ok := runPeer(b, driver, n, slow)
					if !ok {
						continue
					}
					peers[i] = append(peers[i], took)
					near(b, driver, n, slow, simulated, 1e-9)
				}
			}
			b.ReportMetric(median(folded)*1e3, "folded-ms")
			b.ReportMetric(median(unfolded)*1e3, "unfolded-ms")
			for i, driver := range drivers {
				if len(peers[i]) == 0 {
					continue
				}
				name, peer := filepath.Base(driver), median(peers[i])
				b.ReportMetric(peer*1e3, name+"-ms")
				b.ReportMetric(peer/median(folded), name+"/folded")
				b.ReportMetric(peer/median(unfolded), name+"/unfolded")
			}
		})
	}
}

func median(x []float64) float64 {
	slices.Sort(x)
	if len(x)%2 == 0 {
		return (x[len(x)/2-1] + x[len(x)/2]) / 2
	}
	return x[len(x)/2]
}
