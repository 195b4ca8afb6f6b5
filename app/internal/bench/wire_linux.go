package bench

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// crossed is how many bytes the hosts sent into the network between them since it was made, as the ports of its switches count them.
func (n *Namespaces) crossed() (uint64, error) {
	type answer struct {
		table []byte
		err   error
	}
	got := make(chan answer, 1)
	go func() {
		runtime.LockOSThread() // the thread ends with this: it is in the network's namespace
		table, err := devices("/var/run/netns/" + n.fabric)
		got <- answer{table, err}
	}()
	a := <-got
	if a.err != nil {
		return 0, fmt.Errorf("bytes between hosts: %w", a.err)
	}
	return received(a.table)
}

// devices is the table of the interfaces in a namespace, which the calling thread goes to.
func devices(space string) ([]byte, error) {
	f, err := os.Open(space)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, os.NewSyscallError("setns", err)
	}
	return os.ReadFile("/proc/thread-self/net/dev")
}

// received sums up what the ports of switches took in: those named p and the host's number.
func received(table []byte) (sum uint64, err error) {
	for line := range bytes.Lines(table) {
		name, rest, ok := strings.Cut(strings.TrimSpace(string(line)), ":")
		if fields := strings.Fields(rest); ok && strings.HasPrefix(name, "p") && len(fields) > 0 {
			n, err := strconv.ParseUint(fields[0], 10, 64)
			if err != nil {
				return 0, fmt.Errorf("bytes between hosts: %q of %s", fields[0], name)
			}
			sum += n
		}
	}
	return sum, nil
}
