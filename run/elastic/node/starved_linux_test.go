package node

import (
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/launch"
	"github.com/weft-fabric/weft/run/turns"
	"golang.org/x/sys/unix"
)

// A process that is ready to run and is not let is starved; one that sleeps, is stopped or is gone is not.
func TestStarvedIsNotSilent(t *testing.T) {
	start := func(args ...string) *exec.Cmd {
		c := bounded.Server(t, args[0], args[1:]...)
		if err := c.Start(); err != nil {
			t.Skip(err)
		}
		t.Cleanup(func() { c.Process.Kill(); c.Wait() })
		return c
	}
	// Eight loops on one processor: the kernel lets each of them run an eighth of the time.
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Skip(err)
	}
	one := unix.CPUSet{}
	for i := range 1024 {
		if set.IsSet(i) {
			one.Set(i)
			break
		}
	}
	var loops []*exec.Cmd
	for range 8 {
		c := start("sh", "-c", "while :; do :; done")
		if err := unix.SchedSetaffinity(c.Process.Pid, &one); err != nil {
			t.Skip(err)
		}
		loops = append(loops, c)
	}
	sleeper, stopped := start("sleep", "60"), start("sh", "-c", "while :; do :; done")
	if err := stopped.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for stateOf(stopped.Process.Pid) != "T" {
		runtime.Gosched()
	}
	if b, err := os.ReadFile("/proc/" + strconv.Itoa(loops[0].Process.Pid) + "/schedstat"); err != nil || len(b) < 4 {
		t.Skip("this kernel does not count how long threads wait")
	}
	var hungry, asleep, still, gone hunger
	for _, x := range []struct {
		h   *hunger
		pid int
	}{{&hungry, loops[3].Process.Pid}, {&asleep, sleeper.Process.Pid}, {&still, stopped.Process.Pid}, {&gone, 1 << 22}} {
		if x.h.look(x.pid, time.Now()) {
			t.Error("starved at the first look")
		}
	}
	loop := "/proc/" + strconv.Itoa(loops[3].Process.Pid)
	began := turns.Of(loop)
	for { // until the kernel has made it wait for a second
		now := turns.Of(loop)
		d := time.Duration(0)
		for k := range now {
			d += now[k].Waited - began[k].Waited
		}
		if d > time.Second {
			break
		}
	}
	now := time.Now()
	if !hungry.look(loops[3].Process.Pid, now) {
		t.Error("one of eight loops on one processor does not count as starved")
	}
	// Nobody ends a process for not hearing that it is to stop while it is not let hear.
	for _, x := range []struct {
		c    *exec.Cmd
		h    hunger
		mute bool
	}{{loops[3], hungry, false}, {sleeper, asleep, true}, {stopped, still, true}} {
		s := slot{n: &Node{cfg: Config{Silence: time.Second}}, conn: &net.TCPConn{}, proc: &launch.Process{Pid: x.c.Process.Pid}, hunger: x.h,
			heard: now.Add(-2 * time.Second)}
		if s.mute(now) != x.mute {
			t.Errorf("process %v: mute is %v", x.c.Args, !x.mute)
		}
	}
	if asleep.look(sleeper.Process.Pid, now) || still.look(stopped.Process.Pid, now) || gone.look(1<<22, now) {
		t.Error("a process that sleeps, is stopped or is gone counts as starved")
	}
}

// A rank in Go waits for processors in several threads, in none of them for long.
func TestStarvedInManyThreads(t *testing.T) {
	began := time.Now()
	at := func(waited time.Duration) map[string]turns.Turn {
		return map[string]turns.Turn{"1": {Waited: time.Hour}, "2": {Waited: waited}, "3": {Waited: waited}, "4": {Waited: waited},
			"5": {Waited: waited}}
	}
	for _, c := range []struct {
		waited  time.Duration // of each
		starved bool
	}{{0, false}, {30 * time.Millisecond, false}, {280 * time.Millisecond, true}} {
		var h hunger
		if h.see(at(0), began) || h.see(at(c.waited), began.Add(time.Second)) != c.starved {
			t.Errorf("four threads that wait %v of a second each: starved is %v", c.waited, !c.starved)
		}
	}
}

func stateOf(pid int) string {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	for i := len(b) - 1; i > 0; i-- {
		if b[i] == ')' && i+2 < len(b) {
			return string(b[i+2 : i+3])
		}
	}
	return ""
}
