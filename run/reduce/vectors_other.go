//go:build !amd64

package reduce

// Path names the instructions that reductions use here. Only amd64 has kernels
// of its own; everything else runs the portable path.
func Path() string { return "portable" }

func vectors(t Type, op Op, dsts, srcs [][]byte, n int) { portable(t, op, dsts, srcs, 0, n) }

func pastAll(t Type, dsts, srcs [][]byte, n int) bool { return false }

func vectorsFrom(t Type, op Op, dsts, srcs [][]byte, from, n int, past bool) {
	portable(t, op, dsts, srcs, from, n)
}

func treeKernels(Type) bool { return false }

func treeVectors(Type, [][]byte, [][]byte, int, int, bool) {}

func treesLogged(t Type, op Op, dsts, srcs [][]byte, count int, log []byte, start, from, n int) int {
	return from
}

func vectorsLogged(t Type, op Op, dsts, srcs [][]byte, count int, log []byte, start, from, n int) int {
	return from
}

func scaleFloats(t Type, dst, src []byte, factor float64) {
	portableScale(t, dst, src, 0, len(dst), factor)
}

const pastCaches = 0

func copyPast(dst, src []byte, least int) int { return 0 }

func (t *Trade) vectors(int) bool { return false }

func (t *Trade) vectorsSum(Type, int) bool { return false }

func sumKept(t Type, dst, src, kept []byte) int { return 0 }
