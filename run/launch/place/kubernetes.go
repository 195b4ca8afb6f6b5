package place

import (
	"strconv"
	"strings"
)

// kubernetes reads what a pod has: KUBERNETES_SERVICE_HOST in each, and
// JOB_COMPLETION_INDEX in those of an Indexed Job, whose host names are the
// Job's name and the index. How many there are is in no variable.
func kubernetes(r *reader) (f found, ok bool) {
	index := r.text("JOB_COMPLETION_INDEX")
	if index == "" && r.text("KUBERNETES_SERVICE_HOST") == "" {
		return f, false
	}
	f = found{Place: nowhere("kubernetes")}
	if index == "" {
		f.because("a pod: KUBERNETES_SERVICE_HOST")
		f.operator(r)
		return f, true
	}
	n, ok := r.number("JOB_COMPLETION_INDEX", 0, MaxNodes-1)
	if !ok {
		return f, true
	}
	f.Node = n
	f.because("node %d: JOB_COMPLETION_INDEX", n)
	// The host name of a pod is cut to 63 bytes where the Job's name is too
	// long, and another than this with hostNetwork.
	if job, ok := strings.CutSuffix(r.text("HOSTNAME"), "-"+strconv.Itoa(n)); ok && job != "" && r.host("HOSTNAME", job) {
		f.Job = label("k8s-" + job)
		f.shared = f.Job
		f.because("job %s: HOSTNAME without its number; a Job made anew under the same name has the same: WEFT_JOB tells them apart", f.Job)
		f.Addr = job + "-0." + job
		f.first = f.Addr
		f.because("address %s: pod 0 under a headless Service with the name of the Job; MASTER_ADDR or --rdzv-endpoint says it where the Service has another",
			f.Addr)
	}
	return f, true
}

// operator reads what Kubeflow's PyTorchJob sets for each pod where it sets no
// PET_ variables: RANK and WORLD_SIZE, which count pods.
func (f *found) operator(r *reader) {
	if r.text("RANK") == "" || r.text("WORLD_SIZE") == "" || r.text("PET_NODE_RANK") != "" || r.text("PET_NNODES") != "" {
		return
	}
	f.Node, _ = r.number("RANK", 0, MaxNodes-1)
	f.Nodes, _ = r.number("WORLD_SIZE", 1, MaxNodes)
	f.because("node %d of %d: RANK, WORLD_SIZE without LOCAL_RANK, which count pods", f.Node, f.Nodes)
	r.below("RANK", f.Node, "WORLD_SIZE", f.Nodes)
}
