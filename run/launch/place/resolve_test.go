package place

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"pgregory.net/rapid"
)

// parse reads a command line as a user types it.
func parse(t *testing.T, line string) Flags {
	t.Helper()
	var f Flags
	fs := pflag.NewFlagSet("run", pflag.ContinueOnError)
	fs.SetOutput(io.Discard)
	f.Bind(fs)
	if err := fs.Parse(strings.Fields(line)); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return f
}

func TestBind(t *testing.T) {
	want := Flags{Nodes: "1:4", NProc: "8", NodeRank: Some(0), Endpoint: "a:1", ID: "7", Backend: "c10d", MaxRestarts: Some(3),
		Standalone: true,
		Min:        Some(2), Max: Some(32), Coord: "etcd://h:2379", Ckpt: "d", Job: "j"}
	rest := " --min 2 --max 32 --coord etcd://h:2379 --ckpt d --job j --standalone"
	for _, line := range []string{
		"--nodes 1:4 --nproc 8 --node-rank 0 --rdzv-endpoint a:1 --rdzv-id 7 --rdzv-backend c10d --max-restarts 3",
		"--nnodes=1:4 --nproc-per-node=8 --node-rank=0 --rdzv-endpoint=a:1 --rdzv-id=7 --rdzv-backend=c10d --max-restarts=3",
		"--nnodes=1:4 --nproc_per_node=8 --node_rank=0 --rdzv_endpoint=a:1 --rdzv_id=7 --rdzv_backend=c10d --max_restarts=3",
	} {
		if d := cmp.Diff(want, parse(t, line+rest)); d != "" {
			t.Errorf("%s: %s", line, d)
		}
	}
	if (Flags{}).Given() || !want.Given() || !parse(t, "--node-rank 0").Given() {
		t.Error("Given is wrong")
	}
	// Spellings of flags that are in the set beside these are kept.
	var f Flags
	fs := pflag.NewFlagSet("run", pflag.ContinueOnError)
	fs.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ToLower(name))
	})
	port := fs.Int("master-port", 0, "")
	f.Bind(fs)
	if err := fs.Parse([]string{"--MASTER_PORT=7", "--NNODES=3"}); err == nil {
		t.Error("aliases are looked up before the set's own spelling")
	}
	if err := fs.Parse([]string{"--MASTER_PORT=7", "--nnodes=3"}); err != nil || *port != 7 || f.Nodes != "3" {
		t.Errorf("%v, port %d, nodes %q", err, *port, f.Nodes)
	}
	if err := fs.Parse([]string{"--min", "few"}); err == nil || !strings.Contains(err.Error(), "want a whole number") {
		t.Errorf("--min few: %v", err)
	}
}

func TestResolve(t *testing.T) {
	for _, c := range []struct {
		name, line, env string
		want            Job
	}{
		{"nothing", "", "", Job{Numbered: true, Nodes: 1, NProc: 1, Min: 1, Max: 1, Serve: true, Listen: "127.0.0.1:0", Name: "default",
			MaxRestarts: 3}},
		{"two hosts by hand and an etcd", "--nodes 2 --nproc 4 --min 2 --max 8 --coord etcd://host:2379 --ckpt /c/run1", "",
			Job{Nodes: 2, NProc: 4, Min: 2, Max: 8, Coord: []string{"host:2379"}, Name: "run1-" + digest("/c/run1"), MaxRestarts: 3,
				Ckpt: "/c/run1"}},
		{"three servers, one without a port, one of version 6", "--coord etcd://a,b:2380,[fd00::1]:2379/ --job j", "",
			Job{Numbered: true, Nodes: 1, NProc: 1, Min: 1, Max: 1, Coord: []string{"a:2379", "b:2380", "[fd00::1]:2379"}, Name: "j",
				MaxRestarts: 3}},
		{"two hosts by hand, first", "--nodes 2 --nproc 4 --node-rank 0 --rdzv-endpoint n0:29400 --rdzv-id 12 --max-restarts 0", "",
			Job{Numbered: true, Nodes: 2, NProc: 4, Min: 8, Max: 8, Coord: []string{"n0:29400"}, Serve: true, Listen: "0.0.0.0:29400", Name: "12"}},
		{"two hosts by hand, second", "--nodes 2 --nproc 4 --node-rank 1 --rdzv-endpoint n0 --rdzv-id 12", "",
			Job{Node: 1, Numbered: true, Nodes: 2, NProc: 4, Min: 8, Max: 8, Coord: []string{"n0:29400"}, Name: "12", MaxRestarts: 3}},
		{"one machine as two nodes", "--nnodes=2 --node_rank=0 --rdzv_endpoint=localhost:4000", "",
			Job{Numbered: true, Nodes: 2, NProc: 1, Min: 2, Max: 2, Coord: []string{"localhost:4000"}, Serve: true, Listen: "127.0.0.1:4000",
				Name: "default", MaxRestarts: 3}},
		{"torchrun's stacked jobs", "--rdzv-backend=c10d --rdzv-endpoint=localhost:0 --nnodes=1 --nproc-per-node=2", "",
			Job{Numbered: true, Nodes: 1, NProc: 2, Min: 2, Max: 2, Serve: true, Listen: "127.0.0.1:0", Name: "default", MaxRestarts: 3}},
		{"torchrun's etcd", "--rdzv-backend=etcd-v2 --rdzv-endpoint=h --rdzv-id=none --nnodes=1:4 --nproc-per-node=2", "",
			Job{Nodes: 4, NProc: 2, Min: 2, Max: 8, Coord: []string{"h:2379"}, Name: "default", MaxRestarts: 3}},
		{"room to grow", "--nproc 2 --max 16 --coord etcd://h:2379", "",
			Job{Numbered: true, Nodes: 1, NProc: 2, Min: 2, Max: 16, Coord: []string{"h:2379"}, Name: "default", MaxRestarts: 3}},
		{"all cores", "--nproc auto", "", Job{Numbered: true, Nodes: 1, NProc: 6, Min: 6, Max: 6, Serve: true, Listen: "127.0.0.1:0",
			Name: "default", MaxRestarts: 3}},
		{"all devices", "--nproc auto", "CUDA_VISIBLE_DEVICES=0,1,2",
			Job{Numbered: true, Nodes: 1, NProc: 3, Min: 3, Max: 3, Serve: true, Listen: "127.0.0.1:0", Name: "default", MaxRestarts: 3}},
		{"cores rather than devices", "--nproc cpu", "CUDA_VISIBLE_DEVICES=0,1,2",
			Job{Numbered: true, Nodes: 1, NProc: 6, Min: 6, Max: 6, Serve: true, Listen: "127.0.0.1:0", Name: "default", MaxRestarts: 3}},

		{"slurm, a launcher on each node", "--nproc gpu --min 4",
			slurmStep0 + "SLURM_NODEID=1 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_GPUS_ON_NODE=8",
			Job{Node: 1, Numbered: true, Nodes: 2, NProc: 8, Min: 4, Max: 16, Coord: []string{fmt.Sprintf("gpu07:%d", slurmPort("slurm-17.0"))},
				Name: "slurm-17.0", MaxRestarts: 3}},
		{"slurm, the first launcher", "--nproc 8 --nodes 1:4", slurmStep0 + "SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2)",
			Job{Numbered: true, Nodes: 2, NProc: 8, Min: 8, Max: 32, Coord: []string{fmt.Sprintf("gpu07:%d", slurmPort("slurm-17.0"))}, Serve: true,
				Listen: fmt.Sprintf("0.0.0.0:%d", slurmPort("slurm-17.0")), Name: "slurm-17.0", MaxRestarts: 3}},
		{"slurm, a process for each rank", "--min 3",
			slurmStep0 + "SLURM_NODEID=1 SLURM_PROCID=5 SLURM_LOCALID=1 SLURM_STEP_NUM_TASKS=7 SLURM_STEP_TASKS_PER_NODE=4,3",
			Job{Node: 5, Numbered: true, Nodes: 7, NProc: 1, Shared: true, Min: 3, Max: 7,
				Coord: []string{fmt.Sprintf("gpu07:%d", slurmPort("slurm-17.0"))}, Name: "slurm-17.0", MaxRestarts: 3}},
		{"slurm, one node of the batch script", "--nodes 1", slurmBatch + "SLURM_NTASKS_PER_NODE=4",
			Job{Numbered: true, Nodes: 1, NProc: 4, Min: 4, Max: 4, Serve: true, Listen: "127.0.0.1:0", Name: "slurm-17", MaxRestarts: 3}},
		{"standalone anywhere", "--standalone --nproc 2", slurmStep0 + "SLURM_STEP_NUM_TASKS=8 SLURM_STEP_TASKS_PER_NODE=4(x2)",
			Job{Numbered: true, Nodes: 1, NProc: 2, Min: 2, Max: 2, Serve: true, Listen: "127.0.0.1:0", Name: "slurm-17.0", MaxRestarts: 3}},
		{"open mpi", "--coord etcd://h:2379",
			"OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=4 OMPI_MCA_ess_base_jobid=99",
			Job{Node: 5, Numbered: true, Nodes: 8, NProc: 1, Shared: true, Min: 8, Max: 8, Coord: []string{"h:2379"}, Name: "openmpi-99",
				MaxRestarts: 3}},
		{"indexed job", "--nodes 2 --nproc 4", pod + "JOB_COMPLETION_INDEX=1 HOSTNAME=train-1",
			Job{Node: 1, Numbered: true, Nodes: 2, NProc: 4, Min: 8, Max: 8, Coord: []string{"train-0.train:29400"}, Name: "k8s-train",
				MaxRestarts: 3}},
		{"each pod of an indexed job alone", "--nodes 1", pod + "JOB_COMPLETION_INDEX=1 HOSTNAME=train-1",
			Job{Numbered: true, Nodes: 1, NProc: 1, Min: 1, Max: 1, Serve: true, Listen: "127.0.0.1:0", Name: "k8s-train", MaxRestarts: 3}},
		{"an address and a number by hand", "--nodes 2 --node-rank 1", "MASTER_ADDR=fd00::1 MASTER_PORT=7000",
			Job{Node: 1, Numbered: true, Nodes: 2, NProc: 1, Min: 2, Max: 2, Coord: []string{"[fd00::1]:7000"}, Name: "default", MaxRestarts: 3}},
		{"ranks of a rank", "--standalone --nproc 2", "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2",
			Job{Numbered: true, Nodes: 1, NProc: 2, Min: 2, Max: 2, Serve: true, Listen: "127.0.0.1:0", Name: "default", MaxRestarts: 3}},
		{"elastic PyTorchJob", "",
			pod +
				"HOSTNAME=echo-worker-0 PET_NNODES=1:2 PET_NPROC_PER_NODE=3 PET_RDZV_ENDPOINT=echo-worker-0:23456 PET_RDZV_BACKEND=c10d PET_RDZV_ID=echo PET_MAX_RESTARTS=100",
			Job{Numbered: true, Nodes: 2, NProc: 3, Min: 3, Max: 6, Coord: []string{"echo-worker-0:23456"}, Serve: true, Listen: "0.0.0.0:23456",
				Name: "echo", MaxRestarts: 100}},
		{"flags over PET_", "--nnodes 2 --nproc-per-node 1 --rdzv-id x",
			pod + "PET_NODE_RANK=1 PET_NNODES=2 PET_NPROC_PER_NODE=3 PET_MASTER_ADDR=m-0 PET_MASTER_PORT=23456 PET_RDZV_ID=echo",
			Job{Node: 1, Numbered: true, Nodes: 2, NProc: 1, Min: 2, Max: 2, Coord: []string{"m-0:23456"}, Name: "x", MaxRestarts: 3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := Recognise(vars(c.env))
			if err != nil {
				t.Fatal(err)
			}
			got, err := parse(t, c.line).Resolve(p, 6)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func slurmPort(job string) int { return Place{By: "slurm", Job: job}.MasterPort() }

// Names of jobs that others chose are made such as coord takes, and stay apart.
func TestLabel(t *testing.T) {
	long := strings.Repeat("ä", 100)
	for _, c := range []struct{ a, b string }{{"a b", "a/b"}, {long + "1", long + "2"}, {strings.Repeat("x", 129), strings.Repeat("x", 130)}} {
		a, b := label(c.a), label(c.b)
		if a == b || checkLabel(a) != nil || checkLabel(b) != nil {
			t.Errorf("%q and %q: %q and %q", c.a, c.b, a, b)
		}
	}
	if got := label("run-7.a:b@c+d_e"); got != "run-7.a:b@c+d_e" {
		t.Errorf("a good name became %q", got)
	}
}

// The host that can tell that an address is its own needs no number.
func TestResolveByAddress(t *testing.T) {
	f := parse(t, "--nnodes 2 --rdzv-endpoint n0:29400")
	p := nowhere("")
	for _, here := range []bool{true, false} {
		p.Here = func(host string) bool { return here && host == "n0" }
		j, err := f.Resolve(p, 1)
		if err != nil {
			t.Fatal(err)
		}
		if j.Serve != here || j.Numbered || (j.Listen != "") != here || j.Coord[0] != "n0:29400" {
			t.Errorf("here %v: %+v", here, j)
		}
	}
}

func TestResolveRefuses(t *testing.T) {
	for _, c := range []struct{ line, env, want string }{
		{"--min 9 --max 8", "", "--min 9: more than --max 8; lower --min or raise --max"},
		{"--nodes 2 --nproc 4 --min 9 --coord etcd://h:1", "", "--min 9: more than the 8 ranks there are"},
		{"--nodes 3 --nproc 4 --max 8 --coord etcd://h:1", "", "--max 8: more ranks than that: 3 nodes with 4 each are 12; raise --max to 12"},
		{"--nproc 4 --max 2", "", "--max 2: more ranks than that"},
		{"--min 0", "", "--min 0: want a count of ranks from 1"},
		{"--max 0", "", "--max 0: want a count of ranks from 1"},
		{"--min -1", "", "--min -1: want"},
		{"--nodes 0", "", "--nodes 0: want a count of nodes from 1"},
		{"--nodes 4:2", "", "turn them round: 2:4"},
		{"--nodes 1:2:3", "", "--nodes 1:2:3: want"},
		{"--nodes two", "", "--nodes two: want"},
		{"--nproc 0", "", "--nproc 0: want a count of ranks from 1"},
		{"--nproc 5000", "", "--nproc 5000: want"},
		{"--nproc tpu", "", "or auto, cpu or gpu"},
		{"--nproc xpu", "", "give the number"},
		{"--nproc gpu", "", "--nproc gpu: no GPU is named"},
		{"--nodes 2", "", "2 nodes and no address to meet at: give --coord"},
		{"--nodes 2 --rdzv-endpoint h:1", "", "give --node-rank, 0 on the node of that address"},
		{"--nodes 2 --rdzv-endpoint h:0 --node-rank 0", "", "--rdzv-endpoint h:0: port 0"},
		{"--nodes 2 --rdzv-endpoint a:1,b:2 --node-rank 0", "", "--coord etcd://a:1,b:2"},
		{"--nodes 2 --node-rank 2 --rdzv-endpoint h:1", "", "--node-rank 2: there are 2 nodes, numbered from 0"},
		{"--node-rank -1", "", "--node-rank -1: "},
		{"--max-restarts -1", "", "--max-restarts -1: want 0"},
		{"--rdzv-backend zeus", "", "--rdzv-backend zeus: unknown; known are c10d, static, etcd, etcd-v2; leave it out"},
		{"--rdzv-backend etcd", "", "--rdzv-backend etcd: needs --rdzv-endpoint"},
		{"--coord h:2379", "", "--coord h:2379: want etcd://host:2379"},
		{"--coord etcd://", "", "--coord etcd://: no address"},
		{"--coord etcd://a:1,,b:1", "", `"" is not a host name or address`},
		{"--coord etcd://a:b", "", "port b of a:b; want 0 to 65535"},
		{"--coord etcd://a:0", "", "port 0 of a:0"},
		{"--coord etcd://a:1,a:1", "", "a:1 is there twice"},
		{"--coord etcd://fd00::1", "", "put an IPv6 address in brackets"},
		{"--coord etcd://[fd00::1", "", "want an IPv6 address like"},
		{"--coord etcd://a:1 --rdzv-endpoint b:1", "", "--rdzv-endpoint b:1: --coord says etcd://a:1"},
		{"--coord etcd://a:1 --standalone", "", "--coord etcd://a:1: --standalone has"},
		{"--nodes 2 --standalone", "", "--nodes 2: --standalone is one node"},
		{"--job a/b", "", "--job a/b: a name has letters"},
		{"--job a --rdzv-id b", "", "--rdzv-id b: --job says a"},
		{"--nproc 4", slurmStep0 + "SLURM_STEP_NUM_TASKS=8 SLURM_STEP_TASKS_PER_NODE=4(x2)",
			"--nproc 4: slurm has started 8 processes like this one, several on a node, each of which would start 4 ranks; start one for each node (srun -N 2 -n 2), or leave --nproc out"},
		{"--nproc 2", slurmStep0 + "SLURM_NODEID=1 SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=3,1",
			"--nproc 2: slurm has started 4 processes like this one, several on a node"},
		{"--nproc 4", "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2", "mpirun --map-by ppr:1:node"},
		{"", slurmBatch,
			"the job has 2 nodes and this runs on the first alone, in its batch script: write 'srun -N 2 -n 2 weft run', or --nodes 1"},
		{"--nodes 2", slurmBatch, "the job has 2 nodes and this runs on the first alone"},
		{"--nproc 4", "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALNRANKS=2", "mpiexec -ppn 1"},
		{"--coord etcd://h:1", "PMI_RANK=1 PMI_SIZE=2000000", "2000000 nodes; want 1 to 1048576"},
		{"--job " + strings.Repeat("j", 129), "", "a name has 1 to 128 bytes, this one has 129"},
		{"--nodes 3", slurmStep0 + "SLURM_STEP_NUM_TASKS=2",
			"--nodes 3: slurm runs this on 2; give --nodes 2, leave it out, or give --standalone"},
		{"--nproc 2", pod + "JOB_COMPLETION_INDEX=0 HOSTNAME=t-0",
			"this is node 0 of kubernetes, and how many there are is in no variable: give --nodes, or --nodes 1"},
		{"--nproc 2", "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2", "--standalone if each is to have ranks of its own"},
		{"--nodes 2", "MASTER_ADDR=h", "first node at h:29400: which of the 2 nodes this is, is not said; give --node-rank"},
		{"--nodes 2", pod + "JOB_COMPLETION_INDEX=2 HOSTNAME=t-2", "this is node 2 of kubernetes, but there are 2 nodes"},
	} {
		p, err := Recognise(vars(c.env))
		if err != nil {
			t.Fatal(err)
		}
		if j, err := parse(t, c.line).Resolve(p, 4); err == nil {
			t.Errorf("%s | %s: accepted as %+v", c.line, c.env, j)
		} else if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s | %s:\n got %v\nwant %s", c.line, c.env, err, c.want)
		} else if strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: more than a line: %v", c.line, err)
		}
	}
}

// sound is what every job has, whatever it was made of.
func sound(j Job) error {
	switch {
	case j.Node < 0 || j.Nodes < 1 || j.Node >= j.Nodes:
		return fmt.Errorf("node %d of %d", j.Node, j.Nodes)
	case !j.Numbered && j.Node != 0:
		return fmt.Errorf("node %d without a number", j.Node)
	case j.NProc < 1 || j.NProc > MaxProc:
		return fmt.Errorf("%d ranks here", j.NProc)
	case j.Min < 1 || j.Min > j.Max:
		return fmt.Errorf("min %d, max %d", j.Min, j.Max)
	case j.Nodes*j.NProc > j.Max:
		return fmt.Errorf("%d nodes with %d ranks, max %d", j.Nodes, j.NProc, j.Max)
	case j.MaxRestarts < 0:
		return fmt.Errorf("%d restarts", j.MaxRestarts)
	case j.Serve != (j.Listen != ""):
		return fmt.Errorf("serve %v at %q", j.Serve, j.Listen)
	case !j.Serve && len(j.Coord) == 0:
		return fmt.Errorf("nowhere to meet")
	case j.Nodes > 1 && len(j.Coord) == 0:
		return fmt.Errorf("%d nodes cannot reach %s", j.Nodes, j.Listen)
	case checkLabel(j.Name) != nil:
		return fmt.Errorf("name %q: %w", j.Name, checkLabel(j.Name))
	}
	for _, a := range j.Coord {
		if host, port := split(a); checkHost(host) != nil || port < 1 || port > 65535 || join(host, port) != a {
			return fmt.Errorf("address %q", a)
		}
	}
	return nil
}

// All nodes of a job agree: on everything but their number, and on which of
// them has the coordinator in it.
func TestNodesAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.IntRange(1, 9).Draw(t, "nodes")
		per := rapid.SliceOfN(rapid.IntRange(1, 4), nodes, nodes).Draw(t, "tasks of each node")
		var f Flags
		if rapid.Bool().Draw(t, "min") {
			f.Min = Some(1)
		}
		if rapid.Bool().Draw(t, "etcd") {
			f.Coord = "etcd://e:2379"
		}
		size, rank, servers := 0, 0, 0
		counts := make([]string, nodes)
		for i, n := range per {
			size += n
			counts[i] = fmt.Sprint(n)
		}
		var first Job
		for node, n := range per {
			for local := range n {
				p, err := Recognise(vars(fmt.Sprintf("SLURM_JOB_ID=5 SLURM_STEP_ID=2 SLURM_STEP_NUM_NODES=%d SLURM_NODEID=%d SLURM_STEP_NUM_TASKS=%d SLURM_PROCID=%d SLURM_LOCALID=%d SLURM_STEP_TASKS_PER_NODE=%s SLURM_STEP_NODELIST=h[0-%d]",
					nodes, node, size, rank, local, strings.Join(counts, ","), nodes-1)))
				if err != nil {
					t.Fatal(err)
				}
				j, err := f.Resolve(p, 4)
				if err != nil {
					t.Fatal(err)
				}
				if err := sound(j); err != nil {
					t.Fatal(err)
				}
				if j.Node != rank || !j.Numbered {
					t.Fatalf("rank %d is node %d", rank, j.Node)
				}
				if j.Serve {
					servers++
				}
				if j.Node, j.Serve, j.Listen = 0, false, ""; rank == 0 {
					first = j
				} else if d := cmp.Diff(first, j); d != "" {
					t.Fatal(d)
				}
				rank++
			}
		}
		if want := map[bool]int{true: 0, false: 1}[f.Coord != ""]; servers != want {
			t.Fatalf("%d coordinators, want %d", servers, want)
		}
	})
}
