package drill

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/internal/nslab"
	"github.com/weft-fabric/weft/observe/agent"
)

// Hosts made of namespaces: each has its own network, processes, mounts and name. A host is lost as a power failure takes it:
// its link goes down and all of its processes, its agent among them, are gone at once.
//
//	launcher, server          n0 (10.77.0.1)        n1 (10.77.0.2)
//	in n0's network           agent, ranks 0, 1     agent, ranks 2, 3
//	 '-- enter n1 COMMAND ---------------------------> as ssh would

type nsHosts struct {
	*weftRun
	lab   *nslab.Lab
	enter string // a program that runs a command on a host; enter-shell gives it to a shell there, as ssh does
	inits []int  // the first process of each host
	url   string // of the server
}

const lostHosts = 2

func startHosts(t *testing.T) *nsHosts {
	t.Helper()
	h := &nsHosts{weftRun: serveRun(t), lab: nslab.New(t, lostHosts, 1)}
	names := "127.0.0.1 localhost\n"
	for i := range lostHosts {
		names += fmt.Sprintf("%s n%d\n", nslab.Addr(i, 0), i)
	}
	if err := os.WriteFile(filepath.Join(h.dir, "hosts"), []byte(names), 0o644); err != nil {
		t.Fatal(err)
	}
	for i := range lostHosts {
		h.inits = append(h.inits, h.startHost(i))
	}
	h.enter = filepath.Join(h.dir, "enter")
	// What runs on a host that is lost says nothing, and its client waits, as ssh does until its own limit.
	script := "#!/bin/sh\nhost=$1; shift\ncase $host in\n"
	for i, pid := range h.inits {
		script += fmt.Sprintf("n%d) pid=%d;;\n", i, pid)
	}
	for name, run := range map[string]string{h.enter: `"$@"`, h.enter + "-shell": `sh -c "$*"`} {
		text := script + "*) exit 255;;\nesac\nnsenter -t $pid -n -p -m -u -- " + run + "\ncode=$?\nwhile [ -e " + h.dir +
			"/lost-$host ]; do sleep 1; done\nexit $code\n"
		if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var l net.Listener
	if err := h.lab.Do(0, func() (err error) { l, err = net.Listen("tcp", nslab.Addr(0, 0).String()+":9411"); return err }); err != nil {
		t.Fatal(err)
	}
	reports := h.server.Reports()
	page := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { reports.ServeHTTP(rw, r); h.notify() })}
	go page.Serve(l)
	t.Cleanup(func() { page.Close() })
	h.url = "http://" + l.Addr().String()
	for i := range lostHosts {
		h.on(i, os.Args[0], "agent", fmt.Sprintf("n%d", i), h.url)
	}
	return h
}

// startHost starts the first process of a host and gives its number.
func (h *nsHosts) startHost(i int) int {
	h.t.Helper()
	cmd := bounded.Within(h.t, 4*time.Minute, "unshare", "--pid", "--fork", "--mount-proc", "--uts", "--kill-child", "sh", "-c",
		fmt.Sprintf("hostname n%d && mount --bind %s/hosts /etc/hosts && echo ready && exec cat", i, h.dir))
	in, err := cmd.StdinPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	if err := h.lab.Do(i, cmd.Start); err != nil {
		h.t.Skipf("no process namespaces here: %v", err)
	}
	h.t.Cleanup(func() { in.Close(); cmd.Process.Kill(); cmd.Wait() })
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		h.t.Skipf("no process namespaces here: %q", line)
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid))
	pid, _ := strconv.Atoi(strings.TrimSpace(string(children)))
	if err != nil || pid == 0 {
		h.t.Fatalf("the first process of host %d: %q, %v", i, children, err)
	}
	return pid
}

// on starts a command on a host.
func (h *nsHosts) on(i int, args ...string) *exec.Cmd {
	h.t.Helper()
	cmd := bounded.Within(h.t, 4*time.Minute, "nsenter",
		append([]string{"-t", strconv.Itoa(h.inits[i]), "-n", "-p", "-m", "-u", "--"}, args...)...)
	cmd.Env = append(os.Environ(), h.environ()...)
	cmd.Stdout, cmd.Stderr = h.t.Output(), h.t.Output()
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd
}

// environ is what ranks need, however they are started.
func (h *nsHosts) environ() []string {
	return []string{Env + "=" + h.dir, "WEFT_WATCH=" + h.dir, "WEFT_TRANSPORT=tcp", "WEFT_TIMEOUT=60s", "WEFT_LOG=off",
		"MASTER_ADDR=" + nslab.Addr(0, 0).String(), "MASTER_PORT=29500", "WEFT_TOKEN=drill"}
}

// launch starts a launcher in the first host's network.
func (h *nsHosts) launch(args ...string) {
	h.t.Helper()
	cmd := bounded.Within(h.t, 4*time.Minute, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), h.environ()...)
	cmd.Stdout, cmd.Stderr = h.t.Output(), h.t.Output()
	if err := h.lab.Do(0, cmd.Start); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
}

// lose takes a host away: nobody hears of it again.
func (h *nsHosts) lose(i int) {
	h.t.Helper()
	if err := os.WriteFile(fmt.Sprintf("%s/lost-n%d", h.dir, i), nil, 0o644); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { os.Remove(fmt.Sprintf("%s/lost-n%d", h.dir, i)) })
	if err := h.lab.Cut(i, 0); err != nil {
		h.t.Fatal(err)
	}
	if p, err := os.FindProcess(h.inits[i]); err != nil || p.Kill() != nil {
		h.t.Fatalf("host %d could not be ended: %v", i, err)
	}
}

// hostLaunchers start two ranks on each host.
var hostLaunchers = map[string]func(h *nsHosts){
	"weft run": func(h *nsHosts) {
		h.launch(weftBinary(h.t), "run", "-n", "4", "--hosts", "n0,n1", "--rsh", h.enter+" {host}", "--master-addr", nslab.Addr(0, 0).String(),
			"--watch", h.dir, "--transport", "tcp", "--", os.Args[0], "patient")
	},
	"torchrun": func(h *nsHosts) {
		if _, err := os.Stat("/usr/bin/torchrun"); err != nil {
			h.t.Skip("no torchrun of Debian here")
		}
		for i := range lostHosts {
			h.on(i, "/usr/bin/python3", "-m", "torch.distributed.run", "--no_python", "--nnodes=2", "--nproc_per_node=2",
				"--redirects=2", "--tee=1", "--log_dir="+h.dir, "--rdzv_backend=c10d", "--rdzv_endpoint="+nslab.Addr(0, 0).String()+":29400",
				"--rdzv_id=drill", os.Args[0], "patient")
			if i == 0 { // who comes first has rank 0
				h.await("agents", func() bool { return h.server.View().Health.Hosts == lostHosts })
			}
		}
	},
	"mpirun": func(h *nsHosts) {
		if _, err := exec.LookPath("mpirun.openmpi"); err != nil {
			h.t.Skip("no mpirun here")
		}
		h.launch("mpirun.openmpi", "--allow-run-as-root", "--mca", "plm_rsh_agent", h.enter+"-shell", "--mca", "oob_tcp_if_include",
			nslab.Rail(0), "--mca", "btl_tcp_if_include", nslab.Rail(0),
			"--host", "n0:2,n1:2", "-n", "4", os.Args[0], "patient")
	},
	"srun": func(h *nsHosts) {
		h.slurm()
		h.launch("srun", "-N2", "-n4", "--ntasks-per-node=2", "--job-name", "drill", os.Args[0], "patient")
	},
}

// slurm starts a controller in the first host's network and a daemon on each host.
func (h *nsHosts) slurm() {
	h.t.Helper()
	for _, name := range []string{"slurmctld", "slurmd", "srun"} {
		if _, err := exec.LookPath(name); err != nil {
			h.t.Skip("no " + name + " here")
		}
	}
	dir := h.t.TempDir()
	name, err := os.Hostname()
	if err != nil {
		h.t.Fatal(err)
	}
	conf := filepath.Join(dir, "slurm.conf")
	text := fmt.Sprintf("ClusterName=t\nSlurmctldHost=%s(%s)\nSlurmUser=root\nSlurmctldPort=6817\nSlurmdPort=6818\nAuthType=auth/none\nCredType=cred/none\nStateSaveLocation=%s\nSlurmdSpoolDir=%s/%%n\nSlurmctldPidFile=%s/ctld.pid\nSlurmdPidFile=%s/%%n.pid\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSlurmdParameters=config_overrides\nSelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\nReturnToService=2\n",
		name, nslab.Addr(0, 0), dir, dir, dir, dir)
	for i := range lostHosts {
		text += fmt.Sprintf("NodeName=n%d NodeHostname=n%d NodeAddr=%s CPUs=8 RealMemory=1000 State=UNKNOWN\n", i, i, nslab.Addr(i, 0))
	}
	if err := os.WriteFile(conf, []byte(text+"PartitionName=all Nodes=ALL Default=YES State=UP\n"), 0o644); err != nil {
		h.t.Fatal(err)
	}
	h.t.Setenv("SLURM_CONF", conf)
	h.launch("slurmctld", "-D", "-c", "-f", conf)
	for i := range lostHosts {
		h.on(i, "slurmd", "-D", "-N", fmt.Sprintf("n%d", i), "-f", conf)
	}
	for tick := time.Tick(50 * time.Millisecond); ; {
		<-tick
		var out []byte
		cmd := bounded.Command(h.t, "sinfo", "-h", "-o", "%D %T")
		_ = h.lab.Do(0, func() (err error) { out, err = cmd.Output(); return err })
		if strings.TrimSpace(string(out)) == "2 idle" {
			return
		}
	}
}

// TestLostNode takes a host from a job of a real launcher. The host is named, and neither its ranks one by one nor those that
// wait for them.
func TestLostNode(t *testing.T) {
	var table drillTable
	for _, launcher := range slices.Sorted(maps.Keys(hostLaunchers)) {
		if !bounded.Long() {
			continue
		}
		t.Run(launcher, func(t *testing.T) {
			if launcher == "weft run" {
				weftBinary(t) // building it on a busy machine may take longer than hosts are given
			}
			h := startHosts(t)
			hostLaunchers[launcher](h)
			h.atWork(4)
			at := time.Now()
			h.lose(1)
			h.await("verdict", func() bool { return len(h.incidents()) > 0 })
			i := h.incidents()[0]
			t.Logf("%.1f s: %s; %s", i.Began-float64(at.UnixNano())/1e9, i.Verdict, i.Cause)
			h.shut()
			list := h.incidents()
			if len(list) != 1 || i.Kind != "node-lost" || !slices.Equal(i.Subject.Hosts, []string{"n1"}) ||
				!slices.Equal(i.Subject.Ranks, []int{2, 3}) {
				t.Errorf("incidents %q, want that n1 is lost with ranks 2 and 3, and nothing else", said(list))
			}
			if again := said(h.replayed()); !slices.Equal(again, said(list)) {
				t.Errorf("live %q, in a replay %q", said(list), again)
			}
			table.row(launcher, "lost node", i, at, !t.Failed(), len(list)-1)
		})
	}
	if bounded.Long() {
		t.Log(table.String())
	}
}

// reportAs is an agent that reports as a host until it is ended.
func reportAs(ctx context.Context, host, url string) {
	c := agent.Default()
	c.Host, c.Pulse, c.Send = host, 250*time.Millisecond, agent.HTTP(http.DefaultClient, url)
	agent.New(c).Run(ctx)
}
