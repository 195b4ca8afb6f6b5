package reduce

import "fmt"

// Copy copies src to dst, which have one length and do not overlap otherwise than
// being the same. The runtime's copy stores large buffers past the caches where
// the processor gains by it.
func Copy(dst, src []byte) {
	if len(dst) != len(src) {
		panic(fmt.Errorf("reduce: copy %d bytes to %d; both must be equal", len(src), len(dst)))
	}
	copy(dst, src)
}
