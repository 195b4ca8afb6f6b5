package catalog

import (
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// Port-to-port latencies. InfiniBand switches cut through; their data sheets
// give 90 ns for EDR, 130 ns for HDR and under 150 ns for NDR. Ethernet chips of
// 25 and 51 Tb/s look deeper into a packet and take 500 to 800 ns.
const (
	ns             = unit.Nanosecond
	chipLatency    = 100 * ns // NVSwitch: "under 300 ns" GPU to GPU includes two links
	quantumLatency = 130 * ns
	fastEthernet   = 500 * ns
	plainEthernet  = 700 * ns
)

// switches lists the switches, ports at the rate of one full cable. A port of a
// twin-port cage (OSFP of Quantum-2) counts as two, as the reference designs do.
func switches() []Switch {
	return []Switch{
		{Name: "SB7800", Ports: 36, Link: "edr", Kind: topo.InfiniBand, Latency: 90 * ns, Watts: 136,
			Price: Price{12000, "2019-06", guess}, Source: "Mellanox SB7800 product brief"},
		{Name: "QM8700", Ports: 40, Link: "hdr", Kind: topo.InfiniBand, Latency: quantumLatency, Split: 2, Watts: 253,
			Price: Price{21000, "2022-06", guess}, Source: "NVIDIA QM8700 data sheet, managed; a port splits into two HDR100"},
		{Name: "QM8790", Ports: 40, Link: "hdr", Kind: topo.InfiniBand, Latency: quantumLatency, Split: 2, Watts: 253,
			Price: Price{19000, "2022-06", guess}, Source: "NVIDIA QM8790 data sheet, unmanaged; a port splits into two HDR100"},
		{Name: "QM9700", Ports: 64, PerCage: 2, Link: "ndr", Kind: topo.InfiniBand, Latency: 150 * ns, Split: 2, Watts: 747,
			Price:  Price{36000, "2024-08", "FS.com's 64-port NDR switch in a public cost sheet of H100 clusters; NVIDIA's own about $50,000"},
			Source: "NVIDIA QM9700 data sheet: 64 ports of 400 Gb/s in 32 cages, 747 W with passive cables; a port splits into two of 200 Gb/s"},
		{Name: "QM9790", Ports: 64, PerCage: 2, Link: "ndr", Kind: topo.InfiniBand, Latency: 150 * ns, Split: 2, Watts: 720,
			Price: Price{33000, "2024-03", guess}, Source: "NVIDIA QM9790 data sheet, unmanaged"},
		{Name: "Q3400", Units: 4, Ports: 144, PerCage: 2, Link: "xdr", Kind: topo.InfiniBand, Latency: 150 * ns, Split: 2, Watts: 4000,
			Price:  Price{110000, "2025-09", "estimate from QM9700's price by throughput"},
			Source: "NVIDIA Quantum-X800 Q3400-RA data sheet: 144 ports of 800 Gb/s in 72 cages; power estimated"},

		{Name: "SN4600C", Units: 2, Ports: 64, Link: "100gbe", Kind: topo.Ethernet, Latency: fastEthernet, Watts: 466,
			Price: Price{25000, "2022-06", guess}, Source: "NVIDIA SN4600C data sheet"},
		{Name: "SN2201", Ports: 48, Link: "1gbe", Kind: topo.Ethernet, Latency: 1000 * ns, Watts: 98,
			Price: Price{4000, "2023-06", guess}, Source: "NVIDIA SN2201 data sheet: 48 of 1 Gb/s; four uplinks of 100 Gb/s besides"},
		{Name: "SN5600", Units: 2, Ports: 64, Link: "800gbe", Kind: topo.Ethernet, Latency: fastEthernet, Split: 4, Watts: 940,
			Price:  Price{55000, "2024-06", guess},
			Source: "NVIDIA SN5600 data sheet: 64 ports of 800 Gb/s; a port splits into two of 400 or four of 200"},
		{Name: "SN5600-400", Units: 2, Ports: 128, Link: "400gbe", Kind: topo.Ethernet, Latency: fastEthernet, Split: 2, Watts: 940,
			Price: Price{55000, "2024-06", guess}, Source: "SN5600 with every port split into two of 400 Gb/s"},
		{Name: "TH3", Ports: 32, Link: "400gbe", Kind: topo.Ethernet, Latency: plainEthernet, Split: 2, Watts: 500,
			Price: Price{18000, "2021-06", guess}, Source: "Broadcom Tomahawk 3, 12.8 Tb/s; power estimated"},
		{Name: "TH4", Units: 2, Ports: 64, Link: "400gbe", Kind: topo.Ethernet, Latency: plainEthernet, Split: 2, Watts: 900,
			Price: Price{30000, "2023-06", guess}, Source: "Broadcom Tomahawk 4, 25.6 Tb/s, such as Arista 7060DX5-64; power estimated"},
		{Name: "TH4-200", Units: 2, Ports: 128, Link: "200gbe", Kind: topo.Ethernet, Latency: plainEthernet, Split: 2, Watts: 900,
			Price: Price{30000, "2023-06", guess}, Source: "Tomahawk 4 with every port split into two of 200 Gb/s"},
		{Name: "TH5", Units: 2, Ports: 64, Link: "800gbe", Kind: topo.Ethernet, Latency: plainEthernet, Split: 4, Watts: 1100,
			Price:  Price{48000, "2024-06", guess},
			Source: "Broadcom Tomahawk 5, 51.2 Tb/s: 64 x 800, 128 x 400 or 256 x 200 Gb/s, such as Arista 7060X6-64PE; power estimated"},
		{Name: "TH5-400", Units: 2, Ports: 128, Link: "400gbe", Kind: topo.Ethernet, Latency: plainEthernet, Split: 2, Watts: 1100,
			Price:  Price{48000, "2024-06", guess},
			Source: "Tomahawk 5 with every port split into two of 400 Gb/s, as in Alibaba HPN (Qian et al., SIGCOMM 2024)"},
		{Name: "7800R3", Units: 32, Ports: 576, Link: "400gbe", Kind: topo.Ethernet, Latency: 3500 * ns, Watts: 25000,
			Price:  Price{900000, "2024-03", guess},
			Source: "Arista 7816R3 modular switch, 16 line cards of 36 ports; the spine of Meta's 24K RoCE cluster is of this class; power estimated"},
		{Name: "Slingshot-200", Ports: 64, Link: "200gbe", Kind: topo.Ethernet, Latency: 350 * ns, Watts: 250,
			Price:  Price{25000, "2022-06", "estimate from QM8700's price by throughput"},
			Source: "De Sensi et al., SC20: Rosetta, 64 ports of 200 Gb/s, 350 ns; power estimated"},

		{Name: "NVSwitch-1", Ports: 18, Link: "nvlink2", Kind: topo.NVLink, Latency: chipLatency, Watts: 100,
			Source: "NVIDIA NVSwitch whitepaper 2018: 18 ports, 900 GB/s both ways; power estimated; part of DGX-2"},
		{Name: "NVSwitch-2", Ports: 36, Link: "nvlink3", Kind: topo.NVLink, Latency: chipLatency, Watts: 100,
			Source: "NVIDIA A100 whitepaper 2020: 36 ports, 1.8 TB/s both ways; power estimated; part of DGX A100"},
		{Name: "NVSwitch-3", Ports: 64, Link: "nvlink4", Kind: topo.NVLink, Latency: chipLatency, Watts: 150,
			Source: "NVIDIA at Hot Chips 34: 64 ports, 3.2 TB/s both ways; power estimated; part of DGX H100"},
		{Name: "NVSwitch-4", Ports: 72, Link: "nvlink5", Kind: topo.NVLink, Latency: chipLatency, Watts: 350,
			Price:  Price{12000, "2025-03", "estimate: half a switch tray of an NVL72 rack"},
			Source: "NVIDIA GB200 NVL72 2024: 72 ports, 7.2 TB/s both ways; power estimated"},
	}
}
