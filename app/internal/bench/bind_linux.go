package bench

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// bind keeps every thread of this process on one of the processors that it may
// use; threads that are started later inherit it.
func bind(rank int) error {
	var may, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		return fmt.Errorf("which processors there are: %w", err)
	}
	cpu, skip := 0, rank%may.Count()
	for ; skip > 0 || !may.IsSet(cpu); cpu++ {
		if may.IsSet(cpu) {
			skip--
		}
	}
	one.Set(cpu)
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, t := range threads {
		id, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		// A thread that ended meanwhile need not be bound.
		if err := unix.SchedSetaffinity(id, &one); err != nil && err != unix.ESRCH {
			return fmt.Errorf("thread %d on processor %d: %w", id, cpu, err)
		}
	}
	return nil
}
