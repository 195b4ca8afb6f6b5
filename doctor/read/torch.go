package read

import (
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/doctor"
	"github.com/weft-fabric/weft/doctor/read/internal/regexp"
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
	watchdogRank = regexp.MustCompile(`[Rr]ank (\d+)\]`)
	workField    = regexp.MustCompile(`(\w+)(?:\(ms\))?=(\[[^\]]*\]|[^,)]*)`)
	pgGroup      = regexp.MustCompile(`PG (?:ID (\d+) )?(?:PG )?(?:GUID )?([\w:.-]+?)(?:\(([^)]*)\))? Rank (\d+)`)
	pgState      = regexp.MustCompile(`[Rr]ank (\d+)\].*[Ll]ast enqueued (?:NCCL )?work: (-?\d+), last completed (?:NCCL )?work: (-?\d+)`)
	pgWork       = regexp.MustCompile(`at work(?: sequence id)?: (\d+)`)
	exitCode     = regexp.MustCompile(`failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)`)
	tableRow     = regexp.MustCompile(`^(?:\[[^\]]*\]:?)?\s*(time|host|rank|exitcode)\s+: (\S+)(?: \((?:local_rank|pid): (\d+)\))?`)
	srunExit     = regexp.MustCompile(`srun: error: ([\w.-]+): tasks? ([\d,\[\]-]+): (Killed|Terminated|Aborted|Segmentation fault|Bus error|Out Of Memory|Exited with exit code (\d+)|[A-Z][\w ]+)`)
	slurmEnd     = regexp.MustCompile(`slurmstepd: error: \*\*\* (?:JOB|STEP) [\d.]+ ON ([\w.-]+) CANCELLED AT \S+(?: DUE TO ([A-Z ]+\b))?`)
	slurmOOM     = regexp.MustCompile(`slurmstepd: error: Detected \d+ oom[-_]kill event`)
	mpiExit      = regexp.MustCompile(`noticed that process rank (\d+) with PID (\d+) on node ([\w.-]+) exited on signal (\d+)`)
	returnCode   = regexp.MustCompile(`exits with return code = (-?\d+)`)
	statusCode   = regexp.MustCompile(`Process (\d+) exit(?:ed)? with status code (\d+)`)
	rayExit      = regexp.MustCompile(`A worker died or was killed while executing.*Worker IP address: (\S+) .*Worker PID: (\d+)`)
	gloo         = regexp.MustCompile(`\[Gloo\] Rank (\d+) is connected to (\d+) peer ranks`)
	glooLost     = regexp.MustCompile(`gloo/transport/tcp/\S+\] (?:Connection closed by peer|Read error|Write error) ?\[([^\]]+)\]`)
	glooLate     = regexp.MustCompile(`gloo/\S+\] Timed out waiting (\d+)ms for (?:recv|send) operation`)
	glooJoin     = regexp.MustCompile(`(?i)gloo.*(?:connectFullMesh failed|Unable to resolve hostname to a|Unable to find address for|timed out connecting)`)
	barrier      = regexp.MustCompile(`Ranks? ([\d, ]+) failed to pass monitoredBarrier`)
	lagging      = regexp.MustCompile(`ranks \[([\d, ]+)\] are the lagging ranks`)
	fingerprint  = regexp.MustCompile(`Rank (\d+) is running collective: (?:CollectiveFingerPrint\()?(.*?), ?but Rank (\d+) is running collective: (?:CollectiveFingerPrint\()?(.*)`)
	opType       = regexp.MustCompile(`OpType=(\w+)`)
	opNumber     = regexp.MustCompile(`SequenceNumber=(\d+)`)
	opShape      = regexp.MustCompile(`TensorShape=(\[[^\]]*\])`)
	stuckFor     = regexp.MustCompile(`watchdog got stuck for (\d+) seconds`)
	joined       = regexp.MustCompile(`[Tt]imed out after (\d+) seconds waiting for clients\. (\d+)/(\d+) clients joined`)
	noMaster     = regexp.MustCompile(`client socket has timed out after \S+ while trying to connect to \(?\[?([^\]\s,)]+)\]?[,:]? ?(\d*)`)
	portUsed     = regexp.MustCompile(`server socket has failed to (?:listen|bind).*(?:EADDRINUSE|[Aa]ddress already in use)`)
	noUniqueID   = regexp.MustCompile(`\[(\d+)\] is setting up NCCL communicator and retrieving ncclUniqueId from \[(\d+)\]`)
	ncclFailed   = regexp.MustCompile(`NCCL [Ee]rror(?: in)?: ?(?:\S+:\d+, )?((?:unhandled|internal|invalid|remote)[\w /-]+?)(?: \(run with[^)]*\))?(?:, NCCL version (\d+\.\d+\.\d+)|$|[,.:])`)
	pipNCCL      = regexp.MustCompile(`nvidia-nccl-cu\d+(?:==| +)(\d+\.\d+\.\d+)`)
	cudaOOM      = regexp.MustCompile(`(?:CUDA out of memory|torch\.cuda\.OutOfMemoryError|torch\.OutOfMemoryError)`)
	cudaError    = regexp.MustCompile(`CUDA (?:runtime )?error(?: \(\d+\))?: ([a-z][\w ',/-]+)`)
	loaderBus    = regexp.MustCompile(`DataLoader worker \(pid\(?s?\)? ?\d+.*killed by signal: Bus error`)
	loaderKill   = regexp.MustCompile(`DataLoader worker \(pid\(?s?\)? ?\d+.*killed by signal: Killed`)
	pythonRaise  = regexp.MustCompile(`^((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Failure|Timeout|Expired))(?:: (.*))?$`)
	launcherHead = regexp.MustCompile(`^(?:\[\d+,\d+\]<std(?:out|err)>: ?|\([^)]*pid=\d+[^)]*\) |\[(?:default|rank|RANK ?)\d+\]:? ?|\[pod/[^\]]+\] |\d+: |\[\d+\](?:<std(?:out|err)>:)? ?|(?:[A-Za-z][\w.-]*-\d+): |(?:ERROR|CRITICAL|WARNING|INFO) [\d-]+ [\d:.,]+ \[?[\w.]+:\d+\] ?)+`)
	containerTop = regexp.MustCompile(`^\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d)? (?:std(?:out|err) [FP] )?`)
)

// torchState is what the lines so far leave open.
type torchState struct {
	trace map[string]bool   // a traceback is open behind this prefix
	last  map[string]bool   // "Last error:" stood behind this prefix
	row   map[string]string // of the launcher's table of failures
	rows  int               // lines since the table began
	idle  int               // lines since something was opened
	root  bool              // the table's row is the first failure
}

// patience is for how many lines what was begun is expected to go on. Until then all lines are
// looked at, which takes ten times as long.
const patience = 20_000

func (t *torchState) open() bool { return len(t.trace)+len(t.last) > 0 || t.row != nil }

// plain takes launchers' prefixes off a line and gives both.
func plain(text string) (prefix, rest string) {
	rest = text
	for _, re := range []*regexp.Regexp{containerTop, launcherHead} {
		if m := re.FindString(rest); m != "" {
			rest = rest[len(m):]
		}
	}
	prefix = text[:len(text)-len(rest)]
	if m := containerTop.FindString(prefix); m != "" {
		prefix = prefix[len(m):]
	}
	return strings.TrimSpace(prefix), rest
}

// signals by the words of launchers.
var signals = map[string]string{"Killed": "-9", "Terminated": "-15", "Aborted": "-6", "Segmentation fault": "-11", "Bus error": "-7", "Out Of Memory": "-9"}

func (s *scan) torchLine(n int, text string) bool {
	prefix, body := plain(text)
	prefixRank := launcherRank(prefix + " ")
	add := func(kind string, rank int, warn bool, f map[string]string) bool {
		s.addLine(doctor.Line{At: s.at(n, text), Kind: kind, Rank: rank, Dev: -1, Warn: warn, Time: clock(text), Msg: text, F: f, Host: s.host})
		return true
	}
	num := func(t string) int { v, _ := strconv.Atoi(t); return v }
	t := &s.torch
	if t.idle++; t.idle > patience {
		*t = torchState{}
	}
	// NCCL's last words follow in a line of their own.
	if t.last[prefix] && strings.TrimSpace(body) != "" {
		delete(t.last, prefix)
		msg := strings.TrimSpace(body)
		kind, f := classify(msg)
		if kind == "ib_wc" {
			moreOfCompletion(f)
		}
		s.addLine(doctor.Line{At: s.at(n, text), Kind: kind, Warn: true, Rank: prefixRank, Dev: -1, Time: clock(text), Msg: msg, F: f, Host: s.host})
		return true
	}
	switch {
	case strings.Contains(text, "Watchdog caught collective"):
		i := strings.Index(text, "WorkNCCL(")
		m := watchdogRank.FindAllStringSubmatch(text[:max(i, 0)], -1)
		if i < 0 || m == nil {
			return false
		}
		f := map[string]string{}
		for _, x := range workField.FindAllStringSubmatch(text[i+len("WorkNCCL("):], -1) {
			switch x[1] {
			case "SeqNum":
				f["seq"] = x[2]
			case "OpType":
				f["op"] = x[2]
			case "NumelIn":
				f["in"] = x[2]
			case "NumelOut":
				f["out"] = x[2]
			case "TensorShape":
				f["in"] = x[2]
			case "Timeout":
				f["timeout"] = x[2]
			}
		}
		rank := num(m[len(m)-1][1])
		s.groupOf(text, f)
		if prefixRank >= 0 {
			rank = prefixRank
		}
		return add("watchdog", rank, true, f)
	case strings.Contains(text, "ast enqueued"):
		if m := pgState.FindStringSubmatch(text); m != nil {
			f := map[string]string{"enqueued": m[2], "completed": m[3]}
			if w := pgWork.FindStringSubmatch(text); w != nil {
				f["seq"] = w[1]
			}
			s.groupOf(text, f)
			rank := num(m[1])
			if prefixRank >= 0 {
				rank = prefixRank
			}
			return add("pgstate", rank, false, f)
		}
	case strings.Contains(text, "watchdog got stuck"), strings.Contains(text, "Heartbeat monitor timed out"), strings.Contains(text, "ProcessGroupNCCL watchdog hang"):
		f := map[string]string{}
		if m := stuckFor.FindStringSubmatch(text); m != nil {
			f["seconds"] = m[1]
		}
		rank := prefixRank
		if m := watchdogRank.FindAllStringSubmatch(text, -1); m != nil && rank < 0 {
			rank = num(m[len(m)-1][1])
		}
		return add("stuck", rank, true, f)
	case strings.Contains(text, "monitoredBarrier"):
		if m := barrier.FindStringSubmatch(text); m != nil {
			return add("barrier", prefixRank, true, map[string]string{"ranks": m[1]})
		}
	case strings.Contains(text, "lagging ranks"):
		if m := lagging.FindStringSubmatch(text); m != nil {
			return add("barrier", prefixRank, true, map[string]string{"ranks": m[1]})
		}
	case strings.Contains(text, "is running collective"):
		if m := fingerprint.FindStringSubmatch(text); m != nil {
			delete(t.trace, prefix)
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
			return add("fingerprint", prefixRank, true, f)
		}
	case strings.Contains(text, "failed (exitcode:"):
		if m := exitCode.FindStringSubmatch(text); m != nil {
			return add("exit", -1, true, map[string]string{"code": m[1], "local": m[2], "pid": m[3], "by": "torchrun"})
		}
	case strings.Contains(text, "Root Cause (first observed failure)"):
		t.root, t.row, t.rows, t.idle = true, map[string]string{}, 0, 0
		return false
	case strings.HasPrefix(strings.TrimSpace(body), "Failures:"):
		t.root, t.row, t.rows, t.idle = false, map[string]string{}, 0, 0
		return false
	case strings.Contains(text, "srun: error:"):
		if m := srunExit.FindStringSubmatch(text); m != nil {
			code := m[4]
			if code == "" {
				code = signals[m[3]]
			}
			host, _, _ := strings.Cut(m[1], ".")
			for _, r := range taskList(m[2]) {
				s.addLine(doctor.Line{At: s.at(n, text), Kind: "exit", Rank: -1, Dev: -1, Warn: true, Time: clock(text), Msg: text, Host: host,
					F: map[string]string{"code": code, "task": strconv.Itoa(r), "by": "srun", "what": m[3]}})
			}
			return true
		}
	case strings.Contains(text, "slurmstepd: error:"):
		if m := slurmEnd.FindStringSubmatch(text); m != nil {
			return add("cancelled", -1, true, map[string]string{"why": strings.TrimSpace(m[2]), "host": m[1]})
		}
		if slurmOOM.MatchString(text) {
			return add("oom_event", -1, true, nil)
		}
	case strings.Contains(text, "OOMKilled"):
		return add("oom_event", prefixRank, true, nil)
	case strings.Contains(text, "noticed that process rank"):
		if m := mpiExit.FindStringSubmatch(text); m != nil {
			host, _, _ := strings.Cut(m[3], ".")
			s.addLine(doctor.Line{At: s.at(n, text), Kind: "exit", Rank: num(m[1]), Dev: -1, Warn: true, Time: clock(text), Msg: text, Host: host, F: map[string]string{"code": "-" + m[4], "pid": m[2], "by": "mpirun"}})
			return true
		}
	case strings.Contains(text, "exits with return code"):
		if m := returnCode.FindStringSubmatch(text); m != nil && m[1] != "0" {
			return add("exit", -1, true, map[string]string{"code": m[1], "by": "deepspeed"})
		}
	case strings.Contains(text, "with status code"):
		if m := statusCode.FindStringSubmatch(text); m != nil && m[2] != "0" {
			return add("exit", num(m[1]), true, map[string]string{"code": m[2], "by": "horovod"})
		}
	case strings.Contains(text, "A worker died or was killed"):
		f := map[string]string{"code": "unknown", "by": "ray"}
		if m := rayExit.FindStringSubmatch(text); m != nil {
			f["addr"], f["pid"] = m[1], m[2]
		}
		return add("exit", -1, true, f)
	case strings.Contains(text, "DataLoader worker") && strings.Contains(text, "killed by signal"):
		switch {
		case loaderBus.MatchString(text):
			return add("loader_shm", prefixRank, true, nil)
		case loaderKill.MatchString(text):
			return add("oom_event", prefixRank, true, nil)
		}
	case strings.Contains(text, "[Gloo] Rank"):
		if m := gloo.FindStringSubmatch(text); m != nil {
			return add("gloo", num(m[1]), false, map[string]string{"peers": m[2]})
		}
	case strings.Contains(text, "gloo") && glooLost.MatchString(text):
		delete(t.trace, prefix)
		return add("gloo_lost", prefixRank, true, map[string]string{"peer": glooLost.FindStringSubmatch(text)[1]})
	case strings.Contains(text, "gloo") && glooLate.MatchString(text):
		delete(t.trace, prefix)
		return add("gloo_late", prefixRank, true, map[string]string{"ms": glooLate.FindStringSubmatch(text)[1]})
	case (strings.Contains(text, "gloo") || strings.Contains(text, "Gloo")) && glooJoin.MatchString(text):
		delete(t.trace, prefix)
		return add("gloo_join", prefixRank, true, nil)
	case strings.Contains(text, "clients joined"):
		if m := joined.FindStringSubmatch(text); m != nil {
			delete(t.trace, prefix)
			return add("not_joined", prefixRank, true, map[string]string{"have": m[2], "want": m[3]})
		}
	case strings.Contains(text, "client socket has timed out"):
		if m := noMaster.FindStringSubmatch(text); m != nil {
			delete(t.trace, prefix)
			return add("no_master", prefixRank, true, map[string]string{"addr": m[1], "port": m[2]})
		}
	case strings.Contains(text, "RendezvousTimeoutError"), strings.Contains(text, "RendezvousConnectionError"):
		if !strings.Contains(text, "raise ") && !strings.Contains(text, "import ") {
			delete(t.trace, prefix)
			return add("rendezvous", prefixRank, true, nil)
		}
	case strings.Contains(text, "server socket has failed to"):
		if portUsed.MatchString(text) {
			delete(t.trace, prefix)
			return add("port_used", prefixRank, true, nil)
		}
	case strings.Contains(text, "is setting up NCCL communicator"):
		if m := noUniqueID.FindStringSubmatch(text); m != nil {
			delete(t.trace, prefix)
			return add("no_id", num(m[1]), true, map[string]string{"root": m[2]})
		}
	case strings.Contains(text, "ut of memory") || strings.Contains(text, "OutOfMemoryError"):
		if cudaOOM.MatchString(text) {
			delete(t.trace, prefix)
			return add("cuda_oom", prefixRank, true, nil)
		}
	case strings.Contains(text, "CUDA error") || strings.Contains(text, "CUDA runtime error"):
		if m := cudaError.FindStringSubmatch(text); m != nil {
			delete(t.trace, prefix)
			return add("cuda_error", prefixRank, true, map[string]string{"msg": strings.TrimSpace(m[1])})
		}
	case strings.Contains(text, "NCCL error"), strings.Contains(text, "NCCL Error"):
		if m := ncclFailed.FindStringSubmatch(text); m != nil {
			delete(t.trace, prefix)
			return add("nccl_failed", prefixRank, true, map[string]string{"what": strings.TrimSpace(m[1]), "ver": m[2]})
		}
	case strings.HasPrefix(strings.TrimSpace(body), "Last error:"):
		if t.last == nil {
			t.last = map[string]bool{}
		}
		if _, msg, _ := strings.Cut(body, "Last error:"); strings.TrimSpace(msg) != "" {
			kind, f := classify(strings.TrimSpace(msg))
			s.addLine(doctor.Line{At: s.at(n, text), Kind: kind, Warn: true, Rank: prefixRank, Dev: -1, Msg: strings.TrimSpace(msg), F: f, Host: s.host})
			return true
		}
		t.idle = 0
		if len(t.last) < 1<<16 {
			t.last[prefix] = true
		}
		return false
	case strings.Contains(text, "Too many open files"):
		return add("files", prefixRank, true, nil)
	case strings.Contains(text, "nvidia-nccl-cu"):
		if m := pipNCCL.FindStringSubmatch(text); m != nil {
			return add("package", -1, false, map[string]string{"ver": m[1]})
		}
	case strings.HasPrefix(body, "Traceback (most recent call last)"):
		if t.trace == nil {
			t.trace = map[string]bool{}
		}
		t.idle = 0
		if len(t.trace) < 1<<16 {
			t.trace[prefix] = true
		}
		return false
	case strings.Contains(text, "NCCL_"):
		return s.envLine(n, text)
	}
	if t.rows++; t.rows > 64 {
		t.row = nil
	}
	if t.row != nil {
		if m := tableRow.FindStringSubmatch(body); m != nil {
			t.row[m[1]] = m[2]
			if m[1] == "exitcode" {
				host, _, _ := strings.Cut(t.row["host"], ".")
				if strings.HasPrefix(host, "localhost") {
					host = ""
				}
				rank := -1
				if r, err := strconv.Atoi(t.row["rank"]); err == nil {
					rank = r
				}
				f := map[string]string{"code": m[2], "pid": m[3], "by": "torchrun"}
				if t.root {
					f["root"] = "1"
				}
				at := clock(strings.ReplaceAll(t.row["time"], "_", " "))
				t.row, t.rows = map[string]string{}, 0
				s.addLine(doctor.Line{At: s.at(n, text), Kind: "exit", Rank: rank, Dev: -1, Warn: true, Time: at, Msg: text, F: f, Host: host})
				return true
			}
			return false
		}
	}
	// The line behind a traceback that is not indented is what was raised.
	if t.trace[prefix] && body != "" && body[0] != ' ' && body[0] != '\t' {
		m := pythonRaise.FindStringSubmatch(strings.TrimSpace(body))
		if m == nil {
			return false
		}
		delete(t.trace, prefix)
		name := m[1][strings.LastIndexByte(m[1], '.')+1:]
		switch name {
		case "ChildFailedError", "DistBackendError", "DistNetworkError", "DistStoreError", "DistError", "SignalException", "KeyboardInterrupt", "SystemExit", "CalledProcessError", "ProcessExitedException", "ProcessRaisedException", "RayTaskError", "BrokenPipeError", "ConnectionResetError":
			return false
		}
		return add("exception", prefixRank, true, map[string]string{"type": m[1], "msg": m[2]})
	}
	return false
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
		if err != nil || hi < lo || hi-lo > 1<<17 {
			continue
		}
		for i := lo; i <= hi; i++ {
			out = append(out, i)
		}
	}
	return out
}
