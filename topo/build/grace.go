package build

import "github.com/weft-fabric/weft/topo"

// graceHopper is a server with one Grace Hopper superchip: the GPU reaches the
// CPU over the chip-to-chip link, and the network over the CPU's PCIe.
//
//	gpu0 ═C2C═ cpu0 ─ root0 ─ nic0
//	             └─── root1 ─ pex0 ─ stor0 svc0
func graceHopper(m *maker) {
	cpu := m.sockets(1, "Grace", "", 0)[0]
	m.add("gpu", Device{Kind: topo.GPU, Model: m.gpu.Name, Parent: cpu, Link: "c2c"})
	m.addNIC(m.root(cpu))
	m.serviceCard(cpu, "BlueField-3-Dual", "pcie5")
}

// superchipLanes is a GPU's half of the 90 lanes of Grace's chip-to-chip link, 450 GB/s both ways.
const superchipLanes = 45

// graceTray is a compute tray of NVL72: two Grace CPUs with two Blackwell GPUs
// and two NICs each. Its NVLinks leave the tray; NVL72 joins them to the rack's switches.
//
//	gpu0 gpu1 ═C2C═ cpu0 ─ root0 ─ nic0   root1 ─ nic1   root2 ─ pex0 ─ stor0 svc0
//	                 ║
//	gpu2 gpu3 ═C2C═ cpu1 ─ root3 ─ nic2   root4 ─ nic3   root5 ─ pex1 ─ stor1 svc1
func graceTray(m *maker) {
	for _, cpu := range m.sockets(2, "Grace", "cnvlink", 1) {
		for range 2 {
			m.add("gpu", Device{Kind: topo.GPU, Model: m.gpu.Name, Parent: cpu, Link: "c2c", Lanes: superchipLanes})
		}
		for range 2 {
			m.addNIC(m.root(cpu))
		}
		m.serviceCard(cpu, "BlueField-3-Dual", "pcie5")
	}
}
