package node

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/weft-fabric/weft/run/coord"
	"github.com/weft-fabric/weft/run/elastic"
	"github.com/weft-fabric/weft/run/launch"
)

func slots(n int) (list []int) {
	for i := range n {
		list = append(list, i)
	}
	return list
}

// A rank that is killed, or ends with a code, is out at once, started again under
// its slot and let in, and nobody else is started again.
func TestAProcessDies(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		sig  syscall.Signal
		says string
	}{{"killed", syscall.SIGKILL, "SIGKILL"}, {"code", syscall.SIGUSR1, "code 3"}} {
		t.Run(c.name, func(t *testing.T) {
			h := open(t, "follower", func(c *Config) {
				c.Slots, c.Restarts, c.Policy = slots(3), 1, coord.Policy{Min: 1, Max: 3}
			})
			h.steps(0, 3)
			was := h.signal(1, c.sig)
			e := h.await("its end", func(e Event) bool { return e.Kind == Exited && e.Slot == 1 })
			if e.Pid != was || !strings.Contains(e.Exit.String(), c.says) {
				t.Errorf("%v; sent %v to %d", e.Exit, c.sig, was)
			}
			e = h.await("an epoch without it", func(e Event) bool { return e.Kind == Decided && len(e.Epoch.Members) == 2 })
			// Unless the decider heard of the new process in the same moment.
			died := strings.Contains(e.Epoch.Reason, "worker 1 died: ") && strings.Contains(e.Epoch.Reason, c.says)
			if !died && !strings.Contains(e.Epoch.Reason, "worker 1 was replaced by a new process") {
				t.Errorf("the epoch's reason is %q", e.Epoch.Reason)
			}
			h.steps(1, 3)
			h.n.Stop()
			if err := h.ends(); err != nil {
				t.Error(err)
			}
			if got := h.pids(); len(got) != 4 {
				t.Errorf("%d processes were started, want 4", len(got))
			}
		})
	}
}

// A rank that is stopped is out once it has been silent, and comes back as the same
// process when it goes on.
func TestAProcessIsSilent(t *testing.T) {
	t.Parallel()
	h := open(t, "follower", func(c *Config) { c.Slots, c.Policy = slots(3), coord.Policy{Min: 1, Max: 3} })
	h.steps(0, 3)
	was := h.signal(2, syscall.SIGSTOP)
	e := h.await("its silence", func(e Event) bool { return e.Kind == Silent })
	if e.Slot != 2 || e.Pid != was || !strings.Contains(e.Text, "silent for") {
		t.Errorf("%+v", e)
	}
	h.steps(0, 2)
	if got := h.signal(2, syscall.SIGCONT); got != was {
		t.Errorf("slot 2 is process %d, was %d", got, was)
	}
	h.await("it to speak", func(e Event) bool { return e.Kind == Heard && e.Slot == 2 && e.Pid == was })
	h.steps(2, 3)
	h.n.Stop()
	if err := h.ends(); err != nil {
		t.Error(err)
	}
	if got := h.pids(); len(got) != 3 {
		t.Errorf("%d processes were started, want 3", len(got))
	}
}

// One that is stopped and then killed is started again once.
func TestASilentProcessIsKilled(t *testing.T) {
	t.Parallel()
	h := open(t, "follower", func(c *Config) {
		c.Slots, c.Restarts, c.Policy = slots(2), 1, coord.Policy{Min: 1, Max: 2}
	})
	h.steps(0, 2)
	h.signal(1, syscall.SIGSTOP)
	h.await("its silence", func(e Event) bool { return e.Kind == Silent && e.Slot == 1 })
	h.signal(1, syscall.SIGKILL)
	h.steps(1, 2)
	h.n.Stop()
	if err := h.ends(); err != nil {
		t.Error(err)
	}
	if n := h.count(Heard); n != 0 {
		t.Errorf("a dead process was heard %d times", n)
	}
}

// A slot whose process fails more often than it may stays empty; the others go on
// and the failure is told in the end, with the last words.
func TestRestartsAreUsedUp(t *testing.T) {
	t.Parallel()
	h := open(t, "follower", func(c *Config) {
		c.Slots, c.Restarts, c.Policy = slots(3), 1, coord.Policy{Min: 1, Max: 3}
	})
	h.steps(1, 3)
	h.signal(1, syscall.SIGUSR1)
	h.steps(1, 3)
	h.signal(1, syscall.SIGUSR1)
	h.await("the end of it", func(e Event) bool { return e.Kind == GaveUp && e.Slot == 1 })
	h.steps(0, 2)
	h.n.Stop()
	var f *launch.Failure
	if err := h.ends(); !errors.As(err, &f) || f.Exit.Code != 3 || !strings.Contains(err.Error(), "last words") {
		t.Errorf("%v", err)
	}
	if got := h.pids(); len(got) != 4 {
		t.Errorf("%d processes were started, want 4", len(got))
	}
}

// Fewer than the least are left: they save what there is, and the job ends.
func TestTooFewAreLeft(t *testing.T) {
	t.Parallel()
	h := open(t, "follower", func(c *Config) { c.Slots, c.Policy = slots(3), coord.Policy{Min: 3, Max: 3} })
	h.steps(0, 3)
	h.signal(2, syscall.SIGKILL)
	h.await("what is left to be saved", times(2, func(e Event) bool { return e.Word.Name == saved && e.Slot < 2 }))
	err := h.ends()
	// The failure that led to it has the first word, if it was one.
	var halt *HaltError
	var f *launch.Failure
	if !errors.As(err, &f) && !errors.As(err, &halt) {
		t.Errorf("%v", err)
	}
	if n := h.count(Started); n != 3 {
		t.Errorf("%d processes were started, want 3", n)
	}
}

// A host that is left alone by the failure of another ends with a HaltError.
func TestTooFewAreLeftOnAnotherHost(t *testing.T) {
	t.Parallel()
	policy := coord.Policy{Min: 2, Max: 2}
	a := open(t, "follower", func(c *Config) { c.Slots, c.Policy = []int{0}, policy })
	b := open(t, "follower", func(c *Config) { c.Slots, c.Policy, c.Host = []int{1}, policy, "there" })
	a.steps(0, 2)
	b.signal(0, syscall.SIGKILL)
	var f *launch.Failure
	if err := b.ends(); !errors.As(err, &f) {
		t.Errorf("there: %v", err)
	}
	a.await("what is left to be saved", func(e Event) bool { return e.Word.Name == saved })
	// How it ended is known to whom decides at the time; if that was the other host's
	// agent, and it was gone before it had decided, it is not.
	var halt *HaltError
	if err := a.ends(); !errors.As(err, &halt) || !strings.Contains(err.Error(), "worker 1 died") &&
		!strings.Contains(err.Error(), "worker 1 is gone") {
		t.Errorf("here: %v", err)
	}
}

// Two hosts in one job: ranks are in the order of slots, a failure on one of them
// concerns the other, and both stop when one is told to, although fewer than the
// least are left then.
func TestTwoHosts(t *testing.T) {
	t.Parallel()
	policy := coord.Policy{Min: 2, Max: 4}
	a := open(t, "follower", func(c *Config) { c.Slots, c.Policy, c.Restarts = []int{0, 2}, policy, 1 })
	b := open(t, "follower", func(c *Config) { c.Slots, c.Policy, c.Restarts, c.Host = []int{1, 3}, policy, 1, "there" })
	a.steps(0, 4)
	b.steps(1, 4)
	a.signal(0, 0)
	b.signal(1, syscall.SIGKILL)
	a.steps(2, 3)
	a.steps(0, 4)
	b.n.Stop()
	for _, h := range []*house{a, b} {
		if err := h.ends(); err != nil {
			t.Errorf("%v; %s", err, h.story())
		}
	}
	if n := len(a.pids()); n != 2 {
		t.Errorf("%d processes were started on the host without a failure, want 2", n)
	}
	if n := len(b.pids()); n != 3 {
		t.Errorf("%d processes were started on the other, want 3", n)
	}
}

// An error of the job itself ends it, and nothing is started again.
func TestTheJobIsBroken(t *testing.T) {
	t.Parallel()
	h := open(t, "follower", func(c *Config) {
		c.Slots, c.Restarts, c.Policy = slots(3), 5, coord.Policy{Min: 1, Max: 3}
	})
	h.steps(1, 3)
	h.signal(1, syscall.SIGUSR2)
	if err := h.ends(); err == nil || err.Error() != errJob.Error() {
		t.Errorf("%v, want %v", err, errJob)
	}
	if n := h.count(Started); n != 3 {
		t.Errorf("%d processes were started, want 3", n)
	}
}

// A rank that gets SIGTERM leaves after a step, and the others go on.
func TestOneLeaves(t *testing.T) {
	t.Parallel()
	h := open(t, "follower", func(c *Config) {
		c.Slots, c.Restarts, c.Policy = slots(3), 5, coord.Policy{Min: 1, Max: 3}
	})
	h.steps(1, 3)
	h.mu.Lock()
	before := len(h.events) // ranks that come one after another may have epochs that are replaced while they form
	h.mu.Unlock()
	h.signal(1, syscall.SIGTERM)
	e := h.await("its end", func(e Event) bool { return e.Kind == Exited && e.Slot == 1 })
	if !e.Exit.OK() {
		t.Errorf("%v", e.Exit)
	}
	h.steps(0, 2)
	h.steps(2, 2)
	h.n.Stop()
	if err := h.ends(); err != nil {
		t.Error(err)
	}
	for _, e := range h.events[before:] {
		if e.Word.Kind == elastic.Failed || e.Word.Kind == elastic.Stuck {
			t.Errorf("slot %d: %+v", e.Slot, e.Word)
		}
	}
}

// The agent is told to end: all ranks get SIGTERM.
func TestTheAgentIsToEnd(t *testing.T) {
	t.Parallel()
	h := open(t, "follower", func(c *Config) {
		c.Slots, c.Restarts, c.Policy = slots(2), 5, coord.Policy{Min: 1, Max: 2}
	})
	h.steps(1, 2)
	h.end()
	if err := h.ends(); err == nil {
		t.Error("no word of what ended it")
	}
	if n := h.count(Started); n != 2 {
		t.Errorf("%d processes were started, want 2", n)
	}
}

// A slot without a number gets the lowest that is free.
func TestAnySlot(t *testing.T) {
	t.Parallel()
	policy := coord.Policy{Min: 2, Max: 2}
	a := open(t, "follower", func(c *Config) { c.Slots, c.Policy = []int{0}, policy })
	a.await("its entry", func(e Event) bool { return e.Kind == Placed }) // slot 0 is taken from then on
	b := open(t, "follower", func(c *Config) { c.Slots, c.Policy, c.Host = []int{Any}, policy, "there" })
	b.await("its place", func(e Event) bool { return e.Kind == Placed && e.Place.Standing == coord.Active })
	a.steps(0, 2)
	a.n.Stop()
	for _, h := range []*house{a, b} {
		if err := h.ends(); err != nil {
			t.Error(err)
		}
	}
}

func TestWrongConfigurations(t *testing.T) {
	for _, c := range []Config{{}, {Slots: []int{0}}, {Command: []string{"true"}}} {
		if n, err := New(c); err == nil {
			t.Errorf("%+v: %v", c, n)
		}
	}
}

// A program that is not there is told at once.
func TestACommandThatIsNotThere(t *testing.T) {
	t.Parallel()
	h := open(t, "follower", func(c *Config) {
		c.Slots, c.Policy, c.Command = slots(2), coord.Policy{Min: 1, Max: 2}, []string{"/no/such/program"}
	})
	if err := h.ends(); err == nil || !strings.Contains(err.Error(), "/no/such/program") {
		t.Errorf("%v", err)
	}
}
