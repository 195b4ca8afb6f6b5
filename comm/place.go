package comm

import "time"

// Ranks that are woken by one process tend to be put on its core, and the system
// takes 10 ms and more to notice that another one is free, as both are always
// busy: one spins, and the other, for which it waits, has no core. An all-reduce
// of 8 bytes then takes 4 us and more instead of 0.4. So a rank that waits longer
// than usual looks whether the other one was last seen on the same core, and goes
// to another if there is a core for every rank. It is not kept there: the system
// may move it, and who binds ranks to cores leaves it nowhere to go.

// partEvery is how often a rank goes to another core at most.
const partEvery = 2 * time.Millisecond

// part is called by waits that take long for one of the ranks that c awaits.
func (c *Comm) part() {
	here := processor()
	if b := c.boards[c.awaits]; b == nil || b.place() != here {
		return
	}
	now := clock()
	if now-c.parted < int64(partEvery) {
		return
	}
	c.parted = now
	leave(here)
	c.showPlace()
}

// showPlace tells the others on which core this rank is.
func (c *Comm) showPlace() {
	if placed {
		c.boards[c.rank].setPlace(processor())
	}
}
