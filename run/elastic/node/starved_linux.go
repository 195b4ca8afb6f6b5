package node

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// waits is for how long each thread of a process has been ready to run without a processor, by the kernel's count.
func waits(pid int) map[string]time.Duration {
	dir := "/proc/" + strconv.Itoa(pid) + "/task"
	tasks, _ := os.ReadDir(dir)
	out := make(map[string]time.Duration, len(tasks))
	for _, t := range tasks {
		b, err := os.ReadFile(dir + "/" + t.Name() + "/schedstat")
		if f := strings.Fields(string(b)); err == nil && len(f) > 1 { // time on a processor, time of waiting for one, turns
			ns, _ := strconv.ParseInt(f[1], 10, 64)
			out[t.Name()] = time.Duration(ns)
		}
	}
	return out
}
