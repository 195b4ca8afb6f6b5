package reduce

//go:noescape
func keptFloat32AVX512(dst, src, kept *byte, pairs int)

//go:noescape
func keptFloat64AVX512(dst, src, kept *byte, pairs int)

//go:noescape
func keptInt32AVX512(dst, src, kept *byte, pairs int)

//go:noescape
func keptInt64AVX512(dst, src, kept *byte, pairs int)

// sumKept is ApplyKept of sums on a beginning of the buffers, and returns how long it
// is. It has kernels where adding is one instruction.
func sumKept(t Type, dst, src, kept []byte) int {
	if active != pathAVX512 || len(dst) < 2*line || lead(kept) != 0 {
		return 0
	}
	var kernel func(dst, src, kept *byte, pairs int)
	switch t {
	case Float32:
		kernel = keptFloat32AVX512
	case Float64:
		kernel = keptFloat64AVX512
	case Int32, Uint32:
		kernel = keptInt32AVX512
	case Int64, Uint64:
		kernel = keptInt64AVX512
	default:
		return 0
	}
	at := 0
	for len(dst)-at >= 2*line {
		n := min(stretch, len(dst)-at) / (2 * line)
		kernel(&dst[at], &src[at], &kept[at], n)
		at += n * 2 * line
	}
	return at
}
