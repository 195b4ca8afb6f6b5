package mixed

import (
	"fmt"
	"sync"

	"github.com/weft-fabric/weft/run/transport"
)

// verbs are the one-sided operations: in shared memory with ranks of this host, over
// tcp with others. Memory and keys are those of shared memory. Tickets are counted here.
type verbs struct {
	e         *Endpoint
	near, far transport.Verbs

	mu   sync.Mutex
	next transport.Ticket
	mine [2]map[transport.Ticket]transport.Ticket // of near and far: the ticket here
	buf  []transport.Completion
}

func newVerbs(e *Endpoint) *verbs {
	v := &verbs{e: e, near: e.near.Verbs(), far: e.far.Verbs()}
	for i := range v.mine {
		v.mine[i] = map[transport.Ticket]transport.Ticket{}
	}
	return v
}

func (v *verbs) Alloc(n int) ([]byte, error)         { return v.near.Alloc(n) }
func (v *verbs) Free(b []byte) error                 { return v.near.Free(b) }
func (v *verbs) Key(b []byte) (transport.Key, error) { return v.near.Key(b) }

// post posts an operation with a rank on the side that reaches it.
func (v *verbs) post(rank int, do func(side transport.Verbs, rank int) (transport.Ticket, error)) (transport.Ticket, error) {
	if rank < 0 || rank >= v.e.size {
		return 0, fmt.Errorf("rank %d; ranks are 0 to %d", rank, v.e.size-1)
	}
	side, of := v.far, 1
	if i := v.e.local[rank]; i >= 0 {
		side, of, rank = v.near, 0, i
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	t, err := do(side, rank)
	if err != nil {
		return 0, v.e.named(err)
	}
	v.next++
	v.mine[of][t] = v.next
	return v.next, nil
}

func (v *verbs) Write(to int, dst transport.Key, src []byte) (transport.Ticket, error) {
	return v.post(to, func(s transport.Verbs, r int) (transport.Ticket, error) { return s.Write(r, dst, src) })
}

func (v *verbs) Read(from int, dst []byte, src transport.Key) (transport.Ticket, error) {
	return v.post(from, func(s transport.Verbs, r int) (transport.Ticket, error) { return s.Read(r, dst, src) })
}

func (v *verbs) CompareSwap(to int, word transport.Key, old, new uint64, was *uint64) (transport.Ticket, error) {
	return v.post(to, func(s transport.Verbs, r int) (transport.Ticket, error) { return s.CompareSwap(r, word, old, new, was) })
}

func (v *verbs) FetchAdd(to int, word transport.Key, add uint64, was *uint64) (transport.Ticket, error) {
	return v.post(to, func(s transport.Verbs, r int) (transport.Ticket, error) { return s.FetchAdd(r, word, add, was) })
}

func (v *verbs) Notify(to int, value uint32) (transport.Ticket, error) {
	return v.post(to, func(s transport.Verbs, r int) (transport.Ticket, error) { return s.Notify(r, value) })
}

// Poll appends what is complete on both sides.
func (v *verbs) Poll(done []transport.Completion) []transport.Completion {
	v.mu.Lock()
	defer v.mu.Unlock()
	for of, side := range [2]transport.Verbs{v.near, v.far} {
		v.buf = side.Poll(v.buf[:0])
		for _, c := range v.buf {
			if c.Ticket != 0 {
				t := c.Ticket
				c.Ticket = v.mine[of][t]
				delete(v.mine[of], t)
			}
			if of == 0 {
				c.Peer, c.Err = v.e.mates[c.Peer], v.e.named(c.Err)
			}
			done = append(done, c)
		}
	}
	return done
}

// mates are the verbs with ranks of this host, by their numbers there. Completions name
// peers as Endpoint does.
type mates struct{ *verbs }

func (m mates) of(rank int) int {
	if rank < 0 || rank >= len(m.e.mates) {
		return -1
	}
	return m.e.mates[rank]
}

func (m mates) Write(to int, dst transport.Key, src []byte) (transport.Ticket, error) {
	return m.verbs.Write(m.of(to), dst, src)
}

func (m mates) Read(from int, dst []byte, src transport.Key) (transport.Ticket, error) {
	return m.verbs.Read(m.of(from), dst, src)
}

func (m mates) CompareSwap(to int, word transport.Key, old, new uint64, was *uint64) (transport.Ticket, error) {
	return m.verbs.CompareSwap(m.of(to), word, old, new, was)
}

func (m mates) FetchAdd(to int, word transport.Key, add uint64, was *uint64) (transport.Ticket, error) {
	return m.verbs.FetchAdd(m.of(to), word, add, was)
}

func (m mates) Notify(to int, value uint32) (transport.Ticket, error) {
	return m.verbs.Notify(m.of(to), value)
}
