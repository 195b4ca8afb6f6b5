package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/internal/libweft"
	"github.com/weft-fabric/weft/observe/doctor"
	reader "github.com/weft-fabric/weft/observe/doctor/read"
)

// The plug-ins, loaded and called as NCCL does: the tuner hands NCCL the choices of a table, and what the profiler wrote is read by
// the reader of weft doctor and weft watch.
func TestNCCLPlugins(t *testing.T) {
	so, dir := libweft.Build(t), t.TempDir()
	file := filepath.Join(dir, "table.csv")
	if err := os.WriteFile(file,
		[]byte("allreduce,0,65535,tree,ll,-1,1,8,-1,-1\nallreduce,65536,67108863,ring,ll128,-1,1,8\nallreduce,67108864,9223372036854775807,nvls,simple,16,-1,8\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	exe := libweft.Compile(t, "testdata/nccl.c")
	out := libweft.Run(t, []string{"WEFT_NCCL_TABLE=" + file, "WEFT_NCCL_PROFILE=" + filepath.Join(dir, "profile")}, exe, so)
	if !strings.Contains(out, "3 rows for a communicator of 8 ranks, nodes: 1") || !strings.Contains(out, "operations go to") {
		t.Errorf("NCCL's log has:\n%s", out)
	}
	found, _ := filepath.Glob(filepath.Join(dir, "profile", "nccl-*.jsonl"))
	if len(found) != 1 {
		t.Fatalf("the profiler wrote %v", found)
	}
	text, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	var c doctor.Case
	if err := reader.File(&c, found[0], "", bytes.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	reader.Finish(&c)
	ops := map[int64]bool{}
	for _, p := range c.Perf {
		ops[p.Seq] = true
		if p.Seq == 5 && (p.Op != "AllReduce" || p.Rank != 3 || p.N != 8 || p.Bytes != 1<<20 || p.Micros != 61 || p.Source != "kernel_gpu" ||
			p.Bus < 30 || p.Bus > 30.2) {
			t.Errorf("operation 5 was read as %+v", p)
		}
	}
	for _, seq := range []int64{1, 2, 3, 4, 5, 6, 7, 1000, 1149, 1349} {
		if !ops[seq] {
			t.Errorf("operation %d is missing", seq)
		}
	}
	if len(c.Perf) != 207 || ops[9999] {
		t.Errorf("%d operations were read, want 207", len(c.Perf))
	}
}
