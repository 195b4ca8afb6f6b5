package read

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/doctor/read/internal/regexp"
)

// What PyTorch, Gloo and launchers say. Without NCCL_DEBUG it is all that a job leaves:
//
//	[rank7]:[E419 10:42:28.858 ProcessGroupNCCL.cpp:616] [Rank 7] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4486, OpType=ALLTOALL, ...)
//	[rank7]: torch.distributed.DistBackendError: NCCL error in: ..., unhandled cuda error, NCCL version 2.20.5
//	[rank7]: Last error:
//	[rank7]: Cuda failure 1 'invalid argument'        <- NCCL's own words, on a line of their own
//	  rank      : 4 (local_rank: 0)
//	  exitcode  : -9 (pid: 14750)
//
// The rank behind [Rank is that of a group; the one in the prefix is the job's.

var (
	watchdogRank   = regexp.MustCompile(`[Rr]ank (\d+)\]`)
	workField      = regexp.MustCompile(`(\w+)(?:\(ms\))?=(\[[^\]]*\]|[^,)]*)`)
	pgGroup        = regexp.MustCompile(`PG (?:ID (\d+) )?(?:PG )?(?:GUID )?([\w:.-]+?)(?:\(([^)]*)\))? Rank (\d+)`)
	pgState        = regexp.MustCompile(`[Rr]ank (\d+)\].*[Ll]ast enqueued (?:NCCL )?work: (-?\d+), last completed (?:NCCL )?work: (-?\d+)`)
	pgWork         = regexp.MustCompile(`at work(?: sequence id)?: (\d+)`)
	exitCode       = regexp.MustCompile(`failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)`)
	tableRow       = regexp.MustCompile(`^(?:\[[^\]]*\]:?)?\s*(time|host|rank|exitcode)\s+: (\S+)(?: \((?:local_rank|pid): (\d+)\))?`)
	srunExit       = regexp.MustCompile(`srun: error: ([\w.-]+): tasks? ([\d,\[\]-]+): (Killed|Terminated|Aborted|Segmentation fault|Bus error|Out Of Memory|Exited with exit code (\d+)|[A-Z][\w ]+)`)
	slurmEnd       = regexp.MustCompile(`slurmstepd: error: \*\*\* (?:JOB|STEP) [\d.]+ ON ([\w.-]+) CANCELLED AT \S+(?: DUE TO ([A-Z ]+\b))?`)
	hostLost       = regexp.MustCompile(`(?:Node failure on|on failed node) ([\w.,\[\]-]+)|Nodes? ([\w.,\[\]-]+) not responding, setting DOWN|Node ([\w.-]+) status is now: NodeNotReady`)
	megatronNaN    = regexp.MustCompile(`Rank (\d+), node ([\w.-]+), device (\d+), iteration (\d+): Unexpected result`)
	notNumber      = regexp.MustCompile(`(?i)\bloss['"]?\s*(?:is|[:=|])?\s*-?(?:nan|inf)\b|\bnan (?:or inf )?(?:found |detected )?in (?:the )?(?:local )?(?:loss|grad)|\bnan loss\b`)
	slurmOOM       = regexp.MustCompile(`slurmstepd: error: Detected \d+ oom[-_]kill event`)
	mpiExit        = regexp.MustCompile(`noticed that process rank (\d+) with PID (\d+) on node ([\w.-]+) exited on signal (\d+)`)
	returnCode     = regexp.MustCompile(`exits with return code = (-?\d+)`)
	statusCode     = regexp.MustCompile(`Process (\d+) exit(?:ed)? with status code (\d+)`)
	rayExit        = regexp.MustCompile(`A worker died or was killed while executing.*Worker IP address: (\S+) .*Worker PID: (\d+)`)
	gloo           = regexp.MustCompile(`\[Gloo\] Rank (\d+) is connected to (\d+) peer ranks`)
	glooLost       = regexp.MustCompile(`gloo/transport/tcp/\S+\] (?:Connection closed by peer|Read error|Write error) ?\[([^\]]+)\]`)
	glooLate       = regexp.MustCompile(`gloo/\S+\] Timed out waiting (\d+)ms for (?:recv|send) operation`)
	glooJoin       = regexp.MustCompile(`(?i)gloo.*(?:connectFullMesh failed|Unable to resolve hostname to a|Unable to find address for|timed out connecting)`)
	barrier        = regexp.MustCompile(`Ranks? ([\d, ]+) failed to pass monitoredBarrier`)
	lagging        = regexp.MustCompile(`ranks \[([\d, ]+)\] are the lagging ranks`)
	fingerprint    = regexp.MustCompile(`Rank (\d+) is running collective: (?:CollectiveFingerPrint\()?(.*?), ?but Rank (\d+) is running collective: (?:CollectiveFingerPrint\()?(.*)`)
	opType         = regexp.MustCompile(`OpType=(\w+)`)
	opNumber       = regexp.MustCompile(`SequenceNumber=(\d+)`)
	opShape        = regexp.MustCompile(`TensorShape=(\[[^\]]*\])`)
	stuckFor       = regexp.MustCompile(`watchdog got stuck for (\d+) seconds`)
	joined         = regexp.MustCompile(`[Tt]imed out after (\d+) seconds waiting for clients\. (\d+)/(\d+) clients joined`)
	noMaster       = regexp.MustCompile(`client socket has timed out after \S+ while trying to connect to \(?\[?([^\]\s,)]+)\]?[,:]? ?(\d*)`)
	portUsed       = regexp.MustCompile(`server socket has failed to (?:listen|bind).*(?:EADDRINUSE|[Aa]ddress already in use)`)
	noUniqueID     = regexp.MustCompile(`\[(\d+)\] is setting up NCCL communicator and retrieving ncclUniqueId from \[(\d+)\]`)
	ncclFailed     = regexp.MustCompile(`NCCL [Ee]rror(?: in|\(\d+\))?[:,] ?(?:\S+:\d+, )?((?:unhandled|internal|invalid|remote)[\w /-]+?)(?: \(run with[^)]*\))?(?:, NCCL version (\d+\.\d+\.\d+)|$|[,.:])`)
	pipNCCL        = regexp.MustCompile(`nvidia-nccl-cu\d+(?:==| +)(\d+\.\d+\.\d+)`)
	cudaOOM        = regexp.MustCompile(`(?:CUDA out of memory|torch\.cuda\.OutOfMemoryError|torch\.OutOfMemoryError)`)
	cudaError      = regexp.MustCompile(`(?:CUDA (?:runtime )?error(?: \(\d+\))?|cudaGetDeviceCount\(\)\..* Error \d+): ([A-Za-z][\w ',/()-]+)`)
	loaderBus      = regexp.MustCompile(`DataLoader worker \(pid\(?s?\)? ?\d+.*killed by signal: Bus error`)
	loaderKill     = regexp.MustCompile(`DataLoader worker \(pid\(?s?\)? ?\d+.*killed by signal: Killed`)
	pythonRaise    = regexp.MustCompile(`^((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Failure|Timeout|Expired))(?:: (.*))?$`)
	launcherHead   = regexp.MustCompile(`^(?:\[\d+,\d+\]<std(?:out|err)>: ?|(?i:rank)[ _-]?\d+[:|] ?|\[(?i:rank): ?\d+\]:? ?|[A-Za-z][\w.-]*:\d+\| ?|[A-Za-z][\w.-]*\d: |\([^)]*pid=\d+[^)]*\) |\[(?:default|(?i:rank) ?)\d+\]:? ?|\[pod/[^\]]+\] |\d+: |\[\d+\](?:<std(?:out|err)>:)? ?|(?:[A-Za-z][\w.-]*-\d+): |(?:ERROR|CRITICAL|WARNING|INFO) [\d-]+ [\d:.,]+ \[?[\w.]+:\d+\] ?)+`)
	checkpointing  = regexp.MustCompile(`(?i)\b(?:saving|writing|storing|dumping|begin(?:ning)? to save|start(?:ing|ed)? (?:to )?(?:sav|writ)\w+)\b.{0,60}\bcheckpoint|\bcheckpoint(?:ing)? (?:is being (?:saved|written)|save (?:begins|started|starts))|\[Torch\] Saving `)
	checkpointDone = regexp.MustCompile(`(?i)(\b(?:saved|wrote|finished|completed|done (?:saving|writing))\b.{0,60}\bcheckpoint|\bcheckpoint\b.{0,120}\b(?:saved|written|done|complete[d]?|finished)\b|\[Torch\] Saved )`)
	accessFault    = regexp.MustCompile(`(?:^([A-Za-z][\w.-]*): )?Memory access fault by GPU (node-\d+)(?: \(Agent handle: [^)]*\))? on address (\S+?)\.?(?: Reason: ([^.]*)|\s*$)`)
	hwException    = regexp.MustCompile(`HW Exception by GPU (node-\d+)(?: \(Agent handle: [^)]*\))? reason ?:(.*)`)
	gradNaN        = regexp.MustCompile(`Rank (\d+): found NaN in local grad norm in backwards? pass.*?Device: (\d+)(?:, node: ([\w.-]+))?`)
	diskFull       = regexp.MustCompile(`(?:[Nn]o space left on device|[Dd]isk quota exceeded)(?:: '([^']*)')?`)
	onShm          = regexp.MustCompile(`/dev/shm|NCCL (?:WARN|INFO)`)
	noName         = regexp.MustCompile(`(?:\(([\w.-]+), \d+\) cannot be retrieved|gaierror:.*|getaddrinfo.*|resolve host(?:name)? ([\w.-]+).*|)(?:Name or service not known|Temporary failure in name resolution|gai error)`)
	// A time with or without its day, in brackets or not, the words of syslog or the journal behind it, and containerd's stream.
	lineTop = regexp.MustCompile(`^(?:\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,]*(?:Z|[+-]\d\d:?\d\d)?\]?(?: [\w.-]+ [\w.-]+(?:\[\d+\])?:)?|` +
		`\[?\d\d:\d\d:\d\d[\d.,]*\]?|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ [\w.-]+(?:\[\d+\])?:) (?:std(?:out|err) [FP] )?`)
)

// checkpointWords are in lines of programs that save their state.
var checkpointWords = []string{"heckpoint", "CHECKPOINT", "[Torch] Sav"}

// torchState is what the lines so far leave open.
type torchState struct {
	trace   map[string]bool   // a traceback is open behind this prefix
	wrapped []string          // what stands before tracebacks besides prefixes that are known
	last    map[string]bool   // "Last error:" stood behind this prefix
	row     map[string]string // of the launcher's table of failures
	rows    int               // lines since the table began
	idle    int               // lines since something was opened
	root    bool              // the table's row is the first failure
	ranAt   string            // the host of a process whose exit code comes next
	stalled int               // lines that may still be of a list of ranks that others wait for
	listed  string            // the kind of line that each of them is
	// starting is set while JAX's processes connect.
	starting bool

	caught     *caught
	actor      map[string]string // what is known of the actor of Ray that died last
	actorLines int               // since then
}

// patience is for how many lines what was begun is expected to go on. Until then all lines are
// looked at, which takes ten times as long.
const patience = 20_000

func (t *torchState) open() bool {
	return len(t.trace)+len(t.last)+t.stalled > 0 || t.row != nil || t.actor != nil
}

// table begins torchrun's table of failures, or its row of the first one.
func (t *torchState) table(root bool) verdict {
	t.root, t.row, t.rows, t.idle = root, map[string]string{}, 0, 0
	return noted
}

// begin notes that something is open behind a prefix. A log has at most 65,536 of them.
func (t *torchState) begin(open map[string]bool, prefix string) map[string]bool {
	if open == nil {
		open = map[string]bool{}
	}
	if t.idle = 0; len(open) < 1<<16 {
		open[prefix] = true
	}
	return open
}

// plain takes launchers' prefixes off a line and gives both.
func plain(text string) (prefix, rest string) {
	rest = text
	for _, re := range []*regexp.Regexp{lineTop, launcherHead} {
		if m := re.FindString(rest); m != "" {
			rest = rest[len(m):]
		}
	}
	prefix = text[:len(text)-len(rest)]
	if m := lineTop.FindString(prefix); m != "" {
		prefix = prefix[len(m):]
	}
	return strings.TrimSpace(prefix), rest
}

// signals by the words of launchers.
var signals = map[string]string{"Killed": "-9", "Terminated": "-15", "Aborted": "-6", "Segmentation fault": "-11", "Bus error": "-7",
	"Out Of Memory": "-9"}

// torchRule says what a line is that has one of some words.
type torchRule struct {
	has    []string       // words of which the line has one
	begins string         // or what its body begins with
	when   *regexp.Regexp // and which it matches, where words do not say enough
	re     *regexp.Regexp // what must be read of it; nil for nothing
	kind   string
	fields []string // what the groups of re are, in their order; "" is left out
	by     string   // the launcher that says so
	rank   rankFrom
	calm   bool // no warning
	raised bool // it is what a traceback ends with
	read   func(*scan, *torchText) verdict
}

// rankFrom is where a rule has the rank of a line from.
type rankFrom int

const (
	fromPrefix rankFrom = iota // of the launcher
	fromGroup                  // the first of the expression
	fromNobody
)

// verdict is what a rule made of a line.
type verdict int

const (
	goOn  verdict = iota // nothing; the line may be a row of a table or what was raised
	found                // a line for the doctor
	noted                // it is of those that follow; nothing else is to be read of it
)

// torchText is a line that is read.
type torchText struct {
	n            int
	text         string
	prefix, body string // of launchers, and the rest
	rank         int    // by the prefix; -1 if that has none
}

// torchRules are asked in their order. The first whose words are there is the only one.
var torchRules = []torchRule{
	{has: []string{"Watchdog caught collective"}, read: (*scan).watchdogLine},
	{has: []string{"ast enqueued"}, read: (*scan).enqueuedLine},
	{has: []string{"watchdog got stuck", "Heartbeat monitor timed out", "ProcessGroupNCCL watchdog hang"}, read: (*scan).stuckLine},
	{has: []string{"monitoredBarrier"}, re: barrier, kind: "barrier", fields: []string{"ranks"}},
	{has: []string{"lagging ranks"}, re: lagging, kind: "barrier", fields: []string{"ranks"}},
	{has: []string{"is running collective"}, read: (*scan).fingerprintLine},
	{has: []string{"failed (exitcode:"}, re: exitCode, kind: "exit", fields: []string{"code", "local", "pid"}, by: "torchrun",
		rank: fromNobody},
	{has: []string{"Root Cause (first observed failure)"}, read: func(s *scan, _ *torchText) verdict { return s.torch.table(true) }},
	{begins: "Failures:", read: func(s *scan, _ *torchText) verdict { return s.torch.table(false) }},
	{has: []string{"Node failure on ", "on failed node ", "setting DOWN", "NodeNotReady"}, when: hostLost, read: (*scan).hostLostLine},
	{has: []string{"srun: error:"}, read: (*scan).srunLine},
	{has: []string{"slurmstepd: error:"}, when: slurmEnd, re: slurmEnd, kind: "cancelled", fields: []string{"host", "why"}, rank: fromNobody},
	{has: []string{"slurmstepd: error:"}, re: slurmOOM, kind: "oom_event", rank: fromNobody},
	{has: []string{"OOMKilled"}, kind: "oom_event"},
	{has: []string{"noticed that process rank"}, read: (*scan).mpirunLine},
	{has: []string{"exits with return code"}, re: returnCode, kind: "exit", fields: []string{"code"}, by: "deepspeed", rank: fromNobody},
	{has: []string{"with status code"}, re: statusCode, kind: "exit", fields: []string{"", "code"}, by: "horovod", rank: fromGroup},
	{has: []string{"A worker died or was killed"}, read: (*scan).rayLine},
	{has: []string{"DataLoader worker"}, when: loaderBus, kind: "loader_shm"},
	{has: []string{"DataLoader worker"}, when: loaderKill, kind: "oom_event"},
	{has: []string{"[Gloo] Rank"}, re: gloo, kind: "gloo", fields: []string{"", "peers"}, rank: fromGroup, calm: true},
	{has: []string{"gloo"}, when: glooLost, re: glooLost, kind: "gloo_lost", fields: []string{"peer"}, raised: true},
	{has: []string{"gloo"}, when: glooLate, re: glooLate, kind: "gloo_late", fields: []string{"ms"}, raised: true},
	{has: []string{"gloo", "Gloo"}, when: glooJoin, kind: "gloo_join", raised: true},
	{has: []string{"clients joined"}, re: joined, kind: "not_joined", fields: []string{"", "have", "want"}, raised: true},
	{has: []string{"client socket has timed out"}, re: noMaster, kind: "no_master", fields: []string{"addr", "port"}, raised: true},
	{has: []string{"RendezvousTimeoutError", "RendezvousConnectionError"}, read: (*scan).rendezvousLine},
	{has: []string{"server socket has failed to"}, re: portUsed, kind: "port_used", raised: true},
	{has: []string{"is setting up NCCL communicator"}, re: noUniqueID, kind: "no_id", fields: []string{"", "root"}, rank: fromGroup,
		raised: true},
	{has: []string{"Memory access fault by GPU"}, read: (*scan).accessFaultLine},
	{has: []string{"HW Exception by GPU"}, re: hwException, kind: "gpu_access", fields: []string{"node", "reason"}, raised: true},
	{has: []string{"o space left on device", "isk quota exceeded"}, read: (*scan).diskLine},
	{has: []string{"ame or service not known", "ailure in name resolution", "gai error"}, re: noName, kind: "no_name",
		fields: []string{"name"}, raised: true},
	{has: []string{"worker group successfully finished", "exits successfully"}, kind: "job_done", calm: true},
	{has: []string{"found NaN in local grad norm"}, when: gradNaN, re: gradNaN, kind: "not_number", fields: []string{"", "device", "node"},
		rank: fromGroup, raised: true},
	{has: []string{"ut of memory", "OutOfMemoryError"}, re: cudaOOM, kind: "cuda_oom", raised: true},
	{has: []string{"CUDA error", "CUDA runtime error", "cudaGetDeviceCount()"}, re: cudaError, kind: "cuda_error", fields: []string{"msg"},
		raised: true},
	{has: []string{"NCCL error", "NCCL Error"}, re: ncclFailed, kind: "nccl_failed", fields: []string{"what", "ver"}, raised: true},
	{has: []string{"Unexpected result nan", "Unexpected result inf"}, re: megatronNaN, kind: "not_number",
		fields: []string{"", "node", "device", "step"}, rank: fromGroup, raised: true},
	{has: []string{" nan", ":nan", "=nan", "NaN", "NAN", " inf", "=inf"}, when: notNumber, kind: "not_number"},
	{has: checkpointWords, when: checkpointDone, re: checkpointDone, kind: "checkpoint", fields: []string{"done"}, calm: true},
	{has: checkpointWords, when: checkpointing, kind: "checkpoint", calm: true},
	{begins: "Last error:", read: (*scan).lastErrorLine},
	{has: []string{"Too many open files"}, kind: "files"},
	{has: []string{"nvidia-nccl-cu"}, re: pipNCCL, kind: "package", fields: []string{"ver"}, rank: fromNobody, calm: true},
	{has: []string{traceback}, read: (*scan).tracebackLine},
	{has: []string{"NCCL_"}, read: (*scan).variableLine},
	{has: []string{"[c10d]", "ProcessGroupNCCL.cpp:", "distributed_c10d.py:"}, kind: "torch", rank: fromNobody, calm: true},
}

// allRules are those of other frameworks where torchRules have no word of a launcher for it.
var allRules = sync.OnceValue(func() []*torchRule {
	var out []*torchRule
	for i := range torchRules {
		if torchRules[i].kind == "gloo" { // launchers' are before it
			for k := range frameworkRules {
				out = append(out, &frameworkRules[k])
			}
		}
		out = append(out, &torchRules[i])
	}
	return out
})

// of reports whether a line is one of the rule's.
func (r *torchRule) of(l *torchText) bool {
	if r.begins != "" {
		return strings.HasPrefix(strings.TrimSpace(l.body), r.begins)
	}
	for _, word := range r.has {
		if strings.Contains(l.text, word) {
			return r.when == nil || r.when.MatchString(l.text)
		}
	}
	return false
}

// named returns the parts of a line by name, and who ends processes in lines of a launcher; nil if there is nothing to name.
func (r *torchRule) named(m []string) (f map[string]string) {
	if len(r.fields) > 0 || r.by != "" {
		f = map[string]string{}
	}
	for i, name := range r.fields {
		if name != "" {
			f[name] = strings.TrimSpace(m[i+1])
		}
	}
	if r.by != "" {
		f["by"] = r.by
	}
	return f
}

// take reads a line of the rule.
func (r *torchRule) take(s *scan, l *torchText) verdict {
	if r.read != nil {
		return r.read(s, l)
	}
	var m []string
	if r.re != nil {
		if m = r.re.FindStringSubmatch(l.text); m == nil {
			return goOn
		}
	}
	f := r.named(m)
	if r.by != "" && f["code"] == "0" {
		return goOn
	}
	if r.raised {
		delete(s.torch.trace, l.prefix)
	}
	rank := l.rank
	switch r.rank {
	case fromGroup:
		rank = number(m[1])
	case fromNobody:
		rank = -1
	}
	return s.torchFound(l, r.kind, rank, !r.calm, f)
}

// torchFound adds a line for the doctor.
func (s *scan) torchFound(l *torchText, kind string, rank int, warn bool, f map[string]string) verdict {
	s.addLine(doctor.Line{At: s.at(l.n, l.text), Kind: kind, Rank: rank, Dev: -1, Warn: warn, Time: clock(l.text), Msg: l.text, F: f,
		Host: s.host})
	return found
}

func number(text string) int { v, _ := strconv.Atoi(text); return v }

// torchLine reads a line of PyTorch, Gloo or a launcher, and reports whether it was one.
func (s *scan) torchLine(n int, text string) bool {
	prefix, body := plain(text)
	l := &torchText{n: n, text: text, prefix: prefix, body: body, rank: launcherRank(prefix + " ")}
	t := &s.torch
	if t.idle++; t.idle > patience {
		*t = torchState{}
	}
	if t.last[prefix] && strings.TrimSpace(body) != "" {
		delete(t.last, prefix)
		return s.lastWords(l, strings.TrimSpace(body), clock(text)) == found
	}
	if v := s.stalledLine(l); v != goOn {
		return v == found
	}
	for _, r := range allRules() {
		if r.of(l) {
			if v := r.take(s, l); v != goOn {
				return v == found
			}
			break
		}
	}
	for _, row := range []func(*torchText) verdict{s.rowLine, s.actorField} {
		if v := row(l); v != goOn {
			return v == found
		}
	}
	return s.raisedLine(l) == found
}

// lastWords are NCCL's, which follow "Last error:".
func (s *scan) lastWords(l *torchText, msg string, at float64) verdict {
	kind, f := classify(msg)
	s.addLine(doctor.Line{At: s.at(l.n, l.text), Kind: kind, Warn: true, Rank: l.rank, Dev: -1, Time: at, Msg: msg, F: f, Host: s.host})
	return found
}

// lastErrorLine is "Last error:", with NCCL's words in the same line or in the next one.
func (s *scan) lastErrorLine(l *torchText) verdict {
	if _, msg, _ := strings.Cut(l.body, "Last error:"); strings.TrimSpace(msg) != "" {
		return s.lastWords(l, strings.TrimSpace(msg), 0)
	}
	s.torch.last = s.torch.begin(s.torch.last, l.prefix)
	return noted
}

// tracebackLine begins a traceback: what was raised follows, behind the same prefix. A line that goes on after it is a quotation.
func (s *scan) tracebackLine(l *torchText) verdict {
	before, after, _ := strings.Cut(l.body, traceback)
	if before != "" && (len(before) > longestWrap || strings.TrimSpace(after) != ":" || strings.TrimSpace(before) == "") {
		return goOn
	}
	if before != "" && !slices.Contains(s.torch.wrapped, before) && len(s.torch.wrapped) < 64 {
		s.torch.wrapped = append(s.torch.wrapped, before)
	}
	s.torch.trace = s.torch.begin(s.torch.trace, l.prefix+before)
	return noted
}

const (
	traceback   = "Traceback (most recent call last)"
	longestWrap = 120 // bytes before a traceback that some launcher or progress bar may have put there
)

// unwrapped takes off what stood before a traceback that is open.
func (t *torchState) unwrapped(l *torchText) *torchText {
	for _, w := range t.wrapped {
		if rest, ok := strings.CutPrefix(l.body, w); ok && t.trace[l.prefix+w] {
			x := *l
			x.prefix, x.body = l.prefix+w, rest
			return &x
		}
	}
	return l
}

// variableLine sets variables of NCCL.
func (s *scan) variableLine(l *torchText) verdict {
	if s.envLine(l.n, l.text) {
		return found
	}
	return noted
}

// workFields are PyTorch's names of what an operation is, and ours.
var workFields = map[string]string{"SeqNum": "seq", "OpType": "op", "NumelIn": "in", "TensorShape": "in", "NumelOut": "out",
	"Timeout": "timeout"}

// watchdogLine is an operation that took too long.
func (s *scan) watchdogLine(l *torchText) verdict {
	i := strings.Index(l.text, "WorkNCCL(")
	m := watchdogRank.FindAllStringSubmatch(l.text[:max(i, 0)], -1)
	if i < 0 || m == nil {
		return noted
	}
	f := map[string]string{}
	for _, x := range workField.FindAllStringSubmatch(l.text[i+len("WorkNCCL("):], -1) {
		if name := workFields[x[1]]; name != "" {
			f[name] = x[2]
		}
	}
	s.groupOf(l.text, f)
	return s.torchFound(l, "watchdog", l.rankOr(m[len(m)-1][1]), true, f)
}

// rankOr is the rank of the prefix, or one that the line names.
func (l *torchText) rankOr(named string) int {
	if l.rank >= 0 {
		return l.rank
	}
	return number(named)
}

// enqueuedLine is how far a process group has come.
func (s *scan) enqueuedLine(l *torchText) verdict {
	m := pgState.FindStringSubmatch(l.text)
	if m == nil {
		return goOn
	}
	f := map[string]string{"enqueued": m[2], "completed": m[3]}
	if w := pgWork.FindStringSubmatch(l.text); w != nil {
		f["seq"] = w[1]
	}
	s.groupOf(l.text, f)
	return s.torchFound(l, "pgstate", l.rankOr(m[1]), false, f)
}

// stuckLine is a watchdog that does not come back from a call.
func (s *scan) stuckLine(l *torchText) verdict {
	f := map[string]string{}
	if m := stuckFor.FindStringSubmatch(l.text); m != nil {
		f["seconds"] = m[1]
	}
	rank := l.rank
	if m := watchdogRank.FindAllStringSubmatch(l.text, -1); m != nil {
		rank = l.rankOr(m[len(m)-1][1])
	}
	return s.torchFound(l, "stuck", rank, true, f)
}

// fingerprintLine is two ranks in different operations.
func (s *scan) fingerprintLine(l *torchText) verdict {
	m := fingerprint.FindStringSubmatch(l.text)
	if m == nil {
		return goOn
	}
	delete(s.torch.trace, l.prefix)
	f := map[string]string{"a": m[1], "b": m[3]}
	for k, x := range map[string]string{"opa": m[2], "opb": m[4]} {
		if o := opType.FindStringSubmatch(x); o != nil {
			f[k] = o[1]
		}
		if o := opShape.FindStringSubmatch(x); o != nil {
			f[k] += " of " + o[1]
		}
		if o := opNumber.FindStringSubmatch(x); o != nil {
			f[k] += " #" + o[1]
		}
	}
	return s.torchFound(l, "fingerprint", l.rank, true, f)
}

// hostLostLine is a scheduler that has lost hosts.
func (s *scan) hostLostLine(l *torchText) verdict {
	m := hostLost.FindStringSubmatch(l.text)
	return s.torchFound(l, "host_lost", -1, true, map[string]string{"hosts": m[1] + m[2] + m[3]})
}

// srunLine is tasks that ended, with the host that says so.
func (s *scan) srunLine(l *torchText) verdict {
	m := srunExit.FindStringSubmatch(l.text)
	if m == nil {
		return goOn
	}
	code := m[4]
	if code == "" {
		code = signals[m[3]]
	}
	for _, r := range taskList(m[2]) {
		s.exited(l, -1, m[1], clock(l.text), map[string]string{"code": code, "task": strconv.Itoa(r), "by": "srun", "what": m[3]})
	}
	return found
}

// accessFaultLine is AMD's runtime. Some launchers put the host before it.
func (s *scan) accessFaultLine(l *torchText) verdict {
	m := accessFault.FindStringSubmatch(l.text)
	if m == nil {
		return goOn
	}
	delete(s.torch.trace, l.prefix)
	host, _, _ := strings.Cut(m[1], ".")
	s.addLine(doctor.Line{At: s.at(l.n, l.text), Kind: "gpu_access", Rank: l.rank, Dev: -1, Warn: true, Time: clock(l.text), Msg: l.text,
		Host: cmp.Or(host, s.host),
		F:    map[string]string{"node": m[2], "addr": m[3], "reason": strings.TrimSpace(m[4])}})
	return found
}

// diskLine is a file system that is full. NCCL and loaders have words of their own for /dev/shm.
func (s *scan) diskLine(l *torchText) verdict {
	m := diskFull.FindStringSubmatch(l.text)
	if m == nil || onShm.MatchString(l.text) {
		return goOn
	}
	delete(s.torch.trace, l.prefix)
	return s.torchFound(l, "disk_full", l.rank, true, map[string]string{"path": m[1]})
}

// mpirunLine is a rank that a signal ended.
func (s *scan) mpirunLine(l *torchText) verdict {
	m := mpiExit.FindStringSubmatch(l.text)
	if m == nil {
		return goOn
	}
	return s.exited(l, number(m[1]), m[3], clock(l.text), map[string]string{"code": "-" + m[4], "pid": m[2], "by": "mpirun"})
}

// exited is the end of a process on a host that the line names.
func (s *scan) exited(l *torchText, rank int, host string, at float64, f map[string]string) verdict {
	host, _, _ = strings.Cut(host, ".")
	s.addLine(doctor.Line{At: s.at(l.n, l.text), Kind: "exit", Rank: rank, Dev: -1, Warn: true, Time: at, Msg: l.text, F: f, Host: host})
	return found
}

// rayLine is a worker of Ray that ended.
func (s *scan) rayLine(l *torchText) verdict {
	f := map[string]string{"code": "unknown", "by": "ray"}
	if m := rayExit.FindStringSubmatch(l.text); m != nil {
		f["addr"], f["pid"] = m[1], m[2]
	}
	return s.torchFound(l, "exit", -1, true, f)
}

// rendezvousLine is a rendezvous that failed, unless it is only code that may say so.
func (s *scan) rendezvousLine(l *torchText) verdict {
	if strings.Contains(l.text, "raise ") || strings.Contains(l.text, "import ") {
		return goOn
	}
	delete(s.torch.trace, l.prefix)
	return s.torchFound(l, "rendezvous", l.rank, true, nil)
}

// groupOf notes the process group that a line names.
func (s *scan) groupOf(text string, f map[string]string) {
	if g := pgGroup.FindStringSubmatch(text); g != nil {
		f["group"], f["grank"] = strings.TrimSpace(g[3]+" "+g[2]), g[4]
	}
}

// taskList reads 3, 8-15 and [0,2-3].
func taskList(text string) []int {
	var out []int
	for _, p := range strings.Split(strings.Trim(text, "[]"), ",") {
		a, b, many := strings.Cut(p, "-")
		lo, err := strconv.Atoi(a)
		hi := lo
		if many {
			hi, _ = strconv.Atoi(b)
		}
		if err != nil || lo < 0 || hi < lo || hi > 1<<20 {
			continue
		}
		for i := lo; i <= hi; i++ {
			out = append(out, i)
		}
	}
	return out
}
