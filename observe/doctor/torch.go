package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// torchRules judges what PyTorch, Gloo and launchers say.
func (d *diag) torchRules() {
	d.watchdogs()
	d.exceptions()
	d.silence()
	d.saving()
	d.exits()
	d.scheduled()
	d.rendezvous()
	jb := d.job
	if jb.some("gloo") && !jb.ncclSeen() {
		jb.each(func(_ *proc, l *Line) { d.find("gloo-backend", Subject{Ranks: []int{l.Rank}}, l.At) }, "gloo")
	}
}

// timeout is one rank's operation that did not end in time.
type timeout struct {
	rank int
	seq  int
	l    *Line
}

// same are operations that have one size on all ranks.
var same = []string{"ALLREDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE", "BROADCAST"}

func (t timeout) what() string {
	if slices.Contains(same, t.l.F["op"]) && t.l.F["in"] != "" {
		return t.l.F["op"] + " of " + t.l.F["in"]
	}
	return t.l.F["op"]
}

// where is the operation, with its number if that is known.
func (t timeout) where() string {
	if t.seq < 0 {
		return t.l.F["op"]
	}
	return fmt.Sprintf("%s #%d", t.l.F["op"], t.seq)
}

// earliest is the first operation of each rank that timed out. The rank waits in that one; later ones only follow.
func earliest(list []timeout) map[int]timeout {
	first := map[int]timeout{}
	for _, h := range list {
		if f, ok := first[h.rank]; !ok || h.seq < f.seq {
			first[h.rank] = h
		}
	}
	return first
}

// monitor is who watches ranks' heartbeats in NVIDIA's resiliency extension. It ends those that miss them with SIGKILL.
const monitor = "nvrx"

// watchdogs judges collectives that PyTorch's watchdog gave up, group by group.
func (d *diag) watchdogs() {
	groups, states := d.timeouts()
	for _, g := range slices.Sorted(maps.Keys(groups)) {
		d.timedOut(g, groups[g], states[g])
	}
	d.barrierMissed()
	jb := d.job
	jb.each(func(_ *proc, l *Line) {
		f := d.find("collective-mismatch", Subject{Ranks: []int{num(l.F["a"]), num(l.F["b"])}}, l.At)
		f.Confidence = 0.95
		f.Cause = fmt.Sprintf("rank %s called %s where rank %s called %s",
			l.F["a"], cmp.Or(l.F["opa"], "something else"), l.F["b"], cmp.Or(l.F["opb"], "something else"))
	}, "fingerprint")
	if len(groups) == 0 {
		jb.each(func(_ *proc, l *Line) {
			f := d.find("watchdog-stuck", d.of(l), l.At)
			if l.F["by"] == monitor {
				f.Title, f.Confidence = "ranks gave no sign of life, and their monitor ended them", 0.6
				f.Cause = "no heartbeat for " + cmp.Or(l.F["seconds"], "too many") + " s: a hang, or a checkpoint, during which none are sent"
				f.Fix = "py-spy dump of the first of these ranks; a longer rank_heartbeat_timeout if it saved or loaded a checkpoint"
			}
		}, "stuck")
	} else {
		jb.each(func(_ *proc, l *Line) { d.consequence("the watchdog got stuck", l) }, "stuck")
	}
	jb.each(func(_ *proc, l *Line) { d.find("gloo-timeout", d.of(l), l.At) }, "gloo_late")
	jb.each(func(_ *proc, l *Line) { d.find("gloo-connect", d.of(l), l.At) }, "gloo_join")
	jb.each(func(_ *proc, l *Line) {
		s := d.of(l)
		if h := d.j.hostOf(l.F["peer"]); h != "" {
			s.Links = []string{linkTo(l.Host, h)}
		}
		d.find("peer-closed", s, l.At)
	}, "gloo_lost")
}

// timeouts collects what watchdogs say by group: the collectives that timed out, and how far each rank is.
func (d *diag) timeouts() (groups map[string][]timeout, states map[string]map[int]*Line) {
	jb := d.job
	// A watchdog's line of old versions does not name its group; the line of the same rank
	// and operation that tells how far the group is does.
	named := map[string]string{}
	states = map[string]map[int]*Line{}
	jb.each(func(_ *proc, l *Line) {
		g := cmp.Or(l.F["group"], "default")
		if states[g] == nil {
			states[g] = map[int]*Line{}
		}
		states[g][l.Rank] = l
		if l.F["seq"] != "" {
			named[fmt.Sprintf("%d %s", l.Rank, l.F["seq"])] = g
		}
	}, "pgstate")
	groups = map[string][]timeout{}
	seen := map[string]bool{}
	jb.each(func(_ *proc, l *Line) {
		g := cmp.Or(l.F["group"], named[fmt.Sprintf("%d %s", l.Rank, l.F["seq"])], "default")
		key := fmt.Sprintf("%s|%d|%s", g, l.Rank, l.F["seq"])
		if seen[key] { // said again when the process is taken down
			return
		}
		seen[key] = true
		groups[g] = append(groups[g], timeout{l.Rank, num(l.F["seq"]), l})
	}, "watchdog")
	return groups, states
}

// timedOut judges the timeouts of one group.
func (d *diag) timedOut(g string, list []timeout, states map[int]*Line) {

	var s Subject
	var ev []Evidence
	for _, h := range list {
		ev = append(ev, h.l.At)
	}
	first := earliest(list)
	ranks := slices.Sorted(maps.Keys(first))
	s.Ranks = ranks
	bySeq := func(a, b int) int { return cmp.Compare(first[a].seq, first[b].seq) }
	low, high := first[slices.MinFunc(ranks, bySeq)], first[slices.MaxFunc(ranks, bySeq)]
	kinds := map[string][]int{}
	for _, r := range ranks {
		what := first[r].what()
		kinds[what] = append(kinds[what], r)
	}
	if low.seq != high.seq {
		if few := odd(first, low.seq, high.seq); len(few) > 0 {
			s.Ranks = few
		}
		f := d.find("watchdog-desync", s, ev...)
		f.Cause = fmt.Sprintf("the program is out of step: rank %d is in %s #%d, others are further", low.rank, low.l.F["op"], low.seq)
	} else {
		f := d.find("watchdog-same-place", s, ev...)
		where := low.where()
		f.Cause = fmt.Sprintf("all wait in %s of group %s: %s", where, g, byID["watchdog-same-place"].Cause)
		if len(ranks) == 1 {
			f.Confidence = 0.5
			f.Title = "a rank timed out in a collective"
			f.Cause = fmt.Sprintf("it waits in %s of group %s, and no other rank is in the log: whoever it waits for is not known", where, g)
		}
		if len(kinds) > 1 && len(d.c.Dumps) == 0 {
			d.hangs = append(d.hangs, mismatched(kinds, g, where))
		}
	}
	if len(states) > 1 && len(d.c.Dumps) == 0 {
		d.issuedLess(g, first, high, states)
	}
}

// odd are the ranks that are in another operation than most, nil where no operation has most of them.
func odd(first map[int]timeout, low, high int) (few []int) {
	for _, at := range []int{low, high} {
		few = nil
		for _, r := range slices.Sorted(maps.Keys(first)) {
			if first[r].seq == at {
				few = append(few, r)
			}
		}
		if 2*len(few) < len(first) {
			return few
		}
	}
	return nil
}

// issuedLess finds ranks that had issued less than what the others wait in.
func (d *diag) issuedLess(g string, first map[int]timeout, high timeout, st map[int]*Line) {
	var behind, there []int
	for _, r := range slices.Sorted(maps.Keys(st)) {
		if _, waits := first[r]; !waits && num(st[r].F["enqueued"]) < high.seq {
			behind = append(behind, r)
		} else {
			there = append(there, r)
		}
	}
	if len(behind) == 0 || len(there) == 0 {
		return
	}
	h := Hang{Class: "host", Culprits: behind, Waiting: there, Group: g, Operation: fmt.Sprintf("%s #%d", high.l.F["op"], high.seq),
		Confidence: 0.85}
	for _, r := range behind {
		h.Why = append(h.Why, fmt.Sprintf("rank %d had issued %s operations when the others waited in %d", r, st[r].F["enqueued"], high.seq))
	}
	d.hangs = append(d.hangs, h)
}

// barrierMissed takes PyTorch's own word for the ranks that did not come.
func (d *diag) barrierMissed() {
	jb := d.job
	missed := map[int]bool{}
	var at []Evidence
	jb.each(func(_ *proc, l *Line) {
		for _, w := range strings.FieldsFunc(l.F["ranks"], func(r rune) bool { return r == ',' || r == ' ' }) {
			if r, err := strconv.Atoi(w); err == nil {
				missed[r] = true
			}
		}
		at = append(at, l.At)
	}, "barrier")
	if len(missed) > 0 && !d.hung() {
		d.hangs = append(d.hangs, Hang{Class: "host", Culprits: slices.Sorted(maps.Keys(missed)), Waiting: []int{}, Group: "default",
			Operation: "a barrier or collective", Confidence: 0.85, Why: []string{at[0].Text}})
	}
}

// mismatched is the verdict on ranks that called different operations at one place.
func mismatched(kinds map[string][]int, group, where string) Hang {
	most := ""
	for _, k := range slices.Sorted(maps.Keys(kinds)) {
		if most == "" || len(kinds[k]) > len(kinds[most]) {
			most = k
		}
	}
	h := Hang{Class: "mismatch", Group: group, Operation: where, Confidence: 0.9, Waiting: slices.Clone(kinds[most])}
	for _, k := range slices.Sorted(maps.Keys(kinds)) {
		h.Why = append(h.Why, fmt.Sprintf("at %s of group %s, %s called %s", where, group, ranksText(kinds[k]), k))
		if k != most {
			h.Culprits = append(h.Culprits, kinds[k]...)
		}
		if k != most && len(kinds[k]) == len(kinds[most]) {
			h.Culprits, h.Confidence = append(h.Culprits, kinds[most]...), 0.7
		}
	}
	slices.Sort(h.Culprits)
	h.Culprits = slices.Compact(h.Culprits)
	return h
}

// follows says whether an exception only repeats that communication failed.
func follows(msg string) bool {
	for _, s := range []string{"NCCL", "nccl", "onnection", "ocket", "TCPStore", "rocess group", "roken pipe", "store->", "imed out", "imeout",
		"gloo", "Engine core", "worker died", "cancelled"} {
		if strings.Contains(msg, s) {
			return true
		}
	}
	return false
}

// exceptions judges what programs raised, and errors of CUDA that PyTorch reports.
func (d *diag) exceptions() {
	jb := d.job
	raised := map[int]*Line{} // the first line of each rank
	first := func(l *Line) {
		if raised[l.Rank] == nil {
			raised[l.Rank] = l
		}
	}
	var handled []*Line
	jb.each(func(_ *proc, l *Line) {
		switch {
		case follows(l.F["type"] + ": " + l.F["msg"]):
			d.consequence("exceptions that repeat it", l)
		case l.F["went_on"] != "":
			handled = append(handled, l)
		default:
			d.programError(l)
			first(l)
		}
	}, "exception")
	d.caught(handled)
	jb.each(func(_ *proc, l *Line) {
		d.cudaError(l)
		first(l)
	}, "cuda_error")
	jb.each(func(_ *proc, l *Line) {
		s := d.of(l)
		s.Devices = []string{named(l.Host, l.F["node"])}
		f := d.find("gpu-access-fault", s, l.At)
		if why := strings.ToLower(l.F["reason"]); len(f.Evidence) == 1 && why != "" {
			f.Cause = fmt.Sprintf("%s at %s: %s", why, l.F["addr"], f.Cause)
		}
	}, "gpu_access")
	jb.each(func(_ *proc, l *Line) {
		f := d.find("cuda-out-of-memory", d.of(l), l.At)
		if cause, fix := outOfMemory(l.At.Text); cause != "" && f.Evidence[0] == l.At {
			f.Cause, f.Fix = cause, fix
		}
	}, "cuda_oom")
	jb.each(func(_ *proc, l *Line) { first(l) }, "cuda_oom", "gpu_access", "disk_full", "loader_shm")
	delete(raised, -1)
	d.waitForFailed(raised)
}

func (d *diag) programError(l *Line) {
	f := d.find("program-error", d.of(l), l.At)
	if len(f.Evidence) > 1 {
		return
	}
	f.Cause = strings.TrimSuffix(l.F["type"]+": "+l.F["msg"], ": ")
	if len(f.Cause) > 200 {
		f.Cause = f.Cause[:200] + "..."
	}
}

// cudaError judges what CUDA said through PyTorch.
func (d *diag) cudaError(l *Line) {
	switch msg := l.F["msg"]; {
	case strings.Contains(msg, "out of memory"):
		d.find("cuda-out-of-memory", d.of(l), l.At)
	case strings.Contains(msg, "system not yet initialized"):
		d.find("fabric-manager-down", d.of(l), l.At)
	case strings.Contains(msg, "driver combination"): // 803
		d.find("driver-mismatch", d.of(l), l.At)
	case strings.Contains(msg, "ECC error"):
		f := d.find("gpu-failed", d.of(l), l.At)
		f.Cause = "an uncorrectable error of the GPU's memory"
		f.Fix = "drain the host; reset the GPU; nvidia-smi -q: row remapping"
	default:
		who := "the program, the driver or the GPU"
		if kernelFault.MatchString(msg) {
			who = "a kernel of the program, or the GPU"
		}
		d.find("cuda-error", d.of(l), l.At).Cause = msg + ": " + who
	}
}

// kernelFault are words by which CUDA tells of what a kernel did.
var kernelFault = regexp.MustCompile(`illegal|launch|assert|misaligned`)

// waitForFailed is a hang without dumps: ranks timed out, because they wait for those that raised an error.
func (d *diag) waitForFailed(raised map[int]*Line) {
	if len(raised) == 0 || d.hung() || len(d.c.Dumps) > 0 {
		return
	}
	waiting := map[int]bool{}
	var op *Line
	d.job.each(func(_ *proc, l *Line) {
		if raised[l.Rank] == nil {
			waiting[l.Rank] = true
			op = cmp.Or(op, l)
		}
	}, "watchdog")
	if len(waiting) < len(raised) {
		return
	}
	h := Hang{Class: "host", Culprits: slices.Sorted(maps.Keys(raised)), Waiting: slices.Sorted(maps.Keys(waiting)),
		Group: cmp.Or(op.F["group"], "default"), Operation: strings.TrimSuffix(op.F["op"]+" #"+op.F["seq"], " #"), Confidence: 0.85}
	for _, r := range h.Culprits {
		h.Why = append(h.Why, fmt.Sprintf("rank %d failed: %s", r, raised[r].At.Text))
	}
	d.hangs = append(d.hangs, h)
}

// caught tells of exceptions that did not end the program, where none did.
func (d *diag) caught(handled []*Line) {
	if len(handled) == 0 || d.has("program-error") != nil {
		return
	}
	f := d.find("program-error", d.of(handled[0]), handled[0].At)
	f.Severity, f.Title = Info, "the program caught an exception and went on"
	f.Cause = strings.TrimSuffix(handled[0].F["type"]+": "+handled[0].F["msg"], ": ")
}

// exits judges processes that ended, by the launcher's words.
func (d *diag) exits() {
	jb := d.job
	var list []*Line
	jb.each(func(_ *proc, l *Line) { list = append(list, l) }, "exit")
	grade := d.rootExits(list)
	best := 2
	for _, l := range list {
		best = min(best, grade(l))
	}
	asked := d.askedToEnd()
	for _, l := range list {
		if g := grade(l); g > best || g >= 2 || asked(l) {
			d.consequence("processes ended", l)
			continue
		}
		d.processDied(l)
	}
	d.notNumbers()
	d.ended(len(list) > 0)
}

// askedToEnd says of the end of a process whether it follows from a monitor that ended it, or from a scheduler that ended the
// job and said why: a time limit, a preemption, a user. Such ends are by a signal, and later.
func (d *diag) askedToEnd() func(*Line) bool {
	after := d.afterCancel()
	watched := false
	d.job.each(func(_ *proc, l *Line) { watched = watched || l.F["by"] == monitor }, "stuck")
	return func(l *Line) bool {
		s := exitSignal(l)
		return (s == 9 || s == 15) && (watched || after(l))
	}
}

// afterCancel says of a line whether it is later than the scheduler's word that it ends the job, with a reason.
func (d *diag) afterCancel() func(*Line) bool {
	var told []*Line
	d.job.each(func(_ *proc, l *Line) {
		if why := strings.ToLower(l.F["why"]); why != "" && !strings.Contains(why, "failure") {
			told = append(told, l)
		}
	}, "cancelled")
	return func(l *Line) bool {
		return slices.ContainsFunc(told, func(c *Line) bool {
			if c.At.File == l.At.File && c.At.Line > 0 {
				return c.At.Line < l.At.Line
			}
			return c.Time > 0 && l.Time >= c.Time-1
		})
	}
}

// notNumbers judges losses and gradients that are not finite.
func (d *diag) notNumbers() {
	d.job.each(func(_ *proc, l *Line) {
		s := d.of(l)
		if l.F["device"] == "" {
			d.find("loss-not-finite", s, l.At)
			return
		}
		// Megatron looks before ranks add up, so it is this one's own.
		if host, _, _ := strings.Cut(l.F["node"], "."); host != "" {
			s.Hosts = []string{host}
			s.Devices = []string{host + ":gpu" + l.F["device"]}
		}
		f := d.find("loss-not-finite", s, l.At)
		f.Severity, f.Cause = Critical,
			"gradients of this rank, before they were added to others': a bad batch, an overflow, or a GPU that computes wrong"
	}, "not_number")
}

// ended judges what schedulers say: a host that is lost, memory, and jobs that they ended.
func (d *diag) ended(exits bool) {
	jb := d.job
	jb.each(func(_ *proc, l *Line) {
		d.find("host-lost", Subject{Hosts: []string{l.F["hosts"]}}, l.At)
	}, "host_lost")
	jb.each(func(_ *proc, l *Line) {
		s := d.of(l)
		if h := cmp.Or(d.j.addr[l.F["addr"]], l.F["addr"]); h != "" {
			s.Hosts = []string{h}
		}
		f := d.find("host-out-of-memory", s, l.At)
		f.Confidence = max(f.Confidence, 0.9)
		if l.F["by"] == "ray" && len(f.Evidence) == 1 {
			f.Title = "Ray ended a worker since its node was low on memory"
			f.Cause = "processes on the node use more than Ray's threshold of its memory; Ray ends workers before the kernel would"
			f.Fix = "fewer or smaller workers and tasks per node, more memory; RAY_memory_usage_threshold moves the limit"
		}
	}, "oom_event")
	jb.each(func(_ *proc, l *Line) { d.find("shm-full", d.of(l), l.At) }, "loader_shm")
	jb.each(func(_ *proc, l *Line) {
		if l.F["why"] == "" && exits { // the launcher takes the rest down
			d.consequence("the step was cancelled", l)
			return
		}
		f := d.find("job-cancelled", Subject{}, l.At)
		if why := strings.ToLower(l.F["why"]); why != "" {
			f.Cause = why
			if strings.Contains(why, "node failure") {
				f.Severity = Critical
				f.Fix = "find the host that failed (sinfo -R, slurmctld's log) and look at its power, kernel log and BMC; " + l.F["host"] +
					" only says so"
			}
		}
	}, "cancelled")
}

// scheduled judges what schedulers, file systems and name servers refused.
func (d *diag) scheduled() {
	jb := d.job
	jb.each(func(_ *proc, l *Line) {
		f := d.find("pod-evicted", d.of(l), l.At)
		if why := l.F["why"]; why != "" {
			f.Cause = why
		}
		if node := l.F["node"]; node != "" {
			f.Subject.Devices = append(f.Subject.Devices, "node "+node)
		}
	}, "evicted")
	jb.each(func(_ *proc, l *Line) {
		f := d.find("pod-pending", d.of(l), l.At)
		if why := l.F["why"]; why != "" && len(f.Evidence) == 1 {
			f.Cause = why
		}
	}, "pending")
	jb.each(func(_ *proc, l *Line) {
		f := d.find("disk-full", d.of(l), l.At)
		if path := l.F["path"]; path != "" && len(f.Evidence) == 1 {
			f.Cause = "no space or quota is left for " + path
		}
	}, "disk_full")
	jb.each(func(_ *proc, l *Line) {
		f := d.find("name-lookup", d.of(l), l.At)
		if name := l.F["name"]; name != "" {
			f.Cause = name + " cannot be resolved: " + byID["name-lookup"].Cause
		}
	}, "no_name")
	jb.each(func(_ *proc, l *Line) {
		f := d.find("rendezvous-incomplete", Subject{Ranks: []int{num(l.F["ranks"])}}, l.At)
		f.Cause = ranksText(f.Subject.Ranks) + " did not come to the first barrier: not started, late, or unable to reach the coordinator"
	}, "absent")
}

// exitSignal is the signal that ended a process: 9 for exit codes 137 and -9, 0 for none.
func exitSignal(l *Line) int {
	switch c := num(l.F["code"]); {
	case c > 128 && c < 192:
		return c - 128
	case l.F["code"] != "" && l.F["code"][0] == '-':
		n, _ := strconv.Atoi(l.F["code"][1:])
		return n
	}
	return 0
}

// rootExits grades how likely an exit is the first failure, 0 the likeliest. Where the launcher names the first failure: of
// several hosts, those that crashed or were killed, else the earliest. Without that word, those that crashed or were killed;
// else all that ended badly. Who is terminated or aborts after a time limit follows.
func (d *diag) rootExits(list []*Line) func(*Line) int {
	roots, killed, first := false, false, 0.0
	for _, l := range list {
		if l.F["root"] == "" {
			continue
		}
		s := exitSignal(l)
		roots = true
		killed = killed || s != 0 && s != 15 && s != 6
		if first == 0 || l.Time < first {
			first = l.Time
		}
	}
	return func(l *Line) int {
		s := exitSignal(l)
		if roots && (l.F["root"] == "" || killed && (s == 0 || s == 15 || s == 6) || !killed && l.Time > first+2) {
			return 3
		}
		switch {
		case s == 15 || s == 2:
			return 3
		case s == 6 && d.job.some("watchdog", "stuck", "nccl_failed", "cuda_error", "gpu_access"):
			return 2
		case s != 0 && s != 6:
			return 0
		case l.F["root"] != "":
			return 0
		}
		return 1
	}
}

// ranksIn are the ranks that a process has in a communicator.
func (p *proc) ranksIn(c *comm) (list []int) {
	for _, m := range p.members {
		if m.comm == c {
			list = append(list, m.rank)
		}
	}
	return list
}

// isOn says whether a rank is known to run on a host. A job without a world knows of none.
func (c *comm) isOn(rank int, host string) bool {
	return c != nil && c.members[rank] != nil && c.members[rank].proc.host == host
}

// processDied says which process ended, and what its exit code means.
func (d *diag) processDied(l *Line) {
	jb := d.job
	s := d.of(l)
	if t, err := strconv.Atoi(l.F["task"]); err == nil && jb.world.isOn(t, l.Host) {
		s.Ranks = []int{t}
	}
	if h := cmp.Or(d.j.addr[l.F["addr"]], l.F["addr"]); h != "" {
		s.Hosts = []string{h}
	}
	if p := d.j.procOf(l.Host, num(l.F["pid"])); p != nil {
		s.Hosts = append(s.Hosts, p.host)
		s.Ranks = append(s.Ranks, p.ranksIn(jb.world)...)
	}
	f := d.find("process-died", s, l.At)
	signal := exitSignal(l)
	f.crashed = f.crashed || signal != 0 && signal != 6
	f.Cause = whyDied(l, signal)
	if l.F["by"] == "vllm" && signal == 0 {
		f.Confidence = 0.6
	}
	if signal == 6 {
		f.Confidence = 0.5
	}
}

// diedBy says what a signal that ends a process means.
var diedBy = map[int]string{9: "killed (signal 9): the out-of-memory killer, a limit or an operator", 11: "crashed (signal 11)",
	6: "aborted (signal 6): often NCCL's watchdog after a time limit", 7: "bus error (signal 7): often a full /dev/shm"}

// toldBy says what it means that a launcher reports the end of a process without a signal.
var toldBy = map[string]string{
	"vllm":   "a worker ended; its own lines before this one say why",
	"loader": "a worker of the data loader ended without a word: host memory, or a crash in a native library",
	"jax":    "it stopped sending heartbeats: its process, its host or the way to it is gone; its own log or the scheduler says why",
	"ray":    "a worker ended without a word: the out-of-memory killer, a crash, or ray stop",
}

// whyDied says what the end of a process means.
func whyDied(l *Line, signal int) string {
	if l.F["what"] == "heap" {
		return "aborted: its heap is corrupted, by a bug in a native library or by libraries that do not fit"
	}
	code := "exit code " + l.F["code"]
	if l.F["code"] == "1" {
		code = "an exception of the program"
	}
	return cmp.Or(diedBy[signal], toldBy[l.F["by"]], code)
}
