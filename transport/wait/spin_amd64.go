//go:build !race

package wait

import (
	"sync/atomic"
	"unsafe"
)

const little = 1

//go:noescape
func look(value *uint64, v uint64, looks, pauses int) bool

// spin looks n times whether a number is at least v. It leaves the assembly
// every 64 pauses, about 5 us, as the garbage collector cannot stop it there.
func spin(a *atomic.Uint64, v uint64, n int) bool {
	p := (*uint64)(unsafe.Pointer(a))
	if look(p, v, min(n, 256), 0) {
		return true
	}
	for n -= 256; n > 0; n -= 64 {
		if look(p, v, 0, min(n, 64)) {
			return true
		}
	}
	return false
}
