package bench

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestTimesOfOperations(t *testing.T) {
	var cpu int64
	times, err := parseEach("each 900 10 30 20", 3, &cpu)
	if err != nil || cpu != 900 || len(times) != 3 || times[1] != 30 {
		t.Errorf("%v %d %v", times, cpu, err)
	}
	for _, bad := range []string{"", "took 1 2", "each 900 10 30", "each 900 10 30 20 40", "each 900 10 x 20", "each 900 10 -3 20"} {
		if _, err := parseEach(bad, 3, &cpu); err == nil {
			t.Errorf("%q is taken for three times", bad)
		}
	}
}

func TestQuantiles(t *testing.T) {
	var sorted []float64
	for i := range 1000 {
		sorted = append(sorted, float64(i)*1e3)
	}
	var c Cell
	if c.spread(sorted); c.P50 != 500 || c.P99 != 990 || c.Micros != c.P50 {
		t.Errorf("%+v", c)
	}
	if c.spread(sorted[7:8]); c.P50 != 7 || c.P99 != 7 {
		t.Errorf("of one: %+v", c)
	}
}

// The verdict is that of the library with the best median.
func TestSpreads(t *testing.T) {
	r := Row{Cells: map[string]*Cell{Plain: {P50: 10, P99: 100}, MPI: {P50: 5, P99: 900}, Gloo: {P50: 20, P99: 50}}}
	if p50, p99, ok := r.Spreads(Plain); !ok || p50 != 0.5 || p99 != 9 {
		t.Error(p50, p99, ok)
	}
	if _, _, ok := r.Spreads(Registered); ok {
		t.Error("it has a verdict without times")
	}
}

func TestWhereControlGroupsAre(t *testing.T) {
	two := t.TempDir()
	if err := os.WriteFile(filepath.Join(two, "cgroup.controllers"), []byte("cpuset cpu io memory pids\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	without := t.TempDir()
	if err := os.WriteFile(filepath.Join(without, "cgroup.controllers"), []byte("cpuset io\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		mounts, root string
		second       bool
	}{
		{"", "", false},
		{"cgroup2 " + two + " cgroup2 rw,nosuid 0 0\n", two, true},
		{"cgroup2 " + without + " cgroup2 rw 0 0\n", "", false},
		{"cgroup /c/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n", "/c/cpu,cpuacct", false},
		{"cgroup /c/cpuset cgroup rw,cpuset 0 0\ncgroup2 " + without + " cgroup2 rw 0 0\ncgroup /c/cpu cgroup rw,relatime,cpu 0 0\n",
			"/c/cpu", false},
	} {
		if root, second := cpuGroups(x.mounts); root != x.root || second != x.second {
			t.Errorf("%q: %q %t", x.mounts, root, second)
		}
	}
}

// A process that never waits is stopped when its quota is used up.
func TestQuota(t *testing.T) {
	q, err := newQuota(0.1)
	if err != nil {
		t.Skip(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", "read go; while :; do :; done")
	cmd.WaitDelay = 5 * time.Second
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := q.add(cmd.Process.Pid); err != nil {
		t.Error(err)
	}
	if _, err := in.Write([]byte("\n")); err != nil {
		t.Error(err)
	}
	stopped := false
	for !stopped && ctx.Err() == nil {
		stat, err := os.ReadFile(filepath.Join(q.dir, "cpu.stat"))
		if err != nil {
			t.Fatal(err)
		}
		stopped = !strings.Contains(string(stat), "nr_throttled 0\n")
	}
	cancel()
	_ = cmd.Wait()
	if !stopped {
		t.Error("it was never stopped")
	}
	if q.remove(); !gone(q.dir) {
		t.Errorf("%s is left behind", q.dir)
	}
}

func gone(path string) bool {
	_, err := os.Stat(path)
	return os.IsNotExist(err)
}
