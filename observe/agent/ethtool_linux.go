package agent

import (
	"bytes"
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtool asks the driver of an interface for its counters, as ethtool -S does.
type ethtool struct {
	fd    int
	names map[string][]string // by interface; they do not change
}

func newEthtool() *ethtool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		fd = -1
	}
	return &ethtool{fd: fd, names: map[string][]string{}}
}

func (e *ethtool) close() {
	if e.fd >= 0 {
		unix.Close(e.fd)
	}
}

// Commands of the kernel's ethtool.h, and the set of names of statistics.
const (
	getDriver   = 0x03
	getStrings  = 0x1b
	getStats    = 0x1d
	statStrings = 1
	nameLength  = 32
	mostStats   = 1 << 14
)

func (e *ethtool) ask(device string, buf []byte) bool {
	var req struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte // of the union
	}
	copy(req.name[:unix.IFNAMSIZ-1], device)
	req.data = unsafe.Pointer(&buf[0])
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(e.fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
	return errno == 0
}

// counters are those of an interface; nil where the driver has none. firmware is what
// its driver says.
func (e *ethtool) counters(device string) (list map[string]uint64, firmware string) {
	if e.fd < 0 {
		return nil, ""
	}
	ne := binary.NativeEndian
	info := make([]byte, 196)
	ne.PutUint32(info, getDriver)
	if !e.ask(device, info) {
		return nil, ""
	}
	text := func(b []byte) string { b, _, _ = bytes.Cut(b, []byte{0}); return string(b) }
	firmware = text(info[68:100])
	n := int(ne.Uint32(info[180:]))
	if n <= 0 || n > mostStats {
		return nil, firmware
	}
	names := e.names[device]
	if len(names) != n {
		b := make([]byte, 12+n*nameLength)
		ne.PutUint32(b, getStrings)
		ne.PutUint32(b[4:], statStrings)
		ne.PutUint32(b[8:], uint32(n))
		if !e.ask(device, b) {
			return nil, firmware
		}
		names = make([]string, n)
		for i := range names {
			names[i] = text(b[12+i*nameLength : 12+(i+1)*nameLength])
		}
		e.names[device] = names
	}
	b := make([]byte, 8+8*n)
	ne.PutUint32(b, getStats)
	ne.PutUint32(b[4:], uint32(n))
	if !e.ask(device, b) {
		return nil, firmware
	}
	list = make(map[string]uint64, n)
	for i, name := range names {
		list[name] = ne.Uint64(b[8+8*i:])
	}
	return list, firmware
}
