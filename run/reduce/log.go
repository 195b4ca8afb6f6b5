package reduce

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// A log makes a reduction that overwrites its sources one that another process
// can finish. It lies in memory that both see:
//
//	 0   done     bytes of the reductions that all destinations have
//	 8   sealed   where the block below ends, if that is after done
//	64   block    the result of bytes [done, sealed)
//
// A block goes through three states:
//
//	sealed <= done   sources of bytes from done on are whole    compute, and fill block
//	sealed >  done   some destinations may have them            store block to all
//	done = sealed    all have them
//
// Whoever finds the log in one of them goes on from there; storing a block twice
// changes nothing. What a killed process leaves behind is a state of this
// sequence: an interrupt divides the instructions of a thread into those that
// happened and those that did not, on every architecture, and who learns of the
// death from the operating system sees all stores of the former. The words are
// stored atomically so that the compiler keeps them in their places.
const (
	logHead  = 64
	logBlock = 8 << 10

	// LogSize is how many bytes a log has. The largest block is that of plain Go;
	// kernels use up to 512 bytes of it, the registers of one round.
	LogSize = logHead + logBlock
)

// ApplyAllLogged computes what ApplyAll does in an order, and with Avg divides it by the
// number of sources as Finish does. It keeps a log of LogSize bytes at a multiple
// of 8 (of 64 for speed), so that if the caller is killed, at whatever
// instruction, another process that makes the same call with the same memory ends
// with the same bits in every destination, destinations that are sources included.
// That one may be killed as well. It need not have the same processor path.
//
// One log serves one reduction after another: start is how many bytes those since
// ResetLog had, zero for the first. What the log says is done already is skipped,
// so that an heir repeats all calls in their order.
//
//	ResetLog(log)
//	ApplyAllLogged(t, op, dsts0, srcs0, order, log, 0)
//	ApplyAllLogged(t, op, dsts1, srcs1, order, log, len(srcs0[0]))
//
// The log costs little, as it stays in L1: sums of two buffers of float32 in place
// by two threads took 0.94 to 1.03 of ApplyAll's time with AVX-512 for 128 KiB to
// 8 MiB, 0.95 to 1.08 with AVX2 (BenchmarkLogged, 2026-11-15). Buffers that are in L1
// themselves take 1.4 times as long: 16 KiB 0.32 us instead of 0.23. Averages of
// integers and plain Go go through blocks of 8 KiB.
//
// Destinations are stored through the caches at every size. A log that other calls
// left behind is a mistake of the caller, as are those of ApplyAll:
// ApplyAllLogged panics.
func ApplyAllLogged(t Type, op Op, dsts, srcs [][]byte, order *Order, log []byte, start int) {
	n := checkAll(t, op, dsts, srcs)
	done, sealed := words(log)
	from, to := int(done.Load())-start, int(sealed.Load())-start
	if from >= n {
		return
	}
	if from < 0 || to > n || to-from > logBlock {
		panic(fmt.Errorf("reduce: a log with %d bytes done and %d sealed is none of a reduction of bytes %d to %d; ResetLog empties it",
			from+start, to+start, start, start+n))
	}
	if to > from {
		publish(dsts, log, start, from, to)
		from = to
	}
	switch {
	case len(srcs) == 1:
		// Copying again is as good as copying: nothing that is read changes.
		for _, d := range dsts {
			copy(d[from:], srcs[0][from:])
		}
		done.Store(uint64(start + n))
	case order != nil && Ordered(t, op):
		order.logged(t, op, dsts, srcs, log, start, from, n)
	default:
		logged(t, op, dsts, srcs, len(srcs), log, start, from, n)
	}
}

// logged combines bytes [from, n) of sources one after the other, partial results of count sources in all.
func logged(t Type, op Op, dsts, srcs [][]byte, count int, log []byte, start, from, n int) {
	_, sealed := words(log)
	from = vectorsLogged(t, op, dsts, srcs, count, log, start, from, n)
	for from < n {
		to := min(n, from+logBlock)
		sum := log[logHead:][:to-from]
		Apply(t, op, sum, srcs[0][from:to], srcs[1][from:to])
		for _, s := range srcs[2:] {
			Apply(t, op, sum, sum, s[from:to])
		}
		Finish(t, op, sum, count)
		sealed.Store(uint64(start + to))
		publish(dsts, log, start, from, to)
		from = to
	}
}

// treeLogged is logged for up to treeWidth sources that are combined as a tree by kernels.
func treeLogged(t Type, op Op, dsts, srcs [][]byte, count int, log []byte, start, from, n int) {
	_, sealed := words(log)
	from = treesLogged(t, op, dsts, srcs, count, log, start, from, n)
	for from < n {
		to := min(n, from+line)
		sum := log[logHead:][:to-from]
		small(t, sum, srcs, from)
		Finish(t, op, sum, count)
		sealed.Store(uint64(start + to))
		publish(dsts, log, start, from, to)
		from = to
	}
}

// publish stores the sealed block, which is bytes [from, to), to all destinations.
func publish(dsts [][]byte, log []byte, start, from, to int) {
	for _, d := range dsts {
		copy(d[from:to], log[logHead:])
	}
	done, _ := words(log)
	done.Store(uint64(start + to))
}

// ResetLog makes a log that of no reduction yet.
func ResetLog(log []byte) {
	done, sealed := words(log)
	sealed.Store(0)
	done.Store(0)
}

// Logged is how many bytes of the reductions since ResetLog all destinations have.
func Logged(log []byte) int {
	done, _ := words(log)
	return int(done.Load())
}

// words of a log.
func words(log []byte) (done, sealed *atomic.Uint64) {
	p := unsafe.Pointer(unsafe.SliceData(log))
	if len(log) < LogSize || uintptr(p)%8 != 0 {
		panic(fmt.Errorf("reduce: a log of %d bytes at %p; it takes %d at a multiple of 8", len(log), p, LogSize))
	}
	return (*atomic.Uint64)(p), (*atomic.Uint64)(unsafe.Add(p, 8))
}
