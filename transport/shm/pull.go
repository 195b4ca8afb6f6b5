//go:build linux

package shm

import (
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/transport"
)

// letRead lets the other ranks read this process's memory where Yama allows
// that to the parents of a process only.
func letRead() {
	b, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if err == nil && strings.TrimSpace(string(b)) == "1" {
		anybody := -1 // of the same user, that is
		_ = unix.Prctl(unix.PR_SET_PTRACER, uintptr(anybody), 0, 0, 0)
	}
}

// readable tries whether the memory of a peer can be read.
func readable(m *met) bool {
	if m.pid <= 0 {
		return false
	}
	var got uint64
	b := unsafe.Slice((*byte)(unsafe.Pointer(&got)), 8)
	return readProcess(m.pid, uintptr(m.word), b) == nil && got == m.value
}

// pulled is how much is copied by one call of the system, some 60 us: that long
// the scheduler of this process is not told of it. To tell it costs as much as
// copying some pages, and it may give the processor away meanwhile.
const pulled = 512 << 10

// readProcess copies memory of a process at an address into dst.
func readProcess(pid int, addr uintptr, dst []byte) error {
	for len(dst) > 0 {
		local := [1]unix.Iovec{{Base: unsafe.SliceData(dst)}}
		local[0].SetLen(min(len(dst), pulled))
		remote := [1]unix.RemoteIovec{{Base: addr, Len: min(len(dst), pulled)}}
		n, _, err := unix.RawSyscall6(unix.SYS_PROCESS_VM_READV, uintptr(pid),
			uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1, 0)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EPERM, err == unix.ENOSYS:
			return transport.ErrNoPull
		case err != 0:
			return fmt.Errorf("shm: read %d bytes at %#x of process %d: %w", len(dst), addr, pid, err)
		case n == 0:
			return fmt.Errorf("shm: read %d bytes at %#x of process %d: nothing there", len(dst), addr, pid)
		}
		dst, addr = dst[n:], addr+uintptr(n)
	}
	return nil
}
