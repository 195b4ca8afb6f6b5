package reduce_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/reduce"
)

func thisThread() int { return syscall.Gettid() }

// A child executes a reduction instruction by instruction under ptrace. After each
// that changed memory a copy of it is finished as an heir would, by a path that is
// drawn: every state that a kill can leave, from the real code.
func TestEveryInstructionCanBeTheLast(t *testing.T) {
	runtime.LockOSThread() // the tracer is a thread
	defer runtime.UnlockOSThread()
	r := rand.New(rand.NewPCG(41, 42))
	paths := reduce.Paths()
	for k, path := range paths {
		for i, c := range []crash{
			{Type: reduce.Float32, Op: reduce.Sum, Buffers: 2, Bytes: 1500},
			{Type: reduce.Uint8, Op: reduce.Max, Buffers: 3, Bytes: 1291},
			{Type: reduce.Float64, Op: reduce.Avg, Buffers: 4, Bytes: 1144},
			{Type: reduce.BFloat16, Op: reduce.Sum, Buffers: 2, Bytes: 330},
			{Type: reduce.Float16, Op: reduce.Avg, Buffers: 3, Bytes: 330},
			{Type: reduce.Float8E5M2, Op: reduce.Min, Buffers: 2, Bytes: 131},
		} {
			if !bounded.Long() && (i+k)%6 != 0 {
				continue
			}
			c.Path, c.Gate, c.File = path, true, filepath.Join(t.TempDir(), "memory")
			steps, states := c.step(t, r, paths)
			t.Logf("%s, %v of %v: %d instructions, %d states of memory", path, c.Op, c.Type, steps, states)
		}
	}
}

func (c crash) step(t *testing.T, r *rand.Rand, paths []string) (steps, states int) {
	m, err := c.share()
	if err != nil {
		t.Fatal(err)
	}
	defer m.release(t)
	for _, b := range m.bufs {
		fill(r, c.Type, b)
	}
	want := finished(c.Type, c.Op, m.bufs)
	cmd, stderr := c.start(t)
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // says that it was killed
	}()
	for m.thread.Load() == 0 {
		if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
			t.Fatalf("child: %v\n%s", err, stderr)
		}
	}
	thread := int(m.thread.Load())
	if err := syscall.PtraceAttach(thread); errors.Is(err, syscall.EPERM) {
		t.Skip("this system allows no ptrace")
	} else if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.PtraceDetach(thread); err != nil {
			t.Error(err)
		}
	}()
	wait := func() {
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(thread, &status, syscall.WALL, nil); err != nil || !status.Stopped() {
			t.Fatalf("child has status %#x, %v\n%s", status, err, stderr)
		}
	}
	wait()
	m.open.Store(1)
	last, log := bytes.Clone(m.room), newLog()
	for reduce.Logged(m.log) < c.Bytes {
		// Signals that the thread gets meanwhile (the runtime's) are dropped.
		if err := syscall.PtraceSingleStep(thread); err != nil {
			t.Fatal(err)
		}
		wait()
		if steps++; bytes.Equal(m.room, last) {
			continue
		}
		states++
		copy(last, m.room)
		copy(log, m.log)
		bufs := make([][]byte, len(m.bufs))
		for i, b := range m.bufs {
			bufs[i] = bytes.Clone(b)
		}
		restore := reduce.Use(paths[r.IntN(len(paths))], never)
		reduce.ApplyAllLogged(c.Type, c.Op, bufs, bufs, nil, log, 0)
		restore()
		for i, b := range bufs {
			if !bytes.Equal(b, want) {
				t.Fatalf("%s, %v of %v: state %d, after %d instructions, %d bytes done, %d sealed: destination %d: %s",
					c.Path, c.Op, c.Type, states, steps, reduce.Logged(m.log), sealedBytes(m.log), i, differ(c.Type, b, want))
			}
		}
	}
	return steps, states
}
