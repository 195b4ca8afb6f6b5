//go:build linux

package shm

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ram is the machine's memory in bytes, or 0 if it does not say.
func ram() uint64 { return meminfo("MemTotal:") }

func meminfo(name string) uint64 {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	return field(b, name) << 10
}

// field is the number after a name that begins a line; 0 if it is not there.
func field(b []byte, name string) uint64 {
	for line := range bytes.Lines(b) {
		if f := strings.Fields(string(line)); len(f) >= 2 && f[0] == name {
			n, err := strconv.ParseUint(f[1], 10, 64)
			if err == nil {
				return n
			}
		}
	}
	return 0
}

// addresses is how many bytes of its address space this process may still map
// (ulimit -v).
func addresses() uint64 {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_AS, &limit); err != nil || limit.Cur > 1<<62 {
		return 1 << 62
	}
	b, _ := os.ReadFile("/proc/self/status")
	used := field(b, "VmSize:") << 10
	return limit.Cur - min(limit.Cur, used)
}

// available is how many bytes this process may still take: what the system says is
// available, and what the control groups above the process leave. A memfd is
// bound by no file system's size, and asking the kernel for more than there is
// wakes the one that kills processes, so it is looked up beforehand.
func available() uint64 {
	free := meminfo("MemAvailable:") + meminfo("SwapFree:")
	if free == 0 {
		return 1 << 62
	}
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return free
	}
	return min(free, groupRoom(groups, "/sys/fs/cgroup"))
}

// groupRoom is the least that the control groups of a process leave, version 2
// or 1; page cache that can be dropped counts as free.
func groupRoom(groups []byte, root string) uint64 {
	least := uint64(1 << 62)
	for line := range bytes.Lines(groups) {
		id, rest, _ := strings.Cut(strings.TrimSpace(string(line)), ":")
		controllers, path, ok := strings.Cut(rest, ":")
		if !ok {
			continue
		}
		base, limit, usage := root, "memory.max", "memory.current"
		if id != "0" || controllers != "" {
			if !hasMemory(controllers) {
				continue
			}
			base, limit, usage = filepath.Join(root, "memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"
		}
		for dir := filepath.Join(base, path); strings.HasPrefix(dir, base); dir = filepath.Dir(dir) {
			most, ok1 := number(filepath.Join(dir, limit))
			used, ok2 := number(filepath.Join(dir, usage))
			if !ok1 || !ok2 {
				continue
			}
			stat, _ := os.ReadFile(filepath.Join(dir, "memory.stat"))
			used -= min(used, field(stat, "inactive_file"))
			least = min(least, most-min(most, used))
		}
	}
	return least
}

func hasMemory(controllers string) bool {
	for c := range strings.SplitSeq(controllers, ",") {
		if c == "memory" {
			return true
		}
	}
	return false
}

// number reads a file that holds one; "max" and what is not there are none.
func number(path string) (uint64, bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil
}
