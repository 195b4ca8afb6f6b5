package build

// mi300X is AMD's platform of eight MI300X or their successors, every two joined by one xGMI link
// (rocm-smi prints one hop between any two), in a two-socket server with a GPU
// and a NIC behind each of eight PCIe switches.
func mi300X(m *maker) {
	singles(m, m.sockets(2, "EPYC-9654", "xgmi3-cpu", 4), "pcie5")
	for a := range 8 {
		for b := a + 1; b < 8; b++ {
			m.join(gpu(a), gpu(b), m.gpu.Link, 1)
		}
	}
}
