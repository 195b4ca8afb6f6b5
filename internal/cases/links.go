package cases

import (
	"fmt"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/rings"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/sim"
)

// linksGuide is "PCIe, NVLink, NVSwitch and NCCL".
func linksGuide() []entry {
	list := linksPCIe()
	list = append(list, linksNVLink()...)
	list = append(list, linksNCCL()...)
	list = append(list, linksBoxes()...)
	return append(list, linksTraining()...)
}

// zigzag is a ring that crosses between the two switches of the PCIe box at every step.
func (l *lab) zigzag(g *topo.Graph, size unit.Bytes) *sim.Result {
	return l.run(g, l.ring(8), size, pick(g, 0, 4, 1, 5, 2, 6, 3, 7), sim.Options{})
}

func linksPCIe() []entry {
	four := func(l *lab, size unit.Bytes) float64 { return ms(l.wire(l.pcieBox(), l.ring(4), size).Time) }
	return []entry{
		{id: "1.2-pcie3", section: "1.2", claim: "PCIe 3 x16: 16 GB/s one way",
			says: is(16), unit: "GB/s",
			how: bySim, ours: func(l *lab) float64 { return gbps(l.send(l.pcieBox(), unit.GB, sim.Options{}, 0, 1).AlgBW) },
			bounds: near(pcie3, 0.01), closed: "16 x 8 GT/s x 128/130",
			cause: Agrees, why: "Before packet headers; a ring reaches 12 GB/s."},
		{id: "1.2-latency", section: "1.2", claim: "GPU to GPU through the CPU: 5 to 10 us",
			says: Span{5, 10}, unit: "us",
			how: byMeasured, ours: func(l *lab) float64 {
				g := l.pcieBox()
				return us(l.send(g, 8, sim.Options{Costs: l.costs(g)}, 0, 4).Time)
			},
			bounds: Span{5, 12}, closed: "1.4 us of links, and the 8 us that starting a kernel and a message take on A100",
			cause: Agrees, why: "Most of it is the start of the kernel; the links' part is 1.4 us."},
		{id: "1.2-28GB", section: "1.2", claim: "gradients of 7B parameters, 28 GB, over PCIe 3: 1.75 s",
			says: is(1750), unit: "ms",
			how: bySim, ours: func(l *lab) float64 { return four(l, 28*unit.GB) },
			bounds: near(ringTime(4, 28, pcie3), 0.01), closed: "2(n-1)/n of 28 GB at 15.75 GB/s, n = 4",
			cause: Volume, why: "The data once over the link. A ring of four sends it 1.5 times, one of eight 1.75 times."},
		{id: "1.2-share", section: "1.2", claim: "with 0.5 s of computing, communication is 78%",
			says: is(78), unit: "%",
			how: byForm, ours: func(l *lab) float64 { t := four(l, 28*unit.GB); return 100 * t / (t + 500) },
			bounds: near(84.2, 0.02), closed: "2.67 s beside 0.5 s",
			cause: Agrees, why: "With the ring's volume it is a little more."},
		{id: "1.2-shared", section: "1.2", claim: "four GPUs that pass data round share one bus: 4 GB/s each",
			says: is(4), unit: "GB/s",
			how: bySim, ours: func(l *lab) float64 { return gbps(l.send(l.pcieBox(), unit.GB, sim.Options{}, 0, 1, 2, 3).AlgBW) },
			bounds: near(pcie3, 0.01), closed: "each link carries one stream each way",
			cause: Wiring,
			why:   "PCIe is not a bus but a tree of links that carry both ways. Behind one switch GPU 0 to 1 to 2 to 3 to 0 uses every link once each way, at full rate."},
		{id: "1.2-uplink", section: "1.2", claim: "the same where all four must leave by the switch's one link: 4 GB/s each",
			says: is(4), unit: "GB/s",
			how: bySim, ours: func(l *lab) float64 {
				return gbps(l.send(l.pcieBox(), unit.GB, sim.Options{}, 0, 4, 1, 5, 2, 6, 3, 7).AlgBW)
			},
			bounds: near(pcie3/4, 0.01), closed: "four streams on 15.75 GB/s",
			cause: Agrees, why: "Four streams to the other socket's GPUs share the uplink: a quarter each."},
		{id: "1.2-resnet", section: "1.2", claim: "ResNet-50 on 4 GPUs over PCIe: 0.8 s of communication a batch",
			says: is(800), unit: "ms",
			how: byNCCL, ours: func(l *lab) float64 { return ms(l.nccl(l.pcieBox(), 4, sched.AllReduce, resnet).Time) },
			bounds: Span{ringTime(4, .1024, pcie3), 3 * ringTime(4, .1024, pcie3)},
			closed: "2(n-1)/n of 102 MB at 15.75 GB/s, and up to three times that",
			cause:  Conditions,
			why:    "No link of a server is so slow. What stalls such a step is input or copies through one process (nn.DataParallel), not the bus."},
		{id: "1.2-scaling", section: "1.2", claim: "so 4 GPUs are 0.95 times as fast as one",
			says: is(0.95), unit: "x",
			how: byForm, ours: func(l *lab) float64 {
				return 1000 / (250 + ms(l.nccl(l.pcieBox(), 4, sched.AllReduce, resnet).Time))
			},
			bounds: Span{3.5, 4}, closed: "1 s over 0.25 s and some 15 ms",
			cause: Conditions, why: "With the all-reduce that the box can do in place of 0.8 s, nothing hidden."},
	}
}

func linksNVLink() []entry {
	pair := func(g func(*lab) *topo.Graph, a, b int) func(*lab) float64 {
		return func(l *lab) float64 { return gbps(l.send(g(l), unit.GB, sim.Options{}, a, b).AlgBW) }
	}
	preset := func(name string) func(*lab) *topo.Graph {
		return func(l *lab) *topo.Graph { return l.preset(name, nil) }
	}
	return []entry{
		{id: "2.3-latency", section: "2.3", claim: "a remote read over NVLink takes 200 ns",
			says: is(200), unit: "ns",
			how: bySim, ours: func(l *lab) float64 { return 1e3 * us(l.send(l.preset("dgx-1v", nil), 8, sim.Options{}, 0, 1).Time) },
			bounds: near(250, 0.05), closed: "one link of 250 ns",
			cause: Estimate,
			why:   "Our figure is one way over one direct link, from the half microsecond a load of a peer's memory takes longer than a local one."},
		{id: "2.3-ratio", section: "2.3", claim: "that is 25 times faster than PCIe",
			says: is(25), unit: "x",
			how: bySim, ours: func(l *lab) float64 {
				return us(l.send(l.pcieBox(), 8, sim.Options{}, 0, 4).Time) / us(l.send(l.preset("dgx-1v", nil), 8, sim.Options{}, 0, 1).Time)
			},
			bounds: Span{3, 8}, closed: "1.4 us against 0.25 us",
			cause: Software, why: "The guide's 5 us for PCIe includes software, its 200 ns for NVLink does not."},
		{id: "3.1-nvlink1", section: "3.1", claim: "NVLink 1: four links of 20 GB/s both ways make 160 GB/s",
			says: is(160), unit: "GB/s",
			how: byCatalog, ours: func(l *lab) float64 { return float64((4 * l.rate("nvlink1")).BothWays()) / 1e9 },
			bounds: near(160, 1e-6), closed: "4 x 20 GB/s x 2",
			cause: Agrees, why: "The sum is right and its term is not: a link has 20 GB/s each way, 40 both ways."},
		{id: "3.1-quad", section: "3.1", claim: "inside a group of four P100: 3 x 20 = 60 GB/s",
			says: is(60), unit: "GB/s",
			how: bySim, ours: func(l *lab) float64 {
				return gbps(l.together(l.preset("dgx-1p", nil), unit.GB, [2]int{0, 1}, [2]int{0, 2}, [2]int{0, 3}))
			},
			bounds: near(60, 0.01), closed: "three links of 20 GB/s",
			cause: Agrees, why: "What a GPU sends to its three peers together, 20 GB/s to each.",
			also: func(l *lab) string {
				g := l.preset("dgx-1p", nil)
				return fmt.Sprintf("An all-reduce by rings has %s of bus bandwidth: of the twelve directed links two rings can be made and not three.",
					l.wire(g, l.placed(g, 4), unit.GB).BusBW)
			}},
		{id: "3.1-across", section: "3.1", claim: "between the groups: 20 GB/s",
			says: is(20), unit: "GB/s",
			how: bySim, ours: func(l *lab) float64 {
				return gbps(l.together(l.preset("dgx-1p", nil), unit.GB, [2]int{0, 4}, [2]int{1, 5}, [2]int{2, 6}, [2]int{3, 7}))
			},
			bounds: near(80, 0.01), closed: "four links, one from each GPU to its twin",
			cause: Wiring, why: "Each pair of twins has 20 GB/s each way; there are four pairs.",
			also: func(l *lab) string {
				g := l.preset("dgx-1p", nil)
				return fmt.Sprintf("An all-reduce over all eight reaches %s of bus bandwidth.", l.wire(g, l.placed(g, 8), unit.GB).BusBW)
			}},
		{id: "3.2-dgx2-near", section: "3.2", claim: "two V100 of one board of DGX-2: 300 GB/s",
			says: is(300), unit: "GB/s",
			how: bySim, ours: pair(preset("dgx-2"), 0, 1),
			bounds: near(150, 0.01), closed: "six links of 25 GB/s",
			cause: BothWays, why: "150 GB/s each way."},
		{id: "3.2-dgx2-far", section: "3.2", claim: "two V100 of different boards: 300 GB/s as well",
			says: is(300), unit: "GB/s",
			how: bySim, ours: pair(preset("dgx-2"), 0, 8),
			bounds: near(150, 0.01), closed: "six links of 25 GB/s, eight trunks a switch",
			cause: BothWays, why: "The same 150 GB/s each way, two switches apart: the boards are joined without taper."},
		{id: "3.3-pair", section: "3.3", claim: "two A100 behind NVSwitch: 2 x 25 = 50 GB/s",
			says: is(50), unit: "GB/s",
			how: bySim, ours: pair((*lab).a100, 0, 1),
			bounds: near(300, 0.01), closed: "twelve links of 25 GB/s",
			cause: Wiring, why: "Two links lead to each of six switches, and every switch reaches every GPU: a pair may use all twelve."},
		{id: "3.3-bisection", section: "3.3", claim: "bisection of a DGX A100: 4 x 50 = 200 GB/s",
			says: is(200), unit: "GB/s",
			how: bySim, ours: func(l *lab) float64 {
				return 4 * gbps(l.send(l.a100(), unit.GB, sim.Options{}, 0, 4, 1, 5, 2, 6, 3, 7).AlgBW)
			},
			bounds: near(1200, 0.01), closed: "four GPUs of 300 GB/s one way",
			cause: Wiring, why: "One way; the guide on clusters prints 4.8 TB/s for the same machine."},
		{id: "3.3-latency", section: "3.3", claim: "any two A100: under 300 ns",
			says: Span{100, 300}, unit: "ns",
			how: bySim, ours: func(l *lab) float64 { return 1e3 * us(l.send(l.a100(), 8, sim.Options{}, 0, 1).Time) },
			bounds: near(600, 0.05), closed: "two links of 250 ns and a chip of 100 ns",
			cause: Estimate, why: "The chip alone is 100 ns; the two links with their SerDes come on top, 250 ns each by our estimate."},
		{id: "3.4-pair", section: "3.4", claim: "two H100 behind NVSwitch: 4 x 50 = 200 GB/s",
			says: is(200), unit: "GB/s",
			how: bySim, ours: pair(preset("dgx-h100"), 0, 1),
			bounds: near(450, 0.01), closed: "eighteen links of 25 GB/s",
			cause: Wiring, why: "All eighteen links, over four switches at once; 50 GB/s is a link both ways."},
		{id: "3.4-hosts", section: "3.4", claim: "two DGX H100 over InfiniBand: 400 Gb/s = 50 GB/s",
			says: is(50), unit: "GB/s",
			how: bySim, ours: func(l *lab) float64 {
				g := l.preset("rail", map[string]int{"hosts": 2})
				return gbps(l.wire(g, l.placed(g, 16), unit.GB).BusBW)
			},
			bounds: near(400, 0.02), closed: "eight ports of 50 GB/s",
			cause: Wiring,
			why:   "50 GB/s is one of eight ports, and the 900 GB/s it is held against count both ways: eight rails carry 400 GB/s beside 450."},
		{id: "3.4-nvlink-network", section: "3.4", claim: "NVLink network: 8 x 200 = 1,600 GB/s between hosts",
			says: is(1600), unit: "GB/s",
			how: bySim, ours: func(l *lab) float64 {
				var pairs [][2]int
				for i := range 8 {
					pairs = append(pairs, [2]int{i, 8 + i})
				}
				return gbps(l.together(l.preset("nvlink-256", nil), unit.GB, pairs...))
			},
			bounds: near(1800, 0.02), closed: "72 links of 25 GB/s one way",
			cause: Conditions, why: "Eighteen cages of four links, 100 GB/s each way, and not eight of 200; the sum comes out close."},
		{id: "3.4-nvlink-total", section: "3.4", claim: "25.6 TB/s in all between 32 hosts",
			says: is(25.6), unit: "TB/s",
			how: bySim, ours: func(l *lab) float64 {
				var pairs [][2]int
				for i := range 128 {
					pairs = append(pairs, [2]int{i, 128 + i})
				}
				return gbps(l.together(l.preset("nvlink-256", nil), unit.GB, pairs...)) / 1e3
			},
			bounds: near(28.8, 0.02), closed: "16 hosts of 72 links of 25 GB/s, one way across the middle",
			cause: Conditions,
			why:   "Half of the hosts sending to the other half. 16 x 1,600 GB/s are the guide's; 57.6 TB/s both ways are NVIDIA's."},
		{id: "3.4-nvlink-latency", section: "3.4", claim: "any two of 256 GPUs: under 1 us",
			says: Span{0.1, 1}, unit: "us",
			how: bySim, ours: func(l *lab) float64 { return us(l.send(l.preset("nvlink-256", nil), 8, sim.Options{}, 0, 255).Time) },
			bounds: Span{1, 1.6}, closed: "four links of 250 ns and three chips of 100 ns",
			cause: Estimate, why: "Four links and three chips by our catalogue, whose 250 ns a link are an estimate."},
	}
}

func linksNCCL() []entry {
	const size = 100 * unit.MB
	pcie := func(l *lab) float64 { return ms(l.wire(l.pcieBox(), l.placed(l.pcieBox(), 8), size).Time) }
	nvlink := func(l *lab) float64 { return ms(l.wire(l.a100(), l.placed(l.a100(), 8), size).Time) }
	return []entry{
		{id: "4.2-volume", section: "4.2", claim: "a ring sends 2(N-1)/N, near 2",
			says: is(1.75), unit: "x",
			how: byProof, ours: func(l *lab) float64 { return sent(l.proof(l.ring(8))) },
			bounds: near(1.75, 1e-9), closed: "2(n-1)/n",
			cause: Agrees, why: "The example below it uses 7 instead."},
		{id: "4.2-matrix", section: "4.2", claim: "nvidia-smi's NV4 between two A100 means NVLink 4.0",
			says: is(4), unit: "links",
			how: byGraph, ours: func(l *lab) float64 {
				if l.err != nil {
					return 0
				}
				g, n := l.a100(), 0.0
				for _, e := range g.Edges(gpus(g)[0]) {
					if g.Class(e.Link).Kind == topo.NVLink {
						n += float64(g.Links[e.Link].Count)
					}
				}
				return n
			},
			bounds: is(12), closed: "two links to each of six switches",
			cause: Wiring, why: "NV# is a number of links: NV12 on a DGX A100, whatever the generation."},
		{id: "4.2-44ms", section: "4.2", claim: "100 MB on 8 GPUs over PCIe 3: 100 MB / 16 GB/s x 7 = 44 ms",
			says: is(44), unit: "ms",
			how: bySim, ours: pcie,
			bounds: near(ringTime(8, .1, pcie3), 0.01), closed: "1.75 x 100 MB at 15.75 GB/s",
			cause: Volume, why: "Seven transfers, but of an eighth of the data each, twice: 14/8 and not 7."},
		{id: "4.2-2.3ms", section: "4.2", claim: "over NVLink 3: 100 MB / 300 GB/s x 7 = 2.3 ms",
			says: is(2.3), unit: "ms",
			how: bySim, ours: nvlink,
			bounds: near(ringTime(8, .1, 300), 0.02), closed: "1.75 x 100 MB at 300 GB/s",
			cause: Volume, why: "The same factor of four.",
			also: func(l *lab) string {
				return fmt.Sprintf("NCCL takes %s ms.", digits(ms(l.nccl(l.a100(), 8, sched.AllReduce, size).Time), 2))
			}},
		{id: "4.2-speedup", section: "4.2", claim: "NVLink is 19 times faster",
			says: is(19), unit: "x",
			how: bySim, ours: func(l *lab) float64 { return pcie(l) / nvlink(l) },
			bounds: near(300/pcie3, 0.03), closed: "300 over 15.75 GB/s",
			cause: Agrees, why: "The wrong factor falls out of the ratio."},
		{id: "4.2-pcie-share", section: "4.2", claim: "with 50 ms of computing, PCIe leaves 53%",
			says: is(53), unit: "%",
			how: byForm, ours: func(l *lab) float64 { return 100 * 50 / (50 + pcie(l)) },
			bounds: near(81.8, 0.02), closed: "50 ms beside 11.1 ms",
			cause: Volume, why: "Communication is a quarter of what the guide has."},
		{id: "4.2-nvlink-share", section: "4.2", claim: "NVLink leaves 96%",
			says: is(96), unit: "%",
			how: byForm, ours: func(l *lab) float64 { return 100 * 50 / (50 + nvlink(l)) },
			bounds: near(98.8, 0.01), closed: "50 ms beside 0.6 ms",
			cause: Agrees, why: "Nearly nothing either way."},
	}
}

// linksBoxes is the comparison of three boxes: 1 GB, eight A100.
func linksBoxes() []entry {
	box := func(g func(*lab) *topo.Graph) func(*lab) float64 {
		return func(l *lab) float64 { return ms(l.wire(g(l), l.placed(g(l), 8), unit.GB).Time) }
	}
	pcie, mesh, nvs := box((*lab).pcieBox), box((*lab).cubeMesh), box((*lab).a100)
	return []entry{
		{id: "5.2-pcie", section: "5.2", claim: "all-reduce of 1 GB on 8 GPUs, PCIe only: 450 ms",
			says: is(450), unit: "ms",
			how: bySim, ours: pcie,
			bounds: near(ringTime(8, 1, pcie3), 0.01), closed: "1.75 GB at 15.75 GB/s",
			cause: Wiring, why: "A ring in the order of the tree crosses every PCIe link once each way.",
			also: func(l *lab) string {
				return fmt.Sprintf("A ring that crosses the sockets at every step shares each switch's uplink by four and takes %s: that is the guide's case, a bad order and not a law. With PCIe 4, as A100 servers have, the good ring takes %s.",
					l.zigzag(l.pcieBox(), unit.GB).Time, l.wire(l.pcie4Box(), l.placed(l.pcie4Box(), 8), unit.GB).Time)
			}},
		{id: "5.2-pcie-order", section: "5.2", claim: "the same, with a ring that crosses the sockets at every step: 450 ms",
			says: is(450), unit: "ms",
			how: bySim, ours: func(l *lab) float64 { return ms(l.zigzag(l.pcieBox(), unit.GB).Time) },
			bounds: near(ringTime(8, 1, pcie3/4), 0.01), closed: "1.75 GB at a quarter of 15.75 GB/s",
			cause: Agrees, why: "What the guide describes as a shared bus."},
		{id: "5.2-mesh", section: "5.2", claim: "hybrid cube mesh: 85 ms",
			says: is(85), unit: "ms",
			how: bySim, ours: mesh,
			bounds: near(ringTime(8, 1, 300), 0.02), closed: "twelve rings of 25 GB/s",
			cause: Wiring,
			why:   "85 ms is about what 1.75 GB take over one link of 20 GB/s, the guide's figure across groups of a P100 mesh. Rings over all eight GPUs use every link of the mesh: twelve fit where an A100 has twelve links.",
			also: func(l *lab) string {
				v := l.preset("dgx-1v", nil)
				return fmt.Sprintf("The mesh that was sold, DGX-1 with V100, takes %s on the wire; NCCL takes %s ms there.",
					l.wire(v, l.placed(v, 8), unit.GB).Time, digits(ms(l.nccl(v, 8, sched.AllReduce, unit.GB).Time), 2))
			}},
		{id: "5.2-nvswitch", section: "5.2", claim: "NVSwitch: 34 ms",
			says: is(34), unit: "ms",
			how: bySim, ours: nvs,
			bounds: near(ringTime(8, 1, 300), 0.02), closed: "1.75 GB at 300 GB/s",
			cause: Wiring, why: "34 ms is about what 1.75 GB take over the 50 GB/s that the guide has for a pair (3.3-pair above).",
			also: func(l *lab) string {
				return fmt.Sprintf("NCCL takes %s ms.", digits(ms(l.nccl(l.a100(), 8, sched.AllReduce, unit.GB).Time), 2))
			}},
		{id: "5.2-pcie-nccl", section: "5.2", claim: "450 ms, as what NCCL takes on a server with PCIe 4",
			says: is(450), unit: "ms",
			how: byNCCL, ours: func(l *lab) float64 { return ms(l.nccl(l.pcie4Box(), 8, sched.AllReduce, unit.GB).Time) },
			bounds: Span{ringTime(8, 1, pcie4), 3 * ringTime(8, 1, pcie4)}, closed: "1.75 GB at 31.5 GB/s, and up to three times that",
			cause: Wiring, why: "Through host memory between sockets NCCL reaches about half of the wire."},
		{id: "5.2-efficiency", section: "5.2", claim: "efficiency of PCIe: 1 GB x 8 / 450 ms = 17.8 GB/s",
			says: is(17.8), unit: "GB/s",
			how: byForm, ours: func(*lab) float64 {
				return gbps(unit.GB.Per(450*unit.Millisecond)) * sched.AllReduce.BusFactor(8)
			},
			bounds: near(1.75/.45, 1e-6), closed: "2(n-1)/n x 1 GB / 450 ms",
			cause: Denominator,
			why:   "Size times GPUs over time is no bandwidth of anything. Bus bandwidth, which is held against a link, is 1.75 x size over time."},
		{id: "5.2-mesh-gain", section: "5.2", claim: "the mesh is 5.3 times faster than PCIe",
			says: is(5.3), unit: "x",
			how: bySim, ours: func(l *lab) float64 { return pcie(l) / mesh(l) },
			bounds: near(300/pcie3, 0.03), closed: "300 over 15.75 GB/s",
			cause: Wiring, why: "Twelve rings of 25 GB/s against one of 15.75."},
		{id: "5.2-switch-gain", section: "5.2", claim: "NVSwitch is 2.5 times faster than the mesh",
			says: is(2.5), unit: "x",
			how: bySim, ours: func(l *lab) float64 { return mesh(l) / nvs(l) },
			bounds: near(1, 0.02), closed: "the same twelve links a GPU",
			cause: Wiring,
			why:   "For an all-reduce over all eight GPUs a mesh that fits rings is as good as switches. Switches gain where the mesh has no rings:",
			also: func(l *lab) string {
				return fmt.Sprintf("three GPUs, 0, 1 and 4, get %s of bus bandwidth in the mesh of DGX-1 and %s in DGX A100.",
					l.subset(l.preset("dgx-1v", nil), 0, 1, 4), l.subset(l.a100(), 0, 1, 4))
			}},
		{id: "5.2-total-gain", section: "5.2", claim: "13.2 times in all",
			says: is(13.2), unit: "x",
			how: bySim, ours: func(l *lab) float64 { return pcie(l) / nvs(l) },
			bounds: near(300/pcie3, 0.03), closed: "300 over 15.75 GB/s",
			cause: Wiring, why: "The ratio of the links, as in 4.2 of the same guide."},
	}
}

// subset is the bus bandwidth on the wire of the best rings or trees over a few GPUs.
func (l *lab) subset(g *topo.Graph, at ...int) unit.Rate {
	if l.err != nil {
		return 0
	}
	res, err := rings.Search(g, pick(g, at...), l.c, rings.Options{Budget: 400_000})
	if err != nil {
		l.fail(err)
		return 0
	}
	return max(res.RingBus, res.TreeBus)
}

// linksTraining is GPT-3 13B on eight GPUs.
func linksTraining() []entry {
	const size = 52 * unit.GB
	pcie := func(l *lab) float64 { return ms(l.wire(l.pcieBox(), l.placed(l.pcieBox(), 8), size).Time) }
	nvs := func(l *lab) float64 { return ms(l.wire(l.a100(), l.placed(l.a100(), 8), size).Time) }
	return []entry{
		{id: "5.3-pcie", section: "5.3", claim: "13B parameters, 52 GB of gradients, over PCIe: 420 ms a batch",
			says: is(420), unit: "ms",
			how: bySim, ours: pcie,
			bounds: near(ringTime(8, 52, pcie3), 0.01), closed: "1.75 x 52 GB at 15.75 GB/s",
			cause: Volume, why: "420 ms is about the 450 ms of 5.2 for 1 GB; here it is 52 GB."},
		{id: "5.3-nvlink", section: "5.3", claim: "over NVSwitch: 35 ms a batch",
			says: is(35), unit: "ms",
			how: bySim, ours: nvs,
			bounds: near(ringTime(8, 52, 300), 0.01), closed: "1.75 x 52 GB at 300 GB/s",
			cause: Volume, why: "35 ms is the 34 ms of 5.2 for 1 GB.",
			also: func(l *lab) string {
				return fmt.Sprintf("NCCL takes %s ms.", digits(ms(l.nccl(l.a100(), 8, sched.AllReduce, size).Time), 2))
			}},
		{id: "5.3-pcie-use", section: "5.3", claim: "180 ms of computing: GPUs are used 30% over PCIe",
			says: is(30), unit: "%",
			how: byForm, ours: func(l *lab) float64 { return 100 * 180 / (180 + pcie(l)) },
			bounds: near(100*180/(180+ringTime(8, 52, pcie3)), 0.02), closed: "180 ms beside 5.8 s",
			cause: Volume, why: "None of it hidden, as in the guide."},
		{id: "5.3-nvlink-use", section: "5.3", claim: "84% over NVSwitch",
			says: is(84), unit: "%",
			how: byForm, ours: func(l *lab) float64 { return 100 * 180 / (180 + nvs(l)) },
			bounds: near(100*180/(180+ringTime(8, 52, 300)), 0.02), closed: "180 ms beside 303 ms",
			cause: Volume, why: "Gradients of 2 bytes and overlap with the backward pass bring it to what is seen in practice."},
		{id: "5.3-days", section: "5.3", claim: "28 days of training over PCIe are 10 over NVSwitch: a factor of 2.8",
			says: is(2.8), unit: "x",
			how: byForm, ours: func(l *lab) float64 { return (180 + pcie(l)) / (180 + nvs(l)) },
			bounds: near((180+ringTime(8, 52, pcie3))/(180+ringTime(8, 52, 300)), 0.02), closed: "6 s against 0.48 s a batch",
			cause: Volume, why: "600 over 215 ms in the guide; with all of the gradients it is more."},
		{id: "7.1-bandwidth", section: "7.1", claim: "NVLink has 10 to 18 times the bandwidth of PCIe",
			says: Span{10, 18}, unit: "x",
			how: byCatalog, ours: func(l *lab) float64 { return float64(12 * l.rate("nvlink3") / l.rate("pcie4")) },
			bounds: near(300/pcie4, 0.01), closed: "A100: 300 over 31.5 GB/s",
			cause: Agrees, why: "A100 with PCIe 4; 7.1 times for H100 with PCIe 5, 9.5 times for V100 with PCIe 3, all one way against one way."},
	}
}
