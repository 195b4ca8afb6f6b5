package catalog

import "github.com/weft-fabric/weft/model/unit"

// adapterLatency is one adapter's part of the 0.6 to 0.8 us that product briefs
// of ConnectX-5 to -7 give between two programs over one cable: what is left, halved,
// when a posted write over PCIe at each end (some 125 ns) and the wire are taken off.
const adapterLatency = 130 * unit.Nanosecond

// nics lists the network adapters, one entry for each form that hosts below use.
func nics() []NIC {
	return []NIC{
		{Name: "ConnectX-4", Ports: 1, Link: "edr", PCIe: "pcie3", Lanes: 16, Latency: adapterLatency, Watts: 14,
			Price: Price{700, "2017-06", guess}, Source: "Mellanox ConnectX-4 VPI product brief"},
		{Name: "ConnectX-5", Ports: 1, Link: "edr", PCIe: "pcie3", Lanes: 16, Latency: adapterLatency, Watts: 16,
			Price: Price{800, "2019-06", guess}, Source: "Mellanox ConnectX-5 VPI product brief"},
		{Name: "ConnectX-5-Summit", Ports: 2, Link: "edr", PCIe: "pcie4", Lanes: 16, Latency: adapterLatency, Watts: 19,
			Price: Price{1100, "2019-06", guess}, Source: "Mellanox ConnectX-5 Ex product brief; two x8 halves, one to each socket"},
		{Name: "ConnectX-6", Ports: 1, Link: "hdr", PCIe: "pcie4", Lanes: 16, Latency: adapterLatency, Watts: 19.3,
			Price: Price{1200, "2022-06", guess}, Source: "NVIDIA ConnectX-6 VPI product brief"},
		{Name: "ConnectX-6-Dx", Ports: 1, Link: "200gbe", PCIe: "pcie4", Lanes: 16, Latency: adapterLatency, Watts: 22,
			Price: Price{1300, "2022-06", guess}, Source: "NVIDIA ConnectX-6 Dx product brief"},
		{Name: "ConnectX-7", Ports: 1, Link: "ndr", PCIe: "pcie5", Lanes: 16, Latency: adapterLatency, Watts: 24,
			Price: Price{1800, "2024-03", guess}, Source: "NVIDIA ConnectX-7 data sheet"},
		{Name: "ConnectX-7-Ethernet", Ports: 1, Link: "400gbe", PCIe: "pcie5", Lanes: 16, Latency: adapterLatency, Watts: 24,
			Price: Price{1800, "2024-03", guess}, Source: "NVIDIA ConnectX-7 data sheet"},
		{Name: "ConnectX-7-Dual", Ports: 2, Link: "200gbe", PCIe: "pcie5", Lanes: 16, Latency: adapterLatency, Watts: 24,
			Price: Price{1800, "2024-03", guess}, Source: "NVIDIA ConnectX-7 data sheet; the form of dual-plane fabrics such as Alibaba HPN"},
		{Name: "ConnectX-8", Ports: 1, Link: "xdr", PCIe: "pcie6", Lanes: 16, Latency: adapterLatency, Watts: 35,
			Price: Price{3000, "2025-09", guess}, Source: "NVIDIA ConnectX-8 SuperNIC data sheet"},
		{Name: "BlueField-3", Ports: 1, Link: "400gbe", PCIe: "pcie5", Lanes: 16, Latency: adapterLatency, Watts: 75,
			Price: Price{2600, "2024-03", guess}, Source: "NVIDIA BlueField-3 data sheet"},
		{Name: "BlueField-3-Dual", Ports: 2, Link: "ndr200", PCIe: "pcie5", Lanes: 16, Latency: adapterLatency, Watts: 75,
			Price: Price{2600, "2024-03", guess}, Source: "NVIDIA BlueField-3 data sheet"},
		{Name: "EFA-100", Ports: 1, Link: "100gbe", PCIe: "pcie3", Lanes: 16, Latency: 5 * unit.Microsecond, Watts: 25,
			Source: "AWS p4d: four adapters of 100 Gb/s; latency from half of some 15 us between programs less the wire; rented, never sold"},
		{Name: "EFA-200", Ports: 1, Link: "200gbe", PCIe: "pcie5", Lanes: 8, Latency: 4 * unit.Microsecond, Watts: 25,
			Source: "AWS p5e: sixteen adapters of 200 Gb/s; rented, never sold"},
		{Name: "TPU-host-NIC", Ports: 1, Link: "100gbe", PCIe: "pcie3", Lanes: 16, Latency: adapterLatency, Watts: 20,
			Source: "Google TPU v4 host: datacentre network, 100 Gb/s class; never sold"},
	}
}
