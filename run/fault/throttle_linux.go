package fault

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// shared are the sockets of a process that lead to another one.
func shared(from, to int) ([]socket, error) {
	mine, err := sockets(from)
	if err != nil {
		return nil, err
	}
	theirs, err := sockets(to)
	if err != nil {
		return nil, err
	}
	there := map[string]bool{}
	for _, s := range theirs {
		there[s.remote+" "+s.local] = true
	}
	return slices.DeleteFunc(mine, func(s socket) bool { return !there[s.local+" "+s.remote] }), nil
}

// Throttle lets one process send at most bytesPerSecond bytes to another, on every TCP
// connection between them: the kernel paces the sender's sockets. It needs the rights of
// a debugger over the sender (the same user, or its parent). undo takes it back.
func Throttle(from, to int, bytesPerSecond uint64) (connections int, undo func(), err error) {
	between, err := shared(from, to)
	if err != nil {
		return 0, nil, err
	}
	pid, err := unix.PidfdOpen(from, 0)
	if err != nil {
		return 0, nil, fmt.Errorf("process %d: %w", from, err)
	}
	defer unix.Close(pid)
	var held []int
	undo = func() {
		for _, fd := range held {
			_ = pace(fd, ^uint64(0)) // a connection that is gone needs no undoing
			unix.Close(fd)
		}
		held = nil
	}
	for _, s := range between {
		fd, err := unix.PidfdGetfd(pid, s.fd, 0)
		if err != nil {
			undo()
			return 0, nil, fmt.Errorf("a connection of process %d cannot be reached: %w; run as root or as its user", from, err)
		}
		held = append(held, fd)
		if err := pace(fd, bytesPerSecond); err != nil {
			undo()
			return 0, nil, fmt.Errorf("a connection of process %d cannot be paced: %w", from, err)
		}
	}
	if len(held) == 0 {
		return 0, nil, fmt.Errorf("processes %d and %d have no TCP connection with one another", from, to)
	}
	return len(held), undo, nil
}

func pace(fd int, bytesPerSecond uint64) error {
	if bytesPerSecond == ^uint64(0) {
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, -1)
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, int(min(bytesPerSecond, 1<<31-1)))
}

type socket struct {
	fd            int
	local, remote string // as /proc/net/tcp has them
}

// established are the ends of the connections in a process's network, by inode.
func established(dir string) map[string][2]string {
	ends := map[string][2]string{}
	for _, f := range []string{"tcp", "tcp6"} {
		b, err := os.ReadFile(dir + "/net/" + f)
		if err != nil {
			continue
		}
		for l := range strings.Lines(string(b)) {
			if x := strings.Fields(l); len(x) > 9 && x[3] == "01" {
				ends[x[9]] = [2]string{plain(x[1]), plain(x[2])}
			}
		}
	}
	return ends
}

// sockets are the TCP connections of a process.
func sockets(pid int) (list []socket, err error) {
	dir := "/proc/" + strconv.Itoa(pid)
	ends := established(dir)
	fds, err := os.ReadDir(dir + "/fd")
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	for _, d := range fds {
		to, err := os.Readlink(dir + "/fd/" + d.Name())
		inode, ok := strings.CutPrefix(to, "socket:[")
		if err != nil || !ok {
			continue
		}
		if e, ok := ends[strings.TrimSuffix(inode, "]")]; ok {
			n, _ := strconv.Atoi(d.Name())
			list = append(list, socket{n, e[0], e[1]})
		}
	}
	return list, nil
}

// plain writes an IPv4 address that a socket of IPv6 has as one of IPv4.
func plain(s string) string { return strings.TrimPrefix(s, "0000000000000000FFFF0000") }
