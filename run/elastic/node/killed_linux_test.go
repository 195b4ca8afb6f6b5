package node

import (
	"syscall"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/coord"
)

// All ranks at work are killed at once: new ones form the job anew, and it ends when
// it is told to. They are stopped before they are killed. Otherwise those that die last
// may bring the first one's successor up to date, and it alone would be too few.
func TestAllAreKilledAtOnce(t *testing.T) {
	t.Parallel()
	h := open(t, "follower", func(c *Config) {
		c.Slots, c.Restarts, c.Policy = slots(3), 100, coord.Policy{Min: 2, Max: 3}
	})
	h.steps(0, 3)
	for range 5 {
		for i := range 3 {
			h.stops(i)
		}
		for i := range 3 {
			h.signal(i, syscall.SIGKILL)
		}
		h.steps(1, 3)
	}
	h.n.Stop()
	if err := h.ends(); err != nil {
		t.Errorf("%v; %s", err, h.story())
	}
}

// stops stops the process of a slot and returns when it stands still.
func (h *house) stops(slot int) {
	h.t.Helper()
	pid := h.signal(slot, syscall.SIGSTOP)
	if !bounded.Holds(limit, func() bool { return bounded.Stopped(pid) }) {
		h.t.Fatalf("process %d of slot %d did not stop; %s", pid, slot, h.story())
	}
}
