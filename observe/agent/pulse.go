package agent

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/doctor/read"
	"github.com/weft-fabric/weft/observe/evidence"
	"github.com/weft-fabric/weft/observe/watch"
	"github.com/weft-fabric/weft/run/lives"
	"github.com/weft-fabric/weft/run/turns"
)

// pulse looks at the processes of jobs. It reads the environment of a process once, and
// from then on what changes: /proc/PID/stat, its control group, its connections, and the
// files in which it tells of its operations.
type pulse struct {
	root  string // where /proc and /sys are; "" is this host's
	known map[int]*process
	files map[string]stamp // that were read, and when they were written
	tails map[string]int64 // how far files that grow were read

	folders  map[fileID]*folder // in which ranks and launchers tell
	launches []watch.Launch     // that no server has yet

	exits    *exits
	kmsg     *kernelLog
	told     map[int]*kernelWord // what the kernel said, by process
	starters map[int]*starter    // by process

	hungry time.Time // when the host was last starved
}

type stamp struct {
	at   time.Time
	size int64
}

type process struct {
	doctor.Process
	rank   bool
	young  int    // how often it was looked at
	nspid  int    // its number in its own namespace
	space  string // that namespace, as lives.SpaceOf names it
	parent int
	dir    string // of /proc
	sys    string // where control groups are
	memory string // folder of its control group, "" if it has no limit
	groups map[string]*watch.Group
	told   map[string]int64 // the last operation of each group that was read
	near   float64          // bytes/s that links inside a host reached, as it says; 0 unknown
	far    float64          // and between hosts
	seen   bool
	gone   time.Time

	launched bool     // its launcher reports it itself
	followed bool     // its end will be known
	killed   int64    // processes of its control group that were killed for want of memory before
	stderr   *os.File // nil if that is no file
	paths    []string // that its arguments and environment name

	threads map[string]turns.Turn // at the last look at them; nil if there was none
	looked  time.Time             // when it was
	turns   watch.Turns           // of all looks
}

func newPulse(root string) *pulse {
	return &pulse{root: root, known: map[int]*process{}, files: map[string]stamp{}, tails: map[string]int64{}, folders: map[fileID]*folder{},
		exits: newExits(), kmsg: openKernelLog(root), told: map[int]*kernelWord{}, starters: map[int]*starter{}}
}

// young is how often the environment of a process is looked at: one that was just made
// still has that of its parent.
const young = 4

// remembered is for how long files of a process that ended are looked for.
const remembered = 15 * time.Second

// list finds the ranks of this host. own, where it is set, gives them instead.
func (p *pulse) list(host string, own func() []doctor.Process) []*process {
	for _, x := range p.known {
		x.seen = false
	}
	if own != nil {
		p.named(own())
	} else {
		p.search(host)
	}
	out := p.sort(time.Now())
	// Workers of a rank have its environment: the process whose parent is no rank counts.
	ranks := map[int]*process{}
	for _, x := range out {
		ranks[x.PID] = x
	}
	out = slices.DeleteFunc(out, func(x *process) bool {
		up := ranks[x.parent]
		return up != nil && up.Rank == x.Rank && up.Job == x.Job
	})
	slices.SortFunc(out, func(a, b *process) int {
		return cmp.Or(cmp.Compare(a.Job, b.Job), cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.PID, b.PID))
	})
	return slices.CompactFunc(out, func(a, b *process) bool { return a.Job == b.Job && a.Rank == b.Rank })
}

// named takes the ranks that a launcher names.
func (p *pulse) named(own []doctor.Process) {
	for _, d := range own {
		x := p.known[d.PID]
		if x == nil {
			x = &process{rank: true, groups: map[string]*watch.Group{}}
			p.known[d.PID] = x
			x.Process = d
			p.place(x)
		}
		x.Process, x.seen = d, true
	}
}

// search looks through /proc. Only the first looks at a process ask whether it is a rank: its environment does not change
// once its program runs.
func (p *pulse) search(host string) {
	dirs, _ := os.ReadDir(p.root + "/proc")
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		x := p.known[pid]
		if x == nil {
			x = &process{groups: map[string]*watch.Group{}}
			p.known[pid] = x
		}
		x.seen = true
		if x.young < young && !x.rank {
			if x.Process, x.rank = evidence.Rank(p.root+"/proc", host, pid); x.rank {
				p.place(x)
			}
			x.young++
		}
	}
}

// sort returns the ranks that were seen. Those that are gone are remembered for a while, other processes not at all.
func (p *pulse) sort(now time.Time) (out []*process) {
	for pid, x := range p.known {
		switch {
		case x.seen && x.rank:
			out = append(out, x)
		case !x.seen && !x.rank, !x.seen && !x.gone.IsZero() && now.Sub(x.gone) > remembered:
			x.forget()
			delete(p.known, pid)
		case !x.seen && x.gone.IsZero():
			x.gone = now
		}
	}
	return out
}

// forget gives back what is held of a process.
func (x *process) forget() {
	if x.stderr != nil {
		x.stderr.Close()
	}
}

// close ends what waits for processes.
func (p *pulse) close() {
	p.exits.close()
	p.kmsg.close()
}

// place finds what does not change of a process.
func (p *pulse) place(x *process) {
	x.dir = p.root + "/proc/" + strconv.Itoa(x.PID)
	x.sys = p.root + "/sys/fs/cgroup"
	x.nspid, x.space = x.PID, lives.SpaceOf(p.root+"/proc", strconv.Itoa(x.PID))
	b, _ := os.ReadFile(x.dir + "/status")
	for l := range strings.Lines(string(b)) {
		f := strings.Fields(l)
		if len(f) > 1 && f[0] == "NSpid:" {
			x.nspid, _ = strconv.Atoi(f[len(f)-1])
		}
	}
}

// control finds the control group of a process, which may change.
func (x *process) control() {
	x.memory = ""
	b, _ := os.ReadFile(x.dir + "/cgroup")
	for l := range strings.Lines(strings.TrimSpace(string(b))) {
		f := strings.SplitN(strings.TrimSpace(l), ":", 3)
		switch {
		case len(f) == 3 && f[1] == "memory":
			x.memory = filepath.Join(x.sys, "memory", f[2])
		case len(f) == 3 && f[0] == "0" && f[1] == "" && x.memory == "":
			x.memory = filepath.Join(x.sys, f[2])
		}
	}
}

// stat reads the state of a process; false if it is gone.
func (x *process) stat() (state string, cpu float64, resident int64, ok bool) {
	b, err := os.ReadFile(x.dir + "/stat")
	end := bytes.LastIndexByte(b, ')')
	if err != nil || end < 0 {
		return "", 0, 0, false
	}
	f := strings.Fields(string(b[end+1:]))
	if len(f) < 22 {
		return "", 0, 0, false
	}
	x.parent, _ = strconv.Atoi(f[1])
	user, system := number(f[11]), number(f[12])
	return f[0], (user + system) / 100, int64(number(f[21])) * int64(os.Getpagesize()), true
}

// memoryFile reads the first of some files that is there: control groups of version 2 and 1 name them differently. No number,
// such as "max", is 0.
func (x *process) memoryFile(names ...string) int64 {
	for _, n := range names {
		if b, err := os.ReadFile(filepath.Join(x.memory, n)); err == nil {
			v, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
			if err != nil {
				return 0
			}
			return v
		}
	}
	return 0
}

// limit reads how much memory the control group of a process may use, and uses.
func (x *process) limit() (limit, used int64) {
	if x.control(); x.memory == "" {
		return 0, 0
	}
	limit = x.memoryFile("memory.max", "memory.limit_in_bytes")
	if limit <= 0 || limit > 1<<50 {
		return 0, 0
	}
	used = x.memoryFile("memory.current", "memory.usage_in_bytes")
	b, _ := os.ReadFile(filepath.Join(x.memory, "memory.stat"))
	for l := range strings.Lines(string(b)) {
		if f := strings.Fields(l); len(f) == 2 && (f[0] == "inactive_file" || f[0] == "total_inactive_file") {
			used -= int64(number(f[1])) // can be given back at once
			break
		}
	}
	return limit, max(0, used)
}

// live is what comm writes to the file of a rank.
type live struct {
	Rank   int     `json:"rank"`
	Size   int     `json:"size"`
	Near   float64 `json:"near_bytes_per_s"`
	Far    float64 `json:"far_bytes_per_s"`
	Groups []struct {
		Comm  uint32 `json:"comm"`
		Epoch uint32 `json:"epoch"`
		Ranks []int  `json:"ranks"`
		Done  int64  `json:"done"`
		In    bool   `json:"in"`
		Op    string `json:"op"`
		Ops   []struct {
			Seq   int64  `json:"seq"`
			Op    string `json:"op"`
			Bytes int64  `json:"bytes"`
			Took  int64  `json:"took_ns"`

			Predicted int64 `json:"predicted_ns"`
		} `json:"ops"`
	} `json:"groups"`
}

// biggest is how large a file may be that is read whole.
const biggest = 64 << 20

// fresh reads a file if it was written since it was last read.
func (p *pulse) fresh(path string) ([]byte, bool) {
	st, err := os.Stat(path)
	if err != nil || !st.Mode().IsRegular() || st.Size() > biggest {
		return nil, false
	}
	if p.files[path] == (stamp{st.ModTime(), st.Size()}) {
		return nil, false
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, false
	}
	p.files[path] = stamp{st.ModTime(), st.Size()}
	return b, true
}

// operations reads what a rank says of its operations: weft's own file, or NCCL
// Inspector's.
func (p *pulse) operations(x *process) {
	root := x.dir + "/root"
	if dir := x.Env["WEFT_WATCH"]; dir != "" {
		p.visit(filepath.Join(root, dir))
		b, ok := p.fresh(filepath.Join(root, dir, p.liveFile(x, filepath.Join(root, dir))))
		var l live
		if ok && json.Unmarshal(b, &l) == nil {
			x.Rank, x.World, x.near, x.far = l.Rank, l.Size, l.Near, l.Far
			clear(x.groups)
			told := x.told
			x.told = map[string]int64{}
			for _, g := range l.Groups {
				w := &watch.Group{Name: fmt.Sprintf("comm %d epoch %d", g.Comm, g.Epoch), Ranks: g.Ranks, Done: g.Done, In: g.In, Op: g.Op}
				last := told[w.Name]
				if g.Done < last { // the communicator was made again
					last = 0
				}
				x.told[w.Name] = g.Done
				for _, o := range g.Ops {
					if o.Seq <= last {
						continue // a file tells of an operation several times
					}
					w.Ops = append(w.Ops, watch.Op{Seq: o.Seq, Name: o.Op, Bytes: o.Bytes, Took: float64(o.Took) / 1e9,
						Predicted: float64(o.Predicted) / 1e9})
				}
				x.groups[w.Name] = w
			}
		}
	}
	if dir := x.Env["NCCL_INSPECTOR_DUMP_DIR"]; dir != "" {
		list, _ := filepath.Glob(filepath.Join(root, dir, fmt.Sprintf("*-pid%d.log", x.nspid)))
		for _, f := range list {
			p.inspector(x, f)
		}
	}
}

// inspector reads what was added to a file of NCCL Inspector, whole lines of it.
func (p *pulse) inspector(x *process, path string) {
	f, err := os.Open(path)
	if err != nil {
		return
	}
	defer f.Close()
	st, err := f.Stat()
	at := p.tails[path]
	if err != nil || st.Size() < at {
		at = 0
	}
	b := make([]byte, min(max(0, st.Size()-at), 4<<20))
	n, _ := f.ReadAt(b, at)
	end := bytes.LastIndexByte(b[:n], '\n')
	if end < 0 {
		return
	}
	p.tails[path] = at + int64(end) + 1
	c := &doctor.Case{}
	read.File(c, path, x.Host, bytes.NewReader(b[:end+1]))
	for _, o := range c.Perf {
		if o.Seq < 0 || o.Peer >= 0 || o.Op == "" {
			continue
		}
		x.finished(o)
	}
}

// finished adds a collective to its group, which keeps the last ones.
func (x *process) finished(o doctor.Perf) {
	g := x.groups[o.Comm]
	if g == nil {
		g = &watch.Group{Name: o.Comm}
		x.groups[o.Comm] = g
	}
	g.Done = max(g.Done, o.Seq)
	if g.Ops = append(g.Ops, watch.Op{Seq: o.Seq, Name: o.Op, Bytes: o.Bytes, Took: o.Micros / 1e6}); len(g.Ops) > 256 {
		g.Ops = g.Ops[len(g.Ops)-256:]
	}
}

// dumpPaths is where a rank writes its dumps, by its environment or by default.
func (x *process) dumpPaths() (paths []string) {
	for _, k := range []string{"TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"} {
		if f := x.Env[k]; f != "" {
			paths = append(paths, f+strconv.Itoa(x.Rank))
		}
	}
	if len(paths) == 0 && x.Env["WEFT_WATCH"] == "" {
		paths = append(paths, "/tmp/nccl_trace_rank_"+strconv.Itoa(x.Rank))
	}
	if dir := x.Env["WEFT_FLIGHT_DIR"]; dir != "" {
		paths = append(paths, filepath.Join(dir, fmt.Sprintf("rank-%d.json", x.Rank)))
	}
	return paths
}

// dumps reads flight records of a rank that appeared: PyTorch's and weft's.
func (p *pulse) dumps(x *process) (list []watch.Dump) {
	root := x.dir + "/root"
	if !x.seen { // it has ended, and with it its view of the file system
		root = p.root + "/"
	}
	for _, f := range x.dumpPaths() {
		b, ok := p.fresh(filepath.Join(root, f))
		if !ok {
			continue
		}
		c := &doctor.Case{}
		read.File(c, f, x.Host, bytes.NewReader(b))
		read.Finish(c)
		for _, d := range c.Dumps {
			d.File = fmt.Sprintf("%s on %s", f, x.Host)
			if n := len(d.Entries) - 300; n > 0 { // the last ones, and what is unfinished
				old := slices.DeleteFunc(slices.Clone(d.Entries[:n]), func(o doctor.Op) bool { return o.Done })
				d.Entries = append(old[:min(len(old), 300)], d.Entries[n:]...)
			}
			list = append(list, watch.Dump{Job: x.Job, Dump: d})
		}
	}
	return list
}

// ranks gives everything that is known of the ranks of this host.
func (p *pulse) ranks(c *Config) (list []watch.Rank, dumps []watch.Dump, launches []watch.Launch) {
	procs := p.list(c.Host, c.Ranks)
	sockets := map[int][]watch.Link{}
	if len(procs) > 0 {
		sockets = connections(procs)
	}
	list = []watch.Rank{}
	now := time.Now()
	for _, x := range procs {
		state, cpu, resident, ok := x.stat()
		if !ok {
			continue
		}
		p.operations(x)
		r := watch.Rank{Job: x.Job, Rank: x.Rank, Size: x.World, PID: x.PID, GPU: gpuOf(&x.Process), State: state, CPU: cpu, Memory: resident,
			Links: sockets[x.PID], Near: x.near, Far: x.far}
		r.Limit, r.Used = x.limit()
		r.Turns = x.look(now, now.Sub(p.hungry) < attention)
		if nic := strings.TrimPrefix(x.Env["NCCL_IB_HCA"], "="); nic != "" && !strings.ContainsAny(nic, ",^") {
			r.NIC, _, _ = strings.Cut(nic, ":")
		}
		for _, n := range slices.Sorted(maps.Keys(x.groups)) {
			g := *x.groups[n]
			r.Groups = append(r.Groups, g)
			x.groups[n].Ops = nil
		}
		list = append(list, r)
	}
	for _, x := range p.known {
		if x.rank {
			dumps = append(dumps, p.dumps(x)...)
		}
	}
	slices.SortFunc(dumps, func(a, b watch.Dump) int { return strings.Compare(a.File, b.File) })
	p.launchers(c)
	p.follow(procs)
	p.ended(c)
	return list, dumps, slices.Clone(p.launches)
}

// gpuOf is the GPU that a rank uses, by its environment.
func gpuOf(p *doctor.Process) string {
	if list := strings.Split(p.Env["CUDA_VISIBLE_DEVICES"], ","); p.Env["CUDA_VISIBLE_DEVICES"] != "" && p.Local < len(list) {
		return list[p.Local]
	}
	return strconv.Itoa(p.Local)
}
