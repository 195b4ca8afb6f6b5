package build

// cards8 is a server with eight PCIe cards and four NICs.
func cards8(m *maker) { pairs(m, m.sockets(2, "Xeon-8480+", "upi2", 3), m.gpu.PCIe, 1) }

// awsP4 is p4d and p4de: one NIC of 100 Gb/s to two GPUs.
func awsP4(m *maker) {
	pairs(m, m.sockets(2, "Xeon-8275CL", "upi1", 3), m.gpu.PCIe, 1)
	m.stripe("NVSwitch-2", 2, 2, 2, 2, 2, 2)
}

// awsP5 has eight NICs of 100 Gb/s to two GPUs.
func awsP5(m *maker) {
	pairs(m, m.sockets(2, "EPYC-7R13", "xgmi3-cpu", 3), m.gpu.PCIe, 8)
	m.stripe("NVSwitch-3", 5, 4, 4, 5)
}

// awsP5en has four NICs of 200 Gb/s to two GPUs.
func awsP5en(m *maker) {
	pairs(m, m.sockets(2, "Xeon-8488C", "upi2", 3), m.gpu.PCIe, 4)
	m.stripe("NVSwitch-3", 5, 4, 4, 5)
}
