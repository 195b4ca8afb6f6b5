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
	"path"
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
	kept      int
	raw       map[string]*rawCalls // by process and communicator
	key       []byte               // of the line, in raw
	passed    int                  // lines that are not kept since there are many like them
	lost      int
	hosts     map[string]bool // that lines have named
	bench     benchState
	torch     torchState
	half      string        // a sentence of PyTorch that goes on in the next line
	gpuBuffer bool          // perftest uses memory of a GPU
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
		s.note(doctor.Partial, "of the collectives of each process and communicator, and of how NCCL connects, only a part was kept: %d lines were passed over", s.passed)
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
	}, readPickle},
	{"nvidia-smi -q -x", line("<nvidia_smi_log", `<nvidia_smi_log`), readSMI},
	{"json", isJSON, readJSON},
	{"nvidia-smi nvlink", line("(UUID: ", `^GPU \d+: .*\(UUID: [A-Z]+-.*\)\s*\n\s+(Link \d+|NVML|Unable|<)`), readNVLink},
	{"nvidia-smi topo", line("GPU0", `^\s*(?:\x1b\[4m)?\s*GPU0\s.*\n`), readTopo},
	{"ibstat", line("CA '", `^CA '[^']+'`), readIBStat},
	{"ibstatus", line("Infiniband device", `^Infiniband device '[^']+' port \d+ status:`), readIBStatus},
	{"perfquery", line("# Port", `^# Port(?:RcvErrorDetails| (?:extended )?)\s*counters: `), readPerfquery},
	{"ibswinfo", line("firmware version", `(?m)^part number\s+\|.*\n(?s:.*)^firmware version\s+\|`), readSwitchInfo},
	{"perftest", line(" Test", `^\s*(?:RDMA_Write|RDMA_Read|Send)(?: Bidirectional)? (?:BW|Latency) Test`), readPerfTest},
	{"unhealthy ports", line("PeerNodeGUID", `^#\s*NodeGUID, PortNum, NodeDesc, PeerNodeGUID`), readUnhealthy},
	{"iblinkinfo", line(")==>", `==\(.*\)==>`), readLinkInfo},
	{"ibnetdiscover", line("", `^(?:vendid=0x|Switch\s+\d+ "S-|Ca\s+\d+ "H-|(?:CA|SW|RT)\s+\d+\s+\d+ 0x)`), readDiscover},
	{"ibdiagnet counters", line(" GUID=", `^Port=\d+ Lid=\S+ GUID=`), readDiagnet},
	{"mlxlink", line(" Info", `^(?:Operational Info|Physical Counters and BER Info)\s*$`), readMLXLink},
	{"ethtool -S", line("NIC statistics", `^NIC statistics:`), readEthtool},
	{"lspci -vvv", line("\n\t", `^(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] [^\n]+\n(?:\t[^\n]*\n){0,40}\t+(?:Capabilities:|LnkSta:|LnkCap:)`), readLSPCI},
	{"RAS report", either(line("Communicators...", `^\s*Communicators\.\.\.`), line("PEER_DEAD", `^\s*\[[^\]]+\] PEER_DEAD: Process \d+`)), readRASText},
	{"sacct", line("JobID", `^\s*JobID(?:Raw)?\b.*\bState\b`), readSacct},
	{"scontrol show job", line("JobState=", `(?m)^JobId=\d+ .*\bJobName=|^JobId=\d+ JobName=`), readScontrol},
	{"kubectl describe pod", line("\nContainers:", `^Name:\s+\S+\s*\nNamespace:`), readPods},
	{"dcgmi diag", line("| Diagnostic", `^\| Diagnostic\s+\| Result`), readDiag},
	{"DCGM metrics", line("DCGM_FI_", `^DCGM_FI_\w+\{`), readDCGM},
	{"ip address", line("> mtu ", `^\d+: [\w.@-]+: <[A-Z,_-]*> mtu \d+`), readIP},
	{"inspector metrics", line("nccl_", `^nccl_(?:bus_bandwidth_gbs|collective_exec_time_microseconds|p2p_\w+)\{`), readInspectorProm},
}

// Kinds lists what is recognised, for help and pages.
func Kinds() []string {
	list := []string{"NCCL, PyTorch and kernel logs", "flight recorder (pickle, JSON)", "RAS JSON", "NCCL Inspector JSON lines", "nccl-tests tables and JSON", "ip -j", "/sys trees"}
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
	{"fabric manager log", regexp.MustCompile(`(?m)^\[\w{3} +\d+ \d{4} [\d:.]+\] \[(?:INFO|ERROR|WARNING|DEBUG|CRITICAL)\] \[tid \d+\]`)},
	{"JAX log", regexp.MustCompile(`JAX distributed service|coordination_service`)},
	{"kernel log", regexp.MustCompile(`(?m)^(?:\d+,\d+,\d+,[^;\n]*;|(?:<\d+>)?\[ *\d+\.\d{6}\] |kern +:\w+ *: |\[\w{3} \w{3} +\d+ [\d:]+ \d{4}\] |\S.{0,40} kernel: )`)},
}

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
		if l.err == nil && s.half == "" && s.keepCall(l.n, b) {
			nccl++
			continue
		}
		if s.bench.active() || s.half != "" || s.torch.open() || interesting(b) {
			raw := s.whole(string(b))
			if strings.IndexByte(raw, 0x1b) >= 0 {
				raw = ansi.ReplaceAllString(raw, "")
			}
			text := raw
			if strings.HasPrefix(raw, "{") {
				text = unwrap(raw)
			}
			s.last = l.err != nil // no line end: the text may be cut
			switch {
			case s.ncclLines(l.n, text):
				nccl++
			case s.torchLine(l.n, text):
			case s.kernelLine(l.n, raw):
				kernel++
			default:
				s.benchLine(l.n, text)
			}
		}
		cut = l.err != nil
	}
	s.release("")
	s.readCalls()
	s.c.Files[len(s.c.Files)-1].Lines = l.n
	if l.err != nil && l.err != io.EOF {
		s.note(doctor.Cut, "reading stopped: %v", l.err)
	}
	if l.long > 0 {
		s.note(doctor.Partial, "%d lines were longer than %d bytes and were cut", l.long, maxLine)
	}
	if cut && nccl > 0 {
		s.note(doctor.Cut, "the last line has no end: the file may be cut")
	}
	switch {
	case s.bench.rows > 0 && nccl <= s.bench.rows:
		return "nccl-tests", nil
	case nccl > 0:
		return "NCCL log", nil
	case s.form != "":
		return s.form, nil
	case kernel > 0:
		return "kernel log", nil
	case s.kept > 0:
		return "job log", nil
	}
	s.note(doctor.Unread, "nothing in it was recognised")
	return "unknown", nil
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
			return time.UnixMicro(int64(us)).UTC().Format("2006-01-02T15:04:05.000000Z") + " " + host + " " + who + ": " + ansi.ReplaceAllString(msg, "")
		}
		return ansi.ReplaceAllString(msg, "")
	}
	return text
}

// readPickle reads a flight recorder's dump.
func readPickle(s *scan, b []byte) error {
	v, err := unpickle(b)
	d, _ := v.(*pdict)
	if err != nil && !errors.Is(err, errCut) {
		if errors.Is(err, errCode) {
			s.c.Files[len(s.c.Files)-1].Kind = "refused"
			return fmt.Errorf("pickle: %w; the file is not a flight recorder's dump, or it was tampered with", err)
		}
		if !isFlight(d) {
			return fmt.Errorf("pickle: %w", err)
		}
	}
	if !isFlight(d) {
		if err != nil {
			return fmt.Errorf("pickle: %w before anything of a dump was in it", err)
		}
		s.c.Files[len(s.c.Files)-1].Kind = "unknown"
		return fmt.Errorf("a pickle, but no flight recorder's dump: it has no entries and no pg_config")
	}
	dump := flight(s.file, d)
	if err != nil {
		s.cutDump(&dump)
		s.note(doctor.Cut, "%v: %d operations were read", err, len(dump.Entries))
	}
	s.c.Dumps = append(s.c.Dumps, dump)
	s.c.Files[len(s.c.Files)-1].Kind = "flight recorder"
	return nil
}

// cutDump marks a dump that ends in the middle. Its last operation is not whole.
func (s *scan) cutDump(d *doctor.Dump) {
	d.Truncated = true
	if n := len(d.Entries); n > 0 {
		d.Entries = d.Entries[:n-1]
	}
	if len(d.Entries) == 0 {
		s.note(doctor.Unread, "the dump ends before its first whole operation")
	}
}

func isJSON(b []byte, text string) bool {
	t := strings.TrimLeft(strings.TrimPrefix(text, "\ufeff"), " \t\r\n")
	if t == "" || t[0] != '{' && t[0] != '[' {
		return false
	}
	if strings.HasPrefix(t, `{"log":`) {
		return false
	}
	first, _, _ := strings.Cut(t, "\n")
	if strings.Contains(first, `"MESSAGE"`) || strings.Contains(first, `"__REALTIME_TIMESTAMP"`) {
		return false // the journal
	}
	// A bracket may begin a log line: [1,0]<stdout>: or [2024-01-02 ...]
	return t[0] == '{' && (len(t) > 1 && strings.ContainsAny(t[1:2], "\" \n\r\t}")) || t[0] == '[' && (len(t) > 1 && strings.ContainsAny(t[1:2], "{ \n\r\t]")) && strings.Contains(t[:min(len(t), 200)], "{")
}

// readJSON reads the JSON forms: dumps, RAS, Inspector, nccl-tests, ip -j.
func readJSON(s *scan, b []byte) error {
	j := &jsoner{b: bytes.TrimPrefix(b, []byte("\xef\xbb\xbf"))}
	found := 0
	for {
		j.space()
		if j.at >= len(j.b) {
			break
		}
		n := 1 + bytes.Count(j.b[:j.at], []byte("\n"))
		if found > 0 {
			n = 0 // counting anew for every line would take long
		}
		v, err := j.value(0)
		ok := s.jsonValue(n, v, err)
		if ok {
			found++
		}
		if err != nil {
			if found > 0 {
				s.note(doctor.Partial, "line %d: %v: what is before was read", j.lineAt(), err)
				// Lines of JSON: go on with the next line.
				if i := bytes.IndexByte(j.b[min(j.at, len(j.b)):], '\n'); i >= 0 {
					j.at += i + 1
					continue
				}
				return nil
			}
			return fmt.Errorf("JSON: %w", err)
		}
	}
	if found == 0 {
		return errNotThis
	}
	return nil
}

func (s *scan) jsonValue(n int, v any, err error) bool {
	kind := &s.c.Files[len(s.c.Files)-1].Kind
	switch v := v.(type) {
	case *pdict:
		switch {
		case v.has("header") && (v.has("coll_perf") || v.has("p2p_perf") || v.has("metadata")):
			s.inspector(n, v)
			*kind = "NCCL Inspector"
		case isFlight(v):
			d := flight(s.file, v)
			if err != nil {
				s.cutDump(&d)
			}
			s.c.Dumps = append(s.c.Dumps, d)
			*kind = "flight recorder"
		case v.has("communicators") || v.has("communicators_count"):
			s.rasJSON(v)
			*kind = "RAS report"
		case v.has("event") && v.has("peer") && v.has("group"):
			s.rasEvent(n, v)
			*kind = "RAS events"
		case v.has("results") && (v.has("config") || v.has("devices") || v.has("version")):
			s.benchJSON(v)
			*kind = "nccl-tests"
		case v.has("records") && v.has("rank"):
			d := weftFlight(s.file, v)
			if err != nil {
				s.cutDump(&d)
			}
			s.c.Dumps = append(s.c.Dumps, d)
			*kind = "weft flight record"
		case v.has("Events") && s.redfish(v):
			*kind = "Redfish events"
		case v.has("kind") && s.podJSON(v):
			*kind = "Kubernetes pods"
		default:
			return false
		}
		return true
	case *plist:
		ok := false
		for _, x := range v.l {
			d, _ := x.(*pdict)
			if d == nil {
				continue
			}
			switch {
			case d.has("ifname"):
				s.ipAddress(d)
				ok, *kind = true, "ip -j"
			case d.has("header"):
				s.inspector(n, d)
				ok, *kind = true, "NCCL Inspector"
			case d.has("links") && d.has("nodes"):
				s.netq(d)
				ok, *kind = true, "NetQ topology"
			}
		}
		return ok
	}
	return false
}

// knownHost is the known host that a file's name or folder names.
func knownHost(name string, known map[string]bool) string {
	dir, base := path.Split(name)
	for _, part := range append([]string{base}, reversed(strings.Split(strings.Trim(dir, "/"), "/"))...) {
		for _, w := range strings.FieldsFunc(part, func(r rune) bool { return strings.ContainsRune("._@+=,", r) }) {
			if known[w] {
				return w
			}
			for _, cut := range []string{"-", "_"} {
				for _, x := range strings.Split(w, cut) {
					if known[x] {
						return x
					}
				}
			}
		}
		for h := range known {
			if len(h) > 2 && strings.Contains(part, h) && !strings.Contains(part, h+"0") {
				if i := strings.Index(part, h) + len(h); i >= len(part) || part[i] < '0' || part[i] > '9' {
					return h
				}
			}
		}
	}
	return ""
}

// hostFromName guesses the host of a file whose content does not say: a folder or a
// part of the name that is a known host.
func hostFromName(name string, known map[string]bool) string {
	if h := knownHost(name, known); h != "" {
		return h
	}
	dir, base := path.Split(name)
	// A name like dmesg.node07.txt, or a folder a host. Pieces of /sys have numbers of
	// their own.
	if i := strings.Index(name, "/class/"); i >= 0 || strings.Contains(name, "/ports/") || strings.Contains(name, "/devices/") {
		dir, base = name[:max(i, 0)], ""
		dir = strings.TrimSuffix(dir, "/sys")
	}
	for _, w := range append(strings.FieldsFunc(base, func(r rune) bool { return strings.ContainsRune("._", r) }), path.Base(strings.TrimSuffix(dir, "/"))) {
		for _, x := range append([]string{w}, strings.Split(w, "-")...) {
			if hostWord.MatchString(x) && !notHost.MatchString(x) {
				return x
			}
		}
	}
	return ""
}

var (
	hostWord = regexp.MustCompile(`^[a-z]{1,12}-?\d{1,6}$`)
	notHost  = regexp.MustCompile(`^(?:[abhvtlp]\d{1,3}|gb\d+|mlx\d*|xid\d*|sxid\d*|rank\d*|eth\d*|ens?\d*|ib\d*|test\d*|run\d*|job\d*|dump\d*|log\d*|kmsg\d*|part\d*|exit-?\d*|code\d*|page\d*|phase\d*|step-?\d*|file\d*|gpu\d*|nic\d*|try\d*|case\d*|v\d+|x\d+|cuda\d*|nccl\d*|hdr\d*|ndr\d*|edr\d*|perf(?:query)?\d*|ibstat(?:us)?\d*|iblinkinfo\d*|dmesg\d*|smi\d*|topo\d*|nvlink\d*|ethtool\d*|lspci\d*|mlxlink\d*|sample\d*|snap\d*|pass\d*|stat\d*|out\d*|err\d*|std(?:out|err)\d*|messages\d*|syslog\d*|journal\d*|counters?\d*|trace\d*|flight\d*|ras\d*|attempt\d*|restart\d*|round\d*|time\d*|before\d*|after\d*|old\d*|new\d*|worker\d*-?log\d*)$`)
)

func reversed(l []string) []string {
	l = slices.Clone(l)
	slices.Reverse(l)
	return l
}

// Finish fills in what single files do not know: the hosts of files that do not name theirs, and the zones of their clocks.
func Finish(c *doctor.Case) {
	defer clocks(c)
	known := map[string]bool{}
	for i := range c.Lines {
		if h := c.Lines[i].Host; h != "" {
			known[h] = true
		}
	}
	for i := range c.Perf {
		if h := c.Perf[i].Host; h != "" {
			known[h] = true
		}
	}
	memo := map[string]string{}
	guess := func(h *string, file string) {
		if *h != "" {
			return
		}
		g, ok := memo[file]
		if !ok {
			g = hostFromName(file, known)
			memo[file] = g
		}
		*h = g
	}
	for i := range c.Kernel {
		guess(&c.Kernel[i].Host, c.Kernel[i].At.File)
	}
	for i := range c.GPUs {
		guess(&c.GPUs[i].Host, c.GPUs[i].At.File)
	}
	for i := range c.Paths {
		guess(&c.Paths[i].Host, c.Paths[i].At.File)
	}
	for i := range c.Ports {
		if !c.Ports[i].Switch {
			guess(&c.Ports[i].Host, c.Ports[i].At.File)
		}
	}
	for i := range c.Ether {
		guess(&c.Ether[i].Host, c.Ether[i].At.File)
	}
	for i := range c.PCI {
		guess(&c.PCI[i].Host, c.PCI[i].At.File)
	}
	for i := range c.Addresses {
		guess(&c.Addresses[i].Host, c.Addresses[i].At.File)
	}
	// The log of a job is of many hosts: only a host that is known from elsewhere counts.
	for i := range c.Kernel {
		known[c.Kernel[i].Host] = true
	}
	delete(known, "")
	for i := range c.Lines {
		if l := &c.Lines[i]; l.Kind != "version" && l.Host == "" {
			g, ok := memo["known "+l.At.File]
			if !ok {
				g = knownHost(l.At.File, known)
				memo["known "+l.At.File] = g
			}
			l.Host = g
		}
	}
}
