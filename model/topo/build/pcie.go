package build

// pcie8 is a two-socket server with eight cards, each on a root port of its own:
//
//	cpu0 ─ root0 ─ gpu0   … root3 ─ gpu3   root4 ─ nic0
//	 ║
//	cpu1 ─ root5 ─ gpu4   … root8 ─ gpu7   root9 ─ nic1
//
// Any two cards of a socket are NODE, of different sockets SYS. Ten links of 16
// lanes leave three of the four xGMI links between the sockets.
func pcie8(m *maker) {
	for _, cpu := range m.sockets(2, "EPYC-7763", "xgmi2-cpu", 3) {
		for range 4 {
			m.addGPU(m.root(cpu))
		}
		m.addNIC(m.root(cpu))
	}
}

// pcie8Plx is the same server with a PCIe switch for each four cards:
//
//	cpu0 ─ root0 ─ pex0 ─ gpu0 gpu1 gpu2 gpu3 nic0
//	 ║
//	cpu1 ─ root1 ─ pex1 ─ gpu4 gpu5 gpu6 gpu7 nic1
//
// Cards of one switch are PIX and reach each other at full rate; whatever goes
// up shares the switch's sixteen lanes, a quarter for each GPU if all four do.
func pcie8Plx(m *maker) {
	for _, cpu := range m.sockets(2, "EPYC-7763", "xgmi2-cpu", 4) {
		pex := m.pex(m.root(cpu), m.gpu.PCIe)
		for range 4 {
			m.addGPU(pex)
		}
		m.addNIC(pex)
	}
}
