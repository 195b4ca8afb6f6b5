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
func look(value *uint64, v uint64, looks, pauses int) bool

// spin looks n times whether a number is at least v. It leaves the assembly
// every 64 pauses, about 5 us, as the garbage collector cannot stop it there.
func spin(a *atomic.Uint64, v uint64, n int) bool {
	p := (*uint64)(unsafe.Pointer(a))
	if n <= unpaused {
		return look(p, v, n, 0)
	}
	for ; n > 0; n -= 64 {
		if look(p, v, 0, min(n, 64)) {
			return true
		}
	}
	return false
}
