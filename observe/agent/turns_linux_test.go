package agent

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/observe/watch"
)

// On a starved host threads are looked at: those of a loop run or wait to, those of a program that sleeps do neither.
func TestTurnsOfThreads(t *testing.T) {
	start := func(args ...string) *process {
		c := bounded.Server(t, args[0], args[1:]...)
		if err := c.Start(); err != nil {
			t.Skip(err)
		}
		t.Cleanup(func() { c.Process.Kill(); c.Wait() })
		return &process{dir: fmt.Sprintf("/proc/%d", c.Process.Pid)}
	}
	loop, sleeper := start("sh", "-c", "while :; do :; done"), start("sleep", "60")
	for b := []byte(nil); !strings.Contains(string(b), "(sleep) S "); runtime.Gosched() { // until it sleeps
		b, _ = os.ReadFile(sleeper.dir + "/stat")
	}
	for range 2 {
		if loop.look(time.Now(), false) != nil {
			t.Error("threads are looked at on a host that is not starved")
		}
	}
	var at, asleep *watch.Turns
	for late := time.Now().Add(bounded.Limit); at == nil || at.Ran+at.Waited < 0.3; {
		now := time.Now()
		at, asleep = loop.look(now, true), sleeper.look(now, true)
		if now.After(late) {
			t.Skipf("this kernel does not count how long threads wait: %+v", at)
		}
	}
	if asleep == nil || asleep.Ran+asleep.Waited > 0 || asleep.Seen != at.Seen {
		t.Errorf("a program that sleeps had %+v, a loop %+v", asleep, at)
	}
	// What was is told on, and a time without looks is none in which it did nothing.
	was := *at
	loop.look(time.Now(), false)
	if again := loop.look(time.Now(), true); again == nil || *again != was {
		t.Errorf("%+v after a pause, %+v before", again, was)
	}
}
