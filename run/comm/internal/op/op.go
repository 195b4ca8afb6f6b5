// Package op is a collective call: as its user makes it (Request), and under way (Op). Modes read it and write its output.
package op

import (
	"unsafe"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm/internal/calls"
	"github.com/weft-fabric/weft/run/comm/internal/chunks"
	"github.com/weft-fabric/weft/run/comm/internal/flat"
	"github.com/weft-fabric/weft/run/comm/internal/flight"
	"github.com/weft-fabric/weft/run/comm/internal/plan"
	"github.com/weft-fabric/weft/run/reduce"
)

// Request is a call as its user makes it.
type Request struct {
	Op      sched.Collective
	Variant uint8
	Type    reduce.Type
	Reduce  reduce.Op
	Root    int   // -1 where there is none
	Count   int   // elements of a block
	Counts  []int // elements of each block, where they differ
	Theirs  []int // all-to-all-v: the blocks of out
	In, Out []byte
	Cause   uint64 // what led to the call: see calls.Call
	Salt    uint64 // what else ranks must agree on: the call that this one is a phase of
}

// Op is a call under way.
type Op struct {
	Request
	Call    calls.Call
	Sig     uint64 // equal on ranks that make the same call after the same calls
	Factor  float64
	Program *sched.Program
	Form    *flat.Form // nil if the program is not flat or memory is not shared
	Chunks  chunks.Layout
	OutOnly *chunks.Layout // all-to-all-v: the chunks of out
	Overlap bool           // in and out share memory, and in must not be lost by it
	Plan    plan.Call      // what its mode depends on
	Mode    plan.Mode

	Began   int64 // in ticks; 0 until the clock is looked at
	Entered int64 // in ticks, when all ranks had entered; 0 if it was not looked at
	Steps   flight.Steps
}

// Scaled reports whether sums read a multiplied copy of the input.
func (o *Op) Scaled() bool { return o.Reduce == reduce.PreMulSum }

// In and out of a rank: where a chunk lies.

// InSpan is where a chunk of a rank's input lies in it.
func (o *Op) InSpan(c flat.Chunk) (lo, hi int) {
	return o.Chunks.Span(o.Op, sched.In, int(c.Rank), int(c.Index))
}

// OutSpan is where a chunk of a rank's output lies in it.
func (o *Op) OutSpan(c flat.Chunk) (lo, hi int) {
	return o.Chunks.Span(o.Op, sched.Out, int(c.Rank), int(c.Index))
}

// InBytes is the length of a rank's input, in a group of n.
func (o *Op) InBytes(rank, n int) int { return o.Chunks.Bytes(o.Op, sched.In, rank, n) }

// OutBytes is the length of a rank's output, in a group of n.
func (o *Op) OutBytes(rank, n int) int { return o.Chunks.Bytes(o.Op, sched.Out, rank, n) }

// Export copies the input, multiplied if the reduction wants it so.
func (o *Op) Export(dst []byte) {
	if o.Scaled() {
		reduce.ScaleTo(o.Type, dst, o.In, o.Factor)
		return
	}
	copy(dst, o.In)
}

// Overlap reports whether two buffers share memory.
func Overlap(a, b []byte) bool {
	if len(a) == 0 || len(b) == 0 {
		return false
	}
	pa, pb := uintptr(unsafe.Pointer(&a[0])), uintptr(unsafe.Pointer(&b[0]))
	return pa < pb+uintptr(len(b)) && pb < pa+uintptr(len(a))
}
