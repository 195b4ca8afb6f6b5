//go:build linux && (amd64 || arm64)

package measure

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// A rank marks the beginning and the end of what is counted by a system call that fails, which its tracer sees.
const (
	begin = 1 + iota
	end

	marker = 0x77656674 // no kind of priority
)

func mark(what uintptr) { _, _, _ = syscall.RawSyscall(unix.SYS_GETPRIORITY, marker, what, 0) }

// Trace runs a rank, which it is told how to start, and counts its system calls between its marks. It is the only thing that
// its process does: it waits for whatever child has something to tell.
func Trace(ctx context.Context, command []string, out io.Writer) error {
	runtime.LockOSThread() // a tracer is a thread
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("trace %s: %w", command[0], err)
	}
	main := cmd.Process.Pid
	t := tracer{inside: map[int]bool{}, calls: map[string]int{}}
	if err := t.run(main); err != nil {
		_ = cmd.Process.Kill()
		return err
	}
	return json.NewEncoder(out).Encode(line{Calls: t.calls})
}

type tracer struct {
	inside   map[int]bool // threads that are in a system call
	counting bool
	calls    map[string]int
}

// run lets a process and its threads go from system call to system call until the first thread ends, and counts them.
// Signals are passed on. It must stay on the thread that began the trace.
func (t *tracer) run(main int) error {
	var ws unix.WaitStatus
	if _, err := unix.Wait4(main, &ws, 0, nil); err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	if err := unix.PtraceSetOptions(main, unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_TRACECLONE|unix.PTRACE_O_EXITKILL); err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	if err := unix.PtraceSyscall(main, 0); err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	for {
		tid, err := unix.Wait4(-1, &ws, unix.WALL, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("trace: %w", err)
		}
		if ws.Exited() || ws.Signaled() {
			if tid == main {
				return nil
			}
			continue
		}
		deliver := 0
		switch sig := ws.StopSignal(); {
		case sig == unix.SIGTRAP|0x80:
			if t.inside[tid] = !t.inside[tid]; t.inside[tid] {
				t.entered(tid)
			}
		case sig == unix.SIGTRAP, sig == unix.SIGSTOP: // a new thread, on either side
		default:
			deliver = int(sig)
		}
		_ = unix.PtraceSyscall(tid, deliver) // it may be gone
	}
}

// entered looks at a system call that begins.
func (t *tracer) entered(tid int) {
	var regs unix.PtraceRegs
	if unix.PtraceGetRegs(tid, &regs) != nil {
		return
	}
	number, first, second := numbers(&regs)
	if number == unix.SYS_GETPRIORITY && first == marker {
		t.counting = second == begin
		return
	}
	if t.counting {
		name, known := callNames[number]
		if !known {
			name = "call " + strconv.FormatUint(number, 10)
		}
		t.calls[name]++
	}
}

// callNames are the system calls that move data.
var callNames = map[uint64]string{
	unix.SYS_READ: "read", unix.SYS_WRITE: "write", unix.SYS_READV: "readv", unix.SYS_WRITEV: "writev", unix.SYS_SENDTO: "sendto",
	unix.SYS_RECVFROM: "recvfrom",
	unix.SYS_SENDMSG:  "sendmsg", unix.SYS_RECVMSG: "recvmsg", unix.SYS_SENDMMSG: "sendmmsg", unix.SYS_RECVMMSG: "recvmmsg",
	unix.SYS_PROCESS_VM_READV: "process_vm_readv", unix.SYS_PROCESS_VM_WRITEV: "process_vm_writev", unix.SYS_SPLICE: "splice",
	unix.SYS_VMSPLICE: "vmsplice",
}
