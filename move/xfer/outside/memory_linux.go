package outside

import (
	"context"
	"fmt"
	"os"
	"unsafe"

	"github.com/weft-fabric/weft/move/xfer"
	"golang.org/x/sys/unix"
)

// memory is memory of another process of this host, read and written by the kernel.
type memory struct {
	pid  int
	addr uint64
	size int64
}

// memoryOf is memory of a process, tried at both ends before it is used. Of this process it is plain memory, which
// peers can map.
func memoryOf(pid int, addr uint64, size int64) (xfer.Storage, error) {
	if addr == 0 || size < 1 || size > 1<<46 {
		return nil, fmt.Errorf("memory of %d bytes at %#x: %w", size, addr, xfer.ErrBounds)
	}
	m := memory{pid, addr, size}
	var one [1]byte
	for _, at := range []int64{0, size - 1} {
		if err := m.ReadAt(context.Background(), one[:], at); err != nil {
			return nil, fmt.Errorf("memory of %d bytes at %#x of process %d cannot be read: %w; the program must allow it (prctl PR_SET_PTRACER)",
				size, addr, pid, err)
		}
	}
	if pid == os.Getpid() { // it can be mapped or read by peers, and needs no system call here
		return xfer.Memory(unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(nil), addr)), size)), nil
	}
	return m, nil
}

func (m memory) Kind() xfer.Kind            { return xfer.Host }
func (m memory) Size() int64                { return m.size }
func (m memory) Depth() int                 { return 2 }
func (m memory) Sync(context.Context) error { return nil }
func (m memory) Close() error               { return nil }

func (m memory) ReadAt(_ context.Context, p []byte, off int64) error {
	return m.move(p, off, func(l []unix.Iovec, r []unix.RemoteIovec) (int, error) { return unix.ProcessVMReadv(m.pid, l, r, 0) })
}

func (m memory) WriteAt(_ context.Context, p []byte, off int64) error {
	return m.move(p, off, func(l []unix.Iovec, r []unix.RemoteIovec) (int, error) { return unix.ProcessVMWritev(m.pid, l, r, 0) })
}

// move hands pieces to the kernel until all have moved.
func (m memory) move(p []byte, off int64, call func([]unix.Iovec, []unix.RemoteIovec) (int, error)) error {
	if off < 0 || off+int64(len(p)) > m.size {
		return fmt.Errorf("%d bytes at %d of %d: %w", len(p), off, m.size, xfer.ErrBounds)
	}
	for len(p) > 0 {
		local := []unix.Iovec{{Base: &p[0]}}
		local[0].SetLen(len(p))
		n, err := call(local, []unix.RemoteIovec{{Base: uintptr(m.addr) + uintptr(off), Len: len(p)}})
		if err != nil {
			return fmt.Errorf("memory of process %d: %w", m.pid, err)
		}
		if n <= 0 {
			return fmt.Errorf("memory of process %d ends at %d", m.pid, off)
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}
