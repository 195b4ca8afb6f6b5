package main

import (
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/internal/libweft"
	"github.com/weft-fabric/weft/move/kvcache"
	"github.com/weft-fabric/weft/move/xfer"
)

// The header compiles without a warning as C99 and as C++17, and its sizes and offsets are those of testdata/abi.txt.
func TestABI(t *testing.T) {
	want, err := os.ReadFile("testdata/abi.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ compiler, standard, language string }{{"cc", "c99", "c"}, {"c++", "c++17", "c++"}} {
		t.Run(x.standard, func(t *testing.T) {
			cc, exe := libweft.Compiler(t, x.compiler), filepath.Join(t.TempDir(), "abi")
			libweft.Run(t, nil, cc, "-x", x.language, "-std="+x.standard, "-pedantic", "-Wall", "-Wextra", "-Werror", "-I", ".", "-o", exe,
				"testdata/abi.c")
			if got := libweft.Run(t, nil, exe); got != string(want) {
				t.Errorf("the ABI changed. Got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// Everything that the header declares is there.
func TestEveryDeclaredFunctionIsExported(t *testing.T) {
	so := libweft.Build(t)
	nm, err := exec.LookPath("nm")
	if err != nil {
		t.Skip("nm is not installed")
	}
	symbols := libweft.Run(t, nil, nm, "-D", "--defined-only", so)
	header, err := os.ReadFile("weft.h")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(header)) {
		before, _, ok := strings.Cut(line, "(")
		if f := strings.Fields(before); ok && len(f) >= 2 && strings.HasPrefix(strings.TrimLeft(f[len(f)-1], "*"), "weft_") &&
			strings.HasSuffix(strings.TrimSpace(line), ";") || ok && strings.HasPrefix(line, "int weft_") {
			name := strings.TrimLeft(f[len(f)-1], "*")
			if n++; !strings.Contains(symbols, " T "+name+"\n") {
				t.Errorf("%s is declared and not exported", name)
			}
		}
	}
	if n < 50 {
		t.Errorf("only %d functions were found in the header", n)
	}
}

// Every call, on all ranks, over shared memory and over tcp.
func TestCalls(t *testing.T) {
	exe := libweft.Compile(t, "testdata/calls.c")
	for _, transport := range []string{"shm", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			for r, out := range libweft.AllRanks(t, 3, []string{"TRANSPORT=" + transport}, exe) {
				if !strings.Contains(out, "all is well") {
					t.Errorf("rank %d printed %q", r, out)
				}
			}
		})
	}
}

// A process that has another library made with Go is refused, with its name. What tells such a library is a note in its file.
func TestAnotherLibraryOfGo(t *testing.T) {
	libweft.Build(t)
	python, dir := libweft.Python(t, "ctypes"), t.TempDir()
	other, plain := filepath.Join(dir, "libother.so"), filepath.Join(dir, "libplain.so")
	for so, text := range map[string]string{other: `__asm__(".section .note.go.buildid,\"a\",@note\n.long 4, 4, 4\n.asciz \"Go\\0\"\n.long 0\n");`,
		plain: "int nothing;"} {
		source := so + ".c"
		if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		libweft.Run(t, nil, libweft.Compiler(t, "cc"), "-shared", "-fPIC", "-o", so, source)
	}
	const program = `
import ctypes, sys
ctypes.CDLL(sys.argv[1])
import weft
try:
    weft.join(rank=0, size=1).close()
    print("joined")
except weft.Invalid as e:
    print(e)
`
	for so, want := range map[string]string{plain: "joined", other: "another library made with Go, " + other} {
		if out := libweft.AllRanks(t, 1, nil, python, "-c", program, so)[0]; !strings.Contains(out, want) {
			t.Errorf("with %s: %q, want %q", so, out, want)
		}
	}
}

// Every call on transfers and KV caches, right and wrong.
func TestTransfers(t *testing.T) {
	exe := libweft.Compile(t, "testdata/xfer.c")
	o := kvcache.DefaultOptions()
	o.Memory, o.Block, o.Tenants = 1<<20, 1<<12, []kvcache.Tenant{{Name: "default", Token: "secret", Quota: 1 << 20}}
	cache, err := kvcache.New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	server := httptest.NewServer(kvcache.NewServer(cache, "", "").Handler())
	defer server.Close()
	env := []string{"DIR=" + t.TempDir(), "KV=" + server.Listener.Addr().String()}
	if out := libweft.Run(t, env, exe); !strings.Contains(out, "all is well") {
		t.Errorf("it printed %q", out)
	}
}

// The header's codes of transfers are those of package xfer.
func TestTransferCodes(t *testing.T) {
	header, err := os.ReadFile("weft.h")
	if err != nil {
		t.Fatal(err)
	}
	for name, e := range map[string]error{"BOUNDS": xfer.ErrBounds, "OVERLAP": xfer.ErrOverlap, "LENGTH": xfer.ErrLength,
		"REGION": xfer.ErrRegion, "ACCESS": xfer.ErrAccess,
		"KEY": xfer.ErrKey, "STALE": xfer.ErrStale, "AGENT": xfer.ErrAgent, "TOKEN": xfer.ErrToken, "LEASE": xfer.ErrLease,
		"WITHDRAWN": xfer.ErrWithdrawn, "DEADLINE": xfer.ErrDeadline,
		"CANCELLED": xfer.ErrCancelled, "GONE": xfer.ErrGone, "LOST": xfer.ErrLost, "SUM": xfer.ErrSum, "STORAGE": xfer.ErrStorage,
		"SHORT": xfer.ErrShort, "FULL": xfer.ErrFull,
		"EXISTS": xfer.ErrExists, "PATH": xfer.ErrPath, "KIND": xfer.ErrKind, "LIMIT": xfer.ErrLimit, "CLOSED": xfer.ErrClosed} {
		if line := fmt.Sprintf("#define WEFT_XFER_%s %d", name, 200+int(xfer.Code(e))); !strings.Contains(string(header), line) {
			t.Errorf("the header has no %q", line)
		}
	}
}

// The examples run as their comments say.
func TestExamples(t *testing.T) {
	first := libweft.AllRanks(t, 3, nil, libweft.Compile(t, "../examples/c/first.c"))
	if want := "rank 0 of 3: the sum of all ranks' numbers is 3"; !strings.Contains(first[0], want) ||
		!strings.Contains(first[0], "rank 2 sent 20") {
		t.Errorf("first printed %q, want %q", first[0], want)
	}
	transfer := libweft.Compile(t, "../examples/c/transfer.c")
	out := libweft.Run(t, []string{"WEFT_TOKEN="}, "sh", "-c", transfer+" serve | "+transfer+" fetch")
	if !strings.Contains(out, "524288 bytes over shm: omkigeca\n") || !strings.Contains(out, "decode says: fetched") {
		t.Errorf("transfer printed %q", out)
	}
	outs, errs := libweft.Ranks(t, 3, nil, libweft.Compile(t, "../examples/c/survive.c"))
	for r := range 2 {
		if errs[r] != nil || !strings.Contains(outs[r], "rank 2 died") || !strings.Contains(outs[r], "2 ranks go on") {
			t.Errorf("rank %d printed %q: %v", r, outs[r], errs[r])
		}
	}
	if errs[2] == nil {
		t.Error("rank 2 lives")
	}
}

// The program in Rust, which declares what it uses as bindgen would.
func TestExampleInRust(t *testing.T) {
	so, rustc := libweft.Build(t), libweft.Compiler(t, "rustc")
	if _, err := libweft.Try(nil, rustc, "--version"); err != nil {
		t.Skip("rustc has no toolchain")
	}
	exe := filepath.Join(t.TempDir(), "first")
	dir := filepath.Dir(so)
	libweft.Run(t, nil, rustc, "-L", dir, "-l", "dylib=weft", "-C", "link-arg=-Wl,-rpath,"+dir, "-o", exe, "../examples/rust/first.rs")
	if out := libweft.AllRanks(t, 3, nil, exe); out[2] != "rank 2 of 3: the sum of all ranks' numbers is 3\n" {
		t.Errorf("it printed %q", out[2])
	}
}

func TestExampleInPython(t *testing.T) {
	libweft.Build(t)
	python := libweft.AllRanks(t, 3, nil, libweft.Python(t, "ctypes"), "../examples/python/first.py")
	if !strings.Contains(python[0], "rank 0 of 3: the sum of all ranks' numbers is 3") || !strings.Contains(python[0], "rank 2 sent 20") {
		t.Errorf("first.py printed %q", python[0])
	}
}
