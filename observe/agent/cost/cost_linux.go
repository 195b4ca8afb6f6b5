package cost

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/run/turns"
)

// Measure runs a program twice: once undisturbed, for processor time and memory, and once
// under ptrace, which slows it, to count its system calls. What it does in the time warm
// at its start is no part of what it costs in a day, and is left out.
func Measure(ctx context.Context, warm, length time.Duration, argv, env []string) (Figures, error) {
	f, err := plain(ctx, warm, length, argv, env)
	if err != nil {
		return f, err
	}
	f.Syscalls = -1
	calls, err := trace(ctx, warm, length, argv, env)
	if err != nil {
		f.Why = err.Error()
		return f, nil
	}
	f.Syscalls = 0
	for n, c := range calls {
		per := float64(c) / length.Seconds()
		f.Syscalls += per
		f.Most = append(f.Most, Call{n, names[n], per})
	}
	slices.SortFunc(f.Most, func(a, b Call) int {
		return cmp.Or(cmp.Compare(b.PerS, a.PerS), cmp.Compare(a.Number, b.Number))
	})
	f.Most = f.Most[:min(8, len(f.Most))]
	return f, nil
}

func start(argv, env []string, traced bool) (*os.Process, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	return os.StartProcess(argv[0], argv, &os.ProcAttr{Env: env, Files: []*os.File{null, null, null},
		Sys: &syscall.SysProcAttr{Ptrace: traced, Pdeathsig: syscall.SIGKILL}})
}

// plain measures a program that runs undisturbed: processor time and reads per second, after it has warmed up. The
// program ends with the thread that started it.
func plain(ctx context.Context, warm, length time.Duration, argv, env []string) (f Figures, err error) {
	runtime.LockOSThread() // Pdeathsig is of the thread
	defer runtime.UnlockOSThread()
	p, err := start(argv, env, false)
	if err != nil {
		return f, err
	}
	defer p.Wait()
	defer p.Kill()
	if err := rest(ctx, warm, p.Pid); err != nil {
		return f, fmt.Errorf("%s: %w", strings.Join(argv, " "), err)
	}
	a, err := look(p.Pid)
	if err != nil {
		return f, fmt.Errorf("%s ended at once: %w", strings.Join(argv, " "), err)
	}
	if err := rest(ctx, length, p.Pid); err != nil {
		return f, fmt.Errorf("%s: %w", strings.Join(argv, " "), err)
	}
	b, err := look(p.Pid)
	if err != nil {
		return f, fmt.Errorf("%s ended: %w", strings.Join(argv, " "), err)
	}
	s := b.at.Sub(a.at).Seconds()
	return Figures{Seconds: s, CPU: (b.cpu - a.cpu) / s, Memory: b.memory, Reads: (b.io - a.io) / s}, nil
}

// rest waits for a while, or until a child of this process has ended. It is not reaped, so that its number stays its own.
func rest(ctx context.Context, d time.Duration, pid int) error {
	late := time.After(d)
	look := time.NewTicker(max(time.Millisecond, min(d/20, 100*time.Millisecond)))
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-late:
			return nil
		case <-look.C:
			var info unix.Siginfo
			if err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); err == nil && info.Signo != 0 {
				return errors.New("it ended at once")
			}
		}
	}
}

type sight struct {
	at      time.Time
	cpu, io float64
	memory  int64
}

// look reads what the kernel has counted of a process.
func look(pid int) (s sight, err error) {
	dir := "/proc/" + strconv.Itoa(pid)
	s.at = time.Now()
	b, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return s, err
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 13 || f[0] == "Z" {
		return s, errors.New("it is no more")
	}
	// Ticks of a hundredth second are coarse; threads have nanoseconds.
	for _, t := range turns.Of(dir) {
		s.cpu += t.Ran.Seconds()
	}
	if s.cpu == 0 {
		u, _ := strconv.ParseFloat(f[11], 64)
		k, _ := strconv.ParseFloat(f[12], 64)
		s.cpu = (u + k) / 100
	}
	field := func(file, key string) float64 {
		b, _ := os.ReadFile(dir + file)
		for l := range strings.Lines(string(b)) {
			if f := strings.Fields(l); len(f) > 1 && f[0] == key {
				v, _ := strconv.ParseFloat(f[1], 64)
				return v
			}
		}
		return 0
	}
	s.memory = int64(field("/status", "VmHWM:")) << 10
	s.io = field("/io", "syscr:") + field("/io", "syscw:")
	return s, nil
}

// trace counts the system calls of a program and of its threads by number.
func trace(ctx context.Context, warm, length time.Duration, argv, env []string) (map[int]int, error) {
	type result struct {
		calls map[int]int
		err   error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // the kernel knows one thread as the tracer; it ends with this goroutine
		calls, err := traced(ctx, warm, length, argv, env)
		done <- result{calls, err}
	}()
	r := <-done
	return r.calls, r.err
}

// traced counts system calls by number, under ptrace. It slows the program down, so nothing else is measured with it.
func traced(ctx context.Context, warm, length time.Duration, argv, env []string) (map[int]int, error) {
	p, err := start(argv, env, true)
	if err != nil {
		return nil, fmt.Errorf("ptrace: %w", err)
	}
	defer p.Release()
	var ws unix.WaitStatus
	if _, err := unix.Wait4(p.Pid, &ws, unix.WALL, nil); err != nil {
		return nil, fmt.Errorf("ptrace: %w", err)
	}
	if err := unix.PtraceSetOptions(p.Pid, unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_TRACECLONE|unix.PTRACE_O_EXITKILL); err != nil {
		p.Kill()
		unix.Wait4(p.Pid, &ws, unix.WALL, nil)
		return nil, fmt.Errorf("ptrace: %w", err)
	}
	begin, end := time.Now().Add(warm), time.Now().Add(warm+length)
	calls := map[int]int{}
	inside := map[int]bool{} // threads that are in a call
	killed := false
	timer := time.AfterFunc(warm+length, func() { p.Kill() })
	defer timer.Stop()
	unix.PtraceSyscall(p.Pid, 0)
	for {
		tid, err := unix.Wait4(-1, &ws, unix.WALL|unix.WNOTHREAD, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil { // no thread is left
			if time.Now().Before(end.Add(-length/2)) && ctx.Err() == nil {
				return nil, errors.New("the program ended under ptrace")
			}
			return calls, ctx.Err()
		}
		if ctx.Err() != nil && !killed {
			killed = true
			p.Kill()
		}
		if !ws.Stopped() {
			delete(inside, tid)
			continue
		}
		deliver := 0
		switch sig := ws.StopSignal(); {
		case sig == unix.SIGTRAP|0x80:
			if inside[tid] = !inside[tid]; inside[tid] && time.Now().After(begin) {
				calls[number(tid)]++
			}
		case sig == unix.SIGTRAP || sig == unix.SIGSTOP: // a new thread, or its first stop
		default:
			deliver = int(sig)
		}
		unix.PtraceSyscall(tid, deliver)
	}
}

// names of the calls that an agent makes often.
var names = map[int]string{
	unix.SYS_READ: "read", unix.SYS_WRITE: "write", unix.SYS_CLOSE: "close", unix.SYS_OPENAT: "openat", unix.SYS_GETDENTS64: "getdents64",
	unix.SYS_FUTEX:     "futex",
	unix.SYS_NANOSLEEP: "nanosleep", unix.SYS_EPOLL_PWAIT: "epoll_pwait", unix.SYS_EPOLL_CTL: "epoll_ctl", unix.SYS_FCNTL: "fcntl",
	unix.SYS_FSTAT: "fstat", unix.SYS_NEWFSTATAT: "newfstatat", unix.SYS_IOCTL: "ioctl", unix.SYS_TGKILL: "tgkill",
	unix.SYS_GETPID: "getpid", unix.SYS_RT_SIGRETURN: "rt_sigreturn", unix.SYS_PREAD64: "pread64", unix.SYS_SENDTO: "sendto",
	unix.SYS_RECVFROM: "recvfrom", unix.SYS_MADVISE: "madvise", unix.SYS_STATFS: "statfs",
	unix.SYS_SCHED_YIELD: "sched_yield", unix.SYS_MMAP: "mmap", unix.SYS_MUNMAP: "munmap", unix.SYS_PPOLL: "ppoll",
	unix.SYS_READLINKAT: "readlinkat",
}
