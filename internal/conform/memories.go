package conform

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/weft-fabric/weft/run/transport"
)

var memories = []Scenario{
	{Name: "memory of peers", Ranks: 3, Memory: true, Run: peersMemory},
	{Name: "atomics through memory of peers", Ranks: 4, Memory: true, Run: peersAtomics},
	{Name: "pull", Ranks: 2, Memory: true, Run: pull},
}

// tell exchanges a number between all ranks.
func tell(e transport.Endpoint, comm uint32, mine uint64) ([]uint64, error) {
	p, err := begun(e, comm)
	if err != nil {
		return nil, err
	}
	all := make([]uint64, e.Size())
	for r := range all {
		if r != e.Rank() {
			if err := p.Send(r, 0, binary.LittleEndian.AppendUint64(nil, mine)); err != nil {
				return nil, err
			}
		}
	}
	for r := range all {
		all[r] = mine
		if r != e.Rank() {
			var x [8]byte
			if err := p.Recv(r, 0, x[:]); err != nil {
				return nil, err
			}
			all[r] = binary.LittleEndian.Uint64(x[:])
		}
	}
	return all, p.Close()
}

// peersMemory: what a rank stores in memory got from Alloc the others load at
// its handle, and handles of consecutive bytes are consecutive.
func peersMemory(e transport.Endpoint) error {
	m := e.Memory()
	bar, err := newBarrier(e)
	if err != nil {
		return err
	}
	for k, n := range []int{1, 64, 5000, 70000, 3 << 20} {
		b, err := e.Verbs().Alloc(n)
		if err != nil {
			return err
		}
		if len(b) != n || cap(b) != n {
			return fmt.Errorf("asked for %d bytes, got %d and room for %d", n, len(b), cap(b))
		}
		h, ok := m.Handle(b)
		if !ok {
			return fmt.Errorf("memory got from Alloc has no handle")
		}
		if part, ok := m.Handle(b[n/2:]); !ok || part != h+transport.Handle(n/2) {
			return fmt.Errorf("byte %d of memory at %d lies at %d", n/2, h, part)
		}
		fill(b, number(e.Rank(), 0, 0, k))
		all, err := tell(e, uint32(100+k), uint64(h))
		if err != nil {
			return err
		}
		for r, h := range all {
			got, err := m.At(r, transport.Handle(h), n)
			if err != nil {
				return err
			}
			if err := same(got, number(r, 0, 0, k)); err != nil {
				return fmt.Errorf("memory of rank %d: %w", r, err)
			}
			if _, err := m.At(r, transport.Handle(h), -1); err == nil {
				return fmt.Errorf("memory of negative length")
			}
			if _, err := m.At(r, transport.Handle(h), 1<<46); err == nil {
				return fmt.Errorf("64 TiB of memory")
			}
		}
		if _, err := m.At(e.Size(), transport.Handle(h), 1); err == nil {
			return fmt.Errorf("memory of a rank that does not exist")
		}
		if err := bar.wait(); err != nil {
			return err
		}
		if err := e.Verbs().Free(b); err != nil {
			return err
		}
	}
	return nil
}

// peersAtomics: sync/atomic works between ranks.
func peersAtomics(e transport.Endpoint) error {
	const rounds = 1000
	m := e.Memory()
	bar, err := newBarrier(e)
	if err != nil {
		return err
	}
	b, err := e.Verbs().Alloc(64)
	if err != nil {
		return err
	}
	h, _ := m.Handle(b)
	all, err := tell(e, 100, uint64(h))
	if err != nil {
		return err
	}
	for k := range rounds {
		r := (e.Rank() + k) % e.Size()
		w, err := m.At(r, transport.Handle(all[r])+8, 8)
		if err != nil {
			return err
		}
		word(w).Add(uint64(e.Rank()) + 1)
	}
	if err := bar.wait(); err != nil {
		return err
	}
	n := uint64(e.Size())
	if got, want := word(b[8:]).Load(), rounds/n*(n*(n+1)/2); got != want {
		return fmt.Errorf("the sum is %d, want %d", got, want)
	}
	return e.Verbs().Free(b)
}

// pull: memory without a handle can be read by its address, or it is said that
// it cannot.
func pull(e transport.Endpoint) error {
	m := e.Memory()
	bar, err := newBarrier(e)
	if err != nil {
		return err
	}
	const n = 300001
	plain := message(n, uint64(e.Rank()))
	all, err := tell(e, 100, uint64(uintptr(unsafe.Pointer(&plain[0]))))
	if err != nil {
		return err
	}
	peer := 1 - e.Rank()
	dst := make([]byte, n)
	switch err := m.Pull(peer, uintptr(all[peer]), dst); {
	case errors.Is(err, transport.ErrNoPull):
	case err != nil:
		return err
	default:
		if err := same(dst, uint64(peer)); err != nil {
			return err
		}
	}
	if err := bar.wait(); err != nil {
		return err
	}
	runtime.KeepAlive(plain)
	return nil
}
