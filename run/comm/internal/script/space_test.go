package script

import (
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
	"github.com/weft-fabric/weft/run/comm/internal/chunks"
	"github.com/weft-fabric/weft/run/comm/internal/op"
)

// A message of no chunks, a signal, has no bytes, wherever it is said to lie.
func TestSignalsHaveNoBytes(t *testing.T) {
	p := &sched.Program{Name: "p", Op: sched.AllReduce, Ranks: 2, Chunks: sched.N(2)}
	o := &op.Op{Chunks: chunks.New(p, 4, 1024, nil)}
	o.Op = p.Op
	s := &space{o: o, in: make([]byte, 4096), out: make([]byte, 4096)}
	if n := len(s.at(step.Chunks{Buf: sched.In, Index: 1, Count: 1})); n != 2048 {
		t.Fatalf("a chunk has %d bytes", n)
	}
	for _, c := range []step.Chunks{{Buf: sched.In}, {Buf: sched.Out, Index: 1}, {Buf: sched.Out, Index: 2}, {Buf: sched.Tmp}} {
		if n := len(s.at(c)); n != 0 {
			t.Errorf("%s has %d bytes", c, n)
		}
	}
}
