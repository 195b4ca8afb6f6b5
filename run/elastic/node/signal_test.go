package node

import (
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weft-fabric/weft/run/coord"
)

// hasty kills the process of slot 0 as soon as one prints.
type hasty struct {
	h    *house
	open chan struct{} // closed when h is there
	mu   sync.Mutex
	pids []int // that were signalled
}

func (w *hasty) Write(b []byte) (int, error) {
	<-w.open
	if strings.Contains(string(b), "pid=") {
		pid := w.h.n.Signal(0, syscall.SIGKILL)
		w.mu.Lock()
		w.pids = append(w.pids, pid)
		w.mu.Unlock()
	}
	return w.h.Write(b)
}

// A process that prints runs, and a signal that is sent because of its first word reaches it.
func TestSignalAtTheFirstWord(t *testing.T) {
	t.Parallel()
	w := &hasty{open: make(chan struct{})}
	w.h = open(t, "plain", func(c *Config) {
		c.Slots, c.Policy, c.Restarts, c.Settle = []int{0}, coord.Policy{Min: 1, Max: 1, Settle: time.Millisecond}, 5, time.Millisecond
		c.Stdout = w
	})
	close(w.open)
	w.h.await("the slot given up", func(e Event) bool { return e.Kind == GaveUp })
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := map[int]bool{0: true}
	for i, pid := range w.pids {
		if seen[pid] {
			t.Errorf("the signal at the first word of process %d went to process %d; all of them: %v", i, pid, w.pids)
		}
		seen[pid] = true
	}
	if len(w.pids) != 6 {
		t.Errorf("%d processes printed, want 6: %v", len(w.pids), w.pids)
	}
}
