package engine

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
)

// Every method that takes a while ends when its reader leaves, with nothing but the word that it was cancelled.
func TestReadersMayLeave(t *testing.T) {
	e := New(Default())
	ring := Collective{File: File{text(t, "four-hosts")}, Op: "all-reduce", Bytes: 1 << 26, Algo: "ring"}
	var own struct{ Text string }
	must(t, do(t, e, "program", ring, &own))
	mine := ring
	mine.Algo, mine.Program = "program", own.Text
	questions := map[string][]any{
		"design":   {ring.File},
		"simulate": {ring, mine},
		"bound":    {ring},
		"prove":    {proveQuestion{own.Text}},
		"traffic":  {trafficQuestion{ring.File, "all-reduce", 1 << 26, []string{"n0:gpu0", "n1:gpu0", "n2:gpu0"}}},
		"plan":     {planQuestion{File: ring.File, Model: "llama3-8b", Batch: 64, Seq: 8192}},
	}
	for _, m := range Methods() {
		if m.Quick != (questions[m.Name] == nil) {
			t.Errorf("%s: quick %v, with %d questions here", m.Name, m.Quick, len(questions[m.Name]))
		}
		for _, q := range questions[m.Name] {
			body, err := json.Marshal(q)
			must(t, err)
			ctx, leave := context.WithCancel(t.Context())
			got, err := e.Do(ctx, m.Name, body, func(Progress) { leave() })
			if leave(); !errors.Is(err, context.Canceled) {
				t.Errorf("%s went on to %T, %v", m.Name, got, err)
			}
		}
	}
}

// A trace shows all of the time of fewer ranks rather than the beginning of more of them.
func TestTracesReachTheEnd(t *testing.T) {
	for _, c := range []struct {
		ranks, actions int64
		want           int
	}{{8, 131_000, 6}, {1024, 2_000_000, 20}, {1024, 16_760_832, 6}, {1024, 1 << 30, 1}, {16, 480, 256}, {131072, 131072, 256}} {
		got := tracedRanks(c.ranks, c.actions)
		if got != c.want || got > 1 && int64(got)*c.actions/c.ranks > mostSpans {
			t.Errorf("of %d ranks with %d actions %d are traced, want %d", c.ranks, c.actions, got, c.want)
		}
	}
}

// The programs that stand for NCCL's algorithms on the picture are there.
func TestShapesOfNCCL(t *testing.T) {
	for name, shape := range ncclShape {
		if _, err := algo.Find(shape); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
