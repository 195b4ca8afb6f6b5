package place

import "strconv"

// noID is what torchrun calls every run that was given no id.
const noID = "none"

// torchrun reads what torchrun sets for each worker; weft run sets the first
// six too. RANK and WORLD_SIZE alone are not enough: people and operators set
// them for nodes.
func torchrun(r *reader) (f found, ok bool) {
	if r.text("RANK") == "" || r.text("WORLD_SIZE") == "" || r.text("LOCAL_RANK") == "" {
		return f, false
	}
	f = found{Place: nowhere("torchrun")}
	f.process(r, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
	node, okNode := r.number("GROUP_RANK", 0, MaxNodes-1)
	nodes, okNodes := r.number("GROUP_WORLD_SIZE", 1, MaxNodes)
	if okNode && okNodes {
		f.Node, f.Nodes = node, nodes
		f.because("node %d of %d: GROUP_RANK, GROUP_WORLD_SIZE", node, nodes)
		r.below("GROUP_RANK", node, "GROUP_WORLD_SIZE", nodes)
	}
	if n, ok := r.number("TORCHELASTIC_RESTART_COUNT", 0, MaxRestarts); ok && n > 0 {
		f.Restart = n
		f.because("restart %d: TORCHELASTIC_RESTART_COUNT", n)
	}
	f.torchJob(r)
	return f, true
}

// torchJob takes torchrun's name of the run, if it was given one. Each restart is a job of its own.
func (f *found) torchJob(r *reader) {
	id := r.text("TORCHELASTIC_RUN_ID")
	if id == "" || id == noID {
		return
	}
	if f.Restart > 0 {
		id += "-r" + strconv.Itoa(f.Restart)
	}
	f.Job = label(id)
	f.shared = f.Job
	f.because("job %s: TORCHELASTIC_RUN_ID", f.Job)
}
