package node

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/weft-fabric/weft/run/coord"
	"github.com/weft-fabric/weft/run/launch"
)

// ended waits for the end of a slot's process.
func (h *house) ended(slot int) {
	h.t.Helper()
	h.await(fmt.Sprintf("the end of slot %d", slot), func(e Event) bool { return e.Kind == Exited && e.Slot == slot })
}

// byRank sorts what the processes of a launch were told.
func byRank(t *testing.T, all map[string]told, alive map[string]bool) map[string]told {
	t.Helper()
	ranks := map[string]told{}
	for p, one := range all {
		if !alive[p] {
			continue
		}
		if ranks[one["RANK"]] != nil {
			t.Errorf("rank %s twice in %v", one["RANK"], all)
		}
		ranks[one["RANK"]] = one
	}
	return ranks
}

// living are the processes that have been started and have not ended.
func (h *house) living() map[string]bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := map[string]bool{}
	for _, e := range h.events {
		switch e.Kind {
		case Started:
			all[pid(e.Pid)] = true
		case Exited:
			delete(all, pid(e.Pid))
		}
	}
	return all
}

// The environment is that of torchrun, over two hosts.
func TestPlainEnvironment(t *testing.T) {
	t.Parallel()
	policy := coord.Policy{Min: 4, Max: 4}
	a := open(t, "plain", func(c *Config) { c.Slots, c.Policy, c.Env = []int{0, 1}, policy, append(c.Env, "OWN=yes") })
	b := open(t, "plain", func(c *Config) { c.Slots, c.Policy, c.Env = []int{2, 3}, policy, append(c.Env, "OWN=yes") })
	var first told
	for i, h := range []*house{a, b} {
		for _, one := range byRank(t, h.prints(2), h.living()) {
			if first == nil {
				first = one
			}
			rank, err := strconv.Atoi(one["RANK"])
			if err != nil || rank/2 != i || one["LOCAL_RANK"] != strconv.Itoa(rank%2) || one["WEFT_SLOT"] != one["RANK"] {
				t.Errorf("host %d: %v", i, one)
			}
			for name, want := range map[string]string{"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "0", "OWN": "yes",
				"MASTER_ADDR": first["MASTER_ADDR"], "MASTER_PORT": first["MASTER_PORT"], "WEFT_TOKEN": first["WEFT_TOKEN"],
				"WEFT_EPOCH": first["WEFT_EPOCH"]} {
				if one[name] != want || want == "" {
					t.Errorf("rank %d: %s is %q, want %q", rank, name, one[name], want)
				}
			}
		}
	}
	// Rank 0 can listen where the others are told to find it.
	ln, err := net.Listen("tcp", net.JoinHostPort(first["MASTER_ADDR"], first["MASTER_PORT"]))
	if err != nil {
		t.Error(err)
	} else {
		ln.Close()
	}
	for _, h := range []*house{a, b} {
		h.signal(0, syscall.SIGUSR2)
		h.signal(1, syscall.SIGUSR2)
	}
	for _, h := range []*house{a, b} {
		if err := h.ends(); err != nil {
			t.Errorf("%v; %s", err, h.story())
		}
		if n := h.count(Started); n != 2 {
			t.Errorf("%d processes were started, want 2", n)
		}
	}
}

// One rank has done its work, the other fails for good: the job ends with that failure
// instead of waiting for somebody who will not come.
func TestPlainFailsAfterAnotherIsDone(t *testing.T) {
	t.Parallel()
	h := open(t, "plain", func(c *Config) { c.Slots, c.Policy = []int{0, 1}, coord.Policy{Min: 2, Max: 2} })
	h.prints(2)
	h.signal(1, syscall.SIGUSR2)
	h.ended(1)
	h.signal(0, syscall.SIGUSR1)
	var failure *launch.Failure
	if err := h.ends(); !errors.As(err, &failure) || failure.Exit.Code != 3 {
		t.Errorf("the job ended with %v; %s", err, h.story())
	}
}

// A rank of two hosts fails: all ranks of both are started again, together and in
// the places they had, and only when every process of the round before has ended.
func TestPlainRestartsTogether(t *testing.T) {
	t.Parallel()
	policy := coord.Policy{Min: 4, Max: 4}
	set := func(first int) func(*Config) {
		return func(c *Config) { c.Slots, c.Restarts, c.Policy = []int{first, first + 1}, 2, policy }
	}
	a, b := open(t, "plain", set(0)), open(t, "plain", set(2))
	hosts := []*house{a, b}
	last := 0 // epoch
	for round, sig := range []syscall.Signal{0, syscall.SIGUSR1, syscall.SIGKILL} {
		before := [2]map[string]bool{a.living(), b.living()}
		if sig != 0 {
			b.signal(1, sig)
		}
		tokens, epochs := map[string]bool{}, map[string]bool{}
		for i, h := range hosts {
			h.prints(2 * (round + 1))
			ranks := byRank(t, h.prints(2*(round+1)), h.living())
			for r := 2 * i; r < 2*i+2; r++ {
				one := ranks[strconv.Itoa(r)]
				if one == nil || before[i][one["pid"]] || one["WORLD_SIZE"] != "4" || one["TORCHELASTIC_RESTART_COUNT"] != strconv.Itoa(round) {
					t.Errorf("round %d, rank %d: %v; alive before were %v", round, r, one, before[i])
				}
				tokens[one["WEFT_TOKEN"]], epochs[one["WEFT_EPOCH"]] = true, true
			}
		}
		if len(tokens) != 1 || len(epochs) != 1 {
			t.Errorf("round %d: ranks have %d secrets, and are of epochs %v", round, len(tokens), epochs)
		}
		for text := range epochs {
			if e, err := strconv.Atoi(text); err != nil || e <= last {
				t.Errorf("round %d is epoch %q, after %d", round, text, last)
			} else {
				last = e
			}
		}
	}
	// Every process of a round has ended before one of the next begins.
	for _, h := range hosts {
		alive := 0
		h.mu.Lock()
		for _, e := range h.events {
			switch e.Kind {
			case Started:
				if alive++; alive > 2 {
					t.Errorf("pid %d was started beside one of the round before", e.Pid)
				}
			case Exited:
				alive--
			}
		}
		h.mu.Unlock()
	}
	for _, h := range hosts {
		h.signal(0, syscall.SIGUSR2)
		h.signal(1, syscall.SIGUSR2)
	}
	for _, h := range hosts {
		if err := h.ends(); err != nil {
			t.Errorf("%v; %s", err, h.story())
		}
	}
}

// After as many restarts as are allowed the failure is the job's.
func TestPlainRestartsRunOut(t *testing.T) {
	t.Parallel()
	h := open(t, "plain", func(c *Config) {
		c.Slots, c.Restarts, c.Policy = slots(2), 1, coord.Policy{Min: 2, Max: 2}
	})
	for i := range 2 {
		h.prints(2 * (i + 1))
		h.signal(1, syscall.SIGUSR1)
		h.ended(1)
	}
	var f *launch.Failure
	if err := h.ends(); !errors.As(err, &f) || f.Exit.Code != 3 || f.Exit.Rank != 1 {
		t.Errorf("%v; %s", err, h.story())
	}
	if n := h.count(Started); n != 4 {
		t.Errorf("%d processes were started, want 4", n)
	}
}

// A rank that was done begins again with the others: they need it to form their world.
func TestPlainRestartsThoseThatWereDone(t *testing.T) {
	t.Parallel()
	h := open(t, "plain", func(c *Config) {
		c.Slots, c.Restarts, c.Policy = slots(2), 1, coord.Policy{Min: 2, Max: 2}
	})
	h.prints(2)
	h.signal(0, syscall.SIGUSR2)
	h.ended(0)
	h.signal(1, syscall.SIGUSR1)
	h.prints(4)
	h.signal(0, syscall.SIGUSR2)
	h.signal(1, syscall.SIGUSR2)
	if err := h.ends(); err != nil {
		t.Errorf("%v; %s", err, h.story())
	}
}

// With Restart One only the rank that failed is started again, in its place; the
// others keep on.
func TestPlainRestart(t *testing.T) {
	t.Parallel()
	h := open(t, "plain", func(c *Config) {
		c.Slots, c.Restarts, c.Policy, c.Restart = slots(3), 2, coord.Policy{Min: 3, Max: 3}, One
	})
	h.prints(3)
	before := h.living()
	for i, sig := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGKILL} {
		was := pid(h.signal(1, sig))
		h.ended(1)
		all := h.prints(4 + i)
		delete(before, was)
		now := h.living()
		for p := range before {
			if !now[p] {
				t.Errorf("process %s was ended although it did not fail", p)
			}
		}
		one := byRank(t, all, now)["1"]
		if one == nil || before[one["pid"]] || one["WORLD_SIZE"] != "3" || one["TORCHELASTIC_RESTART_COUNT"] != strconv.Itoa(i+1) {
			t.Errorf("rank 1 was started again with %v", one)
		}
	}
	for i := range 3 {
		h.signal(i, syscall.SIGUSR2)
	}
	if err := h.ends(); err != nil {
		t.Errorf("%v; %s", err, h.story())
	}
	if n := h.count(Started); n != 5 {
		t.Errorf("%d processes were started, want 5", n)
	}
}

// A slot is given up: the others are started again with the ranks that are left,
// and none of these restarts counts.
func TestPlainRanksChange(t *testing.T) {
	t.Parallel()
	h := open(t, "plain", func(c *Config) { c.Slots, c.Policy = slots(3), coord.Policy{Min: 1, Max: 3} })
	h.prints(3)
	h.signal(0, syscall.SIGUSR1)
	h.await("the slot to be given up", func(e Event) bool { return e.Kind == GaveUp && e.Slot == 0 })
	h.await("the others to be replaced", times(2, func(e Event) bool { return e.Kind == Replaced }))
	ranks := byRank(t, h.prints(5), h.living())
	for rank, slot := range map[string]string{"0": "1", "1": "2"} {
		one := ranks[rank]
		if one["WEFT_SLOT"] != slot || one["WORLD_SIZE"] != "2" || one["TORCHELASTIC_RESTART_COUNT"] != "0" {
			t.Errorf("rank %s is %v, want slot %s of 2 ranks", rank, one, slot)
		}
	}
	h.signal(1, syscall.SIGUSR2)
	h.signal(2, syscall.SIGUSR2)
	var f *launch.Failure
	if err := h.ends(); !errors.As(err, &f) || f.Exit.Code != 3 {
		t.Errorf("%v", err)
	}
}

// Ranks that have done their work leave the others to do theirs, at their own pace
// and with the ranks they have, whatever the least number is.
func TestPlainOneIsDoneFirst(t *testing.T) {
	t.Parallel()
	h := open(t, "plain", func(c *Config) {
		c.Slots, c.Restarts, c.Policy, c.Restart = slots(3), 1, coord.Policy{Min: 3, Max: 3}, One
	})
	h.prints(3)
	h.signal(0, syscall.SIGUSR2)
	h.ended(0)
	h.signal(2, syscall.SIGUSR1) // one fails after another is done
	h.ended(2)
	one := byRank(t, h.prints(4), h.living())["2"]
	if one["WORLD_SIZE"] != "3" {
		t.Errorf("rank 2 was started again with %v", one)
	}
	h.signal(2, syscall.SIGUSR2)
	h.ended(2)
	h.signal(1, syscall.SIGUSR2)
	if err := h.ends(); err != nil {
		t.Errorf("%v; %s", err, h.story())
	}
	if n := h.count(Replaced); n != 0 {
		t.Errorf("%d processes were replaced", n)
	}
}

// Two hosts that are done do not take each other's leaving for a failure.
func TestPlainTwoHostsAreDone(t *testing.T) {
	t.Parallel()
	policy := coord.Policy{Min: 2, Max: 2}
	a := open(t, "plain", func(c *Config) { c.Slots, c.Policy = []int{0}, policy })
	b := open(t, "plain", func(c *Config) { c.Slots, c.Policy = []int{1}, policy })
	a.prints(1)
	b.prints(1)
	b.signal(0, syscall.SIGUSR2)
	b.ended(1)
	a.signal(0, syscall.SIGUSR2)
	for _, h := range []*house{a, b} {
		if err := h.ends(); err != nil {
			t.Errorf("%v; %s", err, h.story())
		}
	}
}

// Fewer than the least are left: the rest get SIGTERM, in which a program saves
// what it has.
func TestPlainTooFewAreLeft(t *testing.T) {
	t.Parallel()
	h := open(t, "plain", func(c *Config) { c.Slots, c.Policy = slots(2), coord.Policy{Min: 2, Max: 2} })
	h.prints(2)
	h.signal(1, syscall.SIGKILL)
	err := h.ends()
	if err == nil || !strings.Contains(err.Error(), "SIGKILL") {
		t.Errorf("%v", err)
	}
	for _, e := range h.events {
		if e.Kind == Exited && e.Slot == 0 && e.Exit.Code != 143 {
			t.Errorf("slot 0: %v, want the 143 of SIGTERM", e.Exit)
		}
	}
	if n := h.count(Started); n != 2 {
		t.Errorf("%d processes were started, want 2", n)
	}
}
