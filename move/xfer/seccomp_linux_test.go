package xfer

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/internal/bounded"
)

// Where a container's seccomp profile forbids io_uring, files go by plain calls and say so; demanding the ring is an error.
func TestNoRing(t *testing.T) {
	if os.Getenv("WEFT_TEST_NO_RING") == "" {
		cmd := bounded.Command(t, os.Args[0], "-test.run=^TestNoRing$", "-test.v")
		cmd.Env = append(os.Environ(), "WEFT_TEST_NO_RING=1")
		out, err := cmd.CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("PASS: TestNoRing")) && !bytes.Contains(out, []byte("SKIP: TestNoRing")) {
			t.Fatalf("%v\n%s", err, out)
		}
		if bytes.Contains(out, []byte("SKIP: TestNoRing")) {
			t.Skipf("%s", out)
		}
		return
	}
	forbid(t, unix.SYS_IO_URING_SETUP)
	ctx := limit(t)
	path := filepath.Join(t.TempDir(), "slab")
	const n = 3 << 20
	s, err := OpenFile(path, FileOptions{Size: n, Create: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	way := s.(*file).Way()
	if s.(*file).direct != nil && (!strings.Contains(way, "calls") || !strings.Contains(way, "io_uring")) {
		t.Errorf("it says %q; want plain calls, and why", way)
	}
	want, got := alignedBuffer(n), alignedBuffer(n)
	noise(want, 5)
	if err := s.WriteAt(ctx, want, 0); err != nil {
		t.Fatal(err)
	}
	if err := s.Sync(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.ReadAt(ctx, got, 0); err != nil || !bytes.Equal(got, want) {
		t.Errorf("what was read is not what was written: %v", err)
	}
	if s.(*file).direct == nil {
		return // the file system has no direct files, and no use for a ring
	}
	if f, err := OpenFile(path, FileOptions{Size: n, IO: "ring"}); !errors.Is(err, ErrPath) {
		t.Errorf("the ring that was demanded: %v, %v; want an error", f, err)
	}
}

// forbid makes a system call fail with EPERM, as Docker's profile does, in all threads of this process.
func forbid(t *testing.T, call uint32) {
	runtime.LockOSThread()
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call, Jt: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0x00050000 | uint32(unix.EPERM)}, // SECCOMP_RET_ERRNO
		{Code: unix.BPF_RET | unix.BPF_K, K: 0x7fff0000},                      // SECCOMP_RET_ALLOW
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		t.Skipf("no filter of system calls: %v", err)
	}
	const setFilter, allThreads = 1, 1
	if _, _, e := unix.Syscall(unix.SYS_SECCOMP, setFilter, allThreads, uintptr(unsafe.Pointer(&prog))); e != 0 {
		t.Skipf("no filter of system calls: %v", e)
	}
}
