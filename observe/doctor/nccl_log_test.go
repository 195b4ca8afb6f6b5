package doctor_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/doctor/read"
)

// ncclJob writes the log of a job as a version of NCCL would. Fields that are not set
// are those of a healthy job of two hosts with two GPUs and two NICs each.
type ncclJob struct {
	version   string
	hosts     int
	gpus      int
	nics      int
	net       string                              // IB, Socket
	prefix    func(host, rank int) string         // of the launcher
	ifName    func(host int) string               // eth0
	address   func(host int) string               // 10.0.0.H
	list      func(host int) string               // of NET/IB : Using
	gdr       func(host, rank int) bool           // whether /GDRDMA
	nic       func(host, rank int, send bool) int // of a connection
	env       func(host, rank int) []string       // NAME=value
	more      func(host, rank int) []string       // messages after init; WARN: in front makes a warning
	early     func(host, rank int) []string       // messages before init
	channels  func(host, rank int) string         // the channels line
	intra     string                              // P2P/CUMEM, SHM/direct/direct
	times     bool                                // a clock in front of every line
	moreAt    int                                 // seconds between init and more
	noStart   func(host, rank int) bool           // the rank never comes
	noDone    bool                                // init does not end
	noVia     bool
	shape     func(host, rank int) string // nNodes N localRanks L
	versionOf func(host, rank int) string
	network   func(host, rank int) string
}

func (j ncclJob) at2(v ...int) bool {
	var a, b, c int
	fmt.Sscanf(j.version, "%d.%d.%d", &a, &b, &c)
	return slices.Compare([]int{a, b, c}, v) >= 0
}

// text is the log of all ranks in one file, line by line as a launcher would mix it.
func (j ncclJob) text() string {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	if j.version == "" {
		j.version = "2.27.3"
	}
	def(&j.hosts, 2)
	def(&j.gpus, 2)
	def(&j.nics, 2)
	if j.net == "" {
		j.net = "IB"
	}
	if j.intra == "" {
		j.intra = "P2P/CUMEM"
		if !j.at2(2, 18, 0) {
			j.intra = "P2P/IPC"
		}
	}
	n := j.hosts * j.gpus
	queues := make([][]string, n)
	for r := range n {
		queues[r] = j.rank(r/j.gpus, r, n)
	}
	var b strings.Builder
	for k := 0; ; k++ {
		any := false
		for r := range n {
			if k < len(queues[r]) {
				any = true
				b.WriteString(queues[r][k] + "\n")
			}
		}
		if !any {
			return b.String()
		}
	}
}

func (j ncclJob) rank(h, r, n int) []string {
	var out []string
	line, late := 0, 0
	pid := 4000 + r
	say := func(format string, args ...any) {
		msg := fmt.Sprintf(format, args...)
		ts := ""
		if j.times {
			sec := line + late
			ts = fmt.Sprintf("[2025-03-01 %02d:%02d:%02d] ", 10+sec/3600, sec/60%60, sec%60)
		}
		line++
		pre := ""
		if j.prefix != nil {
			pre = j.prefix(h, r)
		}
		head := fmt.Sprintf("%s%sn%d:%d:%d [%d]", pre, ts, h, pid, pid+100, r%j.gpus)
		if w, ok := strings.CutPrefix(msg, "WARN: "); ok {
			src := "misc/x.cc:42"
			if at, rest, ok := strings.Cut(w, "@ "); ok && strings.Contains(at, ".cc") {
				src, w = at, rest
			}
			out = append(out, pre, head+" "+src+" NCCL WARN "+w)
			return
		}
		out = append(out, head+" NCCL INFO "+msg)
	}
	vers := j.version
	if j.versionOf != nil {
		vers = j.versionOf(h, r)
	}
	dot, boot := " : ", "Bootstrap : Using "
	if j.at2(2, 24, 0) {
		boot = "Bootstrap: Using "
	}
	_ = dot
	name, addr := "eth0", fmt.Sprintf("10.0.0.%d", h+1)
	if j.ifName != nil {
		name = j.ifName(h)
	}
	if j.address != nil {
		addr = j.address(h)
	}
	if j.env != nil {
		for _, kv := range j.env(h, r) {
			k, v, _ := strings.Cut(kv, "=")
			say("%s set by environment to %s.", k, v)
		}
	}
	say("%s%s:%s<0>", boot, name, addr)
	if j.at2(2, 22, 0) || r == 0 {
		if j.at2(2, 22, 0) {
			say("NCCL version %s+cuda12.4", vers)
		} else {
			out = append(out, "NCCL version "+vers+"+cuda11.8")
		}
	}
	if j.early != nil {
		for _, m := range j.early(h, r) {
			say("%s", m)
		}
	}
	if j.noStart != nil && j.noStart(h, r) {
		return out
	}
	say("NET/Plugin: No plugin found (libnccl-net.so), using internal implementation")
	if j.net == "IB" {
		list := ""
		for i := range j.nics {
			list += fmt.Sprintf(" [%d]mlx5_%d:1/IB", i, i)
		}
		if j.list != nil {
			list = j.list(h)
		}
		ro := ""
		if j.at2(2, 12, 0) {
			ro = " [RO]"
		}
		say("NET/IB : Using%s%s; OOB %s:%s<0>", list, ro, name, addr)
	}
	net := j.net
	if j.network != nil {
		net = j.network(h, r)
	}
	if j.at2(2, 6, 0) {
		say("Using network %s", net)
	}
	comm := fmt.Sprintf("comm 0x55%04x rank %d nranks %d cudaDev %d", r, r, n, r%j.gpus)
	if j.at2(2, 18, 3) {
		comm += fmt.Sprintf(" nvmlDev %d", r%j.gpus)
	}
	if j.at2(2, 5, 0) {
		comm += fmt.Sprintf(" busId %x000", 0x1b+r%j.gpus)
	}
	if j.at2(2, 16, 0) {
		comm += " commId 0x5ca1ab1e"
	}
	fn := ""
	if j.at2(2, 21, 0) {
		fn = "ncclCommInitRank "
	}
	if j.at2(2, 18, 3) {
		who := ""
		if j.at2(2, 29, 0) {
			who = fmt.Sprintf("[Rank %d] ", r)
		}
		say("%s%s%s - Init START", who, fn, comm)
	}
	if j.at2(2, 23, 0) {
		say("Bootstrap timings total 0.012 (create 0.001, send 0.001, recv 0.004, ring 0.002, delay 0.000)")
	}
	if j.at2(2, 28, 0) {
		say("ncclTopoGetCpuAffinity: Affinity for GPU %d is 0-31. (GPU affinity = 0-31 ; CPU affinity = 0-127).", r%j.gpus)
	} else {
		say("Setting affinity for GPU %d to ffff,ffffffff", r%j.gpus)
	}
	if j.at2(2, 20, 0) {
		sh := fmt.Sprintf("nNodes %d localRanks %d", j.hosts, j.gpus)
		if j.shape != nil {
			sh = j.shape(h, r)
		}
		say("comm 0x55%04x rank %d nRanks %d %s localRank %d MNNVL 0", r, r, n, sh, r%j.gpus)
	}
	say("Trees [0] -1/-1/-1->%d->%d", r, max(r-1, -1))
	word, chk := "Ring", "00"
	if j.at2(2, 7, 0) {
		word = "Channel"
	}
	if j.at2(2, 14, 0) {
		chk = "00/0"
	}
	id := func(x int) string {
		if j.at2(2, 18, 3) {
			return fmt.Sprintf("%d[%d]", x, x%j.gpus)
		}
		return fmt.Sprintf("%d[%x000]", x, 0x1b+x%j.gpus)
	}
	if !j.noVia {
		next, prev := (r+1)%n, (r+n-1)%n
		via := func(a, b int, send bool) {
			g := ""
			if j.net == "IB" && (j.gdr == nil || j.gdr(h, r)) {
				g = "/GDRDMA"
			}
			k := r % j.gpus % j.nics
			if j.nic != nil {
				k = j.nic(h, r, send)
			} else if j.gpus > 1 { // the first and the last GPU of a host hold its two ends
				k = map[bool]int{true: 1 % j.nics, false: 1 % j.nics}[send]
			}
			dir := map[bool]string{true: "send", false: "receive"}[send]
			say("%s %s : %s -> %s [%s] via NET/%s/%d%s", word, chk, id(a), id(b), dir, j.net, k, g)
		}
		if next/j.gpus != h {
			via(r, next, true)
		} else if n > 1 {
			say("%s %s : %s -> %s via %s", word, chk, id(r), id(next), j.intra)
		}
		if prev/j.gpus != h {
			via(prev, r, false)
		}
		// A second channel on the other NIC.
		chk = strings.Replace(chk, "00", "01", 1)
		old := j.nic
		if old == nil && j.nics > 1 {
			j.nic = func(int, int, bool) int { return 0 }
		}
		if next/j.gpus != h {
			via(r, next, true)
		}
		if prev/j.gpus != h {
			via(prev, r, false)
		}
		j.nic = old
	}
	if j.noDone {
		return out
	}
	if j.at2(2, 24, 0) {
		say("Connected all rings, use ring PXN 0 GDR 1")
	} else if j.at2(2, 8, 0) {
		say("Connected all rings")
	}
	ch := "2 coll channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer"
	if j.at2(2, 20, 0) {
		ch = "2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer"
	} else if !j.at2(2, 17, 0) {
		ch = "2 coll channels, 2 p2p channels, 2 p2p channels per peer"
	}
	if j.channels != nil {
		ch = j.channels(h, r)
	}
	if j.at2(2, 7, 0) {
		say("%s", ch)
	}
	say("%s%s - Init COMPLETE", fn, comm)
	late = j.moreAt
	if j.more != nil {
		for _, m := range j.more(h, r) {
			say("%s", m)
		}
	}
	return out
}

// one puts a message on one rank.
func one(rank int, msgs ...string) func(h, r int) []string {
	return func(_, r int) []string {
		if r == rank {
			return msgs
		}
		return nil
	}
}

// all puts messages on every rank.
func all(msgs ...string) func(h, r int) []string {
	return func(int, int) []string { return msgs }
}

// diagnose reads texts as files and judges them.
func diagnose(t testing.TB, files map[string]string) *doctor.Report {
	t.Helper()
	c := &doctor.Case{}
	var names []string
	for n := range files {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		if err := read.File(c, n, "", strings.NewReader(files[n])); err != nil {
			t.Fatal(err)
		}
	}
	read.Finish(c)
	return doctor.Diagnose(c, doctor.Options{})
}

func ids(r *doctor.Report, from doctor.Severity) []string {
	var out []string
	for _, f := range r.Findings {
		if f.Severity >= from {
			out = append(out, f.ID)
		}
	}
	return out
}

func found(r *doctor.Report, id string) *doctor.Finding {
	for i := range r.Findings {
		if r.Findings[i].ID == id {
			return &r.Findings[i]
		}
	}
	return nil
}

var versions = []string{"2.4.8", "2.5.7", "2.6.4", "2.7.8", "2.8.3", "2.9.9", "2.10.3", "2.11.4", "2.12.12", "2.13.4", "2.14.3", "2.15.5",
	"2.16.5", "2.17.1", "2.18.3", "2.19.4", "2.20.5", "2.21.5", "2.22.3", "2.23.4", "2.24.3",
	"2.25.1", "2.26.2", "2.27.3", "2.27.7", "2.28.3", "2.28.9", "2.29.2", "2.29.7", "2.30.3", "2.30.7"}

var launchers = map[string]func(h, r int) string{
	"none":    nil,
	"openmpi": func(_, r int) string { return fmt.Sprintf("[1,%d]<stdout>:", r) },
	"torch":   func(_, r int) string { return fmt.Sprintf("[rank%d]: ", r) },
	"srun":    func(_, r int) string { return fmt.Sprintf("%d: ", r) },
	"mpich":   func(_, r int) string { return fmt.Sprintf("[%d] ", r) },
	"cloud":   func(_, _ int) string { return "  | 2025-05-22T14:26:33.406-07:00 | " },
	"pdsh":    func(h, _ int) string { return fmt.Sprintf("n%d.cluster.local: ", h) },
	"ray":     func(h, r int) string { return fmt.Sprintf("(RayTrainWorker pid=%d, ip=10.0.0.%d) ", 4000+r, h+1) },
	"cri":     func(_, r int) string { return fmt.Sprintf("2025-03-01T10:00:%02d.123456789Z stdout F ", r) },
	"default": func(h, r int) string { return fmt.Sprintf("[default%d]:", r) },
	"colour":  func(_, r int) string { return fmt.Sprintf("\x1b[36m(worker %d)\x1b[0m ", r) },
}

// A healthy log of any version behind any launcher gives no finding.
func TestHealthyLogsAreHealthy(t *testing.T) {
	for _, v := range versions {
		for name, prefix := range launchers {
			if name != "none" && v != "2.8.3" && v != "2.20.5" && v != "2.30.7" {
				continue
			}
			r := diagnose(t, map[string]string{"job.log": ncclJob{version: v, prefix: prefix}.text()})
			if got := ids(r, doctor.Warning); len(got) > 0 {
				t.Errorf("NCCL %s behind %s: %v, %s", v, name, got, r.Verdict)
			}
			if len(r.Jobs) != 1 || r.Jobs[0].Ranks != 4 || r.Jobs[0].Seen != 4 || len(r.Jobs[0].Hosts) != 2 {
				t.Errorf("NCCL %s behind %s: jobs %+v", v, name, r.Jobs)
			}
		}
	}
}

// One file a rank is the same job as one file.
func TestOneFileARank(t *testing.T) {
	text := ncclJob{}.text()
	files := map[string]string{}
	for l := range strings.Lines(text) {
		for r := range 4 {
			if strings.Contains(l, fmt.Sprintf(":%d:", 4000+r)) {
				files[fmt.Sprintf("nccl.%d.log", r)] += l
			}
		}
	}
	r := diagnose(t, files)
	if len(files) != 4 || len(r.Jobs) != 1 || r.Jobs[0].Seen != 4 || len(ids(r, doctor.Warning)) > 0 {
		t.Errorf("%d files: jobs %+v, %v", len(files), r.Jobs, ids(r, doctor.Warning))
	}
}

// Before 2.16 a communicator has no id, and before 2.18.3 it is named at its end. Jobs with many
// groups of one size, each set up by a thread of its own or all by one, are healthy.
func TestManyGroupsWithoutIDs(t *testing.T) {
	for _, threads := range []bool{true, false} {
		var b strings.Builder
		comm := 0
		// group prints the setup of a communicator on all its ranks: hosts of two GPUs.
		group := func(ranks []int, channels int) {
			comm++
			n := len(ranks)
			for i, r := range ranks {
				tid := 9000 + r
				if threads {
					tid = 9000 + 100*comm + r
				}
				say := func(format string, args ...any) {
					fmt.Fprintf(&b, "n%d:%d:%d [%d] NCCL INFO %s\n", r/2, 4000+r, tid, r%2, fmt.Sprintf(format, args...))
				}
				for c := range 2 {
					next, prev := (i+1)%n, (i+n-1)%n
					if ranks[next]/2 == r/2 {
						say("Channel %02d : %d[%x000] -> %d[%x000] via P2P/IPC", c, i, 0x1a+r%2, next, 0x1a+ranks[next]%2)
					} else {
						say("Channel %02d : %d[%x000] -> %d[%x000] [send] via NET/IB/%d", c, i, 0x1a+r%2, next, 0x1a+ranks[next]%2, c)
					}
					if ranks[prev]/2 != r/2 {
						say("Channel %02d : %d[%x000] -> %d[%x000] [receive] via NET/IB/%d", c, prev, 0x1a+ranks[prev]%2, i, 0x1a+r%2, c)
					}
				}
				say("%d coll channels, %d p2p channels, 1 p2p channels per peer", channels, channels)
				say("comm 0x7f%04x%04x rank %d nranks %d cudaDev %d busId %x000 - Init COMPLETE", comm, r, i, n, r%2, 0x1a+r%2)
			}
		}
		b.WriteString("NCCL version 2.7.8+cuda10.2\n")
		for _, g := range [][]int{{0, 1}, {2, 3}, {4, 5}, {6, 7}} { // tensor groups: inside a host
			group(g, 12)
		}
		for _, g := range [][]int{{0, 2}, {1, 3}, {4, 6}, {5, 7}} { // pipeline: between hosts
			group(g, 2)
		}
		group([]int{0, 1, 2, 3, 4, 5, 6, 7}, 4)
		r := diagnose(t, map[string]string{"job.log": b.String()})
		if got := ids(r, doctor.Warning); len(got) > 0 {
			t.Errorf("a thread a group %v: %v, %s", threads, got, r.Verdict)
		}
		if len(r.Jobs) != 1 || r.Jobs[0].Ranks != 8 || r.Jobs[0].Seen != 8 {
			t.Errorf("a thread a group %v: jobs %+v", threads, r.Jobs)
		}
	}
}

// The log of one rank does not tell that the others never came: theirs may not be here.
func TestLogOfOneRank(t *testing.T) {
	const start = "n5:3001:3100 [3] NCCL INFO NCCL version 2.21.5+cuda12.4\n" +
		"n5:3001:3121 [3] NCCL INFO comm 0x55d0 rank 43 nranks 64 cudaDev 3 nvmlDev 3 busId 5d000 commId 0xabc - Init START\n"
	const broke = "n5:3001:3190 [3] transport/net_ib.cc:1294 NCCL WARN NET/IB: Got completion from peer 10.0.0.9<41000> with status=12 opcode=0 len=0 vendor err 129 (Send) localGid fe80::1 remoteGid fe80::2 hca mlx5_3\n"
	if f := found(diagnose(t, map[string]string{"a.log": start}), "never-arrived"); f == nil || f.Confidence > 0.5 ||
		f.Severity != doctor.Warning {
		t.Errorf("one rank that waits: %+v", f)
	}
	r := diagnose(t, map[string]string{"a.log": start + broke})
	if found(r, "never-arrived") != nil || found(r, "ib-pair-unreachable") == nil {
		t.Errorf("one rank whose link broke: %v", ids(r, doctor.Info))
	}
}
