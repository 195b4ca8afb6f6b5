// Package meter counts what collectives of this host send over its links, so that transfers (package xfer) leave them their share.
//
// The count is a page of shared memory, one for each user and network namespace. Agents of transfers make it and read it; ranks add to it
// once it is there. It stays, 4 KiB in /dev/shm, and the next agent goes on with it: a rank maps the page once for its life, so that what
// it sends after the page was removed would be counted where no later agent looks.
package meter

import "sync/atomic"

// page is what is shared: bytes of all ranks together, from no particular time on.
type page struct {
	sent atomic.Uint64
	_    [56]byte // those who send and those who receive are different processors
	came atomic.Uint64
}

var (
	mapped atomic.Pointer[page]
	looks  atomic.Uint32
)

// between is how often a rank sends or receives between two looks for a page that is not there.
const between = 256

func get() *page {
	p := mapped.Load()
	if p == nil && looks.Add(1)%between == 1 {
		p = open(false)
	}
	return p
}

// Sent counts bytes of a collective that were handed to a link.
func Sent(n int) {
	if p := get(); p != nil {
		p.sent.Add(uint64(n))
	}
}

// Came counts bytes of a collective that came over a link. They come for as long as it is under way, where what is sent may go into a
// buffer at once.
func Came(n int) {
	if p := get(); p != nil {
		p.came.Add(uint64(n))
	}
}

// Open makes the count, and gives a function that reads it: how many bytes collectives of this host have sent and received, from no
// particular time on. It is nil where there is no shared memory: then nobody knows.
func Open() func() (sent, came uint64) {
	p := mapped.Load()
	if p == nil {
		if p = open(true); p == nil {
			return nil
		}
	}
	return func() (sent, came uint64) { return p.sent.Load(), p.came.Load() }
}
