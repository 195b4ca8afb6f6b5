package doctor_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/observe/doctor"
)

// gaveUp is what ranks of one job print when an all-reduce takes too long.
func gaveUp(day, at string, seq int, ranks ...int) string {
	var b strings.Builder
	for _, r := range ranks {
		b.WriteString(strings.ReplaceAll(timedOut(r, seq, "ALLREDUCE", 16777216), "E1119 13:21:12.5", "E"+day+" "+at))
	}
	return b.String()
}

// failureTable is torchrun's closing table on one host.
func failureTable(rank int, host, at string, code, pid int) string {
	return fmt.Sprintf("Root Cause (first observed failure):\n[0]:\n  time      : %s\n  host      : %s\n  rank      : %d (local_rank: 0)\n  exitcode  : %d (pid: %d)\n",
		at, host, rank, code, pid)
}

// ofHost are the findings of the job that a host belongs to.
func ofHost(r *doctor.Report, host string) (list []*doctor.Finding) {
	name := ""
	for _, j := range r.Jobs {
		if slices.Contains(j.Hosts, host) {
			name = j.Name
		}
	}
	for i := range r.Findings {
		if f := &r.Findings[i]; name != "" && f.Job == name && f.Severity >= doctor.Warning {
			list = append(list, f)
		}
	}
	return list
}

// Two jobs without a line of NCCL lie in one folder, each with its rank 1. The exception of one is not why the other hangs.
func TestJobsOfOneFolderAreKeptApart(t *testing.T) {
	failed := "[rank1]: Traceback (most recent call last):\n[rank1]:   File \"train.py\", line 9, in <module>\n[rank1]: KeyError: 'tokens'\n" +
		failureTable(1, "b0", "2026-06-03_12:31:02", 1, 701)
	for _, names := range [][2]string{{"a/train.log", "b/train.log"}, {"logs/slurm-8812.out", "logs/slurm-8813.out"},
		{"logs/first.log", "logs/second.log"}} {
		r := diagnose(t, map[string]string{
			names[0]: gaveUp("603", "12:41:09.1", 77, 0, 1, 2, 3) + failureTable(0, "a0", "2026-06-03_12:41:11", -6, 4100) + failureTable(1, "a0",
				"2026-06-03_12:41:11", -6, 4101),
			names[1]: failed,
		})
		if len(r.Jobs) != 2 {
			t.Errorf("%s: jobs %+v, want two", names, r.Jobs)
			continue
		}
		a, b := ofHost(r, "a0"), ofHost(r, "b0")
		if len(b) != 1 || b[0].ID != "program-error" || !slices.Equal(b[0].Subject.Ranks, []int{1}) {
			t.Errorf("%s: the second job has %v, want the exception of rank 1: %s", names, b, r.Verdict)
		}
		if len(a) != 1 || a[0].ID != "watchdog-same-place" {
			t.Errorf("%s: the first job has %v, want that all ranks timed out: %s", names, a, r.Verdict)
		}
	}
}

// A host's kernel log explains what happened to the jobs on that host, and to no other job.
func TestKernelLogsExplainTheJobsOfTheirHost(t *testing.T) {
	comm := func(host string, rank, pid int, id string) string {
		return fmt.Sprintf("%s:%d:%d [0] NCCL INFO ncclCommInitRank comm 0x55d2c0%d rank %d nranks 2 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x%s - Init COMPLETE\n",
			host, pid, pid+1, rank, rank, id)
	}
	r := diagnose(t, map[string]string{
		"a.log":       comm("a0", 0, 100, "aa") + comm("a1", 1, 100, "aa") + failureTable(1, "a1", "2026-06-03_12:31:02", -11, 100),
		"b.log":       comm("b0", 0, 700, "bb") + comm("b1", 1, 700, "bb") + gaveUp("603", "12:41:09.1", 77, 0),
		"b1-kern.log": "2026-06-03T12:30:59.118201+00:00 b1 kernel: NVRM: Xid (PCI:0000:1b:00): 79, pid=700, name=python, GPU has fallen off the bus.\n",
	})
	a, b := ofHost(r, "a0"), ofHost(r, "b0")
	if len(a) != 1 || a[0].ID != "process-died" || !slices.Equal(a[0].Subject.Ranks, []int{1}) {
		t.Errorf("the first job has %v, want that its rank 1 crashed: %s", a, r.Verdict)
	}
	if len(b) == 0 || b[0].ID != "gpu-failed" || !slices.Equal(b[0].Subject.Hosts, []string{"b1"}) {
		t.Errorf("the second job has %v, want the GPU of b1: %s", b, r.Verdict)
	}
}

// What the kernel said days before a job began, or of a host that is none of the job's, does not explain how the job ended.
func TestOldKernelLinesExplainNothing(t *testing.T) {
	job := initDone(0, 2) + strings.ReplaceAll(initDone(1, 2), "n0:", "n1:") + "2026-06-03 12:00:00,118 step 1 loss 2.0\n" +
		"[rank1]: Traceback (most recent call last):\n[rank1]: KeyError: 'tokens'\n" + failureTable(1, "n1", "2026-06-03_12:31:02", 1, 4101)
	for name, kern := range map[string]string{
		"days before":  "2026-05-29T12:30:59.118201+00:00 n1 kernel: Out of memory: Killed process 4101 (python) total-vm:1kB\n",
		"another host": "2026-06-03T12:30:59.118201+00:00 z9 kernel: NVRM: Xid (PCI:0000:1b:00): 79, pid=700, name=python, GPU has fallen off the bus.\n",
	} {
		r := diagnose(t, map[string]string{"job.log": job, "kern.log": kern})
		f := found(r, "program-error")
		if f == nil || r.Findings[0].ID != "program-error" || slices.ContainsFunc(r.Findings[1:], func(x doctor.Finding) bool {
			return len(x.Consequences) > 0 && strings.Contains(strings.Join(x.Consequences, " "), "rank 1")
		}) {
			t.Errorf("%s: %s %v", name, r.Verdict, ids(r, doctor.Warning))
		}
	}
	at := "2026-06-03T12:30:59.118201+00:00 n1 kernel: Out of memory: Killed process 4101 (python) total-vm:1kB\n"
	if r := diagnose(t, map[string]string{"job.log": strings.ReplaceAll(job, "KeyError: 'tokens'", "BrokenPipeError"),
		"kern.log": at}); r.Findings[0].ID != "host-out-of-memory" {
		t.Errorf("in time: %s", r.Verdict)
	}
}

// The clock of one host is three seconds behind. Who failed first is told by what both hosts saw at one moment, and the
// error of the clock is reported.
func TestFirstFailureAcrossClocks(t *testing.T) {
	ready := func(first, sec string) string {
		one := initDone(map[string]int{"n0": 0, "n1": 4}[first], 8)
		two := strings.NewReplacer("0x8f2e1c44", "0x8f2e1c45", "0x55d2c0", "0x66d2c0").Replace(one)
		return "[2026-06-03 12:00:0" + sec + "] " + one + "[2026-06-03 12:00:1" + sec + "] " + two
	}
	for _, c := range []struct {
		behind string // seconds of the second host's clock when the first has 9.1
		ended  string // of the second host's rank, by its clock
		want   int
	}{{"9.1", "12:31:05", 0}, {"4.1", "12:31:00", 0}, {"4.1", "12:30:54", 4}} {
		r := diagnose(t, map[string]string{
			"n0.log": ready("n0", "9.1") + failureTable(0, "n0", "2026-06-03_12:31:02", 3, 4100),
			"n1.log": ready("n1", c.behind) + failureTable(4, "n1", "2026-06-03_"+c.ended, 3, 4104),
		})
		f := found(r, "process-died")
		if f == nil || !slices.Equal(f.Subject.Ranks, []int{c.want}) {
			t.Errorf("with the second clock at %s and its rank's end at %s: %s, want rank %d", c.behind, c.ended, r.Verdict, c.want)
		}
		notes := fmt.Sprint(r.Files)
		if told := strings.Contains(notes, "5.0 s behind"); told != (c.behind == "4.1") {
			t.Errorf("with the second clock at %s the notes say %s", c.behind, notes)
		}
	}
}

// The kernel log of a host has local times without a zone. The process that it killed is the one that the launcher, whose
// clock is in UTC, saw end.
func TestKernelClockFromAProcessThatEnded(t *testing.T) {
	for _, zone := range []string{"14:31:01", "12:31:01", "05:31:01"} {
		r := diagnose(t, map[string]string{
			"job.log": initDone(0, 2) + strings.ReplaceAll(initDone(1, 2), "n0:", "n1:") + failureTable(1, "n1", "2026-06-03_12:31:02",
				-9, 4101),
			"n1-kernel.log": "Jun  3 " + zone + " n1 kernel: Out of memory: Killed process 4101 (python) total-vm:1kB, anon-rss:2kB\n",
		})
		if f := r.Findings[0]; f.ID != "host-out-of-memory" || !slices.Equal(f.Subject.Ranks, []int{1}) || f.Since != "2026-06-03 12:31:01" {
			t.Errorf("kernel log at %s: %s since %q", zone, r.Verdict, f.Since)
		}
	}
}
