// Package libweft builds libweft.so for tests, once for all of them, and runs programs that use it.
package libweft

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
)

// Root is the directory of the project.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			t.Fatal("no go.mod above the test")
		}
		dir = up
	}
}

// buildLimit is long, as the first build compiles the standard library once more, on a machine that may be busy.
const buildLimit = 8 * time.Minute

var built = map[string]error{}
var building sync.Mutex

// Build builds python/weft/libweft.so, as make lib does, and gives its path. Tests of several packages may ask at once: one builds,
// and the others find that nothing is left to do. Without a C compiler the test is skipped.
func Build(t testing.TB) string {
	t.Helper()
	Compiler(t, "cc")
	root := Root(t)
	so := filepath.Join(root, "python", "weft", "libweft.so")
	building.Lock()
	defer building.Unlock()
	err, done := built[root]
	if !done {
		err = build(root, so)
		built[root] = err
	}
	if err != nil {
		t.Fatal(err)
	}
	return so
}

func build(root, so string) error {
	lock, err := os.Open(filepath.Join(root, "capi", "weft.h")) // not go.mod, which go locks itself
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), buildLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "build", "-buildmode=c-shared", "-tags", "libweft", "-trimpath", "-ldflags", "-s -w", "-o", so,
		"./capi")
	cmd.Dir, cmd.Env, cmd.WaitDelay = root, append(os.Environ(), "CGO_ENABLED=1"), time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("libweft.so cannot be built: %w\n%s", err, out)
	}
	return nil
}

// Compiler is the path of a compiler. Without it the test is skipped.
func Compiler(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed", name)
	}
	return path
}

// Python is a Python that has a module. Without it the test is skipped. Debian's own comes first: it has Debian's modules.
func Python(t testing.TB, module string) string {
	t.Helper()
	for _, name := range []string{"/usr/bin/python3", "python3"} {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		err := exec.CommandContext(ctx, name, "-c", "import sys, "+module+"; assert sys.version_info >= (3, 9)").Run()
		cancel()
		if err == nil {
			return name
		}
	}
	t.Skipf("no python3 of version 3.9 or later with module %s", module)
	return ""
}

// Compile compiles a C program against the header and the library.
func Compile(t testing.TB, source string) string {
	t.Helper()
	so, cc := Build(t), Compiler(t, "cc")
	out := filepath.Join(t.TempDir(), strings.TrimSuffix(filepath.Base(source), ".c"))
	Run(t, nil, cc, "-std=c99", "-Wall", "-Wextra", "-Werror", "-O1", "-I", filepath.Join(Root(t), "capi"), "-o", out, source, so,
		"-Wl,-rpath,"+filepath.Dir(so), "-ldl", "-lpthread")
	return out
}

// limit is how long a program of a test may run; a thousand groups take longer than what runs every time. On a machine where
// more wants to run than there are cores all takes longer by so much, up to four times as long.
func limit() time.Duration {
	if bounded.Long() {
		return 5 * time.Minute
	}
	load := 0.0
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		_, _ = fmt.Sscan(string(b), &load) // 0 if it says nothing
	}
	return time.Duration(float64(50*time.Second) * min(4, max(1, load/float64(runtime.NumCPU()))))
}

// Run runs a command to its end and gives what it printed.
func Run(t testing.TB, env []string, name string, args ...string) string {
	t.Helper()
	out, err := Try(env, name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Try is Run that gives the error.
func Try(env []string, name string, args ...string) (string, error) {
	most := limit()
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env, cmd.WaitDelay = append(os.Environ(), env...), time.Second
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		err = fmt.Errorf("it did not end within %s", most)
	}
	if err != nil {
		return string(out), fmt.Errorf("%s: %w\n%s", strings.Join(append([]string{name}, args...), " "), err, out)
	}
	return string(out), nil
}

// Env is the environment of a rank, as launchers set it, for n ranks that meet at a port of this host.
func Env(t testing.TB, n int, more ...string) func(rank int) []string {
	t.Helper()
	port := freePort(t)
	return func(rank int) []string {
		return append([]string{fmt.Sprintf("RANK=%d", rank), fmt.Sprintf("WORLD_SIZE=%d", n), fmt.Sprintf("LOCAL_RANK=%d", rank),
			"MASTER_ADDR=127.0.0.1", fmt.Sprintf("MASTER_PORT=%d", port), "WEFT_TIMEOUT=40s", "PYTHONPATH=" + filepath.Join(Root(t), "python"),
			"PYTHONDONTWRITEBYTECODE=1", "OMP_NUM_THREADS=1"}, more...)
	}
}

// freePort is one that nobody listens at, below those that the system gives to connections: it stays free until ranks come.
func freePort(t testing.TB) int {
	t.Helper()
	var last error
	for range 100 {
		port := 20_000 + rand.IntN(12_000)
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err == nil {
			l.Close()
			return port
		}
		last = err
	}
	t.Fatalf("no port from 20,000 to 32,000 is free: %v", last)
	return 0
}

// Ranks runs a command on n ranks to their end and gives what each printed, and its error.
func Ranks(t testing.TB, n int, env []string, name string, args ...string) (outs []string, errs []error) {
	t.Helper()
	outs, errs = make([]string, n), make([]error, n)
	of := Env(t, n, env...)
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() { outs[r], errs[r] = Try(of(r), name, args...) })
	}
	wg.Wait()
	return outs, errs
}

// AllRanks is Ranks where none may fail.
func AllRanks(t testing.TB, n int, env []string, name string, args ...string) []string {
	t.Helper()
	outs, errs := Ranks(t, n, env, name, args...)
	for r, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
	return outs
}
