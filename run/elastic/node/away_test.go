package node

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weft-fabric/weft/run/coord"
)

// Nodes that are not numbered begin at the same time: the ranks of each are neighbours,
// also after a node has gone and another has come.
func TestRanksOfANodeAreNeighbours(t *testing.T) {
	t.Parallel()
	policy := coord.Policy{Min: 4, Max: 12}
	any := func(c *Config) { c.Slots, c.Policy, c.Settle = []int{Any, Any, Any, Any}, policy, time.Second }
	var hosts []*house
	for range 3 {
		hosts = append(hosts, open(t, "plain", any))
	}
	check := func(hosts []*house, world int) {
		t.Helper()
		firsts := map[int]bool{}
		for i, h := range hosts {
			var ranks map[string]told
			h.until("ranks of a world of "+strconv.Itoa(world), func() bool {
				ranks = map[string]told{}
				for _, one := range h.told() {
					if h.alive(one["pid"]) && one["WORLD_SIZE"] == strconv.Itoa(world) {
						ranks[one["RANK"]] = one
					}
				}
				return len(ranks) == 4
			})
			lowest := world
			for r := range ranks {
				n, _ := strconv.Atoi(r)
				lowest = min(lowest, n)
			}
			for r := lowest; r < lowest+4; r++ {
				one := ranks[strconv.Itoa(r)]
				if one == nil || one["LOCAL_RANK"] != strconv.Itoa(r-lowest) || one["LOCAL_WORLD_SIZE"] != "4" ||
					one["GROUP_RANK"] != strconv.Itoa(lowest/4) || one["GROUP_WORLD_SIZE"] != strconv.Itoa(world/4) {
					t.Errorf("host %d: its ranks are %v", i, ranks)
					break
				}
			}
			firsts[lowest] = true
		}
		if len(firsts) != len(hosts) {
			t.Errorf("the hosts' first ranks are %v", firsts)
		}
	}
	check(hosts, 12)
	hosts[1].end()
	_ = hosts[1].ends() // its context has ended
	check([]*house{hosts[0], hosts[2]}, 8)
	hosts[1] = open(t, "plain", any)
	check(hosts, 12)
	for _, h := range hosts {
		for i := range 4 {
			h.signal(i, syscall.SIGUSR2)
		}
	}
	for _, h := range hosts {
		if err := h.ends(); err != nil {
			t.Errorf("%v; %s", err, h.story())
		}
	}
}

// The coordinator is gone for good. Ranks at work go on; once one needs it the agent
// waits as long as it is told to, says so, and ends.
func TestTheCoordinatorIsGone(t *testing.T) {
	for _, verb := range []string{"plain", "follower"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			at, stop, err := begin()
			if err != nil {
				t.Fatal(err)
			}
			defer stop()
			h := openAt(t, at, verb, func(c *Config) {
				c.Slots, c.Restarts, c.Away, c.Policy = slots(2), 3, time.Second, coord.Policy{Min: 1, Max: 2}
			})
			if verb == "plain" {
				h.prints(2)
			} else {
				h.steps(0, 2)
			}
			stop()
			h.await("word of the coordinator", func(e Event) bool {
				return e.Kind == Trouble && strings.Contains(e.Text, at) && strings.Contains(e.Text, "has not answered")
			})
			if h.count(Exited) > 0 {
				t.Errorf("ranks at work were ended; %s", h.story())
			}
			h.signal(1, syscall.SIGKILL)
			var away *AwayError
			if err := h.ends(); !errors.As(err, &away) || !errors.Is(err, coord.ErrUnreachable) || !strings.Contains(err.Error(), at) {
				t.Errorf("%v; %s", err, h.story())
			}
		})
	}
}

// Kill ends the grace.
func TestKillEndsTheGrace(t *testing.T) {
	t.Parallel()
	h := open(t, "stubborn", func(c *Config) {
		c.Slots, c.Grace, c.Policy = slots(2), time.Hour, coord.Policy{Min: 2, Max: 2}
	})
	h.prints(2)
	h.end()
	h.until("the ranks to hear SIGTERM", func() bool { return len(h.lines) == 4 })
	h.n.Kill()
	if err := h.ends(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
