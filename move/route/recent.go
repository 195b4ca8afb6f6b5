package route

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// names gives each whole block of a text a name that stands for everything up to its end.
func names(text []byte) (list []uint64) {
	var chain [8]byte
	for ; len(text) >= block; text = text[block:] {
		h := xxh3.New()
		_, _ = h.Write(chain[:])
		_, _ = h.Write(text[:block])
		list = append(list, h.Sum64())
		binary.LittleEndian.PutUint64(chain[:], h.Sum64())
	}
	return list
}

// recent remembers the blocks that were used last. The oldest go first, a block never before those that follow it in a
// prompt: a prompt is entered from its end to its beginning.
type recent struct {
	most  int
	clock uint64
	last  map[uint64]uint64 // name to the time of its last use
	queue []use             // in order of time; those that were used again later are skipped
}

type use struct{ name, at uint64 }

func newRecent(most int) *recent { return &recent{most: most, last: map[uint64]uint64{}} }

// match is how many blocks from the first on are remembered.
func (r *recent) match(names []uint64) int {
	for i, n := range names {
		if r.last[n] == 0 {
			return i
		}
	}
	return len(names)
}

func (r *recent) add(names []uint64) {
	for i := len(names) - 1; i >= 0; i-- {
		r.clock++
		r.last[names[i]] = r.clock
		r.queue = append(r.queue, use{names[i], r.clock})
	}
	for len(r.last) > r.most || len(r.queue) > 4*r.most {
		if old := r.queue[0]; r.last[old.name] == old.at {
			delete(r.last, old.name)
		}
		r.queue = r.queue[1:]
	}
}

func (r *recent) forget(names []uint64) {
	for _, n := range names {
		delete(r.last, n)
	}
}
