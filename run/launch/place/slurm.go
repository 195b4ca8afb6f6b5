package place

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/model/topo/hostlist"
)

// firstSpecialStep is the least of the numbers that Slurm uses for what is not
// a step of srun: the batch script, an interactive shell, the extern step.
const firstSpecialStep = 0xfffffff0

// halfSlurm reports whether this is one of several tasks of Slurm of which nothing else tells: each would be a world of
// its own.
func (r *reader) halfSlurm() bool {
	tasks := r.text("SLURM_STEP_NUM_TASKS")
	if tasks == "" {
		tasks = r.text("SLURM_NTASKS")
	}
	others := r.text("WORLD_SIZE") + r.text("PET_NNODES") + r.text("OMPI_COMM_WORLD_SIZE") + r.text("PMI_SIZE")
	return r.text("SLURM_PROCID") != "" && tasks != "" && tasks != "1" && others == ""
}

// slurm reads what slurmd leaves in the environment of a task of srun, or in
// that of a batch script or of a shell under salloc.
//
// A task has variables of its step beside those of the job, under names of
// their own (SLURM_STEP_NUM_NODES) and partly also under names that stand for
// the job in the batch script (SLURM_NTASKS). Those of the step come first.
func slurm(r *reader) (f found, ok bool) {
	job, name := r.text("SLURM_JOB_ID"), "SLURM_JOB_ID"
	if job == "" {
		job, name = r.text("SLURM_JOBID"), "SLURM_JOBID"
	}
	if job == "" {
		if r.halfSlurm() {
			r.fail("SLURM_PROCID", r.text("SLURM_PROCID"),
				"a task of Slurm has SLURM_JOB_ID as well; pass on all of Slurm's variables (srun --export=ALL), or unset SLURM_PROCID for ranks of this host alone")
			return found{Place: nowhere("slurm")}, true
		}
		return f, false
	}
	f = found{Place: nowhere("slurm")}
	if _, err := strconv.ParseUint(job, 10, 32); err != nil {
		r.fail(name, job, "want the number of a job; unset it if this is not a Slurm job")
		return f, true
	}
	for _, het := range []string{"SLURM_HET_SIZE", "SLURM_PACK_SIZE"} {
		if n := r.text(het); n != "" {
			r.fail(het, n,
				"a heterogeneous job has nodes and ranks of several kinds, counted anew in each; submit a job of one component (no --het-group, no 'hetjob' or ':'), or one job for each component with the same --coord and --job")
			return f, true
		}
	}
	f.Restart, _ = r.number("SLURM_RESTART_COUNT", 0, MaxRestarts)
	f.shared = "slurm-" + job
	if f.Restart > 0 {
		f.shared += "-r" + strconv.Itoa(f.Restart)
		f.because("restart %d: SLURM_RESTART_COUNT", f.Restart)
	}
	step, inStep := slurmStep(r)
	if inStep {
		f.task(r)
		f.Job = fmt.Sprintf("slurm-%s.%s", job, step)
		if f.Restart > 0 {
			f.Job += "-r" + strconv.Itoa(f.Restart)
		}
		f.because("job %s: %s=%s, SLURM_STEP_ID=%s", f.Job, name, job, step)
	} else {
		f.script(r)
		f.Job = f.shared
		f.because("job %s: %s=%s", f.Job, name, job)
	}
	f.slurmAddr(r, inStep)
	return f, true
}

// slurmStep is the number of the step whose task this is.
func slurmStep(r *reader) (step string, ok bool) {
	for _, name := range []string{"SLURM_STEP_ID", "SLURM_STEPID"} {
		s := r.text(name)
		if s == "" {
			continue
		}
		n, err := strconv.ParseUint(s, 10, 32)
		if err != nil {
			r.fail(name, s, "want the number of a job step; unset it if this is not a task of srun")
			return "", false
		}
		return s, n < firstSpecialStep
	}
	return "", false
}

// task is the place of a task of srun.
func (f *found) task(r *reader) {
	nodes, nodesName := r.first(1, MaxNodes, "SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
	node, nodeName := r.first(0, MaxNodes-1, "SLURM_NODEID")
	if nodes > 0 && nodeName != "" {
		f.Node, f.Nodes = node, nodes
		f.because("node %d of %d: SLURM_NODEID, %s", node, nodes, nodesName)
		r.below(nodeName, node, nodesName, nodes)
	}
	size, sizeName := r.first(1, maxSize, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
	rank, rankName := r.first(0, maxSize-1, "SLURM_PROCID")
	if size > 0 && rankName != "" {
		f.Rank, f.Size = rank, size
		f.because("process %d of %d: SLURM_PROCID, %s", rank, size, sizeName)
		r.below(rankName, rank, sizeName, size)
	}
	if local, ok := r.number("SLURM_LOCALID", 0, MaxProc-1); ok {
		f.LocalRank = local
		f.because("process %d of this node: SLURM_LOCALID", local)
	}
	// One process a node is a launcher, and says nothing of how many ranks it
	// is to start.
	if f.Size > f.Nodes && f.Node >= 0 {
		f.tasksHere(r)
	}
}

// tasksHere is how many tasks of the step run on this node.
func (f *found) tasksHere(r *reader) {
	for _, name := range []string{"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"} {
		s := r.text(name)
		if s == "" {
			continue
		}
		n, err := tasksOf(s, f.Node, f.Nodes)
		if err != nil {
			r.fail(name, s, err.Error())
			return
		}
		f.NProc = n
		f.because("%d processes on this node: %s=%s", n, name, clip(s))
		r.below("SLURM_LOCALID", f.LocalRank, name+" of this node", n)
		return
	}
}

// script is the place of what runs once in a job: a batch script, or a shell.
func (f *found) script(r *reader) {
	nodes, name := r.first(1, MaxNodes, "SLURM_JOB_NUM_NODES", "SLURM_NNODES")
	if nodes == 0 {
		return
	}
	f.Node, f.Nodes, f.Alone = 0, nodes, nodes > 1
	f.because("node 0 of %d: %s, and there is no SLURM_STEP_ID, so that this is not a task of srun but the first node's script", nodes, name)
	// Without --ntasks or --ntasks-per-node Slurm counts a task for each core,
	// which nobody asked for.
	if n, ok := r.number("SLURM_NTASKS_PER_NODE", 1, MaxProc); ok {
		f.NProc = n
		f.because("%d ranks on this node: SLURM_NTASKS_PER_NODE", n)
		return
	}
	asked, _ := r.first(1, maxSize, "SLURM_NTASKS", "SLURM_NPROCS")
	if s := r.text("SLURM_TASKS_PER_NODE"); s != "" && asked > 0 {
		n, err := tasksOf(s, 0, nodes)
		if err != nil {
			r.fail("SLURM_TASKS_PER_NODE", s, err.Error())
			return
		}
		f.NProc = n
		f.because("%d ranks on this node: SLURM_TASKS_PER_NODE=%s", n, clip(s))
	}
}

// slurmAddr is the first node of the list: the one with SLURM_NODEID 0.
func (f *found) slurmAddr(r *reader, inStep bool) {
	f.first, _ = firstHost(r, 0, "SLURM_JOB_NODELIST", "SLURM_NODELIST")
	names := []string{"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}
	if !inStep {
		names = names[1:]
	}
	var from string
	if f.Addr, from = firstHost(r, f.Nodes, names...); f.Addr != "" {
		f.because("address %s: the first of %s=%s", f.Addr, from, clip(r.text(from)))
		return
	}
	// This is the host where srun ran, which is the first node if srun ran in the
	// batch script there.
	if host := r.text("SLURM_LAUNCH_NODE_IPADDR"); host != "" && r.host("SLURM_LAUNCH_NODE_IPADDR", host) {
		f.Addr = host
		f.because("address %s: SLURM_LAUNCH_NODE_IPADDR, where srun ran, as there is no list of nodes", host)
	}
}

// firstHost is the first host of the first list that is set, and the name of
// that variable. The list must have nodes hosts, if nodes is not 0.
func firstHost(r *reader, nodes int, names ...string) (host, name string) {
	for _, name := range names {
		s := r.text(name)
		if s == "" {
			continue
		}
		hosts, err := hostlist.Expand(s)
		switch {
		case err != nil:
			r.fail(name, s, err.Error())
		case nodes > 0 && len(hosts) != nodes:
			r.fail(name, s, fmt.Sprintf("%d hosts, but there are %d nodes; one of both is left over from elsewhere: unset it", len(hosts), nodes))
		case r.host(name, hosts[0]):
			return hosts[0], name
		}
		return "", ""
	}
	return "", ""
}

// tasksOf reads Slurm's count of tasks for each node, like "4(x2),3", and gives
// that of one node of nodes.
func tasksOf(s string, node, nodes int) (int, error) {
	bad := errors.New(`want a count for each node, like 4(x2),3 for two nodes with 4 and one with 3; set it right or unset it`)
	at, tasks := 0, 0
	for part := range strings.SplitSeq(s, ",") {
		count, times := strings.TrimSpace(part), 1
		if head, tail, repeated := strings.Cut(count, "(x"); repeated {
			digits, closed := strings.CutSuffix(tail, ")")
			n, err := strconv.Atoi(digits)
			if !closed || err != nil || n < 1 || n > MaxNodes {
				return 0, bad
			}
			count, times = head, n
		}
		n, err := strconv.Atoi(count)
		if err != nil || n < 1 || n > MaxProc {
			return 0, bad
		}
		if node >= at && node < at+times {
			tasks = n
		}
		if at += times; at > MaxNodes {
			return 0, bad
		}
	}
	if at != nodes {
		return 0, fmt.Errorf("counts for %d nodes, but there are %d; one of both is left over from elsewhere: unset it", at, nodes)
	}
	return tasks, nil
}
