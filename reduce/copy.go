package reduce

import "fmt"

// Copy copies src to dst, which have one length and do not overlap otherwise than
// being the same. Where dst is too large for the caches it is stored past them.
func Copy(dst, src []byte) {
	if len(dst) != len(src) {
		panic(fmt.Errorf("reduce: copy %d bytes to %d; both must be equal", len(src), len(dst)))
	}
	done := copyPast(dst, src)
	copy(dst[done:], src[done:])
}
