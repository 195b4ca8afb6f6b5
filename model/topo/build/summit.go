package build

import "github.com/weft-fabric/weft/model/topo"

// summit is the POWER9 node of Summit (IBM AC922): three V100 to a socket, all
// four of a socket joined by two NVLinks each, the CPU among them, so that a
// GPU's way into the host is NVLink and not PCIe.
//
//	     gpu0                       every line two NVLinks, 50 GB/s each way
//	    ╱ │  ╲
//	gpu1 ─┼─ gpu2    ═X-Bus═  cpu1 with gpu3 gpu4 gpu5
//	    ╲ │  ╱
//	     cpu0 ─ root0 ─ nic0        eight PCIe 4 lanes of one dual-port card, eight more to cpu1
func summit(m *maker) {
	for s, cpu := range m.sockets(2, "POWER9", "xbus", 1) {
		for range 3 {
			m.add("gpu", Device{Kind: topo.GPU, Model: m.gpu.Name})
		}
		for a := range 3 {
			m.join(cpu, gpu(3*s+a), m.gpu.Link, 2)
			for b := a + 1; b < 3; b++ {
				m.join(gpu(3*s+a), gpu(3*s+b), m.gpu.Link, 2)
			}
		}
		m.add("nic", Device{Kind: topo.NIC, Model: m.nic.Name, Parent: m.root(cpu), Link: m.nic.PCIe, Lanes: m.nic.Lanes / 2, Rail: s})
	}
}
