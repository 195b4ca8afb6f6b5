package agent

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/doctor/read"
	"github.com/weft-fabric/weft/observe/watch"
	"github.com/weft-fabric/weft/run/lives"
)

// Launchers that write no file of their own (torchrun, mpirun, srun, a pod's runtime) say
// nothing to an agent. The kernel does: when a rank's process ended and how. The kernel
// log, the control group and the end of its standard error say why.

// openStderr keeps a rank's standard error open if it is a file: its last lines tell why the rank ended.
func (x *process) openStderr() {
	f, err := os.Open(x.dir + "/fd/2")
	if err != nil {
		return
	}
	if st, err := f.Stat(); err == nil && st.Mode().IsRegular() {
		x.stderr = f
	} else {
		f.Close()
	}
}

// follow begins to wait for the ends of ranks and of what started them.
func (p *pulse) follow(procs []*process) {
	if p.root != "" {
		return
	}
	for _, x := range procs {
		if x.followed {
			continue
		}
		if x.followed = p.exits.follow(x.PID); !x.followed {
			continue
		}
		x.killed, x.paths = x.oomKills(), x.mentioned()
		x.openStderr()
		if up := x.parent; up > 1 && p.starters[up] == nil && p.exits.follow(up) {
			p.starters[up] = &starter{job: x.Job}
		}
		if !x.launched {
			p.launches = append(p.launches, watch.Launch{Event: lives.Started, At: x.began(), Job: x.Job, Rank: x.Rank, Size: x.World, Host: x.Host,
				PID: x.PID})
		}
	}
}

// starter is a process that started ranks, and writes no file about it.
type starter struct {
	job    string
	failed bool // a rank of it did
}

// ended reports the ranks that ended since the last look.
func (p *pulse) ended(c *Config) {
	for _, e := range p.exits.take() {
		if !e.known {
			continue
		}
		if s := p.starters[e.pid]; s != nil {
			delete(p.starters, e.pid)
			if e.status != 0 && !s.failed && !p.tells(e.pid) {
				p.launches = append(p.launches, watch.Launch{Event: lives.Over, At: seconds(e.at), Job: s.job, How: lives.Cancelled, Host: c.Host})
			}
		}
		if x := p.known[e.pid]; x != nil && x.rank {
			p.rankEnded(c, x, e)
		}
	}
}

// rankEnded reports the end of a rank. Where its launcher does, the reason alone is told.
func (p *pulse) rankEnded(c *Config, x *process, e ending) {
	l := watch.Launch{Event: lives.Said, At: seconds(e.at), Job: x.Job, Rank: x.Rank, Host: c.Host, PID: x.PID}
	if e.status != 0 {
		l.Why, l.Said = p.why(x, c.Host, e.status.Exited())
	}
	if x.launched {
		if l.Why != "" {
			p.launches = append(p.launches, l)
		}
		return
	}
	l.Event, l.Size, l.Seen = lives.Ended, x.World, true
	if e.status.Signaled() {
		l.Signal = int(e.status.Signal())
	} else {
		l.Code = e.status.ExitStatus()
	}
	asked := l.Signal == int(syscall.SIGTERM) || l.Signal == int(syscall.SIGINT)
	if s := p.starters[x.parent]; s != nil && e.status != 0 && !asked {
		s.failed = true
	}
	p.launches = append(p.launches, l)
}

// tells says whether a process that started ranks reports them itself.
func (p *pulse) tells(pid int) bool {
	for _, x := range p.known {
		if x.rank && x.parent == pid && x.launched {
			return true
		}
	}
	return false
}

func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

// why finds what explains the end of a process: a finding of the doctor, and the line
// that says so. failed is that it ended by itself.
func (p *pulse) why(x *process, host string, failed bool) (id, text string) {
	for text := p.kmsg.read(); len(text) > 0; text = p.kmsg.read() {
		p.kernelSaid(text, host)
	}
	if k := p.told[x.PID]; k != nil {
		return k.why, k.text
	}
	if n := x.oomKills(); n > x.killed {
		return "host-out-of-memory", fmt.Sprintf("the kernel killed %d processes of its control group for want of memory", n-x.killed)
	}
	if x.stderr != nil {
		if id, text = words(host, tailOf(x.stderr)); id != "" {
			return id, text
		}
	}
	for _, mount := range fullDisks() {
		if failed && slices.ContainsFunc(x.paths, func(path string) bool { return near(mount, path) }) {
			return "disk-full", "no space is left on " + mount
		}
	}
	return "", ""
}

// near says whether a path lies on a file system, or the file system in a folder of the path that is not everybody's.
func near(mount, path string) bool {
	return mount == "/" || path == mount || strings.HasPrefix(path, mount+"/") || strings.Count(path, "/") > 1 &&
		strings.HasPrefix(mount, path+"/")
}

// mentioned are the paths in a process' arguments and environment, and its working directory.
func (x *process) mentioned() (list []string) {
	args, _ := os.ReadFile(x.dir + "/cmdline")
	env, _ := os.ReadFile(x.dir + "/environ")
	for _, s := range strings.Split(string(args)+"\x00"+string(env), "\x00") {
		if i := strings.IndexByte(s, '='); i >= 0 {
			s = s[i+1:]
		}
		if strings.HasPrefix(s, "/") && !strings.Contains(s, ":") && len(list) < 256 {
			list = append(list, filepath.Clean(s))
		}
	}
	if cwd, err := os.Readlink(x.dir + "/cwd"); err == nil {
		list = append(list, cwd)
	}
	return list
}

// kernelWord is what the kernel said of a process.
type kernelWord struct{ why, text string }

// kernelKinds are events of the kernel that end the process they name, as findings.
var kernelKinds = map[string]string{"oom_kill": "host-out-of-memory", "xid": "gpu-failed", "nccl_crash": "nccl-crash"}

// kernelSaid takes what the kernel log said of processes. Xid 45 follows from the end of
// one, and explains none.
func (p *pulse) kernelSaid(text []byte, host string) {
	c := &doctor.Case{}
	_ = read.File(c, "/dev/kmsg", host, bytes.NewReader(text)) // lines that it does not know say nothing of processes
	for _, k := range c.Kernel {
		pid, err := strconv.Atoi(k.F["pid"])
		if id := kernelKinds[k.Kind]; err == nil && id != "" && k.Code != 45 {
			p.told[pid] = &kernelWord{id, k.At.Text}
		}
	}
}

// wordsKept is how much of a rank's output is looked at.
const wordsKept = 16 << 10

func tailOf(f *os.File) string {
	st, err := f.Stat()
	if err != nil {
		return ""
	}
	b, _ := io.ReadAll(io.NewSectionReader(f, max(0, st.Size()-wordsKept), wordsKept))
	return string(b)
}

// words finds what the last output of a rank says of its end.
func words(host, text string) (id, line string) {
	c := &doctor.Case{}
	if read.File(c, "stderr", host, strings.NewReader(text)) != nil {
		return "", ""
	}
	read.Finish(c)
	for _, f := range doctor.Diagnose(c, doctor.Options{}).Findings {
		if f.Severity == doctor.Critical && len(f.Evidence) > 0 {
			return f.ID, f.Evidence[0].Text
		}
	}
	for l := range strings.Lines(text) {
		if blames.MatchString(l) {
			line = strings.TrimSpace(l)
		}
	}
	if line != "" {
		return watch.PeerDied, line
	}
	return "", ""
}

// blames are words of a rank that ends since another one did.
var blames = regexp.MustCompile(`rank \d+ (?:died|left|reports|closed the communicator|cannot be reached)|onnection (?:reset|closed) by (?:remote )?peer|[Bb]roken pipe|ncclRemoteError|remote process exited`)

// oomKills is how many processes of its control group the kernel killed for want of memory.
func (x *process) oomKills() (n int64) {
	if x.control(); x.memory == "" {
		return x.killed
	}
	b, err := os.ReadFile(filepath.Join(x.memory, "memory.events"))
	if err != nil {
		b, _ = os.ReadFile(filepath.Join(x.memory, "memory.oom_control"))
	}
	for l := range strings.Lines(string(b)) {
		if f := strings.Fields(l); len(f) == 2 && f[0] == "oom_kill" {
			n, _ = strconv.ParseInt(f[1], 10, 64)
		}
	}
	return cmp.Or(n, x.killed)
}

// began is when a process started, in seconds since 1970.
func (x *process) began() float64 {
	now := seconds(time.Now())
	b, _ := os.ReadFile(x.dir + "/stat")
	up, _ := os.ReadFile("/proc/uptime")
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	since, _, _ := strings.Cut(string(up), " ")
	if len(f) < 20 || since == "" {
		return now
	}
	return now - max(0, number(since)-number(f[19])/100)
}
