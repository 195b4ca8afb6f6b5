package cases

import (
	"fmt"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/verify"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/sim"
)

// sent is what the rank that sends most sends, in sizes of the larger buffer.
func sent(r *verify.Report) float64 {
	if r.Chunks == 0 {
		return 0
	}
	return float64(r.MaxSent) / float64(r.Chunks)
}

// clustersGuide is "architecture of very large clusters".
func clustersGuide() []entry {
	const gradients = 700 * unit.GB
	return []entry{
		{id: "1-volume", section: "challenges", claim: "175B parameters of 4 bytes: a ring moves 1.4 TB a step",
			says: is(1.4), unit: "TB",
			how: byProof, ours: func(l *lab) float64 { return .7 * sent(l.proof(l.ring(10_000))) },
			bounds: near(1.4, 0.001), closed: "2(n-1)/n of 700 GB",
			cause: Agrees, why: "Through every GPU's port, not through the network as a whole."},
		{id: "1-rate", section: "challenges", claim: "a step of 1 s on 10,000 GPUs needs 11.2 Tb/s",
			says: is(11.2), unit: "Tb/s",
			how: byProof, ours: func(l *lab) float64 { return .7 * sent(l.proof(l.ring(10_000))) * 8 * 10_000 },
			bounds: near(112_000, 0.001), closed: "1.4 TB x 8 x 10,000",
			cause: Denominator,
			why:   "11.2 Tb/s is what each of the 10,000 GPUs would have to send, 56 times its port of 200 Gb/s. The cluster would have to carry ten thousand times that: the model is cut up, or the step is longer."},
		{id: "1-step", section: "challenges", claim: "at that rate the exchange takes the 1 s of a step",
			says: is(1), unit: "s",
			how: bySim, ours: func(l *lab) float64 {
				return l.wire(l.tenThousand(), l.placed(l.tenThousand(), 10_240), gradients).Time.Seconds()
			},
			bounds: near(ringTime(10_240, 700, 200)/1e3, 0.01), closed: "2(n-1)/n of 700 GB at 200 GB/s a host",
			cause: Denominator,
			why:   "Flat rings over eight HDR ports a host on a non-blocking fabric of three tiers, 10,240 GPUs.",
			also: func(l *lab) string {
				return fmt.Sprintf("One ring over one port of each host takes %s.", l.wire(l.tenThousand(), l.ring(10_240), gradients).Time)
			}},
		{id: "1-latency", section: "challenges", claim: "the network's part of latency is 2 to 10 us",
			says: Span{2, 10}, unit: "us",
			how: bySim, ours: func(l *lab) float64 {
				return us(l.send(l.tenThousand(), 8, sim.Options{}, 0, 10_239).Time)
			},
			bounds: Span{2, 6}, closed: "six cables of 240 ns, five switches of 130 ns, two NICs and the PCIe of both hosts",
			cause: Agrees, why: "The longest way there is, five switches, on an idle network."},
		{id: "2-host", section: "SuperPOD", claim: "a DGX A100 has 8 x 200 Gb/s = 1.6 Tb/s",
			says: is(1.6), unit: "Tb/s",
			how: byGraph, ours: func(l *lab) float64 { return float64(injected(l.pod()).Bits()) / 32 / 1e12 },
			bounds: near(1.6, 1e-6), closed: "8 x 200 Gb/s",
			cause: Agrees, why: "One way."},
		{id: "2-bisection", section: "SuperPOD", claim: "six NVSwitches have 4.8 TB/s of bisection",
			says: is(4.8), unit: "TB/s",
			how: bySim, ours: func(l *lab) float64 {
				return 8 * gbps(l.send(l.a100(), unit.GB, sim.Options{}, 0, 4, 1, 5, 2, 6, 3, 7).AlgBW) / 1e3
			},
			bounds: near(2.4, 0.01), closed: "four GPUs a side, 300 GB/s each way",
			cause: BothWays, why: "Eight streams across the middle, four each way, at full rate. 4.8 TB/s is what all eight GPUs send and receive."},
		{id: "2-superpod", section: "SuperPOD", claim: "a SuperPOD of 22,400 GPUs has 44.8 Tb/s",
			says: is(44.8), unit: "Tb/s",
			how: byGraph, ours: func(l *lab) float64 {
				return float64(injected(l.preset("superpod-a100", map[string]int{"su": 7})).Bits()) / 1e12
			},
			bounds: near(224, 1e-6), closed: "140 hosts x 8 x 200 Gb/s",
			cause: Wiring,
			why:   "NVIDIA's full SuperPOD is 140 DGX in seven units, 1,120 GPUs, not 140 units. 22,400 ports would have 4,480 Tb/s; 44.8 is neither."},
		{id: "3-rsc-total", section: "Meta RSC", claim: "16,000 GPUs of 200 Gb/s: 3.2 Tb/s in all",
			says: is(3.2), unit: "Tb/s",
			how: byGraph, ours: func(l *lab) float64 { return float64(injected(l.preset("meta-rsc", nil)).Bits()) / 1e12 },
			bounds: near(3200, 1e-6), closed: "16,000 x 200 Gb/s",
			cause: Arithmetic, why: "3.2 Pb/s; 3.2 Tb/s is two hosts."},
		{id: "3-rsc-efficiency", section: "Meta RSC", claim: "large all-reduces reach over 90% of the network",
			says: Span{90, 100}, unit: "%",
			how: byMeasured, ours: func(l *lab) float64 {
				return 100 * gbps(l.measured(l.pod(), l.placed(l.pod(), 256), 16*unit.GB, sim.RDMA).BusBW) / 200
			},
			bounds: Span{90, 96}, closed: "RDMA reaches 96% of a port",
			cause: Agrees, why: "On 256 GPUs with adaptive routing, where nothing is lost but the headers.",
			also: func(l *lab) string {
				return fmt.Sprintf("Rings that stay on their rail do not need the spines. Where every step goes over them and ECMP hashes flows onto the same uplink, the slowest flow sets the pace: %.0f%% on average over four seeds.",
					l.hashed())
			}},
		{id: "4-tpu-link", section: "TPU pod", claim: "a chip's links carry 4.8 Tb/s in all",
			says: is(4.8), unit: "Tb/s",
			how: byGraph, ours: func(l *lab) float64 {
				return float64(accelerated(l.file(torusFile)).Bits()) / 4096 / 1e12
			},
			bounds: near(2.4, 1e-6), closed: "six links of 50 GB/s",
			cause: BothWays, why: "One way; both ways it is the guide's figure, which it calls that of a single link."},
		{id: "4-torus-shape", section: "TPU pod",
			claim: "4,096 chips in a torus of 4 x 4 x 256, six links a chip: with all of them busy 1 GB would take 6.7 ms",
			says:  is(1e3 * 2 / 300.0), unit: "ms",
			how: bySim, ours: func(l *lab) float64 { return ms(l.torus(l.file(torusFile)).Time) },
			bounds: Span{ringTime(4096, 1, 300), 2 * ringTime(4096, 1, 300)}, closed: "between all six links busy all the time and half of them",
			cause: Conditions,
			why:   "The published pod is 16 x 16 x 16. A ring of four passes a quarter of its bytes on to the next dimension and one of 256 hardly any, so of equal parts the long dimension's links carry 1.31 times their share.",
			also: func(l *lab) string {
				return fmt.Sprintf("The published shape takes %s.", l.torus(l.cube()).Time)
			}},
		{id: "4-torus-links", section: "TPU pod",
			claim: "all-reduce goes X, then Y, then Z: one dimension at a time keeps two of six links busy, 100 GB/s",
			says:  is(100), unit: "GB/s",
			how: bySim, ours: func(l *lab) float64 { return gbps(l.torus(l.cube()).BusBW) },
			bounds: near(300, 0.02), closed: "six links of 50 GB/s",
			cause: Conditions,
			why:   "Taken literally, X then Y then Z leaves four of six links idle at any time. Six parts of the data that start in different dimensions and directions keep all of them busy."},
		{id: "5-monitor", section: "monitoring code", claim: "bandwidth is 2 x size / time: for 8 GPUs",
			says: is(2), unit: "x",
			how: byForm, ours: func(*lab) float64 { return sched.AllReduce.BusFactor(8) },
			bounds: near(1.75, 1e-9), closed: "2(n-1)/n",
			cause: Denominator, why: "2(n-1)/n: on eight GPUs the guide's monitor prints 14% too much, on 10,000 nothing to speak of."},
	}
}

// hashed is the mean share of the network that eight rings over 16 hosts reach
// under ECMP when every step goes over the spines, in percent.
func (l *lab) hashed() float64 {
	const seeds = 4
	g, sum := l.railed(16), 0.0
	for s := range uint64(seeds) {
		o := sim.Options{Measured: true, Routing: sim.ECMP, Seed: s + 1}
		sum += 100 * gbps(l.run(g, l.crossed(128, 8), 16*unit.GB, nil, o).BusBW) / 200
	}
	return sum / seeds
}

// torus is an all-reduce of 1 GB by dimensions on 4,096 chips.
func (l *lab) torus(g *topo.Graph) *sim.Result {
	a, err := algo.Find("torus")
	if err != nil {
		l.fail(err)
	}
	if l.err != nil {
		return &sim.Result{Time: 1}
	}
	return l.wire(g, l.program(a.Name, sim.Place(a, algo.Spec{Op: sched.AllReduce, Ranks: 4096}, g, l.c)), unit.GB)
}

// cube is the published pod, 16 x 16 x 16.
func (l *lab) cube() *topo.Graph { return l.preset("tpu-v4", nil) }
