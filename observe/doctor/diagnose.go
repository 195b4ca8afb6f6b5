package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// Options of Diagnose.
type Options struct {
	Site   *Site         // nil without a cluster file
	Expect []Expectation // what the cluster should give, for the measurements of the case
}

// Expectation is a predicted bus bandwidth.
type Expectation struct {
	Op    string
	Ranks int
	Size  int64
	Bus   float64 // GB/s
	Why   string
}

// diag is the state of one diagnosis.
type diag struct {
	c       *Case
	o       Options
	j       *joined
	list    []*Finding
	index   map[string]*Finding
	job     *job              // that rules are about
	downs   map[part][]Kernel // links of NICs that were lost
	conseq  map[*job]map[string]map[string]bool
	runs    *runs  // where and when jobs ran; see about
	apart   string // that a host's kernel log is of, where it is none of a job's
	unknown []string
	hangs   []Hang
}

// Diagnose finds causes in a case. It changes nothing in the case.
func Diagnose(c *Case, o Options) *Report {
	d := &diag{c: c, o: o, j: join(c), index: map[string]*Finding{}, conseq: map[*job]map[string]map[string]bool{}}
	d.hangs = Hangs(c)
	for _, jb := range d.j.jobs {
		d.job = jb
		before := len(d.hangs)
		d.ncclRules()
		d.crossRules()
		d.torchRules()
		for i := range d.hangs[before:] {
			d.hangs[before+i].Job, d.hangs[before+i].job = d.jobName(), jb
		}
	}
	d.job = nil
	d.launchRules()
	d.kernelRules()
	d.linksLost()
	d.gpuRules()
	d.portRules()
	d.etherRules()
	d.pciRules()
	d.hostRules()
	d.rasRules()
	d.perfRules()
	d.lastWords()
	d.hangFindings()
	d.fold()
	return d.report()
}

// find adds a finding of the catalogue, or adds to the one that is there. What
// belongs to different jobs is kept apart.
func (d *diag) find(id string, s Subject, ev ...Evidence) *Finding {
	e := byID[id]
	if e == nil {
		panic("doctor: finding " + id + " is not in the catalogue")
	}
	key := id
	job := cmp.Or(d.apart, d.jobName())
	if job != "" {
		key += "|" + job
	}
	f := d.index[key]
	if f == nil {
		f = &Finding{ID: id, Title: e.Title, Severity: e.Severity, Confidence: e.strength, Layer: e.Layer, Job: job, Cause: e.Cause, Fix: e.Fix,
			Confirm: e.Confirm, Consequences: []string{}, Evidence: []Evidence{}, apart: d.apart != ""}
		d.index[key] = f
		d.list = append(d.list, f)
	}
	f.Subject.add(s)
	f.addEvidence(ev...)
	return f
}

// jobName is the name of the job that rules are about, "" where there is one job only.
func (d *diag) jobName() string {
	if d.job == nil || len(d.j.jobs) < 2 {
		return ""
	}
	return d.job.name
}

// hung says whether somebody is known to hold the current job up.
func (d *diag) hung() bool {
	return slices.ContainsFunc(d.hangs, func(h Hang) bool { return d.job == nil || h.job == nil || h.job == d.job })
}

// has gives a finding of the current job or of no job.
func (d *diag) has(id string) *Finding {
	if job := cmp.Or(d.apart, d.jobName()); job != "" {
		if f := d.index[id+"|"+job]; f != nil {
			return f
		}
	}
	return d.index[id]
}

func (d *diag) drop(f *Finding) {
	d.list = slices.DeleteFunc(d.list, func(x *Finding) bool { return x == f })
	maps.DeleteFunc(d.index, func(_ string, x *Finding) bool { return x == f })
}

// of is the subject of a line: its host and rank.
func (d *diag) of(l *Line) Subject {
	var s Subject
	if l.Host != "" {
		s.Hosts = []string{l.Host}
	}
	if r := d.j.rankOf(l); r >= 0 {
		s.Ranks = []int{r}
	}
	return s
}

// linkTo is the link between a host, which may not be known, and a peer.
func linkTo(host, peer string) string {
	if host == "" {
		return "to " + peer
	}
	return host + " - " + peer
}

// consequence notes what follows from something else.
func (d *diag) consequence(what string, l *Line) {
	m := d.conseq[d.job]
	if m == nil {
		m = map[string]map[string]bool{}
		d.conseq[d.job] = m
	}
	if m[what] == nil {
		m[what] = map[string]bool{}
	}
	who := l.Host
	if r := d.j.rankOf(l); r >= 0 {
		who = fmt.Sprintf("rank %d", r)
	}
	m[what][who] = true
}

// roots are findings that can be the cause of others, the likeliest first.
var roots = []string{"gpu-failed", "nvswitch-failed", "host-lost", "host-out-of-memory", "pod-evicted", "pod-pending",
	"gpu-diagnostic-failed", "disk-full", "nic-firmware", "link-flap", "nic-link-down", "nic-cable",
	"cable-unplugged", "checkpoint-blocks", "peer-died", "rendezvous-port-used",
	"cuda-out-of-memory", "gpu-access-fault", "program-error", "process-died", "ras-query-crash", "ras-thread-crash", "nccl-crash",
	"versions-differ", "gpu-shared",
	"fabric-manager-down", "nvls-fabric", "nvls-invalid", "shm-full", "memlock", "verbs-memory", "gpu-memory-full", "lazy-communicator",
	"collective-mismatch", "gpudirect-acs", "qp-timeout", "gid-unreachable", "gid-index-wrong", "gid-no-netdev", "gid-changed",
	"comm-id-subnet", "no-interface", "rank-twice", "world-size-differs", "ports-exhausted", "connect-refused", "connect-abort",
	"ib-pair-unreachable", "lossy-path", "remote-invalid-request", "remote-access-error", "receiver-not-ready", "completion-error",
	"cuda-error", "open-files", "unique-id-empty", "network-not-found", "name-lookup", "rendezvous-unreachable", "rendezvous-incomplete",
	"gloo-connect"}

// fold puts consequences under their causes.
func (d *diag) fold() {
	d.foldGPU()
	for _, pair := range effectsFirst(explains) {
		d.foldPair(pair[0], pair[1])
	}
	if slices.ContainsFunc(d.list,
		func(f *Finding) bool { return f.ID == "loss-not-finite" && f.Severity == Critical }) { // found before ranks add up
		d.foldPair("loss-not-finite", "program-error")
		d.foldPair("loss-not-finite", "process-died")
	}
	d.foldExits()
	d.foldConsequences()
	d.foldClosed()
}

// foldExits puts what a launcher says of a process that ended under the cause that the job names. A process that a signal
// killed may be a cause of its own; one that left with an exit code or aborted only repeats what it printed before.
func (d *diag) foldExits() {
	for _, f := range slices.Clone(d.list) {
		if f.ID != "process-died" || f.crashed {
			continue
		}
		if c := d.rootOf(f); c != nil {
			c.Consequences = append(c.Consequences, f.brief())
			d.drop(f)
		}
	}
}

// rootOf is the likeliest cause that a finding's job has beyond a process or a peer that ended, or nil.
func (d *diag) rootOf(f *Finding) *Finding {
	for _, id := range roots {
		i := slices.IndexFunc(d.list, func(c *Finding) bool { return c.ID == id && c.Severity == Critical && (c.Job == f.Job || c.Job == "") })
		if i >= 0 && id != "process-died" && id != "peer-died" {
			return d.list[i]
		}
	}
	return nil
}

// explains are pairs of findings: the first explains the second.
var explains = [][2]string{
	{"tcp-no-library", "tcp-fallback"}, {"tcp-no-device", "tcp-fallback"}, {"tcp-no-provider", "tcp-fallback"},
	{"ib-list-empty", "tcp-fallback"}, {"verbs-device-missing", "tcp-fallback"}, {"verbs-permission", "tcp-fallback"},
	{"verbs-device-missing", "tcp-no-device"}, {"verbs-permission", "tcp-no-device"}, {"verbs-device-missing", "nic-count-differs"},
	{"verbs-permission", "nic-count-differs"}, {"link-flap", "lossy-path"}, {"link-flap", "ib-pair-unreachable"}, {"gdr-off", "gdr-one-side"},
	{"peer-died", "lossy-path"},
	{"hang", "watchdog-same-place"}, {"hang", "watchdog-desync"}, {"hang", "gpu-spinning"}, {"lazy-communicator", "gpu-memory-full"},
	{"host-out-of-memory", "process-died"}, {"host-lost", "process-died"}, {"host-lost", "job-cancelled"}, {"host-out-of-memory", "host-lost"},
	{"host-crashed", "host-lost"}, {"gpu-failed", "gpu-fault"}, {"port-errors-growing", "port-errors"},
	{"collective-mismatch", "channels-differ"}, {"channels-differ", "collective-mismatch"}, {"cuda-out-of-memory", "process-died"},
	{"program-error", "process-died"}, {"shm-full", "process-died"}, {"cuda-error", "process-died"},
	{"program-error", "watchdog-same-place"}, {"cuda-out-of-memory", "watchdog-same-place"}, {"cuda-error", "watchdog-same-place"},
	{"process-died", "watchdog-same-place"}, {"collective-mismatch", "program-error"}, {"rendezvous-unreachable", "rendezvous-incomplete"},
	{"hang", "watchdog-stuck"}, {"hang", "gloo-timeout"},
	{"comm-id-subnet", "unique-id-empty"}, {"gpu-access-fault", "process-died"}, {"gpu-access-fault", "watchdog-same-place"},
	{"address-twice", "nics-one-subnet"}, {"slow-link", "below-prediction"}, {"slow-rank-io", "below-prediction"},
	{"straggler", "below-prediction"}, {"slow-link", "bandwidth-dropped"}, {"slow-rank-io", "bandwidth-dropped"},
	{"straggler", "bandwidth-dropped"},
	{"disk-full", "program-error"}, {"disk-full", "process-died"}, {"name-lookup", "program-error"}, {"name-lookup", "rendezvous-unreachable"},
	{"name-lookup", "rendezvous-incomplete"}, {"pod-pending", "rendezvous-incomplete"},
	{"pod-evicted", "process-died"}, {"mtu-differs", "watchdog-same-place"},
	{"fabric-manager-down", "fabric-manager-errors"}, {"fabric-manager-down", "nvswitch-event"}, {"nvswitch-failed", "fabric-manager-down"},
	{"fabric-manager-down", "cuda-error"},
	{"port-slow", "below-prediction"}, {"cable-degraded", "below-prediction"}, {"port-slow", "bandwidth-dropped"},
	{"cable-degraded", "bandwidth-dropped"},
}

// effectsFirst orders pairs so that what explains something has taken that up before it is itself explained. Where two
// explain one another, the one that stands first goes first.
func effectsFirst(pairs [][2]string) (out [][2]string) {
	done := map[[2]string]bool{}
	var visit func(p [2]string)
	visit = func(p [2]string) {
		if done[p] {
			return
		}
		done[p] = true
		for _, q := range pairs {
			if q[0] == p[1] && q[1] != p[0] {
				visit(q)
			}
		}
		out = append(out, p)
	}
	for _, p := range pairs {
		visit(p)
	}
	return out
}

// foldGPU: a GPU that failed explains what its host's peers saw.
func (d *diag) foldGPU() {
	for _, xid := range slices.Clone(d.list) {
		if xid.ID == "gpu-failed" {
			d.foldUnderGPU(xid)
		}
	}
}

func (d *diag) foldUnderGPU(xid *Finding) {
	for _, id := range []string{"peer-died", "cuda-error", "process-died", "ib-pair-unreachable", "lossy-path", "remote-access-error",
		"gpu-spinning", "connect-refused"} {
		for _, f := range slices.Clone(d.list) {
			if f.ID == id && oneJob(f, xid) && (overlap(f.Subject.Hosts, xid.Subject.Hosts) || id == "peer-died" && len(xid.Subject.Hosts) == 0) {
				xid.Consequences = append(xid.Consequences, f.brief())
				xid.addEvidence(f.Evidence...)
				d.drop(f)
			}
		}
	}
}

// oneJob says whether two findings can be of one job. What is of no job can be of any.
func oneJob(a, b *Finding) bool { return a.Job == b.Job || a.Job == "" || b.Job == "" }

// mayExplain says whether an effect can be the work of this cause. Two mere notes are not worth folding, and a failed
// GPU explains only what happened on that GPU.
func (f *Finding) mayExplain(effect *Finding) bool {
	if !oneJob(f, effect) || f.Severity < Warning && effect.Severity < Warning {
		return false
	}
	return f.ID != "gpu-failed" || f.sameGPU(effect)
}

// foldPair puts findings of effect under those of cause in the same job.
func (d *diag) foldPair(id, effect string) {
	for _, cause := range slices.Clone(d.list) {
		if cause.ID != id {
			continue
		}
		for _, f := range slices.Clone(d.list) {
			if f.ID != effect || !cause.mayExplain(f) {
				continue
			}
			cause.Consequences = append(append(cause.Consequences, f.brief()), f.Consequences...)
			if len(cause.Subject.Hosts)+len(cause.Subject.Ranks) == 0 {
				cause.Subject.add(f.Subject)
			}
			cause.addEvidence(f.Evidence...)
			cause.Severity = max(cause.Severity, f.Severity)
			d.drop(f)
		}
	}
}

// sameGPU says whether an error of a GPU can be of the one that failed. Programs name a rank, kernels a host and a device.
func (f *Finding) sameGPU(event *Finding) bool {
	if len(f.Subject.Hosts)+len(f.Subject.Devices) == 0 && len(event.Subject.Hosts) == 1 && len(event.Subject.Devices) == 1 {
		f.Subject.Hosts, f.Subject.Devices = slices.Clone(event.Subject.Hosts), slices.Clone(event.Subject.Devices)
	}
	return overlap(event.Subject.Devices, f.Subject.Devices) || overlap(event.Subject.Hosts, f.Subject.Hosts)
}

// foldConsequences gives what only follows to the likeliest root of its job.
func (d *diag) foldConsequences() {
	for _, jb := range d.j.jobs {
		m := d.conseq[jb]
		if len(m) == 0 {
			continue
		}
		d.job = jb
		var root *Finding
		for _, id := range append(slices.Clone(roots), "hang", "desync", "watchdog-same-place", "never-arrived") {
			if root = d.has(id); root != nil && root.Severity == Critical {
				break
			}
			root = nil
		}
		for _, what := range slices.Sorted(maps.Keys(m)) {
			who := slices.SortedFunc(maps.Keys(m[what]), natural)
			if root != nil {
				if who = slices.DeleteFunc(who, func(s string) bool { return s == "" }); len(who) > 0 {
					what += " on " + few(who)
				}
				root.Consequences = append(root.Consequences, what)
			}
		}
	}
	d.job = nil
}

// foldClosed puts closed connections under what ended the peer.
func (d *diag) foldClosed() {
	for _, f := range slices.Clone(d.list) {
		if f.ID != "peer-closed" {
			continue
		}
		for _, id := range append([]string{"peer-died"}, roots...) {
			i := slices.IndexFunc(d.list, func(r *Finding) bool {
				return r.ID == id && oneJob(r, f) && (r.Severity == Critical || id == "peer-died")
			})
			if i < 0 {
				continue
			}
			r := d.list[i]
			r.Consequences = append(r.Consequences, f.Title+" ("+f.Subject.String()+")")
			d.drop(f)
			break
		}
	}
}

func overlap[T comparable](a, b []T) bool {
	return slices.ContainsFunc(a, func(x T) bool { return slices.Contains(b, x) })
}

// holdsUp says whether a cause is of just the ranks that others wait for: then it is why they do not come.
func (d *diag) holdsUp(f *Finding) bool {
	return len(f.Subject.Ranks) > 0 && slices.ContainsFunc(d.hangs, func(h Hang) bool {
		return len(h.Culprits) > 0 && !slices.ContainsFunc(f.Subject.Ranks, func(r int) bool { return !slices.Contains(h.Culprits, r) })
	})
}

// report puts the findings in order and writes the verdict.
func (d *diag) report() *Report {
	r := &Report{Findings: []Finding{}, Jobs: []Job{}, Files: d.c.Files, Unread: []Source{}, Unknown: d.unknown, Next: []Step{}}
	for i := range r.Files {
		if f := &r.Files[i]; f.Kind == "ibnetdiscover" && f.has(Cut) {
			r.Unknown = append(r.Unknown, f.Path+" is cut: links and nodes that are not in it may be there; run ibnetdiscover again")
		}
		if why := r.Files[i].unread(); why != "" {
			r.Unread = append(r.Unread, Source{r.Files[i].Path, why})
		}
	}
	if r.Files == nil {
		r.Files = []File{}
	}
	rank := func(f *Finding) int {
		hang := slices.Index(roots, "ras-query-crash")
		switch i := slices.Index(roots, f.ID); {
		case i > hang && d.holdsUp(f):
			return hang - 1
		case i >= 0:
			return i
		case f.ID == "hang":
			return hang
		}
		return len(roots)
	}
	slices.SortStableFunc(d.list, func(a, b *Finding) int {
		return cmp.Or(cmp.Compare(b.Severity, a.Severity), before(b.apart, a.apart), cmp.Compare(rank(a), rank(b)),
			cmp.Compare(b.Confidence, a.Confidence), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Job, b.Job))
	})
	for _, f := range d.list {
		f.Subject.tidy()
		if f.ID != "hang" { // the wait-graph weighs its own evidence
			f.Confidence = min(f.Confidence, byID[f.ID].Confidence)
		}
		f.Confidence = math.Round(f.Confidence*100) / 100
		if d.o.Site != nil {
			d.locate(f)
		}
		r.Findings = append(r.Findings, *f)
	}
	for _, jb := range d.j.jobs {
		if jb.world == nil && len(jb.procs) == 0 && len(d.j.jobs) == 1 {
			continue
		}
		x := Job{Name: jb.name, Ranks: jb.size(), Silent: jb.silent, Hosts: jb.hosts(), Groups: len(jb.comms)}
		if jb.world != nil {
			x.Seen = len(jb.world.members)
		}
		vers := map[string]bool{}
		for _, p := range jb.procs {
			if p.version != "" {
				vers[p.version] = true
			}
		}
		for _, l := range jb.loose {
			if l.Kind == "version" {
				vers[l.F["ver"]] = true
			}
		}
		x.NCCL = slices.SortedFunc(maps.Keys(vers), natural)
		r.Jobs = append(r.Jobs, x)
	}
	if len(d.hangs) > 0 {
		r.Hang = &d.hangs[0]
		r.Hangs = d.hangs[1:]
	}
	if r.Unknown == nil {
		r.Unknown = []string{}
	}
	r.Verdict = d.verdict(r)
	r.Next = next(r)
	return r
}

// before orders what is so before what is not.
func before(b, a bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// locate adds where in the cluster the subjects of a finding are: rack, rail, leaf and port. Where a device is known
// its host is not said as well.
func (d *diag) locate(f *Finding) {
	for _, h := range f.Subject.Hosts {
		known := len(f.Where)
		for _, dev := range append(slices.Clone(f.Subject.Devices), "") {
			dev, mine := strings.CutPrefix(dev, h+":")
			if !mine && dev != "" || dev == "" && len(f.Where) > known {
				continue // of another host; or the devices were found
			}
			if w := d.o.Site.Where(h, dev); w != "" && !slices.Contains(f.Where, w) && len(f.Where) < 16 {
				f.Where = append(f.Where, w)
			}
		}
	}
}

// verdict is one sentence.
func (d *diag) verdict(r *Report) string {
	if h := r.Hang; h != nil && len(h.Culprits) > 0 {
		s := fmt.Sprintf("%s hold the job up in %s of group %s: %s (%.0f%% sure).",
			capital(ranksText(h.Culprits)), h.Operation, h.Group, HangClasses[h.Class], h.Confidence*100)
		if len(h.Culprits) == 1 {
			s = strings.Replace(s, " hold the job up", " holds the job up", 1)
		}
		if worst, ok := r.Worst(); ok && worst == Critical && r.Findings[0].ID != "hang" {
			f := &r.Findings[0]
			s = fmt.Sprintf("%s; the likely cause: %s%s (%.0f%% sure).", strings.TrimSuffix(s, "."), f.Title, at(f.Subject), f.Confidence*100)
		}
		return s
	}
	n := map[Severity]int{}
	for _, f := range r.Findings {
		n[f.Severity]++
	}
	if n[Critical]+n[Warning] == 0 {
		return nothingWrong(r, n[Info])
	}
	f := &r.Findings[0]
	s := fmt.Sprintf("%s%s: %s (%.0f%% sure)", capital(f.Title), at(f.Subject), f.Cause, f.Confidence*100)
	if more := n[Critical] + n[Warning] - 1; more > 0 {
		s += fmt.Sprintf("; %d more %s", more, plural(more, "finding"))
	}
	return s + "."
}

// nothingWrong is the verdict without a warning: how far that can be trusted.
func nothingWrong(r *Report, infos int) string {
	if r.Blind() {
		s := "Unknown: no file that was given could be read or understood"
		if len(r.Unread) > 0 {
			s += fmt.Sprintf("; %s: %s", r.Unread[0].Path, r.Unread[0].Why)
		}
		return s + "."
	}
	cut := 0
	for i := range r.Files {
		if r.Files[i].has(Cut) {
			cut++
		}
	}
	s := "Nothing is wrong in what was read"
	for _, x := range []struct {
		n         int
		one, many string
	}{{len(r.Unread), "one file told nothing", "files told nothing"}, {cut, "one file is cut", "files are cut"},
		{infos, "one thing is worth knowing", "things are worth knowing"}} {
		switch {
		case x.n == 1:
			s += "; " + x.one
		case x.n > 1:
			s += fmt.Sprintf("; %d %s", x.n, x.many)
		}
	}
	return s + "."
}

func at(s Subject) string {
	if s.empty() {
		return ""
	}
	return " (" + s.String() + ")"
}

func capital(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// next lists commands by layer for what was found.
func next(r *Report) []Step {
	byLayer := map[string][]Step{
		"job":       {{"job", "py-spy dump --pid PID", "where the program of a named rank is"}},
		"nccl":      {{"nccl", "NCCL_DEBUG=INFO NCCL_DEBUG_FILE=/tmp/nccl.%h.%p", "a log a rank, with all decisions"}},
		"container": {{"container", "ls -l /dev/infiniband /dev/shm; df /dev/shm; ulimit -l", "what the container got"}},
		"host":      {{"host", "dmesg -T | tail -200; ulimit -a; ip -br address", "limits, interfaces and the kernel's view"}},
		"gpu":       {{"gpu", "nvidia-smi -q -x; dmesg -T | grep -i xid", "state of the GPUs"}},
		"pcie":      {{"pcie", "lspci -vvv | grep -E 'LnkSta:|ACSCtl'", "width, speed and ACS"}},
		"nvlink": {{"nvlink", "nvidia-smi nvlink -s; nvidia-smi nvlink -e; systemctl status nvidia-fabricmanager",
			"links and their errors"}},
		"nic":    {{"nic", "ibstat; show_gids; ib_write_bw -d DEVICE --report_gbits PEER", "the pair itself"}},
		"fabric": {{"fabric", "perfquery -x; mlxlink -d DEVICE -c -e; iblinkinfo", "counters and cables; twice, a minute apart"}},
		"performance": {{"performance", "weft explain CLUSTER --size SIZE; all_reduce_perf -b 8 -e 8G -f 2 -g 8",
			"what it should be and what it is"}},
	}
	seen := map[string]bool{}
	out := []Step{}
	for _, l := range Layers {
		for _, f := range r.Findings {
			if f.Layer == l && f.Severity >= Warning && !seen[l] {
				seen[l] = true
				out = append(out, byLayer[l]...)
			}
		}
	}
	return out
}

// hangFixes says by class of hang where to look next.
var hangFixes = map[string]string{
	"host":     "stack of the named ranks (py-spy dump); data loader, storage, an exception that was swallowed",
	"gpu":      "Xid in the kernel log of their hosts; nvidia-smi; drain the host",
	"link":     "test the path between the two: ib_write_bw, nvidia-smi nvlink -s",
	"network":  "errors of ports and switches; RDMA counters; RAS",
	"mismatch": "the code path of the named ranks: they call another operation or another size",
	"order":    "issue collectives of different groups in one order on all ranks",
	"missing":  "the named ranks: did their processes die, or could they not write a dump",
	"behind":   "stack of the named ranks",
}

// hostsOf finds where the culprits run. A hang of no certain job is looked for in all of them.
func (d *diag) hostsOf(h *Hang) (hosts []string) {
	for _, p := range d.j.order {
		if p.job == nil || h.job != nil && h.job != p.job {
			continue
		}
		for _, r := range p.ranksIn(p.job.world) {
			if slices.Contains(h.Culprits, r) {
				hosts = append(hosts, p.host)
			}
		}
	}
	return hosts
}

// hangFindings makes findings of the wait-graph's verdicts.
func (d *diag) hangFindings() {
	for i := range d.hangs {
		h := &d.hangs[i]
		d.job = h.job
		f := d.find("hang", Subject{Ranks: h.Culprits})
		d.job = nil
		f.Confidence = h.Confidence
		f.Cause = HangClasses[h.Class]
		f.Fix = hangFixes[h.Class]
		file := ""
		for _, dump := range d.c.Dumps {
			if file = dump.File; file != "" {
				break
			}
		}
		for i, why := range h.Why {
			ev := Evidence{File: file, Text: why}
			rank, one := h.about[i]
			for _, dump := range d.c.Dumps {
				if one && dump.NameRank == rank {
					ev.File = dump.File
				}
			}
			f.addEvidence(ev)
		}
		f.Subject.Hosts = append(f.Subject.Hosts, d.hostsOf(h)...)
		if len(h.Waiting) > 0 {
			f.Consequences = append(f.Consequences, fmt.Sprintf("%s wait in %s of group %s", ranksText(h.Waiting), h.Operation, h.Group))
		}
		if len(h.Candidates) > 0 {
			d.unknown = append(d.unknown, ranksText(h.Candidates)+" left no dump; their files would tell whether they are to blame as well")
		}
	}
}
