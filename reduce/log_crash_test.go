//go:build unix

package reduce_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/weft-fabric/weft/reduce"
)

// childEnv holds what a child process reduces: file, path, type, operation.
const childEnv = "WEFT_REDUCE_CHILD"

// The memory that parent and children share: a log, then buffers.
const (
	crashBuffers = 3
	crashBytes   = 512<<10 + 24 // of a buffer: no whole number of any path's blocks
	crashRoom    = reduce.LogSize + crashBuffers*crashBytes
)

func TestMain(m *testing.M) {
	if what := os.Getenv(childEnv); what != "" {
		var file, path string
		var typ reduce.Type
		var op reduce.Op
		if _, err := fmt.Sscan(what, &file, &path, (*uint8)(&typ), (*uint8)(&op)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		room, err := share(file)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		log, bufs := parts(room)
		reduce.Use(path, 1)
		reduce.ApplyAllLogged(typ, op, bufs, bufs, log, 0)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// share maps the memory of a file.
func share(file string) ([]byte, error) {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(crashRoom); err != nil {
		return nil, err
	}
	return syscall.Mmap(int(f.Fd()), 0, crashRoom, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
}

// parts of the memory.
func parts(room []byte) (log []byte, bufs [][]byte) {
	for i := range crashBuffers {
		bufs = append(bufs, room[reduce.LogSize+i*crashBytes:][:crashBytes])
	}
	return room[:reduce.LogSize], bufs
}

// Processes are killed at points that are drawn, their heirs as well, and the
// last heir ends with the definition's bits.
func TestKilledReductionsAreFinished(t *testing.T) {
	const middle = 200 // kills that shall hit a reduction at work
	file := filepath.Join(t.TempDir(), "memory")
	room, err := share(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Munmap(room); err != nil {
			t.Error(err)
		}
	}()
	log, bufs := parts(room)
	r := rand.New(rand.NewPCG(31, 32))
	cases := []struct {
		typ  reduce.Type
		op   reduce.Op
		srcs [][]byte
		want []byte
	}{{typ: reduce.Float32, op: reduce.Sum}, {typ: reduce.Uint8, op: reduce.BXor}, {typ: reduce.BFloat16, op: reduce.Avg}, {typ: reduce.Float16, op: reduce.PreMulSum}}
	for i := range cases {
		c := &cases[i]
		c.srcs = sources(r, c.typ, crashBuffers, crashBytes)
		c.want = finished(c.typ, c.op, c.srcs)
	}
	paths := reduce.Paths()
	hits, sealed := 0, 0
	for attempt := 0; hits < middle; attempt++ {
		if attempt == 4*middle {
			t.Fatalf("%d of %d processes were killed at work, want %d", hits, attempt, middle)
		}
		c := &cases[attempt%len(cases)]
		reduce.ResetLog(log)
		for i, b := range bufs {
			copy(b, c.srcs[i])
		}
		for range 1 + r.IntN(3) {
			done := reduce.Logged(log)
			if done == crashBytes {
				break
			}
			target := done + 1 + r.IntN(crashBytes-done)
			kill(t, fmt.Sprintln(file, paths[r.IntN(len(paths))], uint8(c.typ), uint8(c.op)), func() bool { return reduce.Logged(log) >= target })
			if done := reduce.Logged(log); done < crashBytes {
				hits++
				if sealedBytes(log) > done {
					sealed++
				}
			}
		}
		restore := reduce.Use(paths[r.IntN(len(paths))], 1)
		reduce.ApplyAllLogged(c.typ, c.op, bufs, bufs, log, 0)
		restore()
		for i, b := range bufs {
			if !bytes.Equal(b, c.want) {
				t.Fatalf("attempt %d, %v of %v, destination %d: %s", attempt, c.op, c.typ, i, differ(c.typ, b, c.want))
			}
		}
	}
	t.Logf("%d processes killed at work, %d of them with a block sealed", hits, sealed)
}

// kill runs a child until a condition holds, kills it and waits for its end.
func kill(t *testing.T, what string, reached func() bool) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+what)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for !reached() {
		select {
		case err := <-ended: // it reached the end before it said so, or failed
			if !reached() {
				t.Fatalf("child %q: %v\n%s", what, err, stderr.String())
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
