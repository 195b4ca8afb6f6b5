// Package turns reads how the kernel has shared its processors out among the threads of a process. A thread that is ready to
// run and is not let run has a busy host; one that sleeps has no work.
package turns

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Turn is what a thread has had so far.
type Turn struct {
	Ran    time.Duration // on a processor
	Waited time.Duration // for a processor, ready to run
	Times  int64         // that it was given one
}

// Of gives the threads of a process by their numbers; dir is the folder of the process in /proc. It gives none where the
// process is gone or the kernel does not count.
func Of(dir string) map[string]Turn {
	tasks, _ := os.ReadDir(filepath.Join(dir, "task"))
	out := make(map[string]Turn, len(tasks))
	for _, t := range tasks {
		b, err := os.ReadFile(filepath.Join(dir, "task", t.Name(), "schedstat"))
		if f := strings.Fields(string(b)); err == nil && len(f) > 2 { // time on a processor, time of waiting for one, turns
			ran, _ := strconv.ParseInt(f[0], 10, 64)
			waited, _ := strconv.ParseInt(f[1], 10, 64)
			times, _ := strconv.ParseInt(f[2], 10, 64)
			out[t.Name()] = Turn{time.Duration(ran), time.Duration(waited), times}
		}
	}
	return out
}
