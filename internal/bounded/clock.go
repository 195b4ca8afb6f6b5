package bounded

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"
)

// A machine that runs tests may stand still for seconds: its host takes the processors away, and when they come back, every
// limit that follows the clock on the wall is over at once. The clock here leaves such gaps out. It ticks, and a tick that comes
// late counts for no more than what a busy machine makes of it.
const (
	tick = 50 * time.Millisecond
	most = 500 * time.Millisecond
)

// clock adds up how long the machine ran, and how long it stood still.
type clock struct {
	mu         sync.Mutex
	ran, stood time.Duration
	last       time.Time
}

// at counts what has passed since the last tick, and returns how long the machine has run.
func (c *clock) at(now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.last.IsZero() {
		passed := now.Sub(c.last)
		counted := min(passed, most)
		c.ran, c.stood = c.ran+counted, c.stood+passed-counted
	}
	c.last = now
	return c.ran
}

// follow ticks until ctx ends or the machine has run for as long as limit.
func (c *clock) follow(ctx context.Context, limit time.Duration) {
	ticks := time.NewTicker(min(tick, max(limit, 1)))
	defer ticks.Stop()
	for c.at(time.Now()) < limit {
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return
		}
	}
}

// After is closed when the machine has run for as long as limit. Unlike time.After it leaves out the time in which the machine
// stood still.
func After(t testing.TB, limit time.Duration) <-chan struct{} {
	over := make(chan struct{})
	atEnd(t, func(ctx context.Context) {
		new(clock).follow(ctx, limit)
		if ctx.Err() == nil {
			close(over)
		}
	})
	return over
}

// StoodStill counts, until the test ends, how long the machine stands still. What leases and outages come to is not what a test
// expects where that is longer than they are.
func StoodStill(t testing.TB) (sofar func() time.Duration) {
	c := new(clock)
	atEnd(t, func(ctx context.Context) { c.follow(ctx, 24*time.Hour) })
	return func() time.Duration {
		c.at(time.Now())
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.stood
	}
}

// atEnd runs f beside a test, with a context that ends with it.
func atEnd(t testing.TB, f func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

// Until waits for something that tells nobody when it happens, such as a counter or a state of /proc, by looking again and again.
// The test ends when it does not happen within limit. What tells is waited for by a channel instead.
func Until(t testing.TB, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	if !Holds(limit, holds) {
		t.Fatalf("waited %v for: %s", limit, what)
	}
}

// Holds is Until for tests that have more to say about what did not happen.
func Holds(limit time.Duration, holds func() bool) bool {
	var c clock
	for pause := 100 * time.Microsecond; !holds(); pause = min(pause+pause/8, 10*time.Millisecond) {
		if c.at(time.Now()) >= limit {
			return false
		}
		time.Sleep(pause)
	}
	return true
}

// Stopped says whether a process has stopped, as SIGSTOP makes it do a moment later. One that is gone has not.
func Stopped(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	i := bytes.LastIndexByte(stat, ')') // of the command's name, which may hold anything
	return i >= 0 && i+2 < len(stat) && stat[i+2] == 'T'
}
