package build

// dgxA100 wires eight A100 to six NVSwitches, two links to each.
func dgxA100(m *maker) {
	cpus := m.sockets(8, "EPYC-7742", "xgmi2-cpu", 1)
	for _, cpu := range []int{3, 1, 7, 5} {
		top := m.addPEX(m.addRoot(cpus[cpu]), "pcie4")
		for range 2 {
			pex := m.addPEX(top, "pcie4")
			m.addGPU(pex)
			m.addNIC(pex)
		}
	}
	m.stripe(2, 2, 2, 2, 2, 2)
}

// dgxH100 wires eight H100 to four NVSwitches, 5 + 4 + 4 + 5 links.
func dgxH100(m *maker) {
	cpus := m.sockets(2, "Xeon-8480C", "upi2", 4)
	for i := range 8 {
		pex := m.addPEX(m.addRoot(cpus[i/4]), "pcie5")
		m.addGPU(pex)
		m.addNIC(pex)
	}
	m.stripe(5, 4, 4, 5)
}
