package comm

import (
	"errors"

	"github.com/weft-fabric/weft/reduce"
	"github.com/weft-fabric/weft/transport"
)

// stages are a rank's buffers of a communicator that the others see, for what
// they could not see otherwise. They grow to the largest operation and are given
// back with the communicator. Those that come in pairs are used by every other
// operation (see board): what one operation left is not touched by the next.
type stages struct {
	in     [2][]byte // copies of inputs up to pairUpTo
	large  []byte    // copies of larger ones: used by every operation
	sums   []byte
	slots  []byte    // of trades
	log    []byte    // the journal
	plain  [4][]byte // private scratch by its use
	space  space     // of the operation under way, if it goes by messages
	sum    summer    // of its first channel
	handle map[*byte]transport.Handle
}

// pairUpTo is the size from which on one buffer serves all operations, which
// then wait for one another at the end rather than keep two.
const pairUpTo = 1 << 20

// room makes a buffer at least n bytes long.
func (s *stages) room(w *world, b *[]byte, n int) ([]byte, transport.Handle, error) {
	if len(*b) < n {
		if *b != nil {
			delete(s.handle, &(*b)[0])
			if err := w.ep.Verbs().Free(*b); err != nil {
				return nil, 0, err
			}
			*b = nil
		}
		size := 4096
		for size < n {
			size *= 2
		}
		fresh, err := w.ep.Verbs().Alloc(size)
		if err != nil {
			return nil, 0, err
		}
		*b = fresh
		if s.handle == nil {
			s.handle = map[*byte]transport.Handle{}
		}
		h, ok := w.mem.Handle(fresh)
		if !ok {
			return nil, 0, errors.New("memory got from the transport is not seen by its ranks")
		}
		s.handle[&fresh[0]] = h
	}
	return (*b)[:n], s.handle[&(*b)[0]], nil
}

// input gives room for a copy of the input; once says that every operation uses
// it, and so must not end before it was read. Programs whose sums are committed
// wait for one another in the middle anyway.
func (s *stages) input(w *world, seq uint64, n int, commits bool) (b []byte, h transport.Handle, once bool, err error) {
	if n > pairUpTo || commits {
		b, h, err = s.room(w, &s.large, n)
		return b, h, !commits, err
	}
	b, h, err = s.room(w, &s.in[seq&1], n)
	return b, h, false, err
}

// result gives room for sums. They are written after everybody entered the
// operation and so has read those of the one before.
func (s *stages) result(w *world, n int) ([]byte, transport.Handle, error) {
	return s.room(w, &s.sums, max(n, 1))
}

// journal makes the journal and writes down where it is.
func (s *stages) journal(w *world, mine board) error {
	if s.log != nil {
		return nil
	}
	_, h, err := s.room(w, &s.log, reduce.LogSize)
	if err != nil {
		return err
	}
	*mine.mid().word(wordLog) = uint64(h)
	return nil
}

// scratch gives memory that nobody else sees, by its use.
func (s *stages) scratch(use, n int) []byte {
	if cap(s.plain[use]) < n {
		s.plain[use] = make([]byte, n)
	}
	return s.plain[use][:n]
}

// all gives the buffers that the others see, and forgets them.
func (s *stages) all() [][]byte {
	var list [][]byte
	for _, b := range [][]byte{s.in[0], s.in[1], s.large, s.sums, s.slots, s.log} {
		if b != nil {
			list = append(list, b)
		}
	}
	*s = stages{}
	return list
}
