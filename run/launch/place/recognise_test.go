package place

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// vars are an environment as people write it: NAME=VALUE separated by spaces.
func vars(s string) func(string) string {
	m := map[string]string{}
	for kv := range strings.FieldsSeq(s) {
		name, value, _ := strings.Cut(kv, "=")
		m[name] = value
	}
	return func(name string) string { return m[name] }
}

// Environments of a job of two nodes; TestSlurmTranscripts has those of a real Slurm.
const (
	slurmBatch = "SLURM_JOB_ID=17 SLURM_JOBID=17 SLURM_JOB_NUM_NODES=2 SLURM_NNODES=2 SLURM_JOB_NODELIST=gpu[07,09] SLURM_NODELIST=gpu[07,09] SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_TASKS_PER_NODE=4(x2) "
	slurmStep0 = slurmBatch +
		"SLURM_STEP_ID=0 SLURM_STEPID=0 SLURM_STEP_NODELIST=gpu[07,09] SLURM_STEP_NUM_NODES=2 SLURM_LAUNCH_NODE_IPADDR=10.0.0.7 "
	pod = "KUBERNETES_SERVICE_HOST=10.96.0.1 KUBERNETES_SERVICE_PORT=443 "
)

func TestRecognise(t *testing.T) {
	for _, c := range []struct {
		name, env string
		want      Place
	}{
		{"nothing", "", Place{Node: -1, Rank: -1, LocalRank: -1}},
		{"slurm: one launcher a node",
			slurmStep0 + "SLURM_NODEID=1 SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_STEP_NUM_TASKS=2 SLURM_NTASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2)",
			Place{By: "slurm", Node: 1, Nodes: 2, Rank: 1, Size: 2, Addr: "gpu07", Job: "slurm-17.0"}},
		{"slurm: one process a rank, requeued twice",
			slurmStep0 + "SLURM_NODEID=1 SLURM_PROCID=5 SLURM_LOCALID=1 SLURM_STEP_NUM_TASKS=7 SLURM_STEP_TASKS_PER_NODE=4,3 SLURM_RESTART_COUNT=2",
			Place{By: "slurm", Node: 1, Nodes: 2, NProc: 3, Rank: 5, Size: 7, LocalRank: 1, Addr: "gpu07", Job: "slurm-17.0-r2", Restart: 2}},
		{"slurm: a step on one node of two", slurmStep0 +
			"SLURM_STEP_ID=3 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NODELIST=gpu09 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1",
			Place{By: "slurm", Node: 0, Nodes: 1, Rank: 0, Size: 1, Addr: "gpu09", Job: "slurm-17.3"}},
		{"slurm: batch script of two nodes", slurmBatch,
			Place{By: "slurm", Nodes: 2, Rank: -1, LocalRank: -1, Addr: "gpu07", Job: "slurm-17", Alone: true}},
		{"slurm: batch script with --ntasks-per-node", slurmBatch + "SLURM_NTASKS_PER_NODE=4 SLURM_NTASKS=8",
			Place{By: "slurm", Nodes: 2, NProc: 4, Rank: -1, LocalRank: -1, Addr: "gpu07", Job: "slurm-17", Alone: true}},
		{"slurm: batch script with --ntasks", slurmBatch + "SLURM_TASKS_PER_NODE=3,2 SLURM_NTASKS=5",
			Place{By: "slurm", Nodes: 2, NProc: 3, Rank: -1, LocalRank: -1, Addr: "gpu07", Job: "slurm-17", Alone: true}},
		{"slurm: interactive step", slurmBatch + "SLURM_STEP_ID=4294967290",
			Place{By: "slurm", Nodes: 2, Rank: -1, LocalRank: -1, Addr: "gpu07", Job: "slurm-17", Alone: true}},
		{"slurm: no list of nodes", "SLURM_JOB_ID=17 SLURM_STEP_ID=0 SLURM_NODEID=0 SLURM_NNODES=1 SLURM_LAUNCH_NODE_IPADDR=10.0.0.7",
			Place{By: "slurm", Nodes: 1, Rank: -1, LocalRank: -1, Addr: "10.0.0.7", Job: "slurm-17.0"}},
		{"slurm: GPUs and an address of one's own", slurmStep0 +
			"SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_GPUS_ON_NODE=8 MASTER_ADDR=ib07 MASTER_PORT=29500",
			Place{By: "slurm", Nodes: 2, Rank: 0, Size: 2, GPUs: 8, Addr: "ib07", Port: 29500, Job: "slurm-17.0"}},
		{"slurm with pmi2", slurmStep0 + "SLURM_NODEID=1 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 PMI_RANK=1 PMI_SIZE=2",
			Place{By: "slurm", Node: 1, Nodes: 2, Rank: 1, Size: 2, Addr: "gpu07", Job: "slurm-17.0"}},
		{"mpirun under slurm, on the second node", slurmBatch +
			"SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NODELIST=gpu09 SLURM_STEP_NUM_TASKS=1 OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=4 OMPI_MCA_ess_base_jobid=99",
			Place{By: "openmpi", Node: -1, NProc: 4, Rank: 5, Size: 8, LocalRank: 1, Addr: "gpu07", Job: "slurm-17-openmpi-99"}},
		{"mpirun under slurm, on the first node", slurmBatch +
			"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=4 OMPI_MCA_ess_base_jobid=99",
			Place{By: "openmpi", Node: -1, NProc: 4, Rank: 1, Size: 8, LocalRank: 1, Addr: "gpu07", Job: "slurm-17-openmpi-99"}},
		{"torchrun in srun",
			slurmStep0 +
				"SLURM_PROCID=1 SLURM_NODEID=1 SLURM_STEP_NUM_TASKS=2 RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 GROUP_WORLD_SIZE=2 MASTER_ADDR=gpu07.lan MASTER_PORT=40001 TORCHELASTIC_RESTART_COUNT=1 TORCHELASTIC_RUN_ID=none",
			Place{By: "torchrun", Node: 1, Nodes: 2, NProc: 4, Rank: 5, Size: 8, LocalRank: 1, Addr: "gpu07.lan", Port: 40001, Job: "slurm-17",
				Restart: 1}},
		{"torchrun",
			"RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 GROUP_RANK=0 GROUP_WORLD_SIZE=1 MASTER_ADDR=::1 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=a/b TORCHELASTIC_RESTART_COUNT=3",
			Place{By: "torchrun", Nodes: 1, NProc: 2, Rank: 0, Size: 2, Addr: "::1", Port: 29500, Job: "a_b-r3-" + digest("a/b-r3"), Restart: 3}},
		{"open mpi 5",
			"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=prterun-host-512@1",
			Place{By: "openmpi", Node: -1, NProc: 2, Rank: 1, Size: 2, LocalRank: 1, Job: "openmpi-prterun-host-512@1"}},
		{"hydra", "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 PMI_FD=8",
			Place{By: "pmi", Node: -1, NProc: 2, Rank: 1, Size: 2, LocalRank: 1}},
		{"pod of an indexed job", pod + "JOB_COMPLETION_INDEX=3 HOSTNAME=train-v2-3",
			Place{By: "kubernetes", Node: 3, Rank: -1, LocalRank: -1, Addr: "train-v2-0.train-v2", Job: "k8s-train-v2"}},
		{"pod of an indexed job with an id and an address", pod + "JOB_COMPLETION_INDEX=0 HOSTNAME=node17 WEFT_JOB=8a6e MASTER_ADDR=train-0.svc",
			Place{By: "kubernetes", Rank: -1, LocalRank: -1, Addr: "train-0.svc", Job: "8a6e"}},
		{"any pod", pod, Place{By: "kubernetes", Node: -1, Rank: -1, LocalRank: -1}},
		{"PyTorchJob with a master", pod + "RANK=1 WORLD_SIZE=3 MASTER_ADDR=mnist-master-0 MASTER_PORT=23456",
			Place{By: "kubernetes", Node: 1, Nodes: 3, Rank: -1, LocalRank: -1, Addr: "mnist-master-0", Port: 23456}},
		{"elastic PyTorchJob",
			pod +
				"HOSTNAME=echo-worker-1 PET_NNODES=2:4 PET_NPROC_PER_NODE=gpu PET_RDZV_ENDPOINT=echo-worker-0:23456 PET_RDZV_BACKEND=c10d PET_RDZV_ID=echo PET_MAX_RESTARTS=100",
			Place{By: "kubernetes", Node: 1, Rank: -1, LocalRank: -1, Addr: "echo-worker-0", Port: 23456, Job: "echo",
				Said: Flags{Nodes: "2:4", NProc: "gpu", Endpoint: "echo-worker-0:23456", Backend: "c10d", ID: "echo", MaxRestarts: Some(100)}}},
		{"TrainJob",
			pod +
				"JOB_COMPLETION_INDEX=1 HOSTNAME=t-node-0-1 PET_NNODES=2 PET_NPROC_PER_NODE=4 PET_NODE_RANK=1 PET_MASTER_ADDR=t-node-0-0.t PET_MASTER_PORT=29500",
			Place{By: "kubernetes", Node: 1, Nodes: 2, NProc: 4, Rank: -1, LocalRank: -1, Addr: "t-node-0-0.t", Port: 29500, Job: "k8s-t-node-0",
				Said: Flags{Nodes: "2", NProc: "4", NodeRank: Some(1)}}},
		{"devices", "CUDA_VISIBLE_DEVICES=GPU-8932f937,GPU-01,-1,3", Place{Node: -1, Rank: -1, LocalRank: -1, GPUs: 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Recognise(vars(c.env))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, got, cmpopts.IgnoreFields(Place{}, "Why")); d != "" {
				t.Errorf("want -, got +:\n%s\n%s", d, strings.Join(got.Why, "\n"))
			}
			if got.By != "" && len(got.Why) == 0 {
				t.Error("no reason given")
			}
		})
	}
}

// Every fact of a crowded place has its reason.
func TestWhy(t *testing.T) {
	p, err := Recognise(vars(slurmStep0 +
		"SLURM_PROCID=1 SLURM_NODEID=1 SLURM_STEP_NUM_TASKS=2 SLURM_RESTART_COUNT=1 RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 TORCHELASTIC_RUN_ID=run7 MASTER_ADDR=gpu07 MASTER_PORT=40001"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"process 5 of 8: RANK, WORLD_SIZE",
		"process 1 of this node: LOCAL_RANK",
		"4 processes on this node: LOCAL_WORLD_SIZE",
		"job run7: TORCHELASTIC_RUN_ID",
		"slurm is here too (process 1 of 2); torchrun is closer to this process and counts",
		"job slurm-17-r1-run7: with the id of slurm",
		"restart 1: from slurm",
		"address gpu07: from slurm",
		"address gpu07: MASTER_ADDR",
		"port 40001: MASTER_PORT",
	}
	if d := cmp.Diff(want, p.Why); d != "" {
		t.Error(d)
	}
}

func TestRecogniseRefuses(t *testing.T) {
	for _, c := range []struct{ env, want string }{
		{"SLURM_JOB_ID=seven", "SLURM_JOB_ID=seven: want the number of a job"},
		{"SLURM_PROCID=1 SLURM_NTASKS=2", "SLURM_PROCID=1: a task of Slurm has SLURM_JOB_ID as well"},
		{slurmStep0 + "SLURM_HET_SIZE=2", "SLURM_HET_SIZE=2: a heterogeneous job"},
		{slurmStep0 + "SLURM_PACK_SIZE=2", "SLURM_PACK_SIZE=2: a heterogeneous job"},
		{slurmStep0 + "SLURM_STEP_ID=x", "SLURM_STEP_ID=x: want the number of a job step"},
		{slurmStep0 + "SLURM_NODEID=2", "SLURM_NODEID=2: SLURM_STEP_NUM_NODES is 2"},
		{slurmStep0 + "SLURM_NODEID=-1", "SLURM_NODEID=-1: want a whole number from 0"},
		{slurmStep0 + "SLURM_STEP_NUM_NODES=0", "SLURM_STEP_NUM_NODES=0: want a whole number from 1"},
		{slurmStep0 + "SLURM_PROCID=9 SLURM_STEP_NUM_TASKS=8", "SLURM_PROCID=9: SLURM_STEP_NUM_TASKS is 8"},
		{slurmStep0 + "SLURM_STEP_NUM_TASKS=8 SLURM_STEP_TASKS_PER_NODE=4(x", "SLURM_STEP_TASKS_PER_NODE=4(x: want a count for each node"},
		{slurmStep0 + "SLURM_STEP_NUM_TASKS=8 SLURM_STEP_TASKS_PER_NODE=4(x3)", "counts for 3 nodes, but there are 2"},
		{slurmStep0 + "SLURM_STEP_NUM_TASKS=8 SLURM_STEP_TASKS_PER_NODE=4(x2) SLURM_LOCALID=4",
			"SLURM_LOCALID=4: SLURM_STEP_TASKS_PER_NODE of this node is 4"},
		{slurmStep0 + "SLURM_STEP_NODELIST=gpu[07", "does not close"},
		{slurmStep0 + "SLURM_STEP_NODELIST=gpu[07-09]", "3 hosts, but there are 2 nodes"},
		{slurmStep0 + "SLURM_RESTART_COUNT=many", "SLURM_RESTART_COUNT=many"},
		{"RANK=2 WORLD_SIZE=2 LOCAL_RANK=0", "RANK=2: WORLD_SIZE is 2"},
		{"RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=3", "LOCAL_WORLD_SIZE=3: WORLD_SIZE is 2"},
		{"RANK=one WORLD_SIZE=2 LOCAL_RANK=0", "RANK=one: want a whole number"},
		{"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=1e3", "OMPI_COMM_WORLD_SIZE=1e3: want a whole number"},
		{"PMI_RANK=0 PMI_SIZE=0", "PMI_SIZE=0: want a whole number from 1"},
		{pod + "JOB_COMPLETION_INDEX=first", "JOB_COMPLETION_INDEX=first: want a whole number"},
		{"MASTER_ADDR=a:b MASTER_PORT=1", "MASTER_ADDR=a:b: "},
		{"MASTER_ADDR=a MASTER_PORT=70000", "MASTER_PORT=70000: want a whole number from 1 to 65535"},
		{"PET_NNODES=4:2", "PET_NNODES=4:2: at least 4 and at most 2; turn them round: 2:4"},
		{"PET_NNODES=2 PET_NODE_RANK=2", "PET_NNODES=2: this is node 2"},
		{"PET_NPROC_PER_NODE=many", "PET_NPROC_PER_NODE=many: want a count of ranks"},
		{"PET_RDZV_ENDPOINT=a:b:c", "PET_RDZV_ENDPOINT=a:b:c: "},
		{"PET_RDZV_BACKEND=zeus", "PET_RDZV_BACKEND=zeus: unknown; known are c10d"},
		{"PET_MAX_RESTARTS=-1", "PET_MAX_RESTARTS=-1: want a whole number from 0"},
	} {
		if p, err := Recognise(vars(c.env)); err == nil {
			t.Errorf("%s: accepted as %+v", c.env, p)
		} else if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s:\n got %v\nwant %s", c.env, err, c.want)
		}
	}
}

func TestTasksOf(t *testing.T) {
	for _, c := range []struct {
		s     string
		nodes int
		want  []int
	}{{"4", 1, []int{4}}, {"4(x2),3", 3, []int{4, 4, 3}}, {"2,1(x3),5", 5, []int{2, 1, 1, 1, 5}}} {
		for node, want := range c.want {
			if got, err := tasksOf(c.s, node, c.nodes); err != nil || got != want {
				t.Errorf("%s, node %d: got %d, %v, want %d", c.s, node, got, err, want)
			}
		}
	}
}
