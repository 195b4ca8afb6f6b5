package node

import (
	"bufio"
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/coord"
	"github.com/weft-fabric/weft/run/elastic/internal/observe"
)

const secret = "a secret of the agents"

// agent is a host's agent as a process of its own, which a test can kill. Its workers have leases that end long after its
// observers miss it, and short enough for it to come back in time should it be called lost because it did not run for a while.
func agent() int {
	ctx := context.Background()
	client, err := coord.Dial(ctx, coord.Config{Endpoints: []string{os.Getenv("WEFT_TEST_NODE_COORD")}, Job: os.Getenv("WEFT_TEST_NODE_JOB"),
		Token: token, TTL: 20 * time.Second})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	n, err := New(Config{Client: client, Command: []string{os.Args[0]}, Env: []string{role + "=plain"}, Host: "there", Secret: secret,
		Slots:  []int{6, 7},
		Policy: coord.Policy{Min: 4, Max: 8, Settle: 200 * time.Millisecond}, Settle: 200 * time.Millisecond, Watch: func(e Event) {
			if e.Kind == Started {
				fmt.Println("started", e.Pid)
			}
		}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := n.Run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// The agent of a host is killed, and its ranks with it. The other agents observe it, and one epoch follows that is without
// all of its ranks, before their leases end.
func TestALostHostIsReportedByItsObservers(t *testing.T) {
	t.Parallel()
	var houses []*house
	for i := range 3 {
		houses = append(houses, open(t, "plain", func(c *Config) {
			c.Slots, c.Secret, c.Host = []int{2 * i, 2*i + 1}, secret, fmt.Sprint("host", i)
			c.Policy = coord.Policy{Min: 4, Max: 8}
		}))
	}
	cmd := bounded.Server(t, os.Args[0])
	cmd.Env = append(os.Environ(), role+"=agent", "WEFT_TEST_NODE_COORD="+address, "WEFT_TEST_NODE_JOB="+jobOf(t))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	lines := bufio.NewScanner(out)
	for n := 0; n < 2 && lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "started ") {
			n++
		}
	}
	full := func(e Event) bool { return e.Kind == Decided && len(e.Epoch.Members) == 8 }
	var number uint64
	for _, h := range houses {
		number = max(number, h.await("an epoch of 8", full).Epoch.Number)
	}
	heard := func() bool { // each of the three has heard each other host
		for _, h := range houses {
			if h.n.observer.Counters().Heard < 3 {
				return false
			}
		}
		return true
	}
	bounded.Until(t, limit, "agents that hear one another", heard)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// The epoch may come before the word of those that observed it, but for the one that reported it.
	for _, h := range houses {
		e := h.await("an epoch without it", func(e Event) bool {
			return e.Kind == Decided && e.Epoch.Number > number && strings.Contains(e.Epoch.Reason, "worker 6 died")
		})
		if !strings.Contains(e.Epoch.Reason, "worker 6 died: host there is lost") ||
			!strings.Contains(e.Epoch.Reason, "worker 7 died: host there is lost") {
			t.Errorf("epoch %d: %s; want both ranks of the lost host gone in one epoch", e.Epoch.Number, e.Epoch.Reason)
		}
		for _, m := range e.Epoch.Members {
			if m.ID == 6 || m.ID == 7 {
				t.Errorf("epoch %d still has worker %d", e.Epoch.Number, m.ID)
			}
		}
	}
	said := 0
	for _, h := range houses {
		h.mu.Lock()
		for _, e := range h.events {
			if e.Kind == Lost && strings.HasPrefix(e.Text, "host there is lost") {
				said++
			}
		}
		h.mu.Unlock()
	}
	if said == 0 {
		t.Error("no agent said that the host is lost")
	}
}

func TestAgentsAreReadAsTheyAreWritten(t *testing.T) {
	for _, h := range []observe.Host{{ID: 0, Addr: netip.MustParseAddrPort("10.0.0.3:1")},
		{ID: 1 << 30, Addr: netip.MustParseAddrPort("[fd00::1]:65535")}} {
		s := coord.Seat{Address: netip.AddrPortFrom(h.Addr.Addr(), 99).String(), Agent: formatAgent(h.ID, int(h.Addr.Port()))}
		got, err := agentOf(s)
		if err != nil || got != h {
			t.Errorf("%+v is read as %v, %v", s, got, err)
		}
	}
	for _, bad := range []string{"", ":", "12345678", "1234567:5", "fffffffe:5", "12345678:port", "12345678:0", "12345678:70000",
		"-2345678:5"} {
		if h, err := agentOf(coord.Seat{Address: "10.0.0.1:5", Agent: bad}); err == nil {
			t.Errorf("%q is read as %v", bad, h)
		}
	}
	if h, err := agentOf(coord.Seat{Address: "host:5", Agent: "12345678:5"}); err == nil {
		t.Errorf("a worker at a name is read as %v", h)
	}
}
