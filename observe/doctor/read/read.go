// Package read turns logs, dumps and counters into a doctor.Case. A source is
// recognised by its content, never by its name, one file a dialect. A source that
// is cut gives what is in it and says what is missing. Logs of any length are read
// in bounded memory.
package read

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/doctor/read/internal/regexp"
)

const (
	maxWhole  = 512 << 20 // of a file that is read as a whole; logs have no limit
	maxEvents = 1 << 20   // lines that are kept of one file; more are counted
	headSize  = 64 << 10  // that decides what a file is
	maxPaths  = 1 << 16   // lines of one file that are kept of how NCCL connects
)

// scan is the state of reading one file.
type scan struct {
	c         *doctor.Case
	file      string
	host      string // that the file is known to be of, "" unknown
	note      func(k doctor.NoteKind, format string, args ...any)
	kinds     map[string]int
	form      string // what a log is by the form of its lines, "" unknown
	last      bool   // the line has no end
	inside    bool   // the log is what stands around a tool's output
	kept      int
	raw       map[string]*rawCalls // by process and communicator
	key       []byte               // of the line, in raw
	passed    int                  // lines that are not kept since there are many like them
	lost      int
	hosts     map[string]bool // that lines have named
	ranks     map[int]bool    // whose lines are here, by PyTorch's prefix
	bench     benchState
	torch     torchState
	half      string // a sentence of PyTorch that goes on in the next line
	gpuBuffer bool   // perftest uses memory of a GPU
	header    *pdict // of NCCL Inspector's records, and their metadata
	metadata  *pdict
	theGPU    string        // that the last line of the driver named
	held      []doctor.Line // of which the next line tells whether they are whole
}

func (s *scan) at(n int, text string) doctor.Evidence {
	if len(text) > 400 {
		text = text[:397] + "..."
	}
	return doctor.Evidence{File: s.file, Line: n, Text: strings.ToValidUTF8(strings.TrimSpace(text), "?")}
}

func (s *scan) addLine(l doctor.Line) {
	if s.kept++; s.kept > maxEvents {
		s.lost++
		return
	}
	s.c.Lines = append(s.c.Lines, l)
}

// tidyCalls puts the lines that a file added back into its order.
func (s *scan) tidyCalls(from int) {
	slices.SortStableFunc(s.c.Lines[from:], func(a, b doctor.Line) int { return a.At.Line - b.At.Line })
	if s.passed > 0 {
		s.note(doctor.Partial,
			"of the collectives of each process and communicator, and of how NCCL connects, only a part was kept: %d lines were passed over",
			s.passed)
	}
}

func (s *scan) addKernel(k doctor.Kernel) {
	if s.kept++; s.kept > maxEvents {
		s.lost++
		return
	}
	s.c.Kernel = append(s.c.Kernel, k)
}

// dialect is a form of file.
type dialect struct {
	name  string
	is    func(head []byte, text string) bool
	whole func(s *scan, b []byte) error
	alone bool // what else is in such a file is its own; other tools print into logs
}

// line recognises by a word that must be there and the form of a line with it. The
// word alone is searched first, since nearly all files are none of these.
func line(word, re string) func([]byte, string) bool {
	r := regexp.MustCompile(`(?m)` + re)
	return func(_ []byte, text string) bool { return strings.Contains(text, word) && r.MatchString(text) }
}

func either(a, b func([]byte, string) bool) func([]byte, string) bool {
	return func(head []byte, text string) bool { return a(head, text) || b(head, text) }
}

// dialects in the order in which they are tried; what is none of them is a log.
var dialects = []dialect{
	{"pickle", func(b []byte, _ string) bool {
		return len(b) > 1 && (b[0] == 0x80 && b[1] <= 5 || bytes.HasPrefix(b, []byte("(dp")))
	}, readPickle, true},
	{"nvidia-smi -q -x", line("<nvidia_smi_log", `<nvidia_smi_log`), readSMI, true},
	{"nvidia-smi -q", line("NVSMI LOG", `^=+NVSMI LOG=+`), readSMIText, true},
	{"json", isJSON, readJSON, true},
	{"nvidia-smi nvlink", line("(UUID: ", `^GPU \d+: .*\(UUID: [A-Z]+-.*\)\s*\n\s+(Link \d+|NVML|Unable|<)`), readNVLink, false},
	{"nvidia-smi topo", line("GPU0", `^\s*(?:\x1b\[4m)?\s*GPU0\s.*\n`), readTopo, false},
	{"ibstat", line("CA '", `^CA '[^']+'`), readIBStat, false},
	{"ibstatus", line("Infiniband device", `^Infiniband device '[^']+' port \d+ status:`), readIBStatus, false},
	{"perfquery", line("# Port", `^# Port(?:RcvErrorDetails| (?:extended )?)\s*counters: `), readPerfquery, false},
	{"ibswinfo", line("firmware version", `(?m)^part number\s+\|.*\n(?s:.*)^firmware version\s+\|`), readSwitchInfo, true},
	{"perftest", line(" Test", `^\s*(?:RDMA_Write|RDMA_Read|Send)(?: Bidirectional)? (?:BW|Latency) Test`), readPerfTest, false},
	{"unhealthy ports", line("PeerNodeGUID", `^#\s*NodeGUID, PortNum, NodeDesc, PeerNodeGUID`), readUnhealthy, true},
	{"iblinkinfo", line(")==>", `==\(.*\)==>`), readLinkInfo, false},
	{"ibnetdiscover", line("", `^(?:vendid=0x|Switch\s+\d+ "S-|Ca\s+\d+ "H-|(?:CA|SW|RT)\s+\d+\s+\d+ 0x)`), readDiscover, false},
	{"ibdiagnet counters", line(" GUID=", `^Port=\d+ Lid=\S+ GUID=`), readDiagnet, false},
	{"mlxlink", line(" Info", `^(?:Operational Info|Physical Counters and BER Info)\s*$`), readMLXLink, false},
	{"ethtool -S", line("NIC statistics", `^NIC statistics:`), readEthtool, false},
	{"lspci -vvv",
		line("\n\t", `^(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] [^\n]+\n(?:\t[^\n]*\n){0,40}\t+(?:Capabilities:|LnkSta:|LnkCap:)`),
		readLSPCI, false},
	{"RAS report", either(line("Communicators...", `^\s*Communicators\.\.\.`), line("PEER_DEAD", `^\s*\[[^\]]+\] PEER_DEAD: Process \d+`)),
		readRASText, false},
	{"sacct", line("JobID", `^\s*JobID(?:Raw)?\b.*\bState\b`), readSacct, true},
	{"scontrol show job", line("JobState=", `(?m)^JobId=\d+ .*\bJobName=|^JobId=\d+ JobName=`), readScontrol, true},
	{"kubectl describe pod", line("\nStatus:", `^Name:\s+\S+\s*\n(?:Namespace|Priority|Node):`), readPods, true},
	{"dcgmi diag", line("| Diagnostic", `^\| Diagnostic\s+\| Result`), readDiag, false},
	{"dcgmi health", line("Health Monitor Report", `^\| Health Monitor Report`), readHealth, false},
	{"dcgmi nvlink", line("gpuId ", `NvLink Link Status`), readLinkStatus, false},
	{"DCGM metrics", line("DCGM_FI_", `^DCGM_FI_\w+\{`), readDCGM, true},
	{"ip address", line("> mtu ", `^\d+: [\w.@-]+: <[A-Z,_-]*> mtu \d+`), readIP, false},
	{"inspector metrics", line("nccl_", `^nccl_(?:bus_bandwidth_gbs|collective_exec_time_microseconds|p2p_\w+)\{`), readInspectorProm, true},
}

// Kinds lists what is recognised, for help and pages.
func Kinds() []string {
	list := []string{"NCCL, PyTorch and kernel logs", "flight recorder (pickle, JSON)", "RAS JSON", "NCCL Inspector JSON lines",
		"nccl-tests tables and JSON", "ip -j", "/sys trees"}
	for _, d := range dialects {
		if d.name != "pickle" && d.name != "json" {
			list = append(list, d.name)
		}
	}
	slices.Sort(list)
	return list
}

// File reads one source into the case. Name is its path as the user gave it; host
// is the host it is of, or "" when the content or the name must tell. Errors of the
// content become notes of the file: what was readable is in the case.
func File(c *doctor.Case, name, host string, r io.Reader) error {
	f := doctor.File{Path: name, Kind: "log"}
	at := len(c.Files)
	c.Files = append(c.Files, f)
	s := &scan{c: c, file: name, host: host, kinds: map[string]int{}, hosts: map[string]bool{}}
	s.note = func(k doctor.NoteKind, format string, args ...any) {
		c.Files[at].Notes = append(c.Files[at].Notes, doctor.Note{Kind: k, Text: fmt.Sprintf(format, args...)})
	}
	if sysOther.MatchString(name) {
		c.Files[at].Kind = "/sys"
		return nil
	}
	if attr, ok := sysAttr(name); ok {
		c.Files[at].Kind = "/sys"
		b, err := io.ReadAll(io.LimitReader(r, 1<<16))
		if err != nil {
			return err
		}
		s.sysFile(attr, strings.TrimSpace(string(b)))
		return nil
	}
	br := s.unpack(bufio.NewReaderSize(r, headSize))
	if br == nil {
		c.Files[at].Kind = "unread"
		return nil
	}
	if members, ok := archive(br); ok {
		c.Files[at].Kind = "archive"
		return s.archive(members, host)
	}
	head, err := br.Peek(headSize)
	if len(head) == 0 {
		return nothing(&c.Files[at], err)
	}
	from := len(c.Lines)
	kind, err := s.source(br, head)
	s.tidyCalls(from)
	if c.Files[at].Kind == "log" {
		c.Files[at].Kind = kind
	}
	if s.lost > 0 {
		s.note(doctor.Cut, "%d lines beyond the first %d were not kept", s.lost, maxEvents)
	}
	return err
}

// nothing is a source without a byte: it is empty, or could not be read, as compressed data that end at once, a folder or
// a bad disk.
func nothing(f *doctor.File, err error) error {
	if f.Kind = "empty"; len(f.Notes) > 0 {
		f.Kind = "unread"
	}
	if err != io.EOF {
		f.Kind = "unread"
		return err
	}
	return nil
}

// source finds out by the beginning of a file what it is, and has it read. What no dialect knows is read as a log.
func (s *scan) source(r *bufio.Reader, head []byte) (string, error) {
	text := string(bytes.ToValidUTF8(head, []byte("?")))
	for _, d := range dialects {
		if !d.is(head, text) {
			continue
		}
		return s.wholeOf(d, r)
	}
	// Output of many hosts, each line behind its host: n3: CA 'mlx5_0'
	if plain, ok := unprefix(text); ok {
		for _, d := range dialects {
			if d.is([]byte(plain), plain) {
				return s.perHost(d, r)
			}
		}
	}
	for _, f := range forms {
		if f.re.MatchString(text) {
			s.form = f.name
			break
		}
	}
	return s.log(r)
}

// forms are logs that are known by the form of their lines, also when nothing in them is
// worth keeping.
var forms = []struct {
	name string
	re   *regexp.Regexp
}{
	{"fabric manager log",
		regexp.MustCompile(`(?m)(?:nv|nvidia)-fabricmanager[\w.-]*\[\d+\]: |^\[\w{3} +\d+ \d{4} [\d:.]+\] \[(?:INFO|ERROR|WARNING|DEBUG|CRITICAL)\] \[tid \d+\]`)},
	{"JAX log", regexp.MustCompile(`JAX distributed service|coordination_service`)},
	{"torchrun log",
		regexp.MustCompile(`torch/distributed/(?:run|launcher/\w+|elastic/[\w/]+)\.py:\d+\]|torch\.distributed\.(?:run|launch|elastic\.[\w.]+): \[|(?m)^(?:INFO|WARNING|ERROR):torch\.distributed\.`)},
	{"DeepSpeed log", regexp.MustCompile(`\] \[(?:INFO|WARNING|ERROR)\] \[(?:launch|runner|logging|comm|engine)\.py:\d+:\w+\]`)},
	{"Ray log", regexp.MustCompile(`(?m)^\((?:raylet|\w+ pid=\d+)(?:, ip=[\w.:]+)?\) `)},
	{"Megatron log", regexp.MustCompile(`(?m)\biteration +\d+/ *\d+ \| consumed samples: +\d+`)},
	{"kernel log",
		regexp.MustCompile(`(?m)^(?:\d+,\d+,\d+,[^;\n]*;|(?:<\d+>)?\[ *\d+\.\d{6}\] |kern +:\w+ *: |\[\w{3} \w{3} +\d+ [\d:]+ \d{4}\] |\S.{0,40} kernel: )`)},
}

// wholeOf reads a source that has to be in memory as a whole, up to maxWhole. One that turns out to be something else
// is read as a log.
func (s *scan) wholeOf(d dialect, r io.Reader) (string, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxWhole+1))
	if err != nil {
		return d.name, err
	}
	if len(b) > maxWhole {
		s.note(doctor.Cut, "larger than %d MiB: only the beginning was read", maxWhole>>20)
		b = b[:maxWhole]
	}
	if err := d.whole(s, b); err != nil {
		if errors.Is(err, errNotThis) {
			return s.log(bufio.NewReaderSize(bytes.NewReader(b), headSize))
		}
		s.note(doctor.Unread, "%v", err)
	} else if !d.alone {
		s.inside = true
		_, err = s.log(bytes.NewReader(b))
		return d.name, err
	}
	return d.name, nil
}

var (
	errNotThis = errors.New("not this dialect after all")
	hostPrefix = regexp.MustCompile(`(?m)^([A-Za-z][\w.-]*): ?(.*)$`)
)

// unprefix takes "host: " off lines when nearly all have it.
func unprefix(text string) (string, bool) {
	all := strings.Count(text, "\n") + 1
	m := hostPrefix.FindAllStringSubmatch(text, -1)
	if len(m) < 3 || len(m)*10 < all*8 {
		return "", false
	}
	var b strings.Builder
	for _, x := range m {
		if x[1] == m[0][1] {
			b.WriteString(x[2] + "\n")
		}
	}
	return b.String(), true
}

// perHost reads what a parallel shell printed, each line behind its host, as one source per host.
func (s *scan) perHost(d dialect, r io.Reader) (string, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxWhole))
	if err != nil {
		return d.name, err
	}
	var order []string
	parts := map[string]*bytes.Buffer{}
	for l := range bytes.Lines(b) {
		m := hostPrefix.FindSubmatch(bytes.TrimRight(l, "\r\n"))
		if m == nil {
			continue
		}
		h := string(m[1])
		if parts[h] == nil {
			parts[h] = &bytes.Buffer{}
			order = append(order, h)
		}
		parts[h].Write(m[2])
		parts[h].WriteByte('\n')
	}
	for _, h := range order {
		s.host, _, _ = strings.Cut(h, ".")
		if err := d.whole(s, parts[h].Bytes()); err != nil && !errors.Is(err, errNotThis) {
			s.note(doctor.Partial, "%s: %v", h, err)
		}
	}
	return d.name, nil
}

// log reads lines of NCCL, PyTorch, the kernel and nccl-tests, in any mixture.
func (s *scan) log(r io.Reader) (string, error) {
	l := newLines(r)
	nccl, kernel := 0, 0
	cut := false
	for {
		b, ok := l.next()
		if !ok {
			break
		}
		if s.held != nil {
			s.release(string(b))
		}
		s.wentOn(b)
		s.noteRank(b)
		if l.err == nil && s.half == "" && s.keepCall(l.n, b) {
			nccl++
			continue
		}
		if s.half == "" && s.passPath(b) {
			nccl++
			continue
		}
		if s.bench.active() || s.half != "" || s.torch.open() || interesting(b) {
			raw := s.whole(string(b))
			s.last = l.err != nil // no line end: the text may be cut
			switch s.logLine(l.n, raw) {
			case fromNCCL:
				nccl++
			case fromKernel:
				kernel++
			}
		}
		cut = l.err != nil
	}
	s.release("")
	s.readCalls()
	s.c.Files[len(s.c.Files)-1].Lines = l.n
	s.c.Files[len(s.c.Files)-1].Ranks = slices.Sorted(maps.Keys(s.ranks))
	if l.err != nil && l.err != io.EOF {
		s.note(doctor.Cut, "reading stopped: %v", l.err)
	}
	if l.long > 0 {
		s.note(doctor.Partial, "%d lines were longer than %d bytes and were cut", l.long, maxLine)
	}
	if cut && nccl > 0 && !s.inside {
		s.note(doctor.Cut, "the last line has no end: the file may be cut")
	}
	return s.logKind(nccl, kernel), nil
}

// source is who wrote a line of a log.
type source int

const (
	fromOthers source = iota
	fromNCCL
	fromKernel
)

// logLine reads a line, which the first reader that knows it takes.
func (s *scan) logLine(n int, raw string) source {
	if strings.IndexByte(raw, 0x1b) >= 0 {
		raw = ansi.ReplaceAllString(raw, "")
	}
	text := raw
	if strings.HasPrefix(raw, "{") {
		text = unwrap(raw)
	}
	switch {
	case s.ncclLines(n, text):
		return fromNCCL
	case s.torchLine(n, text):
		return fromOthers
	case s.kernelLine(n, raw):
		return fromKernel
	}
	s.benchLine(n, text)
	return fromOthers
}

// logKind names a log by what most of it was: nccl and kernel count the lines of either.
func (s *scan) logKind(nccl, kernel int) string {
	switch {
	case s.bench.rows > 0 && nccl <= s.bench.rows:
		return "nccl-tests"
	case nccl > 0:
		return "NCCL log"
	case s.form != "":
		return s.form
	case kernel > 0:
		return "kernel log"
	case s.kept > 0:
		return "job log"
	}
	if !s.inside {
		s.note(doctor.Unread, "nothing in it was recognised")
	}
	return "unknown"
}

// noteRank notes whose line it is, whatever it says.
func (s *scan) noteRank(b []byte) {
	if len(b) < 8 || string(b[:5]) != "[rank" {
		return
	}
	n, digits := 0, 0
	for rest := b[5:min(len(b), 12)]; digits < len(rest) && rest[digits] >= '0' && rest[digits] <= '9'; digits++ {
		n = 10*n + int(rest[digits]-'0')
	}
	if digits == 0 || !bytes.HasPrefix(b[5+digits:], []byte("]")) {
		return
	}
	if s.ranks == nil {
		s.ranks = map[int]bool{}
	}
	s.ranks[n] = true
}

// whole joins a sentence of PyTorch's watchdog that a terminal or a launcher broke in two.
func (s *scan) whole(text string) string {
	if s.half != "" {
		text, s.half = s.half+" "+strings.TrimSpace(text), ""
		return text
	}
	begun := strings.Contains(text, "Watchdog caught collective operation timeout:") && !strings.Contains(text, "WorkNCCL(") ||
		strings.Contains(text, "Exception (either an error or timeout) detected") && !strings.Contains(text, "ast enqueued")
	if begun && len(text) < maxLine/2 {
		s.half = strings.TrimRight(text, " ")
	}
	return text
}

// unwrap takes the text out of a log driver's JSON: Docker, the journal, Fluent Bit, cloud
// loggers. The time stands before it.
func unwrap(text string) string {
	v, _ := parseJSON([]byte(text))
	d, _ := v.(*pdict)
	if d == nil {
		return text
	}
	for _, k := range []string{"log", "MESSAGE", "message", "msg", "textPayload", "line"} {
		msg := strings.TrimRight(d.text(k), "\r\n")
		if msg == "" {
			continue
		}
		for _, t := range []string{"time", "@timestamp", "timestamp", "ts"} {
			if at := d.text(t); hasClock(at) {
				return at + " " + ansi.ReplaceAllString(msg, "")
			}
		}
		if us, err := strconv.ParseFloat(d.text("__REALTIME_TIMESTAMP"), 64); err == nil {
			host, _, _ := strings.Cut(d.text("_HOSTNAME"), ".")
			who := d.text("SYSLOG_IDENTIFIER")
			return time.UnixMicro(int64(us)).UTC().Format("2006-01-02T15:04:05.000000Z") + " " + host + " " + who + ": " +
				ansi.ReplaceAllString(msg, "")
		}
		return ansi.ReplaceAllString(msg, "")
	}
	return text
}
