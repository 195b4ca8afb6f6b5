// Package group is a rank's view of its communicator: the boards and the memory of the others, and how to wait for them.
// Modes share it; each has its own state besides.
package group

import (
	"fmt"

	"github.com/weft-fabric/weft/run/comm/internal/blame"
	"github.com/weft-fabric/weft/run/comm/internal/board"
	"github.com/weft-fabric/weft/run/comm/internal/clock"
	"github.com/weft-fabric/weft/run/comm/internal/flight"
	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/wait"
)

// Group is a rank's view of its communicator.
type Group struct {
	Rank     int
	Members  []int // ranks of the endpoint
	Endpoint transport.Endpoint
	Memory   transport.Memory // nil where ranks do not see one another's memory
	Boards   []board.Board    // of the members, where memory is shared; else only the own one is set
	Host     Host
	Waiter   *wait.Waiter
	Stop     transport.Stop // asked by waits of the operation under way
	Heard    func() error   // a failure that another rank left a notice of, or nil
	Wait     Wait           // what it waits for
	Watch    clock.Stopwatch
	Flight   *flight.Recorder
	Affinity Affinity
}

// Host is what a rank knows of its host.
type Host struct {
	Pulls   bool // every rank may copy out of memory that others do not see
	Full    bool // ranks of this host outnumber its cores
	Moves   bool // ranks are processes that may move to another core
	Crowded bool // both: they look for a better core when they begin something
}

// Wait is what the operation under way waits for.
type Wait struct {
	Seq     uint64
	Phase   blame.Phase
	Readers []int32 // Exit: ranks that are waited for
	Heirs   bool    // Exit: a dead rank's sums are wanted, so its heir must do them
	Rank    int     // Input: the rank whose pieces are waited for
	Flag    uint64  // Input, Pieces: what its flag must come to
}

// Size is the number of ranks.
func (g *Group) Size() int { return len(g.Members) }

// Mine is the own board.
func (g *Group) Mine() board.Board { return g.Boards[g.Rank] }

// Alive is nil, or why a rank can no longer be reached.
func (g *Group) Alive(rank int) error { return g.Endpoint.Alive(g.Members[rank]) }

// At is memory of a rank at a handle.
func (g *Group) At(rank int, h transport.Handle, n int) ([]byte, error) {
	return g.Memory.At(g.Members[rank], h, n)
}

// Pull copies from a rank's memory by its address.
func (g *Group) Pull(rank int, addr uintptr, dst []byte) error {
	return g.Memory.Pull(g.Members[rank], addr, dst)
}

// Raise lets those that wait for a flag of the own board go on.
func (g *Group) Raise(f *wait.Flag, v uint64) { f.RaiseFor(v, g.Mine().Sleepers(), g.Waiter) }

// Await waits for a flag of a rank's board.
func (g *Group) Await(rank int, f *wait.Flag, v uint64) error {
	return f.WaitAs(v, g.Boards[rank].Sleepers(), g.Waiter, g.Stop)
}

// Stands is nil if nobody has given up an operation whose inputs were read, so that what was read is right.
func (g *Group) Stands(seq uint64) error {
	if by := g.Mine().GivenUp(seq); by >= 0 {
		return &GivenUp{By: by}
	}
	return nil
}

// GivenUp says that another rank gave the operation up while this one was in it.
type GivenUp struct{ By int }

func (e *GivenUp) Error() string { return fmt.Sprintf("rank %d gave the operation up", e.By) }

// Heir reports whether this rank is the lowest that lives: the heir of those that died.
func (g *Group) Heir() bool {
	for i := range g.Members {
		if i == g.Rank {
			return true
		}
		if g.Alive(i) == nil {
			return false
		}
	}
	return false
}

// Done reports whether a rank did what the wait needs of it.
func (w *Wait) Done(rank int, b board.Board) bool {
	switch w.Phase {
	case blame.Entry:
		return b.Entry(w.Seq).Flag().Load() >= w.Seq
	case blame.Sums:
		return b.Mid().Flag().Load() >= w.Seq
	case blame.Pieces:
		return b.Steps().Flag().Load() >= w.Flag
	case blame.Input:
		return rank != w.Rank || b.Staged().Load() >= w.Flag
	}
	return b.Leave().Load() >= w.Seq
}
