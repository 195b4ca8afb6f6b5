package place

import (
	"fmt"
	"path"
	"strings"
)

// DefaultRestarts is how often ranks of a node are started again if nothing is said.
const DefaultRestarts = 3

// Job is what one launcher of a job is to do. A launcher stands for a node even
// where a scheduler starts several on one host: each then has ranks of its own.
type Job struct {
	Node     int  // this launcher's number, from 0
	Numbered bool // Node is known; otherwise it is 0 and the coordinator deals ranks by arrival
	Nodes    int  // how many launchers there are, or are to be
	NProc    int  // ranks of this one; others may have more or fewer with --nproc auto

	// Min and Max are the ranks to train with: 1 <= Min <= Max. They are the same on
	// every node if NProc is, or if --min and --max are given.
	Min, Max int

	// Shared says that a scheduler has started several launchers on a node, so that the
	// ranks of a node are those of all launchers there.
	Shared bool

	// Coord is where the coordinator is reached, host:port each, the same on
	// every node. Empty: only in this process, at Listen.
	Coord []string
	// Serve says that this node has the coordinator in it, at Listen.
	Serve  bool
	Listen string // host:port; port 0 is any free one

	Name        string // of the job: coord's, the same on every node
	MaxRestarts int
	Ckpt        string
}

// setting is a value, and the flag or variable that it comes from.
type setting struct{ value, from string }

// pick is the flag if it was given, else what the variable says in its place.
func pick(flag, name, said, variable string) setting {
	if flag != "" {
		return setting{flag, name}
	}
	return setting{said, variable}
}

func (s setting) wrong(format string, args ...any) error {
	return wrong(s.from, s.value, format, args...)
}

func wrong(from, value, format string, args ...any) error {
	sep := "="
	if strings.HasPrefix(from, "--") || strings.Contains(from, " ") {
		sep = " "
	}
	return fmt.Errorf("%s%s%s: %s", from, sep, quoted(value), fmt.Sprintf(format, args...))
}

// Resolve says what the flags mean at a place, on a host with that number of cores.
// Flags win over what the place says; what neither says is one rank of one node.
func (f Flags) Resolve(p Place, cores int) (Job, error) {
	j := Job{Ckpt: f.Ckpt, MaxRestarts: DefaultRestarts}
	if p.By == "" && p.Nodes == 0 {
		p.Node, p.Rank = -1, -1 // the zero Place says nothing
	}
	if f.Standalone {
		p = Place{Node: -1, Rank: -1, GPUs: p.GPUs, Job: p.Job, NProc: p.Said.count(),
			Said: Flags{NProc: p.Said.NProc, MaxRestarts: p.Said.MaxRestarts}}
	}
	j.Shared = p.crowded()
	steps := []func(*Job, Place, int) error{f.restarts, f.proc, f.nodes, f.ranks, f.name, f.meet}
	for _, step := range steps {
		if err := step(&j, p, cores); err != nil {
			return Job{}, err
		}
	}
	return j, nil
}

// count is the number of ranks of a node, 0 for a word or none.
func (f Flags) count() int {
	n, err := parseProc(f.NProc)
	if err != nil {
		return 0
	}
	return n
}

func (f Flags) restarts(j *Job, p Place, _ int) error {
	j.MaxRestarts = p.Said.MaxRestarts.or(DefaultRestarts)
	if f.MaxRestarts.Given {
		if j.MaxRestarts = f.MaxRestarts.N; j.MaxRestarts < 0 || j.MaxRestarts > MaxRestarts {
			return wrong("--max-restarts", f.MaxRestarts.String(), "want 0 for none, up to %d", MaxRestarts)
		}
	}
	return nil
}

// proc is how many ranks this launcher starts.
func (f Flags) proc(j *Job, p Place, cores int) error {
	s := pick(f.NProc, "--nproc", p.Said.NProc, "PET_NPROC_PER_NODE")
	switch {
	case s.value == "":
		j.NProc = 1
		if p.Size == 0 && p.NProc > 0 {
			j.NProc = p.NProc
		}
	default:
		n, err := parseProc(s.value)
		if err != nil {
			return s.wrong("%v", err)
		}
		if n == 0 {
			switch {
			case s.value == "gpu" && p.GPUs == 0:
				return s.wrong("no GPU is named in CUDA_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES or SLURM_GPUS_ON_NODE; give the number")
			case s.value != "cpu" && p.GPUs > 0:
				n = p.GPUs
			case cores < 1:
				return s.wrong("the number of cores is not known; give the number of ranks")
			default:
				n = min(cores, MaxProc)
			}
		}
		if n > 1 && p.crowded() {
			return s.wrong("%s has started %d processes like this one, several on a node, each of which would start %d ranks; start one for each node (%s), or leave %s out",
				p.By, p.Size, n, onePerNode(p), s.from)
		}
		j.NProc = n
	}
	if j.NProc < 1 || j.NProc > MaxProc {
		return fmt.Errorf("%d ranks on a node; want 1 to %d: give --nproc", j.NProc, MaxProc)
	}
	return nil
}

// crowded says that the scheduler has started several processes like this one on
// a node. All of them must come to the same answer, so that the counts of the
// whole job decide where they are known.
func (p Place) crowded() bool {
	if p.Nodes > 0 {
		return p.Size > p.Nodes
	}
	return p.Size > 0 && p.NProc > 1
}

// onePerNode is how a scheduler is told to start one process on each node.
func onePerNode(p Place) string {
	switch p.By {
	case "slurm":
		// In a job with more tasks a node, srun ignores --ntasks-per-node=1.
		return fmt.Sprintf("srun -N %d -n %d", p.Nodes, p.Nodes)
	case "openmpi":
		return "mpirun --map-by ppr:1:node"
	case "pmi":
		return "mpiexec -ppn 1"
	}
	return "--standalone if each is to have ranks of its own"
}

// nodes is which launcher this is, of how many. Min and Max hold nodes until
// ranks counts them.
func (f Flags) nodes(j *Job, p Place, _ int) error {
	s := pick(f.Nodes, "--nodes", p.Said.Nodes, "PET_NNODES")
	here, number := p.Nodes, p.Node
	if p.Size > 0 {
		here, number = p.Size, p.Rank
	}
	switch {
	case s.value == "" && here == 0 && number >= 0 && !f.NodeRank.Given:
		return fmt.Errorf("this is node %d of %s, and how many there are is in no variable: give --nodes, or --nodes 1 for this one alone",
			number, p.By)
	case s.value == "":
		j.Nodes = max(here, 1)
		j.Min, j.Max = j.Nodes, j.Nodes
	default:
		lo, hi, err := parseNodes(s.value)
		if err != nil {
			return s.wrong("%v", err)
		}
		j.Min, j.Max, j.Nodes = lo, hi, hi
		if here > 0 && !p.Alone {
			if here < lo || here > hi {
				return s.wrong("%s runs this on %d; give --nodes %d, leave it out, or give --standalone for each alone", p.By, here, here)
			}
			j.Nodes = here
		}
	}
	if j.Nodes > MaxNodes {
		return fmt.Errorf("%d nodes; want 1 to %d: give --nodes", j.Nodes, MaxNodes)
	}
	if f.NodeRank.Given {
		number = f.NodeRank.N
		if number < 0 || number >= j.Nodes {
			return wrong("--node-rank", f.NodeRank.String(), "there are %d nodes, numbered from 0; want 0 to %d, or a larger --nodes",
				j.Nodes, j.Nodes-1)
		}
	} else if p.Said.NodeRank.Given && p.Size == 0 {
		number = p.Said.NodeRank.N
	}
	if p.Alone && j.Nodes > 1 && !f.NodeRank.Given {
		return fmt.Errorf("the job has %d nodes and this runs on the first alone, in its batch script: write '%s weft run', or --nodes 1 for this node alone",
			p.Nodes, onePerNode(p))
	}
	if j.Nodes == 1 {
		number = 0
	}
	if number >= j.Nodes {
		return fmt.Errorf("this is node %d of %s, but there are %d nodes; give --nodes as the scheduler counts them: %d or more",
			number, p.By, j.Nodes, number+1)
	}
	j.Node, j.Numbered = max(number, 0), number >= 0
	return nil
}

// ranks turns bounds of nodes into bounds of ranks.
func (f Flags) ranks(j *Job, _ Place, _ int) error {
	all := j.Nodes * j.NProc
	j.Min, j.Max = j.Min*j.NProc, j.Max*j.NProc
	for _, o := range []struct {
		name string
		opt  Opt
		to   *int
	}{{"--min", f.Min, &j.Min}, {"--max", f.Max, &j.Max}} {
		if !o.opt.Given {
			continue
		}
		if o.opt.N < 1 || o.opt.N > maxSize {
			return wrong(o.name, o.opt.String(), "want a count of ranks from 1 to %d", maxSize)
		}
		*o.to = o.opt.N
	}
	switch {
	case f.Max.Given && all > j.Max:
		return wrong("--max", f.Max.String(),
			"more ranks than that: %d nodes with %d each are %d; raise --max to %d, or start fewer with --nodes or --nproc",
			j.Nodes, j.NProc, all, all)
	case f.Min.Given && f.Max.Given && j.Min > j.Max:
		return wrong("--min", f.Min.String(), "more than --max %d; lower --min or raise --max", j.Max)
	case f.Min.Given && j.Min > j.Max:
		return wrong("--min", f.Min.String(), "more than the %d ranks there are; lower --min, or raise --nodes, --nproc or --max", j.Max)
	}
	return nil
}

// name is what the job is called.
func (f Flags) name(j *Job, p Place, _ int) error {
	id := f.ID
	if id == noID {
		id = ""
	}
	switch {
	case f.Job != "":
		if err := checkLabel(f.Job); err != nil {
			return wrong("--job", f.Job, "%v", err)
		}
		if id != "" && id != f.Job {
			return wrong("--rdzv-id", f.ID, "--job says %s; give one of both", quoted(f.Job))
		}
		j.Name = f.Job
	case id != "":
		j.Name = label(id)
	case p.Job != "":
		j.Name = label(p.Job)
	case f.Ckpt != "":
		// Two jobs with the same checkpoints would be one mistake already.
		dir := strings.TrimRight(f.Ckpt, "/")
		j.Name = label(path.Base(dir) + "-" + digest(dir))
	default:
		j.Name = "default"
	}
	return nil
}

// meet is where the coordinator is.
func (f Flags) meet(j *Job, p Place, _ int) error {
	backend := pick(f.Backend, "--rdzv-backend", p.Said.Backend, "PET_RDZV_BACKEND")
	if backend.value != "" {
		if err := checkBackend(backend.value); err != nil {
			return backend.wrong("%v", err)
		}
	}
	if f.Standalone {
		switch {
		case j.Nodes > 1:
			return wrong("--nodes", f.Nodes, "--standalone is one node; leave one of both out")
		case f.Coord != "":
			return wrong("--coord", f.Coord, "--standalone has a coordinator of its own; leave one of both out")
		}
		j.alone()
		return nil
	}
	endpoint := pick(f.Endpoint, "--rdzv-endpoint", p.Said.Endpoint, "PET_RDZV_ENDPOINT")
	etcd := strings.HasPrefix(backend.value, "etcd")
	switch {
	case f.Coord != "":
		if f.Endpoint != "" {
			return wrong("--rdzv-endpoint", f.Endpoint, "--coord says %s; give one of both", quoted(f.Coord))
		}
		addrs, isEtcd := strings.CutPrefix(f.Coord, "etcd://")
		if !isEtcd {
			return wrong("--coord", f.Coord, "want etcd://host:%d, with commas between several", EtcdPort)
		}
		return j.outside(setting{f.Coord, "--coord"}, strings.TrimSuffix(addrs, "/"))
	case etcd && endpoint.value == "":
		return backend.wrong("needs --rdzv-endpoint host:%d, or --coord etcd://host:%d in place of both", EtcdPort, EtcdPort)
	case etcd:
		return j.outside(endpoint, endpoint.value)
	case endpoint.value != "":
		list, err := parseAddresses(endpoint.value, CoordPort)
		if err != nil {
			return endpoint.wrong("%v", err)
		}
		if len(list) != 1 {
			return endpoint.wrong("one address, that of the first node; several are those of an etcd cluster: --coord etcd://%s",
				strings.Join(list, ","))
		}
		host, port := split(list[0])
		return j.inside(p, endpoint, host, port)
	case j.Nodes == 1 && j.Max <= j.NProc:
		j.alone()
		return nil
	case p.Addr != "":
		port := p.Port
		if port == 0 {
			port = p.MasterPort()
		}
		return j.inside(p, setting{join(p.Addr, port), "first node at"}, p.Addr, port)
	case j.Nodes == 1:
		j.alone()
		return nil
	}
	return fmt.Errorf("%d nodes and no address to meet at: give --coord etcd://host:%d, or --rdzv-endpoint with the first node's host:%d",
		j.Nodes, EtcdPort, CoordPort)
}

// alone is a coordinator for this process's ranks.
func (j *Job) alone() {
	j.Coord, j.Serve, j.Listen = nil, true, "127.0.0.1:0"
}

// outside is a coordinator that runs already.
func (j *Job) outside(s setting, addrs string) error {
	list, err := parseAddresses(addrs, EtcdPort)
	if err != nil {
		return s.wrong("%v", err)
	}
	seen := map[string]bool{}
	for _, a := range list {
		if _, port := split(a); port == 0 {
			return s.wrong("port 0 of %s; want that of the server, usually %d", a, EtcdPort)
		}
		if seen[a] {
			return s.wrong("%s is there twice; name each server once", a)
		}
		seen[a] = true
	}
	j.Coord = list
	return nil
}

// inside is a coordinator in the first node, reached at host:port.
func (j *Job) inside(p Place, s setting, host string, port int) error {
	if j.Nodes == 1 && port == 0 {
		j.Coord, j.Serve, j.Listen = nil, true, listen(host, 0)
		return nil
	}
	if port == 0 {
		return s.wrong("port 0 is another one on each start, and %d nodes must know it; give a number, like %d", j.Nodes, CoordPort)
	}
	switch {
	case j.Numbered:
		j.Serve = j.Node == 0
	case p.Here != nil:
		j.Serve = p.Here(host)
	default:
		return s.wrong("which of the %d nodes this is, is not said; give --node-rank, 0 on the node of that address", j.Nodes)
	}
	j.Coord = []string{join(host, port)}
	if j.Serve {
		j.Listen = listen(host, port)
	}
	return nil
}

// MasterPort is the port at the first node where a scheduler says the host alone. Under Slurm and mpirun several jobs may share
// a host, so that it follows from the id of the job: 8192 ports from 20480 on, below those that Linux hands out and
// Kubernetes' own.
func (p Place) MasterPort() int {
	if p.Port != 0 {
		return p.Port
	}
	if p.Job == "" || p.By != "slurm" && p.By != "openmpi" && p.By != "pmi" {
		return CoordPort
	}
	return 20480 + int(hash(p.Job)%8192)
}
