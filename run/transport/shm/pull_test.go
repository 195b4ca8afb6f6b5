//go:build linux

package shm

import (
	"bufio"
	"errors"
	"io"
	"os"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/internal/bounded"
)

func init() {
	if os.Getenv("SHM_TEST_NO_MEMORY") == "" {
		return
	}
	// The first thread of the process ends, and takes its claim to the memory along; the process goes on until its input ends.
	runtime.LockOSThread()
	go func() {
		_, _ = os.Stdout.WriteString("begun\n")
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	_, _, _ = unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
}

// A process that is killed gives its memory back first, and on a busy host the rest of its end takes long. A rank that reads its memory
// meanwhile finds that it is gone.
func TestProcessWithoutMemoryIsOver(t *testing.T) {
	cmd := bounded.Server(t, os.Args[0])
	cmd.Env = append(os.Environ(), "SHM_TEST_NO_MEMORY=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		in.Close()
		_ = cmd.Wait()
	}()
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	m := &met{pid: cmd.Process.Pid, began: began(cmd.Process.Pid), pidfd: -1}
	dst := make([]byte, 8)
	for !errors.Is(err, unix.ESRCH) { // until its first thread has ended
		err = readProcess(m.pid, uintptr(unsafe.Pointer(&bodies)), dst)
	}
	if m.ending() {
		t.Fatal("the process has ended")
	}
	if !m.over(err) {
		t.Errorf("%v: the process is not taken for one that ends", err)
	}
}
