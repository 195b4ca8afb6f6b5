package read

import (
	"cmp"
	"strings"

	"github.com/weft-fabric/weft/observe/doctor/read/internal/regexp"
)

// What other frameworks, shells and launchers say of a job that fails:
//
//	NCCL operation ncclCommInitRank(...) failed: unhandled cuda error. Last NCCL warning(error) log entry (may be unrelated) 'Cuda failure 2'.   XLA
//	Stalled ops:HorovodBroadcast_dense_1_bias_0 [missing ranks: 1]                   Horovod
//	bash: line 1:  3635 Aborted                 (core dumped) python train.py        a shell
//	[n7:186363] Signal: Segmentation fault (11)                                      Open MPI
//	=   EXIT CODE: 139                                                               MPICH

var (
	xlaFailed   = regexp.MustCompile(`NCCL operation (\w+).*? failed: (.+?)(?: - please report[\w ]*)?(?: \(run with[^)]*\))?\.(?:[ .]|$|;)`)
	xlaLast     = regexp.MustCompile(`Last NCCL warning\(error\) log entry \(may be unrelated\) '(.*)'\.`)
	hvdMissing  = regexp.MustCompile(`\[missing ranks: ?([\d, ]+)`)
	hvdStalled  = regexp.MustCompile(`^(?:\[[^\]]*\]<std(?:out|err)>: ?)?(\d+): ?\[`)
	jaxTask     = regexp.MustCompile(`^\s*/job:\w+/replica:\d+/task:(\d+)`)
	jaxHere     = regexp.MustCompile(`heartbeats\):\s*/job:\w+/replica:\d+/task:(\d+)`)
	jaxLost     = regexp.MustCompile(`/task:(\d+) [Hh]eartbeat timeout`)
	jaxStart    = regexp.MustCompile(`Barrier timed out\. Id: (?:PjRT_Client_Connect|\[Init\])`)
	rayPressure = regexp.MustCompile(`[1-9]\d* Workers[^)]*\) killed due to memory pressure \(OOM\)|System memory low at node|exceeds the memory usage threshold|killed due to the node running low on memory`)
	rayNode     = regexp.MustCompile(`\b(?:IP:?|-ip) ([\da-fA-F.:]*[\da-fA-F])`)
	rayField    = regexp.MustCompile(`^\s+(pid|ip): (\S+)\s*$`)
	deathSignal = regexp.MustCompile(`Received (\d+) death signal, shutting down workers`)
	podsEvicted = regexp.MustCompile(`(\d+/\d+ (?:workers?|pods?|replicas?) (?:are|is|were|was) evicted)`)
	noProvider  = regexp.MustCompile(`fi_getinfo: provider (\w+) output empty list`)
	loaderGone  = regexp.MustCompile(`DataLoader worker \(pid\(?s?\)? ?[\d, ]+\) exited unexpectedly`)
	shellEnd    = regexp.MustCompile(`(?:line \d+: +(\d+) |^|>: ?)(Segmentation fault|Aborted|Bus error|Killed|Illegal instruction|Floating point exception)(?: +\(core dumped\)| {4,}\S|\s*$)`)
	ompiSignal  = regexp.MustCompile(`\[([A-Za-z][\w.-]*):(\d+)\] Signal: [\w ]+ \((\d+)\)`)
	heapBroken  = regexp.MustCompile(`^(?:free|malloc|realloc|munmap_chunk)\(\): \w[\w ()-]+$|^double free or corruption|^corrupted (?:size vs\.|double-linked list)`)
	pythonFatal = regexp.MustCompile(`Fatal Python error: (Segmentation fault|Bus error|Aborted|Illegal instruction)|!+ Segfault encountered !+`)
	mpiAbort    = regexp.MustCompile(`MPI_ABORT was invoked on rank (\d+)`)
	mpichExit   = regexp.MustCompile(`^=?\s*EXIT CODE: +(\d+)|^\s*Exit [Cc]ode: +(\d+)`)
	hydraHost   = regexp.MustCompile(`^=?\s*PID \d+ RUNNING AT ([\w.-]+)`)
	hydraSignal = regexp.MustCompile(`EXIT STRING: .*\(signal (\d+)\)`)
	lateBeat    = regexp.MustCompile(`\[RankMonitorServer:(\d+)\].*(?:id not get \w+ heartbeat\. Waited|has been open for) ([\d.]+)`)
	member      = regexp.MustCompile(`GLOBAL_RANK: (\d+), MEMBER: \d+/(\d+)`)
	noMR        = regexp.MustCompile(`Couldn.t (?:allocate|register) MR(?: with error=(\d+))?`)
	actorDied   = regexp.MustCompile(`(?:RayActorError|ActorDiedError): The actor (?:died|is dead)|The actor is dead because its worker process has died`)
	diedVLLM    = regexp.MustCompile(`(?:Worker|Engine|proc)\S* ?.* died unexpectedly`)
	storeLost   = regexp.MustCompile(`(?:failed on SocketImpl\(fd=\d+,.*remote=\[?([^\]]*?)\]?:(\d+)\)|TCPStore.*(?:Broken pipe|Connection reset by peer|failed to recv, got 0 bytes|Connection was likely closed))`)
	callFailed  = regexp.MustCompile(`(?:nccl\w+ failed|\bNCCL): ((?:unhandled|internal|invalid|remote)[\w /-]+)`)
)

var frameworkRules = []torchRule{
	{has: []string{"NCCL operation"}, read: (*scan).xlaLine},
	{has: []string{"[missing ranks:"}, re: hvdMissing, kind: "barrier", fields: []string{"ranks"}},
	{has: []string{"Barrier timed out", "imed out task names:"}, read: (*scan).jaxAbsent},
	{has: []string{"stopped sending heartbeats"}, read: (*scan).jaxUnhealthy},
	{has: []string{"heartbeat timeout", "Heartbeat timeout"}, when: jaxLost, re: jaxLost, kind: "exit", fields: []string{""}, by: "jax",
		rank: fromGroup},
	{has: []string{"memory pressure (OOM)", "System memory low at", "memory usage threshold", "node running low on memory"}, when: rayPressure,
		read: (*scan).rayMemory},
	{has: []string{"death signal, shutting down"}, when: deathSignal, read: func(s *scan, l *torchText) verdict {
		return s.torchFound(l, "cancelled", -1, true,
			map[string]string{"why": "signal " + deathSignal.FindStringSubmatch(l.text)[1] + " to torchrun's agent"})
	}},
	{has: []string{" evicted"}, when: podsEvicted, re: podsEvicted, kind: "evicted", fields: []string{"why"}, rank: fromNobody},
	{has: []string{"output empty list"}, when: noProvider, re: noProvider, kind: "no_provider", fields: []string{"provider"}, calm: true},
	{has: []string{"DataLoader worker (pid"}, when: loaderGone, read: func(s *scan, l *torchText) verdict {
		delete(s.torch.trace, l.prefix)
		return s.exited(l, l.rank, s.host, clock(l.text), map[string]string{"code": "unknown", "by": "loader"})
	}},
	{has: []string{"Cuda failure "}, read: func(s *scan, l *torchText) verdict {
		_, msg, _ := strings.Cut(l.text, "Cuda failure ")
		return s.lastWords(l, "Cuda failure "+strings.TrimSpace(msg), clock(l.text))
	}},
	{begins: "Stalled ranks:", read: func(s *scan, _ *torchText) verdict { return s.torch.list("barrier") }},
	{has: []string{"Segmentation fault", "Aborted", "Bus error", "Killed", "Illegal instruction", "Floating point exception"}, when: shellEnd,
		read: (*scan).shellLine},
	{has: []string{"] Signal: "}, when: ompiSignal, read: (*scan).ompiLine},
	{has: []string{"(): ", "double free or", "corrupted "}, when: heapBroken, read: func(s *scan, l *torchText) verdict {
		return s.exited(l, l.rank, s.host, clock(l.text), map[string]string{"code": "-6", "by": "libc", "what": "heap"})
	}},
	{has: []string{"Fatal Python error", "Segfault encountered"}, when: pythonFatal, read: func(s *scan, l *torchText) verdict {
		code := signals[pythonFatal.FindStringSubmatch(l.text)[1]]
		if code == "" {
			code = "-11"
		}
		return s.exited(l, l.rank, s.host, clock(l.text), map[string]string{"code": code, "by": "python"})
	}},
	{has: []string{"MPI_ABORT was invoked"}, re: mpiAbort, read: func(s *scan, l *torchText) verdict {
		return s.exited(l, number(mpiAbort.FindStringSubmatch(l.text + "MPI_ABORT was invoked on rank 0")[1]), "", clock(l.text),
			map[string]string{"code": "1", "by": "mpirun"})
	}},
	{has: []string{"GLOBAL_RANK: "}, when: member, re: member, kind: "member", fields: []string{"", "n"}, rank: fromGroup, calm: true},
	{has: []string{"GPU buffer"}, read: func(s *scan, _ *torchText) verdict { s.gpuBuffer = true; return noted }},
	{has: []string{"allocate MR", "register MR"}, when: noMR, read: func(s *scan, l *torchText) verdict {
		return s.torchFound(l, "no_mr", l.rank, true, map[string]string{"gpu": map[bool]string{true: "1"}[s.gpuBuffer]})
	}},
	{has: []string{"RayActorError", "ActorDiedError", "The actor is dead because"}, when: actorDied, read: (*scan).actorLine},
	{has: []string{"RUNNING AT "}, when: hydraHost, read: func(s *scan, l *torchText) verdict {
		s.torch.ranAt = hydraHost.FindStringSubmatch(l.text)[1]
		return noted
	}},
	{has: []string{"EXIT CODE:", "Exit Code:", "Exit code:"}, when: mpichExit, read: (*scan).mpichLine},
	{has: []string{"EXIT STRING:"}, when: hydraSignal, read: (*scan).hydraLine},
	{has: []string{"[RankMonitorServer:"}, when: lateBeat, re: lateBeat, kind: "stuck", fields: []string{"", "seconds"}, rank: fromGroup,
		by: "nvrx"},
	{has: []string{"died unexpectedly"}, when: diedVLLM, read: func(s *scan, l *torchText) verdict {
		return s.exited(l, l.rank, s.host, clock(l.text), map[string]string{"code": "unknown", "by": "vllm"})
	}},
	{has: []string{"SocketImpl(", "TCPStore"}, when: storeLost, re: storeLost, kind: "store_lost", fields: []string{"addr", "port"},
		raised: true},
	{has: []string{"failed: unhandled", "failed: internal", "failed: invalid", "failed: remote", "NCCL: unhandled", "NCCL: internal",
		"NCCL: invalid"}, when: callFailed, re: callFailed, kind: "nccl_failed", fields: []string{"what"}, raised: true},
}

// mpichLine is the exit code of a process of MPICH.
func (s *scan) mpichLine(l *torchText) verdict {
	m := mpichExit.FindStringSubmatch(l.text)
	code, host := m[1]+m[2], cmp.Or(s.torch.ranAt, s.host)
	s.torch.ranAt = ""
	if code == "0" {
		return noted
	}
	return s.exited(l, l.rank, host, clock(l.text), map[string]string{"code": code, "by": "mpirun"})
}

// hydraLine says that the exit code, which was printed before, is a signal.
func (s *scan) hydraLine(l *torchText) verdict {
	signal := hydraSignal.FindStringSubmatch(l.text)[1]
	for i := len(s.c.Lines) - 1; i >= 0; i-- {
		x := &s.c.Lines[i]
		if x.At.File == s.file && x.Kind == "exit" && x.F["by"] == "mpirun" {
			if x.F["code"] == signal {
				x.F["code"] = "-" + signal
			}
			break
		}
	}
	return noted
}

// frameworkWords are of which a line must have one to be looked at.
var frameworkWords = []string{"[missing ranks:", "imed out task names:", "Barrier timed out", "eartbeat timeout",
	"stopped sending heartbeats", "/replica:", "memory pressure (OOM)", "System memory low at", "memory usage threshold",
	"running low on memory", "output empty list", "death signal, shutting down", " evicted", "Cuda failure ", "Stalled ranks:",
	"(core dumped)", " Killed  ", "Segmentation fault", "Bus error", "Aborted", "] Signal: ", "free(): ", "malloc(): ", "munmap_chunk",
	"double free or", "corrupted size", "corrupted double", "Fatal Python error",
	"Segfault encountered", "MPI_ABORT", "RUNNING AT ", "EXIT STRING:", "[RankMonitorServer:",
	"EXIT CODE:", "Exit Code:", "Exit code:", "GLOBAL_RANK: ", "GPU buffer", "allocate MR", "register MR",
	"RayActorError", "ActorDiedError", "The actor is dead", "died unexpectedly", "SocketImpl(", "TCPStore", "failed: unhandled",
	"failed: internal", "failed: invalid", "failed: remote"}

// xlaLine is XLA's, with NCCL's last words in it.
func (s *scan) xlaLine(l *torchText) verdict {
	m := xlaFailed.FindStringSubmatch(l.text)
	if m == nil {
		return goOn
	}
	delete(s.torch.trace, l.prefix)
	s.torchFound(l, "nccl_failed", l.rank, true, map[string]string{"what": strings.TrimSpace(m[2])})
	if w := xlaLast.FindStringSubmatch(l.text); w != nil && w[1] != "" {
		s.lastWords(l, w[1], clock(l.text))
	}
	return found
}

// shellLine is a shell that tells how a process ended.
func (s *scan) shellLine(l *torchText) verdict {
	m := shellEnd.FindStringSubmatch(l.text)
	code := signals[m[2]]
	if code == "" {
		code = map[string]string{"Illegal instruction": "-4", "Floating point exception": "-8"}[m[2]]
	}
	return s.exited(l, l.rank, s.host, clock(l.text), map[string]string{"code": code, "pid": m[1], "by": "shell"})
}

// ompiLine is Open MPI's handler of signals.
func (s *scan) ompiLine(l *torchText) verdict {
	m := ompiSignal.FindStringSubmatch(l.text)
	return s.exited(l, l.rank, m[1], clock(l.text), map[string]string{"code": "-" + m[3], "pid": m[2], "by": "mpirun"})
}

// rayMemory is Ray, which ends workers before the kernel does.
func (s *scan) rayMemory(l *torchText) verdict {
	delete(s.torch.trace, l.prefix)
	f := map[string]string{"by": "ray"}
	if m := rayNode.FindStringSubmatch(l.text); m != nil {
		f["addr"] = m[1]
	}
	return s.torchFound(l, "oom_event", -1, true, f)
}

// actorLine is an actor of Ray that died. The lines that follow name its process and host.
func (s *scan) actorLine(l *torchText) verdict {
	delete(s.torch.trace, l.prefix)
	f := map[string]string{"code": "unknown", "by": "ray"}
	s.torch.actor, s.torch.actorLines, s.torch.idle = f, 0, 0
	return s.exited(l, l.rank, s.host, clock(l.text), f)
}

// actorField adds what Ray says of the actor that the lines before are about.
func (s *scan) actorField(l *torchText) verdict {
	t := &s.torch
	if t.actor == nil {
		return goOn
	}
	if t.actorLines++; t.actorLines > 8 {
		t.actor = nil
		return goOn
	}
	m := rayField.FindStringSubmatch(l.body)
	if m == nil {
		return goOn
	}
	t.actor[map[string]string{"pid": "pid", "ip": "addr"}[m[1]]] = m[2]
	return noted
}

// stalledLine is a rank of Horovod's or JAX's list of those that others wait for.
func (s *scan) stalledLine(l *torchText) verdict {
	if s.torch.stalled == 0 {
		return goOn
	}
	s.torch.stalled--
	m := hvdStalled.FindStringSubmatch(l.text)
	if m == nil {
		m = jaxTask.FindStringSubmatch(l.body)
	}
	switch {
	case m == nil:
		return goOn
	case s.torch.listed == "exit":
		return s.torchFound(l, "exit", number(m[1]), true, map[string]string{"code": "unknown", "by": "jax"})
	}
	return s.torchFound(l, s.torch.listed, -1, true, map[string]string{"ranks": m[1]})
}

// jaxUnhealthy begins JAX's list of tasks that died, or has the one there is.
func (s *scan) jaxUnhealthy(l *torchText) verdict {
	if m := jaxHere.FindStringSubmatch(l.text); m != nil {
		return s.torchFound(l, "exit", number(m[1]), true, map[string]string{"code": "unknown", "by": "jax"})
	}
	return s.torch.list("exit")
}

// list begins a list of ranks, one per line.
func (t *torchState) list(kind string) verdict {
	t.stalled, t.idle, t.listed = 64, 0, kind
	return noted
}

// jaxAbsent begins JAX's list of tasks that did not come to a barrier. Before the first of them there is no job yet.
func (s *scan) jaxAbsent(l *torchText) verdict {
	if strings.Contains(l.text, "Barrier timed out") {
		s.torch.starting = jaxStart.MatchString(l.text)
	}
	switch {
	case !strings.Contains(l.text, "imed out task names:"):
		return noted
	case s.torch.starting:
		return s.torch.list("absent")
	}
	return s.torch.list("barrier")
}
