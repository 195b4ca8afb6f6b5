package build

import "github.com/weft-fabric/weft/model/topo"

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

// graceTray is a compute tray of GB200 NVL72: two Grace CPUs with two Blackwell
// GPUs and two NICs each. Its NVLinks leave the tray; NVL72 joins them to the
// rack's switches.
//
//	gpu0 gpu1 ═C2C═ cpu0 ─ root0 ─ nic0   root1 ─ nic1   root2 ─ pex0 ─ stor0 svc0
//	                 ║
//	gpu2 gpu3 ═C2C═ cpu1 ─ root3 ─ nic2   root4 ─ nic3   root5 ─ pex1 ─ stor1 svc1
func graceTray(m *maker) {
	for _, cpu := range m.sockets(2, "Grace", "cnvlink", 1) {
		for range 2 {
			m.superchipGPU(cpu)
		}
		for range 2 {
			m.addNIC(m.root(cpu))
		}
		m.serviceCard(cpu, "BlueField-3-Dual", "pcie5")
	}
}

// graceUltraTray is a compute tray of GB300 NVL72. Grace has PCIe 5, too slow for
// a NIC of 800 Gb/s, so each GPU reaches its NIC over PCIe 6 through the
// switch in ConnectX-8 and needs the CPU for its memory only.
//
//	cpu0 ─ root0 ─ pex0 ─┬─ nic0
//	  ╚══════C2C═══════ gpu0          … four such; one service card, on cpu0
func graceUltraTray(m *maker) {
	cpus := m.sockets(2, "Grace", "cnvlink", 1)
	for i := range 4 {
		cpu := cpus[i/2]
		pex := m.pex(m.root(cpu), "pcie5")
		m.addNIC(pex)
		m.join(m.superchipGPU(cpu), pex, m.gpu.PCIe, 1)
	}
	m.serviceCard(cpus[0], "BlueField-3-Dual", "pcie5")
}

// superchipGPU adds one of the two GPUs of a Grace Blackwell superchip.
func (m *maker) superchipGPU(cpu string) string {
	return m.add("gpu", Device{Kind: topo.GPU, Model: m.gpu.Name, Parent: cpu, Link: "c2c", Lanes: superchipLanes})
}
