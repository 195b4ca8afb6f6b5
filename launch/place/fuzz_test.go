package place

import (
	"strings"
	"testing"
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
		"", slurmStep0, slurmBatch + "SLURM_RESTART_COUNT=1 SLURM_NTASKS=8", slurmStep0 + "SLURM_NTASKS=7 SLURM_STEP_TASKS_PER_NODE=4,3 RANK=1 WORLD_SIZE=2 LOCAL_RANK=0",
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
		if err != nil {
			if !strings.Contains(err.Error(), "=") || strings.Contains(err.Error(), "\n") {
				t.Errorf("error without a variable, or of several lines: %q", err)
			}
			return
		}
		switch {
		case p.Node < -1 || p.Nodes < 0 || p.Nodes > 0 && p.Node >= p.Nodes,
			p.Rank < -1 || p.Size < 0 || (p.Rank < 0) != (p.Size == 0) || p.Size > 0 && p.Rank >= p.Size,
			p.LocalRank < -1 || p.NProc < 0 || p.GPUs < 0 || p.Restart < 0 || p.Port < 0 || p.Port > 65535:
			t.Errorf("%q: %+v", s, p)
		case p.Addr != "" && checkHost(p.Addr) != nil:
			t.Errorf("%q: address %q", s, p.Addr)
		case p.Job != "" && checkLabel(p.Job) != nil:
			t.Errorf("%q: job %q", s, p.Job)
		}
		if j, err := (Flags{}).Resolve(p, 4); err == nil {
			if err := sound(j); err != nil {
				t.Errorf("%q: %v: %+v", s, err, j)
			}
		}
	})
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
