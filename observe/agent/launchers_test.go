package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/weft-fabric/weft/observe/watch"
	"github.com/weft-fabric/weft/run/launch"
	"github.com/weft-fabric/weft/run/lives"
)

// TestLateAgentHearsOfDeaths: an agent that starts after a rank was killed still learns how,
// from the launcher's file, and tells a server again until one has it. Files of launchers
// that are gone are of the past.
func TestLateAgentHearsOfDeaths(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("ranks run on Linux")
	}
	dir := t.TempDir()
	job := fmt.Sprintf("late-%d", os.Getpid())
	exits := make(chan *launch.Process, 2)
	var ranks []*launch.Process
	for r := range 2 {
		p, err := launch.Start(launch.Command{Rank: r, Args: []string{"cat"}, Stdin: []byte{}, // its input stays open
			Env: []string{fmt.Sprintf("RANK=%d", r), "WORLD_SIZE=2", "SLURM_JOB_ID=" + job, "WEFT_WATCH=" + dir}}, exits)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Wait()
		defer p.Kill()
		ranks = append(ranks, p)
	}
	if err := syscall.Kill(ranks[1].Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-exits
	old := filepath.Join(dir, lives.Launch(lives.Space(), 1<<30)) // no process has this number
	if err := os.WriteFile(old, []byte(`{"event":"ended","at":1,"job":"`+job+`","rank":0,"pid":7,"signal":11}`+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	a := New(Config{Host: "n0"})
	of := func() (list []watch.Launch) {
		_, _, all := a.pulse.ranks(&a.c)
		for _, l := range all {
			if l.Job == job {
				list = append(list, l)
			}
		}
		return list
	}
	list := of()
	if len(list) != 3 || list[2].Event != "ended" || list[2].Rank != 1 || list[2].Signal != 9 || list[2].Asked || list[2].Host != "n0" ||
		list[2].PID != ranks[1].Pid {
		t.Fatalf("the agent tells %+v; want two starts and that rank 1 was killed", list)
	}
	if again := of(); len(again) != 3 {
		t.Errorf("no server has it yet, and the agent tells %+v", again)
	}
	a.taken(len(a.pulse.launches))
	if again := of(); len(again) != 0 {
		t.Errorf("a server has it, and the agent tells again: %+v", again)
	}
	ranks[0].Kill()
	<-exits
	if list = of(); len(list) != 1 || list[0].Rank != 0 || !list[0].Asked {
		t.Errorf("the agent tells %+v; want that rank 0 was ended by its launcher", list)
	}
}
