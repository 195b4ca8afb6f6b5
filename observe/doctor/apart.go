package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
)

// Keeping jobs apart. Logs of several jobs often lie in one folder. Processes that share a communicator are one job. Files
// without a line of NCCL belong to the same job as others of their folder, unless something says that they cannot: another
// number of Slurm's, or one rank on two hosts.

// adopt gives processes that made no communicator to the only job, to a job whose file they are in, or to one of
// their own.
func (j *joined) adopt() {
	var orphans []*proc
	for _, p := range j.order {
		if p.job == nil {
			orphans = append(orphans, p)
		}
	}
	if len(orphans) == 0 {
		return
	}
	if len(j.jobs) == 0 {
		j.jobs = append(j.jobs, &job{})
	}
	for _, p := range orphans {
		p.job = j.homeOf(p)
		p.job.procs = append(p.job.procs, p)
	}
}

// homeOf is the job with a process in the same file, or the first job if none has one.
func (j *joined) homeOf(p *proc) *job {
	if len(j.jobs) == 1 {
		return j.jobs[0]
	}
	inFile := func(q *proc) bool { return len(q.lines) > 0 && q.lines[0].At.File == p.lines[0].At.File }
	i := slices.IndexFunc(j.jobs, func(jb *job) bool { return slices.ContainsFunc(jb.procs, inFile) })
	return j.jobs[max(i, 0)]
}

// looseFile is a file with lines that name no process, and what it tells of its job.
type looseFile struct {
	name  string
	lines []*Line
	slurm string
	at    map[int]string  // the hosts of ranks
	hosts map[string]bool // that its lines name
}

var slurmFile = regexp.MustCompile(`slurm[-_.](\d+)`)

// looseFiles groups lines that name no process by their file, with the hosts and ranks that are known of it.
func looseFiles(loose []*Line) (list []*looseFile) {
	byName := map[string]*looseFile{}
	for _, l := range loose {
		f := byName[l.At.File]
		if f == nil {
			f = &looseFile{name: l.At.File, at: map[int]string{}, hosts: map[string]bool{}}
			if m := slurmFile.FindStringSubmatch(path.Base(f.name)); m != nil {
				f.slurm = m[1]
			}
			byName[f.name] = f
			list = append(list, f)
		}
		f.lines = append(f.lines, l)
		if l.Host != "" {
			f.hosts[l.Host] = true
			if l.Rank >= 0 && f.at[l.Rank] == "" {
				f.at[l.Rank] = l.Host
			}
		}
	}
	return list
}

// settle gives lines without a process to the job whose file or host they are of, else to one of their folder that they
// do not contradict, else to one of their own.
func (j *joined) settle(loose []*Line) {
	for _, f := range looseFiles(loose) {
		var to *job
		best := 0
		for _, jb := range j.jobs {
			if fits := jb.fits(f); fits > best {
				to, best = jb, fits
			}
		}
		if to == nil {
			to = &job{}
			j.jobs = append(j.jobs, to)
		}
		to.take(f)
	}
}

// contradicts says whether a file is certainly of another job: it has a rank on another host, or another Slurm job's number.
func (jb *job) contradicts(f *looseFile) bool {
	for rank, host := range f.at {
		if other := jb.at[rank]; other != "" && other != host {
			return true
		}
	}
	return jb.slurm != "" && f.slurm != "" && jb.slurm != f.slurm
}

// fits says how well a file goes with a job: 0 is not at all.
func (jb *job) fits(f *looseFile) int {
	if jb.contradicts(f) {
		return 0
	}
	own := slices.ContainsFunc(jb.procs, func(p *proc) bool { return p.lines[0].At.File == f.name })
	told := slices.ContainsFunc(jb.procs, func(p *proc) bool { return f.hosts[p.host] })
	for host := range f.hosts {
		told = told || jb.told[host]
	}
	switch {
	case own:
		return 4
	case told || jb.slurm != "" && jb.slurm == f.slurm:
		return 3
	case slices.Contains(jb.folders, path.Dir(f.name)):
		return 2
	}
	return 1
}

// take adds a file's lines.
func (jb *job) take(f *looseFile) {
	jb.loose = append(jb.loose, f.lines...)
	jb.slurm = cmp.Or(jb.slurm, f.slurm)
	if dir := path.Dir(f.name); !slices.Contains(jb.folders, dir) {
		jb.folders = append(jb.folders, dir)
	}
	if jb.at == nil {
		jb.at, jb.told = map[int]string{}, map[string]bool{}
	}
	maps.Copy(jb.at, f.at)
	maps.Copy(jb.told, f.hosts)
}

// name numbers the jobs.
func (j *joined) name() {
	for i, jb := range j.jobs {
		switch {
		case jb.world != nil && jb.world.id != "":
			jb.name = fmt.Sprintf("job %d (%d ranks, commId %s)", i+1, jb.size(), jb.world.id)
		case jb.world != nil:
			jb.name = fmt.Sprintf("job %d (%d ranks)", i+1, jb.size())
		case jb.slurm != "":
			jb.name = fmt.Sprintf("job %d (Slurm %s)", i+1, jb.slurm)
		case len(jb.loose) > 0:
			jb.name = fmt.Sprintf("job %d (%s)", i+1, jb.loose[0].At.File)
		default:
			jb.name = fmt.Sprintf("job %d", i+1)
		}
	}
}

// hosts of a job that its lines name.
func (jb *job) hosts() []string {
	set := maps.Clone(jb.told)
	if set == nil {
		set = map[string]bool{}
	}
	for _, p := range jb.procs {
		set[p.host] = true
	}
	delete(set, "")
	return slices.SortedFunc(maps.Keys(set), natural)
}

// has says whether lines of a file are the job's.
func (jb *job) has(file string) bool {
	if jb.files == nil {
		jb.files = map[string]bool{}
		for _, p := range jb.procs {
			for _, l := range p.lines {
				jb.files[l.At.File] = true
			}
		}
		for _, l := range jb.loose {
			jb.files[l.At.File] = true
		}
	}
	return jb.files[file]
}

// whole says whether all hosts of a job are known.
func (jb *job) whole() bool { return jb.world != nil && len(jb.world.members) == jb.world.n }

// span is from when to when a job was heard, 0 if its lines have no times.
func (jb *job) span() (from, to float64) {
	see := func(l *Line) {
		if l.Time == 0 {
			return
		}
		if from == 0 || l.Time < from {
			from = l.Time
		}
		to = max(to, l.Time)
	}
	for _, p := range jb.procs {
		for _, l := range p.lines {
			see(l)
		}
	}
	for _, l := range jb.loose {
		see(l)
	}
	return from, to
}

// runs is where and when jobs ran.
type runs struct {
	on    map[string][]*job // by host
	span  map[*job][2]float64
	whole bool // all hosts of all jobs are known
}

func (j *joined) runs() *runs {
	r := &runs{on: map[string][]*job{}, span: map[*job][2]float64{}, whole: true}
	for _, jb := range j.jobs {
		for _, host := range jb.hosts() {
			r.on[host] = append(r.on[host], jb)
		}
		from, to := jb.span()
		r.span[jb] = [2]float64{from, to}
		r.whole = r.whole && jb.whole()
	}
	return r
}

const (
	anyZone  = 14 * 3600.0 // by which times of two files may differ at most, where their zones are not known
	longAgo  = 2 * 3600.0  // before a job, and what the kernel said then has nothing to do with it
	soonDone = 600.0       // after a job
)

// apart says whether a job certainly did not run at a time, whatever the time zones of the two logs.
func (r *runs) apart(jb *job, t float64) bool {
	at := r.span[jb]
	return t > 0 && at[0] > 0 && (t < at[0]-longAgo-anyZone || t > at[1]+soonDone+anyZone)
}

// about finds the job that what a host's kernel says can explain. It may be of no job that is here, and it may be of
// another time.
func (d *diag) about(k *Kernel) (jb *job, other, old bool) {
	if d.runs == nil {
		d.runs = d.j.runs()
	}
	on := d.runs.on[k.Host]
	if len(on) == 0 {
		if k.Host != "" && d.runs.whole && len(d.j.jobs) > 0 {
			return nil, true, false
		}
		on = d.j.jobs
	}
	fits := slices.DeleteFunc(slices.Clone(on), func(x *job) bool { return d.runs.apart(x, k.Time) })
	switch {
	case len(fits) == 0 && len(on) > 0:
		return nil, false, true
	case len(fits) == 1 && k.Host != "":
		return fits[0], false, false
	}
	return nil, false, false
}
