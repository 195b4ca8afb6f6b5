package catalog

import (
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// Line codes, error correction included.
var (
	code8b10b    = Encoding{8, 10}    // PCIe 1-2, InfiniBand to QDR, gigabit Ethernet
	code64b66b   = Encoding{64, 66}   // NVLink 2-3, InfiniBand FDR and EDR, Ethernet of 10 and 25 Gb/s a lane
	code128b130b = Encoding{128, 130} // PCIe 3-5
	codePAM4     = Encoding{16, 17}   // 256b/257b inside RS(544,514): 256/257 x 514/544; NVLink 4-5, HDR to XDR, Ethernet from 50 Gb/s a lane
	flit256      = Encoding{236, 256} // PCIe 6: 236 bytes of packets in a flit of 256, the rest framing, CRC and error correction
	upiFlit      = Encoding{64, 80}   // QPI and UPI: 8 bytes of data in a flit of 80 bits
)

// Latencies of one link, port to port: the wire, both SerDes and, where there
// is one, the error correction. Switch.Latency and NIC.Latency come on top.
// They rank paths and bound budgets; programs see several times as much (the
// slope of a ring step is 0.78 us on H100 and 1.05 us on A100, software included).
const (
	// A small PCIe read and its answer take some 500 ns on Xeon servers
	// (Neugebauer et al., SIGCOMM 2018); one way is half of that.
	pcieLatency = 250 * unit.Nanosecond
	// Estimate: a load from a peer's memory takes about 1 us in all, against 0.5 us
	// from local memory; one way is half of the difference.
	nvlinkLatency = 250 * unit.Nanosecond
	// Estimate: a load from the other socket costs some 100 ns more than a local
	// one; one way is half of that.
	smpLatency = 50 * unit.Nanosecond
	// Computed: the usual length of cable and two SerDes of some 20 ns.
	wireLatency = topo.WireMetres*topo.PerMetre + 40*unit.Nanosecond
	// The same and some 100 ns for RS(544,514), which PAM4 needs.
	fecLatency = wireLatency + 100*unit.Nanosecond
)

const (
	srcPCIe     Source = "PCI Express base specification"
	srcNVLink   Source = "NVIDIA architecture whitepapers: P100 2016, V100 2017, A100 2020, H100 2022, Blackwell 2024"
	srcRaw      Source = "; the lane rate is what `nvidia-smi nvlink -s` prints before the code: "
	srcIB       Source = "InfiniBand Trade Association architecture specification"
	srcEthernet Source = "IEEE 802.3"
)

// links lists the link generations. Efficiencies are measured bus bandwidths
// of large NCCL rings over the computed rate: NVIDIA GTC24 S62129, GTC25 S72583.
func links() []Link {
	gb := func(v float64) unit.BitRate { return unit.BitRate(v * 1e9) }
	return []Link{
		{Gen: "pcie1", Kind: topo.PCIe, LaneRate: gb(2.5), Lanes: 16, Encoding: code8b10b, Latency: pcieLatency, Source: srcPCIe + " 1.1"},
		{Gen: "pcie2", Kind: topo.PCIe, LaneRate: gb(5), Lanes: 16, Encoding: code8b10b, Latency: pcieLatency, Source: srcPCIe + " 2.0"},
		{Gen: "pcie3", Kind: topo.PCIe, LaneRate: gb(8), Lanes: 16, Encoding: code128b130b, Latency: pcieLatency, Efficiency: 12 / 15.75,
			Source: srcPCIe + " 3.0; efficiency from the 12 GB/s NCCL counts with"},
		{Gen: "pcie4", Kind: topo.PCIe, LaneRate: gb(16), Lanes: 16, Encoding: code128b130b, Latency: pcieLatency, Efficiency: 24 / 31.5,
			Source: srcPCIe + " 4.0"},
		{Gen: "pcie5", Kind: topo.PCIe, LaneRate: gb(32), Lanes: 16, Encoding: code128b130b, Latency: pcieLatency, Efficiency: 48 / 63.0,
			Source: srcPCIe + " 5.0"},
		{Gen: "pcie6", Kind: topo.PCIe, LaneRate: gb(64), Lanes: 16, Encoding: flit256, Latency: pcieLatency, Efficiency: 96 / 118.0,
			Source: srcPCIe + " 6.0"},

		{Gen: "nvlink1", Kind: topo.NVLink, LaneRate: gb(20), Lanes: 8, Latency: nvlinkLatency, Efficiency: 18 / 20.0,
			Source: srcNVLink + "; 20 Gb/s a lane behind its code; efficiency from the 18 GB/s NCCL counts with"},
		{Gen: "nvlink2", Kind: topo.NVLink, LaneRate: gb(25.78125), Lanes: 8, Encoding: code64b66b, Latency: nvlinkLatency, Efficiency: 22.4 / 25,
			Source: srcNVLink + srcRaw + "25.781 GB/s"},
		{Gen: "nvlink3", Kind: topo.NVLink, LaneRate: gb(50), Lanes: 4, Latency: nvlinkLatency, Efficiency: 232.0 / 300,
			Source: srcNVLink + "; 50 Gb/s a lane behind its code"},
		{Gen: "nvlink4", Kind: topo.NVLink, LaneRate: gb(106.25), Lanes: 2, Encoding: codePAM4, Latency: nvlinkLatency, Efficiency: 370.0 / 450,
			Source: srcNVLink + srcRaw + "26.562 GB/s"},
		{Gen: "nvlink5", Kind: topo.NVLink, LaneRate: gb(212.5), Lanes: 2, Encoding: codePAM4, Latency: nvlinkLatency, Efficiency: 700.0 / 900,
			Source: srcNVLink + srcRaw + "53.125 GB/s"},
		{Gen: "c2c", Kind: topo.C2C, LaneRate: gb(40), Lanes: 90, Latency: smpLatency,
			Source: "NVIDIA Grace Hopper whitepaper 2023: 900 GB/s both ways; ten blocks of nine lanes at 40 Gb/s (ISSCC 2023)"},
		{Gen: "xgmi3", Kind: topo.XGMI, LaneRate: gb(32), Lanes: 16, Latency: nvlinkLatency, Efficiency: 48 / 64.0,
			Source: "AMD Instinct MI300X data sheet 2023: seven links of 128 GB/s both ways; 48 GB/s of each are data (ROCm blogs, 2025-03-02)"},
		{Gen: "xgmi4", Kind: topo.XGMI, LaneRate: gb(38.4), Lanes: 16, Latency: nvlinkLatency, Efficiency: 48 / 64.0,
			Source: "AMD CDNA 4 whitepaper 2025: seven links of 153.6 GB/s both ways; data taken to be as much of them as of xgmi3"},
		{Gen: "ici4", Kind: topo.ICI, LaneRate: gb(100), Lanes: 4, Latency: nvlinkLatency,
			Source: "Jouppi et al., ISCA 2023, table 4: six links of 50 GB/s a chip; lanes as in the 400 Gb/s optics"},

		{Gen: "qpi", Kind: topo.SMP, LaneRate: gb(9.6), Lanes: 20, Encoding: upiFlit, Latency: smpLatency,
			Source: "Intel Xeon E5 v4 data sheet 2016: 9.6 GT/s, 19.2 GB/s"},
		{Gen: "upi1", Kind: topo.SMP, LaneRate: gb(10.4), Lanes: 20, Encoding: upiFlit, Latency: smpLatency,
			Source: "Intel Xeon Scalable data sheet 2017: 10.4 GT/s, 20.8 GB/s"},
		{Gen: "upi2", Kind: topo.SMP, LaneRate: gb(16), Lanes: 24, Encoding: upiFlit, Latency: smpLatency,
			Source: "Intel Xeon Scalable 4th generation 2023: 16 GT/s, 24 lanes"},
		{Gen: "upi3", Kind: topo.SMP, LaneRate: gb(24), Lanes: 24, Encoding: upiFlit, Latency: smpLatency,
			Source: "Intel Xeon 6 2024: 24 GT/s, 24 lanes"},
		{Gen: "xgmi2-cpu", Kind: topo.SMP, LaneRate: gb(18), Lanes: 16, Latency: smpLatency,
			Source: "AMD EPYC 7002 2019: 18 GT/s, 16 lanes a link, up to four links between sockets"},
		{Gen: "xgmi3-cpu", Kind: topo.SMP, LaneRate: gb(32), Lanes: 16, Latency: smpLatency,
			Source: "AMD EPYC 9004 2022: 32 GT/s, 16 lanes a link, up to four links between sockets"},
		{Gen: "xbus", Kind: topo.SMP, LaneRate: gb(16), Lanes: 32, Latency: smpLatency,
			Source: "IBM POWER9 2017: X-Bus of 4 bytes at 16 GT/s, 64 GB/s each way"},
		{Gen: "cnvlink", Kind: topo.SMP, LaneRate: gb(25), Lanes: 16, Latency: smpLatency,
			Source: "coherent NVLink between Grace CPUs over sixteen lanes that PCIe 5 would else use (NVIDIA at Hot Chips 34); the rate of 50 GB/s each way is an estimate"},
		{Gen: "iomesh", Kind: topo.SMP, LaneRate: gb(2), Lanes: 512, Latency: smpLatency,
			Source: "a root port or NUMA node on its chip's own fabric: 64 bytes a clock at about 2 GHz (AMD EPYC I/O die; Intel's mesh is of the same size)"},

		{Gen: "sdr", Kind: topo.InfiniBand, LaneRate: gb(2.5), Lanes: 4, Encoding: code8b10b, Latency: wireLatency, Source: srcIB},
		{Gen: "ddr", Kind: topo.InfiniBand, LaneRate: gb(5), Lanes: 4, Encoding: code8b10b, Latency: wireLatency, Source: srcIB},
		{Gen: "qdr", Kind: topo.InfiniBand, LaneRate: gb(10), Lanes: 4, Encoding: code8b10b, Latency: wireLatency, Source: srcIB},
		{Gen: "fdr10", Kind: topo.InfiniBand, LaneRate: gb(10.3125), Lanes: 4, Encoding: code64b66b, Latency: wireLatency,
			Source: "Mellanox, FDR10: 10.3125 Gb/s a lane"},
		{Gen: "fdr", Kind: topo.InfiniBand, LaneRate: gb(14.0625), Lanes: 4, Encoding: code64b66b, Latency: wireLatency, Source: srcIB},
		{Gen: "edr", Kind: topo.InfiniBand, LaneRate: gb(25.78125), Lanes: 4, Encoding: code64b66b, Latency: wireLatency, Source: srcIB},
		{Gen: "hdr100", Kind: topo.InfiniBand, LaneRate: gb(53.125), Lanes: 2, Encoding: codePAM4, Latency: fecLatency, Source: srcIB},
		{Gen: "hdr", Kind: topo.InfiniBand, LaneRate: gb(53.125), Lanes: 4, Encoding: codePAM4, Latency: fecLatency, Efficiency: 24 / 25.0,
			Source: srcIB},
		{Gen: "ndr200", Kind: topo.InfiniBand, LaneRate: gb(106.25), Lanes: 2, Encoding: codePAM4, Latency: fecLatency, Source: srcIB},
		{Gen: "ndr", Kind: topo.InfiniBand, LaneRate: gb(106.25), Lanes: 4, Encoding: codePAM4, Latency: fecLatency, Efficiency: 48 / 50.0,
			Source: srcIB},
		{Gen: "xdr400", Kind: topo.InfiniBand, LaneRate: gb(212.5), Lanes: 2, Encoding: codePAM4, Latency: fecLatency, Source: srcIB},
		{Gen: "xdr", Kind: topo.InfiniBand, LaneRate: gb(212.5), Lanes: 4, Encoding: codePAM4, Latency: fecLatency, Source: srcIB},

		{Gen: "1gbe", Kind: topo.Ethernet, LaneRate: gb(1.25), Lanes: 1, Encoding: code8b10b, Latency: wireLatency, Source: srcEthernet + "z"},
		{Gen: "10gbe", Kind: topo.Ethernet, LaneRate: gb(10.3125), Lanes: 1, Encoding: code64b66b, Latency: wireLatency,
			Source: srcEthernet + "ae"},
		{Gen: "25gbe", Kind: topo.Ethernet, LaneRate: gb(25.78125), Lanes: 1, Encoding: code64b66b, Latency: wireLatency,
			Source: srcEthernet + "by"},
		{Gen: "40gbe", Kind: topo.Ethernet, LaneRate: gb(10.3125), Lanes: 4, Encoding: code64b66b, Latency: wireLatency,
			Source: srcEthernet + "ba"},
		{Gen: "50gbe", Kind: topo.Ethernet, LaneRate: gb(53.125), Lanes: 1, Encoding: codePAM4, Latency: fecLatency, Source: srcEthernet + "cd"},
		{Gen: "100gbe", Kind: topo.Ethernet, LaneRate: gb(25.78125), Lanes: 4, Encoding: code64b66b, Latency: wireLatency, Efficiency: 10 / 12.5,
			Source: srcEthernet + "bj; efficiency over sockets"},
		{Gen: "200gbe", Kind: topo.Ethernet, LaneRate: gb(53.125), Lanes: 4, Encoding: codePAM4, Latency: fecLatency, Efficiency: 24 / 25.0,
			Source: srcEthernet + "bs"},
		{Gen: "400gbe", Kind: topo.Ethernet, LaneRate: gb(106.25), Lanes: 4, Encoding: codePAM4, Latency: fecLatency, Efficiency: 48 / 50.0,
			Source: srcEthernet + "ck"},
		{Gen: "800gbe", Kind: topo.Ethernet, LaneRate: gb(106.25), Lanes: 8, Encoding: codePAM4, Latency: fecLatency, Source: srcEthernet + "df"},
	}
}
