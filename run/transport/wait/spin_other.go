//go:build !amd64 || race

package wait

import (
	"sync/atomic"
	"unsafe"
)

// little is 1 where the lower half of a number comes first. Of the systems Go
// runs on, those with several cores and the other order are not built for.
const little = 1

func spin(a *atomic.Uint64, v uint64, n int) bool {
	for range n {
		if a.Load() >= v {
			return true
		}
	}
	return false
}

func pause(a *atomic.Uint64, v uint64, n int) bool { return spin(a, v, n) }

func release(a *atomic.Uint64, v uint64) { a.Store(v) }

func releaseWith(f *Flag, v, first, second uint64) {
	f.words[0].Store(first)
	f.words[1].Store(second)
	f.value.Store(v)
}

func own(unsafe.Pointer) {}

func fetch(unsafe.Pointer) {}
