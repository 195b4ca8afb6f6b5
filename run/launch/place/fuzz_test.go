package place

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// known are all variables that are read.
var known = strings.Fields(`RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE MASTER_ADDR MASTER_PORT
TORCHELASTIC_RESTART_COUNT TORCHELASTIC_RUN_ID OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK
OMPI_COMM_WORLD_LOCAL_SIZE PMIX_NAMESPACE OMPI_MCA_ess_base_jobid PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS
SLURM_JOB_ID SLURM_JOBID SLURM_HET_SIZE SLURM_PACK_SIZE SLURM_RESTART_COUNT SLURM_STEP_ID SLURM_STEPID SLURM_STEP_NUM_NODES
SLURM_NNODES SLURM_JOB_NUM_NODES SLURM_NODEID SLURM_STEP_NUM_TASKS SLURM_NTASKS SLURM_NPROCS SLURM_PROCID SLURM_LOCALID
SLURM_STEP_TASKS_PER_NODE SLURM_TASKS_PER_NODE SLURM_NTASKS_PER_NODE SLURM_STEP_NODELIST SLURM_JOB_NODELIST SLURM_NODELIST
SLURM_LAUNCH_NODE_IPADDR SLURM_GPUS_ON_NODE JOB_COMPLETION_INDEX KUBERNETES_SERVICE_HOST HOSTNAME PET_NNODES
PET_NPROC_PER_NODE PET_N_PROC_PER_NODE PET_NODE_RANK PET_MAX_RESTARTS PET_RDZV_ENDPOINT PET_RDZV_ID PET_RDZV_BACKEND
PET_MASTER_ADDR PET_MASTER_PORT CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES WEFT_JOB`)

// lines are an environment with a variable in each line, so that values may
// have anything but a line's end in them.
func lines(s string) func(string) string {
	m := map[string]string{}
	for kv := range strings.SplitSeq(s, "\n") {
		name, value, _ := strings.Cut(kv, "=")
		m[name] = value
	}
	return func(name string) string { return m[name] }
}

func FuzzRecognise(f *testing.F) {
	for _, env := range []string{
		"", slurmStep0, slurmBatch + "SLURM_RESTART_COUNT=1 SLURM_NTASKS=8",
		slurmStep0 + "SLURM_NTASKS=7 SLURM_STEP_TASKS_PER_NODE=4,3 RANK=1 WORLD_SIZE=2 LOCAL_RANK=0",
		pod + "JOB_COMPLETION_INDEX=1 HOSTNAME=t-1", "PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2",
		pod + "PET_NNODES=1:2 PET_NPROC_PER_NODE=auto PET_RDZV_ENDPOINT=[fd00::1]:99 PET_RDZV_ID=ä", "CUDA_VISIBLE_DEVICES=0,1 MASTER_ADDR=[::1]",
	} {
		f.Add(strings.ReplaceAll(env, " ", "\n"))
	}
	f.Fuzz(func(t *testing.T, s string) {
		asked := map[string]bool{}
		env := lines(s)
		p, err := Recognise(func(name string) string { asked[name] = true; return env(name) })
		for name := range asked {
			if !strings.Contains(" "+strings.Join(known, " ")+" ", " "+name+" ") {
				t.Errorf("%s is read and not among the known variables", name)
			}
		}
		checkPlace(t, p, err)
		if j, err := (Flags{}).Resolve(p, 4); err == nil && sound(j) != nil {
			t.Errorf("%q: %v: %+v", s, sound(j), j)
		}
	})
}

// checkPlace holds a place, or an error, against what Place promises.
func checkPlace(t interface{ Errorf(string, ...any) }, p Place, err error) {
	if err != nil {
		if !strings.Contains(err.Error(), "=") || strings.Contains(err.Error(), "\n") {
			t.Errorf("error without a variable, or of several lines: %q", err)
		}
		return
	}
	switch {
	case p.Node < -1 || p.Nodes < 0 || p.Nodes > 0 && p.Node >= p.Nodes,
		p.Rank < -1 || p.Size < 0 || (p.Rank < 0) != (p.Size == 0) || p.Size > 0 && p.Rank >= p.Size,
		p.LocalRank < -1 || p.NProc < 0 || p.Restart < 0 || p.GPUs < 0 || p.Port < 0 || p.Port > 65535:
		t.Errorf("%+v", p)
	case p.Addr != "" && checkHost(p.Addr) != nil:
		t.Errorf("address %q", p.Addr)
	case p.Job != "" && checkLabel(p.Job) != nil:
		t.Errorf("job %q", p.Job)
	case p.By != "" && len(p.Why) == 0:
		t.Errorf("no reason for %+v", p)
	}
}

// Any variables with values that one of them might have, and any flags: 20,000
// rounds of the same sequence on every run.
func TestAnyEnvironment(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	of := func(list ...string) string { return list[rnd.IntN(len(list))] }
	seldom := func(list ...string) string {
		if rnd.IntN(4) > 0 {
			return ""
		}
		return of(list...)
	}
	opt := func() Opt { return Opt{Given: rnd.IntN(6) == 0, N: rnd.IntN(20) - 1} }
	values := strings.Fields("0 1 2 3 4 8 -1 x n[1-2] n[1-4] n1 2(x2) 1(x4) 3,1 1:4 2:2 auto gpu c10d etcd none a-0 t-1 a:1 [fd00::1]:2 fd00::1 0,1")
	var places, jobs int
	for range 20000 {
		base := of("", slurmStep0+"SLURM_STEP_NUM_TASKS=4", slurmBatch, pod, pod+"JOB_COMPLETION_INDEX=1 HOSTNAME=t-1",
			"RANK=1 WORLD_SIZE=4 LOCAL_RANK=1")
		for range rnd.IntN(6) {
			base += " " + of(known...) + "=" + of(values...)
		}
		p, err := Recognise(vars(base))
		if checkPlace(t, p, err); err != nil {
			continue
		}
		places++
		f := Flags{Nodes: seldom("1", "2", "4", "1:4", "0", "4:1"), NProc: seldom("1", "2", "4", "auto", "cpu", "gpu", "0"),
			Endpoint: seldom("h:7", "h", "[::1]:0", "a:1,b:2", ":"),
			ID:       seldom("7", "none", "a/b"), Backend: seldom(append(backends, "zeus")...),
			Coord: seldom("etcd://a:1,b", "etcd://[fd00::1]:2", "a:1"),
			Job:   seldom("7", "j", "a b"), Ckpt: seldom("/c", "/", "s3://b/p"),
			NodeRank: opt(), Min: opt(), Max: opt(), MaxRestarts: opt(), Standalone: rnd.IntN(8) == 0}
		j, err := f.Resolve(p, rnd.IntN(10))
		switch {
		case err != nil && strings.Contains(err.Error(), "\n"):
			t.Errorf("error of several lines: %q", err)
		case err == nil && sound(j) != nil:
			t.Errorf("%+v at %s: %v: %+v", f, base, sound(j), j)
		case err == nil:
			jobs++
		}
	}
	t.Logf("%d places, %d jobs", places, jobs)
	if places < 5000 || jobs < 1000 {
		t.Errorf("%d places and %d jobs: too few to tell", places, jobs)
	}
}

func FuzzResolve(f *testing.F) {
	f.Add("2", "4", "", "", "", "etcd://h:2379", "/c", "", 2, 8, -1, 3, "")
	f.Add("1:4", "gpu", "h:29400", "12", "c10d", "", "", "", 0, 0, 1, 0, "CUDA_VISIBLE_DEVICES=0,1")
	f.Add("2", "auto", "[fd00::1]", "none", "etcd-v2", "", "", "job", 1, 1, 0, -5, slurmStep0)
	f.Fuzz(func(t *testing.T, nodes, nproc, endpoint, id, backend, coord, ckpt, job string, least, most, rank, restarts int, env string) {
		p, err := Recognise(lines(strings.ReplaceAll(env, " ", "\n")))
		if err != nil {
			return
		}
		opt := func(n int) Opt { return Opt{Given: n != 0, N: n} }
		flags := Flags{Nodes: nodes, NProc: nproc, Endpoint: endpoint, ID: id, Backend: backend, Coord: coord, Ckpt: ckpt, Job: job,
			Min: opt(least), Max: opt(most), NodeRank: opt(rank), MaxRestarts: opt(restarts), Standalone: len(nodes)%5 == 4}
		j, err := flags.Resolve(p, len(env)%9)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("several lines: %q", err)
			}
			return
		}
		if err := sound(j); err != nil {
			t.Errorf("%+v at %+v: %v: %+v", flags, p, err, j)
		}
	})
}

// Counts of tasks are read as Slurm writes them: runs of equal counts in one.
func TestTasksOfAnyNode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		counts := rapid.SliceOfN(rapid.IntRange(1, 3), 1, 20).Draw(t, "counts")
		var parts []string
		for i := 0; i < len(counts); {
			n := 1
			for i+n < len(counts) && counts[i+n] == counts[i] {
				n++
			}
			part := fmt.Sprint(counts[i])
			if n > 1 {
				part += fmt.Sprintf("(x%d)", n)
			}
			parts = append(parts, part)
			i += n
		}
		s := strings.Join(parts, ",")
		for node, want := range counts {
			if got, err := tasksOf(s, node, len(counts)); err != nil || got != want {
				t.Fatalf("%s, node %d: %d, %v; want %d", s, node, got, err, want)
			}
		}
		if n, err := tasksOf(s, 0, len(counts)+1); err == nil {
			t.Fatalf("%s for one node more: %d", s, n)
		}
	})
}

func FuzzTasksOf(f *testing.F) {
	for _, s := range []string{"4", "4(x2),3", "1(x1048576)", "4(x2", "(x2)", "2,,3", "-1", "99999999999999999999(x2)"} {
		f.Add(s, 0, 1)
	}
	f.Fuzz(func(t *testing.T, s string, node, nodes int) {
		n, err := tasksOf(s, node, nodes)
		if err == nil && node >= 0 && node < nodes && (n < 1 || n > MaxProc) {
			t.Errorf("%q, node %d of %d: %d", s, node, nodes, n)
		}
	})
}

// An address that is read is written so that it is read again as the same.
func FuzzAddresses(f *testing.F) {
	for _, s := range []string{"a:1", "a,b:2", "[fd00::1]:3", "[::1]", "10.0.0.1", "[fe80::1%eth0]:4", "a:b:c", ":1", "a:", "http://a:1",
		"[a]:1", "a:+1", "a:01"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		list, err := parseAddresses(s, 7)
		if err != nil {
			return
		}
		again, err := parseAddresses(strings.Join(list, ","), 8)
		if err != nil || !slices.Equal(list, again) {
			t.Errorf("%q: %q, then %q, %v", s, list, again, err)
		}
		for _, a := range list {
			if host, port := split(a); join(host, port) != a || checkHost(host) != nil || port < 0 || port > 65535 {
				t.Errorf("%q: %q is %q and %d", s, a, host, port)
			}
		}
	})
}
