//go:build linux && (amd64 || arm64) && !static

package cuda

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ebitengine/purego"

	"github.com/weft-fabric/weft/run/gpu"
	"github.com/weft-fabric/weft/run/gpu/ptx"
	"github.com/weft-fabric/weft/run/reduce"
)

// build compiles a driver without a GPU.
func build(t *testing.T, defines ...string) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	out := filepath.Join(t.TempDir(), "libcuda.so.1")
	cmd := exec.CommandContext(ctx, cc, append([]string{"-shared", "-fPIC", "-O1", "-w", "-o", out, "testdata/driver.c"}, defines...)...)
	cmd.WaitDelay = time.Second
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return out
}

// What is wrong with a driver is told by an error of its own.
func TestWrongDrivers(t *testing.T) {
	for _, x := range []struct {
		name    string
		defines []string
		want    error
		text    string
	}{
		{"old", []string{"-DVERSION=10020"}, gpu.ErrVersion, "it is for CUDA 10.2; want 11.4 or newer"},
		{"without a call", []string{"-DVERSION=11000", "-DNO_LAUNCH"}, gpu.ErrVersion, "CUDA 11.0, without cuLaunchKernel"},
		{"without a GPU", []string{"-DINIT=100"}, gpu.ErrNoDevice, "cuInit: error 100 CUDA_ERROR_NO_DEVICE"},
		{"of another kernel", []string{"-DINIT=803"}, gpu.ErrVersion, "different versions"},
		{"a stub", []string{"-DINIT=34"}, gpu.ErrNoLibrary, "stub"},
	} {
		t.Run(x.name, func(t *testing.T) {
			if _, err := load(build(t, x.defines...)); !errors.Is(err, x.want) || !strings.Contains(err.Error(), x.text) {
				t.Errorf("got %v", err)
			}
		})
	}
	if _, err := load(filepath.Join(t.TempDir(), "libcuda.so.1")); !errors.Is(err, gpu.ErrNoLibrary) {
		t.Errorf("no library: %v", err)
	}
	if _, err := load("libm.so.6"); !errors.Is(err, gpu.ErrNoLibrary) || !strings.Contains(err.Error(), "not NVIDIA's driver") {
		t.Errorf("another library: %v", err)
	}
}

// get opens GPU 0 of a driver without one.
func get(t *testing.T, defines ...string) (*Device, uintptr) {
	t.Helper()
	path := build(t, defines...)
	lib, err := load(path)
	if err != nil {
		t.Fatal(err)
	}
	d, err := open(lib, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	h, err := purego.Dlopen(path, purego.RTLD_NOW)
	if err != nil {
		t.Fatal(err)
	}
	return d, h
}

// Calls arrive in C as they were made in Go.
func TestCallsArrive(t *testing.T) {
	d, lib := get(t)
	if i := d.Info(); i.Name != "test 0" || i.Capability != 90 || i.Units != 132 || i.Bytes != 141<<30 || i.Driver != "CUDA 12.4" ||
		i.ID != "GPU-"+strings.Repeat("28", 16) {
		t.Errorf("info %+v", i)
	}
	if _, err := open(d.lib, 2); !errors.Is(err, gpu.ErrNoDevice) || !strings.Contains(err.Error(), "GPU 2 of 2") {
		t.Errorf("GPU 2: %v", err)
	}
	p, err := d.Alloc(1000)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Alloc(1 << 30); err == nil ||
		!strings.Contains(err.Error(), "cuMemAlloc: error 2 CUDA_ERROR_OUT_OF_MEMORY: out of memory") {
		t.Errorf("too much memory: %v", err)
	}
	s, err := d.Segment(p+100, 900)
	if err != nil || s.Base != p || s.Bytes != 1000 || s.ID != 7 || s.Kind != gpu.Plain {
		t.Errorf("segment %+v, %v", s, err)
	}
	h, err := d.Export(s)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // a handle is mapped once
		if q, err := d.Import(h); err != nil || q != p+1<<30 {
			t.Errorf("import %#x, %v", q, err)
		}
	}
	for i := range 3 {
		if err := d.Drop(p + 1<<30); (err != nil) != (i == 2) {
			t.Errorf("drop %d: %v", i, err)
		}
	}
	x, err := d.Queue()
	if err != nil {
		t.Fatal(err)
	}
	q := x.(*queue)
	in, out := []byte("four little words"), make([]byte, 17)
	if err := errors.Join(q.In(p, in), q.Copy(p+64, p, 17), q.Out(out, p+64)); err != nil || string(out) != string(in) {
		t.Errorf("copies: %q, %v", out, err)
	}
	r := &gpu.Reduction{Type: reduce.Float32, Op: reduce.Avg, Srcs: []gpu.Ptr{p, p + 256, p + 512}, Dsts: []gpu.Ptr{p}, Bytes: 192, Factor: 3}
	if err := q.Reduce(r); err != nil {
		t.Fatal(err)
	}
	at, err := purego.Dlsym(lib, "test_launched")
	if err != nil {
		t.Fatal(err)
	}
	want := ptx.Arguments(r)
	for i := 0; i+8 <= len(want); i += 8 {
		if got, _, _ := purego.SyscallN(at, uintptr(i)); uint64(got) != binary.LittleEndian.Uint64(want[i:]) {
			t.Errorf("parameter at %d: %#x, want %#x", i, got, want[i:i+8])
		}
	}
	for i, v := range []uintptr{1, 1, 1, ptx.Threads, 1, 1, 0} {
		if got, _, _ := purego.SyscallN(at, uintptr(4096+i)); got != v {
			t.Errorf("geometry %d: %d, want %d", i, got, v)
		}
	}
	mark, err := q.Mark()
	if ok, e := q.Reached(mark); !ok || err != nil || e != nil {
		t.Errorf("a mark: %t, %v, %v", ok, err, e)
	}
	ask := func(symbol string) uintptr {
		t.Helper()
		at, err := purego.Dlsym(lib, symbol)
		if err != nil {
			t.Fatal(err)
		}
		v, _, _ := purego.SyscallN(at)
		return v
	}
	for i := range 2 * gpu.Notes { // more than there are events
		stream := gpu.Stream(0x1234 + i)
		note, err := q.Note(stream)
		if err := errors.Join(err, q.After(note)); err != nil {
			t.Fatal(err)
		}
		if ask("test_follower") != 0x77 || ask("test_followed") != uintptr(stream) {
			t.Fatalf("after a note: %#x waits for %#x", ask("test_follower"), ask("test_followed"))
		}
		stamp, err := q.Stamp()
		if err := errors.Join(err, q.Follow(stream, stamp)); err != nil {
			t.Fatal(err)
		}
		if ask("test_follower") != uintptr(stream) || ask("test_followed") != 0x77 {
			t.Fatalf("after a stamp: %#x waits for %#x", ask("test_follower"), ask("test_followed"))
		}
	}
	for s, want := range map[gpu.Stream]string{0x55: "true <nil>", 0x56: "false <nil>",
		0x57: "false stream 0x57: cuStreamQuery: error 400 CUDA_ERROR_OTHER: something"} {
		if idle, err := q.Idle(s); fmt.Sprint(idle, " ", err) != want {
			t.Errorf("stream %#x: %t %v, want %s", s, idle, err, want)
		}
	}
	word := new(uint32)
	if err := q.Post(word, 7); err != nil || *word != 7 || !q.Posts() {
		t.Errorf("a post: %d, %v", *word, err)
	}
	if err := q.Await(word, 9); err != nil {
		t.Error(err)
	}
	for _, n := range []uint32{0, 8, 9} {
		*word = n
		if over := int32(ask("test_waits_over")) != 0; over != (n == 9) {
			t.Errorf("a queue that waits for 9 is over at %d: %t", n, over)
		}
	}
	if err := errors.Join(q.Close(), d.Free(p)); err != nil {
		t.Error(err)
	}
	if err := d.Free(p); err == nil {
		t.Error("memory was freed twice, and nobody noticed")
	}
	if _, err := d.Segment(p, 8); !errors.Is(err, gpu.ErrMemory) {
		t.Errorf("a freed address: %v", err)
	}
}

// Kinds of memory are told apart.
func TestKindsOfMemory(t *testing.T) {
	d, _ := get(t)
	for at, want := range map[gpu.Ptr]gpu.Kind{0x51 << 40: gpu.Mapped, 0x52 << 40: gpu.Pooled, 0x53 << 40: gpu.Managed} {
		s, err := d.Segment(at+4096, 64)
		if err != nil || s.Kind != want {
			t.Errorf("%#x: %v, %v; want %v", at, s.Kind, err, want)
		}
		if _, err := d.Export(s); !errors.Is(err, gpu.ErrNotShown) || !strings.Contains(err.Error(), want.String()) {
			t.Errorf("export of %v: %v", want, err)
		}
	}
	if _, err := d.Segment(0x54<<40, 64); !errors.Is(err, gpu.ErrMemory) ||
		!strings.Contains(err.Error(), "lies on GPU 1, this rank uses GPU 0") {
		t.Errorf("another GPU: %v", err)
	}
	p, err := d.Alloc(100)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Segment(p+90, 20); !errors.Is(err, gpu.ErrMemory) || !strings.Contains(err.Error(), "ends after 10") {
		t.Errorf("past the end: %v", err)
	}
}

// A driver that cannot compile says so, and what its compiler said is told.
func TestCompilers(t *testing.T) {
	d, _ := get(t, "-DJIT=221")
	q, err := d.Queue()
	if err != nil {
		t.Fatal(err)
	}
	err = q.Reduce(&gpu.Reduction{Type: reduce.Int8, Op: reduce.Sum, Srcs: []gpu.Ptr{16, 32}, Dsts: []gpu.Ptr{48}, Bytes: 16})
	if !errors.Is(err, gpu.ErrNoJIT) || !strings.Contains(err.Error(), "kernel for sum of int8") ||
		!strings.Contains(err.Error(), "libnvidia-ptxjitcompiler.so.1 is missing") {
		t.Errorf("no compiler: %v", err)
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
	d, _ = get(t)
	if _, err := d.compile("broken"); err == nil || !strings.Contains(err.Error(), "line 3; it is broken") {
		t.Errorf("a broken text: %v", err)
	}
}

// Without numbers that the GPU writes, the driver is asked.
func TestDriverWithoutValues(t *testing.T) {
	d, _ := get(t, "-DNO_VALUES")
	q, err := d.Queue()
	if err != nil {
		t.Fatal(err)
	}
	mark, err := q.Mark()
	if ok, e := q.Reached(mark); !ok || err != nil || e != nil {
		t.Errorf("a mark: %t, %v, %v", ok, err, e)
	}
	if q.Posts() {
		t.Error("words can be waited for")
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
}
