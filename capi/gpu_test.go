package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/internal/libweft"
)

// drivers compiles libraries that stand for NVIDIA's driver where there is no GPU: one that works, and those that people meet.
func drivers(t *testing.T) string {
	t.Helper()
	cc, dir := libweft.Compiler(t, "cc"), t.TempDir()
	for name, define := range map[string]string{"good.so": "-DGPUS=2", "old.so": "-DVERSION=10020", "none.so": "-DINIT=100",
		"mixed.so": "-DINIT=803"} {
		libweft.Run(t, nil, cc, "-shared", "-fPIC", "-O1", "-w", "-Wl,-soname,libcuda.so.1", define, "-o", filepath.Join(dir, name),
			"../run/gpu/cuda/testdata/driver.c")
	}
	return dir
}

// What is wrong with the GPU of one rank, or with its memory, is an error on all ranks, and nobody hangs. The kernels' sums are the
// host's here (the staged way); on a GPU run/gpu/check does the same.
func TestGPUsThatAreWrong(t *testing.T) {
	libweft.Build(t)
	python, dir := libweft.Python(t, "ctypes"), drivers(t)
	for _, x := range []struct {
		name, drivers string
		want          []string
	}{
		{"values", "good.so,good.so", []string{"values"}},
		{"messages in the order of their calls", "good.so,good.so", []string{"order"}},
		{"Ctrl-C in every wait", "good.so,good.so", []string{"interrupts"}},
		{"a rank without a GPU", "good.so,none.so", []string{"rank 1 has no GPU", "CUDA_ERROR_NO_DEVICE"}},
		{"an old driver", "good.so,old.so", []string{"rank 1 has no GPU", "it is for CUDA 10.2; want 11.4 or newer"}},
		{"a driver of another version than its kernel's", "mixed.so,good.so", []string{"rank 0 has no GPU", "different versions"}},
		{"no driver", ",good.so", []string{"rank 0 has no GPU", "driver library cannot be opened"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			for r, out := range libweft.AllRanks(t, 2, []string{"DRIVERS=" + dir, "DRIVER=" + x.drivers, "WEFT_CUDA=staged"}, python,
				append([]string{filepath.Join("testdata", "python", "gpus.py")}, x.want...)...) {
				if t.Logf("rank %d: %s", r, out); !strings.HasSuffix(out, "well\n") {
					t.Errorf("rank %d printed %q", r, out)
				}
			}
		})
	}
}
