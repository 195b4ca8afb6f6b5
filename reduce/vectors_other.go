//go:build !amd64

package reduce

// Path names the instructions that reductions use here. Only amd64 has kernels
// of its own; everything else runs the portable path.
func Path() string { return "portable" }

func vectors(t Type, op Op, dsts, srcs [][]byte, n int) { portable(t, op, dsts, srcs, 0, n) }

func vectorsLogged(t Type, op Op, dsts, srcs [][]byte, log []byte, start, from, n int) int {
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
