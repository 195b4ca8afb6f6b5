package cli_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/internal/libweft"
)

// built builds packages of this module and gives the folder that they are in.
func built(t *testing.T, packages ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, p := range packages {
		cmd := bounded.Within(t, bounded.Build, "go", "build", "-o", filepath.Join(dir, filepath.Base(p)), p)
		cmd.Dir = "../.."
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	return dir
}

// A rank of a program that follows epochs is killed: the others keep their
// processes, and the sum is what it would have been. Another is in its place before
// that if the machine lets it: its return takes 20 ms. 10,000 steps take 50 ms at least, and a minute on a busy machine; where
// they were over before this process read that they had begun, more are taken.
func TestRunFollow(t *testing.T) {
	dir := built(t, "./examples/elastic")
	for steps := 10_000; !runFollow(t, filepath.Join(dir, "elastic"), steps); steps *= 5 {
		if t.Logf("%d steps were over before the rank was killed", steps); steps > 1_000_000 {
			t.Fatal("no rank was killed in time")
		}
	}
}

// runFollow does so with a number of steps, and reports whether the rank was killed before they were over.
func runFollow(t *testing.T, example string, steps int) bool {
	t.Helper()
	cmd := bounded.Within(t, 3*time.Minute, program(t), "run", "--follow", "--nproc", "3", "--", example, strconv.Itoa(steps))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errs strings.Builder
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pids []string
	killed, late := "", false
	var text strings.Builder
	in := bufio.NewScanner(io.TeeReader(out, &text))
	for in.Scan() {
		f := strings.Fields(in.Text()) // [1] pid 17: epoch 1, rank 1 of 3, ...
		if len(f) < 7 || f[1] != "pid" {
			continue
		}
		pid := strings.TrimSuffix(f[2], ":")
		if !slices.Contains(pids, pid) {
			pids = append(pids, pid)
		}
		if killed == "" && f[4] == "1," && f[6] == "1" {
			killed = pid
			n, err := strconv.Atoi(pid)
			if err != nil {
				t.Fatal(err)
			}
			if err := unix.Kill(n, syscall.SIGKILL); errors.Is(err, unix.ESRCH) {
				late = true
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, text.String(), errs.String())
	}
	if late || !strings.Contains(errs.String(), "weft: epoch 2: ") {
		return false
	}
	if killed == "" || len(pids) < 3 || len(pids) > 4 {
		t.Errorf("processes %v with %s killed; want three, and at most one in its place", pids, killed)
	}
	if want := fmt.Sprintf("sum %d after %d steps", 840*steps, steps); !strings.Contains(text.String(), want) {
		t.Errorf("want %q:\n%s", want, text.String())
	}
	return true
}

// PyTorch's own ranks under the launcher: one is killed, and the run ends with the
// loss of one that nobody disturbed.
func TestRunTorch(t *testing.T) {
	if !bounded.Long() {
		t.Skip("six processes that import PyTorch take half a minute of a processor; make long has it. TestRunTorchFollow kills a rank, too")
	}
	const python = "/usr/bin/python3"
	if err := bounded.Command(t, python, "-c",
		"import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)").Run(); err != nil {
		t.Skip("no python3-torch here; 'make test' as root on Debian installs it")
	}
	weft := program(t)
	run := func(die string) string {
		cmd := bounded.Within(t, 3*time.Minute, weft, "run", "--nproc", "2", "--max-restarts", "3", "--ckpt", t.TempDir(), "--", python,
			"../../examples/torch/train.py")
		cmd.Env = append(os.Environ(), "DIE="+die)
		out, err := cmd.Output()
		if failure := (*exec.ExitError)(nil); errors.As(err, &failure) {
			t.Fatalf("%v\n%s%s", err, out, failure.Stderr)
		}
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	killed := run("1:15")
	if !strings.Contains(killed, "loss after step 40") || !strings.Contains(killed, "continues after step 14") {
		t.Errorf("with rank 1 killed in step 15:\n%s", killed)
	}
	calm := run("")
	last := func(s string) string { return s[strings.LastIndex(strings.TrimSpace(s), "\n")+1:] }
	if !strings.Contains(calm, "loss after step 40") || last(calm) != last(killed) || !strings.Contains(killed, "continues after step 14") {
		t.Errorf("undisturbed:\n%s\nwith rank 1 killed in step 15:\n%s", calm, killed)
	}
}

// A rank of a DistributedDataParallel job is killed. The others keep their processes and go on with the next step, and the loss is
// that of a run that nobody disturbed.
func TestRunTorchFollow(t *testing.T) {
	python := libweft.Python(t, "torch")
	libweft.Build(t)
	root, weft := libweft.Root(t), program(t)
	run := func(die string) (pids map[string]bool, loss, all string) {
		cmd := bounded.Within(t, 2*time.Minute, weft, "run", "--follow", "--nproc", "3", "--min", "2", "--rdzv-conf", "last_call_timeout=60",
			"--", python, filepath.Join(root, "examples", "torch", "elastic.py"))
		cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(root, "python"), "PYTHONDONTWRITEBYTECODE=1", "STEPS=25", "DIE="+die)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		pids = map[string]bool{}
		for line := range strings.Lines(string(out)) {
			if _, after, ok := strings.Cut(line, "] pid "); ok && strings.Contains(line, ", after step 6") {
				pids[strings.SplitN(after, ":", 2)[0]] = true
			}
			if _, after, ok := strings.Cut(line, "loss after step 25 on "); ok {
				_, loss, _ = strings.Cut(strings.TrimSpace(after), ": ")
			}
		}
		return pids, loss, string(out)
	}
	pids, got, killed := run("1:6")
	if got == "" {
		t.Errorf("the run did not come to step 25:\n%s", killed)
	}
	if bounded.Long() { // three processes more that import PyTorch
		if _, want, calm := run(""); got != want {
			t.Errorf("the loss is %q with a rank killed and %q without:\n%s\n%s", got, want, killed, calm)
		}
	}
	kept := 0
	for pid := range pids {
		if strings.Contains(killed, fmt.Sprintf("pid %s: epoch 1,", pid)) {
			kept++
		}
	}
	if kept != 2 {
		t.Errorf("%d processes of the first epoch went on after step 6; want 2:\n%s", kept, killed)
	}
}
