package reduce

// What tests and benchmarks of the package may set.

// Portable is the definition: the result of a reduction by the portable path.
func Portable(t Type, op Op, dsts, srcs [][]byte) {
	portable(t, op.pairwise(), dsts, srcs, 0, len(dsts[0]))
}

// PortableScale is the definition of ScaleTo for floating-point types.
func PortableScale(t Type, dst, src []byte, factor float64) {
	portableScale(t, dst, src, 0, len(dst), factor)
}

// Pair is one step of the definition.
var Pair = pair

// View is the memory of bytes as elements.
func View[T Element](b []byte) []T { return view[T](b) }
