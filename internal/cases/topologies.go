package cases

import (
	"fmt"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// The three boxes of the links guide's comparison and the clusters guide's torus, as in the files
// examples/collective-*.yaml; a test holds them together.
const (
	pcieFile = `
name: collective-pcie
kinds:
  pcie-box:
    devices:
      cpu[0-1]: {kind: cpu, model: Xeon-8168}
      root[0-1]: {kind: root-port, parent: "cpu[0-1]"}
      pex[0-1]: {kind: pcie-switch, parent: "root[0-1]", link: pcie3}
      gpu[0-7]: {kind: gpu, model: A100-PCIe, parent: "pex[0-1]", link: pcie3, lanes: 16}
    joins:
      - {from: cpu0, to: cpu1, link: upi1, count: 3}
hosts: {n0: pcie-box}
`
	meshFile = `
name: collective-cube-mesh
kinds:
  cube-mesh:
    devices:
      cpu[0-1]: {kind: cpu, model: Xeon-8168}
      root[0-1]: {kind: root-port, parent: "cpu[0-1]"}
      pex[0-3]: {kind: pcie-switch, parent: "root[0-1]", link: pcie3}
      gpu[0-7]: {kind: gpu, model: A100-SXM-80GB, parent: "pex[0-3]", link: pcie3, lanes: 16}
    joins:
      - {from: cpu0, to: cpu1, link: upi1, count: 3}
      - {from: "gpu[0,4]", to: "gpu[1,5]", link: nvlink3, count: 2}
      - {from: "gpu[0,4]", to: "gpu[2,6]", link: nvlink3, count: 2}
      - {from: "gpu[0,4]", to: "gpu[3,7]", link: nvlink3, count: 4}
      - {from: "gpu[1,5]", to: "gpu[2,6]", link: nvlink3, count: 4}
      - {from: "gpu[1,5]", to: "gpu[3,7]", link: nvlink3, count: 2}
      - {from: "gpu[2,6]", to: "gpu[3,7]", link: nvlink3, count: 4}
      - {from: "gpu[0-1]", to: "gpu[4-5]", link: nvlink3, count: 4}
      - {from: "gpu[2-3]", to: "gpu[6-7]", link: nvlink3, count: 2}
hosts: {n0: cube-mesh}
`
	switchFile = `
name: collective-nvswitch
hosts: {n0: dgx-a100}
`
	torusFile = `
name: collective-torus
hosts: {"t[0-1023]": tpu-v4}
fabric: {family: chip-torus, dims: [4, 4, 256], link: ici4}
`
)

func (l *lab) pcieBox() *topo.Graph  { return l.file(pcieFile) }
func (l *lab) cubeMesh() *topo.Graph { return l.file(meshFile) }
func (l *lab) a100() *topo.Graph     { return l.file(switchFile) }

// pcie4Box is the same PCIe box as servers with A100 are sold, with PCIe 4.
func (l *lab) pcie4Box() *topo.Graph { return l.preset("pcie-8-plx", nil) }

// ports is hosts of a kind joined by one switch, with other ports than the kind
// usually has: the number of hosts, the NICs that are used, and the generation of link.
func (l *lab) ports(kind, nic string, hosts int, nics, link string) *topo.Graph {
	return l.file(fmt.Sprintf(`
name: ports
catalog:
  nics: {%s: {link: %s}}
  switches: {one: {ports: 64, link: %s, latency: %s}}
hosts: {"n[0-%d]": %s}
fabric: {family: fat-tree, nics: "%s", switch: one}
`, nic, link, link, map[bool]string{true: "130 ns", false: "700 ns"}[link == "hdr" || link == "edr"], hosts-1, kind, nics))
}

// two is two DGX A100 with ports of a generation on the NICs named.
func (l *lab) two(nics, link string) *topo.Graph {
	return l.ports("dgx-a100", "ConnectX-6", 2, nics, link)
}

// pod is 32 DGX A100 with HDR on all eight rails: 256 GPUs.
func (l *lab) pod() *topo.Graph { return l.railed(32) }

// railed is a number of DGX A100 with HDR on all eight rails.
func (l *lab) railed(hosts int) *topo.Graph {
	return l.file(fmt.Sprintf("name: rails\nhosts: {\"n[0-%d]\": dgx-a100}\nfabric: {family: rail, switch: QM8790, tiers: 2}\n", hosts-1))
}

// tenThousand is 1,280 DGX A100, 10,240 GPUs: sixty-four whole pods of twenty hosts.
func (l *lab) tenThousand() *topo.Graph {
	return l.file("name: large\nhosts: {\"n[0-1279]\": dgx-a100}\nfabric: {family: rail, switch: QM8790, tiers: 3, pod: 20}\n")
}

// ring is the flat ring over n GPUs in their order: between hosts it uses one port of each.
func (l *lab) ring(n int) *sched.Program {
	return l.program("ring", algo.Spec{Op: sched.AllReduce, Ranks: n})
}

// every takes one GPU of every stride.
func every(g *topo.Graph, stride int) []topo.NodeID {
	var list []topo.NodeID
	for i, n := range gpus(g) {
		if i%stride == 0 {
			list = append(list, n)
		}
	}
	return list
}

// pick takes GPUs by number.
func pick(g *topo.Graph, at ...int) []topo.NodeID {
	all := gpus(g)
	var list []topo.NodeID
	for _, i := range at {
		if i < len(all) {
			list = append(list, all[i])
		}
	}
	return list
}

// injected adds up one way what all compute NICs of a graph carry.
func injected(g *topo.Graph) (sum unit.Rate) {
	if g == nil {
		return 0
	}
	g.Each(topo.NIC, func(n topo.NodeID, nic *topo.Node) {
		if nic.Fabric == topo.None || g.Fabrics[nic.Fabric].Service {
			return
		}
		for _, e := range g.Edges(n) {
			if g.Class(e.Link).Kind.Network() {
				sum += g.Rate(e.Link)
			}
		}
	})
	return sum
}

// accelerated adds up one way what all GPUs' links to each other carry.
func accelerated(g *topo.Graph) (sum unit.Rate) {
	if g == nil {
		return 0
	}
	g.Each(topo.GPU, func(n topo.NodeID, _ *topo.Node) {
		for _, e := range g.Edges(n) {
			if k := g.Class(e.Link).Kind; k.Accelerator() && k != topo.C2C {
				sum += g.Rate(e.Link)
			}
		}
	})
	return sum
}

// ringTime is the closed form of a ring all-reduce in milliseconds: 2(n-1)/n of
// the gigabytes over GB/s one way.
func ringTime(n int, gb, rate float64) float64 {
	return 2 * float64(n-1) / float64(n) * gb / rate * 1e3
}

// What sixteen lanes of PCIe carry one way, in GB/s: 8 GT/s a lane coded 128b/130b, and twice that.
const (
	pcie3 = 16 * 8.0 / 8 * 128 / 130
	pcie4 = 2 * pcie3
)
