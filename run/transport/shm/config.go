// Package shm carries messages between processes on one host through shared memory.
// Each rank has an arena, which every other rank maps. Data inside an arena is read in
// place; other data is copied once.
package shm

import "github.com/weft-fabric/weft/run/transport"

// Config says who a rank is and how it finds the others.
type Config struct {
	Rank, Size int
	Gather     transport.Gather // among the ranks of this endpoint

	// Arena is how many bytes a rank can allocate at most. It is address space,
	// not memory. 0 means as much as the machine has, but no more than 32 TiB
	// among all ranks, a quarter of what a process can address.
	Arena uint64

	// Machine is how many ranks share the cores of this machine, with those of other
	// endpoints; 0 for Size. Ranks that outnumber the cores wait in another way.
	Machine int

	// NoPull keeps ranks from reading memory of one another that is not in an arena.
	NoPull bool
}
