package doctor_test

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/doctor/read"
)

// pickle writes a value as Python's protocol 2 does.
func pickle(v any) []byte {
	var b bytes.Buffer
	b.Write([]byte{0x80, 2})
	pickleValue(&b, v)
	b.WriteByte('.')
	return b.Bytes()
}

type pair struct {
	k string
	v any
}
type dict []pair
type tuple [2]string

func pickleValue(b *bytes.Buffer, v any) {
	switch v := v.(type) {
	case dict:
		b.WriteString("}(")
		for _, p := range v {
			pickleValue(b, p.k)
			pickleValue(b, p.v)
		}
		b.WriteByte('u')
	case []any:
		b.WriteString("](")
		for _, x := range v {
			pickleValue(b, x)
		}
		b.WriteByte('e')
	case tuple:
		pickleValue(b, v[0])
		pickleValue(b, v[1])
		b.WriteByte(0x86)
	case string:
		b.WriteByte('X')
		binary.Write(b, binary.LittleEndian, uint32(len(v)))
		b.WriteString(v)
	case int:
		b.WriteByte(0x8a)
		b.WriteByte(8)
		binary.Write(b, binary.LittleEndian, int64(v))
	case bool:
		b.WriteByte(map[bool]byte{true: 0x88, false: 0x89}[v])
	case nil:
		b.WriteByte('N')
	default:
		panic(fmt.Sprintf("%T", v))
	}
}

// step is an operation of a made-up job: a collective of a group, or a message.
type step struct {
	group    string
	seq      int
	name     string
	from, to int // of a message, ranks inside the group
	p2p      bool
	size     int
	dtype    string // Float unless told
}

// dumpsOf writes the dumps of a job of which every rank has finished some operations
// of its program and issued some more.
type dumpJob struct {
	groups   map[string][]int
	program  map[int][]step
	finished map[int]int
	issued   map[int]int
	at       map[string]map[int]int // where an operation is in the program of each rank, after play
	keys     map[int][]string       // operations of each rank by name
}

func (j dumpJob) file(rank int) []byte { return pickle(j.value(rank)) }

func (j dumpJob) value(rank int) dict {
	ids := map[string]int{}
	for i, g := range slices.Sorted(mapsKeys(j.groups)) {
		ids[g] = i
	}
	config, status := dict{}, dict{}
	for _, g := range slices.Sorted(mapsKeys(j.groups)) {
		if !slices.Contains(j.groups[g], rank) {
			continue
		}
		text := strings.ReplaceAll(fmt.Sprint(j.groups[g]), " ", ", ")
		config = append(config, pair{g, dict{{"name", g}, {"desc", "group " + g}, {"ranks", text}}})
		enq, comp := -1, -1
		for i, s := range j.program[rank] {
			if s.group == g && i < j.issued[rank] {
				enq = s.seq
				if i < j.finished[rank] {
					comp = s.seq
				}
			}
		}
		status = append(status, pair{fmt.Sprint(ids[g]),
			dict{{"last_enqueued_collective", enq}, {"last_started_collective", -1}, {"last_completed_collective", comp}}})
	}
	entries := []any{}
	for i, s := range j.program[rank] {
		if i >= j.issued[rank] {
			break
		}
		state := "scheduled"
		if i < j.finished[rank] {
			state = "completed"
		}
		name := s.name
		if s.p2p {
			name = fmt.Sprintf("send %d->%d", s.from, s.to)
			if j.groups[s.group][s.to] == rank {
				name = fmt.Sprintf("recv %d<-%d", s.to, s.from)
			}
		}
		entries = append(entries, dict{{"record_id", i}, {"pg_id", ids[s.group]}, {"process_group", tuple{s.group, "group " + s.group}},
			{"collective_seq_id", s.seq}, {"p2p_seq_id", s.seq}, {"op_id", s.seq},
			{"profiling_name", "nccl:" + name}, {"state", state}, {"is_p2p", s.p2p}, {"input_sizes", []any{[]any{s.size}}},
			{"output_sizes", []any{[]any{s.size}}}, {"input_dtypes", []any{cmp.Or(s.dtype, "Float")}}, {"time_created_ns", 1700000000000000000 + i},
			{"retired", state == "completed"}, {"timeout_ms", 600000}})
	}
	return dict{{"version", "2.9"}, {"pg_config", config}, {"nccl_version", "2.27.3"}, {"pg_status", status}, {"entries", entries}}
}

func mapsKeys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// grid is a job of tensor pairs and data groups over n ranks that runs k rounds.
func grid(n, rounds int) dumpJob {
	j := dumpJob{groups: map[string][]int{}, program: map[int][]step{}, finished: map[int]int{}, issued: map[int]int{}}
	var world []int
	for r := range n {
		world = append(world, r)
	}
	j.groups["0"] = world
	for r := 0; r < n; r += 2 {
		j.groups[fmt.Sprint(1+r/2)] = []int{r, r + 1}
	}
	for d := range 2 {
		var g []int
		for r := d; r < n; r += 2 {
			g = append(g, r)
		}
		j.groups[fmt.Sprint(1+n/2+d)] = g
	}
	for r := range n {
		for k := range rounds {
			j.program[r] = append(j.program[r],
				step{group: fmt.Sprint(1 + r/2), seq: 2*k + 1, name: "all_gather", size: 64},
				step{group: fmt.Sprint(1 + r/2), seq: 2*k + 2, name: "reduce_scatter", size: 64},
				step{group: fmt.Sprint(1 + n/2 + r%2), seq: k + 1, name: "all_reduce", size: 128},
				step{group: "0", seq: k + 1, name: "all_reduce", size: 1})
		}
	}
	return j
}

// stop lets every rank run until nothing moves: an operation finishes when all its
// members have issued it. Ranks of limit issue no more than that; ranks of dead do not
// finish what others finish.
func (j dumpJob) stop(limit map[int]int, dead map[int]bool) dumpJob {
	ahead := 6 // operations a rank issues beyond what is finished
	for moved := true; moved; {
		moved = false
		for r := range j.program {
			max := min(len(j.program[r]), j.finished[r]+ahead)
			if l, ok := limit[r]; ok {
				max = min(max, l)
			}
			if j.issued[r] < max {
				j.issued[r]++
				moved = true
			}
		}
		for r := range j.program {
			if dead[r] || j.finished[r] >= j.issued[r] {
				continue
			}
			s := j.program[r][j.finished[r]]
			all := true
			for _, m := range j.groups[s.group] {
				has := false
				for i := range j.issued[m] {
					has = has || j.program[m][i].group == s.group && j.program[m][i].seq == s.seq
				}
				// A rank whose GPU is stuck has sent its part of what was issued before.
				has = has && (!dead[m] || j.partOf(m, s) < j.finished[m]+3)
				all = all && has
			}
			if all {
				j.finished[r]++
				moved = true
			}
		}
	}
	return j
}

func (j dumpJob) partOf(r int, s step) int {
	for i, x := range j.program[r] {
		if x.group == s.group && x.seq == s.seq {
			return i
		}
	}
	return 1 << 30
}

func judge(t testing.TB, j dumpJob, name func(rank int) string, skip map[int]bool, change func(rank int, b []byte) []byte) *doctor.Report {
	t.Helper()
	c := &doctor.Case{}
	for r := range len(j.program) {
		if skip[r] {
			continue
		}
		b := j.file(r)
		if change != nil {
			b = change(r, b)
		}
		if err := read.File(c, name(r), "", bytes.NewReader(b)); err != nil {
			t.Fatal(err)
		}
	}
	read.Finish(c)
	return doctor.Diagnose(c, doctor.Options{})
}

func numbered(r int) string { return fmt.Sprintf("dumps/nccl_trace_rank_%d", r) }

// The names say nothing of the rank.
func renamed(r int) string { return "dumps/" + string(rune('a'+(r*7)%26)) + ".bin" }

// A rank whose program stops issuing is the culprit, whatever happened to the files.
func TestHangNamesTheHostThatStopped(t *testing.T) {
	for _, culprits := range [][]int{{3}, {0}, {5, 6}} {
		limit := map[int]int{}
		skip := map[int]bool{}
		for _, c := range culprits {
			limit[c] = 21
			skip[c] = true
		}
		for what, r := range map[string]*doctor.Report{
			"all files":      judge(t, grid(8, 20).stop(limit, nil), numbered, nil, nil),
			"renamed":        judge(t, grid(8, 20).stop(limit, nil), renamed, nil, nil),
			"culprits' gone": judge(t, grid(8, 20).stop(limit, nil), numbered, skip, nil),
			"gone, renamed":  judge(t, grid(8, 20).stop(limit, nil), renamed, skip, nil),
			"one is cut": judge(t, grid(8, 20).stop(limit, nil), numbered, nil, func(r int, b []byte) []byte {
				if r == 7 {
					return b[:len(b)*2/3]
				}
				return b
			}),
		} {
			if r.Hang == nil || !slices.Equal(r.Hang.Culprits, culprits) {
				t.Errorf("%v, %s: %+v", culprits, what, r.Hang)
				continue
			}
			if want := map[bool]string{true: "missing", false: "host"}[strings.Contains(what, "gone")]; r.Hang.Class != want {
				t.Errorf("%v, %s: class %s, not %s", culprits, what, r.Hang.Class, want)
			}
			if len(r.Hang.Waiting) < 7-len(culprits) || r.Hang.Group == "" || r.Hang.Operation == "" {
				t.Errorf("%v, %s: %+v", culprits, what, r.Hang)
			}
		}
	}
}

// A rank that does not finish what its peers finish has a stuck GPU.
func TestHangNamesTheGPUThatIsStuck(t *testing.T) {
	j := grid(8, 20)
	j = j.stop(map[int]int{5: 24}, nil)
	// Rank 5 issued on, and its GPU finished nothing of the last operations.
	j.issued[5] = 26
	j.finished[5] = 20
	r := judge(t, j, numbered, nil, nil)
	if r.Hang == nil || !slices.Equal(r.Hang.Culprits, []int{5}) || r.Hang.Class != "gpu" {
		t.Errorf("%+v", r.Hang)
	}
}

// A rank that calls something else is named, and so is a network in which all wait.
func TestHangMismatchAndNetwork(t *testing.T) {
	j := grid(4, 5)
	j.program[2][3] = step{group: "0", seq: 1, name: "broadcast_object", size: 9}
	for r := range 4 {
		j.finished[r], j.issued[r] = 3, 4
	}
	if r := judge(t, j, numbered, nil, nil); r.Hang == nil || r.Hang.Class != "mismatch" || !slices.Equal(r.Hang.Culprits, []int{2}) {
		t.Errorf("mismatch: %+v", r.Hang)
	}
	k := grid(4, 5)
	for r := range 4 {
		k.finished[r], k.issued[r] = 3, 4
	}
	if r := judge(t, k, numbered, nil, nil); r.Hang == nil || r.Hang.Class != "network" || len(r.Hang.Culprits) != 0 ||
		len(r.Hang.Waiting) != 4 {
		t.Errorf("network: %+v", r.Hang)
	}
	for r := range 4 {
		k.finished[r] = k.issued[r]
	}
	if r := judge(t, k, numbered, nil, nil); r.Hang != nil || len(r.Findings) > 0 {
		t.Errorf("nothing waits, and it says %+v", r.Hang)
	}
}

// Two jobs in one folder are two verdicts.
func TestHangOfTwoJobs(t *testing.T) {
	c := &doctor.Case{}
	a, b := grid(8, 20).stop(map[int]int{3: 21}, nil), grid(4, 20).stop(map[int]int{1: 17}, nil)
	for r := range 8 {
		read.File(c, fmt.Sprintf("d/a_%d", r), "", bytes.NewReader(a.file(r)))
	}
	for r := range 4 {
		read.File(c, fmt.Sprintf("d/b_%d", r), "", bytes.NewReader(b.file(r)))
	}
	r := doctor.Diagnose(c, doctor.Options{})
	if r.Hang == nil || len(r.Hangs) != 1 {
		t.Fatalf("%+v and %+v", r.Hang, r.Hangs)
	}
	got := []string{fmt.Sprint(r.Hang.Culprits), fmt.Sprint(r.Hangs[0].Culprits)}
	slices.Sort(got)
	if !slices.Equal(got, []string{"[1]", "[3]"}) {
		t.Errorf("culprits %v", got)
	}
}

// The public fault injections of nvidia-resiliency-ext, where they are at hand.
func TestHangOfPublicRuns(t *testing.T) {
	dir := os.Getenv("WEFT_FR_TRACES")
	if dir == "" {
		t.Skip("set WEFT_FR_TRACES to tests/attribution/unit/fr_traces of nvidia-resiliency-ext")
	}
	for run, want := range map[string][]int{"gpu_error_1st": {12, 14}, "lock_gil_1st": {9, 14}} {
		files, _ := filepath.Glob(filepath.Join(dir, run, "_dump_*"))
		if len(files) != 16 {
			t.Fatalf("%s has %d dumps", run, len(files))
		}
		for _, without := range []bool{false, true} {
			for _, cut := range []int{-1, 3, 10} {
				c := &doctor.Case{}
				for i, f := range files {
					var rank int
					fmt.Sscanf(filepath.Base(f), "_dump_%d", &rank)
					b, err := os.ReadFile(f)
					if err != nil {
						t.Fatal(err)
					}
					if without && slices.Contains(want, rank) {
						continue
					}
					if rank == cut {
						b = b[:len(b)*3/4]
					}
					if err := read.File(c, fmt.Sprintf("x/%c", 'a'+i), "", bytes.NewReader(b)); err != nil {
						t.Fatal(err)
					}
				}
				if r := doctor.Diagnose(c, doctor.Options{}); r.Hang == nil || !slices.Equal(r.Hang.Culprits, want) {
					t.Errorf("%s, without %v, cut %d: %+v", run, without, cut, r.Hang)
				}
			}
		}
	}
}
