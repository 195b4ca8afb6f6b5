package launch

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weft-fabric/weft/run/lives"
)

// Command is what one process runs.
type Command struct {
	Rank           int
	Host           string   // for messages; "" is this host
	Args           []string // the program first
	Env            []string // beside the parent's environment; these win
	Dir            string
	Files          []*os.File // descriptors 3 and on, as exec.Cmd's ExtraFiles; the caller closes its own
	Stdin          []byte     // written to a pipe that stays open while the process runs; nil is an empty input
	Stdout, Stderr io.Writer  // called from goroutines of the process, one at a time each; nil drops what is written

	remote []string // the environment of a process that this one starts on another host; nil for none
}

// Process is a rank that was started: it leads a process group of its own, is
// killed by the kernel should this process die, and takes what is left of its
// group with it when it ends.
type Process struct {
	Rank int
	Host string
	Pid  int

	started time.Time
	stdin   *os.File
	readers []*os.File
	tail    *tail
	reading sync.WaitGroup
	done    chan struct{}

	watch  string       // folder of the reports (WEFT_WATCH), "" for none
	record lives.Record // of its start
	remote bool         // the rank itself is on another host

	mu     sync.Mutex
	exit   Exit
	asked  bool // a signal that ends was sent to it
	ended  bool // the leader is dead and not yet reaped
	reaped bool // Pid may belong to someone else
}

// Start starts a process. When its leader has ended, and before its remaining
// output is in, the process is sent to exits, which must have room for it.
func Start(c Command, exits chan<- *Process) (*Process, error) {
	if err := Supported(); err != nil {
		return nil, err
	}
	path, err := exec.LookPath(c.Args[0])
	if err != nil {
		return nil, err
	}
	p := &Process{Rank: c.Rank, Host: c.Host, tail: newTail(), done: make(chan struct{})}
	p.exit = Exit{Rank: c.Rank, Host: c.Host}
	p.remote = c.remote != nil
	p.watch, p.record = c.reported()
	var theirs []*os.File
	closeAll := func(files []*os.File) {
		for _, f := range files {
			f.Close()
		}
	}
	defer func() { closeAll(theirs) }()
	pipe := func() (*os.File, error) {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		theirs = append(theirs, w)
		p.readers = append(p.readers, r)
		return w, nil
	}
	stdout, err := pipe()
	if err != nil {
		return nil, err
	}
	stderr, err := pipe()
	if err != nil {
		closeAll(p.readers)
		return nil, err
	}
	cmd := &exec.Cmd{
		Path: path, Args: c.Args, Env: append(os.Environ(), c.Env...), Dir: c.Dir,
		Stdout: stdout, Stderr: stderr, ExtraFiles: c.Files,
		SysProcAttr: attributes(),
	}
	if c.Stdin != nil {
		r, w, err := os.Pipe()
		if err != nil {
			closeAll(p.readers)
			return nil, err
		}
		theirs = append(theirs, r)
		cmd.Stdin, p.stdin = r, w
	}
	p.reading.Add(2) // before the process can end
	started := make(chan error)
	go p.live(cmd, started, exits)
	if err := <-started; err != nil {
		closeAll(p.readers)
		if p.stdin != nil {
			p.stdin.Close()
		}
		return nil, err
	}
	if p.stdin != nil {
		// A pipe holds 64 KiB: what fits is written at once, and a process that
		// ended meanwhile does not need it.
		_, _ = p.stdin.Write(c.Stdin)
	}
	go p.read(p.readers[0], c.Stdout, nil)
	go p.read(p.readers[1], c.Stderr, p.tail)
	return p, nil
}

// live starts the process and waits for it on one thread: the kernel sends the
// parent-death signal when the thread that forked ends, so that thread is kept
// until the process is gone.
func (p *Process) live(cmd *exec.Cmd, started chan<- error, exits chan<- *Process) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		started <- err
		return
	}
	p.Pid, p.started = cmd.Process.Pid, time.Now()
	p.exit.Pid = p.Pid
	watchGroup(p.Pid)
	p.report(lives.Started)
	started <- nil

	// The dead leader stays unreaped while its group is killed, so its number
	// cannot be another's meanwhile.
	awaitEnd(p.Pid)
	after := time.Since(p.started)
	p.mu.Lock()
	_ = syscall.Kill(-p.Pid, syscall.SIGKILL)
	forgetGroup(p.Pid)
	_ = cmd.Wait()
	p.reaped = true
	p.ended = true
	p.exit.After = after
	p.exit.set(cmd.ProcessState.Sys().(syscall.WaitStatus))
	p.mu.Unlock()
	p.report(lives.Ended)
	exits <- p

	// A descendant that left the group may hold the pipes open for ever.
	for _, f := range p.readers {
		_ = f.SetReadDeadline(time.Now().Add(time.Second))
	}
	p.reading.Wait()
	p.quote()
	for _, f := range p.readers {
		f.Close()
	}
	if p.stdin != nil {
		p.stdin.Close()
	}
	close(p.done)
}

// read hands what the process writes to w.
func (p *Process) read(r *os.File, w io.Writer, t *tail) {
	defer p.reading.Done()
	buf := make([]byte, 64<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if t != nil {
				t.Write(buf[:n])
			}
			if w != nil {
				_, _ = w.Write(buf[:n])
			}
		}
		if err != nil {
			if f, ok := w.(interface{ Flush() }); ok {
				f.Flush()
			}
			return
		}
	}
}

// Signal sends sig to the process group, if its leader still lives.
func (p *Process) Signal(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		p.asked = p.asked ||
			slices.Contains([]syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGKILL}, sig)
		_ = syscall.Kill(-p.Pid, sig)
	}
}

// Kill ends the process group at once.
func (p *Process) Kill() { p.Signal(syscall.SIGKILL) }

// Wait waits until the process has ended and its output is written.
func (p *Process) Wait() Exit {
	<-p.done
	return p.Exit()
}

// Done is closed once Wait would return.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit is how the process ended, with what is known of its last words so far.
func (p *Process) Exit() Exit {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.exit
	e.Stderr = p.tail.lines()
	return e
}

// peek says whether the leader is dead, also if its own goroutine does not know yet.
func (p *Process) peek() (Exit, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return p.exit, true
	}
	status, dead := zombie(p.Pid)
	if !dead {
		return Exit{}, false
	}
	e := p.exit
	e.set(status)
	return e, true
}

// zombie reads the wait status of a child that is dead and unreaped from the
// kernel's own line about it: the state is the 3rd field, the status the 52nd.
func zombie(pid int) (syscall.WaitStatus, bool) {
	line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, false
	}
	// The 2nd field is the program's name in brackets and may hold anything.
	fields := strings.Fields(string(line[bytes.LastIndexByte(line, ')')+1:]))
	if len(fields) < 50 || fields[0] != "Z" {
		return 0, false
	}
	status, err := strconv.ParseUint(fields[49], 10, 32)
	return syscall.WaitStatus(status), err == nil
}
