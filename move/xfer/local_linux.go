package xfer

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/run/transport/shm"
)

// listenLocal listens for processes of this host, under a name that no file system holds.
func listenLocal() net.Listener {
	l, err := net.Listen("unix", "@weft-xfer-"+rand.Text())
	if err != nil {
		return nil
	}
	return l
}

// sendFile passes a descriptor over a Unix socket, receiveFile takes one.
func sendFile(nc net.Conn, f *os.File) error {
	c, ok := nc.(*net.UnixConn)
	if !ok {
		return errors.New("descriptors go over Unix sockets only")
	}
	_, _, err := c.WriteMsgUnix([]byte{1}, unix.UnixRights(int(f.Fd())), nil)
	return err
}

// receiveFile takes one descriptor over a Unix socket. The caller owns it.
func receiveFile(nc net.Conn) (*os.File, error) {
	c, ok := nc.(*net.UnixConn)
	if !ok {
		return nil, errors.New("descriptors come over Unix sockets only")
	}
	b, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := c.ReadMsgUnix(b, oob)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		if fds, err := unix.ParseUnixRights(&m); err == nil && len(fds) == 1 {
			return os.NewFile(uintptr(fds[0]), "shared memory of a peer"), nil
		}
	}
	return nil, errors.New("no descriptor came")
}

// newWord makes a word whose value nobody can guess.
func newWord() *uint64 {
	var b [8]byte
	rand.Read(b[:])
	w := new(uint64)
	*w = binary.NativeEndian.Uint64(b[:])
	return w
}

func wordAddress(w *uint64) uintptr { return uintptr(unsafe.Pointer(w)) }

// readable tries whether the memory of a process can be read, at a word whose value is known.
func readable(pid int, addr, value uint64) error {
	var got uint64
	b := unsafe.Slice((*byte)(unsafe.Pointer(&got)), 8)
	if err := shm.ReadProcess(pid, uintptr(addr), b); err != nil {
		return err
	}
	if got != value {
		return fmt.Errorf("process %d of this host is another one", pid)
	}
	return nil
}

// pullSpan is bytes of another process and where they go.
type pullSpan struct {
	from uintptr
	to   []byte
}

// maxSpans is how many one system call takes.
const maxSpans = 1024

// pullSpans reads memory of another process, as much as one step has, with as few system calls as there can be. The scheduler
// is not told of them: a step takes some tens of microseconds.
func pullSpans(pid int, spans []pullSpan) error {
	local, remote := make([]unix.Iovec, 0, min(len(spans), maxSpans)), make([]unix.RemoteIovec, 0, min(len(spans), maxSpans))
	for len(spans) > 0 {
		local, remote = local[:0], remote[:0]
		for _, s := range spans[:min(len(spans), maxSpans)] {
			v := unix.Iovec{Base: unsafe.SliceData(s.to)}
			v.SetLen(len(s.to))
			local, remote = append(local, v), append(remote, unix.RemoteIovec{Base: s.from, Len: len(s.to)})
		}
		n, _, err := unix.RawSyscall6(unix.SYS_PROCESS_VM_READV, uintptr(pid), uintptr(unsafe.Pointer(unsafe.SliceData(local))),
			uintptr(len(local)),
			uintptr(unsafe.Pointer(unsafe.SliceData(remote))), uintptr(len(remote)), 0)
		switch {
		case err == unix.EINTR:
			continue
		case err != 0:
			return fmt.Errorf("read memory of process %d at %#x: %w", pid, spans[0].from, err)
		case n == 0:
			return fmt.Errorf("read memory of process %d at %#x: nothing is there", pid, spans[0].from)
		}
		for left := int(n); left > 0; {
			s := &spans[0]
			k := min(left, len(s.to))
			s.from, s.to, left = s.from+uintptr(k), s.to[k:], left-k
			if len(s.to) == 0 {
				spans = spans[1:]
			}
		}
	}
	return nil
}

// hostClock is the time that all processes of this host agree on, in nanoseconds.
func hostClock() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // every kernel has it
	}
	return t.Nano()
}

func alignedBuffer(n int) []byte {
	b := make([]byte, n+4096)
	at := -uintptr(unsafe.Pointer(unsafe.SliceData(b))) & 4095
	return b[at:][:n:n]
}
