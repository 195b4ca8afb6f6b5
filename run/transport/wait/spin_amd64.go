//go:build !race

package wait

import (
	"sync/atomic"
	"unsafe"
)

const little = 1

// store is a plain store: on amd64 stores become visible in their order.
//
//go:noescape
func store(value *uint64, v uint64)

// release stores v so that whoever sees it sees all that was stored before.
func release(a *atomic.Uint64, v uint64) { store((*uint64)(unsafe.Pointer(a)), v) }

//go:noescape
func releaseWith(f *Flag, v, first, second uint64)

//go:noescape
func own(line unsafe.Pointer)

//go:noescape
func fetch(line unsafe.Pointer)

//go:noescape
func look(value *uint64, v uint64, looks, pauses int) bool

// spin looks n times whether a number is at least v, without a pause.
func spin(a *atomic.Uint64, v uint64, n int) bool {
	return look((*uint64)(unsafe.Pointer(a)), v, n, 0)
}

// pause looks n times with a pause after each. It leaves the assembly every 64
// pauses, about 5 us, as the garbage collector cannot stop it there.
func pause(a *atomic.Uint64, v uint64, n int) bool {
	for ; n > 0; n -= 64 {
		if look((*uint64)(unsafe.Pointer(a)), v, 0, min(n, 64)) {
			return true
		}
	}
	return false
}
