package tune

import "math"

// The numbers of NCCL 2.30.7's cost model, as facts. Latencies in microseconds,
// bandwidths in GB/s of 1e9 bytes.

// algorithm indexes NCCL's algorithms in the order in which ties are broken.
type algorithm int

const (
	tree algorithm = iota
	ring
	collDirect
	collChain
	nvls
	nvlsTree
	pat
	algorithms
)

var algoNames = [algorithms]string{"Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"}

// protocol indexes NCCL's protocols in the order in which ties are broken.
type protocol int

const (
	ll protocol = iota
	ll128
	simple
	protocols
)

var protoNames = [protocols]string{"LL", "LL128", "Simple"}

// generation indexes the columns of NCCL's tables.
type generation int

const (
	volta generation = iota
	ampere
	hopper
	blackwell
	generations
)

var generationNames = [generations]string{"Volta", "Ampere", "Hopper", "Blackwell"}

func (g generation) String() string { return generationNames[g] }

// generationOf follows from the smallest compute capability, times ten.
func generationOf(compute int) generation {
	switch {
	case compute >= 100:
		return blackwell
	case compute >= 90:
		return hopper
	case compute >= 80:
		return ampere
	default:
		return volta
	}
}

var baseLatency = [algorithms][protocols]float64{
	tree: {6.8, 14, 8.4}, ring: {6.6, 14, 8.4}, pat: {8, 8, 8},
}

const (
	hopNVLink = iota
	hopPCI
	hopNet
)

var hopLatency = [3][algorithms][protocols]float64{
	hopNVLink: {tree: {0.6, 1.25, 4}, ring: {0.6, 1.9, 3.4}, collDirect: {0, 0, 3.7}, collChain: {0, 0, 2.8}, nvls: {0, 0, 25},
		nvlsTree: {0, 0, 25}, pat: {0, 0, 4}},
	hopPCI: {tree: {1, 1.9, 4}, ring: {1, 2.5, 5.7}, collDirect: {0, 0, 3.7}, collChain: {0, 0, 2.8}, pat: {0, 0, 4}},
	hopNet: {tree: {5, 8.5, 14}, ring: {2.7, 4, 14}, collDirect: {0, 0, 31}, collChain: {0, 0, 30}, nvls: {0, 0, 18},
		nvlsTree: {0, 0, 20.9}, pat: {0, 0, 14}},
}

// Caps by generation and by one, two, or more nodes.
var (
	capLL        = [generations][3]float64{{39, 39, 20.4}, {87.7, 22.5, 19}, {141, 45, 35}, {282, 90, 70}}
	capRing128   = [generations][3]float64{{20, 20, 20}, {20, 20, 20}, {36.7, 36.7, 36.7}, {40, 40, 40}}
	capTree128   = [generations][3]float64{{20, 20, 20}, {20, 20, 20}, {36.7, 36.7, 29}, {55.6, 31.67, 20}}
	capTree      = [generations][3]float64{{26.5, 18.5, 10}, {24, 23.6, 17.8}, {38.7, 41.4, 36}, {70, 42.8, 24}}
	capNVLSTree  = [generations][3]float64{{26.5, 18.5, 10}, {24, 23.6, 17.8}, {0, 57.7, 45.5}, {0, 96, 80}}
	nvlsShare    = [generations]float64{0, 0, 0.85, 0.74}
	nvlsChannels = [generations][2]int{{0, 0}, {0, 0}, {16, 16}, {24, 32}} // one node, several
)

// treeCorrection multiplies the bandwidth of a tree all-reduce by size: index
// floor(log2(bytes/64)) up to 22.
var treeCorrection = [protocols][24]float64{
	ll:     {1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1, 1},
	ll128:  {1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1, 1},
	simple: {.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9, .9},
}

func sizeIndex(bytes float64) int {
	if bytes < 64 {
		return -1
	}
	return math.Ilogb(bytes / 64)
}

// nvlinkSpeed is what NCCL counts one NVLink with.
func nvlinkSpeed(compute int) float64 {
	switch {
	case compute >= 100:
		return 40.1
	case compute >= 90:
		return 20.6
	case compute == 86:
		return 12
	case compute >= 70:
		return 20
	default:
		return 18
	}
}

// pcieSpeed is what NCCL counts a PCIe link with: width x rate / 80, the rate
// per lane being 15 for the first generation and twice that for each next.
func pcieSpeed(gen, lanes int) float64 {
	return float64(lanes) * 15 * math.Pow(2, float64(gen-1)) / 80
}

// intelDetour is how many bytes NCCL counts for each that two GPUs exchange
// through an Intel CPU.
const intelDetour = 1.2

// Channel speeds that the search tries, highest first.
var (
	speedsOld   = []float64{40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3}
	netOld      = []float64{48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 2.4, 1.2, .24, .12}
	speedsSM90  = []float64{60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3}
	netSM90     = []float64{48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, .24, .12}
	speedsSM100 = []float64{90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18}
	netSM100    = []float64{96, 86, 80, 48, 45.1, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, .24, .12}
)

func speeds(compute int, several bool) []float64 {
	switch {
	case compute >= 100 && several:
		return netSM100
	case compute >= 100:
		return speedsSM100
	case compute >= 90 && several:
		return netSM90
	case compute >= 90:
		return speedsSM90
	case several:
		return netOld
	default:
		return speedsOld
	}
}
