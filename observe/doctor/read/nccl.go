package read

import (
	"bytes"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/doctor/read/internal/regexp"
)

// NCCL's lines, in any launcher's clothes:
//
//	[1,12]<stderr>: n0:4242:4311 [3] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>
//	└ launcher ──┘  └host:pid:tid┘ └device of the thread, not the rank
//
// The words " NCCL INFO " are looked for anywhere and what stands before them is
// read backwards. Two processes that write at once can leave two messages on one
// line, and both are read.

var (
	ncclOrigin = regexp.MustCompile(`([A-Za-z0-9_][A-Za-z0-9_.-]*):(\d+):(\d+)(?: \[(-?\d+)\])?`)
	ncclSource = regexp.MustCompile(`(\S+\.(?:cc|c|h|cpp|cu)):(\d+)`)
	bareVer    = regexp.MustCompile(`[NR]CCL version (\d+\.\d+\.\d+)([^+\s]*)\+(?:cuda|hip)(\S*)`)
	mpiRank    = regexp.MustCompile(`\[\d+,(\d+)\]<std(?:out|err)>`)
	wordRank   = regexp.MustCompile(`\[[Rr]ank:? ?(\d+)\]|^(?i:rank)[ _-]?(\d+)[:|] `)
	barRank    = regexp.MustCompile(`^[A-Za-z][\w.-]*:(\d+)\|`)
	srunRank   = regexp.MustCompile(`^(\d+): `)
	mpichRank  = regexp.MustCompile(`^\[(\d+)\](?:<std(?:out|err)>:)? ?(?:$|[A-Za-z0-9_.-]+:\d+:\d+)`)
)

// ncclMarks finds " NCCL INFO " and the like: where the word before it ends, where the
// level stands, and where the message begins.
func ncclMarks(text string) [][4]int {
	var out [][4]int
	for from := 0; ; {
		i := strings.Index(text[from:], "NCCL ")
		if i < 0 {
			return out
		}
		i += from
		from = i + 5
		if i > 0 && text[i-1] != ' ' && text[i-1] != ']' {
			continue
		}
		for _, level := range [...]string{"INFO", "WARN", "CALL", "TRACE", "ABORT", "HINT"} {
			if rest := text[i+5:]; strings.HasPrefix(rest, level) && len(rest) > len(level) && rest[len(level)] == ' ' {
				from = i + 5 + len(level) + 1
				out = append(out, [4]int{max(i-1, 0), from, i + 5, i + 5 + len(level)})
				break
			}
		}
	}
}

// mayNameRank rules most prefixes out, so that the expressions below need not run on every line.
func mayNameRank(prefix string) bool {
	return prefix[0] == '[' || prefix[0] >= '0' && prefix[0] <= '9' || strings.Contains(prefix, "]<std") ||
		strings.Contains(prefix, "ank") || strings.Contains(prefix, "RANK") || strings.Contains(prefix, "|")
}

// launcherRank is the rank that a launcher's prefix names, or -1.
func launcherRank(prefix string) int {
	if prefix == "" || !mayNameRank(prefix) {
		return -1
	}
	for _, re := range []*regexp.Regexp{mpiRank, wordRank, srunRank, mpichRank, barRank} {
		if m := re.FindStringSubmatch(prefix); m != nil {
			if n, err := strconv.Atoi(strings.Join(m[1:], "")); err == nil && n < 1<<24 {
				return n
			}
		}
	}
	return -1
}

// classify finds the kind of an NCCL message and its fields.
func classify(msg string) (kind string, f map[string]string) {
	if kind, f = kindIn(msg); kind == "ib_wc" {
		moreOfCompletion(f)
	}
	return kind, f
}

func kindIn(msg string) (string, map[string]string) {
	hits := kindsOf()(msg)
	for w, set := range hits {
		for ; set != 0; set &= set - 1 {
			k := &ncclKinds[w*64+bits.TrailingZeros64(set)]
			if f := k.fields(msg); f != nil {
				return k.id, f
			}
		}
	}
	return "", nil
}

// fields are those of a message of the kind; nil if it is of another.
func (k *ncclKind) fields(msg string) map[string]string {
	m := k.re.FindStringSubmatch(msg)
	if m == nil {
		return nil
	}
	f := map[string]string{}
	for j, name := range k.re.SubexpNames() {
		if name != "" && m[j] != "" {
			f[name] = m[j]
		}
	}
	return f
}

// kindSet is a set of rows of ncclKinds.
type kindSet [3]uint64

// kindsOf finds the kinds of which a message has a needle, in one pass: by the first two bytes of needles, which most pairs
// of bytes are of none.
var kindsOf = sync.OnceValue(func() func(string) kindSet {
	type needle struct {
		text string
		kind int
	}
	var group [1 << 16]uint8
	lists := [][]needle{nil}
	for k := range ncclKinds {
		for _, n := range ncclKinds[k].needles {
			at := int(n[0])<<8 | int(n[1])
			if group[at] == 0 {
				group[at] = uint8(len(lists))
				lists = append(lists, nil)
			}
			lists[group[at]] = append(lists[group[at]], needle{n, k})
		}
	}
	return func(msg string) (set kindSet) {
		for i := 0; i+1 < len(msg); i++ {
			for _, n := range lists[group[int(msg[i])<<8|int(msg[i+1])]] {
				if strings.HasPrefix(msg[i:], n.text) {
					set[n.kind/64] |= 1 << (n.kind % 64)
				}
			}
		}
		return set
	}
})

// needEnd are kinds of which a part means something else than the whole.
var needEnd = []string{"ch_net", "ch_p2p", "ch_shm", "channels", "env", "env_hca", "ib_using", "affinity", "affinity2", "bootstrap_if",
	"network", "version", "local_shape", "mnnvl"}

// warnLevels are the levels of messages that say that something went wrong.
var warnLevels = map[string]bool{"WARN": true, "ABORT": true}

// bareVersion reads a version line, which is bare below INFO, as messages of old launchers are.
func (s *scan) bareVersion(n int, text string) bool {
	m := bareVer.FindStringSubmatch(text)
	if m == nil {
		return false
	}
	s.addLine(doctor.Line{At: s.at(n, text), Kind: "version", Dev: -1, Rank: launcherRank(text), Time: clock(text), Msg: text,
		F: map[string]string{"ver": m[1], "cuda": m[3]}})
	return true
}

// nextOrigin finds where a message ends in a line of several: before the origin of the next one, whose mark is at end. Text
// that runs into the name of a host is told apart by the hosts that are known.
func (s *scan) nextOrigin(text string, from, end int) int {
	between := text[from:end]
	o := ncclOrigin.FindAllStringSubmatchIndex(between, -1)
	if o == nil {
		return end
	}
	x := o[len(o)-1]
	return from + x[0] + len(between[x[2]:x[3]]) - len(s.knownHost(between[x[2]:x[3]]))
}

// perhapsCut says whether a message may lack its end where that counts: at the end of the file, or before a message of
// another process. In that case it holds the message back until the next line tells.
func (s *scan) perhapsCut(l doctor.Line, more bool) bool {
	if !slices.Contains(needEnd, l.Kind) {
		return false
	}
	if more && !s.last {
		s.held = append(s.held, l)
	}
	return more || s.last
}

// ncclLines reads the NCCL messages of one line of a file.
func (s *scan) ncclLines(n int, text string) bool {
	marks := ncclMarks(text)
	if marks == nil {
		return s.bareVersion(n, text)
	}
	from := 0
	for i, m := range marks {
		head := text[from:m[0]]
		from = len(text)
		if i+1 < len(marks) {
			from = s.nextOrigin(text, m[1], marks[i+1][0])
		}
		msg := strings.TrimSpace(text[m[1]:from])
		warn := warnLevels[text[m[2]:m[3]]]
		if !warn && s.enough(msg) {
			s.noteHost([]byte(head)) // an INFO line without news
			continue
		}
		l := s.ncclHead(text[:m[0]], head)
		l.At, l.Msg, l.Warn = s.at(n, text), msg, warn
		l.Kind, l.F = classify(msg)
		if l.Kind == "" && !l.Warn {
			continue
		}
		if s.perhapsCut(l, i+1 < len(marks)) {
			continue
		}
		if !s.overLimit(l.Kind) {
			s.addLine(l)
		}
	}
	return true
}

// overLimit counts messages of a kind, of which the first ones are enough.
func (s *scan) overLimit(kind string) bool {
	limit := mostOf[kind]
	if limit == 0 {
		return false
	}
	if s.kinds[kind]++; s.kinds[kind] <= limit {
		return false
	}
	s.passed++
	return true
}

// mostOf is how many lines are kept of kinds that a log has many of.
var mostOf = map[string]int{"bt": 64, "tuning": 64, "pattern": 64, "system": 64, "tree": 64, "trees": 64, "ch_net": maxPaths,
	"ch_p2p": maxPaths, "ch_shm": maxPaths}

// enough says, without reading it, that a message is of no kind, or can only be of one of which enough lines are kept.
func (s *scan) enough(msg string) bool {
	set := kindsOf()(msg)
	one := -1
	via := strings.HasPrefix(msg, "Channel ") && strings.Contains(msg, " via ")
	for w, x := range set {
		if via { // neither a list of ranks nor an error on its way up, which share words with it
			x &= paths()[w]
		}
		for ; x != 0; x &= x - 1 {
			if one >= 0 {
				return false
			}
			one = w*64 + bits.TrailingZeros64(x)
		}
	}
	if one < 0 {
		return true
	}
	limit := mostOf[ncclKinds[one].id]
	if limit == 0 || s.kinds[ncclKinds[one].id] < limit {
		return false
	}
	s.passed++
	return true
}

// paths are the kinds that say how two ranks are connected.
var paths = sync.OnceValue(func() (set kindSet) {
	for i, k := range ncclKinds {
		if strings.HasPrefix(k.id, "ch_") {
			set[i/64] |= 1 << (i % 64)
		}
	}
	return set
})

// passPath passes over a line that says how two ranks are connected, once enough of its kind are kept: of a long log of many ranks
// such lines are the most. What is not quite like them is read as any line.
func (s *scan) passPath(b []byte) bool {
	at := bytes.Index(b, pathMark)
	if at < 0 || b[0] == '{' || bytes.IndexByte(b, 0x1b) >= 0 {
		return false
	}
	msg := b[at+len(pathMark):]
	via := bytes.Index(msg, []byte(" via "))
	if via < 0 || bytes.Contains(msg, []byte("NCCL ")) || bytes.Contains(b[:at], []byte("NCCL ")) {
		return false
	}
	for _, k := range pathKinds {
		if bytes.HasPrefix(msg[via+len(" via "):], k.via) && s.kinds[k.kind] >= maxPaths {
			s.passed++
			s.noteHost(b[:at])
			return true
		}
	}
	return false
}

var (
	pathMark  = []byte(" NCCL INFO Channel ")
	pathKinds = []struct {
		via  []byte
		kind string
	}{{[]byte("P2P/"), "ch_p2p"}, {[]byte("SHM/"), "ch_shm"}, {[]byte("NET/"), "ch_net"}}
)

// noteHost notes the host of a line that is not read.
func (s *scan) noteHost(head []byte) {
	who := origin(bytes.TrimRight(head, " "))
	host, _, _ := bytes.Cut(who, []byte(":"))
	if host, _, _ = bytes.Cut(host, []byte(".")); len(host) > 0 && !s.hosts[string(host)] {
		s.hosts[string(host)] = true
	}
}

// ncclHead reads who printed a message: host, process, thread, device, rank and time. before is the line up to the message,
// head what of it follows the message before.
func (s *scan) ncclHead(before, head string) doctor.Line {
	l := doctor.Line{Dev: -1, Rank: launcherRank(before), Time: clock(head)}
	if l.Time == 0 {
		l.Time = clock(before)
	}
	origins := ncclOrigin.FindAllStringSubmatchIndex(head, -1)
	for j := len(origins) - 1; j >= 0; j-- {
		o := origins[j]
		host := head[o[2]:o[3]]
		if _, err := strconv.Atoi(host); err == nil { // 12:00:00 is a time
			continue
		}
		l.Host, _, _ = strings.Cut(s.knownHost(host), ".")
		s.hosts[l.Host] = true
		l.PID, _ = strconv.Atoi(head[o[4]:o[5]])
		l.TID, _ = strconv.Atoi(head[o[6]:o[7]])
		if o[8] >= 0 {
			l.Dev, _ = strconv.Atoi(head[o[8]:o[9]])
		}
		if src := ncclSource.FindStringSubmatch(head[o[1]:]); src != nil {
			l.Source = src[1]
		}
		break
	}
	if l.Host == "" {
		l.Host = s.host
	}
	return l
}

// release decides on messages that another process's message followed on their line. If
// they were cut, the next line is their rest.
func (s *scan) release(next string) {
	if strings.TrimSpace(next) == "" || ncclMarks(next) != nil {
		for _, l := range s.held {
			s.addLine(l)
		}
	}
	s.held = nil
}

// knownHost is the host at the end of a word, where a message of another process
// stands before it without a gap: IBn1 is n1, if n1 was seen.
func (s *scan) knownHost(word string) string {
	if s.hosts[word] {
		return word
	}
	for i := 1; i < len(word); i++ {
		if s.hosts[word[i:]] {
			return word[i:]
		}
	}
	return word
}

var (
	wcVendor = regexp.MustCompile(`vendor[ _]err[ =](\d+)`)
	wcHCA    = regexp.MustCompile(`hca ?=?(\S+)`)
	wcGID    = regexp.MustCompile(`remoteGids?[ =]?([0-9a-fA-F:.]+)`)
)

// moreOfCompletion reads what follows the status of a completion error. Opcode and
// length are not filled in on errors and are left out.
func moreOfCompletion(f map[string]string) {
	for name, re := range map[string]*regexp.Regexp{"vendor": wcVendor, "hca": wcHCA, "gid": wcGID} {
		if m := re.FindStringSubmatch(f["rest"]); m != nil {
			f[name] = m[1]
		}
	}
}

// envLine reads exports of job scripts and dumps of environments:
// NCCL_DEBUG=debug, export NCCL_DEBUG_FILE=/tmp/nccl.log.
var envAssign = regexp.MustCompile(`(?:^|[\s'"])(NCCL_[A-Z0-9_]+)=('[^']*'|"[^"]*"|[^\s'"]*)`)

func (s *scan) envLine(n int, text string) bool {
	found := false
	text = strings.ReplaceAll(text, "run with NCCL_DEBUG=", "run with ") // advice, not a setting
	for _, m := range envAssign.FindAllStringSubmatch(text, -1) {
		s.addLine(doctor.Line{At: s.at(n, text), Kind: "env", Dev: -1, Rank: launcherRank(text), Host: s.host, Msg: text,
			F: map[string]string{"var": m[1], "val": strings.Trim(m[2], `'"`), "script": "1"}})
		found = true
	}
	return found
}

// needles are words of which a line must have one to be looked at.
var needles = []string{"NCCL", "RCCL version", "NVRM", "SXid", "Xid", "mlx5", "AER", "PCIe Bus Error", "peermem", "segfault",
	"ut of memory", "OutOfMemoryError", "Watchdog", "ast enqueued", "exitcode", "[Gloo]", "gloo/", "onnectFullMesh", "open files",
	"fallen off", "blocked for more", "DMAR", "AMD-Vi", "DPC", "_perf", "nThread", "algbw", "Link down", "Link up", "NIC Link", " Rank ",
	"Rank ", "nvidia-nccl-cu", "NVSwitch", "abricmanager", "[ERROR] [tid", "[CRITICAL] [tid", "panic", "BUG", "LOCKUP", "protection fault",
	"file-max",
	"Hardware Error", "EDAC", "hardware memory error", "watchdog got stuck", "Heartbeat monitor", "monitoredBarrier", "lagging ranks",
	"is running collective", "Root Cause (first", "Failures:", "srun: error", "slurmstepd: error", "OOMKilled",
	"noticed that process", "return code", "with status code", "A worker died", "DataLoader worker", "clients joined", "client socket has",
	"server socket has", "Rendezvous", "CUDA error", "CUDA runtime error", "cudaGetDeviceCount()", "Last error:", "Traceback (most recent",
	"systemd-oomd", "Test CUDA fail", "Test NCCL fail", "library version mismatch", "device handle for", "GPU is lost", "ERROR_GPU_IS_LOST",
	"infiniband ", "pciehp", "not responding", "has not responded", "was lost", "ceph: mds", "Exception (either an", "amdgpu", "| Asserted",
	"Node failure on", "on failed node", "NodeNotReady", "OOMKilling",
	" nan", ":nan", "=nan", "NaN", "NAN", "loss inf", "loss: inf", "loss=inf", "Memory access fault", "o space left on device",
	"isk quota exceeded", "ame or service not known", "ailure in name resolution", "gai error", "worker group successfully finished",
	"exits successfully", "HW Exception by GPU", "heckpoint", "CHECKPOINT", "[Torch] Sav"}

// needlesBy finds those that begin with two bytes; most pairs begin none.
var needlesBy = sync.OnceValue(func() func(a, b byte) []string {
	var group [1 << 16]uint8
	lists := [][]string{nil}
	for _, n := range slices.Concat(needles, frameworkWords) {
		k := int(n[0])<<8 | int(n[1])
		if group[k] == 0 {
			group[k] = uint8(len(lists))
			lists = append(lists, nil)
		}
		lists[group[k]] = append(lists[group[k]], n)
	}
	return func(a, b byte) []string { return lists[group[int(a)<<8|int(b)]] }
})

// interesting says whether a line can hold anything; garbage is passed over fast.
func interesting(b []byte) bool {
	begin := needlesBy()
	for i := 0; i+1 < len(b); i++ {
		for _, n := range begin(b[i], b[i+1]) {
			if len(b)-i >= len(n) && string(b[i:i+len(n)]) == n {
				return true
			}
		}
	}
	return false
}
