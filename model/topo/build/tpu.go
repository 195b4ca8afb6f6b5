package build

// tpuHost is a host with four TPU v4 chips, a 2 x 2 x 1 corner of the torus with
// its four inner links. The chips' other links, four each, leave the host; a
// torus of chips adds them.
//
//	gpu2 ─ gpu3      x to the right, y upwards; every chip has two links here,
//	 │      │        two more along x and y, and two along z
//	gpu0 ─ gpu1
func tpuHost(m *maker) {
	cpus := m.sockets(2, "EPYC-7B12", "xgmi2-cpu", 4)
	for i := range 4 {
		m.addGPU(m.root(cpus[i/2]))
	}
	m.addNIC(m.root(cpus[0]))
	for _, l := range [][2]int{{0, 1}, {2, 3}, {0, 2}, {1, 3}} {
		m.join(gpu(l[0]), gpu(l[1]), m.gpu.Link, 1)
	}
}
