package comm

import (
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/predict/cost"
	"github.com/weft-fabric/weft/run/comm/internal/flight"
	"github.com/weft-fabric/weft/run/reduce"
)

// Element is what a buffer may hold: every integer and float type of Go, types
// defined as one of them, and the four short floats below.
type Element = reduce.Element

// The floats that Go does not have, by their bits.
type (
	Float16    = reduce.F16
	BFloat16   = reduce.BF16
	Float8E4M3 = reduce.E4M3
	Float8E5M2 = reduce.E5M2
)

// Op is a reduction.
type Op = reduce.Op

// The reductions.
const (
	Sum       = reduce.Sum
	Prod      = reduce.Prod
	Min       = reduce.Min
	Max       = reduce.Max
	Avg       = reduce.Avg
	PreMulSum = reduce.PreMulSum // the sum of inputs that are multiplied first (Factor)
	BAnd      = reduce.BAnd
	BOr       = reduce.BOr
	BXor      = reduce.BXor
)

// Program is a collective algorithm: what Using runs.
type Program = sched.Program

// Collective is a kind of collective operation.
type Collective = sched.Collective

// Links are what the links between ranks cost.
type Links = cost.Links

// Counter is a number that only grows.
type Counter struct {
	Name  string `json:"name"`
	Value uint64 `json:"value"`
}

// Flight is a communicator's flight recorder: its last operations with their times.
type Flight = flight.Recorder

// Record is one operation of a flight recorder, and Step an action of a script.
type (
	Record  = flight.Record
	Step    = flight.Step
	Link    = flight.Link    // something that happened to the links with a rank
	Message = flight.Message // a send or receive
)

// Flight is the communicator's flight recorder.
func (c *Comm) Flight() *Flight { return c.flight }
