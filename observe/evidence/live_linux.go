package evidence

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/doctor/read"
	"golang.org/x/sys/unix"
)

// Live reads this host: /sys, limits, interfaces, kernel log, processes of jobs, and
// nvidia-smi where it is installed. It changes nothing.
func Live(ctx context.Context) (*doctor.Case, error) {
	c := &doctor.Case{}
	host, _ := os.Hostname()
	host, _, _ = strings.Cut(host, ".")
	rdma := sysPorts(c, host)
	sysPCI(c, host)
	kmsg(c, host)
	interfaces(c, host)
	smi(ctx, c, host)
	c.Host = append(c.Host, hostState(host, rdma))
	Jobs(c, host)
	read.Finish(c)
	return c, nil
}

func readText(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// attrs reads single attributes of /sys into a case. A device of which a file is
// refused is skipped from then on, and it is said so.
func attrs(c *doctor.Case, host, pattern string) {
	list, _ := filepath.Glob(pattern)
	for _, f := range list {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		n := len(c.Files)
		read.File(c, f, host, bytes.NewReader(b))
		c.Files = c.Files[:n] // one line a folder is enough
	}
	if len(list) > 0 {
		c.Files = append(c.Files, doctor.File{Path: filepath.Dir(filepath.Dir(pattern)), Kind: "/sys"})
	}
}

func sysPorts(c *doctor.Case, host string) int {
	base := "/sys/class/infiniband/*/ports/*/"
	for _, f := range []string{"state", "phys_state", "rate", "link_layer", "sm_lid"} {
		attrs(c, host, base+f)
	}
	attrs(c, host, base+"counters/*")
	attrs(c, host, base+"hw_counters/*")
	devices, _ := filepath.Glob("/sys/class/infiniband/*")
	return len(devices)
}

// sysPCI reads GPUs and NICs alone: classes 02 and 03.
func sysPCI(c *doctor.Case, host string) {
	list, _ := filepath.Glob("/sys/bus/pci/devices/*")
	n := 0
	for _, dir := range list {
		class := readText(filepath.Join(dir, "class"))
		if !strings.HasPrefix(class, "0x02") && !strings.HasPrefix(class, "0x03") || strings.HasPrefix(class, "0x0300") &&
			readText(filepath.Join(dir, "vendor")) != "0x10de" {
			continue
		}
		n++
		for _, f := range []string{"class", "vendor", "current_link_speed", "current_link_width", "max_link_speed", "max_link_width",
			"aer_dev_correctable", "aer_dev_nonfatal", "aer_dev_fatal"} {
			if b, err := os.ReadFile(filepath.Join(dir, f)); err == nil {
				k := len(c.Files)
				read.File(c, filepath.Join(dir, f), host, bytes.NewReader(b))
				c.Files = c.Files[:k]
			}
		}
	}
	c.Files = append(c.Files, doctor.File{Path: "/sys/bus/pci/devices", Kind: "/sys", Lines: n})
}

// kmsg reads what the kernel log holds now, without waiting for more.
func kmsg(c *doctor.Case, host string) {
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		c.Files = append(c.Files, doctor.File{Path: "/dev/kmsg", Kind: "unread",
			Notes: []doctor.Note{{Kind: doctor.Unread, Text: err.Error() + "; run as root, or give the output of dmesg"}}})
		return
	}
	defer unix.Close(fd)
	var all bytes.Buffer
	buf := make([]byte, 8192)
	for all.Len() < 64<<20 {
		n, err := unix.Read(fd, buf)
		if err == unix.EPIPE { // records were overwritten meanwhile
			continue
		}
		if err != nil || n <= 0 {
			break
		}
		all.Write(buf[:n])
	}
	read.File(c, "/dev/kmsg", host, &all)
	if f := &c.Files[len(c.Files)-1]; f.Kind == "unknown" || f.Kind == "empty" {
		f.Kind, f.Notes = "kernel log", nil
	}
}

func interfaces(c *doctor.Case, host string) {
	list, err := net.Interfaces()
	if err != nil {
		return
	}
	for _, i := range list {
		a := doctor.Address{At: doctor.Evidence{File: "interfaces", Text: i.Name}, Host: host, Name: i.Name, State: "DOWN", MTU: i.MTU}
		if i.Flags&net.FlagUp != 0 && i.Flags&net.FlagRunning != 0 {
			a.State = "UP"
		}
		addrs, _ := i.Addrs()
		for _, x := range addrs {
			a.Prefixes = append(a.Prefixes, x.String())
		}
		a.At.Text = i.Name + " " + strings.Join(a.Prefixes, " ")
		c.Addresses = append(c.Addresses, a)
	}
}

// smi runs nvidia-smi where it is installed; each call has ten seconds.
func smi(ctx context.Context, c *doctor.Case, host string) {
	path, err := exec.LookPath("nvidia-smi")
	if err != nil {
		return
	}
	for _, args := range [][]string{{"-q", "-x"}, {"topo", "-m"}, {"nvlink", "-s"}, {"nvlink", "-e"}} {
		call, cancel := context.WithTimeout(ctx, 10*time.Second)
		cmd := exec.CommandContext(call, path, args...)
		cmd.WaitDelay = time.Second
		out, err := cmd.Output()
		cancel()
		name := "nvidia-smi " + strings.Join(args, " ")
		if err != nil {
			c.Files = append(c.Files, doctor.File{Path: name, Kind: "unread", Notes: []doctor.Note{{Kind: doctor.Unread, Text: err.Error()}}})
			continue
		}
		read.File(c, name, host, bytes.NewReader(out))
	}
}

// hostState looks at what limits RDMA and shared memory on this host. What cannot be found out stays -1 or 0.
func hostState(host string, rdma int) doctor.HostState {
	h := doctor.HostState{At: doctor.Evidence{File: "this host"}, Host: host, MemLock: -1, RDMA: rdma, Verbs: -1, Env: map[string]string{}}
	var lim unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim) == nil {
		h.MemLock = int64(min(lim.Cur, math.MaxInt64))
	}
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &lim) == nil {
		h.OpenFiles = int64(min(lim.Cur, math.MaxInt64))
	}
	var st unix.Statfs_t
	if unix.Statfs("/dev/shm", &st) == nil {
		h.ShmFree, h.ShmSize = int64(st.Bavail)*st.Bsize, int64(st.Blocks)*st.Bsize
	}
	if f := strings.Fields(readText("/proc/sys/net/ipv4/ip_local_port_range")); len(f) == 2 {
		h.PortLow, _ = strconv.Atoi(f[0])
		h.PortHigh, _ = strconv.Atoi(f[1])
	}
	verbs, _ := filepath.Glob("/dev/infiniband/uverbs*")
	h.Verbs = len(verbs)
	modules := readText("/proc/modules")
	h.PeerMem = strings.Contains(modules, "nvidia_peermem")
	h.NVIDIA = strings.Contains(modules, "nvidia ") || strings.Contains(modules, "\nnvidia")
	_, err := os.Stat("/.dockerenv")
	h.Container = err == nil
	return h
}

// maxLibrary is how much of a mapped library is hashed.
const maxLibrary = 2 << 30

// Ranks finds processes that are ranks of a job, by their environment.
func Ranks(c *doctor.Case, host string) {
	dirs, _ := os.ReadDir("/proc")
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		if p, ok := Rank("/proc", host, pid); ok {
			c.Processes = append(c.Processes, p)
		}
	}
}

// starters are programs that start a rank and have its environment, or wait beside it.
var starters = []string{"bash", "sh", "dash", "zsh", "srun", "slurmstepd", "sleep", "timeout", "env", "nice", "numactl", "taskset", "tini",
	"dumb-init", "sudo", "su", "setsid", "stdbuf", "script", "time", "nsys", "ncu", "strace", "orted", "prted"}

// environment keeps the variables that matter to NCCL and to finding out which job a process is of.
func environment(b []byte) map[string]string {
	env := map[string]string{}
	for kv := range bytes.SplitSeq(b, []byte{0}) {
		k, v, ok := strings.Cut(string(kv), "=")
		if ok && (strings.HasPrefix(k, "NCCL_") || wanted[k]) {
			env[k] = v
		}
	}
	return env
}

// Rank tells whether a process is a rank of a job, by its environment and its control group.
// Proc is where the processes are: /proc.
func Rank(proc, host string, pid int) (p doctor.Process, ok bool) {
	dir := proc + "/" + strconv.Itoa(pid)
	b, err := os.ReadFile(dir + "/environ")
	if err != nil || len(b) == 0 || !bytes.Contains(b, []byte("RANK=")) && !bytes.Contains(b, []byte("PROCID=")) {
		return p, false
	}
	env := environment(b)
	rank, ok := firstInt(env, "RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
	world, _ := firstInt(env, "WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
	if !ok || world == 0 {
		return p, false
	}
	comm := readText(dir + "/comm")
	if slices.Contains(starters, comm) {
		return p, false
	}
	p = doctor.Process{At: doctor.Evidence{File: dir, Text: fmt.Sprintf("%s, rank %d of %d", comm, rank, world)}, Host: host, PID: pid,
		Rank: rank, World: world, MemLock: -1, Env: env}
	p.Local, _ = firstInt(env, "LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
	p.Job = jobName(dir, env)
	return p, true
}

// jobName is what people call the job of a process, the same on all its hosts: the name that they gave, with the scheduler's
// number where there is one; else the program, told apart by the run's id or port.
func jobName(dir string, env map[string]string) string {
	both := func(name, id string) string {
		if name == "" || id == "" {
			return id
		}
		return name + "-" + id
	}
	run := env["TORCHELASTIC_RUN_ID"]
	if run == "none" { // torchrun's word for a run without one
		run = ""
	}
	named := cmp.Or(env["WEFT_JOB"], both(env["SLURM_JOB_NAME"], env["SLURM_JOB_ID"]), env["JOB_NAME"],
		both(env["PBS_JOBNAME"], env["PBS_JOBID"]))
	if named == "" && !uuid.MatchString(run) {
		named = run
	}
	if named = cmp.Or(named, controlJob(readText(dir+"/cgroup"), env)); named != "" {
		return named
	}
	if run != "" {
		return both(program(dir), run[:8])
	}
	return both(program(dir), env["MASTER_PORT"])
}

var uuid = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// program is what a process runs, as people call it: of an interpreter the script or module.
func program(dir string) string {
	args := strings.Split(strings.TrimRight(readText(dir+"/cmdline"), "\x00"), "\x00")
	if args[0] == "" { // it does not say
		return "port"
	}
	name := filepath.Base(args[0])
	if strings.HasPrefix(name, "python") {
		for i, a := range args[1:] {
			if a == "-c" {
				break
			}
			if !strings.HasPrefix(a, "-") {
				name = args[i+1]
				break
			}
		}
	}
	return strings.TrimSuffix(filepath.Base(name), ".py")
}

var (
	slurmGroup = regexp.MustCompile(`/job_(\d+)(?:/|$)`)
	podGroup   = regexp.MustCompile(`kubepods[^:]*?pod([0-9a-f]{8})[-_][0-9a-f]{4}`)
	podMember  = regexp.MustCompile(`^(.+?)(?:-(?:worker|master|launcher|server|replica|node|ps|chief)(?:-\d+)*|-\d+)$`)
)

// controlJob is the job that a control group tells of: Slurm's number, or the name that the
// pods of a Kubernetes job have in common, else the pod.
func controlJob(text string, env map[string]string) string {
	if m := slurmGroup.FindStringSubmatch(text); m != nil {
		return m[1]
	}
	if !strings.Contains(text, "kubepods") {
		return ""
	}
	name := env["POD_NAME"]
	if name == "" {
		name = env["HOSTNAME"]
	}
	if m := podMember.FindStringSubmatch(name); m != nil {
		return m[1]
	}
	if name != "" {
		return name
	}
	if m := podGroup.FindStringSubmatch(text); m != nil {
		return "pod-" + m[1]
	}
	return ""
}

// readLimits takes the soft limits. "unlimited" leaves locked memory as it is, since it is no number.
func readLimits(p *doctor.Process, text string) {
	for l := range strings.Lines(text) {
		f := strings.Fields(l)
		if strings.HasPrefix(l, "Max locked memory") && len(f) > 3 {
			if n, err := strconv.ParseInt(f[3], 10, 64); err == nil {
				p.MemLock = n
			}
		}
		if strings.HasPrefix(l, "Max open files") && len(f) > 3 {
			p.FilesUp, _ = strconv.ParseInt(f[3], 10, 64)
		}
	}
}

// Jobs finds the ranks of jobs, and what they have mapped and may use.
func Jobs(c *doctor.Case, host string) {
	Ranks(c, host)
	hashes := map[string]string{}
	for i := range c.Processes {
		p := &c.Processes[i]
		dir := p.At.File
		for l := range strings.Lines(readText(filepath.Join(dir, "status"))) {
			if v, ok := strings.CutPrefix(l, "Cpus_allowed_list:"); ok {
				p.CPUs = cpus(strings.TrimSpace(v))
			}
		}
		readLimits(p, readText(filepath.Join(dir, "limits")))
		if fds, err := os.ReadDir(filepath.Join(dir, "fd")); err == nil {
			p.Files = int64(len(fds))
		}
		for l := range strings.Lines(readText(filepath.Join(dir, "maps"))) {
			if i := strings.Index(l, "/"); i >= 0 && strings.Contains(l, "libnccl.so") {
				p.Library = strings.TrimSpace(l[i:])
				f := strings.Fields(l)
				key := f[3] + " " + f[4] // device and inode: containers have other files under the same path
				if _, ok := hashes[key]; !ok {
					hashes[key] = hashFile(filepath.Join(dir, "root", p.Library))
				}
				p.Hash = hashes[key]
				p.At.Text += ", " + p.Library + " " + p.Hash
				break
			}
		}
	}
}

var wanted = map[string]bool{"RANK": true, "WORLD_SIZE": true, "LOCAL_RANK": true, "SLURM_PROCID": true, "SLURM_NTASKS": true,
	"SLURM_LOCALID": true, "SLURM_JOB_ID": true,
	"OMPI_COMM_WORLD_RANK": true, "OMPI_COMM_WORLD_SIZE": true, "OMPI_COMM_WORLD_LOCAL_RANK": true, "PMI_RANK": true, "PMI_SIZE": true,
	"PMIX_RANK": true, "MPI_LOCALRANKID": true,
	"WEFT_JOB": true, "JOB_NAME": true, "SLURM_JOB_NAME": true, "PBS_JOBNAME": true, "TORCHELASTIC_RUN_ID": true, "PBS_JOBID": true,
	"CUDA_VISIBLE_DEVICES": true, "POD_NAME": true, "HOSTNAME": true, "MASTER_PORT": true,
	"WEFT_WATCH": true, "WEFT_FLIGHT_DIR": true, "TORCH_FR_DUMP_TEMP_FILE": true, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": true}

func firstInt(env map[string]string, keys ...string) (int, bool) {
	for _, k := range keys {
		if n, err := strconv.Atoi(env[k]); err == nil {
			return n, true
		}
	}
	return 0, false
}

func cpus(list string) []int {
	var out []int
	for part := range strings.SplitSeq(list, ",") {
		a, b, ranged := strings.Cut(part, "-")
		x, err := strconv.Atoi(a)
		if err != nil {
			continue
		}
		y := x
		if ranged {
			y, _ = strconv.Atoi(b)
		}
		for i := x; i <= y && len(out) < 4096; i++ {
			out = append(out, i)
		}
	}
	return out
}

func hashFile(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(f, maxLibrary)); err != nil {
		return ""
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}
