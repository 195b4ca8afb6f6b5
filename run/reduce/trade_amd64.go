package reduce

//go:noescape
func tradeAVX512(t *Trade, pairs int)

//go:noescape
func tradeAVX2(t *Trade, pairs int)

//go:noescape
func tradeFloat32AVX512(t *Trade, pairs int)

//go:noescape
func tradeFloat64AVX512(t *Trade, pairs int)

//go:noescape
func tradeInt32AVX512(t *Trade, pairs int)

//go:noescape
func tradeInt64AVX512(t *Trade, pairs int)

// vectorsSum has kernels where adding is one instruction.
func (t *Trade) vectorsSum(typ Type, n int) bool {
	if active != pathAVX512 {
		return false
	}
	switch typ {
	case Float32:
		tradeFloat32AVX512(t, n/(2*line))
	case Float64:
		tradeFloat64AVX512(t, n/(2*line))
	case Int32, Uint32:
		tradeInt32AVX512(t, n/(2*line))
	case Int64, Uint64:
		tradeInt64AVX512(t, n/(2*line))
	default:
		return false
	}
	return true
}

func (t *Trade) vectors(n int) bool {
	switch active {
	case pathAVX512:
		tradeAVX512(t, n/(2*line))
	case pathAVX2:
		tradeAVX2(t, n/(2*line))
	default:
		return false
	}
	return true
}
