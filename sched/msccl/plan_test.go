package msccl

import (
	"bytes"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/sched/algo"
	"github.com/weft-fabric/weft/sched/verify"
)

// What is written as a plan reads back as a program that is proven.
func TestPlansReadBack(t *testing.T) {
	for _, c := range []struct {
		algo string
		op   sched.Collective
		n    int
	}{{"ring", sched.AllReduce, 4}, {"ring", sched.AllGather, 4}, {"ring", sched.ReduceScatter, 3}, {"direct", sched.AllReduce, 4},
		{"tree", sched.AllReduce, 4}, {"recursive-doubling", sched.AllReduce, 4}, {"pairwise", sched.AllToAll, 4}, {"one-shot", sched.AllReduce, 3}} {
		a, err := algo.Find(c.algo)
		if err != nil {
			t.Fatal(err)
		}
		p, err := a.Program(algo.Spec{Op: c.op, Ranks: c.n, Channels: 1, Pieces: 1})
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := EncodePlan(&b, p); err != nil {
			t.Fatal(c.algo, c.op, err)
		}
		q, err := DecodePlan(bytes.NewReader(b.Bytes()))
		if err != nil {
			t.Fatal(c.algo, c.op, err)
		}
		if _, err := verify.Program(q); err != nil {
			t.Fatalf("%s %s: %v\n%s", c.algo, c.op, err, q)
		}
	}
}

// readPlan is two GPUs that each read the other's half, add it, and write the
// sum into both: an all-reduce in place.
const readPlan = `{"name": "read and add", "collective": "allreduce", "protocol": "Simple", "inplace": true, "gpus": [
 {"id": 0, "input_chunks": 2, "output_chunks": 2, "scratch_chunks": 0,
  "channels": [{"channel_type": "memory", "connected_to": [1]}], "remote_buffers": [{"rank": 1, "type": "i", "access_channel_types": ["memory"]}],
  "threadblocks": [{"id": 0, "channels": [{"channel_type": "memory", "channel_ids": [0]}], "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": [0]}],
   "ops": [{"name": "signal", "channel_type": "memory", "channel_ids": [0]}, {"name": "wait", "channel_type": "memory", "channel_ids": [0]},
    {"name": "rres", "channel_type": "memory", "src_buff": [{"type": "i", "index": 0, "size": 1}, {"buffer_id": 0, "index": 0, "size": 1}],
     "dst_buff": [{"type": "i", "index": 0, "size": 1}, {"buffer_id": 0, "index": 0, "size": 1}]},
    {"name": "nop"}, {"name": "signal", "channel_type": "memory", "channel_ids": [0]}, {"name": "wait", "channel_type": "memory", "channel_ids": [0]}]}]},
 {"id": 1, "input_chunks": 2, "output_chunks": 2, "scratch_chunks": 0,
  "channels": [{"channel_type": "memory", "connected_to": [0]}], "remote_buffers": [{"rank": 0, "type": "i", "access_channel_types": ["memory"]}],
  "threadblocks": [{"id": 0, "channels": [{"channel_type": "memory", "channel_ids": [0]}], "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": [0]}],
   "ops": [{"name": "signal", "channel_type": "memory", "channel_ids": [0]}, {"name": "wait", "channel_type": "memory", "channel_ids": [0]},
    {"name": "rres", "channel_type": "memory", "src_buff": [{"type": "i", "index": 1, "size": 1}, {"buffer_id": 0, "index": 1, "size": 1}],
     "dst_buff": [{"type": "i", "index": 1, "size": 1}, {"buffer_id": 0, "index": 1, "size": 1}]},
    {"name": "nop"}, {"name": "signal", "channel_type": "memory", "channel_ids": [0]}, {"name": "wait", "channel_type": "memory", "channel_ids": [0]}]}]}]}`

func TestPlansThatReadPeers(t *testing.T) {
	p, err := DecodePlan(strings.NewReader(readPlan))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := verify.Program(p); err != nil {
		t.Fatalf("%v\n%s", err, p)
	}
	// Without the first wait a rank reads what may not be there yet, or overwrites
	// what the other has yet to read.
	early := strings.Replace(readPlan, `{"name": "wait", "channel_type": "memory", "channel_ids": [0]},
    {"name": "rres"`, `{"name": "rres"`, 1)
	if p, err = DecodePlan(strings.NewReader(early)); err == nil {
		if _, err = verify.Program(p); err == nil {
			t.Error("a plan without its first wait is accepted")
		}
	}
	for edit, want := range map[[2]string]string{
		{`"Simple"`, `"LL"`}:                                          "protocol \"LL\"",
		{`"input_chunks": 2, `, ""}:                                   "gpu 0 lacks input_chunks",
		{`"allreduce"`, `"sendrecv"`}:                                 "collective \"sendrecv\"",
		{`"name": "rres"`, `"name": "glres"`}:                         "gpu 0 thread block 0 op 2 (glres): not read",
		{`"connected_to": [1]`, `"connected_to": [7]`}:                "leads to gpu 7",
		{`"connected_to": [1]}`, `"connected_to": [1], "buff": "i"}`}: "buffer_type is expected",
		{`{"name": "nop"}`, `{"name": "copy", "src_buff": [{"type": "s", "index": 0, "size": 1}]}`}: "outside the 0 chunks",
	} {
		text := strings.Replace(readPlan, edit[0], edit[1], 1)
		if text == readPlan {
			t.Fatalf("%q is not in the plan", edit[0])
		}
		if _, err := DecodePlan(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", edit[1], err, want)
		}
	}
}

func FuzzDecodePlan(f *testing.F) {
	f.Add(readPlan)
	f.Fuzz(func(t *testing.T, s string) {
		if p, err := DecodePlan(strings.NewReader(s)); err == nil && p.Check() != nil {
			t.Fatal(p.Check())
		}
	})
}
