package cases

import (
	"fmt"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/sim"
)

// gradient is what two A100 reduce in 12 ms at the wire's rate: 3.6 GB at 300 GB/s.
const gradient = 3_600 * unit.MB

// overlapped is the end of a step of 10 ms computing whose gradients are reduced in
// buckets of 25 MiB as they become ready: a third of the computing is the forward
// pass, and gradients come evenly over the rest.
func (l *lab) overlapped() float64 {
	const (
		bucket  = 25 * unit.MiB
		compute = 10 * unit.Millisecond
		forward = compute / 3
	)
	if l.err != nil {
		return 0
	}
	g := l.a100()
	p := l.program("ring", algo.Spec{Op: sched.AllReduce, Ranks: 2})
	n := int((gradient + bucket - 1) / bucket)
	var jobs []sim.Job
	for k := range n {
		size := min(bucket, gradient-unit.Bytes(k)*bucket)
		jobs = append(jobs, sim.Job{Program: p, Size: size, Place: pick(g, 0, 1), Start: forward + (compute-forward)*unit.Time(k+1)/unit.Time(n)})
	}
	res, err := sim.Run(g, jobs, sim.Options{})
	if err != nil {
		l.fail(err)
		return 0
	}
	end := compute
	for _, j := range res.Jobs {
		end = max(end, j.End)
	}
	return ms(end)
}

// transfersGuide is "high-speed, low-overhead data transfers".
func transfersGuide() []entry {
	serial := func(l *lab) float64 { return 10 + ms(l.wire(l.a100(), l.ring(2), gradient).Time) }
	leaf := func(l *lab) (*topo.Graph, []topo.NodeID) {
		g := l.preset("rail", map[string]int{"hosts": 32})
		if l.err != nil {
			return nil, nil
		}
		place := every(g, 8)
		for _, e := range g.Edges(g.Near(place[0])) {
			if g.Nodes[e.Peer].Kind == topo.Switch {
				place = append(place, e.Peer)
			}
		}
		return g, place
	}
	sharp := func(l *lab) *sched.Program {
		return l.program("sharp", algo.Spec{Op: sched.AllReduce, Ranks: 32, Pieces: 1})
	}
	list := []entry{
		{id: "4.1-serial", section: "4.1.1", claim: "10 ms of computing and 12 ms of all-reduce, one after the other: 22 ms",
			says: is(22), unit: "ms",
			how: bySim, ours: serial,
			bounds: near(22, 0.01), closed: "10 + 3.6 GB at 300 GB/s",
			cause: Agrees, why: "Two A100 and as many bytes as take 12 ms."},
		{id: "4.1-overlap", section: "4.1.1", claim: "fully overlapped: near 12 ms",
			says: is(12), unit: "ms",
			how: bySim, ours: (*lab).overlapped,
			bounds: near(10/3.0+12, 0.02), closed: "a third of 10 ms before the first bucket, then 12 ms",
			cause: Conditions,
			why:   "12 ms is the longer of the two and a bound. There are no gradients during the forward pass, a third of the computing: buckets of 25 MiB leave as they become ready, and the network is the slower one from there on."},
		{id: "4.1-gain", section: "4.1.2", claim: "with DDP the time is about 70% of that without overlap",
			says: is(70), unit: "%",
			how: bySim, ours: func(l *lab) float64 { return 100 * l.overlapped() / serial(l) },
			bounds: near(69.9, 0.02), closed: "15.4 over 22 ms",
			cause: Agrees, why: "The guide's own table, against its text above."},
		{id: "4.1-hidden", section: "4.1.2", claim: "about 50% of communication, or more, is covered by computing",
			says: Span{50, 100}, unit: "%",
			how: bySim, ours: func(l *lab) float64 { return 100 * (serial(l) - l.overlapped()) / (serial(l) - 10) },
			bounds: near(55, 0.03), closed: "(22 - 15.4) / 12",
			cause: Agrees,
			why:   "It is bounded by the backward pass, 6.7 ms here: the 50 to 80% of the guide on models needs computing to be the longer of the two."},
		{id: "4.3-tcp-ratio", section: "4.3", claim: "a small message over TCP takes 5 to 10 times as long as over InfiniBand",
			says: Span{5, 10}, unit: "x",
			how: bySim, ours: func(l *lab) float64 {
				return us(l.send(l.two("nic0", "100gbe"), 8, sim.Options{Transport: sim.TCP}, 0, 8).Time) / us(l.send(l.two("nic0", "hdr"), 8,
					sim.Options{}, 0, 8).Time)
			},
			bounds: Span{10, 50}, closed: "50 us of kernels over 2 to 3 us",
			cause: Software, why: "On the wire and through the kernel.",
			also: func(l *lab) string {
				g, h := l.two("nic0", "100gbe"), l.two("nic0", "hdr")
				c := l.costs(h)
				tcp := l.send(g, 8, sim.Options{Transport: sim.TCP, Costs: c}, 0, 8).Time
				return fmt.Sprintf("With what NCCL takes to start a kernel and a message on A100 the ratio is %s.",
					digits(float64(tcp)/float64(l.send(h, 8, sim.Options{Costs: c}, 0, 8).Time), 2))
			}},
		{id: "4.3-fallback", section: "4.3", claim: "a silent fallback to sockets leaves a few Gb/s",
			says: Span{2, 9}, unit: "Gb/s",
			how: byMeasured, ours: func(l *lab) float64 {
				return 8 * gbps(l.measured(l.two("nic0", "10gbe"), l.ring(16), unit.GB, sim.TCP).BusBW)
			},
			bounds: near(8, 0.02), closed: "10 GbE times 0.8",
			cause: Agrees, why: "Over the management network of 10 GbE.",
			also: func(l *lab) string {
				return fmt.Sprintf("The same two hosts reach %s over their eight HDR ports.",
					l.measured(l.two("nic[0-7]", "hdr"), l.placed(l.two("nic[0-7]", "hdr"), 16), unit.GB, sim.RDMA).BusBW)
			}},
		{id: "4.4-nvl72", section: "4.4", claim: "72 GPUs of an NVL72 have 130 TB/s",
			says: is(130), unit: "TB/s",
			how: byGraph, ours: func(l *lab) float64 { return 2 * gbps(accelerated(l.preset("gb200-nvl72", nil))) / 1e3 },
			bounds: near(129.6, 1e-6), closed: "72 x 18 x 50 GB/s x 2",
			cause: Agrees, why: "Both ways.",
			also: func(l *lab) string {
				g := l.preset("gb200-nvl72", nil)
				return fmt.Sprintf("An all-to-all of 16 GB a GPU moves %.1f TB/s one way, all GPUs together.",
					72*gbps(l.wire(g, l.program("pairwise", algo.Spec{Op: sched.AllToAll, Ranks: 72}), 16*unit.GB).BusBW)/1e3)
			}},
		{id: "4.4-nvl72-latency", section: "4.4", claim: "any two of them are under 1 us apart",
			says: Span{0.1, 1}, unit: "us",
			how: bySim, ours: func(l *lab) float64 { return us(l.send(l.preset("gb200-nvl72", nil), 8, sim.Options{}, 0, 71).Time) },
			bounds: near(0.6, 0.05), closed: "two links of 250 ns and a chip of 100 ns",
			cause: Agrees, why: "One switch between any two."},
		{id: "4.4-two-nics", section: "4.4", claim: "two NICs of 800 Gb/s make 1.6 Tb/s",
			says: is(1.6), unit: "Tb/s",
			how: bySim, ours: func(l *lab) float64 {
				return 8 * gbps(l.b300(2).BusBW) / 1e3
			},
			bounds: near(1.6, 0.02), closed: "2 x 100 GB/s",
			cause: Agrees, why: "Two GPUs with their NICs in each of two DGX B300, a ring over each NIC."},
		{id: "4.4-four-nics", section: "4.4", claim: "four make about 3.2 Tb/s",
			says: is(3.2), unit: "Tb/s",
			how: bySim, ours: func(l *lab) float64 {
				return 8 * gbps(l.b300(4).BusBW) / 1e3
			},
			bounds: near(3.2, 0.02), closed: "4 x 100 GB/s",
			cause: Agrees, why: "The same with four."},
		{id: "4.6-ring-bytes", section: "4.6.2", claim: "in a ring each link carries 2 x size / GPUs: for 8",
			says: is(0.25), unit: "x",
			how: byProof, ours: func(l *lab) float64 { return sent(l.proof(l.ring(8))) },
			bounds: near(1.75, 1e-9), closed: "2(n-1)/n",
			cause: Volume, why: "That much a step and its answer; there are n-1 of each: 2(n-1)/n of the data in all."},
		{id: "4.6-ring-steps", section: "4.6.2", claim: "a ring takes O(N) steps: of 64",
			says: is(126), unit: "steps",
			how: byProof, ours: func(l *lab) float64 { return float64(l.proof(l.ring(64)).Steps) },
			bounds: is(126), closed: "2(n-1)",
			cause: Agrees, why: "2(n-1)."},
		{id: "4.6-tree-steps", section: "4.6.2", claim: "a tree takes O(log N) steps: of 64",
			says: is(12), unit: "steps",
			how: byProof, ours: func(l *lab) float64 {
				return float64(l.proof(l.program("double-binary-tree", algo.Spec{Op: sched.AllReduce, Ranks: 64, Pieces: 1})).Steps)
			},
			bounds: Span{12, 14}, closed: "2 ceil(log2 n), up to one more each way",
			cause: Agrees, why: "2 log2 n for one piece, each tree by itself."},
		{id: "4.6-pat-steps", section: "4.6.2", claim: "PAT starts in O(log N) steps: of 64",
			says: is(6), unit: "steps",
			how: byProof, ours: func(l *lab) float64 {
				return float64(l.proof(l.program("pat", algo.Spec{Op: sched.AllGather, Ranks: 64})).Steps)
			},
			bounds: Span{6, 7}, closed: "log2 a + n/a - 1 with aggregation of n/2: log2 n",
			cause: Agrees, why: "With full aggregation. PAT serves all-gather and reduce-scatter; NCCL has no all-reduce by it."},
		{id: "4.9-sharp", section: "4.9", claim: "SHARP makes large all-reduces 2 to 5 times faster",
			says: Span{2, 5}, unit: "x",
			how: bySim, ours: func(l *lab) float64 {
				g, place := leaf(l)
				if g == nil {
					return 0
				}
				p := l.program("sharp", algo.Spec{Op: sched.AllReduce, Ranks: 32, Pieces: 64})
				return float64(l.run(g, l.ring(32), unit.GB, place[:32], sim.Options{}).Time) / float64(l.run(g, p, unit.GB, place, sim.Options{}).Time)
			},
			bounds: Span{1.8, 2 * 31 / 32.0}, closed: "2(n-1)/n over 1, less the filling of the pipe",
			cause: Agrees,
			why:   "1 GB over 32 hosts below one switch. A rank sends its data once instead of 2(n-1)/n times: below 2, whatever the number of hosts. More than twice is latency, or a fabric that was not non-blocking."},
		{id: "4.9-sharp-small", section: "4.9", claim: "the same: by latency, on 32 hosts below one switch",
			says: Span{2, 5}, unit: "x",
			how: bySim, ours: func(l *lab) float64 {
				g, place := leaf(l)
				if g == nil {
					return 0
				}
				tree := l.program("double-binary-tree", algo.Spec{Op: sched.AllReduce, Ranks: 32, Pieces: 1})
				return float64(l.run(g, tree, 8, place[:32], sim.Options{}).Time) / float64(l.run(g, sharp(l), 8, place, sim.Options{}).Time)
			},
			bounds: Span{5, 20}, closed: "ten ways from GPU to GPU against two between GPU and switch",
			cause: Conditions,
			why:   "Against a tree, which is what small messages go by, on an idle network and with no time for the switch's sum. Software, which both have to pay, brings it down."},
		{id: "4.9-nvls", section: "4.9", claim: "NVLink SHARP, likewise, on 8 GPUs: by bytes",
			says: Span{2, 5}, unit: "x",
			how: byProof, ours: func(l *lab) float64 {
				r := l.proof(l.program("nvls", algo.Spec{Op: sched.AllReduce, Ranks: 8}))
				if len(r.Sent) == 0 {
					return 0
				}
				return sent(l.proof(l.ring(8))) / (float64(r.Sent[0]) / float64(r.Chunks))
			},
			bounds: near(1.75/(1+1/8.0), 1e-9), closed: "2(n-1)/n over 1 + 1/n",
			cause: Volume,
			why:   "A GPU gives its data once and stores an eighth of the result: 1.56 times fewer bytes on eight GPUs, 2 at the limit."},
	}
	return list
}

// b300 is an all-reduce of 16 GB over the first k GPUs of each of two DGX B300, whose
// NICs have 800 Gb/s each.
func (l *lab) b300(k int) *sim.Result {
	g := l.file("name: b300\nhosts: {\"n[0-1]\": dgx-b300}\nfabric: {family: rail, switch: Q3400}\n")
	var at []int
	for i := range 2 * k {
		at = append(at, i/k*8+i%k)
	}
	return l.run(g, l.crossed(2*k, k), 16*unit.GB, pick(g, at...), sim.Options{})
}
