// Package bounded keeps tests short. Their processes have a time limit each, after which the test
// fails with what it was waiting for, and what only repeats other tests is left to make long.
package bounded

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Limit is how long a process of a test may run, Build a compiler with an empty cache.
const (
	Limit = slower * time.Minute
	Build = 8 * time.Minute
)

// outputTime is how long a process that has ended may leave its output open, as one that
// it started may.
const outputTime = 5 * time.Second

// Long says that tests try everything that they can (make long, WEFT_TEST_LONG=1), and not only
// what differs from the rest.
func Long() bool { return os.Getenv("WEFT_TEST_LONG") != "" }

// First is the first n of a list, and all of it for long tests.
func First[T any](n int, list ...T) []T {
	if Long() {
		return list
	}
	return list[:n]
}

// Times is how often something is tried that differs little from time to time: long for long tests, short otherwise.
func Times(short, long int) int {
	if Long() {
		return long
	}
	return short
}

// A process that was started in the background or with nohup ignores interrupts or hangups, and so would those that it starts:
// tests that send them would fail there alone. One that listens to a signal does not hand on that it was ignored.
func init() {
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGHUP} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
}

// Command is exec.Command for a test. The process ends with the test at the latest.
func Command(t testing.TB, name string, args ...string) *exec.Cmd {
	t.Helper()
	return Within(t, Limit, name, args...)
}

// Within is Command with another limit.
func Within(t testing.TB, limit time.Duration, name string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithCancelCause(context.Background())
	late := errors.New("late")
	atEnd(t, func(test context.Context) {
		new(clock).follow(test, limit)
		if test.Err() == nil {
			cancel(late)
		}
	})
	t.Cleanup(func() { cancel(nil) })
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = outputTime
	cmd.Cancel = func() error {
		if context.Cause(ctx) == late {
			t.Errorf("killed, as it did not end within %v: %s", limit, strings.Join(cmd.Args, " "))
		}
		return cmd.Process.Kill()
	}
	return cmd
}

// Server is exec.Command for a process that lives as long as the test wants it, and no
// longer than the test: whoever waits for what it does has a limit.
func Server(t testing.TB, name string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = outputTime
	return cmd
}

// Dir is a folder like t.TempDir's, for a process whose own processes may still write there when it has ended, as those of
// a browser do. It is removed when they no longer do.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "weft-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for end := time.Now().Add(Limit); ; time.Sleep(10 * time.Millisecond) { // between attempts
			err := os.RemoveAll(dir)
			if err == nil {
				return
			}
			if time.Now().After(end) {
				t.Errorf("%s is still written to: %v", dir, err)
				return
			}
		}
	})
	return dir
}

// Of are the processes with a variable, as NAME=VALUE, in their environment: what a test
// started, and what that started. It gives their numbers and command lines.
func Of(variable string) (pids []int, lines []string) {
	files, _ := filepath.Glob("/proc/[0-9]*/environ") // the pattern is right
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil || !slices.Contains(strings.Split(string(b), "\x00"), variable) {
			continue
		}
		dir := filepath.Dir(f)
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == os.Getpid() {
			continue
		}
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline")) // it may have ended
		pids, lines = append(pids, pid), append(lines, strings.Join(strings.FieldsFunc(string(line), func(r rune) bool { return r == 0 }), " "))
	}
	return pids, lines
}

// Guard fails a test and kills the processes with a variable in their environment, unless
// done is called within a limit. It is for tests whose processes others start.
func Guard(t testing.TB, limit time.Duration, variable string) (done func()) {
	t.Helper()
	guarded, cancel := context.WithCancel(context.Background())
	go func() {
		new(clock).follow(guarded, limit)
		if guarded.Err() != nil {
			return
		}
		pids, lines := Of(variable)
		t.Errorf("did not end within %v; killed are:\n  %s", limit, strings.Join(lines, "\n  "))
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}()
	return cancel
}
