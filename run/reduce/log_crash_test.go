//go:build unix

package reduce_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/reduce"
)

// childEnv holds what a child process is to do.
const childEnv = "WEFT_REDUCE_CHILD"

// crash is a reduction in place, in memory that parent and children share.
type crash struct {
	File    string
	Path    string // the child's
	Type    reduce.Type
	Op      reduce.Op
	Buffers int
	Bytes   int  // of a buffer
	Gate    bool // the child names its thread and waits to be let in
}

// memory is what is shared: two words for the gate, a log, buffers.
type memory struct {
	room         []byte
	thread, open *atomic.Uint64
	log          []byte
	bufs         [][]byte
}

// share maps the memory.
func (c crash) share() (m memory, err error) {
	f, err := os.OpenFile(c.File, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return m, err
	}
	defer f.Close()
	size := 64 + reduce.LogSize + c.Buffers*c.Bytes
	if err := f.Truncate(int64(size)); err != nil {
		return m, err
	}
	m.room, err = syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return m, err
	}
	m.thread, m.open = (*atomic.Uint64)(unsafe.Pointer(&m.room[0])), (*atomic.Uint64)(unsafe.Pointer(&m.room[8]))
	m.log = m.room[64:][:reduce.LogSize]
	for i := range c.Buffers {
		m.bufs = append(m.bufs, m.room[64+reduce.LogSize+i*c.Bytes:][:c.Bytes])
	}
	return m, nil
}

func (m memory) release(t *testing.T) {
	if err := syscall.Munmap(m.room); err != nil {
		t.Error(err)
	}
}

// start runs a child.
func (c crash) start(t *testing.T) (cmd *exec.Cmd, stderr *bytes.Buffer) {
	t.Helper()
	what, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	stderr = new(bytes.Buffer)
	cmd = bounded.Command(t, os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+string(what))
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, stderr
}

// child is what a child does.
func child(what string) error {
	var c crash
	if err := json.Unmarshal([]byte(what), &c); err != nil {
		return err
	}
	m, err := c.share()
	if err != nil {
		return err
	}
	reduce.Use(c.Path, 1)
	if c.Gate {
		runtime.LockOSThread()
		m.thread.Store(uint64(thisThread()))
		for m.open.Load() == 0 {
			continue
		}
	}
	reduce.ApplyAllLogged(c.Type, c.Op, m.bufs, m.bufs, nil, m.log, 0)
	return nil
}

func TestMain(m *testing.M) {
	if what := os.Getenv(childEnv); what != "" {
		if err := child(what); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// Processes are killed at points that are drawn, their heirs as well, and the
// last heir ends with the definition's bits.
func TestKilledReductionsAreFinished(t *testing.T) {
	const n = 512<<10 + 24           // no whole number of any path's blocks
	middle := bounded.Times(60, 200) // kills that shall hit a reduction at work
	c := crash{File: filepath.Join(t.TempDir(), "memory"), Buffers: 3, Bytes: n}
	m, err := c.share()
	if err != nil {
		t.Fatal(err)
	}
	defer m.release(t)
	r := rand.New(rand.NewPCG(31, 32))
	cases := []struct {
		typ  reduce.Type
		op   reduce.Op
		srcs [][]byte
		want []byte
	}{{typ: reduce.Float32, op: reduce.Sum}, {typ: reduce.Uint8, op: reduce.BXor}, {typ: reduce.BFloat16, op: reduce.Avg},
		{typ: reduce.Float16, op: reduce.PreMulSum}}
	for i := range cases {
		k := &cases[i]
		k.srcs = sources(r, k.typ, c.Buffers, n)
		k.want = finished(k.typ, k.op, k.srcs)
	}
	paths := reduce.Paths()
	hits, sealed := 0, 0
	for attempt := 0; hits < middle; attempt++ {
		if attempt == 4*middle {
			t.Fatalf("%d of %d processes were killed at work, want %d", hits, attempt, middle)
		}
		k := &cases[attempt%len(cases)]
		c.Type, c.Op = k.typ, k.op
		reduce.ResetLog(m.log)
		for i, b := range m.bufs {
			copy(b, k.srcs[i])
		}
		for range 1 + r.IntN(3) {
			done := reduce.Logged(m.log)
			if done == n {
				break
			}
			c.Path = paths[r.IntN(len(paths))]
			c.kill(t, m.log, done+1+r.IntN(n-done))
			if done := reduce.Logged(m.log); done < n {
				hits++
				if sealedBytes(m.log) > done {
					sealed++
				}
			}
		}
		restore := reduce.Use(paths[r.IntN(len(paths))], 1)
		reduce.ApplyAllLogged(k.typ, k.op, m.bufs, m.bufs, nil, m.log, 0)
		restore()
		for i, b := range m.bufs {
			if !bytes.Equal(b, k.want) {
				t.Fatalf("attempt %d, %v of %v, destination %d: %s", attempt, k.op, k.typ, i, differ(k.typ, b, k.want))
			}
		}
	}
	t.Logf("%d processes killed at work, %d of them with a block sealed", hits, sealed)
}

// kill runs a child until that number of bytes is done, kills it and waits for its end.
func (c crash) kill(t *testing.T, log []byte, bytes int) {
	t.Helper()
	cmd, stderr := c.start(t)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for reduce.Logged(log) < bytes {
		select {
		case err := <-ended: // it came to the end before this loop saw it, or failed
			if reduce.Logged(log) < bytes {
				t.Fatalf("child %+v: %v\n%s", c, err, stderr)
			}
			return
		default:
			runtime.Gosched()
		}
	}
	if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
	<-ended
}
