package doctor_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/observe/doctor"
)

type clothing struct {
	name string
	line func(rank int, text string) string
}

// clothes are what launchers, log drivers and terminals put around a line.
var clothes = []clothing{
	{"mpirun --tag-output", func(r int, t string) string { return fmt.Sprintf("[1,%d]<stderr>:%s", r, t) }},
	{"mpirun --timestamp-output", func(r int, t string) string { return fmt.Sprintf("[1,%d]<stdout>: %s", r, t) }},
	{"hydra -prepend-rank", func(r int, t string) string { return fmt.Sprintf("[%d] %s", r, t) }},
	{"srun -l", func(r int, t string) string { return fmt.Sprintf("%d: %s", r, t) }},
	{"torchrun", func(r int, t string) string { return fmt.Sprintf("[rank%d]: %s", r, t) }},
	{"torchrun --tee", func(r int, t string) string { return fmt.Sprintf("[default%d]:%s", r%2, t) }},
	{"kubectl --prefix", func(r int, t string) string { return fmt.Sprintf("[pod/train-worker-%d/pytorch] %s", r, t) }},
	{"stern", func(r int, t string) string { return fmt.Sprintf("train-worker-%d pytorch %s", r, t) }},
	{"docker compose", func(r int, t string) string { return fmt.Sprintf("trainer-%d  | %s", r, t) }},
	{"Ray", func(r int, t string) string {
		return fmt.Sprintf("(RayWorkerWrapper pid=%d, ip=10.9.0.%d) %s", 900+r, r, t)
	}},
	{"Ray in colours", func(r int, t string) string {
		return fmt.Sprintf("\x1b[36m(TrainWorker pid=%d)\x1b[0m %s", 900+r, t)
	}},
	{"ANSI colours", func(_ int, t string) string { return "\x1b[1;33m" + t + "\x1b[0m" }},
	{"carriage returns", func(_ int, t string) string { return t + "\r" }},
	{"progress bar", func(r int, t string) string {
		return "Steps:   0%|          | 1/500 [12:44<14459:40:43, 104.11s/it, loss=0.36]" + t
	}},
	{"syslog", func(_ int, t string) string { return "Nov 16 12:00:00 login01 slurmstepd[4242]: " + t }},
	{"containerd", func(_ int, t string) string { return "2026-11-16T12:00:00.123456789Z stderr F " + t }},
	{"journal, JSON", func(_ int, t string) string {
		b, _ := json.Marshal(map[string]string{"__REALTIME_TIMESTAMP": "1794830400000000", "_HOSTNAME": "login01", "MESSAGE": t, "PRIORITY": "6",
			"SYSLOG_IDENTIFIER": "train"})
		return string(b)
	}},
	{"docker json-file", func(_ int, t string) string {
		b, _ := json.Marshal(map[string]string{"log": t + "\n", "stream": "stderr", "time": "2026-11-16T12:00:00.123456789Z"})
		return string(b)
	}},
	{"Fluent Bit", func(_ int, t string) string {
		b, _ := json.Marshal(map[string]any{"message": t, "kubernetes": map[string]string{"pod_name": "x"}})
		return string(b)
	}},
}

var ofRank = regexp.MustCompile(`[Rr]ank ?(\d+)`)

var origin = regexp.MustCompile(`[A-Za-z]\w*:(\d+):\d+ (?:\[|NCCL)`)

// dress puts clothes on the NCCL lines of a log.
func dress(text string, line func(int, string) string) string {
	ranks := map[string]int{}
	var b strings.Builder
	for l := range strings.Lines(text) {
		l = strings.TrimSuffix(l, "\n")
		r := 0
		if m := origin.FindStringSubmatch(l); m != nil {
			if _, ok := ranks[m[1]]; !ok {
				ranks[m[1]] = len(ranks)
			}
			r = ranks[m[1]]
		} else if m := ofRank.FindStringSubmatch(l); m != nil {
			r, _ = strconv.Atoi(m[1])
		}
		b.WriteString(line(r, l) + "\n")
	}
	return b.String()
}

// A symptom of a log is found and its healthy neighbour is silent in whatever a launcher, a
// log driver or a terminal makes of the log. Each symptom is tried in some of them; in all with
// the long tests.
func TestSymptomsInEveryClothing(t *testing.T) {
	some := bounded.Times(1, len(clothes))
	for i, s := range symptoms() {
		text, one := s.sick["job.log"]
		if !one || !strings.Contains(text, "NCCL") || strings.Contains(text, "] n0:") || clock.MatchString(text) {
			continue // not an NCCL log, or one with a clock or clothes of its own
		}
		for k := range some {
			c := clothes[(i*some+k)%len(clothes)]
			t.Run(s.n+"-"+s.id+" in "+c.name, func(t *testing.T) {
				worn := func(files map[string]string) map[string]string {
					out := map[string]string{}
					for n, x := range files {
						out[n] = x
						if n == "job.log" {
							out[n] = dress(x, c.line)
						}
					}
					return out
				}
				w := s
				w.sick, w.healthy = worn(s.sick), worn(s.healthy)
				w.check(t)
			})
		}
	}
}

var clock = regexp.MustCompile(`(?m)^\[?\d{4}-\d\d-\d\d`)

// wide writes ASCII text as UTF-16; at is where the character stands in its two bytes.
func wide(text, mark string, at int) []byte {
	out := []byte(mark)
	for i := range len(text) {
		two := [2]byte{}
		two[at] = text[i]
		out = append(out, two[:]...)
	}
	return out
}

// What Python raised is the cause, and its rank is known where the launcher names it, in whatever a launcher puts before the line.
func TestTracebackInEveryClothing(t *testing.T) {
	const raised = 6
	trace := []string{"Traceback (most recent call last):", `  File "/srv/train.py", line 210, in <module>`, "    main()",
		"IndexError: list index out of range"}
	worn := append(slices.Clone(clothes), []clothing{
		{"rank N:", func(r int, t string) string { return fmt.Sprintf("rank %d: %s", r, t) }},
		{"RANK-N:", func(r int, t string) string { return fmt.Sprintf("RANK-%d: %s", r, t) }},
		{"[rank: N]", func(r int, t string) string { return fmt.Sprintf("[rank: %d] %s", r, t) }},
		{"[Rank N]", func(r int, t string) string { return fmt.Sprintf("[Rank %d] %s", r, t) }},
		{"node:rank|", func(r int, t string) string { return fmt.Sprintf("gpu-a%d:%d|%s", r/4, r, t) }},
		{"pdsh", func(r int, t string) string { return fmt.Sprintf("n%d: %s", r, t) }},
		{"time and torchrun", func(r int, t string) string { return fmt.Sprintf("2026-11-16 12:00:00,123 [rank%d]: %s", r, t) }},
		{"time in brackets", func(r int, t string) string { return fmt.Sprintf("[2026-11-16 12:00:00] [rank%d]: %s", r, t) }},
		{"date(1)", func(r int, t string) string { return fmt.Sprintf("12:00:00 [rank%d]: %s", r, t) }},
	}...)
	for _, c := range worn {
		t.Run(c.name, func(t *testing.T) {
			var b strings.Builder
			for _, l := range trace {
				b.WriteString(c.line(raised, l) + "\n")
			}
			closed := "n1:771:902 [2] misc/socket.cc:50 NCCL WARN socketProgressOpt: Connection closed by remote peer n1<41822>"
			b.WriteString(c.line(2, closed) + "\n")
			r := diagnose(t, file(b.String()))
			if len(r.Findings) == 0 || r.Findings[0].ID != "program-error" {
				t.Fatalf("%s\n%s", r.Verdict, b.String())
			}
			named := launcherRanks.MatchString(c.line(raised, "x"))
			if got := r.Findings[0].Subject.Ranks; named && !slices.Equal(got, []int{raised}) || !named && len(got) > 0 && got[0] != raised {
				t.Errorf("ranks %v: %s", got, b.String())
			}
		})
	}
}

// launcherRanks are clothes that name the rank of the job, not of the host.
var launcherRanks = regexp.MustCompile(`(?i)rank[^a-z]*6|^6: |\[1,6\]|:6\|`)

// Packed logs are read as they are: gzip, zstd, tar of files, UTF-16, and one in another.
func TestPacked(t *testing.T) {
	text := ncclJob{more: one(1,
		"WARN: NET/IB : Got completion from peer 10.0.0.2<4> with status=4 opcode=0 len=0 vendor err 81 (Send)")}.text()
	zip := func(b []byte) []byte {
		var out bytes.Buffer
		w := gzip.NewWriter(&out)
		w.Write(b)
		w.Close()
		return out.Bytes()
	}
	zst := func(b []byte) []byte {
		w, _ := zstd.NewWriter(nil)
		return w.EncodeAll(b, nil)
	}
	tarred := func(b []byte) []byte {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		for _, x := range []struct {
			name string
			data []byte
		}{{"job/README", []byte("nothing\n")}, {"job/nccl.log", b}} {
			w.WriteHeader(&tar.Header{Name: x.name, Mode: 0o600, Size: int64(len(x.data)), Typeflag: tar.TypeReg})
			w.Write(x.data)
		}
		w.Close()
		return out.Bytes()
	}
	plain := []byte(text)
	for name, b := range map[string][]byte{"log.gz": zip(plain), "log.zst": zst(plain), "logs.tar": tarred(plain),
		"logs.tar.gz": zip(tarred(plain)), "logs.tar.zst": zst(tarred(zip(plain))),
		"utf16le.log": wide(text, "\xff\xfe", 0), "utf16be.log": wide(text, "\xfe\xff", 1), "bare16.log": wide(text, "", 0)} {
		r := diagnose(t, map[string]string{name: string(b)})
		if f := found(r, "gpudirect-acs"); f == nil || !slices.Equal(f.Subject.Hosts, []string{"n0"}) {
			t.Errorf("%s: %v %v", name, ids(r, doctor.Info), r.Files)
		}
		for _, cut := range []int{len(b) / 2, len(b) - 20} { // nothing but notes
			diagnose(t, map[string]string{name: string(b[:cut])})
		}
	}
}

// Half lines of two processes that write at once: what is whole is found, and a healthy job
// stays healthy.
func TestHalfLines(t *testing.T) {
	text := ncclJob{}.text()
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for seed := range 40 {
		var b strings.Builder
		for i := 0; i < len(lines); i++ {
			if (i*7+seed)%11 == 0 && i+1 < len(lines) && len(lines[i]) > 40 {
				at := 10 + (seed*13+i)%(len(lines[i])-10)
				// The second process's line lands in the middle of the first one's.
				b.WriteString(lines[i][:at] + lines[i+1] + "\n" + lines[i][at:] + "\n")
				i++
				continue
			}
			b.WriteString(lines[i] + "\n")
		}
		if r := diagnose(t, file(b.String())); len(ids(r, doctor.Warning)) > 0 {
			t.Errorf("seed %d: %v: %s", seed, ids(r, doctor.Warning), r.Verdict)
		}
	}
}
