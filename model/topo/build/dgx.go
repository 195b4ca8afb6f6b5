package build

import "fmt"

// gpu names a GPU by its number.
func gpu(i int) string { return fmt.Sprintf("gpu%d", i) }

// dgx1 is the PCIe tree of both DGX-1: two GPUs and a NIC on each of four
// switches, two switches on each socket's one host bridge. nvidia-smi prints PIX
// inside a switch, PHB inside a socket and SYS between sockets.
//
//	cpu0 ─ root0 ─ pex0 ─ gpu0 gpu1 nic0
//	 ║        └─── pex1 ─ gpu2 gpu3 nic1
//	cpu1 ─ root1 ─ pex2 ─ gpu4 gpu5 nic2
//	          └─── pex3 ─ gpu6 gpu7 nic3
func dgx1(m *maker) {
	for _, cpu := range m.sockets(2, "Xeon-E5-2698v4", "qpi", 2) {
		root := m.root(cpu)
		for range 2 {
			pex := m.pex(root, "pcie3")
			m.addGPU(pex)
			m.addGPU(pex)
			m.addNIC(pex)
		}
	}
}

// dgx1P is DGX-1 with P100, a hybrid cube mesh of single links: four GPUs fully
// joined, four others likewise, and one link across from each to its twin.
//
//	0 ─ 1     4 ─ 5
//	│ ╳ │     │ ╳ │     and 0─4  1─5  2─6  3─7
//	2 ─ 3     6 ─ 7
func dgx1P(m *maker) {
	dgx1(m)
	for _, quad := range []int{0, 4} {
		for a := range 4 {
			for b := a + 1; b < 4; b++ {
				m.join(gpu(quad+a), gpu(quad+b), m.gpu.Link, 1)
			}
		}
	}
	for a := range 4 {
		m.join(gpu(a), gpu(a+4), m.gpu.Link, 1)
	}
}

// dgx1V is DGX-1 with V100: the same mesh with two links more for each GPU,
// which double one way around each quad and two of the four ways across. The map is
// that of NCCL's topology dump and of nvidia-smi's matrix of a DGX-1V (NVIDIA/nccl issue 671).
func dgx1V(m *maker) {
	dgx1(m)
	for _, quad := range []int{0, 4} {
		for _, l := range []struct{ a, b, count int }{{0, 1, 1}, {0, 2, 1}, {0, 3, 2}, {1, 2, 2}, {1, 3, 1}, {2, 3, 2}} {
			m.join(gpu(quad+l.a), gpu(quad+l.b), m.gpu.Link, l.count)
		}
	}
	for a, count := range []int{2, 2, 1, 1} {
		m.join(gpu(a), gpu(a+4), m.gpu.Link, count)
	}
}

// dgx2 is sixteen V100 on two boards of eight, six NVSwitches on each. A GPU has
// one link to each switch of its board; a switch has eight trunk links to its
// twin on the other board, one for each GPU, so that any eight pairs across
// run at full rate.
//
//	gpu0 … gpu7 ─ nvs0 … nvs5 ═8═ nvs6 … nvs11 ─ gpu8 … gpu15
//
// Over PCIe, two GPUs and a NIC share a switch (PIX), two such switches a
// switch above (PXB), and a socket has two of those (NODE), as the matrix in
// NVIDIA/nccl-tests issue 78 has it.
func dgx2(m *maker) {
	cpus := m.sockets(2, "Xeon-8168", "upi1", 3)
	for _, cpu := range cpus {
		for range 2 {
			top := m.pex(m.root(cpu), "pcie3")
			for range 2 {
				pex := m.pex(top, "pcie3")
				m.addGPU(pex)
				m.addGPU(pex)
				m.addNIC(pex)
			}
		}
	}
	m.serviceCard(cpus[1], "ConnectX-5", "pcie3")
	nvs := m.switches(12, "NVSwitch-1")
	for g := range 16 {
		for s := range 6 {
			m.join(gpu(g), nvs[g/8*6+s], m.gpu.Link, 1)
		}
	}
	for s := range 6 {
		m.join(nvs[s], nvs[s+6], m.gpu.Link, 8)
	}
}

// dgxA100 is eight A100, each with two links to each of six NVSwitches. The
// EPYC sockets are run as four NUMA nodes each, and the GPUs sit on the odd
// ones in the order 3, 1, 7, 5. Over PCIe everything of one node is PXB:
//
//	cpu3 ─ root0 ─ pex0 ─┬─ pex1 ─┬─ nic0
//	                     │        └─ pex2 ─ gpu0
//	                     └─ pex3 ─┬─ nic1
//	                              └─ pex4 ─ gpu1
//
// and everything of different nodes SYS, as nvidia-smi and NCCL's dump of a
// DGX A100 have it (NVIDIA/nccl issue 1505). The service cards are on nodes 0 and 4.
func dgxA100(m *maker) {
	cpus := epycQuarters(m, "EPYC-7742")
	for _, node := range []int{3, 1, 7, 5} {
		top := m.pex(m.root(cpus[node]), "pcie4")
		for range 2 {
			mid := m.pex(top, "pcie4")
			m.addNIC(mid)
			m.addGPU(m.pex(mid, "pcie4"))
		}
	}
	m.serviceCard(cpus[0], "ConnectX-6", "pcie4")
	m.serviceCard(cpus[4], "ConnectX-6", "pcie4")
	m.stripe("NVSwitch-2", 2, 2, 2, 2, 2, 2)
}

// epycQuarters adds two EPYC sockets of four NUMA nodes each: nodes of a socket
// are joined on its I/O die, and each has its own link to its twin in the other.
func epycQuarters(m *maker, model string) []string {
	cpus := m.sockets(4, model, rootLink, 1)
	cpus = append(cpus, m.sockets(4, model, rootLink, 1)...)
	for i := range 4 {
		m.join(cpus[i], cpus[i+4], "xgmi2-cpu", 1)
	}
	return cpus
}

// hgxA100 is the A100 board in a server of another maker: two GPUs and two NICs
// behind each of four PCIe switches (PIX), two switches to a socket (NODE). It
// is also what Azure NDv4 and AWS p4d tell NCCL, but for the number of NICs and NUMA nodes.
func hgxA100(m *maker) {
	pairs(m, m.sockets(2, "EPYC-7763", "xgmi2-cpu", 4), "pcie4", 2)
	m.stripe("NVSwitch-2", 2, 2, 2, 2, 2, 2)
}

// pairs is two GPUs and nics NICs behind each of four PCIe switches, two
// switches to a socket, each on a host bridge of its own: PIX inside a switch,
// NODE inside a socket. Servers with PCIe cards are built so, and what AWS and
// Azure tell NCCL of their machines has the same shape.
//
//	cpu0 ─ root0 ─ pex0 ─ gpu0 gpu1 nic0 …
//	 ║     root1 ─ pex1 ─ gpu2 gpu3 nic1 …
//	cpu1 ─ root2 ─ pex2 ─ gpu4 gpu5 nic2 …
//	       root3 ─ pex3 ─ gpu6 gpu7 nic3 …
func pairs(m *maker, cpus []string, link string, nics int) {
	for i := range 4 {
		pex := m.pex(m.root(cpus[i/2]), link)
		m.addGPU(pex)
		m.addGPU(pex)
		for range nics {
			m.addNIC(pex)
		}
	}
}

// branches is the PCIe tree of DGX H100 and its successors: the NIC has a PCIe
// switch of its own, through which its GPU's board hangs on the CPU.
//
//	cpu0 ─ root0 ─ pex0 ─┬─ nic0
//	                     └─ pex1 ─ gpu0      … four such branches on each socket
//
// nvidia-smi prints PXB between a GPU and its NIC, NODE to the other NICs of the
// socket and SYS across, on DGX H100, DGX B200 (vllm-project/vllm issue 16336)
// and HGX B300 alike. up joins the branch to its CPU, down the GPU to the NIC's switch.
func branches(m *maker, cpus []string, up, down string) {
	for i := range 8 {
		pex := m.pex(m.root(cpus[i/4]), up)
		m.addNIC(pex)
		m.addGPU(m.pex(pex, down))
	}
}

// dgxH100 is eight H100 on four NVSwitches, 5 + 4 + 4 + 5 links, and a service
// card of two ports on each socket. DGX H200 is the same machine with more memory.
func dgxH100(m *maker) {
	cpus := m.sockets(2, "Xeon-8480C", "upi2", 4)
	branches(m, cpus, "pcie5", "pcie5")
	for _, cpu := range cpus {
		m.serviceCard(cpu, "ConnectX-7", "pcie5")
	}
	m.stripe("NVSwitch-3", 5, 4, 4, 5)
}

// hgxH100 is the H100 board in a server of another maker: a GPU and a NIC
// behind each of eight PCIe switches (PIX), four to a socket (NODE).
func hgxH100(m *maker) {
	singles(m, m.sockets(2, "Xeon-8480+", "upi2", 4), "pcie5")
	m.stripe("NVSwitch-3", 5, 4, 4, 5)
}

// hgxH800 is the same board with GPUs that have eight links, two to each NVSwitch.
func hgxH800(m *maker) {
	singles(m, m.sockets(2, "Xeon-8480+", "upi2", 4), "pcie5")
	m.stripe("NVSwitch-3", 2, 2, 2, 2)
}

// singles hangs eight PCIe switches on two sockets, each with a GPU and a NIC.
func singles(m *maker, cpus []string, link string) {
	for i := range 8 {
		pex := m.pex(m.root(cpus[i/4]), link)
		m.addGPU(pex)
		m.addNIC(pex)
	}
}

// dgxB200 is eight B200 on two NVSwitches, nine links to each (NVIDIA Fabric Manager user guide).
func dgxB200(m *maker) {
	cpus := m.sockets(2, "Xeon-8570", "upi2", 4)
	branches(m, cpus, "pcie5", "pcie5")
	for _, cpu := range cpus {
		m.serviceCard(cpu, "BlueField-3-Dual", "pcie5")
	}
	m.stripe("NVSwitch-4", 9, 9)
}

// dgxB300 is eight B300 on two NVSwitches, each GPU behind its own ConnectX-8,
// whose PCIe 6 switch joins it to a CPU that has PCIe 5.
func dgxB300(m *maker) {
	cpus := m.sockets(2, "Xeon-6776P", "upi3", 4)
	branches(m, cpus, "pcie5", "pcie6")
	for _, cpu := range cpus {
		m.serviceCard(cpu, "BlueField-3-Dual", "pcie5")
	}
	m.stripe("NVSwitch-4", 9, 9)
}

// grandTeton is Meta's server: the H100 board behind four PCIe switches, each
// with two GPUs and two NICs (Open Compute Project, Grand Teton).
func grandTeton(m *maker) {
	pairs(m, m.sockets(2, "Xeon-8480+", "upi2", 4), "pcie5", 2)
	m.stripe("NVSwitch-3", 5, 4, 4, 5)
}
