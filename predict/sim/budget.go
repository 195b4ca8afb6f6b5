package sim

import (
	"fmt"

	"github.com/weft-fabric/weft/model/unit"
)

// A simulation that does not fold keeps a record of every thread and connection, and an all-to-all has a connection for
// every pair of ranks. Each record is charged to a budget before it is made. So a case that is too large ends with an error
// after seconds, instead of taking the machine's memory.

// DefaultMemory is what a simulation may take if Options.Memory is zero.
const DefaultMemory = 2 * unit.GiB

// What records take, in bytes, with the maps and lists they are in. These are estimates: TestMemoryIsChargedInFull holds
// connections and threads to the heap, flowBytes is not held to anything. A process may hold about twice what is charged,
// as garbage is collected later.
const (
	flowBytes   = 128 // a route that proves a symmetry
	connBytes   = 480 // a connection with its flow and its key
	useBytes    = 24  // a wire on its way, and the load there
	threadBytes = 640 // a channel of a rank with its part of the machine
)

// MemoryError says that a program was not simulated because it needs more than Options.Memory.
type MemoryError struct {
	Program string
	Ranks   int
	Limit   unit.Bytes
}

func (e *MemoryError) Error() string {
	return fmt.Sprintf("%s on %d ranks needs more than %s of memory to simulate, as its ranks are too different to be folded",
		e.Program, e.Ranks, e.Limit)
}

// memory is what a simulation may take.
func (o *Options) memory() unit.Bytes {
	if o.Memory > 0 {
		return o.Memory
	}
	return DefaultMemory
}

// maxFlows is the number of flows whose routes may be kept to look for a symmetry.
func (o *Options) maxFlows() int { return int(o.memory() / flowBytes) }

// stopped asks Options.Stop once per 4,096 pieces of work, seldom enough to cost nothing. Looks counts them, by is how many were
// done since it was last called.
func (o *Options) stopped(looks *int64, by int64) bool {
	if o.Stop == nil {
		return false
	}
	before := *looks >> 12
	*looks += by
	return *looks>>12 != before && o.Stop()
}

// spend charges bytes to the budget; once it is used up, or the simulation is to stop, it sets w.err and returns false.
func (w *world) spend(bytes int, r *run) bool {
	w.bytes += unit.Bytes(bytes)
	switch {
	case w.err != nil:
	case w.bytes > w.o.memory():
		w.err = &MemoryError{Program: r.job.Program.Name, Ranks: r.job.Program.Ranks, Limit: w.o.memory()}
	case w.o.stopped(&w.looks, 1):
		w.err = ErrLate
	}
	return w.err == nil
}
