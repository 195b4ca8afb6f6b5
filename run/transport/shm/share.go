//go:build linux

package shm

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Share is an arena without ranks: memory of this process that others of the host map to read.
type Share struct{ a *arena }

// NewShare makes one as large as the memory. What is not in use costs nothing but addresses.
func NewShare() (*Share, error) {
	header := uint64(tableSize+page-1) &^ (page - 1)
	size := (arenaSize(4, ram(), addresses()) + hugePage - 1) &^ (hugePage - 1)
	a, err := newArena(max(size, header+hugePage), header)
	if err != nil {
		return nil, err
	}
	letRead()
	return &Share{a}, nil
}

// Alloc gets n bytes, zeroed; at a page's beginning from 64 KiB on.
func (s *Share) Alloc(n int) ([]byte, error) { return s.a.alloc(n) }

// Free gives back what Alloc gave.
func (s *Share) Free(b []byte) error { return s.a.release(b) }

// Offset says where b lies in the share, if it does.
func (s *Share) Offset(b []byte) (uint64, bool) { return s.a.find(b) }

// File is what others map; it stays the share's.
func (s *Share) File() *os.File { return s.a.file }

// Close gives the memory back. Nobody may use it any more.
func (s *Share) Close() { s.a.close() }

// MapShare maps the share of another process for reading. It refuses a file that its owner could shorten,
// as that would end this process.
func MapShare(f *os.File) ([]byte, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 || st.Size() == 0 {
		return nil, fmt.Errorf("shm: %s is not memory that a process shares", f.Name())
	}
	p, err := unix.MmapPtr(int(f.Fd()), 0, nil, uintptr(st.Size()), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("shm: map %d bytes of another process: %w; all of it is reserved and none used, so `ulimit -v` must not limit it",
			st.Size(), err)
	}
	mem := unsafe.Slice((*byte)(p), st.Size())
	_ = unix.Madvise(mem, unix.MADV_DONTDUMP)
	_ = unix.Madvise(mem, unix.MADV_DONTFORK)
	return mem, nil
}

// UnmapShare gives back what MapShare mapped.
func UnmapShare(mem []byte) error { return unmapArena(mem) }

// ReadProcess copies memory of a process of this host at an address into dst; transport.ErrNoPull where the
// system forbids it.
func ReadProcess(pid int, addr uintptr, dst []byte) error { return readProcess(pid, addr, dst) }
