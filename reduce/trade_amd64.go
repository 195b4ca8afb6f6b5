package reduce

//go:noescape
func tradeAVX512(t *Trade, pairs int)

//go:noescape
func tradeAVX2(t *Trade, pairs int)

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
