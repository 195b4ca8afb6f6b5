package read

import (
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/doctor/read/internal/regexp"
)

// NCCL's own reports: RAS, Inspector and nccl-tests.

// rasJSON reads the JSON form of a RAS report.
func (s *scan) rasJSON(d *pdict) {
	r := doctor.RAS{File: s.file, Version: d.text("nccl_version"), Time: d.text("timestamp"),
		Timeout: int(d.dict("ras").int("timeouts_count", 0))}
	rank := func(x any) doctor.RASRank {
		v, _ := x.(*pdict)
		st := v.dict("status")
		k := doctor.RASRank{Rank: int(v.int("rank", -1)), Host: v.text("host"), PID: int(v.int("pid", -1)), Dev: int(v.int("cuda_dev", -1)),
			InitState: int(st.int("init_state", 0)), AsyncError: int(st.int("async_error", 0)), Abort: st.bool("abort_flag"),
			Unresponsive: st.bool("unresponsive"), Dead: st.bool("considered_dead"), Counts: map[string]int64{}}
		if c := v.dict("collective_counts"); c != nil {
			for op := range c.m {
				k.Counts[op] = c.int(op, 0)
			}
		}
		return k
	}
	for _, x := range d.list("communicators") {
		cd, _ := x.(*pdict)
		if cd == nil {
			continue
		}
		c := doctor.RASComm{Hash: cd.text("hash"), Size: int(cd.int("size", 0))}
		for _, k := range cd.list("ranks") {
			c.Ranks = append(c.Ranks, rank(k))
		}
		for _, k := range cd.list("missing_ranks") {
			c.Missing = append(c.Missing, rank(k))
		}
		r.Comms = append(r.Comms, c)
	}
	s.c.RAS = append(s.c.RAS, r)
}

// rasEvent reads an event of monitoring mode.
func (s *scan) rasEvent(n int, d *pdict) {
	if d.text("event") != "PEER_DEAD" {
		return
	}
	p := d.dict("peer")
	proc := doctor.RASProcess{At: s.at(n, d.text("timestamp")+" PEER_DEAD process "+p.text("pid")+" on "+p.text("host")),
		PID: int(p.int("pid", -1)), Host: p.text("host"), GPU: print(p.get("cuda_devs")), Dead: true}
	s.c.RAS = append(s.c.RAS, doctor.RAS{File: s.file, Time: d.text("timestamp"), Dead: []doctor.RASProcess{proc}})
}

var (
	rasComm  = regexp.MustCompile(`^\s*#(\d+)-(\d+) \(([0-9a-fA-Fx]+)\) ([A-Z, ]+)`)
	rasRank  = regexp.MustCompile(`Rank (\d+) -- GPU (\S+) managed by process (\d+) on node (\S+)`)
	rasCount = regexp.MustCompile(`have different (\S+) operation counts`)
	rasEvent = regexp.MustCompile(`^\[?([^\]]*)\]? ?PEER_DEAD: Process (\d+) on node (\S+) managing GPUs? (.*)`)
	rasUpTo  = regexp.MustCompile(`(\d+) ranks? ha(?:s|ve) launched up to operation (\d+)`)
	rasProc  = regexp.MustCompile(`Process (\d+) on node (\S+) managing GPUs? (.*)`)
	rasLost  = regexp.MustCompile(`The missing ranks?: (.*)`)
	rasTable = regexp.MustCompile(`^\s*(\d+)\s+(\d+)\s+([\d-]+)\s+([\d-]+)\s+(\d+)\s+(\d+)\s+(NOCOMM|INIT|RUNNING|FINALIZE|ABORT)\S*\s+(\S+)`)
	rasNCCLv = regexp.MustCompile(`NCCL version (\d+\.\d+\.\d+)`)
)

// readRASText reads the report for people. It lists only small groups of ranks,
// which are often the ones ahead and not the ones behind: the counts say which.
func readRASText(s *scan, b []byte) error {
	t := &rasText{s: s, r: doctor.RAS{File: s.file}, sizes: map[string]int{}, upTo: -1}
	n := 0
	for l := range strings.Lines(string(b)) {
		n++
		t.line(n, strings.TrimRight(l, "\r\n"))
	}
	t.counts.fill(t.comm)
	s.c.RAS = append(s.c.RAS, t.r)
	return nil
}

// rasText is what is known while a report is read.
type rasText struct {
	s       *scan
	r       doctor.RAS
	comm    *doctor.RASComm
	section string
	size    int
	sizes   map[string]int // by group
	upTo    int64
	counts  *rasCounts // of the operation that is being listed
}

// line reads a line of the text form. It is a state machine: counts and sections belong to the communicator above them.
func (x *rasText) line(n int, l string) {
	t := strings.TrimSpace(l)
	switch {
	case rasEvent.MatchString(t):
		m := rasEvent.FindStringSubmatch(t)
		p := doctor.RASProcess{At: x.s.at(n, l), Host: m[3], GPU: m[4], Dead: true}
		p.PID, _ = strconv.Atoi(m[2])
		x.r.Dead = append(x.r.Dead, p)
	case rasNCCLv.MatchString(t):
		x.r.Version = rasNCCLv.FindStringSubmatch(t)[1]
	case rasTable.MatchString(l):
		m := rasTable.FindStringSubmatch(l)
		v, _ := strconv.Atoi(m[5])
		x.size = max(x.size, v)
		x.sizes[m[1]] = v
	case rasComm.MatchString(l):
		x.communicator(rasComm.FindStringSubmatch(l))
		x.comm.Text = append(x.comm.Text, x.s.at(n, l))
	case rasCount.MatchString(t):
		x.counts.fill(x.comm)
		x.counts, x.upTo = &rasCounts{op: rasCount.FindStringSubmatch(t)[1]}, -1
	case strings.Contains(t, "have different status"):
		x.counts.fill(x.comm)
		x.counts, x.upTo = nil, -1
	case t == "INCOMPLETE" || t == "DEAD" || t == "TIMEOUT":
		x.section = t
	case rasUpTo.MatchString(t):
		m := rasUpTo.FindStringSubmatch(t)
		x.upTo, _ = strconv.ParseInt(m[2], 10, 64)
		if x.counts == nil {
			x.counts = &rasCounts{op: "collective"}
		}
		x.counts.add(m[1], x.upTo, n)
		if x.comm != nil {
			x.comm.Text = append(x.comm.Text, x.s.at(n, l))
		}
	case rasRank.MatchString(t):
		x.rank(n, rasRank.FindStringSubmatch(t))
	case rasProc.MatchString(t):
		m := rasProc.FindStringSubmatch(t)
		p := doctor.RASProcess{At: x.s.at(n, l), Host: m[2], GPU: m[3], Dead: x.section == "DEAD"}
		p.PID, _ = strconv.Atoi(m[1])
		x.r.Dead = append(x.r.Dead, p)
	case rasLost.MatchString(t) && x.comm != nil:
		for _, r := range ranks(strings.ReplaceAll(rasLost.FindStringSubmatch(t)[1], " ", ",")) {
			x.comm.Missing = append(x.comm.Missing, doctor.RASRank{Rank: r, Line: n})
		}
		x.comm.Text = append(x.comm.Text, x.s.at(n, l))
	}
}

// communicator begins a section: its group, its hash and its state.
func (x *rasText) communicator(m []string) {
	x.counts.fill(x.comm)
	x.counts = nil
	if x.comm == nil || x.comm.Hash != m[3] {
		of, ok := x.sizes[m[1]]
		if !ok {
			of = x.size
		}
		x.r.Comms = append(x.r.Comms, doctor.RASComm{Hash: m[3], Size: of})
		x.comm = &x.r.Comms[len(x.r.Comms)-1]
	}
	x.section, x.upTo = strings.TrimSpace(m[4]), -1
}

// rank takes the line of one rank: it is missing, or has the count that was said last.
func (x *rasText) rank(n int, m []string) {
	if x.comm == nil {
		return
	}
	k := doctor.RASRank{Host: m[4], Counts: map[string]int64{}, Line: n}
	k.Rank, _ = strconv.Atoi(m[1])
	k.Dev, _ = strconv.Atoi(m[2])
	k.PID, _ = strconv.Atoi(m[3])
	if x.section != "MISMATCH" && strings.Contains(x.section, "INCOMPLETE") && x.upTo < 0 {
		x.comm.Missing = append(x.comm.Missing, k)
	} else if x.upTo >= 0 && x.counts != nil {
		x.counts.rank(k)
	}
}

// rasCounts is how far the ranks of a communicator are with one operation. The report
// lists the ranks of small groups only; those of the one group that is not listed are all
// the others.
type rasCounts struct {
	op     string
	groups []rasGroup
}

type rasGroup struct {
	n     int
	upTo  int64
	line  int
	ranks []doctor.RASRank
}

func (c *rasCounts) add(n string, upTo int64, line int) {
	g := rasGroup{upTo: upTo, line: line}
	g.n, _ = strconv.Atoi(n)
	c.groups = append(c.groups, g)
}

func (c *rasCounts) rank(k doctor.RASRank) {
	g := &c.groups[len(c.groups)-1]
	g.ranks = append(g.ranks, k)
}

// fill gives every rank the count of its group. The report names the ranks of small groups only: one group without
// names has all that are left, and of two nothing is known.
func (c *rasCounts) fill(comm *doctor.RASComm) {
	if c == nil || comm == nil {
		return
	}
	listed := map[int]bool{}
	for _, k := range comm.Missing {
		listed[k.Rank] = true
	}
	open := -1
	if comm.Top == nil {
		comm.Top = map[string]int64{}
	}
	for i, g := range c.groups {
		comm.Top[c.op] = max(comm.Top[c.op], g.upTo)
		for _, k := range g.ranks {
			listed[k.Rank] = true
		}
		if len(g.ranks) < g.n {
			if open >= 0 {
				open = -2 // two groups without names: nobody knows who is in which
			} else if open == -1 {
				open = i
			}
		}
	}
	if open >= 0 {
		g := &c.groups[open]
		named := g.ranks
		g.ranks = nil
		for _, k := range named {
			delete(listed, k.Rank)
		}
		for r := range min(comm.Size, 1<<20) {
			if !listed[r] {
				g.ranks = append(g.ranks, doctor.RASRank{Rank: r, Dev: -1, PID: -1, Counts: map[string]int64{}, Line: g.line})
			}
		}
		if len(g.ranks) != g.n { // the report is cut, or its size is unknown
			g.ranks = named
		}
	}
	for _, g := range c.groups {
		for _, k := range g.ranks {
			i := slices.IndexFunc(comm.Ranks, func(x doctor.RASRank) bool { return x.Rank == k.Rank })
			if i < 0 {
				comm.Ranks = append(comm.Ranks, k)
				i = len(comm.Ranks) - 1
			} else if comm.Ranks[i].Host == "" {
				old := comm.Ranks[i].Counts
				comm.Ranks[i] = k
				comm.Ranks[i].Counts = old
			}
			comm.Ranks[i].Counts[c.op] = g.upTo
		}
	}
}

// inspected are the header and the metadata of a record of NCCL Inspector. Each record has both up to version 4.2; later ones have
// them once, in the marker before the records of a communicator.
func (s *scan) inspected(d *pdict) (header, metadata *pdict) {
	for _, from := range []*pdict{d, d.dict("dump_stats")} {
		if from == nil {
			continue
		}
		if h := from.dict("header"); h != nil {
			s.header = h
		}
		if m := from.dict("metadata"); m != nil {
			s.metadata = m
		}
	}
	return s.header, s.metadata
}

// inspector reads one record of NCCL Inspector.
func (s *scan) inspector(n int, d *pdict) {
	if s.kept++; s.kept > maxEvents {
		s.lost++
		return
	}
	h, m := s.inspected(d)
	p := doctor.Perf{At: doctor.Evidence{File: s.file, Line: n}, Comm: h.text("id"), Rank: int(h.int("rank", -1)), N: int(h.int("n_ranks", 0)),
		Host: m.text("hostname"), PID: int(m.int("pid", 0)), Peer: -1}
	p.Host, _, _ = strings.Cut(p.Host, ".")
	if st := d.dict("dump_stats"); st != nil {
		for k := range st.m {
			if strings.Contains(k, "drop") || strings.Contains(k, "overwrit") {
				p.Drops += st.int(k, 0)
			}
		}
	}
	if c := d.dict("coll_perf"); c != nil {
		p.Op, p.Seq, p.Bytes, p.Micros = c.text("coll"), c.int("coll_sn", -1), c.int("coll_msg_size_bytes", 0), c.float("coll_exec_time_us")
		p.Bus, p.Source = c.float("coll_busbw_gbs"), c.text("coll_timing_source")
	} else if c := d.dict("p2p_perf"); c != nil {
		p.Op, p.Seq, p.Bytes, p.Micros = c.text("p2p"), c.int("p2p_sn", -1), c.int("p2p_msg_size_bytes", 0), c.float("p2p_exec_time_us")
		p.Bus, p.Peer = c.float("p2p_busbw_gbs"), int(c.int("p2p_peer", -1))
	} else if p.Drops == 0 {
		return
	}
	s.c.Perf = append(s.c.Perf, p)
}

var promLine = regexp.MustCompile(`^(nccl_\w+)\{(.*)\} ([-+0-9.eE]+)`)
var promLabel = regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)

// readInspectorProm reads the textfile metrics of NCCL Inspector. They are means
// over an interval, so they carry no sequence.
func readInspectorProm(s *scan, b []byte) error {
	n := 0
	for l := range strings.Lines(string(b)) {
		n++
		m := promLine.FindStringSubmatch(l)
		if m == nil {
			continue
		}
		label := map[string]string{}
		for _, x := range promLabel.FindAllStringSubmatch(m[2], -1) {
			label[x[1]] = x[2]
		}
		v, err := strconv.ParseFloat(m[3], 64)
		if err != nil {
			continue
		}
		p := doctor.Perf{At: s.at(n, l), Comm: label["comm_name"], Rank: -1, Host: label["node"],
			Op: label["collective"] + label["p2p_operation"], Seq: -1, Peer: -1, Source: "metrics gpu " + label["gpu"]}
		p.N, _ = strconv.Atoi(label["nranks"])
		if size, err := strconv.ParseInt(label["message_size"], 10, 64); err == nil {
			p.Bytes = size
		}
		switch m[1] {
		case "nccl_bus_bandwidth_gbs":
			p.Bus = v
		case "nccl_collective_exec_time_microseconds":
			p.Micros = v
		default:
			continue
		}
		s.c.Perf = append(s.c.Perf, p)
	}
	return nil
}

// nccl-tests.

type benchState struct {
	head  bool // a heading was seen: rows may follow
	idle  int  // lines since that were none
	op    string
	ranks int
	table int
	rows  int
	cols  int // figures a half of a row
}

func (b *benchState) active() bool { return b.head }

var (
	benchOp  = regexp.MustCompile(`\b(all_reduce|all_gather|reduce_scatter|alltoall|broadcast|reduce|sendrecv|scatter|gather|hypercube)_perf\b`)
	benchDev = regexp.MustCompile(`#\s+Rank +(\d+) (?:Group +\d+ +)?Pid +(\d+) on +(\S+) device`)
	benchRow = regexp.MustCompile(`(?:^|[:\s>])\s*(\d+)\s+(\d+)\s+([a-z][\w]*)(?:\s+([a-z]\w*))?\s+(-?[\d. \t+eE/NA-]+)$`)
	numField = regexp.MustCompile(`^-?\d+(?:\.\d+)?(?:e[+-]?\d+)?$|^N/A$`)
)

// n1: Test CUDA failure common.cu:1007 'CUDA-capable device(s) is/are busy or unavailable'
var benchFail = regexp.MustCompile(`([A-Za-z][\w-]*)?[\w.]*:? ?Test (CUDA|NCCL) failure \S+:\d+ '([^']*)'`)

// benchFailure reads a line by which nccl-tests gives up.
func (s *scan) benchFailure(n int, text string) bool {
	m := benchFail.FindStringSubmatch(text)
	if m == nil {
		return false
	}
	l := doctor.Line{At: s.at(n, text), Kind: "cuda_error", Warn: true, Dev: -1, Rank: launcherRank(text), Host: m[1], Msg: text,
		F: map[string]string{"msg": m[3]}}
	if m[2] == "NCCL" {
		l.Kind, l.F = "nccl_failed", map[string]string{"what": strings.TrimSpace(strings.SplitN(m[3], "/", 2)[0])}
	}
	s.addLine(l)
	return true
}

// benchLine reads a line of nccl-tests. A table's rows count only under its heading, and the heading ends after some
// lines that are no rows.
func (s *scan) benchLine(n int, text string) {
	b := &s.bench
	if m := benchOp.FindStringSubmatch(text); m != nil {
		b.op = m[1]
	}
	switch {
	case strings.Contains(text, "# nThread") || strings.Contains(text, "nThread ") && strings.Contains(text, "minBytes"):
		s.addLine(doctor.Line{At: s.at(n, text), Kind: "bench_head", Dev: -1, Rank: launcherRank(text), Msg: text})
		b.ranks = 0
		b.head, b.idle = true, 0
		return
	case strings.Contains(text, "failure") && s.benchFailure(n, text):
		return
	case strings.Contains(text, "algbw") && strings.Contains(text, "busbw"):
		b.head, b.idle = true, 0
		b.table++
		b.cols = strings.Count(text, "busbw")
		return
	}
	if m := benchDev.FindStringSubmatch(text); m != nil {
		r, _ := strconv.Atoi(m[1])
		b.ranks = max(b.ranks, r+1)
		return
	}
	if !b.head {
		return
	}
	m := benchRow.FindStringSubmatch(text)
	if m == nil {
		if b.idle++; b.idle > patience {
			b.head = false
		}
		return
	}
	s.benchRow(n, text, m)
}

// benchRow reads a row of the table: out of place, then in place, each a time, two rates and perhaps what was wrong.
func (s *scan) benchRow(n int, text string, m []string) {
	b := &s.bench
	f := strings.Fields(m[5])
	for _, x := range f {
		if !numField.MatchString(x) {
			return
		}
	}
	if len(f) == 9 || len(f) > 9 && len(f)%2 == 1 { // root
		f = f[1:]
	}
	if len(f) < 6 || len(f)%2 != 0 { // time and two rates, out of place and in place
		return
	}
	size, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil {
		return
	}
	b.rows++
	b.idle = 0
	half := len(f) / 2
	for i, place := range []string{"out-of-place", "in-place"} {
		h := f[i*half : (i+1)*half]
		row := doctor.Bench{At: s.at(n, text), Op: b.op, Ranks: b.ranks, Size: size, Type: m[3], Wrong: -1, Table: b.table, Place: place}
		row.Micros, _ = strconv.ParseFloat(h[0], 64)
		row.Alg, _ = strconv.ParseFloat(h[1], 64)
		row.Bus, _ = strconv.ParseFloat(h[2], 64)
		if len(h) > 3 {
			if w, err := strconv.ParseInt(h[3], 10, 64); err == nil {
				row.Wrong = w
			} else if w, err := strconv.ParseFloat(h[3], 64); err == nil && w > 1e-3 {
				row.Wrong = 1 // the old column is the largest error
			}
		}
		s.c.Bench = append(s.c.Bench, row)
	}
}

// benchJSON reads nccl-tests' JSON. The operation is in it or in the file's name, depending on the version.
func (s *scan) benchJSON(d *pdict) {
	op := ""
	if m := benchOp.FindStringSubmatch(s.file); m != nil {
		op = m[1]
	}
	if c := d.dict("config"); c != nil {
		for _, k := range []string{"collective", "test", "name", "operation"} {
			if v := c.text(k); v != "" {
				op = strings.TrimSuffix(v, "_perf")
			}
		}
	}
	devices := len(d.list("devices"))
	for _, x := range d.list("results") {
		r, _ := x.(*pdict)
		if r == nil {
			continue
		}
		for _, place := range []string{"out-of-place", "in-place"} {
			h := r.dict(strings.ReplaceAll(place, "-", "_"))
			if h == nil {
				continue
			}
			s.c.Bench = append(s.c.Bench, doctor.Bench{At: s.at(0, op+" of "+r.text("size")+" bytes"), Op: op, Ranks: devices,
				Size: r.int("size", 0), Type: r.text("type"),
				Micros: h.float("time"), Alg: h.float("alg_bw"), Bus: h.float("bus_bw"), Wrong: h.int("nwrong", -1), Place: place})
		}
	}
}
