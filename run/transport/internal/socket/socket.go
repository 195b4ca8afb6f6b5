//go:build linux

// Package socket is the system calls of the data path on raw non-blocking sockets.
// None of them blocks, so they need not tell Go's scheduler, which saves 50 to
// 100 ns each.
package socket

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Recv reads into b. It returns -1 if there is nothing, 0 at the end.
func Recv(fd int, b []byte) (int, error) {
	for {
		n, _, e := syscall.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)),
			unix.MSG_DONTWAIT, 0, 0)
		switch e {
		case 0:
			return int(n), nil
		case unix.EAGAIN:
			return -1, nil
		case unix.EINTR:
		default:
			return 0, e
		}
	}
}

// Recv2 reads into a, and what is left into b.
func Recv2(fd int, a, b []byte, m *Vector) (int, error) {
	m.set(a, b)
	for {
		n, _, e := syscall.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&m.hdr)), unix.MSG_DONTWAIT)
		switch e {
		case 0:
			return int(n), nil
		case unix.EAGAIN:
			return -1, nil
		case unix.EINTR:
		default:
			return 0, e
		}
	}
}

// Send writes b. It returns -1 if there is no room.
func Send(fd int, b []byte) (int, error) {
	for {
		n, _, e := syscall.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)),
			unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		switch e {
		case 0:
			return int(n), nil
		case unix.EAGAIN:
			return -1, nil
		case unix.EINTR:
		default:
			return 0, e
		}
	}
}

// Send2 writes a, then b. It returns -1 if there is no room.
func Send2(fd int, a, b []byte, m *Vector) (int, error) {
	m.set(a, b)
	for {
		n, _, e := syscall.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&m.hdr)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		switch e {
		case 0:
			return int(n), nil
		case unix.EAGAIN:
			return -1, nil
		case unix.EINTR:
		default:
			return 0, e
		}
	}
}

// Vector is the vector of a call; it belongs to whoever holds that side of a
// stream.
type Vector struct {
	hdr unix.Msghdr
	iov [2]unix.Iovec
}

func (m *Vector) set(a, b []byte) {
	n := 0
	for _, x := range [2][]byte{a, b} {
		if len(x) > 0 {
			m.iov[n].Base = unsafe.SliceData(x)
			m.iov[n].SetLen(len(x))
			n++
		}
	}
	m.hdr.Iov = &m.iov[0]
	m.hdr.SetIovlen(n)
}

// Unread is how many bytes there are to read.
func Unread(fd int) int {
	var n int32
	if _, _, e := syscall.RawSyscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCINQ, uintptr(unsafe.Pointer(&n))); e != 0 {
		return 0
	}
	return int(n)
}

// Poll waits for one of the descriptors, at most ms milliseconds.
func Poll(fds []unix.PollFd, ms int) {
	_, _ = unix.Poll(fds, ms)
}

// Detach takes a connection's socket away from Go's poller, which would be woken
// by everything that comes and by every acknowledgement, though nobody asks it:
// 200,000 all-reduces of 8 bytes between 2 processes take 3.5 s so, and 2.1 without.
func Detach(conn *net.TCPConn) (fd int, err error) {
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err != nil {
		return -1, err
	}
	var failed error
	err = raw.Control(func(from uintptr) { fd, failed = unix.FcntlInt(from, unix.F_DUPFD_CLOEXEC, 0) })
	if err == nil {
		err = os.NewSyscallError("fcntl", failed)
	}
	return fd, err
}

// loopBuffer is the size of a socket's buffers on loopback, where there is no
// path to learn: two ranks that exchange 2 MiB take 0.42 ms so and 0.56 ms with
// buffers that grow, 256 KiB 58 us and 65; larger messages are as fast.
const loopBuffer = 4 << 20

// Tune sets what a stream needs. The buffers of streams between hosts are
// the system's own, which grow with the path; roomy says that they are larger than
// any piece from the start. control is the congestion control of streams between hosts, the system's without it.
func Tune(fd int, loopback bool, control string) (roomy bool, err error) {
	type option struct{ level, name, value int }
	options := []option{
		{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 1},
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 1},
		{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 3},
	}
	// A size beyond the system's limit would be cut to it, for good.
	roomy = loopback && systemLimit("rmem_max") >= loopBuffer && systemLimit("wmem_max") >= loopBuffer
	if roomy {
		options = append(options, option{unix.SOL_SOCKET, unix.SO_SNDBUF, loopBuffer}, option{unix.SOL_SOCKET, unix.SO_RCVBUF, loopBuffer})
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return false, os.NewSyscallError("setsockopt", err)
		}
	}
	if loopback {
		// Nothing is congested there, and control that paces what is sent (bbr) costs 5 to
		// 10% of an exchange of 1 MiB. Where reno is not to be had the system's will do.
		_ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
	} else if control != "" {
		if err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, control); err != nil {
			return false, os.NewSyscallError("setsockopt", err)
		}
	}
	return roomy, unix.SetNonblock(fd, true)
}

// CheckControl says whether this system has a congestion control, and which ones it has.
func CheckControl(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name); err != nil {
		known, _ := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
		return fmt.Errorf("is not a congestion control this process may use: %w; this host has %s",
			err, strings.Join(strings.Fields(string(known)), ", "))
	}
	return nil
}

// systemLimit is a limit of the network; 0 if it cannot be read.
func systemLimit(name string) int {
	b, err := os.ReadFile("/proc/sys/net/core/" + name)
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return n
}

// Segment is how many bytes a packet of a connection holds.
func Segment(fd int) int {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0
	}
	return int(info.Snd_mss)
}

// Unanswered is how often the oldest packet was sent again, or the peer's window was
// asked for; an answer of any kind sets it back to zero. The time is that of a round trip.
func Unanswered(fd int) (uint8, time.Duration) {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0, 0
	}
	return max(info.Retransmits, info.Probes), time.Duration(info.Rtt) * time.Microsecond
}
