package bench

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// quota is a control group whose processes share some processor time. Its processes
// are stopped together when that is used up, until the next period.
type quota struct{ dir string }

// quotaPeriod is that of containers.
const quotaPeriod = 100 * time.Millisecond

var quotas atomic.Int32 // made by this process

// newQuota makes a control group that has that number of processors, in version 2 of control groups or in version 1.
func newQuota(processors float64) (*quota, error) {
	share := strconv.Itoa(max(1000, int(processors*float64(quotaPeriod.Microseconds()))))
	name := fmt.Sprintf("weft-bench-%d-%d", os.Getpid(), quotas.Add(1))
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	root, second := cpuGroups(string(mounts))
	if root == "" {
		return nil, errors.New("a quota needs control groups with the cpu controller, and none are mounted")
	}
	if second { // the controller may not be on for the groups below
		_ = os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+cpu"), 0o644)
	}
	q := &quota{filepath.Join(root, name)}
	if err := os.Mkdir(q.dir, 0o755); err != nil {
		return nil, fmt.Errorf("a quota needs root: %w", err)
	}
	if second {
		err = os.WriteFile(filepath.Join(q.dir, "cpu.max"), fmt.Appendf(nil, "%s %d", share, quotaPeriod.Microseconds()), 0o644)
	} else {
		err = errors.Join(os.WriteFile(filepath.Join(q.dir, "cpu.cfs_period_us"), fmt.Append(nil, quotaPeriod.Microseconds()), 0o644),
			os.WriteFile(filepath.Join(q.dir, "cpu.cfs_quota_us"), []byte(share), 0o644))
	}
	if err != nil {
		q.remove()
		return nil, fmt.Errorf("a quota of %s us in %s: %w", share, quotaPeriod, err)
	}
	return q, nil
}

// cpuGroups finds where control groups with the cpu controller are mounted, and whether they are of version 2.
func cpuGroups(mounts string) (root string, second bool) {
	for line := range strings.Lines(mounts) {
		f := strings.Fields(line)
		if len(f) < 4 {
			continue
		}
		switch f[2] {
		case "cgroup":
			for _, option := range strings.Split(f[3], ",") {
				if option == "cpu" {
					return f[1], false
				}
			}
		case "cgroup2":
			if have, err := os.ReadFile(filepath.Join(f[1], "cgroup.controllers")); err == nil && strings.Contains(" "+string(have)+" ", "cpu ") {
				root, second = f[1], true
			}
		}
	}
	return root, second
}

// add puts a process under the quota.
func (q *quota) add(pid int) error {
	return os.WriteFile(filepath.Join(q.dir, "cgroup.procs"), fmt.Append(nil, pid), 0o644)
}

// remove removes the group once its processes are gone.
func (q *quota) remove() {
	for range 100 {
		if err := os.Remove(q.dir); err == nil || errors.Is(err, os.ErrNotExist) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// peerPID is the process at the other end of a Unix socket.
func peerPID(c net.Conn) (int, error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return 0, fmt.Errorf("%s has no process", c.RemoteAddr())
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) { cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, err
	}
	if failed != nil {
		return 0, failed
	}
	return int(cred.Pid), nil
}
