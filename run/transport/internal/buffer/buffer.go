// Package buffer is memory that streams use again.
package buffer

import (
	"sync"
	"unsafe"

	"github.com/weft-fabric/weft/run/transport/internal/frame"
)

// Aligned is memory at a multiple of 64.
func Aligned(n int) []byte {
	b := make([]byte, n+63)
	k := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & 63)
	return b[k : k+n : k+n]
}

// Pool keeps memory of one size for further use.
type Pool struct {
	Size, Most int
	mu         sync.Mutex
	free       [][]byte
}

func (s *Pool) Get() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.free); n > 0 {
		b := s.free[n-1]
		s.free = s.free[:n-1]
		return b
	}
	return Aligned(s.Size)
}

func (s *Pool) Put(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.free) < s.Most {
		s.free = append(s.free, b[:s.Size])
	}
}

// pieces is memory for pieces, by powers of two from the longest down.
var pieces [10]Pool

func init() {
	for i := range pieces {
		pieces[i].Size, pieces[i].Most = frame.PieceSize>>i, 16<<min(i, 2)
	}
}

// Part is memory for a piece, most of it used again.
func Part(n int) []byte {
	if n > frame.PieceSize {
		return Aligned(n)
	}
	i := len(pieces) - 1
	for pieces[i].Size < n {
		i--
	}
	return pieces[i].Get()[:n]
}

// FreePart gives it back.
func FreePart(b []byte) {
	for i := range pieces {
		if cap(b) == pieces[i].Size {
			pieces[i].Put(b)
			return
		}
	}
}
