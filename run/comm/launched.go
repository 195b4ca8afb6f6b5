package comm

import (
	"math"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/run/launch/place"
)

// launched reads who this rank is from what launchers leave that do not set RANK: srun, mpirun of Open MPI and of MPICH, and
// Indexed Jobs of Kubernetes. What is missing to bring several processes together is an error.
func (e *env) launched(c *Config) {
	c.Rank, c.Size, c.LocalRank = 0, 1, 0
	if e.values["WEFT_AGENT_FD"] != "" {
		e.wrong("WEFT_AGENT_FD",
			"this process was started to follow epochs (weft run --follow, weft up) and does not: use package elastic, or start it with weft run without --follow")
		return
	}
	p, err := place.Recognise(func(name string) string { return e.values[name] })
	if err != nil {
		e.wrong("", "%w", err)
		return
	}
	if p.By == "kubernetes" && p.Node >= 0 { // a rank in each pod
		p.Rank, p.Size, p.LocalRank = p.Node, e.number("WORLD_SIZE", 0, math.MaxInt32), 0
		if p.Size == 0 {
			e.wrong("WORLD_SIZE",
				"this is pod %d of an Indexed Job (JOB_COMPLETION_INDEX), and no variable says how many there are: set WORLD_SIZE to the Job's completions",
				p.Node)
			return
		}
	}
	switch {
	case p.Rank < 0 || p.Size == 0:
		e.several()
		return
	case p.Size == 1:
		return
	case p.Rank >= p.Size:
		e.wrong("", "rank %d of %d (%s): ranks are numbers from 0 to size-1", p.Rank, p.Size, p.By)
		return
	}
	c.Rank, c.Size, c.LocalRank = p.Rank, p.Size, max(p.LocalRank, 0)
	host, here := p.Addr, p.NProc == p.Size // all are on this host
	if here && e.get("MASTER_ADDR") == "" {
		host = "127.0.0.1"
	}
	if port := e.number("MASTER_PORT", 0, math.MaxUint16); port > 0 {
		p.Port = port
	}
	if p.By == "pmi" && e.values["PMI_FD"] != "" && (host == "" || p.Port == 0) {
		if host, p.Job, err = askPMI(e.values["PMI_FD"], p.Rank, host); err != nil {
			e.wrong("MASTER_ADDR",
				"mpiexec started %d processes (PMI_SIZE), and asking it where rank 0 is failed: %w; set MASTER_ADDR and MASTER_PORT, or start them with `weft run -n %d -- COMMAND`",
				p.Size, err, p.Size)
			return
		}
	}
	if host == "" {
		e.wrong("MASTER_ADDR",
			"%s started %d processes (this is rank %d), not all of them on this host, and nothing says where rank 0 is: set MASTER_ADDR to its host on all ranks, as with `mpirun -x MASTER_ADDR=HOST`, or start them with `weft run -n %d -- COMMAND`; WORLD_SIZE=1 if this process is meant to be alone",
			launcherNames[p.By], p.Size, p.Rank, p.Size)
		return
	}
	if p.Port == 0 && p.Job == "" {
		e.wrong("MASTER_PORT",
			"%s started %d processes (this is rank %d) and nothing tells this job from others on the host: set MASTER_PORT to a free port on all ranks, or start them with `weft run -n %d -- COMMAND`; WORLD_SIZE=1 if this process is meant to be alone",
			launcherNames[p.By], p.Size, p.Rank, p.Size)
		return
	}
	c.Addr = net.JoinHostPort(host, strconv.Itoa(p.MasterPort()))
}

var launcherNames = map[string]string{"openmpi": "Open MPI", "pmi": "mpiexec", "slurm": "Slurm", "kubernetes": "Kubernetes",
	"torchrun": "torchrun"}

// several refuses a process that is not alone although nobody told it where it stands.
func (e *env) several() {
	for _, by := range []struct {
		name, rank string
		sizes      []string // the first that is set counts
	}{
		{"Open MPI", "OMPI_COMM_WORLD_RANK", []string{"OMPI_COMM_WORLD_SIZE"}},
		{"MPI", "PMI_RANK", []string{"PMI_SIZE"}},
		{"MVAPICH", "MV2_COMM_WORLD_RANK", []string{"MV2_COMM_WORLD_SIZE"}},
		{"Slurm", "SLURM_PROCID", []string{"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}},
		{"PMIx", "PMIX_RANK", []string{"OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}},
		{"a launcher", "LOCAL_RANK", []string{"LOCAL_WORLD_SIZE"}},
		{"torchrun", "PET_NODE_RANK", []string{"PET_NNODES"}},
		{"torchrun", "GROUP_RANK", []string{"GROUP_WORLD_SIZE"}},
		{"torchrun", "ROLE_RANK", []string{"ROLE_WORLD_SIZE"}},
		{"mpiexec", "MPI_LOCALRANKID", []string{"MPI_LOCALNRANKS"}},
		{"flux run", "FLUX_TASK_RANK", []string{"FLUX_JOB_SIZE"}},
		{"jsrun", "JSM_NAMESPACE_RANK", []string{"JSM_NAMESPACE_SIZE"}},
	} {
		rank := e.values[by.rank]
		// Slurm and Flux leave the size in the shell of an allocation, too.
		if alone := strings.HasPrefix(by.rank, "SLURM") || strings.HasPrefix(by.rank, "PMIX") ||
			strings.HasPrefix(by.rank, "FLUX"); rank == "" && alone {
			continue
		}
		n, found := 0, ""
		if rank != "" {
			found = by.rank + "=" + rank
		}
		for _, size := range by.sizes {
			if s := e.values[size]; s != "" {
				n, _ = strconv.Atoi(s)
				found = strings.TrimSpace(found + " " + size + "=" + s)
				break
			}
		}
		r, _ := strconv.Atoi(rank)
		// Those that launchers of MPI set always come with the size: one alone was left over, or the other was lost. PMIx tells a
		// process its rank and not how many there are.
		half := rank != "" && n == 0 && slices.Contains([]string{"OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "PMIX_RANK"}, by.rank)
		if n > 1 || r > 0 || half {
			e.wrong("RANK",
				"%s started several processes (%s) and RANK is not set, so each would be a world of one: start them with `weft run -n %d -- COMMAND`, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; WORLD_SIZE=1 if this process is meant to be alone",
				by.name, found, max(n, r+1, 2))
			return
		}
	}
}

// askPMI asks the process manager of MPICH (Hydra) and its relatives for the name of this job and the host of rank 0, which is here
// if that is known to be all ranks' host. It is version 1 of their protocol: a line a question, a line an answer, over a socket
// that the process inherited.
func askPMI(fd string, rank int, here string) (host, job string, err error) {
	n, err := strconv.Atoi(fd)
	if err != nil || n < 0 {
		return "", "", pmiError("PMI_FD=" + fd + " is no file descriptor")
	}
	f := os.NewFile(uintptr(n), "pmi")
	if f == nil {
		return "", "", pmiError("PMI_FD=" + fd + " is not open")
	}
	defer f.Close()
	m := manager{file: f}
	m.ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init")
	job = m.ask("cmd=get_my_kvsname", "my_kvsname")["kvsname"]
	if host = here; host == "" {
		if rank == 0 {
			if host, err = os.Hostname(); err != nil {
				return "", "", err
			}
			m.ask("cmd=put kvsname="+job+" key=weft value="+host, "put_result")
		}
		m.ask("cmd=barrier_in", "barrier_out")
		if rank != 0 {
			host = m.ask("cmd=get kvsname="+job+" key=weft", "get_result")["value"]
		}
	}
	m.ask("cmd=finalize", "finalize_ack")
	if m.err == nil && (job == "" || host == "") {
		m.err = pmiError("it did not say the job's name or the host of rank 0")
	}
	return host, "pmi-" + job, m.err
}

type pmiError string

func (e pmiError) Error() string { return string(e) }

// manager is a process manager that is being asked.
type manager struct {
	file *os.File
	err  error // the first
}

// ask sends a line and reads that of the answer.
func (m *manager) ask(line, want string) map[string]string {
	if m.err != nil {
		return nil
	}
	if _, m.err = m.file.WriteString(line + "\n"); m.err != nil {
		return nil
	}
	var b []byte
	for one := make([]byte, 1); len(b) < 4096; { // no more than the answer: what follows is somebody else's
		if _, m.err = m.file.Read(one); m.err != nil {
			return nil
		}
		if one[0] == '\n' {
			break
		}
		b = append(b, one[0])
	}
	answer := map[string]string{}
	for _, kv := range strings.Fields(string(b)) {
		k, v, _ := strings.Cut(kv, "=")
		answer[k] = v
	}
	if rc := answer["rc"]; answer["cmd"] != want || rc != "" && rc != "0" {
		m.err = pmiError("it answered " + strconv.Quote(string(b)) + " to " + strconv.Quote(line))
		return nil
	}
	return answer
}
