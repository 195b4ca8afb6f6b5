package catalog

// Rents of the GPUs that many clouds let, for one GPU and hour on demand. AWS
// lowered its own in June 2025 and stays above the middle of the market.
const (
	rentH100 Source = "median of 37 providers on demand, AIMultiple cloud GPU index; AWS p5.48xlarge is $6.88"
	rentH200 Source = "$3.50 to $4.50 at GPU clouds, $4.50 to $7 at large ones, Mercatus cloud GPU pricing; AWS p5en.48xlarge is $7.91"
	rentA100 Source = "$1.10 to $1.50 at GPU clouds, $1.50 to $3 at large ones, Mercatus cloud GPU pricing; AWS p4de.24xlarge is $3.43"
)

// hosts lists the servers that topo/build can wire. Watts are the most the
// whole machine draws; prices are for the whole machine with its GPUs.
func hosts() []Host {
	return []Host{
		{Name: "pcie-8", GPU: "A100-PCIe", GPUs: 8, NIC: "ConnectX-6", NICs: 2, Units: 4, Watts: 4000,
			Price:  Price{120000, "2023-06", "eight-GPU A100 PCIe server, quoted at $120,000 to $150,000"},
			Rent:   Price{1.5, "2026-05", rentA100},
			Source: "two-socket 4U server with eight cards on root ports, such as Supermicro AS-4125GS-TNRT"},
		{Name: "pcie-8-plx", GPU: "A100-PCIe", GPUs: 8, NIC: "ConnectX-6", NICs: 2, Units: 4, Watts: 4200,
			Price:  Price{130000, "2023-06", "eight-GPU A100 PCIe server, quoted at $120,000 to $150,000"},
			Source: "two-socket 4U server with four cards behind each of two PCIe switches, such as Supermicro AS-4125GS-TNHR2-LCC and SYS-420GP-TNR"},
		{Name: "l40s-8", GPU: "L40S", GPUs: 8, NIC: "ConnectX-6", NICs: 4, Units: 4, Watts: 4500,
			Price: Price{110000, "2024-03", guess}, Source: "OVX-class two-socket server with eight L40S, two behind each PCIe switch"},
		{Name: "rtx-pro-6000-8", GPU: "RTX-PRO-6000", GPUs: 8, NIC: "ConnectX-7", NICs: 4, Units: 4, Watts: 7000,
			Price: Price{130000, "2025-06", guess}, Source: "RTX PRO server: two-socket MGX server with eight RTX PRO 6000, two behind each PCIe switch"},
		{Name: "aws-p4d", GPU: "A100-SXM-40GB", GPUs: 8, NIC: "EFA-100", NICs: 4, Units: 6, Watts: 6500,
			Rent: Price{2.75, "2025-06", "AWS p4d.24xlarge on demand, $21.96 for eight"}, Source: "AWS p4d.24xlarge: 4 x 100 Gb/s EFA; its NCCL topology file in aws-ofi-nccl; rented, never sold"},
		{Name: "aws-p4de", GPU: "A100-SXM-80GB", GPUs: 8, NIC: "EFA-100", NICs: 4, Units: 6, Watts: 6500,
			Rent: Price{3.43, "2025-06", "AWS p4de.24xlarge on demand, $27.45 for eight"}, Source: "AWS p4de.24xlarge: 4 x 100 Gb/s EFA; rented, never sold"},
		{Name: "aws-p5", GPU: "H100-SXM", GPUs: 8, NIC: "EFA-100", NICs: 32, Units: 8, Watts: 10200,
			Rent: Price{6.88, "2025-06", "AWS p5.48xlarge on demand, $55.04 for eight"}, Source: "AWS p5.48xlarge: 32 x 100 Gb/s EFA; rented, never sold"},
		{Name: "aws-p5en", GPU: "H200", GPUs: 8, NIC: "EFA-200", NICs: 16, Units: 8, Watts: 10200,
			Rent: Price{7.91, "2025-06", "AWS p5en.48xlarge, $63.30 for eight"}, Source: "AWS p5en.48xlarge: 16 x 200 Gb/s EFA; rented, never sold"},
		{Name: "dgx-1p", GPU: "P100-SXM", GPUs: 8, NIC: "ConnectX-4", NICs: 4, Units: 3, Watts: 3200,
			Price: Price{129000, "2016-04", "NVIDIA list price at launch"}, Rent: Price{1.46, "2018-06", "Google Cloud, P100"},
			Source: "NVIDIA DGX-1 data sheet 2016"},
		{Name: "dgx-1v", GPU: "V100-SXM", GPUs: 8, NIC: "ConnectX-4", NICs: 4, Units: 3, Watts: 3500,
			Price: Price{149000, "2017-05", "NVIDIA list price at launch"}, Rent: Price{3.9, "2019-06", "AWS p3dn.24xlarge, $31.21 for eight"},
			Source: "NVIDIA DGX-1 with Tesla V100 whitepaper 2017"},
		{Name: "summit", GPU: "V100-SXM-16GB", GPUs: 6, NIC: "ConnectX-5-Summit", NICs: 2, Units: 2, Watts: 2200,
			Price: Price{100000, "2018-06", "estimate: CORAL contract over 4,608 nodes less storage"}, Source: "IBM Power System AC922 redbook REDP-5494; OLCF Summit user guide"},
		{Name: "dgx-2", GPU: "V100-SXM", GPUs: 16, NIC: "ConnectX-5", NICs: 8, Units: 10, Watts: 10000,
			Price: Price{399000, "2018-03", "NVIDIA list price at launch"}, Rent: Price{3.9, "2019-06", "AWS p3dn.24xlarge, $31.21 for eight V100"},
			Source: "NVIDIA DGX-2 data sheet 2018"},
		{Name: "dgx-a100", GPU: "A100-SXM-80GB", GPUs: 8, NIC: "ConnectX-6", NICs: 8, Units: 6, Watts: 6500,
			Price: Price{200000, "2021-05", "NVIDIA launch price $199,000 (2020-05, 320 GB); resellers asked $200,000 to $250,000"}, Rent: Price{1.5, "2026-05", rentA100},
			Source: "NVIDIA DGX A100 data sheet 2021"},
		{Name: "hgx-a100", GPU: "A100-SXM-80GB", GPUs: 8, NIC: "ConnectX-6", NICs: 8, Units: 6, Watts: 6500,
			Price: Price{170000, "2023-06", guess}, Rent: Price{1.5, "2026-05", rentA100},
			Source: "NVIDIA HGX A100 platform 2021"},
		{Name: "dgx-h100", GPU: "H100-SXM", GPUs: 8, NIC: "ConnectX-7", NICs: 8, Shared: 2, Units: 8, Watts: 10200,
			Price: Price{400000, "2024-03", "between the $270,000 analysts reckoned in 2023 and the $500,000 that resellers asked"}, Rent: Price{2.95, "2026-05", rentH100},
			Source: "NVIDIA DGX H100 data sheet 2023"},
		{Name: "hgx-h100", GPU: "H100-SXM", GPUs: 8, NIC: "ConnectX-7", NICs: 8, Units: 8, Watts: 10200,
			Price: Price{310000, "2024-08", "server of another maker with eight NDR adapters, quoted at $317,000 (Thinkmate)"}, Rent: Price{2.95, "2026-05", rentH100},
			Source: "NVIDIA HGX H100 platform 2023"},
		{Name: "dgx-h200", GPU: "H200", GPUs: 8, NIC: "ConnectX-7", NICs: 8, Shared: 2, Units: 8, Watts: 10200,
			Price: Price{420000, "2024-11", guess}, Rent: Price{4, "2026-05", rentH200},
			Source: "NVIDIA DGX H200 data sheet 2024"},
		{Name: "dgx-b200", GPU: "B200", GPUs: 8, NIC: "ConnectX-7", NICs: 8, Shared: 2, Units: 10, Watts: 14300,
			Price: Price{515000, "2025-03", guess}, Rent: Price{14.24, "2025-06", "AWS p6-b200.48xlarge, $113.93 for eight"},
			Source: "NVIDIA DGX B200 data sheet 2024"},
		{Name: "dgx-b300", GPU: "B300", GPUs: 8, NIC: "ConnectX-8", NICs: 8, Units: 10, Watts: 14500,
			Price: Price{600000, "2025-09", guess}, Source: "NVIDIA DGX B300 data sheet 2025"},
		{Name: "gb200", GPU: "GB200", GPUs: 4, NIC: "ConnectX-7", NICs: 4, Units: 1, Watts: 5400,
			Price: Price{160000, "2025-03", "an eighteenth of an NVL72 rack at $3.1 million in the press, less its switch chips"}, Source: "NVIDIA GB200 NVL72 data sheet 2024: compute tray of two Grace and four Blackwell"},
		{Name: "gb300", GPU: "GB300", GPUs: 4, NIC: "ConnectX-8", NICs: 4, Units: 1, Watts: 6200,
			Price: Price{200000, "2025-09", guess}, Source: "NVIDIA GB300 NVL72 data sheet 2025: compute tray of two Grace and four Blackwell Ultra"},
		{Name: "gh200", GPU: "GH200", GPUs: 1, NIC: "ConnectX-7", NICs: 1, Units: 2, Watts: 2000,
			Price: Price{45000, "2024-03", guess}, Source: "NVIDIA MGX GH200 servers, such as Supermicro ARS-111GL-NHR"},
		{Name: "mi300x", GPU: "MI300X", GPUs: 8, NIC: "ConnectX-7-Ethernet", NICs: 8, Units: 8, Watts: 10500,
			Price: Price{220000, "2024-03", guess}, Rent: Price{6, "2024-11", "Azure ND96isr MI300X v5, $48 for eight"},
			Source: "AMD Instinct MI300X platform data sheet 2023"},
		{Name: "tpu-v4", GPU: "TPU-v4", GPUs: 4, NIC: "TPU-host-NIC", NICs: 1, Units: 2, Watts: 1300,
			Rent:   Price{3.22, "2023-06", "Google Cloud TPU v4, one chip"},
			Source: "Jouppi et al., ISCA 2023: four chips a host; rented, never sold"},
		{Name: "grand-teton", GPU: "H100-SXM", GPUs: 8, NIC: "ConnectX-7-Ethernet", NICs: 8, Units: 8, Watts: 10200,
			Price: Price{310000, "2024-08", "server of another maker with eight NDR adapters, quoted at $317,000 (Thinkmate)"}, Rent: Price{2.95, "2026-05", rentH100},
			Source: "Open Compute Project, Grand Teton AI system 2022; Meta 24K clusters 2024"},
	}
}
