package reduce

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// path is the set of instructions in use.
type path uint8

const (
	pathPortable path = iota
	pathAVX2
	pathAVX512
)

func (p path) String() string { return [...]string{"portable", "AVX2", "AVX-512"}[p] }

// best is the widest path this processor and operating system support.
func best() path {
	x := cpu.X86
	switch {
	case x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL && x.HasBMI2:
		return pathAVX512
	case x.HasAVX2 && x.HasF16C:
		return pathAVX2
	}
	return pathPortable
}

var active = best()

// Path names the instructions that reductions use here: AVX-512, AVX2 or portable.
func Path() string { return active.String() }

// pastCaches is from how many bytes on a destination that is no source is stored
// past the caches. Ordinary stores first read the lines they overwrite; the others
// leave nothing in the cache for whoever reads the result. Measured on two Xeons
// with 2 MiB of L2 and 105 and 300 MiB of LLC (BenchmarkThreshold, 2026-11-15): an
// add by itself gains from 1 MiB on, 1.2 to 1.6 times; an add whose result is read
// next loses up to 4 MiB (0.93 and 0.97 there), gains 1.01 and 1.17 times at 8 MiB
// and 1.1 to 1.35 times above.
var pastCaches = 8 << 20

const vectorAVX2 = 32 // bytes that AVX2 kernels take whole

// kernels of the types by operation, from Sum on; averages and scaled sums are sums.
var kernels = [Float8E5M2 + 1][BXor + 1]kernel{
	Int8:       {Sum: sumInt8, Prod: prodInt8, Min: minInt8, Max: maxInt8, BAnd: andBits, BOr: orBits, BXor: xorBits},
	Uint8:      {Sum: sumInt8, Prod: prodInt8, Min: minUint8, Max: maxUint8, BAnd: andBits, BOr: orBits, BXor: xorBits},
	Int16:      {Sum: sumInt16, Prod: prodInt16, Min: minInt16, Max: maxInt16, BAnd: andBits, BOr: orBits, BXor: xorBits},
	Uint16:     {Sum: sumInt16, Prod: prodInt16, Min: minUint16, Max: maxUint16, BAnd: andBits, BOr: orBits, BXor: xorBits},
	Int32:      {Sum: sumInt32, Prod: prodInt32, Min: minInt32, Max: maxInt32, BAnd: andBits, BOr: orBits, BXor: xorBits},
	Uint32:     {Sum: sumInt32, Prod: prodInt32, Min: minUint32, Max: maxUint32, BAnd: andBits, BOr: orBits, BXor: xorBits},
	Int64:      {Sum: sumInt64, Prod: prodInt64, Min: minInt64, Max: maxInt64, BAnd: andBits, BOr: orBits, BXor: xorBits},
	Uint64:     {Sum: sumInt64, Prod: prodInt64, Min: minUint64, Max: maxUint64, BAnd: andBits, BOr: orBits, BXor: xorBits},
	Float16:    {Sum: sumFloat16, Prod: prodFloat16, Min: minFloat16, Max: maxFloat16},
	BFloat16:   {Sum: sumBFloat16, Prod: prodBFloat16, Min: minBFloat16, Max: maxBFloat16},
	Float32:    {Sum: sumFloat32, Prod: prodFloat32, Min: minFloat32, Max: maxFloat32},
	Float64:    {Sum: sumFloat64, Prod: prodFloat64, Min: minFloat64, Max: maxFloat64},
	Float8E4M3: {Sum: sumFloat8E4M3, Prod: prodFloat8E4M3, Min: minFloat8E4M3, Max: maxFloat8E4M3},
	Float8E5M2: {Sum: sumFloat8E5M2, Prod: prodFloat8E5M2, Min: minFloat8E5M2, Max: maxFloat8E5M2},
}

// vectors reduces two sources or more of n bytes.
func vectors(t Type, op Op, dsts, srcs [][]byte, n int) {
	if active == pathPortable {
		portable(t, op, dsts, srcs, 0, n)
		return
	}
	from, k := 0, kernels[t][op]
	if active == pathAVX512 && n <= stretch && n < pastCaches { // the usual case has the shortest way
		call(k, true, &dsts[0], len(dsts), &srcs[0], len(srcs), 0, n, false)
		return
	}
	past := pastAll(t, dsts, srcs, n)
	if past {
		from = lead(dsts[0])
		kernelRange(t, op, k, dsts, srcs, 0, from, false)
	}
	vectorsFrom(t, op, dsts, srcs, from, n, past)
}

// pastAll reports whether the destinations of a reduction are stored past the caches.
func pastAll(t Type, dsts, srcs [][]byte, n int) bool {
	return active != pathPortable && n >= pastCaches && aligned(dsts, srcs, t.Size())
}

// vectorsFrom reduces bytes [from, n), which are stored past the caches if destinations begin with a line there.
func vectorsFrom(t Type, op Op, dsts, srcs [][]byte, from, n int, past bool) {
	if active == pathPortable {
		portable(t, op, dsts, srcs, from, n)
		return
	}
	for from < n {
		to := min(n, from+stretch)
		kernelRange(t, op, kernels[t][op], dsts, srcs, from, to, past)
		from = to
	}
}

// kernelRange runs a kernel on bytes [from, to), and the portable path on what
// AVX2 leaves.
func kernelRange(t Type, op Op, k kernel, dsts, srcs [][]byte, from, to int, past bool) {
	whole := to
	if active == pathAVX2 {
		whole = to - (to-from)%vectorAVX2
	}
	if from < whole {
		call(k, active == pathAVX512, &dsts[0], len(dsts), &srcs[0], len(srcs), from, whole, past)
	}
	if whole < to {
		portable(t, op, dsts, srcs, whole, to)
	}
}

// vectorsLogged reduces two sources or more from a byte on, keeping a log, and
// returns how far kernels can go.
// count is how many sources an average is of.
func vectorsLogged(t Type, op Op, dsts, srcs [][]byte, count int, log []byte, start, from, n int) int {
	mean := op == Avg
	if active == pathPortable || mean && !t.Float() {
		return from
	}
	k := kernels[t][op.pairwise()]
	if active == pathAVX2 {
		n -= (n - from) % vectorAVX2
	}
	for from < n {
		to := min(n, from+stretch)
		if mean {
			callMean(t, active == pathAVX512, &dsts[0], len(dsts), &srcs[0], len(srcs), from, to, &log[0], start, 1/float64(count))
		} else {
			callLogged(k, active == pathAVX512, &dsts[0], len(dsts), &srcs[0], len(srcs), from, to, &log[0], start)
		}
		from = to
	}
	return from
}

// treeKernels reports whether a type has kernels of trees here.
func treeKernels(t Type) bool { return active != pathPortable && t >= Float16 && t <= Float64 }

// treeVectors sums bytes [from, n) of up to treeWidth sources as a tree.
func treeVectors(t Type, dsts, srcs [][]byte, from, n int, past bool) {
	for from < n {
		to := min(n, from+stretch)
		whole := to
		if active == pathAVX2 {
			whole = to - (to-from)%vectorAVX2
		}
		if from < whole {
			callTree(t, active == pathAVX512, &dsts[0], len(dsts), &srcs[0], len(srcs), from, whole, past)
		}
		if whole < to {
			var rest [vectorAVX2]byte
			small(t, rest[:to-whole], srcs, whole)
			for _, d := range dsts {
				copy(d[whole:to], rest[:])
			}
		}
		from = to
	}
}

// treesLogged is vectorsLogged of such a sum.
func treesLogged(t Type, op Op, dsts, srcs [][]byte, count int, log []byte, start, from, n int) int {
	if active == pathAVX2 {
		n -= (n - from) % vectorAVX2
	}
	for from < n {
		to := min(n, from+stretch)
		if op == Avg {
			callTreeMean(t, active == pathAVX512, &dsts[0], len(dsts), &srcs[0], len(srcs), from, to, &log[0], start, 1/float64(count))
		} else {
			callTreeLogged(t, active == pathAVX512, &dsts[0], len(dsts), &srcs[0], len(srcs), from, to, &log[0], start)
		}
		from = to
	}
	return from
}

// aligned reports whether destinations can be stored past the caches: none is a
// source, whose lines are in the cache already, and whole elements lead all of
// them to a line at once.
func aligned(dsts, srcs [][]byte, size int) bool {
	for _, d := range dsts {
		if same(d, srcs) || lead(d) != lead(dsts[0]) || lead(d)%size != 0 {
			return false
		}
	}
	return true
}

// scaleFloats multiplies by a factor. AVX2 takes whole vectors and leaves the end to portable code; AVX-512 masks it.
func scaleFloats(t Type, dst, src []byte, factor float64) {
	if active == pathPortable {
		portableScale(t, dst, src, 0, len(dst), factor)
		return
	}
	for from := 0; from < len(dst); {
		to := min(len(dst), from+stretch)
		whole := to
		if active == pathAVX2 {
			whole = to - (to-from)%vectorAVX2
		}
		if from < whole {
			callScale(t, active == pathAVX512, &dst[0], &src[0], from, whole, factor)
		}
		portableScale(t, dst, src, whole, to, factor)
		from = to
	}
}

// copyBlock is how many bytes the copying kernels move at a time.
const copyBlock = 256

// copyPast copies a beginning of src past the caches and returns how long it is:
// zero where dst is shorter than least. Unlike the runtime's copy, which on processors with
// fast string moves goes through the caches at every size.
func copyPast(dst, src []byte, least int) int {
	if len(dst) < least || active == pathPortable || unsafe.SliceData(dst) == unsafe.SliceData(src) {
		return 0
	}
	at := lead(dst)
	copy(dst[:at], src[:at])
	for len(dst)-at >= copyBlock {
		blocks := min(stretch, len(dst)-at) / copyBlock
		if active == pathAVX512 {
			copyPastAVX512(&dst[at], &src[at], blocks)
		} else {
			copyPastAVX2(&dst[at], &src[at], blocks)
		}
		at += blocks * copyBlock
	}
	return at
}
