// Package place finds a launcher's position in its job, from the variables of
// schedulers and other launchers, and combines it with torchrun's flags into a job.
//
//	Recognise   environment -> Place: which node of how many, which rank, where the first is reached
//	Flags       the flags of an elastic launcher, torchrun's spellings among them
//	Resolve     Flags and Place -> Job: what this process is to start, and where it meets the others
//
// Nothing here reads the environment, a file or a name server. The environment is an
// argument, so one machine can test every node's view.
//
// # Precedence
//
// With variables from several launchers, as under torchrun inside srun, the innermost
// counts, in the order
//
//	torchrun, openmpi, pmi, slurm, kubernetes
//
// because each of them is usually started by those after it. A later one adds what the
// innermost does not say: the job id, the restart count, the first rank's host.
// MASTER_ADDR and MASTER_PORT always set the address. Flags win over all variables, and
// torchrun's PET_ variables, which stand for flags, over all but flags.
package place

import (
	"fmt"
	"strconv"
	"strings"
)

// Place is where a process stands. What nobody says is -1 for a number that
// counts from 0, and 0 or "" otherwise.
type Place struct {
	By string // closest to this process: "torchrun", "openmpi", "pmi", "slurm", "kubernetes"; "" if there is none

	Node, Nodes int // this node's number and how many there are; -1 and 0: not said
	NProc       int // ranks on this node; 0: not said

	// Rank, Size and LocalRank are of this very process among those that were
	// started alike: srun -n 8 and mpirun -n 8 start eight. -1, 0, -1: not said.
	Rank, Size, LocalRank int

	GPUs int // devices that this process may use; 0: not said

	Addr string // host of rank 0 or node 0; "": not said
	Port int    // port there; 0: not said

	// Job is the same on all nodes and differs between jobs, and between restarts
	// of one. It has letters, digits and -_.:@+ alone, 128 at most.
	Job     string
	Restart int // how often the scheduler has restarted the job

	// Alone says that of several nodes this process was started on one only: a
	// batch script that does not go through srun.
	Alone bool

	Said Flags // what torchrun's PET_ variables say in place of flags

	// Here says whether a host's name or address is this machine; nil: nobody can
	// tell. Recognise leaves it nil. A shell that sets it spares its users
	// --node-rank, as torchrun does.
	Here func(host string) bool

	Why []string // a line for each fact: which variables gave it
}

// Several says that this process is one of several that were started alike, or that
// the environment says how many ranks there are: a launcher that is told nothing
// else must not take itself for the only one.
func (p Place) Several() bool {
	return p.Size > 1 || p.Nodes > 1 || p.Node >= 0 && p.By != "" && p.Nodes == 0 || p.NProc > 1 || p.Said != Flags{}
}

// nowhere is a place of which nothing is said.
func nowhere(by string) Place {
	return Place{By: by, Node: -1, Rank: -1, LocalRank: -1}
}

func (p *Place) because(format string, args ...any) {
	p.Why = append(p.Why, fmt.Sprintf(format, args...))
}

// found is what one of the schedulers says.
type found struct {
	Place
	// shared and first are an id and a host that processes have in common even
	// where another launcher, started by this scheduler, put some of them in
	// steps of their own; Place.Job and Place.Addr may be finer.
	shared, first string
}

// Recognise finds out where the process with this environment stands. An unset
// variable is "". No scheduler at all is a Place with By "", no error; a value
// that cannot be meant is an error that names the variable.
func Recognise(env func(string) string) (Place, error) {
	r := &reader{env: env}
	var all []found
	for _, look := range []func(*reader) (found, bool){torchrun, openMPI, pmi, slurm, kubernetes} {
		if f, ok := look(r); ok {
			all = append(all, f)
		}
		if r.err != nil {
			return nowhere(""), r.err
		}
	}
	all = withoutEcho(all)
	p := nowhere("")
	if len(all) > 0 {
		p = all[0].Place
		for _, outer := range all[1:] {
			p.add(outer)
		}
	}
	p.master(r)
	p.gpus(r)
	p.pet(r)
	if id := r.text("WEFT_JOB"); id != "" {
		p.Job = label(id)
		p.because("job %s: WEFT_JOB", p.Job)
	}
	if r.err != nil {
		return nowhere(""), r.err
	}
	return p, nil
}

// withoutEcho drops PMI's variables where it is Slurm that set them, with the
// same rank and size as its own: srun --mpi=pmi2.
func withoutEcho(all []found) []found {
	for i := range len(all) - 1 {
		a, b := &all[i], &all[i+1]
		if a.By == "pmi" && b.By == "slurm" && a.Rank == b.Rank && a.Size == b.Size {
			b.because("PMI_RANK and PMI_SIZE say the same")
			return append(all[:i:i], all[i+1:]...)
		}
	}
	return all
}

// add takes from one who is further away what the place does not have yet.
func (p *Place) add(outer found) {
	p.because("%s is here too%s; %s is closer to this process and counts", outer.By, outer.view(), p.By)
	if outer.shared != "" {
		if p.Job != "" {
			p.Job = label(outer.shared + "-" + p.Job)
		} else {
			p.Job = outer.shared
		}
		p.because("job %s: with the id of %s", p.Job, outer.By)
	}
	if p.Restart == 0 && outer.Restart > 0 {
		p.Restart = outer.Restart
		p.because("restart %d: from %s", p.Restart, outer.By)
	}
	if p.Addr == "" && outer.first != "" {
		p.Addr = outer.first
		p.because("address %s: from %s", p.Addr, outer.By)
	}
}

// view is what a scheduler says of this process, for a line of Why.
func (f *found) view() string {
	switch {
	case f.Rank >= 0 && f.Size > 0:
		return fmt.Sprintf(" (process %d of %d)", f.Rank, f.Size)
	case f.Node >= 0 && f.Nodes > 0:
		return fmt.Sprintf(" (node %d of %d)", f.Node, f.Nodes)
	}
	return ""
}

// master is the address that torchrun's users export by hand.
func (p *Place) master(r *reader) {
	for _, prefix := range []string{"PET_", ""} { // the variable that every program reads comes last and wins
		host := r.text(prefix + "MASTER_ADDR")
		if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") { // as torchrun writes version 6
			host = host[1 : len(host)-1]
		}
		if host != "" && r.host(prefix+"MASTER_ADDR", host) {
			p.Addr = host
			p.because("address %s: %sMASTER_ADDR", p.Addr, prefix)
			if port, ok := r.number(prefix+"MASTER_PORT", 1, 65535); ok {
				p.Port = port
				p.because("port %d: %sMASTER_PORT", p.Port, prefix)
			}
		}
	}
}

// gpus counts the devices that are left to this process.
func (p *Place) gpus(r *reader) {
	for _, name := range []string{"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"} {
		list := r.text(name)
		if list == "" || list == "NoDevFiles" {
			continue
		}
		// The drivers stop at the first entry that names no device.
		for id := range strings.SplitSeq(list, ",") {
			if id = strings.TrimSpace(id); id == "" || strings.HasPrefix(id, "-") {
				break
			}
			p.GPUs++
		}
		p.because("%d GPUs: %s=%s", p.GPUs, name, clip(list))
		return
	}
	if n, ok := r.number("SLURM_GPUS_ON_NODE", 0, MaxProc); ok && p.By == "slurm" {
		p.GPUs = n
		p.because("%d GPUs: SLURM_GPUS_ON_NODE", n)
	}
}

// pet reads what torchrun takes for flags that are not given: PET_ and the
// flag's name. Kubeflow's operators set them.
func (p *Place) pet(r *reader) {
	s := &p.Said
	if !p.petNodes(r) || !p.petRanks(r) {
		return
	}
	if n, ok := r.number("PET_NODE_RANK", 0, MaxNodes-1); ok {
		if s.NodeRank = Some(n); p.Node < 0 {
			p.Node = n
		}
		p.because("node %d: PET_NODE_RANK", n)
	}
	if n, ok := r.number("PET_MAX_RESTARTS", 0, MaxRestarts); ok {
		s.MaxRestarts = Some(n)
		p.because("at most %d restarts: PET_MAX_RESTARTS", n)
	}
	if !p.petRendezvous(r) {
		return
	}
	if p.By == "" && *s != (Flags{}) {
		p.By = "torchrun"
	}
	if s.Nodes != "" && p.Nodes > 0 && p.Node >= p.Nodes {
		r.fail("PET_NNODES", s.Nodes, fmt.Sprintf("this is node %d, and numbers start at 0; set both right", p.Node))
	}
}

// petNodes reads how many nodes there are, and says whether to read on, as the other parts of pet do.
func (p *Place) petNodes(r *reader) bool {
	s := &p.Said
	if s.Nodes = r.text("PET_NNODES"); s.Nodes == "" {
		return true
	}
	lo, hi, err := parseNodes(s.Nodes)
	if err != nil {
		r.fail("PET_NNODES", s.Nodes, err.Error())
		return false
	}
	if p.Nodes == 0 && lo == hi {
		p.Nodes = hi
	}
	p.because("%s nodes: PET_NNODES", s.Nodes)
	return true
}

// petRanks reads the ranks on a node. The second name is that of older operators.
func (p *Place) petRanks(r *reader) bool {
	s := &p.Said
	for _, name := range []string{"PET_NPROC_PER_NODE", "PET_N_PROC_PER_NODE"} {
		if s.NProc = r.text(name); s.NProc == "" {
			continue
		}
		n, err := parseProc(s.NProc)
		if err != nil {
			r.fail(name, s.NProc, err.Error())
			return false
		}
		if p.NProc == 0 {
			p.NProc = n
		}
		p.because("%s ranks on a node: %s", s.NProc, name)
		break
	}
	return true
}

// petRendezvous reads where the nodes meet, under which name and by which protocol.
func (p *Place) petRendezvous(r *reader) bool {
	s := &p.Said
	if s.Endpoint = r.text("PET_RDZV_ENDPOINT"); s.Endpoint != "" {
		list, err := parseAddresses(s.Endpoint, CoordPort)
		if err != nil {
			r.fail("PET_RDZV_ENDPOINT", s.Endpoint, err.Error())
			return false
		}
		p.Addr, p.Port = split(list[0])
		p.because("address %s: PET_RDZV_ENDPOINT", list[0])
		// An elastic PyTorchJob numbers its pods in their names alone.
		if n, ok := siblings(p.Addr, r.text("HOSTNAME")); ok && p.Node < 0 {
			p.Node = n
			p.because("node %d: HOSTNAME, beside that of PET_RDZV_ENDPOINT", n)
		}
	}
	if id := r.text("PET_RDZV_ID"); id != "" && id != noID {
		s.ID = id
		p.Job = label(s.ID)
		p.because("job %s: PET_RDZV_ID", p.Job)
	}
	if s.Backend = r.text("PET_RDZV_BACKEND"); s.Backend != "" {
		if err := checkBackend(s.Backend); err != nil {
			r.fail("PET_RDZV_BACKEND", s.Backend, err.Error())
			return false
		}
		p.because("rendezvous %s: PET_RDZV_BACKEND", s.Backend)
	}
	return true
}

// siblings gives the number at the end of a host's name, if the first pod's is
// the same with 0 there: job-worker-0 and job-worker-3.
func siblings(first, host string) (int, bool) {
	stem, isFirst := strings.CutSuffix(first, "-0")
	digits, same := strings.CutPrefix(host, stem+"-")
	n, err := strconv.Atoi(digits)
	if !isFirst || !same || err != nil || n < 0 || n >= MaxNodes {
		return 0, false
	}
	return n, true
}
