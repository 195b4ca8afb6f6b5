package catalog

import "github.com/weft-fabric/weft/model/unit"

// guess marks a price for which no published figure was found: right in its
// order of magnitude, to be overridden by whoever has a quote.
const guess Source = "estimate of the street price; no published figure found"

const (
	pressGPU  Source = "trade press and analysts, within 20 to 40 percent: NVIDIA publishes no list price of GPUs"
	rackShare Source = "a seventy-second of a rack's price in the press, $3.1 million for GB200 NVL72; GB300 estimated from it"
)

// tera gives FLOP/s by type from tera-FLOP/s: "bf16", 312, "fp8", ...
func tera(pairs ...any) map[string]float64 {
	m := make(map[string]float64, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		switch v := pairs[i+1].(type) {
		case int:
			m[pairs[i].(string)] = float64(v) * 1e12
		case float64:
			m[pairs[i].(string)] = v * 1e12
		}
	}
	return m
}

// gpus lists the accelerators. FLOP/s are dense and at boost clock; where a
// brochure prints the sparse figure it is halved here. "fp64" is the better of
// vector and matrix units.
func gpus() []GPU {
	hopper := func() map[string]float64 {
		return tera("fp64", 67, "fp32", 67, "tf32", 494.7, "fp16", 989.4, "bf16", 989.4, "fp8", 1978.9, "int8", 1978.9)
	}
	ampere := func() map[string]float64 {
		return tera("fp64", 19.5, "fp32", 19.5, "tf32", 156, "fp16", 312, "bf16", 312, "int8", 624)
	}
	volta := func() map[string]float64 { return tera("fp64", 7.8, "fp32", 15.7, "fp16", 125) }
	return []GPU{
		{Name: "P100-SXM", Arch: "Pascal", Compute: 60, Memory: 16 * unit.GB, MemoryRate: 732 * unit.GBps,
			Dense: tera("fp64", 5.3, "fp32", 10.6, "fp16", 21.2), Link: "nvlink1", Links: 4, PCIe: "pcie3", Watts: 300,
			Price: Price{9400, "2016-11", guess}, Source: "NVIDIA Tesla P100 data sheet 2016"},
		{Name: "V100-SXM-16GB", Arch: "Volta", Compute: 70, Memory: 16 * unit.GB, MemoryRate: 900 * unit.GBps,
			Dense: volta(), Link: "nvlink2", Links: 6, PCIe: "pcie3", Watts: 300,
			Price: Price{10000, "2018-06", guess}, Source: "NVIDIA Tesla V100 data sheet 2018"},
		{Name: "V100-SXM", Arch: "Volta", Compute: 70, Memory: 32 * unit.GB, MemoryRate: 900 * unit.GBps,
			Dense: volta(), Link: "nvlink2", Links: 6, PCIe: "pcie3", Watts: 300,
			Price: Price{11500, "2018-06", guess}, Source: "NVIDIA Tesla V100 data sheet 2018"},
		{Name: "V100-PCIe", Arch: "Volta", Compute: 70, Memory: 32 * unit.GB, MemoryRate: 900 * unit.GBps,
			Dense: tera("fp64", 7, "fp32", 14, "fp16", 112), PCIe: "pcie3", Watts: 250,
			Price: Price{9000, "2018-06", guess}, Source: "NVIDIA Tesla V100 data sheet 2018"},
		{Name: "A100-SXM-40GB", Arch: "Ampere", Compute: 80, Memory: 40 * unit.GB, MemoryRate: 1555 * unit.GBps,
			Dense: ampere(), Link: "nvlink3", Links: 12, PCIe: "pcie4", Watts: 400,
			Price: Price{12000, "2021-06", guess}, Source: "NVIDIA A100 data sheet 2021"},
		{Name: "A100-SXM-80GB", Arch: "Ampere", Compute: 80, Memory: 80 * unit.GB, MemoryRate: 2039 * unit.GBps,
			Dense: ampere(), Link: "nvlink3", Links: 12, PCIe: "pcie4", Watts: 400,
			Price: Price{17000, "2023-06", guess}, Source: "NVIDIA A100 data sheet 2021"},
		{Name: "A800-SXM", Arch: "Ampere", Compute: 80, Memory: 80 * unit.GB, MemoryRate: 2039 * unit.GBps,
			Dense: ampere(), Link: "nvlink3", Links: 8, PCIe: "pcie4", Watts: 400,
			Price: Price{17000, "2023-06", guess}, Source: "NVIDIA A800: A100 with eight links, 400 GB/s both ways"},
		{Name: "A100-PCIe", Arch: "Ampere", Compute: 80, Memory: 80 * unit.GB, MemoryRate: 1935 * unit.GBps,
			Dense: ampere(), PCIe: "pcie4", Watts: 300,
			Price:  Price{15000, "2023-06", guess},
			Source: "NVIDIA A100 data sheet 2021; the bridge that joins two cards is sold apart and not counted"},
		{Name: "A10", Arch: "Ampere", Compute: 86, Memory: 24 * unit.GB, MemoryRate: 600 * unit.GBps,
			Dense: tera("fp32", 31.2, "tf32", 62.5, "fp16", 125, "bf16", 125, "int8", 250), PCIe: "pcie4", Watts: 150,
			Price: Price{2800, "2022-06", guess}, Source: "NVIDIA A10 data sheet 2021"},
		{Name: "RTX-4090", Arch: "Ada", Compute: 89, Memory: 24 * unit.GB, MemoryRate: 1008 * unit.GBps,
			Dense: tera("fp32", 82.6, "tf32", 82.6, "fp16", 165.2, "bf16", 165.2, "fp8", 330.3, "int8", 660.6), PCIe: "pcie4", Watts: 450,
			Price: Price{1599, "2022-10", "NVIDIA list price at launch"}, Source: "NVIDIA Ada whitepaper 2022, sums in fp32"},
		{Name: "L40S", Arch: "Ada", Compute: 89, Memory: 48 * unit.GB, MemoryRate: 864 * unit.GBps,
			Dense: tera("fp32", 91.6, "tf32", 183, "fp16", 362, "bf16", 362, "fp8", 733, "int8", 733), PCIe: "pcie4", Watts: 350,
			Price: Price{8000, "2024-01", guess}, Source: "NVIDIA L40S data sheet 2023"},
		{Name: "RTX-PRO-6000", Arch: "Blackwell", Compute: 120, Memory: 96 * unit.GB, MemoryRate: 1597 * unit.GBps,
			Dense: tera("fp32", 120, "tf32", 252, "fp16", 504, "bf16", 504, "fp8", 1008, "fp4", 2015), PCIe: "pcie5", Watts: 600,
			Price: Price{8500, "2025-06", guess}, Source: "NVIDIA RTX PRO 6000 Blackwell Server Edition data sheet 2025"},
		{Name: "H100-SXM", Arch: "Hopper", Compute: 90, Memory: 80 * unit.GB, MemoryRate: 3352 * unit.GBps,
			Dense: hopper(), Link: "nvlink4", Links: 18, PCIe: "pcie5", Watts: 700,
			Price: Price{30000, "2024-03", pressGPU}, Source: "NVIDIA H100 data sheet 2023"},
		{Name: "H100-PCIe", Arch: "Hopper", Compute: 90, Memory: 80 * unit.GB, MemoryRate: 2039 * unit.GBps,
			Dense: tera("fp64", 51, "fp32", 51, "tf32", 378, "fp16", 756, "bf16", 756, "fp8", 1513, "int8", 1513), PCIe: "pcie5", Watts: 350,
			Price:  Price{28000, "2024-03", guess},
			Source: "NVIDIA H100 data sheet 2023; the bridge that joins two cards is sold apart and not counted"},
		{Name: "H800-SXM", Arch: "Hopper", Compute: 90, Memory: 80 * unit.GB, MemoryRate: 3352 * unit.GBps,
			Dense: tera("fp64", 1, "fp32", 67, "tf32", 494.7, "fp16", 989.4, "bf16", 989.4, "fp8", 1978.9, "int8", 1978.9),
			Link:  "nvlink4", Links: 8, PCIe: "pcie5", Watts: 700,
			Price: Price{30000, "2023-10", guess}, Source: "NVIDIA H800: H100 with eight links, 400 GB/s both ways, and little fp64"},
		{Name: "H20", Arch: "Hopper", Compute: 90, Memory: 96 * unit.GB, MemoryRate: 4000 * unit.GBps,
			Dense: tera("fp64", 1, "fp32", 44, "tf32", 74, "fp16", 148, "bf16", 148, "fp8", 296, "int8", 296),
			Link:  "nvlink4", Links: 18, PCIe: "pcie5", Watts: 500,
			Price: Price{13000, "2024-06", guess}, Source: "NVIDIA H20 as reported by the press 2023; 500 W as nvidia-smi shows"},
		{Name: "H200", Arch: "Hopper", Compute: 90, Memory: 141 * unit.GB, MemoryRate: 4800 * unit.GBps,
			Dense: hopper(), Link: "nvlink4", Links: 18, PCIe: "pcie5", Watts: 700,
			Price: Price{35000, "2024-11", pressGPU}, Source: "NVIDIA H200 data sheet 2024"},
		{Name: "GH200", Arch: "Hopper", Compute: 90, Memory: 96 * unit.GB, MemoryRate: 4000 * unit.GBps,
			Dense: hopper(), Link: "nvlink4", Links: 18, PCIe: "pcie5", Watts: 700,
			Price: Price{35000, "2024-03", guess}, Source: "NVIDIA GH200 data sheet 2023, HBM3 form; the GPU's part of 1000 W"},
		{Name: "B200", Arch: "Blackwell", Compute: 100, Memory: 180 * unit.GB, MemoryRate: 8000 * unit.GBps,
			Dense: tera("fp64", 37, "fp32", 75, "tf32", 1125, "fp16", 2250, "bf16", 2250, "fp8", 4500, "int8", 4500, "fp4", 9000),
			Link:  "nvlink5", Links: 18, PCIe: "pcie5", Watts: 1000,
			Price: Price{40000, "2025-03", pressGPU}, Source: "NVIDIA HGX B200 and DGX B200 data sheets 2024"},
		{Name: "GB200", Arch: "Blackwell", Compute: 100, Memory: 186 * unit.GB, MemoryRate: 8000 * unit.GBps,
			Dense: tera("fp64", 40, "fp32", 80, "tf32", 1250, "fp16", 2500, "bf16", 2500, "fp8", 5000, "int8", 5000, "fp4", 10000),
			Link:  "nvlink5", Links: 18, PCIe: "pcie5", Watts: 1200,
			Price: Price{43000, "2025-03", rackShare}, Source: "NVIDIA GB200 NVL72 data sheet 2024, a seventy-second of it"},
		{Name: "B300", Arch: "Blackwell", Compute: 103, Memory: 288 * unit.GB, MemoryRate: 8000 * unit.GBps,
			Dense: tera("fp64", 1.25, "fp32", 75, "tf32", 1125, "fp16", 2250, "bf16", 2250, "fp8", 4500, "int8", 125, "fp4", 13125),
			Link:  "nvlink5", Links: 18, PCIe: "pcie6", Watts: 1100,
			Price: Price{50000, "2025-09", guess}, Source: "NVIDIA HGX B300 and DGX B300 data sheets 2025"},
		{Name: "GB300", Arch: "Blackwell", Compute: 103, Memory: 288 * unit.GB, MemoryRate: 8000 * unit.GBps,
			Dense: tera("fp64", 1.39, "fp32", 83, "tf32", 1250, "fp16", 2500, "bf16", 2500, "fp8", 5000, "int8", 165, "fp4", 15000),
			Link:  "nvlink5", Links: 18, PCIe: "pcie6", Watts: 1400,
			Price: Price{55000, "2025-09", rackShare}, Source: "NVIDIA GB300 NVL72 data sheet 2025, a seventy-second of it"},
		{Name: "MI300X", Arch: "CDNA3", Memory: 192 * unit.GB, MemoryRate: 5300 * unit.GBps,
			Dense: tera("fp64", 163.4, "fp32", 163.4, "tf32", 653.7, "fp16", 1307.4, "bf16", 1307.4, "fp8", 2614.9, "int8", 2614.9),
			Link:  "xgmi3", Links: 7, PCIe: "pcie5", Watts: 750,
			Price: Price{15000, "2024-03", guess}, Source: "AMD Instinct MI300X data sheet 2023"},
		{Name: "MI325X", Arch: "CDNA3", Memory: 256 * unit.GB, MemoryRate: 6000 * unit.GBps,
			Dense: tera("fp64", 163.4, "fp32", 163.4, "tf32", 653.7, "fp16", 1307.4, "bf16", 1307.4, "fp8", 2614.9, "int8", 2614.9),
			Link:  "xgmi3", Links: 7, PCIe: "pcie5", Watts: 1000,
			Price: Price{20000, "2024-12", guess}, Source: "AMD Instinct MI325X data sheet 2024"},
		{Name: "MI350X", Arch: "CDNA4", Memory: 288 * unit.GB, MemoryRate: 8000 * unit.GBps,
			Dense: tera("fp64", 72.1, "fp32", 144.2, "fp16", 2306.9, "bf16", 2306.9, "fp8", 4613.7, "int8", 4613.7, "fp4", 9227.5),
			Link:  "xgmi4", Links: 7, PCIe: "pcie5", Watts: 1000,
			Price: Price{25000, "2025-06", guess}, Source: "AMD Instinct MI350X data sheet 2025"},
		{Name: "MI355X", Arch: "CDNA4", Memory: 288 * unit.GB, MemoryRate: 8000 * unit.GBps,
			Dense: tera("fp64", 78.6, "fp32", 157.3, "fp16", 2516.6, "bf16", 2516.6, "fp8", 5033.2, "int8", 5033.2, "fp4", 10066.3),
			Link:  "xgmi4", Links: 7, PCIe: "pcie5", Watts: 1400,
			Price: Price{30000, "2025-06", guess}, Source: "AMD Instinct MI355X data sheet 2025"},
		{Name: "TPU-v4", Arch: "TPU v4", Memory: 32 * unit.GiB, MemoryRate: 1200 * unit.GBps,
			Dense: tera("bf16", 275, "int8", 275), Link: "ici4", Links: 6, PCIe: "pcie3", Watts: 192,
			Source: "Jouppi et al., ISCA 2023, table 4; rented, never sold"},
	}
}
