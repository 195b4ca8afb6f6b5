package reduce

import "fmt"

// Copy copies src to dst, which have one length and do not overlap otherwise than
// being the same. Where dst is too large for the caches it is stored past them.
func Copy(dst, src []byte) {
	if len(dst) != len(src) {
		panic(fmt.Errorf("reduce: copy %d bytes to %d; both must be equal", len(src), len(dst)))
	}
	done := copyPast(dst, src, pastCaches)
	copy(dst[done:], src[done:])
}

// CopyAway copies src to dst past the caches at every size: for copies that
// nobody is likely to read.
func CopyAway(dst, src []byte) {
	if len(dst) != len(src) {
		panic(fmt.Errorf("reduce: copy %d bytes to %d; both must be equal", len(src), len(dst)))
	}
	done := copyPast(dst, src, copyAway)
	copy(dst[done:], src[done:])
}

// copyAway is from how many bytes on CopyAway leaves the caches alone.
const copyAway = 4 << 10
