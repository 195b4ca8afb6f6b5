package drill

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/observe/agent"
	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/watch"
	"github.com/weft-fabric/weft/run/fault"
	"github.com/weft-fabric/weft/run/launch"
)

// These launchers write nothing for an agent: what becomes of their ranks is known from the kernel.

const drillRanks = 4

func freePort(t *testing.T) int {
	t.Helper()
	p, err := launch.HoldPort()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Release)
	return p.Number
}

// realLaunchers start the patients. weft run tells of its ranks itself.
var realLaunchers = map[string]func(t *testing.T, w *weftRun){
	"weft run": func(t *testing.T, w *weftRun) {
		w.start(drillRanks, weftBinary(t), "run", "-n", strconv.Itoa(drillRanks), "--watch", w.dir, "--transport", "tcp", "--", os.Args[0],
			"patient")
	},
	"torchrun": func(t *testing.T, w *weftRun) {
		if _, err := os.Stat("/usr/bin/torchrun"); err != nil {
			t.Skip("no torchrun of Debian here")
		}
		w.start(drillRanks, "/usr/bin/python3", "-m", "torch.distributed.run", "--no_python", "--nnodes=1",
			fmt.Sprintf("--nproc_per_node=%d", drillRanks),
			"--monitor_interval=0.2", "--redirects=2", "--tee=1", "--log_dir="+w.dir, // 0 and 3 are not read by torch 1.13 on Python 3.11
			"--rdzv_backend=c10d", fmt.Sprintf("--rdzv_endpoint=127.0.0.1:%d", freePort(t)), "--rdzv_id=drill", os.Args[0], "patient")
	},
	"mpirun": func(t *testing.T, w *weftRun) {
		if _, err := exec.LookPath("mpirun.openmpi"); err != nil {
			t.Skip("no mpirun here")
		}
		t.Setenv("MASTER_ADDR", "127.0.0.1")
		t.Setenv("MASTER_PORT", fmt.Sprint(freePort(t)))
		w.start(drillRanks, "mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", fmt.Sprint(drillRanks), os.Args[0], "patient")
	},
	"srun": func(t *testing.T, w *weftRun) {
		startSlurm(t)
		t.Setenv("MASTER_ADDR", "127.0.0.1")
		t.Setenv("MASTER_PORT", fmt.Sprint(freePort(t)))
		w.start(drillRanks, "srun", "-K1", "-n", fmt.Sprint(drillRanks), "--job-name", "drill", os.Args[0], "patient")
	},
}

// startSlurm starts a controller and a node of its own on loopback.
func startSlurm(t *testing.T) {
	t.Helper()
	for _, name := range []string{"slurmctld", "slurmd", "srun"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip("no " + name + " here")
		}
	}
	if os.Getuid() != 0 {
		t.Skip("Slurm's daemons run as root here")
	}
	dir := t.TempDir()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	conf := filepath.Join(dir, "slurm.conf")
	text := fmt.Sprintf(`ClusterName=t
SlurmctldHost=%s(127.0.0.1)
SlurmUser=root
SlurmctldPort=%d
SlurmdPort=%d
AuthType=auth/none
CredType=cred/none
StateSaveLocation=%s
SlurmdSpoolDir=%s
SlurmctldPidFile=%s/ctld.pid
SlurmdPidFile=%s/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
NodeName=n0 NodeHostname=%s NodeAddr=127.0.0.1 CPUs=%d RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
`, host, freePort(t), freePort(t), dir, dir, dir, dir, host, 2*drillRanks)
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SLURM_CONF", conf)
	for _, c := range [][]string{{"slurmctld", "-D", "-c", "-f", conf}, {"slurmd", "-D", "-N", "n0", "-f", conf}} {
		cmd := bounded.Within(t, 3*time.Minute, c[0], c[1:]...)
		log, err := os.Create(filepath.Join(dir, c[0]+".log"))
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			cmd.Process.Kill()
			cmd.Wait()
			log.Close()
			if t.Failed() {
				b, _ := os.ReadFile(log.Name())
				t.Logf("%s:\n%s", c[0], b[max(0, len(b)-2000):])
			}
		})
	}
	for tick := time.Tick(50 * time.Millisecond); ; { // the bound of the daemons ends this loop
		<-tick
		out, _ := bounded.Command(t, "sinfo", "-h", "-o", "%T").Output()
		if strings.TrimSpace(string(out)) == "idle" {
			return
		}
	}
}

// only says what is wrong unless one rank is named, with the words, and nobody else.
func (w *weftRun) only(f broken, rank int) {
	w.t.Helper()
	w.shut() // a replay ends where the server did
	list := w.incidents()
	if len(list) != 1 || list[0].Kind != f.kind || !f.names(list[0], rank) || !strings.Contains(list[0].Verdict, f.words) {
		w.t.Errorf("incidents %q, want %s of rank %d with %q, and nobody else", said(list), f.kind, rank, f.words)
	}
	if again := said(w.replayed()); !slices.Equal(again, said(list)) {
		w.t.Errorf("live %q, in a replay %q", said(list), again)
	}
}

// names says whether an incident is about the rank, or the link that it is an end of.
func (f *broken) names(i watch.Incident, rank int) bool {
	if f.pair {
		return len(i.Subject.Ranks) == 2 && slices.Contains(i.Subject.Ranks, rank)
	}
	return slices.Equal(i.Subject.Ranks, []int{rank})
}

// broken is a fault that a drill does to a rank, and how it must be named.
type broken struct {
	do    func(w *weftRun, rank int)
	kind  string
	words string // of the verdict
	ends  bool   // the job does
	pair  bool   // a link is named, which the rank is an end of
}

var brokenRanks = map[string]broken{
	"killed":    {(*weftRun).kill, "rank-dead", "was killed by SIGKILL", true, false},
	"failed":    {func(w *weftRun, r int) { w.order(r, "exit 3") }, "rank-dead", "exited with code 3", true, false},
	"no memory": {(*weftRun).starve, "rank-dead", "was killed by SIGKILL: the kernel killed a process for memory", true, false},
	"disk full": {func(w *weftRun, r int) { w.order(r, "write 4000000") }, "rank-dead", "exited with code 1: a file system is full",
		true, false},
	"frozen":    {func(w *weftRun, r int) { w.signal(r, syscall.SIGSTOP) }, "rank-stopped", "is stopped", false, false},
	"late":      {func(w *weftRun, r int) { w.order(r, "slow 60ms") }, "straggler", "is late", false, false},
	"slow link": {(*weftRun).slowLink, "slow-link", "is slow", false, true},
}

// TestStarvedRankIsNotDead takes nearly all of the processors from a rank of a real launcher's job. It runs on, so it may be
// called late or its host starved; nobody else is named, and nobody is said to have died or to hang.
func TestStarvedRankIsNotDead(t *testing.T) {
	if !bounded.Long() {
		t.Skip("make launcher-drills")
	}
	var table drillTable
	for _, launcher := range slices.Sorted(maps.Keys(realLaunchers)) {
		t.Run(launcher, func(t *testing.T) {
			w := newRun(t)
			realLaunchers[launcher](t, w)
			at, from := time.Now(), w.slowest()
			w.noProcessor(2)
			w.await("a hundred operations", func() bool { return w.slowest() >= from+100 })
			w.shut() // that the job is ended here is none of its incidents
			w.stop()
			named := watch.Incident{Kind: "nobody", Began: float64(time.Now().UnixNano()) / 1e9}
			for _, i := range w.incidents() {
				if named = i; i.Kind != "straggler" && i.Kind != "host-starved" || !slices.Equal(i.Subject.Ranks, []int{2}) {
					t.Errorf("%s: %s", i.Kind, i.Verdict)
				}
			}
			if again, live := said(w.replayed()), said(w.incidents()); !slices.Equal(again, live) {
				t.Errorf("live %q, in a replay %q", live, again)
			}
			table.row(launcher, "starved", named, at, !t.Failed(), max(0, len(w.incidents())-1))
		})
	}
	t.Log(table.String())
}

// slowest is how many operations the slowest rank has done.
func (w *weftRun) slowest() int64 {
	rows, _ := w.server.Rows("", "", 0, 100)
	least := int64(1 << 62)
	for _, r := range rows {
		least = min(least, r.Seq)
	}
	return least
}

// noProcessor takes nearly all of the processors from a rank: busy processes have more weight.
func (w *weftRun) noProcessor(rank int) {
	w.t.Helper()
	if err := syscall.Setpriority(syscall.PRIO_PROCESS, w.pid(rank), 19); err != nil {
		w.t.Fatal(err)
	}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", w.pid(rank)))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, task := range tasks {
		id, _ := strconv.Atoi(filepath.Base(task))
		_ = syscall.Setpriority(syscall.PRIO_PROCESS, id, 19)
	}
	for range 2 * runtime.NumCPU() {
		cmd := bounded.Server(w.t, os.Args[0], "patient")
		cmd.Env = append(os.Environ(), hogEnv+"=1", "GOMAXPROCS=1")
		if err := cmd.Start(); err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	}
}

// slowLink paces what a rank sends to the one that it sends most to.
func (w *weftRun) slowLink(rank int) {
	w.t.Helper()
	peer, most := -1, 0.0
	w.await("traffic of the rank", func() bool {
		for _, l := range w.server.View().Links {
			for _, c := range l.Cells {
				if c.From == rank && c.Bytes > most {
					peer, most = c.To, c.Bytes
				}
			}
		}
		return peer >= 0
	})
	n, undo, err := fault.Throttle(w.pid(rank), w.pid(peer), 4e6)
	if err != nil || n == 0 {
		w.t.Fatalf("%d connections paced: %v", n, err)
	}
	w.t.Cleanup(undo)
}

func (w *weftRun) order(rank int, text string) {
	w.t.Helper()
	if err := fault.Give(w.dir, rank, text); err != nil {
		w.t.Fatal(err)
	}
}

// starve lets the kernel kill a rank for want of memory.
func (w *weftRun) starve(rank int) {
	w.t.Helper()
	base, file := "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
	if _, err := os.Stat(base); err != nil {
		base, file = "/sys/fs/cgroup", "memory.max"
	}
	dir := filepath.Join(base, filepath.Base(filepath.Dir(w.dir))+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		w.t.Skipf("a memory control group needs root: %v", err)
	}
	w.t.Cleanup(func() { os.Remove(dir) })
	for _, f := range [][2]string{{file, "64000000"}, {"cgroup.procs", strconv.Itoa(w.pid(rank))}} {
		if err := os.WriteFile(filepath.Join(dir, f[0]), []byte(f[1]), 0o644); err != nil {
			w.t.Skipf("a memory control group needs root: %v", err)
		}
	}
	w.order(rank, "eat 300000000")
}

// smallDisk mounts a file system of 1 MiB where patients write.
func (w *weftRun) smallDisk() {
	w.t.Helper()
	dir := filepath.Join(w.dir, "disk")
	if err := os.Mkdir(dir, 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		w.t.Skipf("mounts need root: %v", err)
	}
	w.t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
}

// TestBrokenUnderOtherLaunchers breaks a rank of a real launcher's job. The launchers end the others: those are
// consequences and are not named. 'make drills' tries every fault with every launcher.
func TestBrokenUnderOtherLaunchers(t *testing.T) {
	var table drillTable
	quick := map[string]string{"torchrun": "disk full", "mpirun": "no memory", "srun": "killed"}
	for _, launcher := range slices.Sorted(maps.Keys(realLaunchers)) {
		for _, name := range slices.Sorted(maps.Keys(brokenRanks)) {
			if !bounded.Long() && quick[launcher] != name {
				continue
			}
			t.Run(launcher+" "+name, func(t *testing.T) {
				f := brokenRanks[name]
				w := newRun(t)
				if name == "disk full" {
					w.smallDisk()
				}
				realLaunchers[launcher](t, w)
				at := time.Now()
				f.do(w, 2)
				w.await("verdict", func() bool { return len(w.incidents()) > 0 })
				i := w.incidents()[0]
				t.Logf("%.1f s: %s; %s", i.Began-float64(at.UnixNano())/1e9, i.Verdict, i.Cause)
				if f.ends {
					if how := w.over(); how != "failed by rank 2" {
						t.Errorf("the job %q, want failed by rank 2", how)
					}
				} else {
					w.shut() // that the job is ended here is none of its incidents
					w.stop()
				}
				if launcher == "srun" && f.ends { // the controller knows no more than that it failed, or was cancelled
					w.scheduled()
					if how := w.over(); how != "failed by rank 2" {
						t.Errorf("after Slurm's word the job %q, want failed by rank 2", how)
					}
				}
				w.only(f, 2)
				table.row(launcher, name, i, at, !t.Failed(), len(w.incidents())-1)
			})
		}
	}
	if bounded.Long() {
		t.Log(table.String())
	}
}

// drillTable is what the drills printed, for people.
type drillTable struct{ strings.Builder }

func (d *drillTable) row(launcher, fault string, i watch.Incident, at time.Time, right bool, others int) {
	if d.Len() == 0 {
		d.WriteString("\n| launcher | injected | named | as | seconds | false names | live is replay |\n|---|---|---|---|---:|---:|---|\n")
	}
	who := doctor.Subject{Ranks: i.Subject.Ranks, Hosts: i.Subject.Hosts}
	fmt.Fprintf(d, "| %s | %s | %s | %s | %.1f | %d | %v |\n", launcher, fault, who, i.Kind, i.Began-float64(at.UnixNano())/1e9, others, right)
}

// scheduled tells the server what Slurm prints of the job, once that says that it has ended.
func (w *weftRun) scheduled() {
	w.t.Helper()
	limit := time.After(90 * time.Second)
	for tick := time.Tick(100 * time.Millisecond); ; {
		out, err := bounded.Command(w.t, "scontrol", "show", "job", "1").Output()
		if err != nil {
			w.t.Fatal(err)
		}
		if rep, err := agent.Scheduled(bytes.NewReader(out)); err == nil {
			if _, err := w.server.Take(rep); err != nil {
				w.t.Fatal(err)
			}
			w.server.Tick()
			return
		}
		select {
		case <-tick: // it runs, or its processes are being collected
		case <-limit:
			w.t.Fatalf("the job does not end: %s", out)
		}
	}
}

// A job that somebody cancels names nobody. Programs that end well when they are asked to look finished until the scheduler
// says so.
func TestCancelledUnderSlurm(t *testing.T) {
	if !bounded.Long() {
		t.Skip("make long")
	}
	w := newRun(t)
	realLaunchers["srun"](t, w)
	if out, err := bounded.Command(t, "scancel", "1").CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	<-w.ended
	w.over()
	w.scheduled()
	w.await("word of Slurm", func() bool { return w.over() == "cancelled" })
	if list := w.incidents(); len(list) > 0 {
		t.Errorf("incidents %q of a job that was cancelled", said(list))
	}
}

// stop ends a job that goes on, whatever state its ranks are in.
func (w *weftRun) stop() {
	w.killAll()
	<-w.ended
}

// killAll ends the ranks that are left.
func (w *weftRun) killAll() {
	for _, p := range w.ranks() {
		_ = syscall.Kill(p.PID, syscall.SIGCONT)
		_ = syscall.Kill(p.PID, syscall.SIGKILL)
	}
}
