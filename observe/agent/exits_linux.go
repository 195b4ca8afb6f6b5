package agent

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// exits learns from the kernel how processes end that others started. A descriptor of a
// process becomes readable when the process ends. How it ended stands in /proc until its
// parent asks; from Linux 6.15 on the descriptor still tells it afterwards.
type exits struct {
	mu   sync.Mutex
	open map[int]*os.File // by process
	ends []ending
}

// ending is a process that ended.
type ending struct {
	pid    int
	at     time.Time
	status syscall.WaitStatus
	known  bool // the status is
}

func newExits() *exits { return &exits{open: map[int]*os.File{}} }

// follow waits for the end of a process; false if the kernel does not allow it.
func (e *exits) follow(pid int) bool {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return false
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	e.mu.Lock()
	defer e.mu.Unlock()
	if old := e.open[pid]; old != nil { // its number is another's now
		old.Close()
	}
	e.open[pid] = f
	go e.wait(pid, f)
	return true
}

// wait blocks until a process ends, without being its parent, and notes when and how. f is its pidfd, which wait closes
// unless the agent did.
func (e *exits) wait(pid int, f *os.File) {
	conn, err := f.SyscallConn()
	if err != nil {
		return
	}
	x := ending{pid: pid}
	err = conn.Read(func(fd uintptr) bool {
		n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		if n <= 0 {
			return false
		}
		x.at = time.Now()
		x.status, x.known = exitOf(fd, pid)
		return true
	})
	if err != nil { // the agent closed it
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ends = append(e.ends, x)
	if e.open[pid] == f {
		delete(e.open, pid)
	}
	f.Close()
}

// take gives the ends since the last call.
func (e *exits) take() []ending {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := e.ends
	e.ends = nil
	return list
}

func (e *exits) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, f := range e.open {
		f.Close()
	}
}

// pidfdInfo is struct pidfd_info of the kernel.
type pidfdInfo struct {
	mask, cgroup uint64
	ids          [11]uint32
	code         int32
}

const (
	pidfdGetInfo  = 3<<30 | 64<<16 | 0xff<<8 | 11
	pidfdInfoExit = 8
)

// exitOf is the wait status of a process that has ended. Its parent may ask for it at any
// time: before that /proc tells it, and after it the descriptor.
func exitOf(fd uintptr, pid int) (syscall.WaitStatus, bool) {
	line, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	// The 2nd field is the program's name in brackets and may hold anything; the state
	// is the 3rd, the status the 52nd.
	if f := strings.Fields(string(line[bytes.LastIndexByte(line, ')')+1:])); len(f) >= 50 && f[0] == "Z" {
		if status, err := strconv.ParseUint(f[49], 10, 32); err == nil {
			return syscall.WaitStatus(status), true
		}
	}
	info := pidfdInfo{mask: pidfdInfoExit}
	_, _, e := unix.Syscall(unix.SYS_IOCTL, fd, pidfdGetInfo, uintptr(unsafe.Pointer(&info)))
	return syscall.WaitStatus(info.code), e == 0 && info.mask&pidfdInfoExit != 0
}

// disks are file systems of this host itself: asking others may take for ever.
var disks = map[string]bool{"ext4": true, "ext3": true, "xfs": true, "btrfs": true, "zfs": true, "f2fs": true, "overlay": true,
	"tmpfs": true}

// fullDisks are the mount points at which nothing more can be written.
func fullDisks() (list []string) {
	b, _ := os.ReadFile("/proc/self/mounts")
	for l := range strings.Lines(string(b)) {
		f := strings.Fields(l)
		if len(f) < 4 || !disks[f[2]] || !strings.HasPrefix(f[3], "rw") {
			continue
		}
		var st unix.Statfs_t
		if unix.Statfs(f[1], &st) == nil && st.Blocks > 0 && st.Bavail*uint64(st.Bsize) < 4096 {
			list = append(list, f[1])
		}
	}
	return list
}
