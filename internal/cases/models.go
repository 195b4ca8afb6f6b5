package cases

import (
	"fmt"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/sim"
)

// modelsGuide is "many GPUs training and serving one model".
func modelsGuide() []entry {
	const size = 26 * unit.GB // 13B parameters of two bytes
	nvlink := func(l *lab, size unit.Bytes) float64 { return ms(l.wire(l.a100(), l.placed(l.a100(), 8), size).Time) }
	pcie := func(l *lab) float64 { return ms(l.wire(l.pcie4Box(), l.placed(l.pcie4Box(), 8), size).Time) }
	apart := func(l *lab) float64 {
		g := l.ports("dgx-a100", "ConnectX-6", 8, "nic0", "hdr")
		return ms(l.run(g, l.ring(8), size, every(g, 8), sim.Options{}).Time)
	}
	speed := func(g func(*lab) *topo.Graph, a, b int) func(*lab) float64 {
		return func(l *lab) float64 { return gbps(l.send(g(l), unit.GB, sim.Options{}, a, b).AlgBW) }
	}
	delay := func(g func(*lab) *topo.Graph, a, b int) func(*lab) float64 {
		return func(l *lab) float64 { return us(l.send(g(l), 8, sim.Options{}, a, b).Time) }
	}
	list := []entry{
		{id: "1-nvlink", section: "follow-up 1", claim: "GPU to GPU over NVLink: 600 GB/s",
			says: is(600), unit: "GB/s",
			how: bySim, ours: speed((*lab).a100, 0, 1),
			bounds: near(300, 0.01), closed: "twelve links of 25 GB/s",
			cause: BothWays, why: "Held in the table against 32 GB/s of PCIe, which is one way."},
		{id: "1-pcie", section: "follow-up 1", claim: "GPU to GPU over PCIe 4: 32 GB/s",
			says: is(32), unit: "GB/s",
			how: bySim, ours: speed((*lab).pcie4Box, 0, 1),
			bounds: near(pcie4, 0.01), closed: "16 x 16 GT/s x 128/130",
			cause: Agrees, why: "One way, before packet headers."},
		{id: "1-cpu", section: "follow-up 1", claim: "GPU to GPU by way of the CPU: 32 GB/s",
			says: is(32), unit: "GB/s",
			how:    bySim,
			ours:   func(l *lab) float64 { return speed((*lab).pcie4Box, 0, 4)(l) / 2 },
			bounds: near(pcie4/2, 0.01), closed: "two copies one after the other, each at 31.5 GB/s",
			cause: Volume, why: "Staged in host memory the bytes cross twice, one copy after the other; only a copy in pieces hides half of it."},
		{id: "1-nvlink-latency", section: "follow-up 1", claim: "over NVLink: 1 to 2 us",
			says: Span{1, 2}, unit: "us",
			how: bySim, ours: delay((*lab).a100, 0, 1),
			bounds: near(0.6, 0.05), closed: "two links of 250 ns and a chip of 100 ns",
			cause: Software, why: "On the wire; with the 0.45 us that a message takes to start on A100 it is the guide's 1 us."},
		{id: "1-pcie-latency", section: "follow-up 1", claim: "over PCIe: 5 us",
			says: is(5), unit: "us",
			how: bySim, ours: delay((*lab).pcie4Box, 0, 1),
			bounds: Span{0.5, 1}, closed: "two links of 250 ns and a switch of 110 ns",
			cause: Software, why: "Behind one switch, on the wire. Software makes 5 us of it, as it makes more of every row."},
		{id: "3-100gbe", section: "follow-up 3", claim: "100 GbE: 100 Gb/s = 12.5 GB/s",
			says: is(12.5), unit: "GB/s",
			how: bySim, ours: speed(func(l *lab) *topo.Graph { return l.two("nic0", "100gbe") }, 0, 8),
			bounds: near(12.5, 0.01), closed: "100 Gb/s over 8",
			cause: Agrees, why: "One way, on the wire; the guide on layers prints 80 to 90 GB/s for the same port."},
		{id: "3-switch", section: "follow-up 3", claim: "NVSwitch of a DGX A100: 4.8 TB/s",
			says: is(4.8), unit: "TB/s",
			how: byGraph, ours: func(l *lab) float64 { return 2 * gbps(accelerated(l.a100())) / 1e3 },
			bounds: near(4.8, 1e-6), closed: "8 x 12 x 25 GB/s x 2",
			cause: Agrees, why: "Both ways, all GPUs. Six chips have ports for more."},
		{id: "3-hdr", section: "follow-up 3", claim: "InfiniBand HDR: 25 GB/s both ways",
			says: is(25), unit: "GB/s",
			how: byCatalog, ours: func(l *lab) float64 { return float64(l.rate("hdr").BothWays()) / 1e9 },
			bounds: near(50, 1e-6), closed: "200 Gb/s each way",
			cause: BothWays,
			why:   "25 GB/s is one way, in a column that is headed both ways; so are the table's PCIe and Ethernet rows. Its NVLink rows are both ways."},
		{id: "3-volume", section: "follow-up 3", claim: "a ring of 8 moves 45.5 GB for 26 GB",
			says: is(45.5), unit: "GB",
			how: byProof, ours: func(l *lab) float64 { return 26 * sent(l.proof(l.ring(8))) },
			bounds: near(45.5, 1e-9), closed: "2(n-1)/n x 26 GB",
			cause: Agrees, why: "Sent by every GPU, and received."},
		{id: "3-76ms", section: "follow-up 3", claim: "over NVLink 3, 600 GB/s: 76 ms",
			says: is(76), unit: "ms",
			how: bySim, ours: func(l *lab) float64 { return nvlink(l, size) },
			bounds: near(ringTime(8, 26, 300), 0.01), closed: "45.5 GB at 300 GB/s",
			cause: BothWays, why: "600 GB/s counts both ways; the 45.5 GB go out one way while as many come in.",
			also: func(l *lab) string {
				return fmt.Sprintf("NCCL takes %s ms.", digits(ms(l.nccl(l.a100(), 8, sched.AllReduce, size).Time), 2))
			}},
		{id: "3-1422ms", section: "follow-up 3", claim: "over PCIe 4, 32 GB/s: 1,422 ms",
			says: is(1422), unit: "ms",
			how: bySim, ours: pcie,
			bounds: near(ringTime(8, 26, pcie4), 0.01), closed: "45.5 GB at 31.5 GB/s",
			cause: Agrees, why: "With a ring in the order of the PCIe tree.",
			also: func(l *lab) string {
				return fmt.Sprintf("NCCL takes %s s.", digits(l.nccl(l.pcie4Box(), 8, sched.AllReduce, size).Time.Seconds(), 2))
			}},
		{id: "3-1820ms", section: "follow-up 3", claim: "over InfiniBand HDR between hosts, 25 GB/s: 1,820 ms",
			says: is(1820), unit: "ms",
			how: bySim, ours: apart,
			bounds: near(ringTime(8, 26, 25), 0.01), closed: "45.5 GB at 25 GB/s",
			cause: Agrees,
			why:   "Eight hosts with one GPU and one port each. Two hosts of four GPUs with a port for each GPU would have four times the bandwidth."},
		{id: "3-pcie-slower", section: "follow-up 3", claim: "PCIe is 18.7 times slower than NVLink",
			says: is(18.7), unit: "x",
			how: bySim, ours: func(l *lab) float64 { return pcie(l) / nvlink(l, size) },
			bounds: near(300/pcie4, 0.02), closed: "300 over 31.5 GB/s",
			cause: BothWays, why: "Half of that: one way against one way."},
		{id: "3-ib-slower", section: "follow-up 3", claim: "InfiniBand is 24 times slower than NVLink",
			says: is(24), unit: "x",
			how: bySim, ours: func(l *lab) float64 { return apart(l) / nvlink(l, size) },
			bounds: near(12, 0.02), closed: "300 over 25 GB/s",
			cause: BothWays, why: "Half of that, and with a port for each GPU of a host less again."},
	}
	for _, s := range []struct {
		key, name string
		says      float64
		comm      func(*lab) float64
		closed    float64
	}{
		{"nvlink", "NVLink", 110, func(l *lab) float64 { return nvlink(l, size) }, ringTime(8, 26, 300)},
		{"pcie", "PCIe", 200, pcie, ringTime(8, 26, pcie4)},
		{"ib", "InfiniBand between hosts", 250, apart, ringTime(8, 26, 25)},
	} {
		list = append(list, entry{
			id: "3-step-" + s.key, section: "follow-up 3",
			claim: fmt.Sprintf("a step of 13B parameters on 8 A100 over %s takes %g ms", s.name, s.says),
			says:  is(s.says), unit: "ms",
			how: byForm, ours: func(l *lab) float64 { return max(850.0/8, s.comm(l)) },
			bounds: near(s.closed, 0.02), closed: "the all-reduce alone, all of the computing hidden behind it",
			cause: Conditions,
			why:   "At least: the longer of 850/8 ms of computing and the all-reduce that the same guide works out. Its measured step is shorter than its own all-reduce, so the gradients were accumulated over several steps or the model was cut up.",
		})
	}
	list = append(list, entry{
		id: "3-comm", section: "follow-up 3", claim: "All-Reduce takes 11 ms of that step",
		says: is(11), unit: "ms",
		how: bySim, ours: func(l *lab) float64 { return nvlink(l, size) },
		bounds: near(ringTime(8, 26, 300), 0.01), closed: "45.5 GB at 300 GB/s",
		cause: Conditions, why: "76 ms a page before. What shows after overlap may be 11 ms; it is not what the all-reduce takes.",
	})
	for _, m := range []struct {
		key                  string
		params               float64
		compute, says, share float64
		note                 string
	}{
		{"GPT-2 Small, 125M", 125e6, 15, 1, 6, ""}, {"GPT-2 Large, 1.5B", 1.5e9, 120, 12, 9, ""},
		{"GPT-3 13B", 13e9, 850, 76, 8,
			" The 850 ms are one GPU's whole batch; with 850/8 ms of computing on eight the all-reduce is most of the step."},
	} {
		key := map[float64]string{125e6: "125M", 1.5e9: "1.5B", 13e9: "13B"}[m.params]
		bytes := unit.Bytes(2 * m.params)
		want := ringTime(8, 2*m.params/1e9, 300)
		list = append(list, entry{
			id: "3-scale-" + key, section: "follow-up 3", claim: fmt.Sprintf("%s: all-reduce over NVLink takes %g ms", m.key, m.says),
			says: is(m.says), unit: "ms",
			how: bySim, ours: func(l *lab) float64 { return nvlink(l, bytes) },
			bounds: near(want, 0.02), closed: "2(n-1)/n of two bytes a parameter at 300 GB/s",
			cause: BothWays, why: "Two bytes a parameter on eight A100 at the wire's rate one way.",
		}, entry{
			id: "3-share-" + key, section: "follow-up 3", claim: fmt.Sprintf("%s: that is %g%% of the step", m.key, m.share),
			says: is(m.share), unit: "%",
			how: byForm, ours: func(l *lab) float64 { t := nvlink(l, bytes); return 100 * t / (m.compute + t) },
			bounds: near(100*want/(m.compute+want), 0.02), closed: "the all-reduce beside the guide's computing",
			cause: BothWays, why: "Nothing hidden." + m.note,
		})
	}
	return append(list, entry{
		id: "6-zero", section: "6", claim: "ZeRO-3 moves as much as data parallelism: 2(N-1)/N",
		says: is(1.75), unit: "x",
		how: byProof,
		ours: func(l *lab) float64 {
			return 2*sent(l.proof(l.block(sched.AllGather))) + sent(l.proof(l.block(sched.ReduceScatter)))
		},
		bounds: near(2.625, 1e-9), closed: "two all-gathers and a reduce-scatter, (n-1)/n each",
		cause: Volume,
		why:   "Parameters are gathered for the forward pass and again for the backward pass, gradients scattered once: half more. The guide says so itself further down.",
	})
}
