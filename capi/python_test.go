package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/internal/libweft"
)

// script runs a script of testdata/python on n ranks, each of which must end with "well".
func script(t *testing.T, n int, python, name string, env ...string) []string {
	t.Helper()
	outs := libweft.AllRanks(t, n, env, python, filepath.Join("testdata", "python", name))
	for r, out := range outs {
		if !strings.HasSuffix(out, "well\n") {
			t.Errorf("rank %d printed %q", r, out)
		}
	}
	return outs
}

// Every call on buffers of every kind: Python's own, the three interfaces, freed as early as possible.
func TestPythonBuffers(t *testing.T) {
	libweft.Build(t)
	python := libweft.Python(t, "ctypes")
	for _, transport := range []string{"shm", "tcp"} {
		t.Run(transport, func(t *testing.T) { script(t, 3, python, "arrays.py", "TRANSPORT="+transport) })
	}
}

// Every type and reduction against numpy.
func TestPythonNumpy(t *testing.T) {
	libweft.Build(t)
	script(t, 2, libweft.Python(t, "numpy"), "arrays_numpy.py")
}

// Calls that return new arrays, for those that cannot be written (JAX's).
func TestPythonFunctional(t *testing.T) {
	libweft.Build(t)
	script(t, 3, libweft.Python(t, "numpy"), "functional.py")
}

// The lower-case calls give what mpi4py's give, on the same script.
func TestPythonObjects(t *testing.T) {
	libweft.Build(t)
	python, script := libweft.Python(t, "mpi4py"), filepath.Join("testdata", "python", "objects.py")
	mpirun, err := exec.LookPath("mpirun.openmpi")
	if err != nil {
		t.Skip("Open MPI is not installed")
	}
	sorted := func(outs ...string) []string {
		lines := slices.DeleteFunc(strings.Split(strings.Join(outs, ""), "\n"), func(s string) bool {
			return s == "" || strings.Contains(s, " function ") || strings.Contains(s, " product ") // weft's own
		})
		slices.Sort(lines)
		return lines
	}
	cmd := bounded.Command(t, mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "3", python, script, "mpi4py")
	theirs, err := cmd.Output()
	if err != nil {
		t.Fatalf("mpi4py: %v", err)
	}
	ours, want := sorted(libweft.AllRanks(t, 3, nil, python, script, "weft")...), sorted(string(theirs))
	if len(want) < 45 || !slices.Equal(ours, want) {
		t.Errorf("weft gives\n%s\nmpi4py gives\n%s", strings.Join(ours, "\n"), strings.Join(want, "\n"))
	}
}

// NIXL's API with the agent in the same process, and with the other one in another.
func TestPythonNIXL(t *testing.T) {
	libweft.Build(t)
	python := libweft.Python(t, "ctypes")
	driver := filepath.Join(drivers(t), "good.so")
	for _, args := range [][]string{{"kv_clients.py", "NIXL"}, {"nixl_peers.py"}, {"nixl_vram.py"}} {
		cmd := bounded.Command(t, python, append([]string{filepath.Join("..", "python", "tests", args[0])}, args[1:]...)...)
		cmd.Env = append(os.Environ(), "WEFT_NIXL=library", "CUDA_DRIVER="+driver, "PYTHONDONTWRITEBYTECODE=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}

// Ctrl-C ends every wait. How long that may take is a tenth of a second and a bit; the test asks for less than the waits would last.
func TestPythonInterrupts(t *testing.T) {
	libweft.Build(t)
	out := script(t, 2, libweft.Python(t, "ctypes"), "signals.py")[0]
	t.Logf("seconds until each wait noticed:\n%s", out)
	waits := regexp.MustCompile(`(?m)^([a-z-]+) ([0-9.]+)$`).FindAllStringSubmatch(out, -1)
	if len(waits) < 17 || !strings.Contains(out, "told to stop") {
		t.Errorf("%d waits were interrupted", len(waits))
	}
	for _, w := range waits {
		if s, _ := strconv.ParseFloat(w[2], 64); s > 15 {
			t.Errorf("%s took %ss to notice", w[1], w[2])
		}
	}
}

// Workers by fork and by spawn, as data loaders have them.
func TestPythonForks(t *testing.T) {
	libweft.Build(t)
	script(t, 2, libweft.Python(t, "multiprocessing"), "forks.py")
}

// cycles is how often groups are made and closed: two thousand times with WEFT_TEST_LONG.
func cycles() string {
	if bounded.Long() {
		return "CYCLES=2000"
	}
	return "CYCLES=100"
}

// Groups that come and go leave nothing behind.
func TestPythonCycles(t *testing.T) {
	libweft.Build(t)
	t.Log(script(t, 2, libweft.Python(t, "ctypes"), "cycles.py", cycles())[0])
}

// The same in C, where joins are of both ranks.
func TestCycles(t *testing.T) {
	exe := libweft.Compile(t, "testdata/cycles.c")
	for r, out := range libweft.AllRanks(t, 2, []string{cycles()}, exe) {
		if t.Logf("rank %d: %s", r, out); !strings.Contains(out, "nothing grew") {
			t.Errorf("rank %d printed %q", r, out)
		}
	}
}

// The stubs are in step with the package.
func TestPythonStubs(t *testing.T) {
	libweft.Build(t)
	script(t, 1, libweft.Python(t, "ast"), "stubs.py")
}

// What the stubs promise is what the package has, as mypy sees it, and a caller's mistakes are found. Constructors are not for callers.
func TestPythonTypes(t *testing.T) {
	libweft.Build(t)
	libweft.Python(t, "ctypes")
	root := libweft.Root(t)
	config := filepath.Join(t.TempDir(), "mypy.ini")
	// The package's own modules are not annotated throughout; stubs are what callers see.
	if err := os.WriteFile(config, []byte("[mypy]\nignore_missing_imports = True\n[mypy-weft.*]\nignore_errors = True\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	check := func(name string, args ...string) string {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip(err)
		}
		cmd := bounded.Within(t, 5*time.Minute, name, args...)
		cmd.Dir = t.TempDir() // where its cache goes
		cmd.Env = append(os.Environ(), "MYPYPATH="+filepath.Join(root, "python"), "PYTHONPATH="+filepath.Join(root, "python"))
		out, _ := cmd.CombinedOutput()
		return string(out)
	}
	caller := filepath.Join(root, "capi", "testdata", "python", "typed.py")
	text, err := os.ReadFile(caller)
	if err != nil {
		t.Fatal(err)
	}
	out := check("mypy", "--strict", "--config-file", config, caller)
	for n, line := range strings.Split(string(text), "\n") {
		found := strings.Contains(out, fmt.Sprintf("typed.py:%d: error", n+1))
		if want := strings.Contains(line, "# wrong"); found != want {
			t.Errorf("line %d, %q: mypy objects: %t, want %t\n%s", n+1, strings.TrimSpace(line), found, want, out)
		}
	}
	if !bounded.Long() { // it reads all of PyTorch
		return
	}
	for line := range strings.Lines(check("stubtest", "weft", "--ignore-missing-stub", "--mypy-config-file", config)) {
		public := regexp.MustCompile(`^error: weft\.[A-Z]`).MatchString(line)
		if public && !strings.Contains(line, "__init__ is inconsistent, stub does not have argument") {
			t.Error(line)
		}
	}
}

// The structures of _lib.py are those of the header.
func TestPythonABI(t *testing.T) {
	libweft.Build(t)
	python := libweft.Python(t, "ctypes")
	got := libweft.AllRanks(t, 1, nil, python, "-c", `
import ctypes
from weft import _lib
for name, s in (("weft_error", _lib.Error), ("weft_config", _lib.Config), ("weft_info", _lib.Info), ("weft_status", _lib.Status), ("weft_call", _lib.Call)):
    print(name, ctypes.sizeof(s))
    for f, *_ in s._fields_:
        print(f"{name}.{f}", getattr(s, f).offset)
for f in ("FLOAT32", "BFLOAT16"):
    print("WEFT_" + f, {"FLOAT32": _lib.dtype(2, 32), "BFLOAT16": _lib.dtype(4, 16)}[f])
for c in ("NO_DEVICE", "PENDING", "PUT_NOTIFY"):
    print("WEFT_" + c, getattr(_lib, c))
`)[0]
	want, err := os.ReadFile("testdata/abi.txt")
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]string{}
	for line := range strings.Lines(got) {
		f := strings.Fields(line)
		have[f[0]] = f[1]
	}
	n := 0
	for line := range strings.Lines(string(want)) {
		if f := strings.Fields(line); len(f) == 2 && have[f[0]] != "" {
			if n++; have[f[0]] != f[1] {
				t.Errorf("%s is %s in Python and %s in the header", f[0], have[f[0]], f[1])
			}
		}
	}
	if n < 20 {
		t.Errorf("only %d of the header's numbers are known in Python", n)
	}
}

// The wheel holds a package that works where nothing else of the project is.
func TestPythonWheel(t *testing.T) {
	libweft.Build(t)
	python, dir := libweft.Python(t, "zipfile"), t.TempDir()
	wheel := strings.TrimSpace(libweft.Run(t, nil, python, "../python/wheel.py", "-o", dir, "--version", "1.2.3"))
	if want := filepath.Join(dir, "weft-1.2.3-py3-none-manylinux_2_"); !strings.HasPrefix(wheel, want) {
		t.Errorf("the wheel is %s", wheel)
	}
	where := filepath.Join(dir, "site")
	if bounded.Long() { // pip takes ten seconds for it
		libweft.Run(t, nil, python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", where, wheel)
	} else {
		libweft.Run(t, nil, python, "-m", "zipfile", "-e", wheel, where)
	}
	outs := libweft.AllRanks(t, 2, []string{"PYTHONPATH=" + where}, python, "-c",
		"import array, weft; c = weft.join(); x = array.array('d', [1]); c.all_reduce(x); print(weft.__file__, x[0], weft.__version__); c.barrier(); c.close()")
	if want := filepath.Join(where, "weft", "__init__.py") + " 2.0 1.2.3\n"; outs[0] != want {
		t.Errorf("it printed %q, want %q", outs[0], want)
	}
	// Python's own reader of metadata finds the licence, and its file is the repository's.
	got := libweft.Run(t, []string{"PYTHONPATH=" + where}, python, "-c", `
import importlib.metadata as m
d = m.distribution("weft")
print(d.version, d.metadata["License-Expression"], [f.read_text() for f in d.files if f.name == d.metadata["License-File"]][0], sep="\n", end="")`)
	licence, err := os.ReadFile("../LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	if want := "1.2.3\nApache-2.0\n" + string(licence); got != want {
		t.Errorf("the metadata says %.100q, want %.100q", got, want)
	}
}

// A library of something else, or of an earlier weft, is refused with what it is and what to do.
func TestPythonOtherLibraries(t *testing.T) {
	python, cc := libweft.Python(t, "ctypes"), libweft.Compiler(t, "cc")
	for name, x := range map[string]struct{ source, want string }{
		"foreign": {"int zlib;", "is no library of weft: it has no function weft_abi"},
		"old": {`int weft_abi(void) { return 1; } const char *weft_version(void) { return "v0.0.7"; } int weft_join(void) { return 0; }`,
			"is version v0.0.7 with ABI 1, and older than the package weft 0.1.0: it lacks weft_threads"},
		"new": {`int weft_abi(void) { return 9; } const char *weft_version(void) { return "v9.0.0"; }`,
			"is version v9.0.0 with ABI 9; weft 0.1.0 needs ABI 1"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			source, so := filepath.Join(dir, "x.c"), filepath.Join(dir, "libweft.so")
			if err := os.WriteFile(source, []byte(x.source), 0o644); err != nil {
				t.Fatal(err)
			}
			libweft.Run(t, nil, cc, "-shared", "-fPIC", "-o", so, source)
			got := libweft.Run(t, []string{"WEFT_LIBRARY=" + so, "PYTHONPATH=../python"}, python, "-c", `
import weft
try:
    weft.version()
except ImportError as e:
    print(e)`)
			if !strings.HasPrefix(got, so+" "+x.want) || !strings.Contains(got, "make lib") || strings.Count(got, "\n") != 1 {
				t.Errorf("it says %q", got)
			}
		})
	}
}
