package cases

import (
	"fmt"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/sim"
	"github.com/weft-fabric/weft/predict/tune"
)

// resnet is the gradient of ResNet-50: 25.6 million parameters of four bytes.
const resnet = 102_400_000 * unit.Bytes(1)

// layersGuide is "network, transport and application layers".
func layersGuide() []entry {
	list := []entry{
		{
			id: "5.1-copies", section: "5.1", claim: "TCP copies data 4 times between two applications",
			says: is(4), unit: "copies",
			how: bySim, ours: (*lab).copies,
			bounds: near(2, 1e-6), closed: "one copy a side between the application and the kernel",
			cause: Denominator,
			why:   "Two of the four are the NICs' own DMA, which RDMA does as well; the CPU copies once a side. Bytes of a GPU are staged through host memory on top, once a side.",
		},
		{
			id: "5.1-tcp-latency", section: "5.1", claim: "a message over TCP takes 50 to 100 us",
			says: Span{50, 100}, unit: "us",
			how: bySim, ours: func(l *lab) float64 {
				return us(l.send(l.two("nic0", "10gbe"), 8, sim.Options{Transport: sim.TCP}, 0, 8).Time)
			},
			bounds: Span{50, 60}, closed: "25 us of kernel a side, and the way of 3 us",
			cause: Agrees, why: "The wire and the switch are 3 us of it.",
		},
		{
			id: "5.1-rdma-latency", section: "5.1", claim: "a message over RDMA takes 1 to 2 us",
			says: Span{1, 2}, unit: "us",
			how: bySim, ours: func(l *lab) float64 { return us(l.send(l.two("nic0", "hdr"), 8, sim.Options{}, 0, 8).Time) },
			bounds: Span{1, 4}, closed: "six PCIe links, two NICs, two cables, one switch, from the catalogue",
			cause: Conditions,
			why:   "The guide counts host memory to host memory; from GPU to GPU the message crosses two more PCIe switches a side.",
		},
	}
	list = append(list, layersTable()...)
	list = append(list, layersPaths()...)
	list = append(list,
		entry{
			id: "6.1-tree-256", section: "6.1", claim: "rings from 1 KB to 1 MB, double binary trees above: the change is at 1 MB",
			says: is(1), unit: "MiB",
			how: byNCCL, ours: func(l *lab) float64 { return l.lastTree(l.pod(), 256) / (1 << 20) },
			bounds: Span{64, 2048}, closed: "a ring of 256 steps is slower until bytes outweigh 2(n-1) steps of some us",
			cause: Conditions, why: "On 256 A100 it is the other way round: NCCL takes the double tree up to this size and rings above.",
		},
		entry{
			id: "6.1-tree-8", section: "6.1", claim: "messages under 1 KB go by tree",
			says: is(1), unit: "KiB",
			how: byNCCL, ours: func(l *lab) float64 { return l.lastTree(l.a100(), 8) / 1024 },
			bounds: Span{0, 1}, closed: "NCCL's own table has no size at which the tree wins on eight A100",
			cause: Conditions,
			why:   "On one DGX A100 NCCL never takes the tree: a ring of eight is short enough. Thresholds belong to a topology, not to a library.",
		},
		entry{
			id: "6.1-crossing", section: "6.1", claim: "the same, as latency and bandwidth of 64 A100 have it",
			says: is(1), unit: "MiB",
			how: byMeasured, ours: func(l *lab) float64 { return l.crossing() / (1 << 20) },
			bounds: Span{0.25, 64}, closed: "2(n-1) messages of some us each against 2 log2 n of them",
			cause: Conditions,
			why:   "The largest size at which a double binary tree in pieces beats eight rings in the simulator, which knows nothing of NCCL's tables: trees are for small messages here as well.",
		},
		entry{
			id: "6.2-ring-volume", section: "6.2", claim: "a ring of 8 sends 2(N-1)/N of the data",
			says: is(1.75), unit: "x",
			how: byProof, ours: func(l *lab) float64 { return sent(l.proof(l.ring(8))) },
			bounds: near(1.75, 1e-9), closed: "2(n-1)/n",
			cause: Agrees, why: "Every rank sends as much; no algorithm without computing switches sends less.",
		},
		entry{
			id: "6.2-ring-steps", section: "6.2", claim: "a ring of 8 takes 2N steps",
			says: is(16), unit: "steps",
			how: byProof, ours: func(l *lab) float64 { return float64(l.proof(l.ring(8)).Steps) },
			bounds: is(14), closed: "2(n-1)",
			cause: Arithmetic, why: "It is 2(N-1): the last step brings a chunk home.",
		},
		entry{
			id: "6.2-tree-volume", section: "6.2", claim: "a tree sends about 4 times the data",
			says: is(4), unit: "x",
			how: byProof, ours: func(l *lab) float64 {
				return sent(l.proof(l.program("tree", algo.Spec{Op: sched.AllReduce, Ranks: 8})))
			},
			bounds: is(3), closed: "an inner rank sends once up and twice down",
			cause: Volume,
			why:   "Three times at an inner rank with two children (once up, twice down), once at a leaf; two at most with a double binary tree.",
		},
		entry{
			id: "6.2-tree-steps", section: "6.2", claim: "a tree takes 2 log N steps",
			says: is(6), unit: "steps",
			how: byProof, ours: func(l *lab) float64 {
				return float64(l.proof(l.program("tree", algo.Spec{Op: sched.AllReduce, Ranks: 8, Pieces: 1})).Steps)
			},
			bounds: Span{6, 8}, closed: "2 ceil(log2 n), up to one more for the root's only child",
			cause: Agrees, why: "For one piece; pieces follow each other.",
		},
	)
	list = append(list, layersTraining()...)
	return append(list, layersLarge()...)
}

// copies is how often the CPU copies a byte that one host sends another over
// sockets: the copying that the bytes of an exchange pass, over the bytes.
func (l *lab) copies() float64 {
	res := l.send(l.two("nic0", "10gbe"), unit.GB, sim.Options{Transport: sim.TCP}, 0, 8)
	if l.err != nil {
		return 0
	}
	var copied unit.Bytes
	for _, u := range res.Links() {
		if u.Tier == sim.Sockets {
			copied += u.Bytes
		}
	}
	return float64(copied) / float64(2*unit.GB)
}

// layersTable is the table of two nodes with eight A100 each, 1 GB.
func layersTable() []entry {
	var list []entry
	for _, r := range []struct {
		key, name, link string
		t               sim.Transport
		says, port      float64 // the guide's GB/s; what a port carries at the measured share
		latency         float64
		cause           Cause // of the latency
	}{
		{"tcp-10", "TCP over 10 GbE", "10gbe", sim.TCP, 10, 1.25 * .8, 100, Software},
		{"tcp-100", "TCP over 100 GbE", "100gbe", sim.TCP, 80, 12.5 * .8, 50, Agrees},
		{"roce-100", "RoCE over 100 GbE", "100gbe", sim.RDMA, 90, 12.5 * .96, 10, Software},
		{"hdr", "InfiniBand HDR", "hdr", sim.RDMA, 180, 25 * .96, 2, Conditions},
	} {
		list = append(list, entry{
			id: "5.3-" + r.key, section: "5.3", claim: fmt.Sprintf("all-reduce of 1 GB on 2 x 8 A100 over %s: %g GB/s", r.name, r.says),
			says: is(r.says), unit: "GB/s",
			how: byMeasured, ours: func(l *lab) float64 {
				g := l.two("nic0", r.link)
				return gbps(l.measured(g, l.ring(16), unit.GB, r.t).BusBW)
			},
			bounds: near(r.port, 0.03), closed: "the port's rate times the share its transport reaches",
			cause: BitsBytes,
			why:   "A host with one port moves this much bus bandwidth.",
			also: func(l *lab) string {
				g := l.two("nic[0-7]", r.link)
				return fmt.Sprintf("With eight ports a host it is %s: the guide's figure looks like eight ports added up.",
					l.measured(g, l.placed(g, 16), unit.GB, r.t).BusBW)
			},
		}, entry{
			id: "5.3-" + r.key + "-latency", section: "5.3", claim: fmt.Sprintf("latency over %s: %g us", r.name, r.latency),
			says: is(r.latency), unit: "us",
			how: bySim, ours: func(l *lab) float64 {
				return us(l.send(l.two("nic0", r.link), 8, sim.Options{Transport: r.t}, 0, 8).Time)
			},
			bounds: map[sim.Transport]Span{sim.TCP: {50, 60}, sim.RDMA: {1, 5}}[r.t],
			closed: "25 us of kernel a side for sockets; PCIe, NICs, cables and a switch",
			cause:  r.cause, why: "A small message from GPU to GPU on an idle network, without what a collective library adds.",
		})
	}
	cpu := func(link string) func(*lab) float64 {
		return func(l *lab) float64 {
			res := l.measured(l.two("nic0", link), l.ring(16), unit.GB, sim.TCP)
			if l.err != nil {
				return 0
			}
			for _, t := range res.Tiers() {
				if t.Tier == sim.Sockets {
					return t.Most * 100
				}
			}
			return 0
		}
	}
	return append(list,
		entry{
			id: "5.3-nvlink3", section: "5.3", claim: "NVLink 3 inside a node: 300 GB/s",
			says: is(300), unit: "GB/s",
			how: bySim, ours: func(l *lab) float64 { return gbps(l.wire(l.a100(), l.placed(l.a100(), 8), unit.GB).BusBW) },
			bounds: near(300, 0.01), closed: "twelve links of 25 GB/s one way",
			cause: Agrees, why: "That is the wire.",
			also: func(l *lab) string {
				return fmt.Sprintf("NCCL reaches %.0f GB/s of it.", gbps(l.nccl(l.a100(), 8, sched.AllReduce, unit.GB).BusBW))
			},
		},
		entry{
			id: "5.3-nvlink3-latency", section: "5.3", claim: "latency over NVLink 3: 1 us",
			says: is(1), unit: "us",
			how: bySim, ours: func(l *lab) float64 { return us(l.send(l.a100(), 8, sim.Options{}, 0, 1).Time) },
			bounds: near(0.6, 0.05), closed: "two links of 250 ns and a chip of 100 ns",
			cause: Software,
			why:   "On the wire; a step of NCCL takes 1.05 us on A100, software included, and so the guide's figure is fair as what a program sees.",
		},
		entry{
			id: "5.3-cpu-10", section: "5.3", claim: "TCP over 10 GbE takes 80% of the CPU",
			says: is(80), unit: "%",
			how: byMeasured, ours: cpu("10gbe"),
			bounds: near(10, 0.03), closed: "1 GB/s of the 10 GB/s that one port's sockets copy",
			cause: Denominator,
			why:   "Ours is of the CPU time that copies for one port. A faster network costs more CPU, not less: the work is by the byte.",
		},
		entry{
			id: "5.3-cpu-100", section: "5.3", claim: "TCP over 100 GbE takes 60% of the CPU",
			says: is(60), unit: "%",
			how: byMeasured, ours: cpu("100gbe"),
			bounds: near(100, 0.03), closed: "10 GB/s of the 10 GB/s that one port's sockets copy",
			cause: Denominator,
			why:   "Ten times the bytes of 10 GbE are ten times the copying; the guide has it fall.",
		},
	)
}

// layersPaths is what the guide says NCCL counts ways between GPUs with.
func layersPaths() []entry {
	speed := func(g func(*lab) *topo.Graph, o sim.Options, a, b int) func(*lab) float64 {
		return func(l *lab) float64 { return gbps(l.send(g(l), unit.GB, o, a, b).AlgBW) }
	}
	delay := func(g func(*lab) *topo.Graph, o sim.Options, a, b int) func(*lab) float64 {
		return func(l *lab) float64 { return us(l.send(g(l), 8, o, a, b).Time) }
	}
	tcp := sim.Options{Transport: sim.TCP, Measured: true}
	slow := func(l *lab) *topo.Graph { return l.two("nic0", "10gbe") }
	fast := func(l *lab) *topo.Graph { return l.two("nic0", "hdr") }
	nvlink := (*lab).a100
	pcie := (*lab).pcieBox
	return []entry{
		{id: "6.1-nvlink", section: "6.1", claim: "NVLink: 600 GB/s",
			says: is(600), unit: "GB/s",
			how: bySim, ours: speed(nvlink, sim.Options{}, 0, 1),
			bounds: near(300, 0.01), closed: "twelve links of 25 GB/s one way",
			cause: BothWays, why: "600 GB/s counts both ways; a transfer has one."},
		{id: "6.1-pcie", section: "6.1", claim: "PCIe: 16 GB/s",
			says: is(16), unit: "GB/s",
			how: bySim, ours: speed(pcie, sim.Options{}, 0, 1),
			bounds: near(pcie3, 0.01), closed: "16 lanes of 8 GT/s coded 128b/130b",
			cause: Agrees, why: "PCIe 3 x16 before packet headers."},
		{id: "6.1-ib", section: "6.1", claim: "InfiniBand: 25 GB/s",
			says: is(25), unit: "GB/s",
			how: bySim, ours: speed(fast, sim.Options{}, 0, 8),
			bounds: near(25, 0.01), closed: "200 Gb/s over 8",
			cause: Agrees, why: "HDR, one port. The same guide prints 180 GB/s for it in 5.3."},
		{id: "6.1-socket", section: "6.1", claim: "sockets: 1.25 GB/s",
			says: is(1.25), unit: "GB/s",
			how: byMeasured, ours: speed(slow, tcp, 0, 8),
			bounds: near(1, 0.01), closed: "10 Gb/s over 8, of which sockets reach 0.8",
			cause: Conditions, why: "1.25 GB/s is the wire of 10 GbE; sockets reach four fifths of a port."},
		{id: "6.1-nvlink-latency", section: "6.1", claim: "NVLink: 5 us",
			says: is(5), unit: "us",
			how: bySim, ours: delay(nvlink, sim.Options{}, 0, 1),
			bounds: near(0.6, 0.05), closed: "two links of 250 ns and a chip of 100 ns",
			cause: Latency, why: "Eight times the wire; 5.3 of the same guide has 1 us."},
		{id: "6.1-pcie-latency", section: "6.1", claim: "PCIe: 100 us",
			says: is(100), unit: "us",
			how: bySim, ours: delay(pcie, sim.Options{}, 0, 4),
			bounds: Span{0.5, 2.5}, closed: "six links of 250 ns at most, switches of 110 ns, between sockets",
			cause: Latency,
			why:   "A card's way to another, across sockets, is a microsecond; 100 us would put PCIe behind sockets, which the guide ranks last."},
		{id: "6.1-ib-latency", section: "6.1", claim: "InfiniBand: 2 us",
			says: is(2), unit: "us",
			how: bySim, ours: delay(fast, sim.Options{}, 0, 8),
			bounds: Span{1, 4}, closed: "PCIe, NICs, cables and a switch, from the catalogue",
			cause: Conditions, why: "From GPU to GPU, with the PCIe switches of a DGX A100 on both sides."},
		{id: "6.1-socket-latency", section: "6.1", claim: "sockets: 50 us",
			says: is(50), unit: "us",
			how: bySim, ours: delay(slow, sim.Options{Transport: sim.TCP}, 0, 8),
			bounds: Span{50, 60}, closed: "25 us of kernel a side",
			cause: Agrees, why: "The kernel's part is what was assumed for sockets; the rest is the wire."},
	}
}

// lastTree is the largest size in bytes at which NCCL takes a tree for an all-reduce, 0 if none.
func (l *lab) lastTree(g *topo.Graph, n int) (last float64) {
	m := l.ncclModel(g, n)
	if m == nil {
		return 0
	}
	for b := unit.Bytes(8); b <= 16*unit.GiB; b *= 2 {
		if isTree(m.Choose(sched.AllReduce, b)) {
			last = float64(b)
		}
	}
	return last
}

func isTree(c tune.Choice) bool { return c.Algo == "Tree" || c.Algo == "NVLSTree" }

// crossing is the largest of some sizes at which the simulated tree beats the simulated rings on 64 A100.
func (l *lab) crossing() (last float64) {
	g := l.railed(8)
	for b := 64 * unit.KiB; b <= 64*unit.MiB && l.err == nil; b *= 2 {
		tree := l.program("double-binary-tree", algo.Spec{Op: sched.AllReduce, Ranks: 64, Pieces: int(min(max(b/(512*unit.KiB), 1), 16))})
		if l.measured(g, tree, b, sim.RDMA).Time < l.measured(g, l.placed(g, 64), b, sim.RDMA).Time {
			last = float64(b)
		}
	}
	return last
}

// layersTraining is ResNet-50 on eight V100.
func layersTraining() []entry {
	apart := func(link string, t sim.Transport, measured bool) func(*lab) float64 {
		return func(l *lab) float64 {
			g := l.ports("dgx-1v", "ConnectX-4", 8, "nic0", link)
			return ms(l.run(g, l.ring(8), resnet, every(g, 8), sim.Options{Measured: measured, Transport: t}).Time)
		}
	}
	gb := float64(resnet) / 1e9
	return []entry{
		{id: "6.3-nvlink", section: "6.3", claim: "ResNet-50 gradients on 8 V100 over NVLink: 5 ms",
			says: is(5), unit: "ms",
			how: byNCCL, ours: func(l *lab) float64 {
				return ms(l.nccl(l.preset("dgx-1v", nil), 8, sched.AllReduce, resnet).Time)
			},
			bounds: Span{ringTime(8, gb, 150), 1.5 * ringTime(8, gb, 150)}, closed: "six rings of 25 GB/s, and up to half more for NCCL",
			cause: Conditions, why: "102 MB over six NVLink rings of a DGX-1; 5 ms is slower than two of the six would be."},
		{id: "6.3-ib", section: "6.3", claim: "the same over InfiniBand between hosts: 15 ms",
			says: is(15), unit: "ms",
			how: byMeasured, ours: apart("edr", sim.RDMA, true),
			bounds: near(ringTime(8, gb, 12.5*.96), 0.05), closed: "2(n-1)/n of 102 MB at 12 GB/s",
			cause: Agrees, why: "Eight hosts with one GPU and one EDR port each, 96% of the wire."},
		{id: "6.3-10gbe", section: "6.3", claim: "the same over 10 GbE: 80 ms",
			says: is(80), unit: "ms",
			how: byMeasured, ours: apart("10gbe", sim.TCP, true),
			bounds: near(ringTime(8, gb, 1), 0.03), closed: "2(n-1)/n of 102 MB at 1 GB/s",
			cause: Volume,
			why:   "80 ms is the gradient once over 1.25 GB/s. A ring sends it 1.75 times, and sockets reach 1 GB/s."},
		{id: "6.3-share", section: "6.3", claim: "communication is 10.3% of a step of 145 ms",
			says: is(10.3), unit: "%",
			how: byForm, ours: func(l *lab) float64 { t := apart("edr", sim.RDMA, true)(l); return 100 * t / (130 + t) },
			bounds: Span{9, 11}, closed: "15 ms beside 10 + 50 + 65 + 5 ms of everything else",
			cause: Agrees, why: "With our time of the all-reduce in place of the guide's, and none of it hidden."},
	}
}

// layersLarge is GPT-3 on 256 GPUs.
func layersLarge() []entry {
	const size = 350 * unit.GB
	one := func(l *lab) float64 { return l.wire(l.pod(), l.ring(256), size).Time.Seconds() * 1e3 }
	nccl := func(size unit.Bytes) func(*lab) tune.Prediction {
		return func(l *lab) tune.Prediction { return l.nccl(l.pod(), 256, sched.AllReduce, size) }
	}
	return []entry{
		{id: "7.2-14ms", section: "7.2", claim: "all-reduce of 350 GB over 200 Gb/s on 256 GPUs takes 14 ms",
			says: is(14), unit: "ms",
			how: bySim, ours: one,
			bounds: near(ringTime(256, 350, 25), 0.01), closed: "2(n-1)/n of 350 GB at 25 GB/s",
			cause: Arithmetic,
			why:   "A ring moves twice the data through every NIC; it does not divide by the number of GPUs. And 350 GB over 25 GB/s is 14 s, not ms, before that division. The job script names one port a host (NCCL_IB_HCA=mlx5_0)."},
		{id: "7.2-rails", section: "7.2", claim: "the same, with all eight ports of a host",
			says: is(14), unit: "ms",
			how: bySim, ours: func(l *lab) float64 { return ms(l.wire(l.pod(), l.placed(l.pod(), 256), size).Time) },
			bounds: near(ringTime(256, 350, 200), 0.01), closed: "2(n-1)/n of 350 GB at 200 GB/s",
			cause: Arithmetic, why: "Eight rings, one over each rail."},
		{id: "7.2-50ms", section: "7.2", claim: "in practice about 50 ms",
			says: is(50), unit: "ms",
			how: byNCCL, ours: func(l *lab) float64 { return ms(nccl(size)(l).Time) },
			bounds: Span{ringTime(256, 350, 200), 1.5 * ringTime(256, 350, 200)}, closed: "eight HDR ports a host, and up to half more for NCCL",
			cause: Arithmetic, why: "Practice adds to the wire time; it cannot be below it."},
		{id: "7.2-share", section: "7.2", claim: "gradient exchange is 1% of a step of 5 s",
			says: is(1), unit: "%",
			how: byForm, ours: func(l *lab) float64 { t := one(l); return 100 * t / (5000 + t) },
			bounds: near(100*27.89/32.89, 0.02), closed: "27.9 s beside 5 s",
			cause: Arithmetic,
			why:   "The exchange is most of the step, which is why nobody trains so: 350 GB do not fit a GPU, and what is exchanged is a shard."},
		{id: "7.2-total", section: "7.2", claim: "256 ports of 200 Gb/s make 51.2 Tb/s",
			says: is(51.2), unit: "Tb/s",
			how: byGraph, ours: func(l *lab) float64 { return float64(injected(l.pod()).Bits()) / 1e12 },
			bounds: near(51.2, 1e-6), closed: "256 x 200 Gb/s",
			cause: Agrees, why: "One way, all ports. It is what the GPUs can send together, not what one of them gets."},
		{id: "7.2-memory", section: "7.2", claim: "each GPU holds the model under DDP: 175B parameters of 4 bytes",
			says: is(700), unit: "GB",
			how: byCatalog, ours: func(l *lab) float64 { return float64(l.c.GPUs["A100-SXM-80GB"].Memory) / 1e9 },
			bounds: is(80), closed: "A100 of 80 GB",
			cause: Conditions,
			why:   "Ours is what the GPU has. DDP cannot hold the model, let alone its gradients and the optimiser's state; the all-reduce above has nothing to reduce."},
		{id: "7.2-10gbe", section: "7.2", claim: "350 GB over 10 GbE take 280 s",
			says: is(280), unit: "s",
			how: byMeasured, ours: func(l *lab) float64 {
				g := l.ports("dgx-a100", "ConnectX-6", 32, "nic0", "10gbe")
				return l.measured(g, l.ring(256), size, sim.TCP).Time.Seconds()
			},
			bounds: near(ringTime(256, 350, 1)/1e3, 0.02), closed: "2(n-1)/n of 350 GB at 1 GB/s",
			cause: Volume,
			why:   "280 s is the data once at 1.25 GB/s; a ring sends it twice, and sockets reach 1 GB/s. Here the guide does not divide by 256."},
		{id: "7.3-8B-bandwidth", section: "7.3", claim: "8 B in 10 us are 0.8 GB/s",
			says: is(0.8), unit: "GB/s",
			how: byForm, ours: func(*lab) float64 { return gbps(unit.Bytes(8).Per(10 * unit.Microsecond)) },
			bounds: is(8e-4), closed: "8 B / 10 us",
			cause: Arithmetic, why: "0.8 MB/s."},
		{id: "7.3-8B", section: "7.3", claim: "nccl-tests on 256 GPUs: 8 B take 10 us",
			says: is(10), unit: "us",
			how: byNCCL, ours: func(l *lab) float64 { return us(nccl(8)(l).Time) },
			bounds: Span{40, 400},
			closed: "a chain of eight GPUs and a tree over 32 nodes, up and down: at least ten messages between hosts of some 5 us",
			cause:  Conditions, why: "10 us is what eight GPUs of one host take. Between hosts it is a tree over 32 nodes."},
		{id: "7.3-1MB", section: "7.3", claim: "1 MB take 100 us",
			says: is(100), unit: "us",
			how: byNCCL, ours: func(l *lab) float64 { return us(nccl(unit.MiB)(l).Time) },
			bounds: Span{60, 500}, closed: "the latency of 8 B and 1 MiB over the tree",
			cause: Conditions, why: "Below the latency of the tree over 32 nodes."},
		{id: "7.3-1GB", section: "7.3", claim: "1 GB take 50 ms",
			says: is(50), unit: "ms",
			how: byNCCL, ours: func(l *lab) float64 { return ms(nccl(unit.GiB)(l).Time) },
			bounds: Span{ringTime(256, 1.0737, 200), 2 * ringTime(256, 1.0737, 200)}, closed: "eight HDR ports a host, and up to twice that",
			cause: Conditions, why: "The guide's run reaches the rate of two of eight ports a host."},
		{id: "7.3-8GB", section: "7.3", claim: "8 GB take 350 ms",
			says: is(350), unit: "ms",
			how: byNCCL, ours: func(l *lab) float64 { return ms(nccl(8 * unit.GiB)(l).Time) },
			bounds: Span{ringTime(256, 8.59, 200), 1.5 * ringTime(256, 8.59, 200)}, closed: "eight HDR ports a host, and up to half more",
			cause: Conditions, why: "As above: two ports' worth."},
		{id: "7.3-bus", section: "7.3", claim: "20 GB/s of algorithm bandwidth are 38 GB/s of bus bandwidth",
			says: is(38), unit: "GB/s",
			how: byForm, ours: func(*lab) float64 { return 20 * sched.AllReduce.BusFactor(256) },
			bounds: near(20*2*255/256.0, 1e-6), closed: "2(n-1)/n with n = 256",
			cause: Agrees, why: "2 x 255/256 = 1.992; the guide's 1.9 would be 20 ranks."},
	}
}
