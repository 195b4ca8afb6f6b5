package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/internal/libweft"
)

// torchTests are those of PyTorch's own that run with every test run: one of each kind. make torch-suite runs all of them.
var torchTests = []string{"test_all_reduce_group_sum", "test_all_reduce_coalesced_sum", "test_broadcast_object_list",
	"test_all_gather_coalesced_simple",
	"test_all_to_all_single_unequal_split", "test_sparse_all_reduce_sum", "test_send_recv_any_source", "test_monitored_barrier_gloo_subgroup",
	"test_barrier_timeout_full_group", "test_DistributedDataParallelCPU"}

// TestTorchSuite runs PyTorch's own tests on weft.
func TestTorchSuite(t *testing.T) {
	python := libweft.Python(t, "torch")
	libweft.Build(t)
	suite := filepath.Join(libweft.Root(t), "python", "tests", "torch_suite.py")
	cmd := bounded.Within(t, 2*time.Minute, python, slices.Concat([]string{suite, "--ranks", "3"}, torchTests)...)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(libweft.Root(t), "python"), "PYTHONDONTWRITEBYTECODE=1",
		"PYTHONWARNINGS=ignore", "WEFT_TRANSPORT=shm")
	out, err := cmd.CombinedOutput()
	if want := fmt.Sprintf("%d passed, 0 failed", len(torchTests)); err != nil || !strings.Contains(string(out), want) {
		t.Errorf("want %q: %v\n%s", want, err, out)
	}
	detail := bounded.Within(t, 2*time.Minute, python, suite, "--ranks", "3", "test_barrier_timeout_group", "test_barrier_timeout_full_group",
		"test_all_reduce_sum")
	detail.Env = append(cmd.Env, "TORCH_DISTRIBUTED_DEBUG=DETAIL")
	if out, err := detail.CombinedOutput(); err != nil || !strings.Contains(string(out), "3 passed, 0 failed") {
		t.Errorf("with DETAIL: %v\n%s", err, out)
	}
}

// TestTorchCycles makes and destroys two thousand groups: descriptors, threads and memory stay. make cycles runs it with those of C and
// Python.
func TestTorchCycles(t *testing.T) {
	if !bounded.Long() {
		t.Skip("two thousand groups take minutes; TestTorchDrills makes 32. WEFT_TEST_LONG=1 or make cycles")
	}
	python := libweft.Python(t, "torch")
	libweft.Build(t)
	for _, out := range libweft.AllRanks(t, 2, []string{"WEFT_TRANSPORT=shm", cycles()}, python,
		filepath.Join(libweft.Root(t), "python", "tests", "torch_drills.py"), "groups") {
		if t.Log(out); !strings.Contains(out, "groups is well") {
			t.Errorf("a rank printed %q", out)
		}
	}
}

// TestTorchGroupLists calls new_group with different lists on three ranks.
func TestTorchGroupLists(t *testing.T) {
	python := libweft.Python(t, "torch")
	libweft.Build(t)
	for _, out := range libweft.AllRanks(t, 3, []string{"WEFT_TRANSPORT=shm"}, python,
		filepath.Join(libweft.Root(t), "python", "tests", "torch_drills.py"), "lists") {
		if !strings.Contains(out, "lists is well") {
			t.Errorf("a rank printed %q", out)
		}
	}
}

// TestTorchCallbacks waits for calls in the callbacks of others, as PowerSGD's hook does, and starts calls in several at once.
func TestTorchCallbacks(t *testing.T) {
	python := libweft.Python(t, "torch")
	libweft.Build(t)
	for _, x := range bounded.First(1, [][]string{{"shm", "nested", "order", "powersgd"}, {"tcp", "order"}}...) {
		for _, out := range libweft.AllRanks(t, 3, []string{"WEFT_TRANSPORT=" + x[0]}, python,
			slices.Concat([]string{filepath.Join(libweft.Root(t), "python", "tests", "torch_drills.py")}, x[1:])...) {
			for _, drill := range x[1:] {
				if !strings.Contains(out, drill+" is well") {
					t.Errorf("a rank printed %q", out)
				}
			}
		}
	}
}

// TestTorchMixed has blocking and started calls on several groups in random order, and kills a rank in the middle of them.
func TestTorchMixed(t *testing.T) {
	python := libweft.Python(t, "torch")
	libweft.Build(t)
	drills := filepath.Join(libweft.Root(t), "python", "tests", "torch_drills.py")
	for _, x := range bounded.First(2, [][2]string{{"mixed", "shm"}, {"mixed-kill", "tcp"}, {"mixed", "tcp"}, {"mixed-kill", "shm"}}...) {
		drill, transport := x[0], x[1]
		outs, errs := libweft.Ranks(t, 3, []string{"WEFT_TRANSPORT=" + transport}, python, drills, drill)
		for r, out := range outs {
			if drill == "mixed-kill" && r == 1 {
				continue // it is killed
			}
			if !strings.Contains(out, drill+" is well") || errs[r] != nil {
				t.Errorf("%s over %s: rank %d ended with %v and printed %q", drill, transport, r, errs[r], out)
			}
		}
	}
}

// TestTorchMissing makes groups without one of the ranks: dead, or never there.
func TestTorchMissing(t *testing.T) {
	python := libweft.Python(t, "torch")
	libweft.Build(t)
	for drill, transport := range map[string]string{"dead-member": "shm", "far-member": "tcp", "absent": "shm"} {
		t.Run(drill, func(t *testing.T) {
			outs, _ := libweft.Ranks(t, 3, []string{"WEFT_TRANSPORT=" + transport}, python,
				filepath.Join(libweft.Root(t), "python", "tests", "torch_drills.py"), drill)
			for _, r := range []int{0, 2} {
				if !strings.Contains(outs[r], drill+" is well") {
					t.Errorf("rank %d printed %q", r, outs[r])
				}
			}
		})
	}
}

// TestTorchDrills does on purpose what goes wrong with PyTorch over weft.
func TestTorchDrills(t *testing.T) {
	python := libweft.Python(t, "torch")
	libweft.Build(t)
	drills := filepath.Join(libweft.Root(t), "python", "tests", "torch_drills.py")
	env := []string{"CYCLES=32"} // TestTorchCycles makes a thousand
	for _, x := range bounded.First(2,
		[][]string{{"shm", "values", "apart", "across", "join", "profile", "bad-input", "monitored", "groups", "interrupt", "exit"},
			{"tcp", "values", "kill"}, {"shm", "loader"}}...) {
		t.Run(strings.Join(x, " "), func(t *testing.T) {
			outs, errs := libweft.Ranks(t, 2, append([]string{"WEFT_TRANSPORT=" + x[0]}, env...), python, slices.Concat([]string{drills}, x[1:])...)
			for r, out := range outs {
				if x[len(x)-1] == "kill" && r == 1 {
					if errs[r] == nil {
						t.Errorf("rank 1 was to be killed, and ended well:\n%s", out)
					}
					continue
				}
				if want := x[len(x)-1] + " is well"; errs[r] != nil || !strings.Contains(out, want) {
					t.Errorf("rank %d did not come to %q: %v\n%s", r, want, errs[r], out)
				}
			}
		})
	}
}
