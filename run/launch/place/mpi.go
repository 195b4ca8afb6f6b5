package place

// openMPI reads what Open MPI's mpirun sets for each process. The numbers of
// nodes are not among it: a process knows those on its own node alone.
func openMPI(r *reader) (f found, ok bool) {
	if r.text("OMPI_COMM_WORLD_RANK") == "" || r.text("OMPI_COMM_WORLD_SIZE") == "" {
		return f, false
	}
	f = found{Place: nowhere("openmpi")}
	f.process(r, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
	// Releases before 5 number the run of mpirun, later ones name it.
	for _, name := range []string{"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"} {
		if id := r.text(name); id != "" {
			f.Job = label("openmpi-" + id)
			f.shared = f.Job
			f.because("job %s: %s", f.Job, name)
			break
		}
	}
	return f, true
}

// pmi reads what MPICH's Hydra and its relatives set.
func pmi(r *reader) (f found, ok bool) {
	if r.text("PMI_RANK") == "" || r.text("PMI_SIZE") == "" {
		return f, false
	}
	f = found{Place: nowhere("pmi")}
	f.process(r, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
	return f, true
}

// process is the place of one of several processes that were started alike.
func (f *found) process(r *reader, rank, size, local, locals string) {
	f.Rank, _ = r.number(rank, 0, maxSize-1)
	f.Size, _ = r.number(size, 1, maxSize)
	f.because("process %d of %d: %s, %s", f.Rank, f.Size, rank, size)
	r.below(rank, f.Rank, size, f.Size)
	if n, ok := r.number(local, 0, MaxProc-1); ok {
		f.LocalRank = n
		f.because("process %d of this node: %s", n, local)
	}
	if n, ok := r.number(locals, 1, MaxProc); ok {
		f.NProc = n
		f.because("%d processes on this node: %s", n, locals)
		r.below(local, f.LocalRank, locals, n)
		if n > f.Size {
			r.below(locals, n, size, f.Size)
		}
	}
}
