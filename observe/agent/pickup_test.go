package agent

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/observe/watch"
)

// put writes a file as it is.
func put(t *testing.T, root, path, text string) {
	t.Helper()
	path = filepath.Join(root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// fakeProcess writes what /proc has of a process, and its view of the file system.
func fakeProcess(t *testing.T, root string, pid, parent int, comm, cgroup string, env ...string) {
	t.Helper()
	dir := fmt.Sprintf("proc/%d/", pid)
	put(t, root, dir+"environ", strings.Join(env, "\x00")+"\x00")
	set(t, root, dir+"comm", comm)
	set(t, root, dir+"cgroup", cgroup)
	set(t, root, dir+"status", fmt.Sprintf("Name:\t%s\nNSpid:\t%d\t17", comm, pid))
	set(t, root, dir+"stat", fmt.Sprintf("%d (%s) S %d 1 1 0 -1 4194304 0 0 0 0 300 100 0 0 20 0 9 0 1 900 2560", pid, comm, parent))
	if err := os.MkdirAll(filepath.Join(root, dir, "root"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// ranksOf gives what the agent reports of the ranks of a tree.
func ranksOf(p *pulse) map[string]watch.Rank {
	out := map[string]watch.Rank{}
	list, _, _ := p.ranks(&Config{Host: "n1"})
	for _, r := range list {
		out[fmt.Sprintf("%s/%d", r.Job, r.Rank)] = r
	}
	return out
}

// The ranks of Slurm, Kubernetes, torchrun, mpirun and weft are found by environment and control
// group; launchers, shells and workers of a rank are none.
func TestRanksOfEveryLauncher(t *testing.T) {
	root := t.TempDir()
	pod := "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod7d1c2a3b_5e6f_4a1b_9c0d_112233445566.slice/cri-containerd-99.scope"
	fakeProcess(t, root, 100, 1, "slurmstepd", "0::/system.slice/slurmstepd.scope/job_4711/step_0/slurm")
	fakeProcess(t, root, 101, 100, "python3", "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_3",
		"SLURM_PROCID=3", "SLURM_NTASKS=8", "SLURM_LOCALID=1", "SLURM_JOB_ID=4711", "CUDA_VISIBLE_DEVICES=4,5")
	fakeProcess(t, root, 102, 100, "bash", "", "SLURM_PROCID=3", "SLURM_NTASKS=8", "SLURM_JOB_ID=4711")
	fakeProcess(t, root, 103, 101, "python3", "", "SLURM_PROCID=3", "SLURM_NTASKS=8",
		"SLURM_JOB_ID=4711") // a data loader of rank 3
	fakeProcess(t, root, 110, 1, "python3", "0::/system.slice/slurmstepd.scope/job_4712/step_0",
		"RANK=0", "WORLD_SIZE=2") // no SLURM_JOB_ID: srun --export=NONE
	fakeProcess(t, root, 120, 1, "python", pod, "RANK=5", "WORLD_SIZE=16", "LOCAL_RANK=1", "HOSTNAME=llama-worker-2", "MASTER_PORT=29500",
		"NCCL_IB_HCA==mlx5_3:1")
	fakeProcess(t, root, 121, 1, "python", pod, "RANK=6", "WORLD_SIZE=16", "LOCAL_RANK=2", "HOSTNAME=llama-worker-3")
	fakeProcess(t, root, 130, 1, "python", "12:memory:/docker/abc\n0::/", "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4",
		"OMPI_COMM_WORLD_LOCAL_RANK=1", "MASTER_PORT=7000")
	fakeProcess(t, root, 140, 1, "trainer", "", "RANK=2", "WORLD_SIZE=4", "LOCAL_RANK=2", "WEFT_JOB=train", "WEFT_TOKEN=x")
	fakeProcess(t, root, 145, 1, "timeout", "", "RANK=0", "WORLD_SIZE=1", "MASTER_PORT=7100") // timeout 1h numactl python train.py
	fakeProcess(t, root, 146, 145, "numactl", "", "RANK=0", "WORLD_SIZE=1", "MASTER_PORT=7100")
	fakeProcess(t, root, 147, 146, "python", "", "RANK=0", "WORLD_SIZE=1", "MASTER_PORT=7100")
	fakeProcess(t, root, 150, 1, "sshd", "", "PATH=/bin")
	set(t, root, "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "1000000")
	set(t, root, "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "900000")
	got := ranksOf(newPulse(root))
	for key, want := range map[string]watch.Rank{
		"4711/3":      {PID: 101, Size: 8, GPU: "5"},
		"4712/0":      {PID: 110, Size: 2, GPU: "0"},
		"llama/5":     {PID: 120, Size: 16, GPU: "1", NIC: "mlx5_3"},
		"llama/6":     {PID: 121, Size: 16, GPU: "2"},
		"port-7000/1": {PID: 130, Size: 4, GPU: "1", Limit: 1000000, Used: 900000},
		"train/2":     {PID: 140, Size: 4, GPU: "2"},
		"port-7100/0": {PID: 147, Size: 1, GPU: got["port-7100/0"].GPU},
	} {
		g, ok := got[key]
		if !ok || g.PID != want.PID || g.Size != want.Size || g.GPU != want.GPU || g.NIC != want.NIC || g.Limit != want.Limit ||
			g.Used != want.Used || g.CPU != 4 {
			t.Errorf("%s: %+v, want %+v", key, g, want)
		}
		delete(got, key)
	}
	for key, r := range got {
		t.Errorf("%s of process %d is no rank", key, r.PID)
	}
}

// Files of NCCL Inspector are read as they grow, PyTorch's flight records when they appear, also
// of a process in a container, and also when the process is gone.
func TestPicksUpFiles(t *testing.T) {
	root := t.TempDir()
	env := []string{"RANK=1", "WORLD_SIZE=2", "WEFT_JOB=train", "NCCL_INSPECTOR_DUMP_DIR=/logs", "TORCH_FR_DUMP_TEMP_FILE=/dumps/fr_"}
	fakeProcess(t, root, 200, 1, "python", "", env...)
	p := newPulse(root)
	record := func(seq int) string {
		return fmt.Sprintf(`{"header":{"id":"0xab","rank":1,"n_ranks":2},"metadata":{"hostname":"n1","pid":17},"coll_perf":{"coll":"AllReduce","coll_sn":%d,"coll_msg_size_bytes":8388608,"coll_exec_time_us":100,"coll_busbw_gbs":80}}`,
			seq)
	}
	ops := func() (seqs []int64) {
		for _, g := range ranksOf(p)["train/1"].Groups {
			for _, o := range g.Ops {
				seqs = append(seqs, o.Seq)
			}
		}
		return seqs
	}
	file := "proc/200/root/logs/n1-pid17.log" // the number inside the container
	put(t, root, file, record(1)+"\n"+record(2)+"\n"+record(3)[:40])
	if got := ops(); !slices.Equal(got, []int64{1, 2}) {
		t.Errorf("first look: operations %v", got)
	}
	put(t, root, file, record(1)+"\n"+record(2)+"\n"+record(3)+"\n"+record(4)+"\n")
	if got := ops(); !slices.Equal(got, []int64{3, 4}) {
		t.Errorf("second look: operations %v", got)
	}
	if got := ops(); got != nil {
		t.Errorf("nothing was added: operations %v", got)
	}
	dump := func(seq int) string {
		return fmt.Sprintf(`{"version":"2.10","pg_config":{"0":{"name":"0","desc":"default_pg","ranks":"[0, 1]"}},"pg_status":{"0":{"last_enqueued_collective":"%d","last_completed_collective":"%d"}},"entries":[{"record_id":%d,"pg_id":0,"process_group":["0","default_pg"],"collective_seq_id":%d,"profiling_name":"nccl:all_reduce","state":"scheduled"}]}`,
			seq, seq-1, seq, seq)
	}
	dumps := func() (seqs []int64) {
		_, list, _ := p.ranks(&Config{Host: "n1"})
		for _, d := range list {
			if d.Job != "train" || !strings.Contains(d.File, "on n1") {
				t.Errorf("%+v", d)
			}
			for _, o := range d.Entries {
				seqs = append(seqs, o.Seq)
			}
		}
		return seqs
	}
	if got := dumps(); got != nil {
		t.Errorf("there is no dump yet: %v", got)
	}
	set(t, root, "proc/200/root/dumps/fr_1", dump(7))
	if got := dumps(); !slices.Equal(got, []int64{7}) {
		t.Errorf("a dump appeared: %v", got)
	}
	if got := dumps(); got != nil {
		t.Errorf("it was told before: %v", got)
	}
	// The process dies and leaves a dump where the host can see it.
	if err := os.RemoveAll(filepath.Join(root, "proc/200")); err != nil {
		t.Fatal(err)
	}
	set(t, root, "dumps/fr_1", dump(9))
	if got := dumps(); !slices.Equal(got, []int64{9}) {
		t.Errorf("the dump of a process that ended: %v", got)
	}
}

// The counters of a driver, asked as ethtool -S does, of a real interface.
func TestEthtoolOfARealInterface(t *testing.T) {
	if os.Getenv("WEFT_TEST_VETH") == "" {
		if os.Geteuid() != 0 {
			t.Skip("needs root for a network namespace")
		}
		for _, tool := range []string{"unshare", "ip"} {
			if _, err := exec.LookPath(tool); err != nil {
				t.Skipf("needs %s: %v", tool, err)
			}
		}
		cmd := bounded.Command(t, "unshare", "-n", "sh", "-c",
			`ip link add watchv0 type veth peer name watchv1 && exec "$0" -test.run '^TestEthtoolOfARealInterface$' -test.v`, os.Args[0])
		cmd.Env = append(os.Environ(), "WEFT_TEST_VETH=1")
		out, err := cmd.CombinedOutput()
		if err != nil && strings.Contains(string(out), "unshare failed") {
			t.Skipf("namespaces are not permitted here: %s", out)
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	e := newEthtool()
	defer e.close()
	list, _ := e.counters("watchv0")
	if list["peer_ifindex"] == 0 {
		t.Errorf("a veth pair has %v", list)
	}
	if list, _ := e.counters("nosuch0"); list != nil {
		t.Errorf("an interface that is not there has %v", list)
	}
}
